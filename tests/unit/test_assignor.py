"""The assignor: a partition number's topics stay together, shares are even, and nothing moves without need."""

from collections.abc import Iterable, Mapping
from itertools import combinations, permutations
from typing import Any, cast

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tail.assignor import StickyAssignor, Table, distribute, sticky_assignor
from sidecar.tail.errors import TailError

TOPICS = ("agent.events", "agent.compactions")
Shares = dict[str, list[int]]


class Cluster:
    """What an assignor asks of aiokafka's."""

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._counts.get(topic.removeprefix("agent."))
        return None if count is None else set(range(count))


class Group:
    """A consumer group whose members meet in rounds; all they tell each other goes through bytes."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.members: dict[str, type[StickyAssignor]] = {}
        self.shares: Shares = {}
        self._made = 0

    def join(self, assignor: type[StickyAssignor] | None = None) -> str:
        self._made += 1
        member_id = f"member-{self._made:03}"
        self.members[member_id] = assignor or sticky_assignor()
        return member_id

    def leave(self, member_id: str) -> type[StickyAssignor]:
        return self.members.pop(member_id)

    def rebalance(self, leader: str | None = None, deaf: Iterable[str] = ()) -> Shares:
        """Assign; the `deaf` are not told what came of it."""
        claims = {name: _claim(assignor) for name, assignor in self.members.items()}
        by = self.members[leader or next(iter(self.members))]
        cluster = cast(Any, Cluster(events=self.partitions, compactions=self.partitions))
        assigned = {
            name: ConsumerProtocolMemberAssignment.decode(made.encode())
            for name, made in by.assign(cluster, claims).items()
        }
        assert set(assigned) == set(self.members)
        for name in set(assigned) - set(deaf):
            self.members[name].on_assignment(assigned[name])
        self.shares = {name: _numbers(made) for name, made in assigned.items()}
        return self.shares


def _claim(assignor: type[StickyAssignor], topics: Iterable[str] = TOPICS) -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata.decode(assignor.metadata(topics).encode())


def _numbers(assignment: ConsumerProtocolMemberAssignment) -> list[int]:
    """Return the partition numbers of an assignment, which have to be the same for both topics."""
    by_topic: Mapping[str, list[int]] = dict(assignment.assignment)
    if not by_topic:
        return []
    assert set(by_topic) == set(TOPICS)
    assert by_topic[TOPICS[0]] == by_topic[TOPICS[1]] == sorted(by_topic[TOPICS[0]])
    return by_topic[TOPICS[0]]


def even(shares: Iterable[list[int]], count: int) -> bool:
    """Return whether every number is somebody's, and nobody has two more than another."""
    lists = list(shares)
    sizes = [len(share) for share in lists]
    return sorted(n for share in lists for n in share) == list(range(count)) and max(sizes) - min(sizes) <= 1


def stayed(before: Mapping[str, list[int]], after: Mapping[str, list[int]]) -> int:
    return sum(len(set(before.get(name, ())) & set(share)) for name, share in after.items())


MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
COUNTS = st.integers(0, 20)
TABLES = st.dictionaries(st.sampled_from("abcdefghxyz"), st.lists(st.integers(-2, 25), max_size=12), max_size=8)


@given(MEMBERS, COUNTS, TABLES)
def test_any_past_ends_in_even_shares(members: list[str], count: int, before: Table) -> None:
    table = distribute(members, count, before)
    assert set(table) == set(members) and even(table.values(), count)
    assert distribute(members[::-1], count, dict(reversed(before.items()))) == table
    assert distribute(members, count, table) == table


@given(MEMBERS, COUNTS, st.data())
def test_as_few_move_as_even_shares_allow(members: list[str], count: int, data: st.DataObject) -> None:
    owners = [data.draw(st.sampled_from([*members, "gone"]), label=str(n)) for n in range(count)]
    before: Table = {}
    for number, owner in enumerate(owners):
        before.setdefault(owner, []).append(number)
    share, extra = divmod(count, len(members))
    # The best that any choice of who gets one more could keep.
    best = max(
        sum(min(len(before.get(name, ())), share + (name in larger)) for name in members)
        for larger in combinations(members, extra)
    )
    assert stayed(before, distribute(members, count, before)) == best


@pytest.mark.parametrize("partitions", [1, 4, 12, 64])
def test_members_that_join_and_leave_move_no_more_than_they_must(partitions: int) -> None:
    group = Group(partitions)
    first = group.join()
    assert group.rebalance() == {first: list(range(partitions))}
    for _ in range(4):
        before = dict(group.shares)
        new = group.join()
        after = group.rebalance()
        assert even(after.values(), partitions)
        assert stayed(before, after) == partitions - len(after[new])
    for leaver in list(group.members)[:4]:
        before = dict(group.shares)
        group.leave(leaver)
        after = group.rebalance()
        assert even(after.values(), partitions)
        assert all(set(before[name]) <= set(after[name]) for name in after)


def test_a_member_that_comes_back_gets_what_it_had_and_the_others_keep_theirs() -> None:
    """What came last goes first, so those who stood in for it give up just that."""
    group = Group(12)
    away = sticky_assignor("replica-1")
    group.join(sticky_assignor("replica-0"))
    one = group.join(away)
    group.join(sticky_assignor("replica-2"))
    before = dict(group.rebalance())
    group.leave(one)
    group.rebalance()
    back = group.join(sticky_assignor("replica-1"))  # a new process
    after = group.rebalance()
    assert after[back] == before[one]
    assert {name: after[name] for name in before if name != one} == {n: s for n, s in before.items() if n != one}


