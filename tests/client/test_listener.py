"""The listener on brokers: what it has read before it is ready, what it hears, and when it is not believed."""

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from sidecar.client import BrokerError, Closed, Emitter, HaltListener, OpenHalt, SyncHaltListener
from sidecar.client.options import OPTIONS
from sidecar.embedded import EmbeddedBroker, free_port
from sidecar.protocol.outputs import Halt, HaltAck
from tests.client.test_listener_view import halt
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import Pair, create_topics, produce, read_topic
from tests.kafka.tail_support import running, settings_for


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Give each of the two brokers."""
    broker: EmbeddedBroker | KafkaBroker = request.getfixturevalue(request.param)
    return broker.bootstrap


def pair(record: Halt) -> Pair:
    """Return a record as a message."""
    return record.session_id.encode(), msgspec.json.encode(record)


def opens(session: str, position: int = 1) -> Halt:
    return halt(session, f"h-{session}", "halt", [f"h-{session}"], position)


def clears(session: str, position: int = 2) -> Halt:
    return halt(session, f"h-{session}", "clear", [], position)


async def until(true: Callable[[], bool], within: float = 10.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_it_is_ready_when_it_has_read_what_was_there(bootstrap: str, unique: str) -> None:
    topic, acks = f"{unique}halts", f"{unique}acks"
    await create_topics(bootstrap, topic, acks, partitions=3)
    before = [pair(opens(f"s{n}")) for n in range(200)] + [pair(clears(f"s{n}")) for n in range(0, 200, 2)]
    before += [(b"t", b"junk"), (b"s1", None), (None, b"junk")]
    await produce(bootstrap, topic, before)
    listener = HaltListener(bootstrap, topic=topic, acks_topic=acks)
    assert listener.status == "starting" and listener.is_halted("anything")
    with pytest.raises(Closed, match="not running"):
        await listener.wait_ready()
    async with listener:
        assert listener.is_halted("anything"), "not known yet"
        await listener.wait_ready(10)
        assert listener.status == "current"
        assert set(listener.view) == {f"s{n}" for n in range(3, 200, 2)} | {"t"}
        assert listener.is_halted("s3") and listener.is_halted("t")
        assert not listener.is_halted("s2") and not listener.is_halted("s1") and not listener.is_halted("anything")
        assert listener.halts("s3") == (OpenHalt("s3", "h-s3", opens("s3")),)
        assert listener.unreadable == 2
        # What comes now is heard, and what was there before is not.
        after = [opens("s2", 3), clears("s3", 3), opens("new", 1)]
        await produce(bootstrap, topic, map(pair, after))
        heard = [await listener.next(10) for _ in after]
        assert sorted(heard, key=str) == sorted(after, key=str)
        assert listener.is_halted("s2") and listener.is_halted("new") and not listener.is_halted("s3")
        assert await listener.next(0.05) is None

        await listener.ack(after[0], by="ops", decision="looking")
        await listener.ack(listener.halts("new")[0], by="ops", decision="replay")
        with pytest.raises(TypeError):
            await listener.ack("h-new", by="ops", decision="replay")  # type: ignore[arg-type]
    assert listener.status == "closed" and listener.is_halted("anything")
    assert [record async for record in listener] == []
    acknowledged = {(m.key, m.value) for m in await read_topic(bootstrap, acks)}
    assert acknowledged == {
        (b"s2", msgspec.json.encode(HaltAck(halt_id="h-s2", by="ops", decision="looking"))),
        (b"new", msgspec.json.encode(HaltAck(halt_id="h-new", by="ops", decision="replay"))),
    }
    with pytest.raises(Closed):
        await listener.ack(after[0], by="ops", decision="late")
    with pytest.raises(Closed, match="another one"):
        await listener.start()


async def test_an_empty_topic_is_ready_at_once(bootstrap: str, unique: str) -> None:
    await create_topics(bootstrap, f"{unique}halts", partitions=2)
    async with HaltListener(bootstrap, topic=f"{unique}halts") as listener:
        await listener.wait_ready(10)
        assert not listener.is_halted("s")
        waiting = asyncio.create_task(anext(listener))
        await asyncio.sleep(0.05)
        await listener.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_without_broker_or_topic_everything_is_halted(
    embedded: EmbeddedBroker, kafka: KafkaBroker, unique: str
) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with HaltListener(nowhere) as listener:
        with pytest.raises(BrokerError, match=rf"agent\.halts has not.*{nowhere}: Connection refused\)\..* Until"):
            await listener.wait_ready(0.5)
        assert listener.is_halted("s") and listener.status == "starting"
        with pytest.raises(BrokerError, match="could not be written"):
            await listener.ack(opens("s"), by="me", decision="x", within=0.2)
        waiting = asyncio.create_task(listener.wait_ready())
        await asyncio.sleep(0.01)
        await listener.aclose()
        with pytest.raises(Closed):
            await waiting
    topic = f"{unique}halts"
    async with HaltListener(f"{nowhere},{kafka.bootstrap}", topic=topic, acks_topic=topic + "acks") as listener:
        with pytest.raises(BrokerError, match=f"There is no topic {topic} "):
            await listener.wait_ready(0.6)
        # It goes on trying.
        await create_topics(kafka.bootstrap, topic)
        await listener.wait_ready(15)
        assert not listener.is_halted("s")
        with pytest.raises(BrokerError, match=f"no topic {topic}acks"):
            await listener.ack(opens("s"), by="me", decision="x", within=3)
    with pytest.raises(TypeError, match="unknown options"):
        HaltListener(nowhere, group_id="x")
    with pytest.raises(ValueError, match="at least 1"):
        HaltListener(nowhere, cut_off_after=0.5)


@contextlib.asynccontextmanager
async def transactions(bootstrap: str, name: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, retry_backoff_ms=5)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def test_only_what_was_committed_counts(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}halts"
    await create_topics(kafka.bootstrap, topic, partitions=2)
    async with transactions(kafka.bootstrap, f"{unique}1") as one, transactions(kafka.bootstrap, f"{unique}2") as two:
        for aborted in range(6):
            await one.begin_transaction()
            for n in range(20):
                key, value = pair(opens(f"{'aborted' if aborted % 2 else 'committed'}-{n}"))
                await one.send(topic, value, key)
            await (one.abort_transaction() if aborted % 2 else one.commit_transaction())
        await two.begin_transaction()
        for n in range(20):
            key, value = pair(opens(f"open-{n}"))
            await two.send(topic, value, key)
        await two.flush()
        async with HaltListener(kafka.bootstrap, topic=topic) as listener:
            # Not held up by the transaction that is open.
            await listener.wait_ready(10)
            assert set(listener.view) == {f"committed-{n}" for n in range(20)}
            await asyncio.sleep(0.3)
            assert not listener.is_halted("open-3") and listener.status == "current"
            await two.commit_transaction()
            await until(lambda: len(listener.view) == 40)
            heard = [await listener.next(5) for _ in range(20)]
            assert {record.session_id for record in heard if record} == {f"open-{n}" for n in range(20)}


async def test_what_compaction_leaves_is_enough(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}halts"
    soon = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    await create_topics(kafka.bootstrap, topic, partitions=2, configs=soon)
    for turn in range(6):
        records = [opens(f"s{n}", 2 * turn + 1) for n in range(30)]
        records += [clears(f"s{n}", 2 * turn + 2) for n in range(30) if n % 3 or turn % 2 == 0]
        await produce(kafka.bootstrap, topic, map(pair, records))
        await asyncio.sleep(0.06)
    async with asyncio.timeout(20):
        while len(await read_topic(kafka.bootstrap, topic)) > 80:
            await produce(kafka.bootstrap, topic, [pair(clears("other", n)) for n in range(4)])
            await asyncio.sleep(0.3)
    async with HaltListener(kafka.bootstrap, topic=topic) as listener:
        await listener.wait_ready(10)
        assert set(listener.view) == {f"s{n}" for n in range(0, 30, 3)}


async def test_partitions_that_are_added_and_a_topic_that_is_made_anew(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}halts"
    await create_topics(kafka.bootstrap, topic, partitions=1)
    await produce(kafka.bootstrap, topic, [pair(opens("old"))])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        async with HaltListener(
            kafka.bootstrap, topic=topic, look_for_partitions=0.2, cut_off_after=3, metadata_max_age_ms=500
        ) as listener:
            await listener.wait_ready(10)
            await admin.create_partitions({topic: NewPartitions(3)})
            await asyncio.sleep(0.2)  # until it has a leader
            await produce(kafka.bootstrap, topic, [pair(opens("new"))], partition=2)
            await produce(kafka.bootstrap, topic, [pair(clears("old"))], partition=1)
            heard = {await _session(listener), await _session(listener)}
            assert heard == {"new", "old"}
            assert set(listener.view) == {"new"} and listener.status == "current"

            await admin.delete_topics([topic])
            await asyncio.sleep(0.5)
            await create_topics(kafka.bootstrap, topic, partitions=2)
            await produce(kafka.bootstrap, topic, [pair(opens("another"))])
            await until(lambda: listener.status == "current" and listener.is_halted("another"), 20)
            assert set(listener.view) == {"another"}, "what the old topic said is forgotten"
    finally:
        await admin.close()


async def _session(listener: HaltListener) -> str | None:
    record = await listener.next(10)
    return record.session_id if record is not None else None


async def test_a_new_topic_of_as_many_partitions_is_read_again(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}halts"
    await create_topics(kafka.bootstrap, topic)
    await produce(kafka.bootstrap, topic, [pair(opens(f"s{n}")) for n in range(10)])
    async with HaltListener(kafka.bootstrap, topic=topic, cut_off_after=3) as listener:
        await listener.wait_ready(10)
        # As if it had read further than the topic goes.
        listener._offsets[0] = 50
        listener._task.cancel()  # type: ignore[union-attr]
        await asyncio.wait((listener._task,))  # type: ignore[arg-type]
        listener._task = asyncio.create_task(listener._run())
        await until(lambda: listener._offsets.get(0) == 10 and listener.status == "current")
        assert len(listener.view) == 10


async def test_what_nobody_takes_is_kept_up_to_a_bound(embedded: EmbeddedBroker, unique: str) -> None:
    topic = f"{unique}halts"
    await create_topics(embedded.bootstrap, topic)
    async with HaltListener(embedded.bootstrap, topic=topic, keep=5) as listener:
        await listener.wait_ready(10)
        await produce(embedded.bootstrap, topic, [pair(opens(f"s{n}")) for n in range(12)])
        await until(lambda: len(listener.view) == 12)
        assert listener.dropped == 7
        assert [await _session(listener) for _ in range(5)] == [f"s{n}" for n in range(7, 12)]


async def test_a_program_that_does_not_let_it_read_is_not_told_that_all_is_well(
    embedded: EmbeddedBroker, unique: str
) -> None:
    topic = f"{unique}halts"
    await create_topics(embedded.bootstrap, topic)
    async with HaltListener(embedded.bootstrap, topic=topic, cut_off_after=1.2) as listener:
        await listener.wait_ready(10)
        assert not listener.is_halted("s")
        time.sleep(1.3)  # noqa: ASYNC251 - the event loop stands still
        assert listener.is_halted("s") and listener.status == "cut_off"
        await until(lambda: not listener.is_halted("s"))


def test_threads_may_ask(embedded: EmbeddedBroker, unique: str, tmp_path: Path) -> None:
    topic, acks = f"{unique}halts", f"{unique}acks"
    asyncio.run(create_topics(embedded.bootstrap, topic, acks))
    asyncio.run(produce(embedded.bootstrap, topic, [pair(opens("s"))]))
    with SyncHaltListener(embedded.bootstrap, topic=topic, acks_topic=acks) as listener:
        listener.wait_ready(10)
        answers: list[bool] = []
        threads = [threading.Thread(target=lambda: answers.append(listener.is_halted("s"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [True] * 8
        assert list(listener.view) == ["s"] and not listener.is_halted("t")
        listener.ack(listener.halts("s")[0], by="me", decision="x")
        assert listener.next(0.01) is None
        asyncio.run(produce(embedded.bootstrap, topic, [pair(clears("s"))]))
        record = listener.next(10)
        assert record is not None and record.status == "clear" and not listener.is_halted("s")
        assert (listener.status, listener.trouble, listener.unreadable, listener.dropped) == ("current", None, 0, 0)
    assert listener.is_halted("t")
    listener.close()
    assert len(asyncio.run(read_topic(embedded.bootstrap, acks))) == 1


async def test_what_the_tail_says_is_heard(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    names = {"events_topic": settings.topics.events, "compactions_topic": settings.topics.compactions}
    async with (
        running(settings),
        Emitter.kafka(kafka.bootstrap, "s", journal=tmp_path, **names) as log,
        HaltListener(kafka.bootstrap, topic=settings.topics.halts) as listener,
    ):
        await listener.wait_ready(10)
        await log.action("deploy", irreversible=True)
        opened = await listener.next(20)
        assert opened is not None and (opened.status, opened.reason) == ("halt", ["action_unauthorized"])
        assert listener.is_halted("s") and listener.halts("s") == (OpenHalt("s", opened.halt_id, opened),)
        covered = await log.authorization("deploy", "approved")
        await log.summary("n", generation=1, level=1, frontier_lo=1, frontier_hi=covered)
        await log.checkpoint(
            "c",
            node_id="n",
            summary_generation=1,
            level=1,
            turn=1,
            frontier_lo=1,
            frontier_hi=covered,
            asserted_edges=[("deploy", "approved")],
        )
        cleared = await listener.next(20)
        assert cleared is not None and (cleared.status, cleared.halt_id) == ("clear", opened.halt_id)
        assert not listener.is_halted("s")


def test_the_options_are_those_of_every_client() -> None:
    for client in (AIOKafkaProducer, AIOKafkaConsumer):
        assert set(inspect.signature(client).parameters) >= OPTIONS
