"""`watch`: what it says while files grow, and what a restart repeats or misses."""

import asyncio
import io
import json
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sidecar.files import follow, store
from sidecar.files.follow import Follower
from sidecar.files.jsonl import InputError
from sidecar.files.store import StateError, Store
from sidecar.files.watch import watch
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from tests.files.support import ROOT, Watcher, actions, append, bad_action, record, run_check, subjects, until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_findings_come_as_lines_are_written(log: Path, out: Path, state: Path) -> None:
    append(log, record(1), bad_action(2))
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: subjects(out) == ["a2"])
        append(log, bad_action(3))
        until(lambda: subjects(out) == ["a2", "a3"])
        assert watcher.stop() == 0
    assert subjects(out) == ["a2", "a3"]


def test_a_partial_last_line_waits_for_its_end(log: Path, out: Path, state: Path) -> None:
    line = bad_action(1)
    append(log, line[:20], end="")
    with Watcher(log, state=state, out=out) as watcher:
        time.sleep(0.4)
        append(log, line[20:], end="")
        time.sleep(0.4)
        assert subjects(out) == []
        append(log, "")
        until(lambda: subjects(out) == ["a1"])
        watcher.stop()
    assert not (state / "dead-letters.jsonl").read_bytes()


def test_a_file_may_appear_later_and_a_folder_gives_its_new_files(tmp_path: Path, out: Path, state: Path) -> None:
    folder, late = tmp_path / "logs", tmp_path / "late.jsonl"
    folder.mkdir()
    append(folder / "other.txt", bad_action(1, "x"))
    with Watcher(folder, late, state=state, out=out) as watcher:
        append(folder / "one.jsonl", bad_action(1, "one"))
        until(lambda: len(subjects(out)) == 1)
        append(folder / "two.jsonl", bad_action(1, "two"))
        append(late, bad_action(1, "late"))
        until(lambda: len(subjects(out)) == 3)
        watcher.stop()
    sessions = {json.loads(line)["session_id"] for line in out.read_text().splitlines()}
    assert sessions == {"one", "two", "late"}


def test_its_own_output_is_not_its_input(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", bad_action(1), "nonsense")
    out, halts = tmp_path / "out.jsonl", tmp_path / "halts.jsonl"
    _run(tmp_path, tmp_path, findings_file=out, halts_file=halts, until_lines=1, out=out)
    _run(tmp_path, tmp_path, findings_file=out, halts_file=halts, until_lines=1, out=out)
    assert subjects(out) == ["a1"]
    assert _lines_in(tmp_path / "dead-letters.jsonl") == 1


def test_rotation_by_renaming_finishes_the_old_file_first(log: Path, out: Path, state: Path) -> None:
    append(log, bad_action(1))
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 1)
        with log.open("a") as held:
            log.rename(log.with_suffix(".jsonl.1"))
            append(log, bad_action(3))
            held.write(bad_action(2) + "\n")
        until(lambda: len(subjects(out)) == 3)
        watcher.stop()
    assert subjects(out) == actions([1, 2, 3])


def test_rotation_by_copying_and_truncating_goes_on_in_the_copy(log: Path) -> None:
    follower = Follower([str(log)])
    append(log, *(record(n) for n in (1, 2)))
    assert len(follower.poll(0.0)) == 2
    append(log, record(3))
    shutil.copy(log, f"{log}.1")
    log.write_text("")
    append(log, record(4))
    lines = [line for now in range(4) for line in follower.poll(now)]
    assert [json.loads(line.raw)["seq"] for line in lines] == [3, 4]
    assert [(Path(line.file).name, line.number) for line in lines] == [("log.jsonl.1", 3), ("log.jsonl", 1)]
    assert "going on in its copy" in follower.notices()[0]
    follower.close()


def test_a_truncated_file_is_read_from_its_start_even_when_it_has_grown_longer_meanwhile(log: Path) -> None:
    follower = Follower([str(log)])
    append(log, record(1))
    assert len(follower.poll(0.0)) == 1
    log.write_text("")
    append(log, *(record(n, session="another") for n in range(1, 6)))
    lines = [line for now in range(3) for line in follower.poll(now)]
    assert [json.loads(line.raw)["session_id"] for line in lines] == ["another"] * 5
    assert "no copy of it" in follower.notices()[0]
    follower.close()


