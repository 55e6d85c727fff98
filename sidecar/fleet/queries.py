"""What can be asked of the fleet, and what is answered: plain structs, so that HTTP, a page and a terminal can show it.

Every answer says what it lacks: a worker that did not answer is named in `missing`, so that an incomplete answer
never looks like a healthy fleet.
"""

from datetime import datetime
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct, field

from sidecar.protocol.outputs import Alert, CheckpointState, Finding, Survival

Status = Literal["uncompacted", "verified", "stale", "unjudged", "unverified", "degraded", "lossy", "corrupt"]
Dimension = Literal["group", "tenant", "agent", "model"]

MOST = 1000
"""The most items that one answer holds, whatever limit is asked for."""

T = TypeVar("T")


class Missing(Struct, kw_only=True, frozen=True):
    """Name a part of the fleet that is not in an answer: the worker (its URL, if known), its partitions, and why."""

    worker: str | None
    partitions: list[int]
    reason: str


class Page(Struct, Generic[T], kw_only=True):
    """Hold one page of a list: `cursor` asks for the next one, `total` counts all pages, as far as they are known."""

    items: list[T]
    total: int = 0
    cursor: str | None = None
    at: datetime
    missing: list[Missing] = field(default_factory=list)


class Ack(Struct, kw_only=True, frozen=True):
    """State who has taken a halt in hand, what was decided, and when that was written."""

    by: str
    decision: str
    at: datetime | None = None


class HaltView(Struct, kw_only=True):
    """Describe a halt of a session.

    `known` is false where only the id is known, because another record has replaced the one that opened it (the
    topic is compacted by session): then everything else is empty.
    """

    halt_id: str
    session_id: str
    known: bool
    open: bool
    position: int | None = None
    opened_at: datetime | None = None
    checkpoint_id: str | None = None
    reason: list[str] = field(default_factory=list)
    finding_ids: list[str] = field(default_factory=list)
    reexpand_from: str | None = None
    replay_from: int | None = None
    cleared_at: datetime | None = None
    cleared_position: int | None = None
    ack: Ack | None = None
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None


class SessionSummary(Struct, kw_only=True):
    """Describe a session in a list; `since` it has its status, `degraded_since` it has not had a good one.

    `status` is None where the session has findings or halts and has not yet been heard of on the topic of sessions.
    `rules` counts every finding by rule; `latest` is the newest finding that is kept, by position in the log.
    """

    session_id: str
    tenant: str | None
    agent: str | None
    model: str | None
    status: Status | None
    since: datetime | None
    degraded_since: datetime | None
    awaiting: bool
    position: int
    checkpoint_id: str | None
    open_halts: int
    unacknowledged: int
    newest_halt: HaltView | None
    """The newest halt that is open: its reason, and where to re-expand or replay from."""
    findings: int
    rules: dict[str, int]
    latest: "FindingBrief | None"
    last_seen: datetime | None


class FindingBrief(Struct, kw_only=True, frozen=True):
    """Name a finding in a list."""

    finding_id: str
    rule: str
    severity: str
    subject: str
    position: int
    detected_at: datetime | None


class SessionDetail(Struct, kw_only=True):
    """Describe one session with what is kept of its past.

    Args:
        summary: as in a list.
        checkpoint: the checkpoint in force.
        checkpoints: the last ones that were in force, oldest first, each as it was told of last.
        halts: open ones first, newest first; then those cleared, newest first.
        findings: the last ones, in the order of their positions. Evidence that is too long is replaced by
            `{"cut": true, "witness": […]}`.
        dropped: how many older findings are no longer kept whole.
        survival: by summarizer model, what, and level, since the session began.
        worker: the URL of the worker that has the session.
    """

    summary: SessionSummary
    checkpoint: CheckpointState | None
    checkpoints: list[CheckpointState]
    halts: list[HaltView]
    findings: list[Finding]
    dropped: int
    survival: list[Survival]
    first_seen: datetime | None
    worker: str | None
    at: datetime


