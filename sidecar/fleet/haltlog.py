"""The topic of halts, read to its end: which halts are open, and who has taken them in hand.

The topic is compacted by session: of a session only its last record may be left. What that record's `open_halts`
names is open, also where the record that opened it, with its reasons, is gone.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from msgspec import Struct, field

from sidecar import brokers
from sidecar.config import Settings
from sidecar.engine.status import LISTED
from sidecar.observe.logs import get_logger
from sidecar.protocol.outputs import Halt, HaltAck

log = get_logger(__name__)

_REACH = 3.0
_FETCH_WAIT_MS = 100
_SETTLE = 2.0

decode_halt = msgspec.json.Decoder(Halt).decode
decode_ack = msgspec.json.Decoder(HaltAck).decode
encode = msgspec.json.encode


class HaltLogError(Exception):
    """Say why the halts cannot be read or acknowledged, and what to do."""


class Acked(Struct, frozen=True):
    """State who has taken a halt in hand, with which decision, and when (milliseconds; the broker's time)."""

    by: str
    decision: str
    at: int


class OpenHalt(Struct, frozen=True):
    """Describe an open halt; without `halt` the record that opened it is gone, and only its id is known."""

    halt_id: str
    session_id: str
    halt: Halt | None
    ack: Acked | None = None


class HaltLog(Struct):
    """Keep what the halts and their acknowledgements come to.

    `cleared` keeps the newest cleared halts, so that whoever asks for one can be told.
    """

    sessions: dict[str, dict[str, Halt | None]] = field(default_factory=dict)
    acks: dict[str, Acked] = field(default_factory=dict)
    cleared: dict[str, Halt] = field(default_factory=dict)
    keep_cleared: int = 10_000

    def apply(self, halt: Halt) -> None:
        """Apply a record of the halts topic."""
        open_now = self.sessions.setdefault(halt.session_id, {})
        if halt.status == "halt":
            open_now[halt.halt_id] = halt
            self.cleared.pop(halt.halt_id, None)
        else:
            open_now.pop(halt.halt_id, None)
            self.acks.pop(halt.halt_id, None)
            self.cleared[halt.halt_id] = halt
            if len(self.cleared) > self.keep_cleared:
                del self.cleared[next(iter(self.cleared))]
        for halt_id in halt.open_halts:
            open_now.setdefault(halt_id, None)
        if len(halt.open_halts) < LISTED:
            named = set(halt.open_halts)
            for halt_id in [h for h in open_now if h not in named]:
                del open_now[halt_id]
                self.acks.pop(halt_id, None)
        if not open_now:
            del self.sessions[halt.session_id]

    def acknowledge(self, ack: HaltAck, at: int) -> None:
        """Apply a record of the acknowledgements topic."""
        self.acks[ack.halt_id] = Acked(ack.by, ack.decision, at)

    def open(self) -> list[OpenHalt]:
        """Return the open halts: those nobody has taken in hand first, and of these the longest open."""
        found = [
            OpenHalt(halt_id, session_id, halt, self.acks.get(halt_id))
            for session_id, halts in self.sessions.items()
            for halt_id, halt in halts.items()
        ]
        return sorted(found, key=lambda h: (h.ack is not None, _opened(h.halt), h.session_id, h.halt_id))

    def find(self, beginning: str) -> list[OpenHalt]:
        """Return the open halts whose id is, or begins with, what is given."""
        found = [halt for halt in self.open() if halt.halt_id.startswith(beginning)]
        return [halt for halt in found if halt.halt_id == beginning] or found


def _opened(halt: Halt | None) -> float:
    at = halt.detected_at if halt is not None else msgspec.UNSET
    return at.timestamp() if at is not msgspec.UNSET else 0.0


Event = Halt | HaltAck


class Reader:
    """Read both topics from their begin.

    Args:
        options: client options, from somebody who has reached a broker.
        halts: the halts topic.
        acks: the acknowledgements topic; it need not exist.
        within: seconds in which everything must have been read.
    """

    def __init__(self, options: Mapping[str, Any], halts: str, acks: str, *, within: float = 60.0) -> None:
        self.log = HaltLog()
        self._options = options
        self._halts = halts
        self._acks = acks
        self._within = within
        self._consumer = AIOKafkaConsumer(
            **options,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
        )
        self._unreadable = 0

    async def __aenter__(self) -> "Reader":
        """Start, and read up to the end that the topics have now.

        Raises:
            HaltLogError: the halts topic is missing or may not be read, or it took too long.
        """
        try:
            async with asyncio.timeout(self._within):
                await self._consumer.start()
                await self._assign()
                async for batch in self._to_the_end():
                    for _ in self._take(batch):
                        pass
        except BaseException as error:
            await self._close()
            if isinstance(error, TimeoutError):
                raise HaltLogError(
                    f"the topic {self._halts} could not be read to its end within {self._within:g} s;"
                    " check that every partition of it has a leader"
                ) from None
            if isinstance(error, TopicAuthorizationFailedError):
                raise HaltLogError(_unreadable((self._halts, self._acks))) from None
            if isinstance(error, KafkaError):
                raise HaltLogError(
                    f"the topic {self._halts} cannot be read: {error!r}; check the settings kafka.security_protocol and"
                    " those beside it"
                ) from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def follow(self) -> AsyncIterator[Event]:
        """Yield what comes in from now on; what has been yielded is in `log` already."""
        while True:
            records = await self._consumer.getmany(timeout_ms=1000)
            for event in self._take([r for batch in records.values() for r in batch]):
                yield event

    async def _assign(self) -> None:
        found = await _partitions(self._options, (self._halts, self._acks))
        if self._halts not in found:
            raise HaltLogError(
                f"there is no topic {self._halts}: the sidecar creates it when it starts (`sidecar run`), and"
                " `sidecar topics --create` does; if it has another name, set topics.halts"
            )
        partitions = [TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers]
        self._consumer.assign(partitions)
        await self._consumer.seek_to_beginning(*partitions)

    async def _to_the_end(self) -> AsyncIterator[list[Any]]:
        """Yield batches until every partition is read up to where it ended when it was first looked at.

        The end is that of what is committed: while the tail works, there is always a transaction open behind it.
        """
        ends: dict[TopicPartition, int] = {}
        left = set(self._consumer.assignment())
        moved = asyncio.get_running_loop().time()
        while left:
            records = await self._consumer.getmany(timeout_ms=_FETCH_WAIT_MS)
            now = asyncio.get_running_loop().time()
            if records:
                moved = now
                yield [r for batch in records.values() for r in batch]
            for tp in list(left):
                high, stable = self._consumer.highwater(tp), self._consumer.last_stable_offset(tp)
                if high is None:
                    continue
                known_stable = stable is not None and stable >= 0
                end = ends.setdefault(tp, min(high, stable) if known_stable else high)
                position = await self._consumer.position(tp)
                # Past the last record only markers of transactions may be left, which move no position.
                if position >= end or now - moved > _SETTLE:
                    left.discard(tp)

    def _take(self, records: Iterable[Any]) -> Iterable[Event]:
        # Acknowledgements last: one may have been read before the halt that it is about.
        for record in sorted(records, key=lambda r: r.topic == self._acks):
            if record.value is None:
                continue  # a session that was forgotten
            try:
                if record.topic == self._acks:
                    ack = decode_ack(record.value)
                    self.log.acknowledge(ack, record.timestamp)
                    yield ack
                else:
                    halt = decode_halt(record.value)
                    self.log.apply(halt)
                    yield halt
            except msgspec.MsgspecError as error:
                self._unreadable += 1
                where = f"{record.topic}/{record.partition}@{record.offset}"
                log.warning("skipped what is no halt and no acknowledgement", where=where, reason=str(error))

    async def _close(self) -> None:
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(10):
                await self._consumer.stop()


async def reach(settings: Settings) -> dict[str, Any]:
    """Wait for a moment until one of the bootstrap servers answers, and return the options for clients with those.

    Raises:
        HaltLogError: none did, or they refuse; each is named with its failure.
    """
    try:
        return await brokers.reach(settings.kafka.client_options(), _REACH, brokers.SETTINGS)
    except brokers.Unreached as error:
        raise HaltLogError(str(error)) from None


async def _partitions(options: Mapping[str, Any], topics: Iterable[str]) -> dict[str, list[int]]:
    """Return the partitions of those topics that exist."""
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        # Not `describe_topics`: its request lets brokers create what is asked for, with their own defaults.
        reply = (await admin._send_request(MetadataRequest(list(topics), False))).to_object()
    finally:
        await admin.close()
    hidden = [t["topic"] for t in reply["topics"] if for_code(t["error_code"]) is TopicAuthorizationFailedError]
    if hidden:
        raise HaltLogError(_unreadable(hidden))
    return {t["topic"]: sorted(p["partition"] for p in t["partitions"]) for t in reply["topics"] if t["partitions"]}


def _unreadable(topics: Sequence[str]) -> str:
    return f"the broker does not let us read {' and '.join(topics)}: grant the principal the ACL READ on it"


async def publish_ack(
    options: Mapping[str, Any],
    topic: str,
    session_id: str,
    ack: HaltAck,
    *,
    within: float = 30.0,
) -> None:
    """Publish an acknowledgement, keyed by the halt's session, and wait until the broker has it.

    Raises:
        HaltLogError: the broker did not take it.
    """
    client = AIOKafkaProducer(acks="all", **options)
    try:
        async with asyncio.timeout(within):
            await client.start()
            await client.send_and_wait(topic, encode(ack), key=session_id.encode())
    except TopicAuthorizationFailedError:
        raise HaltLogError(
            f"the broker does not let us write to {topic}: grant the principal the ACL WRITE on it"
        ) from None
    except (KafkaError, TimeoutError) as error:
        raise HaltLogError(
            f"the acknowledgement could not be written to {topic}: {error!r}; nothing was done"
        ) from error
    finally:
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(5):
                await client.stop()
