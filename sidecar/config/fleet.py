"""The sections `fleet` and `alerts`: the view of all sessions, and what it alerts to."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from sidecar.config.fields import Float, Int, Seconds, Section

_URL = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
PORT = 9465
"""Where the fleet serves, unless `http.port` says otherwise."""


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


_Hosts = Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_split)]


class FleetSettings(Section):
    """Tune the fleet view (`fleet`)."""

    group_id: str = Field(
        default="frontier-fleet",
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Consumer group, and the begin of the names of the fleet's own topics; a new one begins anew.",
    )
    group_instance_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=249,
        description="Name of this worker, kept across restarts, so that a quick restart moves no partition.",
    )
    store: Literal["memory", "rocksdb"] = Field(
        default="memory",
        description="Where sessions are kept: in memory, or on disk (needs the extra `rocksdb`); both are backed by a "
        "changelog topic.",
    )
    data_dir: Path = Field(
        default=Path(".sidecar-fleet"), description="Folder of the `rocksdb` store; one for each worker."
    )
    commit_interval: Seconds = Field(
        default=1.0, ge=0.05, le=60, description="How often what has changed is written to the changelog."
    )
    rollup_interval: Seconds = Field(
        default=1.0, ge=0.05, le=60, description="How often changed sums by tenant, agent and model are sent."
    )
    alert_interval: Seconds = Field(default=2.0, ge=0.05, le=60, description="How often alerts are judged.")
    session_ttl: Seconds = Field(
        default=7 * 86400.0,
        ge=90_000,
        le=10 * 365 * 86400,
        description="A session of which nothing has been heard for so long is forgotten.",
    )
    alert_ttl: Seconds = Field(
        default=7 * 86400.0, ge=60, le=10 * 365 * 86400, description="How long an alert is kept after it was cleared."
    )
    session_timeout: Seconds = Field(
        default=10.0, ge=1, le=300, description="Silence after which the group gives a worker's partitions away."
    )
    heartbeat_interval: Seconds = Field(
        default=3.0, ge=0.1, le=100, description="How often a worker tells its group that it lives."
    )
    recovery_timeout: Seconds = Field(
        default=300.0,
        ge=1,
        le=86400,
        description="A worker that has not read its changelogs after so long ends, to be started again; one that gets"
        " no further with them is not alive (`health.stall_after`).",
    )
    guard_url: str | None = Field(
        default=None,
        pattern=_URL.pattern,
        description="A guard (`run`) that the board may ask for the approvals a session has now; unset: they are not"
        " drawn.",
    )
    guard_token_file: Path | None = Field(
        default=None,
        description="File with the token that this guard asks for (its first line; read again when it is refused). It "
        "is shown to the replica that has the session, too; with an address of https, never over http.",
    )
    guard_owner_hosts: _Hosts = Field(
        default=None,
        description="Hosts (`*` stands for any part) that this guard may name as a session's replica; any other is not "
        "asked. Unset: those with a certificate of `fleet.guard_cafile`.",
    )
    guard_cafile: Path | None = Field(
        default=None, description="Authorities (PEM) that this guard's certificate must come from; unset: the system's."
    )
    guard_certfile: Path | None = Field(
        default=None, description="Certificate chain (PEM) to show to this guard, for mutual TLS."
    )
    guard_keyfile: Path | None = Field(
        default=None, description="Private key (PEM) of that certificate; unset: it is in the same file."
    )
    ask_timeout: Seconds = Field(
        default=2.0, ge=0.1, le=60, description="How long another worker may take to answer a query."
    )
    advertise: str | None = Field(
        default=None,
        description="Address (URL) under which the other workers reach this one; unset: made of `http.host` and "
        "`http.port`. Needed where `http.host` is a wildcard.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File with the token that workers show each other; the same for all. Unset: none is asked for.",
    )
    worker_hosts: _Hosts = Field(
        default=None,
        description="Hosts (`*` stands for any part) of the other workers. With `fleet.token_file` no others are"
        " asked, except on loopback: a member of the group can name any address.",
    )

    @property
    def changelog(self) -> str:
        """Return the topic that holds the fleet's sessions."""
        return f"{self.group_id}-sessions-changelog"

    @property
    def rollups(self) -> str:
        """Return the topic on which sums by tenant, agent and model go to whoever judges them."""
        return f"{self.group_id}-rollups"

    @field_validator("advertise")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is not None and not _URL.fullmatch(url.rstrip("/")):
            raise ValueError("an address is http://HOST:PORT or https://HOST:PORT, without a path")
        return url and url.rstrip("/")

    @model_validator(mode="after")
    def _guard(self) -> "FleetSettings":
        names = ("guard_cafile", "guard_certfile", "guard_keyfile")
        given = [f"fleet.{name}" for name in names if getattr(self, name) is not None]
        if given and not (self.guard_url or "").startswith("https://"):
            raise ValueError(f"{' and '.join(given)} given, and fleet.guard_url is no https:// address")
        if self.guard_keyfile is not None and self.guard_certfile is None:
            raise ValueError("fleet.guard_keyfile is given without a certificate: set fleet.guard_certfile too")
        return self

    @model_validator(mode="after")
    def _heartbeats(self) -> "FleetSettings":
        if self.heartbeat_interval * 2 > self.session_timeout:
            raise ValueError(
                f"fleet.heartbeat_interval {self.heartbeat_interval:g} is more than half of fleet.session_timeout "
                f"{self.session_timeout:g}: one late heartbeat would lose the partitions; a third is usual"
            )
        return self


