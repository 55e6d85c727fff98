"""The simulated fleet is repeatable, keeps to its rates, and says exactly what is wrong with it."""

import itertools
import json
from collections import Counter
from datetime import UTC, datetime

import pytest

from sidecar.engine.fold import Engine
from sidecar.engine.rules import CATALOGUE
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import Hole
from sidecar.simulate import DIRECT, FAULTS, FaultRates, Fleet, Message, Shape, Transport, mixed_records
from tests.judge.naive import judge

SHORT = Shape(turns=(8, 16))
FAULTY = FaultRates.uniform(0.9, FAULTS)
ROUGH = Transport(duplicates=0.1, delayed=0.3, lagging=1.0, lag=20.0)

Findings = dict[str, set[tuple[str, str]]]


def by_session(messages: list[Message]) -> dict[str, list[bytes]]:
    sessions: dict[str, list[bytes]] = {}
    for message in messages:
        sessions.setdefault(message.key, []).append(message.value)
    return sessions


def truth(fleet: Fleet) -> Findings:
    return {p.session_id: set(p.expected) for p in fleet.planted if p.expected}


def judged(messages: list[Message]) -> tuple[Findings, int]:
    """Judge naively; sessions do not depend on one another, so each is judged on its own."""
    findings: Findings = {}
    dead = 0
    for session_id, values in by_session(messages).items():
        verdict = judge(values)
        dead += verdict.dead
        if verdict.findings:
            findings[session_id] = {(found.rule, found.subject_id) for found in verdict.findings}
    return findings, dead


def folded(messages: list[Message]) -> tuple[Findings, int]:
    """Judge with the engine, all sessions at once, as they arrive."""
    engine, findings, dead, arrivals = Engine(), [], 0, []
    for message in messages:
        try:
            arrivals.append((*decode(message.value), None))
        except Unreadable as error:
            dead += 1
            if error.session_id and error.seq:
                arrivals.append((Hole(session_id=error.session_id, seq=error.seq), 0, None))
    for outcome in (engine.fold(arrivals, 0.0), engine.finish()):
        findings += outcome.findings
        dead += len(outcome.letters)
    result: Findings = {}
    for found in findings:
        result.setdefault(found.session_id, set()).add((found.rule, found.subject.id))
    return result, dead


@pytest.mark.parametrize("judging", [judged, folded])
@pytest.mark.parametrize("seed", range(4))
def test_flagged_is_planted_and_nothing_else(seed, judging):
    fleet = Fleet(seed, sessions=150, faults=FAULTY, shape=SHORT)
    findings, dead = judging(list(fleet.messages()))
    assert findings == truth(fleet)
    assert dead == sum(p.expected_dead_letters for p in fleet.planted)
    assert {p.fault for p in fleet.planted} == set(FAULTS)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_kind_is_flagged_as_planted(kind):
    fleet = Fleet(99, sessions=12, faults=FaultRates.only(kind), shape=SHORT)
    findings, _ = judged(list(fleet.messages()))
    assert findings == truth(fleet)
    assert len(fleet.planted) == 12
    rules = {rule for p in fleet.planted for rule, _ in p.expected}
    assert set(FAULTS[kind].rules) - rules <= {"idempotence_violation"}  # only where the root had a generation
    for planted in fleet.planted:
        assert bool(planted.expected) == bool(FAULTS[kind].rules)


def test_healthy_sessions_are_found_healthy():
    messages = list(Fleet(5, sessions=150, faults=FaultRates.none(), shape=SHORT, transport=ROUGH).messages())
    assert judged(messages) == ({}, 0)
    assert any(b"as_of_seq" in message.value for message in messages)


def test_every_rule_can_be_planted():
    assert {rule for fault in FAULTS.values() for rule in fault.rules} == set(CATALOGUE)
    named = {name for name, fault in FAULTS.items() if name in fault.rules}
    assert set(CATALOGUE) - named == {"stale_on_authorization", "frontier_unverified"}


def test_a_fleet_is_repeatable():
    first, second = (Fleet(7, sessions=40, shape=SHORT) for _ in range(2))
    assert list(first.timeline()) == list(second.timeline())
    assert first.planted == second.planted
    assert list(first.timeline()) == list(second.timeline()), "a timeline can be played again"
    assert list(Fleet(8, sessions=40, shape=SHORT, prefix="7").messages()) != list(second.messages())


