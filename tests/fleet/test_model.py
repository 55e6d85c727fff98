"""Rows and sums come out as worked out plainly, whatever is repeated, interleaved, crashed or written by a zombie."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.fleet.groups import Partials
from sidecar.fleet.model import dump, join, load
from sidecar.fleet.shard import MARKER, ROLES, Shard, Unusable
from tests.fleet.compare import expected_rows, groups_of, rows_of
from tests.fleet.histories import Message, history
from tests.fleet.naive import Read, groups, sessions

TOPICS = {role: f"agent.{role}" for role in ROLES}
Topics = dict[str, list[Message]]


def naive_of(topics: Topics) -> dict[str, dict[str, object]]:
    return sessions(Read(m.role, m.key, m.value, m.at) for role in ROLES for m in topics[role])


def end_of(topics: Topics) -> float:
    return max((m.at for messages in topics.values() for m in messages), default=1_800_000_000.0)


def take_all(shard: Shard, topics: Topics, chance: random.Random, upto: int | None = None) -> None:
    """Read topics on from a shard's positions, in an order of their own that keeps each topic's."""
    left = {role: shard.positions[role].next for role in ROLES}
    count = 0
    while upto is None or count < upto:
        ready = [role for role in ROLES if left[role] < len(topics[role])]
        if not ready:
            return
        role = chance.choice(ready)
        message = topics[role][left[role]]
        assert shard.take(role, message.key, message.value, left[role], message.at)
        left[role] += 1
        count += 1


def assert_right(shard: Shard, topics: Topics) -> None:
    made, now = naive_of(topics), end_of(topics)
    assert rows_of(shard) == expected_rows(made)
    assert groups_of(shard.partials.groups, now) == groups(made, now)
    again = Partials()
    for row in shard.shelf.rows():
        again.add(row)
    assert groups_of(again.groups, now) == groups_of(shard.partials.groups, now)


class Changelog:
    """A changelog partition: what was written, in its order, before or after compaction."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

    def commit(self, shard: Shard, chance: random.Random, *, crash: bool) -> None:
        """Write what has changed; a crash may come before the positions, and among the rows."""
        batch = shard.batch()
        rows = list(batch.rows.items())
        if crash:
            rows = rows[: chance.randint(0, len(rows))]
        self.records += [(session_id.encode(), value) for session_id, value in rows]
        if not crash:
            self.records.append((MARKER, batch.positions))
            shard.written(batch)

    def compact(self) -> None:
        newest = {key: i for i, (key, _) in enumerate(self.records)}
        self.records = [record for i, record in enumerate(self.records) if newest[record[0]] == i]

    def recovered(self) -> Shard:
        shard = Shard(0, TOPICS)
        for key, value in self.records:
            shard.apply(key, value)
        shard.restored()
        return shard


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_any_interleaving_and_repetition_comes_to_the_same(seed: int, order: int) -> None:
    topics = history(seed)
    shard = Shard(0, TOPICS)
    take_all(shard, topics, random.Random(order))
    assert_right(shard, topics)
    # And what was read already changes nothing when it is read again.
    before = rows_of(shard)
    for role in ROLES:
        for offset, message in enumerate(topics[role]):
            assert not shard.take(role, message.key, message.value, offset, message.at)
    for role in ROLES:
        shard.positions[role].next = 0  # as after a crash before the positions were written
    take_all(shard, topics, random.Random(order + 1))
    assert rows_of(shard) == before
    assert_right(shard, topics)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_crashes_lose_and_repeat_nothing(seed: int, order: int) -> None:
    topics, chance, changelog = history(seed), random.Random(order), Changelog()
    shard = changelog.recovered()
    for _ in range(6):
        take_all(shard, topics, chance, upto=chance.randint(0, 40))
        match chance.choice(("commit", "crash", "crash in a commit")):
            case "commit":
                changelog.commit(shard, chance, crash=False)
            case "crash":
                shard = changelog.recovered()
            case _:
                changelog.commit(shard, chance, crash=True)
                shard = changelog.recovered()
        if chance.random() < 0.3:
            changelog.compact()
    take_all(shard, topics, chance)
    assert_right(shard, topics)
    changelog.commit(shard, chance, crash=False)
    changelog.compact()
    assert_right(changelog.recovered(), topics)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_a_zombie_that_writes_on_takes_nothing_back(seed: int, order: int) -> None:
    """Somebody who has lost the partition writes rows and positions of long ago behind those of who has it now."""
    topics, chance, changelog = history(seed), random.Random(order), Changelog()
    zombie = changelog.recovered()
    take_all(zombie, topics, chance, upto=30)
    owner = changelog.recovered()
    take_all(owner, topics, chance, upto=60)
    changelog.commit(owner, chance, crash=False)
    changelog.commit(zombie, chance, crash=chance.random() < 0.5)
    third = changelog.recovered()
    take_all(third, topics, chance)
    assert_right(third, topics)
    # The owner sees that somebody else has written, and writes everything again: so also after compaction.
    owner.write_all()
    changelog.commit(owner, chance, crash=False)
    changelog.compact()
    fourth = changelog.recovered()
    take_all(fourth, topics, chance)
    assert_right(fourth, topics)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_rows_join_in_any_order(seed: int, order: int) -> None:
    topics, chance = history(seed, sessions=1), random.Random(order)
    shard, rows = Shard(0, TOPICS), []
    for _ in range(4):
        take_all(shard, topics, chance, upto=chance.randint(1, 20))
        rows += [load(dump(row)) for row in shard.shelf.rows()]
    other = Shard(0, TOPICS)
    take_all(other, topics, chance, upto=chance.randint(1, 60))
    rows += [load(dump(row)) for row in other.shelf.rows()]
    results = []
    for _ in range(3):
        chance.shuffle(rows)
        joined = rows[0]
        for row in (*rows, *chance.sample(rows, len(rows))):
            joined = join(joined, row)
        results.append(dump(joined))
    assert results[0] == results[1] == results[2]


