"""Who may see the fleet: on loopback whoever is there, elsewhere only who shows a token or a certificate.

People come with browsers, so that two things differ from what agents may do: a link to the board may be followed from
anywhere (a chat, an alert), and the token may be given as the password that a browser asks for.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from msgspec import Struct

from sidecar.config import Settings, SettingsError
from sidecar.observe.access import TokenFile, certified, is_loopback

_BEARER = 'Bearer realm="frontier-sidecar"'
_BASIC = 'Basic realm="frontier-sidecar: any name, the token as password", charset="UTF-8"'
_FOREIGN = ("cross-site", "same-site")


class Denied(Struct, frozen=True):
    """Say why somebody may not: the HTTP status, the reason, and how to authenticate."""

    status: int
    detail: str
    challenges: tuple[str, ...] = ()


class Gate:
    """Decide who may see, and who may change something.

    Args:
        host: the address that is listened on; on loopback, a request has to name this host.
        known: tells whether a token may; None: no token is needed.
        certificate: whether a client certificate is needed, which TLS has verified.
        names: further names of this host.
    """

    def __init__(
        self,
        host: str,
        *,
        known: Callable[[str], bool] | None = None,
        certificate: bool = False,
        names: frozenset[str] = frozenset(),
    ) -> None:
        local = is_loopback(host)
        self._known = known
        self._certificate = certificate
        self._hosts = frozenset({host.lower(), *(n.lower() for n in names)}) if local else None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Decide by the settings.

        Raises:
            SettingsError: strangers could ask, or the token file cannot be used; it says what to set.
        """
        host, fleet = settings.http.host, settings.fleet
        certificate = settings.guard.tls_client_ca is not None
        if not is_loopback(host) and fleet.token_file is None and not certificate:
            raise SettingsError(
                f"http.host {host} is not loopback, and anybody there could see the fleet: set fleet.token_file, or"
                " guard.tls_certfile and guard.tls_client_ca (mutual TLS)"
            )
        named = urlsplit(fleet.advertise).hostname if fleet.advertise else None
        return cls(
            host,
            known=TokenFile(fleet.token_file, "fleet.token_file").knows if fleet.token_file is not None else None,
            certificate=certificate,
            names=frozenset((named,)) if named else frozenset(),
        )

    def denies(self, request: web.BaseRequest, *, page: bool = False) -> Denied | None:
        """Say why whoever sent a request may not have what they ask for; None: they may.

        Args:
            request: what was asked.
            page: whether it is a page, to which any other may link.
        """
        return self._foreign(request, page) or self._stranger(request)

    def denies_change(self, request: web.BaseRequest) -> Denied | None:
        """Say why whoever sent a request may not change anything; None: they may.

        A form on somebody's page can send a browser's credentials along, but neither JSON nor this page's origin.
        """
        if request.content_type != "application/json":
            return Denied(415, "Send JSON, as Content-Type: application/json.")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get(hdrs.HOST, "").lower():
            return Denied(403, "Only this page, or a program that is no browser, may change something here.")
        return self.denies(request)

    def _foreign(self, request: web.BaseRequest, page: bool) -> Denied | None:
        headers = request.headers
        if headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN:
            followed = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
            if not (page and followed and request.method in ("GET", "HEAD")):
                return Denied(403, "Other pages may link to the board, and read nothing of it.")
        if self._hosts is None:
            return None
        # A page whose name has been made to point here (DNS rebinding) gives that name as the host.
        given = headers.getall(hdrs.HOST, [])
        if len(given) != 1 or not self._names_us(given[0]):
            return Denied(403, "The Host header does not name this host: use localhost or 127.0.0.1.")
        return None

    def _names_us(self, given: str) -> bool:
        assert self._hosts is not None
        try:
            host = urlsplit(f"//{given}").hostname
        except ValueError:
            return False
        return host is not None and (host in self._hosts or is_loopback(host))

    def _stranger(self, request: web.BaseRequest) -> Denied | None:
        if self._certificate and not certified(request):
            return Denied(401, "A client certificate is needed.")
        if self._known is None:
            return None
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        token = _token(given[0]) if len(given) == 1 else None
        if token is not None and self._known(token):
            return None
        detail = "A token is needed: as a bearer token, or in a browser as the password, with any name."
        return Denied(401, detail if not given else "The token is not known.", (_BEARER, _BASIC))


def _token(header: str) -> str | None:
    scheme, _, rest = header.partition(" ")
    rest = rest.strip(" ")
    if scheme.lower() == "bearer":
        return rest
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None
