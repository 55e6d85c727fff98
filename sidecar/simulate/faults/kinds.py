"""What a fault is: an incident, and exactly the findings that it must cause."""

from collections.abc import Callable

from msgspec import Struct

from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint

Incident = Callable[[Session], Checkpoint | None]


def nothing(session: Session) -> None:
    """Leave the session as it is."""


class Fault(Struct, frozen=True):
    """Describe a fault kind.

    Args:
        incident: what goes wrong.
        rules: the rules it can be flagged by (which of them each time, the incident says).
        summarizer: whether a summarizer is to blame, so that worse models do it more often.
        prepare: what has to be so from the session's begin.
    """

    incident: Incident
    rules: tuple[str, ...]
    summarizer: bool = False
    prepare: Callable[[Session], None] = nothing


FAULTS: dict[str, Fault] = {}
"""Every fault kind by name. One that is named like a rule causes that rule's finding and hardly another."""


def planted(
    *rules: str, summarizer: bool = False, prepare: Callable[[Session], None] = nothing
) -> Callable[[Incident], Incident]:
    def register(incident: Incident) -> Incident:
        name = incident.__name__
        FAULTS[name] = Fault(incident, rules or (name,), summarizer, prepare)
        return incident

    return register
