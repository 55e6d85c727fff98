"""One message value in, one record and the digest of its content out; what cannot be read says why.

A record is decoded generically first: its digest has to cover every field, also those that no type
here knows, and has to be the same for the same content however it was written (key order, `null`).
"""

import json
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

_parse = msgspec.json.Decoder().decode
_canonical = msgspec.json.Encoder(order="deterministic").encode
_convert = msgspec.convert


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
        fields = _parse_large_numbers(raw)
    except RecursionError:
        raise _nested_too_deeply(raw) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if type(fields) is not dict:
        raise Unreadable(f"expected a JSON object, got {_json_type(fields)}")
    if not all(fields.values()):  # a quick "nothing absent here" for most records
        fields = {k: v for k, v in fields.items() if v is not None and not (v == "" and k in _IDS)}
    if "as_of_seq" in fields and "seq" in fields:
        del fields["as_of_seq"]
    kind: Any = fields.get("kind")
    if kind == "summary":
        for name in ("facts", "retention"):
            if type(inner := fields.get(name)) is dict and None in inner.values():
                fields[name] = {k: v for k, v in inner.items() if v is not None}
    try:
        cls, check = _KINDS.get(kind, _OPAQUE)
        if cls is Opaque and type(kind) is not str:
            raise TypeError
        record: Record = _convert(fields, cls)
    except TypeError:
        problem = "the field `kind` is missing" if kind is None else "`kind` must be a string"
        raise _unreadable_fields(fields, problem) from None
    except msgspec.ValidationError as error:
        if "ts" not in fields or is_timestamp(fields["ts"]):
            raise _unreadable_fields(fields, error) from None
        del fields["ts"]
        return decode(msgspec.json.encode(fields))
    if check is not None and (wrong := check(record)):
        raise _unreadable_fields(fields, wrong)
    return record, xxh3_64_intdigest(_canonical(fields))


def _parse_large_numbers(raw: bytes) -> Any:
    """Parse what is JSON all the same but has a number outside of a double's range."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise _nested_too_deeply(raw) from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


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


def _nested_too_deeply(raw: bytes) -> Unreadable:
    try:
        position = _parse_position(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Unreadable("nested too deeply")
    return Unreadable("nested too deeply", *_position(position.session_id, position.seq))


def _unreadable_fields(fields: dict[str, Any], error: object) -> Unreadable:
    return Unreadable(str(error), *_position(fields.get("session_id"), fields.get("seq")))


def _position(session_id: Any, seq: Any) -> tuple[str | None, int | None]:
    """Return what of the position can be read: a seq counts only in a session, and within its bounds."""
    if type(session_id) is not str or not session_id:
        return None, None
    return session_id, seq if type(seq) is int and 1 <= seq <= MAX_INT else None


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
