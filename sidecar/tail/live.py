"""The tail's live sessions, for the guard: who has a session, and whether what is known of it is fresh.

Everything fails closed: a session can be answered for only while its partition is ours, restored, and has been read
to its end within the last seconds.
"""

import asyncio
import time
from collections.abc import Callable, Collection

from sidecar.engine.live import Standing
from sidecar.tail.homes import Homes
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
        owner_of: returns the address of the replica that has a partition number, if that is known.
        max_staleness: seconds after which what was read counts as lagging.
        homes: returns what knows the sessions' home partitions; None while the replica is not connected.
        counted: returns when the number of partitions was last seen to be that of the start (`time.monotonic`).
        refusal: returns why nobody is answered whatever they ask; None: they are.
        on_conflict: called for each question about a session that two partitions know.
    """

    def __init__(
        self,
        tasks: Callable[[], Collection[Task] | None],
        owner_of: Callable[[int], str | None],
        applied: Applied,
        max_staleness: float,
        *,
        homes: Callable[[], Homes | None],
        counted: Callable[[], float],
        refusal: Callable[[], str | None],
        on_conflict: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._owner_of = owner_of
        self._applied = applied
        self._max_staleness = max_staleness
        self._homes = homes
        self._counted = counted
        self._refusal = refusal
        self._on_conflict = on_conflict

    def find(self, session_id: str) -> Standing:
        """Return who can answer for a session, now: the task of its home partition, and no other."""
        if refusal := self._refusal():
            return Standing(trouble="unavailable", detail=refusal)
        tasks, homes = self._tasks(), self._homes()
        if tasks is None or homes is None:
            return Standing(trouble="unavailable", detail="The sidecar has no connection to its brokers.")
        number = homes.of(session_id)
        task: Task | None = None
        others: list[int] = []
        for one in tasks:
            if one.number == number:
                task = one
            elif session_id in one.engine:
                others.append(one.number)
        if others:
            return self._conflict(session_id, number, task, others)
        if task is None:
            owner = self._owner_of(number)
            return Standing(trouble="not_owned", detail=f"Another replica reads partition {number}.", owner=owner)
        if not task.placed or task.silent:
            return Standing(trouble="restoring", detail=f"Partition {task.number} is being restored.")
        now = time.monotonic()
        behind = now - task.fresh
        if behind > self._max_staleness:
            since = f"for {behind:.1f} seconds" if task.fresh > 0 else "since it was assigned"
            return Standing(trouble="lagging", detail=f"Partition {task.number} was not read to its end {since}.")
        if now - self._counted() > self._max_staleness:
            return Standing(trouble="lagging", detail="No broker has told lately how many partitions the topics have.")
        if session_id in task.doubted:
            return Standing(trouble="lagging", detail="Records of the session in another partition are being noted.")
        return Standing(engine=task.engine)

    def _conflict(self, session_id: str, number: int, task: Task | None, others: list[int]) -> Standing:
        """Refuse a session that tasks know whose partitions are not its own, and have it made unverifiable."""
        self._on_conflict()
        listed = " and ".join(str(other) for other in sorted(others))
        if task is not None and task.placed and not task.silent and session_id not in task.split:
            why = f"records of the session are in partition {listed} and belong in partition {number}"
            task.doubted[session_id] = why
            task.split.add(session_id)
        return Standing(
            trouble="log_incomplete",
            detail=f"Records of the session are known from partition {listed}; by kafka.partitioner they belong in"
            f" partition {number}. Nobody knows all of them. Give all producers of the session one partitioner.",
        )

    async def moved(self) -> None:
        """Wait until something more has been applied."""
        await self._applied.wait()
