"""The log of the permissions that a watch's guard gave: a file, to hold against what the logs say afterwards."""

import asyncio
import os
import stat
from pathlib import Path

from sidecar.files.outbox import locked
from sidecar.files.store import StateError


class DecisionFile:
    """Append every permission to a file before it is given (see `sidecar.engine.live.DecisionLog`).

    What is asked at the same time is written and synced together, outside of the event loop. The file may be renamed
    (rotated) or deleted meanwhile; it is then made anew.

    Args:
        path: the file; no other process may write to it.

    Raises:
        StateError: it cannot be opened, or another watch writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _opened(path)
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._working: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def key(self) -> tuple[int, int]:
        """Return the file's device and inode."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    async def write(self, session_id: str, value: bytes) -> None:
        """Write a permission down; it is on the disk when this returns.

        Args:
            session_id: whose it is; files have one order for all sessions.
            value: one line, without its end.

        Raises:
            OSError: it could not be written.
            RuntimeError: the log has been closed.
        """
        if self._closed:
            raise RuntimeError("the log of decisions is closed")
        if b"\n" in value:
            raise RuntimeError("a decision must be one line")
        written = asyncio.get_running_loop().create_future()
        self._pending.append((value + b"\n", written))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        await written

    async def close(self) -> None:
        """Write what is under way, and close the file."""
        self._closed = True
        if self._working is not None:
            await asyncio.wait((self._working,))
        os.close(self._fd)

    async def _work(self) -> None:
        while self._pending:
            group, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._append, b"".join(line for line, _ in group))
            except Exception as error:  # whatever it is, those who wait must hear that nothing was written
                failure = error if isinstance(error, OSError) else OSError(f"{self._path}: {error}")
                for _, written in group:
                    if not written.done():
                        written.set_exception(failure)
                continue
            for _, written in group:
                if not written.done():
                    written.set_result(None)

    def _append(self, data: bytes) -> None:
        self._renew()
        before = os.fstat(self._fd).st_size
        if before and os.pread(self._fd, 1, before - 1) != b"\n":
            data = b"\n" + data  # a crash cut the last line off; that permission was never given
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, before)
            raise

    def _renew(self) -> None:
        """Open the file again if its name no longer leads to it."""
        here = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            pass
        else:
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        fd = _opened(self._path)
        os.close(self._fd)
        self._fd = fd


def _opened(path: Path) -> int:
    fd = locked(path, 0o640)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateError(f"the decisions cannot be kept in {path}: it is no regular file")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # a file that is lost with its name after a power failure keeps nothing
    finally:
        os.close(folder)
    return fd
