"""Make the chart's values.schema.json, and the table of values in docs/deploy.md, from the comments of values.yaml."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
CHART = Path(__file__).parent / "frontier-sidecar"
DOCUMENT = ROOT / "docs/deploy.md"
BEGIN, END = "<!-- values of the chart: made by deploy/helm/values.py -->", "<!-- end of the values -->"

TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}}
OBJECTS = {"type": "array", "items": {"type": "object"}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
PORTS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
AT_LEAST_ONE = {"type": "integer", "minimum": 1}
# What the default of a value does not tell about it.
SHAPES: dict[str, dict[str, Any]] = {
    "image.repository": {"type": "string", "minLength": 1},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": TEXTS,
    "kafka.bootstrapServers": {"type": "string", "minLength": 1},
    "kafka.securityProtocol": {"enum": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]},
    "kafka.sasl.mechanism": {"enum": ["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]},
    "config": {"type": "object", "additionalProperties": {"type": "object"}},
    "topics.partitions": AT_LEAST_ONE,
    "topics.replicationFactor": AT_LEAST_ONE,
    "tail.kind": {"enum": ["StatefulSet", "Deployment"]},
    "tail.replicas": AT_LEAST_ONE,
    # What is under way takes 15 s at most (sidecar.tail.tail.STOP_TIMEOUT).
    "tail.terminationGracePeriodSeconds": {"type": "integer", "minimum": 20},
    "tail.startupSeconds": AT_LEAST_ONE,
    "fleet.replicas": AT_LEAST_ONE,
    "networkPolicy.clients": OBJECTS,
    "networkPolicy.metrics": OBJECTS,
    "networkPolicy.kafkaPorts": PORTS,
    "networkPolicy.kafkaPeers": OBJECTS,
    "serviceMonitor.interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
    "service.annotations": LABELS,
    "serviceAccount.annotations": LABELS,
    "serviceMonitor.labels": LABELS,
    "prometheusRule.labels": LABELS,
    "sidecarExample.agentCommand": TEXTS,
    **{
        f"{part}.{name}": shape
        for part in ("tail", "fleet")
        for name, shape in (
            ("resources", {"type": "object"}),
            ("extraEnv", {"type": "array", "items": {"type": "object", "required": ["name"]}}),
            ("podAnnotations", LABELS),
            ("nodeSelector", LABELS),
            ("tolerations", OBJECTS),
            ("affinity", {"type": "object"}),
        )
    },
}


class Value(NamedTuple):
    """One value of the chart: its path, its default, and what its comment says."""

    path: str
    default: Any
    about: str


def values() -> list[Value]:
    """Return every value that has a comment, in the order of the file.

    Raises:
        ValueError: one has none.
    """
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    found: list[Value] = []
    path: list[str] = []
    about: list[str] = []
    within = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if match := re.match(r" *# ?(.*)", line):
            about.append(match[1])
        elif match := re.match(r" *([A-Za-z]+):(.*)", line):
            path[indent // 2 :] = [match[1]]
            dotted = ".".join(path)
            if within and dotted.startswith(within):
                continue
            within = ""
            if about:
                found.append(Value(dotted, _get(defaults, path), " ".join(about)))
                within = f"{dotted}."
            elif match[2]:
                raise ValueError(f"{dotted} has no comment")
            about = []
        elif not line:
            about = []
    return found


def _get(tree: Any, path: list[str]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def schema() -> str:
    """Return the text of values.schema.json."""
    root: dict[str, Any] = _section("Values of the chart frontier-sidecar")
    root["$schema"] = "http://json-schema.org/draft-07/schema#"
    # What Helm adds by itself.
    root["properties"]["global"] = {"type": "object"}
    for value in values():
        here = root
        *parents, last = value.path.split(".")
        for parent in parents:
            here = here["properties"].setdefault(parent, _section())
        shape = SHAPES.get(value.path) or {"type": {bool: "boolean", str: "string"}[type(value.default)]}
        here["properties"][last] = {"description": value.about, **shape}
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _section(title: str = "") -> dict[str, Any]:
    named = {"title": title} if title else {}
    return {**named, "type": "object", "additionalProperties": False, "properties": {}}


def table() -> str:
    """Return the table of the values, in Markdown."""
    return "\n".join(("| Value | Default | What it is |", "|---|---|---|", *_rows()))


def _rows() -> Iterator[str]:
    for value in values():
        default = json.dumps(value.default, ensure_ascii=False).replace('"', "") if value.default != "" else ""
        cells = f"`{value.path}`", f"`{default}`" if default else "", value.about.replace("|", "\\|")
        yield f"| {' | '.join(cells)} |"


def document(text: str) -> str:
    """Return a document with the table in it, in the place that is marked for it."""
    before, found, rest = text.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not (found and ends):
        raise ValueError(f"{DOCUMENT} has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> None:
    """Write both."""
    (CHART / "values.schema.json").write_text(schema(), encoding="utf-8")
    if DOCUMENT.exists():
        DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
