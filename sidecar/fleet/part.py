"""Everything that a worker keeps for one partition number, and how Faust's recovery fills it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from sidecar.fleet.alerts import Bounds
from sidecar.fleet.book import Book
from sidecar.fleet.errors import FleetError
from sidecar.fleet.rollups import Rollup
from sidecar.fleet.shard import Role, Shard, Shelf
from sidecar.fleet.stream import Keeper
from sidecar.protocol.outputs import DeadLetter


class Changelog:
    """Follow the offsets of one partition of a changelog, to see when somebody else writes to it."""

    def __init__(self) -> None:
        self.next: int | None = None

    def read(self, offset: int) -> None:
        """Note a record that was read."""
        self.next = max(self.next or 0, offset + 1)

    def wrote(self, offsets: Iterable[int]) -> bool:
        """Note records that were written; return whether somebody else wrote in between."""
        found = sorted(offsets)
        if not found:
            return False
        foreign = found[-1] - found[0] + 1 != len(found) or (self.next is not None and found[0] != self.next)
        self.next = found[-1] + 1
        return foreign


class Part:
    """Everything that a worker keeps for one partition number."""

    def __init__(self, partition: int, topics: Mapping[Role, str], shelf: Shelf | None, bounds: Bounds) -> None:
        self.partition = partition
        self.shard = Shard(partition, topics, shelf)
        self.book = Book(bounds)
        self.rollup = Rollup()
        self.sessions_log = Changelog()
        self.alerts_log = Changelog()
        self.lock = asyncio.Lock()
        """Held while something of it is being written."""
        self.dead: list[DeadLetter] = []
        self.reading = False
        self.fresh = False
        """Its topics have been read to their end once since it came here."""
        self.lag = 0
        self.rollup_end: int | None = None
        self.rollup_next = 0
        self.refreshed_at = 0.0
        self.told = (False, False)
        """Whether it was behind, and fresh, when its sums were sent last."""
        self.pruned_at = 0.0
        self.restored_records = 0
        self.rollups = 0
        self.seen = (-1, -1)
        """How many records had been taken when it was looked at last."""

    @property
    def progress(self) -> int:
        """Return a number that grows with every record that is taken in, of a changelog or an input."""
        return self.restored_records + self.shard.moved

    @property
    def rolled_up(self) -> bool:
        """Tell whether its roll-ups have been read to the end that they had when it came here."""
        return self.rollup_end is not None and self.rollup_next >= self.rollup_end


class PartKeeper(Keeper):
    """Keep a table: its changelog goes to the parts.

    Args:
        topic: the changelog's name.
        part: returns the part of a partition.
        take: gives a part one record of it.
        followed: returns a part's account of the offsets.
    """

    def __init__(
        self,
        topic: str,
        part: Callable[[int], Part],
        take: Callable[[Part, bytes, bytes | None], object],
        followed: Callable[[Part], Changelog],
    ) -> None:
        self._topic = topic
        self._part = part
        self._take = take
        self._followed = followed

    def apply(self, partition: int, key: bytes, value: bytes | None, offset: int) -> None:
        part = self._part(partition)
        with _readable(self._topic, partition, offset):
            self._take(part, key, value)
        part.restored_records += 1
        self._followed(part).read(offset)

    def known(self, partition: int) -> int | None:
        return _last(self._followed(self._part(partition)))


def sessions_keeper(topic: str, part: Callable[[int], Part]) -> PartKeeper:
    """Return what keeps the table of sessions: its changelog goes to the parts' rows."""
    return PartKeeper(topic, part, lambda p, key, value: p.shard.apply(key, value), lambda p: p.sessions_log)


def alerts_keeper(topic: str, part: Callable[[int], Part]) -> PartKeeper:
    """Return what keeps the table of alerts: its changelog, the topic of alerts, goes to the parts' books."""
    return PartKeeper(topic, part, lambda p, key, value: p.book.apply(key, value), lambda p: p.alerts_log)


@contextlib.contextmanager
def _readable(topic: str, partition: int, offset: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise FleetError(
            f"The changelog {topic}, partition {partition}, offset {offset}, cannot be read: {error}. Was it written by"
            " another version? Start that one; or give fleet.group_id another name, to begin anew from the topics"
            " (alerts: topics.alerts)."
        ) from error


def _last(changelog: Changelog) -> int | None:
    return None if changelog.next is None else changelog.next - 1
