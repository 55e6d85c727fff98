"""How workers ask each other: one address, one question, one answer, in a form that both take from the same types."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import hdrs, web
from msgspec import Struct

from sidecar.fleet.access import Gate
from sidecar.fleet.local import Filter
from sidecar.fleet.queries import Unavailable
from sidecar.observe.access import is_loopback

PATH = "/internal/fleet/ask"
_MOST = 2**16


class AskSessions(Struct, array_like=True, tag="sessions"):
    """Ask for the first sessions of a list."""

    wanted: Filter
    limit: int
    after: tuple[int, float, str] | None


class AskSession(Struct, array_like=True, tag="session"):
    """Ask for one session."""

    session_id: str


class AskHalts(Struct, array_like=True, tag="halts"):
    """Ask for halts."""

    open_only: bool
    limit: int


class AskAlerts(Struct, array_like=True, tag="alerts"):
    """Ask for alerts."""

    open_only: bool


class AskFigures(Struct, array_like=True, tag="figures"):
    """Ask for the sums of all groups."""


Ask = AskSessions | AskSession | AskHalts | AskAlerts | AskFigures


class Answer(Struct, array_like=True):
    """Answer for some partitions; the body is as the question asks for it."""

    partitions: list[int]
    body: msgspec.Raw


class PeerError(Exception):
    """Say why another worker has not answered."""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class Peers:
    """Ask other workers.

    Args:
        timeout: how long one may take (seconds).
        token_file: the file with the token to show; None: none is shown.
        tls: how to tell that it is one of ours, and to show that we are; None: as anywhere.
        hosts: patterns of the hosts that are shown the token, besides loopback: addresses come from the group, whose
            members may name any.
    """

    def __init__(
        self,
        timeout: float,
        token_file: Path | None,
        tls: ssl.SSLContext | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._timeout = timeout
        self._tls = tls if tls is not None else True
        self._token_file = token_file
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, url: str, question: Ask) -> Answer:
        """Ask one.

        Raises:
            PeerError: it did not answer, or not what was asked.
        """
        if self._token_file is not None and not self._is_ours(url):
            raise PeerError("it is not shown the token, as its host is none of `fleet.worker_hosts`: set that")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self._timeout))
        headers = {hdrs.CONTENT_TYPE: "application/msgpack", **self._authorization()}
        try:
            async with self._session.post(
                url.rstrip("/") + PATH, data=_encode(question), headers=headers, allow_redirects=False, ssl=self._tls
            ) as response:
                body = await response.read()
                if response.status != 200:
                    said = f" ({body.decode(errors='replace')[:200]})" if response.status == 503 else ""
                    raise PeerError(f"it answered {response.status}{said}")
                return _decode_answer(body)
        except TimeoutError:
            raise PeerError(f"it did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PeerError(str(error) or type(error).__name__) from None
        except msgspec.MsgspecError:
            raise PeerError("its answer cannot be read: is it of another version?") from None

    def _is_ours(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return is_loopback(host) or any(fnmatchcase(host, pattern) for pattern in self._hosts)

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        lines = self._token_file.read_text(encoding="utf-8").split()
        return {hdrs.AUTHORIZATION: f"Bearer {lines[0]}"} if lines else {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def routes(answer: Callable[[Ask], Awaitable[Answer]], gate: Gate) -> Iterable[web.AbstractRouteDef]:
    """Return the route that other workers ask on.

    Args:
        answer: answers a question from what is here.
        gate: who may ask.
    """

    async def handle(request: web.Request) -> web.Response:
        if (denied := gate.denies(request)) is not None:
            return web.Response(status=denied.status, text=denied.detail)
        if request.content_type != "application/msgpack":  # which no form can send
            return web.Response(status=415, text="This is for other workers.")
        body = await request.content.read(_MOST + 1)
        try:
            question = _decode_ask(body)
        except msgspec.MsgspecError:
            return web.Response(status=400, text="This is no question.")
        try:
            answered = await answer(question)
        except Unavailable as error:
            return web.Response(status=503, text=error.reason)
        return web.Response(body=_encode(answered), content_type="application/msgpack")

    handle.__doc__ = "For the other workers of the fleet."
    return [web.post(PATH, handle)]


async def ask_all(peers: Peers, urls: Iterable[str], question: Ask) -> dict[str, Answer | PeerError]:
    """Ask several at the same time; return what each said, or why it said nothing."""

    async def one(url: str) -> Answer | PeerError:
        try:
            return await peers.ask(url, question)
        except PeerError as error:
            return error

    names = list(urls)
    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


def body_of(value: Any) -> msgspec.Raw:
    """Return an answer's body."""
    return msgspec.Raw(_encode(value))
