"""The home partition of a session: where producers with one known partitioner put all of its records."""

# mypy: untyped-calls-exclude="aiokafka"

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal
from zlib import crc32

from aiokafka.partitioner import murmur2

Partitioner = Literal["murmur2", "crc32"]

_CACHED = 1 << 16


def _by_murmur2(key: bytes) -> int:
    """Hash as Java's clients, aiokafka, and librdkafka with `partitioner=murmur2_random` do."""
    return int(murmur2(key) & 0x7FFFFFFF)


_HASHES: Mapping[Partitioner, Callable[[bytes], int]] = {"murmur2": _by_murmur2, "crc32": crc32}
_REMEDIES: Mapping[Partitioner, str] = {
    "murmur2": "librdkafka: partitioner=murmur2_random",
    "crc32": "librdkafka: partitioner=consistent_random, its default; Java and aiokafka: a partitioner of your own",
}


class Homes:
    """Compute the home partitions of sessions.

    Args:
        partitioner: the one that all producers use, `kafka.partitioner`.
        count: how many partitions each input topic has.
    """

    def __init__(self, partitioner: Partitioner, count: int) -> None:
        self.partitioner = partitioner
        self.count = count
        hashed = _HASHES[partitioner]

        @lru_cache(maxsize=_CACHED)  # sessions repeat, and murmur2 is slow in Python
        def home(session_id: str) -> int:
            # A lone surrogate has no UTF-8; such a session is in nobody's log.
            return hashed(session_id.encode("utf-8", "replace")) % count

        self.of: Callable[[str], int] = home
        """Return the home partition of a session id."""

    def remedy(self) -> str:
        """Return what to set on a producer that uses another partitioner, or here, as a clause."""
        return (
            f"give that producer the partitioner {self.partitioner} ({_REMEDIES[self.partitioner]}), or set"
            " kafka.partitioner to the one that all producers use"
        )


@lru_cache(maxsize=_CACHED)
def partition_of(key: bytes, count: int, partitioner: Partitioner = "murmur2") -> int:
    """Return the partition of a key.

    Args:
        key: the message's key, not empty.
        count: how many partitions the topic has.
        partitioner: which one.
    """
    return _HASHES[partitioner](key) % count
