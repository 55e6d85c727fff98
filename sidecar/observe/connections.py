"""The connections of the HTTP server: how many there may be, from whom, and for how long each may keep us waiting.

Somebody who opens connections and says nothing must not keep others out. Where there are too many, the connection that
has been idle for longest is closed for the sake of the new one, of the address that has the most; so whoever has few
connections, such as a probe, always gets in. A connection on which a request is being answered is never closed for
another one. aiohttp bounds none of this, and asyncio's own accepting logs each failure for want of open files, up to a
thousand times a second.
"""

import asyncio
import errno
import ipaddress
import resource
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from aiohttp.web_protocol import RequestHandler
from msgspec import Struct

from sidecar.observe.logs import get_logger

log = get_logger(__name__)

HEADER_SECONDS = 10.0
"""How long the head of a request may take from its first byte, and the first request of a connection at all."""

TAKE_SECONDS = 10.0
"""How long an answer may wait for somebody who does not take it."""

REQUEST_SECONDS = 330.0
"""How long a request may be worked on; longer than the longest that a question may take (`guard.timeout`)."""

_SWEEP_SECONDS = 1.0
_AT_ONCE = 64
"""How many connections are accepted before something else gets its turn."""

_RETRY_SECONDS = 0.05
"""After how long to accept again where open files have run out: by then what was closed for it is free."""

_FULL_RETRY_SECONDS = 1.0
"""After how long where nothing could be closed."""

