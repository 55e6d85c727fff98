"""What a task keeps on the snapshot topic, and how it gets it back.

Between two rounds of snapshots, the sessions in which arrival or the clock decided something are written with the
commit that carries the decision: folding the same records again could decide otherwise, and a restart must neither
undo nor repeat what was decided.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.observe.logs import get_logger
from sidecar.tail.envelope import Layout
from sidecar.tail.layout import check_layout, layout_today
from sidecar.tail.messages import Message, forgotten_as_messages
from sidecar.tail.snapshots import (
    Progress,
    Restored,
    SnapshotError,
    SnapshotWriter,
    origin_of,
    read_layout,
    read_snapshots,
)

log = get_logger(__name__)

CHUNK = 500
"""How many snapshot records are handed over at once, so that others get their turn in a long round."""


class Keeper:
    """Keep one task's sessions.

    Args:
        number: the task.
        settings: the settings tree.
        partitions: how many partitions the inputs have.
        now: the time (`time.monotonic`).
        layout: how many partitions the topics have, and the partitioner.
    """

    def __init__(
        self, number: int, settings: Settings, partitions: int, now: float, layout: Layout | None = None
    ) -> None:
        self._settings = settings
        self._layout = layout or layout_today(settings, dict.fromkeys(settings.topics.inputs, partitions))
        self._number = number
        self._topic = settings.topics.snapshots
        self._told = settings.topics.sessions
        self._interval = settings.snapshot.interval
        self._session = settings.session
        # The tasks' rounds are spread over the interval, so that they do not all pause the loop together.
        self._due = now + self._interval * (number + 1) / (partitions + 1)
        self.kept_at = now
        """When the last round was made (`time.monotonic`), or this began."""
        self._origin = origin_of(settings.tail.group_id, settings.topics.inputs, partitions, number)
        self._writer = SnapshotWriter(self._topic, number, self._origin, layout=self._layout)
        self._anew = False
        # Until there is a marker, a restart does not know where the group began: the first commit writes one.
        self._unmarked = True
        self._decided: dict[str, None] = {}

    @property
    def written(self) -> tuple[int, int]:
        """Return how many records were made since the state was read, and their bytes."""
        return self._writer.records, self._writer.size

    async def read(
        self, options: Mapping[str, Any], on_progress: Callable[[Progress], None] | None = None
    ) -> Restored | None:
        """Read what was kept; None where it cannot be used: then the log has to be read from its beginning.

        Args:
            options: client options, from `clients.reach`.
            on_progress: called after every batch.

        Raises:
            KafkaError, TimeoutError: it could not be read now.
            PartitionsChanged: it belongs to another number of partitions, or another partitioner.
        """
        try:
            restored = await read_snapshots(options, self._topic, self._number, self._origin, on_progress=on_progress)
        except SnapshotError as error:
            if error.origin is not None:
                check_layout(self._settings, self._number, error.origin, Layout(), self._layout)
            log.error("the snapshots cannot be used; the state is made again from the log", error=str(error))
            self._writer = SnapshotWriter(
                self._topic, self._number, self._origin, error.next_number, layout=self._layout
            )
            self._anew = True
            return None
        self._writer = SnapshotWriter(
            self._topic, self._number, self._origin, restored.next_number, parts=restored.parts, layout=self._layout
        )
        self._unmarked = restored.marker is None
        if restored.marker is not None:
            check_layout(self._settings, self._number, self._origin, restored.marker.layout, self._layout)
        elif self._number != 0 and (first := await read_layout(options, self._topic, 0)) is not None:
            # A partition that is new has no state of its own; that there was another number of them, the first one
            # knows: it has been there since the group began.
            check_layout(self._settings, 0, *first, self._layout)
        return restored

    @property
    def too_large(self) -> int:
        """Return how often a session's state was too large to be written since the state was read."""
        return self._writer.too_large

    def hurry(self) -> None:
        """Let the next commit write a round: it says something that a restart would say again."""
        self._unmarked = True

    def records(
        self, engine: Engine, positions: Mapping[str, int], *, now: float, clock: float, last: bool = False
    ) -> Iterator[Sequence[Message]]:
        """Yield, in chunks, what has to be written with this commit: a round if one is due, else what was decided.

        Args:
            engine: the task's.
            positions: the offsets that are committed.
            now: the time (`time.monotonic`).
            clock: the task's clock, which its sessions' idleness is measured on.
            last: there will be no later commit, so a round is due now.
        """
        self._decided.update(dict.fromkeys(engine.take_decided()))
        if last or self._unmarked or now >= self._due:
            self._due, self.kept_at = now + self._interval, now
            yield from _chunks(self._round(engine, positions, clock))
        elif self._decided:
            decided, self._decided = list(self._decided), {}
            yield from _chunks(iter(self._writer.decided(map(engine.freeze, decided), positions)))

    def _round(self, engine: Engine, positions: Mapping[str, int], clock: float) -> Iterator[Message]:
        self._decided.clear()
        dropped = engine.drop_idle(clock, self._session.ttl)
        changed = engine.take_changed()
        if self._anew:
            changed = engine.ids()
        gone = set(dropped)
        kept = [session_id for session_id in changed if session_id not in gone]
        if kept or dropped or self._unmarked:
            frozen = map(engine.freeze, kept)
            yield from self._writer.round(frozen, dropped, positions, len(engine), anew=self._anew)
            self._anew = self._unmarked = False
        yield from forgotten_as_messages(dropped, self._told, None)
        engine.shrink(clock, self._session.idle_after)


def _chunks(messages: Iterator[Message]) -> Iterator[Sequence[Message]]:
    while chunk := list(islice(messages, CHUNK)):
        yield chunk
