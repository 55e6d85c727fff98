"""SIGTERM ends `sidecar run` in bounded time: with a broker that hangs in a commit, guard connections, a gap bomb."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.config import Settings
from tests.conftest import missing
from tests.kafka import broker as apache
from tests.kafka.broker import KafkaBroker
from tests.kafka.tail_support import send, settings_for, until, values

BOUND = 32.0


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka that the test may stop."""
    if reason := apache.available():
        missing(reason)
    with KafkaBroker(tmp_path / "broker") as broker:
        yield broker


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def run(settings: Settings, tmp_path: Path, port: int) -> asyncio.subprocess.Process:
    config = tmp_path / "sidecar.json"
    given = json.loads(settings.model_dump_json(exclude_none=True))
    config.write_text(json.dumps({section: given[section] for section in ("kafka", "topics", "tail", "engine")}))
    command = ("-m", "sidecar", "--config", str(config), "run", "--http", f"127.0.0.1:{port}")
    with (tmp_path / "run.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *command),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )


async def test_sigterm_ends_in_bounded_time_and_a_second_at_once(
    own_kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    settings, port = settings_for(own_kafka.bootstrap, unique), free_port()
    grant = b'{"kind":"authorization","session_id":"s","seq":1,"action_id":"deploy","precondition_id":"ticket"}'
    gaps = [b'{"kind":"message","session_id":"bomb","seq":%d}' % (1026 * n) for n in range(1, 8001)]
    for second in (False, True):
        child = await run(settings, tmp_path, port)
        writers: list[asyncio.StreamWriter] = []
        try:
            await send(settings, [grant, *gaps])
            await until(lambda: values(settings, settings.topics.sessions), within=30)
            await until(lambda: f"127.0.0.1:{port}" in (tmp_path / "run.log").read_text(), within=30)
            for _ in range(5):  # held open, with half a request each
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /v1/authorize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
                await writer.drain()
                writers.append(writer)
            await send(settings, gaps)
            assert own_kafka.pid is not None
            os.kill(own_kafka.pid, signal.SIGSTOP)
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            child.send_signal(signal.SIGTERM)
            if second:
                await asyncio.sleep(1)
                child.send_signal(signal.SIGTERM)
            status = await asyncio.wait_for(child.wait(), BOUND)
            took = time.monotonic() - begun
            said = (tmp_path / "run.log").read_text()
            if second:
                assert status == 128 + signal.SIGTERM and took < 3, said[-2000:]
                assert "SIGTERM again: ended at once" in said
            else:
                assert status == 1, said[-2000:]
                assert "Not finished: " in said
        finally:
            if own_kafka.pid is not None:
                os.kill(own_kafka.pid, signal.SIGCONT)
            for writer in writers:
                writer.close()
            if child.returncode is None:
                child.kill()
            await child.wait()
