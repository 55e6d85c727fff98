"""The check of permissions against the naive judge finds a wrong one of each sort, and none among the guard's own."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from sidecar.engine import ask
from sidecar.engine.fold import Arrival, Engine
from sidecar.guard.decisions import decision_of
from sidecar.guard.questions import read_question
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.openapi import ASKED
from sidecar.protocol.outputs import Decision
from sidecar.protocol.records import Hole
from tests.guard.reconcile import wrong_permissions
from tests.guard.test_api import SUMMARY, session
from tests.judge.sessions import ACTIONS, NODES, arrange, random_session
from tests.properties.compare import arrivals


def lines(*rows: dict[str, Any]) -> list[bytes]:
    return [json.dumps({"session_id": "s", **row}).encode() for row in rows]


def decision(question: str, position: int, **fields: Any) -> Decision:
    return Decision(
        decision_id=f"{question}-{position}",
        question=question,  # type: ignore[arg-type]
        session_id="s",
        position=position,
        decided_at=datetime.now(UTC),
        **fields,
    )


def act(position: int, **more: Any) -> Decision:
    return decision("authorize", position, **{"action_id": "deploy", "edges": [("deploy", "p")], **more})


def why(given: Decision, *rows: dict[str, Any] | bytes) -> str | None:
    """Return why a permission is wrong; None: it is right."""
    log = [row if isinstance(row, bytes) else lines(row)[0] for row in rows]
    found = wrong_permissions([given], {"s": log})
    assert all(wrong.decision is given for wrong in found) and len(found) <= 1
    return found[0].why if found else None


GOOD = session()
MESSAGE = {"kind": "message", "seq": 5}
REVOKED = {"kind": "revocation", "seq": 5, "action_id": "deploy"}
ACTED = {"kind": "action", "seq": 5, "action_id": "x", "irreversible": True}
UNREAD = b'{"kind":"revocation","session_id":"s","seq":"5","action_id":"deploy"}'
PROBED = {"kind": "probe", "seq": 5, "node_id": "n", "probes": 10, "recalled": 10}


def test_right_permissions_pass() -> None:
    assert why(act(2), *GOOD[:2]) is None
    assert why(act(4, checkpoint_id="c", min_seq=4), *GOOD) is None
    assert why(act(4), *GOOD, REVOKED) is None  # it came afterwards
    assert why(decision("resume", 4, checkpoint_id="c", deps=["r"]), *GOOD) is None
    assert why(decision("commit", 4, node_ids=["n"], generation=2), *GOOD) is None
    assert why(decision("gc", 5, node_ids=["n"]), *GOOD, PROBED) is None


WRONG: dict[str, tuple[Decision, list[dict[str, Any] | bytes], str]] = {
    "unknown session": (act(1), [], "no record"),
    "revoked": (act(5), [*GOOD, REVOKED], "no edge"),
    "never granted": (act(4, action_id="x", edges=[("x", "p")]), [*GOOD], "no edge"),
    "another edge": (act(4, edges=[("deploy", "q")]), [*GOOD], "no edge"),
    "used up": (
        act(3),
        [{**GOOD[1], "seq": 1, "uses": 1}, {**ACTED, "seq": 2, "action_id": "deploy"}, {**MESSAGE, "seq": 3}],
        "no edge",
    ),
    "beyond the log": (act(9), [*GOOD], "no record|applied up to"),
    "before min_seq": (act(4, min_seq=5), [*GOOD], "needed the log"),
    "halted": (act(5), [*GOOD, ACTED], "halt"),
    "checkpoint in force": (
        act(4),
        [*GOOD[:3], {**GOOD[3], "asserted_edges": [["deploy", "p"], ["x", "y"]]}],
        "halt was open|in force",
    ),
    "unverified in force": (
        act(4),
        [*GOOD[:3], {k: v for k, v in GOOD[3].items() if k != "asserted_edges"}],
        "in force",
    ),
    "checkpoint named": (act(4, checkpoint_id="d"), [*GOOD], "d was not verified"),
    "hole after the grant": (act(6), [*GOOD[:2], {**MESSAGE, "seq": 6}], "missing"),
    "waits": (act(2), [GOOD[0], {**MESSAGE, "seq": 4}, GOOD[1]], "waiting"),
    "unread": (act(4), [*GOOD[:3], UNREAD, GOOD[3]], ""),
    "unread later": (act(5), [*GOOD, UNREAD, MESSAGE], "could not be read"),
    "unjudged": (act(9), [{**GOOD[1], "seq": 8}, {**MESSAGE, "seq": 9}], "unjudged"),
    "awaiting": (
        act(5),
        [*GOOD, {"kind": "resume", "seq": 5, "checkpoint_id": "ghost"}],
        "halt was open",
    ),
    "resume from nothing": (decision("resume", 4, checkpoint_id="ghost"), [*GOOD], "resumed_unverified"),
    "resume without its deps": (decision("resume", 4, checkpoint_id="c", deps=["x"]), [*GOOD], "dependency_missing"),
    "resume from stale": (decision("resume", 5, checkpoint_id="c"), [*GOOD, REVOKED], "resumed_unverified"),
    "commit of an old generation": (decision("commit", 4, node_ids=["n"], generation=1), [*GOOD], "generation 1"),
    "commit of what breaks a rule": (
        decision("commit", 5, node_ids=["n"], generation=2),
        [
            *GOOD,
            {"kind": "constraint", "seq": 5, "constraint_id": "k", "polarity": "negative"},
            {"kind": "summary", **SUMMARY, "generation": 2, "seq": 6, "frontier_hi": 5},
        ],
        "constraint_dropped",
    ),
    "gc of an unknown node": (decision("gc", 4, node_ids=["ghost"]), [*GOOD], "unknown"),
    "gc without a probe": (decision("gc", 4, node_ids=["n"]), [*GOOD], "gc_before_probe"),
    "gc while halted": (decision("gc", 6, node_ids=["n"]), [*GOOD, PROBED, {**ACTED, "seq": 6}], "halt"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_wrong_permission_is_found(name: str) -> None:
    given, log, says = WRONG[name]
    if name == "unread":  # a verified checkpoint has come since
        assert why(given, *log) is None
        return
    found = why(given, *log)
    assert found is not None and any(part in found for part in says.split("|")), found


def test_what_came_while_the_log_stood_there_may_have_come_later() -> None:
    conflict = {**GOOD[1], "precondition_id": "other"}
    assert why(act(4), *GOOD, conflict) is None  # before the conflict it was right
    assert why(act(5), *GOOD, conflict, MESSAGE) is not None  # after it, never
    assert why(act(4), *GOOD, UNREAD) is None


# --- the guard's own --------------------------------------------------------------------------------------------------


def unplaced(line: bytes) -> list[Arrival]:
    """Return what the sidecar makes of a line whose position cannot be read."""
    with pytest.raises(Unreadable) as caught:
        decode(line)
    if caught.value.session_id is None:
        return []
    return [(Hole(session_id=caught.value.session_id, seq=None), 0, None)]


def permitted(engine: Engine, name: str, question: dict[str, Any]) -> Decision | None:
    route = next(route for route in ASKED if route.name == name)
    asked = read_question(route, json.dumps(question).encode())
    return decision_of(asked, getattr(ask, name)(engine, asked.question), None)


@pytest.mark.parametrize("damage", [{}, {"drop": 0.03, "conflicts": 0.03, "unreadable": 0.03}], ids=["whole", "torn"])
def test_what_the_engine_permits_is_right(damage: dict[str, float]) -> None:
    """Ask at every record of many sessions; each permission is held against the log as it came in the end."""
    given: list[Decision] = []
    logs: dict[str, list[bytes]] = {}
    for seed in range(25):
        rng = random.Random(seed)
        session_id = f"s{seed}"
        rows = random_session(rng, session_id)
        logs[session_id] = arrange(rng, [rows], **damage)[:60]
        checkpoints = [row["checkpoint_id"] for row in rows if row["kind"] == "checkpoint"] or ["nothing"]
        engine = Engine()
        for line in logs[session_id]:
            engine.fold(arrivals([line]) or unplaced(line), 0.0)
            about = {"session_id": session_id}
            questions: list[tuple[str, dict[str, Any]]] = [
                *(("authorize", {**about, "action_id": action}) for action in ACTIONS),
                ("resume", {**about, "checkpoint_id": rng.choice(checkpoints)}),
                ("gc", {**about, "node_ids": [rng.choice([*NODES])]}),
            ]
            made = [permitted(engine, name, question) for name, question in questions]
            given += [each for each in made if each is not None]
    sorts = Counter(each.question for each in given)
    assert sorts["authorize"] > 30 and sorts["resume"] + sorts["gc"] > 3, sorts
    assert wrong_permissions(given, logs) == []
    # And the same permissions are not all right a few records later: the check does look.
    later = [Decision(**{f: getattr(d, f) for f in d.__struct_fields__ if f != "position"}, position=d.position + 3)
             for d in given]  # fmt: skip
    assert wrong_permissions(later, logs)
