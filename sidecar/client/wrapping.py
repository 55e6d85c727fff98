"""Put a guard around a function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sidecar.client.irreversible import Log, OnError, carried_out
from sidecar.client.steps import Call, Procedure, arun, run
from sidecar.client.templates import identify

ActionId = str | Callable[..., str]
CheckpointId = str | Callable[..., str | None] | None


class Wrapping:
    """Hold what is done around a function.

    Args:
        guard: whom to ask.
        log: the session's emitter.
        function: what acts.
        action: the action's id, as a template or a function of the arguments.
        checkpoint_id: the checkpoint that must be verified.
        on_error: whether an action that raised counts as carried out.

    Raises:
        TypeError: the function does nothing yet when it is called.
        ValueError: something given makes no sense.
    """

    def __init__(
        self,
        guard: object,
        log: Log,
        function: Callable[..., Any],
        action: ActionId,
        checkpoint_id: CheckpointId,
        on_error: OnError,
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} is a generator: calling it does nothing yet, so it cannot be guarded")
        if on_error not in ("publish", "skip"):
            raise ValueError(f"on_error: publish or skip, not {on_error!r}")
        self.guard, self.log, self.function, self.on_error = guard, log, function, on_error
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        self._identify = identify(action, function)
        self._checkpoint_id = checkpoint_id

    def procedure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Procedure[Any]:
        """Return what is to be done for one call."""
        given = self._checkpoint_id
        return carried_out(
            self.guard,
            self.log,
            Call(self.function, args, kwargs, awaited=self.is_async),
            action_id=self._identify(args, kwargs),
            checkpoint_id=given(*args, **kwargs) if callable(given) else given,
            on_error=self.on_error,
        )


def wrapped_sync(wrapping: Wrapping) -> Callable[..., Any]:
    """Return the function, guarded, for code without `await`."""

    @functools.wraps(wrapping.function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return run(wrapping.procedure(args, kwargs))

    return guarded


def wrapped_async(wrapping: Wrapping) -> Callable[..., Any]:
    """Return the function, guarded, to be awaited."""

    @functools.wraps(wrapping.function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        return await arun(wrapping.procedure(args, kwargs))

    return guarded
