"""What is known of one session: a fold of what four topics say of it, bounded, and deaf to repetition.

A row has a part for each topic, and each part is a function of what that topic's partition held up to a *mark*. So

- a record that comes again (its mark is not above the part's) changes nothing, whatever the delivery guarantee;
- a finding that was published twice is counted once, by its id; a halt that was published again does not reopen;
- of two rows of one session, whoever wrote them and in whatever order they are read, `join` takes each part from
  where it is further: that is the row of somebody who has seen all that either saw.

Nothing here knows Kafka, Faust or the time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct, UnsetType, field

from sidecar.engine.status import LISTED
from sidecar.fleet.queries import DEGRADED
from sidecar.fleet.windows import Counts
from sidecar.protocol.outputs import CheckpointState, Finding, Halt, HaltAck, SessionRecord, Survival

SEEN = 1024
"""Ids of findings that a session is known by: one that is published again after so many others is counted again."""

FINDINGS = 64
"""Findings kept whole, the last ones that came."""

EVIDENCE = 4096
"""Bytes of a finding beyond which its evidence is cut down to the witness."""

CHECKPOINTS = 64
CLEARED = 32
FROZEN_NODES = 32
FROZEN_TIMES = 16
_NAMED = 32  # findings that a halt names
_ACKS = 256
_GROUPS = 16  # tenants, agents and models that one session's findings name

VERSION = 1
FREEZING = "freeze"


class GroupKey(NamedTuple):
    """Name a tenant, an agent and a model; None: not said."""

    tenant: str | None
    agent: str | None
    model: str | None


class Findings(Struct, array_like=True, gc=False):
    """Keep what the findings of a session come to."""

    mark: int = -1
    total: int = 0
    seen: dict[str, None] = field(default_factory=dict)
    kept: list[bytes] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)
    counts: list[tuple[GroupKey, Counts]] = field(default_factory=list)
    frozen: dict[str, list[float]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    position: int = -1
    group: GroupKey = GroupKey(None, None, None)
    latest: tuple[str, str, str, str, int, float] | None = None
    """Of the finding with the highest position: id, rule, severity, subject, position, time."""

    def apply(self, finding: Finding, raw: bytes, mark: int, at: float) -> GroupKey | None:
        """Take a finding in; return the group that it counts for, None: it was known.

        Args:
            finding: the finding.
            raw: its bytes (JSON).
            mark: its place in its partition.
            at: when it was published, where it does not say.
        """
        if mark <= self.mark:
            return None
        self.mark = mark
        if finding.finding_id in self.seen:
            return None
        self.seen[finding.finding_id] = None
        if len(self.seen) > SEEN:
            del self.seen[next(iter(self.seen))]
        when = seconds(finding.detected_at, at)
        group = GroupKey(said(finding.tenant), said(finding.agent), said(finding.model))
        self.total += 1
        self.rules[finding.rule] = self.rules.get(finding.rule, 0) + 1
        self.kept.append(raw if len(raw) <= EVIDENCE else _shortened(finding))
        if len(self.kept) > FINDINGS:
            del self.kept[0]
        self.first = when if self.first is None else min(self.first, when)
        self.last = when if self.last is None else max(self.last, when)
        if finding.position >= self.position:
            self.position, self.group = finding.position, group
            subject = f"{finding.subject.type} {finding.subject.id}"
            self.latest = (finding.finding_id, finding.rule, finding.severity, subject, finding.position, when)
        if finding.disposition == FREEZING and finding.subject.type == "node":
            self._freeze(finding.subject.id, when)
        group = self._counted(group)
        self._counts(group).add(finding.rule, when)
        return group

    def _counted(self, group: GroupKey) -> GroupKey:
        """Return the group to count for: a session that names ever new ones is held to a few."""
        if len(self.counts) < _GROUPS or any(key == group for key, _ in self.counts):
            return group
        return self.counts[-1][0]

    def _counts(self, group: GroupKey) -> Counts:
        for key, counts in self.counts:
            if key == group:
                return counts
        self.counts.append((group, Counts()))
        return self.counts[-1][1]

    def _freeze(self, node: str, when: float) -> None:
        times = self.frozen.pop(node, [])
        self.frozen[node] = sorted([*times, when])[-FROZEN_TIMES:]
        if len(self.frozen) > FROZEN_NODES:
            del self.frozen[next(iter(self.frozen))]


class HaltState(Struct, array_like=True, gc=False):
    """Keep one halt; `known`: the record that opened it has been seen."""

    known: bool = False
    open: bool = True
    position: int | None = None
    opened_at: float | None = None
    checkpoint_id: str | None = None
    reason: list[str] = field(default_factory=list)
    finding_ids: list[str] = field(default_factory=list)
    reexpand_from: str | None = None
    replay_from: int | None = None
    cleared_at: float | None = None
    cleared_position: int | None = None
    listed_at: float | None = None
    """When it was first heard of."""


class Halts(Struct, array_like=True, gc=False):
    """Keep the halts of a session: all that are open, and the last that were cleared."""

    mark: int = -1
    position: int = -1
    halts: dict[str, HaltState] = field(default_factory=dict)
    last: float | None = None

    def apply(self, halt: Halt, mark: int, at: float) -> bool:
        """Take a record in; return whether it was new."""
        if mark <= self.mark:
            return False
        self.mark = mark
        when = seconds(halt.detected_at, at)
        self.last = when if self.last is None else max(self.last, when)
        state = self.halts.get(halt.halt_id)
        if state is None:
            state = self.halts[halt.halt_id] = HaltState(listed_at=when)
        if halt.status == "halt":
            if not state.known:
                self._open(state, halt, when)
        elif state.open:
            self._clear(halt.halt_id, halt, when)
        if halt.position >= self.position:
            self.position = halt.position
            self._reconcile(halt, when)
        self._bound()
        return True

    @staticmethod
    def _open(state: HaltState, halt: Halt, when: float) -> None:
        state.known = True
        state.position, state.opened_at = halt.position, when
        state.checkpoint_id = halt.checkpoint_id
        state.reason, state.finding_ids = halt.reason, halt.finding_ids[:_NAMED]
        state.reexpand_from = said(halt.reexpand_from)
        state.replay_from = None if isinstance(halt.replay_from, UnsetType) else halt.replay_from

    def _clear(self, halt_id: str, halt: Halt, when: float) -> None:
        state = self.halts.pop(halt_id)
        state.open, state.cleared_at, state.cleared_position = False, when, halt.position
        if halt_id == halt.halt_id and not state.known:
            state.checkpoint_id, state.reason = halt.checkpoint_id, halt.reason
            state.finding_ids = halt.finding_ids[:_NAMED]
        self.halts[halt_id] = state  # at the end: in the order of clearing

    def _reconcile(self, halt: Halt, when: float) -> None:
        """Bring what is open into line with what the newest record lists.

        The topic is compacted by session, so the record that opened or cleared a halt may be gone. A halt opened at
        the record's own position is left alone: a record that was published again may not know of it.
        """
        listed = set(halt.open_halts)
        for halt_id in halt.open_halts:
            if halt_id not in self.halts:
                self.halts[halt_id] = HaltState(listed_at=when)
        if len(halt.open_halts) >= LISTED:
            return
        for halt_id, state in list(self.halts.items()):
            earlier = state.position is None or state.position < halt.position
            if state.open and halt_id not in listed and earlier and halt_id != halt.halt_id:
                self._clear(halt_id, halt, when)

    def _bound(self) -> None:
        if len(self.halts) <= CLEARED:
            return
        cleared = [halt_id for halt_id, state in self.halts.items() if not state.open]
        for halt_id in cleared[:-CLEARED]:
            del self.halts[halt_id]
        opened = [halt_id for halt_id, state in self.halts.items() if state.open]
        for halt_id in opened[:-LISTED]:
            del self.halts[halt_id]


class Standing(Struct, array_like=True, gc=False):
    """Keep where a session stands, since when, and the checkpoints that were in force."""

    mark: int = -1
    record: SessionRecord | None = None
    since: float | None = None
    degraded_since: float | None = None
    first: float | None = None
    last: float | None = None
    checkpoints: list[CheckpointState] = field(default_factory=list)

    def apply(self, record: SessionRecord, mark: int, at: float) -> bool:
        """Take a record in; return whether it says more than was known. One of an older position says nothing."""
        if mark <= self.mark:
            return False
        self.mark = mark
        before = self.record
        if before is not None and record.position < before.position:
            return False
        when = seconds(record.detected_at, at)
        self.first = when if self.first is None else min(self.first, when)
        self.last = when if self.last is None else max(self.last, when)
        if before is None or before.status != record.status:
            self.since = when
        if record.status not in DEGRADED:
            self.degraded_since = None
        elif self.degraded_since is None:
            self.degraded_since = when
        self.record = record
        if record.checkpoint is not None:
            name = record.checkpoint.checkpoint_id
            others = [known for known in self.checkpoints if known.checkpoint_id != name]
            self.checkpoints = [*others, record.checkpoint][-CHECKPOINTS:]
        return True


class AckState(Struct, array_like=True, gc=False):
    """Keep who has taken a halt in hand."""

    by: str
    decision: str
    at: float


class Acks(Struct, array_like=True, gc=False):
    """Keep the acknowledgements of a session's halts; one may come before its halt."""

    mark: int = -1
    acks: dict[str, AckState] = field(default_factory=dict)

    def apply(self, ack: HaltAck, mark: int, at: float) -> bool:
        """Take a record in; return whether it was new."""
        if mark <= self.mark:
            return False
        self.mark = mark
        self.acks.pop(ack.halt_id, None)
        self.acks[ack.halt_id] = AckState(ack.by, ack.decision, at)
        if len(self.acks) > _ACKS:
            del self.acks[next(iter(self.acks))]
        return True


