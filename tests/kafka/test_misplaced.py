"""A session's records in two partitions: by two partitioners, by an attacker, by topics that grew."""

import asyncio
import json
import time
from collections.abc import Iterable
from zlib import crc32

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.partitioner import murmur2

from sidecar.config import Settings
from sidecar.engine import ask
from sidecar.protocol.api import AuthorizeRequest
from sidecar.tail.errors import PartitionsChanged, TailError
from sidecar.tail.homes import Homes, partition_of
from sidecar.tail.reset import reset
from sidecar.tail.tail import Tail
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import produce
from tests.kafka.tail_support import PARTITIONS, new_tail, running, send, settings_for, until, until_committed, values
from tests.kafka.test_tail_start import topic_counts

S = "migrate"


def record(seq: int | None, kind: str = "message", session: str = S, **more: object) -> bytes:
    fields = {"kind": kind, "session_id": session, "seq": seq, **more}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def grant(seq: int, session: str = S) -> bytes:
    return record(seq, "authorization", session, action_id="deploy", precondition_id="ticket")


def revoke(seq: int | None, session: str = S) -> bytes:
    return record(seq, "revocation", session, action_id="deploy", precondition_id="ticket")


async def put(settings: Settings, values: Iterable[bytes | None], partition: int, key: str = S) -> None:
    bootstrap = settings.kafka.bootstrap_servers[0]
    await produce(bootstrap, settings.topics.events, [(key.encode(), value) for value in values], partition=partition)


def allowed(tail: Tail, session: str = S, min_seq: int | None = None) -> bool:
    """Answer as the guard does: the engine that `find` gives, asked; nobody, and it is refused."""
    engine = tail.sessions.find(session).engine
    if engine is None or (ask.applied(engine, session) or 0) < (min_seq or 0):
        return False
    return ask.authorize(engine, AuthorizeRequest(session_id=session, action_id="deploy")).allowed


async def never_allowed(tail: Tail, seconds: float, session: str = S, min_seqs: Iterable[int | None] = (None,)) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for min_seq in min_seqs:
            assert not allowed(tail, session, min_seq)
        await asyncio.sleep(0.01)


def home(session: str = S) -> int:
    return int(murmur2(session.encode()) & 0x7FFFFFFF) % PARTITIONS


def test_the_home_partition_is_where_the_clients_put_a_key() -> None:
    # Of Java's `Utils.murmur2`, from Kafka's own tests; librdkafka's CRC32 is that of zlib.
    assert [murmur2(key) & 0xFFFFFFFF for key in (b"21", b"foobar")] == [
        -973932308 & 0xFFFFFFFF,
        -790332482 & 0xFFFFFFFF,
    ]
    for session in ("s", "ü" * 40, "migrate", "x" * 1000):
        key = session.encode()
        assert Homes("murmur2", 7).of(session) == (murmur2(key) & 0x7FFFFFFF) % 7 == partition_of(key, 7)
        assert Homes("crc32", 7).of(session) == crc32(key) % 7 == partition_of(key, 7, "crc32")


async def test_a_revocation_in_another_partition_refuses_the_session(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    other = (home() + 1) % PARTITIONS
    async with running(settings) as (tail, metrics, _):
        await put(settings, [grant(1)], home())
        await until(lambda: allowed(tail) and allowed(tail, min_seq=1))
        await put(settings, [revoke(2)], other)
        await until(lambda: not allowed(tail))
        await never_allowed(tail, 1.0, min_seqs=(None, 1, 2))
        # It does not help to go on with the session as if nothing had been.
        await put(settings, [grant(3)], other)
        await until_committed(settings)
        await never_allowed(tail, 0.5, min_seqs=(None, 1, 2, 3))
        text = metrics.exposition()[0].decode()
    (first, _) = await values(settings, settings.topics.dlq)
    assert (first["session_id"], first["seq"], first["source"]["partition"]) == (S, 2, other)
    for part in (repr(S), f"partition {home()} of", f"partition {other}", "murmur2_random", "kafka.partitioner"):
        assert part in first["reason"]
    assert f'sidecar_misplaced_records_total{{topic="{settings.topics.events}"}} 2.0' in text
    # What was decided is kept: a restart does not make it good.
    async with running(settings) as (tail, _, health):
        await until(lambda: health.ready(time.monotonic()).ok and tail.sessions.find(S).engine)
        await never_allowed(tail, 0.5, min_seqs=(None, 1))


async def test_after_a_revocation_records_elsewhere_do_not_permit(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    async with running(settings) as (tail, _, _):
        await put(settings, [grant(1)], home())
        await until(lambda: allowed(tail))
        await put(settings, [revoke(2)], home())
        await until(lambda: not allowed(tail))
        for other in range(PARTITIONS):
            if other != home():
                await put(settings, [grant(1), grant(2), grant(3)], other)
        await until_committed(settings)
        await never_allowed(tail, 1.0, min_seqs=(None, 1, 2, 3))
        assert sum(S in task.engine for task in (tail.loop.tasks if tail.loop else ())) == 1


async def test_two_replicas_tell_each_other(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    sessions = [f"s{n}" for n in range(12)]
    async with running(settings) as (one, _, _), running(settings) as (two, _, _):

        async def shared() -> bool:
            return all(tail.loop is not None and len(tail.loop.tasks) == PARTITIONS // 2 for tail in (one, two))

        await until(shared)
        for session in sessions:
            await put(settings, [grant(1, session)], home(session), session)

        def permitted(session: str) -> bool:
            return allowed(one, session) or allowed(two, session)

        await until(lambda: all(map(permitted, sessions)))
        for session in sessions:
            await put(settings, [revoke(2, session)], crc32(session.encode()) % PARTITIONS, session)
        await until(lambda: not any(map(permitted, sessions)))
        await asyncio.sleep(0.5)
        assert not any(map(permitted, sessions))


async def test_producers_may_all_use_crc32(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique, kafka={"partitioner": "crc32"})
    session = next(s for s in map(str, range(100)) if crc32(s.encode()) % PARTITIONS != home(s))
    async with running(settings) as (tail, _, _):
        await send(settings, [grant(1, session)])
        await until(lambda: allowed(tail, session))
        await put(settings, [revoke(2, session)], crc32(session.encode()) % PARTITIONS, session)
        await until(lambda: not allowed(tail, session))
        assert await values(settings, settings.topics.dlq) == []
    # The other setting would look for the sessions elsewhere: refused by name.
    changed = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"partitioner": "murmur2"})})
    await refused(changed, "kafka.partitioner crc32, and the setting is murmur2")


