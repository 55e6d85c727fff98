"""What may be asked of a live session: may it act, resume, commit, reclaim; and how it stands.

Nothing asked changes anything. What a record *would* bring is found by folding it into a copy, so that an answer
cannot differ from the verdict that comes afterwards. Only actions, which are asked about most, are judged without a
copy: by their own rule, on the session as it stands. A rule about actions that goes by the position has to be given the
next one in `authorize`; the property test that compares answers with verdicts shows where that is missing. Every answer
that is not a plain yes refuses.

Source of the rules: the protocol's section on the guard; where it is silent these fail closed.
"""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from sidecar.engine import floors, frontier
from sidecar.engine.context import Context
from sidecar.engine.fold import Engine
from sidecar.engine.frontier import effective_edges
from sidecar.engine.missing import missing_in
from sidecar.engine.rules import CATALOGUE, HALTING
from sidecar.engine.state import Session, Tree, Written
from sidecar.engine.status import checkpoint_status, session_status
from sidecar.engine.tree import known_children, newest_of
from sidecar.protocol.api import (
    AuthorizeAnswer,
    AuthorizeRequest,
    CheckpointView,
    CommitAnswer,
    Deferred,
    Edge,
    FrontierView,
    GcAnswer,
    GcRequest,
    HaltView,
    Missing,
    PinnedConstraint,
    PinnedFact,
    Reason,
    ResumeAnswer,
    ResumeRequest,
    RuleView,
    Seen,
    SessionView,
)
from sidecar.protocol.outputs import Finding
from sidecar.protocol.records import Gc, Resume, Summary

LISTED = 1000
"""How many edges, halts, checkpoints or gaps an answer lists at most (the newest)."""

_MAY_ACT = ("verified", "stale")


def applied(engine: Engine, session_id: str) -> int | None:
    """Return the position a session's log has been applied up to; None: the session is unknown."""
    return engine.applied(session_id)


def authorize(engine: Engine, request: AuthorizeRequest) -> AuthorizeAnswer:
    """Say whether an irreversible action may be carried out now.

    It needs an effective edge, no open halt, a log without a hole that could hide its revocation, a checkpoint in
    force (if there is any) that is `verified` or `stale`, and a `checkpoint_id`, if given, that is `verified`.
    """
    session = engine.look(request.session_id)
    if session is None:
        return AuthorizeAnswer(session_id=request.session_id, reasons=[_unknown_session(request.session_id)])
    tree = session.tree
    edges = list(effective_edges(session.frontier, request.action_id))
    reasons = _not_whole(session) + _unread(session)
    ctx = Context(engine.limits)
    frontier.judge_action(ctx, session, request.action_id)
    reasons += [_broken(finding) for finding in ctx.found]
    if edges and not reasons:
        # An edge is good only if no position after its grant is missing: that one may have been its revocation. Nor
        # may the grant's own be: where two records contend for it, nobody knows whether it granted anything.
        holes = [missing_in(session, edge.granted, session.applied) for edge in edges]
        if all(holes):
            reasons.append(
                Reason(
                    code="log_incomplete",
                    rule="log_gap",
                    href=_href("log_gap"),
                    detail=f"Position {max(holes)} is missing, at the grant or after: it may have been the revocation.",
                )
            )
    reasons += _open_halts(session)
    in_force = tree.checkpoints[tree.in_force] if tree is not None and tree.in_force is not None else None
    if session.lost and in_force is None and not session.unjudged:  # (a checkpoint in force tells it by its status)
        reasons.append(Reason(code="log_incomplete", detail="Records of this session may have been lost unread."))
    if tree is not None and in_force is not None:
        status = checkpoint_status(session, tree, in_force)
        if status not in _MAY_ACT:
            detail = f"The checkpoint in force, {in_force.id}, is {status}; it must be verified, or stale."
            reasons.append(Reason(code="checkpoint_in_force", detail=detail))
    if request.checkpoint_id:
        reasons += _not_verified(session, request.checkpoint_id)
    return AuthorizeAnswer(
        allowed=not reasons,
        reasons=reasons,
        session_id=session.session_id,
        position=session.applied,
        status=session_status(session),
        checkpoint_in_force=in_force.id if in_force is not None else None,
        edges=[_edge(edge) for edge in edges[-LISTED:]],
    )


