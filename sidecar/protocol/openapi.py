"""The guard's routes, and the OpenAPI document made of them and of the types that are decoded and encoded."""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Struct

from sidecar.protocol import api
from sidecar.protocol.api_fields import API_FIELDS
from sidecar.protocol.records import MAX_INT, Summary
from sidecar.protocol.schema import VERSION, definitions

MAX_FINDINGS = 1000
"""How many findings one answer lists at most."""

FINDINGS = 100
"""How many it lists where nothing else is asked for."""

_SCHEMAS = "#/components/schemas/"
_NULL = {"type": "null"}

Answer = api.AuthorizeAnswer | api.ResumeAnswer | api.CommitAnswer | api.GcAnswer
"""What a question is answered with, whatever the HTTP status."""


class Parameter(Struct, frozen=True, kw_only=True):
    """Describe a parameter of a path, or of a query."""

    name: str
    text: str
    schema: dict[str, Any]
    place: Literal["path", "query"] = "path"


class Route(Struct, frozen=True, kw_only=True):
    """Describe one thing that can be asked (POST) or looked at (GET).

    `question` is the type of the body, `problems` the statuses beside 200 with what they mean here.
    """

    name: str
    method: Literal["GET", "POST"]
    path: str
    title: str
    text: str
    question: type[Struct] | None = None
    answer: type[Struct] | None
    parameters: tuple[Parameter, ...] = ()
    problems: dict[int, str]

    @property
    def decisions(self) -> tuple[str, ...]:
        """Return what an answer can come to, the yes first."""
        if self.method == "GET":
            return LOOKED
        assert self.answer is not None
        hints = get_type_hints(self.answer)
        return get_args(hints["decision"]) if "decision" in hints else ("allowed", "refused")


LOOKED = ("shown", "not_shown")
"""What looking at something comes to."""

_SHUT = {
    401: "A bearer token or a client certificate is needed, and this is none that is known.",
    403: "The request comes from a web page, or names a host that this is not.",
    429: "Too many questions at the same time; ask again after `Retry-After`.",
    500: "A fault of the guard, which it has logged.",
}
_ASKING = {
    400: "The question is not valid; the reason names the field.",
    **_SHUT,
    408: "The question did not arrive in time.",
    411: "The question came without a length.",
    413: "The question is too large (`guard.max_body`).",
    415: "The question is not `application/json`, or is compressed.",
    421: "Another replica has the session; `owner` and `Location` name it where it is known.",
    503: "The permission could not be written to the log of decisions, and is not given.",
}
_LOOKING = {
    400: "A name or a number in the address cannot be read.",
    **_SHUT,
    404: "There is no such thing.",
    421: _ASKING[421],
    503: "The session's state is being restored, or the guard is stopping.",
}

_SESSION = Parameter(name="session_id", text="The session.", schema={"type": "string", "minLength": 1})
_CHECKPOINT = Parameter(name="checkpoint_id", text="The checkpoint.", schema={"type": "string", "minLength": 1})

