"""The dashboard *Fleet*: what is degraded, why, and since when."""

from grafana_foundation_sdk.builders import dashboard

from grafana.source.boards import board
from grafana.source.panels import (
    ANY_IS_BAD,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    RUNBOOKS,
    SEVERITIES,
    STATUS_COLOURS,
    YELLOW,
    Query,
    Section,
    Text,
    gauges,
    line,
    lines,
    number,
    rows,
    rule_address,
)
from grafana.source.rules import DOCS, every

S = 'job=~"$job"'

_AGES = {
    "0": ("all", GREY),
    "60": ("over 1 min", BLUE),
    "300": ("over 5 min", YELLOW),
    "900": ("over 15 min", ORANGE),
    "3600": ("over 1 h", RED),
}
"""How the bounds of `sidecar_stale_sessions` are called, and drawn."""


def _numbers() -> Section:
    lost = number(
        "Corrupt or lossy sessions",
        Text(
            "Sessions whose checkpoint in force asserts what the log does not bear out (corrupt), or has lost"
            " authorizations, prohibitions or facts (lossy).",
            "their agents must not resume from these checkpoints. `sidecar halts list` names each with the checkpoint"
            " to re-expand from.",
            ("FrontierDegraded",),
        ),
        Query(f'sum(sidecar_frontier_degraded{{status=~"corrupt|lossy", {S}}})'),
        steps=ANY_IS_BAD,
    )
    halts = number(
        "Open halts",
        Text(
            "Halts that are open: irreversible actions of their sessions are to be refused.",
            "see the reasons below, then `sidecar halts list`: each halt says from where to re-expand.",
            ("FrontierDegraded",),
        ),
        Query(f"sum(sidecar_open_halts{{{S}}})"),
        steps=ANY_IS_BAD,
    )
    unacknowledged = number(
        "Halts in nobody's hands",
        Text(
            "Open halts that nobody has acknowledged, as the fleet view counts them.",
            "take them in hand: `sidecar halts ack HALT_ID --by NAME --decision TEXT`. Without a number here the fleet"
            " view does not run.",
            ("HaltUnacknowledged",),
        ),
        Query(f"sum(sidecar_fleet_unacknowledged_halts{{{S}}})"),
        steps=ANY_IS_BAD,
        none="no fleet view",
    )
    worst = number(
        "Longest in a bad status",
        Text(
            "How long the session that has been corrupt, lossy or degraded longest has been so.",
            "somebody should have it in hand by now. A session that has ended stays so until it is reconciled or"
            " forgotten (`session.ttl`).",
            ("FrontierDegraded", "HaltUnacknowledged"),
        ),
        Query(f'max(sidecar_longest_in_status_seconds{{status=~"corrupt|lossy|degraded", {S}}})'),
        unit="s",
        decimals=0,
        steps=((1, YELLOW), (900, ORANGE), (3600, RED)),
    )
    stale = number(
        "Longest stale",
        Text(
            "How long the session whose checkpoint has been stale longest has been so: an authorization or revocation"
            " has come since, and a crash now would lose it.",
            "look at whether that agent's compactor still writes checkpoints; which agent it is, the board says.",
            ("RecoveryExposed",),
        ),
        Query(f'max(sidecar_longest_in_status_seconds{{status="stale", {S}}})'),
        unit="s",
        decimals=0,
        steps=((300, YELLOW), (900, ORANGE)),
    )
    followed = number(
        "Sessions followed",
        Text(
            "Sessions whose logs are followed.",
            "none at all means that nothing has been read yet, or that the tail does not run.",
            ("SidecarDown",),
        ),
        Query(f"sum(sidecar_sessions{{{S}}})"),
    )
    by_status = lines(
        "Sessions by status",
        Text(
            "All sessions that are followed, by the status of their checkpoint in force, the worst at the bottom;"
            " degraded at least while halted.",
            "corrupt, lossy and degraded: checkpoints cannot be trusted; *Why* says which rules fired, `sidecar halts"
            " list` which sessions. Stale is exposure, and normal for a while after each authorization.",
            ("FrontierDegraded", "RecoveryExposed"),
        ),
        *(Query(f'sum(sidecar_frontier_degraded{{status="{status}", {S}}})', status) for status in STATUS_COLOURS),
        stacked=True,
        colours=STATUS_COLOURS,
        whole=True,
    )
    since = gauges(
        "How long the worst has been so",
        Text(
            "Of each status that is not good, how long the session that has had it longest has had it.",
            "what is old is either in nobody's hands, or a session that has ended without being repaired.",
            ("FrontierDegraded",),
        ),
        Query(f"sort_desc(max by (status) (sidecar_longest_in_status_seconds{{{S}}}))", "{{status}}"),
        unit="s",
        decimals=0,
        steps=((1, YELLOW), (900, ORANGE), (3600, RED)),
    )
    return Section(
        "Now",
        (line(lost, halts, unacknowledged, worst, stale, followed), line(by_status, since, widths=(16, 8))),
    )


