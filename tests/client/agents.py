"""Scripted agents for tests: real graphs and agents, models that say what they are told to."""

import json
from collections.abc import Iterable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import interrupt
from pydantic import Field


class Scripted(GenericFakeChatModel):
    """Say one message after the other; `heard` is what it was given each time."""

    heard: list[list[BaseMessage]] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.heard.append(list(messages))
        return super()._generate(messages, *args, **kwargs)


def says(*lines: str | AIMessage) -> Scripted:
    """Return a model that says these, in this order."""
    messages = [line if isinstance(line, AIMessage) else AIMessage(line) for line in lines]
    return Scripted(messages=iter(messages))


def calls(name: str, call_id: str = "call-1", **arguments: Any) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id}])


def summary(text: str = "What was said.", **carried: Any) -> str:
    """Return a summary that says what it carries."""
    return f"{text}\n\n<carried>\n{json.dumps(carried)}\n</carried>"


def summarizing(*summaries: str, at: int = 4, keep: int = 1, **options: Any) -> SummarizationMiddleware:
    """Return LangChain's summarizer with a scripted model."""
    options = {"trim_tokens_to_summarize": None, **options}
    return SummarizationMiddleware(says(*summaries), trigger=("messages", at), keep=("messages", keep), **options)


DEPLOYED: list[str] = []


@tool
def deploy(env: str, version: int = 1) -> str:
    """Deploy a version."""
    DEPLOYED.append(env)
    return f"deployed {version} to {env}"


@tool(response_format="content_and_artifact")
def provision(size: int) -> tuple[str, dict[str, Any]]:
    """Make a machine."""
    return f"a machine of size {size}", {"handle": f"vm-{size}", "referents": [f"disk-{size}"]}


@tool
def ask_first(question: str) -> str:
    """Ask a person, then act."""
    answer = interrupt(question)
    DEPLOYED.append(f"{question}: {answer}")
    return str(answer)


@tool
def breaks(env: str) -> str:
    """Fail half way."""
    DEPLOYED.append(env)
    raise ConnectionError("no answer")


TOOLS: list[BaseTool] = [deploy, provision, ask_first, breaks]


def agent(
    model: Scripted, *middleware: Any, saver: BaseCheckpointSaver[Any] | None = None, tools: Iterable[BaseTool] = TOOLS
) -> Any:
    """Return a LangChain agent."""
    return create_agent(model, list(tools), middleware=list(middleware), checkpointer=saver)


def thread(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id, **more}}
