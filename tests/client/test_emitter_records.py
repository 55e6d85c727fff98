"""What a call makes: every kind with its fields, and what is refused before it has a position."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sidecar.client import Emitter
from sidecar.client.compose import compose, with_seq
from sidecar.client.kinds import Kinds
from sidecar.protocol.decode import decode
from sidecar.protocol.records import KINDS, Authorization, Constraint, Opaque, Retention, Revocation, Summary
from tests.client.logs import CALLS, lines, log_of


async def test_every_kind_is_a_record_of_the_protocol(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    async with Emitter.file(tmp_path / "log.jsonl", "s", tenant="acme", agent="a7") as log:
        assert [await call(log) for call in CALLS.values()] == list(range(1, len(CALLS) + 1))
        assert log.position == len(CALLS)
    records = log_of(lines(tmp_path / "log.jsonl")["s"])
    assert [type(record) for record in records.values()] == [KINDS.get(kind, Opaque) for kind in CALLS]
    assert set(CALLS) == {*KINDS, "thought"}
    for record in records.values():
        assert (record.tenant, record.agent, record.model) == ("acme", "a7", None)
        assert record.ts is not None and before <= record.ts <= datetime.now(UTC)
    summary = records[list(CALLS).index("summary") + 1]
    assert isinstance(summary, Summary)
    assert (summary.children, summary.facts, summary.dropped) == (("n0",), {"port": "the port is 8443"}, ())
    assert summary.retention == Retention(per_node_recall=0.97, source="probe", depth=2, workload="narrative")


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_takes_all_fields_of_its_kind_and_no_others(kind: str) -> None:
    wanted = {*KINDS[kind].__struct_fields__} - {"session_id", "seq", "as_of_seq"}
    assert {*get_type_hints(getattr(Kinds, kind))} - {"return"} == wanted


async def test_what_is_said_of_one_record_stands_before_what_is_said_of_all(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    async with Emitter.file(tmp_path / "log.jsonl", "s", tenant="acme", model="m1") as log:
        await log.authorization("deploy", None, model="m2", ts=when)
        await log.event("note", model="m3", tenant="other")
        await log.constraint("c", retired=True)
        await log.revocation("deploy")
        await log.summary(
            "n",
            generation=1,
            level=1,
            frontier_lo=1,
            frontier_hi=1,
            children=(f"n{i}" for i in range(3)),
            retention=Retention(per_node_recall=1.0, source="probe", depth=1),
        )
    records = log_of(lines(tmp_path / "log.jsonl")["s"])
    first, second, third, fourth, fifth = records.values()
    assert isinstance(first, Authorization) and first.precondition_id is None
    assert (first.tenant, first.model, first.ts) == ("acme", "m2", when)
    assert (second.tenant, second.model) == ("other", "m3")
    assert isinstance(third, Constraint) and third.retired is True
    assert isinstance(fourth, Revocation) and fourth.precondition_id is None
    assert isinstance(fifth, Summary) and fifth.children == ("n0", "n1", "n2")


SUMMARY: dict[str, Any] = {"generation": 1, "level": 1, "frontier_lo": 1, "frontier_hi": 1}
WRONG: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "a number for an id": (TypeError, "action: `action_id`: expected `str`", lambda log: log.action(7)),
    "a string for a list": (TypeError, "gc: `node_ids`: expected `array`", lambda log: log.gc("n1")),
    "a number in a list": (TypeError, r"`node_ids\[1\]`", lambda log: log.gc(["n1", 2])),
    "a float for a count": (TypeError, "`turn`", lambda log: log.checkpoint("c", **{**CHECKPOINT, "turn": 1.0})),
    "a bool for a count": (TypeError, "`probes`", lambda log: log.probe("n", probes=True, recalled=0)),
    "a number for a bool": (TypeError, "`irreversible`", lambda log: log.action("a", irreversible=1)),
    "a time without offset": (TypeError, "`ts`", lambda log: log.action("a", ts=datetime(2026, 1, 1))),
    "text for a time": (ValueError, "`ts`", lambda log: log.action("a", ts="soon")),
    "what JSON has no word for": (TypeError, "note", lambda log: log.event("note", x=object())),
    "a kind that is no string": (TypeError, "kind", lambda log: log.event(7)),
    "an edge of one": (
        ValueError,
        "asserted_edges",
        lambda log: log.checkpoint("c", **CHECKPOINT, asserted_edges=[["a"]]),
    ),
    "an empty id": (ValueError, "`action_id` is empty", lambda log: log.action("")),
    "an empty precondition": (ValueError, "`precondition_id` is empty", lambda log: log.revocation("a", "")),
    "an empty tenant": (ValueError, "`tenant` is empty", lambda log: log.action("a", tenant="")),
    "an empty node": (ValueError, "`node_id`", lambda log: log.summary("", **SUMMARY)),
    "no anchor": (ValueError, "`anchor`", lambda log: log.fact("f", "")),
    "no polarity": (ValueError, "`polarity` is missing", lambda log: log.constraint("c")),
    "another polarity": (ValueError, "`polarity`", lambda log: log.constraint("c", polarity="maybe")),
    "another store": (ValueError, "`store`", lambda log: log.referent_added("r", store="cloud")),
    "another decision": (ValueError, "`decision`", lambda log: log.reconcile("shrug")),
    "generation 0": (ValueError, "`generation`", lambda log: log.summary("n", **{**SUMMARY, "generation": 0})),
    "a range that ends first": (
        ValueError,
        "`frontier_lo` 2",
        lambda log: log.summary("n", **{**SUMMARY, "frontier_lo": 2}),
    ),
    "recall above 1": (
        ValueError,
        "`retention.per_node_recall`",
        lambda log: log.summary("n", **SUMMARY, retention={"per_node_recall": 1.5, "source": "probe", "depth": 1}),
    ),
    "more recalled than asked": (ValueError, "`recalled` 2", lambda log: log.probe("n", probes=1, recalled=2)),
    "a number beyond bounds": (ValueError, "`probes`", lambda log: log.probe("n", probes=2**61, recalled=1)),
    "half a character": (ValueError, "fact", lambda log: log.fact("f", "\ud800")),
    "a kind of the protocol": (ValueError, "'action' is a kind", lambda log: log.event("action", action_id="a")),
    "an empty kind": (ValueError, "empty", lambda log: log.event("")),
    "a seq": (ValueError, "seq cannot be given", lambda log: log.event("note", seq=3)),
    "a session": (ValueError, "session_id cannot be given", lambda log: log.event("note", session_id="t")),
    "nested too deeply": (ValueError, "nested", lambda log: log.event("note", x=_nested(300))),
    "in a circle": (ValueError, "recursion", lambda log: log.event("note", x=_circle())),
    "too large": (ValueError, "at most", lambda log: log.event("note", x="x" * (9 << 20))),
}
CHECKPOINT: dict[str, Any] = {
    "node_id": "n",
    "summary_generation": 1,
    "level": 1,
    "turn": 0,
    "frontier_lo": 1,
    "frontier_hi": 1,
}


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


async def test_what_is_wrong_is_said_at_the_call_and_gets_no_position(tmp_path: Path) -> None:
    async with Emitter.file(tmp_path / "log.jsonl", "s") as log:
        for what, (error, said, call) in WRONG.items():
            with pytest.raises(error, match=said):
                await call(log)
            assert log.position == 0, what
        assert await log.action("fine") == 1
    assert len(log_of(lines(tmp_path / "log.jsonl")["s"])) == 1


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**62) | st.floats() | st.text(max_size=3) | st.just("n") | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_taken_the_decoder_reads_as_it_was_meant(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    wrong = data.draw(st.booleans())
    fields: dict[str, Any] = {}
    for name, meaning in get_type_hints(KINDS[kind]).items():
        if name not in ("session_id", "seq", "as_of_seq"):
            likely = st.from_type(meaning) if name != "ts" else st.datetimes(timezones=st.just(UTC))
            fields[name] = data.draw(likely | JUNK if wrong else likely)
    try:
        body = compose(kind, "s", fields, {"agent": "a"})
    except (TypeError, ValueError):
        event("refused")
        return
    event("taken")
    record, _ = decode(with_seq(body, 7))
    assert (type(record), record.seq, record.session_id) == (KINDS[kind], 7, "s")
    meant = {"agent": "a", **{name: value for name, value in fields.items() if value is not None}}
    if "ts" not in meant:
        meant["ts"] = record.ts
    given = msgspec.convert({"session_id": "s", "seq": 7, **meant}, KINDS[kind])
    assert record == given


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"session_id": ""}, ValueError, "session_id is empty"),
        ({"session_id": 7}, TypeError, "session_id"),
        ({"session_id": "\udc00"}, ValueError, "session_id"),
        ({"tenant": 7}, TypeError, "`tenant`"),
        ({"model": ""}, ValueError, "`model` is empty"),
        ({"start_at": 0}, ValueError, "start_at=0"),
        ({"start_at": "1"}, TypeError, "start_at"),
        ({"guard": "http://127.0.0.1:9464"}, TypeError, "guard"),
        ({"max_unacknowledged": 0}, ValueError, "max_unacknowledged"),
    ],
)
def test_arguments_that_make_no_sense(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    given = {"session_id": "s", **arguments}
    with pytest.raises(error, match=said):
        Emitter.file(tmp_path / "log.jsonl", **given)
    assert list(tmp_path.iterdir()) == []
