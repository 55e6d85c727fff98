"""Snapshots: what is written comes back, and nothing that was damaged, moved or made elsewhere passes for one."""

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from sidecar.engine.state import Frozen
from sidecar.tail.envelope import BASE_KEY, MARKER_KEY, VERSION, session_key
from sidecar.tail.gather import Gathering
from sidecar.tail.messages import Message
from sidecar.tail.snapshots import Marker, Restored, SnapshotError, SnapshotWriter, origin_of

TOPIC = "agent.snapshots"
ORIGIN = origin_of("group", ("agent.events", "agent.compactions"), 4, 2)
AT = {"agent.events": 17, "agent.compactions": 5}

Log = list[tuple[bytes | None, bytes | None]]


def session(name: str, state: bytes = b"state", **more: object) -> Frozen:
    whole = {"status": "verified", "open_halts": 0, "waiting": False, "seen": 0.0, **more}
    return Frozen(session_id=name, state=state, **whole)  # type: ignore[arg-type]


def writer(
    next_number: int = 1, origin: int = ORIGIN, limit: int = 1_000_000, parts: Mapping[str, int] | None = None
) -> SnapshotWriter:
    return SnapshotWriter(TOPIC, 2, origin, next_number, limit, parts)


def written(messages: Iterable[Message]) -> Log:
    return [(message.key, message.value) for message in messages]


def read(log: Log, origin: int = ORIGIN) -> Restored:
    gathering = Gathering(TOPIC, 2, origin)
    for offset, (key, value) in enumerate(log):
        gathering.add(key, value, 100 + offset)
    return gathering.result()


def refused(log: Log) -> SnapshotError:
    with pytest.raises(SnapshotError) as caught:
        read(log)
    return caught.value


def compacted(log: Log) -> Log:
    """Return what is left of a log when only the newest record of every key is kept."""
    newest = {key: offset for offset, (key, _) in enumerate(log)}
    return [(key, value) for offset, (key, value) in enumerate(log) if newest[key] == offset]


def names(restored: Restored) -> list[str]:
    return sorted(kept.frozen.session_id for kept in restored.sessions)


def sealed(key: bytes, body: object) -> bytes:
    """Return a value with the right checksum, whatever stands in it."""
    packed = msgspec.msgpack.encode(body)
    return xxh3_64_digest(packed, xxh3_64_intdigest(key)) + packed


def test_a_round_comes_back_as_it_was_written() -> None:
    sessions = [
        session("a", b"\x00\xff", status="halted", open_halts=3, waiting=True),
        session("ü\n" * 50, b"x" * 10_000),
    ]
    made = writer()
    messages = list(made.round(sessions, [], AT, 2))
    assert {(message.topic, message.partition) for message in messages} == {(TOPIC, 2)}
    assert messages[-1].key == MARKER_KEY
    restored = read(written(messages))
    assert [kept.frozen for kept in restored.sessions] == sessions
    assert [kept.positions for kept in restored.sessions] == [AT, AT]
    assert restored.marker == Marker(3, AT, 2)
    assert restored.next_number == made.number == 4
    assert (restored.records, restored.size) == (made.records, made.size) == (3, sum(map(_size, messages)))
    assert restored.oversized == []


def _size(message: Message) -> int:
    return len(message.key or b"") + len(message.value)


def test_an_empty_partition_is_an_empty_state() -> None:
    restored = read([])
    assert (restored.sessions, restored.marker, restored.next_number) == ([], None, 1)


def test_the_newest_record_of_a_session_stands() -> None:
    made = writer()
    log = written(made.round([session("a", b"1"), session("b", b"1")], [], AT, 2))
    later = {"agent.events": 20, "agent.compactions": 9}
    log += written(made.round([session("b", b"2")], [], later, 2))
    for seen in (log, compacted(log)):
        restored = read(seen)
        assert {kept.frozen.session_id: (kept.frozen.state, kept.positions) for kept in restored.sessions} == {
            "a": (b"1", AT),
            "b": (b"2", later),
        }
        assert restored.marker == Marker(5, later, 2)


def test_dropped_sessions_are_gone_and_may_come_back() -> None:
    made = writer()
    log = written(made.round([session("a"), session("b")], [], AT, 2))
    log += written(made.round([], ["a"], AT, 1))
    assert (session_key("a"), None) in log
    assert names(read(log)) == names(read(compacted(log))) == ["b"]
    # Compaction drops a tombstone, too, in the end.
    assert names(read([(key, value) for key, value in compacted(log) if value is not None])) == ["b"]
    log += written(made.round([session("a", b"new")], [], AT, 2))
    assert names(read(log)) == ["a", "b"]


