"""Recovery: summaries, checkpoints, resumes and reconciles, and what external calls returned around them.

Source of the rules: the text on resume or reconcile: a resume is valid only from a verified checkpoint that holds
what the next turn needs; everything else fails closed into reconciliation.
"""

from sidecar.engine import floors, frontier, referents, retention
from sidecar.engine.context import INFERRED, Context, moment
from sidecar.engine.state import (
    AHEAD,
    CRITICAL,
    ERROR,
    SAID_MISMATCH,
    UNVERIFIED,
    Call,
    Recovery,
    Session,
    Tree,
    Written,
)
from sidecar.engine.status import checkpoint_status, clear_halts
from sidecar.engine.tree import (
    attach,
    commit,
    find_basis,
    forget_checkpoint,
    hold,
    known_children,
    newest_of,
    taken,
    tree_of,
)
from sidecar.protocol.records import Checkpoint, Reconcile, Resume, Summary, ToolResult


def summarize(ctx: Context, session: Session, record: Summary) -> None:
    """Judge and take a summary."""
    ctx.tell(session, record)
    tree = tree_of(session)
    tree.order += 1
    previous = newest_of(tree, record.node_id)
    newest = taken(tree, record.node_id)
    if record.generation <= newest:
        ctx.report(
            session,
            "generation_regressed",
            record.node_id,
            (moment(session),),
            witness=[previous.position if previous else 0, session.applied],
            evidence={"generation": record.generation, "newest": newest},
        )
        return
    children = known_children(tree, record)
    partial = bool(record.partial) or session.order.awaited > 0
    generation = commit(ctx, session, tree, record, partial)
    recovery = session.recovery
    if recovery is not None and recovery.awaiting:
        ctx.blame_node(
            session,
            tree,
            generation,
            "unreconciled_recompaction",
            witness=[recovery.resumed_at, session.applied],
        )
    if generation.lost:
        referents.judge_reachability(ctx, session, tree, generation)
    if previous is not None:
        referents.judge_resummary(ctx, session, tree, previous, generation)
    referents.count_survival(ctx, session, record, generation)
    retention.judge_retention(ctx, session, tree, generation, record)
    floors.judge_budget(ctx, session, tree, generation, record)
    if _ahead(session, record):
        ctx.blame_node(
            session,
            tree,
            generation,
            "frontier_ahead_of_log",
            witness=[session.applied],
            evidence={"frontier_hi": record.frontier_hi},
        )
    else:
        floors.judge_constraints(ctx, session, tree, generation, record, children)
        floors.judge_facts(ctx, session, tree, generation, record, children)
    if tree.expected:
        for written in attach(tree, generation):
            if written.id == tree.in_force:
                referents.judge_entered(ctx, session, tree, hold(session, tree, generation.id))


def check_point(ctx: Context, session: Session, record: Checkpoint) -> None:
    """Judge and take a checkpoint."""
    ctx.tell(session, record)
    tree = tree_of(session)
    tree.order += 1
    known = tree.checkpoints.get(record.checkpoint_id)
    if known is not None:
        ctx.report(
            session,
            "checkpoint_rewritten",
            known.id,
            (moment(session),),
            witness=[known.position, session.applied],
        )
        known.flags |= CRITICAL | ERROR
        return
    written = Written(
        id=record.checkpoint_id,
        node_id=record.node_id,
        generation=record.summary_generation,
        level=record.level,
        turn=record.turn,
        lo=record.frontier_lo,
        hi=record.frontier_hi,
        refs=record.verbatim_refs or (),
        order=tree.order,
        position=session.applied,
    )
    tree.checkpoints[written.id] = written
    tree.candidates.append(written.id)
    tree.newest = tree.in_force = written.id
    find_basis(tree, written)
    if record.inferred:
        written.flags |= UNVERIFIED
    if _ahead(session, record):
        written.flags |= AHEAD
        ctx.blame_checkpoint(
            session,
            written,
            "frontier_ahead_of_log",
            witness=[written.position],
            evidence={"frontier_hi": written.hi},
        )
    elif not record.inferred:
        frontier.judge_edges(ctx, session, written, record)
    frontier.judge_staleness(ctx, session, written)
    _judge_generation(ctx, session, tree, written)
    _judge_completeness(ctx, session, tree, written)
    _come_into_force(ctx, session, tree, written)
    if (session.halts or session.unread or session.lost) and checkpoint_status(session, tree, written) == "verified":
        clear_halts(ctx, session, session.halts)
        if session.order.moment is None:
            session.lost = False  # the log is whole up to here
    if len(tree.checkpoints) > ctx.limits.checkpoints:
        forget_checkpoint(tree, next(iter(tree.checkpoints.values())))


def resume(ctx: Context, session: Session, record: Resume) -> None:
    """Judge a resume: the checkpoint comes into force first, and only then is it judged."""
    ctx.tell(session, record)
    tree = tree_of(session)
    tree.order += 1
    recovery = _recovery(session)
    recovery.resumes += 1
    recovery.reconciles_at_resume = recovery.reconciles
    recovery.resumed_at = session.applied
    written = tree.checkpoints.get(record.checkpoint_id)
    tree.in_force = written.id if written is not None else tree.newest
    status = "unknown"
    missing: list[str] = []
    if written is not None:
        _come_into_force(ctx, session, tree, written)
        _judge_generation(ctx, session, tree, written)
        status = checkpoint_status(session, tree, written)
        held = set(written.refs) if record.deps else set()
        missing = [d for d in dict.fromkeys(record.deps or ()) if d not in held]
    else:
        newest = tree.checkpoints[tree.newest] if tree.newest is not None else None
        if newest is not None:
            _come_into_force(ctx, session, tree, newest)
    safe = status == "verified" or (written is not None and _replayed(session, tree, written, status, record))
    if not safe:
        ctx.report(
            session,
            "resumed_unverified",
            record.checkpoint_id,
            (moment(session),),
            witness=[written.position if written else 0, session.applied],
            evidence={"status": status} | ({"replayed_to": record.replayed_to} if record.replayed_to else {}),
        )
    if written is not None and missing:
        _report_missing(ctx, session, written, missing)
    recovery.awaiting = not safe or bool(missing)
    if not recovery.awaiting:
        clear_halts(ctx, session, session.by_resume)


