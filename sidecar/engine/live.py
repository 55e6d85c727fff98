"""How whoever keeps live sessions tells others about them: the guard asks, the tail and the watch answer."""

from typing import Protocol

from msgspec import Struct

from sidecar.engine.fold import Engine
from sidecar.protocol.api import Code


class Standing(Struct, kw_only=True):
    """Say whether a session can be answered for, and by whom.

    Args:
        engine: the engine that has the session, or would have it; None: nothing can be said (see `trouble`).
        trouble: why not: `restoring`, `lagging`, `not_owned` or `unavailable`; None: it can be answered for.
        detail: the same for a person.
        owner: where `not_owned`: the address (URL) of the replica that has the session, if known.
    """

    engine: Engine | None = None
    trouble: Code | None = None
    detail: str = ""
    owner: str | None = None


class Sessions(Protocol):
    """Find live sessions; implemented by the tail (`run`) and by `watch`."""

    def find(self, session_id: str) -> Standing:
        """Return who can answer for a session, now; cheap, changes nothing."""
        ...

    async def moved(self) -> None:
        """Wait until something more has been applied, in any session; never returns at once twice in a row."""
        ...


class DecisionLog(Protocol):
    """Write down a permission before it is given."""

    async def write(self, session_id: str, value: bytes) -> None: ...
