"""The OpenAPI document is valid, complete, and what the guard does."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
import schemathesis
from click.testing import CliRunner
from schemathesis.specs.openapi.definitions import OPENAPI_31

from sidecar.cli import cli
from sidecar.engine.rules import CATALOGUE
from sidecar.guard.questions import Invalid, read_question
from sidecar.protocol import api
from sidecar.protocol.api_fields import API_FIELDS
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.openapi import ASKED, ROUTES, openapi, refuses
from tests.guard.support import guarded
from tests.guard.test_api import QUESTIONS, SUMMARY
from tests.judge.sessions import ill_typed, random_session

DOCUMENT = openapi(CATALOGUE)
SCHEMAS = DOCUMENT["components"]["schemas"]


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(schema)


def test_the_document_is_openapi() -> None:
    jsonschema.Draft202012Validator(OPENAPI_31).validate(DOCUMENT)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    loaded = schemathesis.openapi.from_dict(DOCUMENT)
    assert len(loaded) == len(ROUTES)


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from walk(each, f"{path}/{key}")


def test_everything_is_described_and_every_reference_leads_somewhere() -> None:
    for path, value in walk(DOCUMENT):
        if not isinstance(value, dict):
            continue
        if "$ref" in value:
            assert value["$ref"].removeprefix("#/components/schemas/") in SCHEMAS, path
        if "responses" in value:
            assert value["description"] and value["summary"]
    for name, schema in SCHEMAS.items():
        assert schema["description"], name
        for field, described in schema.get("properties", {}).items():
            assert described["description"], f"{name}.{field}"


def test_no_field_is_described_that_there_is_not() -> None:
    fields = {
        name: set(cls.__struct_fields__)
        for name, cls in vars(api).items()
        if isinstance(cls, type) and issubclass(cls, msgspec.Struct)
    }
    for key in API_FIELDS:
        owner, _, field = key.rpartition(".")
        assert field in (fields[owner] if owner else set().union(*fields.values(), {"kind"})), key


async def test_the_routes_and_the_document_agree() -> None:
    assert [(path, [*item]) for path, item in DOCUMENT["paths"].items()] == [
        (route.path, [route.method.lower()]) for route in ROUTES
    ]
    async with guarded() as g:
        served = await g.look("/v1/openapi.json")
        assert served.body == json.loads(json.dumps(DOCUMENT))
        for path, item in DOCUMENT["paths"].items():
            filled = path.replace("{session_id}", "x").replace("{checkpoint_id}", "y").replace("{rule}", "z")
            for method in item:
                answer = await g.request(method.upper(), filled, json={} if method == "post" else None)
                assert answer.status not in (405, 500)
                assert "nothing at this address" not in str(answer.body)


def test_the_document_is_printed() -> None:
    printed = CliRunner().invoke(cli, ["schema", "openapi"])
    assert printed.exit_code == 0
    assert json.loads(printed.output) == json.loads(json.dumps(DOCUMENT))


def test_every_type_refuses_by_itself() -> None:
    """An answer of which only the reasons are set must be a refusal, by its schema too."""
    for route in ASKED:
        assert route.answer is not None
        answer: Any = route.answer(reasons=[api.Reason(code="unavailable", detail="…")])
        assert refuses(answer)
        refusal = validator(route.answer.__name__.replace("Answer", "Refusal"))
        refusal.validate(msgspec.to_builtins(answer))
        yes = {"allowed": True} if route.name == "authorize" else {"decision": route.decisions[0]}
        assert refusal.is_valid({**msgspec.to_builtins(answer), **yes}) is (yes.get("decision") == "reconcile")
        for status, response in DOCUMENT["paths"][route.path]["post"]["responses"].items():
            name = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert name.endswith("Answer" if status == "200" else "Refusal")


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_schemas_of_questions_are_what_is_read(name: str) -> None:
    """Take away, add and spoil fields: the schema and the decoder must agree on each."""
    rng = random.Random(name)
    route = next(route for route in ASKED if route.name == name)
    schema = validator("CommitRequest" if name == "commit" else route.question.__name__)  # type: ignore[union-attr]
    values = [None, "", "x", 0, 1, -1, 1.5, True, [], ["x"], [""], {}, {"x": "y"}, 2**61, "yesterday"]
    agreed = {True: 0, False: 0}
    for _ in range(400):
        question: dict[str, Any] = dict(QUESTIONS[name])
        for _ in range(rng.randint(0, 2)):
            known = [*question, "min_seq", "extra", "kind", *(["seq", "ts", "as_of_seq", "facts"] * (name == "commit"))]
            field = rng.choice(known)
            if rng.random() < 0.3:
                question.pop(field, None)
            else:
                question[field] = rng.choice(values)
        if question.get("frontier_lo", 1) == 2**61 or question.get("frontier_hi") == 1 or "frontier_lo" not in question:
            question["frontier_lo"] = 1  # what the schema cannot say: the range is not empty
            if name != "commit":
                del question["frontier_lo"]
        if isinstance(question.get("facts"), dict):
            question["facts"] = {"f": None}
        try:
            read_question(route, json.dumps(question).encode())
            read = True
        except Invalid:
            read = False
        assert schema.is_valid(question) is read, question
        agreed[read] += 1
    assert min(agreed.values()) > 40


def test_a_proposal_is_valid_exactly_where_the_record_is() -> None:
    rng = random.Random(5)
    route = next(route for route in ASKED if route.name == "commit")
    agreed = {True: 0, False: 0}
    for seed in range(150):
        for row in random_session(random.Random(seed), "s"):
            if row["kind"] != "summary":
                continue
            for line in (json.dumps(row).encode(), ill_typed(rng, row)):
                fields = json.loads(line)
                try:
                    expected, digest = decode(line)
                except Unreadable as error:
                    if fields.get("kind", "summary") == "summary":
                        with pytest.raises(Invalid) as caught:
                            read_question(route, line)
                        if "kind" in fields:
                            assert caught.value.detail == error.reason
                        agreed[False] += 1
                    continue
                if fields["kind"] != "summary":
                    continue
                assert read_question(route, line).question == expected
                without = {key: value for key, value in fields.items() if key != "kind"}
                asked = read_question(route, json.dumps({**without, "min_seq": 10**6}).encode())
                assert (asked.question, asked.position) == (expected, 10**6)
                agreed[True] += 1
                assert digest
    assert min(agreed.values()) > 50


def test_a_proposal_is_judged_once_the_log_is_there() -> None:
    route = next(route for route in ASKED if route.name == "commit")

    def position(**fields: Any) -> int | None:
        return read_question(route, json.dumps({"session_id": "s", **SUMMARY, **fields}).encode()).position

    assert position() is None
    assert position(min_seq=0) == 0
    assert position(as_of_seq=7) == 7
    assert position(seq=7) == 6
    assert position(seq=7, min_seq=9) == 9
    assert position(seq=7, min_seq=3) == 6
