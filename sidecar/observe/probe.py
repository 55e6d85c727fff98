"""Ask a sidecar on this machine how it is, as orchestrators do that cannot reach its address themselves."""

import http.client
import ssl
from pathlib import Path
from typing import Literal

import msgspec

Question = Literal["healthz", "readyz"]

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LARGEST = 1 << 20


class Answer(msgspec.Struct, frozen=True):
    """Say whether all is well, and if not, why."""

    ok: bool
    reasons: tuple[str, ...] = ()


class _Body(msgspec.Struct):
    status: str
    reasons: list[str] = []


def ask(host: str, port: int, question: Question, *, certificate: Path | None = None, timeout: float = 3.0) -> Answer:
    """Ask for `/healthz` or `/readyz`.

    Args:
        host: the address that is served on; of a wildcard, its loopback.
        port: the port.
        question: which of the two.
        certificate: what it serves HTTPS with; exactly this is trusted, whatever names stand in it. None: HTTP.
        timeout: seconds to wait for the answer.
    """
    host = _WILDCARDS.get(host, host)
    try:
        if certificate is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=_only(certificate))
        try:
            connection.request("GET", f"/{question}")
            response = connection.getresponse()
            body = response.read(_LARGEST)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return Answer(False, (f"no answer from {host}:{port}: {error or type(error).__name__}",))
    try:
        said = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError:
        return Answer(False, (f"{host}:{port} is no sidecar: status {response.status}, and no health in the answer",))
    return Answer(response.status == 200 and said.status == "ok", tuple(said.reasons))


def _only(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate.expanduser())
    context.check_hostname = False
    # A certificate that an authority has signed is trusted here for itself, not for its signature.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
