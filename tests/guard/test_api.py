"""What is asked of the guard is answered by the engine; what cannot be answered is refused, with the same type."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any
from urllib.parse import quote

import pytest

from sidecar.engine import ask
from sidecar.engine.fold import Engine, Outcome
from sidecar.engine.live import Standing
from sidecar.engine.rules import CATALOGUE
from sidecar.guard import api
from sidecar.guard.recent import RecentFindings
from sidecar.protocol.api import AuthorizeAnswer, CommitAnswer, GcAnswer, ResumeAnswer
from sidecar.protocol.openapi import ASKED, ROUTES
from sidecar.protocol.outputs import Finding, Subject
from tests.guard.support import Answer, FakeSessions, authorized, guarded

SUMMARY = {"node_id": "n", "generation": 1, "level": 1, "frontier_lo": 1, "frontier_hi": 2}
QUESTIONS: dict[str, dict[str, Any]] = {
    "authorize": {"session_id": "s", "action_id": "deploy"},
    "resume": {"session_id": "s", "checkpoint_id": "c"},
    "commit": {"session_id": "s", **SUMMARY},
    "gc": {"session_id": "s", "node_ids": ["n"]},
}
REFUSALS: dict[str, dict[str, Any]] = {
    "authorize": {"allowed": False},
    "resume": {"decision": "reconcile"},
    "commit": {"decision": "halt"},
    "gc": {"decision": "defer"},
}
TYPES = {"authorize": AuthorizeAnswer, "resume": ResumeAnswer, "commit": CommitAnswer, "gc": GcAnswer}


def refused(name: str, answer: Answer, status: int, *codes: str) -> None:
    """Require an answer of the question's own type that refuses for these reasons."""
    assert answer.status == status, answer
    assert set(answer.body) == set(TYPES[name].__struct_fields__)
    assert answer.body | REFUSALS[name] == answer.body
    assert {reason["code"] for reason in answer.body["reasons"]} == set(codes)
    assert all(reason["detail"] for reason in answer.body["reasons"])


