"""A task's sessions on the snapshot topic: written in rounds, read back whole.

Partition n of the topic belongs to task n. A round is the sessions that changed since the last one, each with the
offsets the task stands at, a tombstone for each that was dropped, and last the marker with the same offsets.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Raw, Struct

from sidecar.engine.state import Frozen
from sidecar.observe.logs import get_logger
from sidecar.tail.clients import close_consumer, open_consumer
from sidecar.tail.envelope import (
    BASE_KEY,
    MARKER_KEY,
    Codec,
    Kept,
    Layout,
    Marker,
    layout_of,
    origin_of,
    packed,
    part_key,
    session_key,
)
from sidecar.tail.gather import Gathering, Restored, SnapshotError
from sidecar.tail.messages import MAX_MESSAGE, Message

__all__ = [
    "Kept",
    "Marker",
    "Progress",
    "Restored",
    "SnapshotError",
    "SnapshotWriter",
    "ends_of",
    "origin_of",
    "read_layout",
    "read_snapshots",
    "written_since",
]

log = get_logger(__name__)

_POLL_MS = 50
_AT_ONCE = 2000
_ASK_WITHIN = 15.0
_PARTITION_BYTES = 8 * 2**20
_OVERHEAD = 256
"""Bytes of a record besides key and state, without the positions."""
_LEAST_PART = 16
"""What a part of a state may have is at least one in so many bytes of a record: an id that leaves less is too long."""


class SnapshotWriter:
    """Make the records that a task writes to its partition of the snapshot topic.

    Every record has a higher number than the one before, so they have to be sent in the order they are made. Numbers
    of records that were never written, or were in a transaction that was aborted, are not used again.

    Args:
        topic: the snapshot topic.
        partition: the task's partition.
        origin: from `origin_of`.
        next_number: from what was restored (`Restored.next_number`, `SnapshotError.next_number`).
        limit: the most bytes that key and value of a record may have, or a broker would not take it.
        parts: from what was restored (`Restored.parts`).
        layout: how many partitions the topics have, and the partitioner; it is kept with every round.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        origin: int,
        next_number: int = 1,
        limit: int = MAX_MESSAGE,
        parts: Mapping[str, int] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._layout = layout or Layout()
        self._topic = topic
        self._partition = partition
        self._codec = Codec(origin)
        self._limit = limit
        self._unwritten: set[str] = set()
        self._parts = dict(parts or {})
        self.number = next_number
        """The number of the next record."""
        self.records = 0
        self.size = 0
        """Bytes of all keys and values made."""
        self.too_large = 0
        """How often a session's state could not be written, because of the length of its id."""

    def round(
        self,
        changed: Iterable[Frozen],
        dropped: Iterable[str],
        positions: Mapping[str, int],
        sessions: int,
        *,
        anew: bool = False,
    ) -> Iterator[Message]:
        """Yield the records of a round, the marker last.

        The task must not fold while they are taken, because they all claim the same positions.

        Args:
            changed: the sessions that changed since the last round; with `anew` all of them.
            dropped: ids of sessions that the task has forgotten.
            positions: the next offset of each input topic.
            sessions: how many sessions the task has.
            anew: declare all that was written before void; after it could not be used, it has to be.
        """
        raw = packed(positions)
        if anew:
            yield self._message(BASE_KEY, self._codec.base(self._take_number()))
        for frozen in changed:
            yield from self._session(frozen, raw)
        for session_id in dropped:
            if session_id in self._unwritten:
                self._unwritten.discard(session_id)
            else:
                yield self._message(session_key(session_id), None)
                yield from self._fewer_parts(session_id, 0)
        count = sessions - len(self._unwritten)
        yield self._message(MARKER_KEY, self._codec.marker(self._take_number(), raw, count, self._layout))

    def decided(self, sessions: Iterable[Frozen], positions: Mapping[str, int]) -> list[Message]:
        """Return the records of sessions that have to be written with the outputs of what was decided in them.

        Args:
            sessions: the sessions.
            positions: the next offset of each input topic.
        """
        raw = packed(positions)
        return [message for frozen in sessions for message in self._session(frozen, raw)]

    def _session(self, frozen: Frozen, positions: Raw) -> Iterator[Message]:
        key, state = session_key(frozen.session_id), frozen.state
        around = len(key) + len(bytes(positions)) + _OVERHEAD
        room, parts = self._limit - around, 0
        if len(state) > room >= self._limit // _LEAST_PART:
            pieces = [state[begin : begin + room] for begin in range(0, len(state), room)]
            for index, piece in enumerate(pieces):
                part = part_key(key, index)
                yield self._message(part, self._codec.part(part, self._take_number(), piece))
            state, parts = b"", len(pieces)
        elif len(state) > room:
            self.too_large += 1
            log.error(
                "a session's id is too long for the snapshot topic: after a restart the session cannot be verified",
                session=frozen.session_id[:200],
                size=around + len(state),
                limit=self._limit,
            )
            state = b""
        if room < 0:
            # Not even its id: after a restart its first positions are missing, which no checkpoint survives.
            self._unwritten.add(frozen.session_id)
            return
        value = self._codec.session(key, self._take_number(), positions, frozen, state, parts)
        yield self._message(key, value)
        yield from self._fewer_parts(frozen.session_id, parts)

    def _fewer_parts(self, session_id: str, parts: int) -> Iterator[Message]:
        """Yield tombstones for the parts that a session has no more, once its record says so."""
        before = self._parts.pop(session_id, 0)
        if parts:
            self._parts[session_id] = parts
        for index in range(parts, before):
            yield self._message(part_key(session_key(session_id), index), None)

    def _take_number(self) -> int:
        number, self.number = self.number, self.number + 1
        return number

    def _message(self, key: bytes, value: bytes | None) -> Message:
        self.records += 1
        self.size += len(key) + len(value or b"")
        return Message(self._topic, key, value, self._partition, None)


