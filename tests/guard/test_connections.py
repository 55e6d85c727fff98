"""Connections that are held open, slow, or far too many: whoever has something to ask is answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.observe import connections
from sidecar.observe.connections import ConnectionLimits
from tests.guard.conftest import Certificates
from tests.guard.support import Guarded, authorized, guarded, until
from tests.guard.test_access import tls
from tests.guard.test_api import QUESTIONS
from tests.guard.test_limits import QUESTION, ready, request
from tests.guard.test_serving import watched, write

Held = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def held(
    port: int, count: int, *, first: bytes = b"", source: str = "127.0.0.1", **options: Any
) -> AsyncIterator[Held]:
    """Hold connections open, each with the first bytes of something sent."""
    opened: Held = []

    async def one() -> None:
        with contextlib.suppress(OSError):
            pair = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), **options)
            opened.append(pair)
            pair[1].write(first)

    try:
        for start in range(0, count, 50):
            await asyncio.gather(*(one() for _ in range(start, min(start + 50, count))))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Tell whether the other side has ended a connection."""
    try:
        async with asyncio.timeout(0.05):
            return await reader.read() == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def count(g: Guarded) -> int:
    assert g.server._listener is not None
    return len(g.server._listener)


async def everything_answers(g: Guarded) -> None:
    async with aiohttp.ClientSession() as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with client.get(g.server.url + path) as response:
                assert response.status in (200, 503)
    async with aiohttp.ClientSession() as client:
        g.client, before = client, g.client
        assert (await g.ask("/v1/authorize", QUESTIONS["authorize"])).body["allowed"]
        g.client = before


@pytest.mark.parametrize("first", [b"", b"POST /v1/authorize HTTP/1.1\r\nHost: local", b"GET /metrics HTTP/1.1\r\n"])
async def test_connections_that_say_nothing_keep_nobody_out(first: bytes, logged: io.StringIO) -> None:
    async with (
        guarded(await ready(), limits=ConnectionLimits(20, 20)) as g,
        held(g.server.port, 200, first=first) as opened,
    ):
        assert len(opened) == 200
        for _ in range(5):
            await everything_answers(g)
        assert count(g) <= 20
    assert logged.getvalue().count("connections are closed to make room") == 1
    assert logged.getvalue().count("\n") == 1


async def test_kept_connections_that_have_asked_once_keep_nobody_out_either() -> None:
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with guarded(await ready(), limits=ConnectionLimits(20, 20)) as g, held(g.server.port, 100, first=asked):
        await everything_answers(g)
        assert count(g) <= 20


async def test_what_is_being_answered_is_not_closed_for_others() -> None:
    async with guarded(await ready(), limits=ConnectionLimits(20, 20), max_wait=4.0) as g:
        asked = {**QUESTIONS["authorize"], "min_seq": 3}
        waiting = [asyncio.create_task(g.ask("/v1/authorize", asked)) for _ in range(10)]
        await until(lambda: g.value("sidecar_guard_in_flight") == 10)
        async with held(g.server.port, 200):
            await everything_answers(g)
            g.sessions.fold({"kind": "message", "session_id": "s", "seq": 3})
            assert all(answer.body["allowed"] for answer in await asyncio.gather(*waiting))


async def test_more_than_can_be_answered_are_closed_at_once() -> None:
    async with guarded(await ready(), limits=ConnectionLimits(8, 8), max_wait=4.0) as g:
        asked = {**QUESTIONS["authorize"], "min_seq": 3}
        waiting = [asyncio.create_task(g.ask("/v1/authorize", asked)) for _ in range(8)]
        await until(lambda: g.value("sidecar_guard_in_flight") == 8)
        async with held(g.server.port, 20) as opened:
            for reader, _ in opened:
                assert await closed(reader)
            assert count(g) == 8
        g.sessions.fold({"kind": "message", "session_id": "s", "seq": 3})
        assert all(answer.body["allowed"] for answer in await asyncio.gather(*waiting))


async def test_who_has_few_connections_keeps_them() -> None:
    """Fill the server from other addresses: the first one's connection, idle for longer than all others, is kept."""
    async with (
        guarded(await ready(), limits=ConnectionLimits(30, 12)) as g,
        held(g.server.port, 1) as mine,
        held(g.server.port, 60, source="127.0.0.2"),
        held(g.server.port, 60, source="127.0.0.3"),
        held(g.server.port, 60, source="127.0.0.4"),
    ):
        assert count(g) <= 30
        assert g.server._listener is not None
        assert max(g.server._listener._held.values()) <= 12
        reader, writer = mine[0]
        writer.write(request("Content-Type: application/json", f"Content-Length: {len(QUESTION)}") + QUESTION)
        assert b'"allowed":true' in await asyncio.wait_for(reader.read(), 5.0)
        await everything_answers(g)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_head_that_comes_drop_by_drop_is_not_waited_for(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_SWEEP_SECONDS", 0.1)
    async with guarded(await ready()) as g:
        reader, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
        if kept:  # the second request of a connection too
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.8)
            assert not reader.at_eof()  # between two requests there is more time
        began = time.monotonic()
        head = request("Content-Type: application/json", "X-Long: " + "x" * 1000)
        with contextlib.suppress(ConnectionError):
            for byte in head:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
        assert 0.3 < time.monotonic() - began < 4.0
        writer.close()
        await until(lambda: count(g) == 0)


