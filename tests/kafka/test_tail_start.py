"""Starting: brokers that cannot be reached, topics that are missing, forbidden or do not fit."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

from sidecar.embedded import free_port
from sidecar.tail import topics
from sidecar.tail.errors import TailError
from sidecar.tail.planned import plan
from sidecar.tail.topics import check_equal, create_missing, refusal, render
from tests.conftest import missing
from tests.kafka import broker as apache
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics
from tests.kafka.tail_support import case_lines, judged, new_tail, running, send, settings_for, until_found


async def topic_counts(bootstrap: str) -> dict[str, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    finally:
        await admin.close()


async def test_no_broker_is_an_error_in_bounded_time_that_names_address_and_setting() -> None:
    address = f"127.0.0.1:{free_port()}"
    tail, _, _ = new_tail(settings_for(address, "x."), within=1.0)
    begun = time.monotonic()
    with pytest.raises(TailError, match=rf"within 1 s \({address}.*Connection refused.*kafka\.bootstrap_servers"):
        await asyncio.wait_for(tail.run(), 10)
    assert time.monotonic() - begun < 5


async def test_a_port_where_no_broker_answers_is_an_error_in_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        tail, _, _ = new_tail(settings_for(address, "x."), within=0.5)
        with pytest.raises(TailError, match=f"{address}"):
            await asyncio.wait_for(tail.run(), 15)


async def test_stopping_does_not_wait_for_a_broker_at_the_start() -> None:
    tail, _, _ = new_tail(settings_for(f"127.0.0.1:{free_port()}", "x."), within=60)
    work = asyncio.create_task(tail.run())
    await asyncio.sleep(0.3)
    await asyncio.wait_for(tail.stop(), 5)
    await work


async def test_topics_that_another_replica_creates_meanwhile_are_counted(
    kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    before = await create_missing(settings)
    look, looks = topics._partition_counts, 0

    async def too_early(*args: Any) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return {} if looks == 1 else await look(*args)

    monkeypatch.setattr(topics, "_partition_counts", too_early)
    # Another number of partitions: what counts is what there is.
    after = await create_missing(settings, partitions=7)
    assert after.created == [] and after.existing == before.created
    looks = 0
    async with running(settings) as (tail, _, _):
        assert set(settings.topics.followed) <= set(tail._partitions)


async def test_one_dead_seed_among_several_does_not_block_the_start(kafka: KafkaBroker, unique: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts and never answers: the slowest way to be dead
        dead = f"127.0.0.1:{free_port()}"
        servers = f"{dead},127.0.0.1:{silent.getsockname()[1]},{kafka.bootstrap}"
        settings = settings_for(servers, unique)
        begun = time.monotonic()
        async with running(settings):
            assert time.monotonic() - begun < 5


async def test_missing_topics_are_created_with_their_policies(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    done = await create_missing(settings)
    assert [spec.role for spec in done.created] == [
        *("events", "compactions", "findings", "halts", "sessions", "dlq", "snapshots"),
        *("misplaced", "decisions", "halt_acks"),
    ]
    counts = await topic_counts(kafka.bootstrap)
    assert {counts[spec.name] for spec in done.created} == {settings.topics.partitions}
    again = await create_missing(settings)
    assert again.created == [] and len(again.existing) == 10


async def test_what_is_missing_gets_as_many_partitions_as_the_input_that_exists(
    kafka: KafkaBroker, unique: str
) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    await create_topics(kafka.bootstrap, settings.topics.compactions, partitions=3)
    await create_missing(settings)
    counts = await topic_counts(kafka.bootstrap)
    assert counts[settings.topics.events] == counts[settings.topics.findings] == 3


async def test_two_replicas_that_create_at_once_agree(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    first, second = await asyncio.gather(create_missing(settings), create_missing(settings))
    assert len(first.created) + len(second.created) == 10


async def test_missing_topics_are_named_where_they_must_not_be_created(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    with pytest.raises(TailError, match=rf"{unique}events, .*topics\.create is false.*sidecar topics --create"):
        await create_missing(settings, create=False)
    assert f"{unique}events" not in await topic_counts(kafka.bootstrap)
    # What nothing needs yet may be missing.
    await create_topics(kafka.bootstrap, *(spec.name for spec in plan(settings) if spec.required))
    await create_missing(settings, create=False)


async def test_the_embedded_broker_does_not_create_what_is_only_looked_at(embedded: object, unique: str) -> None:
    bootstrap = embedded.bootstrap  # type: ignore[attr-defined]
    with pytest.raises(TailError, match="Missing topics"):
        await create_missing(settings_for(bootstrap, unique), create=False)
    assert not [name for name in await topic_counts(bootstrap) if name.startswith(unique)]


async def test_inputs_with_different_partition_counts_are_refused_by_name(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    await create_topics(kafka.bootstrap, settings.topics.events, partitions=2)
    await create_topics(kafka.bootstrap, settings.topics.compactions, partitions=3)
    tail, _, _ = new_tail(settings)
    with pytest.raises(TailError, match=rf"{unique}events has 2 and {unique}compactions has 3"):
        await tail.run()


def test_counts_of_topics_that_are_not_known_do_not_matter() -> None:
    check_equal(["a", "b"], {"a": 2})
    check_equal(["a", "b"], {"a": 2, "b": 2})
    with pytest.raises(TailError):
        check_equal(["a", "b"], {"a": 2, "b": 4})


def test_a_refused_creation_names_topic_principal_permission_and_command() -> None:
    settings = settings_for("127.0.0.1:9092", "x.")
    halts = next(spec for spec in plan(settings) if spec.role == "halts")
    for code in (29, 31):
        said = refusal(settings, halts, code, None)
        assert said is not None
        for part in ("x.halts", "this client's principal", "ACL CREATE", "sidecar topics --create"):
            assert part in said
    assert refusal(settings, halts, 0, None) is None
    assert refusal(settings, halts, 36, "exists") is None
    said = refusal(settings, halts, 38, "Replication factor: 3 larger than available brokers: 1.")
    assert said is not None and "topics.replication_factor" in said and "larger than available" in said


def test_topics_are_printed_as_table_json_and_commands() -> None:
    specs = plan(settings_for("h:1", "x."), partitions=7)
    table = render(specs)
    assert re.search(r"^x\.halts +output +7 +1 +cleanup\.policy=compact ", table, re.M)
    assert '"name": "x.dlq"' in render(specs, "json")
    commands = render(specs, "commands", "h:1").splitlines()
    assert len(commands) == len(specs)
    assert commands[0] == (
        "kafka-topics.sh --bootstrap-server h:1 --create --if-not-exists --topic x.events --partitions 7"
        " --replication-factor 1 --config cleanup.policy=delete"
    )


# --- permissions, on a broker that has some -------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[KafkaBroker, str]]:
    """Give a broker with ACLs, and the address where a client has to log in as `bob`, who may do nothing."""
    if reason := apache.available():
        missing(reason)
    broker = KafkaBroker(tmp_path / "guarded")
    address = f"127.0.0.1:{free_port()}"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker.properties = {
        "listeners": f"PLAINTEXT://{broker.bootstrap},SASL_PLAINTEXT://{address},"
        f"CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{broker.bootstrap},SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{plain} user_bob="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker itself, and whoever comes in without a login.
        "super.users": "User:ANONYMOUS",
    }
    with broker:
        yield broker, address


READ, WRITE, CREATE, DESCRIBE = 3, 4, 5, 8
TOPIC, GROUP = 2, 3


async def grant(bootstrap: str, kind: int, name: str, *operations: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for operation in operations:
            # Pattern type 3: literal; permission 3: allow.
            answer = await admin._send_request(CreateAclsRequest(kind, name, 3, "User:bob", "*", operation, 3))
            assert not answer.creation_responses[0][0], answer
        await asyncio.sleep(0.5)  # The authorizer learns of it a little later.
    finally:
        await admin.close()


async def test_a_broker_that_forbids_says_which_permission_is_missing(
    guarded: tuple[KafkaBroker, str], unique: str
) -> None:
    broker, address = guarded
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "bob",
        "sasl_password": "secret",
    }
    bob = settings_for(address, unique, kafka=login, guarantee="at_least_once")
    names = bob.topics
    inputs, state = names.inputs, (names.snapshots, names.misplaced)
    outputs = (names.findings, names.halts, names.sessions, names.dlq, names.decisions, *state)

    async def said() -> str:
        tail, _, _ = new_tail(bob)
        with pytest.raises(TailError) as caught:
            await asyncio.wait_for(tail.run(), 20)
        return str(caught.value)

    hidden = await said()
    wanted = f"READ on {', '.join(inputs)}; WRITE on {', '.join(outputs[:-2])}; READ and WRITE on {', '.join(state)};"
    assert f"User:bob the ACLs {wanted} and CREATE" in hidden
    for name in (*inputs, *outputs):
        await grant(broker.bootstrap, TOPIC, name, DESCRIBE)
    forbidden = await said()
    assert f"Grant User:bob the ACL CREATE on topic {names.events}" in forbidden
    assert "sidecar topics --create" in forbidden
    open_settings = settings_for(broker.bootstrap, unique)
    await create_missing(open_settings)
    assert f"grant User:bob the ACL READ on group {bob.tail.group_id}" in await said()
    await grant(broker.bootstrap, GROUP, bob.tail.group_id, READ)
    assert f"grant User:bob the ACL READ on {names.snapshots}" in await said()
    await grant(broker.bootstrap, TOPIC, names.snapshots, READ)
    assert f"User:bob the ACL READ on {names.events}, {names.compactions}" in await said()
    for name in names.followed:
        await grant(broker.bootstrap, TOPIC, name, READ)
    await send(open_settings, case_lines())
    assert re.search(rf"write to the topic {unique}\w+: grant its principal the ACL WRITE", await said())
    for name in outputs:
        await grant(broker.bootstrap, TOPIC, name, WRITE)
    async with running(bob):
        await until_found(open_settings, [f.finding_id for f in judged(case_lines(), ended=False).findings])

    exactly = settings_for(address, unique, kafka=login, group_id=bob.tail.group_id)
    with pytest.raises(TailError, match=f"transactional id {bob.tail.group_id}-"):
        await new_tail(exactly)[0].run()
    bob = settings_for(address, unique, kafka={**login, "sasl_password": "guess"})
    tail, _, _ = new_tail(bob, within=1.0)
    with pytest.raises(TailError, match=r"uthentication"):
        await tail.run()
