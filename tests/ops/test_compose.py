"""The compose file: valid by the specification, every mounted file there, every command and variable ours."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import sidecar
from tests.ops.commands import loaded, parse, unknown_variables

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/compose.yaml"
GENERATED = {ROOT / "deploy/compose/token"}
"""What whoever starts it makes first; the head of the file says how."""


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, service in services().items():
        if service["image"].startswith("frontier-sidecar:"):
            yield name, service


OURS = [name for name, _ in ours()]


def test_it_is_valid_by_the_specification() -> None:
    # The package vendors the specification's schema; its program is not needed, and so not imported.
    spec = importlib.util.find_spec("check_jsonschema")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(compose())
    broken = compose()
    broken["services"]["tail"]["comand"] = []
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        validator.validate(broken)


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_every_variable_is_ours(name: str) -> None:
    service = services()[name]
    assert parse(service["command"]) == service["command"][0]
    environment = service.get("environment", {})
    assert unknown_variables(environment) == []
    with pytest.MonkeyPatch.context() as patch:
        settings = loaded(patch, environment)
    assert settings.kafka.bootstrap_servers == ("kafka:9092",)
    inside = {f"/run/secrets/{secret}" for secret in service.get("secrets", ())}
    files = settings.guard.token_file, settings.fleet.token_file, settings.fleet.guard_token_file
    assert {str(path) for path in files if path} <= inside
    for url in (settings.guard.advertise, settings.fleet.advertise, settings.fleet.guard_url):
        assert url is None or re.fullmatch(r"http://(tail:9464|fleet:9465)", url)
    for published in service.get("ports", ()):
        address, _, port = published.rpartition(":")
        assert address.startswith("127.0.0.1:") and int(port) == settings.http.port


@pytest.mark.parametrize("name", OURS)
def test_ours_are_confined(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["image"] == f"frontier-sidecar:{sidecar.__version__}"
    assert not service.get("privileged")


def test_exactly_one_builds_the_image_from_the_checkout() -> None:
    builds = [service["build"] for service in services().values() if "build" in service]
    (build,) = builds
    context = (FILE.parent / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).is_file()


def test_everything_that_is_mounted_is_there() -> None:
    named = set(compose()["volumes"])
    for service in services().values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (FILE.parent / source).exists(), source
                assert volume.endswith(":ro"), volume
            else:
                assert source in named
    files = {(FILE.parent / secret["file"]).resolve() for secret in compose()["secrets"].values()}
    assert files == GENERATED
    said = FILE.read_text(encoding="utf-8")
    for path in GENERATED:
        assert f"openssl rand -hex 32 > {path.relative_to(ROOT)}" in said


def test_nothing_is_published_but_on_loopback_and_every_image_is_one_version() -> None:
    for name, service in services().items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]


def test_what_is_waited_for_can_come_about() -> None:
    for service in services().values():
        waits = service.get("depends_on", {})
        for other, wait in waits.items() if isinstance(waits, dict) else ((w, {}) for w in waits):
            condition = wait.get("condition", "service_started")
            found = services()[other]
            if condition == "service_completed_successfully":
                assert "restart" not in found and found["command"][0] == "topics"
            if condition == "service_healthy":
                # Ours have one in the image.
                assert "healthcheck" in found or other in OURS
                assert not found.get("healthcheck", {}).get("disable")


def test_prometheus_scrapes_what_is_served_and_reads_the_rules_that_are_mounted() -> None:
    config = yaml.safe_load((FILE.parent / "compose/prometheus.yml").read_text(encoding="utf-8"))
    targets = [t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    for target in targets:
        name, _, port = target.partition(":")
        with pytest.MonkeyPatch.context() as patch:
            assert loaded(patch, services()[name]["environment"]).http.port == int(port)
    mounted = {Path(v.split(":")[1]).name for v in services()["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= mounted
    (manager,) = config["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"] == ["alertmanager:9093"] and "alertmanager" in services()


def test_grafana_finds_what_its_provisioning_names() -> None:
    grafana = services()["grafana"]
    mounts = dict(reversed(volume.removesuffix(":ro").split(":")) for volume in grafana["volumes"])
    provisioning = FILE.parent / mounts["/etc/grafana/provisioning"]
    (provider,) = (provisioning / "dashboards").glob("*.y*ml")
    for entry in yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"]:
        assert list((FILE.parent / mounts[entry["options"]["path"]]).glob("*.json"))
    used = set()
    for path in provisioning.rglob("*.y*ml"):
        used |= set(re.findall(r"(?<!\$)\$\{?([A-Z][A-Z0-9_]+)", path.read_text(encoding="utf-8")))
    assert used and used <= set(grafana["environment"])
