"""When a broker was last heard of, whatever becomes of the clock."""

import time

import pytest
from aiokafka import TopicPartition

from sidecar.tail.polls import NEVER, Polls

TP = TopicPartition("agent.events", 0)


class Clocks:
    """Hold both clocks, and what a consumer notes by the one that can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day, self.steady = 1_800_000_000.0, 500.0
        self.noted: int | None = None
        monkeypatch.setattr(time, "time", lambda: self.day)
        monkeypatch.setattr(time, "monotonic", lambda: self.steady)

    def go(self, seconds: float) -> None:
        self.day += seconds
        self.steady += seconds

    def answer(self) -> None:
        self.noted = round(self.day * 1000)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_an_answer_grows_old(clocks: Clocks) -> None:
    polls = Polls(lambda tp: clocks.noted)
    assert polls.last(TP) == NEVER
    clocks.answer()
    clocks.go(0.25)
    assert polls.last(TP) == pytest.approx(500.0)
    clocks.go(60)
    assert polls.last(TP) == pytest.approx(500.0)
    clocks.answer()
    assert polls.last(TP) == pytest.approx(560.25)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_makes_no_answer_newer(clocks: Clocks, jump: float) -> None:
    polls = Polls(lambda tp: clocks.noted)
    clocks.answer()
    assert polls.last(TP) == pytest.approx(500.0)
    clocks.day += jump
    for _ in range(10):
        clocks.go(10)
        assert polls.last(TP) == pytest.approx(500.0)
    clocks.answer()
    assert polls.last(TP) == pytest.approx(600.0)


def test_set_back_between_the_answer_and_the_look_it_is_not_one_to_come(clocks: Clocks) -> None:
    polls = Polls(lambda tp: clocks.noted)
    clocks.answer()
    clocks.day -= 3600
    assert polls.last(TP) == 500.0
