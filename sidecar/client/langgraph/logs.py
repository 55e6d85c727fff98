"""Which session's log a LangGraph thread writes to."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from sidecar.client.irreversible import Log

V = TypeVar("V")

LogFor = Log | Callable[[str], Log]
"""One session's emitter, or what returns the emitter of a thread."""

MAX_THREADS = 10_000
"""How many threads are remembered; the one not used for longest is forgotten first, and is asked about anew."""


class Logs:
    """Find the log of a thread.

    Args:
        log: an emitter, for the one thread that uses it, or a function from the thread's id to its emitter.
    """

    def __init__(self, log: LogFor) -> None:
        self._log = log
        self._thread: str | None = None
        self._lock = threading.Lock()

    def of(self, thread_id: str | None) -> Log:
        """Return a thread's log.

        Raises:
            ValueError: the only log there is belongs to another thread, or the thread has no id.
        """
        if callable(self._log):
            if thread_id is None:
                raise ValueError("the run has no thread_id, so its log cannot be told: give one in the config")
            return self._log(thread_id)
        with self._lock:
            if self._thread is None:
                self._thread = thread_id
        if thread_id is not None and thread_id != self._thread:
            raise ValueError(
                f"thread {thread_id} would write to the log of session {self._log.session_id}, which thread "
                f"{self._thread} writes to: a log is one session's; give a function from thread to emitter"
            )
        return self._log


class Remembered(Generic[V]):
    """Remember something for each thread."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most = most
        self._values: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, thread_id: str) -> V | None:
        """Return what is remembered."""
        with self._lock:
            value = self._values.get(thread_id)
            if value is not None:
                self._values.move_to_end(thread_id)
            return value

    def put(self, thread_id: str, value: V) -> None:
        """Remember something."""
        with self._lock:
            self._values[thread_id] = value
            self._values.move_to_end(thread_id)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def forget(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            self._values.pop(thread_id, None)
