"""Logs in memory, with the names of the emitters' methods."""

import threading
from collections.abc import Iterable
from typing import Any

from sidecar.client.compose import with_seq
from sidecar.client.kinds import Kinds
from sidecar.protocol.decode import decode
from sidecar.protocol.records import Record


class MemoryLog(Kinds[int]):
    """Keep the records of a session, checked as the emitter checks them."""

    def __init__(self, session_id: str = "s") -> None:
        self._session_id = session_id
        self._defaults: dict[str, str] = {}
        self._lock = threading.Lock()
        self.raw: list[bytes] = []
        self.failing: BaseException | None = None
        self.kept = 0

    @property
    def session_id(self) -> str:
        """Return the session."""
        return self._session_id

    @property
    def position(self) -> int:
        """Return the last `seq` given out."""
        return len(self.raw)

    def _append(self, role: str, body: bytes) -> int:
        if self.failing is not None:
            raise self.failing
        with self._lock:
            self.raw.append(with_seq(body, len(self.raw) + 1))
            return len(self.raw)

    def _reserve(self, room: int) -> int:
        if self.failing is not None:
            raise self.failing
        self.kept += 2 * room
        return room

    def _append_kept(self, role: str, body: bytes, room: int) -> int:
        self.kept -= room
        return self._append(role, body)

    def give_back(self, room: int) -> None:
        """Give back room."""
        self.kept -= room

    def decoded(self) -> list[Record]:
        """Return the records as the sidecar reads them."""
        return [decode(raw)[0] for raw in self.raw]

    def of(self, *kinds: str) -> list[Any]:
        """Return the records of some kinds."""
        return [record for record in self.decoded() if record.__struct_config__.tag in kinds]


class AsyncMemoryLog(MemoryLog):
    """Be the same, to be awaited."""

    async def __aenter__(self) -> "AsyncMemoryLog":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def _append(self, role: str, body: bytes) -> int:  # type: ignore[override]
        return MemoryLog._append(self, role, body)

    async def _reserve(self, room: int) -> int:  # type: ignore[override]
        return super()._reserve(room)

    async def _append_kept(self, role: str, body: bytes, room: int) -> int:  # type: ignore[override]
        self.kept -= room
        return await self._append(role, body)


def kinds(records: Iterable[Record]) -> list[str]:
    """Return the records' kinds."""
    return [str(record.__struct_config__.tag or "opaque") for record in records]
