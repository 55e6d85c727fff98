"""Publishing JSONL: which topic, which key, and what happens to lines that are no records."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sidecar.tail.errors import TailError
from sidecar.tail.publish import emit, publish, route
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics, pairs, read_topic
from tests.kafka.tail_support import settings_for


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("kafka", "embedded")])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


@pytest.mark.parametrize(
    ("line", "role", "key", "record"),
    [
        (b'{"kind":"action","session_id":"s","seq":1,"action_id":"a"}', "events", "s", True),
        (b'{"kind":"whatever","session_id":"s","seq":1}', "events", "s", True),
        (b'{"kind":"checkpoint","session_id":"s"}', "compactions", "s", True),
        (b'{"kind":"gc","session_id":"s"}', "compactions", "s", True),
        (b'{"kind":"gc","session_id":""}', "compactions", None, False),
        (b'{"kind":"summary","session_id":7}', "compactions", None, False),
        (b'{"session_id":"s"}', "events", "s", False),
        (b'{"kind":3,"session_id":"s"}', "events", "s", False),
        (b'{"kind":"action"', "events", None, False),
        (b"[1]", "events", None, False),
        (b"\xff\x00", "events", None, False),
        (b"[" * 10_000, "events", None, False),
    ],
)
def test_a_line_goes_to_the_topic_of_its_kind(line: bytes, role: str, key: str | None, record: bool) -> None:
    assert route(line) == (role, key, record)


async def test_files_are_published_line_by_line(bootstrap: str, unique: str, tmp_path: Path) -> None:
    settings = settings_for(bootstrap, unique)
    event, compaction = b'{"kind":"message","session_id":"a","seq":1}', b'{"kind":"gc","session_id":"b","node_ids":[]}'
    broken = b'{"kind":"message", \xff'
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(event + b"\r\n\n  \n" + compaction + b"\n" + broken + b"\n")
    two.write_bytes(event)  # no newline at the end
    seen: list[int] = []
    done = await emit([one, two], settings, within=10, on_bytes=seen.append)
    assert (done.records, done.others, done.refused) == (3, 1, [])
    assert done.topics == Counter({settings.topics.events: 3, settings.topics.compactions: 1})
    assert sum(seen) == one.stat().st_size + two.stat().st_size or sum(seen) == one.stat().st_size
    events = pairs(await read_topic(bootstrap, settings.topics.events))
    assert Counter(events) == Counter({(b"a", event): 2, (None, broken): 1})
    assert pairs(await read_topic(bootstrap, settings.topics.compactions)) == [(b"b", compaction)]


async def test_a_session_is_in_the_partition_where_kafka_s_own_clients_put_it(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    await publish((("events", f"s{n}", b"{}") for n in range(50)), settings)
    from tests.kafka.support import produce

    await produce(kafka.bootstrap, settings.topics.events, [(f"s{n}".encode(), b"{}") for n in range(50)])
    where: dict[bytes | None, set[int]] = {}
    for record in await read_topic(kafka.bootstrap, settings.topics.events):
        where.setdefault(record.key, set()).add(record.partition)
    assert len(where) == 50 and all(len(partitions) == 1 for partitions in where.values())


async def test_a_line_too_large_for_the_topic_is_named_and_the_rest_is_published(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    small = b'{"kind":"message","session_id":"a","seq":1}'
    large = b'{"kind":"message","session_id":"a","seq":2,"text":"' + b"x" * 3_000_000 + b'"}'
    file = tmp_path / "large.jsonl"
    file.write_bytes(b"\n".join((small, large, small)))
    done = await emit([file], settings)
    (refused,) = done.refused
    assert (refused.file, refused.line) == (str(file), 2) and "max.message.bytes" in refused.reason
    assert pairs(await read_topic(kafka.bootstrap, settings.topics.events)) == [(b"a", small)] * 2
    await create_topics(kafka.bootstrap, f"{unique}roomy", partitions=4, configs={"max.message.bytes": "5000000"})
    roomy = settings.model_copy(update={"topics": settings.topics.model_copy(update={"events": f"{unique}roomy"})})
    done = await emit([file], roomy)
    assert done.refused == [] and done.records == 3


async def test_a_missing_file_is_an_error_that_names_it(embedded: object, unique: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        await emit(["nowhere.jsonl"], settings_for(embedded.bootstrap, unique))  # type: ignore[attr-defined]


async def test_no_broker_is_an_error() -> None:
    with pytest.raises(TailError, match="No Kafka broker"):
        await emit(["-"], settings_for("127.0.0.1:1", "x."), within=0.3)


async def test_publishing_keeps_a_rate_and_stops_when_told(bootstrap: str, unique: str) -> None:
    settings, stop = settings_for(bootstrap, unique), asyncio.Event()
    begun = time.monotonic()
    done = await publish((("events", "s", b"{}") for _ in range(100)), settings, rate=200)
    assert done.records == 100 and time.monotonic() - begun > 0.4

    async def endless() -> object:
        while True:
            yield "compactions", "s", b"{}"

    asyncio.get_running_loop().call_later(0.5, stop.set)
    async with asyncio.timeout(20):
        done = await publish(endless(), settings, rate=1000, stop=stop)  # type: ignore[arg-type]
    assert 0 < done.topics[settings.topics.compactions] < 5000


async def test_standard_input_is_published_as_it_comes(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    await publish([], settings)  # creates the topics
    code = (
        "import asyncio, sys; from sidecar.config import Settings; from sidecar.tail.publish import emit;"
        "print(asyncio.run(emit(['-'], Settings.model_validate_json(sys.argv[1]))).records)"
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, settings.model_dump_json()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    assert child.stdin is not None
    line = b'{"kind":"message","session_id":"a","seq":%d}'
    try:
        for seq in (1, 2):
            child.stdin.write(line % seq + b"\n")
            async with asyncio.timeout(15):
                # Without the pipe's end.
                while len(await read_topic(kafka.bootstrap, settings.topics.events)) < seq:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        out, _ = await asyncio.wait_for(child.communicate(line % 3), 15)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert re.search(rb"^3$", out, re.M) and child.returncode == 0