class AlertSettings(Section):
    """Say what the fleet alerts to (`fleet`)."""

    storm_share: Float = Field(
        default=0.5, gt=0, le=1, description="Storm: so much of a tenant's or a model's sessions is degraded."
    )
    storm_clear_share: Float = Field(default=0.3, ge=0, le=1, description="A storm ends below this share.")
    storm_sessions: Int = Field(
        default=5, ge=1, le=1_000_000, description="A storm needs at least so many sessions of the tenant or model."
    )
    regression_factor: Float = Field(
        default=4.0,
        gt=1,
        le=1000,
        description="Regression: a rule fires so many times as often in an hour as on average in the day before.",
    )
    regression_clear_factor: Float = Field(
        default=2.0, ge=0, le=1000, description="A regression ends below so many times the average."
    )
    regression_findings: Int = Field(
        default=10, ge=1, le=1_000_000, description="A regression needs at least so many findings in the hour."
    )
    regression_history: Seconds = Field(
        default=7200.0, ge=0, le=82_800, description="A regression needs to know at least so much of the day before."
    )
    halt_after: Seconds = Field(
        default=300.0,
        ge=0,
        le=7 * 86400,
        description="Unacknowledged halt: open for so long, and nobody has it in hand.",
    )
    halt_error_after: Seconds = Field(
        default=900.0, ge=0, le=7 * 86400, description="After so long its severity is `error`."
    )
    halt_critical_after: Seconds = Field(
        default=3600.0, ge=0, le=7 * 86400, description="After so long its severity is `critical`."
    )
    offender_node: Int = Field(
        default=3, ge=1, le=16, description="Repeat offender: one node is frozen so many times in an hour."
    )
    offender_agent: Int = Field(
        default=10, ge=1, le=1_000_000, description="Repeat offender: an agent's nodes are, so many times in an hour."
    )
    silence_after: Seconds = Field(
        default=900.0,
        ge=1,
        le=7 * 86400,
        description="Silence: a tenant has degraded sessions, and nothing has been heard of it for so long.",
    )
    silence_forget: Seconds = Field(
        default=86400.0, ge=1, le=30 * 86400, description="Silence ends after so long: then its sessions are over."
    )
    hold: Seconds = Field(
        default=30.0, ge=0, le=86400, description="So long a bound has to be passed without a break, up or down."
    )
    update_interval: Seconds = Field(
        default=60.0, ge=0, le=86400, description="An open alert is updated at most so often (severity: at once)."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "AlertSettings":
        problems = [
            f"alerts.{lower} {getattr(self, lower):g} is above alerts.{upper} {getattr(self, upper):g}: {why}"
            for lower, upper, why in (
                ("storm_clear_share", "storm_share", "a storm would end while it begins"),
                ("regression_clear_factor", "regression_factor", "a regression would end while it begins"),
                ("halt_after", "halt_error_after", "it could not be a warning first"),
                ("halt_error_after", "halt_critical_after", "it could not be an error first"),
                ("silence_after", "silence_forget", "silence would end before it begins"),
            )
            if getattr(self, lower) > getattr(self, upper)
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self