_TELL_EVERY = 60.0
_BACKLOG = 1024
"""How many connections may come at once before some have to try again, which takes a second."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ConnectionLimits(Struct, frozen=True):
    """Bound the connections at the same time: all of them, and those from one address (IPv6: one /64 network)."""

    most: int = 1024
    per_peer: int = 512


class Connection(asyncio.Protocol):
    """Hand what comes on to aiohttp, and know how long each side has been waiting.

    Args:
        inner: aiohttp's part.
        peer: whose connection it is.
        ended: is called once when it ends.
        asked: is called for each whole request head.
    """

    def __init__(
        self,
        inner: RequestHandler,
        peer: str,
        ended: "Callable[[Connection], None]",
        asked: "Callable[[Connection], None]",
    ) -> None:
        self._inner = inner
        self.peer = peer
        self._ended = ended
        self._asked = asked
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._head_since: float | None = time.monotonic()
        self._asked_at = 0.0
        self._untaken_since: float | None = None

    @property
    def busy(self) -> bool:
        """Tell whether a request is worked on; not: whether an answer waits for somebody who does not take it."""
        closing = self._transport is None or self._transport.is_closing()
        # aiohttp has a `_waiter` exactly while it waits for the next request.
        return self._inner._waiter is None and not closing and self._untaken_since is None

    def overdue(self, now: float) -> bool:
        """Tell whether the other side has kept us waiting for too long.

        Args:
            now: seconds on the monotonic clock.
        """
        if self._transport is not None and self._transport.is_closing() and self._untaken_since is None:
            self._untaken_since = now  # what is still to be sent is
        if self._untaken_since is not None:
            return now - self._untaken_since > TAKE_SECONDS
        if self.busy:
            return now - self._asked_at > REQUEST_SECONDS
        return self._head_since is not None and now - self._head_since > HEADER_SECONDS

    def abort(self) -> None:
        """End at once, without a word."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (see `asyncio.Protocol`, as the others)."""
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if not self.busy and self._head_since is None:
            self._head_since = time.monotonic()
        before = len(self._inner._messages)
        self._inner.data_received(data)
        if len(self._inner._messages) > before:
            self._head_since, self._asked_at = None, time.monotonic()
            self._asked(self)

    def eof_received(self) -> None:
        """Take the end of what is sent."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Note that the other side does not take what it is sent."""
        self._untaken_since = time.monotonic()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Note that it does."""
        self._untaken_since = None
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self.lost = True
        self._ended(self)
        self._inner.connection_lost(error)


class Listener:
    """Accept connections, and close those that are too many or too slow.

    Args:
        serve: makes aiohttp's part of a connection.
        limits: how many there may be. Never more than half of the files that the process may open, because the other
            half is for what is served.
        tls: the TLS to serve with; None: none.
    """

    def __init__(
        self, serve: Callable[[], RequestHandler], limits: ConnectionLimits, tls: ssl.SSLContext | None
    ) -> None:
        self._serve = serve
        self._most = _possible(limits.most)
        self._per_peer = min(limits.per_peer, self._most)
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._beginning: dict[asyncio.Task[None], str] = {}
        # In each, the one that has not asked for longest comes first.
        self._peers: dict[str, dict[Connection, None]] = {}
        self._held: dict[str, int] = {}
        self._count = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._untold = 0
        self._told = float("-inf")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses that are listened on."""
        return [listening.getsockname()[:2] for listening in self._sockets]

    def __len__(self) -> int:
        return self._count

    async def start(self, host: str, port: int) -> None:
        """Begin to listen.

        Raises:
            OSError: the address is taken, or is not one of this machine's.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                if listening := _listen(family, address):
                    self._sockets.append(listening)
        except OSError:
            self._close_sockets()
            raise
        if not self._sockets:
            raise OSError(errno.EAFNOSUPPORT, "no address of this kind can be listened on")
        for listening in self._sockets:
            loop.add_reader(listening.fileno(), self._accept, listening)
        self._later(_SWEEP_SECONDS, self._sweep)

    def stop(self) -> None:
        """Accept no more; connections go on."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for task in [*self._beginning]:
            task.cancel()
        self._close_sockets()

    def abort(self) -> None:
        """End every connection that is left."""
        for connections in [*self._peers.values()]:
            for connection in [*connections]:
                connection.abort()

    # --- inside -----------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            peer = _peer(address)
            if not self._make_room(peer):
                accepted.close()
                continue
            self._count += 1
            self._held[peer] = self._held.get(peer, 0) + 1
            task = asyncio.get_running_loop().create_task(self._begin(accepted, peer))
            self._beginning[task] = peer
            task.add_done_callback(partial(self._begun, accepted))

    async def _begin(self, accepted: socket.socket, peer: str) -> None:
        def made() -> Connection:
            return Connection(self._serve(), peer, self._end, self._move_back)

        given = {} if self._tls is None else {"ssl_handshake_timeout": HEADER_SECONDS, "ssl_shutdown_timeout": 2.0}
        connecting = asyncio.get_running_loop().connect_accepted_socket
        _, connection = await connecting(made, accepted, ssl=self._tls, **given)
        self._peers.setdefault(peer, {})[connection] = None
        if connection.lost:
            self._end(connection)

    def _begun(self, accepted: socket.socket, task: "asyncio.Task[None]") -> None:
        peer = self._beginning.pop(task, None)
        # What does not get through TLS is somebody else's mistake, or a scanner's.
        if task.cancelled() or task.exception() is not None:
            accepted.close()
            if peer is not None:
                self._release(peer)

    def _end(self, connection: Connection) -> None:
        of_peer = self._peers.get(connection.peer, {})
        if connection not in of_peer:
            return
        del of_peer[connection]
        if not of_peer:
            del self._peers[connection.peer]
        self._release(connection.peer)

    def _release(self, peer: str) -> None:
        self._count -= 1
        self._held[peer] -= 1
        if not self._held[peer]:
            del self._held[peer]

    def _move_back(self, connection: Connection) -> None:
        of_peer = self._peers.get(connection.peer, {})
        if connection in of_peer:
            del of_peer[connection]
            of_peer[connection] = None

    def _make_room(self, peer: str) -> bool:
        """Close an idle connection if there are too many; False: there are, and none is idle."""
        if self._held.get(peer, 0) >= self._per_peer:
            return self._close_idle(peer)
        if self._count >= self._most:
            return self._close_idle(max(self._held, key=self._held.__getitem__))
        return True

    def _close_idle(self, peer: str) -> bool:
        """Close the connection of an address that has been idle for longest; those that TLS is begun on count too."""
        idle = next((connection for connection in self._peers.get(peer, ()) if not connection.busy), None)
        self._tell("connections are closed to make room for others", connections=self._count, most=self._most)
        if idle is not None:
            self._end(idle)
            idle.abort()
            return True
        beginning = next((task for task, its in self._beginning.items() if its == peer and not task.done()), None)
        if beginning is None:
            return False
        del self._beginning[beginning]
        self._release(peer)
        return beginning.cancel()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept nothing for a moment; what waits to be accepted is not lost.

        Where open files have run out, an idle connection is closed first.
        """
        exhausted = error.errno in _EXHAUSTED and bool(self._held)
        closed = exhausted and self._close_idle(max(self._held, key=self._held.__getitem__))
        self._tell("connections cannot be accepted", reason=error.strerror or str(error), connections=self._count)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())

        def again() -> None:
            loop.add_reader(listening.fileno(), self._accept, listening)

        self._later(_RETRY_SECONDS if closed else _FULL_RETRY_SECONDS, again)

    def _sweep(self) -> None:
        now = time.monotonic()
        for connections in [*self._peers.values()]:
            for connection in [*connections]:
                if connection.overdue(now):
                    connection.abort()
        self._later(_SWEEP_SECONDS, self._sweep)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            work()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    def _tell(self, event: str, **what: object) -> None:
        self._untold += 1
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY:
            log.warning(event, times=self._untold, **what)
            self._told, self._untold = now, 0

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()


def _listen(family: int, address: Any) -> socket.socket | None:
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError:  # a family that this machine has been built without
        return None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _peer(address: tuple[str, int]) -> str:
    """Return whom an address counts for: one machine has as many IPv6 addresses as it likes in its own network."""
    try:
        found = ipaddress.ip_address(address[0].partition("%")[0])
    except ValueError:
        return address[0]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)


def _possible(most: int) -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or most <= files // 2:
        return most
    log.warning(
        "fewer connections are taken than http.max_connections says: raise the limit of open files (ulimit -n)",
        wanted=most,
        most=files // 2,
        open_files=files,
    )
    return files // 2
