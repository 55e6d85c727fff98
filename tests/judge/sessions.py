"""Random sessions, and random ways for them to arrive. Everything follows from the generator that is passed in.

The sessions come from small pools of ids, so that their records meet. A compactor that is right about most of
what it says is simulated, and then made to slip: without that, nearly every checkpoint would be bad for several
reasons, and the rules about good ones (a halt that clears, a checkpoint to start over from) would never be met.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]

COMPACTION_KINDS = ("summary", "checkpoint", "resume", "reconcile", "gc", "probe")
ACTIONS = ("deploy", "migrate", "rotate")
PRECONDITIONS = ("ticket", "approval", "review")
REFERENTS = ("r1", "r2", "r3", "r4")
CONSTRAINTS = ("no-prod", "ask-first", "be-brief")
FACTS = ("limit", "owner", "region")
NODES = {"leaf-a": 1, "leaf-b": 1, "middle": 2, "root": 3}  # with their levels
CALLS = ("create", "list")
HANDLES = ("vol-1", "vol-2", "vol-3")
INSTRUCTIONS = ("Summarize the turns.", "Prioritize what is recent.", "FOCUS ON errors", "summarize for the user")
OPAQUE = ("message", "thought", "summary_draft")
TENANT, RIVAL = "acme", "rival"


class Writer:
    """Writes one session, and keeps its own account of what a careful compactor would say.

    Most sessions are seen from their begin on. Of the others the first records are not in the log, and for most
    of these somebody states what holds: what was written before that is of no account.
    """

    def __init__(self, rng: random.Random, session_id: str) -> None:
        self.rng = rng
        self.session_id = session_id
        self.slips = rng.choice((0.0, 0.0, 0.03, 0.03, 0.1, 0.25))
        self.turbulence = rng.choice((0.1, 0.1, 1.0))  # how often the log changes what was summarized
        self.begin = 1 if rng.random() < 0.88 else rng.choice((2, 3, 40, 1500, rng.randint(2, 6000)))
        self.judged_from = self.begin  # the position of the baseline, if one was taken
        self.stated = self.begin == 1 and rng.random() > 0.06  # no baseline will be taken any more
        self.tenant = TENANT if rng.random() < 0.3 else None
        self.foreign = 0.05 if rng.random() < 0.25 else 0.0  # how often another tenant writes
        self.inferring = 0.4 if rng.random() < 0.25 else 0.0
        self.rows: list[Row] = []
        self.generations: dict[str, int] = {}
        self.covered: dict[str, int] = {}  # by node, the end of its newest range
        self.checkpoints: list[str] = []

    # Helpers

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def slip(self, weight: float = 1.0) -> bool:
        return self.chance(self.slips * weight)

    def some(self, pool: Sequence[str], most: int = 2) -> list[str]:
        return self.rng.sample(pool, self.rng.randint(0, min(most, len(pool))))

    def inferred(self) -> bool | None:
        return True if self.chance(self.inferring) else None

    @property
    def next_seq(self) -> int:
        return self.begin + len(self.rows)

    def write(self, kind: str, **fields: Any) -> None:
        row = {"kind": kind, "session_id": self.session_id, "seq": self.next_seq, **fields}
        if self.tenant is not None and self.chance(0.6):
            row["tenant"] = RIVAL if self.chance(self.foreign) else self.tenant
        self.rows.append({name: value for name, value in row.items() if value is not None})

    def judged(self, hi: int) -> list[Row]:
        """What is of account up to this position: a baseline, if one was taken, and what came after it, written
        by the session's own tenant (or by whoever says nothing of that)."""
        mine = (None, self.tenant)
        return [
            row
            for row in self.rows
            if self.judged_from <= row["seq"] <= hi and row.get("tenant") in mine and row["seq"] < self.next_seq
        ]

    def last_of(self, kind: str, name: str, hi: int) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for row in self.judged(hi):
            if row["kind"] == "baseline" and row["seq"] == self.judged_from and kind == "constraint":
                for each in row.get("negative_constraints", ()):
                    found[each] = {"constraint_id": each, "polarity": "negative", "seq": row["seq"]}
            elif row["kind"] == kind:
                found[row[name]] = row
        return found

    def edges(self, lo: int, hi: int) -> list[list[str]]:
        """Granted inside the range, and in effect at its end."""
        live: dict[tuple[str, str], tuple[int, float]] = {}  # edge -> where granted, uses left
        for row in self.judged(hi):
            action, precondition = row.get("action_id"), row.get("precondition_id")
            if row["kind"] == "authorization" and action is not None and precondition is not None:
                live[action, precondition] = (row["seq"], row.get("uses", float("inf")))
            elif row["kind"] == "revocation":
                live = {
                    edge: grant
                    for edge, grant in live.items()
                    if edge[0] != action or precondition not in (None, edge[1])
                }
            elif row["kind"] == "action" and row.get("irreversible"):
                usable = {edge: grant for edge, grant in live.items() if edge[0] == action}
                if usable and all(left < float("inf") for _, left in usable.values()):
                    edge = min(usable, key=lambda each: usable[each][0])
                    live[edge] = (live[edge][0], live[edge][1] - 1)
                    if not live[edge][1]:
                        del live[edge]
            elif row["kind"] == "baseline" and row["seq"] == self.judged_from:
                for action, precondition in row.get("edges", ()):
                    live[action, precondition] = (row["seq"], float("inf"))
        return [list(edge) for edge, (seq, _) in live.items() if seq >= lo]

    def reachable(self) -> list[str]:
        held: set[tuple[str, str]] = set()
        for row in self.judged(self.next_seq):
            store = row.get("store", "live")
            if row["kind"] == "baseline" and row["seq"] == self.judged_from:
                held |= {(name, each) for name in ("live", "durable") for each in row.get(name, ())}
            elif row["kind"] == "referent_added":
                held.add((store, row["referent_id"]))
            elif row["kind"] == "referent_removed":
                held.discard((store, row["referent_id"]))
            elif row["kind"] == "tool_result":
                held |= {("live", referent) for referent in row.get("referents", ())}
        return sorted({referent for _, referent in held})

    def range(self) -> tuple[int, int]:
        """Mostly all of the log up to now; else a part of it, or more than there is."""
        seq = self.next_seq
        first = self.judged_from if self.begin > 1 and self.chance(0.7) else 1
        lo, hi = first, max(first, seq - 1)
        if self.chance(0.15):
            hi = self.rng.randint(min(hi, self.begin) if self.slip(2) else first, hi)
        if self.chance(0.25):
            lo = self.rng.randint(max(1, min(first, hi)), hi)
        if self.slip(0.4):
            hi = seq + self.rng.choice((0, 0, 1, 3))
        return min(lo, hi), hi

    # Log events

    def opaque(self) -> None:
        self.write(self.rng.choice(OPAQUE), text="turn")

    def authorization(self) -> None:
        action, precondition = self.rng.choice(ACTIONS), self.rng.choice(PRECONDITIONS)
        explicit = not self.chance(0.04)
        which = self.rng.randrange(3)
        self.write(
            "authorization",
            action_id=action if explicit or which == 0 else None,
            precondition_id=precondition if explicit or which == 1 else None,
            uses=self.rng.choice((1, 1, 2, 3)) if self.chance(0.35) else None,
        )

    def revocation(self) -> None:
        granted = self.edges(1, self.next_seq)
        action, precondition = self.rng.choice(ACTIONS), self.rng.choice(PRECONDITIONS)
        if granted and self.chance(0.8):
            action, precondition = self.rng.choice(granted)
        self.write("revocation", action_id=action, precondition_id=precondition if self.chance(0.6) else None)

    def action(self) -> None:
        granted = self.edges(1, self.next_seq)
        action = self.rng.choice(granted)[0] if granted and not self.slip(2) else self.rng.choice(ACTIONS)
        self.write("action", action_id=action, irreversible=self.rng.choice((True, True, False, None)))

    def referent(self) -> None:
        removed = self.chance(0.3)
        kind = "referent_removed" if removed else "referent_added"
        store = self.rng.choice(("live", "durable", None))
        self.write(kind, referent_id=self.rng.choice(REFERENTS), store=store)

    def constraint(self) -> None:
        name = self.rng.choice(CONSTRAINTS)
        if self.chance(0.2):
            self.write("constraint", constraint_id=name, retired=True)
        else:
            polarity = self.rng.choice(("negative", "negative", "negative", "positive"))
            retired = self.rng.choice((None, False))
            self.write(
                "constraint",
                constraint_id=name,
                polarity=polarity,
                text="rule",
                retired=retired,
                inferred=self.inferred(),
            )

    def fact(self) -> None:
        name = self.rng.choice(FACTS)
        floor = self.rng.choice((None, 0, 2, 3, 4))
        anchor = f"{name}={self.rng.randint(1, 2)}"
        self.write("fact", fact_id=name, anchor=anchor, floor_tokens=floor, inferred=self.inferred())

    def tool_result(self) -> None:
        call = self.rng.choice(CALLS)
        handle = self.rng.choice(HANDLES) if self.chance(0.3) else HANDLES[CALLS.index(call)]
        referents = self.some(REFERENTS) if self.chance(0.3) else None
        self.write("tool_result", call_key=call, handle=handle, referents=referents, inferred=self.inferred())

    def baseline(self) -> None:
        """State what holds, and something more. Where one is taken, all before it is forgotten; elsewhere it says
        nothing to anybody."""
        hi = self.next_seq
        edges = self.edges(1, hi)
        if self.chance(0.7):
            edges += [[self.rng.choice(ACTIONS), self.rng.choice(PRECONDITIONS)] for _ in range(self.rng.randint(1, 3))]
        held = self.reachable()
        constraints = [
            name
            for name, row in self.last_of("constraint", "constraint_id", hi).items()
            if row.get("polarity") == "negative" and not row.get("retired")
        ]
        self.write(
            "baseline",
            edges=edges or None,
            live=[each for each in REFERENTS if self.chance(0.4) or each in held] or None,
            durable=self.some(REFERENTS) or None,
            negative_constraints=list(dict.fromkeys([*constraints, *self.some(CONSTRAINTS)])) or None,
        )
        mine = self.rows[-1].get("tenant") in (None, self.tenant)
        if mine and not self.stated and (self.begin > 1 or hi == 1):
            self.stated, self.judged_from = True, hi
            if self.chance(0.8):
                self.generations, self.covered, self.checkpoints = {}, {}, []

    # Compaction records

    def summary(self, node: str | None = None, span: tuple[int, int] | None = None) -> str:
        rng = self.rng
        node = node or rng.choice(tuple(NODES))
        lo, hi = span or self.range()
        generation = self.generations.get(node, 0) + rng.choice((1, 1, 1, 1, 2))
        if self.slip(0.5):
            generation = rng.randint(1, generation)
        below = [name for name, level in NODES.items() if level < NODES[node]]
        children = rng.sample(below, rng.randint(1, len(below))) if below and self.chance(0.8) else None
        if children and span is None and self.chance(0.3):  # covers only what is new
            lo = min(hi, 1 + max(self.covered.get(child, 0) for child in children))
        if self.slip(0.3):
            children = [*(children or ()), rng.choice((*NODES, "nowhere"))]
        referents = [each for each in self.reachable() if self.chance(0.5)]
        if self.slip():
            referents.append(rng.choice(REFERENTS))
        carried = [
            name
            for name, row in self.last_of("constraint", "constraint_id", hi).items()
            if row.get("polarity") == "negative" and not row.get("retired") and not self.slip()
        ]
        facts, dropped = self._facts(hi)
        budget = rng.choice((None, 100, 200))
        emitted = None if budget is None else budget + (1 if self.slip() else -rng.randint(0, 50))
        tokens = 0 if self.slip(0.3) else rng.choice((None, 500))
        was_read = None if tokens is None else max(0, tokens - (100 if self.slip() else 0))
        self.write(
            "summary",
            node_id=node,
            generation=generation,
            level=NODES[node],
            frontier_lo=lo,
            frontier_hi=hi,
            children=children,
            root=True if node == "root" and self.chance(0.7) else None,
            referents=referents or None,
            negative_constraints=carried or None,
            facts=facts or None,
            dropped=dropped if dropped or self.chance(0.3) else None,
            input_tokens=tokens,
            input_tokens_read=was_read if self.chance(0.8) else None,
            token_budget=budget,
            tokens_emitted=emitted if self.chance(0.8) else None,
            instruction=rng.choice(INSTRUCTIONS) if self.chance(0.2) else None,
            partial=True if self.slip() else rng.choice((None, None, False)),
            retention=self._retention() if self.chance(0.4) else None,
        )
        self.generations[node] = max(generation, self.generations.get(node, 0))
        self.covered[node] = hi
        return node

    def _facts(self, hi: int) -> tuple[dict[str, str], list[str]]:
        """What survives of the facts, and what was left out on purpose."""
        facts, dropped = {}, []
        for name, row in self.last_of("fact", "fact_id", hi).items():
            floor, anchor = row.get("floor_tokens"), row["anchor"]
            if floor == 0 and self.chance(0.4):
                dropped.append(name)
                continue
            if self.slip():
                if self.chance(0.3):
                    dropped.append(name)
                continue
            words = max(0, (floor or 0) - 1) + self.rng.randint(0, 2)
            if self.slip():
                words = 0
            facts[name] = " ".join(["stays"] * words + ["something" if self.slip() else anchor])
        return facts, dropped

    def _retention(self) -> Row:
        recall = self.rng.choice((1, 0.99, 0.97, 0.6 if self.slip(2) else 0.95))
        retention: Row = {
            "per_node_recall": recall,
            "source": "self_reported" if self.chance(0.3) else "probe",
            "depth": self.rng.randint(1, 4),
        }
        if self.chance(0.7):
            retention["workload"] = self.rng.choice(("remediation", "narrative", "narrative", "unheard-of"))
        if self.chance(0.6):
            retention["flatten_available"] = self.chance(0.5)
        return retention

    def checkpoint(self, node: str | None = None, span: tuple[int, int] | None = None) -> None:
        rng = self.rng
        node = node or rng.choice(tuple(self.generations) or ("leaf-a",))
        if self.slip(0.2):
            node = "nowhere"
        lo, hi = span or self.range()
        generation = self.generations.get(node, 1)
        if self.slip(0.5):
            generation = max(1, generation + rng.choice((-1, 1)))
        name = f"c{len(self.checkpoints) + 1}"
        if self.checkpoints and self.slip(0.5):
            name = rng.choice(self.checkpoints)
        edges: list[list[str]] | None = self.edges(lo, hi)
        if edges and self.slip():
            edges.remove(rng.choice(edges))
        if edges is not None and self.slip(2):
            granted = [
                [row["action_id"], row["precondition_id"]]
                for row in self.rows
                if row["kind"] == "authorization" and "action_id" in row and "precondition_id" in row
            ]
            edges.append(rng.choice(granted or [["rotate", "hearsay"]]))  # one that has ended, or too old
        if edges is not None and self.slip(0.5):
            edges.append([rng.choice(ACTIONS), rng.choice((*PRECONDITIONS, "hearsay"))])
        if self.slip(0.3):
            edges = None
        self.write(
            "checkpoint",
            checkpoint_id=name,
            node_id=node,
            summary_generation=generation,
            level=NODES.get(node, 1) if not self.slip(0.3) else rng.randint(1, 4),
            turn=self.next_seq - 1,
            frontier_lo=lo,
            frontier_hi=hi,
            verbatim_refs=self.some(REFERENTS, 4) if self.chance(0.6) else None,
            asserted_edges=edges,
            inferred=True if self.chance(self.inferring / 3) else None,
        )
        if name not in self.checkpoints:
            self.checkpoints.append(name)

    def compaction(self) -> None:
        """A summary, often of some children first, and the checkpoint of it: mostly one that holds."""
        for name in ("leaf-a", "leaf-b", "middle"):
            if self.chance(0.15):
                self.summary(name)
        node = self.summary()
        if self.chance(0.8):
            summary = self.rows[-1]
            span = (summary["frontier_lo"], summary["frontier_hi"])
            if self.slip():
                span = self.range()
            elif self.chance(0.3):
                span = (min(span[0], self.judged_from), max(span[1], self.next_seq - 1))
            self.checkpoint(node, span)

    def resume(self) -> None:
        roll = self.rng.random()
        if not self.checkpoints or roll < 0.04:
            name = "c99"
        elif roll < 0.3:
            name = self.rng.choice(self.checkpoints[-3:])
        else:
            name = self.checkpoints[-1]
        kept: list[str] = next(
            (row.get("verbatim_refs", []) for row in self.rows if row.get("checkpoint_id") == name), []
        )
        deps = self.some(kept) if self.chance(0.5) else []
        if self.slip(1.5):
            deps = [*deps, *self.some(REFERENTS)]
        replayed_to = None
        if self.chance(0.4):  # mostly all there is; else a part, or more than there is
            seq = self.next_seq
            replayed_to = max(1, seq - self.rng.choice((1, 1, 1, 1, 2, 4, 0)))
        self.write("resume", checkpoint_id=name, deps=deps or None, replayed_to=replayed_to)

    def recovery(self) -> None:
        """A resume, and what follows one: mostly someone makes up their mind, or tries again."""
        self.resume()
        roll = self.rng.random()
        if roll < 0.4:
            self.reconcile()
        elif roll < 0.6:
            self.resume()
        elif roll < 0.8:
            self.tool_result()

    def reconcile(self) -> None:
        self.write("reconcile", decision=self.rng.choice(("replay", "accept_divergence")))

    def gc(self) -> None:
        leaves = ("leaf-a", "leaf-b", "leaf-a", "leaf-b", "middle", "root", "nowhere")
        self.write("gc", node_ids=[self.rng.choice(leaves) for _ in range(self.rng.randint(1, 2))])

    def probe(self) -> None:
        recalled = self.rng.randint(0, 20) if self.chance(0.3) else self.rng.randint(16, 20)
        self.write("probe", node_id=self.rng.choice((*NODES, "nowhere")), probes=20, recalled=recalled)

    def session(self) -> list[Row]:
        length = self.rng.randint(5, 60)
        if not self.stated and self.begin == 1:
            self.baseline()
        stating = 4.0 if self.begin > 1 and self.chance(0.8) else 0.0
        while len(self.rows) < length:
            settled = self.turbulence if len(self.rows) > 10 else 1.0
            weights: dict[Callable[[], object], float] = {
                self.opaque: 8,
                self.authorization: 12 * settled,
                self.revocation: 3 * settled,
                self.action: 5,
                self.referent: 8 * settled,
                self.constraint: 5,
                self.fact: 4,
                self.tool_result: 5,
                self.compaction: 7 if len(self.rows) > 5 else 2,
                self.summary: 1,
                self.checkpoint: 1.5,
                self.recovery: 3,
                self.reconcile: 1,
                self.gc: 2,
                self.probe: 4,
                self.baseline: 0.2 if self.stated else stating * min(len(self.rows), 4),
            }
            step = self.rng.choices(tuple(weights), tuple(weights.values()))[0]
            step()
            if step == self.compaction and self.chance(0.1):
                self.rng.choice((self.authorization, self.revocation, self.action))()
                self.resume()  # safe, if what came since the checkpoint was replayed
            elif step == self.compaction and self.chance(0.35) and self.checkpoints:
                self.recovery()  # a resume from a checkpoint just written is the one that is often safe
        return self.rows[:60]


