"""The walk-through shows what its program does on Apache Kafka, and quotes the program as it is."""

from pathlib import Path

import pytest

from tests.client.walkthrough import LIVES, PAGE, live, normalized, quoted, sections, shown, written
from tests.kafka.broker import KafkaBroker

TEXT = PAGE.read_text(encoding="utf-8")
HOW = "run `python -m tests.client.walkthrough`"


def test_what_is_shown_is_what_comes_out(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    out = live(kafka.bootstrap, unique, tmp_path)
    assert shown(TEXT) == out, HOW
    assert set(out) == {*LIVES, "acks"}


def test_what_is_quoted_is_the_program() -> None:
    source = sections()
    quotes = quoted(TEXT)
    assert {"parts", "first life", "second life", "third life"} == set(quotes)
    assert quotes == {name: source[name] for name in quotes}, HOW


def test_the_story_is_told_by_what_is_shown() -> None:
    """Whatever is written anew, it stays the same story."""
    first, second, third = (shown(TEXT)[name] for name in LIVES)
    assert "commit compaction-12: retry_pinned, ['no-rollback'] are lost" in first
    assert "authorize deploy-v2: refused" in first
    assert "resume from checkpoint-1 is refused" in second
    assert second.index("is refused") < second.index("authorize deploy-v2: allowed") < second.index("halts: clear")
    assert "the checkpoint is stale" in third
    assert third.index("is refused") < third.index("authorize announce-v2: allowed") < third.index("session: verified")


@pytest.mark.parametrize("block", ["first", "acks"])
def test_a_document_that_shows_something_else_is_noticed(block: str) -> None:
    out = shown(TEXT)
    assert written(TEXT, out) == TEXT
    changed = written(TEXT, {**out, block: out[block] + "more\n"})
    assert changed != TEXT
    assert shown(changed)[block].endswith("more\n")


def test_what_is_volatile_is_numbered_in_the_order_it_comes_up() -> None:
    ids = ("1f1ec61e-ebcc-63e3-800e-0a3d81473835", "d272dc6b87bd8b91d5e60599a4953a4a")
    out = normalized({"one": f"{ids[0]} {ids[1]}", "two": f"{ids[1]} {'0' * 32} {ids[0]}"})
    assert out == {"one": "checkpoint-1 halt-1", "two": "halt-1 halt-2 checkpoint-1"}
