"""What the documents name between backticks, and in what a shell or a file is told, is there."""

import importlib.util
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from sidecar.cli import cli
from sidecar.client import Emitter, Guard, HaltListener
from sidecar.client.langgraph import SidecarSaver
from sidecar.engine.rules import CATALOGUE
from tests.docs import sources
from tests.docs.pages import PAGES, ROOT, Page
from tests.ops.commands import parse

OBJECTS = {"log": Emitter, "guard": Guard, "saver": SidecarSaver, "halts": HaltListener}
"""What variables in the text stand for."""

OTHERS = {
    "application/json": "HTTP's",
    "file:line: unreadable: reason": "a pattern; tests/files/test_check.py has such lines",
    "max.message.bytes": "Kafka's",
    "transactional.id": "Kafka's",
    "243/CREDENTIALS": "systemd's",
    "ca.crt": "a key of a Kubernetes secret",
    "murmur2_random": "librdkafka's",
    "IDEMPOTENT_WRITE": "Kafka's",
    "rule_files": "Prometheus'",
    "--build-arg": "docker's",
    "--set": "helm's",
    "SIDECAR_SERVICE_HOST": "Kubernetes sets it",
    "SIDECAR_PORT_9464_TCP": "Kubernetes sets it",
}
"""Names that are no names of ours, and whose they are."""

MADE = {
    "dist/": "made by a release",
    ".venv": "made by make",
    "emit.py": "made by the reader",
    "ask.py": "made by the reader",
}
"""Files that are not in the repository, and where they come from."""

WANTED = {"NAME": "x", "FILE": "-", "FILE…": "-", "FOLDER": ".", "HALT": "x", "HALT_ID": "x", "3f9a…": "x", "TEXT": "x"}
"""What is put where a command has a place for something."""

Check = Callable[[str, Page], bool]


