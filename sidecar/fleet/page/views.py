"""What the templates show, worked out beforehand: which words, which order, how much of it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from sidecar.engine.rules import CATALOGUE, Rule
from sidecar.fleet.page.drawing import NARROW, Drawing, draw
from sidecar.fleet.page.scale import Kind
from sidecar.fleet.queries import (
    DEGRADED,
    Group,
    HaltView,
    Missing,
    Page,
    RuleRate,
    SessionDetail,
    SessionSummary,
    Summary,
    SurvivalRate,
)
from sidecar.fleet.shown import counted, shown
from sidecar.fleet.timeline import Covered, HaltSpan, Name, Timeline, Words, tell
from sidecar.protocol.api import Edge
from sidecar.protocol.outputs import Alert, Finding, Survival

STATUS_WORDS: dict[str, str] = {
    "corrupt": "A checkpoint in use says what the log does not.",
    "lossy": "Something that had to be carried is gone from what the session stands on.",
    "degraded": "Something it stands on is broken, or it is halted.",
    "unverified": "What it stands on cannot be checked.",
    "unjudged": "Its beginning is not in the log; it is judged from a baseline on.",
    "stale": "True, but older than the last approval or revocation: after a crash it could not resume.",
    "verified": "The log bears out what it stands on.",
    "uncompacted": "Nothing has been compacted yet.",
    "unknown": "The sidecar has not said yet how it stands.",
}
"""Every status, the worst first, and what it means."""

ALERT_WORDS: dict[str, str] = {
    "storm": "Storm",
    "silence": "Silence",
    "regression": "Regression",
    "repeat_offender": "Repeat offender",
    "unacknowledged_halt": "Halt in nobody's hands",
}
"""Every kind of alert, those that are about most sessions first."""

MOST_ALIKE = 4
"""How many open alerts of a kind are shown: a storm may bring one for each halt."""
MOST_RULES = 3
MOST_MODELS = 50
MOST_LINK = 6000
"""How long an address may be: servers refuse request lines of 8 KiB."""
MOST_ROWS = 200
"""How many rows a table of a session's page holds."""
MOST_HALTS = 20
MOST_CLEARED = 5
MOST_FINDINGS = 100
MOST_WHYS = 5
MOST_EVIDENCE = 4000

_RANK = {"critical": 0, "error": 1, "warning": 2}
BOARD = "/board"


class Filters(Struct, kw_only=True):
    """Hold what of the fleet is looked at; empty strings: everything. `status` empty: what needs attention."""

    status: str = ""
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
    search: str = ""
    cursor: str | None = None

    def statuses(self) -> frozenset[str] | None:
        """Return the statuses that are asked for; None: all."""
        if self.status == "all":
            return None
        return frozenset((self.status,)) if self.status else DEGRADED | {"unknown"}

    def query(self, **changes: str | None) -> str:
        """Return the address's query with some of it changed; the page begins anew unless `cursor` is among it."""
        values = {"status": self.status, "tenant": self.tenant, "agent": self.agent, "model": self.model}
        values |= {"search": self.search, **changes}
        kept = {k: v for k, v in values.items() if v is not None and (v or k in ("tenant", "agent", "model"))}
        return f"?{urlencode(kept)}" if kept else BOARD

    @property
    def narrowed(self) -> bool:
        """Tell whether anything but the default is asked for."""
        return bool(self.status or self.search or self.tenant is not None or self.agent is not None) or (
            self.model is not None
        )


class Why(Struct, frozen=True):
    """Say one thing that is wrong with a session: the rule, in words, and how often it fired."""

    rule: str
    meaning: str
    severity: str
    times: int = 1


class Card(Struct, kw_only=True):
    """Show a session in the list."""

    session_id: str
    href: str | None
    status: str
    degraded_since: datetime | None
    why: list[Why]
    more: int
    do: str
    go_on: Words
    open_halts: int
    unacknowledged: int
    who: list[tuple[str, str]]
    awaiting: bool
    position: int


class Total(Struct, frozen=True):
    """Show how many sessions have a status."""

    status: str
    count: int
    share: float
    offset: float
    query: str
    current: bool


class Loss(Struct, frozen=True):
    """Show what survived at one level."""

    level: int
    checked: int
    kept: int
    percent: str
    share: float


