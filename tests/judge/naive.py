"""A second reading of the record protocol: slow, plain, and written without a look at the engine.

The file is in the protocol's order: reading a record, the order of the fold, the words, the rules, status and
halts. What is kept of a session is its history and nothing else - lists that only grow - and every question
is answered by a scan of them. So there is no state that could be forgotten or updated in the wrong order,
which is what the engine, that does keep state, is compared with.
"""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_INTEGER = 2**61 - 1
REMEMBERED = 1024  # positions, or records without seq, whose content is still compared


@dataclass(frozen=True)
class Workload:
    floor: float
    gc_requires_probe: bool


WORKLOADS: Mapping[str, Workload] = {
    "remediation": Workload(0.85, True),
    "narrative": Workload(0.60, False),
}


@dataclass(frozen=True)
class Found:
    """A finding, as far as it can be compared.

    `detail` is the evidence that tells it from another one of the same rule and subject: the referent,
    constraint or fact, the dep, the handle, the edges (sorted, "action<-precondition,..."), the last position
    of a run that is missing (empty where it is one), the generation of any other rule about a node; else empty.
    Two generations of a node can lose the same referent at the
    same position: these are two findings, and look the same here.
    """

    rule: str
    subject_type: str
    subject_id: str
    position: int
    detail: str
    severity: str


@dataclass
class Verdict:
    findings: list[Found]
    halts: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    dead: int
    duplicates: int
    late: int


# ---------------------------------------------------------------------------------------------------------
# Reading a record

SINGLE_IDS = frozenset(
    {
        "session_id",
        "action_id",
        "precondition_id",
        "referent_id",
        "constraint_id",
        "fact_id",
        "call_key",
        "node_id",
        "checkpoint_id",
        "tenant",
        "agent",
        "model",
    }
)
COMPACTION_KINDS = frozenset({"summary", "checkpoint", "resume", "reconcile", "gc", "probe"})
Check = Callable[[Any], None]


class Unreadable(ValueError):
    """The record is not valid. `place` is its session and position, if these can be read all the same."""

    def __init__(self, reason: str, place: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.place = place


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise Unreadable(f"{value!r} is not a string")


def _non_empty(value: Any) -> None:
    _text(value)
    if not value:
        raise Unreadable("empty string")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise Unreadable(f"{value!r} is not a boolean")


def _integer(least: int) -> Check:
    def check(value: Any) -> None:
        # In Python a bool is an int; in JSON it is not. 1.0 and 1e0 are floats here, as they should be.
        if type(value) is not int:
            raise Unreadable(f"{value!r} is not an integer")
        if not least <= value <= MAX_INTEGER:
            raise Unreadable(f"{value} is out of bounds")

    return check


_from_0, _from_1 = _integer(0), _integer(1)


def _recall(value: Any) -> None:
    if type(value) not in (int, float):
        raise Unreadable(f"{value!r} is not a number")
    if not 0 < value <= 1:
        raise Unreadable(f"{value} is not in (0, 1]")


def _one_of(*values: str) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in values:
            raise Unreadable(f"{value!r} is none of {values}")

    return check


def _ids(value: Any) -> None:
    if not isinstance(value, list):
        raise Unreadable(f"{value!r} is not a list")
    for each in value:
        _non_empty(each)  # null and "" are absent as fields, but wrong inside a list


def _edges(value: Any) -> None:
    if not isinstance(value, list):
        raise Unreadable(f"{value!r} is not a list")
    for each in value:
        _ids(each)
        if len(each) != 2:
            raise Unreadable("an edge is a pair")


def _facts(value: Any) -> None:
    if not isinstance(value, dict):
        raise Unreadable(f"{value!r} is not an object")
    for text in value.values():
        if text is not None:  # null counts as absent everywhere but in a list
            _text(text)


RETENTION: Mapping[str, Check] = {
    "per_node_recall": _recall,
    "source": _one_of("probe", "self_reported"),
    "depth": _from_1,
    "workload": _text,
    "flatten_available": _flag,
}


def _retention(value: Any) -> None:
    if not isinstance(value, dict):
        raise Unreadable(f"{value!r} is not an object")
    _check_fields(value, RETENTION, ("per_node_recall", "source", "depth"))


def _check_fields(fields: Mapping[str, Any], known: Mapping[str, Check], required: Sequence[str]) -> None:
    for name in required:
        if fields.get(name) is None:
            raise Unreadable(f"{name} is missing")
    for name, check in known.items():
        if fields.get(name) is not None:
            try:
                check(fields[name])
            except Unreadable as error:
                raise Unreadable(f"{name}: {error}") from None


_RANGE: dict[str, Check] = {"frontier_lo": _from_1, "frontier_hi": _from_1}

# kind -> (the required fields, the known ones)
KINDS: Mapping[str, tuple[Sequence[str], Mapping[str, Check]]] = {
    "authorization": ((), {"action_id": _text, "precondition_id": _text, "uses": _from_1}),
    "revocation": (("action_id",), {"action_id": _text, "precondition_id": _text}),
    "action": (("action_id",), {"action_id": _text, "irreversible": _flag}),
    "referent_added": (("referent_id",), {"referent_id": _text, "store": _one_of("live", "durable")}),
    "referent_removed": (("referent_id",), {"referent_id": _text, "store": _one_of("live", "durable")}),
    "constraint": (
        ("constraint_id",),  # and the polarity, unless it is retired
        {
            "constraint_id": _text,
            "polarity": _one_of("negative", "positive"),
            "text": _text,
            "retired": _flag,
            "inferred": _flag,
        },
    ),
    "fact": (
        ("fact_id", "anchor"),
        {"fact_id": _text, "anchor": _non_empty, "floor_tokens": _from_0, "text": _text, "inferred": _flag},
    ),
    "tool_result": (
        ("call_key", "handle"),
        {"call_key": _text, "handle": _text, "referents": _ids, "inferred": _flag},
    ),
    "baseline": ((), {"edges": _edges, "live": _ids, "durable": _ids, "negative_constraints": _ids}),
    "summary": (
        ("node_id", "generation", "level", "frontier_lo", "frontier_hi"),
        {
            "node_id": _text,
            "generation": _from_1,
            "level": _from_1,
            **_RANGE,
            "children": _ids,
            "root": _flag,
            "referents": _ids,
            "negative_constraints": _ids,
            "facts": _facts,
            "dropped": _ids,
            "input_tokens": _from_0,
            "input_tokens_read": _from_0,
            "token_budget": _from_0,
            "tokens_emitted": _from_0,
            "instruction": _text,
            "partial": _flag,
            "retention": _retention,
        },
    ),
    "checkpoint": (
        ("checkpoint_id", "node_id", "summary_generation", "level", "turn", "frontier_lo", "frontier_hi"),
        {
            "checkpoint_id": _text,
            "node_id": _text,
            "summary_generation": _from_1,
            "level": _from_1,
            "turn": _from_0,
            **_RANGE,
            "asserted_edges": _edges,
            "verbatim_refs": _ids,
            "inferred": _flag,
        },
    ),
    "resume": (("checkpoint_id",), {"checkpoint_id": _text, "deps": _ids, "replayed_to": _from_1}),
    "reconcile": (("decision",), {"decision": _one_of("replay", "accept_divergence")}),
    "gc": (("node_ids",), {"node_ids": _ids}),
    "probe": (
        ("node_id", "probes", "recalled"),
        {"node_id": _text, "probes": _from_1, "recalled": _from_0},
    ),
}


@dataclass(frozen=True, eq=False)
class Record:
    """A valid record: its fields without the absent ones, and its content in a form to compare."""

    fields: Mapping[str, Any]
    content: str

    @property
    def kind(self) -> str:
        return str(self.fields["kind"])

    @property
    def seq(self) -> int | None:
        return self.fields.get("seq")

    @property
    def as_of_seq(self) -> int | None:
        """For a record without seq: the position up to which the log must have been applied (None: any)."""
        default = self.fields["frontier_hi"] if self.kind in ("summary", "checkpoint") else None
        as_of: int | None = self.fields.get("as_of_seq", default)
        return as_of


def readable_ts(value: Any) -> bool:
    """Is this a date-time of RFC 3339?"""
    pattern = r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|[+-](\d\d):(\d\d))"
    match = re.fullmatch(pattern, value, re.ASCII) if isinstance(value, str) else None
    if match is None:
        return False
    year, month, day, hour, minute, second, zone_h, zone_m = (int(part or 0) for part in match.groups())
    return (
        year >= 1
        and 1 <= month <= 12
        and 1 <= day <= calendar.monthrange(year, month)[1]
        and hour <= 23
        and minute <= 59
        and second <= 60
        and zone_h <= 23
        and zone_m <= 59
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read(line: bytes) -> Record:
    """The record in this line, or `Unreadable`."""
    twice: list[set[str]] = []  # of every object in the line the keys that it has more than once; outermost last

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        twice.append({name for name in names if names.count(name) > 1})
        return dict(items)

    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=pairs)
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable("not an object")
    fields = {
        name: each
        for name, each in value.items()
        if each is not None and not (each == "" and name in SINGLE_IDS) and (name != "ts" or readable_ts(each))
    }
    place = None
    try:
        _check_fields(fields, {"session_id": _text, "seq": _from_1}, ("session_id",))
        if "seq" in fields and not twice[-1] & {"session_id", "seq"}:
            place = (fields["session_id"], fields["seq"])
        if any(twice):  # the protocol does not say which of the two would count
            raise Unreadable("a key is there twice")
        if "seq" in fields:
            fields.pop("as_of_seq", None)  # ignored beside a seq
        _check_fields(
            fields,
            {"kind": _text, "tenant": _text, "agent": _text, "model": _text, "as_of_seq": _from_0},
            ("kind",),
        )
        kind = fields["kind"]
        if "seq" not in fields and kind not in COMPACTION_KINDS:
            raise Unreadable("seq is missing")
        required, known = KINDS.get(kind, ((), {}))
        _check_fields(fields, known, required)
        if kind == "constraint" and "polarity" not in fields and not fields.get("retired", False):
            raise Unreadable("polarity is missing")
        if kind in ("summary", "checkpoint") and fields["frontier_lo"] > fields["frontier_hi"]:
            raise Unreadable("frontier_lo > frontier_hi")
        if kind == "probe" and fields["recalled"] > fields["probes"]:
            raise Unreadable("recalled > probes")
    except Unreadable as error:
        raise Unreadable(str(error), place) from None
    if kind == "summary":
        for name in ("facts", "retention"):
            if name in fields:
                fields[name] = {key: each for key, each in fields[name].items() if each is not None}
    return Record(fields, json.dumps(fields, sort_keys=True))


