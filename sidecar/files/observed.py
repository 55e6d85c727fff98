"""Tell the metrics and the health check what a watch does, once a batch."""

import time
from collections import Counter

from msgspec import Struct

from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.outputs import Finding
from sidecar.protocol.records import Hole, Record

TASK = "files"
"""What the metrics call the input of a watch (its topic), and the health check its one task."""


_AGES_EVERY = 5.0


class Batch(Struct, kw_only=True):
    """Hold what one look at the files came to; times are of `time.monotonic`."""

    fetched_at: float
    lines: int
    unreadable: int
    arrivals: list[Arrival]
    outcome: Outcome
    seconds: float | None
    bytes_behind: int


class Observed:
    """Pass on what happens; without metrics or health, to nobody.

    Args:
        metrics: counts it.
        health: judges it.
    """

    def __init__(self, metrics: Metrics | None, health: Health | None) -> None:
        self._metrics = metrics
        self._health = health
        self._taken = 0
        self._line = 500.0
        self._behind = 0
        self._ages_due = 0.0
        if metrics is not None:
            metrics.declare_topics([TASK])
        if health is not None:
            health.assign([TASK], time.monotonic())

    def restored(self, engine: Engine) -> None:
        """Note that the state has been restored, and reading begins."""
        if self._metrics is not None:
            self._metrics.adopt(TASK, engine)
        if self._health is not None:
            self._health.restored(TASK, time.monotonic())

    def batch(self, batch: Batch, engine: Engine) -> None:
        """Note a look at the files, also one that found nothing: it is a sign of life."""
        now = time.monotonic()
        self._taken += batch.lines
        # How many lines are still to be read can only be guessed, from their size so far.
        read = self._behind - batch.bytes_behind
        if batch.lines and read > 0:
            self._line = max(1.0, read / batch.lines)
        self._behind = batch.bytes_behind
        lag = max(1, int(batch.bytes_behind / self._line)) if batch.bytes_behind else 0
        if self._health is not None:
            self._health.observe(TASK, self._taken, lag, now)
        if self._metrics is None:
            return
        kinds = Counter((TASK, _kind(record)) for record, _, _ in batch.arrivals if type(record) is not Hole)
        self._metrics.observe_batch(kinds, {TASK: batch.unreadable} if batch.unreadable else None, now=time.time())
        self._metrics.observe_outcome(TASK, engine, batch.outcome, seconds=batch.seconds)
        self._metrics.set_lags({(TASK, 0): lag})
        if self._health is not None:
            self._metrics.set_well(time.time() - self._health.unwell(now))
        if now >= self._ages_due:
            self._metrics.set_ages(engine.ages(now))
            self._ages_due = now + _AGES_EVERY

    def written(self, findings: list[tuple[float | None, float]], dead_letters: int) -> None:
        """Note that findings have been written out.

        Args:
            findings: of each, the deciding record's timestamp (Unix seconds, if known) and when it was read.
            dead_letters: how many lines went to the dead letters with them.
        """
        if self._metrics is None:
            return
        now, clock = time.time(), time.monotonic()
        from_record = [now - stamp for stamp, _ in findings if stamp is not None]
        self._metrics.observe_detection(from_record, [clock - fetched for _, fetched in findings])
        if dead_letters:
            self._metrics.observe_dead_letters({TASK: dead_letters})


def stamps(findings: list[Finding], arrivals: list[Arrival], fetched_at: float) -> list[tuple[float | None, float]]:
    """Return for each finding the timestamp of the record that decided it, if that came in the same batch."""
    if not findings:
        return []
    of: dict[object, Record] = {source: record for record, _, source in arrivals}
    known = [of.get(finding.source) if finding.source is not None else None for finding in findings]
    return [(record.ts.timestamp() if record is not None and record.ts else None, fetched_at) for record in known]


def _kind(record: Record) -> str:
    tag = record.__struct_config__.tag
    return tag if isinstance(tag, str) else "opaque"
