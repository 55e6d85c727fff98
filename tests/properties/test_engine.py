"""The engine against the naive judge, and against itself: order, duplication, batch breaks, restarts.

The judge is written from the protocol and shares no code with the engine. `SESSIONS` random sessions are compared
in the ordinary test run; FRONTIER_SESSIONS=100000 compares more.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.fold import Engine
from sidecar.engine.limits import Limits
from tests.judge.naive import judge
from tests.judge.sessions import Row, arrange, random_session
from tests.properties.compare import disagreement, run

SESSIONS = int(os.environ.get("FRONTIER_SESSIONS", "5000"))
BLOCKS = 12

# How sessions arrive: (how often, probabilities for `arrange`). Damage is mild: a session full of holes shows little.
ARRIVALS: tuple[dict[str, float], ...] = (
    {},
    {"shuffle": 0.5, "duplicates": 0.1},
    {"shuffle": 0.3, "duplicates": 0.1, "drop": 0.02},
    {"shuffle": 0.3, "duplicates": 0.1, "drop": 0.01, "conflicts": 0.03, "unreadable": 0.02},
    {"shuffle": 0.3, "duplicates": 0.1, "drop": 0.01, "conflicts": 0.01, "unreadable": 0.01, "unsequenced": 0.5},
    {"shuffle": 0.2, "duplicates": 0.1, "runs": 0.005, "leaps": 0.5, "conflicts": 0.01},
    {"shuffle": 0.2, "duplicates": 0.05, "conflicts": 0.02, "unreadable": 0.01, "nowhere": 0.15},
)


def sessions_of(rng: random.Random) -> list[list[Row]]:
    return [random_session(rng, f"s{i}") for i in range(rng.randint(1, 2))]


def lines_of(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return arrange(rng, sessions_of(rng), **ARRIVALS[seed % len(ARRIVALS)])


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_engine_agrees_with_the_naive_judge(block: int) -> None:
    for seed in range(block, SESSIONS, BLOCKS):
        problems = disagreement(lines_of(seed))
        assert not problems, f"seed {seed}: " + "\n".join(problems[:10])


@pytest.mark.parametrize("max_waiting", [1, 2, 5])
def test_they_agree_where_waiting_is_bounded_in_records(max_waiting: int) -> None:
    for seed in range(400):
        rng = random.Random(seed)
        damage = {"drop": 0.03, "conflicts": 0.02, "unreadable": 0.03, "runs": 0.005, "leaps": 0.1}
        lines = arrange(rng, sessions_of(rng), shuffle=0.3, duplicates=0.1, **damage)
        problems = disagreement(lines, max_waiting=max_waiting)
        assert not problems, f"seed {seed}: " + "\n".join(problems[:10])


def test_they_agree_where_what_is_joined_midstream_is_judged() -> None:
    joined = 0
    for seed in range(1500):
        lines = lines_of(seed)
        skipping = judge(lines)
        if any(found.rule == "session_joined" for found in skipping.findings):
            joined += 1
            problems = disagreement(lines, midstream="judge")
            assert not problems, f"seed {seed}: " + "\n".join(problems[:10])
    assert joined > 100


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_batch_breaks_and_restarts_change_nothing(seed: int, data: st.DataObject) -> None:
    lines = lines_of(seed)
    cuts = data.draw(st.lists(st.integers(0, len(lines)), max_size=6))
    whole = run(lines)
    split = run(lines, cuts=cuts)
    restarted = run(lines, cuts=cuts, between=lambda engine: Engine.load(engine.dump()))
    assert split.everything() == whole.everything()
    assert restarted.everything() == whole.everything()
    assert restarted.engine.status_counts() == whole.engine.status_counts()


def test_a_restart_after_every_single_record_changes_nothing() -> None:
    for seed in range(100):
        lines = lines_of(seed)
        restarted = run(lines, cuts=range(len(lines)), between=lambda engine: Engine.load(engine.dump()))
        assert restarted.everything() == run(lines).everything(), f"seed {seed}"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_interleaving_order_and_duplicates_change_nothing(seed: int, other: int) -> None:
    """Any order in which nothing is lost or rewritten gives the same outcome."""
    rows = sessions_of(random.Random(seed))
    plain = run(arrange(random.Random(seed), rows))
    mixed = run(arrange(random.Random(other), rows, shuffle=0.8, duplicates=0.3))
    assert mixed.everything() == plain.everything()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_findings_have_unique_ids_and_a_witness(seed: int) -> None:
    result = run(lines_of(seed))
    assert max(result.ids().values(), default=1) == 1
    for finding in result.findings:
        assert all(0 < p < 2**61 for p in finding.evidence["witness"]), finding
        assert finding.evidence["witness"] or finding.position == 0, finding


def test_the_status_counts_are_those_of_the_sessions() -> None:
    for seed in range(200):
        result = run(lines_of(seed))
        counted = dict.fromkeys(result.engine.status_counts(), 0)
        for state in result.engine.states():
            counted[state.status] += 1
        assert counted == result.engine.status_counts()


@pytest.mark.parametrize("limits", [Limits(checkpoints=2), Limits(nodes=2), Limits(positions=8)], ids=repr)
def test_forgetting_fails_closed(limits: Limits) -> None:
    """What the engine no longer knows never makes the checkpoint in force a verified one."""
    # Every fifth, and some in which the newest generation of a node was forgotten while an older one was in force.
    for seed in (*range(0, SESSIONS * 3 // 5, 5), 8543, 8899, 11682, 13767):
        lines = lines_of(seed)
        full, small = run(lines), run(lines, limits=limits)
        for ours, theirs in zip(full.engine.states(), small.engine.states(), strict=True):
            if theirs.status == "verified" and theirs.checkpoint_in_force == ours.checkpoint_in_force:
                assert ours.status == "verified" or ours.open_halts, f"seed {seed}: {ours} became {theirs}"


@pytest.mark.parametrize(
    "limits", [Limits(checkpoints=1), Limits(nodes=1), Limits(positions=4), Limits(calls=1)], ids=repr
)
def test_forgetting_is_deterministic_too(limits: Limits) -> None:
    for seed in range(0, 1500, 5):
        lines = lines_of(seed)
        small = run(lines, limits=limits)
        again = run(lines, limits=limits, cuts=range(0, len(lines), 3), between=lambda e: Engine.load(e.dump(), limits))
        assert again.everything() == small.everything(), f"seed {seed}"
