"""The log of decisions: what is permitted is written down first, and is still true when it is said.

It holds every permission that was given. It also holds some that were not: what was written and no longer held
afterwards, or came too late for whoever asked.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import msgspec

from sidecar.engine.live import DecisionLog
from sidecar.guard.questions import Asked
from sidecar.observe.logs import get_logger
from sidecar.protocol.api import AuthorizeAnswer, AuthorizeRequest, CommitAnswer, GcAnswer, ResumeAnswer, ResumeRequest
from sidecar.protocol.openapi import Answer
from sidecar.protocol.outputs import Decision
from sidecar.protocol.records import Summary

log = get_logger(__name__)

EDGES = 20
"""How many edges a decision names at most, those that were granted last."""

DEPS = 100
"""How many references of a resume a decision names at most."""

_TELL_EVERY = 10.0
"""Seconds between two log lines that say that decisions cannot be written."""


class NotRecorded(Exception):
    """Say why a permission could not be written down, and so is not given."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Recorder:
    """Write permissions down.

    Args:
        required: whether a permission that cannot be written is refused; False: nothing is written.
        timeout: how many seconds writing one may take.
    """

    def __init__(self, *, required: bool, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._required = required
        self._timeout = timeout
        self._clock = clock
        self._log: DecisionLog | None = None
        self._told = float("-inf")

    def serve(self, decisions: DecisionLog | None) -> None:
        """Write to this log from now on; None: there is none, so what has to be written is refused."""
        self._log = decisions
        if not self._required:
            log.warning(
                "permissions are not written down (guard.decisions: off): nobody can compare those that are given with "
                "the log afterwards"
            )

    @property
    def required(self) -> bool:
        """Tell whether permissions have to be written down."""
        return self._required

    async def write(self, decision: Decision) -> None:
        """Write a permission down, and return when it cannot be lost.

        Raises:
            NotRecorded: it may not have been written.
        """
        if self._log is None:
            raise NotRecorded("There is no log of decisions to write the permission to, so it is not given.")
        try:
            async with asyncio.timeout(self._timeout):
                await self._log.write(decision.session_id, msgspec.json.encode(decision))
        except TimeoutError:
            self._tell(f"not written within {self._timeout:g} s")
            raise NotRecorded(
                f"The permission could not be written to the log of decisions within {self._timeout:g} s "
                "(guard.decision_timeout), so it is not given. Ask again; if it stays so, tell the operator."
            ) from None
        except Exception as error:  # whatever it is: what is not written is not permitted
            # What was not made to be read, a fault of ours, may quote the session.
            ours = isinstance(error, OSError | RuntimeError) or type(error).__module__.startswith("sidecar.")
            self._tell(f"{type(error).__name__}: {error}" if ours else type(error).__name__)
            raise NotRecorded(
                "The permission could not be written to the log of decisions, so it is not given. Ask again; if it "
                "stays so, tell the operator: the guard's log says why."
            ) from None

    def _tell(self, reason: str) -> None:
        now = self._clock()
        if now - self._told >= _TELL_EVERY:
            self._told = now
            log.error("permissions cannot be written down, and are refused", reason=reason)


def decision_of(asked: Asked, answer: Answer, asked_by: str | None) -> Decision | None:
    """Return the permission that an answer gives; None: it gives none."""
    question = asked.question
    position = answer.position
    if isinstance(answer, AuthorizeAnswer) and answer.allowed:
        made = _begin("authorize", question.session_id, position, asked, asked_by)
        authorized = cast(AuthorizeRequest, question)
        made.action_id, made.checkpoint_id = authorized.action_id, authorized.checkpoint_id
        newest = sorted(answer.edges, key=lambda edge: edge.granted)[-EDGES:]
        made.edges = [(edge.action_id, edge.precondition_id) for edge in newest]
        made.checkpoint_in_force = answer.checkpoint_in_force
        return made
    if isinstance(answer, ResumeAnswer) and answer.decision == "resume":
        made = _begin("resume", question.session_id, position, asked, asked_by)
        resumed = cast(ResumeRequest, question)
        made.checkpoint_id, made.deps, made.replayed_to = (
            resumed.checkpoint_id,
            resumed.deps[:DEPS],
            resumed.replayed_to,
        )
        return made
    if isinstance(answer, CommitAnswer) and answer.decision == "commit":
        made = _begin("commit", question.session_id, position, asked, asked_by)
        proposed = cast(Summary, question)
        made.node_ids, made.generation = [proposed.node_id], proposed.generation
        return made
    # Of what was asked about, some may be reclaimed although the answer is `defer`.
    if isinstance(answer, GcAnswer) and answer.reclaimable:
        made = _begin("gc", question.session_id, position, asked, asked_by)
        made.node_ids = answer.reclaimable
        return made
    return None


def still_holds(before: Answer, now: Answer) -> bool:
    """Tell whether what was written down is what is to be answered now.

    Args:
        before: the answer whose permission was written.
        now: the answer to the same question on the session as it stands now.
    """
    if isinstance(before, AuthorizeAnswer) and isinstance(now, AuthorizeAnswer):
        return now.allowed and any(edge in before.edges for edge in now.edges)
    if isinstance(before, GcAnswer) and isinstance(now, GcAnswer):
        return set(now.reclaimable) <= set(before.reclaimable)
    return getattr(now, "decision", None) == getattr(before, "decision", "")


def _begin(question: str, session_id: str, position: int | None, asked: Asked, asked_by: str | None) -> Decision:
    return Decision(
        decision_id=secrets.token_hex(16),
        question=question,  # type: ignore[arg-type]
        session_id=session_id,
        position=position or 0,
        decided_at=datetime.now(UTC),
        min_seq=asked.min_seq,
        asked_by=asked_by,
    )