class Progress(Struct, frozen=True):
    """Say how far the reading of a snapshot partition is."""

    records: int
    size: int
    position: int
    end: int


async def read_snapshots(
    options: Mapping[str, Any],
    topic: str,
    partition: int,
    origin: int,
    *,
    stall: float = 90.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Restored:
    """Read a snapshot partition to the end it has now, and verify every record that counts.

    Whoever may still write to it has to be fenced before.

    Args:
        options: client options, from `clients.reach`.
        topic: the snapshot topic.
        partition: the task's partition.
        origin: from `origin_of`.
        stall: seconds without progress after which it is given up. A foreign transaction that is left open hides
            what comes behind it until the broker ends it, by default after a minute.
        on_progress: called after every batch.

    Raises:
        SnapshotError: the snapshots cannot be used.
        KafkaError: they could not be read.
        TimeoutError: they could not be read to the end.
    """
    began = asyncio.get_running_loop().time()
    gathering = Gathering(topic, partition, origin)
    await _read_all(options, TopicPartition(topic, partition), gathering, stall, on_progress)
    restored = gathering.result()
    log.info(
        "snapshots read",
        topic=topic,
        partition=partition,
        sessions=len(restored.sessions),
        records=restored.records,
        bytes=restored.size,
        seconds=round(asyncio.get_running_loop().time() - began, 3),
    )
    return restored


class _LastMarker:
    """Keep the last marker of a snapshot partition, and nothing else of it."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.records = 0
        self.size = 0

    def add(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        self.records += 1
        if key == MARKER_KEY:
            self.value = value


async def read_layout(
    options: Mapping[str, Any], topic: str, partition: int, *, stall: float = 90.0
) -> tuple[int, Layout] | None:
    """Read where sessions' records were when a partition was kept last; None: it never was.

    Args:
        options: client options, from `clients.reach`.
        topic: the snapshot topic.
        partition: which.
        stall: seconds without progress after which it is given up.

    Returns:
        The origin of the marker, and its layout.

    Raises:
        KafkaError: it could not be read.
        TimeoutError: it could not be read to the end.
    """
    last = _LastMarker()
    await _read_all(options, TopicPartition(topic, partition), last, stall, None)
    return layout_of(last.value) if last.value is not None else None


async def ends_of(options: Mapping[str, Any], topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Return where snapshot partitions end, with what is in transactions whose markers have not been written yet.

    Args:
        options: client options, from `clients.reach`.
        topic: the snapshot topic.
        partitions: which.

    Raises:
        KafkaError: it could not be read.
        TimeoutError: nobody answered.
    """
    consumer = await open_consumer(options, isolation_level="read_uncommitted", enable_auto_commit=False)
    try:
        async with asyncio.timeout(_ASK_WITHIN):
            ends: dict[TopicPartition, int] = await consumer.end_offsets([TopicPartition(topic, n) for n in partitions])
        return {tp.partition: end for tp, end in ends.items()}
    finally:
        await close_consumer(consumer)


async def written_since(options: Mapping[str, Any], topic: str, partition: int, offset: int) -> bool:
    """Tell whether anything was written to a snapshot partition from an offset on; transactions' markers are nothing.

    Args:
        options: client options, from `clients.reach`.
        topic: the snapshot topic.
        partition: the task's partition.
        offset: the first one that counts.

    Raises:
        KafkaError: it could not be read.
        TimeoutError: it could not be read to the end.
    """
    consumer = await open_consumer(
        options,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_wait_ms=_POLL_MS,
    )
    tp = TopicPartition(topic, partition)
    try:
        consumer.assign([tp])
        async with asyncio.timeout(_ASK_WITHIN):
            end: int = (await consumer.end_offsets([tp]))[tp]
            consumer.seek(tp, offset)
            position = offset
            while position < end:
                if (await consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=1)).get(tp):
                    return True
                position = await consumer.position(tp)
        return False
    finally:
        await close_consumer(consumer)


