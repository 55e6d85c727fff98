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
from sidecar.engine.live import DecisionLog, Sessions
from sidecar.engine.rules import CATALOGUE
from sidecar.guard.access import Access, Caller, Denied
from sidecar.guard.answers import Reply, refusal
from sidecar.guard.decisions import NotRecorded, Recorder, decision_of, still_holds
from sidecar.guard.questions import Asked, Invalid, Place, read_body, read_query, read_question
from sidecar.guard.recent import RecentFindings
from sidecar.guard.waiting import Trouble, Waiting
from sidecar.observe.http import HttpServer
from sidecar.observe.logs import get_logger
from sidecar.observe.metrics import Metrics
from sidecar.protocol.api import Code, GcAnswer
from sidecar.protocol.openapi import ROUTES, Answer, Route, openapi, refuses

log = get_logger(__name__)

PREFIX = "/v1/"
RETRY_AFTER = "1"
"""After how many seconds to ask again: what passes passes soon, or not for long."""

_UNKNOWN_SECONDS = 0.05
"""How long whoever may ask about some tenants only waits to hear that a session is unknown: the same for one that there
is not, and for one that is another tenant's and has to be looked up."""

_UNKNOWN = frozenset(("unknown_session", "not_applied", "checkpoint"))


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
        self._recorder = Recorder(required=settings.decisions == "required", timeout=settings.decision_timeout)
        self._document = openapi(CATALOGUE)
        self._busy = 0

    # --- the sidecar's side -------------------------------------------------------------------------------------------

    def mount(self, server: HttpServer) -> None:
        """Serve on an address, before that is started; until `serve` every question is refused."""
        server.mount(PREFIX, self.handle, [(route.method, route.path, route.title) for route in ROUTES])

    def serve(self, sessions: Sessions, decisions: DecisionLog | None) -> None:
        """Answer for these sessions from now on.

        Args:
            sessions: finds them.
            decisions: where permissions are written before they are given; None: nowhere, and unless the settings say
                that they need not be written, none is given.
        """
        self._recorder.serve(decisions)
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
        caller = self._access.admit(request)
        if isinstance(caller, Denied):
            challenge: dict[str, str] = {hdrs.WWW_AUTHENTICATE: caller.challenge} if caller.challenge else {}
            return refusal(place.told, caller.status, "unauthorized", caller.detail, headers=challenge)
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
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            if route.question is None:
                reply = self._look(route, place.ids(), request, caller)
            else:
                reply = await self._ask(route, request, caller)
        except Trouble as error:
            reply = _troubled(route, request, error)
        if caller.tenants is not None and not _UNKNOWN.isdisjoint(reply.outcome()[1]):
            await asyncio.sleep(began + _UNKNOWN_SECONDS - clock())
        return reply

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, route: Route, request: web.Request, caller: Caller) -> Reply:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.timeout
        body: bytes | None = None
        session_id: str | None = None
        try:
            async with asyncio.timeout_at(deadline):
                body = await read_body(request, self._settings.max_body)
                asked = read_question(route, body)
                session_id = asked.question.session_id
                if self._settings.require_min_seq and not asked.min_seq:
                    raise Invalid(400, _MIN_SEQ)
                engine = await self._waiting.find_applied(session_id, asked.position, caller.tenants)
                answer = _ASK[route.name](engine, asked.question)
                if self._recorder.required:
                    answer = await self._recorded(route, asked, answer, caller)
            if clock() > deadline:
                raise TimeoutError
        except TimeoutError:
            if body is None:
                return refusal(route, 408, "timed_out", "The question did not arrive in time (guard.timeout).")
            return refusal(route, 200, "timed_out", "Not answered in time (guard.timeout).", session_id=session_id)
        except NotRecorded as error:
            again: dict[str, str] = {hdrs.RETRY_AFTER: RETRY_AFTER}
            return refusal(route, 503, "not_recorded", error.detail, session_id=session_id, headers=again)
        except Trouble as error:
            return _troubled(route, request, error, session_id)
        return Reply(200, answer)

    async def _recorded(self, route: Route, asked: Asked, answer: Answer, caller: Caller) -> Answer:
        """Write down what an answer permits, and return the answer that is true after that.

        Raises:
            NotRecorded: it cannot be written, or is no longer what would be permitted.
            Trouble: the session can no longer be answered for.
        """
        decision = decision_of(asked, answer, caller.name)
        if decision is None:
            return answer
        await self._recorder.write(decision)
        # Meanwhile a revocation may have come. What was written stays: the log of decisions holds more than was given.
        engine = self._waiting.find(asked.question.session_id, caller.tenants)
        now = _ASK[route.name](engine, asked.question)
        if refuses(now) and not (isinstance(now, GcAnswer) and now.reclaimable):
            return now
        if not still_holds(answer, now):
            raise NotRecorded("The session has changed while the permission was being written down. Ask again.")
        return now

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, route: Route, ids: list[str], request: web.Request, caller: Caller) -> Reply:
        shown: Any
        if route.name == "session":
            shown = ask.view(self._waiting.look(ids[0], caller.tenants), ids[0])
        elif route.name == "checkpoint":
            shown = ask.view_checkpoint(self._waiting.look(ids[0], caller.tenants), ids[0], ids[1])
        elif route.name == "findings":
            session_id, limit = read_query(request.rel_url.raw_query_string)
            if session_id is None and caller.tenants is not None:
                return refusal(route, 403, "unauthorized", _NAME_A_SESSION)
            shown = self._findings(session_id, limit, caller)
        elif route.name == "rule":
            shown = ask.view_rule(ids[0])
        else:
            shown = self._document
        if shown is None:
            code, detail = _NOT_FOUND[route.name]
            return refusal(route, 404, code, detail)
        return Reply(200, shown)

    def _findings(self, session_id: str | None, limit: int, caller: Caller) -> Any:
        if session_id is not None:
            engine = self._waiting.look(session_id, caller.tenants)
            # What is still told of a session that is forgotten is for those who may hear of all sessions.
            told = caller.tenants is None and self._recent.has(session_id)
            if not told and ask.applied(engine, session_id) is None:
                return None
        return self._recent.view(session_id, limit)


_ASK: dict[str, Callable[[Engine, Any], Answer]] = {
    "authorize": ask.authorize,
    "resume": ask.resume,
    "commit": ask.commit,
    "gc": ask.gc,
}
_MIN_SEQ = (
    "`min_seq` is needed here (guard.require_min_seq), from 1: name the position of the last record that you have "
    "published in this session."
)
_NAME_A_SESSION = "This token is for the sessions of some tenants: name one of them (`session`)."
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
