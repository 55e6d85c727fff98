"""What is asked about is what the tool does: after validation, injection and defaults, whatever the model wrote."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.client.guard import Guard, SyncGuard
from sidecar.client.langgraph import SidecarMiddleware
from tests.client.agents import agent, calls, says
from tests.client.guards import FakeGuard
from tests.client.judge import Judge, judging
from tests.client.memory import MemoryLog

DONE: list[Any] = []


@pytest.fixture
def log() -> MemoryLog:
    """Give a log that allows to deploy to staging, and nothing else."""
    DONE.clear()
    log = MemoryLog()
    log.authorization("deploy-staging", "ticket")
    return log


@pytest.fixture
def judged(log: MemoryLog) -> Iterator[tuple[Judge, FakeGuard]]:
    """Give a guard that judges that log."""
    with judging(log) as both:
        yield both


class State(MessagesState):
    """Have an environment that the model does not choose."""

    env: str


async def answers(judged: Any, log: MemoryLog, made: BaseTool, given: dict[str, Any], env: str = "") -> list[str]:
    """Have a tool called with and without await; return the statuses of its answers."""
    statuses = []
    with SyncGuard(judged[1].url) as guard:
        middleware = SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}"})
        node = ToolNode([made], wrap_tool_call=middleware.wrap_tool_call)
        state: Any = {"messages": [calls("deploy", **given)], "env": env}
        result: Any = _graph(node).invoke(state)
        statuses += [message.status for message in result["messages"] if isinstance(message, ToolMessage)]
    async with Guard(judged[1].url) as waiting:
        middleware = SidecarMiddleware(waiting, log, irreversible={"deploy": "deploy-{env}"})
        node = ToolNode([made], awrap_tool_call=middleware.awrap_tool_call)
        result = await _graph(node).ainvoke(state)
        statuses += [message.status for message in result["messages"] if isinstance(message, ToolMessage)]
    return statuses


def _graph(node: ToolNode) -> Any:
    builder = StateGraph(State)
    builder.add_node("tools", node)
    builder.set_entry_point("tools")
    return builder.compile()


async def test_injected_state_counts_and_what_the_model_wrote_does_not(judged: Any, log: MemoryLog) -> None:
    @tool
    def deploy(version: int, env: Annotated[str, InjectedState("env")]) -> str:
        """Deploy."""
        DONE.append((env, version))
        return env

    assert await answers(judged, log, deploy, {"version": 1, "env": "staging"}, "prod") == ["error", "error"]
    assert DONE == []
    assert await answers(judged, log, deploy, {"version": 1, "env": "prod"}, "staging") == ["success", "success"]
    assert DONE == [("staging", 1)] * 2


async def test_aliases_and_validators_count(judged: Any, log: MemoryLog) -> None:
    class Arguments(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        env: str = Field(alias="environment", default="prod")

        @field_validator("env")
        @classmethod
        def known(cls, env: str) -> str:
            return {"live": "prod", "test": "staging"}.get(env, env)

    @tool(args_schema=Arguments)
    def deploy(env: str) -> str:
        """Deploy."""
        DONE.append(env)
        return env

    for given in ({"environment": "live"}, {"environment": "prod"}, {"env": "live"}, {}):
        assert await answers(judged, log, deploy, given) == ["error", "error"]
    # Who asked for both gets what pydantic makes of it, and that is what is asked about.
    await answers(judged, log, deploy, {"env": "staging", "environment": "live"})
    assert DONE in ([], ["staging"] * 2)
    DONE.clear()
    assert await answers(judged, log, deploy, {"environment": "test"}) == ["success", "success"]
    assert DONE == ["staging"] * 2


async def test_what_python_or_a_json_schema_fills_in_counts(judged: Any, log: MemoryLog) -> None:
    def deploy(env: str = "prod") -> str:
        DONE.append(env)
        return env

    properties: dict[str, Any] = {"env": {"type": "string"}}
    schema = {"type": "object", "properties": properties}
    made = StructuredTool(name="deploy", description="Deploy.", args_schema=schema, func=deploy)
    assert await answers(judged, log, made, {}) == ["error", "error"]
    properties["env"]["default"] = "staging"  # what is approved is then what the function gets
    assert await answers(judged, log, made, {}) == ["success", "success"]
    assert DONE == ["staging"] * 2


async def test_what_langchain_adds_still_comes(judged: Any, log: MemoryLog) -> None:
    @tool
    async def deploy(
        env: str, config: RunnableConfig, runtime: ToolRuntime, call_id: Annotated[str, InjectedToolCallId]
    ) -> str:
        """Deploy."""
        DONE.append((env, "metadata" in config, runtime.tool_call_id, call_id))
        return env

    async with Guard(judged[1].url) as guard:
        middleware = SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}"})
        graph = agent(says(calls("deploy", env="staging"), "done"), middleware, tools=[deploy])
        await graph.ainvoke({"messages": [HumanMessage("go")]})
    assert DONE == [("staging", True, "call-1", "call-1")]


class OwnRun(BaseTool):
    """Be a tool with a class of its own."""

    name: str = "deploy"
    description: str = "Deploy."

    def _run(self, env: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        assert run_manager is not None
        DONE.append(env)
        return env


class OwnWay(OwnRun):
    """Be one that goes its own way."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        DONE.append("unseen")
        return ToolMessage("done", tool_call_id="call-1")


