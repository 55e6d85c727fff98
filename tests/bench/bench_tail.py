"""End to end from a broker: the tail against a bare aiokafka loop that only decodes, on the same topics in one run.

    python -m tests.bench.bench_tail [--records N] [--rounds N] [--broker embedded|kafka|HOST:PORT]

Both run in turns in the same process, so that what the machine does meanwhile meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from sidecar import embedded
from sidecar.config import Settings
from sidecar.observe import logs
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.simulate import mixed_records
from sidecar.tail.publish import publish
from sidecar.tail.tail import Tail
from tests.kafka import broker as apache

BOUND = 0.4
"""Least share of the bare loop's speed that the tail has to reach."""

_PATIENCE = 900.0


def settings_for(bootstrap: str, name: str, guarantee: str) -> Settings:
    """Return settings with topics of their own and everything else as it comes."""
    topics = {role: f"{name}.{role}" for role in ("events", "compactions", "findings", "halts", "halt_acks", "dlq")}
    return Settings.load(
        None,
        kafka={"bootstrap_servers": bootstrap},
        topics=topics,
        tail={"group_id": f"{name}.group", "fetch_max_wait": 0.05, "commit_interval": 0.1, "guarantee": guarantee},
    )


async def bare(settings: Settings, records: int) -> float:
    """Return the seconds that fetching and decoding take, with nothing else."""
    tail, decode = settings.tail, msgspec.json.Decoder().decode
    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers),
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=tail.partition_max_bytes,
    )
    await consumer.start()
    try:
        count, broken = 0, 0
        begun = time.perf_counter()
        consumer.assign(
            [TopicPartition(t, p) for t in settings.topics.inputs for p in range(settings.topics.partitions)]
        )
        while count < records:
            fetched = await consumer.getmany(timeout_ms=200, max_records=tail.fetch_max_records)
            for batch in fetched.values():
                count += len(batch)
                for message in batch:
                    try:
                        decode(message.value)
                    except msgspec.MsgspecError:
                        broken += 1
        return time.perf_counter() - begun
    finally:
        await consumer.stop()


async def end_to_end(settings: Settings, records: int) -> tuple[float, int]:
    """Return the seconds from a tail's assignment until everything is judged, written and committed, and the findings.

    A new group each time: joining it is not measured, because that takes as long as the broker's delays say.
    """
    group = f"{settings.tail.group_id}.{secrets.token_hex(4)}"
    settings = settings.model_copy(
        update={
            "tail": settings.tail.model_copy(update={"group_id": group}),
            "topics": settings.topics.model_copy(update={"snapshots": f"{group}.snapshots"}),
        }
    )
    found = 0

    def count(outcome: Any) -> None:
        nonlocal found
        found += len(outcome.findings)

    tail = Tail(settings, Metrics(), Health(time.monotonic()), count)
    await tail.start()
    work = asyncio.create_task(tail.run())
    try:
        # No event tells either of these.
        while tail.loop is None or not tail.loop.tasks or not all(task.placed for task in tail.loop.tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        tasks = list(tail.loop.tasks)
        while not work.done() and sum(sum(task.committed.values()) for task in tasks) < records:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        return time.perf_counter() - begun, found
    finally:
        await tail.stop()
        await work


async def measure(bootstrap: str, records: int, rounds: int = 3, guarantee: str = "exactly_once") -> dict[str, float]:
    """Publish records and measure both on them, in turns; the best round of each counts."""
    settings = settings_for(bootstrap, f"bench{secrets.token_hex(4)}", guarantee)
    begun = time.perf_counter()
    sent = await publish(mixed_records(7, records), settings)
    published = time.perf_counter() - begun
    best, found = {"bare": float("inf"), "tail": float("inf")}, 0
    async with asyncio.timeout(_PATIENCE):
        for _ in range(rounds):
            best["bare"] = min(best["bare"], await bare(settings, records))
            seconds, found = await end_to_end(settings, records)
            best["tail"] = min(best["tail"], seconds)
    return {
        "records": sent.records,
        "findings": found,
        "publish_per_second": records / published,
        "bare_per_second": records / best["bare"],
        "tail_per_second": records / best["tail"],
        "ratio": best["bare"] / best["tail"],
    }


@contextlib.contextmanager
def brokers(which: str) -> Iterator[dict[str, str]]:
    """Give the brokers to measure on, by name; those that cannot be had are named on standard error."""
    with contextlib.ExitStack() as stack:
        found: dict[str, str] = {}
        if ":" in which:
            found[which] = which
        if which in ("embedded", "all"):
            if reason := embedded.available():
                print(f"NOT MEASURED: {reason}", file=sys.stderr)
            else:
                found["embedded broker"] = stack.enter_context(embedded.EmbeddedBroker()).bootstrap
        if which in ("kafka", "all"):
            if reason := apache.available():
                print(f"NOT MEASURED: {reason}", file=sys.stderr)
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sidecar-bench-"))
                found["Apache Kafka"] = stack.enter_context(apache.KafkaBroker(Path(folder))).bootstrap
        yield found


def report(records: int, *, which: str = "all", rounds: int = 3, bound: float = BOUND) -> list[str]:
    """Measure on the brokers at hand, print the figures, and return what breaks its bound."""
    logs.setup("critical", "json")
    logging.disable(logging.CRITICAL)  # what is found is logged, line by line, and that is not measured
    broken = []
    with brokers(which) as found:
        for name, bootstrap in found.items():
            # The embedded broker has no transactions. What they cost is shown, and bounded by nothing but this.
            for guarantee in ("at_least_once",) if name == "embedded broker" else ("at_least_once", "exactly_once"):
                print(f"end to end on {name}, {guarantee}, {records:,} mixed records", flush=True)
                figures = asyncio.run(measure(bootstrap, records, rounds, guarantee))
                print(f"  published: {figures['publish_per_second']:,.0f}/s")
                print(f"  bare getmany and msgspec: {figures['bare_per_second']:,.0f}/s")
                print(f"  tail, {figures['findings']:,.0f} findings: {figures['tail_per_second']:,.0f}/s")
                bounded = f" (bound {bound:g})" if guarantee == "at_least_once" else ""
                print(f"  tail / bare: {figures['ratio']:.2f}{bounded}", flush=True)
                if bounded and figures["ratio"] < bound:
                    ratio = f"{figures['ratio']:.2f}"
                    broken.append(f"the tail on {name} reaches {ratio} of a bare loop, less than {bound:g}")
    return broken


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_tail", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", default="all", help="embedded, kafka, all, or HOST:PORT (default: %(default)s)")
    given = parser.parse_args()
    broken = report(given.records, which=given.broker, rounds=given.rounds)
    for problem in broken:
        print(f"BOUND BROKEN: {problem}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