class Row(Struct, array_like=True, gc=False):
    """Keep what is known of one session."""

    session_id: str
    findings: Findings = field(default_factory=Findings)
    halts: Halts = field(default_factory=Halts)
    standing: Standing = field(default_factory=Standing)
    acks: Acks = field(default_factory=Acks)

    def group(self) -> GroupKey:
        """Return the tenant, agent and model that the session named last."""
        record, found = self.standing.record, self.findings.group
        if record is None:
            return found
        return GroupKey(
            said(record.tenant) or found.tenant, said(record.agent) or found.agent, said(record.model) or found.model
        )

    def status(self) -> str | None:
        """Return the session's status; None: it has not been told."""
        return self.standing.record.status if self.standing.record else None

    def open_halts(self) -> Iterator[tuple[str, HaltState]]:
        """Yield the halts that are open, the oldest first."""
        return ((halt_id, state) for halt_id, state in self.halts.halts.items() if state.open)

    def unacknowledged(self) -> Iterator[tuple[str, HaltState]]:
        """Yield the open halts that nobody has taken in hand."""
        return ((halt_id, state) for halt_id, state in self.open_halts() if halt_id not in self.acks.acks)

    def survival(self) -> list[Survival]:
        """Return what survived the session's summaries."""
        return self.standing.record.survival if self.standing.record else []

    def first_seen(self) -> float | None:
        """Return the time of the first record of the session that tells one."""
        return min((t for t in (self.findings.first, self.standing.first, self.halts.last) if t), default=None)

    def last_seen(self) -> float | None:
        """Return the time of the last record of the session."""
        return max((t for t in (self.findings.last, self.standing.last, self.halts.last) if t), default=None)

    def is_known(self) -> bool:
        """Tell whether anything but acknowledgements has been heard."""
        return self.findings.mark >= 0 or self.halts.mark >= 0 or self.standing.mark >= 0


