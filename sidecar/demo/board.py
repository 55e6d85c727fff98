"""The fleet's board beside the demo, in a process of its own."""

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import aiohttp

from sidecar.config import HttpSettings, Settings
from sidecar.config.fleet import PORT

_PATIENCE = 20.0
_ASK_TIMEOUT = 2.0


class Board:
    """Run `sidecar fleet`, and ask it what it shows.

    Args:
        settings: the demo's; the board is served on the fleet's own port, or on a free one where that is taken.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="sidecar-demo-")
        self._process: asyncio.subprocess.Process | None = None
        self.url: str | None = None

    async def open(self) -> bool:
        """Start it; return whether it serves (False: it does not, and the demo goes on without)."""
        for port in (PORT, 0):
            if await self._start(port):
                return True
            await self._end()
        return False

    async def counts(self) -> dict[str, int] | None:
        """Return how many sessions it counts by status; None: it does not say, or not for all of them."""
        timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as client, client.get(f"{self.url}/v1/fleet") as answer:
                said = await answer.json()
            return None if said["missing"] else {status: int(count) for status, count in said["statuses"].items()}
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def close(self) -> None:
        """End it."""
        await self._end()
        await asyncio.to_thread(self._folder.cleanup)

    async def _start(self, port: int) -> bool:
        settings = self._settings.model_copy(update={"http": HttpSettings(port=port)})
        config, log = Path(self._folder.name) / "fleet.json", Path(self._folder.name) / "fleet.log"
        await asyncio.to_thread(config.write_text, settings.model_dump_json(), encoding="utf-8")
        with log.open("wb") as out:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sidecar", "--config", str(config), "--log-level", "info"),
                *("--log-format", "json", "fleet"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self._process.returncode is None:
                    for line in (await asyncio.to_thread(log.read_text, encoding="utf-8")).splitlines():
                        with contextlib.suppress(ValueError, KeyError):
                            said = json.loads(line)
                            if str(said["event"]).startswith("serving"):
                                self.url = str(said["address"])
                                return True
                    await asyncio.sleep(0.05)
        return False

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            process.terminate()
            await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()
            await process.wait()
