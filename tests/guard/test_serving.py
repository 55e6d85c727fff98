"""The guard as the program serves it: `watch` and `run` as processes, and what keeps them from starting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from sidecar.cli import cli
from sidecar.config import Settings
from tests.guard.support import authorized
from tests.guard.test_api import QUESTIONS
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import produce

ROOT = Path(__file__).parents[2]
SECRET_IDS = ("patient-4711", "wire-1000000-to-eve")


class Served:
    """A program that is running, its address and its log."""

    def __init__(self, process: asyncio.subprocess.Process, client: aiohttp.ClientSession, url: str, log: Path) -> None:
        self.process, self.client, self.url, self.log = process, client, url, log

    async def ask(self, body: dict[str, Any]) -> Any:
        async with self.client.post(f"{self.url}/v1/authorize", json=body) as response:
            return await response.json()

    async def look(self, path: str) -> tuple[int, Any]:
        async with self.client.get(self.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


def address(log: Path) -> str:
    """Return where a program says that it serves; nothing: it has not said so yet."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return next((line["address"] for line in lines if "address" in line), "")


@asynccontextmanager
async def serving(log: Path, *arguments: str, **environment: str) -> AsyncIterator[Served]:
    """Run a command that serves, on a free port of loopback."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "--log-format", "json", *arguments, "--http", "127.0.0.1:0"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            cwd=ROOT,
            env={**clean, **environment},
        )
    try:
        url = ""
        async with asyncio.timeout(60), aiohttp.ClientSession() as client:
            for _ in range(400):
                url = address(log)
                if url or process.returncode is not None:
                    break
                await asyncio.sleep(0.05)
            assert url, process.returncode
            yield Served(process, client, url, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def watched(folder: Path, *options: str, **environment: str) -> Any:
    paths = (str(folder / "log.jsonl"), "--state", str(folder / "state"))
    return serving(folder / "watch.log", "watch", *paths, *options, **environment)


def write(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


async def test_watch_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    session_id, action_id = SECRET_IDS
    asked = {"session_id": session_id, "action_id": action_id}
    environment = {"SIDECAR_GUARD__MAX_WAIT": "4.5", "SIDECAR_WATCH__POLL_INTERVAL": "0.05"}
    async with watched(tmp_path, **environment) as w:
        assert (await w.ask({**asked, "min_seq": 0}))["allowed"] is False
        asking = asyncio.create_task(w.ask({**asked, "min_seq": 2}))
        await asyncio.sleep(0.2)
        write(tmp_path, *authorized(session_id, action_id))
        answer = await asking
        assert (answer["allowed"], answer["position"]) == (True, 2)
        acted = {"kind": "action", "session_id": session_id, "seq": 3, "action_id": "other", "irreversible": True}
        write(tmp_path, acted)
        answer = await w.ask({**asked, "min_seq": 3})
        assert (answer["allowed"], answer["reasons"][0]["code"]) == (False, "open_halt")
        _, found = await w.look(f"/v1/findings?session={session_id}")
        assert [finding["rule"] for finding in found["findings"]] == ["action_unauthorized"]
        status, shown = await w.look(f"/v1/sessions/{session_id}")
        assert (status, len(shown["open_halts"])) == (200, 1)
        _, exposed = await w.look("/metrics")
        assert 'sidecar_guard_requests_total{decision="allowed",route="authorize"} 1.0' in exposed
        waiting = asyncio.create_task(w.ask({**asked, "min_seq": 99}))
        await asyncio.sleep(0.2)
        w.process.send_signal(signal.SIGTERM)
        answer = await waiting
        assert (answer["allowed"], answer["reasons"][0]["code"]) == (False, "unavailable")
        assert await w.process.wait() == 0
    told = w.log.read_text()
    assert "serving metrics, health and the guard" in told
    for word in SECRET_IDS:
        assert word not in told
        assert word not in exposed


async def test_without_the_guard_there_is_nothing_to_ask(tmp_path: Path) -> None:
    write(tmp_path, *authorized("s"))
    async with watched(tmp_path, "--no-guard") as w:
        async with w.client.post(f"{w.url}/v1/authorize", json=QUESTIONS["authorize"]) as response:
            assert response.status == 404
        assert (await w.look("/v1/openapi.json"))[0] == 404
        assert (await w.look("/metrics"))[0] == 200
        assert "/v1/" not in (await w.look("/"))[1]


async def test_replicas_answer_for_what_they_have_and_name_the_owner_of_the_rest(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    settings = Settings.load()
    names = (name for name, value in settings.topics.model_dump().items() if isinstance(value, str))
    environment = {f"SIDECAR_TOPICS__{name.upper()}": f"{unique}{name}" for name in names}
    environment |= {
        "SIDECAR_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "SIDECAR_TOPICS__PARTITIONS": "2",
        "SIDECAR_TAIL__GROUP_ID": f"{unique}group",
        "SIDECAR_GUARD__MAX_WAIT": "20",
        "SIDECAR_GUARD__TIMEOUT": "30",
    }
    sessions = [f"s{number}" for number in range(8)]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(tmp_path / "1.log", "run", **environment))
        early = await first.ask({"session_id": "s0", "action_id": "deploy"})
        assert early["allowed"] is False
        second = await stack.enter_async_context(serving(tmp_path / "2.log", "run", **environment))
        await _until_both_have_partitions(first, second)
        rows = [row for session_id in sessions for row in authorized(session_id)]
        records = [(row["session_id"].encode(), json.dumps(row).encode()) for row in rows]
        await produce(kafka.bootstrap, f"{unique}events", records)
        owners = set()
        for session_id in sessions:
            asked = {"session_id": session_id, "action_id": "deploy", "min_seq": 2}
            answers = {served.url: await served.ask(asked) for served in (first, second)}
            (owner,) = [url for url, answer in answers.items() if answer["allowed"]]
            (other,) = [answer for answer in answers.values() if not answer["allowed"]]
            assert (other["reasons"][0]["code"], other["owner"]) == ("not_owned", owner)
            owners.add(owner)
        assert owners == {first.url, second.url}
        for served in (first, second):
            served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert [await served.process.wait() for served in (first, second)] == [0, 0]


async def _until_both_have_partitions(*served: Served) -> None:
    for _ in range(600):
        states = [(await each.look("/readyz"))[1] for each in served]
        if all(state["status"] == "ok" and len(state["tasks"]) == 1 for state in states):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(states)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SIDECAR_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("command", ["watch", "run"])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("http: {host: 0.0.0.0}", "set guard.token_file"),
        ("http: {host: 0.0.0.0}\nguard: {tls_certfile: cert.pem}", "guard.tls_certfile: cannot read cert.pem"),
        ("guard: {token_file: none}", "guard.token_file: cannot read none"),
        ("guard: {tls_client_ca: ca.pem}", "set guard.tls_certfile too"),
        ("guard: {max_wait: 5}", "guard.max_wait 5 is not below guard.timeout 5"),
        ("guard: {advertise: 'guard:9464'}", "http://HOST:PORT"),
    ],
)
def test_what_keeps_it_from_starting(command: str, settings: str, says: str, tmp_path: Path) -> None:
    config = tmp_path / "sidecar.yaml"
    config.write_text(settings)
    arguments = [str(tmp_path), "--state", str(tmp_path / "state")] if command == "watch" else []
    result = CliRunner().invoke(cli, ["--config", str(config), command, *arguments])
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert not (tmp_path / "state").exists()
