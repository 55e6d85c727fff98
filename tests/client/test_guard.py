"""The guard's client against guards that answer well, badly, late, falsely and not at all."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.client.guard import Guard, GuardError, SyncGuard
from sidecar.client.questions import authorize, commit, gc, read, resume
from sidecar.protocol.api import (
    AuthorizeAnswer,
    CheckpointView,
    CommitAnswer,
    Deferred,
    Edge,
    FindingsView,
    FrontierView,
    GcAnswer,
    Missing,
    Problem,
    Reason,
    ResumeAnswer,
    SessionView,
)
from sidecar.protocol.outputs import Finding, Subject
from sidecar.protocol.records import Summary
from tests.client.guards import FakeGuard, permit, refuse, response, wire, yes

SUMMARY: dict[str, Any] = {
    "session_id": "s",
    "node_id": "n",
    "generation": 1,
    "level": 1,
    "frontier_lo": 1,
    "frontier_hi": 2,
}


async def ask_everything(guard: Guard, **options: Any) -> dict[str, Any]:
    """Ask all four questions."""
    return {
        "authorize": await guard.authorize("s", "deploy", **options),
        "resume": await guard.resume("s", "c", ["ref"], **options),
        "commit": await guard.commit(SUMMARY, **options),
        "gc": await guard.gc("s", ["n1", "n2"], **options),
    }


def assert_refused(answers: dict[str, Any], code: str = "unavailable") -> None:
    """See that every answer refuses, and says why."""
    assert answers["authorize"].allowed is False
    assert answers["resume"].decision == "reconcile"
    assert answers["commit"].decision == "halt"
    assert answers["gc"].decision == "defer"
    assert answers["gc"].reclaimable == []
    for answer in answers.values():
        assert answer.reasons, answer
        assert {reason.code for reason in answer.reasons} == {code}, answer
        assert all(reason.detail for reason in answer.reasons)


# --- yes --------------------------------------------------------------------------------------------------------------


async def test_a_yes_comes_through_with_all_that_was_asked() -> None:
    async with FakeGuard().serving() as fake, Guard(fake.url) as guard:
        answers = await ask_everything(guard, min_seq=7)
    assert answers["authorize"].allowed is True
    assert answers["authorize"].edges == [Edge(action_id="deploy", precondition_id="approval", granted=1)]
    assert answers["resume"].decision == "resume"
    assert answers["commit"].decision == "commit"
    assert answers["gc"].reclaimable == ["n1", "n2"]
    assert fake.paths == ["/v1/authorize", "/v1/resume", "/v1/commit", "/v1/gc"]
    assert fake.asked[0] == {"session_id": "s", "action_id": "deploy", "checkpoint_id": None, "min_seq": 7}
    assert fake.asked[1] == {
        "session_id": "s",
        "checkpoint_id": "c",
        "deps": ["ref"],
        "replayed_to": None,
        "min_seq": 7,
    }
    assert fake.asked[2] == {**SUMMARY, "kind": "summary", "min_seq": 7}
    assert fake.asked[3] == {"session_id": "s", "node_ids": ["n1", "n2"], "min_seq": 7}
    assert all(headers["content-type"] == "application/json" for headers in fake.headers)
    assert all("authorization" not in headers for headers in fake.headers)


async def test_a_summary_may_be_given_as_record_or_as_fields() -> None:
    async with FakeGuard().serving() as fake, Guard(fake.url) as guard:
        record = msgspec.convert({**SUMMARY, "children": ["a"], "kind": "summary"}, Summary)
        assert (await guard.commit(record)).decision == "commit"
        assert (await guard.commit({**SUMMARY, "children": ["a"], "facts": None})).decision == "commit"
    assert fake.asked[0] == fake.asked[1] == {**SUMMARY, "children": ["a"], "kind": "summary"}


async def test_one_connection_serves_many_questions() -> None:
    ports = set()

    def answering(request: web.Request, asked: Any) -> Any:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return yes(request.path, asked)

    async with FakeGuard(answering).serving() as fake, Guard(fake.url) as guard:
        for _ in range(5):
            assert (await guard.authorize("s", "deploy")).allowed
    assert len(ports) == 1


# --- no ---------------------------------------------------------------------------------------------------------------


async def test_a_refusal_comes_through_with_its_reasons() -> None:
    reasons = [Reason(code="rule", rule="edge_revoked", detail="revoked at 4", href="/v1/rules/edge_revoked")]
    answer = AuthorizeAnswer(reasons=reasons, session_id="s", position=9, status="corrupt")
    async with FakeGuard(lambda request, asked: answer).serving() as fake, Guard(fake.url) as guard:
        assert await guard.authorize("s", "deploy") == answer


async def test_nobody_there() -> None:
    async with FakeGuard().serving() as fake:
        url = fake.url
    async with Guard(url) as guard:
        answers = await ask_everything(guard)
    assert_refused(answers)
    assert "ConnectError" in answers["authorize"].reasons[0].detail


@pytest.mark.parametrize("status", [201, 202, 204, 301, 302, 307, 308, 400, 404, 418, 429, 500, 502, 503])
async def test_a_yes_with_another_status_is_none(status: int) -> None:
    def answering(request: web.Request, asked: Any) -> Any:
        return status, yes(request.path, asked)

    async with FakeGuard(answering).serving() as fake, Guard(fake.url) as guard:
        assert_refused(await ask_everything(guard))


async def test_redirects_are_not_followed() -> None:
    async with FakeGuard().serving() as good:

        def redirect(request: web.Request, asked: Any) -> Any:
            return web.Response(status=307, headers={"Location": good.url + request.path})

        async with FakeGuard(redirect).serving() as fake, Guard(fake.url) as guard:
            answers = await ask_everything(guard)
            with pytest.raises(GuardError, match="redirect"):
                await guard.session("s")
    assert_refused(answers)
    assert "redirect" in answers["authorize"].reasons[0].detail
    assert good.asked == []


TORN = response(msgspec.json.encode(permit({"session_id": "s", "action_id": "deploy"})))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        TORN[:-1],
        TORN[:-40],
        TORN[: TORN.index(b"\r\n\r\n") + 4],
        TORN.replace(b"Content-Length: ", b"Content-Length: 9"),
        TORN.replace(b"Content-Length", b"X-Length")[:-1],
        TORN.replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type"),
        TORN.replace(b"200 OK", b"2OO OK"),
        TORN.replace(b"200 OK", b"100 Continue"),
        TORN.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: "),
        response(b"<html>all is well</html>"),
        response(b""),
        response(b"true"),
        response(b'"allowed"'),
        response(b"[1]"),
        response(b"{" * 100_000),
        response(b"[" * 100_000),
    ],
)
async def test_what_is_no_answer_refuses(sent: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with wire(respond) as url, Guard(url, timeout=5) as guard:
        answer = await guard.authorize("s", "deploy")
        assert_refused(
            {"authorize": answer} | {k: v for k, v in (await ask_everything(guard)).items() if k != "authorize"}
        )


async def test_the_untorn_answer_permits() -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(TORN)

    async with wire(respond) as url, Guard(url) as guard:
        assert (await guard.authorize("s", "deploy")).allowed


@pytest.mark.parametrize("drip", [b"", b"H", b"HTTP/1.1 200 OK\r\nX-Slow: ", TORN[:-30]])
async def test_an_answer_that_takes_too_long_is_none(drip: bytes) -> None:
    """However slowly it comes: no step of it takes long, the whole does."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(drip)
        while True:
            await asyncio.sleep(0.02)
            if drip:
                writer.write(b" ")
                await writer.drain()

    async with wire(respond) as url, Guard(url, timeout=0.3) as guard:
        began = time.monotonic()
        answer = await guard.authorize("s", "deploy")
        took = time.monotonic() - began
    assert_refused({**await nothing(), "authorize": answer})
    assert "within 0.3 s" in answer.reasons[0].detail
    assert took < 2


