"""The emitter that publishes to Kafka: where records go, in which order, and what stops it."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.client import BrokerError, Emitter, Guard, JournalBehind, Unacknowledged
from sidecar.embedded import EmbeddedBroker, free_port
from sidecar.protocol.decode import decode
from tests.client.logs import CALLS, COMPACTIONS, log_of, published, topics
from tests.client.test_emitter_standing import standing
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics, produce, read_topic


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Give each of the two brokers."""
    broker: EmbeddedBroker | KafkaBroker = request.getfixturevalue(request.param)
    return broker.bootstrap


async def test_each_kind_goes_to_its_topic_in_order_and_keyed_by_the_session(
    bootstrap: str, unique: str, tmp_path: Path
) -> None:
    names = await topics(bootstrap, unique)
    sessions = [f"s{i}" for i in range(5)]
    for _ in range(2):
        for session in sessions:
            async with Emitter.kafka(bootstrap, session, journal=tmp_path, **names) as log:
                await asyncio.gather(*(call(log) for call in CALLS.values()))
                await log.flush()
                assert log.unacknowledged == 0
    found = await published(bootstrap, names)
    assert sorted(found) == sessions
    for values in found.values():
        assert len(log_of(values)) == len(values) == 2 * len(CALLS)
    for topic in names.values():
        messages = await read_topic(bootstrap, topic)
        seqs: dict[bytes, list[int]] = {}
        for message in messages:
            seqs.setdefault(message.key, []).append(json.loads(message.value)["seq"])
            assert (json.loads(message.value)["kind"] in COMPACTIONS) == (topic == names["compactions_topic"])
        assert all(of_session == sorted(of_session) for of_session in seqs.values())


