"""The alert rules, from which the files for Prometheus and for Grafana are made.

Series are added up over replicas: a session moves from one to another, and an alert must not change with it. Labels
that a scrape may add (`cluster`, `namespace`) are kept; where there are none, grouping by them does no harm.

An alert must not end because nobody is left to say that it lasts. What is counted for gauges is therefore what they
said last, where all who could say it are gone (`as_it_was`); that they are gone is `SidecarDown`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.engine.rules import CATALOGUE
from sidecar.observe.catalogue import STALE_LABELS

DOCS: str | None = None
"""Where `docs/` can be read, which only who installs this knows: `python -m grafana.source --docs URL`.

Without it nothing links there. The runbooks are at hand all the same: `sidecar runbook`, and a dashboard of Grafana's.
"""

DATASOURCE = "frontier-prometheus"
"""The uid of the provisioned datasource, which Grafana-managed rules have to name."""

FOLDER = "frontier-sidecar"

WHERE = "cluster, namespace, job"
EACH = f"{WHERE}, instance"

BUILT = '{__name__=~"sidecar_(fleet_)?build_info"}'
"""What everybody of ours exposes while it can be scraped."""

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
        description: what it means.
        first: what to do first, by somebody who has nothing at hand but this text.
        dashboard: the uid of the dashboard to look at.
        panel: the title of the panel there that shows the value.
        missing: what Grafana makes of it when the query gives no series at all.
        failing: what Grafana makes of it when the query cannot be asked.
    """

    name: str
    severity: Literal["page", "warning"]
    value: str
    above: float
    hold: str
    keep: str
    summary: str
    description: str
    first: str
    dashboard: str
    panel: str
    missing: Literal["OK", "Alerting"] = "OK"
    failing: Literal["KeepLast", "Error"] = "KeepLast"

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


def grew(series: str, window: str, seconds: float) -> str:
    """Return an expression for how much counters grew in a window, whatever was scraped of it.

    `increase` alone knows too little of a process that counted before it was first scraped (whoever starts with a
    backlog), and of one that could not be scraped for longer than the window. The first counted all it has since it
    began; the other has more now than when it was seen last. That a scrape has failed must not look like growth: what
    was counted before would be news once more.

    Args:
        series: a selector.
        window: how long it looks back, as Prometheus writes it.
        seconds: the same as a number.
    """
    return (
        f"sum by ({WHERE}) (\n"
        f"  ({series} > 0 and on ({EACH}) time() - sidecar_start_timestamp_seconds < {seconds:g})\n"
        f"  or ({series} - last_over_time({series}[1d] offset {window}) > 0)\n"
        f"  or increase({series}[{window}])\n)"
    )


def as_it_was(value: str, within: str, step: str) -> str:
    """Return an expression for a value, or what it was last where all who could tell are gone."""
    return f"{value}\nor last_over_time((\n{value}\n)[{within}:{step}])"


def _findings(*rules: str) -> str:
    unknown = [rule for rule in rules if rule not in CATALOGUE]
    if unknown:
        raise ValueError(f"the catalogue has no rules {', '.join(unknown)}")
    operator = "=" if len(rules) == 1 else "=~"
    return f'sidecar_findings_total{{rule{operator}"{"|".join(rules)}"}}'


