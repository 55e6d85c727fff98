"""Where a task begins: which offsets it reads first, and up to where it keeps silent.

Without snapshots a task's state can only be had from its log: it is folded again from the first offset there is.

What follows from that, until decisions are kept with the state:

- A missing position that had been given up by the clock is waited for again, with a clock that starts when the task
  speaks again. Its findings, and those of the records behind it, then come again under the same ids; and a record that
  came too late the first time may be in time now, so that what was said about the gap stands without one in the state.
- Where retention has deleted the beginning of a session, its first positions are missing, and are given up anew.
- Two records that claim one position on two topics: which came first may be seen differently the second time.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from sidecar.observe.logs import get_logger
from sidecar.tail.task import Task

log = get_logger(__name__)

_PATIENCE = 15.0


async def place(consumer: AIOKafkaConsumer, task: Task, latest: bool) -> None:
    """Find out where a task begins, and tell it.

    The consumer is not moved here: whoever calls this seeks, once it is sure that the task is still its own.

    Args:
        consumer: a member of the group that the task's partitions are assigned to.
        task: the task; its outputs are open already.
        latest: begin at the end of partitions for which the group has committed nothing.

    Raises:
        KafkaError: the offsets could not be had.
        TimeoutError: the group's coordinator did not answer.
    """
    tps = {topic: task.partition(topic) for topic in task.topics}
    async with asyncio.timeout(_PATIENCE):
        answers = await asyncio.gather(*(consumer.committed(tp) for tp in tps.values()))
        committed = {topic: offset for topic, offset in zip(tps, answers, strict=True) if offset is not None}
        first: dict[TopicPartition, int] = await consumer.beginning_offsets(list(tps.values()))
        if latest and not committed:
            first = await consumer.end_offsets(list(tps.values()))
    start = {topic: first[tp] for topic, tp in tps.items()}
    for topic, offset in list(committed.items()):
        if offset < start[topic]:
            report_lost(tps[topic], offset, start[topic])
    task.place(start, committed)
    if task.silent:
        log.info("restoring from the log", partition=task.number, start=start, committed=committed)


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
