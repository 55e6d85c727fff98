"""The guard's questions as the client sends them, and how an answer is read: what cannot be believed refuses.

Nothing here does IO. A yes counts only if everything about it is as the guard would have said it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from sidecar.client.answers import UNREADABLE, decode
from sidecar.client.refused import Answer
from sidecar.protocol.api import (
    AuthorizeAnswer,
    AuthorizeRequest,
    Code,
    CommitAnswer,
    GcAnswer,
    GcRequest,
    Reason,
    ResumeAnswer,
    ResumeRequest,
)
from sidecar.protocol.records import MAX_INT, Summary

A = TypeVar("A", bound=Answer)

OK = 200
MISDIRECTED = 421


class Invalid(Exception):
    """Say why something is no question, before anybody is asked."""


class Question(Struct, Generic[A], kw_only=True):
    """Hold one question: where it goes, its body, and how a yes to it is told from everything else.

    Args:
        path: where it goes.
        body: what is sent.
        session_id: the session it is about.
        min_seq: the log position that the answer has to know of.
        kind: the answer's type.
        says_yes: whether an answer permits anything.
        doubt: why a yes cannot be believed, or None.
    """

    path: str
    body: bytes
    session_id: str
    min_seq: int | None
    kind: type[A]
    says_yes: Callable[[A], bool]
    doubt: Callable[[A], str | None]


def authorize(
    session_id: str, action_id: str, checkpoint_id: str | None, min_seq: int | None
) -> Question[AuthorizeAnswer]:
    """Ask whether an irreversible action may be carried out now.

    Raises:
        Invalid: an argument is not what the protocol allows.
    """
    fields = {"session_id": session_id, "action_id": action_id, "checkpoint_id": checkpoint_id, "min_seq": min_seq}

    def doubt(answer: AuthorizeAnswer) -> str | None:
        if answer.reasons:
            return "it gives reasons against it"
        if not answer.edges:
            return "it names no edge that authorizes the action"
        if any(edge.action_id != action_id for edge in answer.edges):
            return "the edges it names authorize another action"
        return None

    return Question(
        path="/v1/authorize",
        body=_body(fields, AuthorizeRequest),
        session_id=session_id,
        min_seq=min_seq,
        kind=AuthorizeAnswer,
        says_yes=lambda answer: answer.allowed,
        doubt=doubt,
    )


def resume(session_id: str, checkpoint_id: str, deps: Iterable[str], min_seq: int | None) -> Question[ResumeAnswer]:
    """Ask whether a session may go on from a checkpoint.

    Raises:
        Invalid: an argument is not what the protocol allows.
    """
    fields = {"session_id": session_id, "checkpoint_id": checkpoint_id, "deps": _listed(deps), "min_seq": min_seq}

    def doubt(answer: ResumeAnswer) -> str | None:
        if answer.reasons or answer.missing:
            return "it gives reasons against it"
        if answer.checkpoint_id != checkpoint_id:
            return "it is about another checkpoint"
        if answer.status != "verified":
            return f"it calls the checkpoint {answer.status}"
        return None

    return Question(
        path="/v1/resume",
        body=_body(fields, ResumeRequest),
        session_id=session_id,
        min_seq=min_seq,
        kind=ResumeAnswer,
        says_yes=lambda answer: answer.decision == "resume",
        doubt=doubt,
    )


def commit(summary: Summary | dict[str, Any], min_seq: int | None) -> Question[CommitAnswer]:
    """Ask what is to become of a proposed summary.

    Raises:
        Invalid: it is no summary; the message names the field.
    """
    if not isinstance(summary, Summary | dict):
        raise Invalid(f"expected a summary or its fields, got {type(summary).__name__}")
    fields: dict[str, Any] = _builtins(summary)
    if fields.get("kind", "summary") != "summary":
        raise Invalid("`kind` must be `summary`, or left out")
    if type(min_seq) not in (int, type(None)) or not 0 <= (min_seq or 0) <= MAX_INT:
        raise Invalid(f"`min_seq`: expected a whole number from 0 to {MAX_INT}")
    fields = {name: value for name, value in fields.items() if value is not None} | {"kind": "summary"}
    try:
        proposed = msgspec.convert(_builtins(fields), Summary)
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from None
    asked = fields if min_seq is None else {**fields, "min_seq": min_seq}

    def doubt(answer: CommitAnswer) -> str | None:
        if answer.node_id != proposed.node_id:
            return "it is about another node"
        if any(finding.severity != "warning" for finding in answer.findings):
            return "it lists findings that are more than warnings"
        return None

    return Question(
        path="/v1/commit",
        body=_encode(asked),
        session_id=proposed.session_id,
        min_seq=min_seq,
        kind=CommitAnswer,
        says_yes=lambda answer: answer.decision != "halt",
        doubt=lambda answer: doubt(answer) if answer.decision == "commit" else None,
    )


def gc(session_id: str, node_ids: Iterable[str], min_seq: int | None) -> Question[GcAnswer]:
    """Ask which nodes may be reclaimed.

    Raises:
        Invalid: an argument is not what the protocol allows.
    """
    asked = _listed(node_ids)
    fields = {"session_id": session_id, "node_ids": asked, "min_seq": min_seq}

    def doubt(answer: GcAnswer) -> str | None:
        may, held_back = set(answer.reclaimable), {node.node_id for node in answer.deferred}
        if not may <= set(asked):
            return "it names nodes that it was not asked about"
        if may & held_back or (answer.reasons and may):
            return "it gives reasons against it"
        if answer.decision == "reclaim" and may != set(asked):
            return "it does not name every node"
        return None

    return Question(
        path="/v1/gc",
        body=_body(fields, GcRequest),
        session_id=session_id,
        min_seq=min_seq,
        kind=GcAnswer,
        says_yes=lambda answer: answer.decision == "reclaim" or bool(answer.reclaimable),
        doubt=doubt,
    )


def read(question: Question[A], status: int, body: bytes) -> A | str:
    """Read an answer; what cannot be believed becomes the reason (a string) why there is none."""
    try:
        answer = decode(body, question.kind)
    except UNREADABLE as error:
        return f"the answer (HTTP {status}) cannot be read: {error}"
    if not question.says_yes(answer):
        if not answer.reasons and not (isinstance(answer, GcAnswer) and answer.deferred):
            answer.reasons = [Reason(code="unavailable", detail="The guard does not permit it, and does not say why.")]
        return answer
    if status != OK:
        return f"the answer permits with HTTP {status}, which no guard does"
    if answer.session_id != question.session_id:
        return "the answer permits, and is about another session"
    if answer.position is None or answer.position < (question.min_seq or 0):
        return "the answer permits, and does not know of the log position it was to know of"
    if doubt := question.doubt(answer):
        return f"the answer permits, and {doubt}"
    return answer


def refusal(kind: type[A], session_id: Any, code: Code, detail: str) -> A:
    """Make an answer that refuses."""
    answer = kind(reasons=[Reason(code=code, detail=detail)])
    answer.session_id = session_id if isinstance(session_id, str) else None
    return answer


def _listed(names: Iterable[str]) -> Any:
    # A string is refused as what it is, and not taken for a list of its letters.
    if isinstance(names, str) or not isinstance(names, Iterable):
        return names
    return list(names)


def _body(fields: dict[str, Any], kind: type[Struct]) -> bytes:
    try:
        return _encode(msgspec.convert(_builtins(fields), kind))
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from None


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except ValueError as error:  # a surrogate, which no UTF-8 has
        raise Invalid(str(error)) from None


def _builtins(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, builtin_types=())
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(str(error)) from None
