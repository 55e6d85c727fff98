"""`sidecar health`, which orchestrators run inside a container: what it asks, whom it trusts, and what it says."""

import asyncio
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.embedded import free_port
from sidecar.observe.health import Health
from sidecar.observe.http import HttpServer
from sidecar.observe.metrics import Metrics
from sidecar.observe.probe import Answer, ask
from tests.conftest import missing
from tests.ops import secured
from tests.ops.secured import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if reason := secured.available():
        missing(reason)
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server(health: Health, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> HttpServer:
    return HttpServer(host, 0, Metrics(), health, tls=tls)


def well() -> Health:
    health = Health(time.monotonic())
    health.broker(True, time.monotonic())
    health.assign([0], time.monotonic())
    health.restored(0, time.monotonic())
    health.observe(0, 1, 0, time.monotonic())
    return health


async def asked(host: str, port: int, question: str = "healthz", certificate: Path | None = None) -> Answer:
    return await asyncio.to_thread(ask, host, port, question, certificate=certificate, timeout=2.0)  # type: ignore[arg-type]


@pytest.fixture
async def running() -> AsyncIterator[HttpServer]:
    served = server(well(), "0.0.0.0")
    await served.start()
    yield served
    await served.stop()


async def test_a_wildcard_is_asked_on_loopback(running: HttpServer) -> None:
    assert await asked("0.0.0.0", running.port) == Answer(True)
    assert (await asked("0.0.0.0", running.port, "readyz")).ok


async def test_what_is_wrong_is_said() -> None:
    served = server(Health(time.monotonic()))
    await served.start()
    try:
        assert (await asked("127.0.0.1", served.port)).ok
        answer = await asked("127.0.0.1", served.port, "readyz")
        assert not answer.ok and answer.reasons
    finally:
        await served.stop()
    nobody = await asked("127.0.0.1", served.port)
    assert not nobody.ok and "no answer from 127.0.0.1" in nobody.reasons[0]


async def test_something_else_that_answers_is_not_well() -> None:
    app = web.Application()
    app.router.add_get("/healthz", _hello)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        answer = await asked("127.0.0.1", port)
        assert not answer.ok and "is no sidecar" in answer.reasons[0]
    finally:
        await runner.cleanup()


async def _hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def test_over_tls_exactly_the_certificate_that_is_served_is_trusted(certificates: Certificates) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert("elsewhere"), certificates.key("elsewhere"))  # of another name
    served = server(well(), tls=context)
    await served.start()
    try:
        assert (await asked("127.0.0.1", served.port, certificate=certificates.cert("elsewhere"))).ok
        for other in ("broker", "stranger"):
            answer = await asked("127.0.0.1", served.port, certificate=certificates.cert(other))
            assert not answer.ok and "CERTIFICATE_VERIFY_FAILED" in answer.reasons[0]
        assert not (await asked("127.0.0.1", served.port)).ok  # HTTP to an HTTPS port
        await asyncio.sleep(0.1)
    finally:
        await served.stop()


async def test_the_command_asks_where_the_settings_say(running: HttpServer) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SIDECAR_")}
    environment |= {"SIDECAR_HTTP__HOST": "0.0.0.0", "SIDECAR_HTTP__PORT": str(running.port)}
    environment["SIDECAR_GUARD__ENABLED"] = "false"

    async def health(*arguments: str) -> tuple[int | None, str]:
        command = (sys.executable, "-m", "sidecar", "health", *arguments)
        child = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
        _, err = await child.communicate()
        return child.returncode, err.decode()

    assert await health("--ready") == (0, "")
    status, said = await health("--http", f"127.0.0.1:{free_port()}")
    assert status == 1 and "no answer" in said
