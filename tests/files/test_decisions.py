"""The log of decisions as a file: on the disk before the answer, whole lines, and an error where that cannot be."""

import asyncio
import os
from pathlib import Path

import pytest

from sidecar.files.decisions import DecisionFile
from sidecar.files.store import StateError


async def test_what_is_asked_together_is_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionFile(tmp_path / "d.jsonl")
    synced: list[int] = []
    fsync = os.fsync

    def count(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", count)
    await asyncio.gather(*(log.write(f"s{n}", b"%d" % n) for n in range(200)))
    assert (tmp_path / "d.jsonl").read_bytes().split() == [b"%d" % n for n in range(200)]
    assert 1 <= len(synced) <= 5
    await log.close()
    with pytest.raises(RuntimeError):
        await log.write("s", b"late")


async def test_what_cannot_be_written_is_an_error_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.jsonl"
    log = DecisionFile(path)
    await log.write("s", b"one")
    with monkeypatch.context() as patch:
        write = os.write

        def full(fd: int, data: bytes) -> int:
            if len(data) > 3:
                return write(fd, bytes(data[:3]))
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            await log.write("s", b"lost-at-once")
    await log.write("s", b"two")
    assert path.read_bytes() == b"one\ntwo\n"
    with pytest.raises(RuntimeError):
        await log.write("s", b"two\nlines")
    await log.close()


async def test_a_torn_line_is_ended_and_a_rotated_file_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"one\ntor")
    log = DecisionFile(path)
    with pytest.raises(StateError, match="another watch"):
        DecisionFile(path)
    await log.write("s", b"two")
    path.rename(tmp_path / "d.jsonl.1")
    await log.write("s", b"three")
    path.unlink()
    await log.write("s", b"four")
    assert (tmp_path / "d.jsonl.1").read_bytes() == b"one\ntor\ntwo\n"
    assert path.read_bytes() == b"four\n"
    await log.close()


def test_a_device_keeps_nothing() -> None:
    with pytest.raises(StateError, match="no regular file"):
        DecisionFile(Path("/dev/null"))