def sessions(bounds: Bounds) -> tuple[Alert, ...]:
    """Return the alerts about what the agents and compactors do."""
    at = bounds.lasting
    quarter, half = (900, 1800)
    return (
        Alert(
            name="FrontierDegraded",
            severity="page",
            value=as_it_was(
                f'sum by ({WHERE}) (sidecar_frontier_degraded{{status=~"corrupt|lossy"}})\n'
                f"+ sum by ({WHERE}) (sidecar_open_halts)",
                at(6 * 3600),
                at(60),
            ),
            above=0,
            hold=at(60),
            keep=at(300),
            summary=f"Corrupt or lossy sessions, and open halts: {VALUE}. What their agents would resume from cannot be"
            " trusted.",
            description="Irreversible actions of the halted sessions are refused until their logs say that they have"
            " been put right. One fault often opens several halts.",
            first="`sidecar halts list` names the sessions, why, and from where to go on. Take each in hand (`sidecar"
            " halts ack HALT_ID --by NAME --decision TEXT`), then re-expand from there, reconcile, and let the"
            " compactor write a new checkpoint.",
            dashboard="frontier-fleet",
            panel="Open halts over time",
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
            " forbidden since.",
            first="Look at whether the compactor of these sessions runs and writes checkpoints; which sessions they"
            " are, the fleet's board says (status stale).",
            dashboard="frontier-fleet",
            panel="Sessions with a stale checkpoint, by how long",
        ),
        Alert(
            name="IrreversibleActionUnauthorized",
            severity="page",
            value=grew(_findings("action_unauthorized", "action_on_degraded"), at(quarter), quarter * bounds.pace),
            above=0,
            hold=at(0),
            keep=at(quarter),
            summary=f"Irreversible actions that nothing in the log allowed: {VALUE}.",
            description="It has happened already. The sessions are halted since, which does not undo the action.",
            first="`sidecar halts list` names the sessions (action_unauthorized, action_on_degraded). Stop their"
            " agents, establish who or what decided the actions, and undo what can be undone.",
            dashboard="frontier-fleet",
            panel="Irreversible actions that nothing allowed",
        ),
        Alert(
            name="ProhibitionsLost",
            severity="warning",
            value=grew(_findings("constraint_dropped"), at(half), half * bounds.pace),
            above=0,
            hold=at(0),
            keep=at(half),
            summary=f"Prohibitions in force that summaries have lost: {VALUE}.",
            description="An agent that works from such a summary will do what it was told not to do. Its session is"
            " halted; this is about the summarizer.",
            first="Find the level and the model that lose them (dashboard Compaction quality), take that model out of"
            " use for summaries, and carry prohibitions in a channel that is not summarized.",
            dashboard="frontier-quality",
            panel="Floors: what was lost, and how",
        ),
        Alert(
            name="IdempotenceViolations",
            severity="warning",
            value=grew(_findings("idempotence_violation", "orphaned_resummarized"), at(half), half * bounds.pace),
            above=0,
            hold=at(0),
            keep=at(half),
            summary=f"Nodes that were summarized again and lost more by it: {VALUE}.",
            description="Compaction that is no fixed point loses more with every pass, and each pass reports success.",
            first="Stop the compactor from summarizing these nodes again (`sidecar halts list` names their sessions),"
            " and restore the referents that are gone before anything else is summarized.",
            dashboard="frontier-quality",
            panel="Idempotence",
        ),
        Alert(
            name="HaltUnacknowledged",
            severity="page",
            value=as_it_was(
                f'sum by ({WHERE}) (sidecar_fleet_alerts{{kind="unacknowledged_halt"}})', at(6 * 3600), at(60)
            ),
            above=0,
            hold=at(60),
            keep=at(300),
            summary=f"Halts that have waited too long in nobody's hands: {VALUE}.",
            description="The agents wait for a person. How long a halt may wait is the setting `alerts.halt_after`.",
            first="`sidecar halts list` names the halts; take each in hand with `sidecar halts ack HALT_ID --by NAME"
            " --decision TEXT`.",
            dashboard="frontier-fleet",
            panel="The fleet view's own alerts",
        ),
    )


