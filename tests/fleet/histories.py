"""Make what the tail would say of some sessions: findings, halts, where they stand, acknowledgements; with repeats.

A history is a list of records per topic, in the order of publication. Deterministic by its seed.
"""

import random
from typing import Any, NamedTuple

import msgspec

RULES = (
    ("edge_dropped", "error", "rederive", "checkpoint"),
    ("constraint_dropped", "error", "reject_subtree", "node"),
    ("idempotence_violation", "error", "freeze", "node"),
    ("edge_hallucinated", "critical", "discard", "checkpoint"),
    ("budget_exceeded", "error", "retry", "node"),
)
STATUSES = ("uncompacted", "verified", "stale", "unverified", "degraded", "lossy", "corrupt")
ROLES = ("findings", "halts", "sessions", "halt_acks")


class Message(NamedTuple):
    """A message of a topic; `at` in Unix seconds."""

    role: str
    key: bytes
    value: bytes | None
    at: float


class Teller:
    """Tell one session's story, step by step.

    Args:
        session_id: its id.
        chance: where everything random comes from.
        start: when it begins (Unix seconds).
        pace: how long a step may take (seconds).
    """

    def __init__(self, session_id: str, chance: random.Random, start: float, pace: tuple[float, ...]) -> None:
        self.session_id = session_id
        self._chance = chance
        self._at = start
        self._pace = pace
        self._position = 0
        self._open: list[str] = []
        self._halts: dict[str, dict[str, Any]] = {}
        self._survival = {"checked": 0, "kept": 0}
        self._names = {
            "tenant": chance.choice(("acme", "globex", None)),
            "agent": chance.choice(("planner", "coder")),
            "model": chance.choice(("m-1", "m-2")),
        }
        self._findings = 0

    def step(self) -> list[Message]:
        """Return what is published for the next record of the session's log."""
        self._position += self._chance.randint(1, 3)
        self._at += self._chance.choice(self._pace)
        if self._chance.random() < 0.1:
            self._names["model"] = self._chance.choice(("m-1", "m-2", "m-3"))
        messages: list[Message] = []
        found = [self._finding() for _ in range(self._chance.choice((0, 0, 1, 1, 2)))]
        messages += [self._message("findings", fields) for fields in found]
        if self._open and self._chance.random() < 0.3:
            messages.append(self._clear(self._chance.choice(self._open)))
        if found and self._chance.random() < 0.4:
            messages.append(self._halt(found))
        if self._open and self._chance.random() < 0.2:
            ack = {"halt_id": self._chance.choice(self._open), "by": "ada", "decision": "looking"}
            messages.append(self._message("halt_acks", ack))
        if messages or self._chance.random() < 0.3:
            messages.append(self._standing())
        return messages

    def _finding(self) -> dict[str, Any]:
        rule, severity, disposition, subject = self._chance.choice(RULES)
        self._findings += 1
        return {
            "finding_id": f"{self.session_id}-f{self._findings}",
            "rule": rule,
            "severity": severity,
            "disposition": disposition,
            "session_id": self.session_id,
            "subject": {"type": subject, "id": f"{subject[0]}{self._chance.randint(1, 2)}"},
            "position": self._position,
            "evidence": {"witness": [self._position]},
            "detected_at": stamp(self._at),
            **{name: value for name, value in self._names.items() if value},
        }

    def _halt(self, found: list[dict[str, Any]]) -> Message:
        halt_id = f"{self.session_id}-h{len(self._halts) + 1}"
        self._open.append(halt_id)
        fields = {
            "halt_id": halt_id,
            "session_id": self.session_id,
            "position": self._position,
            "status": "halt",
            "checkpoint_id": "c1",
            "reason": sorted({f["rule"] for f in found}),
            "refuse": "irreversible_actions",
            "finding_ids": [f["finding_id"] for f in found],
            "open_halts": list(self._open),
            "reexpand_from": None,
            "replay_from": 1,
            "detected_at": stamp(self._at),
        }
        self._halts[halt_id] = fields
        return self._message("halts", fields)

    def _clear(self, halt_id: str) -> Message:
        self._open.remove(halt_id)
        opened = {k: v for k, v in self._halts[halt_id].items() if k not in ("reexpand_from", "replay_from")}
        changed = {"status": "clear", "position": self._position, "open_halts": list(self._open)}
        return self._message("halts", {**opened, **changed, "detected_at": stamp(self._at)})

    def _standing(self) -> Message:
        self._survival["checked"] += self._chance.randint(0, 3)
        self._survival["kept"] = min(self._survival["checked"], self._survival["kept"] + self._chance.randint(0, 3))
        checkpoint = {
            "checkpoint_id": f"c{self._chance.randint(1, 3)}",
            "status": "verified",
            "node_id": "n1",
            "summary_generation": 1,
            "level": 1,
            "turn": 1,
            "frontier_lo": 1,
            "frontier_hi": self._position,
            "position": self._position,
        }
        fields = {
            "session_id": self.session_id,
            "position": self._position,
            "status": self._chance.choice(STATUSES),
            "awaiting": self._chance.random() < 0.2,
            "open_halts": list(self._open),
            "checkpoint": checkpoint if self._chance.random() < 0.8 else None,
            "survival": [{"what": "constraint", "level": 1, "model": self._names["model"], **self._survival}],
            "detected_at": stamp(self._at),
            **{name: value for name, value in self._names.items() if value},
        }
        return self._message("sessions", fields)

    def _message(self, role: str, fields: dict[str, Any]) -> Message:
        return Message(role, self.session_id.encode(), msgspec.json.encode(fields), self._at)


def history(
    seed: int,
    sessions: int = 3,
    steps: int = 12,
    start: float = 1_800_000_000.0,
    name: str = "s",
    pace: tuple[float, ...] = (0.5, 5.0, 90.0),
) -> dict[str, list[Message]]:
    """Return messages by topic: the sessions interleaved, and, as after crashes of the tail, parts published again."""
    chance = random.Random(seed)
    tellers = [Teller(f"{name}{seed}-{i}", chance, start, pace) for i in range(sessions)]
    groups = [teller.step() for _ in range(steps) for teller in chance.sample(tellers, len(tellers))]
    published: list[list[Message]] = []
    for group in groups:
        published.append(group)
        if chance.random() < 0.1:  # everything since the last commit comes again, with times of its own
            again = published[-chance.randint(1, 6) :]
            published += [[_later(message, 3.0) for message in g] for g in again]
    topics: dict[str, list[Message]] = {role: [] for role in ROLES}
    for group in published:
        for message in group:
            topics[message.role].append(message)
    return topics


def stamp(at: float) -> str:
    """Return a time as the tail writes it."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat()


def _later(message: Message, by: float) -> Message:
    fields = msgspec.json.decode(message.value or b"")
    if "detected_at" in fields:
        from datetime import datetime

        fields["detected_at"] = stamp(datetime.fromisoformat(fields["detected_at"]).timestamp() + by)
    return message._replace(value=msgspec.json.encode(fields), at=message.at + by)
