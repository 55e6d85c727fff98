"""What becomes of lines that are no records: dead letters, which never carry a stranger's text away.

Whoever may write to a watched folder may put any file there that he cannot read himself (a hard link will do), and
the dead letters have other readers than that file. So the bytes of a line are kept only where it is, by all
appearance, an agent's: a record of its file could be read before, or it names a kind and a session. Of other lines
the file still has the bytes; the letter has the line's number, its length and a short digest.

Lines come as fast as somebody writes them. Beyond the first `ALONE` of a file at one look, those without a session
share one letter.
"""

import hashlib

import msgspec
from msgspec import Struct

from sidecar.files.jsonl import Line
from sidecar.protocol.outputs import DeadLetter, Source

ALONE = 100
"""How many lines of a file without a session get a letter each, at one look at the files."""


class _Head(Struct):
    kind: str


class _Run(Struct):
    """Collect the lines of a file that share a letter."""

    first: Line
    reason: str
    count: int = 0
    last: int = 0
    lines: list[bytes] = []


class Letters:
    """Collect the dead letters of one look at the files."""

    def __init__(self) -> None:
        self.lines = 0
        self._letters: list[DeadLetter] = []
        self._alone: dict[str, int] = {}
        self._runs: dict[str, _Run] = {}

    def add(self, line: Line, reason: str, session_id: str | None, seq: int | None) -> None:
        """Take a line that cannot be read.

        Args:
            line: the line.
            reason: why not.
            session_id: whose it is, if that can be read.
            seq: the position it takes, if that can be read.
        """
        self.lines += 1
        if session_id is None:
            alone = self._alone[line.file] = self._alone.get(line.file, 0) + 1
            if alone > ALONE:
                self._share(line, reason)
                return
        original, said = line.raw, ""
        if not _kept(line, session_id):
            original, said = b"", _left(line.raw)
        source = Source(line.file, 0, line.number)
        self._letters.append(
            DeadLetter(reason=reason + said, source=source, session_id=session_id, seq=seq, original=original)
        )

    def take(self) -> list[DeadLetter]:
        """Return the letters."""
        return self._letters + [_shared(run) for run in self._runs.values()]

    def _share(self, line: Line, reason: str) -> None:
        run = self._runs.get(line.file)
        if run is None:
            run = self._runs[line.file] = _Run(line, reason)
        run.count += 1
        run.last = line.number
        run.lines.append(line.raw)


def _kept(line: Line, session_id: str | None) -> bool:
    """Tell whether a line is an agent's, by all appearance."""
    if line.origin is not None and line.origin.records:
        return True
    if session_id is None:
        return False
    try:
        msgspec.json.decode(line.raw, type=_Head)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


def _left(raw: bytes) -> str:
    digest = hashlib.sha256(raw).hexdigest()[:8]
    return (
        f". No record of this file could be read, so the bytes are not copied: {len(raw):,} of them, SHA-256 {digest}…"
    )


def _shared(run: _Run) -> DeadLetter:
    original, said = b"\n".join(run.lines), ""
    if not _kept(run.first, None):
        original, said = b"", _left(original)
    reason = f"{run.count:,} more lines, up to line {run.last}; the first: {run.reason}{said}"
    source = Source(run.first.file, 0, run.first.number)
    return DeadLetter(reason=reason, source=source, session_id=None, seq=None, original=original)
