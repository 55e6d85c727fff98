"""The AsyncAPI document: which topics there are, what is on them, and who sends it."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from sidecar.protocol.outputs import Alert, DeadLetter, Decision, Finding, Halt, HaltAck, SessionRecord
from sidecar.protocol.records import COMPACTIONS, EVENTS, Opaque
from sidecar.protocol.schema import VERSION, definitions

_BINDING = "0.5.0"
_SCHEMAS = "#/components/schemas/"


class Channel(Struct, frozen=True, kw_only=True):
    """Describe one topic: its key, what is on it, and the sidecar's part in it."""

    name: str
    address: str
    title: str
    text: str
    key: str
    cleanup: Literal["delete", "compact"]
    action: Literal["receive", "send"] | None
    messages: tuple[type[Struct], ...] = ()
    retention_ms: int | None = None


_SESSION = "The session id, in UTF-8."

CHANNELS: tuple[Channel, ...] = (
    Channel(
        name="events",
        address="agent.events",
        title="Log events",
        text="The agents' logs. Records are read by their `kind`, so compaction records may come here too.",
        key=_SESSION,
        cleanup="delete",
        action="receive",
        messages=(*EVENTS, Opaque),
    ),
    Channel(
        name="compactions",
        address="agent.compactions",
        title="Compaction records",
        text="Summaries, checkpoints and what is done with them; as many partitions as the log events.",
        key=_SESSION,
        cleanup="delete",
        action="receive",
        messages=COMPACTIONS,
    ),
    Channel(
        name="findings",
        address="agent.findings",
        title="Findings",
        text="One message per violation. Delivery may repeat one: drop repeats by `finding_id`.",
        key=_SESSION,
        cleanup="delete",
        action="send",
        messages=(Finding,),
    ),
    Channel(
        name="halts",
        address="agent.halts",
        title="Halts",
        text="One message when a halt opens and one when it clears. The newest message of a session names all "
        "halts that are open, so a compacted topic is enough to know who may act.",
        key=_SESSION,
        cleanup="compact",
        action="send",
        messages=(Halt,),
    ),
    Channel(
        name="sessions",
        address="agent.sessions",
        title="Sessions",
        text="Where a session stands, written when its status, its checkpoint in force, its halts or what survived its "
        "summaries changed, and at intervals while it is degraded and its log goes on. The newest message of a session "
        "is all there is to know; one without a value: the session was forgotten.",
        key=_SESSION,
        cleanup="compact",
        action="send",
        messages=(SessionRecord,),
    ),
    Channel(
        name="halt_acks",
        address="agent.halt_acks",
        title="Halt acknowledgements",
        text="Says that somebody has taken a halt in hand. It clears nothing.",
        key="The session id, in UTF-8: by it the fleet finds the halt.",
        cleanup="delete",
        action="receive",
        messages=(HaltAck,),
    ),
    Channel(
        name="dlq",
        address="agent.dlq",
        title="Dead letters",
        text="What could not be read, with the reason, the bytes and the place it came from.",
        key="The key of the message that could not be read, if it had one.",
        cleanup="delete",
        action="send",
        messages=(DeadLetter,),
        retention_ms=30 * 24 * 3600 * 1000,
    ),
    Channel(
        name="alerts",
        address="agent.alerts",
        title="Fleet alerts",
        text="What concerns the fleet: storms, regressions, halts that nobody takes in hand, repeat offenders, silence."
        " Each alert is raised once, updated, and cleared; the newest message of an alert says how it stands.",
        key="The alert id, in UTF-8.",
        cleanup="compact",
        action="send",
        messages=(Alert,),
    ),
    Channel(
        name="snapshots",
        address="agent.snapshots",
        title="Snapshots",
        text="Reserved for the sidecar's own state, in a format of its own; as many partitions as the log events.",
        key=_SESSION,
        cleanup="compact",
        action=None,
    ),
    Channel(
        name="decisions",
        address="agent.decisions",
        title="Decisions",
        text="Every permission that the guard gave, written before it was given.",
        key=_SESSION,
        cleanup="delete",
        action="send",
        messages=(Decision,),
        retention_ms=30 * 24 * 3600 * 1000,
    ),
    Channel(
        name="misplaced",
        address="agent.misplaced",
        title="Misplaced records",
        text="Reserved for the sidecar: tells the partition of a session that one of its records was in another one. "
        "As many partitions as the log events.",
        key=_SESSION,
        cleanup="delete",
        action=None,
    ),
)


