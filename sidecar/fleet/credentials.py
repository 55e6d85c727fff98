"""The settings of the section `kafka` as Faust takes them."""

from collections.abc import Mapping
from typing import Any

from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials


def broker_options(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a Faust application that say how to reach the brokers, and as whom.

    Args:
        client: the arguments of an aiokafka client (`KafkaSettings.client_options`).
    """
    options: dict[str, Any] = {
        "broker": [f"kafka://{server}" for server in client["bootstrap_servers"]],
        "broker_client_id": client["client_id"],
        "broker_request_timeout": client["request_timeout_ms"] / 1000,
        "producer_request_timeout": client["request_timeout_ms"] / 1000,
        "consumer_metadata_max_age_ms": client["metadata_max_age_ms"],
        "producer_metadata_max_age_ms": client["metadata_max_age_ms"],
        "consumer_connections_max_idle_ms": client["connections_max_idle_ms"],
        "producer_connections_max_idle_ms": client["connections_max_idle_ms"],
    }
    context = client.get("ssl_context")
    mechanism = client.get("sasl_mechanism")
    if mechanism == "OAUTHBEARER":
        # With the context or without: it decides between SASL_SSL and SASL_PLAINTEXT.
        options["broker_credentials"] = OAuthCredentials(
            oauth_cb=client["sasl_oauth_token_provider"], ssl_context=context
        )
    elif mechanism is not None:
        options["broker_credentials"] = SASLCredentials(
            username=client["sasl_plain_username"],
            password=client["sasl_plain_password"],
            mechanism=mechanism,
            ssl_context=context,
        )
    elif context is not None:
        options["broker_credentials"] = SSLCredentials(context)
    return options