def _alerts() -> Section:
    names = "|".join(alert.name for alert in every())
    which = f'alertname=~"{names}", job=~"$job|"'
    by = "alertname, severity, job, instance"
    firing = rows(
        "Alerts firing now",
        Text(
            "Alerts of this project that Prometheus has firing, pages first. Empty as well where its rules are not"
            " loaded (`deploy/prometheus/rules.yml`); Grafana-managed ones are under Alerting.",
            "an alert's name leads to the runbooks; `sidecar runbook NAME` prints one.",
        ),
        Query(
            f"1000 * (max by ({by}) (ALERTS_FOR_STATE{{{which}}})"
            f' and on ({by}) max by ({by}) (ALERTS{{alertstate="firing", {which}}}))'
        ),
        columns={"alertname": "Alert", "severity": "Severity", "Value": "Since", "job": "Job", "instance": "Replica"},
        units={"Since": "dateTimeFromNow"},
        links={"Alert": f"/d/{RUNBOOKS}"},
        words={"Severity": SEVERITIES},
        widths={"Alert": 250, "Severity": 80, "Since": 130},
        sort="Severity",
        rising=True,
        none="no alert is firing, or Prometheus has none of our rules",
    )
    raised = lines(
        "The fleet view's own alerts",
        Text(
            "Alerts that the fleet view has open, by kind: storms (a tenant or model is degraded as a whole),"
            " regressions, unacknowledged halts, repeat offenders, silence.",
            "`sidecar fleet status` or the board names what each is about, and what to do.",
            ("HaltUnacknowledged",),
        ),
        Query(f"sum by (kind) (sidecar_fleet_alerts{{{S}}})", "{{kind}}"),
        stacked=True,
        whole=True,
        none="no fleet view",
    )
    return Section("Alerts", (line(firing, raised),))


def _why(docs: str | None) -> Section:
    over_time = lines(
        "Findings by rule",
        Text(
            "Findings, by the rule that fired, in each interval.",
            "the table beside it links each rule to what it means and what to do. A rule that has begun to fire"
            " together with a deployment of a compactor was broken by it.",
            ("FrontierDegraded", "IrreversibleActionUnauthorized", "ProhibitionsLost"),
        ),
        Query(f"sum by (rule) (increase(sidecar_findings_total{{{S}}}[$__rate_interval])) > 0", "{{rule}}"),
        stacked=True,
        bars=True,
        table=True,
        whole=True,
        none="nothing was found, or no sidecar is scraped",
    )
    in_range = rows(
        "Rules that fired in the selected time",
        Text(
            "How often each rule fired in the time that is selected above.",
            "the critical ones first: each rule's name is a link to what it means and what to do about it.",
            ("IrreversibleActionUnauthorized",),
        ),
        Query(f"sum by (rule, severity) (increase(sidecar_findings_total{{{S}}}[$__range])) >= 0.5"),
        columns={"rule": "Rule", "severity": "Severity", "Value": "Findings"},
        units={"Findings": "locale"},
        decimals={"Findings": 0},
        links={"Rule": rule_address(docs)},
        sort="Findings",
        words={"Severity": SEVERITIES},
        widths={"Severity": 90, "Findings": 90},
        none="nothing was found, or no sidecar is scraped",
    )
    return Section("Why", (line(over_time, in_range, widths=(14, 10)),))


