"""Run Apache Kafka (KRaft, one node, loopback only) for tests and for developers.

    python tests/kafka/broker.py start [--dir DIR] [--port PORT]    print the bootstrap address
    python tests/kafka/broker.py status | stop [--dir DIR]
    python tests/kafka/broker.py run [--dir DIR] [--port PORT]      in the foreground, until Ctrl-C

Needs Java 17 or later and, until the jars are fetched, Maven. A directory holds one broker: its address,
its data and its log; starting there again finds all three as they were.
"""

import argparse
import base64
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sidecar.embedded import Leash, free_port, tail, wait_until_ready

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).parents[2] / ".cache" / "kafka"
JAVA = 17

PROPERTIES: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node can hold one replica.
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    # The 50 partitions each that these have by default cost a second at the first group and transaction.
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    # Tests of rebalances and takeovers should not wait for what is tuned for networks.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    # The cleaner would take 128 MB of the heap and look for work every 15 s.
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    "log.cleaner.backoff.ms": 1000,
    # After a kill the node must wait for its old session to end before it may serve again: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "num.network.threads": 2,
    "num.io.threads": 4,
}

LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    "-Dorg.slf4j.simpleLogger.showShortLogName=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class KafkaError(RuntimeError):
    """Say why the broker could not be fetched, started or stopped."""


def available() -> str | None:
    """Return None if Apache Kafka can run here, else the reason as a sentence."""
    if (java := _java_version()) is None:
        return f"Apache Kafka needs Java {JAVA} or later, and there is no java on PATH."
    if java < JAVA:
        return f"Apache Kafka needs Java {JAVA} or later, and the java on PATH is {java}."
    if not _jars().is_dir() and shutil.which("mvn") is None:
        return "Apache Kafka is fetched by Maven, and there is no mvn on PATH."
    return None


@functools.cache
def _java_version() -> int | None:
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _jars() -> Path:
    # Named after the pom, so that another version of Kafka is another directory.
    return CACHE / "jars" / hashlib.sha256(POM.read_bytes()).hexdigest()[:12]


