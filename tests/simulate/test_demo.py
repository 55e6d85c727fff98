"""The demo flags what it planted, says so, and notices when that is not so."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog
from aiokafka.admin import AIOKafkaAdminClient
from rich.console import Console

from sidecar import embedded
from sidecar.demo import demo, direct, play
from sidecar.demo.score import Score, quantile
from sidecar.engine.fold import Engine, Outcome
from sidecar.protocol.outputs import Finding, Halt, Source, Subject
from sidecar.simulate import FAULTS, Planted
from tests.conftest import missing
from tests.kafka.broker import KafkaBroker

ANY_PORT = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def logging_left_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "available", lambda: "The embedded broker is not built for this machine.")


async def run(width: int | None = None, **arguments) -> tuple[int, str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=width is not None, width=width)
    code = await demo(console=console, **{"http": ANY_PORT, "seconds": 2.5, **arguments})
    return code, out.getvalue()


def figures(output: str, row: str) -> list[int]:
    (line,) = [line for line in output.splitlines() if line.startswith(f"{row} ")]
    return [int(word) for word in line.removeprefix(row).split()[:5]]


async def test_without_a_broker_it_runs_on_the_engine_and_says_so(no_broker):
    code, output = await run()
    assert code == 0
    assert "not built for this machine" in output and "no Kafka is involved" in output
    sessions, planted, flagged, missed, unexpected = figures(output, "all")
    assert (sessions, missed, unexpected) == (168, 0, 0)
    assert planted == flagged > 100
    assert figures(output, "(no fault)")[0] == pytest.approx(84, abs=1)
    assert "Everything planted was flagged, and nothing else." in output
    assert "\x1b" not in output, "plain where nobody watches"
    assert {line.split(maxsplit=1)[0] for line in output.splitlines() if line.strip()} >= set(FAULTS), (
        "every kind is in it"
    )


async def test_it_fits_a_narrow_terminal(no_broker):
    code, output = await run(width=80, sessions=42)
    assert code == 0
    table = output.rpartition("Planted against flagged")[2]
    assert "unexpected" in table and "by rule" not in table


async def test_a_judge_that_misses_something_or_invents_it_fails(no_broker, monkeypatch):
    class Careless(Engine):
        def fold(self, arrivals, now) -> Outcome:
            outcome = super().fold(arrivals, now)
            for finding in outcome.findings:
                if finding.rule == "budget_open":
                    finding.rule = "budget_exceeded"
            return outcome

    monkeypatch.setattr(direct, "Engine", Careless)
    monkeypatch.setattr(play, "_PATIENCE", 3.0)
    code, output = await run()
    assert code == 1
    sessions, *_, missed, unexpected = figures(output, "budget_open")
    assert sessions == missed == unexpected > 0
    assert "NOT what was planted" in output


async def test_an_address_that_is_taken_is_an_error_only_if_it_was_asked_for(no_broker):
    from aiohttp import web

    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        code, output = await run(http=f"127.0.0.1:{port}")
        assert code == 1 and "cannot serve" in output
    finally:
        await runner.cleanup()


@pytest.mark.embedded
async def test_on_the_embedded_broker():
    if reason := embedded.available():
        missing(reason)
    code, output = await run(seconds=4.0)
    assert (code, figures(output, "all")[3:]) == (0, [0, 0])
    assert "broker: embedded" in output and "at_least_once" in output


async def test_on_apache_kafka_it_leaves_nothing_behind(kafka: KafkaBroker):
    code, output = await run(seconds=4.0, bootstrap_servers=kafka.bootstrap)
    assert (code, figures(output, "all")[3:]) == (0, [0, 0])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        assert not [name for name in await admin.list_topics() if name.startswith("demo-")]
    finally:
        await admin.close()


# --- the score --------------------------------------------------------------------------------------


def finding(session: str, rule: str, subject: str, number: int = 0) -> Finding:
    return Finding(
        finding_id=f"{session}/{rule}/{subject}/{number}",
        rule=rule,
        severity="error",
        disposition="retry",
        session_id=session,
        subject=Subject("node", subject),
        position=1,
        evidence={},
        source=Source("agent.events", 0, number),
    )


PLANTED = [
    Planted("s1", "budget_open", frozenset({("budget_open", "n")})),
    Planted("s2", "torn_record", frozenset({("log_gap", "s2"), ("frontier_unverified", "c")}), 1),
]


def test_the_score_counts_what_is_missing_and_what_nobody_planted():
    score = Score()
    assert not score.complete(PLANTED)
    assert score.finding(finding("s1", "budget_open", "n"), 1.0)
    assert not score.finding(finding("s1", "budget_open", "n"), 2.0), "the same finding again"
    score.finding(finding("s2", "log_gap", "s2"), 1.0)
    score.finding(finding("s2", "edge_dropped", "c"), 1.0)
    score.finding(finding("s3", "fact_dropped", "n"), 1.0)
    rows = {row.fault: row for row in score.rows(PLANTED, sessions=5)}
    shown = {name: (row.sessions, row.planted, row.flagged, row.missing, row.unexpected) for name, row in rows.items()}
    assert shown == {
        "budget_open": (1, 1, 1, 0, 0),
        "torn_record": (1, 2, 1, 1, 1),
        "(no fault)": (3, 0, 0, 0, 1),
        "(dead letters)": (1, 1, 0, 1, 0),
    }
    assert (score.findings, score.repeated) == (4, 1)
    score.finding(finding("s2", "frontier_unverified", "c"), 1.0)
    assert not score.complete(PLANTED), "a dead letter is missing"
    score.letter()
    assert score.complete(PLANTED)


def test_latencies_leave_out_sessions_that_waited_for_a_lost_record():
    score = Score()
    score.finding(finding("s1", "budget_open", "n", 1), 10.5)
    score.finding(finding("s1", "budget_open", "m", 2), 10.2)
    score.finding(finding("s2", "log_gap", "s2", 3), 20.0)
    score.finding(finding("s2", "fact_dropped", "n", 4), 20.0)
    sent = {Source("agent.events", 0, number): 10.0 for number in (1, 2, 3, 4)}
    assert score.latencies(sent) == pytest.approx([0.2, 0.5])
    assert quantile([], 0.5) == 0.0
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


def test_halts_are_counted_by_what_they_say():
    score = Score()
    for status in ("halt", "halt", "clear"):
        score.halt(
            Halt(
                halt_id="h",
                session_id="s",
                position=1,
                status=status,
                checkpoint_id=None,
                reason=[],
                finding_ids=[],
                open_halts=[],
            )
        )
    assert (score.halts_opened, score.halts_cleared) == (2, 1)
