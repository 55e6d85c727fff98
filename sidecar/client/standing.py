"""How far a session's log has come, as others know it, against how far its journal has."""

import asyncio
from pathlib import Path
from typing import Any

from sidecar.client.errors import JournalBehind, StandingUnknown
from sidecar.client.steps import is_async

UNKNOWN = "unknown_session"


async def known_to(guard: Any, session_id: str) -> int:
    """Return how far a guard has applied a session's log; 0: the guard does not know the session.

    Raises:
        StandingUnknown: it cannot tell.
    """
    from sidecar.client.refused import GuardError  # whoever only writes a log does not need what it imports

    try:
        if is_async(guard):
            view = await guard.session(session_id)
        else:
            view = await asyncio.to_thread(guard.session, session_id)
    except GuardError as error:
        if error.codes == {UNKNOWN}:
            return 0
        raise StandingUnknown(
            f"The guard does not say where session {session_id} stands, and without that no position is given out:"
            f" {error}"
        ) from error
    if view.session_id != session_id or type(view.position) is not int or view.position < 0:
        raise StandingUnknown(f"The guard's view of session {session_id} cannot be read: it is of {view.session_id!r}")
    return view.position


def refuse_behind(path: Path, session_id: str, who: str, position: int, own: int) -> None:
    """See that a journal has given out every position that others know of.

    Args:
        path: the journal.
        session_id: the session.
        who: who knows of the log.
        position: how far the log has come.
        own: the last position that the journal has given out.

    Raises:
        JournalBehind: it has not.
    """
    if position > own:
        raise JournalBehind(path, behind(session_id, who, position, own), position, own)


def behind(session_id: str, who: str, position: int, own: int) -> str:
    """Say that a log's own position is behind what others know of it, and what to do."""
    return (
        f"The log of session {session_id} has reached position {position}, as {who} tells, and this emitter stands at"
        f" {own}: its journal was lost, or an older copy was put in its place. What it wrote would count as old"
        " records, revocations too. Close it, move the journal away, and start an emitter without one and without"
        " `start_at`: it asks where the log stands"
    )
