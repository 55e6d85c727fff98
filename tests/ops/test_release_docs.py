"""What the pages on deployment, security, upgrading and releasing tell people to type can be typed."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sidecar.cli import cli
from sidecar.config import Settings
from sidecar.tail import acls
from tests.ops.commands import parse, unknown_variables
from tests.ops.test_helm import CHART, run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / f"docs/{name}.md" for name in ("deploy", "security", "upgrading", "releasing")]


def blocks(page: Path, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield each block of code with its language, of a page or of one of its sections."""
    text = page.read_text(encoding="utf-8")
    if within:
        text = text.partition(f"\n{within}\n")[2].partition("\n## ")[0]
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
    # With Kubernetes' own server: test_kubernetes.py.
    secrets = {words[6] for words in commands(page) if words[0] == "kubectl"}
    assert secrets == set(re.findall(r"Secret: ([\w-]+)", values))
    (upgrade,) = [words for words in commands(page) if words[:2] == ["helm", "upgrade"]]
    written = [str(tmp_path / word) if word == "values.yaml" else word for word in upgrade[4:]]
    assert run("template", upgrade[2], str(ROOT / upgrade[3]), *written).returncode == 0
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


def test_what_is_said_of_failures_is_what_the_tests_see() -> None:
    _, _, text = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("| What is wrong | What is said |")
    tested = (ROOT / "tests/ops/test_security.py").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (`.+) \|$", text, re.M)
    assert len(rows) == 8
    for sentence in (sentence for row in rows for sentence in re.findall(r"`([^`]+)`", row)):
        for part in sentence.split("…"):
            assert part.strip().strip("'").removeprefix("the broker ").removeprefix("alert ") in tested, sentence


def test_the_token_that_compose_wants_is_made_where_it_looks_for_it(tmp_path: Path) -> None:
    # There is no container engine here: what it would be given is held against the specification in test_compose.py.
    (block,) = (block for _, block in blocks(ROOT / "docs/deploy.md", within="## Compose"))
    made, started = block.splitlines()
    (tmp_path / "deploy/compose").mkdir(parents=True)
    subprocess.run(["bash", "-euc", made], cwd=tmp_path, check=True)
    (secret,) = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["secrets"].values()
    token = tmp_path / "deploy" / secret["file"]
    assert re.fullmatch(r"[0-9a-f]{64}\n", token.read_text())
    # Whoever runs as 65532 in a container has to be able to read it.
    assert token.stat().st_mode & 0o044 == 0o044
    assert shlex.split(started) == ["docker", "compose", "-f", "deploy/compose.yaml", "up", "--build"]


def test_the_image_is_built_with_arguments_that_it_takes() -> None:
    # There is no container engine here, and no registry of images to take the base from.
    text = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    taken = set(re.findall(r"^ARG (\w+)", text, re.M))
    (base,) = re.findall(r"^ARG PYTHON=(\S+)", text, re.M)
    builds = [words for page in PAGES for words in commands(page) if words[:2] == ["docker", "build"]]
    assert len(builds) == 2
    for words in builds:
        given = [words[i + 1].partition("=") for i, word in enumerate(words) if word == "--build-arg"]
        assert {name for name, _, _ in given} <= taken
        assert all(value.startswith(f"{base}@sha256:") for name, _, value in given if name == "PYTHON")
        assert (ROOT / words[words.index("-f") + 1]).is_file() and words[-1] == "."
        assert words[words.index("-t") + 1].startswith("frontier-sidecar:")
    (looked,) = [words for page in PAGES for words in commands(page) if words[:2] == ["docker", "buildx"]]
    assert f"python:{base}" in looked
    # What it is told in the shell can be told.
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert revision.returncode != 0 or re.fullmatch(r"[0-9a-f]{40}\n", revision.stdout)


def test_the_commands_of_the_audit_are_understood(tmp_path: Path) -> None:
    # What is audited is asked of a service that not every network lets through; that nothing goes by as audited without
    # it is tested in test_release.py.
    found = list(commands(ROOT / "docs/releasing.md"))
    assert [".venv/bin/python", "-m", "pip", "install", "pip-audit"] in found and ["make", "release"] in found
    said = subprocess.run(["make", "-n", "release"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "deploy/release/build.py" in said
    (export,) = [words for words in found if words[:2] == ["uv", "export"]]
    (audit,) = [words for words in found if words[2:3] == ["pip_audit"]]
    assert export[-2:] == [">", audit[-1]]
    if uv := os.environ.get("UV") or shutil.which("uv"):
        exported = subprocess.run(
            [uv, *export[1:-2], "--offline"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert re.search(r"^aiokafka==\S+.*\\\n    --hash=sha256:", exported.stdout, re.M)


def test_the_permissions_are_printed_as_the_document_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    (asked,) = (block for _, block in blocks(ROOT / "docs/security.md") if block.startswith("sidecar acls"))
    printed = [CliRunner().invoke(cli, shlex.split(line)[1:], catch_exceptions=False) for line in asked.splitlines()]
    assert [done.exit_code for done in printed] == [0, 0]
    assert "User:frontier-tail" in printed[0].output
    assert "--bootstrap-server kafka-1:9092 --add --allow-principal User:CN=tail,O=acme " in printed[1].output
