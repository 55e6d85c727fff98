"""What the tail tells its operator when it cannot go on."""


class TailError(Exception):
    """Say, in words for the operator, why the tail cannot start or go on, and what to do about it."""
