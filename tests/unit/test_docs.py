"""The documents say what the code says, and no file names a machine; tests/docs has what is asked of all of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.engine.context import NAMED
from sidecar.engine.limits import Limits
from sidecar.engine.missing import RUNS
from sidecar.engine.ranges import MOST
from sidecar.engine.rules import CATALOGUE
from sidecar.engine.rules_text import as_json, catalogue_markdown, explain, rows, table
from sidecar.engine.status import LISTED, OPEN
from sidecar.engine.tree import LINKS
from sidecar.protocol.fields import FIELDS
from sidecar.protocol.records import COMPARED, KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")


def test_made_documents_are_what_the_code_says() -> None:
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == catalogue_markdown(), "run `make docs`"
    check = subprocess.run(
        [sys.executable, ROOT / ".ci" / "docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_rule_is_told_in_every_way() -> None:
    assert {row[0] for row in rows()} == set(CATALOGUE)
    assert [rule["name"] for rule in as_json()] == list(CATALOGUE)
    for name, rule in CATALOGUE.items():
        assert name in table()
        text = explain(name)
        assert all(part in text for part in (rule.meaning, rule.why, rule.remedy, rule.severity, rule.disposition))


def test_as_json_tells_what_halts() -> None:
    halting = {rule["name"] for rule in as_json() if rule["halts"]}
    assert {"log_conflict", "constraint_dropped", "generation_mismatch"} <= halting
    assert not {"log_gap", "edge_dropped", "referent_orphaned"} & halting


def test_explain_refuses_an_unknown_rule() -> None:
    with pytest.raises(KeyError):
        explain("log_gasp")


def test_protocol_has_every_rule() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PROTOCOL, re.MULTILINE))
    assert set(CATALOGUE) <= told


def test_protocol_has_every_kind_and_field() -> None:
    named = set(re.findall(r"`(\w+)`", PROTOCOL))
    assert set(KINDS) <= named
    assert {field.rpartition(".")[2] for field in FIELDS} <= named


def test_protocol_has_the_engine_s_bounds() -> None:
    limits = Limits()
    for bound in (limits.max_waiting, limits.checkpoints, limits.positions, limits.nodes, limits.calls):
        assert f"| {bound:,} |" in PROTOCOL
    assert f"| {limits.max_wait:g} s |" in PROTOCOL
    assert f"last {COMPARED:,} positions" in PROTOCOL
    bounds = dict(
        re.findall(r"^\| ([^|]+) \| ([\d,]+)(?: positions)? \| ", PROTOCOL.partition("\n## Bounds\n")[2], re.MULTILINE)
    )
    assert bounds["runs of missing positions kept apart"] == f"{RUNS:,}"
    assert bounds["contents remembered"] == bounds["contents remembered of records without `seq`"] == f"{COMPARED:,}"
    assert bounds["inherited ranges of a generation"] == f"{MOST:,}"
    assert bounds["findings of one rule about one node, from one record"] == f"{NAMED:,}"
    assert f"| {LINKS} for each generation that may be kept |" in PROTOCOL
    assert bounds["open halts"] == f"{OPEN:,}"
    assert bounds["open halts listed in one halt record, and in where a session stands"] == f"{LISTED:,}"
    for name, workload in limits.workloads.items():
        assert f"`{name}`: {workload.floor:.2f}" in PROTOCOL


# Put together here so that this file does not find itself.
_FORBIDDEN = ["/" + "work/", "/" + "tmp/v/", "/" + "root/", "files.python" + "hosted", "pypi" + ".org"]


def _files() -> list[Path]:
    """List what is or would be committed; without git (a source archive), the text files in the known places."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        return [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    paths = [path for folder in ("sidecar", "tests", "docs", ".ci") for path in (ROOT / folder).rglob("*")]
    return [path for path in paths if "__pycache__" not in path.parts]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in _files():
        # The lock file names the packages' addresses by its nature.
        if path.name == "uv.lock" or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in _FORBIDDEN if word in text]
    assert found == []
