"""The order: every session's records one after the other, by `seq`, whatever order they arrive in.

What arrives early waits in the session's reorder buffer; what is waited for too long is given up. Records without
`seq` are judged where the log has reached their `as_of_seq`.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from sidecar.engine import baseline, floors, frontier, recovery, referents, retention
from sidecar.engine.context import Context
from sidecar.engine.missing import mark_missing, missing_in
from sidecar.engine.state import Held, Session, Unplaced
from sidecar.engine.status import conclude
from sidecar.engine.waits import Counters, Waits
from sidecar.protocol import records
from sidecar.protocol.outputs import DeadLetter, Source
from sidecar.protocol.records import COMPARED, Baseline, Hole, Opaque, Record

JUDGES: dict[type, Callable[[Context, Session, Any], None]] = {
    records.Authorization: frontier.authorize,
    records.Revocation: frontier.revoke,
    records.Action: frontier.act,
    records.ReferentAdded: referents.add,
    records.ReferentRemoved: referents.remove,
    records.Constraint: floors.state_constraint,
    records.Fact: floors.state_fact,
    records.ToolResult: recovery.call_returned,
    records.Baseline: baseline.begin,
    records.Summary: recovery.summarize,
    records.Checkpoint: recovery.check_point,
    records.Resume: recovery.resume,
    records.Reconcile: recovery.reconcile,
    records.Gc: retention.reclaim,
    records.Probe: retention.note_probe,
}


class Located(Protocol):
    """Locate a record in its source: a `Source`, or whatever else has its fields.

    Where it also has `key` and `value`, these are the message, for a dead letter.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