def reconcile(ctx: Context, session: Session, record: Reconcile) -> None:
    """Apply a reconcile: the session is no longer awaiting, and what only waited for it is cleared."""
    ctx.tell(session, record)
    tree_of(session).order += 1
    recovery = _recovery(session)
    recovery.reconciles += 1
    recovery.awaiting = False
    clear_halts(ctx, session, session.by_reconcile)


def call_returned(ctx: Context, session: Session, record: ToolResult) -> None:
    """Note what a call returned, and judge it against what it had returned before the last resume."""
    for referent in record.referents or ():
        referents.put(session, referent, referents.LIVE)
    recovery = _recovery(session)
    calls = recovery.calls
    if calls is None:
        calls = recovery.calls = {}
    handle, key, stated = record.handle, record.call_key, not record.inferred
    call = calls.pop(key, None)
    if call is None:
        calls[key] = Call(handle, recovery.reconciles, session.applied, resumes=recovery.resumes, stated=stated)
        if len(calls) > ctx.limits.calls:
            del calls[next(iter(calls))]
        return
    calls[key] = call  # last again: the call that has not returned for longest is forgotten first
    if call.resumes != recovery.resumes:
        fresh = call.reconciles == recovery.reconciles_at_resume
        call.before = call.handle if fresh else None
        call.before_position, call.before_stated = call.position, call.stated
        call.resumes = recovery.resumes
        call.said = None
    if call.before is not None and call.before != handle and recovery.reconciles == recovery.reconciles_at_resume:
        if call.said is None:
            call.said = {}
        if handle not in call.said:
            call.said[handle] = None
            ctx.report(
                session,
                "provenance_divergence",
                key,
                (recovery.resumes, handle),
                witness=[call.before_position, recovery.resumed_at, session.applied],
                evidence={"handle_before": call.before, "handle": handle},
                **({} if stated and call.before_stated else INFERRED),
            )
    if call.reconciles != recovery.reconciles:
        call.handle, call.reconciles, call.stated = handle, recovery.reconciles, stated
    else:
        call.stated |= stated
        if call.handle != handle:
            call.handle = None
    call.position = session.applied


def _recovery(session: Session) -> Recovery:
    if session.recovery is None:
        session.recovery = Recovery()
    return session.recovery


def _ahead(session: Session, record: Summary | Checkpoint) -> bool:
    """Tell whether a record claims to summarize what had not happened when it was written."""
    if record.seq is not None:
        return record.frontier_hi >= record.seq
    return record.as_of_seq is not None and record.frontier_hi > record.as_of_seq


def _replayed(session: Session, tree: Tree, written: Written, status: str, record: Resume) -> bool:
    """Tell whether the log after a stale checkpoint was replayed far enough to go on from it."""
    to, own = record.replayed_to or 0, record.seq or session.applied
    latest = session.frontier.latest if session.frontier is not None else 0
    return status == "stale" and latest <= to < own and taken(tree, written.node_id) == written.generation


def _come_into_force(ctx: Context, session: Session, tree: Tree, written: Written) -> None:
    referents.judge_entered(ctx, session, tree, hold(session, tree, written.basis))


def _judge_generation(ctx: Context, session: Session, tree: Tree, written: Written) -> None:
    newest = newest_of(tree, written.node_id)
    if (newest is None or newest.number != written.generation) and not written.flags & SAID_MISMATCH:
        written.flags |= SAID_MISMATCH
        ctx.blame_checkpoint(
            session,
            written,
            "generation_mismatch",
            witness=[written.position, newest.position if newest else 0, session.applied],
            evidence={
                "node_id": written.node_id,
                "summary_generation": written.generation,
                "newest": newest.number if newest else None,
            },
        )


def _judge_completeness(ctx: Context, session: Session, tree: Tree, written: Written) -> None:
    newest = newest_of(tree, written.node_id)
    if newest is None:
        return
    outside = newest.lo < written.lo or newest.hi > written.hi
    if newest.partial or outside:
        ctx.blame_checkpoint(
            session,
            written,
            "partial_summary",
            witness=[newest.position, written.position],
            evidence={
                "partial": newest.partial,
                "summary_range": [newest.lo, newest.hi],
                "checkpoint_range": [written.lo, written.hi],
            },
        )


def _report_missing(ctx: Context, session: Session, written: Written, missing: list[str]) -> None:
    returned: dict[str, int] = {}
    for call in ((session.recovery and session.recovery.calls) or {}).values():
        for handle in (call.handle, call.before):
            if handle is not None:
                returned[handle] = max(returned.get(handle, 0), call.position)
    for dep in missing:
        seen = referents.last_seen(session, dep)
        if seen is None and dep in returned:
            seen = {"position": returned[dep], "store": "tool_result"}
        ctx.report(
            session,
            "dependency_missing",
            written.id,
            (moment(session), dep),
            witness=[written.position, seen["position"] if seen else 0, session.applied],
            evidence={
                "summary_generation": written.generation,
                "turn": written.turn,
                "reference": dep,
                "last_seen": seen,
            },
        )
