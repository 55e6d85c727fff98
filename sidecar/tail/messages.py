"""Findings, halts and dead letters as messages, made small enough where a broker will not take them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from sidecar.protocol.decode import Unreadable
from sidecar.protocol.outputs import DeadLetter, Finding, Halt, SessionRecord, Source, Subject
from sidecar.tail.fetching import Fetched

_encode = msgspec.json.Encoder().encode

MAX_MESSAGE = 1024 * 1024 - 1024
"""Bytes of key and value that a broker takes by default, less what a batch adds."""

_FEWEST = 1024
_REASON = 500
_WITNESSES = 32
_IDS = 250


class Message(Struct):
    """Carry one output to its topic; `item` is what the value was made from (a snapshot: nothing that can shrink)."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    item: Finding | Halt | SessionRecord | DeadLetter | None
    limit: int = MAX_MESSAGE


def findings_as_messages(
    findings: Iterable[Finding], topic: str, partition: int | None, now: datetime
) -> list[Message]:
    """Stamp findings with the time and return them as messages keyed by session."""
    messages = []
    for finding in findings:
        finding.detected_at = now
        messages.append(Message(topic, finding.session_id.encode(), _encode(finding), partition, finding))
    return messages


def halts_as_messages(halts: Iterable[Halt], topic: str, partition: int | None, now: datetime) -> list[Message]:
    """Stamp halts with the time and return them as messages keyed by session, which the topic is compacted by."""
    messages = []
    for halt in halts:
        halt.detected_at = now
        messages.append(Message(topic, halt.session_id.encode(), _encode(halt), partition, halt))
    return messages


def sessions_as_messages(
    sessions: Iterable[SessionRecord], topic: str, partition: int | None, now: datetime
) -> list[Message]:
    """Stamp where sessions stand with the time, keyed by session, which the topic is compacted by."""
    messages = []
    for session in sessions:
        session.detected_at = now
        messages.append(Message(topic, session.session_id.encode(), _encode(session), partition, session))
    return messages


def forgotten_as_messages(session_ids: Iterable[str], topic: str, partition: int | None) -> list[Message]:
    """Return messages without a value: they end what the topic says of sessions that are forgotten."""
    return [Message(topic, session_id.encode(), None, partition, None) for session_id in session_ids]


def letters_as_messages(
    letters: Iterable[DeadLetter], topic: str, partition: int | None, now: datetime
) -> list[Message]:
    """Stamp dead letters with the time and return them as messages under the key of the original."""
    messages = []
    for letter in letters:
        letter.detected_at = now
        messages.append(Message(topic, letter.key, _encode(letter), partition, letter))
    return messages


def dead_letter(record: Fetched, bad: Unreadable) -> DeadLetter:
    """Keep a message that could not be read: why, where it was, its key and its bytes."""
    return DeadLetter(
        reason=bad.reason,
        source=Source(record.topic, record.partition, record.offset),
        session_id=bad.session_id,
        seq=bad.seq,
        original=record.value or b"",
        key=record.key,
    )


def shrunk(message: Message) -> bool:
    """Make a message that a broker found too large smaller, in place; say in it what was left out.

    Each call halves what is allowed, so that repeated refusals end. What is left out of an output is still in the
    log that it points to: a dead letter's source, a finding's source and witness.

    Returns:
        Whether it is smaller now.
    """
    if message.item is None:
        return False
    size = len(message.value or b"") + len(message.key or b"")
    message.limit = max(min(message.limit, size // 2 if size <= message.limit else message.limit), _FEWEST)
    item, most = message.item, message.limit // 16
    if isinstance(item, DeadLetter):
        if message.key is not None and len(message.key) > most:
            message.key = None
        message.value = _encode(_short_letter(item, message.limit - len(message.key or b""), most))
    else:
        # Ids are of any length, and the halts topic, being compacted, takes no message without a key.
        message.key = _cut(item.session_id, most).encode()
        message.value = _encode(_short(item, most))
    return len(message.value or b"") + len(message.key or b"") < size


def _short_letter(letter: DeadLetter, room: int, most: int) -> DeadLetter:
    whole = len(letter.original)
    short = msgspec.structs.replace(
        letter,
        reason=letter.reason[:_REASON],
        session_id=None if letter.session_id is None else _cut(letter.session_id, most),
        key=None if letter.key is None or len(letter.key) > most else letter.key,
        original=b"",
    )
    note = " (the original has {} bytes, too many for the topic: the first {} are kept)"
    spare = room - len(_encode(short)) - len(note) - 40
    kept = max(0, spare * 3 // 4 - 3)  # base64
    short.original = letter.original[:kept]
    short.reason += note.format(whole, len(short.original))
    return short


def _short(item: Finding | Halt | SessionRecord, most: int) -> Finding | Halt | SessionRecord:
    if isinstance(item, Finding):
        return _short_finding(item, most)
    return _short_halt(item, most) if isinstance(item, Halt) else _short_session(item, most)


def _short_finding(finding: Finding, most: int) -> Finding:
    evidence: dict[str, Any] = {"truncated": "the evidence was too large for the topic"}
    witness = finding.evidence.get("witness")
    if isinstance(witness, list | tuple):
        evidence["witness"] = list(witness[:_WITNESSES])
    return msgspec.structs.replace(
        finding,
        session_id=_cut(finding.session_id, most),
        subject=Subject(finding.subject.type, _cut(finding.subject.id, most)),
        evidence=evidence,
        **_short_origin(finding, most),
    )


def _short_session(session: SessionRecord, most: int) -> SessionRecord:
    checkpoint = session.checkpoint
    if checkpoint is not None:
        checkpoint = msgspec.structs.replace(
            checkpoint,
            checkpoint_id=_cut(checkpoint.checkpoint_id, most),
            node_id=_cut(checkpoint.node_id, most),
        )
    return msgspec.structs.replace(
        session,
        session_id=_cut(session.session_id, most),
        checkpoint=checkpoint,
        open_halts=session.open_halts[-_IDS:],
        survival=[],
        **_short_origin(session, most),
    )


def _short_origin(item: Finding | SessionRecord, most: int) -> dict[str, str]:
    names = ("tenant", "agent", "model")
    return {name: _cut(value, most) for name in names if isinstance(value := getattr(item, name), str)}


def _short_halt(halt: Halt, most: int) -> Halt:
    # Which halts are open matters less than that some are.
    return msgspec.structs.replace(
        halt,
        session_id=_cut(halt.session_id, most),
        checkpoint_id=None if halt.checkpoint_id is None else _cut(halt.checkpoint_id, most),
        reexpand_from=_cut(halt.reexpand_from, most) if isinstance(halt.reexpand_from, str) else halt.reexpand_from,
        finding_ids=halt.finding_ids[:_IDS],
        open_halts=halt.open_halts[-_IDS:],
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
