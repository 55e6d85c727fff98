"""Judge what the fleet should be alerted to: pure functions of what is known, the alerts that stand, and the time.

1. *storm*: of a tenant's or a model's sessions, the share that is degraded reaches `storm_share` (and there are at
   least `storm_sessions`); it ends below `storm_clear_share`.
2. *regression*: a rule fires for a model or an agent `regression_factor` times as often, in the last hour, as on
   average in the day before (and at least `regression_findings` times, and at least `regression_history` of that day
   is known); it ends below `regression_clear_factor`.
3. *unacknowledged halt*: a halt is open, nobody has taken it in hand, and it is older than `halt_after`; it grows
   more severe at `halt_error_after` and `halt_critical_after`, and ends when somebody takes it in hand or it clears.
4. *repeat offender*: a node is frozen `offender_node` times in an hour, or the nodes of an agent `offender_agent`
   times; it ends below half of that.
5. *silence*: a tenant has degraded sessions and nothing has been heard of any of its sessions for `silence_after`;
   it ends when something is heard, when none is degraded, or after `silence_forget`, for then they are simply over.

Rules 1, 2 and 4 of an agent hold only after they have held, or have not held, for `hold` without a break: so nothing
flaps, whichever side of its bound a value dances on. An alert is raised once, updated when its severity changes or its
value has moved by a tenth (not more often than `update_interval`), and cleared once.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import replace

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.groups import Dim, Partial, freezes, known_hours
from sidecar.fleet.model import HaltState, Row
from sidecar.fleet.windows import LONG
from sidecar.protocol.outputs import Alert, AlertKind, Severity

SubjectType = Literal["tenant", "agent", "model", "node", "halt"]
_RANK: dict[str, int] = {"warning": 0, "error": 1, "critical": 2}


class Bounds(Struct, frozen=True, kw_only=True):
    """Set the bounds; times are in seconds. The settings' section `alerts` says what each means."""

    storm_share: float = 0.5
    storm_clear_share: float = 0.3
    storm_sessions: int = 5
    regression_factor: float = 4.0
    regression_clear_factor: float = 2.0
    regression_findings: int = 10
    regression_history: float = 7200.0
    halt_after: float = 300.0
    halt_error_after: float = 900.0
    halt_critical_after: float = 3600.0
    offender_node: int = 3
    offender_agent: int = 10
    silence_after: float = 900.0
    silence_forget: float = 86400.0
    hold: float = 30.0
    update_interval: float = 60.0


class Condition(Struct, frozen=True, kw_only=True):
    """Say how one thing stands that may be alerted to.

    Args:
        raised: whether it is bad enough to raise an alert.
        cleared: whether it is good enough to end one; in between an alert stands if it stood.
        hold: how long either must last first.
        value, bound: what was measured, and against what.
        since: when it began, where that is known better than by watching.
    """

    alert_id: str
    kind: AlertKind
    subject_type: SubjectType
    subject: str | None
    severity: Severity
    raised: bool
    cleared: bool
    value: float
    bound: float
    message: str
    remedy: str
    hold: float = 0.0
    since: float | None = None
    rule: str | None = None
    session_id: str | None = None
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None


class Facts(Struct, kw_only=True):
    """Say what is known of one tenant, agent or model.

    Args:
        total: the sum of its partials.
        behind: some partition has more to read, so that what is not known may only not have been read yet.
    """

    dim: Dim
    total: Partial
    behind: bool = False


# --- what stands how --------------------------------------------------------------------------------------------------


def of_dim(facts: Facts, bounds: Bounds, now: float) -> Iterator[Condition]:
    """Yield the conditions of a tenant, an agent or a model."""
    if facts.dim.by in ("tenant", "model"):
        yield _storm(facts, bounds)
    if facts.dim.by in ("agent", "model"):
        yield from _regressions(facts, bounds, now)
    if facts.dim.by == "agent":
        yield _offending_agent(facts, bounds, now)
    if facts.dim.by == "tenant":
        yield _silence(facts, bounds, now)


