"""Which replica reads which partition numbers: all topics' partitions of a number together, balanced, and sticky.

Every round of assignment has a number, and a table of who has what. The leader of the group makes both from the
members' claims, and sends them to all; each member claims with the newest it was sent. So whoever leads next knows
what everybody had, also members that have lost their memory, and a member that was away cannot claim what has been
given to others since. (aiokafka tells an assignor neither the group's generation nor the members' instance ids.)
"""

# mypy: untyped-calls-exclude="aiokafka"

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from msgspec import Struct, field

from sidecar.observe.logs import get_logger
from sidecar.tail.errors import TailError
from sidecar.tail.topics import check_equal

log = get_logger(__name__)

_VERSION = 1

Table = dict[str, list[int]]
"""Partition numbers by the identity of who has them, in the order they came to it."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class _Claim(Struct, array_like=True):
    """Say who a member is, and what it knows: the newest round, and who had what in it.

    `url` is where the member's guard is to be asked; the leader tells all where to ask whom (`urls`, by identity).
    """

    version: int
    identity: str
    round: int = 0
    table: Table = field(default_factory=dict)
    url: str = ""
    urls: dict[str, str] = field(default_factory=dict)


_decode = msgspec.msgpack.Decoder(_Claim).decode
_decode_table = msgspec.msgpack.Decoder(Table).decode


def distribute(members: Collection[str], count: int, before: Mapping[str, Sequence[int]]) -> Table:
    """Share partition numbers out among members, so that shares differ by one at most and as few as possible move.

    Who has too many gives up what came to it last: when a member comes back after others stood in for it, they give
    up what was its own.

    Args:
        members: their identities.
        count: how many partition numbers there are.
        before: what each had, in the order it came; also of those who are gone.
    """
    taken: set[int] = set()
    had: Table = {}
    for member in sorted(members):
        had[member] = [n for n in dict.fromkeys(before.get(member, ())) if 0 <= n < count and n not in taken]
        taken.update(had[member])
    share, extra = divmod(count, len(had))
    # The larger shares go to those who had most, because they would have to give up most.
    ranked = sorted(had, key=lambda member: (-len(had[member]), member))
    sizes = {member: share + (rank < extra) for rank, member in enumerate(ranked)}
    table = {member: numbers[: sizes[member]] for member, numbers in had.items()}
    kept = {n for numbers in table.values() for n in numbers}
    free = (n for n in range(count) if n not in kept)
    for member, numbers in table.items():
        numbers.extend(next(free) for _ in range(sizes[member] - len(numbers)))
    return table


class _Memory:
    """Keep what one member knows from one assignment to the next."""

    def __init__(self, identity: str) -> None:
        self.claim = _Claim(_VERSION, identity)
        self.urls: dict[str, str] = {}

    def learn(self, told: _Claim) -> None:
        self.claim = _Claim(_VERSION, self.claim.identity, told.round, told.table, self.claim.url)
        self.urls = told.urls


class StickyAssignor(AbstractPartitionAssignor):
    """Share partition numbers out for a group; to be had from `sticky_assignor`, because it has a memory."""

    name = "copartitioned-sticky"
    _memory: ClassVar[_Memory]

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member tells the leader: its topics, who it is, and what it knows."""
        return ConsumerProtocolMemberMetadata(0, sorted(topics), _encode(cls._memory.claim))

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign the partitions of all members' topics; the leader does it for the group.

        Raises:
            TailError: the members read different topics, or the topics have different numbers of partitions.
        """
        topics = _one_subscription(members)
        count = _one_count(cluster, topics)
        claims = {member_id: _claim_of(member_id, members[member_id].user_data) for member_id in sorted(members)}
        identities = _identities(claims)
        newest, before = _newest(claims.values())
        table = distribute(identities.values(), count, before)
        urls = {identities[member_id]: claim.url for member_id, claim in claims.items() if claim.url}
        told = _encode(_Claim(_VERSION, "", newest + 1, table, urls=urls))
        return {
            member_id: ConsumerProtocolMemberAssignment(
                0, [(topic, sorted(table[identity])) for topic in topics if table[identity]], told
            )
            for member_id, identity in identities.items()
        }

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember what the leader says about this round."""
        told = _read(assignment.user_data)
        if told is not None:
            cls._memory.learn(told)

    @classmethod
    def advertise(cls, url: str) -> None:
        """Tell the group, with the next round, where this member's guard is to be asked."""
        cls._memory.claim.url = url

    @classmethod
    def owner_of(cls, number: int) -> str | None:
        """Return where the guard of the member that has a partition number is to be asked, if that is known."""
        memory = cls._memory
        for identity, numbers in memory.claim.table.items():
            if number in numbers:
                return memory.urls.get(identity)
        return None