# ---------------------------------------------------------------------------------------------------------
# The order of the fold


@dataclass(eq=False)
class Step:
    """One thing that the fold of a session meets.

    `what` is "record"; "baseline" (one that is taken: any other is a record like all that are opaque); "missing"
    (a run of positions); "conflict" (another record for a position); "joined" (the session begins midstream);
    "end".
    """

    what: str
    position: int  # of a record its place in the log (without seq: where it was judged); of a run its first
    record: Record | None = None
    awaited: range = range(0)  # of a record without seq past the bound: the positions that never came
    last: int = 0  # of a run of missing positions, and of one in conflict: its last
    applied: int = 0  # how far the log was applied when this came up
    index: int = -1  # the place in the fold's order: what "before" and "after" mean

    @property
    def kind(self) -> str:
        return self.record.kind if self.record is not None and self.what == "record" else ""

    def __getitem__(self, name: str) -> Any:
        assert self.record is not None
        return self.record.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        assert self.record is not None
        return self.record.fields.get(name, default)


Midstream = Literal["skip", "judge"]


class Log:
    """Puts what arrives of one session into the order of the fold, as a list of steps.

    What has no say in any verdict makes no step: all that comes while the session is unjudged.
    """

    def __init__(self, max_waiting: int | None, midstream: Midstream, remembered: int) -> None:
        self.max_waiting = max_waiting
        self.midstream = midstream
        self.remembered = remembered
        self.position = 0
        self.steps: list[Step] = []
        self.contents: dict[int, str] = {}  # of every position applied that was not missing then
        self.gaps: list[range] = []  # the positions that are missing: given up, unreadable, refused, contested
        self.waiting: dict[int, Record | None] = {}  # None: what came for it cannot be read, or is refused
        self.contesting: dict[int, list[Record]] = {}  # what came for a position that another one waits at
        self.unsequenced: list[Record] = []  # waiting, in order of arrival
        self.unsequenced_contents: list[str] = []
        self.tenant: str | None = None
        self.unjudged = False
        self.baseline = 0  # the position of the one that was taken; 0: none was
        self.refused = 0
        self.duplicates = 0
        self.late = 0

    def arrive(self, record: Record) -> None:
        if self._is_foreign(record):  # where the tenant is known only later, it is refused when its turn comes
            self.refused += 1
            if record.seq is not None:
                self.arrive_unreadable(record.seq)
        elif record.seq is None:
            self._arrive_without_seq(record)
        elif record.seq <= self.position:
            self._arrive_behind(record, record.seq)
        elif record.seq in self.waiting:
            self._arrive_again(record, record.seq)
        else:
            self.waiting[record.seq] = record
            self._advance()

    def arrive_unreadable(self, position: int) -> None:
        """It takes its position, unless that is taken already."""
        if position > self.position and position not in self.waiting:
            self.waiting[position] = None
            self._advance()

    def _is_foreign(self, record: Record) -> bool:
        """It names another tenant than the first record with a place in the log that named one, judged or not."""
        named = record.fields.get("tenant")
        return self.tenant is not None and named is not None and named != self.tenant

    def _arrive_behind(self, record: Record, seq: int) -> None:
        """For a position that the log has passed."""
        remembered = seq > self.position - self.remembered
        if self.unjudged or seq < self.baseline or any(seq in gap for gap in self.gaps):
            self.late += 1  # a conflict before a baseline is none: the protocol does not say what it is instead
        elif remembered and record.content == self.contents[seq]:
            self.duplicates += 1
        else:
            self._conflict(seq)

    def _arrive_again(self, record: Record, seq: int) -> None:
        """For a position that something waits at. Whether it is a conflict shows when the log gets there."""
        waiting = self.waiting[seq]
        if waiting is None:
            self.late += 1
        elif record.content == waiting.content:
            self.duplicates += 1
        else:
            self.contesting.setdefault(seq, []).append(record)

    def _conflict(self, seq: int) -> None:
        """From here on the position is missing, so that there is one conflict a position."""
        self.gaps.append(range(seq, seq + 1))
        self.steps.append(Step("conflict", seq, last=seq, applied=self.position))

    def _arrive_without_seq(self, record: Record) -> None:
        if record.content in self.unsequenced_contents[-self.remembered :]:
            self.duplicates += 1
            return
        self.unsequenced_contents.append(record.content)
        if record.as_of_seq is None or record.as_of_seq <= self.position:
            self._apply_without_seq(record)
        else:
            self.unsequenced.append(record)

    def _apply_without_seq(self, record: Record, awaited: range = range(0), position: int | None = None) -> None:
        """It names no tenant (what is refused must not depend on when this arrives), but it may name a wrong one."""
        at = self.position if position is None else position
        if self._is_foreign(record):
            self.refused += 1
        elif not self.unjudged:
            self.steps.append(Step("record", at, record, awaited, applied=at))

    def _advance(self) -> None:
        """Apply what is next for as long as it is there, or as the bound allows no more waiting for it."""
        while self.position + 1 in self.waiting or self._too_many_wait():
            self._step()

    def _too_many_wait(self) -> bool:
        return self.max_waiting is not None and len(self.waiting) > self.max_waiting

    def _step(self) -> None:
        """Apply what waits at the next position, or give up all up to the next thing that waits."""
        position = self.position + 1
        if position not in self.waiting:
            self._give_up(range(position, min(self.waiting)))
        else:
            record = self.waiting.pop(position)
            if record is not None and self._is_foreign(record):
                self.refused += 1
                record = None  # and what contested the position is of no account: it is missing anyway
            if record is None:
                self._give_up(range(position, position + 1), waited=False)
            else:
                self._apply(record, position)
        for each in self._unsequenced_in_order():
            if _as_of(each) <= self.position:  # within a run that is given up, the log gets there with the run
                self.unsequenced.remove(each)
                self._apply_without_seq(each, position=_as_of(each))

    def _give_up(self, run: range, *, waited: bool = True) -> None:
        """These are missing, all at once. What was waited for in vain from the session's begin on, before anything
        was judged, is what came before the sidecar did."""
        self.position = run[-1]
        self.gaps.append(run)
        if waited and run[0] == 1 and not self.steps and self.midstream == "skip":
            self.unjudged = True
            self.steps.append(Step("joined", run[-1] + 1, applied=self.position))
        elif not self.unjudged:
            self.steps.append(Step("missing", run[0], last=run[-1], applied=self.position))

    def _apply(self, record: Record, position: int) -> None:
        """The next position: its record, and a conflict seen meanwhile."""
        self.position = position
        self.contents[position] = record.content
        self.tenant = self.tenant or record.fields.get("tenant")
        if record.kind == "baseline" and (self.unjudged or position == 1):
            self.unjudged = False
            self.baseline = position
            self.steps.append(Step("baseline", position, record, applied=position))
        elif not self.unjudged:
            self.steps.append(Step("record", position, record, applied=position))
        contesting = self.contesting.pop(position, [])
        foreign = [each for each in contesting if self._is_foreign(each)]  # as if they had come only now
        self.refused += len(foreign)
        if len(contesting) > len(foreign) and not self.unjudged:
            self._conflict(position)

    def _unsequenced_in_order(self) -> list[Record]:
        return sorted(self.unsequenced, key=_as_of)  # a stable sort: then in order of arrival

    def end(self) -> None:
        """The end of the input: first the gaps, then the records without seq that still wait."""
        while self.waiting:
            self._step()
        for record in self._unsequenced_in_order():
            self._apply_without_seq(record, range(self.position + 1, _as_of(record) + 1))
        self.steps.append(Step("end", self.position, applied=self.position))


