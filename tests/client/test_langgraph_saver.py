"""A checkpointer around a real one: for the graph nothing changes; taking a thread up is asked about, and logged."""

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, interrupt

from sidecar.client.guard import Guard, Refused, SyncGuard
from sidecar.client.langgraph import Compacted, Reconciled, SidecarCompaction, SidecarSaver, compacted
from sidecar.client.langgraph.logs import Remembered
from sidecar.client.langgraph.saver import RECORD
from tests.client.agents import TOOLS, agent, calls, says, summarizing, summary, thread
from tests.client.guards import FakeGuard
from tests.client.judge import Judge, judging
from tests.client.memory import AsyncMemoryLog, MemoryLog, kinds

EDGES = [["deploy-prod", "ticket"]]
MERGED = [["deploy-prod", "ticket"], ["deploy-test", "ticket"]]


@pytest.fixture
def log() -> MemoryLog:
    """Give a log."""
    return MemoryLog()


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


class Life:
    """Be an agent's process: everything in memory is new, what is kept is not."""

    def __init__(self, kept: BaseCheckpointSaver[Any], guard: Any, log: Any, *summaries: str, **options: Any) -> None:
        self.saver = SidecarSaver(kept, guard, log, **options)
        self.model = says(*["…"] * 20)
        compaction = SidecarCompaction(summarizing(*summaries, at=5), guard, log)
        self.graph = agent(self.model, compaction, saver=self.saver)

    def say(self, text: str, config: Any = None) -> list[Any]:
        """Say something; return the messages of the state."""
        return list(
            self.graph.invoke({"messages": [HumanMessage(text)]}, config or thread(), durability="sync")["messages"]
        )


def compacted_life(kept: Any, guard: Any, log: MemoryLog, edges: Any = EDGES) -> Life:
    """Live until something has been compacted."""
    life = Life(kept, guard, log, summary(edges=edges))
    log.authorization("deploy-prod", "ticket")
    log.authorization("deploy-test", "word") if edges is MERGED else None
    for text in ("Ticket allows deploy-prod.", "Hello.", "Go on."):
        life.say(text)
    assert len(log.of("checkpoint")) == 1
    return life


# --- what a checkpoint is ---------------------------------------------------------------------------------------------


def test_until_something_is_compacted_there_is_no_checkpoint(guard: SyncGuard, log: MemoryLog) -> None:
    life = Life(InMemorySaver(), guard, log)
    life.say("Hello.")
    assert kinds(log.decoded()) == ["opaque", "opaque"]
    assert len(list(life.saver.list(thread()))) > 2


