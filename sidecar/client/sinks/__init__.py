"""Where an emitter's records go: to Kafka, or into a file."""

from collections.abc import Sequence
from typing import Protocol

from sidecar.client.journal import Entry


class Sink(Protocol):
    """Take records, in order, and say when they are safe. An emitter has one of its own."""

    @property
    def limit(self) -> int:
        """Return how many bytes a record may have; what is known of it may change when the sink is opened."""
        ...

    @property
    def near(self) -> bool:
        """Tell whether `newest` is asked at every start, not only where there is no journal: it costs little."""
        ...

    async def open(self, session_id: str, within: float) -> None:
        """Make ready to deliver; a sink that is open stays so.

        Args:
            session_id: the session that everything will be of.
            within: seconds to try.

        Raises:
            BrokerError: it cannot be had, or is not fit for the purpose.
            JournalInUse: another emitter writes this session there, as far as that can be seen.
            OSError: the same of a file.
        """
        ...

    async def newest(self) -> int:
        """Return the highest `seq` of the session that is there, 0 if there is none.

        Raises:
            BrokerError: it could not be read.
            OSError: the same of a file.
        """
        ...

    async def deliver(self, entries: Sequence[Entry]) -> None:
        """Write records in order, and return when all of them are safe.

        Raises:
            Exception: some of them may not be; the caller calls `reset` and delivers all of them again.
        """
        ...

    async def reset(self) -> None:
        """Close what has failed; `open` makes it anew."""
        ...

    async def explain(self) -> str:
        """Say, within seconds, what is known about why nothing is acknowledged; empty: nothing."""
        ...

    async def close(self) -> None:
        """Let go of everything, without waiting for what was not delivered."""
        ...
