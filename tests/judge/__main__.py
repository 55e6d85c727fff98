"""`python -m tests.judge FILE [--output findings|halts|sessions]`: look at a session with the naive judge."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .naive import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--output", choices=("findings", "halts", "sessions"), default="findings")
    parser.add_argument("--max-waiting", type=int, default=None)
    arguments = parser.parse_args()
    lines = [line for line in arguments.file.read_bytes().split(b"\n") if line.strip()]
    verdict = judge(lines, arguments.max_waiting)
    outputs: dict[str, list[dict[str, Any]]] = {
        "findings": [asdict(found) for found in verdict.findings],
        "halts": verdict.halts,
        "sessions": verdict.sessions,
    }
    for each in outputs[arguments.output]:
        print(json.dumps(each))
    print(f"dead {verdict.dead}, duplicates {verdict.duplicates}, late {verdict.late}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
