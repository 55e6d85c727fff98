"""Lines of JSONL files as bytes, one at a time, with what is wrong with a line said by name.

Nothing here looks into a record: a line is what lies between two line ends, and it is either usable or comes with
a `problem`. What a line means is the decoder's business; `explain` makes its errors readable for a person.
"""

import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec
from msgspec import Struct

MAX_LINE = 16 * 1024 * 1024
"""Longest line that is read, in bytes; a longer one is unreadable, and its memory is not kept."""

KEPT = 4096
"""How many bytes of a line that is too long are kept, so that a person can see what it was."""

STDIN = "-"
BOM = b"\xef\xbb\xbf"

_SKIP = 1024 * 1024
_RECORD_START = re.compile(rb'\{\s*"(?:kind|session_id|seq|type|parentUuid|sessionId|uuid)"\s*:')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Origin(Struct):
    """Say of the file that lines come from whether any of them was a record that could be read."""

    records: bool = False


class Line(NamedTuple):
    """Hold one line: where it was, its bytes without the line end, and why it cannot be used (None: it can)."""

    file: str
    number: int
    raw: bytes
    problem: str | None = None
    origin: Origin | None = None


class InputError(Exception):
    """Say why an input as a whole cannot be used."""


def lines_of(stream: BinaryIO, name: str, limit: int = MAX_LINE) -> Iterator[Line]:
    """Read a stream line by line; empty lines are left out (but counted).

    Args:
        stream: a buffered binary stream.
        name: what to call it in findings and messages.
        limit: longest line in bytes.
    """
    number = 0
    while raw := stream.readline(limit + 2):  # room for the line end, so that a line of exactly `limit` passes
        number += 1
        if number == 1 and raw.startswith(BOM):
            raw = raw[len(BOM) :]
        cut = len(raw) > limit and not raw.endswith(b"\n")
        size = _skip(stream, raw) if cut else len(raw.rstrip(b"\r\n"))
        if size > limit:
            yield too_long(name, number, raw, size, limit)
        elif (line := usable(name, number, raw.rstrip(b"\r\n"))) is not None:
            yield line


def usable(name: str, number: int, raw: bytes, origin: Origin | None = None) -> Line | None:
    """Make a line of its bytes (without line end); None for an empty one."""
    if not raw or raw.isspace():
        return None
    if b"\0" in raw:
        return Line(name, number, raw, _nul(raw), origin)
    return Line(name, number, raw, None, origin)


def too_long(name: str, number: int, raw: bytes, size: int, limit: int) -> Line:
    """Make the line that stands for one of `size` bytes, of which only the beginning is kept."""
    nul = ", and it holds NUL bytes" if b"\0" in raw[:KEPT] else ""
    return Line(name, number, raw[:KEPT], f"line too long: {size:,} bytes, the limit is {limit:,}{nul}")


def _skip(stream: BinaryIO, raw: bytes) -> int:
    """Read on to the line's end without keeping it; return the size of the whole line."""
    size = len(raw.rstrip(b"\r\n"))
    while not raw.endswith(b"\n"):
        raw = stream.readline(_SKIP)
        if not raw:
            break
        size += len(raw.rstrip(b"\r\n"))
    return size


def _nul(raw: bytes) -> str:
    first, last = raw.index(b"\0") + 1, raw.rindex(b"\0") + 1
    where = f"column {first}" if first == last else f"columns {first} to {last}"
    return f"NUL bytes in {where}: the file was cut off there, or written over"


def explain(raw: bytes, reason: str) -> str:
    """Name what is wrong with a line that is not JSON, where that can be told: two records, or a torn one."""
    if not reason.startswith("not JSON"):
        return reason
    if raw.startswith(BOM):
        return "not JSON: a byte order mark in the middle of the file (two files joined?)"
    second = _second_record(raw, reason)
    if second is not None:
        return f"two records on one line: another one begins in column {second + 1}"
    if "truncated" not in reason:
        return reason
    if raw.rstrip().endswith(b"}"):
        return "not JSON: a string or bracket is never closed, or half of a surrogate pair is missing"
    return f"torn line: the JSON breaks off after column {len(raw)}"


def _second_record(raw: bytes, reason: str) -> int | None:
    """Find where another record begins, behind a whole one or in the middle of a torn one."""
    trailing = _TRAILING.search(reason)
    if trailing is not None:
        at = int(trailing[1]) - 1  # it counts the first character behind the record
        at += len(raw[at:]) - len(raw[at:].lstrip())
        return at if raw[at : at + 1] == b"{" else None
    for match in _RECORD_START.finditer(raw, 1):
        at = match.start()
        before = raw[:at].rstrip()[-1:] if raw[at - 1 : at].isspace() else raw[at - 1 : at]
        # an object inside a record follows one of these; anywhere else nothing but a new record can begin
        if before not in (b":", b"[", b",") or ("truncated" in reason and _is_record(raw[at:])):
            return at
    return None


def _is_record(raw: bytes) -> bool:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return isinstance(fields, dict) and (
        fields.keys() >= {"kind", "session_id"} or fields.keys() >= {"type", "sessionId"}
    )


class Inputs:
    """Read several files as one stream, and tell how far it has got.

    Args:
        paths: files (`.gz` is unpacked) and `-` for standard input, in the order in which they are read.
        limit: longest line in bytes.
        stdin: what `-` stands for (default: the process's standard input).

    Raises:
        InputError: a path is missing, a folder, or named twice as standard input.
    """

    def __init__(self, paths: Sequence[str], limit: int = MAX_LINE, stdin: BinaryIO | None = None) -> None:
        self._paths = tuple(paths)
        self._limit = limit
        self._stdin = stdin
        self._done = 0
        self._current: BinaryIO | None = None
        self.size: int | None = 0
        """Bytes in all files together; None where that cannot be known (standard input)."""
        if self._paths.count(STDIN) > 1:
            raise InputError("standard input (-) is named twice")
        for path in self._paths:
            self._measure(path)

    def _measure(self, path: str) -> None:
        if path == STDIN:
            self.size = None
            return
        try:
            if Path(path).is_dir():
                raise InputError(f"{path} is a folder: name the files in it (`sidecar watch` takes folders)")
            size = Path(path).stat().st_size
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        self.size = None if self.size is None else self.size + size

    @property
    def position(self) -> int:
        """How many bytes have been read (of a packed file: of the packed ones)."""
        return self._done + (self._current.tell() if self._current is not None else 0)

    def __iter__(self) -> Iterator[Line]:
        for path in self._paths:
            if path == STDIN:
                yield from lines_of(self._stdin or sys.stdin.buffer, path, self._limit)
                continue
            try:
                with Path(path).open("rb") as file:
                    self._current = file
                    packed = path.endswith(".gz")
                    stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else cast(BinaryIO, file)
                    yield from lines_of(stream, path, self._limit)
                    self._done += file.tell()
                    self._current = None
            except (OSError, EOFError, zlib.error) as error:
                self._current = None
                raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
