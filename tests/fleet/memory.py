"""A fleet in memory: simulated agents through the real engine, its outputs through the fleet's own model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import msgspec

from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.fleet import alerts, local
from sidecar.fleet.alerts import Bounds, Facts
from sidecar.fleet.book import Book
from sidecar.fleet.groups import iter_dims, of_dim, summed
from sidecar.fleet.local import Answers, Filter
from sidecar.fleet.queries import Dimension, Group, HaltView, Missing, Page, SessionDetail, SessionSummary, Summary
from sidecar.fleet.shard import Role, Shard
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import Alert, HaltAck
from sidecar.protocol.records import Hole
from sidecar.simulate import Message

NOW = datetime(2026, 11, 7, 10, 30, tzinfo=UTC)
WORKERS = ("http://127.0.0.1:9465", "http://127.0.0.1:9466")
_TOPICS: dict[Role, str] = {
    "findings": "agent.findings",
    "halts": "agent.halts",
    "sessions": "agent.sessions",
    "halt_acks": "agent.halt_acks",
}
_encode = msgspec.json.encode


class MemoryFleet:
    """Answer as the fleet does, with two workers of one partition each; `lost` names those that do not answer."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.shards = [Shard(number, _TOPICS) for number in range(len(WORKERS))]
        self.books = [Book(Bounds()) for _ in WORKERS]
        self.lost: set[int] = set()
        self.down: Exception | None = None
        self.now = NOW
        self._offsets: Counter[tuple[int, Role]] = Counter()
        self._changed = asyncio.Event()

    # --- feeding ------------------------------------------------------------------------------------

    def feed(self, messages: Iterable[Message], *, batch: int = 40, begin: datetime | None = None) -> MemoryFleet:
        """Fold messages in small batches, while the time goes from `begin` (50 minutes ago) to half a minute ago."""
        values = [m.value for m in messages]
        begin = begin or self.now - timedelta(minutes=50)
        end = self.now - timedelta(seconds=30)
        steps = max(1, -(-len(values) // batch))
        for step in range(steps):
            arrivals: list[Arrival] = []
            for value in values[step * batch : (step + 1) * batch]:
                try:
                    record, digest = decode(value)
                    arrivals.append((record, digest, None))
                except Unreadable as bad:
                    if bad.session_id and bad.seq:
                        arrivals.append((Hole(session_id=bad.session_id, seq=bad.seq), 0, None))
            self._take(self.engine.fold(arrivals, step), begin + (end - begin) * (step + 1) / steps)
        self._take(self.engine.finish(), end)
        return self

    def _take(self, outcome: Outcome, at: datetime) -> None:
        for finding in outcome.findings:
            self.put("findings", finding.session_id, _encode(msgspec.structs.replace(finding, detected_at=at)), at)
        for halt in outcome.halts:
            self.put("halts", halt.session_id, _encode(msgspec.structs.replace(halt, detected_at=at)), at)
        for record in self.engine.take_news():
            self.put("sessions", record.session_id, _encode(msgspec.structs.replace(record, detected_at=at)), at)
        self._changed.set()

    def put(self, role: Role, session_id: str, value: bytes, at: datetime | None = None) -> None:
        """Let a record of one of the four topics come in."""
        number = sum(session_id.encode()) % len(self.shards)
        offset = self._offsets[number, role]
        self._offsets[number, role] += 1
        self.shards[number].take(role, session_id.encode(), value, offset, (at or self.now).timestamp())

    def acknowledge(self, session_id: str, ack: HaltAck) -> None:
        """Let an acknowledgement come in."""
        self.put("halt_acks", session_id, _encode(ack))

    def judge(self) -> None:
        """Raise and clear the alerts that the bounds ask for now, twice, because most have to hold for a while."""
        for now in (self.now.timestamp() - 120, self.now.timestamp()):
            groups = summed(shard.partials.groups for shard in self.shards)
            dims = [Facts(dim=dim, total=of_dim(groups, dim)) for dim in iter_dims(groups)]
            conditions = [c for facts in dims for c in alerts.of_dim(facts, Bounds(), now)]
            self.books[0].judge_dims(conditions, set(), now)
            for shard, book in zip(self.shards, self.books, strict=True):
                rows = [row for row in shard.shelf.rows() if row.session_id in shard.concerned]
                book.judge_sessions([c for row in rows for c in alerts.of_session(row, Bounds(), now)], now)

    def copy(self) -> MemoryFleet:
        """Return another fleet with the same sessions, which may be changed."""
        other = MemoryFleet()
        other.shards, other.books, other._offsets = deepcopy((self.shards, self.books, self._offsets))
        return other

    def become(self, other: MemoryFleet) -> None:
        """Have the sessions of another fleet from now on."""
        copied = other.copy()
        self.shards, self.books, self._offsets = copied.shards, copied.books, copied._offsets

    def session_ids(self) -> list[str]:
        """Return every session, those with most findings first."""
        rows = [row for shard in self.shards for row in shard.shelf.rows()]
        return [row.session_id for row in sorted(rows, key=lambda r: (-r.findings.total, r.session_id))]

    # --- answering ----------------------------------------------------------------------------------

    def _answers(self) -> Answers:
        if self.down is not None:
            raise self.down
        why = "no answer within 2 s"
        missing = [Missing(worker=WORKERS[n], partitions=[n], reason=why) for n in sorted(self.lost)]
        return Answers(now=self.now.timestamp(), missing=missing)

    def _there(self) -> list[int]:
        return [n for n in range(len(WORKERS)) if n not in self.lost]

    async def summary(self) -> Summary:
        answers = self._answers()
        parts = {WORKERS[n]: local.figures([self.shards[n]], [self.books[n]], 0) for n in self._there()}
        return local.merge_summary(parts, answers)

    async def sessions(
        self,
        *,
        status: frozenset[str] | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[SessionSummary]:
        answers, after, limit = self._answers(), local.read_cursor(cursor), local.held(limit)
        wanted = Filter(status, tenant, agent, model, search)
        parts = [local.sessions([self.shards[n]], wanted, limit, after) for n in self._there()]
        return local.merge_sessions(parts, limit, answers)

    async def session(self, session_id: str) -> SessionDetail | None:
        answers = self._answers()
        for n in self._there():
            found = local.detail([self.shards[n]], session_id, WORKERS[n], answers.now)
            if found is not None:
                return found
        return None

    async def groups(
        self,
        by: Dimension = "group",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> Page[Group]:
        answers = self._answers()
        parts = [local.figures([self.shards[n]], [self.books[n]], 0) for n in self._there()]
        return local.merge_groups(parts, by, Filter(None, tenant, agent, model), answers)

    async def alerts(self, *, open_only: bool = True) -> Page[Alert]:
        answers = self._answers()
        return local.merge_alerts([local.alerts([self.books[n]], open_only) for n in self._there()], answers)

    async def halts(self, *, open_only: bool = True, limit: int = 500) -> Page[HaltView]:
        answers, limit = self._answers(), local.held(limit)
        parts = [local.halts([self.shards[n]], open_only, limit) for n in self._there()]
        return local.merge_halts(parts, limit, answers)

    async def changed(self, within: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), within)
        except TimeoutError:
            return
