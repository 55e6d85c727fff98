"""Run what an operator runs: a sidecar, Prometheus with the rules, Alertmanager, and somebody who is notified.

Everything is a process on the loopback interface, on ports that are free, and is stopped by its id. The rules are made
by the source of the committed ones, at another pace; the configurations are the committed ones with other addresses and
intervals.
"""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from grafana.source import rules
from grafana.source.files import as_yaml
from sidecar.embedded import Leash, free_port
from tests.ops.tools import tool

ROOT = Path(__file__).parents[2]
SIDECAR = (sys.executable, "-m", "sidecar")

PACE = 1 / 60
"""A minute of the rules is a second here."""

T = TypeVar("T")

TOPICS = (
    *("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "alerts", "snapshots"),
    *("misplaced", "decisions"),
)


@contextlib.contextmanager
def process(command: Sequence[str | Path], log: Path, cwd: Path = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and end it at the end of the block, or when we are killed."""
    leash = Leash()
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd
        )
        leash.hold(child.pid)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            leash.release()


def eventually(what: str, ask: Callable[[], T | None], within: float = 20.0, every: float = 0.1) -> T:
    """Ask until there is an answer."""
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            answer = ask()
            if answer:
                return answer
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(every)


def get(url: str, body: object = None) -> Any:
    """Ask a server of ours for JSON (or text, where it is none)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


class Receiver:
    """Receive what Alertmanager sends."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, dict[str, Any]]] = []
        notices = self.notices

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                notices.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def told(self, path: str, alert: str, status: str) -> dict[str, Any] | None:
        """Return the first notice of an alert that has this status."""
        for at, notice in list(self.notices):
            for found in notice["alerts"]:
                if at == path and found["labels"]["alertname"] == alert and found["status"] == status:
                    return dict(found)
        return None


@dataclass
class Stack:
    """Hold what runs, and how it is asked."""

    config: Path
    sidecar: str
    prometheus: str
    alertmanager: str
    receiver: Receiver
    logs: Path
    unique: str
    fleet: str | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, *arguments: str) -> str:
        """Run a command of the sidecar, and return what it wrote on standard output."""
        done = subprocess.run(
            [*SIDECAR, "--config", str(self.config), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def emit(self, path: Path) -> None:
        """Publish the records of a file."""
        self.command("emit", str(path))

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Ask Prometheus how it is now."""
        return self._ask("query", query=expr)

    def query_range(self, expr: str, seconds: float, step: float = 1.0) -> list[dict[str, Any]]:
        """Ask Prometheus how it was."""
        now = time.time()
        return self._ask("query_range", query=expr, start=str(now - seconds), end=str(now), step=str(step))

    def _ask(self, what: str, **parameters: str) -> list[dict[str, Any]]:
        url = f"{self.prometheus}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            answer = get(url)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters['query']}: {error.read().decode()}") from None
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """Return the alerts that are firing now."""
        return {found["metric"]["alertname"] for found in self.query('ALERTS{alertstate="firing"}')}


@contextlib.contextmanager
def stack(bootstrap: str, unique: str, folder: Path, *, with_fleet: bool = False) -> Iterator[Stack]:
    """Run it all.

    Args:
        bootstrap: a broker, perhaps without transactions.
        unique: what the names of topics and groups begin with.
        folder: for configurations, logs and data.
        with_fleet: whether a worker of the fleet runs as well.
    """
    ports = {name: free_port() for name in ("sidecar", "fleet", "prometheus", "alertmanager")}
    at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    config = folder / "sidecar.yaml"
    config.write_text(as_yaml(_settings(bootstrap, unique)))
    with contextlib.ExitStack() as running:
        receiver = running.enter_context(Receiver())
        processes = {}
        for name, port in (("run", "sidecar"), *((("fleet", "fleet"),) if with_fleet else ())):
            command = _command(config, name, ports[port])
            processes[port] = running.enter_context(process(command, folder / f"{port}.log"))
        running.enter_context(_alertmanager(folder, ports["alertmanager"], receiver.url))
        running.enter_context(_prometheus(folder, ports, with_fleet))
        eventually(f"the sidecar is ready (see {folder}/sidecar.log)", lambda: get(f"{at['sidecar']}/readyz"), 30)
        if with_fleet:
            eventually(f"the fleet view is ready (see {folder}/fleet.log)", lambda: get(f"{at['fleet']}/readyz"), 30)
        made = Stack(config, at["sidecar"], at["prometheus"], at["alertmanager"], receiver, folder, unique)
        made.fleet = at["fleet"] if with_fleet else None
        made.processes = processes
        eventually("Prometheus has scraped the sidecar", lambda: made.query("sidecar_build_info"))
        if with_fleet:
            eventually("and the fleet view", lambda: made.query("sidecar_fleet_build_info"))
        eventually("Alertmanager is there", lambda: get(f"{at['alertmanager']}/-/ready"))
        yield made


def _command(config: Path, name: str, port: int) -> tuple[str | Path, ...]:
    return (*SIDECAR, "--config", config, name, "--http", f"127.0.0.1:{port}")


def _settings(bootstrap: str, unique: str) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap_servers": [bootstrap]},
        "topics": {**{role: unique + role for role in TOPICS}, "partitions": 2},
        "tail": {
            "group_id": f"{unique}tail",
            "guarantee": "at_least_once",
            "commit_interval": 0.2,
            "fetch_max_wait": 0.05,
            "session_timeout": 2,
            "heartbeat_interval": 0.3,
        },
        "fleet": {
            "group_id": f"{unique}fleet",
            "commit_interval": 0.2,
            "rollup_interval": 0.5,
            "alert_interval": 0.5,
            "session_timeout": 2,
            "heartbeat_interval": 0.3,
        },
        "alerts": {"halt_after": 3, "hold": 0.5},
        "snapshot": {"interval": 2},
        "session": {"heartbeat": 1},
        "engine": {"max_wait": 1},
        "log": {"format": "json"},
    }


def _prometheus(
    folder: Path, ports: Mapping[str, int], with_fleet: bool
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run Prometheus on the committed configuration, at our pace and on our addresses."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{ports['alertmanager']}"]
    names = {"frontier-tail": ("tail", "sidecar"), "frontier-fleet": ("fleet", "fleet")}
    (folder / "targets").mkdir()
    for job in config["scrape_configs"]:
        file, port = names[job["job_name"]]
        assert job["file_sd_configs"] == [{"files": [f"targets/{file}*.yml"]}]
        if file == "tail" or with_fleet:
            (folder / f"targets/{file}-here.yml").write_text(json.dumps([{"targets": [f"127.0.0.1:{ports[port]}"]}]))
    (folder / "rules.yml").write_text(as_yaml(rules.for_prometheus(rules.Bounds(pace=PACE, stale=60))))
    (folder / "prometheus.yml").write_text(as_yaml(config))
    command = (
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
        "--log.level=warn",
    )
    return process(command, folder / "prometheus.log", folder)


def _alertmanager(folder: Path, port: int, receiver: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run Alertmanager on the committed configuration, with our receiver and without long waits."""
    config = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route.update(group_wait="500ms", group_interval="1s")
    for found in config["receivers"]:
        for hook in found["webhook_configs"]:
            hook["url"] = hook["url"].replace("http://localhost:9099", receiver)
    (folder / "alertmanager.yml").write_text(as_yaml(config))
    command = (
        tool("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
    return process(command, folder / "alertmanager.log", folder)
