"""The running fleet on Apache Kafka: workers share the load, die, hang and come back; the tables come out the same."""

import asyncio
import contextlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.fleet.errors import FleetError
from sidecar.fleet.groups import summed
from sidecar.fleet.local import Figures
from sidecar.fleet.queries import Unavailable
from sidecar.fleet.shard import ROLES, Shard
from sidecar.fleet.topics import partition_of
from sidecar.protocol.outputs import Alert, HaltAck
from tests.conftest import missing
from tests.fleet.cluster import (
    PARTITIONS,
    Cluster,
    Running,
    Worker,
    alert_records,
    cluster,
    fleet_settings,
    publish,
    read_all,
    running,
    until,
)
from tests.fleet.compare import differences, expected_rows, groups_of, rows_of
from tests.fleet.histories import Message, history
from tests.fleet.naive import groups, sessions
from tests.kafka import tail_support
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import read_topic

SECONDS = float(os.environ.get("FRONTIER_STORM_SECONDS", "0"))
"""How long the workers are killed and hung; without it, each once."""

PACE = (0.1, 1.0, 5.0)
ALERTS = {"storm_share": 0.4, "storm_clear_share": 0.4, "halt_after": 1}


def story(seed: int, sessions: int, steps: int, name: str = "s") -> list[Message]:
    """Return messages of all topics, in the order of time; the last ones are of now."""
    topics = history(seed, sessions, steps, time.time() - steps * max(PACE), name, PACE)
    chance, left = random.Random(seed), {role: list(reversed(messages)) for role, messages in topics.items()}
    merged = []
    while any(left.values()):
        role = chance.choices(list(left), [len(messages) for messages in left.values()])[0]
        merged.append(left[role].pop())
    return merged


