"""The panels that the dashboards are made of: few kinds, all alike, none without a text that says what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, text, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BarGaugeNamePlacement,
    BarGaugeValueMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DashboardSpecialValueMapOptions,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.dashboard import Panel as Built
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from grafana.source.rules import every

WIDTH = 24
"""Columns of a dashboard."""

RUNBOOKS = "frontier-runbooks"
"""The uid of the dashboard that has the texts of the runbooks, so that a link to one leads somewhere by itself."""

PAGES: Mapping[str, int] = {
    page: number for number, page in enumerate(("README", *(alert.name for alert in every()), "rules"), start=2)
}
"""The pages of that dashboard, each in the panel of its number; the first one is the row."""

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

GREEN, YELLOW, ORANGE, RED, PURPLE, BLUE, GREY = (
    "green", "yellow", "orange", "red", "purple", "blue", "#8e8e8e"
)  # fmt: skip

STATUS_COLOURS = {
    "corrupt": PURPLE,
    "lossy": RED,
    "degraded": "dark-orange",
    "unverified": "light-orange",
    "unjudged": "super-light-orange",
    "stale": YELLOW,
    "uncompacted": GREY,
    "verified": BLUE,
}
"""The worst first, as they are drawn from the bottom up. Good is blue, for green and red are one colour to many."""

UNKNOWN = "no sidecar"
"""What stands where a number would, when nobody tells it: never a zero, and never in the colour of all being well."""

P = TypeVar("P", stat.Panel, timeseries.Panel, bargauge.Panel, table.Panel)

Step = tuple[float, str]
"""From which value on there is which colour."""

SEVERITIES = {"critical": RED, "error": ORANGE, "warning": YELLOW, "page": RED}

ANY_IS_BAD: tuple[Step, ...] = ((1, RED),)
ANY_IS_SUSPECT: tuple[Step, ...] = ((1, ORANGE),)


@dataclass(frozen=True)
class Query:
    """Ask Prometheus; `legend` names each series by its labels, all of which have known values."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Text:
    """Say what a panel shows, what to do when it looks bad, and which alert's runbook says more."""

    shows: str
    bad: str
    runbooks: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """Return the panel's description."""
        return f"{self.shows}\n\n**When it looks bad:** {self.bad}"


def _finish(panel: P, title: str, text: Text, queries: Sequence[Query], *, instant: bool, as_table: bool) -> P:
    panel.title(title).description(text.description).datasource(SOURCE)
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).datasource(SOURCE)
        if query.legend:
            target.legend_format(query.legend)
        target = target.instant() if instant else target.range()
        if as_table:
            target.format(PromQueryFormat.TABLE)
        panel.with_target(target)
    if text.runbooks:
        panel.links([_link(f"Runbook: {alert}", page_address(alert)) for alert in text.runbooks])
    return panel


def page_address(page: str) -> str:
    """Return where a page of the dashboard of runbooks is, from the root of Grafana."""
    return f"/d/{RUNBOOKS}?viewPanel={PAGES[page]}"


def rule_address(docs: str | None) -> str:
    """Return where a rule is explained, for a link of a cell that has its name."""
    return f"{docs.rstrip('/')}/rules.md#${{__value.raw}}" if docs else page_address("rules")


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url).target_blank(True)


def _thresholds(panel: P, steps: Sequence[Step], base: str = GREEN) -> None:
    found = [Threshold(value=None, color=base), *(Threshold(value=value, color=colour) for value, colour in steps)]
    panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found))


