"""The emitter that writes to a file: whole lines, whatever happens to it and to its neighbours."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.client import Backlog, Closed, Emitter, EmitterError, JournalInUse, JournalUnwritable, Unacknowledged
from sidecar.client.sinks import file as sink
from sidecar.files.follow import Follower
from tests.client.logs import lines, log_of


async def test_the_log_goes_on_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    async with Emitter.file(path, "s") as log:
        assert (log.session_id, log.position) == ("s", 0)
        assert await log.action("one") == 1
        await log.flush()
        assert log.unacknowledged == 0
        assert len(lines(path)["s"]) == 1, "flush is when it is there"
    async with Emitter.file(path, "s") as log:
        assert log.position == 1
        assert await log.action("two") == 2
    assert [json.loads(line)["action_id"] for line in lines(path)["s"]] == ["one", "two"]
    assert [name.name for name in path.parent.iterdir() if not name.name.startswith(".")] == ["log.jsonl"]


async def test_a_session_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with Emitter.file(path, "s") as log, Emitter.file(path, "t") as other:
        with pytest.raises(JournalInUse):
            await Emitter.file(path, "s").start()
        await log.action("one")
        await other.action("one")
    async with Emitter.file(path, "s") as log:
        assert await log.action("two") == 2


async def test_it_has_to_be_running(tmp_path: Path) -> None:
    log = Emitter.file(tmp_path / "log.jsonl", "s")
    with pytest.raises(Closed, match="not been started"):
        await log.action("a")
    await log.start()
    with pytest.raises(EmitterError, match="once"):
        await log.start()
    await log.action("a")
    await log.aclose()
    await log.aclose()
    with pytest.raises(Closed, match="closed"):
        await log.action("b")
    with pytest.raises(Closed):
        await log.flush()
    assert len(log_of(lines(tmp_path / "log.jsonl")["s"])) == 1


async def test_a_call_that_is_cancelled_leaves_no_gap(tmp_path: Path) -> None:
    async with Emitter.file(tmp_path / "log.jsonl", "s") as log:
        for n in range(100):
            calls = [asyncio.create_task(log.action(f"{n}.{i}")) for i in range(5)]
            for _ in range(n % 7):
                await asyncio.sleep(0)
            calls[n % 5].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        position = log.position
    assert 400 <= position <= 500
    assert len(log_of(lines(tmp_path / "log.jsonl")["s"])) == position


# --- torn lines ---------------------------------------------------------------------------------------------------


WHOLE = b'{"kind":"x","session_id":"t","seq":1}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (WHOLE + b"\n", WHOLE + b"\n"),
        (WHOLE + b"\n" + b"{", WHOLE + b"\n"),
        (WHOLE + b"\n" + WHOLE[:-1], WHOLE + b"\n"),
        (WHOLE[:9], b""),
        (WHOLE, WHOLE + b"\n"),
        (WHOLE + b"\n" + WHOLE, WHOLE + b"\n" + WHOLE + b"\n"),
        (WHOLE + b"\n" + b'{"kind":"x","text":"' + b"y" * 3_000_000, WHOLE + b"\n"),
    ],
)
async def test_a_torn_line_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(before)
    log = Emitter.file(path, "s")
    await log.start()
    assert path.read_bytes() == after
    # Somebody else's crash may tear one while this emitter runs.
    with path.open("ab") as other:
        other.write(WHOLE[:20])
    await log.action("a")
    await log.aclose()
    content = path.read_bytes()
    assert content.startswith(after + b'{"kind":"action"')
    assert content.count(b"\n") == after.count(b"\n") + 1


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip", b"one\ntwo", WHOLE + b"\n{'kind': 1"])
async def test_what_no_emitter_has_begun_is_not_cut_off(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    with pytest.raises(EmitterError, match=r"log\.jsonl ends with"):
        await Emitter.file(path, "s").start()
    assert path.read_bytes() == content


# --- the file's neighbours ----------------------------------------------------------------------------------------


WRITER = """
import asyncio, sys
from sidecar.client import Emitter

async def main(path, session):
    async with Emitter.file(path, session) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(20):
            await asyncio.gather(*(log.event("note", text=session * 50 + str(n)) for _ in range(10)))