def asyncapi(
    rules: Iterable[str],
    rule_table: str,
    topics: Mapping[str, str] | None = None,
    partitions: int | None = None,
) -> dict[str, Any]:
    """Make the AsyncAPI 3.0 document, with the operations as the sidecar sees them.

    Args:
        rules: the names of the rules.
        rule_table: the rules in Markdown, for the description.
        topics: topic names by channel name, where they are not the defaults.
        partitions: how many partitions every topic has; absent: not said.
    """
    addresses = topics or {}
    return {
        "asyncapi": "3.0.0",
        "id": f"urn:frontier-sidecar:protocol:{VERSION}",
        "info": {
            "title": "frontier-sidecar",
            "version": f"{VERSION}.0.0",
            "description": _description(rule_table),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            channel.name: _channel(channel, addresses.get(channel.name, channel.address), partitions)
            for channel in CHANNELS
        },
        "operations": {_operation_id(channel): _operation(channel) for channel in CHANNELS if channel.action},
        "components": {
            "messages": {_message_id(cls): _message(cls, channel) for channel in CHANNELS for cls in channel.messages},
            "schemas": definitions(rules, _SCHEMAS),
        },
    }


def _description(rule_table: str) -> str:
    return (
        "Judges the context compactions of LLM agents as they happen: it reads the agents' logs and what their "
        "compactors write, and answers with findings and halts.\n\n"
        "Each session has one total order, by `seq`, shared by log events and compaction records. What cannot be "
        "read becomes a dead letter and stops nothing. The input topics must have equal partition counts, so that "
        "a session's records meet in one consumer; an output goes to the partition number its input came from.\n\n"
        f"## Rules\n\n{rule_table}"
    )


def _channel(channel: Channel, address: str, partitions: int | None) -> dict[str, Any]:
    kafka: dict[str, Any] = {"topic": address}
    if partitions is not None:
        kafka["partitions"] = partitions
    kafka["topicConfiguration"] = {"cleanup.policy": [channel.cleanup]}
    if channel.retention_ms is not None:
        kafka["topicConfiguration"]["retention.ms"] = channel.retention_ms
    return {
        "address": address,
        "title": channel.title,
        "description": f"{channel.text} Key: {channel.key}",
        "messages": {
            _message_id(cls): {"$ref": f"#/components/messages/{_message_id(cls)}"} for cls in channel.messages
        },
        "bindings": {"kafka": {**kafka, "bindingVersion": _BINDING}},
    }


def _operation_id(channel: Channel) -> str:
    return f"{channel.action}_{channel.name}"


def _operation(channel: Channel) -> dict[str, Any]:
    return {
        "action": channel.action,
        "title": channel.title,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{_message_id(cls)}"} for cls in channel.messages],
    }


def _message_id(cls: type[Struct]) -> str:
    return cls.__name__[0].lower() + cls.__name__[1:]


def _message(cls: type[Struct], channel: Channel) -> dict[str, Any]:
    return {
        "name": _message_id(cls),
        "title": cls.__name__,
        "summary": (cls.__doc__ or "").partition("\n")[0],
        "contentType": "application/json",
        "payload": {"$ref": _SCHEMAS + cls.__name__},
        "bindings": {
            "kafka": {"key": {"type": "string", "description": channel.key}, "bindingVersion": _BINDING},
        },
    }
