"""Metrics, health, the HTTP server and the logs."""

import asyncio
import io
import json
import logging
import math
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.engine.limits import Limits
from sidecar.engine.rules import CATALOGUE, INFERABLE
from sidecar.observe import logs
from sidecar.observe.catalogue import SERIES, reference_markdown
from sidecar.observe.health import Health
from sidecar.observe.http import HttpServer, ServeError
from sidecar.observe.metrics import Metrics, metrics_catalogue
from sidecar.protocol.decode import decode
from sidecar.protocol.outputs import Finding, Source, Subject
from sidecar.protocol.records import KINDS

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/cases").glob("*.jsonl"))
TOPICS = ("agent.events", "agent.compactions")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(metrics: Metrics) -> Samples:
    """Return every sample by name and labels, as Prometheus would read it."""
    body, _ = metrics.exposition()
    samples: Samples = {}
    for family in parse_text(body.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = sample.value
    return samples


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return scrape(metrics)[name, tuple(sorted(labels.items()))]


def records(path: Path) -> list[Arrival]:
    arrivals: list[Arrival] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record, digest = decode(line)
        except Exception:
            continue
        arrivals.append((record, digest, Source(path.name, 0, number)))
    return arrivals


def arrival(**fields: Any) -> Arrival:
    record, digest = decode(json.dumps(fields).encode())
    return record, digest, Source("agent.events", 0, 0)


# --- metrics: what is there from the start --------------------------------------------------------


def test_every_series_is_there_at_zero_and_never_nan() -> None:
    samples = scrape(Metrics(topics=TOPICS, started=1000.0))
    set_from_the_start = {
        "sidecar_build_info",
        "sidecar_last_progress_timestamp_seconds",
        "sidecar_last_snapshot_timestamp_seconds",
        "sidecar_last_well_timestamp_seconds",
        "sidecar_start_timestamp_seconds",
    }
    for (name, _), number in samples.items():
        assert not math.isnan(number)
        assert number == 0 or name in set_from_the_start
    assert samples["sidecar_last_progress_timestamp_seconds", ()] == 1000.0

    def labels(name: str, *keys: str) -> set[tuple[str, ...]]:
        return {tuple(dict(found)[key] for key in keys) for other, found in samples if other == name}

    kinds = [*KINDS, "opaque"]
    assert labels("sidecar_records_total", "topic", "kind") == {(t, k) for t in TOPICS for k in kinds}
    assert labels("sidecar_unreadable_records_total", "topic") == {(topic,) for topic in TOPICS}
    assert labels("sidecar_dead_letters_total", "topic") == {(topic,) for topic in TOPICS}
    assert labels("sidecar_findings_total", "rule") == {(rule,) for rule in CATALOGUE}
    assert ("constraint_dropped", "critical") in labels("sidecar_findings_total", "rule", "severity")
    assert labels("sidecar_halts_total", "status") == {("halt",), ("clear",)}
    assert {status for (status,) in labels("sidecar_frontier_degraded", "status")} == {
        "uncompacted", "verified", "stale", "unjudged", "unverified", "degraded", "lossy", "corrupt"
    }  # fmt: skip
    for name in ("sidecar_survival_checked_total", "sidecar_survival_kept_total"):
        assert labels(name, "what", "level") == {
            (what, level) for what in ("constraint", "fact", "referent") for level in ("1", "2", "3", "4+")
        }
    assert ("sidecar_broker_up", ()) in samples


def test_the_series_are_those_of_the_catalogue() -> None:
    metrics = Metrics(topics=TOPICS)
    metrics.set_lags({("agent.events", 0): 3})
    body, _ = metrics.exposition()
    exposed = {}
    for family in parse_text(body.decode()):
        name = family.name + "_total" if family.type == "counter" else family.name
        exposed[name] = (family.type, family.documentation)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(SERIES[name].labels)
            assert sample.name.startswith("sidecar_") and not sample.name.endswith("_created")
    assert exposed == {series.name: (series.type, series.help) for series in metrics_catalogue()}


def test_names_follow_the_conventions() -> None:
    for series in metrics_catalogue():
        assert series.name.startswith("sidecar_")
        assert series.name.endswith("_total") == (series.type == "counter")
        assert bool(series.buckets) == (series.type == "histogram")
        assert list(series.buckets) == sorted(set(series.buckets))
        assert not series.name.endswith(("_ms", "_millis", "_count", "_sum", "_bucket"))
        assert series.help.endswith(".")
        assert bool(series.labels) == bool(series.values)


def test_without_brokers_there_is_no_broker_series() -> None:
    metrics = Metrics(broker=False)
    metrics.set_broker_up(True)
    assert ("sidecar_broker_up", ()) not in scrape(metrics)


def test_two_in_a_process_do_not_collide() -> None:
    first, second = Metrics(topics=TOPICS), Metrics(topics=TOPICS)
    first.observe_batch({("agent.events", "fact"): 2}, now=1.0)
    assert value(first, "sidecar_records_total", topic="agent.events", kind="fact") == 2
    assert value(second, "sidecar_records_total", topic="agent.events", kind="fact") == 0


def test_a_registry_can_be_given() -> None:
    registry = CollectorRegistry()
    assert Metrics(registry).registry is registry
    assert registry.get_sample_value("sidecar_open_halts") == 0


def test_the_reference_is_the_code() -> None:
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == reference_markdown(), "run `make docs`"
    for series in metrics_catalogue():
        assert f"## `{series.name}" in reference_markdown()


def test_the_reference_can_be_printed() -> None:
    command = [sys.executable, "-m", "sidecar.observe.catalogue"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout == reference_markdown()


# --- metrics: what is counted ---------------------------------------------------------------------


def test_a_batch() -> None:
    metrics = Metrics(topics=TOPICS, started=0.0)
    metrics.observe_batch(
        {("agent.events", "fact"): 3, ("agent.events", "weather"): 2, ("agent.compactions", "summary"): 1},
        {"agent.events": 4},
        now=50.0,
    )
    assert value(metrics, "sidecar_records_total", topic="agent.events", kind="fact") == 3
    assert value(metrics, "sidecar_records_total", topic="agent.events", kind="opaque") == 2
    assert value(metrics, "sidecar_records_total", topic="agent.compactions", kind="summary") == 1
    assert value(metrics, "sidecar_unreadable_records_total", topic="agent.events") == 4
    assert value(metrics, "sidecar_batch_records_sum") == 10
    assert value(metrics, "sidecar_batch_records_bucket", le="10.0") == 1
    assert value(metrics, "sidecar_last_progress_timestamp_seconds") == 50.0


def test_an_empty_batch_is_no_progress() -> None:
    metrics = Metrics(topics=TOPICS, started=0.0)
    metrics.observe_batch({}, now=50.0)
    assert value(metrics, "sidecar_batch_records_count") == 0
    assert value(metrics, "sidecar_last_progress_timestamp_seconds") == 0


def test_labels_do_not_grow_with_what_is_read() -> None:
    metrics = Metrics(topics=TOPICS)
    metrics.observe_batch({("other", "opaque"): 1}, {"other": 1}, now=0.0)
    metrics.observe_dead_letters({"other": 1})
    before = len(scrape(metrics))
    for number in range(500):
        metrics.observe_batch({(f"topic-{number}", f"kind-{number}"): 1}, {f"topic-{number}": 1}, now=0.0)
        metrics.observe_dead_letters({f"topic-{number}": 1})
    assert len(scrape(metrics)) == before
    assert value(metrics, "sidecar_records_total", topic="other", kind="opaque") == 501


def test_dead_letters() -> None:
    metrics = Metrics(topics=TOPICS)
    metrics.observe_dead_letters({"agent.events": 2})
    assert value(metrics, "sidecar_dead_letters_total", topic="agent.events") == 2


def test_detection_latency() -> None:
    metrics = Metrics()
    metrics.observe_detection(from_record=[0.2, -3.0], from_fetch=[0.004])
    assert value(metrics, "sidecar_detection_from_record_seconds_count") == 2
    assert value(metrics, "sidecar_detection_from_record_seconds_sum") == 0.2  # clocks differ: below zero is zero
    assert value(metrics, "sidecar_detection_from_fetch_seconds_bucket", le="0.005") == 1
    assert value(metrics, "sidecar_detection_from_fetch_seconds_bucket", le="0.0025") == 0


def test_what_the_guard_was_asked() -> None:
    metrics = Metrics()
    before = len(scrape(metrics))
    metrics.observe_guard("authorize", "allowed", (), 0.002)
    metrics.observe_guard("authorize", "refused", ("open_halt", "checkpoint_in_force"), 0.2)
    metrics.observe_guard("gc", "reclaim", (), 0.0)
    metrics.observe_guard("other", "not_shown", ("bad_request",), 0.0)
    metrics.count_guard_error()
    metrics.set_guard_in_flight(3)
    assert value(metrics, "sidecar_guard_requests_total", route="authorize", decision="allowed") == 1
    assert value(metrics, "sidecar_guard_requests_total", route="authorize", decision="refused") == 1
    assert value(metrics, "sidecar_guard_refusals_total", code="open_halt") == 1
    assert value(metrics, "sidecar_guard_refusals_total", code="rule") == 0
    assert value(metrics, "sidecar_guard_seconds_bucket", route="authorize", le="0.0025") == 1
    assert value(metrics, "sidecar_guard_seconds_count", route="authorize") == 2
    assert value(metrics, "sidecar_guard_errors_total") == 1
    assert value(metrics, "sidecar_guard_in_flight") == 3
    assert len(scrape(metrics)) == before


def test_lag_follows_the_assignment() -> None:
    metrics = Metrics()
    metrics.set_lags({("t", 0): 5, ("t", 1): -1})
    assert value(metrics, "sidecar_lag_records", topic="t", partition="0") == 5
    assert value(metrics, "sidecar_lag_records", topic="t", partition="1") == 0
    metrics.set_lags({("t", 1): 7})
    assert [labels for name, labels in scrape(metrics) if name == "sidecar_lag_records"] == [
        (("partition", "1"), ("topic", "t"))
    ]
    metrics.set_lags({})
    assert not [name for name, _ in scrape(metrics) if name == "sidecar_lag_records"]


def test_broker_up() -> None:
    metrics = Metrics()
    for up in (True, False):
        metrics.set_broker_up(up)
        assert value(metrics, "sidecar_broker_up") == up


@pytest.mark.parametrize(("level", "label"), [(1, "1"), (3, "3"), (4, "4+"), (10**12, "4+")])
def test_survival_by_level(level: int, label: str) -> None:
    metrics = Metrics()
    metrics.observe_outcome(0, Engine(), Outcome([], [], {("fact", level): [5, 3]}))
    assert value(metrics, "sidecar_survival_checked_total", what="fact", level=label) == 5
    assert value(metrics, "sidecar_survival_kept_total", what="fact", level=label) == 3


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_the_gauges_are_what_the_engine_says(batch: int) -> None:
    """Fold every case, in batches: at each step the metrics agree with a walk over the engine."""
    assert CASES
    metrics, engine = Metrics(topics=TOPICS), Engine(Limits(max_wait=1.0))
    findings: Counter[tuple[str, str]] = Counter()
    halts: Counter[str] = Counter()

    def observe(outcome: Outcome) -> None:
        findings.update((f.rule, f.severity) for f in outcome.findings)
        halts.update(h.status for h in outcome.halts)
        metrics.observe_outcome("0", engine, outcome, seconds=0.001)

    everything = [one for case in CASES for one in records(case)]
    for start in range(0, len(everything), batch):
        observe(engine.fold(everything[start : start + batch], now=0.0))
        assert metrics.registry.get_sample_value("sidecar_open_halts") == engine.open_halts()
    assert metrics.registry.get_sample_value("sidecar_reorder_waiting_records") == engine.counters.waiting
    observe(engine.expire(now=10.0))
    observe(engine.finish())

    samples = scrape(metrics)
    for status, number in engine.status_counts().items():
        assert samples["sidecar_frontier_degraded", (("status", status),)] == number
    assert samples["sidecar_sessions", ()] == len(engine)
    assert samples["sidecar_open_halts", ()] == sum(len(state.open_halts) for state in engine.states()) > 0
    assert samples["sidecar_reorder_waiting_records", ()] == samples["sidecar_reorder_waiting_sessions", ()] == 0
    assert samples["sidecar_duplicate_records_total", ()] == engine.counters.duplicates > 0
    assert samples["sidecar_late_records_total", ()] == engine.counters.late
    assert samples["sidecar_conflicting_records_total", ()] == engine.counters.conflicts > 0
    assert samples["sidecar_missing_positions_total", ()] == engine.counters.gaps > 0
    for (rule, severity), number in findings.items():
        assert samples["sidecar_findings_total", (("rule", rule), ("severity", severity))] == number
    # The findings of all cases are of every rule, so a severity that is not declared would show as a new series.
    assert sum(name == "sidecar_findings_total" for name, _ in samples) == len(CATALOGUE) + 1 + len(INFERABLE)
    for status in ("halt", "clear"):
        assert samples["sidecar_halts_total", (("status", status),)] == halts[status] > 0
    checked = {what: sum(v for (name, labels), v in samples.items()
                         if name == "sidecar_survival_checked_total" and ("what", what) in labels)
               for what in ("constraint", "fact", "referent")}  # fmt: skip
    assert all(checked.values()), checked


def test_tasks_add_up_and_leave() -> None:
    metrics, first, second = Metrics(), Engine(), Engine()
    ahead = [arrival(kind="opaque", session_id=name, seq=2) for name in ("a", "b")]
    metrics.observe_outcome(0, first, first.fold(ahead, now=0.0))
    metrics.observe_outcome(1, second, second.fold([arrival(kind="x", session_id="c", seq=1)], now=0.0))
    assert value(metrics, "sidecar_sessions") == 3
    assert value(metrics, "sidecar_frontier_degraded", status="uncompacted") == 3
    assert value(metrics, "sidecar_reorder_waiting_records") == 2
    assert value(metrics, "sidecar_reorder_waiting_sessions") == 2
    metrics.release(0)
    assert value(metrics, "sidecar_sessions") == 1
    assert value(metrics, "sidecar_frontier_degraded", status="uncompacted") == 1
    assert value(metrics, "sidecar_reorder_waiting_records") == 0
    metrics.release("never had")
    metrics.release(1)
    assert value(metrics, "sidecar_sessions") == 0


def test_a_restored_engine_shows_in_the_gauges_and_not_in_the_counters() -> None:
    engine = Engine()
    twice = [arrival(kind="action", session_id="s", seq=1, action_id="a", irreversible=True)] * 2
    engine.fold(twice, now=0.0)
    restored = Engine.load(engine.dump())
    metrics = Metrics()
    metrics.adopt(0, restored)
    assert value(metrics, "sidecar_sessions") == 1
    assert value(metrics, "sidecar_open_halts") == 1
    assert value(metrics, "sidecar_frontier_degraded", status="degraded") == 1
    assert value(metrics, "sidecar_duplicate_records_total") == 0
    metrics.observe_outcome(0, restored, restored.fold(twice, now=0.0))
    assert value(metrics, "sidecar_duplicate_records_total") == 2
    assert value(metrics, "sidecar_open_halts") == 1
    assert value(metrics, "sidecar_halts_total", status="halt") == 0


# --- health ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Do something to the health, then ask it: the words that the reasons contain, or nothing where all is well."""

    at: float
    do: Callable[[Health, float], None] | None
    dead: str = ""
    unready: str = ""


def assign(*tasks: str) -> Callable[[Health, float], None]:
    return lambda health, now: health.assign(tasks, now)


def assign_restored(*tasks: str) -> Callable[[Health, float], None]:
    def do(health: Health, now: float) -> None:
        health.assign(tasks, now)
        for task in tasks:
            health.restored(task, now)
            health.observe(task, 0, 0, now)

    return do


def observe(task: str, position: int, lag: int | None, seen_at: float | None = None) -> Callable[[Health, float], None]:
    return lambda health, now: health.observe(task, position, lag, now, seen_at=seen_at)


def restored(task: str) -> Callable[[Health, float], None]:
    return lambda health, now: health.restored(task, now)


def broker(up: bool) -> Callable[[Health, float], None]:
    return lambda health, now: health.broker(up, now)


def joining(health: Health, now: float) -> None:
    health.joining(now)


HISTORIES: dict[str, list[Step]] = {
    "starting up: alive, and not ready until restored and caught up": [
        Step(0, None, unready="waiting for the group to assign"),
        Step(1, assign("0"), unready="task 0: restoring, lag unknown"),
        Step(2, observe("0", 10, 5000), unready="task 0: restoring, 5000 to read"),
        Step(3, restored("0"), unready="task 0: catching up, 5000 to read (ready at 100)"),
        Step(4, observe("0", 4900, 101), unready="catching up, 101 to read"),
        Step(5, observe("0", 4901, 100)),
    ],
    "within the bound while restoring is not yet ready": [
        Step(0, assign("0"), unready="restoring"),
        Step(1, observe("0", 1, 0), unready="restoring, 0 to read"),
        Step(2, restored("0"), unready="catching up"),
        Step(3, observe("0", 1, 0)),
    ],
    "a burst after catching up does not make it unready (kminion #7)": [
        Step(0, assign_restored("0")),
        Step(1, observe("0", 5, 1_000_000)),
        Step(20, observe("0", 6, 1_000_000)),
    ],
    "idle is not an error (Burrow #38)": [
        Step(0, assign_restored("0")),
        *[Step(at, observe("0", 0, 0)) for at in range(20, 2000, 20)],
    ],
    "slow, but it advances": [
        Step(0, assign_restored("0")),
        *[Step(at, observe("0", at, 10**6)) for at in range(29, 3000, 29)],
    ],
    "stalled with something to read (aiokafka after a rebalance)": [
        Step(0, assign_restored("0")),
        Step(10, observe("0", 7, 50)),
        *[Step(at, observe("0", 7, 50)) for at in range(11, 41)],
        Step(40.5, observe("0", 7, 51), dead="task 0: no progress for 30 s, 51 to read"),
        Step(41, observe("0", 8, 50)),
    ],
    "stalled fetcher that repeats the lag it last saw": [
        Step(0, assign_restored("0")),
        Step(10, observe("0", 7, 0, seen_at=10)),
        Step(40, observe("0", 7, 0, seen_at=10)),
        Step(41, observe("0", 7, 0, seen_at=10), dead="task 0: no progress for 31 s, 0 to read"),
        Step(42, observe("0", 7, 0, seen_at=42)),
    ],
    "a fetch time in the future counts as now": [
        Step(0, assign_restored("0")),
        Step(10, observe("0", 0, 0, seen_at=1e9)),
        Step(41, None, dead="no progress"),
    ],
    "nobody reports any more": [
        Step(0, assign_restored("0")),
        Step(30, None),
        Step(31, None, dead="task 0: no progress for 31 s"),
    ],
    "going back is no progress": [
        Step(0, assign_restored("0")),
        Step(10, observe("0", 90, 10)),
        Step(30, observe("0", 50, 50)),
        Step(40, observe("0", 51, 49)),
        Step(60, observe("0", 50, 50)),
        Step(71, None, dead="no progress for 31 s"),
    ],
    "one of several tasks": [
        Step(0, assign_restored("0", "1")),
        Step(20, observe("0", 5, 1)),
        Step(31, observe("0", 6, 1), dead="task 1: no progress"),
        Step(32, lambda health, now: health.revoke(["1"])),
    ],
    "a standby without partitions is ready": [
        Step(0, assign()),
        Step(5000, None),
    ],
    "the group never assigns": [
        Step(300, None, unready="waiting for the group"),
        Step(301, None, dead="the group has assigned nothing for 301 s", unready="waiting"),
        Step(302, assign()),
    ],
    "a rebalance keeps what stays, and starts anew what comes": [
        Step(0, assign_restored("0", "1")),
        Step(10, joining, unready="waiting for the group"),
        Step(12, joining, unready="waiting for the group"),
        Step(15, assign("1", "2"), unready="task 2: restoring"),
        Step(16, restored("2"), unready="task 2: catching up"),
        Step(17, observe("2", 0, 0)),
        Step(18, observe("0", 0, 10**9)),  # given away: what it says no longer counts
    ],
    "the brokers are away: not ready, and a restart would not help": [
        Step(0, assign_restored("0")),
        Step(10, observe("0", 7, 50)),
        Step(15, broker(False), unready="the brokers have not answered for 0 s"),
        Step(500, broker(False), unready="the brokers have not answered for 485 s"),
        Step(501, broker(True)),
        Step(531, observe("0", 7, 50)),
        Step(532, None, dead="no progress for 31 s"),
    ],
    "the brokers are away at the start": [
        Step(1, broker(False), unready="brokers"),
        Step(1000, None, unready="brokers"),
        Step(1001, broker(True), unready="waiting for the group"),
        Step(1302, None, dead="the group has assigned nothing for 301 s", unready="waiting"),
    ],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_health(name: str) -> None:
    health = Health(0.0, stall_after=30.0, join_after=300.0, ready_lag=100)
    for step in HISTORIES[name]:
        if step.do:
            step.do(health, step.at)
        for verdict, expected in ((health.live(step.at), step.dead), (health.ready(step.at), step.unready)):
            assert verdict.ok == (not expected), (step, verdict)
            assert verdict.ok == (not verdict.reasons)
            assert expected in "; ".join(verdict.reasons), (step, verdict)


def test_asking_changes_nothing() -> None:
    health = Health(0.0)
    health.assign(["0"], 0.0)
    assert [health.live(1e6).ok, health.live(1.0).ok, health.live(1e6).ok] == [False, True, False]


# --- the server -----------------------------------------------------------------------------------


async def get(server: HttpServer, path: str, **headers: str) -> tuple[int, str, str]:
    url = f"http://{server.address}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_server() -> None:
    clock, health, metrics = Clock(), Health(0.0, stall_after=30.0), Metrics(topics=TOPICS)

    async def hello(request: web.Request) -> web.Response:
        """Say hello."""
        return web.json_response({"hello": (await request.json())["name"]})

    server = HttpServer("127.0.0.1", 0, metrics, health, clock=clock)
    server.add_routes([web.post("/v1/hello", hello)])
    assert server.address == "127.0.0.1:0"
    await server.start()
    try:
        assert server.address != "127.0.0.1:0"
        status, content_type, text = await get(server, "/")
        assert (status, content_type) == (200, "text/plain; charset=utf-8")
        for line in ("/metrics", "/healthz", "/readyz", "POST  /v1/hello  Say hello."):
            assert line in text

        status, content_type, text = await get(server, "/metrics")
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        names = {series.name.removesuffix("_total") for series in metrics_catalogue()}
        assert {family.name for family in parse_text(text)} == names
        status, content_type, text = await get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert content_type.startswith("application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")
        assert {family.name for family in parse_openmetrics(text)} == names  # type: ignore[no-untyped-call]

        assert (await get(server, "/healthz"))[0] == 200
        status, content_type, text = await get(server, "/readyz")
        assert (status, content_type) == (503, "application/json")
        assert json.loads(text) == {
            "status": "failing", "reasons": ["waiting for the group to assign partitions"], "tasks": {}
        }  # fmt: skip

        health.assign([0], 0.0)
        health.restored(0, 0.0)
        health.observe(0, 12, 0, 0.0)
        status, _, text = await get(server, "/readyz")
        assert status == 200
        assert json.loads(text) == {
            "status": "ok",
            "reasons": [],
            "tasks": {"0": {"restored": True, "caught_up": True, "position": 12, "lag": 0, "seconds_since_well": 0.0}},
        }
        clock.now = 31.0
        status, _, text = await get(server, "/healthz")
        assert (status, json.loads(text)["reasons"]) == (503, ["task 0: no progress for 31 s, 0 to read"])

        assert (await get(server, "/nothing"))[0] == 404
        url = f"http://{server.address}/v1/hello"
        async with aiohttp.ClientSession() as session, session.post(url, json={"name": "you"}) as response:
            assert await response.json() == {"hello": "you"}
    finally:
        await server.stop()
    await server.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(server, "/")


async def test_a_taken_port_names_the_option() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HttpServer("127.0.0.1", port, Metrics(), Health(0.0))
        with pytest.raises(
            ServeError, match=rf"127\.0\.0\.1:{port}: something else listens there; .* --http HOST:PORT"
        ):
            await server.start()
    await server.start()  # what failed can be tried again
    await server.stop()


async def test_an_address_of_another_machine() -> None:
    with pytest.raises(ServeError, match=r"192\.0\.2\.1:1: .*--http"):
        await HttpServer("192.0.2.1", 1, Metrics(), Health(0.0)).start()


async def test_ipv6() -> None:
    server = HttpServer("::1", 0, Metrics(), Health(0.0))
    try:
        await server.start()
    except ServeError:
        pytest.skip("NOT TESTED! this machine has no IPv6")
    assert server.address.startswith("[::1]:")
    try:
        assert (await get(server, "/metrics"))[0] == 200
    finally:
        await server.stop()


async def test_what_is_below_a_mounted_path_comes_as_it_is() -> None:
    server = HttpServer("127.0.0.1", 0, Metrics(), Health(0.0))
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.rel_url.raw_path))
        return web.Response(text="mounted")

    server.mount("/v9/", handler, [("GET", "/v9/{id}", "Something.")])
    await server.start()
    try:
        assert server.url == f"http://127.0.0.1:{server.port}"
        for method, path in (("GET", "/v9/"), ("PUT", "/v9/a%2Fb/%0A"), ("PROPFIND", "/v9/{x}")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).endswith(b"mounted")
            writer.close()
            assert seen.pop() == (method, path)
        assert (await get(server, "/v8/x"))[0] == 404
        assert "GET   /v9/{id}  Something." in (await get(server, "/"))[2]
    finally:
        await server.stop()


async def test_a_scrape_waits_for_nothing() -> None:
    """Scrape while an engine works: the answer comes from memory, whatever the brokers do."""
    metrics, engine = Metrics(topics=TOPICS), Engine()
    server = HttpServer("127.0.0.1", 0, metrics, Health(0.0))
    await server.start()
    try:
        batch = [arrival(kind="x", session_id=str(number), seq=1) for number in range(1000)]
        metrics.observe_outcome(0, engine, engine.fold(batch, now=0.0))
        answers = await asyncio.gather(*[get(server, "/metrics") for _ in range(20)])
        assert all("sidecar_sessions 1000.0" in text for _, _, text in answers)
    finally:
        await server.stop()


# --- logs -----------------------------------------------------------------------------------------


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # so that the set-up does not close pytest's
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    for name in ("aiokafka", "aiohttp", "asyncio", "kafka"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FINDING = Finding(
    finding_id="f1",
    rule="edge_hallucinated",
    severity="critical",
    disposition="discard",
    session_id="s1",
    subject=Subject("checkpoint", "c1"),
    position=9,
    evidence={"witness": [3], "quote": "what the user said"},
)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.usefixtures("logging_restored")
def test_json_lines_off_a_terminal() -> None:
    stream = io.StringIO()
    logs.setup(stream=stream)
    logs.get_logger("sidecar.tail").info("assigned", partitions=4)
    logging.getLogger("elsewhere").info("from %s", "elsewhere", extra={"more": 1})
    first, second = lines(stream)
    assert first.pop("timestamp").endswith("Z") and second.pop("timestamp").endswith("Z")
    assert first == {"event": "assigned", "partitions": 4, "level": "info", "logger": "sidecar.tail"}
    assert second == {"event": "from elsewhere", "more": 1, "level": "info", "logger": "elsewhere"}


@pytest.mark.usefixtures("logging_restored")
def test_text_on_a_terminal() -> None:
    stream = Terminal()
    logs.setup(stream=stream)
    logs.get_logger().warning("assigned", session="\x1b[2Jgone")
    text = stream.getvalue()
    assert "assigned" in text and "\x1b[2J" not in text and "\\x1b[2Jgone" in text
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


@pytest.mark.usefixtures("logging_restored")
@pytest.mark.parametrize(("format", "is_json"), [("json", True), ("pretty", False)])
def test_the_format_can_be_chosen(format: logs.Format, is_json: bool) -> None:
    stream: io.StringIO = Terminal() if is_json else io.StringIO()
    logs.setup(format=format, stream=stream)
    logs.get_logger().info("event", text="two\nlines")
    assert stream.getvalue().startswith("{") == is_json
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.usefixtures("logging_restored")
def test_libraries_say_less() -> None:
    stream = io.StringIO()
    logs.setup(level="debug", stream=stream)
    for name in ("aiokafka.consumer.fetcher", "aiohttp.access", "asyncio"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("news")
    logs.get_logger().debug("mine")
    assert [line["event"] for line in lines(stream)] == ["news"] * 3 + ["mine"]


@pytest.mark.usefixtures("logging_restored")
def test_the_level_holds_for_libraries_too() -> None:
    stream = io.StringIO()
    logs.setup(level="error", library_level="debug", stream=stream)
    logging.getLogger("aiokafka").warning("news")
    logs.get_logger().warning("mine")
    logging.getLogger("aiokafka").error("failure")
    assert [line["event"] for line in lines(stream)] == ["failure"]


@pytest.mark.usefixtures("logging_restored")
def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logs.get_logger().info("hello")
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["event"] == "hello"


@pytest.mark.usefixtures("logging_restored")
def test_errors_come_with_their_trace() -> None:
    stream = io.StringIO()
    logs.setup(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logs.get_logger().exception("failed")
        logging.getLogger("aiokafka").exception("failed too")
    assert [("ValueError: broken" in line["exception"], line["level"]) for line in lines(stream)] == [
        (True, "error")
    ] * 2


@pytest.mark.usefixtures("logging_restored")
def test_setting_up_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.setup(stream=first)
    logger = logs.get_logger()
    logger.info("one")
    logs.setup(level="warning", stream=second)
    logger.info("two")
    logger.warning("three")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["three"]


@pytest.mark.usefixtures("logging_restored")
def test_a_finding_is_one_line_without_the_sessions_words() -> None:
    stream = io.StringIO()
    logs.setup(stream=stream)
    logs.log_finding(logs.get_logger("sidecar.findings"), FINDING)
    (line,) = lines(stream)
    line.pop("timestamp")
    assert line == {
        "event": "finding", "level": "critical", "logger": "sidecar.findings", "rule": "edge_hallucinated",
        "severity": "critical", "disposition": "discard", "session": "s1", "subject": "checkpoint:c1", "position": 9,
        "finding_id": "f1",
    }  # fmt: skip


@pytest.mark.usefixtures("logging_restored")
@pytest.mark.parametrize(("level", "shown"), [("debug", 1), ("critical", 1), ("error", 1)])
def test_a_finding_has_the_level_of_its_severity(level: logs.Level, shown: int) -> None:
    stream = io.StringIO()
    logs.setup(level=level, stream=stream)
    logs.log_finding(logs.get_logger(), FINDING)
    assert len(lines(stream)) == shown
    assert ("evidence" in lines(stream)[0]) == (level == "debug")
