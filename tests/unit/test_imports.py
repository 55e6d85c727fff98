"""Imports go one way, and the engine does no IO."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in a process of its own: it sets up logging for the process it is in."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--config", str(config), "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold() -> None:
    done = lint_imports(ROOT / ".importlinter")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize("forbidden", ["msgspec", "datetime"])
def test_a_breach_is_seen(forbidden: str, tmp_path: Path) -> None:
    """Forbid what is imported, from a package and from the standard library: the linter must object."""
    config = tmp_path / "importlinter.ini"
    config.write_text(
        "[importlinter]\nroot_package = sidecar\ninclude_external_packages = True\n"
        "[importlinter:contract:breach]\nname = breach\ntype = forbidden\n"
        f"source_modules = sidecar.protocol\nforbidden_modules = {forbidden}\n"
    )
    done = lint_imports(config)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout
