"""What the tests of the tail share: settings, a tail that runs, streams with faults, and what must come out."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.errors import UnknownTopicOrPartitionError

from sidecar.config import Settings
from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import Hole
from sidecar.tail.publish import Outgoing, publish, route
from sidecar.tail.tail import Tail
from tests.kafka.support import read_topic

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))
WAITING = ("baseline-after-joining", "gap-and-conflict", "joined-midstream")
"""Cases in which a position never comes."""
PARTITIONS = 4
TOPICS = (
    *("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "alerts", "snapshots"),
    *("misplaced", "decisions"),
)
WITHOUT_TRANSACTIONS: set[str] = set()
"""Addresses of brokers that have no transactions."""


def settings_for(
    bootstrap: str, unique: str, *, max_wait: float = 60.0, kafka: dict[str, Any] | None = None, **tail: Any
) -> Settings:
    """Return settings whose topics and group nobody else uses.

    Args:
        bootstrap: the broker's address.
        unique: what every name begins with.
        max_wait: how long a missing position is waited for; by default for so long that no clock has a say.
        kafka: further settings of the section `kafka`.
        tail: settings of the section `tail`.
    """
    topics = {role: f"{unique}{role}" for role in TOPICS}
    return Settings.load(
        None,
        kafka={"bootstrap_servers": bootstrap, "request_timeout": 10, "retry_backoff": 0.02, **(kafka or {})},
        topics={**topics, "partitions": PARTITIONS},
        tail={
            "group_id": f"{unique}group",
            "commit_interval": 0.1,
            "fetch_max_wait": 0.05,
            "session_timeout": 3,
            "heartbeat_interval": 0.3,
            "guarantee": "at_least_once" if bootstrap in WITHOUT_TRANSACTIONS else "exactly_once",
            **tail,
        },
        engine={"max_wait": max_wait},
    )


def new_tail(
    settings: Settings, on_outcome: Callable[[Outcome], None] | None = None, within: float = 20.0
) -> tuple[Tail, Metrics, Health]:
    """Return a tail with metrics and health of its own."""
    metrics, health = Metrics(), Health(time.monotonic())
    return Tail(settings, metrics, health, on_outcome, startup_timeout=within), metrics, health


@contextlib.asynccontextmanager
async def running(
    settings: Settings, on_outcome: Callable[[Outcome], None] | None = None, *, ends_well: bool = True
) -> AsyncIterator[tuple[Tail, Metrics, Health]]:
    """Run a tail; at the end stop it and see that it ended well. If it fails, the test fails with it.

    Args:
        settings: the settings tree.
        on_outcome: see `Tail`.
        ends_well: false where it is stopped while its broker is away, so that it has to say what it did not finish.
    """
    tail, metrics, health = new_tail(settings, on_outcome)
    await tail.start()
    work = asyncio.create_task(tail.run())
    test = asyncio.current_task()
    assert test is not None

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) and (ends_well or "Not finished" not in str(error)):
            test.cancel("tail")

    work.add_done_callback(ended)
    try:
        yield tail, metrics, health
    except asyncio.CancelledError:
        if work.done():
            test.uncancel()
            work.result()
        raise
    finally:
        async with asyncio.timeout(30):
            await tail.stop()
            await asyncio.wait((work,))
    if ends_well:
        work.result()
    else:
        assert "Not finished: delivering and committing the last outputs" in str(work.exception())


@contextlib.asynccontextmanager
async def process(settings: Settings, tmp_path: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a tail in a process of its own, which the test may kill; it is killed at the end at the latest."""
    config = tmp_path / f"{name}.json"
    config.write_text(settings.model_dump_json())
    with (tmp_path / f"{name}.log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.kafka.tail_process", str(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
        try:
            yield child
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


def case_lines() -> list[bytes]:
    """Return the lines of all cases; each has a session of its own."""
    return [line for case in CASES for line in case.read_bytes().splitlines() if line.strip()]


def stream(copies: int) -> list[bytes]:
    """Return the cases `copies` times, with session ids of their own, the sessions interleaved.

    Those in which a position never comes are left out: what is found there waits for a clock.
    """
    sessions: list[list[bytes]] = []
    for copy in range(copies):
        for case in CASES:
            if case.stem in WAITING:
                continue
            lines = []
            for line in case.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    fields = json.loads(line)
                    fields["session_id"] = f"{fields['session_id']}-{copy}"
                    line = json.dumps(fields).encode()
                if line.strip():
                    lines.append(line)
            sessions.append(lines)
    longest = max(map(len, sessions))
    return [lines[i] for i in range(longest) for lines in sessions if i < len(lines)]


def outgoing(lines: Iterable[bytes]) -> Iterator[Outgoing]:
    """Yield lines with their topic and key."""
    for line in lines:
        role, key, _ = route(line)
        yield role, key, line


async def send(settings: Settings, lines: Iterable[bytes], rate: float | None = None) -> None:
    """Publish lines, each to the topic it belongs to."""
    await publish(outgoing(lines), settings, rate=rate, within=20)


def judged(lines: Iterable[bytes], engine: Engine | None = None, *, ended: bool = True) -> Outcome:
    """Return what the engine alone finds, by default once the input has ended."""
    engine = Engine() if engine is None else engine
    arrivals: list[Arrival] = []
    for line in lines:
        try:
            arrivals.append((*decode(line), None))
        except Unreadable as bad:
            if bad.session_id is not None and bad.seq is not None:
                arrivals.append((Hole(session_id=bad.session_id, seq=bad.seq), 0, None))
    first = engine.fold(arrivals, 0.0)
    if not ended:
        return first
    rest = engine.finish()
    return Outcome(first.findings + rest.findings, first.halts + rest.halts, {})


async def values(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """Return a topic's values as JSON; none if there is no such topic yet."""
    try:
        records = await read_topic(settings.kafka.bootstrap_servers[0], topic)
    except UnknownTopicOrPartitionError:
        return []
    return [msgspec.json.decode(record.value) for record in records]


async def until(what: Callable[[], Any], within: float = 20.0, every: float = 0.05) -> Any:
    """Wait until a function, or what it awaits, is true; return what it returned."""
    deadline = time.monotonic() + within
    while True:
        result = what()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within:g} s")
        await asyncio.sleep(every)


async def until_found(settings: Settings, expected: Iterable[str], within: float = 30.0) -> list[dict[str, Any]]:
    """Wait until all these findings are in the topic; return everything that is in it."""
    wanted = set(expected)
    deadline = time.monotonic() + within
    while True:
        found = await values(settings, settings.topics.findings)
        missing = wanted - {finding["finding_id"] for finding in found}
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(missing)} of {len(wanted)} findings are missing after {within:g} s")
        await asyncio.sleep(0.1)


def ids(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ids of findings that were read from a topic."""
    return [finding["finding_id"] for finding in found]


async def until_committed(settings: Settings, within: float = 20.0) -> None:
    """Wait until the group has committed everything that is in the input topics now."""
    from tests.kafka.support import committed

    bootstrap, group = settings.kafka.bootstrap_servers[0], settings.tail.group_id
    for topic in settings.topics.inputs:
        ends: dict[int, int] = {}
        for record in await read_topic(bootstrap, topic):
            ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)

        async def there(topic: str = topic, ends: dict[int, int] = ends) -> bool:
            done = await committed(bootstrap, group, topic)
            return all((done.get(partition) or 0) >= end for partition, end in ends.items())

        await until(there, within)
