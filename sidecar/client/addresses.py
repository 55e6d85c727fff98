"""Where the guard is: which address may be asked, and which may be shown the token."""

import ipaddress
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

MAX_REMEMBERED = 10_000
"""How many sessions' owners are remembered; the one not asked about for longest is forgotten first."""

_HOST = re.compile(r"[0-9A-Za-z._:-]+")


class Unfit(Exception):
    """Say why an address is not to be asked."""


def parse(text: str) -> "httpx2.URL":
    """Read the address of a guard: `http(s)://HOST[:PORT][/PATH]`.

    Raises:
        Unfit: it is none.
    """
    import httpx2

    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, TypeError, ValueError) as error:
        raise Unfit(f"{text!r} is no address: {error}") from None
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.host) or (url.port or 0) > 65535:
        raise Unfit(f"{text!r} is no address of a guard, which is http://HOST:PORT or https://HOST:PORT")
    if url.userinfo or url.query or url.fragment:
        raise Unfit(f"the address of a guard has no user, query or fragment, and {url.host} came with one")
    return url.copy_with(raw_path=url.raw_path.rstrip(b"/") or b"/")


def join(base: "httpx2.URL", path: str) -> "httpx2.URL":
    """Return the address of something the guard serves, whatever stands before its paths."""
    return base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path.encode("ascii"))


def is_loopback(url: "httpx2.URL") -> bool:
    """Tell whether an address is this machine by its name alone, whatever a resolver says."""
    host = url.host.lower().removesuffix(".")
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or bool(mapped and mapped.is_loopback)


def shows_secrets(url: "httpx2.URL") -> bool:
    """Tell whether what is sent to an address can be read on the way."""
    return url.scheme != "https" and not is_loopback(url)


class Owners:
    """Remember which replica answered for a session."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._urls: OrderedDict[str, httpx2.URL] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urls)

    def get(self, session_id: str) -> "httpx2.URL | None":
        """Return the replica that answered for a session last, if it was not the configured one."""
        url = self._urls.get(session_id)
        if url is not None:
            self._urls.move_to_end(session_id)
        return url

    def put(self, session_id: str, url: "httpx2.URL") -> None:
        """Remember who answered."""
        self._urls[session_id] = url
        self._urls.move_to_end(session_id)
        while len(self._urls) > self._most:
            self._urls.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """Forget who answered."""
        self._urls.pop(session_id, None)
