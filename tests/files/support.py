"""What the tests of files share: records as lines, a check that runs here, and a watch that runs elsewhere."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.files.check import check

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"


def record(seq: int, kind: str = "note", session: str = "s", **fields: Any) -> str:
    """Return a record as a line without its end."""
    return json.dumps({"kind": kind, "session_id": session, "seq": seq, **fields})


def bad_action(seq: int, session: str = "s") -> str:
    """Return an irreversible action that nothing allows: exactly one finding, whatever came before."""
    return record(seq, "action", session, action_id=f"a{seq}", irreversible=True)


class Checked(NamedTuple):
    """Hold what a check said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(line["rule"], line["subject"]["id"]) for line in self.lines]


def run_check(*paths: Path | str, stdin: bytes | None = None, **options: Any) -> Checked:
    """Run a check in this process."""
    out, err = io.StringIO(), io.StringIO()
    given = io.BufferedReader(io.BytesIO(stdin)) if stdin is not None else None  # type: ignore[arg-type]
    code = check([str(path) for path in paths], stdout=out, stderr=err, stdin=given, **options)
    return Checked(code, out.getvalue(), err.getvalue())


class Watcher:
    """Run a watch in a process of its own, whose output goes to a file or through a pipe."""

    def __init__(
        self, *paths: Path, state: Path, out: Path | None = None, reading: bool = True, **options: Any
    ) -> None:
        self.options = {"paths": [str(path) for path in paths], "state_dir": str(state), **options}
        self.out = out
        self.reading = reading
        self._reader: threading.Thread | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.said = b""
        self.errors = b""

    def start(self) -> "Watcher":
        command = [sys.executable, "-m", "tests.files.watcher", json.dumps(self.options, default=str)]
        # appended to, as a shell's >> does
        target: Any = self.out.open("ab") if self.out is not None else subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=target, stderr=subprocess.PIPE)
        if self.out is not None:
            target.close()
        elif self.reading:
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
        return self

    def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65536):
            self.said += data

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        assert self.process is not None
        if self._reader is not None:
            self._reader.join()
        assert self.process.stderr is not None
        self.errors += self.process.stderr.read()
        code = self.process.wait(timeout=30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def _end(self, number: int) -> int:
        assert self.process is not None
        os.kill(self.process.pid, number)
        return self.wait()

    def __enter__(self) -> "Watcher":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; fail if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.02)


def subjects(lines: bytes | Path) -> list[str]:
    """Return the subjects of findings in order; a last line without its end is left out."""
    data = lines.read_bytes() if isinstance(lines, Path) and lines.exists() else lines
    if not isinstance(data, bytes):
        return []
    return [json.loads(line)["subject"]["id"] for line in data.split(b"\n")[:-1]]


def append(path: Path, *lines: str, end: str = "\n") -> None:
    """Append lines to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + end)


def actions(numbers: Sequence[int]) -> list[str]:
    """Return the ids that `bad_action` makes of these positions."""
    return [f"a{number}" for number in numbers]
