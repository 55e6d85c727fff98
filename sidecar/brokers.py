"""Reach Kafka brokers: ask all addresses at once, wait for brokers that are away, and end where they refuse.

Importing this costs nothing: aiokafka is loaded when the first broker is dialled.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

_SECURITY = ("security_protocol", "ssl_context", "sasl_")
_DIAL = 3.0
_CLOSE = 1.0

About = Literal["login", "mechanism", "protocol", "certificate", "own_certificate"]
Names = Mapping[About | Literal["servers"], str]
"""What to look at is called, in the errors: by its setting, or by its argument."""

SETTINGS: Names = {
    "servers": "the setting kafka.bootstrap_servers (or --bootstrap-servers)",
    "login": "kafka.sasl_username and kafka.sasl_password (or the file of the password or token)",
    "mechanism": "kafka.sasl_mechanism",
    "protocol": "kafka.security_protocol",
    "certificate": "kafka.ssl_cafile and the brokers' certificates",
    "own_certificate": "kafka.ssl_certfile and kafka.ssl_keyfile",
}
ARGUMENTS: Names = {
    "servers": "bootstrap_servers",
    "login": "sasl_plain_username and sasl_plain_password (or the token)",
    "mechanism": "sasl_mechanism",
    "protocol": "security_protocol",
    "certificate": "the authorities in ssl_context and the brokers' certificates",
    "own_certificate": "the certificate in ssl_context",
}


class Trouble(NamedTuple):
    """Say what went wrong with a broker; `refused` names what it will not have, however often it is asked."""

    text: str
    refused: About | None = None


_SILENCE = Trouble("no answer")


class Unreached(Exception):
    """Say why no broker could be reached, and what to do.

    Args:
        text: the whole of it, for people.
        refused: whether a broker has refused, so that trying again is of no use.
    """

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


async def reach(options: Mapping[str, Any], within: float, names: Names) -> dict[str, Any]:
    """Wait until one of the bootstrap servers answers, and return the options with those that did.

    aiokafka tries its seeds one after the other in random order, each for the whole request timeout: one dead seed
    would block the start. So all are dialled at once here. Where one refuses and none answers it ends at once: asked
    again, a broker says the same, and after enough wrong passwords it may lock the account.

    Args:
        options: what aiokafka's clients take.
        within: seconds to try; 0: once.
        names: what to call things in the errors.

    Raises:
        Unreached: none answered; each is named with its failure.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        answers = await dial(options)
        if alive := [server for server, trouble in answers.items() if trouble is None]:
            return {**options, "bootstrap_servers": alive}
        if refused := {trouble.refused for trouble in answers.values() if trouble is not None and trouble.refused}:
            wrong = ", ".join(sorted(names[about] for about in refused))
            raise Unreached(
                f"The Kafka brokers refuse the connection ({told(answers)}). Check the security settings, here {wrong},"
                " and what the brokers expect.",
                refused=True,
            )
        if loop.time() >= deadline:
            when = f" within {within:g} s" if within else ""
            raise Unreached(
                f"No Kafka broker could be reached{when} ({told(answers)}). Check that a broker runs there, and"
                f" {names['servers']} and the security settings beside it.",
                refused=False,
            )
        await asyncio.sleep(min(0.5, max(0.05, within / 10)))


async def dial(options: Mapping[str, Any]) -> dict[str, Trouble | None]:
    """Try all servers at once, and return for each None (it answers) or what went wrong; one that answers is enough.

    Args:
        options: what aiokafka's clients take.
    """
    security = {name: value for name, value in options.items() if name.startswith(_SECURITY)}
    dials = {server: asyncio.create_task(_dial(server, security)) for server in options["bootstrap_servers"]}
    pending = set(dials.values())
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() is None for task in done):
                break
    finally:
        await _cancel(pending)
    return {server: _SILENCE if task.cancelled() else task.result() for server, task in dials.items()}


def told(answers: Mapping[str, Trouble | None]) -> str:
    """Return what went wrong with each server as a sentence."""
    return "; ".join(f"{server}: {trouble.text if trouble else 'it answers'}" for server, trouble in answers.items())


async def _cancel(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    left = list(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


async def _dial(server: str, security: Mapping[str, Any]) -> Trouble | None:
    """Return None if a broker answers there, through TLS and SASL, else what went wrong."""
    from aiokafka.conn import AIOKafkaConnection, collect_hosts
    from aiokafka.errors import IllegalSaslStateError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

    ((host, port, _),) = collect_hosts([server])
    try:
        # Bare first: it tells a closed port from a broker that refuses the handshake.
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _DIAL)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        connection = AIOKafkaConnection(host, port, request_timeout_ms=int(_DIAL * 1000), **security)
        try:
            await asyncio.wait_for(connection.connect(), 2 * _DIAL)
        finally:
            await _close(connection)
    except TimeoutError:
        return _SILENCE
    except SaslAuthenticationFailed as error:
        return Trouble(str(error), "login")
    except UnsupportedSaslMechanismError:
        return Trouble(f"the broker does not offer the SASL mechanism {security['sasl_mechanism']} there", "mechanism")
    except IllegalSaslStateError:
        return Trouble("the broker expects no SASL there", "protocol")
    except ssl.SSLCertVerificationError as error:
        return Trouble(str(error), "certificate")
    # A provider of tokens may raise anything, and what is no broker may answer anything.
    except Exception as error:
        # With TLS 1.3 a client hears only after the handshake that its certificate was not good enough.
        for cause in (error, error.__cause__):
            if isinstance(cause, ssl.SSLError) and _is_about_ours(cause):
                return Trouble(str(cause), "own_certificate")
        return Trouble(_said(error))
    return None


async def _close(connection: Any) -> None:
    """Wait until a connection is closed, which takes TLS a moment, and longer where the broker has refused."""
    closed = connection.close()
    if connection._protocol is not None:  # else it never came about
        await asyncio.wait((closed,), timeout=_CLOSE)


def _said(error: Exception) -> str:
    # The number of an error of TLS is none of the system's.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return str(error) or type(error).__name__


def _is_about_ours(error: ssl.SSLError) -> bool:
    """Tell whether the other side says that it does not take our certificate, or wants one."""
    said = error.reason or ""
    return "ALERT" in said and ("CERTIFICATE" in said or "UNKNOWN_CA" in said)
