"""Brokers that go, connections that break and transactions that take too long, and what is said all the same."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from sidecar.config import Settings
from sidecar.embedded import free_port
from tests.conftest import missing
from tests.kafka import broker as apache
from tests.kafka import proxy as through
from tests.kafka.broker import KafkaBroker
from tests.kafka.equality import MAX_WAIT, Load, count_in_logs, undisturbed, verdicts
from tests.kafka.proxy import Part, Proxy
from tests.kafka.tail_support import process, settings_for, until

RATE = 500.0
SEED = 4


class _Probed(msgspec.Struct):
    """Hold one answer of a sidecar about itself."""

    alive: bool
    ready: bool
    broker_up: bool
    reasons: list[str]


class _Sidecar:
    """Run `sidecar run` as a process, and ask it how it is all the while."""

    def __init__(self, child: asyncio.subprocess.Process, port: int) -> None:
        self.child = child
        self._address = f"http://127.0.0.1:{port}"
        self._frozen = False
        self.alive: Counter[bool] = Counter()

    async def probe(self) -> _Probed:
        """Ask all three endpoints."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
            async with client.get(f"{self._address}/healthz") as answer:
                alive = answer.status == 200
            async with client.get(f"{self._address}/readyz") as answer:
                ready, reasons = answer.status == 200, (await answer.json())["reasons"]
            async with client.get(f"{self._address}/metrics") as metrics:
                text = await metrics.text()
        up = re.search(r"^sidecar_broker_up (.*)$", text, re.M)
        assert up is not None
        return _Probed(alive, ready, float(up[1]) == 1.0, reasons)

    async def watch(self) -> None:
        """Ask for ever whether it is alive."""
        while True:
            await asyncio.sleep(0.25)
            if not self._frozen:
                self.alive[(await self.probe()).alive] += 1

    async def well(self, within: float = 30.0) -> None:
        """Wait until it is ready, and says that the broker is there."""

        async def is_well() -> bool:
            probed = await self.probe()
            return probed.ready and probed.broker_up

        await until(is_well, within, every=0.2)

    async def cut_off(self, within: float = 15.0) -> _Probed:
        """Wait until it says that the broker is away, and that it is not ready; it must be alive."""

        async def is_cut_off() -> _Probed | None:
            probed = await self.probe()
            return probed if not probed.ready and not probed.broker_up else None

        found: _Probed = await until(is_cut_off, within, every=0.2)
        assert found.alive, "a restart would not help"
        assert any("the brokers have not answered" in reason for reason in found.reasons)
        return found

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process in its tracks."""
        self._frozen = True
        try:
            yield
        finally:
            self.child.send_signal(signal.SIGCONT)
            self._frozen = False


@contextlib.asynccontextmanager
async def _sidecar(settings: Settings, folder: Path) -> AsyncIterator[_Sidecar]:
    port = free_port()
    config = folder / "sidecar.json"
    config.write_text(settings.model_dump_json())
    arguments = ("-m", "sidecar", "--config", str(config), "run", "--http", f"127.0.0.1:{port}")
    with (folder / "sidecar.log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
    try:
        sidecar = _Sidecar(child, port)

        async def answers() -> bool:
            assert child.returncode is None, (folder / "sidecar.log").read_text()[-2000:]
            with contextlib.suppress(aiohttp.ClientError):
                return (await sidecar.probe()).ready
            return False

        await until(answers, 30.0, every=0.2)
        watching = asyncio.create_task(sidecar.watch())
        try:
            yield sidecar
            assert not watching.done() or watching.result() is None
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
        child.terminate()
        assert await asyncio.wait_for(child.wait(), 30) == 0
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, int, int]]:
    """Give an Apache Kafka that may be stopped, with a listener of which it says that it is elsewhere."""
    if reason := apache.available():
        missing(reason)
    broker = KafkaBroker(tmp_path_factory.mktemp("faults"))
    inside, outside = free_port(), free_port()
    plain = f"PLAINTEXT://{broker.bootstrap}"
    broker.properties |= {
        "listeners": f"{plain},CONTROLLER://127.0.0.1:{broker.controller_port},PROXIED://127.0.0.1:{inside}",
        "advertised.listeners": f"{plain},PROXIED://127.0.0.1:{outside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    with broker:
        yield broker, inside, outside


class _Run(msgspec.Struct):
    sidecar: _Sidecar
    proxy: Proxy
    broker: KafkaBroker
    log: Path


async def _open_transactions(settings: Settings) -> str:
    """Say which output partitions readers of committed records cannot read to their ends, for a failure's message."""
    hidden = []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), isolation_level="read_committed"
    )
    await consumer.start()
    try:
        for topic in (settings.topics.findings, settings.topics.halts, settings.topics.snapshots):
            tps = [TopicPartition(topic, number) for number in range(settings.topics.partitions)]
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            await asyncio.sleep(1)
            await consumer.getmany(timeout_ms=1000)
            hidden += [(tp, consumer.last_stable_offset(tp), consumer.highwater(tp)) for tp in tps]
    finally:
        await consumer.stop()
    hidden = [(f"{tp.topic}/{tp.partition}", stable, high) for tp, stable, high in hidden if stable != high]
    return f"hidden behind open transactions: {hidden}"