class Model(Struct, kw_only=True):
    """Show a summarizer model: how its sessions stand and what it loses."""

    model: str | None
    sessions: int
    degraded: int
    prohibitions: list[Loss]
    facts: list[Loss]
    dropping: RuleRate | None
    query: str


class AlertCard(Struct, kw_only=True):
    """Show an alert; `more` says how many more of its kind there are, after the last one that is shown."""

    alert: Alert
    kind: str
    about: Words
    href: str | None
    query: str | None
    more: int = 0


class BoardView(Struct, kw_only=True):
    """Hold what the board shows. Parts that could not be had are None, and `problems` says why."""

    at: datetime
    summary: Summary | None
    verdict: str
    mood: Literal["good", "bad", "unsure", "empty"]
    totals: list[Total]
    alerts: list[AlertCard]
    alert_count: int
    cards: list[Card] | None
    listed: int
    total: int
    next_query: str | None
    first_query: str | None
    models: list[Model]
    rules: list[tuple[RuleRate, Rule | None]]
    filters: Filters
    tenants: list[str]
    agents: list[str]
    model_names: list[str]
    problems: list[str]


def board(
    *,
    at: datetime,
    summary: Summary | None,
    page: Page[SessionSummary] | None,
    alerts: Page[Alert] | None,
    models: Page[Group] | None,
    tenants: Page[Group] | None,
    agents: Page[Group] | None,
    filters: Filters,
    problems: Sequence[str],
) -> BoardView:
    """Work the board out from the fleet's answers."""
    gaps = [m for p in (summary, page, alerts, models, tenants, agents) if p is not None for m in p.missing]
    problems = [*problems, *_missing_words(gaps)]
    open_alerts = [a for a in (alerts.items if alerts else []) if a.status != "cleared"]
    verdict, mood = _verdict(summary, bool(problems))
    cards = [_card(s) for s in page.items] if page is not None else None
    return BoardView(
        at=at,
        summary=summary,
        verdict=verdict,
        mood=mood,
        totals=_totals(summary, filters),
        alerts=_alerts(open_alerts),
        alert_count=alerts.total if alerts else 0,
        cards=cards,
        listed=len(cards or ()),
        total=page.total if page else 0,
        next_query=filters.query(cursor=page.cursor) if page and page.cursor else None,
        first_query=filters.query() if filters.cursor else None,
        models=[_model(g, filters) for g in (models.items if models else [])[:MOST_MODELS] if g.sessions or g.survival],
        rules=[(r, CATALOGUE.get(r.rule)) for r in (summary.rules if summary else []) if r.last_1h or r.since],
        filters=filters,
        tenants=_names(g.tenant for g in (tenants.items if tenants else ())),
        agents=_names(g.agent for g in (agents.items if agents else ())),
        model_names=_names(g.model for g in (models.items if models else ())),
        problems=problems,
    )


def _names(values: Iterable[str | None]) -> list[str]:
    return sorted({v for v in values if v})[:500]


def _missing_words(gaps: Iterable[Missing]) -> list[str]:
    said: dict[str, None] = {}
    for gap in gaps:
        parts = f" (partitions {', '.join(map(str, gap.partitions[:20]))})" if gap.partitions else ""
        who = f"The worker {shown(gap.worker, 80)}" if gap.worker else "A worker"
        said[f"{who}{parts} did not answer: {shown(gap.reason)}. Its sessions are not shown, and not counted."] = None
    return list(said)


def _verdict(summary: Summary | None, incomplete: bool) -> tuple[str, Literal["good", "bad", "unsure", "empty"]]:
    if summary is None:
        return "The fleet cannot be described just now.", "unsure"
    if not summary.sessions:
        if incomplete:
            return "No session is known, and not every worker answered.", "unsure"
        return "No session has been heard of yet.", "empty"
    least = "At least " if incomplete else ""
    said = sum(summary.alerts.values())
    parts = [f"{least}{summary.degraded:,} of {counted(summary.sessions, 'session')} degraded"]
    if said:
        parts.append(counted(said, "alert") + " open")
    if summary.unacknowledged:
        parts.append(counted(summary.unacknowledged, "halt") + " in nobody's hands")
    if summary.degraded or said:
        return ", ".join(parts) + ".", "bad"
    if incomplete:
        return "No session that is known is degraded, but not every worker answered.", "unsure"
    return f"All well: none of {counted(summary.sessions, 'session')} is degraded.", "good"


