"""A session whose state does not fit into one record of the snapshot topic goes on after a restart as any other."""

import json
from collections.abc import Iterator

import pytest

from sidecar.tail.envelope import is_part_key
from tests.kafka.support import read_topic
from tests.kafka.tail_support import WITHOUT_TRANSACTIONS, running, send, settings_for, until_committed, values

RECORDS = 40_000
"""Enough referents for more than a megabyte of state."""


def _record(seq: int, kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, "session_id": "long", "seq": seq, **fields}).encode()


def _history() -> Iterator[bytes]:
    yield _record(1, "authorization", action_id="deploy-1", precondition_id="approval-1")
    for seq in range(2, RECORDS + 1):
        yield _record(seq, "referent_added", referent_id=f"file:///srv/reports/{seq:06d}.md")


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("kafka", "embedded")])
def bootstrap(request: pytest.FixtureRequest) -> str:
    address = str(request.getfixturevalue(request.param).bootstrap)
    if request.param == "embedded":
        WITHOUT_TRANSACTIONS.add(address)
    return address


async def test_a_session_with_a_state_in_parts_is_judged_on_after_a_restart(bootstrap: str, unique: str) -> None:
    settings = settings_for(bootstrap, unique)
    async with running(settings):
        await send(settings, _history())
        await until_committed(settings, within=60)
    kept = await read_topic(bootstrap, settings.topics.snapshots, read_committed=True)
    assert sum(is_part_key(record.key) for record in kept) >= 2
    async with running(settings):
        range_ = {"frontier_lo": 1, "frontier_hi": RECORDS}
        last = [
            _record(RECORDS + 1, "summary", node_id="n", generation=1, level=1, **range_),
            _record(
                RECORDS + 2, "checkpoint", checkpoint_id="c", node_id="n", summary_generation=1, level=1, turn=1,
                asserted_edges=[], **range_,
            ),
        ]  # fmt: skip
        await send(settings, last)
        await until_committed(settings, within=30)
    # Had the state been lost, nothing could be said of the grant at its beginning.
    assert [finding["rule"] for finding in await values(settings, settings.topics.findings)] == ["edge_dropped"]
