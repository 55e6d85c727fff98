"""Findings per second that the fleet takes in, by workers and partitions; and whether it keeps up with a given rate.

    python -m tests.bench.bench_fleet [--findings N] [--workers 1,2] [--partitions 4] [--store memory,rocksdb]
                                      [--rate N] [--broker HOST:PORT]

Workers are processes; so is the broker, and all of them share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaProducer

from sidecar.config import Settings
from sidecar.fleet.topics import partition_of
from sidecar.observe import logs
from sidecar.protocol.outputs import Finding, Subject
from sidecar.tail.topics import prepare_fleet
from tests.fleet.cluster import Cluster, Worker
from tests.kafka import broker as apache

TARGET = 5_000.0
"""Findings a second that one worker should take in."""

SESSIONS = 2_000
_TENANTS, _MODELS, _AGENTS = 5, 4, 3
_RULES = (("edge_dropped", "error", "rederive"), ("budget_exceeded", "error", "retry"))
_PATIENCE = 600.0
_TAKEN = re.compile(r'^sidecar_fleet_records_total\{topic="[^"]*findings"\} (\S+)', re.M)


def settings_for(bootstrap: str, partitions: int, store: str, folder: str) -> Settings:
    """Return settings with topics of their own, and everything else as it comes."""
    name = f"bench{secrets.token_hex(4)}."
    roles = (
        *("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "alerts", "snapshots"),
        *("misplaced", "decisions"),
    )
    return Settings.load(
        None,
        kafka={"bootstrap_servers": bootstrap},
        topics={**{role: name + role for role in roles}, "partitions": partitions},
        http={"host": "127.0.0.1", "port": 0},
        log={"level": "warning"},
        fleet={"group_id": f"{name}fleet", "store": store, "data_dir": folder},
    )


def findings(number: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield findings (key, value) of many sessions, of now."""
    for i in range(number):
        session = i * 7919 % SESSIONS
        rule, severity, disposition = _RULES[i % len(_RULES)]
        finding = Finding(
            finding_id=f"{i:032x}",
            rule=rule,
            severity=severity,  # type: ignore[arg-type]
            disposition=disposition,  # type: ignore[arg-type]
            session_id=f"session-{session}",
            subject=Subject("checkpoint", f"checkpoint-{i % 50}"),
            position=i,
            evidence={"witness": [i, i + 1], "edges": [["deploy-prod", "approval-17"], ["drop-table", "approval-18"]]},
            detected_at=datetime.now(UTC),
            tenant=f"tenant-{session % _TENANTS}",
            agent=f"agent-{session % _AGENTS}",
            model=f"model-{session % _MODELS}",
        )
        yield finding.session_id.encode(), msgspec.json.encode(finding)


async def publish(settings: Settings, number: int, rate: float | None = None) -> None:
    """Publish findings, by default as fast as they are taken."""
    producer = AIOKafkaProducer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), linger_ms=20, max_batch_size=2**19
    )
    await producer.start()
    begun = time.perf_counter()
    try:
        for count, (key, value) in enumerate(findings(number), start=1):
            where = partition_of(key, settings.topics.partitions)
            await producer.send(settings.topics.findings, key=key, value=value, partition=where)
            if rate is not None and count % 100 == 0:
                await asyncio.sleep(max(0.0, begun + count / rate - time.perf_counter()))
        await producer.flush()
    finally:
        await producer.stop()


async def taken(fleet: Cluster, workers: list[Worker]) -> float:
    """Return how many findings the workers have taken in."""
    total = 0.0
    for worker in workers:
        _, body = await fleet.get(worker, "/metrics")
        if found := _TAKEN.search(body.decode()):
            total += float(found[1])
    return total


