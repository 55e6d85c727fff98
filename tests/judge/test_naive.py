"""The naive judge against the cases, against verdicts worked out by hand, and the sessions it is used with."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .naive import REMEMBERED, RULES, Unreadable, Verdict, judge, read
from .sessions import arrange, random_session
from .table import count, matters

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.jsonl"))
Row = dict[str, Any]


def test_there_are_cases() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    def expected(what: str) -> Any:
        return json.loads((CASES / f"{name}.{what}.json").read_bytes())

    verdict = judge([line for line in (CASES / f"{name}.jsonl").read_bytes().split(b"\n") if line.strip()])
    assert {(each.rule, each.subject_id) for each in verdict.findings} == {
        (rule, subject) for rule, subject in expected("expected")
    }
    halts = [
        {key: each[key] for key in wanted if key in each}
        for each, wanted in zip(verdict.halts, expected("halts"), strict=True)
    ]
    assert halts == expected("halts")
    assert verdict.sessions == expected("sessions")


# ---------------------------------------------------------------------------------------------------------
# Tiny histories, with verdicts worked out by hand


def row(kind: str, seq: int | None = None, **fields: Any) -> Row:
    return {"kind": kind, "session_id": "s", **({} if seq is None else {"seq": seq}), **fields}


def grant(edge: str, **fields: Any) -> Row:
    action, precondition = edge.split("<-")
    return row("authorization", action_id=action, precondition_id=precondition, **fields)


def summary(node: str, hi: int, lo: int = 1, generation: int = 1, **fields: Any) -> Row:
    span = {"frontier_lo": lo, "frontier_hi": hi}
    return row("summary", node_id=node, generation=generation, level=1, **span, **fields)


def checkpoint(name: str, node: str, hi: int, *edges: str, lo: int = 1, generation: int = 1, **fields: Any) -> Row:
    given = {
        "checkpoint_id": name,
        "node_id": node,
        "summary_generation": generation,
        "level": 1,
        "turn": 0,
        "frontier_lo": lo,
        "frontier_hi": hi,
        "asserted_edges": [edge.split("<-") for edge in edges],
    }
    return row("checkpoint", **{**given, **fields})


def history(*rows: Row) -> Verdict:
    """The rows at positions 1, 2, 3, ..."""
    return judge([json.dumps({**each, "seq": seq}).encode() for seq, each in enumerate(rows, 1)])


def arriving(*rows: Row, max_waiting: int | None = None, **how: Any) -> Verdict:
    """The rows as they are, in this order of arrival."""
    return judge([json.dumps(each).encode() for each in rows], max_waiting, **how)


def found(verdict: Verdict) -> list[tuple[str, str, int, str]]:
    return sorted((each.rule, each.subject_id, each.position, each.detail) for each in verdict.findings)


def halts(verdict: Verdict) -> list[tuple[int, str, list[str]]]:
    return [(each["position"], each["status"], each["reason"]) for each in verdict.halts]


TURN = row("message", text="turn")
REPLAY = row("reconcile", decision="replay")


def resume(name: str, **fields: Any) -> Row:
    return row("resume", checkpoint_id=name, **fields)


def test_an_edge_revoked_before_the_frontier() -> None:
    """One edge ends by name, one with all of its action; one is granted again; one ends behind the frontier."""
    verdict = history(
        grant("a<-p"),
        grant("a<-q"),
        grant("b<-p"),
        row("revocation", action_id="a", precondition_id="p"),
        row("revocation", action_id="b"),
        grant("b<-p"),
        row("revocation", action_id="a"),
        summary("n", hi=6),
        checkpoint("c", "n", 6, "a<-p", "a<-q", "b<-p"),
    )
    assert found(verdict) == [("edge_revoked", "c", 9, "a<-p"), ("stale_on_authorization", "c", 9, "")]
    assert verdict.sessions[0]["status"] == "corrupt"


def test_an_edge_from_before_the_range() -> None:
    """Of two edges granted before the range, one is granted in it again. Left out is one from inside."""
    verdict = history(
        grant("a<-p"),
        grant("b<-p"),
        grant("b<-p"),
        grant("c<-p"),
        summary("n", lo=3, hi=4),
        checkpoint("c", "n", 4, "a<-p", "b<-p", lo=3),
    )
    assert found(verdict) == [("edge_dropped", "c", 6, "c<-p"), ("edge_out_of_range", "c", 6, "a<-p")]


def test_what_cannot_be_verified() -> None:
    """No edges given; an authorization that is not explicit, inside the range or outside of it."""
    verdict = history(
        row("authorization", action_id="a"),
        TURN,
        summary("n", hi=2),
        checkpoint("c1", "n", 2, asserted_edges=None),
        checkpoint("c2", "n", 2),
        checkpoint("c3", "n", 2, lo=2),  # ... but its summary reaches outside
    )
    assert found(verdict) == [
        ("frontier_unverified", "c1", 4, ""),
        ("frontier_unverified", "c2", 5, ""),
        ("partial_summary", "c3", 6, ""),
    ]


def test_a_checkpoint_written_twice() -> None:
    """The first one stands and is corrupt; the second one is judged by no other rule."""
    verdict = history(
        TURN, summary("n", hi=1), checkpoint("c", "n", 1), checkpoint("c", "nowhere", 99, "a<-b"), resume("c")
    )
    assert found(verdict) == [("checkpoint_rewritten", "c", 4, ""), ("resumed_unverified", "c", 5, "")]
    assert halts(verdict) == [(4, "halt", ["checkpoint_rewritten"]), (5, "halt", ["resumed_unverified"])]


def test_a_generation_that_goes_back() -> None:
    """The attempt is found, and does not count against the generation that stands."""
    verdict = history(
        TURN,
        summary("n", hi=1, generation=2),
        summary("n", hi=99, generation=2, referents=["ghost"]),
        checkpoint("c", "n", 1, generation=2),
        resume("c"),
    )
    assert found(verdict) == [("generation_regressed", "n", 3, "2")]
    assert halts(verdict) == [(3, "halt", ["generation_regressed"]), (4, "clear", ["generation_regressed"])]
    assert verdict.sessions == [{"session_id": "s", "status": "verified", "checkpoint_in_force": "c", "open_halts": 0}]


def test_budgets_and_reranking() -> None:
    verdict = history(
        row("fact", fact_id="f", anchor="x"),
        summary("n1", hi=1, facts={"f": "x"}, input_tokens=10, input_tokens_read=9, instruction="Please PRIORITIZE"),
        summary("n2", hi=1, facts={"f": "x"}, token_budget=10, tokens_emitted=11, instruction="priority"),
        summary("n3", hi=1, facts={"f": "x"}, token_budget=10, tokens_emitted=10, input_tokens=3),
        summary("n4", hi=1, facts={"f": "x"}, input_tokens=0, tokens_emitted=0),  # of nothing
        summary("n5", hi=1, facts={"f": "x"}, input_tokens=0, input_tokens_read=0),
        summary("n6", hi=1, facts={"f": "x"}, input_tokens=1, input_tokens_read=1, tokens_emitted=0),
    )
    assert found(verdict) == [
        ("budget_exceeded", "n2", 3, "1"),
        ("budget_open", "n1", 2, "1"),
        ("budget_open", "n4", 5, "1"),
        ("budget_open", "n5", 6, "1"),
        ("reranking_without_floor", "n1", 2, "1"),
    ]
    assert verdict.halts == []


def test_a_fact_without_a_floor_to_keep_may_be_left_out() -> None:
    """Only with a manifest, and only where the floor is declared as 0."""
    facts = [row("fact", fact_id=name, anchor="x", floor_tokens=floor) for name, floor in (("f", 0), ("g", None))]
    verdict = history(*facts, summary("n1", hi=2, dropped=["f", "g"]), summary("n2", hi=2))
    assert found(verdict) == [
        ("fact_dropped", "n1", 3, "g"),
        ("fact_dropped", "n2", 4, "f"),
        ("fact_dropped", "n2", 4, "g"),
    ]


def test_the_last_record_of_a_fact_counts() -> None:
    """Declared again behind the frontier, the earlier record counts; declared again in the range, the later
    one, with its floor and its anchor. What is declared before a range is not asked of it."""
    verdict = history(
        row("fact", fact_id="f", anchor="x", floor_tokens=3),
        row("fact", fact_id="f", anchor="y", floor_tokens=1),
        summary("n1", hi=1, facts={"f": "x"}),
        summary("n2", hi=2, facts={"f": "y"}),
        summary("n3", lo=3, hi=3),
    )
    assert found(verdict) == [("fact_below_floor", "n1", 3, "f")]


def test_a_retired_constraint_stated_again() -> None:
    stated = row("constraint", constraint_id="k", polarity="negative")
    verdict = history(
        stated,
        row("constraint", constraint_id="k", retired=True),
        stated,
        summary("n1", hi=2),
        summary("n2", hi=3, lo=2),
        summary("n3", hi=1, root=True),
    )
    assert found(verdict) == [("constraint_dropped", "n2", 5, "k"), ("constraint_dropped", "n3", 6, "k")]


def test_a_probe_replaces_what_was_self_reported() -> None:
    """0.9 would do for the narrative floor, 10/20 does not. A probe that came later says nothing here."""
    retention = {"per_node_recall": 0.9, "source": "self_reported", "depth": 1, "workload": "narrative"}
    verdict = history(
        row("probe", node_id="n1", probes=20, recalled=20),
        row("probe", node_id="n1", probes=20, recalled=10),
        summary("n1", hi=2, retention=retention),
        summary("n2", hi=2, retention=retention),
        row("probe", node_id="n2", probes=20, recalled=10),
    )
    assert found(verdict) == [("recall_self_reported", "n2", 4, "1"), ("retention_below_floor", "n1", 3, "1")]
    assert halts(verdict) == [(3, "halt", ["retention_below_floor"])]


def test_reclaiming_below_a_probed_ancestor() -> None:
    """The root's probe covers the leaf two levels below, until the root is summarized again. The latest
    probe counts, not the best one. An unknown node is none."""
    probe = row("probe", node_id="root", probes=20, recalled=17)
    verdict = history(
        TURN,
        summary("leaf", hi=1),
        summary("middle", hi=1, children=["leaf"]),
        summary("root", hi=1, children=["middle", "root"]),
        probe,
        row("gc", node_ids=["leaf", "nowhere", "leaf"]),
        summary("root", hi=1, children=["middle"], generation=2),
        row("gc", node_ids=["leaf"]),
        row("probe", node_id="leaf", probes=20, recalled=20),
        row("probe", node_id="leaf", probes=20, recalled=16),
        row("gc", node_ids=["leaf"]),
    )
    rules = [each for each in found(verdict) if each[0] == "gc_before_probe"]
    assert rules == [("gc_before_probe", "leaf", 8, "1"), ("gc_before_probe", "leaf", 11, "1")]


def test_a_resume_brings_a_generation_into_use() -> None:
    """n1 rests on r, which is removed while another checkpoint is in force: found at the resume, where the
    checkpoint is no longer verified either."""
    verdict = history(
        row("referent_added", referent_id="r"),
        summary("n1", hi=1, referents=["r"]),
        checkpoint("c1", "n1", 1),
        summary("n2", hi=1),
        checkpoint("c2", "n2", 1),
        row("referent_removed", referent_id="r"),
        resume("c1"),
    )
    assert found(verdict) == [("referent_orphaned", "n1", 7, "r"), ("resumed_unverified", "c1", 7, "")]
    assert verdict.halts[-1]["reexpand_from"] is None  # c2 is verified, but not of a lower level
    assert verdict.sessions[0]["checkpoint_in_force"] == "c1"


def test_nobody_misses_a_referent_of_what_was_reclaimed() -> None:
    probe = row("probe", node_id="n", probes=1, recalled=1)
    rows = [row("referent_added", referent_id="r"), summary("n", hi=1, referents=["r"]), probe]
    removed = row("referent_removed", referent_id="r")
    assert found(history(*rows, row("gc", node_ids=["n"]), removed)) == []
    assert found(history(*rows, removed)) == [("referent_orphaned", "n", 4, "r")]
    # another store still holds it; a tool's result is such a store's
    held = row("tool_result", call_key="k", handle="h", referents=["r"])
    assert found(history(*rows, row("referent_added", referent_id="r", store="durable"), removed)) == []
    assert found(history(*rows, removed | {"store": "durable"}, held)) == []


def test_a_safe_resume_clears_what_is_about_checkpoints() -> None:
    verdict = history(
        TURN,
        summary("n", hi=1),
        checkpoint("c1", "n", 1, verbatim_refs=["x"]),
        checkpoint("c2", "n", 1, "a<-p", level=2),
        resume("c2"),
        row("action", action_id="a", irreversible=True),
        resume("c1", deps=["x"]),
        row("action", action_id="a"),
    )
    assert halts(verdict) == [
        (4, "halt", ["edge_hallucinated"]),
        (5, "halt", ["resumed_unverified"]),
        (6, "halt", ["action_on_degraded", "action_unauthorized"]),
        (7, "clear", ["edge_hallucinated"]),
        (7, "clear", ["resumed_unverified"]),
    ]
    assert [each["open_halts"] for each in verdict.halts] == [1, 2, 3, 2, 1]
    assert [(each["reexpand_from"], each["replay_from"]) for each in verdict.halts[:3]] == [("c1", 2)] * 3
    assert verdict.sessions[0] == {
        "session_id": "s",
        "status": "degraded",
        "checkpoint_in_force": "c1",
        "open_halts": 1,
    }


def test_what_a_reconcile_clears() -> None:
    """What can be reconciled, but not the edges; and from there on nothing is awaited."""
    verdict = history(
        TURN,
        summary("n", hi=1),
        checkpoint("c", "n", 1, "a<-p", generation=2),
        resume("c", deps=["x"]),
        resume("unknown"),
        REPLAY,
        summary("m", hi=1),
    )
    assert halts(verdict) == [
        (3, "halt", ["edge_hallucinated", "generation_mismatch"]),
        (4, "halt", ["dependency_missing", "resumed_unverified"]),
        (5, "halt", ["resumed_unverified"]),
        (6, "clear", ["dependency_missing", "resumed_unverified"]),
        (6, "clear", ["resumed_unverified"]),
    ]
    assert [each["checkpoint_id"] for each in verdict.halts] == ["c", "c", "unknown", "c", "unknown"]


def test_provenance_is_counted_from_the_reconcile_before_the_resume() -> None:
    def call(handle: str) -> Row:
        return row("tool_result", call_key="k", handle=handle)

    verdict = history(
        TURN,
        summary("n", hi=1),
        checkpoint("c", "n", 1),
        call("h1"),
        resume("c"),
        call("h2"),  # found
        call("h2"),  # once
        call("h3"),  # another handle
        resume("c"),
        call("h4"),  # not judged: the call had returned three handles
        REPLAY,
        call("h5"),
        resume("c"),
        call("h1"),  # found: since the reconcile, it was h5
        call("h5"),
        REPLAY,
        call("h6"),
    )
    assert found(verdict) == [("provenance_divergence", "k", p, h) for p, h in ((6, "h2"), (8, "h3"), (14, "h1"))]
    assert [each["status"] for each in verdict.halts] == ["halt", "halt", "clear", "clear", "halt", "clear"]


def test_a_root_that_drops_a_constraint_is_corrupt_and_its_parent_only_lossy() -> None:
    rows = [
        row("constraint", constraint_id="k", polarity="negative"),
        summary("n", hi=1, root=True),
        checkpoint("c1", "n", 1),
        resume("c1"),
        REPLAY,
        summary("top", hi=1, children=["n"]),
        checkpoint("c2", "top", 1),
    ]
    verdict = history(*rows)
    assert [each.subject_id for each in verdict.findings if each.rule == "constraint_dropped"] == ["n"]
    assert verdict.sessions[0]["status"] == "lossy"
    assert history(*rows[:5]).sessions[0]["status"] == "corrupt"
    assert history(*rows[:2]).sessions[0]["status"] == "degraded"  # a halt is open
    assert history(*rows[:1]).sessions[0]["status"] == "uncompacted"


# Arrival


def test_duplicates_conflicts_and_what_comes_too_late() -> None:
    first = grant("a<-p", seq=1)
    verdict = arriving(
        grant("a<-q", seq=3),
        {**grant("a<-q", seq=3), "tenant": None, "agent": "", "ts": "never", "as_of_seq": 9},  # the same
        grant("a<-forged", seq=3),  # a conflict, once the log gets there
        {**first, "tenant": 5},  # cannot be read, and takes position 1
        first,  # late
        {**first, "seq": 2},
        grant("a<-other", seq=3),  # still the one conflict
    )
    assert found(verdict) == [("log_conflict", "s", 3, ""), ("log_gap", "s", 1, "")]
    assert (verdict.dead, verdict.duplicates, verdict.late) == (1, 1, 2)


def test_a_gap_is_given_up_when_too_many_wait() -> None:
    rows = [{**TURN, "seq": seq} for seq in (1, 4, 5, 6, 2)]
    assert found(arriving(*rows, max_waiting=2)) == [("log_gap", "s", 2, "3")]
    assert arriving(*rows, max_waiting=2).late == 1
    assert found(arriving(*rows, max_waiting=3)) == [("log_gap", "s", 3, "")]
    assert found(arriving(*rows)) == [("log_gap", "s", 3, "")]


def test_missing_positions_and_edges() -> None:
    """Position 1 is missing. Whether p was granted cannot be told; the range of c2 is whole."""
    rows = [grant("b<-q", seq=2), summary("n", lo=2, hi=2) | {"seq": 3}]
    verdict = arriving(*rows, checkpoint("c1", "n", 2, "a<-p", "b<-q", lo=2) | {"seq": 4}, midstream="judge")
    assert found(verdict) == [("frontier_unverified", "c1", 4, ""), ("log_gap", "s", 1, "")]
    verdict = arriving(*rows, checkpoint("c2", "n", 2, "b<-q", lo=2) | {"seq": 4}, midstream="judge")
    assert found(verdict) == [("log_gap", "s", 1, "")]
    assert verdict.sessions[0]["status"] == "verified"


def test_records_without_seq() -> None:
    """Each is judged when the log is there, in the order of as_of_seq; one never gets there."""
    verdict = arriving(
        checkpoint("c2", "n", 3, as_of_seq=2),  # claims more than it was made from
        checkpoint("c1", "n", 2, "a<-p"),
        summary("n", hi=1),
        grant("a<-p", seq=1),
        summary("n", hi=1),  # the same again
        {**TURN, "seq": 2},
        summary("m", hi=5),
        resume("c1"),  # no position of its own: judged on arrival
        {**TURN, "seq": 3},
    )
    assert found(verdict) == [
        ("frontier_ahead_of_log", "c2", 2, ""),
        ("log_gap", "s", 3, ""),
    ]
    assert (verdict.duplicates, verdict.sessions[0]["checkpoint_in_force"]) == (1, "c1")


def test_a_record_without_seq_past_the_bound_counts_as_partial() -> None:
    verdict = arriving({**TURN, "seq": 1}, summary("n", hi=4), checkpoint("c", "n", 4, "a<-p"))
    assert found(verdict) == [
        ("frontier_unverified", "c", 1, ""),
        ("log_gap", "s", 1, ""),
        ("log_gap", "s", 1, ""),
        ("partial_summary", "c", 1, ""),
    ]
    assert verdict.sessions[0]["status"] == "degraded"


# Version 1.1


def whole(name: str, hi: int, *edges: str, lo: int = 1, **fields: Any) -> list[Row]:
    """A summary of its own, and a checkpoint on it: nothing is wrong with them."""
    return [summary(f"of-{name}", hi=hi, lo=lo), checkpoint(name, f"of-{name}", hi, *edges, lo=lo, **fields)]


def at(seq: int, *rows: Row) -> list[Row]:
    """The rows at this position and the following ones."""
    return [{**each, "seq": position} for position, each in enumerate(rows, seq)]


def status(verdict: Verdict) -> str:
    (session,) = verdict.sessions
    return str(session["status"])


ACT = row("action", action_id="a", irreversible=True)
REVOKED = row("revocation", action_id="a")


def test_a_run_is_one_gap_however_long() -> None:
    """What has no seq is judged where it was made, with the whole run missing. An unreadable record makes a gap of
    its own."""
    verdict = arriving(
        *at(1, TURN),
        *at(2**40, row("action", action_id=7), TURN),
        checkpoint("c", "n", 5, as_of_seq=7),
        summary("n", hi=5, as_of_seq=6),
    )
    last = 2**40 - 1
    assert found(verdict) == [
        ("frontier_unverified", "c", 7, ""),
        ("log_gap", "s", 2, str(last)),
        ("log_gap", "s", 2**40, ""),
    ]
    assert (verdict.dead, status(verdict)) == (1, "unverified")


def test_a_gap_after_the_newest_checkpoint_is_found_at_its_first_position() -> None:
    verdict = arriving(*at(1, TURN, *whole("c", 1)), *at(9, TURN))
    assert found(verdict) == [("frontier_unverified", "c", 4, ""), ("log_gap", "s", 4, "8")]


def test_a_revocation_that_lost_its_place_is_not_annulled() -> None:
    """A checkpoint over the contested position does not clear the halt; one that lies behind it does."""
    turns = at(1, grant("a<-p"), TURN, {**TURN, "text": "other"})
    rows = [*turns, *at(3, REVOKED), *at(4, *whole("over", 3, "a<-p"))]
    verdict = arriving(*rows)
    assert found(verdict) == [("frontier_unverified", "over", 5, ""), ("log_conflict", "s", 3, "")]
    assert halts(verdict) == [(3, "halt", ["log_conflict"])]
    verdict = arriving(*rows, *at(6, TURN, *whole("behind", 6, lo=4)))
    assert halts(verdict) == [(3, "halt", ["log_conflict"]), (8, "clear", ["log_conflict"])]
    assert status(verdict) == "verified"


def test_what_comes_for_a_contested_position() -> None:
    """While it waits, its first content again is a duplicate; once it is found, everything is late."""
    first, other = {**TURN, "seq": 2}, {**TURN, "seq": 2, "text": "other"}
    waiting = arriving(first, other, first, other, *at(1, TURN))
    assert (found(waiting), waiting.duplicates, waiting.late) == ([("log_conflict", "s", 2, "")], 1, 0)
    applied = arriving(*at(1, TURN), first, other, first, other)
    assert (found(applied), applied.duplicates, applied.late) == ([("log_conflict", "s", 2, "")], 0, 2)


def test_a_conflict_at_an_old_position_and_the_newest_checkpoint() -> None:
    """Found at the conflict's position; what it does to the checkpoint, where the log stands. What lies before
    the range does nothing to it."""
    rows = at(1, TURN, TURN, TURN, *whole("c", 2, lo=2), TURN)
    for contested, unverified in ((1, False), (2, True), (3, True), (5, True), (6, True)):
        verdict = arriving(*rows, {**REVOKED, "seq": contested}, resume("c", seq=7))
        expected = [("log_conflict", "s", contested, "")]
        if unverified:
            expected += [("frontier_unverified", "c", 6, ""), ("resumed_unverified", "c", 7, "")]
        assert found(verdict) == sorted(expected), contested
        assert verdict.halts[0]["position"] == contested
        assert verdict.halts[0]["reexpand_from"] == (None if unverified else "c")


def test_a_conflict_under_an_older_checkpoint() -> None:
    """It is not the newest, so nothing is found about it; but it is not verified any more."""
    rows = at(1, grant("a<-p"), *whole("old", 1, "a<-p"), TURN, *whole("new", 4, lo=4))
    assert found(arriving(*rows, *at(7, resume("old")))) == []
    verdict = arriving(*rows, *at(1, REVOKED), *at(7, resume("old")))
    assert found(verdict) == [("log_conflict", "s", 1, ""), ("resumed_unverified", "old", 7, "")]


def test_what_is_no_longer_remembered_is_no_duplicate() -> None:
    """An emitter that has lost its journal begins at 1 again: one conflict a position, and then it is late."""
    turns = at(1, *[TURN] * 6)
    verdict = arriving(*turns, turns[1], turns[2], turns[1], remembered=4)
    assert (found(verdict), verdict.duplicates, verdict.late) == ([("log_conflict", "s", 2, "")], 1, 1)
    verdict = arriving(*turns, turns[1], turns[2])
    assert (found(verdict), verdict.duplicates) == ([], 2)
    many = at(1, *[TURN] * (REMEMBERED + 1))
    assert found(arriving(*many, many[1])) == []
    assert found(arriving(*many, many[0])) == [("log_conflict", "s", 1, "")]
    leap = [*at(1, TURN, TURN), *at(REMEMBERED + 1, TURN)]  # positions count, whether or not they came
    assert found(arriving(*leap, leap[1], max_waiting=0)) == [("log_gap", "s", 3, str(REMEMBERED))]
    assert ("log_conflict", "s", 1, "") in found(arriving(*leap, leap[0], max_waiting=0))


def test_another_tenant_is_refused() -> None:
    """Its position is missing, whether it came before or after the one who owns the session was known."""
    rival = grant("a<-p", tenant="rival", seq=3)
    rows = at(1, TURN, {**TURN, "tenant": "acme"})
    rest = at(4, {**ACT, "tenant": "acme"})
    expected = [("action_unauthorized", "a", 4, ""), ("log_gap", "s", 3, "")]
    for order in ([*rows, rival, *rest], [rival, *rest, *rows], [rival, *rows, *rest]):
        verdict = arriving(*order)
        assert (found(verdict), verdict.dead, verdict.late) == (expected, 1, 0)
    again = arriving(*rows, rival, rival, grant("a<-p", seq=3, tenant="acme"), *rest)
    assert (found(again), again.dead, again.late) == (expected, 2, 1)


def test_another_tenant_cannot_contest_a_position() -> None:
    rows = at(1, {**TURN, "tenant": "acme"}, TURN)
    verdict = arriving(*rows, {**REVOKED, "seq": 2, "tenant": "rival"}, *at(4, TURN), {**TURN, "seq": 4, "tenant": "x"})
    assert (found(verdict), verdict.dead) == ([("log_gap", "s", 3, "")], 2)


def test_a_position_contested_while_it_waits() -> None:
    """What becomes of it is what would if the others had come when the log has got there: another tenant is
    refused, and neither hides another conflict nor says whose the session is."""
    first, rival = {**TURN, "seq": 2}, {**REVOKED, "seq": 2, "tenant": "rival"}
    acme = {**TURN, "tenant": "acme"}
    verdict = arriving(first, rival, *at(1, acme))
    assert (found(verdict), verdict.dead) == ([], 1)
    verdict = arriving(first, rival, {**REVOKED, "seq": 2}, *at(1, acme))
    assert (found(verdict), verdict.dead) == ([("log_conflict", "s", 2, "")], 1)
    verdict = arriving(first, rival, *at(1, TURN), *at(3, acme))
    assert (found(verdict), verdict.dead) == ([("log_conflict", "s", 2, "")], 0)
    verdict = arriving(rival, first, *at(1, acme))
    assert (found(verdict), verdict.dead) == ([("log_gap", "s", 2, "")], 1)


def test_tenants_without_seq() -> None:
    """Whoever has no place in the log does not say whose the session is, and may not be another."""
    claim = row("reconcile", decision="replay", tenant="rival")
    later = row("reconcile", decision="replay", tenant="rival", as_of_seq=2)
    verdict = arriving(claim, later, *at(1, {**TURN, "tenant": "acme"}, TURN), {**claim, "note": 1})
    assert (found(verdict), verdict.dead) == ([], 2)


def test_joined_midstream() -> None:
    """By default it claims nothing, and what comes does nothing; else it is a gap like any other."""
    rows = [
        *at(5, ACT, row("action", action_id=7), TURN),
        {**TURN, "seq": 7, "text": "other"},
        checkpoint("c", "n", 7, "a<-p"),
        *at(9, TURN),
        {**TURN, "seq": 2},
        resume("c", as_of_seq=20),
    ]
    verdict = arriving(*rows, max_waiting=0)
    assert found(verdict) == [("session_joined", "s", 5, "")]
    assert (verdict.halts, status(verdict)) == ([], "unjudged")
    assert (verdict.dead, verdict.duplicates, verdict.late) == (1, 0, 2)
    assert arriving(*at(5, TURN, TURN), *at(5, TURN), max_waiting=0).late == 1  # the same, and still no duplicate
    verdict = arriving(*rows, max_waiting=0, midstream="judge")
    assert {rule for rule, *_ in found(verdict)} >= {"log_gap", "log_conflict", "action_unauthorized"}
    assert ("log_gap", "s", 1, "4") in found(verdict) and status(verdict) == "degraded"


def test_what_is_not_joined_midstream() -> None:
    """The first position cannot be read; something was judged before; there is no run at all."""
    unreadable = row("action", 1, action_id=7)
    gap = [("log_gap", "s", 1, ""), ("log_gap", "s", 2, "4")]
    assert found(arriving(unreadable, *at(5, TURN))) == gap
    assert found(arriving(*at(5, TURN), unreadable)) == gap
    assert found(arriving(row("reconcile", decision="replay"), *at(5, TURN))) == [("log_gap", "s", 1, "4")]
    assert found(arriving(row("reconcile", decision="replay", as_of_seq=4))) == [("log_gap", "s", 0, "")]


STATED = row("baseline", edges=[["a", "p"], ["a", "q"]], live=["r"], durable=["d"], negative_constraints=["k"])


def test_a_baseline_where_the_session_was_unjudged() -> None:
    """It states what holds: edges, referents and constraints, and is where the log is replayed from."""
    begun = at(40, ACT, TURN, STATED, {**ACT, "action_id": "b"})
    verdict = arriving(*begun, *at(44, summary("n", hi=43, referents=["r", "d", "gone"], root=True)))
    assert found(verdict) == [
        ("action_unauthorized", "b", 43, ""),
        ("constraint_dropped", "n", 44, "k"),
        ("referent_orphaned", "n", 44, "gone"),
        ("session_joined", "s", 40, ""),
    ]
    assert [each["replay_from"] for each in verdict.halts] == [42, 42]
    verdict = arriving(*begun, *at(44, ACT, *whole("c", 43, "a<-p")))
    assert ("edge_dropped", "c", 46, "a<-q") in found(verdict)
    assert status(arriving(*begun[:3], *at(43, *whole("c", 42, "a<-p", "a<-q")))) == "lossy"  # not carrying k


def test_ranges_and_a_baseline() -> None:
    """Of a range that ends before it everything is missing; of others nothing."""
    begun = at(40, TURN, TURN, row("baseline", edges=[["a", "p"]]))
    verdict = arriving(*begun, *at(43, *whole("c", 41, "a<-q", lo=40), resume("c")))
    assert found(verdict) == [
        ("frontier_unverified", "c", 44, ""),
        ("resumed_unverified", "c", 45, ""),
        ("session_joined", "s", 40, ""),
        ("stale_on_authorization", "c", 44, ""),
    ]
    verdict = arriving(*begun, *at(43, *whole("c", 42, "a<-p"), resume("c")))
    assert (found(verdict), status(verdict)) == ([("session_joined", "s", 40, "")], "verified")
    verdict = arriving(*begun, *at(43, *whole("c", 42, "a<-q")))
    assert found(verdict)[:2] == [("edge_dropped", "c", 44, "a<-p"), ("edge_hallucinated", "c", 44, "a<-q")]
    verdict = arriving(*begun, *at(43, TURN, *whole("c", 43, "a<-p", lo=43)))
    assert found(verdict)[0] == ("edge_out_of_range", "c", 45, "a<-p")


def test_conflicts_and_a_baseline() -> None:
    """About a position before it there is none, whether it was found before or after. About its own there is."""
    other = {**REVOKED, "seq": 40}
    begun = at(40, TURN, TURN, STATED, TURN)
    joined = ("session_joined", "s", 40, "")
    for rows in ([other, *begun], [*begun[:1], other, *begun[1:]], [*begun, other]):
        assert found(arriving(*rows, max_waiting=0)) == [joined], rows
        assert found(arriving(*rows)) == [joined], rows
    assert found(arriving(*begun, {**TURN, "seq": 3}, max_waiting=0)) == [joined]
    assert arriving(*begun, other, max_waiting=0).late == 1
    assert arriving(*begun, begun[0], max_waiting=0).late == 1
    assert arriving(*begun, begun[2], max_waiting=0).duplicates == 1
    for rows in ([*begun[:3], {**REVOKED, "seq": 42}, begun[3]], [*begun, {**REVOKED, "seq": 42}]):
        verdict = arriving(*rows, *at(44, *whole("c", 43, "a<-p", "a<-q")), max_waiting=0)
        assert {("log_conflict", "s", 42, ""), ("frontier_unverified", "c", 45, "")} <= {*found(verdict)}
        assert {each["replay_from"] for each in verdict.halts if each["status"] == "halt"} == {42}


def test_a_baseline_at_the_first_position_and_elsewhere() -> None:
    assert found(history(STATED, ACT)) == []
    assert found(history(TURN, STATED, ACT)) == [("action_unauthorized", "a", 3, "")]
    verdict = arriving(*at(5, TURN, STATED, REVOKED, STATED, ACT))
    assert found(verdict) == [("action_unauthorized", "a", 9, ""), ("session_joined", "s", 5, "")]
    verdict = arriving(*at(5, TURN, STATED, ACT), midstream="judge")
    assert found(verdict) == [("action_unauthorized", "a", 7, ""), ("log_gap", "s", 1, "4")]


def test_who_owns_a_session_is_known_before_it_is_judged() -> None:
    """Else another tenant could state what holds in it."""
    acme = {**TURN, "tenant": "acme"}
    verdict = arriving(*at(5, acme, {**STATED, "tenant": "rival"}, ACT), max_waiting=0)
    assert (found(verdict), verdict.dead, status(verdict)) == ([("session_joined", "s", 5, "")], 1, "unjudged")


def test_an_approval_for_so_many_actions() -> None:
    """The one whose newest grant came first is used first; a new grant starts anew; a harmless action uses none."""
    once, twice = grant("a<-p", uses=1), grant("a<-q", uses=2)
    harmless = row("action", action_id="a")
    verdict = history(twice, once, harmless, ACT, ACT, ACT, ACT, once, ACT, ACT)
    assert [(rule, position) for rule, _, position, _ in found(verdict)] == [
        ("action_unauthorized", 7),
        ("action_unauthorized", 10),
    ]
    assert [each.position for each in history(twice, ACT, twice, ACT, ACT, ACT).findings] == [6]
    rows = [once, ACT, *whole("c", 2, "a<-p")]
    assert ("edge_revoked", "c", 4, "a<-p") in found(history(*rows))
    verdict = history(grant("a<-q", uses=1), once, grant("a<-q", uses=1), ACT, *whole("c", 4, "a<-q"))
    assert found(verdict) == []  # p came first, and so is what was used; leaving it out is right
    assert found(history(grant("a<-q"), once, ACT, ACT, *whole("c", 4, "a<-q", "a<-p"))) == []  # q has no limit
    assert found(history(once, grant("a<-p"), ACT, ACT, *whole("c", 4, "a<-p"))) == []  # nor has p, from then on


def test_the_last_use_is_like_a_revocation() -> None:
    """Also for a checkpoint that does not cover it, and for an agent that has replayed it or not."""
    rows = [grant("a<-p", uses=2), *whole("c", 1, "a<-p"), ACT, ACT]
    assert found(history(*rows[:4], resume("c"))) == []
    stale = ("stale_on_authorization", "c", 5, "")
    assert found(history(*rows, resume("c"))) == [("resumed_unverified", "c", 6, ""), stale]
    assert found(history(*rows, resume("c", replayed_to=4))) == [("resumed_unverified", "c", 6, ""), stale]
    assert found(history(*rows, resume("c", replayed_to=5))) == [stale]


def test_a_baseline_grants_without_limit() -> None:
    assert found(history(STATED, grant("a<-z", uses=1), ACT, ACT, ACT)) == []


def test_a_resume_that_replayed_the_log() -> None:
    """All that changed was replayed, and no more than there is; nothing else is wrong with the checkpoint."""
    rows = [grant("a<-p"), *whole("c", 1, "a<-p"), REVOKED, TURN]

    def unsafe(*more: Row, replayed_to: int | None, **fields: Any) -> bool:
        verdict = history(*rows, *more, resume("c", replayed_to=replayed_to, **fields))
        return any(each.rule == "resumed_unverified" for each in verdict.findings)

    assert unsafe(replayed_to=None) and unsafe(replayed_to=3) and unsafe(replayed_to=6)
    assert not unsafe(replayed_to=4) and not unsafe(replayed_to=5)
    assert unsafe(grant("b<-q"), replayed_to=5)
    assert unsafe(row("authorization"), replayed_to=5)  # not explicit: still one
    assert unsafe(summary("of-c", hi=1, generation=2), replayed_to=6)
    verdict = arriving(*at(1, *rows), resume("c", replayed_to=5))  # without seq, at 5: not before itself
    assert ("resumed_unverified", "c", 5, "") in found(verdict)
    verdict = history(*rows, resume("c"), resume("c", replayed_to=5), summary("m", hi=1))
    assert halts(verdict) == [(6, "halt", ["resumed_unverified"]), (7, "clear", ["resumed_unverified"])]


def test_what_is_inferred_is_a_warning() -> None:
    """It is found all the same, opens no halt, and harms no checkpoint."""
    guessed = [
        row("constraint", constraint_id="k", polarity="negative", inferred=True),
        row("fact", fact_id="f", anchor="x", floor_tokens=2, inferred=True),
    ]
    verdict = history(*guessed, summary("n", hi=2, facts={"f": "y"}, root=True), checkpoint("c", "n", 2), resume("c"))
    assert {(each.rule, each.severity) for each in verdict.findings} == {
        (rule, "warning") for rule in ("constraint_dropped", "fact_below_floor", "anchor_lost")
    }
    assert (verdict.halts, status(verdict)) == ([], "verified")
    stated = {**guessed[0], "inferred": None}
    for rows in ([guessed[0], stated], [stated]):  # the last record counts
        verdict = history(*rows, summary("n", hi=len(rows), root=True))
        assert [each.severity for each in verdict.findings] == ["critical"] and verdict.halts


def test_an_inferred_checkpoint() -> None:
    """Nobody stated its edges, so they are not judged; but nothing is verified by it."""
    rows = [grant("a<-p"), *whole("c", 1, "b<-q", inferred=True)]
    verdict = history(*rows)
    assert (found(verdict), status(verdict)) == ([], "unverified")
    assert found(history(*rows, resume("c"))) == [("resumed_unverified", "c", 4, "")]
    assert found(arriving(*at(1, *rows), *at(5, TURN))) == [("log_gap", "s", 4, "")]
    assert found(history(TURN, *whole("c", 9, inferred=True)))[0] == ("frontier_ahead_of_log", "c", 3, "")


def test_provenance_that_is_inferred() -> None:
    def severities(*calls: tuple[str, bool]) -> list[str]:
        rows = [row("tool_result", call_key="k", handle=handle, inferred=inferred) for handle, inferred in calls]
        verdict = history(TURN, *whole("c", 1), *rows[:-1], resume("c"), rows[-1])
        assert bool(verdict.halts) == any(each.severity == "critical" for each in verdict.findings)
        return [each.severity for each in verdict.findings]

    assert severities(("h", False), ("i", False)) == ["critical"]
    assert severities(("h", False), ("i", True)) == ["warning"]
    assert severities(("h", True), ("h", True), ("i", False)) == ["warning"]
    assert severities(("h", True), ("h", False), ("i", False)) == ["critical"]


def test_a_parent_answers_for_what_its_children_carried() -> None:
    """Its range is theirs as well, also of children that nobody names any more, up to its own end."""
    declared = [
        row("constraint", constraint_id="k", polarity="negative"),
        row("fact", fact_id="f", anchor="x"),
        row("fact", fact_id="later", anchor="z"),
    ]
    child = summary("n1", hi=2, negative_constraints=["k"], facts={"f": "x"})
    middle = summary("n2", lo=4, hi=4, children=["n1"], negative_constraints=["k"], facts={"f": "x"})
    top = summary("n3", lo=5, hi=5, children=["n2"], instruction="focus on it")
    verdict = history(*declared, child, middle, top)
    assert found(verdict) == [
        ("constraint_dropped", "n3", 6, "k"),
        ("fact_dropped", "n3", 6, "f"),
        ("reranking_without_floor", "n3", 6, "1"),
    ]
    # Blame: the loss is the middle's, as it answers for what the first one carried.
    verdict = history(*declared, child, {**middle, "negative_constraints": [], "facts": {}}, top)
    assert [each for each in found(verdict) if each[0] != "reranking_without_floor"] == [
        ("constraint_dropped", "n2", 5, "k"),
        ("fact_dropped", "n2", 5, "f"),
    ]
    # What its child covers behind its own end is none of its business.
    verdict = history(TURN, *declared, summary("n1", lo=2, hi=3, negative_constraints=["k"], facts={"f": "x"}))
    assert found(verdict) == []
    verdict = history(
        TURN,
        *declared,
        summary("n1", lo=2, hi=3, negative_constraints=["k"], facts={"f": "x"}),
        summary("n2", hi=1, children=["n1"]),
        summary("n3", lo=5, hi=5, children=["n2"]),  # but for the next one it does not answer
    )
    assert found(verdict) == [("constraint_dropped", "n3", 7, "k"), ("fact_dropped", "n3", 7, "f")]


def test_what_has_no_place_in_the_log_does_not_clear_every_halt() -> None:
    """Not that somebody acted without permission, nor that the log contradicts itself; a checkpoint with a place
    in it does."""
    rows = [TURN, *whole("c", 1), ACT, resume("unknown"), ACT, REPLAY]
    opened = [(4, "halt", ["action_unauthorized"]), (5, "halt", ["resumed_unverified"])]
    opened += [(6, "halt", ["action_on_degraded", "action_unauthorized"])]
    behind = [{**each, "note": 1} for each in whole("d", 6)]
    verdict = arriving(*at(1, *rows[:6]), REPLAY, *behind)
    assert halts(verdict) == [*opened, (6, "clear", ["resumed_unverified"])]
    verdict = arriving(*at(1, *rows[:6]), *at(7, REPLAY), *at(8, *behind))
    assert {each["position"] for each in verdict.halts if each["status"] == "clear"} == {7, 9}
    assert verdict.sessions[0]["open_halts"] == 0
    contested = [*at(1, TURN), {**REVOKED, "seq": 1}, *at(2, TURN, TURN)]
    verdict = arriving(*contested, *whole("d", 3, lo=2))
    assert (verdict.sessions[0]["open_halts"], status(verdict)) == (1, "degraded")
    assert status(arriving(*contested, *at(4, *whole("d", 3, lo=2)))) == "verified"


GOOD_SUMMARY = summary("n", hi=1)
GOOD_CHECKPOINT = checkpoint("c", "n", 1)
RETENTION = {"per_node_recall": 1, "source": "probe", "depth": 1}


@pytest.mark.parametrize(
    "fields",
    [
        row("message"),
        row("message", 0),
        row("message", 2**61),
        row("message", seq=True),
        {**TURN, "seq": 1.0},
        {**TURN, "seq": "1"},
        {**TURN, "seq": 1, "session_id": ""},
        {**TURN, "seq": 1, "session_id": None},
        {**TURN, "seq": 1, "kind": None},
        {**TURN, "seq": 1, "kind": 3},
        {**TURN, "seq": 1, "tenant": 3},
        row("authorization", 1, action_id=7),
        row("authorization", 1, action_id="a", precondition_id="p", uses=0),
        row("authorization", 1, action_id="a", precondition_id="p", uses=True),
        row("baseline"),
        row("baseline", 1, edges=[["a"]]),
        row("baseline", 1, live="r"),
        row("baseline", 1, negative_constraints=[""]),
        row("constraint", 1, constraint_id="k", retired=True, inferred="yes"),
        row("resume", checkpoint_id="c", replayed_to=0),
        row("resume", checkpoint_id="c", replayed_to="1"),
        row("revocation", 1, action_id=""),
        row("action", 1, action_id="a", irreversible=1),
        row("referent_added", 1, referent_id="r", store="disk"),
        row("constraint", 1, constraint_id="k"),
        row("constraint", 1, constraint_id="k", retired=True, polarity="neutral"),
        row("fact", 1, fact_id="f", anchor=""),
        row("fact", 1, fact_id="f", anchor="x", floor_tokens=-1),
        row("tool_result", 1, call_key="k"),
        row("tool_result", 1, call_key="k", handle="h", referents=[None]),
        row("tool_result", 1, call_key="k", handle="h", referents=[""]),
        row("resume", deps=[]),
        row("reconcile", decision="ignore"),
        row("gc", node_ids="n"),
        row("probe", node_id="n", probes=0, recalled=0),
        row("probe", node_id="n", probes=1, recalled=2),
        row("probe", node_id="n", probes=1, recalled=1, as_of_seq=-1),
        {**GOOD_SUMMARY, "generation": 0},
        {**GOOD_SUMMARY, "frontier_lo": 2},
        {**GOOD_SUMMARY, "frontier_lo": 0},
        {**GOOD_SUMMARY, "level": None},
        {**GOOD_SUMMARY, "facts": {"f": 1}},
        {**GOOD_SUMMARY, "facts": ["f"]},
        {**GOOD_SUMMARY, "root": "yes"},
        {**GOOD_SUMMARY, "token_budget": 1.5},
        {**GOOD_SUMMARY, "retention": {}},
        {**GOOD_SUMMARY, "retention": {**RETENTION, "per_node_recall": 0}},
        {**GOOD_SUMMARY, "retention": {**RETENTION, "per_node_recall": True}},
        {**GOOD_SUMMARY, "retention": {**RETENTION, "depth": 0}},
        {**GOOD_SUMMARY, "retention": {**RETENTION, "source": "guess"}},
        {**GOOD_CHECKPOINT, "turn": None},
        {**GOOD_CHECKPOINT, "inferred": 1},
        {**GOOD_CHECKPOINT, "asserted_edges": [["a"]]},
        {**GOOD_CHECKPOINT, "asserted_edges": [["a", ""]]},
        {**GOOD_CHECKPOINT, "summary_generation": 0},
    ],
)
def test_not_valid(fields: Row) -> None:
    with pytest.raises(Unreadable):
        read(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"kind": "message", "session_id": "s", "seq": 1',
        b'{"kind": "message", "session_id": "s", "seq": 1, "x": NaN}',
        b'{"kind": "message", "session_id": "s", "seq": 1, "x": -Infinity}',
        b'{"kind": "message", "session_id": "s", "seq": 1e0}',
        b'{"kind": "message", "session_id": "\\ud800", "seq": 1}',
        b'{"kind": "message", "session_id": "s", "seq": 1, "x": [{"\\udc00": 1}]}',
        b'{"kind": "message", "session_id": "\xff", "seq": 1}',
    ],
)
def test_not_json(line: bytes) -> None:
    with pytest.raises(Unreadable) as error:
        read(line)
    assert error.value.place is None


@pytest.mark.parametrize(
    "fields",
    [
        row("anything at all", 1, referents=7, frontier_lo=9, frontier_hi=1),
        {**TURN, "seq": 2**61 - 1, "ts": 12, "tenant": "", "agent": None},
        row("authorization", 1, action_id="", precondition_id=None),
        row("constraint", 1, constraint_id="k", retired=True),
        row("fact", 1, fact_id="f", anchor=" ", floor_tokens=0, text=""),
        row("gc", node_ids=[]),
        row("baseline", 1),
        row("baseline", 1, edges=[], live=None, durable=["r"], negative_constraints=[]),
        row("resume", checkpoint_id="c", replayed_to=None),
        row("probe", node_id="n", probes=1, recalled=0),
        {**GOOD_SUMMARY, "facts": {}, "retention": RETENTION, "unknown": [None]},
        {**GOOD_CHECKPOINT, "asserted_edges": None, "turn": 0, "as_of_seq": 0},
    ],
)
def test_valid(fields: Row) -> None:
    assert read(json.dumps(fields).encode()).kind == fields["kind"]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        (b'"seq": 1, "x": 1, "x": 1', ("s", 1)),
        (b'"seq": 1, "x": [{"y": 1, "y": 2}]', ("s", 1)),
        (b'"seq": 1, "kind": "b"', ("s", 1)),
        (b'"seq": 1, "x": null, "x": 2', ("s", 1)),
        (b'"seq": 1, "seq": 1', None),
        (b'"seq": 1, "session_\\u0069d": "t"', None),
    ],
)
def test_a_key_that_is_there_twice(more: bytes, place: tuple[str, int] | None) -> None:
    with pytest.raises(Unreadable) as error:
        read(b'{"kind": "a", "session_id": "s", ' + more + b"}")
    assert error.value.place == place


# ---------------------------------------------------------------------------------------------------------
# The sessions


def test_sessions_follow_from_the_seed() -> None:
    def make(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        sessions = [random_session(rng, f"s{number}") for number in range(5)]
        return arrange(
            rng, sessions, shuffle=0.5, duplicates=0.2, drop=0.05, conflicts=0.1, unreadable=0.1, unsequenced=0.2
        )

    assert make(1) == make(1)
    assert make(1) != make(2)
    assert judge(make(1)) == judge(make(1))


def test_sessions_are_valid_and_contiguous() -> None:
    rng = random.Random(3)
    for number in range(100):
        rows = random_session(rng, f"s{number}")
        assert 5 <= len(rows) <= 60
        assert [each["seq"] for each in rows] == list(range(rows[0]["seq"], rows[0]["seq"] + len(rows)))
        for each in rows:
            read(json.dumps(each).encode())


def test_plain_arrival_is_the_order_of_the_log() -> None:
    rng = random.Random(4)
    rows = random_session(rng, "s")
    assert [json.loads(line) for line in arrange(rng, [rows])] == rows


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_arrival_does_not_matter(seed: int) -> None:
    """Shuffled and sent again, sessions are judged as they were written."""
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{number}") for number in range(4)]
    plain = judge([json.dumps(each).encode() for rows in sessions for each in rows])
    mixed = judge(arrange(rng, sessions, shuffle=0.6, duplicates=0.3))

    def by_session(verdict: Verdict, output: str) -> dict[str, list[Row]]:
        return {
            f"s{number}": [each for each in getattr(verdict, output) if each["session_id"] == f"s{number}"]
            for number in range(4)
        }

    assert Counter(plain.findings) == Counter(mixed.findings)
    assert by_session(plain, "halts") == by_session(mixed, "halts")
    assert by_session(plain, "sessions") == by_session(mixed, "sessions")
    assert mixed.duplicates and mixed.dead >= plain.dead


def test_sessions_meet_everything() -> None:
    """Every rule with a useful frequency, good checkpoints, each way to clear a halt; and the rest in what
    arrives damaged."""
    seen = count(1000)
    few = {rule: seen[f"rule {rule}"] for rule in RULES if seen[f"rule {rule}"] < 10}
    assert set(few) == {"log_conflict"}
    for status in ("verified", "stale", "lossy", "corrupt", "degraded", "uncompacted", "unjudged"):
        assert seen[f"status {status}"] >= 20, status
    for kind in ("checkpoint", "reconcile", "resume"):
        assert seen[f"halt cleared by a {kind}"] >= 10, kind
    assert seen["halt with reexpand_from"] >= 100
    assert seen["sessions without a finding"] >= 30


def test_what_sessions_say_matters() -> None:
    seen = matters(400)
    for name in ("uses", "replayed_to", "inferred", "tenant", "children", "baseline"):
        assert seen[f"changed by {name}"] >= 8, (name, seen)


def test_damaged_arrivals_meet_the_rest() -> None:
    rng = random.Random(0)
    seen: Counter[str] = Counter()
    for number in range(500):
        rows = random_session(rng, f"s{number}")
        lines = arrange(
            rng,
            [rows],
            shuffle=0.3,
            duplicates=0.1,
            drop=0.005,
            conflicts=0.02,
            unreadable=0.01,
            unsequenced=rng.choice((0.0, 0.1)),
            runs=0.003,
            leaps=0.05,
            nowhere=rng.choice((0.0, 0.1)),
        )
        max_waiting = rng.choice((None, 4, 8))
        verdict = judge(lines, max_waiting)
        seen.update(each.rule for each in verdict.findings)
        seen.update("run" for each in verdict.findings if each.rule == "log_gap" and each.detail)
        seen.update(each["status"] for each in verdict.sessions)
        seen.update({"dead": verdict.dead, "duplicates": verdict.duplicates, "late": verdict.late})
        seen["changed by judging what is joined"] += judge(lines, max_waiting, midstream="judge") != verdict
        seen["changed by what is remembered"] += judge(lines, max_waiting, remembered=4) != verdict
    for name in (
        "log_gap",
        "run",
        "log_conflict",
        "session_joined",
        "unjudged",
        "unverified",
        "verified",
        "dead",
        "duplicates",
        "late",
        "changed by judging what is joined",
        "changed by what is remembered",
    ):
        assert seen[name] >= 10, (name, seen)
