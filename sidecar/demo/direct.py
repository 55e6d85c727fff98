"""The stage without a broker: the engine itself, in this process."""

import asyncio
import contextlib
import time
from collections import Counter
from datetime import UTC, datetime

from msgspec.structs import replace

from sidecar.config import Settings
from sidecar.demo.stage import Audience
from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import Source
from sidecar.protocol.records import Hole
from sidecar.simulate import Message

_EVERY = 0.05


class Direct:
    """Fold what is published, in batches.

    Args:
        settings: the engine's limits and the topics' names are taken from it.
        metrics: told about every batch.
        health: told about progress.
        reason: why there is no broker.
    """

    def __init__(self, settings: Settings, metrics: Metrics, health: Health, reason: str) -> None:
        self.sent: dict[Source, float] = {}
        self._topics = {"events": settings.topics.events, "compactions": settings.topics.compactions}
        self._metrics = metrics
        self._health = health
        self._reason = reason
        self._engine = Engine(settings.limits())
        self._pending: list[tuple[Source, bytes]] = []
        self._offsets: Counter[str] = Counter()
        self._folding: asyncio.Task[None] | None = None

    def about(self) -> list[str]:
        """Return what to know of this stage."""
        return [
            self._reason,
            "So no Kafka is involved: the records go straight to the same engine, in this process.",
            "guarantee: none is needed, nothing is delivered over a network",
        ]

    async def open(self, audience: Audience) -> None:
        """Begin to fold."""
        now = time.monotonic()
        self._health.assign(["demo"], now)
        self._health.restored("demo", now)
        self._folding = asyncio.create_task(self._fold_on(audience))

    def failure(self) -> BaseException | None:
        """Return why folding ended, if it did."""
        folding = self._folding
        return folding.exception() if folding and folding.done() and not folding.cancelled() else None

    async def publish(self, message: Message) -> None:
        """Put a record into the next batch."""
        topic = self._topics[message.role]
        source = Source(topic, 0, self._offsets[topic])
        self._offsets[topic] += 1
        self.sent[source] = time.monotonic()
        self._pending.append((source, message.value))

    async def close(self) -> None:
        """Fold no more."""
        if self._folding is not None:
            self._folding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._folding

    async def _fold_on(self, audience: Audience) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            batch, self._pending = self._pending, []
            now = time.monotonic()
            arrivals: list[Arrival] = []
            kinds: Counter[tuple[str, str]] = Counter()
            unreadable: Counter[str] = Counter()
            for source, value in batch:
                try:
                    record, digest = decode(value)
                except Unreadable as bad:
                    unreadable[source.topic] += 1
                    audience.letter()
                    if bad.session_id is not None:
                        arrivals.append((Hole(session_id=bad.session_id, seq=bad.seq), 0, source))
                    continue
                kinds[source.topic, str(type(record).__struct_config__.tag or "opaque")] += 1
                arrivals.append((record, digest, source))
            self._metrics.observe_batch(kinds, unreadable, now=time.time())
            self._metrics.observe_dead_letters(unreadable)
            outcome = self._engine.fold(arrivals, now)
            self._say(outcome, audience, seconds=time.monotonic() - now)
            self._say(self._engine.expire(now), audience)
            self._health.observe("demo", self._engine.counters.records, len(self._pending), now)

    def _say(self, outcome: Outcome, audience: Audience, seconds: float | None = None) -> None:
        self._metrics.observe_outcome("demo", self._engine, outcome, seconds=seconds)
        now = datetime.now(UTC)
        for halt in outcome.halts:
            audience.halt(halt)
        for _ in outcome.letters:  # what the fold refuses is a dead letter like what cannot be read
            audience.letter()
        for finding in outcome.findings:
            audience.finding(replace(finding, detected_at=now))
