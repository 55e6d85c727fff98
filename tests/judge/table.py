"""How often random sessions meet what, and what matters to their verdicts: `python -m tests.judge.table [SESSIONS]`."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from .naive import RULES, Verdict, judge
from .sessions import Row, random_session


def verdict_on(rows: list[Row]) -> Verdict:
    return judge([json.dumps(row).encode() for row in rows])


def count(sessions: int, seed: int = 0) -> Counter[str]:
    """Over sessions that arrive as they were written: findings by rule, statuses, halts."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter({f"rule {rule}": 0 for rule in RULES})
    for number in range(sessions):
        rows = random_session(rng, f"s{number}")
        verdict = verdict_on(rows)
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


def without(name: str) -> Callable[[Row], Row]:
    return lambda row: {key: value for key, value in row.items() if key != name}


def baseline_as_message(row: Row) -> Row:
    place = {key: row[key] for key in ("session_id", "seq", "tenant") if key in row}
    return {"kind": "message", **place} if row["kind"] == "baseline" else row


LEFT_OUT: dict[str, Callable[[Row], Row]] = {
    **{name: without(name) for name in ("uses", "replayed_to", "inferred", "tenant", "children")},
    "baseline": baseline_as_message,
}


def matters(sessions: int, seed: int = 1) -> Counter[str]:
    """Over such sessions: in how many another verdict would come out if something were left out of all records."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for number in range(sessions):
        rows = random_session(rng, f"s{number}")
        verdict = verdict_on(rows)
        for name, leave_out in LEFT_OUT.items():
            changed = [leave_out(row) for row in rows]
            if changed == rows:
                continue
            seen[f"with {name}"] += 1
            other = verdict_on(changed)
            seen[f"changed by {name}"] += (other.findings, other.sessions) != (verdict.findings, verdict.sessions)
    return seen


def main() -> None:
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    start = time.perf_counter()
    seen = count(sessions)
    milliseconds = (time.perf_counter() - start) * 1000
    for name, times in sorted((seen + matters(sessions // 5)).items()):
        print(f"{times:8}  {name}")
    print(f"{milliseconds / sessions:.2f} ms a session, generation included")


if __name__ == "__main__":
    main()
