"""Write the log of one session: number records, keep them safe, publish them in order."""

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

from sidecar.client.compose import SEQ_ROOM, Role, common_fields, session_bytes
from sidecar.client.errors import Backlog, BrokerRefusal, Closed, EmitterError, JournalError, Unacknowledged
from sidecar.client.journal import Entry, Journal, journal_path
from sidecar.client.made import Made, Options, check
from sidecar.client.options import REFUSED_PAUSE
from sidecar.client.sinks import Sink
from sidecar.client.standing import known_to, refuse_behind
from sidecar.client.worker import Worker
from sidecar.protocol.records import COMPARED

log = logging.getLogger(__name__)

_GROUP = 10_000
_GROUP_BYTES = 4 << 20
_DELIVERY = COMPARED - 24
"""How many records are delivered at once: at most so many does a broken connection or a crash have published again."""
_DELIVERY_BYTES = 2 << 20
_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class _Call:
    """Be one call whose record is not in the journal yet."""

    __slots__ = ("body", "deadline", "outcome", "role", "room")

    def __init__(self, role: Role, body: bytes, outcome: "asyncio.Future[int]", deadline: float, room: int = 0) -> None:
        self.role = role
        self.body = body
        self.outcome = outcome
        self.deadline = deadline
        self.room = room


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
        check(options)
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
        self._promised: deque[_Call] = deque()
        self._kept = 0
        self._keeping = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
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
            JournalBehind: it is an older copy, or `start_at` is behind: the session's log has gone on.
            ValueError: the journal began elsewhere than at `start_at`.
        """
        if self._journal is not None or self._closing:
            raise EmitterError("An emitter is started once: make another one")
        within = self._options.start_timeout
        try:
            new = not self._path.exists()
            start_at = self._options.start_at
            who, known = await self._stands(new)
            if new and start_at is None:
                start_at = known + 1
            elif new and start_at is not None:
                refuse_behind(self._path, self._session_id, who, known, start_at - 1)
            opening = self._worker.submit(Journal.open, self._path, self._session_id, start_at)
            try:
                journal, left = await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_at_once)
                raise
            self._journal = journal
            refuse_behind(self._path, self._session_id, who, known, journal.position)
            if within:
                await self._sink.open(self._session_id, within)
        except BaseException:
            self._closing = True
            await self._let_go()
            raise
        self._process, self._loop = os.getpid(), asyncio.get_running_loop()
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

    async def _stands(self, new: bool) -> tuple[str, int]:
        """Return how far the session's log has come, and who says so; 0: nobody knows of it, or nobody was asked."""
        who, known = "the guard", 0
        if self._options.guard is not None:
            known = await known_to(self._options.guard, self._session_id)
            if new and not known and not self._sink.near:
                return who, 0  # the session is new
        # The guard may not have applied all of it yet: where the log goes on is told by the log itself.
        if self._sink.near or (new and self._options.start_at is None):
            await self._sink.open(self._session_id, self._options.start_timeout)
            newest = await self._sink.newest()
            if newest >= known:
                who, known = "the log itself", newest
        return who, known

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
        self._takes(len(body))
        return await self._call(role, body)

    async def _reserve(self, room: int) -> int:
        self._takes(room)
        outcome = self._call("events", b"", room=room)
        try:
            await outcome
        except asyncio.CancelledError:
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                self.give_back(2 * room)
            raise
        return room

    async def _append_kept(self, role: Role, body: bytes, room: int) -> int:
        self._keep(-room)
        try:
            self._takes(len(body))
        except BaseException:
            if self._journal is not None:
                self._journal.give_back(room)
            raise
        loop = asyncio.get_running_loop()
        call = _Call(role, body, loop.create_future(), loop.time(), room)
        self._promised.append(call)
        self._called.set()
        self._room.set()
        return await call.outcome

    def give_back(self, room: int) -> None:
        """Give back room that `reserve` kept and that was not used; from any thread, and it never waits.

        Args:
            room: bytes, of one record or of both.
        """
        if not room or self._journal is None:
            return
        self._keep(-room)
        self._journal.give_back(room)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._room.set)

    def _keep(self, room: int) -> None:
        with self._keeping:
            self._kept += room

    def _takes(self, size: int) -> None:
        self._running()
        if self._closing:
            raise Closed("The emitter has been closed: nothing was logged")
        if size + SEQ_ROOM > self._sink.limit:
            raise ValueError(
                f"the record has {size} bytes, and at most {self._sink.limit - SEQ_ROOM} are taken"
                " (see max.message.bytes of the topics)"
            )

    def _call(self, role: Role, body: bytes, room: int = 0) -> "asyncio.Future[int]":
        loop = asyncio.get_running_loop()
        call = _Call(role, body, loop.create_future(), loop.time() + self._options.emit_timeout, room)
        self._calls.append(call)
        self._called.set()
        return call.outcome

    async def _commit(self) -> None:
        """Put what was called into the journal, everything that has come in the meantime at once."""
        while True:
            await self._called.wait()
            if self._promised:  # there is room for them: it was kept
                promised, self._promised = list(self._promised), deque()
                await self._write(promised, sum(call.room for call in promised))
            elif not (group := self._group()):
                await self._wait_for_room()
            elif group[0].room:
                await self._make_room(group[0])
            else:
                await self._write(group, 0)

    async def _write(self, group: list[_Call], kept: int) -> None:
        assert self._journal is not None
        try:
            entries = await self._worker.submit(self._journal.append, [(call.role, call.body) for call in group], kept)
        except asyncio.CancelledError:
            _fail(group, Closed("The emitter was closed while this was written: the next start shows if it was"))
            raise
        except Exception as error:
            _fail(group, error)
            return
        self._outbox += entries
        self._outbox_bytes += sum(len(entry.raw) for entry in entries)
        self._position = entries[-1].seq
        self._filled.set()
        for call, entry in zip(group, entries, strict=True):
            if not call.outcome.done():
                call.outcome.set_result(entry.seq)

    async def _make_room(self, call: _Call) -> None:
        """Keep room for the two records of an action."""
        assert self._journal is not None
        room = 2 * call.room
        try:
            await self._worker.submit(self._journal.reserve, room)
        except asyncio.CancelledError:
            _fail((call,), Closed("The emitter was closed: nothing was logged"))
            raise
        except Exception as error:
            _fail((call,), error)
            return
        self._keep(room)
        if call.outcome.done():  # its task was cancelled
            self.give_back(room)
        else:
            call.outcome.set_result(0)

    def _group(self) -> list[_Call]:
        """Take as many calls as there is room for, or the next one alone if it is to keep room."""
        options = self._options
        records = min(_GROUP, options.max_unacknowledged - len(self._outbox))
        size = options.max_unacknowledged_bytes - self._outbox_bytes - self._kept
        group: list[_Call] = []
        total = 0
        while self._calls and len(group) < records and total < min(size, _GROUP_BYTES):
            if group and (group[0].room or self._calls[0].room):
                break
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
            self._room.set()
            async with self._emptied:
                self._emptied.notify_all()
            # Before the next delivery: a crash may publish this one again, but not one before it.
            with contextlib.suppress(JournalError):  # calls hear of it
                await self._worker.submit(partial(self._journal.note, durable=bool(self._outbox)))

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
        if waiting := [call.outcome for call in (*self._calls, *self._promised)]:
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
            _fail((*self._calls, *self._promised), Closed("The emitter was closed: nothing was logged"))
            self._calls.clear()
            self._promised.clear()
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


def _fail(calls: Iterable[_Call], error: Exception) -> None:
    for call in calls:
        if not call.outcome.done():
            call.outcome.set_exception(error)


def _close_at_once(opening: "asyncio.Future[tuple[Journal, list[Entry]]]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