async def test_a_tool_with_a_class_of_its_own(judged: Any, log: MemoryLog) -> None:
    assert await answers(judged, log, OwnRun(), {"env": "prod"}) == ["error", "error"]
    assert await answers(judged, log, OwnRun(), {"env": "staging"}) == ["success", "success"]
    assert DONE == ["staging"] * 2
    assert "_run" not in vars(OwnRun())


async def test_a_tool_that_goes_its_own_way_is_refused(judged: Any, log: MemoryLog) -> None:
    assert await answers(judged, log, OwnWay(), {"env": "staging"}) == ["error", "error"]
    assert DONE == []


async def test_a_tool_of_one_text(judged: Any, log: MemoryLog) -> None:
    for schema in (None, type("Arguments", (BaseModel,), {"__annotations__": {"env": str}})):
        made = Tool("deploy", lambda env: DONE.append(env) or env, "Deploy.", args_schema=schema)
        template = "deploy-{env}" if schema else "deploy-{__arg1}"
        with SyncGuard(judged[1].url) as guard:
            middleware = SidecarMiddleware(guard, log, irreversible={"deploy": template})
            node = ToolNode([made], wrap_tool_call=middleware.wrap_tool_call)
            for value in ("prod", "staging"):
                _graph(node).invoke({"messages": [calls("deploy", **{"env" if schema else "__arg1": value})]})
    assert DONE == ["staging"] * 2


async def test_a_refusal_is_one_also_where_the_node_handles_errors(judged: Any, log: MemoryLog) -> None:
    @tool
    def deploy(env: str) -> str:
        """Deploy."""
        raise ConnectionError("no answer")

    with SyncGuard(judged[1].url) as guard:
        for on_error, logged in (("skip", 0), ("publish", 1)):
            middleware = SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}"}, on_error=on_error)  # type: ignore[arg-type]
            node = ToolNode([deploy], wrap_tool_call=middleware.wrap_tool_call, handle_tool_errors=True)
            refused = _graph(node).invoke({"messages": [calls("deploy", env="prod")]})["messages"][-1]
            assert refused.content.startswith("deploy-prod is refused")
            failed = _graph(node).invoke({"messages": [calls("deploy", env="staging")]})["messages"][-1]
            assert "no answer" in failed.content
            assert len(log.of("action")) == logged


async def test_what_a_tool_returns_must_not_act_later(judged: Any, log: MemoryLog) -> None:
    async def later() -> None:
        DONE.append("later")

    @tool
    def deploy(env: str) -> Any:
        """Deploy."""
        return later() if env == "staging" else None

    with SyncGuard(judged[1].url) as guard:
        middleware = SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}"})
        node = ToolNode([deploy], wrap_tool_call=middleware.wrap_tool_call)
        with pytest.raises(TypeError, match="acts only later"):
            _graph(node).invoke({"messages": [calls("deploy", env="staging")]})
    assert DONE == []


def test_two_tools_whose_actions_could_share_an_id_are_refused(log: MemoryLog) -> None:
    with SyncGuard("http://127.0.0.1:9") as guard:
        with pytest.raises(ValueError, match="could have actions with the same id"):
            SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}", "other": "deploy-{a}-{b}"})
        SidecarMiddleware(
            guard, log, irreversible={"deploy": "deploy-{env}", "again": "deploy-{env}", "drop": "drop-{a}"}
        )
