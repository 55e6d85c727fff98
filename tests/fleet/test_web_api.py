"""The fleet's queries over HTTP: bounded, paged, exact about what cannot be asked, and honest about what is missing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from yarl import URL

from sidecar.fleet.queries import (
    DEGRADED,
    Group,
    HaltView,
    Page,
    SessionDetail,
    SessionSummary,
    Summary,
    Unavailable,
)
from sidecar.protocol.api import Edge, Problem
from sidecar.protocol.outputs import Alert, HaltAck
from tests.fleet.memory import WORKERS, MemoryFleet
from tests.fleet.states import HOSTILE, LONG
from tests.fleet.support import client, state

DOCUMENT = Path(__file__).parents[2] / "docs" / "board.md"
ANSWERS: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("/v1/fleet", Summary, "summary", {}),
    ("/v1/fleet/sessions", Page[SessionSummary], "sessions", {"limit": 100}),
    ("/v1/fleet/sessions?status=corrupt,lossy", Page[SessionSummary], "sessions", {"status": {"corrupt", "lossy"}}),
    ("/v1/fleet/sessions?tenant=acme&limit=3", Page[SessionSummary], "sessions", {"tenant": "acme", "limit": 3}),
    ("/v1/fleet/sessions?model=tiny-small", Page[SessionSummary], "sessions", {"model": "tiny-small"}),
    ("/v1/fleet/sessions?search=burst", Page[SessionSummary], "sessions", {"search": "burst"}),
    ("/v1/fleet/groups", Page[Group], "groups", {}),
    ("/v1/fleet/groups?by=model&tenant=acme", Page[Group], "groups", {"by": "model", "tenant": "acme"}),
    ("/v1/fleet/alerts", Page[Alert], "alerts", {}),
    ("/v1/fleet/alerts?all=true", Page[Alert], "alerts", {"open_only": False}),
    ("/v1/fleet/halts?limit=5", Page[HaltView], "halts", {"limit": 5}),
    ("/v1/fleet/halts?all=true", Page[HaltView], "halts", {"open_only": False, "limit": 100}),
]


@pytest.mark.parametrize(("path", "kind", "question", "arguments"), ANSWERS, ids=[a[0] for a in ANSWERS])
async def test_an_answer_is_what_the_fleet_says(path: str, kind: Any, question: str, arguments: dict[str, Any]) -> None:
    fleet = state("storm")
    async with client(fleet) as http:
        answer = await http.get(path)
        body = await answer.read()
    assert answer.status == 200, body
    assert answer.content_type == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    if "status" in arguments:
        arguments = {**arguments, "status": frozenset(arguments["status"])}
    expected = await getattr(fleet, question)(**arguments)
    assert msgspec.json.decode(body, type=kind) == expected
    assert getattr(expected, "items", True)


async def test_pages_follow_each_other_without_a_gap_and_the_worst_come_first() -> None:
    fleet = state("storm")
    seen: list[SessionSummary] = []
    query = {"limit": "7", "status": ",".join(DEGRADED)}
    async with client(fleet) as http:
        while True:
            page = msgspec.json.decode(
                await (await http.get("/v1/fleet/sessions", params=query)).read(), type=Page[SessionSummary]
            )
            assert len(page.items) <= 7
            seen += page.items
            if page.cursor is None:
                break
            query["cursor"] = page.cursor
    assert len(seen) == len({s.session_id for s in seen}) == page.total > 30
    ranks = ["corrupt", "lossy", "degraded", "unverified"]
    placed = [(ranks.index(str(s.status)), s.degraded_since) for s in seen]
    assert placed == sorted(placed)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/fleet?limit=3", "no parameter 'limit'"),
        ("/v1/fleet/sessions?statsu=corrupt", "no parameter 'statsu'"),
        ("/v1/fleet/sessions?status=bad", "no status 'bad'"),
        ("/v1/fleet/sessions?limit=0", "from 1 to 1000"),
        ("/v1/fleet/sessions?limit=1001", "from 1 to 1000"),
        ("/v1/fleet/sessions?limit=٣", "from 1 to 1000"),
        ("/v1/fleet/sessions?limit=-1", "from 1 to 1000"),
        ("/v1/fleet/sessions?limit=5&limit=6", "given twice"),
        ("/v1/fleet/sessions?cursor=nonsense", "cursor"),
        ("/v1/fleet/groups?by=colour", "by is one of"),
        ("/v1/fleet/alerts?all=yes", "true or false"),
    ],
)
async def test_what_cannot_be_asked_is_named(path: str, said: str) -> None:
    async with client(state("storm")) as http:
        answer = await http.get(path)
        problem = msgspec.json.decode(await answer.read(), type=Problem)
    assert answer.status == 400
    assert problem.reasons[0].code == "bad_request"
    assert said in problem.reasons[0].detail


@pytest.mark.parametrize(
    "session_id", HOSTILE[:-4] + HOSTILE[-2:], ids=lambda s: s[:12].encode("unicode_escape").decode()
)
async def test_a_session_of_any_name_can_be_asked_for(session_id: str) -> None:
    async with client(state("hostile")) as http:
        # Encoded already: a client library may make another address of `..`.
        path = URL(f"{http.make_url('/v1/fleet/sessions/')}{quote(session_id, safe='')}", encoded=True)
        answer = await http.session.get(path)
        body = await answer.read()
    assert answer.status == 200
    detail = msgspec.json.decode(body, type=SessionDetail)
    assert detail.summary.session_id == session_id
    assert detail.findings and detail.halts


async def test_a_session_that_nobody_knows() -> None:
    async with client(state("storm")) as http:
        answer = await http.get("/v1/fleet/sessions/nobody")
        problem = msgspec.json.decode(await answer.read(), type=Problem)
        page = await http.get("/board/session", params={"id": "nobody<b>"})
        text = await page.text()
    assert (answer.status, problem.reasons[0].code) == (404, "unknown_session")
    assert page.status == 404
    assert "nobody&lt;b&gt;" in text and "<b>" not in text.partition("nobody")[2]


async def test_an_answer_says_which_worker_did_not_answer() -> None:
    async with client(state("incomplete")) as http:
        summary = msgspec.json.decode(await (await http.get("/v1/fleet")).read(), type=Summary)
        board = await (await http.get("/board")).text()
    assert [m.worker for m in summary.missing] == [WORKERS[1]]
    assert "Incomplete." in board and WORKERS[1] in board and "At least" in board


async def test_a_healthy_half_does_not_look_like_a_healthy_fleet() -> None:
    fleet = MemoryFleet()
    fleet.lost = {0}
    fleet.shards[1] = state("healthy").shards[1]
    async with client(fleet) as http:
        board = await (await http.get("/board")).text()
    assert "not every worker answered" in board
    assert "All well" not in board


async def test_a_worker_that_cannot_be_asked() -> None:
    fleet = MemoryFleet()
    fleet.down = Unavailable("it is being recovered", WORKERS[1])
    async with client(fleet) as http:
        answer = await http.get("/v1/fleet/sessions/some")
        problem = msgspec.json.decode(await answer.read(), type=Problem)
        session, board = await http.get("/board/session?id=some"), await http.get("/board")
        texts = [await session.text(), await board.text()]
    assert (answer.status, problem.reasons[0].code) == (503, "unavailable")
    assert (session.status, board.status) == (503, 200)
    assert all("it is being recovered" in text and WORKERS[1] in text for text in texts)
    assert "cannot be described" in texts[1]


async def test_every_answer_forbids_what_a_page_must_not_do() -> None:
    paths = ["/v1/fleet", "/v1/fleet?no=1", "/v1/fleet/sessions/nobody", "/board", "/board/session", "/board/static/x"]
    async with client(state("healthy")) as http:
        for path in [*paths, "/board/static/board.js"]:
            headers = (await http.get(path)).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"], path
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Cache-Control"] in ("no-store", "no-cache")


async def test_static_files_are_asked_for_again_only_when_they_have_changed() -> None:
    async with client(state("healthy")) as http:
        first = await http.get("/board/static/board.css")
        again = await http.get("/board/static/board.css", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status, again.status) == (200, 304)
    assert first.content_type == "text/css"


async def test_the_part_that_changes_is_sent_only_when_it_has() -> None:
    fleet = MemoryFleet()
    async with client(fleet, shared_for=0.0) as http:
        first = await http.get("/board?part=live")
        mark = {"If-None-Match": f'"{first.headers["X-Page-Mark"]}"'}
        same = await http.get("/board?part=live", headers=mark)
        text = await first.text()
        fleet.become(state("healthy"))
        fleet.now = fleet.now.replace(minute=31)
        other = await http.get("/board?part=live", headers=mark)
    assert (first.status, same.status, other.status) == (200, 304, 200)
    assert "<html" not in text and 'id="live-top"' in text
    assert same.headers["X-Page-At"] == first.headers["X-Page-At"] != other.headers["X-Page-At"]


async def test_many_who_look_at_once_are_one_question() -> None:
    class Counting(MemoryFleet):
        asked = 0

        async def summary(self) -> Summary:
            self.asked += 1
            await asyncio.sleep(0.05)
            return await super().summary()

    fleet = Counting()
    async with client(fleet) as http:
        answers = await asyncio.gather(*(http.get("/board") for _ in range(20)))
    assert {a.status for a in answers} == {200}
    assert fleet.asked == 1


async def test_the_guard_adds_what_the_fleet_is_not_told() -> None:
    async def known(session_id: str) -> tuple[list[Edge], int] | None:
        return (
            ([Edge(action_id="deploy-9", precondition_id="approval-9", granted=7)], 3) if session_id == LONG else None
        )

    path = f"/board/session?{urlencode({'id': LONG})}"
    async with client(state("long"), edges=known) as http:
        text = await (await http.get(path)).text()
        other = await (await http.get(f"/board/session?id={state('long').session_ids()[1]}")).text()
    assert "approval-9" in text and "is in effect in the log" in text
    assert "2 older approvals that are in effect are not drawn" in text
    assert "The guard did not answer" in other


async def test_what_can_be_asked_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(GET|POST) (\S+)` \|", text, re.MULTILINE))
    async with client(state("empty")) as http:
        routes = [r for r in http.app.router.routes() if r.method != "HEAD" and r.resource is not None]  # type: ignore[union-attr]
        served = {(r.method, r.resource.canonical) for r in routes if r.resource is not None}
        assert {r for r in served if r[1].startswith("/v1/")} == told
        for path in ("/v1/fleet/sessions", "/v1/fleet/groups", "/v1/fleet/alerts", "/v1/fleet/halts"):
            answer = await http.get(f"{path}?no-such-parameter=1")
            said = msgspec.json.decode(await answer.read(), type=Problem).reasons[0].detail
            row = next(line for line in text.splitlines() if f"`GET {path}`" in line)
            for parameter in said.partition("known: ")[2].rstrip(".").split(", "):
                assert f"`{parameter}" in row, (path, parameter)


# --- taking a halt in hand --------------------------------------------------------------------------------------------


class Published:
    """Take acknowledgements, or fail."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, HaltAck]] = []
        self.trouble: Exception | None = None

    async def __call__(self, session_id: str, ack: HaltAck) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.acks.append((session_id, ack))