def _command(word: str, page: Page) -> bool:
    words = [WANTED.get(w, w) for w in shlex.split(word.rstrip(" &"), comments=True) if w != "…"]
    words = words[1:] if words[0] == "sidecar" else words
    try:
        name = parse(words) if words else "sidecar"
    except click.MissingParameter:
        name = words[0]  # the command is there, and says what it wants besides
    asked = words[1] if len(words) > 1 and re.fullmatch(r"[a-zA-Z]\w+", words[1]) else None
    known = {"rules": CATALOGUE.keys(), "runbook": {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")}}
    return bool(name) and (asked is None or asked in known.get(name, {asked}))


def _make(word: str, page: Page) -> bool:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [target for target in shlex.split(word)[1:] if "=" not in target]
    return all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


def _python(word: str, page: Page) -> bool:
    words = word.split()
    if words[1] == "-m":
        found = importlib.util.find_spec(words[2])
        main = importlib.util.find_spec(f"{words[2]}.__main__") if found and found.submodule_search_locations else found
        return found is not None and main is not None and '__name__ == "__main__"' in Path(str(main.origin)).read_text()
    return words[1] in MADE or (ROOT / words[1]).is_file()


def _variable(word: str, page: Page) -> bool:
    name = word.partition("=")[0]
    if name.endswith("…"):
        return any(known.startswith(name.rstrip("…")) for known in sources.VARIABLES)
    if name.startswith("FRONTIER_"):
        return name in sources.identifiers()
    return name in sources.VARIABLES or name in OTHERS or name.rstrip("_") == "SIDECAR" or "NAME" in name


def _option(word: str, page: Page) -> bool:
    name = re.split(r"[ =]", word)[0]
    return name in sources.options() or name in OTHERS


def _address(word: str, page: Page) -> bool:
    path, _, query = re.sub(r"^(GET|POST) |^[\w.]+:\d+(?=/)", "", word).partition("?")
    if word.startswith("/") and not re.match(r"/(v1|board|metrics|healthz|readyz)\b", path):
        return True  # a folder of a machine
    known = path.replace("/migrate", "/{}").replace("…", "").rstrip("/")
    known = re.sub(r"\{[^}]*\}", "{}", known)
    asked = {part.partition("=")[0] for part in query.split("&") if part}
    return known in sources.addresses() | {"/v1"} and asked <= sources.parameters().get(path, set())


def _metric(word: str, page: Page) -> bool:
    name = re.split(r"[{ ]", word)[0]
    if name.endswith(("…", "_")):
        return any(known.startswith(name.rstrip("…")) for known in sources.METRICS)
    return sources.metric(name) or (name == "sidecar_checkpoint" and f'"{name}"' in sources.text("sidecar"))


def _dotted(word: str, page: Page) -> bool:
    name = re.split(r"[=:(]", word.removeprefix("await "))[0]
    first, _, rest = name.partition(".")
    if name in sources.CONFIG or name in sources.TOPICS or name in OTHERS or sources.named(name):
        return True
    if "NAME" in name or name in sources.helm() or name.removeprefix("config.") in sources.CONFIG:
        return True
    if first in OBJECTS and (hasattr(OBJECTS[first], rest) or rest in inspect.signature(OBJECTS[first]).parameters):
        return True
    if first[0].isupper():
        return {first, rest} <= sources.identifiers()
    if first == "sidecar" and importlib.util.find_spec(name) is not None:
        return True
    file = next((ROOT / "sidecar").rglob(f"{first}.py"), None)
    return file is not None and re.search(rf"\bdef {rest}\b", file.read_text()) is not None


def _file(word: str, page: Page) -> bool:
    name = word.partition("#")[0]
    if name in MADE or name in OTHERS or name.startswith(("/", "~")) or "NAME" in name or "VERSION" in name:
        return True
    return sources.there(name, page.path) or ("/" not in name and (sources.named(name) or name in sources.everything()))


def _identifier(word: str, page: Page) -> bool:
    name = word.rstrip("=").rstrip("…")
    if word.endswith("…"):
        return any(known.startswith(name) for known in CATALOGUE) or any(
            known.startswith(name) for known in sources.identifiers()
        )
    return name in sources.identifiers() or name in OTHERS


def _code(word: str, page: Page) -> bool:
    return bool(compile(word.replace("…", "..."), page.name, "exec"))


def _program(word: str, page: Page) -> bool:
    units = re.findall(r"(?:journalctl.* -u|systemctl \w+) ([\w-]+)", word)
    return all((ROOT / f"deploy/systemd/{unit}.service").is_file() for unit in units if unit != "daemon-reload")


def _sentence(word: str, page: Page) -> bool:
    if word in OTHERS:
        return True
    parts = [
        part.strip(" '.:(") for part in re.split(r"…|ADDRESS|(?: within)? \d+ s\b", word)
    ]  # what the program puts in
    shown = "".join(block.text for block in page.blocks())
    return all(part in sources.everything() or part in shown for part in parts if len(part) > 3)


KINDS: dict[str, tuple[str, Check]] = {
    "command": (rf"sidecar( .*)?|({'|'.join(cli.commands)}) --.*", _command),
    "make": (r"make [a-z].*", _make),
    "python": (r"(?:\S*/)?python3? (?:-m )?[\w./]+( .*)?", _python),
    "variable": (r"(SIDECAR|FRONTIER)_\w*(=\S*)?…?", _variable),
    "option": (r"--[a-z][\w-]*([ =].*)?", _option),
    "address": (r"((GET|POST) |[\w.]+:\d+(?=/))?/[\w./{}-]*…?(\?\S*)?", _address),
    "metric": (r"sidecar_\w*…?(\{[^}]*\})?", _metric),
    "file": (
        r"(\.?[\w@*-]*\.?/)*[\w.*-]+\.(py|md|yaml|yml|sh|json|jsonl|toml|lock|txt|env|conf)|(\.?[\w-]+/)+[\w-]*|\.[a-z]\w+",
        _file,
    ),
    "dotted": (r"(await )?[A-Za-z]\w+(\.[A-Za-z_]\w*)+(\(.*\)|[=:] ?\S+)?", _dotted),
    "identifier": (r"[A-Za-z]*[a-z]_[\w]+=?…?|[a-z]+_…|[A-Z][a-z]+[A-Z]\w+|[A-Z]+_[A-Z_]+", _identifier),
    "code": (r"with .* as \w+: .*", _code),
    "program": (r"(kubectl|helm|docker|openssl|systemctl|systemd-\w+|journalctl|sha256sum|curl|pip|uv) .*", _program),
    "sentence": (r"(?!by )[A-Za-z][\w;,.:'()…-]*( [\w;,.:'()…-]+){2,}", _sentence),
}


def kind(word: str) -> str | None:
    """Return what a word is; None: nothing that can be looked up."""
    return next((name for name, (pattern, _) in KINDS.items() if re.fullmatch(pattern, word)), None)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_what_is_named_is_there(page: Page) -> None:
    wrong = []
    for line, word in page.words():
        what = kind(word)
        try:
            right = what is None or KINDS[what][1](word, page)
        except click.UsageError as error:
            right, word = False, f"{word} ({error.format_message()})"
        if not right:
            wrong.append(f"{page.name}:{line}: {what} {word}")
    assert not wrong, "\n".join(wrong)


def _given(page: Page) -> list[str]:
    """Return what a page's blocks give to a shell, or show of a file: without outputs, and without code."""
    lines = []
    for block in page.blocks():
        if block.language in ("", "sh", "console") and not block.comment:
            lines += block.commands
        elif block.language == "yaml":
            lines += block.text.splitlines()
    return lines


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_what_is_typed_is_there(page: Page) -> None:
    """Look at the names in commands that are not ours as well: in a pipe, in an address, in an assignment."""
    wrong = []
    for line in _given(page):
        wrong += [name for name in re.findall(r"\b(?:SIDECAR|FRONTIER)_\w+", line) if not _variable(name, page)]
        wrong += [name for name in re.findall(r"\bsidecar_\w+", line) if not _in_a_pattern(name)]
        wrong += [
            name
            for name in re.findall(r"\bagent\.[a-z]\w*", line)
            if name not in sources.TOPICS and name != "agent.jsonl"
        ]
        wrong += [
            at for at in re.findall(r"/(?:v1|board|metrics|healthz|readyz)[^\s'\",]*", line) if not _address(at, page)
        ]
        for command in re.findall(r"(?:^|[|;&] *|\$ *)(sidecar [^|;&]*)", line):
            try:
                wrong += [] if _command(command, page) else [command]
            except click.UsageError as error:
                wrong.append(f"{command}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def _examples() -> list[str]:
    """Return the commands that the help of all commands gives as examples."""

    def of(command: click.Command) -> list[str]:
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        _, _, shown = (command.help or "").partition("Begin with:\n")
        shown = shown or re.split(r"\bExamples?:\n", f"{command.help}", maxsplit=1)[-1] * (
            "Example" in f"{command.help}"
        )
        return re.findall(r"^ +\S.*$", shown, re.M) + [line for other in inner for line in of(other)]

    found = (re.search(r"\b(sidecar .*?)(?: {3,}| [|>]|$)", line) for line in of(cli))
    return sorted({example[1] for example in found if example})


@pytest.mark.parametrize("command", _examples())
def test_the_examples_of_the_help_can_be_typed(command: str) -> None:
    # What a command opens when it is called is not to be opened here.
    command = command.replace("/run/secrets/fleet", "Makefile").replace("--planted planted.jsonl", "")
    assert _command(command, PAGES["README.md"])


def _in_a_pattern(name: str) -> bool:
    return sources.metric(name) or any(known.startswith(name) for known in sources.METRICS)


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("sidecar chekc", "command"),
        ("sidecar run --guarante x", "command"),
        ("sidecar rules edge_halucinated", "command"),
        ("check --from claude-code", "command"),
        ("make benhc", "make"),
        ("python -m tests.bench.bench_all", "python"),
        ("python deploy/build.py", "python"),
        ("SIDECAR_TAIL__GROUP", "variable"),
        ("FRONTIER_WRITE_EVERYTHING", "variable"),
        ("--no-gaurd", "option"),
        ("GET /v1/fleet/session", "address"),
        ("/v1/findings?session_id=…", "address"),
        ("localhost:9464/v2/findings", "address"),
        ("sidecar_degraded", "metric"),
        ("sidecar_gaurd_…", "metric"),
        ("docs/operations.md", "file"),
        ("test_brokers_fail.py", "file"),
        ("sidecar/tale/", "file"),
        ("tail.max_lag", "dotted"),
        ("guard.ask", "dotted"),
        ("agent.finding", "dotted"),
        ("floors.must_bring", "dotted"),
        ("edge_halucinated", "identifier"),
        ("SyncEmiter", "identifier"),
        ("No halt is shut", "sentence"),
    ],
)
def test_what_is_not_there_is_noticed(word: str, what: str) -> None:
    page = PAGES["README.md"]
    assert kind(word) == what
    try:
        assert not KINDS[what][1](word, page)
    except click.UsageError:
        assert what == "command"


def test_nothing_is_explained_in_vain() -> None:
    told = {part for page in PAGES.values() for _, word in page.words() for part in (word, re.split(r"[ =(]", word)[0])}
    assert (OTHERS.keys() | MADE.keys()) <= told | {word.removeprefix("partitioner=") for word in told}
