"""What every served address asks of whoever comes: where it listens, bearer tokens, client certificates."""

import hmac
import ipaddress
import re
import time
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from sidecar.config import SettingsError
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

MAX_BYTES = 65_536

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what a Bearer header can carry (RFC 6750)
_Stamp = tuple[int, int, int, int]

_SETTLED = 2.0
"""Seconds after which a file's time stamp tells whether it has changed; before, two writes may have the same one."""


class TokenFile:
    """Know the tokens of a file, one a line, and read it again when it has changed.

    A file that can no longer be read, or holds no token, lets nobody in until it does again.

    Args:
        path: the file.
        setting: which setting names it, for the errors.
        clock: the time in Unix seconds, to compare with the file's.

    Raises:
        SettingsError: it cannot be read, is empty, or holds something that is no token.
    """

    def __init__(self, path: Path, setting: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path.expanduser()
        self._clock = clock
        self._seen: _Stamp | None = None
        self._tokens: list[bytes] = []
        try:
            self._read(self._stat())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{setting}: {_why(self._path, error)}") from None

    def knows(self, token: str) -> bool:
        """Tell whether a token is one of the file's, taking as long whichever it is."""
        self._refresh()
        given = token.encode("utf-8", "surrogateescape")
        known = False
        for one in self._tokens:  # all of them, whichever it is
            known |= hmac.compare_digest(given, one)
        return known

    def _refresh(self) -> None:
        before = self._tokens
        try:
            found = self._stat()
            if found == self._seen:
                return
            self._read(found)
        except (OSError, ValueError) as error:
            if before:
                log.error("the token file cannot be used: nobody is let in", reason=_why(self._path, error))
            self._tokens, self._seen = [], None
        else:
            if self._tokens != before:
                log.info("token file read again", tokens=len(self._tokens))

    def _stat(self) -> _Stamp:
        found = self._path.stat()  # (of what a link leads to: mounted secrets are links that are turned)
        return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns

    def _read(self, found: _Stamp) -> None:
        with self._path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes")
        lines = [line.strip() for line in raw.decode("utf-8").splitlines()]
        tokens = [line for line in lines if line]
        if not tokens:
            raise ValueError("is empty; put a token on a line of its own")
        for number, line in enumerate(lines, 1):
            if line and not _TOKEN.fullmatch(line):
                raise ValueError(f"holds no token in line {number}: a token is made of A-Z a-z 0-9 - . _ ~ + / and =")
        settled = self._clock() - found[3] / 1e9 > _SETTLED
        self._seen = found if settled else None
        self._tokens = [token.encode() for token in tokens]


def _why(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"cannot read {path}: {error.strerror or error}"
    return f"{path} is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"{path} {error}"


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on, or a name in a URL, can only be this machine itself."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def certified(request: web.BaseRequest) -> bool:
    """Tell whether TLS has verified a client certificate (an empty one is one that was not verified)."""
    transport = request.transport
    return transport is not None and bool(transport.get_extra_info("peercert"))
