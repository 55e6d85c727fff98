"""The topics the sidecar needs: what each is for, and how it has to be made."""

from typing import Literal

from msgspec import Struct

from sidecar.config import Settings

Role = Literal[
    "events",
    "compactions",
    "findings",
    "halts",
    "sessions",
    "halt_acks",
    "dlq",
    "snapshots",
    "misplaced",
    "decisions",
    "alerts",
    "fleet_sessions",
    "fleet_rollups",
]
TAIL_ROLES: tuple[Role, ...] = (
    "events",
    "compactions",
    "findings",
    "halts",
    "sessions",
    "halt_acks",
    "dlq",
    "snapshots",
    "misplaced",
    "decisions",
)
"""The topics that `run` needs."""
FLEET_ROLES: tuple[Role, ...] = (
    "findings",
    "halts",
    "sessions",
    "halt_acks",
    "dlq",
    "alerts",
    "fleet_sessions",
    "fleet_rollups",
)
"""The topics that `fleet` needs."""
ALL_ROLES: tuple[Role, ...] = tuple(dict.fromkeys((*TAIL_ROLES, *FLEET_ROLES)))
Use = Literal["input", "output", "state"]

_LONG_RETENTION_MS = 30 * 24 * 3600 * 1000


class TopicSpec(Struct, frozen=True):
    """Describe one topic: what it is for and how it has to be made."""

    name: str
    role: Role
    use: Use
    partitions: int
    replication_factor: int
    config: dict[str, str]
    about: str
    required: bool = True


def plan(settings: Settings, partitions: int | None = None) -> list[TopicSpec]:
    """List the topics the sidecar uses.

    All have the same number of partitions: the inputs must (both topics' records of one session have to reach
    one task), and outputs that do are written to the input's partition without hashing keys again.

    Args:
        settings: the settings tree; its `topics` section is used.
        partitions: overrides the configured number.
    """
    names = settings.topics
    count = partitions if partitions is not None else names.partitions
    delete, compact = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}
    # The active segment is never compacted, so that it must not grow old; every restart reads what is there.
    kept = {**compact, "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"}
    long = {**delete, "retention.ms": str(_LONG_RETENTION_MS)}
    sessions, rollups = settings.fleet.changelog, settings.fleet.rollups
    rows: tuple[tuple[str, Role, Use, dict[str, str], str, bool], ...] = (
        (names.events, "events", "input", delete, "log events of the agents, keyed by session", True),
        (names.compactions, "compactions", "input", delete, "compaction records, keyed by session", True),
        (names.findings, "findings", "output", delete, "every violation, keyed by session", True),
        (names.halts, "halts", "output", compact, "halts and their clearing, newest per session kept", True),
        (names.sessions, "sessions", "output", compact, "where each session stands, newest per session kept", True),
        (names.dlq, "dlq", "output", long, "what could not be read, with the reason and the bytes", True),
        (names.snapshots, "snapshots", "state", kept, "the sidecar's own state, newest per session kept", True),
        (
            names.misplaced,
            "misplaced",
            "state",
            delete,
            "tells of records in another partition than their session's",
            True,
        ),
        (names.decisions, "decisions", "output", long, "every permission that the guard gave, keyed by session", True),
        (names.halt_acks, "halt_acks", "input", delete, "who has taken a halt in hand", False),
        (names.alerts, "alerts", "output", kept, "what concerns the fleet, newest per alert kept", False),
        (sessions, "fleet_sessions", "state", kept, "the fleet's own state, newest per session kept", False),
        (rollups, "fleet_rollups", "state", kept, "the fleet's sums by tenant, agent and model", False),
    )
    specs: dict[str, TopicSpec] = {}
    for name, role, use, config, about, required in rows:
        # Events and compactions may be one mixed topic.
        if name not in specs:
            specs[name] = TopicSpec(name, role, use, count, names.replication_factor, config, about, required)
    return list(specs.values())
