"""The states of a fleet that the page is designed for, each made by the real engine from simulated records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from sidecar.protocol.outputs import HaltAck
from sidecar.simulate import DIRECT, EPOCH, FAULTS, FaultRates, Fleet, Message, Shape
from sidecar.simulate.life import compact, plan, quiet, recover, work
from sidecar.simulate.log import Log
from sidecar.simulate.session import Session
from tests.fleet.memory import NOW, MemoryFleet

LONG = "globex-long-session"
HOSTILE = (
    '<script>alert("x")</script>',
    "'\"><img src=x onerror=alert(1)>",
    "a/../b?c=d&e#f%2F%00",
    "..",
    "\u202emoc.live\u202c \u0000\u001b[31m",
    "שלום עולם",
    "🦊👩‍👩‍👧‍👦" * 6,
    "x" * 3000,
    "y" * 9000,
    "{{ 7*7 }}{% raw %}",
    " spaces  and\ttabs\n",
)
"""Session ids that somebody might choose."""


def empty() -> MemoryFleet:
    """Nothing has been heard of."""
    return MemoryFleet()


def healthy() -> MemoryFleet:
    """Nothing is wrong anywhere."""
    fleet = Fleet(11, agents=8, sessions=40, faults=FaultRates.none(), shape=Shape(turns=(8, 16), cycles=(2, 3)))
    return MemoryFleet().feed(fleet.messages())


def storm() -> MemoryFleet:
    """Most sessions of one tenant are degraded, a model has got worse, and alerts are open."""
    shape = Shape(turns=(8, 16), cycles=(2, 3))
    calm = Fleet(6, agents=4, sessions=30, faults=FaultRates.uniform(0.06, FAULTS), shape=shape)
    memory = MemoryFleet().feed(calm.messages(), begin=NOW - timedelta(hours=7))
    memory.feed(Fleet(5, agents=20, sessions=170, faults=FaultRates.uniform(0.85, FAULTS), shape=shape).messages())
    burst = FaultRates.only("constraint_dropped", 0.9)
    memory.feed(Fleet(8, agents=10, sessions=40, faults=burst, shape=shape, prefix="burst").messages())
    for row in [r for shard in memory.shards for r in shard.shelf.rows()]:
        for halt_id, _ in (
            [*row.unacknowledged()][:1] if len(row.session_id) % 2 or sum(row.session_id.encode()) % 3 else []
        ):
            decision = "re-expanding from the checkpoint that the halt names"
            memory.acknowledge(row.session_id, HaltAck(halt_id=halt_id, by="ada", decision=decision))
    memory.judge()
    return memory


def incomplete() -> MemoryFleet:
    """A worker does not answer."""
    memory = storm()
    memory.lost = {1}
    return memory


def long() -> MemoryFleet:
    """One session of 100,000 positions with hundreds of findings, among others."""
    memory = MemoryFleet().feed(Fleet(3, agents=4, sessions=12, transport=DIRECT).messages())
    return memory.feed(long_session(), batch=2000)


def long_session(positions: int = 100_000, seed: int = 4) -> Iterator[Message]:
    """Yield the records of one session that goes wrong again and again."""
    rng = random.Random(seed)
    log = Log(
        LONG,
        rng,
        start=EPOCH,
        at=0.0,
        seconds=0.1,
        labels={"tenant": "globex", "agent": "deployer"},
        model="tiny-small",
        counterless=False,
    )
    session = Session(log, rng, model="tiny-small", narrative=False)
    session.late_grants = True
    plan(session)
    if not session.revoked:
        session.revoke(next(iter(session.edges)))
    out_of_place = ("log_conflict", "contested_revocation", "handle_reissued", "session_joined", "baseline_left_out")
    kinds = [k for k in FAULTS if k not in out_of_place]
    step = positions // 120
    while log.seq < positions:
        for _ in range(step * 3 // 4):
            log.turn()
        work(session, step // 4)
        compact(session, 3)
        if rng.random() < 0.6:
            unsafe = FAULTS[rng.choice(kinds)].incident(session)
            quiet(session)
            if unsafe and rng.random() < 0.5:
                session.resume(unsafe)
                session.act()
            if rng.random() < 0.7:
                recover(session)
    unsafe = FAULTS["edge_dropped"].incident(session)
    if unsafe:
        session.resume(unsafe)
        session.act()
    return (Message(entry.role, LONG, entry.value) for entry in log.entries)


def hostile() -> MemoryFleet:
    """Sessions, agents and edges whose ids are meant to do harm."""
    import msgspec

    memory = MemoryFleet()
    messages = []
    for name in HOSTILE:
        records = [
            {"kind": "authorization", "action_id": name, "precondition_id": f"{name}!"},
            {"kind": "constraint", "constraint_id": name, "polarity": "negative", "text": name},
            {"kind": "referent_added", "referent_id": name, "store": "live"},
            {
                "kind": "summary",
                "node_id": name,
                "generation": 1,
                "level": 1,
                "frontier_lo": 1,
                "frontier_hi": 3,
                "referents": [name],
                "negative_constraints": [],
            },
            {
                "kind": "checkpoint",
                "checkpoint_id": name,
                "node_id": name,
                "summary_generation": 1,
                "level": 1,
                "turn": 1,
                "frontier_lo": 1,
                "frontier_hi": 3,
                "asserted_edges": [[f"{name}?", name]],
                "verbatim_refs": [],
            },
            {"kind": "referent_removed", "referent_id": name, "store": "live"},
            {"kind": "resume", "checkpoint_id": name, "deps": [name]},
            {"kind": "action", "action_id": name, "irreversible": True},
        ]
        for seq, record in enumerate(records, start=1):
            who = {"tenant": name[:200], "agent": name[:200], "model": name[:200]}
            value = msgspec.json.encode({"session_id": name, "seq": seq, **who, **record})
            messages.append(Message("events", name, value))
    return memory.feed(messages, batch=8)