ROUTES: tuple[Route, ...] = (
    Route(
        name="authorize",
        method="POST",
        path="/v1/authorize",
        title="May the agent carry out an irreversible action now?",
        text="Permission needs an effective edge of the action, no open halt, a log without a hole that could hide a "
        "revocation, a checkpoint in force (if any) that is `verified` or `stale`, and, where `checkpoint_id` is "
        "given, that one `verified`.",
        question=api.AuthorizeRequest,
        answer=api.AuthorizeAnswer,
        problems=_ASKING,
    ),
    Route(
        name="resume",
        method="POST",
        path="/v1/resume",
        title="May the agent go on from a checkpoint?",
        text="`resume` if the checkpoint is verified now and carries the references that the next turn needs; else "
        "`reconcile`, and with what.",
        question=api.ResumeRequest,
        answer=api.ResumeAnswer,
        problems=_ASKING,
    ),
    Route(
        name="commit",
        method="POST",
        path="/v1/commit",
        title="What would come of committing a summary?",
        text="The body is the `summary` record that would be published. Nothing of it stays.",
        question=Summary,
        answer=api.CommitAnswer,
        problems=_ASKING,
    ),
    Route(
        name="gc",
        method="POST",
        path="/v1/gc",
        title="Which nodes may be reclaimed?",
        text="What may not be reclaimed yet is listed with what it waits for.",
        question=api.GcRequest,
        answer=api.GcAnswer,
        problems=_ASKING,
    ),
    Route(
        name="session",
        method="GET",
        path="/v1/sessions/{session_id}",
        title="Where a session stands",
        text="Status, checkpoint in force, open halts, frontier.",
        answer=api.SessionView,
        parameters=(_SESSION,),
        problems=_LOOKING,
    ),
    Route(
        name="checkpoint",
        method="GET",
        path="/v1/sessions/{session_id}/checkpoints/{checkpoint_id}",
        title="Where a checkpoint stands",
        text="As it is now, which may be worse than when it was written.",
        answer=api.CheckpointView,
        parameters=(_SESSION, _CHECKPOINT),
        problems=_LOOKING,
    ),
    Route(
        name="findings",
        method="GET",
        path="/v1/findings",
        title="Recent findings",
        text="What this replica has found since it started, as far as it is kept (`guard.recent_findings`). All "
        "findings are on `agent.findings`.",
        answer=api.FindingsView,
        parameters=(
            Parameter(
                name="session",
                text="Only those of this session.",
                schema={"type": "string", "minLength": 1},
                place="query",
            ),
            Parameter(
                name="limit",
                text="How many at most.",
                schema={"type": "integer", "minimum": 1, "maximum": MAX_FINDINGS, "default": FINDINGS},
                place="query",
            ),
        ),
        problems=_LOOKING,
    ),
    Route(
        name="rule",
        method="GET",
        path="/v1/rules/{rule}",
        title="What a rule means",
        text="Where the `href` of a reason leads.",
        answer=api.RuleView,
        parameters=(Parameter(name="rule", text="The rule.", schema={"type": "string", "minLength": 1}),),
        problems={status: text for status, text in _LOOKING.items() if status not in (421, 503)},
    ),
    Route(
        name="openapi",
        method="GET",
        path="/v1/openapi.json",
        title="This document",
        text="OpenAPI 3.1, made of the types that the guard decodes and encodes.",
        answer=None,
        problems=_SHUT,
    ),
)

ASKED: tuple[Route, ...] = tuple(route for route in ROUTES if route.method == "POST")

_ANSWERS: tuple[type[Struct], ...] = (*(r.answer for r in ROUTES if r.answer is not None), api.Problem)
_QUESTIONS: tuple[type[Struct], ...] = (api.AuthorizeRequest, api.ResumeRequest, api.GcRequest)


def refuses(answer: Answer) -> bool:
    """Tell whether an answer is anything but a plain yes."""
    if isinstance(answer, api.AuthorizeAnswer):
        return answer.allowed is not True
    yes = {api.ResumeAnswer: "resume", api.CommitAnswer: "commit", api.GcAnswer: "reclaim"}
    return answer.decision != yes[type(answer)]


def openapi(rules: Iterable[str]) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document.

    Args:
        rules: the names of the rules, which a reason's and a finding's `rule` is one of.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "frontier-sidecar: the guard",
            "version": f"{VERSION}.0.0",
            "summary": "What agents ask before they act.",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The address that this document came from."}],
        # Which of them is demanded depends on how the guard is served; on loopback it may be none.
        "security": [{}, {"token": []}, {"certificate": []}, {"token": [], "certificate": []}],
        "tags": [
            {"name": "ask", "description": "Ask before acting. Every answer that is not a plain yes refuses."},
            {"name": "look", "description": "Look at what is known."},
        ],
        "paths": {route.path: {route.method.lower(): _operation(route)} for route in ROUTES},
        "components": {
            "schemas": _schemas(list(rules)),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "One of the tokens in the token file."},
                "certificate": {"type": "mutualTLS", "description": "A certificate from the clients' authority."},
            },
        },
    }


_DESCRIPTION = """\
What agents ask before they act.

- A question (`POST`) is answered with the same type whatever the HTTP status, and every answer that is not a plain yes
  refuses. A refusal is a normal answer: 200, with its reasons. No answer at all is a refusal too.
- An answer holds for the moment it was given, and for the log as far as `position`. An agent that has just published a
  record names its `seq` as `min_seq`, and is refused unless the guard knows that record.
- Nothing asked changes anything.
- Ids in an address are percent-encoded, a slash in them too (`%2F`).
"""