async def nothing() -> dict[str, Any]:
    """Return answers to nothing, which refuse."""
    reasons = [Reason(code="unavailable", detail="nothing")]
    return {
        "resume": ResumeAnswer(reasons=reasons),
        "commit": CommitAnswer(reasons=reasons),
        "gc": GcAnswer(reasons=reasons),
    }


async def test_an_answer_without_end_is_cut_off() -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b'{"detail": "')
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 2**20)
                await writer.drain()

    async with wire(respond) as url, Guard(url) as guard:
        answer = await guard.authorize("s", "deploy")
    assert "larger than" in answer.reasons[0].detail
    assert not answer.allowed


FINDING = Finding(
    finding_id="f",
    rule="constraint_dropped",
    severity="error",
    disposition="reject_subtree",
    session_id="s",
    subject=Subject(type="node", id="n"),
    position=3,
    evidence={},
)
NO = [Reason(code="open_halt", detail="halted")]
ASKED = {"session_id": "s", "action_id": "deploy", "min_seq": 5}
LIES = [
    permit(ASKED, session_id="t"),
    permit(ASKED, session_id=None),
    permit(ASKED, position=4),
    permit(ASKED, position=None),
    permit(ASKED, reasons=NO),
    permit(ASKED, edges=[]),
    permit(ASKED, edges=[Edge(action_id="other", precondition_id="p", granted=1)]),
    permit({**ASKED, "action_id": "Deploy"}),
]


