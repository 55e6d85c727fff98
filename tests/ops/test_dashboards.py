"""The dashboards: made by their source, in Grafana's own words, and of use to whoever is woken by an alert."""

import copy
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.source import provisioning, rules
from grafana.source.files import ROOT, files, write
from sidecar.observe.catalogue import fleet_catalogue, metrics_catalogue
from tests.ops import npm
from tests.ops.expressions import DASHBOARDS, filled, load, names, panels, targets

SCHEMA = Path(__file__).parent / "schema"
BOARDS = {path.stem: load(path) for path in DASHBOARDS}
RUNBOOKS = BOARDS["runbooks"]
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
PAGES = {panel["id"]: panel for panel in RUNBOOKS["panels"] if panel["type"] == "text"}
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
each_panel = pytest.mark.parametrize(
    "panel", [p for _, p in PANELS], ids=[f"{name}: {p['title']}" for name, p in PANELS]
)
each_page = pytest.mark.parametrize("panel", PAGES.values(), ids=[panel["title"] for panel in PAGES.values()])


# --- made by the source -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", files())
def test_what_is_committed_is_what_the_source_makes(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == files()[name], "run `make grafana`"


def test_nothing_else_is_there() -> None:
    made = {ROOT / name for name in files()}
    for folder in ("grafana/dashboards", "grafana/provisioning"):
        assert {path for path in (ROOT / folder).rglob("*") if path.is_file()} <= made


def test_they_can_be_made_for_another_place(tmp_path: Path) -> None:
    docs = "https://wiki.test/frontier"
    assert set(write(docs, tmp_path)) == set(files())
    assert write(docs, tmp_path) == []
    board = json.loads((tmp_path / "grafana/dashboards/fleet.json").read_text())
    addresses = {found["url"] for found in _nested(board) if isinstance(found.get("url"), str)}
    assert {f"{docs}/rules.md", f"{docs}/metrics.md", f"{docs}/rules.md#${{__value.raw}}"} < addresses
    for name in ("deploy/prometheus/rules.yml", "grafana/provisioning/alerting/rules.yaml"):
        assert f"{docs}/runbooks/SidecarDown.md" in (tmp_path / name).read_text()
    assert f"[guard]({docs}/guard.md)" in (tmp_path / "grafana/dashboards/runbooks.json").read_text()


# --- Grafana's own schema ---------------------------------------------------------------------------------------------


def _broken() -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Yield ways to break a dashboard that its types have to see."""

    def first(board: dict[str, Any], kind: str) -> dict[str, Any]:
        return next(panel for panel in board["panels"] if panel["type"] == kind)

    def defaults(board: dict[str, Any], kind: str) -> dict[str, Any]:
        found: dict[str, Any] = first(board, kind)["fieldConfig"]["defaults"]
        return found

    yield "a_panel_of_no_kind", lambda b: first(b, "stat").update(type="sta")
    yield "an_option_that_is_none", lambda b: first(b, "table")["options"].update(headers=True)
    yield "a_legend_of_no_mode", lambda b: first(b, "timeseries")["options"]["legend"].update(displayMode="lst")
    yield "a_field_that_is_none", lambda b: defaults(b, "bargauge").update(unitt="s")
    yield "a_style_that_is_none", lambda b: defaults(b, "timeseries")["custom"].update(width=2)
    yield "a_number_as_text", lambda b: first(b, "stat")["gridPos"].update(w="4")
    yield "a_query_without_expression", lambda b: first(b, "stat")["targets"][0].pop("expr")
    yield "a_variable_of_no_kind", lambda b: b["templating"]["list"][0].update(type="datasrc")
    yield "no_version_of_the_schema", lambda b: b.pop("schemaVersion")


def test_grafanas_types_take_them_and_nothing_that_is_broken(tmp_path: Path) -> None:
    found = npm.installed(SCHEMA)
    boards = {name.replace("-", "_"): board for name, board in BOARDS.items()}
    for name, break_it in _broken():
        boards[name] = copy.deepcopy(BOARDS["fleet"])
        break_it(boards[name])
    work = tmp_path / "checked"
    work.mkdir()
    (work / "node_modules").symlink_to(found / "node_modules")
    (work / "checked.ts").write_text((SCHEMA / "checked.ts").read_text())
    for name, board in boards.items():
        constant = f"export const {name}: Checked = {json.dumps(board, indent=1)};"
        (work / f"{name}.ts").write_text(f'import type {{ Checked }} from "./checked";\n{constant}\n')
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext"]
    command = ["node_modules/.bin/tsc", *options, "--moduleResolution", "bundler", *(f"{name}.ts" for name in boards)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=120)
    complaints = {re.split(r"[(:]", line, maxsplit=1)[0] for line in done.stdout.splitlines() if ": error TS" in line}
    assert complaints == {f"{name}.ts" for name, _ in _broken()}, done.stdout


# --- what every dashboard has -----------------------------------------------------------------------------------------


def _variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"].get("list", ())}


def test_there_are_four() -> None:
    assert {(board["uid"], board["title"]) for board in BOARDS.values()} == {
        ("frontier-fleet", "Frontier / Fleet"),
        ("frontier-quality", "Frontier / Compaction quality"),
        ("frontier-sidecar", "Frontier / Sidecar"),
        ("frontier-runbooks", "Frontier / Runbooks"),
    }


@each_board
def test_it_can_be_imported_as_it_is(board: dict[str, Any]) -> None:
    text = json.dumps(board)
    assert "__inputs" not in board and "__requires" not in board
    assert board.get("id") is None
    assert "${DS_" not in text
    if board is RUNBOOKS:
        assert "datasource" not in text
        return
    assert _variables(board)["datasource"]["type"] == "datasource"
    assert _variables(board)["datasource"]["query"] == "prometheus"
    used = {found["datasource"]["uid"] for found in _nested(board) if isinstance(found.get("datasource"), dict)}
    assert used == {"${datasource}"}


def _nested(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nested(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nested(inner)


@each_board
def test_every_variable_is_used_and_every_used_one_is_there(board: dict[str, Any]) -> None:
    text = json.dumps({key: value for key, value in board.items() if key != "templating"})
    text += json.dumps([{**variable, "name": ""} for variable in _variables(board).values()])
    # Also in the texts of the runbooks: what looks like a variable would be one.
    used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    builtin = {"__rate_interval", "__range", "__value", "__all"}
    assert used - builtin == set(_variables(board))


@each_board
def test_the_panels_fill_the_grid_and_do_not_overlap(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert taken == {(x, y) for x in range(24) for y in range(height)}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


# --- what every panel has ---------------------------------------------------------------------------------------------


@each_panel
def test_it_says_what_it_shows_and_what_to_do(panel: dict[str, Any]) -> None:
    shows, _, bad = panel["description"].partition("\n\n**When it looks bad:** ")
    assert len(shows) > 20 and shows.endswith(".")
    assert len(bad) > 20 and bad.endswith(".")
    assert len(panel["title"]) <= 48


@each_panel
def test_its_units_are_set(panel: dict[str, Any]) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit")
    assert panel["type"] == "table" or unit
    for expr in (target["expr"] for target in panel["targets"]):
        if "_seconds" in expr and panel["type"] != "table":
            assert unit == "s"
        if "_bytes" in expr:
            assert unit == "Bps"


LABELS = {
    # Labels whose values are known beforehand, or held to a number: no legend outgrows its panel.
    "status", "rule", "kind", "level", "topic", "decision", "code", "route", "longer_than", "partition", "model",
}  # fmt: skip


@each_panel
def test_its_legend_cannot_grow_without_bound(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        legend = target.get("legendFormat", "")
        assert set(re.findall(r"{{(\w+)}}", legend)) <= LABELS
        if panel["type"] == "timeseries":
            assert legend
        if "{{partition}}" in legend:
            assert target["expr"].startswith("topk(10, ") and target["instant"]
        if panel["type"] != "table" and "{{" not in legend:
            assert re.match(r"^(sum|min|max|count|histogram_quantile|1 - sum)\b", target["expr"]), target["expr"]


@each_panel
def test_its_colours_have_a_begin_and_rise(panel: dict[str, Any]) -> None:
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
    bounds = [step["value"] for step in steps]
    assert bounds[0] is None
    assert bounds[1:] == sorted(set(bounds[1:]))


# --- what is asked ----------------------------------------------------------------------------------------------------

SERIES = {series.name: series for series in (*metrics_catalogue(), *fleet_catalogue())}
OF_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "up"}


def _family(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and name.removesuffix(suffix) in SERIES:
            return name.removesuffix(suffix)
    return name


def test_only_series_that_are_in_the_catalogue() -> None:
    for target in targets():
        assert {_family(name) for name in names(target.expr)} - OF_PROMETHEUS <= set(SERIES), str(target)
    for alert in rules.every():
        assert {_family(name) for name in names(alert.value)} - OF_PROMETHEUS <= set(SERIES), alert.name


def test_every_series_of_the_catalogue_is_on_a_dashboard() -> None:
    shown = {_family(name) for target in targets() for name in names(target.expr)}
    told_otherwise = {
        "sidecar_last_progress_timestamp_seconds": "shown as `Without progress for`, which knows of each partition",
        "sidecar_snapshot_records_total": "their bytes are shown",
        "sidecar_fleet_open_halts": "the tail's own are shown, which come first",
        "sidecar_fleet_sessions": "likewise",
        "sidecar_fleet_alert_records_total": "the open ones are shown",
        "sidecar_fleet_partitions": "seen by what each worker reads",
        "sidecar_fleet_changelog_records_total": "its time is shown",
        "sidecar_fleet_peer_requests_total": "the board itself names who did not answer",
        "sidecar_fleet_broker_up": "its failed writes are shown",
        "sidecar_partitions_changed": "an alert, readiness and every answer of the guard say so",
        "sidecar_fleet_last_progress_timestamp_seconds": "alerted to",
    }
    assert set(SERIES) - shown == set(told_otherwise)


def test_rates_of_counters_and_no_rates_of_gauges() -> None:
    for target in targets():
        for name in re.findall(r"(?:rate|increase)\(\s*(sidecar_\w+)", target.expr):
            family = SERIES[_family(name)]
            assert family.type in ("counter", "histogram"), str(target)
        for name in names(target.expr):
            family = SERIES.get(_family(name))
            if family is not None and family.type == "counter":
                assert re.search(rf"(?:rate|increase)\({name}\{{", target.expr), str(target)


def test_windows_fit_how_often_things_happen() -> None:
    for target in targets():
        windows = set(re.findall(r"\[([^\]]+)\]", target.expr))
        # Who was there in the last days is known from what everybody exposes, and from nothing else.
        assert windows <= {"$__rate_interval", "$__range", "$window"} or rules.BUILT in target.expr
        if "$__range" in windows:
            assert target.instant, str(target)
        filled(target.expr, {"job": "", "instance": "", "window": "1h", "__rate_interval": "1m", "__range": "1h"})


# --- where links lead -------------------------------------------------------------------------------------------------


def _leads_somewhere(address: str) -> bool:
    """Tell whether an address of a Grafana that has our dashboards, and nothing else, leads to one of them."""
    found = re.fullmatch(r"/?d/([\w-]+)(?:\?viewPanel=(\d+))?", address)
    board = next((board for board in BOARDS.values() if found and board["uid"] == found[1]), None)
    return board is not None and (found[2] is None or int(found[2]) in {panel["id"] for panel in board["panels"]})


@each_board
def test_every_link_leads_somewhere(board: dict[str, Any]) -> None:
    addresses = {found["url"] for found in _nested(board) if isinstance(found.get("url"), str)} - {""}
    assert bool(addresses) == (board is not RUNBOOKS)
    assert [address for address in addresses if not _leads_somewhere(address)] == []


@each_panel
def test_its_runbooks_are_those_that_it_names(panel: dict[str, Any]) -> None:
    for link in panel.get("links", ()):
        title = link["title"].removeprefix("Runbook: ")
        assert PAGES[int(link["url"].rpartition("=")[2])]["title"] == title


def test_the_alerts_name_dashboards_that_are_there() -> None:
    uids = {board["uid"] for board in BOARDS.values() if board is not RUNBOOKS}
    assert {alert.dashboard for alert in rules.every()} == uids


def test_a_title_is_there_once() -> None:
    for board in BOARDS.values():
        titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
        assert len(set(titles)) == len(titles)


# --- the runbooks in Grafana, and in the program ----------------------------------------------------------------------


def test_every_runbook_is_there() -> None:
    assert [panel["title"] for panel in PAGES.values()] == [
        "All runbooks",
        *(alert.name for alert in rules.every()),
        "Rules",
    ]
    for alert in rules.every():
        written = (ROOT / f"docs/runbooks/{alert.name}.md").read_text()
        shown = next(panel for panel in PAGES.values() if panel["title"] == alert.name)["options"]["content"]
        assert all(f"\n## {heading}\n" in f"\n{shown}" for heading in re.findall(r"^## (.+)$", written, re.M))


@each_page
def test_its_links_lead_somewhere(panel: dict[str, Any]) -> None:
    for address in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", panel["options"]["content"])):
        assert _leads_somewhere(address), address
        assert not address.startswith("/"), "would miss the path that Grafana is served at"
    for path in re.findall(r"\(`((?:docs|tests)/[^`]+)`\)", panel["options"]["content"]):
        assert (ROOT / path).is_file(), path


@each_page
def test_its_description_says_what_to_do(panel: dict[str, Any]) -> None:
    assert "\n\n**When it looks bad:** " in panel["description"]


def test_the_program_brings_the_runbooks_and_no_dead_links() -> None:
    text = (ROOT / "sidecar/observe/runbooks.md").read_text()
    for name in ("Runbooks", *(alert.name for alert in rules.every())):
        assert re.search(rf"^# {name}$", text, re.M)
    assert not re.search(r"\]\([^)]*\)", text)
    for path in re.findall(r"\(`((?:docs|tests)/[^`]+)`\)", text):
        assert (ROOT / path).is_file(), path


# --- without anything to show ----------------------------------------------------------------------------------------


@each_panel
def test_nothing_to_show_does_not_look_like_all_is_well(panel: dict[str, Any]) -> None:
    """Hold that no panel says zero, or is green, because nobody is scraped: Grafana takes the lowest step's colour."""
    defaults = panel["fieldConfig"]["defaults"]
    assert len(defaults["noValue"]) > 5 and not re.search(r"\d", defaults["noValue"])
    if panel["type"] in ("stat", "bargauge"):
        (mapping,) = defaults["mappings"]
        assert (mapping["type"], mapping["options"]["match"]) == ("special", "null+nan")
        assert mapping["options"]["result"]["color"] in ("red", "#8e8e8e")
        assert mapping["options"]["result"]["text"] == defaults["noValue"]
        for target in panel["targets"]:
            assert "vector(0)" not in target["expr"]


# --- provisioning -----------------------------------------------------------------------------------------------------


def _provisioned(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f"grafana/provisioning/{name}.yaml").read_text())
    assert found["apiVersion"] == 1
    return found