def _operation(route: Route) -> dict[str, Any]:
    asked = route.method == "POST"
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": ["ask" if asked else "look"],
        "summary": route.title,
        "description": route.text,
    }
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.question is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _json({"$ref": _SCHEMAS + _question_name(route.question)}),
        }
    good = {"$ref": _SCHEMAS + route.answer.__name__} if route.answer is not None else {"type": "object"}
    bad = {"$ref": _SCHEMAS + (_refusal_name(route) if asked else "Problem")}
    answered = "The answer." if asked else "What there is to see."
    operation["responses"] = {
        "200": {"description": answered, "content": _json(good)},
        **{str(status): _problem(status, route.problems[status], bad) for status in sorted(route.problems)},
    }
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.text,
        "schema": parameter.schema,
    }


def _problem(status: int, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"description": text, "content": _json(schema)}
    if header := _HEADERS.get(status):
        name, means, of = header
        made["headers"] = {name: {"description": means, "schema": of}}
    return made


_SECONDS = ("Retry-After", "Seconds after which asking again may do.", {"type": "integer"})
_HEADERS: dict[int, tuple[str, str, dict[str, Any]]] = {
    401: ("WWW-Authenticate", "How to authenticate, where that is by a token.", {"type": "string"}),
    421: ("Location", "The same on the replica that has the session.", {"type": "string", "format": "uri"}),
    429: _SECONDS,
    503: _SECONDS,
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _question_name(question: type[Struct]) -> str:
    return "CommitRequest" if question is Summary else question.__name__


def _refusal_name(route: Route) -> str:
    assert route.answer is not None
    return route.answer.__name__.replace("Answer", "Refusal")


def _schemas(rules: list[str]) -> dict[str, Any]:
    records = definitions(rules, _SCHEMAS)
    _, made = msgspec.json.schema_components((*_QUESTIONS, *_ANSWERS), ref_template=_SCHEMAS + "{name}")
    for name in ("Finding", "Subject", "Source", "Retention"):
        made[name] = records[name]
    for cls in vars(api).values():
        if isinstance(cls, type) and cls.__module__ == api.__name__ and cls.__name__ in made:
            _complete(cls, made[cls.__name__])
    made["Reason"]["properties"]["rule"] = {"enum": rules, "description": API_FIELDS["rule"]}
    made["CommitRequest"] = _proposal(records["Summary"])
    for route in ASKED:
        assert route.answer is not None
        made[_refusal_name(route)] = _refusal(route.answer)
    return {name: made[name] for name in sorted(made)}


def _complete(cls: type[Struct], schema: dict[str, Any]) -> None:
    """Describe every field, and say which are always there: of an answer, all that cannot be left out."""
    properties = schema["properties"]
    for field, described in properties.items():
        described["description"] = API_FIELDS.get(f"{cls.__name__}.{field}") or API_FIELDS[field]
        if cls not in _QUESTIONS:
            described.pop("default", None)
    if cls not in _QUESTIONS and not cls.__struct_config__.omit_defaults:
        schema["required"] = list(properties)


def _proposal(summary: dict[str, Any]) -> dict[str, Any]:
    """Make the schema of a proposed summary: the record's own, with `min_seq`, and with `kind` optional."""
    properties = {key: value for key, value in summary["properties"].items() if key != "kind"}
    kind = {"enum": ["summary", None], "description": API_FIELDS["kind"]}
    min_seq = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_INT}, _NULL], "default": None}
    return {
        **summary,
        "title": "CommitRequest",
        "description": "A `summary` record that is not published yet, and `min_seq`. Without `seq` and `as_of_seq` it "
        "is judged at the log's next position. Not expressed here: `frontier_lo` is at most `frontier_hi`.",
        "properties": {
            "kind": kind,
            **properties,
            "min_seq": {**min_seq, "description": API_FIELDS["min_seq"]},
        },
        "required": [name for name in summary["required"] if name != "kind"],
    }


def _refusal(answer: type[Struct]) -> dict[str, Any]:
    default = answer()
    field = "allowed" if isinstance(default, api.AuthorizeAnswer) else "decision"
    return {
        "title": answer.__name__.replace("Answer", "Refusal"),
        "description": f"`{answer.__name__}`, refusing.",
        "allOf": [
            {"$ref": _SCHEMAS + answer.__name__},
            {"properties": {field: {"const": getattr(default, field)}, "reasons": {"minItems": 1}}},
        ],
    }
