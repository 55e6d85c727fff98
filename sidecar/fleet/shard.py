"""One input partition of the four topics: its sessions, what they come to, and how far the topics have been read.

Everything of a partition is in one place and in one order of writing: rows first, then the positions they stand at. So
whoever reads the changelog to its end has, for every row, at least what had been read up to the positions; reading on
from there brings what is missing, and the rows are deaf to what they know already. No offset that anybody commits has
a say in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from sidecar.fleet import alerts
from sidecar.fleet.groups import Dim, Head, Partials, Wire, head, iter_dims, of_dim
from sidecar.fleet.model import Row, dump, join, load, seconds
from sidecar.protocol.outputs import Finding, Halt, HaltAck, SessionRecord

Role = Literal["findings", "halts", "sessions", "halt_acks"]
ROLES: tuple[Role, ...] = ("findings", "halts", "sessions", "halt_acks")

MARKER = b"\xffpositions"
"""Key of the positions in the changelog: no session has it, for it is not UTF-8."""

_EPOCH = 1 << 48
_ORDER = ("corrupt", "lossy", "degraded", "unverified", "", "unjudged", "stale", "verified", "uncompacted")
_RANKS = {status: rank for rank, status in enumerate(_ORDER)}
_UNTOLD = _RANKS[""]

_decode_finding = msgspec.json.Decoder(Finding).decode
_decode_halt = msgspec.json.Decoder(Halt).decode
_decode_session = msgspec.json.Decoder(SessionRecord).decode
_decode_ack = msgspec.json.Decoder(HaltAck).decode


class Unusable(Exception):
    """Say why a record of an input topic cannot be taken in."""


class Position(Struct, array_like=True):
    """Say how far a topic's partition has been read: the next offset.

    `epoch` counts how often the topic was made anew, so that what its old offsets stood for is not taken for the new.
    """

    topic: str
    next: int = 0
    epoch: int = 0

    def mark(self, offset: int) -> int:
        """Return a record's place: it grows with the offset, and with the topic's being made anew."""
        return self.epoch * _EPOCH + offset


class Positions(Struct, array_like=True):
    """The positions of a partition as they are written."""

    version: int
    partition: int
    roles: dict[str, Position]


_encode_positions = msgspec.msgpack.Encoder().encode
_decode_positions = msgspec.msgpack.Decoder(Positions).decode


class Shelf(Protocol):
    """Hold the rows of one partition: in memory, or on disk.

    What is on disk must be in the changelog too: another worker that takes the partition over has only that.
    """

    def get(self, session_id: str) -> Row | None:
        """Return a row; it may be changed, and is kept as changed only once it is `put`."""
        ...

    def put(self, session_id: str, row: Row | None) -> None:
        """Keep a row (None: keep it no more) that is not in the changelog yet."""
        ...

    def settle(self, session_id: str, row: Row | None) -> None:
        """Keep a row (None: keep it no more) as it stands in the changelog."""
        ...

    def rows(self) -> Iterator[Row]:
        """Yield every row."""
        ...

    def keep(self, positions: bytes, offset: int) -> None:
        """Note the positions that everything settled stands at, and the changelog's next offset."""
        ...

    def kept(self) -> tuple[bytes, int] | None:
        """Return what was noted last; None: nothing, for everything here is as new as the process."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""
        ...

    def __len__(self) -> int: ...


class MemoryShelf:
    """Hold rows in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def get(self, session_id: str) -> Row | None:
        return self._rows.get(session_id)

    def put(self, session_id: str, row: Row | None) -> None:
        if row is None:
            self._rows.pop(session_id, None)
        else:
            self._rows[session_id] = row

    settle = put

    def rows(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def keep(self, positions: bytes, offset: int) -> None:
        pass

    def kept(self) -> tuple[bytes, int] | None:
        return None

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self._rows)


class Entry(NamedTuple):
    """What a session is found and sorted by; the order of a list is that of `(rank, degraded_since, session_id)`."""

    rank: int
    degraded_since: float
    session_id: str
    status: str | None
    tenant: str | None
    agent: str | None
    model: str | None
    halted: bool
    last_seen: float


class Batch(NamedTuple):
    """What is to be written to the changelog: rows by session (None: a tombstone), then the positions."""

    rows: dict[str, bytes | None]
    positions: bytes
    changes: dict[str, int]
    moved: int