def test_a_deleted_file_is_read_to_its_end_and_its_torn_last_line_given_out(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower([str(log)])
    append(log, record(1))
    assert len(follower.poll(0.0)) == 1
    append(log, record(2))
    append(log, '{"kind": "no', end="")
    log.unlink()
    lines = [line for now in range(3) for line in follower.poll(now)]
    assert [line.number for line in lines] == [2]
    later = [line for now in (10.0, 20.0, 30.0) for line in follower.poll(now)]
    assert [line.raw for line in later] == [b'{"kind": "no']
    assert len(follower) == 0
    append(log, record(1, session="new"))
    assert len(follower.poll(40.0)) == 1
    follower.close()


def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OPEN_FILES", 3)
    for n in range(10):
        append(tmp_path / f"{n}.jsonl", record(1, session=str(n)))
    follower = Follower([str(tmp_path)])
    assert len(follower.poll(0.0)) == 10
    for n in range(10):
        append(tmp_path / f"{n}.jsonl", record(2, session=str(n)))
    (tmp_path / "0.jsonl").rename(tmp_path / "0.jsonl.1")
    assert len([line for now in (1, 2) for line in follower.poll(now)]) == 10
    assert len([f for f in follower._files.values() if f.fd is not None]) <= 4
    follower.close()


def test_a_restarted_follower_knows_its_files_again(tmp_path: Path, log: Path) -> None:
    append(log, record(1))
    follower = Follower([str(log)])
    assert len(follower.poll(0.0)) == 1
    positions = follower.positions()
    follower.close()
    append(log, record(2))
    log.rename(f"{log}.1")
    append(log, record(3))
    follower = Follower([str(log)], positions)
    lines = [line for now in range(3) for line in follower.poll(now)]
    assert [json.loads(line.raw)["seq"] for line in lines] == [2, 3]
    positions = follower.positions()
    follower.close()
    log.unlink()
    follower = Follower([str(log)], positions)
    assert any("is gone" in notice for notice in follower.notices())
    follower.close()


def test_a_line_that_is_too_long_is_passed_over_also_across_a_restart(log: Path) -> None:
    append(log, "x" * 5_000_000, end="")
    follower = Follower([str(log)], limit=2_000_000)
    assert follower.poll(0.0) == []
    positions = follower.positions()
    assert sum(len(position.kept) for position in positions) <= 4096
    follower.close()
    follower = Follower([str(log)], positions, limit=2_000_000)
    append(log, "y", record(1))
    lines = [line for now in range(9) for line in follower.poll(now)]
    assert [line.number for line in lines] == [1, 2]
    assert lines[0].problem == "line too long: 5,000,001 bytes, the limit is 2,000,000"
    follower.close()


def test_a_line_of_ten_megabytes_is_read_also_when_it_comes_in_pieces(log: Path) -> None:
    line = record(1, text="x" * 10_000_000)
    follower = Follower([str(log)])
    append(log, line[:3_000_000], end="")
    assert follower.poll(0.0) == []
    append(log, line[3_000_000:])
    assert [len(found.raw) for found in follower.poll(1.0)] == [len(line)]
    follower.close()


def test_a_clean_restart_neither_repeats_nor_misses(log: Path, out: Path, state: Path) -> None:
    for start in (1, 11, 21):
        append(log, *(bad_action(n) for n in range(start, start + 5)))
        with Watcher(log, state=state, out=out) as watcher:
            until(lambda start=start: f"a{start + 4}" in subjects(out))  # type: ignore[misc]
            append(log, *(bad_action(n) for n in range(start + 5, start + 10)))
            assert watcher.stop() == 0
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 30)
        assert watcher.stop() == 0
    assert subjects(out) == actions(range(1, 31))


def test_what_waits_for_a_missing_position_survives_a_restart(log: Path, out: Path, state: Path) -> None:
    append(log, bad_action(1), bad_action(3))
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 1)
        assert watcher.stop() == 0
    append(log, bad_action(2))
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 3)
        watcher.stop()
    assert subjects(out) == actions([1, 2, 3])


