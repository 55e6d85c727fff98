"""What the guard is told, against the verdict that would follow: the naive judge gets the record that was asked about.

`SESSIONS` random sessions are asked about, at a random moment each; FRONTIER_SESSIONS asks about more.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from sidecar.engine import ask
from sidecar.engine.fold import Engine
from sidecar.protocol.api import AuthorizeRequest, GcRequest, ResumeRequest
from sidecar.protocol.decode import decode
from tests.judge.naive import judge
from tests.judge.sessions import ACTIONS, NODES, REFERENTS, Row, arrange, random_session
from tests.properties.compare import EDGE_RULES, _detail, arrivals

SESSIONS = int(os.environ.get("FRONTIER_SESSIONS", "10000")) // 12
BLOCKS = 4
DAMAGE: tuple[dict[str, float], ...] = ({}, {}, {"drop": 0.02}, {"drop": 0.02, "conflicts": 0.02, "unreadable": 0.02})


class Moment:
    """A session stopped at a random moment, and what the naive judge says of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rows = random_session(self.rng, "s")
        written = [row["seq"] for row in rows if row["kind"] == "checkpoint"]
        # Often just after a checkpoint, while it may still be verified.
        self.rows = rows[: self.rng.choice([self.rng.randint(1, len(rows)), *written[-1:]])]
        self.lines = arrange(self.rng, [self.rows], **DAMAGE[seed % len(DAMAGE)])
        self.engine = Engine()
        self.engine.fold(arrivals(self.lines), 0.0)
        self.engine.finish()
        if self.rng.random() < 0.3:  # asleep
            self.engine.take_changed()
            self.engine.shrink(10.0, 1.0)
        self.applied = ask.applied(self.engine, "s")
        self.verdict = judge(self.lines)
        self.session = self.verdict.sessions[0] if self.verdict.sessions else None
        damaged = ("log_gap", "log_conflict", "session_joined")
        self.whole = not any(found.rule in damaged for found in self.verdict.findings)
        self.unjudged = self.session is not None and self.session["status"] == "unjudged"

    def would_find(self, kind: str, **fields: Any) -> Counter[Any]:
        """Return what the naive judge finds beyond all before, if this record came next."""
        assert self.applied is not None
        row = {"kind": kind, "session_id": "s", "seq": self.applied + 1, **fields}
        after = judge([*self.lines, json.dumps(row).encode()])
        keys = [
            Counter((f.rule, f.subject_id, f.position, f.detail, f.severity) for f in v.findings)
            for v in (after, self.verdict)
        ]
        return keys[0] - keys[1]


