"""What is exported and read back predicts the same, to the last digit."""

import pytest
from round_trips import MODELS, VALUES, plans_for, predicted, values_of

from gpuscale.request import JobOptions, Layout


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan", "nanotron", "deepspeed"])
def test_random_plans_are_legal_and_of_many_kinds(framework):
    drawn = list(plans_for([framework], 40))
    assert drawn == list(plans_for([framework], 40)), "the same seed gives the same plans"
    for options, layout in drawn[:5]:
        assert predicted(options, layout).plan.step_time_s > 0
    for name in ("tp", "recompute", "micro_batch_size"):
        assert len({layout[name] for _, layout in drawn}) > 1, name
    assert len({options["model"] for options, _ in drawn}) > len(MODELS) / 3


def test_every_option_has_values_to_draw():
    assert set(VALUES) <= set(JobOptions.model_fields)
    free = {"model", "gpus", "framework", "cluster"}  # drawn otherwise
    assert [name for name in JobOptions.model_fields if name not in free and not values_of(name)] == []
    assert not set(VALUES) & set(Layout.model_fields)