def test_a_gap_is_given_up_by_time(log: Path, state: Path, out: Path) -> None:
    append(log, record(1), bad_action(3))
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 2)
        watcher.stop()
    assert subjects(out) == ["s", "a3"]  # log_gap of the session, then the action behind it


@pytest.mark.parametrize("how", ["findings_file", "appended", "pipe"])
def test_killed_at_any_moment_nothing_is_missing(how: str, log: Path, state: Path, tmp_path: Path) -> None:
    total, rng = 4000, random.Random(7)
    out = tmp_path / "findings.jsonl"
    options = {"findings_file": out} if how == "findings_file" else {}
    done = threading.Event()

    def write() -> None:
        with log.open("a") as file:
            for n in range(1, total + 1):
                file.write(bad_action(n, f"s{n % 7}").replace(f'"seq": {n}', f'"seq": {(n - 1) // 7 + 1}') + "\n")
                if n % 50 == 0:
                    file.flush()
                    time.sleep(0.02)
        done.set()

    writer = threading.Thread(target=write)
    log.touch()
    writer.start()
    said = b""
    kills = 0
    while not done.is_set() or kills < 5:
        watcher = Watcher(log, state=state, out=out if how == "appended" else None, **options)
        with watcher:
            time.sleep(0.4 + rng.random() * 0.3)
            watcher.kill()
        said += watcher.said
        kills += 1
        assert kills < 60
    writer.join()
    watcher = Watcher(log, state=state, out=out if how == "appended" else None, **options)
    with watcher:
        time.sleep(2.5)
        assert watcher.stop() == 0
    said += watcher.said
    expected = [line["finding_id"] for line in run_check(log).lines]
    assert len(expected) == total
    if how == "pipe":
        got = []
        for line in said.split(b"\n"):
            if line:
                got += [json.loads(line)["finding_id"]]
        assert set(got) == set(expected)
        assert len(got) - len(expected) <= kills  # the line that was being written at a kill, and no more
    else:
        got = [json.loads(line)["finding_id"] for line in out.read_text().splitlines()]
        assert got == expected


def test_a_half_written_outbox_is_completed_and_not_repeated(log: Path, state: Path, tmp_path: Path) -> None:
    """What a crash between the save and the end of writing leaves behind, made by hand."""
    out = tmp_path / "out.jsonl"
    append(log, *(bad_action(n) for n in range(1, 4)))
    _run(log, state, findings_file=out, until_lines=3, out=out)
    whole = out.read_bytes()
    with Store(state) as kept:
        saved = kept.load()
        mark = store.Mark(*_key(out), 0)
        lines = [line + b"\n" for line in whole.splitlines()]
        kept.save(store.State(
            number=saved.number + 1, clock=saved.clock, engine=saved.engine, files=saved.files,
            outbox=[("findings", line) for line in lines], marks={"findings": mark},
        ))  # fmt: skip
    for cut in (0, 1, len(lines[0]), len(lines[0]) + 7, len(whole)):
        out.write_bytes(whole[:cut])
        with Store(state) as kept:
            saved = kept.load()
        _run(log, state, findings_file=out, until_lines=3, out=out)
        assert out.read_bytes() == whole
        with Store(state) as kept:
            kept.save(saved)
    out.write_bytes(whole[:50] + b"\0" * 40)  # what a power failure can leave behind
    _run(log, state, findings_file=out, until_lines=3, out=out)
    assert out.read_bytes() == whole


def test_the_state_folder_is_for_one_watch(log: Path, state: Path, out: Path) -> None:
    with Watcher(log, state=state, out=out) as first:
        until(lambda: (state / "state.bin").exists())
        second = Watcher(log, state=state).start()
        assert second.wait() == 2
        assert b"another watch (process" in second.errors
        assert first.stop() == 0


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:40] + b"\xff" + data[41:], "damaged"),
        (lambda data: b"", "damaged"),
        (lambda data: data[:15] + b"\x09" + data[16:], "version 9"),
    ],
)
def test_a_damaged_or_unknown_state_is_refused(damage, why: str, log: Path, state: Path, out: Path) -> None:  # type: ignore[no-untyped-def]
    append(log, bad_action(1))
    _run(log, state, findings_file=out, until_lines=1, out=out)
    path = state / "state.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateError, match=why):
        _run(log, state, findings_file=out, until_lines=1, out=out)


