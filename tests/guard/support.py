"""A guard on a free port, over sessions that the real engine has folded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from sidecar.config import GuardSettings
from sidecar.engine.fold import Engine
from sidecar.engine.live import Standing
from sidecar.guard.access import Access
from sidecar.guard.api import GuardApi
from sidecar.guard.tls import tls_context
from sidecar.observe.connections import ConnectionLimits
from sidecar.observe.health import Health
from sidecar.observe.http import HttpServer
from sidecar.observe.metrics import Metrics
from sidecar.protocol.decode import decode
from sidecar.protocol.outputs import Decision

LOOPBACK = frozenset({"127.0.0.1"})


class FakeSessions:
    """Sessions of one engine; `trouble` by session id, None for all."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = Engine() if engine is None else engine
        self.trouble: dict[str | None, Standing] = {}
        self.asked = 0
        self._waiting: list[asyncio.Future[None]] = []

    def find(self, session_id: str) -> Standing:
        self.asked += 1
        found = self.trouble.get(session_id) or self.trouble.get(None)
        return found if found is not None else Standing(engine=self.engine)

    async def moved(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def fold(self, *rows: dict[str, Any]) -> Any:
        """Fold records, and wake whoever waits for them."""
        outcome = self.engine.fold([(*decode(json.dumps(row).encode()), None) for row in rows], 0.0)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        return outcome


def authorized(session_id: str, action_id: str = "deploy") -> list[dict[str, Any]]:
    """Return the records of a session that may carry an action out."""
    return [
        {"kind": "message", "session_id": session_id, "seq": 1},
        {"kind": "authorization", "session_id": session_id, "seq": 2, "action_id": action_id, "precondition_id": "p"},
    ]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come true, for some seconds at most."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: Any
    headers: dict[str, str]


class MemoryDecisions:
    """A log of decisions in memory, one that takes its time, fails or hangs if it is told to."""

    def __init__(self) -> None:
        self.written: list[Decision] = []
        self.error: BaseException | None = None
        self.during: Callable[[], Any] = lambda: None
        self.pause = 0.0
        self.writing = self.most = 0

    async def write(self, session_id: str, value: bytes) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        try:
            self.during()
            await asyncio.sleep(self.pause)
            if self.error is not None:
                raise self.error
            decision = msgspec.json.decode(value, type=Decision)
            assert decision.session_id == session_id
            self.written.append(decision)
        finally:
            self.writing -= 1


class Guarded:
    """A guard that is being served, and a client for it."""

    def __init__(
        self,
        server: HttpServer,
        guard: GuardApi,
        metrics: Metrics,
        sessions: FakeSessions,
        client: aiohttp.ClientSession,
        decisions: MemoryDecisions,
    ) -> None:
        self.decisions = decisions
        self.server, self.guard, self.metrics, self.sessions, self.client = server, guard, metrics, sessions, client

    async def ask(self, path: str, body: Any, **options: Any) -> Answer:
        """POST a question: a JSON value, or bytes as they are (then with the headers that are given)."""
        given = {"data": body} if isinstance(body, bytes) else {"json": body}
        return await self.request("POST", path, **given, **options)

    async def look(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def request(self, method: str, path: str, **options: Any) -> Answer:
        url = URL(self.server.url + path, encoded=True)
        async with self.client.request(method, url, allow_redirects=False, **options) as response:
            raw = await response.read()
            assert response.content_type == "application/json", raw
            return Answer(response.status, json.loads(raw) if raw else None, dict(response.headers))

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def raw(self, *parts: bytes, pause: float = 0.0, then_end: bool = False) -> bytes:
        """Send bytes, and return all that comes back until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
            if then_end:
                writer.write_eof()
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def guarded(
    sessions: FakeSessions | None = None,
    access: Access | None = None,
    host: str = "127.0.0.1",
    log: MemoryDecisions | None = None,
    limits: ConnectionLimits | None = None,
    **settings: Any,
) -> AsyncIterator[Guarded]:
    """Serve a guard."""
    given = GuardSettings(**settings)
    metrics = Metrics(broker=False)
    server = HttpServer(host, 0, metrics, Health(0.0), tls=tls_context(given), limits=limits)
    guard = GuardApi(given, access or Access(hosts=LOOPBACK), metrics)
    guard.mount(server)
    sessions = sessions or FakeSessions()
    decisions = log or MemoryDecisions()
    guard.serve(sessions, decisions)
    await server.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            yield Guarded(server, guard, metrics, sessions, client, decisions)
    finally:
        guard.close()
        await server.stop()
