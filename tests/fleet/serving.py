"""Serve a fleet's pages from a thread of their own, for a browser in this one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from sidecar.config import Settings
from sidecar.fleet.web import routes
from tests.fleet.memory import MemoryFleet


class Site:
    """A server whose fleet can be changed while it serves."""

    def __init__(self) -> None:
        self.fleet: MemoryFleet = MemoryFleet()
        self.port = 0
        self.requests: list[str] = []
        self.loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __getattr__(self, name: str) -> Any:
        # The routes ask the site, and the site whichever fleet it has now.
        if name in ("summary", "sessions", "session", "groups", "alerts", "halts", "changed"):
            return getattr(self.fleet, name)
        raise AttributeError(name)


@contextmanager
def serving(settings: Settings | None = None, **options: Any) -> Iterator[Site]:
    """Serve until the end of the block; `options` go to `routes`."""
    site = Site()
    started = threading.Event()
    stop: asyncio.Event

    async def serve() -> None:
        nonlocal stop
        stop = asyncio.Event()

        @web.middleware
        async def note(request: web.Request, handler: Any) -> Any:
            site.requests.append(f"{request.method} {request.path_qs}")
            return await handler(request)

        app = web.Application(middlewares=[note])
        app.add_routes(routes(site, settings or Settings(), shared_for=0.0, **options))  # type: ignore[arg-type]
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        site.port = runner.addresses[0][1]
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: site.loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield site
    finally:
        site.loop.call_soon_threadsafe(lambda: stop.set())
        thread.join(10)
        site.loop.close()
