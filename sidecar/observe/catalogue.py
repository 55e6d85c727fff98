"""Every series that the sidecar exposes, as data: the metrics and their documentation are made from it."""

from typing import Literal

from msgspec import Struct

from sidecar.engine.rules import CATALOGUE
from sidecar.engine.status import STATUSES
from sidecar.protocol.records import KINDS

Type = Literal["counter", "gauge", "histogram"]

KIND_LABELS = (*KINDS, "opaque")
STATUS_LABELS = tuple(STATUSES)
WHAT_LABELS = ("constraint", "fact", "referent")
LEVEL_LABELS = ("1", "2", "3", "4+")
HALT_LABELS = ("halt", "clear")
COMMIT_LABELS = ("ok", "failed")
FINDING_LABELS = (
    *((rule.name, rule.severity) for rule in CATALOGUE.values()),
    ("constraint_dropped", "critical"),  # at a root: the one rule of which the severity varies
)


class Series(Struct, frozen=True, kw_only=True):
    """Describe one family of series; `buckets` are a histogram's upper bounds, without the infinite one."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    values: str = ""
    """What the labels can be, for the documentation."""
    buckets: tuple[float, ...] = ()


_TOPIC = "`topic`: the input topics of the configuration (`watch`: `files`), and `other` if there are more"

_ALL = (
    Series(
        name="sidecar_records_total",
        type="counter",
        labels=("topic", "kind"),
        help="Records read and understood.",
        values=f"{_TOPIC}; `kind`: the protocol's kinds, and `opaque` for all others",
    ),
    Series(
        name="sidecar_unreadable_records_total",
        type="counter",
        labels=("topic",),
        help="Records that could not be read.",
        values=_TOPIC,
    ),
    Series(
        name="sidecar_dead_letters_total",
        type="counter",
        labels=("topic",),
        help="Unreadable records written to the dead-letter topic, by the topic they came from.",
        values=_TOPIC,
    ),
    Series(name="sidecar_duplicate_records_total", type="counter", help="Records delivered again, and ignored."),
    Series(
        name="sidecar_late_records_total",
        type="counter",
        help="Records that came after their position had been given up, and were ignored.",
    ),
    Series(
        name="sidecar_conflicting_records_total",
        type="counter",
        help="Records that claim a position which another record has.",
    ),
    Series(name="sidecar_missing_positions_total", type="counter", help="Log positions given up as missing."),
    Series(
        name="sidecar_findings_total",
        type="counter",
        labels=("rule", "severity"),
        help="Findings.",
        values="`rule`: the rules of the catalogue; `severity`: the rule's own (`constraint_dropped`: two)",
    ),
    Series(
        name="sidecar_halts_total",
        type="counter",
        labels=("status",),
        help="Halts opened and cleared.",
        values="`status`: `halt` or `clear`",
    ),
    Series(name="sidecar_open_halts", type="gauge", help="Halts that are open now."),
    Series(
        name="sidecar_frontier_degraded",
        type="gauge",
        labels=("status",),
        help="Sessions by status; degraded are those that are corrupt, lossy, degraded or unverified.",
        values="`status`: " + ", ".join(f"`{status}`" for status in STATUS_LABELS),
    ),
    Series(name="sidecar_sessions", type="gauge", help="Sessions that are followed now."),
    Series(
        name="sidecar_reorder_waiting_records",
        type="gauge",
        help="Records held back for a log position that has not come.",
    ),
    Series(name="sidecar_reorder_waiting_sessions", type="gauge", help="Sessions with records held back."),
    Series(
        name="sidecar_survival_checked_total",
        type="counter",
        labels=("what", "level"),
        help="Prohibitions, facts and referents that a summary should have carried.",
        values="`what`: `constraint`, `fact`, `referent`; `level`: the summary's level, `4+` from 4 on",
    ),
    Series(
        name="sidecar_survival_kept_total",
        type="counter",
        labels=("what", "level"),
        help="Those of them that it did carry (referents: that were reachable).",
        values="as above; the survival rate is kept over checked",
    ),
    Series(
        name="sidecar_detection_from_record_seconds",
        type="histogram",
        help="From the timestamp of the deciding record to its finding being written.",
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
    ),
    Series(
        name="sidecar_detection_from_fetch_seconds",
        type="histogram",
        help="From the fetch of the deciding record to its finding being written.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    ),
    Series(
        name="sidecar_batch_records",
        type="histogram",
        help="Records in a batch.",
        buckets=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
    ),
    Series(
        name="sidecar_fold_seconds",
        type="histogram",
        help="Time to judge a batch.",
        buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    ),
    Series(
        name="sidecar_lag_records",
        type="gauge",
        labels=("topic", "partition"),
        help="Records between the position and the end, as the last fetch saw it.",
        values="the partitions that this replica reads; those it gives away disappear",
    ),
    Series(
        name="sidecar_commits_total",
        type="counter",
        labels=("result",),
        help="Commits of offsets, with exactly_once of the outputs too; after a failed one the state is restored.",
        values="`result`: `ok` or `failed`",
    ),
    Series(name="sidecar_snapshot_records_total", type="counter", help="Records written to the snapshot topic."),
    Series(
        name="sidecar_snapshot_bytes_total",
        type="counter",
        help="Bytes of keys and values written to the snapshot topic.",
    ),
    Series(
        name="sidecar_snapshots_refused_total",
        type="counter",
        help="Times that a partition's snapshots could not be used, and its state was made again from the log.",
    ),
    Series(name="sidecar_restoring_partitions", type="gauge", help="Partitions whose state is being restored."),
    Series(
        name="sidecar_restored_records_total",
        type="counter",
        help="Records of the snapshot topic and of the log read to restore state.",
    ),
    Series(
        name="sidecar_restore_seconds",
        type="histogram",
        help="Time from being assigned a partition to having its state.",
        buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    ),
    Series(
        name="sidecar_broker_up",
        type="gauge",
        help="Whether the last request to the brokers was answered (1) or not (0); absent without brokers.",
    ),
    Series(
        name="sidecar_last_progress_timestamp_seconds",
        type="gauge",
        help="When records were last taken in (Unix time; before the first ones: when the program started).",
    ),
    Series(
        name="sidecar_build_info",
        type="gauge",
        labels=("version", "python"),
        help="Always 1.",
        values="the versions of the sidecar and of Python",
    ),
)

SERIES: dict[str, Series] = {series.name: series for series in _ALL}


def metrics_catalogue() -> tuple[Series, ...]:
    """Return every series that the sidecar exposes: name, type, labels, help."""
    return _ALL


_INTRODUCTION = """\
# Metrics