def test_the_rules_ask_the_datasource_that_is_provisioned() -> None:
    (source,) = _provisioned("datasources/prometheus")["datasources"]
    asked = {
        query["datasourceUid"]
        for group in _provisioned("alerting/rules")["groups"]
        for rule in group["rules"]
        for query in rule["data"]
    }
    assert asked == {source["uid"], "__expr__"}


def test_the_policy_names_contact_points_that_are_provisioned() -> None:
    points = {point["name"] for point in _provisioned("alerting/contact-points")["contactPoints"]}
    (policy,) = _provisioned("alerting/policies")["policies"]
    assert {policy["receiver"], *(route["receiver"] for route in policy["routes"])} == points
    assert [route["object_matchers"] for route in policy["routes"]] == [[["severity", "=", "page"]]]


def test_the_dashboards_are_looked_for_where_they_are_mounted() -> None:
    (provider,) = _provisioned("dashboards/frontier")["providers"]
    assert provider["options"]["path"] == provisioning.DASHBOARDS
    assert provider["allowUiUpdates"] is False


def test_no_dollar_of_a_rule_is_taken_for_the_environment() -> None:
    # Grafana expands $NAME in the values of these files, except in the models of queries and in annotations.
    for group in _provisioned("alerting/rules")["groups"]:
        for rule in group["rules"]:
            kept = {key: value for key, value in rule.items() if key not in ("annotations", "data")}
            assert "$" not in json.dumps(kept)
