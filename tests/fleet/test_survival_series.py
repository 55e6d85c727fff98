"""Which models have series of their own, and what is counted for them."""

from sidecar.fleet.groups import GroupKey, Partial, survival_by_model
from sidecar.observe.fleet import FleetMetrics


def _partial(**survival: tuple[int, int]) -> Partial:
    return Partial(survival={key.replace("_", "/"): counts for key, counts in survival.items()})


def test_survival_is_added_up_over_tenants_partitions_and_deep_levels() -> None:
    groups = [
        (GroupKey("a", "x", "small"), _partial(constraint_1=(4, 3), fact_1=(2, 2))),
        (GroupKey("b", "x", "small"), _partial(constraint_1=(1, 1), constraint_4=(5, 4), constraint_7=(5, 1))),
        (GroupKey("a", "x", None), _partial(constraint_1=(2, 0))),
        (GroupKey("a", "x", "idle"), _partial()),
    ]
    assert survival_by_model(groups, 20) == {
        ("small", "constraint", "1"): (5, 4),
        ("small", "fact", "1"): (2, 2),
        ("small", "constraint", "4+"): (10, 5),
        ("none", "constraint", "1"): (2, 0),
    }


def test_only_the_models_with_the_most_to_carry_are_named() -> None:
    groups = [(GroupKey(None, None, f"m{n}"), _partial(constraint_1=(n, n))) for n in range(1, 101)]
    found = survival_by_model(groups, 3)
    assert set(found) == {(model, "constraint", "1") for model in ("m100", "m99", "m98", "other")}
    assert found["other", "constraint", "1"] == (sum(range(1, 98)), sum(range(1, 98)))


def test_a_model_may_be_called_anything() -> None:
    name = "x" * 1000 + "\n"
    ((model, _, _),) = survival_by_model([(GroupKey(None, None, name), _partial(fact_2=(1, 1)))], 3)
    assert len(model) < 70 and model.isprintable()


def test_series_of_models_that_are_gone_disappear() -> None:
    metrics = FleetMetrics()
    metrics.survived({("a", "fact", "1"): (3, 2), ("b", "fact", "1"): (1, 1)})
    assert b'sidecar_fleet_survival_kept{level="1",model="a",what="fact"} 2.0' in metrics.exposition()[0]
    metrics.survived({("b", "fact", "1"): (1, 0)})
    body, _ = metrics.exposition()
    assert b'model="a"' not in body
    assert b'sidecar_fleet_survival_kept{level="1",model="b",what="fact"} 0.0' in body