async def refused(settings: Settings, reason: str, session: str = S) -> None:
    """See that a tail stays, not ready, and refuses; and that it fails when it is stopped."""
    tail, metrics, health = new_tail(settings)
    work = asyncio.create_task(tail.run())
    await until(lambda: reason in " ".join(health.ready(time.monotonic()).reasons) or work.done())
    assert not work.done(), work.result()
    assert health.live(time.monotonic()).ok
    standing = tail.sessions.find(session)
    assert standing.trouble == "unavailable" and reason in standing.detail and "--reset" in standing.detail
    assert "sidecar_partitions_changed 1.0" in metrics.exposition()[0].decode()
    tail.request_stop()
    with pytest.raises(PartitionsChanged):
        await asyncio.wait_for(work, 20)


async def grow(settings: Settings, to: int) -> None:
    topics = (*settings.topics.followed, settings.topics.snapshots)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers[0])
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(to) for topic in topics})
    finally:
        await admin.close()


@pytest.mark.parametrize("running_meanwhile", [True, False])
async def test_topics_that_grow_are_refused_by_name(kafka: KafkaBroker, unique: str, running_meanwhile: bool) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    # A session that moves, so that its revocation comes to somebody who does not know the grant.
    moving = next(s for s in map(str, range(100)) if Homes("murmur2", 2 * PARTITIONS).of(s) >= PARTITIONS)
    tail, _, health = new_tail(settings)
    work = asyncio.create_task(tail.run())
    await until(lambda: health.ready(time.monotonic()).ok)
    await put(settings, [grant(1, moving)], home(moving), moving)
    await until(lambda: allowed(tail, moving))
    if running_meanwhile:
        await grow(settings, 2 * PARTITIONS)
        await until(lambda: not allowed(tail, moving), within=10)
        assert f"{settings.topics.events} had {PARTITIONS} and has {2 * PARTITIONS}" in (
            tail.sessions.find(moving).detail
        )
        await put(settings, [revoke(2, moving)], Homes("murmur2", 2 * PARTITIONS).of(moving), moving)
        await never_allowed(tail, 1.0, moving)
        tail.request_stop()
        with pytest.raises(PartitionsChanged):
            await asyncio.wait_for(work, 20)
    else:
        await tail.stop()
        await work
        await grow(settings, 2 * PARTITIONS)
    await refused(settings, f"{settings.topics.events} had {PARTITIONS} and has {2 * PARTITIONS}", moving)
    await reset(settings)
    async with running(settings) as (tail, _, _):
        fresh = "begun-after-the-reset"
        await send(settings, [grant(1, fresh)])
        await until(lambda: allowed(tail, fresh))
        await never_allowed(tail, 0.5, moving)


@pytest.mark.parametrize(
    "value", [None, b"no record", revoke(2).replace(b"2", b'"2"'), revoke(2).replace(b"2", b"3.0")]
)
async def test_what_cannot_be_read_refuses_its_session(kafka: KafkaBroker, unique: str, value: bytes | None) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    async with running(settings) as (tail, _, _):
        await put(settings, [grant(1), grant(2)], home())
        await until(lambda: allowed(tail, min_seq=2))
        await put(settings, [value], home())
        await until(lambda: not allowed(tail))
        await put(settings, [grant(3)], home())
        await until(lambda: ask.applied(tail.sessions.find(S).engine, S) == 3)
        assert not allowed(tail)
    assert len(await values(settings, settings.topics.dlq)) == 1


async def test_topics_of_which_one_has_another_count_are_named(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    async with running(settings):
        pass
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.create_partitions({settings.topics.misplaced: NewPartitions(2 * PARTITIONS)})
    finally:
        await admin.close()

    async def grown() -> bool:
        return (await topic_counts(kafka.bootstrap))[settings.topics.misplaced] == 2 * PARTITIONS

    await until(grown)
    with pytest.raises(TailError, match="misplaced has 8"):
        await new_tail(settings)[0].start()
