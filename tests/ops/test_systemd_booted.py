"""The systemd units on a systemd that runs: the commands of docs/deploy.md as they stand there, on a second boot.

One test of one machine, which takes some 45 s: each step begins with what the one before has left, for the embedded
broker takes six seconds to let a member in.
"""

import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from sidecar import embedded
from sidecar.embedded import EmbeddedBroker, free_port
from tests.conftest import missing
from tests.kafka.tail_support import case_lines, send, settings_for
from tests.ops import booted
from tests.ops.booted import Machine
from tests.ops.test_release import build, closure
from tests.ops.test_release_docs import blocks

ROOT = Path(__file__).parents[2]
UNITS = ("frontier-sidecar", "frontier-fleet")
(INSTALL, START, SECRETS) = (
    block for language, block in blocks(ROOT / "docs/deploy.md", within="## systemd") if not language
)


class Installed:
    """The machine with the units on it, and where they serve."""

    def __init__(self, machine: Machine, broker: str) -> None:
        self.machine = machine
        self.broker = broker
        self.tail, self.fleet = free_port(), free_port()

    def configure(self) -> None:
        """Put what is of this machine into the configuration that was installed; the rest of it is left out."""
        folder = self.machine.root() / "etc/frontier-sidecar"
        assert (folder / "sidecar.yaml").read_text() == (ROOT / "deploy/sidecar.yaml").read_text()
        (folder / "sidecar.yaml").write_text(
            f"kafka: {{bootstrap_servers: ['{self.broker}']}}\n"
            f"http: {{port: {self.tail}}}\n"
            "tail: {guarantee: at_least_once, session_timeout: 1, heartbeat_interval: 0.3}\n"  # as this broker needs it
            "fleet: {session_timeout: 1, heartbeat_interval: 0.3}\n"
        )
        (folder / "fleet.env").write_text(
            f"SIDECAR_HTTP__PORT={self.fleet}\nSIDECAR_FLEET__GUARD_URL=http://127.0.0.1:{self.tail}\n"
        )

    def type(self, commands: str) -> str:
        """Run commands of the document, with the ports that are free here."""
        return self.machine.shell(commands.replace("127.0.0.1:9465", f"127.0.0.1:{self.fleet}"))

    def ready(self) -> None:
        """Wait until both are, as the document does."""
        self.type("\n".join(line for line in START.splitlines() if not line.startswith("systemctl")))

    def ask(self, path: str, token: str | None = None) -> int:
        """Return the status of an answer of the tail; 0: there is none."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.tail}{path}")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        """Return the sum of a counter of the tail."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.tail}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def packages(folder: Path) -> Path:
    """Copy what the package needs into a folder, so that nothing is fetched, and the units can see it."""
    for name in closure():
        for file in metadata.distribution(name).files or ():
            if file.parts[0] != ".." and "__pycache__" not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), folder / file)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    if reason := booted.available() or embedded.available():
        missing(reason)
    folder = tmp_path_factory.mktemp("booted")
    build.build(folder / "dist")
    build.constraints(folder / "dist")
    site = f"/opt/frontier-sidecar/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    # The packages are there already, as they would be in a folder of wheels.
    before = f"mkdir -p {site}\necho /srv/packages > {site}/packages.pth\n"
    shown = {"deploy": ROOT / "deploy", "dist": folder / "dist", "packages": packages(folder / "packages")}
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # A broker of its own, for the topics and groups have their default names.
    with EmbeddedBroker() as broker, Machine(folder / "machine", before + INSTALL, shown, offline) as machine:
        found = Installed(machine, broker.bootstrap)
        found.configure()
        found.type(START)
        yield found


def they_are_ready_and_have_no_more_than_they_need(installed: Installed) -> None:
    installed.ready()
    machine = installed.machine
    users = set()
    for unit in UNITS:
        shown = machine.show(unit)
        assert (shown["ActiveState"], shown["SubState"], shown["NRestarts"]) == ("active", "running", "0")
        assert shown["UnitFileState"] == "enabled"
        status = dict(
            line.split(":\t", 1)
            for line in (machine.root() / f"proc/{shown['MainPID']}/status").read_text().splitlines()
            if ":\t" in line
        )
        users.add(int(status["Uid"].split()[0]))
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        folder = machine.root() / "var/lib/private" / unit
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    # Users of their own, from the range of those that exist only while a unit runs.
    assert len(users) == 2 and all(61184 <= user <= 65519 for user in users)
    (name,) = {machine.run("hostname").strip()}
    for unit, variable in zip(UNITS, ("TAIL", "FLEET"), strict=True):
        environment = (machine.root() / f"proc/{machine.show(unit)['MainPID']}/environ").read_text().split("\0")
        assert f"SIDECAR_{variable}__GROUP_INSTANCE_ID={name}" in environment


