"""The tail on real brokers: what comes out is what the engine says, whatever happens meanwhile."""

import asyncio
import base64
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.tail.fetching import Fetched, lighten
from sidecar.tail.homes import partition_of
from sidecar.tail.tail import Tail
from tests.conftest import missing
from tests.kafka import broker as apache
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import committed, create_topics, produce, read_topic
from tests.kafka.tail_support import (
    PARTITIONS,
    WITHOUT_TRANSACTIONS,
    case_lines,
    ids,
    judged,
    process,
    running,
    send,
    settings_for,
    stream,
    until,
    until_committed,
    until_found,
    values,
)


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("kafka", "embedded")])
def bootstrap(request: pytest.FixtureRequest) -> str:
    address = str(request.getfixturevalue(request.param).bootstrap)
    if request.param == "embedded":
        WITHOUT_TRANSACTIONS.add(address)
    return address


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka that the test may stop."""
    if reason := apache.available():
        missing(reason)
    with KafkaBroker(tmp_path / "broker") as broker:
        yield broker


async def test_the_cases_through_the_broker_are_judged_as_by_the_engine_alone(bootstrap: str, unique: str) -> None:
    settings, lines, engine = settings_for(bootstrap, unique, max_wait=0.4), case_lines(), Engine()
    expected = judged(lines, engine)
    async with running(settings) as (_, metrics, health):
        await send(settings, lines)
        found = await until_found(settings, [finding.finding_id for finding in expected.findings])
        await until(lambda: health.ready(time.monotonic()).ok)
        assert health.live(time.monotonic()).ok
        statuses = [
            f'sidecar_frontier_degraded{{status="{status}"}} {count:.1f}\n'
            for status, count in engine.status_counts().items()
        ]
        await until(lambda: all(status in metrics.exposition()[0].decode() for status in statuses))
        no_lag = re.compile(r"^sidecar_lag_records\{.*\} 0\.0$", re.M)
        await until(lambda: len(no_lag.findall(metrics.exposition()[0].decode())) == 3 * PARTITIONS)
        text = metrics.exposition()[0].decode()
    assert Counter(ids(found)) == Counter(finding.finding_id for finding in expected.findings)
    halts = await values(settings, settings.topics.halts)
    assert Counter((h["halt_id"], h["status"]) for h in halts) == Counter((h.halt_id, h.status) for h in expected.halts)
    for finding in found:
        assert re.match(r"\d{4}-\d\d-\d\dT", finding["detected_at"])
        assert finding["source"]["topic"] in settings.topics.inputs
    for topic in (settings.topics.findings, settings.topics.halts):
        for record in await read_topic(bootstrap, topic):
            assert (record.key or b"").decode() == json.loads(record.value or b"")["session_id"]
    letters = await values(settings, settings.topics.dlq)
    # One record names another tenant than its session's.
    (foreign,) = [letter for letter in letters if "rival" in letter["reason"]]
    (letter,) = [letter for letter in letters if letter is not foreign]
    assert base64.b64decode(letter["original"]) in lines
    assert (letter["session_id"], letter["seq"]) == ("hole", 5)
    assert f'sidecar_dead_letters_total{{topic="{settings.topics.events}"}} 2.0' in text
    assert "sidecar_broker_up 1.0" in text
    read = sum(float(count) for count in re.findall(r"^sidecar_records_total\{.*\} (.*)$", text, re.M))
    assert read == len(lines) - 1


async def test_a_restart_goes_on_without_repeating_what_was_committed(bootstrap: str, unique: str) -> None:
    settings, lines = settings_for(bootstrap, unique), stream(6)
    half = len(lines) // 2
    async with running(settings):
        await send(settings, lines[:half])
        await until_found(settings, [finding.finding_id for finding in judged(lines[:half], ended=False).findings])
    # A clean stop commits, so there is nothing to wait for.
    await until_committed(settings, within=0.5)
    expected = [finding.finding_id for finding in judged(lines).findings]
    async with running(settings):
        await send(settings, lines[half:])
        await until_found(settings, expected)
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(expected)


async def test_what_was_said_after_the_last_commit_comes_again_with_the_same_ids(
    kafka: KafkaBroker, unique: str
) -> None:
    settings = settings_for(kafka.bootstrap, unique, commit_interval=60, guarantee="at_least_once")
    lines = stream(2)
    expected = [finding.finding_id for finding in judged(lines).findings]
    await send(settings, lines)
    tail = Tail(settings, *_observers(), startup_timeout=20)
    work = asyncio.create_task(tail.run())
    await until_found(settings, expected)
    work.cancel()  # as good as a crash: nothing is committed
    await asyncio.wait((work,))
    assert not any((await committed(kafka.bootstrap, settings.tail.group_id, settings.topics.events)).values())
    async with running(settings):
        await until(lambda: _twice(settings, expected))
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(dict.fromkeys(expected, 2))


async def _twice(settings: object, expected: list[str]) -> bool:
    return len(await values(settings, settings.topics.findings)) >= 2 * len(expected)  # type: ignore[attr-defined,arg-type]


def _observers() -> tuple[object, object]:
    from sidecar.observe.health import Health
    from sidecar.observe.metrics import Metrics

    return Metrics(), Health(time.monotonic())


async def test_two_replicas_share_and_one_that_stops_is_replaced(bootstrap: str, unique: str) -> None:
    settings, lines = settings_for(bootstrap, unique), stream(20)
    expected = [finding.finding_id for finding in judged(lines).findings]
    async with running(settings) as (first, _, health):
        async with running(settings) as (second, _, _):

            def shares() -> bool:
                loops = [tail.loop for tail in (first, second)]
                numbers = [[task.number for task in loop.tasks if task.placed] for loop in loops if loop]
                return [len(share) for share in numbers] == [2, 2] and {n for s in numbers for n in s} == {0, 1, 2, 3}

            await until(shares, within=30)
            sending = asyncio.create_task(send(settings, lines, rate=700))
            await asyncio.sleep(1)
        # The second has left in mid-stream.
        await until_found(settings, expected, within=45)
        await sending
        assert first.loop is not None
        await until(lambda: len(first.loop.tasks) == PARTITIONS and health.ready(time.monotonic()).ok, within=30)
        await until_committed(settings)
    assert set(ids(await values(settings, settings.topics.findings))) >= set(expected)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_replica_that_is_killed_leaves_nothing_unsaid(
    kafka: KafkaBroker, unique: str, tmp_path: Path, how: signal.Signals
) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique), stream(30)
    expected = judged(lines)
    names = {finding.finding_id for finding in expected.findings}
    async with process(settings, tmp_path, "first") as first, process(settings, tmp_path, "second"):
        log = tmp_path / "first.log"
        await until(lambda: "partitions assigned" in log.read_text(), within=20)
        sending = asyncio.create_task(send(settings, lines, rate=1500))
        await until(lambda: values(settings, settings.topics.findings))
        first.send_signal(how)
        await asyncio.wait_for(first.wait(), 20)
        assert first.returncode == (0 if how is signal.SIGTERM else -9), log.read_text()[-2000:]
        found = await until_found(settings, names, within=45)
        await sending
        await until_committed(settings)
    # What was said twice was said under the same id; and nothing else was said.
    assert {finding["finding_id"] for finding in found} == names
    halts = await values(settings, settings.topics.halts)
    assert {(h["halt_id"], h["status"]) for h in halts} == {(h.halt_id, h.status) for h in expected.halts}


async def test_sigterm_ends_an_idle_tail_at_once_and_cleanly(bootstrap: str, unique: str, tmp_path: Path) -> None:
    settings = settings_for(bootstrap, unique)
    async with process(settings, tmp_path, "tail") as child:
        log = tmp_path / "tail.log"
        await until(lambda: "partitions assigned" in log.read_text(), within=20)
        await send(settings, case_lines())
        await until_committed(settings)
        begun = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 10) == 0
        assert time.monotonic() - begun < 3
    assert "Traceback" not in log.read_text() and "Warning" not in log.read_text()


async def test_poison_does_not_stop_the_stream(bootstrap: str, unique: str) -> None:
    settings = settings_for(bootstrap, unique)
    good = [line for line in stream(1) if b'"clean-' in line]
    poison = [
        b"",
        b"\x00" * 1000,
        b"\xff\xfe",
        b'{"kind":"action"',
        b'{"kind":"message","session_id":"t","seq":1}{"kind":"message","session_id":"t","seq":2}',
        b'{"kind":"action","session_id":"p","seq":1}',
        b'{"kind":"message","session_id":"p","seq":99999999999999999999999}',
        b"[" * 5000,
        b'"text"',
        b"x" * 900_000,  # its letter would be larger than a message may be
    ]
    async with running(settings):
        await produce(bootstrap, settings.topics.events, [(b"p", line) for line in poison])
        await produce(bootstrap, settings.topics.events, [(b"p", None)])
        await send(settings, good)
        letters = await until(lambda: _letters(settings, len(poison) + 1))
        await until_committed(settings)
    by_offset = {letter["source"]["offset"]: letter for letter in letters}
    for offset, line in enumerate(poison[:-1]):
        assert base64.b64decode(by_offset[offset]["original"]) == line
        assert base64.b64decode(by_offset[offset]["key"]) == b"p"
        assert by_offset[offset]["reason"] and by_offset[offset]["source"]["topic"] == settings.topics.events
    large = by_offset[len(poison) - 1]
    assert "900000 bytes" in large["reason"]
    assert 700_000 < len(base64.b64decode(large["original"])) < 900_000
    assert by_offset[len(poison)]["reason"] == "the message has no value"
    (gap,) = await values(settings, settings.topics.findings)
    assert (gap["rule"], gap["session_id"], gap["position"]) == ("log_gap", "p", 1)


async def _letters(settings: object, count: int) -> list[dict[str, object]] | None:
    letters = await values(settings, settings.topics.dlq)  # type: ignore[attr-defined,arg-type]
    return letters if len(letters) >= count else None


async def test_a_broker_that_goes_and_comes_back_loses_nothing(own_kafka: KafkaBroker, unique: str) -> None:
    settings, lines = settings_for(own_kafka.bootstrap, unique), stream(8)
    expected = [finding.finding_id for finding in judged(lines).findings]
    third = len(lines) // 3
    async with running(settings) as (_, metrics, health):
        await send(settings, lines[:third])
        await until(lambda: values(settings, settings.topics.findings))
        await until(lambda: health.ready(time.monotonic()).ok)
        await asyncio.to_thread(own_kafka.stop)
        await until(lambda: not health.ready(time.monotonic()).ok, within=15)
        assert "the brokers have not answered" in health.ready(time.monotonic()).reasons[0]
        assert health.live(time.monotonic()).ok, "a restart would not help"
        assert "sidecar_broker_up 0.0" in metrics.exposition()[0].decode()
        await asyncio.to_thread(own_kafka.start)
        await send(settings, lines[third : 2 * third])
        await asyncio.to_thread(own_kafka.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(own_kafka.start)
        await send(settings, lines[2 * third :])
        found = await until_found(settings, expected, within=60)
        await until(lambda: health.ready(time.monotonic()).ok, within=30)
        assert "sidecar_broker_up 1.0" in metrics.exposition()[0].decode()
        await until_committed(settings)
    assert {finding["finding_id"] for finding in found} == set(expected)


async def test_a_tail_stops_in_time_while_the_broker_is_away(own_kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(own_kafka.bootstrap, unique)
    async with running(settings, ends_well=False) as (tail, _, _):
        await send(settings, case_lines())
        await until(lambda: values(settings, settings.topics.findings))
        await asyncio.to_thread(own_kafka.kill)
        begun = time.monotonic()
        await asyncio.wait_for(tail.stop(), 40)
        assert time.monotonic() - begun < 35


async def test_offsets_that_retention_has_deleted_are_named_and_passed_over(
    kafka: KafkaBroker, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    lines = stream(3)
    async with running(settings):
        await send(settings, lines)
        await until_found(settings, [finding.finding_id for finding in judged(lines).findings])
    # Everything the group has read is deleted, and something that it has not.
    await send(settings, [b'{"kind":"message","session_id":"lost","seq":1}'])
    (number,) = [r.partition for r in await read_topic(kafka.bootstrap, settings.topics.events) if r.key == b"lost"]
    done = await committed(kafka.bootstrap, settings.tail.group_id, settings.topics.events)
    lost = done[number]
    assert lost is not None
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(settings.topics.events, number): RecordsToDelete(lost + 1)})
    finally:
        await admin.close()
    new = next(name for name in map(str, range(99)) if partition_of(name.encode(), PARTITIONS) == number)
    unauthorized = b'{"kind":"action","session_id":"%s","seq":1,"action_id":"a","irreversible":true}' % new.encode()
    await send(settings, [unauthorized])
    async with running(settings):
        await until(lambda: _found(settings, "action_unauthorized", new))
    assert f"lost='{lost} to {lost}'" in re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)


async def _found(settings: Settings, rule: str, session: str) -> bool:
    found = await values(settings, settings.topics.findings)
    return (rule, session) in [(finding["rule"], finding["session_id"]) for finding in found]


async def test_a_mixed_topic_is_read_as_well(bootstrap: str, unique: str) -> None:
    settings, lines = settings_for(bootstrap, unique, max_wait=0.4), case_lines()
    names = settings.topics.model_copy(update={"compactions": settings.topics.events})
    settings = settings.model_copy(update={"topics": names})
    expected = [finding.finding_id for finding in judged(lines).findings]
    async with running(settings):
        await send(settings, lines)
        found = await until_found(settings, expected)
    assert Counter(ids(found)) == Counter(expected)


async def test_outputs_with_other_partition_counts_are_written_by_key(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique, max_wait=0.4)
    await create_topics(kafka.bootstrap, settings.topics.findings, partitions=3)
    async with running(settings):
        await send(settings, case_lines())
        await until_found(settings, [finding.finding_id for finding in judged(case_lines()).findings])
    where: dict[bytes | None, set[int]] = {}
    for record in await read_topic(kafka.bootstrap, settings.topics.findings):
        where.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in where.values())


async def test_a_callback_sees_what_is_found(embedded: object, unique: str) -> None:
    settings = settings_for(embedded.bootstrap, unique, max_wait=0.4)  # type: ignore[attr-defined]
    seen: list[str] = []
    async with running(settings, lambda outcome: seen.extend(f.finding_id for f in outcome.findings)):
        await send(settings, case_lines())
        expected = [finding.finding_id for finding in judged(case_lines()).findings]
        await until(lambda: set(seen) == set(expected))
    assert Counter(seen) == Counter(expected)


async def test_light_fetching_gives_what_aiokafka_gives(kafka: KafkaBroker, unique: str) -> None:
    # If a newer aiokafka looks different inside, this fails, and the tail is only slower.
    topic = f"{unique}log"
    await create_topics(kafka.bootstrap, topic)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{unique}p", retry_backoff_ms=5)
    await producer.start()
    try:
        for turn in range(6):
            await producer.begin_transaction()
            for n in range(50):
                await producer.send(topic, b"%d-%d" % (turn, n), b"k" if n % 3 else None)
            await (producer.abort_transaction() if turn % 3 == 1 else producer.commit_transaction())
    finally:
        await producer.stop()
    expected = await read_topic(kafka.bootstrap, topic, read_committed=True)
    tp = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, isolation_level="read_committed", max_partition_fetch_bytes=1024
    )
    await consumer.start()
    try:
        assert lighten(consumer)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[Fetched] = []
        async with asyncio.timeout(20):
            while len(found) < len(expected) or await consumer.position(tp) < (consumer.highwater(tp) or 0):
                for batch in (await consumer.getmany(timeout_ms=100, max_records=7)).values():
                    assert 0 < len(batch) <= 7
                    found += batch  # type: ignore[arg-type]
    finally:
        await consumer.stop()
    assert all(type(message) is Fetched for message in found)
    assert [(m.topic, m.partition, m.offset, m.timestamp, m.key, m.value) for m in found] == [
        (r.topic, r.partition, r.offset, r.timestamp, r.key, r.value) for r in expected
    ]
    assert len(found) == 200
