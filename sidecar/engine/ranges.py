"""What a summary answers for: its own range, and those of all that it was built from.

Source of the rule: the protocol's "Inherited range". A summary of only what is new still answers for what its children
carried.
"""

from collections.abc import Iterable

from sidecar.engine.state import Generation

MOST = 64
"""How many ranges a generation inherits at most; past it the two closest become one, so that it answers for more."""


def inherited(lo: int, hi: int, children: Iterable[Generation]) -> list[tuple[int, int]] | None:
    """Return the ranges that a generation of `lo`..`hi` inherits beyond its own, in order; None: there are none."""
    found = sorted({r for child in children for r in ((child.lo, child.hi), *(child.inherited or ()))})
    joined: list[tuple[int, int]] = []
    for first, last in found:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    while len(joined) > MOST:
        i = min(range(1, len(joined)), key=lambda i: joined[i][0] - joined[i - 1][1])
        joined[i - 1 : i + 1] = [(joined[i - 1][0], joined[i][1])]
    return [r for r in joined if r[0] < lo or r[1] > hi] or None


def ranges_of(generation: Generation) -> list[tuple[int, int]]:
    """Return all ranges that a generation answers for; what lies behind its `hi` does not count."""
    return [(generation.lo, generation.hi), *(generation.inherited or ())]


def covers(generation: Generation, position: int) -> bool:
    """Tell whether a generation answers for a position."""
    return position <= generation.hi and any(lo <= position <= hi for lo, hi in ranges_of(generation))
