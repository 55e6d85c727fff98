"""Which sessions hold records back, how many, and since when."""

from heapq import heappop, heappush

import msgspec

from sidecar.engine.state import Session

OVERDUE, OVERDUE_RECORDS = 1024, 8192
"""How many sessions one call of `overdue` names, and with how many records: whoever calls it has others to serve."""


class Counters(msgspec.Struct):
    """Count what the order made of the records; `waiting` and `sessions_waiting` are gauges."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    gaps: int = 0
    waiting: int = 0
    sessions_waiting: int = 0


class Waits:
    """Index the sessions that wait by when their wait is over.

    Attributes:
        sessions: how many records each waiting session holds back.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.sessions: dict[str, int] = {}
        # One entry for each waiting session: not before when its next wait is over, on the caller's clock.
        self._due: list[tuple[float, str]] = []
        self._queued: set[str] = set()

    def settle(self, session: Session) -> None:
        """Count what a session holds back now."""
        order = session.order
        session_id = session.session_id
        held = len(order.waiting or ()) + len(order.unplaced or ())
        self.counters.waiting += held - self.sessions.get(session_id, 0)
        session.quiet = not held
        if held:
            self.sessions[session_id] = held
            if session_id not in self._queued:
                self._queued.add(session_id)
                heappush(self._due, (_since(session), session_id))
        else:
            order.waiting = order.queue = order.unplaced = order.conflicts = None
            self.sessions.pop(session_id, None)
        self.counters.sessions_waiting = len(self.sessions)

    def attend(self, session: Session) -> None:
        """Count a session that came with what it waits for."""
        if not session.quiet:
            self.settle(session)

    def leave(self, session_id: str) -> None:
        """Forget that a session waits."""
        self.counters.waiting -= self.sessions.pop(session_id, 0)
        self.counters.sessions_waiting = len(self.sessions)

    def overdue(self, bound: float) -> list[str]:
        """Return sessions that may have waited since before `bound`; the caller gives up what has.

        Not more than `OVERDUE` and `OVERDUE_RECORDS` allow: the others come with the next call.

        Args:
            bound: in seconds, on the caller's clock.
        """
        found: list[str] = []
        records = 0
        while self._due and self._due[0][0] <= bound and len(found) < OVERDUE and records < OVERDUE_RECORDS:
            session_id = heappop(self._due)[1]
            self._queued.discard(session_id)
            if session_id in self.sessions:
                found.append(session_id)
                records += self.sessions[session_id]
        return found


def _since(session: Session) -> float:
    order = session.order
    times = [unplaced.since for unplaced in order.unplaced or ()]
    return min([order.since, *times] if order.waiting else times)