def _as_of(record: Record) -> int:
    assert record.as_of_seq is not None
    return record.as_of_seq


# ---------------------------------------------------------------------------------------------------------
# The history of a session, and the protocol's words about it

Edge = tuple[str, str]  # (action, precondition)


@dataclass(frozen=True, eq=False)
class Generation:
    """A summary that was taken."""

    step: Step
    children: tuple[Generation, ...]  # its known children at their newest generations then
    built_from: frozenset[Generation]  # these, and what they were built from

    @property
    def node(self) -> str:
        return str(self.step["node_id"])

    @property
    def number(self) -> int:
        return int(self.step["generation"])

    @property
    def lo(self) -> int:
        return int(self.step["frontier_lo"])

    @property
    def hi(self) -> int:
        return int(self.step["frontier_hi"])

    def covers(self, position: int) -> bool:
        """Is this position in its range, or in one that it inherits, and not behind the end of its own?"""
        ranges = ((each.lo, each.hi) for each in (self, *self.built_from))
        return position <= self.hi and any(lo <= position <= hi for lo, hi in ranges)

    @property
    def partial(self) -> bool:
        """One that was judged before the log got to its end counts as partial."""
        return bool(self.step.get("partial", False)) or bool(self.step.awaited)

    @property
    def referents(self) -> frozenset[str]:
        return frozenset(self.step.get("referents", ()))

    @property
    def retention(self) -> Mapping[str, Any] | None:
        retention: Mapping[str, Any] | None = self.step.get("retention")
        return retention


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was taken."""

    step: Step

    @property
    def id(self) -> str:
        return str(self.step["checkpoint_id"])

    @property
    def node(self) -> str:
        return str(self.step["node_id"])

    @property
    def number(self) -> int:
        return int(self.step["summary_generation"])

    @property
    def level(self) -> int:
        return int(self.step["level"])

    @property
    def lo(self) -> int:
        return int(self.step["frontier_lo"])

    @property
    def hi(self) -> int:
        return int(self.step["frontier_hi"])

    @property
    def inferred(self) -> bool:
        return bool(self.step.get("inferred", False))

    @property
    def asserted(self) -> set[Edge] | None:
        edges = self.step.get("asserted_edges")
        return None if edges is None else {(action, precondition) for action, precondition in edges}


@dataclass(frozen=True, eq=False)
class Finding:
    rule: str
    subject_type: str
    subject_id: str
    detail: str
    evidence: tuple[Any, ...]  # what the rule fires once for, beside its subject
    generation: int | None  # of the node: the one that it belongs to
    severity: str
    disposition: str
    step: Step
    position: int
    inferred: bool  # it rests on something inferred: it opens no halt, and counts for no status

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.rule, self.subject_id, self.evidence)


@dataclass(eq=False)
class Halt:
    findings: list[Finding]
    checkpoint_id: str | None
    open: bool = True

    @property
    def reason(self) -> list[str]:
        return sorted({finding.rule for finding in self.findings})


@dataclass(frozen=True)
class Use:
    """An irreversible action used this edge; `last`: it may not be used again."""

    position: int
    edge: Edge
    last: bool


@dataclass
class Past:
    """What the fold of one session has met so far. Every list only grows, in the order of the fold."""

    workloads: Mapping[str, Workload]
    steps: list[Step] = field(default_factory=list)
    of_kind: dict[str, list[Step]] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    halts: list[Halt] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Step]:
        """The records of these kinds, in the order of the fold."""
        if len(kinds) == 1:
            return self.of_kind.get(kinds[0], [])
        steps = [step for kind in kinds for step in self.of_kind.get(kind, ())]
        return sorted(steps, key=lambda step: step.index)

    def last(self, kind: str) -> Step | None:
        steps = self.of(kind)
        return steps[-1] if steps else None


def edge_of(step: Step) -> Edge | None:
    """The edge of an authorization; None where it is not explicit."""
    action, precondition = step.get("action_id"), step.get("precondition_id")
    return None if action is None or precondition is None else (action, precondition)


def grants(past: Past, edge: Edge, hi: int) -> list[int]:
    """The positions up to `hi` that grant this edge."""
    return [step.position for step in past.of("authorization") if step.position <= hi and edge_of(step) == edge]


def ends(past: Past, edge: Edge, hi: int) -> list[int]:
    """The positions up to `hi` that revoke this edge, by name or with all edges of its action, or use it up."""
    action, precondition = edge
    revoked = [
        step.position
        for step in past.of("revocation")
        if step.position <= hi
        and step["action_id"] == action
        and step.get("precondition_id", precondition) == precondition
    ]
    return revoked + [use.position for use in past.uses if use.last and use.edge == edge and use.position <= hi]


def effective(past: Past, edge: Edge, hi: int) -> bool:
    """Its latest grant up to `hi` is not followed by a revocation of it, or by its last use, up to there."""
    granted = grants(past, edge, hi)
    return bool(granted) and not any(end > max(granted) for end in ends(past, edge, hi))


def granted_edges(past: Past, lo: int, hi: int) -> set[Edge]:
    """The edges granted at a position from `lo` to `hi`."""
    edges = {edge_of(step) for step in past.of("authorization") if lo <= step.position <= hi}
    return {edge for edge in edges if edge is not None}


def effective_edges(past: Past, action: str, position: int) -> set[Edge]:
    """The edges of this action in effect at this position."""
    edges = {edge for edge in granted_edges(past, 1, position) if edge[0] == action}
    return {edge for edge in edges if effective(past, edge, position)}


def use_of(past: Past, step: Step) -> Use | None:
    """What this action, which has been judged, uses up: nothing while some edge of it has no limit, else one use
    of the edge whose newest grant came first."""
    edges = effective_edges(past, step["action_id"], step.position)
    newest_grants = {edge: [each for each in past.of("authorization") if edge_of(each) == edge][-1] for edge in edges}
    limits = {edge: grant.get("uses") for edge, grant in newest_grants.items()}
    if not step.get("irreversible", False) or not edges or None in limits.values():
        return None
    edge = min(edges, key=lambda each: (newest_grants[each].position, each[1]))
    granted_at = newest_grants[edge].position
    used = sum(use.edge == edge and use.position > granted_at for use in past.uses) + 1
    return Use(step.position, edge, last=used >= limits[edge])


def authorizations_after(past: Past, position: int) -> bool:
    """Is there any record of class authorization, explicit or not, or a last use, behind this position?"""
    return any(step.position > position for step in past.of("authorization", "revocation")) or any(
        use.last and use.position > position for use in past.uses
    )


def missing(past: Past) -> list[tuple[int, int]]:
    """The runs of missing positions, a position in conflict being one: for a record judged past the bound also
    those that it waited for in vain."""
    runs = [(step.position, step.last) for step in past.steps if step.what in ("missing", "conflict")]
    awaited = past.steps[-1].awaited
    return [*runs, (awaited[0], awaited[-1])] if awaited else runs


def missing_within(past: Past, lo: int, hi: int | None = None) -> bool:
    """Before the baseline nothing is missing, but for a range that ends there: of that, everything is."""
    if hi is not None and hi < baseline_position(past):
        return True
    return any(lo <= last and (hi is None or first <= hi) for first, last in missing(past))


def baseline_position(past: Past) -> int:
    """That of the baseline that was taken; 1 where none was."""
    return next((step.position for step in past.steps if step.what == "baseline"), 1)


def states(step: Step) -> list[Step]:
    """What a baseline states, as the events that would have: all of them at its position."""

    def event(kind: str, **fields: Any) -> Step:
        return Step("record", step.position, Record({"kind": kind, **fields}, ""), index=step.index)

    return [
        *(event("authorization", action_id=edge[0], precondition_id=edge[1]) for edge in step.get("edges", ())),
        *(event("referent_added", referent_id=each, store="live") for each in step.get("live", ())),
        *(event("referent_added", referent_id=each, store="durable") for each in step.get("durable", ())),
        *(
            event("constraint", constraint_id=each, polarity="negative")
            for each in step.get("negative_constraints", ())
        ),
    ]


def unjudged(past: Past) -> bool:
    """It was joined midstream, and no baseline was taken since."""
    kinds = [step.what for step in past.steps]
    return "joined" in kinds and "baseline" not in kinds


def reachable(past: Past) -> set[str]:
    """The referents that some store holds now. A tool's result puts its referents into `live`."""
    held: set[tuple[str, str]] = set()
    for step in past.of("referent_added", "referent_removed", "tool_result"):
        if step.kind == "tool_result":
            held |= {("live", referent) for referent in step.get("referents", ())}
        elif step.kind == "referent_added":
            held.add((step.get("store", "live"), step["referent_id"]))
        else:
            held.discard((step.get("store", "live"), step["referent_id"]))
    return {referent for _, referent in held}


