"""Write the log of one session: number records, keep them safe, publish them in order."""

import asyncio
import contextlib
import logging
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from sidecar.client.compose import SEQ_ROOM, Role, common_fields, session_bytes
from sidecar.client.errors import Backlog, BrokerRefusal, Closed, EmitterError, Unacknowledged
from sidecar.client.journal import Entry, Journal, journal_path
from sidecar.client.kinds import Kinds, T_co
from sidecar.client.options import REFUSED_PAUSE
from sidecar.client.sinks import Sink
from sidecar.client.worker import Worker
from sidecar.protocol.records import MAX_INT

log = logging.getLogger(__name__)

Recover = Literal["trust", "scan"]

_GROUP = 10_000
_GROUP_BYTES = 4 << 20
_DELIVERY = 5_000
_DELIVERY_BYTES = 2 << 20
_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Options(NamedTuple):
    """Hold what an emitter is made from, besides its sink and its session."""

    journal: Path
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
    start_at: int | None = None
    recover: Recover = "trust"
    start_timeout: float = 30.0
    emit_timeout: float = 30.0
    flush_timeout: float = 30.0
    max_unacknowledged: int = 100_000
    max_unacknowledged_bytes: int = 256 << 20


class Made(Kinds[T_co]):
    """Make an emitter for a place where its records go."""

    @abstractmethod
    def __init__(self, sink: Sink, session_id: str, options: Options) -> None: ...

    @classmethod
    def kafka(
        cls,
        bootstrap_servers: str | Iterable[str],
        session_id: str,
        *,
        journal: str | Path,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        events_topic: str = "agent.events",
        compactions_topic: str = "agent.compactions",
        compression_type: str | None = None,
        start_at: int | None = None,
        recover: Recover = "trust",
        start_timeout: float = 30.0,
        emit_timeout: float = 30.0,
        flush_timeout: float = 30.0,
        max_unacknowledged: int = 100_000,
        max_unacknowledged_bytes: int = 256 << 20,
        **client_options: Any,
    ) -> Self:
        """Return an emitter that publishes to Kafka, keyed by the session; it starts as a context manager.

        Args:
            bootstrap_servers: `HOST:PORT,…`.
            session_id: the session; nobody else may write to its log.
            journal: a folder for the journals of sessions, or this one's file (`….journal`), on a local file system.
                Lost with records of the session published, it is to be said where to go on: see `recover`.
            tenant: whose session it is, on every record.
            agent: which agent writes, on every record.
            model: which model is at work, on every record.
            events_topic: where log events go.
            compactions_topic: where compaction records go; with as many partitions, or the same topic.
            compression_type: `gzip`, `snappy`, `lz4`, `zstd` or None.
            start_at: the first `seq` of a new journal, for a log that begins elsewhere.
            recover: what a new journal means. `trust`: a new session, which begins at 1. `scan`: the session's
                partition of both topics is read first, and the log goes on behind the newest record found there.
            start_timeout: seconds to wait for a broker at the start; 0: start without, and publish when there is one.
            emit_timeout: seconds that a call waits for room when too much is unacknowledged; then it raises `Backlog`.
            flush_timeout: seconds that `flush` and the end wait for acknowledgements.
            max_unacknowledged: how many records may wait for acknowledgement.
            max_unacknowledged_bytes: how many bytes of them.
            client_options: what aiokafka's clients take: `security_protocol`, `ssl_context`, `sasl_…`, `client_id`, ….

        Raises:
            TypeError: an argument of the wrong type, or an unknown one.
            ValueError: an argument that makes no sense.
        """
        from sidecar.client.sinks.kafka import KafkaSink  # costs the import of aiokafka

        sink = KafkaSink(
            bootstrap_servers,
            events_topic=events_topic,
            compactions_topic=compactions_topic,
            compression_type=compression_type,
            options=client_options,
        )
        return cls(
            sink,
            session_id,
            Options(
                journal=Path(journal),
                tenant=tenant,
                agent=agent,
                model=model,
                start_at=start_at,
                recover=recover,
                start_timeout=start_timeout,
                emit_timeout=emit_timeout,
                flush_timeout=flush_timeout,
                max_unacknowledged=max_unacknowledged,
                max_unacknowledged_bytes=max_unacknowledged_bytes,
            ),
        )

    @classmethod
    def file(
        cls,
        path: str | Path,
        session_id: str,
        *,
        journal: str | Path | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        start_at: int | None = None,
        recover: Recover = "trust",
        emit_timeout: float = 30.0,
        flush_timeout: float = 30.0,
        max_unacknowledged: int = 100_000,
        max_unacknowledged_bytes: int = 256 << 20,
    ) -> Self:
        """Return an emitter that appends to a JSONL file, for `sidecar watch`; it starts as a context manager.

        Args:
            path: the file; several emitters may write to it, and nobody else.
            session_id: the session; nobody else may write to its log.
            journal: as with Kafka; by default a hidden folder beside the file.
            tenant: whose session it is, on every record.
            agent: which agent writes, on every record.
            model: which model is at work, on every record.
            start_at: the first `seq` of a new journal, for a log that begins elsewhere.
            recover: what a new journal means: a new session (`trust`), or that the file is read for the newest record
                (`scan`).
            emit_timeout: seconds that a call waits for room when too much is not written, before it raises `Backlog`.
            flush_timeout: seconds that `flush` and the end wait until all is written.
            max_unacknowledged: how many records may wait to be written.
            max_unacknowledged_bytes: how many bytes of them.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: an argument that makes no sense.
        """
        from sidecar.client.sinks.file import FileSink

        sink = FileSink(path)
        return cls(
            sink,
            session_id,
            Options(
                journal=sink.path.with_name(f".{sink.path.name}.journals") if journal is None else Path(journal),
                tenant=tenant,
                agent=agent,
                model=model,
                start_at=start_at,
                recover=recover,
                emit_timeout=emit_timeout,
                flush_timeout=flush_timeout,
                max_unacknowledged=max_unacknowledged,
                max_unacknowledged_bytes=max_unacknowledged_bytes,
            ),
        )


