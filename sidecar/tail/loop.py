"""The one loop: fetch, decode, fold, say, commit; everything in it is done by the batch."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)
from msgspec import Struct

from sidecar.config import Settings
from sidecar.engine.fold import Outcome
from sidecar.observe.logs import get_logger
from sidecar.tail.errors import TailError
from sidecar.tail.homes import Homes
from sidecar.tail.inputs import Batch, Inputs
from sidecar.tail.keeping import Keeper
from sidecar.tail.layout import check_counts, layout_today
from sidecar.tail.live import Applied
from sidecar.tail.outputs import Outputs
from sidecar.tail.polls import Polls
from sidecar.tail.report import Report
from sidecar.tail.restore import lost_range, place, report_lost, report_short
from sidecar.tail.snapshots import ends_of, written_since
from sidecar.tail.speaking import Speaker
from sidecar.tail.task import Folded, Task
from sidecar.tail.topics import principal

log = get_logger(__name__)

_POLL_MS = 100
_SURVEY_EVERY = 0.05
_LAGS_EVERY = 0.5
_AGES_EVERY = 5.0
_FRESH = 2.0
_RETRY_AFTER = 0.2
_PATIENCE = 15.0
_WORK_FOR = 0.25
"""Seconds of folding after which outputs are committed and the others get their turn, however much is left."""


class Parked(Struct):
    """Keep a task that was given away, and where its snapshots ended then."""

    task: Task
    keeper: Keeper
    end: int


class Loop:
    """Run the tasks of one consumer, for as long as its clients live.

    Args:
        consumer: started, not subscribed.
        outputs: where the tasks' findings, halts and dead letters go.
        settings: the settings tree.
        report: metrics, health and the log.
        partitions: how many partitions each topic has, as found at the start.
        options: client options, from `clients.reach`.
        on_outcome: called with what each batch found, before it is sent.
        applied: is notified whenever more has been applied.
    """

    def __init__(
        self,
        consumer: Inputs,
        outputs: Outputs,
        settings: Settings,
        report: Report,
        partitions: Mapping[str, int],
        options: Mapping[str, Any],
        on_outcome: Callable[[Outcome], None] | None = None,
        applied: Applied | None = None,
    ) -> None:
        self._applied = applied or Applied()
        self._consumer = consumer
        self._polls = Polls(consumer.last_poll_timestamp)
        self._options = options
        self._outputs = outputs
        self._settings = settings
        self._report = report
        self._inputs = settings.topics.inputs
        self._topics = settings.topics.followed
        self.homes = Homes(settings.kafka.partitioner, partitions[settings.topics.events])
        self._layout = layout_today(settings, partitions)
        self._limits = settings.limits()
        self._tasks: dict[int, Task] = {}
        self._keepers: dict[int, Keeper] = {}
        # What was given away in the rebalance that is under way: it may come back untouched.
        self._parked: dict[int, Parked] = {}
        # What was fetched belongs to the assignment it was fetched under: a rebalance makes it void.
        self._generation = 0
        self._trouble: TailError | None = None
        # Held while a batch is worked on, so that partitions are not revoked in its midst.
        self._busy = asyncio.Lock()
        self._commit_due = 0.0
        self._survey_due = 0.0
        self._lags_due = 0.0
        self._ages_due = 0.0
        self._partitions = partitions
        self._backlog = False
        self._speaker = Speaker(outputs, settings, report, partitions, self.homes, on_outcome)

    @property
    def tasks(self) -> Collection[Task]:
        """Return the tasks this replica has now."""
        return self._tasks.values()

    async def run(self, stop: asyncio.Event) -> None:
        """Join the group and work until `stop` is set; then deliver and commit.

        Raises:
            KafkaError: the clients are of no more use; open new ones and start over.
            TailError: something that trying again does not mend.
        """
        self._consumer.subscribe(self._inputs, _Listener(self))
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._place_tasks()
                generation = self._generation
                fetched = await self._fetch(stopping)
                async with self._busy:
                    if self._trouble is not None:
                        raise self._trouble
                    if generation == self._generation:
                        await self._work(fetched)
            async with self._busy:
                await self._commit(last=True)
        finally:
            stopping.cancel()

    def heard_within(self, seconds: float) -> bool:
        """Return whether a broker has answered a fetch within so many seconds."""
        oldest = time.monotonic() - seconds
        # Once assigned to somebody else, a partition has no state to ask for.
        mine = self._consumer.assignment()
        return any(self._polls.last(tp) >= oldest for tp in mine)

    # --- fetching ---------------------------------------------------------------------------------

    async def _fetch(self, stopping: asyncio.Task[Any]) -> Batch:
        held = {task.partition(topic) for task in self._tasks.values() if task.placed for topic in task.held()}
        # Held partitions are not paused, because that throws away what has been fetched of them.
        wanted = [tp for tp in self._consumer.assignment() if tp not in held] if held else []
        fetching = asyncio.create_task(
            self._consumer.getmany(
                *wanted,
                timeout_ms=0 if self._backlog else _POLL_MS,
                max_records=self._settings.tail.fetch_max_records,
            )
        )
        # A fetch waits for the end of a rebalance, whatever its timeout; stopping must not.
        await asyncio.wait((fetching, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not fetching.done():
            fetching.cancel()
            await asyncio.wait((fetching,))
        if fetching.cancelled():
            return {}
        try:
            fetched = fetching.result()
        except NoOffsetForPartitionError:
            return {}  # The consumer looks for a position on its own; the task will give it one.
        except OffsetOutOfRangeError as error:
            await self._skip_lost(error)
            return {}
        except GroupAuthorizationFailedError as error:
            group = self._settings.tail.group_id
            raise TailError(
                f"The broker does not let the sidecar join the group {group}: grant {principal(self._settings)} the ACL"
                f" READ on group {group}."
            ) from error
        except TopicAuthorizationFailedError as error:
            raise TailError(
                f"The broker does not let the sidecar read an input topic ({error}): grant {principal(self._settings)}"
                f" the ACL READ on {', '.join(self._topics)}."
            ) from error
        except UnsupportedCodecError as error:
            raise TailError(
                f"An input topic holds records compressed with a codec that is not installed ({error});"
                " install it with: pip install cramjam."
            ) from error
        return fetched

    async def _skip_lost(self, error: OffsetOutOfRangeError) -> None:
        positions: dict[TopicPartition, int] = error.args[0]
        for tp, position in positions.items():
            task = self._tasks.get(tp.partition)
            if task is None or not task.placed:
                continue
            first = (await self._consumer.beginning_offsets([tp]))[tp]
            if first > position:
                report_lost(tp, position, first)
                task.lost.append(lost_range(tp, position, first))
            else:
                report_short(tp, first, position)
            self._consumer.seek(tp, first)
            task.skip(tp.topic, first)

    # --- assignment -------------------------------------------------------------------------------

    async def revoke(self) -> None:
        """Deliver, commit and forget the tasks, because their partitions are going to somebody else."""
        async with self._busy:
            if not self._tasks:
                return
            try:
                await self._commit(last=True)
                await self._park()
            except KafkaError as error:
                log.warning("the last offsets were not committed; their outputs will come again", error=repr(error))
            finally:
                await self._forget_tasks()

    async def _park(self) -> None:
        """Put the tasks aside, with the end of their snapshots, by which can be told whether others had them since."""
        if not self._outputs.transactional:
            return  # without fencing that would prove nothing
        topic = self._settings.topics.snapshots
        tasks = [task for task in self._tasks.values() if task.placed and not task.silent]
        if not tasks:
            return
        ends = await ends_of(self._options, topic, [task.number for task in tasks])
        for task in tasks:
            self._parked[task.number] = Parked(task, self._keepers[task.number], ends[task.number])

    async def _take_back(self, number: int) -> bool:
        """Take a task that comes back as it was, if nothing has been committed or kept of it in between."""
        parked = self._parked.pop(number, None)
        if parked is None:
            return False
        task = parked.task
        async with asyncio.timeout(_PATIENCE):
            for topic, offset in task.positions.items():
                if await self._consumer.committed(task.partition(topic)) != offset:
                    return False
        if await written_since(self._options, self._settings.topics.snapshots, number, parked.end):
            return False
        if number not in self._tasks:
            return False
        task.drop_fetched()
        self._tasks[number], self._keepers[number] = task, parked.keeper
        log.info("the partition came back untouched", partition=number, sessions=len(task.engine))
        return True

    def assign(self, assigned: Collection[TopicPartition]) -> None:
        """Take the partitions over; the loop will find out where each task begins."""
        self._generation += 1
        numbers = sorted({tp.partition for tp in assigned})
        torn = [n for n in numbers if any(TopicPartition(topic, n) not in assigned for topic in self._inputs)]
        counts = self._partitions
        try:
            if new := [n for n in numbers if n >= self.homes.count]:
                # The group's leader has seen the topics grow before we have.
                grown = dict.fromkeys(self._inputs, max(new) + 1)
                check_counts(self._layout.counts, grown, "at the start")
            if torn:
                raise TailError(
                    f"Of partitions {torn} the group assigned not all input topics ({', '.join(self._inputs)}) to this"
                    f" replica: another member of {self._settings.tail.group_id} reads other topics."
                )
        except TailError as error:
            self._trouble = error
            return
        notes = self._settings.topics.misplaced
        self._tasks = {n: Task(n, self._topics, self._limits, self.homes, notes) for n in numbers}
        self._consumer.follow(numbers)
        self._parked = {number: parked for number, parked in self._parked.items() if number in self._tasks}
        inputs, now = counts[self._inputs[0]], time.monotonic()
        self._keepers = {number: Keeper(number, self._settings, inputs, now, self._layout) for number in numbers}
        self._commit_due = time.monotonic() + self._settings.tail.commit_interval
        log.info("partitions assigned", partitions=numbers, topics=list(self._inputs))
        self._report.assigned(self._tasks.values())

    def refuse(self, trouble: TailError) -> None:
        """End the loop with an error as soon as what it is working on is done."""
        self._trouble = self._trouble or trouble

    async def _forget_tasks(self) -> None:
        self._generation += 1
        numbers, self._tasks, self._keepers = list(self._tasks), {}, {}
        log.info("partitions revoked", partitions=numbers)
        await self._outputs.discard(numbers)
        self._report.revoked(numbers)

    async def _place_tasks(self) -> None:
        """Give every new task its outputs and its place; the order is the one that fencing needs."""
        latest = self._settings.tail.auto_offset_reset == "latest"
        for task in [task for task in self._tasks.values() if not task.placed]:
            try:
                self._report.restoring(self._tasks.values())
                await self._outputs.open(task.number)
                if self._tasks.get(task.number) is not task:
                    return
                if await self._take_back(task.number):
                    task = self._tasks[task.number]
                else:
                    keeper, progress = self._keepers[task.number], self._report.progress_of(task.number)
                    if not await place(self._consumer, task, keeper, self._options, latest, self.homes, progress):
                        self._report.refused()
                if self._tasks.get(task.number) is not task:
                    return
                for topic, offset in task.positions.items():
                    # Also where the consumer found a position itself: that one is the group's.
                    self._consumer.seek(task.partition(topic), offset)
                if not task.silent:
                    await self._speak(task)
            except TopicAuthorizationFailedError as error:
                snapshots = self._settings.topics.snapshots
                raise TailError(
                    f"The broker does not let the sidecar read what it keeps ({error}): grant"
                    f" {principal(self._settings)} the ACL READ on {snapshots}, beside WRITE."
                ) from error
            except (KafkaError, TimeoutError) as error:
                task.placed = False
                log.warning("a partition could not be placed yet", partition=task.number, error=repr(error))
                await asyncio.sleep(_RETRY_AFTER)
                return

    # --- working ----------------------------------------------------------------------------------

    async def _work(self, fetched: Batch) -> None:
        for tp, records in fetched.items():
            task = self._tasks.get(tp.partition)
            # Before it has sought, what comes is from a position that is not the task's.
            if task is not None and task.placed:
                task.add(tp.topic, records)
        halted = await self._fold()
        now = time.monotonic()
        if now >= self._survey_due:
            halted = await self._survey(now) or halted
            self._survey_due = now + _SURVEY_EVERY
        full = self._speaker.sent > self._settings.tail.max_buffered
        if (halted and self._outputs.seen_when_committed) or full or now >= self._commit_due:
            await self._commit()
            self._commit_due = time.monotonic() + self._settings.tail.commit_interval

    async def _fold(self) -> bool:
        """Fold what was fetched, a slice of each task in turn, until all or the time is up; return if one halted."""
        halted, begun = False, time.monotonic()
        self._backlog = False
        behind: dict[int, list[str]] = {}
        while True:
            more = False
            for task in self._tasks.values():
                await self._doubt(task)
                if not task.placed or not any(task.held()):
                    continue
                if task.number not in behind:
                    behind[task.number] = [t for t in task.topics if await self._is_behind(task.partition(t))]
                folded = task.fold(behind[task.number], time.monotonic())
                await asyncio.sleep(0)  # whoever asks the guard gets a turn between two slices
                if folded is not None:
                    more = any(task.held()) or more
                    halted = await self._take(task, folded) or halted
            if not more:
                return halted
            if time.monotonic() - begun > _WORK_FOR:
                self._backlog = True
                return halted

    async def _take(self, task: Task, folded: Folded) -> bool:
        """Report and send what a slice came to; return whether its halts, or notes of others, are to go at once."""
        if folded.silent:
            self._report.restore_went_on(sum(map(len, folded.batches.values())))
            return False
        self._report.batch(task, folded)
        await self._speaker.say(task, folded.outcome, folded.letters)
        await self._speaker.note(task, folded.strays)
        self._report.handed_over(folded)
        self._applied.notify()
        if not (folded.outcome.halts or folded.strays):
            return False
        await self._outputs.hurry(task.number)
        return True

    async def _doubt(self, task: Task) -> None:
        """Refuse the sessions of a task whose records may be gone or elsewhere."""
        if not task.placed or task.silent:
            return
        if task.lost:
            await self._distrust(task)
        if task.doubted:
            doubted, task.doubted = task.doubted, {}
            for why in dict.fromkeys(doubted.values()):
                outcome = task.engine.distrust(why, [one for one, reason in doubted.items() if reason == why])
                self._report.expired(task, outcome)
                await self._speaker.say(task, outcome, outcome.letters)
            self._keepers[task.number].hurry()

    async def _speak(self, task: Task) -> None:
        """Let a task that stands where it was committed say what comes from now on."""
        task.engine.take_decided()  # what the silent replay decided had been decided, and kept, before
        task.engine.take_news()  # and told
        self._report.restored(task)
        self._report.restoring(self._tasks.values())
        if task.strangers:
            strangers, task.strangers = task.strangers, []
            self._report.strangers(task.number, strangers)
            await self._speaker.note(task, strangers)
        await self._doubt(task)

    async def _distrust(self, task: Task) -> None:
        """Make a task's sessions unverifiable, because records of them may be gone."""
        outcome = task.engine.distrust("; ".join(task.lost))
        task.lost.clear()
        self._keepers[task.number].hurry()
        self._report.expired(task, outcome)
        await self._speaker.say(task, outcome, outcome.letters)

    async def _survey(self, now: float) -> bool:
        """Look how far each task has read: restored, waiting, lagging; return True if a halt was found."""
        halted = False
        oldest = now - _FRESH
        lags: dict[TopicPartition, int] = {}
        for task in self._tasks.values():
            if not task.placed:
                continue
            positions: dict[str, int] = {}
            known, seen = True, float("inf")
            for topic in task.topics:
                tp = task.partition(topic)
                position = positions[topic] = await self._consumer.position(tp)
                end, polled = self.end(tp), self._polls.last(tp)
                seen = min(seen, polled)
                if end is None:
                    known = False
                    continue
                lags[tp] = max(0, end - position) + task.queued(topic)
                if task.silent and polled >= oldest and not lags[tp] and end < task.target(topic):
                    report_short(tp, end, task.target(topic))
                    task.shorten(topic, end)
            lag = sum(lags[task.partition(topic)] for topic in task.topics) if known else None
            self._report.standing(task.number, sum(task.positions.values()), lag, seen)
            if task.silent:
                if task.reached(positions):
                    await self._speak(task)
                continue
            task.clock.tick(lag == 0 and seen >= oldest, now)
            if known:
                ends = {topic: self.end(task.partition(topic)) or 0 for topic in task.topics}
                task.observe(positions, ends, seen)
            if task.engine.counters.waiting:
                outcome = task.engine.expire(task.clock.now)
                await asyncio.sleep(0)
                self._report.expired(task, outcome)
                await self._speaker.say(task, outcome, outcome.letters)
                if outcome.halts:
                    halted = True
                    await self._outputs.hurry(task.number)
        self._applied.notify()
        if now >= self._lags_due:
            self._report.lags(lags)
            self._lags_due = now + _LAGS_EVERY
        if now >= self._ages_due:
            self._report.ages(task for task in self._tasks.values() if task.placed and not task.silent)
            self._ages_due = now + _AGES_EVERY
        return halted

    async def _is_behind(self, tp: TopicPartition) -> bool:
        """Return whether there is more of a partition than has been fetched, as far as that is known."""
        end = self.end(tp)
        return end is None or await self._consumer.position(tp) < end

    def end(self, tp: TopicPartition) -> int | None:
        """Return the offset up to which a partition can be read, as of its last fetch; None: not known yet."""
        # In an open transaction the log is readable only up to the last stable offset.
        stable = self._consumer.last_stable_offset(tp)
        end: int | None = self._consumer.highwater(tp)
        return end if stable is None or stable < 0 or end is None else min(end, stable)

    async def _commit(self, last: bool = False) -> None:
        """Deliver what was said and commit how far it goes, with what has to be kept of the sessions.

        Without transactions the sessions are kept after the offsets: a replica that has lost its partitions fails
        there, and so writes no state over that of its successor.

        Args:
            last: there will be no later commit, because the partitions are given away or the tail ends.
        """
        offsets = {task.number: moved for task in self._tasks.values() if (moved := task.uncommitted())}
        placed = [task for task in self._tasks.values() if task.placed and not task.silent]
        self._speaker.sent = 0
        try:
            await self._speaker.tell(placed)
            if self._outputs.transactional:
                for task in placed:
                    await self._speaker.keep(task, self._keepers[task.number], last)
                await self._outputs.commit(offsets)
            else:
                await self._outputs.commit(offsets)
                for task in placed:
                    await self._speaker.keep(task, self._keepers[task.number], last)
                if last:
                    await self._outputs.commit({})
        except (CommitFailedError, IllegalStateError) as error:
            log.warning("the group has rebalanced without us; rejoining", error=str(error))
            self._report.committed(False)
            await self._forget_tasks()
            return
        except KafkaError:
            self._report.committed(False)
            raise
        self._report.committed(True)
        self._report.kept_at(keeper.kept_at for keeper in self._keepers.values())
        for number, moved in offsets.items():
            self._tasks[number].committed.update({tp.topic: offset for tp, offset in moved.items()})


class _Listener(ConsumerRebalanceListener):
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._loop.revoke()

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._loop.assign(assigned)
