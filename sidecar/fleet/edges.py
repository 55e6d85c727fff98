"""What the fleet is not told: the approvals that are in effect, as the guard of the session's replica knows them."""

from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from sidecar.observe.logs import get_logger
from sidecar.protocol.api import Edge, Problem, SessionView

log = get_logger(__name__)

_SECONDS = 2.0
_MOST_BYTES = 4 * 2**20


class GuardEdges:
    """Ask a guard for the effective edges of sessions.

    A replica that does not have a session names the one that has: that one is asked next, but without the token,
    which is for the configured address alone.

    Args:
        url: the guard's address, of any replica.
        token: what it asks for, where it does.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token

    async def __call__(self, session_id: str) -> tuple[list[Edge], int] | None:
        """Return a session's effective edges, the newest last, and how many there are; None: it does not answer."""
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as client:
                answer = await self._ask(client, self._url, session_id, self._token)
                if isinstance(answer, str):
                    answer = await self._ask(client, answer.rstrip("/"), session_id, None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.info("the guard does not answer", url=self._url, reason=repr(error))
            return None
        if not isinstance(answer, SessionView):
            return None
        return answer.frontier.edges, answer.frontier.edge_count

    async def _ask(
        self, client: aiohttp.ClientSession, url: str, session_id: str, token: str | None
    ) -> SessionView | str | None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        address = f"{url}/v1/sessions/{quote(session_id, safe='')}"
        # Encoded already: what the library would make of `..` and `%2F` is another address.
        async with client.get(URL(address, encoded=True), headers=headers, allow_redirects=False) as answer:
            body = await _read(answer)
        try:
            if answer.status == 200:
                return msgspec.json.decode(body, type=SessionView)
            if answer.status == 421:
                return msgspec.json.decode(body, type=Problem).owner
        except msgspec.MsgspecError as error:
            raise ValueError(f"this is no guard's answer: {error}") from None
        return None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in answer.content.iter_chunked(2**16):
        body += part
        if len(body) > _MOST_BYTES:
            raise ValueError(f"the answer is longer than {_MOST_BYTES} bytes")
    return bytes(body)