class _Call:
    """Be one call whose record is not in the journal yet."""

    __slots__ = ("body", "deadline", "outcome", "role")

    def __init__(self, role: Role, body: bytes, outcome: "asyncio.Future[int]", deadline: float) -> None:
        self.role = role
        self.body = body
        self.outcome = outcome
        self.deadline = deadline


class Emitter(Made[Coroutine[Any, Any, int]]):
    """Write the log of one session, from one event loop; made by `Emitter.kafka` or `Emitter.file`.

    `await log.action(…)` returns the record's `seq` when it is durable in the journal; many calls at once share an
    fsync. What is in the journal is published in the background, in order, and again at the next start if nobody
    acknowledged it. So a crash gives no `seq` out twice and leaves none out.

    A call that is cancelled, or that raises `JournalUnwritable` after an fsync has failed, may have been logged; every
    other error means that it was not.
    """

    def __init__(self, sink: Sink, session_id: str, options: Options) -> None:
        session_bytes(session_id)
        self._defaults = common_fields(options.tenant, options.agent, options.model)
        _check(options)
        self._session_id = session_id
        self._sink = sink
        self._options = options
        self._path = journal_path(options.journal, session_id)
        self._worker = Worker("sidecar-journal")
        self._journal: Journal | None = None
        self._closing = False
        self._process = 0
        self._position = 0
        self._calls: deque[_Call] = deque()
        self._outbox: deque[Entry] = deque()
        self._outbox_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._called = asyncio.Event()
        self._room = asyncio.Event()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Condition()
        self._trouble: Exception | None = None

    @property
    def session_id(self) -> str:
        """Return the session."""
        return self._session_id

    @property
    def position(self) -> int:
        """Return the last `seq` that was given out, by this emitter or one before it; 0: none was."""
        return self._position

    @property
    def unacknowledged(self) -> int:
        """Return how many records are in the journal and not acknowledged."""
        return len(self._outbox)

    @property
    def trouble(self) -> Exception | None:
        """Return why nothing can be published at the moment; None: nothing is known to be wrong."""
        return self._trouble

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Unacknowledged as left:
            if error is None:
                raise
            log.error("%s", left)  # what went wrong first is what the caller has to hear

    async def start(self) -> None:
        """Open the journal, connect, and publish what the last run left.

        Raises:
            JournalError: the journal cannot be used: in use, damaged, somebody else's, unwritable.
            BrokerError: no broker, or topics that are not fit; `BrokerRefusal`, at once: they do not let us in.
            OSError: the same of a file.
            ValueError: the journal began elsewhere than at `start_at`.
        """
        if self._journal is not None or self._closing:
            raise EmitterError("An emitter is started once: make another one")
        within = self._options.start_timeout
        try:
            start_at = self._options.start_at
            if self._options.recover == "scan" and not self._path.exists():
                await self._sink.open(self._session_id, within)
                start_at = await self._sink.newest() + 1
            opening = self._worker.submit(Journal.open, self._path, self._session_id, start_at)
            try:
                journal, left = await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_at_once)
                raise
            self._journal = journal
            if within:
                await self._sink.open(self._session_id, within)
        except BaseException:
            self._closing = True
            await self._let_go()
            raise
        self._process = os.getpid()
        self._position = journal.position
        if left:
            log.info("%s: %d records of the last run were not acknowledged, and are published", self._path, len(left))
            self._outbox += left
            self._outbox_bytes = sum(len(entry.raw) for entry in left)
            self._filled.set()
        self._tasks = [
            asyncio.create_task(self._commit(), name="sidecar-commit"),
            asyncio.create_task(self._publish(), name="sidecar-publish"),
        ]

    async def flush(self, within: float | None = None) -> None:
        """Wait until everything that was logged before is acknowledged.

        Args:
            within: seconds to wait; None: `flush_timeout`.

        Raises:
            Unacknowledged: it was not; the message says what is known of the reason. It stays in the journal, and goes
                on being published.
            Closed: the emitter is not running.
        """
        self._running()
        seconds = self._options.flush_timeout if within is None else within
        try:
            async with asyncio.timeout(seconds):
                await self._settled()
                await self._acknowledged(self._position)
        except TimeoutError:
            if self._calls or self._outbox:
                raise await self._left(f"within {seconds:g} s") from None

    async def aclose(self, within: float | None = None) -> None:
        """Take no more calls, flush, and close; does nothing the second time.

        Args:
            within: seconds to wait for acknowledgements; None: `flush_timeout`.

        Raises:
            Unacknowledged: not everything was acknowledged in time; it is in the journal, and the next start publishes
                it.
        """
        running, self._closing = bool(self._tasks) and not self._closing, True
        if not running:
            return
        seconds = self._options.flush_timeout if within is None else within
        try:
            async with asyncio.timeout(seconds):
                await self._settled()
                await self._acknowledged(self._position)
        except TimeoutError:
            if self._calls or self._outbox:
                raise await self._left(f"within {seconds:g} s, before the emitter was closed") from None
        finally:
            await self._let_go()

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _append(self, role: Role, body: bytes) -> int:
        self._running()
        if self._closing:
            raise Closed("The emitter has been closed: nothing was logged")
        if len(body) + SEQ_ROOM > self._sink.limit:
            raise ValueError(
                f"the record has {len(body)} bytes, and at most {self._sink.limit - SEQ_ROOM} are taken"
                " (see max.message.bytes of the topics)"
            )
        loop = asyncio.get_running_loop()
        call = _Call(role, body, loop.create_future(), loop.time() + self._options.emit_timeout)
        self._calls.append(call)
        self._called.set()
        return await call.outcome

    async def _commit(self) -> None:
        """Put what was called into the journal, everything that has come in the meantime at once."""
        assert self._journal is not None
        while True:
            await self._called.wait()
            group = self._group()
            if not group:
                await self._wait_for_room()
                continue
            try:
                entries = await self._worker.submit(self._journal.append, [(call.role, call.body) for call in group])
            except asyncio.CancelledError:
                _fail(group, Closed("The emitter was closed while this was written: the next start shows if it was"))
                raise
            except Exception as error:
                _fail(group, error)
                continue
            self._outbox += entries
            self._outbox_bytes += sum(len(entry.raw) for entry in entries)
            self._position = entries[-1].seq
            self._filled.set()
            for call, entry in zip(group, entries, strict=True):
                if not call.outcome.done():
                    call.outcome.set_result(entry.seq)

    def _group(self) -> list[_Call]:
        """Take as many calls as there is room for."""
        options = self._options
        records = min(_GROUP, options.max_unacknowledged - len(self._outbox))
        size = options.max_unacknowledged_bytes - self._outbox_bytes
        group: list[_Call] = []
        total = 0
        while self._calls and len(group) < records and total < min(size, _GROUP_BYTES):
            call = self._calls.popleft()
            if not call.outcome.done():  # else its task was cancelled
                total += len(call.body)
                group.append(call)
        if not self._calls:
            self._called.clear()
        return group

    async def _wait_for_room(self) -> None:
        """Wait until something is acknowledged; calls that have waited for too long are refused."""
        loop = asyncio.get_running_loop()
        while self._calls and (self._calls[0].outcome.done() or self._calls[0].deadline <= loop.time()):
            call = self._calls.popleft()
            if not call.outcome.done():
                call.outcome.set_exception(self._backlog())
        if self._calls:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._calls[0].deadline):
                    await self._room.wait()
        else:
            self._called.clear()

    def _running(self) -> None:
        if self._journal is None or not self._tasks:
            state = "has been closed" if self._closing else "has not been started: use it with `async with`"
            raise Closed(f"The emitter {state}")
        if self._process != os.getpid():
            raise Closed("This process was forked from the one that started the emitter: make one here")

    # --- publishing -----------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Deliver what is in the journal, in order, for as long as it takes."""
        assert self._journal is not None
        pause = _PAUSE
        while True:
            await self._filled.wait()
            delivery = self._delivery()
            try:
                await self._sink.open(self._session_id, self._options.start_timeout)
                await self._sink.deliver(delivery)
            except Exception as error:
                if type(error) is not type(self._trouble):
                    log.warning("%s: cannot publish, trying again: %s", self._session_id, error or repr(error))
                self._trouble = error
                await self._sink.reset()
                await asyncio.sleep(REFUSED_PAUSE if isinstance(error, BrokerRefusal) else pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._trouble, pause = None, _PAUSE
            for entry in delivery:
                self._outbox.popleft()
                self._outbox_bytes -= len(entry.raw)
            self._journal.acknowledge(delivery[-1].seq)
            if not self._outbox:
                self._filled.clear()
                # With calls waiting the next append writes it down.
                if not self._calls:
                    self._worker.submit(self._journal.note).add_done_callback(_ignore)
            self._room.set()
            async with self._emptied:
                self._emptied.notify_all()

    def _delivery(self) -> list[Entry]:
        size = 0
        delivery: list[Entry] = []
        for entry in islice(self._outbox, _DELIVERY):
            size += len(entry.raw)
            if delivery and size > _DELIVERY_BYTES:
                break
            delivery.append(entry)
        return delivery

    # --- waiting, and the end -------------------------------------------------------------------------------------

    async def _settled(self) -> None:
        """Wait until what was called before is in the journal, or has failed."""
        if waiting := [call.outcome for call in self._calls]:
            await asyncio.wait(waiting)
        # A group that is being written has been taken from the calls: the worker does one thing after the other.
        await self._worker.submit(int)

    async def _acknowledged(self, seq: int) -> None:
        async with self._emptied:
            await self._emptied.wait_for(lambda: not self._outbox or self._outbox[0].seq > seq)

    async def _let_go(self) -> None:
        """Close everything, whatever state it is in."""
        tasks, self._tasks = self._tasks, []
        try:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._sink.close()
        finally:
            _fail(self._calls, Closed("The emitter was closed: nothing was logged"))
            self._calls.clear()
            closing = None if self._journal is None else self._worker.submit(self._journal.close)
            self._worker.stop()
            if closing is not None:
                await closing

    async def _left(self, when: str) -> Unacknowledged:
        count = len(self._outbox)
        first, last = (self._outbox[0].seq, self._outbox[-1].seq) if count else (0, 0)
        waiting = f", and {len(self._calls)} calls wait for room in it" if self._calls else ""
        reasons = []
        with contextlib.suppress(Exception):
            if said := await self._sink.explain():
                reasons.append(said)
        if self._trouble is not None:
            reasons.append(str(self._trouble) or repr(self._trouble))
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return Unacknowledged(
            f"{count} records of the session {self._session_id} ({first} to {last}) were not acknowledged {when}{why}."
            f" They are safe in the journal {self._path}{waiting}; what is in it is published again by the next emitter"
            " that opens it.",
            *(count, first, last),
        )

    def _backlog(self) -> Backlog:
        why = f" ({self._trouble})" if self._trouble is not None else ""
        return Backlog(
            f"Nothing was logged: the session {self._session_id} has {len(self._outbox)} unacknowledged records"
            f" ({self._outbox_bytes} bytes) in {self._path}, and no room was made within"
            f" {self._options.emit_timeout:g} s{why}."
        )


def _check(options: Options) -> None:
    if options.recover not in ("trust", "scan"):
        raise ValueError(f'recover={options.recover!r}: it is "trust" or "scan"')
    if options.start_at is not None:
        if type(options.start_at) is not int:
            raise TypeError(f"start_at: expected `int`, got `{type(options.start_at).__name__}`")
        if not 1 <= options.start_at <= MAX_INT:
            raise ValueError(f"start_at={options.start_at}: positions begin at 1")
        if options.recover == "scan":
            raise ValueError('start_at and recover="scan" both say where a new journal begins: give one of them')
    if options.max_unacknowledged < 1 or options.max_unacknowledged_bytes < 1:
        raise ValueError("max_unacknowledged and max_unacknowledged_bytes must be at least 1")


def _fail(calls: Iterable[_Call], error: Exception) -> None:
    for call in calls:
        if not call.outcome.done():
            call.outcome.set_exception(error)


def _close_at_once(opening: "asyncio.Future[tuple[Journal, list[Entry]]]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _ignore(outcome: "asyncio.Future[None]") -> None:
    # What was acknowledged and is not written down is only published again; an append will hear of the same error.
    if not outcome.cancelled():
        outcome.exception()
