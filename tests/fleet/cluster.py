"""What the tests of the running fleet share: settings, workers in processes, questions, and what must come out."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiokafka import AIOKafkaProducer, ConsumerRecord

from sidecar.config import Settings
from sidecar.fleet.board import Board
from sidecar.fleet.local import Figures
from sidecar.fleet.peers import PATH, Answer, Ask, AskFigures, Peers
from sidecar.fleet.shard import ROLES, Role
from sidecar.fleet.topics import partition_of
from sidecar.fleet.worker import FleetWorker
from sidecar.observe.fleet import FleetMetrics
from sidecar.observe.health import Health
from sidecar.protocol.outputs import Alert
from sidecar.tail.topics import prepare_fleet
from tests.fleet.histories import Message
from tests.fleet.naive import Read
from tests.kafka.support import read_topic
from tests.kafka.tail_support import TOPICS

PARTITIONS = 4
ROOT = Path(__file__).parents[2]


def fleet_settings(
    bootstrap: str,
    unique: str,
    *,
    alerts: Mapping[str, Any] | None = None,
    stall_after: float = 10.0,
    **fleet: Any,
) -> Settings:
    """Return settings whose topics and group nobody else uses, with short intervals and any free port."""
    return Settings.load(
        None,
        kafka={"bootstrap_servers": bootstrap, "request_timeout": 10, "retry_backoff": 0.02},
        topics={**{role: f"{unique}{role}" for role in TOPICS}, "partitions": PARTITIONS},
        http={"host": "127.0.0.1", "port": 0},
        health={"stall_after": stall_after},
        fleet={
            "group_id": f"{unique}fleet",
            "session_timeout": 3,
            "heartbeat_interval": 0.3,
            "commit_interval": 0.2,
            "rollup_interval": 0.2,
            "alert_interval": 0.2,
            **fleet,
        },
        alerts={"hold": 0.5, **(alerts or {})},
    )


# --- in this process --------------------------------------------------------------------------------------------------


class Running:
    """A worker that runs in this process."""

    def __init__(self, worker: FleetWorker, metrics: FleetMetrics, health: Health) -> None:
        self.worker = worker
        self.metrics = metrics
        self.health = health
        self.peers = Peers(2.0, None)
        self.board = Board(self.peers, metrics)
        self.board.attach(worker)
        self.stop = asyncio.Event()

    def value(self, name: str, **labels: str) -> float:
        """Return a metric's value."""
        found = self.metrics.registry.get_sample_value(name, labels)
        return 0.0 if found is None else found

    def settled(self) -> bool:
        """Tell whether all partitions are read, and read to their end."""
        parts = self.worker.parts.values()
        return len(parts) == self.worker.partitions and all(p.reading and p.fresh and p.lag == 0 for p in parts)


@contextlib.asynccontextmanager
async def running(
    settings: Settings, *, change: Callable[[FleetWorker], None] | None = None, **options: Any
) -> AsyncIterator[Running]:
    """Run a worker here; at the end stop it and see that it ended well. If it fails, the test fails with it."""
    client, partitions = await prepare_fleet(settings, 20.0)
    metrics, health = FleetMetrics(getattr(settings.topics, role) for role in ROLES), Health(time.monotonic())
    worker = FleetWorker(settings, client, partitions, metrics, health, "http://127.0.0.1:1", **options)
    if change is not None:
        change(worker)
    here = Running(worker, metrics, health)
    work = asyncio.create_task(worker.run(here.stop))
    test = asyncio.current_task()
    assert test is not None
    work.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else test.cancel("fleet"))
    try:
        yield here
    except asyncio.CancelledError:
        if work.done():
            test.uncancel()
            work.result()
        raise
    finally:
        here.stop.set()
        await asyncio.wait((work,), timeout=40)
        await here.peers.close()
    work.result()


# --- in processes -----------------------------------------------------------------------------------------------------


