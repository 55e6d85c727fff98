"""The state folder of a watch: one lock, one state that is replaced as a whole, one count of what was written out."""

import fcntl
import os
import struct
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from sidecar.files.pieces import Position

VERSION = 1
_MAGIC = b"sidecar watch\n"
_HEADER = struct.Struct(">14sHQ")
_COUNT = struct.Struct(">QQ")


class StateError(Exception):
    """Say why a state folder cannot be used, or a state not be written."""


class Mark(Struct):
    """Name an output file and the length that it had."""

    device: int
    inode: int
    length: int


class State(Struct, kw_only=True):
    """Hold all that a restart needs.

    `clock` is the watch's own time, which stands still while it does not run. `outbox` is what was to be written out
    after this state was saved, in order, each with the name of its output; `marks` are the outputs' lengths before.
    `lost` says which records may be gone, as long as not every session that may be concerned is distrusted.
    """

    number: int = 0
    clock: float = 0.0
    engine: bytes = b""
    files: list[Position] = []
    outbox: list[tuple[str, bytes]] = []
    marks: dict[str, Mark] = {}
    lost: list[str] = []


class Store:
    """Keep the state of one watch in a folder.

    Args:
        folder: made if it is not there.

    Raises:
        StateError: the folder cannot be used, or another watch uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "state.bin"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StateError(f"cannot use the state folder {folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise StateError(f"another watch (process {owner}) is using the state folder {folder}") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        try:
            self._count = os.open(folder / "written", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"cannot use the state folder {folder}: {error.strerror}") from None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._count)
        os.close(self._lock)

    def load(self) -> State:
        """Return the saved state, or an empty one.

        Where the state is gone, or older than what has been written since, files may have been read and deleted that
        it does not know of: that is a loss (`State.lost`).

        Raises:
            StateError: it is damaged, or of another version; it is never guessed at.
        """
        newest = self._newest()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            if newest is None:
                return State()
            return State(number=newest, lost=[f"the state that was in {self._path} is gone"])
        except OSError as error:
            raise StateError(f"cannot read {self._path}: {error.strerror}") from None
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            raise self._refused("it is damaged")
        _, version, digest = _HEADER.unpack_from(data)
        if version != VERSION:
            raise self._refused(f"it is of version {version}, and this program reads version {VERSION}")
        body = data[_HEADER.size :]
        if xxh3_64_intdigest(body) != digest:
            raise self._refused("it is damaged")
        try:
            state = msgspec.msgpack.decode(body, type=State)
        except msgspec.MsgspecError as error:
            raise self._refused(f"it is damaged ({error})") from None
        if newest is not None and newest > state.number:
            state.lost.append(f"the state in {self._path} is an older one, put back")
            state.number = newest
        return state

    def _refused(self, why: str) -> StateError:
        return StateError(
            f"the state in {self._path} cannot be used: {why}. Move it away to begin at the start of the files again"
            " (the findings will be said again, with the same ids, and no session is trusted until a checkpoint of it"
            " is verified: files that are gone by now may have held more)"
        )

    def save(self, state: State) -> None:
        """Replace the saved state; after a crash there is the old one or the new one, and never half of one.

        Raises:
            StateError: it cannot be written; the old one stands.
        """
        body = msgspec.msgpack.encode(state)
        new = self._path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)  # it has the first bytes of every file, which others may not read
                file.write(_HEADER.pack(_MAGIC, VERSION, xxh3_64_intdigest(body)))
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            os.pwrite(self._count, _COUNT.pack(state.number, 0), 0)
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StateError(
                f"cannot save the state in {self.folder}: {error.strerror}. Nothing is lost: the watch goes on from the"
                " last state when it is started again"
            ) from None

    def count(self, number: int, written: int) -> None:
        """Note how many lines of the outbox of state `number` have been written out."""
        try:
            os.pwrite(self._count, _COUNT.pack(number, written), 0)
        except OSError as error:
            raise StateError(f"cannot write in {self.folder}: {error.strerror}") from None

    def counted(self, number: int) -> int:
        """Return how many lines of the outbox of state `number` had been written out."""
        data = os.pread(self._count, _COUNT.size, 0)
        if len(data) < _COUNT.size:
            return 0
        of, written = _COUNT.unpack(data)
        return int(written) if of == number else 0

    def _newest(self) -> int | None:
        """Return the number of the newest state that was ever saved here; None: none was."""
        data = os.pread(self._count, _COUNT.size, 0)
        return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else None
