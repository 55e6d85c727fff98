"""Bodies that are too large, torn or slow, too many at once, clients that go away: bounded, and never a permission."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
from typing import Any

import pytest

from sidecar.engine.live import Standing
from sidecar.guard import api
from sidecar.observe import http
from tests.guard.support import FakeSessions, Guarded, authorized, guarded, until
from tests.guard.test_api import QUESTIONS, refused

QUESTION = json.dumps(QUESTIONS["authorize"]).encode()
JSON = {"Content-Type": "application/json"}


def request(*headers: str, path: str = "/v1/authorize", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode()


def parse(raw: bytes) -> tuple[int, Any]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else body


async def ready() -> FakeSessions:
    sessions = FakeSessions()
    sessions.fold(*authorized("s"))
    return sessions


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large(chunked: bool) -> None:
    async with guarded(await ready(), max_body=1024) as g:
        body = json.dumps({**QUESTIONS["authorize"], "checkpoint_id": "x" * 2000}).encode()

        async def chunks() -> Any:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        answer = await g.request("POST", "/v1/authorize", data=chunks() if chunked else body, headers=JSON)
        refused("authorize", answer, 413, "bad_request")
        assert "guard.max_body" in answer.body["reasons"][0]["detail"]
        assert answer.headers["Connection"] == "close"
        fits = QUESTION + b" " * (1024 - len(QUESTION))
        assert (await g.ask("/v1/authorize", fits, headers=JSON)).body["allowed"]
        refused("authorize", await g.ask("/v1/authorize", fits + b" ", headers=JSON), 413, "bad_request")


async def test_a_length_that_is_too_large_is_refused_before_the_body_comes() -> None:
    async with guarded(await ready(), max_body=1024) as g:
        reader, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
        writer.write(request("Content-Type: application/json", f"Content-Length: {10**12}"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
        assert b" 413 " in head
        writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),  # which a page of another site could send without asking first
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "br"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/json", "Content-Encoding": "identity"}, 200),
    ],
)
async def test_what_a_question_comes_as(headers: dict[str, str], status: int) -> None:
    async with guarded(await ready()) as g:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        raw = await g.raw(request(*lines, f"Content-Length: {len(QUESTION)}") + QUESTION)
        found, body = parse(raw)
        assert (found, body["allowed"]) == (status, status == 200)


async def test_nothing_is_unpacked() -> None:
    bomb = gzip.compress(b" " * 10_000_000 + QUESTION)
    async with guarded(await ready()) as g:
        answer = await g.ask("/v1/authorize", bomb, headers={**JSON, "Content-Encoding": "gzip"})
        refused("authorize", answer, 415, "bad_request")


async def test_a_body_without_a_length() -> None:
    async with guarded(await ready()) as g:
        status, body = parse(await g.raw(request("Content-Type: application/json")))
        assert (status, body["allowed"]) == (411, False)


@pytest.mark.parametrize("torn", [b"", QUESTION[:-1], QUESTION[:5]])
async def test_a_torn_body(torn: bytes, logged: io.StringIO) -> None:
    async with guarded(await ready(), timeout=0.5, max_wait=0.1) as g:
        length = f"Content-Length: {len(QUESTION)}"
        raw = await g.raw(request("Content-Type: application/json", length) + torn, then_end=True)
        assert b'"allowed":true' not in raw
        chunked = request("Content-Type: application/json", "Transfer-Encoding: chunked")
        raw = await g.raw(chunked + b"%x\r\n" % len(QUESTION) + torn, then_end=True)
        assert b'"allowed":true' not in raw
        assert (await g.ask("/v1/authorize", QUESTIONS["authorize"])).body["allowed"]
        assert g.value("sidecar_guard_requests_total", route="authorize", decision="allowed") == 1
        assert g.value("sidecar_guard_errors_total") == 0
    assert logged.getvalue() == ""


async def test_a_slow_body_is_not_waited_for() -> None:
    async with guarded(await ready(), timeout=0.4, max_wait=0.1) as g:
        began = time.monotonic()
        head = request("Content-Type: application/json", f"Content-Length: {len(QUESTION)}")
        drops = [QUESTION[n : n + 1] for n in range(10)]
        raw = await g.raw(head, *drops, pause=0.06)
        status, body = parse(raw)
        assert (status, body["allowed"], body["reasons"][0]["code"]) == (408, False, "timed_out")
        assert time.monotonic() - began < 8.0


async def test_a_header_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_IDLE_SECONDS", 0.3)
    async with guarded() as g:
        began = time.monotonic()
        assert await g.raw(b"POST /v1/authorize HTTP/1.1\r\nHost: local") == b""
        assert 0.2 < time.monotonic() - began < 8.0


async def test_what_is_no_http_is_logged_nowhere(logged: io.StringIO) -> None:
    async with guarded() as g:
        for garbage in (
            b"GET /v1/sessions/\xff HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\r\n\r\n",
            b"POST / HTTP/1.1\r\nA B\r\n\r\n",
        ):
            assert b" 400 " in (await g.raw(garbage)).split(b"\r\n")[0]
    assert logged.getvalue() == ""


async def test_expect_is_answered_only_to_who_may_ask() -> None:
    async with guarded(await ready(), max_body=1024) as g:
        length = f"Content-Length: {len(QUESTION)}"
        head = request("Content-Type: application/json", "Expect: 100-continue", length)
        reader, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
        writer.write(head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(QUESTION)
        status, body = parse(await reader.read())
        assert (status, body["allowed"]) == (200, True)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
        writer.write(head.replace(b"localhost", b"example.com"))
        assert b" 403 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
        writer.close()


async def test_too_many_at_once_are_refused_at_once() -> None:
    async with guarded(await ready(), max_concurrent=50, max_wait=4.0) as g:
        asked = {**QUESTIONS["authorize"], "min_seq": 3}
        waiting = [asyncio.create_task(g.ask("/v1/authorize", asked)) for _ in range(50)]
        await until(lambda: g.value("sidecar_guard_in_flight") == 50)
        for answer in await asyncio.gather(*(g.ask("/v1/authorize", QUESTIONS["authorize"]) for _ in range(250))):
            refused("authorize", answer, 429, "overloaded")
            assert answer.headers["Retry-After"] == "1"
        assert g.value("sidecar_guard_refusals_total", code="overloaded") == 250
        answer = await g.look("/v1/sessions/s")
        assert (answer.status, answer.body["reasons"][0]["code"]) == (429, "overloaded")
        async with g.client.get(f"{g.server.url}/metrics") as response:
            assert response.status == 200  # scrapers are not crowded out
        g.sessions.fold({"kind": "revocation", "session_id": "s", "seq": 3, "action_id": "deploy"})
        for answer in await asyncio.gather(*waiting):
            refused("authorize", answer, 200, "rule")
        refused("authorize", await g.ask("/v1/authorize", QUESTIONS["authorize"]), 200, "rule")


async def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async with guarded(await ready(), max_wait=0.5) as g:
        body = json.dumps({**QUESTIONS["authorize"], "min_seq": 9}).encode()
        head = request("Content-Type: application/json", f"Content-Length: {len(body)}")
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", g.server.port)
            writer.write(head + body)
            await writer.drain()
            writer.transport.abort()
        await asyncio.sleep(0.1)
        assert g.value("sidecar_guard_in_flight") <= 20
        await until(lambda: g.value("sidecar_guard_in_flight") == 0)
        assert g.value("sidecar_guard_errors_total") == 0


@pytest.mark.parametrize("name", QUESTIONS)
async def test_an_answer_that_comes_too_late_is_a_refusal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = api._ASK[name]

    def slow(engine: Any, question: Any) -> Any:
        time.sleep(0.15)
        return good(engine, question)

    async with guarded(await ready(), timeout=0.1, max_wait=0.05) as g:
        monkeypatch.setitem(api._ASK, name, slow)
        refused(name, await g.ask(f"/v1/{name}", QUESTIONS[name]), 200, "timed_out")


async def test_sessions_that_never_answer_are_a_refusal() -> None:
    class Stuck(FakeSessions):
        async def moved(self) -> None:
            await asyncio.sleep(3600)

    async with guarded(Stuck(), timeout=0.3, max_wait=0.2) as g:
        g.sessions.trouble[None] = Standing(trouble="restoring")
        refused("authorize", await g.ask("/v1/authorize", {**QUESTIONS["authorize"], "min_seq": 1}), 200, "restoring")


async def test_stopping_in_the_middle_of_everything() -> None:
    """Stop the server while questions wait, are half sent, and keep coming: nobody is told yes after that."""
    sessions = await ready()
    stopped = asyncio.Event()
    late: list[Any] = []

    async def keep_asking(g: Guarded) -> None:
        while True:
            after = stopped.is_set()
            try:
                answer = await g.ask("/v1/authorize", QUESTIONS["authorize"])
            except Exception:
                return
            if after:
                late.append(answer)

    async with guarded(sessions, max_wait=3.0) as g:
        waiting = [
            asyncio.create_task(g.ask("/v1/authorize", {**QUESTIONS["authorize"], "min_seq": 9})) for _ in range(9)
        ]
        asking = [asyncio.create_task(keep_asking(g)) for _ in range(4)]
        half = asyncio.create_task(g.raw(request("Content-Type: application/json", "Content-Length: 60") + b"{"))
        await asyncio.sleep(0.2)
        stopped.set()
        g.guard.close()
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await g.server.stop()
        assert time.monotonic() - began < 6.0
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, Exception) or answer.body["allowed"] is False
        assert b'"allowed":true' not in await half
        await asyncio.gather(*asking)
    assert late and not any(answer.body["allowed"] for answer in late)


async def test_a_question_with_much_in_it_gets_no_boundless_answer() -> None:
    """Many open halts, and many nodes that each wait for them: the answer must not be their product."""
    sessions = FakeSessions()
    rows = [{"kind": "action", "session_id": "s", "action_id": "a", "irreversible": True} for _ in range(300)]
    sessions.fold(*({**row, "seq": seq} for seq, row in enumerate(rows, 1)))
    async with guarded(sessions) as g:
        nodes = [f"n{number}" for number in range(10_000)]
        answer = await g.ask("/v1/gc", {"session_id": "s", "node_ids": nodes})
        refused("gc", answer, 200, "open_halt")
        assert len(answer.body["deferred"]) == 10_000
        assert int(answer.headers["Content-Length"]) < 5_000_000
