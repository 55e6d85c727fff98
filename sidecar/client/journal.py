"""Keep a session's counter, and the records that nobody has acknowledged yet, in one file that a crash cannot spoil.

Why a file of its own kind and not SQLite: a damaged frame in SQLite's write-ahead log reads as the log's end, so that
what was committed after it is rolled back without a word. For a counter that is the one thing that must not happen:
it would give a `seq` out twice. Here every byte that was confirmed is checked when the journal is opened, and a
journal that is not whole is refused. It also takes one fsync for a group of records, and no import.

The file is a head of 4096 bytes and the records behind it:

- Bytes 0 to 511 never change: what the file is, whose session, and which position was the first.
- The *slot*, bytes 512 to 1023, says where the records begin and end. A sector is written whole or not at all.
- A record is length, checksum, `seq`, role, and the bytes that are published.

To append is: write the records behind the end, write the slot, fsync, and write into the slot that this is
*confirmed*. Only then does anybody hear of their positions, and only then are they published. So after `kill -9` what
lies behind the slot's end was never committed. After a power failure what is not confirmed may be incomplete; then it
is dropped, for nobody was told of it. Anything else that does not check out is damage.

What is acknowledged only moves the beginning. When enough lies before it, that is written down, the records are copied
to the front (where they do not overlap), the slot is turned to them, and the file cut, with an fsync after each.

The file is locked with `flock` while it is open: one session, one writer. The lock ends with the process, however that
ends, and is not inherited by a fork. The folder must be on a local file system.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct as Layout
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from sidecar.client.compose import Role, with_seq
from sidecar.client.errors import JournalDamaged, JournalError, JournalInUse, JournalUnwritable

log = logging.getLogger(__name__)

HEAD = 4096
RECLAIM = 1 << 20
"""Bytes before the records' beginning from which on they are moved to the front."""

SUFFIX = ".journal"

_SECTOR = 512
_MAGIC = b"sidecar-journal\x01"
_IDENTITY = Layout(">16s32sQH")
_SLOT = Layout(">QQQQQQQ")
_SUM = Layout(">Q")
_RECORD = Layout(">IQQB")
_ROLES: tuple[Role, ...] = ("events", "compactions")
_SHOWN = 256

_RESTORE = (
    "Do not put an older copy in its place: it would give positions out again. Move it away and begin a new one, which"
    " looks for the session's newest position and goes on behind it (start_at= says where instead). What was in the"
    " journal and had not been published is lost"
)


class Entry(NamedTuple):
    """Be one record of the journal."""

    seq: int
    role: Role
    raw: bytes