def newest(past: Past, node: str) -> Generation | None:
    """The node's last generation taken. None: the node is unknown."""
    of_node = [generation for generation in past.generations if generation.node == node]
    return of_node[-1] if of_node else None


def previous(past: Past, generation: Generation) -> Generation | None:
    """The generation of the node that was taken before this one."""
    before = [
        other
        for other in past.generations
        if other.node == generation.node and other.step.index < generation.step.index
    ]
    return before[-1] if before else None


def commit(past: Past, step: Step) -> Generation:
    """Take a summary: settle what it was built from."""
    names = [name for name in dict.fromkeys(step.get("children", ())) if name != step["node_id"]]
    known = [newest(past, name) for name in names]
    children = tuple(child for child in known if child is not None)
    built_from = frozenset(children).union(*(child.built_from for child in children))
    generation = Generation(step, children, built_from)
    past.generations.append(generation)
    return generation


def reclaimed(past: Past, generation: Generation) -> bool:
    """Has its node been reclaimed since it was committed?"""
    return any(step.index > generation.step.index and generation.node in step["node_ids"] for step in past.of("gc"))


def checkpoint_named(past: Past, checkpoint_id: str) -> Checkpoint | None:
    return next((each for each in past.checkpoints if each.id == checkpoint_id), None)


def newest_checkpoint(past: Past) -> Checkpoint | None:
    return past.checkpoints[-1] if past.checkpoints else None


def in_force(past: Past) -> Checkpoint | None:
    """The checkpoint of the last resume, if known, until a newer one is written; else the newest."""
    last, resume = newest_checkpoint(past), past.last("resume")
    if last is not None and resume is not None and resume.index > last.step.index:
        return checkpoint_named(past, resume["checkpoint_id"]) or last
    return last


def basis(past: Past, checkpoint: Checkpoint) -> set[Generation]:
    """Its node at its generation, once that is committed, and all that this was built from."""
    for generation in past.generations:
        if (generation.node, generation.number) == (checkpoint.node, checkpoint.number):
            return {generation, *generation.built_from}
    return set()


def in_use(past: Past) -> list[Generation]:
    """The generations not reclaimed that the checkpoint in force rests on, or that are their node's newest
    and newer than every checkpoint."""
    force, last = in_force(past), newest_checkpoint(past)
    rests_on = basis(past, force) if force is not None else set()
    newest_of = {generation.node: generation for generation in past.generations}  # the last one wins
    return [
        generation
        for generation in past.generations
        if (
            generation in rests_on
            or (newest_of[generation.node] is generation and (last is None or generation.step.index > last.step.index))
        )
        and not reclaimed(past, generation)
    ]


def safe(past: Past, resume: Step) -> bool:
    """A resume that was neither from an unverified checkpoint nor missing a dependency."""
    return not any(
        finding.step is resume and finding.rule in ("resumed_unverified", "dependency_missing")
        for finding in past.findings
    )


def awaiting(past: Past) -> bool:
    """The last resume was not safe, and no reconcile came since."""
    resume, reconcile = past.last("resume"), past.last("reconcile")
    if resume is None or safe(past, resume):
        return False
    return reconcile is None or reconcile.index < resume.index


def workload(past: Past, generation: Generation) -> Workload:
    """That of its retention, if it is configured; else `remediation`."""
    name = (generation.retention or {}).get("workload")
    return past.workloads.get(name or "", past.workloads["remediation"])


def probes(past: Past, node: str) -> list[Step]:
    return [step for step in past.of("probe") if step["node_id"] == node]


def counting(past: Past, kind: str, name: str, hi: int) -> list[Step]:
    """Of each fact or constraint the record that counts: the last at or before `hi`."""
    return list({step[name]: step for step in past.of(kind) if step.position <= hi}.values())


def only_inherited(generation: Generation, position: int, unharmed: Callable[[Step], bool]) -> bool:
    """A known child covers that position, and no known child carries the thing unharmed in this respect."""
    return any(child.covers(position) for child in generation.children) and not any(
        unharmed(child.step) for child in generation.children
    )


# ---------------------------------------------------------------------------------------------------------
# The rules. Each function says what its rule finds: whether it fires, or the things that it fires for.

