"""One message value in, one record and the digest of its content out; what cannot be read says why.

A record is decoded generically first: its digest has to cover every field, also those that no type
here knows, and has to be the same for the same content however it was written (key order, `null`).
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from sidecar.protocol.records import KINDS, MAX_INT, Opaque, Record

_IDS = frozenset(
    (
        *("session_id", "tenant", "agent", "model", "checkpoint_id", "node_id"),
        *("action_id", "precondition_id", "referent_id", "constraint_id", "fact_id", "call_key"),
    )
)

_BACKSLASH = 0x5C

_parse = msgspec.json.Decoder().decode
_canonical = msgspec.json.Encoder(order="deterministic").encode
_convert = msgspec.convert


MAX_DEPTH = 256
"""How deeply arrays and objects may be nested; a limit of our own, because the parser's depends on its caller."""
_TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} levels"


class _Position(msgspec.Struct):
    """Read only what tells which position an unreadable record takes."""

    session_id: Any = None
    seq: Any = None


_parse_position = msgspec.json.Decoder(_Position).decode


class Unreadable(Exception):
    """Say why a message is no record, and which position of which session it takes, if that can be read."""

    def __init__(self, reason: str, session_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.session_id = session_id
        self.seq = seq


def decode(raw: bytes | None) -> tuple[Record, int]:
    """Decode one message value.

    Args:
        raw: one JSON object in UTF-8.

    Returns:
        The record and the digest of its content (protocol: "Duplicates").

    Raises:
        Unreadable: it is not a record of the protocol; the reason names the field.
    """
    if raw is None:
        raise Unreadable("the message has no value")
    try:
        fields = _parse(raw)
    except msgspec.ValidationError:
        raise _beyond_limits(raw, "a number is outside of a double's range") from None
    except RecursionError:
        raise _beyond_limits(raw, _TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if type(fields) is not dict:
        raise Unreadable(f"expected a JSON object, got {_json_type(fields)}")
    if len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper(fields, MAX_DEPTH):
        raise _beyond_limits(raw, _TOO_DEEP)
    written = len(fields)
    if not all(fields.values()):  # a quick "nothing absent here" for most records
        values = fields.values()
        if None in values or "" in values:
            fields = {k: v for k, v in fields.items() if v is not None and not (v == "" and k in _IDS)}
    if "as_of_seq" in fields and "seq" in fields:
        del fields["as_of_seq"]
    dropped = written - len(fields)
    kind: Any = fields.get("kind")
    if kind == "summary":
        for name in ("facts", "retention"):
            if type(inner := fields.get(name)) is dict and None in inner.values():
                fields[name] = {k: v for k, v in inner.items() if v is not None}
                dropped += len(inner) - len(fields[name])
    try:
        cls, check = _KINDS.get(kind, _OPAQUE)
        if cls is Opaque and type(kind) is not str:
            raise TypeError
        record: Record = _convert(fields, cls)
    except TypeError:
        problem = "the field `kind` is missing" if kind is None else "`kind` must be a string"
        raise _unreadable_fields(raw, fields, problem) from None
    except msgspec.ValidationError as error:
        if "ts" not in fields or is_timestamp(fields["ts"]):
            raise _unreadable_fields(raw, fields, error) from None
        _refuse_repeated_keys(raw)  # what is encoded anew has each key once
        del fields["ts"]
        return decode(msgspec.json.encode(fields))
    if check is not None and (wrong := check(record)):
        raise _unreadable_fields(raw, fields, wrong)
    canonical = _canonical(fields)
    # Unless one is escaped (`\\u003a`), a colon in the one is a colon in the other; else the keys are counted.
    # (One byte is looked for much faster than several are.)
    if (_BACKSLASH in raw and b"\\u003" in raw) or raw.count(b":") != canonical.count(b":") + dropped:
        _refuse_repeated_keys(raw)
    return record, xxh3_64_intdigest(canonical)


_KEY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)


def _refuse_repeated_keys(raw: bytes) -> None:
    """Refuse an object that has a key twice: two readers may take different ones.

    Raises:
        Unreadable: there is one.
    """
    if sum(map(bool, _KEY.findall(raw))) == _count_keys(_parse(raw)):
        return
    repeated: list[str] = []
    top: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        top[:] = [key for key, _ in pairs]  # the outermost object comes last
        repeated.extend(key for key, count in Counter(top).items() if count > 1)
        return dict(pairs)

    fields = json.loads(raw, object_pairs_hook=look)
    unclear = {key for key in ("session_id", "seq") if top.count(key) > 1}
    where = _position(*(None if key in unclear else fields.get(key) for key in ("session_id", "seq")))
    raise Unreadable(f"the key {repeated[0]!r} is there twice", *where)


def _count_keys(value: Any) -> int:
    count, todo = 0, [value]
    while todo:
        inner = todo.pop()
        if type(inner) is dict:
            count += len(inner)
            inner = inner.values()
        elif type(inner) is not list:
            continue
        todo += [v for v in inner if type(v) is dict or type(v) is list]
    return count


def _range(record: Any) -> str | None:
    lo, hi = record.frontier_lo, record.frontier_hi
    return f"`frontier_lo` {lo} is greater than `frontier_hi` {hi}" if lo > hi else None


def _recalled(record: Any) -> str | None:
    if record.recalled <= record.probes:
        return None
    return f"`recalled` {record.recalled} is greater than `probes` {record.probes}"


def _polarity(record: Any) -> str | None:
    return "the field `polarity` is missing" if record.polarity is None and not record.retired else None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "summary": _range,
    "checkpoint": _range,
    "probe": _recalled,
    "constraint": _polarity,
}
_OPAQUE: tuple[type[Record], Callable[[Any], str | None] | None] = (Opaque, None)
_KINDS = {kind: (cls, _CHECKS.get(kind)) for kind, cls in KINDS.items()}


def is_timestamp(value: object) -> bool:
    """Tell whether a value is an RFC 3339 timestamp with an offset."""
    try:
        return type(value) is str and _convert(value, datetime).tzinfo is not None
    except msgspec.ValidationError:
        return False


def _beyond_limits(raw: bytes, reason: str) -> Unreadable:
    """Refuse what is JSON and goes beyond a limit; its position can be read all the same.

    Not where a name stands there twice, at whatever level, or could with an escape: which one counts is not known.
    """
    try:
        position = _parse_position(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Unreadable(reason)
    escaped = any(letters in raw for letters in (b"\\u005", b"\\u006", b"\\u007"))
    session_id = None if escaped or raw.count(b'"session_id"') > 1 else position.session_id
    return Unreadable(reason, *_position(session_id, None if raw.count(b'"seq"') > 1 else position.seq))


def _deeper(value: Any, levels: int) -> bool:
    """Tell whether a value is nested more deeply than so many levels."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not layer:
            return False
    return True


def _unreadable_fields(raw: bytes, fields: dict[str, Any], error: object) -> Unreadable:
    _refuse_repeated_keys(raw)  # or its position could be another one
    return Unreadable(str(error), *_position(fields.get("session_id"), fields.get("seq")))


def _position(session_id: Any, seq: Any) -> tuple[str | None, int | None]:
    """Return what of the position can be read: a seq counts only in a session, and within its bounds."""
    if type(session_id) is not str or not session_id:
        return None, None
    return session_id, seq if type(seq) is int and 1 <= seq <= MAX_INT else None


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
