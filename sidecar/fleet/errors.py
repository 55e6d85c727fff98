"""The one exception of the fleet's workers."""


class FleetError(Exception):
    """Say why the fleet cannot go on, and what to do about it."""
