"""What is exported and read back predicts the same, to the last digit."""

import pytest
from round_trips import MODELS, VALUES, plans, plans_for, predicted, round_trip, values_of

from gpuscale.launch.targets import targets
from gpuscale.request import JobOptions, Layout, declared


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan", "nanotron", "deepspeed"])
def test_random_plans_are_legal_and_of_many_kinds(framework):
    drawn = list(plans_for([framework], 40))
    assert drawn[:5] == list(plans_for([framework], 5)), "the same seed gives the same plans"
    for options, layout in drawn[:5]:
        assert predicted(options, layout).plan.step_time_s > 0
    for name in ("tp", "recompute", "micro_batch_size"):
        assert len({layout[name] for _, layout in drawn}) > 1, name
    assert len({options["model"] for options, _ in drawn}) > len(MODELS) / 3


def test_every_option_has_values_to_draw():
    assert set(VALUES) <= set(declared(JobOptions))
    free = {"model", "gpus", "framework", "cluster", "calibration"}  # drawn otherwise, or files
    assert [name for name in declared(JobOptions) if name not in free and not values_of(name)] == []
    assert not set(VALUES) & set(declared(Layout))


READY = [name for name, one in targets().items() if one.write]
"""Targets whose exports are read back."""


@pytest.mark.parametrize("target", READY)
def test_an_export_read_back_predicts_the_same(target, tmp_path):
    went = _went_round(target, 5, tmp_path)
    assert [one for one in went if one] == []


@pytest.mark.full
@pytest.mark.parametrize("target", READY)
def test_five_hundred_exports_read_back_predict_the_same(target, tmp_path):
    went = _went_round(target, 500, tmp_path)
    assert [one for one in went if one] == []


def _went_round(target, count, tmp_path):
    """What differs after so many round trips; plans that the target refuses are not among them."""
    found = []
    for number, (options, layout) in enumerate(plans(target, 20 * count)):
        differs = round_trip(target, options, layout, tmp_path / str(number))
        if isinstance(differs, str):
            assert "cannot express the plan: `" in differs
            continue
        found.append(f"{options} {layout}: {differs}" if differs else "")
        if len(found) == count:
            return found
    raise AssertionError(f"of {20 * count} plans {target} takes only {len(found)}")
