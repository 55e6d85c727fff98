"""What a replica reads: the input topics as a member of the group, and beside them what tells of misplaced records.

The notes about misplaced records are read by a second consumer, outside of the group's protocol: members of an older
version, which do not know that topic, can stay in the group meanwhile. To the loop both are one consumer.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, NoOffsetForPartitionError
from aiokafka.structs import OffsetAndMetadata

from sidecar.tail.fetching import Fetched

Batch = Mapping[TopicPartition, Sequence[Fetched]]

_ALL_HELD = 0.02
_COUNT_WITHIN = 2.0


class Inputs:
    """Read with two consumers as if they were one.

    Args:
        members: the consumer in the group, started and not subscribed.
        notes: a consumer without a group, started.
        topic: the topic that `notes` reads.
    """

    def __init__(self, members: AIOKafkaConsumer, notes: AIOKafkaConsumer, topic: str) -> None:
        self.members = members
        self.notes = notes
        self._topic = topic
        self._placed: set[TopicPartition] = set()

    def subscribe(self, topics: Sequence[str], listener: ConsumerRebalanceListener) -> None:
        """Join the group for the input topics."""
        self.members.subscribe([topic for topic in topics if topic != self._topic], listener=listener)

    def follow(self, numbers: Iterable[int]) -> None:
        """Read the notes of these partition numbers from now on; each has to be sought first."""
        self._placed = set()
        tps = [TopicPartition(self._topic, number) for number in numbers]
        if tps:
            self.notes.assign(tps)
        else:
            self.notes.unsubscribe()

    def assignment(self) -> set[TopicPartition]:
        """Return all partitions that can be fetched."""
        return {*self.members.assignment(), *self._placed}

    async def getmany(self, *wanted: TopicPartition, timeout_ms: int, max_records: int) -> Batch:
        """Fetch what there is of some partitions, by default of all.

        Args:
            wanted: the partitions.
            timeout_ms: how long to wait for the first record.
            max_records: the most records.
        """
        found: dict[TopicPartition, Any] = {}
        noted = [tp for tp in self._placed if not wanted or tp in wanted]
        if noted:
            with contextlib.suppress(NoOffsetForPartitionError):  # of before it was sought
                found.update(await self.notes.getmany(*noted, timeout_ms=0, max_records=max_records))
        read = [tp for tp in wanted if tp.topic != self._topic]
        if wanted and not read:
            if not found:
                await asyncio.sleep(min(_ALL_HELD, timeout_ms / 1000))
            return cast(Batch, found)
        found.update(await self.members.getmany(*read, timeout_ms=0 if found else timeout_ms, max_records=max_records))
        return cast(Batch, found)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on at an offset."""
        self._of(tp).seek(tp, offset)
        if tp.topic == self._topic:
            self._placed.add(tp)

    async def position(self, tp: TopicPartition) -> int:
        """Return the next offset that is fetched."""
        return cast(int, await self._of(tp).position(tp))

    def highwater(self, tp: TopicPartition) -> int | None:
        """Return where a partition ended at the last fetch; None: not known yet."""
        return cast("int | None", self._of(tp).highwater(tp))

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        """Return up to where a partition can be read because no transaction is open; None: not known yet."""
        return cast("int | None", self._of(tp).last_stable_offset(tp))

    def last_poll_timestamp(self, tp: TopicPartition) -> int | None:
        """Return the Unix time (ms) of the last answer for a partition."""
        return cast("int | None", self._of(tp).last_poll_timestamp(tp))

    async def committed(self, tp: TopicPartition) -> int | None:
        """Return the group's committed offset."""
        return cast("int | None", await self.members.committed(tp))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for the group, those of the notes with the others.

        Raises:
            IllegalStateError: a partition is not this member's any more.
            CommitFailedError: the group has rebalanced.
        """
        subscription = self.members._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        mine = assignment.tps if assignment is not None else set()
        if lost := [tp for tp in offsets if tp.topic != self._topic and tp not in mine]:
            raise IllegalStateError(f"Partitions {lost} are not assigned")
        # Not `commit`, which takes only what the group assigned.
        coordinator: Any = self.members._coordinator
        await coordinator.commit_offsets(
            assignment, {tp: OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        )

    async def beginning_offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets."""
        return cast(dict[TopicPartition, int], await self.members.beginning_offsets(list(tps)))

    async def end_offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions end."""
        return cast(dict[TopicPartition, int], await self.members.end_offsets(list(tps)))

    async def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Ask a broker how many partitions topics have now; those that it does not tell are left out.

        Raises:
            TimeoutError: none answered.
        """
        client = self.notes._client
        names = list(topics)
        async with asyncio.timeout(_COUNT_WITHIN):
            for topic in names:
                # Assigning other partitions makes the client forget the topics that it looks at besides.
                await client.add_topic(topic)
            if not await client.force_metadata_update():
                raise TimeoutError("no broker told how many partitions the topics have")
        found: Callable[[str], set[int] | None] = client.cluster.partitions_for_topic
        return {topic: len(numbers) for topic in names if (numbers := found(topic))}

    def _of(self, tp: TopicPartition) -> AIOKafkaConsumer:
        return self.notes if tp.topic == self._topic else self.members
