"""Status of checkpoints and sessions, and the halts that follow from findings (protocol: "Status and halts")."""

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from sidecar.engine.context import Context, stable_id
from sidecar.engine.missing import missing_in
from sidecar.engine.rules import HALTING
from sidecar.engine.state import (
    CRITICAL,
    ERROR,
    FORGOTTEN,
    LOSS,
    UNVERIFIED,
    OpenHalt,
    Session,
    Tree,
    Written,
)
from sidecar.engine.tree import newest_of, taken, unreachable_below
from sidecar.protocol.outputs import CheckpointState, Finding, Halt, SessionRecord, Source, Survival
from sidecar.protocol.records import Record

STATUSES = ("uncompacted", "verified", "stale", "unjudged", "unverified", "degraded", "lossy", "corrupt")
"""Every status of a session, from best to worst."""

DEGRADED = frozenset(("corrupt", "lossy", "degraded", "unverified"))
"""The statuses of a session that count as degraded; `stale` is exposure."""

REFUSED = frozenset(("corrupt", "lossy", "degraded"))
"""The statuses of a session that must not be forgotten altogether: it would come back clean."""

LASTING = DEGRADED | {"stale"}
"""The statuses of which it matters how long they last."""

_HEALTHY = frozenset(("uncompacted", "verified", "stale", "unverified"))
LISTED = 32
"""How many open halts a halt record lists at most (the newest): a session that only ever halts must not outgrow it."""
OPEN = 1024
"""How many halts of a session are open at most before those that would open and clear with another are left out."""
_BY_RECONCILE = frozenset(("resumed_unverified", "action_on_degraded"))
_NEEDS_SEQ = frozenset(("action_unauthorized", "action_on_degraded", "log_conflict"))
"""The rules whose halts only a record with a `seq` clears: who has no place in the log cannot vouch for it."""
_DEAD = CRITICAL | ERROR | UNVERIFIED | FORGOTTEN


def checkpoint_status(session: Session, tree: Tree, written: Written) -> str:
    """Return the status of a checkpoint: the worst that holds."""
    basis = tree.generations[written.basis] if written.basis is not None else None
    flags = written.flags | (basis.below if basis else 0)
    if written.flags & CRITICAL or (basis and basis.own & CRITICAL):
        return "corrupt"
    if flags & LOSS:
        return "lossy"
    if flags & ERROR or (basis and unreachable_below(session, tree, basis, {})):
        return "degraded"
    if flags & (UNVERIFIED | FORGOTTEN) or _missing_since(session, written):
        return "unverified"
    if session.frontier is not None and session.frontier.latest > written.hi:
        return "stale"
    # Also where the newest generation has been forgotten, and only that there was one is known.
    return "stale" if taken(tree, written.node_id) > written.generation else "verified"


def _missing_since(session: Session, written: Written) -> bool:
    # Also inside its range, where two records contend for a position that it had been judged with.
    return missing_in(session, written.lo, max(session.applied, session.order.awaited)) > 0


def status_in_force(session: Session) -> str:
    """Return the status of the checkpoint in force; without one, what can be said of the log."""
    tree = session.tree
    if tree is not None and tree.in_force is not None:
        return checkpoint_status(session, tree, tree.checkpoints[tree.in_force])
    return "unverified" if session.order.missing_lo or session.lost else "uncompacted"


def must_refuse(session: Session) -> bool:
    """Tell whether a session has to go on being refused, so that it must not be forgotten altogether."""
    awaiting = session.recovery is not None and session.recovery.awaiting
    if session.halts or awaiting or session.lost or session.unread:
        return True
    return session_status(session) in REFUSED


def session_status(session: Session, in_force: str | None = None) -> str:
    """Return the status of a session: that of its checkpoint in force, but degraded at least while halted.

    Args:
        in_force: what `status_in_force` says, where that has been asked already.
    """
    if session.unjudged:
        return "unjudged"
    status = in_force or status_in_force(session)
    return "degraded" if session.halts and status in _HEALTHY else status


def describe(session: Session) -> SessionRecord:
    """Return where a session stands, as it is told to others."""
    tree = session.tree
    written = tree.checkpoints[tree.in_force] if tree is not None and tree.in_force is not None else None
    tenant, agent, model = session.origin or (None, None, None)
    return SessionRecord(
        session_id=session.session_id,
        position=session.applied,
        status=session_status(session),  # type: ignore[arg-type]
        awaiting=session.recovery is not None and session.recovery.awaiting,
        open_halts=_listed(session.halts or {}),
        checkpoint=CheckpointState(
            checkpoint_id=written.id,
            status=checkpoint_status(session, tree, written),
            node_id=written.node_id,
            summary_generation=written.generation,
            level=written.level,
            turn=written.turn,
            frontier_lo=written.lo,
            frontier_hi=written.hi,
            position=written.position,
        )
        if tree is not None and written is not None
        else None,
        survival=[
            Survival(what=t.what, level=t.level, model=t.model, checked=t.checked, kept=t.kept)  # type: ignore[arg-type]
            for t in session.tallies or ()
        ],
        tenant=tenant or msgspec.UNSET,
        agent=agent or msgspec.UNSET,
        model=model or msgspec.UNSET,
    )


