"""What the dashboards and rules ask Prometheus, in a form that it can be asked in."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "grafana/dashboards").glob("*.json"))

_SELECTOR = re.compile(r"\b((?:sidecar_\w+|ALERTS(?:_FOR_STATE)?|up)\b)(\{[^}]*\})?|(\{__name__=~[^}]*\})")


class Target(NamedTuple):
    """Name one query of one panel."""

    dashboard: str
    panel: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel that shows what Prometheus says."""
    for panel in dashboard["panels"]:
        if panel["type"] not in ("row", "text"):
            yield panel


def load(path: Path) -> dict[str, Any]:
    """Return a dashboard."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def targets() -> Iterator[Target]:
    """Yield every query of every dashboard."""
    for path in DASHBOARDS:
        for panel in panels(load(path)):
            for target in panel["targets"]:
                yield Target(path.stem, panel["title"], target["expr"], target["instant"])


def others() -> Iterator[Target]:
    """Yield what the dashboards ask besides: for annotations, and for the values of variables."""
    for path in DASHBOARDS:
        board = load(path)
        for annotation in board["annotations"].get("list", ()):
            yield Target(path.stem, f"annotation {annotation['name']}", annotation["expr"], False)
        for variable in board["templating"].get("list", ()):
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                assert found, variable["query"]
                yield Target(path.stem, f"variable {variable['name']}", f'{found[1]} and {{{found[2]}!=""}}', True)


def filled(expr: str, values: Mapping[str, str]) -> str:
    """Return an expression with the values of its variables, as Grafana would send it."""
    # The longest first: $__rate_interval begins with what might be another variable.
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    assert "$" not in expr, expr
    return expr


def selectors(expr: str) -> set[str]:
    """Return the selectors of an expression."""
    return {(name or "") + (labels or "") + (nameless or "") for name, labels, nameless in _SELECTOR.findall(expr)}


def names(expr: str) -> set[str]:
    """Return the names of the series that an expression asks for."""
    return {name for name, _, _ in _SELECTOR.findall(expr) if name}
