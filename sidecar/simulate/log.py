"""The append-only log of one simulated session: it numbers, dates and encodes records."""

import random
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from sidecar.simulate.names import OPAQUE, TEXTS

Role = Literal["events", "compactions"]
"""Which of the two input topics a record goes to."""

_encode = msgspec.json.encode


class Entry(NamedTuple):
    """Keep one record as it leaves the agent: when, for which topic, and whether transport noise may touch it."""

    at: float
    role: Role
    value: bytes
    plain: bool = True


class Log:
    """Write one session's records.

    Args:
        session_id: the session.
        rng: where all its chance comes from.
        start: what the virtual clock's zero is on the calendar.
        at: the virtual time at which the session begins, in seconds.
        seconds: the mean virtual time between two records.
        labels: tenant and agent; `model` is put on compaction records only.
        model: the summarizer.
        counterless: whether the compactor cannot draw from the log's counter.
    """

    def __init__(
        self,
        session_id: str,
        rng: random.Random,
        *,
        start: datetime,
        at: float,
        seconds: float,
        labels: dict[str, str],
        model: str,
        counterless: bool,
    ) -> None:
        self.session_id = session_id
        self.entries: list[Entry] = []
        self.seq = 0
        self.at = at
        self.counterless = counterless
        self._random = rng.random
        self._start = start
        self._seconds = seconds
        self._labels = labels
        self._compactor = {**labels, "model": model}
        # Most records are opaque turns: only their kind, place, date and text differ.
        self._head = f'","session_id":"{session_id}","seq":'
        self._tail = "".join(f',"{k}":"{v}"' for k, v in labels.items()) + ',"text":"'

    def turn(self) -> int:
        """Append an opaque turn and return its position."""
        self.seq += 1
        random = self._random
        kind = OPAQUE[int(random() * len(OPAQUE))]
        text = TEXTS[int(random() * len(TEXTS))]
        value = f'{{"kind":"{kind}{self._head}{self.seq},"ts":"{self._tick()}"{self._tail}{text}"}}'
        self.entries.append(Entry(self.at, "events", value.encode()))
        return self.seq

    def event(self, kind: str, **fields: Any) -> int:
        """Append a log event and return its position."""
        self.seq += 1
        self._append("events", kind, {"seq": self.seq}, self._labels, fields)
        return self.seq

    def compaction(self, kind: str, **fields: Any) -> int:
        """Append a compaction record and return the position it is judged at."""
        if self.counterless:
            self._append("compactions", kind, {"as_of_seq": self.seq}, self._compactor, fields)
        else:
            self.seq += 1
            self._append("compactions", kind, {"seq": self.seq}, self._compactor, fields)
        return self.seq

    def lose(self) -> int:
        """Take a position whose record never arrives, and return it."""
        self.seq += 1
        self._tick()
        return self.seq

    def tear(self) -> int:
        """Take a position whose record arrives cut in half, and return it."""
        seq = self.turn()
        at, role, value, _ = self.entries.pop()
        self.entries.append(Entry(at, role, value[: len(value) // 2], plain=False))
        return seq

    def garble(self) -> int:
        """Take a position whose record has a field of the wrong type, and return it."""
        seq = self.event("action", action_id=7)
        self.entries[-1] = self.entries[-1]._replace(plain=False)
        return seq

    def stray(self, value: bytes) -> None:
        """Append bytes that are no record and take no position."""
        self._tick()
        self.entries.append(Entry(self.at, "events", value, plain=False))

    def guarded_turn(self) -> int:
        """Append a turn that transport noise may not touch, and return its position."""
        seq = self.turn()
        self.entries[-1] = self.entries[-1]._replace(plain=False)
        return seq

    def contradict(self, seq: int, kind: str = "message", **fields: Any) -> None:
        """Append another record for a position that is taken by a guarded turn; it comes once, and after that."""
        self._append("events", kind, {"seq": seq}, self._labels, fields)
        self.entries[-1] = self.entries[-1]._replace(plain=False)

    def smuggle(self, kind: str, tenant: str, **fields: Any) -> int:
        """Take a position with a record that names another tenant, and return it."""
        seq = self.event(kind, **fields, tenant=tenant)
        self.entries[-1] = self.entries[-1]._replace(plain=False)
        return seq

    def _append(
        self, role: Role, kind: str, place: dict[str, int], who: dict[str, str], fields: dict[str, Any]
    ) -> None:
        record = {"kind": kind, "session_id": self.session_id, **place, "ts": self._tick(), **who, **fields}
        self.entries.append(Entry(self.at, role, _encode(record)))

    def _tick(self) -> str:
        """Let the clock go on, and return what it shows."""
        self.at += self._seconds * (0.5 + self._random())
        return (self._start + timedelta(seconds=self.at)).isoformat(timespec="milliseconds")