@pytest.mark.parametrize("leader", range(6))
def test_static_members_that_have_lost_their_memory_keep_their_shares(leader: int) -> None:
    group = Group(12)
    ids = [group.join(sticky_assignor(f"replica-{replica}")) for replica in range(6)]
    before = dict(group.rebalance())
    for replica in range(5):
        group.members[ids[replica]] = sticky_assignor(f"replica-{replica}")
    assert group.rebalance(leader=ids[leader]) == before


def test_stale_claims_lose_against_newer_ones() -> None:
    group = Group(6)
    stays, goes, third = group.join(), group.join(), group.join()
    group.rebalance()
    had = group.shares[goes]
    away = group.leave(goes)
    group.rebalance()
    assert set(had) <= set(group.shares[stays] + group.shares[third])
    # It comes back under another member id, does not know that it was away, and leads.
    group.join(away)
    before = dict(group.shares)
    after = group.rebalance(leader=list(group.members)[-1])
    assert stayed(before, after) == 4 and even(after.values(), 6)


def test_a_newer_round_counts_however_many_remember_an_older_one() -> None:
    group = Group(24)
    group.join()
    away = [group.join() for _ in range(3)]
    group.rebalance()
    stale = [group.leave(name) for name in away]
    group.join()
    before = dict(group.rebalance())
    for assignor in stale:
        group.join(assignor)
    after = group.rebalance(leader=list(group.members)[-1])
    # The two had twelve each, and keep the five that are due to them.
    assert stayed(before, after) == 10
    # So does a round that only its leader was told.
    others, told = list(group.members), group.join()
    before = dict(group.rebalance(leader=told, deaf=others))
    assert group.rebalance() == before


def test_of_two_rounds_of_one_number_the_one_counts_that_most_were_told() -> None:
    group = Group(6)
    told, others = group.join(), [group.join() for _ in range(3)]
    group.rebalance()
    # A round that only its leader hears of, then the same number again without it.
    newcomer = group.join()
    group.rebalance(leader=told, deaf=[*others, newcomer])
    lost = group.leave(told)
    group.rebalance()
    before = dict(group.shares)
    back = group.join(lost)
    after = group.rebalance(leader=back)
    assert stayed(before, after) == 6 - len(after[back])


@given(st.integers(1, 12), st.lists(st.integers(0, 99), min_size=1, max_size=15), st.randoms())
def test_any_history_keeps_shares_even_and_moves_few(partitions: int, steps: list[int], random: Any) -> None:
    group = Group(partitions)
    group.join()
    group.rebalance()
    for step in steps:
        before = dict(group.shares)
        if step % 2 and len(group.members) > 1:
            group.leave(sorted(group.members)[step % len(group.members)])
        else:
            group.join()
        deaf = [name for name in group.members if step % 7 == 0 and random.random() < 0.5]
        after = group.rebalance(leader=random.choice(sorted(group.members)), deaf=deaf)
        assert even(after.values(), partitions)
        if not deaf and all(step % 7 for step in steps):
            gone = [n for name, share in before.items() if name not in after for n in share]
            new = [n for name, share in after.items() if name not in before for n in share]
            assert partitions - stayed(before, after) == max(len(gone), len(new))


def test_the_outcome_does_not_depend_on_the_leader_or_on_the_order_of_members() -> None:
    assignors = {f"m{i}": sticky_assignor(f"i{i}") for i in range(4)}
    cluster = cast(Any, Cluster(events=7, compactions=7))
    claims = {name: _claim(assignor) for name, assignor in assignors.items()}
    outcomes = [
        {name: made.encode() for name, made in leader.assign(cluster, {n: claims[n] for n in order}).items()}
        for leader in assignors.values()
        for order in permutations(claims)
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_consumers_of_one_process_do_not_share_a_memory() -> None:
    group = Group(4)
    one, two = group.join(), group.join()
    group.rebalance()
    alone = Group(4)
    alone.members = {one: group.members[one]}
    alone.rebalance()
    claims = [_claim(group.members[name]).user_data for name in (one, two)]
    assert claims[0] != claims[1] and len({assignor.name for assignor in group.members.values()}) == 1


def test_two_members_under_one_identity_get_a_share_each() -> None:
    group = Group(4)
    same = sticky_assignor("replica-1")
    group.join(same), group.join(same)
    assert even(group.rebalance().values(), 4) and even(group.rebalance().values(), 4)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x92\x01\x02", b"\x94\x02\xa1i\x07\x80"])
def test_a_claim_that_cannot_be_read_is_no_claim(data: bytes) -> None:
    good = sticky_assignor()
    claims = {"good": _claim(good), "bad": ConsumerProtocolMemberMetadata(0, sorted(TOPICS), data)}
    made = good.assign(cast(Any, Cluster(events=4, compactions=4)), claims)
    assert even([_numbers(assignment) for assignment in made.values()], 4)
    before = _claim(good).user_data
    good.on_assignment(ConsumerProtocolMemberAssignment(0, [], data))
    assert _claim(good).user_data == before


def test_members_that_read_different_topics_are_refused() -> None:
    one, two = sticky_assignor(), sticky_assignor()
    claims = {"m1": _claim(one), "m2": _claim(two, ["agent.events", "other"])}
    with pytest.raises(TailError, match=r"m1 reads agent.compactions, agent.events; m2 reads agent.events, other"):
        one.assign(cast(Any, Cluster(events=4, compactions=4)), claims)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"events": 4, "compactions": 5}, "agent.compactions has 5 and agent.events has 4"),
        ({"events": 4}, "no partitions of agent.compactions"),
        ({"events": 4, "compactions": 0}, "no partitions of agent.compactions"),
    ],
)
def test_topics_of_different_size_are_refused(counts: dict[str, int], says: str) -> None:
    one = sticky_assignor()
    with pytest.raises(TailError, match=says):
        one.assign(cast(Any, Cluster(**counts)), {"m1": _claim(one)})
