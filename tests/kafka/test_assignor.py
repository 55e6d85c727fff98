"""The assignor in a real group: members join, leave, come back, and the numbers go where they should."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from sidecar.tail.assignor import StickyAssignor, sticky_assignor
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics

PARTITIONS = 8


class Member(ConsumerRebalanceListener):
    """One consumer of the group, and how often partitions were assigned to it."""

    def __init__(self, bootstrap: str, unique: str, instance: str | None = None, topics: Collection[str] = ()) -> None:
        self.topics = topics or (f"{unique}events", f"{unique}compactions")
        self.assigned = 0
        self.assignor: type[StickyAssignor] = sticky_assignor(instance)
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=f"{unique}group",
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(self.assignor,),
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
            rebalance_timeout_ms=5000,
            retry_backoff_ms=20,
        )

    async def start(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(list(self.topics), listener=self)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.assigned += 1

    @property
    def numbers(self) -> set[int]:
        """Return the partition numbers it has, of which it has to have all topics."""
        by_topic = {topic: set[int]() for topic in self.topics}
        for tp in self.consumer.assignment():
            by_topic[tp.topic].add(tp.partition)
        (numbers, *others) = by_topic.values()
        assert all(other == numbers for other in others)
        return numbers


async def shared(*members: Member) -> list[set[int]]:
    """Wait until the members have all numbers between them and none twice, and return who has which."""
    async with asyncio.timeout(15):
        while True:
            shares = [member.numbers for member in members]
            if all(shares) and sorted(n for share in shares for n in share) == list(range(PARTITIONS)):
                assert max(map(len, shares)) - min(map(len, shares)) <= 1
                return shares
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def started(*members: Member) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(member.start() for member in members))
        yield
    finally:
        await asyncio.gather(*(member.consumer.stop() for member in members))


@pytest.fixture
async def bootstrap(kafka: KafkaBroker, unique: str) -> str:
    await create_topics(kafka.bootstrap, f"{unique}events", f"{unique}compactions", partitions=PARTITIONS)
    return kafka.bootstrap


async def test_members_that_join_and_leave_move_only_what_they_must(bootstrap: str, unique: str) -> None:
    one, two, three = (Member(bootstrap, unique) for _ in range(3))
    async with started(one):
        await shared(one)
        async with started(two):
            (first, second) = await shared(one, two)
            async with started(three):
                shares = await shared(one, two, three)
                assert shares[0] <= first and shares[1] <= second
                third = shares[2]
            after = await shared(one, two)
            assert shares[0] <= after[0] and shares[1] <= after[1]
            # Another one takes just what they took over.
            four = Member(bootstrap, unique)
            async with started(four):
                assert await shared(one, two, four) == [*shares[:2], third]


async def test_a_static_member_that_restarts_moves_nothing(bootstrap: str, unique: str) -> None:
    names = ("replica-0", "replica-1", "replica-2")
    members = [Member(bootstrap, unique, name) for name in names]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(started(*members))
        before = await shared(*members)
        # Also the one that leads the group, whichever that is.
        for index, name in enumerate(names):
            counts = [member.assigned for member in members]
            await members[index].consumer.stop()
            members[index] = Member(bootstrap, unique, name)
            await stack.enter_async_context(started(members[index]))
            assert await shared(*members) == before
            await asyncio.sleep(0.5)  # several heartbeats, by which the others would hear of a rebalance
            counts[index] = 1
            assert [member.assigned for member in members] == counts
        # None has its old memory now; what they were told at their return is as good.
        fourth = Member(bootstrap, unique, "replica-3")
        await stack.enter_async_context(started(fourth))
        after = await shared(*members, fourth)
        assert all(share <= had for share, had in zip(after, before, strict=False))


async def test_static_members_that_are_down_while_another_joins_keep_their_shares(bootstrap: str, unique: str) -> None:
    names = [f"replica-{i}" for i in range(4)]
    members = [Member(bootstrap, unique, name) for name in names]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(started(*members))
        before = await shared(*members)
        await asyncio.gather(*(member.consumer.stop() for member in members[1:]))
        new = Member(bootstrap, unique, "replica-4")
        await stack.enter_async_context(started(new))
        await asyncio.sleep(0.3)
        members[1:] = [Member(bootstrap, unique, name) for name in names[1:]]
        await stack.enter_async_context(started(*members[1:]))
        after = await shared(*members, new)
        assert all(share <= had for share, had in zip(after, before, strict=False))


async def test_a_member_that_reads_other_topics_is_refused_with_the_reason(bootstrap: str, unique: str) -> None:
    one, other = Member(bootstrap, unique), Member(bootstrap, unique, topics=[f"{unique}events"])
    async with started(one):
        await shared(one)
        async with started(other):
            # Whoever leads is told.
            polls = [asyncio.create_task(_polled(member)) for member in (one, other)]
            done, pending = await asyncio.wait(polls, timeout=15, return_when=asyncio.FIRST_COMPLETED)
            for poll in pending:
                poll.cancel()
            await asyncio.wait(polls)
            assert any("read different topics" in poll.result() for poll in done)
        await shared(one)


async def _polled(member: Member) -> str:
    while True:
        try:
            await member.consumer.getmany(timeout_ms=100)
        except KafkaError as error:
            return str(error)
