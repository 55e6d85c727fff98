"""An agent that operates a service, in three lives; docs/walkthrough.md tells its story.

    python docs/examples/walkthrough_agent.py first    # compacts badly, is refused, and is killed
    python docs/examples/walkthrough_agent.py second   # is refused the resume, reconciles, acts, and is killed
    python docs/examples/walkthrough_agent.py third    # is refused a stale resume, reconciles, acts

It needs `frontier-sidecar[langgraph]`, and beside it `sidecar run`. Its model says what it has been told to say.
"""

import argparse
import asyncio
import json
import os
import pickle
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from sidecar.client import Emitter, Guard, HaltListener, Refused
from sidecar.client.langgraph import SidecarCompaction, SidecarMiddleware, SidecarSaver, compacted

SESSION = "ops-7"
THREAD: RunnableConfig = {"configurable": {"thread_id": SESSION}}


# --- tools ---


@tool
def migrate(table: str) -> str:
    """Migrate a table."""
    return f"migrated {table}"


@tool
def deploy(version: str) -> str:
    """Deploy a version to production."""
    return f"deployed {version}"


@tool
def announce(version: str) -> str:
    """Tell the customers."""
    return f"announced {version}"


@tool
def page_operator(text: str) -> str:
    """Call for a person, and wait."""
    killed()
    return "nobody came"


# --- parts ---


def make_agent(model: Any, summarizer: Any, saver: SidecarSaver, guard: Guard, log: Emitter) -> Any:
    """Return the agent: LangChain's, with three parts of the sidecar's client."""
    irreversible = {
        "migrate": "migrate-{table}",
        "deploy": "deploy-{version}",
        "announce": "announce-{version}",
    }
    summarize = SummarizationMiddleware(
        summarizer, trigger=("messages", 7), keep=("messages", 1), trim_tokens_to_summarize=None
    )
    return create_agent(
        model,
        [migrate, deploy, announce, page_operator],
        middleware=[
            SidecarMiddleware(guard, log, irreversible=irreversible),
            SidecarCompaction(summarize, guard, log),
        ],
        checkpointer=saver,
    )


async def say(agent: Any, text: str | None, config: RunnableConfig = THREAD) -> None:
    """Give the agent a message (None: let it go on where it was), and show what comes of it."""
    given = None if text is None else {"messages": [HumanMessage(text)]}
    if text is not None:
        print(f"user: {text}")
    # `sync`: a step's state, and so its `checkpoint` record, is written before the next step begins.
    async for step in agent.astream(given, config, stream_mode="updates", durability="sync"):
        for update in step.values():
            show((update or {}).get("messages", []))


# --- first life ---


async def first(life: "Life") -> None:
    """Be permitted one action, compact badly, be refused the next one, and be killed."""
    log, agent = life.log, life.agent(FIRST_MODEL, FIRST_SUMMARIES)

    await log.constraint("no-rollback", polarity="negative", text="Never roll back without asking me.")
    await log.authorization("migrate-users", "approval-1")
    await say(agent, "approval-1: migrate the users table. And no-rollback: never roll back without asking me.")
    await log.authorization("deploy-v2", "ticket-9")
    await say(agent, "ticket-9 is through: v2 may be deployed.")
    await say(agent, "Go ahead.")


# --- second life ---


async def second(life: "Life") -> None:
    """Be refused the resume, go back to the last whole state, compact well, act, and be killed."""
    log, agent = life.log, life.agent(SECOND_MODEL, SECOND_SUMMARIES)
    await life.halted()
    try:
        await say(agent, None)
    except Refused as refused:
        print(refused)
    for halt in life.halts.halts(SESSION):
        await life.halts.ack(halt, by="operator", decision="replay")
    whole = await newest_whole_state(life.kept)
    config = await life.saver.areconcile(whole, "replay")
    print("operator: go back to the state from before the compaction")

    await say(agent, None, config)
    await life.heard("clear")

    await log.authorization("announce-v2", "approval-3")
    await log.flush()
    killed()


