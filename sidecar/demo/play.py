"""The demo from curtain to curtain."""

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace
from rich.console import Console

from sidecar.config import HttpSettings, KafkaSettings, Settings, TailSettings, TopicSettings
from sidecar.demo.board import Board
from sidecar.demo.direct import Direct
from sidecar.demo.kafka import OnKafka
from sidecar.demo.score import Score, quantile
from sidecar.demo.screen import Screen
from sidecar.demo.stage import Audience, Stage
from sidecar.embedded import EmbeddedBroker, EmbeddedBrokerError, available
from sidecar.observe.health import Health
from sidecar.observe.http import HttpServer, ServeError
from sidecar.observe.logs import setup
from sidecar.observe.metrics import Metrics
from sidecar.protocol.outputs import Finding
from sidecar.simulate import FAULTS, FaultRates, Fleet, Shape, Transport
from sidecar.tail.errors import TailError
from sidecar.tail.topics import create_missing

MAX_WAIT = 1.0
"""Seconds until a missing position is given up, so that the demo need not be long."""

_QUIET = 1.5
_PATIENCE = 15.0
_SHAPE = Shape(turns=(8, 16), cycles=(2, 3), leaves_per_section=2)
_TRANSPORT = Transport(lag=3.0)


async def demo(
    *,
    seed: int = 7,
    agents: int = 24,
    sessions: int = 168,
    seconds: float = 11.0,
    faulty: float = 0.5,
    http: str | None = None,
    bootstrap_servers: str | None = None,
    settings: Settings | None = None,
    console: Console | None = None,
    keep: bool = False,
) -> int:
    """Run a fleet with known faults, judge it, and say whether the judge found just these.

    Args:
        seed: of the fleet.
        agents: how many sessions run at the same time.
        sessions: how many in all.
        seconds: how long the fleet runs.
        faulty: the share of sessions that a fault is planted in, every kind alike.
        http: HOST:PORT to serve metrics and health on; None: the settings' address, or a free port if it is taken.
        bootstrap_servers: a broker to run on, with topics of the demo's own; None: the embedded one.
        settings: how to reach that broker; None: as configured.
        console: where to show it.
        keep: whether to go on serving metrics until interrupted.

    Returns:
        0 if everything planted was flagged and nothing else, else 1.
    """
    screen = Screen(console or Console())
    base = settings or Settings.load()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_hushed(base))
        embedded, reason = None, None
        if bootstrap_servers is None:
            embedded, reason = await _embedded_broker()
        if embedded is not None:
            stack.push_async_callback(asyncio.to_thread, embedded.stop)
        own = _settings(base, embedded, bootstrap_servers, http)
        metrics = Metrics(topics=own.topics.inputs, broker=reason is None)
        health = Health(time.monotonic(), ready_lag=own.health.ready_lag)
        stage: Stage
        if reason is None:
            stage = OnKafka(own, metrics, health, embedded=embedded is not None)
        else:
            stage = Direct(own, metrics, health, reason)
        stack.push_async_callback(stage.close)
        stack.callback(screen.end_progress)
        try:
            server = await _serve(own, metrics, health, fixed=http is not None)
            stack.push_async_callback(server.stop)
            screen.say(
                *stage.about(),
                f"metrics: http://{server.address}/metrics (curl -s {server.address}/metrics | grep sidecar_frontier)",
            )
            board = await _board(own, stage, screen)
            if board is not None:
                stack.push_async_callback(board.close)
            good = await _play(stage, partial(_fleet, seed, agents, sessions, seconds, faulty), screen)
            if board is not None and isinstance(stage, OnKafka):
                good = await _compare(board, stage, screen) and good
        except (TailError, ServeError, TimeoutError) as error:
            screen.end_progress()
            screen.say(f"error: {str(error) or 'the tail was not given its partitions in time'}")
            return 1
        if keep:
            also = f" and {board.url}/board" if board is not None else ""
            screen.say(f"still serving http://{server.address}/metrics{also}; end with Ctrl-C")
            await _interrupted()
        return 0 if good else 1


async def _board(settings: Settings, stage: Stage, screen: Screen) -> Board | None:
    """Start the fleet's board beside a tail that publishes: to be looked at, and counted with at the end."""
    if not isinstance(stage, OnKafka):
        return None
    await create_missing(settings)
    board = Board(settings)
    screen.progress("starting the fleet's board")
    if not await board.open():
        await board.close()
        screen.say("board: none, because `sidecar fleet` does not start here")
        return None
    screen.end_progress()
    screen.say(f"board: {board.url}/board (sidecar fleet, beside the tail)")
    return board


async def _compare(board: Board, stage: OnKafka, screen: Screen) -> bool:
    """Say what the board counts, and whether that is what the tail counts."""
    deadline = time.monotonic() + _PATIENCE
    counts, own = await board.counts(), stage.statuses()
    while counts != own and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        counts, own = await board.counts(), stage.statuses()
    listed = ", ".join(f"{count} {status}" for status, count in sorted((counts or {}).items()))
    if counts == own:
        screen.say(f"board:        {sum(own.values())} sessions: {listed}; as the tail says")
        return True
    screen.say(f"board:        {listed or 'no answer'}, which is NOT what the tail says: {own}")
    return False