def _totals(summary: Summary | None, filters: Filters) -> list[Total]:
    if summary is None:
        return []
    every = max(1, sum(summary.statuses.values()))
    found, offset = [], 0.0
    for status in STATUS_WORDS:
        count = summary.statuses.get(status, 0)
        if not count and status == "unknown":
            continue
        share = 100 * count / every
        query = filters.query(status=status)
        found.append(Total(status, count, round(share, 2), round(offset, 2), query, filters.status == status))
        offset += share
    return found


def session_href(session_id: str) -> str | None:
    """Return the address of a session's page; None where the id is too long for one."""
    try:
        query = urlencode({"id": session_id})
    except UnicodeEncodeError:
        return None
    return f"{BOARD}/session?{query}" if len(query) <= MOST_LINK else None


def _whys(rules: Mapping[str, int], first: Iterable[str] = ()) -> list[Why]:
    """Return the rules that fired as reasons: those of the open halt first, then by severity."""
    leading = dict.fromkeys(first)
    names = sorted({**leading, **rules}, key=lambda r: (r not in leading, _severity(r), r))
    return [Why(n, CATALOGUE[n].meaning if n in CATALOGUE else "", _severity_name(n), rules.get(n, 1)) for n in names]


def _severity_name(rule: str) -> str:
    entry = CATALOGUE.get(rule)
    return entry.severity if entry is not None else "error"


def _severity(rule: str) -> int:
    return _RANK[_severity_name(rule)]


def _card(s: SessionSummary) -> Card:
    halt = s.newest_halt
    whys = _whys(s.rules, halt.reason if halt is not None and halt.known else ())
    do = CATALOGUE[whys[0].rule].remedy if whys and whys[0].rule in CATALOGUE else ""
    return Card(
        session_id=s.session_id,
        href=session_href(s.session_id),
        status=s.status or "unknown",
        degraded_since=s.degraded_since or s.since,
        why=whys[:MOST_RULES],
        more=max(0, len(whys) - MOST_RULES),
        do=do,
        go_on=go_on(halt),
        open_halts=s.open_halts,
        unacknowledged=s.unacknowledged,
        who=_who(s.tenant, s.agent, s.model),
        awaiting=s.awaiting,
        position=s.position,
    )


def _who(tenant: str | None, agent: str | None, model: str | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in (("tenant", tenant), ("agent", agent), ("model", model)) if value]


def go_on(halt: HaltView | None) -> Words:
    """Say from where a halted session can go on; empty: nothing is known."""
    if halt is None or not halt.known or halt.replay_from is None:
        return ()
    if halt.reexpand_from is None:
        return (f"No checkpoint can be trusted: replay the log from position {halt.replay_from:,}.",)
    return ("Re-expand from ", Name(halt.reexpand_from), f", or replay the log from position {halt.replay_from:,}.")


def _loss(rates: Iterable[SurvivalRate], what: str) -> list[Loss]:
    return [
        Loss(r.level, r.checked, r.kept, _percent(r.kept, r.checked), 100 * r.kept / r.checked)
        for r in sorted(rates, key=lambda r: r.level)
        if r.what == what and r.checked
    ]


def _percent(kept: int, checked: int) -> str:
    # Never "100%" while something is lost.
    return "100%" if kept == checked else f"{min(99.9, int(1000 * kept / checked) / 10):g}%"


def _model(group: Group, filters: Filters) -> Model:
    dropping = next((r for r in group.rules if r.rule == "constraint_dropped" and (r.last_1h or r.since)), None)
    return Model(
        model=group.model,
        sessions=group.sessions,
        degraded=group.degraded,
        prohibitions=_loss(group.survival, "constraint"),
        facts=_loss(group.survival, "fact"),
        dropping=dropping,
        query=filters.query(model=group.model or "", status="all"),
    )


def _alerts(found: Sequence[Alert]) -> list[AlertCard]:
    """Return what is shown of the open alerts: of each kind the worst, the kinds that are about most first."""
    cards = []
    for kind in (*ALERT_WORDS, *sorted({a.kind for a in found} - {*ALERT_WORDS})):
        alike = sorted((a for a in found if a.kind == kind), key=lambda a: (_RANK[a.severity], a.since))
        shown_now = [_alert(a) for a in alike[:MOST_ALIKE]]
        if len(alike) > MOST_ALIKE:
            shown_now[-1].more = len(alike) - MOST_ALIKE
        cards += shown_now
    return cards


