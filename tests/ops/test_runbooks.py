"""The runbooks: one for each alert, each with the same four parts."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from grafana.source import rules
from sidecar.cli import cli
from sidecar.engine.rules import CATALOGUE
from tests.ops.expressions import DASHBOARDS, load
from tests.ops.runbooks import FOLDER, PAGES, shown

HEADINGS = ["What it means", "How to look", "What to do", "How to know that it is over"]
ALERTS = {alert.name: alert for alert in rules.every()}
each = pytest.mark.parametrize("path", PAGES.values(), ids=PAGES.keys())


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    assert set(PAGES) == set(ALERTS)


@each
def test_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    parts = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert all(len(part.strip()) > 60 for part in parts)
    assert "```console\n$ " in parts[1], "how to look needs a command"
    assert re.search(r"^1\. ", parts[2], re.MULTILINE), "what to do is a list of steps"
    opening = parts and text.split("\n\n")[1]
    assert opening.startswith("Page." if ALERTS[path.stem].severity == "page" else "Warning.")


@each
def test_its_lines_are_not_too_long_to_read(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert max(map(len, prose.splitlines())) <= 130


def test_what_they_say_of_times_is_what_the_rules_say() -> None:
    """Compare the sentence about the alert's end with `keep_firing_for`."""
    words = {"1m": "a minute", "5m": "five minutes", "10m": "ten minutes", "15m": "half an hour", "30m": "an hour"}
    for name, alert in ALERTS.items():
        text = " ".join(PAGES[name].read_text(encoding="utf-8").split())
        assert words[alert.keep] in text, (name, alert.keep)


def test_rules_and_panels_that_they_name_are_there() -> None:
    boards = [load(path) for path in DASHBOARDS]
    titles = {board["title"].removeprefix("Frontier / ") for board in boards}
    titles |= {panel["title"].removeprefix("Fleet view: ") for board in boards for panel in board["panels"]}
    for path in PAGES.values():
        text = path.read_text(encoding="utf-8")
        for rule in re.findall(r"sidecar rules (\w+)", text):
            assert rule in CATALOGUE
        prose = " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
        named = set(re.findall(r"(?<!\*)\*([^*`]+)\*(?!\*)", prose)) - {"corrupt", "lossy", "halt"}
        assert named <= titles, path.stem


def _printed(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["runbook", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@each
def test_the_program_prints_it(path: Path) -> None:
    """What to do is in the program as it stands here, whatever the letters are; links are words."""
    printed, written = _printed(path.stem.lower()), path.read_text(encoding="utf-8")
    assert printed.startswith(f"# {path.stem}\n")
    assert re.findall(r"^```.*?^```", printed, re.M | re.S) == re.findall(r"^```.*?^```", written, re.M | re.S)
    assert re.findall(r"^#+ .*", printed, re.M) == re.findall(r"^#+ .*", written, re.M)


def test_the_program_lists_them_and_suggests_the_one_that_was_meant() -> None:
    assert all(f"| {name} |" in _printed() for name in ALERTS)
    wrong = CliRunner().invoke(cli, ["runbook", "SidecarDwn"])
    assert wrong.exit_code == 2 and "Did you mean 'SidecarDown'?" in wrong.output


def test_the_index_names_all_with_their_severity() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (page|warning) \|", text, re.MULTILINE)
    assert all(name == file for name, file, _ in rows)
    assert {name: severity for name, _, severity in rows} == {name: a.severity for name, a in ALERTS.items()}


def test_commands_are_shown_with_their_output() -> None:
    for found in shown():
        assert found.output.strip() or found.command.startswith("sidecar health"), found