def service(bounds: Bounds) -> tuple[Alert, ...]:
    """Return the alerts about the sidecar itself."""
    at = bounds.lasting
    hour = 3600
    refused, too_large = (
        grew(f"sidecar_snapshots_{what}_total", at(hour), hour * bounds.pace) for what in ("refused", "too_large")
    )
    return (
        Alert(
            name="SidecarDown",
            severity="page",
            # A target of ours that does not answer; a job of ours that has no targets any more; no tail for a day.
            value=f"(up == bool 0 and on ({WHERE}) group by ({WHERE}) (last_over_time({BUILT}[3d])))\n"
            f"or (group by ({WHERE}) (last_over_time({BUILT}[1d])) unless on ({WHERE}) group by ({WHERE}) (up))\n"
            "or absent(last_over_time(sidecar_build_info[1d]))",
            above=0,
            hold=at(120),
            keep=at(60),
            summary='{{ if $labels.instance }}{{ $labels.instance }} (job "{{ $labels.job }}") does not answer.'
            '{{ else if $labels.job }}Nobody of job "{{ $labels.job }}" is left.'
            "{{ else }}There is no sidecar: nothing is judged.{{ end }}",
            description="Agents are not judged by it; its partitions go to other replicas, if there are any. Agents"
            " that ask the guard are refused. Records wait on Kafka: nothing is lost, it is late.",
            first="Ask it why: `sidecar health` on its machine, then the last lines of its log (`kubectl logs"
            " --previous`, `journalctl -u frontier-sidecar`), which say what to change. Then start it.",
            dashboard="frontier-sidecar",
            panel="Replicas and versions",
            missing="Alerting",
            failing="Error",
        ),
        Alert(
            name="SidecarStalled",
            severity="page",
            value=f"(time() - min by ({EACH}) (sidecar_last_well_timestamp_seconds))\n"
            f"or (time() - min by ({EACH}) (sidecar_fleet_last_progress_timestamp_seconds)\n"
            f"    and on ({EACH}) (sum by ({EACH}) (sidecar_fleet_lag_records) > 0\n"
            f"        or min by ({EACH}) (sidecar_fleet_broker_up) == 0))",
            above=bounds.unwell * bounds.pace,
            hold=at(60),
            keep=at(60),
            summary="Seconds without progress at {{ $labels.instance }}: " + f"{VALUE}.",
            description="There is something to read and it is not read: the brokers do not answer, the group does not"
            " assign, or the program hangs.",
            first="`curl http://{{ $labels.instance }}/readyz` names the partition and the reason. Where that is not"
            " the brokers, restart the replica: nothing is lost by it, and nothing said twice. Keep its log.",
            dashboard="frontier-sidecar",
            panel="Without progress for",
        ),
        Alert(
            name="SidecarLagging",
            severity="warning",
            value=f'sum by ({WHERE}) ({{__name__=~"sidecar_(fleet_)?lag_records"}})',
            above=bounds.lag,
            hold=at(600),
            keep=at(300),
            summary="Records that {{ $labels.job }} is behind: " + f"{VALUE}.",
            description="Findings and halts come late, and the guard refuses what it cannot answer in time.",
            first="Look at whether it falls by itself (Lag, by topic). If it rises, add replicas, up to the number of"
            " partitions, or find what floods the topics.",
            dashboard="frontier-sidecar",
            panel="Lag, by topic",
        ),
        Alert(
            name="RecordsMisplaced",
            severity="page",
            value=f"sum by ({WHERE}) (increase(sidecar_misplaced_records_total[{at(600)}]))\n"
            f"+ sum by ({WHERE}) (increase(sidecar_sessions_in_two_partitions_total[{at(600)}]))\n"
            f"+ sum by ({WHERE}) (sidecar_partitions_changed)",
            above=0,
            hold=at(0),
            keep=at(600),
            summary=f"Records in another partition than their session's, or partitions that changed: {VALUE}.",
            description="A session's records in two partitions are known in full by nobody. The guard refuses these"
            " sessions; where the number of partitions or kafka.partitioner has changed, it refuses every question.",
            first="`/readyz` of the tail says if partitions have changed, and what to do. Else read"
            " the dead-letter topic (`agent.dlq`, reason `wrong partition`): it names the session, its key and both"
            " partitions. Give that producer the partitioner of the others.",
            dashboard="frontier-sidecar",
            panel="Dead letters",
        ),
        Alert(
            name="DeadLettersGrowing",
            severity="warning",
            value=f"sum by ({WHERE}) (increase(sidecar_dead_letters_total[{at(600)}]))\n"
            f"or sum by ({WHERE}) (increase(sidecar_fleet_unusable_records_total[{at(600)}]))",
            above=0,
            hold=at(900),
            keep=at(300),
            summary=f"Records that cannot be used keep coming; in the last minutes: {VALUE}.",
            description="One that had a position in a session's log leaves a gap there, and checkpoints of that session"
            " cannot be verified until one is written after the gap.",
            first="Read the dead-letter topic (`agent.dlq`): each record has its reason and where it came from. Mend"
            " or stop that producer.",
            dashboard="frontier-sidecar",
            panel="Dead letters",
        ),
        Alert(
            name="SnapshotsFailing",
            severity="warning",
            value=f"(time() - min by ({WHERE}) (sidecar_last_snapshot_timestamp_seconds)"
            f" > {bounds.unkept * bounds.pace:g})\n"
            f"or {refused} > 0\n"
            f"or {too_large} > 0",
            above=0,
            hold=at(60),
            keep=at(600),
            summary="{{ $labels.job }} cannot keep its state, or could not use what it had kept.",
            description="Restarts take longer (the log is read again), and where the log is gone as well, sessions"
            " cannot be verified any more.",
            first="See which of the three it is: commits that fail (Transactions), snapshots refused at a start"
            " (expected once after an upgrade), or an id that is too long. The log names topic, offset and reason.",
            dashboard="frontier-sidecar",
            panel="Snapshots refused, sessions not kept",
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


# --- as files -----------------------------------------------------------------------------------------------------


def for_prometheus(
    bounds: Bounds | None = None, docs: str | None = DOCS, interval: str | None = None
) -> dict[str, Any]:
    """Return the content of a rules file of Prometheus.

    Args:
        bounds: what is too much.
        docs: where the documentation can be read, if anywhere.
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
    panels: Mapping[tuple[str, str], int],
    bounds: Bounds | None = None,
    docs: str | None = DOCS,
    datasource: str = DATASOURCE,
    interval: str = "1m",
) -> dict[str, Any]:
    """Return the content of a provisioning file of Grafana-managed alert rules.

    A query gives the value, and an expression of Grafana's compares it, so that the rule's page shows the value also
    while all is well. No series means that nobody exposes it, which is not what these rules are about, but for
    `SidecarDown`. While Prometheus cannot be asked they all stay as they are, and `SidecarDown` alone says so: one
    page, not eleven.

    Args:
        panels: the ids of panels, by their dashboard's uid and their title.
        bounds: what is too much.
        docs: where the documentation can be read, if anywhere.
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
                "rules": [
                    _grafana_rule(alert, docs, datasource, panels[alert.dashboard, alert.panel]) for alert in alerts
                ],
            }
            for name, alerts in groups(bounds).items()
        ],
    }


def _grafana_rule(alert: Alert, docs: str | None, datasource: str, panel: int) -> dict[str, Any]:
    return {
        "uid": f"frontier-{alert.name.lower()}",
        "title": alert.name,
        "condition": "C",
        "for": alert.hold,
        "keepFiringFor": alert.keep,
        "noDataState": alert.missing,
        "execErrState": alert.failing,
        "isPaused": False,
        "labels": {"severity": alert.severity},
        "annotations": {
            **_annotations(alert, docs, '{{ printf "%.0f" $values.A.Value }}'),
            # Grafana makes links of these two, in notifications as well.
            "__dashboardUid__": alert.dashboard,
            "__panelId__": str(panel),
        },
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


def _annotations(alert: Alert, docs: str | None, value: str) -> dict[str, str]:
    found = {
        "summary": alert.summary.replace(VALUE, value),
        "description": alert.description,
        "first": alert.first,
        "runbook": f"sidecar runbook {alert.name}",
        "dashboard": f"/d/{alert.dashboard}",
    }
    if docs:
        found["runbook_url"] = f"{docs.rstrip('/')}/runbooks/{alert.name}.md"
    return found
