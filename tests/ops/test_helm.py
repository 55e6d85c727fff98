"""The chart, rendered by Helm itself: valid for Kubernetes, settled by our own settings, and safe by default."""

import copy
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudcoil.models.prometheus_operator.v1 as operator
import jsonschema
import kubernetes_validate
import pytest
import yaml

import sidecar
from sidecar.config import Settings, SettingsError
from sidecar.tail.planned import plan
from sidecar.tail.tail import STOP_TIMEOUT
from tests.conftest import missing
from tests.ops.commands import loaded, parse, unknown_variables

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/frontier-sidecar"
SETS = ["default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))]
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
VERSION = "4.3.1"

Manifest = dict[str, Any]

# It reads a megabyte of definitions anew for every manifest.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def helm() -> str:
    """Return the path of Helm: of FRONTIER_HELM, of the PATH, or what .ci/helm.py has fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"frontier-sidecar/helm-{VERSION}"
    found = os.environ.get("FRONTIER_HELM") or shutil.which("helm") or (str(cache) if cache.exists() else None)
    if found is None:
        missing("there is no helm here: `python3 .ci/helm.py` fetches it")
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm, which is not to look at anybody's own configuration."""
    home = dict.fromkeys(("HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME", "KUBECONFIG"), "/nonexistent")
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, env={**os.environ, **home}, timeout=60)


def options(name: str) -> list[str]:
    return [] if name == "default" else ["--values", str(CHART / f"ci/{name}-values.yaml")]


