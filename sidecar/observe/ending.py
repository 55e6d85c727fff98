"""End a process at a signal, whatever it is doing: cleanly if that is possible in time, at once if asked twice."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

END_WITHIN = 28.0
"""Seconds from the first signal after which the process ends, whatever is still going on; service managers and
Kubernetes kill after 30."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOWN = 10


class Ending:
    """Handle SIGTERM and SIGINT of a process; a context manager for the main thread.

    The first one begins a clean end. A second one ends the process at once, with status 128 and the signal's number.
    If the clean end takes longer than `within`, the process ends with status 1, and says what was not finished. Both
    work also while the event loop is busy, because neither needs it.

    Args:
        within: seconds that a clean end may take.
    """

    def __init__(self, within: float = END_WITHIN) -> None:
        self._within = within
        self._begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._timer is not None:
            self._timer.cancel()

    def attend(self, end: Callable[[], None]) -> None:
        """Name what begins the clean end; call it in the event loop that it is to be called in."""
        self._loop, self._end = asyncio.get_running_loop(), end
        if self._begun:
            self._loop.call_soon(end)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._begun:
            _say(f"{signal.Signals(number).name} again: ended at once. What was not committed is done again next time.")
            os._exit(128 + number)
        self._begun = True
        self._timer = threading.Timer(self._within, self._overdue)
        self._timer.daemon = True
        self._timer.start()
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end)

    def _overdue(self) -> None:
        _say(
            f"It did not stop in {self._within:g} s and is ended. Not finished: {self._unfinished()}. What was not"
            " committed is done again next time."
        )
        os._exit(1)

    def _unfinished(self) -> str:
        if self._loop is None:
            return "the start"
        try:
            names = sorted({_name_of(task) for task in asyncio.all_tasks(self._loop) if not task.done()})
        except RuntimeError:  # the loop goes on making tasks meanwhile
            return "unknown"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ", ".join(names[:_SHOWN]) + more if names else "closing the event loop"


def _name_of(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", None) or task.get_name()


def _say(text: str) -> None:
    # Not by the log: its locks may be held by what does not end.
    with contextlib.suppress(OSError):
        os.write(2, f"frontier-sidecar: {text}\n".encode())
