"""Wrap a checkpointer: write down which of its checkpoints stand on a summary, and ask before a thread is taken up.

A LangGraph checkpoint is the whole state after a step. To the protocol it is a checkpoint once the state stands on a
summary: until then nothing has been compacted, and there is nothing that could have been lost.
"""

import copy
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from sidecar.client.guard import Guard, SyncGuard
from sidecar.client.irreversible import Log, fallen_behind
from sidecar.client.langgraph.carried import Compacted, compacted
from sidecar.client.langgraph.durability import refuse_unordered
from sidecar.client.langgraph.logs import LogFor, Logs, Remembered
from sidecar.client.refused import GuardError, Refused
from sidecar.client.steps import Call, Procedure, arun, call, refuse_async, run
from sidecar.protocol.api import ResumeAnswer

if TYPE_CHECKING:
    from langgraph.checkpoint.base import DeltaChannelHistory

RECORD = "sidecar_checkpoint"
"""The key of a LangGraph checkpoint's metadata that names the `checkpoint` record standing for it."""

NOTHING = "(no state)"
"""What is asked about where a thread begins without any state, although its session has a log."""

Decision = Literal["replay", "accept_divergence"]


class Reconciled(NamedTuple):
    """Say what a controller decided after a refused resume.

    Args:
        decision: `replay`: go on from elsewhere, and do again what is missing there; `accept_divergence`: go on as is.
        config: the LangGraph checkpoint to go on from; None: the one that was refused.
    """

    decision: Decision
    config: RunnableConfig | None = None


OnRefused = Callable[[Refused, CheckpointTuple | None], Reconciled | Awaitable[Reconciled | None] | None]


class _Known(NamedTuple):
    """Hold which state of a thread was written or taken up here last, and the record that stands for it."""

    checkpoint_id: str | None
    record_id: str | None
    stands_on: Compacted | None


_addressed: ContextVar[tuple[object, Mapping[str, Any]] | None] = ContextVar("sidecar_addressed", default=None)


