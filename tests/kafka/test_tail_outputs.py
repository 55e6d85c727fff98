"""The outputs without a broker: what is sent again after a failure, and what is made smaller."""

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
)

from sidecar.protocol.outputs import DeadLetter, Finding, Halt, Source, Subject
from sidecar.tail import outputs as outputs_module
from sidecar.tail.messages import (
    MAX_MESSAGE,
    Message,
    findings_as_messages,
    halts_as_messages,
    letters_as_messages,
    shrunk,
)
from sidecar.tail.outputs import AtLeastOnce

NOW = datetime(2026, 11, 7, tzinfo=UTC)


class Producer:
    """Act as a producer: fail where told, else note what was delivered."""

    opened = 0

    def __init__(self, delivered: list[bytes], fail: Callable[[bytes], BaseException | None], limit: int) -> None:
        self._delivered, self._fail, self._limit = delivered, fail, limit
        self._message_accumulator = self
        self._batches: dict[TopicPartition, list[Any]] = {}
        self._pending_batches: set[Any] = set()
        Producer.opened += 1

    async def send(self, topic: str, value: bytes, key: bytes | None, partition: int | None) -> asyncio.Future[Any]:
        if len(value) > self._limit:
            raise MessageSizeTooLargeError
        future = asyncio.get_running_loop().create_future()
        if error := self._fail(value):
            if isinstance(error, KafkaTimeoutError):
                raise error
            future.set_exception(error)
        else:
            self._delivered.append(value)
            future.set_result(None)
        return future

    async def flush(self) -> None: ...

    async def stop(self) -> None: ...

    def fail_all(self, error: BaseException) -> None: ...


