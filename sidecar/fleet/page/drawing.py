"""The drawing of a session's timeline: plain shapes at plain places, from data to what the template writes as SVG.

Its height is bounded however much there is to tell: each part shows its worst rows, and one row for all the others.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from sidecar.fleet.page.scale import Break, Kind, Scale, Tick
from sidecar.fleet.shown import counted, fitted
from sidecar.fleet.timeline import (
    LANES,
    Band,
    Covered,
    HaltSpan,
    Lane,
    Look,
    Name,
    Shape,
    Thread,
    Timeline,
    Words,
    plain,
)

_HEAD, _AXIS = 26.0, 34.0
_MOST: dict[Lane, int] = {"agent": 6, "approvals": 12, "values": 8, "content": 8, "summaries": 6}
_MOST_CHECKPOINTS = 9
_MOST_HALTS = 3
_MOST_BANDS = 40
_CLUSTER = 28.0
_CALM = ("kept", "in effect")
_RANK = {"critical": 0, "error": 1, "warning": 2}
_STATUSES = ("corrupt", "lossy", "degraded", "unverified", "stale", "verified", "")


class Layout(Struct, frozen=True, kw_only=True):
    """Say where things go: the log stands between `left` and `right`, labels of so many columns before it.

    `stacked`: label and verdict stand above a row's shapes, where there is no room beside the log.
    """

    name: str
    width: int
    left: float
    right: float
    row: float
    columns: int
    stacked: bool = False


WIDE = Layout(name="wide", width=1220, left=262.0, right=1054.0, row=24.0, columns=33)
NARROW = Layout(name="narrow", width=284, left=8.0, right=276.0, row=40.0, columns=24, stacked=True)


class Line(Struct, frozen=True):
    """Draw a stretch of a row."""

    x1: float
    x2: float
    look: Look


class Mark(Struct, frozen=True):
    """Draw a shape; `count` above 1: it stands for so many at about the same place."""

    x: float
    shape: Shape
    title: str
    count: int = 1


class Bar(Struct, frozen=True):
    """Draw a range: of a checkpoint (`look` is its status), or of a halt (`open`, `cleared`)."""

    x: float
    width: float
    look: str
    begins: bool = True
    ends: bool = True


class Row(Struct, kw_only=True):
    """Draw one row: its label on the left, its verdict on the right, and between them what stands where."""

    y: float
    label: str
    verdict: str
    title: str
    tone: str
    key: str = ""
    bar: Bar | None = None
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    strong: bool = False


class Heading(Struct, frozen=True):
    """Name a part of the drawing."""

    y: float
    text: str


class Shade(Struct, frozen=True):
    """Shade missing or conflicting positions over the whole height."""

    x: float
    width: float
    what: Literal["gap", "conflict"]
    title: str


class Drawing(Struct, kw_only=True):
    """Hold everything that is drawn."""

    layout: Layout
    height: float = 0
    top: float = _AXIS
    lo: int
    hi: int
    kind: Kind
    can_choose: bool
    ticks: list[Tick]
    breaks: list[Break]
    headings: list[Heading] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    guides: list[float] = field(default_factory=list)
    shades: list[Shade] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    outside: int = 0
    description: str = ""


def draw(
    timeline: Timeline, kind: Kind = "even", window: tuple[int, int] | None = None, layout: Layout = WIDE
) -> Drawing:
    """Lay a timeline out.

    Args:
        timeline: what there is to tell.
        kind: the scale; see `Scale`.
        window: the first and last position to show; None: the whole log.
        layout: where things go.
    """
    first, last = timeline.extent
    lo, hi = window if window is not None else (first, last)
    lo, hi = max(1, min(lo, last)), min(max(hi, lo + 1), max(last, lo + 1))
    chosen = _choose(timeline, lo, hi)
    # Only what gets a row of its own is given room; a thousand cleared halts must not press it together.
    scale = Scale(chosen.positions(), lo, hi, layout.left, layout.right, kind)
    drawing = Drawing(
        layout=layout,
        lo=lo,
        hi=hi,
        kind=scale.kind,
        can_choose=scale.kind == "even" or kind == "true",
        ticks=scale.ticks(),
        breaks=scale.breaks(),
        outside=chosen.outside,
    )
    pen = _Pen(drawing, scale)
    pen.halts(chosen)
    pen.threads("agent", chosen)
    pen.checkpoints(chosen)
    for lane in LANES:
        if lane != "agent":
            pen.threads(lane, chosen)
    pen.bands(chosen.bands)
    pen.finish()
    return drawing


class _Chosen(Struct):
    """Hold what gets a row of its own, and what shares one with others of its kind."""

    halts: list[HaltSpan]
    open_rest: list[HaltSpan]
    cleared: list[HaltSpan]
    checkpoints: list[Covered]
    checkpoints_rest: list[Covered]
    threads: dict[Lane, list[Thread]]
    threads_rest: dict[Lane, list[Thread]]
    bands: list[Band]
    outside: int = 0

    def positions(self) -> list[int]:
        found: set[int] = {0}
        for threads in self.threads.values():
            for thread in threads:
                found.update(p.at for p in thread.points)
                found.update(p for s in thread.stretches for p in (s.lo, s.hi))
        for one in self.checkpoints:
            found.update((one.position, one.lo or 0, one.hi or 0))
        for halt in self.halts:
            found.update((halt.opened or 0, halt.cleared or 0))
        for band in self.bands[:_MOST_BANDS]:
            found.update((band.lo, band.hi))
        found.discard(0)
        return sorted(found)


def _choose(timeline: Timeline, lo: int, hi: int) -> _Chosen:
    """Choose what is shown between two positions: of each kind the worst, and of these the newest."""

    def within(first: int, last: int) -> bool:
        return first <= hi and last >= lo

    halts = [h for h in timeline.halts if within(h.opened or 1, h.cleared or hi)]
    open_now = [h for h in halts if h.cleared is None]
    cleared = [h for h in halts if h.cleared is not None]
    covered = [c for c in timeline.checkpoints if within(c.lo or c.position, max(c.hi or 0, c.position))]
    ranked = sorted(covered, key=lambda c: (not c.in_force, not c.rules, _bad(c.status), -c.position))
    bands = [b for b in timeline.bands if within(b.lo, b.hi)]
    threads: dict[Lane, list[Thread]] = {}
    rest: dict[Lane, list[Thread]] = {}
    seen = 0
    for lane, most in _MOST.items():
        mine = [t for t in timeline.threads if t.lane == lane and within(*t.span)]
        seen += len(mine)
        mine.sort(key=lambda t: (t.verdict in _CALM, _RANK[t.severity or "warning"], -t.position))
        if len(mine) == most + 1:
            most += 1  # a row that says "1 more" would take the place of that one
        threads[lane] = sorted(mine[:most], key=lambda t: (t.verdict in _CALM, t.span, t.key))
        rest[lane] = mine[most:]
    every = len(timeline.halts) + len(timeline.checkpoints) + len(timeline.threads) + len(timeline.bands)
    return _Chosen(
        halts=[*open_now[: -_MOST_HALTS - 1 : -1], *(cleared if len(cleared) == 1 else [])],
        open_rest=open_now[:-_MOST_HALTS],
        cleared=cleared if len(cleared) > 1 else [],
        checkpoints=sorted(ranked[:_MOST_CHECKPOINTS], key=lambda c: (-c.level, c.position, c.checkpoint_id)),
        checkpoints_rest=ranked[_MOST_CHECKPOINTS:],
        threads=threads,
        threads_rest=rest,
        bands=sorted(bands, key=lambda b: (b.what, b.lo)),
        outside=every - len(halts) - len(covered) - seen - len(bands),
    )


class _Pen:
    """Write row after row, downwards."""

    def __init__(self, drawing: Drawing, scale: Scale) -> None:
        self._d = drawing
        self._scale = scale
        self._columns = drawing.layout.columns
        self._y = drawing.top

    def halts(self, chosen: _Chosen) -> None:
        if not (chosen.halts or chosen.open_rest or chosen.cleared):
            return
        self._head("Halts")
        for halt in chosen.halts:
            self._halt(halt)
        if chosen.open_rest:
            self._many_halts(chosen.open_rest, "open")
        if chosen.cleared:
            self._many_halts(chosen.cleared, "cleared")

    def checkpoints(self, chosen: _Chosen) -> None:
        if not chosen.checkpoints:
            return
        self._head("Checkpoints, by level")
        for one in chosen.checkpoints:
            self._checkpoint(one)
        if rest := chosen.checkpoints_rest:
            title = f"{counted(len(rest), 'more checkpoint')}, listed below"
            marks = self._clustered((c.position, "written") for c in rest)
            self._row(Row(y=0, label=f"{len(rest):,} more", verdict="", title=title, tone="calm", marks=marks))

    def threads(self, lane: Lane, chosen: _Chosen) -> None:
        if not chosen.threads[lane]:
            return
        self._head(LANES[lane])
        for thread in chosen.threads[lane]:
            self._thread(thread)
        if rest := chosen.threads_rest[lane]:
            title = f"{counted(len(rest), 'more row')}, listed below"
            marks = self._clustered((p.at, p.shape) for t in rest for p in t.points[-1:])
            tone = _tone(min(rest, key=lambda t: _RANK[t.severity or "warning"]))
            self._row(Row(y=0, label=f"{len(rest):,} more", verdict="", title=title, tone=tone, marks=marks))

    def bands(self, bands: Sequence[Band]) -> None:
        scale = self._scale
        found: list[Shade] = []
        for band in bands:
            x1, x2 = scale.x(band.lo), scale.x(band.hi)
            where = f"{band.lo:,}" if band.lo == band.hi else f"{band.lo:,} to {band.hi:,}"
            said = f"missing: {where}" if band.what == "gap" else f"two records claim {where}"
            x, width = round(x1 - 2, 1), round(max(4.0, x2 - x1 + 4), 1)
            # Close to the one before: they are one shade, and its title names how far it goes.
            if found and found[-1].what == band.what and x <= found[-1].x + found[-1].width + 3:
                before = found.pop()
                x, width = before.x, round(max(before.width, x + width - before.x), 1)
                said = f"{before.title.partition(' …')[0]} … {where}"
            found.append(Shade(x, width, band.what, said))
        self._d.shades = found

    def finish(self) -> None:
        d = self._d
        d.height = round(self._y + 10, 1)
        alone = (mark.shape for row in d.rows for mark in row.marks if mark.count == 1)
        d.shapes = list(dict.fromkeys(alone))
        lines = [line.look for row in d.rows for line in row.lines]
        bars = [f"is-{row.bar.look}" for row in d.rows if row.bar is not None]
        d.looks = list(dict.fromkeys([*lines, *bars, *(shade.what for shade in d.shades)]))
        ends = [*(h.y for h in d.headings[1:]), d.height]
        parts = [
            f"{h.text}: {counted(sum(1 for r in d.rows if h.y < r.y < end), 'row')}"
            for h, end in zip(d.headings, ends, strict=False)
        ]
        d.description = (
            f"The log from position {d.lo:,} to {d.hi:,}. {'; '.join(parts)}. The tables below say the same."
        )

    # --- rows -------------------------------------------------------------------------------------

    def _halt(self, halt: HaltSpan) -> None:
        why = ", ".join(r.replace("_", " ") for r in halt.reason) or "reason not known"
        end = f"cleared at {halt.cleared:,}" if halt.cleared is not None else "open"
        begin = f"opened at {halt.opened:,}" if halt.opened is not None else "opened before what is known"
        bar = self._bar(halt.opened, halt.cleared, "open" if halt.cleared is None else "cleared")
        tone = "critical" if halt.cleared is None else "calm"
        label = fitted(why, self._columns)
        verdict = "open" if halt.cleared is None else "cleared"
        self._row(Row(y=0, label=label, verdict=verdict, title=f"{why}: {begin}, {end}", tone=tone, bar=bar))

    def _many_halts(self, halts: Sequence[HaltSpan], what: str) -> None:
        marks = self._clustered((h.opened or 1, "fault") for h in halts)
        title = f"{counted(len(halts), 'halt')} {what}, listed below"
        tone = "critical" if what == "open" else "calm"
        label = f"{len(halts):,} {'more ' if what == 'open' else ''}{what}"
        self._row(Row(y=0, label=label, verdict=what, title=title, tone=tone, marks=marks))

    def _checkpoint(self, one: Covered) -> None:
        level = f"level {one.level}" if one.level else "level not known"
        status = one.status or "not known"
        worst = status if one.told or not one.status else f"{status} or worse"
        claimed = f"covers {one.lo:,} to {one.hi:,}" if one.lo is not None and one.hi is not None else "range not known"
        force = ", in force" if one.in_force else ""
        title = f"{plain((Name(one.checkpoint_id),))}: {claimed}, written at {one.position:,}, {level}, {worst}{force}"
        bar = self._bar(one.lo, one.hi, one.status or "unknown") if one.lo is not None and one.hi is not None else None
        marks = []
        if self._scale.shows(one.position):
            x = self._scale.x(one.position)
            marks.append(Mark(x, "written", title))
            self._d.guides.append(x)
        lines = []
        if one.hi is not None and one.hi < one.position and self._scale.shows(one.hi, one.position):
            lines.append(Line(self._scale.x(one.hi), self._scale.x(one.position), "lead"))
        short = f"L{one.level} " if one.level else ""
        self._row(
            Row(
                y=0,
                label=fitted(f"{short}{plain((Name(one.checkpoint_id),))}", self._columns),
                verdict=status if not one.in_force else f"{status}, in force",
                title=title,
                tone=one.status or "calm",
                bar=bar,
                lines=lines,
                marks=marks,
                strong=one.in_force,
            )
        )

    def _thread(self, thread: Thread) -> None:
        scale, said = self._scale, plain(thread.said)
        lines = [Line(scale.x(s.lo), scale.x(s.hi), s.look) for s in thread.stretches if scale.shows(s.lo, s.hi)]
        marks = [Mark(scale.x(p.at), p.shape, f"{said}") for p in thread.points if scale.shows(p.at)]
        self._row(
            Row(
                y=0,
                key=thread.key,
                label=f"{thread.key} {_fit(thread.label, self._columns - len(thread.key) - 1)}",
                verdict=thread.verdict,
                title=said,
                tone=_tone(thread),
                lines=lines,
                marks=marks,
            )
        )

    def _bar(self, lo: int | None, hi: int | None, look: str) -> Bar:
        scale = self._scale
        x1 = scale.x(lo) if lo is not None else scale.left
        x2 = scale.x(hi) if hi is not None else scale.right
        begins, ends = lo is not None and lo >= scale.lo, hi is not None and hi <= scale.hi
        return Bar(x1, round(max(3.0, x2 - x1), 1), look, begins, ends)

    def _clustered(self, points: Iterable[tuple[int, Shape]]) -> list[Mark]:
        """Return marks for many points: those at about the same place become one with a number."""
        scale = self._scale
        count = int((scale.right - scale.left) // _CLUSTER)
        width = (scale.right - scale.left) / count
        slots = sorted(
            (min(int((scale.x(at) - scale.left) / width), count - 1), shape, at)
            for at, shape in points
            if scale.shows(at)
        )
        marks = []
        for slot, group in groupby(slots, key=lambda s: s[0]):
            many = list(group)
            positions = sorted({at for _, _, at in many})
            where = f"{positions[0]:,}" if len(positions) == 1 else f"{positions[0]:,} to {positions[-1]:,}"
            x = scale.x(positions[0]) if len(many) == 1 else round(scale.left + (slot + 0.5) * width, 1)
            marks.append(Mark(x, many[0][1], f"{len(many)} at {where}", len(many)))
        return marks

    def _head(self, text: str) -> None:
        self._y += _HEAD
        self._d.headings.append(Heading(round(self._y - 8, 1), text))

    def _row(self, row: Row) -> None:
        height = self._d.layout.row
        self._d.rows.append(replace(row, y=round(self._y + height / 2, 1)))
        self._y += height


def _fit(words: Words, columns: int) -> str:
    """Return a label that fits: what is too long is cut in each id, so that both ends of an edge can be read."""
    fixed = sum(len(w) for w in words if isinstance(w, str))
    ids = [w.id for w in words if isinstance(w, Name)]
    if not ids:
        return fitted(plain(words), columns)
    room = max(4, columns - fixed)
    short = sorted(len(i) for i in ids)
    # What shorter ids leave over is given to the longer ones.
    share, left = room // len(ids), room
    for count, length in zip(range(len(short), 0, -1), short, strict=True):
        share = left // count
        if length > share:
            break
        left -= length
    return "".join(fitted(w.id, max(share, 3)) if isinstance(w, Name) else w for w in words)


def _tone(thread: Thread) -> str:
    return "calm" if thread.verdict in _CALM else thread.severity or "calm"


def _bad(status: str) -> int:
    return _STATUSES.index(status) if status in _STATUSES else len(_STATUSES)
