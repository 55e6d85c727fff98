"""Every file that is made here: what it is called, and what is in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.source import provisioning, rules, runbooks
from grafana.source.fleet import fleet
from grafana.source.quality import quality
from grafana.source.sidecar import sidecar

ROOT = Path(__file__).parents[2]

_MADE = "# Made by `python -m grafana.source` (make grafana); a test compares it with its source.\n"


def files(docs: str | None = rules.DOCS) -> Mapping[str, str]:
    """Return the content of every file, by its path from the root.

    Args:
        docs: where the documentation can be read, if anywhere.
    """
    boards = {
        "fleet": fleet(docs).build(),
        "compaction-quality": quality(docs).build(),
        "sidecar": sidecar(docs).build(),
        "runbooks": runbooks.board(docs).build(),
    }
    found = {f"grafana/dashboards/{name}.json": _json(board) for name, board in boards.items()}
    found["sidecar/observe/runbooks.md"] = runbooks.shipped(docs)
    ids = {
        (str(board.uid), str(panel.title)): int(panel.id_val or 0)
        for board in boards.values()
        for panel in board.panels or []
    }
    for name, content in {
        "grafana/provisioning/dashboards/frontier.yaml": provisioning.dashboards(),
        "grafana/provisioning/datasources/prometheus.yaml": provisioning.datasources(),
        "grafana/provisioning/alerting/rules.yaml": rules.for_grafana(ids, docs=docs),
        "grafana/provisioning/alerting/contact-points.yaml": provisioning.contact_points(),
        "grafana/provisioning/alerting/policies.yaml": provisioning.policies(),
        "deploy/prometheus/rules.yml": rules.for_prometheus(docs=docs),
    }.items():
        found[name] = _MADE + as_yaml(content)
    return found


def write(docs: str | None = rules.DOCS, out: Path = ROOT) -> list[str]:
    """Write the files that are not there as they should be; return which these were."""
    written = []
    for name, text in files(docs).items():
        path = out / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(name)
    return written


def _json(board: object) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


class _Dumper(yaml.SafeDumper):
    """Write lists indented, nothing by reference, and texts of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(content: Mapping[str, Any]) -> str:
    """Return YAML in the order of the content."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)
