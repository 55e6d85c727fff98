"""What goes out: answers and refusals, and what they come to for the metrics."""

from typing import Any

import msgspec
from aiohttp import hdrs, web
from msgspec import Struct

from sidecar.guard.questions import JSON
from sidecar.protocol.api import AuthorizeAnswer, Code, GcAnswer, Problem, Reason
from sidecar.protocol.openapi import LOOKED, Answer, Route, refuses

_CLOSING = (408, 411, 413)
"""The statuses after which the rest of a question is not waited for."""


class Reply(Struct):
    """Hold what is about to be sent."""

    status: int
    body: Any
    headers: dict[str, str] = {}

    def response(self) -> web.Response:
        """Return it as it goes out."""
        response = web.Response(
            body=msgspec.json.encode(self.body) + b"\n",
            status=self.status,
            content_type=JSON,
            headers={hdrs.CACHE_CONTROL: "no-store", **self.headers},
        )
        if self.status in _CLOSING:
            response.force_close()
        return response

    def outcome(self) -> tuple[str, set[str]]:
        """Return what it comes to, and the codes of its reasons where that is no yes."""
        body = self.body
        if isinstance(body, Problem):
            return LOOKED[1], {reason.code for reason in body.reasons}
        if not isinstance(body, Answer):
            return LOOKED[0], set()
        refused = refuses(body)
        decision = ("allowed", "refused")[refused] if isinstance(body, AuthorizeAnswer) else body.decision
        if not refused:
            return decision, set()
        reasons = [*body.reasons]
        if isinstance(body, GcAnswer):
            reasons += [reason for deferred in body.deferred for reason in deferred.waits_for]
        return decision, {reason.code for reason in reasons}


def refusal(
    route: Route | None,
    status: int,
    code: Code,
    detail: str,
    *,
    session_id: str | None = None,
    position: int | None = None,
    owner: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Refuse: a question with its own type of answer, whose defaults refuse; anything else with a `Problem`.

    Args:
        route: what was asked, if anything was.
        status: the HTTP status.
        code: the reason for programs.
        detail: the reason for people.
        session_id: the session, if that is known already.
        position: how far the log has been applied, if that is known.
        owner: which replica to ask instead.
        headers: of the response.
    """
    reasons = [Reason(code=code, detail=detail)]
    body: Struct
    if route is None or route.answer is None or route.method == "GET":
        body = Problem(reasons=reasons, owner=owner)
    else:
        body = route.answer(reasons=reasons, session_id=session_id, position=position, owner=owner)
    return Reply(status, body, headers or {})
