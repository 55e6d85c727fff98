"""Kill the tail at every step of its loop, again and again: what comes out is what one undisturbed run says.

Two groups read the same topics while they are fed: one is left alone, the other one is killed more than 200 times.
What a reader of committed records finds has to be the same in the end: none missing, none twice.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.simulate import DIRECT, FAULTS, FaultRates, Fleet, Message, Role, Shape, Transport
from sidecar.tail.snapshots import origin_of, read_snapshots
from tests.kafka.broker import KafkaBroker
from tests.kafka.crash_process import STEPS, Death, Life
from tests.kafka.support import read_topic
from tests.kafka.tail_support import PARTITIONS, judged, running, settings_for, until

SEED = 20261107
RECORDS = int(os.environ.get("FRONTIER_CRASH_RECORDS", "200000"))
KILLS = int(os.environ.get("FRONTIER_CRASH_KILLS", "12"))
"""Per step."""
WITHIN = 6.0
"""Seconds in which a life has to reach its step; else it is killed where it is, which does not count."""
MAX_WAIT = 1.2
"""Seconds after which a gap is given up: longer than any pause in the feeding, also on a machine that is busy."""

CLOCKED = ("given-up", "give-up-kept")
"""Steps that are only reached when a clock gives something up."""
ROUNDS: dict[str, tuple[float, ...]] = {
    "in-round": (0.1, 0.3),
    "round-sent": (0.1, 0.3),
    "committed": (60.0,),
    "replaying": (60.0,),
}
"""How far apart rounds are; without one, what a life has committed is folded again in the next one."""

Ids = Counter[tuple[Any, ...]]
Feed = Callable[[Iterable[Message]], Awaitable[None]]


class Source:
    """Make what is fed, slice by slice: the same for the same seed.

    Long sessions go through many slices, and reach the log in order. Short ones are whole within a slice, and come
    with repeats, delays and one topic behind the other, which no slice must end in: then a clock would decide.
    """

    def __init__(self, seed: int) -> None:
        rates = FaultRates.uniform(0.7, FAULTS)
        shape = Shape(turns=(8, 16), cycles=(2, 4))
        self._seed = seed
        self._long = Fleet(seed, agents=300, sessions=10**6, faults=rates, transport=DIRECT, shape=shape, prefix="long")
        self._messages = self._long.messages()
        self._rates = rates
        self._slices = 0
        self._again: list[Message] = []
        self._late = 0
        self.sent: list[bytes] = []
        """Everything that was fed, in order."""
        self.late: dict[str, list[Message]] = {}
        """What comes when its session has given it up, by session."""

    def slice(self, count: int) -> list[list[Message]]:
        """Return the next slice, in portions to be sent one after the other."""
        self._slices += 1
        ahead, behind = self._without_seq()
        steady = list(islice(self._messages, count * 2 // 3))
        third = len(steady) // 3 + 1
        first, *rest = [steady[i : i + third] for i in range(0, len(steady), third)]
        portions = [ahead, [*behind, *first, *self._short(count - len(steady))], *rest]
        self.sent += [message.value for portion in portions for message in portion]
        return portions

    def _short(self, count: int) -> list[Message]:
        fleet = Fleet(
            self._seed + self._slices,
            sessions=10**6,
            faults=self._rates,
            transport=Transport(duplicates=0.03, delayed=0.05, lagging=0.5),
            shape=Shape(turns=(4, 8), cycles=(1, 2)),
            prefix=f"short{self._slices}",
        )
        queues: list[list[Message]] = []
        while sum(map(len, queues)) < count:
            script = fleet.script(len(queues))
            queues.append([Message(entry.role, script.session_id, entry.value) for entry in script.entries])
        return [message for side in zip_longest(*queues) for message in side if message is not None]

    def _without_seq(self) -> tuple[list[Message], list[Message]]:
        """Return compaction records without `seq` that wait for their place, and the events that bring it.

        Those of the slice before come once more.
        """
        ahead, behind = self._again, []
        self._again = []
        for number in range(3):
            session = f"unnumbered-{self._slices}-{number}"
            claims = {"node_id": "n", "summary_generation": 1, "level": 1, "turn": 1, "frontier_lo": 1}
            checkpoint = {"checkpoint_id": "c", "as_of_seq": 3, "frontier_hi": 9, "asserted_edges": [], **claims}
            self._again += [
                _record("compactions", session, "checkpoint", **checkpoint),
                _record("compactions", session, "resume", checkpoint_id="unknown", as_of_seq=4),
            ]
            behind += [_event(session, seq) for seq in range(1, 6)]
        return [*ahead, *self._again], behind

    def gaps(self, count: int) -> list[Message]:
        """Return sessions with a position missing that will come, but too late."""
        messages = []
        for _ in range(count):
            self._late += 1
            session = f"late-{self._late}"
            messages += [_event(session, 1), _action(session, 3), _event(session, 4)]
            self.late[session] = [
                # The authorization that was given up: judged in its place, the action after it would be fine.
                _event(session, 2, "authorization", action_id="act", precondition_id="ask"),
                _action(session, 5),
                _event(session, 6),
            ]
        self.sent += [message.value for message in messages]
        return messages

    def too_late(self, sessions: Iterable[str]) -> list[Message]:
        """Return what was missing of these sessions, and what follows it."""
        messages = [message for session in sessions for message in self.late.pop(session)]
        self.sent += [message.value for message in messages]
        return messages


def _record(role: Role, session: str, kind: str, **fields: Any) -> Message:
    return Message(role, session, json.dumps({"kind": kind, "session_id": session, **fields}).encode())


def _event(session: str, seq: int, kind: str = "message", **fields: Any) -> Message:
    return _record("events", session, kind, seq=seq, **fields)


def _action(session: str, seq: int) -> Message:
    return _event(session, seq, "action", action_id="act", irreversible=True)


class Lives:
    """Live through lives in a process that forks a child for each."""

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._path = path
        self.log = path / "lives.log"
        self._server: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "Lives":
        with self.log.open("wb") as log:
            self._server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.kafka.crash_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONWARNINGS": "default"},
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None and self._server.stdin is not None
        self._server.stdin.close()
        await asyncio.wait_for(self._server.wait(), 20)

    async def live(
        self, step: str, k: int, *, commit: float, snapshot: float, chunk: int, batch: int, within: float
    ) -> Death:
        """Live one life and return how it ended."""
        assert self._server is not None and self._server.stdin is not None and self._server.stdout is not None
        settings = self._settings.model_copy(
            update={
                "tail": self._settings.tail.model_copy(update={"commit_interval": commit, "fetch_max_records": batch}),
                "snapshot": self._settings.snapshot.model_copy(update={"interval": snapshot}),
            }
        )
        config = self._path / "life.json"
        config.write_text(settings.model_dump_json())
        self._server.stdin.write(msgspec.json.encode(Life(str(config), step, k, chunk, within)) + b"\n")
        line = await asyncio.wait_for(self._server.stdout.readline(), within + 20)
        return msgspec.json.decode(line, type=Death)


@contextlib.asynccontextmanager
async def producing(settings: Settings) -> AsyncIterator[Feed]:
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.kafka.bootstrap_servers[0], linger_ms=5, enable_idempotence=True
    )
    await producer.start()

    async def feed(messages: Iterable[Message]) -> None:
        topics = {"events": settings.topics.events, "compactions": settings.topics.compactions}
        futures = [await producer.send(topics[m.role], m.value, m.key.encode()) for m in messages]
        await asyncio.gather(*futures)

    try:
        yield feed
    finally:
        await producer.stop()


def _halt(halt: dict[str, Any]) -> tuple[str, str, str]:
    """Return what tells a halt from others.

    The id has the position, and where a record without `seq` is judged depends on which topic is heard of first: two
    groups that read side by side may differ in it, though each says the same after a crash as before.
    """
    unnumbered = halt["session_id"].startswith("unnumbered-")
    return ",".join(halt["reason"]) if unnumbered else halt["halt_id"], halt["status"], halt["session_id"]


async def committed_outputs(settings: Settings, settle: float = 1.0) -> dict[str, Ids]:
    """Return what a reader of committed records finds: each output's identity, and how often it is there."""
    bootstrap, topics = settings.kafka.bootstrap_servers[0], settings.topics
    outputs: dict[str, Ids] = {}
    for what, topic, name in (
        ("findings", topics.findings, lambda o: (o["finding_id"], o["rule"], o["session_id"])),
        ("halts", topics.halts, _halt),
        ("dead letters", topics.dlq, lambda o: tuple(o["source"].values())),
    ):
        records = await read_topic(bootstrap, topic, read_committed=True, settle=settle, within=60)
        outputs[what] = Counter(name(msgspec.json.decode(record.value or b"")) for record in records)
    return outputs


