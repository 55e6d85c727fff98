"""Outputs of a watch: a restart adds what is missing, and takes nothing away that somebody else wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.files.outbox import apart, appended
from sidecar.files.store import StateError

from .support import Watcher, bad_action, until

OURS = [b'{"n": 1}\n', b'{"n": 2}\n', b'{"n": 3}\n']
OTHER = b'{"other": 1}\n'
CASE = Path(__file__).parents[1] / "cases" / "merged-approval-rollback.jsonl"


@pytest.mark.parametrize(
    ("there", "after"),
    [
        (b"", b"".join(OURS)),
        (b"".join(OURS)[:13], b"".join(OURS)),
        (b"".join(OURS), b"".join(OURS)),
        (b"".join(OURS) + OTHER, b"".join(OURS) + OTHER),
        (OTHER, OTHER + b"".join(OURS)),
        (OURS[0] + OTHER + OURS[1], OURS[0] + OTHER + OURS[1] + OURS[2]),
        (OURS[0] + OTHER + OURS[1] + OURS[2], OURS[0] + OTHER + OURS[1] + OURS[2]),
        (OURS[0] + OTHER + OURS[1][:4], OURS[0] + OTHER + OURS[1][:4] + b"\n" + OURS[1] + OURS[2]),
        (OURS[0] + OURS[1][:4] + b"\0" * 40, b"".join(OURS)),
    ],
)
def test_what_is_missing_is_added_and_nothing_else_is_touched(there: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"before\n")
    output = appended(path)
    try:
        mark = output.mark()
        with path.open("ab") as other:
            other.write(there)
        for line in output.rest(mark, OURS, 0):
            output.write(line)
    finally:
        output.close()
    assert path.read_bytes() == b"before\n" + after


def test_equal_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    output = appended(path)
    try:
        mark = output.mark()
        path.write_bytes(b"other\nsame\n")
        assert list(output.rest(mark, [b"same\n", b"same\n"], 0)) == [b"same\n"]
    finally:
        output.close()


def test_a_file_is_for_one_watch(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text("".join(bad_action(n) + "\n" for n in range(1, 4)))
    with Watcher(log, state=tmp_path / "one", findings_file=out) as first:
        until(lambda: out.exists() and out.read_bytes().count(b"\n") == 3)
        with Watcher(log, state=tmp_path / "two", findings_file=out) as second:
            process = second.process
            assert process is not None
            until(lambda: process.poll() is not None)
            assert second.wait() == 2
        assert b"another watch writes to" in second.errors
        first.kill()
    with Watcher(log, state=tmp_path / "two", findings_file=out) as second:
        until(lambda: out.read_bytes().count(b"\n") == 6)
        second.kill()
    before = out.read_bytes()
    with Watcher(log, state=tmp_path / "one", findings_file=out) as first:
        until(lambda: (tmp_path / "one" / "state.bin").stat().st_mtime_ns > out.stat().st_mtime_ns)
        assert first.stop() == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize("exists", [True, False])
def test_findings_and_halts_in_one_file_are_refused(exists: bool, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    if exists:
        out.write_bytes(OTHER)
    link = tmp_path / "link"
    link.symlink_to(out)
    command = [sys.executable, "-m", "sidecar", "watch", str(CASE), "--state", str(tmp_path / "state")]
    command += ["--findings", str(out), "--halts", str(link), "--http", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert done.returncode == 2
    assert b"--findings and --halts are the same file" in done.stderr
    assert not done.stdout
    assert (out.read_bytes() if exists else not out.exists()) == (OTHER if exists else True)


def test_a_device_may_be_shared() -> None:
    apart({"--findings": Path("/dev/null"), "--halts": Path("/dev/null")})


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    two.hardlink_to(one)
    with pytest.raises(StateError, match="same file"):
        apart({"--findings": one, "--halts": two})