def _listed(halts: dict[str, OpenHalt]) -> list[str]:
    return list(halts) if len(halts) <= LISTED else list(islice(reversed(halts), LISTED))[::-1]


def clear_halts(ctx: Context, session: Session, clearable: Mapping[str, object] | None) -> None:
    """Clear open halts, and the mark that a record of the session could not be read.

    Args:
        clearable: which, by id; all that are open if it is the session's `halts`.
    """
    has_seq = session.order.moment is None
    # What came before the unread record, and waited, says nothing about it.
    if has_seq and clearable is not session.by_resume and session.applied > session.unread_at:
        session.unread = False
    halts = session.halts
    if not halts or not clearable:
        return
    for halt_id in list(clearable):
        if not has_seq and not _NEEDS_SEQ.isdisjoint(halts[halt_id].reason):
            continue
        halt = halts.pop(halt_id)
        for index in (session.by_reconcile, session.by_resume):
            index.pop(halt_id, None)
        ctx.halts.append(
            Halt(
                halt_id=halt.id,
                session_id=session.session_id,
                position=session.applied,
                status="clear",
                checkpoint_id=halt.checkpoint_id,
                reason=halt.reason,
                finding_ids=halt.finding_ids,
                open_halts=_listed(halts),
            )
        )
    if not halts:
        session.halts = None


def open_halt(ctx: Context, session: Session, findings: Sequence[Finding], position: int) -> None:
    """Open one halt for the findings of a record that call for it, if any does."""
    halting = [f for f in findings if f.disposition in HALTING]
    if not halting:
        return
    tree = session.tree
    about = next((f.subject.id for f in halting if f.subject.type == "checkpoint"), None)
    reason = sorted({f.rule for f in halting})
    finding_ids = [f.finding_id for f in halting]
    reexpand = _reexpand_from(session, tree, about, reason) if tree is not None else None
    halt = OpenHalt(
        id=stable_id("halt", session.session_id, position, sorted(finding_ids)),
        position=position,
        reason=reason,
        checkpoint_id=about if about is not None else tree.in_force if tree else None,
        finding_ids=finding_ids,
    )
    by_reconcile = all(f.disposition == "reconcile" or f.rule in _BY_RECONCILE for f in halting)
    by_resume = all(f.subject.type == "checkpoint" for f in halting)
    if session.halts is None:
        session.halts = {}
    elif len(session.halts) >= OPEN and any(
        other.reason == reason
        and (other.id in session.by_reconcile) == by_reconcile
        and (other.id in session.by_resume) == by_resume
        for other in reversed(session.halts.values())
    ):
        return  # the other one is cleared by whatever would clear this one
    if by_reconcile:
        session.by_reconcile[halt.id] = None
    if by_resume:
        session.by_resume[halt.id] = None
    session.halts[halt.id] = halt
    ctx.halts.append(
        Halt(
            halt_id=halt.id,
            session_id=session.session_id,
            position=position,
            status="halt",
            checkpoint_id=halt.checkpoint_id,
            reason=reason,
            finding_ids=finding_ids,
            open_halts=_listed(session.halts),
            reexpand_from=reexpand.id if reexpand else None,
            replay_from=max(reexpand.hi + 1 if reexpand else 1, session.baseline),
        )
    )


def _reexpand_from(session: Session, tree: Tree, about: str | None, reason: list[str]) -> Written | None:
    """Return the most recent checkpoint to re-expand from.

    What disqualifies a candidate for good takes it off the list, so a session that halts again and again does not
    search its past again and again.
    """
    lossy: dict[int, bool] = {}
    accused = tree.checkpoints.get(about) if about is not None else None
    dead = []
    found = None
    for checkpoint_id in reversed(tree.candidates):
        written = tree.checkpoints[checkpoint_id]
        newest = newest_of(tree, written.node_id)
        basis = tree.generations[written.basis] if written.basis is not None else None
        if (
            basis is None
            or newest is not basis
            or basis.reclaimed
            or (written.flags | basis.below) & _DEAD
            or missing_in(session, written.lo, session.applied, alone=False)
        ):
            dead.append(checkpoint_id)
            continue
        # What the record being judged waited for is missing for it alone, and a referent may come back.
        if _missing_since(session, written) or unreachable_below(session, tree, basis, lossy):
            continue
        if accused is not None and written.level >= accused.level:
            if written is not accused or reason != ["resumed_unverified"]:
                continue
            if checkpoint_status(session, tree, written) == "stale":
                found = written
                break
        elif checkpoint_status(session, tree, written) in ("verified", "stale"):
            found = written
            break
    if dead:
        gone = set(dead)
        tree.candidates = [c for c in tree.candidates if c not in gone]
    return found


def conclude(ctx: Context, session: Session, record: Record | None, source: Source | None, position: int) -> None:
    """Complete the findings of one record, and open its halt."""
    found = ctx.found
    if not found:
        return
    for finding in found:
        finding.source = source
        if record is not None:
            finding.tenant = record.tenant or msgspec.UNSET
            finding.agent = record.agent or msgspec.UNSET
            finding.model = record.model or msgspec.UNSET
    open_halt(ctx, session, found, position)
    ctx.news[session.session_id] = None
    ctx.findings += found
    found.clear()
    ctx.alike.clear()
