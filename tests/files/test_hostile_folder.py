"""What a writer to a watched folder may do, and what it must not bring about."""

import base64
import json
import os
import socket
import time
from pathlib import Path

import pytest

from sidecar.files import paths, pieces
from sidecar.files.follow import Follower
from sidecar.files.letters import ALONE
from tests.files.support import Watcher, append, bad_action, record, subjects, until

SECRET = "root:$6$salt$hash-that-nobody-may-see:19000:0:99999:7:::"


def letters(state: Path) -> list[dict[str, object]]:
    path = state / "dead-letters.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "logs", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    append(outside / "foreign.jsonl", record(1, session="foreign"))
    append(folder / "data", record(1, session="inside"))
    (folder / "out.jsonl").symlink_to(outside / "foreign.jsonl")
    (folder / "folder.jsonl").symlink_to(outside)
    (folder / "through.jsonl").symlink_to("../outside/foreign.jsonl")
    (folder / "in.jsonl").symlink_to("data")
    follower = Follower([str(folder)])
    lines = [line for now in range(3) for line in follower.poll(now)]
    assert [json.loads(line.raw)["session_id"] for line in lines] == ["inside"]
    assert sum("out of its folder" in notice for notice in follower.notices()) == 3
    assert follower.behind() == 0
    follower.close()


def test_a_file_that_becomes_a_link_is_not_read(tmp_path: Path) -> None:
    folder, foreign = tmp_path / "logs", tmp_path / "foreign.jsonl"
    folder.mkdir()
    append(foreign, record(1), record(2), record(3))
    append(folder / "a.jsonl", record(1))
    follower = Follower([str(folder)], open_files=0)
    assert len(follower.poll(0.0)) == 1
    (folder / "a.jsonl").unlink()
    (folder / "a.jsonl").symlink_to(foreign)
    (folder / "a.jsonl.1").symlink_to(foreign)  # what looks like a copy to go on in
    assert not [line for now in (1.0, 2.0, 9.0) for line in follower.poll(now)]
    assert len(follower.losses()) == 1
    follower.close()


@pytest.mark.parametrize("owner", ["mine", "stranger"])
def test_a_named_link_is_followed_if_nobody_else_made_it(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    append(elsewhere / "log.jsonl", record(1))
    (tmp_path / "here").mkdir()
    link = tmp_path / "here" / "log.jsonl"
    link.symlink_to(elsewhere / "log.jsonl")
    if owner == "stranger":
        if os.geteuid() != 0:
            pytest.skip("only root can give a link to somebody else")
        os.chown(link, 12345, 12345, follow_symlinks=False)
    follower = Follower([str(link)])
    assert len(follower.poll(0.0)) == (1 if owner == "mine" else 0)
    follower.close()


def test_pipes_sockets_and_folders_hold_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "a.jsonl.1")  # opened when a copy is looked for
    (tmp_path / "folder.jsonl").mkdir()
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "s.jsonl"))
    append(tmp_path / "a.jsonl", record(1))
    follower = Follower([str(tmp_path)])
    began = time.monotonic()
    assert len(follower.poll(0.0)) == 1
    (tmp_path / "a.jsonl").write_text("")
    assert not follower.poll(1.0)
    assert time.monotonic() - began < 5
    assert sum("no regular file" in notice for notice in follower.notices()) == 3
    follower.close()
    bound.close()


def test_a_file_without_end_is_passed_over(tmp_path: Path) -> None:
    """A sparse file of a terabyte costs nothing to make."""
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + record(1).encode() + b"\n")
    append(tmp_path / "b.jsonl", record(1, session="other"))
    follower = Follower([str(tmp_path)], limit=2_000_000)
    began = time.monotonic()
    lines = [line for now in range(9) for line in follower.poll(now)]
    assert time.monotonic() - began < 10
    assert [line.number for line in lines if line.file.endswith("a.jsonl")] == [1, 2]
    assert follower.behind() == 0
    follower.close()


def test_a_poll_reads_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.files.follow.BUDGET", 100_000)
    for n in range(20):
        append(tmp_path / f"{n}.jsonl", record(1, session=str(n), text="x" * 30_000))
    follower = Follower([str(tmp_path)])
    first = follower.poll(0.0)
    assert 1 <= len(first) <= 5
    assert follower.behind() > 0
    assert len(first) + sum(len(follower.poll(now)) for now in range(1, 20)) == 20
    follower.close()


