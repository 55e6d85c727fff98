"""What can go wrong for the emitter and the listener; each message says what to do."""

from pathlib import Path


class ClientError(Exception):
    """Be the base of what the emitter and the listener raise."""


class BrokerError(ClientError):
    """Say that a broker, or a topic on it, cannot be used."""


class BrokerRefusal(BrokerError):
    """Say that the brokers do not let this client in, and will not by being asked again: password, certificate, …."""


class EmitterError(ClientError):
    """Be the base of what only the emitter raises."""


class Closed(EmitterError):
    """Say that the emitter has not been started, or has been closed."""


class StandingUnknown(EmitterError):
    """Say that nobody can tell how far the session's log has come, so that no position can be given out."""


class Backlog(EmitterError):
    """Say that so much waits to be acknowledged that nothing more is taken; the call has logged nothing."""


class Unacknowledged(EmitterError):
    """Say what is in the journal and has not been acknowledged; the next start publishes it.

    Args:
        message: the whole of it for people.
        count: how many records.
        first: the first one's `seq`.
        last: the last one's.
    """

    def __init__(self, message: str, count: int, first: int, last: int) -> None:
        super().__init__(message)
        self.count = count
        self.first = first
        self.last = last


class JournalError(EmitterError):
    """Say what is wrong with a journal.

    Args:
        path: the journal.
        problem: what is wrong, and what to do.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class JournalInUse(JournalError):
    """Say that another emitter, of this process or another, has the journal open, or writes the session to the file."""


class JournalBehind(JournalError):
    """Say that the session's log has gone on without this journal: it was lost, or is an older copy.

    Args:
        path: the journal.
        problem: what is wrong, and what to do.
        position: how far the log has come.
        own: how far the journal has.
    """

    def __init__(self, path: Path, problem: str, position: int, own: int) -> None:
        super().__init__(path, problem)
        self.position = position
        self.own = own


class JournalDamaged(JournalError):
    """Say that a file is no journal, or another session's, or not what was written."""


class JournalUnwritable(JournalError):
    """Say that the journal cannot be written: what was to be logged has no `seq` and will not be published."""
