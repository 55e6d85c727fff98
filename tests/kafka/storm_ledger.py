"""What the agents of a storm asked and were told, and from when on a session must not be permitted any more."""

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from sidecar.client import Guard
from sidecar.protocol.outputs import Decision


class Asked(msgspec.Struct, kw_only=True):
    """Hold one question, and the answer.

    Args:
        decision: what the answer permits, as the guard would write it down; without a position it permits nothing.
        honest: whether an agent asked in a session that nobody attacks.
        expected: what must be answered while all is well; None: nobody knows.
        begun: when (`time.time`).
        seconds: how long the answer took.
        codes: the reasons of a refusal.
        details: the same for people.
    """

    decision: Decision
    honest: bool
    expected: bool | None
    begun: float
    seconds: float
    allowed: bool
    codes: list[str]
    details: list[str]


class Closed(msgspec.Struct, kw_only=True):
    """Say from when to when (`time.time`) nothing may be permitted in a session, or one action of it.

    Args:
        elsewhere: whether that is for a record in another partition, which somebody else has to pass on.
    """

    session_id: str
    why: str
    begun: float
    action_id: str | None = None
    ended: float = float("inf")
    elsewhere: bool = False


class Ledger:
    """Ask guards and keep account.

    Args:
        guards: of all replicas; each question goes to one of them.
    """

    def __init__(self, guards: Sequence[Guard], seed: int) -> None:
        self._guards = guards
        self._random = random.Random(seed)
        self.asked: list[Asked] = []
        self.closed: list[Closed] = []
        self.never: set[str] = set()
        """Sessions in which nothing may ever be permitted."""

    def close(self, session_id: str, why: str, action_id: str | None = None, *, elsewhere: bool = False) -> Closed:
        """Take note that from now on a session, or an action of it, must be refused."""
        closed = Closed(session_id=session_id, why=why, begun=time.time(), action_id=action_id, elsewhere=elsewhere)
        self.closed.append(closed)
        return closed

    async def act(
        self,
        session_id: str,
        action_id: str = "deploy",
        min_seq: int | None = None,
        *,
        checkpoint_id: str | None = None,
        expected: bool | None = None,
        honest: bool = False,
    ) -> bool:
        """Ask whether an action may be carried out."""
        begun, clock = time.time(), time.monotonic()
        answer = await self._guard().authorize(session_id, action_id, checkpoint_id, min_seq)
        edges = [(edge.action_id, edge.precondition_id) for edge in answer.edges]
        permits = {"action_id": action_id, "checkpoint_id": checkpoint_id, "edges": edges}
        return self._note(
            "authorize", answer, answer.allowed, begun, clock, session_id, min_seq, permits, expected, honest
        )

    async def resume(self, session_id: str, checkpoint_id: str, min_seq: int, *, expected: bool | None = True) -> bool:
        """Ask whether an honest session may go on from a checkpoint."""
        begun, clock = time.time(), time.monotonic()
        answer = await self._guard().resume(session_id, checkpoint_id, min_seq=min_seq)
        permits = {"checkpoint_id": checkpoint_id}
        yes = answer.decision == "resume"
        return self._note("resume", answer, yes, begun, clock, session_id, min_seq, permits, expected, True)

    async def commit(self, summary: dict[str, Any], min_seq: int) -> bool:
        """Ask whether an honest session's summary may be committed."""
        begun, clock = time.time(), time.monotonic()
        answer = await self._guard().commit(summary, min_seq)
        permits = {"node_ids": [summary["node_id"]], "generation": summary["generation"]}
        yes = answer.decision == "commit"
        return self._note("commit", answer, yes, begun, clock, summary["session_id"], min_seq, permits, True, True)

    async def reclaim(self, session_id: str, node_id: str, min_seq: int) -> bool:
        """Ask whether a node of an honest session may be reclaimed."""
        begun, clock = time.time(), time.monotonic()
        answer = await self._guard().gc(session_id, [node_id], min_seq)
        yes = answer.reclaimable == [node_id]
        permits = {"node_ids": [node_id]}
        return self._note("gc", answer, yes, begun, clock, session_id, min_seq, permits, True, True)

    def _guard(self) -> Guard:
        return self._random.choice(self._guards)

    def _note(
        self,
        question: Any,
        answer: Any,
        yes: bool,
        begun: float,
        clock: float,
        session_id: str,
        min_seq: int | None,
        permits: dict[str, Any],
        expected: bool | None,
        honest: bool,
    ) -> bool:
        decision = Decision(
            decision_id="",
            question=question,
            session_id=session_id,
            position=answer.position or 0,
            decided_at=datetime.fromtimestamp(begun, UTC),
            min_seq=min_seq,
            **permits,
        )
        seconds = time.monotonic() - clock
        codes, details = [r.code for r in answer.reasons], [r.detail for r in answer.reasons]
        self.asked.append(
            Asked(
                decision=decision,
                honest=honest,
                expected=expected,
                begun=begun,
                seconds=seconds,
                allowed=yes,
                codes=codes,
                details=details,
            )
        )
        return yes
