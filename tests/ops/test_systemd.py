"""The systemd units: systemd itself finds them right and tight, and what they start is ours."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sidecar.tail.tail import STOP_TIMEOUT
from tests.conftest import missing
from tests.ops.commands import loaded, parse, unknown_variables

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
PROGRAM = "/opt/frontier-sidecar/bin/sidecar"
WORST = 1.5
"""The most exposed that a unit may be, on systemd's scale from 0 to 10."""


def assignments(unit: Path) -> list[tuple[str, str]]:
    lines = [line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines()]
    return [(key, value) for key, equals, value in lines if equals and not key.startswith("#")]


def values(unit: Path, key: str) -> list[str]:
    return [value for name, value in assignments(unit) if name == key]


def credentials_of(unit: Path) -> str:
    """Return what is to be uncommented for a unit, in a file that an upgrade leaves alone."""
    return unit.with_name(f"{unit.name}.d").joinpath("credentials.conf").read_text(encoding="utf-8")


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """Give the units with a program that is here in place of the one that will be installed."""
    if shutil.which("systemd-analyze") is None:
        missing("there is no systemd-analyze here, which verifies units (Debian: systemd)")
    copies = []
    for unit in UNITS:
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, "/bin/true"))
        # With everything uncommented that may be.
        secrets = tmp_path / f"{unit.name}.d/credentials.conf"
        secrets.parent.mkdir()
        secrets.write_text(re.sub(r"^#(\w+=)", r"\1", credentials_of(unit), flags=re.M))
    return copies


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_systemd_finds_nothing_wrong(installed: list[Path], tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", *installed)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text(installed[0].read_text().replace("ProtectHome=yes", "ProtectHoem=yes"))
    assert "ProtectHoem" in analyze("verify", "--man=no", broken).stderr


def test_systemd_finds_them_tight(installed: list[Path]) -> None:
    for unit in installed:
        done = analyze("security", "--offline=true", "--no-pager", f"--threshold={WORST * 10:g}", unit)
        assert done.returncode == 0, done.stdout
        found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", done.stdout)
        assert found and float(found[1]) <= WORST


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_what_they_start_is_ours(unit: Path) -> None:
    (start,) = values(unit, "ExecStart")
    program, *arguments = shlex.split(start)
    assert program == PROGRAM
    command = parse(arguments)
    assert command == {"frontier-sidecar": "run", "frontier-fleet": "fleet"}[unit.stem]
    # Those that are to be uncommented, too.
    text = unit.read_text(encoding="utf-8") + credentials_of(unit)
    environment = dict(re.findall(r"^#?Environment=(\w+)=(.*)$", text, re.M))
    assert unknown_variables(environment) == []
    assert environment["SIDECAR_CONFIG"] == "/etc/frontier-sidecar/sidecar.yaml"
    credentials = dict(re.findall(r"^#LoadCredential=([\w-]+):/etc/frontier-sidecar/([\w-]+)$", text, re.M))
    used = {value.removeprefix("%d/") for value in environment.values() if value.startswith("%d/")}
    assert set(credentials) == used and len(used) == {"run": 2, "fleet": 3}[command]
    # Each party is another on the brokers.
    assert credentials["kafka-password"] == f"{'tail' if command == 'run' else 'fleet'}-kafka-password"
    port = {"run": 9464, "fleet": 9465}[command]
    with pytest.MonkeyPatch.context() as patch:
        settings = loaded(patch, {"SIDECAR_HTTP__PORT": environment.get("SIDECAR_HTTP__PORT", "9464")})
    assert settings.http.port == port and settings.http.host == "127.0.0.1"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_how_they_start_and_end_is_how_the_program_does(unit: Path) -> None:
    # It does not tell systemd when it is ready, so that Type=notify would wait for ever.
    assert values(unit, "Type") == ["exec"]
    assert not values(unit, "WatchdogSec")
    assert values(unit, "KillSignal") == ["SIGTERM"]
    # Wrong settings end it with 2, and will again.
    assert values(unit, "RestartPreventExitStatus") == ["2"] and values(unit, "Restart") == ["on-failure"]
    # For as long as it takes: nobody is to have to start it again when the brokers are back.
    assert values(unit, "StartLimitIntervalSec") == ["0"]
    with pytest.MonkeyPatch.context() as patch:
        settings = loaded(patch, {})
    (pause,) = values(unit, "RestartSec")
    assert float(pause) < min(settings.tail.session_timeout, settings.fleet.session_timeout)
    (seconds,) = values(unit, "TimeoutStopSec")
    assert float(seconds) > STOP_TIMEOUT
    (state,) = values(unit, "StateDirectory")
    assert values(unit, "WorkingDirectory") == [f"%S/{state}"]


def test_the_two_do_not_share_what_is_their_own() -> None:
    for key in ("StateDirectory", "EnvironmentFile"):
        found = [values(unit, key)[0] for unit in UNITS]
        assert len(set(found)) == len(UNITS) == 2
