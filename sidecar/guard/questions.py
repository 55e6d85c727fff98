"""What comes in: the address, the body, and the question in it; what cannot be read says why."""

import json
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import ClientPayloadError, hdrs, web
from msgspec import Struct

from sidecar.engine.ask import commit_needs
from sidecar.protocol.api import AuthorizeRequest, GcRequest, ResumeRequest
from sidecar.protocol.decode import Unreadable
from sidecar.protocol.decode import decode as decode_record
from sidecar.protocol.openapi import FINDINGS, MAX_FINDINGS, ROUTES, Route
from sidecar.protocol.records import MAX_INT, Summary

JSON = "application/json"

Question = AuthorizeRequest | ResumeRequest | GcRequest | Summary


class Invalid(Exception):
    """Say why a request is no question: the HTTP status, and the reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Asked(Struct):
    """Hold a question, the `min_seq` that it gives, and up to where the log has to be known (None: as it is)."""

    question: Question
    position: int | None
    min_seq: int | None = None


# --- where ------------------------------------------------------------------------------------------------------------

_SHAPES: dict[tuple[str | None, ...], dict[str, Route]] = {}
for _route in ROUTES:
    _shape = tuple(None if part.startswith("{") else part for part in _route.path.split("/"))
    _SHAPES.setdefault(_shape, {})[_route.method] = _route


class Place:
    """Say what is at an address.

    Args:
        method: the request's.
        raw_path: the address as it came, percent-encoded; a slash that is encoded belongs to an id.
    """

    def __init__(self, method: str, raw_path: str) -> None:
        parts = raw_path.split("/")
        routes: dict[str, Route] = {}
        self._ids: list[str] = []
        for shape, found in _SHAPES.items():
            if len(shape) != len(parts):
                continue
            if all(part if want is None else part == want for want, part in zip(shape, parts, strict=True)):
                routes = found
                self._ids = [part for want, part in zip(shape, parts, strict=True) if want is None]
        self.methods = [name for method in routes for name in (("GET", "HEAD") if method == "GET" else (method,))]
        self.route = routes.get("GET" if method == "HEAD" else method)
        """What is asked or looked at; None: nothing is, or not with this method."""
        self.told = self.route or routes.get("POST")
        """Whose type of answer it gets: at the address of a question that of the question, whatever the method."""

    def ids(self) -> list[str]:
        """Return the ids in the address.

        Raises:
            Invalid: one is not UTF-8.
        """
        return [_text(part) for part in self._ids]


def read_query(raw_query: str) -> tuple[str | None, int]:
    """Read the query of `/v1/findings`: the session, if one is given, and the limit.

    Raises:
        Invalid: a value cannot be read.
    """
    try:
        given = dict(parse_qsl(raw_query, keep_blank_values=True, errors="strict", max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        raise Invalid(400, "The query cannot be read: it is not UTF-8, or far too long.") from None
    if unknown := sorted(given.keys() - {"session", "limit"}):
        # Or a misspelt filter would look like an answer, with the findings of all sessions.
        raise Invalid(400, f"`{unknown[0]}`: there is no such parameter; known: limit, session.")
    session, limit = given.get("session"), given.get("limit", str(FINDINGS))
    if session is not None:
        if not session:
            raise Invalid(400, "`session`: expected the id of a session.")
        _text(session)
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MAX_FINDINGS):
        raise Invalid(400, f"`limit`: expected a whole number from 1 to {MAX_FINDINGS}.")
    return session, int(limit)


def _text(part: str) -> str:
    try:
        text = unquote(part, errors="strict")
        text.encode()  # bytes that were not encoded at all come as surrogates
    except UnicodeError:
        raise Invalid(400, "An id in the address is not UTF-8, percent-encoded.") from None
    return text


# --- what -------------------------------------------------------------------------------------------------------------


async def read_body(request: web.BaseRequest, most: int) -> bytes:
    """Read a body.

    Args:
        request: what it came with.
        most: largest size in bytes.

    Raises:
        Invalid: it is not JSON, has no length, is too large, or breaks off.
    """
    if request.content_type != JSON:
        raise Invalid(415, f"The question must come as `Content-Type: {JSON}`.")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise Invalid(415, "The question must not be compressed.")
    length = request.content_length
    if length is None and hdrs.TRANSFER_ENCODING not in request.headers:
        raise Invalid(411, "The question must come with its length (`Content-Length`).")
    if length is not None and length > most:
        raise Invalid(413, _too_large(most))
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > most:
                raise Invalid(413, _too_large(most))
    except (ClientPayloadError, web.RequestPayloadError, ConnectionError):
        raise Invalid(400, "The question broke off.") from None
    return bytes(body)


def _too_large(most: int) -> str:
    return f"The question is larger than {most} bytes (guard.max_body)."


def read_question(route: Route, body: bytes) -> Asked:
    """Decode a question.

    Raises:
        Invalid: it is none; the reason names the field.
    """
    if not body:
        raise Invalid(400, "There is no question: the body is empty.")
    decoder = _DECODERS.get(route.name)
    try:
        if decoder is None:
            asked = _proposal(body)
        else:
            question: Any = decoder.decode(body)
            asked = Asked(question, question.min_seq, question.min_seq)
        # After the decoder, which refuses what is no JSON: this one takes more, such as NaN.
        json.loads(body, object_pairs_hook=_unambiguous)
        return asked
    except msgspec.ValidationError as error:
        raise Invalid(400, str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(400, f"not JSON: {error}") from None
    except RecursionError:
        raise Invalid(400, "nested too deeply") from None


_DECODERS = {
    route.name: msgspec.json.Decoder(route.question)
    for route in ROUTES
    if route.question is not None and route.question is not Summary
}
_parse = msgspec.json.Decoder().decode


def _proposal(body: bytes) -> Asked:
    """Decode a proposed summary as the record that it would be, with `min_seq` beside."""
    fields: Any = _parse(body)
    if type(fields) is not dict:
        raise Invalid(400, "expected a JSON object: the fields of a `summary`")
    kind, min_seq = fields.get("kind"), fields.pop("min_seq", None)
    if kind is not None and kind != "summary":
        raise Invalid(400, "`kind` must be `summary`, or left out")
    if min_seq is not None and not (type(min_seq) is int and 0 <= min_seq <= MAX_INT):
        raise Invalid(400, f"`min_seq`: expected a whole number from 0 to {MAX_INT}")
    fields["kind"] = "summary"
    try:
        record, _ = decode_record(msgspec.json.encode(fields))
    except Unreadable as error:
        raise Invalid(400, error.reason) from None
    except OverflowError:
        raise Invalid(400, "a number is outside of what the protocol allows") from None
    assert isinstance(record, Summary)
    needed = commit_needs(record)
    return Asked(record, min_seq if needed is None else max(needed, min_seq or 0), min_seq)


def _unambiguous(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that says the same thing twice: another reader may take the other one."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            shown = key if len(key) <= 100 else f"{key[:100]}…"
            raise Invalid(400, f"`{shown}` is given twice in one object: what is meant cannot be told")
        seen.add(key)