SEVERITY_AND_DISPOSITION: Mapping[str, tuple[str, str]] = {
    "frontier_ahead_of_log": ("critical", "discard"),
    "checkpoint_rewritten": ("critical", "discard"),
    "edge_hallucinated": ("critical", "discard"),
    "edge_revoked": ("critical", "discard"),
    "edge_out_of_range": ("critical", "discard"),
    "edge_dropped": ("error", "rederive"),
    "frontier_unverified": ("warning", "unverified"),
    "stale_on_authorization": ("warning", "stale"),
    "action_unauthorized": ("critical", "halt"),
    "resumed_unverified": ("critical", "halt"),
    "action_on_degraded": ("critical", "halt"),
    "referent_orphaned": ("error", "degrade"),
    "constraint_dropped": ("error", "reject_subtree"),  # critical at a root
    "idempotence_violation": ("error", "freeze"),
    "orphaned_resummarized": ("error", "freeze"),
    "retention_below_floor": ("error", "halt"),  # flatten_and_defer_gc where it can be flattened
    "recall_self_reported": ("warning", "probe"),
    "gc_before_probe": ("error", "defer_gc"),
    "budget_open": ("error", "retry"),
    "budget_exceeded": ("error", "retry"),
    "fact_dropped": ("error", "retry_pinned"),
    "fact_below_floor": ("error", "retry_pinned"),
    "anchor_lost": ("error", "retry_pinned"),
    "reranking_without_floor": ("warning", "retry"),
    "generation_regressed": ("error", "reconcile"),
    "generation_mismatch": ("error", "reconcile"),
    "partial_summary": ("error", "reconcile"),
    "dependency_missing": ("error", "reconcile"),
    "provenance_divergence": ("critical", "reconcile"),
    "unreconciled_recompaction": ("error", "freeze"),
    "log_conflict": ("critical", "halt"),
    "log_gap": ("error", "unverified"),
    "session_joined": ("warning", "unverified"),
}
RULES = tuple(SEVERITY_AND_DISPOSITION)


def frontier_ahead_of_log(step: Step) -> bool:
    """The range of a checkpoint or summary ends at or behind the record itself; of one without seq, behind
    the position that it says it was made at."""
    assert step.record is not None
    if step.record.seq is not None:
        return bool(step["frontier_hi"] >= step.record.seq)
    return bool(step["frontier_hi"] > _as_of(step.record))


def checkpoint_rewritten(past: Past, step: Step) -> bool:
    """There is a checkpoint of this id already."""
    return checkpoint_named(past, step["checkpoint_id"]) is not None


def edge_hallucinated(past: Past, checkpoint: Checkpoint) -> set[Edge]:
    """Asserted edges that the log, of which nothing is missing up to the range's end, never granted."""
    if missing_within(past, 1, checkpoint.hi):
        return set()
    return never_granted(past, checkpoint)


def never_granted(past: Past, checkpoint: Checkpoint) -> set[Edge]:
    return {edge for edge in checkpoint.asserted or () if not grants(past, edge, checkpoint.hi)}


def edge_revoked(past: Past, checkpoint: Checkpoint) -> set[Edge]:
    """Asserted edges that were granted, but have ended by the range's end."""
    return {
        edge
        for edge in checkpoint.asserted or ()
        if grants(past, edge, checkpoint.hi) and not effective(past, edge, checkpoint.hi)
    }


def edge_out_of_range(past: Past, checkpoint: Checkpoint) -> set[Edge]:
    """Asserted edges in effect at the range's end that were only granted before the range begins, where
    nothing is missing that could have granted them again."""
    if missing_within(past, checkpoint.lo, checkpoint.hi):
        return set()
    return {
        edge
        for edge in checkpoint.asserted or ()
        if effective(past, edge, checkpoint.hi)
        and all(position < checkpoint.lo for position in grants(past, edge, checkpoint.hi))
    }


def edge_dropped(past: Past, checkpoint: Checkpoint) -> set[Edge]:
    """Edges granted inside the range and in effect at its end that the given edges leave out."""
    if checkpoint.asserted is None:
        return set()
    granted = granted_edges(past, checkpoint.lo, checkpoint.hi)
    return {edge for edge in granted - checkpoint.asserted if effective(past, edge, checkpoint.hi)}


def frontier_unverified(past: Past, checkpoint: Checkpoint) -> bool:
    """What the checkpoint asserts cannot be told from the log. Asked at the checkpoint itself."""
    return (
        checkpoint.asserted is None
        or any(
            checkpoint.lo <= step.position <= checkpoint.hi and edge_of(step) is None
            for step in past.of("authorization")
        )
        or missing_within(past, checkpoint.lo, checkpoint.hi)
        or (bool(never_granted(past, checkpoint)) and missing_within(past, 1, checkpoint.hi))
        or missing_within(past, checkpoint.hi + 1)
    )


def has_become_unverified(checkpoint: Checkpoint, step: Step) -> bool:
    """Asked of the newest checkpoint, where positions turn out to be missing: some lie in its range or after it.

    The protocol speaks only of those after it, as a gap can lie nowhere else. A conflict can, and "a checkpoint
    over it is not verified". (What lies before the range is as it would be if it had been missing all along, but
    for edges never granted: there the verdict at the checkpoint's own record stands.)
    """
    return step.last >= checkpoint.lo


def stale_on_authorization(past: Past, checkpoint: Checkpoint) -> bool:
    """An authorization, a revocation or a last use came behind the range. Asked while the checkpoint is the
    newest."""
    return authorizations_after(past, checkpoint.hi)


def action_unauthorized(past: Past, step: Step) -> bool:
    """An irreversible action of which no edge is in effect where it happens, before it uses anything."""
    return bool(step.get("irreversible", False)) and not effective_edges(past, step["action_id"], step.position)


def resumed_unverified(past: Past, step: Step) -> bool:
    """A resume from a checkpoint that is unknown, or not `verified` there, nor made up for by a replay."""
    checkpoint = checkpoint_named(past, step["checkpoint_id"])
    if checkpoint is None:
        return True
    status = checkpoint_status(past, checkpoint)
    return status != "verified" and not (status == "stale" and replayed(past, checkpoint, step))


def replayed(past: Past, checkpoint: Checkpoint, step: Step) -> bool:
    """Has all that makes this checkpoint stale been replayed from the log? A new generation of its node cannot
    be; and nobody can have replayed the resume itself, or what comes after it."""
    replayed_to, standing = step.get("replayed_to"), newest(past, checkpoint.node)
    return (
        replayed_to is not None
        and replayed_to < step.position
        and not authorizations_after(past, replayed_to)
        and standing is not None
        and standing.number == checkpoint.number
    )


def action_on_degraded(past: Past, step: Step) -> bool:
    """An irreversible action after an unsafe resume that nobody reconciled."""
    return bool(step.get("irreversible", False)) and awaiting(past)


def referent_orphaned(past: Past) -> list[tuple[Generation, str]]:
    """Referents that are unreachable now, of generations in use now. (A generation is in use at its own
    position, as nothing is newer than it.)"""
    held = reachable(past)
    return [(generation, referent) for generation in in_use(past) for referent in sorted(generation.referents - held)]


def constraint_dropped(past: Past, generation: Generation) -> list[Step]:
    """Negative constraints standing at the range's end and made inside it that the summary does not carry,
    where it did not only inherit the loss: their records."""
    lost = []
    for made in counting(past, "constraint", "constraint_id", generation.hi):
        name = made["constraint_id"]

        def carried(step: Step, name: str = name) -> bool:
            return name in step.get("negative_constraints", ())

        standing = not made.get("retired", False) and made.get("polarity") == "negative"
        if (
            standing
            and generation.covers(made.position)
            and not carried(generation.step)
            and not only_inherited(generation, made.position, carried)
        ):
            lost.append(made)
    return lost


def orphans(past: Past, generation: Generation) -> set[str]:
    return set(generation.referents) - reachable(past)


def idempotence_violation(past: Past, generation: Generation) -> bool:
    """The node's new generation and its previous one have different unreachable referents now."""
    before = previous(past, generation)
    return before is not None and orphans(past, before) != orphans(past, generation)


