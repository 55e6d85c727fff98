"""Each command that the documents give a shell is run, and does what they say of it.

What cannot be run here says why, and what is tested in its place.
"""

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sidecar.config.fleet import PORT
from tests.client.walkthrough import AGENT
from tests.client.walkthrough import LIVES as OF_THE_AGENT
from tests.docs.pages import COMPOSE, PAGES, ROOT, Block
from tests.docs.proofs import COMMANDS, blocks_of
from tests.docs.world import CASE, FLEET, RUN, TOPICS, World
from tests.ops.commands import parse
from tests.ops.monitoring import eventually, get

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("documents")]

Does = Callable[[World, str], None]
DOES: dict[str, Does] = {}
RULES_BROKEN = ["action_on_degraded", "action_unauthorized", "edge_dropped", "edge_hallucinated", "resumed_unverified"]
"""What is wrong with the session of `CASE`."""


def does(*commands: str) -> Callable[[Does], Does]:
    """Say that a function runs these commands."""

    def put(function: Does) -> Does:
        assert not DOES.keys() & set(commands)
        DOES.update(dict.fromkeys(commands, function))
        return function

    return put


GIVEN: dict[str, list[Block]] = {}
"""The commands, each with the blocks that have it."""
for found in blocks_of(COMMANDS):
    for line in found.commands:
        GIVEN.setdefault(line, []).append(found)


@pytest.mark.parametrize("command", GIVEN)
def test_it_does_what_the_document_says(command: str, here: World) -> None:
    where = ", ".join(block.where for block in GIVEN[command])
    assert command in DOES, f"{where}: say in {Path(__file__).name} how `{command}` is run"
    DOES[command](here, command)


def test_nothing_is_tested_that_no_document_says() -> None:
    assert DOES.keys() == GIVEN.keys()


# --- make -------------------------------------------------------------------------------------------------------------


@does("make demo")
def _(here: World, command: str) -> None:
    """Play a shorter one; the document says how it ends."""
    shorter = "--sessions 42 --seconds 2 --http 127.0.0.1:0"
    out = here.run(f'{command} ARGS="{shorter}"', cwd=ROOT).stdout
    assert "Planted against flagged" in out and "Everything planted was flagged, and nothing else." in out


@does("make test", "make lint", "make types", "make setup")
def _(here: World, command: str) -> None:
    """Only ask what would be done: CI has run them when it comes here, or is in the midst of it."""
    target = command.split()[1]
    would = here.run(f"{command.replace('make', 'make -n', 1)}", cwd=ROOT).stdout
    programs = {
        "test": [f"{sys.prefix}/bin/python -m pytest"],
        "lint": [f"{sys.prefix}/bin/{name}" for name in ("ruff check", "ruff format --check", "lint-imports")],
        "types": [f"{sys.prefix}/bin/mypy"],
        "setup": [],  # done: there is an environment, or this would not run
    }[target]
    assert all(program in would for program in programs), would
    assert all(Path(program.split()[0]).exists() for program in programs)
    assert re.search(rf"\bmake {target}\b", (ROOT / ".ci/run").read_text())


