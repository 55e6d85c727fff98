"""What the pages on deployment, security, upgrading and releasing tell people to type can be typed."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sidecar.config import Settings
from sidecar.tail import acls
from tests.ops.commands import parse, unknown_variables
from tests.ops.test_helm import CHART, run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / f"docs/{name}.md" for name in ("deploy", "security", "upgrading", "releasing")]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each block of code with its language."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", text, re.M | re.S):
        yield match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.M)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of the blocks, with continued lines joined."""
    for language, block in blocks(page):
        if not language:
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_is_there_and_every_command_is_ours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in set(re.findall(r"(?<![\w/-])((?:deploy|docs|tests|sidecar|\.ci)/[\w./-]*\w)", text)):
        if path not in ("deploy/compose/token", "tests/ops/data"):
            assert (ROOT / path).exists(), path
    for words in commands(page):
        if words[0] == "sidecar":
            assert parse(words[1:]) == words[1]
        if words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file()
    for inline in re.findall(r"`sidecar ([a-z][^`…]*)`", text):
        words = inline.split()
        if not any(word.isupper() for word in words):
            assert parse(words).partition(" ")[0] == words[0]
    given = dict(re.findall(r"^(SIDECAR_\w+)=(.*)$", text, re.M))
    assert unknown_variables(given) == []


def test_what_helm_is_told_renders(tmp_path: Path) -> None:
    page = ROOT / "docs/deploy.md"
    (values,) = [block for language, block in blocks(page) if language == "yaml"]
    (tmp_path / "values.yaml").write_text(values)
    assert run("template", "frontier", str(CHART), "--values", str(tmp_path / "values.yaml")).returncode == 0
    secrets = {words[6] for words in commands(page) if words[0] == "kubectl"}
    named = set(re.findall(r"(?:Secret): ([\w-]+)", values)) - {"kafka-ca"}
    assert secrets == named
    (install,) = [words for words in commands(page) if words[:2] == ["helm", "install"]]
    done = run("template", install[2], str(ROOT / install[3]), *install[4:])
    assert done.returncode == 0, done.stderr
    images = {c["image"] for m in yaml.safe_load_all(done.stdout) if m and "template" in m.get("spec", {})
              for c in m["spec"]["template"]["spec"]["containers"]}  # fmt: skip
    assert {image.partition(":")[0] for image in images} == {"registry.example/frontier-sidecar"}


def test_what_each_party_needs_is_what_the_plan_says() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
    assert tuple(rows) == acls.PARTIES
    for party, said in rows.items():
        operations = {op for acl in acls.plan(Settings.load(None)) if acl.party == party for op in acl.operations}
        for operation in operations:
            assert operation in said or (said.find("both") >= 0), (party, operation)
    printed = subprocess.run([sys.executable, "-m", "sidecar", "acls"], capture_output=True, text=True, check=True)
    assert "User:frontier-tail" in printed.stdout


def test_what_is_said_of_failures_is_what_the_tests_see() -> None:
    _, _, text = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("| What is wrong | What is said |")
    tested = (ROOT / "tests/ops/test_security.py").read_text(encoding="utf-8")
    said = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", text, re.M)
    assert len(said) == 5
    for sentence in said:
        for part in sentence.split("…"):
            assert part.strip().strip("'") in tested, sentence