async def _read_all(
    options: Mapping[str, Any],
    tp: TopicPartition,
    gathering: Gathering | _LastMarker,
    stall: float,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    """Read a snapshot partition to its end, with a consumer of its own."""
    consumer = await open_consumer(
        options,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_wait_ms=_POLL_MS,
        max_partition_fetch_bytes=_PARTITION_BYTES,
    )
    try:
        await _read(consumer, tp, gathering, stall, on_progress)
    finally:
        await close_consumer(consumer)


async def _read(
    consumer: AIOKafkaConsumer,
    tp: TopicPartition,
    gathering: Gathering | _LastMarker,
    stall: float,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    clock = asyncio.get_running_loop().time
    consumer.assign([tp])
    async with asyncio.timeout(stall):
        position: int = (await consumer.beginning_offsets([tp]))[tp]
        # A leader that has just been elected may not know yet how far its log is committed: then this waits, and a
        # fetch would show too low an end. The embedded broker, however, tells too low an end here.
        end: int = (await consumer.end_offsets([tp]))[tp]
    consumer.seek(tp, position)
    asked, moved = False, clock()
    while not asked or position < end:
        fetched = await consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=_AT_ONCE)
        add = gathering.add
        for record in fetched.get(tp, ()):
            add(record.key, record.value, record.offset)
        if not asked and (high := consumer.highwater(tp)) is not None:
            asked, end = True, max(end, high)
        # Not the last record's offset: what compaction removed, and the markers of transactions, are passed over.
        before, position = position, await consumer.position(tp)
        if position != before:
            moved = clock()
            if on_progress is not None:
                on_progress(Progress(gathering.records, gathering.size, position, end))
        elif clock() - moved > stall:
            raise TimeoutError(_stalled(consumer, tp, position, end, stall))


def _stalled(consumer: AIOKafkaConsumer, tp: TopicPartition, position: int, end: int, stall: float) -> str:
    stable = consumer.last_stable_offset(tp)
    hidden = stable is not None and 0 <= stable <= position < end
    why = "an open transaction hides the rest" if hidden else "the broker sends no more"
    return f"{tp.topic}/{tp.partition}: stuck at offset {position} of {end} for {stall:g} s: {why}"