@functools.cache
def _rendered(name: str) -> str:
    done = run("template", "demo", str(CHART), "--namespace", "agents", "--kube-version", f"{OLDEST}.0", *options(name))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(name: str) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all(_rendered(name)) if manifest]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        if manifest["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    for _, pod in pods(manifests):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield pod, container


def ours(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    for pod, container in containers(manifests):
        if container["image"].startswith("frontier-sidecar") and "command" not in container:
            yield pod, container


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


# --- what Helm and Kubernetes say -----------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_helm_lints_it(name: str) -> None:
    done = run("lint", "--strict", str(CHART), *options(name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", SETS)
def test_kubernetes_would_take_it(name: str, version: str) -> None:
    checked = 0
    for manifest in rendered(name):
        if manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        kubernetes_validate.validate(manifest, version, strict=True)
        checked += 1
    assert checked >= 1
    names = [(m["kind"], m["metadata"]["name"]) for m in rendered(name)]
    assert len(names) == len(set(names))


def test_kubernetes_would_not_take_just_anything() -> None:
    broken = copy.deepcopy(one(rendered("default"), "StatefulSet", "demo-frontier-sidecar-tail"))
    broken["spec"]["template"]["spec"]["containers"][0]["resurces"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="resurces"):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def test_the_operator_would_take_it() -> None:
    kinds = {"ServiceMonitor": operator.ServiceMonitor, "PrometheusRule": operator.PrometheusRule}
    found = [m for m in rendered("everything") if m["kind"] in kinds]
    assert sorted(m["kind"] for m in found) == ["PrometheusRule", "ServiceMonitor", "ServiceMonitor"]
    for manifest in found:
        read = kinds[manifest["kind"]].model_validate(manifest)
        # What it does not know is dropped in reading: nothing may be.
        assert read.model_dump(by_alias=True, exclude_unset=True, mode="json") == manifest
    services = [m for m in rendered("everything") if m["kind"] == "Service"]
    for monitor in (m for m in found if m["kind"] == "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        (selected,) = [s for s in services if labels.items() <= s["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in selected["spec"]["ports"]}
        assert monitor["spec"]["jobLabel"] in selected["metadata"]["labels"]
    assert not [m for m in rendered("default") if m["kind"] in kinds]


def test_the_rules_are_those_that_prometheus_is_given() -> None:
    rule = one(rendered("everything"), "PrometheusRule", "demo-frontier-sidecar")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text(encoding="utf-8"))
    assert rule["spec"]["groups"]


# --- what our own program says --------------------------------------------------------------------


def variables(container: Manifest) -> dict[str, str]:
    values = {"POD_NAME": "demo-frontier-sidecar-tail-0", "POD_IP": "10.1.2.3"}
    for entry in container["env"]:
        value = entry.get("value")
        if value is not None:
            for name, known in values.items():
                value = value.replace(f"$({name})", known)
            values[entry["name"]] = value
    return values


@pytest.mark.parametrize("name", SETS)
def test_every_command_and_every_setting_is_ours(name: str, tmp_path: Path) -> None:
    manifests = rendered(name)
    seen = []
    for pod, container in ours(manifests):
        seen.append(parse(container["args"]))
        environment = variables(container)
        assert unknown_variables(environment) == []
        config = None
        if named := environment.pop("SIDECAR_CONFIG", None):
            (mount,) = [m for m in container["volumeMounts"] if named.startswith(m["mountPath"])]
            (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
            config = tmp_path / "sidecar.yaml"
            config.write_text(one(manifests, "ConfigMap", volume["configMap"]["name"])["data"][Path(named).name])
        with pytest.MonkeyPatch.context() as patch:
            settings = loaded(patch, environment, config)
        serves = container["args"][0] in ("run", "fleet")
        for path in files_of(settings, serves=serves):
            within = [m["mountPath"] for m in container["volumeMounts"] if path.is_relative_to(m["mountPath"])]
            assert within, f"{path} is not mounted"
        if serves:
            (port,) = container["ports"]
            assert (settings.http.host, settings.http.port) == ("0.0.0.0", port["containerPort"])
            assert settings.topics.create is False
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if command := container.get(probe, {}).get("exec", {}).get("command"):
                assert command[0] == "sidecar" and parse(command[1:]) == "health"
    assert seen


def files_of(settings: Settings, *, serves: bool = True) -> list[Path]:
    kafka, guard = settings.kafka, settings.guard
    named = [kafka.ssl_cafile, kafka.ssl_certfile, kafka.ssl_keyfile, kafka.sasl_password_file]
    if serves:
        named += [guard.token_file, guard.tls_certfile, guard.tls_keyfile, guard.tls_client_ca]
        named += [settings.fleet.token_file, settings.fleet.guard_token_file]
    return [path for path in named if path is not None]


def settings_in(name: str, component: str, tmp_path: Path) -> Settings:
    manifests = rendered(name)
    pod = one(manifests, "StatefulSet", f"demo-frontier-sidecar-{component}")["spec"]["template"]["spec"]
    environment = variables(pod["containers"][0])
    config = tmp_path / "sidecar.yaml"
    config.write_text(one(manifests, "ConfigMap", "demo-frontier-sidecar")["data"]["sidecar.yaml"])
    environment.pop("SIDECAR_CONFIG")
    with pytest.MonkeyPatch.context() as patch:
        return loaded(patch, environment, config)


def test_each_party_logs_in_as_itself(tmp_path: Path) -> None:
    tail, fleet = (settings_in("tls-sasl", component, tmp_path) for component in ("tail", "fleet"))
    assert tail.kafka.security_protocol == "SASL_SSL" and tail.kafka.sasl_mechanism == "SCRAM-SHA-512"
    assert (tail.kafka.sasl_username, fleet.kafka.sasl_username) == ("frontier-tail", "frontier-fleet")
    secrets = {}
    for name, pod in pods(rendered("tls-sasl")):
        secrets[name.rpartition("-")[2]] = {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    both = {"kafka-ca", "kafka-client"}
    assert secrets["tail"] == {*both, "kafka-tail", "guard"}
    assert secrets["fleet"] == {*both, "kafka-fleet", "board", "guard"}
    assert tail.guard.token_file == fleet.fleet.guard_token_file == Path("/etc/frontier/guard-token/token")
    assert fleet.fleet.guard_url == "http://demo-frontier-sidecar-guard.agents.svc:9464"
    assert tail.fleet.token_file is None and fleet.guard.token_file is None
    assert secrets["topics"] == {*both, "kafka-setup"}


def test_a_replica_keeps_its_name_and_can_be_asked_under_it(tmp_path: Path) -> None:
    tail = settings_in("everything", "tail", tmp_path)
    name = "demo-frontier-sidecar-tail-0"
    assert tail.tail.group_instance_id == f"agents.{name}"  # another namespace's has another name in the group
    assert tail.guard.advertise == f"https://{name}.demo-frontier-sidecar-tail.agents.svc:9464"
    assert tail.engine.workloads["triage"].floor == 0.7
    (pod,) = [pod for found, pod in pods(rendered("deployment")) if found.endswith("-tail")]
    environment = variables(pod["containers"][0])
    assert environment["SIDECAR_GUARD__ADVERTISE"] == "http://10.1.2.3:9464"
    assert "SIDECAR_TAIL__GROUP_INSTANCE_ID" not in environment  # a Deployment's pods have no lasting names


def test_settings_of_the_user_reach_the_program_and_mistakes_in_them_are_found(tmp_path: Path) -> None:
    done = run("template", "x", str(CHART), "--set", "config.engine.max_wiat=3", "--show-only", "templates/config.yaml")
    assert done.returncode == 0, done.stderr
    config = next(m for m in yaml.safe_load_all(done.stdout) if m["kind"] == "ConfigMap")["data"]["sidecar.yaml"]
    (tmp_path / "c.yaml").write_text(config)
    with pytest.raises(SettingsError, match=r"engine\.max_wiat is not a setting; did you mean engine\.max_wait"):
        Settings.load(tmp_path / "c.yaml")


# --- safe by default ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_every_container_is_confined(name: str) -> None:
    for pod, container in containers(rendered(name)):
        inside = container["securityContext"]
        assert inside["allowPrivilegeEscalation"] is False and inside["readOnlyRootFilesystem"] is True
        assert inside["capabilities"] == {"drop": ["ALL"]}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert set(container["resources"]) == {"requests", "limits"}
        assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in pod["volumes"])


@pytest.mark.parametrize("name", SETS)
def test_secrets_are_only_referred_to(name: str) -> None:
    assert not [m for m in rendered(name) if m["kind"] == "Secret"]
    for _, container in containers(rendered(name)):
        for entry in container.get("env", ()):
            assert not ("PASSWORD" in entry["name"] or "TOKEN" in entry["name"]) or entry["name"].endswith("_FILE")


@pytest.mark.parametrize("name", SETS)
def test_services_and_budgets_select_what_is_there(name: str) -> None:
    manifests = rendered(name)
    templates = [m["spec"]["template"] for m in manifests if m["kind"] in ("StatefulSet", "Deployment", "Job")]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        selector = {
            "Service": spec.get("selector"),
            "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
        }.get(manifest["kind"])
        if selector:
            assert [t for t in templates if selector.items() <= t["metadata"]["labels"].items()], manifest["metadata"]
    for manifest in manifests:
        if manifest["kind"] == "StatefulSet":
            selected = [m for m in manifests if m["kind"] == "Service"]
            names = {m["metadata"]["name"] for m in selected}
            assert manifest["spec"]["serviceName"] in names or manifest["metadata"]["name"].endswith("-example")


def test_the_network_lets_in_only_who_is_named() -> None:
    policy = one(rendered("everything"), "NetworkPolicy", "demo-frontier-sidecar-tail")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (ingress,) = policy["ingress"]
    assert ingress["ports"] == [{"port": 9464, "protocol": "TCP"}]
    assert {"namespaceSelector": {"matchLabels": {"agents": "true"}}} in ingress["from"] and len(ingress["from"]) == 3
    fleet = one(rendered("everything"), "StatefulSet", "demo-frontier-sidecar-fleet")["spec"]["template"]["metadata"]
    labels = ingress["from"][-1]["podSelector"]["matchLabels"]
    assert labels.items() <= fleet["labels"].items() and policy["egress"][-1]["to"] == [ingress["from"][-1]]
    assert [{"port": 9092, "protocol": "TCP"}] in [rule["ports"] for rule in policy["egress"]]


def test_the_job_that_makes_topics_reads_what_the_others_read_and_reaches_the_brokers(tmp_path: Path) -> None:
    done = run("template", "demo", str(CHART), "--set", "config.fleet.group_id=board-2,networkPolicy.enabled=true")
    manifests = [m for m in yaml.safe_load_all(done.stdout) if m]
    job = one(manifests, "Job", "demo-frontier-sidecar-topics")
    (config,) = (m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == job["metadata"]["name"])
    assert config["data"] == one(manifests, "ConfigMap", "demo-frontier-sidecar")["data"]
    (tmp_path / "c.yaml").write_text(config["data"]["sidecar.yaml"])
    # The fleet's own topics have the names that the fleet will look for.
    assert "board-2-rollups" in {spec.name for spec in plan(Settings.load(tmp_path / "c.yaml"))}
    policy = one(manifests, "NetworkPolicy", "demo-frontier-sidecar-topics")
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert "ingress" not in policy["spec"] and policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert (
        policy["spec"]["egress"] == one(manifests, "NetworkPolicy", "demo-frontier-sidecar-tail")["spec"]["egress"][:2]
    )
    # Both are there before it is, and all of them before anything else.
    weights = {m["kind"]: int(m["metadata"]["annotations"]["helm.sh/hook-weight"]) for m in (config, policy, job)}
    assert max(weights["ConfigMap"], weights["NetworkPolicy"]) < weights["Job"]
    assert {m["metadata"]["annotations"]["helm.sh/hook"] for m in (config, policy, job)} == {"pre-install,pre-upgrade"}
    # It says that it failed before Helm stops waiting for it.
    assert job["spec"]["activeDeadlineSeconds"] < 300


def test_names_are_short_enough_for_what_is_put_behind_them() -> None:
    long = ["--set", f"fullnameOverride={'x' * 60}", "--set", f"nameOverride={'y' * 62}-z"]
    done = run("template", "demo", str(CHART), *options("everything"), *long)
    assert done.returncode == 0, done.stderr
    for manifest in (m for m in yaml.safe_load_all(done.stdout) if m):
        name = manifest["metadata"]["name"]
        # The pods of a StatefulSet carry its name and a hash of ten letters in a label, and labels end at 63.
        assert len(name) <= (52 if manifest["kind"] == "StatefulSet" else 63), (manifest["kind"], name)
        if manifest["kind"] in ("StatefulSet", "Job"):
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert all(len(value) <= 63 and value[-1].isalnum() for value in labels.values())


def test_what_is_under_way_is_delivered_before_a_pod_is_killed() -> None:
    for name, pod in pods(rendered("everything")):
        if name.endswith(("-tail", "-fleet")):
            assert pod["terminationGracePeriodSeconds"] > STOP_TIMEOUT


def test_the_example_asks_its_own_sidecar_and_nobody_else(tmp_path: Path) -> None:
    (pod,) = [pod for _, pod in pods(rendered("sidecar-example"))]
    (side,) = pod["initContainers"]
    assert side["restartPolicy"] == "Always"
    environment = variables(side)
    with pytest.MonkeyPatch.context() as patch:
        assert loaded(patch, environment).http.host == "127.0.0.1"
    written, read = (next(m for m in c["volumeMounts"] if m["name"] == "log") for c in (pod["containers"][0], side))
    assert written["mountPath"] == read["mountPath"] == side["args"][1]
    assert read["readOnly"] is True and "readOnly" not in written


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("guard.enabled=true", "guard.enabled needs guard.tokenSecret"),
        ("fleet.enabled=true", "fleet.enabled needs fleet.tokenSecret"),
        ("guard.tls.clientCaSecret=x", "needs guard.tls.secret"),
        ("kafka.securityProtocol=SASL_SSL", "set kafka.sasl.mechanism"),
        ("kafka.sasl.mechanism=PLAIN", "kafka.securityProtocol has to be SASL_SSL"),
        ("kafka.securityProtocol=SASL_SSL,kafka.sasl.mechanism=PLAIN", "needs kafka.sasl.passwordSecret"),
        ("kafka.sasl.fleetUsername=x", "kafka.sasl.fleetUsername and kafka.sasl.fleetPasswordSecret: set both"),
        ("kafka.sasl.setupPasswordSecret=x", "kafka.sasl.setupUsername and kafka.sasl.setupPasswordSecret: set both"),
        ("tail.terminationGracePeriodSeconds=10", "terminationGracePeriodSeconds"),
        ("kafka.tls.caSecret=x", "kafka.securityProtocol has to be SSL or SASL_SSL"),
        ("kafka.securityProtocol=TLS", "securityProtocol"),
        ("tail.replicas=0", "replicas"),
        ("tial.replicas=3", "tial"),
        ("guard.password=x", "password"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: str, said: str) -> None:
    done = run("template", "x", str(CHART), "--set", given)
    assert done.returncode != 0
    assert said in done.stderr


# --- values, and what is said of them -------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_values", ROOT / "deploy/helm/values.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_and_the_table_are_what_the_comments_say(made: ModuleType) -> None:
    assert (CHART / "values.schema.json").read_text(encoding="utf-8") == made.schema(), "run deploy/helm/values.py"
    text = made.DOCUMENT.read_text(encoding="utf-8")
    assert made.document(text) == text, "run deploy/helm/values.py"


def leaves(tree: Any, said: Callable[[str], bool], path: str = "") -> Iterator[str]:
    if path and said(path):
        yield path
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, said, f"{path}.{key}" if path else key)
    else:
        yield path


def test_every_value_is_described_and_used(made: ModuleType) -> None:
    described = [value.path for value in made.values()]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert list(leaves(defaults, described.__contains__)) == described
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    unused = [path for path in described if path.rpartition(".")[2] not in templates]
    assert unused == []
    jsonschema.Draft7Validator.check_schema(json.loads(made.schema()))
    jsonschema.validate(defaults, json.loads(made.schema()))


# In this every value means something. Those that rule others out (a digest, a full name) are at their defaults.
ON: dict[str, Any] = {
    "kafka": {
        "securityProtocol": "SASL_SSL",
        "tls": {"caSecret": "ca", "clientSecret": "client"},
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "passwordSecret": "tail",
            "fleetUsername": "fleet",
            "fleetPasswordSecret": "fleet",
            "setupUsername": "setup",
            "setupPasswordSecret": "setup",
        },
    },
    "guard": {"enabled": True, "tokenSecret": "guard", "tls": {"secret": "tls", "clientCaSecret": "clients"}},
    "fleet": {"enabled": True, "tokenSecret": "board"},
    "networkPolicy": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "sidecarExample": {"enabled": True},
}
DIGEST = f"sha256:{'1' * 64}"
# Values for what has a shape of its own; all else is changed by its type.
OTHERS: dict[str, Any] = {
    "image.digest": DIGEST,
    "image.pullPolicy": "Always",
    "imagePullSecrets": ["other"],
    "kafka.securityProtocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "config": {"engine": {"max_wait": 7}},
    "tail.kind": "Deployment",
    "networkPolicy.kafkaPorts": [9094],
    "serviceMonitor.interval": "61s",
    "sidecarExample.agentCommand": ["other"],
    "extraEnv": [{"name": "OTHER", "value": "1"}],
    "resources": {"limits": {"memory": "3Gi"}},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "other", "operator": "Exists"}],
    "clients": [{"podSelector": {"matchLabels": {"other": "1"}}}],
    "metrics": [{"podSelector": {"matchLabels": {"other": "1"}}}],
    "kafkaPeers": [{"podSelector": {"matchLabels": {"other": "1"}}}],
}
# What else has to change with it, or the chart refuses it.
WITH: dict[str, dict[str, Any]] = {
    "kafka.securityProtocol": {"kafka": {"tls": {"caSecret": "", "clientSecret": ""}}},
}