def random_session(rng: random.Random, session_id: str) -> list[Row]:
    """One session of 5 to 60 records, with contiguous seq; from 1, if it is not one that is joined midstream."""
    return Writer(rng, session_id).session()


# ---------------------------------------------------------------------------------------------------------
# Arrival


POSITIONS = ("frontier_lo", "frontier_hi", "as_of_seq", "replayed_to")


def without_seq(rng: random.Random, rows: Sequence[Row], probability: float) -> list[Row]:
    """Take the seq from some compaction records, and renumber what is left of the log, ranges included."""
    stripped = {row["seq"] for row in rows if row["kind"] in COMPACTION_KINDS and rng.random() < probability}
    kept = [row["seq"] for row in rows if row["seq"] not in stripped]
    first, last = rows[0]["seq"], rows[-1]["seq"]

    def position(old: int) -> int:
        """The last position that is left at or before the old one; what lay ahead of the log stays ahead."""
        if old < first:
            return old
        return int(first - 1 + sum(seq <= old for seq in kept) + max(0, old - last))

    renumbered = []
    for row in rows:
        old = row["seq"]
        new = {name: value for name, value in row.items() if name != "seq" or old not in stripped}
        if old not in stripped:
            new["seq"] = position(old)
        if "frontier_hi" in row:
            new["frontier_hi"] = max(1, position(row["frontier_hi"]))
            new["frontier_lo"] = min(position(row["frontier_lo"] - 1) + 1, new["frontier_hi"])
        if "replayed_to" in row:
            new["replayed_to"] = max(1, position(row["replayed_to"]))
        if old in stripped:
            as_of = position(old) + rng.choice((0, 0, 0, 0, 1, -1, 30 if rng.random() < 0.1 else 0))
            if rng.random() < 0.6:
                new["as_of_seq"] = max(0, as_of)
        renumbered.append(new)
    return renumbered


