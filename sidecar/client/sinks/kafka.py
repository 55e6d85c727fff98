"""Publish records to the two input topics, keyed by the session, in order.

A delivery is one group of records: all of it is acknowledged before the next one begins, so that nothing can overtake
what failed. A producer that failed is not used again: one batch that an idempotent producer gave up leaves a hole in
its sequence, and everything after it would be refused. The next one delivers the whole group again; what is then there
twice has the same content, and the sidecar ignores it.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.protocol.admin import DescribeConfigsRequest

from sidecar.brokers import dial, told
from sidecar.client.brokers import (
    close_consumer,
    close_producer,
    open_producer,
    partition_counts,
    reach,
)
from sidecar.client.compose import Role
from sidecar.client.errors import BrokerError
from sidecar.client.journal import Entry
from sidecar.client.options import client_options
from sidecar.protocol.decode import Unreadable, decode

log = logging.getLogger(__name__)

_LIMIT = 1_000_000
_BATCH = 1 << 18
_TOPIC_RESOURCE = 2
_OVERHEAD = 256
_PATIENCE = 30.0
_DIAL = 2.0


class KafkaSink:
    """Publish a session to its partition of the events and the compactions topic.

    Args:
        bootstrap_servers: `HOST:PORT,…`.
        events_topic: where log events go.
        compactions_topic: where compaction records go; it may be the same topic.
        compression_type: `gzip`, `snappy`, `lz4` or `zstd`; None: not compressed.
        options: what aiokafka's clients take, say for TLS.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        events_topic: str,
        compactions_topic: str,
        compression_type: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._options = client_options(bootstrap_servers, options)
        self._topics: dict[Role, str] = {"events": events_topic, "compactions": compactions_topic}
        self._compression = compression_type
        self._stalled = 1.5 * self._options.get("request_timeout_ms", 40_000) / 1000
        self._session_id = ""
        self._key = b""
        self._partition = 0
        self._limit = _LIMIT
        self._producer: AIOKafkaProducer | None = None

    @property
    def limit(self) -> int:
        """Return how many bytes a record may have: what the topics say, or a million where they do not."""
        return self._limit

    @property
    def near(self) -> bool:
        """Tell that the partitions are not read at every start."""
        return False

    async def open(self, session_id: str, within: float) -> None:
        """Connect, and check the topics."""
        if self._producer is not None:
            return
        self._session_id, self._key = session_id, session_id.encode()
        options = await reach(self._options, within)
        try:
            # Time for each step: what was reached may stop answering.
            async with asyncio.timeout(max(within, _PATIENCE)):
                producer = await open_producer(options, linger_ms=0, compression_type=self._compression)
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(f"The Kafka producer could not be opened: {error!r}") from error
        try:
            async with asyncio.timeout(max(within, _PATIENCE)):
                await self._look_at_topics(producer)
        except (KafkaError, TimeoutError) as error:
            await close_producer(producer)
            raise BrokerError(f"The topics could not be looked at: {error!r}") from error
        except BaseException:
            await close_producer(producer)
            raise
        self._producer = producer

    async def newest(self) -> int:
        """Read the session's partitions from their beginnings to find its highest `seq`."""
        assert self._producer is not None, "the sink is not open"
        try:
            return await self._scan()
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(
                f"The topics could not be read for the newest position of session {self._session_id} ({error!r}), and"
                " without that no position is given out. It needs READ on both topics. If the session is new, say so:"
                " `start_at=1`, or give a `guard` to ask"
            ) from error

    async def deliver(self, entries: Sequence[Entry]) -> None:
        """Publish a group and return when all of it is acknowledged by all in-sync replicas."""
        assert self._producer is not None, "the sink is not open"
        by_topic: dict[str, list[bytes]] = {}
        for entry in entries:
            by_topic.setdefault(self._topics[entry.role], []).append(entry.raw)
        sends = [asyncio.create_task(self._send(self._producer, topic, raws)) for topic, raws in by_topic.items()]
        try:
            async with asyncio.timeout(self._stalled):
                await asyncio.gather(*sends)
        except TimeoutError:
            raise BrokerError(f"nothing was acknowledged for {self._stalled:g} s") from None
        except MessageSizeTooLargeError as error:
            largest = max(entries, key=lambda entry: len(entry.raw))
            raise BrokerError(
                f"a record is larger than its topic takes (the largest here is {largest.seq}, {len(largest.raw)}"
                f" bytes): raise the topic's max.message.bytes ({error!r})"
            ) from error
        finally:
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)

    async def reset(self) -> None:
        """Close the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)

    async def explain(self) -> str:
        """Say whether the brokers can be reached."""
        try:
            async with asyncio.timeout(_DIAL):
                return told(await dial(self._options))
        except TimeoutError:
            return f"{', '.join(self._options['bootstrap_servers'])}: no answer"

    async def close(self) -> None:
        """Close the producer."""
        await self.reset()

    async def _send(self, producer: AIOKafkaProducer, topic: str, raws: Sequence[bytes]) -> None:
        """Publish to one topic, in batches that follow one another."""
        under_way: list[asyncio.Future[Any]] = []
        try:
            rest = iter(raws)
            raw = next(rest, None)
            while raw is not None:
                batch, size = producer.create_batch(), 0
                # The builder takes the first one however large it is.
                while raw is not None and (not size or size + len(raw) < _BATCH):
                    if batch.append(key=self._key, value=raw, timestamp=None) is None:
                        break
                    size += len(raw)
                    raw = next(rest, None)
                under_way.append(await producer.send_batch(batch, topic, partition=self._partition))
            await asyncio.gather(*under_way)
        finally:
            # What is not waited for any more has failed with the rest; nobody is to be told of each.
            for future in under_way:
                future.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _look_at_topics(self, producer: AIOKafkaProducer) -> None:
        names = list(dict.fromkeys(self._topics.values()))
        counts = await partition_counts(producer.client, names, "WRITE")
        if len(set(counts.values())) > 1:
            listed = " and ".join(f"{name} has {count}" for name, count in counts.items())
            raise BrokerError(
                f"The two topics must have equally many partitions, because both topics' records of one session have"
                f" to reach one consumer: {listed}. Recreate one of them, or name other topics."
            )
        hashed: int = murmur2(self._key)
        # Kept as long as this producer lives: a session that moves to another partition in between is torn in two.
        self._partition = (hashed & 0x7FFFFFFF) % next(iter(counts.values()))
        try:
            self._limit = await self._largest(producer, names)
        except (KafkaError, ValueError, KeyError) as error:
            log.debug("the topics do not say how large a message may be: %r", error)

    async def _largest(self, producer: AIOKafkaProducer, names: Sequence[str]) -> int:
        client = producer.client
        request = DescribeConfigsRequest([(_TOPIC_RESOURCE, name, ["max.message.bytes"]) for name in names])
        reply = (await client.send(client.get_random_node(), request)).to_object()
        largest = [
            int(entry["config_value"])
            for resource in reply["resources"]
            for entry in resource["config_entries"]
            if entry["config_names"] == "max.message.bytes"
        ]
        return min(largest) - _OVERHEAD - len(self._key) if largest else _LIMIT

    async def _scan(self) -> int:
        tps = [TopicPartition(topic, self._partition) for topic in dict.fromkeys(self._topics.values())]
        consumer = AIOKafkaConsumer(
            **await reach(self._options, _PATIENCE), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        newest = 0
        try:
            await consumer.start()
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            # Up to the end as the first answer told it: asking for end offsets is not right on every broker.
            ends: dict[TopicPartition, int] = {}
            loop = asyncio.get_running_loop()
            answers, answered = None, loop.time()
            while True:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for message in messages:
                        if message.key == self._key:
                            newest = max(newest, self._seq(message.value))
                if (now := [consumer.last_poll_timestamp(tp) for tp in tps]) != answers:
                    answers, answered = now, loop.time()
                elif loop.time() - answered > _PATIENCE:
                    raise TimeoutError(f"no answer for {_PATIENCE:g} s")
                for tp in tps:
                    if tp not in ends and (high := consumer.highwater(tp)) is not None:
                        ends[tp] = high
                if all([tp in ends and await consumer.position(tp) >= ends[tp] for tp in tps]):
                    return newest
        finally:
            await close_consumer(consumer)

    def _seq(self, value: bytes | None) -> int:
        try:
            record, _ = decode(value)
            session, seq = record.session_id, record.seq
        except Unreadable as error:
            session, seq = error.session_id or "", error.seq
        return (seq or 0) if session == self._session_id else 0