def other(path: str, default: Any) -> Any:
    """Return a value that is not the default."""
    last = path.rpartition(".")[2]
    if path in OTHERS or last in OTHERS:
        return OTHERS.get(path, OTHERS.get(last))
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 7
    return {"other": "1"} if isinstance(default, dict) else "other"


def merged(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    found = dict(tree)
    for key, value in more.items():
        found[key] = merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


def at(path: str, value: Any) -> dict[str, Any]:
    tree = value
    for part in reversed(path.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


def test_every_value_changes_what_is_rendered(made: ModuleType, tmp_path: Path) -> None:
    def manifests(name: str, values: dict[str, Any]) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values))
        done = run("template", "demo", str(CHART), "--values", str(file), "--kube-version", f"{OLDEST}.0")
        assert done.returncode == 0, (name, done.stderr)
        return done.stdout

    def changes(value: Any) -> bool:
        here = ON
        for part in value.path.split("."):
            here = here.get(part, value.default) if isinstance(here, dict) else value.default
        beside = merged(ON, WITH.get(value.path, {}))
        changed = merged(beside, at(value.path, other(value.path, here)))
        before = manifests(f"{value.path}-before", beside) if value.path in WITH else base
        return manifests(value.path, changed) != before

    base = manifests("base", ON)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((v.path for v in made.values()), pool.map(changes, made.values()), strict=True))
    assert len(found) >= 70
    assert [path for path, changed in found.items() if not changed] == []


def test_the_schema_refuses_what_is_misspelt_and_what_is_of_another_type(made: ModuleType) -> None:
    validator = jsonschema.Draft7Validator(json.loads(made.schema()))
    described = made.values()
    sections = {value.path.rpartition(".")[0] for value in described}
    for section in sections:
        misspelt = at(f"{section}.tokenSceret" if section else "tokenSceret", "x")
        assert [e for e in validator.iter_errors(misspelt) if "tokenSceret" in e.message], section
    strange: tuple[Any, ...] = ("text", 3, True, ["text"], {"key": "text"}, None)
    for value in described:
        taken = [type(s).__name__ for s in strange if validator.is_valid(at(value.path, s))]
        assert len(taken) <= 1, (value.path, taken)
        # Where one of them is right, it is of the default's type.
        assert taken in ([], [type(value.default).__name__]), (value.path, taken)


def test_the_versions_are_the_programs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == sidecar.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


def test_it_can_be_packed_with_the_rules_in_it(tmp_path: Path) -> None:
    done = run("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("*.tgz")
    with_rules = run("template", "x", str(packed), "--set", "prometheusRule.enabled=true")
    assert "alert: FrontierDegraded" in with_rules.stdout
