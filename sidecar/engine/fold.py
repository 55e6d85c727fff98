"""The engine: arrivals in, findings and halts out.

Every session has one total order, by `seq`. What arrives early waits in the session's reorder buffer; the rules see
the records in order and one at a time, so the outcome depends on the log alone. The engine has no clock and does no
IO: whoever calls it says what time it is.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from sidecar.engine import floors, frontier, recovery, referents, retention
from sidecar.engine.context import Context, missing_in
from sidecar.engine.limits import Limits
from sidecar.engine.state import Held, Session, Unplaced, decode_session, encode_session
from sidecar.engine.status import STATUSES, open_halt, session_status
from sidecar.protocol import records
from sidecar.protocol.outputs import Finding, Halt, Source
from sidecar.protocol.records import Hole, Opaque, Record

Arrival = tuple[Record, int, Source | None]
"""A record (a `Hole` for an unreadable one), the digest of its content, and where it was read."""

STATE_VERSION = 1
COMPARED = 1024
"""How many positions back the contents of repeated records are compared (protocol: "Duplicates")."""
GAP_FINDINGS = 1024
"""How many positions of one run of missing ones get a `log_gap` each; one more finding stands for the rest."""

_JUDGES: dict[type, Callable[[Context, Session, Any], None]] = {
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


class UnknownState(ValueError):
    """Say that a dumped state is damaged, or of a version this program does not know."""


class Outcome(msgspec.Struct):
    """Hold what a fold found, in the order of the fold.

    `survival` counts by (what, summary level): [should be carried, is carried].
    """

    findings: list[Finding]
    halts: list[Halt]
    survival: dict[tuple[str, int], list[int]]


class SessionState(msgspec.Struct):
    """State where a session stands."""

    session_id: str
    status: str
    checkpoint_in_force: str | None
    open_halts: list[str]


class Counters(msgspec.Struct):
    """Count what the order made of the records; `waiting` and `sessions_waiting` are gauges."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    gaps: int = 0
    waiting: int = 0
    sessions_waiting: int = 0


