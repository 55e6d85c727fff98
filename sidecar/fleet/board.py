"""The fleet as whoever asks sees it: what is here and what the other workers say, put together.

One session is asked for where it is: Faust's router knows which worker has which partition. Lists are gathered from
all workers. A worker that does not answer, and a partition that nobody has just now, is named in the answer.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from sidecar.fleet import local
from sidecar.fleet.local import Answers, Figures, Filter, Halts, Sessions
from sidecar.fleet.peers import (
    Answer,
    Ask,
    AskAlerts,
    AskFigures,
    AskHalts,
    AskSession,
    AskSessions,
    PeerError,
    Peers,
    ask_all,
    body_of,
)
from sidecar.fleet.queries import (
    Dimension,
    Group,
    HaltView,
    Missing,
    Page,
    SessionDetail,
    SessionSummary,
    Summary,
    Unavailable,
)
from sidecar.fleet.topics import partition_of
from sidecar.fleet.worker import FleetWorker
from sidecar.observe.fleet import FleetMetrics
from sidecar.protocol.outputs import Alert, HaltAck

T = TypeVar("T")


class Board:
    """Answer questions about the fleet; see `queries.Fleet`.

    Before `attach` it knows nothing, and says so.

    Args:
        peers: asks the other workers.
        metrics: counts questions to others.
        clock: the time, in Unix seconds.
    """

    def __init__(self, peers: Peers, metrics: FleetMetrics, clock: Callable[[], float] = time.time) -> None:
        self._attached: FleetWorker | None = None
        self._peers = peers
        self._metrics = metrics
        self._clock = clock

    def attach(self, worker: FleetWorker) -> None:
        """Answer from this process's worker from now on."""
        self._attached = worker

    @property
    def _worker(self) -> FleetWorker:
        if self._attached is None:
            raise Unavailable("the worker is starting")
        return self._attached

    # --- questions ----------------------------------------------------------------------------------------------------

    async def summary(self) -> Summary:
        """Describe the fleet as a whole."""
        parts, answers = await self._gather(AskFigures(), Figures)
        return local.merge_summary(parts, answers)

    async def sessions(
        self,
        *,
        status: frozenset[str] | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[SessionSummary]:
        """List sessions, the worst first."""
        limit = local.held(limit)
        wanted = Filter(status, tenant, agent, model, search)
        question = AskSessions(wanted, limit, local.read_cursor(cursor))
        parts, answers = await self._gather(question, Sessions)
        return local.merge_sessions(parts.values(), limit, answers)

    async def session(self, session_id: str) -> SessionDetail | None:
        """Describe one session, asking the worker that has it.

        Raises:
            Unavailable: the worker that has it does not answer, and no other has it.
        """
        question = AskSession(session_id)
        where = partition_of(session_id.encode(), self._worker.partitions)
        workers = self._worker.workers()
        owner = next((url for url, partitions in workers.items() if where in partitions), None)
        reason = f"no worker has its partition ({where}) just now"
        if owner is not None:
            answer = (await self._ask({owner: workers[owner]}, question))[owner]
            if (found := _session_in(answer)) is not None:
                return found
            if isinstance(answer, PeerError):
                reason = str(answer)
            else:
                reason = "" if where in answer.partitions else f"its partition ({where}) is being recovered"
        # Whoever writes with another partitioner than Kafka's own has put it elsewhere.
        others = {url: partitions for url, partitions in workers.items() if url != owner}
        for answer in (await self._ask(others, question)).values():
            if (found := _session_in(answer)) is not None:
                return found
        if reason:
            raise Unavailable(reason, owner)
        return None

    async def groups(
        self,
        by: Dimension = "group",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> Page[Group]:
        """List groups."""
        parts, answers = await self._gather(AskFigures(), Figures)
        return local.merge_groups(parts.values(), by, Filter(None, tenant, agent, model), answers)

    async def alerts(self, *, open_only: bool = True) -> Page[Alert]:
        """List alerts."""
        parts, answers = await self._gather(AskAlerts(open_only), list[Alert])
        return local.merge_alerts(parts.values(), answers)

    async def halts(self, *, open_only: bool = True, limit: int = 500) -> Page[HaltView]:
        """List halts."""
        limit = local.held(limit)
        parts, answers = await self._gather(AskHalts(open_only, limit), Halts)
        return local.merge_halts(parts.values(), limit, answers)

    async def changed(self, within: float) -> None:
        """Wait until something that this worker has changed, but no longer than `within` seconds."""
        await self._worker.changed(within)

    async def acknowledge(self, session_id: str, ack: HaltAck) -> None:
        """Publish that somebody has taken a halt in hand.

        Raises:
            KafkaError: the brokers did not take it.
            Unavailable: the worker is starting.
        """
        await self._worker.acknowledge(session_id, ack)

    # --- answers ------------------------------------------------------------------------------------------------------

    async def answer(self, question: Ask) -> Answer:
        """Answer from what is here."""
        parts = [part for part in self._worker.parts.values() if part.reading]
        shards, books = [part.shard for part in parts], [part.book for part in parts]
        body: Any
        match question:
            case AskSessions(wanted, limit, after):
                body = local.sessions(shards, wanted, local.held(limit), after)
            case AskSession(session_id):
                body = local.detail(shards, session_id, self._worker.url, self._clock())
            case AskHalts(open_only, limit):
                body = local.halts(shards, open_only, local.held(limit))
            case AskAlerts(open_only):
                body = local.alerts(books, open_only)
            case _:
                body = local.figures(shards, books, sum(part.lag for part in parts))
        return Answer(sorted(part.partition for part in parts), body_of(body))

    async def _ask(self, workers: Mapping[str, list[int]], question: Ask) -> dict[str, Answer | PeerError]:
        """Ask some workers, ourselves too if we are among them."""
        others = [url for url in workers if url != self._worker.url]
        found = await ask_all(self._peers, others, question)
        for answer in found.values():
            self._metrics.asked(isinstance(answer, Answer))
        if self._worker.url in workers:
            found[self._worker.url] = await self.answer(question)
        return found

    async def _gather(self, question: Ask, kind: Any) -> tuple[dict[str, Any], Answers]:
        """Ask all workers; return what they say, and what is missing."""
        workers = self._worker.workers()
        parts: dict[str, Any] = {}
        missing: list[Missing] = []
        nobody = set(range(self._worker.partitions))
        for url, answer in (await self._ask(workers, question)).items():
            expected = set(workers[url])
            nobody -= expected
            if isinstance(answer, PeerError):
                missing.append(Missing(worker=url, partitions=sorted(expected), reason=str(answer)))
                continue
            try:
                parts[url] = msgspec.msgpack.decode(answer.body, type=kind)
            except msgspec.MsgspecError:
                reason = "its answer cannot be read: is it of another version?"
                missing.append(Missing(worker=url, partitions=sorted(expected), reason=reason))
                continue
            if lacking := sorted(expected - set(answer.partitions)):
                missing.append(Missing(worker=url, partitions=lacking, reason="these are being recovered"))
        if nobody:
            missing.append(Missing(worker=None, partitions=sorted(nobody), reason="no worker has these just now"))
        return parts, Answers(now=self._clock(), missing=missing)


def _session_in(answer: Answer | PeerError) -> SessionDetail | None:
    if isinstance(answer, PeerError):
        return None
    found: SessionDetail | None = msgspec.msgpack.decode(answer.body, type=SessionDetail | None)
    return found
