"""The permissions that are said to be needed: with exactly these everybody works, and each one missing is named."""

import asyncio
import contextlib
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from sidecar.client import Emitter, HaltListener
from sidecar.client.errors import BrokerError
from sidecar.config import FleetSettings, HttpSettings, Settings
from sidecar.fleet.command import serve as serve_fleet
from sidecar.fleet.errors import FleetError, meaning
from sidecar.fleet.haltlog import HaltLogError, Reader, publish_ack
from sidecar.observe.probe import ask
from sidecar.protocol.outputs import HaltAck
from sidecar.tail import acls
from sidecar.tail.decisions import Decisions
from sidecar.tail.errors import TailError
from sidecar.tail.planned import ALL_ROLES, plan
from sidecar.tail.topics import create_missing, prepare_fleet
from tests.kafka.tail_support import (
    case_lines,
    judged,
    new_tail,
    running,
    send,
    settings_for,
    until,
    until_found,
    values,
)
from tests.ops.secured import KINDS, OPERATIONS, PASSWORD, Administrator, Grant, SecuredBroker, grants_of

ROOT = Path(__file__).parents[2]


def said_by_the_script(settings: Settings) -> list[Grant]:
    """Return what the commands grant that are printed for these settings."""
    lines = acls.render(acls.plan(settings), "commands", "h:1").splitlines()
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert all(command[0] == "kafka-acls.sh" for command in commands)
    return [grant for command in commands for grant in grants_of(command[1:])]


def of(grants: list[Grant], party: str) -> list[Grant]:
    return [grant for grant in grants if grant.principal == f"User:frontier-{party}"]


# --- without a broker -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "make"), [("deploy/kafka/acls.yaml", acls.reference_yaml), ("deploy/kafka/acls.sh", acls.reference_script)]
)
def test_the_files_are_what_the_code_says(name: str, make: object) -> None:
    assert callable(make)
    assert (ROOT / name).read_text(encoding="utf-8") == make(), "run `make docs`"


def test_the_script_calls_kafkas_own_with_what_the_plan_says(tmp_path: Path) -> None:
    called = tmp_path / "called"
    fake = tmp_path / "kafka-acls.sh"
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >> "$CALLED"\necho >> "$CALLED"\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLED": str(called)}
    given = {**environment, "BOOTSTRAP": "kafka-1:9092", "ADMIN": "admin.properties"}
    subprocess.run(["sh", ROOT / "deploy/kafka/acls.sh"], env=given, check=True)
    calls = [call.splitlines() for call in called.read_text().strip().split("\n\n")]
    assert all(
        call[:4] == ["--bootstrap-server", "kafka-1:9092", "--command-config", "admin.properties"] for call in calls
    )
    granted = {grant for call in calls for grant in grants_of(call)}
    flags: dict[acls.Resource, str] = {"topic": "--topic", "group": "--group", "transactionalId": "--transactional-id"}
    planned = {
        Grant(
            f"User:frontier-{acl.party}",
            KINDS[flags[acl.resource]],
            acl.name,
            4 if acl.pattern == "prefix" else 3,
            OPERATIONS[operation],
        )
        for acl in acls.plan(Settings.load(None))
        for operation in acl.operations
    }
    assert granted == planned
    without = subprocess.run(["sh", ROOT / "deploy/kafka/acls.sh"], env=environment, capture_output=True, text=True)
    assert without.returncode != 0 and "BOOTSTRAP" in without.stderr


def test_principals_can_be_given_and_are_checked() -> None:
    printed = acls.render(acls.plan(Settings.load(None)), "commands", given={"tail": "User:CN=tail,O=My Company"})
    assert "--allow-principal 'User:CN=tail,O=My Company'" in printed
    for name, principal in (("tails", "User:x"), ("tail", "x"), ("tail", "User:")):
        with pytest.raises(ValueError, match="is no"):
            acls.principals({name: principal})


def test_at_least_once_needs_no_transactional_id() -> None:
    settings = settings_for("h:1", "x.", guarantee="at_least_once")
    assert not [acl for acl in acls.plan(settings) if acl.resource == "transactionalId"]


def test_one_topic_for_both_inputs_is_named_once() -> None:
    settings = Settings.load(None, topics={"compactions": "agent.events"})
    assert [acl.name for acl in acls.plan(settings) if acl.party == "agents"] == ["agent.events"]


def test_what_may_not_be_written_is_named_when_it_is_written() -> None:
    denied = TopicAuthorizationFailedError("agent.alerts")
    wrapped = RuntimeError("the producer")
    wrapped.__cause__ = denied
    for error in (denied, wrapped):
        assert meaning(error, "WRITE").endswith("the ACL WRITE on agent.alerts")
    assert meaning(TopicAuthorizationFailedError({"b", "a"}), "READ").endswith("the ACL READ on a, b")
    assert meaning(ValueError("x"), "READ") == "ValueError('x')"


