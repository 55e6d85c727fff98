"""What importing the client costs: nothing but what it needs."""

import subprocess
import sys

import pytest

import sidecar.client

HEAVY = ("aiokafka", "faust", "aiohttp", "httpx2", "langgraph", "langchain", "langchain_core", "pydantic", "structlog")
OTHERS = ("config", "tail", "files", "observe", "guard", "fleet", "simulate", "demo", "cli", "embedded")


def imported(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has after some code, as far as they are not wanted."""
    code = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    unwanted = {*HEAVY, *(f"sidecar.{name}" for name in OTHERS)}
    return {name for name in done.stdout.split() if {name, name.split(".")[0]} & unwanted}


def test_the_package_is_light() -> None:
    assert imported("import sidecar.client") == set()
    assert imported("import sidecar.client\nassert 'msgspec' not in sys.modules, 'not even that'") == set()
    assert imported("import sidecar.brokers") == set()


def test_every_name_is_there_and_light() -> None:
    for name in sidecar.client.__all__:
        assert getattr(sidecar.client, name).__name__ == name
    names = ", ".join(sidecar.client.__all__)
    assert imported(f"from sidecar.client import {names}") == set()


def test_an_emitter_into_a_file_needs_no_client_library() -> None:
    code = (
        "import asyncio, tempfile\nfrom sidecar.client import Emitter\n"
        "async def main(folder):\n"
        "    async with Emitter.file(folder + '/log.jsonl', 's') as log:\n"
        "        await log.action('a')\n"
        "with tempfile.TemporaryDirectory() as folder:\n    asyncio.run(main(folder))\n"
    )
    assert imported(code) == set()


def test_there_is_nothing_else() -> None:
    assert set(sidecar.client.__all__) <= set(dir(sidecar.client))
    with pytest.raises(AttributeError, match="Emiter"):
        sidecar.client.Emiter  # noqa: B018
