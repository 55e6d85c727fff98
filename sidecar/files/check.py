"""`sidecar check`: read files as one stream, judge them to their end, and say what was found."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO, Literal, TextIO

import msgspec
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn

from sidecar.engine.fold import Engine, Outcome
from sidecar.engine.limits import Limits
from sidecar.files.jsonl import MAX_LINE, InputError, Inputs, Line, explain
from sidecar.files.outbox import leave_quietly
from sidecar.files.paths import shown
from sidecar.files.readers import READERS, Arrival, Reader
from sidecar.files.report import SHOWN, Report, Tally, finding_text
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import Finding, Source
from sidecar.protocol.records import MAX_INT, Hole, Record

BATCH = 1000
PROGRESS_FROM = 8 * 1024 * 1024
"""Smallest input, in bytes, for which a progress bar is drawn."""

CLEAN, FOUND, UNUSABLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit codes: no error or critical finding; some; input that cannot be used; Ctrl-C; the reader of the output left."""

_encode = msgspec.json.Encoder().encode
_LIKE_A_RECORD = (
    '{"kind": "authorization", "session_id": "s1", "seq": 1, "action_id": "deploy", "precondition_id": "approval-7"}'
)


def check(
    paths: Sequence[str],
    *,
    output: Literal["findings", "halts", "sessions"] = "findings",
    format: Literal["json", "text"] = "json",
    strict: bool = False,
    reader: str = "protocol",
    limits: Limits | None = None,
    stdout: TextIO = sys.stdout,
    stderr: TextIO = sys.stderr,
    stdin: BinaryIO | None = None,
    verbose: bool = False,
    max_line: int = MAX_LINE,
) -> int:
    """Check files against every rule; the end of the input is the only waiting bound.

    Args:
        paths: JSONL files, read as one stream in this order; `-` is standard input.
        output: what to write to standard output, one JSON object a line.
        format: `text` writes findings as short blocks for a person.
        strict: make unreadable lines exit with 2.
        reader: `protocol`, or a name in `readers.READERS`.
        limits: what the engine keeps; its waiting bounds do not matter here.
        verbose: name every unreadable line, and cut no list in the summary.
        max_line: longest line in bytes.

    Returns:
        The exit code: 0 no error or critical finding, 1 some, 2 unusable input, 130 interrupted, 141 broken pipe.
    """
    run = _Run(output, format, strict, reader, limits or Limits(), stdout, stderr, verbose)
    try:
        return run.run(paths, stdin, max_line)
    except InputError as error:
        run.report.say(f"error: {shown(str(error))}")
        return UNUSABLE
    except BrokenPipeError:
        leave_quietly(stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        stderr.write("interrupted\n")  # not by way of the console, which may have been interrupted while writing
        return INTERRUPTED


class _Run:
    """Hold one check while it runs."""

    def __init__(
        self,
        output: str,
        format: str,
        strict: bool,
        reader: str,
        limits: Limits,
        stdout: TextIO,
        stderr: TextIO,
        verbose: bool,
    ) -> None:
        self._output = output
        self._text = format == "text"
        self._strict = strict
        self._reader: Reader | None = None if reader == "protocol" else READERS[reader]()
        self._engine = Engine(msgspec.structs.replace(limits, max_waiting=MAX_INT))
        self._stdout = stdout
        self._stderr = stderr
        self._verbose = verbose
        self._tally = Tally()
        self._transcript: str | None = None
        self.report = Report(stderr, verbose)

    def run(self, paths: Sequence[str], stdin: BinaryIO | None, max_line: int) -> int:
        inputs = Inputs(paths, max_line, stdin)
        lines: Iterable[Line] = inputs
        if any(shown(path) != path for path in paths):
            lines = (line._replace(file=shown(line.file)) for line in inputs)
        arrivals = self._protocol(lines) if self._reader is None else self._read(lines, self._reader)
        with ExitStack() as stack:
            progress = self._progress(inputs, stack)
            while batch := list(islice(arrivals, BATCH)):
                self._write(self._engine.fold(batch, 0.0))
                if progress is not None:
                    progress[0].update(progress[1], completed=inputs.position)
        self._write(self._engine.finish())
        if self._output == "sessions":
            for state in self._engine.states():
                self._line(_encode(state))
        self._stdout.flush()
        return self._conclude()

    def _progress(self, inputs: Inputs, stack: ExitStack) -> tuple[Progress, TaskID] | None:
        if not self._stderr.isatty() or inputs.size is None or inputs.size < PROGRESS_FROM:
            return None
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        progress = stack.enter_context(Progress(*columns, console=self.report.console, transient=True))
        return progress, progress.add_task("", total=inputs.size)

    # --- in ------------------------------------------------------------------------------------------------------

    def _protocol(self, lines: Iterable[Line]) -> Iterator[Arrival]:
        kinds = self._tally.kinds
        for line in lines:
            if line.problem is not None:
                self._unreadable(line, line.problem)
                continue
            try:
                record, digest = decode(line.raw)
            except Unreadable as error:
                self._unreadable(line, explain(line.raw, error.reason))
                if error.session_id is not None:
                    hole = Hole(session_id=error.session_id, seq=error.seq)
                    yield hole, 0, Source(line.file, 0, line.number)
                continue
            kinds[_kind(record)] += 1
            yield record, digest, Source(line.file, 0, line.number)

    def _read(self, lines: Iterable[Line], reader: Reader) -> Iterator[Arrival]:
        for line in lines:
            reading = reader.read(line)
            if reading.problem is not None:
                self._unreadable(line, reading.problem)
            yield from reading.arrivals
        yield from reader.finish()

    def _unreadable(self, line: Line, reason: str) -> None:
        self._tally.unreadable += 1
        if self._verbose or self._tally.unreadable <= SHOWN:
            self.report.say(f"{line.file}:{line.number}: unreadable: {reason}")
        if self._transcript is None and self._reader is None and _like_a_transcript(line.raw):
            self._transcript = line.file

    # --- out -----------------------------------------------------------------------------------------------------

    def _write(self, outcome: Outcome) -> None:
        now = datetime.now(UTC)
        for letter in outcome.letters:
            self._unreadable(Line(letter.source.topic, letter.source.offset, b""), letter.reason)
        for finding in outcome.findings:
            self._tally.count(finding)
            if self._output == "findings":
                finding.detected_at = now
                self._locate(finding)
                self._line(finding_text(finding).encode() if self._text else _encode(finding))
        if self._output == "halts":
            for halt in outcome.halts:
                halt.detected_at = now
                self._line(_encode(halt))
        if outcome.findings or outcome.halts:
            self._stdout.flush()

    def _locate(self, finding: Finding) -> None:
        """Name the lines of the witness's positions, where the log is not the file itself."""
        if self._reader is None:
            return
        positions = finding.evidence.get("witness") or [finding.position]
        found = [self._reader.where(finding.session_id, position) for position in positions]
        finding.evidence["witness_lines"] = [f"{one.topic}:{one.offset}" for one in found if one is not None]

    def _line(self, line: bytes) -> None:
        buffer: Any = getattr(self._stdout, "buffer", None)
        if buffer is not None:  # JSON is UTF-8, whatever the locale says
            buffer.write(line + b"\n")
        else:
            self._stdout.write(line.decode() + "\n")

    def _conclude(self) -> int:
        tally = self._tally
        if not self._verbose and tally.unreadable > SHOWN:
            self.report.say(f"… and {tally.unreadable - SHOWN:,} more unreadable lines (--verbose names them)")
        if self._reader is None:
            if not sum(tally.kinds.values()):
                return self._nothing()
            self.report.summary(tally)
        else:
            account = self._reader.account
            if not account.coverage.lines:
                self.report.say("error: there is nothing in the input")
                return UNUSABLE
            self.report.account(account)
            self.report.findings(tally)
            if poor := account.poorly_understood():
                for name in poor:
                    share = account.files[name].share
                    self.report.say(
                        f"error: only {share:.1%} of {name} was understood; nothing here says that it is clean"
                    )
                return UNUSABLE
        if self._strict and tally.unreadable:
            self.report.say(f"error: {tally.unreadable:,} unreadable lines (--strict)")
            return UNUSABLE
        return FOUND if tally.severities["error"] or tally.severities["critical"] else CLEAN

    def _nothing(self) -> int:
        self.report.say("error: no readable record in the input. A record is one JSON object a line, such as")
        self.report.say(f"  {_LIKE_A_RECORD}")
        if self._transcript is not None:
            self.report.say(f"{self._transcript} looks like a Claude Code transcript: try --format claude-code")
        return UNUSABLE


def _kind(record: Record) -> str:
    tag = record.__struct_config__.tag
    return tag if isinstance(tag, str) else "other (opaque)"


def _like_a_transcript(raw: bytes) -> bool:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return isinstance(fields, dict) and "type" in fields and not fields.keys().isdisjoint(_TRANSCRIPT)


_TRANSCRIPT = frozenset(("sessionId", "parentUuid", "leafUuid", "uuid", "isSidechain"))
