"""Agents ask before they act, through two minutes of all that must not lead to a permission; each one is judged."""

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from sidecar.config import Settings
from sidecar.tail.homes import Homes
from tests.kafka.broker import KafkaBroker
from tests.kafka.storm_judging import (
    Late,
    errors_of,
    judged,
    late_permissions,
    percentile,
    permitted,
    read_decisions,
    read_logs,
    unrecorded,
)
from tests.kafka.storm_ledger import Asked, Ledger
from tests.kafka.storm_replicas import Outage, Replicas
from tests.kafka.storm_sessions import Cast, Writer, by_crc32
from tests.kafka.support import create_topics
from tests.kafka.tail_support import PARTITIONS, settings_for, until

SECONDS = float(os.environ.get("FRONTIER_STORM_SECONDS", "40"))
SEED = int(os.environ.get("FRONTIER_STORM_SEED", "0")) or random.randrange(1, 10**6)

HONEST = 8
KILL_EVERY = (6.0, 10.0)
MEMORY = 400 * 2**20
LATENCY = 1.0
KNOWN_WITHIN = 2.0
"""Seconds after which what has been committed is known to whoever permits; one, and one for shared cores."""
GROWN_WITHIN = 3.0
"""Seconds after which it is known that topics have grown; the sidecar looks every second."""
AFTER_GROWTH = 8.0


class Growth:
    """Let the input topics grow while agents ask, and see that every question is refused from then on."""

    def __init__(self, cast: Cast, ledger: Ledger, replicas: Replicas, settings: Settings) -> None:
        self._cast = cast
        self._ledger = ledger
        self._replicas = replicas
        self._settings = settings
        self.at = float("inf")

    async def run(self, stack: AsyncExitStack) -> None:
        """Grant, grow, revoke where the new partitions put it, ask; kill a replica and ask it again."""
        after = Homes("murmur2", 2 * PARTITIONS)
        names = [name for name in (f"moving-{n}" for n in range(100)) if after.of(name) >= PARTITIONS][:10]
        moving = [self._cast.writer(name) for name in names]
        for writer in moving:
            await writer.grant()
            assert await self._ledger.act(writer.session_id, min_seq=writer.seq, expected=True)
        await _grow(self._settings)
        self.at = time.time()
        # A producer that is started now knows of the new partitions.
        producer = await _producer(stack, self._settings)
        for writer in moving:
            # Its home does not get this one, so it never stands where its agent says.
            await Writer(producer, self._settings, writer.session_id).put("revocation", seq=2, action_id="deploy")
            assert not await self._ledger.act(writer.session_id, min_seq=2, expected=False)
        asking = asyncio.create_task(self._ask_on([writer.session_id for writer in moving]))
        victim = self._replicas.members[0]
        await asyncio.sleep(AFTER_GROWTH / 2)
        self._replicas.outages.append(Outage(time.time()))
        await victim.kill()
        await victim.start()
        await asking

        async def refuses() -> bool:
            answer = await victim.guard.authorize(names[0], "deploy")
            return not answer.allowed and _names_growth([reason.detail for reason in answer.reasons])

        await until(refuses, within=30)

    async def _ask_on(self, sessions: list[str]) -> None:
        end = time.monotonic() + AFTER_GROWTH
        while time.monotonic() < end:
            for session_id in sessions:
                await self._ledger.act(session_id)
            await asyncio.sleep(0.05)


def _names_growth(details: list[str]) -> bool:
    return any(f"had {PARTITIONS} and has {2 * PARTITIONS}" in detail for detail in details)


async def _grow(settings: Settings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers[0])
    await admin.start()
    try:
        topics = (*settings.topics.followed, settings.topics.snapshots)
        await admin.create_partitions({topic: NewPartitions(2 * PARTITIONS) for topic in topics})
    finally:
        await admin.close()


async def _producer(stack: AsyncExitStack, settings: Settings, **options: object) -> AIOKafkaProducer:
    bootstrap = settings.kafka.bootstrap_servers[0]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, **options)
    await producer.start()
    stack.push_async_callback(producer.stop)
    return producer


