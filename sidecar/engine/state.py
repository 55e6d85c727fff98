"""A session's state: plain structs, one per rule family, that serialise as they are.

References between objects are integers (a generation's `id`, an edge's index), so that the whole state is a
tree and a dump of it is one call. Containers that most sessions never need stay None.
"""

from array import array
from typing import Any

import msgspec
from msgspec import Struct, field

from sidecar.protocol.outputs import Source
from sidecar.protocol.records import (
    Action,
    Authorization,
    Baseline,
    Checkpoint,
    Constraint,
    Fact,
    Gc,
    Probe,
    Reconcile,
    ReferentAdded,
    ReferentRemoved,
    Resume,
    Revocation,
    Summary,
    ToolResult,
)

Known = (
    Authorization
    | Revocation
    | Action
    | ReferentAdded
    | ReferentRemoved
    | Constraint
    | Fact
    | ToolResult
    | Baseline
    | Summary
    | Checkpoint
    | Resume
    | Reconcile
    | Gc
    | Probe
)

# Flags of checkpoints and generations: the findings that count against them, by what they do to the status.
CRITICAL, LOSS, ERROR, UNVERIFIED, FORGOTTEN = 1, 2, 4, 8, 16
# Flags of a checkpoint only: rules that fire once per checkpoint and can fire later than its own record.
SAID_STALE, SAID_MISMATCH, AHEAD = 32, 64, 128


def _numbers() -> "array[int]":
    return array("Q")


class Held(Struct, array_like=True, gc=False):
    """Hold back a record for a missing position; `record` is None for an opaque or an unreadable one.

    `key` and `value` are the message itself, kept only while its session has no tenant yet: the record may turn out
    to be another tenant's, and is then a dead letter.
    """

    record: Known | None
    digest: int
    source: Source | None
    unreadable: bool = False
    tenant: str | None = None
    key: bytes | None = None
    value: bytes | None = None


class Unplaced(Struct, array_like=True, gc=False, order=True):
    """Hold back a record without `seq` until the log has been applied up to `as_of`."""

    as_of: int
    arrival: int
    digest: int
    record: Known
    source: Source | None
    since: float
    key: bytes | None = None
    value: bytes | None = None


class Order(Struct, array_like=True):
    """Keep what the total order needs: digests of the last positions, what waits, what is missing.

    `highest` is the highest position that anything has waited at.
    """

    digests: array = field(default_factory=_numbers)  # type: ignore[type-arg]
    missing_lo: list[int] | None = None
    missing_hi: list[int] | None = None
    waiting: dict[int, Held] | None = None
    queue: list[int] | None = None
    unplaced: list[Unplaced] | None = None
    arrivals: int = 0
    seen_unplaced: dict[int, None] | None = None
    conflicts: dict[int, Held | None] | None = None
    since: float = 0.0
    awaited: int = 0
    moment: str | None = None
    highest: int = 0


class Edge(Struct, array_like=True, gc=False):
    """Keep one granted edge: its latest grant and that one's end (0: none), and the earlier pairs of them.

    `left` counts the uses that are left of the latest grant; 0: it has no limit (or has ended).
    """

    action: str
    precondition: str
    granted: int
    ended: int = 0
    past: list[tuple[int, int]] | None = None
    left: int = 0

    @property
    def first(self) -> int:
        """The first grant, which is never forgotten."""
        return self.past[0][0] if self.past else self.granted


class Fan(Struct, array_like=True):
    """Keep the edges of an action that has several preconditions, and which are effective now.

    `live` is in order of the newest grants. `limited` counts those of it that have a limit; -1: it was not counted.
    """

    edges: dict[str, int]
    live: dict[str, None]
    limited: int = -1


class Frontier(Struct, array_like=True):
    """Keep the authorization edges, by action and by position."""

    actions: dict[str, int | Fan] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    grant_at: array = field(default_factory=_numbers)  # type: ignore[type-arg]
    grant_of: array = field(default_factory=_numbers)  # type: ignore[type-arg]
    implicit: list[int] | None = None
    latest: int = 0


class Generation(Struct, array_like=True):
    """Keep one committed generation of a summary node.

    `own` are the flags of its own findings, `below` those of its whole basis (its own included).
    `held` counts how often it stands in the basis of the checkpoint in force: once for being its root,
    once for each held generation built from it.
    `lost` counts its referents that are unreachable now, while it is newest or held.
    `inherited` are the ranges, as pairs of positions, of what it was built from, where they reach beyond its own.
    """

    id: int
    node_id: str
    number: int
    order: int
    position: int
    level: int
    lo: int
    hi: int
    partial: bool
    workload: str | None
    children: tuple[str, ...]
    referents: tuple[str, ...]
    constraints: tuple[str, ...]
    facts: dict[str, str] | None
    built_from: list[int]
    above: list[int] | None = None
    held: int = 0
    newest: bool = True
    reclaimed: bool = False
    lost: int = 0
    reported: dict[str, None] | None = None
    own: int = 0
    below: int = 0
    inherited: list[tuple[int, int]] | None = None


class Node(Struct, array_like=True, gc=False):
    """Name a node's newest generation, and its older ones by number."""

    newest: int
    older: dict[int, int] | None = None


class Written(Struct, array_like=True, gc=False):
    """Keep a checkpoint that was taken. `basis` is its generation's id, None until that is committed."""

    id: str
    node_id: str
    generation: int
    level: int
    turn: int
    lo: int
    hi: int
    refs: tuple[str, ...]
    order: int
    position: int
    flags: int = 0
    basis: int | None = None