<!-- Made by `python -m sidecar.observe.catalogue`; a test compares it with the code. -->

`GET /metrics` on the address of `--http` (default `127.0.0.1:9464`) answers in the Prometheus text format, or in
OpenMetrics where that is asked for. Nothing is asked of Kafka to answer it.

- Every series whose labels are known beforehand is there from the start, at zero; no value is ever NaN.
- No label grows with the number of sessions: how many series there are depends on the configuration alone.
- A counter begins at zero with the process. What a replica takes over from another (its sessions, open halts and
  waiting records) is in the gauges at once and not in the counters.
- A histogram `NAME` is exposed as `NAME_bucket`, `NAME_sum` and `NAME_count`.
"""


def reference_markdown() -> str:
    """Return the text of `docs/metrics.md`."""
    lines = [_INTRODUCTION]
    for series in _ALL:
        labels = f"{{{','.join(series.labels)}}}" if series.labels else ""
        lines.append(f"## `{series.name}{labels}`\n\n{series.type.capitalize()}. {series.help}")
        if series.values:
            lines.append(f"Labels: {series.values}.")
        if series.buckets:
            lines.append(f"Buckets: {', '.join(f'{bound:g}' for bound in series.buckets)}.")
    return "\n\n".join(part.strip() for part in lines) + "\n"


if __name__ == "__main__":
    import click

    click.echo(reference_markdown(), nl=False)
