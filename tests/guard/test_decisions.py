"""A permission is written down before it is given; what cannot be written, or no longer holds then, is refused."""

from __future__ import annotations

import asyncio
import io
import json
import time
from typing import Any

import jsonschema
import msgspec
import pytest

from sidecar.engine.live import Standing
from sidecar.engine.rules_text import json_schema
from sidecar.guard.access import Access
from sidecar.guard.decisions import DEPS, EDGES
from sidecar.observe.access import TokenFile
from tests.guard.support import FakeSessions, MemoryDecisions, guarded, until
from tests.guard.test_api import QUESTIONS, SUMMARY, refused, session

YES: dict[str, dict[str, Any]] = {
    "authorize": {"session_id": "s", "action_id": "deploy", "checkpoint_id": "c", "min_seq": 4},
    "resume": {"session_id": "s", "checkpoint_id": "c", "deps": ["r"]},
    "commit": {"session_id": "s", **SUMMARY, "generation": 2},
    "gc": {"session_id": "s", "node_ids": ["n"]},
}


def given(name: str, body: dict[str, Any]) -> bool:
    """Tell whether an answer permits anything at all."""
    if name == "authorize":
        return bool(body["allowed"])
    if name == "gc":
        return body["decision"] == "reclaim" or bool(body["reclaimable"])
    return bool(body["decision"] == {"resume": "resume", "commit": "commit"}[name])


def population() -> FakeSessions:
    sessions = FakeSessions()
    probed = {"kind": "probe", "session_id": "s", "node_id": "n", "probes": 10, "recalled": 10}
    sessions.fold(*session(probed))
    return sessions


@pytest.mark.parametrize("name", YES)
async def test_each_permission_is_written_down_with_what_it_rests_on(name: str) -> None:
    log = MemoryDecisions()
    async with guarded(population(), log=log) as g:
        began = time.time()
        answer = await g.ask(f"/v1/{name}", YES[name])
        assert answer.status == 200 and given(name, answer.body), answer
        (written,) = log.written
        assert began - 1 < written.decided_at.timestamp() < time.time() + 1
        fields = {key: value for key, value in msgspec.to_builtins(written).items() if value not in (None, [])}
        assert len(fields.pop("decision_id")) == 32
        del fields["decided_at"]
        assert fields == {
            "question": name,
            "session_id": "s",
            "position": 5,
            **{
                "authorize": {"action_id": "deploy", "checkpoint_id": "c", "min_seq": 4, "edges": [("deploy", "p")],
                              "checkpoint_in_force": "c"},
                "resume": {"checkpoint_id": "c", "deps": ["r"]},
                "commit": {"node_ids": ["n"], "generation": 2},
                "gc": {"node_ids": ["n"]},
            }[name],
        }  # fmt: skip
        schema = json_schema()
        validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/Decision", "$defs": schema["$defs"]})
        validator.validate(json.loads(msgspec.json.encode(written)))
        await g.ask(f"/v1/{name}", YES[name])
        assert len({decision.decision_id for decision in log.written}) == 2


@pytest.mark.parametrize("name", YES)
async def test_what_is_refused_is_written_nowhere(name: str) -> None:
    log = MemoryDecisions()
    async with guarded(population(), log=log) as g:
        assert not given(name, (await g.ask(f"/v1/{name}", {**YES[name], "session_id": "nobody"})).body)
        assert not given(name, (await g.ask(f"/v1/{name}", {})).body)
        g.sessions.fold({"kind": "action", "session_id": "s", "seq": 6, "action_id": "x", "irreversible": True})
        answer = await g.ask(f"/v1/{name}", YES[name])
        assert log.written == [] or given(name, answer.body)


async def test_part_of_a_collection_is_a_permission_too() -> None:
    log = MemoryDecisions()
    async with guarded(population(), log=log) as g:
        answer = await g.ask("/v1/gc", {"session_id": "s", "node_ids": ["n", "ghost"]})
        assert (answer.body["decision"], answer.body["reclaimable"]) == ("defer", ["n"])
        assert [decision.node_ids for decision in log.written] == [["n"]]
        log.error = OSError("disk full")
        answer = await g.ask("/v1/gc", {"session_id": "s", "node_ids": ["n", "ghost"]})
        refused("gc", answer, 503, "not_recorded")
        assert answer.body["reclaimable"] == []


