"""The full space: what it holds, which of its jobs goes first, and what it says of changed precision."""

from __future__ import annotations

import pytest
from command import gpuscale
from jobs import built

from gpuscale import plan
from gpuscale.planning.jobs import default_batch
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.models import load_model
from gpuscale.rules.check import broken_rules
from gpuscale.search.ties import SIMPLICITY_MAY_COST

SMALL = {"pins": {"tp": "1,2", "cp": 1, "ep": 1}, "gbs": 64, "space": "full"}


def changed(found, index=0):
    """What the job of a plan has changed of the framework's own settings."""
    rows = found.compared.variants
    choice, own = rows[found.compared.of_plan[index]].choice, rows[0].choice
    return {name: value for name, value in choice.items() if value != own[name]}


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_a_full_space_changes_no_setting_that_hardly_pays(precision):
    found = plan("llama3-8b", 8, precision=precision, top=400, **SMALL)
    times = [row.best["step_time_s"] for row in found.compared.variants if row.best]
    assert changed(found) == ({} if precision else {"precision": "fp8"})
    first = found.compared.variants[found.compared.of_plan[0]].best["step_time_s"]
    assert min(times) < first <= min(times) * (1 + 5 * SIMPLICITY_MAY_COST)
    assert changed(found, 1)


def test_a_changed_precision_is_said_with_what_it_gains():
    done = gpuscale("plan", "--model", "llama3-8b", "--gpus", "8", "--gbs", "64", "--tp", "1,2", "--cp", "1",
                    "--space", "full")  # fmt: skip
    assert done.out.startswith("llama3-8b: fp8")
    said = " ".join(done.out.split())
    assert "note the settings of #1 with --precision bf16, --moment-dtype fp32 take " in said
    assert "longer than #1" in said.partition("--moment-dtype fp32 take ")[2][:40]


def test_low_moments_are_in_the_space_of_frameworks_that_have_them():
    assert load_framework("megatron-lm").space.moment_dtype == ("bf16", "fp8")
    assert load_framework("torchtitan").space.moment_dtype == ("bf16",)
    for name in ("megatron-lm@2025-01", "deepspeed", "pytorch", "accelerate", "maxtext", "nanotron"):
        assert load_framework(name).space.moment_dtype == ()
    found = plan("llama3-8b", 8, precision="bf16", top=400, **SMALL)
    assert {row.choice["moment_dtype"] for row in found.compared.variants} == {"fp32", "bf16", "fp8"}


@pytest.mark.parametrize(("zero", "moments", "code"), [(0, "bf16", "low_moments_not_sharded"), (1, "bf16", None),
                                                       (0, "fp32", None)])  # fmt: skip
def test_low_moments_take_the_distributed_optimizer(zero, moments, code):
    spec = built("llama3-8b", 8, moment_dtype=moments).spec
    assert [rule.code for rule in broken_rules(fixed_layout(spec, {"zero": zero}), spec)] == ([code] if code else [])


def test_the_default_batch_starves_no_gpu_that_needs_a_sequence_of_its_own():
    for model in ("llama3.2-1b", "llama3-8b"):
        each = [default_batch(load_model(model), gpus, 4096) / gpus for gpus in (256, 1024, 2048, 4096)]
        assert min(each) >= 1
    assert default_batch(load_model("llama3.2-1b"), 16_384, 4096) < 16_384  # else a step of 64 Mi tokens
    assert default_batch(load_model("llama3-70b"), 4096, 4096) < 4096  # TP and PP share its sequences


def test_a_recipe_without_virtual_stages_is_timed_with_its_exchange_shown():
    """NVIDIA's layout of gpt-oss has PP 4 and no virtual stages, which the overlap that a plan chooses takes."""
    job = {"recipe": "gpt-oss-120b-64gpu-h100-bf16", "top": 1}
    found = plan(**job).recipe
    assert found.reason == "its exchange not overlapped"
    assert found.behind > 0
    asked = plan(**job, overlap="tp+dp+ep").recipe
    assert "needs virtual stages" in asked.reason