@pytest.mark.parametrize("lie", range(len(LIES)))
async def test_a_permission_that_does_not_fit_the_question_is_none(lie: int) -> None:
    async with FakeGuard(lambda request, asked: LIES[lie]).serving() as fake, Guard(fake.url) as guard:
        answer = await guard.authorize("s", "deploy", min_seq=5)
    assert_refused({**await nothing(), "authorize": answer})
    assert "the answer permits" in answer.reasons[0].detail


@pytest.mark.parametrize(
    "raw",
    [
        {"allowed": "true"},
        {"allowed": 1},
        {"allowed": [True]},
        {"allowed": {"allowed": True}},
        {"allowed": None},
        {"Allowed": True, "allowed ": True},
        {},
        {"allowed": True, "edges": "deploy"},
        {"allowed": True, "position": "5"},
        {"allowed": True, "position": 5.0},
        {"allowed": True, "reasons": {}},
        {"allowed": True, "edges": None},
    ],
)
async def test_an_answer_of_other_types_is_none(raw: dict[str, Any]) -> None:
    good = msgspec.to_builtins(permit(ASKED))
    async with FakeGuard(lambda request, asked: {**good, "allowed": None, **raw}).serving() as fake:
        async with Guard(fake.url) as guard:
            answer = await guard.authorize("s", "deploy")
        assert answer.allowed is False
        assert answer.reasons
    without = {name: value for name, value in good.items() if name != "allowed"}
    async with FakeGuard(lambda request, asked: without).serving() as fake, Guard(fake.url) as guard:
        answer = await guard.authorize("s", "deploy")
    assert answer.allowed is False
    assert "does not say why" in answer.reasons[0].detail


