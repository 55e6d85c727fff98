"""The drawing: everything is in its place and in order, and however much there is to tell, it can be read."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.fleet.page.drawing import NARROW, Drawing, draw
from sidecar.fleet.page.render import render_session
from sidecar.fleet.page.scale import Kind, Scale
from sidecar.fleet.page.views import session
from sidecar.fleet.shown import fitted, lasting, shown
from sidecar.fleet.timeline import Band, Covered, HaltSpan, Point, Stretch, Thread, Timeline
from tests.fleet.states import LONG
from tests.fleet.support import state

positions = st.integers(1, 10**12)


@given(st.lists(positions, max_size=60), positions, positions, st.sampled_from(["even", "true"]))
def test_a_scale_keeps_the_order_and_stays_within_its_edges(stops: list[int], a: int, b: int, kind: Kind) -> None:
    lo, hi = min(a, b), max(a, b)
    scale = Scale(sorted(set(stops)), lo, hi, 100.0, 900.0, kind)
    xs = [scale.x(p) for p in sorted({*stops, lo, hi, lo + 1, (lo + hi) // 2})]
    assert xs == sorted(xs)
    assert all(100.0 <= x <= 900.0 for x in xs)
    assert scale.x(lo) == 100.0
    assert hi == lo or scale.x(hi) == 900.0
    ticks = scale.ticks()
    assert [t.position for t in ticks] == sorted({t.position for t in ticks})
    assert all(y.x - x.x > 40 for x, y in pairwise(ticks))


def test_an_even_scale_tells_apart_what_is_close_in_a_long_log() -> None:
    stops = [44_785, 100_200, 100_204, 100_206, 100_207, 100_208]
    even = Scale(stops, 1, 100_208, 0.0, 800.0, "even")
    true = Scale(stops, 1, 100_208, 0.0, 800.0, "true")
    assert even.x(100_207) - even.x(100_206) > 10 > 1 > true.x(100_207) - true.x(100_206)
    assert sum(b.positions for b in even.breaks()) > 50_000
    assert true.breaks() == []


def test_a_short_log_is_always_drawn_true_to_distance() -> None:
    assert Scale([3, 5], 1, 100, 0.0, 99.0, "even").x(51) == 50.0


def many(count: int) -> Timeline:
    """Return a timeline with so many things of every kind."""
    step = 1000
    threads = [
        Thread(
            lane=lane,
            verdict="dropped",
            label=(f"thing {n}",),
            said=(f"Thing {n} was lost.",),
            points=[Point(n * step + 1, "granted"), Point(n * step + 7, "absent")],
            stretches=[Stretch(n * step + 1, n * step + 7, "held")],
            severity="error",
            position=n * step + 7,
            key=f"{lane[0]}{n}",
        )
        for lane in ("agent", "approvals", "values", "content", "summaries")
        for n in range(count)
    ]
    return Timeline(
        position=count * step,
        threads=threads,  # type: ignore[arg-type]
        checkpoints=[
            Covered(checkpoint_id=f"c{n}", position=n * step + 9, lo=1, hi=n * step + 5, level=1) for n in range(count)
        ],
        halts=[
            HaltSpan(halt_id=f"h{n}", opened=n * step + 7, cleared=None if n % 2 else n * step + 9)
            for n in range(count)
        ],
        bands=[Band(n * step + 20, n * step + 21, "gap", f"f{n}") for n in range(count)],
        headlines=[],
        unknown=[],
    )


@pytest.mark.parametrize("count", [0, 1, 3, 13, 700])
@pytest.mark.parametrize("kind", ["even", "true"])
def test_its_size_is_bounded_however_much_there_is_to_tell(count: int, kind: Kind) -> None:
    _check(draw(many(count), kind, layout=NARROW))
    drawing = draw(many(count), kind)
    assert drawing.height < 1700
    assert len(drawing.rows) < 70
    assert sum(len(r.marks) for r in drawing.rows) < 700
    _check(drawing)


@pytest.mark.parametrize("window", [(1, 1), (1, 50), (4000, 6000), (10**9, 10**10), (5, 2)])
def test_a_part_of_the_log_says_what_is_outside(window: tuple[int, int]) -> None:
    whole, part = draw(many(20)), draw(many(20), window=window)
    _check(part)
    assert part.outside > whole.outside == 0
    assert part.lo < part.hi


async def test_every_session_of_every_state_can_be_drawn() -> None:
    for name in ("healthy", "storm", "long", "hostile"):
        fleet = state(name)
        for session_id in fleet.session_ids()[:20]:
            detail = await fleet.session(session_id)
            assert detail is not None
            view = session(detail)
            _check(view.drawing)
            _check(view.narrow)
            # Well-formed, whatever the ids: what an XML parser takes, a browser does.
            html = render_session(view, mark="m", part=True)
            for svg in re.findall(r"<svg class=\"drawing .*?</svg>", html, re.DOTALL):
                ElementTree.fromstring(svg)


async def test_a_session_of_100_000_positions_can_be_read() -> None:
    detail = await state("long").session(LONG)
    assert detail is not None and detail.summary.position > 100_000 and detail.summary.findings > 500
    drawing = session(detail).drawing
    _check(drawing)
    assert drawing.height < 1500
    assert drawing.kind == "even" and drawing.breaks
    row = next(r for r in drawing.rows if r.verdict == "dropped" and "approval" in r.label)
    granted, absent = row.marks
    assert (granted.shape, absent.shape) == ("granted", "absent")
    assert absent.x - granted.x > 50
    force = next(r for r in drawing.rows if r.strong)
    assert absent.x == force.marks[0].x, "the cross stands under the checkpoint that lacks the approval"


def _check(drawing: Drawing) -> None:
    ys = [r.y for r in drawing.rows]
    assert ys == sorted(ys) and all(b - a >= 20 for a, b in pairwise(ys))
    assert not ys or ys[-1] < drawing.height
    for row in drawing.rows:
        places = [m.x for m in row.marks] + [x for line in row.lines for x in (line.x1, line.x2)]
        if row.bar is not None:
            places += [row.bar.x, row.bar.x + row.bar.width - 3]
        assert all(drawing.layout.left <= x <= drawing.layout.right for x in places)
        assert row.title and row.label
        clusters = [m.x for m in row.marks if m.count > 1]
        assert all(b - a >= 24 for a, b in pairwise(clusters))


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain-id_1", "plain-id_1"),
        ("a\nb\tc", "a\\u000ab\\u0009c"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("\u202eabc\u202c", "\\u202eabc\\u202c"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\ud800", "\\ud800"),
        ("a\u200bb", "a\\u200bb"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("é שלום", "é שלום"),
        ("\U000e0041", "\\U000e0041"),
        ("x" * 300, "x" * 132 + "…" + "x" * 67),
    ],
)
def test_ids_are_shown_so_that_they_cannot_deceive(text: str, expected: str) -> None:
    assert shown(text) == expected


@given(st.text(max_size=80), st.integers(4, 40))
def test_what_is_shown_is_printable_and_fits(text: str, columns: int) -> None:
    result = fitted(text, columns)
    assert all(c.isprintable() or c in "\u200c\u200d" for c in result)
    assert result.isascii() is False or len(result) <= columns or "\\" in result


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90000, "1 d 1 h"),
        (172800, "2 d"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert lasting(seconds) == text