async def _halt(open_now: bool = True) -> HaltView:
    halts = (await state("storm").halts(open_only=False)).items
    return next(h for h in halts if h.open == open_now)


async def test_a_halt_is_taken_in_hand() -> None:
    halt, published = await _halt(), Published()
    body = {"session_id": halt.session_id, "by": " ada ", "decision": "replaying"}
    async with client(state("storm"), acknowledge=published) as http:
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body)
        assert answer.status == 200, await answer.text()
    assert published.acks == [(halt.session_id, HaltAck(halt_id=halt.halt_id, by="ada", decision="replaying"))]


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"session_id": "another"}, 404, "no such halt"),
        ({"by": "  "}, 400, "must say something"),
        ({"decision": None}, 400, "decision"),
        ({"more": 1}, 400, "more"),
        ({"decision": "x" * 20_000}, 413, "At most"),
    ],
)
async def test_a_wrong_acknowledgement_is_refused(changes: dict[str, Any], status: int, said: str) -> None:
    halt, published = await _halt(), Published()
    body = {"session_id": halt.session_id, "by": "ada", "decision": "replaying", **changes}
    async with client(state("storm"), acknowledge=published) as http:
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body)
        problem = msgspec.json.decode(await answer.read(), type=Problem)
    assert answer.status == status
    assert said in problem.reasons[0].detail
    assert not published.acks