async def drain(bootstrap: str, number: int, workers: int, partitions: int, store: str) -> float:
    """Return the findings per second at which workers take in what is there, once each has its partitions."""
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-") as folder:
        settings = settings_for(bootstrap, partitions, store, folder)
        await prepare_fleet(settings)
        await publish(settings, number)  # first, for it needs a processor of its own
        fleet = Cluster(settings, Path(folder))
        try:
            running = list(await asyncio.gather(*(fleet.start() for _ in range(workers))))
            async with asyncio.timeout(_PATIENCE):
                while not await _shared(fleet, running, partitions):  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.1)
                samples: list[tuple[float, float]] = []
                while not samples or samples[-1][1] < 0.95 * number:
                    samples.append((time.perf_counter(), await taken(fleet, running)))
                    await asyncio.sleep(0.1)
            # The count is shown once a second: from where it changes to where it changes.
            steps = [after for before, after in pairwise(samples) if after[1] != before[1]]
            if len(steps) < 3:
                raise SystemExit("too few findings to measure: give more (--findings)")
            return (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
        finally:
            await fleet.close()


async def _shared(fleet: Cluster, workers: list[Worker], partitions: int) -> bool:
    found = [figures.partitions for figures in await fleet.figures(*workers)]
    return sorted(p for some in found for p in some) == list(range(partitions)) and len(found) == len(workers)


async def keep_up(bootstrap: str, rate: float, seconds: float, partitions: int) -> tuple[float, float]:
    """Return how many seconds one worker is behind at the end of a time at a rate, and the rate that was published."""
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-") as folder:
        settings = settings_for(bootstrap, partitions, "memory", folder)
        await prepare_fleet(settings)
        fleet = Cluster(settings, Path(folder))
        try:
            worker = await fleet.start()
            async with asyncio.timeout(_PATIENCE):
                while not await _shared(fleet, [worker], partitions):  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.2)
                number, begun = int(rate * seconds), time.perf_counter()
                await publish(settings, number, rate)
                published = time.perf_counter()
                while await taken(fleet, [worker]) < number:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.05)
                # The count is shown once a second.
                return max(0.0, time.perf_counter() - published - 1.0), number / (published - begun)
        finally:
            await fleet.close()


@contextlib.contextmanager
def broker(address: str | None) -> Iterator[str]:
    """Give a broker's address: one that is named, or an Apache Kafka of our own."""
    if address is not None:
        yield address
        return
    if reason := apache.available():
        raise SystemExit(f"NOT MEASURED: {reason}")
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-") as folder, apache.KafkaBroker(Path(folder)) as kafka:
        yield kafka.bootstrap


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_fleet", description=__doc__)
    parser.add_argument("--findings", type=int, default=150_000)
    parser.add_argument("--workers", default="1,2", help="numbers of workers (default: %(default)s)")
    parser.add_argument("--partitions", default="4", help="numbers of partitions (default: %(default)s)")
    parser.add_argument("--store", default="memory", help="memory, rocksdb (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=TARGET, help="findings a second to keep up with; 0: leave out")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long (default: %(default)s)")
    parser.add_argument("--broker", help="HOST:PORT; by default an Apache Kafka of its own")
    given = parser.parse_args()
    logs.setup("critical", "json")
    best = 0.0
    with broker(given.broker) as bootstrap:
        for store in given.store.split(","):
            for partitions in map(int, given.partitions.split(",")):
                for workers in map(int, given.workers.split(",")):
                    rate = asyncio.run(drain(bootstrap, given.findings, workers, partitions, store))
                    print(f"{store}, {partitions} partitions, {workers} workers: {rate:,.0f} findings/s", flush=True)
                    best = max(best, rate) if workers == 1 else best
        if given.rate:
            behind, rate = asyncio.run(keep_up(bootstrap, given.rate, given.seconds, 4))
            print(f"at {rate:,.0f} findings/s for {given.seconds:g} s, one worker is {behind:.1f} s behind at the end")
    if 0 < best < TARGET:
        print(f"BOUND BROKEN: one worker takes {best:,.0f} findings/s, fewer than {TARGET:,.0f}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
