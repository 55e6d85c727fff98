"""Put the tail under pressure: records that cannot be read, and a session that waits with 100,000 records in hand."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sidecar.config import Settings
from sidecar.engine.limits import Limits
from sidecar.simulate import DIRECT, FAULTS, FaultRates, Fleet, Message, Shape
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import judged, process, settings_for, until, until_committed
from tests.kafka.test_crash_matrix import Feed, committed_outputs, producing

AHEAD = 100_000
OTHERS = 60_000
_OF_THE_CLOCK = ("log_gap", "torn_record", "session_joined", "baseline_left_out")
POISON = (b"", b"\x00" * 100, b'{"kind":"action"', b'{"kind":"action","session_id":"p","seq":1}', b"[" * 3000, b'"x"')


def _turn(seq: int) -> Message:
    fields = {"kind": "message", "session_id": "waits", "seq": seq, "text": "x" * 100}
    return Message("events", "waits", json.dumps(fields).encode())


def others(poison: bool) -> Iterator[Message]:
    """Yield the records of a fleet, one in a hundred of them followed by something that is no record."""
    rng = random.Random(4)
    # Faults that no clock has to find: what they cause is said while the other session waits.
    rates = FaultRates.uniform(0.6, [fault for fault in FAULTS if fault not in _OF_THE_CLOCK])
    fleet = Fleet(4, agents=100, sessions=10**6, faults=rates, transport=DIRECT, shape=Shape(turns=(8, 16)))
    for number, message in zip(range(OTHERS), fleet.messages(), strict=False):
        yield message
        if poison and number % 99 == 0:
            yield Message("events", "p", rng.choice(POISON))


async def feed_all(feed: Feed, ahead: Sequence[Message], rest: Sequence[Message]) -> None:
    """Feed two streams side by side."""
    turns = 50
    for turn in range(turns):
        for messages in (ahead, rest):
            await feed(messages[len(messages) * turn // turns : len(messages) * (turn + 1) // turns])


def peak(pid: int) -> int:
    """Return the most memory that a process ever had resident, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def run(settings: Settings, tmp_path: Path, *, gap: bool, poison: bool) -> tuple[int, int]:
    """Feed a tail; return its peak of memory before and after, and see that nothing is held up."""
    rest = list(others(poison))
    expected = {finding.finding_id for finding in judged(message.value for message in rest).findings}
    held = Limits().max_waiting
    async with process(settings, tmp_path, "gap" if gap else "none") as child, producing(settings) as feed:
        log = tmp_path / ("gap.log" if gap else "none.log")
        await until(lambda: "partitions assigned" in log.read_text(), within=20)
        before = peak(child.pid)
        # As many as a session may hold back, and the rest: all that others have done is found while it waits.
        await feed([_turn(1), *(_turn(seq + gap) for seq in range(2, held + 1))])
        half = len(rest) // 2
        await feed(rest[:half])
        early = {finding.finding_id for finding in judged((m.value for m in rest[:half]), ended=False).findings}

        async def said() -> bool:
            return {name for name, *_ in (await committed_outputs(settings))["findings"]} >= early

        await until(said, within=30)
        findings = (await committed_outputs(settings))["findings"]
        assert not [f for f in findings if f[2] == "waits"], "it should wait still"
        await feed_all(feed, [_turn(seq + gap) for seq in range(held + 1, AHEAD + 1)], rest[half:])
        await until_committed(settings, within=60)
        after = peak(child.pid)
        outputs = await committed_outputs(settings)
    found = outputs["findings"]
    assert Counter({f: n for f, n in found.items() if f[2] == "waits"}) == Counter(
        {f: 1 for f in found if f[1:] == ("log_gap", "waits")}
    )
    assert sum(1 for f in found if f[2] == "waits") == gap
    assert {f[0] for f in found if f[2] != "waits"} == expected and set(found.values()) == {1}
    assert (len(outputs["dead letters"]) > len(rest) // 110) == poison
    return before, after


async def test_poison_and_a_session_far_ahead_of_a_gap(
    kafka: KafkaBroker, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = settings_for(kafka.bootstrap, f"{unique}quiet.", max_wait=600)
    loud = settings_for(kafka.bootstrap, f"{unique}loud.", max_wait=600)
    base = await run(quiet, tmp_path, gap=False, poison=False)
    pressed = await run(loud, tmp_path, gap=True, poison=True)
    with capsys.disabled():
        mb = [f"{size / 2**20:.0f}" for size in (*base, *pressed)]
        print(f"\nMB resident at most: {mb[0]} to {mb[1]} without pressure, {mb[2]} to {mb[3]} with it")
    grown, grown_pressed = base[1] - base[0], pressed[1] - pressed[0]
    assert pressed[1] < 1.3 * base[1], (grown, grown_pressed)
