"""The commands that the runbooks show, and what they write."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/runbooks"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*.md")) if path.stem != "README"}

_SHOWN = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)

WRITE = os.environ.get("FRONTIER_WRITE_RUNBOOKS") == "1"
"""Whether to put what the commands write into the pages, instead of comparing it."""


class Shown(NamedTuple):
    """Name a command that a page shows, with its output."""

    page: str
    command: str
    output: str


def shown() -> Iterator[Shown]:
    """Yield the commands of all pages, in order."""
    for page, path in PAGES.items():
        for found in _SHOWN.finditer(path.read_text(encoding="utf-8")):
            yield Shown(page, found["command"], found["output"])


def run(command: str, places: dict[str, str], config: Path, program: tuple[str, ...], folder: Path) -> str:
    """Run a command as it is shown, on other addresses; return what it wrote on standard output.

    Args:
        command: a line for a shell.
        places: the addresses, by those that the pages have.
        config: the sidecar's configuration.
        program: what `sidecar` is.
        folder: a place for the program.
    """
    binary = folder / "bin"
    if not binary.exists():
        binary.mkdir()
        options = " ".join((*program, "--config", str(config)))
        extra = {
            "fleet status": f"--url http://{places['localhost:9465']}",
            "health": f"--http {places['localhost:9464']}",
        }
        cases = "".join(f'case "$*" in "{name}"*) set -- "$@" {option};; esac\n' for name, option in extra.items())
        (binary / "sidecar").write_text(f'#!/bin/sh\n{cases}exec {options} "$@"\n')
        (binary / "sidecar").chmod(0o755)
    for place, address in places.items():
        command = command.replace(place, address)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "PATH": f"{binary}:{os.environ['PATH']}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    output = done.stdout or done.stderr
    for place, address in places.items():
        output = output.replace(address, place)
    return output


_TIMES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"@\[[\d.]+\]", "@[TIME]"),
    (r"\d\.\d+e\+09", "TIME"),
    (r'("seconds_since_well": )[\d.]+', r"\1TIME"),
    (r"\b\d+ (s|min|h|d)\b( \d+ min)?", "TIME"),
    (r"([ ─-])\1+", r"\1"),
    (r" +$", ""),
)


def timeless(text: str) -> list[str]:
    """Return the lines of an output without times, and without what only fills columns."""
    lines = [line for line in text.splitlines() if line.strip()]
    for pattern, replacement in _TIMES:
        lines = [re.sub(pattern, replacement, line) for line in lines]
    return [line.strip() for line in lines]


def write(page: str, command: str, output: str) -> None:
    """Put an output into a page."""
    path = PAGES[page]
    text = path.read_text(encoding="utf-8")
    begin = text.index(f"```console\n$ {command}\n") + len(f"```console\n$ {command}\n")
    end = text.index("```", begin)
    tidy = "".join(f"{line.rstrip()}\n" for line in output.splitlines() if line.strip())
    path.write_text(text[:begin] + tidy + text[end:], encoding="utf-8")