def test_what_is_newer_than_the_marker_counts() -> None:
    made = writer()
    log = written(made.decided([session("early")], AT))
    restored = read(log)
    assert (names(restored), restored.marker, restored.next_number) == (["early"], None, 2)
    log += written(made.round([session("a")], [], AT, 2))
    ahead = {"agent.events": 18, "agent.compactions": 5}
    log += written(made.decided([session("a", b"decided")], ahead))
    restored = read(log)
    assert restored.marker == Marker(3, AT, 2)
    assert {kept.frozen.session_id: kept.positions for kept in restored.sessions} == {"early": AT, "a": ahead}
    # A round that was cut off, in each place.
    whole = log + written(made.round([session("a", b"3"), session("c")], ["early"], ahead, 2))
    for end in range(len(log), len(whole)):
        assert read(whole[:end]).marker == Marker(3, AT, 2)
        assert read(compacted(whole[:end])).marker == Marker(3, AT, 2)


def test_tombstones_of_anything_else_are_no_damage() -> None:
    log = written(writer().round([session("a")], [], AT, 1))
    assert read([*log, (b"other", None), (None, None), (BASE_KEY, None)]).marker is not None
    assert read([*log, (MARKER_KEY, None)]).marker is None


# --- attacks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> Log:
    made = writer()
    log = written(made.round([session("a"), session("b")], [], AT, 2))
    return log + written(made.round([session("a", b"newer")], [], AT, 2))


def test_an_error_names_the_place_and_the_reason(log: Log) -> None:
    error = refused([*log, (b"s:c", b"nonsense"), (b"s:d", b"nonsense")])
    assert (error.topic, error.partition, error.offset, error.next_number) == (TOPIC, 2, 105, 6)
    assert "agent.snapshots/2@105" in str(error) and "checksum" in str(error) and "1 more" in str(error)


def test_a_record_truncated_anywhere_is_refused(log: Log) -> None:
    for place, (key, value) in enumerate(log):
        assert value is not None
        for end in range(len(value)):
            error = refused([*log[:place], (key, value[:end]), *log[place + 1 :]])
            assert error.offset == 100 + place and "checksum" in error.why
        assert "checksum" in refused([*log[:place], (key, value + b"\0"), *log[place + 1 :]]).why


def test_a_flipped_bit_anywhere_is_seen(log: Log) -> None:
    for place, (key, value) in enumerate(log):
        assert value is not None
        for bit in range(8 * len(value)):
            flipped = bytearray(value)
            flipped[bit // 8] ^= 1 << bit % 8
            assert refused([*log[:place], (key, bytes(flipped)), *log[place + 1 :]]).offset == 100 + place


@pytest.mark.parametrize("key", [session_key("b"), session_key("c"), session_key(""), MARKER_KEY, BASE_KEY])
def test_a_value_under_another_key_is_refused(log: Log, key: bytes) -> None:
    made = writer(6).decided([session("a")], AT)
    assert "written under another key" in refused([*log, (key, made[0].value)]).why
    marker = next(writer(6).round([], [], AT, 2))
    if key != MARKER_KEY:
        assert "written under another key" in refused([*log, (key, marker.value)]).why


@pytest.mark.parametrize("key", [None, b"", b"s", b"a", b"Marker", b"\xff"])
def test_a_key_that_no_snapshot_has_is_refused(log: Log, key: bytes | None) -> None:
    assert "its key" in refused([*log, (key, log[0][1])]).why


@pytest.mark.parametrize(
    "origin",
    [
        origin_of("other", ("agent.events", "agent.compactions"), 4, 2),
        origin_of("group", ("agent.events",), 4, 2),
        origin_of("group", ("agent.events", "agent.compactions"), 8, 2),
        origin_of("group", ("agent.events", "agent.compactions"), 4, 3),
    ],
)
def test_a_foreign_record_is_refused(log: Log, origin: int) -> None:
    for message in writer(6, origin).round([session("c")], [], AT, 3, anew=True):
        assert "foreign" in refused([*log, (message.key, message.value)]).why
    with pytest.raises(SnapshotError, match=r"/2@100 cannot be used: it is foreign"):
        read(log, origin)


def test_the_origin_does_not_depend_on_the_order_of_topics() -> None:
    assert origin_of("group", ("agent.compactions", "agent.events"), 4, 2) == ORIGIN


def test_an_older_record_written_again_is_refused(log: Log) -> None:
    for older in (log[0], log[2]):
        error = refused([*log, older])
        assert error.offset == 105 and "older record" in error.why
        assert "older record" in refused(compacted([*log, older])).why
    # Also one of a session that has been dropped since.
    dropped = [*log, *written(writer(6).round([], ["b"], AT, 1))]
    for seen in (dropped, compacted(dropped)):
        assert "older record" in refused([*seen, log[1]]).why


def test_a_number_used_twice_is_refused(log: Log) -> None:
    made = writer(5).decided([session("z")], AT)
    assert "number is 5, after 5" in refused([*log, *written(made)]).why


def test_a_record_repeated_by_its_producer_changes_nothing(log: Log) -> None:
    """What was not acknowledged is sent again, from the first on, as often as it takes."""
    assert read([*log, *log[3:]]) == msgspec.structs.replace(read(log), records=7, size=read([*log, *log[3:]]).size)
    begun = written(writer(6).round([session("a", b"anew"), session("b")], [], AT, 2, anew=True))
    for again in range(1, len(begun) + 1):
        restored = read([*log, *begun[:again], *begun])
        assert restored.sessions == read([*log, *begun]).sessions and restored.marker == read([*log, *begun]).marker
    assert read([*log, *begun, begun[-1]]).marker == Marker(9, AT, 2)


@pytest.mark.parametrize("key", [session_key("c"), MARKER_KEY, BASE_KEY])
def test_another_version_is_refused_whatever_it_looks_like(log: Log, key: bytes) -> None:
    for body in ([VERSION + 1, ORIGIN, 9, {}, "", 0, False, b""], [VERSION + 1000], [2, {"quite": "different"}]):
        why = refused([*log, (key, sealed(key, body))]).why
        assert f"version {body[0]}" in why and f"reads version {VERSION}" in why


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        [],
        [VERSION, ORIGIN],
        [VERSION, ORIGIN, "9", {}, "", 0, False, b""],
        [VERSION, ORIGIN, 9, [], "", 0, False, b""],
        [VERSION, ORIGIN, 9, {"t": -0.5}, 1, 0, False, b""],
        [VERSION, ORIGIN, 9, {}, "", 0, 0, b""],
        [VERSION, ORIGIN, 9, {}, "", 0, False, "text"],
    ],
)
def test_a_body_of_another_shape_is_refused(log: Log, body: object) -> None:
    key = session_key("c")
    assert "cannot be read" in refused([*log, (key, sealed(key, body))]).why
    assert refused([*log, (b"s:\xff", sealed(b"s:\xff", [VERSION, ORIGIN, 9, {}, "", 0, False, b""]))]).offset == 105


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_nothing_that_others_write_passes_or_breaks_the_reader(key: bytes, value: bytes) -> None:
    assert refused([(key, value)]).offset == 100
    assert refused([(key, sealed(key, msgspec.Raw(value or b"\xc1")))]).offset == 100


