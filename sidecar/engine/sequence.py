"""The order: every session's records one after the other, by `seq`, whatever order they arrive in.

What arrives early waits in the session's reorder buffer; what is waited for too long is given up. Records without
`seq` are judged where the log has reached their `as_of_seq`.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from sidecar.engine import floors, frontier, recovery, referents, retention
from sidecar.engine.context import Context, missing_in
from sidecar.engine.state import Held, Session, Unplaced
from sidecar.engine.status import conclude
from sidecar.protocol import records
from sidecar.protocol.outputs import Source
from sidecar.protocol.records import Hole, Opaque, Record

COMPARED = 1024
"""How many positions back the contents of repeated records are compared (protocol: "Duplicates")."""
GAP_FINDINGS = 1024
"""How many positions of one run of missing ones get a `log_gap` each; one more finding stands for the rest."""

JUDGES: dict[type, Callable[[Context, Session, Any], None]] = {
    records.Authorization: frontier.authorize,
    records.Revocation: frontier.revoke,
    records.Action: frontier.act,
    records.ReferentAdded: referents.add,
    records.ReferentRemoved: referents.remove,
    records.Constraint: floors.state_constraint,
    records.Fact: floors.state_fact,
    records.ToolResult: recovery.call_returned,
    records.Summary: recovery.summarize,
    records.Checkpoint: recovery.check_point,
    records.Resume: recovery.resume,
    records.Reconcile: recovery.reconcile,
    records.Gc: retention.reclaim,
    records.Probe: retention.note_probe,
}


class Counters(msgspec.Struct):
    """Count what the order made of the records; `waiting` and `sessions_waiting` are gauges."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    gaps: int = 0
    waiting: int = 0
    sessions_waiting: int = 0


