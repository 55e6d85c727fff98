"""The record types that the sidecar publishes."""

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

Severity = Literal["warning", "error", "critical"]
Disposition = Literal[
    "discard",
    "rederive",
    "unverified",
    "stale",
    "halt",
    "degrade",
    "reject_subtree",
    "freeze",
    "flatten_and_defer_gc",
    "probe",
    "defer_gc",
    "retry",
    "retry_pinned",
    "reconcile",
]
SubjectType = Literal["checkpoint", "node", "action", "call", "session"]


class Source(Struct, frozen=True, gc=False):
    """Name where a record was read: topic, partition and offset, or file, 0 and line number."""

    topic: str
    partition: int
    offset: int


class Subject(Struct, frozen=True, gc=False):
    """Name what a finding is about."""

    type: SubjectType
    id: str


class Finding(Struct, kw_only=True):
    """State one violation, with the evidence that a person can check in the log.

    `evidence["witness"]` is the smallest set of log positions that proves it.
    `detected_at` is set where the finding leaves the process; the engine has no clock.
    """

    finding_id: str
    rule: str
    severity: Severity
    disposition: Disposition
    session_id: str
    subject: Subject
    position: int
    evidence: dict[str, Any]
    detected_at: datetime | UnsetType = UNSET
    source: Source | None = None
    tenant: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    model: str | UnsetType = UNSET


class Halt(Struct, kw_only=True):
    """State that a session's irreversible actions are to be refused (`halt`), or no longer for this (`clear`).

    `open_halts` names every halt open after this record, so that a topic compacted by session tells whether
    the session is halted. `reexpand_from` and `replay_from` come with the opening only.
    """

    halt_id: str
    session_id: str
    position: int
    status: Literal["halt", "clear"]
    checkpoint_id: str | None
    reason: list[str]
    refuse: Literal["irreversible_actions"] = "irreversible_actions"
    finding_ids: list[str]
    open_halts: list[str]
    reexpand_from: str | UnsetType | None = UNSET
    replay_from: int | UnsetType = UNSET
    detected_at: datetime | UnsetType = UNSET


class CheckpointState(Struct, kw_only=True):
    """Describe a checkpoint as it stood when this was written."""

    checkpoint_id: str
    status: str
    node_id: str
    summary_generation: int
    level: int
    turn: int
    frontier_lo: int
    frontier_hi: int
    position: int


class Survival(Struct, kw_only=True):
    """Count, since a session began, what its summaries by one model had to carry at one level, and what they did."""

    what: Literal["constraint", "fact", "referent"]
    level: int
    checked: int
    kept: int
    model: str | None = None


class SessionRecord(Struct, kw_only=True):
    """State where a session stands: the newest per session is what there is to know.

    `checkpoint` is the one in force; `tenant`, `agent` and `model` are the last that its compaction records gave.
    """

    session_id: str
    position: int
    status: Literal["uncompacted", "verified", "stale", "unjudged", "unverified", "degraded", "lossy", "corrupt"]
    awaiting: bool
    open_halts: list[str]
    checkpoint: CheckpointState | None
    survival: list[Survival]
    tenant: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    detected_at: datetime | UnsetType = UNSET


class DeadLetter(Struct, kw_only=True):
    """Keep a message that could not be read: why, where it was, and its bytes (base64 in JSON)."""

    reason: str
    source: Source
    session_id: str | None
    seq: int | None
    original: bytes
    key: bytes | None = None
    detected_at: datetime | UnsetType = UNSET


class Decision(Struct, kw_only=True):
    """State a permission that the guard was about to give; written before the answer goes out.

    Not every decision reached whoever asked: the guard looks at the session again after writing, and refuses if the
    permission no longer holds. So the decisions are all permissions given, and some that were not.
    """

    decision_id: str
    question: Literal["authorize", "resume", "commit", "gc"]
    session_id: str
    position: int
    decided_at: datetime
    min_seq: int | None = None
    action_id: str | None = None
    checkpoint_id: str | None = None
    deps: list[str] = []
    replayed_to: int | None = None
    node_ids: list[str] = []
    generation: int | None = None
    edges: list[tuple[str, str]] = []
    checkpoint_in_force: str | None = None
    asked_by: str | None = None


class HaltAck(Struct, kw_only=True):
    """State that somebody has taken a halt in hand (input: `agent.halt_acks`)."""

    halt_id: str
    by: str
    decision: str


AlertKind = Literal["storm", "regression", "unacknowledged_halt", "repeat_offender", "silence"]


class Alert(Struct, kw_only=True):
    """State what somebody who watches the fleet should know: raised once, updated, cleared once.

    `alert_id` names the kind and what it is about, and is the same whenever that happens again; `occurrence` counts
    how often it was raised, and `version` the records of one alert. What `subject_type` names is in `subject`; null:
    those sessions that name none.
    """

    alert_id: str
    kind: AlertKind
    status: Literal["raised", "updated", "cleared"]
    severity: Severity
    subject_type: Literal["tenant", "agent", "model", "node", "halt"]
    subject: str | None
    message: str
    remedy: str
    since: datetime
    raised_at: datetime
    updated_at: datetime
    cleared_at: datetime | None = None
    value: float
    bound: float
    occurrence: int
    version: int
    rule: str | None = None
    session_id: str | None = None
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
