"""Make docs/ten-minutes.md again, with what its commands print now: `python -m tests.unit.ten_minutes`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/ten-minutes.md"
EXAMPLES = ROOT / "docs/examples"
_BLOCK = re.compile(r"<!-- (\w+): ([^>]+?) -->\n(?:```\w*\n.*?```\n)?", re.DOTALL)
_DOCSTRING = re.compile(r'^""".*?"""\n\n', re.DOTALL)
_WITHIN = 30.0


def made() -> str:
    """Return the document with every block made anew."""
    with tempfile.TemporaryDirectory() as folder:
        _run(EXAMPLES / "ten_minutes_emit.py", Path(folder))
        with watching(Path(folder)) as address:
            asked = _run(EXAMPLES / "ten_minutes_ask.py", Path(folder), address)

    def block(match: re.Match[str]) -> str:
        what, name = match.groups()
        if what == "file":
            language, text = "jsonl", (ROOT / name).read_text(encoding="utf-8")
        elif what == "code":
            source = (EXAMPLES / f"ten_minutes_{name}.py").read_text(encoding="utf-8")
            language, text = "python", _DOCSTRING.sub("", source)
        elif what == "output":
            language, text = "text", asked
        else:
            shown = _sidecar(name)
            language, text = "text", shown.stdout if what == "stdout" else shown.stderr
        return f"<!-- {what}: {name} -->\n```{language}\n{text.rstrip()}\n```\n"

    return _BLOCK.sub(block, DOCUMENT.read_text(encoding="utf-8"))


def _sidecar(command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)[1:]
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def _run(script: Path, folder: Path, address: str = "") -> str:
    source = script.read_text(encoding="utf-8")
    if address:
        assert "http://127.0.0.1:9464" in source
        source = source.replace("http://127.0.0.1:9464", address)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "sidecar", "--log-format", "json", "watch", "agent.jsonl", "--http", "127.0.0.1:0"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = folder / "watch.log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=out)
    try:
        deadline = time.monotonic() + _WITHIN
        while not (found := re.search(r'"address": ?"(http://[^"]+)"', log.read_text(encoding="utf-8"))):
            assert child.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.05)
        yield found[1]
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(_WITHIN)


if __name__ == "__main__":
    DOCUMENT.write_text(made(), encoding="utf-8")