def number(
    title: str,
    text: Text,
    *queries: Query,
    unit: str = "short",
    steps: Sequence[Step] = (),
    base: str = GREEN,
    decimals: int | None = None,
    none: str = UNKNOWN,
    none_colour: str = GREY,
    graph: bool = False,
) -> stat.Panel:
    """Show one number each, coloured by how bad it is.

    Args:
        title: what it is.
        text: what it means.
        queries: asked for now; with `graph`, over the range.
        unit: Grafana's name of the unit.
        steps: from where on it is bad.
        base: the colour below the first step.
        decimals: how many.
        none: what to show where there are no series.
        none_colour: in which colour; without one Grafana takes that of the lowest value.
        graph: whether to draw how it went behind it.
    """
    panel = _finish(stat.Panel(), title, text, queries, instant=not graph, as_table=False)
    _thresholds(panel, steps, base)
    if decimals is not None:
        panel.decimals(decimals)
    panel.color_mode(BigValueColorMode.BACKGROUND if steps else BigValueColorMode.NONE)
    return (
        panel.unit(unit)
        .no_value(none)
        .mappings([_special(none, none_colour)])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .graph_mode(BigValueGraphMode.AREA if graph else BigValueGraphMode.NONE)
        .text_mode(BigValueTextMode.AUTO if len(queries) == 1 else BigValueTextMode.VALUE_AND_NAME)
        .orientation(VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .height(4)
    )


def _special(text: str, colour: str) -> SpecialValueMap:
    """Return what a value is shown as that is not there."""
    options = DashboardSpecialValueMapOptions(
        match=SpecialValueMatch.NULL_AND_NAN, result=ValueMappingResult(text=text, color=colour, index=0)
    )
    return SpecialValueMap(options=options)


def lines(
    title: str,
    text: Text,
    *queries: Query,
    unit: str = "short",
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    bars: bool = False,
    least: float | None = 0,
    most: float | None = None,
    steps: Sequence[Step] = (),
    base: str = "transparent",
    table: bool = False,
    none: str = "no data: is a sidecar scraped?",
    around: float | None = None,
    whole: bool = False,
    below: Sequence[str] = (),
) -> timeseries.Panel:
    """Draw series over time.

    Args:
        title: what it is.
        text: what it means.
        queries: whose legends have few values, all known beforehand.
        unit: Grafana's name of the unit.
        colours: of series, by their legend.
        stacked: whether they add up to something.
        bars: whether to draw bars (of counts) instead of lines.
        least: where the axis begins.
        most: where it ends.
        steps: bounds to draw.
        base: the colour below the first bound.
        table: whether the legend is a table beside the graph, sorted by their values; for many series.
        none: what to show where there are no series.
        around: what the axis shows at least, besides the values.
        whole: whether the values are counts: no fractions, and one of something does not fill the panel.
        below: legends of series that are drawn downwards.
    """
    panel = _finish(timeseries.Panel(), title, text, queries, instant=False, as_table=False)
    legend = common.VizLegendOptions().show_legend(True)
    if table:
        # Not the total: the intervals that counts are taken over overlap.
        calc, name = ("max", "Max") if bars else ("lastNotNull", "Last *")
        legend.display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.RIGHT)
        legend.calcs([calc]).sort_by(name).sort_desc(True)
    else:
        legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).calcs([])
    panel.legend(legend)
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.unit(unit).line_width(1 if stacked or bars else 2).show_points(VisibilityMode.NEVER)
    panel.fill_opacity(70 if bars else 40 if stacked else 10)
    if bars:
        panel.draw_style(GraphDrawStyle.BARS)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if least is not None and not below:
        panel.min(least)
    if most is not None:
        panel.max(most)
    if whole:
        panel.decimals(0).axis_soft_max(5)
    _thresholds(panel, steps, base)
    if around is not None:
        panel.axis_soft_min(around)
    panel.no_value(none)
    if steps:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    for name, colour in (colours or {}).items():
        panel.override_by_name(
            name, [DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})]
        )
    for name in below:
        panel.override_by_name(name, [DynamicConfigValue(id_val="custom.transform", value="negative-Y")])
    return panel.height(8)


def gauges(
    title: str,
    text: Text,
    query: Query,
    *,
    unit: str = "short",
    steps: Sequence[Step] = (),
    base: str = GREEN,
    least: float = 0,
    most: float | None = None,
    decimals: int | None = None,
    none: str = UNKNOWN,
) -> bargauge.Panel:
    """Draw a bar for each series, as it stands now."""
    panel = _finish(bargauge.Panel(), title, text, (query,), instant=True, as_table=False)
    _thresholds(panel, steps, base)
    if most is not None:
        panel.max(most)
    if decimals is not None:
        panel.decimals(decimals)
    return (
        panel.unit(unit)
        .min(least)
        .no_value(none)
        .mappings([_special(none, GREY)])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .value_mode(BarGaugeValueMode.TEXT)
        .name_placement(BarGaugeNamePlacement.LEFT)
        .show_unfilled(True)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .height(8)
    )


