"""The engine: arrivals in, findings and halts out.

Every session has one total order, by `seq`. What arrives early waits in the session's reorder buffer; the rules see
the records in order and one at a time, so the outcome depends on the log alone. The engine has no clock and does no
IO: whoever calls it says what time it is.
"""

from collections.abc import Iterable, Iterator

import msgspec

from sidecar.engine.context import Context
from sidecar.engine.frontier import distrust
from sidecar.engine.limits import Limits
from sidecar.engine.missing import mark_missing
from sidecar.engine.sequence import JUDGES, Located, Sequencer, source_of
from sidecar.engine.standings import Standings
from sidecar.engine.state import Frozen, Session, decode_fate, decode_head, decode_session, encode_session
from sidecar.engine.status import (
    REFUSED,
    conclude,
    describe,
    must_refuse,
    session_status,
    status_in_force,
)
from sidecar.engine.waits import Counters
from sidecar.protocol.outputs import DeadLetter, Finding, Halt, SessionRecord
from sidecar.protocol.records import Hole, Record

Arrival = tuple[Record, int, Located | None]
"""A record (a `Hole` for an unreadable one), the digest of its content, and where it was read."""

STATE_VERSION = 2
"""The version that is written; those of `STATES_READ` are read."""
STATES_READ = (1, 2)


class UnknownState(ValueError):
    """Say that a dumped state is damaged, or of a version this program does not know."""


class Outcome(msgspec.Struct):
    """Findings and halts of one batch, in log order.

    `survival` counts by (what, summary level): [should be carried, is carried]. `letters` are the records that named
    another tenant than their session's.
    """

    findings: list[Finding]
    halts: list[Halt]
    survival: dict[tuple[str, int], list[int]]
    letters: list[DeadLetter] = []


class SessionState(msgspec.Struct):
    """State where a session stands."""

    session_id: str
    status: str
    checkpoint_in_force: str | None
    open_halts: list[str]