async def _interrupted() -> None:
    """Wait for SIGINT or SIGTERM."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    try:
        await interrupted.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _hushed(settings: Settings) -> Iterator[None]:
    """Log what goes wrong with the demo itself, not the findings that it shows anyway."""
    setup("warning", settings.log.format, library_level="critical")
    report = logging.getLogger("sidecar.tail.report")
    before = report.level
    report.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        report.setLevel(before)


async def _embedded_broker() -> tuple[EmbeddedBroker | None, str | None]:
    """Start the embedded broker; where it cannot run, return the reason instead."""
    if reason := available():
        return None, reason
    broker = EmbeddedBroker()
    try:
        await asyncio.to_thread(broker.start)
    except EmbeddedBrokerError as error:
        return None, str(error)
    return broker, None


def _settings(base: Settings, embedded: EmbeddedBroker | None, servers: str | None, http: str | None) -> Settings:
    """Return settings with topics and a group of the demo's own, so that it meddles with nothing that is there."""
    tag = f"demo-{secrets.token_hex(3)}"
    names = (
        *("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "alerts", "snapshots"),
        *("misplaced", "decisions"),
    )
    changes: dict[str, object] = {
        "tail": TailSettings(
            group_id=tag, fetch_max_wait=0.05, guarantee="exactly_once" if embedded is None else "at_least_once"
        ),
        "engine": base.engine.model_copy(update={"max_wait": MAX_WAIT}),
        "fleet": base.fleet.model_copy(update={"group_id": f"{tag}-fleet"}),
    }
    if embedded is not None:
        changes["kafka"] = KafkaSettings(bootstrap_servers=(embedded.bootstrap,))
        changes["topics"] = TopicSettings()
    else:
        changes["topics"] = base.topics.model_copy(update={"create": True, **{n: f"{tag}.{n}" for n in names}})
        if servers is not None:
            given = KafkaSettings.model_validate({"bootstrap_servers": servers})
            changes["kafka"] = base.kafka.model_copy(update={"bootstrap_servers": given.bootstrap_servers})
    if http is not None:
        changes["http"] = HttpSettings.model_validate(http)
    return base.model_copy(update=changes)


async def _serve(settings: Settings, metrics: Metrics, health: Health, *, fixed: bool) -> HttpServer:
    """Serve on the address; where nobody asked for it by name and it is taken, on any free port."""
    server = HttpServer(settings.http.host, settings.http.port, metrics, health)
    try:
        await server.start()
    except ServeError:
        if fixed:
            raise
        server = HttpServer(settings.http.host, 0, metrics, health)
        await server.start()
    return server


def _fleet(seed: int, agents: int, sessions: int, seconds: float, faulty: float) -> Fleet:
    """Return a fleet whose virtual clock starts now and runs as fast as it takes to be done in time."""
    rates = FaultRates.uniform(faulty, FAULTS)
    length = max((at for at, _ in Fleet(seed, agents, sessions, rates, shape=_SHAPE).timeline()), default=1.0)
    return Fleet(
        seed,
        agents,
        sessions,
        rates,
        transport=_TRANSPORT,
        shape=replace(_SHAPE, seconds=_SHAPE.seconds * seconds / length),
        start=datetime.now(UTC),
    )


async def _play(stage: Stage, make: Callable[[], Fleet], screen: Screen) -> bool:
    """Open the stage, run the fleet on it, wait for what must come, and show the outcome."""
    score = Score()
    heard = time.monotonic()

    def finding(finding: Finding) -> None:
        nonlocal heard
        heard = time.monotonic()
        if score.finding(finding, heard):
            screen.finding(finding)

    screen.progress("waiting for the tail to join its group")
    await stage.open(Audience(finding, score.halt, score.letter))
    fleet = make()
    begun = time.monotonic()
    for at, message in fleet.timeline():
        ahead = begun + at - time.monotonic()
        if ahead > 0.005:
            screen.progress(f"{fleet.records} records sent, {score.findings} findings")
            await asyncio.sleep(ahead)
            _check(stage)
        await stage.publish(message)
    seconds = time.monotonic() - begun
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        _check(stage)
        screen.progress(f"{fleet.records} records sent, {score.findings} findings; waiting for the last ones")
        await asyncio.sleep(0.1)
        # What nobody expects would come late, too: an answer is complete only when it has been quiet for a while.
        quiet = time.monotonic() - max(heard, begun + seconds) > _QUIET
        if quiet and score.complete(fleet.planted):
            break
    screen.end_progress()
    return _close(stage, fleet, score, screen, seconds)


def _check(stage: Stage) -> None:
    if error := stage.failure():
        raise error


def _close(stage: Stage, fleet: Fleet, score: Score, screen: Screen, seconds: float) -> bool:
    rows = score.rows(fleet.planted, fleet.sessions)
    screen.table(rows)
    took = score.latencies(stage.sent)
    letters = rows[-1]
    repeated = f" ({score.repeated} of them came again)" if score.repeated else ""
    screen.say(
        f"records:      {fleet.records} in {seconds:.1f} s ({fleet.records / max(seconds, 1e-9):.0f}/s),"
        f" {fleet.sessions} sessions, {fleet.agents} at a time, seed {fleet.seed}",
        f"latency:      p50 {quantile(took, 0.5) * 1000:.0f} ms, p99 {quantile(took, 0.99) * 1000:.0f} ms from sending"
        f" a record to having its finding back (lost records aside, which are waited for: {MAX_WAIT:g} s)",
        f"findings:     {score.findings}{repeated} on {len(score.flagged)} pairs of rule and subject",
        f"halts:        {score.halts_opened} opened, {score.halts_cleared} cleared",
        f"dead letters: {score.letters} of {letters.planted}",
        stage.about()[-1],
    )
    good = not any(row.missing or row.unexpected for row in rows)
    screen.say(
        "Everything planted was flagged, and nothing else."
        if good
        else "What was flagged is NOT what was planted: see the columns missing and unexpected."
    )
    return good
