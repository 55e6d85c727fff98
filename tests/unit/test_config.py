"""The settings: where values come from, what is refused and how it is said, secrets, and what the clients get."""

import asyncio
import inspect
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from click.testing import CliRunner

from sidecar.config import KafkaSettings, Settings, SettingsError
from sidecar.config.__main__ import main
from sidecar.config.fields import allowed, keys
from sidecar.config.reference import reference_markdown, reference_yaml
from sidecar.engine.limits import Limits, Workload
from tests.conftest import missing

ROOT = Path(__file__).parents[2]
SECRET = "hunter2-do-not-show"
SECTIONS = (
    "the sections are kafka, topics, tail, snapshot, session, engine, http, guard, fleet, alerts, health, log, watch"
)

WriteFile = Callable[[str], Path]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SIDECAR_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    def write(text: str) -> Path:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(path: Path | None = None, **overrides: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        Settings.load(path, **overrides)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


# --- where values come from -----------------------------------------------------------------------


def test_defaults() -> None:
    settings = Settings.load()
    assert settings.kafka.bootstrap_servers == ("localhost:9092",)
    assert settings.topics.inputs == ("agent.events", "agent.compactions")
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 9464)
    assert settings.tail.guarantee == "exactly_once"
    assert settings.engine.limits() == Limits(workloads=dict(Limits().workloads))