class World:
    """Hold outputs over producers that fail in turn."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.delivered: list[bytes] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.failures: dict[bytes, list[BaseException]] = {}
        self.always: Callable[[bytes], BaseException | None] = lambda value: None

        async def open_producer() -> Any:
            return Producer(self.delivered, self._failure, limit)

        async def commit(offsets: Any) -> None:
            self.commits.append(dict(offsets))

        self.outputs = AtLeastOnce(open_producer, commit)

    def _failure(self, value: bytes) -> BaseException | None:
        return self.failures[value].pop(0) if self.failures.get(value) else self.always(value)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "_FIRST_BACKOFF", 0.001)


def message(value: bytes) -> Message:
    return Message("halts", b"s", value, 0, halt())


def halt(**more: Any) -> Halt:
    fields: dict[str, Any] = {
        "halt_id": "h",
        "session_id": "s",
        "position": 1,
        "status": "halt",
        "checkpoint_id": None,
        "reason": ["log_conflict"],
        "finding_ids": ["f"],
        "open_halts": ["h"],
    }
    return Halt(**{**fields, **more})


def finding(evidence: dict[str, Any]) -> Finding:
    return Finding(
        finding_id="f",
        rule="log_gap",
        severity="error",
        disposition="unverified",
        session_id="s",
        subject=Subject("session", "s"),
        position=1,
        evidence=evidence,
    )


async def test_offsets_are_committed_after_everything_was_acknowledged() -> None:
    world = World()
    await world.outputs.open(0)
    await world.outputs.send(0, [message(b"1"), message(b"2")])
    offsets = {0: {TopicPartition("events", 0): 7}, 1: {TopicPartition("events", 1): 9}}
    await world.outputs.commit(offsets)
    assert world.delivered == [b"1", b"2"]
    assert world.commits == [{TopicPartition("events", 0): 7, TopicPartition("events", 1): 9}]
    await world.outputs.commit({})
    assert len(world.commits) == 1


@pytest.mark.parametrize("error", [KafkaConnectionError(), NotLeaderForPartitionError(), KafkaTimeoutError()])
async def test_all_is_sent_again_from_the_first_failure_on(error: KafkaError) -> None:
    # The `clear` behind a `halt` that failed must not stand before it.
    world = World()
    world.failures = {b"halt": [error, error]}
    before = Producer.opened
    await world.outputs.send(0, [message(b"first"), message(b"halt"), message(b"clear")])
    await world.outputs.commit({0: {TopicPartition("events", 0): 3}})
    assert world.delivered[0] == b"first" and world.delivered.count(b"first") == 1
    assert world.delivered[-2:] == [b"halt", b"clear"]
    assert world.commits == [{TopicPartition("events", 0): 3}]
    assert Producer.opened > before + 1, "a refused batch spoils the sequence of an idempotent producer"
    assert world.outputs.waiting_since() is None


async def test_what_a_broker_finds_too_large_is_made_smaller_and_the_rest_goes_on() -> None:
    world = World()
    world.always = lambda value: MessageSizeTooLargeError() if len(value) > 2000 else None
    letter = DeadLetter(
        reason="not JSON", source=Source("events", 0, 1), session_id=None, seq=None, original=b"x" * 50_000
    )
    await world.outputs.send(0, [*letters_as_messages([letter], "dlq", 0, NOW), message(b"after")])
    await asyncio.wait_for(world.outputs.commit({0: {TopicPartition("events", 0): 3}}), 5)
    assert world.delivered[-1] == b"after"
    kept = msgspec.json.decode(next(value for value in world.delivered if value != b"after"))
    assert "50000 bytes" in kept["reason"] and 0 < len(base64.b64decode(kept["original"])) < 2000


async def test_what_the_producer_finds_too_large_is_made_smaller() -> None:
    world = World(limit=5000)
    letter = DeadLetter(
        reason="not JSON", source=Source("events", 0, 1), session_id="s", seq=2, original=b"x" * 50_000, key=b"k"
    )
    await world.outputs.send(0, letters_as_messages([letter], "dlq", 0, NOW))
    await asyncio.wait_for(world.outputs.commit({}), 5)
    (value,) = world.delivered
    kept = msgspec.json.decode(value)
    assert len(value) <= 5000 and kept["seq"] == 2 and kept["source"]["offset"] == 1


def test_a_dead_letter_just_fits_after_it_was_shortened() -> None:
    letter = DeadLetter(
        reason="not JSON", source=Source("events", 0, 1), session_id=None, seq=None, original=b"\xff" * 2_000_000
    )
    (made,) = letters_as_messages([letter], "dlq", 0, NOW)
    assert len(made.value) > MAX_MESSAGE
    shrunk(made)
    assert MAX_MESSAGE * 0.99 < len(made.value) <= MAX_MESSAGE
    assert letter.original == b"\xff" * 2_000_000, "the original is left alone"


def test_a_large_finding_keeps_its_witness_and_a_large_halt_what_is_open() -> None:
    (made,) = findings_as_messages([finding({"witness": [3, 5], "edges": ["x" * 100] * 20_000})], "findings", 0, NOW)
    shrunk(made)
    evidence = msgspec.json.decode(made.value)["evidence"]
    assert evidence["witness"] == [3, 5] and "too large" in evidence["truncated"]
    (made,) = halts_as_messages([halt(open_halts=[f"h{i:040}" for i in range(50_000)])], "halts", 0, NOW)
    shrunk(made)
    short = msgspec.json.decode(made.value)
    assert len(made.value) < MAX_MESSAGE and short["open_halts"][-1] == f"h{49_999:040}"


def test_ids_of_any_length_are_cut_at_last() -> None:
    long = "s" * 2_000_000
    made = [*findings_as_messages([msgspec.structs.replace(finding({}), session_id=long, tenant=long)], "f", 0, NOW)]
    made += halts_as_messages([halt(session_id=long, checkpoint_id=long)], "halts", 0, NOW)
    for one in made:
        shrunk(one)
        assert one.key is not None and len(one.value) + len(one.key) < MAX_MESSAGE
        while len(one.value) > 1500:
            shrunk(one)


async def test_nothing_more_is_written_for_tasks_that_were_lost() -> None:
    world = World()
    world.always = lambda value: KafkaConnectionError()
    await world.outputs.send(0, [message(b"late")])
    await world.outputs.discard([0])
    world.always = lambda value: None
    await world.outputs.commit({})
    assert world.delivered == []
    await world.outputs.send(1, [message(b"new")])
    await world.outputs.commit({})
    assert world.delivered == [b"new"]


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    world = World()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Slow(Producer):
        async def send(self, *_: Any) -> asyncio.Future[Any]:
            return future

    world.outputs._producer = Slow([], lambda value: None, 1 << 20)  # type: ignore[assignment]
    await world.outputs.send(0, [message(b"slow")])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.outputs.commit({0: {TopicPartition("events", 0): 1}}), 0.05)
    assert not future.cancelled() and world.commits == []
    assert world.outputs.waiting_since() is not None
    future.set_result(None)
    await world.outputs.commit({0: {TopicPartition("events", 0): 1}})
    assert world.commits == [{TopicPartition("events", 0): 1}]
