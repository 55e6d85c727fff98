"""Make the bytes of a record from what a call says, or say at once what is wrong with it.

What is taken here is what the decoder takes: the fields are held against the record type, strictly, and the bytes are
decoded as the sidecar will. The `seq` is not known yet; `with_seq` puts it in.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.records import COMPACTIONS, KINDS, Opaque, Record

Role = Literal["events", "compactions"]
"""Which of the two topics a record belongs to."""

_COMPACTIONS = frozenset(str(cls.__struct_config__.tag) for cls in COMPACTIONS)
_OWN = ("kind", "session_id", "seq")
_SINGLE_IDS = ("tenant", "agent", "model", "action_id", "precondition_id")
_COMMON = ("kind", "session_id", "ts", "tenant", "agent", "model")
_convert = msgspec.convert
_encode = msgspec.json.Encoder().encode

SEQ_ROOM = 32
"""More bytes than `with_seq` ever adds."""


def role_of(kind: str) -> Role:
    """Return where records of a kind go."""
    return "compactions" if kind in _COMPACTIONS else "events"


def with_seq(body: bytes, seq: int) -> bytes:
    """Return a record's bytes with its position."""
    return b'%b,"seq":%d}' % (body[:-1], seq)


def compose(kind: str, session_id: str, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> bytes:
    """Return a record's bytes, without `seq`.

    Args:
        kind: a kind of the protocol.
        session_id: the session.
        fields: the other fields; those that are None are absent. Without `ts` it is now.
        defaults: what fields that are absent are.

    Raises:
        TypeError: a field is of the wrong type.
        ValueError: a value that the protocol does not allow.
    """
    given = _given(kind, session_id, fields, defaults)
    for name in ("facts", "retention"):
        if isinstance(value := given.get(name), Mapping):
            given[name] = dict(value)
        elif isinstance(value, msgspec.Struct):
            given[name] = {k: v for k, v in msgspec.structs.asdict(value).items() if v is not None}
    _strictly(kind, {**given, "seq": 1}, KINDS[kind])
    return _checked(kind, given)


def compose_opaque(kind: str, session_id: str, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> bytes:
    """Return the bytes, without `seq`, of an event that the protocol knows nothing of.

    Args:
        kind: none of the protocol's kinds.
        session_id: the session.
        fields: whatever JSON can hold.
        defaults: what `tenant`, `agent` and `model` are where they are absent.

    Raises:
        TypeError: something that JSON cannot hold.
        ValueError: a kind of the protocol, or a field that the emitter fills.
    """
    if not isinstance(kind, str):
        raise TypeError(f"kind: expected `str`, got `{type(kind).__name__}`")
    if not kind or kind in KINDS:
        told = f"{kind!r} is a kind of the protocol: use the method of that name" if kind else "it is empty"
        raise ValueError(f"the kind of an opaque event: {told}")
    if own := [name for name in _OWN if name in fields]:
        raise ValueError(f"{kind}: {', '.join(own)} cannot be given, the emitter fills it")
    given = _given(kind, session_id, fields, defaults)
    common: dict[str, Any] = {
        name: given[name] for name in ("kind", "session_id", "ts", "tenant", "agent", "model") if name in given
    }
    _strictly(kind, {**common, "seq": 1}, Opaque)
    return _checked(kind, given)


def session_bytes(session_id: str) -> bytes:
    """Return a session's id as the key of its messages.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty, or not Unicode that UTF-8 can hold.
    """
    if not isinstance(session_id, str):
        raise TypeError(f"session_id: expected `str`, got `{type(session_id).__name__}`")
    if not session_id:
        raise ValueError("session_id is empty")
    try:
        return session_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"session_id: {error}") from None


def common_fields(tenant: str | None, agent: str | None, model: str | None) -> dict[str, str]:
    """Return those of the fields that are given.

    Raises:
        TypeError: one is no string.
        ValueError: one is empty.
    """
    given = {"tenant": tenant, "agent": agent, "model": model}
    compose_opaque("emitter", "any", given, {})
    return {name: value for name, value in given.items() if value is not None}


def _given(kind: str, session_id: str, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"kind": kind, "session_id": session_id, **defaults}
    for name, value in fields.items():
        if value is not None:
            given[name] = value
    for name in _SINGLE_IDS:
        # For the protocol it would be absent, and a revocation without a precondition ends every edge.
        if name in given and given[name] == "":
            raise ValueError(f"{kind}: `{name}` is empty; leave it out if there is none")
    if "ts" not in given:
        given["ts"] = datetime.now(UTC)
    return given


def _strictly(kind: str, fields: dict[str, Any], cls: type[Record]) -> None:
    try:
        _convert(fields, cls)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at ")
        where = at.replace("`$.", "`") or f"`{kind}`"
        said = f"{kind}: {where}: {problem[0].lower()}{problem[1:]}"
        raise (TypeError if ", got `" in problem or "timezone" in problem else ValueError)(said) from None


def _checked(kind: str, fields: dict[str, Any]) -> bytes:
    try:
        body = _encode(fields)
        decode(with_seq(body, 1))
    except (TypeError, msgspec.MsgspecError) as error:
        raise TypeError(f"{kind}: {error}") from None
    except (UnicodeEncodeError, RecursionError, OverflowError, Unreadable) as error:
        raise ValueError(f"{kind}: {error}") from None
    return body