def orphaned_resummarized(past: Past, generation: Generation) -> bool:
    """The generation that is summarized again has an unreachable referent now."""
    before = previous(past, generation)
    return before is not None and bool(orphans(past, before))


def retention_below_floor(past: Past, generation: Generation) -> bool:
    """What a chain of such depth retains is less than the workload's floor. What a probe of the node
    measured replaces what the summarizer says of itself."""
    retention = generation.retention
    if retention is None:
        return False
    recall = float(retention["per_node_recall"])
    measured = probes(past, generation.node)
    if retention["source"] == "self_reported" and measured:
        recall = measured[-1]["recalled"] / measured[-1]["probes"]
    return bool(recall ** retention["depth"] < workload(past, generation).floor)


def recall_self_reported(past: Past, generation: Generation) -> bool:
    """The summarizer reports its own recall, and the node was never probed before."""
    retention = generation.retention
    return retention is not None and retention["source"] == "self_reported" and not probes(past, generation.node)


def gc_before_probe(past: Past, step: Step) -> list[Generation]:
    """Known nodes reclaimed though their workload wants a probe first, and neither theirs nor an ancestor's
    latest probe since its own newest generation reaches the reclaimed node's floor."""
    too_early = []
    for node in dict.fromkeys(step["node_ids"]):
        generation = newest(past, node)
        if generation is None or not workload(past, generation).gc_requires_probe:
            continue
        floor = workload(past, generation).floor
        if not any(probed_at(past, each, floor) for each in (node, *ancestors(past, node))):
            too_early.append(generation)
    return too_early


def probed_at(past: Past, node: str, floor: float) -> bool:
    own = newest(past, node)
    since = [step for step in probes(past, node) if own is not None and step.index > own.step.index]
    return bool(since) and since[-1]["recalled"] / since[-1]["probes"] >= floor


def ancestors(past: Past, node: str) -> set[str]:
    """The nodes whose newest generation names it among its children, and theirs, and so on."""
    newest_of = {generation.node: generation for generation in past.generations}
    found: set[str] = set()
    below = {node}
    while below:
        parents = {
            parent
            for parent, generation in newest_of.items()
            if below & set(generation.step.get("children", ())) and parent not in found
        }
        found |= parents
        below = parents
    return found


def budget_open(generation: Generation) -> bool:
    """The tokens that were read are not those that the input has, or the input has none: no range is empty."""
    declared, was_read = generation.step.get("input_tokens"), generation.step.get("input_tokens_read")
    return declared == 0 or (declared is not None and was_read is not None and declared != was_read)


def budget_exceeded(generation: Generation) -> bool:
    """More tokens came out than were allowed."""
    budget, emitted = generation.step.get("token_budget"), generation.step.get("tokens_emitted")
    return budget is not None and emitted is not None and emitted > budget


def facts_in_range(past: Past, generation: Generation) -> list[Step]:
    return [fact for fact in counting(past, "fact", "fact_id", generation.hi) if generation.covers(fact.position)]


def fact_harmed(past: Past, generation: Generation, harmed: Callable[[Step, str | None], bool]) -> list[Step]:
    """Facts declared inside the range that are harmed in one respect, and not by inheritance alone: their
    records. `harmed` gets the fact's record and the text that survives of it. A fact without a floor to keep
    (declared as 0) may be left out on purpose."""

    def text(step: Step, fact: Step) -> str | None:
        survived: str | None = step.get("facts", {}).get(fact["fact_id"])
        return survived

    def unharmed(step: Step, fact: Step) -> bool:
        return text(step, fact) is not None and not harmed(fact, text(step, fact))

    return [
        fact
        for fact in facts_in_range(past, generation)
        if harmed(fact, text(generation.step, fact))
        and not (fact["fact_id"] in generation.step.get("dropped", ()) and fact.get("floor_tokens") == 0)
        and not only_inherited(generation, fact.position, lambda step, fact=fact: unharmed(step, fact))
    ]


def fact_dropped(past: Past, generation: Generation) -> list[Step]:
    """Nothing survives of the fact."""
    return fact_harmed(past, generation, lambda fact, text: text is None)


def fact_below_floor(past: Past, generation: Generation) -> list[Step]:
    """What survives has fewer tokens than the fact's declared floor."""
    return fact_harmed(
        past, generation, lambda fact, text: text is not None and len(text.split()) < fact.get("floor_tokens", 0)
    )


def anchor_lost(past: Past, generation: Generation) -> list[Step]:
    """What survives does not contain the fact's anchor."""
    return fact_harmed(past, generation, lambda fact, text: text is not None and fact["anchor"] not in text)


def reranking_without_floor(past: Past, generation: Generation) -> bool:
    """The summarizer is asked to rank, while nothing protects some fact of the range."""
    instruction = generation.step.get("instruction", "").lower()
    ranks = any(words in instruction for words in ("prioriti", "focus on", "summarize for"))
    return ranks and any(fact.get("floor_tokens") is None for fact in facts_in_range(past, generation))


def generation_regressed(past: Past, step: Step) -> bool:
    """The summary's generation is not above its node's newest."""
    standing = newest(past, step["node_id"])
    return standing is not None and step["generation"] <= standing.number


def generation_mismatch(past: Past, checkpoint: Checkpoint) -> bool:
    """Its node is unknown, or has another newest generation. Asked at the checkpoint, and at a resume."""
    standing = newest(past, checkpoint.node)
    return standing is None or standing.number != checkpoint.number


def partial_summary(past: Past, checkpoint: Checkpoint) -> bool:
    """Its node's newest generation is half written, or covers more than the checkpoint does."""
    standing = newest(past, checkpoint.node)
    return standing is not None and (standing.partial or standing.lo < checkpoint.lo or standing.hi > checkpoint.hi)


def dependency_missing(past: Past, step: Step) -> list[str]:
    """References that the next turn needs and the (known) checkpoint did not keep."""
    checkpoint = checkpoint_named(past, step["checkpoint_id"])
    if checkpoint is None:
        return []
    kept = checkpoint.step.get("verbatim_refs", ())
    return [dep for dep in dict.fromkeys(step.get("deps", ())) if dep not in kept]


def provenance_divergence(past: Past, step: Step) -> tuple[Step, bool] | None:
    """After a resume, and before any reconcile, a call returns another handle than the only one that it had
    returned before that resume, as far back as the reconcile before it. The resume in question, and whether that
    rests on what is inferred: the result itself, or all the earlier ones that are counted. Or None."""
    resume = past.last("resume")
    if resume is None or any(each.index > resume.index for each in past.of("reconcile")):
        return None
    start = max((each.index for each in past.of("reconcile")), default=-1)
    earlier = [
        each
        for each in past.of("tool_result")
        if each["call_key"] == step["call_key"] and start < each.index < resume.index
    ]
    handles = {each["handle"] for each in earlier}
    if len(handles) != 1 or step["handle"] in handles:
        return None
    inferred = step.get("inferred", False) or all(each.get("inferred", False) for each in earlier)
    return resume, bool(inferred)


def unreconciled_recompaction(past: Past) -> bool:
    """A summary after an unsafe resume that nobody reconciled."""
    return awaiting(past)


# ---------------------------------------------------------------------------------------------------------
# Status

WORST_FIRST = ("corrupt", "lossy", "degraded", "unverified", "stale", "verified", "uncompacted")  # and "unjudged"
ABOUT_A_RESUME = frozenset({"resumed_unverified", "dependency_missing"})
LOSSES = frozenset({"constraint_dropped", "fact_dropped", "fact_below_floor", "anchor_lost"})


def findings_of(past: Past, checkpoint: Checkpoint) -> list[Finding]:
    return [
        finding
        for finding in past.findings
        if finding.subject_type == "checkpoint"
        and finding.subject_id == checkpoint.id
        and finding.rule not in ABOUT_A_RESUME
    ]


