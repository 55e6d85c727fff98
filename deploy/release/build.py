"""Build what a release consists of: `python deploy/release/build.py [FOLDER]` (default: dist).

Wheel and sdist (by the hatchling that is installed), the versions to install them with, a bill of materials (CycloneDX,
of a clean environment with the wheel in it), the licences of all that is in it, checksums. Then the dependencies are
held against the advisories; where that cannot be done it is said, and the exit status is 3, because a release that
nobody has audited is none.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXTRAS = "demo,rocksdb"
NOT_AUDITED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Build everything; return 0 if it may be released, 3 if only the audit is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--without-audit", action="store_true", help="build only; audit later")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    wheel, _ = build(folder)
    versions = constraints(folder)
    with tempfile.TemporaryDirectory() as clean:
        python = environment(Path(clean), wheel, versions)
        bill = materials(folder, python)
        (folder / "licences.md").write_text(licences(bill), encoding="utf-8")
        audited = False if given.without_audit else audit(python)
    checksums(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")
    return 0 if audited else NOT_AUDITED


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist, with the hatchling that is installed; return them."""
    for old in (*folder.glob("frontier_sidecar-*.whl"), *folder.glob("frontier_sidecar-*.tar.gz")):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("frontier_sidecar-*.whl"), folder.glob("frontier_sidecar-*.tar.gz")
    return wheel, sdist


def constraints(folder: Path) -> Path:
    """Write the versions of uv.lock as pip reads them, to install the wheel with (pip install --constraint)."""
    path = folder / "constraints.txt"
    with (ROOT / "uv.lock").open("rb") as lock, path.open("wb") as out:
        subprocess.run([sys.executable, ROOT / ".ci/constraints.py"], stdin=lock, stdout=out, check=True)
    return path


def environment(folder: Path, wheel: Path, versions: Path) -> Path:
    """Make an environment of the wheel and what it needs, at these versions; return its Python."""
    python = folder / "venv/bin/python"
    wanted = [f"frontier-sidecar[{EXTRAS}] @ {wheel.resolve().as_uri()}", "--constraint", str(versions)]
    if uv := os.environ.get("UV") or shutil.which("uv"):
        run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
        run(uv, "pip", "install", "--quiet", "--python", python, *wanted)
    else:
        run(sys.executable, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
    return python


def materials(folder: Path, python: Path, *, validate: bool = True) -> dict[str, Any]:
    """Write the bill of materials of an environment, and return it; to validate it takes some seconds."""
    path = folder / "sbom.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml"]
    command += ["--output-reproducible", "--output-format", "JSON", "--output-file", path, python]
    run(*command, *(() if validate else ("--no-validate",)))
    bill: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    version = version_of_the_package()
    bill["metadata"]["component"]["version"] = version
    # The environment holds the wheel, which is what the bill is of, not one of its parts.
    bill["components"] = [c for c in bill["components"] if c["name"] != "frontier-sidecar"]
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return bill


def version_of_the_package() -> str:
    """Return the version, from the one place where it stands."""
    path = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["version"]["path"]
    found: dict[str, Any] = {}
    exec((ROOT / path).read_text(encoding="utf-8"), found)
    return str(found["__version__"])


def licences(bill: dict[str, Any]) -> str:
    """Return the list of licences, in Markdown."""
    by_licence = defaultdict(list)
    for component in bill["components"]:
        by_licence[licence_of(component)].append(f"{component['name']} {component['version']}")
    rows = [f"| {licence} | {', '.join(sorted(found))} |" for licence, found in sorted(by_licence.items())]
    return "\n".join(
        ("# Licences of what frontier-sidecar is installed with", "", "| Licence | Packages |", "|---|---|", *rows, "")
    )


def licence_of(component: dict[str, Any]) -> str:
    """Return a component's licence as its package declares it: an SPDX expression, an SPDX id, or a name."""
    found = []
    for entry in component.get("licenses", ()):
        if "expression" in entry:
            return str(entry["expression"])
        licence = entry["license"]
        found.append(str(licence.get("id") or licence.get("name")))
    known = [name for name in found if "\n" not in name and name != "declared license file"]
    return " AND ".join(dict.fromkeys(known)) or "not declared"


def audit(python: Path) -> bool:
    """Hold what is installed against the advisories; tell whether nothing is known against it.

    It asks a service of PyPI or OSV, which not every network lets through.
    """
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--path"]
    site = next((python.parents[1] / "lib").glob("python*/site-packages"))
    done = subprocess.run([*command, site], capture_output=True, text=True)
    print(done.stdout + done.stderr, file=sys.stderr)
    if done.returncode == 0:
        print("audited: nothing is known against what is installed")
        return True
    print("NOT AUDITED, or not well: see above. Do not release before `pip-audit` has had its say.", file=sys.stderr)
    return False


def checksums(folder: Path) -> None:
    """Write SHA256SUMS, as sha256sum reads it."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != "SHA256SUMS"]
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command; its output is shown only where it fails.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise SystemExit(f"failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    sys.exit(main())
