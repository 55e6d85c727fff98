"""Where values come from: the settings file, the environment and the command line, each key by name.

pydantic-settings reads and merges the values; this says, for a message, where each one was given, and refuses
what the readers would pass over in silence: variables and keys that no setting has, and keys given twice.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from sidecar.config.errors import SettingsError
from sidecar.config.fields import keys, section_of, variable

PREFIX = "SIDECAR_"
FILE_VARIABLE = "SIDECAR_CONFIG"

Path_ = tuple[str, ...]
Origins = dict[Path_, str]

# Kubernetes sets such variables in every pod for each service of the namespace: a service named `sidecar`
# would otherwise keep the program of that name from starting.
_SERVICE_LINK = re.compile(
    r"SIDECAR_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://")


def from_environment(tree: type[BaseModel], environ: Mapping[str, str]) -> Origins:
    """Return the settings that the environment gives, and the variable of each.

    Raises:
        SettingsError: a variable with the prefix belongs to no setting.
    """
    origins: Origins = {}
    problems = []
    for name in sorted(environ):
        if (
            not name.upper().startswith(PREFIX)
            or name.upper() == FILE_VARIABLE
            or _is_service_link(name, environ[name])
        ):
            continue
        path = tuple(name[len(PREFIX) :].lower().split("__"))
        kind = _kind(tree, path)
        if kind == "setting":
            if environ[name]:  # an empty variable counts as not set
                origins[path] = name
        elif kind == "section":
            problems.append(f"{name}: {'.'.join(path)} is a section; set {variable(path)}__… for one of its settings")
        else:
            problems.append(unknown(tree, path, name, as_variable=True))
    if problems:
        raise SettingsError.of(problems)
    return origins


def from_file(tree: type[BaseModel], path: Path) -> Origins:
    """Return the settings that a YAML file gives, and the line of each.

    Raises:
        SettingsError: the file cannot be read or is no YAML mapping, or a key is unknown or given twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        yaml.safe_load(text)  # as pydantic-settings will, so that its errors are told here
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"the settings file {path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise SettingsError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{path}:{root.start_mark.line + 1}: expected sections (`kafka:`, `topics:`, …) at the top")
    origins: Origins = {}
    problems = list(_walk(tree, root, (), path, origins))
    if problems:
        raise SettingsError.of(problems)
    return origins


def from_command_line(tree: type[BaseModel], values: Mapping[str, Any]) -> Origins:
    """Return the settings that the caller gives.

    Raises:
        SettingsError: a key belongs to no setting.
    """
    where = "the command line"
    origins = dict.fromkeys(_leaves(values), where)
    problems = [unknown(tree, path, where) for path in origins if _kind(tree, path) is None]
    if problems:
        raise SettingsError.of(problems)
    return origins


def nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `kafka__client_id="x"` as `{"kafka": {"client_id": "x"}}`, without what is None."""
    tree: dict[str, Any] = {}
    for name, value in overrides.items():
        if value is None:
            continue
        *parents, last = name.split("__")
        here = tree
        for parent in parents:
            here = here.setdefault(parent, {})
        if isinstance(value, Mapping) and isinstance(here.get(last), dict):
            here[last].update(value)
        else:
            here[last] = dict(value) if isinstance(value, Mapping) else value
    return tree


def unknown(tree: type[BaseModel], path: Path_, where: str, *, as_variable: bool = False) -> str:
    """Say that a key is unknown, and which one may have been meant."""
    known = {".".join(_filled(key.path, path)): variable(_filled(key.path, path)) for key in keys(tree)}
    dotted = ".".join(path)
    same_name = [name for name in known if name.rsplit(".", 1)[-1] == path[-1]]
    sections = [".".join((name, *path[1:])) for name in get_close_matches(path[0], tree.model_fields, n=1)]
    close = same_name or [name for name in sections if name in known] or get_close_matches(dotted, known, cutoff=0.75)
    hint = ""
    if close:
        hint = f"; did you mean {known[close[0]] if as_variable else close[0]}?"
    elif len(path) == 1 and sections:
        hint = f"; did you mean {sections[0]}?"
    elif path[0] not in tree.model_fields:
        hint = f"; the sections are {', '.join(tree.model_fields)}"
    return f"{where}: {dotted} is not a setting{hint}"


def _filled(pattern: Path_, path: Path_) -> Path_:
    """Put the user's own name (of a workload) into a key's path."""
    return tuple(path[i] if part == "*" and path[:i] == pattern[:i] else part for i, part in enumerate(pattern))


def _kind(tree: type[BaseModel], path: Path_) -> str | None:
    """Tell whether a path names a setting, a section, or nothing."""
    model: type[BaseModel] | None = tree
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(part) if model else None
        if field is None:
            return None
        model = section_of(field)
        if model is None:
            return "setting" if next(parts, None) is None else None
        if model is not field.annotation and next(parts, None) == "":  # a map of sections: the next part is a name
            return None
    return "section"


def _is_service_link(name: str, value: str) -> bool:
    upper = name.upper()
    return "__" not in upper and bool(
        _SERVICE_LINK.fullmatch(upper) or (upper.endswith("_PORT") and _SERVICE_URL.match(value))
    )


def _walk(tree: type[BaseModel], node: yaml.MappingNode, prefix: Path_, file: Path, origins: Origins) -> Iterator[str]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        where = f"{file}:{line}"
        if key.tag == "tag:yaml.org,2002:merge":  # `<<: *defaults`; what it brings is checked with the values
            continue
        if key.tag != "tag:yaml.org,2002:str":
            yield f"{where}: the key {key.value!r} does not read as text in YAML; put it in quotes"
            continue
        path = (*prefix, key.value)
        if key.value in seen:
            yield f"{where}: {'.'.join(path)} was already given in line {seen[key.value]}"
        seen[key.value] = line
        kind = _kind(tree, path)
        if kind is None:
            yield unknown(tree, path, where)
            continue
        origins[path] = where
        if kind == "section" and isinstance(value, yaml.MappingNode):
            yield from _walk(tree, value, path, file, origins)


def _leaves(values: Mapping[str, Any], prefix: Path_ = ()) -> Iterator[Path_]:
    for name, value in values.items():
        path = (*prefix, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path