def test_other_answers_that_do_not_fit_are_none() -> None:
    asked = resume("s", "c", [], 5)
    good = ResumeAnswer(decision="resume", session_id="s", position=5, checkpoint_id="c", status="verified")
    assert isinstance(read(asked, 200, msgspec.json.encode(good)), ResumeAnswer)
    for changed in (
        {"checkpoint_id": "d"},
        {"status": "stale"},
        {"status": None},
        {"missing": [Missing(reference="r")]},
        {"reasons": NO},
        {"position": 4},
        {"session_id": "t"},
    ):
        lie = msgspec.structs.replace(good, **changed)
        assert isinstance(read(asked, 200, msgspec.json.encode(lie)), str), changed

    proposed = commit(SUMMARY, None)
    well = CommitAnswer(decision="commit", session_id="s", position=5, node_id="n")
    warned = msgspec.structs.replace(well, findings=[msgspec.structs.replace(FINDING, severity="warning")])
    assert isinstance(read(proposed, 200, msgspec.json.encode(warned)), CommitAnswer)
    for changed in ({"node_id": "m"}, {"findings": [FINDING]}, {"session_id": None}, {"position": None}):
        lie = msgspec.structs.replace(well, **changed)
        assert isinstance(read(proposed, 200, msgspec.json.encode(lie)), str), changed

    nodes = gc("s", ["a", "b"], None)
    all_go = GcAnswer(decision="reclaim", session_id="s", position=5, reclaimable=["a", "b"])
    one_goes = GcAnswer(session_id="s", position=5, reclaimable=["a"], deferred=[Deferred(node_id="b", waits_for=NO)])
    assert isinstance(read(nodes, 200, msgspec.json.encode(all_go)), GcAnswer)
    assert isinstance(read(nodes, 200, msgspec.json.encode(one_goes)), GcAnswer)
    for lie in (
        msgspec.structs.replace(all_go, reclaimable=["a"]),
        msgspec.structs.replace(all_go, reclaimable=["a", "b", "c"]),
        msgspec.structs.replace(all_go, reasons=NO),
        msgspec.structs.replace(one_goes, reclaimable=["a", "b"]),
        msgspec.structs.replace(one_goes, reasons=NO),
    ):
        assert isinstance(read(nodes, 200, msgspec.json.encode(lie)), str), lie


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("allowed", "reasons", "session_id", "position", "edges", "status", "owner")


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Make bodies around one that permits: a field changed, left out or added, bytes changed, torn or put in."""
    fields = msgspec.to_builtins(permit(ASKED))
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        if draw(st.booleans()):
            fields.pop(name, None)
        else:
            fields[name] = draw(JSON | st.sampled_from([True, "true", 1, [], "s", 5, fields.get(name)]))
    body = bytearray(json.dumps(fields).encode())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        how = draw(st.sampled_from(["cut", "put", "change", "drop"]))
        if how == "cut":
            del body[at:]
        elif how == "put":
            body[at:at] = draw(st.binary(max_size=4))
        elif at < len(body):
            body[at : at + 1] = draw(st.binary(min_size=1, max_size=1)) if how == "change" else b""
    return bytes(body)


@settings(max_examples=600, deadline=None)
@given(body=bodies() | st.binary(max_size=60), status=st.sampled_from([200, 200, 200, 200, 206, 302, 500]))
def test_only_a_whole_and_fitting_yes_permits(body: bytes, status: int) -> None:
    """Judged by a reader of its own: Python's json, field by field."""
    answer = read(authorize("s", "deploy", None, 5), status, body)
    if isinstance(answer, str):
        assert answer
        return
    if not answer.allowed:
        assert answer.reasons
        return
    fields = json.loads(body)
    assert status == 200
    assert fields["allowed"] is True
    assert fields.get("reasons", []) == []
    assert fields["session_id"] == "s"
    assert type(fields["position"]) is int
    assert fields["position"] >= 5
    assert [edge["action_id"] for edge in fields["edges"]] == ["deploy"] * len(fields["edges"]) != []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200) | bodies().map(response))
def test_whatever_comes_over_the_wire_only_a_fitting_yes_permits(raw: bytes, wires: "Wires") -> None:
    answer = wires.ask(raw)
    if answer.allowed:
        fields = json.loads(raw.partition(b"\r\n\r\n")[2])
        assert fields["allowed"] is True
        assert fields["session_id"] == "s"
    else:
        assert answer.reasons


