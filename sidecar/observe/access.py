"""What every served address asks of whoever comes: where it listens, bearer tokens, client certificates."""

import hmac
import ipaddress
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web

from sidecar.config import SettingsError
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

MAX_BYTES = 65_536

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what a Bearer header can carry (RFC 6750)
_Stamp = tuple[int, int, int, int]

_SETTLED = 2.0
"""Seconds after which a file's time stamp tells whether it has changed; before, two writes may have the same one."""


class Holder(NamedTuple):
    """Name who holds a token, and the tenants whose sessions they may ask about; None: all sessions."""

    name: str
    tenants: frozenset[str] | None


class TokenFile:
    """Know the tokens of a file, one a line, and read it again when it has changed.

    A line is `TOKEN`, or `TOKEN name=NAME tenants=TENANT,TENANT`: the name is written down with what its holder is
    permitted, and the holder may ask about the sessions of these tenants only. In both, a character that would end
    the value (a space, a comma, a percent sign) is percent-encoded.

    A file that can no longer be read, or holds no token, lets nobody in until it does again.

    Args:
        path: the file.
        setting: which setting names it, for the errors.
        clock: the time in Unix seconds, to compare with the file's.
        tenants: whether a token may be bound to tenants. Where nothing holds to that, such a token is refused.

    Raises:
        SettingsError: it cannot be read, is empty, or holds something that is no token.
    """

    def __init__(
        self, path: Path, setting: str, clock: Callable[[], float] = time.time, *, tenants: bool = False
    ) -> None:
        self._path = path.expanduser()
        self._clock = clock
        self._takes_tenants = tenants
        self._seen: _Stamp | None = None
        self._holders: dict[bytes, Holder] = {}
        try:
            self._read(self._stat())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{setting}: {_why(self._path, error)}") from None

    def knows(self, token: str) -> bool:
        """Tell whether a token is one of the file's, taking as long whichever it is."""
        return self.holder(token) is not None

    def holder(self, token: str) -> Holder | None:
        """Return who holds a token, taking as long whichever it is; None: it is not one of the file's."""
        self._refresh()
        given = token.encode("utf-8", "surrogateescape")
        found: Holder | None = None
        for one, holder in self._holders.items():  # all of them, whichever it is
            if hmac.compare_digest(given, one):
                found = holder
        return found

    def _refresh(self) -> None:
        before = self._holders
        try:
            found = self._stat()
            if found == self._seen:
                return
            self._read(found)
        except (OSError, ValueError) as error:
            if before:
                log.error("the token file cannot be used: nobody is let in", reason=_why(self._path, error))
            self._holders, self._seen = {}, None
        else:
            if self._holders != before:
                log.info("token file read again", tokens=len(self._holders))

    def _stat(self) -> _Stamp:
        found = self._path.stat()  # (of what a link leads to: mounted secrets are links that are turned)
        return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns

    def _read(self, found: _Stamp) -> None:
        with self._path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes")
        holders: dict[bytes, Holder] = {}
        for number, line in enumerate(raw.decode("utf-8").splitlines(), 1):
            if not line.strip():
                continue
            token, holder = _holder(line, number)
            if holder.tenants is not None and not self._takes_tenants:
                raise ValueError(f"binds the token in line {number} to tenants, and here a token opens everything")
            before = holders.setdefault(token, holder)
            if before.tenants != holder.tenants:
                raise ValueError(f"holds the token of line {number} twice, bound to different tenants")
        if not holders:
            raise ValueError("is empty; put a token on a line of its own")
        settled = self._clock() - found[3] / 1e9 > _SETTLED
        self._seen = found if settled else None
        self._holders = holders


def _holder(line: str, number: int) -> tuple[bytes, Holder]:
    """Read a line of a token file.

    Raises:
        ValueError: it is none; the text goes on after the file's name, and quotes nothing that may be secret.
    """
    token, *given = line.split()
    if not _TOKEN.fullmatch(token) or any("=" not in each for each in given):
        raise ValueError(
            f"holds no token in line {number}: a token is made of A-Z a-z 0-9 - . _ ~ + / and =, and after it may "
            "stand name=NAME and tenants=TENANT,TENANT"
        )
    said: dict[str, str] = {}
    for each in given:
        key, _, value = each.partition("=")
        if key not in ("name", "tenants") or key in said or not value:
            raise ValueError(f"says in line {number}, after the token, something other than name=… and tenants=…, once")
        said[key] = value
    name = unquote(said["name"], errors="strict") if "name" in said else f"token in line {number}"
    if "tenants" not in said:
        return token.encode(), Holder(name, None)
    tenants = [unquote(tenant, errors="strict") for tenant in said["tenants"].split(",")]
    if not all(tenants):
        raise ValueError(f"names an empty tenant in line {number}")
    return token.encode(), Holder(name, frozenset(tenants))


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


def certificate(request: web.BaseRequest) -> str | None:
    """Return the subject of the client certificate that TLS has verified; None: there is none.

    (An empty one is one that was not verified.)
    """
    transport = request.transport
    found = transport.get_extra_info("peercert") if transport is not None else None
    if not found:
        return None
    parts = [f"{key}={value}" for entry in found.get("subject", ()) for key, value in entry]
    return ",".join(parts) or "without a subject"


def certified(request: web.BaseRequest) -> bool:
    """Tell whether TLS has verified a client certificate."""
    return certificate(request) is not None