async def test_a_cleared_halt_is_not_taken_in_hand() -> None:
    halt, published = await _halt(open_now=False), Published()
    body = {"session_id": halt.session_id, "by": "ada", "decision": "replaying"}
    async with client(state("storm"), acknowledge=published) as http:
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body)
    assert answer.status == 409 and not published.acks


async def test_whoever_cannot_publish_says_so() -> None:
    halt, published = await _halt(), Published()
    published.trouble = RuntimeError("the broker is away")
    body = {"session_id": halt.session_id, "by": "ada", "decision": "replaying"}
    async with client(state("storm"), acknowledge=published) as http:
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body)
        assert answer.status == 503 and "the broker is away" in await answer.text()
    async with client(state("storm")) as http:
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body)
        assert answer.status == 501 and "sidecar halts ack" in await answer.text()


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, "by=x", 415),
        ({"Content-Type": "text/plain"}, None, 415),
        ({"Origin": "http://evil.example"}, None, 403),
        ({"Origin": "null"}, None, 403),
        ({"Sec-Fetch-Site": "cross-site"}, None, 403),
        ({"Sec-Fetch-Site": "same-site"}, None, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, None, 403),
        ({"Host": "evil.example"}, None, 403),
    ],
)
async def test_another_page_cannot_take_a_halt_in_hand(headers: dict[str, str], data: str | None, status: int) -> None:
    halt, published = await _halt(), Published()
    body = {"session_id": halt.session_id, "by": "ada", "decision": "replaying"}
    async with client(state("storm"), acknowledge=published) as http:
        answer = await http.post(
            f"/v1/fleet/halts/{halt.halt_id}/ack",
            data=data if data is not None else msgspec.json.encode(body),
            headers={"Content-Type": "application/json", **headers},
        )
    assert answer.status == status
    assert not published.acks


async def test_this_page_can() -> None:
    halt, published = await _halt(), Published()
    body = {"session_id": halt.session_id, "by": "ada", "decision": "replaying"}
    async with client(state("storm"), acknowledge=published) as http:
        origin = str(http.make_url("/")).rstrip("/")
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        answer = await http.post(f"/v1/fleet/halts/{halt.halt_id}/ack", json=body, headers=headers)
    assert answer.status == 200 and len(published.acks) == 1
