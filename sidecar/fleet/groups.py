"""What the sessions of one partition come to, by tenant, agent and model; and what all partitions together do.

A *partial* is absolute: it says what all rows of one input partition add up to, so that whoever reads it again, or
reads an older one first, ends with the same. A group is the sum of the partials of all partitions. Nothing is kept
here that the rows do not say: after a restart the partials are made again from them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.model import GroupKey, Row, moment
from sidecar.fleet.queries import DEGRADED, Dimension, Group, RuleRate, SurvivalRate
from sidecar.fleet.shown import shown
from sidecar.fleet.windows import HOUR, LONG, SHORT, Counts
from sidecar.observe.catalogue import LEVEL_LABELS

UNKNOWN = "unknown"
"""The status of sessions that have findings or halts and have not been told of."""

RISE = 4.0
"""How much more often than before a rule has to fire for a group to be shown as risen."""
RISE_LEAST = 5


class Partial(Struct, array_like=True):
    """Add up rows: sessions by status, halts, findings by rule and time, survival by what and level.

    `first` and `last` are the times of the first and the last record of any of them; they only ever widen.
    """

    sessions: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    awaiting: int = 0
    open_halts: int = 0
    unacknowledged: int = 0
    survival: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By `WHAT/LEVEL`: how many had to be carried, and how many were."""
    counts: Counts = field(default_factory=Counts)
    first: float | None = None
    last: float | None = None

    @property
    def degraded(self) -> int:
        """Return how many sessions are degraded."""
        return sum(number for status, number in self.statuses.items() if status in DEGRADED)

    def include(self, other: "Partial") -> None:
        """Add another."""
        self.sessions += other.sessions
        self.awaiting += other.awaiting
        self.open_halts += other.open_halts
        self.unacknowledged += other.unacknowledged
        for status, number in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + number
        for key, (checked, kept) in other.survival.items():
            self._survive(key, checked, kept)
        self.counts.include(other.counts)
        self.seen(other.first, other.last)

    def seen(self, first: float | None, last: float | None) -> None:
        """Note when records were."""
        if first is not None:
            self.first = first if self.first is None else min(self.first, first)
        if last is not None:
            self.last = last if self.last is None else max(self.last, last)

    def _survive(self, key: str, checked: int, kept: int) -> None:
        before = self.survival.get(key, (0, 0))
        after = (before[0] + checked, before[1] + kept)
        if after[0] > 0 or after[1] > 0:
            self.survival[key] = after
        else:
            self.survival.pop(key, None)

    def is_empty(self) -> bool:
        """Tell whether nothing is counted."""
        return not (self.sessions or self.survival or self.counts)


class Head(NamedTuple):
    """What a row adds to its group besides findings: what can change with any record."""

    group: GroupKey
    status: str
    awaiting: bool
    open_halts: int
    unacknowledged: int
    survival: tuple[tuple[str | None, str, int, int], ...]


def head(row: Row) -> Head | None:
    """Return what a row adds besides findings; None: nothing, for nothing but an acknowledgement has been heard."""
    if not row.is_known():
        return None
    record = row.standing.record
    return Head(
        row.group(),
        row.status() or UNKNOWN,
        record is not None and record.awaiting,
        sum(1 for _ in row.open_halts()),
        sum(1 for _ in row.unacknowledged()),
        tuple((s.model, f"{s.what}/{s.level}", s.checked, s.kept) for s in row.survival()),
    )


