"""What the fleet is not told: the approvals that are in effect, as the guard of the session's replica knows them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from sidecar.config import Settings, SettingsError
from sidecar.observe.access import TokenFile
from sidecar.observe.logs import get_logger
from sidecar.protocol.api import Edge, SessionView

log = get_logger(__name__)

_SECONDS = 2.0
_FILES = ("guard_cafile", "guard_certfile", "guard_keyfile")


class Guard(Protocol):
    """Be what agents ask a guard with: it follows a session to the replica that has it."""

    async def session(self, session_id: str) -> SessionView:
        """Look at a session; an exception says why it cannot be shown."""

    async def aclose(self) -> None:
        """Close the connections."""


class GuardEdges:
    """Ask a guard for the effective edges of sessions.

    Args:
        guard: asks it. Which replica is asked, and whether it is shown the token, is decided there, as for agents.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def __call__(self, session_id: str) -> tuple[list[Edge], int] | None:
        """Return a session's effective edges, the newest last, and how many there are; None: it does not answer."""
        try:
            # A replica that does not answer may stand before one that does.
            async with asyncio.timeout(2 * _SECONDS):
                view = await self._guard.session(session_id)
        except Exception as error:  # whatever it is, the page goes without
            log.info("the guard does not show a session", reason=str(error) or repr(error))
            return None
        return view.frontier.edges, view.frontier.edge_count

    async def aclose(self) -> None:
        """Close the connections."""
        await self._guard.aclose()


def edges_of(settings: Settings, guard: Callable[..., Guard]) -> GuardEdges | None:
    """Return what asks the guard that the settings name for sessions' approvals; None: they name none.

    Args:
        settings: the settings tree; the section `fleet` is used.
        guard: makes what asks: the class of the client package.

    Raises:
        SettingsError: a file cannot be used; it says which.
    """
    fleet = settings.fleet
    if fleet.guard_url is None:
        return None
    files = {name: path.expanduser() for name in _FILES if (path := getattr(fleet, name)) is not None}
    for name, path in files.items():
        _readable(path, f"fleet.{name}")
    given: dict[str, Any] = {"timeout": _SECONDS}
    if fleet.guard_token_file is not None:
        TokenFile(fleet.guard_token_file, "fleet.guard_token_file")  # what is wrong with it is said now
        given["token_file"] = fleet.guard_token_file.expanduser()
        # Whoever gives a token for an address with http has decided that something else protects the way there.
        given["token_over_http"] = fleet.guard_url.startswith("http://")
    if fleet.guard_owner_hosts is not None:
        given["owner_hosts"] = fleet.guard_owner_hosts
    if "guard_cafile" in files:
        given["verify"] = files["guard_cafile"]
    if "guard_certfile" in files:
        cert, key = files["guard_certfile"], files.get("guard_keyfile")
        given["cert"] = (cert, key) if key is not None else cert
    try:
        return GuardEdges(guard(fleet.guard_url, **given))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        named = ", ".join(f"fleet.{name}" for name in ("guard_url", *files))
        raise SettingsError(f"{named}: the guard cannot be asked with this: {error}") from None


def _readable(path: Path, setting: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: cannot read {path}: {error.strerror or error}") from None
