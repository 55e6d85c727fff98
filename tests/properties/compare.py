"""Run the engine on raw arrivals, and put its outcome and the naive judge's into the same shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from sidecar.engine.fold import Arrival, Engine
from sidecar.engine.limits import Limits
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import Finding, Halt, Source
from sidecar.protocol.records import Hole
from tests.judge.naive import Verdict, judge

EDGE_RULES = ("edge_hallucinated", "edge_revoked", "edge_out_of_range", "edge_dropped")
ITEMS = ("referent_id", "constraint_id", "fact_id", "reference", "handle")


def arrivals(lines: Iterable[bytes]) -> list[Arrival]:
    """Decode raw lines as the sidecar does; unreadable ones become holes where their position can be read."""
    decoded: list[Arrival] = []
    for number, line in enumerate(lines, 1):
        source = Source("test", 0, number)
        try:
            record, digest = decode(line)
        except Unreadable as error:
            if error.session_id is not None and error.seq is not None:
                decoded.append((Hole(session_id=error.session_id, seq=error.seq), 0, source))
            continue
        decoded.append((record, digest, source))
    return decoded


class Run:
    """What an engine found, in the end."""

    def __init__(self, engine: Engine, findings: list[Finding], halts: list[Halt]) -> None:
        self.engine, self.findings, self.halts = engine, findings, halts

    def ids(self) -> Counter[str]:
        return Counter(f.finding_id for f in self.findings)

    def everything(self) -> tuple[Any, ...]:
        """All that determinism promises: findings with their evidence, halts in each session's order, sessions."""
        findings = Counter(
            repr((f.finding_id, f.rule, f.severity, f.disposition, f.subject, f.position, f.evidence))
            for f in self.findings
        )
        halts: dict[str, list[str]] = {}
        for halt in self.halts:
            halts.setdefault(halt.session_id, []).append(repr(halt))
        return findings, halts, sorted(map(repr, self.engine.states()))


def run(
    lines: Sequence[bytes],
    *,
    limits: Limits | None = None,
    cuts: Sequence[int] = (),
    between: Callable[[Engine], Engine] = lambda engine: engine,
) -> Run:
    """Fold the lines, in batches that end at `cuts`; between two batches the engine may be replaced."""
    engine = Engine(limits)
    decoded = arrivals(lines)
    findings: list[Finding] = []
    halts: list[Halt] = []
    start = 0
    for cut in [*sorted(cuts), len(decoded)]:
        outcome = engine.fold(decoded[start:cut], 0.0)
        findings += outcome.findings
        halts += outcome.halts
        start = max(start, cut)
        engine = between(engine)
    outcome = engine.finish()
    return Run(engine, findings + outcome.findings, halts + outcome.halts)


def shape(result: Run) -> tuple[Counter[Any], list[Any], list[Any]]:
    """Return what can be compared with the judge's verdict."""
    rows: Counter[Any] = Counter()
    about: dict[str, tuple[str, str]] = {}
    for f in result.findings:
        about[f.finding_id] = (f.rule, f.subject.id)
        rows[f.rule, f.subject.type, f.subject.id, f.position, _detail(f), f.severity] += 1
    halts = [
        (
            h.session_id,
            h.position,
            h.status,
            tuple(h.reason),
            h.checkpoint_id,
            len(h.open_halts),
            tuple(sorted(about[i] for i in h.finding_ids)),
            (h.reexpand_from, h.replay_from) if h.status == "halt" else None,
        )
        for h in result.halts
    ]
    sessions = [(s.session_id, s.status, s.checkpoint_in_force, len(s.open_halts)) for s in result.engine.states()]
    return rows, sorted(halts, key=repr), sorted(sessions)


def shape_of(verdict: Verdict) -> tuple[Counter[Any], list[Any], list[Any]]:
    """Return the judge's verdict in the same shape."""
    rows = Counter((f.rule, f.subject_type, f.subject_id, f.position, f.detail, f.severity) for f in verdict.findings)
    halts = [
        (
            h["session_id"],
            h["position"],
            h["status"],
            tuple(h["reason"]),
            h["checkpoint_id"],
            h["open_halts"],
            tuple(sorted(h["findings"])),
            (h["reexpand_from"], h["replay_from"]) if h["status"] == "halt" else None,
        )
        for h in verdict.halts
    ]
    sessions = [(s["session_id"], s["status"], s["checkpoint_in_force"], s["open_halts"]) for s in verdict.sessions]
    return rows, sorted(halts, key=repr), sorted(sessions)


def disagreement(
    lines: Sequence[bytes], *, max_waiting: int | None = None, midstream: Literal["skip", "judge"] = "skip"
) -> list[str]:
    """Say where engine and judge disagree on these lines; nothing where they agree."""
    limits = Limits(midstream=midstream, positions=2**61)  # the judge forgets nothing, however long a gap is
    if max_waiting is not None:
        limits = msgspec.structs.replace(limits, max_waiting=max_waiting)
    result = run(lines, limits=limits)
    verdict = judge(lines, max_waiting, midstream=midstream)
    ours, theirs = shape(result), shape_of(verdict)
    problems = [f"only the engine finds {row}" for row in (ours[0] - theirs[0])]
    problems += [f"only the judge finds {row}" for row in (theirs[0] - ours[0])]
    for name, mine, other in (("halts", ours[1], theirs[1]), ("sessions", ours[2], theirs[2])):
        problems += [f"{name}: only the engine has {row}" for row in mine if row not in other]
        problems += [f"{name}: only the judge has {row}" for row in other if row not in mine]
    counters = result.engine.counters
    ours_counted, theirs_counted = (counters.duplicates, counters.late), (verdict.duplicates, verdict.late)
    if ours_counted != theirs_counted:
        problems.append(f"duplicates, late: engine {ours_counted}; judge {theirs_counted}")
    return problems


def _detail(finding: Finding) -> str:
    evidence = finding.evidence
    if finding.rule in EDGE_RULES:
        return ",".join(sorted(f"{e['action_id']}<-{e['precondition_id']}" for e in evidence["edges"]))
    if finding.rule == "log_gap":
        first, last = evidence["missing"]
        return "" if first == last or "for" in evidence else str(last)
    for name in ITEMS:
        if name in evidence:
            return str(evidence[name])
    return str(evidence["generation"]) if "generation" in evidence else ""
