"""Two replicas of `sidecar run` as processes, one killed and restarted now and then."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sidecar.client import Guard
from sidecar.config import Settings
from sidecar.embedded import free_port
from sidecar.tail.homes import Homes
from tests.kafka.tail_support import PARTITIONS

ROOT = Path(__file__).parents[2]
WHOLE_WITHIN = 40.0


class Outage(msgspec.Struct):
    """Hold from when (`time.time`) until when not every partition had a reader that could answer."""

    begun: float
    ended: float = float("inf")

    def overlaps(self, begun: float, ended: float) -> bool:
        """Tell whether a span of time touches the outage."""
        return begun <= self.ended and ended >= self.begun


class Replica:
    """Run one replica, always at the same address.

    Args:
        settings: what all replicas share.
        folder: where its settings and log go.
        name: its name.
    """

    def __init__(self, settings: Settings, folder: Path, name: str) -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.guard = Guard(f"http://{self.address}", owner_hosts=["127.0.0.1"])
        self.peak = 0
        self.starts = 0
        self._config = folder / f"{name}.json"
        self._config.write_text(settings.model_dump_json())
        self._log = folder / f"{name}.log"
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process."""
        self.starts += 1
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sidecar", "--config", str(self._config), "run", "--http", self.address),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONWARNINGS": "default"},
            )

    async def kill(self) -> None:
        """End the process with SIGKILL."""
        self.measure()
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.send_signal(signal.SIGKILL)
            await child.wait()

    def measure(self) -> None:
        """Take note of the most memory that the process has had resident."""
        if self._child is None:
            return
        assert self._child.returncode is None, f"{self.name} has ended by itself:\n{self.log()[-3000:]}"
        for line in Path(f"/proc/{self._child.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                self.peak = max(self.peak, int(line.split()[1]) * 1024)

    def log(self) -> str:
        """Return what it has logged, in all its lives."""
        return self._log.read_text(errors="replace")


class Replicas:
    """Keep two replicas running, but for the kills."""

    def __init__(self, settings: Settings, folder: Path, seed: int) -> None:
        self.members = [Replica(settings, folder, name) for name in ("one", "two")]
        self.outages: list[Outage] = []
        self.kills = 0
        self._random = random.Random(seed)
        homes = Homes("murmur2", PARTITIONS)
        names = [f"stranger-{n}" for n in range(100)]
        self._probes = [next(n for n in names if homes.of(n) == number) for number in range(PARTITIONS)]

    async def start(self) -> None:
        """Start both, and wait until they answer for every partition."""
        for member in self.members:
            await member.start()
        await self.until_whole()

    async def close(self) -> None:
        """Kill both."""
        for member in self.members:
            await member.kill()
            await member.guard.aclose()

    async def until_whole(self) -> None:
        """Wait until each partition's owner answers, and each replica owns some."""
        deadline = time.monotonic() + WHOLE_WITHIN
        while not all(self._is_whole(each) for each in zip(*[await self._probe(m) for m in self.members], strict=True)):
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(f"{m.name}:\n{m.log()[-3000:]}" for m in self.members))
            await asyncio.sleep(0.1)

    @staticmethod
    def _is_whole(answers: Sequence[str]) -> bool:
        return set(answers) == {"unknown_session"}

    async def _probe(self, member: Replica) -> list[str]:
        """Ask a replica about a session of each partition that nobody has heard of; it leads to the owner."""
        codes = []
        for session_id in self._probes:
            answer = await member.guard.authorize(session_id, "nothing")
            codes.append(answer.reasons[0].code if answer.reasons else "")
        return codes

    async def storm(self, calm: asyncio.Event, every: tuple[float, float]) -> None:
        """Kill one of them now and then, and start it again, until `calm` is set."""
        while True:
            try:
                await asyncio.wait_for(calm.wait(), self._random.uniform(*every))
                return
            except TimeoutError:
                pass
            victim = self._random.choice(self.members)
            self.outages.append(outage := Outage(time.time()))
            await victim.kill()
            self.kills += 1
            await asyncio.sleep(self._random.choice((0.0, self._random.uniform(0.5, 5.0))))
            await victim.start()
            await self._joined(victim)
            await self.until_whole()
            outage.ended = time.time()

    async def _joined(self, victim: Replica) -> None:
        """Wait until a restarted replica has been assigned partitions."""
        deadline, before = time.monotonic() + WHOLE_WITHIN, victim.log().count("partitions assigned")
        while victim.log().count("partitions assigned") <= before:
            if time.monotonic() > deadline:
                raise AssertionError(f"{victim.name} was assigned nothing:\n{victim.log()[-3000:]}")
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Measure memory until cancelled."""
        while True:
            for member in self.members:
                member.measure()
            await asyncio.sleep(0.2)

    @property
    def peak(self) -> int:
        """Return the most memory (bytes) that any replica has had resident so far."""
        return max(member.peak for member in self.members)
