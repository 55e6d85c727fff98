"""Which files there are to follow: regular files under their own names, and nothing that a link leads to elsewhere.

Whoever may write to a watched folder must not be able to make the watch read what only the watch may read, wait for
somebody (a pipe), or look at names without end. So a link is followed only if it stays in its folder; a path named on
the command line may itself be a link if this process's user or root made it. Files are opened without following
links and without waiting, and looked at once more when they are open.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

PATTERN = "*.jsonl"

FILES = 10_000
"""How many files of one folder are followed."""

ENTRIES = 100_000
"""How many names of one folder are looked at."""


class Listing:
    """List the regular files of the watched paths, and say what is in the way.

    `blocked` are the paths that may hold records and cannot be looked at (or, of a folder, not all of it).

    Args:
        paths: files and folders, absolute.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.roots = paths
        self.blocked: set[str] = set()
        self._notices: list[str] = []
        self._said: set[str] = set()
        self._troubled: set[str] = set()
        self._led: set[str] = set()
        self._leading: set[str] = set()

    def notices(self) -> list[str]:
        """Return, once, what is in the way and has not been said before."""
        said, self._notices = self._notices, []
        return said

    def files(self, known: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the regular files there are now.

        Args:
            known: files that are followed already; they come first where a folder has too many.
        """
        self.blocked, self._troubled, self._leading = set(), set(), set()
        for root in self.roots:
            found = self._look(root)
            if found is None:
                continue
            if not stat.S_ISDIR(found[1].st_mode):
                if stat.S_ISREG(found[1].st_mode):
                    yield found
                continue
            for name in self._names(root, known):
                entry = self._look(root / name)
                if entry is None:
                    continue
                if stat.S_ISREG(entry[1].st_mode):
                    yield entry
                else:
                    self._trouble(entry[0], "is no regular file, and is not followed")
        # What is no trouble any more may be one again; so the sets cannot grow with names that come and go.
        self._said &= self._troubled
        self._led = self._leading

    def open(self, path: Path) -> int | None:
        """Open a regular file for reading; None: there is none of that name.

        Raises:
            OSError: it is there and cannot be opened.
        """
        return open_regular(Path(os.path.realpath(path)) if path in self.roots else path)

    def _names(self, root: Path, known: Iterable[Path]) -> list[str]:
        names: list[str] = []
        entries = 0
        try:
            with os.scandir(root) as listed:
                for entry in listed:
                    entries += 1
                    if entries > ENTRIES:
                        break
                    if fnmatchcase(entry.name, PATTERN):
                        names.append(entry.name)
        except OSError as error:
            self._trouble(root, f"cannot be looked at: {error.strerror}", blocks=True)
            return []
        names.sort()
        if entries > ENTRIES or len(names) > FILES:
            first = [path.name for path in known if path.parent == root]
            names = list(dict.fromkeys((*first, *names)))[: max(FILES, len(first))]
            self._trouble(
                root,
                f"holds more than {FILES:,} files to follow, or {ENTRIES:,} names; not all are followed, and the guard"
                " permits nothing. Move what is finished elsewhere",
                blocks=True,
            )
        return names

    def _look(self, path: Path) -> tuple[Path, os.stat_result] | None:
        """Look at a path; None: it is not there, or (said once) it cannot be looked at, or must not be followed."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._trouble(path, f"cannot be looked at: {error.strerror}", blocks=isinstance(error, PermissionError))
            return None
        if not stat.S_ISLNK(status.st_mode):
            return path, status
        named = path in self.roots
        try:
            target = Path(os.path.realpath(path, strict=True))
            there = os.lstat(target)
        except OSError as error:
            # A link that never led anywhere holds no records, and must not hold up the guard for ever.
            blocks = isinstance(error, PermissionError) or str(path) in self._led
            self._trouble(path, f"cannot be looked at: {error.strerror}", blocks=blocks)
            if str(path) in self._led:
                self._leading.add(str(path))
            return None
        self._leading.add(str(path))
        trusted = named and status.st_uid in (0, os.geteuid())
        if not trusted and target.parent != Path(os.path.realpath(path.parent)):
            self._trouble(path, "is a link out of its folder, and is not followed")
            return None
        return path if named else path.parent / target.name, there

    def _trouble(self, path: Path, what: str, *, blocks: bool = False) -> None:
        self._troubled.add(str(path))
        if blocks:
            self.blocked.add(str(path))
        if str(path) not in self._said:
            self._said.add(str(path))
            self._notices.append(f"{shown(str(path))} {what}")


def open_regular(path: Path) -> int | None:
    """Open a regular file for reading, and nothing else; None: there is none of that name.

    Raises:
        OSError: it is there and cannot be opened.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None  # opening a device or a pipe can already do something
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def siblings(path: Path) -> list[Path]:
    """Return the files that a rotation may have made of a file: `name.1`, `name-20260101`, `name.old.jsonl`, …"""
    stem = shown(path.stem)
    found: list[Path] = []
    try:
        with os.scandir(path.parent) as listed:
            for entries, entry in enumerate(listed):
                if entries == ENTRIES or len(found) == FILES:
                    break
                if entry.name != path.name and shown(entry.name).startswith(stem):
                    found.append(path.parent / entry.name)
    except OSError:
        return []
    return sorted(found)


def shown(path: str) -> str:
    """Return a file's name as text that can be written out: what is not UTF-8 or not printable is escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