class Engine:
    """Fold the records of many sessions."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, None] = {}
        self._counts = dict.fromkeys(STATUSES, 0)
        self._ctx = Context(self.limits)
        self._findings: list[Finding] = []
        self._open = 0
        self._touched: dict[str, Session] = {}

    def fold(self, arrivals: Iterable[Arrival], now: float) -> Outcome:
        """Fold a batch of arrivals.

        Args:
            arrivals: in the order they arrived.
            now: the caller's time in seconds, on any clock that `expire` is called with too.
        """
        sessions, touched, ctx = self._sessions, self._touched, self._ctx
        judges, found = _JUDGES, ctx.found
        count = 0
        for record, digest, source in arrivals:
            count += 1
            session_id = record.session_id
            session = sessions.get(session_id)
            if session is None:
                session = sessions[session_id] = touched[session_id] = Session(session_id)
            seq = record.seq
            if session.quiet and seq == session.applied + 1 and type(record) is not Hole:
                # The way of nearly every record: next in its session, and nothing waits.
                session.applied = seq
                session.order.digests.append(digest)
                judge = judges.get(type(record))
                if judge is not None:
                    touched[session_id] = session
                    judge(ctx, session, record)
                    if found:
                        self._conclude(session, record, source, seq)
                if not seq & 1023:
                    self._trim(session)
            else:
                touched[session_id] = session
                self._place(session, record, digest, source, now)
        self.counters.records += count
        return self._outcome()

    def expire(self, now: float) -> Outcome:
        """Give up the gaps and the placements that have been waited for longer than `max_wait` seconds."""
        bound = now - self.limits.max_wait
        for session_id in list(self._waiting):
            session = self._sessions[session_id]
            order = session.order
            while order.waiting and order.since <= bound:
                self._touched[session_id] = session
                self._give_up_gap(session)
                order.since = now
            overdue = sorted(u for u in order.unplaced or () if u.since <= bound)
            for unplaced in overdue:
                if order.unplaced and unplaced in order.unplaced:
                    self._touched[session_id] = session
                    order.unplaced.remove(unplaced)
                    heapify(order.unplaced)
                    self._judge_overdue(session, unplaced)
            self._settle(session)
        return self._outcome()

    def finish(self) -> Outcome:
        """End the input: give up every gap, then judge what still has no place."""
        for session_id, session in self._sessions.items():
            if session_id not in self._waiting:
                continue
            self._touched[session_id] = session
            while session.order.waiting:
                self._give_up_gap(session)
            while session.order.unplaced:
                self._judge_overdue(session, heappop(session.order.unplaced))
            self._settle(session)
        return self._outcome()

    def states(self) -> Iterator[SessionState]:
        """Yield where each session stands, in order of first appearance."""
        for session in self._sessions.values():
            yield SessionState(
                session_id=session.session_id,
                status=session_status(session),
                checkpoint_in_force=session.tree.in_force if session.tree else None,
                open_halts=list(session.halts or ()),
            )

    def status_counts(self) -> dict[str, int]:
        """Return how many sessions have each status."""
        return dict(self._counts)

    def open_halts(self) -> int:
        """Return how many halts are open in all sessions."""
        return self._open

    def __len__(self) -> int:
        return len(self._sessions)

    def dump(self) -> bytes:
        """Serialise the whole state (msgpack, versioned)."""
        sessions = [msgspec.Raw(encode_session(s)) for s in self._sessions.values()]
        return msgspec.msgpack.encode((STATE_VERSION, self.counters, sessions))

    @classmethod
    def load(cls, data: bytes, limits: Limits | None = None) -> "Engine":
        """Restore a dumped state.

        Raises:
            UnknownState: it is damaged, or was written in another version of the format.
        """
        engine = cls(limits)
        try:
            version = msgspec.msgpack.decode(data)[0]
            if version != STATE_VERSION:
                raise UnknownState(f"state of version {version!r}; this program reads version {STATE_VERSION}")
            _, engine.counters, dumped = msgspec.msgpack.decode(data, type=tuple[int, Counters, list[msgspec.Raw]])
            for raw in dumped:
                session = decode_session(raw)
                engine._sessions[session.session_id] = session
                if session.status:
                    engine._counts[session.status] += 1
                engine._open += len(session.halts or ())
                if not session.quiet:
                    engine._waiting[session.session_id] = None
        except (msgspec.MsgspecError, TypeError, IndexError, KeyError, ValueError) as error:
            if isinstance(error, UnknownState):
                raise
            raise UnknownState(f"damaged state: {error}") from error
        return engine

    # --- the order --------------------------------------------------------------------------------

    def _place(self, session: Session, record: Record, digest: int, source: Source | None, now: float) -> None:
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
            while len(order.waiting) > self.limits.max_waiting:
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
        if len(order.unplaced) > self.limits.max_waiting:
            self._judge_overdue(session, heappop(order.unplaced))

    def _compare_applied(self, session: Session, record: Record, seq: int, digest: int, source: Source | None) -> None:
        if type(record) is Hole:
            return  # a dead letter, and nothing more
        if missing_in(session, seq, seq):
            self.counters.late += 1
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
            self.counters.late += 1
        elif first.digest == digest:
            self.counters.duplicates += 1
        else:
            if order.conflicts is None:
                order.conflicts = {}
            known: Any = None if type(record) is Opaque else record
            order.conflicts.setdefault(seq, Held(known, digest, source))

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
            _JUDGES[type(record)](self._ctx, session, record)
            self._conclude(session, record, held.source, seq)
        conflict = order.conflicts.get(seq) if order.conflicts else None
        if conflict is not None and order.conflicts is not None:
            order.conflicts[seq] = None
            self._report_conflict(session, conflict.record, seq, conflict.source)
        self._judge_placed(session)
        if not seq & 1023:
            self._trim(session)

    def _give_up_gap(self, session: Session) -> None:
        """Give up the first gap: its positions are missing, and what waits behind it is applied."""
        order = session.order
        assert order.queue and order.waiting is not None
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
            self._conclude(session, None, source, stop)
            self._judge_placed(session)
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
        session.order.moment = f"record {unplaced.digest:016x}"
        _JUDGES[type(unplaced.record)](self._ctx, session, unplaced.record)
        session.order.moment = None
        self._conclude(session, unplaced.record, unplaced.source, session.applied)

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
        order = session.order
        session.quiet = not order.waiting and not order.unplaced
        if session.quiet:
            self._waiting.pop(session.session_id, None)
            order.waiting = order.queue = order.unplaced = None
        else:
            self._waiting[session.session_id] = None

    def _trim(self, session: Session) -> None:
        """Forget what no later record can ask about; paid for by the positions applied since the last time."""
        order = session.order
        if len(order.digests) > 2 * COMPARED:
            del order.digests[:-COMPARED]
        if order.conflicts:
            oldest = session.applied - COMPARED
            order.conflicts = {s: h for s, h in order.conflicts.items() if s > oldest} or None
        positions = self.limits.positions
        if session.applied - session.trimmed > positions + positions // 4:
            kept_from = session.applied - positions + 1
            session.trimmed = kept_from
            for family in (frontier, referents, floors):
                family.trim(session, kept_from)

    # --- findings and halts -----------------------------------------------------------------------

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
        self._ctx.report(session, "log_conflict", session.session_id, (seq,), witness=[seq], position=seq)
        self._conclude(session, record, source, seq)

    def _conclude(self, session: Session, record: Record | None, source: Source | None, position: int) -> None:
        """Complete the findings of one record, and open its halt."""
        found = self._ctx.found
        if not found:
            return
        for finding in found:
            finding.source = source
            if record is not None:
                finding.tenant = record.tenant or msgspec.UNSET
                finding.agent = record.agent or msgspec.UNSET
                finding.model = record.model or msgspec.UNSET
        open_halt(self._ctx, session, found, position)
        self._findings += found
        found.clear()

    def _outcome(self) -> Outcome:
        counts = self._counts
        for session in self._touched.values():
            status = session_status(session)
            if status != session.status:
                if session.status:
                    counts[session.status] -= 1
                counts[status] += 1
                session.status = status
        self._touched.clear()
        self.counters.sessions_waiting = len(self._waiting)
        self.counters.waiting = sum(self._waiting_in(s) for s in self._waiting) if self._waiting else 0
        self._open += sum(1 if halt.status == "halt" else -1 for halt in self._ctx.halts)
        outcome = Outcome(self._findings, self._ctx.halts, self._ctx.survival)
        self._findings, self._ctx.halts, self._ctx.survival = [], [], {}
        return outcome

    def _waiting_in(self, session_id: str) -> int:
        order = self._sessions[session_id].order
        return len(order.waiting or ()) + len(order.unplaced or ())
