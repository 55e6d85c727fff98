"""What a summary answers for: its own range, and those of all that it was built from.

Source of the rule: the protocol's "Inherited range". A summary of only what is new still answers for what its children
carried.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter

from sidecar.engine.state import Generation

MOST = 64
"""How many ranges a generation inherits at most; past it the two closest become one, so that it answers for more."""


def inherited(lo: int, hi: int, children: Iterable[Generation]) -> list[tuple[int, int]] | None:
    """Return the ranges that a generation of `lo`..`hi` inherits beyond its own, in order; None: there are none."""
    joined = _join(r for child in children for r in ranges_of(child))
    if len(joined) > MOST:  # keep the widest of the gaps between them, so that the closest are joined
        gaps = sorted(range(1, len(joined)), key=lambda i: (joined[i][0] - joined[i - 1][1], i))
        starts = [0, *sorted(gaps[len(joined) - MOST :]), len(joined)]
        joined = [(joined[i][0], joined[j - 1][1]) for i, j in pairwise(starts)]
    return [r for r in joined if r[0] < lo or r[1] > hi] or None


def ranges_of(generation: Generation) -> list[tuple[int, int]]:
    """Return all ranges that a generation answers for; what lies behind its `hi` does not count."""
    return [(generation.lo, generation.hi), *(generation.inherited or ())]


class Coverage:
    """What some generations together answer for."""

    def __init__(self, generations: Iterable[Generation]) -> None:
        self._ranges = _join((lo, min(hi, g.hi)) for g in generations for lo, hi in ranges_of(g) if lo <= g.hi)

    def __contains__(self, position: int) -> bool:
        i = bisect_right(self._ranges, position, key=itemgetter(0))
        return i > 0 and position <= self._ranges[i - 1][1]


def _join(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(set(ranges)):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
