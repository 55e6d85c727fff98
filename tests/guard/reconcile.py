"""Hold the permissions that a guard wrote down against what the naive judge says of the sessions' logs.

Neither the engine nor the guard has a part in this. A permission names the position that the log had been applied up to
when it was given. The log may have stood there for a while, and what came meanwhile without moving it on (a conflict
about an earlier position, a record that cannot be read) may have come before or after the permission. So a permission
is wrong here if it was wrong at every moment when the log stood there: what is reported is certain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar.protocol.outputs import Decision
from tests.judge import naive

MAY_ACT = ("verified", "stale")


class Wrong(NamedTuple):
    """Name a permission that the log forbids, and why."""

    decision: Decision
    why: str


def wrong_permissions(
    decisions: Iterable[Decision],
    log_lines_by_session: Mapping[str, Sequence[bytes]],
    *,
    midstream: naive.Midstream = "skip",
) -> list[Wrong]:
    """Return the permissions that the naive judge would not have given.

    Args:
        decisions: what the guard wrote down.
        log_lines_by_session: of each session all its records, JSON lines in the order in which they arrived.
        midstream: as the guard's engine was set.
    """
    wrong = []
    for decision in decisions:
        why = "no record of the session has come"
        for moment in _moments(log_lines_by_session.get(decision.session_id, ()), decision.position, midstream):
            why = moment.forbids(decision) or ""
            if not why:
                break
        if why:
            wrong.append(Wrong(decision, why))
    return wrong


class Moment:
    """Judge a session's log as it stood at one moment.

    Args:
        lines: what had come.
        rest: what came later.
        given_up: whether what waited for a missing position has been given up by then.
    """

    def __init__(
        self, lines: Sequence[bytes], rest: Sequence[bytes], midstream: naive.Midstream, *, given_up: bool
    ) -> None:
        self._rest = rest
        self._unread = _unread(lines, midstream)
        self._log = _log(lines, midstream)
        if given_up:
            self._log.end()
        self._waits = bool(self._log.waiting) or bool(self._log.unsequenced)
        self._session = _judged(self._log)

    def forbids(self, decision: Decision) -> str | None:
        """Say why a permission must not have been given; None: it was right."""
        past = self._session.past
        if self._log.position < decision.position or not self._log.position:
            return f"the log had not been applied up to position {decision.position}"
        if decision.min_seq is not None and decision.min_seq > decision.position:
            return f"the question needed the log up to {decision.min_seq}"
        if self._waits:
            return "records were waiting for one before them"
        if self._log.unjudged or (past.steps and naive.unjudged(past)):
            return "the session was unjudged"
        if self._unread:
            return "a record whose position is not known could not be read"
        return {"authorize": self._act, "resume": self._resume, "commit": self._commit, "gc": self._reclaim}[
            decision.question
        ](decision)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _act(self, decision: Decision) -> str | None:
        past, position = self._session.past, decision.position
        assert decision.action_id is not None
        effective = naive.effective_edges(past, decision.action_id, position) if past.steps else set()
        rests_on = effective & {(action, precondition) for action, precondition in decision.edges}
        if not rests_on:
            return "no edge that the permission names was effective"
        newest = [max(naive.grants(past, edge, position)) for edge in rests_on]
        if all(naive.missing_within(past, granted + 1, position) for granted in newest):
            return "a position after the grant was missing: it may have been the revocation"
        if self._halted():
            return "a halt was open"
        force = naive.in_force(past)
        if force is not None and (status := naive.checkpoint_status(past, force)) not in MAY_ACT:
            return f"the checkpoint in force, {force.id}, was {status}"
        if decision.checkpoint_id is not None:
            named = naive.checkpoint_named(past, decision.checkpoint_id)
            if named is None or naive.checkpoint_status(past, named) != "verified":
                return f"the checkpoint {decision.checkpoint_id} was not verified"
        return self._would_break({"kind": "action", "action_id": decision.action_id, "irreversible": True}, decision)

    def _resume(self, decision: Decision) -> str | None:
        more = {} if decision.replayed_to is None else {"replayed_to": decision.replayed_to}
        record = {"kind": "resume", "checkpoint_id": decision.checkpoint_id, "deps": decision.deps, **more}
        return self._would_break(record, decision)

    def _commit(self, decision: Decision) -> str | None:
        (node,) = decision.node_ids
        known = naive.newest(self._session.past, node)
        assert decision.generation is not None
        if known is not None and known.number >= decision.generation:
            return f"generation {known.number} of {node} had been committed"
        # What was proposed is known if it was published, and nothing came between.
        for line in self._rest:
            fields = _fields(line)
            if fields.get("seq") == decision.position + 1:
                same = fields.get("node_id") == node and fields.get("generation") == decision.generation
                if fields.get("kind") == "summary" and same:
                    return self._would_break(fields, decision)
                break
        return None

    def _reclaim(self, decision: Decision) -> str | None:
        past = self._session.past
        if self._halted():
            return "a halt was open"
        for node in decision.node_ids:
            if naive.newest(past, node) is None:
                return f"the node {node} was unknown"
        return self._would_break({"kind": "gc", "node_ids": decision.node_ids}, decision)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _halted(self) -> bool:
        return any(halt.open for halt in self._session.past.halts)

    def _would_break(self, record: dict[str, Any], decision: Decision) -> str | None:
        """Say which rules a record at the next position would have broken; the moment is spoiled by asking."""
        before = len(self._session.past.findings)
        taken = len(self._log.steps)
        fields = {**record, "session_id": decision.session_id, "seq": self._log.position + 1}
        self._log.arrive(naive.read(json.dumps(fields).encode()))
        for step in self._log.steps[taken:]:
            self._session.take(step)
        found = self._session.past.findings[before:]
        rules = sorted({finding.rule for finding in found if finding.severity != "warning"})
        return f"it would have broken {', '.join(rules)}" if rules else None


def _moments(lines: Sequence[bytes], position: int, midstream: naive.Midstream) -> Iterator[Moment]:
    """Yield the session at each moment when its log stood at a position; where it never did, after giving up gaps."""
    log = _log((), midstream)
    stood: list[int] = []
    ended: list[int] = []
    for count, line in enumerate(lines, 1):
        _arrive(log, line)
        if log.position == position:
            stood.append(count)
        elif max(log.waiting, default=log.position) == position:
            ended.append(count)
    for count in stood:
        yield Moment(lines[:count], lines[count:], midstream, given_up=False)
    # Or what waited was given up, by time or by number, before the rest came.
    for count in ended:
        yield Moment(lines[:count], lines[count:], midstream, given_up=True)


def _log(lines: Sequence[bytes], midstream: naive.Midstream) -> naive.Log:
    log = naive.Log(None, midstream, naive.REMEMBERED)
    for line in lines:
        _arrive(log, line)
    return log


def _judged(log: naive.Log) -> naive.Session:
    session = naive.Session("", naive.WORKLOADS)
    for step in log.steps:
        session.take(step)
    return session


def _arrive(log: naive.Log, line: bytes) -> None:
    try:
        record = naive.read(line)
    except naive.Unreadable as error:
        if error.place is not None:
            log.arrive_unreadable(error.place[1])
    else:
        log.arrive(record)


def _unread(lines: Sequence[bytes], midstream: naive.Midstream) -> bool:
    """Tell whether a record without a readable position has come, and nothing since that clears it.

    What is not JSON tells nobody whose record it was.
    """
    unread = False
    for count, line in enumerate(lines, 1):
        try:
            record = naive.read(line)
        except naive.Unreadable as error:
            unread = unread or (error.place is None and bool(_fields(line).get("session_id")))
            continue
        if unread and record.seq is not None and record.kind in ("reconcile", "baseline"):
            unread = False
        elif unread and record.kind == "checkpoint":
            past = _judged(_log(lines[:count], midstream)).past
            taken = naive.checkpoint_named(past, record.fields["checkpoint_id"])
            unread = taken is None or naive.checkpoint_status(past, taken) != "verified"
    return unread


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
