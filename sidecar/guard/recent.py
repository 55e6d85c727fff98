"""The findings of late, as many as are kept, for whoever looks."""

from collections import OrderedDict

from sidecar.engine.fold import Outcome
from sidecar.protocol.api import FindingsView
from sidecar.protocol.outputs import Finding


class RecentFindings:
    """Keep the newest findings, in all and of each session, and count those that had to go.

    Args:
        most: how many in all.
        per_session: how many of one session.
    """

    def __init__(self, most: int, per_session: int) -> None:
        self._most = most
        self._per_session = min(per_session, most)
        self._all: OrderedDict[str, Finding] = OrderedDict()
        self._of: dict[str, OrderedDict[str, None]] = {}
        # Of as many sessions as there can be findings, so that neither grows with the sessions.
        self._dropped: OrderedDict[str, int] = OrderedDict()
        self._dropped_in_all = 0

    def note(self, outcome: Outcome) -> None:
        """Keep what a batch found; a finding that comes again is kept once."""
        for finding in outcome.findings:
            finding_id, session_id = finding.finding_id, finding.session_id
            if finding_id in self._all:
                self._all[finding_id] = finding
                continue
            self._all[finding_id] = finding
            mine = self._of.setdefault(session_id, OrderedDict())
            mine[finding_id] = None
            if len(mine) > self._per_session:
                self._drop(next(iter(mine)))
            elif len(self._all) > self._most:
                self._drop(next(iter(self._all)))

    def view(self, session_id: str | None, limit: int) -> FindingsView:
        """Return the newest, the newest last.

        Args:
            session_id: of this session; None: of all.
            limit: at most so many.
        """
        if session_id is None:
            newest = [self._all[i] for i, _ in zip(reversed(self._all), range(limit), strict=False)]
            return FindingsView(findings=newest[::-1], dropped=self._dropped_in_all)
        mine = self._of.get(session_id, OrderedDict())
        newest = [self._all[i] for i, _ in zip(reversed(mine), range(limit), strict=False)]
        return FindingsView(findings=newest[::-1], dropped=self._dropped.get(session_id, 0))

    def has(self, session_id: str) -> bool:
        """Tell whether there is, or was, anything of a session."""
        return session_id in self._of or session_id in self._dropped

    def _drop(self, finding_id: str) -> None:
        session_id = self._all.pop(finding_id).session_id
        mine = self._of[session_id]
        del mine[finding_id]
        if not mine:
            del self._of[session_id]
        self._dropped_in_all += 1
        self._dropped[session_id] = self._dropped.get(session_id, 0) + 1
        self._dropped.move_to_end(session_id)
        if len(self._dropped) > max(self._most, 1):
            self._dropped.popitem(last=False)