def with_leap(rng: random.Random, rows: Sequence[Row]) -> list[Row]:
    """Let the log go on far ahead somewhere: a run of that many positions never arrives."""
    cut, by = rng.choice(rows).get("seq", 1), rng.choice((1, 2, 5, 60, 2000, 2**40))

    def moved(name: str, value: Any) -> Any:
        return value + by if name in ("seq", *POSITIONS) and value > cut else value

    return [{name: moved(name, value) for name, value in row.items()} for row in rows]


def from_nowhere(rng: random.Random, rows: Sequence[Row], place: int) -> bytes:
    """What a second writer says that has no place in the log: mostly, that all is well."""
    seen = rows[: place + 1]
    applied = max((row.get("seq", 0) for row in seen), default=0)
    checkpoints = [row for row in seen if row["kind"] == "checkpoint"]
    said: Row = {"kind": "reconcile", "decision": "replay"}
    if checkpoints and rng.random() < 0.7:
        last = checkpoints[-1]
        said = {"kind": "resume", "checkpoint_id": last["checkpoint_id"], "replayed_to": max(1, applied - 1)}
        if rng.random() < 0.6:
            said = {**last, "checkpoint_id": f"{last['checkpoint_id']}-{place}"}
            said.pop("seq", None)
    said.update(session_id=rows[0]["session_id"], as_of_seq=applied + rng.choice((0, 0, 0, 1)))
    if rng.random() < 0.05:
        said["tenant"] = RIVAL
    return json.dumps(said).encode()