async def newest_whole_state(kept: "FileSaver") -> RunnableConfig:
    """Return LangGraph's newest state that stands on no summary."""
    async for found in kept.alist(THREAD):
        if compacted(found.checkpoint["channel_values"]) is None:
            return found.config
    raise LookupError("every state stands on a summary")


# --- third life ---


async def third(life: "Life") -> None:
    """Be refused a stale resume, hear again what was missed, and act."""
    agent = life.agent(THIRD_MODEL, THIRD_SUMMARIES)
    try:
        await say(agent, "Are you there?")
    except Refused as refused:
        print(refused)
    print("operator: go on from there, and hear again what came after it")
    await life.saver.areconcile(THREAD, "replay")
    await life.heard("clear")

    await say(agent, "approval-3: announce v2.")
    await life.applied()
    session = await life.guard.session(SESSION)
    print(f"session: {session.status}, {len(session.open_halts)} open halts, position {session.position}")
    for edge in session.frontier.edges:
        print(f"  {edge.action_id} by {edge.precondition_id}, granted at {edge.granted}")
    for finding in (await life.guard.findings(SESSION)).findings:
        subject = f"{finding.subject.type} {finding.subject.id}"
        print(f"finding at {finding.position}: {finding.severity} {finding.rule}, {subject}")


# --- what the scripted models say ---


def calls(name: str, call_id: str, **arguments: Any) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id}])


def summary(text: str, **carried: Any) -> AIMessage:
    """Return a summary as `SidecarCompaction` asks for it: with a block that says what it carries."""
    return AIMessage(f"{text}\n<carried>{json.dumps(carried)}</carried>")


MERGED = [["migrate-users", "approval-1"], ["deploy-v2", "approval-1"]]
RIGHT = [["migrate-users", "approval-1"], ["deploy-v2", "ticket-9"]]

FIRST_MODEL = (
    calls("migrate", "call-1", table="users"),
    AIMessage("The users table is migrated."),
    AIMessage("Tell me when to deploy v2."),
    calls("deploy", "call-2", version="v2"),
    calls("page_operator", "call-3", text="I am not allowed to deploy v2."),
)
FIRST_SUMMARIES = (
    summary("The migration and the deployment of v2 are approved.", edges=MERGED),
    summary(
        "The migration and the deployment of v2 are approved. No rollbacks.",
        edges=MERGED,
        negative_constraints=["no-rollback"],
    ),
)
SECOND_MODEL = (calls("deploy", "call-4", version="v2"), AIMessage("v2 is deployed."))
SECOND_SUMMARIES = (
    summary(
        "approval-1: the users table, migrated. ticket-9: v2 may be deployed. No rollbacks.",
        edges=RIGHT,
        negative_constraints=["no-rollback"],
    ),
)
THIRD_MODEL = (calls("announce", "call-5", version="v2"), AIMessage("The customers know of v2."))
THIRD_SUMMARIES = (
    summary(
        "approval-1: the users table, migrated. ticket-9: v2, deployed. approval-3: announce v2. No rollbacks.",
        edges=[*RIGHT, ["announce-v2", "approval-3"]],
        negative_constraints=["no-rollback"],
    ),
)


