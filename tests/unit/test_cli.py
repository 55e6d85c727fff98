"""The command line: it teaches, it says what is wrong, and its exit status can be relied on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar import __version__
from sidecar.cli import cli
from sidecar.engine.rules import CATALOGUE

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.jsonl"))


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


@pytest.mark.parametrize("command", [*cli.commands])
def test_every_command_says_what_it_takes(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert len(result.output.splitlines()) > 5


def test_the_version() -> None:
    assert __version__ in run("--version").output


def test_an_unknown_command_is_answered_with_a_known_one() -> None:
    result = run("chekc")
    assert result.exit_code == 2
    assert "Did you mean 'check'?" in result.output


def test_rules_are_listed_and_explained() -> None:
    assert all(name in run("rules").output for name in CATALOGUE)
    assert CATALOGUE["edge_dropped"].remedy in run("rules", "edge_dropped").output
    assert {rule["name"] for rule in json.loads(run("rules", "--json").output)} == set(CATALOGUE)
    assert json.loads(run("rules", "edge_dropped", "--json").output)["severity"] == "error"
    wrong = run("rules", "edge_droped")
    assert wrong.exit_code == 2
    assert "Did you mean 'edge_dropped'?" in wrong.output


def test_schemas_are_printed() -> None:
    assert "$defs" in json.loads(run("schema").output)
    assert json.loads(run("schema", "asyncapi").output)["asyncapi"].startswith("3.")


def test_topics_are_printed() -> None:
    assert "agent.compactions" in run("topics").output
    assert {t["name"] for t in json.loads(run("topics", "--format", "json").output)} >= {"agent.events", "agent.halts"}
    assert "kafka-topics.sh" in run("topics", "--format", "commands", "--partitions", "9").output


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    path = str(CASES / f"{name}.jsonl")

    def expected(what: str) -> list[dict[str, object]]:
        return json.loads((CASES / f"{name}.{what}.json").read_text())  # type: ignore[no-any-return]

    found = [json.loads(line) for line in run("check", path).stdout.splitlines()]
    assert {(f["rule"], f["subject"]["id"]) for f in found} == {tuple(pair) for pair in expected("expected")}
    halts = [json.loads(line) for line in run("check", path, "--output", "halts").stdout.splitlines()]
    wanted = expected("halts")
    assert [{key: halt[key] for key in want} for halt, want in zip(halts, wanted, strict=True)] == wanted
    sessions = [json.loads(line) for line in run("check", path, "--output", "sessions").stdout.splitlines()]
    assert [{**s, "open_halts": len(s["open_halts"])} for s in sessions] == expected("sessions")


@pytest.mark.parametrize(
    ("arguments", "stdin", "status"),
    [
        ([str(CASES / "clean-session.jsonl")], None, 0),
        ([str(CASES / "stale-on-authorization.jsonl")], None, 1),
        ([str(CASES / "no-such-file.jsonl")], None, 2),
        (["-"], "", 2),
        (["-"], "no record\n", 2),
        (["-"], '{"kind": "message", "session_id": "s", "seq": 1}\nno record\n', 0),
        (["-", "--strict"], '{"kind": "message", "session_id": "s", "seq": 1}\nno record\n', 2),
    ],
)
def test_the_exit_status_of_check(arguments: list[str], stdin: str | None, status: int) -> None:
    assert run("check", *arguments, stdin=stdin).exit_code == status


@pytest.mark.parametrize(
    ("formats", "problem"),
    [(["yaml"], "'yaml' is no format"), (["json", "text"], "given twice")],
)
def test_formats_are_checked(formats: list[str], problem: str) -> None:
    options = [word for f in formats for word in ("--format", f)]
    result = run("check", *options, str(CASES / "clean-session.jsonl"))
    assert result.exit_code == 2
    assert problem in result.output


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.yaml"
    config.write_text("engine:\n  max_wiat: 3\n")
    result = run("--config", str(config), "check", str(CASES / "clean-session.jsonl"))
    assert result.exit_code == 2
    assert "engine.max_wiat" in result.output
    assert "max_wait" in result.output


def test_the_simulated_fleet_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    planted = tmp_path / "planted.jsonl"
    one = run("simulate", "--stdout", "--sessions", "5", "--planted", str(planted))
    two = run("simulate", "--stdout", "--sessions", "5")
    assert one.stdout == two.stdout
    assert one.stdout
    assert all(json.loads(line)["fault"] for line in planted.read_text().splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--stdout", "--agents", "0"],
        ["simulate", "--stdout", "--sessions", "-5"],
        ["simulate", "--stdout", "--rate", "0"],
        ["simulate", "--stdout", "--fault-rate", "2"],
        ["simulate", "--stdout", "--planted", "/nonexistent/planted"],
        ["emit", "/nonexistent/file"],
        ["check", "--output", "halts", "--format", "text", str(CASES / "clean-session.jsonl")],
    ],
)
def test_nonsense_is_refused_at_once(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert not result.stdout


CASE = str(CASES / "stale-on-authorization.jsonl")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `sidecar` is the program, and $1 a session in which something is found."""
    script = f'set -o pipefail; sidecar() {{ "{sys.executable}" -m sidecar "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script, "bash", CASE], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ('sidecar check "$1" > /dev/full', 2, "No space left on device"),
        ('sidecar check "$1" >&-', 2, "stdout must not be closed"),
        ("sidecar check - <&-", 2, "no readable record"),
        ('sidecar check "$1" 2> /dev/full > /dev/null', 2, ""),
        ('sidecar check "$1" 2>&- > /dev/null', 2, ""),
        ("sidecar rules > /dev/full", 2, "No space left on device"),
        ("sidecar schema asyncapi > /dev/full", 2, "No space left on device"),
        ("sidecar simulate --stdout --sessions 5 > /dev/full", 2, "No space left on device"),
        ("sidecar --help > /dev/full", 2, "No space left on device"),
        ("sidecar simulate --stdout --sessions 60 | head -1", 141, ""),
        ('sidecar check "$1" > /dev/null 2> /dev/null', 1, ""),
        ("sidecar no-such-command", 2, "There is no command"),
    ],
)
def test_a_stream_that_fails_is_one_line_and_no_finding(line: str, status: int, said: str) -> None:
    done = shell(line)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    errors = [text for text in done.stderr.splitlines() if text.startswith("Error: ")]
    assert len(errors) == (bool(said) and "error: " not in done.stderr)
    assert said in done.stderr
