"""What the tests of operations share."""

from collections.abc import Iterator

import pytest

from tests.conftest import missing
from tests.kafka import broker as kafka_broker
from tests.ops import secured as secured_broker


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[secured_broker.SecuredBroker]:
    """Give the session's broker with TLS, SCRAM and ACLs; use `unique` names, and leave it running."""
    if reason := kafka_broker.available() or secured_broker.available():
        missing(reason)
    broker = secured_broker.SecuredBroker(tmp_path_factory.mktemp("secured"))
    with broker.broker:
        yield broker
