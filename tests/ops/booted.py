"""This machine's own Debian, booted a second time with systemd; what is written there stays in memory."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What no unit sees (ProtectHome, PrivateTmp)."""

_SCRIPT = r"""
set -eu
folder=$1 install=$2
shift 2
mount -t tmpfs none "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" none "$folder/root"
# systemd is to have cgroups of the second version, also where this machine has them of the first.
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
group=/sys/fs/cgroup/frontier-booted-$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"
set -- --quiet --directory="$folder/root" --register=no --keep-unit --console=pipe "$@"
systemd-nspawn "$@" --chdir=/srv sh -eu -c "$install"
echo installed
# Not what this machine starts otherwise: only what every service needs.
systemd-nspawn "$@" --boot systemd.unit=sysinit.target || true
echo $$ >/sys/fs/cgroup/cgroup.procs
find "$group" -depth -type d -exec rmdir {} +
"""


def available() -> str | None:
    """Return None if a second systemd can be booted here, else the reason."""
    if os.geteuid() != 0:
        return "only root can boot a second systemd"
    if shutil.which("systemd-nspawn") is None:
        return "there is no systemd-nspawn here, which boots a second systemd (Debian: systemd-container)"
    if python() is None:
        wanted = ".".join(map(str, sys.version_info[:2]))
        return f"there is no Python {wanted} with venv here that a unit can see (Debian: python3-venv)"
    return None


def python() -> str | None:
    """Return the folder of a `python3` that is as this one, and that units can see: this one may be in a home."""
    probe = "import ensurepip, venv, sys; print(*sys.version_info[:2], sys.base_prefix)"
    for folder in (f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            said = subprocess.run([f"{folder}/python3", "-c", probe], capture_output=True, text=True, check=True).stdout
            major, minor, prefix = said.split(maxsplit=2)
            if (int(major), int(minor)) == sys.version_info[:2] and not prefix.startswith(HIDDEN):
                return folder
    return None


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Machine:
    """Install something into a copy of this machine, and boot it; a context manager.

    It has the network of this machine.

    Args:
        folder: a place for it.
        install: commands for a shell, run in /srv before it boots, with this Python as `python3`.
        shown: what is to be seen there, by its path in /srv; nothing is written to it.
        environment: more variables for those commands.
    """

    def __init__(self, folder: Path, install: str, shown: Mapping[str, Path], environment: Mapping[str, str]) -> None:
        self._log = folder / "log"
        root = folder / "machine"
        root.mkdir(parents=True)
        options = [f"--bind-ro={path}:/srv/{name}" for name, path in shown.items()]
        path = f"{python()}:/usr/sbin:/usr/bin:/sbin:/bin"
        options += [f"--setenv={name}={value}" for name, value in {"PATH": path, **environment}.items()]
        self._command = ["unshare", "--mount", "--propagation=private", "sh", "-c", _SCRIPT, "boot", str(root), install]
        self._command += options
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            command = self._command
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.until(self._is_up, within=60)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        if "installed\n" not in self.log():
            return False
        (nspawn,) = _children(self._process.pid) or (0,)
        (self._init,) = _children(nspawn) or (0,)
        return self._init > 0 and self.run("systemctl", "is-system-running", check=False) == "running\n"

    def _stop(self) -> None:
        assert self._process is not None
        if self._init:
            with contextlib.suppress(subprocess.SubprocessError):
                self.run("systemctl", "poweroff", "--force", "--force", check=False)
        for end in (None, signal.SIGTERM, signal.SIGKILL):
            if end is not None:
                os.killpg(self._process.pid, end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
                return

    def log(self) -> str:
        """Return what was said while it was installed and booted."""
        return self._log.read_text(errors="replace")

    def root(self) -> Path:
        """Return its files, as they are seen from here."""
        return Path(f"/proc/{self._init}/root")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command there, and return what it wrote.

        Raises:
            AssertionError: it failed, and was to be checked.
        """
        within = [
            "nsenter",
            f"--target={self._init}",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--cgroup",
            "--root",
            "--wd",
        ]
        environment = [
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SYSTEMD_PAGER=",
            "LANG=C.UTF-8",
        ]
        done = subprocess.run([*within, *environment, *command], capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {said}"
        return said

    def shell(self, commands: str) -> str:
        """Run commands for a shell there, as a person would type them; return what they wrote."""
        return self.run("bash", "-eu", "-o", "pipefail", "-c", commands)

    def show(self, unit: str) -> dict[str, str]:
        """Return the properties of a unit."""
        lines = self.run("systemctl", "show", unit).splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def journal(self, unit: str) -> str:
        """Return what a unit has said, and what systemd has said of it."""
        return self.run("journalctl", "--unit", unit, "--output=cat", "--no-pager")

    @staticmethod
    def until(condition: Callable[[], bool], within: float = 20) -> None:
        """Wait for something to come about.

        Raises:
            TimeoutError: it did not.
        """
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {within} s")
            time.sleep(0.1)
