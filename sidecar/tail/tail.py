"""The tail as one thing to start, run and stop: it opens the clients, runs the loop, and starts over when they fail."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from sidecar.config import Settings
from sidecar.engine.fold import Outcome
from sidecar.observe.ending import Ending
from sidecar.observe.health import Health
from sidecar.observe.logs import get_logger
from sidecar.observe.metrics import Metrics
from sidecar.tail.assignor import sticky_assignor
from sidecar.tail.clients import (
    STARTUP_TIMEOUT,
    close_consumer,
    close_producer,
    open_consumer,
    open_producer,
    open_transactional,
    reach,
)
from sidecar.tail.ending import ended_within
from sidecar.tail.errors import PartitionsChanged, TailError
from sidecar.tail.fetching import lighten
from sidecar.tail.inputs import Inputs
from sidecar.tail.layout import check_counts, layout_today
from sidecar.tail.live import Applied, LiveSessions
from sidecar.tail.loop import Loop
from sidecar.tail.outputs import AtLeastOnce, Offsets, Outputs
from sidecar.tail.report import Report
from sidecar.tail.topics import check_room, create_missing
from sidecar.tail.transactions import Transactions

log = get_logger(__name__)

STOP_TIMEOUT = 15.0
"""Seconds in which the last outputs have to be delivered and committed when the tail is stopped."""

SHUTDOWN_TIMEOUT = 22.0
"""Seconds in which all of it has ended once it is to stop; what has not is named, and left behind."""

_CANCEL_WITHIN = 3.0
_COUNT_EVERY = 1.0
_COUNTS_IN_STALENESS = 4
"""How often the partitions are counted at least in the time after which what is known counts as lagging."""

_FIRST_BACKOFF, _LAST_BACKOFF = 0.5, 15.0
_WATCH_EVERY = 0.5
_SILENCE = 2.0
_PROBE_TIMEOUT = 2.0
_REBALANCE_TIMEOUT_MS = 60_000


class Tail:
    """Read the input topics as a member of the group, judge what they say, and write the verdicts.

    Args:
        settings: the settings tree.
        metrics: the metrics of this process.
        health: the health of this process, on the clock `time.monotonic`.
        on_outcome: called with what each batch found, before it is sent.
        startup_timeout: seconds in which a broker must answer at the start.
        advertise: where this replica's guard is to be asked (URL), told to the other replicas; None: nowhere.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        health: Health,
        on_outcome: Callable[[Outcome], None] | None = None,
        *,
        startup_timeout: float = STARTUP_TIMEOUT,
        advertise: str | None = None,
    ) -> None:
        self._settings = settings
        self._report = Report(metrics, health)
        self._on_outcome = on_outcome
        self._startup_timeout = startup_timeout
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._stalled = asyncio.Event()
        self._running = False
        self._partitions: Mapping[str, int] = {}
        self._options: Mapping[str, Any] = {}
        self._consumer: Inputs | None = None
        self._refusal: PartitionsChanged | None = None
        self._unfinished: list[str] = []
        self._stop_by = float("inf")
        self._outputs: Outputs | None = None
        self._loop: Loop | None = None
        # One for all clients to come, because it remembers which partitions were ours.
        self._assignor = sticky_assignor(settings.tail.group_instance_id)
        if advertise:
            self._assignor.advertise(advertise)
        self._applied = Applied()
        self._counted = float("-inf")
        self.sessions = LiveSessions(
            tasks=lambda: self._loop.tasks if self._loop is not None else None,
            owner_of=self._assignor.owner_of,
            applied=self._applied,
            max_staleness=settings.guard.max_staleness,
            homes=lambda: self._loop.homes if self._loop is not None else None,
            counted=lambda: self._counted,
            refusal=lambda: str(self._refusal) if self._refusal is not None else None,
            on_conflict=self._report.conflict,
        )
        """The live sessions, for the guard."""
        metrics.declare_topics(settings.topics.inputs)

    @property
    def loop(self) -> Loop | None:
        """Return the loop while it runs (it is another one after the clients had to be opened again)."""
        return self._loop

    async def start(self) -> None:
        """Reach a broker, see that the topics are there, and open the clients.

        Raises:
            TailError: a broker, a topic or a permission is missing; it says what to do.
        """
        options = await reach(self._settings, self._startup_timeout)
        topics = await create_missing(self._settings, options=options, within=self._startup_timeout)
        self._partitions = {spec.name: spec.partitions for spec in (*topics.created, *topics.existing)}
        check_room(self._settings, self._partitions)
        try:
            if self._settings.tail.guarantee == "exactly_once":
                # Only to see whether it can be had: better known now than with the first partition.
                name = f"{self._settings.tail.group_id}-start"
                await close_producer(await open_transactional(options, name, 60))
            await self._open(options)
        except KafkaError as error:
            raise TailError(f"The Kafka clients could not be opened: {error!r}.") from error
        self._report.broker(True)

    async def run(self, signals: bool = False) -> None:
        """Work until `stop` is called; start first if that was not done.

        Args:
            signals: end cleanly on SIGTERM and SIGINT, too.

        Raises:
            TailError: it cannot start, something came up that trying again does not mend, or it did not end in time.
        """
        self._running = True
        watching = [asyncio.create_task(self._watch()), asyncio.create_task(self._count())]
        try:
            with _rare_collections(), Ending() if signals else contextlib.nullcontext() as ending:
                if ending is not None:
                    ending.attend(self.request_stop)
                if self._consumer is None:
                    await self._unless_stopped(self.start())
                await self._run()
        finally:
            try:
                self._stop_by = min(self._stop_by, time.monotonic() + SHUTDOWN_TIMEOUT)
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching, timeout=_CANCEL_WITHIN)
                await self._end("closing the Kafka clients", self._close())
            finally:
                self._running = False
                self._ended.set()
        if self._unfinished:
            raise TailError(
                f"It was stopped before it could finish. Not finished: {'; '.join(self._unfinished)}. Nothing is lost:"
                " what was not committed is read and written again after the next start."
            )

    def request_stop(self) -> None:
        """Begin to stop: what is being worked on is delivered and committed, then `run` returns."""
        if not self._stopping.is_set():
            self._stop_by = time.monotonic() + SHUTDOWN_TIMEOUT
        self._stopping.set()

    async def stop(self) -> None:
        """Stop, and wait until all is delivered, committed and closed, or the time for it is over."""
        self.request_stop()
        if self._running:
            await self._ended.wait()
        else:
            await self._close()

    # --- inside -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                if self._consumer is None:
                    await self._unless_stopped(self._reopen())
                if not self._stopping.is_set():
                    await self._run_loop()
            except PartitionsChanged as error:
                await self._refuse(error)
            except (KafkaError, TailError, OSError) as error:
                # A broker that is away is no reason to end once we have started; what cannot mend is.
                if isinstance(error, TailError) and self._consumer is not None:
                    raise
                log.error("the Kafka clients failed; opening new ones", error=repr(error), in_seconds=backoff)
                if self._stopping.is_set():
                    self._unfinished.append("delivering and committing the last outputs")
                if not isinstance(error, ProducerFenced):  # which is an answer
                    self._report.broker(False)
                await self._close()
                if time.monotonic() - begun > 60:
                    backoff = _FIRST_BACKOFF
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF)

    async def _run_loop(self) -> None:
        assert self._consumer is not None and self._outputs is not None
        self._loop = Loop(
            self._consumer,
            self._outputs,
            self._settings,
            self._report,
            self._partitions,
            self._options,
            self._on_outcome,
            self._applied,
        )
        self._report.joining()
        self._stalled.clear()
        working = asyncio.create_task(self._loop.run(self._stopping))
        stopping = asyncio.create_task(self._stopping.wait())
        stalled = asyncio.create_task(self._stalled.wait())
        try:
            await asyncio.wait((working, stopping, stalled), return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and not self._stopping.is_set():
                raise KafkaError("the brokers have not answered for too long")
            if not working.done():
                await asyncio.wait((working,), timeout=STOP_TIMEOUT)
            if not working.done():
                log.error(
                    "the last outputs could not be delivered and committed in time;"
                    " they will be written again after the next start",
                    seconds=STOP_TIMEOUT,
                )
                self._unfinished.append("delivering and committing the last outputs")
                if not await ended_within(working, _CANCEL_WITHIN):
                    self._unfinished.append("the loop, which does not end when it is cancelled")
                return
            working.result()
        except BaseException:
            self._report.revoked([task.number for task in self._loop.tasks])
            raise
        finally:
            for task in (stopping, stalled):
                task.cancel()
            if not await ended_within(working, _CANCEL_WITHIN):
                log.error("the loop does not end when it is cancelled; it is left behind")
            self._loop = None

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> None:
        work, stopping = asyncio.create_task(opening), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            stopping.cancel()
            if not await ended_within(work, _CANCEL_WITHIN):
                self._unfinished.append("opening the Kafka clients, which does not end when it is cancelled")

    async def _refuse(self, error: PartitionsChanged) -> None:
        """Answer nobody and read nothing until the tail is stopped; then say why once more.

        The process stays, because its readiness, its metrics and its guard say what is the matter.
        """
        self._refusal = error
        log.error("partitions have changed; nothing is read and every question is refused", reason=str(error))
        self._report.refusing(str(error))
        await self._end("closing the Kafka clients", self._close())
        await self._stopping.wait()
        raise error

    async def _end(self, what: str, ending: Coroutine[Any, Any, None]) -> None:
        """Do something that ends, within the time there is for that once the tail is to stop."""
        task = asyncio.create_task(ending)
        while not task.done():
            left = self._stop_by - time.monotonic()
            if left <= 0:
                self._unfinished.append(what)
                await ended_within(task, 0.5)
                return
            await asyncio.wait((task,), timeout=min(left, 1.0))
        task.result()

    async def _reopen(self) -> None:
        await self._open(await reach(self._settings, _LAST_BACKOFF))

    async def _open(self, options: Mapping[str, Any]) -> None:
        tail = self._settings.tail
        self._options = options
        self._counted = float("-inf")
        members = await open_consumer(
            options,
            group_id=tail.group_id,
            group_instance_id=tail.group_instance_id,
            enable_auto_commit=False,
            # Positions come from the tasks; one that the log no longer has must not be replaced in silence.
            auto_offset_reset="none",
            isolation_level="read_committed",
            # Keeps a partition number's topics together, and every number where it was as far as balance allows.
            partition_assignment_strategy=(self._assignor,),
            fetch_max_wait_ms=round(tail.fetch_max_wait * 1000),
            fetch_max_bytes=tail.fetch_max_bytes,
            max_partition_fetch_bytes=tail.partition_max_bytes,
            session_timeout_ms=round(tail.session_timeout * 1000),
            heartbeat_interval_ms=round(tail.heartbeat_interval * 1000),
            max_poll_interval_ms=round(tail.max_poll_interval * 1000),
            # Long enough to deliver what is under way; the member that leaves or dies is not waited for.
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
        )
        try:
            notes = await open_consumer(
                options,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                fetch_max_wait_ms=round(tail.fetch_max_wait * 1000),
            )
        except BaseException:
            await close_consumer(members)
            raise
        consumer = self._consumer = Inputs(members, notes, self._settings.topics.misplaced)
        if not lighten(members):
            log.info("this version of aiokafka is read the slower way")

        if tail.guarantee == "exactly_once":

            async def producer_of(number: int) -> AIOKafkaProducer:
                name = f"{tail.group_id}-{number}"
                return await open_transactional(options, name, tail.transaction_timeout)

            self._outputs = Transactions(producer_of, tail.group_id)
            return

        async def producer() -> AIOKafkaProducer:
            return await open_producer(options)

        async def commit(offsets: Offsets) -> None:
            await consumer.commit(offsets)

        self._outputs = AtLeastOnce(producer, commit, tail.max_buffered)

    async def _close(self) -> None:
        outputs, self._outputs = self._outputs, None
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await asyncio.gather(close_consumer(consumer.members), close_consumer(consumer.notes))
        if outputs is not None:
            await outputs.close()

    async def _watch(self) -> None:
        """Tell, beside the loop, whether the brokers answer: the loop may be the one that waits for them."""
        heard = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            loop, consumer, outputs = self._loop, self._consumer, self._outputs
            if loop is None or consumer is None or outputs is None:
                heard = time.monotonic()
                continue
            now = time.monotonic()
            waiting = outputs.waiting_since()
            if waiting is not None and now - waiting > _SILENCE:
                self._report.broker(False)
            elif loop.heard_within(_SILENCE + 2 * self._settings.tail.fetch_max_wait) or await self._answers(consumer):
                heard = now
                self._report.broker(True)
            else:
                self._report.broker(False)
            # aiokafka does not look at its seeds again, nor recovers from every stall: new clients do.
            if now - heard > self._settings.health.stall_after:
                self._stalled.set()

    async def _count(self) -> None:
        """See, beside the loop, whether the topics still have as many partitions as at the start.

        Producers that know of new partitions write to them before the group assigns them to anybody; and a session
        that has moved is known in full by nobody.
        """
        while True:
            consumer = self._consumer
            if consumer is not None and self._partitions:
                before = layout_today(self._settings, self._partitions).counts
                asked = time.monotonic()
                try:
                    check_counts(before, await consumer.counts(before), "at the start")
                    self._counted = asked
                except PartitionsChanged as error:
                    self._refusal = error  # at once: the loop may be busy for a while
                    if self._loop is not None:
                        self._loop.refuse(error)
                except (KafkaError, TimeoutError, OSError) as error:
                    log.debug("whether the topics have grown could not be seen", error=repr(error))
            await asyncio.sleep(min(_COUNT_EVERY, self._settings.guard.max_staleness / _COUNTS_IN_STALENESS))

    async def _answers(self, consumer: Inputs) -> bool:
        """Ask the group's coordinator; for when there are no partitions whose fetches would tell."""
        topic = self._settings.topics.events
        with contextlib.suppress(TimeoutError, KafkaError, OSError):
            await asyncio.wait_for(consumer.committed(TopicPartition(topic, 0)), _PROBE_TIMEOUT)
            return True
        return False


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the cyclic collector run seldom: batches are made of thousands of small objects, and none is in a cycle."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
