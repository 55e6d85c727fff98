"""Snapshots on real brokers: what was committed comes back, whatever transactions and compaction leave between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest
from aiokafka import AIOKafkaProducer

from sidecar.engine.state import Frozen
from sidecar.tail.messages import Message
from sidecar.tail.snapshots import Progress, Restored, SnapshotError, SnapshotWriter, origin_of, read_snapshots
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics, produce, read_topic

COMPACT = {"cleanup.policy": "compact"}
ORIGIN = origin_of("group", ("agent.events",), 2, 1)


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("kafka", "embedded")])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


@pytest.fixture
async def topic(bootstrap: str, unique: str) -> str:
    await create_topics(bootstrap, f"{unique}snapshots", partitions=2, configs=COMPACT)
    return f"{unique}snapshots"


def frozen(name: str, version: int, size: int = 100) -> Frozen:
    state = f"{name} {version} ".encode().ljust(size, b".")
    return Frozen(session_id=name, status="verified", open_halts=version % 3, waiting=False, seen=0.0, state=state)


async def restore(bootstrap: str, topic: str, stall: float = 5.0) -> Restored:
    async with asyncio.timeout(30):
        return await read_snapshots({"bootstrap_servers": bootstrap}, topic, 1, ORIGIN, stall=stall)


def states(restored: Restored) -> dict[str, Frozen]:
    return {kept.frozen.session_id: kept.frozen for kept in restored.sessions}


async def write(bootstrap: str, messages: Iterable[Message]) -> None:
    """Write without transactions."""
    for topic, records in _by_topic(messages).items():
        await produce(bootstrap, topic, records, partition=1)


def _by_topic(messages: Iterable[Message]) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    topics: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for message in messages:
        assert message.partition == 1
        topics.setdefault(message.topic, []).append((message.key, message.value))
    return topics


@contextlib.asynccontextmanager
async def transactions(bootstrap: str, name: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, retry_backoff_ms=5)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer: AIOKafkaProducer, messages: Iterable[Message]) -> None:
    futures = [await producer.send(m.topic, m.value, m.key, m.partition) for m in messages]
    await asyncio.gather(*futures)


async def test_an_empty_partition_is_read_at_once(bootstrap: str, topic: str) -> None:
    restored = await restore(bootstrap, topic)
    assert (restored.sessions, restored.marker, restored.next_number) == ([], None, 1)


async def test_rounds_come_back_without_transactions(bootstrap: str, topic: str) -> None:
    made = SnapshotWriter(topic, 1, ORIGIN)
    first = [frozen(f"s{i}", 1) for i in range(200)]
    await write(bootstrap, made.round(first, [], {"agent.events": 10}, 200))
    second = [frozen(f"s{i}", 2) for i in range(50)]
    await write(bootstrap, made.round(second, ["s199"], {"agent.events": 20}, 199))
    await write(bootstrap, made.decided([frozen("s3", 3)], {"agent.events": 21}))
    # Another task's partition is none of ours.
    await produce(bootstrap, topic, [(b"s:other", b"task")], partition=0)
    progress: list[Progress] = []
    restored = await read_snapshots(
        {"bootstrap_servers": bootstrap}, topic, 1, ORIGIN, stall=5, on_progress=progress.append
    )
    expected = {f.session_id: f for f in (*first[:-1], *second, frozen("s3", 3))}
    assert states(restored) == expected
    assert restored.marker is not None and restored.marker.positions == {"agent.events": 20}
    assert {kept.positions["agent.events"] for kept in restored.sessions} == {10, 20, 21}
    assert restored.next_number == made.number and restored.records == made.records
    assert progress[-1] == Progress(restored.records, restored.size, 254, 254)
    # The next owner goes on.
    made = SnapshotWriter(topic, 1, ORIGIN, restored.next_number)
    await write(bootstrap, made.round([frozen("s0", 4)], [], {"agent.events": 30}, 199))
    assert states(await restore(bootstrap, topic)) == {**expected, "s0": frozen("s0", 4)}


async def test_damage_is_named_by_its_place_and_the_next_owner_begins_anew(bootstrap: str, topic: str) -> None:
    made = SnapshotWriter(topic, 1, ORIGIN)
    await write(bootstrap, made.round([frozen("a", 1), frozen("b", 1)], [], {"agent.events": 1}, 2))
    older = (await read_topic(bootstrap, topic))[0]
    await write(bootstrap, made.round([frozen("a", 2)], [], {"agent.events": 2}, 2))
    await produce(bootstrap, topic, [(older.key, older.value), (b"s:c", b"garbage")], partition=1)
    with pytest.raises(SnapshotError, match=rf"{topic}/1@5 cannot be used: .*older.*1 more") as caught:
        await restore(bootstrap, topic)
    again = SnapshotWriter(topic, 1, ORIGIN, caught.value.next_number)
    await write(bootstrap, again.round([frozen("a", 3)], [], {"agent.events": 3}, 1, anew=True))
    assert states(await restore(bootstrap, topic)) == {"a": frozen("a", 3)}


@pytest.fixture
async def kafka_topic(kafka: KafkaBroker, unique: str) -> str:
    await create_topics(kafka.bootstrap, f"{unique}snapshots", partitions=2, configs=COMPACT)
    return f"{unique}snapshots"


async def test_what_was_aborted_does_not_count(kafka: KafkaBroker, kafka_topic: str, unique: str) -> None:
    made = SnapshotWriter(kafka_topic, 1, ORIGIN)
    async with transactions(kafka.bootstrap, f"{unique}1") as producer:
        await producer.begin_transaction()
        await send(producer, made.round([frozen("lost", 0)], [], {"agent.events": 1}, 1))
        await producer.abort_transaction()
        # Nothing but an aborted transaction: the last offset is its marker's.
        assert states(await restore(kafka.bootstrap, kafka_topic)) == {}
        expected: dict[str, Frozen] = {}
        for version in range(1, 7):
            names = [f"s{i}" for i in range(0, 100, version)]
            now = {**expected, **{name: frozen(name, version) for name in names}}
            dropped = [f"s{50 + version}"] if version > 1 and f"s{50 + version}" in now else []
            for name in dropped:
                now.pop(name)
            await producer.begin_transaction()
            changed = [now[name] for name in names if name in now]
            await send(producer, made.round(changed, dropped, {"agent.events": version}, len(now)))
            if version % 3 == 0:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                expected = now
            restored = await restore(kafka.bootstrap, kafka_topic)
            assert states(restored) == expected
    assert restored.marker is not None and restored.marker.positions == {"agent.events": 5}


async def test_an_owner_that_died_in_its_round_is_fenced_and_its_round_gone(
    kafka: KafkaBroker, kafka_topic: str, unique: str
) -> None:
    made = SnapshotWriter(kafka_topic, 1, ORIGIN)
    async with transactions(kafka.bootstrap, f"{unique}1") as zombie:
        async with zombie.transaction():
            await send(zombie, made.round([frozen("a", 1)], [], {"agent.events": 1}, 1))
        await zombie.begin_transaction()
        await send(zombie, made.round([frozen("a", 2), frozen("b", 2)], [], {"agent.events": 2}, 2))
        async with transactions(kafka.bootstrap, f"{unique}1"):
            restored = await restore(kafka.bootstrap, kafka_topic)
        assert states(restored) == {"a": frozen("a", 1)}
        with contextlib.suppress(Exception):
            await zombie.abort_transaction()


async def test_a_foreign_open_transaction_is_waited_for_and_not_for_ever(
    kafka: KafkaBroker, kafka_topic: str, unique: str
) -> None:
    made = SnapshotWriter(kafka_topic, 1, ORIGIN)
    async with transactions(kafka.bootstrap, f"{unique}foreign") as foreign:
        await foreign.begin_transaction()
        await foreign.send_and_wait(kafka_topic, b"x", b"s:x", 1)
        await write(kafka.bootstrap, made.round([frozen("a", 1)], [], {"agent.events": 1}, 1))
        with pytest.raises(
            TimeoutError, match=r"stuck at offset 0 of 3 for 0\.5 s: an open transaction hides the rest"
        ):
            await restore(kafka.bootstrap, kafka_topic, stall=0.5)
        reading = asyncio.create_task(restore(kafka.bootstrap, kafka_topic, stall=20))
        await asyncio.sleep(0.5)
        assert not reading.done()
        await foreign.abort_transaction()
        assert states(await reading) == {"a": frozen("a", 1)}


async def test_what_compaction_leaves_is_enough(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}snapshots"
    soon = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "50"}
    await create_topics(kafka.bootstrap, topic, partitions=2, configs={**COMPACT, **soon})
    made = SnapshotWriter(topic, 1, ORIGIN)
    expected: dict[str, Frozen] = {}
    async with transactions(kafka.bootstrap, f"{unique}1") as producer:
        for version in range(1, 9):
            changed = {f"s{i}": frozen(f"s{i}", version) for i in range(0, 60, 1 + version % 4)}
            now = {**expected, **changed}
            gone = [f"s{version}"] if f"s{version}" in now else []
            for name in gone:
                now.pop(name)
                changed.pop(name, None)
            await producer.begin_transaction()
            await send(producer, made.round(changed.values(), gone, {"agent.events": version}, len(now)))
            if version % 4 == 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                expected = now
            await asyncio.sleep(0.06)  # into another segment
    restored = await restore(kafka.bootstrap, topic)
    assert states(restored) == expected
    async with asyncio.timeout(25):
        # In the end each session has one record, and what was dropped none.
        while restored.records > len(expected) + 20 or restored.marker.positions != {"agent.events": 9}:
            await asyncio.sleep(0.2)
            # Only segments that are full are compacted, and a segment is closed by the next record.
            async with transactions(kafka.bootstrap, f"{unique}1") as producer, producer.transaction():
                await send(producer, made.round([], [], {"agent.events": 9}, len(expected)))
            restored = await restore(kafka.bootstrap, topic)
            assert states(restored) == expected
    assert restored.marker is not None and restored.marker.positions == {"agent.events": 9}
    assert made.records > 3 * restored.records


async def test_many_sessions_are_read_in_batches_and_large_ones_whole(bootstrap: str, topic: str) -> None:
    made = SnapshotWriter(topic, 1, ORIGIN)
    sizes: Sequence[int] = [3000] * 3000 + [900_000] * 3 + [5_000_000]
    sessions = [frozen(f"s{i}", 1, size) for i, size in enumerate(sizes)]
    await write(bootstrap, made.round(sessions, [], {"agent.events": 1}, len(sessions)))
    progress: list[Progress] = []
    restored = await read_snapshots({"bootstrap_servers": bootstrap}, topic, 1, ORIGIN, on_progress=progress.append)
    assert states(restored) == {f.session_id: f for f in sessions}
    assert restored.size == made.size and len(progress) > 1
    assert [step.records for step in progress] == sorted({step.records for step in progress})
