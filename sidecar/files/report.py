"""What a person reads: a finding as text, the summary after a check, and a reader's account."""

import re
from collections import Counter
from typing import TextIO

from msgspec import Struct, field
from rich.console import Console
from rich.table import Table

from sidecar.engine.rules import CATALOGUE
from sidecar.files.readers.account import Account, Compaction
from sidecar.protocol.outputs import Finding

SEVERITIES = ("critical", "error", "warning")
SHOWN = 20
"""How many unreadable lines, sessions, prohibitions, calls, … are listed; the rest is counted."""

_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|\n(?=.)", re.DOTALL)


class Tally(Struct):
    """Count what a check read and found."""

    kinds: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    severities: Counter[str] = field(default_factory=Counter)
    rules: Counter[tuple[str, str]] = field(default_factory=Counter)
    sessions: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, finding: Finding) -> None:
        """Count a finding by rule, severity and session."""
        self.severities[finding.severity] += 1
        self.rules[finding.severity, finding.rule] += 1
        self.sessions.setdefault(finding.session_id, Counter())[finding.severity] += 1


def finding_text(finding: Finding) -> str:
    """Return a finding as a short block for a person: what, where, why it matters, what to do, and the proof."""
    rule = CATALOGUE[finding.rule]
    source = finding.source
    where = f" ({source.topic}:{source.offset})" if source is not None else ""
    lines = [
        f"{finding.severity.upper()} {finding.rule}: {finding.subject.type} {_cut(finding.subject.id)},"
        f" session {_cut(finding.session_id)}, position {finding.position}{where}",
        f"  what:    {rule.meaning}",
        f"  why:     {rule.why}",
        f"  do:      {rule.remedy}",
        f"  witness: {_witness(finding)}",
    ]
    shown = {k: v for k, v in finding.evidence.items() if k not in ("witness", "witness_lines")}
    if shown:
        lines.append("  seen:    " + ", ".join(f"{name} {_value(value)}" for name, value in shown.items()))
    return "\n".join(map(plain, lines))


