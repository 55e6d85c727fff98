"""Every series that the sidecar exposes, as data: the metrics and their documentation are made from it."""

from typing import Literal, get_args

from msgspec import Struct

from sidecar.engine.rules import CATALOGUE, INFERABLE
from sidecar.engine.status import LASTING, STATUSES
from sidecar.protocol.api import Code
from sidecar.protocol.openapi import ROUTES
from sidecar.protocol.outputs import AlertKind, Severity
from sidecar.protocol.records import KINDS

Type = Literal["counter", "gauge", "histogram"]

KIND_LABELS = (*KINDS, "opaque")
STATUS_LABELS = tuple(STATUSES)
LASTING_LABELS = tuple(status for status in STATUSES if status in LASTING)
STALE_LABELS = ("0", "60", "300", "900", "3600")
WHAT_LABELS = ("constraint", "fact", "referent")
LEVEL_LABELS = ("1", "2", "3", "4+")
MODELS = 20
"""Summarizer models that have series of their own: what models are called is for others to say."""

HALT_LABELS = ("halt", "clear")
COMMIT_LABELS = ("ok", "failed")
GUARD_LABELS = (
    *((route.name, decision) for route in ROUTES for decision in route.decisions),
    ("other", "not_shown"),
)
GUARD_ROUTES = (*(route.name for route in ROUTES), "other")
GUARD_CODES = get_args(Code)
ALERT_LABELS: tuple[str, ...] = get_args(AlertKind)
SEVERITY_LABELS: tuple[str, ...] = get_args(Severity)
FLEET_STATUS_LABELS = (*STATUS_LABELS, "unknown")
FINDING_LABELS = (
    *((rule.name, rule.severity) for rule in CATALOGUE.values()),
    ("constraint_dropped", "critical"),  # at a root
    *((name, "warning") for name in INFERABLE),
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
    Series(
        name="sidecar_misplaced_records_total",
        type="counter",
        labels=("topic",),
        help="Records in another partition than their session's; they are not judged, and the session is refused.",
        values=_TOPIC,
    ),
    Series(
        name="sidecar_sessions_in_two_partitions_total",
        type="counter",
        help="Questions to the guard that were refused because two partitions know the session.",
    ),
    Series(
        name="sidecar_partitions_changed",
        type="gauge",
        help="1: the number of partitions or the partitioner is not what the kept state belongs to; nothing is read and"
        " the guard refuses every question.",
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
        values="`rule`: the rules of the catalogue; `severity`: the rule's own (`constraint_dropped` also `critical`), "
        "or `warning` where the finding rests on an inferred record",
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
    Series(
        name="sidecar_longest_in_status_seconds",
        type="gauge",
        labels=("status",),
        help="How long the session that has had a status longest has had it; 0: none has it.",
        values="`status`: "
        + ", ".join(f"`{status}`" for status in LASTING_LABELS)
        + "; `stale`: only of sessions with records lately (`session.idle_after`, on files: of all); counted from when"
        " this replica saw it, and every few seconds",
    ),
    Series(
        name="sidecar_stale_sessions",
        type="gauge",
        labels=("longer_than",),
        help="Sessions whose checkpoint in force has been stale for longer: a crash now would lose authorizations.",
        values="`longer_than`: seconds, "
        + ", ".join(f"`{seconds}`" for seconds in STALE_LABELS)
        + ", each counting those of the later ones too; which sessions, and from when, as above",
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
    Series(
        name="sidecar_snapshots_too_large_total",
        type="counter",
        help="Times that a session could not be kept, its id being too long for a record: a restart cannot verify it.",
    ),
    Series(
        name="sidecar_last_snapshot_timestamp_seconds",
        type="gauge",
        help="When the partition that was kept longest ago was kept (Unix time, at a commit); absent without brokers.",
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
        name="sidecar_guard_requests_total",
        type="counter",
        labels=("route", "decision"),
        help="Requests to the guard, by what they came to.",
        values="`route`: "
        + ", ".join(f"`{name}`" for name in GUARD_ROUTES)
        + " (no such address); `decision`: that of the answer, "
        + ", ".join(f"`{name}`" for name in dict.fromkeys(decision for _, decision in GUARD_LABELS)),
    ),
    Series(
        name="sidecar_guard_refusals_total",
        type="counter",
        labels=("code",),
        help="Requests that came to anything but a plain yes, by code of their reasons; each code once a request.",
        values="`code`: " + ", ".join(f"`{code}`" for code in GUARD_CODES),
    ),
    Series(
        name="sidecar_guard_seconds",
        type="histogram",
        labels=("route",),
        help="From a request's header to its answer, waiting for `min_seq` included.",
        values="`route`: as above",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    ),
    Series(name="sidecar_guard_in_flight", type="gauge", help="Requests that the guard is working on or waiting with."),
    Series(
        name="sidecar_guard_errors_total",
        type="counter",
        help="Requests that a fault of the guard kept it from answering.",
    ),
    Series(
        name="sidecar_broker_up",
        type="gauge",
        help="Whether the last request to the brokers was answered (1) or not (0); absent without brokers.",
    ),
    Series(
        name="sidecar_last_well_timestamp_seconds",
        type="gauge",
        help="When all that is read was last well: had advanced, or had nothing to read (Unix time, of the worst).",
    ),
    Series(
        name="sidecar_last_progress_timestamp_seconds",
        type="gauge",
        help="When records were last taken in (Unix time; before the first ones: when the program started).",
    ),
    Series(
        name="sidecar_start_timestamp_seconds",
        type="gauge",
        help="When the program started (Unix time): since then its counters count.",
    ),
    Series(
        name="sidecar_build_info",
        type="gauge",
        labels=("version", "python"),
        help="Always 1.",
        values="the versions of the sidecar and of Python",
    ),
)

_FLEET_TOPIC = "`topic`: the topics that the fleet reads"

FLEET_SERIES = (
    Series(
        name="sidecar_fleet_records_total",
        type="counter",
        labels=("topic",),
        help="Records taken in.",
        values=_FLEET_TOPIC,
    ),
    Series(
        name="sidecar_fleet_unusable_records_total",
        type="counter",
        labels=("topic",),
        help="Records that could not be used; they are logged and written to the dead-letter topic.",
        values=_FLEET_TOPIC,
    ),
    Series(
        name="sidecar_fleet_lost_records_total",
        type="counter",
        labels=("topic",),
        help="Offsets that were gone from a topic before they had been read.",
        values=_FLEET_TOPIC,
    ),
    Series(
        name="sidecar_fleet_lag_records",
        type="gauge",
        labels=("topic", "partition"),
        help="Records between the position and the end.",
        values="the partitions that this worker reads; those it gives away disappear",
    ),
    Series(
        name="sidecar_fleet_sessions",
        type="gauge",
        labels=("status",),
        help="Sessions by status, of the partitions that this worker has: the sum over the workers is the fleet.",
        values="`status`: " + ", ".join(f"`{status}`" for status in FLEET_STATUS_LABELS),
    ),
    Series(name="sidecar_fleet_open_halts", type="gauge", help="Halts that are open, likewise."),
    Series(
        name="sidecar_fleet_unacknowledged_halts",
        type="gauge",
        help="Halts that are open and that nobody has taken in hand, likewise.",
    ),
    Series(
        name="sidecar_fleet_alerts",
        type="gauge",
        labels=("kind", "severity"),
        help="Alerts that are open, likewise.",
        values="`kind`: "
        + ", ".join(f"`{kind}`" for kind in ALERT_LABELS)
        + "; `severity`: "
        + ", ".join(f"`{severity}`" for severity in SEVERITY_LABELS),
    ),
    Series(
        name="sidecar_fleet_alert_records_total",
        type="counter",
        labels=("kind", "status"),
        help="Records written to the topic of alerts.",
        values="`kind`: as above; `status`: `raised`, `updated` or `cleared`",
    ),
    Series(
        name="sidecar_fleet_survival_checked",
        type="gauge",
        labels=("model", "what", "level"),
        help="Prohibitions, facts and referents that a model's summaries should have carried, in known sessions.",
        values=f"`model`: the {MODELS} that had the most to carry, `other` for the rest, `none` where none was named;"
        " `what`, `level`: as of the sidecar's own; series without anything to carry are absent",
    ),
    Series(
        name="sidecar_fleet_survival_kept",
        type="gauge",
        labels=("model", "what", "level"),
        help="Those of them that they did carry.",
        values="as above; the survival rate is kept over checked",
    ),
    Series(name="sidecar_fleet_partitions", type="gauge", help="Partitions that this worker has and reads."),
    Series(name="sidecar_fleet_changelog_records_total", type="counter", help="Rows written to the changelog."),
    Series(
        name="sidecar_fleet_commit_seconds",
        type="histogram",
        help="Time to write the changed rows of a partition and its positions.",
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    ),
    Series(
        name="sidecar_fleet_failed_writes_total",
        type="counter",
        help="Times that the brokers did not take what was to be written; it is tried again.",
    ),
    Series(
        name="sidecar_fleet_foreign_writes_total",
        type="counter",
        help="Times that somebody else had written to a changelog partition of this worker; it is written anew then.",
    ),
    Series(name="sidecar_fleet_rebalances_total", type="counter", help="Rebalances of the group."),
    Series(
        name="sidecar_fleet_recovering_records",
        type="gauge",
        help="Changelog records still to be read before the tables are whole; 0: they are.",
    ),
    Series(
        name="sidecar_fleet_peer_requests_total",
        type="counter",
        labels=("result",),
        help="Questions to other workers.",
        values="`result`: `ok` or `failed`",
    ),
    Series(
        name="sidecar_fleet_broker_up",
        type="gauge",
        help="Whether the brokers took what was written last (1) or not (0).",
    ),
    Series(
        name="sidecar_fleet_last_progress_timestamp_seconds",
        type="gauge",
        help="When records were last taken in (Unix time; before the first ones: when the program started).",
    ),
    Series(
        name="sidecar_fleet_build_info",
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


def fleet_catalogue() -> tuple[Series, ...]:
    """Return every series that `sidecar fleet` exposes, which is a process of its own."""
    return FLEET_SERIES


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


_FLEET_INTRODUCTION = """\
# Metrics of the fleet

What `sidecar fleet` exposes, on its own address (default `127.0.0.1:9465`), in the same way.
"""


def reference_markdown() -> str:
    """Return the text of `docs/metrics.md`."""
    lines = [_INTRODUCTION]
    for series in _ALL:
        lines += _told(series)
    lines.append(_FLEET_INTRODUCTION)
    for series in FLEET_SERIES:
        lines += _told(series)
    return "\n\n".join(part.strip() for part in lines) + "\n"


def _told(series: Series) -> list[str]:
    labels = f"{{{','.join(series.labels)}}}" if series.labels else ""
    lines = [f"## `{series.name}{labels}`\n\n{series.type.capitalize()}. {series.help}"]
    if series.values:
        lines.append(f"Labels: {series.values}.")
    if series.buckets:
        lines.append(f"Buckets: {', '.join(f'{bound:g}' for bound in series.buckets)}.")
    return lines


if __name__ == "__main__":
    import click

    click.echo(reference_markdown(), nl=False)
