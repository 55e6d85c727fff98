"""See that the topics are there, create what is missing, print them."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest
from msgspec import Struct, field
from msgspec.structs import replace

from sidecar.config import Settings
from sidecar.observe.logs import get_logger
from sidecar.tail.acls import Operation, Party, on_topics
from sidecar.tail.clients import STARTUP_TIMEOUT, reach
from sidecar.tail.errors import TailError
from sidecar.tail.planned import FLEET_ROLES, TAIL_ROLES, Role, TopicSpec, plan

log = get_logger(__name__)

Needed = Mapping[str, tuple[Operation, ...]]

_SETTLE = 15.0


class Created(Struct):
    """Say what was there and what was made."""

    created: list[TopicSpec] = field(default_factory=list)
    existing: list[TopicSpec] = field(default_factory=list)


async def create_missing(
    settings: Settings,
    *,
    create: bool | None = None,
    partitions: int | None = None,
    only: Collection[Role] = TAIL_ROLES,
    party: Party = "tail",
    equal: Sequence[str] | None = None,
    within: float = STARTUP_TIMEOUT,
    options: Mapping[str, Any] | None = None,
) -> Created:
    """Create the topics that are missing, and check those that are there.

    Missing topics get as many partitions as one that exists of those that must have equal counts.

    Args:
        settings: the settings tree.
        create: whether to create; by default the setting `topics.create`.
        partitions: how many partitions; by default the setting `topics.partitions`.
        only: the roles to look at; by default those that `run` needs.
        party: who looks, and needs what the ACLs of this party say; a topic that it does not need may be missing.
        equal: the topics that must have equally many partitions; by default those that a task of the tail reads.
        within: seconds in which a broker must answer.
        options: client options, where a broker has been reached already.

    Raises:
        TailError: no broker, a topic missing or refused, or the inputs' partition counts differ.
    """
    create = settings.topics.create if create is None else create
    admin = AIOKafkaAdminClient(**(options or await reach(settings, within)))
    try:
        await asyncio.wait_for(admin.start(), within)
        specs = [spec for spec in plan(settings, partitions) if spec.role in only]
        needed = on_topics(settings, party)
        found = await _partition_counts(admin, settings, specs, needed)
        names = settings.topics.followed if equal is None else equal
        specs = _with_actual_partitions(specs, names, found)
        missing = [spec for spec in specs if spec.name not in found]
        result = Created(existing=[spec for spec in specs if spec.name in found])
        if missing and create:
            result.created, others = await _create(admin, settings, missing, needed)
            found = await _settled(admin, settings, specs, needed, [*result.created, *others])
            if unsettled := [spec.name for spec in others if spec.name in needed and spec.name not in found]:
                raise TailError(
                    f"Another replica is creating {', '.join(unsettled)}, and has not finished within {_SETTLE:g} s."
                    " Start again."
                )
            # Counted like those that were there before: a topic whose partitions are not known could grow unseen.
            result.existing += [replace(spec, partitions=found[spec.name]) for spec in others if spec.name in found]
        elif lacking := [spec for spec in missing if spec.name in needed]:
            raise TailError(_missing(lacking))
        check_equal(names, found)
    except KafkaError as error:
        raise TailError(f"The topics could not be checked or created: {error!r}.") from error
    finally:
        await admin.close()
    for spec in result.created:
        log.info("topic created", topic=spec.name, partitions=spec.partitions)
    return result


async def prepare_fleet(settings: Settings, within: float = STARTUP_TIMEOUT) -> tuple[dict[str, Any], int]:
    """Reach the brokers, see that the fleet's topics are there, and return client options and the partition count.

    Args:
        settings: the settings tree.
        within: seconds in which a broker must answer.

    Raises:
        TailError: no broker, a topic missing or refused, or their partition counts differ.
    """
    options = await reach(settings, within)
    equal = [spec.name for spec in plan(settings) if spec.role in FLEET_ROLES and spec.role != "dlq"]
    topics = await create_missing(
        settings, only=FLEET_ROLES, party="fleet", equal=equal, within=within, options=options
    )
    await _see_that_the_group_is_open(settings, options, within)
    return options, next(spec.partitions for spec in (*topics.existing, *topics.created) if spec.role == "findings")


async def _see_that_the_group_is_open(settings: Settings, options: Mapping[str, Any], within: float) -> None:
    """Raise TailError where the broker does not let us into the fleet's group: the consumer would wait in silence."""
    group, some = settings.fleet.group_id, TopicPartition(settings.topics.findings, 0)
    admin = AIOKafkaAdminClient(**options)
    try:
        await asyncio.wait_for(admin.start(), within)
        await asyncio.wait_for(admin.list_consumer_group_offsets(group, partitions=[some]), within)
    except GroupAuthorizationFailedError:
        raise TailError(
            f"The broker does not let the fleet into its consumer group (GroupAuthorizationFailedError). Grant"
            f" {principal(settings)} the ACL READ on group {group} (fleet.group_id)."
        ) from None
    except (KafkaError, TimeoutError) as error:
        log.debug("whether the group is open could not be seen", error=repr(error))
    finally:
        await admin.close()


