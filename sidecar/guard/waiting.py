"""Wait until the log is known as far as a question needs it, for a while."""

import asyncio
import contextlib

from sidecar.engine import ask
from sidecar.engine.fold import Engine
from sidecar.engine.live import Sessions, Standing
from sidecar.protocol.api import Code

PASSING: frozenset[Code] = frozenset(("restoring", "lagging"))
"""The troubles that may be over in a moment."""

Tenants = frozenset[str] | None
"""Whose sessions somebody may ask about; None: all sessions."""

_LOOK_AGAIN = 0.1
"""Seconds after which to look again though nothing was applied: it may have caught up, or be about to stop."""


class Trouble(Exception):
    """Say why a session cannot be answered for."""

    def __init__(self, code: Code, detail: str, *, owner: str | None = None, position: int | None = None) -> None:
        super().__init__(detail)
        self.code: Code = code
        self.detail = detail
        self.owner = owner
        self.position = position


class Waiting:
    """Find who can answer for a session, and wait for it to know enough.

    Args:
        most: how many seconds to wait at most.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._sessions: Sessions | None = None
        self._closed = False

    def serve(self, sessions: Sessions) -> None:
        """Answer for these sessions from now on."""
        self._sessions = sessions

    def close(self) -> None:
        """Answer no more; whoever waits is told so soon."""
        self._closed = True

    def find(self, session_id: str, tenants: Tenants = None) -> Engine:
        """Return the engine that can answer for a session as it is.

        Args:
            session_id: the session.
            tenants: of whom it has to be, for whoever asks; where it is another's, it is unknown to the engine.

        Raises:
            Trouble: there is none.
        """
        standing = self._standing(session_id)
        if standing.trouble is not None or standing.engine is None:
            raise _trouble(standing)
        return _as_known_to(tenants, standing.engine, session_id)

    def look(self, session_id: str, tenants: Tenants = None) -> Engine:
        """Return the engine to look at a session in; one that lags shows how far it has got.

        Args:
            session_id: the session.
            tenants: as in `find`.

        Raises:
            Trouble: there is none.
        """
        standing = self._standing(session_id)
        if standing.trouble not in (None, "lagging") or standing.engine is None:
            raise _trouble(standing)
        return _as_known_to(tenants, standing.engine, session_id)

    async def find_applied(self, session_id: str, position: int | None, tenants: Tenants = None) -> Engine:
        """Return the engine that can answer for a session, once the log has been applied up to a position.

        Args:
            session_id: the session.
            position: up to where; None: as it is, without waiting.
            tenants: as in `find`.

        Raises:
            Trouble: there is none, or it did not get there in time.
        """
        deadline = asyncio.get_running_loop().time() + self._most
        while True:
            try:
                engine = self.find(session_id, tenants)
                if position is None:
                    return engine
                applied = ask.applied(engine, session_id)
                if (applied or 0) >= position:
                    return engine
                trouble = _not_applied(position, applied)
            except Trouble as error:
                if position is None or error.code not in PASSING:
                    raise
                trouble = error
            if not await self._moved(deadline):
                raise trouble

    def _standing(self, session_id: str) -> Standing:
        if self._sessions is None or self._closed:
            return Standing(trouble="unavailable")
        return self._sessions.find(session_id)

    async def _moved(self, deadline: float) -> bool:
        """Wait until there may be news; False: the time is over."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or self._sessions is None:
            return False
        with contextlib.suppress(TimeoutError):
            # Not as a task, which would begin to listen only after what it is to hear.
            async with asyncio.timeout(min(left, _LOOK_AGAIN)):
                await self._sessions.moved()
        return True


def _as_known_to(tenants: Tenants, engine: Engine, session_id: str) -> Engine:
    """Return the engine, or one that knows nothing, from which the answer is exactly that about an unknown session."""
    if tenants is None:
        return engine
    session = engine.look(session_id)
    return engine if session is not None and session.tenant in tenants else _NOTHING


_NOTHING = Engine()


def _trouble(standing: Standing) -> Trouble:
    code = standing.trouble or "unavailable"
    return Trouble(code, standing.detail or _DETAILS.get(code, code), owner=standing.owner)


def _not_applied(position: int, applied: int | None) -> Trouble:
    if applied is None:
        detail = (
            f"No record of the session has been applied, and the question needs those up to {position}. Publish them, "
            "or look whether the session id is the one that they are published under."
        )
    else:
        detail = (
            f"The log has been applied up to {applied}, and the question needs it up to {position}: the record at "
            f"position {applied + 1} has not come. Ask again once it has been published."
        )
    return Trouble("not_applied", detail, position=applied)


_DETAILS: dict[str, str] = {
    "restoring": "The session's state is being restored. Ask again in a moment; /readyz says when it is there.",
    "lagging": "There is more to read, and what has been read is too old. Ask again in a moment.",
    "not_owned": "Another replica has the session. Ask the one that `owner` names, or the others if it names none.",
    "unavailable": "The guard is stopping, or has not started. Ask another replica, or ask again in a moment.",
}
