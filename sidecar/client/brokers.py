"""What the Kafka clients of this package share: reaching a broker, looking at topics, closing without hanging."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from itertools import chain
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from sidecar import brokers
from sidecar.client.errors import BrokerError, BrokerRefusal

log = logging.getLogger(__name__)

_NO_IDEMPOTENCE = (UnknownError, UnsupportedVersionError, IncompatibleBrokerVersion, ClusterAuthorizationFailedError)


async def reach(options: Mapping[str, Any], within: float) -> dict[str, Any]:
    """Wait until one of the servers answers, and return the options with those that did.

    Raises:
        BrokerRefusal: they do not let this client in.
        BrokerError: none answered; each is named with its failure.
    """
    try:
        return await brokers.reach(options, within, brokers.ARGUMENTS)
    except brokers.Unreached as error:
        raise (BrokerRefusal if error.refused else BrokerError)(str(error)) from None


async def partition_counts(client: Any, topics: Iterable[str], needed: Literal["READ", "WRITE"]) -> dict[str, int]:
    """Return how many partitions topics have.

    Args:
        client: an `AIOKafkaClient` that has been bootstrapped.
        topics: the topics; they are not created by being asked for.
        needed: what this client needs on them.

    Raises:
        BrokerError: one does not exist, or may not be seen.
        KafkaError: the broker did not answer.
    """
    reply = (await client.send(client.get_random_node(), MetadataRequest(list(topics), False))).to_object()
    counts = {}
    for topic in reply["topics"]:
        name, error = topic["topic"], for_code(topic["error_code"])
        if error is TopicAuthorizationFailedError:
            raise BrokerError(
                f"The broker does not let this client see the topic {name}: grant its principal the ACL {needed} on it."
            )
        if not topic["partitions"]:
            raise BrokerError(
                f"There is no topic {name} ({error.__name__}): create it, say with `sidecar topics --create`, or name"
                " another one."
            )
        counts[name] = len(topic["partitions"])
    return counts


async def open_producer(options: Mapping[str, Any], **more: Any) -> AIOKafkaProducer:
    """Return a producer that has started, with acks=all, and idempotent where the broker has that.

    Raises:
        KafkaError: it could not be started.
    """
    arguments = {**options, **more, "acks": "all"}
    try:
        return await _started(AIOKafkaProducer(enable_idempotence=True, **arguments))
    except _NO_IDEMPOTENCE as error:
        log.info("the broker has no idempotent producer (%r): retries may repeat a record", error)
    return await _started(AIOKafkaProducer(**arguments))


async def _started(producer: AIOKafkaProducer) -> AIOKafkaProducer:
    try:
        await producer.start()
    except BaseException:
        await close_producer(producer)
        raise
    return producer


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer at once; what it has not delivered is dropped."""
    # An idempotent producer never gives up a batch, so that `stop` would wait for ever.
    accumulator, sending = producer._message_accumulator, producer._sender.sender_task
    if sending is not None:  # it stumbles over a batch that was taken from it, and its callback over that
        sending.remove_done_callback(producer._sender._fail_all)
    accumulator.fail_all(KafkaConnectionError("the producer was closed"))
    if not await _bounded(producer.stop(), 3.0):
        await _bounded(producer.client.close(), 1.0)
    # aiokafka leaves behind the failures of batches that nobody waits for, and the event loop would report each.
    left = [sending] if sending is not None else []
    for batch in (*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches):
        left += batch._drain_waiter, batch.future
    for future in left:
        if future.done() and not future.cancelled():
            future.exception()


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Close a consumer in bounded time, also when the broker is away."""
    if not await _bounded(consumer.stop(), 3.0):
        await _bounded(consumer._client.close(), 1.0)


async def _bounded(closing: Coroutine[Any, Any, Any], within: float) -> bool:
    # In a task of its own, because aiokafka, closing while a request waits to be repeated, raises CancelledError.
    task = asyncio.create_task(closing)
    try:
        await asyncio.wait((task,), timeout=within)
    finally:
        task.cancel()
    await asyncio.wait((task,), timeout=1.0)
    if not task.done() or task.cancelled():
        log.debug("a Kafka client could not be closed cleanly")
        return False
    if error := task.exception():
        log.debug("a Kafka client could not be closed cleanly: %r", error)
        return False
    return True
