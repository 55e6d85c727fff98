"""One record of the snapshot topic: what stands in it, and how a damaged or a foreign one is told.

A value is eight bytes of checksum, then a msgpack array. The checksum is seeded with the key, so that a value under
another key fails it too. What stands under the key of a session differs from what stands under those of the parts
of its state, and under `marker` and `base`; all begin with version, origin and number:

- version: of this layout and of the engine's state in it; another one is refused, not guessed.
- origin: a digest of the group, its inputs and the task. A record of another origin says nothing about this task.
- number: rises with every record that a task writes, so that an older one written again is seen.

A state that is too large for one record stands in parts, written right before the session's record with the numbers
right before its own. So a record and its parts are known to belong together, and a part that was overwritten is missed.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from sidecar.engine.fold import STATE_VERSION, STATES_READ
from sidecar.engine.state import Frozen

FORMAT = 1
VERSION = FORMAT * 1000 + STATE_VERSION
_READ = frozenset(FORMAT * 1000 + version for version in STATES_READ)
"""The version of a record: of its layout (thousands) and of the engine's state in it."""

MARKER_KEY = b"marker"
BASE_KEY = b"base"
_SESSION = b"s:"
_PART = b"p:"
_INDEX = 4
_CHECKSUM = 8

_encode = msgspec.msgpack.Encoder().encode


class Unusable(ValueError):
    """Say why a record of the snapshot topic cannot be used."""


class Foreign(Unusable):
    """Say that a record has another origin, and which."""

    def __init__(self, origin: int) -> None:
        super().__init__(
            "it is foreign: written for another group, other input topics, another number of partitions, or"
            " another partition"
        )
        self.origin = origin


class Layout(Struct, frozen=True):
    """Say where sessions' records were when a state was written: what decides which task has which session."""

    counts: Mapping[str, int] = {}
    """How many partitions each topic had; empty: an older version wrote it."""
    partitioner: str = ""


class Kept(Struct, gc=False):
    """Hold a session as it was written: its number, the next offset of each input topic, and its state.

    The state is empty where it stands in parts, and where it could not be written: that there is such a session is all
    that is known then.
    """

    number: int
    positions: Mapping[str, int]
    frozen: Frozen
    parts: int = 0
    """How many parts the state has that stands in parts."""

    def numbers(self) -> range:
        """Return the numbers of the parts, in their order."""
        return range(self.number - self.parts, self.number)


class Part(Struct, frozen=True, gc=False):
    """Hold a part of a session's state."""

    number: int
    state: bytes


class Marker(Struct, frozen=True):
    """End a round: all `sessions` of the task stand in the topic as they were at these positions."""

    number: int
    positions: Mapping[str, int]
    sessions: int
    layout: Layout = Layout()


class Base(Struct, frozen=True):
    """Begin anew: what stands before this record in the partition does not count."""

    number: int


Item = Kept | Part | Marker | Base


class _Session(Struct, array_like=True, gc=False):
    version: int
    origin: int
    number: int
    positions: Raw
    status: str
    open_halts: int
    waiting: bool
    state: bytes
    parts: int = 0


class _Part(Struct, array_like=True, gc=False):
    version: int
    origin: int
    number: int
    state: bytes


class _Mark(Struct, array_like=True):
    version: int
    origin: int
    number: int
    positions: dict[str, int]
    sessions: int
    counts: dict[str, int] = {}
    partitioner: str = ""


_decode_session = msgspec.msgpack.Decoder(_Session).decode
_decode_part = msgspec.msgpack.Decoder(_Part).decode
_decode_mark = msgspec.msgpack.Decoder(_Mark).decode
_decode_positions = msgspec.msgpack.Decoder(dict[str, int]).decode


def origin_of(group_id: str, topics: Iterable[str], partitions: int, number: int) -> int:
    """Return what the records of one task have in common and those of no other task have.

    Args:
        group_id: the consumer group.
        topics: the input topics, in any order.
        partitions: how many partitions each of them has.
        number: the task's partition number.
    """
    return xxh3_64_intdigest(_encode((group_id, sorted(topics), partitions, number)))


def session_key(session_id: str) -> bytes:
    """Return the key that a session stands under."""
    return _SESSION + session_id.encode()


def is_session_key(key: bytes) -> bool:
    """Return whether a session stands under a key."""
    return key.startswith(_SESSION)


def part_key(key: bytes, index: int) -> bytes:
    """Return the key that a part of a state stands under.

    Args:
        key: the session's.
        index: which part, from 0.
    """
    return _PART + index.to_bytes(_INDEX) + key


def is_part_key(key: bytes) -> bool:
    """Return whether a part of a state stands under a key."""
    return key.startswith(_PART)