class Engine:
    """Fold the records of many sessions."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self._sessions: dict[str, Session] = {}
        self._frozen: dict[str, Frozen] = {}
        self._standings = Standings()
        self._ctx = Context(self.limits)
        self._sequencer = Sequencer(self._ctx, self.counters)
        self._touched: dict[str, Session] = {}
        self._changed: list[str] = []

    # --- folding ----------------------------------------------------------------------------------

    def fold(self, arrivals: Iterable[Arrival], now: float) -> Outcome:
        """Fold a batch of arrivals.

        Args:
            arrivals: in the order they arrived.
            now: the caller's time in seconds, on any clock that `expire` is called with too.
        """
        sessions, touched, changed = self._sessions, self._touched, self._changed
        ctx, judges, found = self._ctx, JUDGES, self._ctx.found
        sequencer = self._sequencer
        count = 0
        for record, digest, source in arrivals:
            count += 1
            session_id = record.session_id
            session = sessions.get(session_id)
            if session is None:
                session = touched[session_id] = self._wake(session_id) or self._begin(session_id)
            if not session.changed:
                session.changed, session.seen = True, now
                changed.append(session_id)
            seq, tenant, kind = record.seq, record.tenant, type(record)
            if (
                seq == session.applied + 1
                and session.quiet
                and (tenant is None or tenant == session.tenant)
                and not session.unjudged
                and kind is not Hole
            ):
                # The way of nearly every record: next in its session, and nothing waits.
                session.applied = seq
                session.order.digests.append(digest)
                judge = judges.get(kind)
                if judge is not None:
                    touched[session_id] = session
                    judge(ctx, session, record)
                    if found:
                        conclude(ctx, session, record, source_of(source), seq)
                if not seq & 1023:
                    sequencer.trim(session)
            else:
                touched[session_id] = session
                sequencer.place(session, record, digest, source, now)
        self.counters.records += count
        return self._outcome()

    def expire(self, now: float) -> Outcome:
        """Give up the gaps and the placements that have been waited for longer than `max_wait` seconds.

        One call does a bounded part of it, so that nobody else has to wait: the rest comes with the next calls.
        """
        for session_id in self._sequencer.waits.overdue(now - self.limits.max_wait):
            session = self._sessions[session_id]
            if self._sequencer.give_up_overdue(session, now):
                self._touched[session_id] = session
                self._note_change(session)
        return self._outcome()

    def finish(self) -> Outcome:
        """End the input: give up every gap, then judge what still has no place."""
        for session_id, session in self._sessions.items():
            if session_id in self._sequencer.waits.sessions:
                self._touched[session_id] = session
                self._sequencer.give_up_all(session)
                self._note_change(session)
        return self._outcome()

    def distrust(self, lost: str, sessions: Iterable[str] | None = None) -> Outcome:
        """Make sessions unverifiable, because records of them may be gone that nobody has seen.

        Args:
            lost: what is gone, for the findings.
            sessions: which; those that are unknown are left out. None: all.
        """
        for session_id in [*self._frozen, *self._sessions] if sessions is None else list(sessions):
            session = self._sessions.get(session_id) or self._wake(session_id)
            if session is None:
                continue
            self._touched[session_id] = session
            distrust(self._ctx, session, lost)
            conclude(self._ctx, session, None, None, session.applied)
            self._note_change(session)
        return self._outcome()

    # --- asking -----------------------------------------------------------------------------------

    def look(self, session_id: str) -> Session | None:
        """Return a session to read, not to change (one that sleeps goes on sleeping); None: it is unknown."""
        session = self._sessions.get(session_id)
        if session is None and (frozen := self._frozen.get(session_id)) is not None:
            session = _thawed(frozen.state)
        return session

    def applied(self, session_id: str) -> int | None:
        """Return the position that a session's log has been applied up to; None: it is unknown."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session.applied
        frozen = self._frozen.get(session_id)
        return None if frozen is None else decode_head(frozen.state).applied

    def copy_of(self, session_id: str) -> "tuple[Engine, Session] | None":
        """Return another engine with a copy of one session, to try something on; None: it is unknown."""
        session = self._sessions.get(session_id)
        state = encode_session(session) if session is not None else None
        if state is None and (frozen := self._frozen.get(session_id)) is not None:
            state = frozen.state
        if state is None:
            return None
        trial = Engine(self.limits)
        copy = trial._sessions[session_id] = _thawed(state)
        trial._sequencer.waits.attend(copy)
        return trial, copy

    def states(self) -> Iterator[SessionState]:
        """Yield where each session stands, in order of first appearance (those that sleep come last)."""
        for session in (*self._sessions.values(), *(decode_session(f.state) for f in self._frozen.values())):
            if not _known(session):
                continue
            yield SessionState(
                session_id=session.session_id,
                status=session_status(session),
                checkpoint_in_force=session.tree.in_force if session.tree else None,
                open_halts=list(session.halts or ()),
            )

    def status_counts(self) -> dict[str, int]:
        """Return how many sessions have each status."""
        return dict(self._standings.counts)

    def open_halts(self) -> int:
        """Return how many halts are open in all sessions."""
        return self._standings.open_halts

    def ages(self, now: float) -> dict[str, list[float]]:
        """Return for how many seconds sessions have had each of the statuses `LASTING`; see `Standings.ages`."""
        return self._standings.ages(now, self._sessions)

    def ids(self) -> list[str]:
        """Return all sessions, also those of which nothing but records without a position was read."""
        return [*self._sessions, *self._frozen]

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions or session_id in self._frozen

    def __len__(self) -> int:
        return len(self._sessions) + len(self._frozen)

    def __bool__(self) -> bool:
        return True  # also without sessions: `engine or Engine()` must not replace it

    # --- keeping ----------------------------------------------------------------------------------

    def take_changed(self) -> list[str]:
        """Return the sessions that anything happened in since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        for session_id in changed:
            session = self._sessions.get(session_id)
            if session is not None:
                session.changed = False
        return changed

    def take_decided(self) -> list[str]:
        """Return the sessions in which arrival or the clock decided something since the last call.

        Folding the same records again could decide otherwise, so these are written down with the decision.
        """
        decided = list(self._sequencer.decided)
        self._sequencer.decided.clear()
        return decided

    def take_news(self) -> list[SessionRecord]:
        """Return where those sessions stand of which more than the log's position changed since the last call."""
        found = []
        for session_id in self._ctx.news:
            session = self.look(session_id)
            if session is not None:
                found.append(describe(session))
                self._standings.reported(session_id, session.status, session.applied)
        self._ctx.news.clear()
        return found

    def stir(self) -> None:
        """Let the next news include the degraded sessions whose logs went on since they were last told."""
        for session_id, reported in self._standings.degraded():
            session = self._sessions.get(session_id)
            if session is not None and session.applied != reported:
                self._ctx.news[session_id] = None

    def freeze(self, session_id: str) -> Frozen:
        """Return a session in its serialised form; the session itself stays as it is.

        Raises:
            KeyError: there is no such session.
        """
        frozen = self._frozen.get(session_id)
        return frozen if frozen is not None else _frozen(self._sessions[session_id])

    def adopt(self, frozen: Frozen, now: float) -> None:
        """Take a session in its serialised form; it wakes with its next record, or at once if it waits for one.

        Raises:
            UnknownState: the state cannot be read.
        """
        session_id = frozen.session_id
        if session_id in self._sessions or session_id in self._frozen:
            self._forget(session_id)
        self._frozen[session_id] = msgspec.structs.replace(frozen, seen=now)
        self._standings.change(session_id, "", frozen.status)
        self._standings.open_halts += frozen.open_halts
        if frozen.waiting:
            session = self._thaw(session_id)
            session.order.since = now
            for unplaced in session.order.unplaced or ():
                unplaced.since = now
            self._sequencer.waits.attend(session)

    def shrink(self, now: float, idle_after: float) -> int:
        """Bring sessions that nothing has happened in for so many seconds into their serialised form.

        Args:
            now: on the clock of `fold`.
        """
        bound = now - idle_after
        waiting = self._sequencer.waits.sessions
        idle = [s for s in self._sessions.values() if s.seen < bound and not s.changed and s.session_id not in waiting]
        for session in idle:
            self._frozen[session.session_id] = _frozen(session)
            del self._sessions[session.session_id]
        return len(idle)

    def drop_idle(self, now: float, ttl: float) -> list[str]:
        """Forget the sessions that nothing has happened in for so many seconds; return which.

        What has changed since the last `take_changed` is left alone. Of one that has to go on being refused a stub
        stays, which counts as changed and is not in the list.
        """
        bound = now - ttl
        waiting = self._sequencer.waits.sessions
        # (What has changed since it was last kept is not idle, whenever that began.)
        awake = [s for s in self._sessions.values() if s.seen < bound and not s.changed and s.session_id not in waiting]
        asleep = [f for f in self._frozen.values() if f.seen < bound]
        kept = [s for s in awake if must_refuse(s)] + [self._thaw(f.session_id) for f in asleep if _must_refuse(f)]
        for session in kept:
            self._reduce(session)
        stay = {session.session_id for session in kept}
        idle = [*(s.session_id for s in awake), *(f.session_id for f in asleep)]
        gone = [session_id for session_id in idle if session_id not in stay]
        for session_id in gone:
            self._forget(session_id)
        self._outcome()
        return gone

    def dump(self) -> bytes:
        """Serialise the whole state (msgpack, versioned)."""
        states = [_frozen(s) for s in self._sessions.values()] + list(self._frozen.values())
        sessions = [msgspec.Raw(frozen.state) for frozen in states]
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
            if version not in STATES_READ:
                raise UnknownState(f"state of version {version!r}; this program reads version {STATE_VERSION}")
            _, counters, dumped = msgspec.msgpack.decode(data, type=tuple[int, Counters, list[msgspec.Raw]])
        except (msgspec.MsgspecError, TypeError, IndexError, KeyError) as error:
            raise UnknownState(f"damaged state: {error}") from error
        counters.waiting = counters.sessions_waiting = 0  # counted anew below
        engine.counters = engine._sequencer.counters = engine._sequencer.waits.counters = counters
        for raw in dumped:
            session = _thawed(raw)
            engine._sessions[session.session_id] = session
            engine._standings.change(session.session_id, "", session.status)
            engine._standings.open_halts += len(session.halts or ())
            engine._sequencer.waits.attend(session)
            if session.changed:
                engine._changed.append(session.session_id)
        return engine

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, session_id: str) -> Session:
        session = self._sessions[session_id] = Session(session_id)
        return session

    def _wake(self, session_id: str) -> Session | None:
        if session_id not in self._frozen:
            return None
        session = self._thaw(session_id)
        self._sequencer.waits.attend(session)
        return session

    def _thaw(self, session_id: str) -> Session:
        frozen = self._frozen.pop(session_id)
        session = self._sessions[session_id] = _thawed(frozen.state)
        session.changed, session.seen, session.status = False, frozen.seen, frozen.status
        return session

    def _reduce(self, session: Session) -> None:
        """Keep of a session only what refuses: its halts, and that nobody knows what its log said."""
        session.seen = float("inf")  # it stays
        if session.stub:
            return
        stub = Session(session.session_id, session.applied, lost=True, stub=True)
        for name in _STAYS:
            setattr(stub, name, getattr(session, name))
        if session.recovery is not None:
            stub.recovery = msgspec.structs.replace(session.recovery, calls=None)
        mark_missing(stub, 1, max(1, stub.applied))
        self._sessions[session.session_id] = self._touched[session.session_id] = stub
        self._note_change(stub)

    def _note_change(self, session: Session) -> None:
        if not session.changed:
            session.changed = True
            self._changed.append(session.session_id)

    def _forget(self, session_id: str) -> None:
        session, frozen = self._sessions.pop(session_id, None), self._frozen.pop(session_id, None)
        if session is not None:
            self._standings.change(session_id, session.status, "")
            self._standings.open_halts -= len(session.halts or ())
        elif frozen is not None:
            self._standings.change(session_id, frozen.status, "")
            self._standings.open_halts -= frozen.open_halts
        self._sequencer.waits.leave(session_id)
        self._ctx.news.pop(session_id, None)

    def _outcome(self) -> Outcome:
        ctx = self._ctx
        for session in self._touched.values():
            if not _known(session):
                continue
            in_force = status_in_force(session)
            if in_force != session.in_force:
                session.in_force = in_force
                ctx.news[session.session_id] = None
            status = session_status(session, in_force)
            if status != session.status:
                self._standings.change(session.session_id, session.status, status)
                session.status = status
                ctx.news[session.session_id] = None
        self._touched.clear()
        self._standings.open_halts += sum(1 if halt.status == "halt" else -1 for halt in ctx.halts)
        outcome = Outcome(ctx.findings, ctx.halts, ctx.survival, self._sequencer.letters)
        ctx.findings, ctx.halts, ctx.survival, self._sequencer.letters = [], [], {}, []
        return outcome


_STAYS = (
    *("halts", "by_reconcile", "by_resume", "trimmed", "tenant", "origin", "unjudged", "unread", "unread_at"),
    *("status", "in_force", "seen", "changed"),
)
"""What a stub keeps of its session."""


def _known(session: Session) -> bool:
    """Tell whether anything of a session was read but records without a position."""
    return session.applied > 0 or not session.quiet or session.tree is not None


def _frozen(session: Session) -> Frozen:
    return Frozen(
        session.session_id,
        session.status,
        len(session.halts or ()),
        not session.quiet,
        session.seen,
        encode_session(session),
    )


def _must_refuse(frozen: Frozen) -> bool:
    """Tell the same as `must_refuse` of a session that sleeps, without waking it."""
    if frozen.open_halts or frozen.status in REFUSED:
        return True
    fate = decode_fate(frozen.state)
    return fate.lost or fate.unread or (fate.recovery is not None and fate.recovery.awaiting)


def _thawed(state: bytes | msgspec.Raw) -> Session:
    try:
        return decode_session(state)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise UnknownState(f"damaged state: {error}") from error
