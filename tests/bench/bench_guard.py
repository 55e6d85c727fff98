"""How long an agent waits for permission while the tail works at half its capacity.

    python -m tests.bench.bench_guard [--records N] [--seconds S] [--rates 1,100,1000]

The tail's capacity is measured first (a backlog, worked off). Then a process of its own publishes at half that rate to
a `sidecar run`, and this one asks `POST /v1/authorize`, at fixed rates: a question is due whether or not the last one
has been answered, and its latency counts from when it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2

from sidecar.config import Settings
from sidecar.observe import logs
from sidecar.simulate import mixed_records
from sidecar.tail.publish import publish, route
from sidecar.tail.topics import create_missing
from tests.bench.bench_tail import brokers, end_to_end, settings_for

_BATCH = 500
_PATIENCE = 300.0
_SLICE = 0.02
_WARM_UP = 2.0


async def capacity(settings: Settings, records: int) -> float:
    """Return the records a second at which the tail works a backlog off; the better of two rounds."""
    await publish(mixed_records(7, records), settings)
    rounds = [await end_to_end(settings, records) for _ in range(2)]
    return records / min(seconds for seconds, _ in rounds)


async def keep_publishing(settings: Settings, rate: float, seconds: float) -> None:
    """Publish records at a rate, in batches made beforehand, so that it costs little beside what is measured."""
    wanted = int(rate * seconds)
    count = settings.topics.partitions
    ready: dict[TopicPartition, list[tuple[bytes, bytes]]] = {}
    order: list[TopicPartition] = []
    for _, _, value in mixed_records(11, wanted):
        role, key, _ = route(value)
        raw = (key or "").encode() if isinstance(key, str) else (key or b"")
        tp = TopicPartition(getattr(settings.topics, role), (murmur2(raw) & 0x7FFFFFFF) % count)
        ready.setdefault(tp, []).append((raw, value))
        order.append(tp)
    producer = AIOKafkaProducer(bootstrap_servers=list(settings.kafka.bootstrap_servers), linger_ms=0)
    await producer.start()
    print("READY", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        begun, sent = time.monotonic(), 0
        places = dict.fromkeys(ready, 0)
        while sent < wanted:
            due = min(wanted, int((time.monotonic() - begun) * rate))
            if due - sent < _BATCH and due < wanted:
                await asyncio.sleep(_SLICE)
                continue
            for tp, share in Counter(order[sent:due]).items():
                place = places[tp]
                batch = producer.create_batch()
                for key, value in ready[tp][place : place + share]:
                    while batch.append(key=key, value=value, timestamp=None) is None:
                        batch.close()
                        await producer.send_batch(batch, tp.topic, partition=tp.partition)
                        batch = producer.create_batch()
                batch.close()
                await producer.send_batch(batch, tp.topic, partition=tp.partition)
                places[tp] = place + share
            sent = due
        await producer.flush()
        print(json.dumps({"published_per_second": sent / (time.monotonic() - begun)}), flush=True)
    finally:
        await producer.stop()


async def ask(url: str, pairs: Sequence[tuple[str, str]], rate: float, seconds: float) -> dict[str, Any]:
    """Ask at a rate for so many seconds; return the latencies, and what the answers said."""
    rng = random.Random(3)
    latencies: list[float] = []
    said: Counter[str] = Counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:

        async def once(due: float) -> None:
            session_id, action_id = rng.choice(pairs)
            question = {"session_id": session_id, "action_id": action_id}
            async with session.post(f"{url}/v1/authorize", json=question) as response:
                answer = await response.json()
            latencies.append(time.perf_counter() - due)
            said["allowed" if answer["allowed"] else answer["reasons"][0]["code"]] += 1

        begun = time.perf_counter()
        asked = []
        for number in range(max(5, int(rate * seconds))):
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.create_task(once(due)))
        await asyncio.gather(*asked)
    latencies.sort()
    pick = lambda share: latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000  # noqa: E731
    return {"asked": len(latencies), "p50": pick(0.5), "p99": pick(0.99), "worst": latencies[-1] * 1000, "said": said}


async def measure(bootstrap: str, records: int, seconds: float, rates: Sequence[float]) -> list[str]:
    """Measure, and return the lines to print."""
    name = f"bench{secrets.token_hex(4)}"
    most = await capacity(settings_for(bootstrap, name, "exactly_once"), records)
    lines = [f"  the tail's capacity: {most:,.0f}/s"]
    settings = settings_for(bootstrap, f"{name}.live", "exactly_once")
    await create_missing(settings)
    pairs = _pairs(mixed_records(11, 20_000))
    rate, lasting = most / 2, _WARM_UP + seconds * len(rates) + 3
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "sidecar.json"
        config.write_text(settings.model_dump_json())
        log = (Path(folder) / "log").open("w+b")
        tail = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "--config", str(config), "--log-format", "json"),
            *("run", "--http", "127.0.0.1:0"),
            stderr=log,
            stdout=log,
        )
        publisher = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.bench_guard", "--publish", str(config)),
            *("--rate", str(rate), "--seconds", str(lasting)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert publisher.stdout is not None and publisher.stdin is not None
            async with asyncio.timeout(_PATIENCE):
                url = await _address(Path(log.name))
                await publisher.stdout.readline()
                idle = await ask(url, pairs, 100, 2)
                lines.append(f"  idle, 100/s: p50 {idle['p50']:.2f} ms, p99 {idle['p99']:.2f} ms")
                publisher.stdin.write(b"go\n")
                await publisher.stdin.drain()
                await asyncio.sleep(_WARM_UP)
                for asked in rates:
                    got = await ask(url, pairs, asked, seconds)
                    said = ", ".join(f"{n} {code}" for code, n in got["said"].most_common())
                    lines.append(
                        f"  {asked:,.0f}/s: p50 {got['p50']:.2f} ms, p99 {got['p99']:.2f} ms, "
                        f"worst {got['worst']:.1f} ms ({got['asked']:,} questions: {said})"
                    )
                published = json.loads(await publisher.stdout.readline())["published_per_second"]
                lag = await _lag(settings)
            share = published / most
            lines.append(
                f"  published meanwhile: {published:,.0f}/s, {share:.2f} of the capacity; unread after it: {lag:,}"
            )
        finally:
            for process in (publisher, tail):
                if process.returncode is None:
                    process.kill()
                await process.wait()
    return lines


def _pairs(records: Iterator[Any]) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for _, _, value in records:
        if b'"authorization"' in value:
            try:
                fields = json.loads(value)
            except ValueError:
                continue
            if isinstance(fields.get("action_id"), str) and isinstance(fields.get("session_id"), str):
                found[fields["session_id"], fields["action_id"]] = None
    return list(found)


async def _address(log: Path) -> str:
    while True:
        for line in (await asyncio.to_thread(log.read_text, errors="replace")).splitlines():
            if "serving" in line and '"address"' in line:
                return str(json.loads(line)["address"])
        await asyncio.sleep(0.1)


async def _lag(settings: Settings) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), group_id=settings.tail.group_id
    )
    await consumer.start()
    try:
        tps = [TopicPartition(t, p) for t in settings.topics.inputs for p in range(settings.topics.partitions)]
        ends = await consumer.end_offsets(tps)
        committed = [await consumer.committed(tp) or 0 for tp in ends]
        return sum(ends.values()) - sum(committed)
    finally:
        await consumer.stop()


def report(records: int, seconds: float, rates: Sequence[float]) -> None:
    """Measure on Apache Kafka, and print the figures."""
    with brokers("kafka") as found:
        for name, bootstrap in found.items():
            print(f"permission on {name} while the tail works at half its capacity, {records:,} records", flush=True)
            for line in asyncio.run(measure(bootstrap, records, seconds, rates)):
                print(line, flush=True)


def main() -> int:
    """Run the command line."""
    logs.setup("critical", "json")
    logging.disable(logging.CRITICAL)  # what is found is logged, line by line, and that is not measured
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_guard", description=__doc__)
    parser.add_argument("--records", type=int, default=300_000, help="backlog that the capacity is measured on")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long is asked at each rate")
    parser.add_argument("--rates", default="1,100,1000", help="questions a second (default: %(default)s)")
    parser.add_argument("--publish", metavar="CONFIG", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        asyncio.run(keep_publishing(Settings.load(given.publish), given.rate, given.seconds))
        return 0
    report(given.records, given.seconds, [float(rate) for rate in given.rates.split(",")])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
