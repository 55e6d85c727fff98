"""Alerts: raised once, updated, cleared once; no flapping, whatever the values dance."""

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.config import Settings
from sidecar.fleet.alerts import (
    Bounds,
    Condition,
    Facts,
    Watch,
    concerns,
    halt_alert,
    judge,
    newer,
    node_alert,
    of_dim,
    of_session,
)
from sidecar.fleet.book import Book
from sidecar.fleet.groups import Dim, Partial
from sidecar.fleet.model import Row
from sidecar.fleet.windows import HOUR, Counts
from sidecar.protocol.outputs import Alert, Finding, Halt, HaltAck, Subject

NOW = 1_800_000_000.0 // HOUR * HOUR + 1800.0
BOUNDS = Bounds()


def partial(statuses: dict[str, int] | None = None, last: float = NOW, counts: Counts | None = None) -> Partial:
    known = statuses or {}
    return Partial(
        sessions=sum(known.values()), statuses=known, counts=counts or Counts(), first=NOW - 9 * HOUR, last=last
    )


def only(facts: Facts, kind: str, now: float = NOW, bounds: Bounds = BOUNDS) -> Condition:
    (found,) = [c for c in of_dim(facts, bounds, now) if c.kind == kind]
    return found


# --- each kind --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "raised", "cleared"),
    [
        ({"verified": 10}, False, True),
        ({"verified": 5, "lossy": 5}, True, False),
        ({"verified": 6, "lossy": 4}, False, False),  # between the bounds: it stands if it stood
        ({"verified": 8, "corrupt": 2}, False, True),
        ({"corrupt": 1, "lossy": 1, "degraded": 1, "unverified": 1}, False, True),  # too few to speak of a storm
        ({"corrupt": 1, "lossy": 1, "degraded": 1, "unverified": 1, "stale": 1}, True, False),
        ({"stale": 10}, False, True),  # exposed, not degraded
        ({}, False, True),
    ],
)
def test_storm(statuses: dict[str, int], raised: bool, cleared: bool) -> None:
    for by in ("tenant", "model"):
        condition = only(Facts(dim=Dim(by, "x"), total=partial(statuses)), "storm")
        assert (condition.raised, condition.cleared) == (raised, cleared)
        assert condition.alert_id == f"storm/{by}/x" and getattr(condition, by) == "x"
    assert not [
        c for c in of_dim(Facts(dim=Dim("agent", "x"), total=partial(statuses)), BOUNDS, NOW) if c.kind == "storm"
    ]


def test_a_storm_of_nearly_everybody_is_critical() -> None:
    assert only(Facts(dim=Dim("tenant", None), total=partial({"lossy": 9, "stale": 1})), "storm").severity == "critical"
    assert only(Facts(dim=Dim("tenant", None), total=partial({"lossy": 6, "stale": 4})), "storm").severity == "error"