def moments(block: int) -> list[Moment]:
    found = [Moment(seed) for seed in range(block, SESSIONS, BLOCKS)]
    return [moment for moment in found if moment.applied is not None]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_permission_is_given_exactly_where_nothing_would_be_found(block: int) -> None:
    given = Counter[bool]()
    for moment in moments(block):
        before = moment.engine.dump()
        session = moment.session
        assert session is not None
        good = session["checkpoint_in_force"] is None or session["status"] in ("verified", "stale")
        healthy = good and not session["open_halts"] and not moment.unjudged
        for action in ACTIONS:
            answer = ask.authorize(moment.engine, AuthorizeRequest(session_id="s", action_id=action))
            found = moment.would_find("action", action_id=action, irreversible=True)
            # A last use outdates the checkpoint, and is permitted all the same.
            permitted = healthy and not {rule for rule, *_ in found} - {"stale_on_authorization"}
            assert not answer.allowed or permitted, (moment.rows, answer)
            assert answer.allowed or answer.reasons
            assert answer.allowed == permitted or not moment.whole, (moment.rows, answer)
            given[answer.allowed] += 1
        assert moment.engine.dump() == before
    assert given[True] > 15 and given[False] > 30


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_checkpoint_that_is_named_must_be_verified(block: int) -> None:
    given = Counter[bool]()
    for moment in moments(block):
        names = [*sorted({row["checkpoint_id"] for row in moment.rows if row["kind"] == "checkpoint"}), "nobody"]
        name = moment.rng.choice(names)
        found = moment.would_find("resume", checkpoint_id=name)
        verified = not moment.unjudged and not any(rule == "resumed_unverified" for rule, *_ in found)
        for action in ACTIONS:
            plain = ask.authorize(moment.engine, AuthorizeRequest(session_id="s", action_id=action))
            request = AuthorizeRequest(session_id="s", action_id=action, checkpoint_id=name)
            answer = ask.authorize(moment.engine, request)
            assert answer.allowed == (plain.allowed and verified), (moment.rows, name, answer)
            given[answer.allowed] += 1
    assert given[True] > 2 and given[False] > 30


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_resume_is_allowed_exactly_where_it_would_be_safe(block: int) -> None:
    given = Counter[str]()
    for moment in moments(block):
        before = moment.engine.dump()
        names = [row["checkpoint_id"] for row in moment.rows if row["kind"] == "checkpoint"]
        name = moment.rng.choice([*names[-2:], "nobody"])
        refs = next((row.get("verbatim_refs", []) for row in moment.rows if row.get("checkpoint_id") == name), [])
        deps = moment.rng.choice([[], refs, [*refs, moment.rng.choice(REFERENTS)]])
        assert moment.applied is not None
        to = moment.rng.choice([None, moment.rng.randint(1, moment.applied + 1), moment.applied])
        found = moment.would_find("resume", checkpoint_id=name, deps=deps, replayed_to=to or None)
        request = ResumeRequest(session_id="s", checkpoint_id=name, deps=deps, replayed_to=to)
        answer = ask.resume(moment.engine, request)
        unsafe = any(rule in ("resumed_unverified", "dependency_missing") for rule, *_ in found)
        safe = not unsafe and not moment.unjudged
        assert (answer.decision == "resume") == safe, (moment.rows, name, deps, found, answer)
        missing = sorted(detail for rule, _, _, detail, _ in found if rule == "dependency_missing")
        assert sorted(entry.reference for entry in answer.missing) == missing
        assert safe or answer.reasons
        given[answer.decision] += 1
        assert moment.engine.dump() == before
    assert given["resume"] > 2 and given["reconcile"] > 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_proposal_is_told_what_its_judging_would_find(block: int) -> None:
    given = Counter[str]()
    for moment in moments(block):
        summaries = [row for row in random_session(moment.rng, "s") if row["kind"] == "summary"]
        summaries += [row for row in moment.rows if row["kind"] == "summary"]
        if not summaries:
            continue
        assert moment.applied is not None
        proposal: Row = {**moment.rng.choice(summaries), "seq": moment.applied + 1}
        if moment.rng.random() < 0.7:
            proposal["generation"] = 9
            if moment.rng.random() < 0.2:
                flat = moment.rng.random() < 0.8
                retention = {"per_node_recall": 0.5, "source": "probe", "depth": 2, "flatten_available": flat}
                proposal["retention"] = retention
            proposal["frontier_hi"] = max(proposal["frontier_lo"], min(proposal["frontier_hi"], moment.applied))
        before = moment.engine.dump()
        fields = {name: value for name, value in proposal.items() if name not in ("kind", "session_id", "seq")}
        found = moment.would_find("summary", **fields)
        if moment.rng.random() < 0.5:
            del proposal["seq"]
        record, _ = decode(json.dumps(proposal).encode())
        answer = ask.commit(moment.engine, record)  # type: ignore[arg-type]
        ours = Counter((f.rule, f.subject.id, f.position, _detail(f), f.severity) for f in answer.findings)
        assert ours == found, (moment.rows, proposal)
        # What rests on something inferred is a warning, and holds nothing up.
        clean = not any(severity != "warning" or r == "reranking_without_floor" for r, *_, severity in found)
        assert (answer.decision == "commit") == (clean and not moment.unjudged), answer
        given[answer.decision] += 1
        assert moment.engine.dump() == before
        assert all(rule not in EDGE_RULES for rule, *_ in found)
    assert len(given) == 4, given


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_reclaimable_that_a_rule_or_a_halt_would_hold_back(block: int) -> None:
    given = Counter[str]()
    for moment in moments(block):
        node_ids = moment.rng.sample([*NODES, "nobody"], 3)
        found = moment.would_find("gc", node_ids=node_ids)
        answer = ask.gc(moment.engine, GcRequest(session_id="s", node_ids=node_ids))
        unprobed = {subject for rule, subject, *_ in found if rule == "gc_before_probe"}
        known = {row["node_id"] for row in moment.rows if row["kind"] == "summary"}
        held = moment.session is not None and moment.session["open_halts"]
        assert set(answer.reclaimable) <= known - unprobed
        if held or moment.unjudged:
            assert not answer.reclaimable
        elif moment.whole:
            assert set(answer.reclaimable) == (known & set(node_ids)) - unprobed
        assert [*answer.reclaimable, *(d.node_id for d in answer.deferred)]
        assert all(d.waits_for for d in answer.deferred)
        assert (answer.decision == "reclaim") == (not answer.deferred)
        given[answer.decision] += 1
    assert given["defer"] > 30
