"""JSON Schema of every record, made from the types that the decoder itself uses.

A schema here accepts what the decoder accepts, but for four things that JSON Schema has no words for:
`frontier_lo` at most `frontier_hi`, `recalled` at most `probes`, an integer written `1.0` (the decoder
refuses it), and the same key twice in one object.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from sidecar.protocol.fields import DEFAULTS, FIELDS
from sidecar.protocol.outputs import Alert, DeadLetter, Decision, Finding, Halt, HaltAck, SessionRecord
from sidecar.protocol.records import COMPACTIONS, EVENTS, KINDS, Opaque, Record

DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSION = 1
_NULL = {"type": "null"}
_COMMON = "What is `null`, or for a single id the empty string, counts as absent; unknown fields are ignored."
_UNSAID = {
    "Summary": "Not expressed here: `frontier_lo` is at most `frontier_hi`.",
    "Checkpoint": "Not expressed here: `frontier_lo` is at most `frontier_hi`.",
    "Probe": "Not expressed here: `recalled` is at most `probes`.",
}


def json_schema(rules: Iterable[str]) -> dict[str, Any]:
    """Make one JSON Schema (2020-12) document: an input record at its root, everything else under `$defs`.

    Args:
        rules: the names of the rules, which a finding's `rule` is one of.
    """
    return {
        "$schema": DIALECT,
        "$id": f"urn:frontier-sidecar:protocol:{VERSION}",
        "title": f"Record protocol, version {VERSION}",
        "description": "An input record. The outputs are `Finding`, `Halt`, `SessionRecord`, `DeadLetter`, "
        "`Alert` and `Decision` under `$defs`; `HaltAck` is read from its own topic. " + _COMMON,
        "$ref": "#/$defs/Record",
        "$defs": definitions(rules, "#/$defs/"),
    }


def definitions(rules: Iterable[str], prefix: str) -> dict[str, Any]:
    """Make the schema of every type by name.

    Every one of them means the same under JSON Schema draft 7, for AsyncAPI reads schemas as that.

    Args:
        rules: the names of the rules.
        prefix: what stands before a type's name in a `$ref`.
    """
    types = (*EVENTS, Opaque, *COMPACTIONS, Finding, Halt, SessionRecord, DeadLetter, Alert, Decision, HaltAck)
    _, made = msgspec.json.schema_components(types, ref_template=prefix + "{name}")
    for kind, cls in KINDS.items():
        _complete_record(made[cls.__name__], {"const": kind}, kind)
        if note := _UNSAID.get(cls.__name__):
            made[cls.__name__]["description"] += " " + note
    _complete_record(made["Opaque"], {"type": "string", "not": {"enum": sorted(KINDS)}}, "opaque")
    nested = ("CheckpointState", "Survival", "Subject", "Source")
    outputs = ("Finding", "Halt", "SessionRecord", "DeadLetter", "Alert", "Decision", "HaltAck")
    for name in ("Retention", *outputs, *nested):
        _describe(made[name]["properties"], name.lower())
    for cls in COMPACTIONS:
        _place_without_seq(made[cls.__name__])
    _need_polarity(made["Constraint"])
    _allow_absent_facts(made["Summary"])
    made["Finding"]["properties"]["rule"] = {"enum": list(rules), "description": FIELDS["rule"]}
    unions: dict[str, tuple[str, tuple[type[Record], ...]]] = {
        "LogEvent": ("A record of the log itself.", (*EVENTS, Opaque)),
        "CompactionRecord": ("What a compactor or a recovering agent did.", COMPACTIONS),
    }
    for name, (text, members) in unions.items():
        made[name] = {
            "title": name,
            "description": text,
            "oneOf": [{"$ref": prefix + cls.__name__} for cls in members],
        }
    made["Record"] = {
        "title": "Record",
        "description": "Any input record. " + _COMMON,
        "oneOf": [{"$ref": prefix + name} for name in unions],
    }
    return {name: _plain(made[name]) for name in sorted(made)}


def _complete_record(schema: dict[str, Any], kind: dict[str, Any], name: str) -> None:
    """Put `kind` where the type has its tag, loosen `ts` to what is read, and describe every field."""
    properties = {key: value for key, value in schema["properties"].items() if key not in ("type", "kind")}
    properties["ts"] = {"format": "date-time"}
    first = {key: properties.pop(key) for key in ("session_id", "seq")}
    schema["properties"] = {"kind": kind, **first, **properties}
    required = {key for key in schema["required"] if key != "type"} | {"kind"}
    schema["required"] = [key for key in schema["properties"] if key in required]
    _describe(schema["properties"], name)


def _describe(properties: dict[str, Any], kind: str) -> None:
    for field, schema in properties.items():
        schema.pop("default", None)
        own = f"{kind}.{field}"
        schema["description"] = FIELDS.get(own) or FIELDS[field]
        if field == "detected_at":
            schema["format"] = "date-time"
        if field in DEFAULTS:
            schema["default"] = DEFAULTS[field]


def _place_without_seq(schema: dict[str, Any]) -> None:
    """Hold `as_of_seq` to its type only where it is read: without a `seq`."""
    as_of_seq = schema["properties"]["as_of_seq"]
    typed = {key: as_of_seq.pop(key) for key in list(as_of_seq) if key != "description"}
    schema["if"] = {"required": ["seq"], "properties": {"seq": {"not": _NULL}}}
    schema["else"] = {"properties": {"as_of_seq": typed}}


def _need_polarity(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [
        {"required": ["polarity"], "properties": {"polarity": {"not": _NULL}}},
        {"required": ["retired"], "properties": {"retired": {"const": True}}},
    ]


def _allow_absent_facts(schema: dict[str, Any]) -> None:
    """Let a fact's text be `null`, which the decoder takes for a fact that is not there."""
    facts = schema["properties"]["facts"]["anyOf"][0]
    facts["additionalProperties"] = {"anyOf": [facts["additionalProperties"], _NULL]}


def _plain(schema: Any) -> Any:
    """Write fixed-length arrays of one type in the words that both drafts know, and drop repeated descriptions."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _plain(value) for key, value in schema.items()}
    items = made.get("prefixItems")
    if isinstance(items, list):
        if any(item != items[0] for item in items):
            raise TypeError("a tuple of different types has no form common to both drafts")
        del made["prefixItems"]
        made["items"] = items[0]
    if "description" in made and isinstance(made.get("anyOf"), list):
        made["anyOf"] = [_without_description(option) for option in made["anyOf"]]
    return made


def _without_description(option: Any) -> Any:
    return {key: value for key, value in option.items() if key != "description"}
