"""What a rebalance does to the state: what stays keeps it as it is, what moves is restored from snapshots."""

from __future__ import annotations

from collections import Counter

from sidecar.tail.tail import Tail
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import (
    PARTITIONS,
    ids,
    judged,
    running,
    send,
    settings_for,
    stream,
    until,
    until_committed,
    until_found,
    values,
)


def engines(tail: Tail) -> dict[int, int]:
    """Return which engine each task has that is placed and speaks."""
    loop = tail.loop
    return {t.number: id(t.engine) for t in loop.tasks if t.placed and not t.silent} if loop else {}


async def test_a_partition_that_stays_keeps_its_state(kafka: KafkaBroker, unique: str) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique), stream(8)
    half = len(lines) // 2
    expected = [finding.finding_id for finding in judged(lines).findings]
    async with running(settings) as (first, _, _):
        await send(settings, lines[:half])
        await until_committed(settings)
        before = engines(first)
        assert len(before) == PARTITIONS
        async with running(settings) as (second, _, _):
            await until(lambda: len(engines(first)) == len(engines(second)) == PARTITIONS // 2)
            # The assignor left the first one what it had, and nobody else had it in between.
            assert all(before[number] == engine for number, engine in engines(first).items())
            moved = set(engines(second))
            assert moved.isdisjoint(engines(first))
        await until(lambda: len(engines(first)) == PARTITIONS)
        await send(settings, lines[half:])
        await until_found(settings, expected)
        await until_committed(settings)
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(expected)


async def test_a_restart_reads_snapshots_and_not_the_whole_log(kafka: KafkaBroker, unique: str) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique), stream(8)
    half = len(lines) // 2
    expected = [finding.finding_id for finding in judged(lines).findings]
    async with running(settings):
        await send(settings, lines[:half])
        await until_committed(settings)
    async with running(settings) as (tail, _, _):
        await until(lambda: len(engines(tail)) == PARTITIONS)
        loop = tail.loop
        assert loop is not None
        assert sum(len(task.engine) for task in loop.tasks) > 0
        assert sum(task.restored for task in loop.tasks) == 0  # a clean stop leaves nothing to fold again
        await send(settings, lines[half:])
        await until_found(settings, expected)
        await until_committed(settings)
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(expected)