def test_a_compaction_is_one_checkpoint_and_what_follows_belongs_to_it(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    (written,) = log.of("checkpoint")
    first = kept.get_tuple(thread("t", checkpoint_id=written.checkpoint_id))
    assert first is not None
    assert compacted(first.checkpoint["channel_values"]) is not None
    assert compacted(kept.get_tuple(first.parent_config).checkpoint["channel_values"]) is None  # type: ignore[union-attr]
    assert first.metadata["step"] == written.turn
    newest = kept.get_tuple(thread())
    assert newest is not None
    assert newest.checkpoint["id"] != written.checkpoint_id
    assert newest.metadata[RECORD] == written.checkpoint_id  # type: ignore[typeddict-item]
    assert RECORD not in list(kept.list(thread()))[-1].metadata


def test_an_agent_may_say_itself_what_its_state_carries(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    class State(TypedDict):
        approvals: NotRequired[Annotated[list[Any], lambda old, new: (old or []) + new]]
        summary: NotRequired[str]

    def carries(values: Any) -> Compacted | None:
        if not values.get("summary"):
            return None
        approvals = values.get("approvals") or []
        return Compacted(
            node_id=values["summary"],
            generation=1,
            level=1,
            frontier_lo=1,
            frontier_hi=max(seq for *_, seq in approvals),
            asserted_edges=tuple((action, by) for action, by, _ in approvals),
        )

    builder = StateGraph(State)
    builder.add_node("work", lambda state: {})
    builder.set_entry_point("work")
    kept = InMemorySaver()
    graph = builder.compile(SidecarSaver(kept, guard, log, carries=carries))
    seq = log.authorization("deploy-prod", "ticket")
    graph.invoke({"approvals": [["deploy-prod", "ticket", seq]]}, thread(), durability="sync")
    assert log.of("checkpoint") == []
    log.summary("node", generation=1, level=1, frontier_lo=1, frontier_hi=seq)
    graph.invoke({"summary": "node"}, thread(), durability="sync")
    assert len(log.of("checkpoint")) == 1
    seq = log.authorization("deploy-test", "word")
    graph.invoke({"approvals": [["deploy-test", "word", seq]]}, thread(), durability="sync")
    first, second = log.of("checkpoint")
    assert first.frontier_hi == 1
    assert second.frontier_hi == seq
    assert second.asserted_edges == (("deploy-prod", "ticket"), ("deploy-test", "word"))
    assert judged[0].status("s") == "verified"
    again = builder.compile(SidecarSaver(kept, guard, log, carries=carries))
    again.invoke({}, thread(), durability="sync")
    assert log.of("resume")[0].checkpoint_id == second.checkpoint_id


def test_a_channel_that_holds_something_else_is_an_error(guard: SyncGuard, log: MemoryLog) -> None:
    class State(TypedDict):
        sidecar_compaction: Any

    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"sidecar_compaction": {"node_id": "n"}})
    builder.set_entry_point("work")
    graph = builder.compile(SidecarSaver(InMemorySaver(), guard, log))
    with pytest.raises(ValueError, match="sidecar_compaction"):
        graph.invoke({"sidecar_compaction": None}, thread(), durability="sync")


# --- taking a thread up -----------------------------------------------------------------------------------------------


def test_a_new_session_is_not_asked_about(log: MemoryLog) -> None:
    with SyncGuard("http://127.0.0.1:9") as guard:
        Life(InMemorySaver(), guard, log).say("Hello.")


