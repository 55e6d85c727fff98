"""The tail's live sessions, for the guard: who has a session, and whether what is known of it is fresh.

Everything fails closed: a session can be answered for only while its partition is ours, restored, and has been read
to its end within the last seconds.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import time
from collections.abc import Callable, Collection

from aiokafka.partitioner import murmur2

from sidecar.engine.live import Standing
from sidecar.tail.task import Task


class Applied:
    """Wake whoever waits for something to be applied."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class LiveSessions:
    """Find the tail's sessions (see `sidecar.engine.live.Sessions`).

    Args:
        tasks: returns the tasks this replica has now; None while it is not connected.
        partitions: returns how many partitions the inputs have; 0: not known yet.
        owner_of: returns the address of the replica that has a partition number, if that is known.
        max_staleness: seconds after which what was read counts as lagging.
    """

    def __init__(
        self,
        tasks: Callable[[], Collection[Task] | None],
        partitions: Callable[[], int],
        owner_of: Callable[[int], str | None],
        applied: Applied,
        max_staleness: float,
    ) -> None:
        self._tasks = tasks
        self._partitions = partitions
        self._owner_of = owner_of
        self._applied = applied
        self._max_staleness = max_staleness

    def find(self, session_id: str) -> Standing:
        """Return who can answer for a session, now."""
        tasks = self._tasks()
        if tasks is None:
            return Standing(trouble="unavailable", detail="The sidecar has no connection to its brokers.")
        count = self._partitions()
        number = _partition(session_id, count) if count else -1
        # A producer may choose partitions in another way than Kafka's own; then only knowing the session tells.
        task = next((t for t in tasks if session_id in t.engine), None)
        task = task or next((t for t in tasks if t.number == number), None)
        if task is None:
            if not tasks and not count:
                return Standing(trouble="unavailable", detail="The group has not assigned this replica anything yet.")
            owner = self._owner_of(number)
            return Standing(trouble="not_owned", detail=f"Another replica reads partition {number}.", owner=owner)
        if not task.placed or task.silent:
            return Standing(trouble="restoring", detail=f"Partition {task.number} is being restored.")
        behind = time.monotonic() - task.fresh
        if behind > self._max_staleness:
            since = f"for {behind:.1f} seconds" if task.fresh > 0 else "since it was assigned"
            return Standing(trouble="lagging", detail=f"Partition {task.number} was not read to its end {since}.")
        return Standing(engine=task.engine)

    async def moved(self) -> None:
        """Wait until something more has been applied."""
        await self._applied.wait()


def _partition(session_id: str, count: int) -> int:
    # A lone surrogate has no UTF-8; such a session is in nobody's log.
    key = session_id.encode("utf-8", "replace")
    return int(murmur2(key) & 0x7FFFFFFF) % count