@pytest.mark.parametrize("name", YES)
@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("no broker"), ValueError("secret-session")])
async def test_what_cannot_be_written_is_refused(name: str, error: Exception, logged: io.StringIO) -> None:
    log = MemoryDecisions()
    log.error = error
    async with guarded(population(), log=log) as g:
        for _ in range(5):
            answer = await g.ask(f"/v1/{name}", YES[name])
            refused(name, answer, 503, "not_recorded")
            assert not given(name, answer.body)
            assert answer.headers["Retry-After"] == "1"
        assert g.value("sidecar_guard_refusals_total", code="not_recorded") == 5
        log.error = None
        assert given(name, (await g.ask(f"/v1/{name}", YES[name])).body)
    assert logged.getvalue().count("cannot be written down") == 1  # not for each question
    assert "secret" not in logged.getvalue()


@pytest.mark.parametrize("name", YES)
async def test_a_log_that_hangs_is_waited_for_only_so_long(name: str) -> None:
    log = MemoryDecisions()
    log.pause = 60.0
    async with guarded(population(), log=log, decision_timeout=0.2) as g:
        began = time.monotonic()
        answer = await g.ask(f"/v1/{name}", YES[name])
        assert 0.15 < time.monotonic() - began < 3.0
        refused(name, answer, 503, "not_recorded")
        assert not given(name, answer.body)
        assert "guard.decision_timeout" in answer.body["reasons"][0]["detail"]
        await until(lambda: log.writing == 0)


async def test_without_a_log_nothing_is_permitted(logged: io.StringIO) -> None:
    async with guarded(population()) as g:
        g.guard.serve(g.sessions, None)
        for name, question in YES.items():
            answer = await g.ask(f"/v1/{name}", question)
            refused(name, answer, 503, "not_recorded")
            assert not given(name, answer.body)


async def test_it_can_be_turned_off_and_that_is_said(logged: io.StringIO) -> None:
    log = MemoryDecisions()
    async with guarded(population(), log=log, decisions="off") as g:
        for name, question in YES.items():
            assert given(name, (await g.ask(f"/v1/{name}", question)).body)
        assert log.written == []
    assert '"warning"' in logged.getvalue() and "guard.decisions: off" in logged.getvalue()


async def test_many_are_written_at_the_same_time() -> None:
    log = MemoryDecisions()
    log.pause = 0.2
    async with guarded(population(), log=log) as g:
        began = time.monotonic()
        answers = await asyncio.gather(*(g.ask("/v1/authorize", YES["authorize"]) for _ in range(50)))
        assert all(answer.body["allowed"] for answer in answers)
        assert time.monotonic() - began < 3.0  # one after the other: 10 s
        assert log.most == 50
        assert len({decision.decision_id for decision in log.written}) == 50


# --- what happens between the judgement and the write -----------------------------------------------------------------


def record(kind: str, seq: int, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "session_id": "s", "seq": seq, **fields}


BETWEEN: dict[str, dict[str, Any]] = {
    "authorize": record("revocation", 6, action_id="deploy"),
    "resume": record("authorization", 6, action_id="x", precondition_id="y"),
    "commit": record("summary", 6, **{**SUMMARY, "generation": 2}),
    "gc": record("action", 6, action_id="x", irreversible=True),
}


@pytest.mark.parametrize("name", YES)
async def test_what_comes_while_it_is_written_is_heeded(name: str) -> None:
    log = MemoryDecisions()
    sessions = population()
    log.during = lambda: sessions.fold(BETWEEN[name])
    async with guarded(sessions, log=log) as g:
        answer = await g.ask(f"/v1/{name}", YES[name])
        assert not given(name, answer.body), answer
        refused(name, answer, 200, *{reason["code"] for reason in answer.body["reasons"]})
        assert len(log.written) == 1  # the log holds more than was given


