"""One session must not take down a tail: gaps without end, and sessions first seen far from their beginning."""

import asyncio
import resource
import time
from collections.abc import Iterable

import pytest

from sidecar.engine import ask
from sidecar.protocol.api import AuthorizeRequest
from sidecar.tail.homes import partition_of
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import PARTITIONS, running, send, settings_for, until

MEMORY = 400 * 2**20
LATENCY = 1.0
PAUSE = 0.5


def gap_bomb() -> Iterable[bytes]:
    for n in range(1, 8001):
        yield b'{"kind":"message","session_id":"bomb","seq":%d}' % (1026 * n)


def late_sessions() -> Iterable[bytes]:
    for n in range(2000):
        yield b'{"kind":"message","session_id":"late-%d","seq":5000}' % n


@pytest.mark.parametrize("bomb", [gap_bomb, late_sessions])
@pytest.mark.parametrize("max_wait", [0.2, 60.0])
async def test_others_are_answered_meanwhile(kafka: KafkaBroker, unique: str, bomb: object, max_wait: float) -> None:
    settings = settings_for(kafka.bootstrap, unique, max_wait=max_wait)
    assert callable(bomb)
    lines = list(bomb())
    # In the bomb's own partition, where it is hardest.
    number = partition_of(b"bomb", PARTITIONS)
    names = [name for name in map(str, range(200)) if partition_of(name.encode(), PARTITIONS) == number][:20]
    async with running(settings) as (tail, _, _):
        await until(lambda: tail.sessions.find(names[0]).engine)
        longest = 0.0

        async def pulse() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.005)
                longest = max(longest, time.monotonic() - before)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        beating = asyncio.create_task(pulse())
        bombing = asyncio.create_task(send(settings, lines))
        latencies = []
        for name in names:
            line = b'{"kind":"authorization","session_id":"%s","seq":1,"action_id":"a","precondition_id":"p"}'
            sent = time.monotonic()
            await send(settings, [line % name.encode()])

            def permitted(name: str = name) -> bool:
                engine = tail.sessions.find(name).engine
                request = AuthorizeRequest(session_id=name, action_id="a")
                return engine is not None and ask.authorize(engine, request).allowed

            sent = max(sent, time.monotonic() - 0.05)  # opening the producer is not what is measured
            await until(permitted, within=20, every=0.01)
            latencies.append(time.monotonic() - sent)
        await bombing
        await until(lambda: not any(task.queued(topic) for task in tail.loop.tasks for topic in task.topics))  # type: ignore[union-attr]
        await asyncio.sleep(2 * min(max_wait, 1.0))
        beating.cancel()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        print(f"longest pause {longest:.3f} s, slowest answer {max(latencies):.3f} s, memory {grown / 2**20:.0f} MB")
        assert grown < MEMORY
        assert max(latencies) < LATENCY
        assert longest < PAUSE
        assert tail.sessions.find("bomb").engine is not None or bomb is late_sessions
