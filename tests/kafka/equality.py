"""What the tests that break the tail share: a stream with planted faults, and whether two runs said the same."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.errors import UnknownTopicOrPartitionError

from sidecar.config import Settings
from sidecar.simulate import FAULTS, FaultRates, Fleet
from sidecar.tail.publish import Outgoing, publish
from tests.kafka.support import read_topic
from tests.kafka.tail_support import judged

MAX_WAIT = 3.0
"""Seconds after which the tails of these tests give up a missing position; what is merely late comes much sooner."""


class Verdicts(msgspec.Struct):
    """Hold everything that the readers of committed records see of a run, and how often each."""

    findings: Counter[str]
    halts: Counter[tuple[str, str]]
    letters: Counter[tuple[str, int, int]]
    rules: Counter[str]
    sessions: Counter[str]
    """Where each session stands at last, as text (how far its log has got depends on when that was told)."""

    def differences(self, other: "Verdicts") -> list[str]:
        """Say in what this run differs from another one."""
        found = []
        for what in ("findings", "halts", "letters", "sessions"):
            mine, others = getattr(self, what), getattr(other, what)
            for name, left, right in (("missing", others, mine), ("too many", mine, others)):
                if more := left - right:
                    found.append(f"{more.total()} {what} {name}, such as {more.most_common(3)}")
        return found

    def __str__(self) -> str:
        halts, letters = self.halts.total(), self.letters.total()
        return f"{self.findings.total()} findings, {halts} halts opened and cleared, {letters} dead letters"


async def verdicts(settings: Settings) -> Verdicts:
    """Read what was committed of a run."""
    names = settings.topics
    topics = (names.findings, names.halts, names.dlq, names.sessions)
    found, halts, letters, stands = [await _committed(settings, topic) for topic in topics]
    last = {stand["session_id"]: _lasting(stand) for stand in stands}
    places = [letter["source"] for letter in letters]
    return Verdicts(
        findings=Counter(finding["finding_id"] for finding in found),
        halts=Counter((halt["halt_id"], halt["status"]) for halt in halts),
        letters=Counter((place["topic"], place["partition"], place["offset"]) for place in places),
        rules=Counter(finding["rule"] for finding in found),
        sessions=Counter(json.dumps(stand, sort_keys=True) for stand in last.values()),
    )


def _lasting(stand: dict[str, Any]) -> dict[str, Any]:
    """Return where a session stands, without what depends on when it was told, or when a record without `seq` came."""
    checkpoint = stand["checkpoint"] and {**stand["checkpoint"], "position": 0}
    return {**stand, "position": 0, "detected_at": 0, "checkpoint": checkpoint}


async def _committed(settings: Settings, topic: str) -> list[dict[str, Any]]:
    bootstrap = settings.kafka.bootstrap_servers[0]
    with suppress(UnknownTopicOrPartitionError):
        records = await read_topic(bootstrap, topic, read_committed=True, settle=3.0, within=30.0)
        return [msgspec.json.decode(record.value) for record in records]
    return []


def undisturbed(settings: Settings) -> Settings:
    """Return settings for another run on the same input, with a group and output topics of its own."""
    names, tail = settings.topics, settings.tail
    roles = ("findings", "halts", "sessions", "dlq", "snapshots", "misplaced")
    own = {role: f"{getattr(names, role)}-calm" for role in roles}
    return settings.model_copy(
        update={
            "topics": names.model_copy(update=own),
            "tail": tail.model_copy(update={"group_id": f"{tail.group_id}-calm", "group_instance_id": None}),
        }
    )


def as_instance(settings: Settings, name: str | None) -> Settings:
    """Return settings with another `group_instance_id`."""
    return settings.model_copy(update={"tail": settings.tail.model_copy(update={"group_instance_id": name})})


class Load:
    """Publish a simulated fleet with planted faults, evenly over time, until it is told to stop.

    Besides every kind of fault that the simulator knows (among them records that are lost, torn, unreadable,
    contradicted), there are sessions with records without `seq`: some that are judged as they arrive, and some that
    claim to stand on positions that never come, so that the clock has to decide.

    Args:
        seed: everything follows from it.
        rate: records per second.
    """

    def __init__(self, seed: int, rate: float) -> None:
        rates = FaultRates.uniform(0.3, FAULTS).rates
        self._fleet = Fleet(seed, agents=60, sessions=1_000_000, faults=FaultRates({**rates, "log_gap": 0.04}))
        self._rate = rate
        self._more: deque[Outgoing] = deque()
        self._stop = asyncio.Event()
        self._late: list[Outgoing] = []
        self._extra = 0
        self.sent: list[bytes] = []

    async def run(self, settings: Settings) -> int:
        """Publish until `stop`; return how many records that were."""
        records = (await publish(self._records(), settings, rate=self._rate, within=20, stop=self._stop)).records
        del self.sent[records:]  # the last one was made, and stopped
        return records

    def stop(self) -> None:
        """End the publishing."""
        self._stop.set()

    def plant_unplaced(self) -> None:
        """Publish a session with two records without `seq`, of which one waits for positions that never come."""
        self._extra += 1
        session = f"unplaced-{self._extra}"
        node = {"node_id": "n", "summary_generation": 1, "level": 1, "turn": 1, "frontier_lo": 1, "asserted_edges": []}
        self._publish(session, "authorization", seq=1, action_id="a", precondition_id="p")
        for seq in (2, 3):
            self._publish(session, "message", seq=seq)
        self._publish(session, "checkpoint", as_of_seq=3, checkpoint_id="placed", frontier_hi=3, **node)
        self._publish(session, "checkpoint", as_of_seq=9, checkpoint_id="unplaced", frontier_hi=9, **node)

    def plant_late(self, sessions: int = 8) -> set[str]:
        """Publish sessions that lack a record, which `complete_late` publishes: later than it is waited for.

        Returns:
            The findings about what is missing.
        """
        lines = []
        for number in range(sessions):
            session = f"late-{number}"
            for seq in (1, 2, 4, 5):
                self._publish(session, "message", seq=seq)
                lines.append(self._more[-1][2])
            self._late.append(_outgoing(session, "authorization", seq=3, action_id="a", precondition_id="p"))
            self._late.append(_outgoing(session, "action", seq=6, action_id="a", irreversible=True))
        return {finding.finding_id for finding in judged(lines).findings}

    def complete_late(self) -> None:
        """Publish the records that came too late, and what follows."""
        self._more.extend(self._late)
        self._late.clear()

    def expected(self) -> dict[str, str]:
        """Return what the engine alone finds in what was sent (without the late sessions), by finding id."""
        lines = (line for line in self.sent if b'"session_id":"late-' not in line)
        return {f.finding_id: f"{f.rule} {f.session_id}@{f.position}" for f in judged(lines).findings}

    def _publish(self, session: str, kind: str, **fields: Any) -> None:
        self._more.append(_outgoing(session, kind, **fields))

    async def _records(self) -> AsyncIterator[Outgoing]:
        fleet: Iterable[Outgoing] = self._fleet.messages()
        for message in fleet:
            while self._more:
                yield self._keep(self._more.popleft())
            yield self._keep(message)

    def _keep(self, message: Outgoing) -> Outgoing:
        self.sent.append(message[2])
        return message


def _outgoing(session: str, kind: str, **fields: Any) -> Outgoing:
    value = json.dumps({"kind": kind, "session_id": session, **fields}, separators=(",", ":")).encode()
    return ("compactions" if kind == "checkpoint" else "events", session, value)


def count_in_logs(folder: Path, *texts: str) -> list[int]:
    """Count how often texts were logged by the processes of a test."""
    logs = [path.read_text(errors="replace") for path in folder.glob("*.log")]
    return [sum(log.count(text) for log in logs) for text in texts]
