"""Say in one line what a test wants of a broker; every function works on both brokers, within bounds."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import RecordMetadata

Pair = tuple[bytes | None, bytes | None]


async def create_topics(
    bootstrap: str,
    *names: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    within: float = 15.0,
) -> None:
    """Create topics and wait until every partition has a leader.

    Raises:
        KafkaError: The broker refused one, say because it exists.
        TimeoutError: A partition had no leader in time.
    """
    async with asyncio.timeout(within), _Admin(bootstrap) as admin:
        wanted = [NewTopic(name, partitions, 1, topic_configs=dict(configs or {})) for name in names]
        for name, code, message in (await admin.create_topics(wanted)).topic_errors:
            if code:
                raise for_code(code)(f"{name}: {message}")
        # The answer comes before the metadata of the new topics is everywhere.
        while True:
            described = await admin.describe_topics(list(names))
            if all(_is_led(topic, partitions) for topic in described):
                return
            await asyncio.sleep(0.02)


def _is_led(topic: Mapping[str, Any], partitions: int) -> bool:
    led = [partition for partition in topic["partitions"] if not partition["error_code"]]
    return not topic["error_code"] and len(led) == partitions


async def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Pair],
    *,
    partition: int | None = None,
    within: float = 30.0,
    **options: Any,
) -> list[RecordMetadata]:
    """Write (key, value) pairs in order, wait until all are acknowledged and return where they are.

    Args:
        bootstrap: The broker's address.
        topic: A topic that exists.
        records: The pairs.
        partition: Where to write them; by default each goes where its key says.
        within: Seconds until TimeoutError.
        options: Arguments for the producer.
    """
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **options)
    async with asyncio.timeout(within):
        try:
            await producer.start()
            sent = [await producer.send(topic, key=key, value=value, partition=partition) for key, value in records]
            return list(await asyncio.gather(*sent))
        finally:
            await producer.stop()


async def read_topic(
    bootstrap: str,
    topic: str,
    *,
    read_committed: bool = False,
    settle: float = 1.0,
    within: float = 15.0,
) -> list[ConsumerRecord]:
    """Read a whole topic up to the end it has now and return its records by partition and offset.

    Args:
        bootstrap: The broker's address.
        topic: A topic that exists.
        read_committed: Leave out what belongs to an aborted or open transaction.
        settle: Seconds to wait for open transactions, which hide what comes after them. A commit
            returns before the broker has ended the transaction, so the last one may look open.
        within: Seconds until TimeoutError.
    """
    async with asyncio.timeout(within):
        tps = [TopicPartition(topic, partition) for partition in await _partitions(bootstrap, topic)]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )
        records: list[ConsumerRecord] = []
        await consumer.start()
        try:
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            # Not end_offsets, which the embedded broker gets wrong.
            ends: dict[TopicPartition, int] = {}
            moved = time.monotonic()
            while True:
                for batch in (await consumer.getmany(timeout_ms=50)).values():
                    records += batch
                    moved = time.monotonic()
                behind = []
                for tp in tps:
                    if (high := consumer.highwater(tp)) is not None:
                        ends.setdefault(tp, high)
                    if tp not in ends or await consumer.position(tp) < ends[tp]:
                        behind.append(tp)
                if not behind:
                    break
                if read_committed and time.monotonic() - moved > settle:
                    blocked = [await consumer.position(tp) == consumer.last_stable_offset(tp) for tp in behind]
                    if all(blocked):
                        break
        finally:
            await consumer.stop()
    # Further records may have come in after the end was taken.
    records = [record for record in records if record.offset < ends[TopicPartition(topic, record.partition)]]
    return sorted(records, key=lambda record: (record.partition, record.offset))


async def committed(bootstrap: str, group: str, topic: str, within: float = 10.0) -> dict[int, int | None]:
    """Return the offset that a group has committed for each partition of a topic, None where it has none.

    Right after the commit of a transaction it may still be the offset before: aiokafka cannot ask for
    stable offsets only.
    """
    tps = [TopicPartition(topic, partition) for partition in await _partitions(bootstrap, topic)]
    async with asyncio.timeout(within), _Admin(bootstrap) as admin:
        while True:
            try:
                offsets = await admin.list_consumer_group_offsets(group, partitions=tps)
                break
            except KafkaError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.05)
    return {tp.partition: None if offsets[tp].offset < 0 else offsets[tp].offset for tp in tps}


def pairs(records: Sequence[ConsumerRecord]) -> list[Pair]:
    """Return the (key, value) pairs of records."""
    return [(record.key, record.value) for record in records]


async def _partitions(bootstrap: str, topic: str) -> list[int]:
    async with _Admin(bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
    if described["error_code"]:
        raise for_code(described["error_code"])(topic)
    return sorted(partition["partition"] for partition in described["partitions"])


class _Admin:
    """An admin client that closes; aiokafka's is no context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=10_000)

    async def __aenter__(self) -> AIOKafkaAdminClient:
        try:
            await self._client.start()
        except BaseException:
            await self._client.close()
            raise
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
