"""Append records to a JSONL file, which `sidecar watch` follows.

Several emitters, also of several processes, may write to one file: each appends whole lines while it holds the file's
lock (`flock`). A writer that was killed in the middle of a line leaves the lock free and the line torn; whoever comes
next cuts it off, for it was never a line, and its own emitter writes it again from its journal. So everybody who writes
to the file must hold the lock.

A session has one writer. Two journals know nothing of each other, and a file may have two names (a link), so each
emitter also holds a lock on the file itself that is its session's, for as long as it has the file open: one byte, far
behind the end, chosen by the session's id.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sidecar.client.errors import EmitterError, JournalInUse
from sidecar.client.journal import Entry
from sidecar.client.worker import Worker
from sidecar.protocol.decode import Unreadable, decode

LIMIT = 8 << 20
"""Longest record in bytes; `sidecar watch` takes lines that are twice as long."""

_BEGINNING = b'{"kind":"'

_PIECE = 1 << 20

_CLOSING = 1.0
_FAR = 1 << 62
_LOCK = struct.Struct("hhqqi4x")
"""Of Linux: type, whence, start, length, process (0, as the lock belongs to the open file)."""


class FileSink:
    """Append to a file, which is made when there is none.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).expanduser().absolute()
        self._session_id = ""
        self._fd = -1
        self._worker = Worker("sidecar-file")
        _OPEN.add(self)

    @property
    def path(self) -> Path:
        """Return the file."""
        return self._path

    @property
    def limit(self) -> int:
        """Return how many bytes a record may have."""
        return LIMIT

    @property
    def near(self) -> bool:
        """Tell that the file is read at every start."""
        return True

    async def open(self, session_id: str, within: float) -> None:
        """Make the file ready; a line that a crash has torn is cut off."""
        self._session_id = session_id
        if self._fd < 0:
            await self._worker.submit(self._append, b"")

    async def newest(self) -> int:
        """Return the highest `seq` of the session in the file."""
        return await self._worker.submit(self._newest)

    async def deliver(self, entries: Sequence[Entry]) -> None:
        """Append records, one line each, and fsync."""
        await self._worker.submit(self._append, b"".join(entry.raw + b"\n" for entry in entries))

    async def reset(self) -> None:
        """Close the file."""
        await self._worker.submit(self._close)

    async def explain(self) -> str:
        """Say nothing: an error of a file is not waited for."""
        return ""

    async def close(self) -> None:
        """Close the file."""
        closing = self._worker.submit(self._close)
        self._worker.stop()
        # Not waited for without end: the thread may be waiting for a lock that somebody else holds.
        await asyncio.wait((closing,), timeout=_CLOSING)

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                _let_go(self._fd, self._session_id)  # for closing alone does not unlock what a fork still has open
            os.close(self._fd)
            self._fd = -1

    def _forked(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # else the lock would live as long as the child; it stays the parent's
            self._fd = -1

    def _append(self, lines: bytes) -> None:
        fd = self._locked()
        try:
            size = _repaired(fd, self._path)
            try:
                rest = memoryview(lines)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            except OSError:
                os.ftruncate(fd, size)  # no half of it
                raise
            if lines:
                os.fsync(fd)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _locked(self) -> int:
        """Return the file that has the path now, locked; it may have been rotated away."""
        while True:
            if self._fd < 0:
                self._fd = _open(self._path)
                try:
                    _hold(self._fd, self._path, self._session_id)
                except BaseException:
                    self._close()
                    raise
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            mine = os.fstat(self._fd)
            try:
                there = self._path.stat()
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return self._fd
            self._close()

    def _newest(self) -> int:
        newest, mine = 0, self._session_id.encode()
        with self._path.open("rb") as file:
            for line in file:
                if mine not in line and b"\\" not in line:
                    continue
                try:
                    record, _ = decode(line)
                    session, seq = record.session_id, record.seq
                except Unreadable as error:
                    session, seq = error.session_id or "", error.seq
                if session == self._session_id and seq is not None:
                    newest = max(newest, seq)
        return newest


def _hold(fd: int, path: Path, session_id: str) -> None:
    """Lock a session in a file, whatever name it was opened by, until it is let go.

    Raises:
        JournalInUse: another emitter has locked it.
    """
    try:
        _lock(fd, session_id, fcntl.F_WRLCK)
    except (BlockingIOError, PermissionError):
        raise JournalInUse(
            path,
            f"another emitter writes the session {session_id!r} to this file, by this name or another (a link). A"
            " session has one writer: close the other one, or use it",
        ) from None


def _let_go(fd: int, session_id: str) -> None:
    _lock(fd, session_id, fcntl.F_UNLCK)


def _lock(fd: int, session_id: str, how: int) -> None:
    byte = _FAR + int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:7])
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(how, os.SEEK_SET, byte, 1, 0))
    else:  # sees other processes only
        fcntl.lockf(fd, fcntl.LOCK_UN if how == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a file that can be appended to")
    return fd


def _repaired(fd: int, path: Path) -> int:
    """Cut off what is behind the last line, and return the file's size; only the holder of the lock may call this."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return size
    begin, tail = size, b""
    while begin and b"\n" not in tail:
        piece = min(_PIECE, begin)
        begin -= piece
        tail = os.pread(fd, piece, begin) + tail
    line = tail[tail.rfind(b"\n") + 1 :]
    if _whole(line):  # by somebody who writes no newline at the end, or it is all that was missing
        os.write(fd, b"\n")
        return size + 1
    if not _BEGINNING.startswith(line[: len(_BEGINNING)]):
        raise EmitterError(
            f"{path} ends with {len(line)} bytes that are no line, and no beginning of a record of an emitter. It is"
            " left as it is: end the line, cut it off, or name another file"
        )
    os.ftruncate(fd, size - len(line))
    return size - len(line)


def _whole(line: bytes) -> bool:
    """Tell whether a line is a JSON object; the beginning of one never is."""
    try:
        return type(msgspec.json.decode(line)) is dict
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False


_OPEN: "weakref.WeakSet[FileSink]" = weakref.WeakSet()


def _after_fork() -> None:
    for sink in list(_OPEN):
        with contextlib.suppress(OSError):
            sink._forked()


os.register_at_fork(after_in_child=_after_fork)
