"""One session's story as data: what was granted, kept, dropped, invented, lost, and where on the log.

Everything is made from what the fleet was told: findings with their evidence, halts, and the checkpoints that were in
force. What it was not told (edges that were kept, safe resumes, summaries that nobody found fault with) is not made
up: `Timeline.unknown` says what is not there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.shown import fitted, shown
from sidecar.protocol.api import Edge
from sidecar.protocol.outputs import Finding, Severity
from sidecar.protocol.records import MAX_INT

Lane = Literal["agent", "approvals", "values", "content", "summaries"]
"""Which part of the drawing a thread belongs to."""
LANES: dict[Lane, str] = {
    "agent": "What the agent did",
    "approvals": "Approvals",
    "values": "Values the summaries need",
    "content": "Prohibitions and facts",
    "summaries": "Summaries",
}

Shape = Literal[
    "granted",
    "ended",
    "asserted",
    "written",
    "absent",
    "invented",
    "seen",
    "gone",
    "stated",
    "made",
    "resumed",
    "acted",
    "fault",
]
"""What a point of a thread is; each is drawn in a form of its own."""
SHAPES: dict[Shape, str] = {
    "granted": "granted",
    "ended": "revoked",
    "asserted": "asserted by a checkpoint",
    "written": "checkpoint written",
    "absent": "missing where it should be",
    "invented": "asserted, and never granted",
    "seen": "last seen in a store",
    "gone": "in no store any more",
    "stated": "stated",
    "made": "summary made",
    "resumed": "resumed from a checkpoint",
    "acted": "irreversible action",
    "fault": "found fault with",
}

Look = Literal["held", "broken", "void", "lead"]
"""How a stretch is drawn: `held` (it was so), `broken` (it should have been so), `void` (it never was); `lead` leads
from a checkpoint's range to where it was written."""


class Name(Struct, frozen=True):
    """Mark an id within a sentence."""

    id: str


Words = tuple[str | Name, ...]
"""A sentence in which the ids are marked, because they are shown differently and may be anything."""


def plain(words: Words) -> str:
    """Return a sentence as text."""
    return "".join(shown(w.id, 60) if isinstance(w, Name) else w for w in words)


class Point(Struct, frozen=True):
    """Put something at a log position."""

    at: int
    shape: Shape


class Stretch(Struct, frozen=True):
    """Join two positions."""

    lo: int
    hi: int
    look: Look


class Thread(Struct, kw_only=True):
    """Tell one thing's story along the log; a row of the drawing and of the table.

    `key` names it in both, `verdict` is a word or two, `said` the sentence.
    """

    lane: Lane
    verdict: str
    label: Words
    said: Words
    points: list[Point]
    stretches: list[Stretch] = field(default_factory=list)
    rule: str | None = None
    severity: Severity | None = None
    finding_id: str | None = None
    position: int = 0
    witness: list[int] = field(default_factory=list)
    key: str = ""

    @property
    def span(self) -> tuple[int, int]:
        """Return the first and the last position that it touches."""
        places = [p.at for p in self.points] + [p for s in self.stretches for p in (s.lo, s.hi)]
        return (min(places), max(places)) if places else (self.position, self.position)


class Covered(Struct, kw_only=True):
    """Describe a checkpoint: the range it claims, where it was written, and the worst that is known of it.

    Without `lo` its range was never told to the fleet; `level` 0 is an unknown one. `told` says whether the status
    comes from the session itself, and not only from findings (then it is at least as bad as said).
    """

    checkpoint_id: str
    position: int
    lo: int | None = None
    hi: int | None = None
    level: int = 0
    status: str = ""
    told: bool = False
    in_force: bool = False
    rules: list[str] = field(default_factory=list)


class HaltSpan(Struct, kw_only=True):
    """Describe a halt along the log; None: not known, or (`cleared`) not cleared."""

    halt_id: str
    opened: int | None
    cleared: int | None = None
    reason: list[str] = field(default_factory=list)
    checkpoint_id: str | None = None
    reexpand_from: str | None = None
    replay_from: int | None = None
    finding_ids: list[str] = field(default_factory=list)


class Band(Struct, frozen=True):
    """Mark positions that are missing (`gap`) or claimed twice (`conflict`)."""

    lo: int
    hi: int
    what: Literal["gap", "conflict"]
    finding_id: str


