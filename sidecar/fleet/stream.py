"""Faust, with what it needs to deliver exactly: its consumer, recovery and application, overridden in a few places.

What is done otherwise than Faust does it, and why, is in docs/decisions/0007-fleet-on-faust.md; in short:

- Records are read *committed*, at our own positions, and carry a label of the seek that they were fetched after: what
  was fetched before the last seek, and is still on its way, is not taken. Faust's acknowledgements are not used.
- A recovery ends when the changelog has been read to its end, also where its last offsets are no records (compaction
  and transactions leave holes); it cannot hang in silence, and takes no record that was fetched for an earlier one.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError


@contextmanager
def _without_arguments() -> Any:
    """Hide the command line: Faust looks for its own options there when it is imported."""
    given, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = given


with _without_arguments():
    import faust
    from faust.stores.memory import Store as MemoryStore
    from faust.tables.manager import TableManager
    from faust.tables.recovery import Recovery
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
    from faust.types import TP
    from mode import Service

_FAUST = logging.getLogger("faust.fleet")
"""Where Faust's classes log: with the library, at its level, although they are derived here."""

FETCH_WAIT_MS = 250
_IDLE = 0.2
_SURE = 3


class FleetConsumerThread(AIOKafkaConsumerThread):
    """Read committed records, and label them with the seek they were fetched after."""

    logger = _FAUST

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labels: dict[TP, int] = {}

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Neither is a setting of Faust's: its guarantee decides the one, and the other is fixed.
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Any:
        records = await super()._fetch_records(*args, **kwargs)
        # Nothing has been awaited since they were taken from the fetcher, so no seek has come in between.
        for tp, found in records.items():
            label = self.labels.get(tp, 0)
            for record in found:
                record.checksum = label
        return records

    async def _seek_wait(self, consumer: AIOKafkaConsumer, partitions: Mapping[TP, int]) -> None:
        for tp in partitions:
            self.labels[tp] = self.labels.get(tp, 0) + 1
        paused = consumer.paused()
        if known := [_plain(tp) for tp in partitions if tp in paused]:
            consumer.resume(*known)
        await super()._seek_wait(consumer, partitions)

    async def positions(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """Return how far partitions have been fetched, past offsets that are no records; without those not known."""
        found: dict[TP, int] = await self.call_thread(self._positions, list(partitions))
        return found

    async def _positions(self, partitions: list[TP]) -> dict[TP, int]:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        states = {
            tp: consumer._subscription.subscription.assignment.state_value(tp) for tp in partitions if tp in assigned
        }
        return {tp: state.position for tp, state in states.items() if state.has_valid_position}

    async def hold(self, partitions: Iterable[TP]) -> None:
        """Fetch no more of some partitions: what nobody takes would be in the way of the others."""
        await self.call_thread(self._hold, list(partitions))

    async def _hold(self, partitions: list[TP]) -> None:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        if known := [_plain(tp) for tp in partitions if tp in assigned]:
            consumer.pause(*known)


class _NoOffsets(dict[TP, int | None]):
    """Forget every offset that Faust has delivered.

    It leaves out what is below the last one delivered, and notes that one only after it has been delivered: where
    positions are sought meanwhile, everything up to a record from before the seek would be left out.
    """

    def __getitem__(self, tp: TP) -> None:
        return None

    def __setitem__(self, tp: TP, offset: int | None) -> None:
        pass


class FleetConsumer(Consumer):
    """Read from our own positions, whatever has been committed."""

    logger = _FAUST

    _thread: FleetConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NoOffsets()

    def _new_consumer_thread(self) -> FleetConsumerThread:
        return FleetConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:  # noqa: ASYNC109 - as Faust has it
        """Yield records of topics; hand those of changelogs to the recovery at once, many at a time."""
        records, active = await self._wait_next_records(timeout)
        generation = self.app.consumer_generation_id
        if records is None or self.should_stop or not self.flow_active:
            return  # a rebalance is under way: the positions will be sought again
        recovery = cast(FleetTables, self.app.tables).recovery
        changelogs = self.app.tables.changelog_topics
        others = {}
        for tp, found in records.items():
            if tp.topic in changelogs:
                await recovery.take(tp, found)
            else:
                others[tp] = found
        for tp, record in self.scheduler.iterate(others):
            if not self.flow_active or generation != self.app.consumer_generation_id:
                break
            if active is None or tp in active or tp in self._buffered_partitions:
                yield tp, self._to_message(tp, record)

    async def perform_seek(self) -> None:
        """Do nothing: after a rebalance Faust would go to the committed offsets, and then empty its queues."""

    async def start_at(self, positions: Mapping[TP, int]) -> None:
        """Read on from these positions; what has been fetched before is not current any more."""
        await self.seek_wait(positions)

    async def positions(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """Return how far partitions have been fetched, past offsets that are no records; without those not known."""
        return await self._thread.positions(partitions)

    async def hold(self, partitions: Iterable[TP]) -> None:
        """Fetch no more of these partitions, until they are sought again."""
        await self._thread.hold(partitions)

    def is_current(self, tp: TP, label: Any) -> bool:
        """Tell whether a record was fetched after the last seek of its partition."""
        return bool(label == self._thread.labels.get(tp, 0))

    async def note(self, positions: Mapping[TP, int]) -> None:
        """Commit offsets, so that others can see how far the group has got; nothing is read from there."""
        assignment = self.assignment()
        if mine := {tp: offset for tp, offset in positions.items() if tp in assignment}:
            await self._commit(mine)


class FleetTransport(Transport):
    """Make such consumers."""

    Consumer = FleetConsumer


class FleetRecovery(Recovery):
    """Read changelogs to their end, take nothing that was fetched for an earlier one, and do not hang."""

    logger = _FAUST

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._moved = asyncio.Event()

    async def take(self, tp: TP, records: Sequence[Any]) -> None:
        """Apply records of a changelog, unless they were fetched before its position was sought last."""
        consumer = cast(FleetConsumer, self.app.consumer)
        if tp not in self.active_tps:
            return
        keeper = cast(FleetTable, self.tp_to_table[tp]).keeper
        try:
            for record in records:
                if consumer.is_current(tp, record.checksum):
                    keeper.apply(tp.partition, record.key, record.value, record.offset)
                    self.active_offsets[tp] = record.offset
        except Exception as error:
            # What cannot be applied must not be passed over: the table would lack it, and nobody would know.
            await self.crash(error)
            raise
        self._moved.set()

    @Service.task
    async def _slurp_changelogs(self) -> None:
        """See when the changelogs have been read (Faust reads them here)."""
        idle = 0
        while not self.should_stop:
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), _IDLE)
                idle = 0
            except TimeoutError:
                idle += 1
            if self.in_recovery and idle >= _SURE:
                await self._pass_holes()
            if self.in_recovery and not self.need_recovery():
                self._set_recovery_ended()
                self.signal_recovery_end.set()

    async def _pass_holes(self) -> None:
        """Take those partitions for read whose position is at their end: what is missing there are no records."""
        for tp, high in list(self.active_highwaters.items()):
            known = self.active_offsets.get(tp)
            if high is None or known is None or known >= high:
                continue
            try:
                position = await asyncio.wait_for(self.app.consumer.position(tp), self.app.conf.broker_request_timeout)
            except (IllegalStateError, TimeoutError):
                continue  # a rebalance is under way
            if position is not None and position > high:
                self.active_offsets[tp] = high

    def _set_recovery_started(self) -> None:
        # Here, not in the loop above: there the signal could come and go before anybody waits for it.
        self.signal_recovery_end.clear()
        super()._set_recovery_started()


