"""The stage on Kafka: publish to the input topics, let the tail run, read the output topics back."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
import time
from collections import Counter
from functools import partial

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from sidecar.config import Settings
from sidecar.demo.stage import Audience
from sidecar.observe.health import Health
from sidecar.observe.logs import get_logger
from sidecar.observe.metrics import Metrics
from sidecar.protocol.outputs import Finding, Halt, Source
from sidecar.simulate import Message
from sidecar.tail.clients import close_consumer, close_producer, open_consumer, open_producer, reach
from sidecar.tail.errors import TailError
from sidecar.tail.planned import plan
from sidecar.tail.tail import Tail

log = get_logger(__name__)

_JOIN = 60.0
_decode_finding = msgspec.json.Decoder(Finding).decode
_decode_halt = msgspec.json.Decoder(Halt).decode


class OnKafka:
    """Play on a broker.

    Args:
        settings: the settings tree, with topics of the demo's own.
        metrics: the tail's.
        health: the tail's; tells when it has joined.
        embedded: whether the broker is the demo's own; from any other the topics are deleted at the end.
    """

    def __init__(self, settings: Settings, metrics: Metrics, health: Health, *, embedded: bool) -> None:
        self.sent: dict[Source, float] = {}
        self._settings = settings
        self._topics = {"events": settings.topics.events, "compactions": settings.topics.compactions}
        self._health = health
        self._embedded = embedded
        self._tail = Tail(settings, metrics, health)
        self._running: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._producer: AIOKafkaProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None

    def about(self) -> list[str]:
        """Return what to know of this stage."""
        servers = ", ".join(self._settings.kafka.bootstrap_servers)
        guarantee = self._settings.tail.guarantee
        if self._embedded:
            return [
                f"broker: embedded, in memory, at {servers}",
                f"guarantee: {guarantee} (the embedded broker has no transactions; a finding that comes again after"
                " a crash has the same finding_id)",
            ]
        return [
            f"broker: {servers} (topics {self._topics['events'].rpartition('.')[0]}.*, deleted at the end)",
            f"guarantee: {guarantee} (findings, halts and input offsets are committed together)",
        ]

    async def open(self, audience: Audience) -> None:
        """Create the topics, start the tail and the reader, and wait until the tail has its partitions.

        Raises:
            TailError: the broker or the topics cannot be had.
            TimeoutError: the tail did not join its group.
        """
        options = await reach(self._settings)
        await self._tail.start()
        self._consumer = await open_consumer(
            options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            isolation_level="read_committed",
        )
        outputs = [spec for spec in plan(self._settings) if spec.role in ("findings", "halts", "dlq")]
        self._consumer.assign([TopicPartition(spec.name, n) for spec in outputs for n in range(spec.partitions)])
        self._producer = await open_producer(options, linger_ms=2)
        self._reading = asyncio.create_task(self._read(self._consumer, audience))
        self._running = asyncio.create_task(self._tail.run())
        async with asyncio.timeout(_JOIN):
            while not self._health.ready(time.monotonic()).ok:
                if error := self.failure():
                    raise error
                await asyncio.sleep(0.05)

    def statuses(self) -> dict[str, int]:
        """Return how many sessions the tail counts by status."""
        counts: Counter[str] = Counter()
        for task in self._tail.loop.tasks if self._tail.loop is not None else ():
            counts.update(task.engine.status_counts())
        return dict(+counts)

    def failure(self) -> BaseException | None:
        """Return why the tail or the reader ended, if one did."""
        for task in (self._running, self._reading):
            if task is not None and task.done() and not task.cancelled():
                return task.exception() or TailError("The tail ended before the demo did.")
        return None

    async def publish(self, message: Message) -> None:
        """Send a record, keyed by its session."""
        assert self._producer is not None
        now = time.monotonic()
        future = await self._producer.send(self._topics[message.role], message.value, message.key.encode())
        future.add_done_callback(partial(self._note, now))

    async def close(self) -> None:
        """End the tail as an operator would, close the clients, and delete the topics."""
        await self._tail.stop()
        if self._reading is not None:
            self._reading.cancel()
        for task in (self._running, self._reading):
            if task is not None:
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        if self._producer is not None:
            await close_producer(self._producer)
        if self._consumer is not None:
            await close_consumer(self._consumer)
        if not self._embedded:
            await self._delete_topics()

    def _note(self, at: float, future: "asyncio.Future[RecordMetadata]") -> None:
        if not future.cancelled() and future.exception() is None:
            place = future.result()
            self.sent[Source(place.topic, place.partition, place.offset)] = at

    async def _read(self, consumer: AIOKafkaConsumer, audience: Audience) -> None:
        names = self._settings.topics
        while True:
            for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    if tp.topic == names.findings:
                        audience.finding(_decode_finding(record.value or b""))
                    elif tp.topic == names.halts:
                        audience.halt(_decode_halt(record.value or b""))
                    else:
                        audience.letter()

    async def _delete_topics(self) -> None:
        # The fleet has topics of its own besides; all names begin alike.
        names = [spec.name for spec in plan(self._settings)]
        admin = AIOKafkaAdminClient(**self._settings.kafka.client_options())
        try:
            await admin.start()
            names = [name for name in await admin.list_topics() if name.startswith(self._settings.tail.group_id)]
            await admin.delete_topics(names)
        except KafkaError as error:
            log.warning("the demo's topics could not be deleted", topics=names, error=repr(error))
        finally:
            await admin.close()