class Timeline(Struct, kw_only=True):
    """Hold everything that is drawn and listed of one session."""

    position: int
    threads: list[Thread]
    checkpoints: list[Covered]
    halts: list[HaltSpan]
    bands: list[Band]
    headlines: list[Words]
    unknown: list[Words]

    @property
    def extent(self) -> tuple[int, int]:
        """Return the first and last position that anything is known of."""
        last = max((self.position, *(p for p in self.positions())), default=1)
        return 1, max(last, 1)

    def positions(self) -> list[int]:
        """Return every position that something stands at, sorted."""
        found: set[int] = set()
        for thread in self.threads:
            found.update(point.at for point in thread.points)
            for stretch in thread.stretches:
                found.update((stretch.lo, stretch.hi))
        for covered in self.checkpoints:
            found.add(covered.position)
            found.update(p for p in (covered.lo, covered.hi) if p is not None)
        for halt in self.halts:
            found.update(p for p in (halt.opened, halt.cleared) if p is not None)
        for band in self.bands:
            found.update((band.lo, band.hi))
        found.discard(0)
        return sorted(found)


def tell(
    findings: Sequence[Finding],
    halts: Iterable[HaltSpan],
    checkpoints: Iterable[Covered],
    *,
    position: int,
    not_kept: int = 0,
    edges: Sequence[Edge] | None = None,
    edge_count: int | None = None,
) -> Timeline:
    """Tell a session's story.

    Args:
        findings: those that are kept, in any order.
        halts: open and cleared ones.
        checkpoints: those that were seen in force.
        position: how far the log was applied.
        not_kept: how many older findings are no longer kept.
        edges: the effective edges as the guard gives them; None: it was not asked, or did not answer.
        edge_count: how many there are, where not all of them were given.
    """
    ordered = sorted(findings, key=lambda f: (f.position, f.rule, f.subject.id, f.finding_id))
    covered = {c.checkpoint_id: c for c in checkpoints}
    threads: list[Thread] = []
    bands: list[Band] = []
    for finding in ordered:
        _learn(covered, finding)
        teller = _tell_other if finding.evidence.get("cut") else _TELLERS.get(finding.rule, _tell_other)
        if finding.rule == "log_gap":
            bands.append(_gap(finding))
        elif finding.rule == "log_conflict":
            bands.append(Band(finding.position, finding.position, "conflict", finding.finding_id))
        else:
            threads += teller(finding, covered) or _tell_other(finding, covered)
    if edges is not None:
        threads += _kept(edges, covered.values(), ordered)
    lanes = tuple(LANES)
    threads.sort(key=lambda t: (lanes.index(t.lane), t.span, t.position, t.rule or "", plain(t.label)))
    for kind in lanes:
        for number, thread in enumerate((t for t in threads if t.lane == kind), start=1):
            thread.key = f"{LANES[kind][0]}{number}"
    timeline = Timeline(
        position=position,
        threads=threads,
        checkpoints=sorted(covered.values(), key=lambda c: (c.position, c.checkpoint_id)),
        halts=sorted(halts, key=lambda h: (h.opened or 0, h.halt_id)),
        bands=bands,
        headlines=[],
        unknown=_unknown(ordered, covered.values(), not_kept, edges, edge_count),
    )
    timeline.headlines = _headlines(timeline)
    return timeline


# --- what each rule's evidence tells ----------------------------------------------------------------------------------


def _number(evidence: Mapping[str, Any], name: str) -> int | None:
    value = evidence.get(name)
    return value if type(value) is int and 0 <= value <= MAX_INT else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "?"


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []


def _witness(finding: Finding) -> list[int]:
    value = finding.evidence.get("witness")
    return sorted(p for p in value if type(p) is int and 0 < p <= MAX_INT) if isinstance(value, list) else []


def _thread(
    finding: Finding,
    lane: Lane,
    verdict: str,
    label: Words,
    said: Words,
    points: Iterable[tuple[int | None, Shape]],
    stretches: Iterable[tuple[int | None, int | None, Look]] = (),
) -> Thread:
    joined = [Stretch(min(lo, hi), max(lo, hi), look) for lo, hi, look in stretches if lo and hi and lo != hi]
    return Thread(
        lane=lane,
        verdict=verdict,
        label=label,
        said=said,
        points=[Point(at, shape) for at, shape in points if at],
        stretches=joined,
        rule=finding.rule,
        severity=finding.severity,
        finding_id=finding.finding_id,
        position=finding.position,
        witness=_witness(finding),
    )


