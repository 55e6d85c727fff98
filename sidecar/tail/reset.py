"""Start over: forget what was kept and judge the log again from its first record."""

# mypy: untyped-calls-exclude="aiokafka"

from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from sidecar.config import Settings
from sidecar.observe.logs import get_logger
from sidecar.tail.clients import (
    STARTUP_TIMEOUT,
    close_consumer,
    close_producer,
    open_consumer,
    open_producer,
    open_transactional,
    reach,
)
from sidecar.tail.envelope import Layout
from sidecar.tail.errors import TailError
from sidecar.tail.layout import layout_today
from sidecar.tail.snapshots import SnapshotError, SnapshotWriter, origin_of, read_snapshots
from sidecar.tail.topics import check_room, create_missing

log = get_logger(__name__)

_IDLE = ("Empty", "Dead")


async def reset(settings: Settings, within: float = STARTUP_TIMEOUT) -> None:
    """Set the group back to the first records of its inputs, and declare its snapshots void.

    Every finding and halt is written again, under the same ids. All replicas have to be stopped.

    Args:
        settings: the settings tree.
        within: seconds in which a broker must answer.

    Raises:
        TailError: replicas are running, or the broker cannot be reached or does not let us.
    """
    options = await reach(settings, within)
    created = await create_missing(settings, options=options, within=within)
    counts = {spec.name: spec.partitions for spec in (*created.created, *created.existing)}
    check_room(settings, counts)
    partitions, layout = counts[settings.topics.events], layout_today(settings, counts)
    try:
        await _see_that_nobody_runs(settings, options)
        consumer = await open_consumer(options, group_id=settings.tail.group_id, enable_auto_commit=False)
        try:
            for number in range(partitions):
                await _reset_task(settings, options, consumer, number, partitions, layout)
        finally:
            await close_consumer(consumer)
    except (KafkaError, TimeoutError) as error:
        raise TailError(f"The group {settings.tail.group_id} could not be reset: {error!r}.") from error
    log.warning("reset: everything is judged again", group=settings.tail.group_id, partitions=partitions)


async def _see_that_nobody_runs(settings: Settings, options: Mapping[str, Any]) -> None:
    group = settings.tail.group_id
    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    try:
        (answer,) = await admin.describe_consumer_groups([group])
    finally:
        await admin.close()
    groups: list[tuple[Any, ...]] = answer.groups  # type: ignore[attr-defined]
    for described in groups:
        state, members = described[2], described[5]
        if members and state not in _IDLE:
            raise TailError(
                f"The group {group} has {len(members)} running member(s): stop every replica before --reset (one that"
                " was killed is a member until its session times out)."
            )


async def _reset_task(
    settings: Settings,
    options: Mapping[str, Any],
    consumer: AIOKafkaConsumer,
    number: int,
    partitions: int,
    layout: Layout,
) -> None:
    tail, topic, inputs = settings.tail, settings.topics.snapshots, settings.topics.inputs
    origin = origin_of(tail.group_id, inputs, partitions, number)
    exactly_once = tail.guarantee == "exactly_once"
    # Opened first: it fences whoever may still hold the task.
    producer = (
        await open_transactional(options, f"{tail.group_id}-{number}", tail.transaction_timeout)
        if exactly_once
        else await open_producer(options)
    )
    try:
        try:
            following = (await read_snapshots(options, topic, number, origin)).next_number
        except SnapshotError as error:
            following = error.next_number
        tps = [TopicPartition(name, number) for name in settings.topics.followed]
        first: dict[TopicPartition, int] = await consumer.beginning_offsets(tps)
        positions = {tp.topic: offset for tp, offset in first.items()}
        offsets = {tp: OffsetAndMetadata(offset, "") for tp, offset in first.items()}
        if exactly_once:
            await producer.begin_transaction()
        writer = SnapshotWriter(topic, number, origin, following, layout=layout)
        for message in writer.round((), (), positions, 0, anew=True):
            await producer.send_and_wait(message.topic, message.value, message.key, message.partition)
        if exactly_once:
            await producer.send_offsets_to_transaction(offsets, tail.group_id)
            await producer.commit_transaction()
        else:
            consumer.assign(tps)
            await consumer.commit(offsets)
    finally:
        await close_producer(producer)
