"""What the tasks have to say, as messages for their outputs: in pieces, so that nobody waits until all is encoded."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from sidecar.config import Settings
from sidecar.engine.fold import Outcome
from sidecar.protocol.outputs import DeadLetter
from sidecar.tail.homes import Homes
from sidecar.tail.keeping import CHUNK, Keeper
from sidecar.tail.messages import (
    Message,
    findings_as_messages,
    halts_as_messages,
    letters_as_messages,
    sessions_as_messages,
)
from sidecar.tail.misplaced import Stray, notes
from sidecar.tail.outputs import Outputs
from sidecar.tail.report import Report
from sidecar.tail.task import Task

_Item = TypeVar("_Item")


class Speaker:
    """Send what was found, where sessions stand, and what has to be kept of them.

    Args:
        outputs: where it goes.
        settings: the settings tree.
        report: metrics, health and the log.
        partitions: how many partitions each topic has.
        homes: knows the sessions' home partitions.
        on_outcome: called with what each slice found, before it is sent.
    """

    def __init__(
        self,
        outputs: Outputs,
        settings: Settings,
        report: Report,
        partitions: Mapping[str, int],
        homes: Homes,
        on_outcome: Callable[[Outcome], None] | None,
    ) -> None:
        self._outputs = outputs
        self._names = settings.topics
        self._heartbeat = settings.session.heartbeat
        self._report = report
        self._partitions = partitions
        self._homes = homes
        self._on_outcome = on_outcome
        self._stir_due = 0.0
        self.sent = 0
        """How many messages were sent since this was set to 0."""

    async def say(self, task: Task, outcome: Outcome, letters: Sequence[DeadLetter]) -> None:
        """Send what a task found, halts first, and its dead letters."""
        if not (outcome.findings or outcome.halts or letters):
            return
        names, number, now = self._names, task.number, datetime.now(UTC)
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        self._report.said(outcome, letters)
        for halts in _chunks(outcome.halts):
            await self._send(task, halts_as_messages(halts, names.halts, self._partition(names.halts, number), now))
        for found in _chunks(outcome.findings):
            partition = self._partition(names.findings, number)
            await self._send(task, findings_as_messages(found, names.findings, partition, now))
        for bad in _chunks(letters):
            await self._send(task, letters_as_messages(bad, names.dlq, self._partition(names.dlq, number), now))

    async def note(self, task: Task, strays: Sequence[Stray]) -> None:
        """Tell the home partitions of sessions that there are records of them in a task's."""
        for chunk in _chunks(notes(strays, self._names.misplaced, self._homes)):
            await self._send(task, chunk)

    async def tell(self, tasks: Sequence[Task]) -> None:
        """Say where the sessions stand that there is news of; once a commit, however often it changed."""
        now, topic = time.monotonic(), self._names.sessions
        stir = now >= self._stir_due
        if stir:
            self._stir_due = now + self._heartbeat
        for task in tasks:
            if stir:
                task.engine.stir()
            partition = self._partition(topic, task.number)
            for chunk in _chunks(task.engine.take_news()):
                await self._send(task, sessions_as_messages(chunk, topic, partition, datetime.now(UTC)))

    async def keep(self, task: Task, keeper: Keeper, last: bool) -> None:
        """Send what has to be kept of a task's sessions with the commit that comes next.

        Args:
            task: the task.
            keeper: the task's.
            last: there will be no later commit.
        """
        records, size = keeper.written
        too_large = keeper.too_large
        now, clock = time.monotonic(), task.clock.now
        for chunk in keeper.records(task.engine, task.positions, now=now, clock=clock, last=last):
            await self._send(task, chunk)
        self._report.kept(keeper.written[0] - records, keeper.written[1] - size, keeper.too_large - too_large)

    async def _send(self, task: Task, messages: Sequence[Message]) -> None:
        await self._outputs.send(task.number, messages)
        self.sent += len(messages)
        await asyncio.sleep(0)

    def _partition(self, topic: str, number: int) -> int | None:
        """Return the task's own number for an output topic with as many partitions, else None (by the key's hash).

        A session's outputs are in one partition either way; this way no key is hashed.
        """
        count = self._partitions.get(topic, 0)
        return number if number < count == self._homes.count else None


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[begin : begin + CHUNK] for begin in range(0, len(items), CHUNK))
