"""What docs/ten-minutes.md shows is what the programs do."""

from __future__ import annotations

import re

from tests.unit.ten_minutes import DOCUMENT, made


def test_every_shown_block_is_what_comes_out() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert made() == text, "make it anew: python -m tests.unit.ten_minutes"
    assert len(re.findall(r"<!-- \w+: ", text)) >= 6