class Scripted(GenericFakeChatModel):
    """Be a chat model that says one thing after the other."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


# --- the rest ---


class Asking(Guard):
    """Be the guard's client, and show what is asked and answered."""

    async def authorize(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().authorize(*args, **kwargs)
        print(f"  guard: authorize {args[1]}: {'allowed' if answer.allowed else 'refused'}")
        return answer

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().commit(*args, **kwargs)
        lost = [constraint.constraint_id for constraint in answer.constraints if constraint.lost]
        print(f"  guard: commit {answer.node_id}: {answer.decision}{f', {lost} are lost' if lost else ''}")
        return answer


class FileSaver(InMemorySaver):
    """Keep LangGraph's states in a file; a real agent uses `SqliteSaver` or `PostgresSaver`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():
            storage, writes, blobs = pickle.loads(path.read_bytes())
            for thread_id, namespaces in storage.items():
                self.storage[thread_id].update(namespaces)
            self.writes.update(writes)
            self.blobs.update(blobs)

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        config = super().put(*args, **kwargs)
        self._keep()
        return config

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        super().put_writes(*args, **kwargs)
        self._keep()

    def _keep(self) -> None:
        storage = {thread_id: dict(namespaces) for thread_id, namespaces in self.storage.items()}
        new = self._path.with_suffix(".new")
        new.write_bytes(pickle.dumps((storage, dict(self.writes), dict(self.blobs))))
        new.replace(self._path)


class Life:
    """Hold what one process of the agent works with."""

    def __init__(self, log: Emitter, guard: Guard, halts: HaltListener, kept: FileSaver) -> None:
        self.log, self.guard, self.halts, self.kept = log, guard, halts, kept
        self.saver = SidecarSaver(kept, guard, log)

    def agent(self, model: Iterable[BaseMessage], summaries: Iterable[BaseMessage]) -> Any:
        """Return the agent."""
        scripts = (Scripted(messages=iter(script)) for script in (model, summaries))
        return make_agent(*scripts, self.saver, self.guard, self.log)

    async def applied(self) -> None:
        """Wait until the guard knows of all that was logged: a question with `min_seq` waits for it."""
        await self.guard.gc(SESSION, [], min_seq=self.log.position)

    async def halted(self) -> None:
        """Show the open halts of this session, once there are some."""
        while not self.halts.halts(SESSION):
            if await self.halts.next(within=20) is None:
                raise TimeoutError("nothing was heard on the halts topic")
        for halt in self.halts.halts(SESSION):
            if halt.halt is not None:
                print(f"halts: open since position {halt.halt.position}, {', '.join(halt.halt.reason)}")

    async def heard(self, status: str) -> None:
        """Show the halts as they come, until one of this session has the status."""
        while (halt := await self.halts.next(within=20)) is not None:
            if halt.session_id == SESSION:
                print(f"halts: {halt.status} at position {halt.position}, {', '.join(halt.reason)}")
                if halt.status == status:
                    return
        raise TimeoutError("nothing was heard on the halts topic")


def show(messages: Iterable[BaseMessage]) -> None:
    """Print what the agent said and did."""
    for message in messages:
        if message.additional_kwargs.get("lc_source") == "summarization":
            print("  the messages before the last ones are replaced by a summary")
            return  # what follows is what was kept
        if isinstance(message, ToolMessage):
            print(f"  tool: {message.text}".replace("\n", "\n    "))
        elif isinstance(message, AIMessage):
            for tool_call in message.tool_calls:
                print(f"model: calls {tool_call['name']}({', '.join(map(repr, tool_call['args'].values()))})")
            if message.text:
                print(f"model: {message.text}")


def killed() -> None:
    """Be killed, as by the kernel."""
    print("(the process is killed)", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def main(options: argparse.Namespace) -> None:
    """Live one life."""
    options.state.mkdir(parents=True, exist_ok=True)
    prefix, kept = options.topics, FileSaver(options.state / "langgraph.pickle")
    halts = HaltListener(options.kafka, topic=f"{prefix}halts", acks_topic=f"{prefix}halt_acks")
    log = Emitter.kafka(
        options.kafka,
        SESSION,
        journal=options.state,
        events_topic=f"{prefix}events",
        compactions_topic=f"{prefix}compactions",
    )
    async with halts, log, Asking(options.guard, patience=20) as guard:
        await halts.wait_ready(within=20)
        await {"first": first, "second": second, "third": third}[options.life](Life(log, guard, halts, kept))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Live one life of the agent of docs/walkthrough.md.")
    parser.add_argument("life", choices=["first", "second", "third"])
    parser.add_argument("--state", type=Path, default=Path("walkthrough"), help="where the agent keeps what it needs")
    parser.add_argument("--kafka", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--guard", default="http://127.0.0.1:9464", metavar="URL")
    parser.add_argument("--topics", default="agent.", metavar="PREFIX", help="what the topics' names begin with")
    asyncio.run(main(parser.parse_args()))
