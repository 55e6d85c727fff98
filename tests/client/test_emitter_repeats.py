"""What an emitter publishes again is never further back than the sidecar remembers: it would pass for a conflict."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidecar.client import Emitter
from sidecar.client.journal import Entry
from sidecar.client.made import Options
from sidecar.engine.fold import Engine
from sidecar.protocol.decode import decode

RECORDS = 5_500


class Broker:
    """A broker that takes what is delivered, and breaks the connection after some of it; `killed` at a delivery."""

    limit, near = 1 << 20, False

    def __init__(self, taken: list[bytes], *, breaks: frozenset[int], kill_at: int = -1, folder: Path | None = None):
        self.taken, self.breaks, self.kill_at, self.folder = taken, breaks, kill_at, folder
        self.deliveries = 0
        self.gate, self.killed = asyncio.Event(), asyncio.Event()

    async def open(self, session_id: str, within: float) -> None:
        await self.gate.wait()

    async def newest(self) -> int:
        return 0

    async def deliver(self, entries: Sequence[Entry]) -> None:
        self.taken += [entry.raw for entry in entries]
        self.deliveries += 1
        if self.deliveries == self.kill_at and self.folder is not None:
            shutil.copytree(self.folder, self.folder.with_name("after"))  # as a crash would leave it
            self.killed.set()
            await asyncio.Event().wait()
        if self.deliveries in self.breaks:
            raise ConnectionError("the connection broke after all of it was taken")

    async def reset(self) -> None: ...

    async def explain(self) -> str:
        return ""

    async def close(self) -> None: ...


@pytest.mark.parametrize("kill_at", [2, 4, 7])
async def test_a_crash_in_a_backlog_is_no_second_writer(tmp_path: Path, kill_at: int) -> None:
    taken: list[bytes] = []
    folder = tmp_path / "before"
    folder.mkdir()
    broker = Broker(taken, breaks=frozenset((1, 3)), kill_at=kill_at, folder=folder)
    emitter = Emitter(broker, "s", Options(journal=folder, start_at=1, start_timeout=0, flush_timeout=0.1))
    await emitter.start()
    await asyncio.gather(*(emitter.event("turn", n=n) for n in range(RECORDS)))
    broker.gate.set()
    async with asyncio.timeout(30):
        await broker.killed.wait()

    second = Broker(taken, breaks=frozenset((1,)))
    second.gate.set()
    async with Emitter(second, "s", Options(journal=tmp_path / "after", start_timeout=0)) as again:
        await again.event("turn", n=RECORDS)
        await again.flush()

    engine = Engine()
    outcome = engine.fold([(*decode(raw), None) for raw in taken], 0.0)
    assert not outcome.findings
    state = engine.look("s")
    assert state is not None and state.applied == RECORDS + 1
    assert engine.counters.duplicates > 1000
