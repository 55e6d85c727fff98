"""Publish records: JSONL from files or standard input, or whatever an iterator makes."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.structs import RecordMetadata

from sidecar.config import Settings
from sidecar.protocol.records import COMPACTIONS
from sidecar.tail.clients import STARTUP_TIMEOUT, close_producer, open_producer, reach
from sidecar.tail.errors import TailError
from sidecar.tail.homes import partition_of
from sidecar.tail.topics import create_missing

InputRole = Literal["events", "compactions"]
Outgoing = tuple[InputRole, str | bytes | None, bytes]
"""Which topic, the key, and the value."""

_COMPACTION_KINDS = frozenset(str(cls.__struct_config__.tag) for cls in COMPACTIONS)
_CHUNK = 1 << 18
_UNDER_WAY = 20_000
_LARGE = 1 << 20
_LARGEST = 1 << 30
_TICK = 0.02


class Refused(msgspec.Struct):
    """Name a line that the brokers did not take, and why."""

    file: str
    line: int
    reason: str


class Published(msgspec.Struct):
    """Count what was published."""

    records: int = 0
    """Lines that have a kind and a session."""
    others: int = 0
    """Lines that are no records; they went to the events topic as they are."""
    topics: Counter[str] = msgspec.field(default_factory=Counter)
    refused: list[Refused] = msgspec.field(default_factory=list)


class _Head(msgspec.Struct):
    kind: Any = None
    session_id: Any = None


_head = msgspec.json.Decoder(_Head).decode


def route(line: bytes) -> tuple[InputRole, str | None, bool]:
    """Tell where a line belongs.

    Args:
        line: one JSON object, or anything else.

    Returns:
        The role of its topic, its key (the session), and whether it is a record at all.
    """
    try:
        head = _head(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return "events", None, False
    session = head.session_id if type(head.session_id) is str and head.session_id else None
    if type(head.kind) is not str:
        return "events", session, False
    return "compactions" if head.kind in _COMPACTION_KINDS else "events", session, session is not None


async def emit(
    paths: Sequence[Path | str],
    settings: Settings,
    *,
    within: float = STARTUP_TIMEOUT,
    on_bytes: Callable[[int], None] | None = None,
) -> Published:
    """Publish the lines of JSONL files, each record keyed by its session; return when all are acknowledged.

    Args:
        paths: the files; `-` is standard input. Blank lines are skipped.
        settings: the settings tree.
        within: seconds in which a broker must answer.
        on_bytes: called with the number of bytes after each piece that was read, for a progress bar.

    Raises:
        TailError: no broker, a topic is missing, or the brokers stopped taking records.
        OSError: a file cannot be read.
    """
    async with Publisher(settings, within) as publisher:
        for path in paths:
            number = 0
            async for lines, size in _read(path):
                for line in lines:
                    number += 1
                    if line.isspace() or not line:
                        continue
                    role, key, known = route(line)
                    await publisher.send(role, key, line, (str(path), number))
                    if known:
                        publisher.published.records += 1
                    else:
                        publisher.published.others += 1
                if on_bytes is not None:
                    on_bytes(size)
    return publisher.published


async def publish(
    records: Iterable[Outgoing] | AsyncIterable[Outgoing],
    settings: Settings,
    *,
    rate: float | None = None,
    within: float = STARTUP_TIMEOUT,
    stop: asyncio.Event | None = None,
) -> Published:
    """Publish records from an iterator; return when all are acknowledged.

    Args:
        records: (role, key, value) each; the key is the session.
        settings: the settings tree.
        rate: records per second; None: as fast as they are taken.
        within: seconds in which a broker must answer.
        stop: ends the publishing early.

    Raises:
        TailError: no broker, a topic is missing, or the brokers stopped taking records.
    """
    loop = asyncio.get_running_loop()
    async with Publisher(settings, within) as publisher:
        begun, count = loop.time(), 0
        async for role, key, value in _each(records):
            if stop is not None and stop.is_set():
                break
            count += 1
            await publisher.send(role, key, value, ("-", count))
            publisher.published.records += 1
            if rate and (ahead := begun + count / rate - loop.time()) > _TICK:
                await asyncio.sleep(ahead)
    return publisher.published


class Publisher:
    """Send to the input topics, acknowledged by all replicas; use it as an async context manager.

    Args:
        settings: the settings tree.
        within: seconds in which a broker must answer.
    """

    def __init__(self, settings: Settings, within: float = STARTUP_TIMEOUT) -> None:
        self._settings = settings
        self._within = within
        self.published = Published()
        self._options: Mapping[str, Any] = {}
        self._names: dict[InputRole, str] = {
            "events": settings.topics.events,
            "compactions": settings.topics.compactions,
        }
        self._counts: dict[str, int] = {}
        self._producer: AIOKafkaProducer | None = None
        self._for_large: AIOKafkaProducer | None = None
        self._under_way: deque[tuple[asyncio.Future[RecordMetadata], tuple[str, int]]] = deque()

    async def __aenter__(self) -> "Publisher":
        self._options = await reach(self._settings, self._within)
        topics = await create_missing(
            self._settings, only=("events", "compactions"), party="agents", options=self._options
        )
        self._counts = {spec.name: spec.partitions for spec in (*topics.created, *topics.existing)}
        try:
            self._producer = await open_producer(self._options, linger_ms=5, max_batch_size=1 << 18)
        except KafkaError as error:
            raise TailError(f"The Kafka producer could not be opened: {error!r}.") from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self._settle(0)
        finally:
            for producer in (self._producer, self._for_large):
                if producer is not None:
                    await close_producer(producer)

    async def send(self, role: InputRole, key: str | bytes | None, value: bytes, place: tuple[str, int]) -> None:
        """Send one message; its acknowledgement is waited for later.

        Args:
            role: which topic.
            key: the session, if there is one.
            value: the message.
            place: file and line, for what is refused.

        Raises:
            TailError: the brokers stopped taking records.
        """
        topic = self._names[role]
        raw = key.encode() if isinstance(key, str) else key
        self.published.topics[topic] += 1
        if len(value) + len(raw or b"") > _LARGE - 1024:
            await self._send_large(topic, raw, value, place)
            return
        assert self._producer is not None
        # Not left to aiokafka, which knows one partitioner only, and is slow at it.
        partition = partition_of(raw, self._counts[topic], self._settings.kafka.partitioner) if raw else None
        try:
            future = await self._producer.send(topic, value, raw, partition)
        except KafkaError as error:
            raise TailError(_stopped(place, error)) from error
        self._under_way.append((future, place))
        if len(self._under_way) > _UNDER_WAY:
            await self._settle(_UNDER_WAY // 2)

    async def _send_large(self, topic: str, key: bytes | None, value: bytes, place: tuple[str, int]) -> None:
        """Send what only topics with a raised limit take, with a producer of its own.

        A batch that is refused leaves a hole in the sequence of an idempotent producer; so this one is not.
        """
        if self._for_large is None:
            self._for_large = AIOKafkaProducer(**{**self._options, "acks": "all", "max_request_size": _LARGEST})
            await self._for_large.start()
        try:
            await self._for_large.send_and_wait(topic, value, key)
        except MessageSizeTooLargeError:
            reason = f"{len(value)} bytes are more than {topic} takes (see the topic's max.message.bytes)"
            self.published.topics[topic] -= 1
            self.published.refused.append(Refused(*place, reason))
        except KafkaError as error:
            raise TailError(_stopped(place, error)) from error

    async def _settle(self, most: int) -> None:
        """Wait until no more than so many are under way."""
        while len(self._under_way) > most:
            future, place = self._under_way.popleft()
            try:
                await future
            except KafkaError as error:
                for rest, _ in self._under_way:
                    rest.cancel()
                raise TailError(_stopped(place, error)) from error


def _stopped(place: tuple[str, int], error: KafkaError) -> str:
    return f"The brokers stopped taking records at {place[0]}:{place[1]}: {error!r}."


async def _each(records: Iterable[Outgoing] | AsyncIterable[Outgoing]) -> AsyncIterator[Outgoing]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record


# --- reading --------------------------------------------------------------------------------------


async def _read(path: Path | str) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield the lines of a file as they come, some at a time, with the number of bytes they were."""
    rest: list[bytes] = []
    async for chunk in _chunks(path):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        lines = b"".join((*rest, head)).split(b"\n")
        rest = [tail] if tail else []
        yield [line.removesuffix(b"\r") for line in lines], len(chunk)
    if rest:
        yield [b"".join(rest).removesuffix(b"\r")], 0


async def _chunks(path: Path | str) -> AsyncIterator[bytes]:
    """Yield what can be read as soon as it can be; a pipe may be slow, and the event loop must not wait for it."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(4)

    def read() -> None:
        def put(item: bytes | BaseException | None) -> None:
            asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

        # The loop may have gone when a pipe says something at last.
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            try:
                with _open(path) as file:
                    while chunk := file.read1(_CHUNK):
                        put(chunk)
                put(None)
            except OSError as error:
                put(error)

    # A daemon, so that a pipe that says nothing cannot keep the process.
    threading.Thread(target=read, name="emit-reader", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item


def _open(path: Path | str) -> contextlib.AbstractContextManager[BufferedReader]:
    if str(path) == "-":
        return contextlib.nullcontext(open(sys.stdin.fileno(), "rb", closefd=False))
    return Path(path).open("rb")
