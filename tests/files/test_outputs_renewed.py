"""Outputs that are renamed, deleted, or read by nobody."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.files import outbox
from sidecar.files.outbox import Descriptor, Patience, appended
from sidecar.files.store import Mark, StateError
from tests.files.support import ROOT, Watcher, actions, append, bad_action, record, subjects, until


@pytest.mark.parametrize("how", ["renamed", "deleted"])
def test_a_findings_file_that_goes_away_is_made_anew(how: str, tmp_path: Path) -> None:
    log, out, state = tmp_path / "log.jsonl", tmp_path / "findings.jsonl", tmp_path / "state"
    append(log, bad_action(1))
    with Watcher(log, state=state, findings_file=out) as watcher:
        until(lambda: subjects(out) == ["a1"])
        if how == "renamed":
            out.rename(tmp_path / "findings.jsonl.1")
        else:
            out.unlink()
        append(log, bad_action(2))
        until(lambda: "a2" in subjects(out))
        append(log, bad_action(3))
        until(lambda: "a3" in subjects(out))
        assert watcher.stop() == 0
    if how == "renamed":
        assert subjects(tmp_path / "findings.jsonl.1") + subjects(out) == actions([1, 2, 3])
    else:
        assert subjects(out) in (actions([2, 3]), actions([1, 2, 3]))


@pytest.mark.parametrize(("renamed", "left"), [(True, [b"two\n"]), (False, [b"one\n", b"two\n"])])
def test_after_a_restart_what_was_deleted_is_written_again(renamed: bool, left: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"
    path.write_bytes(b"")
    status = path.stat()
    if renamed:
        path.rename(tmp_path / "findings.jsonl.1")
    else:
        path.rename(tmp_path / "elsewhere")
    output = appended(path)
    assert list(output.rest(Mark(status.st_dev, status.st_ino, 0), [b"one\n", b"two\n"], 1)) == left
    output.close()


def test_a_reader_that_does_not_read_cannot_keep_the_watch_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    patience = Patience()
    output = Descriptor(writer, "standard output", patience=patience)
    patience.until = time.monotonic() + 0.3
    began = time.monotonic()
    with pytest.raises(StateError, match="is not read"):
        output.write(b"x" * 1_000_000)
    assert time.monotonic() - began < 5
    patience.until = float("inf")
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        output.write(b"x")
    os.close(writer)
    assert outbox.Patience().until == float("inf")


def test_a_stalled_reader_and_sigterm(tmp_path: Path) -> None:
    """One SIGTERM ends the program within its patience, a second one at once; nothing is lost."""
    log, state, errors = tmp_path / "log.jsonl", tmp_path / "state", tmp_path / "errors"
    append(log, *(bad_action(n) for n in range(1, 2000)))
    command = [sys.executable, "-m", "sidecar", "watch", str(log), "--state", str(state)]
    with errors.open("wb") as stderr:
        process = subprocess.Popen([*command, "--http", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)
    try:
        until(lambda: (state / "state.bin").exists(), 30)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        time.sleep(1.0)
        assert process.poll() is None  # it waits for its reader
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=3) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        said = process.stdout.read()
        process.stdout.close()
    with Watcher(log, state=state) as again:
        until(lambda: "a1999" in subjects(again.said), 30)
        assert again.stop() == 0
    whole = said[: said.rfind(b"\n") + 1]
    assert set(subjects(whole)) | set(subjects(again.said)) == set(actions(range(1, 2000)))


async def test_a_revocation_without_a_readable_position_refuses(tmp_path: Path) -> None:
    from tests.files.test_losses import granted, watching

    log = tmp_path / "log.jsonl"
    append(log, *granted(), *granted("other"))
    async with watching(log, state=tmp_path / "state") as watched:
        await watched.becomes(True)
        append(log, record(3, "revocation", action_id="deploy").replace('"seq": 3', '"seq": "3"'))
        await watched.becomes(False)
        assert await watched.allowed(session_id="other")
    async with watching(log, state=tmp_path / "state") as watched:
        await watched.becomes(True, session_id="other")
        assert not await watched.allowed()


async def test_idle_sessions_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.files.test_losses import granted, watching

    monkeypatch.setattr("sidecar.files.watch.TIDY_INTERVAL", 0.05)
    log = tmp_path / "log.jsonl"
    append(log, *granted())
    async with watching(log, state=tmp_path / "state", idle_after=0.1, ttl=1.5) as watched:
        await watched.becomes(True)
        engine = watched.sessions.find("s").engine
        assert engine is not None
        await watched.becomes(False)
        assert len(engine) == 0
