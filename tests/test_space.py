"""The full space: what it holds, which of its jobs goes first, and what it says of changed precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command import gpuscale
from jobs import built

from gpuscale import estimate, plan
from gpuscale.layouts.arrays import concatenate
from gpuscale.planning.jobs import default_batch
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.recipes import all_recipes
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.models import load_model
from gpuscale.rules.check import broken_rules
from gpuscale.search import ties
from gpuscale.search.evaluation import evaluate
from gpuscale.search.ties import SHORT_SEQUENCE, SIMPLICITY_MAY_COST

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


def test_context_parallelism_of_short_sequences_goes_last_and_is_said():
    few = {"framework": "deepspeed", "top": 1}
    found = plan("llama3-70b", 128, **few)
    assert found.plans[0].cp == 2
    (note,) = (one for one in found.notes if "as few do" in one)
    best = plan("llama3-70b", 128, pins={"cp": 1}, **few).choice.fastest.step_time_s
    longer = best / found.plans[0].step_time_s - 1
    assert note == f"CP 2 splits sequences of 4,096 tokens, as few do: without it, {longer:.1%} longer than #1"
    for options in ({"pins": {"cp": 2}}, {"seq": 8192}):  # it was asked for; sequences that are split for their length
        assert not any("as few do" in one for one in plan("llama3-70b", 128, **few, **options).notes)


def test_no_published_recipe_splits_sequences_as_short():
    lengths = [one.job.get("seq", 4096) for one in all_recipes() if int(one.layout.get("cp", 1)) > 1]
    assert len(lengths) >= 20
    assert min(lengths) > SHORT_SEQUENCE


def test_of_plans_as_good_the_one_with_whole_sequences_goes_first():
    spec = built("llama3-8b", 16, gbs=64).spec
    rows = concatenate([fixed_layout(spec, {"cp": cp}) for cp in (2, 1)])
    traits = ties.traits(rows, evaluate(rows, spec), spec)
    assert traits.cp_short.tolist() == [1, 0]
    sure = traits._replace(retry=np.ones(2))
    assert ties.arranged(np.array([1.0, 1.015]), sure).tolist() == [1, 0]
    longer = replace(spec, sequence=8192)
    assert not ties.traits(rows, evaluate(rows, longer), longer).cp_short.any()


@pytest.mark.parametrize(("model", "pays"), [("smollm2-135m", False), ("llama3-8b", True)])
def test_low_precision_that_slows_a_plan_down_is_said(model, pays):
    options = {"gbs": 64, "top": 1, "pins": {"tp": 1, "pp": 1, "cp": 1, "zero": 1}}
    found = plan(model, 8, precision="fp8", **options)
    notes = [one for one in found.notes if "does not pay" in one]
    wide = estimate(model, 8, {**layout_of(found.plans[0])}, gbs=64, precision="bf16")
    less = 1 - wide.plan.step_time_s / found.plans[0].step_time_s
    assert notes == ([] if pays else [f"`precision=fp8-delayed` does not pay: in bf16 #1 takes {less:.1%} less time"])
    assert not any("does not pay" in one for one in plan(model, 8, **options).notes)


def test_the_schedule_of_a_recipe_is_searched_unless_another_is_asked_for():
    job = {"recipe": "deepseek-v3-2048gpu-h800", "top": 1, "pins": {"tp": 1, "ep": 64, "pp": 16}}
    own, other = plan(**job), plan(**{**job, "pins": {**job["pins"], "schedule": "1f1b"}})
    assert own.plans[0].schedule == "dualpipe"
    assert own.recipe.rank is not None
    assert other.plans[0].schedule != "dualpipe"
    assert "`schedule` excludes it" in other.recipe.reason


def test_an_overlapped_exchange_is_written_with_the_delayed_weight_gradients_that_it_counts(tmp_path):
    saved, folder = str(tmp_path / "plan.toml"), tmp_path / "launch"
    done = gpuscale("plan", "--model", "qwen3-30b-a3b", "--gpus", "16", "--gbs", "128", "--ep", "8", "--tp", "1",
                    "--overlap", "tp+dp+ep", "--top", "1", "-o", saved)  # fmt: skip
    assert done.code == 0, done.err
    assert gpuscale("export", saved, "--to", "megatron-lm", "-o", str(folder)).code == 0
    script = folder / "run.sh"
    text, assumed = script.read_text(), "weight gradients are predicted as delayed, too"
    assert "--delay-wgrad-compute" in text
    assert assumed not in " ".join(gpuscale("estimate", "--from", str(script)).out.split())
    script.write_text(text.replace("  --delay-wgrad-compute \\\n", ""))
    assert assumed in " ".join(gpuscale("estimate", "--from", str(script)).out.split())
