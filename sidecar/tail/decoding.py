"""Messages of one task's partitions as arrivals for its engine, with what is wrong with the others."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from sidecar.engine.fold import Arrival
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import DeadLetter, Source
from sidecar.protocol.records import Hole
from sidecar.tail import misplaced
from sidecar.tail.fetching import Fetched
from sidecar.tail.homes import Homes
from sidecar.tail.messages import dead_letter


class Refused(Struct):
    """Hold what of a batch was not taken as it is."""

    letters: list[DeadLetter] = field(default_factory=list)
    strays: dict[str, misplaced.Stray] = field(default_factory=dict)
    """Sessions with a record that is in another partition than theirs, by id."""
    misplaced: Counter[str] = field(default_factory=Counter)
    """Such records, by topic; each is among the letters."""


class Decoder:
    """Decode the messages of one partition number.

    Args:
        number: the partition number.
        homes: knows the sessions' home partitions; None: every session is at home.
        notes: the topic that tells of misplaced records (`topics.misplaced`).
    """

    def __init__(self, number: int, homes: Homes | None = None, notes: str | None = None) -> None:
        self._number = number
        self._homes = homes
        self._notes = notes

    def decode(self, topic: str, batch: Sequence[Fetched], refused: Refused) -> tuple[list[Arrival], Sequence[Fetched]]:
        """Decode a batch of one topic.

        What cannot be read becomes a dead letter and, where its session is known, a hole in that session. What is in
        another partition than its session's becomes a dead letter and a stray.

        Args:
            topic: the topic.
            batch: its messages.
            refused: takes what is wrong with some.

        Returns:
            The arrivals, and the message of each.
        """
        if topic == self._notes:
            return self._decode_notes(batch, refused)
        read, homes, number = decode, self._homes, self._number
        arrivals: list[Arrival] = []
        dropped: set[int] = set()
        append = arrivals.append
        for message in batch:
            try:
                record, digest = read(message.value)
            except Unreadable as bad:
                session_id = bad.session_id or misplaced.session_of_key(message.key)
                if session_id is not None and homes is not None and homes.of(session_id) != number:
                    self._refuse_misplaced(message, session_id, bad.seq, homes, refused)
                    dropped.add(message.offset)
                    continue
                refused.letters.append(dead_letter(message, bad))
                if session_id is None:
                    dropped.add(message.offset)
                elif bad.seq is None:
                    append((*misplaced.hole(session_id, message), message))
                else:
                    append((Hole(session_id=session_id, seq=bad.seq), 0, message))
                continue
            if homes is not None and homes.of(record.session_id) != number:
                self._refuse_misplaced(message, record.session_id, record.seq, homes, refused)
                dropped.add(message.offset)
                continue
            append((record, digest, message))
        return arrivals, [message for message in batch if message.offset not in dropped] if dropped else batch

    def _refuse_misplaced(
        self, message: Fetched, session_id: str, seq: int | None, homes: Homes, refused: Refused
    ) -> None:
        refused.letters.append(misplaced.letter(message, session_id, seq, homes))
        refused.misplaced[message.topic] += 1
        if session_id not in refused.strays:
            source = Source(message.topic, message.partition, message.offset)
            refused.strays[session_id] = misplaced.Stray(session_id, homes.of(session_id), source)

    def _decode_notes(self, batch: Sequence[Fetched], refused: Refused) -> tuple[list[Arrival], Sequence[Fetched]]:
        arrivals: list[Arrival] = []
        taken: list[Fetched] = []
        assert self._homes is not None
        for message in batch:
            try:
                session_id = misplaced.read_note(message, self._homes)
            except ValueError as error:
                refused.letters.append(dead_letter(message, Unreadable(str(error))))
                continue
            arrivals.append((*misplaced.hole(session_id, message), message))
            taken.append(message)
        return arrivals, taken
