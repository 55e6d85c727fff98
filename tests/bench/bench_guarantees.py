"""What the guarantees cost: transactions, snapshots, restoring.

    python -m tests.bench.bench_guarantees [--records N] [--rounds N] [--sessions N] [--broker kafka|HOST:PORT]

Ratios are of one run on one machine. What is measured by virtual time needs no broker.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.engine.state import Frozen, decode_session, encode_session
from sidecar.observe import logs
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.outputs import Source
from sidecar.simulate import Fleet, Message, Shape, Transport, mixed_records
from sidecar.tail.clients import close_producer, open_transactional, reach
from sidecar.tail.envelope import MARKER_KEY
from sidecar.tail.keeping import Keeper
from sidecar.tail.publish import publish
from sidecar.tail.snapshots import SnapshotWriter, origin_of, read_snapshots
from sidecar.tail.tail import Tail
from sidecar.tail.task import Task
from tests.bench.bench_tail import bare, brokers, end_to_end, settings_for
from tests.kafka.support import committed

SNAPSHOT_BOUND = 0.2
"""Most bytes written to the snapshot topic for each byte read, at the default settings on the simulated fleet."""

_PATIENCE = 900.0
_VIRTUAL_HOUR = 3600.0
_AT_ONCE = 500


# --- transactions ---------------------------------------------------------------------------------


async def throughput(bootstrap: str, records: int, rounds: int = 3) -> dict[str, float]:
    """Read the same topics bare, at least once and exactly once, in turns; return the best records a second of each."""
    name = f"bench{secrets.token_hex(4)}"
    settings = {guarantee: settings_for(bootstrap, name, guarantee) for guarantee in ("at_least_once", "exactly_once")}
    await publish(mixed_records(7, records), settings["exactly_once"])
    best: dict[str, float] = {}

    def note(what: str, seconds: float) -> None:
        best[what] = max(best.get(what, 0.0), records / seconds)

    async with asyncio.timeout(_PATIENCE):
        for _ in range(rounds):
            note("bare", await bare(settings["exactly_once"], records))
            for guarantee, tail in settings.items():
                seconds, _ = await end_to_end(tail, records)
                note(guarantee, seconds)
    return best


# --- snapshots ------------------------------------------------------------------------------------


def snapshot_share(fleet: Fleet, seconds: float, settings: Settings | None = None) -> dict[str, float]:
    """Return the bytes written to the snapshot topic for each byte read.

    The fleet's records are folded by a task and kept by a keeper as the tail does, at the settings' commit and
    snapshot intervals; only the clock is the fleet's own, so that hours pass in seconds. Keys and values count, on
    both sides.

    Args:
        fleet: whose records are read, at its own pace.
        seconds: how much of the fleet's time to read.
        settings: by default those that everybody has.
    """
    settings = Settings() if settings is None else settings
    topics = {"events": settings.topics.events, "compactions": settings.topics.compactions}
    task = Task(0, settings.topics.inputs, settings.engine.limits())
    task.place(dict.fromkeys(topics.values(), 0), {})
    keeper = Keeper(0, settings, 1, 0.0)
    read = records = rounds = 0
    by_decision = 0
    commit_at = settings.tail.commit_interval
    batch: list[tuple[float, Message]] = []

    def commit(now: float) -> None:
        nonlocal rounds, by_decision
        _fold(task, batch, topics)
        batch.clear()
        task.engine.expire(now)
        size = 0
        message = None
        for chunk in keeper.records(task.engine, task.positions, now=now, clock=now):
            for message in chunk:
                size += len(message.key or b"") + len(message.value or b"")
        if message is not None and message.key == MARKER_KEY:
            rounds += 1
        else:
            by_decision += size

    for at, message in fleet.timeline():
        if at > seconds:
            break
        while at >= commit_at:
            commit(commit_at)
            commit_at += settings.tail.commit_interval
        batch.append((at, message))
        read += len(message.key) + len(message.value)
        records += 1
    written = keeper.written
    return {
        "records": records,
        "sessions": len(task.engine),
        "rounds": rounds,
        "read": read,
        "written": written[1],
        "by_decision": by_decision / read,
        "share": written[1] / read,
        "state": written[1] / max(1, written[0]),
    }


def _fold(task: Task, batch: list[tuple[float, Message]], topics: Mapping[str, str]) -> None:
    from sidecar.protocol.decode import Unreadable, decode

    arrivals = []
    for _, message in batch:
        topic = topics[message.role]
        offset = task.positions[topic]
        task.positions[topic] = offset + 1
        try:
            arrivals.append((*decode(message.value), Source(topic, 0, offset)))
        except Unreadable:
            continue
    task.engine.fold(arrivals, batch[-1][0] if batch else 0.0)


# --- restoring ------------------------------------------------------------------------------------


async def restore(bootstrap: str, sessions: int, *, shape: Shape | None = None) -> dict[str, float]:
    """Return the seconds from a tail's assignment until so many sessions are read and adopted, and it is ready.

    The sessions are those of a simulated fleet, multiplied under other ids, with states as large as theirs.
    """
    settings = settings_for(bootstrap, f"bench{secrets.token_hex(4)}", "exactly_once")
    names = settings.topics.model_copy(update={"snapshots": f"{settings.tail.group_id}.snapshots"})
    settings = settings.model_copy(update={"topics": names})
    # Once without any, so that there are topics, offsets and markers.
    await _until_ready(settings, 0)
    size = 0
    for number in range(names.partitions):
        share = sessions // names.partitions
        size += await _keep(settings, number, _states(share, f"p{number}", shape))
    figures = await _until_ready(settings, sessions // names.partitions * names.partitions)
    return {"sessions": sessions, "bytes": size, **figures}


def _states(count: int, prefix: str, shape: Shape | None) -> Iterator[Frozen]:
    from sidecar.protocol.decode import Unreadable, decode

    engine = Engine()
    fleet = Fleet(11, agents=50, sessions=min(count, 500), shape=shape)
    for message in fleet.messages():
        try:
            engine.fold([(*decode(message.value), None)], 0.0)
        except Unreadable:
            continue
    engine.finish()
    known = [engine.freeze(state.session_id) for state in engine.states()]
    for n in range(count):
        frozen = known[n % len(known)]
        session = decode_session(frozen.state)
        session.session_id = f"{prefix}-{n}-{frozen.session_id}"
        yield msgspec.structs.replace(frozen, session_id=session.session_id, state=encode_session(session))


async def _keep(settings: Settings, number: int, states: Iterator[Frozen]) -> int:
    """Write a round of sessions as a task does; return the bytes."""
    names, group = settings.topics, settings.tail.group_id
    options = await reach(settings)
    bootstrap = settings.kafka.bootstrap_servers[0]
    producer = await open_transactional(options, f"{group}-{number}", 60)
    try:
        origin = origin_of(group, names.inputs, names.partitions, number)
        restored = await read_snapshots(options, names.snapshots, number, origin)
        positions = {topic: (await committed(bootstrap, group, topic))[number] or 0 for topic in names.inputs}
        writer = SnapshotWriter(names.snapshots, number, origin, restored.next_number)
        kept = list(states)
        messages = writer.round(kept, (), positions, len(kept))
        while chunk := list(islice(messages, _AT_ONCE)):
            await producer.begin_transaction()
            for message in chunk:
                await producer.send(message.topic, message.value, message.key, message.partition)
            await producer.commit_transaction()
        return writer.size
    finally:
        await close_producer(producer)


async def _until_ready(settings: Settings, sessions: int) -> dict[str, float]:
    health = Health(time.monotonic())
    tail = Tail(settings, Metrics(), health)
    await tail.start()
    begun = time.perf_counter()
    work = asyncio.create_task(tail.run())
    try:
        while tail.loop is None or not tail.loop.tasks:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)
        assigned = time.perf_counter()
        async with asyncio.timeout(_PATIENCE):
            while not work.done() and not health.ready(time.monotonic()).ok:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.005)
        ready = time.perf_counter()
        assert tail.loop is not None
        found = sum(len(task.engine) for task in tail.loop.tasks)
        if found != sessions:
            raise AssertionError(f"{found} sessions were restored, not {sessions}")
        return {"join": assigned - begun, "restore": ready - assigned}
    finally:
        await tail.stop()
        await work


# --- the command line -----------------------------------------------------------------------------


def report_snapshots(seconds: float = _VIRTUAL_HOUR) -> list[str]:
    """Print the share of snapshots for several fleets; return what breaks its bound."""
    broken = []
    fleets: Mapping[str, dict[str, Any]] = {
        "sessions of minutes (the fleet as it comes, 50 agents)": {},
        "sessions of half an hour": {"shape": Shape(turns=(90, 150), cycles=(10, 18))},
        "one record in 10 s": {"shape": Shape(seconds=10.0), "transport": Transport(lag=0.6)},
    }
    print(f"snapshots, default settings, {seconds:,.0f} s of the fleet's time", flush=True)
    for name, options in fleets.items():
        found = snapshot_share(Fleet(3, agents=50, sessions=1_000_000, **options), seconds)
        print(
            f"  {name}: {found['records']:,.0f} records, {found['sessions']:,.0f} sessions,"
            f" {found['rounds']:.0f} rounds, {found['state']:,.0f} bytes each; written / read {found['share']:.3f}"
            f" ({found['by_decision']:.3f} for decisions; bound {SNAPSHOT_BOUND:g})",
            flush=True,
        )
        if not options and found["share"] > SNAPSHOT_BOUND:
            broken.append(
                f"snapshots write {found['share']:.3f} bytes for each byte read, more than {SNAPSHOT_BOUND:g}"
            )
    return broken


def report(bootstrap: str, records: int, rounds: int, sessions: int) -> None:
    """Print what a broker is needed for."""
    print(f"throughput on Apache Kafka, {records:,} mixed records", flush=True)
    best = asyncio.run(throughput(bootstrap, records, rounds))
    for what, speed in best.items():
        print(f"  {what}: {speed:,.0f}/s ({speed / best['bare']:.2f} of bare)")
    print(f"  exactly_once / at_least_once: {best['exactly_once'] / best['at_least_once']:.2f}", flush=True)
    found = asyncio.run(restore(bootstrap, sessions))
    print(
        f"restore of {sessions:,} sessions, {found['bytes'] / 2**20:,.0f} MB of snapshots:"
        f" {found['restore']:.1f} s from the assignment until ready (joining the group: {found['join']:.1f} s)",
        flush=True,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_guarantees", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--broker", default="kafka", help="kafka, or HOST:PORT (default: %(default)s)")
    given = parser.parse_args()
    logs.setup("critical", "json")
    logging.disable(logging.CRITICAL)  # what is found is logged, line by line, and that is not measured
    broken = report_snapshots()
    with brokers(given.broker) as found:
        for bootstrap in found.values():
            report(bootstrap, given.records, given.rounds, given.sessions)
    for problem in broken:
        print(f"BOUND BROKEN: {problem}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