def plain(text: str) -> str:
    """Escape what would move the cursor, break the line or turn the direction: ids come from whoever wrote the log."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


def _witness(finding: Finding) -> str:
    positions = finding.evidence.get("witness") or [finding.position]
    lines = finding.evidence.get("witness_lines")
    text = "positions " + ", ".join(map(str, positions)) if len(positions) > 1 else f"position {positions[0]}"
    return f"{text} ({', '.join(lines)})" if lines else text


def _value(value: object) -> str:
    text = ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 300 else text[:299] + "…"


class Report:
    """Write the summary of a check for a person.

    Args:
        stderr: where it goes; tables are drawn for a terminal, plain columns for anything else.
        everything: list all of what is otherwise cut after `SHOWN` entries.
    """

    def __init__(self, stderr: TextIO, everything: bool = False) -> None:
        terminal = stderr.isatty()
        self.console = Console(file=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else 240)
        self._most = None if everything else SHOWN

    def say(self, text: str) -> None:
        """Write a line."""
        self.console.print(plain(text), soft_wrap=True)

    def table(self, title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        """Write rows under a title, cut after the first ones."""
        if not rows:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in columns:
            table.add_column(name, overflow="fold", justify="right" if name in _NUMBERS else "left")
        for row in rows[: self._most]:
            table.add_row(*(plain(_cut(str(value))) for value in row))
        self.say("")
        self.say(title)
        self.console.print(table)
        if self._most is not None and len(rows) > self._most:
            self.say(f"… and {len(rows) - self._most:,} more (--verbose lists them)")

    def summary(self, tally: Tally) -> None:
        """Write what was read and found."""
        read = sum(tally.kinds.values())
        self.say("")
        self.say(f"{_count(read, 'record')} read, {_count(tally.unreadable, 'line')} unreadable")
        self.table("Records by kind", ("records", "kind"), [(n, kind) for kind, n in tally.kinds.most_common()])
        self.findings(tally)

    def findings(self, tally: Tally) -> None:
        """Write the findings by rule and by session."""
        rules = [(n, severity, rule, CATALOGUE[rule].meaning) for (severity, rule), n in tally.rules.items()]
        rules.sort(key=lambda row: (SEVERITIES.index(row[1]), -row[0], row[2]))
        self.table("Findings by rule", ("findings", "severity", "rule", "meaning"), list(rules))
        sessions = sorted(tally.sessions.items(), key=lambda one: tuple(-one[1][level] for level in SEVERITIES))
        self.table(
            "Findings by session",
            (*SEVERITIES, "session"),
            [(*(found[level] for level in SEVERITIES), session) for session, found in sessions],
        )
        self.say("")
        if tally.rules:
            total = sum(tally.rules.values())
            levels = ", ".join(f"{tally.severities[level]} {level}" for level in SEVERITIES if tally.severities[level])
            self.say(f"{_count(total, 'finding')} ({levels}) in {_count(len(tally.sessions), 'session')}")
        else:
            self.say("no findings")

    def account(self, account: Account) -> None:
        """Write what a reader saw: coverage first, then what matters in it."""
        total = account.coverage
        unknown = sum(account.not_understood.values())
        self.say("")
        self.say(
            f"{_count(total.lines, 'line')} in {_count(len(account.files), 'file')},"
            f" {_count(account.sessions, 'session')}: {total.understood:,} understood ({total.share:.1%} coverage),"
            f" {unknown:,} not understood, {account.unreadable:,} unreadable"
        )
        self.table("Lines read, by kind", ("lines", "kind"), [(n, kind) for kind, n in account.kinds.most_common()])
        self.table(
            "Lines not understood, by type",
            ("lines", "type"),
            [(n, t) for t, n in account.not_understood.most_common()],
        )
        if len(account.files) > 1:
            rows = [(f"{one.share:.1%}", one.lines, name) for name, one in account.files.items()]
            self.table("Coverage by file", ("coverage", "lines", "file"), list(rows))
        self._compactions(account)
        self._prohibitions(account)
        self._repeats(account)
        self.table("Also seen", ("count", "what"), [(n, what) for what, n in account.notes.most_common()])

    def _compactions(self, account: Account) -> None:
        self.table(
            "Compactions (none has explicit edges: this format carries none, so every checkpoint is unverified)",
            ("no.", "at", "trigger", "tokens before", "after", "prohibitions", "checkpoint", "session", "remark"),
            [
                (
                    one.number,
                    f"{one.file}:{one.line}",
                    one.trigger or "not said",
                    _known(one.pre_tokens),
                    _known(one.post_tokens),
                    _survival(one),
                    one.checkpoint_id,
                    one.session_id,
                    one.problem or (f"{one.preserved} messages preserved" if one.preserved else ""),
                )
                for one in account.compactions
            ],
        )
        self.say("")
        if not account.compactions:
            self.say("no compactions")
        else:
            self.say(
                "With every such compaction come frontier_unverified (its checkpoint), resumed_unverified (the agent"
                " goes on from it)"
            )
            self.say("and, from the second on, unreconciled_recompaction.")

    def _prohibitions(self, account: Account) -> None:
        lost = [one for one in account.prohibitions if one.lost_at is not None]
        left = sum(one.withdrawn for one in account.prohibitions if one.lost_at is None)
        kept = len(account.prohibitions) - len(lost) - left
        rest = f", {left} on a branch that was left" if left else ""
        self.say("")
        self.say(
            f"{_count(len(account.prohibitions), 'prohibition')} typed by the user: {len(lost)} did not survive a"
            f" compaction, {kept} did or met none{rest}. Found and compared as text: candidates, to be looked at by a"
            " person"
        )
        self.table(
            "Prohibitions that did not survive",
            ("compaction", "lost at", "said at", "text"),
            [(one.lost_at, f"line {one.lost_line}", f"{one.file}:{one.line}", one.text) for one in lost],
        )

    def _repeats(self, account: Account) -> None:
        for judged, title in (
            (True, "Calls executed again after a compaction, with a different result"),
            (False, "The same, of calls whose result means no new resource (not a finding)"),
        ):
            self.table(
                title,
                ("first", "again", "tool", "call", *(() if judged else ("because",))),
                [
                    (f"{one.file}:{one.first_line}", f"line {one.again_line}", one.tool, one.call, *(
                        () if judged else (one.why,)
                    ))
                    for one in account.repeats
                    if one.judged is judged
                ],
            )  # fmt: skip


_NUMBERS = frozenset(("records", "lines", "count", "findings", "no.", "coverage", "compaction", *SEVERITIES))


def _survival(one: Compaction) -> str:
    if one.problem is not None and one.summary_line is None:
        return f"{one.prohibitions} in force, unverifiable"
    return f"{one.survived} of {one.prohibitions} survived"


def _known(value: int | None) -> str:
    return "not said" if value is None else f"{value:,}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
