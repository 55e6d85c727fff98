"""`docs/guard.md` says what the guard does: its examples are run, its tables are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

from sidecar.protocol.api import TRANSIENT, Code
from sidecar.protocol.openapi import ROUTES
from tests.guard.support import guarded

TEXT = (Path(__file__).parents[2] / "docs" / "guard.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


async def test_the_examples_are_what_is_answered() -> None:
    (log,) = blocks("jsonl")
    question, allowed, refused = map(json.loads, blocks("json"))
    async with guarded() as g:
        g.sessions.fold(*map(json.loads, log.splitlines()))
        assert (await g.ask("/v1/authorize", question)).body == allowed
        assert 'for `"action_id": "destroy"`' in TEXT
        assert (await g.ask("/v1/authorize", {**question, "action_id": "destroy"})).body == refused


def test_every_route_status_and_code_is_told() -> None:
    for route in ROUTES:
        path = route.path.replace("/v1/findings", "/v1/findings?session=…&limit=…")
        assert f"`{route.method} {path}`" in TEXT, path
    statuses = {int(status) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for status in row.split(",")}
    assert statuses == {200, 405} | {status for route in ROUTES for status in route.problems}
    told = {}
    for codes, later in re.findall(r"^\| ((?:`\w+`,? ?)+) \|.*\| *(\S.*?)? *\|$", TEXT, re.MULTILINE):
        told |= dict.fromkeys(re.findall(r"\w+", codes), later == "yes")
    assert told == {code: code in TRANSIENT for code in get_args(Code)}
