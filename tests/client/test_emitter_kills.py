"""`kill -9` at every step and at any moment: no position is given out twice, none is left out, nothing told is lost."""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from sidecar.embedded import EmbeddedBroker
from sidecar.protocol.decode import decode
from tests.client.crash_process import STEPS, Death, Life
from tests.client.logs import lines, log_of, published, topics
from tests.kafka.broker import KafkaBroker

ROUNDS = int(os.environ.get("FRONTIER_EMITTER_ROUNDS", "2"))
"""How often each step is died at; more for a longer search."""

Live = Callable[[Life], Awaitable[Death]]


@contextlib.asynccontextmanager
async def lives(log: Path) -> AsyncIterator[Live]:
    """Give a function that lives one life."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.client.crash_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def live(life: Life) -> Death:
        stdin.write(msgspec.json.encode(life) + b"\n")
        async with asyncio.timeout(60):
            return msgspec.json.decode(await stdout.readline(), type=Death)

    try:
        yield live
    finally:
        stdin.close()
        async with asyncio.timeout(30):
            await process.wait()


async def crash(live: Live, like: Life, *, rounds: int, moments: int) -> int:
    """Live and die, at every step `rounds` times and at so many moments, then once to the end; count the kills."""
    dice = random.Random(like.seed)
    kills = 0
    plans = [(step, dice.randint(1, 12), 0.0) for step in STEPS for _ in range(rounds)]
    plans += [("", 1, dice.uniform(0.01, 0.2)) for _ in range(moments)]
    dice.shuffle(plans)
    for number, (step, k, seconds) in enumerate(plans):
        life = msgspec.structs.replace(like, seed=number, step=step, k=k, seconds=seconds)
        death = await live(life)
        assert death.status in (-9, 0), f"it ended with {death}"
        kills += death.status == -9
        assert death.at_step == (death.status == -9) or seconds
    death = await live(msgspec.structs.replace(like, seed=len(plans)))
    assert death == Death(0, False)
    return kills


def check(values: list[bytes], told: Path) -> int:
    """See that a log is whole and holds everything that was told; return how many records it has."""
    records = log_of(values)
    contents = {decode(value)[0].seq: json.loads(value) for value in values}
    heard = [line.split() for line in told.read_text().splitlines()]
    assert len({seq for seq, _ in heard}) == len(heard), "a position was returned twice"
    for seq, content in heard:
        record = contents[int(seq)]
        assert content in (record.get("content"), record.get("node_ids", [None])[0])
    return len(records)


async def test_at_any_moment_on_the_embedded_broker(embedded: EmbeddedBroker, unique: str, tmp_path: Path) -> None:
    names = await topics(embedded.bootstrap, unique)
    like = Life("s", str(tmp_path), str(tmp_path / "told"), bootstrap=embedded.bootstrap, topics=names)
    async with lives(tmp_path / "log") as live:
        kills = await crash(live, like, rounds=ROUNDS, moments=5 * ROUNDS)
    assert kills >= len(STEPS) * ROUNDS  # whether a moment falls into a life is chance
    assert check((await published(embedded.bootstrap, names))["s"], tmp_path / "told") > 500


async def test_at_any_moment_on_kafka(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    names = await topics(kafka.bootstrap, unique)
    like = Life("s", str(tmp_path), str(tmp_path / "told"), bootstrap=kafka.bootstrap, topics=names)
    async with lives(tmp_path / "log") as live:
        kills = await crash(live, like, rounds=ROUNDS // 2, moments=3 * ROUNDS)
    assert kills >= len(STEPS) * (ROUNDS // 2)
    assert check((await published(kafka.bootstrap, names))["s"], tmp_path / "told") > 300


async def test_at_any_moment_with_three_sessions_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    likes = [
        Life(name, str(tmp_path), str(tmp_path / f"told-{name}"), path=str(path), seed=seed)
        for seed, name in enumerate("abc")
    ]

    async def one(like: Life) -> int:
        async with lives(tmp_path / f"log-{like.session}") as live:
            return await crash(live, like, rounds=ROUNDS, moments=4 * ROUNDS)

    kills = await asyncio.gather(*(one(like) for like in likes))
    assert sum(kills) >= len(likes) * len(STEPS) * ROUNDS
    found = lines(path)
    for like in likes:
        assert check(found[like.session], Path(like.told)) > 500