# --- with one -------------------------------------------------------------------------------------


@pytest.fixture
async def administrator(secured: SecuredBroker) -> AsyncIterator[Administrator]:
    async with Administrator(secured.open) as found:
        yield found


def as_user(broker: SecuredBroker, unique: str, party: str, *, create: bool = False) -> Settings:
    kafka = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": f"frontier-{party}",
        "sasl_password": PASSWORD,
        "ssl_cafile": broker.certificates.cert("ca"),
    }
    settings = settings_for(broker.scram, unique, kafka=kafka)
    changed = {
        "topics": settings.topics.model_copy(update={"create": create}),
        "fleet": FleetSettings(group_id=f"{unique}fleet"),
        "http": HttpSettings(port=0),
    }
    return settings.model_copy(update=changed)


async def set_up(broker: SecuredBroker, unique: str, administrator: Administrator) -> list[Grant]:
    """Grant everybody what they need, and create the topics as the one who has to."""
    setup = as_user(broker, unique, "setup", create=True)
    grants = said_by_the_script(setup)
    await administrator.grant(grants)
    created = await create_missing(setup, only=ALL_ROLES, party="setup")
    assert {spec.name for spec in created.created} == {spec.name for spec in plan(setup)}
    return grants


def security(settings: Settings) -> dict[str, Any]:
    options = settings.kafka.client_options()
    return {name: value for name, value in options.items() if name.startswith(("security", "ssl", "sasl"))}


@pytest.mark.kafka
async def test_with_exactly_these_everybody_works(
    secured: SecuredBroker, unique: str, administrator: Administrator, tmp_path: Path
) -> None:
    await set_up(secured, unique, administrator)
    open_ = settings_for(secured.open, unique)
    agents, listeners = as_user(secured, unique, "agents"), as_user(secured, unique, "listeners")
    operators = as_user(secured, unique, "operators")
    judgement = judged(case_lines(), ended=False)
    halted = {halt.session_id for halt in judgement.halts if halt.status == "halt"}
    halted -= {halt.session_id for halt in judgement.halts if halt.status != "halt" and not halt.open_halts}
    async with running(as_user(secured, unique, "tail")):
        await send(agents, case_lines())
        await until_found(open_, [finding.finding_id for finding in judgement.findings])
        place = {"events_topic": agents.topics.events, "compactions_topic": agents.topics.compactions}
        with pytest.raises(BrokerError, match="needs READ on both topics"):
            await Emitter.kafka(secured.scram, "s-emitted", journal=tmp_path, **place, **security(agents)).start()
        emitter = Emitter.kafka(secured.scram, "s-emitted", journal=tmp_path, start_at=1, **place, **security(agents))
        async with emitter as log:
            await log.action("deploy-prod", irreversible=True)
            await log.flush()
        topic, acks = listeners.topics.halts, listeners.topics.halt_acks
        listener = HaltListener(secured.scram, topic=topic, acks_topic=acks, **security(listeners))
        async with listener:
            await listener.wait_ready(within=20)
            assert halted and halted <= set(listener.view)
            (opened, *_) = listener.halts(min(halted))
            await listener.ack(opened, by="listener", decision="replaying", within=20)
    async with Reader(operators.kafka.client_options(), operators.topics.halts, operators.topics.halt_acks) as reader:
        assert halted <= {found.halt.session_id for found in reader.log.open()}
        ack = HaltAck(halt_id=opened.halt_id, by="operator", decision="mine")
        await publish_ack(operators.kafka.client_options(), operators.topics.halt_acks, min(halted), ack)
    acknowledged = await values(open_, open_.topics.halt_acks)
    assert [entry["by"] for entry in acknowledged] == ["listener", "operator"]


async def start(settings: Settings) -> str:
    """Start a tail and its log of decisions, let through for half of it at most; return what it ends with."""
    tail, _, _ = new_tail(settings)
    decisions = Decisions(settings)
    try:
        with pytest.raises(TailError) as caught:
            async with asyncio.timeout(20):
                await decisions.start()
                await tail.run()
    finally:
        await decisions.close()
    return str(caught.value)


@pytest.mark.kafka
async def test_each_one_that_the_tail_lacks_is_named(
    secured: SecuredBroker, unique: str, administrator: Administrator
) -> None:
    settings = as_user(secured, unique, "tail")
    grants = of(await set_up(secured, unique, administrator), "tail")
    names = {number: name.upper() for name, number in OPERATIONS.items()}
    # Written to only when a record is misplaced; what is missing is named then, as for every other output.
    needed_later = [g for g in grants if g.name == settings.topics.misplaced and names[g.operation] == "WRITE"]
    await administrator.grant(needed_later)
    grants = [g for g in grants if g not in needed_later]
    assert len(grants) >= 10 and len(needed_later) == 1
    for before, grant in itertools.pairwise([None, *grants]):
        assert grant is not None
        await administrator.instead([before] if before else [], [grant])
        said = await start(settings)
        assert re.search(rf"\b{names[grant.operation]}\b", said), (grant, said)
        assert grant.name.removesuffix("-") in said, (grant, said)
    await administrator.grant(grants)
    async with running(settings):  # with all of them again
        pass


