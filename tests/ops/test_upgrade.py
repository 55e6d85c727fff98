"""State that earlier versions wrote is read by this one, and goes on to the same verdicts, or is refused with a way on.

The folders under `data/` were written by `keep_state.py` with the code of the version that each is named after.
"""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_digest, xxh3_64_intdigest

import sidecar
from sidecar.engine.fold import STATE_VERSION, STATES_READ, Engine, UnknownState
from sidecar.files.store import StateError, Store
from sidecar.files.watch import watch
from sidecar.tail.envelope import VERSION
from sidecar.tail.gather import Gathering, SnapshotError
from sidecar.tail.snapshots import origin_of
from tests.kafka.tail_support import until
from tests.ops.keep_state import DATA, GROUP, NUMBER, PARTITIONS, POSITIONS, TOPICS, arrivals, said, verdict

ROOT = Path(__file__).parents[2]
# What is judged otherwise since then: a run of missing positions has one finding (record protocol 1.1).
CHANGED = {"log_gap c80aadcdf32d14008a447c1dfb87ac77"}
KEPT = sorted(path.parent for path in DATA.glob("*/kept.json"))

pytestmark = pytest.mark.parametrize("folder", KEPT, ids=lambda path: path.name)


def kept(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "kept.json").read_text(encoding="utf-8"))
    found["expected"]["findings"] = [f for f in found["expected"]["findings"] if f not in CHANGED]
    return found


def lines(texts: list[str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogateescape") for text in texts]


def gathered(folder: Path, records: list[list[str]] | None = None) -> Gathering:
    """Read the snapshot records as a task does that restores."""
    gathering = Gathering("agent.snapshots", NUMBER, origin_of(GROUP, TOPICS, PARTITIONS, NUMBER))
    for offset, (key, value) in enumerate(records or kept(folder)["snapshots"]):
        gathering.add(base64.b64decode(key), base64.b64decode(value), offset)
    return gathering


def test_a_dump_is_read_and_judged_on_to_the_same_end(folder: Path) -> None:
    state, given = (folder / "engine.bin").read_bytes(), kept(folder)
    engine = Engine.load(state)
    assert len(engine) >= 10
    assert verdict(engine, lines(given["after"])) == given["expected"]
    # The half that was judged then is not judged again: without it the end is another.
    assert verdict(Engine(), lines(given["after"])) != given["expected"]


def test_snapshots_are_read_and_judged_on_to_the_same_end(folder: Path) -> None:
    given = kept(folder)
    restored = gathered(folder).result()
    assert restored.marker is not None and dict(restored.marker.positions) == POSITIONS
    assert restored.marker.sessions == len(restored.sessions) == len(given["snapshots"]) - 1
    engine = Engine()
    for session in restored.sessions:
        engine.adopt(session.frozen, 0.0)
    assert verdict(engine, lines(given["after"])) == given["expected"]


async def test_a_watch_goes_on_where_the_earlier_version_stood(folder: Path, tmp_path: Path) -> None:
    given = kept(folder)
    log, state = tmp_path / "log.jsonl", tmp_path / "state"
    findings, halts = tmp_path / "findings.jsonl", tmp_path / "halts.jsonl"
    before, after = lines(given["before"]), lines(given["after"])
    log.write_bytes(b"".join(line + b"\n" for line in before))
    state.mkdir()
    for name, content in given["watch"].items():
        (state / name).write_bytes(base64.b64decode(content))
    with Store(state) as store:  # the file is another one on this machine, as it is after a move
        found = store.load()
        (position,) = found.files
        assert position.offset == log.stat().st_size
        position.path, position.device, position.inode = str(log), log.stat().st_dev, log.stat().st_ino
        found.outbox, found.marks, found.number = [], {}, found.number + 1
        store.save(found)
    with log.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in after))
    stop = asyncio.Event()
    work = asyncio.create_task(
        watch([str(log)], state_dir=state, stop=stop, poll_interval=0.05, findings_file=findings, halts_file=halts)
    )

    def here() -> list[str]:
        entries = [json.loads(line) for line in findings.read_bytes().splitlines()] if findings.exists() else []
        return sorted(f"{entry['rule']} {entry['finding_id']}" for entry in entries)

    # What only the end of the log decides is not said while it is followed.
    engine = Engine.load((folder / "engine.bin").read_bytes())
    expected = said(engine.fold(arrivals(after), 1.0))["findings"]
    await until(lambda: len(here()) >= len(expected), within=10)
    stop.set()
    await work
    assert here() == expected


def test_another_version_is_refused_and_it_is_said_what_to_do(folder: Path, tmp_path: Path) -> None:
    version, *rest = msgspec.msgpack.decode((folder / "engine.bin").read_bytes())
    assert version in STATES_READ
    newer = msgspec.msgpack.encode((STATE_VERSION + 1, *rest))
    with pytest.raises(UnknownState, match=f"version {STATE_VERSION + 1}; this program reads version {STATE_VERSION}"):
        Engine.load(newer)
    state = base64.b64decode(kept(folder)["watch"]["state.bin"])
    tmp_path.joinpath("state.bin").write_bytes(state[:14] + b"\x00\x02" + state[16:])
    with Store(tmp_path) as store, pytest.raises(StateError, match=r"version 2.* Move it away to begin at the start"):
        store.load()


def test_snapshots_of_another_version_are_refused_by_offset_and_reason(folder: Path) -> None:
    records = kept(folder)["snapshots"]
    key, value = (base64.b64decode(part) for part in records[0])
    body = msgspec.msgpack.decode(value[8:])
    assert body[0] in (VERSION, VERSION - STATE_VERSION + 1)
    other = msgspec.msgpack.encode([VERSION + 1, *body[1:]])
    sealed = xxh3_64_digest(other, xxh3_64_intdigest(key)) + other
    changed = [[records[0][0], base64.b64encode(sealed).decode()], *records[1:]]
    reason = rf"agent\.snapshots/{NUMBER}@0 .*version {VERSION + 1}; this program reads version {VERSION}"
    with pytest.raises(SnapshotError, match=reason):
        gathered(folder, changed).result()


def test_the_notes_for_upgrading_know_every_version_that_is_kept(folder: Path) -> None:
    notes = (ROOT / "docs/upgrading.md").read_text(encoding="utf-8")
    version, _, _ = folder.name.partition("-")
    assert re.search(rf"^## .*{re.escape(version)}", notes, re.M)
    assert f"state version {STATE_VERSION}" in notes.lower()
    assert sidecar.__version__ in notes
