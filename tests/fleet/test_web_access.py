"""Who may see the fleet: the machine itself, whoever shows a token, and no page of somebody else's."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from sidecar.config import Settings, SettingsError
from sidecar.fleet.access import Gate
from sidecar.observe.access import TokenFile, is_loopback
from tests.fleet.support import client, state

DOCUMENT = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/board", {}, 200),
        ("/board", {"Host": "localhost:1234"}, 200),
        ("/board", {"Host": "[::1]"}, 200),
        ("/board", {"Host": "rebound.example"}, 403),
        ("/v1/fleet", {"Host": "rebound.example"}, 403),
        ("/v1/fleet", {"Host": "127.0.0.1.rebound.example"}, 403),
        ("/v1/fleet", {"Host": "[not an address"}, 403),
        # A link in a chat may be followed; nothing may be read or embedded from elsewhere.
        ("/board", {"Sec-Fetch-Site": "cross-site", **DOCUMENT}, 200),
        ("/board", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ("/board", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ("/v1/fleet", {"Sec-Fetch-Site": "cross-site", **DOCUMENT}, 403),
        ("/v1/fleet", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/v1/fleet", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/v1/fleet", {"Sec-Fetch-Site": "none"}, 200),
        ("/board/static/board.js", {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_other_pages_may_link_and_nothing_else(path: str, headers: dict[str, str], status: int) -> None:
    async with client(state("healthy")) as http:
        answer = await http.get(path, headers=headers)
    assert answer.status == status


def _basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("Bearer one", 200),
        ("bearer  two", 200),
        ("Bearer three", 401),
        ("Bearer ", 401),
        ("Bearer on", 401),
        (_basic("anybody:one"), 200),
        (_basic(":two"), 200),
        (_basic("one:three"), 401),
        (_basic("one"), 401),
        ("Basic %%%", 401),
        ("Digest one", 401),
    ],
)
async def test_a_token_is_needed_where_one_is_configured(tmp_path: Path, given: str | None, status: int) -> None:
    file = tmp_path / "tokens"
    file.write_text("one\ntwo\n")
    settings = Settings.load(None, fleet__token_file=file)
    async with client(state("healthy"), settings) as http:
        for path in ("/board", "/v1/fleet", "/board/static/board.css"):
            answer = await http.get(path, headers={"Authorization": given} if given else {})
            assert answer.status == status
            challenges = answer.headers.getall("WWW-Authenticate", [])
            assert [c.split()[0] for c in challenges] == ([] if status == 200 else ["Bearer", "Basic"])


def test_tokens_may_change_while_they_are_used(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("old\n")
    knows = TokenFile(file, "fleet.token_file").knows
    assert knows("old") and not knows("new") and not knows("")
    file.write_text("new\n")
    assert knows("new") and not knows("old")
    file.unlink()
    assert not knows("new")


@pytest.mark.parametrize("content", ["", "\n \n", None, b"\xff\xfe"])
def test_a_token_file_that_holds_none_is_an_error(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=r"fleet\.token_file"):
        TokenFile(file, "fleet.token_file")


def test_strangers_are_not_let_in_by_configuration(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.token_file"):
        Gate.of(Settings.load(None, http="0.0.0.0:9465"))
    file = tmp_path / "tokens"
    file.write_text("one\n")
    Gate.of(Settings.load(None, http="0.0.0.0:9465", fleet__token_file=file))


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1"])
def test_names_of_this_machine(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize("name", ["", "0.0.0.0", "::", "localhost.example", "10.0.0.1", "127.0.0.1.example"])
def test_names_of_others(name: str) -> None:
    assert not is_loopback(name)