def check_equal(names: Sequence[str], counts: Mapping[str, int]) -> None:
    """Raise TailError, naming the topics, unless they have equally many partitions."""
    known = {name: counts[name] for name in names if name in counts}
    if len(set(known.values())) > 1:
        listed = " and ".join(f"{name} has {count}" for name, count in known.items())
        raise TailError(
            "These topics must have equally many partitions, because every record of a session has to reach one"
            f" consumer: {listed}. Recreate one of them, or name others in the section `topics`."
        )


def check_room(settings: Settings, counts: Mapping[str, int]) -> None:
    """Raise TailError if the snapshot topic has no partition for some partition of the inputs."""
    kept, inputs = settings.topics.snapshots, settings.topics.events
    if counts[kept] < counts[inputs]:
        raise TailError(
            f"The topic {kept} has {counts[kept]} partitions and {inputs} has {counts[inputs]}: the state of the others"
            f" cannot be kept. Give {kept} as many (kafka-topics.sh --alter --topic {kept} --partitions"
            f" {counts[inputs]})."
        )


def _with_actual_partitions(specs: list[TopicSpec], names: Sequence[str], found: Mapping[str, int]) -> list[TopicSpec]:
    """Give existing topics the count they have, and missing ones that of an input that exists."""
    count = next((found[name] for name in names if name in found), None)
    return [replace(spec, partitions=found.get(spec.name, count or spec.partitions)) for spec in specs]


async def _partition_counts(
    admin: AIOKafkaAdminClient, settings: Settings, specs: Sequence[TopicSpec], needed: Needed
) -> dict[str, int]:
    """Return the partition counts of those topics that exist (and have all their leaders)."""
    # Not `describe_topics`: its request lets brokers create what is asked for, with their own defaults.
    reply = (await admin._send_request(MetadataRequest([spec.name for spec in specs], False))).to_object()
    counts: dict[str, int] = {}
    hidden: set[str] = set()
    for topic in reply["topics"]:
        if for_code(topic["error_code"]) is TopicAuthorizationFailedError and topic["topic"] in needed:
            hidden.add(topic["topic"])
        if topic["partitions"] and all(partition["leader"] >= 0 for partition in topic["partitions"]):
            counts[topic["topic"]] = len(topic["partitions"])
    if hidden:
        raise TailError(_hidden(settings, {name: needed[name] for name in needed if name in hidden}))
    return counts


async def _create(
    admin: AIOKafkaAdminClient, settings: Settings, missing: list[TopicSpec], needed: Needed
) -> tuple[list[TopicSpec], list[TopicSpec]]:
    """Create topics; return those that were, and those that somebody else has created meanwhile."""
    request = [
        NewTopic(spec.name, spec.partitions, spec.replication_factor, topic_configs=spec.config) for spec in missing
    ]
    reply = (await admin.create_topics(request)).to_object()
    answers = {entry["topic"]: entry for entry in reply["topic_errors"]}
    created: list[TopicSpec] = []
    others: list[TopicSpec] = []
    for spec in missing:
        answer = answers.get(spec.name, {"error_code": -1})
        if trouble := refusal(settings, spec, answer["error_code"], answer.get("error_message")):
            if spec.name in needed:
                raise TailError(trouble)
            log.info("an optional topic was not created", topic=spec.name, reason=trouble)
        else:
            (others if answer["error_code"] else created).append(spec)
    return created, others