def test_the_same_process_goes_on_without_asking(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    life = compacted_life(InMemorySaver(), guard, log)
    asked = list(judged[1].paths)
    life.graph.get_state(thread())
    life.graph.update_state(thread(), {"messages": [AIMessage("By the way.")]})
    life.graph.get_state(thread())
    assert judged[1].paths == asked
    assert log.of("resume") == []


def test_a_new_process_asks_and_resumes(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    again = Life(kept, guard, log)
    messages = again.say("Are you there?")
    assert messages[-1].content == "…"
    (resumed,) = log.of("resume")
    assert resumed.checkpoint_id == log.of("checkpoint")[0].checkpoint_id
    again.graph.get_state(thread())
    assert len(log.of("resume")) == 1
    assert judged[0].found() == []


@pytest.mark.parametrize("how", ["stale", "merged", "no_guard"])
def test_what_may_not_be_resumed_does_not_run(how: str, guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log, MERGED if how == "merged" else EDGES)
    if how == "stale":
        log.revocation("deploy-prod")
    before, states = len(log.raw), len(list(kept.list(thread())))
    client = SyncGuard("http://127.0.0.1:9") if how == "no_guard" else guard
    again = Life(kept, client, log)
    expected = {"stale": "resumed_unverified", "merged": "resumed_unverified", "no_guard": "unavailable"}[how]
    for _ in range(2):
        with pytest.raises(Refused, match=expected) as caught:
            again.say("Are you there?")
    assert caught.value.what == f"resume from {log.of('checkpoint')[0].checkpoint_id}"
    with pytest.raises(Refused):
        again.graph.get_state(thread())
    assert again.model.heard == []
    assert (len(log.raw), len(list(kept.list(thread())))) == (before, states)
    client.close()


def test_what_is_needed_and_not_held_may_not_be_resumed(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver()
    log.tool_result("provision()", "vm-1")
    compacted_life(kept, guard, log)
    with pytest.raises(Refused, match="missing: vm-1, last seen at position 1") as caught:
        Life(kept, guard, log, deps=lambda values: ["vm-1"]).say("Are you there?")
    assert caught.value.answer.missing[0].reference == "vm-1"  # type: ignore[union-attr]


def test_without_a_summary_a_thread_goes_on_unless_its_session_has_one(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver()
    log.authorization("deploy-prod", "ticket")
    Life(kept, guard, log).say("Hello.")
    assert Life(kept, guard, log).say("Hello again.")[-1].content == "…"
    assert log.of("resume", "reconcile") == []
    old = thread("t", checkpoint_id=next(kept.list(thread())).checkpoint["id"])
    Life(kept, guard, log, summary(edges=EDGES)).say("Go on.")
    assert len(log.of("checkpoint")) == 1
    with pytest.raises(Refused, match="going on without a summary is refused"):
        Life(kept, guard, log).say("And now?", old)
    with pytest.raises(Refused, match="going on without a summary is refused"):
        Life(InMemorySaver(), guard, log).say("I remember nothing.")  # its states have been lost
    with pytest.raises(Refused, match="not_applied"):
        other = MemoryLog("other")
        other.event("hello")
        Life(InMemorySaver(), guard, other).say("The guard does not know this one.")


def test_another_state_than_the_last_is_asked_about(guard: SyncGuard, log: MemoryLog) -> None:
    """Also when the same process goes back to it, or another one has gone on in between."""
    kept = InMemorySaver()
    life = compacted_life(kept, guard, log)
    (written,) = log.of("checkpoint")
    before = next(kept.list(thread(), before=thread("t", checkpoint_id=written.checkpoint_id))).config
    with pytest.raises(Refused):
        life.say("Forget that.", before)
    Life(kept, guard, log).say("I am another.")
    assert len(log.of("resume")) == 1
    life.graph.get_state(thread())
    assert len(log.of("resume")) == 2


# --- deciding how to go on --------------------------------------------------------------------------------------------


def before_compaction(kept: Any, log: MemoryLog) -> Any:
    """Return the config of the last state that was whole."""
    (written,) = log.of("checkpoint")
    return kept.get_tuple(thread("t", checkpoint_id=written.checkpoint_id)).parent_config


def test_a_controller_goes_back_to_what_was_whole(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log, MERGED)
    assert judged[0].status("s") == "corrupt"
    both = [["deploy-prod", "ticket"], ["deploy-test", "word"]]
    again = Life(kept, guard, log, summary(edges=both))
    with pytest.raises(Refused):
        again.say("Are you there?")
    config = again.saver.reconcile(before_compaction(kept, log), "replay")
    assert kinds(log.decoded())[-1] == "reconcile"
    # LangGraph reads the newest state too, which is the corrupt one, to see if there is one; that takes nothing up.
    messages = again.graph.invoke(None, config, durability="sync")["messages"]
    assert messages[0].additional_kwargs == {"lc_source": "summarization"}
    assert judged[0].status("s") == "verified"
    assert log.of("resume") == []
    assert guard.authorize("s", "deploy-test", min_seq=log.position).allowed
    assert again.say("Go on.")[-1].content == "…"
    with pytest.raises(ValueError, match="no state"):
        again.saver.reconcile(thread("nobody"), "replay")


def test_a_hook_decides(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    log.authorization("deploy-test", "word")
    seen = []

    def decide(refused: Refused, found: Any) -> Reconciled:
        seen.append((refused.what, found.checkpoint["id"]))
        return Reconciled("accept_divergence")

    again = Life(kept, guard, log, summary(edges=EDGES), on_refused=decide)
    again.say("Are you there?")
    assert len(seen) == 1
    resumed, reconciled = log.of("resume", "reconcile")
    assert resumed.seq == reconciled.seq - 1
    assert reconciled.decision == "accept_divergence"
    assert ("resumed_unverified", resumed.checkpoint_id) in judged[0].found()
    assert [halt.status for halt in judged[0].halts] == ["halt", "clear"]


def test_a_hook_may_decide_nothing(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    log.revocation("deploy-prod")
    with pytest.raises(Refused):
        Life(kept, guard, log, on_refused=lambda refused, found: None).say("Are you there?")
    assert log.of("resume", "reconcile") == []


async def test_a_hook_that_is_awaited_may_choose_another_state(judged: Any) -> None:
    log = AsyncMemoryLog("async")
    judged[0].logs["async"] = log
    kept = InMemorySaver()
    async with Guard(judged[1].url) as guard:

        async def say(life: Life, text: str) -> Any:
            return await life.graph.ainvoke({"messages": [HumanMessage(text)]}, thread(), durability="sync")

        life = Life(kept, guard, log, summary(edges=MERGED))
        await log.authorization("deploy-prod", "ticket")
        await log.authorization("deploy-test", "word")
        for text in ("Ticket allows deploy-prod, word deploy-test.", "Hello.", "Go on."):
            await say(life, text)
        assert judged[0].status("async") == "corrupt"

        async def decide(refused: Refused, found: Any) -> Reconciled:
            await asyncio.sleep(0)
            return Reconciled("replay", before_compaction(kept, log))

        both = summary(edges=[["deploy-prod", "ticket"], ["deploy-test", "word"]])
        again = Life(kept, guard, log, both, on_refused=decide)
        await say(again, "Are you there?")
        assert kinds(log.of("resume", "reconcile")) == ["reconcile"]
        assert judged[0].status("async") == "verified"
        config = await again.saver.areconcile(thread(), "accept_divergence")
        assert kinds(log.decoded())[-2:] == ["resume", "reconcile"]
        await again.graph.ainvoke({"messages": [HumanMessage("Hm.")]}, config, durability="sync")
        with pytest.raises(TypeError, match="needs await"):
            again.graph.get_state(thread("u"))


def test_naming_no_state_explicitly_is_no_way_around(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    log.revocation("deploy-prod")
    again = Life(kept, guard, log)
    with pytest.raises(Refused):
        again.say("Are you there?", thread("t", checkpoint_id=None))
    with pytest.raises(Refused):
        again.say("Are you there?", thread("t", checkpoint_ns="", checkpoint_id=None))
    config = again.saver.reconcile(before_compaction(kept, log), "replay")
    again.graph.get_state(config)  # remembers an address ...
    with pytest.raises(Refused):
        again.say("Are you there?", thread("t", checkpoint_id=None))  # ... that this one is not


# --- the wrapper itself -----------------------------------------------------------------------------------------------


def test_everything_a_checkpointer_has_is_passed_on() -> None:
    """A method that LangGraph adds is noticed here; `get` and `aget` are made of `get_tuple`."""
    theirs = {name for name, _ in inspect.getmembers(BaseCheckpointSaver) if not name.startswith("_")}
    ours = {name for name in vars(SidecarSaver) if not name.startswith("_")}
    assert theirs - ours == {"get", "aget", "serde"}


def test_for_the_graph_nothing_changes(guard: SyncGuard) -> None:
    def child() -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("inner", lambda state: {"messages": [AIMessage(f"inner {interrupt('go?')}")]})
        builder.set_entry_point("inner")
        return builder.compile()

    def parent(saver: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("first", lambda state: {"messages": [AIMessage("first")]})
        builder.add_node("sub", child())
        builder.add_node("last", lambda state: {"messages": [AIMessage("last")]})
        builder.set_entry_point("first")
        builder.add_edge("first", "sub")
        builder.add_edge("sub", "last")
        return builder.compile(saver)

    def told(saver: Any) -> list[Any]:
        graph = parent(saver)
        lines: list[Any] = []
        lines.append(
            graph.invoke({"messages": [HumanMessage("hi")]}, thread(), durability="sync")["__interrupt__"][0].value
        )
        lines.append([m.content for m in graph.invoke(Command(resume="yes"), thread(), durability="sync")["messages"]])
        history = list(graph.get_state_history(thread()))
        lines.append([(state.metadata["source"], state.metadata["step"], state.next) for state in history])
        earlier = next(state.config for state in history if state.next == ("sub",))
        lines.append(graph.invoke(None, earlier, durability="sync").keys())
        lines.append([m.content for m in graph.invoke(Command(resume="no"), thread(), durability="sync")["messages"]])
        graph.update_state(thread(), {"messages": [AIMessage("changed")]})
        lines.append([m.content for m in graph.get_state(thread(), subgraphs=True).values["messages"]])
        lines.append(len(list(saver.list(None, limit=3))))
        lines.append(len(list(saver.list(thread(), filter={"source": "update"}))))
        lines.append(saver.get(thread())["channel_values"].keys())
        saver.delete_thread("t")
        lines.append(saver.get_tuple(thread()))
        return lines

    def wrapped() -> SidecarSaver:
        return SidecarSaver(InMemorySaver(), guard, MemoryLog())

    assert told(wrapped()) == told(InMemorySaver())
    for call in (
        lambda saver: saver.copy_thread("t", "u"),
        lambda saver: saver.prune(["t"]),
        lambda saver: saver.delete_for_runs(["r"]),
    ):
        with pytest.raises(NotImplementedError):
            call(wrapped())


async def test_for_the_graph_nothing_changes_with_await(judged: Any) -> None:
    async def told(saver: Any) -> list[Any]:
        builder = StateGraph(MessagesState)
        builder.add_node("work", lambda state: {"messages": [AIMessage(f"done {interrupt('go?')}")]})
        builder.set_entry_point("work")
        graph = builder.compile(saver)
        lines: list[Any] = []
        lines.append(
            (await graph.ainvoke({"messages": [HumanMessage("hi")]}, thread(), durability="sync"))["__interrupt__"][
                0
            ].value
        )
        lines.append(
            [m.content for m in (await graph.ainvoke(Command(resume="yes"), thread(), durability="sync"))["messages"]]
        )
        lines.append([state.metadata["source"] async for state in graph.aget_state_history(thread())])
        await graph.aupdate_state(thread(), {"messages": [AIMessage("changed")]})
        lines.append([m.content for m in (await graph.aget_state(thread())).values["messages"]])
        lines.append(len([found async for found in saver.alist(thread(), limit=2)]))
        lines.append((await saver.aget(thread()))["channel_values"].keys())
        lines.append(await saver.aget_delta_channel_history(config=thread(), channels=["none"]))
        await saver.adelete_thread("t")
        lines.append(await saver.aget_tuple(thread()))
        for call in (saver.acopy_thread("t", "u"), saver.aprune(["t"]), saver.adelete_for_runs(["r"])):
            with pytest.raises(NotImplementedError):
                await call
        return lines

    async with Guard(judged[1].url) as guard:
        wrapped = SidecarSaver(InMemorySaver(), guard, AsyncMemoryLog())
        assert await told(wrapped) == await told(InMemorySaver())


def test_what_else_the_inner_one_has_is_its_own(guard: SyncGuard, log: MemoryLog) -> None:
    inner = InMemorySaver()
    saver = SidecarSaver(inner, guard, log)
    assert saver.storage is inner.storage
    assert saver.serde is inner.serde
    assert saver.config_specs == inner.config_specs
    assert saver.get_next_version(None, None).startswith("0000")
    assert saver.get_delta_channel_history(config=thread(), channels=["x"]) == {"x": {"writes": []}}
    with pytest.raises(AttributeError):
        _ = saver.nothing_like_this


def test_a_clone_that_reads_less_knows_the_same_threads(guard: SyncGuard, log: MemoryLog) -> None:
    kept = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=[("builtins", "set")]))
    life = compacted_life(kept, guard, log)
    clone = life.saver.with_allowlist([("collections", "deque")])
    assert clone is not life.saver
    assert clone.inner is not life.saver.inner
    assert clone.serde is clone.inner.serde
    log.revocation("deploy-prod")
    assert clone.get_tuple(thread()) is not None
    assert log.of("resume") == []


def test_a_log_is_one_threads(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    saver = SidecarSaver(InMemorySaver(), guard, log)
    log.event("hello")
    saver.get_tuple(thread("t"))
    with pytest.raises(ValueError, match="thread u would write to the log of session s"):
        saver.get_tuple(thread("u"))
    logs = {name: MemoryLog(name) for name in "tu"}
    judged[0].logs.update(logs)
    many = SidecarSaver(InMemorySaver(), guard, logs.__getitem__)
    for name, edges in (("t", EDGES), ("u", [])):
        model = says(*["…"] * 9)
        graph = agent(model, SidecarCompaction(summarizing(summary(edges=edges)), guard, logs.__getitem__), saver=many)
        for text in ("Hello.", "Hello.", "Go on."):
            graph.invoke({"messages": [HumanMessage(text)]}, thread(name), durability="sync")
    assert [len(logs[name].of("checkpoint")) for name in "tu"] == [1, 1]
    assert judged[0].status("u") == "verified"
    assert judged[0].status("t") == "corrupt"  # nobody had allowed what that summary says


def test_so_many_threads_are_remembered_and_no_more() -> None:
    remembered: Remembered[int] = Remembered(most=3)
    for n in range(5):
        remembered.put(str(n), n)
        remembered.get("0")
    assert [remembered.get(str(n)) for n in range(5)] == [0, None, None, 3, 4]
    remembered.forget("3")
    assert remembered.get("3") is None


def test_the_documents_agent_can_be_made(guard: SyncGuard, log: MemoryLog) -> None:
    page = (Path(__file__).parents[2] / "docs" / "langgraph.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    log.authorization("deploy-prod-1", "ticket")
    model = says(calls("deploy", env="prod"), "done")
    made = names["make_agent"](model, TOOLS, InMemorySaver(), guard, log)
    made.invoke({"messages": [HumanMessage("go")]}, thread(), durability="sync")
    assert log.of("action") == []  # without the version, nothing allows `deploy-prod`
    assert "deploy-prod is refused" in model.heard[-1][-1].text


# --- durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", [None, "async", "exit"])
async def test_a_run_that_does_not_write_each_state_first_is_refused(
    durability: Any, guard: SyncGuard, log: MemoryLog
) -> None:
    life = Life(InMemorySaver(), guard, log)
    given: Any = {"messages": [HumanMessage("Hello.")]}
    with pytest.raises(ValueError, match='durability="sync"'):
        life.graph.invoke(given, thread(), durability=durability)
    with pytest.raises(ValueError, match='durability="sync"'):
        list(life.graph.stream(given, thread(), durability=durability))
    with pytest.raises(ValueError, match='durability="sync"'):
        await life.graph.ainvoke(given, thread(), durability=durability)
    assert life.model.heard == []
    assert log.raw == []
    assert life.graph.get_state(thread()).values == {}  # looking is no run


def test_a_subgraph_is_run_as_the_graph_around_it_is(guard: SyncGuard, log: MemoryLog) -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("work", lambda state: {"messages": [AIMessage("done")]})
    inner.set_entry_point("work")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.set_entry_point("inner")
    graph = outer.compile(SidecarSaver(InMemorySaver(), guard, log))
    with pytest.raises(ValueError, match='durability="sync"'):
        graph.invoke({"messages": []}, thread())
    assert graph.invoke({"messages": []}, thread(), durability="sync")["messages"][0].content == "done"


def test_a_log_that_has_lost_its_journal_is_not_gone_on_with(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    kept = InMemorySaver()
    compacted_life(kept, guard, log)
    judged[0].catch_up()
    older = MemoryLog()
    older.raw = log.raw[:3]
    with pytest.raises(Refused, match=f"position {len(log.raw)}, as the guard tells, and this emitter stands at 3"):
        Life(kept, guard, older).say("Are you there?")
    assert older.of("resume") == []
