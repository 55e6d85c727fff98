"""Where the documents' commands are run: a shell with the program, and on demand a broker, a tail and a fleet."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from sidecar.embedded import EmbeddedBroker, available, free_port
from tests.conftest import missing
from tests.docs.pages import ROOT
from tests.ops.monitoring import SIDECAR, eventually, get, process

CASE = ROOT / "tests/cases/merged-approval-rollback.jsonl"
STAMP = f"{sys.prefix}/.installed"
QUICK = {
    "SIDECAR_TAIL__GUARANTEE": "at_least_once",  # the embedded broker has no transactions
    "SIDECAR_TAIL__COMMIT_INTERVAL": "0.2",
    "SIDECAR_TAIL__FETCH_MAX_WAIT": "0.05",
    "SIDECAR_TAIL__SESSION_TIMEOUT": "2",
    "SIDECAR_TAIL__HEARTBEAT_INTERVAL": "0.3",
    "SIDECAR_FLEET__SESSION_TIMEOUT": "2",
    "SIDECAR_FLEET__HEARTBEAT_INTERVAL": "0.3",
    "SIDECAR_FLEET__COMMIT_INTERVAL": "0.2",
    "SIDECAR_ENGINE__MAX_WAIT": "1",
    "SIDECAR_LOG__FORMAT": "json",
}


class Live:
    """Hold what runs, by the addresses that the documents give it."""

    def __init__(self, broker: str, tail: str, fleet: str) -> None:
        self.broker, self.tail, self.fleet = broker, tail, fleet

    @property
    def places(self) -> dict[str, str]:
        """Return the addresses, by those in the documents."""
        tail, fleet = self.tail.removeprefix("http://"), self.fleet.removeprefix("http://")
        return {
            "kafka-1:9092": self.broker,
            "kafka:9092": self.broker,
            "127.0.0.1:9464": tail,
            "localhost:9464": tail,
            "127.0.0.1:9465": fleet,
        }


class World:
    """Run commands in a folder of its own, with `sidecar`, `python` and `make` as a reader has them."""

    def __init__(self, folder: Path, running: contextlib.ExitStack) -> None:
        self.folder = folder
        self._running = running
        binary = folder / "bin"
        binary.mkdir()
        for name, program in {"sidecar": " ".join(SIDECAR), "python": sys.executable}.items():
            (binary / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            (binary / name).chmod(0o755)
        # With the environment that there is, whatever is newer than it: a test does not install.
        (binary / "make").write_text(f'#!/bin/sh\nexec {shutil.which("make")} -o {STAMP} VENV={sys.prefix} "$@"\n')
        (binary / "make").chmod(0o755)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "SIDECAR_"))
        }
        self.env = {**kept, "PATH": f"{binary}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "160"}

    def run(
        self,
        command: str,
        places: dict[str, str] | None = None,
        *,
        status: int = 0,
        cwd: Path | None = None,
        **env: str,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command, and see that it ends as it should.

        Args:
            command: for a shell.
            places: what stands in it, by what is to stand there instead.
            status: the exit status that it has to have.
            cwd: where; by default in the folder.
            env: further variables.
        """
        for place, here in (places or {}).items():
            command = command.replace(place, here)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env={**self.env, **env},
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @contextlib.contextmanager
    def running(self, command: str, log: str, status: int = 0, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run one of the sidecar's commands that goes on, until the end of the block; it then has to end well.

        Args:
            command: what is typed.
            log: the name of the file for what it writes.
            status: how it has to end when it is terminated.
            env: variables.
        """
        words = command.split()
        assert words[0] == "sidecar"
        variables = [f"{name}={value}" for name, value in env.items()]
        child = process(["env", *variables, *SIDECAR, *words[1:]], self.folder / log, self.folder)
        with child as running:
            yield running
        assert running.returncode == status, (self.folder / log).read_text()[-2000:]

    @cached_property
    def live(self) -> Live:
        """Start a broker, and beside it the tail and the fleet with the commands that the documents have for it."""
        if reason := available():
            missing(reason)
        broker = self._running.enter_context(EmbeddedBroker())
        ports = {"run": free_port(), "fleet": free_port()}
        at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        found = Live(broker.bootstrap, at["run"], at["fleet"])
        self.run(TOPICS, found.places)
        for name, command in {"run": RUN, "fleet": FLEET}.items():
            command = command.replace("kafka-1:9092", broker.bootstrap)
            env = {**QUICK, "SIDECAR_HTTP__PORT": str(ports[name])}
            self._running.enter_context(self.running(command, f"{name}.log", **env))
        for name, address in at.items():
            eventually(
                f"{name} is ready (see {self.folder}/{name}.log)", lambda address=address: get(f"{address}/readyz"), 30
            )  # type: ignore[misc]
        self.run(f"sidecar emit --bootstrap-servers {broker.bootstrap} {CASE}")
        eventually("it is judged", lambda: len(get(f"{at['run']}/v1/findings?session=migrate")["findings"]) == 5)
        eventually("the fleet knows", lambda: get(f"{at['fleet']}/v1/fleet/halts")["total"] == 3)
        return found


TOPICS = "sidecar topics --create --bootstrap-servers kafka-1:9092"
RUN = "sidecar run --bootstrap-servers kafka-1:9092"
FLEET = "sidecar fleet --bootstrap-servers kafka-1:9092"


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Give a world, and end what runs in it."""
    with contextlib.ExitStack() as running:
        yield World(folder, running)
