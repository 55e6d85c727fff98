"""Attack the kept state, and delete the log under it: what is refused is named, and made again where it can be."""

import asyncio
import contextlib
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import ConsumerRecord

from sidecar.config import Settings
from sidecar.engine.state import Frozen
from sidecar.tail import envelope
from sidecar.tail.snapshots import SnapshotWriter, origin_of, read_snapshots
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import Pair, committed, produce, read_topic
from tests.kafka.tail_support import (
    PARTITIONS,
    ids,
    judged,
    new_tail,
    process,
    running,
    send,
    settings_for,
    stream,
    until,
    until_committed,
    until_found,
)

SOUND = {"uncompacted", "verified", "stale"}
"""Statuses of sessions whose last checkpoint can be resumed from."""

Attack = Callable[[list[ConsumerRecord], Settings, int], Pair]


def with_rounds(settings: Settings, interval: float) -> Settings:
    """Return settings with another snapshot interval."""
    return settings.model_copy(update={"snapshot": settings.snapshot.model_copy(update={"interval": interval})})


def logged(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was logged since the last call."""
    return re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)


async def findings(settings: Settings) -> list[dict[str, Any]]:
    """Return the findings that a reader of committed records finds."""
    records = await read_topic(
        settings.kafka.bootstrap_servers[0], settings.topics.findings, read_committed=True, settle=0.2
    )
    return [msgspec.json.decode(record.value or b"") for record in records]


@contextlib.asynccontextmanager
async def crashing(settings: Settings) -> AsyncIterator[None]:
    """Run a tail, and end it without its last commit and its last round."""
    tail, _, _ = new_tail(settings)
    await tail.start()
    work = asyncio.create_task(tail.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.wait((work,))


async def delete_before(settings: Settings, offsets: Mapping[TopicPartition, int]) -> None:
    """Delete what stands before these offsets, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers[0])
    await admin.start()
    try:
        await admin.delete_records({tp: RecordsToDelete(offset) for tp, offset in offsets.items()})
    finally:
        await admin.close()


def _session(records: list[ConsumerRecord]) -> ConsumerRecord:
    """Return the newest record of a session."""
    return next(r for r in reversed(records) if r.value and (r.key or b"").startswith(b"s:"))


