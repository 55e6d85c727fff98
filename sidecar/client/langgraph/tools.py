"""Stand around an agent's tools: ask before the irreversible ones, and write down what was done and what came back.

An action's id is made from the values that the tool acts on, not from what the model wrote: see `inside`.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, Literal

from langchain.agents.middleware.types import AgentMiddleware, ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from msgspec import Struct

from sidecar.client.errors import ClientError
from sidecar.client.guard import Guard, SyncGuard
from sidecar.client.irreversible import Log, OnError, carried_out
from sidecar.client.langgraph.inside import Unseen, guarded
from sidecar.client.langgraph.logs import LogFor, Logs
from sidecar.client.questions import refusal
from sidecar.client.refused import Refused
from sidecar.client.steps import Call, Procedure, arun, call, refuse_async, run
from sidecar.client.templates import Template, checked
from sidecar.protocol.api import AuthorizeAnswer

ActionOf = str | Callable[[Mapping[str, Any]], str]
"""An action's id: a template filled from the values that the tool acts on, or a function of them."""

_LONGEST_KEY = 200


class Handle(Struct, frozen=True):
    """Say which resource a call returned, and what else it made reachable."""

    handle: str
    referents: tuple[str, ...] = ()


def handle_of(message: ToolMessage) -> Handle | None:
    """Return the handle that a tool names in its artifact: `{"handle": …, "referents": […]}`; None: it names none.

    What a tool says is no handle: the same call may well say something else next time, and nothing is wrong.
    """
    artifact = message.artifact
    if not isinstance(artifact, Mapping) or not isinstance(artifact.get("handle"), str):
        return None
    referents: Iterable[Any] = artifact.get("referents") or ()
    return Handle(artifact["handle"], tuple(str(referent) for referent in referents))


def key_of(tool_call: Mapping[str, Any]) -> str:
    """Return what identifies a call: the tool and its arguments, which are the same if it is made again."""
    arguments = json.dumps(tool_call["args"], sort_keys=True, default=str, ensure_ascii=False)
    key = f"{tool_call['name']}({arguments})"
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{tool_call['name']}({hashlib.sha256(arguments.encode()).hexdigest()})"


