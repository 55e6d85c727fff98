"""The reference documentation of the settings, made from the tree itself."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from sidecar.config.fields import Key, allowed, keys
from sidecar.config.settings import Settings

_INTRODUCTION = """\
# Configuration

<!-- Made by `python -m sidecar.config --markdown`; a test compares it with the code. -->

Every command reads the same settings. A value is taken from the first of these that gives it:

1. the command line (`--bootstrap-servers`, `--http`, …);
2. the environment: `SIDECAR_`, then the key with `__` for each dot, in capitals (`SIDECAR_KAFKA__CLIENT_ID`);
3. a YAML file: the one given with `--config`, else the one that `SIDECAR_CONFIG` names;
4. the default.

[`deploy/sidecar.yaml`](../deploy/sidecar.yaml) holds every key at its default.

- An unknown key, or a variable that begins with `SIDECAR_` and belongs to no setting, is an error that names it, as
  is a value that is not allowed. (The variables that Kubernetes sets for a service whose name begins with `sidecar`,
  such as `SIDECAR_SERVICE_HOST` and `SIDECAR_PORT_9464_TCP`, are passed over.)
- An empty variable counts as not set; the word `null` sets a key to nothing.
- Every secret can be given as a file instead (`…_file`), which is read when a client is made; a line break at its
  end is not part of it. Secrets are never printed or logged.
- Durations are in seconds. Relative paths start from the working directory; `~` is the home directory.
- Workloads given in the file or the environment are added to the two default ones; a variable can name only
  workloads in lower case.
"""


def reference_markdown() -> str:
    """Return the text of `docs/configuration.md`."""
    return "\n".join((_INTRODUCTION.rstrip(), *_markdown())) + "\n"


def reference_yaml() -> str:
    """Return the text of `deploy/sidecar.yaml`: every key at its default."""
    return "\n".join(_yaml()) + "\n"


def _markdown() -> Iterator[str]:
    for section, about, rows in _sections():
        yield f"\n## `{section}`\n\n{about}\n"
        yield "| Key | Values | Default | Environment variable | Meaning |"
        yield "|---|---|---|---|---|"
        for key in rows:
            cells = f"`{key.dotted}`", allowed(key.field), _default_text(key), f"`{key.variable}`", _meaning(key)
            yield f"| {' | '.join(cells)} |"


def _default_text(key: Key) -> str:
    if "*" in key.path:
        defaults = _default(key.path[:2])
        return ", ".join(f"`{name}`: {_scalar(value[key.path[-1]])}" for name, value in defaults.items())
    default = _default(key.path)
    if default is None:
        return ""
    items = default if isinstance(default, list) else [default]
    return ", ".join(f"`{item if isinstance(item, str) else _scalar(item)}`" for item in items)


def _yaml() -> Iterator[str]:
    yield "# Reference configuration of the sidecar: every key, at its default."
    yield "# Made by `python -m sidecar.config --yaml`; a test compares it with the code."
    yield "# Keep only what you change. SIDECAR_… variables and the command line win over this file."
    for section, about, rows in _sections():
        yield from ("", *_comment(about, 0), f"{section}:")
        for key in rows:
            if "*" not in key.path:
                yield from _comment(_explained(key), 2)
                yield f"  {key.path[-1]}: {_scalar(_default(key.path))}"
        for name, entries in _maps(section):
            yield from _comment(Settings.model_fields[section].annotation.model_fields[name].description, 2)  # type: ignore[union-attr]
            yield f"  {name}:"
            shown = False
            for entry, values in entries.items():
                yield f"    {entry}:"
                for field, value in values.items():
                    if not shown:
                        key = next(k for k in rows if k.path == (section, name, "*", field))
                        yield from _comment(_explained(key), 6)
                    yield f"      {field}: {_scalar(value)}"
                shown = True


def _sections() -> Iterator[tuple[str, str, list[Key]]]:
    every = list(keys(Settings))
    for section, field in Settings.model_fields.items():
        yield section, field.description or "", [key for key in every if key.path[0] == section]


def _maps(section: str) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    for name in dict.fromkeys(key.path[1] for key in keys(Settings) if key.path[0] == section and "*" in key.path):
        yield name, _default((section, name))


def _default(path: tuple[str, ...]) -> Any:
    # From the sections, not from a loaded tree: the environment must not leak into the documentation.
    section = Settings.model_fields[path[0]].annotation
    assert isinstance(section, type) and issubclass(section, BaseModel)
    return section().model_dump(mode="json")[path[1]]


def _meaning(key: Key) -> str:
    return key.field.description or ""


def _explained(key: Key) -> str:
    values = allowed(key.field).removesuffix(", or nothing")
    plain = values in ("text", "text (secret)", "a path", "true or false")
    return _meaning(key) if plain else f"{_meaning(key)} Values: {values}."


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    plain = isinstance(value, str) and value.replace("-", "").replace("_", "").replace(".", "").isalpha()
    return value if plain and value not in ("true", "false", "null") else json.dumps(value)


def _comment(text: str | None, indent: int) -> list[str]:
    margin = " " * indent + "# "
    return textwrap.wrap(text or "", 118, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
