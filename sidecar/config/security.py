"""TLS contexts and OAuth tokens for the Kafka clients; imported only where they are needed."""

import asyncio
import ssl
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

from sidecar.config.errors import SettingsError


def read_secret(path: Path, key: str) -> str:
    """Read a secret from a file, without the line break at its end.

    Args:
        path: the file.
        key: the setting that names it, for the error.

    Raises:
        SettingsError: it cannot be read, or is empty.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key}: cannot read {path}: {_reason(error)}") from None
    if not text:
        raise SettingsError(f"{key}: {path} is empty")
    return text


def ssl_context(
    *, cafile: Path | None, certfile: Path | None, keyfile: Path | None, key_password: str | None, check_hostname: bool
) -> ssl.SSLContext:
    """Make the TLS context of a client.

    Args:
        cafile: authorities to trust (PEM); None: those of the system.
        certfile: the client's certificate chain (PEM), if it has one.
        keyfile: its private key (PEM), if that is not in `certfile`.
        key_password: what the key is encrypted with.
        check_hostname: whether the broker's certificate must name the host that was connected to.

    Raises:
        SettingsError: a file cannot be read or is not what it should be; it names the setting.
    """
    _readable(cafile, "kafka.ssl_cafile")
    _readable(certfile, "kafka.ssl_certfile")
    _readable(keyfile, "kafka.ssl_keyfile")
    try:
        context = create_ssl_context(cafile=cafile and cafile.expanduser())
    except ssl.SSLError as error:
        raise SettingsError(f"kafka.ssl_cafile: {cafile} holds no certificates in PEM: {_reason(error)}") from None
    context.check_hostname = check_hostname
    if certfile is not None:
        try:
            # Without a password OpenSSL would ask for one on the terminal, and a service would hang there.
            context.load_cert_chain(certfile.expanduser(), keyfile and keyfile.expanduser(), key_password or "")
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(
                f"kafka.ssl_certfile, kafka.ssl_keyfile: {certfile} and {keyfile or 'the key in it'} cannot be used "
                f"({_reason(error)}): the key must belong to the certificate, both in PEM, and an encrypted key needs "
                f"the right kafka.ssl_key_password{'' if key_password else ' (it is not set)'}"
            ) from None
    return context


class TokenFile(AbstractTokenProvider):
    """Give the clients the token that a file holds now.

    Whoever issues the token keeps the file fresh. It is read at every login, so that no expired copy is kept;
    logins are rare. An error while reading counts as a failed connection, which the clients retry.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()

    async def token(self) -> str:
        """Return the token.

        Raises:
            OSError: the file cannot be read, or is empty.
        """
        token = (await asyncio.to_thread(self._path.read_text, encoding="utf-8")).strip()
        if not token:
            raise OSError(f"kafka.sasl_oauth_token_file: {self._path} is empty")
        return token


def _readable(path: Path | None, key: str) -> None:
    if path is not None:
        try:
            path.expanduser().read_bytes()
        except OSError as error:
            raise SettingsError(f"{key}: cannot read {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not valid"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
