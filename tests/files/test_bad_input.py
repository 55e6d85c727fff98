"""Every kind of bad input in docs/bad-input.md: what becomes of it, and that the rest of the file is judged."""

import re
import tracemalloc
from pathlib import Path

import pytest

from sidecar.files.jsonl import MAX_LINE
from tests.files.support import ROOT, bad_action, record, run_check

GOOD = record(1).encode()
LAST = bad_action(3).encode()
DEEP = 200_000

# name in docs/bad-input.md: the bad line, what the reason says (None: the line is read), the rules that then fire
GAP = "log_gap"
CASES: dict[str, tuple[bytes, str | None, list[str]]] = {
    "torn line": (b'{"kind": "note", "session_id": "s", "se', r"torn line: the JSON breaks off after column 39", [GAP]),
    "NUL block": (b"\0" * 512, r"NUL bytes in columns 1 to 512", [GAP]),
    "NUL block before a record": (b"\0\0\0" + record(2).encode(), r"NUL bytes in columns 1 to 3", [GAP]),
    "two records on one line": (
        (record(2) + record(9)).encode(),
        rf"two records on one line: another one begins in column {len(record(2)) + 1}",
        [GAP],
    ),
    "half a record and a whole one": (
        b'{"kind": "note", "session_id": "s", "se' + record(2).encode(),
        r"two records on one line: another one begins in column 40",
        [GAP],
    ),
    "half a record that ends at a value": (
        b'{"kind": "note", "session_id": "s", "seq": ' + record(2).encode(),
        r"two records on one line: another one begins in column 44",
        [GAP],
    ),
    "two half records": (
        b'{"kind": "note", "session_id": "s", "se{"kind": "note", "sess',
        r"two records on one line: another one begins in column 40",
        [GAP],
    ),
    "10 MB line": (record(2, text="x" * 10_000_000).encode(), None, []),
    "line over the limit": (record(2, text="x" * MAX_LINE).encode(), r"line too long: 16,777,\d+ bytes", [GAP]),
    "invalid UTF-8": (b'{"kind": "note", "session_id": "s", "seq": 2, "x": "\xff\xfe"}', r"Invalid UTF-8", [GAP]),
    "half a surrogate pair": (
        b'{"kind": "note", "session_id": "s", "seq": 2, "x": "\\ud800 "}', r"half of a surrogate pair", [GAP]
    ),
    "wrong type": (record(2, "action", action_id=7).encode(), r"Expected `str`, got `int` - at `\$\.action_id`", [GAP]),
    "wrong type of the position": (b'{"kind": "note", "session_id": "s", "seq": "2"}', r"`\$\.seq`", [GAP]),
    "fraction for an integer": (b'{"kind": "note", "session_id": "s", "seq": 2.0}', r"`\$\.seq`", [GAP]),
    "missing field": (record(2, "action").encode(), r"missing required field `action_id`", [GAP]),
    "out of bounds": (
        record(2, "probe", node_id="n", probes=1, recalled=2).encode(), r"`recalled` 2 is greater than", [GAP]
    ),
    "no kind": (b'{"session_id": "s", "seq": 2}', r"the field `kind` is missing", [GAP]),
    "not an object": (b"[1, 2]", r"expected a JSON object, got an array", [GAP]),
    "not JSON": (b"hello", r"not JSON", [GAP]),
    "NaN": (b'{"kind": "note", "session_id": "s", "seq": NaN}', r"not JSON", [GAP]),
    "deep nesting": (
        b'{"kind": "note", "session_id": "s", "seq": 2, "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        r"nested too deeply",
        [GAP],
    ),
    "nesting that can be read": (
        b'{"kind": "note", "session_id": "s", "seq": 2, "x": ' + b"[" * 200 + b"]" * 200 + b"}", None, []
    ),
    "huge position": (
        b'{"kind": "note", "session_id": "s", "seq": 2305843009213693952}', r"<= 2305843009213693951", [GAP]
    ),
    "huge integer": (
        b'{"kind": "note", "session_id": "s", "seq": 2, "x": ' + b"9" * 5000 + b"}", r"outside of a double", [GAP]
    ),
    "duplicate keys": (
        b'{"kind": "note", "session_id": "s", "seq": 7, "seq": 2}', r"the key 'seq' is there twice", [GAP]
    ),
    "unknown kind": (record(2, "unheard-of", whatever=[1]).encode(), None, []),
    "unknown fields": (record(2, "action", action_id="a", colour="red").encode(), None, []),
    "unreadable time": (record(2, ts="yesterday").encode(), None, []),
    "empty lines": (b"\n  \n" + record(2).encode(), None, []),
    "carriage returns": (record(2).encode() + b"\r", None, []),
    "byte order mark in the middle": (b"\xef\xbb\xbf" + record(2).encode(), r"not JSON", [GAP]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, tmp_path: Path) -> None:
    bad, reason, rules = CASES[name]
    log = tmp_path / "log.jsonl"
    log.write_bytes(GOOD + b"\n" + bad + b"\n" + LAST + b"\n")
    checked = run_check(log)
    assert [line["rule"] for line in checked.lines] == [*rules, "action_unauthorized"]  # the rest is judged
    assert checked.code == 1
    if reason is None:
        assert "3 records read, 0 lines unreadable" in checked.err
        assert run_check(log, strict=True).code == 1
    else:
        assert re.search(re.escape(str(log)) + r":2: unreadable: .*" + reason, checked.err), checked.err
        assert "2 records read, 1 line unreadable" in checked.err
        assert run_check(log, strict=True).code == 2


def test_a_byte_order_mark_at_the_start_and_a_last_line_without_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n" + bad_action(2).encode())
    checked = run_check(log)
    assert checked.pairs == [("action_unauthorized", "a2")]
    assert "2 records read, 0 lines unreadable" in checked.err


def test_a_record_with_a_key_twice_takes_its_position_and_does_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"kind": "note", "kind": "action", "action_id": "a", "action_id": "b", "irreversible": true, '
                   '"session_id": "s", "seq": 1}\n')  # fmt: skip
    assert run_check(log).pairs == [("log_gap", "s")]


def test_braces_in_texts_are_not_taken_for_records(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    text = 'a {"kind": "note", "session_id": "s"} b'
    log.write_text(record(1, text=text, items=[{"kind": "x"}]) + "\n" + record(2, text=text)[:-1] + "\n")
    checked = run_check(log)
    assert "1 record read" in checked.err
    assert "two records" not in checked.err


def test_memory_of_a_line_over_the_limit_is_not_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("wb") as file:
        for _ in range(60):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + bad_action(1).encode())
    tracemalloc.start()
    checked = run_check(log, max_line=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "line too long: 60,000,000 bytes, the limit is 1,000,000" in checked.err
    assert checked.pairs == [("action_unauthorized", "a1")]
    assert peak < 8_000_000


def test_every_kind_is_documented() -> None:
    text = (ROOT / "docs" / "bad-input.md").read_text()
    documented = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    assert set(CASES) <= set(documented)
