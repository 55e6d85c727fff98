"""The metrics of the fleet view: a registry of their own, for `sidecar fleet` is a process of its own."""

import platform
import time
from collections.abc import Iterable, Mapping, Set

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sidecar import __version__
from sidecar.observe.catalogue import ALERT_LABELS, FLEET_SERIES, FLEET_STATUS_LABELS, SEVERITY_LABELS, Series
from sidecar.observe.metrics import exposition
from sidecar.protocol.outputs import Alert

_SERIES: dict[str, Series] = {series.name: series for series in FLEET_SERIES}


class FleetMetrics:
    """Hold every series of a fleet worker.

    Args:
        topics: the topics that it reads.
        registry: where to register; None: a registry of its own.
    """

    def __init__(self, topics: Iterable[str] = (), registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self._records = self._counter("sidecar_fleet_records_total")
        self._unusable = self._counter("sidecar_fleet_unusable_records_total")
        self._lost = self._counter("sidecar_fleet_lost_records_total")
        self._lag = self._gauge("sidecar_fleet_lag_records")
        self._sessions = self._gauge("sidecar_fleet_sessions")
        self._open_halts = self._gauge("sidecar_fleet_open_halts")
        self._unacknowledged = self._gauge("sidecar_fleet_unacknowledged_halts")
        self._alerts = self._gauge("sidecar_fleet_alerts")
        self._alert_records = self._counter("sidecar_fleet_alert_records_total")
        self._checked = self._gauge("sidecar_fleet_survival_checked")
        self._kept = self._gauge("sidecar_fleet_survival_kept")
        self._partitions = self._gauge("sidecar_fleet_partitions")
        self._rows = self._counter("sidecar_fleet_changelog_records_total")
        self._commit = self._histogram("sidecar_fleet_commit_seconds")
        self._failed = self._counter("sidecar_fleet_failed_writes_total")
        self._foreign = self._counter("sidecar_fleet_foreign_writes_total")
        self._rebalances = self._counter("sidecar_fleet_rebalances_total")
        self._recovering = self._gauge("sidecar_fleet_recovering_records")
        self._progress = self._gauge("sidecar_fleet_last_progress_timestamp_seconds")
        self._broker_up = self._gauge("sidecar_fleet_broker_up")
        self._asked = self._counter("sidecar_fleet_peer_requests_total")
        self._lags: set[tuple[str, int]] = set()
        self._survival: set[tuple[str, str, str]] = set()
        for topic in topics:
            for counter in (self._records, self._unusable, self._lost):
                counter.labels(topic)
        for status in FLEET_STATUS_LABELS:
            self._sessions.labels(status)
        for kind in ALERT_LABELS:
            for severity in SEVERITY_LABELS:
                self._alerts.labels(kind, severity)
            for status in ("raised", "updated", "cleared"):
                self._alert_records.labels(kind, status)
        for result in ("ok", "failed"):
            self._asked.labels(result)
        self._broker_up.set(1)
        self._progress.set(time.time())
        self._gauge("sidecar_fleet_build_info").labels(__version__, platform.python_version()).set(1)

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return all series as text, and its content type."""
        return exposition(self.registry, accept)

    # --- what happened ------------------------------------------------------------------------------------------------

    def read(self, topics: Mapping[str, int], now: float) -> None:
        """Count records that were taken in, by topic."""
        for topic, count in topics.items():
            self._records.labels(topic).inc(count)
        if topics:
            self._progress.set(now)

    def unusable(self, topic: str) -> None:
        """Count a record that could not be taken in."""
        self._unusable.labels(topic).inc()

    def lost(self, topic: str, records: int) -> None:
        """Count records that were gone before they had been read."""
        self._lost.labels(topic).inc(records)

    def committed(self, rows: int, seconds: float) -> None:
        """Count rows that were written, and how long that took."""
        self._rows.inc(rows)
        self._commit.observe(seconds)

    def failed(self) -> None:
        """Count a write that failed and is tried again."""
        self._failed.inc()

    def foreign(self) -> None:
        """Count a time that somebody else had written to a partition of ours."""
        self._foreign.inc()

    def rebalanced(self) -> None:
        """Count a rebalance."""
        self._rebalances.inc()

    def alerted(self, alert: Alert) -> None:
        """Count a record of an alert."""
        self._alert_records.labels(alert.kind, alert.status).inc()

    def asked(self, ok: bool) -> None:
        """Count a question to another worker."""
        self._asked.labels("ok" if ok else "failed").inc()

    # --- how it stands ------------------------------------------------------------------------------------------------

    def recovering(self, records: int) -> None:
        """Set how many changelog records are to be read."""
        self._recovering.set(records)

    def brokers(self, up: bool) -> None:
        """Say whether the brokers take what is written."""
        self._broker_up.set(up)

    def survived(self, counts: Mapping[tuple[str, str, str], tuple[int, int]]) -> None:
        """Set what survived summaries: by (model, what, level), how many had to be carried and how many were."""
        for labels in self._survival - counts.keys():
            self._checked.remove(*labels)
            self._kept.remove(*labels)
        for labels, (checked, kept) in counts.items():
            self._checked.labels(*labels).set(checked)
            self._kept.labels(*labels).set(kept)
        self._survival = set(counts)

    def show(
        self,
        *,
        lags: Mapping[tuple[str, int], int],
        statuses: Mapping[str, int],
        open_halts: int,
        unacknowledged: int,
        alerts: Mapping[tuple[str, str], int],
        partitions: int,
    ) -> None:
        """Set the gauges.

        Args:
            lags: by (topic, partition).
            statuses: sessions by status.
            open_halts: halts that are open.
            unacknowledged: of those, the ones nobody has taken in hand.
            alerts: open alerts by (kind, severity).
            partitions: how many partitions are being read.
        """
        _replace(self._lag, self._lags, lags)
        self._lags = set(lags)
        for status in FLEET_STATUS_LABELS:
            self._sessions.labels(status).set(statuses.get(status, 0))
        self._open_halts.set(open_halts)
        self._unacknowledged.set(unacknowledged)
        for kind in ALERT_LABELS:
            for severity in SEVERITY_LABELS:
                self._alerts.labels(kind, severity).set(alerts.get((kind, severity), 0))
        self._partitions.set(partitions)

    def _counter(self, name: str) -> Counter:
        series = _SERIES[name]
        return Counter(series.name, series.help, series.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        series = _SERIES[name]
        return Gauge(series.name, series.help, series.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        series = _SERIES[name]
        return Histogram(series.name, series.help, series.labels, registry=self.registry, buckets=series.buckets)


def _replace(gauge: Gauge, before: Set[tuple[str, int]], after: Mapping[tuple[str, int], int]) -> None:
    for topic, partition in before - after.keys():
        gauge.remove(topic, str(partition))
    for (topic, partition), value in after.items():
        gauge.labels(topic, str(partition)).set(value)
