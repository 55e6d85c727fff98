"""The board asks a guard for the approvals that a session has, as agents ask it, and goes without where it cannot."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.client import Guard
from sidecar.config import FleetSettings, Settings, SettingsError
from sidecar.engine.live import Standing
from sidecar.fleet.edges import GuardEdges, edges_of
from sidecar.guard.access import Access
from sidecar.observe.access import TokenFile
from tests.client.guards import FakeGuard, response, wire
from tests.conftest import missing
from tests.guard.conftest import Certificates
from tests.guard.support import LOOPBACK, FakeSessions, Guarded, authorized, guarded

TOKEN = "t0ken"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give certificates."""
    if shutil.which("openssl") is None:
        missing("openssl makes the certificates of these tests")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Give a file with the token, and an older one that is on its way out."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nolder\n")
    return file


def given(url: str, **more: Any) -> GuardEdges:
    edges = edges_of(Settings.model_construct(fleet=FleetSettings(guard_url=url, **more)), Guard)
    assert edges is not None
    return edges


async def asked(url: str, session_id: str = "a/..", **more: Any) -> list[tuple[str, int]] | None:
    """Return the approvals that are shown: action and position."""
    edges = given(url, **more)
    try:
        shown = await edges(session_id)
    finally:
        await edges.aclose()
    if shown is None:
        return None
    assert len(shown[0]) == shown[1]
    return [(edge.action_id, edge.granted) for edge in shown[0]]


def access(token_file: Path, *, certificate: bool = False) -> Access:
    return Access(tokens=TokenFile(token_file, "guard.token_file"), certificate=certificate, hosts=LOOPBACK)


def requests(guard: Guarded) -> int:
    """Return how many have been let in."""
    return guard.sessions.asked


def sessions(owner: str | None = None) -> FakeSessions:
    """Return a replica's sessions: it has `a/..`, or names who has."""
    had = FakeSessions()
    had.fold(*authorized("a/.."))
    if owner is not None:
        had.trouble[None] = Standing(trouble="not_owned", owner=owner)
    return had


async def test_the_replica_that_has_the_session_is_asked_with_token_and_certificate(
    made: Certificates, token_file: Path
) -> None:
    tls = {"tls_certfile": made.cert("server"), "tls_keyfile": made.key("server"), "tls_client_ca": made.cert("ca")}
    ours = {"guard_token_file": token_file, "guard_cafile": made.cert("ca")}
    shown = {"guard_certfile": made.cert("client"), "guard_keyfile": made.key("client")}

    def replica(owner: str | None = None) -> Any:
        return guarded(sessions(owner), access(token_file, certificate=True), **tls)

    async with replica() as other, replica(other.server.url) as first:
        assert first.server.url.startswith("https://")
        assert await asked(first.server.url, **ours, **shown) == [("deploy", 2)]
        assert (requests(first), requests(other)) == (1, 1)
        # Without either nobody is told anything, and the page goes without.
        without_token = {"guard_cafile": made.cert("ca"), **shown}
        not_trusting = {**ours, **shown, "guard_cafile": made.cert("stranger")}
        for lacking in (ours, without_token, not_trusting):
            assert await asked(first.server.url, **lacking) is None
        assert (requests(first), requests(other)) == (1, 1)


async def test_over_http_the_token_goes_where_it_was_given_for_and_to_the_owner(token_file: Path) -> None:
    async with (
        guarded(sessions(), access(token_file)) as other,
        guarded(sessions(other.server.url), access(token_file)) as first,
    ):
        ours: dict[str, Any] = {"guard_token_file": token_file}
        assert await asked(first.server.url, guard_owner_hosts="127.0.0.1", **ours) == [("deploy", 2)]
        assert await asked(first.server.url, guard_owner_hosts="127.0.0.1") is None
        before = requests(other)
        for hosts in (None, "guard-*,tail-*"):  # whoever joins the group can name an address
            assert await asked(first.server.url, guard_owner_hosts=hosts, **ours) is None
        assert requests(other) == before


async def test_from_https_the_token_does_not_go_to_http(made: Certificates, token_file: Path) -> None:
    async with FakeGuard().serving() as plain:
        tls = {"tls_certfile": made.cert("server"), "tls_keyfile": made.key("server")}
        async with guarded(sessions(plain.url), access(token_file), **tls) as first:
            ours = {"guard_token_file": token_file, "guard_cafile": made.cert("ca")}
            assert await asked(first.server.url, **ours) is None
            assert requests(first) == 1
    assert plain.paths == []


async def test_a_token_that_was_replaced_is_read_again(token_file: Path) -> None:
    async with guarded(sessions(), access(token_file)) as guard:
        edges = given(guard.server.url, guard_token_file=token_file)
        assert await edges("a/..") is not None
        token_file.write_text("newer\n")  # noqa: ASYNC240
        assert await edges("a/..") is not None
        await edges.aclose()


@pytest.mark.parametrize("body", [b"nonsense", b"[]", bytes(range(0x80, 0x94))], ids=["nonsense", "list", "bytes"])
async def test_what_is_no_guards_answer_is_no_trouble(body: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(response(body))

    async with wire(respond) as url:
        assert await asked(url) is None


async def test_nobody_there_and_nobody_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked("http://127.0.0.1:1") is None
    monkeypatch.setattr("sidecar.fleet.edges._SECONDS", 0.1)
    silent = FakeGuard(lambda request, body: asyncio.sleep(5))
    async with silent.serving() as guard:
        assert await asyncio.wait_for(asked(guard.url), 2) is None
    async with guarded(sessions()) as itself:
        itself.sessions.trouble[None] = Standing(trouble="not_owned", owner=itself.server.url)
        assert await asked(itself.server.url) is None
        assert requests(itself) == 1, "it is not followed for ever"


def test_files_that_cannot_be_used_are_named_at_the_start(made: Certificates, tmp_path: Path) -> None:
    https, none, empty = "https://guard:9464", tmp_path / "none", tmp_path / "empty"
    empty.write_text("")
    cert, other = made.cert("client"), made.key("server")
    for more, said in (
        ({"guard_cafile": none}, f"fleet.guard_cafile: cannot read {none}: No such file"),
        ({"guard_cafile": empty}, "fleet.guard_url, fleet.guard_cafile: the guard cannot be asked with this"),
        ({"guard_certfile": cert, "guard_keyfile": other}, "fleet.guard_certfile, fleet.guard_keyfile: the guard"),
        ({"guard_certfile": cert}, "fleet.guard_certfile: the guard cannot"),
        ({"guard_token_file": empty}, f"fleet.guard_token_file: {empty} is empty"),
    ):
        with pytest.raises(SettingsError, match=said):
            given(https, **more)
    with pytest.raises(SettingsError, match=r"fleet\.guard_url: the guard cannot be asked with this.* no user, query"):
        given("http://guard:9464?x=1")
    assert edges_of(Settings.model_construct(fleet=FleetSettings()), Guard) is None
