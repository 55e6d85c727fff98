"""Open and close Kafka clients without hanging: on a dead seed, on a broker that went away."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    TransactionalIdAuthorizationFailed,
    UnknownError,
    UnsupportedVersionError,
)

from sidecar import brokers
from sidecar.config import Settings
from sidecar.observe.logs import get_logger
from sidecar.tail.errors import TailError

log = get_logger(__name__)

STARTUP_TIMEOUT = 30.0
"""Seconds in which a broker must have answered, else the start is an error."""

_BACKOFF_MS = 5
_LEAST_PATIENCE_MS = 100
_NO_IDEMPOTENCE = (
    UnknownError,
    UnsupportedVersionError,
    IncompatibleBrokerVersion,
    ClusterAuthorizationFailedError,
)


async def reach(settings: Settings, within: float = STARTUP_TIMEOUT) -> dict[str, Any]:
    """Wait until one of the bootstrap servers answers, and return the options for clients, with those that did.

    Args:
        settings: the settings tree; its `kafka` section is used.
        within: seconds to try.

    Raises:
        TailError: none answered in time, or they refuse; the addresses, the failures and the settings are named.
    """
    try:
        return await brokers.reach(settings.kafka.client_options(), within, brokers.SETTINGS)
    except brokers.Unreached as error:
        raise TailError(str(error)) from None


async def open_consumer(options: Mapping[str, Any], **more: Any) -> AIOKafkaConsumer:
    """Return a consumer that has started; `options` come from `reach`."""
    consumer = AIOKafkaConsumer(**{**options, **more})
    try:
        await consumer.start()
    except BaseException:
        await close_consumer(consumer)
        raise
    return consumer


async def open_producer(options: Mapping[str, Any], **more: Any) -> AIOKafkaProducer:
    """Return a producer that has started: idempotent where the broker supports it, always with acks=all.

    Args:
        options: come from `reach`.
        more: further arguments for the producer.

    Raises:
        KafkaError: it could not be started.
    """
    arguments = {**options, **more}
    try:
        return await _started(AIOKafkaProducer(acks="all", enable_idempotence=True, **arguments))
    except _NO_IDEMPOTENCE as error:
        log.info("the broker has no idempotent producer: repeats by retries are possible", error=repr(error))
    return await _started(AIOKafkaProducer(acks="all", **arguments))


async def open_transactional(options: Mapping[str, Any], name: str, ends_after: float) -> AIOKafkaProducer:
    """Return a transactional producer that has started; whoever had its name before is fenced.

    Args:
        options: come from `reach`.
        name: the `transactional.id`.
        ends_after: seconds after which the broker ends a transaction that is left open.

    Raises:
        TailError: the broker has no transactions, or does not let us.
        KafkaError: it could not be started.
    """
    # Begun right after the last one's commit, a transaction is answered with "try again": soon, not in 100 ms.
    arguments = {**options, "retry_backoff_ms": _BACKOFF_MS}
    producer = AIOKafkaProducer(
        acks="all", transactional_id=name, transaction_timeout_ms=round(ends_after * 1000), **arguments
    )
    _ask_patiently(producer, options.get("retry_backoff_ms", _LEAST_PATIENCE_MS) / 1000)
    try:
        return await _started(producer)
    except (TransactionalIdAuthorizationFailed, ClusterAuthorizationFailedError) as error:
        raise TailError(
            f"The broker does not let the sidecar use transactions ({error!r}): grant its principal the ACLs WRITE and"
            f" DESCRIBE on the transactional id {name} (or the prefix before the last hyphen), or set tail.guarantee to"
            " at_least_once."
        ) from error
    except _NO_IDEMPOTENCE as error:
        raise TailError(
            "The guarantee exactly_once needs a broker with transactions, and this one has none"
            f" ({error!r}). Use another broker, or say --guarantee at_least_once (the setting tail.guarantee): after a"
            " crash some findings and halts then come again, under the same ids."
        ) from error


def _ask_patiently(producer: AIOKafkaProducer, pause: float) -> None:
    """Let a producer that repeats its requests soon not ask for a broker that is away as often, and log it each time.

    This reaches into aiokafka; where a version of it looks different, nothing is changed.
    """
    client = producer.client
    update = getattr(client, "_metadata_update", None)
    if update is None:
        return

    async def patiently(*arguments: Any) -> bool:
        updated: bool = await update(*arguments)
        if not updated:
            await asyncio.sleep(pause)
        return updated

    setattr(client, "_metadata_update", patiently)  # noqa: B010 - for mypy it is a method


async def _started(producer: AIOKafkaProducer) -> AIOKafkaProducer:
    try:
        await producer.start()
    except BaseException:
        await close_producer(producer)
        raise
    return producer


async def close_consumer(consumer: AIOKafkaConsumer, within: float = 10.0) -> None:
    """Leave the group and close, in bounded time also when the broker is away."""
    if not await _bounded(consumer.stop(), within, "consumer"):
        await _bounded(consumer._client.close(), 1.0, "consumer")


async def close_producer(producer: AIOKafkaProducer, within: float = 10.0) -> None:
    """Deliver what is buffered and close; drop it where the broker stays away for `within` seconds."""
    if not await _bounded(producer.flush(), within, "producer"):
        # An idempotent producer never gives up a batch, so that `stop` would wait for ever.
        producer._message_accumulator.fail_all(KafkaConnectionError("the broker is away"))
    if not await _bounded(producer.stop(), within, "producer"):
        await _bounded(producer.client.close(), 1.0, "producer")
    # aiokafka leaves behind the failures of batches that nobody waits for, and the event loop would report each.
    accumulator = producer._message_accumulator
    for batch in (*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches):
        if (drained := batch._drain_waiter).done() and not drained.cancelled():
            drained.exception()


async def _bounded(closing: Coroutine[Any, Any, Any], within: float, what: str) -> bool:
    # In a task of its own, because aiokafka, closing while a request waits to be repeated, raises CancelledError.
    task = asyncio.create_task(closing)
    try:
        await asyncio.wait((task,), timeout=within)
    finally:
        task.cancel()
    await asyncio.wait((task,), timeout=1.0)
    if not task.done() or task.cancelled():
        log.warning("could not be closed cleanly", client=what)
        return False
    if error := task.exception():
        log.warning("could not be closed cleanly", client=what, error=repr(error))
        return False
    return True
