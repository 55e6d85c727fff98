"""Follow JSONL files as they grow, through rotation, truncation, partial lines and restarts.

A file is known by device and inode, not by its name. What is read is whole lines; a last line without its newline
waits. The position of every file can be taken at any time and given back after a restart; the first bytes of a file,
and the last ones that were read, are kept with it, so that another file in its place (a truncated and rewritten one,
or a reused inode) is noticed.

- **Renamed and created anew**: the old file is read to its end first, and looked at for `GRACE` seconds more, for a
  writer that still has it open. After a restart it is looked for by its inode in the same folder.
- **Copied and truncated**: the rest is read from the copy, which is the file beside it that begins with the same
  bytes and is as long.
- **Deleted**: read to its end as long as it is open.
- **Moved to another disk, or restored**: known again, under its own name, by the bytes that were read.
- A last line that will never get its newline (the file was left behind) is given out as it is.

Where records may be gone that nobody has read, that is a *loss*: whoever follows must trust no session until it has
been looked at. Lost lines may be of any session, also of one that never was in that file.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from sidecar.files import pieces
from sidecar.files.jsonl import MAX_LINE, InputError, Line
from sidecar.files.paths import Listing, open_regular, shown, siblings
from sidecar.files.pieces import File, Position

GRACE = 5.0
"""How long, in seconds, a file that was rotated away or deleted is still looked at."""

OPEN_FILES = 256
"""How many files are kept open, unless the follower is told otherwise. One that is not is lost if it is deleted."""

ENOUGH = 10_000
"""Lines after which one poll is over, however many files there are."""

BUDGET = 64 * 1024 * 1024
"""Bytes after which one poll is over."""

LOOKS = 50_000
"""At how many names one poll looks for files that have been moved or copied; what is not found by then is lost."""


class Follower:
    """Read whole lines from files, and from the `*.jsonl` files of folders, as they are written.

    Args:
        paths: files (they may appear later) and folders.
        positions: where an earlier follower stood.
        limit: longest line in bytes.
        not_these: device and inode of files that are left out: what the watch itself writes.
        open_files: how many files may be kept open (default: `OPEN_FILES`), and as many that were left behind.

    Raises:
        InputError: a path is neither a file nor a folder.
    """

    def __init__(
        self,
        paths: Sequence[str],
        positions: Iterable[Position] = (),
        limit: int = MAX_LINE,
        not_these: Iterable[tuple[int, int]] = (),
        open_files: int | None = None,
    ) -> None:
        roots = [Path(path).absolute() for path in paths]
        self._listing = Listing(roots)
        self._names = {name for root in roots for name in (str(root), shown(str(root)))}
        self._not_these = set(not_these)
        self._limit = limit
        self._may_open = open_files if open_files is not None else OPEN_FILES
        self._open_now = 0
        self._files: dict[tuple[int, int], File] = {}
        self._notices: list[str] = []
        self._losses: list[str] = []
        self._moved = False
        self._now = 0.0
        self._looks = 10 * LOOKS
        for root in roots:
            if root.exists() and not root.is_file() and not root.is_dir():
                raise InputError(f"{shown(str(root))} is neither a file nor a folder")
        for position in positions:
            self._restore(position)

    def positions(self) -> list[Position]:
        """Return how far every file has been read."""
        return [replace(file.position, path=shown(file.position.path)) for file in self._files.values()]

    def notices(self) -> list[str]:
        """Return, once, what has happened to files that a person should know."""
        said, self._notices = [*self._listing.notices(), *self._notices], []
        return said

    def losses(self) -> list[str]:
        """Return, once, where records may be gone that have not been read."""
        said, self._losses = self._losses, []
        return said

    def moved(self) -> bool:
        """Tell, once, whether what is followed has changed although no line was read."""
        moved, self._moved = self._moved, False
        return moved

    def behind(self) -> int:
        """Return how many bytes are known and not read, half last lines left out; what is in the way counts one."""
        unread = (
            max(max(file.size, file.known) - file.position.offset - file.torn, int(file.unreadable))
            for file in self._files.values()
            if not file.position.unwatched
        )
        return len(self._listing.blocked) + sum(max(0, size) for size in unread)

    def leave_out(self, key: tuple[int, int]) -> None:
        """Never follow this file (device and inode): the watch itself writes it."""
        self._not_these.add(key)

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            self._close(file)

    def poll(self, now: float) -> list[Line]:
        """Look at every file once, and return the lines that have become whole (some of them, if they are many).

        Args:
            now: seconds, on the same clock at every call.
        """
        self._now, self._looks = now, LOOKS
        self._discover()
        lines: list[Line] = []
        budget = BUDGET
        # Those left behind come first, then those not read from for the longest time.
        for file in sorted(self._files.values(), key=lambda file: (file.left_at is None, file.looked)):
            if len(lines) >= ENOUGH or budget <= 0:
                break
            if file.waits_for is not None:
                if not file.waits_for.drained:
                    continue
                file.waits_for = None
            found, taken = self._read(file, budget)
            lines += found
            budget -= taken
            if self._open_now > 2 * self._may_open:
                self._bound_open_files()
        self._bound_open_files()
        return lines

    # --- which files there are -----------------------------------------------------------------------------------

    def _discover(self) -> None:
        seen: set[tuple[int, int]] = set()
        by_path = {file.position.path: file for file in self._files.values() if file.left_at is None}
        known = [Path(path) for path in by_path]
        for path, status in self._listing.files(known):
            key = (status.st_dev, status.st_ino)
            if key in seen or key in self._not_these:
                continue
            seen.add(key)
            file = self._files.get(key)
            if file is None:
                before = self._rotated(by_path.get(str(path)), path, seen)
                file = self._files[key] = File(Position(path=str(path), device=key[0], inode=key[1]))
                file.waits_for = before
                if self._open_now < self._may_open:
                    self._open(file)
            file.position.path = str(path)
            file.position.unwatched = False
            file.known = status.st_size
            file.left_at = None
            if status.st_size != file.size or status.st_ctime_ns != file.touched:
                file.drained = False
            file.touched = status.st_ctime_ns
        for key, file in self._files.items():
            if key in seen or file.left_at is not None:
                continue
            if not self._ours(file):
                self._unwatched(file)
            elif not self._hidden(file):
                file.left_at = self._now
                file.drained = False

    def _rotated(self, file: File | None, path: Path, seen: set[tuple[int, int]]) -> File | None:
        """Take note that a file no longer has this path: it has been rotated away, and is read to its end first."""
        if file is None or file.position.path != str(path) or file.key in seen or file.left_at is not None:
            return None
        file.left_at = self._now
        file.drained = False
        return file

    def _hidden(self, file: File) -> bool:
        """Tell whether a file is only out of sight: it is not known to be gone, and its position is kept."""
        path = Path(file.position.path)
        return not self._listing.blocked.isdisjoint((str(path), str(path.parent)))

    def _ours(self, file: File) -> bool:
        """Tell whether a file is of the paths that are watched now; positions of others are only kept."""
        path = Path(file.position.path)
        return file.fd is not None or not self._names.isdisjoint((str(path), str(path.parent)))

    def _unwatched(self, file: File) -> None:
        if not file.position.unwatched:
            file.position.unwatched = True
            self._lose(f"{shown(file.position.path)} is not among the paths that are watched any more")

    def _lose(self, what: str) -> None:
        self._notices.append(what)
        self._losses.append(what)

    def _open(self, file: File, search: bool = False) -> bool:
        """Open a file at its path or (`search`) wherever it is by now; False: it is gone, or cannot be opened.

        Where it is there and cannot be opened, it is `unreadable`.
        """
        if file.fd is not None:
            return True
        path = Path(file.position.path)
        for candidate in (path, *(self._beside(path) if search else ())):
            try:
                status = candidate.stat() if candidate in self._listing.roots else os.lstat(candidate)
                if (status.st_dev, status.st_ino) != file.key:
                    continue
                fd = self._listing.open(candidate)
            except FileNotFoundError:
                continue
            except OSError:
                if not file.unreadable:
                    file.unreadable = True
                    self._notices.append(f"{shown(str(candidate))} cannot be opened for reading")
                return False
            if fd is None:
                continue
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == file.key:
                self._attach(file, fd)
                return True
            os.close(fd)
        file.unreadable = False
        return False

    def _attach(self, file: File, fd: int) -> None:
        file.fd = fd
        file.unreadable = False
        self._open_now += 1

    def _close(self, file: File) -> None:
        if file.fd is not None:
            os.close(file.fd)
            file.fd = None
            self._open_now -= 1

    def _restore(self, position: Position) -> None:
        """Find a file again after a restart."""
        file = File(position)
        self._files[file.key] = file
        if self._ours(file) and not self._open(file, search=True) and not file.unreadable:
            self._go_on_in_copy(file)

    def _go_on_in_copy(self, file: File) -> None:
        """Go on in the file that has what this one had, now that this one is gone; without one there is a loss."""
        old = file.position
        self._forget(file)
        path = Path(old.path)
        for candidate in (path, *self._beside(path)):
            copy = self._copy(candidate, old, max(old.offset, file.size))
            if copy is None:
                continue
            if candidate != path:
                copy.left_at = self._now
            return
        self._lose(
            f"{shown(old.path)}: the file that had been read up to line {old.line} is gone; what was written to it"
            " after that, if anything, has not been read"
        )

    def _beside(self, path: Path) -> list[Path]:
        if self._looks <= 0:
            return []
        found = siblings(path)
        self._looks -= 1 + len(found)
        return found

    def _copy(self, path: Path, old: Position, size: int) -> File | None:
        """Return the file of that path, if it is a copy of what stood at `old`, and follow it; None: it is none."""
        try:
            fd = self._listing.open(path) if path in self._listing.roots else open_regular(path)
        except OSError:
            return None
        if fd is None:
            return None
        position = pieces.copied(path, old, size, fd)
        if position is None or (position.device, position.inode) == (old.device, old.inode):
            os.close(fd)
            return None
        followed = self._files.get((position.device, position.inode))
        if followed is not None:  # it is read as a whole, under its own name
            os.close(fd)
            return followed
        copy = File(position)
        self._files[copy.key] = copy
        self._attach(copy, fd)
        return copy

    def _forget(self, file: File) -> None:
        self._close(file)
        file.drained = True  # for one that waits for it
        del self._files[file.key]
        self._moved = True

    def _bound_open_files(self) -> None:
        opened = [file for file in self._files.values() if file.fd is not None]
        live = [file for file in opened if file.left_at is None]
        for file in sorted(live, key=lambda file: file.looked)[: max(0, len(live) - self._may_open)]:
            self._close(file)
        left = [file for file in opened if file.left_at is not None]
        for file in left[: max(0, len(left) - self._may_open)]:
            file.left_at = float("-inf")  # those left behind first have been looked at for long enough

    # --- what is in them -----------------------------------------------------------------------------------------

    def _read(self, file: File, budget: int) -> tuple[list[Line], int]:
        """Return the next lines of a file, and how many bytes were read for them."""
        if (file.left_at is None and file.drained) or not self._ours(file):
            self._say_torn(file)
            return [], 0
        if file.fd is None and self._open_now > 3 * self._may_open + 8:
            return [], 0  # the next poll has room again: those left behind are let go first
        if not self._open(file, search=file.left_at is not None) or file.fd is None:
            if file.left_at is not None and not file.unreadable:
                self._go_on_in_copy(file)
            return [], 0
        size = os.fstat(file.fd).st_size
        if not self._same(file, size):
            self._truncated(file)
            if file.waits_for is not None:
                return [], 0
        position = file.position
        lines: list[Line] = []
        taken = 0
        before = position.offset
        if size > before and (size != file.size or not file.drained):
            piece = pieces.read(file.fd, position, size, self._limit, budget)
            lines, taken, file.torn = piece.lines, piece.bytes, piece.torn
            file.looked = self._now
        self._say_torn(file)
        grown = size != file.size
        file.size = size
        file.drained = position.offset == before
        if file.left_at is not None:
            if grown:
                file.left_at = max(file.left_at, self._now)
            elif file.drained and self._now - file.left_at >= GRACE:
                lines += pieces.last(file.fd, position, self._limit)
                self._forget(file)
        return lines, taken

    def _say_torn(self, file: File) -> None:
        if (torn := file.waits_torn(self._now, GRACE)) is not None:
            self._notices.append(torn)

    def _same(self, file: File, size: int) -> bool:
        """Tell whether what was read is still there."""
        if size == file.size and file.drained:
            return True
        if size < file.position.offset:
            return False
        return file.fd is None or not file.position.offset or file.position.matches(file.fd, size)

    def _truncated(self, file: File) -> None:
        """Begin a file anew; what was not read of the old content is in a copy, or lost."""
        old, had = file.position, file.size
        file.position = Position(path=old.path, device=old.device, inode=old.inode)
        file.size, file.drained, file.torn = -1, False, 0
        for path in self._beside(Path(old.path)):
            copy = self._copy(path, old, max(old.offset, had))
            if copy is None:
                continue
            self._notices.append(
                f"{shown(old.path)} was truncated; going on in its copy {shown(str(path))} from line {old.line + 1}"
            )
            if copy.known < 0:  # not followed under its own name
                copy.left_at = self._now
            if copy.waits_for is None:  # two never wait for each other
                file.waits_for = copy
            return
        self._lose(
            f"{shown(old.path)} was truncated or written over after line {old.line} had been read, and there is no"
            " copy of it: what was written between the last look and that is lost"
        )
