"""Make emitters: what they are made from, and where their records go."""

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from sidecar.client.kinds import Kinds, T_co
from sidecar.client.sinks import Sink
from sidecar.protocol.records import MAX_INT


class GuardLike(Protocol):
    """Be a `Guard` or a `SyncGuard`."""

    def session(self, session_id: str) -> Any:
        """Look at a session."""


class Options(NamedTuple):
    """Hold what an emitter is made from, besides its sink and its session."""

    journal: Path
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
    start_at: int | None = None
    guard: GuardLike | None = None
    start_timeout: float = 30.0
    emit_timeout: float = 30.0
    flush_timeout: float = 30.0
    max_unacknowledged: int = 100_000
    max_unacknowledged_bytes: int = 256 << 20


class Made(Kinds[T_co]):
    """Make an emitter for a place where its records go."""

    @abstractmethod
    def __init__(self, sink: Sink, session_id: str, options: Options) -> None: ...

    @classmethod
    def kafka(
        cls,
        bootstrap_servers: str | Iterable[str],
        session_id: str,
        *,
        journal: str | Path,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        events_topic: str = "agent.events",
        compactions_topic: str = "agent.compactions",
        compression_type: str | None = None,
        start_at: int | None = None,
        guard: GuardLike | None = None,
        start_timeout: float = 30.0,
        emit_timeout: float = 30.0,
        flush_timeout: float = 30.0,
        max_unacknowledged: int = 100_000,
        max_unacknowledged_bytes: int = 256 << 20,
        **client_options: Any,
    ) -> Self:
        """Return an emitter that publishes to Kafka, keyed by the session; it starts as a context manager.

        Args:
            bootstrap_servers: `HOST:PORT,…`.
            session_id: the session; nobody else may write to its log.
            journal: a folder for the journals of sessions, or this one's file (`….journal`), on a local file system.
                Where there is none, the log goes on behind the session's newest record: the session's partition of both
                topics is read for it (which needs READ), unless `guard` or `start_at` spares that.
            tenant: whose session it is, on every record.
            agent: which agent writes, on every record.
            model: which model is at work, on every record.
            events_topic: where log events go.
            compactions_topic: where compaction records go; with as many partitions, or the same topic.
            compression_type: `gzip`, `snappy`, `lz4`, `zstd` or None.
            start_at: the first `seq` of a new journal, which is then not looked for; 1: the session is new.
            guard: a `Guard` or `SyncGuard`, asked at every start where the session stands: it spares a new session the
                reading, and a journal that is behind is refused.
            start_timeout: seconds to wait for a broker at the start; 0: start without, and publish when there is one.
            emit_timeout: seconds that a call waits for room when too much is unacknowledged; then it raises `Backlog`.
            flush_timeout: seconds that `flush` and the end wait for acknowledgements.
            max_unacknowledged: how many records may wait for acknowledgement.
            max_unacknowledged_bytes: how many bytes of them.
            client_options: what aiokafka's clients take: `security_protocol`, `ssl_context`, `sasl_…`, `client_id`, ….

        Raises:
            TypeError: an argument of the wrong type, or an unknown one.
            ValueError: an argument that makes no sense.
        """
        from sidecar.client.sinks.kafka import KafkaSink  # costs the import of aiokafka

        sink = KafkaSink(
            bootstrap_servers,
            events_topic=events_topic,
            compactions_topic=compactions_topic,
            compression_type=compression_type,
            options=client_options,
        )
        return cls(
            sink,
            session_id,
            Options(
                journal=Path(journal),
                tenant=tenant,
                agent=agent,
                model=model,
                start_at=start_at,
                guard=guard,
                start_timeout=start_timeout,
                emit_timeout=emit_timeout,
                flush_timeout=flush_timeout,
                max_unacknowledged=max_unacknowledged,
                max_unacknowledged_bytes=max_unacknowledged_bytes,
            ),
        )

    @classmethod
    def file(
        cls,
        path: str | Path,
        session_id: str,
        *,
        journal: str | Path | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        start_at: int | None = None,
        guard: GuardLike | None = None,
        emit_timeout: float = 30.0,
        flush_timeout: float = 30.0,
        max_unacknowledged: int = 100_000,
        max_unacknowledged_bytes: int = 256 << 20,
    ) -> Self:
        """Return an emitter that appends to a JSONL file, for `sidecar watch`; it starts as a context manager.

        Args:
            path: the file; several emitters may write to it, and nobody else.
            session_id: the session; nobody else may write to its log.
            journal: as with Kafka; by default a hidden folder beside the file.
            tenant: whose session it is, on every record.
            agent: which agent writes, on every record.
            model: which model is at work, on every record.
            start_at: the first `seq` of a new journal; by default the file is read for the session's newest record.
            guard: a `Guard` or `SyncGuard`, asked at every start where the session stands: needed where files are
                rotated away.
            emit_timeout: seconds that a call waits for room when too much is not written, before it raises `Backlog`.
            flush_timeout: seconds that `flush` and the end wait until all is written.
            max_unacknowledged: how many records may wait to be written.
            max_unacknowledged_bytes: how many bytes of them.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: an argument that makes no sense.
        """
        from sidecar.client.sinks.file import FileSink

        sink = FileSink(path)
        return cls(
            sink,
            session_id,
            Options(
                journal=sink.path.with_name(f".{sink.path.name}.journals") if journal is None else Path(journal),
                tenant=tenant,
                agent=agent,
                model=model,
                start_at=start_at,
                guard=guard,
                emit_timeout=emit_timeout,
                flush_timeout=flush_timeout,
                max_unacknowledged=max_unacknowledged,
                max_unacknowledged_bytes=max_unacknowledged_bytes,
            ),
        )


def check(options: Options) -> None:
    """See that options make sense.

    Raises:
        TypeError: one is of the wrong type.
        ValueError: one makes no sense.
    """
    if options.guard is not None and not callable(getattr(options.guard, "session", None)):
        raise TypeError(f"guard: expected a `Guard` or a `SyncGuard`, got `{type(options.guard).__name__}`")
    if options.start_at is not None:
        if type(options.start_at) is not int:
            raise TypeError(f"start_at: expected `int`, got `{type(options.start_at).__name__}`")
        if not 1 <= options.start_at <= MAX_INT:
            raise ValueError(f"start_at={options.start_at}: positions begin at 1")
    if options.max_unacknowledged < 1 or options.max_unacknowledged_bytes < 1:
        raise ValueError("max_unacknowledged and max_unacknowledged_bytes must be at least 1")
