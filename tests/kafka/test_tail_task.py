"""A task without a broker: silent replay, holding, merging by time, the clock."""

import json
from collections.abc import Iterable

from sidecar.engine.limits import Limits
from sidecar.tail.fetching import Fetched
from sidecar.tail.task import Clock, Task

EVENTS, COMPACTIONS = "events", "compactions"


def event(seq: int, session: str = "s", **more: object) -> bytes:
    return json.dumps({"kind": "message", "session_id": session, "seq": seq, **more}).encode()


def unauthorized(seq: int, session: str = "s") -> bytes:
    return event(seq, session, kind="action", action_id=f"a{seq}", irreversible=True)


def fetched(topic: str, values: Iterable[bytes | None], first: int = 0, time: int = 0, step: int = 1) -> list[Fetched]:
    return [Fetched(topic, 0, first + i, time + i * step, b"s", value) for i, value in enumerate(values)]


def task(start: dict[str, int] | None = None, committed: dict[str, int] | None = None, **limits: int) -> Task:
    made = Task(0, (EVENTS, COMPACTIONS), Limits(**limits))
    made.place(start or {EVENTS: 0, COMPACTIONS: 0}, committed or {})
    return made


def fold(of: Task, behind: tuple[str, ...] = (), now: float = 0.0) -> list[str]:
    folded = of.fold(behind, now)
    return [] if folded is None else [finding.rule for finding in folded.outcome.findings]


def test_a_new_group_says_everything_and_commits_where_it_began() -> None:
    new = task()
    assert not new.silent
    assert {tp.topic: offset for tp, offset in new.uncommitted().items()} == {EVENTS: 0, COMPACTIONS: 0}
    new.add(EVENTS, fetched(EVENTS, [unauthorized(1)]))
    assert fold(new) == ["action_unauthorized"]
    assert {tp.topic: offset for tp, offset in new.uncommitted().items()} == {EVENTS: 1, COMPACTIONS: 0}
    new.committed = {EVENTS: 1, COMPACTIONS: 0}
    assert new.uncommitted() == {}


def test_what_was_committed_is_folded_again_and_not_said_again() -> None:
    again = task(committed={EVENTS: 2, COMPACTIONS: 1})
    assert again.silent and again.uncommitted() == {}
    again.add(EVENTS, fetched(EVENTS, [unauthorized(1), unauthorized(3), unauthorized(4)]))
    folded = again.fold((), 0.0)
    assert folded is not None and folded.silent
    assert [finding.position for finding in folded.outcome.findings] == [1]
    # The third record is beyond what was committed: it stays, and its topic is held, until the other topic is there.
    assert again.queued(EVENTS) == 1 and list(again.held()) == [EVENTS]
    assert not again.reached({EVENTS: 3, COMPACTIONS: 0})
    assert fold(again) == []
    again.add(COMPACTIONS, fetched(COMPACTIONS, [unauthorized(2)]))
    folded = again.fold((), 0.0)
    assert folded is not None and folded.silent
    assert again.reached({EVENTS: 3, COMPACTIONS: 1})
    assert again.restored == 3 and again.uncommitted() == {}
    folded = again.fold((), 0.0)
    assert folded is not None and not folded.silent
    assert [finding.position for finding in folded.outcome.findings] == [4]


def test_the_markers_of_transactions_count_as_read() -> None:
    # Offsets 1 and 2 of the events are no records; the consumer's position tells.
    again = task(committed={EVENTS: 3, COMPACTIONS: 0})
    again.add(EVENTS, fetched(EVENTS, [event(1)]))
    assert fold(again) == [] and not again.reached({EVENTS: 1, COMPACTIONS: 0})
    assert again.reached({EVENTS: 3, COMPACTIONS: 0})
    assert not again.reached({EVENTS: 3, COMPACTIONS: 0}), "said once"
    assert again.positions == {EVENTS: 3, COMPACTIONS: 0}


def test_a_log_that_ends_before_what_was_committed_is_accepted() -> None:
    again = task(committed={EVENTS: 9, COMPACTIONS: 0})
    again.add(EVENTS, fetched(EVENTS, [event(1)]))
    assert fold(again) == []
    again.shorten(EVENTS, 1)
    assert again.reached({EVENTS: 1, COMPACTIONS: 0})
    assert {tp.topic: offset for tp, offset in again.uncommitted().items()} == {EVENTS: 1, COMPACTIONS: 0}