def test_missing_sessions_are_noticed(log: Log) -> None:
    """As when the topic deletes by age instead of compacting by key."""
    error = refused([record for record in log if record[0] != session_key("b")])
    assert error.offset is None and "1 of the sessions" in error.why and "cleanup.policy" in error.why
    assert error.next_number == 6
    # One that was dropped before the marker is not counted by it, one dropped after it is.
    dropping = written(writer(6).round([], ["a"], AT, 1))
    assert names(read([*log, dropping[0]])) == ["b"]
    error = refused([record for record in [*log, *dropping] if record[0] != session_key("b")])
    assert "1 of the sessions" in error.why


# --- beginning anew, and what is too large --------------------------------------------------------


def test_after_a_refusal_a_task_begins_anew_and_what_stood_before_no_longer_counts(log: Log) -> None:
    bad: Log = [*log, (b"s:foreign", b"nonsense"), log[0]]
    error = refused(bad)
    made = writer(error.next_number)
    again = [*bad, *written(made.round([session("a", b"rebuilt"), session("c")], [], AT, 2, anew=True))]
    for seen in (again, compacted(again)):
        restored = read(seen)
        assert names(restored) == ["a", "c"] and restored.marker is not None and restored.next_number == made.number
    # Cut off in the middle: no marker, so that nobody takes it for the whole.
    assert read(again[:-1]).marker is None
    # What is bad after it counts again; beginning anew with an older record does not help.
    error = refused([*again, (b"s:foreign", b"nonsense")])
    assert error.offset == 100 + len(again) and "more" not in str(error)
    assert "older record" in refused([*again, *written(writer(3).round([], [], AT, 0, anew=True))[:1]]).why


def test_a_state_that_is_too_large_for_a_record_is_written_in_parts() -> None:
    made = writer(limit=1000)
    large = session("large", bytes(n % 251 for n in range(5000)), status="halted", open_halts=1)
    log = written(made.round([session("fits", b"x" * 300), large], [], AT, 2))
    assert all(len(key or b"") + len(value or b"") <= 1000 for key, value in log) and len(log) > 8
    restored = read(log)
    assert names(restored) == ["fits", "large"] and restored.sessions[1].frozen == large
    assert restored.parts == {"large": len(log) - 3} and made.too_large == 0
    # As many as it has now are left, also by a writer that has only read of the others.
    again = writer(restored.next_number, limit=1000, parts=restored.parts)
    log = compacted(log + written(again.round([session("large", b"y" * 1500)], [], AT, 2)))
    assert read(log).parts == {"large": 3} and read(log).sessions[1].frozen.state == b"y" * 1500
    log += written(again.round([], ["large"], AT, 1))
    assert {key for key, value in compacted(log) if value is not None} == {MARKER_KEY, b"s:fits"}