def truncated(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    record = _session(records)
    return record.key, (record.value or b"")[:-7]


def bit_flipped(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    record = _session(records)
    value = bytearray(record.value or b"")
    value[len(value) // 2] ^= 0x10
    return record.key, bytes(value)


def under_another_key(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    return b"s:somebody-else", _session(records).value


def older(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    newest = {r.key: r.offset for r in records if r.value and (r.key or b"").startswith(b"s:")}
    record = next(r for r in records if r.value and newest.get(r.key, 0) > r.offset)
    return record.key, record.value


def older_marker(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    record = next(r for r in records if r.key == b"marker")
    return record.key, record.value


def _written(origin: int, number: int) -> Pair:
    writer = SnapshotWriter("any", 0, origin, number)
    (message,) = writer.decided([Frozen("x", "verified", 0, False, 0.0, b"x")], {})
    return message.key, message.value


def foreign(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    return _written(origin_of("another-group", settings.topics.inputs, PARTITIONS, number), 10**6)


def of_another_task(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    task = (number + 1) % PARTITIONS
    return _written(origin_of(settings.tail.group_id, settings.topics.inputs, PARTITIONS, task), 10**6)


def another_version(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    record = _session(records)
    body = msgspec.msgpack.decode((record.value or b"")[8:])
    body[0] += 1
    return record.key, envelope._sealed(record.key or b"", msgspec.msgpack.encode(body))


def no_snapshot(records: list[ConsumerRecord], settings: Settings, number: int) -> Pair:
    return b"hello", b"world"


ATTACKS: dict[Attack, str] = {
    truncated: "its checksum does not match",
    bit_flipped: "its checksum does not match",
    under_another_key: "its checksum does not match",
    older: "its number is",
    older_marker: "its number is",
    foreign: "it is foreign",
    of_another_task: "it is foreign",
    another_version: f"it has version {envelope.VERSION + 1}",
    no_snapshot: "its key is none that a snapshot has",
}


async def attack(settings: Settings, how: Attack) -> dict[int, int]:
    """Attack every partition of the snapshot topic; return the offsets of the bad records."""
    bootstrap, topic = settings.kafka.bootstrap_servers[0], settings.topics.snapshots
    records = await read_topic(bootstrap, topic, read_committed=True)
    offsets = {}
    for number in range(PARTITIONS):
        pair = how([r for r in records if r.partition == number], settings, number)
        (written,) = await produce(bootstrap, topic, [pair], partition=number)
        offsets[number] = written.offset
    return offsets


@pytest.mark.parametrize("how", ATTACKS, ids=lambda how: how.__name__)
async def test_a_bad_record_is_named_and_the_state_is_made_again_from_the_log(
    kafka: KafkaBroker, unique: str, capsys: pytest.CaptureFixture[str], how: Attack
) -> None:
    settings, lines = with_rounds(settings_for(kafka.bootstrap, unique), 0.1), stream(9)
    expected = [finding.finding_id for finding in judged(lines).findings]
    third = len(lines) // 3
    for begin in (0, third):
        async with running(settings):
            await send(settings, lines[begin : begin + third])
            await until_committed(settings)
    said = ids(await findings(settings))
    offsets = await attack(settings, how)
    logged(capsys)
    async with running(settings):
        await send(settings, lines[2 * third :])
        await until_found(settings, expected)
        await until_committed(settings)
    log = logged(capsys)
    for number, offset in offsets.items():
        assert f"{settings.topics.snapshots}/{number}@{offset} cannot be used: {ATTACKS[how]}" in log
    assert Counter(ids(await findings(settings))) == Counter(expected)
    assert set(said) < set(expected)
    # What was refused does not count any more: the next start is like any other.
    async with running(settings) as (tail, _, _):
        await until(lambda: tail.loop and len(tail.loop.tasks) == PARTITIONS and all(t.placed for t in tail.loop.tasks))
    assert "cannot be used" not in logged(capsys)
    assert Counter(ids(await findings(settings))) == Counter(expected)


async def test_what_a_clock_decided_right_after_a_refusal_is_kept(kafka: KafkaBroker, unique: str) -> None:
    settings = with_rounds(settings_for(kafka.bootstrap, unique, max_wait=0.3), 3600)
    async with running(settings):
        await send(settings, stream(1))
        await until_committed(settings)
    before = ids(await findings(settings))
    await attack(settings, truncated)
    gap = [json.dumps({"kind": "message", "session_id": f"gap-{n}", "seq": 2}).encode() for n in range(12)]
    async with crashing(settings):
        await send(settings, gap)
        await until(lambda: _count(settings, len(before) + len(gap)))
    async with running(settings):
        await asyncio.sleep(1.5)
    assert Counter(ids(await findings(settings))).most_common(1)[0][1] == 1


async def _said_once(settings: Settings) -> Counter[str]:
    """Return the ids of all findings, and see that each is there once."""
    found = await findings(settings)
    count = Counter(ids(found))
    assert [(f["rule"], f["session_id"], f["evidence"]) for f in found if count[f["finding_id"]] > 1] == []
    return count


async def _count(settings: Settings, count: int) -> bool:
    return len(await findings(settings)) >= count


async def _lost(settings: Settings) -> dict[str, str]:
    """Return what each session is said to have lost."""
    return {
        f["session_id"]: f["evidence"]["reasons"]["records_lost"]
        for f in await findings(settings)
        if "records_lost" in (f["evidence"].get("reasons") or {})
    }


def _unauthorized(session: str) -> bytes:
    return json.dumps(
        {"kind": "action", "session_id": session, "seq": 1, "action_id": "a", "irreversible": True}
    ).encode()


async def _goes_on(settings: Settings) -> None:
    """See that sessions that begin now are judged as ever."""
    sessions = {f"new-{n}" for n in range(12)}
    await send(settings, [_unauthorized(session) for session in sorted(sessions)])

    async def there() -> bool:
        found = await findings(settings)
        return {f["session_id"] for f in found if f["rule"] == "action_unauthorized"} >= sessions

    await until(there)


async def _kept_statuses(settings: Settings) -> dict[str, str]:
    statuses = {}
    for number in range(PARTITIONS):
        origin = origin_of(settings.tail.group_id, settings.topics.inputs, PARTITIONS, number)
        options = {"bootstrap_servers": settings.kafka.bootstrap_servers[0]}
        restored = await read_snapshots(options, settings.topics.snapshots, number, origin)
        statuses.update({kept.frozen.session_id: kept.frozen.status for kept in restored.sessions})
    return statuses


async def _middles(settings: Settings, begin: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return, for each partition of the events, an offset between `begin` and what is committed."""
    bootstrap, topic = settings.kafka.bootstrap_servers[0], settings.topics.events
    done = await committed(bootstrap, settings.tail.group_id, topic)
    tps = {number: TopicPartition(topic, number) for number in done}
    middles = {tp: (begin.get(tp, 0) + (done[n] or 0) + 1) // 2 for n, tp in tps.items()}
    assert all(begin.get(tp, 0) < middles[tp] < (done[tp.partition] or 0) for tp in middles)
    return middles


async def test_without_the_logs_beginning_what_is_lost_is_named_and_not_verified(
    kafka: KafkaBroker, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = with_rounds(settings_for(kafka.bootstrap, unique), 0.2)
    async with running(settings):
        await send(settings, stream(9))
        await until_committed(settings)
    said = Counter(ids(await findings(settings)))
    middles = await _middles(settings, {})
    await delete_before(settings, middles)
    await attack(settings, truncated)
    logged(capsys)
    async with crashing(settings):
        await until(lambda: _lost(settings))
        await _goes_on(settings)
        await until_committed(settings)
    log = logged(capsys)
    for tp, first in middles.items():
        assert f"lost='0 to {first - 1}' partition={tp.partition} topic={tp.topic}" in log
    lost = await _lost(settings)
    ranges = {f"{tp.topic}/{tp.partition}: 0 to {first - 1}" for tp, first in middles.items()}
    assert set(lost.values()) <= ranges and lost
    # The next start has the state again, and does not say it twice.
    async with running(settings):
        await send(settings, [_unauthorized("last")])
        await until_committed(settings)
    assert "records were deleted" not in logged(capsys)
    found = await _said_once(settings)
    assert found > said
    statuses = await _kept_statuses(settings)
    assert not {statuses[session] for session in lost} & SOUND


async def test_offsets_deleted_between_the_marker_and_the_committed_ones(
    kafka: KafkaBroker, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, lines = with_rounds(settings_for(kafka.bootstrap, unique), 3600), stream(12)
    half = len(lines) // 2
    async with running(settings):
        await send(settings, lines[:half])
        await until_committed(settings)
    done = await committed(kafka.bootstrap, settings.tail.group_id, settings.topics.events)
    markers = {TopicPartition(settings.topics.events, n): offset or 0 for n, offset in done.items()}
    known = set(await _kept_statuses(settings))
    async with crashing(settings):
        await send(settings, lines[half:])
        await until_committed(settings)
    said = Counter(ids(await findings(settings)))
    middles = await _middles(settings, markers)
    await delete_before(settings, middles)
    logged(capsys)
    # Twice in a row: what the first one says of the loss is committed, and kept with it.
    async with crashing(settings):
        await until(lambda: _lost(settings))
        await until(lambda: _every_partition_lost(settings, middles, markers))
    first_time = await findings(settings)
    log = logged(capsys)
    for tp, first in middles.items():
        assert f"lost='{markers[tp]} to {first - 1}' partition={tp.partition} topic={tp.topic}" in log
    async with running(settings):
        await _goes_on(settings)
        await until_committed(settings)
    assert "records were deleted" not in logged(capsys)
    # That a checkpoint had been called unverified in the range that is lost cannot be known: it is said again.
    again = Counter(ids(first_time)) - said
    told = {f["finding_id"] for f in first_time if "records_lost" in (f["evidence"].get("reasons") or {})}
    assert again.keys() <= told and max(again.values()) == 1
    later = [f for f in await findings(settings) if not f["session_id"].startswith("new-")]
    assert Counter(ids(later)) == Counter(ids(first_time))
    statuses = await _kept_statuses(settings)
    assert known <= statuses.keys()
    assert not {statuses[session] for session in await _lost(settings)} & SOUND


async def _every_partition_lost(
    settings: Settings, middles: Mapping[TopicPartition, int], markers: Mapping[TopicPartition, int]
) -> bool:
    ranges = {f"{tp.topic}/{tp.partition}: {markers[tp]} to {middles[tp] - 1}" for tp in middles}
    return set((await _lost(settings)).values()) == ranges


async def test_offsets_deleted_under_a_running_tail(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique, group_instance_id="the-one"), stream(4)
    async with process(settings, tmp_path, "tail") as child:
        log = tmp_path / "tail.log"
        await send(settings, lines)
        await until(lambda: "partitions assigned" in log.read_text(), within=20)
        await until_committed(settings)
        said = Counter(ids(await findings(settings)))
        child.send_signal(signal.SIGSTOP)
        ends: dict[TopicPartition, int] = {}
        for turn in range(2):
            # The first lot is the answer to the fetch that is under way; the second one is never read.
            await send(settings, [_unauthorized(f"lost-{turn}-{n}") for n in range(24)])
            for record in await read_topic(kafka.bootstrap, settings.topics.events):
                tp = TopicPartition(record.topic, record.partition)
                ends[tp] = max(ends.get(tp, 0), record.offset + 1)
            if turn:
                await delete_before(settings, ends)
        child.send_signal(signal.SIGCONT)
        await until(lambda: log.read_text().count("records were deleted before they were read") == PARTITIONS)
        await until(lambda: _lost(settings))
        await _goes_on(settings)
        await until_committed(settings)
        child.send_signal(signal.SIGKILL)
        await child.wait()
    async with running(settings):
        await send(settings, [_unauthorized("last")])
        await until_committed(settings)
    found = await _said_once(settings)
    assert found > said
    statuses = await _kept_statuses(settings)
    assert not {statuses[session] for session in await _lost(settings)} & SOUND
    assert len({what.partition(":")[0] for what in (await _lost(settings)).values()}) == PARTITIONS


async def test_a_group_that_began_in_the_middle_of_a_log_has_lost_nothing(
    kafka: KafkaBroker, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, lines = with_rounds(settings_for(kafka.bootstrap, unique), 3600), stream(4)
    # Not the sidecar's group yet: what is there, and gone, before it begins is none of its business.
    async with running(settings.model_copy(update={"tail": settings.tail.model_copy(update={"group_id": "other"})})):
        pass
    await send(settings, stream(1))
    ends = {}
    for topic in settings.topics.inputs:
        for record in await read_topic(kafka.bootstrap, topic):
            ends[TopicPartition(topic, record.partition)] = record.offset + 1
    await delete_before(settings, ends)
    await send(settings, [line.replace(b'"session_id": "', b'"session_id": "own-') for line in lines])
    expected = {
        f.finding_id
        for f in judged(line.replace(b'"session_id": "', b'"session_id": "own-') for line in lines).findings
    }
    async with crashing(settings):
        await until_found(settings, expected)
        await until_committed(settings)
    async with running(settings):
        await _goes_on(settings)
    assert "records were deleted" not in logged(capsys)
    found = Counter(f["finding_id"] for f in await findings(settings) if not f["session_id"].startswith("new-"))
    assert found == Counter(expected)
