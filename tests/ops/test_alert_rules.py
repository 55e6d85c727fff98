"""The alert rules: what they say at which time, tried by promtool on the file that Prometheus is given."""

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.source import rules
from grafana.source.files import as_yaml
from tests.ops.alert_cases import CASES, EVERY, KINDS, Case, Fires, values
from tests.ops.expressions import names
from tests.ops.tools import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
EVALUATED = 30
NAMES = [alert.name for alert in rules.every()]


def loaded() -> dict[str, dict[str, Any]]:
    """Return the alerts of Prometheus' file by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_alert_has_a_case_of_every_kind() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for case in CASES:
        kinds[case.alert].add(case.kind)
    assert dict(kinds) == {name: set(KINDS) for name in NAMES}


def test_cases_ask_at_times_when_rules_are_evaluated() -> None:
    for case in CASES:
        assert all(minutes * 60 % EVALUATED in (0, EVERY) for minutes in case.expected), case.name


def test_a_firing_case_fires_and_a_quiet_one_does_not() -> None:
    for case in CASES:
        fires = [bool(expected) for expected in case.expected.values()]
        if case.kind == "quiet":
            assert not any(fires), case.name
        if case.kind in ("firing", "recovering"):
            assert any(fires) and not all(fires), case.name
        if case.kind == "recovering":
            assert not fires[-1], case.name


@pytest.mark.parametrize("name", NAMES)
def test_over_time(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.yml"
    cases = [case for case in CASES if case.alert == name]
    file.write_text(
        as_yaml(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": f"{EVALUATED}s",
                "tests": [_test(case, loaded()[name]) for case in cases],
            }
        )
    )
    promtool("test", "rules", file)


def _test(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": case.name,
        "interval": f"{EVERY}s",
        "input_series": [{"series": name, "values": values(found)} for name, found in case.series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{round(minutes * 60)}s",
                "alertname": case.alert,
                "exp_alerts": [_alert(fires, rule) for fires in _listed(expected)],
            }
            for minutes, expected in case.expected.items()
        ],
    }


def _listed(expected: Fires | tuple[Fires, ...] | None) -> tuple[Fires, ...]:
    return () if expected is None else (expected,) if isinstance(expected, Fires) else expected


def _alert(fires: Fires, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "exp_labels": {**rule["labels"], **fires.labels},
        "exp_annotations": {
            **{
                name: text.replace("{{ $labels.instance }}", fires.labels.get("instance", ""))
                for name, text in rule["annotations"].items()
            },
            "summary": fires.summary,
        },
    }


def test_prometheus_takes_the_rules() -> None:
    assert f"{len(NAMES)} rules found" in promtool("check", "rules", RULES)


def test_what_every_alert_has() -> None:
    found = loaded()
    assert list(found) == NAMES
    for name, rule in found.items():
        assert set(rule) == {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}, name
        assert rule["labels"] in ({"severity": "page"}, {"severity": "warning"})
        assert set(rule["annotations"]) == {"summary", "description", "first", "runbook", "dashboard"}
        assert rule["annotations"]["runbook"] == f"sidecar runbook {name}"
        assert len(rule["annotations"]["first"]) > 80, "of use without a link"


def test_links_lead_where_the_documentation_is_and_nowhere_without_one() -> None:
    text = RULES.read_text()
    assert "http" not in text.replace("http://{{ $labels.instance }}", "")
    elsewhere = rules.for_prometheus(docs="https://wiki.test/frontier/")
    for group in elsewhere["groups"]:
        for rule in group["rules"]:
            where = f"https://wiki.test/frontier/runbooks/{rule['alert']}.md"
            assert rule["annotations"]["runbook_url"] == where


def test_grafana_is_told_the_same() -> None:
    file = yaml.safe_load((ROOT / "grafana/provisioning/alerting/rules.yaml").read_text())
    assert file["apiVersion"] == 1
    mine = {rule["title"]: rule for group in file["groups"] for rule in group["rules"]}
    assert list(mine) == NAMES
    assert len({rule["uid"] for rule in mine.values()}) == len(NAMES)
    for name, theirs in loaded().items():
        rule = mine[name]
        query, threshold = rule["data"]
        bound = threshold["model"]["conditions"][0]["evaluator"]
        assert bound["type"] == "gt" and rule["condition"] == threshold["refId"]
        assert threshold["model"]["expression"] == query["refId"]
        value = query["model"]["expr"]
        whole = f"(\n{value}\n)" if "\n" in value else value
        assert theirs["expr"] == f"{whole}\n> {bound['params'][0]:g}"
        assert (rule["for"], rule["keepFiringFor"]) == (theirs["for"], theirs["keep_firing_for"])
        assert rule["labels"] == theirs["labels"]
        for key in ("description", "first", "runbook", "dashboard"):
            assert rule["annotations"][key] == theirs["annotations"][key]
        assert "$value " not in rule["annotations"]["summary"]  # that is Prometheus'


def test_grafana_is_not_silent_when_it_knows_nothing() -> None:
    """No sidecar at all is what `SidecarDown` is about; a Prometheus that is away is one page, and ends no alert."""
    file = yaml.safe_load((ROOT / "grafana/provisioning/alerting/rules.yaml").read_text())
    states = {
        rule["title"]: (rule["noDataState"], rule["execErrState"])
        for group in file["groups"]
        for rule in group["rules"]
    }
    assert states.pop("SidecarDown") == ("Alerting", "Error")
    assert set(states.values()) == {("OK", "KeepLast")}


def test_grafanas_alerts_lead_to_a_panel_that_shows_their_value() -> None:
    boards = {}
    for path in (ROOT / "grafana/dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        boards[board["uid"]] = {str(panel["id"]): panel for panel in board["panels"]}
    file = yaml.safe_load((ROOT / "grafana/provisioning/alerting/rules.yaml").read_text())
    for rule in (rule for group in file["groups"] for rule in group["rules"]):
        found = rule["annotations"]
        assert found["dashboard"] == f"/d/{found['__dashboardUid__']}"
        panel = boards[found["__dashboardUid__"]][found["__panelId__"]]
        shown = set().union(*(names(target["expr"]) for target in panel["targets"]))
        asked = names(
            rule["data"][0]["model"]["expr"].replace(
                '{__name__=~"sidecar_(fleet_)?lag_records"}', "sidecar_lag_records"
            )
        )
        assert shown & asked, rule["title"]
        assert f"Runbook: {rule['title']}" in [link["title"] for link in panel["links"]], rule["title"]


def test_the_pace_is_the_only_difference() -> None:
    slow, quick = (rules.for_prometheus(rules.Bounds(pace=pace)) for pace in (1.0, 1 / 60))
    for one, other in zip(slow["groups"], quick["groups"], strict=True):
        for rule, hasty in zip(one["rules"], other["rules"], strict=True):
            assert {k: v for k, v in rule.items() if k in ("alert", "labels")} == {
                k: v for k, v in hasty.items() if k in ("alert", "labels")
            }
            assert rule["for"] == "0s" or rule["for"] != hasty["for"]


def test_only_bounds_that_the_sidecar_counts_by() -> None:
    with pytest.raises(ValueError, match="60, 300, 900, 3600"):
        list(rules.every(rules.Bounds(stale=600)))


def test_a_rule_that_the_catalogue_lacks_cannot_be_alerted_to() -> None:
    with pytest.raises(ValueError, match="no rules edge_forgotten"):
        rules._findings("edge_dropped", "edge_forgotten")
