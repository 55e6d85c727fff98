"""What the program, its tests and its deployment know: the names that documents may use."""

import re
from functools import cache
from pathlib import Path

import click
import yaml

from sidecar.cli import cli
from sidecar.config import Settings
from sidecar.config.fields import keys
from sidecar.observe.catalogue import FLEET_SERIES, SERIES
from sidecar.protocol.openapi import ROUTES
from tests.docs.pages import PAGES, ROOT

CONFIG = {".".join(key.path) for key in keys(Settings)}
SECTIONS = {key.partition(".")[0] for key in CONFIG}
VARIABLES = {key.variable for key in keys(Settings)} | {"SIDECAR_CONFIG"}
METRICS = {*SERIES, *(series.name for series in FLEET_SERIES)}
TOPICS = set(map(str, Settings.load(None).topics.model_dump().values()))
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


@cache
def text(*folders: str) -> str:
    """Return all that is written in some folders, without what joins the parts of a sentence over lines."""
    kinds = {".py", ".yaml", ".yml", ".sh", ".toml", ".service", ".conf", ".env", ".html", ".js", ".json", ".tpl", ""}
    found = []
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*"))):
        if path.is_file() and path.suffix in kinds and not {"__pycache__", "docs"} & set(path.relative_to(ROOT).parts):
            found.append(path.read_text(encoding="utf-8", errors="replace"))
    found += [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "Makefile")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(found))


def everything() -> str:
    """Return all that is written in this repository, except the documents and their tests."""
    return text("sidecar", "tests", "grafana/source", "deploy", ".ci") + "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs/examples").glob("*.py")
    )


@cache
def identifiers() -> set[str]:
    """Return every name in it."""
    return set(re.findall(r"[A-Za-z_]\w*", everything()))


@cache
def options() -> set[str]:
    """Return the options of all commands and scripts."""

    def of(command: click.Command) -> set[str]:
        found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return found.union(*map(of, inner))

    return of(cli) | set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', everything()))


@cache
def addresses() -> set[str]:
    """Return the paths that are served, `{…}` for what is put in."""
    source = (ROOT / "sidecar/fleet/web.py").read_text(encoding="utf-8")
    fleet = set(re.findall(r'"(/(?:v1/fleet|board)[^"]*)"', source))
    found = {route.path for route in ROUTES} | fleet | {"/metrics", "/healthz", "/readyz"}
    return {re.sub(r"\{[^}]*\}", "{}", path) for path in found}


@cache
def parameters() -> dict[str, set[str]]:
    """Return what may be asked for behind `?`, by path; docs/board.md is compared with the code by its own test."""
    found = {"/v1/findings": {"session", "limit"}, "/board/session": {"id", "from", "to", "true"}}
    for path, row in re.findall(r"^\| `GET (/v1/fleet[^` ]*)` \| (.*) \|$", PAGES["docs/board.md"].text, re.M):
        found[path] = set(re.findall(r"`(\w+)[`=]", row))
    return found | {"/board": {"status", "tenant", "agent", "model", "search"}}


@cache
def helm() -> set[str]:
    """Return the keys of the chart's values."""
    values = yaml.safe_load((ROOT / "deploy/helm/frontier-sidecar/values.yaml").read_text(encoding="utf-8"))

    def of(value: object, path: str) -> set[str]:
        found = {path}
        if isinstance(value, dict):
            for key, inner in value.items():
                found |= of(inner, f"{path}.{key}".lstrip("."))
        return found

    return of(values, "")


def metric(name: str) -> bool:
    """Tell whether a series is exposed under a name."""
    return any(name == known + suffix for known in METRICS for suffix in SUFFIXES)


def there(path: str, page: Path) -> bool:
    """Tell whether a file (or some, of a pattern) is where a page says: from the top, from the page, in a package."""
    places = (ROOT, page.parent, ROOT / "sidecar", ROOT / "sidecar/files", ROOT / "tests", ROOT / "docs")
    if "*" in path:
        return any(next(place.glob(path), None) for place in places)
    return any((place / path).exists() for place in places)


def named(name: str) -> bool:
    """Tell whether some file of the repository has a name."""
    folders = ("sidecar", "tests", "docs", "deploy", "grafana")
    return (ROOT / name).exists() or any(next((ROOT / folder).rglob(name), None) for folder in folders)
