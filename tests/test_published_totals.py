"""Published totals of training runs: `train-time` of published layouts, by the commands of docs/published-totals.md."""

import math

import pytest
from test_validate_table import _script

_script("published_jobs")
TOTALS = _script("published_totals")


@pytest.fixture(scope="module")
def known():
    return [TOTALS.predict(run) for run in TOTALS.read_runs() if run.get("layout", True)]


def test_every_total_of_a_published_layout_is_within_16_percent(known):
    assert {one.run["name"]: one.error for one in known if abs(one.error) > 0.16} == {}
    assert len(known) >= 10


def test_the_totals_are_neither_all_too_low_nor_all_too_high(known):
    errors = [one.error for one in known]
    assert min(errors) < 0 < max(errors)
    assert abs(math.fsum(errors) / len(errors)) < 0.06


def test_the_implied_mfu_is_that_of_the_published_hours(known):
    """Llama-3.1-405B: 6 x 405e9 x 15.6e12 FLOPs, attention beside, in 30.84M hours of 989.4 TFLOP/s."""
    one = known[0]
    assert one.implied_mfu == pytest.approx(6 * 405.9e9 * 15.6e12 / (30.84e6 * 3600 * 989.4e12), rel=0.05)


def test_every_published_energy_says_what_may_explain_the_rest():
    runs = [run for run in TOTALS.read_runs() if "energy_mwh" in run]
    assert len(runs) >= 20
    assert all(run["energy_is"] and run["energy_why"] for run in runs)


def test_published_energy_at_the_power_limit_is_above_that_of_busy_gpus(known):
    """Sources multiply limit and hours; for as many hours GPUs that are not always busy draw 60 to 95 % of that."""
    for one in known:
        if "x hours" in one.run.get("energy_is", ""):
            assert 0.6 < one.energy_ratio < 0.95


def test_the_page_has_every_run_with_its_command():
    page = TOTALS.PAGE.read_text()
    for run in TOTALS.read_runs():
        assert f"- {run['name']}: " in page
        assert f"`gpuscale {TOTALS.command(run)}`" in page


def test_what_has_no_layout_says_what_may_explain_the_difference():
    for run in TOTALS.read_runs():
        assert run.get("layout", True) or run["why"]
        assert run["source"]
        assert "gpu_hours" in run or "energy_mwh" in run