class SidecarMiddleware(AgentMiddleware[Any, Any]):
    """Ask before irreversible tools are called, publish `action` and `tool_result`.

    Args:
        guard: whom to ask. Where the agent is invoked without await it is a `SyncGuard`, with a `SyncEmitter`.
        log: the session's emitter, or a function from a thread's id to its session's emitter.
        irreversible: the tools that act irreversibly, by name, each with its action's id: a template filled from the
            values that the tool acts on (`deploy-{env}`), or a function of them. A tool may also say so itself, with
            `metadata={"irreversible": "deploy-{env}"}`.
        on_refusal: `tell` the model, with the reasons in the tool's answer, or `raise` `Refused`.
        on_error: whether a tool that raised counts as having acted (`publish`: it may have) or not (`skip`).
        checkpoint_id: the checkpoint that must be verified for irreversible tools, or a function of the tool call.
        handle: what tells the handle from a tool's answer; None: there is none.
        call_key: what identifies a call.
    """

    def __init__(
        self,
        guard: Guard | SyncGuard,
        log: LogFor,
        *,
        irreversible: Mapping[str, ActionOf] | None = None,
        on_refusal: Literal["tell", "raise"] = "tell",
        on_error: OnError = "publish",
        checkpoint_id: str | Callable[[Mapping[str, Any]], str | None] | None = None,
        handle: Callable[[ToolMessage], Handle | None] = handle_of,
        call_key: Callable[[Mapping[str, Any]], str] = key_of,
    ) -> None:
        super().__init__()
        if on_refusal not in ("tell", "raise"):
            raise ValueError(f"on_refusal: tell or raise, not {on_refusal!r}")
        if on_error not in ("publish", "skip"):
            raise ValueError(f"on_error: publish or skip, not {on_error!r}")
        self._guard = guard
        self._logs = Logs(log)
        self._irreversible = dict(irreversible or {})
        self._templates = {
            name: Template(action) for name, action in self._irreversible.items() if isinstance(action, str)
        }
        self._refuse_overlaps(self._templates)
        self._on_refusal = on_refusal
        self._on_error: OnError = on_error
        self._checkpoint_id = checkpoint_id
        self._handle = handle
        self._call_key = call_key
        self._checked = False

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Ask, act, publish."""
        log = self._log_of(request)
        refuse_async(self._guard, log)
        ended = _Ended()
        try:
            inside = self._inside(log, request, ended)
            return run(self._called(log, request, Call(handler, (inside,), {}, awaited=False), ended))
        except Refused as refused:
            return self._answer(request, refused)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Ask, act, publish."""
        log = self._log_of(request)
        ended = _Ended()
        try:
            inside = self._inside(log, request, ended)
            return await arun(self._called(log, request, Call(handler, (inside,), {}, awaited=True), ended))
        except Refused as refused:
            return self._answer(request, refused)

    def _answer(self, request: ToolCallRequest, refused: Refused) -> ToolMessage:
        if self._on_refusal == "raise":
            raise refused
        tool_call = request.tool_call
        return ToolMessage(str(refused), name=tool_call["name"], tool_call_id=tool_call["id"], status="error")

    def _inside(self, log: Log, request: ToolCallRequest, ended: "_Ended") -> ToolCallRequest:
        """Return the request with a tool that asks before it acts, if it acts irreversibly."""
        action = self._action_of(request)
        if action is None:
            return request
        name, tool = request.tool_call["name"], request.tool
        checkpoint_id = self._checkpoint_of(request)

        def around(act: Call, values: Mapping[str, Any]) -> Procedure[Any]:
            try:
                return (
                    yield from carried_out(
                        self._guard,
                        log,
                        act,
                        action_id=self._identified(log, name, action, values),
                        checkpoint_id=checkpoint_id,
                        on_error=self._on_error,
                        not_acted=(GraphBubbleUp,),  # an interrupt: the tool begins anew when it is answered
                    )
                )
            except ClientError as error:
                ended.error = error  # whatever LangGraph makes of it on the way
                raise

        try:
            if tool is None:
                raise Unseen(f"the tool {name} is none of the agent's, so what it would act on cannot be seen")
            return request.override(tool=guarded(tool, around))
        except Unseen as error:
            raise Refused(name, refusal(AuthorizeAnswer, log.session_id, "bad_request", str(error))) from None

    def _called(
        self, log: Log, request: ToolCallRequest, act: Call, ended: "_Ended"
    ) -> Procedure[ToolMessage | Command[Any]]:
        try:
            result: ToolMessage | Command[Any] = yield act
        finally:
            if ended.error is not None:
                raise ended.error
        for message in _messages_in(result):
            if message.tool_call_id == request.tool_call["id"] and message.status != "error":
                handle = self._handle(message)
                if handle is not None:
                    referents = handle.referents or None
                    yield call(
                        log, "tool_result", self._call_key(request.tool_call), handle.handle, referents=referents
                    )
        return result

    def _action_of(self, request: ToolCallRequest) -> Template | Callable[[Mapping[str, Any]], str] | None:
        name, tool = request.tool_call["name"], request.tool
        if name in self._templates:
            return self._templates[name]
        if name in self._irreversible:
            return self._irreversible[name]  # type: ignore[return-value]
        said = (tool.metadata or {}).get("irreversible") if tool is not None else None
        if said is None or callable(said):
            return said
        if isinstance(said, str):
            return Template(said)
        raise ValueError(f"tool {name}: its metadata `irreversible` must be the action's id, a template, not {said!r}")

    def _identified(
        self, log: Log, name: str, action: Template | Callable[[Mapping[str, Any]], str], values: Mapping[str, Any]
    ) -> str:
        try:
            return action.fill(values) if isinstance(action, Template) else checked(action(values))
        except (ValueError, KeyError, TypeError) as error:
            detail = f"What this call would do has no name: {error}"
            raise Refused(name, refusal(AuthorizeAnswer, log.session_id, "bad_request", detail)) from error

    def _checkpoint_of(self, request: ToolCallRequest) -> str | None:
        given = self._checkpoint_id
        return given(request.tool_call) if callable(given) else given

    def _log_of(self, request: ToolCallRequest) -> Log:
        if not self._checked:
            self._check_names(getattr(request.runtime, "tools", None))
        config = getattr(request.runtime, "config", None) or {}
        thread_id = config.get("configurable", {}).get("thread_id")
        return self._logs.of(str(thread_id) if thread_id is not None else None)

    @staticmethod
    def _refuse_overlaps(templates: Mapping[str, Template]) -> None:
        """See that the approval of one tool's action cannot be that of another one's."""
        for (one, first), (two, second) in combinations(templates.items(), 2):
            if first.text != second.text and first.overlaps(second):
                raise ValueError(
                    f"the tools {one} ({first.text}) and {two} ({second.text}) could have actions with the same id, so"
                    " that the approval of one was that of the other: begin each template with a name of its own"
                )

    def _check_names(self, tools: Iterable[BaseTool] | None) -> None:
        """See that every tool called irreversible is one of the agent's: a name misspelt would guard nothing."""
        tools = list(tools or ())
        names = {tool.name for tool in tools}
        own = {tool.name: said for tool in tools if isinstance(said := (tool.metadata or {}).get("irreversible"), str)}
        self._refuse_overlaps({name: Template(said) for name, said in own.items()} | self._templates)
        if names and (unknown := sorted(self._irreversible.keys() - names)):
            raise ValueError(f"no such tools: {', '.join(unknown)}; the agent has {', '.join(sorted(names))}")
        self._checked = True


class _Ended:
    """Hold how a guarded tool ended, if not with a result of its own."""

    error: Exception | None = None


def _messages_in(result: object) -> Iterable[ToolMessage]:
    if isinstance(result, ToolMessage):
        return (result,)
    update = result.update if isinstance(result, Command) else None
    messages = update.get("messages") if isinstance(update, Mapping) else None
    return [message for message in messages or () if isinstance(message, ToolMessage)]
