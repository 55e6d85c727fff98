"""Protocol 1.1 in the engine: uses, baselines, inherited ranges, and what comes for a contested position."""

from itertools import pairwise
from typing import Any

import pytest

from sidecar.engine.fold import Engine
from sidecar.engine.frontier import effective_edges
from sidecar.engine.limits import Limits
from sidecar.engine.ranges import MOST, Coverage, inherited
from sidecar.engine.state import Generation
from sidecar.protocol.records import COMPARED, Hole
from tests.unit.test_engine import arrive, checkpoint, message, row, rules, summary
from tests.unit.test_engine_fails_closed import allowed


def grant(seq: int, precondition: str, **fields: Any) -> dict[str, Any]:
    return row("authorization", seq, action_id="deploy", precondition_id=precondition, **fields)


def act(seq: int) -> dict[str, Any]:
    return row("action", seq, action_id="deploy", irreversible=True)


def effective(engine: Engine) -> list[str]:
    session = engine.look("s")
    assert session is not None
    return sorted(edge.precondition for edge in effective_edges(session.frontier, "deploy"))


# --- uses -------------------------------------------------------------------------------------------------------------


def test_the_edge_is_used_whose_newest_grant_came_first() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1, "a", uses=1), grant(2, "b", uses=1), grant(3, "a", uses=1)), 0.0)
    assert engine.fold(arrive(act(4)), 0.0).findings == []
    assert effective(engine) == ["a"]  # of `a` the grant at 3 counts, so `b` came first
    assert engine.fold(arrive(act(5)), 0.0).findings == []
    assert rules(engine.fold(arrive(act(6)), 0.0)) == ["action_unauthorized"]


def test_nothing_is_used_up_while_an_edge_has_no_limit() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1, "a", uses=1), grant(2, "b"), act(3), act(4)), 0.0)
    assert effective(engine) == ["a", "b"]
    engine.fold(arrive(row("revocation", 5, action_id="deploy", precondition_id="b"), act(6)), 0.0)
    assert effective(engine) == []


def test_a_new_grant_starts_with_its_own_uses() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1, "a", uses=5), act(2), grant(3, "a", uses=1), act(4)), 0.0)
    assert not allowed(engine)
    engine.fold(arrive(grant(5, "a")), 0.0)
    assert engine.fold(arrive(act(6), act(7)), 0.0).findings == []


def test_a_last_use_makes_the_newest_checkpoint_stale_and_can_be_replayed() -> None:
    engine = Engine()
    rows = [grant(1, "a", uses=2), summary("n", 2, 1), checkpoint("c", 3, 1, asserted_edges=[["deploy", "a"]])]
    assert rules(engine.fold(arrive(*rows, act(4)), 0.0)) == []
    assert rules(engine.fold(arrive(act(5)), 0.0)) == ["stale_on_authorization"]
    trial = Engine.load(engine.dump())
    assert rules(trial.fold(arrive(row("resume", 6, checkpoint_id="c", replayed_to=4)), 0.0)) == ["resumed_unverified"]
    trial = Engine.load(engine.dump())
    assert rules(trial.fold(arrive(row("resume", 6, checkpoint_id="c", replayed_to=6)), 0.0)) == ["resumed_unverified"]
    assert rules(engine.fold(arrive(row("resume", 6, checkpoint_id="c", replayed_to=5)), 0.0)) == []


# --- baselines --------------------------------------------------------------------------------------------------------


def test_what_comes_before_a_baseline_is_late_and_a_range_that_ends_there_is_unverified() -> None:
    engine = Engine()
    assert rules(engine.fold(arrive(message(50), message(51)), 0.0)) == []
    assert rules(engine.expire(100.0)) == ["session_joined"]
    assert not allowed(engine)
    engine.fold(arrive(row("baseline", 52, edges=[["deploy", "a"]])), 0.0)
    assert allowed(engine)
    late = engine.counters.late
    assert engine.fold(arrive(row("revocation", 20, action_id="deploy")), 0.0).findings == []
    assert engine.fold(arrive(message(51, "other")), 0.0).findings == []
    assert (engine.counters.late, engine.counters.conflicts) == (late + 2, 0)
    before = engine.fold(arrive(summary("n", 53, 40), checkpoint("c", 54, 40, asserted_edges=[])), 0.0)
    assert "frontier_unverified" in rules(before)
    over = checkpoint("d", 56, 54, asserted_edges=[["deploy", "a"]], summary_generation=2)
    assert rules(engine.fold(arrive(summary("n", 55, 54, 2), over), 0.0)) == []
    assert next(engine.states()).status == "verified"


