"""The record types that agents and compactors publish.

The types are the contract: the decoder, the JSON Schemas and the AsyncAPI document are made from them.
A field that is optional is absent when it is missing, `null`, or (single ids) the empty string.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_INT = 2**61 - 1
"""Largest integer any field takes: a position and three flags beside it still fit 64 bits."""

COMPARED = 1024
"""How many positions back the contents of repeated records are compared (protocol: "Duplicates"): who publishes records
again must not go back further, or they pass for others that contend for their positions."""

Id = Annotated[str, Meta(min_length=1)]
OptionalId = str
Position = Annotated[int, Meta(ge=1, le=MAX_INT, description="A log position: an integer from 1.")]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Level = Annotated[int, Meta(ge=1, le=MAX_INT)]
Ids = tuple[Id, ...]
Edge = tuple[Id, Id]
"""An asserted causal edge: `[action_id, precondition_id]`."""


class Record(Struct, kw_only=True, gc=False, tag_field="kind"):
    """Carry what every record has.

    `ts` is RFC 3339; one that cannot be read counts as absent (the decoder sees to it).
    """

    session_id: Annotated[str, Meta(min_length=1, description="Unique across tenants; the Kafka message key.")]
    seq: Position | None = None
    ts: Annotated[datetime, Meta(tz=True)] | None = None
    tenant: OptionalId | None = None
    agent: OptionalId | None = None
    model: OptionalId | None = None


class Event(Record, kw_only=True, gc=False):
    """Mark the log events: they need a `seq`."""

    seq: Position


class Compaction(Record, kw_only=True, gc=False):
    """Mark the compaction records: without a `seq` they are placed by `as_of_seq`."""

    as_of_seq: Count | None = None


# --- log events -----------------------------------------------------------------------------------


class Opaque(Event, kw_only=True, gc=False, tag=False):
    """Stand for a log event of a kind the protocol does not know: it advances the log."""


class Authorization(Event, kw_only=True, gc=False, tag="authorization"):
    """State that a precondition authorizes an action; with either id missing the edge is not explicit."""

    action_id: OptionalId | None = None
    precondition_id: OptionalId | None = None
    uses: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None


class Revocation(Event, kw_only=True, gc=False, tag="revocation"):
    """End one edge of an action, or (without `precondition_id`) all of them."""

    action_id: Id
    precondition_id: OptionalId | None = None


class Action(Event, kw_only=True, gc=False, tag="action"):
    """State that the agent carried an action out."""

    action_id: Id
    irreversible: bool | None = None


class ReferentAdded(Event, kw_only=True, gc=False, tag="referent_added"):
    """Put a referent into a store."""

    referent_id: Id
    store: Literal["live", "durable"] | None = None


class ReferentRemoved(Event, kw_only=True, gc=False, tag="referent_removed"):
    """Take a referent out of a store."""

    referent_id: Id
    store: Literal["live", "durable"] | None = None


class Constraint(Event, kw_only=True, gc=False, tag="constraint"):
    """Declare, restate or withdraw a standing instruction (`polarity` is needed unless `retired`)."""

    constraint_id: Id
    polarity: Literal["negative", "positive"] | None = None
    text: str | None = None
    retired: bool | None = None
    inferred: bool | None = None


class Fact(Event, kw_only=True, gc=False, tag="fact"):
    """Declare a fact: the substring (`anchor`) and the fewest tokens of it that must survive."""

    fact_id: Id
    anchor: Annotated[str, Meta(min_length=1)]
    floor_tokens: Count | None = None
    text: str | None = None
    inferred: bool | None = None


class ToolResult(Event, kw_only=True, gc=False, tag="tool_result"):
    """State what an external call returned; its `referents` are added to the live store."""

    call_key: Id
    handle: str
    referents: Ids | None = None
    inferred: bool | None = None


class Baseline(Event, kw_only=True, gc=False, tag="baseline"):
    """State what an authority says holds here, so that a session without its beginning can be judged from here on."""

    edges: tuple[Edge, ...] | None = None
    live: Ids | None = None
    durable: Ids | None = None
    negative_constraints: Ids | None = None


# --- compaction records ---------------------------------------------------------------------------


class Retention(Struct, kw_only=True, gc=False):
    """Carry the measured (`probe`) or claimed (`self_reported`) recall of a summary."""

    per_node_recall: Annotated[float, Meta(gt=0, le=1)]
    source: Literal["probe", "self_reported"]
    depth: Annotated[int, Meta(ge=1, le=MAX_INT)]
    workload: str | None = None
    flatten_available: bool | None = None


class Summary(Compaction, kw_only=True, gc=False, tag="summary"):
    """State that a node's generation was committed: what it covers, was made of, and carries."""

    node_id: Id
    generation: Level
    level: Level
    frontier_lo: Position
    frontier_hi: Position
    children: Ids | None = None
    root: bool | None = None
    referents: Ids | None = None
    negative_constraints: Ids | None = None
    facts: dict[str, str] | None = None
    dropped: Ids | None = None
    input_tokens: Count | None = None
    input_tokens_read: Count | None = None
    token_budget: Count | None = None
    tokens_emitted: Count | None = None
    instruction: str | None = None
    partial: bool | None = None
    retention: Retention | None = None


class Checkpoint(Compaction, kw_only=True, gc=False, tag="checkpoint"):
    """State that a checkpoint was written: its node and generation, range, edges and verbatim references."""

    checkpoint_id: Id
    node_id: Id
    summary_generation: Level
    level: Level
    turn: Count
    frontier_lo: Position
    frontier_hi: Position
    asserted_edges: tuple[Edge, ...] | None = None
    verbatim_refs: Ids | None = None
    inferred: bool | None = None


class Resume(Compaction, kw_only=True, gc=False, tag="resume"):
    """State that the agent resumed from a checkpoint, and what its next turn needs."""

    checkpoint_id: Id
    deps: Ids | None = None
    replayed_to: Position | None = None


class Reconcile(Compaction, kw_only=True, gc=False, tag="reconcile"):
    """State that a controller decided what to do after an unsafe recovery."""

    decision: Literal["replay", "accept_divergence"]


class Gc(Compaction, kw_only=True, gc=False, tag="gc"):
    """State that nodes were reclaimed."""

    node_ids: Ids


class Probe(Compaction, kw_only=True, gc=False, tag="probe"):
    """State how many of a held-out probe set's facts were recalled from a node."""

    node_id: Id
    probes: Annotated[int, Meta(ge=1, le=MAX_INT)]
    recalled: Count


class Hole(Record, kw_only=True, gc=False, tag=False):
    """Take the position of a record that could not be read; made by the decoder, never published."""


EVENTS: tuple[type[Event], ...] = (
    Authorization,
    Revocation,
    Action,
    ReferentAdded,
    ReferentRemoved,
    Constraint,
    Fact,
    ToolResult,
    Baseline,
)
COMPACTIONS: tuple[type[Compaction], ...] = (Summary, Checkpoint, Resume, Reconcile, Gc, Probe)
KINDS: dict[str, type[Record]] = {str(t.__struct_config__.tag): t for t in (*EVENTS, *COMPACTIONS)}