def resume(engine: Engine, request: ResumeRequest) -> ResumeAnswer:
    """Say whether a `resume` from a checkpoint would be safe now, and if not, what to reconcile with."""
    trial = engine.copy_of(request.session_id)
    answer = ResumeAnswer(session_id=request.session_id, checkpoint_id=request.checkpoint_id)
    if trial is None:
        answer.reasons = [_unknown_session(request.session_id)]
        return answer
    tried, session = trial
    answer.position = session.applied
    answer.reasons = _not_whole(session) + _unread(session)
    record = Resume(
        session_id=session.session_id,
        seq=session.applied + 1 if session.quiet else None,
        checkpoint_id=request.checkpoint_id,
        deps=tuple(request.deps),
        replayed_to=request.replayed_to or None,
    )
    outcome = _try(tried, session, record)
    answer.reasons += [_broken(finding) for finding in outcome.findings if _counts(finding)]
    answer.open_halts = [halt.id for halt in _newest((session.halts or {}).values())]
    tree = session.tree
    written = tree.checkpoints.get(request.checkpoint_id) if tree is not None else None
    if tree is not None and written is not None:
        answer.status = checkpoint_status(session, tree, written)
        answer.summary_generation, answer.turn = written.generation, written.turn
    for finding in outcome.findings:
        if finding.rule == "dependency_missing":
            seen = finding.evidence["last_seen"]
            answer.missing.append(Missing(reference=finding.evidence["reference"], last_seen=seen and Seen(**seen)))
    opened = next((halt for halt in outcome.halts if halt.status == "halt"), None)
    if opened is not None:
        answer.reexpand_from = opened.reexpand_from or None
        answer.replay_from = opened.replay_from or None
    awaiting = session.recovery is None or session.recovery.awaiting
    if not awaiting and not answer.reasons:
        answer.decision = "resume"
    return answer


def commit_needs(record: Summary) -> int | None:
    """Return up to where the log must have been applied before a proposed summary can be judged; None: as it is."""
    return record.as_of_seq if record.seq is None else record.seq - 1


def commit(engine: Engine, record: Summary) -> CommitAnswer:
    """Say what committing a proposed summary would bring, and so what is to become of it.

    Args:
        record: as it would be published. Without `seq` and `as_of_seq` it is judged at the next position.
    """
    trial = engine.copy_of(record.session_id)
    answer = CommitAnswer(session_id=record.session_id, node_id=record.node_id)
    if trial is None:
        answer.reasons = [_unknown_session(record.session_id)]
        return answer
    tried, session = trial
    answer.position = session.applied
    answer.reasons = _not_whole(session)
    if record.seq is None and record.as_of_seq is None:
        record = msgspec.structs.replace(record, seq=session.applied + 1)
    needed = commit_needs(record)
    if needed is not None and needed > session.applied:
        answer.reasons.append(
            Reason(code="not_applied", detail=f"The log is applied up to {session.applied}, not yet up to {needed}.")
        )
    if record.seq is not None and record.seq <= session.applied:
        answer.reasons.append(
            Reason(
                code="rule",
                rule="log_conflict",
                href=_href("log_conflict"),
                detail=f"Position {record.seq} is taken; the log has been applied up to {session.applied}.",
            )
        )
    if answer.reasons:
        return answer
    children = known_children(session.tree, record) if session.tree is not None else []
    constraints, facts = floors.must_carry(session, record, children)
    outcome = _try(tried, session, record)
    if outcome.letters:  # it would be another tenant's, and not be taken at all
        answer.reasons.append(Reason(code="bad_request", detail=outcome.letters[0].reason))
        return answer
    answer.findings = outcome.findings
    answer.reasons = [_broken(finding) for finding in outcome.findings]
    answer.decision = cast(Any, _decision(outcome.findings))
    if answer.decision == "retry_pinned":
        lost = {
            str(finding.evidence.get(key))
            for finding in outcome.findings
            for key in ("constraint_id", "fact_id")
            if key in finding.evidence
        }
        answer.constraints = [
            PinnedConstraint(constraint_id=s.id, position=s.position, lost=s.id in lost) for s in constraints
        ]
        answer.facts = [
            PinnedFact(fact_id=s.id, anchor=s.anchor, floor_tokens=s.floor, position=s.position, lost=s.id in lost)
            for s in facts
        ]
    return answer


