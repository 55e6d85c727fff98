"""End to end: a fault in an agent's log, until somebody is woken; and every question of ours, asked of Prometheus."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grafana.source import rules
from sidecar.embedded import EmbeddedBroker
from tests.ops import runbooks
from tests.ops.expressions import filled, others, selectors, targets
from tests.ops.monitoring import PACE, ROOT, SIDECAR, Stack, eventually, get, stack
from tests.ops.tools import tool

CASE = ROOT / "tests/cases/merged-approval-rollback.jsonl"

VARIABLES = {"job": ".*", "instance": ".*", "window": "1m", "__rate_interval": "5s", "__range": "1m"}

EMPTY_HERE = {
    "SnapshotsFailing": "its value has series only while something fails, and nothing does",
}
"""Alerts whose value has no series in this run, and why; what they are made of has."""


@pytest.fixture(scope="module")
def monitored(embedded: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Give a sidecar that is monitored, with nothing on its topics yet."""
    tool("prometheus"), tool("prometheus-alertmanager")
    unique = f"monitored{time.time_ns()}."
    with stack(embedded.bootstrap, unique, tmp_path_factory.mktemp("monitored"), with_fleet=True) as found:
        yield found


@pytest.fixture(scope="module")
def faulty(monitored: Stack) -> Stack:
    """Give the same after the agent of one session has resumed from a checkpoint that merged two approvals."""
    eventually("nothing fires", lambda: not monitored.firing())
    monitored.emit(CASE)
    receiver = monitored.receiver
    eventually("the pager rings", lambda: receiver.told("/pager", "FrontierDegraded", "firing"))
    eventually("also for the action", lambda: receiver.told("/pager", "IrreversibleActionUnauthorized", "firing"))
    eventually("and because nobody answers", lambda: receiver.told("/pager", "HaltUnacknowledged", "firing"))
    return monitored


def test_a_fault_wakes_somebody(faulty: Stack) -> None:
    page = faulty.receiver.told("/pager", "FrontierDegraded", "firing")
    assert page is not None
    assert page["labels"]["severity"] == "page"
    assert "`sidecar halts list` names the sessions" in page["annotations"]["first"]
    assert page["annotations"]["runbook"] == "sidecar runbook FrontierDegraded"
    assert faulty.query("sidecar_open_halts")[0]["value"][1] == "3"
    assert not [path for path, _ in faulty.receiver.notices if path != "/pager"]


def test_the_runbooks_show_what_is_seen_then(faulty: Stack, tmp_path: Path) -> None:
    assert faulty.fleet is not None
    addresses = {"localhost:9464": faulty.sidecar, "localhost:9465": faulty.fleet, "localhost:9090": faulty.prometheus}
    places = {place: address.removeprefix("http://") for place, address in addresses.items()}
    wrong = []
    for found in runbooks.shown():
        output = runbooks.run(found.command, places, faulty.config, SIDECAR, tmp_path).replace(faulty.unique, "agent.")
        if runbooks.WRITE:
            runbooks.write(found.page, found.command, output)
        elif runbooks.timeless(output) != runbooks.timeless(found.output):
            wrong.append(f"{found.page}: $ {found.command}\n{output}")
    assert not wrong, "\n".join(wrong)


def test_its_repair_lets_them_sleep(faulty: Stack, tmp_path: Path) -> None:
    """Do what the runbook says: reconcile, and write a checkpoint that is right."""
    assert faulty.query("time() - sidecar_last_well_timestamp_seconds < 5")
    assert faulty.query("time() - sidecar_last_snapshot_timestamp_seconds < 10")
    for_long = 'sidecar_longest_in_status_seconds{status="corrupt"} > 0'
    eventually("it is seen that it lasts", lambda: faulty.query(for_long))
    (repair,) = re.findall(r"```jsonl\n(.*?)```", runbooks.PAGES["FrontierDegraded"].read_text(), re.DOTALL)
    (tmp_path / "repair.jsonl").write_text(repair)
    faulty.emit(tmp_path / "repair.jsonl")
    receiver = faulty.receiver
    eventually("it is over", lambda: receiver.told("/pager", "FrontierDegraded", "resolved"))
    eventually("the halts wait no more", lambda: receiver.told("/pager", "HaltUnacknowledged", "resolved"))
    assert faulty.query("sum(sidecar_open_halts)")[0]["value"][1] == "0"
    assert faulty.query('sidecar_frontier_degraded{status="verified"}')[0]["value"][1] == "1"
    # An action that was carried out is not undone by it: that alert ends by itself, later.
    assert receiver.told("/pager", "IrreversibleActionUnauthorized", "resolved") is None


