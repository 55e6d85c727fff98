"""The metrics: counted once per batch, kept in one private registry.

Every method takes plain numbers or what the engine hands out anyway, and does work in the size of the batch's
outcome, never per record. A scrape reads memory and nothing else.
"""

import platform
import time
from collections import Counter as Tally
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sidecar import __version__
from sidecar.engine.fold import Outcome
from sidecar.engine.waits import Counters
from sidecar.observe.catalogue import (
    COMMIT_LABELS,
    FINDING_LABELS,
    GUARD_CODES,
    GUARD_LABELS,
    GUARD_ROUTES,
    HALT_LABELS,
    KIND_LABELS,
    LASTING_LABELS,
    LEVEL_LABELS,
    SERIES,
    STALE_LABELS,
    STATUS_LABELS,
    WHAT_LABELS,
    metrics_catalogue,
)

__all__ = ["Metrics", "metrics_catalogue"]

_TOP_LEVEL = len(LEVEL_LABELS)
_KINDS = frozenset(KIND_LABELS)


class EngineView(Protocol):
    """Name what the metrics read of an engine."""

    counters: Counters

    def status_counts(self) -> dict[str, int]:
        """Return how many sessions have each status."""

    def open_halts(self) -> int:
        """Return how many halts are open."""

    def __len__(self) -> int: ...


class _Task(Struct):
    """Remember what one engine adds to the shared gauges, and where its counters stood."""

    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    gaps: int = 0
    open_halts: int = 0
    sessions: int = 0
    waiting: int = 0
    sessions_waiting: int = 0
    statuses: dict[str, int] = {}


