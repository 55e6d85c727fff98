"""`sidecar halts`: what is open is read from the topic, compacted or not, and taken in hand on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from sidecar.embedded import EmbeddedBroker
from sidecar.engine.status import LISTED
from sidecar.fleet.commands import halts
from sidecar.fleet.haltlog import HaltLog
from sidecar.protocol.outputs import Halt, HaltAck
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics, produce, read_topic

ROOT = Path(__file__).parents[2]
encode = msgspec.json.encode


def halt(halt_id: str, session: str, status: str = "halt", still: list[str] | None = None, **more: Any) -> Halt:
    opening = {"reexpand_from": None, "replay_from": 7} if status == "halt" else {}
    still = still if still is not None else [halt_id] if status == "halt" else []
    given = {"position": 9, "checkpoint_id": "c-1", "reason": ["edge_dropped"], "finding_ids": [], **opening, **more}
    return Halt(halt_id=halt_id, session_id=session, status=status, open_halts=still, **given)  # type: ignore[arg-type]


def pair(record: Halt) -> tuple[bytes, bytes]:
    return record.session_id.encode(), encode(record)


# --- what the records come to -----------------------------------------------------------------------------------------


def test_only_the_last_record_of_a_session_need_be_left() -> None:
    log = HaltLog()
    log.apply(halt("b", "s", still=["a", "b"]))
    assert {(h.halt_id, h.halt is not None) for h in log.open()} == {("a", False), ("b", True)}
    log.apply(halt("b", "s", "clear", still=["a"]))
    assert [h.halt_id for h in log.open()] == ["a"]
    log.apply(halt("a", "s", "clear"))
    assert log.open() == [] and log.sessions == {}


def test_a_halt_that_a_full_list_does_not_name_may_still_be_open() -> None:
    log = HaltLog()
    log.apply(halt("first", "s"))
    log.apply(halt("last", "s", still=[f"h{n}" for n in range(LISTED - 1)] + ["last"]))
    assert "first" in {h.halt_id for h in log.open()}
    log.apply(halt("last", "s", "clear", still=["h1"]))
    assert {h.halt_id for h in log.open()} == {"h1"}


def test_those_in_nobodys_hands_come_first() -> None:
    log = HaltLog()
    for name in ("a", "b", "c"):
        log.apply(halt(name, f"s-{name}"))
    log.acknowledge(HaltAck(halt_id="a", by="ada", decision="d"), 1)
    assert [h.halt_id for h in log.open()] == ["b", "c", "a"]
    assert [h.halt_id for h in log.find("a")] == ["a"]
    log.apply(halt("ab", "s-ab"))
    assert [h.halt_id for h in log.find("a")] == ["a"], "the whole id is meant before the beginning of another"


# --- the commands -----------------------------------------------------------------------------------------------------


class Topics:
    """The two topics on a broker, under names of their own."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.halts, self.acks = f"{prefix}halts", f"{prefix}acks"
        self.environment = {
            "SIDECAR_TOPICS__HALTS": self.halts,
            "SIDECAR_TOPICS__HALT_ACKS": self.acks,
            "SIDECAR_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        }

    def create(self, *, acks: bool = True) -> None:
        names = (self.halts, self.acks) if acks else (self.halts,)
        asyncio.run(create_topics(self.bootstrap, *names, partitions=3))

    def put(self, *records: Halt) -> None:
        asyncio.run(produce(self.bootstrap, self.halts, map(pair, records)))

    def acked(self) -> list[tuple[bytes | None, HaltAck]]:
        records = asyncio.run(read_topic(self.bootstrap, self.acks))
        return [(r.key, msgspec.json.decode(r.value or b"", type=HaltAck)) for r in records]

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(halts, arguments, obj={}, env=self.environment)


@pytest.fixture
def topics(embedded: EmbeddedBroker, unique: str) -> Iterator[Topics]:
    yield Topics(embedded.bootstrap, unique)


def test_what_is_open_is_listed(topics: Topics) -> None:
    topics.create()
    assert topics.run("list").stdout == "No halt is open.\n"
    topics.put(
        halt("aaa1", "one", reexpand_from="c-0"),
        halt("bbb2", "two", reason=["resumed_unverified", "generation_mismatch"]),
        halt("ccc3", "three"),
        halt("ccc3", "three", "clear"),
        halt("ddd4", "\x1b[31mred\u202e", still=["gone", "ddd4"]),
    )
    result = topics.run("list")
    assert result.exit_code == 0, result.output
    for said in ("aaa1", "c-0, or position 7", "resumed_unverified", "two", "nobody", "4 open halts", "4 of them"):
        assert said in result.output
    assert "ccc3" not in result.output
    assert "\x1b" not in result.output and "\\u001b[31mred\\u202e" in result.output
    assert "opened before what the topic still holds" in result.output
    rows = [json.loads(line) for line in topics.run("list", "--json").stdout.splitlines()]
    assert {r["halt_id"]: r["opened"] and r["opened"]["reason"] for r in rows} == {
        "aaa1": ["edge_dropped"],
        "bbb2": ["resumed_unverified", "generation_mismatch"],
        "ddd4": ["edge_dropped"],
        "gone": None,
    }
    assert all(r["ack"] is None for r in rows)
    only = [json.loads(line) for line in topics.run("list", "--json", "--session", "two").stdout.splitlines()]
    assert [r["halt_id"] for r in only] == ["bbb2"]


def test_a_halt_is_taken_in_hand(topics: Topics) -> None:
    topics.create()
    topics.put(halt("aaa1", "one"), halt("bbb2", "two"))
    result = topics.run("ack", "bbb2", "--by", "ada", "--decision", "replaying from 7")
    assert result.exit_code == 0, result.output
    assert "ada has halt bbb2 of two in hand" in result.stderr
    assert "replay the log from position 7" in result.stderr
    assert topics.acked() == [(b"two", HaltAck(halt_id="bbb2", by="ada", decision="replaying from 7"))]
    rows = {r["halt_id"]: r for r in map(json.loads, topics.run("list", "--json").stdout.splitlines())}
    assert list(rows) == ["aaa1", "bbb2"]
    assert rows["bbb2"]["ack"]["by"] == "ada" and rows["bbb2"]["ack"]["at"].endswith("+00:00")
    again = topics.run("ack", "bb", "--by", "bob", "--decision", "taking over")
    assert again.exit_code == 0 and "Before, ada had it in hand: replaying from 7" in again.stderr
    assert [ack.by for _, ack in topics.acked()] == ["ada", "bob"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nothing", "--by", "a", "--decision", "d"], 1, "no halt nothing is open"),
        (["done3", "--by", "a", "--decision", "d"], 1, "it was cleared at position 12 of three"),
        (["aaa", "--by", "a", "--decision", "d"], 2, "the beginning of 2 open halts"),
        (["aaa1", "--by", " ", "--decision", "d"], 2, "--by"),
        (["aaa1", "--by", "a"], 2, "--decision"),
        (["", "--by", "a", "--decision", "d"], 2, "HALT_ID"),
    ],
)
def test_what_cannot_be_taken_in_hand(topics: Topics, arguments: list[str], status: int, said: str) -> None:
    topics.create()
    cleared = halt("done3", "three", "clear", position=12)
    topics.put(halt("aaa1", "one"), halt("aaa2", "two"), halt("done3", "three"), cleared)
    result = topics.run("ack", *arguments)
    assert result.exit_code == status
    assert said in result.stderr
    assert topics.acked() == []


