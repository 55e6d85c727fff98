"""Know which sessions are halted, from the records of the halts topic."""

import logging

import msgspec

from sidecar.protocol.outputs import Halt

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(Halt).decode


class OpenHalt(msgspec.Struct, frozen=True):
    """Be a halt that is open now.

    `halt` is the record that opened it, or None where only a later record of the session is left, which names it.
    """

    session_id: str
    halt_id: str
    halt: Halt | None


class _Session(msgspec.Struct):
    """Hold what the newest record of a session says, and whether one that cannot be read came after it."""

    partition: int
    position: int
    open: dict[str, OpenHalt]
    doubtful: bool = False


class HaltView:
    """Hold the open halts of every session that has some, as the newest record of each session names them.

    A record that cannot be read may have opened a halt: its session counts as halted until a readable one comes.

    `unreadable` counts such records.
    """

    def __init__(self) -> None:
        self.unreadable = 0
        self._sessions: dict[str, _Session] = {}
        self._settled = False

    def apply(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> Halt | None:
        """Take one message in; those of one partition come in order.

        Returns:
            The record, if it is one.
        """
        named = key.decode(errors="replace") if key is not None else None
        if value is None:
            if named is not None:
                self._sessions.pop(named, None)
            return None
        try:
            halt = _decode(value)
            if named is not None and halt.session_id != named:
                raise ValueError(f"its key is {named!r}, and its session {halt.session_id!r}")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.unreadable += 1
            log.warning("%s/%d, offset %d: no halt record, %s", topic, partition, offset, error)
            if named is not None:
                self._sessions.setdefault(named, _Session(partition, 0, {})).doubtful = True
            return None
        self._take(partition, halt)
        return halt

    def settle(self) -> None:
        """Forget the sessions without open halts: from now on what comes is newer than what is known."""
        self._settled = True
        for session_id in [name for name in self._sessions if not self.halted(name)]:
            del self._sessions[session_id]

    def halted(self, session_id: str) -> bool:
        """Tell whether a session has an open halt, or may have one."""
        session = self._sessions.get(session_id)
        return session is not None and (bool(session.open) or session.doubtful)

    def of(self, session_id: str) -> tuple[OpenHalt, ...]:
        """Return a session's open halts."""
        session = self._sessions.get(session_id)
        return tuple(session.open.values()) if session is not None else ()

    def all(self) -> dict[str, tuple[OpenHalt, ...]]:
        """Return the sessions that are halted, and their open halts as far as they are known."""
        return {name: self.of(name) for name in self._sessions if self.halted(name)}

    def _take(self, partition: int, halt: Halt) -> None:
        before = self._sessions.get(halt.session_id)
        if before is not None and before.partition != partition:
            # A topic that was given more partitions has a session in two of them. There the log's position decides,
            # and where it does not, the halt. Within a partition the later record is the newer one.
            behind = halt.position < before.position
            if behind or (halt.position == before.position and before.open and not halt.open_halts):
                return
        opened: dict[str, OpenHalt] = {}
        for name in halt.open_halts:
            if name == halt.halt_id and halt.status == "halt":
                opened[name] = OpenHalt(halt.session_id, name, halt)
            else:
                known = before.open.get(name) if before is not None else None
                opened[name] = known or OpenHalt(halt.session_id, name, None)
        if opened or not self._settled:
            self._sessions[halt.session_id] = _Session(partition, halt.position, opened)
        else:
            self._sessions.pop(halt.session_id, None)
