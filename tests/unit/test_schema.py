"""The schemas and the decoder say the same about every record; the AsyncAPI document is one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from sidecar.config import Settings
from sidecar.engine.rules import CATALOGUE
from sidecar.engine.rules_text import asyncapi, json_schema
from sidecar.protocol.asyncapi import CHANNELS
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import DeadLetter, Finding, Halt, Source, Subject
from sidecar.protocol.records import KINDS
from sidecar.tail.planned import plan

HERE = Path(__file__).parent
CASES = sorted((HERE.parent / "cases").glob("*.jsonl"))

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

_EVENT = {"session_id": "s", "seq": 1}
ACTION = {"kind": "action", **_EVENT, "action_id": "a"}
CONSTRAINT = {"kind": "constraint", **_EVENT, "constraint_id": "c"}
FACT = {"kind": "fact", **_EVENT, "fact_id": "f", "anchor": "x"}
TOOL = {"kind": "tool_result", **_EVENT, "call_key": "k", "handle": "h"}
SUMMARY = {
    "kind": "summary",
    **_EVENT,
    "node_id": "n",
    "generation": 1,
    "level": 1,
    "frontier_lo": 1,
    "frontier_hi": 2,
}
RETENTION = {"per_node_recall": 0.9, "source": "probe", "depth": 3}
CHECKPOINT = {
    "kind": "checkpoint",
    **_EVENT,
    "checkpoint_id": "c",
    "node_id": "n",
    "summary_generation": 1,
    "level": 1,
    "turn": 0,
    "frontier_lo": 1,
    "frontier_hi": 2,
}
RECONCILE = {"kind": "reconcile", **_EVENT, "decision": "replay"}
PROBE = {"kind": "probe", **_EVENT, "node_id": "n", "probes": 2, "recalled": 1}
MAX = 2**61 - 1


def _without(record: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in fields}


VALID: dict[str, Any] = {
    "action": ACTION,
    "unknown fields": {**ACTION, "colour": ["red"], "size": None},
    "an unknown field named type": {**ACTION, "type": "text"},
    "nulls count as absent": {**ACTION, "irreversible": None, "tenant": None, "ts": None},
    "empty optional ids count as absent": {**ACTION, "tenant": "", "agent": "", "model": ""},
    "an edge that is not explicit": {"kind": "authorization", **_EVENT, "action_id": "", "precondition_id": None},
    "a ts that is no timestamp": {**ACTION, "ts": "yesterday"},
    "a ts of the wrong type": {**ACTION, "ts": 5},
    "a ts without offset": {**ACTION, "ts": "2026-01-01T00:00:00"},
    "the largest position": {**ACTION, "seq": MAX},
    "an unknown kind": {"kind": "message", **_EVENT, "text": 5},
    "an empty kind": {"kind": "", **_EVENT},
    "a store": {"kind": "referent_added", **_EVENT, "referent_id": "r", "store": "durable"},
    "a constraint": {**CONSTRAINT, "polarity": "negative"},
    "a withdrawal needs no polarity": {**CONSTRAINT, "retired": True},
    "a withdrawal with null polarity": {**CONSTRAINT, "retired": True, "polarity": None},
    "a floor of nothing": {**FACT, "floor_tokens": 0},
    "an empty text": {**FACT, "text": ""},
    "referents": {**TOOL, "referents": ["r"]},
    "a summary": SUMMARY,
    "everything a summary may have": {
        **SUMMARY,
        "children": ["m"],
        "root": True,
        "referents": ["r"],
        "negative_constraints": [],
        "facts": {"f": ""},
        "dropped": ["g"],
        "input_tokens": 0,
        "input_tokens_read": 0,
        "token_budget": 1,
        "tokens_emitted": 2,
        "instruction": "",
        "partial": False,
        "retention": {**RETENTION, "workload": None, "flatten_available": True, "colour": 1},
    },
    "an empty handle": {**TOOL, "handle": ""},
    "a fact that is absent": {**SUMMARY, "facts": {"f": None}},
    "a recall of one, written as an integer": {**SUMMARY, "retention": {**RETENTION, "per_node_recall": 1}},
    "a summary without seq": {**_without(SUMMARY, "seq"), "as_of_seq": 0},
    "a summary with neither": _without(SUMMARY, "seq"),
    "as_of_seq beside a seq is not read": {**SUMMARY, "as_of_seq": "soon"},
    "a null seq is none": {**SUMMARY, "seq": None, "as_of_seq": 3},
    "a checkpoint": {**CHECKPOINT, "asserted_edges": [["a", "p"]], "verbatim_refs": ["r"]},
    "no edges asserted": {**CHECKPOINT, "asserted_edges": []},
    "edges that are not explicit": {**CHECKPOINT, "asserted_edges": None},
    "a resume": {"kind": "resume", "session_id": "s", "checkpoint_id": "c", "deps": []},
    "a reconcile": RECONCILE,
    "a gc of nothing": {"kind": "gc", **_EVENT, "node_ids": []},
    "a probe": PROBE,
}

INVALID: dict[str, Any] = {
    "an array": [ACTION],
    "a string": "action",
    "nothing": None,
    "no kind": _without(ACTION, "kind"),
    "a null kind": {**ACTION, "kind": None},
    "a kind that is no string": {**ACTION, "kind": 1},
    "a kind that cannot be looked up": {**ACTION, "kind": ["action"]},
    "no session": _without(ACTION, "session_id"),
    "an empty session": {**ACTION, "session_id": ""},
    "a session that is a number": {**ACTION, "session_id": 7},
    "an event without seq": _without(ACTION, "seq"),
    "an event with a null seq": {**ACTION, "seq": None},
    "an unknown kind without seq": {"kind": "message", "session_id": "s"},
    "position zero": {**ACTION, "seq": 0},
    "a position beyond 64 bits": {**ACTION, "seq": MAX + 1},
    "a position that is a boolean": {**ACTION, "seq": True},
    "a position that is a string": {**ACTION, "seq": "1"},
    "a position with a fraction": {**ACTION, "seq": 1.5},
    "a tenant that is a number": {**ACTION, "tenant": 1},
    "an empty required id": {**ACTION, "action_id": ""},
    "a truth that is a string": {**ACTION, "irreversible": "yes"},
    "a revocation of nothing": {"kind": "revocation", **_EVENT},
    "an unknown store": {"kind": "referent_added", **_EVENT, "referent_id": "r", "store": "disk"},
    "an empty store": {"kind": "referent_added", **_EVENT, "referent_id": "r", "store": ""},
    "a constraint without polarity": CONSTRAINT,
    "a constraint not retired": {**CONSTRAINT, "retired": False},
    "an unknown polarity on a withdrawal": {**CONSTRAINT, "retired": True, "polarity": "neutral"},
    "an empty anchor": {**FACT, "anchor": ""},
    "a negative floor": {**FACT, "floor_tokens": -1},
    "a null handle": {**TOOL, "handle": None},
    "an empty id in a list": {**TOOL, "referents": [""]},
    "null in a list": {**TOOL, "referents": [None]},
    "a list that is a string": {**TOOL, "referents": "r"},
    "generation zero": {**SUMMARY, "generation": 0},
    "facts that are a list": {**SUMMARY, "facts": ["f"]},
    "a fact whose text is a number": {**SUMMARY, "facts": {"f": 1}},
    "a recall of nothing": {**SUMMARY, "retention": {**RETENTION, "per_node_recall": 0}},
    "a recall above one": {**SUMMARY, "retention": {**RETENTION, "per_node_recall": 1.01}},
    "a retention without source": {**SUMMARY, "retention": _without(RETENTION, "source")},
    "an as_of_seq that is a string": {**_without(SUMMARY, "seq"), "as_of_seq": "soon"},
    "a negative as_of_seq": {**_without(SUMMARY, "seq"), "as_of_seq": -1},
    "a checkpoint without turn": _without(CHECKPOINT, "turn"),
    "an edge of three": {**CHECKPOINT, "asserted_edges": [["a", "p", "q"]]},
    "an edge of one": {**CHECKPOINT, "asserted_edges": [["a"]]},
    "an edge with an empty end": {**CHECKPOINT, "asserted_edges": [["a", ""]]},
    "an unknown decision": {**RECONCILE, "decision": "shrug"},
    "no probes": {**PROBE, "probes": 0, "recalled": 0},
}

UNSAID: dict[str, Any] = {
    "a range that runs backwards": {**SUMMARY, "frontier_lo": 3},
    "a checkpoint's range that runs backwards": {**CHECKPOINT, "frontier_lo": 3},
    "more recalled than asked": {**PROBE, "recalled": 3},
    "an integer with a fraction of nothing": {**ACTION, "seq": 1.0},
}
"""What JSON Schema has no words for: the schema takes it, the decoder does not."""


def readable(raw: bytes) -> bool:
    try:
        decode(raw)
    except Unreadable:
        return False
    return True


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", VALID)
def test_valid_record(name: str) -> None:
    VALIDATOR.validate(VALID[name])
    decode(json.dumps(VALID[name]).encode())


@pytest.mark.parametrize("name", INVALID)
def test_invalid_record(name: str) -> None:
    assert not VALIDATOR.is_valid(INVALID[name])
    with pytest.raises(Unreadable):
        decode(json.dumps(INVALID[name]).encode())


@pytest.mark.parametrize("name", UNSAID)
def test_what_the_schema_cannot_say(name: str) -> None:
    assert VALIDATOR.is_valid(UNSAID[name])
    with pytest.raises(Unreadable):
        decode(json.dumps(UNSAID[name]).encode())


def test_every_kind_has_a_valid_record() -> None:
    tried = {record["kind"] for record in VALID.values()} | {r["kind"] for r in _case_records()}
    assert tried >= set(KINDS)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    verdicts = [(VALIDATOR.is_valid(json.loads(line)), readable(line)) for line in lines]
    assert all(by_schema == by_decoder for by_schema, by_decoder in verdicts)
    assert any(by_decoder for _, by_decoder in verdicts)
    assert all(by_decoder for _, by_decoder in verdicts) or path.stem.startswith("unreadable")


def test_there_are_cases() -> None:
    assert len(CASES) >= 14


def _case_records() -> Iterator[dict[str, Any]]:
    for path in CASES:
        yield from map(json.loads, path.read_bytes().splitlines())


def test_every_field_is_described() -> None:
    described = [
        (name, field, schema.get("description"))
        for name, definition in SCHEMA["$defs"].items()
        for field, schema in definition.get("properties", {}).items()
    ]
    assert len(described) > 100
    assert [entry for entry in described if not entry[2]] == []


def _output(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"})


def _encoded(message: object) -> Any:
    return json.loads(msgspec.json.encode(message))


def test_finding_schema() -> None:
    finding = Finding(
        finding_id="f",
        rule="log_gap",
        severity="error",
        disposition="unverified",
        session_id="s",
        subject=Subject("session", "s"),
        position=3,
        evidence={"witness": [3]},
        source=Source("agent.events", 0, 7),
        tenant="t",
    )
    _output("Finding").validate(_encoded(finding))
    finding.source = None
    _output("Finding").validate(_encoded(finding))
    assert not _output("Finding").is_valid({**_encoded(finding), "rule": "log_gasp"})
    assert SCHEMA["$defs"]["Finding"]["properties"]["rule"]["enum"] == list(CATALOGUE)


def test_halt_schema() -> None:
    opened = Halt(
        halt_id="h",
        session_id="s",
        position=3,
        status="halt",
        checkpoint_id=None,
        reason=["log_conflict"],
        finding_ids=["f"],
        open_halts=["h"],
        reexpand_from=None,
        replay_from=1,
    )
    _output("Halt").validate(_encoded(opened))
    assert not _output("Halt").is_valid({**_encoded(opened), "status": "open"})


def test_dead_letter_schema() -> None:
    letter = DeadLetter(reason="not JSON", source=Source("t", 0, 1), session_id=None, seq=None, original=b"\x00")
    _output("DeadLetter").validate(_encoded(letter))
    _output("HaltAck").validate({"halt_id": "h", "by": "me", "decision": "looking"})


def _asyncapi_validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads((HERE / "data" / "asyncapi-3.0.0.json").read_bytes()))


@pytest.mark.parametrize("document", [asyncapi(), asyncapi({"events": "other.events"}, 12)], ids=["plain", "deployed"])
def test_asyncapi_is_valid(document: dict[str, Any]) -> None:
    validator = _asyncapi_validator()
    validator.validate(document)
    document["operations"]["send_halts"]["action"] = "shout"
    assert not validator.is_valid(document)  # so the schema above does look


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


@pytest.mark.parametrize("document", [asyncapi(), SCHEMA], ids=["asyncapi", "json-schema"])
def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    references = set(_references(document))
    assert references
    for reference in references:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_asyncapi_payloads_accept_what_the_decoder_accepts() -> None:
    """AsyncAPI reads schemas as draft 7: they have to mean the same there."""
    document = {"$ref": "#/components/schemas/Record", "components": asyncapi()["components"]}
    validator = jsonschema.Draft7Validator(document)
    for record in VALID.values():
        validator.validate(record)
    for name, record in INVALID.items():
        assert not validator.is_valid(record), name


def test_asyncapi_topics_are_those_the_tail_makes() -> None:
    channels = {channel.name: channel for channel in CHANNELS}
    specs = {spec.role: spec for spec in plan(Settings()) if spec.use != "state"}  # the state is nobody else's business
    assert set(specs) == {name for name, channel in channels.items() if channel.action}
    for role, spec in specs.items():
        channel = channels[role]
        assert (spec.name, spec.config.get("cleanup.policy")) == (channel.address, channel.cleanup), role
        retention = str(channel.retention_ms) if channel.retention_ms else None
        assert spec.config.get("retention.ms") == retention, role
        assert spec.use == ("input" if channel.action == "receive" else "output"), role


def test_asyncapi_names_and_partitions() -> None:
    document = asyncapi({"events": "other.events"}, 12)
    channels = document["channels"]
    assert channels["events"]["address"] == "other.events"
    assert channels["compactions"]["address"] == "agent.compactions"
    kafka = {name: channel["bindings"]["kafka"] for name, channel in channels.items()}
    assert {binding["partitions"] for binding in kafka.values()} == {12}
    assert all("partitions" not in c["bindings"]["kafka"] for c in asyncapi()["channels"].values())
    assert kafka["halts"]["topicConfiguration"] == {"cleanup.policy": ["compact"]}
    assert {name: op["action"] for name, op in document["operations"].items()} == {
        "receive_events": "receive",
        "receive_compactions": "receive",
        "receive_halt_acks": "receive",
        "send_findings": "send",
        "send_halts": "send",
        "send_sessions": "send",
        "send_dlq": "send",
        "send_decisions": "send",
        "send_alerts": "send",
    }
    assert all(f"| `{rule}` |" in document["info"]["description"] for rule in CATALOGUE)
