"""Replicas that join, leave, die and freeze at random under load, and what is said all the same."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidecar.config import Settings
from tests.kafka.broker import KafkaBroker
from tests.kafka.equality import MAX_WAIT, Load, Verdicts, as_instance, count_in_logs, undisturbed, verdicts
from tests.kafka.tail_support import process, settings_for, until

SECONDS = float(os.environ.get("FRONTIER_STORM_SECONDS", "45"))
SEED = int(os.environ.get("FRONTIER_STORM_SEED", "0")) or random.randrange(1, 10**6)
RATE = 1000.0

_SESSION_TIMEOUT = 2.0
_REBALANCES = "partitions assigned"
_FENCED = "another replica has taken the partition over"
_BROKEN = "failed on_partitions_revoked"


class _Storm:
    """Start, stop, kill and freeze the replicas of one group until it is over."""

    def __init__(self, settings: Settings, folder: Path, seed: int) -> None:
        self._settings = settings
        self._folder = folder
        self._random = random.Random(seed)
        self._processes = contextlib.AsyncExitStack()
        self._started = 0
        # Set while nothing is to be disturbed.
        self.calm = asyncio.Event()
        self.over = asyncio.Event()
        self.done: Counter[str] = Counter()

    async def replica(self, instance: str | None) -> None:
        """Let one replica come and go; at the end it runs, until the storm is closed.

        Args:
            instance: its `group_instance_id`, which it keeps; None: it has none, and is a new member each time.
        """
        choose, uniform = self._random.choices, self._random.uniform
        child = await self._start(instance)
        while not self.over.is_set():
            await asyncio.sleep(uniform(1.5, 6.0))
            if self.calm.is_set() or self.over.is_set():
                continue
            twin = 2 if instance is not None else 0
            (what,) = choose(("leave", "kill", "freeze", "twin"), (3, 4, 3, twin))
            self.done[what] += 1
            if what == "freeze":
                child.send_signal(signal.SIGSTOP)
                await asyncio.sleep(_SESSION_TIMEOUT + uniform(1.0, 3.0))
                child.send_signal(signal.SIGCONT)
                continue
            if what == "twin":  # restarted elsewhere under its name, while the old process only seemed to be dead
                child.send_signal(signal.SIGSTOP)
                old, child = child, await self._start(instance)
                await asyncio.sleep(uniform(1.0, 4.0))
                old.send_signal(signal.SIGCONT)
                await asyncio.sleep(uniform(1.0, 2.0))
                await self._end(old, signal.SIGKILL)
                continue
            await self._end(child, signal.SIGTERM if what == "leave" else signal.SIGKILL)
            await asyncio.sleep(self._random.choice((0.0, uniform(0.0, 3.0))))
            child = await self._start(instance)

    async def close(self) -> None:
        """End all processes."""
        await self._processes.aclose()

    async def _start(self, instance: str | None) -> asyncio.subprocess.Process:
        self._started += 1
        self.done["join"] += 1
        settings = as_instance(self._settings, instance)
        started = process(settings, self._folder, f"replica-{self._started:03d}-{instance or 'nameless'}")
        return await self._processes.enter_async_context(started)

    async def _end(self, child: asyncio.subprocess.Process, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(how)
        status = await asyncio.wait_for(child.wait(), 40)
        # Python that has not come as far as our handlers ends by the signal itself.
        if how is signal.SIGTERM:
            assert status in (0, -signal.SIGTERM), f"a replica ended with status {status}"


async def test_a_storm_of_rebalances_loses_nothing_and_repeats_nothing(
    kafka: KafkaBroker, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(kafka.bootstrap, unique, max_wait=MAX_WAIT, session_timeout=_SESSION_TIMEOUT)
    settings = settings.model_copy(update={"snapshot": settings.snapshot.model_copy(update={"interval": 2.0})})
    calm = undisturbed(settings)
    load, storm = Load(SEED, RATE), _Storm(settings, tmp_path, SEED)
    async with process(calm, tmp_path, "undisturbed") as alone, asyncio.TaskGroup() as group:
        await until(lambda: _REBALANCES in (tmp_path / "undisturbed.log").read_text(), within=30)
        begun = time.monotonic()
        publishing = group.create_task(load.run(settings))
        replicas = [group.create_task(storm.replica(name)) for name in ("one", "two", None)]
        try:
            await _disturb(load, storm, (settings, calm))
            storm.over.set()
            await asyncio.wait(replicas)
            load.stop()
            records = await publishing
            said, expected = await _same(settings, calm, load)
            assert alone.returncode is None
        finally:
            storm.over.set()
            load.stop()
            await storm.close()
    # Once more, when the last of them has ended: nothing came after it.
    said = await verdicts(settings)
    rebalances, fenced, broken = count_in_logs(tmp_path, _REBALANCES, _FENCED, _BROKEN)
    with capsys.disabled():
        did = ", ".join(f"{count} {what}" for what, count in sorted(storm.done.items()))
        print(f"\nstorm of {time.monotonic() - begun:.0f} s (seed {SEED}), {records:,} records: {did}")
        print(f"  {rebalances} assignments, {fenced} fenced; {said}")
    assert said.differences(expected) == []
    assert len(said.findings) == said.findings.total()
    assert broken == 0


async def _disturb(load: Load, storm: _Storm, runs: Sequence[Settings]) -> None:
    """Let the storm pass, with a lull in its middle in which the clock decides what it has to."""
    begun = time.monotonic()
    lull = 0.0
    while time.monotonic() < begun + lull + SECONDS:
        load.plant_unplaced()
        await asyncio.sleep(2.0)
        if not lull and time.monotonic() > begun + SECONDS / 2:
            late, calm = load.plant_late(), time.monotonic()

            async def given_up(late: set[str] = late) -> bool:
                return all([late <= set((await verdicts(run)).findings) for run in runs])

            storm.calm.set()
            await until(given_up, within=60, every=1.0)
            storm.calm.clear()
            lull = time.monotonic() - calm
            # From here on, a restart must neither undo nor repeat what was given up.
            await asyncio.sleep(10.0)
            load.complete_late()


async def _same(settings: Settings, calm: Settings, load: Load) -> tuple[Verdicts, Verdicts]:
    """Wait until both runs have said everything, or it is certain that they will not say the same."""
    alone = load.expected()
    deadline = time.monotonic() + 60
    while True:
        said, expected = await verdicts(settings), await verdicts(calm)
        missing = [what for finding_id, what in alone.items() if finding_id not in expected.findings]
        if (not missing and not said.differences(expected)) or time.monotonic() > deadline:
            assert missing == [], "the undisturbed run lacks what the engine alone finds"
            return said, expected
        await asyncio.sleep(1.0)