def findings_in(past: Past, generations: set[tuple[str, int]]) -> list[Finding]:
    """The findings that count against these generations, named by node and number."""
    return [
        finding
        for finding in past.findings
        if finding.subject_type == "node"
        and (finding.subject_id, finding.generation) in generations
        and finding.rule != "generation_regressed"
        and not finding.inferred
    ]


def checkpoint_status(past: Past, checkpoint: Checkpoint) -> str:
    """The worst that holds now."""
    rests_on = basis(past, checkpoint)
    own = findings_of(past, checkpoint)
    at_node = findings_in(past, {(checkpoint.node, checkpoint.number)})
    beneath = findings_in(past, {(generation.node, generation.number) for generation in rests_on})
    if any(finding.severity == "critical" for finding in own + at_node):
        return "corrupt"
    if any(finding.rule == "edge_dropped" for finding in own):
        return "lossy"
    if any(finding.rule in LOSSES for finding in beneath):
        return "lossy"
    if any(finding.severity in ("error", "critical") for finding in own + beneath):
        return "degraded"
    if any(orphans(past, generation) for generation in rests_on):
        return "degraded"
    if any(finding.rule == "frontier_unverified" for finding in own):
        return "unverified"
    # After its range, says the table. A position inside it can turn out to be missing as well, by a conflict,
    # and "a checkpoint over it is not verified": also one that was when it was written.
    if checkpoint.inferred or missing_within(past, checkpoint.lo):
        return "unverified"
    standing = newest(past, checkpoint.node)
    if authorizations_after(past, checkpoint.hi) or (standing is not None and standing.number > checkpoint.number):
        return "stale"
    return "verified"


def session_status(past: Past) -> str:
    """That of the checkpoint in force, but no better than `degraded` while a halt is open."""
    if unjudged(past):
        return "unjudged"
    force = in_force(past)
    status = "unverified" if missing(past) else "uncompacted"
    if force is not None:
        status = checkpoint_status(past, force)
    if any(halt.open for halt in past.halts):
        status = min(status, "degraded", key=WORST_FIRST.index)
    return status


# ---------------------------------------------------------------------------------------------------------
# Halts

HALTING = frozenset({"discard", "halt", "reconcile", "reject_subtree", "freeze"})
CLEARED_FROM_INSIDE = frozenset({"action_unauthorized", "action_on_degraded", "log_conflict"})


def clears(past: Past, halt: Halt, step: Step) -> bool:
    """Does this record clear this halt, which is older? Whoever has no place in the log cannot vouch for it."""
    if step.kind and step.record is not None and step.record.seq is None and CLEARED_FROM_INSIDE & {*halt.reason}:
        return False
    if step.kind == "checkpoint":
        checkpoint = newest_checkpoint(past)
        taken = checkpoint is not None and checkpoint.step is step
        return taken and checkpoint is not None and checkpoint_status(past, checkpoint) == "verified"
    if step.kind == "reconcile":
        return all(
            finding.disposition == "reconcile" or finding.rule in ("resumed_unverified", "action_on_degraded")
            for finding in halt.findings
        )
    if step.kind == "resume":
        return safe(past, step) and all(finding.subject_type == "checkpoint" for finding in halt.findings)
    return False


def reexpand_from(past: Past, findings: Sequence[Finding]) -> Checkpoint | None:
    """The most recent checkpoint that is good enough to start over from."""
    about = next((finding.subject_id for finding in findings if finding.subject_type == "checkpoint"), None)
    suspect = checkpoint_named(past, about) if about is not None else None
    reasons = {finding.rule for finding in findings}
    for checkpoint in reversed(past.checkpoints):
        status = checkpoint_status(past, checkpoint)
        standing = newest(past, checkpoint.node)
        if status not in ("verified", "stale"):
            continue
        if standing is None or standing.number != checkpoint.number or reclaimed(past, standing):
            continue
        if (
            suspect is None
            or checkpoint.level < suspect.level
            or (checkpoint is suspect and status == "stale" and reasons == {"resumed_unverified"})
        ):
            return checkpoint
    return None


def halt_records(past: Past, session_id: str, step: Step) -> Iterator[dict[str, Any]]:
    """The halts that this step clears, in the order of their opening, then the one that it opens."""

    def record(halt: Halt, status: str) -> dict[str, Any]:
        return {
            "session_id": session_id,
            "position": step.position,
            "status": status,
            "reason": halt.reason,
            "checkpoint_id": halt.checkpoint_id,
            "open_halts": sum(each.open for each in past.halts),
            "findings": sorted((finding.rule, finding.subject_id) for finding in halt.findings),
        }

    for halt in past.halts:
        if halt.open and clears(past, halt, step):
            halt.open = False
            yield record(halt, "clear")
    halting = [
        each for each in past.findings if each.step is step and each.disposition in HALTING and not each.inferred
    ]
    if halting:
        about = next((each.subject_id for each in halting if each.subject_type == "checkpoint"), None)
        force = in_force(past)
        halt = Halt(halting, about if about is not None else force.id if force is not None else None)
        past.halts.append(halt)
        start = reexpand_from(past, halting)
        yield {
            **record(halt, "halt"),
            "reexpand_from": start.id if start is not None else None,
            "replay_from": max(start.hi + 1 if start is not None else 1, baseline_position(past)),
        }


# ---------------------------------------------------------------------------------------------------------
# Judging


