"""Run a watch with the arguments given as one JSON object; SIGTERM ends it cleanly."""

import asyncio
import json
import logging
import signal
import sys

import structlog

from sidecar.files.jsonl import InputError
from sidecar.files.store import StateError
from sidecar.files.watch import watch


async def main() -> int:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    logging.basicConfig(stream=sys.stderr)
    options = json.loads(sys.argv[1])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        return await watch(options.pop("paths"), stop=stop, poll_interval=0.05, **options)
    except (StateError, InputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