class Partials:
    """Keep the partials of one input partition, by (tenant, agent, model), as its rows change."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Partial] = {}
        self.changed: set[GroupKey] = set()
        """The groups that have changed since somebody emptied this."""

    def add(self, row: Row) -> None:
        """Count a row that was not there."""
        self.move(None, head(row), row)
        for group, counts in row.findings.counts:
            self._at(group).counts.include(counts)

    def remove(self, row: Row) -> None:
        """Count a row no more."""
        self.move(head(row), None, row)
        for group, counts in row.findings.counts:
            self._at(group).counts.include(counts, -1)
            self._drop_empty(group)

    def count(self, group: GroupKey, rule: str, at: float) -> None:
        """Count a new finding."""
        partial = self._at(group)
        partial.counts.add(rule, at)
        partial.seen(at, at)

    def move(self, before: Head | None, after: Head | None, row: Row) -> None:
        """Count what a row adds besides findings, where it differs from what it added before."""
        if after is not None:
            self._at(after.group).seen(row.first_seen(), row.last_seen())
        if before == after:
            return
        for what, sign in ((after, 1), (before, -1)):
            if what is not None:
                self._shift(what, sign)
        if before is not None:
            self._drop_empty(before.group)
            for model, *_ in before.survival:
                self._drop_empty(before.group._replace(model=model))

    def _shift(self, what: Head, sign: int) -> None:
        partial = self._at(what.group)
        partial.sessions += sign
        partial.awaiting += sign * what.awaiting
        partial.open_halts += sign * what.open_halts
        partial.unacknowledged += sign * what.unacknowledged
        number = partial.statuses.get(what.status, 0) + sign
        if number:
            partial.statuses[what.status] = number
        else:
            partial.statuses.pop(what.status, None)
        for model, key, checked, kept in what.survival:
            self._at(what.group._replace(model=model))._survive(key, sign * checked, sign * kept)

    def _at(self, group: GroupKey) -> Partial:
        self.changed.add(group)
        partial = self.groups.get(group)
        if partial is None:
            partial = self.groups[group] = Partial()
        return partial

    def _drop_empty(self, group: GroupKey) -> None:
        partial = self.groups.get(group)
        if partial is not None and partial.is_empty():
            self.changed.add(group)
            del self.groups[group]


class Dim(NamedTuple):
    """Name a tenant, an agent or a model; `name` None: those that name none."""

    by: Dimension
    name: str | None


def dims_of(group: GroupKey) -> tuple[Dim, Dim, Dim]:
    """Return the three that a group belongs to."""
    return Dim("tenant", group.tenant), Dim("agent", group.agent), Dim("model", group.model)


def of_dim(groups: Mapping[GroupKey, Partial], dim: Dim) -> Partial:
    """Return the sum of all groups of a tenant, an agent or a model."""
    result = Partial()
    for group, partial in groups.items():
        if getattr(group, dim.by) == dim.name:
            result.include(partial)
    return result


def summed(parts: Iterable[Mapping[GroupKey, Partial]], by: Dimension = "group") -> dict[GroupKey, Partial]:
    """Add partials of several partitions, by group or by one of its three names (the other two are None)."""
    result: dict[GroupKey, Partial] = {}
    for groups in parts:
        for group, partial in groups.items():
            key = group
            if by != "group":
                key = GroupKey(None, None, None)._replace(**{by: getattr(group, by)})
            found = result.get(key)
            if found is None:
                found = result[key] = Partial()
            found.include(partial)
    return result


def view(by: Dimension, key: GroupKey, partial: Partial, now: float) -> Group:
    """Return a group as it is shown."""
    return Group(
        by=by,
        tenant=key.tenant,
        agent=key.agent,
        model=key.model,
        sessions=partial.sessions,
        statuses=dict(sorted(partial.statuses.items())),
        degraded=partial.degraded,
        awaiting=partial.awaiting,
        open_halts=partial.open_halts,
        rules=rates(partial.counts, now),
        survival=survival(partial),
        last_seen=moment(partial.last),
    )


def rates(counts: Counts, now: float) -> list[RuleRate]:
    """Return how often each rule fired, the most frequent of the last hour first."""
    short, long = counts.within(SHORT, now), counts.within(LONG, now)
    before = counts.before(now)
    hours = known_hours(counts, now)
    found = [
        RuleRate(
            rule=rule,
            last_5m=short.get(rule, 0),
            last_1h=long.get(rule, 0),
            per_hour_before=round(before.get(rule, 0) / hours, 3) if hours else 0.0,
            first_seen=moment(counts.first(rule, now)),
            since=moment(counts.risen(rule, now, RISE, RISE_LEAST)),
        )
        for rule in sorted(counts.rules())
    ]
    return sorted((r for r in found if r.first_seen), key=lambda r: (-r.last_1h, -r.last_5m, r.rule))


def known_hours(counts: Counts, now: float) -> int:
    """Return how many of the hours that `Counts.before` sums up are known: those since the first that is counted."""
    oldest = counts.oldest()
    return 0 if oldest is None else min(23, max(0, int(now // HOUR) - 1 - int(oldest // HOUR)))


def survival(partial: Partial) -> list[SurvivalRate]:
    """Return what survived, by what and level."""
    found = []
    for key, (checked, kept) in partial.survival.items():
        what, _, level = key.partition("/")
        fields = {"what": what, "level": int(level), "checked": checked, "kept": kept}
        found.append(msgspec.convert(fields, SurvivalRate))
    return sorted(found, key=lambda s: (s.what, s.level))


def freezes(counts: Counts, seconds: float, now: float) -> int:
    """Return how many findings that freeze a node there were in the window that ends now."""
    return sum(number for rule, number in counts.within(seconds, now).items() if rule in _FREEZING)


def statuses(parts: Iterable[Partial]) -> Counter[str]:
    """Return how many sessions have each status."""
    result: Counter[str] = Counter()
    for partial in parts:
        result.update(partial.statuses)
    return result


def survival_by_model(
    groups: Sequence[tuple[GroupKey, Partial]], most: int
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return what survived summaries, by (model, what, level): how many had to be carried, and how many were.

    Args:
        groups: partials, of any partitions.
        most: how many models are named, those with the most to carry; the rest are `other`.
    """
    weights: Counter[str | None] = Counter()
    for group, partial in groups:
        weights[group.model] += sum(checked for checked, _ in partial.survival.values())
    named = {model: shown(model, 60) if model else "none" for model, weight in weights.most_common(most) if weight}
    result: dict[tuple[str, str, str], tuple[int, int]] = {}
    for group, partial in groups:
        for key, (checked, kept) in partial.survival.items():
            what, _, level = key.partition("/")
            label = level if int(level) < len(LEVEL_LABELS) else LEVEL_LABELS[-1]
            before = result.get((named.get(group.model, "other"), what, label), (0, 0))
            result[named.get(group.model, "other"), what, label] = (before[0] + checked, before[1] + kept)
    return result