class Session:
    """The fold of one session."""

    def __init__(self, session_id: str, workloads: Mapping[str, Workload]) -> None:
        self.session_id = session_id
        self.past = Past(workloads)
        self.halts: list[dict[str, Any]] = []

    def take(self, step: Step) -> None:
        past = self.past
        step.index = len(past.steps)
        past.steps.append(step)
        if step.kind:
            past.of_kind.setdefault(step.kind, []).append(step)
        if step.what == "missing":
            detail = str(step.last) if step.last != step.position else ""
            self._fire(step, "log_gap", "session", self.session_id, detail=detail, evidence=(step.position,))
        elif step.what == "joined":
            self._fire(step, "session_joined", "session", self.session_id)
        elif step.what == "baseline":
            for stated in states(step):
                past.of_kind.setdefault(stated.kind, []).append(stated)
        elif step.what == "conflict":
            self._fire(step, "log_conflict", "session", self.session_id, evidence=(step.position,))
        elif step.awaited:
            self._fire(step, "log_gap", "session", self.session_id, evidence=("record", step.index))
        judge_kind = getattr(self, f"_{step.kind}", None) if step.kind in KINDS else None
        if judge_kind is not None:
            judge_kind(step)
        self._newest_checkpoint(step)
        self._reachability(step)
        self.halts += halt_records(past, self.session_id, step)

    def _fire(
        self,
        step: Step,
        rule: str,
        subject_type: str,
        subject_id: str,
        *,
        detail: str = "",
        evidence: tuple[Any, ...] = (),
        generation: int | None = None,
        severity: str | None = None,
        disposition: str | None = None,
        position: int | None = None,
        inferred: bool = False,
    ) -> None:
        """A rule fires at most once per subject and piece of evidence; what is inferred makes a warning of it."""
        usual_severity, usual_disposition = SEVERITY_AND_DISPOSITION[rule]
        finding = Finding(
            rule,
            subject_type,
            subject_id,
            detail,
            evidence,
            generation,
            "warning" if inferred else severity or usual_severity,
            disposition or usual_disposition,
            step,
            step.position if position is None else position,
            inferred,
        )
        if all(finding.key != other.key for other in self.past.findings):
            self.past.findings.append(finding)

    def _fire_node(self, step: Step, rule: str, generation: Generation, item: str = "", **more: Any) -> None:
        """Rules about a node: once per generation, and per referent, constraint or fact."""
        number = generation.number
        detail = item or str(number)
        evidence = (number, item)
        self._fire(step, rule, "node", generation.node, detail=detail, evidence=evidence, generation=number, **more)

    # After every step

    def _newest_checkpoint(self, step: Step) -> None:
        """Two rules go on for as long as a checkpoint is the newest."""
        checkpoint = newest_checkpoint(self.past)
        if checkpoint is None:
            return
        if (
            step.what in ("missing", "conflict")
            and not frontier_ahead_of_log(checkpoint.step)
            and not checkpoint.inferred
            and has_become_unverified(checkpoint, step)
        ):
            # The protocol does not say where this is found. Of a run at its first position, as the run itself; of
            # a conflict where the log stands, since its own position may lie before the checkpoint.
            position = step.position if step.what == "missing" else step.applied
            self._fire(step, "frontier_unverified", "checkpoint", checkpoint.id, position=position)
        if stale_on_authorization(self.past, checkpoint):
            self._fire(step, "stale_on_authorization", "checkpoint", checkpoint.id)

    def _reachability(self, step: Step) -> None:
        for generation, referent in referent_orphaned(self.past):
            self._fire_node(step, "referent_orphaned", generation, referent)

    # By kind

    def _action(self, step: Step) -> None:
        for rule in (action_unauthorized, action_on_degraded):
            if rule(self.past, step):
                self._fire(step, rule.__name__, "action", step["action_id"], evidence=(step.index,))
        use = use_of(self.past, step)
        if use is not None:
            self.past.uses.append(use)

    def _tool_result(self, step: Step) -> None:
        divergence = provenance_divergence(self.past, step)
        if divergence is not None:
            # One per handle and resume, whatever it rests on: one that is inferred, and so a warning, hides one
            # that is not, as both would have the same id.
            (resume, inferred), handle = divergence, step["handle"]
            evidence = (handle, resume.index)
            self._fire(
                step,
                "provenance_divergence",
                "call",
                step["call_key"],
                detail=handle,
                evidence=evidence,
                inferred=inferred,
            )

    def _summary(self, step: Step) -> None:
        past, node = self.past, step["node_id"]
        if generation_regressed(past, step):  # not taken: nothing else is judged
            number = step["generation"]
            self._fire(
                step,
                "generation_regressed",
                "node",
                node,
                detail=str(number),
                evidence=(step.index,),
                generation=number,
            )
            return
        generation = commit(past, step)
        ahead = frontier_ahead_of_log(step)
        if ahead:
            self._fire_node(step, "frontier_ahead_of_log", generation)
        else:  # the rules about its range
            severity = "critical" if step.get("root", False) else "error"
            for made in constraint_dropped(past, generation):
                name, inferred = made["constraint_id"], made.get("inferred", False)
                self._fire_node(step, "constraint_dropped", generation, name, severity=severity, inferred=inferred)
            for fact_rule in (fact_dropped, fact_below_floor, anchor_lost):
                for fact in fact_rule(past, generation):
                    inferred = fact.get("inferred", False)
                    self._fire_node(step, fact_rule.__name__, generation, fact["fact_id"], inferred=inferred)
            if reranking_without_floor(past, generation):
                self._fire_node(step, "reranking_without_floor", generation)
        for rule in (idempotence_violation, orphaned_resummarized, recall_self_reported):
            if rule(past, generation):
                self._fire_node(step, rule.__name__, generation)
        if retention_below_floor(past, generation):
            flatten = (generation.retention or {}).get("flatten_available", False)
            disposition = "flatten_and_defer_gc" if flatten else "halt"
            self._fire_node(step, "retention_below_floor", generation, disposition=disposition)
        for budget_rule in (budget_open, budget_exceeded):
            if budget_rule(generation):
                self._fire_node(step, budget_rule.__name__, generation)
        if unreconciled_recompaction(past):
            self._fire_node(step, "unreconciled_recompaction", generation)

    def _checkpoint(self, step: Step) -> None:
        past, name = self.past, step["checkpoint_id"]
        if checkpoint_rewritten(past, step):  # not taken: nothing else is judged
            self._fire(step, "checkpoint_rewritten", "checkpoint", name, evidence=(step.index,))
            return
        checkpoint = Checkpoint(step)
        past.checkpoints.append(checkpoint)
        if frontier_ahead_of_log(step):
            self._fire(step, "frontier_ahead_of_log", "checkpoint", name)
        elif not checkpoint.inferred:  # the rules about its range
            for edge_rule in (edge_hallucinated, edge_revoked, edge_out_of_range, edge_dropped):
                edges = edge_rule(past, checkpoint)
                if edges:
                    detail = ",".join(sorted(f"{action}<-{precondition}" for action, precondition in edges))
                    self._fire(step, edge_rule.__name__, "checkpoint", name, detail=detail)
            if frontier_unverified(past, checkpoint):
                self._fire(step, "frontier_unverified", "checkpoint", name)
        for rule in (generation_mismatch, partial_summary):
            if rule(past, checkpoint):
                self._fire(step, rule.__name__, "checkpoint", name)

    def _resume(self, step: Step) -> None:
        """It is in force already, being the last resume of the past."""
        past, name = self.past, step["checkpoint_id"]
        checkpoint = checkpoint_named(past, name)
        self._reachability(step)
        if checkpoint is not None and generation_mismatch(past, checkpoint):
            self._fire(step, "generation_mismatch", "checkpoint", name)
        for dep in dependency_missing(past, step):
            evidence = (dep, step.index)
            self._fire(step, "dependency_missing", "checkpoint", name, detail=dep, evidence=evidence)
        if resumed_unverified(past, step):
            self._fire(step, "resumed_unverified", "checkpoint", name, evidence=(step.index,))

    def _gc(self, step: Step) -> None:
        for generation in gc_before_probe(self.past, step):
            number = generation.number
            self._fire(
                step,
                "gc_before_probe",
                "node",
                generation.node,
                detail=str(number),
                evidence=(step.index,),
                generation=number,
            )

    # Output

    def found(self) -> list[Found]:
        return [
            Found(each.rule, each.subject_type, each.subject_id, each.position, each.detail, each.severity)
            for each in self.past.findings
        ]

    def summary(self) -> dict[str, Any]:
        force = in_force(self.past)
        return {
            "session_id": self.session_id,
            "status": session_status(self.past),
            "checkpoint_in_force": force.id if force is not None else None,
            "open_halts": sum(halt.open for halt in self.past.halts),
        }


def judge(
    arrivals: Sequence[bytes],
    max_waiting: int | None = None,
    workloads: Mapping[str, Workload] = WORKLOADS,
    *,
    midstream: Midstream = "skip",
    remembered: int = REMEMBERED,
) -> Verdict:
    """Judge whole sessions: `arrivals` are JSON lines in the order in which they came.

    `max_waiting`: a session's first gap is given up as soon as more than that many of its records with a seq
    wait behind it (None: only at the end). `midstream`: whether a session that begins in the midst is skipped or
    judged all the same. `remembered`: of how many positions, and records without seq, the content is still
    compared. The end of the arrivals is the end of the input. Findings and halts come session by session (in
    order of first appearance), each in the order of its fold.
    """
    logs: dict[str, Log] = {}
    dead = 0

    def log_of(session_id: str) -> Log:
        return logs.setdefault(session_id, Log(max_waiting, midstream, remembered))

    for line in arrivals:
        try:
            record = read(line)
        except Unreadable as error:
            dead += 1
            if error.place is not None:
                session_id, position = error.place
                log_of(session_id).arrive_unreadable(position)
        else:
            log_of(record.fields["session_id"]).arrive(record)
    verdict = Verdict([], [], [], dead, 0, 0)
    for session_id, log in logs.items():
        log.end()
        session = Session(session_id, workloads)
        for step in log.steps:
            session.take(step)
        verdict.findings += session.found()
        verdict.halts += session.halts
        verdict.sessions.append(session.summary())
        verdict.dead += log.refused
        verdict.duplicates += log.duplicates
        verdict.late += log.late
    return verdict