def _alert(alert: Alert) -> AlertCard:
    kind = ALERT_WORDS.get(alert.kind, alert.kind.replace("_", " "))
    who = alert.subject if alert.subject is not None else f"those that name no {alert.subject_type}"
    about: Words = (f"{alert.subject_type} ", Name(who)) if alert.subject is not None else (who,)
    query = None
    if alert.subject_type in ("tenant", "agent", "model"):
        query = f"?{urlencode([(alert.subject_type, alert.subject or '')])}"
    href = session_href(alert.session_id) if alert.session_id else None
    return AlertCard(alert=alert, kind=kind, about=about, href=href, query=query)


# --- one session ------------------------------------------------------------------------------------------------------


class HaltRow(Struct, kw_only=True):
    """Show a halt of a session."""

    view: HaltView
    why: list[Why]
    go_on: Words
    command: str


class FindingRow(Struct, kw_only=True):
    """Show a finding with its evidence."""

    finding: Finding
    anchor: str
    entry: Rule | None
    witness: list[int]
    evidence: str
    cut: bool


class SessionView(Struct, kw_only=True):
    """Hold what a session's page shows."""

    detail: SessionDetail
    status: str
    timeline: Timeline
    drawing: Drawing
    narrow: Drawing
    window: tuple[int, int] | None
    queries: dict[str, str]
    windows: list[tuple[str, str]]
    why: list[Why]
    more_why: list[Why]
    past: bool
    """Whether what is told was wrong, and no longer is."""
    go_on: Words
    halts: list[HaltRow]
    more_halts: int
    findings: list[FindingRow]
    more_findings: int
    survival: list[tuple[str, str, Loss]]
    who: list[tuple[str, str]]
    can_acknowledge: bool
    missing: list[str]


def session(
    detail: SessionDetail,
    *,
    edges: Sequence[Edge] | None = None,
    edge_count: int | None = None,
    kind: Kind = "even",
    window: tuple[int, int] | None = None,
    can_acknowledge: bool = False,
    bootstrap: str = "",
    problems: Sequence[str] = (),
) -> SessionView:
    """Work a session's page out.

    Args:
        detail: what the fleet knows.
        edges: its effective edges, where the guard was asked; `edge_count` says how many there are.
        kind: the drawing's scale.
        window: the positions that are drawn; None: all.
        can_acknowledge: whether a halt can be taken in hand on the page.
        bootstrap: brokers to name in the command that does the same.
        problems: what could not be found out.
    """
    s = detail.summary
    timeline = tell(
        detail.findings,
        [_span(h) for h in detail.halts],
        _covered(detail),
        position=s.position,
        not_kept=detail.dropped,
        edges=edges,
        edge_count=edge_count,
    )
    open_halts = [h for h in detail.halts if h.open]
    reasons = [r for h in open_halts[:1] for r in h.reason]
    halts = [*open_halts[:MOST_HALTS], *[h for h in detail.halts if not h.open][:MOST_CLEARED]]
    whys = _whys(s.rules, reasons)
    findings = sorted(detail.findings, key=lambda f: (-f.position, _RANK[f.severity], f.rule))
    return SessionView(
        detail=detail,
        status=s.status or "unknown",
        timeline=timeline,
        drawing=draw(timeline, kind, window),
        narrow=draw(timeline, kind, window, NARROW),
        window=window,
        queries=_scale_queries(s.session_id, kind, window),
        windows=_windows(s.session_id, timeline, kind, window),
        why=whys[:MOST_WHYS],
        more_why=whys[MOST_WHYS:],
        past=s.status is not None and s.status not in DEGRADED and not open_halts,
        go_on=go_on(open_halts[0] if open_halts else None),
        halts=[_halt_row(h, bootstrap) for h in halts],
        more_halts=len(detail.halts) - len(halts),
        findings=[_finding_row(f) for f in findings[:MOST_FINDINGS]],
        more_findings=max(0, len(findings) - MOST_FINDINGS),
        survival=_survival(detail.survival),
        who=_who(s.tenant, s.agent, s.model),
        can_acknowledge=can_acknowledge,
        missing=list(problems),
    )