def test_a_session_that_is_forgotten_leaves_the_sums() -> None:
    topics = history(5)
    shard = Shard(0, TOPICS)
    take_all(shard, topics, random.Random(1))
    assert shard.partials.groups
    for name in list(shard.index):
        shard.remove(name)
    assert len(shard.shelf) == 0 and shard.index == {} and not shard.concerned
    assert {key: partial.sessions for key, partial in shard.partials.groups.items() if partial.sessions} == {}
    assert groups_of(shard.partials.groups, end_of(topics)) == {}


def test_a_message_without_a_value_on_the_topic_of_sessions_forgets_the_session() -> None:
    topics = history(6, sessions=2)
    shard = Shard(0, TOPICS)
    take_all(shard, topics, random.Random(1))
    gone, stays = sorted(shard.index)
    shard.take("sessions", gone.encode(), None, len(topics["sessions"]), end_of(topics))
    assert set(rows_of(shard)) == {stays}
    assert shard.batch().rows[gone] is None


def test_sessions_expire() -> None:
    topics = history(7)
    shard = Shard(0, TOPICS)
    take_all(shard, topics, random.Random(1))
    oldest = min(entry.last_seen for entry in shard.index.values())
    assert shard.expire(oldest) == 0
    assert shard.expire(oldest + 0.001) == 1
    assert shard.expire(end_of(topics) + 1) == 2


@pytest.mark.parametrize(
    ("role", "key", "value", "why"),
    [
        ("findings", b"s", b"{", "truncated"),
        ("findings", b"s", b'{"finding_id": "f"}', "missing required field"),
        ("findings", b"s", None, "no value"),
        ("halts", b"s", b"[]", "array"),
        ("sessions", b"s", b'{"session_id": 5}', "got `int`"),
        ("sessions", None, None, "no session id"),
        ("sessions", b"\xff\xfe", None, "no session id"),
        ("halt_acks", None, b'{"halt_id": "h", "by": "a", "decision": "d"}', "no session id"),
        ("halt_acks", b"s", b"\x00\x01", "malformed"),
    ],
)
def test_what_cannot_be_read_is_named_and_passed(role: str, key: bytes | None, value: bytes | None, why: str) -> None:
    shard = Shard(0, TOPICS)
    with pytest.raises(Unusable, match=why):
        shard.take(role, key, value, 7, 0.0)  # type: ignore[arg-type]
    assert shard.positions[role].next == 8  # type: ignore[index]
    assert rows_of(shard) == {}


