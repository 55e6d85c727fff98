"""Who has to be allowed what on the brokers, and no more: plan it, print it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, get_args

from msgspec import Struct

from sidecar.config import FleetSettings, Settings, TailSettings, TopicSettings
from sidecar.tail.planned import plan as topics

Party = Literal["setup", "tail", "fleet", "agents", "listeners", "operators"]
Resource = Literal["topic", "group", "transactionalId"]
Pattern = Literal["literal", "prefix"]
Operation = Literal["Read", "Write", "Create", "Describe"]
Style = Literal["table", "yaml", "commands"]

PARTIES: tuple[Party, ...] = get_args(Party)

ABOUT: Mapping[Party, str] = {
    "setup": "whoever runs `sidecar topics --create` before the others are started",
    "tail": "`sidecar run`, with topics.create: false",
    "fleet": "`sidecar fleet`, with topics.create: false",
    "agents": "agents and compactors: they write the log (the clients' Emitter, `sidecar emit`, `sidecar simulate`)",
    "listeners": "programs that hear of halts without asking the guard (the clients' HaltListener)",
    "operators": "people who look at halts and take them in hand (`sidecar halts`)",
}


class Acl(Struct, frozen=True):
    """Allow one party some operations on one thing, or on all whose names begin so."""

    party: Party
    resource: Resource
    name: str
    pattern: Pattern
    operations: tuple[Operation, ...]
    why: str


def plan(settings: Settings) -> list[Acl]:
    """List what each party needs, by the names in the settings.

    A topic that may be read or written may also be described; only where that is all that is needed, it is named.

    Args:
        settings: the settings tree; `topics`, `tail` and `fleet` are used.
    """
    names, tail, fleet = settings.topics, settings.tail, settings.fleet
    rows: list[tuple[Party, Resource, str, Pattern, tuple[Operation, ...], str]] = [
        *(
            ("setup", "topic", name, "literal", ("Create", "Describe"), "see whether it is there, else create it")
            for name in dict.fromkeys(spec.name for spec in topics(settings))
        ),
        *(("tail", "topic", name, "literal", ("Read",), "the log that is judged") for name in names.inputs),
        ("tail", "topic", names.findings, "literal", ("Write",), "every violation"),
        ("tail", "topic", names.halts, "literal", ("Write",), "halts and their clearing"),
        ("tail", "topic", names.sessions, "literal", ("Write",), "where each session stands"),
        ("tail", "topic", names.dlq, "literal", ("Write",), "what could not be read"),
        ("tail", "topic", names.snapshots, "literal", ("Read", "Write"), "its own state"),
        ("tail", "topic", names.misplaced, "literal", ("Read", "Write"), "tell partitions of records elsewhere"),
        ("tail", "topic", names.decisions, "literal", ("Write",), "what the guard permitted"),
        ("tail", "group", tail.group_id, "literal", ("Read",), "share the partitions, and commit offsets"),
    ]
    if tail.guarantee == "exactly_once":
        rows.append(
            ("tail", "transactionalId", f"{tail.group_id}-", "prefix", ("Write",), "transactions, one name a partition")
        )
    rows += [
        ("fleet", "topic", names.findings, "literal", ("Read",), "what was found"),
        ("fleet", "topic", names.sessions, "literal", ("Read",), "where each session stands"),
        ("fleet", "topic", names.halts, "literal", ("Read",), "halts and their clearing"),
        (
            "fleet",
            "topic",
            names.halt_acks,
            "literal",
            ("Read", "Write"),
            "who has a halt in hand",
        ),
        ("fleet", "topic", names.alerts, "literal", ("Read", "Write"), "its alerts, which are its memory of them too"),
        ("fleet", "topic", names.dlq, "literal", ("Write",), "what it could not read"),
        ("fleet", "topic", fleet.changelog, "literal", ("Read", "Write"), "its own state"),
        ("fleet", "topic", fleet.rollups, "literal", ("Read", "Write"), "its sums by tenant, agent and model"),
        ("fleet", "group", fleet.group_id, "literal", ("Read",), "share the partitions, and commit offsets"),
        *(("agents", "topic", name, "literal", ("Write",), "write the log") for name in names.inputs),
        ("listeners", "topic", names.halts, "literal", ("Read",), "halts and their clearing; no group is needed"),
        ("listeners", "topic", names.halt_acks, "literal", ("Write",), "only for those that take halts in hand"),
        ("operators", "topic", names.halts, "literal", ("Read",), "the open halts"),
        ("operators", "topic", names.halt_acks, "literal", ("Read", "Write"), "who has one in hand"),
    ]
    return [Acl(*row) for row in rows]


def on_topics(settings: Settings, party: Party) -> dict[str, tuple[Operation, ...]]:
    """Return what a party needs to do on each topic that it needs.

    Args:
        settings: as for `plan`.
        party: who.
    """
    return {acl.name: acl.operations for acl in plan(settings) if acl.party == party and acl.resource == "topic"}


def principals(given: Mapping[str, str] | None = None) -> dict[Party, str]:
    """Return the principal of each party: as given, else `User:frontier-` and its name.

    Args:
        given: principals as the brokers name them (`User:CN=tail,O=acme`), by party.

    Raises:
        ValueError: there is no such party, or it is no principal.
    """
    chosen = {party: f"User:frontier-{party}" for party in PARTIES}
    for name, principal in (given or {}).items():
        if name not in chosen:
            raise ValueError(f"{name!r} is none of {', '.join(PARTIES)}")
        if not principal.startswith("User:") or len(principal) == len("User:"):
            raise ValueError(f"{principal!r} is no principal: it begins with User: (User:{name}, User:CN=tail,O=acme)")
        chosen[name] = principal
    return chosen


def render(
    acls: Sequence[Acl], style: Style = "table", servers: str = "", given: Mapping[str, str] | None = None
) -> str:
    """Return the ACLs as a table, as YAML, or as kafka-acls.sh commands.

    Args:
        acls: from `plan`.
        style: how to print them; the entries of the YAML are those of Strimzi's KafkaUser.
        servers: bootstrap servers to put into the commands.
        given: principals by party, see `principals`.
    """
    who = principals(given)
    if style == "yaml":
        return "\n".join(_yaml(acls, who))
    if style == "commands":
        return "\n".join(_commands(acls, who, servers or "HOST:PORT"))
    head = ("principal", "resource", "name", "operations", "why")
    rows = [(who[a.party], a.resource, _shown(a), ", ".join(a.operations), a.why) for a in acls]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def _shown(acl: Acl) -> str:
    return f"{acl.name}*" if acl.pattern == "prefix" else acl.name


def _by_party(acls: Sequence[Acl]) -> Iterator[tuple[Party, list[Acl]]]:
    for party, found in groupby(acls, key=lambda acl: acl.party):
        yield party, list(found)


def _yaml(acls: Sequence[Acl], who: Mapping[Party, str]) -> Iterator[str]:
    for party, found in _by_party(acls):
        yield f"{party}:"
        yield f"  # {ABOUT[party]}"
        yield f"  principal: {json.dumps(who[party])}"
        yield "  acls:"
        for acl in found:
            yield f"    - resource: {{type: {acl.resource}, name: {acl.name}, patternType: {acl.pattern}}}"
            yield f"      operations: [{', '.join(acl.operations)}] # {acl.why}"


def _commands(acls: Sequence[Acl], who: Mapping[Party, str], servers: str) -> Iterator[str]:
    """Yield one command for each party and set of operations: each costs the start of a JVM."""
    flags: Mapping[Resource, str] = {
        "topic": "--topic",
        "group": "--group",
        "transactionalId": "--transactional-id",
    }
    for party, found in _by_party(acls):
        yield f"# {party}: {ABOUT[party]}"
        sets = dict.fromkeys((acl.operations, acl.pattern) for acl in found)
        for operations, pattern in sets:
            things = [a for a in found if (a.operations, a.pattern) == (operations, pattern)]
            parts = ["kafka-acls.sh --bootstrap-server", shlex.quote(servers), "--add --allow-principal"]
            parts.append(shlex.quote(who[party]))
            parts += [f"--operation {operation}" for operation in operations]
            parts.append(f"--resource-pattern-type {'prefixed' if pattern == 'prefix' else pattern}")
            parts += [f"{flags[thing.resource]} {shlex.quote(thing.name)}" for thing in things]
            yield " ".join(parts)


# --- the files made from this ---------------------------------------------------------------------

_MADE = "# Made from sidecar/tail/acls.py by `make docs`; a test compares it with the code."


def reference_yaml() -> str:
    """Return the text of `deploy/kafka/acls.yaml`: the default names, and principals to be replaced."""
    head = (
        "# Who needs which permission on the brokers, and no more, with the default names of topics and groups.",
        "# Others: `sidecar --config … acls --format yaml --principal tail=User:NAME`.",
        "# The entries are those of Strimzi's KafkaUser (spec.authorization.acls).",
        _MADE,
        "",
    )
    return "\n".join((*head, render(plan(_defaults()), "yaml"))) + "\n"


def reference_script() -> str:
    """Return the text of `deploy/kafka/acls.sh`."""
    head = (
        "#!/bin/sh",
        "# Give each principal the permissions that it needs and no more, with the default names of topics and groups.",
        "# Others: `sidecar --config … acls --format commands --principal tail=User:NAME`.",
        _MADE,
        "#",
        "# Usage: BOOTSTRAP=kafka-1:9092 ADMIN=admin.properties PATH=$PATH:/opt/kafka/bin sh acls.sh",
        "# ADMIN: how the one who may change ACLs logs in (kafka-acls.sh --command-config).",
        "set -eu",
        "",
    )
    commands = render(plan(_defaults()), "commands", _SERVERS)
    commands = commands.replace(shlex.quote(_SERVERS), '"$BOOTSTRAP"')
    commands = commands.replace(" --add ", ' ${ADMIN:+--command-config "$ADMIN"} --add ')
    return "\n".join((*head, commands)) + "\n"


_SERVERS = "servers to be replaced"


def _defaults() -> Settings:
    """Return the settings without what the environment says, which must not leak into files that are committed."""
    return Settings.model_construct(topics=TopicSettings(), tail=TailSettings(), fleet=FleetSettings())
