"""What a reader tells about a file besides the findings: what was read, what was not, and what was seen in it."""

from collections import Counter

from msgspec import Struct, field

LEAST_COVERAGE = 0.5
"""A file of which a smaller part was understood is not called clean, whatever the findings (exit code 2)."""


class Coverage(Struct):
    """Count a file's lines, and how many of them were understood."""

    lines: int = 0
    understood: int = 0

    @property
    def share(self) -> float:
        """Return the understood part, from 0 to 1; an empty file counts as not understood."""
        return self.understood / self.lines if self.lines else 0.0


class Compaction(Struct, kw_only=True):
    """Tell where a context was compacted, and whether there is a summary to check."""

    session_id: str
    number: int
    checkpoint_id: str
    file: str
    line: int
    summary_line: int | None
    trigger: str | None
    pre_tokens: int | None
    post_tokens: int | None
    problem: str | None
    preserved: int
    prohibitions: int
    survived: int


class Prohibition(Struct, kw_only=True):
    """Tell a prohibition of the user's, and at which compaction the check no longer found it (None: it survived).

    `withdrawn`: it was said on a branch of the conversation that the user has left.
    """

    session_id: str
    constraint_id: str
    file: str
    line: int
    text: str
    lost_at: int | None = None
    lost_line: int | None = None
    withdrawn: bool = False


class Repeat(Struct, kw_only=True):
    """Tell a call that was executed again after a compaction and returned something else.

    `judged`: the engine was told (`provenance_divergence`); if not, `why` says why such a difference means nothing.
    """

    session_id: str
    tool: str
    call: str
    call_key: str
    file: str
    first_line: int
    again_line: int
    judged: bool
    why: str | None = None


class Account(Struct, kw_only=True):
    """Hold the whole account of a run over one format."""

    kinds: Counter[str] = field(default_factory=Counter)
    not_understood: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    files: dict[str, Coverage] = field(default_factory=dict)
    sessions: int = 0
    compactions: list[Compaction] = field(default_factory=list)
    prohibitions: list[Prohibition] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def coverage(self) -> Coverage:
        """Return the figures of all files together."""
        return Coverage(
            lines=sum(file.lines for file in self.files.values()),
            understood=sum(file.understood for file in self.files.values()),
        )

    def poorly_understood(self) -> list[str]:
        """Return the files of which most was not understood."""
        return [name for name, file in self.files.items() if file.share < LEAST_COVERAGE]
