"""Check what the Kafka clients are given, without importing them."""

from collections.abc import Iterable, Mapping
from typing import Any

OPTIONS = frozenset(
    (
        *("client_id", "security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username"),
        *("sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
        *("sasl_oauth_token_provider",),
        *("request_timeout_ms", "metadata_max_age_ms", "retry_backoff_ms", "connections_max_idle_ms"),
    )
)
"""What every client of aiokafka takes, besides the servers."""

REFUSED_PAUSE = 10.0
"""Seconds before brokers that refuse are asked again: too many wrong passwords might lock the account."""

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def client_options(servers: str | Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that every client takes.

    Args:
        servers: `HOST:PORT,…`, or a list of them.
        options: further arguments.

    Raises:
        TypeError: an argument that not every client takes.
        ValueError: no server, or a way to connect that lacks something.
    """
    if unknown := sorted(set(options) - OPTIONS):
        raise TypeError(f"unknown options {', '.join(unknown)}; aiokafka's clients share {', '.join(sorted(OPTIONS))}")
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [server.strip() for server in listed if server.strip()]
    if not addresses:
        raise ValueError("bootstrap_servers names no broker: HOST:PORT, several with commas")
    protocol = options.get("security_protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        raise ValueError(f"security_protocol {protocol!r} is none of {', '.join(_PROTOCOLS)}")
    if "SSL" in protocol and options.get("ssl_context") is None:
        raise ValueError(f"security_protocol {protocol} needs an ssl_context")
    if "SASL" in protocol and options.get("sasl_mechanism") is None:
        raise ValueError(f"security_protocol {protocol} needs a sasl_mechanism")
    return {"client_id": "sidecar-client", "retry_backoff_ms": 250, **options, "bootstrap_servers": addresses}
