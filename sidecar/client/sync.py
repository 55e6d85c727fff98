"""The emitter and the listener without `await`, for threads; each runs its event loop in a thread of its own."""

import atexit
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self

from sidecar.client.compose import Role
from sidecar.client.emitter import Emitter
from sidecar.client.errors import ClientError, Closed, Unacknowledged
from sidecar.client.halts import OpenHalt
from sidecar.client.listener import HaltListener, Status
from sidecar.client.made import Made, Options
from sidecar.client.portal import Portal
from sidecar.client.sinks import Sink
from sidecar.protocol.outputs import Halt

log = logging.getLogger(__name__)

_AT_EXIT = 5.0


class SyncEmitter(Made[int]):
    """Be an `Emitter` without `await`, which any number of threads may use; made by `kafka` or `file` like that one.

    It starts as a context manager, or with `start`. One that is not closed is closed when the interpreter ends, which
    waits for acknowledgements for at most 5 seconds.
    """

    def __init__(self, sink: Sink, session_id: str, options: Options) -> None:
        self._emitter = Emitter(sink, session_id, options)
        self._session_id = session_id
        self._defaults = self._emitter._defaults
        self._portal = Portal("sidecar-emitter")
        self._starting = threading.Lock()
        self._started = self._closed = False

    @property
    def session_id(self) -> str:
        """Return the session."""
        return self._session_id

    @property
    def position(self) -> int:
        """Return the last `seq` that was given out, by this emitter or one before it; 0: none was."""
        return self._emitter.position

    @property
    def unacknowledged(self) -> int:
        """Return how many records are in the journal and not acknowledged."""
        return self._emitter.unacknowledged

    @property
    def trouble(self) -> Exception | None:
        """Return why nothing can be published at the moment; None: nothing is known to be wrong."""
        return self._emitter.trouble

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Unacknowledged as left:
            if error is None:
                raise
            log.error("%s", left)  # what went wrong first is what the caller has to hear

    def start(self) -> None:
        """Open the journal, connect, and publish what the last run left; raises what `Emitter.start` raises."""
        with self._starting:
            if self._closed:
                raise Closed("The emitter has been closed: make another one")
            try:
                self._portal.run(self._emitter.start)
            except BaseException:
                if not self._started:
                    self._closed = True
                    self._portal.close(self._emitter.aclose)
                raise
            self._started = True
        atexit.register(self._close_at_exit)

    def flush(self, within: float | None = None) -> None:
        """Wait until everything that was logged before is acknowledged; raises what `Emitter.flush` raises."""
        self._running()
        self._portal.run(self._emitter.flush, within)

    def close(self, within: float | None = None) -> None:
        """Take no more calls, flush, and close; raises what `Emitter.aclose` raises."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._close_at_exit)
        self._portal.close(lambda: self._emitter.aclose(within))

    def _close_at_exit(self) -> None:
        try:
            self.close(_AT_EXIT)
        except ClientError as error:
            log.error("%s", error)

    def give_back(self, room: int) -> None:
        """Give back room that `reserve` kept and that was not used; see `Emitter.give_back`."""
        self._emitter.give_back(room)

    def _append(self, role: Role, body: bytes) -> int:
        return self._made(self._emitter._append, role, body)

    def _reserve(self, room: int) -> int:
        return self._made(self._emitter._reserve, room)

    def _append_kept(self, role: Role, body: bytes, room: int) -> int:
        return self._made(self._emitter._append_kept, role, body, room)

    def _made(self, call: Callable[..., Coroutine[Any, Any, int]], *arguments: Any) -> int:
        self._running()
        try:
            return self._portal.run(call, *arguments)
        except (RuntimeError, CancelledError):
            if self._closed:  # while this was under way
                raise Closed("The emitter has been closed: the next start shows if this was logged") from None
            raise

    def _running(self) -> None:
        if self._closed or not self._started:
            state = "has been closed" if self._closed else "has not been started: use it with `with`"
            raise Closed(f"The emitter {state}")
        self._emitter._running()


class SyncHaltListener:
    """Be a `HaltListener` without `await`, which any number of threads may ask; the arguments are the same.

    It starts as a context manager, or with `start`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        topic: str = "agent.halts",
        acks_topic: str = "agent.halt_acks",
        cut_off_after: float = 30.0,
        keep: int = 10_000,
        look_for_partitions: float = 30.0,
        **client_options: Any,
    ) -> None:
        self._listener = HaltListener(
            bootstrap_servers,
            topic=topic,
            acks_topic=acks_topic,
            cut_off_after=cut_off_after,
            keep=keep,
            look_for_partitions=look_for_partitions,
            **client_options,
        )
        self._portal = Portal("sidecar-halts")
        self._closed = False

    @property
    def status(self) -> Status:
        """Return `current` if the view can be believed, else why not."""
        return self._listener.status

    @property
    def trouble(self) -> Exception | None:
        """Return why it cannot read at the moment; None: nothing is known to be wrong."""
        return self._listener.trouble

    @property
    def unreadable(self) -> int:
        """Return how many messages were no halt records."""
        return self._listener.unreadable

    @property
    def dropped(self) -> int:
        """Return how many records were dropped because nobody took them."""
        return self._listener.dropped

    @property
    def view(self) -> dict[str, tuple[OpenHalt, ...]]:
        """Return the sessions that are halted as far as has been read, and their open halts."""
        return self._portal.run(self._copy)

    def halts(self, session_id: str) -> tuple[OpenHalt, ...]:
        """Return the open halts of a session, as far as has been read."""
        return self._listener.halts(session_id)

    def is_halted(self, session_id: str) -> bool:
        """Tell whether a session's irreversible actions are to be refused: it is halted, or that cannot be known."""
        return self._listener.is_halted(session_id)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to read; a broker that is away is waited for in the background."""
        self._portal.run(self._listener.start)
        atexit.register(self.close)

    def wait_ready(self, within: float | None = None) -> None:
        """Wait until all that was on the topic at the start has been read; raises what `HaltListener` raises."""
        self._portal.run(self._listener.wait_ready, within)

    def next(self, within: float | None = None) -> Halt | None:
        """Return the next record, when there is one; None: there was none in so many seconds, or it was closed.

        Raises:
            Closed: the listener is not running.
        """
        return self._portal.run(self._listener.next, within)

    def ack(self, halt: Halt | OpenHalt, *, by: str, decision: str, within: float = 30.0) -> None:
        """State that a halt has been taken in hand; raises what `HaltListener.ack` raises."""
        self._portal.run(self._listener.ack, halt, by=by, decision=decision, within=within)

    def close(self) -> None:
        """End; every session counts as halted from then on."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._portal.close(self._listener.aclose)

    async def _copy(self) -> dict[str, tuple[OpenHalt, ...]]:
        return self._listener.view
