"""What is known to go wrong with Faust, done on purpose on Apache Kafka: nothing is lost or hangs in silence."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaTimeoutError

from sidecar.config import Settings, SettingsError
from sidecar.fleet.command import address, advertised
from sidecar.fleet.credentials import broker_options
from sidecar.fleet.errors import FleetError
from sidecar.fleet.model import load
from sidecar.fleet.part import Changelog
from sidecar.fleet.shard import MARKER, ROLES, Shard
from sidecar.fleet.stream import FleetRecovery
from sidecar.fleet.topics import partition_of
from sidecar.protocol.outputs import DeadLetter, HaltAck
from sidecar.tail.errors import TailError
from sidecar.tail.topics import prepare_fleet
from tests.fleet.cluster import (
    PARTITIONS,
    ROOT,
    Running,
    alert_records,
    fleet_settings,
    mark,
    publish,
    read_all,
    running,
    until,
)
from tests.fleet.compare import differences, expected_rows, rows_of
from tests.fleet.histories import Message
from tests.fleet.naive import sessions
from tests.fleet.test_app import filled, rows_in_changelog, story
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import committed, create_topics, produce, read_topic


def rows_here(here: Running) -> dict[str, dict[str, Any]]:
    return {name: row for part in here.worker.parts.values() for name, row in rows_of(part.shard).items()}


def moved(here: Running) -> int:
    return sum(part.shard.moved for part in here.worker.parts.values())


async def assert_rows_right(here: Running, settings: Settings) -> None:
    expected = expected_rows(sessions(await read_all(settings)))
    with contextlib.suppress(AssertionError):
        await until(lambda: rows_here(here) == expected, within=10)
    assert differences(rows_here(here), expected) == []

    async def written() -> bool:
        return await rows_in_changelog(settings) == expected

    await until(written, within=10)


# --- records that cannot be used, and exceptions ----------------------------------------------------------------------


async def test_records_that_cannot_be_used_stop_nothing(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    good = story(11, sessions=10, steps=8)
    bad = [
        Message("findings", b"s11-0", b"{", time.time()),
        Message("findings", b"s11-0", None, time.time()),
        Message("halts", b"s11-1", b'{"halt_id": "h"}', time.time()),
        Message("sessions", b"s11-2", b"\xff", time.time()),
        Message("halt_acks", b"\xfe\xff", b'{"halt_id": "h", "by": "a", "decision": "d"}', time.time()),
    ]
    half = len(good) // 2
    async with running(settings) as here:
        await filled(here, settings, [*good[:half], *bad, *good[half:]])
        await assert_rows_right(here, settings)
        assert here.value("sidecar_fleet_unusable_records_total", topic=settings.topics.findings) == 2

        async def buried() -> bool:
            return len(await read_topic(kafka.bootstrap, settings.topics.dlq)) == len(bad)

        await until(buried)
    letters = [
        msgspec.json.decode(record.value, type=DeadLetter)
        for record in await read_topic(kafka.bootstrap, settings.topics.dlq)
    ]
    assert {letter.source.topic for letter in letters} == {getattr(settings.topics, message.role) for message in bad}
    for letter in letters:
        assert letter.reason.startswith("fleet: ")
        (record,) = [
            r
            for r in await read_topic(kafka.bootstrap, letter.source.topic)
            if (r.partition, r.offset) == (letter.source.partition, letter.source.offset)
        ]
        assert (record.value or b"", record.key) == (letter.original, letter.key)


async def test_an_exception_takes_no_other_record_with_it(
    kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust acknowledges the record on which an agent fails, and what is behind it in its buffer."""
    settings = fleet_settings(kafka.bootstrap, unique)
    messages = story(12, sessions=12, steps=10)
    take, failed = Shard.take, []

    def failing(self: Shard, role: Any, key: bytes, value: bytes, offset: int, at: float) -> bool:
        taken = take(self, role, key, value, offset, at)
        if role == "halt_acks":
            failed.append(offset)
            raise ZeroDivisionError("a fault of ours")
        return taken

    monkeypatch.setattr(Shard, "take", failing)
    async with running(settings) as here:
        await filled(here, settings, messages)
        await assert_rows_right(here, settings)
        count = here.value("sidecar_fleet_unusable_records_total", topic=settings.topics.halt_acks)
        assert count == len(failed) == sum(message.role == "halt_acks" for message in messages) > 0

        async def buried() -> bool:
            return len(await read_topic(kafka.bootstrap, settings.topics.dlq)) == count

        await until(buried)


