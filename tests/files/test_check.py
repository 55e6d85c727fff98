"""`check`: the cases through the command, exit codes, the ways of writing, and what goes wrong with the input."""

import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import cli
from sidecar.config import Settings
from sidecar.engine.limits import Limits
from sidecar.files.check import check
from tests.files.support import DATA, ROOT, Checked, append, bad_action, record, run_check

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.name.removesuffix(".jsonl") for path in CASES.glob("*.jsonl"))


def _expected(name: str, what: str) -> list:  # type: ignore[type-arg]
    return json.loads((CASES / f"{name}.{what}.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_agree(name: str) -> None:
    checked = run_check(CASES / f"{name}.jsonl")
    expected = [tuple(pair) for pair in _expected(name, "expected")]
    assert set(checked.pairs) == set(expected)
    bad = any(line["severity"] != "warning" for line in checked.lines)
    assert checked.code == (1 if bad else 0)
    assert all(line["source"]["topic"].endswith(f"{name}.jsonl") for line in checked.lines if line["source"])
    assert all(line["detected_at"] for line in checked.lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_sessions_of_the_cases_agree(name: str) -> None:
    lines = run_check(CASES / f"{name}.jsonl", output="sessions").lines
    found = [{**line, "open_halts": len(line["open_halts"])} for line in lines]
    key = lambda line: line["session_id"]  # noqa: E731
    assert sorted(found, key=key) == sorted(_expected(name, "sessions"), key=key)


def test_halts_are_written_on_request() -> None:
    halts = run_check(CASES / "handle-reissued-after-crash.jsonl", output="halts").lines
    assert halts
    assert {halt["status"] for halt in halts} <= {"halt", "clear"}
    assert all("halt_id" in halt and "open_halts" in halt for halt in halts)


def test_files_are_one_stream_and_the_end_is_the_only_waiting_bound(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    append(one, bad_action(3), *(record(n) for n in range(4, 10)))
    append(two, record(1), record(2))
    limits = Limits(max_waiting=1)
    assert run_check(one, two, limits=limits).pairs == [("action_unauthorized", "a3")]
    assert run_check(one, limits=limits).pairs == [("session_joined", "s")]
    judged = Limits(max_waiting=1, midstream="judge")
    assert run_check(one, limits=judged).pairs == [("log_gap", "s"), ("action_unauthorized", "a3")]


def test_standard_input_and_packed_files(tmp_path: Path) -> None:
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress((record(1) + "\n").encode()))
    checked = run_check(packed, "-", stdin=bad_action(2).encode())
    assert checked.pairs == [("action_unauthorized", "a2")]
    assert checked.lines[0]["source"] == {"topic": "-", "partition": 0, "offset": 1}
    packed.write_bytes(packed.read_bytes()[:-6])
    assert run_check(packed).code == 2
    assert run_check("-", "-", stdin=b"").code == 2


def test_text_says_what_why_and_what_to_do(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", bad_action(1))
    text = run_check(tmp_path / "log.jsonl", format="text").out
    assert text.startswith("CRITICAL action_unauthorized: action a1, session s, position 1 (")
    for part in ("what:", "why:", "do:", "witness: position 1"):
        assert part in text


def test_the_summary_counts_by_kind_rule_and_session(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", record(1), bad_action(2), bad_action(3), bad_action(1, "t"), "{")
    err = run_check(tmp_path / "log.jsonl").err
    assert "4 records read, 1 line unreadable" in err
    for row in (r"3  action", r"3  critical  action_unauthorized", r"2      0        0  s", r"1      0        0  t"):
        assert row in err
    assert "3 findings (3 critical) in 2 sessions" in err


def test_exit_codes(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, record(1))
    assert run_check(log).code == 0
    append(log, record(3, "authorization", action_id="x", precondition_id="p"))
    append(log, record(2))
    assert run_check(log).code == 0
    append(log, bad_action(4))
    assert run_check(log).code == 1
    append(log, "nonsense")
    assert run_check(log).code == 1
    assert run_check(log, strict=True).code == 2
    missing = run_check(log, tmp_path / "missing.jsonl")
    assert (missing.code, missing.out) == (2, "")  # said before anything is read
    assert "missing.jsonl: No such file" in missing.err
    folder = run_check(tmp_path)
    assert folder.code == 2
    assert "is a folder" in folder.err


def test_warnings_alone_are_clean(tmp_path: Path) -> None:
    summary = record(1, "summary", node_id="n", generation=1, level=1, frontier_lo=1, frontier_hi=1)
    log = tmp_path / "log.jsonl"
    append(
        log,
        record(1),
        summary.replace('"seq": 1', '"seq": 2'),
        record(3, "checkpoint", checkpoint_id="c", node_id="n", summary_generation=1, level=1, turn=1, frontier_lo=1,
               frontier_hi=1),
    )  # fmt: skip
    checked = run_check(log)
    assert [line["severity"] for line in checked.lines] == ["warning"]
    assert checked.code == 0


def test_without_a_record_it_says_what_one_looks_like(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n\n")
    checked = run_check(log)
    assert checked.code == 2
    assert '"kind": "authorization"' in checked.err
    assert "claude-code" not in checked.err
    assert "try --format claude-code" in run_check(DATA / "two-compactions.jsonl").err


def test_unreadable_lines_are_named_up_to_twenty(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, record(1), *["{"] * 30)
    few, all_ = run_check(log).err, run_check(log, verbose=True).err
    assert few.count(": unreadable: ") == 20
    assert f"{log}:2: unreadable: torn line" in few
    assert "and 10 more unreadable lines" in few
    assert all_.count(": unreadable: ") == 30


def test_an_unreadable_record_takes_its_position(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, record(1), record(2, "action"), record(3))
    checked = run_check(log)
    assert [(line["rule"], line["position"]) for line in checked.lines] == [("log_gap", 2)]
    assert checked.lines[0]["source"]["offset"] == 2


def _started(*arguments: str) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)


SCRIPT = "import sys; from sidecar.files.check import check; sys.exit(check(sys.argv[1:]))"


def test_a_broken_pipe_is_no_drama(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, *(bad_action(n) for n in range(1, 5000)))
    command = f'"{sys.executable}" -c "{SCRIPT}" "{log}" | head -1 >/dev/null; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_interrupted_it_says_so() -> None:
    with _started("-") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"{\n")
        process.stdin.flush()
        assert b"unreadable" in process.stderr.readline()  # it is reading
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b"interrupted\n"


def test_findings_come_while_the_input_is_still_open(tmp_path: Path) -> None:
    with _started("-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(bad_action(n) + "\n" for n in range(1, 1500)).encode())
        process.stdin.flush()
        assert b"a1" in process.stdout.readline()
        process.kill()


def test_a_progress_bar_is_drawn_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    append(log, *(record(n, text="x" * 2000) for n in range(1, 6000)))
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(log)], cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs):
        os.close(theirs)
        seen = b""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            seen += data
    os.close(ours)
    assert b"MB" in seen
    assert b"5,999 records read" in seen
    assert "MB" not in run_check(log).err


def test_output_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, record(1, "action", session="sitzung-ä", action_id="lösche", irreversible=True))
    out, err = io.TextIOWrapper(io.BytesIO(), "ascii"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    assert check([str(log)], stdout=out, stderr=err) == 1
    assert Checked(1, out.buffer.getvalue().decode(), "").pairs == [("action_unauthorized", "lösche")]  # type: ignore[attr-defined]


def test_ids_cannot_forge_what_a_person_reads() -> None:
    from sidecar.engine.fold import Engine
    from sidecar.files.report import finding_text
    from sidecar.protocol.decode import decode

    name = "a\nCRITICAL edge_hallucinated: \x1b[2J\u202e" + "x" * 1000
    record = {"kind": "action", "session_id": name, "seq": 1, "action_id": name, "irreversible": True}
    (finding,) = Engine().fold([(*decode(json.dumps(record).encode()), None)], 0.0).findings
    text = finding_text(finding)
    assert len(text.splitlines()) == 5
    assert "\x1b" not in text and "\u202e" not in text
    assert "\\u000aCRITICAL" in text and "\\u001b[2J\\u202e" in text
    assert len(text) < 1500


@pytest.mark.parametrize(
    ("midstream", "rules"), [("skip", ["session_joined"]), ("judge", ["action_unauthorized", "log_gap"])]
)
def test_a_slice_of_a_log_claims_nothing_unless_it_is_told_to(midstream: str, rules: list[str], tmp_path: Path) -> None:
    append(tmp_path / "slice.jsonl", record(7), bad_action(8))
    limits = Settings.load(session__midstream=midstream).limits()
    checked = run_check(tmp_path / "slice.jsonl", limits=limits)
    assert sorted(rule for rule, _ in checked.pairs) == rules


def test_the_command_line_says_how_a_slice_is_judged(tmp_path: Path) -> None:
    append(tmp_path / "slice.jsonl", record(7), bad_action(8))
    result = CliRunner().invoke(cli, ["check", "--midstream", "judge", str(tmp_path / "slice.jsonl")])
    assert result.exit_code == 1, result.output
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "slice.jsonl")])
    assert result.exit_code == 0, result.output


def test_a_record_of_another_tenant_is_named_as_unreadable(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", record(1, tenant="a"), record(2, tenant="b"))
    checked = run_check(tmp_path / "log.jsonl", strict=True)
    assert checked.code == 2
    assert "log.jsonl:2: unreadable: the session belongs to tenant 'a'" in checked.err