def torn(rng: random.Random, line: bytes) -> bytes:
    return line[: rng.randint(1, len(line) - 1)]


def ill_typed(rng: random.Random, row: Row) -> bytes:
    """Not valid for one reason; most of these can still be placed in the log, some cannot."""
    broken = dict(row)
    match rng.randrange(11):
        case 8:
            broken.update(kind="authorization", uses=0)
        case 9:
            broken.update(kind="baseline", edges=[["deploy"]])
        case 10:
            broken.update(kind="resume", checkpoint_id="c1", replayed_to=rng.choice((0, "1")))
        case 0:
            broken["kind"] = None
        case 1:
            broken["tenant"] = 7
        case 2:
            broken["agent"] = ["a"]
        case 3:
            broken["seq"] = float(row.get("seq", 1))
        case 4:
            broken["seq"] = rng.choice((0, -1, True, "1", 2**61))
        case 5:
            broken.update(kind="probe", node_id="root", probes=3, recalled=4)
        case 6:
            broken.update(kind="summary", node_id="root", generation=1, level=1, frontier_lo=5, frontier_hi=4)
        case _:
            broken.update(kind="revocation", action_id=None)
    return json.dumps(broken).encode()


def resent(rng: random.Random, row: Row) -> bytes:
    """The same content in another form: keys in other order, absent fields spelled out."""
    items = list(row.items())
    rng.shuffle(items)
    again = dict(items)
    for name, absent in (("tenant", None), ("agent", ""), ("ts", "yesterday"), ("model", None), ("later", None)):
        if name not in again and rng.random() < 0.3:
            again[name] = absent
    if "seq" in again and rng.random() < 0.2:
        again["as_of_seq"] = 1  # ignored beside a seq
    return json.dumps(again, indent=None if rng.random() < 0.8 else 0).replace("\n", " ").encode()


