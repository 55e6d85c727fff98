"""Follow JSONL files as they grow, through rotation, truncation, partial lines and restarts.

A file is known by device and inode, not by its name. What is read is whole lines; a last line without its newline
waits. The position of every file can be taken at any time and given back after a restart; the first bytes of a file
are kept with it, so that another file in its place (a truncated and rewritten one, or a reused inode) is noticed.

- **Renamed and created anew**: the old file is read to its end first, and looked at for `GRACE` seconds more, for a
  writer that still has it open. After a restart it is looked for by its inode in the same folder.
- **Copied and truncated**: the rest is read from the copy, which is the file beside it that begins with the same
  bytes. Without one, what was written after the last look is lost, and that is said.
- **Deleted**: read to its end as long as it is open.
- A last line that will never get its newline (the file was left behind) is given out as it is.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sidecar.files.jsonl import BOM, KEPT, MAX_LINE, InputError, Line, too_long, usable

CHUNK = 1024 * 1024
HEAD = 256
"""How many of a file's first bytes are kept to know it again."""

GRACE = 5.0
"""How long, in seconds, a file that was rotated away or deleted is still looked at."""

OPEN_FILES = 256
ENOUGH = 10_000
"""Lines after which one poll is over, however many files there are."""

PATTERN = "*.jsonl"


class Position(Struct, kw_only=True):
    """Say how far a file has been read.

    `offset` is where the next unread line begins and `line` the number of the last one read; while a line that is too
    long is passed over, `skipped` bytes of it are behind `offset` already, and `kept` is its beginning.
    """

    path: str
    device: int
    inode: int
    offset: int = 0
    line: int = 0
    head: bytes = b""
    skipped: int = 0
    kept: bytes = b""


