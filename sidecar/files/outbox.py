"""Where a watch writes to, in such a way that a restart knows what got out.

A *file* output can be looked at after a crash: what is behind its recorded length is compared with what was to be
written, and only the rest is added, so that every line is in it exactly once. What somebody else added behind that
length stays. A *stream* (a pipe, a terminal) cannot: there the count of written lines is kept beside the state after
each line, so that none is missing, and at most the one line that was being written when the process was killed comes
twice.
"""

import fcntl
import os
import select
import stat
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TextIO

import structlog

from sidecar.files.paths import siblings
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

    def renew(self) -> bool:
        """Open the output again where its name leads elsewhere by now; tell whether what was written is gone."""

    def close(self) -> None:
        """Close the output, if it is ours."""


class Patience:
    """Say until when (`time.monotonic`) an output may wait for whoever reads it; for ever, until somebody says so."""

    until = float("inf")


class Descriptor:
    """Write to a file descriptor: standard output, be it a pipe, a terminal or a file.

    Args:
        fd: the descriptor.
        name: what to call it in errors.
        ours: close it at the end, and cut off the zeros that a power failure left behind a recorded length.
        patience: how long to wait for the reader of a pipe or a terminal.
    """

    def __init__(self, fd: int, name: str, ours: bool = False, patience: Patience | None = None) -> None:
        self._fd = fd
        self._name = name
        self._ours = ours
        self._patience = patience or Patience()
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
        if self._ours and same < len(there) and not there[same:].strip(b"\0"):
            # a length that got to the disk without its data: no line holds zeros, so nobody's line is lost
            os.ftruncate(self._fd, mark.length + same)
            there = there[:same]
        if same in (len(wanted), len(there)):
            return [wanted[same:]] if same < len(wanted) else []
        return self._among_others(lines, there)

    def _among_others(self, lines: Sequence[bytes], there: bytes) -> Sequence[bytes]:
        """Return which lines are missing in what we and somebody else wrote; what is there stays as it is."""
        structlog.get_logger("sidecar.watch").warning(
            "something else wrote to an output; all of it is kept, and the lines that are missing are added",
            output=self._name,
        )
        found = Counter(line + b"\n" for line in there.split(b"\n")[:-1])
        missing = []
        for line in lines:
            if found[line]:
                found[line] -= 1
            else:
                missing.append(line)
        if missing and not there.endswith(b"\n"):
            missing[0] = b"\n" + missing[0]
        return missing

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        # Of a stream never more than it takes at once, when it is ready: a write that waits cannot be ended.
        most = len(line) if self._regular else select.PIPE_BUF
        while left:
            try:
                if not self._regular:
                    self._wait()
                left = left[os.write(self._fd, left[:most]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise
            except OSError as error:
                raise self._failed(error) from None

    def _wait(self) -> None:
        """Wait until a stream takes something, or there is no more time for it."""
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        while not ready.poll(100):
            if time.monotonic() >= self._patience.until:
                raise StateError(
                    f"{self._name} is not read, and the watch has to end. Nothing is lost: it writes the rest when it"
                    " is started again"
                )

    def sync(self) -> None:
        if self._regular:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise self._failed(error) from None

    def renew(self) -> bool:
        return False

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

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        return


class Appended(Descriptor):
    """Append to a file of ours; it may be renamed or deleted meanwhile, and is then made anew.

    Raises:
        StateError: it cannot be opened, or another watch writes to it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(locked(path), str(path), ours=True)
        self._path = path

    def rest(self, mark: Mark | None, lines: Sequence[bytes], counted: int) -> Sequence[bytes]:
        now = self.mark()
        if mark is not None and now is not None and (now.device, now.inode) != (mark.device, mark.inode):
            return lines[counted:] if self._renamed(mark) else lines
        return super().rest(mark, lines, counted)

    def renew(self) -> bool:
        here = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except OSError:
            there = None
        if not self._regular or (there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)):
            return False
        fd = locked(self._path)
        os.close(self._fd)
        self._fd, self._regular = fd, stat.S_ISREG(os.fstat(fd).st_mode)
        return here.st_nlink == 0

    def _renamed(self, mark: Mark) -> bool:
        """Tell whether the file that was written to is still there, under another name beside its own."""
        for path in siblings(self._path):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) == (mark.device, mark.inode):
                return True
        return False


def appended(path: Path) -> Output:
    """Open a file for appending, and keep other watches from it until it is closed.

    Raises:
        StateError: it cannot be opened, or another watch writes to it.
    """
    return Appended(path)


def locked(path: Path, mode: int = 0o644) -> int:
    """Open a file for reading and appending, and keep other watches from it; return the descriptor.

    Raises:
        StateError: it cannot be opened, or another watch writes to it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    except OSError as error:
        raise StateError(f"cannot open {path} for writing: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise StateError(f"another watch writes to {path}; give each its own") from None
        except OSError:
            pass  # a file system without locks: what others write is kept all the same
    return fd


def apart(outputs: Mapping[str, Path]) -> None:
    """Make sure that no two outputs are the same file, by whatever names.

    Args:
        outputs: what each is called in errors, and its path, which need not exist.

    Raises:
        StateError: two are the same.
    """
    seen: dict[object, str] = {}
    for name, path in outputs.items():
        try:
            status = path.stat()
        except OSError:
            key: object = os.path.realpath(path)
        else:
            if not stat.S_ISREG(status.st_mode):
                continue  # lines of several kinds may share a pipe, a terminal or /dev/null
            key = (status.st_dev, status.st_ino)
        if key in seen:
            raise StateError(f"{seen[key]} and {name} are the same file, {path}; give each its own")
        seen[key] = name


def standard(stream: TextIO, patience: Patience | None = None) -> Output:
    """Write to standard output (or whatever text stream stands for it)."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return Text(stream)
    stream.flush()
    return Descriptor(fd, "standard output", patience=patience)


def leave_quietly(stdout: TextIO) -> None:
    """Keep the interpreter from complaining at its end that the rest could not be written."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    except (OSError, ValueError):
        return
