"""Stand inside a tool: between LangChain's preparation of a call (validation, injection, defaults) and the act itself.

The model's arguments are not what a tool gets: LangGraph injects state, the tool's schema renames, fills in and
rewrites values. What is approved must be what is done, so the guard is asked from `_run` and `_arun`, with their
arguments.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, Tool

from sidecar.client.steps import Call, Procedure, arun, run
from sidecar.client.templates import bound

Around = Callable[[Call, Mapping[str, Any]], Procedure[Any]]
"""What is done around the act, from the act and the values that it gets."""

_OWN_STEPS = ("invoke", "run", "arun")


class Unseen(TypeError):
    """Say that what a tool would be called with cannot be seen."""


def guarded(tool: BaseTool, around: Around) -> BaseTool:
    """Return a tool that does something around each of its acts; the one given stays as it is.

    Args:
        tool: the tool.
        around: what is done.

    Raises:
        Unseen: the tool goes its own ways, so that nothing could stand between.
    """
    kind = type(tool)
    own = [name for name in _OWN_STEPS if getattr(kind, name, None) is not getattr(BaseTool, name, None)]
    if kind.ainvoke not in (BaseTool.ainvoke, StructuredTool.ainvoke, Tool.ainvoke):
        own.append("ainvoke")
    if own:
        raise Unseen(
            f"the tool {tool.name} has its own {' and '.join(f'`{name}`' for name in own)}, so what it acts on cannot"
            " be seen before it acts: make it a function with the decorator `tool`, or guard that with `irreversible`"
        )
    acts, acts_async = tool._run, tool._arun

    @functools.wraps(acts)
    def _run(*args: Any, **kwargs: Any) -> Any:
        kwargs = {**_defaults_of(tool), **kwargs}
        return run(around(Call(acts, args, kwargs, awaited=False), _values(tool, args, kwargs)))

    @functools.wraps(acts_async if kind._arun is not BaseTool._arun else acts)
    async def _arun(*args: Any, **kwargs: Any) -> Any:
        kwargs = {**_defaults_of(tool), **kwargs}
        return await arun(around(Call(acts_async, args, kwargs, awaited=True), _values(tool, args, kwargs)))

    copy = tool.model_copy()
    # Before the class's own: an instance's attributes come first where a class has plain functions.
    copy.__dict__.update(_run=_run, _arun=_arun, ainvoke=functools.partial(BaseTool.ainvoke, copy))
    return copy


def _values(tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each argument of a tool is when it acts."""
    given = {name: value for name, value in kwargs.items() if name not in ("run_manager", "callbacks")}
    if args:  # a tool of one text, whose model's argument has a name of its own
        return {**dict(zip(tool.args, args, strict=False)), "__arg1": args[0], **given}
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    if function is None:
        return given
    try:
        signature = inspect.signature(function)
        needed = {name: value for name, value in given.items() if name in signature.parameters} | given
        return {**bound(signature, (), needed), **given}
    except (TypeError, ValueError):  # LangChain adds what is missing (the config), or the call fails
        return given


def _defaults_of(tool: BaseTool) -> dict[str, Any]:
    """Return what a JSON Schema says that arguments are where they are left out.

    LangChain leaves these to the tool. Here they are passed on, so that what is approved is what the tool gets. Other
    schemas fill in their own.
    """
    schema: Any = tool.args_schema
    if not isinstance(schema, Mapping):
        return {}
    given = {name: of for name, of in schema.get("properties", {}).items() if isinstance(of, Mapping)}
    return {name: of["default"] for name, of in given.items() if of.get("default") is not None}
