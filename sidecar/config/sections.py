"""The other sections of the settings."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sidecar.config.fields import Bytes, Float, Int, Seconds, Section
from sidecar.engine.limits import WORKLOADS, Limits, Workload

_LIMITS = Limits()
_NAMES = (
    *("events", "compactions", "findings", "halts", "sessions", "halt_acks", "dlq", "alerts", "snapshots"),
    *("misplaced", "decisions"),
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LISTEN = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d+)")


class TopicSettings(Section):
    """Name the topics, and say how missing ones are created."""

    events: str = Field(default="agent.events", description="Input: what agents did (one topic may hold both kinds).")
    compactions: str = Field(default="agent.compactions", description="Input: summaries, checkpoints, resumes, ….")
    findings: str = Field(default="agent.findings", description="Output: one record per violation.")
    halts: str = Field(default="agent.halts", description="Output: halts opened and cleared; compacted by session.")
    sessions: str = Field(
        default="agent.sessions", description="Output: where each session stands; compacted by session."
    )
    halt_acks: str = Field(default="agent.halt_acks", description="Input: who has taken a halt in hand.")
    dlq: str = Field(default="agent.dlq", description="Output: what could not be read, with the reason.")
    alerts: str = Field(default="agent.alerts", description="Output of the fleet: degraded sessions, storms, ….")
    snapshots: str = Field(default="agent.snapshots", description="The tail's own state; compacted.")
    misplaced: str = Field(
        default="agent.misplaced",
        description="The tail's own: tells the partition of a session that one of its records was in another one.",
    )
    decisions: str = Field(default="agent.decisions", description="Output of the guard: every permission it gave.")
    partitions: Int = Field(
        default=4,
        ge=1,
        le=10_000,
        description="Partitions of a topic that is created; all inputs need the same number.",
    )
    replication_factor: Int = Field(default=1, ge=1, le=32, description="Replicas of a topic that is created.")
    create: bool = Field(default=True, description="Whether missing topics are created.")

    @field_validator(*_NAMES)
    @classmethod
    def _legal(cls, name: str) -> str:
        if not _TOPIC.fullmatch(name) or name in (".", ".."):
            raise ValueError("a topic name is 1 to 249 of the characters A-Z a-z 0-9 . _ -")
        return name

    @model_validator(mode="after")
    def _distinct(self) -> "TopicSettings":
        # Events and compactions may share a topic; anything else would make the sidecar read what it wrote.
        taken: dict[str, str] = {}
        for key in _NAMES:
            other = taken.setdefault(getattr(self, key), key)
            if other != key and (other, key) != ("events", "compactions"):
                raise ValueError(
                    f"topics.{other} and topics.{key} are both {getattr(self, key)!r}: give them two topics"
                )
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the topics that hold records to judge, each once."""
        return tuple(dict.fromkeys((self.events, self.compactions)))

    @property
    def followed(self) -> tuple[str, ...]:
        """Return the topics that a task of the tail reads: the inputs, and what tells of misplaced records."""
        return (*self.inputs, self.misplaced)