async def rows_in_changelog(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return what a worker would recover now."""
    topics = {role: getattr(settings.topics, role) for role in ROLES}
    shards = [Shard(partition, topics) for partition in range(PARTITIONS)]
    for record in await read_topic(settings.kafka.bootstrap_servers[0], settings.fleet.changelog, read_committed=True):
        assert record.key is not None
        shards[record.partition].apply(record.key, record.value)
    return {name: row for shard in shards for name, row in rows_of(shard).items()}


def added_up(figures: Iterable[Figures], now: float) -> dict[tuple[Any, ...], dict[str, Any]]:
    return groups_of(summed(dict(part.groups) for part in figures), now)


def standing(records: Iterable[Alert]) -> set[str]:
    """Return the alerts that are open after all records."""
    newest: dict[str, Alert] = {}
    for alert in records:
        if alert.alert_id not in newest or alert.version >= newest[alert.alert_id].version:
            newest[alert.alert_id] = alert
    return {alert_id for alert_id, alert in newest.items() if alert.status != "cleared"}


def expected_alerts(made: dict[str, dict[str, Any]], now: float) -> set[str]:
    """Work out plainly what has to be alerted to, when nothing more happens."""
    expected = set()
    for name, session in made.items():
        expected |= {f"unacknowledged_halt/{quote(name)}/{halt_id}" for halt_id in session["unacknowledged"]}
        for node, times in session["frozen"].items():
            if sum(at > now - 3600 for at in times) >= 3:
                expected.add(f"repeat_offender/node/{quote(name)}/{node}")
    for index, by in enumerate(("tenant", "agent", "model")):
        named: dict[str | None, list[str]] = defaultdict(list)
        frozen: dict[str | None, int] = defaultdict(int)
        for session in made.values():
            named[session["group"][index]].append(session["status"] or "unknown")
            for finding in session["raw"]:
                frozen[finding.get(by)] += finding["disposition"] == "freeze"
        for name, statuses in named.items():
            end = "" if name is None else f"/{name}"
            degraded = sum(status in ("corrupt", "lossy", "degraded", "unverified") for status in statuses)
            if by != "agent" and len(statuses) >= 5 and degraded / len(statuses) >= 0.4:
                expected.add(f"storm/{by}{end}")
        if by == "agent":
            expected |= {f"repeat_offender/agent/{name}" for name, count in frozen.items() if count >= 10}
    return expected


async def assert_all_right(fleet: Cluster, *workers: Worker) -> list[Alert]:
    """Hold everything the fleet has against what the topics come to, worked out plainly."""
    settings = fleet.settings
    made = sessions(await read_all(settings))
    now = time.time()
    rows = expected_rows(made)

    async def written() -> bool:
        return await rows_in_changelog(settings) == rows

    async def told() -> bool:
        return standing(await alert_records(settings)) == expected_alerts(made, now)

    async def counted() -> bool:
        return added_up(await fleet.figures(*workers), time.time()) == groups(made, time.time())

    with contextlib.suppress(AssertionError):
        await until(written, within=10)
    assert differences(await rows_in_changelog(settings), rows) == []
    # A worker that was frozen answers for what it had until it hears that others have it.
    with contextlib.suppress(AssertionError):
        await until(counted, within=10)
    now = time.time()
    assert added_up(await fleet.figures(*workers), now) == groups(made, now)
    with contextlib.suppress(AssertionError):
        await until(told, within=15)
    assert standing(await alert_records(settings)) == expected_alerts(made, now)
    return await alert_records(settings)


def assert_told_once(records: list[Alert]) -> None:
    """See that every alert was raised, updated and cleared in turn, and nothing was said twice."""
    by_id: dict[str, list[Alert]] = defaultdict(list)
    for alert in records:
        by_id[alert.alert_id].append(alert)
    for said in by_id.values():
        assert [alert.version for alert in said] == list(range(1, len(said) + 1))
        standing = False
        for alert in said:
            assert standing == (alert.status != "raised")
            standing = alert.status != "cleared"


async def test_workers_are_killed_and_the_tables_come_out_the_same(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts=ALERTS)
    messages = story(1, sessions=40, steps=30)
    async with cluster(settings, tmp_path) as fleet:
        first, second = await asyncio.gather(fleet.start(), fleet.start())
        await until(lambda: fleet.settled(first, second))
        publishing = asyncio.create_task(publish(settings, messages, rate=len(messages) / 6))
        await asyncio.sleep(1.5)
        first.kill()  # in mid-stream
        third = await fleet.start()
        await asyncio.sleep(1.0)
        assert await second.end() == 0  # in mid-stream too, but as it should be
        await publishing
        await until(lambda: fleet.settled(third))
        third.kill()  # right behind what was read last
        fourth, fifth = await asyncio.gather(fleet.start(), fleet.start())
        await until(lambda: fleet.settled(fourth, fifth))
        assert_told_once(await assert_all_right(fleet, fourth, fifth))

        # Whichever worker is asked, it finds the session; and both say the same of the fleet.
        name = messages[0].key.decode()
        for worker in (fourth, fifth):
            status, found = await fleet.get(worker, f"/v1/fleet/sessions/{quote(name)}")
            assert status == 200 and found["summary"]["session_id"] == name
            status, summary = await fleet.get(worker, "/v1/fleet")
            assert status == 200 and summary["sessions"] == 40 and summary["missing"] == []
            assert sorted(p for ps in summary["workers"].values() for p in ps) == list(range(PARTITIONS))
        assert [await worker.end() for worker in (fourth, fifth)] == [0, 0]
        for worker in fleet.workers:
            assert worker.logged("Traceback|Warning:") == 0, worker.log.read_text()


async def test_a_worker_that_hangs_and_comes_back_takes_nothing_back(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts=ALERTS, session_timeout=2)
    messages = story(2, sessions=30, steps=20)
    async with cluster(settings, tmp_path) as fleet:
        first, second = await asyncio.gather(fleet.start(), fleet.start())
        await until(lambda: fleet.settled(first, second))
        publishing = asyncio.create_task(publish(settings, messages, rate=len(messages) / 4))
        await asyncio.sleep(1.0)
        first.pause()  # with rows that it has not written, and partitions that are given away meanwhile
        await publishing
        await until(lambda: fleet.settled(second))
        first.resume()
        await until(lambda: fleet.settled(first, second))
        await assert_all_right(fleet, first, second)
        assert first.child.returncode is None and second.child.returncode is None


@pytest.mark.skipif(not SECONDS, reason="set FRONTIER_STORM_SECONDS to let it storm")
async def test_a_storm_of_kills_and_hangs(
    kafka: KafkaBroker, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts=ALERTS, session_timeout=2)
    chance, done = random.Random(7), defaultdict[str, int](int)
    async with cluster(settings, tmp_path) as fleet:
        alive = list(await asyncio.gather(fleet.start(), fleet.start()))
        await until(lambda: fleet.settled(*alive))
        begun, published = time.monotonic(), 0
        while time.monotonic() - begun < SECONDS:
            messages = story(100 + published, sessions=20, steps=12, name=f"r{published}-")
            published += 1
            publishing = asyncio.create_task(publish(settings, messages, rate=len(messages) / 5))
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            victim = chance.choice(alive)
            how = chance.choice(("kill", "end", "hang", "add"))
            done[how] += 1
            if how == "hang":
                victim.pause()
                await asyncio.sleep(chance.uniform(0.5, 5.0))
                victim.resume()
            elif how == "add" and len(alive) < 3:
                alive.append(await fleet.start())
            else:
                alive.remove(victim)
                if how == "kill":
                    victim.kill()
                else:
                    await victim.end()
                if len(alive) < 2:
                    alive.append(await fleet.start())
            await publishing
        await until(lambda: fleet.settled(*alive), within=90)
        await assert_all_right(fleet, *alive)
        with capsys.disabled():
            said = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
            print(f"\nfleet storm of {SECONDS:.0f} s: {said}; {published * 20} sessions, {len(fleet.workers)} workers")


# --- one worker, in this process --------------------------------------------------------------------------------------


async def filled(here: Running, settings: Settings, messages: list[Message]) -> None:
    await publish(settings, messages)
    await until(here.settled)
    await until(lambda: sum(p.shard.moved for p in here.worker.parts.values()) == len(messages))


async def test_questions_are_answered_from_the_tables(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts=ALERTS)
    messages = story(3, sessions=25, steps=15)
    async with running(settings) as here:
        await filled(here, settings, messages)
        made = sessions(await read_all(settings))
        board = here.board
        summary = await board.summary()
        assert summary.sessions == 25 and sum(summary.statuses.values()) == 25 and summary.lag == 0
        assert summary.open_halts == sum(len(session["open_halts"]) for session in made.values())

        # Pages hang together, and hold everything once, the worst first.
        listed, cursor = [], None
        while True:
            page = await board.sessions(limit=7, cursor=cursor)
            assert page.total == 25 and page.missing == []
            listed += page.items
            cursor = page.cursor
            if cursor is None:
                break
        assert len(listed) == 25 and {item.session_id for item in listed} == set(made)
        ranks = ["corrupt", "lossy", "degraded", "unverified", None, "unjudged", "stale", "verified", "uncompacted"]
        assert [ranks.index(item.status) for item in listed] == sorted(ranks.index(item.status) for item in listed)
        for item in listed:
            session = made[item.session_id]
            assert (item.status, item.open_halts, item.findings) == (
                session["status"],
                len(session["open_halts"]),
                session["findings"],
            )
        lossy = await board.sessions(status=frozenset(("lossy",)))
        assert {i.session_id for i in lossy.items} == {n for n, s in made.items() if s["status"] == "lossy"}
        nobody = await board.sessions(tenant="", search="s3-1")
        assert {i.session_id for i in nobody.items} == {
            n for n, s in made.items() if s["group"][0] is None and "s3-1" in n
        }
        with pytest.raises(ValueError, match="no cursor"):
            await board.sessions(cursor="nonsense")

        name = max(made, key=lambda n: made[n]["findings"])
        detail = await board.session(name)
        assert detail is not None and detail.summary.findings == made[name]["findings"]
        assert {f.finding_id for f in detail.findings} == set(made[name]["last_findings"])
        assert [f.position for f in detail.findings] == sorted(f.position for f in detail.findings)
        assert await board.session("nobody") is None

        by_model = {g.model: g for g in (await board.groups("model")).items}
        plain = groups(made, time.time())
        for model, group in by_model.items():
            same = [g for key, g in plain.items() if key[2] == model]
            assert group.sessions == sum(g["sessions"] for g in same)
            assert {r.rule: r.last_1h for r in group.rules if r.last_1h} == _sum(g["1h"] for g in same)
            assert {f"{s.what}/{s.level}": s.kept for s in group.survival} == _sum(
                {what: kept for what, (_, kept) in g["survival"].items()} for g in same
            )
        assert (await board.groups(tenant="acme", model="m-1")).total >= 1

        halts = await board.halts()
        assert {h.halt_id for h in halts.items} == {h for session in made.values() for h in session["open_halts"]}
        assert [h.ack is not None for h in halts.items] == sorted(h.ack is not None for h in halts.items)
        assert (await board.halts(open_only=False)).total >= halts.total
        await until(lambda: _open_kinds(here) >= {"unacknowledged_halt", "repeat_offender"})
        assert (await board.alerts()).total == sum((await board.summary()).alerts.values())


def _sum(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return dict(total)


def _open_kinds(here: Running) -> set[str]:
    alerts = (alert for part in here.worker.parts.values() for alert in part.book.alerts.values())
    return {alert.kind for alert in alerts if alert.status != "cleared"}


async def test_an_acknowledgement_ends_the_alert(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts={"halt_after": 0, "halt_error_after": 1})
    (halt,) = [m for m in story(4, 1, 60) if m.role == "halts"][:1]
    fields = msgspec.json.decode(halt.value or b"")
    alert_id = f"unacknowledged_halt/{fields['session_id']}/{fields['halt_id']}"
    async with running(settings) as here:
        await filled(here, settings, [halt])

        async def said() -> list[tuple[str, str]]:
            records = await alert_records(settings)
            return [(a.status, a.severity) for a in records if a.alert_id == alert_id]

        async def escalated() -> bool:
            return len(await said()) >= 1

        await until(escalated)
        await here.board.acknowledge(fields["session_id"], HaltAck(halt_id=fields["halt_id"], by="ada", decision="ok"))

        async def cleared() -> bool:
            return (await said())[-1:] == [("cleared", "error")]

        await until(cleared)
        (found,) = (await here.board.halts()).items
        assert found.ack is not None and found.ack.by == "ada" and found.open
        assert (await here.board.summary()).unacknowledged == 0


async def test_a_restart_goes_on_where_it_was(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique, alerts=ALERTS)
    messages = story(5, sessions=20, steps=20)
    half = len(messages) // 2
    async with running(settings) as here:
        await filled(here, settings, messages[:half])
        await until(lambda: bool(_open_kinds(here)))
    async with running(settings) as here:
        await until(here.settled)
        assert sum(part.shard.moved for part in here.worker.parts.values()) == 0  # nothing was read twice
        await filled(here, settings, messages[half:])
        made = sessions(await read_all(settings))
        found = {name: row for part in here.worker.parts.values() for name, row in rows_of(part.shard).items()}
        assert found == expected_rows(made)

        async def told() -> bool:
            return standing(await alert_records(settings)) == expected_alerts(made, time.time())

        await until(told)
    assert_told_once(await alert_records(settings))


async def test_what_a_tail_says_is_what_the_fleet_knows(kafka: KafkaBroker, unique: str) -> None:
    """With the tail's own transactions, markers and repeats, and the engine's word for where each session stands."""
    judge, lines = Engine(), tail_support.stream(3)
    tail_support.judged(lines, judge, ended=False)
    settings = fleet_settings(kafka.bootstrap, unique)
    tail = tail_support.settings_for(kafka.bootstrap, unique)
    async with running(settings) as here, tail_support.running(tail):
        await tail_support.send(tail, lines)
        await tail_support.until_committed(tail)
        expected = {state.session_id: (state.status, len(state.open_halts)) for state in judge.states()}

        async def known() -> bool:
            page = await here.board.sessions(limit=1000)
            return {i.session_id: (i.status, i.open_halts) for i in page.items} == expected

        with contextlib.suppress(AssertionError):
            await until(known, within=20)
        page = await here.board.sessions(limit=1000)
        assert {i.session_id: (i.status, i.open_halts) for i in page.items} == expected
        await until(here.settled)
        assert differences(rows_here(here), expected_rows(sessions(await read_all(settings)))) == []


def rows_here(here: Running) -> dict[str, dict[str, Any]]:
    return {name: row for part in here.worker.parts.values() for name, row in rows_of(part.shard).items()}


async def test_rows_on_disk(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    try:
        from sidecar.fleet.disk import DiskShelf
    except ImportError as error:
        missing(str(error))

    settings = fleet_settings(kafka.bootstrap, unique, alerts={"offender_node": 16})  # nothing to be alerted to
    messages = story(6, sessions=20, steps=15)
    half = len(messages) // 2

    def shelf(partition: int) -> DiskShelf:
        return DiskShelf(tmp_path / str(partition))

    async with running(settings, shelf=shelf) as here:
        await filled(here, settings, messages[:half])
        await until(lambda: not any(part.shard.unwritten() for part in here.worker.parts.values()))
    async with running(settings, shelf=shelf) as here:
        await until(here.settled)
        # The changelog was not read again: everything was here.
        assert sum(part.restored_records for part in here.worker.parts.values()) == 0
        await filled(here, settings, messages[half:])
        expected = expected_rows(sessions(await read_all(settings)))
        assert {n: r for part in here.worker.parts.values() for n, r in rows_of(part.shard).items()} == expected
        assert (await here.board.summary()).sessions == 20
    # And whoever has no such disk finds the same in the changelog.
    assert await rows_in_changelog(settings) == expected
    held = [shelf(0)]
    with pytest.raises(FleetError, match=r"cannot be opened: .*fleet\.data_dir"):
        shelf(0)
    held[0].close()


async def test_what_a_worker_that_is_away_has_is_named_as_missing(kafka: KafkaBroker, unique: str) -> None:
    settings = fleet_settings(kafka.bootstrap, unique)
    messages = story(7, sessions=20, steps=6)
    async with running(settings) as here:
        await filled(here, settings, messages)
        # A router that knows another worker, which does not answer.
        mine = here.worker.workers()["http://127.0.0.1:1"]
        gone = "http://127.0.0.1:9"
        here.worker.workers = lambda: {"http://127.0.0.1:1": mine[:2], gone: mine[2:]}  # type: ignore[method-assign]
        summary = await here.board.summary()
        (missing,) = summary.missing
        assert (missing.worker, missing.partitions) == (gone, mine[2:]) and "connect" in missing.reason.lower()
        assert here.value("sidecar_fleet_peer_requests_total", result="failed") == 1
        page = await here.board.sessions()
        assert page.missing == summary.missing
        away = next(f"x{i}" for i in range(100) if partition_of(f"x{i}".encode(), PARTITIONS) in mine[2:])
        with pytest.raises(Unavailable):
            await here.board.session(away)
        here.worker.workers = lambda: {"http://127.0.0.1:1": mine[:3]}  # type: ignore[method-assign]
        (missing,) = (await here.board.groups()).missing
        assert (missing.worker, missing.partitions) == (None, mine[3:])
