"""Write what is asked and done once, for code with `await` and for code without.

A procedure is a generator that yields calls and is sent what they return, or has thrown into it what they raise.
"""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

_MOST_AWAITED = 10


class Call(Struct):
    """Hold a call that is to be made.

    Args:
        function: what is called.
        args: with what.
        kwargs: with what by name.
        awaited: whether it returns something to await; else it may block.
        finish: whether it is finished even if whoever waits for it is cancelled.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    awaited: bool
    finish: bool = False


Procedure = Generator[Call, Any, T]


def is_async(thing: object) -> bool:
    """Tell whether a guard or a log is one to await (`Guard`, `Emitter`), or one that blocks."""
    return hasattr(type(thing), "__aenter__")


def call(thing: object, method: str, /, *args: Any, **kwargs: Any) -> Call:
    """Call a method of a guard or a log."""
    return Call(getattr(thing, method), args, kwargs, is_async(thing))


def finish(thing: object, method: str, /, *args: Any, **kwargs: Any) -> Call:
    """Call a method of a guard or a log, and let nothing come between."""
    return Call(getattr(thing, method), args, kwargs, is_async(thing), finish=True)


def refuse_async(*things: object) -> None:
    """See that nothing has to be awaited where nothing can be.

    Raises:
        TypeError: something has.
    """
    for thing in things:
        if is_async(thing):
            name = type(thing).__name__
            raise TypeError(f"{name} needs await, which is not possible here: use Sync{name}, or the async way in")


def run(procedure: Procedure[T]) -> T:
    """Carry a procedure out; its calls block."""
    try:
        step = next(procedure)
        while True:
            try:
                result = step.function(*step.args, **step.kwargs)
            except BaseException as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(procedure: Procedure[T]) -> T:
    """Carry a procedure out; what would block is done in a thread."""
    try:
        step = next(procedure)
        while True:
            try:
                result = await (_finished(step) if step.finish else _made(step))
            except BaseException as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _made(step: Call) -> Any:
    if step.awaited:
        result = await step.function(*step.args, **step.kwargs)
    else:
        result = await asyncio.to_thread(step.function, *step.args, **step.kwargs)
    for _ in range(_MOST_AWAITED):  # what a coroutine returns may be one, too
        if isinstance(result, concurrent.futures.Future):
            result = asyncio.wrap_future(result)
        if not inspect.isawaitable(result):
            break
        result = await result
    return result


async def _finished(step: Call) -> Any:
    """Make a call and wait for its end; being cancelled meanwhile counts afterwards."""
    task = asyncio.ensure_future(_made(step))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
