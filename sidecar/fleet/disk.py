"""Rows on disk, in RocksDB: for fleets whose sessions do not fit in memory, and for restarts that read little."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
from rocksdict import Options, Rdict

from sidecar.fleet.errors import FleetError
from sidecar.fleet.model import Row, dump, load

_KEPT = b"\xffkept"
"""Key of the positions and the offset: no session has it, for it is not UTF-8."""

_OTHERS = b"\xff"
_decode_kept = msgspec.msgpack.Decoder(tuple[bytes, int]).decode


class DiskShelf:
    """Hold the rows of one partition in a database of its own; what is not in the changelog yet is held in memory.

    Args:
        path: the folder of the database.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), Options(raw_mode=True))
        except Exception as error:  # RocksDB's are of no type of their own
            raise FleetError(
                f"The rows in {path} cannot be opened: {error}. Does another worker use the same folder? Give each a"
                " fleet.data_dir of its own; what is there may be deleted, for it stands in the changelog too."
            ) from error
        self._unwritten: dict[str, Row | None] = {}

    def get(self, session_id: str) -> Row | None:
        if session_id in self._unwritten:
            return self._unwritten[session_id]
        found = cast(bytes | None, self._db.get(session_id.encode()))
        return None if found is None else load(found)

    def put(self, session_id: str, row: Row | None) -> None:
        self._unwritten[session_id] = row

    def settle(self, session_id: str, row: Row | None) -> None:
        self._unwritten.pop(session_id, None)
        if row is None:
            self._db.delete(session_id.encode())
        else:
            self._db.put(session_id.encode(), dump(row))

    def rows(self) -> Iterator[Row]:
        unwritten = dict(self._unwritten)
        for key, value in cast(Iterator[tuple[bytes, bytes]], self._db.items()):
            if not key.startswith(_OTHERS) and key.decode() not in unwritten:
                yield load(value)
        yield from (row for row in unwritten.values() if row is not None)

    def keep(self, positions: bytes, offset: int) -> None:
        self._db.put(_KEPT, msgspec.msgpack.encode((positions, offset)))

    def kept(self) -> tuple[bytes, int] | None:
        found = cast(bytes | None, self._db.get(_KEPT))
        return None if found is None else _decode_kept(found)

    def close(self) -> None:
        self._db.close()

    def __len__(self) -> int:
        return sum(1 for _ in self.rows())
