"""Irreversible tools of a real LangChain agent: asked about, refused to the model, written down."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from sidecar.client.guard import ActionUnlogged, Guard, Refused, SyncGuard
from sidecar.client.langgraph import SidecarMiddleware, handle_of
from sidecar.client.langgraph.tools import Handle, key_of
from tests.client.agents import DEPLOYED, TOOLS, agent, calls, says, thread
from tests.client.guards import FakeGuard
from tests.client.judge import Judge, judging
from tests.client.memory import AsyncMemoryLog, MemoryLog

IRREVERSIBLE = {"deploy": "deploy-{env}-{version}", "breaks": "break-{env}", "ask_first": "ask"}


@pytest.fixture(autouse=True)
def nothing_deployed() -> None:
    """Begin anew."""
    DEPLOYED.clear()


@pytest.fixture
def log() -> MemoryLog:
    """Give a log that allows some actions."""
    log = MemoryLog()
    for action in ("deploy-prod-1", "break-prod", "ask"):
        log.authorization(action, "ticket")
    return log


@pytest.fixture
def judged(log: MemoryLog) -> Iterator[tuple[Judge, FakeGuard]]:
    """Give a guard that judges that log."""
    with judging(log) as both:
        yield both


@pytest.fixture
def guard(judged: tuple[Judge, FakeGuard]) -> Iterator[SyncGuard]:
    """Ask it."""
    with SyncGuard(judged[1].url) as client:
        yield client


def run(guard: Any, log: Any, *script: Any, saver: Any = None, **options: Any) -> list[Any]:
    """Run an agent, and return the answers of its tools."""
    options = {"irreversible": IRREVERSIBLE, **options}
    graph = agent(says(*script), SidecarMiddleware(guard, log, **options), saver=saver)
    messages = graph.invoke({"messages": [HumanMessage("go")]}, thread())["messages"]
    return [message for message in messages if isinstance(message, ToolMessage)]


def test_a_permitted_tool_acts_and_is_written_down(guard: SyncGuard, log: MemoryLog) -> None:
    (answer,) = run(guard, log, calls("deploy", env="prod"), "done")
    assert answer.content == "deployed 1 to prod"
    assert DEPLOYED == ["prod"]
    (action,) = log.of("action")
    assert (action.action_id, action.irreversible, action.seq) == ("deploy-prod-1", True, 5)


def test_a_refused_tool_does_not_act_and_the_model_hears_why(guard: SyncGuard, log: MemoryLog) -> None:
    model = says(calls("deploy", env="prod", version=2), "I may not.")
    graph = agent(model, SidecarMiddleware(guard, log, irreversible=IRREVERSIBLE))
    messages = graph.invoke({"messages": [HumanMessage("go")]})["messages"]
    (answer,) = (message for message in messages if isinstance(message, ToolMessage))
    assert answer.status == "error"
    assert answer.content.startswith("deploy-prod-2 is refused in session s (log applied up to 3):")
    assert "- action_unauthorized: action deploy-prod-2" in answer.content
    assert "  do: Do not do it, nor anything else to the same end. Ask for approval;" in answer.content
    assert "was carried out" not in answer.content
    assert model.heard[-1][-1] is answer
    assert DEPLOYED == []
    assert log.of("action") == []


def test_a_refusal_may_be_raised(guard: SyncGuard, log: MemoryLog) -> None:
    with pytest.raises(Refused, match="deploy-prod-2 is refused"):
        run(guard, log, calls("deploy", env="prod", version=2), on_refusal="raise")
    assert DEPLOYED == []


def test_no_guard_no_action(log: MemoryLog) -> None:
    with SyncGuard("http://127.0.0.1:9") as guard:
        (answer,) = run(guard, log, calls("deploy", env="prod"), "done")
    assert answer.status == "error"
    assert "unavailable" in answer.content
    assert DEPLOYED == []


def test_two_calls_at_once_are_asked_about_each(guard: SyncGuard, log: MemoryLog) -> None:
    both = calls("deploy", env="prod")
    both.tool_calls += calls("deploy", "call-2", env="elsewhere").tool_calls
    first, second = run(guard, log, both, "done")
    assert (first.status, second.status) == ("success", "error")
    assert DEPLOYED == ["prod"]


async def test_with_await(judged: tuple[Judge, FakeGuard], log: MemoryLog) -> None:
    awaited = AsyncMemoryLog()
    awaited.raw = log.raw
    here = threading.current_thread()

    @tool
    async def deploy(env: str) -> str:
        """Deploy."""
        assert threading.current_thread() is here
        DEPLOYED.append(env)
        return env

    async with Guard(judged[1].url) as guard:
        for either in (awaited, log):
            middleware = SidecarMiddleware(guard, either, irreversible={"deploy": "deploy-{env}-1"})
            script = says(calls("deploy", env="prod"), calls("deploy", env="test"), "done")
            graph = agent(script, middleware, tools=[deploy])
            messages = (await graph.ainvoke({"messages": [HumanMessage("go")]}))["messages"]
            assert [message.status for message in messages if isinstance(message, ToolMessage)] == ["success", "error"]
    assert DEPLOYED == ["prod", "prod"]
    assert len(log.of("action")) == 2
    with SyncGuard(judged[1].url) as blocking:
        graph = agent(says(calls("deploy", env="prod"), "done"), SidecarMiddleware(blocking, awaited), tools=[deploy])
        await graph.ainvoke({"messages": [HumanMessage("go")]})
    assert len(log.of("action")) == 2  # nothing was said to be irreversible


def test_what_needs_await_is_not_used_without(log: MemoryLog) -> None:
    for guard, either in ((Guard("http://127.0.0.1:9"), log), (SyncGuard("http://127.0.0.1:9"), AsyncMemoryLog())):
        with pytest.raises(TypeError, match="needs await"):
            run(guard, either, calls("deploy", env="prod"), "done")
    assert DEPLOYED == []


def test_a_tool_may_say_itself_that_it_is_irreversible(guard: SyncGuard, log: MemoryLog) -> None:
    @tool
    def drop(table: str = "users") -> str:
        """Drop a table."""
        DEPLOYED.append(table)
        return table

    drop.metadata = {"irreversible": "drop-{table}"}
    log.authorization("drop-users", "ticket")
    script = says(calls("drop"), calls("drop", table="orders"), "done")
    graph = agent(script, SidecarMiddleware(guard, log), tools=[drop])
    messages = graph.invoke({"messages": [HumanMessage("go")]})["messages"]
    assert [m.status for m in messages if isinstance(m, ToolMessage)] == ["success", "error"]
    assert DEPLOYED == ["users"]
    drop.metadata = {"irreversible": True}
    with pytest.raises(ValueError, match="must be the action's id"):
        agent(says(calls("drop")), SidecarMiddleware(guard, log), tools=[drop]).invoke(
            {"messages": [HumanMessage("go")]}
        )


def test_defaults_of_a_tool_described_by_a_json_schema_count(guard: SyncGuard, log: MemoryLog) -> None:
    properties = {"env": {"type": "string", "default": "prod"}, "version": {"type": "integer"}, "x": True}
    remote = StructuredTool(
        name="deploy",
        description="Deploy.",
        args_schema={"type": "object", "properties": properties},
        func=lambda **arguments: DEPLOYED.append("remote"),
    )
    script = says(calls("deploy", version=1), calls("deploy", version=2), "done")
    graph = agent(script, SidecarMiddleware(guard, log, irreversible=IRREVERSIBLE), tools=[remote, *TOOLS[2:]])
    messages = graph.invoke({"messages": [HumanMessage("go")]})["messages"]
    assert [m.status for m in messages if isinstance(m, ToolMessage)] == ["success", "error"]
    assert DEPLOYED == ["remote"]


def test_what_a_call_would_do_may_be_told_by_a_function(guard: SyncGuard, log: MemoryLog) -> None:
    def action(arguments: Any) -> str:
        return f"deploy-{arguments['env'].lower()}-{arguments['version']}"

    (answer,) = run(guard, log, calls("deploy", env="PROD"), "done", irreversible={"deploy": action})
    assert answer.status == "success"


@pytest.mark.parametrize("action", ["deploy-{region}", lambda arguments: arguments["region"]])
def test_what_has_no_name_is_not_done(guard: SyncGuard, log: MemoryLog, action: Any) -> None:
    (answer,) = run(guard, log, calls("deploy", env="prod"), "done", irreversible={"deploy": action})
    assert answer.status == "error"
    assert "has no name" in answer.content
    assert DEPLOYED == []


def test_a_tool_that_does_not_exist_is_an_error(guard: SyncGuard, log: MemoryLog) -> None:
    with pytest.raises(ValueError, match="no such tools: deplooy"):
        run(guard, log, calls("deploy", env="prod"), irreversible={"deplooy": "deploy-{env}"})
    assert DEPLOYED == []
    for wrong in ({"irreversible": {"deploy": "{"}}, {"on_refusal": "shrug"}, {"on_error": "shrug"}):
        with pytest.raises(ValueError, match=r"template|tell or raise|publish or skip"):
            SidecarMiddleware(guard, log, **wrong)


def test_a_tool_that_raises_may_have_acted(guard: SyncGuard, log: MemoryLog) -> None:
    with pytest.raises(ConnectionError):
        run(guard, log, calls("breaks", env="prod"))
    assert [action.action_id for action in log.of("action")] == ["break-prod"]
    with pytest.raises(ConnectionError):
        run(guard, log, calls("breaks", env="prod"), on_error="skip")
    assert len(log.of("action")) == 1


def test_a_tool_that_is_interrupted_has_not_acted_yet(guard: SyncGuard, log: MemoryLog) -> None:
    graph = agent(
        says(calls("ask_first", question="Really?"), "done"),
        SidecarMiddleware(guard, log, irreversible=IRREVERSIBLE),
        saver=InMemorySaver(),
    )
    stopped = graph.invoke({"messages": [HumanMessage("go")]}, thread())
    assert stopped["__interrupt__"][0].value == "Really?"
    assert log.of("action") == []
    graph.invoke(Command(resume="yes"), thread())
    assert DEPLOYED == ["Really?: yes"]
    assert [action.action_id for action in log.of("action")] == ["ask"]


def test_done_and_not_written_down_ends_the_run(guard: SyncGuard, log: MemoryLog) -> None:
    class Full(MemoryLog):
        def _append(self, role: str, body: bytes) -> int:
            if b'"action"' in body:
                raise OSError("disk full")
            return super()._append(role, body)

    full = Full()
    full.raw = log.raw
    with pytest.raises(ActionUnlogged, match="deploy-prod-1 was carried out"):
        run(guard, full, calls("deploy", env="prod"), "done")
    assert DEPLOYED == ["prod"]


def test_handles_are_written_down_and_what_tools_say_is_not(
    guard: SyncGuard, log: MemoryLog, judged: tuple[Judge, FakeGuard]
) -> None:
    run(guard, log, calls("provision", size=2), calls("deploy", "call-2", env="prod"), "done")
    (result,) = log.of("tool_result")
    assert (result.call_key, result.handle, result.referents) == ('provision({"size": 2})', "vm-2", ("disk-2",))
    assert judged[0].found() == []


def test_handles_in_commands_are_found(guard: SyncGuard, log: MemoryLog) -> None:
    @tool
    def provision(size: int) -> Any:
        """Make a machine."""
        message = ToolMessage("made", tool_call_id="call-1", artifact={"handle": "vm"})
        return Command(update={"messages": [message]})

    graph = agent(says(calls("provision", size=1), "done"), SidecarMiddleware(guard, log), tools=[provision])
    graph.invoke({"messages": [HumanMessage("go")]})
    assert [result.handle for result in log.of("tool_result")] == ["vm"]


@pytest.mark.parametrize("artifact", [None, "vm-1", {}, {"handle": 5}, ["vm-1"], {"handle": None}])
def test_what_names_no_handle(artifact: Any) -> None:
    assert handle_of(ToolMessage("x", tool_call_id="c", artifact=artifact)) is None
    assert handle_of(ToolMessage("x", tool_call_id="c", artifact={"handle": "h"})) == Handle("h")


def test_the_same_call_has_the_same_key() -> None:
    one = key_of({"name": "f", "id": "1", "args": {"b": 1, "a": [2]}})
    assert one == key_of({"name": "f", "id": "2", "args": {"a": [2], "b": 1}}) == 'f({"a": [2], "b": 1})'
    assert one != key_of({"name": "f", "id": "1", "args": {"b": 2, "a": [2]}})
    long = key_of({"name": "f", "id": "1", "args": {"a": "x" * 500}})
    assert len(long) < 100
    assert long != key_of({"name": "f", "id": "1", "args": {"a": "x" * 501}})


def test_a_tool_node_of_a_plain_graph_takes_it_too(guard: SyncGuard, log: MemoryLog) -> None:
    from langgraph.graph import MessagesState, StateGraph

    middleware = SidecarMiddleware(guard, log, irreversible=IRREVERSIBLE)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(TOOLS, wrap_tool_call=middleware.wrap_tool_call))
    builder.set_entry_point("tools")
    graph = builder.compile()
    for env, status in (("prod", "success"), ("test", "error")):
        messages = graph.invoke({"messages": [calls("deploy", env=env)]})["messages"]
        assert messages[-1].status == status
    assert DEPLOYED == ["prod"]


def test_one_middleware_serves_many_threads(judged: tuple[Judge, FakeGuard], log: MemoryLog, guard: SyncGuard) -> None:
    other = MemoryLog("other")
    other.event("hello")
    judged[0].logs["other"] = other
    logs = {"t": log, "u": other}
    middleware = SidecarMiddleware(guard, lambda thread_id: logs[thread_id], irreversible=IRREVERSIBLE)
    statuses = []
    for thread_id in ("t", "u"):
        graph = agent(says(calls("deploy", env="prod"), "done"), middleware)
        messages = graph.invoke({"messages": [HumanMessage("go")]}, thread(thread_id))["messages"]
        statuses += [message.status for message in messages if isinstance(message, ToolMessage)]
    assert statuses == ["success", "error"]
    graph = agent(says(calls("deploy", env="prod"), "done"), middleware)
    with pytest.raises(ValueError, match="no thread_id"):
        graph.invoke({"messages": [HumanMessage("go")]})
    alone = SidecarMiddleware(guard, log, irreversible=IRREVERSIBLE)
    for thread_id, script in (("t", (calls("deploy", env="prod"), "done")), ("u", (calls("deploy", env="prod"),))):
        graph = agent(says(*script), alone)
        if thread_id == "t":
            graph.invoke({"messages": [HumanMessage("go")]}, thread(thread_id))
        else:
            with pytest.raises(ValueError, match="a log is one session's"):
                graph.invoke({"messages": [HumanMessage("go")]}, thread(thread_id))


async def test_cancelled_while_acting_it_is_written_down(judged: tuple[Judge, FakeGuard], log: MemoryLog) -> None:
    begun = asyncio.Event()

    @tool
    async def deploy(env: str) -> str:
        """Deploy."""
        begun.set()
        await asyncio.sleep(60)
        return env

    async with Guard(judged[1].url) as guard:
        middleware = SidecarMiddleware(guard, log, irreversible={"deploy": "deploy-{env}-1"})
        graph = agent(says(calls("deploy", env="prod"), "done"), middleware, tools=[deploy])
        task = asyncio.create_task(graph.ainvoke({"messages": [HumanMessage("go")]}))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [action.action_id for action in log.of("action")] == ["deploy-prod-1"]
