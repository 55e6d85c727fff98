"""The rule catalogue as people and programs read it: table, explanation, JSON, Markdown, schemas."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sidecar.engine.rules import CATALOGUE, HALTING, Family, Rule
from sidecar.protocol import asyncapi as _asyncapi
from sidecar.protocol import schema as _schema

FAMILIES: dict[Family, str] = {
    "frontier": "Does the checkpoint say what the log says about authorizations?",
    "referents": "Do the values that a summary speaks of still exist?",
    "floors": "Did what must survive a summary survive it?",
    "retention": "How much do stacked summaries lose, and who measured it?",
    "recovery": "Was the resume safe, and was it reconciled where it was not?",
    "order": "Is the log itself whole?",
}
"""The question each family of rules answers, in the order of the documentation."""

_PREAMBLE = """\
# Rules

<!-- Made from sidecar/engine/rules.py by `make docs`; do not edit. -->

Every finding names one of these rules. `sidecar rules` prints this list, `sidecar rules NAME` one entry, and
`sidecar rules --json` all of it for programs. When exactly a rule fires is said in [protocol.md](protocol.md#rules).
"""


def as_json() -> list[dict[str, Any]]:
    """List every rule as plain data; `halts` tells whether it opens a halt."""
    return [{**msgspec.to_builtins(rule), "halts": halts(rule)} for rule in CATALOGUE.values()]


def halts(rule: Rule) -> bool:
    """Tell whether a finding of this rule opens a halt as a rule (`retention_below_floor` has an exception)."""
    return rule.disposition in HALTING


def rows() -> list[tuple[str, str, str, str, str]]:
    """List name, subject, severity, disposition and meaning of every rule, by family."""
    return [
        (rule.name, rule.subject, rule.severity, rule.disposition, rule.meaning)
        for family in FAMILIES
        for rule in CATALOGUE.values()
        if rule.family == family
    ]


def table() -> str:
    """Lay the rules out as a table of plain text: a heading, then a line for each."""
    lines = [("RULE", "SUBJECT", "SEVERITY", "DISPOSITION"), *(row[:4] for row in rows())]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def explain(name: str) -> str:
    """Explain one rule in plain text.

    Args:
        name: the rule's name.

    Raises:
        KeyError: there is no rule of that name.
    """
    rule = CATALOGUE[name]
    halt = "opens a halt" if halts(rule) else "opens no halt"
    lines = [
        rule.name,
        f"  {rule.severity}, about {_a(rule.subject)}; disposition {rule.disposition}, {halt}; {rule.maturity}",
        "",
        f"  What it means   {rule.meaning}",
        f"  Why it matters  {rule.why}",
        f"  What to do      {rule.remedy}",
        f"  From            {', '.join(rule.texts)}",
    ]
    if exception := _EXCEPTIONS.get(name):
        lines.insert(2, f"  {exception}")
    return "\n".join(lines)


_EXCEPTIONS = {
    "frontier_ahead_of_log": "The subject is the node where a summary makes the claim.",
    "constraint_dropped": "Critical where the node is a root.",
    "retention_below_floor": "Where the tree can be flattened: flatten_and_defer_gc, and no halt opens.",
}


def markdown_table() -> str:
    """Lay the rules out as a Markdown table."""
    head = "| rule | subject | severity | disposition | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{name}` | {subject} | {severity} | `{disposition}` | {meaning} |\n"
        for name, subject, severity, disposition, meaning in rows()
    )


def catalogue_markdown() -> str:
    """Write the whole of docs/rules.md."""
    parts = [_PREAMBLE, markdown_table()]
    for family, question in FAMILIES.items():
        parts.append(f"## {family.capitalize()}\n\n{question}\n")
        parts += [_markdown(rule) for rule in CATALOGUE.values() if rule.family == family]
    return "\n".join(parts)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _markdown(rule: Rule) -> str:
    halt = "opens a halt" if halts(rule) else "opens no halt"
    exception = _EXCEPTIONS.get(rule.name)
    return (
        f"### `{rule.name}`\n\n"
        f"{rule.severity} · about {_a(rule.subject)} · disposition `{rule.disposition}` ({halt}) · {rule.maturity}\n\n"
        f"{rule.meaning}{' ' + exception if exception else ''}\n\n"
        f"- **Why it matters.** {rule.why}\n"
        f"- **What to do.** {rule.remedy}\n"
        f"- **From.** {', '.join(rule.texts)}\n"
    )


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema document, with the catalogue's rule names."""
    return _schema.json_schema(CATALOGUE)


def asyncapi(topics: Mapping[str, str] | None = None, partitions: int | None = None) -> dict[str, Any]:
    """Make the AsyncAPI document, with the catalogue's rules.

    Args:
        topics: topic names by channel name, where they are not the defaults.
        partitions: how many partitions every topic has; absent: not said.
    """
    return _asyncapi.asyncapi(CATALOGUE, markdown_table(), topics, partitions)