class Tree(Struct, array_like=True):
    """Keep the summary tree, the checkpoints on it, and the reachability of what it refers to.

    `links` counts what the generations were built from, and name as children.
    `forgotten` keeps the newest generation's number of nodes that are no longer kept, so that none comes back unseen.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    generations: dict[int, Generation] = field(default_factory=dict)
    parents: dict[str, dict[str, None]] | None = None
    needed: dict[str, list[int]] = field(default_factory=dict)
    checkpoints: dict[str, Written] = field(default_factory=dict)
    candidates: list[str] = field(default_factory=list)
    expected: dict[str, list[str]] | None = None
    probes: dict[str, tuple[int, int, int, int]] | None = None
    forgotten: dict[str, int] | None = None
    newest: str | None = None
    in_force: str | None = None
    root: int | None = None
    broken: int = 0
    order: int = 0
    made: int = 0
    links: int = 0


class Stated(Struct, array_like=True, gc=False):
    """Keep a constraint or fact record: `anchor` and `floor` are a fact's, `negative` and `retired` a constraint's."""

    position: int
    id: str
    negative: bool = False
    retired: bool = False
    anchor: str = ""
    floor: int | None = None
    inferred: bool = False


class Floors(Struct, array_like=True):
    """Keep the standing instructions and the declared facts, by position."""

    constraints: list[Stated] = field(default_factory=list)
    facts: list[Stated] = field(default_factory=list)


class Call(Struct, array_like=True, gc=False):
    """Keep what a call returned since the last reconcile (None: several handles), and before the last resume.

    `stated` and `before_stated`: some result that counts there was not inferred.
    """

    handle: str | None
    reconciles: int
    position: int
    before: str | None = None
    before_position: int = 0
    resumes: int = 0
    said: dict[str, None] | None = None
    stated: bool = True
    before_stated: bool = True


class Recovery(Struct, array_like=True):
    """Keep where the session stands between resumes and reconciles, and what its calls returned."""

    awaiting: bool = False
    resumes: int = 0
    reconciles: int = 0
    reconciles_at_resume: int = 0
    resumed_at: int = 0
    calls: dict[str, Call] | None = None


class OpenHalt(Struct, array_like=True):
    """Keep an open halt."""

    id: str
    position: int
    reason: list[str]
    checkpoint_id: str | None
    finding_ids: list[str]


class Tally(Struct, array_like=True, gc=False):
    """Count what the summaries of a model had to carry at a level, and what they did."""

    what: str
    level: int
    model: str | None
    checked: int = 0
    kept: int = 0


class Session(Struct, array_like=True):
    """Keep all that later records of a session can still ask about.

    `by_reconcile` and `by_resume`: the open halts that these clear. `lost`: records may be gone that nobody has seen.
    `origin`: the last tenant, agent and model that compaction records gave; `tallies`: what survived its summaries.
    `status`, `changed` and `seen` serve whoever keeps many sessions: the status last counted, whether anything came
    since the last snapshot, and when. `in_force`: the status of the checkpoint in force when that was last looked at.
    `tenant`: whose session it is. `unjudged`: it was joined midstream, and no baseline has come. `baseline`: the
    position that it is judged from; 0: from its beginning. `unread`: a record of it could not be read, and nothing is
    known of its position; `unread_at`: the highest position that had come by then. `stub`: what it was has been
    forgotten, except that it must not be permitted anything.
    """

    session_id: str
    applied: int = 0
    quiet: bool = True
    order: Order = field(default_factory=Order)
    stores: dict[str, int] | None = None
    frontier: Frontier | None = None
    tree: Tree | None = None
    floors: Floors | None = None
    recovery: Recovery | None = None
    halts: dict[str, OpenHalt] | None = None
    by_reconcile: dict[str, None] = field(default_factory=dict)
    by_resume: dict[str, None] = field(default_factory=dict)
    trimmed: int = 0
    lost: bool = False
    status: str = ""
    changed: bool = False
    seen: float = 0.0
    origin: tuple[str | None, str | None, str | None] | None = None
    tallies: list[Tally] | None = None
    in_force: str = ""
    tenant: str | None = None
    unjudged: bool = False
    baseline: int = 0
    unread: bool = False
    stub: bool = False
    unread_at: int = 0


def _encode(value: Any) -> Any:
    return value.tobytes()


def _decode(kind: type, value: Any) -> Any:
    numbers = array("Q")
    numbers.frombytes(value)
    return numbers


encode_session = msgspec.msgpack.Encoder(enc_hook=_encode).encode
decode_session = msgspec.msgpack.Decoder(Session, dec_hook=_decode).decode


class Head(Struct, array_like=True, gc=False):
    """Read of a serialised session only what stands first."""

    session_id: str
    applied: int


decode_head = msgspec.msgpack.Decoder(Head).decode


class Awaiting(Struct, array_like=True, gc=False):
    """Read of a serialised `Recovery` only what stands first."""

    awaiting: bool


# Of a serialised session only what says whether it may be forgotten: what is large is passed over.
_LIGHT = {"session_id": str, "lost": bool, "unread": bool, "stub": bool, "recovery": Awaiting | None}
_FIELDS = [
    (f.name, _LIGHT.get(f.name, msgspec.Raw), False if f.name in ("unread", "stub") else msgspec.Raw())
    if not f.required
    else (f.name, str)
    for f in msgspec.structs.fields(Session)
]
decode_fate: Any = msgspec.msgpack.Decoder(msgspec.defstruct("Fate", _FIELDS, array_like=True)).decode


class Frozen(Struct, frozen=True, gc=False):
    """Keep a session in its serialised form, with what is asked of it while it sleeps."""

    session_id: str
    status: str
    open_halts: int
    waiting: bool
    seen: float
    state: bytes
