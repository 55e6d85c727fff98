"""Hear of halts: a current view of which sessions are halted, and each record as it comes."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from sidecar.client.errors import BrokerError, BrokerRefusal, Closed
from sidecar.client.halts import HaltView, OpenHalt
from sidecar.client.options import REFUSED_PAUSE
from sidecar.client.options import client_options as checked_options
from sidecar.protocol.outputs import Halt, HaltAck

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

log = logging.getLogger(__name__)

Status = Literal["starting", "current", "cut_off", "closed"]

_POLL_MS = 200
_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_PATIENCE = 30.0


class HaltListener:
    """Follow the halts topic, all of it, with a group of its own: none; made for one event loop.

    As a context manager it starts to read; `await wait_ready()` returns when everything that was there then has been
    read. It then holds the sessions that are halted, and is an iterator over the records that come after that (one
    reader at a time; what nobody takes is kept, the newest `keep` of it).

    It fails closed: a session counts as halted while the topic has not been read to its end yet, and when the view is
    older than `cut_off_after` seconds, because the brokers do not answer or the program does not let it read.

    Args:
        bootstrap_servers: `HOST:PORT,…`.
        topic: the halts topic.
        acks_topic: where `ack` writes.
        cut_off_after: seconds for which the view is believed without having been brought up to date.
        keep: how many records wait for the iterator; beyond that the oldest are dropped, and counted in `dropped`.
        look_for_partitions: seconds after which new partitions are looked for.
        client_options: what aiokafka's clients take: `security_protocol`, `ssl_context`, `sasl_…`, `client_id`, ….

    Raises:
        TypeError: an unknown option.
        ValueError: a value that makes no sense.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        topic: str = "agent.halts",
        acks_topic: str = "agent.halt_acks",
        cut_off_after: float = 30.0,
        keep: int = 10_000,
        look_for_partitions: float = 30.0,
        **client_options: Any,
    ) -> None:
        if cut_off_after < 1 or keep < 1 or look_for_partitions <= 0:
            raise ValueError("cut_off_after and keep must be at least 1, and look_for_partitions positive")
        self._options = checked_options(bootstrap_servers, client_options)
        self._topic = topic
        self._acks_topic = acks_topic
        self._cut_off_after = cut_off_after
        self._look_for_partitions = look_for_partitions
        # Without an answer for so long the connections are made anew, and from the addresses first given.
        self._stalled = max(2.0, min(10.0, cut_off_after / 2))
        self._view = HaltView()
        self._offsets: dict[int, int] = {}
        self._current_at: dict[int, float] = {}
        self._ready = asyncio.Event()
        self._refused = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._records: deque[Halt] = deque(maxlen=keep)
        self._came = asyncio.Event()
        self._producer: AIOKafkaProducer | None = None
        self._producing = asyncio.Lock()
        self.trouble: Exception | None = None
        """Why it cannot read at the moment; None: nothing is known to be wrong."""
        self.dropped = 0
        """How many records were dropped because nobody took them."""

    # --- the view -------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Return `current` if the view can be believed, else why not."""
        if self._closed:
            return "closed"
        if self._loop is None or not self._ready.is_set():
            return "starting"
        oldest = min(list(self._current_at.values()), default=-inf)  # a copy, because other threads may ask
        return "current" if self._loop.time() - oldest <= self._cut_off_after else "cut_off"

    @property
    def unreadable(self) -> int:
        """Return how many messages were no halt records."""
        return self._view.unreadable

    @property
    def view(self) -> dict[str, tuple[OpenHalt, ...]]:
        """Return the sessions that are halted as far as has been read, and their open halts.

        Whether that can be believed is said by `status`; `is_halted` looks at both. Without a halt stands a session
        whose newest record cannot be read.
        """
        return self._view.all()

    def halts(self, session_id: str) -> tuple[OpenHalt, ...]:
        """Return the open halts of a session, as far as has been read."""
        return self._view.of(session_id)

    def is_halted(self, session_id: str) -> bool:
        """Tell whether a session's irreversible actions are to be refused: it is halted, or that cannot be known."""
        return self.status != "current" or self._view.halted(session_id)

    # --- running --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Begin to read; a broker that is away, or does not let us in, is tried again in the background."""
        if self._task is not None or self._closed:
            raise Closed("A listener is started once: make another one")
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="sidecar-halts")

    async def wait_ready(self, within: float | None = None) -> None:
        """Wait until all that was on the topic at the start has been read.

        Args:
            within: seconds to wait; None: for as long as it takes.

        Raises:
            BrokerRefusal: the brokers do not let this client in: at once, and not when the time is over.
            BrokerError: it has not been in time; the message says what is known of the reason.
            Closed: the listener is not running.
        """
        if self._task is None or self._closed:
            raise Closed("The listener is not running: use it with `async with`")
        try:
            async with asyncio.timeout(within):
                await _first(self._ready, self._refused)
        except TimeoutError:
            why = f" ({self.trouble or repr(self.trouble)})" if self.trouble is not None else ""
            raise BrokerError(
                f"The topic {self._topic} has not been read to its end within {within:g} s{why}. Until it is, every"
                " session counts as halted."
            ) from None
        if self._closed:
            raise Closed("The listener was closed before it was ready")
        self._unless_refused()

    async def aclose(self) -> None:
        """End; every session counts as halted from then on."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        async with self._producing:
            await self._drop_producer()
        self._came.set()
        self._ready.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Halt:
        halt = await self.next()
        if halt is None:
            raise StopAsyncIteration
        return halt

    async def next(self, within: float | None = None) -> Halt | None:
        """Return the next record, when there is one; None: there was none in so many seconds, or it was closed.

        Args:
            within: seconds to wait; None: for as long as it takes.

        Raises:
            BrokerRefusal: the brokers do not let this client in, and never have.
            Closed: the listener was never started.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self._records:
                    if self._closed:
                        return None
                    if self._task is None:
                        raise Closed("The listener is not running: use it with `async with`")
                    self._unless_refused()
                    self._came.clear()
                    await self._came.wait()
        return self._records.popleft() if self._records else None

    async def ack(self, halt: Halt | OpenHalt, *, by: str, decision: str, within: float = 30.0) -> None:
        """State, on the topic for that, that a halt has been taken in hand; return when the broker has it.

        Args:
            halt: the record, or one of `halts`.
            by: who has.
            decision: what they decided.
            within: seconds to try.

        Raises:
            BrokerError: it could not be written.
            Closed: the listener is not running.
            TypeError: an argument of the wrong type.
        """
        from aiokafka.errors import KafkaError

        if self._task is None or self._closed:
            raise Closed("The listener is not running: use it with `async with`")
        if not isinstance(halt, Halt | OpenHalt) or not isinstance(by, str) or not isinstance(decision, str):
            raise TypeError("ack takes a Halt or an OpenHalt, and strings")
        value = msgspec.json.encode(HaltAck(halt_id=halt.halt_id, by=by, decision=decision))
        async with self._producing:
            try:
                async with asyncio.timeout(within):
                    producer = await self._open_producer(within)
                    await producer.send_and_wait(self._acks_topic, value, halt.session_id.encode())
            except (KafkaError, TimeoutError) as error:
                await self._drop_producer()
                raise BrokerError(
                    f"The acknowledgement could not be written to {self._acks_topic} within {within:g} s: {error!r}"
                ) from error

    async def _open_producer(self, within: float) -> "AIOKafkaProducer":
        from sidecar.client.brokers import close_producer, open_producer, partition_counts, reach

        if self._producer is None:
            producer = await open_producer(await reach(self._options, within))
            try:
                await partition_counts(producer.client, (self._acks_topic,), "WRITE")
            except BaseException:
                await close_producer(producer)
                raise
            self._producer = producer
        return self._producer

    async def _drop_producer(self) -> None:
        if self._producer is not None:
            from sidecar.client.brokers import close_producer

            producer, self._producer = self._producer, None
            await close_producer(producer)

    # --- reading --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Read for ever; after a failure go on where it was."""
        from aiokafka.errors import OffsetOutOfRangeError

        pause = _PAUSE
        while True:
            try:
                await self._read()
            except (OffsetOutOfRangeError, _MadeAnewError) as error:
                log.warning(
                    "%s was made anew, or records were deleted from it (%r): it is read again from its beginning",
                    *(self._topic, error),
                )
                self._ready.clear()
                self._offsets.clear()
                self._current_at.clear()
                unreadable, self._view = self._view.unreadable, HaltView()
                self._view.unreadable = unreadable
            except Exception as error:
                if type(error) is not type(self.trouble):
                    log.warning("%s: cannot read, trying again: %s", self._topic, error or repr(error))
                pause = min(2 * pause, _LONGEST_PAUSE) if self.trouble is not None else _PAUSE
                self.trouble = error
                if isinstance(error, BrokerRefusal):
                    self._refused.set()
                    self._came.set()
                    await asyncio.sleep(REFUSED_PAUSE)
                    continue
            self._refused.clear()
            await asyncio.sleep(pause)

    async def _read(self) -> None:
        """Read with one consumer until it fails."""
        from aiokafka import AIOKafkaConsumer

        from sidecar.client.brokers import close_consumer, reach

        options = await reach(self._options, 0)
        self._refused.clear()
        consumer = AIOKafkaConsumer(
            **options,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=500,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                await consumer.start()
            reading = _Reading(self, consumer)
            await reading.look_for_partitions()
            looked = asyncio.get_running_loop().time()
            while True:
                await reading.poll()
                if (now := asyncio.get_running_loop().time()) - looked > self._look_for_partitions:
                    await reading.look_for_partitions()
                    looked = now
        finally:
            await close_consumer(consumer)

    def _unless_refused(self) -> None:
        """Raise what the brokers said, where they have not let us in and nothing is known yet."""
        if self._refused.is_set() and not self._ready.is_set():
            raise BrokerRefusal(f"The topic {self._topic} cannot be read: {self.trouble}")

    def _take(self, tp: "TopicPartition", offset: int, key: bytes | None, value: bytes | None) -> None:
        halt = self._view.apply(tp.topic, tp.partition, offset, key, value)
        self._offsets[tp.partition] = offset + 1
        if halt is not None and self._ready.is_set():
            self.dropped += len(self._records) == self._records.maxlen
            self._records.append(halt)
            self._came.set()

    def _all_read(self) -> None:
        if not self._ready.is_set():
            self._view.settle()
            self._ready.set()
        if self.trouble is not None:
            log.info("%s: reading again", self._topic)
            self.trouble = None


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class _MadeAnewError(Exception):
    """Say that the topic is another one than before."""


class _Reading:
    """Read with one consumer, and see how far behind it is."""

    def __init__(self, listener: HaltListener, consumer: "AIOKafkaConsumer") -> None:
        self._listener = listener
        self._consumer = consumer
        self._tps: list[TopicPartition] = []
        self._answered: dict[TopicPartition, tuple[int | None, float]] = {}

    async def look_for_partitions(self) -> None:
        """Assign all partitions that there are: known ones where they are, others from their beginning."""
        from aiokafka import TopicPartition

        from sidecar.client.brokers import partition_counts

        listener, consumer = self._listener, self._consumer
        async with asyncio.timeout(_PATIENCE):
            counts = await partition_counts(consumer._client, (listener._topic,), "READ")
            tps = [TopicPartition(listener._topic, partition) for partition in range(counts[listener._topic])]
            if len(tps) <= len(self._tps):
                return
            if any(partition >= len(tps) for partition in listener._offsets):
                raise _MadeAnewError(f"it has {len(tps)} partitions, and had {len(listener._offsets)}")
            new = [tp for tp in tps if tp.partition not in listener._offsets]
            for tp, offset in (await consumer.beginning_offsets(new) if new else {}).items():
                listener._offsets[tp.partition] = offset
            consumer.assign(tps)
            for tp in tps:
                consumer.seek(tp, listener._offsets[tp.partition])
        now = asyncio.get_running_loop().time()
        self._tps = tps
        self._answered = dict.fromkeys(tps, (None, now))
        for tp in new:
            listener._current_at[tp.partition] = -inf  # there may be anything in it

    async def poll(self) -> None:
        """Take in what has come, and note which partitions have been read to their ends.

        Raises:
            TimeoutError: a partition's broker has not answered for long.
        """
        listener, consumer = self._listener, self._consumer
        for tp, messages in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
            for message in messages:
                listener._take(tp, message.offset, message.key, message.value)
        now = asyncio.get_running_loop().time()
        behind = False
        for tp in self._tps:
            answer = consumer.last_poll_timestamp(tp)
            if answer != self._answered[tp][0]:
                self._answered[tp] = answer, now
            since = self._answered[tp][1]
            if now - since > listener._stalled:
                raise TimeoutError(f"the broker of partition {tp.partition} has not answered for {now - since:.1f} s")
            if answer is None or await consumer.position(tp) < self._end(tp):
                behind = True
            else:
                listener._current_at[tp.partition] = since
        if not behind:
            listener._all_read()

    def _end(self, tp: "TopicPartition") -> int:
        """Return where the partition ended at the last answer, as far as transactions have been decided."""
        stable: int | None = self._consumer.last_stable_offset(tp)
        high: int = self._consumer.highwater(tp)
        return high if stable is None or stable < 0 else stable
