"""The HTTP server: metrics and health, and whatever else is to be served on the same address."""

import asyncio
import errno
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import hdrs, web
from aiohttp.abc import AbstractView
from aiohttp.http import HttpProcessingError
from aiohttp.log import server_logger

from sidecar.observe.connections import ConnectionLimits, Listener
from sidecar.observe.health import Health, Verdict
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

_SHUTDOWN_SECONDS = 2.0
_STOP_SECONDS = 3 * _SHUTDOWN_SECONDS
"""How long ending may take in all; aiohttp waits twice for what is under way."""

_IDLE_SECONDS = 75.0
"""How long a connection may be kept between two requests."""

_LINGER_SECONDS = 1.0
"""How long the rest of a body is read that nobody wants, so that its sender gets to read the answer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Log(logging.LoggerAdapter[logging.Logger]):
    """Say only at `debug` that somebody sends what is no HTTP: any scanner does, and it quotes what was sent."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        level = logging.DEBUG if isinstance(exc_info, HttpProcessingError) else logging.ERROR
        self.log(level, msg, *args, exc_info=exc_info, **kwargs)


class Exposed(Protocol):
    """Have metrics to show."""

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return them as text, as an `Accept` header asks for it, and its content type."""
        ...


class ServeError(Exception):
    """Say why the address cannot be served on, and what to change."""


class HttpServer:
    """Serve `/metrics`, `/healthz`, `/readyz` and an index; `add_routes` adds more before the start.

    Args:
        host: address to listen on.
        port: port to listen on; 0: any that is free, see `address`.
        metrics: what `/metrics` shows.
        health: what `/healthz` and `/readyz` show.
        clock: the clock that `health` is told the time by.
        tls: the TLS to serve with; None: none.
        limits: how many connections there may be.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Exposed,
        health: Health,
        *,
        clock: Callable[[], float] = time.monotonic,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.app = web.Application()
        self._limits = limits or ConnectionLimits()
        self._tls = tls
        self._mounted: list[str] = []
        self._host = host
        self._port = port
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self.add_routes(
            [
                web.get("/", self._index),
                web.get("/metrics", self._show_metrics),
                web.get("/healthz", self._show_live),
                web.get("/readyz", self._show_ready),
            ]
        )

    def add_routes(self, routes: Iterable[web.AbstractRouteDef]) -> None:
        """Serve more on the same address; to be called before `start`."""
        self.app.add_routes(routes)

    def mount(self, prefix: str, handler: Handler, about: Iterable[tuple[str, str, str]]) -> None:
        """Leave everything below a path to one handler, to be called before `start`.

        The handler gets requests as they come: no method is refused, no address matched, no body read or asked for.

        Args:
            prefix: the path, with a slash at its end.
            handler: what answers.
            about: for the index: method, path and one line on each thing that is there.
        """

        async def as_it_comes(_: web.Request) -> None:
            pass

        self.app.router.add_route("*", prefix + r"{rest:[\s\S]*}", handler, expect_handler=as_it_comes)
        self._mounted += [f"{method:<5} {path}  {text}" for method, path, text in about]

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ServeError: the address is taken, or is not one of this machine's.
        """
        runner = web.AppRunner(
            self.app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,  # a small body could become a large one
            logger=_Log(server_logger),
        )
        await runner.setup()
        assert runner.server is not None
        listener = Listener(runner.server, self._limits, self._tls)
        try:
            await listener.start(self._host, self._port)
        except OSError as error:
            await runner.cleanup()
            taken = error.errno == errno.EADDRINUSE
            reason = "something else listens there" if taken else (error.strerror or str(error))
            raise ServeError(
                f"cannot serve on {_join(self._host, self._port)}: {reason}; "
                "choose another address with --http HOST:PORT (http.host, http.port)"
            ) from None
        self._runner, self._listener = runner, listener

    async def stop(self) -> None:
        """End: listen no more, finish the requests under way, and after some seconds end also what is not finished."""
        if self._runner is None or self._listener is None:
            return
        runner, self._runner = self._runner, None
        listener, self._listener = self._listener, None
        listener.stop()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await runner.cleanup()
        except TimeoutError:
            log.warning("requests were not finished in time, and are ended", seconds=_STOP_SECONDS)
        finally:
            listener.abort()

    @property
    def address(self) -> str:
        """Return HOST:PORT as listened on (before the start: as configured)."""
        if self._listener is not None:
            return _join(self._host, self._listener.addresses[0][1])
        return _join(self._host, self._port)

    @property
    def url(self) -> str:
        """Return the same as a URL."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    @property
    def port(self) -> int:
        """Return the port that is listened on (before the start: as configured)."""
        return int(self.address.rpartition(":")[2])

    async def _index(self, _: web.Request) -> web.Response:
        lines = ["frontier-sidecar", ""]
        for route in self.app.router.routes():
            if route.resource is not None and route.method not in (hdrs.METH_HEAD, hdrs.METH_ANY):
                lines.append(f"{route.method:<5} {route.resource.canonical}  {_about(route)}".rstrip())
        lines += self._mounted
        return web.Response(text="\n".join(lines) + "\n")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        """Metrics, in the Prometheus text format or OpenMetrics."""
        body, content_type = self._metrics.exposition(",".join(request.headers.getall(hdrs.ACCEPT, [])))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _show_live(self, _: web.Request) -> web.Response:
        """Alive: records are taken in, or there are none to take."""
        return _answer(self._health.live(self._clock()))

    async def _show_ready(self, _: web.Request) -> web.Response:
        """Ready: restored and caught up."""
        return _answer(self._health.ready(self._clock()))


def _answer(verdict: Verdict) -> web.Response:
    body = {"status": "ok" if verdict.ok else "failing", "reasons": verdict.reasons, "tasks": verdict.tasks}
    return web.Response(
        body=msgspec.json.encode(body) + b"\n",
        status=200 if verdict.ok else 503,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )


def _about(route: web.AbstractRoute) -> str:
    handler = route.handler
    if isinstance(handler, type) and issubclass(handler, AbstractView):
        return ""
    return (handler.__doc__ or "").partition("\n")[0]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