async def test_a_row_that_the_broker_finds_too_large_keeps_its_counts(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    limits = {"max.message.bytes": "20000", "cleanup.policy": "compact"}
    await create_topics(kafka.bootstrap, settings.fleet.changelog, partitions=PARTITIONS, configs=limits)
    fields = {
        "rule": "edge_dropped",
        "severity": "error",
        "disposition": "rederive",
        "session_id": "large",
        "subject": {"type": "checkpoint", "id": "c"},
        "position": 1,
        "evidence": {"witness": [1], "text": "x" * 1000},
    }
    values = [msgspec.json.encode({"finding_id": f"f{i}", **fields}) for i in range(60)]
    small = story(22, sessions=6, steps=5)
    async with running(settings) as here:
        await filled(here, settings, [*(Message("findings", b"large", v, time.time()) for v in values), *small])
        await until(lambda: not any(part.shard.unwritten() for part in here.worker.parts.values()))
        detail = await here.board.session("large")
        assert detail is not None and detail.summary.findings == 60 and detail.dropped == 60
        expected = {name: s["findings"] for name, s in sessions(await read_all(settings)).items()}
    assert {name: row["findings"] for name, row in (await rows_in_changelog(settings)).items()} == expected


# --- offsets ----------------------------------------------------------------------------------------------------------


async def commit_as(settings: Settings, offset: int | None) -> None:
    """Commit an offset for every partition as the fleet's group, which must not be running; None: the end."""
    tps = [TopicPartition(getattr(settings.topics, role), p) for role in ROLES for p in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers),
        group_id=settings.fleet.group_id,
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        await consumer.commit({tp: ends[tp] if offset is None else offset for tp in tps})
    finally:
        await consumer.stop()


async def test_committed_offsets_decide_nothing(kafka: KafkaBroker, unique: str) -> None:
    """After exceptions and rebalances, Faust commits past records that nobody has worked on, or before others."""
    settings = fleet_settings(kafka.bootstrap, unique)
    messages = story(13, sessions=12, steps=10)
    async with running(settings) as here:
        await filled(here, settings, messages[: len(messages) // 2])
        await assert_rows_right(here, settings)

        async def noted() -> bool:  # for others to look at
            done = await committed(kafka.bootstrap, settings.fleet.group_id, settings.topics.findings)
            positions = {p.partition: p.shard.positions["findings"].next for p in here.worker.parts.values()}
            return done == {partition: position or None for partition, position in positions.items()}

        await until(noted)
    await publish(settings, messages[len(messages) // 2 :])
    await commit_as(settings, None)
    async with running(settings) as here:
        await until(here.settled)
        await until(lambda: moved(here) == len(messages) - len(messages) // 2)
        await assert_rows_right(here, settings)
    await commit_as(settings, 0)
    async with running(settings) as here:
        await until(here.settled)
        assert moved(here) == 0
        await assert_rows_right(here, settings)


async def test_positions_that_are_set_in_mid_stream_lose_nothing(kafka: KafkaBroker, unique: str) -> None:
    """What was fetched before is still on its way then: Faust takes it for the newest, and leaves out what follows."""
    settings = fleet_settings(kafka.bootstrap, unique)
    messages = story(14, sessions=20, steps=15)
    async with running(settings) as here:
        await until(here.settled)
        publishing = asyncio.create_task(publish(settings, messages, rate=len(messages) / 3))
        mine = set(range(PARTITIONS))
        while not publishing.done():
            for part in here.worker.parts.values():
                part.reading = False
            await here.worker._start_reading(mine)
            await asyncio.sleep(0.05)
        await publishing
        await until(lambda: moved(here) == len(messages))
        await assert_rows_right(here, settings)


async def test_markers_of_transactions_are_nothing_to_be_read(kafka: KafkaBroker, unique: str) -> None:
    """Behind the tail's last commit there is an offset that never comes: that is no lag, and no stalling."""
    settings = fleet_settings(kafka.bootstrap, unique, stall_after=2.0)
    async with running(settings) as here:
        await filled(here, settings, story(21, sessions=8, steps=5))
        before = rows_here(here)
        await mark(settings)
        await until(lambda: not here.settled(), within=10)
        await until(here.settled, within=10)
        await asyncio.sleep(2.5)
        assert here.health.live(time.monotonic()).ok and here.health.ready(time.monotonic()).ok
        assert rows_here(here) == before  # an aborted record is none
        assert here.value("sidecar_fleet_lag_records", topic=settings.topics.findings, partition="0") == 0


# --- recovery ---------------------------------------------------------------------------------------------------------


async def leave_holes(settings: Settings, topic: str) -> None:
    """End every partition with offsets that are no records: of a transaction that was aborted, and of its marker."""
    producer = AIOKafkaProducer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), transactional_id=f"{settings.fleet.group_id}-holes"
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        for partition in range(PARTITIONS):
            await producer.send_and_wait(topic, key=b"never", value=b"never", partition=partition)
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def test_a_recovery_ends_where_the_last_offsets_are_no_records(kafka: KafkaBroker, unique: str) -> None:
    """Faust waits for the last offset: after compaction, or in a transaction's marker, it never comes, and it hangs."""
    settings = fleet_settings(kafka.bootstrap, unique)
    async with running(settings) as here:
        await filled(here, settings, story(15, sessions=12, steps=8))
        await assert_rows_right(here, settings)
    for topic in (settings.fleet.changelog, settings.topics.alerts):
        await leave_holes(settings, topic)
    begun = time.monotonic()
    async with running(settings) as here:
        await until(here.settled, within=15)
        assert time.monotonic() - begun < 10
        assert moved(here) == 0
        await assert_rows_right(here, settings)


async def test_a_recovery_that_hangs_is_no_life_and_has_an_end(
    kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, stall_after=1.0, recovery_timeout=4)
    async with running(settings) as here:
        await filled(here, settings, story(16, sessions=12, steps=8))
        await until(lambda: not any(part.shard.unwritten() for part in here.worker.parts.values()))

    async def nothing(*_: Any) -> None:
        """Lose what was fetched, as when a fetcher has stalled."""

    monkeypatch.setattr(FleetRecovery, "take", nothing)
    monkeypatch.setattr(FleetRecovery, "_pass_holes", nothing)
    with pytest.raises(FleetError, match=r"not read within 4 s \(\d+ records are left\).*fleet\.recovery_timeout"):
        async with running(settings) as here:
            await until(lambda: here.value("sidecar_fleet_recovering_records") > 0, within=10)
            assert not here.health.ready(time.monotonic()).ok
            await until(lambda: not here.health.live(time.monotonic()).ok, within=10)
            assert any("no progress" in reason for reason in here.health.live(time.monotonic()).reasons)
            await asyncio.sleep(10)
            raise AssertionError("it went on")


async def test_a_changelog_that_was_not_read_to_its_end_is_seen(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    async with running(settings) as here:
        await filled(here, settings, story(17, sessions=8, steps=5))
        here.worker._check_recovered()
        tp = next(iter(here.worker.recovery.active_highwaters))
        here.worker.recovery.active_highwaters[tp] += 10**6
        with pytest.raises(FleetError, match="not read to their end"):
            here.worker._check_recovered()
        del here.worker.recovery.active_highwaters[tp]
        with pytest.raises(FleetError, match="not read to their end"):
            here.worker._check_recovered()


async def test_a_changelog_of_another_version_is_refused(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    await prepare_fleet(settings, 20.0)
    await produce(kafka.bootstrap, settings.fleet.changelog, [(b"s", b"\x92\x07\x91\xa1s")], partition=2)
    with pytest.raises(FleetError, match=r"partition 2, offset 0, cannot be read: the row is of version 7.*group_id"):
        async with running(settings):
            await asyncio.sleep(20)


# --- somebody else ----------------------------------------------------------------------------------------------------


async def test_what_a_zombie_writes_is_written_over(kafka: KafkaBroker, unique: str) -> None:
    """Without it, compaction would in time leave nothing but the zombie's row, of long ago."""
    settings = fleet_settings(kafka.bootstrap, unique)
    messages = story(18, sessions=12, steps=10)
    async with running(settings) as here:
        await filled(here, settings, messages[: len(messages) // 2])
        await assert_rows_right(here, settings)
        old = {r.key: r.value for r in await read_topic(kafka.bootstrap, settings.fleet.changelog)}
        await publish(settings, messages)  # all of it again: nothing is counted twice
        await until(lambda: moved(here) == len(messages) + len(messages) // 2)
        await assert_rows_right(here, settings)
        for key, value in old.items():
            if key != MARKER:
                where = partition_of(key or b"", PARTITIONS)
                await produce(kafka.bootstrap, settings.fleet.changelog, [(key, value)], partition=where)
        await publish(settings, story(19, sessions=12, steps=2))
        await until(lambda: here.value("sidecar_fleet_foreign_writes_total") == PARTITIONS)
        expected = expected_rows(sessions(await read_all(settings)))

        async def written_over() -> bool:
            newest = {r.key: r.value for r in await read_topic(kafka.bootstrap, settings.fleet.changelog)}
            rows = [load(value) for key, value in newest.items() if key != MARKER and value]
            return {row.session_id: row.findings.total for row in rows} == {
                name: row["findings"] for name, row in expected.items()
            }

        await until(written_over, within=10)
        await assert_rows_right(here, settings)
        assert here.value("sidecar_fleet_foreign_writes_total") == PARTITIONS


async def test_what_a_zombie_says_of_an_alert_is_written_over(kafka: KafkaBroker, unique: str) -> None:
    """Also where nobody has anything more to write."""
    settings = fleet_settings(kafka.bootstrap, unique, alerts={"halt_after": 0, "halt_error_after": 100})
    (halt,) = [message for message in story(23, 1, 60) if message.role == "halts"][:1]
    fields = msgspec.json.decode(halt.value or b"")
    topic, ack = settings.topics.alerts, HaltAck(halt_id=fields["halt_id"], by="ada", decision="ok")
    async with running(settings) as here:
        await filled(here, settings, [halt])

        async def said(*expected: str) -> bool:
            return tuple(alert.status for alert in await alert_records(settings)) == expected

        await until(lambda: said("raised"))
        (raised,) = await read_topic(kafka.bootstrap, topic)
        await here.board.acknowledge(fields["session_id"], ack)
        await until(lambda: said("raised", "cleared"))
        await produce(kafka.bootstrap, topic, [(raised.key, raised.value)], partition=raised.partition)
        await until(lambda: said("raised", "cleared", "raised", "cleared"), within=15)
        assert here.value("sidecar_fleet_foreign_writes_total") == 1


def test_whoever_writes_sees_who_else_does() -> None:
    log = Changelog()
    assert not log.wrote([5, 6, 7]) and log.next == 8  # nothing was known before
    assert not log.wrote([9, 8]) and log.next == 10
    assert log.wrote([11]) and log.next == 12
    assert not log.wrote([12])
    assert log.wrote([13, 15])
    assert not log.wrote([])
    log.read(40)
    log.read(20)
    assert log.next == 41


async def test_brokers_that_stand_still_for_a_while(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, session_timeout=6)
    messages = story(20, sessions=20, steps=12)
    async with running(settings) as here:
        await until(here.settled)
        publishing = asyncio.create_task(publish(settings, messages, rate=len(messages) / 4))
        await asyncio.sleep(1.0)
        assert kafka.pid is not None
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(3.0)
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        with contextlib.suppress(KafkaTimeoutError):  # what is in the topics is what counts
            await publishing
        await asyncio.sleep(1.0)
        await until(here.settled, within=60)
        await assert_rows_right(here, settings)


async def test_topics_that_do_not_go_together_are_refused(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    await create_topics(kafka.bootstrap, settings.topics.findings, partitions=4)
    await create_topics(kafka.bootstrap, settings.topics.halts, partitions=3)
    with pytest.raises(TailError, match=rf"{unique}findings has 4 and .*{unique}halts has 3"):
        await prepare_fleet(settings, 20.0)


# --- embedding --------------------------------------------------------------------------------------------------------


def test_faust_reads_nothing_from_the_command_line() -> None:
    code = (
        "import sys, os; sys.argv = ['sidecar', 'fleet', '-L', 'uvloop', '--datadir=/nowhere', '-W'];"
        "before = dict(os.environ); import sidecar.fleet.stream;"
        "assert sys.argv[2] == '-L' and dict(os.environ) == before;"
        "assert not {'uvloop', 'gevent', 'eventlet'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout + done.stderr == "", done.stderr


CLIENT: dict[str, Any] = {
    "bootstrap_servers": ["a:1", "[::1]:2"],
    "client_id": "c",
    "request_timeout_ms": 40_000,
    "metadata_max_age_ms": 1,
    "connections_max_idle_ms": 2,
}


def settings_of(kafka: dict[str, Any]) -> dict[str, Any]:
    """Return how Faust would open its aiokafka clients."""
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list
    from yarl import URL

    options = broker_options({**CLIENT, **kafka})
    assert server_list([URL(url) for url in options["broker"]], 9092) == ["a:1", "[::1]:2"]
    return dict(credentials_to_aiokafka_auth(options.get("broker_credentials"), None))


def test_security_reaches_the_clients() -> None:
    import ssl

    from sidecar.config.security import TokenFile

    context = ssl.create_default_context()
    assert settings_of({}) == {"security_protocol": "PLAINTEXT"}
    assert settings_of({"ssl_context": context}) == {"security_protocol": "SSL", "ssl_context": context}
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    assert settings_of({**login, "ssl_context": context}) == {
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        **login,
    }
    assert settings_of(login)["security_protocol"] == "SASL_PLAINTEXT"
    token = TokenFile(Path("/nowhere"))
    made = settings_of({"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token, "ssl_context": context})
    assert made["security_protocol"] == "SASL_SSL" and made["sasl_oauth_token_provider"] is token


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in [name for name in os.environ if name.startswith("SIDECAR_")]:
        monkeypatch.delenv(name)
    yield monkeypatch


def test_the_fleet_has_a_port_of_its_own(environment: pytest.MonkeyPatch) -> None:
    assert address(Settings.load(None)) == ("127.0.0.1", 9465)
    assert address(Settings.load(None, http="127.0.0.1:9464")) == ("127.0.0.1", 9464)
    assert address(Settings.load(None, http={"host": "::1"})) == ("::1", 9465)
    environment.setenv("SIDECAR_HTTP__PORT", "7000")
    assert address(Settings.load(None)) == ("127.0.0.1", 7000)


def test_other_workers_have_to_be_told_where_this_one_is() -> None:
    assert advertised(Settings.load(None), "http://127.0.0.1:9465") == "http://127.0.0.1:9465"
    named = Settings.load(None, fleet={"advertise": "https://w1.example:9465/"})
    assert advertised(named, "http://0.0.0.0:9465") == "https://w1.example:9465"
    with pytest.raises(FleetError, match=r"fleet\.advertise"):
        advertised(Settings.load(None, http={"host": "0.0.0.0"}), "http://0.0.0.0:9465")


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        ("fleet", {"session_timeout": 3, "heartbeat_interval": 2}, "more than half of fleet.session_timeout"),
        ("fleet", {"advertise": "ftp://x"}, "fleet.advertise"),
        ("fleet", {"group_id": "a/b"}, "fleet.group_id"),
        ("alerts", {"storm_clear_share": 0.6}, "a storm would end while it begins"),
        ("alerts", {"halt_after": 1000}, "alerts.halt_after 1000 is above alerts.halt_error_after 900"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings.load(None, **{section: values})
