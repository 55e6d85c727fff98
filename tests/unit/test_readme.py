"""What README.md shows is what the program does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.cli import cli
from sidecar.engine.rules import CATALOGUE

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
