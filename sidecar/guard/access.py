"""Who may ask, and about whose sessions.

On loopback whoever is there may ask, elsewhere only who shows a token or a certificate; never a web page.
"""

from urllib.parse import urlsplit

from aiohttp import hdrs, web
from msgspec import Struct

from sidecar.config import Settings, SettingsError
from sidecar.observe.access import TokenFile, certificate, is_loopback
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

_FOREIGN = ("cross-site", "same-site")


class Denied(Struct, frozen=True):
    """Say why somebody may not ask: the HTTP status, the reason, and how to authenticate."""

    status: int
    detail: str
    challenge: str | None = None


class Caller(Struct, frozen=True):
    """Say who asks.

    Args:
        name: the token's name, the certificate's subject, or both; None: nobody has to say who they are.
        tenants: whose sessions they may ask about; None: all sessions.
    """

    name: str | None = None
    tenants: frozenset[str] | None = None


class Access:
    """Decide who may ask.

    Args:
        tokens: who shows one of these may ask; None: no token is needed.
        certificate: whether a client certificate is needed, which TLS has verified.
        hosts: names that a request may give for this host, beside those of loopback; None: any.
        origins: origins (`https://HOST:PORT`) that this guard has beside its own address.
    """

    def __init__(
        self,
        *,
        tokens: TokenFile | None = None,
        certificate: bool = False,
        hosts: frozenset[str] | None = None,
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self._tokens = tokens
        self._certificate = certificate
        self._hosts = hosts
        self._origins = origins

    @classmethod
    def of(cls, settings: Settings) -> "Access":
        """Decide by the settings.

        Raises:
            SettingsError: strangers could ask, or a file cannot be used; it says what to set.
        """
        guard, host = settings.guard, settings.http.host
        local = is_loopback(host)
        if not local and guard.token_file is None and guard.tls_client_ca is None:
            raise SettingsError(
                f"http.host {host} is not loopback, and anybody there could ask the guard: set guard.token_file, or "
                "guard.tls_certfile and guard.tls_client_ca (mutual TLS), or give --no-guard (guard.enabled: false)"
            )
        if not local and guard.tls_certfile is None:
            log.warning("tokens and answers travel unencrypted unless something in front does TLS", host=host)
        named = {host.lower()} if local else set()
        if local and guard.advertise is not None:
            named.add(urlsplit(guard.advertise).hostname or "")
        return cls(
            tokens=TokenFile(guard.token_file, "guard.token_file", tenants=True) if guard.token_file else None,
            certificate=guard.tls_client_ca is not None,
            hosts=frozenset(named) if local else None,
            origins=frozenset(filter(None, [_origin(guard.advertise or "")])),
        )

    def admit(self, request: web.BaseRequest) -> Caller | Denied:
        """Say who sent a request, or why they may not ask."""
        return self._foreign(request) or self._known(request)

    def _foreign(self, request: web.BaseRequest) -> Denied | None:
        """Refuse what a browser sends for somebody's page.

        A page whose name has been made to point to this address (DNS rebinding) gives that name as the host. A page
        that another program on this machine serves gives another port in its origin.
        """
        headers = request.headers
        if headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN:
            return Denied(403, "The guard answers no web pages.")
        given = headers.getall(hdrs.HOST, [])
        if len(given) != 1 or not self._names_us(given[0]):
            return Denied(
                403, "The Host header does not name this host and nothing else: use localhost, or set guard.advertise."
            )
        origins = headers.getall(hdrs.ORIGIN, [])
        if origins and not self._is_ours(request, given[0], origins):
            return Denied(403, "The guard answers no web pages.")
        return None

    def _names_us(self, authority: str) -> bool:
        found = _origin(f"http://{authority}")
        if found is None or self._hosts is None:
            return found is not None
        host = urlsplit(found).hostname or ""
        return host in self._hosts or is_loopback(host)

    def _is_ours(self, request: web.BaseRequest, host: str, origins: list[str]) -> bool:
        """Tell whether the only origin that is given is this guard's: the address that was asked, or the advertised."""
        found = _origin(origins[0])
        if len(origins) != 1 or found is None:
            return False
        if found in self._origins:
            return True
        socket = request.transport.get_extra_info("sockname") if request.transport is not None else None
        if found != _origin(f"{request.scheme}://{host}") or not socket:
            return False
        # Where names are restricted, the port has to be the one that listens: a page may give any port as the host's.
        return self._hosts is None or found.rpartition(":")[2] == str(socket[1])

    def _known(self, request: web.BaseRequest) -> Caller | Denied:
        subject = certificate(request)
        if self._certificate and subject is None:
            return Denied(401, "A client certificate is needed.")
        shown = f"certificate {subject}" if subject is not None else None
        if self._tokens is None:
            return Caller(shown)
        challenge = 'Bearer realm="frontier-sidecar"'
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        if not given:
            return Denied(401, "A bearer token is needed: send `Authorization: Bearer …`.", challenge)
        scheme, _, token = given[0].partition(" ")
        holder = self._tokens.holder(token.strip(" "))
        if len(given) > 1 or scheme.lower() != "bearer" or holder is None:
            return Denied(401, "The bearer token is not known.", f'{challenge}, error="invalid_token"')
        return Caller(f"{holder.name}, {shown}" if shown is not None else holder.name, holder.tenants)


def _origin(url: str) -> str | None:
    """Return an origin with its port; None: it is none (a path, user information, another scheme)."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    default = {"http": 80, "https": 443}.get(parts.scheme)
    if default is None or not host or "@" in parts.netloc or parts.path or parts.query or parts.fragment:
        return None
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or default}"