@pytest.mark.parametrize("compact", [False, True])
def test_a_state_in_parts_whose_writing_was_cut_off_is_the_one_before_or_is_missed(compact: bool) -> None:
    made = writer(limit=1000)
    log = written(made.round([session("a"), session("large", b"x" * 3000)], [], AT, 2))
    more = written(made.decided([session("large", b"y" * 5000)], AT))
    for count in range(len(more) + 1):
        cut = log + more[:count]
        cut = compacted(cut) if compact else cut
        if compact and 0 < count < len(more):
            assert "parts of the state of session 'large' are missing" in refused(cut).why
        else:
            (state,) = [kept.frozen.state for kept in read(cut).sessions if kept.frozen.session_id == "large"]
            assert state == (b"y" * 5000 if count == len(more) else b"x" * 3000)
    # What a producer without transactions sends again changes nothing.
    assert read([*log, *more, *more]).sessions[1].frozen.state == b"y" * 5000
    assert "older record" in refused([*log, *more, log[1]]).why


def test_parts_of_different_states_are_not_put_together() -> None:
    made = writer(limit=1000)
    log = written(made.decided([session("large", b"x" * 3000)], AT)) + written(
        made.decided([session("large", b"y" * 3000)], AT)
    )
    for gone in range(len(log)):
        # A part that is lost is missed; the state before the last one was whole already.
        if gone == len(log) - 1:
            assert read(log[:gone]).sessions[0].frozen.state == b"x" * 3000
        elif gone < len(log) // 2:
            assert read(log[:gone] + log[gone + 1 :]).sessions[0].frozen.state == b"y" * 3000
        else:
            assert "are missing" in refused(log[:gone] + log[gone + 1 :]).why


def test_a_session_whose_id_leaves_no_room_for_its_state_is_told_apart_from_none() -> None:
    made = writer(limit=1000)
    long = "i" * 700
    log = written(made.round([session("fits", b"x" * 300), session(long, b"x" * 2000)], [], AT, 2))
    assert all(len(key or b"") + len(value or b"") <= 1000 for key, value in log)
    restored = read(log)
    assert names(restored) == ["fits", long] and restored.oversized == [long] and made.too_large == 1
    assert restored.sessions[1].frozen == session(long, b"")
    log += written(made.round([session(long, b"")], [], AT, 2))
    assert read(log).sessions[1].number > restored.sessions[1].number


def test_an_id_that_is_too_large_is_left_out_and_not_missed() -> None:
    made = writer(limit=1000)
    huge = "i" * 2000
    log = written(made.round([session("a"), session(huge)], [], AT, 2))
    restored = read(log)
    assert names(restored) == ["a"] and restored.marker is not None and restored.marker.sessions == 1
    log += written(made.round([], [huge], AT, 1))
    assert all(key is not None and len(key) < 1000 for key, _ in log)
    assert read(log).marker == Marker(made.number - 1, AT, 1)


# --- any history ----------------------------------------------------------------------------------

NAMES = st.sampled_from("abcdef")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["round", "decided", "aborted", "restart", "anew"]),
        st.sets(NAMES),
        st.sets(NAMES),
        st.binary(min_size=1, max_size=3),
        st.sampled_from([1, 300, 800]),
    ),
    max_size=12,
)


@given(STEPS, st.booleans())
def test_whatever_was_written_is_what_is_read(
    steps: list[tuple[str, set[str], set[str], bytes, int]], compact: bool
) -> None:
    limit = 500
    made, state, log, at = writer(limit=limit), dict[str, bytes](), Log(), 0
    for what, changed, dropped, content, size in steps:
        at += 1
        content *= size
        positions = {"agent.events": at}
        if what == "restart":
            restored = read(log)
            made = writer(restored.next_number, limit=limit, parts=restored.parts)
            continue
        if what == "anew":
            log.append((b"s:q", b"nonsense"))
            made = writer(refused(log).next_number, limit=limit)
        now = {**state, **dict.fromkeys(changed, content)}
        frozen = [session(name, now[name]) for name in sorted(now if what == "anew" else changed)]
        if what == "decided":
            log += written(made.decided(frozen, positions))
            state = now
            continue
        gone = sorted(dropped & set(now))
        now = {name: content for name, content in now.items() if name not in gone}
        records = written(made.round(frozen, gone, positions, len(now), anew=what == "anew"))
        if what != "aborted":
            state, log = now, log + records
        if compact:
            log = compacted(log)
    restored = read(log)
    assert {kept.frozen.session_id: kept.frozen.state for kept in restored.sessions} == state
    assert restored.next_number <= made.number
