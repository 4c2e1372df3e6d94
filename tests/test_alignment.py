"""Widths that the tensor cores like, and those they do not (NVIDIA, Matrix Multiplication Background User's Guide)."""

import numpy as np
import pytest
from jobs import job

from gpuscale.presets.hardware import load_cluster
from gpuscale.steptime.tensor_parallel import MISALIGNED_SLOWDOWN, misalignment
from gpuscale.validation.measurements import Row
from gpuscale.validation.runs import predict_runs

BLOOM = {
    "id": "mine-1", "framework": "deepspeed", "source_date": "2022-01", "gpu": "a100-sxm-80gb", "gpus": "384",
    "fabric": "4x Omni-Path links per node", "model": "gpt-182b", "layers": "80", "hidden": "13824", "heads": "64",
    "tp": "8", "pp": "6", "mbs": "4", "gbs": "2048", "seq": "2048", "recompute": "full", "zero": "1",
}  # fmt: skip


def step_s(**cells):
    return predict_runs([Row({**BLOOM, **cells}, "runs.csv:2")])[0].step_s


def test_rows_of_other_than_128_bytes_slow_gemms_down_where_threads_load_them():
    ampere, hopper = job("llama3-8b", 8, cluster="dgx-a100-superpod"), job("llama3-8b", 8, cluster="dgx-h100-superpod")
    widths = np.array([4096, 1800, 4096, 8, 7200, 4112])
    others = np.array([14336, 4096, 1800, 64, 14400, 4096])
    most = (
        MISALIGNED_SLOWDOWN - 1
    )  # of rows that begin at multiples of 16 of 128 bytes; of 64 and 32 fewer do so within
    expected = [1, 1 + most, 1 + most, 1 + most, 1 + most * 4 / 7, 1 + most * 6 / 7]
    assert misalignment(ampere, widths, others) == pytest.approx(expected)
    assert (misalignment(hopper, widths, others) == 1).all()
    assert load_cluster("dgx-a100-superpod").gpu.architecture == "ampere"


def test_a_width_of_14400_over_eight_gpus_costs_more_than_its_flops():
    """BigScience tried 14400 (1800 per GPU, 23-28 % slower than by its FLOPs) and went on to 14336."""
    flops = 12 * 14400**2 / (12 * 14336**2)
    ratio = step_s(hidden="14400", heads="72") / step_s(hidden="14336", heads="64") / flops
    assert 1.15 < ratio < 1.4


@pytest.mark.parametrize(("heads", "slower"), [("96", False), ("128", True)])
def test_unfused_heads_of_other_than_16_bytes_miss_the_tensor_cores(heads, slower):
    """13824 / 128 = 108 elements; 13824 / 96 = 144. Measured: 30 % slower with 128 heads."""
    assert (step_s(heads=heads) / step_s(heads="64") > 1.2) == slower
