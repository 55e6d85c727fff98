"""SASL and TLS for real: Apache Kafka with SCRAM-SHA-512 over TLS, and what is said when it does not come about."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.client import BrokerRefusal, Emitter, HaltListener
from sidecar.client import brokers as client_brokers
from sidecar.config import Settings
from sidecar.embedded import free_port
from sidecar.fleet import haltlog
from sidecar.fleet.commands import halts
from sidecar.tail import clients as tail_clients
from sidecar.tail.errors import TailError
from sidecar.tail.topics import create_missing
from tests.kafka.proxy import Proxy
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
    await asyncio.sleep(0.5)  # see `refused`


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
    await refused(secured.mutual, unique, "(?i)alert bad certificate.*kafka.ssl_certfile", within=60.0)
    monkeypatch.setenv("SIDECAR_KAFKA__SSL_CERTFILE", str(made.cert("frontier-tail")))
    monkeypatch.setenv("SIDECAR_KAFKA__SSL_KEYFILE", str(made.key("frontier-tail")))
    await allow_everything(secured, "frontier-tail", unique)
    settings = settings_for(secured.mutual, unique)
    await create_missing(settings)
    async with running(settings):
        pass
    await asyncio.sleep(0.5)  # see `refused`


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


WRONG = {
    "password": ({"sasl_password": "guessed"}, CREDENTIALS, "kafka.sasl_password", "sasl_plain_password"),
    "authority": (
        {"ssl_cafile": "stranger"},
        "certificate verify failed: unable to get local issuer certificate",
        "kafka.ssl_cafile",
        "the authorities in ssl_context",
    ),
    "mechanism": (
        {"sasl_mechanism": "SCRAM-SHA-256"},
        "the broker does not offer the SASL mechanism SCRAM-SHA-256 there",
        "kafka.sasl_mechanism",
        "sasl_mechanism",
    ),
}


def security(settings: Settings) -> dict[str, Any]:
    options = settings.kafka.client_options()
    return {name: value for name, value in options.items() if name.startswith(("security", "ssl", "sasl"))}


@contextlib.asynccontextmanager
async def at_once() -> AsyncIterator[None]:
    """See that what is done does not wait: not again and again, or a broker may lock the account."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_trying_again_does_not_mend_is_said_at_once_to_everybody(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str
) -> None:
    changed, said, setting, argument = WRONG[wrong]
    if "ssl_cafile" in changed:
        changed = {"ssl_cafile": str(secured.certificates.cert(changed["ssl_cafile"]))}
    login(monkeypatch, secured, "frontier-tail", **changed)
    # One that is away beside the one that refuses is not waited for.
    address = f"127.0.0.1:{free_port()},{secured.scram}"
    settings = settings_for(address, unique)
    told = []
    async with at_once():
        told.append((setting, await refused(secured.scram, unique, said, within=60.0)))
    async with at_once():
        with pytest.raises(TailError) as of_topics:
            await create_missing(settings)
    told.append((setting, str(of_topics.value)))
    async with at_once():
        with pytest.raises(BrokerRefusal) as of_emitter:
            await Emitter.kafka(address, "s", journal=tmp_path, **security(settings)).start()
    told.append((argument, str(of_emitter.value)))
    async with HaltListener(address, **security(settings)) as listener:
        async with at_once():
            for waiting in (listener.wait_ready(60), listener.wait_ready(), anext(listener)):
                with pytest.raises(BrokerRefusal) as of_listener:
                    await asyncio.wait_for(waiting, 20)
        assert listener.is_halted("s") and listener.status == "starting"
    told.append((argument, str(of_listener.value)))
    monkeypatch.setenv("SIDECAR_KAFKA__BOOTSTRAP_SERVERS", address)
    async with at_once():
        result = await asyncio.to_thread(CliRunner().invoke, halts, ["list"], obj={})
    assert result.exit_code == 1
    told.append((setting, result.stderr))
    await asyncio.sleep(0.5)  # see `refused`
    for named, text in told:
        assert said in text and secured.scram in text and "security settings" in text and named in text
        assert "guessed" not in text and "not-a-secret" not in text


async def test_a_broker_that_is_away_is_waited_for(secured: SecuredBroker, unique: str) -> None:
    port = free_port()
    settings = settings_for(f"127.0.0.1:{port}", unique)
    ways: list[Callable[[], Awaitable[dict[str, Any]]]] = [
        lambda: tail_clients.reach(settings, 20),
        lambda: client_brokers.reach(settings.kafka.client_options(), 20),
        lambda: haltlog.reach(settings),
    ]
    work = [asyncio.ensure_future(way()) for way in ways]
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in work)
    async with Proxy(int(secured.open.rpartition(":")[2]), port):
        for options in await asyncio.wait_for(asyncio.gather(*work), 10):
            assert options["bootstrap_servers"] == [f"127.0.0.1:{port}"]


async def test_a_listener_that_is_let_in_later_goes_on(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail")
    monkeypatch.setattr("sidecar.client.listener.REFUSED_PAUSE", 0.2)
    await allow_everything(secured, "frontier-tail", unique)
    settings = settings_for(secured.scram, unique)
    await create_missing(settings)
    options = security(settings)
    listener = HaltListener(secured.scram, topic=settings.topics.halts, **{**options, "sasl_plain_password": "guessed"})
    async with listener:
        with pytest.raises(BrokerRefusal):
            await listener.wait_ready(20)
        listener._options["sasl_plain_password"] = options["sasl_plain_password"]  # as if it had been changed there
        await asyncio.sleep(0.5)
        await listener.wait_ready(20)
        assert not listener.is_halted("s")
    await asyncio.sleep(0.5)  # see `refused`


async def test_an_unknown_user_is_said(secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    login(monkeypatch, secured, "nobody")
    await refused(secured.scram, unique, CREDENTIALS)


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


async def test_sasl_where_the_broker_wants_none_is_said(
    secured: SecuredBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(monkeypatch, secured, "frontier-tail", security_protocol="SASL_PLAINTEXT")
    monkeypatch.delenv("SIDECAR_KAFKA__SSL_CAFILE")
    await refused(secured.open, unique, "expects no SASL there.*kafka.security_protocol", within=60.0)


async def test_no_tls_where_the_broker_wants_it_is_said(secured: SecuredBroker, unique: str) -> None:
    await refused(secured.scram, unique, "Connection at .* closed")
