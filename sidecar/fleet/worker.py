"""One worker of the fleet: the partitions that it has, kept by Faust's tables, fed by Faust's agents.

The order after a rebalance: Faust reads the changelogs of new partitions to their end; then what the rows come to is
added up; then the input topics are read on from the positions that stand in the changelog. Rows that have changed are
written at an interval, then the positions, then (for others to look at) the group's offsets.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

import msgspec
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from faust.exceptions import FaustError
from faust.types import TP

from sidecar.config import Settings
from sidecar.fleet.alerts import Bounds, of_dim, of_session
from sidecar.fleet.credentials import broker_options
from sidecar.fleet.errors import FleetError, meaning
from sidecar.fleet.groups import dim_key, encode_wire, statuses, survival_by_model, wire_key
from sidecar.fleet.part import Part, alerts_keeper, sessions_keeper
from sidecar.fleet.rollups import REFRESH, Rollup
from sidecar.fleet.shard import MARKER, ROLES, Batch, Role, Shelf, Unusable
from sidecar.fleet.stream import FleetApp, FleetConsumer, FleetRecovery, FleetTable, FleetTables
from sidecar.fleet.topics import partition_of
from sidecar.observe.catalogue import MODELS
from sidecar.observe.fleet import FleetMetrics
from sidecar.observe.health import Health
from sidecar.observe.logs import get_logger
from sidecar.protocol.outputs import Alert, DeadLetter, HaltAck, Source

log = get_logger(__name__)

BEHIND = 1000
"""Records to be read from which on a partition counts as behind."""

_CHUNK = 2000
_LARGE = 2**15
"""Bytes of a row from which on something can be left out of it."""
_RETRY = 1.0
_PRUNE = 30.0
_EXPIRE = 60.0
"""Seconds between looks for what is to be forgotten."""

_LOOK = 0.5
_OTHERS = 5.0
"""Seconds between looks for what somebody else has written."""
_AGENTS = 2

_encode_json = msgspec.json.Encoder().encode


class FleetWorker:
    """Run the fleet's Faust application.

    Args:
        settings: the settings tree.
        options: the arguments of an aiokafka client (`KafkaSettings.client_options`), with brokers that answer.
        partitions: how many partitions the topics have.
        metrics: counts what happens.
        health: is told of progress.
        url: where the other workers reach this one.
        shelf: makes the shelf of a partition's rows; None: in memory.
        clock: the time, in Unix seconds.
    """

    def __init__(
        self,
        settings: Settings,
        options: Mapping[str, Any],
        partitions: int,
        metrics: FleetMetrics,
        health: Health,
        url: str,
        *,
        shelf: Callable[[int], Shelf] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.partitions = partitions
        self.url = url
        self._options = options
        self._metrics = metrics
        self._health = health
        self._shelf = shelf
        self._clock = clock
        self._bounds = Bounds(**settings.alerts.model_dump())
        names = settings.topics
        self._topics: dict[Role, str] = {role: getattr(names, role) for role in ROLES}
        self._roles = {topic: role for role, topic in self._topics.items()}
        self._changelog = settings.fleet.changelog
        self._rollups = settings.fleet.rollups
        self._alerts = settings.topics.alerts
        self.parts: dict[int, Part] = {}
        self._generation = 0
        self._settling: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._expired_at = 0.0
        self._broker_up = True
        self._read_since: Counter[str] = Counter()
        self._queues: list[asyncio.Queue[Any]] = []
        """Where Faust puts what its agents have not taken yet."""
        self.app = self._make_app()

    # --- the application ----------------------------------------------------------------------------------------------

    def _make_app(self) -> FleetApp:
        tuned = self.settings.fleet
        app = FleetApp(
            tuned.group_id,
            **broker_options(self._options),
            version=1,
            canonical_url=self.url,
            datadir=str(tuned.data_dir),
            topic_disable_leader=True,
            topic_allow_declare=False,
            topic_partitions=self.partitions,
            topic_replication_factor=self.settings.topics.replication_factor,
            table_standby_replicas=0,
            processing_guarantee="at_least_once",
            broker_session_timeout=tuned.session_timeout,
            broker_heartbeat_interval=tuned.heartbeat_interval,
            broker_rebalance_timeout=max(30.0, tuned.session_timeout),
            broker_max_poll_interval=max(300.0, tuned.recovery_timeout),
            broker_commit_livelock_soft_timeout=86400.0,
            consumer_auto_offset_reset="earliest",
            consumer_group_instance_id=tuned.group_instance_id,
            stream_wait_empty=False,
            stream_buffer_maxsize=8192,
            producer_acks=-1,
            producer_linger=0.0,
            web_enabled=False,
            TableManager=FleetTables,
            Table=FleetTable,
        )
        app.began = self._began
        app.settled = self._settled
        inputs = self._topic(app, *self._roles)
        rollups = self._topic(app, self._rollups)
        for name, topic, keeper in (
            ("sessions", self._changelog, sessions_keeper(self._changelog, self.part)),
            ("alerts", self._alerts, alerts_keeper(self._alerts, self.part)),
        ):
            table = app.Table(
                name,
                key_type=bytes,
                value_type=bytes,
                partitions=self.partitions,
                changelog_topic=self._topic(app, topic, compacting=True, maxsize=131_072),
            )
            cast(FleetTable, table).keeper = keeper
        app.agent(inputs, name="fleet-records")(self._read(self._take_record))
        app.agent(rollups, name="fleet-rollups")(self._read(self._take_rollup))
        app.timer(tuned.commit_interval, name="fleet-commit")(self._whole(self._commit))
        app.timer(tuned.rollup_interval, name="fleet-rollup")(self._whole(self._roll_up))
        app.timer(tuned.alert_interval, name="fleet-alerts")(self._whole(self._judge))
        app.timer(_OTHERS, name="fleet-others")(self._whole(self._look_for_others))
        app.timer(1.0, name="fleet-watch")(self._watch)
        return app

    def _topic(self, app: FleetApp, *names: str, **more: Any) -> Any:
        # Bytes as they are, and no acknowledgements: offsets are ours.
        return app.topic(
            *names,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            partitions=self.partitions,
            acks=False,
            allow_empty=True,
            **more,
        )

    def _read(self, take: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
        async def read(stream: Any) -> None:
            # Without acknowledgements: an exception could not take a record with it, nor hold up those behind it.
            self._queues = [*self._queues, stream.channel.queue][-_AGENTS:]
            async for event in stream.noack().events():
                take(event.message)

        return read

    def _whole(self, work: Callable[[Part], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Do something for every partition that is being read; what fails for the brokers' sake is tried again."""

        async def all_parts() -> None:
            try:
                for part in list(self.parts.values()):
                    if part.reading:
                        await work(part)
                self._brokers(True)
            except (KafkaError, FaustError, TimeoutError) as error:
                self._metrics.failed()
                self._brokers(False)
                log.warning(
                    "the brokers did not take what is to be written; it is tried again", error=meaning(error, "WRITE")
                )
                await asyncio.sleep(_RETRY)

        return all_parts

    @property
    def consumer(self) -> FleetConsumer:
        """Return Faust's consumer."""
        return cast(FleetConsumer, self.app.consumer)

    @property
    def recovery(self) -> FleetRecovery:
        """Return Faust's recovery service."""
        return cast(FleetTables, self.app.tables).recovery

    async def run(self, stop: asyncio.Event) -> None:
        """Run until told to stop.

        Raises:
            FleetError: the application has failed, and has to be started again.
        """
        watching = asyncio.create_task(self._watch_recovery())
        starting = asyncio.create_task(self.app.start())
        stopping = asyncio.create_task(stop.wait())
        crashed = asyncio.create_task(self.app._crashed.wait())
        tasks = {watching, stopping, crashed}
        try:
            await asyncio.wait({*tasks, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception() is None:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not crashed.done():
                await self._leave()
        finally:
            for task in (*tasks, starting):
                task.cancel()
            await asyncio.gather(*tasks, starting, return_exceptions=True)
            await self._end()
        self._raise(watching, starting)

    def _raise(self, *tasks: "asyncio.Task[Any]") -> None:
        reason = getattr(self.app, "crash_reason", None)
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                reason = task.exception()
        if reason is None:
            return
        if isinstance(reason, FleetError):
            raise reason
        # What cannot be written is tried again; so it was read.
        said = meaning(reason, "READ")
        raise FleetError(f"The fleet cannot go on: {said}. It is to be started again.") from reason

    async def _leave(self) -> None:
        """Write what has changed before the partitions are given away."""
        for part in list(self.parts.values()):
            if part.reading:
                try:
                    await asyncio.wait_for(self._commit(part), 10.0)
                except (KafkaError, FaustError, TimeoutError) as error:
                    log.warning("not everything could be written; it will be read again", error=repr(error))
                    return

    async def _end(self) -> None:
        for part in self.parts.values():
            part.reading = False
        try:
            await asyncio.wait_for(self.app.stop(), 20.0)
        except TimeoutError:
            log.warning("could not be ended cleanly: the application did not stop in time")
        for part in self.parts.values():
            part.shard.shelf.close()

    # --- partitions ---------------------------------------------------------------------------------------------------

    def part(self, partition: int) -> Part:
        """Return what is kept for a partition."""
        part = self.parts.get(partition)
        if part is None:
            shelf = self._shelf(partition) if self._shelf else None
            part = self.parts[partition] = Part(partition, self._topics, shelf, self._bounds)
            if (kept := part.shard.shelf.kept()) is not None:
                positions, offset = kept
                part.shard.apply(MARKER, positions)
                part.sessions_log.read(offset - 1)
        return part

    def _began(self) -> None:
        """Note that partitions are being moved: nothing is read or written until it is settled who has what."""
        self._generation += 1
        if self._settling is not None:
            self._settling.cancel()
        for part in self.parts.values():
            part.reading = False
        self._health.joining(time.monotonic())
        self._metrics.rebalanced()

    def _settled(self) -> None:
        """Note that the tables are recovered."""
        self._settling = asyncio.get_running_loop().create_task(self._settle(self._generation))
        self._settling.add_done_callback(self._settle_ended)

    def _settle_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.app.add_future(self.app.crash(error))

    async def _settle(self, generation: int) -> None:
        """Begin to read from the positions that stand in the changelogs."""
        mine = self._assigned()
        self._check_recovered()
        for partition in [p for p in self.parts if p not in mine]:
            self.parts.pop(partition).shard.shelf.close()
        while generation == self._generation:
            try:
                await self._start_reading(mine)
                break
            except (KafkaError, FaustError, TimeoutError) as error:
                log.warning("the positions could not be set; it is tried again", error=repr(error))
                await asyncio.sleep(_RETRY)
        if generation == self._generation:
            log.info(
                "partitions taken", partitions=sorted(mine), sessions=sum(len(self.part(p).shard.index) for p in mine)
            )

    def _assigned(self) -> set[int]:
        found = self._topics["findings"]
        return {tp.partition for tp in self.app.assignor.assigned_actives() if tp.topic == found}

    def _check_recovered(self) -> None:
        """See for ourselves that every changelog has been read: what is lacking would be lacking in silence."""
        recovery = self.recovery
        lacking = []
        for tp in self.app.assignor.assigned_actives():
            if tp.topic not in self.app.tables.changelog_topics:
                continue
            high, known = recovery.active_highwaters.get(tp), recovery.active_offsets.get(tp)
            if high is None or (high >= 0 and (known is None or known < high)):
                lacking.append(f"{tp.topic}-{tp.partition} up to {high}, read up to {known}")
        if lacking:
            raise FleetError(f"The changelogs were not read to their end ({'; '.join(lacking)}): start again.")

    async def _start_reading(self, mine: set[int]) -> None:
        names = [*self._roles, self._rollups]
        tps = [TP(name, partition) for name in names for partition in sorted(mine)]
        changelogs = [tp for tp in self.consumer.assignment() if tp.topic in self.app.tables.changelog_topics]
        ends = await self.consumer.highwaters(*tps) if tps else {}
        firsts = await self.consumer.earliest_offsets(*tps) if tps else {}
        start: dict[TP, int] = {}
        for partition in sorted(mine):
            part = self.part(partition)
            self._line_up(part, firsts, ends)
            for role, position in part.shard.positions.items():
                start[TP(self._topics[role], partition)] = position.next
            rollups = TP(self._rollups, partition)
            part.rollup, part.rollup_next, part.rollup_end = Rollup(), 0, ends[rollups]
            start[rollups] = firsts.get(rollups) or 0
            if part.shard.unsummed:
                part.shard.restored()
            for topic, changelog in (
                (self._changelog, part.sessions_log),
                (self._alerts, part.alerts_log),
            ):
                changelog.read(self.recovery.active_highwaters[TP(topic, partition)])
        await self.consumer.hold(changelogs)
        if start:
            await self.consumer.start_at(start)
        self._health.assign(sorted(mine), time.monotonic())
        for partition in mine:
            part = self.part(partition)
            part.reading = True
            self._health.restored(partition, time.monotonic())
            self._health.observe(partition, part.progress, None, time.monotonic())

    def _line_up(self, part: Part, firsts: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """Hold the positions against what is in the topics: they may have been deleted, or their begin."""
        known = {role: ends[TP(self._topics[role], part.partition)] for role in ROLES}
        for role in part.shard.check_ends(known):
            log.warning(
                "a topic ends before the position: it has been made anew, and is read from its begin",
                topic=self._topics[role],
                partition=part.partition,
                end=known[role],
            )
        for role, position in part.shard.positions.items():
            first = firsts.get(TP(self._topics[role], part.partition)) or 0
            if 0 < position.next < first:
                log.warning(
                    "records are gone that had not been read: the topic keeps them too short a time",
                    topic=self._topics[role],
                    partition=part.partition,
                    first_missing=position.next,
                    last_missing=first - 1,
                )
                self._metrics.lost(self._topics[role], first - position.next)

    # --- records ------------------------------------------------------------------------------------------------------

    def _take_record(self, message: Any) -> None:
        part = self.parts.get(message.partition)
        if part is None or not part.reading or not self.consumer.is_current(message.tp, message.checksum):
            return
        role = self._roles[message.topic]
        try:
            if part.shard.take(role, message.key, message.value, message.offset, message.timestamp):
                self._read_since[message.topic] += 1
        except Unusable as bad:
            self._bury(part, message, str(bad))
        except Exception as error:
            # One record must not stop the others; its position is passed, and it is kept where people look.
            log.exception("a record could not be taken in", **_place(message))
            self._bury(part, message, f"{type(error).__name__}: {error}")
        self._moved.set()

    def _bury(self, part: Part, message: Any, reason: str) -> None:
        log.warning("a record cannot be used", reason=reason, **_place(message))
        self._metrics.unusable(message.topic)
        session = None
        with contextlib.suppress(UnicodeDecodeError):
            session = message.key.decode() if message.key else None
        part.dead.append(
            DeadLetter(
                reason=f"fleet: {reason}",
                source=Source(message.topic, message.partition, message.offset),
                session_id=session,
                seq=None,
                original=message.value or b"",
                key=message.key,
            )
        )

    def _take_rollup(self, message: Any) -> None:
        part = self.parts.get(message.partition)
        if part is None or not part.reading or not self.consumer.is_current(message.tp, message.checksum):
            return
        try:
            part.rollup.take(message.key, message.value)
        except ValueError as bad:
            log.warning("a roll-up cannot be used", reason=str(bad), **_place(message))
            self._metrics.unusable(message.topic)
        part.rollups += 1
        part.rollup_next = message.offset + 1

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _send(
        self, topic: str, partition: int | None, pairs: Iterable[tuple[bytes | None, bytes | None]]
    ) -> list[int]:
        """Write messages in order, wait until all are acknowledged, and return their offsets."""
        producer, offsets = self.app.producer, []
        items = list(pairs)
        for begin in range(0, len(items), _CHUNK):
            sent = [
                await producer.send(topic, key, value, partition, None, None)
                for key, value in items[begin : begin + _CHUNK]
            ]
            offsets += [metadata.offset for metadata in await asyncio.gather(*sent)]
        return offsets

    async def _commit(self, part: Part) -> None:
        """Write a partition's rows, then its positions."""
        async with part.lock:
            if part.dead:
                await self._write_dead_letters(part)
            if not part.shard.unwritten():
                return
            begun = time.perf_counter()
            batch = part.shard.batch()
            rows = ((session_id.encode(), value) for session_id, value in batch.rows.items())
            try:
                offsets = await self._send(self._changelog, part.partition, rows)
            except (KafkaError, FaustError) as error:
                if isinstance(error.__cause__ or error, MessageSizeTooLargeError):
                    self._slim(part, batch)
                raise
            if not part.reading:  # given away meanwhile: whoever has it now will read from older positions
                return
            offsets += await self._send(self._changelog, part.partition, [(MARKER, batch.positions)])
            part.shard.written(batch)
            if part.sessions_log.wrote(offsets):
                self._foreign(part, self._changelog)
                part.shard.write_all()
            part.shard.shelf.keep(batch.positions, part.sessions_log.next or 0)
            self._metrics.committed(len(batch.rows), time.perf_counter() - begun)
        positions = {TP(p.topic, part.partition): p.next for p in part.shard.positions.values() if p.next}
        if part.reading:
            await self.consumer.note(positions)

    def _slim(self, part: Part, batch: Batch) -> None:
        large = sorted(name for name, value in batch.rows.items() if value is not None and len(value) > _LARGE)
        log.error(
            "rows are larger than the broker takes: what was kept whole of them (findings, checkpoints) is dropped, the"
            " counts stay; raise max.message.bytes of the topic",
            topic=self._changelog,
            partition=part.partition,
            sessions=large[:10],
        )
        part.shard.slim(large)

    async def _write_dead_letters(self, part: Part) -> None:
        dead = list(part.dead)
        await self._send(self.settings.topics.dlq, None, ((letter.key, _encode_json(letter)) for letter in dead))
        part.dead = part.dead[len(dead) :]

    async def _look_for_others(self, part: Part) -> None:
        """See whether somebody else has written to a partition of a changelog, also while we have nothing to write."""
        logs = {TP(self._changelog, part.partition): part.sessions_log}
        logs[TP(self._alerts, part.partition)] = part.alerts_log
        async with part.lock:
            ends = await self.consumer.highwaters(*logs)
            for tp, changelog in logs.items():
                if part.reading and changelog.next is not None and ends[tp] > changelog.next:
                    changelog.read(ends[tp] - 1)
                    self._foreign(part, tp.topic)
                    (part.shard if changelog is part.sessions_log else part.book).write_all()

    def _foreign(self, part: Part, topic: str) -> None:
        log.warning(
            "somebody else wrote to this partition of the changelog: everything is written again",
            topic=topic,
            partition=part.partition,
        )
        self._metrics.foreign()

    async def _roll_up(self, part: Part) -> None:
        """Send the sums that have changed; now and then, all of them."""
        now, state = self._clock(), (part.lag > BEHIND, part.fresh)
        every = now - part.refreshed_at >= REFRESH or state != part.told
        if not every and not part.shard.partials.changed:
            return
        by_partition: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for wire in part.shard.wires(now, *state, all_of_them=every):
            where = partition_of(dim_key(wire.dim), self.partitions)
            value = None if wire.partial is None else encode_wire(wire)
            by_partition.setdefault(where, []).append((wire_key(wire.dim, part.partition), value))
        try:
            for where, pairs in by_partition.items():
                await self._send(self._rollups, where, pairs)
        except BaseException:
            part.refreshed_at = 0.0  # all of them, next time
            raise
        if every:
            part.refreshed_at, part.told = now, state

    async def _judge(self, part: Part) -> None:
        """Judge what there is to be alerted to, and write it down; what was judged last has to be written first."""
        if not part.book.changed:
            now = self._clock()
            found = self._judge_sessions(part, now) + self._judge_dims(part, now)
            for alert in found:
                self._metrics.alerted(alert)
                said = {"alert_id": alert.alert_id, "status": alert.status, "severity": alert.severity}
                log.info("alert", message=alert.message, **said)
        await self._write_alerts(part)

    def _judge_sessions(self, part: Part, now: float) -> list[Alert]:
        if not part.fresh:  # a halt may have been cleared in what has not been read yet
            return []
        rows = (row for name in list(part.shard.concerned) if (row := part.shard.shelf.get(name)) is not None)
        return part.book.judge_sessions((c for row in rows for c in of_session(row, self._bounds, now)), now)

    def _judge_dims(self, part: Part, now: float) -> list[Alert]:
        if not part.rolled_up:
            return []
        if now - part.pruned_at > _PRUNE:
            part.pruned_at = now
            part.rollup.prune(now)
        conditions = (c for facts in part.rollup.facts() for c in of_dim(facts, self._bounds, now))
        return part.book.judge_dims(conditions, {(dim.by, dim.name) for dim in part.rollup.waiting()}, now)

    async def _write_alerts(self, part: Part) -> None:
        async with part.lock:
            if not part.book.changed or not part.reading:
                return
            versions, batch = dict(part.book.changed), part.book.batch()
            offsets = await self._send(self._alerts, part.partition, batch.items())
            part.book.written(versions)
            if part.alerts_log.wrote(offsets):
                self._foreign(part, self._alerts)
                part.book.write_all()
        self._moved.set()

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Tell health and metrics how far everything is; forget what is old."""
        reading = [part for part in self.parts.values() if part.reading]
        tps = [TP(topic, part.partition) for part in reading for topic in (*self._roles, self._rollups)]
        fetched = await self.consumer.positions(tps)
        now, clock = time.monotonic(), self._clock()
        lags: dict[tuple[str, int], int] = {}
        for part in reading:
            # Nothing has come for a while, and nothing is on its way.
            count = (part.progress, part.rollups)
            quiet = part.seen == count and all(queue.empty() for queue in self._queues)
            part.seen = count
            part.lag = 0
            for role, position in part.shard.positions.items():
                tp = TP(self._topics[role], part.partition)
                end = self._end_of(tp)
                # What is left up to the end may be no records: a transaction's marker, or what compaction took.
                done = quiet and end is not None and fetched.get(tp, 0) >= end
                lag = 0 if done or end is None else max(0, end - position.next)
                lags[tp.topic, part.partition] = lag
                part.lag += lag
            if quiet:
                part.rollup_next = max(part.rollup_next, fetched.get(TP(self._rollups, part.partition), 0))
            if part.lag <= self.settings.health.ready_lag:
                part.fresh = True
            self._health.observe(part.partition, part.progress, part.lag, now)
        if clock - self._expired_at > _EXPIRE:
            self._expired_at = clock
            for part in self.parts.values():
                if part.reading and part.fresh:
                    part.shard.expire(clock - self.settings.fleet.session_ttl)
                    part.book.forget(clock - self.settings.fleet.alert_ttl)
        self._show(lags)

    def _show(self, lags: Mapping[tuple[str, int], int]) -> None:
        self._metrics.read(self._read_since, self._clock())
        self._read_since.clear()
        reading = [part for part in self.parts.values() if part.reading]
        groups = [found for part in reading for found in part.shard.partials.groups.items()]
        partials = [partial for _, partial in groups]
        self._metrics.survived(survival_by_model(groups, MODELS))
        alerts = (alert for part in reading for alert in part.book.alerts.values())
        self._metrics.show(
            lags=lags,
            statuses=statuses(partials),
            open_halts=sum(partial.open_halts for partial in partials),
            unacknowledged=sum(partial.unacknowledged for partial in partials),
            alerts=Counter((alert.kind, alert.severity) for alert in alerts if alert.status != "cleared"),
            partitions=len(reading),
        )

    def _end_of(self, tp: TP) -> int | None:
        try:
            return self.consumer.highwater(tp)
        except Exception:  # not assigned at this moment
            return None

    async def _watch_recovery(self) -> None:
        """Tell health how a recovery comes along, and give up one that takes too long.

        Raises:
            FleetError: it has taken too long.
        """
        bound = self.settings.fleet.recovery_timeout
        loop = asyncio.get_running_loop()
        since: float | None = None
        generation = -1
        while True:
            await asyncio.sleep(_LOOK)
            recovery = cast(FleetTables, self.app.tables)._recovery
            if recovery is None or not recovery.in_recovery:
                since = None
                self._metrics.recovering(0)
                continue
            since = loop.time() if since is None else since
            if generation != self._generation:
                generation = self._generation
                self._health.assign(sorted(self._assigned()), time.monotonic())
            left: dict[int, int] = dict.fromkeys(self._assigned(), 0)
            for tp, count in recovery.active_remaining().items():
                left[tp.partition] = left.get(tp.partition, 0) + max(0, count)
            for partition, count in left.items():
                part = self.parts.get(partition)
                self._health.observe(partition, part.progress if part else 0, count, time.monotonic())
            self._metrics.recovering(sum(left.values()))
            if loop.time() - since > bound:
                raise FleetError(
                    f"The changelogs were not read within {bound:g} s ({sum(left.values())} records are left). Start"
                    " again; if there is simply much to read, raise fleet.recovery_timeout."
                )

    def _brokers(self, up: bool) -> None:
        if up != self._broker_up:
            self._broker_up = up
            self._metrics.brokers(up)
            self._health.broker(up, time.monotonic())

    def workers(self) -> dict[str, list[int]]:
        """Return every worker's URL and the partitions that it has, as Faust's router knows them."""
        found: dict[str, list[int]] = {}
        for url, topics in self.app.router.table_metadata("sessions").items():
            if partitions := topics.get(self._changelog):
                found[str(url)] = sorted(partitions)
        return found

    async def acknowledge(self, session_id: str, ack: HaltAck) -> None:
        """Publish that somebody has taken a halt in hand.

        Raises:
            KafkaError: the brokers did not take it.
        """
        key = session_id.encode()
        topic = self.settings.topics.halt_acks
        await self._send(topic, partition_of(key, self.partitions), [(key, _encode_json(ack))])

    async def changed(self, within: float) -> None:
        """Wait until something has changed here, but not longer than so many seconds."""
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), within)


def _place(message: Any) -> dict[str, Any]:
    return {"topic": message.topic, "partition": message.partition, "offset": message.offset}
