"""SASL and TLS for real: Apache Kafka with SCRAM-SHA-512 over TLS, and what is said when it does not come about."""

import asyncio

import pytest

from sidecar.config import Settings
from sidecar.tail.errors import TailError
from sidecar.tail.topics import create_missing
from tests.kafka.tail_support import case_lines, judged, new_tail, running, send, settings_for, until_found
from tests.ops.secured import Administrator, Grant, SecuredBroker

pytestmark = pytest.mark.kafka

EVERYTHING = 2  # the operation ALL
CREDENTIALS = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512"


def login(monkeypatch: pytest.MonkeyPatch, broker: SecuredBroker, user: str, **more: str) -> None:
    for name, value in broker.environment(user, **more).items():
        monkeypatch.setenv(name, value)


async def allow_everything(broker: SecuredBroker, user: str, unique: str) -> None:
    async with Administrator(broker.open) as administrator:
        for kind in (2, 3, 5):
            await administrator.grant([Grant(f"User:{user}", kind, unique, 4, EVERYTHING)])


async def works(broker: SecuredBroker, address: str, unique: str) -> None:
    settings = settings_for(address, unique)
    await create_missing(settings)
    expected = [finding.finding_id for finding in judged(case_lines(), ended=False).findings]
    async with running(settings):
        await send(settings, case_lines())
        await until_found(settings_for_open(broker, unique), expected)


def settings_for_open(broker: SecuredBroker, unique: str) -> Settings:
    open_ = {"security_protocol": "PLAINTEXT", "sasl_mechanism": None, "sasl_username": None, "sasl_password": None}
    return settings_for(broker.open, unique, kafka={**open_, "ssl_cafile": None, "sasl_password_file": None})


async def test_scram_over_tls_with_variables_alone(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail")
    await allow_everything(secured, "frontier-tail", unique)
    await works(secured, secured.scram, unique)


async def test_a_client_certificate_is_enough_where_the_broker_asks_for_one(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = secured.certificates
    monkeypatch.setenv("SIDECAR_KAFKA__SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("SIDECAR_KAFKA__SSL_CAFILE", str(made.cert("ca")))
    await refused(secured.mutual, unique, "Connection at .* closed")
    monkeypatch.setenv("SIDECAR_KAFKA__SSL_CERTFILE", str(made.cert("frontier-tail")))
    monkeypatch.setenv("SIDECAR_KAFKA__SSL_KEYFILE", str(made.key("frontier-tail")))
    await allow_everything(secured, "frontier-tail", unique)
    settings = settings_for(secured.mutual, unique)
    await create_missing(settings)
    async with running(settings):
        pass


async def refused(address: str, unique: str, said: str, within: float = 0.5) -> str:
    """See that the tail does not start, in bounded time, and that it says why; return what it says."""
    tail, _, _ = new_tail(settings_for(address, unique), within=within)
    with pytest.raises(TailError, match=said) as caught:
        await asyncio.wait_for(tail.run(), 15)
    await asyncio.sleep(0.5)  # TLS takes a moment to close, and the loop must not end before.
    text = str(caught.value)
    assert address in text and "security settings" in text
    assert "not-a-secret" not in text
    return text


async def test_a_wrong_password_is_said(secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    login(monkeypatch, secured, "frontier-tail", sasl_password="guessed")
    # At once, not again and again: after enough wrong passwords a broker may lock the account.
    assert "guessed" not in await refused(secured.scram, unique, CREDENTIALS, within=60.0)


async def test_an_unknown_user_is_said(secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    login(monkeypatch, secured, "nobody")
    await refused(secured.scram, unique, CREDENTIALS)


async def test_an_authority_that_is_not_trusted_is_said(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail", ssl_cafile=str(secured.certificates.cert("stranger")))
    await refused(secured.scram, unique, "certificate verify failed: unable to get local issuer certificate")


async def test_an_expired_certificate_is_said(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail")
    await refused(secured.expired, unique, "certificate verify failed: certificate has expired")


async def test_a_certificate_of_another_host_is_said(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail")
    await refused(secured.elsewhere, unique, "certificate is not valid for '127.0.0.1'")


async def test_no_tls_where_the_broker_wants_it_is_said(secured: SecuredBroker, unique: str) -> None:
    await refused(secured.scram, unique, "Connection at .* closed")
