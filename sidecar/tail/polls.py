"""When a broker last answered the fetches of a partition, on a clock that nobody sets."""

import time
from collections.abc import Callable

from aiokafka import TopicPartition

NEVER = float("-inf")


class Polls:
    """Turn the times of day that aiokafka notes at each answer into times of `time.monotonic`.

    Each is turned once, when it is new, and never into one to come: set back by an hour, the clock would otherwise make
    an answer look new for an hour, and with it what the guard knows.

    Args:
        noted: returns the Unix time (ms) of the last answer for a partition; None or 0: there was none.
    """

    def __init__(self, noted: Callable[[TopicPartition], int | None]) -> None:
        self._noted = noted
        self._last: dict[TopicPartition, tuple[int, float]] = {}

    def last(self, tp: TopicPartition) -> float:
        """Return when a broker last answered for a partition (`time.monotonic`); `NEVER`: it has not."""
        stamp = self._noted(tp)
        if not stamp:
            return NEVER
        known = self._last.get(tp)
        if known is None or known[0] != stamp:
            known = self._last[tp] = (stamp, time.monotonic() - max(0.0, time.time() - stamp / 1000))
        return known[1]
