"""Take whole lines from a file piece by piece, and remember where that stopped."""

import errno
import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sidecar.files.jsonl import BOM, KEPT, Line, Origin, too_long, usable
from sidecar.files.paths import shown

CHUNK = 1024 * 1024
HEAD = 256
"""How many of a file's first bytes, and of the last ones that were read, are kept to know it again."""


class Position(Origin, kw_only=True):
    """Say how far a file has been read.

    `offset` is where the next unread line begins and `line` the number of the last one read; while a line that is too
    long is passed over, `skipped` bytes of it are behind `offset` already, and `kept` is its beginning. `head` and
    `tail` are the first bytes of the file and the last ones before `offset`. `unwatched`: its path is no longer
    among those that are followed, and that has been said.
    """

    path: str
    device: int
    inode: int
    offset: int = 0
    line: int = 0
    head: bytes = b""
    tail: bytes = b""
    skipped: int = 0
    kept: bytes = b""
    unwatched: bool = False

    def matches(self, fd: int, size: int) -> bool:
        """Tell whether an open file holds what was read: it is as long, and has the same bytes there."""
        if size < self.offset:
            return False
        if os.pread(fd, len(self.head), 0) != self.head:
            return False
        if not self.tail:  # a position that an earlier version kept
            return not self.offset or bool(self.skipped) or os.pread(fd, 1, self.offset - 1) == b"\n"
        return os.pread(fd, len(self.tail), self.offset - len(self.tail)) == self.tail


class File:
    """Hold a followed file: its position, and what is known of it now."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.fd: int | None = None
        self.size = -1
        self.known = -1
        self.touched = -1
        self.torn = 0
        self.torn_since: tuple[int, float] | None = None
        self.left_at: float | None = None
        self.waits_for: File | None = None
        self.drained = False
        self.looked = 0.0
        self.unreadable = False

    @property
    def key(self) -> tuple[int, int]:
        return self.position.device, self.position.inode

    def waits_torn(self, now: float, grace: float) -> str | None:
        """Return, once, that a last line has been waiting for its newline for `grace` seconds."""
        offset = self.position.offset
        if not self.torn:
            self.torn_since = None
        elif self.torn_since is None or self.torn_since[0] != offset:
            self.torn_since = (offset, now)
        elif now - self.torn_since[1] >= grace:
            self.torn_since = (offset, float("inf"))
            return f"a half line waits in {shown(self.position.path)} at byte {offset}"
        return None


class Piece(Struct):
    """Hold what one read gave: lines, how many bytes were read, and the length of the half line at the end."""

    lines: list[Line]
    bytes: int = 0
    torn: int = 0


def read(fd: int, position: Position, size: int, limit: int, budget: int) -> Piece:
    """Take the whole lines of the next piece of a file, and move its position on.

    Args:
        fd: the open file.
        position: where the next unread line begins.
        size: the file's length when it was looked at; a line that is too long is passed over up to there.
        limit: longest line in bytes.
        budget: bytes after which passing over a line that is too long waits for the next call.
    """
    piece = Piece([])
    _next(fd, position, limit, piece)
    while position.skipped and position.offset < size and piece.bytes < budget:
        _next(fd, position, limit, piece)
    return piece


def last(fd: int, position: Position, limit: int) -> list[Line]:
    """Return the last line of a file that nobody writes to any more: it will not get its newline."""
    lines: list[Line] = []
    if position.skipped:
        line = too_long(shown(position.path), position.line + 1, position.kept, position.skipped, limit)
        lines.append(line._replace(origin=position))
    elif rest := os.pread(fd, limit + 1, position.offset):
        _take(position, shown(position.path), rest, limit, lines)
    return lines


def copied(path: Path, old: Position, size: int, fd: int) -> Position | None:
    """Return where to go on in an open file, if it is a copy of another one: holds what was read of that one.

    Args:
        path: the open file's name.
        old: where the other one stood.
        size: the length that the other one is known to have had; a shorter copy lacks something.
        fd: the open file.
    """
    status = os.fstat(fd)
    if not old.head or status.st_size < size or not old.matches(fd, status.st_size):
        return None
    return replace(old, path=str(path), device=status.st_dev, inode=status.st_ino)


def _next(fd: int, position: Position, limit: int, piece: Piece) -> None:
    data = os.pread(fd, CHUNK, position.offset)
    piece.bytes += len(data)
    piece.torn = 0
    if position.skipped:
        _skip(fd, position, data, limit, piece)
        return
    whole = len(data) < CHUNK
    end = data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK:
        data = os.pread(fd, limit + 2, position.offset)
        piece.bytes += len(data)
        end = data.find(b"\n") + 1
        if not end and len(data) > limit:
            position.kept = data[:KEPT]
            _skip(fd, position, data, limit, piece)
            return
        whole = not end
    if whole:
        piece.torn = len(data) - end
    name = shown(position.path)
    for raw in data[:end].split(b"\n")[:-1]:
        _take(position, name, raw, limit, piece.lines)
    _advance(position, data[:end])


def _take(position: Position, name: str, raw: bytes, limit: int, lines: list[Line]) -> None:
    position.line += 1
    if position.line == 1 and raw.startswith(BOM):
        raw = raw[len(BOM) :]
    raw = raw.rstrip(b"\r\n")
    if len(raw) > limit:
        lines.append(too_long(name, position.line, raw, len(raw), limit)._replace(origin=position))
    elif (line := usable(name, position.line, raw, position)) is not None:
        lines.append(line)


def _skip(fd: int, position: Position, data: bytes, limit: int, piece: Piece) -> None:
    """Pass over (more of) a line that is too long."""
    end = data.find(b"\n")
    taken = data if end < 0 else data[: end + 1]
    position.skipped += len(taken.rstrip(b"\r\n"))
    _advance(position, taken)
    if end >= 0:
        position.line += 1
        line = too_long(shown(position.path), position.line, position.kept, position.skipped, limit)
        piece.lines.append(line._replace(origin=position))
        position.skipped, position.kept = 0, b""
    elif not data.strip(b"\0"):
        _leap(fd, position)


def _leap(fd: int, position: Position) -> None:
    """Pass over a hole: a file of any length costs nothing to make, and reading it would take for ever."""
    try:
        there = os.lseek(fd, position.offset, os.SEEK_DATA)
    except OSError as error:
        there = os.fstat(fd).st_size if error.errno == errno.ENXIO else position.offset
    if there > position.offset + HEAD:
        position.skipped += there - position.offset
        position.offset = there
        position.tail = os.pread(fd, HEAD, there - HEAD)


def _advance(position: Position, taken: bytes) -> None:
    if len(position.head) < HEAD:
        position.head += taken[: HEAD - len(position.head)]
    position.tail = (position.tail + taken[-HEAD:])[-HEAD:]
    position.offset += len(taken)