class Disk:
    """Be what the journal writes with; tests put another one in its place, which fails where they say."""

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write as much as can be written at once, and return how much that was."""
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        """Return when what was written is durable."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # an fsync ends in the drive's cache there
        else:
            os.fdatasync(fd)

    def cut(self, fd: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(fd, size)

    def keep(self, fd: int, offset: int, length: int) -> None:
        """Have the file system set space aside, so that writing there cannot fail for want of it."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(fd, offset, length)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot do it
                    raise
        missing = offset + length - os.fstat(fd).st_size
        while missing > 0:
            missing -= os.pwrite(fd, bytes(min(missing, HEAD)), offset + length - missing)


class _Slot(NamedTuple):
    """Say where the records begin and end; what is not confirmed may be incomplete after a power failure."""

    version: int
    begin: int
    first: int
    confirmed: int
    confirmed_next: int
    end: int
    next: int


def journal_path(journal: str | Path, session_id: str) -> Path:
    """Return the file that a session's journal is in.

    Args:
        journal: the file (`….journal`, or one that exists), or a folder for the journals of many sessions.
        session_id: the session.
    """
    path = Path(journal).expanduser().absolute()
    if path.is_file() or (path.suffix == SUFFIX and not path.is_dir()):
        return path
    # Any id makes a name of its own, also where case or length do not count.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in session_id[:60])
    return path / f"{plain}-{_hash(session_id).hex()[:16]}{SUFFIX}"


class Journal:
    """Hold a session's journal open; made by `open`. Its methods are called by one thread at a time.

    `position` is the last `seq` that was given out.
    """

    def __init__(self, path: Path, fd: int, session_id: str, disk: Disk) -> None:
        self.path = path
        self.start = 1
        self._fd = fd
        self._session = _hash(session_id)
        self._identity = b""
        self._disk = disk
        self._slot = _Slot(0, HEAD, 1, HEAD, 1, HEAD, 1)
        self._ends: deque[tuple[int, int]] = deque()
        self._acknowledged = 0
        self._kept = 0
        self._given_back: deque[int] = deque()
        self._trouble: str | None = None

    @classmethod
    def open(
        cls, path: Path, session_id: str, start_at: int | None = None, disk: Disk | None = None
    ) -> tuple["Journal", list[Entry]]:
        """Open a session's journal, or make it, and lock it.

        Args:
            path: the file, from `journal_path`.
            session_id: the session.
            start_at: the first `seq` of a new journal; one that exists must have begun there, too.
            disk: what to write with.

        Returns:
            The journal, and the records in it that were not acknowledged.

        Raises:
            JournalInUse: another emitter has it open.
            JournalDamaged: it is no journal, another session's, or not whole.
            JournalUnwritable: it cannot be made, read or written.
            ValueError: it began somewhere else than at `start_at`.
        """
        disk = disk or Disk()
        try:
            if not path.exists():
                _make(path, session_id, start_at or 1, disk)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            at = f" ({error.filename})" if error.filename not in (None, str(path)) else ""
            raise JournalUnwritable(path, f"the journal cannot be opened: {_reason(error)}{at}") from error
        journal = cls(path, fd, session_id, disk)
        try:
            journal._lock()
            entries = journal._load()
            if start_at is not None and start_at != journal.start:
                raise ValueError(
                    f"start_at={start_at}, and the journal {path} began at {journal.start}: start_at is for a new"
                    " journal; leave it out, or name another journal"
                )
        except OSError as error:
            journal.close(clean=False)
            raise JournalUnwritable(path, f"the journal cannot be used: {_reason(error)}") from error
        except BaseException:
            journal.close(clean=False)
            raise
        _OPEN.add(journal)
        return journal, entries

    @property
    def position(self) -> int:
        """Return the last `seq` that was given out, or (nothing was yet) the one before the first."""
        return self._slot.next - 1

    def reserve(self, room: int) -> None:
        """Keep space on the disk for records that come later; `append` uses it, `give_back` gives it back.

        Args:
            room: bytes.

        Raises:
            JournalUnwritable: there is no space.
        """
        self._usable()
        self._settle()
        try:
            self._disk.keep(self._fd, self._slot.end, self._kept + room)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.cut(self._fd, self._slot.end + self._kept)
            raise self._full(error) from error
        self._kept += room

    def give_back(self, room: int) -> None:
        """Keep so many bytes less; may be called from any thread."""
        self._given_back.append(room)

    def append(self, bodies: Sequence[tuple[Role, bytes]], kept: int = 0) -> list[Entry]:
        """Give records their positions, and return when they are durable.

        Args:
            bodies: role and bytes of each, without `seq`.
            kept: how many bytes were reserved for them, which are used up whatever happens; 0: none, and what is
                reserved for others is left to them.

        Raises:
            JournalUnwritable: they could not be written: none of them has a position.
        """
        self._kept -= kept
        self._usable()
        self._settle()
        self._advance()
        self._move_to_the_front()
        slot = self._slot
        entries: list[Entry] = []
        ends: list[tuple[int, int]] = []
        data = bytearray()
        for seq, (role, body) in enumerate(bodies, slot.next):
            raw = with_seq(body, seq)
            entries.append(Entry(seq, role, raw))
            data += _pack(entries[-1])
            ends.append((seq, slot.end + len(data)))
        try:
            if self._kept and not kept:
                self._disk.keep(self._fd, slot.end, len(data) + self._kept)
            self._write(bytes(data), slot.end)
        except OSError as error:
            with contextlib.suppress(OSError):  # what lies behind the end counts for nothing
                self._disk.cut(self._fd, slot.end + self._kept + kept)
            raise self._full(error) from error
        after = slot._replace(end=slot.end + len(data), next=slot.next + len(bodies))
        with self._or_broken():
            self._turn(after)
            self._disk.sync(self._fd)
            self._ends += ends
            self._confirm()
        return entries

    def acknowledge(self, seq: int) -> None:
        """Take note that everything up to a `seq` has been acknowledged; written down with the next append or `note`.

        May be called from any thread.
        """
        self._acknowledged = seq

    def note(self, *, durable: bool = False) -> None:
        """Write down what has been acknowledged; if that is lost, it is only published again.

        Args:
            durable: it must not be lost with the machine either.
        """
        if self._trouble is None and self._advance():
            with self._or_broken():
                self._turn(self._slot)
                if durable:
                    self._disk.sync(self._fd)

    def close(self, clean: bool = True) -> None:
        """Unlock and close; does nothing if that has been done.

        Args:
            clean: write down what has been acknowledged.
        """
        fd = self._fd
        if fd < 0:
            return
        try:
            if clean:
                with contextlib.suppress(JournalError):
                    self.note()
        finally:
            self._fd, self._trouble = -1, "it has been closed"
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # for closing alone does not unlock what a fork still has open
            os.close(fd)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(
                self.path,
                "another emitter has this journal open. A session has one writer: close the other one, or use it",
            ) from None

    def _load(self) -> list[Entry]:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise JournalDamaged(self.path, "this is no file, so it cannot be a journal")
        head = os.pread(self._fd, HEAD, 0)
        self._identify(head)
        packed, checksum = head[_SECTOR : _SECTOR + _SLOT.size], head[_SECTOR + _SLOT.size :][: _SUM.size]
        slot = _Slot(*_SLOT.unpack(packed))
        ordered = HEAD <= slot.begin <= slot.confirmed <= slot.end and slot.first <= slot.confirmed_next <= slot.next
        if checksum != self._checksum(packed) or not ordered or slot.first < self.start:
            raise self._damaged("its head does not check out")
        if status.st_size < slot.confirmed:
            raise self._damaged(f"it is {status.st_size} bytes long, and had {slot.confirmed}")
        self._slot = slot
        entries = self._read(slot.begin, slot.confirmed, slot.first, slot.confirmed_next)
        if entries is None:
            raise self._damaged("its records do not check out")
        rest = self._read(slot.confirmed, slot.end, slot.confirmed_next, slot.next)
        if rest is None:
            log.warning(
                "%s: the machine stopped while the records %d to %d were written; nobody was told of them, and they are"
                " dropped",
                *(self.path, slot.confirmed_next, slot.next - 1),
            )
            self._ends = deque((seq, end) for seq, end in self._ends if seq < slot.confirmed_next)
            self._turn(slot._replace(end=slot.confirmed, next=slot.confirmed_next))
        # Nothing may be published before it is durable, and a killed process may have left it in the cache.
        self._disk.sync(self._fd)
        self._confirm()
        return entries + (rest or [])

    def _identify(self, head: bytes) -> None:
        if len(head) < HEAD or head[: len(_MAGIC) - 1] != _MAGIC[:-1]:
            raise JournalDamaged(
                self.path,
                "this is no journal of an emitter, and is left as it is. Name another file, or a folder",
            )
        if head[: len(_MAGIC)] != _MAGIC:
            raise JournalDamaged(self.path, "this journal is of another version of the emitter: use that one")
        self._identity = head[: _SECTOR - _SUM.size]
        if head[_SECTOR - _SUM.size : _SECTOR] != _SUM.pack(xxh3_64_intdigest(self._identity)):
            raise self._damaged("its head does not check out")
        _, session, self.start, length = _IDENTITY.unpack(self._identity[: _IDENTITY.size])
        if session != self._session:
            name = self._identity[_IDENTITY.size : _IDENTITY.size + length].decode(errors="replace")
            raise JournalDamaged(
                self.path, f"this is the journal of the session {name!r}. Name another file, or a folder"
            )

    def _read(self, begin: int, end: int, first: int, after: int) -> list[Entry] | None:
        """Return the records of a range, and where they end; None if they are not exactly those."""
        data = os.pread(self._fd, end - begin, begin) if end > begin else b""
        while 0 < len(data) < end - begin and (more := os.pread(self._fd, end - begin - len(data), begin + len(data))):
            data += more
        if len(data) != end - begin:
            return None
        entries: list[Entry] = []
        offset = 0
        while offset < len(data):
            body = offset + _RECORD.size
            if body > len(data):
                return None
            length, checksum, seq, role = _RECORD.unpack_from(data, offset)
            raw = data[body : body + length]
            if len(raw) != length or role >= len(_ROLES) or seq != first + len(entries):
                return None
            entry = Entry(seq, _ROLES[role], raw)
            if checksum != _sum_of(entry):
                return None
            entries.append(entry)
            offset = body + length
            self._ends.append((seq, begin + offset))
        return entries if first + len(entries) == after else None

    def _damaged(self, what: str) -> JournalDamaged:
        return JournalDamaged(self.path, f"the journal is damaged: {what}. {_RESTORE}")

    # --- writing ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take note of what was given back."""
        while self._given_back:
            self._kept = max(0, self._kept - self._given_back.popleft())

    def _full(self, error: OSError) -> JournalUnwritable:
        return JournalUnwritable(
            self.path,
            f"the journal cannot be written ({_reason(error)}); nothing was logged. Make room, and log it again",
        )

    def _usable(self) -> None:
        if self._trouble is not None:
            raise JournalUnwritable(self.path, f"the journal cannot be written any more: {self._trouble}")

    @contextlib.contextmanager
    def _or_broken(self) -> Iterator[None]:
        """Use the journal no more if something fails whose outcome cannot be known."""
        try:
            yield
        except OSError as error:
            self._trouble = (
                f"{_reason(error)}. Whether the last records are in it shows when it is opened again: start a new"
                " emitter"
            )
            raise JournalUnwritable(self.path, f"the journal cannot be written: {self._trouble}") from error

    def _write(self, data: bytes, offset: int) -> None:
        while data:
            written = self._disk.write(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def _turn(self, slot: _Slot) -> None:
        """Write the slot."""
        slot = slot._replace(version=slot.version + 1)
        packed = _SLOT.pack(*slot)
        self._write((packed + self._checksum(packed)).ljust(_SECTOR, b"\0"), _SECTOR)
        self._slot = slot

    def _confirm(self) -> None:
        slot = self._slot
        if (slot.confirmed, slot.confirmed_next) != (slot.end, slot.next):
            self._turn(slot._replace(confirmed=slot.end, confirmed_next=slot.next))

    def _advance(self) -> bool:
        """Move the beginning behind what has been acknowledged; tell whether it moved."""
        acknowledged, begin = self._acknowledged, 0
        while self._ends and self._ends[0][0] <= acknowledged:
            first, begin = self._ends.popleft()
        if begin:
            self._slot = self._slot._replace(begin=begin, first=first + 1)
        return bool(begin)

    def _move_to_the_front(self) -> None:
        slot = self._slot
        free, used = slot.begin - HEAD, slot.end - slot.begin
        if free < max(RECLAIM, used):
            return
        end = HEAD + used
        with self._or_broken():
            # What the slot on the disk still takes for records must not be overwritten.
            self._turn(slot)
            self._disk.sync(self._fd)
            if used:
                self._write(os.pread(self._fd, used, slot.begin), HEAD)
                self._disk.sync(self._fd)
            self._turn(slot._replace(begin=HEAD, confirmed=end, end=end))
            # Only now may the place where they were be used.
            self._disk.sync(self._fd)
            self._ends = deque((seq, offset - free) for seq, offset in self._ends)
            self._disk.cut(self._fd, end + self._kept)  # not what is kept behind it

    def _checksum(self, packed: bytes) -> bytes:
        return _SUM.pack(xxh3_64_intdigest(self._identity + packed))

    def _forked(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # else the lock would live as long as the child
            self._fd, self._trouble = -1, "this process was forked from the one that opened it"


def _make(path: Path, session_id: str, start: int, disk: Disk) -> None:
    """Make an empty journal; until it is whole it has another name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    partial = path.with_name(f".{path.name}.new")
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():  # somebody was quicker
            return
        shown = session_id.encode()[:_SHOWN]
        identity = _IDENTITY.pack(_MAGIC, _hash(session_id), start, len(shown)) + shown
        identity = identity.ljust(_SECTOR - _SUM.size, b"\0")
        packed = _SLOT.pack(*_Slot(0, HEAD, start, HEAD, start, HEAD, start))
        slot = packed + _SUM.pack(xxh3_64_intdigest(identity + packed))
        head = (identity + _SUM.pack(xxh3_64_intdigest(identity)) + slot).ljust(HEAD, b"\0")
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while head:
                size = os.fstat(fd).st_size
                head = head[disk.write(fd, head, size) :]
            disk.sync(fd)
        finally:
            os.close(fd)
        partial.rename(path)
        os.fsync(folder)
    finally:
        os.close(folder)


def _pack(entry: Entry) -> bytes:
    return _RECORD.pack(len(entry.raw), _sum_of(entry), entry.seq, _ROLES.index(entry.role)) + entry.raw


def _sum_of(entry: Entry) -> int:
    return xxh3_64_intdigest(b"%d %b " % (entry.seq, entry.role.encode()) + entry.raw)


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


_OPEN: "weakref.WeakSet[Journal]" = weakref.WeakSet()


def _after_fork() -> None:
    for journal in list(_OPEN):
        journal._forked()


os.register_at_fork(after_in_child=_after_fork)
