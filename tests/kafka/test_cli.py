"""The commands that talk to Kafka, as processes: create the topics, publish, tail, end on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sidecar.embedded import EmbeddedBroker
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import read_topic
from tests.kafka.tail_support import until

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"


async def sidecar(environment: dict[str, str], *arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(60):
        out, err = await child.communicate(stdin)
    return child.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_topics_emit_and_run(kafka: KafkaBroker, unique: str, tmp_path: Path, guarantee: str) -> None:
    await _tour(kafka.bootstrap, unique, tmp_path, guarantee)


async def test_topics_emit_and_run_on_the_embedded_broker(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    await _tour(embedded.bootstrap, unique, tmp_path, "at_least_once")


async def _tour(bootstrap: str, unique: str, tmp_path: Path, guarantee: str) -> None:
    names = ("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "snapshots", "alerts")
    names += ("misplaced", "decisions")
    environment = {f"SIDECAR_TOPICS__{name.upper()}": f"{unique}{name}" for name in names}
    environment |= {"SIDECAR_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "SIDECAR_TAIL__SESSION_TIMEOUT": "7"}
    environment["SIDECAR_FLEET__GROUP_ID"] = f"{unique}fleet"
    case = CASES / "merged-approval-rollback.jsonl"

    status, out, err = await sidecar(environment, "topics", "--create", "--partitions", "2")
    assert (status, out.count("created")) == (0, 13), err
    status, out, err = await sidecar(environment, "topics", "--create")
    assert (status, out.count("exists")) == (0, 13), err
    status, _, err = await sidecar(environment, "emit", str(case))
    assert status == 0 and "9 " not in err.partition("published")[0]
    status, _, err = await sidecar(environment, "emit", "-", stdin=b"no record\n")
    assert status == 0 and "1 lines were no records" in err

    log = tmp_path / "run.log"
    with log.open("wb") as stderr:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "run", "--guarantee", guarantee),
            *("--group-id", f"{unique}group", "--http", "127.0.0.1:0"),
            stderr=stderr,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
    try:
        wanted = {line["rule"] for line in map(json.loads, (await _checked(case)).splitlines())}
        async with asyncio.timeout(60):
            while True:
                records = await read_topic(bootstrap, f"{unique}findings", read_committed=True)
                found = [json.loads(record.value or b"") for record in records]
                if {f["rule"] for f in found} == wanted:
                    break
                assert child.returncode is None, log.read_text()
                await asyncio.sleep(0.2)
        assert len(found) == len(wanted) == 5
        address = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert address is not None
        # A partition with nothing in it may be placed later than the finding is there.
        ready = await until(lambda: asyncio.to_thread(_get, f"{address[0]}/readyz", 503))
        assert json.loads(ready)["status"] == "ok"
        assert 'sidecar_frontier_degraded{status="corrupt"} 1.0' in await asyncio.to_thread(
            _get, f"{address[0]}/metrics"
        )
        letters = await read_topic(bootstrap, f"{unique}dlq", read_committed=True)
        assert len(letters) == 1
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await child.wait() == 0, log.read_text()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _checked(case: Path) -> str:
    return (await sidecar({}, "check", str(case)))[1]


def _get(url: str, not_yet: int | None = None) -> str:
    """Return what is answered; nothing if that is the status `not_yet`."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == not_yet:
            return ""
        raise