class Shard:
    """Keep one input partition.

    Args:
        partition: its number.
        topics: the input topics by role.
        shelf: where its rows are.
    """

    def __init__(self, partition: int, topics: Mapping[Role, str], shelf: Shelf | None = None) -> None:
        self.partition = partition
        self.topics = dict(topics)
        self.shelf: Shelf = MemoryShelf() if shelf is None else shelf
        self.positions: dict[Role, Position] = {role: Position(topic) for role, topic in topics.items()}
        self.partials = Partials()
        self.index: dict[str, Entry] = {}
        self.concerned: set[str] = set()
        """Sessions that may have something to be alerted to."""
        self.changed: dict[str, int] = {}
        """Sessions that have changed since they were written, each with the number of the change."""
        self.change = 0
        self.moved = 0
        self.written_at = -1
        self.unsummed = True
        """Whether the changelog has brought something since the rows were added up."""

    # --- records ------------------------------------------------------------------------------------------------------

    def take(self, role: Role, key: bytes | None, value: bytes | None, offset: int, at: float) -> bool:
        """Take a record in; return whether it is new here.

        Args:
            role: the topic's.
            key, value: the message's.
            offset: the message's.
            at: the message's timestamp (Unix seconds).

        Raises:
            Unusable: it cannot be read; the position has moved past it all the same.
        """
        position = self.positions[role]
        if offset < position.next:
            return False
        position.next = offset + 1
        self.moved += 1
        mark = position.mark(offset)
        try:
            if role == "findings":
                self._finding(_decode_finding(_present(value)), _present(value), mark, at)
            elif role == "halts":
                halt = _decode_halt(_present(value))
                row, before = self._row(halt.session_id)
                self._keep(row, before, row.halts.apply(halt, mark, at))
            elif role == "sessions":
                self._session(key, value, mark, at)
            else:
                ack = _decode_ack(_present(value))
                row, before = self._row(_session_of(key))
                self._keep(row, before, row.acks.apply(ack, mark, at))
        except msgspec.MsgspecError as error:
            raise Unusable(str(error)) from None
        return True

    def _finding(self, finding: Finding, raw: bytes, mark: int, at: float) -> None:
        row, before = self._row(finding.session_id)
        known = row.findings.mark
        group = row.findings.apply(finding, raw, mark, at)
        if group is not None:
            self.partials.count(group, finding.rule, seconds(finding.detected_at, at))
        self._keep(row, before, row.findings.mark != known)

    def _session(self, key: bytes | None, value: bytes | None, mark: int, at: float) -> None:
        if value is None:
            self.remove(_session_of(key))
            return
        record = _decode_session(value)
        row, before = self._row(record.session_id)
        known = row.standing.mark
        row.standing.apply(record, mark, at)
        self._keep(row, before, row.standing.mark != known)

    def _row(self, session_id: str) -> tuple[Row, Head | None]:
        row = self.shelf.get(session_id)
        return (Row(session_id), None) if row is None else (row, head(row))

    def _keep(self, row: Row, before: Head | None, changed: bool) -> None:
        if not changed:
            return
        self.partials.move(before, head(row), row)
        self.shelf.put(row.session_id, row)
        self._find(row)
        self._note(row.session_id)

    def remove(self, session_id: str) -> None:
        """Forget a session."""
        row = self.shelf.get(session_id)
        if row is not None:
            self.partials.remove(row)
            self.shelf.put(session_id, None)
            self.index.pop(session_id, None)
            self.concerned.discard(session_id)
            self._note(session_id)

    def expire(self, before: float) -> int:
        """Forget the sessions of which nothing has been heard since; return how many."""
        old = [entry.session_id for entry in self.index.values() if entry.last_seen < before]
        for session_id in old:
            self.remove(session_id)
        return len(old)

    def _note(self, session_id: str) -> None:
        self.change += 1
        self.changed[session_id] = self.change

    def _find(self, row: Row) -> None:
        self.index[row.session_id] = entry(row)
        if alerts.concerns(row):
            self.concerned.add(row.session_id)
        else:
            self.concerned.discard(row.session_id)

    # --- the changelog ------------------------------------------------------------------------------------------------

    def unwritten(self) -> bool:
        """Tell whether anything has changed, or been read, since it was last written."""
        return bool(self.changed) or self.moved != self.written_at

    def batch(self) -> Batch:
        """Return what is to be written now."""
        rows: dict[str, bytes | None] = {}
        for session_id in self.changed:
            row = self.shelf.get(session_id)
            rows[session_id] = None if row is None else dump(row)
        positions = Positions(1, self.partition, dict(self.positions.items()))
        return Batch(rows, _encode_positions(positions), dict(self.changed), self.moved)

    def written(self, batch: Batch) -> None:
        """Note that a batch is in the changelog."""
        for session_id, change in batch.changes.items():
            if self.changed.get(session_id) == change:
                del self.changed[session_id]
                self.shelf.settle(session_id, self.shelf.get(session_id))
        self.written_at = batch.moved

    def write_all(self) -> None:
        """See that everything is written again: somebody else has written to this partition's changelog."""
        for session_id in self.index:
            self._note(session_id)
        self.written_at = -1

    def slim(self, session_ids: Iterable[str]) -> None:
        """Keep of some sessions what is counted, and not what is kept whole: their rows cannot be written."""
        for session_id in session_ids:
            row = self.shelf.get(session_id)
            if row is not None:
                row.findings.kept.clear()
                del row.standing.checkpoints[:-1]
                self.shelf.put(session_id, row)
                self._note(session_id)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the changelog; `restored` has to follow.

        Raises:
            ValueError: it cannot be read.
        """
        self.unsummed = True
        if key == MARKER:
            if value is not None:
                self._restore_positions(value)
            return
        session_id = key.decode()
        unwritten = session_id in self.changed
        if value is None:
            if not unwritten:
                self.shelf.settle(session_id, None)
            return
        row, mine = load(value), self.shelf.get(session_id)
        if mine is not None:
            row = join(mine, row)
        (self.shelf.put if unwritten else self.shelf.settle)(session_id, row)

    def _restore_positions(self, value: bytes) -> None:
        try:
            found = _decode_positions(value)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no positions: {error}") from None
        for role, position in found.roles.items():
            if role not in self.positions:
                continue
            mine = self.positions[role]
            if position.topic != mine.topic:
                # Another topic has its role now: to be read from its begin, and known to be another.
                mine.epoch = max(mine.epoch, position.epoch + 1)
            elif (position.epoch, position.next) > (mine.epoch, mine.next):
                mine.epoch, mine.next = position.epoch, position.next

    def restored(self) -> None:
        """Make from the rows what is kept beside them."""
        self.partials, self.index, self.concerned = Partials(), {}, set()
        self.unsummed = False
        for row in self.shelf.rows():
            self.partials.add(row)
            self._find(row)

    def check_ends(self, ends: Mapping[Role, int]) -> list[Role]:
        """Begin anew with the topics that end before the position: they have been deleted and made again.

        Args:
            ends: the end offset of this partition of each topic.

        Returns:
            those topics' roles.
        """
        anew: list[Role] = []
        for role, end in ends.items():
            position = self.positions[role]
            if position.next > end:
                position.epoch, position.next = position.epoch + 1, 0
                self.moved += 1
                anew.append(role)
        return anew

    # --- what goes to the others --------------------------------------------------------------------------------------

    def wires(self, at: float, behind: bool, fresh: bool, *, all_of_them: bool = False) -> list[Wire]:
        """Return the partials of the tenants, agents and models that have changed since this was asked last."""
        groups = self.partials.groups
        dims: Iterable[Dim] = iter_dims((*groups, *self.partials.changed) if all_of_them else self.partials.changed)
        found = []
        for dim in dims:
            partial = of_dim(groups, dim)
            found.append(Wire(dim, self.partition, at, behind, fresh, None if partial.is_empty() else partial))
        self.partials.changed.clear()
        return found


def entry(row: Row) -> Entry:
    """Return what a session is found and sorted by."""
    group, status = row.group(), row.status()
    return Entry(
        _RANKS.get(status, _UNTOLD) if status else _UNTOLD,
        row.standing.degraded_since or inf,
        row.session_id,
        status,
        *group,
        any(True for _ in row.open_halts()),
        row.last_seen() or inf,
    )


def _present(value: bytes | None) -> bytes:
    if value is None:
        raise Unusable("the message has no value")
    return value


def _session_of(key: bytes | None) -> str:
    try:
        if key:
            return key.decode()
    except UnicodeDecodeError:
        pass
    raise Unusable("the message's key is no session id")