@contextlib.asynccontextmanager
async def _under_load(
    proxied: tuple[KafkaBroker, int, int], unique: str, folder: Path, **tail: object
) -> AsyncIterator[_Run]:
    """Run a sidecar through the proxy, under load; afterwards compare what it said with an undisturbed run."""
    broker, inside, outside = proxied
    direct = settings_for(broker.bootstrap, unique, max_wait=MAX_WAIT, kafka={"request_timeout": 60}, **tail)
    kafka = {"bootstrap_servers": (f"127.0.0.1:{outside}",), "request_timeout": 5.0}
    settings = direct.model_copy(
        update={
            "kafka": direct.kafka.model_copy(update=kafka),
            "snapshot": direct.snapshot.model_copy(update={"interval": 1.0}),
        }
    )
    load = Load(SEED, RATE)
    async with Proxy(inside, outside) as proxy, _sidecar(settings, folder) as sidecar:
        publishing = asyncio.create_task(load.run(direct))
        try:
            await asyncio.sleep(2)
            yield _Run(sidecar, proxy, broker, folder / "sidecar.log")
            load.plant_unplaced()
            await asyncio.sleep(2)
            await sidecar.well()
        finally:
            load.stop()
            await asyncio.wait((publishing,))
        records = publishing.result()
        alone = load.expected()
        assert alone

        async def missing() -> list[str]:
            found = (await verdicts(direct)).findings
            return [what for finding_id, what in alone.items() if finding_id not in found]

        async def whole() -> bool:
            return not await missing()

        with contextlib.suppress(AssertionError):
            await until(whole, 40.0, every=0.5)
        assert await missing() == [], await _open_transactions(direct)
        assert set(sidecar.alive) == {True}
    said = await verdicts(direct)
    calm = undisturbed(direct)
    async with process(calm, folder, "undisturbed"):

        async def same() -> bool:
            return not said.differences(await verdicts(calm))

        with contextlib.suppress(AssertionError):
            await until(same, 40.0, every=0.5)
    print(f"{records:,} records: {said}")
    assert said.differences(await verdicts(calm)) == []
    assert len(said.findings) == said.findings.total()
    assert count_in_logs(folder, "failed on_partitions_revoked") == [0]


async def test_a_broker_that_is_stopped_or_killed_loses_nothing_and_repeats_nothing(
    proxied: tuple[KafkaBroker, int, int], unique: str, tmp_path: Path
) -> None:
    async with _under_load(proxied, unique, tmp_path) as run:
        for away in (run.broker.stop, run.broker.kill):
            await asyncio.to_thread(away)
            await run.sidecar.cut_off()
            await asyncio.sleep(1)
            await run.sidecar.cut_off(within=0.1)
            await asyncio.to_thread(run.broker.start)
            await run.sidecar.well(within=60)
            await asyncio.sleep(2)
        # And one that comes back before anybody has noticed.
        await asyncio.to_thread(run.broker.restart)
        await run.sidecar.well(within=60)


CUTS: list[tuple[int, Part]] = [
    (api, part)
    for api in (
        through.ADD_PARTITIONS_TO_TXN,
        through.PRODUCE,
        through.ADD_OFFSETS_TO_TXN,
        through.TXN_OFFSET_COMMIT,
        through.END_TXN,
    )
    for part in ("request", "answer")
]


async def test_a_connection_cut_in_mid_transaction_loses_nothing_and_repeats_nothing(
    proxied: tuple[KafkaBroker, int, int], unique: str, tmp_path: Path
) -> None:
    async with _under_load(proxied, unique, tmp_path) as run:
        for _ in range(2):
            for api, part in CUTS:
                await run.proxy.lose(api, part)
                await asyncio.sleep(0.3)
        for _ in range(3):
            await run.proxy.meet(through.END_TXN, run.proxy.cut)
            await asyncio.sleep(0.5)


async def test_brokers_that_answer_no_more_are_told_of(
    proxied: tuple[KafkaBroker, int, int], unique: str, tmp_path: Path
) -> None:
    async with _under_load(proxied, unique, tmp_path) as run:
        # Nothing is closed: the connections only lead nowhere.
        await run.proxy.meet(through.TXN_OFFSET_COMMIT, run.proxy.hold)
        await run.sidecar.cut_off()
        await asyncio.sleep(6)
        await run.sidecar.cut_off(within=0.1)
        run.proxy.release()
        await run.sidecar.well(within=30)


@pytest.mark.parametrize("at", [through.PRODUCE, through.ADD_OFFSETS_TO_TXN, through.END_TXN], ids=through.NAMES.get)
async def test_a_transaction_that_takes_too_long_loses_nothing_and_repeats_nothing(
    proxied: tuple[KafkaBroker, int, int], unique: str, tmp_path: Path, at: int
) -> None:
    # The group has patience, so that it is the transaction alone that is given up.
    async with _under_load(proxied, unique, tmp_path, transaction_timeout=1.5, session_timeout=30) as run:
        with run.sidecar.frozen():
            await run.proxy.meet(at, lambda: run.sidecar.child.send_signal(signal.SIGSTOP))
            await asyncio.sleep(4)
        await run.sidecar.well()
        await asyncio.sleep(1)
        await run.proxy.meet(at, run.proxy.hold)
        await asyncio.sleep(3.5)
        run.proxy.release()
        await run.sidecar.well()
        # The frozen one is told of. The held one too, unless its producer had been opened anew by then: what counts
        # is that the outputs are equal, below.
        await until(lambda: "the transaction took longer" in run.log.read_text(), within=20)
