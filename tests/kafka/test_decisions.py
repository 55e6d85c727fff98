"""Decisions of the guard on their topic: kept before anybody is told, or an error in bounded time."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.engine.live import DecisionLog
from sidecar.tail.decisions import Decisions
from sidecar.tail.errors import TailError
from tests.conftest import missing
from tests.kafka import broker as apache
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import read_topic
from tests.kafka.tail_support import settings_for


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka that the test may stop."""
    if reason := apache.available():
        missing(reason)
    with KafkaBroker(tmp_path / "broker") as broker:
        yield broker


async def test_a_decision_is_on_the_topic_when_writing_returns(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    decisions = Decisions(settings)
    log: DecisionLog = decisions
    await decisions.start()
    try:
        await asyncio.gather(*(log.write(f"s{n}", b'{"n":%d}' % n) for n in range(50)))
        kept = await read_topic(kafka.bootstrap, settings.topics.decisions)
        assert sorted((record.key, record.value) for record in kept) == sorted(
            (f"s{n}".encode(), b'{"n":%d}' % n) for n in range(50)
        )
    finally:
        await decisions.close()


async def test_a_broker_that_is_away_is_an_error_soon_and_none_afterwards(own_kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(own_kafka.bootstrap, unique)
    decisions = Decisions(settings, within=1.0)
    await decisions.start()
    try:
        await decisions.write("s", b"1")
        await asyncio.to_thread(own_kafka.kill)
        begun = time.monotonic()
        results = await asyncio.gather(*(decisions.write("s", b"lost") for _ in range(5)), return_exceptions=True)
        assert time.monotonic() - begun < 3
        assert all(isinstance(result, TailError) and "could not be written" in str(result) for result in results)
        await asyncio.to_thread(own_kafka.start)
        async with asyncio.timeout(30):
            while True:
                try:
                    await decisions.write("s", b"2")
                    break
                except TailError:
                    await asyncio.sleep(0.2)
        kept = [record.value for record in await read_topic(own_kafka.bootstrap, settings.topics.decisions)]
        assert kept[0] == b"1" and kept[-1] == b"2"
    finally:
        await decisions.close()