def rows(
    title: str,
    text: Text,
    *queries: Query,
    columns: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    decimals: Mapping[str, int] | None = None,
    links: Mapping[str, str] | None = None,
    steps: Mapping[str, Sequence[Step]] | None = None,
    words: Mapping[str, Mapping[str, str]] | None = None,
    widths: Mapping[str, int] | None = None,
    sort: str | None = None,
    rising: bool = False,
    flags: Sequence[str] = (),
    none: str = UNKNOWN,
) -> table.Panel:
    """List series in a table, as they stand now.

    Args:
        title: what it is.
        text: what it means.
        queries: each gives a column of values (`Value`, or `Value #A` of several), beside the labels.
        columns: what the columns are called, by label or value, in order; all others are hidden.
        units: by the column's name; `decimals` likewise.
        decimals: of the values of a column.
        links: addresses behind a column's cells.
        steps: colours of a column's cells, from which value on.
        words: colours of a column's words.
        widths: pixels of a column.
        sort: the column to sort by, highest first.
        rising: lowest first instead.
        flags: columns of ones and zeros: yes, and no, which is bad.
        none: what to show where there are no series.
    """
    panel = _finish(table.Panel(), title, text, queries, instant=True, as_table=True)
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    order = {name: index for index, name in enumerate(columns)}
    panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": {"Time": True}, "indexByName": order, "renameByName": dict(columns)},
        )
    )
    # What is not named is a label that a scrape has added; it is not to push the others aside.
    named = "|".join(columns.values())
    panel.override_by_regexp(f"^(?!({named})$).*$", [DynamicConfigValue(id_val="custom.hidden", value=True)])
    for name in columns.values():
        # What stands in an empty table would stand in every empty cell.
        properties = [DynamicConfigValue(id_val="noValue", value="–")]
        if units and name in units:
            properties.append(DynamicConfigValue(id_val="unit", value=units[name]))
        if decimals and name in decimals:
            properties.append(DynamicConfigValue(id_val="decimals", value=decimals[name]))
        if links and name in links:
            link = {"title": "What it means", "url": links[name], "targetBlank": True}
            properties.append(DynamicConfigValue(id_val="links", value=[link]))
        if steps and name in steps:
            found: list[dict[str, float | str | None]] = [{"value": None, "color": "transparent"}]
            found += [{"value": value, "color": colour} for value, colour in steps[name]]
            properties += [
                DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": found}),
                DynamicConfigValue(id_val="color", value={"mode": "thresholds"}),
                DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}),
            ]
        if words and name in words:
            options = {word: {"color": colour, "index": i} for i, (word, colour) in enumerate(words[name].items())}
            properties += [
                DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]),
                DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
            ]
        if name in flags:
            said = {"1": {"text": "yes", "color": "text"}, "0": {"text": "no", "color": RED}}
            properties += [
                DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": said}]),
                DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
            ]
        if widths and name in widths:
            properties.append(DynamicConfigValue(id_val="custom.width", value=widths[name]))
        panel.override_by_name(name, properties)
    if sort is not None:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(not rising)])
    return panel.no_value(none).show_header(True).filterable(False).height(8)


def page(title: str, words: Text, content: str, height: int) -> text.Panel:
    """Show a text, in Markdown."""
    panel = text.Panel().title(title).description(words.description)
    return panel.mode(TextMode.MARKDOWN).content(content).height(height)


@dataclass(frozen=True)
class Section:
    """Hold one row of a dashboard: its title, and lines of panels with their widths, which fill the grid."""

    title: str
    lines: tuple[tuple[tuple[Builder[Built], int], ...], ...]


def line(*panels: Builder[Built], widths: Sequence[int] | None = None) -> tuple[tuple[Builder[Built], int], ...]:
    """Set panels side by side: alike, or as wide as is said.

    Raises:
        ValueError: they do not fill the grid.
    """
    given = tuple(widths) if widths is not None else (WIDTH // len(panels),) * len(panels)
    if len(given) != len(panels) or sum(given) != WIDTH:
        raise ValueError(f"{len(panels)} panels of widths {given} do not fill {WIDTH} columns")
    return tuple(zip(panels, given, strict=True))


def place(board: dashboard.Dashboard, sections: Sequence[Section]) -> None:
    """Put the sections on a dashboard, one under the other."""
    y, last = 0, 0
    for section in sections:
        last += 1
        board.with_row(dashboard.Row(section.title).id(last).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=y)))
        y += 1
        for panels in section.lines:
            x, height = 0, max(_height(panel) for panel, _ in panels)
            for panel, width in panels:
                last += 1
                panel.build().id_val = last
                panel.build().grid_pos = GridPos(h=height, w=width, x=x, y=y)
                board.with_panel(panel)
                x += width
            y += height


def _height(panel: Builder[Built]) -> int:
    grid = panel.build().grid_pos
    return grid.h if grid is not None else 0