def test_a_baseline_elsewhere_grants_nothing() -> None:
    engine = Engine()
    engine.fold(arrive(message(1), row("baseline", 2, edges=[["deploy", "a"]])), 0.0)
    assert not allowed(engine)
    first = Engine()
    first.fold(arrive(row("baseline", 1, edges=[["deploy", "a"]])), 0.0)
    assert allowed(first)


@pytest.mark.parametrize(("midstream", "rule"), [("skip", "session_joined"), ("judge", "log_gap")])
def test_what_a_session_without_its_beginning_is_can_be_set(midstream: Any, rule: str) -> None:
    engine = Engine(Limits(midstream=midstream))
    engine.fold(arrive(message(50)), 0.0)
    assert rules(engine.finish()) == [rule]


def test_an_unreadable_first_record_is_a_gap_in_a_session_that_was_not_joined() -> None:
    engine = Engine()
    assert rules(engine.fold([_hole(1), *arrive(message(2))], 0.0)) == ["log_gap"]
    assert next(engine.states()).status == "unverified"


# --- contested positions ----------------------------------------------------------------------------------------------


def test_a_third_record_for_a_contested_position_is_late() -> None:
    engine = Engine()
    assert rules(engine.fold(arrive(message(1), message(2), message(1, "x")), 0.0)) == ["log_conflict"]
    assert engine.fold(arrive(message(1, "y"), message(1)), 0.0).findings == []
    assert (engine.counters.conflicts, engine.counters.late) == (1, 2)


def test_a_record_without_seq_is_a_duplicate_among_the_last_1024() -> None:
    engine = Engine()
    first = row("reconcile", decision="replay")
    engine.fold(arrive(message(1), first, first), 0.0)
    assert engine.counters.duplicates == 1
    engine.fold(arrive(*(row("reconcile", decision="replay", ts=None, n=i) for i in range(COMPARED))), 0.0)
    engine.fold(arrive(first), 0.0)
    assert engine.counters.duplicates == 1  # forgotten, and so judged again


# --- inherited ranges -------------------------------------------------------------------------------------------------


def test_inherited_ranges_are_bounded_and_joining_them_loses_none() -> None:
    children = [
        Generation(i, "n", 1, i, 0, 1, 10 * i + 1, 10 * i + 2, False, None, (), (), (), None, [])
        for i in range(3 * MOST)
    ]
    ranges = inherited(10_000, 10_001, children)
    assert ranges is not None and len(ranges) == MOST
    assert all(any(lo <= child.lo and child.hi <= hi for lo, hi in ranges) for child in children)
    assert ranges == sorted(ranges) and all(a[1] < b[0] for a, b in pairwise(ranges))


def test_a_summary_of_what_is_new_answers_for_what_its_children_carried() -> None:
    engine = Engine()
    rows = [
        row("constraint", 1, constraint_id="no-prod", polarity="negative"),
        summary("child", 2, 1, negative_constraints=["no-prod"]),
        message(3),
        summary("parent", 4, 3, children=["child"]) | {"frontier_lo": 3},
    ]
    outcome = engine.fold(arrive(*rows), 0.0)
    assert [(f.rule, f.subject.id) for f in outcome.findings] == [("constraint_dropped", "parent")]
    session = engine.look("s")
    assert session is not None and session.tree is not None
    parent = session.tree.generations[max(session.tree.generations)]
    assert 1 in Coverage([parent]) and 4 not in Coverage([parent])


def _hole(seq: int) -> Any:
    return Hole(session_id="s", seq=seq), 0, None