async def test_a_thousand_at_once_share_an_fsync(
    embedded: EmbeddedBroker,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    names = await topics(embedded.bootstrap, unique)
    async with Emitter.kafka(embedded.bootstrap, "s", journal=tmp_path, **names) as log:
        syncs = 0
        assert log._journal is not None
        sync = log._journal._disk.sync

        def counted(fd: int) -> None:
            nonlocal syncs
            syncs += 1
            sync(fd)

        monkeypatch.setattr(log._journal._disk, "sync", counted)
        begun = time.perf_counter()
        seqs = await asyncio.gather(*(log.action(f"a{i}") for i in range(1000)))
        rate = 1000 / (time.perf_counter() - begun)
        assert seqs == list(range(1, 1001)), "in the order of the calls"
        assert syncs <= 5
        record_property("calls_per_second", round(rate))
        assert rate > 1000
    assert len(log_of((await published(embedded.bootstrap, names))["s"])) == 1000


async def test_one_topic_may_take_both(bootstrap: str, unique: str, tmp_path: Path) -> None:
    await create_topics(bootstrap, f"{unique}mixed", partitions=2)
    names = {"events_topic": f"{unique}mixed", "compactions_topic": f"{unique}mixed"}
    async with Emitter.kafka(bootstrap, "s", journal=tmp_path, **names) as log:
        for call in CALLS.values():
            await call(log)
    values = [message.value for message in await read_topic(bootstrap, f"{unique}mixed")]
    assert [json.loads(value)["seq"] for value in values] == list(range(1, len(CALLS) + 1))


async def test_topics_that_are_not_fit(bootstrap: str, unique: str, tmp_path: Path) -> None:
    events, compactions = f"{unique}events", f"{unique}compactions"
    await create_topics(bootstrap, events, partitions=3)
    names = {"events_topic": events, "compactions_topic": compactions}
    with pytest.raises(BrokerError, match=f"no topic {compactions}.*sidecar topics --create"):
        await Emitter.kafka(bootstrap, "s", journal=tmp_path, **names).start()
    await create_topics(bootstrap, compactions, partitions=2)
    with pytest.raises(BrokerError, match=f"equally many partitions.*{events} has 3 and {compactions} has 2"):
        await Emitter.kafka(bootstrap, "s", journal=tmp_path, **names).start()
    # A start that failed holds nothing.
    names["compactions_topic"] = events
    async with Emitter.kafka(bootstrap, "s", journal=tmp_path, **names) as log:
        assert await log.action("a") == 1


async def test_without_a_broker_it_does_not_start_unless_told_to(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=rf"within 0.2 s \({nowhere}: .*refused.*and bootstrap_servers"):
        await Emitter.kafka(nowhere, "s", journal=tmp_path, start_timeout=0.2).start()
    log = Emitter.kafka(nowhere, "s", journal=tmp_path, start_timeout=0, start_at=1, flush_timeout=0.3)
    await log.start()
    assert [await log.action("a"), await log.summary("n", generation=1, level=1, frontier_lo=1, frontier_hi=1)] == [
        1,
        2,
    ]
    with pytest.raises(Unacknowledged, match=rf"2 records .*\(1 to 2\).*within 0.3 s.*{nowhere}.*refused.*safe in the"):
        await log.flush()
    with pytest.raises(Unacknowledged, match="before the emitter was closed"):
        await log.aclose()
    # A dead address among living ones does no harm, and the next run publishes what the last one could not.
    names = await topics(embedded.bootstrap, unique)
    begun = time.monotonic()
    async with Emitter.kafka(f"{nowhere}, {embedded.bootstrap}", "s", journal=tmp_path, **names) as log:
        assert log.position == 2
        await log.flush()
    assert time.monotonic() - begun < 3
    assert len(log_of((await published(embedded.bootstrap, names))["s"])) == 2


async def test_what_goes_wrong_inside_is_not_hidden_by_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(ZeroDivisionError):
        async with Emitter.kafka(nowhere, "s", journal=tmp_path, start_timeout=0, start_at=1, flush_timeout=0.1) as log:
            await log.action("a")
            raise ZeroDivisionError
    assert "1 records of the session s (1 to 1) were not acknowledged" in caplog.text


def test_options_that_no_client_takes(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown options sasl_user; .*sasl_plain_username"):
        Emitter.kafka("127.0.0.1:1", "s", journal=tmp_path, sasl_user="x")
    with pytest.raises(ValueError, match="no broker"):
        Emitter.kafka(" , ", "s", journal=tmp_path)
    for options, said in (
        ({"security_protocol": "TLS"}, "'TLS' is none of PLAINTEXT, SSL, "),
        ({"security_protocol": "SSL"}, "needs an ssl_context"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs a sasl_mechanism"),
    ):
        with pytest.raises(ValueError, match=said):
            Emitter.kafka("127.0.0.1:1", "s", journal=tmp_path, **options)


async def test_how_large_a_record_may_be_is_what_the_topics_say(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    names = {"events_topic": f"{unique}events", "compactions_topic": f"{unique}compactions"}
    await create_topics(kafka.bootstrap, names["events_topic"], configs={"max.message.bytes": "3000000"})
    await create_topics(kafka.bootstrap, names["compactions_topic"], configs={"max.message.bytes": "2500000"})
    async with Emitter.kafka(kafka.bootstrap, "s", journal=tmp_path, **names) as log:
        await log.event("note", text="x" * 2_499_000)
        with pytest.raises(ValueError, match=r"at most 249\d\d\d\d"):
            await log.event("note", text="x" * 2_500_000)
        await asyncio.gather(*(log.event("note", text="x" * 1_000_000) for _ in range(4)))
        assert await log.action("small") == 6
    assert len(log_of((await published(kafka.bootstrap, names))["s"])) == 6


async def test_a_record_that_its_topic_does_not_take_holds_up_the_log_and_says_so(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    names = {"events_topic": f"{unique}events", "compactions_topic": f"{unique}compactions"}
    await create_topics(kafka.bootstrap, *names.values(), configs={"max.message.bytes": "20000"})
    # Started without a broker, it does not know how large a record may be.
    log = Emitter.kafka(kafka.bootstrap, "s", journal=tmp_path, start_timeout=0, start_at=1, flush_timeout=1.5, **names)
    await log.start()
    seqs = await asyncio.gather(log.action("a"), log.event("note", text="x" * 30_000), log.action("b"))
    assert seqs == [1, 2, 3]
    with pytest.raises(Unacknowledged, match=r"larger than its topic takes \(the largest here is 2, 30\d\d\d bytes\)"):
        await log.flush()
    with pytest.raises(Unacknowledged, match="3 records"):
        await log.aclose(0.1)


async def test_a_lost_journal_goes_on_behind_the_log(bootstrap: str, unique: str, tmp_path: Path) -> None:
    names = await topics(bootstrap, unique, partitions=2)
    for session in ("s", "t", "u", "v"):
        async with Emitter.kafka(bootstrap, session, journal=tmp_path / "lost", **names) as log:
            await asyncio.gather(*(log.action(f"a{i}") for i in range(20)))
            await log.gc(["n"])
    # An unreadable record takes its position as well, and what is not the session's does not count.
    broken = [(b"s", b'{"kind":"action","session_id":"s","seq":30}'), (b"s", b"junk"), (b"s", None)]
    broken += [(b"x", b'{"kind":"y","session_id":"s","seq":99}'), (b"s", b'{"kind":"y","session_id":"x","seq":99}')]
    await produce(bootstrap, names["events_topic"], broken)
    async with Emitter.kafka(bootstrap, "s", journal=tmp_path / "new", **names) as log:
        assert (log.position, await log.action("next")) == (30, 31)
    async with Emitter.kafka(bootstrap, "t", journal=tmp_path / "new", **names) as log:
        assert (log.position, await log.gc(["m"])) == (21, 22)
    async with Emitter.kafka(bootstrap, "new", journal=tmp_path / "new", **names) as log:
        assert await log.action("first") == 1
    found = await published(bootstrap, names)
    assert max(log_of(found["t"])) == 22
    assert decode(found["s"][-1])[0].seq is not None


async def test_a_lost_journal_does_not_begin_at_one_on_kafka(bootstrap: str, unique: str, tmp_path: Path) -> None:
    names = await topics(bootstrap, unique, partitions=2)
    async with Emitter.kafka(bootstrap, "s", journal=tmp_path / "old", **names) as log:
        await asyncio.gather(*(log.action(str(n)) for n in range(20)))
    async with (
        standing(7).serving() as fake,  # it has not applied all of it yet
        Guard(fake.url) as guard,
        Emitter.kafka(bootstrap, "s", journal=tmp_path / "new", guard=guard, **names) as log,
    ):
        assert log.position == 20
    async with standing(1500).serving() as fake, Guard(fake.url) as guard:  # or the topic has lost its beginning
        with pytest.raises(JournalBehind):
            await Emitter.kafka(bootstrap, "s", journal=tmp_path / "new", guard=guard, **names).start()
        with pytest.raises(JournalBehind):
            await Emitter.kafka(bootstrap, "s", journal=tmp_path / "x", start_at=1, guard=guard, **names).start()
    async with Emitter.kafka(bootstrap, "s", journal=tmp_path / "said", start_at=21, **names) as log:
        assert log.position == 20
