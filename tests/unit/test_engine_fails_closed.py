"""What the engine must not let pass: other tenants, contested and unread positions, forgotten halts, floods of them."""

import json
import random
from typing import Any

import msgspec
import pytest

from sidecar.engine import ask
from sidecar.engine.fold import Arrival, Engine
from sidecar.engine.limits import Limits
from sidecar.engine.missing import RUNS, mark_missing, missing_in
from sidecar.engine.state import Session
from sidecar.engine.status import LISTED, OPEN
from sidecar.protocol.api import AuthorizeRequest, ResumeRequest
from sidecar.protocol.decode import decode
from sidecar.protocol.outputs import Source
from sidecar.protocol.records import Hole
from tests.unit.test_engine import arrive, checkpoint, message, row, rules, summary


class Message(msgspec.Struct):
    """A message as the tail has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def messages(*rows: dict[str, Any]) -> list[Arrival]:
    values = [json.dumps(r).encode() for r in rows]
    return [(*decode(value), Message("t", 0, i, b"s", value)) for i, value in enumerate(values)]


def grant(seq: int, action: str = "deploy", **fields: Any) -> dict[str, Any]:
    return row("authorization", seq, action_id=action, precondition_id="p", **fields)


def allowed(engine: Engine, action: str = "deploy") -> bool:
    return ask.authorize(engine, AuthorizeRequest(session_id="s", action_id=action)).allowed


# --- tenants ----------------------------------------------------------------------------------------------------------


def test_a_record_of_another_tenant_is_a_dead_letter_with_its_bytes() -> None:
    engine = Engine()
    rows = [message(1), grant(2, tenant="acme"), grant(3, "wipe", tenant="rival"), message(4)]
    outcome = engine.fold(messages(*rows), 0.0)
    (letter,) = outcome.letters
    assert (letter.session_id, letter.seq, letter.source) == ("s", 3, Source("t", 0, 2))
    assert (letter.key, letter.original) == (b"s", json.dumps(rows[2]).encode())
    assert "acme" in letter.reason and "rival" in letter.reason
    assert [(f.rule, f.position) for f in outcome.findings] == [("log_gap", 3)]
    assert not allowed(engine, "wipe")
    assert not engine.fold(messages(message(5)), 0.0).letters


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_what_waits_is_refused_when_the_tenant_is_known(order: tuple[int, ...]) -> None:
    rows = [message(1), grant(2, tenant="acme"), grant(3, "wipe", tenant="rival")]
    engine = Engine()
    letters = [letter for i in order for letter in engine.fold(messages(rows[i]), 0.0).letters]
    engine = Engine.load(engine.dump())
    assert [(letter.seq, letter.original) for letter in letters] == [(3, json.dumps(rows[2]).encode())]
    assert allowed(engine) is False  # position 3 is missing: it may have been the revocation
    assert not allowed(engine, "wipe")


def test_a_record_without_a_place_names_no_tenant_and_is_refused_of_another_one() -> None:
    engine = Engine()
    engine.fold(messages(row("reconcile", decision="replay", tenant="rival"), grant(1, tenant="acme")), 0.0)
    assert allowed(engine)
    outcome = engine.fold(messages(checkpoint("c", None, 1, tenant="rival")), 0.0)
    assert [letter.seq for letter in outcome.letters] == [None]
    assert engine.look("s").tree.newest is None  # type: ignore[union-attr]


def test_a_foreign_record_at_a_taken_position_is_no_conflict_and_hides_none() -> None:
    engine = Engine()
    engine.fold(messages(grant(1, tenant="acme"), message(2)), 0.0)
    outcome = engine.fold(messages(message(2, "forged") | {"tenant": "rival"}), 0.0)
    assert (len(outcome.letters), outcome.findings) == (1, [])
    waiting = [message(5), message(5, "x") | {"tenant": "rival"}, message(5, "forged"), message(3), message(4)]
    other = Engine()
    other.fold(messages(message(1), message(2), *waiting), 0.0)
    assert other.counters.conflicts == 1


# --- contested and unread positions -----------------------------------------------------------------------------------


def test_a_contested_position_may_have_been_the_revocation() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1), message(2), message(3)), 0.0)
    assert allowed(engine)
    outcome = engine.fold(arrive(row("revocation", 2, action_id="deploy")), 0.0)
    assert rules(outcome) == ["log_conflict"]
    over = checkpoint("over", 5, 4, asserted_edges=[["deploy", "p"]])
    outcome = engine.fold(arrive(summary("n", 4, 3), over), 0.0)
    assert "frontier_unverified" in rules(outcome)
    assert not [halt for halt in outcome.halts if halt.status == "clear"]
    assert not allowed(engine)


def test_a_contest_inside_the_range_of_a_verified_checkpoint_counts_against_it() -> None:
    engine = Engine()
    over = checkpoint("c", 4, 3, asserted_edges=[["deploy", "p"]])
    assert not engine.fold(arrive(grant(1), message(2), summary("n", 3, 2), over), 0.0).findings
    outcome = engine.fold(arrive(message(2, "forged")), 0.0)
    assert [(f.rule, f.position) for f in outcome.findings] == [("log_conflict", 2), ("frontier_unverified", 4)]
    assert outcome.halts[0].reexpand_from is None
    answer = ask.resume(engine, ResumeRequest(session_id="s", checkpoint_id="c"))
    assert (answer.decision, answer.status) == ("reconcile", "unverified")


@pytest.mark.parametrize(
    ("clearing", "cleared"),
    [
        ([row("reconcile", 2, decision="replay")], True),
        ([row("reconcile", decision="replay")], False),
        ([summary("n", 2, 1), checkpoint("c", 3, 2, asserted_edges=[["deploy", "p"]])], True),
        ([summary("n", 2, 1), checkpoint("c", None, 1, asserted_edges=[["deploy", "p"]], as_of_seq=2)], False),
        ([summary("n", 2, 1), checkpoint("c", 3, 2, asserted_edges=[])], False),
        ([message(2), message(3)], False),
    ],
)
def test_a_record_without_a_readable_place_is_refused_until_somebody_has_seen_to_it(
    clearing: list[dict[str, Any]], cleared: bool
) -> None:
    engine = Engine()
    engine.fold(arrive(grant(1)), 0.0)
    assert allowed(engine)
    outcome = engine.fold([(Hole(session_id="s"), 0, None)], 0.0)
    assert not outcome.findings
    assert "s" in engine.take_decided()
    engine = Engine.load(engine.dump())
    assert not allowed(engine)
    assert ask.resume(engine, ResumeRequest(session_id="s", checkpoint_id="c")).decision != "resume"
    view = ask.view(engine, "s")
    assert view is not None and view.unread
    engine.fold(arrive(*clearing), 0.0)
    assert allowed(engine) == cleared


def test_an_unread_record_of_a_session_that_nobody_knows_is_remembered_and_not_listed() -> None:
    engine = Engine()
    engine.fold([(Hole(session_id="s"), 0, None)], 0.0)
    assert not list(engine.states())
    assert not any(engine.status_counts().values())
    engine.fold(arrive(grant(1)), 0.0)
    assert not allowed(engine)
    assert engine.status_counts()["uncompacted"] == 1


# --- halts ------------------------------------------------------------------------------------------------------------


def test_who_has_no_place_in_the_log_clears_no_halt_for_an_action() -> None:
    engine = Engine()
    engine.fold(arrive(row("action", 1, action_id="wipe", irreversible=True)), 0.0)
    rest = {"negative_constraints": [], "level": 1, "generation": 1, "frontier_lo": 1}
    outcome = engine.fold(
        arrive(
            row("summary", node_id="n", frontier_hi=1, as_of_seq=1, **rest),
            checkpoint("c", None, 1, as_of_seq=1),
            row("reconcile", decision="accept_divergence"),
        ),
        0.0,
    )
    assert not outcome.halts
    assert len(next(engine.states()).open_halts) == 1
    outcome = engine.fold(arrive(checkpoint("d", 2, 1)), 0.0)
    assert [halt.status for halt in outcome.halts] == ["clear"]


def test_a_session_that_only_halts_is_bounded_and_stays_halted() -> None:
    engine = Engine()
    count = 4 * OPEN
    outcome = engine.fold(arrive(*(row("action", i, action_id="a", irreversible=True) for i in range(1, count))), 0.0)
    assert len(outcome.findings) == count - 1
    assert len(outcome.halts) == OPEN
    assert max(len(halt.open_halts) for halt in outcome.halts) == LISTED
    assert len(engine.dump()) < 400 * OPEN
    # Another reason is not hidden by those that are open.
    outcome = engine.fold(arrive(row("resume", count, checkpoint_id="nobody")), 0.0)
    assert [halt.reason for halt in outcome.halts] == [["resumed_unverified"]]
    outcome = engine.fold(arrive(row("reconcile", count + 1, decision="replay")), 0.0)
    assert [halt.reason for halt in outcome.halts] == [["resumed_unverified"]]
    assert not allowed(engine, "a")


# --- forgetting -------------------------------------------------------------------------------------------------------

BAD: dict[str, list[dict[str, Any]]] = {
    "halted": [grant(1), row("action", 2, action_id="wipe", irreversible=True)],
    "awaiting": [
        grant(1),
        row("resume", 2, checkpoint_id="nobody"),
        row("reconcile", 3, decision="replay"),
        row("resume", 4, checkpoint_id="nobody"),
    ],
    "lossy": [grant(1), summary("n", 2, 1), checkpoint("c", 3, 2, asserted_edges=[])],
    "degraded": [grant(1), summary("n", 2, 1, referents=["gone"])],
}


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_what_must_be_refused_is_never_forgotten_altogether(name: str, asleep: bool) -> None:
    rows = BAD[name]
    if name == "degraded":
        rows = [*rows, checkpoint("c", 3, 2, asserted_edges=[["deploy", "p"]])]
    engine = Engine(Limits(midstream="judge"))
    engine.fold(arrive(*rows), 0.0)
    assert not allowed(engine, "wipe")
    halts = {state.session_id: state.open_halts for state in engine.states()}
    engine.take_changed()
    if asleep:
        engine.shrink(10.0, 1.0)
    assert engine.drop_idle(100.0, 50.0) == []
    assert engine.take_changed() == ["s"]
    assert engine.drop_idle(1e9, 50.0) == [] and engine.take_changed() == []  # it stays, and costs nothing more
    frozen = engine.freeze("s")
    assert len(frozen.state) < 600
    engine = Engine()
    engine.adopt(frozen, 0.0)
    assert {state.session_id: state.open_halts for state in engine.states()} == halts
    assert not allowed(engine)
    # The log goes on: a grant alone does not help, nor does a checkpoint on what has been forgotten.
    seq = len(rows) + 1
    engine.fold(arrive(grant(seq), {**summary("m", seq + 1, seq), "frontier_lo": seq}, grant(seq + 2)), 1.0)
    assert not allowed(engine)
    before = checkpoint("old", seq + 3, seq + 2, node_id="m", asserted_edges=[["deploy", "p"]])
    outcome = engine.fold(arrive(before), 1.0)
    assert "frontier_unverified" in rules(outcome) and "edge_hallucinated" not in rules(outcome)
    assert not allowed(engine)
    # A checkpoint of what has come since says what is known.
    good = checkpoint("new", seq + 4, seq + 3, node_id="m", frontier_lo=seq, asserted_edges=[["deploy", "p"]])
    engine.fold(arrive(good, row("reconcile", seq + 5, decision="replay")), 1.0)
    # (A summary that was made while the session awaited a reconcile is of no use, also after it.)
    assert allowed(engine) == (name != "awaiting")


def test_a_session_in_order_is_forgotten() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1), summary("n", 2, 1), checkpoint("c", 3, 2, asserted_edges=[["deploy", "p"]])), 0.0)
    engine.take_changed()
    assert engine.drop_idle(100.0, 50.0) == ["s"]
    assert "s" not in engine


def test_only_the_sessions_that_are_named_are_distrusted() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1), {**grant(1), "session_id": "t"}), 0.0)
    engine.distrust("three records", ["s", "nobody"])
    assert not allowed(engine)
    assert ask.authorize(engine, AuthorizeRequest(session_id="t", action_id="deploy")).allowed
    assert "nobody" not in engine


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_runs_of_missing_positions_are_bounded_and_joining_them_loses_none() -> None:
    session = Session("s", applied=10 * RUNS)
    for position in range(2, 6 * RUNS, 3):
        mark_missing(session, position, position)
    assert len(session.order.missing_lo or ()) == RUNS
    assert all(missing_in(session, position, position) for position in range(2, 6 * RUNS, 3))
    assert not missing_in(session, 6 * RUNS, 10 * RUNS)


@pytest.mark.parametrize("seed", range(20))
def test_missing_positions_are_a_set(seed: int) -> None:
    rng, session, expected = random.Random(seed), Session("s", applied=200), set()
    for _ in range(40):
        first = rng.randint(1, 200)
        last = min(200, first + rng.choice((0, 0, 1, 5, 30)))
        mark_missing(session, first, last)
        expected |= set(range(first, last + 1))
        lo = rng.randint(1, 200)
        hi = rng.randint(lo, 200)
        assert missing_in(session, lo, hi) == min((p for p in expected if lo <= p <= hi), default=0)


def test_giving_up_many_sessions_is_done_in_parts() -> None:
    engine = Engine(Limits(max_wait=1.0))
    engine.fold([a for i in range(3000) for a in arrive({**message(5000), "session_id": f"s{i}"})], 0.0)
    counts = [len(engine.expire(2.0).findings) for _ in range(4)]
    assert sum(counts) == 3000 and max(counts) <= 1024


def test_what_is_unread_of_an_unknown_session_is_among_those_to_be_kept() -> None:
    engine = Engine()
    engine.fold([(Hole(session_id="s"), 0, None)], 0.0)
    assert engine.ids() == ["s"]
    assert not list(engine.states())


def test_a_session_that_is_whole_again_is_no_longer_distrusted() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1)), 0.0)
    engine.distrust("three records")
    assert not allowed(engine)
    # Who has no place in the log cannot know that it is whole.
    point = {"asserted_edges": [["deploy", "p"]]}
    outside = row("summary", node_id="n", generation=1, level=1, frontier_lo=1, frontier_hi=1)
    engine.fold(arrive(outside, checkpoint("b", None, 1, **point)), 0.0)
    assert not allowed(engine)
    engine.fold(arrive(summary("m", 2, 1), checkpoint("c", 3, 2, node_id="m", **point)), 0.0)
    assert allowed(engine)
    engine.take_changed()
    assert engine.drop_idle(1e6, 1.0) == ["s"]  # no stub: there is nothing left to be refused


def test_a_session_in_which_something_happens_is_not_idle_however_long_it_has_been_kept_waiting() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1)), 0.0)
    engine.fold(arrive(message(2)), 99.0)
    assert engine.drop_idle(100.0, 50.0) == []
    engine.take_changed()
    assert engine.drop_idle(200.0, 50.0) == ["s"]


def test_what_a_summary_lacks_of_a_long_log_is_told_within_bounds() -> None:
    engine = Engine()
    rows = [row("constraint", i, constraint_id=f"c{i}", polarity="negative") for i in range(1, 2001)]
    rows += [row("authorization", 2000 + i, action_id=f"a{i}", precondition_id="p") for i in range(1, 1001)]
    engine.fold(arrive(*rows), 0.0)
    summaries = [summary(f"n{i}", 3000 + i, 3000) for i in range(1, 51)]
    outcome = engine.fold(arrive(*summaries), 0.0)
    assert rules(outcome) == ["constraint_dropped"] * 100 * 50
    assert outcome.findings[99].evidence["more"] == outcome.findings[-1].evidence["more"] == 1900
    assert max(len(halt.finding_ids) for halt in outcome.halts) == 100
    (finding,) = engine.fold(arrive(checkpoint("c", 3051, 3000, node_id="n50")), 0.0).findings
    assert (finding.rule, len(finding.evidence["edges"]), finding.evidence["more"]) == ("edge_dropped", 100, 900)
    assert next(engine.states()).status == "lossy"


def test_a_tree_that_is_too_dense_to_walk_is_not_verified() -> None:
    engine = Engine(Limits(nodes=100))
    nodes = [summary(f"n{i}", i + 1, i, children=[f"n{j}" for j in range(1, i)]) for i in range(1, 81)]
    engine.fold(arrive(message(1), *nodes), 0.0)
    tree = engine.look("s").tree  # type: ignore[union-attr]
    assert tree is not None
    assert tree.links == sum(len(g.built_from) + len(g.children) for g in tree.generations.values()) <= 800
    engine.fold(arrive(checkpoint("deep", 82, 80, node_id="n80"), checkpoint("flat", 83, 5, node_id="n5")), 0.0)
    answers = [ask.view_checkpoint(engine, "s", name) for name in ("deep", "flat")]
    assert [answer and answer.status for answer in answers] == ["unverified", "verified"]
    # What is forgotten no longer counts.
    engine.fold(arrive(*(summary(f"m{i}", i, i - 1) for i in range(84, 400))), 0.0)
    assert tree.links == sum(len(g.built_from) + len(g.children) for g in tree.generations.values())
