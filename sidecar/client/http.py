"""Send one question to one address and take in what comes back, whatever it is; nothing here permits anything."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidecar import __version__
from sidecar.client.addresses import join, shows_secrets

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER = 16 * 2**20
"""Largest answer in bytes that is taken in."""

Verify = bool | str | Path | ssl.SSLContext
Cert = str | Path | tuple[str | Path, str | Path]

_UNAUTHORIZED = 401


class Reply(Struct):
    """Hold what came back from an address: a status and a body, or why nothing did."""

    url: "httpx2.URL"
    status: int = 0
    body: bytes = b""
    failed: str | None = None


class Token:
    """Hold the bearer token, from a string or from a file that is read when it is needed, and again when refused.

    Args:
        token: the token.
        file: a file whose first line that is not empty is the token.

    Raises:
        ValueError: both are given, or the token cannot be one.
    """

    def __init__(self, token: str | None, file: str | Path | None) -> None:
        if token is not None and file is not None:
            raise ValueError("give the token or its file, not both")
        self._token = _sound(token, "the token") if token is not None else None
        self._file = Path(file) if file is not None else None

    def __bool__(self) -> bool:
        return self._token is not None or self._file is not None

    def get(self) -> str | None:
        """Return the token.

        Raises:
            OSError: its file cannot be read.
            ValueError: there is no token in it.
        """
        if self._token is None and self._file is not None:
            self._token = self._read(self._file)
        return self._token

    def renewed(self, refused: str | None) -> str | None:
        """Return another token than the one refused, or None if there is none.

        Raises:
            OSError: its file cannot be read.
            ValueError: there is no token in it.
        """
        if self._file is None:
            return None
        self._token = self._read(self._file)
        return self._token if self._token != refused else None

    @staticmethod
    def _read(path: Path) -> str:
        lines = path.read_bytes().decode().split("\n")
        return _sound(next((line.strip() for line in lines if line.strip()), ""), str(path))


def _sound(token: str, where: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{where}: a bearer token is printable ASCII without spaces")
    return token


class Http:
    """Send to guards over one pool of connections for each event loop (of each process) that asks.

    Args:
        token: what to show.
        token_over_http: whether the token may go unencrypted to an address that is not loopback.
        verify: how a server's certificate is verified: True (the system's authorities), False (not at all: anybody on
            the way can permit), a file of authorities, or an SSL context.
        cert: a client certificate for mutual TLS: a PEM file, or (certificate, key).
        timeout: longest time for one address, from connecting to the last byte.
        max_connections: most connections at the same time.
    """

    def __init__(
        self,
        *,
        token: Token,
        token_over_http: bool,
        verify: Verify,
        cert: Cert | None,
        timeout: float,
        max_connections: int,
    ) -> None:
        self._token = token
        self._token_over_http = token_over_http
        self._verify = verify
        self._cert = cert
        self._context: ssl.SSLContext | None = None
        self._timeout = timeout
        self._max_connections = max_connections
        self._client: httpx2.AsyncClient | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._closed = False

    def may_show_token(self, url: "httpx2.URL") -> bool:
        """Tell whether the token, if there is one, may be sent to an address."""
        return not self._token or self._token_over_http or not shows_secrets(url)

    @property
    def knows_its_own(self) -> bool:
        """Tell whether a certificate shows that an address is a guard.

        The system's authorities do not: they give a certificate to anybody, for a name of their own.
        """
        if isinstance(self._verify, bool):
            return False
        context = self.tls()
        return context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname

    async def send(self, method: str, base: "httpx2.URL", path: str, body: bytes | None) -> Reply:
        """Send, once more with another token where the first is refused; never raises but for being cancelled."""
        reply = Reply(base)
        try:
            async with asyncio.timeout(self._timeout):
                if not self.may_show_token(base):
                    raise ValueError("the token is not sent over http to an address that is not loopback")
                token = self._token.get()
                await self._exchange(reply, method, path, body, token)
                if reply.status == _UNAUTHORIZED and (newer := self._token.renewed(token)) is not None:
                    await self._exchange(reply, method, path, body, newer)
        except TimeoutError:
            reply.failed = f"no answer from {base} within {self._timeout:g} s"
        except Exception as error:
            reply.failed = f"{base}: {_told(error)}"
        return reply

    async def close(self) -> None:
        """Close the connections; nothing can be sent any more."""
        self._closed = True
        client, home = self._client, self._home
        self._client = self._home = None
        if client is not None and home == (os.getpid(), asyncio.get_running_loop()):
            await client.aclose()

    async def _exchange(self, reply: Reply, method: str, path: str, body: bytes | None, token: str | None) -> None:
        import httpx2

        reply.status, reply.body = 0, b""
        used_before = True

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal used_before
            if event.startswith("connection.connect"):
                used_before = False

        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        if body is not None:
            headers["content-type"] = "application/json"
        url = join(reply.url, path)
        client = self._open()
        while True:
            request = client.build_request(method, url, content=body, headers=headers, extensions={"trace": trace})
            try:
                return await _take(client, request, reply)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                # A connection that was kept may have been closed by the other side before it read the question, and
                # asking twice changes nothing. One that was made for this question gets no second chance.
                if not used_before:
                    raise

    def _open(self) -> "httpx2.AsyncClient":
        import httpx2

        if self._closed:
            raise RuntimeError("the client of the guard is closed")
        home = (os.getpid(), asyncio.get_running_loop())
        if self._client is None or self._home != home:
            # A pool of another loop or process cannot be used from here: not its sockets, not its locks.
            self._home = home
            self._client = httpx2.AsyncClient(
                verify=self.tls(),
                trust_env=False,  # neither a proxy nor a .netrc of the environment gets to see the question
                follow_redirects=False,
                timeout=None,  # `send` has one for all of it; what is slow byte by byte would outwit one for each step
                limits=httpx2.Limits(max_connections=self._max_connections, keepalive_expiry=15),
                headers={
                    "accept": "application/json",
                    "accept-encoding": "identity",
                    "user-agent": f"frontier-sidecar/{__version__}",
                },
            )
        return self._client

    def tls(self) -> ssl.SSLContext:
        """Return the SSL context, made when it is first needed.

        Raises:
            OSError: a file cannot be used.
        """
        if self._context is None:
            self._context = _context(self._verify, self._cert)
        return self._context


def _context(verify: Verify, cert: Cert | None) -> ssl.SSLContext:
    import httpx2

    if isinstance(verify, ssl.SSLContext):
        context = verify
    elif isinstance(verify, bool):
        context = httpx2.create_ssl_context(verify=verify, trust_env=False)
    elif Path(verify).is_dir():
        context = ssl.create_default_context(capath=verify)
    else:
        context = ssl.create_default_context(cafile=verify)
    if cert is not None:
        chain, key = cert if isinstance(cert, tuple) else (cert, None)
        # Without a password OpenSSL would ask on the terminal for that of an encrypted key, and a service would hang.
        context.load_cert_chain(chain, key, "")
    return context


async def _take(client: "httpx2.AsyncClient", request: "httpx2.Request", reply: Reply) -> None:
    response = await client.send(request, stream=True)
    try:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ValueError("the answer is compressed, which it was not to be")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER:
                raise ValueError(f"the answer is larger than {MAX_ANSWER} bytes")
        reply.status, reply.body = response.status_code, bytes(body)
    finally:
        await response.aclose()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
