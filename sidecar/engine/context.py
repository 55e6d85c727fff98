"""What the rules of every family share: how a finding is made, and what it does to the status."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from sidecar.engine.limits import Limits
from sidecar.engine.rules import CATALOGUE
from sidecar.engine.state import CRITICAL, ERROR, LOSS, UNVERIFIED, Generation, Session, Tally, Tree, Written
from sidecar.protocol.outputs import Disposition, Finding, Halt, Severity, Subject, SubjectType
from sidecar.protocol.records import Compaction, Summary

_LOSSES = frozenset(("edge_dropped", "constraint_dropped", "fact_dropped", "fact_below_floor", "anchor_lost"))
_encode = msgspec.json.encode
_MAX_TALLIES = 48
_MAX_LEVEL = 8
"""Deeper summary levels are counted with this one."""


def stable_id(*parts: object) -> str:
    """Hash parts to an id that is the same in every process and after every restart (128 bits, hex)."""
    return blake2b(_encode(parts), digest_size=16).hexdigest()


NAMED = 100
"""How many findings of a rule about one node a record brings, and how many edges one finding names, at most; the last
says how many `more` there are. What summaries lack of a long log must not be told whole with each of them."""

INFERRED: dict[str, Any] = {"severity": "warning", "disposition": "unverified"}
"""What a finding is that rests on an inferred record, whatever its rule (protocol: "Inferred")."""


class Context:
    """Carry what one fold hands to its rules: the limits, and where findings, halts and counts go.

    `survival` counts by (what, summary level) how many prohibitions, facts and referents a summary should carry, and
    how many it does. `found` are the findings of the record being judged, `alike` the same by rule and node, `findings`
    those of all before.
    `news` names the sessions of which more than the log's position may have changed since that was last told.
    """

    __slots__ = ("alike", "findings", "found", "halts", "limits", "news", "survival")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.found: list[Finding] = []
        self.alike: dict[tuple[str, int, bool], list[Finding]] = {}
        self.findings: list[Finding] = []
        self.halts: list[Halt] = []
        self.survival: dict[tuple[str, int], list[int]] = {}
        self.news: dict[str, None] = {}

    def tell(self, session: Session, record: Compaction) -> None:
        """Note that a record brought news of its session, and whose record it was."""
        self.news[session.session_id] = None
        tenant, agent, model = record.tenant, record.agent, record.model
        if tenant or agent or model:
            before = session.origin or (None, None, None)
            session.origin = (tenant or before[0], agent or before[1], model or before[2])

    def count_survival(self, session: Session, record: Summary, what: str, checked: int, kept: int) -> None:
        """Count how many of what a summary should carry it carries."""
        level = record.level
        counts = self.survival.setdefault((what, level), [0, 0])
        counts[0] += checked
        counts[1] += kept
        tally = _tally(session, what, min(level, _MAX_LEVEL), record.model or None)
        tally.checked += checked
        tally.kept += kept

    def report(
        self,
        session: Session,
        rule: str,
        subject: str,
        key: Sequence[object],
        *,
        witness: Iterable[int],
        evidence: Mapping[str, Any] | None = None,
        subject_type: SubjectType | None = None,
        severity: Severity | None = None,
        disposition: Disposition | None = None,
        position: int | None = None,
    ) -> Finding:
        """Make a finding of the record being judged.

        Args:
            subject: the id of what it is about.
            key: the piece of evidence that a rule fires at most once for; part of the finding's id.
            witness: the log positions that prove it.
            evidence: what else a person needs to check it.
            subject_type, severity, disposition: where they differ from the catalogue's.
            position: where it differs from the log's.
        """
        entry = CATALOGUE[rule]
        kind = subject_type or entry.subject
        finding = Finding(
            finding_id=stable_id(rule, session.session_id, kind, subject, *key),
            rule=rule,
            severity=severity or entry.severity,
            disposition=disposition or entry.disposition,
            session_id=session.session_id,
            subject=Subject(kind, subject),
            position=session.applied if position is None else position,
            evidence={"witness": sorted({p for p in witness if p > 0}), **(evidence or {})},
        )
        self.found.append(finding)
        return finding

    def blame_checkpoint(self, session: Session, written: Written, rule: str, **details: Any) -> None:
        """Report a finding that counts against a checkpoint; once per checkpoint and rule."""
        self.report(session, rule, written.id, (), **details)
        written.flags |= _flags(rule, CATALOGUE[rule].severity)

    def blame_node(
        self,
        session: Session,
        tree: Tree,
        generation: Generation,
        rule: str,
        key: Sequence[object] = (),
        inferred: bool = False,
        **details: Any,
    ) -> None:
        """Report a finding that counts against a node's generation and against all that was built from it.

        Args:
            inferred: it rests on an inferred record, so that it is a warning and counts against nothing.
        """
        alike = self.alike.setdefault((rule, generation.id, inferred), [])
        if len(alike) >= NAMED:
            last = alike[-1].evidence
            last["more"] = last.get("more", 0) + 1
            return
        key = (generation.number, *key)
        evidence = {"generation": generation.number, **(details.pop("evidence", None) or {})}
        if inferred:
            details |= INFERRED
            evidence["inferred"] = True
        finding = self.report(session, rule, generation.node_id, key, subject_type="node", evidence=evidence, **details)
        alike.append(finding)
        flags = _flags(rule, finding.severity)
        generation.own |= flags
        mark_upward(tree, generation, flags)


def _tally(session: Session, what: str, level: int, model: str | None) -> Tally:
    """Return the tally to count in; past a bound the models are no longer told apart."""
    if session.tallies is None:
        session.tallies = []
    tallies = session.tallies
    if len(tallies) >= _MAX_TALLIES:
        model = None
    for tally in tallies:
        if tally.what == what and tally.level == level and tally.model == model:
            return tally
    tallies.append(Tally(what, level, model))
    return tallies[-1]


def _flags(rule: str, severity: Severity) -> int:
    if rule == "frontier_unverified":
        return UNVERIFIED
    if severity == "warning":
        return 0
    flags = ERROR | CRITICAL if severity == "critical" else ERROR
    return flags | LOSS if rule in _LOSSES else flags


def mark_upward(tree: Tree, generation: Generation, flags: int) -> None:
    """Mark a generation's basis, and that of all built from it, so that a checkpoint's status is a look-up.

    Each generation takes each flag once, so the marking is paid for by the findings.
    """
    todo = [generation]
    while todo:
        current = todo.pop()
        if flags & ~current.below:
            current.below |= flags
            if current.above:
                todo.extend(tree.generations[g] for g in current.above)


def moment(session: Session) -> object:
    """Return what tells this record from others of its session: its position, or its content without one."""
    return session.order.moment or session.applied