def refusal(settings: Settings, spec: TopicSpec, code: int, message: str | None) -> str | None:
    """Return what to tell the operator about a broker's answer to a creation; None if the topic is there.

    Args:
        settings: the settings tree, to name the principal.
        spec: the topic asked for.
        code: the broker's error code.
        message: the broker's own words, if any.
    """
    if code == 0:
        return None
    error = for_code(code)
    if error is TopicAlreadyExistsError:  # Another replica was quicker.
        return None
    if error in (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
        return _forbidden(settings, spec.name, error.__name__)
    said = f": {message}" if message else ""
    return (
        f"The topic {spec.name} ({spec.partitions} partitions, replication factor {spec.replication_factor}) could"
        f" not be created: {error.__name__}{said}. See topics.partitions and topics.replication_factor, or create"
        " it yourself: `sidecar topics` prints what is needed."
    )


def principal(settings: Settings) -> str:
    """Return how a broker's ACLs name this client, as far as that is known here."""
    user = settings.kafka.sasl_username
    return f"User:{user}" if user else "this client's principal (no SASL user name is set)"


def _forbidden(settings: Settings, topic: str, error: str) -> str:
    return (
        f"The broker does not let the sidecar create the topic {topic} ({error}). Grant {principal(settings)} the ACL"
        f" CREATE on topic {topic}, or have an administrator run `sidecar topics --create`; `sidecar topics`"
        " prints every topic with its partitions and cleanup policy."
    )


def _hidden(settings: Settings, hidden: Needed) -> str:
    names: dict[tuple[Operation, ...], list[str]] = {}
    for name, operations in hidden.items():
        names.setdefault(operations, []).append(name)
    wanted = [
        f"{' and '.join(operation.upper() for operation in operations)} on {', '.join(listed)}"
        for operations, listed in names.items()
    ]
    head = (
        "The broker does not let the sidecar see topics that it needs (TopicAuthorizationFailedError). Grant"
        f" {principal(settings)} the ACLs {'; '.join(wanted)}"
    )
    if any("Create" in operations for operations in names):
        return f"{head}. `sidecar acls` prints what each party needs."
    return (
        f"{head}; and CREATE on those that do not exist, or have an administrator run `sidecar topics --create`."
        " `sidecar topics` prints every topic, `sidecar acls` what each party needs."
    )


def _missing(specs: list[TopicSpec]) -> str:
    names = ", ".join(spec.name for spec in specs)
    return (
        f"Missing topics: {names}. They are not created because topics.create is false: create them with"
        " `sidecar topics --create`, or by hand as `sidecar topics` prints them."
    )


async def _settled(
    admin: AIOKafkaAdminClient,
    settings: Settings,
    specs: list[TopicSpec],
    needed: Needed,
    new: list[TopicSpec],
) -> dict[str, int]:
    """Wait until new topics have leaders: a client that asks earlier backs off for longer than this takes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SETTLE
    while True:
        found = await _partition_counts(admin, settings, specs, needed)
        if all(spec.name in found for spec in new) or loop.time() > deadline:
            return found
        await asyncio.sleep(0.05)


# --- printing -------------------------------------------------------------------------------------


def render(specs: Sequence[TopicSpec], style: Literal["table", "json", "commands"] = "table", servers: str = "") -> str:
    """Return the topics as a table, as JSON, or as kafka-topics.sh commands.

    Args:
        specs: the topics, from `plan`.
        style: how to print them.
        servers: bootstrap servers to put into the commands.
    """
    if style == "json":
        return json.dumps([_plain(spec) for spec in specs], indent=2)
    if style == "commands":
        return "\n".join(_command(spec, servers or "HOST:PORT") for spec in specs)
    head = ("topic", "use", "partitions", "replication", "configuration", "about")
    rows = [
        (
            s.name,
            s.use,
            str(s.partitions),
            str(s.replication_factor),
            " ".join(map("=".join, s.config.items())),
            s.about,
        )
        for s in specs
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def _plain(spec: TopicSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "role": spec.role,
        "use": spec.use,
        "partitions": spec.partitions,
        "replication_factor": spec.replication_factor,
        "config": spec.config,
        "about": spec.about,
        "required": spec.required,
    }


def _command(spec: TopicSpec, servers: str) -> str:
    config = " ".join(f"--config {shlex.quote(f'{key}={value}')}" for key, value in spec.config.items())
    return (
        f"kafka-topics.sh --bootstrap-server {shlex.quote(servers)} --create --if-not-exists"
        f" --topic {shlex.quote(spec.name)} --partitions {spec.partitions}"
        f" --replication-factor {spec.replication_factor} {config}"
    )
