"""Keep the state that this version writes, for the tests of later ones: `python -m tests.ops.keep_state VERSION`.

Run when a version is released, with the code of that version. Half of the records of the test cases is judged, and what
is kept of it is written to `tests/ops/data/VERSION`: an engine's dump, a task's snapshot records, and the state folder
of a watch; beside them the other half, and what this version says of it.
"""

import asyncio
import base64
import io
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sidecar.engine.fold import Arrival, Engine, Outcome
from sidecar.files.watch import watch
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import Hole
from sidecar.tail.snapshots import SnapshotWriter, origin_of

DATA = Path(__file__).with_name("data")
CASES = Path(__file__).parents[1] / "cases"
GROUP, TOPICS, PARTITIONS, NUMBER = "frontier-sidecar", ("agent.events", "agent.compactions"), 4, 1
POSITIONS = {"agent.compactions": 40, "agent.events": 200}


def halves() -> tuple[list[bytes], list[bytes]]:
    """Return the records of the cases, cut in two within every session."""
    before: list[bytes] = []
    after: list[bytes] = []
    for case in sorted(CASES.glob("*.jsonl")):
        lines = [line for line in case.read_bytes().splitlines() if line.strip()]
        before += lines[: len(lines) // 2]
        after += lines[len(lines) // 2 :]
    return before, after


def arrivals(lines: Iterable[bytes]) -> list[Arrival]:
    """Return records as the engine takes them."""
    found: list[Arrival] = []
    for line in lines:
        try:
            found.append((*decode(line), None))
        except Unreadable as bad:
            if bad.session_id is not None and bad.seq is not None:
                found.append((Hole(session_id=bad.session_id, seq=bad.seq), 0, None))
    return found


def verdict(engine: Engine, lines: list[bytes]) -> dict[str, object]:
    """Judge the rest, and return what came of it."""
    outcome = engine.fold(arrivals(lines), 1.0)
    rest = engine.finish()
    return {
        **said(Outcome(outcome.findings + rest.findings, outcome.halts + rest.halts, {})),
        "sessions": {state.session_id: [state.status, sorted(state.open_halts)] for state in engine.states()},
    }


def said(outcome: Outcome) -> dict[str, object]:
    """Return the findings and halts, by what tells them apart."""
    return {
        "findings": sorted(f"{finding.rule} {finding.finding_id}" for finding in outcome.findings),
        "halts": sorted(f"{halt.status} {halt.halt_id} {halt.position}" for halt in outcome.halts),
    }


async def watched(lines: list[bytes]) -> dict[str, str]:
    """Let a watch follow these lines, and return the files of its state folder."""
    with tempfile.TemporaryDirectory() as folder:
        log, state = Path(folder) / "log.jsonl", Path(folder) / "state"
        log.write_bytes(b"".join(line + b"\n" for line in lines))
        stop = asyncio.Event()
        work = asyncio.create_task(
            watch([str(log)], state_dir=state, stop=stop, poll_interval=0.05, stdout=io.StringIO(),
                  findings_file=Path(folder) / "findings.jsonl", halts_file=Path(folder) / "halts.jsonl")
        )  # fmt: skip
        await asyncio.sleep(1.0)
        stop.set()
        await work
        return {
            file.name: base64.b64encode(file.read_bytes()).decode()
            for file in sorted(state.iterdir())
            if file.name in ("state.bin", "written")
        }


def main() -> None:
    """Write the folder."""
    (version,) = sys.argv[1:]
    folder = DATA / version
    folder.mkdir(parents=True, exist_ok=True)
    before, after = halves()
    engine = Engine()
    engine.fold(arrivals(before), 0.0)
    (folder / "engine.bin").write_bytes(engine.dump())
    writer = SnapshotWriter("agent.snapshots", NUMBER, origin_of(GROUP, TOPICS, PARTITIONS, NUMBER))
    changed = [engine.freeze(state.session_id) for state in engine.states()]
    records = [
        [base64.b64encode(message.key or b"").decode(), base64.b64encode(message.value or b"").decode()]
        for message in writer.round(changed, (), POSITIONS, len(engine))
    ]
    kept = {
        "after": [line.decode("utf-8", "surrogateescape") for line in after],
        "before": [line.decode("utf-8", "surrogateescape") for line in before],
        "snapshots": records,
        "watch": asyncio.run(watched(before)),
        "expected": verdict(engine, after),
    }
    (folder / "kept.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
