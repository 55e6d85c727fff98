"""Figures in the documents are those of the code: counts, defaults, bounds."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from grafana.source import rules as alert_rules
from sidecar.client import Emitter, Guard, HaltListener
from sidecar.client.addresses import MAX_REMEMBERED
from sidecar.config import Settings
from sidecar.engine.rules import CATALOGUE
from sidecar.files.jsonl import KEPT, MAX_LINE
from sidecar.files.report import SHOWN
from sidecar.fleet import model, queries
from sidecar.fleet.page.scale import _PLAIN_UP_TO
from sidecar.protocol.decode import MAX_DEPTH
from tests.docs.pages import PAGES, ROOT
from tests.docs.sources import CONFIG

ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TENS = {3: "thirty", 4: "forty"}
SECONDS = {"s": 1, "second": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
UNITS = {"MiB": 2**20, "KiB": 2**10, "": 1, "%": 0.01}
SETTINGS = Settings.load(None)


def _word(number: int) -> str:
    if number < len(ONES):
        return ONES[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens]


def _flat(name: str) -> str:
    return " ".join(PAGES[name].text.split())


# --- counts -----------------------------------------------------------------------------------------------------------


def test_the_rules_are_counted_and_all_in_the_table_of_the_readme() -> None:
    families: dict[str, set[str]] = {}
    for name, rule in CATALOGUE.items():
        families.setdefault(rule.family, set()).add(name)
    text = PAGES["README.md"].text
    assert f"{_word(len(CATALOGUE)).capitalize()} rules in {_word(len(families))} families" in text
    rows = [set(re.findall(r"`(\w+)`", row)) for row in re.findall(r"^\| [A-Z][^|]*\? \| (.*) \|$", text, re.M)]
    assert sorted(map(sorted, rows)) == sorted(map(sorted, families.values()))
    assert sum(map(len, rows)) == len(CATALOGUE)


def test_the_dashboards_and_alerts_are_counted() -> None:
    boards = len(list((ROOT / "grafana/dashboards").glob("*.json")))
    alerts = len(list(alert_rules.every()))
    assert f"{_word(boards).capitalize()} dashboards" in _flat("grafana/README.md")
    assert f"and {_word(alerts)} alerts" in _flat("grafana/README.md")
    assert len(re.findall(r"^\| \[", PAGES["docs/runbooks/README.md"].text, re.M)) == alerts


def test_the_cases_that_are_named_are_there() -> None:
    for page in PAGES.values():
        for name in re.findall(r"tests/cases/([\w-]+)\.jsonl", page.text):
            assert (ROOT / f"tests/cases/{name}.expected.json").is_file(), (page.name, name)


# --- defaults ---------------------------------------------------------------------------------------------------------

_DEFAULT = re.compile(
    r"`([a-z_.]+)`(?:,| \(| =) ?(\d[\d,.]*|an?) ?(MiB|KiB|%|min|minute|hour|day|week|s)?s?\b(?! ?to )"
)


def _defaults() -> Iterator[tuple[str, str, str, str]]:
    """Yield what the documents say is the default of a setting or an argument: where, which, how many, of what."""
    for page in PAGES.values():
        if page.name in ("docs/configuration.md", "docs/metrics.md"):  # made from the code
            continue
        for name, number, unit in _DEFAULT.findall(" ".join(page.prose.split())):
            if unit in SECONDS or (unit in UNITS and number[0].isdigit()) or number.replace(",", "").isdigit():
                yield page.name, name, number, unit


def _argument(name: str) -> Any:
    for made in (Emitter.kafka, HaltListener.__init__, Guard.__init__):
        if (found := inspect.signature(made).parameters.get(name)) is not None:
            return found.default
    return None


@pytest.mark.parametrize(("page", "name", "number", "unit"), list(_defaults()))
def test_the_default_is_the_one_that_is_told(page: str, name: str, number: str, unit: str) -> None:
    count = 1.0 if number in ("a", "an") else float(number.replace(",", ""))
    told = count * (SECONDS.get(unit) or UNITS.get(unit, 1))
    name = name.removeprefix("config.")  # in the chart's values
    if name in CONFIG:
        section, key = name.split(".")
        assert getattr(getattr(SETTINGS, section), key) == told
    else:
        default = _argument(name)
        assert default is not None, f"{page} tells a default of `{name}`, of which nothing is known here"
        assert default == told


def test_defaults_are_found() -> None:
    found = {name for _, name, _, _ in _defaults()}
    assert {
        "guard.max_wait",
        "fleet.session_ttl",
        "emit_timeout",
        "keep",
        "patience",
        "max_unacknowledged_bytes",
    } <= found


def test_the_ports_are_those_of_the_settings() -> None:
    from sidecar.config.fleet import PORT

    ports = {str(SETTINGS.http.port), str(PORT), "9092", "9093", "9090", "3000", "9099", "19092"}
    for page in PAGES.values():
        found = set(re.findall(r"\b(?:localhost|127\.0\.0\.1):(\d{4,5})\b", page.text))
        assert found <= ports, page.name


# --- what the fleet alerts to -----------------------------------------------------------------------------------------


def test_the_fleet_s_alerts_are_raised_when_the_document_says() -> None:
    a = SETTINGS.alerts
    minutes = {name: round(getattr(a, name) / 60) for name in ("halt_after", "halt_error_after", "silence_after")}
    rows = {
        "storm": [
            f"of at least {a.storm_sessions} sessions, half are degraded",
            f"fewer than {a.storm_clear_share:.0%} are".replace("%", " %"),
            f"from {(1 + a.storm_share) / 2:.0%}: critical".replace("%", " %"),
        ],
        "regression": [
            f"it fired {a.regression_findings} times in an hour, and {a.regression_factor:g} times as often",
            f"of which {a.regression_history / 3600:g} hours have to be known",
        ],
        "unacknowledged_halt": [
            f"open for {minutes['halt_after']} minutes",
            f"after {minutes['halt_error_after']} minutes error, after an hour critical",
        ],
        "repeat_offender": [f"frozen {a.offender_node} times in an hour; its nodes, {a.offender_agent} times"],
        "silence": [f"for {minutes['silence_after']} minutes", "or a day has passed"],
    }
    assert (a.storm_share, a.regression_clear_factor, a.halt_critical_after, a.silence_forget) == (0.5, 2, 3600, 86400)
    text = PAGES["docs/fleet.md"].text
    for kind, parts in rows.items():
        row = re.search(rf"^\| `{kind}` \|.*$", text, re.M)
        assert row is not None
        assert all(part in row[0] for part in parts), (parts, row[0])


# --- bounds -----------------------------------------------------------------------------------------------------------

BOUNDS = [
    ("docs/fleet.md", f"the last {model.FINDINGS} findings whole"),
    ("docs/fleet.md", f"in force and the last {model.CHECKPOINTS} before it"),
    ("docs/fleet.md", f"the last {model.CLEARED} that were cleared"),
    ("docs/fleet.md", f"after {model.SEEN:,} others of its session"),
    ("docs/board.md", f"the last {model.FINDINGS} findings, the last {model.CHECKPOINTS} checkpoints"),
    ("docs/board.md", f"the last {model.CLEARED} cleared halts"),
    ("docs/board.md", f"more than {_PLAIN_UP_TO} positions"),
    ("docs/board.md", f"`limit` goes up to {queries.MOST}"),
    ("docs/bad-input.md", f"the first {SHOWN}, all with `--verbose`"),
    ("docs/bad-input.md", f"the limit is {MAX_LINE >> 20} MiB a line"),
    ("docs/bad-input.md", f"the first {KEPT >> 10} KiB are kept"),
    ("docs/bad-input.md", f"more than {MAX_DEPTH} levels"),
    ("docs/protocol.md", f"{MAX_DEPTH} levels"),
    ("docs/client-guard.md", f"remembered for each session ({MAX_REMEMBERED:,} of them)"),
]


@pytest.mark.parametrize(("page", "sentence"), BOUNDS)
def test_bounds_are_those_of_the_code(page: str, sentence: str) -> None:
    assert sentence in _flat(page)
