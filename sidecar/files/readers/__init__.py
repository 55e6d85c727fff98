"""Readers for the frameworks' own session formats, by name.

A reader turns lines into protocol records and keeps an account of what it saw. A new format is a module here and a
line in `READERS`.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from sidecar.files.jsonl import Line
from sidecar.files.readers.account import Account
from sidecar.files.readers.claude_code import ClaudeCode
from sidecar.files.readers.reading import Arrival, Reading
from sidecar.protocol.outputs import Source

__all__ = ["READERS", "Account", "Arrival", "Reader", "Reading"]


class Reader(Protocol):
    """Turn the lines of one format into protocol records."""

    def read(self, line: Line) -> Reading:
        """Return the records that a line gives, and why it could not be read (if so)."""

    def finish(self) -> Iterable[Arrival]:
        """Return the records that were held back until the end of the input."""

    def where(self, session_id: str, position: int) -> Source | None:
        """Return the line that a log position stands for."""

    @property
    def account(self) -> Account:
        """Return what was read so far, what not, and what was seen in it."""


READERS: dict[str, Callable[[], Reader]] = {"claude-code": ClaudeCode}
"""Every reader by the name that `--format` takes."""