_WORST = ("", "verified", "stale", "unverified", "degraded", "lossy", "corrupt")


def _learn(covered: dict[str, Covered], finding: Finding) -> None:
    """Take from a finding what it says about its checkpoint: that there is one, its range, and how bad it is."""
    if finding.subject.type != "checkpoint" or finding.rule in ("resumed_unverified", "dependency_missing"):
        return
    evidence = finding.evidence
    known = covered.get(finding.subject.id)
    if known is None:
        witness = _witness(finding)
        # The checkpoint's own position is the finding's for what is judged when it is written, else the earliest of
        # the witness (a rewritten one, a stale one).
        late = finding.rule in ("checkpoint_rewritten", "stale_on_authorization", "generation_mismatch")
        at = witness[0] if late and witness else finding.position
        known = covered[finding.subject.id] = Covered(checkpoint_id=finding.subject.id, position=at)
    lo, hi = _number(evidence, "frontier_lo"), _number(evidence, "frontier_hi")
    both = evidence.get("checkpoint_range")
    if isinstance(both, list) and len(both) == 2 and all(type(p) is int and p > 0 for p in both):
        lo, hi = both
    known.lo = known.lo if known.lo is not None else lo
    known.hi = known.hi if known.hi is not None else hi
    if finding.rule not in known.rules:
        known.rules.append(finding.rule)
    if not known.told:
        status = _status_of(finding)
        if _WORST.index(status) > _WORST.index(known.status):
            known.status = status


def _status_of(finding: Finding) -> str:
    if finding.severity == "critical":
        return "corrupt"
    if finding.rule == "edge_dropped":
        return "lossy"
    if finding.severity == "error":
        return "degraded"
    return {"frontier_unverified": "unverified", "stale_on_authorization": "stale"}.get(finding.rule, "")


def _gap(finding: Finding) -> Band:
    missing = finding.evidence.get("missing")
    if isinstance(missing, list) and len(missing) == 2 and all(type(p) is int and p > 0 for p in missing):
        return Band(min(missing), max(missing), "gap", finding.finding_id)
    return Band(finding.position, finding.position, "gap", finding.finding_id)


def _edge_words(entry: Mapping[str, Any]) -> Words:
    return (Name(_text(entry.get("precondition_id"))), " → ", Name(_text(entry.get("action_id"))))


def _edge_said(entry: Mapping[str, Any], *rest: str | Name) -> Words:
    what = ("The approval ", Name(_text(entry.get("precondition_id"))), " for ", Name(_text(entry.get("action_id"))))
    return (*what, *rest)


def _range_words(evidence: Mapping[str, Any]) -> str:
    lo, hi = _number(evidence, "frontier_lo"), _number(evidence, "frontier_hi")
    return f"covers {lo:,} to {hi:,}, " if lo is not None and hi is not None else ""


