"""The emitter without `await`: threads, the end of the interpreter, forks."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.client import Closed, Emitter, JournalInUse, SyncEmitter, Unacknowledged
from sidecar.embedded import EmbeddedBroker, free_port
from tests.client.logs import CALLS, lines, log_of, published, topics


async def test_it_says_what_the_other_one_says(embedded: EmbeddedBroker, unique: str, tmp_path: Path) -> None:
    names = await topics(embedded.bootstrap, unique)

    def run() -> None:
        with SyncEmitter.kafka(embedded.bootstrap, "s", journal=tmp_path, agent="a", **names) as log:
            assert [call(log) for call in CALLS.values()] == list(range(1, len(CALLS) + 1))
            assert (log.session_id, log.position, log.trouble) == ("s", len(CALLS), None)
            log.flush()
            assert log.unacknowledged == 0

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    records = log_of((await published(embedded.bootstrap, names))["s"])
    assert len(records) == len(CALLS) and {record.agent for record in records.values()} == {"a"}


def test_many_threads_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with SyncEmitter.file(path, "s") as log:
        seqs: list[int] = []

        def write(number: int) -> None:
            for n in range(50):
                seqs.append(log.action(f"{number}.{n}"))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(TypeError):
            log.action(7)  # type: ignore[arg-type]
    assert sorted(seqs) == list(range(1, 401))
    assert len(log_of(lines(path)["s"])) == 400


def test_it_has_to_be_running(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = SyncEmitter.file(path, "s")
    with pytest.raises(Closed, match="not been started"):
        log.action("a")
    with log:
        assert log.action("a") == 1
        second = SyncEmitter.file(path, "s")
        with pytest.raises(JournalInUse):
            second.start()
        with pytest.raises(Closed):
            second.start()
    with pytest.raises(Closed):
        log.action("b")
    with pytest.raises(Closed):
        log.start()
    log.close()


def test_what_could_not_be_published_is_said_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with (
        pytest.raises(Unacknowledged, match="1 records"),
        SyncEmitter.kafka(nowhere, "s", journal=tmp_path, start_timeout=0, start_at=1, flush_timeout=0.1) as log,
    ):
        log.action("a")
    with (
        pytest.raises(ZeroDivisionError),
        SyncEmitter.kafka(nowhere, "s", journal=tmp_path, start_timeout=0, start_at=1, flush_timeout=0.1) as log,
    ):
        assert log.unacknowledged == 1
        raise ZeroDivisionError
    assert "were not acknowledged" in caplog.text


FORGETFUL = """
import sys
from sidecar.client import SyncEmitter

log = SyncEmitter.{how}
log.start()
for n in range(5):
    log.action(str(n))
print(log.position)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ZeroDivisionError"])
def test_one_that_is_not_closed_is_closed_at_exit(tmp_path: Path, end: str) -> None:
    path = tmp_path / "log.jsonl"
    code = FORGETFUL.format(how=f"file({str(path)!r}, 's')", end=end)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "5\n"
    assert done.returncode == (3 if "exit" in end else bool(end)), done.stderr
    assert "ZeroDivision" in done.stderr if "raise" in end else done.stderr == ""
    assert len(log_of(lines(path)["s"])) == 5


def test_at_exit_a_broker_that_is_away_is_said_and_not_waited_for_long(tmp_path: Path) -> None:
    options = f"journal={str(tmp_path)!r}, start_timeout=0, start_at=1, flush_timeout=0.5"
    how = f"kafka('127.0.0.1:{free_port()}', 's', {options})"
    code = "import sidecar.client.sync as s; s._AT_EXIT = 0.5\n" + FORGETFUL.format(how=how, end="")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert "5 records of the session s (1 to 5) were not acknowledged" in done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
async def test_a_fork_is_told_to_make_its_own(tmp_path: Path) -> None:
    def in_a_child(call: object) -> bytes:
        says, hears = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                call()  # type: ignore[operator]
                os.write(hears, b"written")
            except Closed as error:
                os.write(hears, str(error).encode())
            finally:
                os._exit(0)
        os.close(hears)
        os.waitpid(child, 0)
        said = os.read(says, 1000)
        os.close(says)
        return said

    with SyncEmitter.file(tmp_path / "log.jsonl", "s") as log:
        log.action("a")
        assert b"forked" in in_a_child(lambda: log.action("b"))
        assert log.action("c") == 2
    async with Emitter.file(tmp_path / "log.jsonl", "t") as other:
        await other.action("a")
        assert b"forked" in in_a_child(lambda: other.action("b").send(None))
    assert len(log_of(lines(tmp_path / "log.jsonl")["s"])) == 2
