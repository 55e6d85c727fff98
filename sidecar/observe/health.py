"""Health as progress, not pulse: a pure evaluator that is told what happened and what time it is.

The rules, for a *task* (something that is read and can stall by itself: a partition, a followed path):

1. A task is well while its position advances, or while there is nothing to read (lag 0).
2. The process is *dead* when a task has not been well for `stall_after` seconds. A fetcher that has stalled still
   reports the last lag it saw; what it says therefore counts for when it was seen, not for when it is repeated.
3. The process is dead when its group has assigned nothing for `join_after` seconds (an empty assignment is one).
4. While the brokers do not answer nothing can advance, and a restart would not help: the process is alive, not
   ready, and the time does not count.
5. The process is *ready* when the group has assigned its tasks, each is restored, and each has been within
   `ready_lag` records of the end once. A later burst does not make it unready.
6. A process that refuses to work until somebody has mended something outside of it is alive and not ready.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from msgspec import Struct


class Verdict(Struct, frozen=True):
    """Answer a probe: whether all is well, else why not, and where each task stands."""

    ok: bool
    reasons: list[str]
    tasks: dict[str, dict[str, Any]]


class _Task(Struct):
    well_at: float
    position: int | None = None
    lag: int | None = None
    restored: bool = False
    caught_up: bool = False


class Health:
    """Judge liveness and readiness; times are seconds on one clock of the caller's, such as `time.monotonic`.

    Args:
        now: the time at the start.
        stall_after: seconds without progress after which a task with something to read is stalled.
        join_after: seconds that the group may take to assign.
        ready_lag: lag, in records, that counts as caught up.
    """

    def __init__(
        self, now: float, *, stall_after: float = 60.0, join_after: float = 600.0, ready_lag: int = 1000
    ) -> None:
        self._stall_after = stall_after
        self._join_after = join_after
        self._ready_lag = ready_lag
        self._tasks: dict[Hashable, _Task] = {}
        self._joining_since: float | None = now
        self._broker_down_since: float | None = None
        self._refusal: str | None = None

    # --- what happened ----------------------------------------------------------------------------

    def joining(self, now: float) -> None:
        """Note that the group rebalances and this process waits for its assignment."""
        if self._joining_since is None:
            self._joining_since = now

    def assign(self, tasks: Iterable[Hashable], now: float) -> None:
        """Note the tasks that this process has from now on, perhaps none; those it had before keep their record."""
        self._joining_since = None
        self._tasks = {task: self._tasks.get(task) or _Task(now) for task in tasks}

    def revoke(self, tasks: Iterable[Hashable]) -> None:
        """Note tasks that were given away."""
        for task in tasks:
            self._tasks.pop(task, None)

    def restored(self, task: Hashable, now: float) -> None:
        """Note that a task has the state it needs."""
        found = self._tasks.get(task)
        if found:
            found.restored = True
            found.well_at = max(found.well_at, now)

    def observe(
        self, task: Hashable, position: int, lag: int | None, now: float, *, seen_at: float | None = None
    ) -> None:
        """Note where a task stands; once per batch, and once per empty poll.

        Args:
            task: an assigned task; any other is ignored (it was given away meanwhile).
            position: any number that grows as records are taken in, also while restoring.
            lag: how many there are to read, None: not known yet.
            now: the time.
            seen_at: when the lag was learnt (the fetcher's last answer); None: now.
        """
        found = self._tasks.get(task)
        if found is None:
            return
        seen_at = now if seen_at is None else min(seen_at, now)
        if found.position is not None and position > found.position:
            found.well_at = now
        elif lag == 0:
            found.well_at = max(found.well_at, seen_at)
        found.position, found.lag = position, lag
        if found.restored and lag is not None and lag <= self._ready_lag:
            found.caught_up = True

    def broker(self, up: bool, now: float) -> None:
        """Note whether the brokers answer."""
        if not up and self._broker_down_since is None:
            self._broker_down_since = now
        elif up and self._broker_down_since is not None:
            self._broker_down_since = None
            if self._joining_since is not None:
                self._joining_since = now
            for task in self._tasks.values():
                task.well_at = now

    def refuse(self, reason: str) -> None:
        """Note that the process does nothing more until it is started anew, and why."""
        self._refusal = reason

    def unwell(self, now: float) -> float:
        """Return for how many seconds some task, or the joining of the group, has not been well; 0: all are."""
        joining = now - self._joining_since if self._joining_since is not None else 0.0
        return max(0.0, joining, *(now - task.well_at for task in self._tasks.values()))

    # --- what follows -----------------------------------------------------------------------------

    def live(self, now: float) -> Verdict:
        """Tell whether the process is worth keeping."""
        reasons = []
        if self._broker_down_since is None and self._refusal is None:  # rules 4 and 6
            if self._joining_since is not None and now - self._joining_since > self._join_after:  # rule 3
                reasons.append(f"the group has assigned nothing for {now - self._joining_since:.0f} s")
            for name, task in self._named():
                idle = now - task.well_at
                if idle > self._stall_after:  # rules 1 and 2
                    reasons.append(f"task {name}: no progress for {idle:.0f} s, {_lag(task.lag)}")
        return Verdict(not reasons, reasons, self._standing(now))

    def ready(self, now: float) -> Verdict:
        """Tell whether the process knows what it is asked about."""
        reasons = [self._refusal] if self._refusal is not None else []
        if self._broker_down_since is not None:
            reasons.append(f"the brokers have not answered for {now - self._broker_down_since:.0f} s")
        if self._joining_since is not None:
            reasons.append("waiting for the group to assign partitions")
        for name, task in self._named():
            if not task.restored:
                reasons.append(f"task {name}: restoring, {_lag(task.lag)}")
            elif not task.caught_up:
                reasons.append(f"task {name}: catching up, {_lag(task.lag)} (ready at {self._ready_lag})")
        return Verdict(not reasons, reasons, self._standing(now))

    def _named(self) -> list[tuple[str, _Task]]:
        return [(str(name), task) for name, task in self._tasks.items()]

    def _standing(self, now: float) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "restored": task.restored,
                "caught_up": task.caught_up,
                "position": task.position,
                "lag": task.lag,
                "seconds_since_well": round(now - task.well_at, 3),
            }
            for name, task in self._named()
        }


def _lag(lag: int | None) -> str:
    return "lag unknown" if lag is None else f"{lag} to read"
