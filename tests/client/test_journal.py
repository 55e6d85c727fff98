"""The journal's file: who may have it, and what is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.client import journal as module
from sidecar.client.errors import JournalDamaged, JournalInUse, JournalUnwritable
from sidecar.client.journal import HEAD, Journal, journal_path

BODY = ("events", b'{"kind":"x"}')


def test_positions_go_on_where_they_were(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.journal"
    journal, left = Journal.open(path, "s")
    assert (journal.position, left) == (0, [])
    assert [entry.seq for entry in journal.append([BODY, BODY])] == [1, 2]
    journal.acknowledge(1)
    assert [entry.seq for entry in journal.append([BODY])] == [3]
    journal.close()
    journal.close()

    journal, left = Journal.open(path, "s")
    assert journal.position == 3
    assert [(entry.seq, entry.role, entry.raw) for entry in left] == [
        (2, "events", b'{"kind":"x","seq":2}'),
        (3, "events", b'{"kind":"x","seq":3}'),
    ]
    journal.close()


def test_the_file_stays_small_when_everything_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECLAIM", 10_000)
    path = tmp_path / "s.journal"
    journal, _ = Journal.open(path, "s")
    for seq in range(1, 400):
        journal.append([("events", b'{"x":"%b"}' % (b"x" * 500))])
        journal.acknowledge(seq - 1)
        assert path.stat().st_size < HEAD + 12_000
    journal.close()
    journal, left = Journal.open(path, "s")
    assert [entry.seq for entry in left] == [399]
    journal.close()


def test_a_second_emitter_of_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    journal, _ = Journal.open(path, "s")
    with pytest.raises(JournalInUse, match=r"s\.journal.*one writer"):
        Journal.open(path, "s")
    journal.close()
    Journal.open(path, "s")[0].close()


def test_another_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    code = (
        "import sys; from pathlib import Path; from sidecar.client.journal import Journal;"
        "j, _ = Journal.open(Path(sys.argv[1]), 's'); j.append([('events', b'{\"kind\":\"x\"}')]);"
        "print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(JournalInUse):
            Journal.open(path, "s")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
    journal, left = Journal.open(path, "s")
    assert [entry.seq for entry in left] == [1]
    journal.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    journal, _ = Journal.open(path, "s")
    says, hears = os.pipe()
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            journal.append([BODY])
            os.write(hears, b"written")
        except JournalUnwritable as error:
            os.write(hears, b"forked" if "forked" in str(error) else b"?")
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    try:
        assert os.read(says, 10) == b"forked"
        journal.close()
        Journal.open(path, "s")[0].close()
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for fd in (says, hears, ends):
            os.close(fd)


def test_another_sessions_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    Journal.open(path, "one")[0].close()
    with pytest.raises(JournalDamaged, match=r"s\.journal.*session 'one'"):
        Journal.open(path, "two")


@pytest.mark.parametrize(
    "content",
    [b"", b"notes\n", b"sidecar-journal", os.urandom(8192), b"sidecar-journal\x02" + bytes(8192)],
    ids=["empty", "text", "half a header", "noise", "another version"],
)
def test_what_is_no_journal_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=r"notes\.txt"):
        Journal.open(path, "s")
    assert path.read_bytes() == content


def test_a_log_may_begin_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    journal, _ = Journal.open(path, "s", start_at=41)
    assert (journal.position, [entry.seq for entry in journal.append([BODY, BODY])]) == (40, [41, 42])
    journal.close()
    journal, left = Journal.open(path, "s", start_at=41)
    assert (journal.position, len(left)) == (42, 2)
    journal.close()
    with pytest.raises(ValueError, match="began at 41"):
        Journal.open(path, "s", start_at=43)
    Journal.open(path, "s")[0].close()


def test_a_journal_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnwritable, match=r"file/s\.journal.*File exists \(.*/file\)"):
        Journal.open(tmp_path / "file" / "s.journal", "s")
    (tmp_path / "folder.journal").mkdir()
    with pytest.raises(JournalUnwritable, match=r"folder\.journal.*Is a directory"):
        Journal.open(tmp_path / "folder.journal", "s")


def test_where_a_sessions_journal_is(tmp_path: Path) -> None:
    assert journal_path(tmp_path / "one.journal", "s") == tmp_path / "one.journal"
    (tmp_path / "other").write_text("")
    assert journal_path(tmp_path / "other", "s") == tmp_path / "other"
    names = ["s", "S", "../../etc/passwd", "a/b", "a_b", "ä", "", "x" * 5000, "x" * 5001, "\n", "."]
    paths = [journal_path(tmp_path / "journals", name) for name in names]
    assert {path.parent for path in paths} == {tmp_path / "journals"}
    assert len({path.name.lower() for path in paths}) == len(names)
    assert all(len(path.name) < 120 for path in paths)
