"""What the tests of the emitter share: every kind of record once, and logs read back and checked."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sidecar.client.kinds import Kinds
from sidecar.protocol.decode import decode
from sidecar.protocol.records import Record
from tests.kafka.support import create_topics, read_topic

CALLS: dict[str, Callable[[Kinds[Any]], Any]] = {
    "authorization": lambda log: log.authorization("deploy", "approved"),
    "revocation": lambda log: log.revocation("deploy", "approved"),
    "action": lambda log: log.action("deploy", irreversible=True),
    "referent_added": lambda log: log.referent_added("file:a", store="durable"),
    "referent_removed": lambda log: log.referent_removed("file:a"),
    "constraint": lambda log: log.constraint("no-prod", polarity="negative", text="never touch prod"),
    "fact": lambda log: log.fact("port", "8443", floor_tokens=3, text="the port is 8443"),
    "tool_result": lambda log: log.tool_result("create#1", "vm-7", referents=["vm-7"]),
    "baseline": lambda log: log.baseline(edges=[("deploy", "approved")], live=["file:a"], negative_constraints=["c"]),
    "thought": lambda log: log.event("thought", text="hm", depth=[1, {"a": None}]),
    "summary": lambda log: log.summary(
        "n1",
        generation=1,
        level=1,
        frontier_lo=1,
        frontier_hi=8,
        children=["n0"],
        root=True,
        referents=("file:a",),
        negative_constraints=["no-prod"],
        facts={"port": "the port is 8443"},
        dropped=[],
        input_tokens=900,
        input_tokens_read=900,
        token_budget=100,
        tokens_emitted=80,
        instruction="summarize",
        partial=False,
        retention={"per_node_recall": 0.97, "source": "probe", "depth": 2, "workload": "narrative"},
    ),
    "checkpoint": lambda log: log.checkpoint(
        "c1",
        node_id="n1",
        summary_generation=1,
        level=1,
        turn=0,
        frontier_lo=1,
        frontier_hi=8,
        asserted_edges=[("deploy", "approved")],
        verbatim_refs=["file:a"],
    ),
    "resume": lambda log: log.resume("c1", deps=["file:a"]),
    "reconcile": lambda log: log.reconcile("accept_divergence"),
    "gc": lambda log: log.gc(["n0"]),
    "probe": lambda log: log.probe("n1", probes=20, recalled=19),
}
COMPACTIONS = ("summary", "checkpoint", "resume", "reconcile", "gc", "probe")


async def topics(bootstrap: str, unique: str, partitions: int = 3) -> dict[str, str]:
    """Make the two topics, and return them as the emitter's arguments."""
    names = {"events_topic": f"{unique}events", "compactions_topic": f"{unique}compactions"}
    await create_topics(bootstrap, *names.values(), partitions=partitions)
    return names


async def published(bootstrap: str, names: dict[str, str]) -> dict[str, list[bytes]]:
    """Return what is on the two topics, by session, in the order of each topic."""
    values: dict[str, list[bytes]] = {}
    partitions: dict[bytes, set[int]] = {}
    for topic in names.values():
        for message in await read_topic(bootstrap, topic):
            values.setdefault(message.key.decode(), []).append(message.value)
            partitions.setdefault(message.key, set()).add(message.partition)
    assert all(len(found) == 1 for found in partitions.values()), "a session is in two partitions"
    return values


def lines(path: Path) -> dict[str, list[bytes]]:
    """Return what is in a file, by session; every line has to be a record."""
    values: dict[str, list[bytes]] = {}
    content = path.read_bytes()
    assert not content or content.endswith(b"\n")
    for line in content.splitlines():
        values.setdefault(decode(line)[0].session_id, []).append(line)
    return values


def log_of(values: Iterable[bytes], first: int = 1) -> dict[int, Record]:
    """Return a session's records by position: none is left out, and none has two contents."""
    digests: dict[int, int] = {}
    records: dict[int, Record] = {}
    for value in values:
        record, digest = decode(value)
        assert record.seq is not None
        assert digests.setdefault(record.seq, digest) == digest, f"{record.seq} has two contents"
        records[record.seq] = record
    assert sorted(records) == list(range(first, first + len(records)))
    return dict(sorted(records.items()))