class FleetTables(TableManager):
    """Recover with `FleetRecovery`."""

    logger = _FAUST

    async def on_start(self) -> None:
        """Start: as Faust does, but without waiting a second for agents, for which its conductor waits anyway."""
        await self._update_channels()
        await self.recovery.start()

    @property
    def recovery(self) -> FleetRecovery:
        """Return the recovery service."""
        if self._recovery is None:
            self._recovery = FleetRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return cast(FleetRecovery, self._recovery)


class KeptStore(MemoryStore[bytes, bytes]):
    """Hand a table's changelog to whoever keeps the state, instead of keeping a second copy of it."""

    logger = _FAUST

    def apply_changelog_batch(self, batch: Iterable[Any], to_key: Any, to_value: Any) -> None:
        """Do nothing: `FleetRecovery.take` hands the records to the keeper, and Faust's buffers stay empty."""

    def persisted_offset(self, tp: TP) -> int | None:
        return cast("FleetTable", self.table).keeper.known(tp.partition)

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        return


class Keeper:
    """Keep a table's state; subclasses say how."""

    def apply(self, partition: int, key: bytes, value: bytes | None, offset: int) -> None:
        """Apply a record of the changelog."""
        raise NotImplementedError

    def known(self, partition: int) -> int | None:
        """Return the offset up to which the changelog is known already; None: nothing of it."""
        raise NotImplementedError


class FleetTable(faust.Table[bytes, bytes]):
    """A table whose state is kept by a `Keeper`: written by it, recovered by Faust."""

    logger = _FAUST

    keeper: Keeper

    def _new_store(self) -> Any:
        return KeptStore(
            "memory://",
            self.app,
            self,
            table_name=self.name,
            key_type=self.key_type,
            key_serializer=self.key_serializer,
            value_type=self.value_type,
            value_serializer=self.value_serializer,
            loop=self.loop,
        )

    async def on_start(self) -> None:
        # As Faust does, but for declaring the topic, which is done before it starts.
        await self.add_runtime_dependency(self.data)


class FleetApp(faust.App):
    """Tell of rebalances, and keep to what it is given.

    `began` is called when partitions are being moved, `settled` when tables are recovered and records may flow.
    """

    logger = _FAUST

    began: Callable[[], None] = staticmethod(lambda: None)
    settled: Callable[[], None] = staticmethod(lambda: None)

    def _new_transport(self) -> FleetTransport:
        return FleetTransport(self.conf.broker_consumer, self)

    def _init_fixups(self) -> list[Any]:
        return []

    def _create_directories(self) -> None:
        return

    def on_rebalance_start(self) -> None:
        # Called in the consumer's thread.
        self.loop.call_soon_threadsafe(self.began)
        super().on_rebalance_start()

    def on_rebalance_end(self) -> None:
        super().on_rebalance_end()
        self.settled()


def _plain(tp: TP) -> TopicPartition:
    return TopicPartition(tp.topic, tp.partition)
