"""What README.md shows is what the program does; its commands are run by tests/docs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
