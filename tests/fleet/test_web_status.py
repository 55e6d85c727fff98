"""`sidecar fleet status` asks as anybody would, and the board's guard for edges answers as far as it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from sidecar.config import Settings
from sidecar.fleet.commands import status
from sidecar.fleet.edges import GuardEdges
from sidecar.fleet.status import Standing
from sidecar.protocol.api import Edge, FrontierView, Problem, Reason, SessionView
from tests.fleet.serving import Site, serving
from tests.fleet.support import state


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as given:
        yield given


def run(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(status, ["--url", site.url, *arguments])


def test_it_says_what_is_wrong_and_what_to_do(site: Site) -> None:
    site.fleet = state("storm")
    result = run(site)
    assert result.exit_code == 0, result.output
    assert "68 of 240 sessions degraded" in result.stdout
    assert "corrupt 19" in result.stdout
    assert "ERROR regression (model tiny-small" in result.stdout
    assert "Re-expand from checkpoint-2, or replay the log from position" in result.stdout
    assert "and 58 more sessions; the board has all" in result.stdout
    assert run(site, "--check").exit_code == 1
    assert "more sessions" not in run(site, "--limit", "200").stdout


def test_it_says_it_for_programs(site: Site) -> None:
    site.fleet = state("storm")
    found = msgspec.json.decode(run(site, "--json", "--limit", "3").stdout, type=Standing)
    assert (found.summary.sessions, len(found.sessions.items)) == (240, 3)
    assert json.loads(run(site, "--json").stdout)["alerts"]["total"] == len(found.alerts.items)


@pytest.mark.parametrize(("name", "said", "code"), [("healthy", "0 of 40", 0), ("empty", "No session", 0)])
def test_it_says_when_nothing_is_wrong(site: Site, name: str, said: str, code: int) -> None:
    site.fleet = state(name)
    result = run(site, "--check")
    assert said in result.stdout
    assert result.exit_code == code


def test_half_an_answer_is_no_good_one(site: Site) -> None:
    site.fleet = state("healthy").copy()
    site.fleet.lost = {1}
    result = run(site, "--check")
    assert "INCOMPLETE: http://127.0.0.1:9466 (partitions 1) did not answer" in result.stdout
    assert "at least 0 of" in result.stdout
    assert result.exit_code == 1


def test_hostile_ids_do_not_drive_the_terminal(site: Site) -> None:
    site.fleet = state("hostile")
    output = run(site, "--limit", "100").output
    assert "\x1b" not in output and "\u202e" not in output
    assert "\\u202emoc.live" in output


def test_what_is_no_fleet_is_named(site: Site, tmp_path: Path) -> None:
    gone = CliRunner().invoke(status, ["--url", "http://127.0.0.1:1"])
    assert gone.exit_code == 2 and "does `sidecar fleet` run there?" in gone.stderr
    wrong = CliRunner().invoke(status, ["--url", "127.0.0.1:9465"])
    assert wrong.exit_code == 2 and "is no address" in wrong.stderr
    other = CliRunner().invoke(status, ["--url", f"{site.url}/elsewhere"])
    assert other.exit_code == 2 and "answers 404" in other.stderr


def test_a_token_is_sent_where_one_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    with serving(settings=Settings.load(None, fleet__token_file=file)) as site:
        site.fleet = state("healthy")
        assert run(site, "--token-file", str(file)).exit_code == 0
        without = run(site)
        assert without.exit_code == 2 and "Give the token with --token-file" in without.stderr
        other = tmp_path / "other"
        other.write_text("wrong\n")
        assert "not known" in run(site, "--token-file", str(other)).stderr


# --- the guard --------------------------------------------------------------------------------------------------------

VIEW = SessionView(
    session_id="a/..",
    status="verified",
    position=9,
    awaiting=False,
    waiting=0,
    missing=[],
    checkpoint_in_force=None,
    checkpoints=[],
    open_halts=[],
    frontier=FrontierView(latest=3, edge_count=2, edges=[Edge(action_id="a", precondition_id="p", granted=3)]),
)


class Guard:
    """Answer as a guard's replica does: it has the session, or names who has."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.body: bytes | None = None
        self.asked: list[tuple[str, str | None]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.raw_path, request.headers.get("Authorization")))
        if self.owner is not None:
            problem = Problem(reasons=[Reason(code="not_owned", detail="elsewhere")], owner=self.owner)
            return web.Response(body=msgspec.json.encode(problem), status=421)
        return web.Response(body=self.body or msgspec.json.encode(VIEW))

    def server(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/{tail:.*}", self.handle)
        return TestServer(app, host="127.0.0.1")


async def test_the_guard_that_has_the_session_is_asked() -> None:
    one, other = Guard(), Guard()
    async with one.server() as first, other.server() as second:
        one.owner = str(second.make_url("")).rstrip("/")
        edges = GuardEdges(str(first.make_url("")), "secret")
        assert await edges("a/..") == (VIEW.frontier.edges, 2)
    assert one.asked == [("/v1/sessions/a%2F..", "Bearer secret")]
    assert other.asked == [("/v1/sessions/a%2F..", None)], "the token is for the configured address alone"


@pytest.mark.parametrize("body", [b"nonsense", b"[]", bytes(range(0x80, 0x94))], ids=["nonsense", "list", "bytes"])
async def test_a_guard_that_does_not_answer_is_no_trouble(body: bytes) -> None:
    guard = Guard()
    guard.body = body
    async with guard.server() as server:
        assert await GuardEdges(str(server.make_url("")))("s") is None
    assert await GuardEdges("http://127.0.0.1:1")("s") is None
    guard.body, guard.owner = None, None
    async with guard.server() as server:
        guard.owner = str(server.make_url("")).rstrip("/")  # itself: it is not followed for ever
        assert await GuardEdges(guard.owner)("s") is None
    assert len(guard.asked) == 3
