"""What a writer of records may not gain: permission, a status or a cleared halt by contest, and work out of proportion.

Each test was a fault. Those about work count it, or bound it so widely that only another order of growth breaks it.
"""

import random
import time
from typing import Any

import msgspec
import pytest

from sidecar.engine import ask
from sidecar.engine.fold import Engine
from sidecar.engine.limits import Limits
from sidecar.engine.ranges import MOST, Coverage, inherited
from sidecar.engine.state import Fan, Generation
from sidecar.protocol.api import AuthorizeRequest
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import Hole, Summary
from tests.unit.test_engine import arrive, checkpoint, message, row, rules

EDGE = [["deploy", "p"]]


def grant(seq: int, precondition: str = "p", **fields: Any) -> dict[str, Any]:
    return row("authorization", seq, action_id="deploy", precondition_id=precondition, **fields)


def summary(node: str, seq: int | None, hi: int, lo: int = 1, generation: int = 1, **fields: Any) -> dict[str, Any]:
    span = {"frontier_lo": lo, "frontier_hi": hi}
    return row("summary", seq, node_id=node, generation=generation, level=1, **span, **fields)


def act(seq: int) -> dict[str, Any]:
    return row("action", seq, action_id="deploy", irreversible=True)


def allowed(engine: Engine) -> bool:
    return ask.authorize(engine, AuthorizeRequest(session_id="s", action_id="deploy")).allowed


def status(engine: Engine) -> str:
    return next(state.status for state in engine.states())


def cleared(outcome: Any) -> list[list[str]]:
    return [halt.reason for halt in outcome.halts if halt.status == "clear"]


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- what must not be permitted, verified or cleared ------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_a_grant_that_another_record_contends_with_permits_nothing(late: bool) -> None:
    engine = Engine()
    contest, log = [row("revocation", 2, action_id="deploy")], [message(1), grant(2)]
    rest = [message(3), summary("n", 4, 3, 3), checkpoint("c", 5, 3, frontier_lo=3, asserted_edges=[])]
    rows = log[:1] + log[1:] + rest[:1] + contest + rest[1:] if late else log[1:] + contest + log[:1] + rest
    outcome = engine.fold(arrive(*rows), 0.0)
    assert cleared(outcome) == [["log_conflict"]]
    assert status(engine) == "verified"
    assert not allowed(engine)
    engine.fold(arrive(grant(6)), 0.0)
    assert allowed(engine)


def test_where_records_are_lost_a_checkpoint_without_a_place_in_the_log_is_not_verified() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1)), 0.0)
    engine.distrust("offsets 4 to 9")
    # The lost record may be a revocation at position 2.
    outcome = engine.fold(arrive(summary("n", None, 1), checkpoint("c", None, 1, asserted_edges=EDGE)), 0.0)
    assert rules(outcome) == ["frontier_unverified"]
    assert status(engine) == "unverified"
    assert not allowed(engine)
    engine.fold(arrive(checkpoint("d", 2, 1, asserted_edges=EDGE)), 0.0)
    assert status(engine) == "verified"
    assert allowed(engine)


@pytest.mark.parametrize(
    "waiting",
    [
        [row("reconcile", 3, decision="replay")],
        [summary("n", 3, 1), checkpoint("c", 4, 1, asserted_edges=EDGE)],
    ],
)
def test_what_had_come_before_an_unread_record_does_not_vouch_for_it(waiting: list[dict[str, Any]]) -> None:
    engine = Engine()
    engine.fold([*arrive(grant(1), *waiting), (Hole(session_id="s"), 0, None)], 0.0)
    engine = Engine.load(engine.dump())
    engine.fold(arrive(message(2)), 0.0)
    assert not allowed(engine)
    engine.fold(arrive(row("reconcile", 3 + len(waiting), decision="replay")), 0.0)
    assert allowed(engine)


def test_a_baseline_that_had_come_before_an_unread_record_does_not_vouch_for_it() -> None:
    engine = Engine(Limits(max_waiting=1))
    engine.fold(arrive(message(5), message(6)), 0.0)
    stated = arrive(row("baseline", 8, edges=EDGE))
    engine.fold([*stated, (Hole(session_id="s"), 0, None), *arrive(message(7))], 0.0)
    assert not allowed(engine)
    engine.fold(arrive(row("reconcile", 9, decision="replay")), 0.0)
    assert allowed(engine)