_FREEZING = frozenset(rule.name for rule in CATALOGUE.values() if rule.disposition == "freeze")


# --- on the wire ------------------------------------------------------------------------------------------------------


class Wire(Struct, array_like=True):
    """A partial as it goes to whoever adds up its tenant, agent or model.

    `at` is when it was made (Unix seconds); `behind`: its partition had more to read; `fresh`: it has had nothing to
    read once since its worker took it over. `partial` None: there is none any more.
    """

    dim: Dim
    partition: int
    at: float
    behind: bool
    fresh: bool
    partial: Partial | None


encode_wire = msgspec.msgpack.Encoder().encode
decode_wire = msgspec.msgpack.Decoder(Wire).decode
encode_groups = msgspec.msgpack.Encoder().encode
_decode_pairs = msgspec.msgpack.Decoder(list[tuple[GroupKey, Partial]]).decode


def pack(groups: Mapping[GroupKey, Partial]) -> bytes:
    """Return partials by group as bytes."""
    return encode_groups(list(groups.items()))


def unpack(data: bytes) -> dict[GroupKey, Partial]:
    """Return the partials of such bytes."""
    return dict(_decode_pairs(data))


def dim_key(dim: Dim) -> bytes:
    """Return a tenant, agent or model as bytes: what decides the partition of its partials."""
    return msgspec.json.encode(dim)


def wire_key(dim: Dim, partition: int) -> bytes:
    """Return the key of a partial: one for each tenant, agent or model and input partition."""
    return msgspec.json.encode((*dim, partition))


def iter_dims(groups: Iterable[GroupKey]) -> Iterator[Dim]:
    """Yield every tenant, agent and model of some groups, each once."""
    seen: set[Dim] = set()
    for group in groups:
        for dim in dims_of(group):
            if dim not in seen:
                seen.add(dim)
                yield dim
