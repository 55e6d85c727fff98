"""The alerts of one partition: what stands, what is to be written, and what was written by somebody else.

The topic of alerts is the changelog of this table: writing an alert down is publishing it. So there is no moment at
which an alert is known and not told, or told and not known.
"""

from collections.abc import Iterable

import msgspec

from sidecar.fleet.alerts import Bounds, Condition, Watch, is_of_session, judge, newer
from sidecar.protocol.outputs import Alert

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Alert).decode


class Book:
    """Keep the alerts of one partition: of its sessions, and of the tenants, agents and models that are added up there.

    What is judged has to be written before more is judged, or a reader would miss that an alert had been cleared
    before it was raised again.

    Args:
        bounds: the bounds.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._of_sessions = Watch()
        self._of_dims = Watch()
        self.alerts: dict[str, Alert] = {}
        self.changed: dict[str, int] = {}
        """Alerts that have changed since they were written, with the version then; 0: a tombstone."""

    def judge_sessions(self, conditions: Iterable[Condition], now: float) -> list[Alert]:
        """Judge the sessions; return what is raised, updated or cleared."""
        standing = {a: alert for a, alert in self.alerts.items() if is_of_session(alert)}
        return self._take(judge(conditions, standing, self._of_sessions, self._bounds, now))

    def judge_dims(
        self, conditions: Iterable[Condition], waiting: set[tuple[str, str | None]], now: float
    ) -> list[Alert]:
        """Judge tenants, agents and models, except those of which nothing can be said yet.

        Args:
            conditions: of the others.
            waiting: (what, name) of those.
            now: the time.
        """
        standing = {
            a: alert
            for a, alert in self.alerts.items()
            if not is_of_session(alert) and (alert.subject_type, alert.subject) not in waiting
        }
        return self._take(judge(conditions, standing, self._of_dims, self._bounds, now))

    def _take(self, found: list[Alert]) -> list[Alert]:
        for alert in found:
            self.alerts[alert.alert_id] = alert
            self.changed[alert.alert_id] = alert.version
        return found

    def forget(self, before: float) -> int:
        """Forget the alerts that were cleared before a time; return how many."""
        old = [
            alert_id
            for alert_id, alert in self.alerts.items()
            if alert.cleared_at is not None and alert.cleared_at.timestamp() < before and alert_id not in self.changed
        ]
        for alert_id in old:
            del self.alerts[alert_id]
            self.changed[alert_id] = 0
        return len(old)

    def batch(self) -> dict[bytes, bytes | None]:
        """Return what is to be written now."""
        return {
            alert_id.encode(): None if (alert := self.alerts.get(alert_id)) is None else _encode(alert)
            for alert_id in self.changed
        }

    def written(self, versions: dict[str, int]) -> None:
        """Note that alerts have been written, in these versions (a copy of `changed`)."""
        for alert_id, version in versions.items():
            if self.changed.get(alert_id) == version:
                del self.changed[alert_id]

    def write_all(self) -> None:
        """See that everything is written again: somebody else has written to this partition."""
        for alert_id, alert in self.alerts.items():
            self.changed[alert_id] = alert.version

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the topic.

        Raises:
            ValueError: it cannot be read.
        """
        if value is None:
            self.alerts.pop(key.decode(), None)
            return
        try:
            alert = _decode(value)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no alert: {error}") from None
        mine = self.alerts.get(alert.alert_id)
        self.alerts[alert.alert_id] = alert if mine is None else newer(mine, alert)