async def test_another_approval_in_place_of_the_one_that_was_written_is_asked_for_again() -> None:
    log = MemoryDecisions()
    sessions = population()
    log.during = lambda: sessions.fold(
        record("revocation", 6, action_id="deploy"),
        record("authorization", 7, action_id="deploy", precondition_id="p"),
    )
    async with guarded(sessions, log=log) as g:
        question = {"session_id": "s", "action_id": "deploy"}
        answer = await g.ask("/v1/authorize", question)
        refused("authorize", answer, 503, "not_recorded")
        log.during = lambda: None
        answer = await g.ask("/v1/authorize", question)
        assert answer.body["allowed"]
        assert [decision.position for decision in log.written] == [5, 7]


async def test_a_session_that_goes_on_meanwhile_is_permitted_all_the_same() -> None:
    log = MemoryDecisions()
    sessions = population()
    seqs = iter(range(6, 100))
    log.during = lambda: sessions.fold(record("message", next(seqs)))
    async with guarded(sessions, log=log) as g:
        for name in ("authorize", "resume", "commit", "gc"):
            assert given(name, (await g.ask(f"/v1/{name}", YES[name])).body), name
        assert [decision.position for decision in log.written] == [5, 6, 7, 8]


@pytest.mark.parametrize("trouble", ["lagging", "restoring", "not_owned", "unavailable"])
async def test_a_session_that_is_lost_while_it_is_written(trouble: Any) -> None:
    log = MemoryDecisions()
    sessions = population()
    log.during = lambda: sessions.trouble.update({None: Standing(trouble=trouble)})
    async with guarded(sessions, log=log) as g:
        answer = await g.ask("/v1/authorize", YES["authorize"])
        refused("authorize", answer, 421 if trouble == "not_owned" else 200, trouble)


async def test_a_guard_that_is_closed_while_it_is_written() -> None:
    log = MemoryDecisions()
    async with guarded(population(), log=log) as g:
        log.during = g.guard.close
        refused("authorize", await g.ask("/v1/authorize", YES["authorize"]), 200, "unavailable")


# --- bounds, and who asked --------------------------------------------------------------------------------------------


async def test_what_is_written_is_bounded() -> None:
    log = MemoryDecisions()
    sessions = FakeSessions()
    grants = [record("authorization", n, action_id="a", precondition_id=f"p{n}") for n in range(1, 101)]
    sessions.fold(*grants)
    async with guarded(sessions, log=log) as g:
        assert (await g.ask("/v1/authorize", {"session_id": "s", "action_id": "a"})).body["allowed"]
        assert log.written[0].edges == [("a", f"p{n}") for n in range(101 - EDGES, 101)]
    sessions = FakeSessions()
    rows = session()
    rows[3]["verbatim_refs"] = [f"r{n}" for n in range(1000)]
    sessions.fold(*rows)
    async with guarded(sessions, log=log) as g:
        deps = [f"r{n}" for n in range(1000)]
        answer = await g.ask("/v1/resume", {"session_id": "s", "checkpoint_id": "c", "deps": deps})
        assert answer.body["decision"] == "resume"
        assert log.written[1].deps == deps[:DEPS]


async def test_who_asked_is_written_and_never_the_token(tmp_path: Any) -> None:
    path = tmp_path / "tokens"
    path.write_text("secret-one\nsecret-two name=ci%20bot\n")
    access = Access(tokens=TokenFile(path, "guard.token_file"))
    log = MemoryDecisions()
    async with guarded(population(), access, log=log) as g:
        for token in ("secret-one", "secret-two"):
            answer = await g.ask("/v1/authorize", YES["authorize"], headers={"Authorization": f"Bearer {token}"})
            assert answer.body["allowed"]
        assert [decision.asked_by for decision in log.written] == ["token in line 1", "ci bot"]
        assert b"secret" not in msgspec.json.encode(log.written)


def test_every_question_is_among_these() -> None:
    assert set(YES) == set(QUESTIONS)
