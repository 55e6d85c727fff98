"""The runbooks that the program brings along: what to do about an alert, for whoever has only a terminal.

`runbooks.md` beside this file is made of `docs/runbooks/` by `python -m grafana.source`.
"""

import re
from functools import cache
from importlib.resources import files

_HEADING = re.compile(r"^# (\w+)\n", re.MULTILINE)

INDEX = "Runbooks"
"""The name of the page that lists the others."""


@cache
def pages() -> dict[str, str]:
    """Return the pages by name, that of the list first."""
    text = files("sidecar.observe").joinpath("runbooks.md").read_text(encoding="utf-8")
    # In between: nothing before the first heading, then names and what is below them by turns.
    _, *parts = _HEADING.split(text)
    return {name: f"# {name}\n{body}" for name, body in zip(parts[::2], parts[1::2], strict=True)}