def join(one: Row, other: Row) -> Row:
    """Return the row that has each part from whichever of two rows of a session is further."""
    return Row(
        one.session_id,
        max(one.findings, other.findings, key=_mark),
        max(one.halts, other.halts, key=_mark),
        max(one.standing, other.standing, key=_mark),
        max(one.acks, other.acks, key=_mark),
    )


def _mark(part: Findings | Halts | Standing | Acks) -> int:
    return part.mark


_encode = msgspec.msgpack.Encoder().encode


class Stored(Struct, array_like=True, gc=False):
    """A row as it is written: with the version of its form."""

    version: int
    row: Row


_decode_stored = msgspec.msgpack.Decoder(Stored).decode
_decode_version = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode


def dump(row: Row) -> bytes:
    """Return a row as bytes."""
    return _encode(Stored(VERSION, row))


def load(data: bytes) -> Row:
    """Return the row of such bytes.

    Raises:
        ValueError: they are of another version, or no row.
    """
    try:
        stored = _decode_stored(data)
    except msgspec.MsgspecError as error:
        raise ValueError(_another(data) or f"no row: {error}") from None
    if stored.version != VERSION:
        raise ValueError(_another(data))
    return stored.row


def _another(data: bytes) -> str | None:
    """Say that a row is of another version; None: it is not."""
    try:
        version, _ = _decode_version(data)
    except msgspec.MsgspecError:
        return None
    return None if version == VERSION else f"the row is of version {version}, and this program reads {VERSION}"


def seconds(given: datetime | UnsetType, otherwise: float) -> float:
    """Return a time as Unix seconds."""
    return otherwise if isinstance(given, UnsetType) else given.timestamp()


def moment(at: float | None) -> datetime | None:
    """Return Unix seconds as a time."""
    return None if at is None else datetime.fromtimestamp(at, UTC)


def said(value: str | UnsetType | None) -> str | None:
    """Return a text, None where there is none."""
    return None if isinstance(value, UnsetType) or not value else value


def _shortened(finding: Finding) -> bytes:
    witness = finding.evidence.get("witness")
    few = witness[:_NAMED] if isinstance(witness, list) else []
    return msgspec.json.encode(msgspec.structs.replace(finding, evidence={"cut": True, "witness": few}))