class Worker:
    """A worker in a process of its own."""

    def __init__(self, child: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.child = child
        self.url = url
        self.log = log

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.child.kill()

    def pause(self) -> None:
        """Let it stand still, as a machine that hangs."""
        self.child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.child.send_signal(signal.SIGCONT)

    async def end(self) -> int:
        """Ask it to end, and return its exit status."""
        self.child.terminate()
        return await asyncio.wait_for(self.child.wait(), 40)

    def logged(self, pattern: str) -> int:
        """Return how often something was logged."""
        return len(re.findall(pattern, self.log.read_text(errors="replace")))


class Cluster:
    """Workers in processes.

    Args:
        settings: for all of them.
        folder: where their logs go.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._started = 0
        self.workers: list[Worker] = []
        self.session: aiohttp.ClientSession | None = None

    async def start(self) -> Worker:
        """Start a worker, and wait until it serves."""
        self._started += 1
        config = self._folder / f"worker-{self._started}.json"
        log = config.with_suffix(".log")
        config.write_text(self.settings.model_dump_json())
        with log.open("wb") as out:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.fleet.fleet_process", str(config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=out,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONWARNINGS": "default",
                    "SIDECAR_FLEET__DATA_DIR": str(config.with_suffix(".rows")),
                },
            )
        assert child.stdout is not None
        url = (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()
        assert url.startswith("http"), log.read_text()
        worker = Worker(child, url, log)
        self.workers.append(worker)
        return worker

    async def close(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            if worker.child.returncode is None:
                worker.kill()
            await worker.child.wait()
        if self.session is not None:
            await self.session.close()

    async def ask(self, worker: Worker, question: Ask) -> Answer | None:
        """Ask a worker for what it has; None: it does not answer."""
        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5))
        headers = {"Content-Type": "application/msgpack"}
        try:
            async with self.session.post(
                worker.url + PATH, data=msgspec.msgpack.encode(question), headers=headers
            ) as r:
                return msgspec.msgpack.decode(await r.read(), type=Answer) if r.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def get(self, worker: Worker, path: str) -> tuple[int, Any]:
        """Get something from a worker."""
        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5))
        async with self.session.get(worker.url + path) as response:
            body = await response.read()
            return response.status, msgspec.json.decode(body) if response.content_type == "application/json" else body

    async def settled(self, *workers: Worker) -> bool:
        """Tell whether these workers have all partitions between them, each some, and have read everything."""
        answers = [await self.ask(worker, AskFigures()) for worker in workers]
        if any(answer is None for answer in answers):
            return False
        found = [answer for answer in answers if answer is not None]
        lag = sum(msgspec.msgpack.decode(answer.body, type=Figures).lag for answer in found)
        shared = sorted(p for answer in found for p in answer.partitions) == list(range(PARTITIONS))
        return shared and all(answer.partitions for answer in found) and lag == 0

    async def figures(self, *workers: Worker) -> list[Figures]:
        """Return what workers add up."""
        answers = [await self.ask(worker, AskFigures()) for worker in workers]
        return [msgspec.msgpack.decode(answer.body, type=Figures) for answer in answers if answer is not None]


@contextlib.asynccontextmanager
async def cluster(settings: Settings, folder: Path) -> AsyncIterator[Cluster]:
    """Give a cluster; what still runs at the end is killed."""
    found = Cluster(settings, folder)
    await prepare_fleet(settings, 20.0)
    try:
        yield found
    finally:
        await found.close()


# --- topics -----------------------------------------------------------------------------------------------------------


async def publish(settings: Settings, messages: Iterable[Message], *, rate: float | None = None) -> None:
    """Publish messages as the tail and the guard's clients do: keyed by session, committed."""
    producer = AIOKafkaProducer(bootstrap_servers=list(settings.kafka.bootstrap_servers), linger_ms=5)
    await producer.start()
    begun, count = time.monotonic(), 0
    try:
        sent = []
        for message in messages:
            topic = getattr(settings.topics, message.role)
            where = partition_of(message.key, settings.topics.partitions)
            sent.append(
                await producer.send(
                    topic, key=message.key, value=message.value, partition=where, timestamp_ms=round(message.at * 1000)
                )
            )
            count += 1
            if rate is not None and count % 20 == 0:
                await asyncio.sleep(max(0.0, begun + count / rate - time.monotonic()))
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def mark(settings: Settings) -> None:
    """End the four topics in markers of a transaction, as the tail's commits do."""
    producer = AIOKafkaProducer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), transactional_id=f"{settings.fleet.group_id}-tail"
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        for role in ROLES:
            for partition in range(settings.topics.partitions):
                await producer.send_and_wait(
                    getattr(settings.topics, role), b"never", key=b"never", partition=partition
                )
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def read_all(settings: Settings) -> list[Read]:
    """Return everything that is in the four topics."""
    found: list[Read] = []
    for role in ROLES:
        for record in await _records(settings, role):
            found.append(Read(role, record.key, record.value, record.timestamp / 1000))
    return found


async def _records(settings: Settings, role: Role | str) -> list[ConsumerRecord]:
    return await read_topic(settings.kafka.bootstrap_servers[0], getattr(settings.topics, role), read_committed=True)


async def alert_records(settings: Settings) -> list[Alert]:
    """Return every record of the alerts, in the order of each partition."""
    records = await _records(settings, "alerts")
    return [msgspec.json.decode(record.value, type=Alert) for record in records if record.value is not None]


async def until(what: Callable[[], bool | Awaitable[bool]], within: float = 30.0, every: float = 0.1) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + within
    while True:
        found = what()
        if not isinstance(found, bool):
            found = await found
        if found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within:g} s")
        await asyncio.sleep(every)
