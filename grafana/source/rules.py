"""The alert rules, from which the files for Prometheus and for Grafana are made.

Series are added up over replicas: a session moves from one to another, and an alert must not change with it. Labels
that a scrape may add (`cluster`, `namespace`) are kept; where there are none, grouping by them does no harm.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.engine.rules import CATALOGUE
from sidecar.observe.catalogue import STALE_LABELS

DOCS = "https://frontier-sidecar.example/docs"
"""Where `docs/` can be read. Whoever installs this sets it: `python -m grafana.source --docs URL`."""

DATASOURCE = "frontier-prometheus"
"""The uid of the provisioned datasource, which Grafana-managed rules have to name."""

FOLDER = "frontier-sidecar"

WHERE = "cluster, namespace, job"

VALUE = "{value}"
"""Stands in annotations for the measured value."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Describe one alert: it fires while the value is above the bound, for each set of labels by itself.

    Args:
        value: a PromQL expression; in brackets where something stands beside it, unless it is of one line.
        hold: how long it must be above the bound first (`for`).
        keep: for how long it goes on firing when it no longer is (`keep_firing_for`).
        summary: one sentence; may use `VALUE` and `{{ $labels.… }}`.
        description: what it means and what comes first; the runbook has the rest.
        dashboard: the uid of the dashboard to look at.
    """

    name: str
    severity: Literal["page", "warning"]
    value: str
    above: float
    hold: str
    keep: str
    summary: str
    description: str
    dashboard: str

    @property
    def expr(self) -> str:
        """Return the PromQL expression that has series exactly while the alert is due."""
        value = f"(\n{self.value}\n)" if "\n" in self.value else self.value
        return f"{value}\n> {self.above:g}"


@dataclass(frozen=True)
class Bounds:
    """Set what is too much, and how time passes.

    Args:
        stale: seconds a checkpoint may be stale; one of the bounds that the sidecar counts by.
        lag: records that may be left to read.
        unwell: seconds that a partition may make no progress though there is something to read.
        unkept: seconds without a snapshot; four times the default of `snapshot.interval`.
        pace: 1; smaller makes every duration shorter, for tests that cannot wait.
    """

    stale: int = 900
    lag: int = 10_000
    unwell: int = 120
    unkept: int = 1200
    pace: float = 1.0

    def __post_init__(self) -> None:
        if str(self.stale) not in STALE_LABELS:
            raise ValueError(f"stale is {self.stale}, and the sidecar counts by {', '.join(STALE_LABELS)}")

    def lasting(self, seconds: float) -> str:
        """Return a duration as Prometheus writes it, at the pace."""
        scaled = max(1, round(seconds * self.pace)) if seconds else 0
        for unit, size in (("h", 3600), ("m", 60)):
            if scaled and scaled % size == 0:
                return f"{scaled // size}{unit}"
        return f"{scaled}s"


def grew(series: str, window: str) -> str:
    """Return an expression for how much counters grew in a window.

    A series younger than the window grew by all it counts: whoever starts with a backlog may count a finding before it
    is first scraped, and `increase` would never see it. The price: a Prometheus that begins with empty storage takes
    what was counted before for new, once.
    """
    young = f"{series} unless {series} offset {window}"
    return f"sum by ({WHERE}) (\n  ({young})\n  or increase({series}[{window}])\n)"


def _findings(*rules: str) -> str:
    unknown = [rule for rule in rules if rule not in CATALOGUE]
    if unknown:
        raise ValueError(f"the catalogue has no rules {', '.join(unknown)}")
    operator = "=" if len(rules) == 1 else "=~"
    return f'sidecar_findings_total{{rule{operator}"{"|".join(rules)}"}}'


def sessions(bounds: Bounds) -> tuple[Alert, ...]:
    """Return the alerts about what the agents and compactors do."""
    at = bounds.lasting
    return (
        Alert(
            name="FrontierDegraded",
            severity="page",
            value=f'sum by ({WHERE}) (sidecar_frontier_degraded{{status=~"corrupt|lossy"}})\n'
            f"+ sum by ({WHERE}) (sidecar_open_halts)",
            above=0,
            hold=at(60),
            keep=at(300),
            summary=f"Corrupt or lossy sessions, and open halts: {VALUE}. What their agents would resume from cannot be"
            " trusted.",
            description="Irreversible actions of the halted sessions are refused. Find the sessions and their reasons"
            " (`sidecar halts list`, or the fleet's board), re-expand from the checkpoint that each halt names, and"
            " reconcile.",
            dashboard="frontier-fleet",
        ),
        Alert(
            name="RecoveryExposed",
            severity="warning",
            value=f'sum by ({WHERE}) (sidecar_stale_sessions{{longer_than="{bounds.stale}"}})',
            above=0,
            hold=at(300),
            keep=at(600),
            summary="Sessions without a checkpoint of their newest authorizations for over"
            f" {bounds.stale // 60} minutes: {VALUE}.",
            description="Were such an agent to crash now, it would resume without knowing what has been allowed or"
            " forbidden since. Look at whether its compactor still writes checkpoints.",
            dashboard="frontier-fleet",
        ),
        Alert(
            name="IrreversibleActionUnauthorized",
            severity="page",
            value=grew(_findings("action_unauthorized", "action_on_degraded"), at(900)),
            above=0,
            hold=at(0),
            keep=at(900),
            summary=f"Irreversible actions that nothing in the log allowed: {VALUE}.",
            description="It has happened already: stop the sessions, establish who or what decided the actions, and"
            " undo what can be undone.",
            dashboard="frontier-fleet",
        ),
        Alert(
            name="ProhibitionsLost",
            severity="warning",
            value=grew(_findings("constraint_dropped"), at(1800)),
            above=0,
            hold=at(0),
            keep=at(1800),
            summary=f"Prohibitions in force that summaries have lost: {VALUE}.",
            description="An agent that works from such a summary will do what it was told not to do. Find the"
            " summarizer (model, level), and carry prohibitions in a channel that is not summarized.",
            dashboard="frontier-quality",
        ),
        Alert(
            name="IdempotenceViolations",
            severity="warning",
            value=grew(_findings("idempotence_violation", "orphaned_resummarized"), at(1800)),
            above=0,
            hold=at(0),
            keep=at(1800),
            summary=f"Nodes that were summarized again and lost more by it: {VALUE}.",
            description="Compaction that is no fixed point loses more with every pass. Freeze the nodes at their first"
            " generation, and restore the referents that are gone.",
            dashboard="frontier-quality",
        ),
        Alert(
            name="HaltUnacknowledged",
            severity="page",
            value=f'sum by ({WHERE}) (sidecar_fleet_alerts{{kind="unacknowledged_halt"}})',
            above=0,
            hold=at(60),
            keep=at(60),
            summary=f"Halts that have waited too long in nobody's hands: {VALUE}.",
            description="The agents wait for a person. `sidecar halts list` names the halts; take each in hand with"
            " `sidecar halts ack`. How long a halt may wait is the setting `alerts.halt_after`.",
            dashboard="frontier-fleet",
        ),
    )


def service(bounds: Bounds) -> tuple[Alert, ...]:
    """Return the alerts about the sidecar itself."""
    at = bounds.lasting
    refused, too_large = "sidecar_snapshots_refused_total", "sidecar_snapshots_too_large_total"
    built = '{__name__=~"sidecar_(fleet_)?build_info"}'
    return (
        Alert(
            name="SidecarDown",
            severity="page",
            value=f"(up == bool 0 and on ({WHERE}) group by ({WHERE}) (last_over_time({built}[1d])))\n"
            "or absent(sidecar_build_info)",
            above=0,
            hold=at(120),
            keep=at(60),
            summary='{{ if $labels.instance }}{{ $labels.instance }} (job "{{ $labels.job }}") does not answer.'
            "{{ else }}There is no sidecar: nothing is judged.{{ end }}",
            description="Agents are not judged by it; its partitions go to other replicas, if there are any. Agents"
            " that ask the guard are refused.",
            dashboard="frontier-sidecar",
        ),
        Alert(
            name="SidecarStalled",
            severity="page",
            value=f"(time() - min by ({WHERE}, instance) (sidecar_last_well_timestamp_seconds))\n"
            f"or (time() - min by ({WHERE}, instance) (sidecar_fleet_last_progress_timestamp_seconds)\n"
            f"    and on ({WHERE}, instance) sum by ({WHERE}, instance) (sidecar_fleet_lag_records) > 0)",
            above=bounds.unwell * bounds.pace,
            hold=at(60),
            keep=at(60),
            summary="Seconds without progress at {{ $labels.instance }}: " + f"{VALUE}.",
            description="There is something to read and it is not read: the brokers do not answer, the group does not"
            " assign, or the program hangs. /readyz says which.",
            dashboard="frontier-sidecar",
        ),
        Alert(
            name="SidecarLagging",
            severity="warning",
            value=f'sum by ({WHERE}) ({{__name__=~"sidecar_(fleet_)?lag_records"}})',
            above=bounds.lag,
            hold=at(600),
            keep=at(300),
            summary="Records that {{ $labels.job }} is behind: " + f"{VALUE}.",
            description="Findings and halts come late, and the guard refuses what it cannot answer in time. Add"
            " replicas (up to the number of partitions), or find what floods the topics.",
            dashboard="frontier-sidecar",
        ),
        Alert(
            name="DeadLettersGrowing",
            severity="warning",
            value=grew("sidecar_dead_letters_total", at(300)),
            above=0,
            hold=at(600),
            keep=at(300),
            summary=f"Records that cannot be read keep coming; in the last minutes: {VALUE}.",
            description="Each takes a log position that then counts as missing, so checkpoints of its session cannot be"
            " verified. The dead-letter topic has the records, with reasons.",
            dashboard="frontier-sidecar",
        ),
        Alert(
            name="SnapshotsFailing",
            severity="warning",
            value=f"(time() - min by ({WHERE}) (sidecar_last_snapshot_timestamp_seconds)"
            f" > {bounds.unkept * bounds.pace:g})\n"
            f"or {grew(refused, at(3600))} > 0\n"
            f"or {grew(too_large, at(3600))} > 0",
            above=0,
            hold=at(60),
            keep=at(600),
            summary="{{ $labels.job }} cannot keep its state, or could not use what it had kept.",
            description="Restarts take longer (the log is read again), and where the log is gone as well, sessions"
            " cannot be verified any more.",
            dashboard="frontier-sidecar",
        ),
    )


def groups(bounds: Bounds | None = None) -> dict[str, tuple[Alert, ...]]:
    """Return all alerts, by the name of their group."""
    bounds = bounds or Bounds()
    return {"frontier-sessions": sessions(bounds), "frontier-sidecar": service(bounds)}


def every(bounds: Bounds | None = None) -> Iterable[Alert]:
    """Yield all alerts."""
    for alerts in groups(bounds).values():
        yield from alerts


def runbook(alert: str, docs: str = DOCS) -> str:
    """Return the address of an alert's runbook."""
    return f"{docs.rstrip('/')}/runbooks/{alert}.md"