def _tell_edges(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    evidence, at = finding.evidence, finding.position
    lo, hi = _number(evidence, "frontier_lo"), _number(evidence, "frontier_hi")
    where = (Name(finding.subject.id), f" ({_range_words(evidence)}written at {at:,})")
    threads = []
    for entry in _mappings(evidence.get("edges")):
        granted, ended = _number(entry, "granted"), _number(entry, "ended")
        given = f", granted at {granted:,}," if granted else ""
        label = _edge_words(entry)
        if finding.rule == "edge_dropped":
            said = _edge_said(entry, f"{given} is missing from ", *where, ".")
            points: list[tuple[int | None, Shape]] = [(granted, "granted"), (at, "absent")]
            stretches: list[tuple[int | None, int | None, Look]] = [(granted, hi, "held"), (hi, at, "broken")]
            verdict = "dropped"
        elif finding.rule == "edge_hallucinated":
            said = _edge_said(entry, " was never granted, and ", *where, " asserts it.")
            points, stretches, verdict = [(at, "invented")], [(lo, at, "void")], "invented"
        elif finding.rule == "edge_revoked":
            until = f" was revoked at {ended:,}, and " if ended else " was revoked, and "
            said = _edge_said(entry, f"{given}{until}", *where, " still asserts it.")
            points = [(granted, "granted"), (ended, "ended"), (at, "asserted")]
            stretches, verdict = [(granted, ended, "held"), (ended, at, "void")], "revoked"
        else:
            said = _edge_said(entry, f"{given} lies before the range of ", *where, ", which asserts it unseen.")
            points = [(granted, "granted"), (at, "asserted")]
            stretches, verdict = [(granted, lo, "held"), (lo, at, "void")], "out of range"
        threads.append(_thread(finding, "approvals", verdict, label, said, points, stretches))
    return threads


def _tell_unverified(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    reasons = finding.evidence.get("reasons")
    reasons = reasons if isinstance(reasons, Mapping) else {}
    name, at = Name(finding.subject.id), finding.position
    threads = []
    implicit = _number(reasons, "authorization_not_explicit")
    if implicit:
        said: Words = (
            f"The approval at {implicit:,} does not say what it allows, so what ",
            name,
            " asserts cannot be checked.",
        )
        label: Words = (f"approval at {implicit:,}",)
        points: list[tuple[int | None, Shape]] = [(implicit, "granted"), (at, "fault")]
        threads.append(_thread(finding, "approvals", "not explicit", label, said, points, [(implicit, at, "broken")]))
    for entry in _mappings(reasons.get("edges_not_found")):
        said = _edge_said(entry, " was not seen, and a position is missing before, so ", name, " cannot be verified.")
        threads.append(_thread(finding, "approvals", "not found", _edge_words(entry), said, [(at, "invented")]))
    said_of = {
        "edges": "it asserts no edges",
        "missing_in_range": "a position inside its range is missing",
        "missing_after_range": "a position after its range is missing",
        "kept_from": "its range reaches further back than the sidecar keeps",
        "records_lost": "records of the session may be lost",
    }
    why = [text for key, text in said_of.items() if key in reasons]
    if why or not threads:
        said = ("The checkpoint ", name, " cannot be checked: ", "; ".join(why) or "see the evidence", ".")
        threads.append(_thread(finding, "approvals", "unverified", (name,), said, [(at, "fault")]))
    return threads


def _tell_stale(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    after = _number(finding.evidence, "authorization") or finding.position
    hi = _number(finding.evidence, "frontier_hi")
    name = Name(finding.subject.id)
    end = f" (covers up to {hi:,})" if hi is not None else ""
    said: Words = (f"At {after:,}, after the range of ", name, f"{end}, something was approved or revoked.")
    points: list[tuple[int | None, Shape]] = [(after, "granted")]
    label: Words = ("later than ", name)
    return [_thread(finding, "approvals", "after it", label, said, points, [(hi, after, "broken")])]


def _tell_action(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    at, action = finding.position, Name(finding.subject.id)
    points: list[tuple[int | None, Shape]] = [(at, "acted")]
    stretches: list[tuple[int | None, int | None, Look]] = []
    if finding.rule == "action_on_degraded":
        resumed = next((p for p in _witness(finding) if p < at), None)
        since = f" since the unsafe resume at {resumed:,}" if resumed else ""
        said: Words = (
            "The irreversible action ",
            action,
            f" was carried out at {at:,}, and nobody had reconciled{since}.",
        )
        points.insert(0, (resumed, "resumed"))
        stretches.append((resumed, at, "broken"))
        return [_thread(finding, "agent", "not reconciled", (action,), said, points, stretches)]
    said = ("The irreversible action ", action, f" was carried out at {at:,} without any approval in effect.")
    ends = []
    for entry in _mappings(finding.evidence.get("revoked")):
        granted, ended = _number(entry, "granted"), _number(entry, "ended")
        points += [(granted, "granted"), (ended, "ended")]
        stretches.append((granted, ended, "held"))
        if ended:
            ends.append((Name(_text(entry.get("precondition_id"))), f" until {ended:,}"))
    if ends:
        said = (*said, " It had been approved by ", *ends[0], "." if len(ends) == 1 else f" and {len(ends) - 1} more.")
    return [_thread(finding, "agent", "unapproved", (action,), said, points, stretches)]


def _tell_resume(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    at, name = finding.position, Name(finding.subject.id)
    status = finding.evidence.get("status")
    was = "does not know" if status == "unknown" else f"calls {_text(status)}"
    said: Words = (f"At {at:,} the agent resumed from ", name, f", which the sidecar {was}.")
    written = next((p for p in _witness(finding) if p < at), None)
    return [
        _thread(
            finding,
            "agent",
            "unsafe resume",
            ("resume from ", name),
            said,
            [(at, "resumed")],
            [(written, at, "void")],
        )
    ]


def _seen(evidence: Mapping[str, Any]) -> tuple[int | None, str]:
    last = evidence.get("last_seen")
    if not isinstance(last, Mapping):
        return None, "no store ever held it"
    at = _number(last, "position")
    return at, f"last seen at {at:,} in the {_text(last.get('store'))} store" if at else "last seen nobody knows where"


def _tell_orphan(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    at = finding.position
    seen, where = _seen(finding.evidence)
    rest = [p for p in _witness(finding) if p not in (at, seen)]
    made = rest[0] if rest else (at if len(_witness(finding)) < 3 else None)
    referent = Name(_text(finding.evidence.get("referent_id")))
    generation = finding.evidence.get("generation")
    said: Words = (
        "The value ",
        referent,
        f" ({where}) was found in no store at {at:,}, and the summary ",
        Name(finding.subject.id),
        f" (generation {generation}) needs it.",
    )
    points: list[tuple[int | None, Shape]] = [(seen, "seen"), (made if made != at else None, "made"), (at, "gone")]
    begin = min((p for p in (seen, made) if p), default=None)
    return [_thread(finding, "values", "orphaned", (referent,), said, points, [(begin, at, "broken")])]


def _tell_missing(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    at = finding.position
    seen, where = _seen(finding.evidence)
    reference = Name(_text(finding.evidence.get("reference")))
    said: Words = (
        f"The resume at {at:,} needs ",
        reference,
        f" ({where}), and ",
        Name(finding.subject.id),
        " does not hold it.",
    )
    points: list[tuple[int | None, Shape]] = [(seen, "seen"), (at, "absent")]
    return [_thread(finding, "values", "not carried", (reference,), said, points, [(seen, at, "broken")])]


def _tell_divergence(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    at = finding.position
    before = [p for p in _witness(finding) if p < at]
    said: Words = (
        "The call ",
        Name(finding.subject.id),
        " had returned ",
        Name(_text(finding.evidence.get("handle_before"))),
        f"; at {at:,}, after a resume, it returned ",
        Name(_text(finding.evidence.get("handle"))),
        ".",
    )
    points: list[tuple[int | None, Shape]] = [(before[0] if before else None, "seen")]
    if len(before) > 1:
        points.append((before[-1], "resumed"))
    points.append((at, "fault"))
    span = [(before[0], at, "broken")] if before else []
    return [_thread(finding, "values", "another handle", (Name(finding.subject.id),), said, points, span)]  # type: ignore[arg-type]


_CONTENT: dict[str, tuple[str, str, str]] = {
    "constraint_dropped": ("The prohibition ", "constraint_id", "is missing from"),
    "fact_dropped": ("The fact ", "fact_id", "is missing from"),
    "fact_below_floor": ("The fact ", "fact_id", "has fewer words than its floor in"),
    "anchor_lost": ("The fact ", "fact_id", "has lost its anchor in"),
}
_VERDICTS = {"fact_below_floor": "below floor", "anchor_lost": "anchor lost"}


def _tell_content(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    begin, key, middle = _CONTENT[finding.rule]
    at = finding.position
    stated = next((p for p in _witness(finding) if p < at), None)
    name = Name(_text(finding.evidence.get(key)))
    root = ", the root," if finding.evidence.get("root") else ""
    said: Words = (
        begin,
        name,
        f", stated at {stated:,}, " if stated else " ",
        middle,
        " the summary ",
        Name(finding.subject.id),
        f"{root} (generation {finding.evidence.get('generation')}, made at {at:,}).",
    )
    points: list[tuple[int | None, Shape]] = [(stated, "stated"), (at, "absent")]
    verdict = _VERDICTS.get(finding.rule, "dropped")
    return [_thread(finding, "content", verdict, (name,), said, points, [(stated, at, "broken")])]


def _tell_other(finding: Finding, covered: Mapping[str, Covered]) -> list[Thread]:
    """Tell what has no form of its own: the subject, where it was found fault with, and the rule's meaning."""
    at, name = finding.position, Name(finding.subject.id)
    witness = _witness(finding)
    lane: Lane = "summaries" if finding.subject.type in ("node", "checkpoint") else "agent"
    entry = CATALOGUE.get(finding.rule)
    meaning = entry.meaning if entry is not None else "This version of the page does not know the rule."
    kind = {"node": "Summary", "checkpoint": "Checkpoint"}.get(finding.subject.type, finding.subject.type.capitalize())
    said: Words = (f"{kind} ", name, f", at {at:,}: {meaning}{_figures(finding.evidence)}")
    points: list[tuple[int | None, Shape]] = [(p, "made") for p in witness if p < at]
    points.append((at, "fault"))
    span: list[tuple[int | None, int | None, Look]] = [(witness[0], at, "broken")] if witness else []
    verdict = _SHORT.get(finding.rule) or fitted(finding.rule.replace("_", " "), 20)
    return [_thread(finding, lane, verdict, (name,), said, points, span)]


_SHORT = {
    "frontier_ahead_of_log": "ahead of the log",
    "checkpoint_rewritten": "rewritten",
    "idempotence_violation": "no fixed point",
    "orphaned_resummarized": "summarized again",
    "retention_below_floor": "recall too low",
    "recall_self_reported": "not probed",
    "gc_before_probe": "reclaimed early",
    "budget_open": "not all read",
    "budget_exceeded": "over budget",
    "reranking_without_floor": "ranked",
    "generation_regressed": "old generation",
    "generation_mismatch": "other generation",
    "partial_summary": "half-written",
    "unreconciled_recompaction": "not reconciled",
}


_FIGURES = {
    "estimate": "estimated recall",
    "floor": "floor",
    "per_node_recall": "recall per node",
    "depth": "depth",
    "input_tokens": "tokens declared",
    "input_tokens_read": "tokens read",
    "token_budget": "budget",
    "tokens_emitted": "tokens written",
    "best_recall": "best probe",
    "generation": "generation",
    "newest": "newest generation",
    "summary_generation": "generation named",
}


def _figures(evidence: Mapping[str, Any]) -> str:
    known = [f"{text} {evidence[key]}" for key, text in _FIGURES.items() if type(evidence.get(key)) in (int, float)]
    return f" ({', '.join(known)})" if known else ""


_TELLERS = {
    "edge_dropped": _tell_edges,
    "edge_hallucinated": _tell_edges,
    "edge_revoked": _tell_edges,
    "edge_out_of_range": _tell_edges,
    "frontier_unverified": _tell_unverified,
    "stale_on_authorization": _tell_stale,
    "action_unauthorized": _tell_action,
    "action_on_degraded": _tell_action,
    "resumed_unverified": _tell_resume,
    "referent_orphaned": _tell_orphan,
    "dependency_missing": _tell_missing,
    "provenance_divergence": _tell_divergence,
    "constraint_dropped": _tell_content,
    "fact_dropped": _tell_content,
    "fact_below_floor": _tell_content,
    "anchor_lost": _tell_content,
}


# --- what the guard adds, and what nobody knows -----------------------------------------------------------------------


def _kept(edges: Sequence[Edge], checkpoints: Iterable[Covered], findings: Sequence[Finding]) -> list[Thread]:
    """Tell the effective edges: which the checkpoint in force keeps, and which are only in the log.

    A checkpoint that asserts its edges names every effective edge of its range, save those that `edge_dropped` lists.
    """
    force = next((c for c in checkpoints if c.in_force and c.lo is not None and c.hi is not None), None)
    dropped: set[tuple[str, str]] = set()
    unsure = force is None
    for finding in findings:
        if force is None or finding.subject.id != force.checkpoint_id or finding.subject.type != "checkpoint":
            continue
        if finding.rule == "edge_dropped":
            for e in _mappings(finding.evidence.get("edges")):
                dropped.add((_text(e.get("action_id")), _text(e.get("precondition_id"))))
        unsure = unsure or finding.rule in ("frontier_unverified", "frontier_ahead_of_log")
    threads = []
    for edge in edges:
        if (edge.action_id, edge.precondition_id) in dropped:
            continue
        label: Words = (Name(edge.precondition_id), " → ", Name(edge.action_id))
        begin: Words = ("The approval ", Name(edge.precondition_id), " for ", Name(edge.action_id))
        points = [Point(edge.granted, "granted")]
        if force is not None and not unsure and (force.lo or 0) <= edge.granted <= (force.hi or 0):
            said: Words = (*begin, f", granted at {edge.granted:,}, is kept by ", Name(force.checkpoint_id), ".")
            points.append(Point(force.position, "asserted"))
            stretches = [Stretch(edge.granted, force.position, "held")] if edge.granted < force.position else []
            verdict = "kept"
        else:
            said = (*begin, f", granted at {edge.granted:,}, is in effect in the log.")
            stretches, verdict = [], "in effect"
        threads.append(
            Thread(
                lane="approvals",
                verdict=verdict,
                label=label,
                said=said,
                points=points,
                stretches=stretches,
                position=edge.granted,
                witness=[edge.granted],
            )
        )
    return threads


def _unknown(
    findings: Sequence[Finding],
    checkpoints: Iterable[Covered],
    not_kept: int,
    edges: Sequence[Edge] | None,
    edge_count: int | None,
) -> list[Words]:
    said: list[Words] = []
    if not_kept:
        said.append((f"{not_kept:,} older findings are no longer kept here; the topic of findings has them.",))
    if cut := sum(bool(f.evidence.get("cut")) for f in findings):
        said.append((f"The evidence of {cut:,} findings is too long to be kept here: they are drawn as points.",))
    rangeless = [c.checkpoint_id for c in checkpoints if c.lo is None]
    if rangeless:
        names = [part for i, c in enumerate(rangeless[:3]) for part in ((", ",) if i else ()) + (Name(c),)]
        more = f" and {len(rangeless) - 3} more" if len(rangeless) > 3 else ""
        said.append(("The range is not known here of ", *names, f"{more}: drawn as a point where it was written."))
    if edges is None:
        said.append(("Approvals that were kept are not drawn: the fleet is told only what is wrong.",))
    elif edge_count is not None and edge_count > len(edges):
        said.append((f"{edge_count - len(edges):,} older approvals that are in effect are not drawn.",))
    said.append(("Resumes that were safe, reconciles, and summaries without fault are not told to the fleet.",))
    return said


_TELLING: tuple[str, ...] = (
    "edge_dropped",
    "edge_hallucinated",
    "edge_revoked",
    "edge_out_of_range",
    "action_unauthorized",
    "constraint_dropped",
    "referent_orphaned",
    "fact_dropped",
    "dependency_missing",
    "action_on_degraded",
    "provenance_divergence",
    "resumed_unverified",
)
"""The rules whose findings say what went missing, in the order in which a person wants to hear of it."""


def _headlines(timeline: Timeline, most: int = 3) -> list[Words]:
    """Return the sentences that say most, one of each rule: what still holds a session up first, the newest of them."""
    halting = {f for h in timeline.halts if h.cleared is None for f in h.finding_ids}
    force = {c.checkpoint_id for c in timeline.checkpoints if c.in_force}
    first: dict[tuple[bool, str], list[Thread]] = {}
    for thread in timeline.threads:
        if thread.rule in _TELLING:
            now = thread.finding_id in halting or (thread.lane == "approvals" and _names(thread) & force != set())
            first.setdefault((not now, thread.rule), []).append(thread)
    order = sorted(first, key=lambda k: (k[0], _TELLING.index(k[1])))
    said: list[Words] = []
    told: set[str] = set()
    left = 0
    for _, rule in order:
        many = first[_, rule]
        newest = max(many, key=lambda t: (t.position, t.key))
        if rule in told or len(said) >= most:
            left += len(many)
            continue
        told.add(rule)
        more = f" And {len(many) - 1:,} more like it." if len(many) > 1 else ""
        said.append((*newest.said, more) if more else newest.said)
    if left:
        said.append((f"{left:,} more of other kinds, or of before, are drawn and listed below.",))
    return said


def _names(thread: Thread) -> set[str]:
    return {w.id for w in thread.said if isinstance(w, Name)}
