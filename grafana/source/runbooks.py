"""The runbooks where they are needed: in the program (`sidecar runbook`), and on a dashboard of Grafana's.

They are written in `docs/runbooks/`. What they link to is there with them, or is said in words: a link that leads
nowhere is worst at night.
"""

import re
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

from grafana.source.panels import PAGES, RUNBOOKS, Section, Text, line, page, page_address, place
from grafana.source.rules import DOCS, every
from sidecar.engine import rules_text

FOLDER = Path(__file__).parents[2] / "docs/runbooks"

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def texts() -> dict[str, str]:
    """Return the pages as they are written, the list of them first."""
    return {
        name: (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        for name in ("README", *(alert.name for alert in every()))
    }


def shipped(docs: str | None = DOCS) -> str:
    """Return all pages as one text, which the program brings along: each begins with a heading of the first level."""

    def said(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        return label if _is_page(target) else _elsewhere(label, f"runbooks/{target}", anchor, docs)

    return "\n".join(_LINK.sub(said, text) for text in texts().values())


def _is_page(target: str) -> bool:
    return target.removesuffix(".md") in PAGES and target.endswith(".md")


def _elsewhere(label: str, target: str, anchor: str, docs: str | None) -> str:
    """Return a link to another page of the documentation, or where it is in the repository."""
    path = f"docs/{target}"
    while (shorter := re.sub(r"[^/]+/\.\./", "", path, count=1)) != path:
        path = shorter
    if docs and path.startswith("docs/"):
        return f"[{label}]({docs.rstrip('/')}/{path.removeprefix('docs/')}{anchor})"
    return f"{label} (`{path}`)"


def _shown(text: str, docs: str | None, folder: str = "") -> str:
    """Return a page for the dashboard, whose panels have their titles already; `folder` is that of the page."""

    def linked(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        if _is_page(target):
            # Without the slash it is right below any path that Grafana is served at.
            return f"[{label}]({page_address(target[:-3]).removeprefix('/')})"
        return _elsewhere(label, folder + target, anchor, docs)

    return _LINK.sub(linked, re.sub(r"\A# .*\n+", "", text))


def board(docs: str | None = DOCS) -> dashboard.Dashboard:
    """Return the dashboard of the runbooks."""
    read = texts()
    first = {alert.name: alert.first.replace("{{ $labels.instance }}", "REPLICA") for alert in every()}
    panels = [
        page(
            "All runbooks" if name == "README" else name,
            Text(
                "What each alert means." if name == "README" else f"What to do when {name} fires.",
                "follow the alert's own page." if name == "README" else _lower(first[name]),
            ),
            _shown(text, docs, "runbooks/"),
            12 if name == "README" else 18,
        )
        for name, text in read.items()
    ]
    catalogue = page(
        "Rules",
        Text("What each rule means that a finding can name.", "`sidecar rules NAME` prints one of them."),
        _shown(rules_text.catalogue_markdown(), docs),
        18,
    )
    made = (
        dashboard.Dashboard("Frontier / Runbooks")
        .uid(RUNBOOKS)
        .description("What to do about each alert, and what each rule means; as `sidecar runbook` and `sidecar rules`.")
        .tags(["frontier-sidecar"])
        .editable()
        .link(
            dashboard.DashboardLink("Dashboards")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["frontier-sidecar"])
            .as_dropdown(True)
        )
    )
    beside = [*panels[1:], catalogue]
    pairs = [line(*beside[at : at + 2]) for at in range(0, len(beside), 2)]
    place(made, [Section("Runbooks", (line(panels[0]), *pairs))])
    return made


def _lower(sentence: str) -> str:
    """Return a sentence to stand after a colon, unless it begins with a command."""
    return sentence if sentence.startswith("`") else sentence[0].lower() + sentence[1:]
