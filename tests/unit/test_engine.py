"""What the engine promises beside the rules: its order, its bounds, its state."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from sidecar.engine.fold import STATE_VERSION, Arrival, Engine, Outcome, UnknownState
from sidecar.engine.limits import Limits
from sidecar.engine.rules import CATALOGUE
from sidecar.engine.sequence import JUDGES
from sidecar.engine.state import Known
from sidecar.engine.status import LISTED
from sidecar.protocol.decode import decode
from sidecar.protocol.outputs import Source
from sidecar.protocol.records import KINDS, Hole


def row(kind: str, seq: int | None = None, session: str = "s", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "session_id": session, **({} if seq is None else {"seq": seq}), **fields}


def message(seq: int, text: str = "turn", session: str = "s") -> dict[str, Any]:
    return row("message", seq, session, text=text)


def checkpoint(name: str, seq: int | None, hi: int, **fields: Any) -> dict[str, Any]:
    given = {"node_id": "n", "summary_generation": 1, "level": 1, "turn": 1, "frontier_lo": 1, "asserted_edges": []}
    return row("checkpoint", seq, checkpoint_id=name, frontier_hi=hi, **{**given, **fields})


def summary(node: str, seq: int, hi: int, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return row("summary", seq, node_id=node, generation=generation, level=1, frontier_lo=1, frontier_hi=hi, **fields)


def arrive(*rows: dict[str, Any]) -> list[Arrival]:
    return [(*decode(json.dumps(r).encode()), Source("t", 0, i)) for i, r in enumerate(rows)]


def rules(outcome: Outcome) -> list[str]:
    return [f.rule for f in outcome.findings]


def test_a_session_can_wait_only_so_many_records_for_a_gap() -> None:
    engine = Engine(Limits(max_waiting=3))
    assert not engine.fold(arrive(message(1), message(3), message(4), message(5)), 0.0).findings
    assert engine.counters.waiting == 3
    outcome = engine.fold(arrive(message(6)), 0.0)
    assert [(f.rule, f.position) for f in outcome.findings] == [("log_gap", 2)]
    assert engine.counters.waiting == 0
    engine.fold(arrive(message(2)), 0.0)
    assert engine.counters.late == 1


def test_a_session_can_wait_only_so_long_for_a_gap() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(1), message(3)), 100.0)
    assert not engine.expire(104.9).findings
    assert rules(engine.expire(105.0)) == ["log_gap"]
    assert engine.counters.sessions_waiting == 0


def test_each_gap_has_its_own_time() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(1), message(3), message(5)), 0.0)
    assert [f.position for f in engine.expire(5.0).findings] == [2]
    assert not engine.expire(9.9).findings
    assert [f.position for f in engine.expire(10.0).findings] == [4]


def test_a_record_without_seq_can_wait_only_so_long() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(1), checkpoint("c", None, 4)), 0.0)
    outcome = engine.expire(5.0)
    assert rules(outcome) == ["log_gap", "frontier_unverified", "generation_mismatch"]
    assert {f.position for f in outcome.findings} == {1}
    assert engine.counters.waiting == 0
    # The log has not advanced, and nothing is missing from it.
    assert not engine.fold(arrive(message(2), message(3)), 6.0).findings


def test_a_run_of_missing_positions_is_one_finding_however_long() -> None:
    engine = Engine()
    engine.fold(arrive(message(1), message(2**60)), 0.0)
    outcome = engine.finish()
    assert [(f.rule, f.position, f.evidence["missing"]) for f in outcome.findings] == [
        ("log_gap", 2, [2, 2**60 - 1]),
    ]
    assert not engine.fold(arrive(message(2**60 + 1)), 0.0).findings
    engine.fold(arrive(message(77)), 0.0)
    assert engine.counters.late == 1


def test_a_record_whose_content_is_no_longer_known_is_a_conflict() -> None:
    """An emitter that has lost its journal begins again at 1; what it writes must not pass for a repetition."""
    engine = Engine()
    engine.fold(arrive(*(message(i) for i in range(1, 5001))), 0.0)
    assert rules(engine.fold(arrive(row("revocation", 1, action_id="deploy")), 0.0)) == ["log_conflict"]
    assert rules(engine.fold(arrive(message(1000)), 0.0)) == ["log_conflict"]
    assert rules(engine.fold(arrive(message(1000)), 0.0)) == []  # one a position
    assert rules(engine.fold(arrive(message(4999)), 0.0)) == []
    assert (engine.counters.conflicts, engine.counters.duplicates, engine.counters.late) == (2, 1, 1)


@pytest.mark.parametrize("at", [3000 - 1023, 2999, 3000])
def test_contents_are_known_for_the_last_1024_positions(at: int) -> None:
    engine = Engine()
    engine.fold(arrive(*(message(i) for i in range(1, 3001))), 0.0)
    assert not engine.fold(arrive(message(at)), 0.0).findings
    assert rules(engine.fold(arrive(message(at, "forged")), 0.0)) == ["log_conflict"]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"text": "turn", "seq": 1, "session_id": "s", "kind": "message"}, True),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "turn", "tenant": None, "agent": ""}, True),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "turn", "ts": "no time"}, True),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "turn", "as_of_seq": 7}, True),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "other"}, False),
        ({"kind": "thought", "session_id": "s", "seq": 1, "text": "turn"}, False),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "turn", "more": 0}, False),
        ({"kind": "message", "session_id": "s", "seq": 1, "text": "turn", "ts": "2026-01-01T00:00:00Z"}, False),
    ],
)
def test_content_is_compared_whole_however_it_is_written(other: dict[str, Any], same: bool) -> None:
    engine = Engine()
    outcome = engine.fold(arrive(message(1), other), 0.0)
    assert rules(outcome) == ([] if same else ["log_conflict"])


def test_a_conflict_with_a_waiting_record_is_found_when_the_log_gets_there() -> None:
    engine = Engine()
    assert not engine.fold(arrive(message(2), message(2, "forged"), message(3)), 0.0).findings
    outcome = engine.fold(arrive(message(1)), 0.0)
    assert [(f.rule, f.position) for f in outcome.findings] == [("log_conflict", 2)]
    assert [h.position for h in outcome.halts] == [2]


def test_an_unreadable_record_takes_its_position() -> None:
    engine = Engine()
    hole: Arrival = (Hole(session_id="s", seq=2), 0, Source("t", 0, 7))
    outcome = engine.fold([*arrive(message(1)), hole, *arrive(message(3), message(2))], 0.0)
    assert [(f.rule, f.position, f.source) for f in outcome.findings] == [("log_gap", 2, Source("t", 0, 7))]
    assert engine.counters.late == 1


def test_an_unreadable_record_at_a_taken_position_changes_nothing() -> None:
    engine = Engine()
    engine.fold([*arrive(message(1)), (Hole(session_id="s", seq=1), 0, None)], 0.0)
    engine.fold([*arrive(message(3)), (Hole(session_id="s", seq=3), 0, None), *arrive(message(2))], 0.0)
    assert not engine.finish().findings


def test_a_halt_lists_a_bounded_number_of_open_halts() -> None:
    engine = Engine()
    acts = [row("action", i, action_id="a", irreversible=True) for i in range(1, LISTED + 12)]
    halts = engine.fold(arrive(*acts), 0.0).halts
    assert [len(h.open_halts) for h in halts[-3:]] == [LISTED] * 3
    assert halts[-1].open_halts[-1] == halts[-1].halt_id
    assert engine.open_halts() == len(acts)
    edge = row("summary", len(acts) + 1, node_id="n", generation=1, level=1, frontier_lo=1, frontier_hi=1)
    outcome = engine.fold(arrive(edge, checkpoint("c", len(acts) + 2, 1)), 0.0)
    assert outcome.halts[-1].open_halts == []
    assert engine.open_halts() == 0


def test_findings_carry_who_and_where() -> None:
    record = row("action", 1, action_id="a", irreversible=True, tenant="acme", agent="planner", model="m")
    finding = Engine().fold(arrive(record), 0.0).findings[0]
    assert (finding.tenant, finding.agent, finding.model) == ("acme", "planner", "m")
    assert finding.source == Source("t", 0, 0)


def test_survival_is_counted_by_level() -> None:
    rows = [
        row("constraint", 1, constraint_id="a", polarity="negative"),
        row("constraint", 2, constraint_id="b", polarity="negative"),
        row("fact", 3, fact_id="f", anchor="x"),
        row("referent_added", 4, referent_id="r"),
        summary("n", 5, 4, negative_constraints=["a"], facts={"f": "x"}, referents=["r", "gone"]),
    ]
    assert Engine().fold(arrive(*rows), 0.0).survival == {
        ("constraint", 1): [2, 1],
        ("fact", 1): [1, 1],
        ("referent", 1): [2, 1],
    }


def test_a_state_of_another_version_is_refused() -> None:
    state = Engine().dump()
    assert state[1] == STATE_VERSION
    with pytest.raises(UnknownState, match="version 99"):
        Engine.load(bytes([state[0], 99]) + state[2:])


@pytest.mark.parametrize("cut", [0, 1, 5, 40])
def test_a_damaged_state_is_refused(cut: int) -> None:
    engine = Engine()
    engine.fold(arrive(message(1), row("authorization", 2, action_id="a", precondition_id="p")), 0.0)
    with pytest.raises(UnknownState):
        Engine.load(engine.dump()[:cut])


def test_the_clock_survives_a_restart() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(1), message(3)), 100.0)
    again = Engine.load(engine.dump(), engine.limits)
    assert not again.expire(104.0).findings
    assert rules(again.expire(105.0)) == ["log_gap"]


def test_every_rule_can_be_found_in_the_cases_or_by_the_judge() -> None:
    from tests.judge.naive import SEVERITY_AND_DISPOSITION

    assert set(CATALOGUE) == set(SEVERITY_AND_DISPOSITION)
    for name, rule in CATALOGUE.items():
        assert (rule.severity, rule.disposition) == SEVERITY_AND_DISPOSITION[name], name


def test_positions_behind_what_is_kept_are_unverified_and_edges_stay_decidable() -> None:
    engine = Engine(Limits(positions=1024))
    rows = [row("authorization", 1, action_id="a", precondition_id="p")]
    rows += [message(i) for i in range(2, 3072)]
    rows += [
        row("action", 3072, action_id="a", irreversible=True),
        summary("n", 3073, 3072),
        checkpoint("c", 3074, 3072, asserted_edges=[["a", "p"], ["a", "forged"]]),
    ]
    outcome = engine.fold(arrive(*rows), 0.0)
    assert sorted(rules(outcome)) == ["edge_hallucinated", "frontier_unverified"]
    unverified = next(f for f in outcome.findings if f.rule == "frontier_unverified")
    assert unverified.evidence["reasons"] == {"kept_from": 3074 - 1024 + 1}


def sessions_with_findings() -> list[Arrival]:
    """Two sessions: one with a good checkpoint and later a bad one, one that halts."""
    return arrive(
        row("authorization", 1, "a", action_id="x", precondition_id="p"),
        row("action", 1, "b", action_id="x", irreversible=True),
        {**summary("n", 2, 1), "session_id": "a"},
        {**checkpoint("c", 3, 1, asserted_edges=[["x", "p"]]), "session_id": "a"},
        row("message", 2, "b"),
        row("resume", 4, "a", checkpoint_id="c"),
        {**checkpoint("d", 5, 4, asserted_edges=[["x", "forged"]]), "session_id": "a"},
        {**checkpoint("e", 3, 2), "session_id": "b"},
    )


@pytest.mark.parametrize("cut", range(9))
def test_sleeping_changes_nothing(cut: int) -> None:
    arrivals = sessions_with_findings()
    whole, slept = Engine(), Engine()
    expected = whole.fold(arrivals, 0.0)
    first = slept.fold(arrivals[:cut], 0.0)
    slept.take_changed()
    asleep = slept.shrink(100.0, 10.0)
    assert asleep == len(slept) == len({a[0].session_id for a in arrivals[:cut]})
    assert list(slept.states()) == list(Engine.load(slept.dump()).states())
    second = slept.fold(arrivals[cut:], 200.0)
    assert first.findings + second.findings == expected.findings
    assert first.halts + second.halts == expected.halts
    assert slept.status_counts() == whole.status_counts()
    assert slept.open_halts() == whole.open_halts()


@pytest.mark.parametrize("cut", range(9))
def test_an_adopted_session_goes_on_where_it_stood(cut: int) -> None:
    arrivals = sessions_with_findings()
    whole, before, after = Engine(), Engine(), Engine()
    expected = whole.fold(arrivals, 0.0)
    first = before.fold(arrivals[:cut], 0.0)
    for session_id in before.take_changed():
        after.adopt(before.freeze(session_id), 50.0)
    assert after.status_counts() == before.status_counts()
    second = after.fold(arrivals[cut:], 60.0)
    assert first.findings + second.findings == expected.findings
    assert after.status_counts() == whole.status_counts()
    assert after.open_halts() == whole.open_halts()


def test_a_session_that_waits_does_not_sleep_and_wakes_at_once() -> None:
    engine, other = Engine(), Engine()
    engine.fold(arrive(message(1), message(3)), 0.0)
    engine.take_changed()
    assert engine.shrink(100.0, 10.0) == 0
    other.adopt(engine.freeze("s"), 1000.0)
    assert not other.expire(1004.9).findings  # the wait begins anew
    assert rules(other.expire(1005.0)) == ["log_gap"]


def test_changes_are_told_once() -> None:
    engine = Engine()
    engine.fold(arrive(message(1), message(1, session="t"), message(3)), 0.0)
    assert engine.take_changed() == ["s", "t"]
    assert engine.take_changed() == []
    engine.fold(arrive(message(2, session="t")), 1.0)
    assert engine.take_changed() == ["t"]
    engine.expire(100.0)
    assert engine.take_changed() == ["s"]


def test_what_arrival_or_the_clock_decides_is_told() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(1), message(2)), 0.0)
    assert engine.take_decided() == []
    engine.fold(arrive(message(2, "forged")), 0.0)
    assert engine.take_decided() == ["s"]
    engine.fold(arrive(message(4)), 0.0)
    assert engine.take_decided() == []
    engine.expire(10.0)
    assert engine.take_decided() == ["s"]
    engine.fold(arrive(message(3)), 10.0)  # late
    assert engine.take_decided() == ["s"]
    engine.fold(arrive(row("reconcile", None, decision="replay")), 10.0)  # without seq, judged on arrival
    assert engine.take_decided() == ["s"]


def test_idle_sessions_are_forgotten() -> None:
    engine = Engine()
    engine.fold(arrive(message(1, session="a")), 0.0)
    engine.fold(arrive(message(1, session="b")), 90.0)
    engine.take_changed()
    engine.shrink(95.0, 50.0)
    assert engine.drop_idle(100.0, 60.0) == ["a"]
    assert (len(engine), engine.open_halts(), sum(engine.status_counts().values())) == (1, 0, 1)


def test_lost_records_make_every_session_unverifiable() -> None:
    engine = Engine()
    engine.fold(arrive(message(1), summary("n", 2, 1), checkpoint("c", 3, 1), message(1, session="t")), 0.0)
    engine.take_changed()
    engine.shrink(100.0, 10.0)
    outcome = engine.distrust("agent.events/0: 10 to 19")
    assert rules(outcome) == ["frontier_unverified"]
    assert engine.status_counts()["unverified"] == 2
    assert not engine.distrust("again").findings
    # A checkpoint written after that is judged anew.
    engine.fold(arrive(message(4), summary("n", 5, 4, 2), checkpoint("d", 6, 4, summary_generation=2)), 200.0)
    assert engine.status_counts()["verified"] == 1


def test_what_waits_is_counted_through_everything() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(message(3), message(5), checkpoint("c", None, 9), message(2, session="t")), 0.0)
    assert (engine.counters.waiting, engine.counters.sessions_waiting) == (4, 2)
    again = Engine.load(engine.dump(), engine.limits)
    assert (again.counters.waiting, again.counters.sessions_waiting) == (4, 2)
    other = Engine(engine.limits)
    for session_id in engine.take_changed():
        other.adopt(engine.freeze(session_id), 100.0)
    assert (other.counters.waiting, other.counters.sessions_waiting) == (4, 2)
    for each in (engine, again):
        each.expire(5.0)
        each.expire(10.0)
        assert (each.counters.waiting, each.counters.sessions_waiting) == (0, 0)
    assert not other.expire(104.0).findings
    assert other.expire(105.0).findings


def test_many_waiting_sessions_cost_nothing_until_they_are_due() -> None:
    engine = Engine(Limits(max_wait=5.0))
    engine.fold(arrive(*(message(2, session=f"s{i}") for i in range(2000))), 0.0)
    engine.fold(arrive(*(message(2, session=f"t{i}") for i in range(2000))), 3.0)
    assert sum(len(engine.expire(5.0).findings) for _ in range(3)) == 2000
    assert engine.counters.sessions_waiting == 2000
    assert sum(len(engine.expire(8.0).findings) for _ in range(3)) == 2000


def test_positions_at_the_limit_can_be_kept() -> None:
    top = 2**61 - 1
    engine = Engine()
    engine.fold(arrive(row("referent_added", top - 1, referent_id="r"), row("authorization", top, action_id="a")), 0.0)
    engine.finish()
    again = Engine.load(engine.dump())
    assert list(again.states()) == list(engine.states())
    assert again.freeze("s").state == engine.freeze("s").state


def test_what_was_missing_for_one_record_alone_costs_no_candidate() -> None:
    engine = Engine(Limits(max_waiting=1))
    good = [summary("n", 1, 1), message(2), summary("m", 3, 2), checkpoint("c", 4, 2, node_id="m", frontier_lo=1)]
    engine.fold(arrive({**good[0], "frontier_hi": 1, "seq": 2}, message(1), *good[2:]), 0.0)
    assert engine.status_counts()["verified"] == 1
    # Two that come without seq and too early: the first is judged past the bound, and halts.
    late = [row("summary", None, node_id="m", generation=1, level=1, frontier_lo=1, frontier_hi=h) for h in (30, 40)]
    (first,) = engine.fold(arrive(*late), 0.0).halts
    assert (first.reason, first.reexpand_from) == (["generation_regressed"], None)
    (second,) = engine.fold(arrive(row("action", 5, action_id="x", irreversible=True)), 0.0).halts
    assert (second.reexpand_from, second.replay_from) == ("c", 3)


def test_waiting_again_and_again_leaves_nothing_behind() -> None:
    engine = Engine(Limits(max_wait=5.0))
    for i in range(1, 4001, 2):
        engine.fold(arrive(message(i + 1), message(i)), i / 100)
        engine.expire(i / 100)
    assert len(engine._sequencer.waits._due) <= 1


def test_gaps_at_every_multiple_do_not_keep_the_past() -> None:
    engine = Engine(Limits(max_waiting=1))
    for start in range(1, 20_000, 1024):
        engine.fold(arrive(*(message(i) for i in range(start, start + 1023))), 0.0)  # 1,024, 2,048, … never come
    assert len(engine.dump()) < 40_000


def cost(rows: list[dict[str, Any]]) -> float:
    from time import perf_counter

    arrivals = arrive(*rows)
    engine = Engine()
    begun = perf_counter()
    engine.fold(arrivals, 0.0)
    return perf_counter() - begun


def chain_reclaimed(length: int) -> list[dict[str, Any]]:
    rows = [summary(f"n{i}", i + 2, i + 1, children=[f"n{i - 1}"] if i else []) for i in range(length)]
    names = [f"n{i}" for i in range(length)]
    return [message(1), *rows, *(row("gc", length + 2 + i, node_ids=names) for i in range(2))]


def halted_and_reconciled(length: int) -> list[dict[str, Any]]:
    acts = [row("action", 2 * i + 1, action_id="a", irreversible=True) for i in range(length)]
    return sorted(
        [*acts, *(row("reconcile", 2 * i + 2, decision="replay") for i in range(length))], key=lambda r: r["seq"]
    )


def handles_after_a_resume(length: int) -> list[dict[str, Any]]:
    before = [row("tool_result", 1, call_key="k", handle="h"), row("resume", 2, checkpoint_id="c")]
    return [*before, *(row("tool_result", 3 + i, call_key="k", handle=f"h{i}") for i in range(length))]


def resumed_without_deps(length: int) -> list[dict[str, Any]]:
    calls = [row("tool_result", 1 + i, call_key=f"k{i}", handle=f"h{i}") for i in range(length)]
    point = checkpoint("c", length + 1, 1)
    return [*calls, point, row("resume", length + 2, checkpoint_id="c", deps=[f"d{i}" for i in range(length)])]


@pytest.mark.parametrize("make", [chain_reclaimed, halted_and_reconciled, handles_after_a_resume, resumed_without_deps])
def test_no_record_searches_the_past_again_and_again(make: Any) -> None:
    """Eight times the records may cost a good deal more than eight times as much, but not sixty-four.

    Both are past the bound of what a halt record lists, which costs the same for every halt from there on.
    """
    small, large = min(cost(make(2000)) for _ in range(3)), min(cost(make(16_000)) for _ in range(2))
    assert large / small < 32, f"{large / small:.0f} times the cost for 8 times the records"


def news(engine: Engine) -> dict[str, Any]:
    return {told.session_id: told for told in engine.take_news()}


def test_news_says_where_a_session_stands() -> None:
    engine = Engine()
    rows = [
        row("authorization", 1, action_id="a", precondition_id="p"),
        row("constraint", 2, constraint_id="no-prod", polarity="negative"),
        summary("n", 3, 2, negative_constraints=["no-prod"], model="m1"),
        checkpoint("c", 4, 2, asserted_edges=[["a", "p"]], tenant="acme", agent="planner"),
    ]
    engine.fold(arrive(*rows), 0.0)
    told = news(engine)["s"]
    assert (told.status, told.position, told.open_halts, told.awaiting) == ("verified", 4, [], False)
    assert (told.tenant, told.agent, told.model) == ("acme", "planner", "m1")
    assert told.checkpoint is not None and told.checkpoint.checkpoint_id == "c"
    assert [(s.what, s.level, s.model, s.checked, s.kept) for s in told.survival] == [("constraint", 1, "m1", 1, 1)]
    assert not news(engine)


def test_an_event_that_changes_nothing_is_no_news() -> None:
    engine = Engine()
    engine.fold(arrive(message(1)), 0.0)
    assert news(engine)["s"].status == "uncompacted"
    engine.fold(arrive(message(2), row("referent_added", 3, referent_id="r")), 0.0)
    assert not news(engine)


def test_a_checkpoint_that_becomes_stale_under_a_halt_is_news() -> None:
    engine = Engine()
    rows = [
        message(1),
        summary("n", 2, 1),
        checkpoint("c", 3, 1, asserted_edges=[]),
        row("action", 4, action_id="a", irreversible=True),
    ]
    engine.fold(arrive(*rows), 0.0)
    engine.take_news()
    engine.fold(arrive(row("authorization", 5, action_id="a", precondition_id="p")), 0.0)
    told = news(engine)["s"]
    assert told.status == "degraded" and told.checkpoint is not None
    assert told.checkpoint.status == "stale"
    assert len(told.open_halts) == 1


def test_degraded_sessions_are_stirred_while_their_logs_go_on() -> None:
    engine = Engine()
    engine.fold(arrive(row("action", 1, action_id="a", irreversible=True)), 0.0)
    assert news(engine)["s"].status == "degraded"
    engine.stir()
    assert not news(engine)
    engine.fold(arrive(message(2)), 0.0)
    assert not news(engine)
    engine.stir()
    assert news(engine)["s"].position == 2
    restored = Engine.load(engine.dump())
    restored.stir()
    assert news(restored)["s"].position == 2


def test_tallies_are_bounded() -> None:
    engine = Engine()
    rows = [row("constraint", 1, constraint_id="a", polarity="negative")]
    rows += [summary(f"n{i}", i, 1, negative_constraints=["a"], model=f"m{i}") for i in range(2, 200)]
    engine.fold(arrive(*rows), 0.0)
    survival = news(engine)["s"].survival
    assert len(survival) < 60
    assert sum(s.checked for s in survival) == 198


def test_every_kind_is_judged_and_can_be_held_back() -> None:
    # A kind that only some of these know works as long as its records come in order, and breaks when one comes early.
    assert set(KINDS.values()) == set(JUDGES) == set(get_args(Known))


def test_a_checkpoint_stays_stale_when_the_generation_after_its_own_is_forgotten() -> None:
    rows = (
        message(1),
        summary("a", 2, 1),
        checkpoint("c", 3, 2, node_id="a"),
        summary("a", 4, 3, 2),
        summary("b", 5, 4),
    )
    for limits in (Limits(), Limits(nodes=2)):
        engine = Engine(limits)
        engine.fold(arrive(*rows), 0.0)
        (state,) = engine.states()
        assert state.checkpoint_in_force == "c" and state.status == "stale"
