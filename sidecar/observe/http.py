"""The HTTP server: metrics and health, and whatever else is to be served on the same address."""

import errno
import time
from collections.abc import Callable, Iterable

import msgspec
from aiohttp import hdrs, web
from aiohttp.abc import AbstractView

from sidecar.observe.health import Health, Verdict
from sidecar.observe.metrics import Metrics

_SHUTDOWN_SECONDS = 2.0


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
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, health: Health, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app = web.Application()
        self._host = host
        self._port = port
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._runner: web.AppRunner | None = None
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

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ServeError: the address is taken, or is not one of this machine's.
        """
        runner = web.AppRunner(self.app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            taken = error.errno == errno.EADDRINUSE
            reason = "something else listens there" if taken else (error.strerror or str(error))
            raise ServeError(
                f"cannot serve on {_join(self._host, self._port)}: {reason}; "
                "choose another address with --http HOST:PORT (http.host, http.port)"
            ) from None
        self._runner = runner

    async def stop(self) -> None:
        """End: finish the requests under way, and listen no more."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @property
    def address(self) -> str:
        """Return HOST:PORT as listened on (before the start: as configured)."""
        if self._runner is not None and self._runner.addresses:
            return _join(self._host, self._runner.addresses[0][1])
        return _join(self._host, self._port)

    async def _index(self, _: web.Request) -> web.Response:
        lines = ["frontier-sidecar", ""]
        for route in self.app.router.routes():
            if route.resource is not None and route.method != hdrs.METH_HEAD:
                lines.append(f"{route.method:<5} {route.resource.canonical}  {_about(route)}".rstrip())
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
