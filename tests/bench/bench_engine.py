"""The engine alone: against msgspec on the same records, by length of a session, and in memory.

Machines are shared and noisy, so every figure is a ratio of two measurements taken in turns within one run.
"""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sidecar.engine.fold import Arrival, Engine
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import KINDS, Hole, Opaque
from sidecar.simulate import mixed_records

BATCH = 1000
ENGINE_BOUND = 6.0
"""Most times the engine may take what msgspec needs to decode the same records."""
MEMORY_BOUND = 8 * 1024
"""Most bytes a hot session with 20 edges and 20 referents may take."""
CURVE_BOUND = 3.0
"""Most times a record may cost in a session a hundred times as long: a scan of the history would show as 100."""


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that something takes, without the collector's help or hindrance."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def arrivals_of(values: list[bytes]) -> list[Arrival]:
    arrivals: list[Arrival] = []
    for value in values:
        try:
            record, digest = decode(value)
        except Unreadable as error:
            if error.session_id is not None and error.seq is not None:
                arrivals.append((Hole(session_id=error.session_id, seq=error.seq), 0, None))
            continue
        arrivals.append((record, digest, None))
    return arrivals


def fold_all(arrivals: list[Arrival], engine: Engine | None = None) -> int:
    engine = engine if engine is not None else Engine()
    found = 0
    for start in range(0, len(arrivals), BATCH):
        found += len(engine.fold(arrivals[start : start + BATCH], 0.0).findings)
    return found


def against_msgspec(records: int, rounds: int = 3) -> dict[str, float]:
    """Compare the engine (decoded records in, findings out) with msgspec's decoding of the same records."""
    decoders = {kind: msgspec.json.Decoder(cls).decode for kind, cls in KINDS.items()}
    opaque = msgspec.json.Decoder(Opaque).decode
    values: list[bytes] = []
    typed: list[tuple[Callable[[bytes], Any], bytes]] = []
    for message in mixed_records(7, records):
        values.append(message.value)
        try:
            decode(message.value)
        except Unreadable:
            continue
        typed.append((decoders.get(json.loads(message.value)["kind"], opaque), message.value))
    arrivals = arrivals_of(values)
    found = 0

    def by_msgspec() -> list[Any]:
        return [decoder(value) for decoder, value in typed]

    def by_decode() -> list[Any]:
        return arrivals_of(values)

    def by_engine() -> None:
        nonlocal found
        found = fold_all(arrivals)

    best = dict.fromkeys(("msgspec", "decode", "engine"), float("inf"))
    for _ in range(rounds):
        for name, work in (("msgspec", by_msgspec), ("decode", by_decode), ("engine", by_engine)):
            best[name] = min(best[name], timed(work))
    return {
        "records": len(values),
        "bytes": sum(map(len, values)) / len(values),
        "findings": found,
        "msgspec_ns": best["msgspec"] / len(typed) * 1e9,
        "decode_ratio": best["decode"] / best["msgspec"],
        "engine_ratio": best["engine"] / best["msgspec"],
    }