def test_too_many_files_are_said_and_refused_and_the_known_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "FILES", 10)
    append(tmp_path / "z.jsonl", record(1, session="known"))
    follower = Follower([str(tmp_path)])
    assert len(follower.poll(0.0)) == 1
    for n in range(50):
        append(tmp_path / f"{n:03}.jsonl", record(1, session=f"flood-{n}"))
    append(tmp_path / "z.jsonl", record(2, session="known"))
    lines = [line for now in (1.0, 2.0) for line in follower.poll(now)]
    assert "known" in {json.loads(line.raw)["session_id"] for line in lines}
    assert len(follower) <= 11
    assert follower.behind() > 0  # so the guard permits nothing
    assert any("not all are followed" in notice for notice in follower.notices())
    follower.close()


def test_open_files_are_bounded(tmp_path: Path) -> None:
    for n in range(40):
        append(tmp_path / f"{n}.jsonl", record(1, session=str(n)))
    follower = Follower([str(tmp_path)], open_files=5)
    lines = 0
    for now in range(60):
        lines += len(follower.poll(now))
        assert sum(file.fd is not None for file in follower._files.values()) <= 3 * 5 + 9
        for path in list(tmp_path.glob("*.jsonl"))[:30]:
            path.rename(f"{path}.{now}")
    assert lines == 40
    assert follower._open_now == sum(file.fd is not None for file in follower._files.values())
    follower.close()
    assert follower._open_now == 0


def test_names_are_written_out_on_one_line() -> None:
    assert paths.shown("/a\nfake: b\x1b[2J\u202e.jsonl") == "/a\\nfake: b\\x1b[2J\\u202e.jsonl"
    assert paths.shown("/päth with spaces.jsonl") == "/päth with spaces.jsonl"


def test_the_text_of_a_foreign_file_is_copied_nowhere(tmp_path: Path) -> None:
    folder, state, out = tmp_path / "logs", tmp_path / "state", tmp_path / "out"
    folder.mkdir()
    (folder / "shadow.jsonl").write_text("\n".join([SECRET] * (ALONE + 500)) + "\n")
    app = {"session_id": "web", "seq": 1.5, "password": SECRET}  # another program's log, by chance with a session
    (folder / "app.jsonl").write_text(json.dumps(app) + "\n")
    append(folder / "log.jsonl", bad_action(1, "a"), "{torn", record(2, "action", "a"))
    append(folder / "new.jsonl", '{"kind": "revocation", "session_id": "b", "seq": "3"}')
    with Watcher(folder, state=state, out=out) as watcher:
        until(lambda: len(letters(state)) >= ALONE + 5)
        assert watcher.stop() == 0
    for path in (*state.iterdir(), out):
        if path.name == "state.bin":  # has the first bytes of every file, to know it again
            assert path.stat().st_mode & 0o077 == 0
        else:
            assert SECRET.encode() not in path.read_bytes()
    found = letters(state)
    assert not any(SECRET.encode() in base64.b64decode(str(letter["original"])) for letter in found)
    shadow = [letter for letter in found if letter["source"]["topic"].endswith("shadow.jsonl")]  # type: ignore[index]
    assert len(shadow) == ALONE + 1
    assert str(shadow[-1]["reason"]).startswith(f"500 more lines, up to line {ALONE + 500}")
    assert "SHA-256" in str(shadow[0]["reason"])
    kept = {Path(x["source"]["topic"]).name: base64.b64decode(str(x["original"])) for x in found}  # type: ignore[index]
    assert json.loads(kept["log.jsonl"])["kind"] == "action"
    assert json.loads(kept["new.jsonl"])["kind"] == "revocation"
    assert kept["app.jsonl"] == b""
    assert subjects(out)


def test_what_is_written_over_counts_as_another_file(tmp_path: Path) -> None:
    """A log of records that is replaced by a foreign text under the same name does not make that ours."""
    log = tmp_path / "log.jsonl"
    append(log, record(1))
    follower = Follower([str(log)])
    (line,) = follower.poll(0.0)
    assert line.origin is not None
    line.origin.records = True
    log.write_text(SECRET + "\n" + SECRET + "\n")
    lines = [line for now in (1.0, 2.0) for line in follower.poll(now)]
    assert [line.origin is not None and line.origin.records for line in lines] == [False, False]
    follower.close()


def test_the_first_and_last_bytes_are_kept_and_no_more(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", *(record(n) for n in range(1, 500)))
    follower = Follower([str(tmp_path)])
    follower.poll(0.0)
    (position,) = follower.positions()
    assert (len(position.head), len(position.tail)) == (pieces.HEAD, pieces.HEAD)
    follower.close()