def test_a_topic_that_was_made_anew_is_read_from_its_begin() -> None:
    topics = history(8)
    shard = Shard(0, TOPICS)
    take_all(shard, topics, random.Random(1))
    ends = {role: len(topics[role]) for role in ROLES}
    assert shard.check_ends(ends) == []  # type: ignore[arg-type]
    assert shard.check_ends({**ends, "findings": 3}) == ["findings"]  # type: ignore[dict-item]
    before = rows_of(shard)
    # Its records are other ones now, with offsets that were taken before.
    again = history(9, name="other")
    for offset, message in enumerate(again["findings"]):
        shard.take("findings", message.key, message.value, offset, message.at)
    after = rows_of(shard)
    assert {name: row for name, row in after.items() if name in before} == before
    assert sum(row["findings"] for name, row in after.items() if name not in before) == len(
        {m.value and m.value.split(b'"finding_id":"')[1].split(b'"')[0] for m in again["findings"]}
    )


def test_positions_of_another_topic_are_not_taken_for_those_of_this() -> None:
    shard = Shard(0, TOPICS)
    take_all(shard, history(10), random.Random(1))
    renamed = Shard(0, {**TOPICS, "findings": "other.findings"})
    for session_id, value in shard.batch().rows.items():
        renamed.apply(session_id.encode(), value)
    renamed.apply(MARKER, shard.batch().positions)
    assert renamed.positions["findings"].next == 0 and renamed.positions["findings"].epoch == 1
    assert renamed.positions["halts"].next == shard.positions["halts"].next


def test_halts_are_known_from_a_compacted_topic() -> None:
    """Of a session only the last record is left: what it lists is open, though nothing is known of it."""
    topics = history(13, sessions=1, steps=40)
    last = topics["halts"][-1]
    shard = Shard(0, TOPICS)
    shard.take("halts", last.key, last.value, 50, last.at)
    expected = next(iter(naive_of(topics).values()))["open_halts"]
    assert next(iter(rows_of(shard).values()))["open_halts"] == expected
    row = next(iter(shard.shelf.rows()))
    unknown = [state for halt_id, state in row.open_halts() if not state.known]
    assert all(state.opened_at is None and state.listed_at == pytest.approx(last.at, abs=4) for state in unknown)


def test_a_row_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 7, and this program reads 1"):
        load(b"\x92\x07\x91\xa1s")
    with pytest.raises(ValueError, match="no row"):
        load(b"\xc1")


def test_evidence_that_is_too_long_is_cut_to_its_witness() -> None:
    finding = {
        "finding_id": "f",
        "rule": "edge_dropped",
        "severity": "error",
        "disposition": "rederive",
        "session_id": "s",
        "subject": {"type": "checkpoint", "id": "c"},
        "position": 1,
        "evidence": {"witness": list(range(100)), "edges": ["x" * 100] * 100},
    }
    shard = Shard(0, TOPICS)
    shard.take("findings", b"s", msgspec.json.encode(finding), 0, 1.0)
    row = next(iter(shard.shelf.rows()))
    (kept,) = row.findings.kept
    assert len(kept) < 4096 and msgspec.json.decode(kept)["evidence"] == {"cut": True, "witness": list(range(32))}


def test_what_is_kept_of_a_session_is_bounded() -> None:
    shard = Shard(0, TOPICS)
    for i in range(3000):
        finding = {
            "finding_id": f"f{i}",
            "rule": "idempotence_violation",
            "severity": "error",
            "disposition": "freeze",
            "session_id": "s",
            "subject": {"type": "node", "id": f"n{i}"},
            "position": i,
            "evidence": {"witness": [i], "text": "y" * 3000},
            "detected_at": "2027-01-15T08:00:00Z",
            "model": f"m{i}",
        }
        shard.take("findings", b"s", msgspec.json.encode(finding), i, 1.0)
    row = next(iter(shard.shelf.rows()))
    assert row.findings.total == 3000 and len(row.findings.seen) == 1024 and len(row.findings.kept) == 64
    assert len(row.findings.counts) == 16 and len(row.findings.frozen) == 32
    assert len(dump(row)) < 400_000
    assert (
        sum(
            partial.counts.within(300, 1_800_000_000.0).get("idempotence_violation", 0)
            for partial in shard.partials.groups.values()
        )
        == 3000
    )