def conflicting(rng: random.Random, row: Row) -> bytes:
    """Another content for the same place."""
    other = dict(row)
    match rng.randrange(5):
        case 3:
            other = {"kind": "revocation", "action_id": rng.choice(ACTIONS)} | {
                name: row[name] for name in ("session_id", "seq")
            }
        case 4:
            other["tenant"] = RIVAL
        case 0:
            other["note"] = rng.choice(("forged", "edited"))  # unknown fields are content, too
        case 1:
            other = {"kind": "message", "session_id": row["session_id"], "seq": row["seq"], "text": "other"}
        case _:
            other.update(kind="authorization", action_id="deploy", precondition_id="forged")
    return json.dumps(other).encode()


def arrange(
    rng: random.Random,
    sessions: list[list[Row]],
    *,
    shuffle: float = 0.0,
    duplicates: float = 0.0,
    drop: float = 0.0,
    conflicts: float = 0.0,
    unreadable: float = 0.0,
    unsequenced: float = 0.0,
    runs: float = 0.0,
    leaps: float = 0.0,
    nowhere: float = 0.0,
) -> list[bytes]:
    """An order of arrival for these sessions: interleaved, and each record with these probabilities displaced,
    sent again, lost, sent with other content, damaged, (compaction records) without its seq, the first of several
    that are lost, or followed by what a second writer says without a place in the log; `leaps`: the share of
    sessions of whose log a stretch never arrives."""
    streams: list[list[bytes]] = []
    for rows in sessions:
        arriving: list[tuple[float, bytes]] = []
        if leaps and rng.random() < leaps:
            rows = with_leap(rng, rows)
        if unsequenced:
            rows = without_seq(rng, rows, unsequenced)
        lost_up_to = -1
        for place, row in enumerate(rows):

            def send(
                line: bytes, late: float = 0.0, place: int = place, to: list[tuple[float, bytes]] = arriving
            ) -> None:
                moved = rng.uniform(-6, 6) if rng.random() < shuffle else 0.0
                to.append((place + moved + late, line))

            if runs and rng.random() < runs:
                lost_up_to = place + rng.randint(0, 12)
            if place <= lost_up_to or rng.random() < drop:
                continue
            if nowhere and rng.random() < nowhere:
                send(from_nowhere(rng, rows, place), late=rng.choice((0.1, 0.1, -1.5, 5.0)))
            line = json.dumps(row).encode()
            if rng.random() < unreadable:
                send(torn(rng, line) if rng.random() < 0.4 else ill_typed(rng, row))
                if rng.random() < 0.3:
                    send(line, late=0.5)  # sent again, but its position may be taken already
            else:
                send(line)
                if rng.random() < unreadable / 4:
                    send(ill_typed(rng, row), late=rng.choice((-1.5, 0.5)))
            while rng.random() < duplicates:
                send(resent(rng, row), late=rng.choice((0.25, 1.5, 10.0)))
            if "seq" in row and rng.random() < conflicts:
                send(conflicting(rng, row), late=rng.choice((-1.5, 0.5, 8.0, 8.0, 40.0)))
                if rng.random() < 0.3:
                    send(conflicting(rng, row), late=9.0)  # one finding per position all the same
        arriving.sort(key=lambda each: each[0])
        streams.append([line for _, line in arriving])
    merged: list[bytes] = []
    while any(streams):
        stream = rng.choice([stream for stream in streams if stream])
        merged += [stream.pop(0) for _ in range(min(len(stream), rng.randint(1, 4)))]
    return merged
