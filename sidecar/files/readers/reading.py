"""What a reader makes of one line."""

from typing import NamedTuple

from sidecar.protocol.outputs import Source
from sidecar.protocol.records import Record

Arrival = tuple[Record, int, Source]


class Reading(NamedTuple):
    """Hold the records that a line gives, and why the line could not be read (None: it could)."""

    arrivals: list[Arrival]
    problem: str | None = None
