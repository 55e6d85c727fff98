"""Take pictures of the page in every state, for people to look at: python -m tests.fleet.pictures FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

from tests.fleet import states
from tests.fleet.browser import CHROMIUM, launch
from tests.fleet.memory import MemoryFleet
from tests.fleet.serving import Site, serving

SIZES = {"wide": (1440, 900), "narrow": (320, 640)}


def worst(fleet: MemoryFleet, rule: str | None = None) -> str:
    """Return the id of a session with a finding of a rule (None: of the one with most findings)."""
    rows = {row.session_id: row for shard in fleet.shards for row in shard.shelf.rows()}
    return next(i for i in fleet.session_ids() if rule is None or rule in rows[i].findings.rules)


def session_path(session_id: str) -> str:
    """Return the path of a session's page."""
    return f"/board/session?{urlencode({'id': session_id})}"


def main(folder: Path, only: str | None = None) -> None:
    """Write one picture for each state, scheme and size."""
    folder.mkdir(parents=True, exist_ok=True)
    storm, long, hostile = states.storm(), states.long(), states.hostile()
    shots: dict[str, tuple[MemoryFleet, str]] = {
        "empty": (states.empty(), "/board"),
        "healthy": (states.healthy(), "/board"),
        "storm": (storm, "/board"),
        "incomplete": (states.incomplete(), "/board"),
        "dropped": (storm, session_path(worst(storm, "edge_dropped"))),
        "revoked": (storm, session_path(worst(storm, "edge_revoked"))),
        "orphaned": (storm, session_path(worst(storm, "referent_orphaned"))),
        "long": (long, session_path(states.LONG)),
        "long-true": (long, session_path(states.LONG) + "&scale=true"),
        "hostile": (hostile, "/board?status=all"),
        "hostile-session": (hostile, session_path(states.HOSTILE[0])),
    }
    with serving() as site, sync_playwright() as playwright, launch(playwright) as browser:
        for name, (fleet, path) in shots.items():
            if only and only not in name:
                continue
            for scheme in ("light", "dark"):
                for size, (width, height) in SIZES.items():
                    context = browser.new_context(
                        color_scheme=scheme,  # type: ignore[arg-type]
                        viewport={"width": width, "height": height},
                    )
                    page = context.new_page()
                    _take(page, site, fleet, path, folder / f"{name}-{scheme}-{size}.png")
                    context.close()


def _take(page: Page, site: Site, fleet: MemoryFleet, path: str, to: Path) -> None:
    site.fleet = fleet
    page.goto(site.url + path)
    page.screenshot(path=to, full_page=True)
    print(to, to.stat().st_size)


if __name__ == "__main__":
    if not CHROMIUM:
        sys.exit("there is no Chromium (Debian: apt-get install chromium)")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "pictures"), sys.argv[2] if len(sys.argv) > 2 else None)