@pytest.mark.parametrize(
    ("later", "verified"),
    [
        ({"generation": 1, "children": ["leaf"]}, False),
        ({"generation": 2}, False),
        ({"generation": 1}, True),
    ],
)
def test_what_is_built_on_what_has_been_forgotten_is_not_verified(later: dict[str, Any], verified: bool) -> None:
    engine = Engine()
    constraint = row("constraint", 2, constraint_id="no-prod", polarity="negative")
    outcome = engine.fold(arrive(message(1), constraint, summary("leaf", 3, 2)), 0.0)
    assert rules(outcome) == ["constraint_dropped"]
    engine.take_changed()
    assert not engine.drop_idle(100.0, 10.0)  # of what is halted a stub stays
    root = summary("root", 5, 4, 4, **later)
    over = checkpoint("c", 6, 4, node_id="root", frontier_lo=4, summary_generation=later["generation"])
    outcome = engine.fold(arrive(grant(4), root, {**over, "asserted_edges": EDGE}), 101.0)
    assert bool(cleared(outcome)) == verified
    assert allowed(engine) == verified


def test_a_proposal_of_another_tenant_is_not_to_be_committed() -> None:
    engine = Engine()
    engine.fold(arrive({**grant(1), "tenant": "acme"}, message(2)), 0.0)
    [(proposal, _, _)] = arrive({**summary("n", None, 2), "as_of_seq": 2, "tenant": "rival"})
    assert isinstance(proposal, Summary)
    answer = ask.commit(engine, proposal)
    assert answer.decision == "halt"
    assert [reason.code for reason in answer.reasons] == ["bad_request"]


