"""Make calls that block, one after the other, in a thread of their own.

Not an executor of `concurrent.futures`: those take nothing more as soon as the interpreter begins to end, and an
emitter that was not closed is closed right then.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """Run blocking calls in the order they are given; the thread begins with the first one.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Have a call made, and return its outcome as a future of the running loop.

        The call is made whether or not anybody still waits for it.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._jobs.put((lambda: call(*arguments), loop, outcome))
        return outcome

    def stop(self) -> None:
        """End the thread, after what it was given before."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        call, loop, outcome = job
        try:
            result, error = call(), None
        except BaseException as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(_settle, outcome, result, error)
        del job, call, loop, outcome, result, error


def _settle(outcome: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)