def session(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a session with a verified checkpoint `c` of node `n`."""
    rows: list[dict[str, Any]] = [
        *authorized("s"),
        {"kind": "summary", **SUMMARY},
        {
            "kind": "checkpoint",
            "checkpoint_id": "c",
            "node_id": "n",
            "summary_generation": 1,
            "level": 1,
            "turn": 4,
            "frontier_lo": 1,
            "frontier_hi": 2,
            "asserted_edges": [["deploy", "p"]],
            "verbatim_refs": ["r"],
        },
        *more,
    ]
    return [{**row, "session_id": "s", "seq": seq} for seq, row in enumerate(rows, 1)]


# --- asking -------------------------------------------------------------------------------------------------------


async def test_authorize() -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        answer = await g.ask("/v1/authorize", {"session_id": "s", "action_id": "deploy", "checkpoint_id": "c"})
        assert answer.status == 200
        assert answer.body["allowed"] is True
        assert answer.body["edges"] == [{"action_id": "deploy", "precondition_id": "p", "granted": 2}]
        assert answer.body["position"] == 4
        answer = await g.ask("/v1/authorize", {"session_id": "s", "action_id": "destroy"})
        refused("authorize", answer, 200, "rule")
        (reason,) = answer.body["reasons"]
        assert reason["rule"] == "action_unauthorized"
        rule = await g.look(reason["href"])
        assert rule.body["meaning"] == CATALOGUE["action_unauthorized"].meaning
        assert g.value("sidecar_guard_requests_total", route="authorize", decision="allowed") == 1
        assert g.value("sidecar_guard_requests_total", route="authorize", decision="refused") == 1
        assert g.value("sidecar_guard_refusals_total", code="rule") == 1
        assert g.value("sidecar_guard_seconds_count", route="authorize") == 2
        assert g.value("sidecar_guard_in_flight") == 0


async def test_resume() -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        answer = await g.ask("/v1/resume", {"session_id": "s", "checkpoint_id": "c", "deps": ["r"]})
        assert answer.body["decision"] == "resume"
        answer = await g.ask("/v1/resume", {"session_id": "s", "checkpoint_id": "c", "deps": ["r", "x"]})
        refused("resume", answer, 200, "rule")
        assert answer.body["missing"] == [{"reference": "x", "last_seen": None}]
        assert (answer.body["summary_generation"], answer.body["turn"]) == (1, 4)


async def test_commit_and_gc() -> None:
    async with guarded() as g:
        g.sessions.fold(
            *session({"kind": "fact", "fact_id": "f", "anchor": "42", "floor_tokens": 1}),
        )
        before = g.sessions.engine.dump()
        proposed = {"session_id": "s", **SUMMARY, "generation": 2, "frontier_hi": 5}
        answer = await g.ask("/v1/commit", {**proposed, "facts": {"f": "it is 42"}})
        assert answer.body["decision"] == "commit", answer
        assert (await g.ask("/v1/commit", {**proposed, "kind": "summary", "facts": {"f": "42"}})) == answer
        answer = await g.ask("/v1/commit", proposed)
        refused_with = {key: answer.body[key] for key in ("decision", "facts")}
        assert refused_with == {
            "decision": "retry_pinned",
            "facts": [{"fact_id": "f", "lost": True, "anchor": "42", "floor_tokens": 1, "position": 5}],
        }
        assert [finding["rule"] for finding in answer.body["findings"]] == ["fact_dropped"]
        answer = await g.ask("/v1/gc", {"session_id": "s", "node_ids": ["n", "ghost"]})
        assert answer.body["decision"] == "defer"
        assert {deferred["node_id"] for deferred in answer.body["deferred"]} == {"n", "ghost"}
        assert g.sessions.engine.dump() == before
        assert g.value("sidecar_guard_refusals_total", code="unknown_node") == 1


@pytest.mark.parametrize("name", QUESTIONS)
async def test_an_unknown_session_is_a_refusal_and_no_error(name: str) -> None:
    async with guarded() as g:
        answer = await g.ask(f"/v1/{name}", {**QUESTIONS[name], "session_id": "nobody"})
        if name == "gc":
            assert answer.body["reclaimable"] == []
        refused(name, answer, 200, "unknown_session")


@pytest.mark.parametrize(
    ("trouble", "status"), [("restoring", 200), ("lagging", 200), ("unavailable", 200), ("not_owned", 421)]
)
async def test_sessions_that_cannot_be_answered_for(trouble: Any, status: int) -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        standing = Standing(trouble=trouble, owner="https://other:9464" if trouble == "not_owned" else None)
        g.sessions.trouble[None] = standing
        for name, question in QUESTIONS.items():
            answer = await g.ask(f"/v1/{name}", question)
            refused(name, answer, status, trouble)
            assert answer.body["owner"] == standing.owner
            if standing.owner:
                assert answer.headers["Location"] == f"https://other:9464/v1/{name}"
        for path in ("/v1/sessions/s%2F1", "/v1/sessions/s/checkpoints/c", "/v1/findings?session=s"):
            answer = await g.look(path)
            assert answer.status == (421 if trouble == "not_owned" else 503), (path, answer)
            assert answer.body["reasons"][0]["code"] == trouble
            if trouble == "not_owned":
                assert answer.headers["Location"] == "https://other:9464" + path
            else:
                assert answer.headers["Retry-After"] == "1"
        g.sessions.trouble[None] = Standing(trouble="not_owned")
        answer = await g.ask("/v1/authorize", QUESTIONS["authorize"])
        refused("authorize", answer, 421, "not_owned")
        assert "Location" not in answer.headers


async def test_a_session_that_lags_can_be_looked_at() -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        g.sessions.trouble[None] = Standing(trouble="lagging", engine=g.sessions.engine)
        assert (await g.look("/v1/sessions/s")).body["position"] == 4
        refused("authorize", await g.ask("/v1/authorize", QUESTIONS["authorize"]), 200, "lagging")


# --- questions that are none ------------------------------------------------------------------------------------------

_MAX = 2**61 - 1


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("authorize", b"", "the body is empty"),
        ("authorize", b"{", "not JSON"),
        ("authorize", b"\xff", "not JSON"),
        ("authorize", b'{"session_id": "\xff"}', "not JSON"),
        ("authorize", [], "Expected `object`, got `array`"),
        ("authorize", {"session_id": "s"}, "`action_id`"),
        ("authorize", {"session_id": "", "action_id": "a"}, "$.session_id"),
        ("authorize", {"session_id": "s", "action_id": 1}, "$.action_id"),
        ("authorize", {"session_id": "s", "action_id": "a", "irreversible": True}, "unknown field `irreversible`"),
        ("authorize", {"session_id": "s", "action_id": "a", "min_seq": -1}, "$.min_seq"),
        ("authorize", {"session_id": "s", "action_id": "a", "min_seq": "1"}, "$.min_seq"),
        ("authorize", {"session_id": "s", "action_id": "a", "min_seq": _MAX + 1}, "$.min_seq"),
        ("authorize", b'{"session_id":"s","action_id":' + b"[" * 100_000, "$.action_id"),
        ("resume", {"session_id": "s", "checkpoint_id": "c", "deps": [""]}, "$.deps"),
        ("resume", {"session_id": "s", "checkpoint_id": "c", "deps": ["d"] * 10_001}, "$.deps"),
        ("commit", {"session_id": "s"}, "`node_id`"),
        ("commit", {**QUESTIONS["commit"], "kind": "checkpoint"}, "`kind`"),
        ("commit", {**QUESTIONS["commit"], "frontier_lo": 3}, "`frontier_lo` 3 is greater than `frontier_hi` 2"),
        ("commit", {**QUESTIONS["commit"], "generation": 1.5}, "$.generation"),
        ("commit", {**QUESTIONS["commit"], "min_seq": True}, "`min_seq`"),
        ("commit", {**QUESTIONS["commit"], "min_seq": 1.0}, "`min_seq`"),
        ("commit", b'{"session_id":"s","x":1e999}', "Number out of range"),
        ("commit", b'{"session_id":"s","node_id":' + b"9" * 500 + b"}", "$.node_id"),
        ("commit", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        ("commit", b'{"session_id":"s","x":' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
        ("commit", ["s"], "expected a JSON object"),
        ("gc", {"session_id": "s", "node_ids": "n"}, "$.node_ids"),
    ],
)
async def test_the_reason_names_what_is_wrong(name: str, body: Any, says: str) -> None:
    async with guarded() as g:
        headers = {"Content-Type": "application/json"}
        answer = await g.ask(f"/v1/{name}", body, headers=headers)
        refused(name, answer, 400, "bad_request")
        assert says in answer.body["reasons"][0]["detail"], answer
        assert g.sessions.asked == 0


async def test_null_counts_as_absent() -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        asked = {"session_id": "s", "action_id": "deploy", "checkpoint_id": None, "min_seq": None}
        assert (await g.ask("/v1/authorize", asked)).body["allowed"]
        absent = {"kind": None, "min_seq": None, "seq": None, "ts": "yesterday"}
        proposed = {**QUESTIONS["commit"], "generation": 2, **absent}
        assert (await g.ask("/v1/commit", proposed)).body["decision"] == "commit"


async def test_a_proposal_that_the_log_has_not_got_to_is_waited_for() -> None:
    async with guarded(max_wait=3.0) as g:
        g.sessions.fold(*authorized("s"))
        asking = asyncio.create_task(g.ask("/v1/commit", {**QUESTIONS["commit"], "as_of_seq": 3}))
        await asyncio.sleep(0.05)
        assert not asking.done()
        g.sessions.fold({"kind": "message", "session_id": "s", "seq": 3})
        assert (await asking).body["decision"] == "commit"


# --- addresses --------------------------------------------------------------------------------------------------------

IDS = [
    "a/b",
    "a%2Fb",
    "%",
    "..",
    ".",
    "/",
    "//",
    "ä ö",
    "a?b#c",
    "{id}",
    "a\nb",
    "\x00",
    "checkpoints",
    "+ +",
    "😀",
    ";=&",
]


@pytest.mark.parametrize("session_id", IDS)
async def test_ids_may_hold_any_character(session_id: str) -> None:
    async with guarded() as g:
        g.sessions.fold(*[{**row, "session_id": session_id} for row in session()])
        g.sessions.fold(*[{**row, "session_id": "other"} for row in session()])
        for encoded in {quote(session_id, safe=""), "".join(f"%{byte:02x}" for byte in session_id.encode())}:
            found = await g.look(f"/v1/sessions/{encoded}")
            assert (found.status, found.body.get("session_id")) == (200, session_id)
            found = await g.look(f"/v1/sessions/{encoded}/checkpoints/{quote('c')}")
            assert (found.status, found.body["checkpoint_id"]) == (200, "c")
            assert (await g.look(f"/v1/sessions/{encoded}/checkpoints/{encoded}")).status == 404
            assert (await g.look(f"/v1/findings?session={encoded}")).body == {"findings": [], "dropped": 0}
        answer = await g.ask("/v1/authorize", {"session_id": session_id, "action_id": "deploy"})
        assert answer.body["allowed"]


async def test_checkpoint_ids_too() -> None:
    async with guarded() as g:
        rows = session()
        rows[3]["checkpoint_id"] = "c/1 %"
        g.sessions.fold(*rows)
        assert (await g.look("/v1/sessions/s/checkpoints/c%2F1%20%25")).body["checkpoint_id"] == "c/1 %"


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/", "/v1/nothing", "/v1/sessions", "/v1/sessions/", "/v1/sessions//checkpoints/c", "/v1//authorize"),
        *("/v1/sessions/s/checkpoints/", "/v1/sessions/s/", "/v1/rules/", "/v1/rules/log_gasp", "/v1/rules/a/b"),
        *("/v1/sessions/nobody", "/v1/sessions/s/checkpoints/nothing", "/v1/findings?session=nobody", "/v1/AUTHORIZE"),
    ],
)
async def test_nothing_there(path: str) -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        answer = await g.look(path)
        assert answer.status == 404
        assert set(answer.body) == {"reasons", "owner"}
        if "authorize" not in path.lower():
            assert (await g.ask(path, {})).status in (404, 405)


@pytest.mark.parametrize("part", ["%ff", "a%C3", "%ED%A0%80"])
async def test_ids_that_are_no_text(part: str) -> None:
    async with guarded() as g:
        for path in (f"/v1/sessions/{part}", f"/v1/sessions/s/checkpoints/{part}", f"/v1/rules/{part}"):
            answer = await g.look(path)
            assert answer.status == 400, answer
        assert (await g.look(f"/v1/findings?session={part}")).status == 400


@pytest.mark.parametrize("limit", ["", "0", "-1", "1001", "1.0", "x", "1e2", "²", "9" * 5000, "%32%20"])
async def test_limits_that_are_none(limit: str) -> None:
    async with guarded() as g:
        answer = await g.look(f"/v1/findings?limit={quote(limit, safe='%')}")
        assert answer.status == 400
        assert "`limit`" in answer.body["reasons"][0]["detail"]


async def test_a_parameter_that_is_not_known_is_not_passed_over() -> None:
    """A misspelt filter must not look like an answer about all sessions."""
    async with guarded() as g:
        answer = await g.look("/v1/findings?session_id=a")
        assert answer.status == 400
        assert "known: limit, session" in answer.body["reasons"][0]["detail"]


async def test_methods() -> None:
    async with guarded() as g:
        g.sessions.fold(*session())
        for route in ROUTES:
            path = route.path.replace("{session_id}", "s").replace("{checkpoint_id}", "c").replace("{rule}", "log_gap")
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
                answer = await g.request(method, path)
                known = ("POST",) if route.method == "POST" else ("GET", "HEAD")
                if method in known:
                    assert answer.status != 405
                    continue
                assert answer.status == 405
                assert answer.headers["Allow"] == ", ".join(known)
                if route in ASKED and method != "HEAD":
                    refused(route.name, answer, 405, "bad_request")


async def test_the_index_lists_what_there_is() -> None:
    async with guarded() as g, g.client.get(g.server.url) as response:
        text = await response.text()
        assert all(f"{route.method:<5} {route.path}  {route.title}" in text for route in ROUTES)


# --- min_seq ------------------------------------------------------------------------------------------------------


async def test_min_seq_waits_until_the_log_is_there() -> None:
    async with guarded(max_wait=3.0) as g:
        rows = authorized("s")
        g.sessions.fold(rows[0])
        asked = {**QUESTIONS["authorize"], "min_seq": 2}
        asking = asyncio.create_task(g.ask("/v1/authorize", asked))
        unknown = asyncio.create_task(g.ask("/v1/authorize", {**asked, "session_id": "new"}))
        await asyncio.sleep(0.25)
        assert not asking.done() and not unknown.done()
        assert g.value("sidecar_guard_in_flight") == 2
        g.sessions.fold(rows[1], *authorized("new"))
        assert (await asking).body["allowed"] and (await unknown).body["allowed"]


async def test_min_seq_gives_up() -> None:
    async with guarded(max_wait=0.3) as g:
        g.sessions.fold(*authorized("s"))
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(
            *(g.ask(f"/v1/{name}", {**question, "min_seq": 3}) for name, question in QUESTIONS.items()),
            g.ask("/v1/authorize", {**QUESTIONS["authorize"], "session_id": "nobody", "min_seq": 1}),
        )
        assert 0.25 < asyncio.get_running_loop().time() - began < 5.0
        for name, answer in zip([*QUESTIONS, "authorize"], answers, strict=True):
            refused(name, answer, 200, "not_applied")
        assert [answer.body["position"] for answer in answers] == [2, 2, 2, 2, None]


async def test_without_min_seq_nothing_is_waited_for() -> None:
    async with guarded(max_wait=30.0, timeout=60.0) as g:
        g.sessions.trouble[None] = Standing(trouble="restoring")
        refused("authorize", await g.ask("/v1/authorize", QUESTIONS["authorize"]), 200, "restoring")


async def test_min_seq_waits_for_what_may_pass_and_for_nothing_else() -> None:
    async with guarded(max_wait=30.0, timeout=60.0) as g:
        g.sessions.fold(*authorized("s"))
        asked = {**QUESTIONS["authorize"], "min_seq": 2}
        g.sessions.trouble[None] = Standing(trouble="restoring")
        asking = asyncio.create_task(g.ask("/v1/authorize", asked))
        await asyncio.sleep(0.15)
        g.sessions.trouble[None] = Standing(trouble="lagging")
        await asyncio.sleep(0.15)
        assert not asking.done()
        g.sessions.trouble.clear()  # and nothing is applied: catching up may take no record
        assert (await asking).body["allowed"]
        g.sessions.trouble[None] = Standing(trouble="restoring")
        asking = asyncio.create_task(g.ask("/v1/authorize", asked))
        await asyncio.sleep(0.15)
        g.sessions.trouble[None] = Standing(trouble="not_owned", owner="http://other:1")
        refused("authorize", await asking, 421, "not_owned")


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_fault_is_counted_told_and_refuses(
    name: str, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("the deploy key is 1234")

    async with guarded() as g:
        g.sessions.fold(*session())
        monkeypatch.setitem(api._ASK, name, fails)
        refused(name, await g.ask(f"/v1/{name}", QUESTIONS[name]), 500, "unavailable")
        assert g.value("sidecar_guard_errors_total") == 1
        monkeypatch.setattr(ask, "view", fails)
        answer = await g.look("/v1/sessions/s")
        assert (answer.status, answer.body["reasons"][0]["code"]) == (500, "unavailable")
        assert g.value("sidecar_guard_errors_total") == 2
        assert g.value("sidecar_guard_in_flight") == 0
    told = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [(line["level"], line["error"], line["route"]) for line in told] == [
        ("error", "RuntimeError", name),
        ("error", "RuntimeError", "session"),
    ]
    assert "test_api.py" in told[0]["where"][-1]
    assert "1234" not in logged.getvalue()


async def test_sessions_that_fail_are_a_refusal() -> None:
    class Broken(FakeSessions):
        def find(self, session_id: str) -> Standing:
            raise KeyError(session_id)

    async with guarded(Broken()) as g:
        refused("authorize", await g.ask("/v1/authorize", QUESTIONS["authorize"]), 500, "unavailable")


async def test_before_the_start_and_after_the_end() -> None:
    async with guarded(max_wait=3.0) as g:
        g.sessions.fold(*authorized("s"))
        asking = asyncio.create_task(g.ask("/v1/authorize", {**QUESTIONS["authorize"], "min_seq": 9}))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        g.guard.close()
        refused("authorize", await asking, 200, "unavailable")
        assert asyncio.get_running_loop().time() - began < 2.5
        for name, question in QUESTIONS.items():
            refused(name, await g.ask(f"/v1/{name}", question), 200, "unavailable")
        assert (await g.look("/v1/sessions/s")).status == 503
        assert (await g.look("/v1/rules/log_gap")).status == 200
    async with guarded() as g:
        g.guard._waiting._sessions = None
        refused("authorize", await g.ask("/v1/authorize", QUESTIONS["authorize"]), 200, "unavailable")
        refused("authorize", await g.ask("/v1/authorize", {**QUESTIONS["authorize"], "min_seq": 1}), 200, "unavailable")


# --- recent findings --------------------------------------------------------------------------------------------------


async def test_recent_findings() -> None:
    async with guarded() as g:
        for name in ("a", "b"):
            rows = [{"kind": "action", "session_id": name, "action_id": str(n), "irreversible": True} for n in range(3)]
            outcome = g.sessions.fold(*({**row, "seq": seq} for seq, row in enumerate(rows, 1)))
            g.guard.note(outcome)
        found = (await g.look("/v1/findings")).body
        assert [f["session_id"] for f in found["findings"]] == ["a"] * 3 + ["b"] * 3
        found = (await g.look("/v1/findings?session=a&limit=2")).body
        assert [(f["session_id"], f["position"]) for f in found["findings"]] == [("a", 2), ("a", 3)]
        assert found["dropped"] == 0
        assert found["findings"][0]["rule"] == "action_unauthorized"


def finding(number: int, session_id: str) -> Finding:
    return Finding(
        finding_id=str(number),
        rule="log_gap",
        severity="error",
        disposition="unverified",
        session_id=session_id,
        subject=Subject("session", session_id),
        position=number,
        evidence={},
    )


def test_what_is_kept_is_bounded_in_all_and_of_each_session() -> None:
    recent = RecentFindings(most=10, per_session=4)
    recent.note(Outcome([finding(n, "busy") for n in range(20)], [], {}))
    recent.note(Outcome([finding(n, "busy") for n in range(16, 20)], [], {}))  # again, after a failed commit
    view = recent.view("busy", 100)
    assert ([f.position for f in view.findings], view.dropped) == ([16, 17, 18, 19], 16)
    assert [f.position for f in recent.view("busy", 2).findings] == [18, 19]
    recent.note(Outcome([finding(n, f"quiet-{n}") for n in range(100, 109)], [], {}))
    assert ([f.position for f in recent.view("busy", 100).findings]) == [19]
    assert len(recent.view(None, 100).findings) == 10
    assert recent.view(None, 100).dropped == 19
    recent.note(Outcome([finding(n, f"more-{n}") for n in range(1000, 5000)], [], {}))
    assert len(recent._all) == len(recent._of) == 10
    assert len(recent._dropped) <= 10
    assert not recent.has("busy") and recent.has("more-4999")


@pytest.mark.parametrize(("most", "per_session"), [(0, 5), (5, 0), (1, 1)])
def test_little_or_nothing_may_be_kept(most: int, per_session: int) -> None:
    recent = RecentFindings(most, per_session)
    recent.note(Outcome([finding(n, str(n % 2)) for n in range(9)], [], {}))
    assert len(recent.view(None, 9).findings) == min(most, per_session)
    assert recent.view(None, 9).dropped == 9 - min(most, per_session)


def test_the_questions_here_are_all_there_are() -> None:
    assert [route.name for route in ASKED] == list(QUESTIONS)
    assert all(json.dumps(question) for question in QUESTIONS.values())
    assert len(Engine()) == 0