def sticky_assignor(instance_id: str | None = None) -> type[StickyAssignor]:
    """Return an assignor for one consumer, and for those that are opened in its place.

    aiokafka's assignors are classes, not objects: what they remember, all consumers of a process would share.

    Args:
        instance_id: the member's `group_instance_id`: under it a restarted member is known again. None: a member is
            known as long as its process lives.
    """
    # The prefixes keep an instance from being taken for another one's made-up name.
    identity = f"instance {instance_id}" if instance_id is not None else f"process {uuid.uuid4().hex}"
    return type("StickyAssignor", (StickyAssignor,), {"_memory": _Memory(identity)})


def _read(data: bytes | None) -> _Claim | None:
    try:
        claim = _decode(data or b"")
    except msgspec.MsgspecError:
        return None
    return claim if claim.version == _VERSION else None


def _claim_of(member_id: str, data: bytes | None) -> _Claim:
    claim = _read(data)
    if claim is None:
        log.warning("a member's claim cannot be read; it is taken for a new one", member=member_id)
        return _Claim(_VERSION, member_id)
    return claim


def _identities(claims: Mapping[str, _Claim]) -> dict[str, str]:
    """Return members' identities; whoever gives one that is taken is known by its member id for this round."""
    identities: dict[str, str] = {}
    taken: set[str] = set()
    for member_id, claim in claims.items():
        identity = member_id if claim.identity in taken else claim.identity
        taken.add(identity)
        identities[member_id] = identity
    return identities


def _newest(claims: Iterable[_Claim]) -> tuple[int, Table]:
    """Return the newest round that any member knows, and its table.

    There can be two of one number, where the leader of the first failed before it could tell all: the one that more
    members know counts, because their state is as it says.
    """
    votes = Counter((claim.round, _encode(claim.table)) for claim in claims)
    number, table = max(votes, key=lambda what: (what[0], votes[what], what[1]))
    return number, _decode_table(table)


def _one_subscription(members: Mapping[str, ConsumerProtocolMemberMetadata]) -> list[str]:
    by_topics: dict[tuple[str, ...], str] = {}
    for member_id, metadata in sorted(members.items()):
        by_topics.setdefault(tuple(sorted(metadata.subscription)), member_id)
    if len(by_topics) != 1:
        listed = "; ".join(f"{member_id} reads {', '.join(topics)}" for topics, member_id in by_topics.items())
        raise _refused(
            "The members of the group read different topics, so that a partition number's topics cannot be kept"
            f" together: {listed}. Give all replicas the same topics.events and topics.compactions, or those that"
            " differ another tail.group_id."
        )
    return list(next(iter(by_topics)))


def _one_count(cluster: ClusterMetadata, topics: Sequence[str]) -> int:
    found = {topic: set(cluster.partitions_for_topic(topic) or ()) for topic in topics}
    if unknown := [topic for topic, numbers in found.items() if not numbers]:
        raise _refused(
            f"The broker tells no partitions of {', '.join(unknown)}: is the topic there, and may we see it?"
        )
    counts = {topic: len(numbers) for topic, numbers in found.items()}
    try:
        check_equal(topics, counts)
    except TailError as error:
        raise _refused(str(error)) from None
    return next(iter(counts.values()))


def _refused(why: str) -> TailError:
    # Only the consumer that leads is told what its assignor raises, wrapped in a KafkaError.
    log.error("no partitions can be assigned", reason=why)
    return TailError(why)
