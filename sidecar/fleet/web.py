"""The fleet over HTTP: queries as JSON under `/v1/fleet`, the board under `/board`.

Every answer is bounded, none is stored by whoever is between, and none can be framed, read or driven by another page.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Protocol, TypeVar, cast, get_args
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta, Struct

from sidecar.config import Settings
from sidecar.fleet.access import Denied, Gate
from sidecar.fleet.page import views
from sidecar.fleet.page.render import render_board, render_problem, render_session, static_files
from sidecar.fleet.queries import MOST, Dimension, Fleet, Status, Unavailable
from sidecar.fleet.shown import shown
from sidecar.observe.logs import get_logger
from sidecar.protocol.api import Code, Edge, Problem, Reason
from sidecar.protocol.outputs import HaltAck

log = get_logger(__name__)

PAGE_SIZE = 25
"""How many sessions a page of the board has."""
DEFAULT_LIMIT = 100
MAX_BODY = 8192
TIMEOUT = 10.0
"""Longest time for an answer to be gathered, in seconds."""
STATUSES = frozenset((*get_args(Status), "unknown"))
"""What sessions can be filtered by; `unknown`: those whose status has not been told yet."""

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    hdrs.CACHE_CONTROL: "no-store",
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_encode = msgspec.json.Encoder(order="deterministic").encode
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Acknowledge(Protocol):
    """Publish an acknowledgement of a session's halt; an exception says why it could not be."""

    async def __call__(self, session_id: str, ack: HaltAck) -> None: ...


class Edges(Protocol):
    """Ask the guard for a session's effective edges, and how many there are; None: it does not answer."""

    async def __call__(self, session_id: str) -> tuple[list[Edge], int] | None: ...


Text = Annotated[str, Meta(min_length=1, max_length=4000)]


class AckRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Take a halt in hand: whose, who, and what is going to be done."""

    session_id: Annotated[str, Meta(min_length=1)]
    by: Text
    decision: Text


class Acknowledged(Struct, kw_only=True):
    """Say that a halt was taken in hand."""

    halt_id: str
    session_id: str
    by: str
    decision: str


class Refused(Exception):
    """Say why a request is not answered with what was asked for."""

    def __init__(self, status: int, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code: Code = code
        self.detail = detail


def routes(
    fleet: Fleet,
    settings: Settings,
    *,
    gate: Gate | None = None,
    acknowledge: Acknowledge | None = None,
    edges: Edges | None = None,
    shared_for: float = 1.0,
) -> list[web.AbstractRouteDef]:
    """Return the routes of the fleet's queries and of its board.

    Args:
        fleet: who is asked.
        settings: the settings tree.
        gate: who may ask; None: as the settings say.
        acknowledge: publishes acknowledgements; None: halts are taken in hand on the command line only.
        edges: asks the guard for what the fleet is not told; None: the page does without.
        shared_for: seconds for which those who look at the board share an answer.

    Raises:
        SettingsError: strangers could ask; it says what to set.
    """
    gate = gate or Gate.of(settings)
    bootstrap = ",".join(settings.kafka.bootstrap_servers)
    api = Api(fleet, acknowledge)
    pages = Pages(fleet, acknowledge is not None, edges, bootstrap, _Shared(shared_for))
    answers = [
        ("/v1/fleet", api.summary),
        ("/v1/fleet/sessions", api.sessions),
        (r"/v1/fleet/sessions/{id:[^/]+}", api.session),
        ("/v1/fleet/groups", api.groups),
        ("/v1/fleet/alerts", api.alerts),
        ("/v1/fleet/halts", api.halts),
    ]
    return [
        *(web.get(path, _json(gate, handler)) for path, handler in answers),
        web.post(r"/v1/fleet/halts/{id:[^/]+}/ack", _json(gate, api.acknowledge, changes=True)),
        web.get("/board", _page(gate, pages.board)),
        web.get("/board/session", _page(gate, pages.session)),
        web.get("/board/static/{name}", _page(gate, pages.static)),
    ]


# --- around every answer ----------------------------------------------------------------------------------------------


def _json(gate: Gate, handler: Handler, *, changes: bool = False) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        denied = gate.denies_change(request) if changes else gate.denies(request)
        if denied is not None:
            return _problem(denied.status, "unauthorized", denied.detail, denied.challenges)
        try:
            async with asyncio.timeout(TIMEOUT):
                response = await handler(request)
        except Refused as refused:
            return _problem(refused.status, refused.code, refused.detail)
        except Unavailable as error:
            return _problem(503, "unavailable", _whereabouts(error))
        except TimeoutError:
            return _problem(503, "timed_out", f"The fleet did not answer within {TIMEOUT:g} s.")
        response.headers.update(_HEADERS)
        return response

    answer.__doc__ = handler.__doc__
    return answer


def _page(gate: Gate, handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        denied = gate.denies(request, page=True)
        if denied is not None:
            return _problem_page(denied.status, "Not allowed", denied.detail, denied)
        try:
            async with asyncio.timeout(TIMEOUT):
                response = await handler(request)
        except Refused as refused:
            title = "Not found" if refused.status == 404 else "Cannot be shown"
            return _problem_page(refused.status, title, refused.detail)
        except Unavailable as error:
            return _problem_page(503, "Cannot be shown just now", _whereabouts(error))
        except TimeoutError:
            return _problem_page(503, "Cannot be shown just now", f"The fleet did not answer within {TIMEOUT:g} s.")
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    answer.__doc__ = handler.__doc__
    return answer


def _whereabouts(error: Unavailable) -> str:
    who = f"The worker {shown(error.worker, 120)} has this" if error.worker else "The worker that has this"
    return f"{who}, and cannot be asked just now: {shown(error.reason)}"


def _problem(status: int, code: Code, detail: str, challenges: Iterable[str] = ()) -> web.Response:
    body = _encode(Problem(reasons=[Reason(code=code, detail=detail)]))
    response = web.Response(body=body + b"\n", status=status, content_type="application/json", headers=_HEADERS)
    for challenge in challenges:
        response.headers.add(hdrs.WWW_AUTHENTICATE, challenge)
    return response


def _problem_page(status: int, title: str, detail: str, denied: Denied | None = None) -> web.Response:
    html = render_problem(title, detail, datetime.now(UTC), again=status == 503)
    response = web.Response(text=html, status=status, content_type="text/html", headers=_HEADERS)
    for challenge in denied.challenges if denied is not None else ():
        response.headers.add(hdrs.WWW_AUTHENTICATE, challenge)
    return response


def _found(answer: Struct) -> web.Response:
    return web.Response(body=_encode(answer) + b"\n", content_type="application/json")


# --- what may be asked ------------------------------------------------------------------------------------------------


def _query(request: web.Request, *known: str) -> dict[str, str]:
    """Return the query's parameters.

    Raises:
        Refused: one is not known, or given twice: a misspelt filter must not look like an answer.
    """
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            raise Refused(400, "bad_request", f"There is no parameter {shown(name, 60)!r}; known: {', '.join(known)}.")
        if name in found:
            raise Refused(400, "bad_request", f"The parameter {name} is given twice.")
        found[name] = value
    return found


def _whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise Refused(400, "bad_request", f"{name} is a whole number from {least} to {most}.")


def _statuses(text: str | None) -> frozenset[str] | None:
    if not text:
        return None
    names = frozenset(text.split(","))
    if unknown := sorted(names - STATUSES):
        known = ", ".join(sorted(STATUSES))
        raise Refused(400, "bad_request", f"There is no status {shown(unknown[0], 60)!r}; known: {known}.")
    return names


def _yes(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise Refused(400, "bad_request", f"{name} is true or false.")
    return value == "true"


class Api:
    """Answer programs."""

    def __init__(self, fleet: Fleet, acknowledge: Acknowledge | None) -> None:
        self._fleet = fleet
        self._acknowledge = acknowledge

    async def summary(self, request: web.Request) -> web.Response:
        """The fleet as a whole: sessions by status, rates of the rules, what survives, open alerts."""
        _query(request)
        return _found(await self._fleet.summary())

    async def sessions(self, request: web.Request) -> web.Response:
        """Sessions, the worst first: ?status=&tenant=&agent=&model=&search=&limit=&cursor="""
        query = _query(request, "status", "tenant", "agent", "model", "search", "limit", "cursor")
        return _found(
            await _cursed(
                self._fleet.sessions(
                    status=_statuses(query.get("status")),
                    tenant=query.get("tenant"),
                    agent=query.get("agent"),
                    model=query.get("model"),
                    search=query.get("search") or None,
                    limit=_whole(query, "limit", DEFAULT_LIMIT, 1, MOST),
                    cursor=query.get("cursor") or None,
                )
            )
        )

    async def session(self, request: web.Request) -> web.Response:
        """One session: its checkpoints, halts and last findings."""
        _query(request)
        detail = await self._fleet.session(request.match_info["id"])
        if detail is None:
            raise Refused(404, "unknown_session", "The fleet has not heard of this session.")
        return _found(detail)

    async def groups(self, request: web.Request) -> web.Response:
        """Sessions by tenant, agent and model: ?by=group|tenant|agent|model&tenant=&agent=&model="""
        query = _query(request, "by", "tenant", "agent", "model")
        by = query.get("by", "group")
        if by not in get_args(Dimension):
            raise Refused(400, "bad_request", f"by is one of {', '.join(get_args(Dimension))}.")
        who = {name: query.get(name) for name in ("tenant", "agent", "model")}
        return _found(await self._fleet.groups(cast(Dimension, by), **who))

    async def alerts(self, request: web.Request) -> web.Response:
        """Open alerts: ?all=true adds those cleared lately."""
        query = _query(request, "all")
        return _found(await self._fleet.alerts(open_only=not _yes(query, "all")))

    async def halts(self, request: web.Request) -> web.Response:
        """Open halts, those in nobody's hands first: ?all=&limit="""
        query = _query(request, "all", "limit")
        limit = _whole(query, "limit", DEFAULT_LIMIT, 1, MOST)
        return _found(await self._fleet.halts(open_only=not _yes(query, "all"), limit=limit))

    async def acknowledge(self, request: web.Request) -> web.Response:
        """Take an open halt in hand: {"session_id": …, "by": …, "decision": …}"""
        halt_id = request.match_info["id"]
        if self._acknowledge is None:
            how = "sidecar halts ack HALT_ID --by NAME --decision TEXT"
            raise Refused(501, "unavailable", f"Halts are taken in hand on the command line here: {how}")
        asked = _body(await _read(request))
        by, decision = asked.by.strip(), asked.decision.strip()
        if not by or not decision:
            raise Refused(400, "bad_request", "by and decision must say something.")
        detail = await self._fleet.session(asked.session_id)
        halt = next((h for h in detail.halts if h.halt_id == halt_id), None) if detail is not None else None
        if halt is None:
            raise Refused(404, "unknown_session", "The fleet knows no such halt of this session.")
        if not halt.open:
            raise Refused(409, "open_halt", "The halt has been cleared: there is nothing left to take in hand.")
        try:
            await self._acknowledge(asked.session_id, HaltAck(halt_id=halt_id, by=by, decision=decision))
        except Exception as error:
            log.warning("an acknowledgement could not be published", halt_id=halt_id, error=repr(error))
            raise Refused(503, "unavailable", f"It could not be published: {shown(str(error), 300)}") from error
        log.info("halt taken in hand", halt_id=halt_id, session_id=asked.session_id, by=by)
        return _found(Acknowledged(halt_id=halt_id, session_id=asked.session_id, by=by, decision=decision))