def of_session(row: Row, bounds: Bounds, now: float) -> Iterator[Condition]:
    """Yield the conditions of one session: its halts and its nodes. What is not yielded any more is well."""
    for halt_id, state in row.unacknowledged():
        yield _halt(row, halt_id, state, bounds, now)
    for node, times in row.findings.frozen.items():
        yield _offending_node(row, node, times, bounds, now)


def _storm(facts: Facts, bounds: Bounds) -> Condition:
    total, dim = facts.total, facts.dim
    share = total.degraded / total.sessions if total.sessions else 0.0
    enough = total.sessions >= bounds.storm_sessions
    return Condition(
        alert_id=_id("storm", dim),
        kind="storm",
        subject_type=_type(dim),
        subject=dim.name,
        severity="critical" if share >= (1 + bounds.storm_share) / 2 else "error",
        raised=enough and share >= bounds.storm_share,
        cleared=share < bounds.storm_clear_share or not enough,
        hold=bounds.hold,
        value=round(share, 4),
        bound=bounds.storm_share,
        message=f"{total.degraded} of {total.sessions} sessions of {_named(dim)} are degraded ({share:.0%}).",
        remedy="Stop compacting there, find what changed (a model, a prompt, a compactor), and roll it back.",
        **_whose(dim),
    )


def _regressions(facts: Facts, bounds: Bounds, now: float) -> Iterator[Condition]:
    counts, dim = facts.total.counts, facts.dim
    recent, before = counts.within(LONG, now), counts.before(now)
    hours = known_hours(counts, now)
    for rule in sorted(counts.rules()):
        known_rule = CATALOGUE.get(rule)  # None: of another version of this program
        count = recent.get(rule, 0)
        usual = before.get(rule, 0) / hours if hours else 0.0
        known = hours * 3600.0 >= bounds.regression_history
        bound = max(float(bounds.regression_findings), bounds.regression_factor * usual)
        least = max(bounds.regression_findings / 2, bounds.regression_clear_factor * usual)
        yield Condition(
            alert_id=_id("regression", dim, rule),
            kind="regression",
            subject_type=_type(dim),
            subject=dim.name,
            severity="warning" if known_rule and known_rule.severity == "warning" else "error",
            raised=known and count >= bound,
            cleared=count < least,
            hold=bounds.hold,
            value=float(count),
            bound=round(bound, 3),
            since=counts.risen(rule, now, bounds.regression_clear_factor, bounds.regression_findings),
            message=f"{rule} fired {count} times in the last hour for {_named(dim)}, and {usual:.1f} times an hour in "
            "the day before.",
            remedy="Compare what changed there since. " + (known_rule.remedy if known_rule else ""),
            rule=rule,
            **_whose(dim),
        )


def _offending_agent(facts: Facts, bounds: Bounds, now: float) -> Condition:
    dim = facts.dim
    count = freezes(facts.total.counts, LONG, now)
    return Condition(
        alert_id=_id("repeat_offender", dim),
        kind="repeat_offender",
        subject_type=_type(dim),
        subject=dim.name,
        severity="error",
        raised=count >= bounds.offender_agent,
        cleared=count < bounds.offender_agent / 2,
        hold=bounds.hold,
        value=float(count),
        bound=float(bounds.offender_agent),
        message=f"Nodes of {_named(dim)} were frozen {count} times in the last hour.",
        remedy="Stop its compactor: it summarizes again what must not be, and loses more with every pass.",
        **_whose(dim),
    )


def _silence(facts: Facts, bounds: Bounds, now: float) -> Condition:
    total, dim = facts.total, facts.dim
    quiet = now - total.last if total.last is not None else 0.0
    over = not total.degraded or quiet < bounds.silence_after or quiet >= bounds.silence_forget
    sure = not facts.behind  # else the records may only not have been read
    return Condition(
        alert_id=_id("silence", dim),
        kind="silence",
        subject_type=_type(dim),
        subject=dim.name,
        severity="warning",
        raised=sure and not over,
        cleared=over,
        value=round(quiet, 1),
        bound=bounds.silence_after,
        since=total.last,
        message=f"Nothing has been heard of {_named(dim)} for {_lasting(quiet)}, and {total.degraded} of its sessions "
        "are degraded.",
        remedy="Look whether its agents still run and whether their records still reach the brokers.",
        **_whose(dim),
    )