def part_of(key: bytes) -> tuple[str, int]:
    """Return which session a part belongs to, and which part it is."""
    begin = len(_PART) + _INDEX
    return key[begin + len(_SESSION) :].decode(), int.from_bytes(key[len(_PART) : begin])


def packed(positions: Mapping[str, int]) -> Raw:
    """Return positions in the form they are written in, made once for all sessions of a round."""
    return Raw(_encode(dict(sorted(positions.items()))))


class Codec:
    """Write and read the records of one task.

    Args:
        origin: from `origin_of`.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        # Sessions of one round have the same positions and mostly stand side by side: one dict serves them all.
        self._packed = b""
        self._positions: Mapping[str, int] = {}

    def session(self, key: bytes, number: int, positions: Raw, frozen: Frozen, state: bytes, parts: int = 0) -> bytes:
        """Return a session's value; `state` is the frozen one's, or empty where that stands in so many parts."""
        body = (VERSION, self.origin, number, positions, frozen.status, frozen.open_halts, frozen.waiting, state)
        return _sealed(key, _encode((*body, parts) if parts else body))

    def part(self, key: bytes, number: int, state: bytes) -> bytes:
        """Return the value of a part of a session's state."""
        return _sealed(key, _encode((VERSION, self.origin, number, state)))

    def marker(self, number: int, positions: Raw, sessions: int, layout: Layout) -> bytes:
        """Return the value of the marker that ends a round."""
        where = (dict(sorted(layout.counts.items())), layout.partitioner)
        return _sealed(MARKER_KEY, _encode((VERSION, self.origin, number, positions, sessions, *where)))

    def base(self, number: int) -> bytes:
        """Return the value of the record that begins anew."""
        return _sealed(BASE_KEY, _encode((VERSION, self.origin, number, {}, 0)))

    def read(self, key: bytes | None, value: bytes) -> Item:
        """Verify a record and return what it holds.

        Raises:
            Unusable: it is damaged, foreign, of another version, or under a key that is not its own.
        """
        if key is None or not (is_session_key(key) or is_part_key(key) or key in (MARKER_KEY, BASE_KEY)):
            raise Unusable("its key is none that a snapshot has")
        body = memoryview(value)[_CHECKSUM:]
        if value[:_CHECKSUM] != xxh3_64_digest(body, _seed(key)):
            raise Unusable(
                "its checksum does not match: it is damaged, was written under another key, or is no snapshot"
            )
        try:
            if is_session_key(key):
                return self._session(key, body)
            return self._part(body) if is_part_key(key) else self._mark(key, body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Another version may look quite different behind its first element.
            _check_version(_first(body))
            raise Unusable(f"it cannot be read: {error}") from None

    def _session(self, key: bytes, body: memoryview) -> Kept:
        read = _decode_session(body)
        self._check(read)
        positions = bytes(read.positions)
        if positions != self._packed:
            self._positions = _decode_positions(positions)
            self._packed = positions
        frozen = Frozen(
            session_id=key[len(_SESSION) :].decode(),
            status=read.status,
            open_halts=read.open_halts,
            waiting=read.waiting,
            seen=0.0,
            state=read.state,
        )
        return Kept(read.number, self._positions, frozen, read.parts)

    def _part(self, body: memoryview) -> Part:
        read = _decode_part(body)
        self._check(read)
        return Part(read.number, read.state)

    def _mark(self, key: bytes, body: memoryview) -> Marker | Base:
        read = _decode_mark(body)
        self._check(read)
        if key == BASE_KEY:
            return Base(read.number)
        return Marker(read.number, read.positions, read.sessions, Layout(read.counts, read.partitioner))

    def _check(self, read: _Session | _Part | _Mark) -> None:
        _check_version(read.version)
        if read.origin != self.origin:
            raise Foreign(read.origin)


def layout_of(value: bytes) -> tuple[int, Layout] | None:
    """Return the origin and the layout of a marker, whatever wrote it; None: it cannot be read.

    Args:
        value: what stands under the key of the marker.
    """
    body = memoryview(value)[_CHECKSUM:]
    if value[:_CHECKSUM] != xxh3_64_digest(body, _seed(MARKER_KEY)):
        return None
    try:
        read = _decode_mark(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if read.version // 1000 != FORMAT:
        return None
    return read.origin, Layout(read.counts, read.partitioner)


def _check_version(version: object) -> None:
    if version not in _READ:
        raise Unusable(f"it has version {version!r}; this program reads version {VERSION}")


def _first(body: memoryview) -> object:
    try:
        read = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return VERSION
    return read[0] if isinstance(read, list) and read else VERSION


def _sealed(key: bytes, body: bytes) -> bytes:
    return xxh3_64_digest(body, _seed(key)) + body


def _seed(key: bytes) -> int:
    return xxh3_64_intdigest(key)
