"""Which partition a key belongs to."""

from aiokafka.partitioner import murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Kafka's own clients choose it."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)