def _halt(row: Row, halt_id: str, state: HaltState, bounds: Bounds, now: float) -> Condition:
    begun = state.opened_at if state.opened_at is not None else state.listed_at
    age = now - begun if begun is not None else 0.0
    severity: Severity = "warning"
    if age >= bounds.halt_error_after:
        severity = "critical" if age >= bounds.halt_critical_after else "error"
    why = ", ".join(state.reason) or "reason not kept"
    group = row.group()
    return Condition(
        alert_id=halt_alert(row.session_id, halt_id),
        kind="unacknowledged_halt",
        subject_type="halt",
        subject=halt_id,
        severity=severity,
        raised=age >= bounds.halt_after,
        cleared=False,
        value=round(age, 1),
        bound=bounds.halt_after,
        since=begun,
        message=f"Nobody has taken a halt of session {row.session_id} in hand for {_lasting(age)} ({why}).",
        remedy="Take it in hand: `sidecar halts ack`. Irreversible actions of the session are refused until it clears.",
        session_id=row.session_id,
        tenant=group.tenant,
        agent=group.agent,
        model=group.model,
    )


def _offending_node(row: Row, node: str, times: list[float], bounds: Bounds, now: float) -> Condition:
    count = sum(1 for at in times if at > now - LONG)
    group = row.group()
    return Condition(
        alert_id=node_alert(row.session_id, node),
        kind="repeat_offender",
        subject_type="node",
        subject=node,
        severity="error",
        raised=count >= bounds.offender_node,
        cleared=count < bounds.offender_node / 2,
        value=float(count),
        bound=float(bounds.offender_node),
        since=min((at for at in times if at > now - LONG), default=None),
        message=f"The node {node} of session {row.session_id} was frozen {count} times in the last hour.",
        remedy="Refuse to summarize it again; fetch its referents again, or keep it at its first generation.",
        session_id=row.session_id,
        tenant=group.tenant,
        agent=group.agent,
        model=group.model,
    )


def concerns(row: Row) -> bool:
    """Tell whether a session may have conditions at all, so that the others need not be looked at."""
    return bool(row.findings.frozen) or any(True for _ in row.unacknowledged())


# --- what follows -----------------------------------------------------------------------------------------------------


class Watch(Struct):
    """Remember since when conditions have been bad, or good, without a break; a restart waits anew."""

    bad: dict[str, float] = field(default_factory=dict)
    good: dict[str, float] = field(default_factory=dict)

    def forget(self, known: Iterable[str]) -> None:
        """Drop what nobody asks about any more."""
        kept = set(known)
        for times in (self.bad, self.good):
            for alert_id in [a for a in times if a not in kept]:
                del times[alert_id]


def judge(
    conditions: Iterable[Condition], standing: Mapping[str, Alert], watch: Watch, bounds: Bounds, now: float
) -> list[Alert]:
    """Return the alerts that are to be raised, updated or cleared, each as its next record.

    Args:
        conditions: everything there is to judge. An open alert that none of them is about is cleared: what it was
            about is gone.
        standing: the alerts that are known, open or cleared, by id; only those whose conditions are judged here.
        watch: remembers how long conditions have lasted.
        bounds: the bounds.
        now: the time.
    """
    found: list[Alert] = []
    met: set[str] = set()
    for condition in conditions:
        met.add(condition.alert_id)
        alert = standing.get(condition.alert_id)
        if alert is None or alert.status == "cleared":
            watch.good.pop(condition.alert_id, None)
            if _lasts(watch.bad, condition.alert_id, condition.raised, condition.hold, now):
                found.append(_raise(condition, alert, watch, now))
            continue
        watch.bad.pop(condition.alert_id, None)
        if _lasts(watch.good, condition.alert_id, condition.cleared, condition.hold, now):
            found.append(_clear(alert, condition.message, condition.value, now))
        elif _differs(alert, condition, bounds, now):
            found.append(_update(alert, condition, now))
    for alert_id, alert in standing.items():
        if alert.status != "cleared" and alert_id not in met:
            found.append(_clear(alert, _ended(alert), 0.0, now))
    watch.forget(met)
    return found