class TailSettings(Section):
    """Tune the Kafka tail."""

    group_id: str = Field(default="frontier-sidecar", min_length=1, max_length=249, description="Consumer group.")
    group_instance_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=249,
        description="Name of this replica, kept across restarts, so that a quick restart moves no partition.",
    )
    guarantee: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="Delivery of outputs: each once for readers of committed records (needs a broker with"
        " transactions), or after a crash some again, under the same `finding_id`.",
    )
    transaction_timeout: Seconds = Field(
        default=60.0,
        ge=1,
        le=900,
        description="How long a transaction may stay open before the broker ends it; a commit interval is one.",
    )
    auto_offset_reset: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where to begin on a partition of which the group has committed nothing."
    )
    commit_interval: Seconds = Field(
        default=1.0, ge=0.05, le=60, description="Longest time between commits; a batch with a halt commits at once."
    )
    fetch_max_records: Int = Field(
        default=5000,
        ge=1,
        le=100_000,
        description="Most records taken in one batch; agents that ask wait for as long as a batch takes.",
    )
    fetch_max_wait: Seconds = Field(
        default=0.5,
        ge=0.01,
        le=10,
        description="How long a broker may hold back an answer when there is nothing to read.",
    )
    fetch_max_bytes: Bytes = Field(
        default=50 * 2**20, ge=2**16, le=2**30, description="Most data in one answer of a broker."
    )
    partition_max_bytes: Bytes = Field(
        default=2**20, ge=2**14, le=2**30, description="Most data of one partition in one answer."
    )
    max_buffered: Int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Records of a partition that may wait (for a position, or to be written) before it is paused.",
    )
    session_timeout: Seconds = Field(
        default=10.0, ge=1, le=1800, description="Silence after which the group gives a replica's partitions away."
    )
    heartbeat_interval: Seconds = Field(
        default=3.0, ge=0.1, le=600, description="How often a replica tells its group that it lives."
    )
    max_poll_interval: Seconds = Field(
        default=300.0,
        ge=10,
        le=3600,
        description="Longest time a replica may work on a batch, or restore, in its group.",
    )

    @model_validator(mode="after")
    def _heartbeats(self) -> "TailSettings":
        if self.heartbeat_interval * 2 > self.session_timeout:
            raise ValueError(
                f"tail.heartbeat_interval {self.heartbeat_interval:g} is more than half of tail.session_timeout "
                f"{self.session_timeout:g}: one late heartbeat would lose the partitions; a third is usual"
            )
        return self


class SnapshotSettings(Section):
    """Keep the tail's state on the snapshot topic, so that a restart need not read the whole log."""

    interval: Seconds = Field(
        default=300.0,
        ge=0.1,
        le=3600,
        description="How often the sessions that changed are written; bounds what a restart has to read again.",
    )


class SessionSettings(Section):
    """Say what becomes of sessions that nothing happens in."""

    idle_after: Seconds = Field(
        default=300.0, ge=1, le=86400, description="Kept in serialised form after so long; the next record wakes it."
    )
    ttl: Seconds = Field(
        default=7 * 86400.0,
        ge=60,
        le=10 * 365 * 86400,
        description="Forgotten after so long; a record that comes later finds its predecessors missing.",
    )
    midstream: Literal["skip", "judge"] = Field(
        default=_LIMITS.midstream,
        description="A session whose beginning is not in the log: `skip` leaves it unjudged, and refused, until a"
        " `baseline` says what holds; `judge` counts what came before as missing (`--midstream` of `check`).",
    )
    heartbeat: Seconds = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="How often it is told (topics.sessions) how far the logs of degraded sessions have got.",
    )


class WorkloadSettings(Section):
    """Say how much recall a workload needs."""

    floor: Float = Field(
        default=WORKLOADS["remediation"].floor,
        gt=0,
        le=1,
        description="Least recall at the root that the workload can live with.",
    )
    gc_requires_probe: bool = Field(
        default=WORKLOADS["remediation"].gc_requires_probe,
        description="Whether a node may be reclaimed only after a probe has passed.",
    )


def _workloads() -> dict[str, WorkloadSettings]:
    return {
        name: WorkloadSettings(floor=known.floor, gc_requires_probe=known.gc_requires_probe)
        for name, known in WORKLOADS.items()
    }


