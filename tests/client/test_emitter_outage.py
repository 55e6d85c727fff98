"""A broker that stops, hangs, crashes and comes back, under an emitter and a listener."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sidecar.client import Emitter, HaltListener, Unacknowledged
from tests.client.logs import log_of, published, topics
from tests.client.test_listener import clears, opens, pair, until
from tests.conftest import missing
from tests.kafka import broker as kafka_broker
from tests.kafka.support import create_topics, produce

OUTAGES = os.environ.get("FRONTIER_EMITTER_OUTAGES", "stop").split(",")
"""What happens to the broker, one after the other: `stop`, `kill`, `hang`."""


@pytest.mark.kafka
async def test_a_broker_that_goes_and_comes_back(tmp_path: Path) -> None:
    # One of its own, because the session's is not to be stopped.
    if reason := kafka_broker.available():
        missing(reason)
    with kafka_broker.KafkaBroker(tmp_path / "kafka", heap="512m") as broker:
        bootstrap = broker.bootstrap
        names = await topics(bootstrap, "t.")
        await create_topics(bootstrap, "halts", partitions=2)
        await produce(bootstrap, "halts", [pair(opens("before"))])
        emitter = Emitter.kafka(bootstrap, "s", journal=tmp_path, request_timeout_ms=3000, **names)
        listener = HaltListener(bootstrap, topic="halts", cut_off_after=1.5, request_timeout_ms=3000)
        async with emitter as log, listener:
            await listener.wait_ready(10)
            for outage in OUTAGES:
                await log.action(f"before {outage}")
                assert listener.is_halted("before") and not listener.is_halted("other")
                calls = [asyncio.create_task(log.event("note", text="x" * 100)) for _ in range(200)]
                await _end(broker, outage)
                await asyncio.gather(*calls)
                for n in range(20):
                    await log.action(f"{outage} {n}")
                with pytest.raises(Unacknowledged, match=r"were not acknowledged within 0\.2 s"):
                    await log.flush(0.2)
                await until(lambda: listener.status == "cut_off")
                assert listener.is_halted("other"), "nothing is known of it"
                await _come_back(broker, outage)
                await produce(bootstrap, "halts", [pair(opens(outage)), pair(clears(outage))])
                await log.flush(20)
                assert log.trouble is None
                await until(lambda: listener.status == "current", 20)
                assert list(listener.view) == ["before"]
                heard = [await listener.next(10), await listener.next(10)]
                assert heard == [opens(outage), clears(outage)], "nothing is missed, nothing comes twice"
            assert await listener.next(0.1) is None
        found = await published(bootstrap, names)
        assert len(log_of(found["s"])) == len(OUTAGES) * (1 + 200 + 20)


async def _end(broker: kafka_broker.KafkaBroker, outage: str) -> None:
    assert broker.pid is not None
    if outage == "hang":
        os.kill(broker.pid, signal.SIGSTOP)
    else:
        await asyncio.to_thread(broker.stop if outage == "stop" else broker.kill)


async def _come_back(broker: kafka_broker.KafkaBroker, outage: str) -> None:
    if outage == "hang":
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGCONT)
    else:
        await asyncio.to_thread(broker.start)