class SidecarSaver(BaseCheckpointSaver[Any]):
    """Be a checkpointer that keeps everything in another one.

    Writing a state that stands on a new summary, or asserts something else than the one before, publishes a
    `checkpoint` record under LangGraph's checkpoint id. Reading a state that was not written here last takes the thread
    up: the guard is asked, then `resume` is published. Namespaces below the root (subgraphs) are passed through.

    Whoever reads a state through this saver takes the thread up. To look at one only, read it from `inner`.

    Args:
        inner: where everything is kept.
        guard: whom to ask. With the sync methods of a graph it is a `SyncGuard`, with a `SyncEmitter`.
        log: the session's emitter, or a function from a thread's id to its session's emitter.
        carries: what a state stands on and asserts; by default what `SidecarCompaction` has put into it.
        deps: the references that the next turn of a state needs word for word; by default none.
        on_refused: what decides how to go on after a refusal, from it and the state refused, with a `Reconciled`;
            where it decides nothing (None), and by default, `Refused` is raised.
    """

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        guard: Guard | SyncGuard,
        log: LogFor,
        *,
        carries: Callable[[Mapping[str, Any]], Compacted | None] = compacted,
        deps: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
        on_refused: OnRefused | None = None,
    ) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner
        self._guard = guard
        self._logs = Logs(log)
        self._carries = carries
        self._deps = deps
        self._on_refused = on_refused
        self._threads: Remembered[_Known] = Remembered()

    # --- taking a thread up ---------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a state; if it was not written here last, ask first whether the thread may go on from it.

        Raises:
            Refused: it may not.
            ValueError: the graph is not run with `durability="sync"`.
        """
        refuse_unordered(config)
        if self._looks_only(config):
            return self.inner.get_tuple(config)
        found: CheckpointTuple | None = self._run(self._taken_up(config, is_async=False))
        self._remember_address(config)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a state; if it was not written here last, ask first whether the thread may go on from it.

        Raises:
            Refused: it may not.
            ValueError: the graph is not run with `durability="sync"`.
        """
        refuse_unordered(config)
        if self._looks_only(config):
            return await self.inner.aget_tuple(config)
        found: CheckpointTuple | None = await arun(self._taken_up(config, is_async=True))
        self._remember_address(config)
        return found

    def reconcile(self, config: RunnableConfig, decision: Decision) -> RunnableConfig:
        """Publish a controller's decision, and take the thread up from a state without asking.

        Args:
            config: the state to go on from.
            decision: what was decided.

        Returns:
            The config to invoke the graph with.

        Raises:
            ValueError: there is no such state.
        """
        go_on: RunnableConfig = self._run(self._reconciled(config, decision, is_async=False))
        return go_on

    async def areconcile(self, config: RunnableConfig, decision: Decision) -> RunnableConfig:
        """Publish a controller's decision, and take the thread up from a state without asking; see `reconcile`."""
        return await arun(self._reconciled(config, decision, is_async=True))

    def _taken_up(self, config: RunnableConfig, *, is_async: bool) -> Procedure[CheckpointTuple | None]:
        found: CheckpointTuple | None = yield self._fetch(config, is_async)
        thread_id = _thread_of(config)
        known = self._threads.get(thread_id)
        here = found.checkpoint["id"] if found is not None else None
        if known is not None and known.checkpoint_id == here:
            return found
        log = self._logs.of(thread_id)
        stands_on = self._carries(found.checkpoint["channel_values"]) if found is not None else None
        record_id = None
        if found is not None and stands_on is not None:
            record_id = _record_of(found)
        answer = yield from self._asked(log, found, record_id)
        if answer is not None:
            what = f"resume from {record_id}" if record_id is not None else "going on without a summary"
            refused = Refused(what, answer)
            if self._on_refused is None:
                raise refused
            decided: Reconciled | None = yield Call(
                self._on_refused, (refused, found), {}, awaited=inspect.iscoroutinefunction(self._on_refused)
            )
            if decided is None:
                raise refused
            target = config if decided.config is None else decided.config
            yield from self._reconciled(target, decided.decision, is_async=is_async)
            instead: CheckpointTuple | None = yield self._fetch(target, is_async)
            return instead
        if record_id is not None and found is not None:
            yield call(log, "resume", record_id, deps=self._deps_of(found) or None)
        self._threads.put(thread_id, _Known(here, record_id, stands_on))
        return found

    def _asked(self, log: Log, found: CheckpointTuple | None, record_id: str | None) -> Procedure[ResumeAnswer | None]:
        """Ask whether a thread may go on from a state; return the answer if it may not."""
        if record_id is None and log.position == 0:
            return None  # a new session: nothing has been logged, so nothing can be missing
        asked_about = record_id or (found.checkpoint["id"] if found is not None else NOTHING)
        deps = self._deps_of(found) if found is not None else []
        answer: ResumeAnswer = yield call(
            self._guard, "resume", log.session_id, asked_about, deps=deps, min_seq=log.position
        )
        if (behind := fallen_behind(log, answer)) is not None:
            answer.decision = "reconcile"
            answer.reasons.append(behind)
            return answer
        if answer.decision == "resume":
            return None
        if record_id is None and _only_unknown(answer):
            # That no such checkpoint is known says nothing against it, unless the session has been compacted since.
            try:
                session = yield call(self._guard, "session", log.session_id)
            except GuardError as error:
                answer.reasons = error.reasons
            else:
                if not session.checkpoints and session.position >= log.position:
                    return None
        return answer

    def _reconciled(self, config: RunnableConfig, decision: Decision, *, is_async: bool) -> Procedure[RunnableConfig]:
        found: CheckpointTuple | None = yield self._fetch(config, is_async)
        if found is None:
            raise ValueError(f"there is no state to go on from: {dict(config.get('configurable', {}))}")
        thread_id = _thread_of(config)
        log = self._logs.of(thread_id)
        stands_on = self._carries(found.checkpoint["channel_values"])
        record_id = None
        if stands_on is not None:
            record_id = _record_of(found)
            yield call(log, "resume", record_id, deps=self._deps_of(found) or None)
        yield call(log, "reconcile", decision)
        self._threads.put(thread_id, _Known(found.checkpoint["id"], record_id, stands_on))
        return found.config

    def _deps_of(self, found: CheckpointTuple) -> list[str]:
        return list(self._deps(found.checkpoint["channel_values"])) if self._deps is not None else []

    def _fetch(self, config: RunnableConfig, is_async: bool) -> Call:
        function: Callable[..., Any] = self.inner.aget_tuple if is_async else self.inner.get_tuple
        return Call(function, (config,), {}, awaited=is_async)

    def _run(self, procedure: Procedure[Any]) -> Any:
        refuse_async(self._guard)
        return run(procedure)

    def _looks_only(self, config: RunnableConfig) -> bool:
        """Tell whether a read takes nothing up.

        That is a subgraph's state; and what LangGraph reads right after a state that was asked for by its id, with the
        same config without that id, to see whether a newer one exists.
        """
        configurable = config.get("configurable", {})
        if configurable.get("checkpoint_ns"):
            return True
        before = _addressed.get()
        if before is None or before[0] is not self:
            return False
        _addressed.set(None)
        return (
            "checkpoint_id" in configurable and configurable["checkpoint_id"] is None and _same(configurable, before[1])
        )

    def _remember_address(self, config: RunnableConfig) -> None:
        if config.get("configurable", {}).get("checkpoint_id"):
            _addressed.set((self, config["configurable"]))

    # --- writing --------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a state, and publish a `checkpoint` record if it stands on something new."""
        if config.get("configurable", {}).get("checkpoint_ns"):
            return self.inner.put(config, checkpoint, metadata, new_versions)
        written: RunnableConfig = run(self._written(config, checkpoint, metadata, new_versions, self.inner.put))
        return written

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a state, and publish a `checkpoint` record if it stands on something new."""
        if config.get("configurable", {}).get("checkpoint_ns"):
            return await self.inner.aput(config, checkpoint, metadata, new_versions)
        return await arun(self._written(config, checkpoint, metadata, new_versions, self.inner.aput))

    def _written(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        put: Callable[..., Any],
    ) -> Procedure[RunnableConfig]:
        thread_id = _thread_of(config)
        known = self._threads.get(thread_id)
        stands_on = self._carries(checkpoint["channel_values"])
        new = stands_on is not None and (known is None or known.stands_on != stands_on)
        record_id = checkpoint["id"] if new else known.record_id if known is not None and stands_on else None
        if record_id is not None:
            metadata = cast(CheckpointMetadata, {**metadata, RECORD: record_id})
        asynchronous = inspect.iscoroutinefunction(put)
        written: RunnableConfig = yield Call(
            put, (config, checkpoint, metadata, new_versions), {}, awaited=asynchronous
        )
        if new and stands_on is not None:
            log = self._logs.of(thread_id)
            if not asynchronous:
                refuse_async(log)
            yield call(
                log,
                "checkpoint",
                record_id,
                node_id=stands_on.node_id,
                summary_generation=stands_on.generation,
                level=stands_on.level,
                turn=max(0, metadata.get("step", 0)),
                frontier_lo=stands_on.frontier_lo,
                frontier_hi=stands_on.frontier_hi,
                asserted_edges=stands_on.asserted_edges,
                verbatim_refs=stands_on.verbatim_refs or None,
            )
        self._threads.put(thread_id, _Known(checkpoint["id"], record_id, stands_on))
        return written

    # --- passed on ------------------------------------------------------------------------------------------------

    @property
    def config_specs(self) -> list[Any]:
        """Return the options of the inner checkpointer."""
        return self.inner.config_specs

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List states; this takes nothing up."""
        return self.inner.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List states; this takes nothing up."""
        return self.inner.alist(config, filter=filter, before=before, limit=limit)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep a task's writes."""
        self.inner.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep a task's writes."""
        await self.inner.aput_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's states. Its session's log stays: a thread of the same id begins without a state."""
        self.inner.delete_thread(thread_id)
        self._threads.forget(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread's states. Its session's log stays: a thread of the same id begins without a state."""
        await self.inner.adelete_thread(thread_id)
        self._threads.forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the states of runs."""
        self.inner.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the states of runs."""
        await self.inner.adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread's states; the copy may not go on from them, whose summaries its session does not know."""
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread's states; the copy may not go on from them, whose summaries its session does not know."""
        await self.inner.acopy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune states."""
        self.inner.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune states."""
        await self.inner.aprune(thread_ids, strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> "Mapping[str, DeltaChannelHistory]":
        """Return what delta channels are made from."""
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> "Mapping[str, DeltaChannelHistory]":
        """Return what delta channels are made from."""
        return await self.inner.aget_delta_channel_history(config=config, channels=channels)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a channel's next version."""
        return self.inner.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> "SidecarSaver":
        """Return a clone whose inner checkpointer reads only what is allowed; it shares what is known of threads."""
        inner = self.inner.with_allowlist(extra_allowlist)
        if inner is self.inner:
            return self
        clone = copy.copy(self)
        clone.inner, clone.serde = inner, inner.serde
        return clone

    def __getattr__(self, name: str) -> Any:
        # Whatever else an inner checkpointer has (`setup`, a connection) is its own.
        if name.startswith("__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _record_of(found: CheckpointTuple) -> str:
    named = cast(Mapping[str, Any], found.metadata).get(RECORD)
    return named if isinstance(named, str) and named else found.checkpoint["id"]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = (one.keys() | other.keys()) - {"checkpoint_id"}
    return all(name in one and name in other and one[name] is other[name] for name in names)


def _only_unknown(answer: ResumeAnswer) -> bool:
    """Tell whether all that is said against a resume is that its checkpoint is not known."""
    rules = [reason.rule for reason in answer.reasons]
    return answer.status is None and rules == ["resumed_unverified"]
