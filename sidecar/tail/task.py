"""One task per partition number: that partition of every input topic, its engine, and where it stands."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from time import monotonic

from aiokafka import TopicPartition
from msgspec import Struct, field

from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.engine.limits import Limits
from sidecar.engine.state import Frozen
from sidecar.protocol.outputs import DeadLetter, Finding
from sidecar.tail.decoding import Decoder, Refused
from sidecar.tail.fetching import Fetched
from sidecar.tail.homes import Homes
from sidecar.tail.misplaced import Stray

_offset_of = attrgetter("offset")
_timestamp_of = attrgetter("timestamp")
_record_of = itemgetter(0)

_PATIENCE = 1.0
_FEWEST, _FIRST, _MOST = 16, 1000, 5000
"""How many records of a topic are folded at once: at least, at first, at most."""
_QUICK, _SLOW = 0.01, 0.04
"""Seconds that folding them should take, so that the event loop goes on and agents get their answers meanwhile."""


class Folded(Struct):
    """Say what came of one batch of one task."""

    outcome: Outcome
    letters: list[DeadLetter]
    kinds: dict[str, Counter[type]]
    """Records by topic and type."""
    silent: bool
    begun: float
    """When the batch was there to be decoded (`time.monotonic`)."""
    seconds: float
    """How long the engine took."""
    batches: dict[str, Sequence[Fetched]] = field(default_factory=dict)
    strays: list[Stray] = field(default_factory=list)
    """Sessions with records that are in another partition than theirs."""
    misplaced: Counter[str] = field(default_factory=Counter)
    """Such records by topic; they are among the letters."""

    def timestamp(self, finding: Finding) -> int | None:
        """Return the timestamp (ms) of the record that decided a finding, if it came with this batch."""
        source = finding.source
        if source is None or not (batch := self.batches.get(source.topic)):
            return None
        index = bisect_left(batch, source.offset, key=_offset_of)
        if index == len(batch) or batch[index].offset != source.offset:
            return None
        return batch[index].timestamp


class Clock:
    """Measure the time that a task had nothing left to read.

    A missing position is given up after `max_wait` seconds. Seconds in which the tail lags, restores or has no
    broker do not count: the missing record may well be among what has not been read.
    """

    _LONGEST = 1.0

    def __init__(self) -> None:
        self.now = 0.0
        self._since: float | None = None

    def pause(self) -> None:
        """Leave out the time until the next tick."""
        self._since = None

    def tick(self, caught_up: bool, real: float) -> None:
        """Move on to `real` if there was nothing to read since the last tick."""
        if caught_up and self._since is not None:
            self.now += min(real - self._since, self._LONGEST)
        self._since = real if caught_up else None


class _Queue:
    """Keep what has been fetched of one topic and not been folded."""

    def __init__(self) -> None:
        self.records: list[Fetched] = []
        self.newest = -1

    def add(self, records: Sequence[Fetched]) -> None:
        self.records.extend(records)
        self.newest = max(self.newest, records[-1].timestamp)

    def take(self, count: int) -> list[Fetched]:
        """Take so many from the front."""
        taken, self.records = self.records[:count], self.records[count:]
        return taken


class Task:
    """Fold one partition number of every input topic.

    A task starts *silent* where its group has committed offsets: it folds its partitions again from the start to
    the committed offsets, and says nothing, because it has been said. Offsets are committed for all topics at once,
    so the state that was committed is the one where every topic stands at its own: a topic that gets there earlier
    is held until the others have.

    Topics are read side by side, by their records' timestamps, as far as there is a backlog: read far ahead of the
    others, one would fill the reorder buffer with records whose predecessors are there, only unread.

    Args:
        number: the partition number.
        topics: the input topics.
        limits: the engine's.
        homes: knows which sessions' records belong here; None: all do.
        notes: which of the topics tells of misplaced records.
    """

    def __init__(
        self,
        number: int,
        topics: Sequence[str],
        limits: Limits,
        homes: Homes | None = None,
        notes: str | None = None,
    ) -> None:
        self.number = number
        self._homes = homes
        self._decoder = Decoder(number, homes, notes)
        self._most = _FIRST
        self.doubted: dict[str, str] = {}
        """Sessions that must be refused from now on, by id, and why; the loop sees to it."""
        self.split: set[str] = set()
        """Sessions of this partition that another task of this replica knows, and that were refused for it."""
        self.strangers: list[Stray] = []
        """Sessions that were kept here by an older version though another partition is theirs."""
        self.topics = tuple(topics)
        self.engine = Engine(limits)
        self.clock = Clock()
        self.placed = False
        self.silent = False
        self.restored = 0
        self.lost: list[str] = []
        """Ranges of the log that are gone, of which the sessions' states do not know."""
        self.positions: dict[str, int] = {}
        """The next offset to fold, by topic."""
        self.committed: dict[str, int] = {}
        self._targets: dict[str, int] = {}
        self._queues = {topic: _Queue() for topic in self.topics}
        self._blocked_since: float | None = None
        self._blockers: frozenset[str] = frozenset()
        self._started = monotonic()
        self._ahead: dict[str, Mapping[str, int]] = {}
        self.fresh = float("-inf")
        """When (`time.monotonic`) all was in the log that has been folded since: what is known is as of then."""
        self._mark: tuple[float, dict[str, int]] | None = None

    def adopt(self, frozen: Frozen, positions: Mapping[str, int], start: Mapping[str, int]) -> None:
        """Take a session as it was kept.

        Args:
            frozen: the session.
            positions: the offsets it stands at; records before them are in its state already.
            start: where the task begins to read.
        """
        self.engine.adopt(frozen, self.clock.now)
        if any(positions.get(topic, 0) > offset for topic, offset in start.items()):
            self._ahead[frozen.session_id] = positions

    def start_over(self) -> None:
        """Forget every session, before the task is placed."""
        self.engine = Engine(self.engine.limits)
        self._ahead = {}

    def place(self, start: Mapping[str, int], committed: Mapping[str, int]) -> None:
        """Set where each topic is read from, and up to where it is folded silently.

        Args:
            start: the first offset to read, by topic.
            committed: the committed offset, by topic; topics without one are left out.
        """
        self.positions = dict(start)
        # What the group has not committed is committed with the first commit, also where nothing was read: it tells
        # where this group began.
        self.committed = {topic: committed.get(topic, -1) for topic in self.topics}
        self._targets = {topic: max(start[topic], committed.get(topic, 0)) for topic in self.topics}
        self._queues = {topic: _Queue() for topic in self.topics}
        self.placed = True
        self.silent = any(start[topic] < self._targets[topic] for topic in self.topics)

    def partition(self, topic: str) -> TopicPartition:
        """Return this task's partition of a topic."""
        return TopicPartition(topic, self.number)

    def queued(self, topic: str) -> int:
        """Return how many records of a topic have been fetched and not been folded."""
        return len(self._queues[topic].records)

    def held(self) -> Iterator[str]:
        """Yield the topics that must not be fetched for now, because there is something left of them."""
        return (topic for topic, queue in self._queues.items() if queue.records)

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Return the offsets to commit; nothing while silent."""
        if self.silent or not self.placed or self.positions == self.committed:
            return {}
        # All topics or none, so that what is committed is one state.
        return {self.partition(topic): offset for topic, offset in self.positions.items()}

    def add(self, topic: str, records: Sequence[Fetched]) -> None:
        """Take what was fetched of a topic."""
        self._queues[topic].add(records)
        if topic in self._blockers:
            self._blocked_since, self._blockers = None, frozenset()

    def fold(self, behind: Collection[str], now: float) -> Folded | None:
        """Decode and fold some of what may be folded of what was fetched; None: nothing may.

        How much it is follows from how long the last ones took.

        Args:
            behind: the topics of which there is more than has been fetched.
            now: the time (`time.monotonic`).
        """
        refused = Refused()
        kinds: dict[str, Counter[type]] = {}
        batches: dict[str, Sequence[Fetched]] = {}
        runs: list[tuple[list[Arrival], Sequence[Fetched]]] = []
        started = monotonic()
        for topic, count in self._slice(self._foldable(behind, now)).items():
            batch = self._queues[topic].take(count)
            arrivals, placed = self._decoder.decode(topic, batch, refused)
            batches[topic] = batch
            runs.append((arrivals, placed))
            kinds[topic] = Counter(map(type, map(_record_of, arrivals)))
            self.positions[topic] = batch[-1].offset + 1
        if not batches:
            return None
        if self.silent:
            self.restored += sum(map(len, batches.values()))
        decoded = monotonic()
        arrivals = runs[0][0] if len(runs) == 1 else _merged(runs)
        if self._ahead:
            arrivals = [arrival for arrival in arrivals if not self._known(arrival)]
        outcome = self.engine.fold(arrivals, self.clock.now)
        self._adapt(monotonic() - started, max(map(len, batches.values())))
        return Folded(
            outcome=outcome,
            letters=[*refused.letters, *outcome.letters],
            strays=list(refused.strays.values()),
            misplaced=refused.misplaced,
            kinds=kinds,
            silent=self.silent,
            begun=now,
            seconds=monotonic() - decoded,
            batches=batches,
        )

    def _slice(self, counts: dict[str, int]) -> dict[str, int]:
        """Return how many of those that may be folded are folded now; topics stay side by side in time."""
        most, queues = self._most, self._queues
        ends = {topic: queues[topic].records[most - 1].timestamp for topic, count in counts.items() if count > most}
        if not ends:
            return counts
        end = min(ends.values())
        for topic, count in counts.items():
            # Where timestamps go back, a topic that ends the slice could come to nothing: it is not cut further.
            if ends.get(topic) == end:
                counts[topic] = most
            else:
                counts[topic] = min(most, bisect_right(queues[topic].records, end, 0, count, key=_timestamp_of))
        return {topic: count for topic, count in counts.items() if count}

    def _adapt(self, seconds: float, count: int) -> None:
        if seconds > _SLOW:
            self._most = max(_FEWEST, min(self._most, count) // 2)
        elif seconds < _QUICK and count >= self._most:
            self._most = min(_MOST, 2 * self._most)

    def _known(self, arrival: Arrival) -> bool:
        """Return whether a record is in its session's kept state already."""
        record, _, source = arrival
        positions = self._ahead.get(record.session_id)
        return positions is not None and source is not None and source.offset < positions.get(source.topic, 0)

    def _foldable(self, behind: Collection[str], now: float) -> dict[str, int]:
        """Return how many records of each topic may be folded now."""
        queues = self._queues
        horizon = min((queues[topic].newest for topic in behind), default=None)
        counts = {topic: len(queue.records) for topic, queue in queues.items() if queue.records}
        if self.silent:
            for topic in counts:
                counts[topic] = bisect_left(queues[topic].records, self._targets[topic], key=_offset_of)
        if horizon is not None and len(self.topics) > 1 and not self._out_of_patience(now):
            for topic, count in counts.items():
                # Where timestamps go back the cut is not exact, and need not be.
                counts[topic] = bisect_right(queues[topic].records, horizon, 0, count, key=_timestamp_of)
            if self._blocked_since is None and counts and not any(counts.values()):
                self._blocked_since, self._blockers = now, frozenset(behind)
        return {topic: count for topic, count in counts.items() if count}

    def _out_of_patience(self, now: float) -> bool:
        """Return whether a topic that is behind has kept the others waiting for too long (its leader may be away)."""
        return self._blocked_since is not None and now - self._blocked_since > _PATIENCE

    def target(self, topic: str) -> int:
        """Return the offset up to which a topic is folded silently."""
        return self._targets[topic]

    def reached(self, positions: Mapping[str, int]) -> bool:
        """Take note of how far the topics have been read; return True if the task now stands where it was committed.

        Args:
            positions: the next offset of each topic as the consumer knows it: it is past what is no record
                (the markers of transactions), which no record's offset tells.
        """
        if not self.silent:
            return False
        for topic, position in positions.items():
            queue, target = self._queues[topic], self._targets[topic]
            self.positions[topic] = max(
                self.positions[topic], min(queue.records[0].offset if queue.records else position, target)
            )
        if any(self.positions[topic] < self._targets[topic] for topic in self.topics):
            return False
        self.silent = False
        self._ahead = {}
        return True

    def observe(self, positions: Mapping[str, int], ends: Mapping[str, int], seen: float) -> None:
        """Take note of where the topics ended when a broker last said, to know when all up to there is folded.

        Under load a topic is never read to its end, which moves; but where it ended a moment ago is soon reached.

        Args:
            positions: the next offset of each topic as the consumer knows it.
            ends: where each topic ended.
            seen: when (`time.monotonic`) the broker said so, the oldest of them.
        """
        folded = {
            topic: queue.records[0].offset if queue.records else positions[topic]
            for topic, queue in self._queues.items()
        }
        mark = self._mark
        if mark is not None and all(folded[topic] >= end for topic, end in mark[1].items()):
            self.fresh = max(self.fresh, mark[0])
            mark = None
        if mark is None:
            if all(folded[topic] >= end for topic, end in ends.items()):
                self.fresh = max(self.fresh, seen)
            else:
                mark = (seen, dict(ends))
        self._mark = mark

    def shorten(self, topic: str, end: int) -> None:
        """Accept that a topic ends before the offset that was committed (its records were lost)."""
        self._targets[topic] = end
        self.positions[topic] = min(self.positions[topic], end)

    def drop_fetched(self) -> None:
        """Forget what was fetched and not folded, because it will be fetched again."""
        self._queues = {topic: _Queue() for topic in self.topics}
        self._blocked_since, self._blockers = None, frozenset()
        self.clock.pause()
        self.fresh, self._mark = float("-inf"), None

    def skip(self, topic: str, offset: int) -> None:
        """Go on at another offset, because the log no longer has the one that was next."""
        self._queues[topic] = _Queue()
        self.positions[topic] = offset

    def seconds(self) -> float:
        """Return how long ago the task was assigned."""
        return monotonic() - self._started


def _merged(runs: Iterable[tuple[list[Arrival], Sequence[Fetched]]]) -> list[Arrival]:
    """Merge the topics' arrivals by the times of their messages, without changing the order within a topic."""
    # Compactions and notes are few: each is put between the slices of events that it stands between.
    (many, timeline), *others = sorted(runs, key=lambda run: len(run[0]), reverse=True)
    for few, batch in others:
        merged: list[Arrival] = []
        times: list[Fetched] = []
        done = 0
        for arrival, message in zip(few, batch, strict=True):
            place = bisect_right(timeline, message.timestamp, done, key=_timestamp_of)
            merged += many[done:place]
            merged.append(arrival)
            times += timeline[done:place]
            times.append(message)
            done = place
        many, timeline = merged + many[done:], [*times, *timeline[done:]]
    return many
