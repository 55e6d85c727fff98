"""One method for each kind of record: the same for the emitter and for the one without `await`."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from sidecar.client.compose import Role, compose, compose_opaque, role_of
from sidecar.protocol.records import Retention

T_co = TypeVar("T_co", covariant=True)

_SLACK = 64
"""More bytes than a record's time and the journal's own part of it ever add."""

Store = Literal["live", "durable"]


class Kinds(Generic[T_co]):
    """Say what happened in a session, one method for each kind of record.

    Every method checks the record at once (`TypeError`, `ValueError`), so that nothing unreadable gets a position, and
    returns the record's `seq` when it is durably in the journal. On every one of them `ts` is when it happened (by
    default now), and `tenant`, `agent` and `model` stand for this record in the place of those given to the
    constructor.
    """

    _session_id: str
    _defaults: Mapping[str, str]

    @abstractmethod
    def _append(self, role: Role, body: bytes) -> T_co:
        """Log a record's bytes."""

    @abstractmethod
    def _reserve(self, room: int) -> T_co:
        """Keep room for two records of so many bytes, and return `room`."""

    @abstractmethod
    def _append_kept(self, role: Role, body: bytes, room: int) -> T_co:
        """Log a record's bytes in room that was kept, and use up the room of one record."""

    def _put(self, kind: str, fields: Mapping[str, Any]) -> T_co:
        return self._append(role_of(kind), compose(kind, self._session_id, fields, self._defaults))

    # --- around an irreversible action ----------------------------------------------------------------------------

    def reserve(self, action_id: str) -> T_co:
        """Keep room for what `intend` and `acted` will log, and return it in bytes a record.

        So it is known before the action that they can be logged. What is not used is to be given back (`give_back`).

        Args:
            action_id: the action.
        """
        return self._reserve(max(len(self._intention(action_id)), len(self._action(action_id))) + _SLACK)

    def intend(self, action_id: str, room: int) -> T_co:
        """Log that an irreversible action is about to be carried out: an opaque `intent`, in the room kept for it.

        Args:
            action_id: the action.
            room: what `reserve` returned.
        """
        return self._append_kept("events", self._intention(action_id), room)

    def acted(self, action_id: str, room: int) -> T_co:
        """Log that the agent carried an irreversible action out, in the room kept for it.

        Args:
            action_id: the action.
            room: what `reserve` returned.
        """
        return self._append_kept("events", self._action(action_id), room)

    def _intention(self, action_id: str) -> bytes:
        return compose_opaque("intent", self._session_id, {"action_id": action_id}, self._defaults)

    def _action(self, action_id: str) -> bytes:
        return compose("action", self._session_id, {"action_id": action_id, "irreversible": True}, self._defaults)

    # --- log events -----------------------------------------------------------------------------------------------

    def authorization(
        self,
        action_id: str | None,
        precondition_id: str | None,
        *,
        uses: int | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that a precondition authorizes an action from here on; with either None the edge is not explicit.

        Args:
            action_id: the action that is allowed.
            precondition_id: what allows it: an approval, a ticket, a check that passed.
            uses: how many irreversible actions it allows, from 1; absent: no limit.
        """
        return self._put("authorization", _fields(locals()))

    def revocation(
        self,
        action_id: str,
        precondition_id: str | None = None,
        *,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that an authorization ends here.

        Args:
            action_id: the action.
            precondition_id: what no longer authorizes it; None: nothing does any more.
        """
        return self._put("revocation", _fields(locals()))

    def action(
        self,
        action_id: str,
        *,
        irreversible: bool | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that the agent carried an action out.

        Args:
            action_id: the action.
            irreversible: whether it cannot be undone; absent: it can.
        """
        return self._put("action", _fields(locals()))

    def referent_added(
        self,
        referent_id: str,
        *,
        store: Store | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that a store holds something from here on that a summary may depend on.

        Args:
            referent_id: a file, a value, a handle.
            store: `live` (the default: gone with the process) or `durable`.
        """
        return self._put("referent_added", _fields(locals()))

    def referent_removed(
        self,
        referent_id: str,
        *,
        store: Store | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that a store no longer holds a referent; it is reachable while any other does.

        Args:
            referent_id: the referent.
            store: `live` (the default) or `durable`.
        """
        return self._put("referent_removed", _fields(locals()))

    def constraint(
        self,
        constraint_id: str,
        *,
        polarity: Literal["negative", "positive"] | None = None,
        text: str | None = None,
        retired: bool | None = None,
        inferred: bool | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log a standing instruction, or (`retired`) its withdrawal.

        Args:
            constraint_id: the instruction.
            polarity: `negative` forbids, `positive` demands; needed unless `retired`.
            text: its wording.
            retired: whether it no longer stands.
            inferred: whether this was concluded from text or circumstances, and nobody stated it.
        """
        return self._put("constraint", _fields(locals()))

    def fact(
        self,
        fact_id: str,
        anchor: str,
        *,
        floor_tokens: int | None = None,
        text: str | None = None,
        inferred: bool | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log what has to survive compaction.

        Args:
            fact_id: the fact.
            anchor: the substring of it that must survive word for word.
            floor_tokens: the fewest whitespace-separated tokens of it that must survive; absent: undeclared.
            text: its wording.
            inferred: whether this was concluded from text or circumstances, and nobody stated it.
        """
        return self._put("fact", _fields(locals()))

    def tool_result(
        self,
        call_key: str,
        handle: str,
        *,
        referents: Iterable[str] | None = None,
        inferred: bool | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log what an external call returned.

        Args:
            call_key: identifies the call: the same when it is made again after a crash.
            handle: the resource that it returned.
            referents: what the result holds; each is in the `live` store from here on.
            inferred: whether this was concluded from text or circumstances, and nobody stated it.
        """
        return self._put("tool_result", _fields(locals()))

    def baseline(
        self,
        *,
        edges: Iterable[tuple[str, str]] | None = None,
        live: Iterable[str] | None = None,
        durable: Iterable[str] | None = None,
        negative_constraints: Iterable[str] | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log what holds here, so that a session whose beginning is not in the log can be judged from here on.

        Whoever may write this may grant anything: only a permission system or an operator should.

        Args:
            edges: the edges that hold, as (action, precondition).
            live: the referents in the `live` store.
            durable: the referents in the `durable` store.
            negative_constraints: the prohibitions that hold.
        """
        return self._put("baseline", _fields(locals()))

    def event(
        self,
        kind: str,
        /,
        *,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        **fields: Any,
    ) -> T_co:
        """Log anything else: it takes a position, and the sidecar looks no further.

        Args:
            kind: none of the protocol's.
            fields: whatever JSON can hold.
        """
        common = {"ts": ts, "tenant": tenant, "agent": agent, "model": model}
        return self._append("events", compose_opaque(kind, self._session_id, {**fields, **common}, self._defaults))

    # --- compaction records ---------------------------------------------------------------------------------------

    def summary(
        self,
        node_id: str,
        *,
        generation: int,
        level: int,
        frontier_lo: int,
        frontier_hi: int,
        children: Iterable[str] | None = None,
        root: bool | None = None,
        referents: Iterable[str] | None = None,
        negative_constraints: Iterable[str] | None = None,
        facts: Mapping[str, str] | None = None,
        dropped: Iterable[str] | None = None,
        input_tokens: int | None = None,
        input_tokens_read: int | None = None,
        token_budget: int | None = None,
        tokens_emitted: int | None = None,
        instruction: str | None = None,
        partial: bool | None = None,
        retention: Retention | Mapping[str, Any] | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that a node's summary was committed: what it covers, was made of, and carries.

        Args:
            node_id: the node of the summary tree.
            generation: counts the node's summaries from 1.
            level: leaves are 1.
            frontier_lo: the first log position it covers.
            frontier_hi: the last one.
            children: the nodes it was made of.
            root: whether it is the top of the tree.
            referents: what its text depends on.
            negative_constraints: the prohibitions that it carries.
            facts: the facts that it carries: id to surviving text.
            dropped: what was left out on purpose; None: there is no manifest.
            input_tokens: the input's length as declared.
            input_tokens_read: the tokens of it that were really read.
            token_budget: the most tokens that the summary may have.
            tokens_emitted: the tokens that it has.
            instruction: the prompt that the summarizer was given.
            partial: whether it was still being written.
            retention: what is known of its recall: `per_node_recall`, `source`, `depth`, and optionally `workload` and
                `flatten_available`.
        """
        return self._put("summary", _fields(locals()))

    def checkpoint(
        self,
        checkpoint_id: str,
        *,
        node_id: str,
        summary_generation: int,
        level: int,
        turn: int,
        frontier_lo: int,
        frontier_hi: int,
        asserted_edges: Iterable[tuple[str, str]] | None = None,
        verbatim_refs: Iterable[str] | None = None,
        inferred: bool | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that a checkpoint was written.

        Args:
            checkpoint_id: unique in the session.
            node_id: the node that it stands on.
            summary_generation: that node's generation.
            level: its level in the tree.
            turn: the agent's turn, from 0.
            frontier_lo: the first log position that it covers.
            frontier_hi: the last one.
            asserted_edges: the edges that it asserts, as (action, precondition); None: not explicit.
            verbatim_refs: the references that it holds word for word.
            inferred: whether this was concluded from text or circumstances, and nobody stated it.
        """
        return self._put("checkpoint", _fields(locals()))

    def resume(
        self,
        checkpoint_id: str,
        *,
        deps: Iterable[str] | None = None,
        replayed_to: int | None = None,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that the agent resumed from a checkpoint.

        Args:
            checkpoint_id: the checkpoint.
            deps: the references that the next turn needs.
            replayed_to: the log position up to which the log was replayed on top of the checkpoint; None: it was not.
        """
        return self._put("resume", _fields(locals()))

    def reconcile(
        self,
        decision: Literal["replay", "accept_divergence"],
        *,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log what a controller decided after an unsafe recovery.

        Args:
            decision: whether the log is replayed, or the divergence accepted.
        """
        return self._put("reconcile", _fields(locals()))

    def gc(
        self,
        node_ids: Iterable[str],
        *,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log that nodes were reclaimed.

        Args:
            node_ids: the nodes.
        """
        return self._put("gc", _fields(locals()))

    def probe(
        self,
        node_id: str,
        *,
        probes: int,
        recalled: int,
        ts: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> T_co:
        """Log a measurement: how many of a held-out set's facts were recalled from a node.

        Args:
            node_id: the node.
            probes: how many were asked for.
            recalled: how many were recalled.
        """
        return self._put("probe", _fields(locals()))


def _fields(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a method's arguments as a record's fields."""
    return {name: _plain(value) for name, value in arguments.items() if name != "self"}


def _plain(value: Any) -> Any:
    # Generators and views, which JSON knows nothing of; a string is not meant as a list of its letters.
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | list | tuple | set | frozenset):
        return list(value)
    return value
