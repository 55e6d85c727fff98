"""Where a watch writes to, in such a way that a restart knows what got out.

A *file* output can be looked at after a crash: what is behind its recorded length is compared with what was to be
written, and only the rest is added, so that every line is in it exactly once. A *stream* (a pipe, a terminal) cannot:
there the count of written lines is kept beside the state after each line, so that none is missing, and at most the one
line that was being written when the process was killed comes twice.
"""

import os
import select
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from sidecar.files.store import Mark, StateError


class Output(Protocol):
    """Write lines, and find out what of an earlier try got out."""

    def mark(self) -> Mark | None:
        """Return where the output stands, if that can be known."""

    def rest(self, mark: Mark | None, lines: Sequence[bytes], counted: int) -> Sequence[bytes]:
        """Return what is still to be written of lines that were to follow `mark`; `counted` were noted as written."""

    def write(self, line: bytes) -> None:
        """Write a line (its newline is part of it)."""

    def sync(self) -> None:
        """Make sure that what was written survives a power failure, where that is possible."""

    def close(self) -> None:
        """Close the output, if it is ours."""


class Descriptor:
    """Write to a file descriptor: standard output, be it a pipe, a terminal or a file.

    Args:
        fd: the descriptor.
        name: what to call it in errors.
        ours: close it at the end, and cut off what a crash left behind a recorded length.
    """

    def __init__(self, fd: int, name: str, ours: bool = False) -> None:
        self._fd = fd
        self._name = name
        self._ours = ours
        self._regular = stat.S_ISREG(os.fstat(fd).st_mode)

    def mark(self) -> Mark | None:
        if not self._regular:
            return None
        status = os.fstat(self._fd)
        return Mark(status.st_dev, status.st_ino, status.st_size)

    def rest(self, mark: Mark | None, lines: Sequence[bytes], counted: int) -> Sequence[bytes]:
        now = self.mark()
        if (
            mark is None
            or now is None
            or (now.device, now.inode) != (mark.device, mark.inode)
            or now.length < mark.length
        ):
            return lines[counted:]
        wanted = b"".join(lines)
        there = _read(self._fd, self._name, mark.length, now.length - mark.length)
        if there is None:
            return lines[counted:]
        same = _common(wanted, there)
        if same < len(there):
            if not self._ours:
                return lines[counted:]
            os.ftruncate(self._fd, mark.length + same)
        return [wanted[same:]] if same < len(wanted) else []

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                select.select((), (self._fd,), ())
            except BrokenPipeError:
                raise
            except OSError as error:
                raise self._failed(error) from None

    def sync(self) -> None:
        if self._regular:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise self._failed(error) from None

    def _failed(self, error: OSError) -> StateError:
        return StateError(
            f"cannot write to {self._name}: {error.strerror}. Nothing is lost: the watch writes the rest when it is"
            " started again"
        )

    def close(self) -> None:
        if self._ours:
            os.close(self._fd)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes at the beginning are the same."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(n for n in range(most) if one[n] != other[n])


def _read(fd: int, name: str, offset: int, size: int) -> bytes | None:
    """Read back from an output; one that is open for writing only is opened again by way of its descriptor."""
    for path in (None, f"/dev/fd/{fd}", name):
        try:
            again = os.dup(fd) if path is None else os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            return os.pread(again, size, offset)
        except OSError:
            continue
        finally:
            os.close(again)
    return None


class Text:
    """Write to a text stream without a file descriptor (for tests and embedding)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def mark(self) -> Mark | None:
        return None

    def rest(self, mark: Mark | None, lines: Sequence[bytes], counted: int) -> Sequence[bytes]:
        return lines[counted:]

    def write(self, line: bytes) -> None:
        self._stream.write(line.decode())
        self._stream.flush()

    def sync(self) -> None:
        return

    def close(self) -> None:
        return


def appended(path: Path) -> Output:
    """Open a file for appending.

    Raises:
        StateError: it cannot be opened.
    """
    try:
        return Descriptor(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), str(path), ours=True)
    except OSError as error:
        raise StateError(f"cannot open {path} for writing: {error.strerror}") from None


def standard(stream: TextIO) -> Output:
    """Write to standard output (or whatever text stream stands for it)."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return Text(stream)
    stream.flush()
    return Descriptor(fd, "standard output")
