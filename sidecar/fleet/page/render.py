"""From what the page shows to HTML: the templates, with everything escaped, and the static files."""

from datetime import datetime
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.page.views import MOST_ROWS, STATUS_WORDS, BoardView, SessionView
from sidecar.fleet.shown import lasting, shown
from sidecar.fleet.timeline import SHAPES

_LOOKS = {
    "held": "so it was",
    "broken": "so it should have been",
    "void": "so it never was",
    "gap": "positions that never came",
    "conflict": "positions claimed twice",
    "is-open": "halted",
    "is-cleared": "halt, cleared",
    "is-corrupt": "corrupt checkpoint",
    "is-lossy": "lossy checkpoint",
    "is-degraded": "degraded checkpoint",
    "is-unverified": "unverified checkpoint",
    "is-stale": "stale checkpoint",
    "is-verified": "verified checkpoint",
    "is-unknown": "checkpoint, status not known",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _since(at: datetime, now: datetime) -> str:
    return lasting((now - at).total_seconds())


def _short(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def _visible(text: str) -> str:
    return "\n".join(shown(line, 2000) for line in text.splitlines())


@cache
def _environment() -> Environment:
    # Everything is escaped, whatever the template is called; a name that nobody gave is an error, not nothing.
    environment = Environment(
        loader=PackageLoader("sidecar.fleet.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(shown=shown, clock=_clock, iso=_iso, since=_since, short=_short, visible=_visible)
    environment.globals.update(
        status_words=STATUS_WORDS, statuses=[*STATUS_WORDS], rules=CATALOGUE, shapes=SHAPES, looks=_LOOKS
    )
    environment.globals["most_rows"] = MOST_ROWS
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def render_board(view: BoardView, *, mark: str, page_size: int, part: bool = False) -> str:
    """Return the board, or only the part of it that changes.

    Args:
        view: what it shows.
        mark: names its content; the same as long as nothing has changed.
        page_size: how many sessions a page has.
        part: only what changes.
    """
    template = "board_part.html" if part else "board.html"
    return _render(template, view=view, at=view.at, mark=mark, page_size=page_size)


def render_session(view: SessionView, *, mark: str, part: bool = False) -> str:
    """Return a session's page, or only the part of it that changes."""
    template = "session_part.html" if part else "session.html"
    return _render(template, view=view, at=view.detail.at, mark=mark)


def render_problem(title: str, detail: str, at: datetime, *, again: bool = False) -> str:
    """Return a page that says why there is nothing else; `again`: that may pass."""
    return _render("problem.html", title=title, detail=detail, at=at, again=again)


class StaticFile(Struct, frozen=True):
    """Hold a static file as it is served."""

    body: bytes
    content_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the static files by name; there are few, so that they are kept."""
    found = {}
    for entry in (files("sidecar.fleet.page") / "static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[entry.name] = StaticFile(body, kind, blake2b(body, digest_size=12).hexdigest())
    return found
