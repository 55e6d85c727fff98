"""A session's story: every finding is told, at the positions that the log has, and nothing is made up."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.page.views import session
from sidecar.fleet.queries import SessionDetail
from sidecar.fleet.timeline import LANES, Name, Timeline, plain, tell
from sidecar.protocol.api import Edge
from sidecar.protocol.outputs import Finding, Subject
from sidecar.simulate import DIRECT, FAULTS, FaultRates, Fleet, Shape
from tests.fleet.memory import MemoryFleet
from tests.fleet.states import LONG
from tests.fleet.support import state

SHAPE = Shape(turns=(12, 20), cycles=(2, 3))


async def planted(kind: str, seed: int = 1) -> tuple[SessionDetail, list[dict[str, Any]]]:
    """Return a session with a fault, and its readable records."""
    messages = [*Fleet(seed, 1, 1, FaultRates.only(kind), transport=DIRECT, shape=SHAPE).messages()]
    fleet = MemoryFleet().feed(messages)
    detail = await fleet.session(fleet.session_ids()[0])
    assert detail is not None
    records = []
    for message in messages:
        try:
            record = msgspec.json.decode(message.value)
        except msgspec.MsgspecError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return detail, records


def told(detail: SessionDetail, **options: Any) -> Timeline:
    return session(detail, **options).timeline


@pytest.mark.parametrize("kind", [k for k in FAULTS if k != "stray_bytes"])  # (these are no session's)
async def test_every_finding_is_told_where_it_happened(kind: str) -> None:
    detail, _ = await planted(kind)
    timeline = told(detail)
    assert detail.findings
    drawn = {t.finding_id for t in timeline.threads} | {b.finding_id for b in timeline.bands}
    assert {f.finding_id for f in detail.findings} <= drawn
    _, last = timeline.extent
    assert all(1 <= p <= last for p in timeline.positions())
    assert len({t.key for t in timeline.threads}) == len(timeline.threads)
    for thread in timeline.threads:
        assert thread.points and thread.verdict and plain(thread.label) and plain(thread.said).endswith((".", ")"))
        assert thread.lane in LANES
        assert thread.position in [p.at for p in thread.points] or thread.rule == "stale_on_authorization"


async def test_a_dropped_approval_is_drawn_from_its_grant_to_the_checkpoint_that_lacks_it() -> None:
    detail, records = await planted("edge_dropped")
    granted = {(r["action_id"], r["precondition_id"]): r["seq"] for r in records if r["kind"] == "authorization"}
    written = {r["checkpoint_id"]: r for r in records if r["kind"] == "checkpoint"}
    timeline = told(detail)
    dropped = [t for t in timeline.threads if t.verdict == "dropped"]
    assert dropped
    for thread in dropped:
        precondition, action = (w.id for w in thread.label if isinstance(w, Name))
        names = [w.id for w in thread.said if isinstance(w, Name)]
        checkpoint = written[names[-1]]
        assert [(p.at, p.shape) for p in thread.points] == [
            (granted[action, precondition], "granted"),
            (checkpoint["seq"], "absent"),
        ]
        assert [action, precondition] not in checkpoint["asserted_edges"]
        held, broken = thread.stretches
        assert (held.lo, held.hi, held.look) == (granted[action, precondition], checkpoint["frontier_hi"], "held")
        assert (broken.hi, broken.look) == (checkpoint["seq"], "broken")
    assert (
        plain(timeline.headlines[0]).startswith(f"The approval {precondition} for {action}, granted at ")
        or len(dropped) > 1
    )
    assert "is missing from" in plain(timeline.headlines[0])


@pytest.mark.parametrize(
    ("kind", "verdict", "shapes"),
    [
        ("edge_hallucinated", "invented", ["invented"]),
        ("edge_revoked", "revoked", ["granted", "ended", "asserted"]),
        ("edge_out_of_range", "out of range", ["granted", "asserted"]),
    ],
)
async def test_other_wrong_approvals_have_forms_of_their_own(kind: str, verdict: str, shapes: list[str]) -> None:
    detail, _ = await planted(kind)
    threads = [t for t in told(detail).threads if t.rule == kind]
    assert threads
    assert all(t.verdict == verdict and [p.shape for p in t.points] == shapes for t in threads)


async def test_an_eviction_is_drawn_from_where_the_value_was_last_seen() -> None:
    detail, records = await planted("referent_orphaned", seed=5)
    removed: dict[str, list[int]] = {}
    for record in records:
        if record["kind"] == "referent_removed":
            removed.setdefault(record["referent_id"], []).append(record["seq"])
    added = {r["referent_id"]: r["seq"] for r in records if r["kind"] == "referent_added"}
    threads = [t for t in told(detail).threads if t.verdict == "orphaned"]
    assert threads
    for thread in threads:
        referent = next(w.id for w in thread.label if isinstance(w, Name))
        points = {p.shape: p.at for p in thread.points}
        assert points.get("seen") == added.get(referent)
        if referent in removed:
            assert points["gone"] in removed[referent]


async def test_gaps_are_bands_of_the_positions_that_never_came() -> None:
    detail, records = await planted("log_gap")
    there = {r["seq"] for r in records if "seq" in r}
    bands = told(detail).bands
    assert bands and all(b.what == "gap" and not there & set(range(b.lo, b.hi + 1)) for b in bands)


async def test_what_the_checkpoints_claim_comes_from_the_session_itself() -> None:
    detail, records = await planted("edge_dropped")
    written = {r["checkpoint_id"]: r for r in records if r["kind"] == "checkpoint"}
    covered = told(detail).checkpoints
    assert [c.checkpoint_id for c in covered if c.in_force] == [detail.checkpoint.checkpoint_id]  # type: ignore[union-attr]
    for one in covered:
        record = written[one.checkpoint_id]
        assert one.position == record["seq"]
        assert (one.lo, one.hi) in (
            (None, None),
            (record["frontier_lo"], record["frontier_hi"]),
            (None, record["frontier_hi"]),
        )


async def test_the_guard_tells_which_approvals_were_kept() -> None:
    detail, records = await planted("edge_dropped")
    force = detail.checkpoint
    assert force is not None
    record = next(r for r in records if r["kind"] == "checkpoint" and r["checkpoint_id"] == force.checkpoint_id)
    granted = {(r["action_id"], r["precondition_id"]): r["seq"] for r in records if r["kind"] == "authorization"}
    revoked = {(r["action_id"], r.get("precondition_id")) for r in records if r["kind"] == "revocation"}
    edges = [Edge(action_id=a, precondition_id=p, granted=g) for (a, p), g in granted.items() if (a, p) not in revoked]
    later = Edge(action_id="later", precondition_id="than-it", granted=force.frontier_hi + 1)
    threads = told(detail, edges=[*edges, later], edge_count=len(edges) + 1).threads
    kept = {tuple(reversed([w.id for w in t.label if isinstance(w, Name)])) for t in threads if t.verdict == "kept"}
    asserted = {tuple(e) for e in record["asserted_edges"]}
    assert kept and kept <= asserted
    assert next(t for t in threads if t.verdict == "in effect" and "later" in plain(t.label))


async def test_without_the_guard_it_says_that_kept_approvals_are_not_drawn() -> None:
    detail, _ = await planted("edge_dropped")
    unknown = [plain(w) for w in told(detail).unknown]
    assert any("Approvals that were kept are not drawn" in text for text in unknown)
    assert any("Resumes that were safe" in text for text in unknown)
    assert not any("kept" in t.verdict for t in told(detail).threads)


async def test_what_is_no_longer_kept_is_said() -> None:
    detail = await state("long").session(LONG)
    assert detail is not None and detail.dropped > 400
    view = session(detail)
    assert any(f"{detail.dropped:,} older findings" in plain(w) for w in view.timeline.unknown)
    assert any("The range is not known here of" in plain(w) for w in view.timeline.unknown)


async def test_what_still_holds_a_session_up_is_said_first() -> None:
    detail = await state("long").session(LONG)
    assert detail is not None
    first = plain(session(detail).timeline.headlines[0])
    assert first.startswith("The approval ") and "is missing from" in first
    assert str(detail.checkpoint.checkpoint_id) in first  # type: ignore[union-attr]


def finding(rule: str, evidence: dict[str, Any], position: int = 9) -> Finding:
    entry = CATALOGUE[rule]
    return Finding(
        finding_id=f"{rule}{position}",
        rule=rule,
        severity=entry.severity,
        disposition=entry.disposition,
        session_id="s",
        subject=Subject(entry.subject, "it"),
        position=position,
        evidence=evidence,
    )


NONSENSE: tuple[Any, ...] = (None, 7, -3, "x", [], {}, [1, "2", None], [{"granted": "x"}], {"position": []}, True)


@pytest.mark.parametrize("rule", [*CATALOGUE])
def test_evidence_of_another_version_breaks_nothing(rule: str) -> None:
    keys = ("witness", "edges", "reasons", "last_seen", "missing", "frontier_lo", "frontier_hi", "checkpoint_range")
    findings = [
        finding(rule, {key: value, "witness": value}, position)
        for position, (key, value) in enumerate(product(keys, NONSENSE), start=1)
    ]
    for evidence in ({}, {"cut": True, "witness": [1, 2]}):
        findings.append(finding(rule, evidence, 500))
    timeline = tell(findings, [], [], position=600)
    drawn = {t.finding_id for t in timeline.threads} | {b.finding_id for b in timeline.bands}
    # Without its list of edges there is no approval to draw: then the checkpoint itself is.
    assert {f.finding_id for f in findings} == drawn
    assert all(p >= 1 for p in timeline.positions())


def test_a_rule_of_another_version_is_told_as_far_as_it_can_be() -> None:
    other = msgspec.structs.replace(finding("edge_dropped", {"witness": [3, 9]}), rule="edge_mislaid")
    thread = tell([other], [], [], position=9).threads[0]
    assert thread.verdict == "edge mislaid"
    assert "does not know the rule" in plain(thread.said)
