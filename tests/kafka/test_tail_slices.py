"""A large batch is folded in slices: what comes out is the same, and others get their turn."""

import random

from sidecar.engine.limits import Limits
from sidecar.tail.fetching import Fetched
from sidecar.tail.homes import Homes
from sidecar.tail.task import Task
from tests.kafka.test_tail_task import COMPACTIONS, EVENTS, event, fetched, unauthorized


def folded_in_slices(task: Task, behind: tuple[str, ...] = ()) -> tuple[list[tuple[str, int]], list[int]]:
    """Fold until nothing may be folded; return the findings, and how many records each slice had."""
    found: list[tuple[str, int]] = []
    sizes: list[int] = []
    while (folded := task.fold(behind, 0.0)) is not None:
        sizes.append(sum(map(len, folded.batches.values())))
        found += [(f.session_id, f.position) for f in folded.outcome.findings]
    return found, sizes


def sessions(count: int, offset: int = 0) -> list[bytes]:
    return [unauthorized(1, f"s{offset + n}") for n in range(count)]


def test_slices_come_to_what_the_whole_comes_to() -> None:
    rng = random.Random(7)
    many = fetched(EVENTS, sessions(2500), time=1000, step=2)
    few = fetched(COMPACTIONS, sessions(1200, 5000), time=1500, step=3)
    for message in rng.sample(many, 40):  # timestamps that go back
        message.timestamp -= rng.randrange(200)
    task = Task(0, (EVENTS, COMPACTIONS), Limits())
    task.place({EVENTS: 0, COMPACTIONS: 0}, {})
    task.add(EVENTS, many)
    task.add(COMPACTIONS, few)
    task._most = 100
    found, sizes = folded_in_slices(task)
    assert sorted(found) == sorted((f"s{n}", 1) for n in (*range(2500), *range(5000, 6200)))
    assert len(sizes) > 1 and sizes[0] <= 200
    assert task.positions == {EVENTS: 2500, COMPACTIONS: 1200} and not any(task.held())


def test_topics_stay_side_by_side_in_slices() -> None:
    # The predecessors are on the other topic: read ahead, one topic would fill the buffer for missing positions.
    task = Task(0, (EVENTS, COMPACTIONS), Limits(max_waiting=150))
    task.place({EVENTS: 0, COMPACTIONS: 0}, {})
    task.add(EVENTS, fetched(EVENTS, [event(2 * n + 1) for n in range(2000)], time=0, step=2))
    task.add(COMPACTIONS, fetched(COMPACTIONS, [event(2 * n + 2) for n in range(2000)], time=1, step=2))
    task._most = 100
    found, _ = folded_in_slices(task)
    assert found == [] and task.engine.applied("s") == 4000


def test_three_topics_are_merged_by_time() -> None:
    rng = random.Random(3)
    topics = (EVENTS, COMPACTIONS, "notes")
    for _ in range(50):
        # The next record of the one session is in any of the topics, and in none is it early.
        task = Task(0, topics, Limits(max_waiting=1))
        task.place(dict.fromkeys(topics, 0), {})
        placed: dict[str, list[Fetched]] = {topic: [] for topic in topics}
        for seq in range(1, rng.randrange(2, 60)):
            topic = rng.choices(topics, (10, 3, 2))[0]
            placed[topic] += fetched(topic, [event(seq)], first=len(placed[topic]), time=seq)
        for topic, messages in placed.items():
            if messages:
                task.add(topic, messages)
        folded = task.fold((), 0.0)
        assert folded is not None and folded.outcome.findings == []
        assert task.engine.applied("s") == seq
        assert task.engine.counters.gaps == task.engine.counters.late == 0


def test_slow_slices_become_smaller_and_quick_ones_larger() -> None:
    task = Task(0, (EVENTS,), Limits())
    before = task._most
    for _ in range(20):
        task._adapt(1.0, task._most)
    assert task._most == 16
    task._adapt(0.001, 3)
    assert task._most == 16, "a small slice says nothing about large ones"
    for _ in range(20):
        task._adapt(0.001, task._most)
    assert task._most > before


def test_only_sessions_at_home_are_folded() -> None:
    homes = Homes("murmur2", 4)
    task = Task(1, (EVENTS, "notes"), Limits(), homes, "notes")
    task.place({EVENTS: 0, "notes": 0}, {})
    names = [f"s{n}" for n in range(40)]
    values: list[bytes | None] = [event(1, name) for name in names]
    messages = [
        Fetched(EVENTS, 1, n, n, name.encode(), value)
        for n, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    task.add(EVENTS, messages)
    folded = task.fold((), 0.0)
    assert folded is not None
    here = [name for name in names if homes.of(name) == 1]
    assert [name for name in names if name in task.engine] == here
    elsewhere = [name for name in names if name not in here]
    assert [(stray.session_id, stray.home) for stray in folded.strays] == [(n, homes.of(n)) for n in elsewhere]
    assert [letter.session_id for letter in folded.letters] == elsewhere
    assert folded.misplaced == {EVENTS: len(elsewhere)}
    assert task.positions[EVENTS] == 40
