"""Run a worker of the fleet as a process: python -m tests.fleet.fleet_process SETTINGS.json

The URL that it serves on is the first line of standard output.
"""

import asyncio
import signal
import sys

from sidecar.config import Settings
from sidecar.fleet.command import serve
from sidecar.observe import logs
from sidecar.tail.topics import prepare_fleet


async def main(path: str) -> None:
    """Run until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(Settings.load(path), stop, prepare_fleet, started=lambda url: print(url, flush=True))


if __name__ == "__main__":
    logs.setup("info", "json")
    asyncio.run(main(sys.argv[1]))