@pytest.mark.parametrize(
    ("names", "place"),
    [
        ('"session_id":"s","seq":5', ("s", 5)),
        ('"session_id":"s","seq":5,"text":"caf\\u00e9"', ("s", 5)),
        ('"session_id":"s","seq":5,"seq":9', ("s", None)),
        ('"session_id":"s","seq":5,"session_id":"t"', (None, None)),
        ('"session_id":"s","seq":5,"\\u0073eq":9', (None, None)),
    ],
)
@pytest.mark.parametrize("beyond", ["1e999", "[" * 300 + "]" * 300])
def test_what_is_beyond_limits_takes_no_position_that_is_there_twice(
    names: str, place: tuple[str | None, int | None], beyond: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        decode(f'{{"kind":"message",{names},"x":{beyond}}}'.encode())
    assert (refused.value.session_id, refused.value.seq) == place


# --- what must not be found -------------------------------------------------------------------------------------------


def test_another_tenants_record_that_is_overdue_leaves_no_finding_anywhere() -> None:
    engine = Engine()
    engine.fold(arrive({**row("resume", None, checkpoint_id="c", as_of_seq=9), "tenant": "rival"}), 0.0)
    engine.fold(arrive({**message(1), "tenant": "acme"}), 0.0)
    outcome = engine.expire(60.0)
    assert [letter.reason for letter in outcome.letters] == [
        "the session belongs to tenant 'acme', and this record names 'rival'"
    ]
    other = {**act(1), "session_id": "t", "tenant": "third"}
    outcome = engine.fold(arrive(other), 60.0)
    assert [(f.session_id, f.rule) for f in outcome.findings] == [("t", "action_unauthorized")]


# --- what must not cost much ------------------------------------------------------------------------------------------


def test_inherited_ranges_are_joined_as_by_taking_the_closest_two_again_and_again() -> None:
    rng = random.Random(7)
    for _ in range(300):
        spans = [(lo, lo + rng.randint(0, 3)) for lo in (rng.randint(1, 900) for _ in range(rng.randint(1, 150)))]
        children = [generation(lo, hi) for lo, hi in spans]
        joined: list[tuple[int, int]] = []
        for first, last in sorted(set(spans)):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        while len(joined) > MOST:
            i = min(range(1, len(joined)), key=lambda i: joined[i][0] - joined[i - 1][1])
            joined[i - 1 : i + 1] = [(joined[i - 1][0], joined[i][1])]
        assert inherited(1000, 1000, children) == joined
        covered = Coverage(children)
        assert [p for p in range(1, 910) if p in covered] == [
            p for p in range(1, 910) if any(lo <= p <= hi for lo, hi in spans)
        ]


def test_a_summary_of_many_children_costs_about_what_it_says() -> None:
    many = 4000
    leaves = [summary(f"l{i}", many * 3 + i, 2 * i + 1, 2 * i + 1) for i in range(many)]
    constraints = [
        row("constraint", 2 * i, constraint_id=f"k{i}", polarity="negative") for i in range(1, 2 * many, many // 500)
    ]
    log = {r["seq"]: r for r in constraints if r["seq"] < many * 3}
    engine = Engine()
    engine.fold(arrive(*(log.get(seq) or message(seq) for seq in range(1, many * 3)), *leaves), 0.0)
    parent = summary("parent", many * 4, many * 2, children=[f"l{i}" for i in range(many)])
    batch = arrive(parent)
    assert seconds(lambda: engine.fold(batch, 0.0)) < 1.0


def test_an_action_of_many_edges_costs_what_one_of_few_does() -> None:
    many = 4000
    engine = Engine()
    engine.fold(arrive(*(grant(i, f"p{i}", uses=2) for i in range(1, many + 1))), 0.0)
    acts = arrive(*(act(many + i) for i in range(1, many + 1)))
    ends = arrive(
        *(
            row("revocation", 2 * many + i, action_id="deploy", precondition_id=f"p{i}")
            for i in range(many // 2 + 1, many + 1)
        )
    )
    assert seconds(lambda: engine.fold(acts, 0.0)) < 1.0
    assert allowed(engine)
    assert seconds(lambda: engine.fold(ends, 0.0)) < 1.0


@pytest.mark.parametrize("again", [False, True])
def test_the_edge_whose_newest_grant_came_first_is_used_up_first(again: bool) -> None:
    engine = Engine()
    engine.fold(arrive(grant(1, "p", uses=1), grant(2, "q", uses=1), *([grant(3, "p", uses=1)] if again else [])), 0.0)
    session = engine._sessions["s"]
    assert session.frontier is not None
    fan = session.frontier.actions["deploy"]
    assert isinstance(fan, Fan)
    # As an older program wrote it: in order of the first grants, and not counted.
    session.frontier.actions["deploy"] = msgspec.structs.replace(fan, live=dict.fromkeys(("p", "q")), limited=-1)
    engine = Engine.load(engine.dump())
    engine.fold(arrive(act(4 if again else 3)), 0.0)
    answer = ask.authorize(engine, AuthorizeRequest(session_id="s", action_id="deploy"))
    assert [edge.precondition_id for edge in answer.edges] == ["p" if again else "q"]


def test_a_use_is_counted_only_where_every_edge_has_a_limit() -> None:
    engine = Engine()
    engine.fold(arrive(grant(1, "p", uses=1), grant(2, "q"), act(3), act(4)), 0.0)
    engine.fold(arrive(row("revocation", 5, action_id="deploy", precondition_id="q")), 0.0)
    assert allowed(engine)
    engine.fold(arrive(act(6)), 0.0)
    assert not allowed(engine)
    engine.fold(arrive(grant(7, "q", uses=1), grant(8, "q")), 0.0)
    engine.fold(arrive(act(9), act(10)), 0.0)
    assert allowed(engine)
    engine.fold(arrive(grant(11, "q", uses=1), act(12)), 0.0)
    assert not allowed(engine)


def test_giving_up_many_records_without_a_place_is_linear_or_nearly() -> None:
    many = 4000
    engine = Engine()
    engine.fold(
        arrive(*(row("probe", None, node_id="n", probes=1, recalled=1, as_of_seq=9 + i) for i in range(many))), 0.0
    )
    assert engine.counters.waiting == many
    assert seconds(lambda: engine.expire(60.0)) < 0.4
    assert engine.counters.waiting == 0


def test_a_short_record_does_not_repeat_long_ids() -> None:
    engine = Engine()
    long = [grant(i, "p" * 1_000_000 + str(i)) for i in range(1, 9)]
    engine.fold(arrive(*long, grant(9, "q"), row("revocation", 10, action_id="deploy")), 0.0)
    outcome = engine.fold(arrive(act(11)), 0.0)
    assert rules(outcome) == ["action_unauthorized"]
    assert len(msgspec.json.encode(outcome.findings)) < 2000


def generation(lo: int, hi: int) -> Generation:
    return Generation(
        id=1, node_id="n", number=1, order=1, position=1, level=1, lo=lo, hi=hi, partial=False, workload=None,
        children=(), referents=(), constraints=(), facts=None, built_from=[],
    )  # fmt: skip
