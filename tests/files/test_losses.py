"""Records that may be gone unread: every way of losing them, asked of the guard, and again after a restart."""

import asyncio
import io
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.files import follow
from sidecar.files.follow import Follower
from sidecar.files.live import LiveFiles
from sidecar.files.watch import watch
from tests.files.support import append, record
from tests.guard.support import guarded

GRANT = {"action_id": "deploy", "precondition_id": "approval"}
QUESTION = {"session_id": "s", "action_id": "deploy"}


def granted(session: str = "s") -> list[str]:
    return [record(1, session=session), record(2, "authorization", session, **GRANT)]


class Asked:
    """A watch whose guard is asked over HTTP."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any], sessions: LiveFiles) -> None:
        self._ask, self.sessions = ask, sessions

    async def allowed(self, **question: Any) -> bool:
        answer = await self._ask({**QUESTION, **question})
        assert answer.status == 200
        return bool(answer.body["allowed"])

    async def becomes(self, allowed: bool, **question: Any) -> None:
        for _ in range(300):
            if await self.allowed(**question) is allowed:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"this never became {allowed}")

    async def stays_refused(self) -> None:
        for _ in range(15):
            assert not await self.allowed()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(*paths: Path, state: Path, **options: Any) -> AsyncIterator[Asked]:
    sessions, stop = LiveFiles(60.0), asyncio.Event()
    async with guarded(sessions, max_wait=0.0) as guard:  # type: ignore[arg-type]
        given = {"state_dir": state, "stop": stop, "poll_interval": 0.02, "stdout": io.StringIO(), **options}
        work = asyncio.create_task(watch([str(path) for path in paths], sessions=sessions, **given))
        try:
            yield Asked(lambda body: guard.ask("/v1/authorize", body), sessions)
        finally:
            stop.set()
            assert await work == 0


def truncate(log: Path) -> None:
    log.write_text("")


def rewrite_longer(log: Path) -> None:
    log.write_text("\n".join(record(n, session="other") for n in range(1, 50)) + "\n")


def rewrite_in_place(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"session_id": "s"', b'"session_id": "t"'))


WAYS: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "rewritten, and longer": rewrite_longer,
    "rewritten at the same size": rewrite_in_place,
}


@pytest.mark.parametrize("way", WAYS)
async def test_lost_while_it_is_watched(way: str, tmp_path: Path) -> None:
    log, state = tmp_path / "log.jsonl", tmp_path / "state"
    append(log, *granted())
    append(tmp_path / "quiet.jsonl", *granted("quiet"))
    async with watching(tmp_path, state=state) as watched:
        await watched.becomes(True)
        await watched.becomes(True, session_id="quiet")
        WAYS[way](log)
        await watched.becomes(False)
        await watched.becomes(False, session_id="quiet")  # the lost lines may have been of any session
    async with watching(tmp_path, state=state) as watched:
        await asyncio.sleep(0.3)
        await watched.stays_refused()


def delete(log: Path) -> None:
    log.unlink()


def rotate_away(log: Path) -> None:
    append(log, record(3, "revocation", action_id="deploy"))
    log.unlink()
    append(log, record(1, session="other"))


@pytest.mark.parametrize("way", [delete, rotate_away, truncate, rewrite_longer])
async def test_lost_while_the_watch_is_down(way: Callable[[Path], None], tmp_path: Path) -> None:
    log, state = tmp_path / "log.jsonl", tmp_path / "state"
    append(log, *granted())
    async with watching(log, state=state) as watched:
        await watched.becomes(True)
    way(log)
    for _ in range(2):
        async with watching(log, state=state) as watched:
            await asyncio.sleep(0.3)
            await watched.stays_refused()


async def test_deleted_while_it_was_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.files.watch._open_files", lambda: 0)
    log = tmp_path / "log.jsonl"
    append(log, *granted())
    async with watching(tmp_path, state=tmp_path / "state") as watched:
        await watched.becomes(True)
        append(log, record(3, "revocation", action_id="deploy"))
        log.unlink()
        await watched.becomes(False)
        await watched.stays_refused()


@pytest.mark.parametrize("how", ["moved away", "put back"])
async def test_a_state_that_is_gone_or_old_distrusts_what_is_read_again(how: str, tmp_path: Path) -> None:
    log, other, state = tmp_path / "log.jsonl", tmp_path / "revocations.jsonl", tmp_path / "state"
    append(log, *granted())
    async with watching(tmp_path, state=state) as watched:
        await watched.becomes(True)
    shutil.copy(state / "state.bin", tmp_path / "old")
    append(other, record(3, "revocation", action_id="deploy"))
    async with watching(tmp_path, state=state) as watched:
        await watched.becomes(False)
    other.unlink()
    if how == "moved away":
        (state / "state.bin").unlink()
    else:
        shutil.copy(tmp_path / "old", state / "state.bin")
    for _ in range(2):
        async with watching(tmp_path, state=state) as watched:
            await asyncio.sleep(0.3)
            await watched.stays_refused()


async def test_a_path_that_is_no_longer_watched(tmp_path: Path) -> None:
    log, other, state = tmp_path / "log.jsonl", tmp_path / "revocations.jsonl", tmp_path / "state"
    append(log, *granted())
    append(other, record(1, session="x"))
    async with watching(log, other, state=state) as watched:
        await watched.becomes(True)
    append(other, record(3, "revocation", action_id="deploy"))
    async with watching(log, state=state) as watched:
        await asyncio.sleep(0.3)
        await watched.stays_refused()


async def test_a_verified_checkpoint_ends_the_distrust(tmp_path: Path) -> None:
    log, other, state = tmp_path / "log.jsonl", tmp_path / "other.jsonl", tmp_path / "state"
    append(log, *granted())
    append(other, record(1, session="x"))
    async with watching(tmp_path, state=state) as watched:
        await watched.becomes(True)
        truncate(other)
        await watched.becomes(False)
        edges = [["deploy", "approval"]]
        span = {"node_id": "n", "level": 1, "frontier_lo": 1, "frontier_hi": 2}
        append(log, record(3, "summary", generation=1, root=True, **span))
        append(
            log,
            record(4, "checkpoint", checkpoint_id="c", summary_generation=1, turn=1, asserted_edges=edges, **span),
        )
        await watched.becomes(True)


async def test_rotation_and_deletion_after_reading_are_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "GRACE", 0.1)
    log, old = tmp_path / "log.jsonl", tmp_path / "old.jsonl"
    append(log, *granted())
    append(old, record(1, session="x"))
    async with watching(tmp_path, state=tmp_path / "state") as watched:
        await watched.becomes(True)
        log.rename(tmp_path / "log.jsonl.1")
        append(log, record(1, session="y"))
        old.unlink()
        await asyncio.sleep(0.6)
        assert await watched.allowed()
    async with watching(tmp_path, state=tmp_path / "state") as watched:
        await watched.becomes(True)


def test_a_copy_that_is_shorter_than_the_file_was_is_a_loss(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, *(record(n) for n in range(1, 4)))
    follower = Follower([str(log)])
    assert len(follower.poll(0.0)) == 3
    Path(f"{log}.1").write_bytes(log.read_bytes()[:-5])
    log.write_text("")
    follower.poll(1.0)
    assert len(follower.losses()) == 1
    follower.close()


def test_a_file_that_was_moved_to_another_disk_is_known_by_its_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, *granted())
    follower = Follower([str(log)])
    assert len(follower.poll(0.0)) == 2
    (position,) = follower.positions()
    follower.close()
    append(log, record(3))
    position.inode += 1_000_000
    follower = Follower([str(log)], [position])
    assert [line.number for line in follower.poll(1.0)] == [3]
    assert not follower.losses()
    follower.close()
