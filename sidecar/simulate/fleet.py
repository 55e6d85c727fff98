"""A fleet of simulated agents: many sessions at once, the same for the same seed, and what is wrong with each."""

import heapq
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from sidecar.simulate.faults import FAULTS, Fault
from sidecar.simulate.life import live, plan, quiet, recover
from sidecar.simulate.log import Entry, Log, Role
from sidecar.simulate.names import AGENTS, LOSSY_MODELS, MODELS, TENANTS
from sidecar.simulate.session import Session
from sidecar.simulate.settings import FaultRates, Shape, Transport
from sidecar.simulate.transport import carry

EPOCH = datetime(2026, 11, 7, 9, tzinfo=UTC)
"""Where the virtual clock starts unless told otherwise."""

_GOLDEN = 0.6180339887498949
_COUNTERLESS = 0.05
_NARRATIVE = 0.25


class Message(NamedTuple):
    """Be one record on its way: the input topic's role, the key, and the value."""

    role: Role
    key: str
    value: bytes


class Planted(Struct, frozen=True):
    """State which fault a session has, and exactly what has to come of it: pairs of rule and subject id."""

    session_id: str
    fault: str
    expected: frozenset[tuple[str, str]]
    expected_dead_letters: int = 0


class Scripted(NamedTuple):
    """Keep one whole session: when it ends, its records as they arrive, and what is planted in it."""

    session_id: str
    ends: float
    entries: list[Entry]
    planted: Planted | None


class Fleet:
    """Simulate agents that run one session after the other.

    Args:
        seed: everything follows from it.
        agents: how many run at the same time.
        sessions: how many sessions they run in all.
        faults: how often what goes wrong; by default every kind alike, in 30% of the sessions together.
        transport: how noisy the way to the log is.
        shape: how sessions go.
        start: what the virtual clock's zero is on the calendar.
        prefix: what session ids begin with, beside the tenant; by default the seed.

    A session's content depends on the seed and its number alone, not on how many run beside it or on how they
    travel. The sessions that a fault is planted in are spread evenly, so that already few sessions respect the rates.
    """

    def __init__(
        self,
        seed: int,
        agents: int = 8,
        sessions: int = 100,
        faults: FaultRates | None = None,
        *,
        transport: Transport | None = None,
        shape: Shape | None = None,
        start: datetime = EPOCH,
        prefix: str | None = None,
    ) -> None:
        self.seed = seed
        self.agents = agents
        self.sessions = sessions
        self.faults = FaultRates.uniform(0.3, FAULTS) if faults is None else faults
        self.transport = transport or Transport()
        self.shape = shape or Shape()
        self.start = start
        self.prefix = str(seed) if prefix is None else prefix
        self.planted: list[Planted] = []
        self.records = 0
        self._offset = random.Random(f"{seed}/faults").random()

    def fault(self, number: int) -> str | None:
        """Return the kind of fault that is planted in a session, if any."""
        return self.faults.pick((self._offset + number * _GOLDEN) % 1.0)

    def script(self, number: int, at: float = 0.0) -> Scripted:
        """Write a whole session.

        Args:
            number: which one, from 0.
            at: when it begins, in seconds of the virtual clock.
        """
        rng = random.Random(f"{self.seed}/{number}")
        kind = self.fault(number)
        fault = FAULTS[kind] if kind else None
        tenant = rng.choice(TENANTS)
        model = rng.choice(LOSSY_MODELS if fault and fault.summarizer else tuple(MODELS))
        session_id = f"{tenant}-{self.prefix}-{number:05d}"
        log = Log(
            session_id,
            rng,
            start=self.start,
            at=at,
            seconds=self.shape.seconds,
            labels={"tenant": tenant, "agent": rng.choice(AGENTS)},
            model=model,
            counterless=fault is None and rng.random() < _COUNTERLESS,
        )
        session = Session(log, rng, model=model, narrative=rng.random() < _NARRATIVE)
        _live(session, fault, self.shape)
        noise = random.Random(f"{self.seed}/{number}/transport")
        entries = carry(log.entries, self.transport, noise, self.shape.seconds)
        planted = None
        if kind:
            planted = Planted(session_id, kind, frozenset(session.expected), session.dead_letters)
        return Scripted(session_id, log.at, entries, planted)

    def timeline(self) -> Iterator[tuple[float, Message]]:
        """Yield every record with the virtual time at which it arrives, in that order; `planted` grows with it."""
        self.planted, self.records = [], 0
        numbers = iter(range(self.sessions))
        # A new agent begins somewhere within one compaction cycle, so that they do not march in step.
        spread = random.Random(f"{self.seed}/agents")
        cycle = self.shape.turns[1] * self.shape.seconds
        free = sorted((spread.random() * cycle, agent) for agent in range(min(self.agents, self.sessions)))
        running: list[tuple[float, int, Entry, Iterator[Entry], str]] = []
        while free or running:
            if free and (not running or free[0][0] <= running[0][0]):
                at, agent = heapq.heappop(free)
                if (number := next(numbers, None)) is not None:
                    script = self.script(number, at)
                    if script.planted:
                        self.planted.append(script.planted)
                    # What is still on its way then does not keep the agent from its next session.
                    heapq.heappush(free, (script.ends, agent))
                    entries = iter(script.entries)
                    entry = next(entries)
                    heapq.heappush(running, (entry.at, number, entry, entries, script.session_id))
                continue
            at, number, entry, entries, key = running[0]
            self.records += 1
            yield at, Message(entry.role, key, entry.value)
            following = next(entries, None)
            if following is not None:
                heapq.heapreplace(running, (following.at, number, following, entries, key))
            else:
                heapq.heappop(running)

    def messages(self) -> Iterator[Message]:
        """Yield every record in the order in which it arrives."""
        return (message for _, message in self.timeline())


def _live(session: Session, fault: Fault | None, shape: Shape) -> None:
    """Let a session live, with at most one fault towards its end and what people do about it."""
    rng = session.rng
    if fault:
        fault.prepare(session)
    plan(session)
    live(session, shape)
    if not fault:
        return
    unsafe = fault.incident(session)
    quiet(session)
    if unsafe and rng.random() < 0.5:
        session.resume(unsafe)
        quiet(session)
        if rng.random() < 0.3:
            session.expect("action_on_degraded", session.act())
    if rng.random() < 0.6:
        recover(session)
    quiet(session, 2)


def mixed_records(seed: int, records: int, *, agents: int = 200) -> Iterator[Message]:
    """Yield so many records of a large fleet with few faults: mostly opaque turns, about 2% compaction records.

    Args:
        seed: everything follows from it.
        records: how many.
        agents: how many sessions are interleaved.
    """
    fleet = Fleet(
        seed,
        agents=agents,
        sessions=records,
        faults=FaultRates.uniform(0.08, FAULTS),
        shape=Shape(turns=(90, 150), cycles=(3, 9)),
    )
    for _, message in zip(range(records), fleet.messages(), strict=False):
        yield message
