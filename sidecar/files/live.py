"""The live sessions of a watch, for the guard."""

import asyncio
import time

from sidecar.engine.fold import Engine
from sidecar.engine.live import Standing
from sidecar.files.decisions import DecisionFile


class LiveFiles:
    """Find the sessions of a watch (see `sidecar.engine.live.Sessions`).

    Args:
        max_staleness: seconds after which what was read counts as lagging.
    """

    def __init__(self, max_staleness: float) -> None:
        self._max_staleness = max_staleness
        self._engine: Engine | None = None
        self._fresh = float("-inf")
        self._waiting: set[asyncio.Future[None]] = set()
        self.decisions: DecisionFile | None = None
        """Where permissions are written down, while the watch runs."""

    def begin(self, engine: Engine) -> None:
        """Answer from this engine, whose state has been restored."""
        self._engine = engine

    def read(self, *, to_the_end: bool) -> None:
        """Note that the files were looked at, and whether all that was there has been applied."""
        if to_the_end:
            self._fresh = time.monotonic()
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def doubt(self) -> None:
        """Answer for nothing until the files have been read to their ends: records may be gone."""
        self._fresh = float("-inf")

    def end(self) -> None:
        """Answer for nothing any more."""
        self._engine = self.decisions = None

    async def write(self, session_id: str, value: bytes) -> None:
        """Write a permission down before it is given (see `sidecar.engine.live.DecisionLog`).

        Raises:
            OSError: it could not be written.
            RuntimeError: the watch is not running, or keeps no log of decisions.
        """
        if self.decisions is None:
            raise RuntimeError("the watch keeps no log of decisions, or has ended")
        await self.decisions.write(session_id, value)

    def find(self, session_id: str) -> Standing:
        """Return who can answer for a session, now."""
        if self._engine is None:
            return Standing(trouble="restoring", detail="The watch is not reading.")
        behind = time.monotonic() - self._fresh
        if behind > self._max_staleness:
            return Standing(trouble="lagging", detail="The files have not been read to their ends lately.")
        return Standing(engine=self._engine)

    async def moved(self) -> None:
        """Wait until the files have been looked at again."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