def test_the_way_changes_the_order_only():
    fleets = [
        Fleet(3, agents=4, sessions=80, faults=FAULTY, shape=SHORT, transport=way)
        for way in (DIRECT, Transport(), ROUGH)
    ]
    messages = [list(fleet.messages()) for fleet in fleets]
    plain, *noisy = (by_session(each) for each in messages)
    for sessions in noisy:
        assert {key: set(values) for key, values in sessions.items()} == {k: set(v) for k, v in plain.items()}
        assert sessions != plain
    assert [truth(fleet) for fleet in fleets[1:]] == [truth(fleets[0])] * 2
    for each in messages:
        assert judged(each)[0] == folded(each)[0] == truth(fleets[0])


def test_a_session_does_not_depend_on_those_beside_it():
    fleets = [Fleet(3, agents=agents, sessions=30, faults=FAULTY, shape=SHORT) for agents in (1, 30)]
    alone, crowded = (by_session(list(fleet.messages())) for fleet in fleets)
    undated = [{k: [without_ts(v) for v in values] for k, values in s.items()} for s in (alone, crowded)]
    assert undated[0] == undated[1]
    assert truth(fleets[0]) == truth(fleets[1])


def without_ts(value: bytes) -> object:
    try:
        record = json.loads(value)
    except ValueError:
        return value[:40]
    return {k: v for k, v in record.items() if k != "ts"} if isinstance(record, dict) else record


def test_sessions_are_interleaved_and_dated_in_order_of_arrival():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    fleet = Fleet(1, agents=10, sessions=20, shape=SHORT, transport=DIRECT, start=start, faults=FaultRates.none())
    timeline = list(fleet.timeline())
    times = [at for at, _ in timeline]
    assert times == sorted(times)
    assert fleet.records == len(timeline)
    switches = sum(a.key != b.key for (_, a), (_, b) in itertools.pairwise(timeline))
    assert switches > len(timeline) / 2
    for at, message in timeline:
        dated = datetime.fromisoformat(json.loads(message.value)["ts"])
        assert abs((dated - start).total_seconds() - at) < 0.002


def test_names_are_of_a_few_tenants_agents_and_models():
    records = [json.loads(m.value) for m in Fleet(1, sessions=60, faults=FaultRates.none(), shape=SHORT).messages()]
    assert [len({r[label] for r in records if label in r}) for label in ("tenant", "agent", "model")] == [3, 4, 3]
    levels = {r["level"] for r in records if r["kind"] == "checkpoint"}
    assert levels == {1, 3}
    assert {r["kind"] for r in records} >= {"summary", "checkpoint", "resume", "reconcile", "probe", "gc"}


def test_rates_are_respected():
    rates = {"log_gap": 0.2, "edge_dropped": 0.05, "budget_open": 0.01}
    fleet = Fleet(11, sessions=2000, faults=FaultRates(rates))
    counts = Counter(fleet.fault(number) for number in range(fleet.sessions))
    assert counts.pop(None) == pytest.approx(2000 * 0.74, abs=10)
    assert set(counts) == set(rates)
    for kind, rate in rates.items():
        assert counts[kind] == pytest.approx(2000 * rate, abs=5)


def test_worse_models_forget_more():
    fleet = Fleet(2, sessions=300, faults=FaultRates.only("constraint_dropped"), shape=SHORT)
    models, levels = Counter(), Counter()
    for number in range(fleet.sessions):
        script = fleet.script(number)
        ((_, node),) = [e for e in script.planted.expected if e[0] == "constraint_dropped"]
        levels[node.split("-")[0]] += 1
        models[next(json.loads(e.value)["model"] for e in script.entries if b'"model"' in e.value)] += 1
    assert models["tiny-small"] > models["quick-medium"] > models["steady-large"]
    # 71% reach a leaf and 34% a section: 29% are lost at the leaf, 37% at the section.
    assert levels["leaf"] / 300 == pytest.approx(0.29, abs=0.08)
    assert levels["section"] / 300 == pytest.approx(0.37, abs=0.08)


def test_mixed_records_are_mostly_small_log_events():
    messages = list(mixed_records(1, 30_000, agents=40))
    assert len(messages) == 30_000
    assert messages[:5000] == list(mixed_records(1, 5000, agents=40))
    assert 170 < sum(len(m.value) for m in messages) / len(messages) < 230
    assert 0.01 < sum(m.role == "compactions" for m in messages) / len(messages) < 0.04
    opaque = sum(
        m.value.startswith((b'{"kind":"message"', b'{"kind":"tool_call"', b'{"kind":"thought"')) for m in messages
    )
    assert 0.55 < opaque / len(messages) < 0.75
    assert len({m.key for m in messages}) > 40
