"""What is released: built from one version, complete, and running in an environment that has nothing else in it."""

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

import sidecar

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Packages that come with one that is declared, and belong to it.
IMPLIED = {
    "annotated-types": "pydantic-settings",
    "langchain-core": "langchain",
    "mode": "faust-streaming",
    "pydantic": "pydantic-settings",
    "pydantic-core": "pydantic-settings",
    "rocksdict": "faust-streaming",
    "yaml": "pydantic-settings",
    "yarl": "aiohttp",
}
FREE = re.compile(r"Apache|BSD|MIT|PSF|Python-2\.0|ISC|MPL|Repoze|Zlib|Unlicense|0BSD")


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load("deploy/release/build.py")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build.build(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of an environment with the wheel and what it declares for the demo, and nothing else.

    What it declares is linked from where this Python has it, so that nothing is fetched; pip then sees that it is
    enough. `deploy/release/build.py` makes such an environment from an index.
    """
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in closure("demo"):
        link(metadata.distribution(name), site)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*install, f"frontier-sidecar[demo] @ {wheel.as_uri()}"], check=True)
    return python


def closure(*extras: str) -> set[str]:
    """Return the distributions that the package needs here with these extras, with what they need themselves."""
    found: set[str] = set()
    todo = [("frontier-sidecar", frozenset(extras))]
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    requirements = {"frontier-sidecar": [*PROJECT["dependencies"], *optional]}
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        if name != "frontier-sidecar":
            found.add(name)
        for text in requirements.get(name) or metadata.distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in ("", *wanted)):
                todo.append((normal(needed.name), frozenset(needed.extras)))
    return found


def link(distribution: metadata.Distribution, site: Path) -> None:
    """Link the files of an installed distribution into another folder."""
    for file in distribution.files or ():
        if file.parts[0] == ".." or "__pycache__" in file.parts:
            continue
        target = site / file
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(file.locate())))


def shipped() -> set[str]:
    found = (path for path in (ROOT / "sidecar").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


# --- one version ----------------------------------------------------------------------------------


def test_the_version_stands_in_one_place(dist: Path) -> None:
    version = sidecar.__version__
    assert build.version_of_the_package() == version
    assert sorted(path.name for path in dist.iterdir()) == [
        f"frontier_sidecar-{version}-py3-none-any.whl",
        f"frontier_sidecar-{version}.tar.gz",
    ]
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    # It is said elsewhere too, where other programs read it.
    for name, said in (
        ("deploy/helm/frontier-sidecar/Chart.yaml", rf'^appVersion: "{re.escape(version)}"$'),
        ("deploy/compose.yaml", rf"image: frontier-sidecar:{re.escape(version)}$"),
        ("deploy/docker/Dockerfile", rf"-t frontier-sidecar:{re.escape(version)} "),
        ("CHANGELOG.md", rf"^## \[{re.escape(version)}\]|^To be {re.escape(version)}\.$"),
        ("docs/upgrading.md", re.escape(version)),
    ):
        assert re.search(said, (ROOT / name).read_text(encoding="utf-8"), re.M), f"{name} does not say {version}"


def test_the_changelog_has_the_form_that_it_says() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings and all(re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d{2}-\d{2})?", h) for h in headings)
    kinds = set(re.findall(r"^### (.*)$", text, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- complete -------------------------------------------------------------------------------------


def test_the_wheel_is_the_whole_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"frontier_sidecar-{sidecar.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == shipped()
    assert "sidecar/py.typed" in names and f"{info}licenses/LICENSE" in names
    assert [name for name in names if name.startswith("sidecar/fleet/page/templates/")]
    assert [name for name in names if name.startswith("sidecar/fleet/page/static/")]


def test_the_sdist_makes_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(again, cwd=source, check=True, capture_output=True)
    (made,) = (tmp_path / "again").glob("*.whl")

    def contents(path: Path) -> dict[str, str]:
        archive = zipfile.ZipFile(path)
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}

    assert contents(made) == contents(wheel)


def imported() -> Iterator[tuple[str, str]]:
    """Yield every module from elsewhere that the package imports, and where."""
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "sidecar":
                    yield top, path.relative_to(ROOT).as_posix()


def test_everything_that_is_imported_is_declared() -> None:
    optional = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    declared = {normal(Requirement(text).name) for text in (*PROJECT["dependencies"], *optional)}
    packages = metadata.packages_distributions()
    lacking = set()
    for module, where in imported():
        given = {normal(name) for name in packages.get(module, (module,))}
        implied = {IMPLIED.get(name, name) for name in (*given, normal(module))}
        if not (given | implied) & declared:
            lacking.add(f"{module}, imported by {where}")
    assert lacking == set(), "to be declared in pyproject.toml"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- running where there is nothing else ----------------------------------------------------------


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL", "SIDECAR_"))
    }
    return subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_it_is_the_wheel_that_runs(clean: Path, tmp_path: Path) -> None:
    where = run(clean, "-c", "import sidecar; print(sidecar.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where.stdout and "site-packages" in where.stdout
    script = clean.with_name("sidecar")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == f"sidecar, version {sidecar.__version__}"


def test_every_module_can_be_imported_but_those_of_other_extras(clean: Path, tmp_path: Path) -> None:
    program = """
import importlib, pkgutil, sidecar
extras = ("sidecar.client.langgraph", "sidecar.fleet.disk", "sidecar.__main__")
for module in pkgutil.walk_packages(sidecar.__path__, "sidecar."):
    if module.name.startswith(extras) or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(f"{module.name}: {error}")
"""
    done = run(clean, "-c", program, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_the_demo_runs_on_its_own_broker(clean: Path, tmp_path: Path) -> None:
    command = ["-m", "sidecar", "demo", "--http", "127.0.0.1:0", "--sessions", "40", "--seconds", "2"]
    done = run(clean, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted" in done.stdout


def test_the_bill_of_materials_names_everything_and_every_licence_is_free(clean: Path, tmp_path: Path) -> None:
    bill = build.materials(tmp_path, clean, validate=False)
    installed = run(
        clean, "-c", "import importlib.metadata as m; print(*{d.name for d in m.distributions()})", cwd=tmp_path
    )
    expected = {normal(name) for name in installed.stdout.split()} - {"pip", "setuptools", "frontier-sidecar"}
    assert {normal(component["name"]) for component in bill["components"]} - {"pip", "setuptools"} == expected
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == sidecar.__version__
    strange = {c["name"]: build.licence_of(c) for c in bill["components"] if not FREE.search(build.licence_of(c))}
    assert strange == {}
    listed = build.licences(bill)
    assert all(component["name"] in listed for component in bill["components"])
    assert json.loads((tmp_path / "sbom.cdx.json").read_text()) == bill


@pytest.mark.parametrize(("audited", "status"), [(True, 0), (False, 3)])
def test_the_command_builds_all_that_the_document_lists(
    audited: bool, status: int, clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_check(folder: Path, python: Path) -> dict[str, Any]:
        return build_materials(folder, python, validate=False)  # it takes seconds, and is of what others make

    build_materials = build.materials
    # The environment is the one that is here, made without an index; whether it is audited is another test's.
    monkeypatch.setattr(build, "environment", lambda folder, wheel, versions: clean)
    monkeypatch.setattr(build, "materials", without_check)
    monkeypatch.setattr(build, "audit", lambda python: audited)
    assert build.main([str(tmp_path)]) == status
    table = (
        (ROOT / "docs/releasing.md").read_text(encoding="utf-8").partition("In `dist/`")[2].partition("Exit status")[0]
    )
    listed = {name.replace("VERSION", sidecar.__version__) for name in re.findall(r"^ +\| `([^`]+)`", table, re.M)}
    assert {path.name for path in tmp_path.iterdir()} == {*listed, f"frontier_sidecar-{sidecar.__version__}.tar.gz"}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)
    # What is there is what the wheel was tried with.
    locked = {
        p["name"]: p["version"] for p in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if "version" in p
    }
    held = dict(line.split("==") for line in (tmp_path / "constraints.txt").read_text().splitlines())
    assert held.items() <= locked.items() and "aiokafka" in held


def test_what_was_not_audited_is_not_called_audited(
    clean: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where pip-audit is not installed, or its service cannot be reached.
    monkeypatch.setattr(build.sys, "executable", "/bin/false")
    assert build.audit(clean) is False
    assert "NOT AUDITED" in capsys.readouterr().err