async def _cursed(asking: Awaitable[T]) -> T:
    try:
        return await asking
    except ValueError as error:
        raise Refused(400, "bad_request", f"The cursor cannot be used: {shown(str(error))}") from None


async def _read(request: web.Request) -> bytes:
    length = request.content_length
    body = b"" if length is not None and length > MAX_BODY else await request.content.read(MAX_BODY + 1)
    while len(body) <= MAX_BODY and (more := await request.content.read(MAX_BODY + 1 - len(body))):
        body += more
    if len(body) > MAX_BODY or (length is not None and length > MAX_BODY):
        raise Refused(413, "bad_request", f"At most {MAX_BODY} bytes.")
    return body


_decode_ack = msgspec.json.Decoder(AckRequest).decode


def _body(raw: bytes) -> AckRequest:
    try:
        return _decode_ack(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise Refused(400, "bad_request", f"This is not {{session_id, by, decision}}: {shown(str(error))}") from None


# --- the board --------------------------------------------------------------------------------------------------------


class Pages:
    """Answer people."""

    def __init__(
        self, fleet: Fleet, can_acknowledge: bool, edges: Edges | None, bootstrap: str, shared: "_Shared"
    ) -> None:
        self._fleet = fleet
        self._can_acknowledge = can_acknowledge
        self._edges = edges
        self._bootstrap = bootstrap
        self._shared = shared

    async def board(self, request: web.Request) -> web.Response:
        """The board: what is wrong with which session, since when, and what to do. For people."""
        query = request.query
        filters = _filters(query)
        fleet = self._fleet
        asked: list[Awaitable[Any]] = [
            self._shared("summary", fleet.summary),
            _cursed(
                fleet.sessions(
                    status=filters.statuses(),
                    tenant=filters.tenant,
                    agent=filters.agent,
                    model=filters.model,
                    search=filters.search or None,
                    limit=PAGE_SIZE,
                    cursor=filters.cursor,
                )
            ),
            self._shared("alerts", fleet.alerts),
            self._shared("models", partial(fleet.groups, "model")),
            self._shared("tenants", partial(fleet.groups, "tenant")),
            self._shared("agents", partial(fleet.groups, "agent")),
        ]
        problems: dict[str, None] = {}
        answers = [_or_problem(a, problems) for a in await asyncio.gather(*asked, return_exceptions=True)]
        summary, page, alerts, models, tenants, agents = answers
        view = views.board(
            at=summary.at if summary is not None else datetime.now(UTC),
            summary=summary,
            page=page,
            alerts=alerts,
            models=models,
            tenants=tenants,
            agents=agents,
            filters=filters,
            problems=list(problems),
        )
        mark = _mark(_still(msgspec.structs.replace(view, at=_NEVER)))
        render = partial(render_board, view, mark=mark, page_size=PAGE_SIZE)
        return _html(request, render, mark, view.verdict, view.at, part=query.get("part") == "live")

    async def session(self, request: web.Request) -> web.Response:
        """One session, its log drawn. For people."""
        query = request.query
        session_id = query.get("id", "")
        if not session_id:
            raise Refused(404, "unknown_session", "The address names no session: ?id=…")
        scale = query.get("scale", "even")
        if scale not in ("even", "true"):
            raise Refused(400, "bad_request", "scale is even or true.")
        window = None
        if "from" in query or "to" in query:
            most = 2**61
            first = _whole(query, "from", 1, 1, most)
            window = (first, _whole(query, "to", most, first, most))
        problems: list[str] = []
        detail, known = await asyncio.gather(self._fleet.session(session_id), self._asked_guard(session_id, problems))
        if detail is None:
            name = shown(session_id, 120)
            raise Refused(404, "unknown_session", f"The fleet has not heard of a session {name}.")
        view = views.session(
            detail,
            edges=known[0] if known else None,
            edge_count=known[1] if known else None,
            kind=scale,  # type: ignore[arg-type]
            window=window,
            can_acknowledge=self._can_acknowledge,
            bootstrap=self._bootstrap,
            problems=problems,
        )
        still = msgspec.structs.replace(view, detail=msgspec.structs.replace(detail, at=_NEVER))
        mark = _mark(still)
        render = partial(render_session, view, mark=mark)
        say = f"This session is {view.status}."
        return _html(request, render, mark, say, detail.at, part=query.get("part") == "live")

    async def static(self, request: web.Request) -> web.Response:
        """The board's style and script."""
        file = static_files().get(request.match_info["name"])
        if file is None:
            raise Refused(404, "bad_request", "There is no such file.")
        tag = f'"{file.etag}"'
        headers = {hdrs.CACHE_CONTROL: "no-cache", hdrs.ETAG: tag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)

    async def _asked_guard(self, session_id: str, problems: list[str]) -> tuple[list[Edge], int] | None:
        if self._edges is None:
            return None
        known = await self._edges(session_id)
        if known is None:
            problems.append("The guard did not answer: approvals that are in effect are not drawn.")
        return known


class _Shared:
    """Ask once for what several are shown at about the same time: a board on ten screens is one question a second."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def __call__(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        now = asyncio.get_running_loop().time()
        known = self._asked.get(name)
        if known is None or now - known[0] > self._seconds:
            task = asyncio.ensure_future(_bounded(ask))
            task.add_done_callback(_heard)
            known = self._asked[name] = (now, task)
        # Not awaited itself: whoever goes away must not take the answer from the others.
        return cast(T, await asyncio.shield(known[1]))


def _heard(task: "asyncio.Task[Any]") -> None:
    """Take note of how a task ended, for all who asked may have gone by then."""
    if not task.cancelled():
        task.exception()


async def _bounded(ask: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(TIMEOUT):
        return await ask()


def _filters(query: Mapping[str, str]) -> views.Filters:
    status = query.get("status", "")
    if status and status != "all" and status not in STATUSES:
        raise Refused(400, "bad_request", f"There is no status {shown(status, 60)!r}.")
    # A form cannot leave a choice out, so that `*` stands for any; the empty string for those that name none.
    who = {name: None if query.get(name, "*") == "*" else query[name] for name in ("tenant", "agent", "model")}
    return views.Filters(status=status, search=query.get("search", ""), cursor=query.get("cursor") or None, **who)


def _or_problem(answer: Any, problems: dict[str, None]) -> Any:
    if isinstance(answer, Unavailable):
        problems[f"{_whereabouts(answer)}."] = None
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _still(view: views.BoardView) -> views.BoardView:
    """Return a view without what changes from moment to moment and is not worth a new page."""
    summary = view.summary
    return msgspec.structs.replace(view, summary=summary and msgspec.structs.replace(summary, at=_NEVER))


def _mark(view: Struct) -> str:
    return blake2b(_encode(view), digest_size=12).hexdigest()


def _html(
    request: web.Request, render: Callable[..., str], mark: str, say: str, at: datetime, *, part: bool
) -> web.Response:
    """Return a page, or the part of it that changes; of the latter only that it is the same, if it is."""
    headers = {"X-Page-Mark": mark, "X-Page-At": at.isoformat(), "X-Page-Say": quote(say)}
    if part and request.headers.get(hdrs.IF_NONE_MATCH) == f'"{mark}"':
        return web.Response(status=304, headers=headers)
    return web.Response(text=render(part=part), content_type="text/html", headers=headers)