@does("make")
def _(here: World, command: str) -> None:
    """Let it list the other targets, and see that it lists all."""
    told = re.findall(r"^  make (\w+) +\S", here.run(command, cwd=ROOT).stdout, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert [*told, "FORCE"] == re.findall(r"^\.PHONY: (.*)$", makefile, re.M)[0].split()


# --- the program ------------------------------------------------------------------------------------------------------


@does(". .venv/bin/activate")
def _(here: World, command: str) -> None:
    places = {".venv": sys.prefix}
    found = here.run(f"{command} && command -v sidecar && command -v python", places, cwd=ROOT).stdout.split()
    assert found == [f"{sys.prefix}/bin/sidecar", f"{sys.prefix}/bin/python"]


@does("sidecar check session.jsonl")
def _(here: World, command: str) -> None:
    shutil.copy(CASE, here.folder / "session.jsonl")
    out = here.run(command, status=1).stdout
    assert sorted(json.loads(line)["rule"] for line in out.splitlines()) == RULES_BROKEN
    shutil.copy(ROOT / "tests/cases/clean-session.jsonl", here.folder / "session.jsonl")
    assert here.run(command, status=0).stdout == ""


@does("sidecar check tests/cases/merged-approval-rollback.jsonl")
def _(here: World, command: str) -> None:
    done = here.run(command, status=1, cwd=ROOT)
    assert len(done.stdout.splitlines()) == 5 and "5 findings (4 critical, 1 error) in 1 session" in done.stderr


@does("sidecar check --format claude-code transcript.jsonl")
def _(here: World, command: str) -> None:
    shutil.copy(ROOT / "tests/files/data/two-compactions.jsonl", here.folder / "transcript.jsonl")
    done = here.run(f"{command} || test $? = 1")
    assert {"frontier_unverified"} <= {json.loads(line)["rule"] for line in done.stdout.splitlines()}
    assert "42 understood (97.7% coverage), 1 not understood" in done.stderr, "an account of what could be read"
    assert "\\u000a" not in done.stderr, "what it says itself needs no escapes"


@does("sidecar watch /var/log/agents", "sidecar watch agent.jsonl")
def _(here: World, command: str) -> None:
    """Let it follow what is written while it runs."""
    state, log = here.folder / "watch-state", "watch.log"
    shutil.rmtree(state, ignore_errors=True)
    folder = here.folder / "agents"
    folder.mkdir(exist_ok=True)
    env = {"SIDECAR_HTTP__PORT": "0", "SIDECAR_WATCH__STATE_DIR": str(state), "SIDECAR_LOG__FORMAT": "json"}
    changed = command.replace("/var/log/agents", str(folder)).replace("agent.jsonl", str(folder / "agent.jsonl"))
    with here.running(changed, log, **env):
        said = eventually(
            "it serves", lambda: re.search(r'"address": ?"(http://[^"]+)"', (here.folder / log).read_text())
        )
        shutil.copy(CASE, folder / "agent.jsonl")
        assert get(f"{said[1]}/healthz") and "sidecar_records_total" in get(f"{said[1]}/metrics")
        eventually("it says what it finds", lambda: '"rule":"edge_hallucinated"' in (here.folder / log).read_text())
    shutil.rmtree(folder)


@does("python emit.py", "python ask.py")
def _(here: World, command: str) -> None:
    """Save the code that stands before it, and run it; what it prints is compared by the document's own test."""
    page = PAGES["docs/ten-minutes.md"]
    code = {block.comment: block.text for block in page.blocks()}
    folder = here.folder / "ten-minutes"
    folder.mkdir(exist_ok=True)
    (folder / "emit.py").write_text(code["code: emit"])
    if command == "python emit.py":
        here.run(command, cwd=folder)
        assert [json.loads(line)["seq"] for line in (folder / "agent.jsonl").read_text().splitlines()] == [1, 2, 3]
        return
    if not (folder / "agent.jsonl").exists():
        here.run("python emit.py", cwd=folder)
    state, log = str(folder / "state"), "asked.log"
    env = {"SIDECAR_HTTP__PORT": "0", "SIDECAR_WATCH__STATE_DIR": state, "SIDECAR_LOG__FORMAT": "json"}
    with here.running(f"sidecar watch {folder / 'agent.jsonl'}", log, **env):
        said = eventually(
            "it serves", lambda: re.search(r'"address": ?"(http://[^"]+)"', (here.folder / log).read_text())
        )
        (folder / "ask.py").write_text(code["code: ask"].replace("http://127.0.0.1:9464", said[1]))
        assert here.run(command, cwd=folder).stdout == code["output: ask"]


@does(TOPICS, RUN, FLEET)
def _(here: World, command: str) -> None:
    """Ask them: the world starts with these commands (on one machine, so that each has a port of its own)."""
    if command == TOPICS:
        rows = here.run(command.replace(" --create", ""), here.live.places).stdout
        missing = [name for name in _topics() if name not in rows]
        assert not missing and "frontier-fleet-rollups" in rows
    elif command == RUN:
        assert get(f"{here.live.tail}/readyz")["status"] == "ok"
    else:
        assert get(f"{here.live.fleet}/readyz")["status"] == "ok"
        assert "migrate" in get(f"{here.live.fleet}/board")
        assert f"http://127.0.0.1:{PORT}" in PAGES["README.md"].text, "where the document says that it is"


def _topics() -> list[str]:
    from sidecar.config import Settings

    return [str(value) for value in Settings.load(None).topics.model_dump().values() if str(value).startswith("agent.")]


@does("sidecar halts list")
def _(here: World, command: str) -> None:
    out = _halts(here, command)
    assert out.count("migrate") == 3
    assert "nobody" in out or "ada" in out


@does("sidecar halts follow --json")
def _(here: World, command: str) -> None:
    """Read what it says first, then stop it; it would go on."""
    log = "followed.log"
    with here.running(command, log, -signal.SIGTERM, SIDECAR_KAFKA__BOOTSTRAP_SERVERS=here.live.broker):
        eventually("the open ones are told", lambda: (here.folder / log).read_text().count('"event"') >= 3)
    lines = [json.loads(line) for line in (here.folder / log).read_text().splitlines() if '"event"' in line]
    assert {line["event"] for line in lines[:3]} == {"open"}


@does('sidecar halts ack HALT_ID --by ada --decision "replaying from 120"')
def _(here: World, command: str) -> None:
    first = json.loads(_halts(here, "sidecar halts list --json").splitlines()[0])
    _halts(here, command, HALT_ID=first["halt_id"])
    halts = [json.loads(line) for line in _halts(here, "sidecar halts list --json").splitlines()]
    free = [halt["ack"] is None for halt in halts]
    assert free == sorted(free, reverse=True), "those in nobody's hands come first"
    (held,) = [halt["ack"] for halt in halts if halt["halt_id"] == first["halt_id"]]
    assert (held["by"], held["decision"]) == ("ada", "replaying from 120")

    def known() -> bool:
        items = get(f"{here.live.fleet}/v1/fleet/halts")["items"]
        return any("ada" in json.dumps(item) for item in items)

    eventually("the board shows it", known)


def _halts(here: World, command: str, **places: str) -> str:
    """Run `sidecar halts`, with the broker in the environment, as the document's reader has it in the configuration."""
    return here.run(command, places, SIDECAR_KAFKA__BOOTSTRAP_SERVERS=here.live.broker).stdout


@does("sidecar topics --format commands")
def _(here: World, command: str) -> None:
    out = here.run(command).stdout
    assert all(f"--topic {name} " in out for name in _topics())
    assert all(line.startswith(("kafka-topics.sh ", "#", " ")) for line in out.splitlines() if line)


@does("sidecar schema asyncapi")
def _(here: World, command: str) -> None:
    document = json.loads(here.run(command).stdout)
    assert document["asyncapi"].startswith("3.")
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert {"agent.events", "agent.compactions", "agent.findings", "agent.halts"} <= addresses


# --- addresses --------------------------------------------------------------------------------------------------------


@does(
    "curl -s http://127.0.0.1:9464/v1/authorize -H 'Content-Type: application/json' "
    '-d \'{"session_id": "migrate", "action_id": "rollback-deploy-b"}\''
)
def _(here: World, command: str) -> None:
    answer = json.loads(here.run(command, here.live.places).stdout)
    assert answer["allowed"] is False
    assert "action_unauthorized" in {reason.get("rule") for reason in answer["reasons"]}


@does('curl -H "Authorization: Bearer $(cat deploy/compose/token)" localhost:9464/v1/findings?session=…')
def _(here: World, command: str) -> None:
    (here.folder / "token").write_text("0" * 64)
    places = {**here.live.places, "deploy/compose/token": "token", "…": "migrate"}
    found = json.loads(here.run(command, places).stdout)["findings"]
    assert sorted(finding["rule"] for finding in found) == RULES_BROKEN


# --- compose ----------------------------------------------------------------------------------------------------------


@does("openssl rand -hex 32 > deploy/compose/token")
def _(here: World, command: str) -> None:
    here.run(command, {"deploy/compose/token": "made"})
    assert re.fullmatch(r"[0-9a-f]{64}\n", (here.folder / "made").read_text())
    mounted = [secret["file"] for secret in _compose().get("secrets", {}).values()] or [json.dumps(_compose())]
    assert any("token" in where for where in mounted)


@does("docker compose -f deploy/compose.yaml up --build")
def _(here: World, command: str) -> None:
    """Not run: it needs a container engine and a registry of images; tests/ops/test_compose.py tests the file."""
    file = command.split("-f ")[1].split()[0]
    assert file == COMPOSE
    assert any("build" in service for service in _compose()["services"].values()), "there is something to --build"


@does(
    "http://localhost:9465   the fleet's board (any name; the password is the token)",
    "http://localhost:3000   Grafana (admin / admin)",
    "http://localhost:9090   Prometheus       http://localhost:9093   Alertmanager",
)
def _(here: World, command: str) -> None:
    """Compare the addresses with what is published."""
    published = [str(port) for service in _compose()["services"].values() for port in service.get("ports", [])]
    for port in re.findall(r"localhost:(\d+)", command):
        assert any(f"127.0.0.1:{port}:" in found for found in published), published
    if "admin" in command:
        password = _compose()["services"]["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]  # type: ignore[index]
        assert password == "${GRAFANA_PASSWORD:-admin}"


def _compose() -> dict[str, dict[str, dict[str, object]]]:
    found = yaml.safe_load((ROOT / COMPOSE).read_text())
    assert isinstance(found, dict)
    return found  # type: ignore[no-any-return]


# --- Grafana ----------------------------------------------------------------------------------------------------------


@does("make grafana")
def _(here: World, command: str) -> None:
    """Write it all into a folder of the test's; what is committed is compared by tests/ops/test_dashboards.py."""
    here.run(f'{command} ARGS="--out {here.folder}/made-by-make"', cwd=ROOT)
    assert _same(here.folder / "made-by-make")


@does(".venv/bin/python -m grafana.source --docs https://wiki/frontier")
def _(here: World, command: str) -> None:
    out = here.folder / "elsewhere"
    here.run(f"{command} --out {out}", {".venv/bin/python": sys.executable}, cwd=ROOT)
    rules = (out / "deploy/prometheus/rules.yml").read_text()
    assert "https://wiki/frontier/runbooks/FrontierDegraded.md" in rules
    assert "https://wiki/frontier" in (out / "grafana/dashboards/fleet.json").read_text()


@does(".venv/bin/python -m grafana.source --out /tmp/frontier")
def _(here: World, command: str) -> None:
    out = here.folder / "out"
    here.run(command, {".venv/bin/python": sys.executable, "/tmp/frontier": str(out)}, cwd=ROOT)
    assert _same(out)


def _same(out: Path) -> bool:
    made = [path for path in out.rglob("*") if path.is_file()]
    return bool(made) and all(path.read_bytes() == (ROOT / path.relative_to(out)).read_bytes() for path in made)


# --- the walk-through -------------------------------------------------------------------------------------------------


@does(
    "sidecar run --bootstrap-servers localhost:9092 &",
    *(f"python docs/examples/walkthrough_agent.py {life}" for life in OF_THE_AGENT),
)
def _(here: World, command: str) -> None:
    """Run by tests/client/test_walkthrough.py, with other addresses: here only, that these are where it looks."""
    words = command.removesuffix(" &").split()
    if words[0] == "sidecar":
        assert parse(words[1:]) == "run"
        return
    assert ROOT / words[1] == AGENT
    source = AGENT.read_text()
    assert f'"{words[2]}"' in source.partition("choices=[")[2].partition("]")[0]
    assert all(f'default="{where}"' in source for where in ("localhost:9092", "http://127.0.0.1:9464", "agent."))


# --- where the sidecar runs elsewhere ---------------------------------------------------------------------------------


@does(
    "kubectl -n NAMESPACE exec statefulset/RELEASE-frontier-sidecar-tail -- sidecar halts list",
    "docker compose -f deploy/compose.yaml exec tail sidecar halts list",
    "/opt/frontier-sidecar/bin/sidecar --config /etc/frontier-sidecar/sidecar.yaml halts list",
    "kubectl -n NAMESPACE get pods -l app.kubernetes.io/name=frontier-sidecar",
    "kubectl -n NAMESPACE logs POD --previous --tail=20",
    "journalctl -u frontier-sidecar -n 20",
    "docker compose -f deploy/compose.yaml logs --tail=20 tail",
    "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic agent.dlq --from-beginning --max-messages 5",
)
def _(here: World, command: str) -> None:
    """Not run: there is no cluster, no container engine, no unit, no script of Kafka's. What they name is there."""
    deploy = PAGES["docs/deploy.md"].text
    chart = yaml.safe_load((ROOT / "deploy/helm/frontier-sidecar/Chart.yaml").read_text())["name"]
    if "sidecar halts list" in command or "sidecar.yaml halts list" in command:
        assert parse(["halts", "list"]) == "halts list"
    if command.startswith("kubectl"):
        assert chart in command or "POD" in command
        assert (
            "StatefulSet" in deploy
            and "-tail" in (ROOT / "deploy/helm/frontier-sidecar/templates/tail.yaml").read_text()
        )
    elif command.startswith("docker"):
        assert "tail" in _compose()["services"] and f"-f {COMPOSE} " in command
    elif command.startswith("/opt"):
        program, _, config = command.split()[:3]
        assert f"install -m 0644 deploy/sidecar.yaml {config}" in deploy and Path(program).parts[2] in deploy
    elif command.startswith("journalctl"):
        assert (ROOT / f"deploy/systemd/{command.split()[2]}.service").is_file()
    else:
        assert re.findall(r"--topic (\S+)", command)[0] in _topics()
