"""What the tail tells about its live sessions: where they stand, on the topic; and who can answer for them, now."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.config import Settings
from sidecar.config.guard import GuardSettings
from sidecar.embedded import EmbeddedBroker
from sidecar.engine import ask
from sidecar.engine.fold import Engine
from sidecar.protocol.api import AuthorizeRequest
from sidecar.tail.tail import Tail
from sidecar.tail.task import Task
from tests.conftest import missing
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import (
    WITHOUT_TRANSACTIONS,
    judged,
    new_tail,
    process,
    running,
    send,
    settings_for,
    stream,
    until,
    until_committed,
    values,
)

EDGE = b'{"kind":"authorization","session_id":"s","seq":1,"action_id":"deploy","precondition_id":"ticket"}'


def expected(lines: list[bytes]) -> dict[str, Any]:
    engine = Engine()
    judged(lines, engine)
    return {told.session_id: told for told in engine.take_news()}


async def newest(settings: Settings) -> dict[str, dict[str, Any]]:
    told = await values(settings, settings.topics.sessions)
    for one in told:
        assert one.pop("detected_at").endswith("Z")
    return {one["session_id"]: one for one in told}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_the_sessions_topic_says_where_every_session_stands(
    kafka: KafkaBroker, unique: str, guarantee: str
) -> None:
    settings = settings_for(kafka.bootstrap, unique, guarantee=guarantee)
    lines = stream(3)
    async with running(settings):
        await send(settings, lines)
        await until_committed(settings)
    told = await newest(settings)
    whole = expected(lines)
    # How far a log has got is told only with other news.
    assert told == {name: {**msgspec.to_builtins(s), "position": told[name]["position"]} for name, s in whole.items()}
    assert all(told[name]["position"] <= s.position for name, s in whole.items())


async def test_it_goes_on_after_a_crash(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    lines = stream(6)
    half = len(lines) // 2
    async with process(settings, tmp_path, "first") as child:
        await send(settings, lines[:half])
        await until(lambda: newest(settings))
        child.kill()
        await child.wait()
    await send(settings, lines[half:])
    async with running(settings):
        await until_committed(settings)
    told = await newest(settings)
    assert told == {
        name: {**msgspec.to_builtins(s), "position": told[name]["position"]} for name, s in expected(lines).items()
    }


async def test_every_replica_knows_who_has_a_session(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    urls = ["http://127.0.0.1:1111", "http://127.0.0.1:2222"]
    async with AsyncExitStack() as stack:
        tails = []
        for url in urls:
            tail, _, _ = new_tail(settings)
            tail._assignor.advertise(url)
            await tail.start()
            work = asyncio.create_task(tail.run())
            stack.push_async_callback(tail.stop)
            tails.append(tail)
            assert not work.done()
        names = [f"s{n}" for n in range(40)]
        await send(settings, [EDGE.replace(b'"s"', f'"{name}"'.encode()) for name in names])

        def answers(tail: Tail, name: str) -> bool:
            engine = tail.sessions.find(name).engine
            return engine is not None and name in engine

        await until(lambda: all(sum(answers(tail, name) for tail in tails) == 1 for name in names))
        for name in names:
            owner = next(url for tail, url in zip(tails, urls, strict=True) if answers(tail, name))
            other = next(tail for tail in tails if not answers(tail, name))
            standing = other.sessions.find(name)
            assert (standing.trouble, standing.owner) == ("not_owned", owner)
        # Of a session that nobody has heard of, only the owner of its partition may say so.
        strangers = [[tail.sessions.find(f"stranger-{n}") for tail in tails] for n in range(20)]
        assert all(sorted(str(s.trouble) for s in pair) == ["None", "not_owned"] for pair in strangers)


async def test_an_answer_may_wait_for_the_log(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    async with running(settings) as (tail, _, _):
        await until(lambda: tail.sessions.find("s").engine)
        waiting = asyncio.create_task(tail.sessions.moved())
        await send(settings, [EDGE])
        async with asyncio.timeout(10):
            await waiting
            while not (engine := tail.sessions.find("s").engine) or ask.applied(engine, "s") != 1:
                await tail.sessions.moved()
        assert ask.authorize(engine, AuthorizeRequest(session_id="s", action_id="deploy")).allowed
        assert not ask.authorize(engine, AuthorizeRequest(session_id="s", action_id="drop")).allowed


async def test_nothing_is_answered_for_once_the_broker_is_away(unique: str) -> None:
    try:
        broker = EmbeddedBroker()
        broker.start()
    except Exception as error:
        missing(str(error))
    try:
        WITHOUT_TRANSACTIONS.add(broker.bootstrap)
        settings = settings_for(broker.bootstrap, unique)
        settings = settings.model_copy(update={"guard": GuardSettings(max_staleness=1.0)})
        async with running(settings, ends_well=False) as (tail, _, _):
            await send(settings, [EDGE])
            await until(lambda: (engine := tail.sessions.find("s").engine) and "s" in engine)
            for _ in range(20):
                assert tail.sessions.find("s").engine is not None
                await asyncio.sleep(0.1)
            broker.stop()
            begun = time.monotonic()
            await until(lambda: tail.sessions.find("s").trouble in ("lagging", "unavailable"))
            assert time.monotonic() - begun < 3
            await asyncio.sleep(1)
            assert tail.sessions.find("s").engine is None
    finally:
        broker.stop()


async def test_a_tail_that_has_not_begun_answers_for_nothing() -> None:
    tail, _, _ = new_tail(Settings.load())
    assert tail.sessions.find("s").trouble == "unavailable"


def test_what_is_known_is_as_fresh_as_the_last_end_that_was_reached() -> None:
    task = Task(0, ("a", "b"), Engine().limits)
    task.observe({"a": 5, "b": 0}, {"a": 5, "b": 2}, 10.0)
    assert task.fresh == float("-inf")
    task.observe({"a": 9, "b": 2}, {"a": 90, "b": 7}, 11.0)  # the ends move on, but those of before are reached
    assert task.fresh == 10.0
    task.observe({"a": 90, "b": 6}, {"a": 99, "b": 7}, 12.0)
    assert task.fresh == 10.0
    task.observe({"a": 95, "b": 7}, {"a": 99, "b": 7}, 13.0)
    assert task.fresh == 11.0
    task.observe({"a": 99, "b": 7}, {"a": 99, "b": 7}, 14.0)
    assert task.fresh == 14.0
