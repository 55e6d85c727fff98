"""Brokers and names for every test that wants them."""

import logging
import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import pytest
import structlog

from sidecar import embedded as embedded_broker
from tests.kafka import broker as kafka_broker

BROKERS_OF_THEIR_OWN = ("test_broker_faults", "test_faults", "test_acl", "test_security", "test_emitter_outage")
"""Modules whose tests stop their brokers, or need them set up in another way."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell a process is started so, and so are its children: what interrupts one would wait.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(reason: str) -> NoReturn:
    """Skip what needs something that cannot be had here, but fail in CI, where it must be had."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"NOT TESTED! {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Pytest's own summary has a line for each place that skips; a run that leaves out a broker says so in one.
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].partition("NOT TESTED! ")[2] for report in skipped)
    for reason, count in reasons.items():
        if reason:
            terminalreporter.write_line(f"NOT TESTED, {count} skipped! {reason}", red=True, bold=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whoever asks for a broker is marked for it, so that `-m "not kafka"` cannot miss one.
    for item in items:
        for name in ("kafka", "embedded"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
        # What is in one group runs one after the other: more than two brokers at a time keep each other from answering.
        if item.path.stem in BROKERS_OF_THEIR_OWN:
            item.add_marker(pytest.mark.xdist_group("brokers of their own"))
        elif item.get_closest_marker("kafka") or item.path.parent.name == "kafka":
            item.add_marker(pytest.mark.xdist_group("kafka"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_broker.KafkaBroker]:
    """Give the session's Apache Kafka; use `unique` names, and leave it running."""
    if reason := kafka_broker.available():
        missing(reason)
    with kafka_broker.KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded() -> Iterator[embedded_broker.EmbeddedBroker]:
    """Give the session's embedded broker; use `unique` names, and leave it running."""
    if reason := embedded_broker.available():
        missing(reason)
    with embedded_broker.EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a command that ran in this process has set up of logging, or later tests would see no logs."""
    yield
    if not structlog.is_configured():
        return
    structlog.reset_defaults()
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def unique() -> str:
    """Give a prefix for the topics and groups of one test, because brokers are shared."""
    return f"t{secrets.token_hex(4)}."
