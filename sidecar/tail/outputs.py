"""Where findings, halts and dead letters leave the process, and with which guarantee.

The loop knows `Outputs` only. A task's outputs are opened before its committed offsets are read (a transactional
producer has to fence its predecessor first), sent batch by batch, and committed together with the offsets they
come from.
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError, TopicAuthorizationFailedError
from aiokafka.structs import RecordMetadata

from sidecar.observe.logs import get_logger
from sidecar.tail.clients import close_producer
from sidecar.tail.errors import TailError
from sidecar.tail.messages import Message, shrunk

log = get_logger(__name__)

Offsets = Mapping[TopicPartition, int]

_TURNS = 8
_FIRST_BACKOFF, _LAST_BACKOFF = 0.05, 5.0


class Outputs(Protocol):
    """Take what the tasks have to say, and commit it with the offsets it comes from."""

    seen_when_committed: bool
    """Whether readers see an output only after the commit, so that a halt must not wait for the interval."""

    async def open(self, number: int) -> None:
        """Make ready for a task, before its committed offsets are read."""

    async def send(self, number: int, messages: Sequence[Message]) -> None:
        """Take a batch of a task; it may be delivered at once, or with the commit."""

    async def hurry(self, number: int) -> None:
        """See that what was sent for a task is on its way before more is worked on: there was a halt in it."""

    async def commit(self, offsets: Mapping[int, Offsets]) -> None:
        """Deliver everything taken, then commit these offsets, by task.

        Raises:
            TailError: the broker does not let us.
            KafkaError: the offsets were not committed; what was delivered stays delivered.
        """

    transactional: bool
    """Whether what is sent is committed with the offsets; else it is delivered before them."""

    async def discard(self, numbers: Iterable[int]) -> None:
        """Forget tasks that belong to somebody else now: nothing more is written for them."""

    async def close(self) -> None:
        """Close; what has not been committed is not waited for."""

    def waiting_since(self) -> float | None:
        """Return since when (loop time) a broker's acknowledgement is awaited in vain; None: it is not."""


class AtLeastOnce:
    """Deliver first, commit the offsets then: after a crash the last outputs come again, with the same ids.

    Args:
        open_producer: opens a producer; called again when one has failed.
        commit: commits offsets for the consumer group.
        most: how many outputs may be under way before sending waits.
    """

    seen_when_committed = False
    transactional = False

    def __init__(
        self,
        open_producer: Callable[[], Awaitable[AIOKafkaProducer]],
        commit: Callable[[Offsets], Awaitable[None]],
        most: int = 100_000,
    ) -> None:
        self._open_producer = open_producer
        self._commit = commit
        self._most = most
        self._producer: AIOKafkaProducer | None = None
        # In the order of sending; both lists are cut together. None: not handed to the producer.
        self._messages: list[Message] = []
        self._futures: list[asyncio.Future[RecordMetadata] | None] = []
        self._since: float | None = None

    async def open(self, number: int) -> None:
        await self._ready()

    async def send(self, number: int, messages: Sequence[Message]) -> None:
        for message in messages:
            self._messages.append(message)
            self._futures.append(await self._hand_over(message))
        if len(self._messages) > self._most:
            await self._acknowledged()

    async def hurry(self, number: int) -> None:
        # The producer works in tasks of its own, which need some turns of the event loop to get a request out.
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def commit(self, offsets: Mapping[int, Offsets]) -> None:
        await self._acknowledged()
        together = {tp: offset for task in offsets.values() for tp, offset in task.items()}
        if together:
            await self._commit(together)

    async def discard(self, numbers: Iterable[int]) -> None:
        # One producer serves all tasks, and all are lost at once: what it still holds must not be written after
        # the new owner's outputs (a late `halt` behind the new owner's `clear` would stand for ever).
        if self._messages:
            await self._drop_producer()
            self._forget(len(self._messages))

    async def close(self) -> None:
        await self._drop_producer()
        self._forget(len(self._messages))

    def waiting_since(self) -> float | None:
        return self._since

    async def _ready(self) -> AIOKafkaProducer:
        if self._producer is None:
            self._producer = await self._open_producer()
        return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, within=1.0)

    def _forget(self, count: int) -> None:
        for future in self._futures[:count]:
            if future is not None and future.done() and not future.cancelled():
                future.exception()  # Retrieved, so that the loop does not report it when it is collected.
        del self._messages[:count], self._futures[:count]

    async def _hand_over(self, message: Message) -> asyncio.Future[RecordMetadata] | None:
        """Give a message to the producer; None where that failed (`_acknowledged` will try again)."""
        while True:
            self._since = self._since or asyncio.get_running_loop().time()
            try:
                producer = await self._ready()
                future: asyncio.Future[RecordMetadata] = await producer.send(
                    message.topic, message.value, message.key, message.partition
                )
            except MessageSizeTooLargeError as error:
                if not shrunk(message):
                    log.error("an output is too large, however short", topic=message.topic, error=str(error))
                    return None
            except KafkaError as error:
                log.warning("an output could not be sent yet", topic=message.topic, error=repr(error))
                return None
            else:
                self._since = None
                return future

    async def _acknowledged(self) -> None:
        """Wait until every message sent has been acknowledged, sending again what fails, for as long as it takes."""
        backoff = _FIRST_BACKOFF
        while self._messages:
            delivered, error = await self._delivered()
            self._forget(delivered)
            if not self._messages:
                break
            if isinstance(error, TopicAuthorizationFailedError):
                topic = self._messages[0].topic
                raise TailError(
                    f"The broker does not let the sidecar write to the topic {topic}: grant its principal the ACL WRITE"
                    " on it. Nothing is lost: what could not be written has not been committed."
                )
            # The broker may take less than the producer thought. A message larger than a producer's batch travels
            # alone, so this one was it.
            too_large = isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError)
            if not (too_large and shrunk(self._messages[0])):
                log.warning("outputs were not acknowledged; trying again", count=len(self._messages), error=repr(error))
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF)
            # A new producer, because after a refused batch an idempotent one has a hole in its sequence. And all
            # again from the first failure on, because a `clear` must not come before its `halt`.
            await self._drop_producer()
            self._forget_futures()
            for index, message in enumerate(self._messages):
                self._futures[index] = future = await self._hand_over(message)
                if future is None:
                    break

    def _forget_futures(self) -> None:
        messages = list(self._messages)
        self._forget(len(messages))
        self._messages = messages
        self._futures = [None] * len(messages)

    async def _delivered(self) -> tuple[int, BaseException | None]:
        """Return how many messages from the first on were acknowledged, and why the next one was not."""
        loop = asyncio.get_running_loop()
        for index, future in enumerate(self._futures):
            if future is None:
                return index, None
            if not future.done():
                self._since = loop.time()
                # Not awaited itself: whoever cancels us must not cancel the message.
                await asyncio.wait([future])
                self._since = None
            if future.cancelled():
                return index, None
            if error := future.exception():
                return index, error
        return len(self._messages), None
