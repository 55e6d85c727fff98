"""What the demo shows: plain lines where nobody watches, colours and a live line on a terminal."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from sidecar.demo.score import STRAY, Row
from sidecar.engine.rules import CATALOGUE
from sidecar.protocol.outputs import Finding

_FIGURES = ("sessions", "planted", "flagged", "missing", "unexpected")
_WIDE = 110
_LOG_WIDTH = 160
_COLOURS = {"warning": "yellow", "error": "red", "critical": "bold white on red"}


class Screen:
    """Write to a console.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        if not console.is_terminal:
            console.width = _LOG_WIDTH  # a log has none
        self._console = console
        self._status: Status | None = None

    def say(self, *lines: str) -> None:
        """Print lines as they are."""
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)

    def finding(self, finding: Finding) -> None:
        """Print a finding, one line: when, how bad, which rule, whose session, about what, and what that means."""
        when = (finding.detected_at or datetime.now(UTC)).astimezone(UTC)
        line = Text.assemble(
            (f"{when:%H:%M:%S}.{when.microsecond // 1000:03d} ", "dim"),
            (f"{finding.severity:<8}", _COLOURS[finding.severity]),
            f" {finding.rule:<25} ",
            (f"{finding.session_id:<18} ", "cyan"),
            f"{finding.subject.type} {finding.subject.id}: ",
            (CATALOGUE[finding.rule].meaning, "dim"),
        )
        if self._console.is_terminal:
            line.truncate(self._console.width, overflow="ellipsis")
        self._console.print(line, soft_wrap=True)

    def progress(self, text: str) -> None:
        """Show how far it is, where somebody watches."""
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(Text(text))
            self._status.start()
        self._status.update(Text(text))

    def end_progress(self) -> None:
        """Take the live line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def table(self, rows: Sequence[Row]) -> None:
        """Print what was planted against what was flagged."""
        # On a narrow terminal the figures matter more than the rules' names.
        wide = self._console.width >= _WIDE
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, pad_edge=False)
        table.add_column("fault", no_wrap=True)
        for name in _FIGURES:
            table.add_column(name, justify="right", no_wrap=True)
        if wide:
            table.add_column("by rule", overflow="fold")
        total = Row("all")
        for row in rows:
            self._add(table, row, wide)
            if row.fault == STRAY:  # these are no findings, and their sessions have been counted by their faults
                continue
            for name in _FIGURES:
                setattr(total, name, getattr(total, name) + getattr(row, name))
        table.add_section()
        self._add(table, total, wide)
        self.say("", "Planted against flagged", "")
        self._console.print(table)
        self.say("")

    @staticmethod
    def _add(table: Table, row: Row, wide: bool) -> None:
        figures = {name: getattr(row, name) for name in _FIGURES}
        cells = [
            Text(str(n), style="bold red" if n and name in ("missing", "unexpected") else "")
            for name, n in figures.items()
        ]
        table.add_row(row.fault, *cells, *([" ".join(row.rules)] if wide else []))
