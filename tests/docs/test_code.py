"""The documents' code, records, settings and pictures: executed, decoded, loaded, and compared with what there is."""

import ast
import asyncio
import configparser
import itertools
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.config import Settings
from sidecar.config.fields import keys
from sidecar.protocol.decode import decode
from sidecar.protocol.openapi import ROUTES
from sidecar.protocol.records import Record
from tests.docs.pages import PAGES, ROOT, Block
from tests.docs.proofs import CODE, PICTURES, SETTINGS, blocks_of
from tests.docs.world import World
from tests.kafka.support import read_topic

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("documents")]
SESSION = "session-7"


def each(test: str) -> pytest.MarkDecorator:
    """Give a test the blocks that the table has for it."""
    found = list(blocks_of(test))
    return pytest.mark.parametrize("block", found, ids=[block.where for block in found])


# --- Python -----------------------------------------------------------------------------------------------------------


@each(CODE)
async def test_python_does_what_the_document_says(
    block: Block, here: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = _executed(block, here, tmp_path)
    if "from sidecar" in block.text:
        import sidecar.client

        assert {"Emitter", "Guard", "HaltListener"} <= names.keys() & set(sidecar.client.__all__)
    elif "Emitter.kafka" in block.text:
        await asyncio.wait_for(names["example"](SESSION), 30)
        published = await _of_the_session(here, "agent.events")
        assert [(record["kind"], record["seq"], record["tenant"]) for record in published] == [
            ("authorization", 1, "acme"),
            ("action", 2, "acme"),
        ]
        assert list((tmp_path / "journals").iterdir()), "its journal is where it was told"
    else:
        await _heard(names["example"], here)
        assert re.search(r"^halted-\d+ halt \['action_unauthorized'\]$", capsys.readouterr().out, re.M)
        said = {(ack["by"], ack["decision"]) for ack in await _acks(here)}
        assert said == {("on-call", "replay from the last checkpoint")}


def _executed(block: Block, here: World, folder: Path) -> dict[str, Any]:
    """Execute a block, with our addresses; what stands in it outside of a function becomes `example(session_id)`."""
    code = block.text
    if "async with" in code:
        code = "async def example(session_id):\n" + textwrap.indent(code, "    ")
        for place, at in {**here.live.places, "/var/lib/agent/journals": str(folder / "journals")}.items():
            code = code.replace(place, at)
    names: dict[str, Any] = {}
    exec("from sidecar.client import Emitter, HaltListener\n" + code, names)
    return names


async def _heard(example: Any, here: World) -> None:
    """Let the loop hear of halts until it has answered one, and stop it: it hears only what comes once it is ready."""
    listening = asyncio.create_task(example("halted-0"))
    try:
        async with asyncio.timeout(40):
            for number in itertools.count():
                log = here.folder / "unauthorized.jsonl"
                about = {"session_id": f"halted-{number}", "seq": 1, "action_id": "a", "irreversible": True}
                log.write_text(json.dumps({"kind": "action", **about}) + "\n")
                await asyncio.to_thread(here.run, f"sidecar emit --bootstrap-servers {here.live.broker} {log}")
                await asyncio.sleep(0.5)
                assert not listening.done(), await listening
                if await _acks(here):
                    return
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def _acks(here: World) -> list[dict[str, Any]]:
    found = await read_topic(here.live.broker, "agent.halt_acks")
    return [json.loads(ack.value or b"{}") for ack in found if (ack.key or b"").startswith(b"halted-")]


async def _of_the_session(here: World, topic: str) -> list[dict[str, Any]]:
    found = await read_topic(here.live.broker, topic)
    return [json.loads(record.value or b"{}") for record in found if record.key == SESSION.encode()]


def test_python_blocks_are_whole() -> None:
    """Compile all of them; a name of ours that they import has to be there."""
    for page in PAGES.values():
        for block in page.blocks():
            if block.language != "python":
                continue
            tree = compile(block.text, block.where, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sidecar"):
                    module = __import__(node.module or "", fromlist=["_"])
                    assert all(hasattr(module, alias.name) for alias in node.names), block.where


# --- records and settings ---------------------------------------------------------------------------------------------


def test_records_can_be_read() -> None:
    """Decode every line of every block of records; that they are also judged as said is another test's of each."""
    lines = [line for block in _in("jsonl") for line in block.text.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        assert isinstance(decode(line.encode())[0], Record), line


@each(SETTINGS)
def test_settings_can_be_loaded(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.text.startswith("SIDECAR_"):
        given = dict(line.split("=", 1) for line in block.commands)
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        loaded = {key.variable: key.path for key in keys(Settings)}
        for variable, value in given.items():
            section, key = loaded[variable]
            assert str(getattr(getattr(Settings.load(None), section), key)) == value
        return
    (tmp_path / "sidecar.yaml").write_text(block.text)
    settings = Settings.load(tmp_path / "sidecar.yaml")
    for section, values in yaml.safe_load(block.text).items():
        for key, value in values.items():
            assert str(getattr(getattr(settings, section), key)) == str(value), f"{section}.{key}"


def _in(language: str) -> list[Block]:
    return [block for page in PAGES.values() for block in page.blocks() if block.language == language]


# --- pictures ---------------------------------------------------------------------------------------------------------


@each(PICTURES)
def test_pictures_show_what_there_is(block: Block) -> None:
    """Compare the names in a picture with the topics, the guard's questions, and the direction of imports."""
    assert block.page in ("README.md", "docs/architecture.md")
    if block.text.startswith("protocol"):
        assert _layers(block.text) == _contract()
        return
    topics = set(map(str, Settings.load(None).topics.model_dump().values()))
    named = set(re.findall(r"\bagent\.\w+", block.text))
    assert named <= topics
    assert {
        "agent.events",
        "agent.compactions",
        "agent.findings",
        "agent.halts",
        "agent.sessions",
        "agent.dlq",
    } <= named
    asked = re.search(r"guard: (may I act\?.*?)(?:  |\n)", block.text)
    assert asked is not None
    questions = {route.path.removeprefix("/v1/") for route in ROUTES if route.method == "POST"}
    words = {"act": "authorize", "resume": "resume", "commit": "commit", "reclaim": "gc"}
    assert {words[word] for word in re.findall(r"(\w+)\?", asked[1])} <= questions
    assert "tail: fetch ▶ decode ▶ order ▶ fold ▶ outputs" in block.text


def _layers(picture: str) -> list[set[str]]:
    return [set(re.findall(r"\w+", layer)) for layer in picture.split("◀──")]


def _contract() -> list[set[str]]:
    """Return what the linter holds: protocol, engine, the row of those that do not know each other, what is above."""
    held = configparser.ConfigParser()
    held.read(ROOT / ".importlinter")
    layers = held["importlinter:contract:direction"]["layers"].strip().splitlines()
    rows = [set(re.findall(r"sidecar\.(\w+)", layer)) - {"__main__"} for layer in reversed(layers)]
    protocol, engine, *_ = rows
    (middle,) = [row for row in rows if "tail" in row]
    above = set().union(*rows[rows.index(middle) + 1 :])
    return [protocol, engine, middle, above]
