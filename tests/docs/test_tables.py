"""Tables and lists in the documents that have to be whole are whole."""

import re

import pytest

from sidecar.cli import cli
from sidecar.protocol.records import KINDS
from tests.docs.pages import PAGES, ROOT
from tests.files.test_bad_input import CASES


def test_each_line_of_the_table_of_bad_input_has_its_test() -> None:
    table, _, _ = PAGES["docs/bad-input.md"].text.partition("Files as a whole")
    assert set(re.findall(r"^\| ([^|]+?) \|", table, re.M)) - {"Input"} == CASES.keys()


@pytest.mark.parametrize("name", ["docs/guarantees.md", "docs/fleet.md", "docs/client.md"])
def test_each_promise_names_the_test_that_breaks_it(name: str) -> None:
    tables = re.findall(r"^\| Promise \| The test that breaks it \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES[name].text, re.M)
    rows = [row.split("|")[1:3] for table in tables for row in table.splitlines()]
    assert len(rows) >= 4
    for promise, test in rows:
        assert re.search(r"`(tests/)?[\w/]*test_\w+\.py`|\bthe same\b|\bin all of them\b", test), promise


def test_the_table_of_folders_has_all_packages() -> None:
    text = PAGES["docs/architecture.md"].text
    told = set(re.findall(r"`sidecar/(\w+)(?:/|\.py)`", text))
    there = {path.stem for path in (ROOT / "sidecar").iterdir() if path.suffix in ("", ".py")}
    assert there - {"__init__", "__main__", "__pycache__"} <= told
    assert {"deploy/", "docs/", "grafana/", "tests/"} <= set(re.findall(r"`(\w+/)`", text))


def test_each_command_is_told() -> None:
    changes = PAGES["CHANGELOG.md"].text
    others = "".join(page.text for name, page in PAGES.items() if name != "CHANGELOG.md")
    for name in cli.commands:
        assert re.search(rf"`(?:sidecar )?{name}\b", changes), f"CHANGELOG.md: sidecar {name}"
        assert re.search(rf"\bsidecar {name}\b|`{name}`", others), f"no document tells of sidecar {name}"


def test_the_emitter_s_methods_are_those_of_the_kinds() -> None:
    _, _, rest = PAGES["docs/client.md"].text.partition("There is one method for each")
    told, _, _ = rest.partition("`event(")
    assert set(re.findall(r"`(\w+)`", told)) == set(KINDS)
