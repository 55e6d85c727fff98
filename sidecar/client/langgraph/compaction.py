"""Stand around a summarizer: have each summary judged before it replaces anything, then write it down."""

import copy
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_config
from langgraph.runtime import Runtime
from msgspec import Struct

from sidecar.client.guard import Guard, SyncGuard
from sidecar.client.irreversible import Log, fallen_behind
from sidecar.client.langgraph.carried import (
    CARRY,
    COMPACTION,
    POSITIONS,
    Carried,
    Compacted,
    SidecarState,
    compacted,
    read_carried,
)
from sidecar.client.langgraph.logs import LogFor, Logs
from sidecar.client.refused import Refused
from sidecar.client.steps import Call, Procedure, arun, call, refuse_async, run
from sidecar.protocol.api import CommitAnswer
from sidecar.protocol.records import Retention

Summarizer = AgentMiddleware[Any, Any]


class _Proposal(Struct):
    """Hold a summary that has not been committed."""

    update: dict[str, Any]
    stands_on: Compacted
    fields: dict[str, Any]


class SidecarCompaction(AgentMiddleware[SidecarState, Any]):
    """Propose every summary to the guard, and let it replace messages only once the guard says `commit`.

    The messages of the state get log positions (an opaque `message` record each, without its text), so that a summary's
    range is that of the messages it replaces. Each compaction is a node of its own, with the one before as its child.
    A committed one is published as `summary`; the `checkpoint` record follows when `SidecarSaver` writes the state.

    Args:
        summarizer: the middleware that summarizes before the model is called, such as LangChain's
            `SummarizationMiddleware`: it replaces messages with one that has `lc_source: summarization`, and those that
            it keeps.
        guard: whom to ask. Where the agent is invoked without await it is a `SyncGuard`, with a `SyncEmitter`.
        log: the session's emitter, or a function from a thread's id to its session's emitter.
        read: what tells what a summary carries from its text; by default a block that the summarizer is told to write.
        attempts: how often at most a summary is made, each time with all pinned that must be in it.
        on_refusal: `raise` `Refused` when no summary may be committed, or `keep` the messages as they are.
        token_budget: the most tokens that a summary may have.
        retention: what is known of the summarizer's recall.
        pin: what returns the summarizer with something to be kept added to what it is told.
    """

    state_schema = SidecarState

    def __init__(
        self,
        summarizer: Summarizer,
        guard: Guard | SyncGuard,
        log: LogFor,
        *,
        read: Callable[[str], Carried] = read_carried,
        attempts: int = 3,
        on_refusal: Literal["raise", "keep"] = "raise",
        token_budget: int | None = None,
        retention: Retention | None = None,
        pin: Callable[[Summarizer, str], Summarizer] | None = None,
    ) -> None:
        super().__init__()
        if attempts < 1:
            raise ValueError("attempts: a summary is made at least once")
        if on_refusal not in ("raise", "keep"):
            raise ValueError(f"on_refusal: raise or keep, not {on_refusal!r}")
        self._pin = pin or with_pins
        self._summarizer = self._pin(summarizer, CARRY) if read is read_carried else summarizer
        self._guard = guard
        self._logs = Logs(log)
        self._read = read
        self._attempts = attempts
        self._on_refusal = on_refusal
        self._token_budget = token_budget
        self._retention = retention
        self.tools = getattr(summarizer, "tools", [])

    def before_model(self, state: SidecarState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Summarize if it is time to, and if the guard lets the summary stand."""
        log = self._logs.of(_thread())
        refuse_async(self._guard, log)
        return run(self._compacting(log, state, lambda s: Call(s.before_model, (state, runtime), {}, awaited=False)))

    async def abefore_model(self, state: SidecarState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Summarize if it is time to, and if the guard lets the summary stand."""
        log = self._logs.of(_thread())
        summarize = lambda s: Call(s.abefore_model, (state, runtime), {}, awaited=True)  # noqa: E731
        return await arun(self._compacting(log, state, summarize))

    def after_agent(self, state: SidecarState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Give the last messages their positions, before anything is logged that they know nothing of."""
        log = self._logs.of(_thread())
        refuse_async(log)
        return run(self._placing(log, state))

    async def aafter_agent(self, state: SidecarState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Give the last messages their positions, before anything is logged that they know nothing of."""
        return await arun(self._placing(self._logs.of(_thread()), state))

    def _placing(self, log: Log, state: SidecarState) -> Procedure[dict[str, Any] | None]:
        known = state.get("sidecar_positions") or {}
        positions = yield from self._placed(log, state["messages"], known)
        return {POSITIONS: positions} if positions != known else None

    def _compacting(
        self, log: Log, state: SidecarState, summarize: Callable[[Summarizer], Call]
    ) -> Procedure[dict[str, Any] | None]:
        messages = state["messages"]
        known = state.get("sidecar_positions") or {}
        positions = yield from self._placed(log, messages, known)
        as_it_is = {POSITIONS: positions} if positions != known else None
        summarizer = self._summarizer
        answer: CommitAnswer | None = None
        what = ""
        for _ in range(self._attempts):
            proposed = yield summarize(summarizer)
            if proposed is None:
                return as_it_is
            proposal = self._proposed(log, state, positions, proposed, summarizer)
            what = f"the summary {proposal.stands_on.node_id}"
            answer = yield call(
                self._guard, "commit", {"session_id": log.session_id, **proposal.fields}, min_seq=log.position
            )
            assert answer is not None
            if (behind := fallen_behind(log, answer)) is not None:
                answer.decision = "halt"
                answer.reasons.append(behind)
            if answer.decision == "commit":
                fields = dict(proposal.fields)
                yield call(log, "summary", fields.pop("node_id"), **fields)
                return proposal.update
            if answer.decision == "flatten_and_defer_gc":
                return as_it_is  # the messages are the leaves, and they stay
            if answer.decision != "retry_pinned":
                break
            summarizer = self._pin(self._summarizer, pins(answer))
        assert answer is not None
        if self._on_refusal == "raise":
            raise Refused(what, answer)
        return as_it_is

    def _placed(self, log: Log, messages: Iterable[BaseMessage], known: dict[str, int]) -> Procedure[dict[str, int]]:
        """Give every message that has none a log position; return those of all messages."""
        positions = {}
        for message in messages:
            if message.id is None:
                message.id = str(uuid.uuid4())
            if message.id in known:
                positions[message.id] = known[message.id]
            else:
                positions[message.id] = yield call(log, "event", "message", message_id=message.id, role=message.type)
        return positions

    def _proposed(
        self,
        log: Log,
        state: SidecarState,
        positions: dict[str, int],
        update: dict[str, Any],
        summarizer: Summarizer,
    ) -> _Proposal:
        summary, kept = _split(update)
        kept_ids = {message.id for message in kept}
        replaced = [message for message in state["messages"] if message.id not in kept_ids]
        before = compacted(state)
        # Positions only grow, and the summary takes one: no two proposals that are published share a name.
        node_id = f"compaction-{log.position}"
        carried = self._read(summary.text)
        stands_on = Compacted(
            node_id=node_id,
            generation=1,
            level=before.level + 1 if before is not None else 1,
            frontier_lo=before.frontier_lo if before is not None else 1,
            frontier_hi=max(positions[str(message.id)] for message in replaced),
            asserted_edges=carried.edges,
            verbatim_refs=carried.verbatim_refs,
        )
        summary.id = node_id
        fields = {
            "node_id": node_id,
            "generation": 1,
            "level": stands_on.level,
            "frontier_lo": stands_on.frontier_lo,
            "frontier_hi": stands_on.frontier_hi,
            "children": [before.node_id] if before is not None else None,
            "referents": list(carried.referents) or None,
            "negative_constraints": list(carried.negative_constraints) or None,
            "facts": dict(carried.facts) or None,
            "dropped": list(carried.dropped) if carried.dropped is not None else None,
            "token_budget": self._token_budget,
            "instruction": _instruction_of(summarizer),
            "retention": _plain(self._retention),
            **_counted(summarizer, replaced, summary),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        places = {str(message.id): positions[str(message.id)] for message in kept}
        new_state = {
            **update,
            COMPACTION: msgspec.to_builtins(stands_on),
            POSITIONS: {**places, node_id: stands_on.frontier_hi},
        }
        return _Proposal(new_state, stands_on, fields)


def pins(answer: CommitAnswer) -> str:
    """Say what the next attempt has to keep."""
    lines = ["The summary before this one was refused. This one must carry all of the following, by these ids:"]
    lines += [f"- the prohibition {pinned.constraint_id}" for pinned in answer.constraints]
    for fact in answer.facts:
        floor = f", in at least {fact.floor_tokens} words" if fact.floor_tokens else ""
        lines.append(f"- the fact {fact.fact_id}, with {fact.anchor!r} word for word{floor}")
    lines += ["It was refused because of:", *(f"- {reason.detail}" for reason in answer.reasons)]
    return "\n".join(lines)


def with_pins(summarizer: Summarizer, text: str) -> Summarizer:
    """Return LangChain's `SummarizationMiddleware`, or one like it, that is told something more.

    Raises:
        TypeError: it cannot be told anything.
    """
    told = copy.copy(summarizer)
    own: Any = getattr(summarizer, "summarizer", None)
    prompt = getattr(summarizer, "summary_prompt", None)
    if own is not None:

        def prefixed(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
            return [SystemMessage(text), *messages]

        told.summarizer = RunnableLambda(prefixed) | own  # type: ignore[attr-defined]
    elif isinstance(prompt, str):
        escaped = text.replace("{", "{{").replace("}", "}}")
        head, mark, tail = prompt.partition("<messages>")
        told.summary_prompt = f"{head}{escaped}\n\n{mark}{tail}" if mark else f"{escaped}\n\n{prompt}"  # type: ignore[attr-defined]
    else:
        raise TypeError(f"{type(summarizer).__name__} cannot be told what to keep: give `pin`, and `read` of your own")
    return told


def _split(update: dict[str, Any]) -> tuple[HumanMessage, list[BaseMessage]]:
    """Return the summary in what a summarizer returned, and the messages that it keeps."""
    messages = update.get("messages") or []
    if not messages or not isinstance(messages[0], RemoveMessage) or messages[0].id != "__remove_all__":
        raise ValueError("the summarizer did not replace all messages: what its summary covers cannot be told")
    rest = messages[1:]
    summaries = [m for m in rest if m.additional_kwargs.get("lc_source") == "summarization" and m.id is None]
    if len(summaries) != 1 or not isinstance(summaries[0], HumanMessage):
        raise ValueError(f"the summarizer made {len(summaries)} summaries where one is expected")
    return summaries[0], [message for message in rest if message is not summaries[0]]


def _counted(summarizer: Summarizer, replaced: Sequence[BaseMessage], summary: BaseMessage) -> dict[str, int]:
    """Count tokens as the summarizer does. Of what it trims away before it reads, it has read nothing."""
    count = getattr(summarizer, "token_counter", None)
    if count is None:
        return {}
    given = int(count(replaced))
    most = getattr(summarizer, "trim_tokens_to_summarize", None)
    read = given if most is None else min(given, most)
    return {"input_tokens": given, "input_tokens_read": read, "tokens_emitted": int(count([summary]))}


def _instruction_of(summarizer: Summarizer) -> str | None:
    if getattr(summarizer, "summarizer", None) is not None:
        return None
    prompt = getattr(summarizer, "summary_prompt", None)
    return prompt.format(messages="…") if isinstance(prompt, str) else None


def _plain(retention: Retention | None) -> dict[str, Any] | None:
    if retention is None:
        return None
    return {name: value for name, value in msgspec.structs.asdict(retention).items() if value is not None}


def _thread() -> str | None:
    thread_id = get_config().get("configurable", {}).get("thread_id")
    return str(thread_id) if thread_id is not None else None
