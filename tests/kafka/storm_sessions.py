"""The writers of a storm: honest sessions, and everything that may not lead to a permission."""

import asyncio
import json
import random
import time
from typing import Any
from zlib import crc32

from aiokafka import AIOKafkaProducer

from sidecar.config import Settings
from sidecar.tail.homes import Homes
from tests.kafka.storm_ledger import Ledger
from tests.kafka.tail_support import PARTITIONS

_COMPACTIONS = ("summary", "checkpoint", "resume", "reconcile", "gc", "probe")
_LONG = 1150
_GAP_BOMB = 8000
_LATE = 2000


def by_crc32(key: bytes, partitions: list[int], _: list[int]) -> int:
    """Choose a partition as librdkafka does by default."""
    return partitions[crc32(key) % len(partitions)]


class Writer:
    """Write one session's log.

    Args:
        producer: puts the records where its partitioner says.
        settings: name the topics.
        session_id: the session.
        tenant: the one that every record names.
    """

    def __init__(self, producer: AIOKafkaProducer, settings: Settings, session_id: str, tenant: str | None = None):
        self.session_id = session_id
        self.seq = 0
        self._producer = producer
        self._topics = settings.topics
        self._tenant = {"tenant": tenant} if tenant else {}

    async def write(self, kind: str, **fields: Any) -> None:
        """Write the next record, and return when the broker has it."""
        self.seq += 1
        await self.put(kind, seq=self.seq, **fields)

    async def put(self, kind: str, producer: AIOKafkaProducer | None = None, **fields: Any) -> None:
        """Write any record, and return when the broker has it."""
        await (await self.send(kind, producer, **fields))

    async def send(self, kind: str, producer: AIOKafkaProducer | None = None, **fields: Any) -> Any:
        """Hand any record to a producer."""
        topic = self._topics.compactions if kind in _COMPACTIONS else self._topics.events
        value = json.dumps({"kind": kind, "session_id": self.session_id, **self._tenant, **fields}).encode()
        return await (producer or self._producer).send(topic, key=self.session_id.encode(), value=value)

    async def grant(self, action_id: str = "deploy", **more: Any) -> None:
        """Write an authorization."""
        await self.write("authorization", action_id=action_id, precondition_id=f"ticket-{action_id}", **more)


