"""Run a tail as a process: python -m tests.kafka.tail_process SETTINGS.json"""

import asyncio
import sys
import time

from sidecar.config import Settings
from sidecar.observe import logs
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.tail.tail import Tail


async def main(path: str) -> None:
    """Run until SIGTERM."""
    settings = Settings.load(path)
    await Tail(settings, Metrics(), Health(time.monotonic()), startup_timeout=20).run(signals=True)


if __name__ == "__main__":
    logs.setup("info", "json")
    asyncio.run(main(sys.argv[1]))
