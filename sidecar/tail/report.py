"""What the loop tells metrics, health and the log: once per batch, and one line per finding."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from aiokafka import TopicPartition

from sidecar.engine.fold import Outcome
from sidecar.observe.health import Health
from sidecar.observe.logs import get_logger, log_finding
from sidecar.observe.metrics import Metrics
from sidecar.protocol.outputs import DeadLetter
from sidecar.protocol.records import KINDS, Hole, Opaque
from sidecar.tail.misplaced import Stray
from sidecar.tail.snapshots import Progress
from sidecar.tail.task import Folded, Task

log = get_logger(__name__)

_TELL_EVERY = 5.0
_LOGGED = 1000
"""Findings, and halts, of one batch that have a line of their own in the log."""
_KIND_NAMES: dict[type, str] = {**{cls: kind for kind, cls in KINDS.items()}, Opaque: "opaque"}


class Report:
    """Pass on what happened to whoever shows it.

    Args:
        metrics: the metrics of this process.
        health: the health of this process, on the clock `time.monotonic`.
    """

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health

    def joining(self) -> None:
        """Tell that the group is about to assign partitions."""
        self._health.joining(time.monotonic())

    def assigned(self, tasks: Iterable[Task]) -> None:
        """Tell which tasks this replica has from now on."""
        self._health.assign([task.number for task in tasks], time.monotonic())

    def revoked(self, numbers: Sequence[int]) -> None:
        """Tell that tasks were given away."""
        for number in numbers:
            self._metrics.release(number)
        self._metrics.set_lags({})
        self._health.revoke(numbers)
        self.joining()

    def restored(self, task: Task) -> None:
        """Tell that a task has the state that was committed."""
        if task.restored:
            log.info("restored", partition=task.number, records=task.restored, seconds=round(task.seconds(), 3))
        self._metrics.observe_restored(task.seconds())
        self._metrics.adopt(task.number, task.engine)
        self._health.restored(task.number, time.monotonic())

    def committed(self, ok: bool) -> None:
        """Count a commit."""
        self._metrics.observe_commit(ok)

    def kept(self, records: int, size: int, too_large: int) -> None:
        """Count what was written to the snapshot topic, and the sessions that were too large for it."""
        self._metrics.observe_kept(records, size)
        self._metrics.observe_too_large(too_large)

    def kept_at(self, times: Iterable[float]) -> None:
        """Show when the partition that was kept longest ago was kept (`time.monotonic`), now that it is committed."""
        now = time.monotonic()
        self._metrics.set_kept_at(time.time() - (now - min(times, default=now)))

    def ages(self, tasks: Iterable[Task]) -> None:
        """Show how long sessions have been stale or degraded."""
        now, found = time.monotonic(), defaultdict[str, list[float]](list)
        for task in tasks:
            for status, ages in task.engine.ages(now).items():
                found[status] += ages
        self._metrics.set_ages(found)

    def restoring(self, tasks: Iterable[Task]) -> None:
        """Show how many partitions are being restored."""
        self._metrics.set_restoring(sum(not task.placed or task.silent for task in tasks))

    def progress_of(self, number: int) -> Callable[[Progress], None]:
        """Return what shows in the metrics, and now and then in the log, how far a task's snapshots have been read."""
        read, told = 0, time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal read, told
            self._metrics.observe_restoring(progress.records - read)
            read = progress.records
            if time.monotonic() - told > _TELL_EVERY:
                told = time.monotonic()
                log.info(
                    "reading snapshots",
                    partition=number,
                    records=progress.records,
                    bytes=progress.size,
                    offset=progress.position,
                    end=progress.end,
                )

        return show

    def restore_went_on(self, records: int) -> None:
        """Count what was read to restore state."""
        self._metrics.observe_restoring(records)

    def refused(self) -> None:
        """Count a partition whose snapshots could not be used."""
        self._metrics.observe_refused()

    def refusing(self, reason: str) -> None:
        """Tell that nobody is answered until the process is started anew, and why."""
        self._metrics.set_refusing(True)
        self._health.refuse(reason)

    def conflict(self) -> None:
        """Count a question about a session that two partitions know."""
        self._metrics.observe_conflict()

    def strangers(self, number: int, strangers: Sequence[Stray]) -> None:
        """Log that sessions were kept of a partition that is not theirs."""
        log.error(
            "sessions were kept of a partition that is not theirs; they are refused until a checkpoint of them is"
            " verified",
            partition=number,
            sessions=len(strangers),
            first=strangers[0].session_id[:200],
            home=strangers[0].home,
        )

    def batch(self, task: Task, folded: Folded) -> None:
        """Count a batch that was folded aloud."""
        records: dict[tuple[str, str], int] = {}
        for topic, kinds in folded.kinds.items():
            for cls, count in kinds.items():
                if cls is not Hole:  # counted as unreadable
                    records[topic, _KIND_NAMES[cls]] = count
        unreadable = Counter(letter.source.topic for letter in folded.letters)
        unreadable.subtract(folded.misplaced)
        self._metrics.observe_batch(records, unreadable, now=time.time())
        self._metrics.observe_outcome(task.number, task.engine, folded.outcome, seconds=folded.seconds)

    def expired(self, task: Task, outcome: Outcome) -> None:
        """Count what giving up a wait has found."""
        self._metrics.observe_outcome(task.number, task.engine, outcome)

    def said(self, outcome: Outcome, letters: Sequence[DeadLetter]) -> None:
        """Log what is on its way out."""
        if structlog.is_configured():  # `log_finding` asks for the level, which only a logger that is set up has
            for finding in outcome.findings[:_LOGGED]:
                log_finding(log, finding)
            if (more := len(outcome.findings) - _LOGGED) > 0:
                log.warning("more findings in the same batch; they are on the topic of findings", count=more)
        for halt in outcome.halts[:_LOGGED]:
            log.warning(
                "session halted" if halt.status == "halt" else "halt cleared",
                session=halt.session_id,
                halt_id=halt.halt_id,
                position=halt.position,
                reason=halt.reason,
                still_open=len(halt.open_halts),
            )
        if letters:
            first = letters[0]
            log.warning(
                "records could not be read; they are in the dead-letter topic",
                count=len(letters),
                first=f"{first.source.topic}/{first.source.partition}@{first.source.offset}",
                reason=first.reason[:200],
            )

    def handed_over(self, folded: Folded) -> None:
        """Measure how long the findings of a batch took, now that they are with the producer."""
        if folded.misplaced:
            self._metrics.observe_misplaced(folded.misplaced)
        if folded.letters:
            self._metrics.observe_dead_letters(Counter(letter.source.topic for letter in folded.letters))
        if not folded.outcome.findings:
            return
        now = time.time()
        since_fetch = time.monotonic() - folded.begun
        # Findings about records of an earlier batch, which had to wait, are not measured.
        stamps = [stamp for finding in folded.outcome.findings if (stamp := folded.timestamp(finding)) is not None]
        self._metrics.observe_detection([now - stamp / 1000 for stamp in stamps], [since_fetch] * len(stamps))

    def standing(self, number: int, position: int, lag: int | None, seen: float) -> None:
        """Tell where a task stands.

        Args:
            number: the task.
            position: a number that grows as its records are taken in.
            lag: how many there are to read; None: not known yet.
            seen: when the broker was last heard of it (`time.monotonic`).
        """
        self._health.observe(number, position, lag, time.monotonic(), seen_at=seen)

    def lags(self, lags: Mapping[TopicPartition, int]) -> None:
        """Show the lag of every partition, and when all of them were last well."""
        self._metrics.set_lags({(tp.topic, tp.partition): lag for tp, lag in lags.items()})
        self._metrics.set_well(time.time() - self._health.unwell(time.monotonic()))

    def broker(self, up: bool) -> None:
        """Tell whether the brokers answer."""
        self._metrics.set_broker_up(up)
        self._health.broker(up, time.monotonic())