class Cast:
    """Play sessions until `over` is set.

    Args:
        producer: of honest writers.
        other: a producer with another partitioner.
        settings: name the topics.
        ledger: asks, and keeps account.
        seed: of the dice.
    """

    def __init__(
        self, producer: AIOKafkaProducer, other: AIOKafkaProducer, settings: Settings, ledger: Ledger, seed: int
    ) -> None:
        self._producer = producer
        self._other = other
        self._settings = settings
        self._ledger = ledger
        self._seed = seed
        self._homes = Homes("murmur2", PARTITIONS)
        self.over = asyncio.Event()
        self.sessions = 0

    def writer(self, session_id: str, tenant: str | None = None) -> Writer:
        """Return a writer whose records are where they belong."""
        self.sessions += 1
        return Writer(self._producer, self._settings, session_id, tenant)

    # --- honest -------------------------------------------------------------------------------------------------------

    async def honest(self, number: int) -> None:
        """Live one honest session after the other: grant, ask, act, revoke, compact, resume."""
        dice, life = random.Random(f"{self._seed} {number}"), 0
        while not self.over.is_set():
            life += 1
            writer = self.writer(f"honest-{number}-{life}", dice.choice((None, "acme")))
            await writer.write("message")
            edges: dict[str, str] = {}
            for cycle in range(dice.randint(2, 5)):
                await self._cycle(dice, writer, edges, f"deploy-{cycle}", cycle + 1)

    async def _cycle(self, dice: random.Random, writer: Writer, edges: dict[str, str], action: str, turn: int) -> None:
        session, ask = writer.session_id, self._ledger.act
        once = dice.random() < 0.3
        await writer.grant(action, **({"uses": 1} if once else {}))
        edges[action] = f"ticket-{action}"
        await ask(session, action, writer.seq, expected=True, honest=True)
        await ask(session, action, honest=True)
        await writer.write("action", action_id=action, irreversible=True)
        if once:
            del edges[action]
            self._ledger.close(session, "used up", action)
        elif dice.random() < 0.5:
            del edges[action]
            await writer.write("revocation", action_id=action)
            self._ledger.close(session, "revoked", action)
        await ask(session, action, writer.seq, expected=action in edges, honest=True)
        await ask(session, "never-granted", writer.seq, expected=False, honest=True)
        await asyncio.sleep(dice.uniform(0.0, 0.1))
        if dice.random() < 0.5:
            await self._compact(writer, edges, turn)

    async def _compact(self, writer: Writer, edges: dict[str, str], turn: int) -> None:
        session, hi, name = writer.session_id, writer.seq, f"ckpt-{turn}"
        node = {"node_id": "n", "level": 1, "frontier_lo": 1, "frontier_hi": hi}
        summary = {"session_id": session, **node, "generation": turn}
        await self._ledger.commit(summary, writer.seq)
        await writer.write("summary", **{k: v for k, v in summary.items() if k != "session_id"})
        asserted = sorted(edges.items())
        checkpoint = {"checkpoint_id": name, **node, "summary_generation": turn, "turn": turn}
        await writer.write("checkpoint", **checkpoint, asserted_edges=asserted)
        await self._ledger.resume(session, name, writer.seq)
        await writer.write("resume", checkpoint_id=name)
        for action in [*edges][:1]:
            await self._ledger.act(session, action, writer.seq, checkpoint_id=name, expected=True, honest=True)
        await writer.write("probe", node_id="n", probes=10, recalled=10)
        await self._ledger.reclaim(session, "n", writer.seq)

    # --- another partitioner ------------------------------------------------------------------------------------------

    async def mixed(self) -> None:
        """Revoke in known sessions with another partitioner, go on at home, sometimes reconcile; and begin new ones."""
        number = 0
        while not self.over.is_set():
            number += 1
            writer = await self._granted(f"mixed-{number}")
            session = writer.session_id
            writer.seq += 1
            await writer.put("revocation", self._other, seq=writer.seq, action_id="deploy")
            home = self._homes.of(session) == crc32(session.encode()) % PARTITIONS
            closed = self._ledger.close(session, "revoked by another producer", elsewhere=not home)
            if not home:
                writer.seq -= 1  # nobody at home has that position: its next writer takes it
            await self._insist(session, writer.seq, seconds=2.0)
            if home:
                closed.ended = time.time()
            grant = {"action_id": "deploy", "precondition_id": "another"}
            await writer.put("authorization", self._other, seq=writer.seq + 1, **grant)
            writer.seq += home
            if not home and number % 3 == 0:
                closed.ended = time.time()
                await writer.write("reconcile", decision="replay")
            await self._insist(session, writer.seq, seconds=0.5)
            fresh = next(n for n in (f"fresh-{number}-{m}" for m in range(99)) if self._strays(n))
            self._ledger.never.add(fresh)
            stranger = Writer(self._other, self._settings, fresh)
            await stranger.grant()
            await self._insist(fresh, stranger.seq, seconds=0.5)

    def _strays(self, session_id: str) -> bool:
        return self._homes.of(session_id) != crc32(session_id.encode()) % PARTITIONS

    # --- one writer that goes wrong -----------------------------------------------------------------------------------

    async def lost_journal(self, number: int) -> None:
        """Begin a session of more than 1,100 positions again at 1: a revocation, an action; then its log goes on."""
        writer = await self._granted(f"lost-{number}")
        sent = []
        while writer.seq < _LONG:
            writer.seq += 1
            sent.append(await writer.send("message", seq=writer.seq))
        await asyncio.gather(*sent)
        await self._ledger.act(writer.session_id, min_seq=writer.seq, expected=True)
        again = self.writer(writer.session_id)
        await again.write("revocation", action_id="deploy")
        self._ledger.close(writer.session_id, "revoked by a writer that begins again")
        await self._insist(writer.session_id, again.seq, seconds=1.0)
        await again.write("action", action_id="deploy", irreversible=True)
        await self._insist(writer.session_id, again.seq, seconds=1.0)
        await writer.write("message")
        await self._ledger.act(writer.session_id, min_seq=writer.seq, expected=False)

    async def conflicts(self) -> None:
        """Let a revocation lose a conflict, and checkpoint over it."""
        await self._wrong("conflict", self._conflict)

    async def _conflict(self, writer: Writer, _: int) -> None:
        await writer.put("revocation", seq=writer.seq, action_id="deploy")
        self._ledger.close(writer.session_id, "a revocation lost a conflict")
        await writer.write("message")
        await self._checkpoint(writer, seq=True)

    async def unreadable(self) -> None:
        """Revoke in ways that cannot be read."""
        await self._wrong("unreadable", self._unread)

    async def _unread(self, writer: Writer, number: int) -> None:
        ways: list[dict[str, Any]] = [{"seq": f"{writer.seq + 1}"}, {"seq": writer.seq + 1.0}, {}, {"seq": True}]
        await writer.put("revocation", **ways[number % len(ways)], action_id="deploy")
        self._ledger.close(writer.session_id, "a revocation could not be read")

    async def tenants(self) -> None:
        """Let another tenant write: a revocation, which may be one, and a grant, which is none."""
        await self._wrong("tenants", self._foreign, "acme")

    async def _foreign(self, writer: Writer, _: int) -> None:
        await writer.write("revocation", action_id="deploy", tenant="globex")
        self._ledger.close(writer.session_id, "another tenant revoked")
        await writer.grant("forged", tenant="globex")
        await self._ledger.act(writer.session_id, "forged", writer.seq, expected=False)

    async def unplaced(self) -> None:
        """Halt a session, and try to clear that with records without a position."""
        await self._wrong("unplaced", self._halted)

    async def _halted(self, writer: Writer, _: int) -> None:
        await writer.write("action", action_id="never-granted", irreversible=True)
        self._ledger.close(writer.session_id, "halted")
        await self._checkpoint(writer, seq=False)
        await writer.put("reconcile", decision="replay", as_of_seq=writer.seq)

    async def _wrong(self, name: str, go_wrong: Any, tenant: str | None = None) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            writer = await self._granted(f"{name}-{number}", tenant)
            await go_wrong(writer, number)
            await self._insist(writer.session_id, writer.seq, seconds=1.0)
            await writer.write("message")
            # The log has gone on in the same topic, so what came before is known.
            await self._ledger.act(writer.session_id, min_seq=writer.seq, expected=False)
            await asyncio.sleep(0.3)

    async def _checkpoint(self, writer: Writer, *, seq: bool) -> None:
        hi = writer.seq
        node = {"node_id": "n", "level": 1, "frontier_lo": 1, "frontier_hi": hi}
        edges = [["deploy", "ticket-deploy"]]
        checkpoint = {"checkpoint_id": "c", **node, "summary_generation": 1, "turn": 1, "asserted_edges": edges}
        for kind, fields in (
            ("summary", {**node, "generation": 1}),
            ("checkpoint", checkpoint),
            ("resume", {"checkpoint_id": "c"}),
        ):
            if seq:
                await writer.write(kind, **fields)
            else:
                await writer.put(kind, **fields, as_of_seq=hi)

    # --- bombs --------------------------------------------------------------------------------------------------------

    async def bomb(self, number: int) -> None:
        """Write a session that is nothing but gaps, one of a grant and then gaps, and many that begin far ahead."""
        bomb, fuse = self.writer(f"bomb-{number}"), await self._granted(f"fuse-{number}")
        late = [self.writer(f"late-{number}-{n}") for n in range(_LATE)]
        self._ledger.never.update({bomb.session_id, *(each.session_id for each in late)})
        asking = asyncio.create_task(self._insist(bomb.session_id, 1026, seconds=5.0))
        sent = []
        for n in range(1, _GAP_BOMB + 1):
            grant = {"action_id": "deploy", "precondition_id": "ticket"}
            sent.append(await bomb.send("authorization", seq=1026 * n, **grant))
            if n % 4 == 0:
                sent.append(await fuse.send("message", seq=fuse.seq + 513 * n))
            if n % 4 == 1:
                sent.append(await late[n // 4].send("authorization", seq=5000, **grant))
        await asyncio.gather(*sent)
        self._ledger.close(fuse.session_id, "a gap after the grant")
        await self._insist(fuse.session_id, fuse.seq, seconds=1.0)
        for each in late[:20]:
            await self._ledger.act(each.session_id, min_seq=5000, expected=False)
        await asking

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _granted(self, session_id: str, tenant: str | None = None) -> Writer:
        """Begin a session with a grant, and ask: what happens to it later happens to a permission."""
        writer = self.writer(session_id, tenant)
        await writer.write("message")
        await writer.grant()
        await writer.write("message")
        await self._ledger.act(session_id, min_seq=writer.seq, expected=True)
        return writer

    async def _insist(self, session_id: str, seq: int, seconds: float) -> None:
        """Ask again and again, with what is known of the log and without."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for min_seq in (None, 1, seq):
                await self._ledger.act(session_id, min_seq=min_seq)
            await asyncio.sleep(0.1)
