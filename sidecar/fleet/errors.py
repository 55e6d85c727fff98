"""The one exception of the fleet's workers, and what those of the brokers mean."""

from typing import Literal

from aiokafka.errors import TopicAuthorizationFailedError


class FleetError(Exception):
    """Say why the fleet cannot go on, and what to do about it."""


def meaning(error: BaseException, lacking: Literal["READ", "WRITE"]) -> str:
    """Return an error as it is told, with the permission that is missing where the brokers say that one is.

    Args:
        error: what came up.
        lacking: the operation that was tried.
    """
    for denied in (error, error.__cause__):
        if isinstance(denied, TopicAuthorizationFailedError):
            named = denied.args[0] if denied.args else "a topic"
            topics = named if isinstance(named, str) else ", ".join(sorted(named))
            return f"the broker does not let the fleet: grant its principal the ACL {lacking} on {topics}"
    return repr(error)
