"""Outputs and input offsets in one Kafka transaction: a reader that reads committed records sees each output once.

Each task has a producer of its own, whose `transactional.id` names the task. Opening it ends whatever transaction a
predecessor left open, and fences the predecessor: one that still believes in its partitions can commit nothing more.
(That the offsets carry no generation of the group, as aiokafka sends them, is why the tasks need this.)
"""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import OffsetAndMetadata, RecordMetadata

from sidecar.observe.logs import get_logger
from sidecar.tail.clients import close_producer
from sidecar.tail.errors import TailError
from sidecar.tail.messages import MAX_MESSAGE, Message, shrunk
from sidecar.tail.outputs import Offsets

log = get_logger(__name__)

_ABORT_WITHIN = 2.0


class _Transaction:
    """Keep one task's producer, and what is in its open transaction."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.producer = producer
        self.begun = False
        self.futures: list[asyncio.Future[RecordMetadata]] = []

    async def begin(self) -> None:
        if not self.begun:
            await self.producer.begin_transaction()
            self.begun = True

    async def send(self, message: Message) -> None:
        future = await self.producer.send(message.topic, message.value, message.key, message.partition)
        # Whatever becomes of the transaction, the event loop need not report what became of its messages.
        future.add_done_callback(_error)
        self.futures.append(future)

    @contextlib.contextmanager
    def failing_as_it_failed(self, number: int) -> Iterator[None]:
        """Raise what has failed: aiokafka, where its sender failed behind our back, only says that it is too late."""
        try:
            yield
        except (KafkaError, IllegalOperation, AssertionError) as error:
            sender = self.producer._sender.sender_task
            behind = sender.exception() if sender is not None and sender.done() and not sender.cancelled() else None
            cause = behind or error
            if isinstance(cause, ProducerFenced):
                log.warning(
                    "another replica has taken the partition over, or the transaction took longer than"
                    " tail.transaction_timeout; starting over",
                    partition=number,
                )
            if not isinstance(cause, KafkaError):
                raise KafkaError(f"the transaction failed: {cause!r}") from error
            raise cause  # noqa: B904 - it came before `error`, and explains it


class Transactions:
    """Commit findings, halts, dead letters, snapshots and input offsets of a task together, or not at all.

    Args:
        open_producer: opens the transactional producer of a task.
        group_id: the consumer group that the offsets are committed for.
    """

    seen_when_committed = True
    transactional = True

    def __init__(self, open_producer: Callable[[int], Awaitable[AIOKafkaProducer]], group_id: str) -> None:
        self._open_producer = open_producer
        self._group_id = group_id
        self._tasks: dict[int, _Transaction] = {}
        self._since: float | None = None
        self._most = MAX_MESSAGE

    async def open(self, number: int) -> None:
        """Open the task's producer, which fences the task's previous owner."""
        await self.discard([number])
        self._tasks[number] = _Transaction(await self._open_producer(number))

    async def send(self, number: int, messages: Sequence[Message]) -> None:
        """Put a batch into the task's transaction.

        Raises:
            KafkaError: the transaction is of no more use.
        """
        transaction = self._tasks[number]
        with self._waiting(), transaction.failing_as_it_failed(number):
            if messages:
                await transaction.begin()
            for message in messages:
                while len(message.value or b"") + len(message.key or b"") > self._most:
                    if not shrunk(message):
                        break
                while True:
                    try:
                        await transaction.send(message)
                        break
                    except MessageSizeTooLargeError:
                        if not shrunk(message):
                            raise

    async def hurry(self, number: int) -> None:
        """Do nothing: an output is seen when it is committed, and a halt is committed at once."""

    async def commit(self, offsets: Mapping[int, Offsets]) -> None:
        """Commit every task's transaction, with its offsets.

        Raises:
            KafkaError: a transaction failed; the tasks' state is ahead of what was committed, and of no more use.
        """
        numbers = [n for n, t in self._tasks.items() if t.begun or offsets.get(n)]
        with self._waiting():
            results = await asyncio.gather(
                *(self._commit_one(n, self._tasks[n], offsets.get(n, {})) for n in numbers), return_exceptions=True
            )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def discard(self, numbers: Iterable[int]) -> None:
        """Abort what is open and close the producers of these tasks."""
        closing = [t for n in numbers if (t := self._tasks.pop(n, None)) is not None]
        await asyncio.gather(*(_abort(transaction) for transaction in closing))

    async def close(self) -> None:
        """Abort what is open and close all producers."""
        await self.discard(list(self._tasks))

    def waiting_since(self) -> float | None:
        """Return since when (loop time) a broker's acknowledgement is awaited; None: it is not."""
        return self._since

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._since = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._since = None

    async def _commit_one(self, number: int, transaction: _Transaction, offsets: Mapping[TopicPartition, int]) -> None:
        with transaction.failing_as_it_failed(number):
            await self._deliver(transaction, offsets)

    async def _deliver(self, transaction: _Transaction, offsets: Mapping[TopicPartition, int]) -> None:
        await transaction.begin()
        producer, futures = transaction.producer, transaction.futures
        if futures:
            await asyncio.wait(futures)
        failed = [error for future in futures if (error := _error(future)) is not None]
        futures.clear()
        if failed:
            if any(isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError) for error in failed):
                # A topic takes less than the producer thought: what is sent again will be made smaller.
                self._most = max(1024, self._most // 2)
            if isinstance(failed[0], TopicAuthorizationFailedError):
                raise TailError(
                    f"The broker does not let the sidecar write to one of its topics ({failed[0]}): grant its principal"
                    " the ACL WRITE on the output topics and on the snapshot topic. Nothing is lost: what could not be"
                    " written has not been committed."
                )
            raise failed[0]
        if offsets:
            metadata = {tp: OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
            await producer.send_offsets_to_transaction(metadata, self._group_id)
        await producer.commit_transaction()
        transaction.begun = False


def _error(future: asyncio.Future[Any]) -> BaseException | None:
    if future.cancelled():
        return KafkaError("the producer was closed")
    return future.exception()


async def _abort(transaction: _Transaction) -> None:
    if transaction.begun:
        # In a task of its own: aiokafka may wait for a broker that is away.
        aborting = asyncio.ensure_future(transaction.producer.abort_transaction())
        await asyncio.wait((aborting,), timeout=_ABORT_WITHIN)
        if not aborting.done():
            aborting.cancel()
            await asyncio.wait((aborting,))
        elif not aborting.cancelled():
            aborting.exception()
    await close_producer(transaction.producer, within=1.0)
    # What became of the transaction is known; the event loop need not report it as well.
    manager = transaction.producer._txn_manager
    ended = manager.wait_for_transaction_end() if manager is not None else None
    if ended is not None and ended.done():
        _error(ended)