def long_session(length: int, session_id: str = "long") -> Iterator[bytes]:
    """Yield one healthy session of that length that compacts every 50 records, root over root."""
    base = {"session_id": session_id}
    generation = 0
    leaves: list[str] = []
    for seq in range(1, length + 1):
        turn, phase = divmod(seq, 50)
        row: dict[str, Any]
        if phase == 10:
            row = {"kind": "referent_added", "referent_id": f"r{turn}", "store": "durable"}
        elif phase == 11 and turn > 4:
            row = {"kind": "referent_removed", "referent_id": f"r{turn - 4}", "store": "durable"}
        elif phase == 12:
            row = {"kind": "tool_result", "call_key": f"call-{turn % 40}", "handle": "h"}
        elif phase == 13:
            row = {"kind": "fact", "fact_id": f"f{turn % 10}", "anchor": "x", "floor_tokens": 0}
        elif phase == 14:
            row = {"kind": "authorization", "action_id": f"a{turn}", "precondition_id": "p"}
        elif phase == 15:
            row = {"kind": "action", "action_id": f"a{turn}", "irreversible": True}
        elif phase == 40 and turn:
            leaves = [*leaves[-3:], f"leaf-{turn}"]
            row = {"kind": "summary", "node_id": leaves[-1], "generation": 1, "level": 1, "frontier_lo": seq - 39}
            row |= {"frontier_hi": seq - 1, "referents": [f"r{turn}"], "dropped": [f"f{turn % 10}"]}
        elif phase == 41 and turn:
            generation += 1
            row = {"kind": "summary", "node_id": "root", "generation": generation, "level": 2, "children": leaves}
            row |= {"frontier_lo": seq - 40, "frontier_hi": seq - 2, "root": True, "dropped": [f"f{turn % 10}"]}
        elif phase == 42 and turn:
            row = {"kind": "checkpoint", "checkpoint_id": f"c{turn}", "node_id": "root", "turn": turn, "level": 2}
            row |= {"summary_generation": generation, "frontier_lo": seq - 41, "frontier_hi": seq - 3}
            row |= {"asserted_edges": [[f"a{turn}", "p"]]}
        else:
            row = {"kind": "message", "text": "turn"}
        yield json.dumps({**base, "seq": seq, **row}).encode()


def curve(lengths: tuple[int, ...], rounds: int = 3) -> dict[int, float]:
    """Return what a record costs in sessions of these lengths, as a multiple of the shortest one's.

    As many records are folded for each length; only how they are spread over sessions differs.
    """
    most = max(lengths)
    batches = {}
    for length in lengths:
        values = [v for n in range(most // length) for v in long_session(length, f"s{n}")]
        batches[length] = arrivals_of(values)
    best = dict.fromkeys(lengths, float("inf"))
    for _ in range(rounds):
        for length in lengths:
            best[length] = min(best[length], timed(lambda a=batches[length]: fold_all(a)) / len(batches[length]))
    return {length: cost / best[lengths[0]] for length, cost in best.items()}


def hot_session(number: int, *, compacted: bool) -> Iterator[bytes]:
    """Yield a session with 20 edges, 20 referents and 20 turns, and if asked a summary and a checkpoint on them."""
    base = {"session_id": f"session-{number:06d}"}
    rows: list[dict[str, Any]] = []
    for k in range(20):
        rows.append(
            {"kind": "authorization", "action_id": f"deploy-{number}-{k}", "precondition_id": f"ok-{number}-{k}"}
        )
        rows.append({"kind": "referent_added", "referent_id": f"ref-{number}-{k}"})
        rows.append({"kind": "message", "text": "turn"})
    if compacted:
        edges = [[f"deploy-{number}-{k}", f"ok-{number}-{k}"] for k in range(20)]
        refs = [f"ref-{number}-{k}" for k in range(5)]
        span = {"frontier_lo": 1, "frontier_hi": 60, "level": 1}
        rows.append({"kind": "summary", "node_id": "n", "generation": 1, "referents": refs, **span})
        rows.append({"kind": "checkpoint", "checkpoint_id": "c", "node_id": "n", "summary_generation": 1, "turn": 1})
        rows[-1] |= {"asserted_edges": edges, **span}
    for seq, row in enumerate(rows, 1):
        yield json.dumps({**base, "seq": seq, **row}).encode()


def memory(sessions: int) -> dict[str, float]:
    """Return the bytes that a session takes, live and serialised."""
    result: dict[str, float] = {}
    for name, compacted in (("hot", False), ("hot_compacted", True)):
        values = [v for n in range(sessions) for v in hot_session(n, compacted=compacted)]
        engine = Engine()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, len(values), BATCH):
            engine.fold(arrivals_of(values[start : start + BATCH]), 0.0)
        gc.collect()
        result[name] = (tracemalloc.get_traced_memory()[0] - before) / sessions
        tracemalloc.stop()
        result[f"{name}_dumped"] = len(engine.dump()) / sessions
    return result
