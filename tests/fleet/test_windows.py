"""Counts in buckets of time: what is counted, in which window, and since when there is more of it."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.fleet.windows import FINE, HOUR, LONG, SHORT, Counts, total

NOW = 1_800_000_000.0
RULES = ("edge_dropped", "constraint_dropped", "budget_exceeded")


def plain(findings: list[tuple[str, float]], seconds: float, now: float) -> dict[str, int]:
    first, last = (now - seconds) // FINE + 1, now // FINE
    return dict(Counter(rule for rule, at in findings if first <= at // FINE <= last))


@settings(max_examples=100, deadline=None)
@given(
    findings=st.lists(st.tuples(st.sampled_from(RULES), st.floats(NOW - 30 * HOUR, NOW)), max_size=200),
    order=st.integers(0, 2**32),
    parts=st.integers(1, 4),
)
def test_windows_are_exact_in_any_order_and_in_parts(findings: list[tuple[str, float]], order: int, parts: int) -> None:
    random.Random(order).shuffle(findings)
    counts = [Counts() for _ in range(parts)]
    for i, (rule, at) in enumerate(findings):
        counts[i % parts].add(rule, at)
    whole = total(counts)
    assert whole.within(SHORT, NOW) == plain(findings, SHORT, NOW)
    assert whole.within(LONG, NOW) == plain(findings, LONG, NOW)
    hour = NOW // HOUR
    assert whole.before(NOW) == dict(Counter(r for r, at in findings if hour - 24 <= at // HOUR <= hour - 2))
    # What is taken away again leaves what was there.
    whole.include(counts[0], -1)
    others = [f for i, f in enumerate(findings) if i % parts]
    assert whole.within(LONG, NOW) == plain(others, LONG, NOW)


def test_what_is_kept_is_bounded() -> None:
    counts = Counts()
    for i in range(100_000):
        counts.add("edge_dropped", NOW + i * 10.0)
    assert len(counts.fine) <= 131 and len(counts.hours) <= 27
    counts.add("edge_dropped", NOW)
    assert NOW // FINE not in counts.fine


def test_a_window_slides() -> None:
    counts = Counts()
    counts.add("edge_dropped", NOW)
    assert counts.within(SHORT, NOW) == {"edge_dropped": 1}
    assert counts.within(SHORT, NOW + SHORT - FINE) == {"edge_dropped": 1}
    assert counts.within(SHORT, NOW + SHORT + FINE) == {}
    assert counts.within(LONG, NOW + LONG - FINE) == {"edge_dropped": 1}
    assert counts.within(LONG, NOW + LONG + FINE) == {}


def test_a_clock_that_is_a_little_ahead_is_not_left_out() -> None:
    counts = Counts()
    counts.add("edge_dropped", NOW + 60)
    assert counts.within(SHORT, NOW) == {"edge_dropped": 1}


def hourly(*numbers: int) -> Counts:
    """Count so many in each hour, the last one being the current."""
    counts, hour = Counts(), int(NOW // HOUR)
    for back, number in enumerate(reversed(numbers)):
        if number:
            counts.add("edge_dropped", (hour - back) * HOUR + 10.0, number)
    return counts


@pytest.mark.parametrize(
    ("numbers", "begin"),
    [
        ((), None),
        ((5, 5, 5, 5), None),
        ((5, 5, 5, 50), 0),  # since the current hour
        ((5, 5, 50, 3), 1),  # the current one has only just begun
        ((2, 2, 40, 60, 50, 4), 3),
        ((2, 40, 2, 2, 2), None),  # it has passed
        ((100, 20, 20, 20), None),  # less than before
        ((1, 1, 4), None),  # many times as often, but too few to say so
        ((9, 30), None),  # not four times as often
        ((9, 36), 0),
    ],
)
def test_a_rise_begins_where_every_hour_since_has_had_more(numbers: tuple[int, ...], begin: int | None) -> None:
    since = hourly(*numbers).risen("edge_dropped", NOW, 4.0, 5)
    assert since == (None if begin is None else pytest.approx((NOW // HOUR - begin) * HOUR, abs=30))


def test_a_rise_of_the_last_hour_is_known_to_half_a_minute() -> None:
    counts = hourly(2, 2, 0)
    begun = NOW // HOUR * HOUR + 600.0
    counts.add("edge_dropped", begun, 50)
    assert counts.risen("edge_dropped", begun + 100, 4.0, 5) == begun // FINE * FINE
    assert counts.first("edge_dropped", NOW) == pytest.approx((NOW // HOUR - 2) * HOUR, abs=30)


def test_a_rule_that_has_not_fired_today_was_not_first_seen() -> None:
    counts = Counts()
    assert counts.first("edge_dropped", NOW) is None and not counts
    counts.add("edge_dropped", NOW - 27 * HOUR)
    assert counts.first("edge_dropped", NOW) is None and counts