class Sequencer:
    """Give every record its place.

    `decided` names the sessions in which the order of arrival or the clock decided something, which folding the same
    records again could decide otherwise. `letters` are the records that another tenant sent.
    """

    def __init__(self, ctx: Context, counters: Counters) -> None:
        self._ctx = ctx
        self.counters = counters
        self.waits = Waits(counters)
        self.decided: dict[str, None] = {}
        self.letters: list[DeadLetter] = []

    def place(self, session: Session, record: Record, digest: int, located: Located | None, now: float) -> None:
        """Find the place of a record that is not simply the next one."""
        order, seq = session.order, record.seq
        unreadable = type(record) is Hole
        if record.tenant is not None and _foreign(session, record.tenant):
            self._refuse(session, seq, record.tenant, source_of(located), *_message(located))
            if seq is None:
                return
            unreadable = True
        if seq is None:
            if unreadable:
                session.unread, session.unread_at = True, max(session.applied, order.highest)
                self.decided[session.session_id] = None
            else:
                self._place_without_seq(session, record, digest, located, now)
        elif seq <= session.applied:
            self._compare_applied(session, record, unreadable, seq, digest, located)
        elif order.waiting and seq in order.waiting:
            self._compare_waiting(session, record, unreadable, seq, digest, located)
        else:
            if order.waiting is None or order.queue is None:
                order.waiting, order.queue = {}, []
            if not order.waiting:
                order.since = now
            order.waiting[seq] = _held(session, record, unreadable, digest, located)
            order.highest = max(order.highest, seq)
            heappush(order.queue, seq)
            before = session.applied
            self._drain(session)
            if session.applied != before:
                order.since = now
            while len(order.waiting) > self._ctx.limits.max_waiting:
                self._give_up_gap(session)
                order.since = now
        self.waits.settle(session)

    def _place_without_seq(
        self, session: Session, record: Any, digest: int, located: Located | None, now: float
    ) -> None:
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
        message = _message(located) if session.tenant is None and record.tenant is not None else (None, None)
        unplaced = Unplaced(as_of, order.arrivals, digest, record, source_of(located), now, *message)
        if as_of <= session.applied:
            self._judge_unplaced(session, unplaced)
            return
        if order.unplaced is None:
            order.unplaced = []
        heappush(order.unplaced, unplaced)
        if len(order.unplaced) > self._ctx.limits.max_waiting:
            self._judge_overdue(session, heappop(order.unplaced))

    def _compare_applied(
        self, session: Session, record: Record, unreadable: bool, seq: int, digest: int, located: Located | None
    ) -> None:
        if unreadable:
            return  # a dead letter, and nothing more
        if session.unjudged or missing_in(session, seq, seq):
            self._count_late(session)
            return
        digests = session.order.digests
        back = session.applied - seq
        if back < len(digests) and digests[-1 - back] == digest:
            self.counters.duplicates += 1
        else:  # also where the content is no longer known: a log that begins anew looks like this
            self._conflict(session, record, seq, source_of(located))

    def _compare_waiting(
        self, session: Session, record: Record, unreadable: bool, seq: int, digest: int, located: Located | None
    ) -> None:
        order = session.order
        assert order.waiting is not None
        first = order.waiting[seq]
        if unreadable:
            return
        if first.unreadable:
            self._count_late(session)
        elif first.digest == digest:
            self.counters.duplicates += 1
        else:
            if order.conflicts is None:
                order.conflicts = {}
            known = order.conflicts.get(seq)
            if known is None or (known.tenant is not None and known.tenant != record.tenant):
                # The one that is known may turn out to be another tenant's; of two that name tenants one contends.
                order.conflicts[seq] = held = _held(session, record, False, digest, located)
                if known is not None:
                    held.tenant = None

    def _count_late(self, session: Session) -> None:
        self.counters.late += 1
        self.decided[session.session_id] = None

    def _refuse(
        self,
        session: Session,
        seq: int | None,
        tenant: str,
        source: Source | None,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        """Make a dead letter of a record that names another tenant than its session's."""
        self.decided[session.session_id] = None
        self.letters.append(
            DeadLetter(
                reason=f"the session belongs to tenant {session.tenant!r}, and this record names {tenant!r}",
                source=source or Source("", 0, 0),
                session_id=session.session_id,
                seq=seq,
                original=value or b"",
                key=key,
            )
        )

    def _belongs(
        self, session: Session, record: Held | Unplaced, seq: int | None, tenant: str | None, *, names: bool = True
    ) -> bool:
        """Tell whether a record is of the session's tenant.

        Args:
            names: the record names the tenant where none is known: it stands in the log, with a `seq`.
        """
        if tenant is None or tenant == session.tenant:
            return True
        if session.tenant is None:
            if names:
                session.tenant = tenant
            return True
        self._refuse(session, seq, tenant, record.source, record.key, record.value)
        return False

    def _drain(self, session: Session) -> None:
        """Apply what waits, as far as the log has no gap."""
        order = session.order
        waiting, queue = order.waiting, order.queue
        while waiting and queue and queue[0] == session.applied + 1:
            seq = heappop(queue)
            held = waiting.pop(seq)
            belongs = self._belongs(session, held, seq, held.tenant)
            if session.unjudged and not (belongs and type(held.record) is Baseline):
                session.applied = seq
                if order.conflicts:
                    order.conflicts.pop(seq, None)
                self._judge_placed(session)
            elif held.unreadable or not belongs:
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
        conflict = order.conflicts.pop(seq, None) if order.conflicts else None
        if conflict is not None and self._belongs(session, conflict, seq, conflict.tenant, names=False):
            self._conflict(session, conflict.record, seq, conflict.source)
        self._judge_placed(session)
        if not seq & 1023:
            self.trim(session)

    def _give_up_gap(self, session: Session) -> None:
        """Give up the first gap: its positions are missing, and what waits behind it is applied."""
        order = session.order
        assert order.queue and order.waiting is not None
        self.decided[session.session_id] = None
        behind = order.queue[0]
        source = order.waiting[behind].source
        if session.unjudged:
            session.applied = behind - 1
            self._judge_placed(session)
        elif session.applied == 0 and session.tree is None and self._ctx.limits.midstream == "skip":
            baseline.join(self._ctx, session, behind)
            conclude(self._ctx, session, None, source, behind)
            self._judge_placed(session)
        else:
            self._miss(session, session.applied + 1, behind - 1, source)
        self._drain(session)

    def _miss(self, session: Session, first: int, last: int, source: Source | None) -> None:
        """Pass over a run of missing positions; records without seq that stand at one of them are judged there."""
        order = session.order
        self.counters.gaps += last - first + 1
        self._ctx.report(
            session,
            "log_gap",
            session.session_id,
            (first,),
            witness=[first - 1, last + 1],
            evidence={"missing": [first, last]},
            position=first,
        )
        while first <= last:
            stop = last
            if order.unplaced and order.unplaced[0].as_of < last:
                stop = max(first, order.unplaced[0].as_of)
            mark_missing(session, first, stop)
            if stop - first >= COMPARED:
                del order.digests[:]
            else:
                order.digests.extend([0] * (stop - first + 1))
            session.applied = stop
            frontier.judge_gap(self._ctx, session, first, stop)
            conclude(self._ctx, session, None, source, stop)
            self._judge_placed(session)
            if (stop ^ (first - 1)) >> 10:  # past a multiple of 1,024, where applied records would have been trimmed
                self.trim(session)
            first = stop + 1

    def _conflict(self, session: Session, record: Record | None, seq: int, source: Source | None) -> None:
        """Report that two records contend for a position: from here on nobody knows what it said."""
        self.counters.conflicts += 1
        self.decided[session.session_id] = None
        self._ctx.report(session, "log_conflict", session.session_id, (seq,), witness=[seq], position=seq)
        mark_missing(session, seq, seq)
        frontier.judge_gap(self._ctx, session, seq, seq, at=session.applied)
        conclude(self._ctx, session, record, source, seq)

    def _judge_placed(self, session: Session) -> None:
        """Judge the records without seq whose place the log has reached."""
        unplaced = session.order.unplaced
        while unplaced and unplaced[0].as_of <= session.applied:
            self._judge_unplaced(session, heappop(unplaced))

    def _judge_unplaced(self, session: Session, unplaced: Unplaced) -> None:
        self.decided[session.session_id] = None
        record = unplaced.record
        if session.unjudged or not self._belongs(session, unplaced, None, record.tenant, names=False):
            return
        session.order.moment = f"record {unplaced.digest:016x}"
        JUDGES[type(record)](self._ctx, session, record)
        session.order.moment = None
        conclude(self._ctx, session, record, unplaced.source, session.applied)

    def _judge_overdue(self, session: Session, unplaced: Unplaced) -> None:
        """Judge a record without seq past the waiting bound: what it waited for is missing, for it alone."""
        order = session.order
        if unplaced.as_of > session.applied and not session.unjudged and not _foreign(session, unplaced.record.tenant):
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

    def trim(self, session: Session) -> None:
        """Forget what no later record can ask about; paid for by the positions applied since the last time."""
        order = session.order
        if len(order.digests) > 2 * COMPARED:
            del order.digests[:-COMPARED]
        positions = self._ctx.limits.positions
        if session.applied - session.trimmed > positions + positions // 4:
            kept_from = session.applied - positions + 1
            session.trimmed = kept_from
            for family in (frontier, referents, floors):
                family.trim(session, kept_from)

    def give_up_overdue(self, session: Session, now: float) -> bool:
        """Give up what a session has waited for longer than `max_wait` seconds; tell whether there was any."""
        order = session.order
        bound = now - self._ctx.limits.max_wait
        any_overdue = False
        while order.waiting and order.since <= bound:
            self._give_up_gap(session)
            order.since = now
            any_overdue = True
        overdue = sorted(u for u in order.unplaced or () if u.since <= bound)
        if overdue:
            order.unplaced = [u for u in order.unplaced or () if u.since > bound]
            heapify(order.unplaced)
            any_overdue = True
        for unplaced in overdue:  # judging one does not advance the log, so it places none of the others
            self._judge_overdue(session, unplaced)
        self.waits.settle(session)
        return any_overdue

    def give_up_all(self, session: Session) -> None:
        """End a session's waiting: its gaps first, then what still has no place."""
        while session.order.waiting:
            self._give_up_gap(session)
        while session.order.unplaced:
            self._judge_overdue(session, heappop(session.order.unplaced))
        self.waits.settle(session)


def source_of(located: Located | None) -> Source | None:
    """Return where a record was read, for a finding or to be held back: few are, so it is made only then."""
    if located is None or type(located) is Source:
        return located
    return Source(located.topic, located.partition, located.offset)


def _foreign(session: Session, tenant: str | None) -> bool:
    """Tell whether a record's tenant is another than its session's."""
    return tenant is not None and session.tenant is not None and tenant != session.tenant


def _message(located: Located | None) -> tuple[bytes | None, bytes | None]:
    return getattr(located, "key", None), getattr(located, "value", None)


def _held(session: Session, record: Any, unreadable: bool, digest: int, located: Located | None) -> Held:
    known = None if unreadable or type(record) is Opaque else record
    tenant = None if unreadable else record.tenant
    message = _message(located) if tenant is not None and session.tenant is None else (None, None)
    return Held(known, digest, source_of(located), unreadable, tenant, *message)