def fetch() -> Path:
    """Fetch Kafka's jars unless they are there and return their directory.

    Raises:
        KafkaError: Maven failed; its output is in the message.
    """
    jars = _jars()
    with _lock(CACHE / "jars.lock"):
        if jars.is_dir():
            return jars
        # Renamed when complete: a directory with the right name is never half filled.
        partial = jars.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        except subprocess.CalledProcessError as error:
            raise KafkaError(f"Maven could not fetch Apache Kafka:\n{error.stdout}{error.stderr}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KafkaError(f"Maven could not fetch Apache Kafka: {error}") from None
        partial.rename(jars)
    return jars


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class KafkaBroker:
    """Run one Kafka broker whose data, address and log live in a directory.

    Args:
        dir: The directory; a broker started there before keeps its address and data.
        port: Port to listen on; by default the directory's last one, or a free one.
        properties: Server properties over `PROPERTIES`; the attribute of the same name may be changed
            until `start`, when `port` and `controller_port` are known (say, for further listeners).
        auto_create: Let clients create topics by naming them.
        heap: The most heap the JVM takes.
        jvm: Further arguments for the JVM.
        options: Arguments for the client that tells whether the broker is ready, say for TLS.
        users: Passwords of SCRAM-SHA-512 users, by name; made with the directory's data.
        leash: Kill the broker when this process ends; without it the broker stays.
        timeout: Seconds in which a client must be able to use it.
    """

    def __init__(
        self,
        dir: Path,
        *,
        port: int = 0,
        properties: Mapping[str, object] | None = None,
        auto_create: bool = False,
        heap: str = "1g",
        jvm: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        users: Mapping[str, str] | None = None,
        leash: bool = True,
        timeout: float = 60.0,
    ) -> None:
        self.dir = dir.absolute()
        self.log = self.dir / "broker.log"
        self._state = self.dir / "broker.json"
        state = self._load()
        self.port: int = port or state.get("port") or free_port()
        self.controller_port: int = state.get("controller_port") or free_port()
        self.properties: dict[str, object] = dict(properties or {})
        if auto_create:
            self.properties.setdefault("auto.create.topics.enable", "true")
        self._heap = heap
        self._jvm = tuple(jvm)
        self._options = options
        self._users = dict(users or {})
        self._leash: Leash | None = None
        self._leashed = leash
        self._timeout = timeout
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Return the address clients bootstrap from, whether or not the broker runs."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Return the process id of the broker that runs in this directory, or None."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        pid = self._load().get("pid")
        return pid if pid and self._is_ours(pid) else None

    def start(self) -> str:
        """Start the broker, wait until clients can use it and return its bootstrap address.

        If one runs in the directory already, only return its address.

        Raises:
            KafkaError: It could not be fetched, ended, or was not ready in time.
        """
        self.dir.mkdir(parents=True, exist_ok=True)
        with _lock(self.dir / "lock"):
            if self.pid is not None:
                self.port = self._load()["port"]
                return self.bootstrap
            classpath = f"{fetch()}/*"
            self._release()
            config = self._configure()
            with self.log.open("ab") as out:
                begin = out.tell()
                if not (self.dir / "data" / "meta.properties").exists():
                    self._format(classpath, config)
                if self._leashed:
                    self._leash = Leash()
                self._child = subprocess.Popen(
                    [
                        *("java", "-Xms512m", f"-Xmx{self._heap}", *LOGGING, *self._jvm),
                        *("-cp", classpath, "kafka.Kafka", str(config)),
                    ],
                    cwd=self.dir,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    # Neither Ctrl-C nor the end of a terminal is for the broker.
                    start_new_session=True,
                )
            if self._leash is not None:
                self._leash.hold(self._child.pid)
            self._save(self._child.pid)
            try:
                wait_until_ready(
                    self.bootstrap,
                    timeout=self._timeout,
                    alive=lambda: self.pid is not None,
                    transactions=True,
                    options=self._options,
                )
            except BaseException as error:
                self.kill()
                if isinstance(error, ConnectionError | TimeoutError):
                    raise KafkaError(f"Apache Kafka did not start: {error}{tail(self.log, begin)}") from None
                raise
        return self.bootstrap

    def stop(self, timeout: float = 30.0) -> None:
        """Shut the broker down in order; does nothing if it is not running.

        Raises:
            KafkaError: It was still running after the timeout, and has been killed.
        """
        if not self._end(signal.SIGTERM, timeout):
            self.kill()
            raise KafkaError(f"Apache Kafka did not stop within {timeout:g} s and was killed{tail(self.log)}")

    def kill(self) -> None:
        """Kill the broker as a crash would; does nothing if it is not running."""
        if not self._end(signal.SIGKILL, 10.0):
            raise KafkaError("Apache Kafka survived being killed.")

    def restart(self) -> str:
        """Stop the broker and start it again with the same address and data."""
        self.stop()
        return self.start()

    def wait(self) -> int:
        """Wait until the broker that this object started ends, and return its exit status."""
        if self._child is None:
            raise KafkaError("This broker was not started here.")
        return self._child.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, how: signal.Signals, timeout: float) -> bool:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + timeout
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self._child = None
        self._release()
        if self._state.exists():
            self._save(None)
        return True

    def _release(self) -> None:
        if self._leash is not None:
            self._leash.release()
            self._leash = None

    def _configure(self) -> Path:
        listeners = f"PLAINTEXT://{self.bootstrap}"
        properties = {
            **PROPERTIES,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "log.dirs": self.dir / "data",
            **self.properties,
        }
        config = self.dir / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return config

    def _format(self, classpath: str, config: Path) -> None:
        # Begins with a letter: a leading "-" would read as an option.
        cluster = "C" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        # The cheapest JVM: it runs for half a second.
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *LOGGING, "-cp", classpath]
        command += ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        for name, password in self._users.items():
            command += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
        done = subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise KafkaError(f"Apache Kafka could not format {self.dir}:\n{done.stdout}{done.stderr}")

    def _load(self) -> dict[str, Any]:
        try:
            state = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _save(self, pid: int | None) -> None:
        state = {"pid": pid, "port": self.port, "controller_port": self.controller_port}
        partial = self._state.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.rename(self._state)

    def _is_ours(self, pid: int) -> bool:
        # After a reboot the process id may be anybody's; the path of the configuration is only ours.
        proc = Path("/proc/self/cmdline")
        try:
            if proc.exists():
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            else:
                command = subprocess.run(
                    ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True
                ).stdout
        except OSError:
            return False
        return f"kafka.Kafka {self.dir / 'server.properties'}" in command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Run a one-node Apache Kafka on the loopback interface.")
    parser.add_argument("command", choices=["start", "stop", "status", "run"])
    parser.add_argument("--dir", type=Path, default=CACHE, help="where its state lives (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="default: the last one used there, or a free one")
    parser.add_argument("--auto-create", action="store_true", help="let clients create topics by naming them")
    parser.add_argument("--heap", default="1g", help="the most heap it takes (default: %(default)s)")
    parser.add_argument(
        "--property", action="append", default=[], metavar="KEY=VALUE", help="a server property; repeatable"
    )
    given = parser.parse_args(arguments)
    if any("=" not in pair for pair in given.property):
        parser.error("a --property is KEY=VALUE")
    broker = KafkaBroker(
        given.dir,
        port=given.port,
        properties=dict(pair.split("=", 1) for pair in given.property),
        auto_create=given.auto_create,
        heap=given.heap,
        leash=given.command == "run",
    )
    try:
        if given.command == "stop":
            broker.stop()
        elif given.command == "status":
            if broker.pid is None:
                print("not running")
                return 1
            print(f"{broker.bootstrap} (process {broker.pid}, log {broker.log})")
        elif reason := available():
            raise KafkaError(reason)
        elif given.command == "start":
            print(broker.start())
        else:
            return _run(broker)
    except KafkaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(broker: KafkaBroker) -> int:
    if broker.pid is not None:
        raise KafkaError(f"One runs there already: {broker.bootstrap}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(broker.start(), flush=True)
        status = broker.wait()
    except KeyboardInterrupt:
        broker.stop()
        return 0
    raise KafkaError(f"Apache Kafka ended with status {status}{tail(broker.log)}")


if __name__ == "__main__":
    sys.exit(main())
