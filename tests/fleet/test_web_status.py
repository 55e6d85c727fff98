"""`sidecar fleet status` asks as anybody would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sidecar.config import Settings
from sidecar.fleet.commands import status
from sidecar.fleet.status import Standing
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
    assert "65 of 240 sessions degraded" in result.stdout
    assert "corrupt 17" in result.stdout
    assert "ERROR regression (agent researcher" in result.stdout
    assert "Re-expand from checkpoint-2, or replay the log from position" in result.stdout
    assert "and 55 more sessions; the board has all" in result.stdout
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
