"""Where a session stands: a lost journal goes on behind the log, an older one is refused, a second writer too."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.client import (
    Emitter,
    Guard,
    JournalBehind,
    JournalInUse,
    JournalUnwritable,
    StandingUnknown,
    SyncEmitter,
    SyncGuard,
)
from sidecar.client.journal import Disk
from sidecar.protocol.api import FrontierView, Problem, Reason, SessionView
from tests.client.guards import FakeGuard
from tests.client.logs import lines, log_of


def standing(position: int | None, code: Any = "unknown_session") -> FakeGuard:
    """Return a guard that knows a session up to a position; None: it does not show it, and says why."""

    def answering(request: web.Request, asked: Any) -> Any:
        if position is None:
            return 404, Problem(reasons=[Reason(code=code, detail="because")])
        return SessionView(
            session_id=request.path.rpartition("/")[2],
            status="uncompacted",
            position=position,
            awaiting=False,
            waiting=0,
            unread=False,
            missing=[],
            checkpoint_in_force=None,
            checkpoints=[],
            open_halts=[],
            frontier=FrontierView(latest=0, edge_count=0, edges=[]),
        )

    return FakeGuard(answering)


async def test_a_new_session_begins_at_one(tmp_path: Path) -> None:
    async with standing(None).serving() as fake, Guard(fake.url) as guard:
        async with Emitter.file(tmp_path / "log.jsonl", "s", guard=guard) as log:
            assert await log.action("a") == 1
        assert fake.paths == ["/v1/sessions/s"]
        # The topics are not read for it: no broker is there.
        options: Any = {"start_timeout": 0, "flush_timeout": 0.1}
        emitter = Emitter.kafka("127.0.0.1:9", "t", journal=tmp_path, guard=guard, **options)
        await emitter.start()
        assert emitter.position == 0
        await emitter.aclose()


@pytest.mark.parametrize("what", ["lost", "older"])
async def test_a_file_knows_how_far_the_log_has_come(tmp_path: Path, what: str) -> None:
    path, journals, copy = tmp_path / "log.jsonl", tmp_path / "journals", tmp_path / "copy"
    for n in range(3):
        async with Emitter.file(path, "s", journal=journals) as log:
            await asyncio.gather(*(log.action(f"{n}{i}") for i in range(5)))
        if n == 0:
            shutil.copytree(journals, copy)
    shutil.rmtree(journals)
    if what == "older":
        shutil.copytree(copy, journals)
        for _ in range(2):
            with pytest.raises(JournalBehind) as caught:
                await Emitter.file(path, "s", journal=journals).start()
        assert (caught.value.position, caught.value.own) == (15, 5)
        assert "position 15" in str(caught.value)
        assert "stands at 5:" in str(caught.value)
        assert "move the journal away" in str(caught.value)
        shutil.rmtree(journals)
    async with Emitter.file(path, "s", journal=journals) as log:
        assert await log.action("on") == 16
    assert len(log_of(lines(path)["s"])) == 16


async def test_a_start_behind_the_log_is_refused_and_leaves_no_journal(tmp_path: Path) -> None:
    path, journals = tmp_path / "log.jsonl", tmp_path / "journals"
    async with Emitter.file(path, "s") as log:
        await log.action("a")
    with pytest.raises(JournalBehind):
        await Emitter.file(path, "s", journal=journals, start_at=1).start()
    async with Emitter.file(path, "s", journal=journals, start_at=2) as log:
        assert await log.action("b") == 2


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_guard_knows_how_far_the_log_has_come(tmp_path: Path, blocking: bool) -> None:
    path = tmp_path / "log.jsonl"
    async with Emitter.file(path, "s", journal=tmp_path / "old") as log:
        await log.action("a")
    path.rename(tmp_path / "rotated")
    async with standing(1500).serving() as fake:
        guard: Any = SyncGuard(fake.url) if blocking else Guard(fake.url)
        with pytest.raises(JournalBehind, match="position 1500, as the guard tells, and this emitter stands at 1"):
            await Emitter.file(path, "s", journal=tmp_path / "old", guard=guard).start()
        async with Emitter.file(path, "s", journal=tmp_path / "new", guard=guard) as log:
            assert await log.action("on") == 1501
        guard.close() if blocking else await guard.aclose()


@pytest.mark.parametrize("new", [True, False])
async def test_nobody_who_can_tell_is_no_new_session(tmp_path: Path, new: bool) -> None:
    path = tmp_path / "log.jsonl"
    if not new:
        async with Emitter.file(path, "s") as log:
            await log.action("a")
    async with Guard("http://127.0.0.1:9") as nobody:
        with pytest.raises(StandingUnknown, match="unavailable"):
            await Emitter.file(path, "s", guard=nobody).start()
    for code in ("restoring", "lagging", "unauthorized", "log_incomplete"):
        async with standing(None, code).serving() as fake, Guard(fake.url) as guard:
            with pytest.raises(StandingUnknown, match="because"):
                await Emitter.file(path, "s", guard=guard).start()
    async with FakeGuard(lambda request, asked: (200, {"session_id": "x"})).serving() as fake, Guard(fake.url) as guard:
        with pytest.raises(StandingUnknown):
            await Emitter.file(path, "s", guard=guard).start()


# --- one writer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["hard", "symbolic"])
async def test_a_file_with_two_names_has_one_writer(tmp_path: Path, link: str) -> None:
    path, other = tmp_path / "log.jsonl", tmp_path / "elsewhere" / "log.jsonl"
    other.parent.mkdir()
    path.touch()
    os.link(path, other) if link == "hard" else other.symlink_to(path)
    async with Emitter.file(path, "s") as log:
        with pytest.raises(JournalInUse, match="another emitter writes the session 's' to this file"):
            await Emitter.file(other, "s").start()
        async with Emitter.file(other, "another session") as beside:
            assert await beside.action("a") == 1
        assert await log.action("a") == 1
    async with Emitter.file(other, "s") as log:
        assert await log.action("b") == 2
    with pytest.raises(JournalBehind):
        await Emitter.file(path, "s").start()


def test_a_writer_in_another_process_counts_too(tmp_path: Path) -> None:
    path, other = tmp_path / "log.jsonl", tmp_path / "link.jsonl"
    path.touch()
    os.link(path, other)
    code = f"from sidecar.client import SyncEmitter\nSyncEmitter.file({str(other)!r}, 's').start()"
    with SyncEmitter.file(path, "s") as log:
        log.action("a")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "JournalInUse" in done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_does_not_hold_what_its_parent_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ready, go = os.pipe()
    log = SyncEmitter.file(path, "s")
    log.start()
    child = os.fork()
    if not child:
        os.close(go)
        os.read(ready, 1)  # until the parent has gone on
        os._exit(0)
    os.close(ready)
    try:
        log.close()
        with SyncEmitter.file(path, "s") as again:
            assert again.action("a") == 1
            with pytest.raises(JournalInUse):
                SyncEmitter.file(path, "s", journal=tmp_path / "other").start()
    finally:
        os.close(go)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_ends_does_not_take_its_parents_lock_away(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with SyncEmitter.file(path, "s"):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(JournalInUse, match="writes the session"):
            SyncEmitter.file(path, "s", journal=tmp_path / "other").start()


# --- room for what is logged later ------------------------------------------------------------------------------------


async def test_room_that_is_kept_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20

    def keep(self: Disk, fd: int, offset: int, length: int) -> None:
        if offset + length > limit:
            raise OSError(28, "No space left on device")
        os.posix_fallocate(fd, offset, length)

    written = Disk.write

    def write(self: Disk, fd: int, data: bytes, offset: int) -> int:
        if offset + len(data) > limit:
            raise OSError(28, "No space left on device")
        return written(self, fd, data, offset)

    monkeypatch.setattr(Disk, "keep", keep)
    monkeypatch.setattr(Disk, "write", write)
    options: Any = {"start_timeout": 0, "flush_timeout": 0.1, "start_at": 1}
    log = Emitter.kafka("127.0.0.1:9", "s", journal=tmp_path, **options)
    await log.start()
    room = await log.reserve("deploy")
    with pytest.raises(JournalUnwritable, match="No space left"):
        for _ in range(100):
            await log.event("fills", text="x" * 20_000)
    filled = log.position
    with pytest.raises(JournalUnwritable):
        for _ in range(1000):
            await log.event("fills", text="x" * 10)
    with pytest.raises(JournalUnwritable):
        await log.reserve("another")
    assert await log.intend("deploy", room) > filled
    assert await log.acted("deploy", room) > filled
    with pytest.raises(Exception, match="were not acknowledged"):
        await log.aclose()
    async with Emitter.file(tmp_path / "log.jsonl", "s", journal=tmp_path) as log:
        await log.flush()
    records = log_of(lines(tmp_path / "log.jsonl")["s"])
    assert [type(record).__name__ for record in records.values()][-2:] == ["Opaque", "Action"]


def test_a_file_system_that_sets_nothing_aside_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    with path.open("r+b") as file:
        Disk().keep(file.fileno(), 2, 10_000)
        Disk().keep(file.fileno(), 2, 10)
    assert path.read_bytes() == b"kept" + bytes(9_998)


async def test_what_is_not_used_is_given_back(tmp_path: Path) -> None:
    options: Any = {"start_timeout": 0, "flush_timeout": 0.1, "start_at": 1, "emit_timeout": 0.2}
    log = Emitter.kafka("127.0.0.1:9", "s", journal=tmp_path, max_unacknowledged_bytes=100, **options)
    await log.start()
    for _ in range(50):
        log.give_back(2 * await log.reserve("deploy"))
    kept = await log.reserve("deploy")
    waiting = asyncio.create_task(log.reserve("x" * 300))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    log.give_back(2 * kept)
    assert log._kept == 0
    await log.event("there is room")
    assert log._journal is not None
    assert log._journal._kept == 0
    with pytest.raises(Exception, match="were not acknowledged"):
        await log.aclose()
