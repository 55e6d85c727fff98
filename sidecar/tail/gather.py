"""What the records of a snapshot partition come to, read in their order."""

from msgspec import Struct
from msgspec.structs import replace

from sidecar.tail.envelope import (
    BASE_KEY,
    MARKER_KEY,
    Base,
    Codec,
    Foreign,
    Item,
    Kept,
    Marker,
    Part,
    Unusable,
    is_part_key,
    is_session_key,
    part_key,
    part_of,
)


class SnapshotError(Exception):
    """Say which record of a snapshot partition makes it unusable, and why.

    Args:
        topic: the snapshot topic.
        partition: the partition.
        offset: where the first bad record is; None: no single record is to blame.
        why: what is wrong with it, as a clause.
        next_number: what a writer has to go on with.
        more: how many more bad records there are.
        origin: where the first bad record is foreign: its origin.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        why: str,
        next_number: int = 1,
        more: int = 0,
        origin: int | None = None,
    ) -> None:
        where = f"{topic}/{partition}" if offset is None else f"{topic}/{partition}@{offset}"
        others = f" ({more} more bad records follow)" if more else ""
        super().__init__(f"The snapshots in {where} cannot be used: {why}{others}.")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.why = why
        self.next_number = next_number
        self.origin = origin


class Restored(Struct):
    """Hold what a snapshot partition says.

    Sessions may be newer than the marker: decided ones are written without one, and a round may have been cut off.
    """

    sessions: list[Kept]
    marker: Marker | None
    next_number: int
    records: int
    size: int
    """Bytes of all keys and values read."""
    parts: dict[str, int]
    """How many parts of states stand there, by session."""

    @property
    def oversized(self) -> list[str]:
        """Return the sessions of which nothing but the id is known, because their state could not be written."""
        return [kept.frozen.session_id for kept in self.sessions if not kept.frozen.state]


class Gathering:
    """Take the records of one snapshot partition in their order, verify each, and keep what stands.

    The newest record of a key stands, and numbers have to rise. One exception: a record that merely repeats what
    stands under its key changes nothing, and a producer without transactions may well repeat what was not
    acknowledged in time.

    A bad record does not end the reading: a `base` record further on may say that it no longer counts, and whoever
    begins anew has to know the highest number.

    Args:
        topic: the snapshot topic.
        partition: the partition.
        origin: from `envelope.origin_of`.
    """

    def __init__(self, topic: str, partition: int, origin: int) -> None:
        self._topic = topic
        self._partition = partition
        self._codec = Codec(origin)
        self._sessions: dict[bytes, Kept] = {}
        self._parts: dict[bytes, Part] = {}
        # Put together as soon as the session's record comes: whoever wrote the next parts may have died before theirs.
        self._states: dict[bytes, bytes] = {}
        self._marker: Marker | None = None
        self._base: Base | None = None
        self._newest = 0
        self._removed = 0
        self._bad = 0
        self._trouble: tuple[int, str] | None = None
        self._foreign: int | None = None
        self.records = 0
        self.size = 0

    def add(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Take the next record; what is wrong with it is told by `result`."""
        self.records += 1
        self.size += len(key or b"") + len(value or b"")
        if value is None:
            self._remove(key)
            return
        try:
            item = self._codec.read(key, value)
        except Unusable as error:
            if self._trouble is None and isinstance(error, Foreign):
                self._foreign = error.origin
            self._refuse(offset, str(error))
            return
        assert key is not None  # or it had been unusable
        if item.number > self._newest:
            self._newest = item.number
            self._keep(key, item)
        elif item != self._standing(key):
            self._refuse(
                offset, f"its number is {item.number}, after {self._newest}: an older record was written again"
            )

    def result(self) -> Restored:
        """Return what stands.

        Raises:
            SnapshotError: a record that counts is bad, or sessions are missing.
        """
        if self._trouble is not None:
            offset, why = self._trouble
            raise self._error(offset, why, self._bad - 1)
        if missing := self._missing():
            raise self._error(
                None,
                f"{missing} of the sessions that the marker counts are missing (the topic has to have"
                " cleanup.policy=compact, and nothing else may delete from it)",
            )
        sessions = list(map(self._whole, self._sessions.values(), self._sessions))
        parts: dict[str, int] = {}
        for key in self._parts:
            session_id, index = part_of(key)
            parts[session_id] = max(parts.get(session_id, 0), index + 1)
        return Restored(sessions, self._marker, self._newest + 1, self.records, self.size, parts)

    def _standing(self, key: bytes) -> Item | None:
        if key == MARKER_KEY:
            return self._marker
        if key == BASE_KEY:
            return self._base
        return self._parts.get(key) if is_part_key(key) else self._sessions.get(key)

    def _keep(self, key: bytes, item: Item) -> None:
        if type(item) is Kept:
            self._sessions[key] = item
            self._states.pop(key, None)
            if item.parts and (state := self._assembled(key, item)) is not None:
                self._states[key] = state
        elif type(item) is Part:
            self._parts[key] = item
        elif type(item) is Marker:
            self._marker = item
            self._removed = 0
        elif type(item) is Base:
            self._sessions.clear()
            self._parts.clear()
            self._states.clear()
            self._marker, self._base = None, item
            self._trouble, self._foreign, self._bad = None, None, 0

    def _remove(self, key: bytes | None) -> None:
        if key == MARKER_KEY:
            self._marker = None
        elif key is not None and is_part_key(key):
            self._parts.pop(key, None)
        elif key is not None and is_session_key(key):
            self._sessions.pop(key, None)
            self._states.pop(key, None)
            self._removed += 1

    def _assembled(self, key: bytes, kept: Kept) -> bytes | None:
        """Return the state of a session from its parts; None: one of them is not there, or not the one it was."""
        parts = [self._parts.get(part_key(key, index)) for index in range(kept.parts)]
        if [part.number if part is not None else None for part in parts] != list(kept.numbers()):
            return None
        return b"".join(part.state for part in parts if part is not None)

    def _whole(self, kept: Kept, key: bytes) -> Kept:
        """Return a session with its state.

        Raises:
            SnapshotError: a part of it is missing.
        """
        if not kept.parts:
            return kept
        if (state := self._states.get(key)) is None:
            raise self._error(
                None,
                f"parts of the state of session {kept.frozen.session_id[:200]!r} are missing: its next state was being"
                " written when the writer ended",
            )
        return replace(kept, frozen=replace(kept.frozen, state=state))

    def _refuse(self, offset: int, why: str) -> None:
        self._bad += 1
        self._trouble = self._trouble or (offset, why)

    def _missing(self) -> int:
        """Return how many sessions there must have been at the marker and are not there now."""
        if self._marker is None:
            return 0
        # Each one newer than the marker may have replaced one that the marker counts.
        return max(0, self._marker.sessions - len(self._sessions) - self._removed)

    def _error(self, offset: int | None, why: str, more: int = 0) -> SnapshotError:
        return SnapshotError(self._topic, self._partition, offset, why, self._newest + 1, more, self._foreign)