def test_each_source_wins_over_the_one_before(write: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("http: {host: from-file, port: 1}\nkafka: {client_id: from-file}\nlog: {level: debug}\n")
    monkeypatch.setenv("SIDECAR_HTTP__PORT", "2")
    monkeypatch.setenv("SIDECAR_KAFKA__CLIENT_ID", "from-variable")
    settings = Settings.load(file, kafka__client_id="from-caller", tail={"group_id": "from-caller"})
    assert settings.kafka.client_id == "from-caller"
    assert settings.tail.group_id == "from-caller"
    assert settings.http.port == 2
    assert settings.http.host == "from-file"
    assert settings.log.level == "debug"
    assert settings.topics.partitions == 4


def test_overrides_that_are_none_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_TAIL__GROUP_ID", "from-variable")
    assert Settings.load(None, tail__group_id=None, http=None).tail.group_id == "from-variable"


def test_overrides_by_name_and_by_section_add_up() -> None:
    settings = Settings.load(None, kafka__client_id="a", kafka={"bootstrap_servers": "b:1"})
    assert (settings.kafka.client_id, settings.kafka.bootstrap_servers) == ("a", ("b:1",))


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [("0.0.0.0:80", "0.0.0.0", 80), ("[::1]:0", "::1", 0), ("localhost:9464", "localhost", 9464)],
)
def test_http_takes_an_address(given: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_HTTP__PORT", "1")
    http = Settings.load(None, http=given).http
    assert (http.host, http.port) == (host, port)


@pytest.mark.parametrize("given", ["nothing", "host:", ":80", "::1:80", "host:80:90", "host:http"])
def test_http_refuses_what_is_no_address(given: str) -> None:
    assert problems(http=given) == (f"http (--http): {given!r} is not HOST:PORT",)


def test_http_refuses_a_port_out_of_range() -> None:
    (problem,) = problems(http="host:65536")
    assert problem == "the command line: http.port: '65536' is not allowed, expected a whole number from 0 to 65535"


def test_the_file_can_be_named_by_a_variable(write: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIDECAR_CONFIG", str(write("http: {port: 7}")))
    assert Settings.load().http.port == 7
    other = tmp_path / "other.yaml"
    other.write_text("http: {port: 8}")
    assert Settings.load(other).http.port == 8
    assert Settings.load(str(other)).http.port == 8


def test_lists_come_with_commas_or_as_lists(write: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ("a:9092", "b", "[::1]:9093")
    file = write("kafka: {bootstrap_servers: ['a:9092', b, '[::1]:9093']}")
    assert Settings.load(file).kafka.bootstrap_servers == expected
    assert Settings.load(None, kafka__bootstrap_servers="a:9092,b,[::1]:9093").kafka.bootstrap_servers == expected
    monkeypatch.setenv("SIDECAR_KAFKA__BOOTSTRAP_SERVERS", " a:9092, b ,[::1]:9093,")
    assert Settings.load().kafka.bootstrap_servers == expected


def test_an_empty_variable_counts_as_not_set_and_null_as_nothing(
    write: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("tail: {group_id: g, group_instance_id: i}")
    monkeypatch.setenv("SIDECAR_TAIL__GROUP_ID", "")
    monkeypatch.setenv("SIDECAR_TAIL__GROUP_INSTANCE_ID", "null")
    tail = Settings.load(file).tail
    assert (tail.group_id, tail.group_instance_id) == ("g", None)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kafka:\nhttp:\n", "engine:\n  workloads:\n"])
def test_empty_files_and_sections(text: str, write: WriteFile) -> None:
    assert Settings.load(write(text)) == Settings.load()


def test_every_key_can_be_set_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every key to its default through the environment: the same settings must come out."""
    defaults = Settings.load()
    count = 0
    for section, values in defaults.model_dump(mode="json").items():
        for name, value in values.items():
            if name == "workloads":
                for workload, fields in value.items():
                    for field, inner in fields.items():
                        monkeypatch.setenv(
                            f"SIDECAR_ENGINE__WORKLOADS__{workload.upper()}__{field.upper()}", str(inner)
                        )
                        count += 1
                continue
            text = ",".join(value) if isinstance(value, list) else "null" if value is None else str(value)
            monkeypatch.setenv(f"SIDECAR_{section.upper()}__{name.upper()}", text)
            count += 1
    assert count == len(list(keys(Settings))) + 2  # two workloads
    assert Settings.load() == defaults


def test_the_settings_cannot_be_changed() -> None:
    settings = Settings.load()
    for target, name in ((settings, "http"), (settings.http, "port")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(target, name, None)


# --- workloads ------------------------------------------------------------------------------------


def test_workloads_are_added_to_the_defaults(write: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("engine: {max_wait: 2, workloads: {triage: {floor: 0.9}, narrative: {floor: 0.65}}}")
    monkeypatch.setenv("SIDECAR_ENGINE__WORKLOADS__REMEDIATION__FLOOR", "0.95")
    limits = Settings.load(file).engine.limits()
    assert limits.max_wait == 2.0
    assert limits.workloads == {
        "remediation": Workload(floor=0.95, gc_requires_probe=True),
        "narrative": Workload(floor=0.65, gc_requires_probe=False),
        "triage": Workload(floor=0.9, gc_requires_probe=True),
    }


@pytest.mark.parametrize("floor", ["0", "1.01", "-1", "nan", "much"])
def test_workload_floors_have_bounds(floor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_ENGINE__WORKLOADS__TRIAGE__FLOOR", floor)
    (problem,) = problems()
    assert problem.startswith("SIDECAR_ENGINE__WORKLOADS__TRIAGE__FLOOR: engine.workloads.triage.floor: ")
    assert "expected a number above 0, to 1" in problem


# --- unknown keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "kafka:\n  bootstrap_server: x",
            "2: kafka.bootstrap_server is not a setting; did you mean kafka.bootstrap_servers?",
        ),
        ("kafka:\n  partitions: 3", "2: kafka.partitions is not a setting; did you mean topics.partitions?"),
        ("kakfa: {client_id: x}", "1: kakfa is not a setting; did you mean kafka?"),
        ("zzz: {client_id: x}", "1: zzz is not a setting; " + SECTIONS),
        ("http:\n\n  zzz: 1", "3: http.zzz is not a setting"),
        (
            "engine: {workloads: {x: {flor: 1}}}",
            "1: engine.workloads.x.flor is not a setting; did you mean engine.workloads.x.floor?",
        ),
        ("http: {port: {a: 1}}", "1: http.port: {'a': 1} is not allowed, expected a whole number from 0 to 65535"),
    ],
)
def test_unknown_keys_in_the_file(text: str, expected: str, write: WriteFile) -> None:
    file = write(text)
    assert problems(file) == (f"{file}:{expected}",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SIDECAR_FOO__BAR", "foo.bar is not a setting; " + SECTIONS),
        (
            "SIDECAR_KAFKA__BOOTSTRAP_SERVER",
            "kafka.bootstrap_server is not a setting; did you mean SIDECAR_KAFKA__BOOTSTRAP_SERVERS?",
        ),
        ("SIDECAR_KAKFA__CLIENT_ID", "kakfa.client_id is not a setting; did you mean SIDECAR_KAFKA__CLIENT_ID?"),
        ("SIDECAR_KAFKA_CLIENT_ID", "kafka_client_id is not a setting; did you mean SIDECAR_KAFKA__CLIENT_ID?"),
        ("SIDECAR_HTTP__PORT__X", "http.port.x is not a setting; did you mean SIDECAR_HTTP__PORT?"),
        ("SIDECAR_KAFKA", "kafka is a section; set SIDECAR_KAFKA__… for one of its settings"),
        (
            "SIDECAR_ENGINE__WORKLOADS__X",
            "engine.workloads.x is a section; set SIDECAR_ENGINE__WORKLOADS__X__… for one of its settings",
        ),
        (
            "SIDECAR_ENGINE__WORKLOADS__X__FLOR",
            "engine.workloads.x.flor is not a setting; did you mean SIDECAR_ENGINE__WORKLOADS__X__FLOOR?",
        ),
        ("SIDECAR_PORT", "port is not a setting; did you mean SIDECAR_HTTP__PORT?"),
        ("SIDECAR_", " is not a setting; " + SECTIONS),
        ("sidecar_http__prt", "http.prt is not a setting; did you mean SIDECAR_HTTP__PORT?"),
    ],
)
def test_unknown_variables(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert problems() == (f"{name}: {expected}",)


def test_unknown_overrides() -> None:
    assert problems(kafka__clientid="x") == (
        "the command line: kafka.clientid is not a setting; did you mean kafka.client_id?",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SIDECAR_SERVICE_HOST", "10.0.0.1"),
        ("SIDECAR_SERVICE_PORT", "9464"),
        ("SIDECAR_SERVICE_PORT_HTTP", "9464"),
        ("SIDECAR_PORT", "tcp://10.0.0.1:9464"),
        ("SIDECAR_GUARD_PORT", "udp://10.0.0.1:9464"),
        ("SIDECAR_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
        ("SIDECAR_GUARD_PORT_9464_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_of_kubernetes_services_are_passed_over(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert Settings.load() == Settings()


# --- wrong values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "allows"),
    [
        ("SIDECAR_HTTP__PORT", "99999", "a whole number from 0 to 65535"),
        ("SIDECAR_HTTP__PORT", "http", "a whole number from 0 to 65535"),
        ("SIDECAR_ENGINE__MAX_WAIT", "-1", "a number of seconds from 0 to 86400"),
        ("SIDECAR_ENGINE__MAX_WAIT", "inf", "a number of seconds from 0 to 86400"),
        ("SIDECAR_TAIL__FETCH_MAX_BYTES", "1", "a whole number of bytes from 65536 to 1073741824"),
        ("SIDECAR_LOG__FORMAT", "xml", "one of auto, json, pretty"),
        ("SIDECAR_TOPICS__CREATE", "maybe", "true or false"),
        (
            "SIDECAR_KAFKA__SASL_MECHANISM",
            "GSSAPI",
            "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or nothing",
        ),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(
    name: str, value: str, allows: str, monkeypatch: pytest.MonkeyPatch, write: WriteFile
) -> None:
    section, key = name.removeprefix("SIDECAR_").lower().split("__")
    file = write(f"{section}:\n  {key}: {value}\n")
    text = f"{section}.{key}: {yaml.safe_load(value)!r} is not allowed, expected {allows}"
    assert problems(file) == (f"{file}:2: {text}",)
    monkeypatch.setenv(name, value)
    assert problems(file) == (f"{name}: {section}.{key}: {value!r} is not allowed, expected {allows}",)


def test_every_number_has_bounds() -> None:
    for key in keys(Settings):
        if key.field.annotation in (int, float):
            text = allowed(key.field)
            assert " to " in text and (" from " in text or " above " in text), key.dotted


def test_every_key_says_what_it_means() -> None:
    for key in keys(Settings):
        assert key.field.description and key.field.description.endswith("."), key.dotted


def test_all_problems_are_named_at_once(write: WriteFile) -> None:
    file = write("http: {port: -1}\nlog: {level: loud}\nengine: 3\nwatch: {poll_interval: yes}\n")
    found = problems(file)
    named = [line.split(": ")[1].split(" ")[0] for line in found]
    assert named == ["engine", "http.port", "log.level", "watch.poll_interval"]
    assert found[0] == f"{file}:3: engine is a section: its settings go below it, as `key: value`"
    assert "reads as true or false" in found[3]


@pytest.mark.parametrize("address", ["a:b", "a:0", "a:65536", "kafka://a:1", "a b:1", "a:1:2"])
def test_brokers_are_host_and_port(address: str) -> None:
    (problem,) = problems(kafka__bootstrap_servers=f"good:1,{address}")
    assert problem.startswith("the command line: kafka.bootstrap_servers: ")
    assert problem.endswith(f"({address!r} is not HOST:PORT)")


def test_there_is_a_broker() -> None:
    assert "kafka.bootstrap_servers" in problems(kafka__bootstrap_servers=" , ")[0]


def test_there_are_two_guarantees() -> None:
    assert Settings.load(tail__guarantee="at_least_once").tail.guarantee == "at_least_once"
    (problem,) = problems(tail__guarantee="at_most_once")
    assert "exactly_once" in problem and "at_least_once" in problem


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_topic_names_are_legal(name: str) -> None:
    assert problems(topics__events=name)[0].startswith(f"the command line: topics.events: {name!r} is not allowed")


def test_topics_are_distinct_except_the_inputs() -> None:
    assert problems(topics__dlq="agent.events") == (
        "topics.events and topics.dlq are both 'agent.events': give them two topics",
    )
    mixed = Settings.load(None, topics={"events": "mixed", "compactions": "mixed"})
    assert mixed.topics.inputs == ("mixed",)


def test_heartbeats_fit_the_session_timeout() -> None:
    (problem,) = problems(tail__heartbeat_interval=6, tail__session_timeout=10)
    assert "tail.heartbeat_interval 6 is more than half of tail.session_timeout 10" in problem


# --- files that are no settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka: [\n", ":2: not YAML: expected the node content, but found '<stream end>'"),
        ("- kafka\n", ":1: expected sections (`kafka:`, `topics:`, …) at the top"),
        ("text", ":1: expected sections (`kafka:`, `topics:`, …) at the top"),
        ("http: {port: 1}\nhttp: {port: 2}", ":2: http was already given in line 1"),
        ("http:\n  port: 1\n  port: 2", ":3: http.port was already given in line 2"),
        ("on: 1", ":1: the key 'on' does not read as text in YAML; put it in quotes"),
        ("a: 1\n--- \nb: 2", ":2: not YAML: but found another document"),
        ("a: &x {b: *x}", ":1: a is not a setting; " + SECTIONS),
        ("kafka: {client_id: 2020-99-01}", ": not YAML: month must be in 1..12"),
        (
            "kafka: !!python/object:os.system {}",
            ":1: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'",
        ),
    ],
)
def test_files_that_are_no_settings(text: str, expected: str, write: WriteFile) -> None:
    file = write(text)
    assert problems(file) == (f"{file}{expected}",)


def test_anchors_and_merges_work(write: WriteFile) -> None:
    file = write(
        "engine:\n  workloads:\n    a: &base {floor: 0.5, gc_requires_probe: false}\n"
        "    b:\n      <<: *base\n      floor: 0.6\n"
    )
    workloads = Settings.load(file).engine.workloads
    assert (workloads["b"].floor, workloads["b"].gc_requires_probe) == (0.6, False)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path / "no.yaml") == (
        f"cannot read the settings file {tmp_path / 'no.yaml'}: No such file or directory",
    )
    assert "Is a directory" in problems(tmp_path)[0]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"kafka: {client_id: \xfc}")
    assert "is not UTF-8" in problems(latin)[0]


# --- secrets --------------------------------------------------------------------------------------


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_KAFKA__SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("SIDECAR_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("SIDECAR_KAFKA__SASL_USERNAME", "u")
    monkeypatch.setenv("SIDECAR_KAFKA__SASL_PASSWORD", SECRET)
    settings = Settings.load()
    shown = repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()
    assert not [text for text in shown if SECRET in text]
    assert settings.kafka.client_options()["sasl_plain_password"] == SECRET


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: {{sasl_password: {SECRET}}}",  # not used by PLAINTEXT
        f"kafka: {{sasl_password: {SECRET}, client_id: 1}}",
        f"kafka: {{sasl_password: [{SECRET}]}}",
        f"kafka: {{sasl_pasword: {SECRET}}}",
        f"kafka: {{sasl_password: {{a: {SECRET}}}}}",
        f"kafka: {SECRET}",
        f"kafka: [{SECRET}]",
    ],
)
def test_errors_show_no_secret(text: str, write: WriteFile) -> None:
    assert SECRET not in str(problems(write(text)))


def test_errors_of_the_tree_itself_show_no_secret() -> None:
    with pytest.raises(ValueError) as caught:
        KafkaSettings(sasl_password=SECRET)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_a_password_that_reads_as_a_number(write: WriteFile) -> None:
    file = write("kafka: {sasl_password: 0123}")
    (problem,) = problems(file)
    assert problem.startswith(f"{file}:1: kafka.sasl_password: the value (a secret) is not allowed")
    assert "put it in quotes" in problem and "83" not in problem


def test_every_secret_can_be_a_file() -> None:
    dotted = {key.dotted for key in keys(Settings)}
    secrets = [key.dotted for key in keys(Settings) if key.secret]
    assert secrets == ["kafka.ssl_key_password", "kafka.sasl_password"]
    assert all(f"{name}_file" in dotted for name in secrets)


# --- what the clients get -------------------------------------------------------------------------


def kafka(**values: Any) -> KafkaSettings:
    return Settings.load(None, kafka=values).kafka


async def accepted(options: dict[str, Any]) -> None:
    """Check that every client knows each of the options."""
    AIOKafkaClient(**options)  # type: ignore[no-untyped-call]  # which checks how they go together
    for client in (AIOKafkaConsumer, AIOKafkaAdminClient, AIOKafkaProducer):
        inspect.signature(client).bind(**options)


async def test_plain_clients() -> None:
    options = kafka(bootstrap_servers="a:1,b:2", request_timeout=2.5).client_options()
    assert options["bootstrap_servers"] == ["a:1", "b:2"]
    assert options["request_timeout_ms"] == 2500
    assert not [name for name in options if "ssl" in name or "sasl" in name]
    await accepted(options)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_passwords_come_from_files(mechanism: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET} \r\n")
    settings = kafka(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username="u", sasl_password_file=file
    )
    options = settings.client_options()
    assert (options["sasl_mechanism"], options["sasl_plain_username"]) == (mechanism, "u")
    assert options["sasl_plain_password"] == f"{SECRET} "  # only the line break goes
    assert "ssl_context" not in options
    await accepted(options)
    file.write_text("renewed")
    assert settings.client_options()["sasl_plain_password"] == "renewed"
    file.write_text("\n")
    with pytest.raises(SettingsError, match=r"kafka\.sasl_password_file: .* is empty"):
        settings.client_options()
    file.unlink()
    with pytest.raises(SettingsError, match=r"kafka\.sasl_password_file: cannot read .*: No such file"):
        settings.client_options()


async def test_oauth_token_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = kafka(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_file=file)
    with pytest.raises(SettingsError, match=r"kafka\.sasl_oauth_token_file: cannot read"):
        settings.client_options()
    file.write_text("first\n")
    options = settings.client_options()
    await accepted(options)
    provider = options["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    file.write_text("second")
    assert await provider.token() == "second"
    file.write_text(" \n")
    with pytest.raises(OSError, match="is empty"):  # which the clients treat as a failed connection
        await provider.token()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"security_protocol": "SASL_SSL"}, "kafka.security_protocol is SASL_SSL: set kafka.sasl_mechanism too"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_password": "p"},
            "kafka.sasl_mechanism is PLAIN: set kafka.sasl_username too",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "u"},
            "kafka.sasl_mechanism is SCRAM-SHA-512: set kafka.sasl_password (or kafka.sasl_password_file) too",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "u",
                "sasl_password": "p",
                "sasl_password_file": "f",
            },
            "kafka.sasl_password and kafka.sasl_password_file are both given: set only one of them",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "kafka.sasl_mechanism is OAUTHBEARER: set kafka.sasl_oauth_token_file too",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_file": "t",
                "sasl_username": "u",
            },
            "kafka.sasl_username is given, which OAUTHBEARER does not use: unset, or choose PLAIN or SCRAM",
        ),
        (
            {"security_protocol": "SSL", "sasl_username": "u"},
            "kafka.sasl_username is given, and kafka.security_protocol SSL does not use it: "
            "set kafka.security_protocol to SASL_SSL, or unset it",
        ),
        (
            {"ssl_cafile": "ca.pem", "ssl_check_hostname": False},
            "kafka.ssl_cafile and kafka.ssl_check_hostname are given, and kafka.security_protocol PLAINTEXT does not "
            "use them: set kafka.security_protocol to SSL, or unset them",
        ),
        (
            {"security_protocol": "SSL", "ssl_keyfile": "k"},
            "kafka.ssl_keyfile is given without a certificate: set kafka.ssl_certfile too",
        ),
        (
            {"security_protocol": "SSL", "ssl_certfile": "c", "ssl_key_password": "a", "ssl_key_password_file": "b"},
            "kafka.ssl_key_password and kafka.ssl_key_password_file are both given: set only one of them",
        ),
    ],
)
def test_contradictions_say_what_to_set(values: dict[str, Any], expected: str) -> None:
    assert problems(kafka=values) == (expected,)


# --- the guard ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("http", "guard", "port", "url"),
    [
        ("127.0.0.1:9464", {}, None, "http://127.0.0.1:9464"),
        ("[::1]:9464", {}, None, "http://[::1]:9464"),
        ("sidecar-0.example:9464", {"tls_certfile": "c"}, None, "https://sidecar-0.example:9464"),
        ("127.0.0.1:0", {}, 4711, "http://127.0.0.1:4711"),
        ("127.0.0.1:0", {}, None, None),
        ("0.0.0.0:9464", {}, None, None),
        ("[::]:9464", {}, None, None),
        ("0.0.0.0:9464", {"advertise": "https://sidecar-0:9464/"}, None, "https://sidecar-0:9464"),
        ("127.0.0.1:0", {"advertise": "http://[::1]:1"}, 4711, "http://[::1]:1"),
        ("127.0.0.1:9464", {"enabled": False, "advertise": "http://a:1"}, None, None),
    ],
)
def test_where_the_guard_is_advertised(http: str, guard: dict[str, Any], port: int | None, url: str | None) -> None:
    assert Settings.load(http=http, guard=guard).advertised(port) == url


@pytest.mark.parametrize(
    "url", ["sidecar:9464", "ftp://a:1", "http://a:1/v1", "http://u:p@a:1", "http://a b", "http://"]
)
def test_an_advertised_address_is_a_url_without_a_path(url: str) -> None:
    (problem,) = problems(guard={"advertise": url})
    assert "an address is http://HOST:PORT or https://HOST:PORT, without a path" in problem


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"tls_keyfile": "k"}, "guard.tls_keyfile is given without a certificate: set guard.tls_certfile too"),
        ({"tls_client_ca": "c"}, "guard.tls_client_ca is given without a certificate: set guard.tls_certfile too"),
        (
            {"max_wait": 3, "timeout": 3},
            "guard.max_wait 3 is not below guard.timeout 3: a question that waits would never be told that it waited "
            "in vain",
        ),
    ],
)
def test_contradictions_of_the_guard_say_what_to_set(values: dict[str, Any], expected: str) -> None:
    assert problems(guard=values) == (expected,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"guard_cafile": "c"}, "fleet.guard_cafile given, and fleet.guard_url is no https:// address"),
        (
            {"guard_url": "http://a:1", "guard_certfile": "c", "guard_keyfile": "k"},
            "fleet.guard_certfile and fleet.guard_keyfile given, and fleet.guard_url is no https:// address",
        ),
        (
            {"guard_url": "https://a:1", "guard_keyfile": "k"},
            "fleet.guard_keyfile is given without a certificate: set fleet.guard_certfile too",
        ),
    ],
)
def test_contradictions_of_the_fleets_guard_say_what_to_set(values: dict[str, Any], expected: str) -> None:
    assert problems(fleet=values) == (expected,)


# --- TLS ------------------------------------------------------------------------------------------


class Pem:
    """Self-signed certificate for localhost, its key, and the same key encrypted."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key, self.encrypted = folder / "cert.pem", folder / "key.pem", folder / "encrypted.pem"
        self._openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(self.key),
            "-out",
            str(self.cert),
        )
        self._openssl("rsa", "-aes256", "-passout", f"pass:{SECRET}", "-in", str(self.key), "-out", str(self.encrypted))

    @staticmethod
    def _openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    if shutil.which("openssl") is None:
        missing("openssl makes the certificates of this test")
    return Pem(tmp_path_factory.mktemp("pem"))


async def handshake(options: dict[str, Any], pem: Pem, host: str) -> None:
    """Connect to a TLS server that asks for a client certificate from the same authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pem.cert))
    context.load_cert_chain(pem.cert, pem.key)
    context.verify_mode = ssl.CERT_REQUIRED
    connected = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.write(b"ok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=options["ssl_context"], server_hostname=host
        )
        try:
            assert await reader.read() == b"ok"
            assert connected.is_set()
        finally:
            writer.close()


def tls(pem: Pem, **values: Any) -> dict[str, Any]:
    given = {"security_protocol": "SSL", "ssl_cafile": pem.cert, "ssl_certfile": pem.cert, "ssl_keyfile": pem.key}
    return kafka(**{**given, **values}).client_options()


async def test_mutual_tls(pem: Pem) -> None:
    options = tls(pem)
    await accepted(options)
    await handshake(options, pem, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname mismatch"):
        await handshake(options, pem, "other.example")


async def test_hostname_check_can_be_turned_off_and_the_authority_still_counts(pem: Pem) -> None:
    await handshake(tls(pem, ssl_check_hostname=False), pem, "other.example")
    strangers = tls(pem, ssl_check_hostname=False, ssl_cafile=None)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self.signed"):
        await handshake(strangers, pem, "localhost")


async def test_encrypted_keys(pem: Pem, tmp_path: Path) -> None:
    await handshake(tls(pem, ssl_keyfile=pem.encrypted, ssl_key_password=SECRET), pem, "localhost")
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    await handshake(tls(pem, ssl_keyfile=pem.encrypted, ssl_key_password_file=file), pem, "localhost")


def test_an_encrypted_key_without_its_password_is_an_error_and_no_question(pem: Pem) -> None:
    with pytest.raises(SettingsError, match=r"the right kafka\.ssl_key_password \(it is not set\)"):
        tls(pem, ssl_keyfile=pem.encrypted)
    with pytest.raises(SettingsError, match=r"the right kafka\.ssl_key_password$") as caught:
        tls(pem, ssl_keyfile=pem.encrypted, ssl_key_password=SECRET[::-1])
    assert SECRET[::-1] not in str(caught.value)


def test_tls_files_that_are_not_what_they_should_be(pem: Pem, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"kafka\.ssl_cafile: cannot read .*: No such file"):
        tls(pem, ssl_cafile=tmp_path / "no.pem")
    with pytest.raises(SettingsError, match=r"kafka\.ssl_cafile: .* holds no certificates in PEM"):
        tls(pem, ssl_cafile=pem.key)
    with pytest.raises(SettingsError, match=r"kafka\.ssl_certfile, kafka\.ssl_keyfile: .* and the key in it"):
        tls(pem, ssl_keyfile=None)
    with pytest.raises(SettingsError, match=r"kafka\.ssl_keyfile: cannot read"):
        tls(pem, ssl_keyfile=tmp_path)


async def test_sasl_over_tls(pem: Pem) -> None:
    options = tls(
        pem, security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password=SECRET
    )
    assert options["ssl_context"].check_hostname
    await accepted(options)


# --- documentation --------------------------------------------------------------------------------


def test_the_reference_is_the_code() -> None:
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == reference_markdown(), "run `make docs`"
    assert (ROOT / "deploy/sidecar.yaml").read_text(encoding="utf-8") == reference_yaml(), "run `make docs`"


def test_the_reference_is_complete() -> None:
    page = reference_markdown()
    for key in keys(Settings):
        assert f"| `{key.dotted}` |" in page and f"`{key.variable}`" in page


def test_the_reference_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference_markdown(), reference_yaml()
    monkeypatch.setenv("SIDECAR_HTTP__PORT", "1")
    monkeypatch.setenv("SIDECAR_FOO", "1")
    assert (reference_markdown(), reference_yaml()) == before


def test_the_reference_configuration_is_every_default() -> None:
    file = ROOT / "deploy/sidecar.yaml"
    assert Settings.load(file) == Settings.load()
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert {section: set(values) for section, values in given.items()} == {
        section: set(values) for section, values in Settings.load().model_dump().items()
    }


@pytest.mark.parametrize(
    ("args", "expected"), [([], reference_markdown), (["--markdown"], reference_markdown), (["--yaml"], reference_yaml)]
)
def test_the_reference_can_be_printed(args: list[str], expected: Callable[[], str]) -> None:
    result = CliRunner().invoke(main, args)
    assert (result.exit_code, result.output) == (0, expected())
