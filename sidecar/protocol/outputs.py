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


class DeadLetter(Struct, kw_only=True):
    """Keep a message that could not be read: why, where it was, and its bytes (base64 in JSON)."""

    reason: str
    source: Source
    session_id: str | None
    seq: int | None
    original: bytes
    key: bytes | None = None
    detected_at: datetime | UnsetType = UNSET


class HaltAck(Struct, kw_only=True):
    """State that somebody has taken a halt in hand (input: `agent.halt_acks`)."""

    halt_id: str
    by: str
    decision: str
