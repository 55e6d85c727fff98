"""Records in a partition that is not their session's: they are not judged, and the right partition is told.

A session's records in two partitions are read by two tasks, of which neither knows all: the one that is asked may not
know a revocation that the other has read. So a task judges only records of sessions whose home partition is its own.
For any other record it writes a dead letter, and in the same transaction a note to the session's home partition of
`topics.misplaced`. Every task reads that topic beside the inputs, and takes a note for a record of the session that
could not be read: the session is refused until a checkpoint or a reconciliation after it is verified.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from sidecar.protocol.outputs import DeadLetter, Source
from sidecar.protocol.records import Hole
from sidecar.tail.fetching import Fetched
from sidecar.tail.homes import Homes
from sidecar.tail.messages import MAX_MESSAGE, Message

_SHOWN = 200
_OVERHEAD = 1024


class Note(Struct, frozen=True, kw_only=True):
    """Say where a record of a session was found; the message's key is the session."""

    topic: str
    partition: int
    offset: int
    partitioner: str


class Stray(Struct, frozen=True):
    """Name a session of which something is in a partition that is not its own, and the first such record."""

    session_id: str
    home: int
    source: Source


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


def session_of_key(key: bytes | None) -> str | None:
    """Return the session that a message's key names; None: it names none."""
    try:
        return key.decode() if key else None
    except UnicodeDecodeError:
        return None


def hole(session_id: str, message: Fetched) -> tuple[Hole, int]:
    """Return what stands for a record of a session that could not be read, and its digest.

    Args:
        session_id: the session.
        message: where the record was; two such records are never duplicates of each other.
    """
    place = f"{message.topic}/{message.partition}@{message.offset}"
    return Hole(session_id=session_id, seq=None), xxh3_64_intdigest(place.encode())


def letter(message: Fetched, session_id: str, seq: int | None, homes: Homes) -> DeadLetter:
    """Return the dead letter of a record that is in another partition than its session's.

    Args:
        message: the record as it was read.
        session_id: its session.
        seq: its position, if it has one.
        homes: knows the session's home partition.
    """
    key = repr(message.key[:_SHOWN]) if message.key is not None else "no key"
    return DeadLetter(
        reason=f"wrong partition: session {session_id[:_SHOWN]!r} (key {key}) belongs in partition"
        f" {homes.of(session_id)} of {message.topic} by the partitioner {homes.partitioner}, and this record was in"
        f" partition {message.partition}. It was not judged, and the session is refused until a checkpoint after it"
        f" is verified. Mend it: {homes.remedy()}",
        source=Source(message.topic, message.partition, message.offset),
        session_id=session_id,
        seq=seq,
        original=message.value or b"",
        key=message.key,
    )


def notes(strays: Iterable[Stray], topic: str, homes: Homes) -> list[Message]:
    """Return the messages that tell the home partitions of sessions, one for each session.

    Args:
        strays: the sessions.
        topic: `topics.misplaced`.
        homes: knows the partitioner.
    """
    messages = []
    for stray in strays:
        key = stray.session_id.encode()
        if len(key) > MAX_MESSAGE - _OVERHEAD:
            continue  # no broker takes it, and no question to the guard can be so long
        found = stray.source
        note = Note(topic=found.topic, partition=found.partition, offset=found.offset, partitioner=homes.partitioner)
        messages.append(Message(topic, key, _encode(note), stray.home, None))
    return messages


def read_note(message: Fetched, homes: Homes) -> str:
    """Return the session that a note is about.

    Args:
        message: from `topics.misplaced`.
        homes: knows whether it is in the right partition.

    Raises:
        ValueError: it is no note, or not for this partition; why, as a clause.
    """
    session_id = session_of_key(message.key)
    if session_id is None:
        raise ValueError("a note about a misplaced record needs the session's id as its key")
    try:
        _decode(message.value or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"no note about a misplaced record: {error}") from None
    if homes.of(session_id) != message.partition:
        # Not passed on: two replicas with different settings would send it to and fro for ever.
        raise ValueError(
            f"a note about session {session_id[:_SHOWN]!r} belongs in partition {homes.of(session_id)}: it was written"
            " by a replica with another kafka.partitioner, or before the number of partitions changed"
        )
    return session_id