# --- as files -----------------------------------------------------------------------------------------------------


def for_prometheus(bounds: Bounds | None = None, docs: str = DOCS, interval: str | None = None) -> dict[str, Any]:
    """Return the content of a rules file of Prometheus.

    Args:
        bounds: what is too much.
        docs: where the documentation can be read.
        interval: how often the rules are evaluated; None: as Prometheus is configured.
    """
    return {
        "groups": [
            {
                "name": name,
                **({"interval": interval} if interval else {}),
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expr,
                        "for": alert.hold,
                        "keep_firing_for": alert.keep,
                        "labels": {"severity": alert.severity},
                        "annotations": _annotations(alert, docs, '{{ printf "%.0f" $value }}'),
                    }
                    for alert in alerts
                ],
            }
            for name, alerts in groups(bounds).items()
        ]
    }


def for_grafana(
    bounds: Bounds | None = None, docs: str = DOCS, datasource: str = DATASOURCE, interval: str = "1m"
) -> dict[str, Any]:
    """Return the content of a provisioning file of Grafana-managed alert rules.

    A query gives the value, and an expression of Grafana's compares it, so that the rule's page shows the value also
    while all is well. No series means that nobody exposes it, which is not what these rules are about.

    Args:
        bounds: what is too much.
        docs: where the documentation can be read.
        datasource: the uid of the Prometheus datasource.
        interval: how often the rules are evaluated.
    """
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": name,
                "folder": FOLDER,
                "interval": interval,
                "rules": [_grafana_rule(alert, docs, datasource) for alert in alerts],
            }
            for name, alerts in groups(bounds).items()
        ],
    }


