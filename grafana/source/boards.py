"""What all dashboards have in common: their variables, links and the place of the documentation."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from grafana.source.panels import RUNBOOKS, SOURCE, Section, place
from grafana.source.rules import DOCS, every

TAG = "frontier-sidecar"
JOBS = 'label_values({__name__=~"sidecar_(fleet_)?build_info"}, job)'

_ALL = VariableOption(selected=True, text="All", value="$__all")


def _chosen(name: str, label: str, query: str, text: str) -> dashboard.QueryVariable:
    """Return a variable that any number of a label's values can be chosen in; at first all."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(text)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(_ALL)
    )


def instances() -> dashboard.QueryVariable:
    """Return the variable of the replicas."""
    query = 'label_values({__name__=~"sidecar_(fleet_)?build_info", job=~"$job"}, instance)'
    return _chosen("instance", "Replica", query, "Replicas of the sidecar and workers of the fleet.")


def window(default: str = "1h") -> dashboard.CustomVariable:
    """Return the variable of the time that rates of rare things are taken over."""
    values = ("15m", "1h", "6h", "24h")
    return (
        dashboard.CustomVariable("window")
        .label("Window")
        .description("Compactions are rare: shares of them are taken over so much time.")
        .values(",".join(values))
        .current(VariableOption(selected=True, text=default, value=default))
        .options([VariableOption(selected=value == default, text=value, value=value) for value in values])
        .multi(False)
        .include_all(False)
    )


def board(
    uid: str,
    title: str,
    description: str,
    sections: Sequence[Section],
    *,
    docs: str | None = DOCS,
    more: Sequence[dashboard.QueryVariable | dashboard.CustomVariable] = (),
) -> dashboard.Dashboard:
    """Return a dashboard.

    Args:
        uid: its stable id.
        title: its name.
        description: what it is for.
        sections: its rows.
        docs: where the documentation can be read, if anywhere.
        more: variables besides those that all dashboards have.
    """
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .timezone("browser")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_chosen("job", "Job", JOBS, "The scrape jobs of the sidecar and of the fleet view."))
    )
    for variable in more:
        made.with_variable(variable)
    made.link(
        dashboard.DashboardLink("Other dashboards")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    made.link(dashboard.DashboardLink("Runbooks").type(DashboardLinkType.LINK).url(f"/d/{RUNBOOKS}"))
    if docs:
        for name, page in (("Rules", "rules.md"), ("Metrics", "metrics.md")):
            address = f"{docs.rstrip('/')}/{page}"
            made.link(dashboard.DashboardLink(name).type(DashboardLinkType.LINK).url(address).target_blank(True))
    firing = f'ALERTS{{alertstate="firing", alertname=~"{"|".join(alert.name for alert in every())}", job=~"$job|"}}'
    made.annotation(
        dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color("red").expr(firing)
    )
    place(made, sections)
    for filled in made.build().templating.list_val or []:
        # The builders fill these in for every kind of variable; they belong to intervals.
        filled.auto = filled.auto_min = filled.auto_count = None
    return made
