"""`sidecar fleet`: serve metrics, health, queries and the board, while a worker of the fleet runs."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.config import Settings, SettingsError
from sidecar.config.fleet import PORT
from sidecar.fleet import peers, web
from sidecar.fleet.access import Gate
from sidecar.fleet.board import Board
from sidecar.fleet.errors import FleetError
from sidecar.fleet.shard import ROLES, Shelf
from sidecar.fleet.worker import FleetWorker
from sidecar.observe.connections import ConnectionLimits
from sidecar.observe.fleet import FleetMetrics
from sidecar.observe.health import Health
from sidecar.observe.http import HttpServer
from sidecar.observe.logs import get_logger

__all__ = ["FleetError", "address", "serve"]

log = get_logger("sidecar")

Prepare = Callable[[Settings], Awaitable[tuple[Mapping[str, Any], int]]]
_WILDCARDS = ("0.0.0.0", "::")


def address(settings: Settings) -> tuple[str, int]:
    """Return where the fleet is served: on a port of its own, unless the settings name one."""
    given = "http" in settings.model_fields_set and "port" in settings.http.model_fields_set
    return settings.http.host, settings.http.port if given else PORT


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    prepare: Prepare,
    *,
    tls: ssl.SSLContext | None = None,
    edges: web.Edges | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve, and run a worker, until told to stop.

    Args:
        settings: the settings tree.
        stop: ends it cleanly.
        prepare: reaches the brokers and sees that the topics are there; returns the arguments of aiokafka clients,
            and how many partitions the topics have.
        tls: the TLS to serve with; None: none.
        edges: asks the guard for what the fleet is not told; None: the board does without.
        started: is told the URL that is served on.

    Raises:
        FleetError: the worker has failed, and has to be started again.
        ServeError: the address cannot be served on.
        SettingsError: strangers could ask; it says what to set.
    """
    logging.getLogger("mode.timers").setLevel(logging.ERROR)  # that a commit takes longer than its interval is no news
    host, port = address(settings)
    given, tuned = settings.health, settings.fleet
    metrics = FleetMetrics(getattr(settings.topics, role) for role in ROLES)
    health = Health(
        time.monotonic(), stall_after=given.stall_after, join_after=given.join_after, ready_lag=given.ready_lag
    )
    others = peers.Peers(tuned.ask_timeout, tuned.token_file, _peer_tls(settings), tuned.worker_hosts or ())
    board = Board(others, metrics)
    gate = Gate.of(settings)
    limits = ConnectionLimits(settings.http.max_connections, settings.http.max_connections_per_peer)
    server = HttpServer(host, port, metrics, health, tls=tls, limits=limits)
    server.add_routes(web.routes(board, settings, gate=gate, acknowledge=board.acknowledge, edges=edges))
    server.add_routes(peers.routes(board.answer, gate))
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        stack.push_async_callback(others.close)
        log.info("serving metrics, health and the fleet", address=server.url)
        if started is not None:
            started(server.url)
        options, partitions = await _unless(stop, prepare(settings))
        if stop.is_set():
            return
        url = advertised(settings, server.url)
        worker = FleetWorker(settings, options, partitions, metrics, health, url, shelf=_shelves(settings))
        board.attach(worker)
        await worker.run(stop)


def advertised(settings: Settings, served: str) -> str:
    """Return the URL under which the other workers reach this one.

    Raises:
        FleetError: it cannot be known.
    """
    if settings.fleet.advertise is not None:
        return settings.fleet.advertise
    if settings.http.host in _WILDCARDS:
        raise FleetError(
            f"http.host {settings.http.host} is no address that other workers could be told: set fleet.advertise to"
            " the URL under which they reach this worker"
        )
    return served


def _peer_tls(settings: Settings) -> ssl.SSLContext | None:
    """Make the TLS that workers ask each other with: each shows the certificate that it serves with.

    Raises:
        SettingsError: a file cannot be used.
    """
    guard = settings.guard
    if guard.tls_certfile is None:
        return None
    try:
        context = ssl.create_default_context()
        if guard.tls_client_ca is not None:
            context.load_verify_locations(guard.tls_client_ca.expanduser())
        keyfile = guard.tls_keyfile and guard.tls_keyfile.expanduser()
        context.load_cert_chain(guard.tls_certfile.expanduser(), keyfile, "")  # else it would ask on the terminal
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"guard.tls_certfile, guard.tls_keyfile, guard.tls_client_ca: they cannot be used to ask other workers"
            f" ({error})"
        ) from None
    return context


async def _unless(stop: asyncio.Event, work: Awaitable[tuple[Mapping[str, Any], int]]) -> tuple[Mapping[str, Any], int]:
    """Do something, and give it up when told to stop."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return {}, 0
    finally:
        for unfinished in (task, stopping):
            unfinished.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


def _shelves(settings: Settings) -> Callable[[int], Shelf] | None:
    if settings.fleet.store == "memory":
        return None
    try:
        from sidecar.fleet.disk import DiskShelf
    except ImportError as error:
        raise FleetError(
            "fleet.store is rocksdb, and rocksdict is not installed: install frontier-sidecar[rocksdb], or set"
            " fleet.store to memory"
        ) from error
    folder: Path = settings.fleet.data_dir.expanduser()
    return lambda partition: DiskShelf(folder / f"{settings.fleet.group_id}-{partition}")