class _File:
    """Hold a followed file: its position, and what is known of it now."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.fd: int | None = None
        self.size = -1
        self.known = -1
        self.torn = 0
        self.torn_since: tuple[int, float] | None = None
        self.left_at: float | None = None
        self.waits_for: _File | None = None
        self.drained = False
        self.looked = 0.0
        self.unreadable = False

    @property
    def key(self) -> tuple[int, int]:
        return self.position.device, self.position.inode

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Follower:
    """Read whole lines from files, and from the `*.jsonl` files of folders, as they are written.

    Args:
        paths: files (they may appear later) and folders.
        positions: where an earlier follower stood.
        limit: longest line in bytes.
        not_these: device and inode of files that are left out: what the watch itself writes.

    Raises:
        InputError: a path is neither a file nor a folder.
    """

    def __init__(
        self,
        paths: Sequence[str],
        positions: Iterable[Position] = (),
        limit: int = MAX_LINE,
        not_these: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._not_these = frozenset(not_these)
        self._roots = [Path(path).absolute() for path in paths]
        self._limit = limit
        self._files: dict[tuple[int, int], _File] = {}
        self._notices: list[str] = []
        self._now = 0.0
        self._led: set[str] = set()
        self._blocked: set[str] = set()
        self._said: set[str] = set()
        for root in self._roots:
            if root.exists() and not root.is_file() and not root.is_dir():
                raise InputError(f"{root} is neither a file nor a folder")
        for position in positions:
            self._restore(position)

    def positions(self) -> list[Position]:
        """Return how far every file has been read."""
        return [replace(file.position, path=shown(file.position.path)) for file in self._files.values()]

    def notices(self) -> list[str]:
        """Return, once, what has happened to files that a person should know."""
        said, self._notices = self._notices, []
        return said

    def behind(self) -> int:
        """Return how many bytes are known and not read, half last lines left out; a hidden path counts one."""
        unread = (max(file.size, file.known) - file.position.offset - file.torn for file in self._files.values())
        return len(self._blocked) + sum(max(0, size) for size in unread)

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def poll(self, now: float) -> list[Line]:
        """Look at every file once, and return the lines that have become whole (some of them, if they are many).

        Args:
            now: seconds, on the same clock at every call.
        """
        self._now = now
        self._discover()
        lines: list[Line] = []
        # Those left behind come first, then those not read from for the longest time.
        for file in sorted(self._files.values(), key=lambda file: (file.left_at is None, file.looked)):
            if len(lines) >= ENOUGH:
                break
            if file.waits_for is not None:
                if not file.waits_for.drained:
                    continue
                file.waits_for = None
            lines += self._read(file)
        self._bound_open_files()
        return lines

    # --- which files there are -----------------------------------------------------------------------------------

    def _discover(self) -> None:
        seen: set[tuple[int, int]] = set()
        for path, status in self._candidates():
            key = (status.st_dev, status.st_ino)
            if key in seen or key in self._not_these:
                continue
            seen.add(key)
            file = self._files.get(key)
            if file is None:
                before = self._at(path, seen)
                file = self._files[key] = _File(Position(path=str(path), device=key[0], inode=key[1]))
                file.waits_for = before
                self._open(file)
            file.position.path = str(path)
            file.known = status.st_size
            file.left_at = None
            if status.st_size != file.size:
                file.drained = False
        for key, file in self._files.items():
            if key not in seen and file.left_at is None and self._ours(file) and not self._hidden(file):
                file.left_at = self._now
                file.drained = False

    def _candidates(self) -> Iterator[tuple[Path, os.stat_result]]:
        self._blocked = set()
        for root in self._roots:
            status = self._stat(root)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                if stat.S_ISREG(status.st_mode):
                    yield root, status
                continue
            try:
                names = sorted(name for name in os.listdir(root) if fnmatchcase(name, PATTERN))  # noqa: PTH208
            except OSError as error:
                self._trouble(root, error, blocks=True)
                continue
            self._said.discard(str(root))
            for name in names:
                status = self._stat(root / name)
                if status is not None and stat.S_ISREG(status.st_mode):
                    yield root / name, status

    def _stat(self, path: Path) -> os.stat_result | None:
        """Look at a path; None: it is not there, or (said once) it cannot be looked at."""
        try:
            status = path.stat()
        except OSError as error:
            if os.path.lexists(path) or not isinstance(error, FileNotFoundError):
                # A link that never led anywhere holds no records, and must not hold up the guard for ever.
                self._trouble(path, error, blocks=isinstance(error, PermissionError) or str(path) in self._led)
            return None
        self._led.add(str(path))
        if not stat.S_ISDIR(status.st_mode):
            self._said.discard(str(path))
        return status

    def _trouble(self, path: Path, error: OSError, *, blocks: bool) -> None:
        if blocks:
            self._blocked.add(str(path))
        if str(path) not in self._said:
            self._said.add(str(path))
            self._notices.append(f"{shown(str(path))} cannot be looked at: {error.strerror}")

    def _hidden(self, file: _File) -> bool:
        """Tell whether a file is only out of sight: it is not known to be gone, and its position is kept."""
        path = Path(file.position.path)
        return not self._blocked.isdisjoint((str(path), str(path.parent)))

    def _ours(self, file: _File) -> bool:
        """Tell whether a file is of the paths that are watched now; positions of others are only kept."""
        path = Path(file.position.path)
        return file.fd is not None or any(root in (path, path.parent) for root in self._roots)

    def _at(self, path: Path, seen: set[tuple[int, int]]) -> _File | None:
        """Return the file that had this path until now; it has been rotated away, and is read to its end first."""
        for key, file in self._files.items():
            if file.position.path == str(path) and key not in seen and file.left_at is None:
                file.left_at = self._now
                file.drained = False
                return file
        return None

    def _open(self, file: _File, search: bool = False) -> bool:
        """Open a file at its path or (`search`) wherever it is by now; False: it is gone, or not ours to read."""
        if file.fd is not None:
            return True
        path = Path(file.position.path)
        for candidate in (path, *(_siblings(path) if search else ())):
            try:
                fd = os.open(candidate, os.O_RDONLY)
            except OSError:
                continue
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == file.key:
                file.fd = fd
                return True
            os.close(fd)
        return False

    def _restore(self, position: Position) -> None:
        """Find a file again after a restart."""
        file = _File(position)
        self._files[file.key] = file
        if not self._ours(file):
            return
        if not self._open(file, search=True):
            self._forget(file)

    def _forget(self, file: _File) -> None:
        del self._files[file.key]
        self._notices.append(
            f"{shown(file.position.path)}: the file that had been read up to line {file.position.line} is gone;"
            " what was written to it after that, if anything, has not been read"
        )

    def _bound_open_files(self) -> None:
        opened = [file for file in self._files.values() if file.fd is not None and file.left_at is None]
        for file in sorted(opened, key=lambda file: file.looked)[: max(0, len(opened) - OPEN_FILES)]:
            file.close()

    # --- what is in them -----------------------------------------------------------------------------------------

    def _read(self, file: _File) -> list[Line]:
        position = file.position
        if (file.left_at is None and file.drained) or not self._ours(file):
            self._say_torn(file)
            return []
        if not self._open(file, search=file.left_at is not None) or file.fd is None:
            if file.left_at is not None:
                self._forget(file)
            elif not file.unreadable:
                file.unreadable = True
                self._notices.append(f"{shown(position.path)} cannot be opened for reading")
            return []
        file.unreadable = False
        size = os.fstat(file.fd).st_size
        if not self._same(file, size):
            self._truncated(file)
            if file.waits_for is not None:
                return []
        position = file.position
        lines: list[Line] = []
        before = position.offset
        if size > before and (size != file.size or not file.drained):
            lines = self._lines(file, file.fd)
            while position.skipped and position.offset < size:  # a line too long is passed over in one go
                lines = self._lines(file, file.fd)
            file.looked = self._now
        self._say_torn(file)
        grown = size != file.size
        file.size = size
        file.drained = position.offset == before
        if file.left_at is not None:
            if grown:
                file.left_at = max(file.left_at, self._now)
            elif file.drained and self._now - file.left_at >= GRACE:
                lines += self._leave(file, file.fd)
        return lines

    def _say_torn(self, file: _File) -> None:
        """Say once that a last line has been waiting for its newline."""
        offset = file.position.offset
        if not file.torn:
            file.torn_since = None
        elif file.torn_since is None or file.torn_since[0] != offset:
            file.torn_since = (offset, self._now)
        elif self._now - file.torn_since[1] >= GRACE:
            file.torn_since = (offset, float("inf"))
            self._notices.append(f"a half line waits in {shown(file.position.path)} at byte {offset}")

    def _same(self, file: _File, size: int) -> bool:
        """Tell whether what was read is still there: the file is as long, and begins with the same bytes."""
        position = file.position
        if size == file.size and file.drained:
            return True
        if size < position.offset:
            return False
        fd = file.fd
        if fd is None or not position.offset:
            return True
        if os.pread(fd, len(position.head), 0) != position.head:
            return False
        return bool(position.skipped) or os.pread(fd, 1, position.offset - 1) == b"\n"

    def _truncated(self, file: _File) -> None:
        """Begin a file anew; what was not read of the old content is in a copy, or lost."""
        old = file.position
        file.position = Position(path=old.path, device=old.device, inode=old.inode)
        file.size, file.drained, file.torn = -1, False, 0
        for path in _siblings(Path(old.path)):
            copy = _copy_of(path, old)
            if copy is None or copy.key in self._files:
                continue
            self._notices.append(
                f"{shown(old.path)} was truncated; going on in its copy {shown(str(path))} from line {old.line + 1}"
            )
            copy.left_at = self._now
            self._files[copy.key] = copy
            file.waits_for = copy
            return
        self._notices.append(
            f"{shown(old.path)} was truncated after line {old.line} had been read, and there is no copy of it:"
            " what was written between the last look and the truncation is lost"
        )

    def _lines(self, file: _File, fd: int) -> list[Line]:
        """Take the whole lines of the next piece of a file."""
        position = file.position
        data = os.pread(fd, CHUNK, position.offset)
        file.torn = 0
        if position.skipped:
            return self._skip(file, data)
        whole = len(data) < CHUNK
        end = data.rfind(b"\n") + 1
        if not end and len(data) == CHUNK:
            data = os.pread(fd, self._limit + 2, position.offset)
            end = data.find(b"\n") + 1
            if not end and len(data) > self._limit:
                position.kept = data[:KEPT]
                return self._skip(file, data)
            whole = not end
        if whole:
            file.torn = len(data) - end
        lines: list[Line] = []
        name = shown(position.path)
        for raw in data[:end].split(b"\n")[:-1]:
            self._take(file, name, raw, lines)
        self._advance(position, data[:end])
        return lines

    def _take(self, file: _File, name: str, raw: bytes, lines: list[Line]) -> None:
        position = file.position
        position.line += 1
        if position.line == 1 and raw.startswith(BOM):
            raw = raw[len(BOM) :]
        raw = raw.rstrip(b"\r\n")
        if len(raw) > self._limit:
            lines.append(too_long(name, position.line, raw, len(raw), self._limit))
        elif (line := usable(name, position.line, raw)) is not None:
            lines.append(line)

    def _skip(self, file: _File, data: bytes) -> list[Line]:
        """Pass over (more of) a line that is too long."""
        position = file.position
        end = data.find(b"\n")
        taken = data if end < 0 else data[: end + 1]
        position.skipped += len(taken.rstrip(b"\r\n"))
        self._advance(position, taken)
        if end < 0:
            return []
        position.line += 1
        line = too_long(shown(position.path), position.line, position.kept, position.skipped, self._limit)
        position.skipped, position.kept = 0, b""
        return [line]

    def _advance(self, position: Position, taken: bytes) -> None:
        if len(position.head) < HEAD:
            position.head += taken[: HEAD - len(position.head)]
        position.offset += len(taken)

    def _leave(self, file: _File, fd: int) -> list[Line]:
        """Let go of a file that nobody writes to any more; a last line without newline is a line now."""
        position, lines = file.position, list[Line]()
        if position.skipped:
            lines.append(
                too_long(shown(position.path), position.line + 1, position.kept, position.skipped, self._limit)
            )
        elif rest := os.pread(fd, self._limit + 1, position.offset):
            self._take(file, shown(position.path), rest, lines)
        file.close()
        del self._files[file.key]
        return lines


def shown(path: str) -> str:
    """Return a file's name as text that can be written out: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _siblings(path: Path) -> list[Path]:
    """Return the files that a rotation may have made of a file: `name.1`, `name-20260101`, `name.old.jsonl`, …"""
    try:
        return sorted(
            other for other in path.parent.iterdir() if other != path and shown(other.name).startswith(shown(path.stem))
        )
    except OSError:
        return []


def _copy_of(path: Path, old: Position) -> _File | None:
    """Open a file as the copy of another one, if it begins with the same bytes and is at least as long."""
    if not old.head:
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    status = os.fstat(fd)
    if (
        stat.S_ISREG(status.st_mode)
        and status.st_size >= old.offset
        and (status.st_dev, status.st_ino) != (old.device, old.inode)
        and os.pread(fd, len(old.head), 0) == old.head
    ):
        file = _File(
            Position(
                path=str(path),
                device=status.st_dev,
                inode=status.st_ino,
                offset=old.offset,
                line=old.line,
                head=old.head,
                skipped=old.skipped,
                kept=old.kept,
            )
        )
        file.fd = fd
        return file
    os.close(fd)
    return None