def gc(engine: Engine, request: GcRequest) -> GcAnswer:
    """Say which nodes may be reclaimed, and what each of the others waits for."""
    trial = engine.copy_of(request.session_id)
    answer = GcAnswer(session_id=request.session_id)
    if trial is None:
        answer.reasons = [_unknown_session(request.session_id)]
        return answer
    tried, session = trial
    answer.position = session.applied
    node_ids = list(dict.fromkeys(request.node_ids))
    held_back: dict[str, list[Reason]] = {node_id: [] for node_id in node_ids}
    tree = session.tree
    general = (
        _not_whole(session) + _unread(session) + _open_halts(session)
    )  # a halted session may have to be expanded from these
    for node_id, waits_for in held_back.items():
        if tree is None or newest_of(tree, node_id) is None:
            detail = f"No generation of node {node_id} is known."
            waits_for.append(Reason(code="unknown_node", detail=detail))
        waits_for += general[-1:]  # (all are in `reasons`: there may be many of them, and many nodes)
    outcome = _try(tried, session, Gc(session_id=session.session_id, seq=None, node_ids=tuple(node_ids)))
    for finding in outcome.findings:
        if finding.subject.id in held_back and finding.subject.type == "node":
            held_back[finding.subject.id].append(_broken(finding))
    answer.reclaimable = [node_id for node_id, waits_for in held_back.items() if not waits_for]
    answer.deferred = [Deferred(node_id=n, waits_for=waits_for) for n, waits_for in held_back.items() if waits_for]
    answer.reasons = general
    answer.decision = "defer" if answer.deferred or general else "reclaim"
    return answer


def view(engine: Engine, session_id: str) -> SessionView | None:
    """Describe a session as it stands now; None: it is unknown."""
    session = engine.look(session_id)
    if session is None:
        return None
    tree, order = session.tree, session.order
    in_force = tree.checkpoints[tree.in_force] if tree is not None and tree.in_force is not None else None
    edges = list(effective_edges(session.frontier))
    gaps = list(zip(order.missing_lo or (), order.missing_hi or (), strict=True))
    return SessionView(
        session_id=session.session_id,
        status=session_status(session),
        position=session.applied,
        awaiting=session.recovery is not None and session.recovery.awaiting,
        waiting=len(order.waiting or ()) + len(order.unplaced or ()),
        unread=session.unread,
        missing=gaps[-LISTED:],
        checkpoint_in_force=_checkpoint(session, tree, in_force) if tree is not None and in_force else None,
        checkpoints=list(tree.checkpoints)[-LISTED:] if tree is not None else [],
        open_halts=[
            HaltView(
                halt_id=halt.id,
                position=halt.position,
                reason=halt.reason,
                checkpoint_id=halt.checkpoint_id,
                finding_ids=halt.finding_ids,
            )
            for halt in _newest((session.halts or {}).values())
        ],
        frontier=FrontierView(
            latest=session.frontier.latest if session.frontier is not None else 0,
            edge_count=len(edges),
            edges=[_edge(edge) for edge in sorted(edges, key=lambda edge: edge.granted)[-LISTED:]],
        ),
    )


def view_checkpoint(engine: Engine, session_id: str, checkpoint_id: str) -> CheckpointView | None:
    """Describe a checkpoint as it stands now; None: the session or the checkpoint is unknown."""
    session = engine.look(session_id)
    tree = session.tree if session is not None else None
    written = tree.checkpoints.get(checkpoint_id) if tree is not None else None
    if session is None or tree is None or written is None:
        return None
    return _checkpoint(session, tree, written)


def view_rule(name: str) -> RuleView | None:
    """Explain a rule; None: there is none of that name."""
    rule = CATALOGUE.get(name)
    if rule is None:
        return None
    return RuleView(
        rule=rule.name,
        severity=rule.severity,
        disposition=rule.disposition,
        meaning=rule.meaning,
        why=rule.why,
        remedy=rule.remedy,
    )


# --- inside -----------------------------------------------------------------------------------------------------------


