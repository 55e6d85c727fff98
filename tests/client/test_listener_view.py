"""The view of the halts: what the newest record of each session says, whatever compaction has removed."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.client.halts import HaltView, OpenHalt
from sidecar.protocol.outputs import Halt


def halt(
    session: str, halt_id: str, status: Literal["halt", "clear"], still_open: Sequence[str], position: int
) -> Halt:
    """Return a record of the halts topic."""
    return Halt(
        halt_id=halt_id,
        session_id=session,
        position=position,
        status=status,
        checkpoint_id=None,
        reason=["action_unauthorized"],
        finding_ids=["f"],
        open_halts=list(still_open),
    )


def put(view: HaltView, record: Halt, partition: int = 0, offset: int = 0) -> Halt | None:
    return view.apply("halts", partition, offset, record.session_id.encode(), msgspec.json.encode(record))


def test_a_halt_opens_and_clears() -> None:
    view = HaltView()
    view.settle()
    first = halt("s", "h1", "halt", ["h1"], 3)
    assert put(view, first) == first
    assert view.halted("s") and not view.halted("t")
    second = halt("s", "h2", "halt", ["h1", "h2"], 4)
    put(view, second)
    assert view.of("s") == (OpenHalt("s", "h1", first), OpenHalt("s", "h2", second))
    put(view, halt("s", "h1", "clear", ["h2"], 5))
    assert view.all() == {"s": (OpenHalt("s", "h2", second),)}
    put(view, halt("s", "h2", "clear", [], 5))
    assert view.all() == {} and not view.halted("s") and view._sessions == {}


def test_of_an_older_halt_the_newest_record_only_tells_the_id() -> None:
    view = HaltView()
    newest = halt("s", "h2", "halt", ["h1", "h2"], 4)
    put(view, newest)
    assert view.of("s") == (OpenHalt("s", "h1", None), OpenHalt("s", "h2", newest))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"junk",
        b"[]",
        b'{"halt_id":"h"}',
        b"\xff",
        b"[" * 100_000,
        msgspec.json.encode(halt("other", "h", "clear", [], 1)),
    ],
)
def test_what_cannot_be_read_may_have_been_a_halt(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    view = HaltView()
    opened = halt("s", "h1", "halt", ["h1"], 3)
    put(view, opened)
    for session in (b"s", b"t"):
        assert view.apply("halts", 2, 17, session, value) is None
    assert view.apply("halts", 2, 18, None, b"junk") is None
    assert view.unreadable == 3
    assert "halts/2, offset 17" in caplog.text
    view.settle()
    assert view.all() == {"s": (OpenHalt("s", "h1", opened),), "t": ()}
    assert view.halted("s") and view.halted("t")
    put(view, halt("s", "h1", "clear", [], 4))
    put(view, halt("t", "h2", "clear", [], 4))
    assert view.all() == {}


def test_a_tombstone_is_an_end() -> None:
    view = HaltView()
    put(view, halt("s", "h", "halt", ["h"], 1))
    assert view.apply("halts", 0, 1, b"s", None) is None
    assert view.apply("halts", 0, 2, None, None) is None
    assert not view.halted("s") and view.unreadable == 0


@pytest.mark.parametrize("clear_first", [True, False])
def test_after_partitions_were_added_the_later_position_counts(clear_first: bool) -> None:
    view = HaltView()
    both = [(1, halt("s", "h", "clear", [], 9)), (0, halt("s", "h", "halt", ["h"], 3))]
    for partition, record in both if clear_first else reversed(both):
        put(view, record, partition)
    view.settle()
    assert not view.halted("s")
    tied = [(1, halt("t", "h", "clear", [], 3)), (0, halt("t", "h2", "halt", ["h2"], 3))]
    view = HaltView()
    for partition, record in tied if clear_first else reversed(tied):
        put(view, record, partition)
    view.settle()
    assert view.halted("t"), "where that cannot be told, it is halted"


@st.composite
def logs(draw: st.DrawFn) -> list[Halt]:
    """Draw what a tail writes about some sessions: halts that open and clear, with all that are open."""
    still_open: dict[str, list[str]] = {}
    records: list[Halt] = []
    for position in range(1, draw(st.integers(1, 30))):
        session = draw(st.sampled_from("abc"))
        before = still_open.setdefault(session, [])
        if before and draw(st.booleans()):
            gone = draw(st.sampled_from(before))
            before.remove(gone)
            records.append(halt(session, gone, "clear", before, position))
        else:
            before.append(f"h{position}")
            records.append(halt(session, f"h{position}", "halt", before, position))
    return records


@settings(max_examples=200, deadline=None)
@given(logs(), st.data())
def test_compaction_changes_nothing_but_details(records: list[Halt], data: st.DataObject) -> None:
    truth: dict[str, list[str]] = {}
    for record in records:
        truth[record.session_id] = record.open_halts
    halted = {session: ids for session, ids in truth.items() if ids}
    last = {record.session_id: number for number, record in enumerate(records)}
    kept = [r for n, r in enumerate(records) if last[r.session_id] == n or data.draw(st.booleans())]
    settled = data.draw(st.integers(0, len(kept)))
    view = HaltView()
    for number, record in enumerate(kept):
        if number == settled:
            view.settle()
        put(view, record)
    view.settle()
    found = view.all()
    assert {session: [opened.halt_id for opened in found[session]] for session in found} == halted
    opening = {record.halt_id: record for record in kept if record.status == "halt"}
    for known in found.values():
        for opened in known:
            assert opened.halt in (None, opening.get(opened.halt_id))
    assert set(view._sessions) == set(halted), "nothing is kept of the others"
