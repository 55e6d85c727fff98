"""The guard's questions and answers: what the API takes and gives, and what its clients send and read.

Every answer to a question has the same shape whatever its HTTP status, and every answer that is not a plain yes
refuses: a client that looks at nothing but `allowed` or `decision` is safe.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from sidecar.protocol.outputs import Finding, Severity
from sidecar.protocol.records import MAX_INT

MAX_LISTED = 10_000
"""How many references or nodes one question may name."""

Name = Annotated[str, Meta(min_length=1)]
Names = Annotated[list[Name], Meta(max_length=MAX_LISTED)]
Applied = Annotated[int, Meta(ge=0, le=MAX_INT)]

Code = Literal[
    "rule",
    "open_halt",
    "checkpoint_in_force",
    "checkpoint",
    "log_incomplete",
    "unjudged",
    "unknown_session",
    "unknown_node",
    "restoring",
    "lagging",
    "not_applied",
    "not_owned",
    "overloaded",
    "timed_out",
    "not_recorded",
    "bad_request",
    "unauthorized",
    "unavailable",
]
"""Why something is refused: `rule` and the three after it are verdicts, `restoring` and after the guard's own state."""

TRANSIENT: frozenset[str] = frozenset(
    ("restoring", "lagging", "not_applied", "overloaded", "timed_out", "not_recorded", "unavailable")
)
"""The codes that asking again a little later may do away with."""


class Reason(Struct, kw_only=True, omit_defaults=True):
    """Say one reason for an answer.

    `rule` names the rule where one is the reason, and `href` is where the guard explains it.
    """

    code: Code
    detail: str
    rule: str | UnsetType = UNSET
    href: str | UnsetType = UNSET


class Edge(Struct, kw_only=True):
    """Name an effective edge: the precondition that authorizes the action, and the position of its latest grant."""

    action_id: str
    precondition_id: str
    granted: int


# --- authorize --------------------------------------------------------------------------------------------------------


class AuthorizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Ask whether an irreversible action may be carried out now."""

    session_id: Name
    action_id: Name
    checkpoint_id: Name | None = None
    min_seq: Applied | None = None


class AuthorizeAnswer(Struct, kw_only=True):
    """Permit or refuse; `edges` are those that authorize the action, `position` is how far the log was applied."""

    allowed: bool = False
    reasons: list[Reason] = field(default_factory=list)
    session_id: str | None = None
    position: int | None = None
    status: str | None = None
    checkpoint_in_force: str | None = None
    edges: list[Edge] = field(default_factory=list)
    owner: str | None = None


# --- resume -----------------------------------------------------------------------------------------------------------


class ResumeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Ask whether the session may go on from a checkpoint that carries the references its next turn needs."""

    session_id: Name
    checkpoint_id: Name
    deps: Names = field(default_factory=list)
    replayed_to: Applied | None = None
    min_seq: Applied | None = None


class Seen(Struct, kw_only=True):
    """Say where a reference was last seen: the log position, and the store (or `tool_result`)."""

    position: int
    store: str


class Missing(Struct, kw_only=True):
    """Name a reference that the checkpoint does not carry."""

    reference: str
    last_seen: Seen | None = None


class ResumeAnswer(Struct, kw_only=True):
    """Say `resume` or `reconcile`, and for the latter what to reconcile with.

    `reexpand_from` is the checkpoint to expand again from (None: none will do), `replay_from` the log position.
    """

    decision: Literal["resume", "reconcile"] = "reconcile"
    reasons: list[Reason] = field(default_factory=list)
    session_id: str | None = None
    position: int | None = None
    checkpoint_id: str | None = None
    status: str | None = None
    summary_generation: int | None = None
    turn: int | None = None
    missing: list[Missing] = field(default_factory=list)
    reexpand_from: str | None = None
    replay_from: int | None = None
    open_halts: list[str] = field(default_factory=list)
    owner: str | None = None


# --- commit -----------------------------------------------------------------------------------------------------------


class PinnedFact(Struct, kw_only=True):
    """Name a fact that the next attempt must carry: its anchor verbatim, in at least so many tokens.

    `lost`: the proposal does not carry it as it must; the others it carries, and so must the next attempt.
    """

    fact_id: str
    lost: bool
    anchor: str
    floor_tokens: int | None = None
    position: int


class PinnedConstraint(Struct, kw_only=True):
    """Name a prohibition that the next attempt must carry; `lost`: the proposal does not."""

    constraint_id: str
    lost: bool
    position: int


class CommitAnswer(Struct, kw_only=True):
    """Say what is to become of a proposed summary.

    `findings` are what committing it now would bring; `facts` and `constraints` are all that a retry has to pin.
    """

    decision: Literal["commit", "flatten_and_defer_gc", "retry_pinned", "halt"] = "halt"
    reasons: list[Reason] = field(default_factory=list)
    session_id: str | None = None
    position: int | None = None
    node_id: str | None = None
    findings: list[Finding] = field(default_factory=list)
    facts: list[PinnedFact] = field(default_factory=list)
    constraints: list[PinnedConstraint] = field(default_factory=list)
    owner: str | None = None


# --- gc ---------------------------------------------------------------------------------------------------------------


class GcRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Ask which nodes may be reclaimed."""

    session_id: Name
    node_ids: Names
    min_seq: Applied | None = None


class Deferred(Struct, kw_only=True):
    """Name a node that may not be reclaimed, and what it waits for."""

    node_id: str
    waits_for: list[Reason]


class GcAnswer(Struct, kw_only=True):
    """Say `reclaim` (all that were asked about) or `defer` (some); only what `reclaimable` names may go."""

    decision: Literal["reclaim", "defer"] = "defer"
    reasons: list[Reason] = field(default_factory=list)
    session_id: str | None = None
    position: int | None = None
    reclaimable: list[str] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    owner: str | None = None


# --- looking ----------------------------------------------------------------------------------------------------------


class HaltView(Struct, kw_only=True):
    """Describe an open halt."""

    halt_id: str
    position: int
    reason: list[str]
    checkpoint_id: str | None
    finding_ids: list[str]


class CheckpointView(Struct, kw_only=True):
    """Describe a checkpoint as it stands now."""

    checkpoint_id: str
    status: str
    node_id: str
    summary_generation: int
    level: int
    turn: int
    frontier_lo: int
    frontier_hi: int
    position: int
    verbatim_refs: list[str]
    in_force: bool
    newest: bool


class FrontierView(Struct, kw_only=True):
    """Describe the authorization frontier: the last authorization or revocation, and the effective edges.

    `edges` lists the newest, `edge_count` says how many there are.
    """

    latest: int
    edge_count: int
    edges: list[Edge]


class SessionView(Struct, kw_only=True):
    """Describe a session as it stands now. `missing` are ranges of positions that were given up."""

    session_id: str
    status: str
    position: int
    awaiting: bool
    waiting: int
    unread: bool
    missing: list[tuple[int, int]]
    checkpoint_in_force: CheckpointView | None
    checkpoints: list[str]
    open_halts: list[HaltView]
    frontier: FrontierView


class FindingsView(Struct, kw_only=True):
    """List recent findings, the newest last; `dropped` says how many older ones are no longer kept."""

    findings: list[Finding]
    dropped: int


class RuleView(Struct, kw_only=True):
    """Explain a rule."""

    rule: str
    severity: Severity
    disposition: str
    meaning: str
    why: str
    remedy: str


class Problem(Struct, kw_only=True):
    """Say why something that was to be looked at cannot be shown."""

    reasons: list[Reason]
    owner: str | None = None
