"""What shapes a simulated fleet: how long its sessions are, how its records travel, and how often it fails."""

from collections.abc import Iterable, Mapping
from typing import Self

from msgspec import Struct


class Shape(Struct, frozen=True, kw_only=True):
    """Say how sessions go: turns between compactions, compactions, leaves per section, seconds per record."""

    turns: tuple[int, int] = (20, 40)
    cycles: tuple[int, int] = (2, 5)
    leaves_per_section: int = 3
    seconds: float = 1.0


class Transport(Struct, frozen=True, kw_only=True):
    """Say how often the way to the log adds noise that no verdict may depend on.

    Args:
        duplicates: the share of records that are delivered twice.
        delayed: the share of log events that arrive a little late, behind those that follow.
        lagging: the share of sessions of which one of the two topics lags behind the other.
        lag: by how many records' time at most.
    """

    duplicates: float = 0.01
    delayed: float = 0.02
    lagging: float = 0.3
    lag: float = 6.0


DIRECT = Transport(duplicates=0.0, delayed=0.0, lagging=0.0)
"""The way without noise: every record once, in order."""


class FaultRates(Struct, frozen=True):
    """Hold, for each fault kind, the share of sessions that it is planted in; together at most 1."""

    rates: Mapping[str, float]

    @classmethod
    def none(cls) -> Self:
        """Plant nothing."""
        return cls({})

    @classmethod
    def uniform(cls, total: float, kinds: Iterable[str]) -> Self:
        """Spread a total share of faulty sessions evenly over fault kinds."""
        names = tuple(kinds)
        return cls({name: total / len(names) for name in names})

    @classmethod
    def only(cls, kind: str, rate: float = 1.0) -> Self:
        """Plant one kind."""
        return cls({kind: rate})

    def pick(self, at: float) -> str | None:
        """Return the fault kind at a place between 0 and 1 on the line on which every kind takes up its rate."""
        for kind, rate in self.rates.items():
            if at < rate:
                return kind
            at -= rate
        return None