def _lasts(times: dict[str, float], alert_id: str, holds: bool, hold: float, now: float) -> bool:
    if not holds:
        times.pop(alert_id, None)
        return False
    return now - times.setdefault(alert_id, now) >= hold


def _raise(condition: Condition, before: Alert | None, watch: Watch, now: float) -> Alert:
    begun = watch.bad.pop(condition.alert_id)
    since = condition.since if condition.since is not None else begun
    at = _moment(now)
    return Alert(
        alert_id=condition.alert_id,
        kind=condition.kind,
        status="raised",
        severity=condition.severity,
        subject_type=condition.subject_type,
        subject=condition.subject,
        message=condition.message,
        remedy=condition.remedy,
        since=_moment(min(since, now)),
        raised_at=at,
        updated_at=at,
        value=condition.value,
        bound=condition.bound,
        occurrence=before.occurrence + 1 if before else 1,
        version=before.version + 1 if before else 1,
        rule=condition.rule,
        session_id=condition.session_id,
        tenant=condition.tenant,
        agent=condition.agent,
        model=condition.model,
    )


def _clear(alert: Alert, message: str, value: float, now: float) -> Alert:
    at = _moment(now)
    return _next(alert, status="cleared", message=message, value=value, cleared_at=at, updated_at=at)


def _ended(alert: Alert) -> str:
    if alert.kind == "unacknowledged_halt":
        return f"The halt of session {alert.session_id} was taken in hand, or has cleared."
    return "What it was about is no longer known."


def _update(alert: Alert, condition: Condition, now: float) -> Alert:
    severity = max(alert.severity, condition.severity, key=_RANK.__getitem__)
    return _next(
        alert,
        status="updated",
        severity=severity,
        message=condition.message,
        value=condition.value,
        bound=condition.bound,
        updated_at=_moment(now),
    )


def _next(alert: Alert, **changes: object) -> Alert:
    return replace(alert, **changes, version=alert.version + 1)


def _differs(alert: Alert, condition: Condition, bounds: Bounds, now: float) -> bool:
    if _RANK[condition.severity] > _RANK[alert.severity]:
        return True
    if now - alert.updated_at.timestamp() < bounds.update_interval or condition.cleared:
        return False
    if condition.kind in ("unacknowledged_halt", "silence"):  # their value is time, which says nothing new
        return False
    return abs(condition.value - alert.value) >= 0.1 * max(abs(alert.value), 1e-9)


def newer(one: Alert, other: Alert) -> Alert:
    """Return the newer of two records of an alert: the one with the higher version, then the later one."""
    return max(one, other, key=lambda alert: (alert.version, alert.updated_at))


def halt_alert(session_id: str, halt_id: str) -> str:
    """Return the id of the alert about a halt."""
    return _path("unacknowledged_halt", session_id, halt_id)


def node_alert(session_id: str, node: str) -> str:
    """Return the id of the alert about a node."""
    return _path("repeat_offender", "node", session_id, node)


def is_of_session(alert: Alert) -> bool:
    """Tell whether an alert is about one session, and so judged by whoever has the session."""
    return alert.session_id is not None


def _id(kind: AlertKind, dim: Dim, rule: str | None = None) -> str:
    # Those that name none have the shorter path, which no name can make.
    return _path(kind, *([rule] if rule else []), dim.by, *([] if dim.name is None else [dim.name]))


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _named(dim: Dim) -> str:
    return f"{dim.by} {dim.name}" if dim.name is not None else f"those that name no {dim.by}"


def _type(dim: Dim) -> SubjectType:
    assert dim.by != "group"
    return dim.by


def _whose(dim: Dim) -> dict[str, Any]:
    return {dim.by: dim.name}


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _lasting(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