class EngineSettings(Section):
    """Bound the waiting and the memory of the judge, per session."""

    max_waiting: Int = Field(
        default=_LIMITS.max_waiting,
        ge=1,
        le=1_000_000,
        description="Records that a session may hold back for a missing position before that is given up.",
    )
    max_wait: Seconds = Field(
        default=_LIMITS.max_wait, ge=0, le=86400, description="How long a session waits for a missing position."
    )
    checkpoints: Int = Field(
        default=_LIMITS.checkpoints, ge=1, le=1_000_000, description="Checkpoints kept; an older one is unknown."
    )
    positions: Int = Field(
        default=_LIMITS.positions,
        ge=1024,
        le=1_000_000_000,
        description="Log positions kept; a checkpoint whose range reaches further back is unverified.",
    )
    nodes: Int = Field(default=_LIMITS.nodes, ge=1, le=1_000_000, description="Generations of summaries kept.")
    calls: Int = Field(default=_LIMITS.calls, ge=1, le=1_000_000, description="Tool calls kept.")
    workloads: dict[str, WorkloadSettings] = Field(
        default_factory=_workloads, description="Recall floors by workload; `remediation` is what others fall back to."
    )

    @field_validator("workloads", mode="before")
    @classmethod
    def _onto_defaults(cls, given: Any) -> Any:
        # Naming one workload, or one field of a known one, leaves the others as they are.
        if given is None:
            return _workloads()
        if not isinstance(given, dict):
            return given
        known: dict[str, Any] = {name: workload.model_dump() for name, workload in _workloads().items()}
        for name, workload in given.items():
            known[name] = {**known.get(name, {}), **workload} if isinstance(workload, dict) else workload
        return known

    def limits(self) -> Limits:
        """Return the limits as the engine takes them."""
        return Limits(
            max_waiting=self.max_waiting,
            max_wait=self.max_wait,
            checkpoints=self.checkpoints,
            positions=self.positions,
            nodes=self.nodes,
            calls=self.calls,
            workloads={
                name: Workload(floor=workload.floor, gc_requires_probe=workload.gc_requires_probe)
                for name, workload in self.workloads.items()
            },
        )


class HttpSettings(Section):
    """Serve metrics, health and the guard on one address (`--http HOST:PORT`)."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 or :: for all interfaces."
    )
    port: Int = Field(default=9464, ge=0, le=65535, description="Port to listen on; 0 takes any that is free.")
    max_connections: Int = Field(
        default=1024,
        ge=16,
        le=1_000_000,
        description="Connections at the same time, and never more than half of the open files that the system allows. "
        "For a further one the longest idle connection of the address with the most is closed.",
    )
    max_connections_per_peer: Int = Field(
        default=512,
        ge=8,
        le=1_000_000,
        description="Connections at the same time from one address (IPv6: from one /64 network).",
    )

    @model_validator(mode="before")
    @classmethod
    def _address(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = cls.split(value)
        if found is None:
            raise ValueError(f"http (--http): {value!r} is not HOST:PORT")
        return found

    @staticmethod
    def split(address: str) -> dict[str, str] | None:
        """Return an address, `HOST:PORT` or `[HOST]:PORT`, as the settings that it stands for; None: it is none."""
        match = _LISTEN.fullmatch(address)
        host = match and (match["six"] or match["host"])
        return {"host": host, "port": match["port"]} if match and host else None


class HealthSettings(Section):
    """Say when `/healthz` and `/readyz` fail."""

    stall_after: Seconds = Field(
        default=60.0,
        ge=1,
        le=3600,
        description="Alive no longer: there is something to read, and no progress for so long.",
    )
    join_after: Seconds = Field(
        default=600.0, ge=10, le=86400, description="Alive no longer: the group has assigned nothing for so long."
    )
    ready_lag: Int = Field(
        default=1000, ge=0, le=1_000_000_000, description="Ready: restored, and this close to the end (records) once."
    )


class LogSettings(Section):
    """Say what is logged, on standard error."""

    level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        default="info", description="Least level that is logged; `debug` adds the evidence of findings (session data)."
    )
    format: Literal["auto", "json", "pretty"] = Field(
        default="auto", description="JSON lines, or text for people; `auto`: text on a terminal, else JSON."
    )
    library_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        default="warning", description="The same for the libraries (aiokafka, aiohttp, asyncio, …)."
    )


class WatchSettings(Section):
    """Tune `watch`, the tail on files."""

    state_dir: Path = Field(
        default=Path(".sidecar"), description="Folder that keeps the position across restarts (`--state`)."
    )
    poll_interval: Seconds = Field(
        default=0.2, ge=0.01, le=60, description="How often files and folders are looked at for something new."
    )
    decisions_file: Path | None = Field(
        default=None,
        description="File to which every permission of the guard is appended before it is given (`--decisions`); unset:"
        " `decisions.jsonl` in the folder of the state.",
    )

    @property
    def decisions(self) -> Path:
        """Return where permissions are written down."""
        return self.decisions_file if self.decisions_file is not None else self.state_dir / "decisions.jsonl"