def history(*hours: int, rule: str = "constraint_dropped", now: int = 0) -> Counts:
    counts, current = Counts(), int(NOW // HOUR)
    for back, number in enumerate(reversed(hours), start=2):
        counts.add(rule, (current - back) * HOUR + 5.0, number)
    if now:
        counts.add(rule, NOW - 60, now)
    return counts


@pytest.mark.parametrize(
    ("before", "now", "raised", "cleared"),
    [
        ((3, 3, 3, 3), 12, True, False),
        ((3, 3, 3, 3), 11, False, False),
        ((3, 3, 3, 3), 5, False, True),
        ((1, 0, 1, 0), 9, False, False),  # many times as often, and too few
        ((1, 0, 1, 0), 10, True, False),
        ((), 500, False, False),  # nothing is known of before
        ((3,), 500, False, False),  # an hour is not enough
        ((30, 30, 30), 60, False, False),
        ((30, 30, 30), 120, True, False),
    ],
)
def test_regression(before: tuple[int, ...], now: int, raised: bool, cleared: bool) -> None:
    for by in ("agent", "model"):
        facts = Facts(dim=Dim(by, "x"), total=partial({"stale": 1}, counts=history(*before, now=now)))
        condition = only(facts, "regression")
        assert (condition.raised, condition.cleared) == (raised, cleared)
        assert condition.rule == "constraint_dropped" and condition.value == now
        assert condition.alert_id == f"regression/constraint_dropped/{by}/x"


def test_a_regression_says_since_when() -> None:
    counts = history(3, 3, 3, 3, now=40)
    condition = only(Facts(dim=Dim("model", "m"), total=partial(counts=counts)), "regression")
    assert condition.since is not None and NOW - 120 < condition.since <= NOW
    assert "40 times in the last hour" in condition.message and "3.0 times an hour" in condition.message


def test_a_rule_that_this_version_does_not_know_is_judged_all_the_same() -> None:
    facts = Facts(dim=Dim("model", "m"), total=partial(counts=history(1, 1, 1, now=40, rule="of_the_future")))
    assert only(facts, "regression").raised


def test_an_agent_whose_nodes_are_frozen_again_and_again() -> None:
    counts = Counts()
    counts.add("idempotence_violation", NOW - 100, 6)
    counts.add("unreconciled_recompaction", NOW - 50, 3)
    counts.add("budget_exceeded", NOW - 50, 50)
    facts = Facts(dim=Dim("agent", "a"), total=partial(counts=counts))
    assert not only(facts, "repeat_offender").raised
    counts.add("orphaned_resummarized", NOW - 50)
    assert only(facts, "repeat_offender").raised and only(facts, "repeat_offender").value == 10
    assert only(facts, "repeat_offender", now=NOW + 2 * HOUR).cleared


@pytest.mark.parametrize(
    ("statuses", "quiet", "behind", "raised", "cleared"),
    [
        ({"lossy": 1}, 1000.0, False, True, False),
        ({"lossy": 1}, 800.0, False, False, True),
        ({"stale": 9}, 1000.0, False, False, True),
        ({"lossy": 1}, 1000.0, True, False, False),  # the records may only not have been read
        ({"lossy": 1}, 90_000.0, False, False, True),  # it is over
    ],
)
def test_silence(statuses: dict[str, int], quiet: float, behind: bool, raised: bool, cleared: bool) -> None:
    facts = Facts(dim=Dim("tenant", "t"), total=partial(statuses, last=NOW - quiet), behind=behind)
    condition = only(facts, "silence")
    assert (condition.raised, condition.cleared) == (raised, cleared)
    assert condition.since == NOW - quiet


def halted(opened: float = NOW, ack: bool = False) -> Row:
    row = Row("s")
    halt = Halt(
        halt_id="h",
        session_id="s",
        position=5,
        status="halt",
        checkpoint_id=None,
        reason=["edge_hallucinated"],
        finding_ids=["f"],
        open_halts=["h"],
    )
    row.halts.apply(halt, 0, opened)
    if ack:
        row.acks.apply(HaltAck(halt_id="h", by="ada", decision="replay"), 0, opened)
    return row


def test_an_unacknowledged_halt_grows_more_severe() -> None:
    row = halted()
    assert concerns(row)
    for age, raised, severity in (
        (0, False, "warning"),
        (299, False, "warning"),
        (300, True, "warning"),
        (900, True, "error"),
        (3600, True, "critical"),
        (9e6, True, "critical"),
    ):
        (condition,) = of_session(row, BOUNDS, NOW + age)
        assert (condition.raised, condition.severity) == (raised, severity)
    assert condition.alert_id == halt_alert("s", "h") and "edge_hallucinated" in condition.message


def test_a_halt_that_somebody_has_in_hand_is_none_to_alert_to() -> None:
    row = halted(ack=True)
    assert list(of_session(row, BOUNDS, NOW + 9000)) == [] and not concerns(row)


def test_a_halt_of_which_only_the_id_is_known_counts_from_when_it_was_heard_of() -> None:
    row = Row("s")
    other = Halt(
        halt_id="x",
        session_id="s",
        position=5,
        status="clear",
        checkpoint_id=None,
        reason=[],
        finding_ids=[],
        open_halts=["h"],
    )
    row.halts.apply(other, 0, NOW)
    (condition,) = of_session(row, BOUNDS, NOW + 400)
    assert condition.raised and condition.subject == "h" and condition.value == 400


def test_a_node_that_is_frozen_again_and_again() -> None:
    row = Row("s")
    for i in range(3):
        finding = Finding(
            finding_id=f"f{i}",
            rule="idempotence_violation",
            severity="error",
            disposition="freeze",
            session_id="s",
            subject=Subject("node", "n/1"),
            position=i,
            evidence={},
        )
        (before,) = of_session(row, BOUNDS, NOW) if i else (None,)
        assert before is None or not before.raised
        row.findings.apply(finding, b"{}", i, NOW - 60 + i)
    (condition,) = of_session(row, BOUNDS, NOW)
    assert condition.raised and condition.alert_id == node_alert("s", "n/1") == "repeat_offender/node/s/n%2F1"
    (later,) = of_session(row, BOUNDS, NOW + HOUR)
    assert later.cleared


def test_ids_cannot_be_made_to_collide() -> None:
    assert halt_alert("a/b", "c") != halt_alert("a", "b/c")
    assert only(Facts(dim=Dim("tenant", None), total=partial()), "storm").alert_id == "storm/tenant"
    assert only(Facts(dim=Dim("tenant", "None"), total=partial()), "storm").alert_id == "storm/tenant/None"


# --- one alert's life -------------------------------------------------------------------------------------------------


def condition(**changes: Any) -> Condition:
    fields: dict[str, Any] = {
        "alert_id": "storm/tenant/t",
        "kind": "storm",
        "subject_type": "tenant",
        "subject": "t",
        "severity": "error",
        "raised": False,
        "cleared": False,
        "value": 0.5,
        "bound": 0.5,
        "message": "m",
        "remedy": "r",
        "hold": 30.0,
        **changes,
    }
    return Condition(**fields)


class Life:
    """One alert, judged again and again."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.book = Book(bounds)
        self.now = NOW

    def judge(self, seconds: float, **changes: Any) -> list[str]:
        self.now += seconds
        found = self.book.judge_dims([condition(**changes)], set(), self.now)
        return [alert.status for alert in found]

    @property
    def alert(self) -> Alert:
        return self.book.alerts["storm/tenant/t"]


def test_it_is_raised_once_updated_and_cleared_once() -> None:
    life = Life()
    assert life.judge(0, raised=True) == []
    assert life.judge(29, raised=True) == []
    assert life.judge(1, raised=True) == ["raised"]
    assert life.alert.raised_at.timestamp() == NOW + 30 and life.alert.since.timestamp() == NOW
    assert life.judge(2, raised=True) == []
    assert life.judge(2, raised=True, value=0.9) == []  # not so soon
    assert life.judge(60, raised=True, value=0.52) == []  # not so little
    assert life.judge(60, raised=True, value=0.9) == ["updated"]
    assert life.judge(1, raised=True, value=0.9, severity="critical") == ["updated"]  # at once
    assert life.judge(1, raised=True, value=0.9) == [] and life.alert.severity == "critical"
    assert life.judge(60, cleared=True, value=0.1) == []
    assert life.judge(30, cleared=True, value=0.1) == ["cleared"]
    assert life.judge(30, cleared=True, value=0.1) == []
    assert life.alert.cleared_at is not None and life.alert.version == 4 and life.alert.occurrence == 1
    assert life.judge(0, raised=True) == [] and life.judge(30, raised=True) == ["raised"]
    assert (life.alert.occurrence, life.alert.version, life.alert.cleared_at) == (2, 5, None)


def test_a_break_begins_the_hold_anew() -> None:
    life = Life()
    life.judge(0, raised=True)
    life.judge(20, raised=False)
    assert life.judge(15, raised=True) == []
    assert life.judge(29, raised=True) == []
    assert life.judge(1, raised=True) == ["raised"]
    life.judge(0, cleared=True)
    life.judge(20)
    assert life.judge(15, cleared=True) == []
    assert life.judge(30, cleared=True) == ["cleared"]


def test_what_it_was_about_is_gone() -> None:
    life = Life()
    life.judge(0, raised=True)
    life.judge(30, raised=True)
    (cleared,) = life.book.judge_dims([], set(), life.now + 1)
    assert cleared.status == "cleared" and "no longer known" in cleared.message


def test_of_what_nothing_can_be_said_yet_nothing_is_cleared() -> None:
    life = Life()
    life.judge(0, raised=True)
    life.judge(30, raised=True)
    assert life.book.judge_dims([], {("tenant", "t")}, life.now + 1000) == []
    assert life.alert.status == "raised"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_never_flaps(seed: int) -> None:
    """Values that dance on a bound, judged at any times: raised and cleared take turns, and never within the hold."""
    chance, life, seen = random.Random(seed), Life(), []
    for _ in range(200):
        value = chance.choice((0.2, 0.29, 0.31, 0.49, 0.5, 0.51, 0.9))
        for status in life.judge(
            chance.choice((0.1, 2.0, 10.0, 31.0)), value=value, raised=value >= 0.5, cleared=value < 0.3
        ):
            seen.append((status, life.now))
    turns = [(status, at) for status, at in seen if status != "updated"]
    assert [status for status, _ in turns] == (["raised", "cleared"] * len(turns))[: len(turns)]
    assert all(later - earlier >= 30.0 for (_, earlier), (_, later) in pairwise(turns))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_restart_neither_raises_again_nor_forgets(seed: int) -> None:
    """The topic is all that a new owner has: what it goes on to write continues what is there, however it crashes."""
    chance, topic, now = random.Random(seed), [], NOW
    book = Book(Bounds(hold=0.0))
    raised = False
    for _ in range(100):
        now += chance.choice((1.0, 61.0))
        value = chance.choice((0.1, 0.6, 0.9))
        if not book.changed:
            book.judge_dims([condition(value=value, raised=value >= 0.5, cleared=value < 0.3, hold=0.0)], set(), now)
        if chance.random() < 0.8:
            versions = dict(book.changed)
            topic += list(book.batch().items())
            book.written(versions)
        if chance.random() < 0.2:
            book = Book(Bounds(hold=0.0))
            for key, written in topic:
                book.apply(key, written)
    written = [msgspec.json.decode(value, type=Alert) for _, value in topic if value is not None]
    versions = [alert.version for alert in written]
    assert versions == sorted(versions)
    for alert in written:
        assert raised == (alert.status != "raised")
        raised = alert.status != "cleared"
    assert [a.occurrence for a in written if a.status == "raised"] == list(range(1, written[-1].occurrence + 1))


def test_the_newer_record_of_an_alert_stands_in_any_order() -> None:
    life = Life()
    life.judge(0, raised=True)
    life.judge(30, raised=True)
    first = life.alert
    life.judge(60, cleared=True)
    life.judge(60, cleared=True)
    second = life.alert
    assert newer(first, second) is second and newer(second, first) is second
    book = Book(BOUNDS)
    for alert in (second, first):
        book.apply(alert.alert_id.encode(), msgspec.json.encode(alert))
    assert book.alerts[first.alert_id] == second
    book.apply(first.alert_id.encode(), None)
    assert book.alerts == {}
    with pytest.raises(ValueError, match="no alert"):
        book.apply(b"x", b"{}")


def test_cleared_alerts_are_forgotten_in_time() -> None:
    life = Life()
    life.judge(0, raised=True)
    life.judge(30, raised=True)
    assert life.book.forget(life.now + 1e9) == 0
    life.judge(0, cleared=True)
    life.judge(31, cleared=True)
    assert life.book.forget(life.now + 1e9) == 0  # it has not been written yet
    life.book.written(dict(life.book.changed))
    assert life.book.forget(life.now + 1e9) == 1
    assert life.book.batch() == {b"storm/tenant/t": None}


def test_only_what_is_asked_about_is_remembered() -> None:
    watch = Watch()
    judge([condition(raised=True)], {}, watch, BOUNDS, NOW)
    assert watch.bad
    judge([], {}, watch, BOUNDS, NOW)
    assert not watch.bad


def test_the_settings_are_the_bounds() -> None:
    assert Bounds(**Settings().alerts.model_dump()) == Bounds()