QUESTION = "/v1/findings?session=nobody-knows-it"


def a_token_is_handed_to_them_as_the_document_says(installed: Installed) -> None:
    machine = installed.machine
    assert installed.ask(QUESTION) not in (0, 401)
    installed.type(SECRETS)
    machine.until(lambda: installed.ask(QUESTION) == 401)
    source = machine.root() / "etc/frontier-sidecar/guard-token"
    assert source.stat().st_mode & 0o777 == 0o600
    assert installed.ask(QUESTION, source.read_text().strip()) not in (0, 401)
    environment = (machine.root() / f"proc/{machine.show(UNITS[1])['MainPID']}/environ").read_text()
    assert "SIDECAR_FLEET__GUARD_TOKEN_FILE=/run/credentials/frontier-fleet.service/guard-token" in environment


async def they_work_and_end_well_by_sigterm(installed: Installed) -> None:
    installed.ready()
    await send(settings_for(installed.broker, "agent."), case_lines())
    installed.machine.until(lambda: installed.metric("sidecar_findings_total") > 0)
    installed.machine.run("systemctl", "stop", *UNITS)
    for unit in UNITS:
        shown = installed.machine.show(unit)
        assert (shown["Result"], shown["ExecMainStatus"], shown["ActiveState"]) == ("success", "0", "inactive")
        assert "Traceback" not in installed.machine.journal(unit)


def a_credential_that_is_missing_is_said_and_tried_again(installed: Installed) -> None:
    machine = installed.machine
    source = machine.root() / "etc/frontier-sidecar/guard-token"
    source.rename(source.with_name("elsewhere"))
    machine.run("systemctl", "start", "frontier-sidecar", check=False)
    shown = machine.show("frontier-sidecar")
    assert (shown["ExecMainStatus"], shown["SubState"]) == ("243", "auto-restart")
    assert "status=243/CREDENTIALS" in machine.journal("frontier-sidecar")
    source.with_name("elsewhere").rename(source)
    machine.run("systemctl", "stop", "frontier-sidecar")


def wrong_settings_end_them_and_they_are_not_started_again(installed: Installed) -> None:
    machine = installed.machine
    wrong = machine.root() / "etc/frontier-sidecar/tail.env"
    wrong.write_text("SIDECAR_TAIL__GROPU_ID=x\n")
    machine.run("systemctl", "start", "frontier-sidecar")
    machine.until(lambda: machine.show("frontier-sidecar")["ActiveState"] == "failed")
    shown = machine.show("frontier-sidecar")
    assert (shown["ExecMainStatus"], shown["NRestarts"]) == ("2", "0")
    assert "did you mean SIDECAR_TAIL__GROUP_ID?" in machine.journal("frontier-sidecar")
    wrong.unlink()


def killed_they_come_back(installed: Installed) -> None:
    machine = installed.machine
    machine.run("systemctl", "start", *UNITS)
    before = {unit: machine.show(unit)["MainPID"] for unit in UNITS}
    assert "0" not in before.values()
    machine.run("systemctl", "kill", "--signal=KILL", *UNITS)
    for unit in UNITS:
        machine.until(lambda unit=unit: machine.show(unit)["MainPID"] not in ("0", before[unit]))
        assert machine.show(unit)["NRestarts"] == "1"
    machine.until(lambda: installed.ask(QUESTION) == 401)


async def test_they_do_on_a_machine_what_the_document_says(installed: Installed) -> None:
    they_are_ready_and_have_no_more_than_they_need(installed)
    a_token_is_handed_to_them_as_the_document_says(installed)
    await they_work_and_end_well_by_sigterm(installed)
    a_credential_that_is_missing_is_said_and_tried_again(installed)
    wrong_settings_end_them_and_they_are_not_started_again(installed)
    killed_they_come_back(installed)
