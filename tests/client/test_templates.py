"""Ids of actions: other values, another id; a template that could give two actions the same id is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.client.guard import SyncGuard
from sidecar.client.templates import Template
from tests.client.memory import MemoryLog

SIGNS = "-/:. %_{}"
VALUES = st.text(st.sampled_from("ab2DF" + SIGNS), min_size=1, max_size=6)


def test_a_value_does_not_pass_for_two() -> None:
    template = Template("deploy-{a}-{b}")
    assert template.fill({"a": "api", "b": "prod"}) == "deploy-api-prod"
    assert template.fill({"a": "api-eu", "b": "prod"}) == "deploy-api%2Deu-prod"
    assert template.fill({"a": "api", "b": "eu-prod"}) == "deploy-api-eu%2Dprod"
    assert template.fill({"a": "api%2Deu", "b": "prod"}) == "deploy-api%252Deu-prod"


def test_with_one_value_nothing_is_escaped() -> None:
    assert Template("deploy-{a}").fill({"a": "api-eu%2D"}) == "deploy-api-eu%2D"


@given(
    seps=st.lists(st.text(st.sampled_from("a2D" + "-/:. _"), min_size=1, max_size=3), min_size=1, max_size=2),
    one=st.lists(VALUES, min_size=3, max_size=3),
    two=st.lists(VALUES, min_size=3, max_size=3),
    ends=st.tuples(st.text("a-2D", max_size=2), st.text("a-2D", max_size=2)),
)
def test_no_two_tuples_of_values_share_an_id(seps: Any, one: Any, two: Any, ends: Any) -> None:
    names = ("x", "y", "z")[: len(seps) + 1]
    text = ends[0] + "{x}" + "".join(f"{sep}{{{name}}}" for sep, name in zip(seps, names[1:], strict=True)) + ends[1]
    try:
        template = Template(text)
    except ValueError:
        assert any(sep.isalnum() for sep in seps)
        return
    first, second = (dict(zip(names, values, strict=False)) for values in (one, two))
    assert (template.fill(first) == template.fill(second)) == (first == second)


@pytest.mark.parametrize(
    "text", ["{a}{b}", "d-{a}x{b}", "d-{a}2{b}", "d-{a}%{b}", "{a:>5}", "{a:.2f}", "{a:.3}", "{a:{b}}"]
)
def test_what_may_give_two_actions_one_id_is_refused_when_it_is_written(text: str) -> None:
    def f(a: str, b: str) -> None: ...

    with SyncGuard("http://127.0.0.1:9") as guard, pytest.raises(ValueError, match="same id"):
        guard.irreversible(MemoryLog(), action=text)(f)


def test_only_whole_numbers_are_formatted() -> None:
    assert Template("d-{n:03}").fill({"n": 7}) == "d-007"
    for value in ("7", 7.0):
        with pytest.raises(ValueError, match="only whole numbers"):
            Template("d-{n:03}").fill({"n": value})


@pytest.mark.parametrize(
    ("one", "two", "overlap"),
    [
        ("deploy-{a}", "deploy-{a}-{b}", True),
        ("deploy-{a}", "deploy", False),
        ("deploy", "deploy", True),
        ("deploy-{a}", "drop-{a}", False),
        ("{a}", "drop-{a}", True),
        ("{a}-prod", "{b}-test", False),
        ("deploy-prod", "deploy-{a}", True),
    ],
)
def test_templates_that_may_give_the_same_id_are_told(one: str, two: str, overlap: bool) -> None:
    assert Template(one).overlaps(Template(two)) is overlap
    assert Template(two).overlaps(Template(one)) is overlap
