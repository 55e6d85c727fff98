"""The chart on an API server that runs: installed, upgraded from any values to any, its pods by the strictest policy.

No node is there, so that no pod ever starts: what Helm and the API server say is what is tested. Left out where nobody
has built the server, which takes six minutes: `python3 .ci/kubernetes.py`.
"""

import contextlib
import json
import os
import re
import shlex
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.embedded import free_port
from tests.ops.test_helm import CHART, SETS, helm, options
from tests.ops.test_release import load
from tests.ops.test_release_docs import blocks

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy.md"
BUILT: Path = load(".ci/kubernetes.py").CACHE
LEVELS = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
KINDS = {"ConfigMap": "api/v1", "NetworkPolicy": "apis/networking.k8s.io/v1", "Job": "apis/batch/v1"}
PLURALS = {"ConfigMap": "configmaps", "NetworkPolicy": "networkpolicies", "Job": "jobs"}

pytestmark = pytest.mark.skipif(
    not all((BUILT / name).exists() for name in ("etcd", "kube-apiserver")),
    reason="no API server of Kubernetes has been built here (python3 .ci/kubernetes.py)",
)


class Cluster:
    """A cluster without nodes: etcd, and an API server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = folder / "config"
        self._running: list[subprocess.Popen[bytes]] = []
        self._trusting = ssl._create_unverified_context()

    def start(self) -> None:
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            *("etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={clients}"),
            *(f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}", "--unsafe-no-fsync"),
            *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
        )
        key = self.folder / "key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens").write_text("a-token,admin,admin,system:masters\n")
        self._run(
            *("kube-apiserver", f"--etcd-servers={clients}", "--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *(
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--cert-dir={self.folder}/certificates",
            ),
            *(f"--token-auth-file={self.folder}/tokens", "--authorization-mode=RBAC"),
            *("--service-account-issuer=https://cluster.example", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24"),
        )
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "a-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
        for _ in range(300):
            with contextlib.suppress(OSError):
                if self.ask("GET", "readyz")[0] == 200:
                    return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "kube-apiserver.log").read_text()[-2000:])

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running.append(subprocess.Popen([BUILT / name, *arguments], stdout=log, stderr=log))

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
            process.wait(20)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, list[str], str]:
        """Return the status, the warnings, and the text of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer a-token", "Content-Type": "application/json"}
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self._trusting, timeout=20) as answer:
                return answer.status, answer.headers.get_all("Warning") or [], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, [], error.read().decode()

    def namespace(self, name: str) -> None:
        """Make a namespace that lets in only what the strictest policy of Kubernetes allows."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": LEVELS}}
        assert self.ask("POST", "api/v1/namespaces", body)[0] == 201

    def helm(self, *arguments: str) -> str:
        """Run Helm on it; return what it says, warnings of the server included."""
        home = dict.fromkeys(("HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME"), str(self.folder / "helm"))
        environment = {**os.environ, **home, "KUBECONFIG": str(self.config)}
        done = subprocess.run(
            [helm(), *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60
        )
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]
        assert said == []
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        for kind in ("ServiceMonitor", "PrometheusRule"):  # the operator's, which test_helm.py holds them against
            found_kind = {
                "kind": kind,
                "plural": f"{kind.lower()}s",
                "singular": kind.lower(),
                "listKind": f"{kind}List",
            }
            anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
            version = {"name": "v1", "served": True, "storage": True, "schema": anything}
            spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": found_kind, "versions": [version]}
            body = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
                "spec": spec,
            }
            path = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            assert found.ask("POST", path, body)[0] == 201
            for _ in range(100):
                if found.ask("GET", f"apis/monitoring.coreos.com/v1/{kind.lower()}s")[0] == 200:
                    break
                time.sleep(0.1)
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("name", SETS)
def test_it_is_installed_without_a_warning_and_so_is_what_runs_before(cluster: Cluster, name: str) -> None:
    namespace = f"with-{name}"
    cluster.namespace(namespace)
    # The job needs a node to end on; it is shown to the server on its own.
    said = cluster.helm("install", "demo", str(CHART), "--namespace", namespace, "--no-hooks", *options(name))
    assert "STATUS: deployed" in said
    hooks = cluster.helm("get", "hooks", "demo", "--namespace", namespace)
    for hook in filter(None, yaml.safe_load_all(hooks)):
        path = f"{KINDS[hook['kind']]}/namespaces/{namespace}/{PLURALS[hook['kind']]}?dryRun=All&fieldValidation=Strict"
        status, warnings, text = cluster.ask("POST", path, hook)
        assert (status, warnings) == (201, []), text


def test_a_pod_that_is_not_confined_would_be_warned_of(cluster: Cluster) -> None:
    cluster.namespace("warned")
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    _, warnings, _ = cluster.ask("POST", "apis/batch/v1/namespaces/warned/jobs?dryRun=All", job)
    assert warnings and "restricted" in warnings[0]


def test_it_is_upgraded_from_any_values_to_any(cluster: Cluster) -> None:
    cluster.namespace("upgraded")
    cluster.helm("install", "demo", str(CHART), "--namespace", "upgraded", "--no-hooks")
    for name in [*SETS[1:], *reversed(SETS)]:
        said = cluster.helm("upgrade", "demo", str(CHART), "--namespace", "upgraded", "--no-hooks", *options(name))
        assert "STATUS: deployed" in said
    cluster.helm("uninstall", "demo", "--namespace", "upgraded", "--no-hooks")


def test_what_the_document_says_to_helm_is_done(cluster: Cluster, tmp_path: Path) -> None:
    section = list(blocks(DEPLOY, within="## Kubernetes"))
    (values,) = (block for language, block in section if language == "yaml")
    (tmp_path / "values.yaml").write_text(values)
    done, secrets = [], set()
    cluster.namespace("agents")
    for line in "\n".join(block for language, block in section if not language).replace("\\\n", " ").splitlines():
        if not line:
            continue
        if line.startswith("helm "):
            words = [
                str(tmp_path / word) if word == "values.yaml" else word for word in shlex.split(line, comments=True)[1:]
            ]
            done.append(cluster.helm(*words, "--no-hooks"))
        else:  # there is no kubectl here; what it would send is sent
            kubectl, flag, namespace, *words = shlex.split(re.sub(r"\$\(.*\)", "made", line))
            assert (kubectl, flag, namespace, words[:3]) == ("kubectl", "-n", "agents", ["create", "secret", "generic"])
            name, given = words[3:]
            kind, key, _ = re.fullmatch(r"--from-(literal|file)=([\w.]+)(?:=(.*))?", given).groups()  # type: ignore[union-attr]
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: "something"}}
            assert kind and cluster.ask("POST", "api/v1/namespaces/agents/secrets", body)[0] == 201
            secrets.add((name, key))
    # Every secret, and every key of it, that a pod mounts has been made.
    for kind, name in (("statefulsets", "tail"), ("statefulsets", "fleet")):
        path = f"apis/apps/v1/namespaces/agents/{kind}/frontier-frontier-sidecar-{name}"
        for volume in json.loads(cluster.ask("GET", path)[2])["spec"]["template"]["spec"]["volumes"]:
            if "secret" in volume:
                assert {(volume["secret"]["secretName"], item["key"]) for item in volume["secret"]["items"]} <= secrets
    assert len(done) == 2 and all("STATUS: deployed" in said for said in done)
    assert "Agents ask before they act at http://frontier-frontier-sidecar-guard.agents.svc:9464" in done[-1]