@pytest.mark.kafka
async def test_what_the_others_lack_is_named(
    secured: SecuredBroker, unique: str, administrator: Administrator, tmp_path: Path
) -> None:
    grants = await set_up(secured, unique, administrator)
    setup, agents, listeners = (as_user(secured, unique, party) for party in ("setup", "agents", "listeners"))
    lacking = {party: of(grants, party) for party in ("setup", "agents", "listeners", "operators")}
    for party in lacking.values():
        await administrator.revoke(party)
    with pytest.raises(TailError, match=r"Grant User:frontier-setup the ACLs CREATE and DESCRIBE on .*events"):
        await create_missing(setup, only=ALL_ROLES, party="setup")
    inputs = re.escape(", ".join(agents.topics.inputs))
    with pytest.raises(TailError, match=rf"User:frontier-agents the ACLs WRITE on {inputs}; and CREATE"):
        await send(agents, case_lines()[:1])
    emitter = Emitter.kafka(
        secured.scram,
        "s",
        journal=tmp_path,
        events_topic=agents.topics.events,
        compactions_topic=agents.topics.compactions,
        start_timeout=1.0,
        **security(agents),
    )
    with pytest.raises(BrokerError, match=rf"see the topic {re.escape(unique)}\w+: grant its principal the ACL WRITE"):
        async with emitter as log:
            await log.action("deploy-prod", irreversible=True)
            await log.flush()
    listener = HaltListener(secured.scram, topic=listeners.topics.halts, **security(listeners))
    async with listener:
        with pytest.raises(
            BrokerError, match=rf"see the topic {re.escape(listeners.topics.halts)}: grant its principal the ACL READ"
        ):
            await listener.wait_ready(within=2)
        assert listener.is_halted("any")
    operators = as_user(secured, unique, "operators")
    names = operators.topics.halts, operators.topics.halt_acks
    options = operators.kafka.client_options()
    for lacking in (names, names[1:]):
        said = rf"read {re.escape(' and '.join(lacking))}: grant the principal the ACL READ"
        with pytest.raises(HaltLogError, match=said):
            async with Reader(options, *names):
                pass
        await administrator.grant([grant for grant in of(grants, "operators") if grant.name == names[0]])


@contextlib.asynccontextmanager
async def fleet(settings: Settings) -> AsyncIterator[str]:
    """Run a worker of the fleet; give the URL that it serves on."""
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    work = asyncio.create_task(serve_fleet(settings, stop, prepare_fleet, started=url.set_result))
    try:
        yield await url
    finally:
        stop.set()
        await asyncio.wait_for(work, 30)


@pytest.mark.kafka
async def test_the_fleet_works_with_exactly_these(
    secured: SecuredBroker, unique: str, administrator: Administrator
) -> None:
    grants = of(await set_up(secured, unique, administrator), "fleet")
    settings = as_user(secured, unique, "fleet")
    async with fleet(settings) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")

        async def ready() -> bool:
            return (await asyncio.to_thread(ask, host, int(port), "readyz")).ok

        await until(ready, within=30)
    # What it may not read it finds out when it reads; what it may not write, when there is something to write.
    operations = {number: name.upper() for name, number in OPERATIONS.items()}
    at_start = [grant for grant in grants if grant.operation == OPERATIONS["Read"] or grant.name == settings.topics.dlq]
    # The topic of alerts is a table's changelog: that it cannot be read shows as a recovery that gets no further, which
    # ends after `fleet.recovery_timeout`.
    at_start = [grant for grant in at_start if grant.name != settings.topics.alerts]
    assert len(at_start) == 8
    before: list[Grant] = []
    for grant in at_start:
        await administrator.instead(before, [grant])
        before = [grant]
        said = rf"ACLs? {operations[grant.operation]} on (group )?{re.escape(grant.name)}\b"
        with pytest.raises((TailError, FleetError), match=said):
            await asyncio.wait_for(serve_fleet(settings, asyncio.Event(), prepare_fleet), 20)
    await administrator.instead(before, [grant for grant in grants if grant.name == settings.topics.alerts])
    said = rf"ACLs READ and WRITE on {re.escape(settings.topics.alerts)}[;.]"
    with pytest.raises(TailError, match=said):
        await asyncio.wait_for(serve_fleet(settings, asyncio.Event(), prepare_fleet), 20)
