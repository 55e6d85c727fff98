"""Measure the emitter: python -m tests.client.bench_emitter

One caller that waits for each record, and a thousand at once, into a file, to the embedded broker and to Apache Kafka.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from sidecar import embedded
from sidecar.client import Emitter
from tests.kafka import broker as kafka_broker
from tests.kafka.support import create_topics

CALLS = 2_000
AT_ONCE = 1_000
ROUNDS = 20


async def _measure(name: str, log: Emitter) -> None:
    async with log:
        assert log._journal is not None
        disk, syncs = log._journal._disk, 0
        sync = disk.sync

        def counted(fd: int) -> None:
            nonlocal syncs
            syncs += 1
            sync(fd)

        setattr(disk, "sync", counted)  # noqa: B010 - for mypy it is a method
        times = []
        for n in range(CALLS):
            begun = time.perf_counter()
            await log.action(f"action-{n}", irreversible=True)
            times.append(time.perf_counter() - begun)
        await log.flush()
        cuts = quantiles(times, n=100)
        one = f"{CALLS / sum(times):,.0f}/s, p50 {cuts[49] * 1000:.2f} ms, p99 {cuts[98] * 1000:.2f} ms"
        syncs = 0
        begun = time.perf_counter()
        for r in range(ROUNDS):
            await asyncio.gather(*(log.action(f"action-{r}-{n}", irreversible=True) for n in range(AT_ONCE)))
        called = time.perf_counter() - begun
        await log.flush()
        published = time.perf_counter() - begun
    total = AT_ONCE * ROUNDS
    print(f"{name:15} one caller: {one}")
    rates = f"{total / called:,.0f}/s journaled, {total / published:,.0f}/s acknowledged"
    print(f"{'':15} {AT_ONCE} at once: {rates}, {total / syncs:,.0f} records an fsync")


def _brokers(stack: ExitStack, folder: Path) -> Iterator[tuple[str, str]]:
    if embedded.available() is None:
        yield "embedded broker", stack.enter_context(embedded.EmbeddedBroker()).bootstrap
    if kafka_broker.available() is None:
        yield "Apache Kafka", stack.enter_context(kafka_broker.KafkaBroker(folder / "kafka")).bootstrap


def main() -> None:
    """Measure every place that records can go to here."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        asyncio.run(_measure("file", Emitter.file(folder / "log.jsonl", "s")))
        for place, bootstrap in _brokers(stack, folder):
            asyncio.run(create_topics(bootstrap, "agent.events", "agent.compactions", partitions=4))
            asyncio.run(_measure(place, Emitter.kafka(bootstrap, place, journal=folder / "journals")))


if __name__ == "__main__":
    main()