def _halts() -> Section:
    still_open = lines(
        "Open halts over time",
        Text(
            "Halts that are open, and those of them that nobody has taken in hand.",
            "a line that only rises: halts are opened and nobody reconciles. The lines differ for a moment after a"
            " change, because the fleet view reads what the tail has written.",
            ("FrontierDegraded", "HaltUnacknowledged"),
        ),
        Query(f"sum(sidecar_open_halts{{{S}}})", "open"),
        Query(f"sum(sidecar_fleet_unacknowledged_halts{{{S}}})", "in nobody's hands"),
        colours={"open": ORANGE, "in nobody's hands": RED},
        whole=True,
    )
    changes = lines(
        "Halts opened and cleared",
        Text(
            "Halts opened in each interval, and, downwards, halts cleared.",
            "many opened at once point at one compactor or one deployment; opened without being cleared, that nobody"
            " reconciles.",
            ("FrontierDegraded",),
        ),
        Query(f'sum(increase(sidecar_halts_total{{status="halt", {S}}}[$__rate_interval]))', "opened"),
        Query(f'sum(increase(sidecar_halts_total{{status="clear", {S}}}[$__rate_interval]))', "cleared"),
        bars=True,
        colours={"opened": RED, "cleared": BLUE},
        whole=True,
        below=("cleared",),
    )
    actions = lines(
        "Irreversible actions that nothing allowed",
        Text(
            "Irreversible actions that were carried out without an authorization in effect, or on a state that nobody"
            " had confirmed, in each interval.",
            "it has happened already: stop the session, establish who or what decided it, undo what can be undone, and"
            " put the agent behind the guard.",
            ("IrreversibleActionUnauthorized",),
        ),
        Query(
            "sum by (rule) (increase("
            f'sidecar_findings_total{{rule=~"action_unauthorized|action_on_degraded", {S}}}[$__rate_interval]))',
            "{{rule}}",
        ),
        bars=True,
        stacked=True,
        whole=True,
        colours={"action_unauthorized": RED, "action_on_degraded": PURPLE},
    )
    return Section("Halts", (line(still_open, changes, actions),))


def _exposure() -> Section:
    by_age = lines(
        "Sessions with a stale checkpoint, by how long",
        Text(
            "Sessions at work whose checkpoint in force does not cover the newest authorization or revocation: were the"
            " agent to crash now, it would resume without it. Each line counts those of the longer ones too; sessions"
            " that have been idle for long are left out.",
            "the lines of 15 min and more should be at zero: look at whether compaction still runs, and whether it"
            " writes a checkpoint after authorizations.",
            ("RecoveryExposed",),
        ),
        *(
            Query(f'sum(sidecar_stale_sessions{{longer_than="{seconds}", {S}}})', legend)
            for seconds, (legend, _) in _AGES.items()
        ),
        colours=dict(_AGES.values()),
        whole=True,
    )
    longest = lines(
        "Longest stale over time",
        Text(
            "How long the session that has been stale longest has been so.",
            "a line that rises steadily is one agent whose compactor has stopped; a saw-tooth is normal.",
            ("RecoveryExposed",),
        ),
        Query(f'max(sidecar_longest_in_status_seconds{{status="stale", {S}}})', "longest stale"),
        unit="s",
        steps=((900, ORANGE),),
        colours={"longest stale": YELLOW},
    )
    return Section("Recovery exposure", (line(by_age, longest),))


def fleet(docs: str | None = DOCS) -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "frontier-fleet",
        "Frontier / Fleet",
        "Which sessions cannot be trusted, why, and since when; what is exposed. Which sessions these are is told by"
        " `sidecar halts list` and the fleet view's board: no series has a session's name.",
        (_numbers(), _alerts(), _why(docs), _halts(), _exposure()),
        docs=docs,
    )