async def test_an_answer_that_nobody_takes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TAKE_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_SWEEP_SECONDS", 0.1)
    async with guarded(await ready()) as g:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, ("127.0.0.1", g.server.port))
            asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

            async def ask_on() -> None:
                while True:
                    await loop.sock_sendall(raw, asked * 100)

            asking = asyncio.create_task(ask_on())
            await until(lambda: count(g) == 1)
            await until(lambda: count(g) == 0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await everything_answers(g)


async def test_a_handshake_that_never_begins_is_not_waited_for(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1.0)
    given = tls(certificates)
    async with guarded(await ready(), limits=ConnectionLimits(20, 20), **given) as g, held(g.server.port, 100):
        assert count(g) <= 20
        connector = aiohttp.TCPConnector(ssl=certificates.client())
        url = f"https://localhost:{g.server.port}/healthz"
        async with aiohttp.ClientSession(connector=connector) as client, client.get(url) as response:
            assert response.status in (200, 503)
        await until(lambda: count(g) == 0)
    assert "Traceback" not in logged.getvalue()


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-Long: " + b"x" * 1_000_000],
        [b"X-%d: x" % number for number in range(1000)],
        [b"X-" + b"y" * 100_000 + b": x"],
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    ],
)
async def test_heads_that_are_too_much(lines: list[bytes]) -> None:
    async with guarded(await ready()) as g:
        head = b"\r\n".join([b"POST /v1/authorize HTTP/1.1", b"Host: localhost", *lines, b"", b""])
        reader, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
        answer = b""
        with contextlib.suppress(ConnectionError):
            writer.write(head)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(), 5.0)
        writer.close()
        assert answer == b"" or answer.split(b" ")[1] == b"400"
        assert b'allowed":true' not in answer
        await everything_answers(g)


async def test_many_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    async with guarded(await ready()) as g:
        question = request("Content-Type: application/json", f"Content-Length: {len(QUESTION)}") + QUESTION
        kept = question.replace(b"Connection: close\r\n", b"")
        raw = await g.raw(kept * 300 + question)
        assert raw.count(b'"allowed":true') == 301
        assert g.value("sidecar_guard_requests_total", route="authorize", decision="allowed") == 301


async def test_where_open_files_run_out_nothing_spins_and_who_asks_is_answered(tmp_path: Path) -> None:
    write(tmp_path, *authorized("s"))
    async with watched(tmp_path) as w:
        port = int(w.url.rpartition(":")[2])
        for _ in range(200):
            if (await w.ask({"session_id": "s", "action_id": "deploy"}))["position"] == 2:
                break
            await asyncio.sleep(0.05)
        pid = w.process.pid
        most = _open_files(pid) + 12
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        before = w.log.read_text().count("\n")
        async with held(port, 100):
            worked = _worked(pid)
            for _ in range(4):
                async with aiohttp.ClientSession() as client, asyncio.timeout(20), client.get(f"{w.url}/healthz") as a:
                    assert a.status in (200, 503)
                await asyncio.sleep(0.5)
            assert _worked(pid) - worked < 1.5
        lines = w.log.read_text().splitlines()[before:]
        assert 1 <= len([line for line in lines if "connections" in line]) <= 2, lines
        assert len(lines) < 10 and not any("Traceback" in line for line in lines), lines


def _open_files(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def _worked(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_fewer_connections_than_asked_for_where_files_are_few(logged: io.StringIO) -> None:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections._possible(files // 2) == files // 2
    assert logged.getvalue() == ""
    assert connections._possible(files) == files // 2
    assert "http.max_connections" in logged.getvalue()
    assert most


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_whose_a_connection_is(first: str, second: str, same: bool) -> None:
    assert (connections._peer((first, 1)) == connections._peer((second, 2))) is same


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_the_server_ends_within_a_bound_whatever_is_held_open() -> None:
    async with guarded(await ready(), max_wait=4.5) as g:
        port = g.server.port
        half = request("Content-Type: application/json", "Content-Length: 60") + b"{"
        asked = json.dumps({**QUESTIONS["authorize"], "min_seq": 9}).encode()
        waits = request("Content-Type: application/json", f"Content-Length: {len(asked)}") + asked
        pipelined = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
        async with (
            held(port, 50),
            held(port, 20, first=b"POST /v1"),
            held(port, 20, first=half),
            held(port, 20, first=waits),
            held(port, 3, first=pipelined, limit=1024),
        ):
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await g.server.stop()
            assert time.monotonic() - began < 7.5
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)


async def test_a_watch_ends_within_a_bound_whatever_is_held_open(tmp_path: Path) -> None:
    write(tmp_path, *authorized("s"))
    async with watched(tmp_path) as w:
        port = int(w.url.rpartition(":")[2])
        pipelined = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
        async with held(port, 50), held(port, 20, first=b"POST /v1"), held(port, 3, first=pipelined, limit=1024):
            await asyncio.sleep(0.2)
            w.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(12):
                assert await w.process.wait() == 0
