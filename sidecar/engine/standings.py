"""How many sessions have each status, and for how long; for metrics and for those who are told of the sessions."""

from collections.abc import Container, Iterator

from sidecar.engine.status import DEGRADED, LASTING, STATUSES


class Standings:
    """Count the sessions by status.

    Attributes:
        counts: how many sessions have each status.
        open_halts: how many halts are open in all of them.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(STATUSES, 0)
        self.open_halts = 0
        # The degraded sessions, and the position last reported of each.
        self._degraded: dict[str, int] = {}
        # The sessions with a status that is counted how long it lasts, and since when whoever asks has seen it.
        self._lasting: dict[str, tuple[str, float | None]] = {}

    def change(self, session_id: str, before: str, status: str) -> None:
        """Count a session under another status; the empty one is not counted."""
        if before:
            self.counts[before] -= 1
        if status:
            self.counts[status] += 1
        self.reported(session_id, status, 0)

    def reported(self, session_id: str, status: str, position: int) -> None:
        """Note up to which position a session was last reported."""
        if status in DEGRADED:
            self._degraded[session_id] = position
        else:
            self._degraded.pop(session_id, None)
        if status not in LASTING:
            self._lasting.pop(session_id, None)
        elif self._lasting.get(session_id, ("", None))[0] != status:
            self._lasting[session_id] = (status, None)

    def degraded(self) -> Iterator[tuple[str, int]]:
        """Yield the degraded sessions, each with the position last reported."""
        yield from self._degraded.items()

    def ages(self, now: float, awake: Container[str]) -> dict[str, list[float]]:
        """Return for how many seconds sessions have had each of the statuses `LASTING`, as whoever asks has seen it.

        What is stale and asleep is left out: nobody acts there, and a session that has ended stays stale for ever.

        Args:
            now: on any clock, but always the same.
            awake: the sessions that are not asleep.
        """
        found: dict[str, list[float]] = {}
        for session_id, (status, since) in self._lasting.items():
            if since is None:
                since = now
                self._lasting[session_id] = (status, now)
            if status != "stale" or session_id in awake:
                found.setdefault(status, []).append(now - since)
        return found
