"""How text that somebody else chose is shown: ids come from agents and may be anything."""

import unicodedata

LONGEST = 200
"""How many characters of an id are shown at most; its whole stands where it can be copied from."""

_JOINERS = "\u200c\u200d"
"""Zero-width joiners: emoji and several scripts need them, and they reorder nothing."""


def shown(text: str, most: int = LONGEST) -> str:
    """Return text as it may be shown: one line, nothing invisible, nothing that reorders or drives a terminal.

    Args:
        text: anything.
        most: how many characters at most; the middle of what is longer is left out, for the ends tell ids apart.
    """
    if len(text) > most:
        head = (most - 1) * 2 // 3
        text = f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character in _JOINERS or character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def listed(items: list[str], most: int = 5) -> str:
    """Return some of a list as text, and how many more there are."""
    named = ", ".join(shown(item, 60) for item in items[:most])
    return f"{named} and {len(items) - most} more" if len(items) > most else named


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 session, 2 sessions."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def lasting(seconds: float) -> str:
    """Return a length of time as people say it: 40 s, 12 min, 3 h 20 min, 5 d 2 h."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes} min"
    if days == 0:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def fitted(text: str, columns: int) -> str:
    """Return text cut to so many columns of a fixed pitch, where wide characters take two; the end is kept as well."""
    text = shown(text, max(columns * 4, 8))
    if _columns(text) <= columns:
        return text
    tail = (columns - 1) // 3
    head, used = [], 0
    for character in text:
        used += _columns(character)
        if used > columns - 1 - tail:
            break
        head.append(character)
    end: list[str] = []
    used = 0
    for character in reversed(text):
        used += _columns(character)
        if used > tail:
            break
        end.append(character)
    return f"{''.join(head)}…{''.join(reversed(end))}"


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)
