"""Who may ask: on loopback whoever is there, elsewhere only who shows a token or a certificate; never a web page."""

from urllib.parse import urlsplit

from aiohttp import hdrs, web
from msgspec import Struct

from sidecar.config import Settings, SettingsError
from sidecar.observe.access import TokenFile, certified, is_loopback
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

_FOREIGN = ("cross-site", "same-site")


class Denied(Struct, frozen=True):
    """Say why somebody may not ask: the HTTP status, the reason, and how to authenticate."""

    status: int
    detail: str
    challenge: str | None = None


class Access:
    """Decide who may ask.

    Args:
        tokens: who shows one of these may ask; None: no token is needed.
        certificate: whether a client certificate is needed, which TLS has verified.
        hosts: names that a request may give for this host, beside those of loopback; None: any.
    """

    def __init__(
        self, *, tokens: TokenFile | None = None, certificate: bool = False, hosts: frozenset[str] | None = None
    ) -> None:
        self._tokens = tokens
        self._certificate = certificate
        self._hosts = hosts

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
            tokens=TokenFile(guard.token_file, "guard.token_file") if guard.token_file is not None else None,
            certificate=guard.tls_client_ca is not None,
            hosts=frozenset(named) if local else None,
        )

    def denies(self, request: web.BaseRequest) -> Denied | None:
        """Say why whoever sent a request may not ask; None: they may."""
        return self._foreign(request) or self._unknown(request)

    def _foreign(self, request: web.BaseRequest) -> Denied | None:
        """Refuse what a browser sends for somebody's page.

        A page whose name has been made to point to this address (DNS rebinding) gives that name as the host.
        """
        headers = request.headers
        if headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN:
            return Denied(403, "The guard answers no web pages.")
        if self._hosts is None:
            return None
        given = headers.getall(hdrs.HOST, [])
        if len(given) != 1 or not self._names_us(f"//{given[0]}"):
            return Denied(403, "The Host header does not name this host: use localhost, or set guard.advertise.")
        origin = headers.get(hdrs.ORIGIN)
        if origin is not None and not self._names_us(origin):
            return Denied(403, "The guard answers no web pages.")
        return None

    def _names_us(self, url: str) -> bool:
        assert self._hosts is not None
        try:
            host = urlsplit(url).hostname
        except ValueError:
            return False
        return host is not None and (host in self._hosts or is_loopback(host))

    def _unknown(self, request: web.BaseRequest) -> Denied | None:
        if self._certificate and not certified(request):
            return Denied(401, "A client certificate is needed.")
        if self._tokens is None:
            return None
        challenge = 'Bearer realm="frontier-sidecar"'
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        if not given:
            return Denied(401, "A bearer token is needed: send `Authorization: Bearer …`.", challenge)
        scheme, _, token = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer" or not self._tokens.knows(token.strip(" ")):
            return Denied(401, "The bearer token is not known.", f'{challenge}, error="invalid_token"')
        return None
