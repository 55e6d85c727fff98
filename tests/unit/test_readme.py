"""What README.md shows is what the program does."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sidecar.cli import cli
from sidecar.engine.rules import CATALOGUE
from tests.unit.ten_minutes import watching

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- output: sidecar (.+?) -->\n```\n(.*?)```", README, re.DOTALL)


def sidecar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_shown_output_is_what_comes_out(command: str, output: str) -> None:
    assert output.strip() in sidecar(*shlex.split(command)).stdout


def test_there_is_shown_output() -> None:
    assert SHOWN


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^sidecar (\w+)|`sidecar (\w+)", README, re.MULTILINE))))
def test_named_commands_exist(command: tuple[str, str]) -> None:
    assert "".join(command) in cli.commands


def test_the_number_of_rules() -> None:
    words = {32: "Thirty-two", 33: "Thirty-three", 34: "Thirty-four"}
    assert f"{words[len(CATALOGUE)]} rules in six families" in README
    assert len({rule.family for rule in CATALOGUE.values()}) == 6


def test_the_question_shown_is_refused_as_it_says(tmp_path: Path) -> None:
    shown = re.search(r"curl -s http://127\.0\.0\.1:9464(\S+) -H '([^']+)' \\\n\s+-d '([^']+)'", README)
    assert shown is not None
    path, header, body = shown.groups()
    shutil.copy(ROOT / "tests/cases/merged-approval-rollback.jsonl", tmp_path / "agent.jsonl")
    question = {**json.loads(body), "min_seq": 9}  # only so that the test need not wait for the file to be read
    with watching(tmp_path) as address:
        name, _, value = header.partition(": ")
        request = urllib.request.Request(address + path, json.dumps(question).encode(), {name: value})
        with urllib.request.urlopen(request, timeout=10) as response:
            answer = json.load(response)
    assert answer["allowed"] is False
    assert "action_unauthorized" in {reason.get("rule") for reason in answer["reasons"]}