class Metrics:
    """Hold every series of one process.

    Args:
        registry: where to register; None: a registry of its own, so that two in a process do not collide.
        topics: the input topics (`watch`: `files`); records of any other are counted as `other`.
        broker: whether there are brokers; without, `sidecar_broker_up` is absent rather than 0 for ever.
        started: the time now, in Unix seconds; None: the system's.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        topics: Iterable[str] = (),
        broker: bool = True,
        started: float | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self._topics: set[str] = set()
        self._tasks: dict[Hashable, _Task] = {}
        self._lags: set[tuple[str, int]] = set()

        self._records = self._counter("sidecar_records_total")
        self._unreadable = self._counter("sidecar_unreadable_records_total")
        self._dead_letters = self._counter("sidecar_dead_letters_total")
        self._misplaced = self._counter("sidecar_misplaced_records_total")
        self._split = self._counter("sidecar_sessions_in_two_partitions_total")
        self._refusing = self._gauge("sidecar_partitions_changed") if broker else None
        self._duplicates = self._counter("sidecar_duplicate_records_total")
        self._late = self._counter("sidecar_late_records_total")
        self._conflicts = self._counter("sidecar_conflicting_records_total")
        self._missing = self._counter("sidecar_missing_positions_total")
        self._findings = self._counter("sidecar_findings_total")
        self._halts = self._counter("sidecar_halts_total")
        self._open_halts = self._gauge("sidecar_open_halts")
        self._degraded = self._gauge("sidecar_frontier_degraded")
        self._longest = self._gauge("sidecar_longest_in_status_seconds")
        self._stale = self._gauge("sidecar_stale_sessions")
        self._sessions = self._gauge("sidecar_sessions")
        self._waiting = self._gauge("sidecar_reorder_waiting_records")
        self._waiting_in = self._gauge("sidecar_reorder_waiting_sessions")
        self._survival_checked = self._counter("sidecar_survival_checked_total")
        self._survival_kept = self._counter("sidecar_survival_kept_total")
        self._from_record = self._histogram("sidecar_detection_from_record_seconds")
        self._from_fetch = self._histogram("sidecar_detection_from_fetch_seconds")
        self._batch = self._histogram("sidecar_batch_records")
        self._fold = self._histogram("sidecar_fold_seconds")
        self._lag = self._gauge("sidecar_lag_records")
        self._commits = self._counter("sidecar_commits_total")
        self._kept_records = self._counter("sidecar_snapshot_records_total")
        self._kept_bytes = self._counter("sidecar_snapshot_bytes_total")
        self._refused = self._counter("sidecar_snapshots_refused_total")
        self._too_large = self._counter("sidecar_snapshots_too_large_total")
        self._kept_at = self._gauge("sidecar_last_snapshot_timestamp_seconds") if broker else None
        self._restoring = self._gauge("sidecar_restoring_partitions")
        self._restored_records = self._counter("sidecar_restored_records_total")
        self._restore = self._histogram("sidecar_restore_seconds")
        asked = self._counter("sidecar_guard_requests_total")
        refused = self._counter("sidecar_guard_refusals_total")
        took = self._histogram("sidecar_guard_seconds")
        self._asked = {labels: asked.labels(*labels) for labels in GUARD_LABELS}
        self._refused_for = {code: refused.labels(code) for code in GUARD_CODES}
        self._took = {route: took.labels(route) for route in GUARD_ROUTES}
        self._asking = self._gauge("sidecar_guard_in_flight")
        self._guard_errors = self._counter("sidecar_guard_errors_total")
        self._broker_up = self._gauge("sidecar_broker_up") if broker else None
        self._well = self._gauge("sidecar_last_well_timestamp_seconds")
        self._progress = self._gauge("sidecar_last_progress_timestamp_seconds")

        for rule, severity in FINDING_LABELS:
            self._findings.labels(rule, severity)
        for status in HALT_LABELS:
            self._halts.labels(status)
        for result in COMMIT_LABELS:
            self._commits.labels(result)
        for status in STATUS_LABELS:
            self._degraded.labels(status)
        for what in WHAT_LABELS:
            for level in LEVEL_LABELS:
                self._survival_checked.labels(what, level)
                self._survival_kept.labels(what, level)
        self.declare_topics(topics)
        self.set_ages({})
        # Zero would look like decades without progress to whoever subtracts it from the time.
        for timestamp in (self._progress, self._well, self._kept_at, self._gauge("sidecar_start_timestamp_seconds")):
            if timestamp is not None:
                timestamp.set(time.time() if started is None else started)
        self._gauge("sidecar_build_info").labels(__version__, platform.python_version()).set(1)

    def declare_topics(self, topics: Iterable[str]) -> None:
        """Begin the series of input topics, at zero."""
        for topic in topics:
            self._topics.add(topic)
            self._unreadable.labels(topic)
            self._dead_letters.labels(topic)
            self._misplaced.labels(topic)
            for kind in KIND_LABELS:
                self._records.labels(topic, kind)

    def observe_batch(
        self, records: Mapping[tuple[str, str], int], unreadable: Mapping[str, int] | None = None, *, now: float
    ) -> None:
        """Count one batch that was read.

        Args:
            records: how many records of each (topic, kind); a kind unknown to the protocol counts as `opaque`.
            unreadable: how many of each topic could not be read.
            now: Unix seconds.
        """
        size = 0
        for (topic, kind), count in records.items():
            self._records.labels(self._topic(topic), kind if kind in _KINDS else "opaque").inc(count)
            size += count
        for topic, count in (unreadable or {}).items():
            self._unreadable.labels(self._topic(topic)).inc(count)
            size += count
        if size:
            self._batch.observe(size)
            self._progress.set(now)

    def observe_outcome(
        self, task: Hashable, engine: EngineView, outcome: Outcome, *, seconds: float | None = None
    ) -> None:
        """Count what one fold (or expiry) of a task's engine came to, and where the engine stands after it.

        Args:
            task: whose engine it is (a partition number, a name); see `adopt`.
            engine: the engine, after the fold.
            outcome: what the fold returned.
            seconds: how long a fold of records took; None: not a fold of records.
        """
        if seconds is not None:
            self._fold.observe(seconds)
        for (rule, severity), count in Tally((f.rule, f.severity) for f in outcome.findings).items():
            self._findings.labels(rule, severity).inc(count)
        halts = Tally(halt.status for halt in outcome.halts)
        for status, count in halts.items():
            self._halts.labels(status).inc(count)
        for (what, level), (checked, kept) in outcome.survival.items():
            label = str(level) if level < _TOP_LEVEL else LEVEL_LABELS[-1]
            self._survival_checked.labels(what, label).inc(checked)
            self._survival_kept.labels(what, label).inc(kept)
        mine = self._tasks.get(task)
        if mine is None:
            mine = self._tasks[task] = _Task()
        # Counting halts as they open and close spares a walk over the sessions in every batch.
        mine.open_halts += halts["halt"] - halts["clear"]
        counters = engine.counters
        self._duplicates.inc(counters.duplicates - mine.duplicates)
        self._late.inc(counters.late - mine.late)
        self._conflicts.inc(counters.conflicts - mine.conflicts)
        self._missing.inc(counters.gaps - mine.gaps)
        self._stand(mine, engine)

    def adopt(self, task: Hashable, engine: EngineView) -> None:
        """Take over an engine that has a past (restored or replayed): it shows in the gauges, not in the counters."""
        mine = self._tasks[task] = _Task()
        mine.open_halts = engine.open_halts()
        self._stand(mine, engine)

    def release(self, task: Hashable) -> None:
        """Let go of a task's engine (its partition was given away): it leaves the gauges."""
        if self._tasks.pop(task, None):
            self._show_gauges()

    def observe_detection(self, from_record: Sequence[float], from_fetch: Sequence[float]) -> None:
        """Count how long findings took to be written, in seconds.

        Args:
            from_record: since the deciding record's timestamp; clocks may differ, so below zero counts as zero.
            from_fetch: since the deciding record was fetched.
        """
        for seconds in from_record:
            self._from_record.observe(max(seconds, 0.0))
        for seconds in from_fetch:
            self._from_fetch.observe(max(seconds, 0.0))

    def observe_dead_letters(self, topics: Mapping[str, int]) -> None:
        """Count dead letters that were written, by the topic the record came from."""
        for topic, count in topics.items():
            self._dead_letters.labels(self._topic(topic)).inc(count)

    def observe_misplaced(self, topics: Mapping[str, int]) -> None:
        """Count records in another partition than their session's, by the topic they came from."""
        for topic, count in topics.items():
            self._misplaced.labels(self._topic(topic)).inc(count)

    def observe_conflict(self) -> None:
        """Count a question that was refused because two partitions know the session."""
        self._split.inc()

    def set_refusing(self, refusing: bool) -> None:
        """Set whether nothing is read because partitions have changed."""
        if self._refusing is not None:
            self._refusing.set(refusing)

    def set_lags(self, lags: Mapping[tuple[str, int], int]) -> None:
        """Set the lags of all (topic, partition) that this replica reads now; the series of others disappear.

        Args:
            lags: records up to the high watermark that the fetcher last saw.
        """
        for topic, partition in self._lags - lags.keys():
            self._lag.remove(topic, str(partition))
        for (topic, partition), lag in lags.items():
            self._lag.labels(topic, str(partition)).set(max(lag, 0))
        self._lags = set(lags)

    def set_ages(self, ages: Mapping[str, Sequence[float]]) -> None:
        """Set how long sessions have had the statuses of which that matters: seconds of each, by status."""
        for status in LASTING_LABELS:
            self._longest.labels(status).set(max(ages.get(status, ()), default=0.0))
        for label in STALE_LABELS:
            self._stale.labels(label).set(sum(age >= float(label) for age in ages.get("stale", ())))

    def set_well(self, at: float) -> None:
        """Set when all that is read was last well, in Unix seconds."""
        self._well.set(at)

    def observe_commit(self, ok: bool) -> None:
        """Count a commit, or one that failed."""
        self._commits.labels("ok" if ok else "failed").inc()

    def observe_kept(self, records: int, size: int) -> None:
        """Count what was written to the snapshot topic: records and their bytes."""
        self._kept_records.inc(records)
        self._kept_bytes.inc(size)

    def observe_too_large(self, sessions: int) -> None:
        """Count sessions whose states could not be kept."""
        self._too_large.inc(sessions)

    def set_kept_at(self, at: float) -> None:
        """Set when the partition that was kept longest ago was kept, in Unix seconds."""
        if self._kept_at is not None:
            self._kept_at.set(at)

    def observe_refused(self) -> None:
        """Count a partition whose snapshots could not be used."""
        self._refused.inc()

    def set_restoring(self, partitions: int) -> None:
        """Set how many partitions are being restored."""
        self._restoring.set(partitions)

    def observe_restoring(self, records: int) -> None:
        """Count records that were read to restore state."""
        self._restored_records.inc(records)

    def observe_restored(self, seconds: float) -> None:
        """Measure a restore that has ended."""
        self._restore.observe(seconds)

    def observe_guard(self, route: str, decision: str, codes: Iterable[str], seconds: float) -> None:
        """Count a request to the guard.

        Args:
            route: its route's name; `other`: there is none.
            decision: what it came to.
            codes: the codes of its reasons, unless that was a plain yes.
            seconds: how long it took.
        """
        self._asked[route, decision].inc()
        for code in codes:
            self._refused_for[code].inc()
        self._took[route].observe(seconds)

    def set_guard_in_flight(self, count: int) -> None:
        """Set how many requests the guard is working on."""
        self._asking.set(count)

    def count_guard_error(self) -> None:
        """Count a fault of the guard."""
        self._guard_errors.inc()

    def set_broker_up(self, up: bool) -> None:
        """Say whether the brokers answer."""
        if self._broker_up is not None:
            self._broker_up.set(up)

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return all series as text, and its content type.

        Args:
            accept: the request's `Accept` header, which decides between Prometheus text and OpenMetrics.
        """
        return exposition(self.registry, accept)

    # --- inside -----------------------------------------------------------------------------------

    def _stand(self, mine: _Task, engine: EngineView) -> None:
        counters = engine.counters
        mine.duplicates, mine.late = counters.duplicates, counters.late
        mine.conflicts, mine.gaps = counters.conflicts, counters.gaps
        mine.waiting, mine.sessions_waiting = counters.waiting, counters.sessions_waiting
        mine.sessions, mine.statuses = len(engine), engine.status_counts()
        self._show_gauges()

    def _show_gauges(self) -> None:
        tasks = self._tasks.values()
        self._open_halts.set(sum(task.open_halts for task in tasks))
        self._sessions.set(sum(task.sessions for task in tasks))
        self._waiting.set(sum(task.waiting for task in tasks))
        self._waiting_in.set(sum(task.sessions_waiting for task in tasks))
        for status in STATUS_LABELS:
            self._degraded.labels(status).set(sum(task.statuses.get(status, 0) for task in tasks))

    def _topic(self, topic: str) -> str:
        return topic if topic in self._topics else "other"

    def _counter(self, name: str) -> Counter:
        series = SERIES[name]
        return Counter(series.name, series.help, series.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        series = SERIES[name]
        return Gauge(series.name, series.help, series.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        series = SERIES[name]
        return Histogram(series.name, series.help, series.labels, registry=self.registry, buckets=series.buckets)


def exposition(registry: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """Return the series of a registry as text, and its content type, as an `Accept` header asks for it."""
    encode, content_type = choose_encoder(accept or "")
    return encode(_WithoutCreated(registry)), content_type


class _WithoutCreated(Collector):
    """Leave out the `_created` series, which double what is stored and which nothing here is read from.

    prometheus_client can only turn them off for the whole process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the families without them."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