@pytest.fixture(scope="module")
def busy(monitored: Stack) -> Stack:
    """Give the same after a fleet with every kind of fault has run, somebody wrote garbage, and agents have asked."""
    monitored.command("simulate", "--sessions", "60", "--agents", "30", "--fault-rate", "0.7", "--seed", "3")
    garbage = monitored.logs / "garbage.jsonl"
    garbage.write_text("no record\n" * 5)

    def ask() -> bool:
        """Keep everything moving, until Prometheus has seen it move."""
        monitored.emit(garbage)
        for action in ("deploy-b", "never-allowed"):
            get(f"{monitored.sidecar}/v1/authorize", {"session_id": "migrate", "action_id": action})
        moving = "sum(rate(sidecar_dead_letters_total[5s])) > 0 and sum(rate(sidecar_guard_requests_total[5s])) > 0"
        return bool(monitored.query(moving)) and "FrontierDegraded" in monitored.firing()

    eventually("Prometheus has seen it", ask, 30)
    return monitored


def test_every_query_of_the_dashboards_has_series(busy: Stack) -> None:
    empty = []
    for target in (*targets(), *others()):
        expr = filled(target.expr, VARIABLES)
        found = busy.query(expr) if target.instant else busy.query_range(expr, 30)
        values = [value for series in found for _, value in series.get("values", [series.get("value")])]
        if all(value == "NaN" for value in values):
            empty.append(f"{target}: {expr}")
    assert not empty, "\n".join(empty)


def test_every_expression_of_the_alerts_has_series(busy: Stack) -> None:
    empty = {}
    for alert in rules.every(rules.Bounds(pace=PACE)):
        for selector in selectors(alert.value):
            assert busy.query(selector), f"{alert.name}: {selector}"
        busy.query(alert.expr)
        if not busy.query(alert.value):
            empty[alert.name] = alert.value
    assert set(empty) == set(EMPTY_HERE)


def test_a_tail_that_dies_takes_no_alert_with_it(busy: Stack) -> None:
    """The gauges of a process go with it; that its sessions are degraded does not."""
    busy.processes["sidecar"].kill()
    receiver = busy.receiver
    eventually("the pager rings for the tail", lambda: receiver.told("/pager", "SidecarDown", "firing"))
    # FrontierDegraded goes on for five minutes (here: seconds) after it is over, and this is longer.
    time.sleep(5)
    assert not busy.query("sidecar_open_halts")
    assert {"FrontierDegraded", "SidecarDown"} <= busy.firing()


def test_prometheus_and_alertmanager_take_the_committed_configurations() -> None:
    deploy = ROOT / "deploy"
    for command in (
        (tool("promtool"), "check", "config", deploy / "prometheus/prometheus.yml"),
        (tool("amtool"), "check-config", deploy / "alertmanager/alertmanager.yml"),
    ):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=FrontierDegraded", "severity=page"], "pager"),
        (["alertname=RecoveryExposed", "severity=warning"], "team"),
    ],
)
def test_who_is_told(labels: list[str], receiver: str) -> None:
    config = ROOT / "deploy/alertmanager/alertmanager.yml"
    command = [tool("amtool"), "config", "routes", "test", f"--config.file={config}", *labels]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == receiver, done.stderr
