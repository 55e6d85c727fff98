"""What the tail tells its operator when it cannot go on."""


class TailError(Exception):
    """Say, in words for the operator, why the tail cannot start or go on, and what to do about it."""


class PartitionsChanged(TailError):
    """Say that the kept state belongs to another number of partitions, or another partitioner: nobody is answered."""
