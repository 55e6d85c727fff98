"""How long things have been as they are: statuses of sessions, what is read, what is kept."""

import json
from typing import Any

from sidecar.config import Settings
from sidecar.engine.fold import Arrival, Engine
from sidecar.observe.catalogue import LASTING_LABELS, STALE_LABELS
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.decode import decode
from sidecar.tail.keeping import Keeper
from sidecar.tail.messages import MAX_MESSAGE
from tests.unit.test_observe import value


class Log:
    """Write the records of one session."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.seq = 0

    def __call__(self, kind: str, **fields: Any) -> Arrival:
        self.seq += 1
        record, digest = decode(
            json.dumps({"kind": kind, "session_id": self.session_id, "seq": self.seq, **fields}).encode()
        )
        return record, digest, None

    def checkpoint(self, name: str) -> list[Arrival]:
        """Summarize everything so far, with all its edges, and write a checkpoint of it."""
        hi = self.seq
        edges = [[f"act-{i}", "ok"] for i in range(1, hi + 1)]
        return [
            self("summary", node_id=name, generation=1, level=1, frontier_lo=1, frontier_hi=hi),
            self(
                "checkpoint", checkpoint_id=name, node_id=name, summary_generation=1, level=1, turn=1,
                frontier_lo=1, frontier_hi=hi, asserted_edges=edges,
            ),
        ]  # fmt: skip


def stale(session_id: str) -> tuple[Engine, Log]:
    """Return an engine with a session of which an authorization came after its checkpoint."""
    engine, log = Engine(), Log(session_id)
    records = [log("authorization", action_id="act-1", precondition_id="ok"), *log.checkpoint("ckpt-1")]
    engine.fold([*records, log("authorization", action_id="act-4", precondition_id="ok")], 0.0)
    assert engine.status_counts()["stale"] == 1
    return engine, log


def test_how_long_a_session_has_been_stale_counts_from_when_it_was_asked_first() -> None:
    engine, log = stale("s")
    assert engine.ages(100.0) == {"stale": [0.0]}
    engine.fold([log("tool_result", call_key="c", handle="h")], 1.0)
    assert engine.ages(160.0) == {"stale": [60.0]}


def test_a_new_checkpoint_ends_it_and_the_next_authorization_begins_it_anew() -> None:
    engine, log = stale("s")
    engine.ages(0.0)
    records = [
        log("summary", node_id="b", generation=1, level=1, frontier_lo=1, frontier_hi=4),
        log(
            "checkpoint", checkpoint_id="b", node_id="b", summary_generation=1, level=1, turn=1,
            frontier_lo=1, frontier_hi=4, asserted_edges=[["act-1", "ok"], ["act-4", "ok"]],
        ),
    ]  # fmt: skip
    engine.fold(records, 0.0)
    assert engine.status_counts()["verified"] == 1
    assert engine.ages(50.0) == {}
    engine.fold([log("authorization", action_id="act-7", precondition_id="ok")], 0.0)
    assert engine.ages(60.0) == {"stale": [0.0]}


def test_another_bad_status_counts_anew() -> None:
    engine, log = stale("s")
    engine.ages(0.0)
    engine.fold([log("action", action_id="never-allowed", irreversible=True)], 0.0)
    assert engine.ages(30.0) == {"degraded": [0.0]}
    assert engine.ages(40.0) == {"degraded": [10.0]}


def test_a_stale_session_that_sleeps_is_left_out_until_it_wakes() -> None:
    engine, log = stale("s")
    engine.ages(0.0)
    engine.take_changed()
    assert engine.shrink(1000.0, 300.0) == 1
    assert engine.ages(1000.0) == {}
    engine.fold([log("tool_result", call_key="c", handle="h")], 1000.0)
    assert engine.ages(1010.0) == {"stale": [1010.0]}


def test_a_degraded_session_that_sleeps_still_counts() -> None:
    engine, log = stale("s")
    engine.fold([log("action", action_id="never-allowed", irreversible=True)], 0.0)
    engine.take_changed()
    engine.shrink(1000.0, 300.0)
    assert engine.ages(0.0) == {"degraded": [0.0]}


def test_a_forgotten_session_leaves() -> None:
    engine, _ = stale("s")
    engine.ages(0.0)
    engine.take_changed()
    assert engine.drop_idle(10_000.0, 5_000.0) == ["s"]
    assert engine.ages(10_000.0) == {}


def test_a_session_that_is_taken_over_counts_from_then() -> None:
    engine, _ = stale("s")
    other = Engine()
    other.adopt(engine.freeze("s"), 0.0)
    assert other.ages(7.0) == {}  # it sleeps
    loaded = Engine.load(engine.dump())
    assert loaded.ages(7.0) == {"stale": [0.0]}
    assert loaded.ages(9.0) == {"stale": [2.0]}


def test_ages_as_series() -> None:
    metrics = Metrics()
    metrics.set_ages({"stale": [10.0, 400.0, 1000.0], "corrupt": [3.0, 5.0]})
    longest = {s: value(metrics, "sidecar_longest_in_status_seconds", status=s) for s in LASTING_LABELS}
    assert longest == {"stale": 1000.0, "unverified": 0.0, "degraded": 0.0, "lossy": 0.0, "corrupt": 5.0}
    counts = {s: value(metrics, "sidecar_stale_sessions", longer_than=s) for s in STALE_LABELS}
    assert counts == {"0": 3, "60": 2, "300": 2, "900": 1, "3600": 0}
    metrics.set_ages({})
    assert value(metrics, "sidecar_stale_sessions", longer_than="0") == 0
    assert value(metrics, "sidecar_longest_in_status_seconds", status="corrupt") == 0


def test_what_is_read_is_as_well_as_the_worst_of_it() -> None:
    health = Health(0.0)
    assert health.unwell(5.0) == 5.0  # the group has assigned nothing yet
    health.assign(["a", "b"], 10.0)
    for task in ("a", "b"):
        health.restored(task, 10.0)
    health.observe("a", 1, 0, 20.0)
    health.observe("b", 1, 50, 20.0)
    assert health.unwell(20.0) == 10.0  # b has something to read, and has not advanced
    health.observe("b", 2, 49, 30.0)
    assert health.unwell(30.0) == 10.0  # now it is a that was last heard of longest ago
    health.observe("a", 1, 0, 30.0)
    assert health.unwell(30.0) == 0.0
    health.assign([], 30.0)
    assert health.unwell(99.0) == 0.0


def test_a_group_that_does_not_assign_is_not_well() -> None:
    health = Health(0.0)
    health.assign(["a"], 0.0)
    health.joining(10.0)
    health.revoke(["a"])
    assert health.unwell(70.0) == 60.0


def test_when_a_partition_was_last_kept() -> None:
    settings = Settings.load(snapshot={"interval": 100.0})
    keeper, engine = Keeper(0, settings, 1, 1000.0), Engine()
    assert keeper.kept_at == 1000.0

    def commit(now: float) -> None:
        list(keeper.records(engine, {"agent.events": 0}, now=now, clock=now))

    commit(1001.0)  # the first one writes the marker
    commit(1050.0)
    assert keeper.kept_at == 1001.0
    commit(1101.0)  # a round with nothing to write is one
    assert keeper.kept_at == 1101.0
    assert keeper.too_large == 0


def test_a_session_that_cannot_be_written_is_counted() -> None:
    keeper, (engine, _) = Keeper(0, Settings.load(), 1, 0.0), stale("s")
    list(keeper.records(engine, {"agent.events": 0}, now=1.0, clock=1.0))
    assert keeper.too_large == 0
    engine, _ = stale("s" * MAX_MESSAGE)
    list(keeper.records(engine, {"agent.events": 0}, now=1000.0, clock=1.0))
    assert keeper.too_large == 1


def test_without_brokers_nothing_is_kept() -> None:
    body, _ = Metrics(broker=False).exposition()
    assert b"sidecar_last_snapshot_timestamp_seconds" not in body
    Metrics(broker=False).set_kept_at(1.0)