async def test_a_storm_gives_no_wrong_permission(
    kafka: KafkaBroker, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(kafka.bootstrap, unique, max_wait=5.0)
    await create_topics(kafka.bootstrap, *settings.topics.inputs, partitions=PARTITIONS)
    async with AsyncExitStack() as stack:
        replicas = Replicas(settings, tmp_path, SEED)
        stack.push_async_callback(replicas.close)
        await replicas.start()
        ledger = Ledger([member.guard for member in replicas.members], SEED)
        producer = await _producer(stack, settings)
        other = await _producer(stack, settings, partitioner=by_crc32)
        cast = Cast(producer, other, settings, ledger, SEED)
        growth = Growth(cast, ledger, replicas, settings)
        watching = asyncio.create_task(replicas.watch())
        try:
            peaks = await _play(cast, replicas)
            await growth.run(stack)
        finally:
            cast.over.set()
            watching.cancel()
        await asyncio.wait((watching,))
        if not watching.cancelled():
            watching.result()
        outages = [Outage(each.begun, each.ended) for each in replicas.outages]
    logs, decisions, errors = (
        await read_logs(settings),
        await read_decisions(settings),
        await errors_of(settings, "honest-"),
    )
    calm, rough = late_permissions(decisions, ledger.closed, outages)
    settled = [each for each in ledger.asked if not _disturbed(each, outages, growth.at)]
    honest = [each for each in settled if each.honest]
    seconds = [each.seconds for each in honest]
    wanted = [each for each in honest if each.expected]
    yes = sum(each.allowed for each in wanted)
    begun = time.monotonic()
    wrong = judged([*decisions, *permitted(ledger.asked)], logs)
    with capsys.disabled():
        print(f"\npermission storm of {SECONDS:.0f} s (seed {SEED}): {logs.records:,} records,", end=" ")
        print(f"{cast.sessions:,} sessions, {sum(map(len, logs.elsewhere.values()))} records in a wrong partition,")
        print(f"  {replicas.kills} kills, {sum(o.ended - o.begun for o in outages[:-1]):.0f} s not whole;", end=" ")
        print(f"{len(ledger.asked):,} questions, {sum(a.allowed for a in ledger.asked):,} permissions,", end=" ")
        print(f"{len(decisions):,} decisions, {len(wrong)} wrong (judged in {time.monotonic() - begun:.0f} s)")
        print(f"  honest, all replicas up: {yes:,} of {len(wanted):,} permitted;", end=" ")
        print(f"answers p50 {percentile(seconds, 0.5) * 1000:.0f} ms, p99 {percentile(seconds, 0.99) * 1000:.0f} ms,"
              f" slowest {max(seconds) * 1000:.0f} ms")  # fmt: skip
        print(f"  last permission after a session was closed: {_longest(calm):.3f} s;", end=" ")
        unread = max((each.since for each in rough), default=0.0)
        print(f"while nobody read the record: {unread:.3f} s, after that {_longest(rough):.3f} s;", end=" ")
        print(f"after the growth: {max((d.decided_at.timestamp() - growth.at for d in decisions), default=0):.3f} s")
        print(f"  memory: before the bombs {peaks[0] / 2**20:.0f} MB, at last {peaks[1] / 2**20:.0f} MB")
        print(f"  refusals of wanted permissions: {Counter(c for a in wanted if not a.allowed for c in a.codes)}")
    assert [(each.why, msgspec.to_builtins(each.decision)) for each in wrong[:5]] == []
    assert [each for each in ledger.asked if each.allowed and each.expected is False] == []
    assert [each for each in decisions if each.session_id in ledger.never] == []
    assert unrecorded(permitted(ledger.asked), decisions) == []
    assert [each for each in calm if each.seconds > KNOWN_WITHIN] == []
    assert [each for each in rough if each.seconds > KNOWN_WITHIN] == []
    assert [each for each in decisions if each.decided_at.timestamp() > growth.at + GROWN_WITHIN] == []
    assert any(_names_growth(each.details) for each in ledger.asked)
    assert errors == Counter()
    assert peaks[1] < MEMORY
    assert percentile(seconds, 0.99) < LATENCY
    # A storm without a yes would prove nothing, and without a session that was closed after one hardly more.
    assert yes > 5 * SECONDS and yes > 0.9 * len(wanted)
    kinds = {"mixed", "lost", "conflict", "unreadable", "tenants", "unplaced", "fuse"}
    assert {each.session_id.partition("-")[0] for each in decisions} >= {*kinds, "honest", "moving"}
    # The checks do look: the same permissions a few records later, or from sessions closed earlier, are not all right.
    later = [msgspec.structs.replace(each, position=each.position + 3) for each in decisions[:300]]
    assert judged(later, logs)
    earlier = [msgspec.structs.replace(each, begun=each.begun - 60.0) for each in ledger.closed]
    assert late_permissions(decisions, earlier, [])[0]
    assert unrecorded(permitted(ledger.asked), decisions[:-100])
    assert {each.decision.question for each in honest if each.allowed} == {"authorize", "resume", "commit", "gc"}


async def _play(cast: Cast, replicas: Replicas) -> tuple[int, int]:
    """Let the storm pass; return the most memory before the first bomb, and at the end."""
    calm = asyncio.Event()
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(HONEST):
            group.create_task(cast.honest(number))
        for play in (cast.mixed, cast.conflicts, cast.unreadable, cast.tenants, cast.unplaced):
            group.create_task(play())
        storming = group.create_task(replicas.storm(calm, KILL_EVERY))
        await asyncio.sleep(SECONDS / 8)
        before = replicas.peak
        bomb = 0
        while time.monotonic() < begun + SECONDS:
            bomb += 1
            group.create_task(cast.lost_journal(bomb))
            group.create_task(cast.bomb(bomb))
            await asyncio.sleep(min(SECONDS / 2.5, max(0.0, begun + SECONDS - time.monotonic())))
        calm.set()
        await storming
        # In quiet, so that some are asked with every replica there in every run.
        await asyncio.sleep(3.0)
        cast.over.set()
    return before, replicas.peak


def _disturbed(asked: Asked, outages: list[Outage], grown: float) -> bool:
    """Tell whether a question was asked while a replica was away or restoring, or after the topics had grown."""
    ended = asked.begun + asked.seconds
    return ended > grown or any(outage.overlaps(asked.begun, ended) for outage in outages)


def _longest(late: list[Late]) -> float:
    return max((each.seconds for each in late), default=0.0)
