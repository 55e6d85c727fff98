"""Starting over, and starting where the guarantee cannot be had."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from sidecar.embedded import EmbeddedBroker
from sidecar.tail.errors import TailError
from sidecar.tail.reset import reset
from sidecar.tail.tail import Tail
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import (
    ids,
    judged,
    new_tail,
    running,
    send,
    settings_for,
    stream,
    until,
    until_committed,
    until_found,
    values,
)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_after_a_reset_everything_is_judged_again(kafka: KafkaBroker, unique: str, guarantee: str) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique, guarantee=guarantee), stream(4)
    expected = [finding.finding_id for finding in judged(lines).findings]
    await send(settings, lines)
    async with running(settings):
        await until_found(settings, expected)
        with pytest.raises(TailError, match="stop every replica"):
            await reset(settings)
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(expected)
    await reset(settings)

    async def again() -> bool:
        return len(await values(settings, settings.topics.findings)) >= 2 * len(expected)

    async with running(settings):
        await until(again)
        await until_committed(settings)
    # And a restart after that goes on from where this one stood.
    async with running(settings) as (_, _, health):
        await until(lambda: health.ready(time.monotonic()).ok)
    assert Counter(ids(await values(settings, settings.topics.findings))) == Counter(expected * 2)


async def test_exactly_once_is_refused_where_there_are_no_transactions(embedded: EmbeddedBroker, unique: str) -> None:
    settings = settings_for(embedded.bootstrap, unique, guarantee="exactly_once")
    tail: Tail = new_tail(settings)[0]
    with pytest.raises(TailError, match="at_least_once") as refused:
        await tail.start()
    assert "tail.guarantee" in str(refused.value)
    await tail.stop()
