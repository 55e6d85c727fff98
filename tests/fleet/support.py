"""What the tests of the fleet's HTTP share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from sidecar.config import Settings
from sidecar.fleet.web import routes
from tests.fleet import states
from tests.fleet.memory import MemoryFleet


@cache
def state(name: str) -> MemoryFleet:
    """Return the fleet in one of its states; it is shared, so leave it as it is."""
    fleet: MemoryFleet = getattr(states, name)()
    return fleet


@asynccontextmanager
async def client(fleet: MemoryFleet, settings: Settings | None = None, **options: Any) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    """Serve a fleet, and give a client of it."""
    app = web.Application()
    app.add_routes(routes(fleet, settings or Settings(), **options))
    async with TestClient(TestServer(app, host="127.0.0.1")) as given:
        yield given
