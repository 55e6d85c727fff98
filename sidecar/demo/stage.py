"""Where the demo is played: something that takes records and gives findings, halts and dead letters back."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sidecar.protocol.outputs import Finding, Halt, Source
from sidecar.simulate import Message


class Audience(Struct):
    """Name who is told what comes out."""

    finding: Callable[[Finding], None]
    halt: Callable[[Halt], None]
    letter: Callable[[], None]


class Stage(Protocol):
    """Judge what is published, and tell the audience."""

    sent: dict[Source, float]
    """When each record was sent (`time.monotonic`), by where it went."""

    async def open(self, audience: Audience) -> None:
        """Make ready; returns when records are judged as they come."""

    def about(self) -> list[str]:
        """Return, as sentences, what the audience should know of this stage."""

    def failure(self) -> BaseException | None:
        """Return why nothing is judged any more, if so."""

    async def publish(self, message: Message) -> None:
        """Send one record."""

    async def close(self) -> None:
        """End everything that was begun."""
