"""Identify tool calls and what they returned, and tell which of them only look at something.

An *observation* (reading a file, listing, searching, running the tests) answers about the world as it is; that it
answers something else later is what it is for. Whatever is not known to be an observation may have made something,
and a second answer then means a second thing: only those are given to the engine as `tool_result`. Edits of files
and the agent's own lists return a confirmation and no handle, so they are none either. In doubt a call counts as
one that may have made something.
"""

import re
import shlex
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from sidecar.files.readers.words import words

_canonical = msgspec.json.Encoder(order="deterministic").encode

REJECTED = "The user doesn't want to proceed with this tool use"
"""How the result of a call begins that the user refused."""

_OBSERVING = words(
    "Read Glob Grep LS NotebookRead WebFetch WebSearch BashOutput TaskOutput AgentOutputTool TodoRead TaskList TaskGet"
    " ToolSearch ListMcpResourcesTool ReadMcpResourceTool LSP"
)
_NO_HANDLE = words(
    "Edit MultiEdit Write NotebookEdit TodoWrite TaskUpdate TaskStop KillShell KillBash EnterPlanMode ExitPlanMode"
    " Skill SlashCommand"
)
_LOOKING = words(
    "ls cat head tail grep egrep fgrep rg ag fd tree wc pwd echo printf date whoami id which type stat file printenv"
    " uname hostname ps top free df du lsof jq yq sort uniq cut tr diff cmp comm test [ true false sleep cd less more"
    " basename dirname realpath readlink md5sum sha256sum xxd od strings column nl seq export set"
    " pytest tox nox mypy ruff flake8 pylint black isort pyright eslint prettier tsc jest vitest mocha rspec phpunit"
    " shellcheck hadolint"
)
_LOOKING_WITH = {
    "git": words("status log diff show blame rev-parse ls-files ls-tree describe grep shortlog reflog cat-file fetch"),
    "npm": words("test ls list outdated view audit"),
    "yarn": words("test list why"),
    "pnpm": words("test list why"),
    "cargo": words("test check clippy build fmt tree bench"),
    "go": words("test vet build list env version"),
    "make": words("test check lint build"),
    "docker": words("ps images logs inspect version info stats"),
    "kubectl": words("get describe logs top version explain"),
    "pip": words("list show freeze check"),
}
_HARMLESS = re.compile(r"[0-9&]?>{1,2}\s*/dev/null|[0-9]?>&[0-9]")
_WRITES = re.compile(r">|`|\$\(|<\(|\btee\b")
_JOINTS = re.compile(r"&&|\|\||[;|\n&]")
_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Call(msgspec.Struct, frozen=True):
    """Hold a tool call: its name, what identifies it, and how to show it."""

    tool: str
    key: str
    shown: str
    no_handle: str | None
    """Why what it returns is no handle; None: it may be one."""


def call_of(block: dict[str, Any]) -> Call:
    """Make a call of a `tool_use` block; the same tool with the same input is the same call."""
    tool = block["name"] if isinstance(block.get("name"), str) and block["name"] else "?"
    given = block.get("input")
    shown = _shown(given)
    short = shown if len(shown) <= 40 else shown[:39] + "…"
    key = f"{tool}({short})#{xxh3_64_hexdigest(_canonical(given))}"
    return Call(tool=tool, key=key, shown=shown, no_handle=_no_handle(tool, given))


def text_of(content: object) -> str:
    """Return what a result, or a message, says: a string, or the texts of its blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else _canonical(content).decode()
    parts = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            parts.append(block["text"])
        else:
            parts.append(_canonical(block).decode())
    return "\n".join(parts)


def handle_of(content: object) -> str:
    """Return the digest of a result's content, without what the harness adds (reminders, colours, trailing space)."""
    text = _ANSI.sub("", _REMINDER.sub("", text_of(content)))
    return xxh3_128_hexdigest("\n".join(line.rstrip() for line in text.strip().splitlines()).encode("utf-8", "replace"))


def _no_handle(tool: str, given: object) -> str | None:
    if tool in _OBSERVING:
        return "it only looks"
    if tool in _NO_HANDLE:
        return "it returns a confirmation"
    if tool == "Bash" and isinstance(given, dict) and _only_looks(given.get("command")):
        return "the command only looks"
    return None


def _only_looks(command: object) -> bool:
    """Tell whether every part of a shell command is known to change nothing."""
    if not isinstance(command, str):
        return False
    command = _HARMLESS.sub(" ", command)
    if _WRITES.search(command):
        return False
    parts = [part.strip() for part in _JOINTS.split(command)]
    return all(_part_looks(part) for part in parts if part)


def _part_looks(part: str) -> bool:
    try:
        parts = shlex.split(part)
    except ValueError:
        return False
    while parts and (re.fullmatch(r"\w+=\S*", parts[0]) or parts[0] in ("time", "command", "nice", "timeout")):
        skip = 2 if parts[0] == "timeout" else 1
        parts = parts[skip:]
    if not parts:
        return True
    program, rest = parts[0].rpartition("/")[2], parts[1:]
    if program in ("python", "python3") and rest[:2] == ["-m", "pytest"]:
        return True
    if program == "find":
        return not any(word in ("-delete", "-exec", "-execdir", "-ok", "-fprint") for word in rest)
    if program in ("sed", "awk"):
        return not any(word.startswith(("-i", "--in-place")) for word in rest)
    if program in _LOOKING_WITH:
        plain = [word for word in (rest[2:] if rest[:1] == ["-C"] else rest) if not word.startswith("-")]
        return bool(plain) and plain[0] in _LOOKING_WITH[program]
    return program in _LOOKING


def _shown(given: object) -> str:
    text = _canonical(given).decode()
    if isinstance(given, dict):
        for name in ("command", "file_path", "path", "pattern", "url", "query", "description", "prompt"):
            if isinstance(given.get(name), str):
                text = given[name]
                break
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
