"""The `kafka` section: how to reach the brokers, and as whom."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from sidecar.config.fields import Seconds, Section

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class KafkaSettings(Section):
    """Reach the brokers: addresses, TLS, authentication."""

    bootstrap_servers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = Field(
        default=("localhost:9092",),
        min_length=1,
        description="Brokers to begin with, HOST:PORT each (without a port: 9092); one that answers is enough.",
    )
    partitioner: Literal["murmur2", "crc32"] = Field(
        default="murmur2",
        description="How every producer of the input topics chooses a record's partition from its session id: murmur2"
        " (Java, aiokafka, librdkafka with `partitioner=murmur2_random`) or crc32 (librdkafka's default)."
        " A record in another partition is not judged.",
    )
    client_id: str = Field(
        default="frontier-sidecar",
        min_length=1,
        max_length=249,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Name of this client in the brokers' logs and quotas.",
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT",
        description="How to connect: with or without TLS (SSL), with or without authentication (SASL).",
    )
    ssl_cafile: Path | None = Field(
        default=None,
        description="Authorities (PEM) that the brokers' certificates must come from; unset: the system's.",
    )
    ssl_certfile: Path | None = Field(
        default=None, description="Certificate chain (PEM) to show to the brokers, for mutual TLS."
    )
    ssl_keyfile: Path | None = Field(
        default=None, description="Private key (PEM) of that certificate; unset: it is in the same file."
    )
    ssl_key_password: SecretStr | None = Field(
        default=None, min_length=1, description="What the private key is encrypted with."
    )
    ssl_key_password_file: Path | None = Field(default=None, description="File that holds `ssl_key_password`.")
    ssl_check_hostname: bool = Field(
        default=True,
        description="Whether a broker's certificate must name the host that was connected to; turning it off lets "
        "any holder of a certificate from the same authority pass for a broker.",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = Field(
        default=None, description="How to authenticate; needed with SASL_PLAINTEXT and SASL_SSL."
    )
    sasl_username: str | None = Field(default=None, min_length=1, description="User name (PLAIN, SCRAM).")
    sasl_password: SecretStr | None = Field(default=None, min_length=1, description="Password (PLAIN, SCRAM).")
    sasl_password_file: Path | None = Field(default=None, description="File that holds `sasl_password`.")
    sasl_oauth_token_file: Path | None = Field(
        default=None, description="File that holds the token (OAUTHBEARER); read again at every login."
    )
    request_timeout: Seconds = Field(
        default=40.0, ge=1, le=600, description="How long a broker may take to answer a request."
    )
    metadata_max_age: Seconds = Field(
        default=300.0, ge=1, le=3600, description="How often to look for new brokers and partitions."
    )
    retry_backoff: Seconds = Field(
        default=0.1, ge=0.001, le=60, description="How long to wait before a failed request is tried again."
    )
    connections_max_idle: Seconds = Field(
        default=540.0, ge=10, le=86400, description="How long an unused connection is kept open."
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            match = _ADDRESS.fullmatch(server)
            if not match or not 1 <= int(match[1] or 9092) <= 65535:
                raise ValueError(f"{server!r} is not HOST:PORT")
        return servers

    @model_validator(mode="after")
    def _consistent(self) -> "KafkaSettings":
        if problems := [*self._tls_problems(), *self._sasl_problems()]:
            raise ValueError("\n".join(problems))
        return self

    def client_options(self) -> dict[str, Any]:
        """Return the keyword arguments that every aiokafka client takes (consumer, producer, admin).

        Secrets and certificates are read from their files here, so a client made later sees renewed ones.

        Raises:
            SettingsError: a file of a secret or certificate cannot be used; it names the setting.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": list(self.bootstrap_servers),
            "client_id": self.client_id,
            "security_protocol": self.security_protocol,
            "request_timeout_ms": round(self.request_timeout * 1000),
            "metadata_max_age_ms": round(self.metadata_max_age * 1000),
            "retry_backoff_ms": round(self.retry_backoff * 1000),
            "connections_max_idle_ms": round(self.connections_max_idle * 1000),
        }
        if self._tls or self._sasl:
            from sidecar.config import security  # costs the import of aiokafka, which files do not need

            if self._tls:
                options["ssl_context"] = security.ssl_context(
                    cafile=self.ssl_cafile,
                    certfile=self.ssl_certfile,
                    keyfile=self.ssl_keyfile,
                    key_password=_secret("ssl_key_password", self.ssl_key_password, self.ssl_key_password_file),
                    check_hostname=self.ssl_check_hostname,
                )
            if self._sasl:
                options["sasl_mechanism"] = self.sasl_mechanism
                if self.sasl_mechanism == "OAUTHBEARER":
                    assert self.sasl_oauth_token_file is not None  # see _sasl_problems
                    security.read_secret(self.sasl_oauth_token_file, "kafka.sasl_oauth_token_file")
                    options["sasl_oauth_token_provider"] = security.TokenFile(self.sasl_oauth_token_file)
                else:
                    options["sasl_plain_username"] = self.sasl_username
                    options["sasl_plain_password"] = _secret(
                        "sasl_password", self.sasl_password, self.sasl_password_file
                    )
        return options

    @property
    def _tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def _sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def _given(self, *names: str) -> list[str]:
        return [f"kafka.{name}" for name in names if getattr(self, name) is not None]

    def _tls_problems(self) -> list[str]:
        files = self._given("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_key_password", "ssl_key_password_file")
        if not self._tls:
            unused = [*files, *([] if self.ssl_check_hostname else ["kafka.ssl_check_hostname"])]
            wanted = "SASL_SSL" if self._sasl else "SSL"
            return (
                [_unused(unused, self.security_protocol, f"set kafka.security_protocol to {wanted}")] if unused else []
            )
        problems = []
        if self.ssl_certfile is None and (rest := [name for name in files if name != "kafka.ssl_cafile"]):
            problems.append(f"{_list(rest)} given without a certificate: set kafka.ssl_certfile too")
        if self.ssl_key_password is not None and self.ssl_key_password_file is not None:
            problems.append(_both("ssl_key_password"))
        return problems

    def _sasl_problems(self) -> list[str]:
        login = self._given("sasl_username", "sasl_password", "sasl_password_file")
        token = self._given("sasl_oauth_token_file")
        if not self._sasl:
            unused = [*self._given("sasl_mechanism"), *login, *token]
            wanted = "SASL_SSL" if self._tls else "SASL_SSL (or SASL_PLAINTEXT)"
            return (
                [_unused(unused, self.security_protocol, f"set kafka.security_protocol to {wanted}")] if unused else []
            )
        if self.sasl_mechanism is None:
            return [f"kafka.security_protocol is {self.security_protocol}: set kafka.sasl_mechanism too"]
        problems = []
        if self.sasl_mechanism == "OAUTHBEARER":
            if not token:
                problems.append("kafka.sasl_mechanism is OAUTHBEARER: set kafka.sasl_oauth_token_file too")
            if login:
                problems.append(
                    f"{_list(login)} given, which OAUTHBEARER does not use: unset, or choose PLAIN or SCRAM"
                )
            return problems
        missing = ["kafka.sasl_username"] if self.sasl_username is None else []
        if self.sasl_password is None and self.sasl_password_file is None:
            missing.append("kafka.sasl_password (or kafka.sasl_password_file)")
        if missing:
            problems.append(f"kafka.sasl_mechanism is {self.sasl_mechanism}: set {' and '.join(missing)} too")
        if self.sasl_password is not None and self.sasl_password_file is not None:
            problems.append(_both("sasl_password"))
        if token:
            problems.append(
                f"kafka.sasl_oauth_token_file is given, which {self.sasl_mechanism} does not use: unset it, "
                "or set kafka.sasl_mechanism to OAUTHBEARER"
            )
        return problems


def _secret(name: str, value: SecretStr | None, file: Path | None) -> str | None:
    if value is not None:
        return value.get_secret_value()
    if file is None:
        return None
    from sidecar.config.security import read_secret

    return read_secret(file, f"kafka.{name}_file")


def _both(name: str) -> str:
    return f"kafka.{name} and kafka.{name}_file are both given: set only one of them"


def _unused(names: list[str], protocol: str, remedy: str) -> str:
    it = "it" if len(names) == 1 else "them"
    return f"{_list(names)} given, and kafka.security_protocol {protocol} does not use {it}: {remedy}, or unset {it}"


def _list(names: list[str]) -> str:
    text = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    return f"{text} {'is' if len(names) == 1 else 'are'}"