def schedule(rng: random.Random, kills: int) -> Iterator[str]:
    """Yield every step `kills` times, in an order of chance."""
    steps = [step for step in STEPS for _ in range(kills) if step not in ("committed", "replaying")]
    # There is something to fold again where the life before has committed it, and written no round since.
    steps += ["replaying"] * kills
    rng.shuffle(steps)
    for step in steps:
        yield from ("committed", step) if step == "replaying" else (step,)


def undisturbed_by(settings: Settings) -> Settings:
    """Return settings of another group that reads the same topics and writes to others."""
    topics = settings.topics.model_copy(
        update={
            role: f"{getattr(settings.topics, role)}.undisturbed"
            for role in ("findings", "halts", "sessions", "dlq", "snapshots", "misplaced")
        }
    )
    tail = settings.tail.model_copy(
        update={"group_id": f"{settings.tail.group_id}.undisturbed", "group_instance_id": None}
    )
    return settings.model_copy(update={"topics": topics, "tail": tail})


async def test_killed_at_every_step_nothing_is_lost_and_nothing_said_twice(
    kafka: KafkaBroker,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = time.monotonic()
    # With a name of its own, the next life takes the place of the last one at once, as a restarted pod does.
    settings = settings_for(kafka.bootstrap, unique, max_wait=MAX_WAIT, group_instance_id="the-one", session_timeout=10)
    alone = undisturbed_by(settings)
    rng, source = random.Random(SEED), Source(SEED)
    slice_size = RECORDS // (KILLS * len(STEPS)) + 1
    killed: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    given_up: set[str] = set()

    def watch(outcome: Any) -> None:
        given_up.update(f.session_id for f in outcome.findings if f.rule == "log_gap" and f.session_id in source.late)

    fed = 0

    async def feed_slice(feed: Feed, more: Sequence[Message]) -> None:
        nonlocal fed
        for portion in (more, *source.slice(slice_size)):
            await feed(portion)
            fed += len(portion)
            await asyncio.sleep(0.02)

    async def come_too_late(feed: Feed) -> None:
        """Send what both groups have given up."""
        nonlocal fed
        await until(lambda: given_up >= source.late.keys())
        findings = (await committed_outputs(settings, settle=0.1))["findings"]
        names = {session for _, rule, session in findings if rule == "log_gap"}
        messages = source.too_late([session for session in source.late if session in names])
        await feed(messages)
        fed += len(messages)

    async with producing(settings) as feed, running(alone, watch):
        async with Lives(settings, tmp_path) as lives:
            for step in schedule(rng, KILLS):
                for attempt in range(6):
                    feeding = asyncio.create_task(
                        feed_slice(feed, source.gaps(8) if step in CLOCKED and not attempt else ())
                    )
                    death = await lives.live(
                        step,
                        rng.randint(1, max(1, STEPS[step][2] >> attempt)),
                        commit=rng.choice((0.05, 0.1, 0.2)),
                        snapshot=rng.choice(ROUNDS.get(step, (0.3, 1.0))),
                        chunk=rng.choice((5, 500)),
                        batch=rng.choice((100, 5000)),
                        within=WITHIN,
                    )
                    await feeding
                    assert death.status == -9, lives.log.read_text()[-3000:]
                    seconds[step] += round(death.seconds * 1000)
                    if death.reached:
                        killed[step] += 1
                        break
                    missed[step] += 1
                if step == "give-up-kept":
                    await come_too_late(feed)
        lived = time.monotonic() - begun
        # One calm life at the end, to say what is left.
        async with running(settings):
            deadline = time.monotonic() + 60
            while source.late:
                assert time.monotonic() < deadline, f"never given up: {sorted(source.late)}"
                await come_too_late(feed)
                await asyncio.sleep(0.2)
            expected = await _settled(alone)
            found = await _settled(settings, expected)
    took = time.monotonic() - begun
    with capsys.disabled():
        print(f"\n{fed} records, {sum(killed.values())} kills in {lived:.0f} s ({took:.0f} s in all)")
        for step, (about, _, _) in STEPS.items():
            print(f"  {step:15} {killed[step]:3}  missed {missed[step]:2}  {seconds[step] / 1000:6.1f} s  {about}")
        for what in expected:
            print(f"  {what}: {len(expected[what])}")
    for what, wanted in expected.items():
        assert max(wanted.values()) == 1, f"{what} said twice without any disturbance"
        missing, wrong = wanted - found[what], found[what] - wanted
        assert not missing and not wrong, f"{what}: missing {list(missing)[:5]}, too many {list(wrong)[:5]}"
    # What does not depend on a clock is what the engine alone finds.
    by_engine = judged(line for line in source.sent if b'"late-' not in line)
    names = {f.finding_id for f in by_engine.findings}
    assert {name for name, _, session in expected["findings"] if not session.startswith("late-")} == names
    kept, kept_alone = await _kept(settings), await _kept(alone)
    assert kept == kept_alone, [(s, kept.get(s), kept_alone[s]) for s in kept_alone if kept.get(s) != kept_alone[s]][:5]
    assert all(killed[step] >= KILLS for step in STEPS), killed
    assert fed >= RECORDS and (RECORDS < 200_000 or sum(killed.values()) >= 200)


async def _kept(settings: Settings) -> dict[str, tuple[str, int, bool]]:
    """Return where the sessions stand, as kept on the snapshot topic."""
    kept: dict[str, tuple[str, int, bool]] = {}
    for number in range(PARTITIONS):
        origin = origin_of(settings.tail.group_id, settings.topics.inputs, PARTITIONS, number)
        options = {"bootstrap_servers": settings.kafka.bootstrap_servers[0]}
        restored = await read_snapshots(options, settings.topics.snapshots, number, origin)
        frozen = [session.frozen for session in restored.sessions]
        kept.update({f.session_id: (f.status, f.open_halts, f.waiting) for f in frozen})
    return kept


def test_a_give_up_undone_would_show() -> None:
    source = Source(SEED)
    first, later = source.gaps(1), source.too_late(["late-1"])
    kept, undone = Engine(), Engine()
    judged([message.value for message in first], kept)
    said = judged([message.value for message in later], kept)
    judged([message.value for message in first], undone, ended=False)
    assert said.findings and not judged([message.value for message in later], undone).findings


async def _settled(settings: Settings, like: dict[str, Ids] | None = None, quiet: float = 3.0) -> dict[str, Ids]:
    """Return the outputs when they have not changed for a while; expected ones are waited for longer."""
    outputs, since, deadline = await committed_outputs(settings), time.monotonic(), time.monotonic() + 60
    while True:
        await asyncio.sleep(0.5)
        now = await committed_outputs(settings)
        if now != outputs:
            outputs, since = now, time.monotonic()
        waits = like is not None and any(like[what] - now[what] for what in like) and time.monotonic() < deadline
        if not waits and time.monotonic() - since > quiet:
            return outputs
