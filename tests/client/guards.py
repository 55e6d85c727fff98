"""Guards for tests: one that speaks the API's types, one that sends whatever bytes it is told to."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from sidecar.protocol.api import (
    AuthorizeAnswer,
    AuthorizeRequest,
    CommitAnswer,
    Edge,
    GcAnswer,
    GcRequest,
    Reason,
    ResumeAnswer,
    ResumeRequest,
)

Answering = Callable[[web.Request, Any], Any]
"""Return an answer, (status, answer), or a web.Response, for a request and its body."""


def permit(asked: dict[str, Any], **changed: Any) -> AuthorizeAnswer:
    """Permit what was asked, as the guard would."""
    edge = Edge(action_id=asked["action_id"], precondition_id="approval", granted=1)
    answer = AuthorizeAnswer(
        allowed=True, session_id=asked["session_id"], position=asked.get("min_seq") or 0, edges=[edge]
    )
    for name, value in changed.items():
        setattr(answer, name, value)
    return answer


def yes(path: str, asked: dict[str, Any]) -> Any:
    """Say yes to whatever was asked, as the guard would."""
    session, position = asked["session_id"], asked.get("min_seq") or 0
    if path == "/v1/authorize":
        return permit(asked)
    if path == "/v1/resume":
        return ResumeAnswer(
            decision="resume",
            session_id=session,
            position=position,
            checkpoint_id=asked["checkpoint_id"],
            status="verified",
        )
    if path == "/v1/commit":
        return CommitAnswer(decision="commit", session_id=session, position=position, node_id=asked["node_id"])
    return GcAnswer(decision="reclaim", session_id=session, position=position, reclaimable=asked["node_ids"])


def refuse(code: Any, detail: str = "because", **named: Any) -> AuthorizeAnswer:
    """Refuse an action."""
    return AuthorizeAnswer(reasons=[Reason(code=code, detail=detail, **named)], session_id="s", position=1)


class FakeGuard:
    """Answer as told, and remember what was asked.

    Args:
        answering: what to answer; by default yes.
    """

    def __init__(self, answering: Answering | None = None) -> None:
        self.answering: Answering = answering or (lambda request, asked: yes(request.path, asked))
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator["FakeGuard"]:
        """Serve on loopback."""
        server = web.Server(self._handle)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, ssl_context=context)
        await site.start()
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked = msgspec.json.decode(body) if body else {}
        kinds: dict[str, Any] = {
            "/v1/authorize": AuthorizeRequest,
            "/v1/resume": ResumeRequest,
            "/v1/gc": GcRequest,
        }
        if request.path in kinds:
            msgspec.json.decode(body, type=kinds[request.path])
        self.asked.append(asked)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.raw_path)
        answer = self.answering(request, asked)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, web.StreamResponse):
            return answer
        status, answer = answer if isinstance(answer, tuple) else (200, answer)
        return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")


@contextlib.asynccontextmanager
async def wire(respond: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve a connection with whatever `respond` writes once a request has come; yield the address."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-le")
                    ),
                    0,
                )
                await reader.readexactly(length)
                await respond(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return the bytes of an HTTP response."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers, "", "")
    return "\r\n".join(lines).encode() + body