asyncio.run(main(*sys.argv[1:]))
"""


def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sessions = [f"s{i}" for i in range(3)]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in sessions
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.communicate(b"go\n", timeout=30)
        assert writer.returncode == 0
    found = lines(path)
    assert sorted(found) == sessions
    for values in found.values():
        assert len(log_of(values)) == len(values) == 200
        assert [json.loads(value)["seq"] for value in values] == list(range(1, 201)), "in order"


async def test_after_a_rotation_it_writes_to_the_new_file_and_a_watch_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    follower = Follower([str(path)])
    read: list[bytes] = []
    async with Emitter.file(path, "s") as log:
        for rotation in range(3):
            await log.action(f"{rotation}.first")
            await log.flush()
            read += [line.raw for line in follower.poll(rotation)]
            await asyncio.gather(*(log.action(f"{rotation}.{i}") for i in range(19)))
            await log.flush()
            path.rename(tmp_path / f"log.jsonl.{rotation}")
        await log.action("last")
        await log.flush()
    for minutes in range(1, 12):
        read += [line.raw for line in follower.poll(60 * minutes)]
    assert len(lines(path)["s"]) == 1
    assert len(log_of(read)) == 61


# --- full disks ---------------------------------------------------------------------------------------------------


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_without_room_for_the_journal_nothing_is_logged(tmp_path: Path) -> None:
    path, journal = tmp_path / "log.jsonl", tmp_path / "s.journal"
    async with Emitter.file(path, "s", journal=journal) as log:
        assert await log.action("one") == 1
        await log.flush()
        with at_most(journal.stat().st_size + 100):
            for _ in range(3):
                with pytest.raises(JournalUnwritable, match=r"s\.journal.*nothing was logged"):
                    await log.event("note", text="x" * 500)
            calls = [log.event("note", text="x" * 500) for _ in range(50)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {JournalUnwritable}
            assert (log.position, log.unacknowledged) == (1, 0)
        assert await log.action("two") == 2, "it goes on when there is room again"
    assert [json.loads(value)["action_id"] for value in lines(path)["s"]] == ["one", "two"]
    async with Emitter.file(path, "s", journal=journal) as log:
        assert log.position == 2


async def test_without_room_for_the_file_everything_waits_in_the_journal(tmp_path: Path) -> None:
    path, journal = tmp_path / "log.jsonl", tmp_path / "s.journal"
    path.write_bytes((WHOLE + b"\n") * 400)
    size = path.stat().st_size
    log = Emitter.file(path, "s", journal=journal, flush_timeout=0.3)
    await log.start()
    with at_most(size + 100):
        assert [await log.event("note", text="x" * 200) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(Unacknowledged, match=r"3 records .*\(1 to 3\).*File too large.*s\.journal") as raised:
            await log.flush()
        assert (raised.value.count, raised.value.first, raised.value.last) == (3, 1, 3)
        assert log.trouble is not None
        assert path.stat().st_size == size, "no half of a line"
        with pytest.raises(Unacknowledged, match="safe in the journal"):
            await log.aclose()
    async with Emitter.file(path, "s", journal=journal) as log:
        assert await log.action("next") == 4
    assert [record.seq for record in log_of(lines(path)["s"]).values()] == [1, 2, 3, 4]


async def test_when_too_much_waits_calls_wait_and_then_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = asyncio.Event()
    deliver = sink.FileSink.deliver

    async def later(self: sink.FileSink, entries: object) -> None:
        await held.wait()
        await deliver(self, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(sink.FileSink, "deliver", later)
    path = tmp_path / "log.jsonl"
    async with Emitter.file(path, "s", max_unacknowledged=5, emit_timeout=0.2) as log:
        outcomes = await asyncio.gather(*(log.action(f"a{i}") for i in range(9)), return_exceptions=True)
        assert outcomes[:5] == [1, 2, 3, 4, 5]
        assert [type(outcome) for outcome in outcomes[5:]] == [Backlog] * 4
        assert "Nothing was logged" in str(outcomes[5]) and "5 unacknowledged" in str(outcomes[5])
        assert (log.position, log.unacknowledged) == (5, 5)
        waiting = [asyncio.create_task(log.action(f"b{i}")) for i in range(7)]
        await asyncio.sleep(0.05)
        held.set()
        assert await asyncio.gather(*waiting) == list(range(6, 13))
    async with Emitter.file(path, "t", max_unacknowledged_bytes=300) as log:
        assert await asyncio.gather(*(log.event("note", x="x" * 200) for _ in range(6))) == list(range(1, 7))
    found = lines(path)
    assert (len(log_of(found["s"])), len(log_of(found["t"]))) == (12, 6)


async def test_an_fsync_that_failed_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = Emitter.file(path, "s")
    await log.start()
    await log.action("one")
    await log.flush()

    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(JournalUnwritable, match=r"Input/output error.*start a new emitter"):
        await log.action("two")
    monkeypatch.undo()
    with pytest.raises(JournalUnwritable, match="start a new emitter"):
        await log.action("three")
    assert log.position == 1
    await log.aclose()
    async with Emitter.file(path, "s") as log:
        # Whether "two" was durable only the file knows; it was, so it is published.
        assert log.position == 2
    records = log_of(lines(path)["s"])
    assert [getattr(record, "action_id", None) for record in records.values()] == ["one", "two"]


# --- a lost journal -----------------------------------------------------------------------------------------------


async def test_a_lost_journal(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with Emitter.file(path, "s") as log, Emitter.file(path, 'other "s"') as other:
        await asyncio.gather(*(log.action(f"a{i}") for i in range(30)), *(other.action("x") for _ in range(40)))
    async with Emitter.file(path, "s", journal=tmp_path / "new") as log:
        assert log.position == 30
        assert await log.action("next") == 31
    async with Emitter.file(path, 'other "s"', journal=tmp_path / "new") as log:
        assert await log.action("next") == 41
    async with Emitter.file(path, "unheard of", journal=tmp_path / "new") as log:
        assert await log.action("first") == 1
    async with Emitter.file(path, "s", journal=tmp_path / "new") as log:
        assert await log.action("again") == 32
    assert len(log_of(lines(path)["s"])) == 32
    async with Emitter.file(path, "late", start_at=100) as log:
        assert (log.position, await log.action("x")) == (99, 100)
    async with Emitter.file(path, "s", journal=tmp_path / "third") as log:
        assert await log.action("other") == 33
    assert len(log_of(lines(path)["s"])) == 33
