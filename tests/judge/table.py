"""How often random sessions meet what: `python -m tests.judge.table [SESSIONS]`."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter

from .naive import RULES, judge
from .sessions import random_session


def count(sessions: int, seed: int = 0) -> Counter[str]:
    """Over sessions that arrive as they were written: findings by rule, statuses, halts."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter({f"rule {rule}": 0 for rule in RULES})
    for number in range(sessions):
        rows = random_session(rng, f"s{number}")
        verdict = judge([json.dumps(row).encode() for row in rows])
        seen["records"] += len(rows)
        seen.update(f"rule {found.rule}" for found in verdict.findings)
        seen.update(f"sessions with {rule}" for rule in {found.rule for found in verdict.findings})
        seen.update(f"status {session['status']}" for session in verdict.sessions)
        seen["sessions without a finding"] += not verdict.findings
        seen["dead"] += verdict.dead
        kinds = {row["seq"]: row["kind"] for row in rows}
        for halt in verdict.halts:
            seen[f"halt {halt['status']}"] += 1
            if halt["status"] == "clear":
                seen[f"halt cleared by a {kinds[halt['position']]}"] += 1
            elif halt["reexpand_from"] is not None:
                seen["halt with reexpand_from"] += 1
                seen["halt with reexpand_from of its own checkpoint"] += halt["reexpand_from"] == halt["checkpoint_id"]
    return seen


def main() -> None:
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    start = time.perf_counter()
    seen = count(sessions)
    milliseconds = (time.perf_counter() - start) * 1000
    for name in sorted(seen):
        print(f"{seen[name]:8}  {name}")
    print(f"{milliseconds / sessions:.2f} ms a session, generation included")


if __name__ == "__main__":
    main()
