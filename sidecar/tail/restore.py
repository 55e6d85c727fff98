"""Where a task begins: with which sessions, which offsets it reads first, and up to where it keeps silent.

What was kept on the snapshot topic stands at the offsets of its marker. From there to the committed offsets the log is
folded again in silence, because what follows from it has been said; then the task speaks. Without snapshots that can
be used, all of the log is folded again.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition

from sidecar.observe.logs import get_logger
from sidecar.protocol.outputs import Source
from sidecar.tail.errors import PartitionsChanged
from sidecar.tail.homes import Homes
from sidecar.tail.inputs import Inputs
from sidecar.tail.keeping import Keeper
from sidecar.tail.misplaced import Stray
from sidecar.tail.snapshots import Kept, Progress
from sidecar.tail.task import Task

log = get_logger(__name__)

_PATIENCE = 15.0


async def place(
    consumer: Inputs,
    task: Task,
    keeper: Keeper,
    options: Mapping[str, Any],
    latest: bool,
    homes: Homes,
    on_progress: Callable[[Progress], None] | None = None,
) -> bool:
    """Give a task the sessions that were kept of it, and find out where it begins.

    The consumer is not moved here: whoever calls this seeks, once it is sure that the task is still its own.

    Args:
        consumer: a member of the group that the task's partitions are assigned to.
        task: the task; its outputs are open already, so that no predecessor writes any more.
        keeper: the task's.
        options: client options, from `clients.reach`.
        latest: begin at the end of partitions for which the group has committed nothing.
        homes: knows which sessions belong to which task.
        on_progress: called while the snapshots are read.

    Returns:
        Whether the snapshots could be used.

    Raises:
        KafkaError: the offsets or the snapshots could not be had.
        PartitionsChanged: they belong to other partitions, or another partitioner.
        TimeoutError: the group's coordinator did not answer.
    """
    tps = {topic: task.partition(topic) for topic in task.topics}
    async with asyncio.timeout(_PATIENCE):
        answers = await asyncio.gather(*(consumer.committed(tp) for tp in tps.values()))
        committed = {topic: offset for topic, offset in zip(tps, answers, strict=True) if offset is not None}
        first: dict[TopicPartition, int] = await consumer.beginning_offsets(list(tps.values()))
    restored = await keeper.read(options, on_progress)
    marker = restored.marker if restored is not None else None
    if latest and not committed and marker is None:
        async with asyncio.timeout(_PATIENCE):
            first = await consumer.end_offsets(list(tps.values()))
    start = {topic: first[tp] for topic, tp in tps.items()}
    task.start_over()
    if marker is not None:
        start.update({topic: offset for topic, offset in marker.positions.items() if topic in start})
        behind = [topic for topic, offset in committed.items() if offset < start[topic]]
        if behind:
            log.error(
                "the committed offsets are behind the snapshot: somebody moved them, which does not make the sidecar"
                " judge anything again; it goes on from the snapshot (to start over: sidecar run --reset)",
                partition=task.number,
                topics=behind,
            )
    if restored is not None and not (marker is not None and marker.layout.partitioner):
        task.strangers = _strangers(restored.sessions, task, homes)
    for kept in restored.sessions if restored is not None else ():
        if kept.frozen.state:  # without, it was too large to be kept: its first positions will be missing
            task.adopt(kept.frozen, kept.positions, start)
    for topic, tp in tps.items():
        if start[topic] < first[tp]:
            report_lost(tp, start[topic], first[tp])
            task.lost.append(lost_range(tp, start[topic], first[tp]))
            start[topic] = first[tp]
        elif marker is None and topic in committed and start[topic] > 0:
            report_lost(tp, 0, start[topic])
            task.lost.append(lost_range(tp, 0, start[topic]))
    task.place(start, committed)
    if task.silent:
        log.info("restoring", partition=task.number, sessions=len(task.engine), start=start, committed=committed)
    return restored is not None


def _strangers(sessions: Sequence[Kept], task: Task, homes: Homes) -> list[Stray]:
    """Return which of a task's kept sessions belong to another one; only an older version kept such.

    Raises:
        PartitionsChanged: most do, so that `kafka.partitioner` is not what the producers use.
    """
    foreign = [(kept, home) for kept in sessions if (home := homes.of(kept.frozen.session_id)) != task.number]
    if 2 * len(foreign) > len(sessions):
        raise PartitionsChanged(
            f"Of {len(sessions)} sessions that were kept of partition {task.number}, {len(foreign)} would be in another"
            f" one by the partitioner {homes.partitioner}: the producers use another. Set kafka.partitioner to theirs"
            " (librdkafka's default is crc32; Java and aiokafka use murmur2) and start again. Until then nothing is"
            " read, and the guard refuses every question."
        )
    topic = task.topics[0]
    return [
        Stray(kept.frozen.session_id, home, Source(topic, task.number, kept.positions.get(topic, 0)))
        for kept, home in foreign
    ]


def lost_range(tp: TopicPartition, first: int, after: int) -> str:
    """Return a lost range as findings name it."""
    return f"{tp.topic}/{tp.partition}: {first} to {after - 1}"


def report_lost(tp: TopicPartition, first: int, after: int) -> None:
    """Log that a range of a topic is gone before it was judged."""
    log.error(
        "records were deleted before they were read: sessions that had some there cannot be verified",
        topic=tp.topic,
        partition=tp.partition,
        lost=f"{first} to {after - 1}",
        continuing_at=after,
    )


def report_short(tp: TopicPartition, end: int, committed: int) -> None:
    """Log that a topic ends before what the group has read of it."""
    log.error(
        "the topic ends before the offset that was committed: it was truncated or made anew",
        topic=tp.topic,
        partition=tp.partition,
        lost=f"{end} to {committed - 1}",
        continuing_at=end,
    )