def test_a_full_disk_stops_the_watch_and_loses_nothing(log: Path, state: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    append(log, *(bad_action(n) for n in range(1, 200)))

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    watcher = Watcher(log, state=state, findings_file=out)
    command = [sys.executable, "-m", "tests.files.watcher", json.dumps(watcher.options, default=str)]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=small, capture_output=True, timeout=30, check=False)
    assert done.returncode == 2
    assert b"Nothing is lost" in done.stderr
    assert b"File too large" in done.stderr
    with Watcher(log, state=state, findings_file=out) as again:
        until(lambda: len(subjects(out)) == 199)
        assert again.stop() == 0
    assert subjects(out) == actions(range(1, 200))


def test_unreadable_lines_are_dead_letters_and_take_their_position(log: Path, state: Path, out: Path) -> None:
    append(log, record(1), record(2, "action"), bad_action(3), "{oops", "\0\0\0")
    with Watcher(log, state=state, out=out) as watcher:
        until(lambda: len(subjects(out)) == 2)
        until(lambda: len((state / "dead-letters.jsonl").read_text().splitlines()) == 3)
        assert watcher.stop() == 0
    letters = [json.loads(line) for line in (state / "dead-letters.jsonl").read_text().splitlines()]
    assert [letter["source"]["offset"] for letter in letters] == [2, 4, 5]
    assert (letters[0]["session_id"], letters[0]["seq"]) == ("s", 2)
    assert letters[2]["reason"].startswith("NUL bytes in columns 1 to 3")
    assert [json.loads(line)["rule"] for line in out.read_text().splitlines()] == ["log_gap", "action_unauthorized"]
    assert b"unreadable" in watcher.errors


def test_the_reader_of_the_output_leaves(log: Path, state: Path) -> None:
    append(log, bad_action(1))
    watcher = Watcher(log, state=state, reading=False).start()
    assert watcher.process is not None
    assert watcher.process.stdout is not None
    watcher.process.stdout.readline()
    watcher.process.stdout.close()
    append(log, bad_action(2))
    assert watcher.wait() == 141
    assert watcher.errors == b""
    with Watcher(log, state=state) as again:
        deadline = time.monotonic() + 15
        while not again.said and time.monotonic() < deadline:
            time.sleep(0.05)
        assert again.stop() == 0
    assert subjects(again.said) == ["a2"]


def test_halts_metrics_and_health(log: Path, state: Path, tmp_path: Path) -> None:
    metrics, health = Metrics(broker=False), Health(time.monotonic())
    out, halts = tmp_path / "out.jsonl", tmp_path / "halts.jsonl"
    append(log, bad_action(1), "nonsense")
    _run(log, state, findings_file=out, halts_file=halts, until_lines=1, out=out, metrics=metrics, health=health)
    assert [json.loads(line)["status"] for line in halts.read_text().splitlines()] == ["halt"]
    text = metrics.exposition()[0].decode()
    assert 'sidecar_records_total{kind="action",topic="files"} 1.0' in text
    assert 'sidecar_dead_letters_total{topic="files"} 1.0' in text
    assert "sidecar_detection_from_fetch_seconds_count 1.0" in text
    assert health.ready(time.monotonic()).ok
    assert health.live(time.monotonic()).ok


def test_a_path_that_is_no_file_is_refused(state: Path) -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        _run(Path("/dev/null"), state, until_lines=0, out=state)


def _run(*paths: Path, until_lines: int, out: Path, **options) -> None:  # type: ignore[no-untyped-def]
    """Watch in this process until an output file has that many lines."""
    state = paths[-1]

    async def go() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(
            watch(
                [str(p) for p in paths[:-1]],
                state_dir=state,
                stop=stop,
                poll_interval=0.02,
                stdout=io.StringIO(),
                **options,
            )
        )
        end = time.monotonic() + 10
        while not task.done() and time.monotonic() < end:
            if _lines_in(out) >= until_lines:
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        stop.set()
        await task

    asyncio.run(go())


def _lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _key(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
