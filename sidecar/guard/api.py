"""The guard's HTTP API: thin handlers around what the engine can be asked.

Whatever goes wrong, a question is answered with its own type of answer, and that refuses unless the engine has said
yes: the types' defaults refuse, and nothing but the engine sets anything else.
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web

from sidecar.config import GuardSettings
from sidecar.engine import ask
from sidecar.engine.fold import Engine, Outcome
from sidecar.engine.live import Sessions
from sidecar.engine.rules import CATALOGUE
from sidecar.guard.access import Access
from sidecar.guard.answers import Reply, refusal
from sidecar.guard.questions import Invalid, Place, read_body, read_query, read_question
from sidecar.guard.recent import RecentFindings
from sidecar.guard.waiting import Trouble, Waiting
from sidecar.observe.http import HttpServer
from sidecar.observe.logs import get_logger
from sidecar.observe.metrics import Metrics
from sidecar.protocol.api import Code
from sidecar.protocol.openapi import ROUTES, Answer, Route, openapi

log = get_logger(__name__)

PREFIX = "/v1/"
RETRY_AFTER = "1"
"""After how many seconds to ask again: what passes passes soon, or not for long."""


class GuardApi:
    """Answer whoever asks before acting.

    Args:
        settings: the bounds.
        access: who may ask.
        metrics: where to count.
    """

    def __init__(self, settings: GuardSettings, access: Access, metrics: Metrics) -> None:
        self._settings = settings
        self._access = access
        self._metrics = metrics
        self._waiting = Waiting(settings.max_wait)
        self._recent = RecentFindings(settings.recent_findings, settings.recent_per_session)
        self._document = openapi(CATALOGUE)
        self._busy = 0

    # --- the sidecar's side -------------------------------------------------------------------------------------------

    def mount(self, server: HttpServer) -> None:
        """Serve on an address, before that is started; until `serve` every question is refused."""
        server.mount(PREFIX, self.handle, [(route.method, route.path, route.title) for route in ROUTES])

    def serve(self, sessions: Sessions) -> None:
        """Answer for these sessions from now on."""
        self._waiting.serve(sessions)

    def close(self) -> None:
        """Refuse every question from now on, also those that wait: what is known is about to end."""
        self._waiting.close()

    def note(self, outcome: Outcome) -> None:
        """Keep what a batch found, for `/v1/findings`."""
        if outcome.findings:
            self._recent.note(outcome)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request below `/v1/`."""
        began = time.perf_counter()
        self._busy += 1
        self._metrics.set_guard_in_flight(self._busy)
        place = Place(request.method, request.rel_url.raw_path)
        try:
            reply = await self._reply(request, place)
        except Invalid as error:
            reply = refusal(place.told, error.status, "bad_request", error.detail)
        except Trouble as error:
            reply = _troubled(place.told, request, error)
        except Exception as error:
            self._metrics.count_guard_error()
            _log(error, place.told)
            reply = refusal(place.told, 500, "unavailable", "The guard failed to answer, and has logged where.")
        finally:
            self._busy -= 1
            self._metrics.set_guard_in_flight(self._busy)
        name = place.told.name if place.told is not None else "other"
        self._metrics.observe_guard(name, *reply.outcome(), time.perf_counter() - began)
        return reply.response()

    async def _reply(self, request: web.Request, place: Place) -> Reply:
        denied = self._access.denies(request)
        if denied is not None:
            challenge: dict[str, str] = {hdrs.WWW_AUTHENTICATE: denied.challenge} if denied.challenge else {}
            return refusal(place.told, denied.status, "unauthorized", denied.detail, headers=challenge)
        route = place.route
        if not place.methods:
            return refusal(None, 404, "bad_request", "There is nothing at this address; see /v1/openapi.json.")
        if route is None:
            allowed = ", ".join(place.methods)
            detail = f"Here only {allowed} is allowed."
            return refusal(place.told, 405, "bad_request", detail, headers={hdrs.ALLOW: allowed})
        if self._busy > self._settings.max_concurrent:
            detail = "Too many questions at the same time (guard.max_concurrent)."
            return refusal(route, 429, "overloaded", detail, headers={hdrs.RETRY_AFTER: RETRY_AFTER})
        if route.question is None:
            return self._look(route, place.ids(), request)
        return await self._ask(route, request)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, route: Route, request: web.Request) -> Reply:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.timeout
        body: bytes | None = None
        session_id: str | None = None
        try:
            async with asyncio.timeout_at(deadline):
                body = await read_body(request, self._settings.max_body)
                asked = read_question(route, body)
                session_id = asked.question.session_id
                engine = await self._waiting.find_applied(session_id, asked.position)
                answer = _ASK[route.name](engine, asked.question)
            if clock() > deadline:
                raise TimeoutError
        except TimeoutError:
            if body is None:
                return refusal(route, 408, "timed_out", "The question did not arrive in time (guard.timeout).")
            return refusal(route, 200, "timed_out", "Not answered in time (guard.timeout).", session_id=session_id)
        except Trouble as error:
            return _troubled(route, request, error, session_id)
        return Reply(200, answer)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, route: Route, ids: list[str], request: web.Request) -> Reply:
        shown: Any
        if route.name == "session":
            shown = ask.view(self._waiting.look(ids[0]), ids[0])
        elif route.name == "checkpoint":
            shown = ask.view_checkpoint(self._waiting.look(ids[0]), ids[0], ids[1])
        elif route.name == "findings":
            shown = self._findings(*read_query(request.rel_url.raw_query_string))
        elif route.name == "rule":
            shown = ask.view_rule(ids[0])
        else:
            shown = self._document
        if shown is None:
            code, detail = _NOT_FOUND[route.name]
            return refusal(route, 404, code, detail)
        return Reply(200, shown)

    def _findings(self, session_id: str | None, limit: int) -> Any:
        if session_id is not None:
            engine = self._waiting.look(session_id)
            if not self._recent.has(session_id) and ask.applied(engine, session_id) is None:
                return None
        return self._recent.view(session_id, limit)


_ASK: dict[str, Callable[[Engine, Any], Answer]] = {
    "authorize": ask.authorize,
    "resume": ask.resume,
    "commit": ask.commit,
    "gc": ask.gc,
}
_NOT_FOUND: dict[str, tuple[Code, str]] = {
    "session": ("unknown_session", "No record of this session has been read."),
    "checkpoint": ("checkpoint", "The session, or its checkpoint, is not known."),
    "findings": ("unknown_session", "No record of this session has been read."),
    "rule": ("bad_request", "There is no such rule; `sidecar rules` lists them."),
}


def _troubled(route: Route | None, request: web.Request, error: Trouble, session_id: str | None = None) -> Reply:
    """Say that a session cannot be answered for: to a question that is an answer like any other."""
    looking = route is None or route.question is None
    status = 421 if error.code == "not_owned" else 503 if looking else 200
    headers: dict[str, str] = {}
    if status == 421 and error.owner is not None:
        headers[hdrs.LOCATION] = error.owner + request.rel_url.raw_path_qs
    if status == 503:
        headers[hdrs.RETRY_AFTER] = RETRY_AFTER
    return refusal(
        route,
        status,
        error.code,
        error.detail,
        session_id=session_id,
        position=error.position,
        owner=error.owner,
        headers=headers,
    )


def _log(error: Exception, route: Route | None) -> None:
    """Log where a fault is, and not its message, which may quote the session."""
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    name = route.name if route is not None else "other"
    log.error("the guard failed to answer", route=name, error=type(error).__name__, where=where[-8:])
    log.debug("the guard failed to answer", exc_info=error)