def _grafana_rule(alert: Alert, docs: str, datasource: str) -> dict[str, Any]:
    return {
        "uid": f"frontier-{alert.name.lower()}",
        "title": alert.name,
        "condition": "C",
        "for": alert.hold,
        "keepFiringFor": alert.keep,
        "noDataState": "OK",
        "execErrState": "Error",
        "isPaused": False,
        "labels": {"severity": alert.severity},
        "annotations": _annotations(alert, docs, '{{ printf "%.0f" $values.A.Value }}'),
        "data": [
            {
                "refId": "A",
                "relativeTimeRange": {"from": 600, "to": 0},
                "datasourceUid": datasource,
                "model": {"refId": "A", "expr": alert.value, "instant": True, "range": False},
            },
            {
                "refId": "C",
                "relativeTimeRange": {"from": 0, "to": 0},
                "datasourceUid": "__expr__",
                "model": {
                    "refId": "C",
                    "type": "threshold",
                    "datasource": {"type": "__expr__", "uid": "__expr__"},
                    "expression": "A",
                    "conditions": [{"evaluator": {"type": "gt", "params": [alert.above]}}],
                },
            },
        ],
    }


def _annotations(alert: Alert, docs: str, value: str) -> dict[str, str]:
    return {
        "summary": alert.summary.replace(VALUE, value),
        "description": alert.description,
        "runbook_url": runbook(alert.name, docs),
        "dashboard": alert.dashboard,
    }