def test_missing_topics_and_brokers_are_named(topics: Topics) -> None:
    result = topics.run("list")
    assert result.exit_code == 1 and f"there is no topic {topics.halts}" in result.stderr
    topics.create(acks=False)
    assert topics.run("list").exit_code == 0, "nobody need have acknowledged anything yet"
    begun = time.monotonic()
    result = topics.run("list", "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 1 and "127.0.0.1:1: Connect" in result.stderr
    # One dead address beside a live one does not matter.
    both = topics.run("list", "--bootstrap-servers", f"127.0.0.1:1,{topics.bootstrap}")
    assert both.exit_code == 0
    assert time.monotonic() - begun < 8


def test_records_that_cannot_be_read_are_passed_over(topics: Topics) -> None:
    topics.create()
    asyncio.run(produce(topics.bootstrap, topics.halts, [(b"x", b"no halt"), (b"x", None), pair(halt("aaa1", "one"))]))
    result = topics.run("list", "--json")
    assert [json.loads(line)["halt_id"] for line in result.stdout.splitlines() if line.startswith("{")] == ["aaa1"]


async def test_it_follows(embedded: EmbeddedBroker, unique: str) -> None:
    topics = Topics(embedded.bootstrap, unique)
    await create_topics(topics.bootstrap, topics.halts, topics.acks, partitions=2)
    await produce(topics.bootstrap, topics.halts, [pair(halt("aaa1", "one"))])
    run = "from sidecar.fleet.commands import halts; halts(obj={})"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", run, "follow", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **topics.environment},
    )
    assert child.stdout is not None

    async def line() -> dict[str, Any]:
        assert child.stdout is not None
        return json.loads(await child.stdout.readline())  # type: ignore[no-any-return]

    try:
        async with asyncio.timeout(30):
            first = await line()
            assert (first["event"], first["halt_id"]) == ("open", "aaa1")
            await produce(topics.bootstrap, topics.halts, [pair(halt("bbb2", "two"))])
            second = await line()
            assert (second["event"], second["halt_id"], second["replay_from"]) == ("halt", "bbb2", 7)
            ack = HaltAck(halt_id="bbb2", by="ada", decision="d")
            await produce(topics.bootstrap, topics.acks, [(b"two", encode(ack))])
            assert await line() == {"event": "ack", "halt_id": "bbb2", "by": "ada", "decision": "d"}
            await produce(topics.bootstrap, topics.halts, [pair(halt("bbb2", "two", "clear"))])
            assert (await line())["event"] == "clear"
            child.send_signal(signal.SIGINT)
            await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()
    assert child.returncode == 130


async def test_behind_an_open_transaction_and_an_aborted_one(kafka: KafkaBroker, unique: str) -> None:
    from sidecar.fleet.haltlog import Reader

    topics = Topics(kafka.bootstrap, unique)
    await create_topics(topics.bootstrap, topics.halts, topics.acks, partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap, transactional_id=f"{unique}x", acks="all")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topics.halts, *reversed(pair(halt("aaa1", "one"))))
        await producer.begin_transaction()
        await producer.send_and_wait(topics.halts, *reversed(pair(halt("never", "two"))))
        begun = time.monotonic()
        async with Reader({"bootstrap_servers": topics.bootstrap}, topics.halts, topics.acks) as reader:
            assert [h.halt_id for h in reader.log.open()] == ["aaa1"]
        assert time.monotonic() - begun < 5, "it does not wait for a transaction that is open"
        await producer.abort_transaction()
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        async with Reader({"bootstrap_servers": topics.bootstrap}, topics.halts, topics.acks) as reader:
            assert [h.halt_id for h in reader.log.open()] == ["aaa1"]
        assert time.monotonic() - begun < 5
    finally:
        await producer.stop()
