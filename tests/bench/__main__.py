"""`python -m tests.bench`: measure speed and memory, and fail where a bound is broken.

`--quick` takes fewer records; `--no-tail` leaves out the end-to-end measurement on the embedded broker (and on Apache
Kafka where it can be had). Measured by themselves: `tests.bench.bench_guarantees` (transactions, snapshots, restoring),
`tests.bench.bench_guard` (how long an agent waits for permission), `tests.bench.bench_fleet` (findings a second).
"""

from __future__ import annotations

import argparse
import sys

from tests.bench import bench_engine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--records", type=int, help="mixed records (default 1,000,000; quick: 100,000)")
    parser.add_argument("--no-tail", action="store_true", help="leave out the measurement with brokers")
    given = parser.parse_args()
    records = given.records or (100_000 if given.quick else 1_000_000)
    broken: list[str] = []

    def bound(name: str, value: float, most: float) -> None:
        print(f"  {name}: {value:.2f} (bound {most:g})", flush=True)
        if value > most:
            broken.append(f"{name} is {value:.2f}, more than {most:g}")

    print(f"engine against msgspec, {records:,} mixed records", flush=True)
    speed = bench_engine.against_msgspec(records)
    print(f"  {speed['bytes']:.0f} bytes a record, {speed['findings']:,.0f} findings")
    print(f"  msgspec needs {speed['msgspec_ns']:.0f} ns a record")
    print(f"  decode stage (content digest and checks included) / msgspec: {speed['decode_ratio']:.2f}")
    bound("engine / msgspec", speed["engine_ratio"], bench_engine.ENGINE_BOUND)

    longest = 20_000 if given.quick else 100_000
    lengths = (longest // 100, longest // 10, longest)
    print("what a record costs by length of its session", flush=True)
    for length, cost in bench_engine.curve(lengths).items():
        bound(f"{length:,} records / {lengths[0]:,} records", cost, bench_engine.CURVE_BOUND)

    print("memory of a session with 20 edges, 20 referents, 20 turns", flush=True)
    memory = bench_engine.memory(500 if given.quick else 2000)
    bound("bytes, hot", memory["hot"], bench_engine.MEMORY_BOUND)
    print(f"  bytes, hot, with a summary and a checkpoint on it: {memory['hot_compacted']:.0f}")
    print(f"  bytes, serialised: {memory['hot_dumped']:.0f}, {memory['hot_compacted_dumped']:.0f}")

    if not given.no_tail:
        from tests.bench import bench_tail

        # A short run has its fixed costs (the last commit, above all) on few records: the bound allows for them.
        broken += bench_tail.report(max(records, 200_000), bound=0.2 if given.quick else bench_tail.BOUND)

    for problem in broken:
        print(f"BOUND BROKEN: {problem}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