class Wires:
    """Ask a server that answers with given bytes."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def ask(self, raw: bytes) -> AuthorizeAnswer:
        """Ask, to be answered with these bytes and a closed connection."""

        async def respond(writer: asyncio.StreamWriter) -> None:
            writer.write(raw)
            await writer.drain()
            writer.close()

        async def ask() -> AuthorizeAnswer:
            async with wire(respond) as url, Guard(url, timeout=5) as guard:
                return await guard.authorize("s", "deploy", min_seq=5)

        return self._runner.run(ask())


@pytest.fixture
def wires() -> Any:
    """Give somebody to ask."""
    with asyncio.Runner() as runner:
        yield Wires(runner)


@pytest.mark.parametrize(
    "ask",
    [
        lambda guard: guard.authorize("", "deploy"),
        lambda guard: guard.authorize(None, "deploy"),
        lambda guard: guard.authorize("s", object()),
        lambda guard: guard.authorize("s", "\ud800"),
        lambda guard: guard.authorize("s", "deploy", "", 3),
        lambda guard: guard.authorize("s", "deploy", None, -1),
        lambda guard: guard.authorize("s", "deploy", None, True),
        lambda guard: guard.authorize("s", "deploy", None, 2**70),
        lambda guard: guard.resume("s", "c", "ref"),
        lambda guard: guard.resume("s", "c", 5),
        lambda guard: guard.resume("s", "c", [None]),
        lambda guard: guard.commit({**SUMMARY, "generation": 0}),
        lambda guard: guard.commit({**SUMMARY, "kind": "checkpoint"}),
        lambda guard: guard.commit({}),
        lambda guard: guard.commit(None),
        lambda guard: guard.commit(SUMMARY, min_seq="5"),
        lambda guard: guard.gc("s", None),
        lambda guard: guard.gc("s", ["n"] * 10_001),
    ],
)
async def test_what_is_no_question_is_refused_without_asking(ask: Any) -> None:
    async with FakeGuard().serving() as fake, Guard(fake.url) as guard:
        answer = await ask(guard)
    assert [reason.code for reason in answer.reasons] == ["bad_request"]
    assert getattr(answer, "allowed", False) is False
    assert getattr(answer, "decision", "halt") in ("halt", "reconcile", "defer")
    assert fake.asked == []


async def test_a_closed_client_refuses() -> None:
    async with FakeGuard().serving() as fake:
        guard = Guard(fake.url)
        assert (await guard.authorize("s", "deploy")).allowed
        await guard.aclose()
        assert_refused(await ask_everything(guard))


# --- again ------------------------------------------------------------------------------------------------------------


async def test_by_default_a_question_is_asked_once() -> None:
    async with FakeGuard(lambda request, asked: refuse("lagging")).serving() as fake, Guard(fake.url) as guard:
        assert (await guard.authorize("s", "deploy")).reasons[0].code == "lagging"
    assert len(fake.asked) == 1


async def test_with_patience_what_may_pass_is_asked_again() -> None:
    answers = [refuse("restoring"), (429, refuse("overloaded")), (500, {}), refuse("not_applied")]

    def answering(request: web.Request, asked: Any) -> Any:
        return answers.pop(0) if answers else yes(request.path, asked)

    async with FakeGuard(answering).serving() as fake, Guard(fake.url, patience=20) as guard:
        assert (await guard.authorize("s", "deploy")).allowed
    assert len(fake.asked) == 5


async def test_patience_ends() -> None:
    lagging = FakeGuard(lambda request, asked: refuse("lagging"))
    async with lagging.serving() as fake, Guard(fake.url, patience=0.4) as guard:
        began = time.monotonic()
        answer = await guard.authorize("s", "deploy")
        took = time.monotonic() - began
    assert answer.reasons[0].code == "lagging"
    assert 0.4 <= took < 3
    assert 3 <= len(fake.asked) < 12


async def test_a_verdict_is_not_asked_again() -> None:
    mixed = refuse("lagging")
    mixed.reasons.append(Reason(code="open_halt", detail="halted"))
    async with FakeGuard(lambda request, asked: mixed).serving() as fake, Guard(fake.url, patience=5) as guard:
        assert not (await guard.authorize("s", "deploy")).allowed
    assert len(fake.asked) == 1


async def test_a_guard_that_comes_back_is_reached() -> None:
    async with FakeGuard().serving() as first:
        guard = Guard(first.url)
        assert (await guard.authorize("s", "deploy")).allowed
    assert not (await guard.authorize("s", "deploy")).allowed
    async with FakeGuard().serving(port=int(first.url.rpartition(":")[2])), guard:
        assert (await guard.authorize("s", "deploy")).allowed


async def test_a_kept_connection_that_is_cut_is_made_anew_once() -> None:
    answered = 0

    async def respond(writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        if answered == 2:  # closed without an answer, although it was kept alive
            writer.close()
        else:
            writer.write(TORN)

    async with wire(respond) as url, Guard(url) as guard:
        assert (await guard.authorize("s", "deploy")).allowed
        assert (await guard.authorize("s", "deploy")).allowed
    assert answered == 3


# --- looking ----------------------------------------------------------------------------------------------------------

VIEW = SessionView(
    session_id="s/1",
    status="verified",
    position=3,
    awaiting=False,
    waiting=0,
    unread=False,
    missing=[(4, 5)],
    checkpoint_in_force=None,
    checkpoints=[],
    open_halts=[],
    frontier=FrontierView(latest=0, edge_count=0, edges=[]),
)
CHECKPOINT = CheckpointView(
    checkpoint_id="c?1",
    status="stale",
    node_id="n",
    summary_generation=1,
    level=1,
    turn=2,
    frontier_lo=1,
    frontier_hi=2,
    position=3,
    verbatim_refs=[],
    in_force=True,
    newest=True,
)


async def test_looking_shows_what_there_is() -> None:
    def answering(request: web.Request, asked: Any) -> Any:
        if request.raw_path == "/v1/sessions/s%2F1":
            return VIEW
        if request.raw_path == "/v1/sessions/s%2F1/checkpoints/c%3F1":
            return CHECKPOINT
        assert request.raw_path in ("/v1/findings", "/v1/findings?session=s%2F1&limit=5")
        return FindingsView(findings=[FINDING], dropped=2)

    async with FakeGuard(answering).serving() as fake, Guard(fake.url) as guard:
        assert await guard.session("s/1") == VIEW
        assert await guard.checkpoint("s/1", "c?1") == CHECKPOINT
        assert (await guard.findings("s/1", limit=5)).findings == [FINDING]
        assert (await guard.findings()).dropped == 2


async def test_what_cannot_be_shown_is_an_error_with_reasons() -> None:
    problem = Problem(reasons=[Reason(code="unknown_session", detail="No record of session s has been read.")])
    async with FakeGuard(lambda request, asked: (404, problem)).serving() as fake, Guard(fake.url) as guard:
        with pytest.raises(GuardError, match="session s cannot be shown") as caught:
            await guard.session("s")
        assert caught.value.codes == {"unknown_session"}
        with pytest.raises(GuardError):
            await guard.findings()
    with pytest.raises(GuardError) as caught:
        await guard.session("s")
    assert caught.value.codes == {"unavailable"}


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_what_would_be_another_address_is_not_looked_up(name: str) -> None:
    async with FakeGuard().serving() as fake, Guard(fake.url) as guard:
        with pytest.raises(GuardError):
            await guard.session(name)
    assert fake.paths == []


@pytest.mark.parametrize("answer", [{}, [], {"session_id": "s"}, (500, {}), (404, {"reasons": []}), (200, "x")])
async def test_a_view_that_is_none_is_an_error(answer: Any) -> None:
    async with FakeGuard(lambda request, asked: answer).serving() as fake, Guard(fake.url) as guard:
        with pytest.raises(GuardError):
            await guard.session("s")


# --- without await ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_thread(fake: FakeGuard) -> Any:
    """Serve from a thread, for a test that blocks."""
    from sidecar.client.portal import Portal

    portal = Portal("fake guard")
    stack = contextlib.AsyncExitStack()

    async def start() -> None:
        await stack.enter_async_context(fake.serving())

    portal.run(start)
    try:
        yield fake
    finally:
        portal.close(stack.aclose)


def test_without_await_it_is_the_same() -> None:
    def answering(request: web.Request, asked: Any) -> Any:
        return VIEW if request.method == "GET" else yes(request.path, asked)

    with in_thread(FakeGuard(answering)) as fake:
        with SyncGuard(fake.url) as guard:
            assert guard.authorize("s", "deploy").allowed
            assert guard.resume("s", "c").decision == "resume"
            assert guard.commit(SUMMARY).decision == "commit"
            assert guard.gc("s", ["n"]).decision == "reclaim"
            assert guard.session("s/1") == VIEW
            assert guard.authorize("", "deploy").reasons[0].code == "bad_request"
            with pytest.raises(GuardError):
                guard.findings()
            with pytest.raises(GuardError):
                guard.checkpoint("s", "c")
        assert not guard.authorize("s", "deploy").allowed
        assert guard.authorize("s", "deploy").reasons[0].code == "unavailable"
        with pytest.raises(GuardError):
            guard.session("s")


def test_many_threads_share_one_client() -> None:
    with in_thread(FakeGuard()) as fake, SyncGuard(fake.url) as guard, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: guard.authorize(f"s{n}", f"deploy-{n}", min_seq=n), range(64)))
    assert [answer.session_id for answer in answers] == [f"s{n}" for n in range(64)]
    assert all(answer.allowed for answer in answers)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_asks_over_connections_of_its_own() -> None:
    ports = {}

    def answering(request: web.Request, asked: Any) -> Any:
        assert request.transport is not None
        ports[asked["action_id"]] = request.transport.get_extra_info("peername")[1]
        return yes(request.path, asked)

    with in_thread(FakeGuard(answering)) as fake, SyncGuard(fake.url, timeout=20) as guard:
        assert guard.authorize("s", "before").allowed
        if (child := os.fork()) == 0:
            status = 2
            try:
                status = 0 if guard.authorize("s", "in-child").allowed else 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert guard.authorize("s", "after").allowed
    assert ports["before"] == ports["after"] != ports["in-child"]


def test_importing_the_client_loads_no_library_that_it_may_not_need() -> None:
    heavy = ("httpx2", "aiokafka", "faust", "aiohttp", "langgraph", "langchain", "langchain_core", "pydantic")
    code = (
        "import sys, sidecar.client; from sidecar.client import Guard, SyncGuard, Refused, GuardError; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert ran.stdout.strip() == "[]"


# --- a name that stands twice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"allowed":false,"allowed":true,"session_id":"s","position":1,"edges":[EDGE]}',
        b'{"allowed":true,"session_id":"s","position":1,"edges":[EDGE],"extra":{"a":1,"a":2}}',
        b'{"allowed":true,"session_id":"s","position":1,"edges":[EDGE],"reasons":[{"code":"rule","detail":"no"}],"reasons":[]}',
        b'{"allowed":true,"session_id":"s","position":1,"edges":[EDGE],"allow\\u0065d":true}',
    ],
)
async def test_an_answer_that_can_be_read_in_two_ways_is_no_permission(body: bytes) -> None:
    edge = b'{"action_id":"deploy","precondition_id":"p","granted":1}'
    once = b'{"allowed":true,"session_id":"s","position":1,"edges":[EDGE]}'
    for said, allowed in ((body, False), (once, True)):
        answered = said.replace(b"EDGE", edge)
        fake = FakeGuard(lambda request, asked, answered=answered: web.Response(body=answered))
        async with fake.serving(), Guard(fake.url) as guard:
            answer = await guard.authorize("s", "deploy")
        assert answer.allowed is allowed
        assert allowed or "stands in it twice" in answer.reasons[0].detail


async def test_a_view_that_can_be_read_in_two_ways_is_not_shown() -> None:
    body = b'{"findings":[],"dropped":0,"dropped":1}'
    async with FakeGuard(lambda request, asked: web.Response(body=body)).serving() as fake, Guard(fake.url) as guard:
        with pytest.raises(GuardError, match="stands in it twice"):
            await guard.findings()
