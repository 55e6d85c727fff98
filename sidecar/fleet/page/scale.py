"""Where a log position stands in the drawing: a scale true to distance, or one that lets empty stretches shrink."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import log2
from typing import Literal

from msgspec import Struct

Kind = Literal["even", "true"]

_PLAIN_UP_TO = 600
"""A log this short is drawn true to distance: nothing can crowd."""
_APART = 74.0
_BROKEN = 20.0


class Tick(Struct, frozen=True):
    """Mark a position on the axis."""

    x: float
    position: int
    anchor: Literal["start", "middle", "end"]


class Break(Struct, frozen=True):
    """Mark a stretch that is drawn much shorter than it is."""

    x: float
    positions: int


class Scale:
    """Place log positions between two edges, in order; equal positions at equal places.

    On an `even` scale the width between two neighbouring positions of interest grows with the logarithm of their
    distance: in a log of 100,000 positions of which 50 matter, these 50 can still be told apart.

    Args:
        interest: the positions that something stands at, sorted.
        lo, hi: the first and the last position that are shown.
        left, right: where these two stand.
        kind: which scale; short logs are always drawn true.
    """

    def __init__(
        self, interest: Sequence[int], lo: int, hi: int, left: float, right: float, kind: Kind = "even"
    ) -> None:
        self.lo, self.hi, self.left, self.right = lo, max(hi, lo), left, right
        self.kind: Kind = "true" if kind == "true" or self.hi - lo <= _PLAIN_UP_TO else "even"
        stops = [lo, *(p for p in interest if lo < p < self.hi), self.hi]
        self._stops = sorted(set(stops))
        self._interest = self._stops
        if self.kind == "true" or len(self._stops) < 2:
            self._stops = sorted({lo, self.hi})
        widths = [log2(1 + b - a) if self.kind == "even" else float(b - a) for a, b in pairwise(self._stops)]
        total = sum(widths) or 1.0
        self._at = [left]
        for width in widths:
            self._at.append(self._at[-1] + width / total * (right - left))

    def x(self, position: int) -> float:
        """Return where a position stands; one outside of what is shown stands at the edge."""
        if position <= self.lo or len(self._stops) < 2:
            return self.left
        if position >= self.hi:
            return self.right
        i = bisect_right(self._stops, position) - 1
        a, b = self._stops[i], self._stops[i + 1]
        return round(self._at[i] + (self._at[i + 1] - self._at[i]) * (position - a) / (b - a), 1)

    def shows(self, lo: int, hi: int | None = None) -> bool:
        """Tell whether a position, or part of a range, is within what is shown."""
        return lo <= self.hi and (lo if hi is None else hi) >= self.lo

    def ticks(self) -> list[Tick]:
        """Return the positions that are written at the axis: the ends, and between them as many as have room."""
        found = [Tick(self.left, self.lo, "start")]
        if self.hi == self.lo:
            return found
        last = self.left - 14.0
        for position in self._steps() if self.kind == "true" else self._interest[1:-1]:
            x = self.x(position)
            if x - last >= _APART and self.right - x >= _APART * 1.4:
                found.append(Tick(x, position, "middle"))
                last = x
        return [*found, Tick(self.right, self.hi, "end")]

    def breaks(self) -> list[Break]:
        """Return the long stretches without anything of interest, which an even scale draws much too short."""
        if self.kind == "true":
            return []
        return [
            Break(round((x0 + x1) / 2, 1), b - a)
            for (a, b), (x0, x1) in zip(pairwise(self._stops), pairwise(self._at), strict=True)
            if b - a > _PLAIN_UP_TO and x1 - x0 > _BROKEN
        ]

    def _steps(self) -> Sequence[int]:
        rough = (self.hi - self.lo) / 8
        step = next((m * 10**e for e in range(20) for m in (1, 2, 5) if m * 10**e >= rough), 1)
        return range((self.lo // step + 1) * step, self.hi, step)