def _span(halt: HaltView) -> HaltSpan:
    cleared = None if halt.open else halt.cleared_position or halt.position
    return HaltSpan(
        halt_id=halt.halt_id,
        opened=halt.position,
        cleared=cleared,
        reason=halt.reason,
        checkpoint_id=halt.checkpoint_id,
        reexpand_from=halt.reexpand_from,
        replay_from=halt.replay_from,
        finding_ids=halt.finding_ids,
    )


def _covered(detail: SessionDetail) -> list[Covered]:
    force = detail.checkpoint.checkpoint_id if detail.checkpoint is not None else None
    every = {c.checkpoint_id: c for c in (*detail.checkpoints, *([detail.checkpoint] if detail.checkpoint else []))}
    return [
        Covered(
            checkpoint_id=c.checkpoint_id,
            position=c.position,
            lo=c.frontier_lo,
            hi=c.frontier_hi,
            level=c.level,
            status=c.status,
            told=True,
            in_force=c.checkpoint_id == force,
        )
        for c in every.values()
    ]


def _scale_queries(session_id: str, kind: Kind, window: tuple[int, int] | None) -> dict[str, str]:
    part = {"from": str(window[0]), "to": str(window[1])} if window else {}
    return {k: f"?{urlencode({'id': session_id, 'scale': k, **part})}#log" for k in ("even", "true")}


def _windows(session_id: str, timeline: Timeline, kind: Kind, window: tuple[int, int] | None) -> list[tuple[str, str]]:
    """Return parts of the log worth a look of their own: the whole, what the newest halt is about, the last of it."""
    first, last = timeline.extent
    base = {"id": session_id, "scale": kind}
    found = [("the whole log", f"?{urlencode(base)}#log")] if window else []
    halt = next((h for h in reversed(timeline.halts) if h.cleared is None and h.opened is not None), None)
    if halt is not None and last - first > 200:
        told = [t for t in timeline.threads if t.position == halt.opened]
        begin = min((p.at for t in told for p in t.points), default=halt.opened or 1)
        pad = max(10, ((halt.opened or 1) - begin) // 20)
        part = {"from": str(max(1, begin - pad)), "to": str(min(last, (halt.opened or 1) + pad))}
        found.append(("around the newest halt", f"?{urlencode({**base, **part})}#log"))
    if last - first > 1000:
        part = {"from": str(last - 999), "to": str(last)}
        found.append(("the last 1,000 positions", f"?{urlencode({**base, **part})}#log"))
    return found


def _halt_row(halt: HaltView, bootstrap: str) -> HaltRow:
    servers = f" --bootstrap-servers {shlex.quote(bootstrap)}" if bootstrap else ""
    command = f"sidecar halts ack {shlex.quote(halt.halt_id)}{servers} --by NAME --decision TEXT"
    return HaltRow(view=halt, why=_whys({}, halt.reason), go_on=go_on(halt), command=command)


def _finding_row(finding: Finding) -> FindingRow:
    evidence = {k: v for k, v in finding.evidence.items() if k != "witness"}
    text = msgspec.json.format(msgspec.json.encode(evidence), indent=2).decode() if evidence else ""
    witness: Any = finding.evidence.get("witness")
    return FindingRow(
        finding=finding,
        anchor=f"f-{finding.finding_id}" if finding.finding_id.isalnum() else "",
        entry=CATALOGUE.get(finding.rule),
        witness=[p for p in witness if type(p) is int] if isinstance(witness, list) else [],
        evidence=text[:MOST_EVIDENCE],
        cut=len(text) > MOST_EVIDENCE or bool(finding.evidence.get("cut")),
    )


_WHAT = {"constraint": "Prohibitions", "fact": "Facts", "referent": "Reachable values"}


def _survival(survival: Sequence[Survival]) -> list[tuple[str, str, Loss]]:
    ordered = sorted(survival, key=lambda s: (tuple(_WHAT).index(s.what), s.model or "", s.level))
    return [
        (_WHAT[s.what], s.model or "", Loss(s.level, s.checked, s.kept, _percent(s.kept, s.checked), 0.0))
        for s in ordered
        if s.checked
    ]
