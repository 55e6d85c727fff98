"""The image, as far as it can be looked at without a container engine: what it is made of, and as whom it runs."""

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import missing
from tests.ops.commands import parse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/docker/Dockerfile"


class Step(NamedTuple):
    """One instruction, the stage it stands in, and its flags."""

    stage: int
    name: str
    flags: dict[str, str]
    value: str


def steps() -> list[Step]:
    """Return the instructions, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.M)
    found, stage = [], -1
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        name, _, value = line.partition(" ")
        flags = {}
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", value):
            flags[match[1]] = match[2]
            value = value[match.end() :]
        stage += name == "FROM"
        found.append(Step(stage, name, flags, value.strip()))
    return found


def last(name: str) -> str:
    """Return the value of an instruction of the image itself."""
    stage = max(step.stage for step in steps())
    return [step for step in steps() if step.name == name and step.stage == stage][-1].value


def exec_form(value: str) -> list[str]:
    words = re.fullmatch(r"\[(.*)\]", value)
    assert words, f"{value} is not in exec form: a shell would stand between, and swallow signals"
    return [str(word) for word in shlex.split(words[1].replace(",", " "))]


def test_hadolint_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    found = str(beside) if beside.exists() else shutil.which("hadolint")
    if found is None:
        missing("hadolint, of the development packages, is not installed")
    done = subprocess.run([found, FILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_base_is_one_exact_version_in_both_stages() -> None:
    froms = [step.value for step in steps() if step.name == "FROM"]
    assert [value.split()[0] for value in froms] == ["python:${PYTHON}"] * 2
    (pinned,) = [step.value for step in steps() if step.name == "ARG" and step.stage < 0]
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-[a-z]+", pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(map(int, re.findall(r"\d+", pinned)[:2])) >= tuple(
        map(int, re.findall(r"\d+", project["requires-python"]))
    )


def sent() -> Iterator[str]:
    """Yield what `.dockerignore` lets through to the builder."""
    lines = FILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    for path in sorted(ROOT.rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith((".git/", ".venv/", ".cache/")) or not path.is_file():
            continue
        kept = any(name == p[1:] or name.startswith(p[1:] + "/") for p in patterns if p.startswith("!"))
        dropped = any(
            fnmatch.fnmatch(part, p.removeprefix("**/"))
            for p in patterns
            if p.startswith("**/")
            for part in name.split("/")
        )
        if kept and not dropped:
            yield name


def test_everything_that_is_copied_is_there_and_is_sent_and_nothing_else_is() -> None:
    files = set(sent())
    used = set()
    for step in steps():
        if step.name == "COPY" and "from" not in step.flags:
            *sources, _ = step.value.split()
            for source in sources:
                found = {name for name in files if name == source.removeprefix("./") or name.startswith(f"{source}/")}
                assert found, f"COPY {source}: it is not there, or not let through by the ignore file"
                used |= found
    assert used == files
    # What the wheel needs besides the code.
    shipped = [p.relative_to(ROOT).as_posix() for p in (ROOT / "sidecar").rglob("*") if p.is_file()]
    assert {name for name in shipped if "__pycache__" not in name and not name.endswith(".pyc")} <= files


def test_it_runs_as_nobody_and_writes_in_one_folder() -> None:
    assert last("USER") == "65532:65532"
    assert last("WORKDIR") == "/var/lib/sidecar"
    assert "-o 65532 -g 65532 -m 0750 /var/lib/sidecar" in last("RUN")
    names = [step.name for step in steps() if step.stage == 1]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    assert not [step for step in steps() if step.name == "ADD"]


def test_its_commands_are_commands() -> None:
    entry = exec_form(last("ENTRYPOINT"))
    assert entry == ["sidecar"]
    (check,) = [step for step in steps() if step.name == "HEALTHCHECK"]
    assert set(check.flags) == {"interval", "timeout", "start-period", "retries"}
    assert parse(exec_form(check.value.removeprefix("CMD "))[1:]) == "health"
    assert exec_form(last("CMD")) == ["--help"]
    assert set(last("EXPOSE").split()) == {"9464", "9465"}


def test_its_labels_are_those_of_the_oci() -> None:
    keys = {word.partition("=")[0] for word in shlex.split(last("LABEL"))}
    prefix = "org.opencontainers.image."
    assert keys == {prefix + name for name in ("title", "description", "licenses", "version", "revision")}
    assert 'licenses="Apache-2.0"' in last("LABEL")


@pytest.mark.parametrize("extras", [(), ("rocksdb",)])
def test_the_requirements_are_those_of_the_package(extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command = [sys.executable, ROOT / "deploy/docker/requirements.py", *extras]
    with (ROOT / "pyproject.toml").open("rb") as file:
        printed = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = [*project["dependencies"], *(r for extra in extras for r in project["optional-dependencies"][extra])]
    assert printed == wanted
