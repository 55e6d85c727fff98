"""The TLS that the address is served with, and whether it asks for clients' certificates."""

import ssl
from pathlib import Path

from sidecar.config import GuardSettings, SettingsError
from sidecar.observe.logs import get_logger

log = get_logger(__name__)

_Stamp = tuple[tuple[int, int], ...]


def tls_context(settings: GuardSettings) -> ssl.SSLContext | None:
    """Return the context to serve with; None: without TLS.

    A client certificate is asked for and not demanded: metrics and health need none. The certificate is read again
    when its files change, so that one that is renewed in time needs no restart; the authority is not.

    Raises:
        SettingsError: a file cannot be used; it names the setting.
    """
    if settings.tls_certfile is None:
        return None
    certfile = settings.tls_certfile.expanduser()
    keyfile = settings.tls_keyfile.expanduser() if settings.tls_keyfile is not None else None
    for name, path in (("tls_certfile", certfile), ("tls_keyfile", keyfile), ("tls_client_ca", settings.tls_client_ca)):
        _readable(name, path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _load(context, certfile, keyfile)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"guard.tls_certfile, guard.tls_keyfile: {certfile} and {keyfile or 'the key in it'} cannot be used "
            f"({_reason(error)}): the key must belong to the certificate, both in PEM and not encrypted"
        ) from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca.expanduser())
        except ssl.SSLError as error:
            raise SettingsError(
                f"guard.tls_client_ca: {settings.tls_client_ca} holds no certificates in PEM: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL
    _renew(context, certfile, keyfile)
    return context


def _load(context: ssl.SSLContext, certfile: Path, keyfile: Path | None) -> None:
    # Without a password OpenSSL would ask for one on the terminal, and a service would hang there.
    context.load_cert_chain(certfile, keyfile, "")


def _renew(context: ssl.SSLContext, certfile: Path, keyfile: Path | None) -> None:
    """Look at the files whenever somebody connects; what is found there serves from the next connection on."""
    files = [path for path in (certfile, keyfile) if path is not None]
    used = _stamp(files)

    def connecting(_: object, __: str | None, ___: ssl.SSLContext) -> None:
        nonlocal used
        found = _stamp(files)
        if found is None or found == used:
            return
        used = found
        try:
            # First elsewhere: a key and a certificate that do not fit would spoil the context that is in use.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certfile, keyfile)
            _load(context, certfile, keyfile)
        except (OSError, ValueError) as error:
            log.error("the renewed certificate cannot be used; going on with the old one", reason=_reason(error))
        else:
            log.info("certificate read again")

    context.sni_callback = connecting


def _stamp(files: list[Path]) -> _Stamp | None:
    try:
        found = [path.stat() for path in files]
    except OSError:
        return None
    return tuple((stat.st_ino, stat.st_ctime_ns) for stat in found)


def _readable(name: str, path: Path | None) -> None:
    if path is not None:
        try:
            path.expanduser().read_bytes()
        except OSError as error:
            raise SettingsError(f"guard.{name}: cannot read {path}: {error.strerror or error}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not valid"
    return str(error)