def _try(tried: Engine, session: Session, record: Any) -> Any:
    # A record without `seq` that has come before would be ignored as a duplicate; here it is to be judged.
    session.order.seen_unplaced = None
    return tried.fold([(record, 1, None)], 0.0)


def _decision(findings: Iterable[Finding]) -> str:
    """Return what is to become of a proposal with such findings; the worst decides.

    A lost prohibition or fact, an open budget and an unreachable referent can be mended by summarizing again.
    """
    decisions = {"commit"}
    for finding in findings:
        disposition = finding.disposition
        if disposition in ("reject_subtree", "retry_pinned", "retry", "degrade"):
            decisions.add("retry_pinned")
        elif disposition == "flatten_and_defer_gc":
            decisions.add("flatten_and_defer_gc")
        elif disposition in HALTING or finding.severity != "warning":
            decisions.add("halt")
    return next(d for d in ("halt", "flatten_and_defer_gc", "retry_pinned", "commit") if d in decisions)


def _counts(finding: Finding) -> bool:
    """Tell whether a finding of a resume stands in its way; a warning does so through the checkpoint's status."""
    return finding.severity != "warning"


def _not_whole(session: Session) -> list[Reason]:
    """Return a reason if a session cannot be judged: it was joined midstream, or records before others are missing."""
    if session.unjudged:
        detail = (
            "The beginning of this session is not in the log, so what it may do is unknown. Whoever keeps its"
            " permissions publishes a `baseline` record that states what holds; it is judged from there."
        )
        return [Reason(code="unjudged", rule="session_joined", href=_href("session_joined"), detail=detail)]
    if session.quiet:
        return []
    detail = f"Records after position {session.applied} have come, but not those that stand before them."
    return [Reason(code="not_applied", detail=detail)]


def _unread(session: Session) -> list[Reason]:
    """Return a reason if a record could not be read whose position is unknown: it may have been a revocation."""
    if not session.unread:
        return []
    detail = (
        "A record of this session could not be read, and may have been a revocation; it is among the dead letters."
        " A `reconcile` record, or a checkpoint that is verified, says that somebody has seen to it."
    )
    return [Reason(code="log_incomplete", detail=detail)]


def _open_halts(session: Session) -> list[Reason]:
    return [
        Reason(
            code="open_halt",
            rule=rule,
            href=_href(rule),
            detail=f"Halt {halt.id} is open since position {halt.position}.",
        )
        for halt in _newest((session.halts or {}).values())
        for rule in halt.reason
    ]


def _not_verified(session: Session, checkpoint_id: str) -> list[Reason]:
    tree = session.tree
    written = tree.checkpoints.get(checkpoint_id) if tree is not None else None
    status = checkpoint_status(session, tree, written) if tree is not None and written is not None else "unknown"
    if status == "verified":
        return []
    detail = f"Checkpoint {checkpoint_id} is {status}; it must be verified."
    return [Reason(code="checkpoint", rule="resumed_unverified", href=_href("resumed_unverified"), detail=detail)]


def _unknown_session(session_id: str) -> Reason:
    return Reason(code="unknown_session", detail=f"No record of session {session_id} has been read.")


def _broken(finding: Finding) -> Reason:
    rule = CATALOGUE[finding.rule]
    detail = f"{finding.subject.type} {finding.subject.id} would be {rule.name}: {rule.meaning}"
    return Reason(code="rule", rule=rule.name, href=_href(rule.name), detail=detail)


def _href(rule: str) -> str:
    return f"/v1/rules/{rule}"


def _edge(edge: Any) -> Edge:
    return Edge(action_id=edge.action, precondition_id=edge.precondition, granted=edge.granted)


def _newest(items: Iterable[Any]) -> list[Any]:
    return list(items)[-LISTED:]


def _checkpoint(session: Session, tree: Tree, written: Written) -> CheckpointView:
    return CheckpointView(
        checkpoint_id=written.id,
        status=checkpoint_status(session, tree, written),
        node_id=written.node_id,
        summary_generation=written.generation,
        level=written.level,
        turn=written.turn,
        frontier_lo=written.lo,
        frontier_hi=written.hi,
        position=written.position,
        verbatim_refs=list(written.refs),
        in_force=tree.in_force == written.id,
        newest=tree.newest == written.id,
    )
