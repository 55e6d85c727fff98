"""One simulated session: the world as the agent knows it, its summary tree, and what a right judge must say.

Every method writes the records of one step and keeps the state that later steps need. Left alone, each step is
healthy; a fault passes arguments that make it wrong and states with `expect` which findings that must cause.
"""

import random
from typing import Any

from sidecar.simulate.log import Log
from sidecar.simulate.names import (
    ACTIONS,
    BUDGETS,
    CALLS,
    INSTRUCTIONS,
    MODELS,
    NARRATIVE_RECALL,
    PREFERENCES,
    PROHIBITIONS,
    RANKING_INSTRUCTIONS,
    THINGS,
)
from sidecar.simulate.world import Checkpoint, Edge, Fact, Node


class Session:
    """Live one session, step by step.

    Args:
        log: where the records go.
        rng: where all chance comes from.
        model: the summarizer.
        narrative: whether the session only narrates (a lower floor) instead of acting on what it remembers.
    """

    def __init__(self, log: Log, rng: random.Random, *, model: str, narrative: bool) -> None:
        self.log = log
        self.rng = rng
        self.model = model
        self.narrative = narrative
        self.expected: set[tuple[str, str]] = set()
        self.dead_letters = 0

        self.edges: dict[Edge, int] = {}
        self.once: dict[Edge, int] = {}
        self.revoked: list[Edge] = []
        self.implicit: list[int] = []
        self.missing: list[int] = []
        self.durable: list[str] = []
        self.live: list[str] = []
        self.constraints: dict[str, int] = {}
        self.facts: dict[str, Fact] = {}
        self.calls: dict[str, str] = {}

        self.covered = 0
        self.leaves: list[Node] = []
        self.sections: list[Node] = []
        self.root: Node | None = None
        self.probed: set[str] = set()
        self.checkpoints: list[Checkpoint] = []
        self.awaiting = False
        self.late_grants = False
        self.unjudged = False
        self._made: dict[str, int] = {}

    def expect(self, rule: str, subject: str | None = None) -> None:
        """State that the step must cause a finding, unless the session is unjudged; without a subject it is about
        the session."""
        if self.unjudged:
            return
        self.expected.add((rule, subject or self.log.session_id))

    @property
    def newest(self) -> Checkpoint:
        """Return the newest checkpoint."""
        return self.checkpoints[-1]

    def name(self, prefix: str) -> str:
        """Return a fresh id."""
        number = self._made.get(prefix, 0) + 1
        self._made[prefix] = number
        return f"{prefix}-{number}"

    # --- log events ---------------------------------------------------------------------------------

    def authorize(self) -> Edge:
        """Let somebody approve something; behind a checkpoint this makes it stale."""
        edge = (self.name(self.rng.choice(ACTIONS)), self.name("approval"))
        self.edges[edge] = self.log.event("authorization", action_id=edge[0], precondition_id=edge[1])
        self._outdate()
        return edge

    def authorize_once(self) -> Edge:
        """Let somebody approve something for a single action."""
        edge = (self.name(self.rng.choice(ACTIONS)), self.name("approval"))
        self.once[edge] = self.log.event("authorization", action_id=edge[0], precondition_id=edge[1], uses=1)
        self._outdate()
        return edge

    def use_up(self, edge: Edge) -> None:
        """Carry out the single action that was approved, which ends the approval."""
        del self.once[edge]
        self.act(edge[0])
        self._outdate()

    def authorize_implicitly(self) -> None:
        """Let somebody approve something without saying which approval it was."""
        self.implicit.append(self.log.event("authorization", action_id=self.name(self.rng.choice(ACTIONS))))
        self._outdate()

    def revoke(self, edge: Edge) -> None:
        """Take an approval back."""
        del self.edges[edge]
        self.revoked.append(edge)
        self.log.event("revocation", action_id=edge[0], precondition_id=edge[1])
        self._outdate()

    def _outdate(self) -> None:
        if self.checkpoints:
            self.newest.sound = False
            self.expect("stale_on_authorization", self.newest.checkpoint_id)

    def act(self, action_id: str | None = None) -> str:
        """Carry an irreversible action out (without an id: one that is authorized), and return its id."""
        action_id = action_id or self.rng.choice(list(self.edges))[0]
        self.log.event("action", action_id=action_id, irreversible=True)
        return action_id

    def store(self) -> str:
        """Put something new into the durable store."""
        referent = self.name(self.rng.choice(THINGS))
        self.durable.append(referent)
        self.log.event("referent_added", referent_id=referent, store="durable")
        return referent

    def spill(self) -> None:
        """Copy the oldest thing of the live window to the durable store, then let it go from the window."""
        referent = self.live.pop(0)
        self.durable.append(referent)
        self.log.event("referent_added", referent_id=referent, store="durable")
        self.log.event("referent_removed", referent_id=referent)

    def forget(self) -> None:
        """Let the oldest thing of the live window go; no summary has mentioned it."""
        self.log.event("referent_removed", referent_id=self.live.pop(0), store="live")

    def evict(self, referent: str) -> None:
        """Remove a thing from the durable store, whoever depends on it."""
        self.durable.remove(referent)
        self.log.event("referent_removed", referent_id=referent, store="durable")

    def call(self, again: bool = False) -> str:
        """Make an external call (or one made before once more, with the same result), and return its key."""
        if again and self.calls:
            key = self.rng.choice(list(self.calls))
            self.log.event("tool_result", call_key=key, handle=self.calls[key])
            return key
        key = self.name(self.rng.choice(CALLS))
        handle = self.calls[key] = f"h{self.rng.getrandbits(32):08x}"
        if self.rng.random() < 0.5:
            self.live.append(handle)
            self.log.event("tool_result", call_key=key, handle=handle, referents=[handle])
        else:
            self.log.event("tool_result", call_key=key, handle=handle)
        return key

    def prohibit(self) -> str:
        """Let the user forbid something, and return the constraint's id."""
        constraint = self.name("constraint")
        text = self.rng.choice(PROHIBITIONS)
        self.constraints[constraint] = self.log.event(
            "constraint", constraint_id=constraint, polarity="negative", text=text
        )
        return constraint

    def prefer(self) -> None:
        """Let the user wish for something."""
        text = self.rng.choice(PREFERENCES)
        self.log.event("constraint", constraint_id=self.name("wish"), polarity="positive", text=text)

    def permit(self) -> None:
        """Let the user withdraw the oldest prohibition."""
        constraint = next(iter(self.constraints))
        del self.constraints[constraint]
        self.log.event("constraint", constraint_id=constraint, retired=True)

    def learn(self, floor: int | None = 5) -> str:
        """Declare a fact of which so many tokens must survive (None: it does not say), and return its id."""
        fact_id = self.name("fact")
        anchor = f"E{self.rng.randrange(1000, 9999)}"
        text = f"the code {anchor} means that the lease ran out"
        fields: dict[str, Any] = {"fact_id": fact_id, "anchor": anchor, "text": text}
        if floor is not None:
            fields["floor_tokens"] = floor
        self.facts[fact_id] = Fact(self.log.event("fact", **fields), anchor, floor, text)
        return fact_id

    def miss(self, position: int, rule: str = "log_gap") -> None:
        """State that a position is missing, by which rule, and what that does to the newest checkpoint."""
        self.missing.append(position)
        self.expect(rule)
        if self.checkpoints:
            self.newest.sound = False
            self.expect("frontier_unverified", self.newest.checkpoint_id)

    # --- compaction ---------------------------------------------------------------------------------

    def leaf(self, **harm: Any) -> Node:
        """Summarize everything since the last leaf (for `harm` see `_summarize`)."""
        lo, hi = self.covered + 1, self.log.seq
        self.covered = hi
        node = Node(
            node_id=self.name("leaf"),
            generation=1,
            level=1,
            lo=lo,
            hi=hi,
            children=(),
            referents=self.rng.sample(self.durable, min(len(self.durable), 4)),
            constraints=[c for c, seq in self.constraints.items() if lo <= seq <= hi],
            facts={f: fact.text for f, fact in self.facts.items() if lo <= fact.seq <= hi},
            dropped=[],
        )
        for fact_id in [f for f in node.facts if self.facts[f].floor == 0]:
            del node.facts[fact_id]
            node.dropped.append(fact_id)
        self._summarize(node, harm)
        self.leaves.append(node)
        return node

    def section(self, **harm: Any) -> Node:
        """Summarize the leaves that no section has yet."""
        node = self._parent(self.name("section"), 1, self.leaves)
        self._summarize(node, harm)
        self.leaves = []
        self.sections.append(node)
        return node

    def rewrite_root(self, **harm: Any) -> Node:
        """Summarize all sections into a new generation of the root."""
        node = self._parent("root", self.root.generation + 1 if self.root else 1, self.sections)
        self._summarize(node, {"root": True, **harm})
        self.root = node
        return node

    def tree(self, level: int, **harm: Any) -> Node:
        """Summarize up to a level; the harm is done there."""
        if level == 1:
            return self.leaf(**harm)
        self.leaf()
        if level == 2:
            return self.section(**harm)
        self.section()
        return self.rewrite_root(**harm)

    def again(self, node: Node, **harm: Any) -> None:
        """Summarize a node once more, as its next generation."""
        node.generation += 1
        self._summarize(node, harm)

    def _parent(self, node_id: str, generation: int, children: list[Node]) -> Node:
        referents = dict.fromkeys(r for child in children for r in child.referents if r in self.durable)
        return Node(
            node_id=node_id,
            generation=generation,
            level=children[0].level + 1,
            lo=children[0].lo,
            hi=children[-1].hi,
            children=tuple(child.node_id for child in children),
            referents=list(referents)[:6],
            constraints=[c for child in children for c in child.constraints if c in self.constraints],
            facts={f: text for child in children for f, text in child.facts.items()},
            dropped=[f for child in children for f in child.dropped],
        )

    def _summarize(self, node: Node, harm: dict[str, Any]) -> None:
        """Write a summary.

        Args:
            node: what it covers and carries.
            harm: `forget` (a constraint or fact id) is left out, `ghost` is a referent that it mentions
                besides, `texts` replaces what is left of facts; anything else is a field of the record.
        """
        forget, ghost, texts = harm.pop("forget", None), harm.pop("ghost", None), harm.pop("texts", {})
        if ghost:
            node.referents = [*node.referents, ghost]
        node.constraints = [c for c in node.constraints if c != forget]
        node.facts = {f: texts.get(f, text) for f, text in node.facts.items() if f != forget}
        room, budget = BUDGETS[node.level]
        tokens = int(room * (0.6 + 0.4 * self.rng.random()))
        floors = [f.floor for f in self.facts.values() if node.lo <= f.seq <= node.hi]
        ranking = None not in floors and self.rng.random() < 0.1  # to rank is fine where every fact has a floor
        fields: dict[str, Any] = {
            "node_id": node.node_id,
            "generation": node.generation,
            "level": node.level,
            "frontier_lo": node.lo,
            "frontier_hi": node.hi,
            "referents": node.referents,
            "negative_constraints": node.constraints,
            "facts": node.facts,
            "dropped": node.dropped,
            "input_tokens": tokens,
            "input_tokens_read": tokens,
            "token_budget": budget,
            "tokens_emitted": int(budget * (0.5 + 0.5 * self.rng.random())),
            "instruction": self.rng.choice(RANKING_INSTRUCTIONS if ranking else INSTRUCTIONS),
            "retention": self._retention(node),
        }
        if node.children:
            fields["children"] = node.children
        self.log.compaction("summary", **{**fields, **harm})

    def _retention(self, node: Node) -> dict[str, Any]:
        low, high = NARRATIVE_RECALL if self.narrative else MODELS[self.model]
        return {
            "per_node_recall": round(self.rng.uniform(low, high), 4),
            # A claim is as good as a measurement once the node has been probed: the probe replaces it.
            "source": "self_reported" if node.node_id in self.probed else "probe",
            "depth": node.level,
            "workload": "narrative" if self.narrative else "remediation",
            "flatten_available": self.rng.random() < 0.5,
        }

    def probe(self, node: Node, recalled: int | None = None) -> None:
        """Probe a node with 20 questions; it answers at least 19, which holds over three levels (0.857)."""
        self.probed.add(node.node_id)
        recalled = self.rng.choice((19, 20, 20)) if recalled is None else recalled
        self.log.compaction("probe", node_id=node.node_id, probes=20, recalled=recalled)

    def gc(self, node_ids: tuple[str, ...]) -> None:
        """Reclaim nodes."""
        self.log.compaction("gc", node_ids=node_ids)

    def granted(self, lo: int, hi: int) -> list[Edge]:
        """Return the edges granted in a range and in effect, which is what a checkpoint of it has to assert."""
        return [edge for edge, seq in (self.edges | self.once).items() if lo <= seq <= hi]

    def checkpoint(self, node: Node, *, whole: bool | None = None, sound: bool = True, **harm: Any) -> Checkpoint:
        """Write a checkpoint on a node.

        Args:
            node: what it stands on.
            whole: whether its range begins at the log's begin instead of the node's (None: either).
            sound: whether a resume from it is safe.
            harm: fields of the record to replace.
        """
        if whole is None:
            whole = self.rng.random() < 0.5
        lo, hi = 1 if whole else node.lo, node.hi
        refs = [*node.referents, *self.rng.sample(list(self.calls.values()), min(len(self.calls), 3))]
        made = Checkpoint(self.name("checkpoint"), node, lo, hi, refs, sound)
        fields: dict[str, Any] = {
            "checkpoint_id": made.checkpoint_id,
            "node_id": node.node_id,
            "summary_generation": node.generation,
            "level": node.level,
            "turn": self.log.seq,
            "frontier_lo": lo,
            "frontier_hi": hi,
            "asserted_edges": self.granted(lo, hi),
            "verbatim_refs": refs,
        }
        fields.update(harm)
        if fields["asserted_edges"] is None:
            del fields["asserted_edges"]
        self.log.compaction("checkpoint", **fields)
        self.checkpoints.append(made)
        if any(lo <= p <= hi for p in (*self.implicit, *self.missing)):
            made.sound = False
            self.expect("frontier_unverified", made.checkpoint_id)
        return made

    # --- recovery -----------------------------------------------------------------------------------

    def resume(self, checkpoint: Checkpoint, missing: tuple[str, ...] = (), *, replayed: bool = False) -> None:
        """Crash, and resume from a checkpoint.

        Args:
            checkpoint: which one.
            missing: what is needed and not in it.
            replayed: whether the log was replayed on top of it, which is all that it takes where it is only stale.
        """
        deps = self.rng.sample(checkpoint.refs, min(len(checkpoint.refs), 2))
        fields: dict[str, Any] = {"checkpoint_id": checkpoint.checkpoint_id, "deps": [*deps, *missing]}
        if replayed:
            fields["replayed_to"] = self.log.seq
        self.log.compaction("resume", **fields)
        unsafe = not (checkpoint.sound or replayed)
        self.awaiting = bool(missing) or unsafe
        if unsafe:
            self.expect("resumed_unverified", checkpoint.checkpoint_id)
        if missing:
            self.expect("dependency_missing", checkpoint.checkpoint_id)

    def reconcile(self) -> None:
        """Let a controller decide how to go on."""
        self.awaiting = False
        self.log.compaction("reconcile", decision=self.rng.choice(("replay", "accept_divergence")))
