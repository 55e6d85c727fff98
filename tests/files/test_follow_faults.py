"""What cannot be read is said, and never counts as read to its end."""

import os
from pathlib import Path

import msgspec
import pytest

from sidecar.files.follow import Follower
from tests.files.support import append, record


def test_a_dangling_link_ends_nothing_and_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "b.jsonl").symlink_to("b.jsonl")
    append(tmp_path / "c.jsonl", record(1))
    follower = Follower([str(tmp_path)])
    assert len(follower.poll(0.0)) == 1
    assert not follower.poll(1.0)
    assert len(follower.notices()) == 2
    assert follower.behind() == 0
    follower.close()


def test_an_unreadable_file_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / "a.jsonl", record(1))
    follower = Follower([str(tmp_path)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _refuse)
        assert not follower.poll(0.0) + follower.poll(1.0)
        assert follower.behind() > 0
        assert len(follower.notices()) == 1
    assert len(follower.poll(2.0)) == 1
    assert follower.behind() == 0
    follower.close()


def test_an_unlistable_folder_blocks_and_its_files_keep_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a.jsonl", record(1))
    follower = Follower([str(tmp_path)])
    assert len(follower.poll(0.0)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", _refuse)
        assert not [line for now in (1.0, 9.0, 20.0) for line in follower.poll(now)]
        assert follower.behind() > 0
        assert len(follower.notices()) == 1
    assert not follower.poll(21.0)
    assert follower.behind() == 0
    follower.close()


def test_a_half_last_line_is_not_behind_and_is_said_once(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    append(log, record(1))
    size = log.stat().st_size
    append(log, '{"kind"', end="")
    follower = Follower([str(log)])
    assert len(follower.poll(0.0)) == 1
    assert follower.behind() == 0
    for now in (1.0, 10.0, 20.0):
        follower.poll(now)
    assert follower.notices() == [f"a half line waits in {log} at byte {size}"]
    follower.close()


def test_a_name_that_is_not_utf8_is_escaped_and_known_again(tmp_path: Path) -> None:
    append(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")), record(1))
    follower = Follower([str(tmp_path)])
    (line,) = follower.poll(0.0)
    assert line.file == f"{tmp_path}/\\xff.jsonl"
    positions = follower.positions()
    msgspec.msgpack.encode(positions)
    follower.close()
    again = Follower([str(tmp_path)], positions)
    assert not again.poll(1.0)
    assert not again.notices()
    again.close()


def _refuse(*_: object, **__: object) -> int:
    raise PermissionError(13, "Permission denied")