def test_a_backlog_is_read_side_by_side() -> None:
    # 40 events, of which every fourth position is a compaction record: read one topic after the other, they would
    # pass the bound of the reorder buffer.
    both = task(max_waiting=4)
    values = [event(seq) for seq in range(1, 41)]
    events = [
        Fetched(EVENTS, 0, i, seq, b"s", values[seq - 1]) for i, seq in enumerate(s for s in range(1, 41) if s % 4)
    ]
    others = [Fetched(COMPACTIONS, 0, i, seq, b"s", values[seq - 1]) for i, seq in enumerate(range(4, 41, 4))]
    behind = (EVENTS, COMPACTIONS)
    both.add(EVENTS, events[:20])
    assert fold(both, behind) == [], "nothing is known of the other topic yet"
    both.add(COMPACTIONS, others[:3])
    assert fold(both, behind) == []
    assert both.positions == {EVENTS: 9, COMPACTIONS: 3} and list(both.held()) == [EVENTS]
    both.add(COMPACTIONS, others[3:])
    assert fold(both, (EVENTS,)) == []
    assert both.positions[EVENTS] == 20 and list(both.held()) == [COMPACTIONS]
    both.add(EVENTS, events[20:])
    assert fold(both, ()) == []
    assert both.engine.counters.gaps == 0 and both.engine.counters.waiting == 0
    assert both.positions == {EVENTS: 30, COMPACTIONS: 10}


def test_a_topic_that_cannot_be_read_does_not_hold_the_other_for_long() -> None:
    both = task()
    both.add(EVENTS, fetched(EVENTS, [unauthorized(1)], time=1000))
    assert fold(both, (COMPACTIONS,), now=10.0) == []
    assert fold(both, (COMPACTIONS,), now=10.9) == []
    assert fold(both, (COMPACTIONS,), now=11.1) == ["action_unauthorized"]
    # It flows on, until the other one says something.
    both.add(EVENTS, fetched(EVENTS, [unauthorized(2)], first=1, time=1001))
    assert fold(both, (COMPACTIONS,), now=11.2) == ["action_unauthorized"]
    both.add(COMPACTIONS, fetched(COMPACTIONS, [unauthorized(3)], time=900))
    both.add(EVENTS, fetched(EVENTS, [unauthorized(4)], first=2, time=1002))
    assert fold(both, (COMPACTIONS,), now=11.3) == ["action_unauthorized"]
    assert list(both.held()) == [EVENTS]


def test_merging_keeps_each_topic_in_its_order() -> None:
    both = task()
    # The events' timestamps go back; the first record of each position stands.
    both.add(
        EVENTS,
        [Fetched(EVENTS, 0, 0, 50, b"s", event(1, text="a")), Fetched(EVENTS, 0, 1, 10, b"s", event(1, text="b"))],
    )
    both.add(COMPACTIONS, fetched(COMPACTIONS, [event(2)], time=30))
    folded = both.fold((), 0.0)
    assert folded is not None
    (conflict,) = folded.outcome.findings
    assert conflict.rule == "log_conflict" and conflict.source is not None and conflict.source.offset == 1
    assert folded.timestamp(conflict) == 10


def test_unreadable_records_are_dead_letters_and_take_their_position() -> None:
    one = task()
    one.add(EVENTS, fetched(EVENTS, [event(1), b'{"kind":"action","session_id":"s","seq":2}', b"\x00", None, event(3)]))
    folded = one.fold((), 0.0)
    assert folded is not None
    assert [(letter.source.offset, letter.session_id, letter.seq) for letter in folded.letters] == [
        (1, "s", 2),
        (2, None, None),
        (3, None, None),
    ]
    assert [letter.original for letter in folded.letters][1:] == [b"\x00", b""]
    assert [(finding.rule, finding.position) for finding in folded.outcome.findings] == [("log_gap", 2)]
    assert one.positions[EVENTS] == 5


def test_the_clock_runs_only_while_there_is_nothing_to_read() -> None:
    clock = Clock()
    clock.tick(True, 100.0)
    assert clock.now == 0.0
    clock.tick(True, 100.5)
    assert clock.now == 0.5
    clock.tick(False, 101.0)
    clock.tick(True, 109.0)
    assert clock.now == 0.5, "the broker was away, or there was a backlog"
    clock.tick(True, 109.25)
    assert clock.now == 0.75
    clock.tick(True, 999.0)
    assert clock.now == 1.75, "a process that was stopped for long has not looked"


def test_merging_is_by_time_whatever_could_not_be_read() -> None:
    both = task()
    claims = {"node_id": "n", "summary_generation": 1, "level": 1, "turn": 1, "frontier_lo": 1, "frontier_hi": 9}
    unnumbered = json.dumps({"kind": "checkpoint", "session_id": "s", "checkpoint_id": "c", "as_of_seq": 2, **claims})
    # Records without seq are judged where they arrive: here after the second event, not after what follows it.
    both.add(EVENTS, fetched(EVENTS, [b"\x00", b"", b"no", event(1), event(2), event(3), event(4)]))
    both.add(COMPACTIONS, fetched(COMPACTIONS, [unnumbered.encode()], time=4))
    folded = both.fold((), 0.0)
    assert folded is not None and len(folded.letters) == 3
    assert {finding.position for finding in folded.outcome.findings} == {2}