class RuleRate(Struct, kw_only=True):
    """Give how often a rule fired: in 5 minutes, in an hour, and on average per hour in the day before.

    `since` is the begin of the hour from which on the rate has been far above what it was before; None: it is not.
    `first_seen` is the first time in the last day.
    """

    rule: str
    last_5m: int
    last_1h: int
    per_hour_before: float
    first_seen: datetime | None
    since: datetime | None


class SurvivalRate(Struct, kw_only=True):
    """Give what survived the summaries at one level: constraints, facts, referents."""

    what: Literal["constraint", "fact", "referent"]
    level: int
    checked: int
    kept: int


class Group(Struct, kw_only=True):
    """Describe all sessions of one group: of a (tenant, agent, model), or of a tenant, an agent or a model alone.

    Where `by` is not `group`, only that field of the three is set; None is a group too: of those that name none.
    Counts of findings go by the record's own tenant, agent and model, counts of sessions by their last ones.
    """

    by: Dimension
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
    sessions: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    degraded: int = 0
    awaiting: int = 0
    open_halts: int = 0
    rules: list[RuleRate] = field(default_factory=list)
    survival: list[SurvivalRate] = field(default_factory=list)
    last_seen: datetime | None = None


class Summary(Struct, kw_only=True):
    """Describe the fleet in one answer.

    Args:
        sessions: how many are followed.
        statuses: how many have each status; `unknown`: not heard of on the topic of sessions.
        degraded: how many are corrupt, lossy, degraded or unverified.
        rules: every rule's rates over all groups.
        alerts: how many alerts of each kind are open.
        lag: records still to be read, over all partitions that are answered for.
        workers: every worker's URL and the partitions it has.
    """

    at: datetime
    sessions: int
    statuses: dict[str, int]
    degraded: int
    awaiting: int
    open_halts: int
    unacknowledged: int
    rules: list[RuleRate]
    survival: list[SurvivalRate]
    alerts: dict[str, int]
    last_seen: datetime | None
    lag: int
    workers: dict[str, list[int]]
    missing: list[Missing]


class Unavailable(Exception):
    """Say that whoever has a key cannot be asked just now: a rebalance, a recovery, or a worker that does not answer.

    Args:
        reason: why, for a person.
        worker: the URL of the worker that has it, if known.
    """

    def __init__(self, reason: str, worker: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.worker = worker


class Fleet(Protocol):
    """Answer questions about the fleet, whichever worker has what is asked about.

    Lists are gathered from all workers; those that do not answer in time are named in `missing`. Limits are held to
    `MOST`. A cursor is an opaque string of the answer before; one that cannot be read is a ValueError.
    """

    async def summary(self) -> Summary:
        """Describe the fleet as a whole."""
        ...

    async def sessions(
        self,
        *,
        status: frozenset[str] | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[SessionSummary]:
        """List sessions, the worst status first, and of equal ones those degraded longest; then by id.

        Args:
            status: only these statuses; `degraded` alone means exactly that status (see `DEGRADED` for the set).
            tenant: only of this tenant; the empty string: of those that name none. `agent`, `model`: likewise.
            search: only ids that contain this.
            limit: how many at most.
            cursor: of the answer before.
        """
        ...

    async def session(self, session_id: str) -> SessionDetail | None:
        """Describe one session, asking the worker that has it; None: nobody has heard of it.

        Raises:
            Unavailable: the worker that has it does not answer.
        """
        ...

    async def groups(
        self,
        by: Dimension = "group",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> Page[Group]:
        """List groups, those with the most degraded sessions first. Filters as for sessions; one page has all."""
        ...

    async def alerts(self, *, open_only: bool = True) -> Page[Alert]:
        """List alerts: open ones, the most severe and newest first, then (if asked for) those cleared lately."""
        ...

    async def halts(self, *, open_only: bool = True, limit: int = 500) -> Page[HaltView]:
        """List halts: open and unacknowledged ones first, the oldest of them first."""
        ...

    async def changed(self, within: float) -> None:
        """Wait until something that this worker has changed, but no longer than `within` seconds."""
        ...


DEGRADED = frozenset(("corrupt", "lossy", "degraded", "unverified"))
"""The statuses in which a session is degraded."""