class Sequencer:
    """Give every record its place.

    `waiting` counts what each session holds back, for those that do. `decided` names the sessions in which the order
    of arrival or the clock decided something, which folding the same records again could decide otherwise.
    """

    def __init__(self, ctx: Context, counters: Counters) -> None:
        self._ctx = ctx
        self.counters = counters
        self.waiting: dict[str, int] = {}
        # One entry for each waiting session: not before when its next wait is over, on the caller's clock.
        self._due: list[tuple[float, str]] = []
        self._queued: set[str] = set()
        self.decided: dict[str, None] = {}

    def place(self, session: Session, record: Record, digest: int, source: Source | None, now: float) -> None:
        """Find the place of a record that is not simply the next one."""
        order = session.order
        seq = record.seq
        if seq is None:
            self._place_without_seq(session, record, digest, source, now)
        elif seq <= session.applied:
            self._compare_applied(session, record, seq, digest, source)
        elif order.waiting and seq in order.waiting:
            self._compare_waiting(session, record, seq, digest, source)
        else:
            if order.waiting is None or order.queue is None:
                order.waiting, order.queue = {}, []
            if not order.waiting:
                order.since = now
            unreadable = type(record) is Hole
            known: Any = None if unreadable or type(record) is Opaque else record
            order.waiting[seq] = Held(known, digest, source, unreadable)
            heappush(order.queue, seq)
            before = session.applied
            self._drain(session)
            if session.applied != before:
                order.since = now
            while len(order.waiting) > self._ctx.limits.max_waiting:
                self._give_up_gap(session)
                order.since = now
        self._settle(session)

    def _place_without_seq(self, session: Session, record: Any, digest: int, source: Source | None, now: float) -> None:
        order = session.order
        seen = order.seen_unplaced
        if seen is None:
            seen = order.seen_unplaced = {}
        if digest in seen:
            self.counters.duplicates += 1
            return
        seen[digest] = None
        if len(seen) > COMPARED:
            del seen[next(iter(seen))]
        as_of = record.as_of_seq
        if as_of is None:
            as_of = getattr(record, "frontier_hi", 0)
        order.arrivals += 1
        unplaced = Unplaced(as_of, order.arrivals, digest, record, source, now)
        if as_of <= session.applied:
            self._judge_unplaced(session, unplaced)
            return
        if order.unplaced is None:
            order.unplaced = []
        heappush(order.unplaced, unplaced)
        if len(order.unplaced) > self._ctx.limits.max_waiting:
            self._judge_overdue(session, heappop(order.unplaced))

    def _compare_applied(self, session: Session, record: Record, seq: int, digest: int, source: Source | None) -> None:
        if type(record) is Hole:
            return  # a dead letter, and nothing more
        if missing_in(session, seq, seq):
            self._count_late(session)
            return
        digests = session.order.digests
        back = session.applied - seq
        if back >= COMPARED or back >= len(digests) or digests[-1 - back] == digest:
            self.counters.duplicates += 1
            return
        conflicts = session.order.conflicts
        if conflicts is None:
            conflicts = session.order.conflicts = {}
        if seq not in conflicts:
            conflicts[seq] = None
            self._report_conflict(session, record, seq, source)

    def _compare_waiting(self, session: Session, record: Record, seq: int, digest: int, source: Source | None) -> None:
        order = session.order
        assert order.waiting is not None
        first = order.waiting[seq]
        if type(record) is Hole:
            return
        if first.unreadable:
            self._count_late(session)
        elif first.digest == digest:
            self.counters.duplicates += 1
        else:
            if order.conflicts is None:
                order.conflicts = {}
            known: Any = None if type(record) is Opaque else record
            order.conflicts.setdefault(seq, Held(known, digest, source))

    def _count_late(self, session: Session) -> None:
        self.counters.late += 1
        self.decided[session.session_id] = None

    def _drain(self, session: Session) -> None:
        """Apply what waits, as far as the log has no gap."""
        order = session.order
        waiting, queue = order.waiting, order.queue
        while waiting and queue and queue[0] == session.applied + 1:
            seq = heappop(queue)
            held = waiting.pop(seq)
            if held.unreadable:
                self._miss(session, seq, seq, held.source)
            else:
                self._apply(session, seq, held)

    def _apply(self, session: Session, seq: int, held: Held) -> None:
        order = session.order
        session.applied = seq
        order.digests.append(held.digest)
        record = held.record
        if record is not None:
            JUDGES[type(record)](self._ctx, session, record)
            conclude(self._ctx, session, record, held.source, seq)
        conflict = order.conflicts.get(seq) if order.conflicts else None
        if conflict is not None and order.conflicts is not None:
            order.conflicts[seq] = None
            self._report_conflict(session, conflict.record, seq, conflict.source)
        self._judge_placed(session)
        if not seq & 1023:
            self.trim(session)

    def _give_up_gap(self, session: Session) -> None:
        """Give up the first gap: its positions are missing, and what waits behind it is applied."""
        order = session.order
        assert order.queue and order.waiting is not None
        self.decided[session.session_id] = None
        behind = order.queue[0]
        self._miss(session, session.applied + 1, behind - 1, order.waiting[behind].source)
        self._drain(session)

    def _miss(self, session: Session, first: int, last: int, source: Source | None) -> None:
        """Pass over missing positions; records without seq that stand at one of them are judged there."""
        order = session.order
        self.counters.gaps += last - first + 1
        said = 0
        while first <= last:
            stop = last
            if order.unplaced and order.unplaced[0].as_of < last:
                stop = max(first, order.unplaced[0].as_of)
            self._mark_missing(session, first, stop)
            session.applied = stop
            for position in range(first, stop + 1):
                if said == GAP_FINDINGS:
                    self._report_gap(session, position, stop)
                    break
                self._report_gap(session, position, position)
                said += 1
            frontier.judge_gap(self._ctx, session, first, stop)
            conclude(self._ctx, session, None, source, stop)
            self._judge_placed(session)
            if (stop ^ (first - 1)) >> 10:  # past a multiple of 1,024, where applied records would have been trimmed
                self.trim(session)
            first = stop + 1

    def _mark_missing(self, session: Session, first: int, last: int) -> None:
        order = session.order
        if order.missing_lo is None or order.missing_hi is None:
            order.missing_lo, order.missing_hi = [first], [last]
        elif order.missing_hi[-1] == first - 1:
            order.missing_hi[-1] = last
        else:
            order.missing_lo.append(first)
            order.missing_hi.append(last)
        if last - first >= COMPARED:
            del order.digests[:]
        else:
            order.digests.extend([0] * (last - first + 1))

    def _judge_placed(self, session: Session) -> None:
        """Judge the records without seq whose place the log has reached."""
        unplaced = session.order.unplaced
        while unplaced and unplaced[0].as_of <= session.applied:
            self._judge_unplaced(session, heappop(unplaced))

    def _judge_unplaced(self, session: Session, unplaced: Unplaced) -> None:
        self.decided[session.session_id] = None
        session.order.moment = f"record {unplaced.digest:016x}"
        JUDGES[type(unplaced.record)](self._ctx, session, unplaced.record)
        session.order.moment = None
        conclude(self._ctx, session, unplaced.record, unplaced.source, session.applied)

    def _judge_overdue(self, session: Session, unplaced: Unplaced) -> None:
        """Judge a record without seq past the waiting bound: what it waited for is missing, for it alone."""
        order = session.order
        if unplaced.as_of > session.applied:
            order.awaited = unplaced.as_of
            self._ctx.report(
                session,
                "log_gap",
                session.session_id,
                (f"record {unplaced.digest:016x}",),
                witness=[session.applied],
                evidence={
                    "missing": [session.applied + 1, unplaced.as_of],
                    "for": unplaced.record.__struct_config__.tag,
                },
            )
        self._judge_unplaced(session, unplaced)
        order.awaited = 0

    def _settle(self, session: Session) -> None:
        """Take note of what a session holds back now."""
        order = session.order
        session_id = session.session_id
        held = len(order.waiting or ()) + len(order.unplaced or ())
        before = self.waiting.get(session_id, 0)
        session.quiet = not held
        self.counters.waiting += held - before
        if held:
            self.waiting[session_id] = held
            self._queue(session)
        else:
            order.waiting = order.queue = order.unplaced = None
            self.waiting.pop(session_id, None)
        self.counters.sessions_waiting = len(self.waiting)

    def _queue(self, session: Session) -> None:
        if session.session_id not in self._queued:
            self._queued.add(session.session_id)
            heappush(self._due, (_waits_since(session), session.session_id))

    def attend(self, session: Session) -> None:
        """Take note of a session that came with what it waits for."""
        if not session.quiet:
            self._settle(session)

    def leave(self, session_id: str) -> None:
        """Forget that a session waits."""
        self.counters.waiting -= self.waiting.pop(session_id, 0)
        self.counters.sessions_waiting = len(self.waiting)

    def overdue(self, now: float) -> list[str]:
        """Return the sessions that may have waited for longer than `max_wait` seconds; the caller gives up what has."""
        bound = now - self._ctx.limits.max_wait
        found = []
        while self._due and self._due[0][0] <= bound:
            session_id = heappop(self._due)[1]
            self._queued.discard(session_id)
            if session_id in self.waiting:
                found.append(session_id)
        return found

    def trim(self, session: Session) -> None:
        """Forget what no later record can ask about; paid for by the positions applied since the last time."""
        order = session.order
        if len(order.digests) > 2 * COMPARED:
            del order.digests[:-COMPARED]
        if order.conflicts:
            oldest = session.applied - COMPARED
            order.conflicts = {s: h for s, h in order.conflicts.items() if s > oldest} or None
        positions = self._ctx.limits.positions
        if session.applied - session.trimmed > positions + positions // 4:
            kept_from = session.applied - positions + 1
            session.trimmed = kept_from
            for family in (frontier, referents, floors):
                family.trim(session, kept_from)

    def _report_gap(self, session: Session, first: int, last: int) -> None:
        self._ctx.report(
            session,
            "log_gap",
            session.session_id,
            (first,),
            witness=[first - 1, last + 1],
            evidence={"missing": [first, last]},
            position=first,
        )

    def _report_conflict(self, session: Session, record: Record | None, seq: int, source: Source | None) -> None:
        self.counters.conflicts += 1
        self.decided[session.session_id] = None
        self._ctx.report(session, "log_conflict", session.session_id, (seq,), witness=[seq], position=seq)
        conclude(self._ctx, session, record, source, seq)

    def give_up_overdue(self, session: Session, now: float) -> bool:
        """Give up what a session has waited for longer than `max_wait` seconds; tell whether there was any."""
        order = session.order
        bound = now - self._ctx.limits.max_wait
        any_overdue = False
        while order.waiting and order.since <= bound:
            self._give_up_gap(session)
            order.since = now
            any_overdue = True
        for unplaced in sorted(u for u in order.unplaced or () if u.since <= bound):
            if order.unplaced and unplaced in order.unplaced:
                order.unplaced.remove(unplaced)
                heapify(order.unplaced)
                self._judge_overdue(session, unplaced)
                any_overdue = True
        self._settle(session)
        return any_overdue

    def give_up_all(self, session: Session) -> None:
        """End a session's waiting: its gaps first, then what still has no place."""
        while session.order.waiting:
            self._give_up_gap(session)
        while session.order.unplaced:
            self._judge_overdue(session, heappop(session.order.unplaced))
        self._settle(session)


def _waits_since(session: Session) -> float:
    order = session.order
    times = [unplaced.since for unplaced in order.unplaced or ()]
    return min([order.since, *times] if order.waiting else times)
