"""Brokers and names for every test that wants them."""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import pytest

from sidecar import embedded as embedded_broker
from tests.kafka import broker as kafka_broker


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


@pytest.fixture
def unique() -> str:
    """Give a prefix for the topics and groups of one test, because brokers are shared."""
    return f"t{secrets.token_hex(4)}."
