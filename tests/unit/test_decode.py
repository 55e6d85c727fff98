"""What a record's bytes must not leave open: a key that is there twice has two meanings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.protocol.decode import Unreadable, decode

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a:"\\\n{}[],é '), max_size=6)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))


@pytest.mark.parametrize(
    ("raw", "seq"),
    [
        (b'{"kind":"m","session_id":"s","seq":1,"a":1,"a":2}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"a" :1,"a":2}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"t":"\\u003a","t":"x"}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"t":{"a":1,"a":2}}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"t":[{"a":1,"a":2}]}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"ts":"never","a":1,"a":2}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"a":null,"a":2}', 1),
        (b'{"kind":"m","session_id":"s","seq":1,"seq":2}', None),
        (b'{"kind":"m","session_id":"s","seq":1,"s\\u0065q":2}', None),
        (b'{"kind":"revocation","session_id":"s","seq":1,"seq":2}', None),
    ],
)
def test_a_key_that_is_there_twice_is_refused(raw: bytes, seq: int | None) -> None:
    with pytest.raises(Unreadable, match="is there twice") as refused:
        decode(raw)
    assert (refused.value.session_id, refused.value.seq) == ("s", seq)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_what_has_each_key_once_is_read(fields: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    fields = {**fields, "kind": "note", "session_id": "s", "seq": 3, "tenant": None, "agent": "", "model": None}
    fields.pop("ts", None)
    assert decode(json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode())[0].seq == 3
