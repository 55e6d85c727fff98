"""Hold what was permitted in a storm against the topics: what was written, where, and what the naive judge says."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec
from aiokafka import ConsumerRecord

from sidecar.config import Settings
from sidecar.protocol.outputs import Decision
from sidecar.tail.homes import Homes
from tests.guard.reconcile import Wrong, wrong_permissions
from tests.kafka.storm_ledger import Asked, Closed
from tests.kafka.storm_replicas import Outage
from tests.kafka.support import read_topic
from tests.kafka.tail_support import PARTITIONS


class Logs(msgspec.Struct):
    """Hold the input topics: of each session the lines in its home partition, and those in others with their time."""

    home: dict[str, list[bytes]]
    elsewhere: dict[str, list[tuple[float, bytes]]]
    records: int


async def read_logs(settings: Settings) -> Logs:
    """Read the input topics in the order of their records' times."""
    bootstrap, homes = settings.kafka.bootstrap_servers[0], Homes("murmur2", PARTITIONS)
    found: list[ConsumerRecord] = []
    for topic in settings.topics.inputs:
        found += await read_topic(bootstrap, topic, within=60.0)
    logs = Logs(defaultdict(list), defaultdict(list), len(found))
    # Stable: what one partition holds stays in its order.
    for record in sorted(found, key=lambda record: record.timestamp):
        session_id = (record.key or b"").decode()
        if record.partition == homes.of(session_id):
            logs.home[session_id].append(record.value or b"")
        else:
            logs.elsewhere[session_id].append((record.timestamp / 1000, record.value or b""))
    return logs


async def read_decisions(settings: Settings) -> list[Decision]:
    """Read the guard's decisions."""
    records = await read_topic(settings.kafka.bootstrap_servers[0], settings.topics.decisions, within=60.0)
    return [msgspec.json.decode(record.value or b"", type=Decision) for record in records]


async def errors_of(settings: Settings, prefix: str) -> Counter[str]:
    """Count the rules of errors that were found in sessions whose ids begin so."""
    records = await read_topic(settings.kafka.bootstrap_servers[0], settings.topics.findings, within=60.0)
    found = [json.loads(record.value or b"") for record in records]
    return Counter(f["rule"] for f in found if f["session_id"].startswith(prefix) and f["severity"] != "warning")


def judged(decisions: Iterable[Decision], logs: Logs) -> list[Wrong]:
    """Return the permissions that the naive judge would not have given, in the sessions as they stand at home."""
    unlike: dict[bytes, Decision] = {}
    for each in decisions:
        fields = msgspec.structs.asdict(each) | {"decision_id": "", "decided_at": None}
        unlike.setdefault(msgspec.json.encode(fields), each)
    by_session: dict[str, list[Decision]] = defaultdict(list)
    for each in unlike.values():
        by_session[each.session_id].append(each)
    parts = [(made, logs.home.get(session_id, [])) for session_id, made in by_session.items()]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return [wrong for found in pool.map(_judge, parts, chunksize=20) for wrong in found]


def _judge(part: tuple[list[Decision], list[bytes]]) -> list[Wrong]:
    decisions, lines = part
    return wrong_permissions(decisions, {decisions[0].session_id: lines}) if decisions else []


def permitted(asked: Iterable[Asked]) -> Iterator[Decision]:
    """Yield what agents were permitted, with the position that they were told."""
    return (each.decision for each in asked if each.allowed)


def unrecorded(given: Iterable[Decision], decisions: Iterable[Decision]) -> list[Decision]:
    """Return the permissions that an agent got and that are not on record.

    An answer is made again after its decision has been written, so it may know more of the log. Each decision stands
    for one answer.
    """
    recorded: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for each in decisions:
        recorded[_matter(each)].append(each.position)
    for positions in recorded.values():
        positions.sort()
    lacking = []
    for each in sorted(given, key=lambda each: each.position):
        positions = recorded[_matter(each)]
        if positions and positions[0] <= each.position:
            positions.pop(0)
        else:
            lacking.append(each)
    return lacking


def _matter(given: Decision) -> tuple[object, ...]:
    of = (given.action_id, given.checkpoint_id, tuple(given.node_ids), given.generation)
    return given.question, given.session_id, given.min_seq, *of


class Late(msgspec.Struct):
    """Name a permission that was given after its session had been closed.

    Args:
        seconds: how long after it could be known.
        since: how long after the session had been closed.
    """

    seconds: float
    since: float
    closed: Closed
    decision: Decision


def late_permissions(
    decisions: Iterable[Decision], closed: Iterable[Closed], outages: Sequence[Outage]
) -> tuple[list[Late], list[Late]]:
    """Return what was permitted after a session was closed, outside of outages and in them.

    A record in another partition is passed on by whoever reads that one. While nobody does, it is not known: there
    what counts is the time since the end of the outage.
    """
    by_session: dict[str, list[Closed]] = defaultdict(list)
    for each in closed:
        by_session[each.session_id].append(each)
    calm: list[Late] = []
    rough: list[Late] = []
    for made in decisions:
        at = made.decided_at.timestamp()
        for each in by_session.get(made.session_id, ()):
            if not each.begun <= at < each.ended or each.action_id not in (None, made.action_id):
                continue
            begun = each.begun
            touched = [outage for outage in outages if outage.overlaps(begun, at)] if each.elsewhere else []
            if touched:
                begun = max(begun, *(min(outage.ended, at) for outage in touched))
            (rough if touched else calm).append(Late(at - begun, at - each.begun, each, made))
    return calm, rough


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the others does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
