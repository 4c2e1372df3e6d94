"""Recipes of 8- and 4-bit training: their names, their traffic, their time."""

from dataclasses import replace

import pytest
from jobs import job, layout, seconds

from gpuscale.choices import LOW_PRECISIONS
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_gpu
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.kernels import RECIPES, quantising_bytes
from gpuscale.steptime.tensor_parallel import tensor_parallel_time
from gpuscale.validation.measurements import Row
from gpuscale.validation.runs import read_run

B200 = {"cluster": "b200-hgx"}


@pytest.mark.parametrize(
    ("recipe", "expected"), [("delayed", 4), ("current", 6), ("blockwise", 4.0625), ("mx", 4.1875), ("nvfp4", 5.375)]
)
def test_bytes_of_each_recipe(recipe, expected):
    """Read 2 per pass, write 1 + 1 (fp4: half as much) and scales: 4 / 128, 3 x 2 / 32 and 3 x 2 / 16 bytes."""
    assert quantising_bytes(recipe, load_gpu("b200")) == (pytest.approx(expected), 0)


@pytest.mark.parametrize("recipe", ["delayed", "current", "blockwise"])
def test_hopper_pays_for_a_transposed_copy(recipe):
    assert quantising_bytes(recipe, load_gpu("h100")) == (quantising_bytes(recipe, load_gpu("b200"))[0], 4)


@pytest.mark.parametrize("cluster", ["dgx-h100-superpod", "box-l40s", "mi300x"])
def test_mx_needs_units_that_apply_its_scales(cluster):
    with pytest.raises(InputError, match="mx recipe") as caught:
        job("llama3-8b", 8, precision="mxfp8", cluster=cluster)
    assert "fp8-current" in (caught.value.hint or "")
    assert job("llama3-8b", 8, precision="mxfp8", cluster="mi355x").recipe == "mx"


def test_inputs_of_experts_are_quantised_one_expert_after_the_other():
    spec = job("qwen3-30b-a3b", 8, precision="mxfp8", gbs=8, **B200)
    at_once = replace(spec, runtime=replace(spec.runtime, sizes_on_gpu=True))
    more = seconds(spec, ep=8)["elementwise"] - seconds(at_once, ep=8)["elementwise"]
    kernels = 48 * 2 * 2 * RECIPES["mx"][2] * (128 / 8 - 1)  # layers, products, passes, for all experts but the first
    assert more == pytest.approx(kernels * spec.cluster.gpu.kernels.kernel_overhead_s, rel=0.05)


def test_a_pass_for_the_maximum_takes_its_time():
    times = {name: seconds(job("llama3-8b", 8, precision=name, **B200)) for name in ("fp8-delayed", "fp8-current")}
    more = times["fp8-current"]["elementwise"] - times["fp8-delayed"]["elementwise"]
    assert more > 0
    assert times["fp8-current"]["total"] - times["fp8-delayed"]["total"] == pytest.approx(more, rel=0.05)
    assert times["fp8-current"]["gemm"] == times["fp8-delayed"]["gemm"]


@pytest.mark.parametrize(("precision", "share"), [("fp8-delayed", 1 / 2), ("nvfp4", 0.5625 / 2)])
def test_what_sequence_parallelism_gathers_is_quantised_first(precision, share):
    """Transformer Engine casts before it gathers: fewer bytes travel, and each rank quantises its own shard alone."""
    half, low = (job("llama3-70b", 8, precision=name, **B200) for name in ("bf16", precision))
    rows = layout(half, tp=8, micro_batch_size=32)
    wide, narrow = tensor_parallel_time(rows, half), tensor_parallel_time(rows, low)
    assert narrow.gather.time_s / wide.gather.time_s == pytest.approx(share, rel=0.15)
    assert narrow.scatter.time_s == wide.scatter.time_s == narrow.wide_gather.time_s
    one, all_ranks = (seconds(low, tp=8, sp=sp)["elementwise"] for sp in (1, 0))
    in_16_bits = [seconds(half, tp=8, sp=sp)["elementwise"] for sp in (1, 0)]
    assert one - in_16_bits[0] < 0.6 * (all_ranks - in_16_bits[1])


def test_a_plain_name_takes_the_recipe_of_the_framework():
    assert job("llama3-8b", 8, precision="fp8").recipe == "delayed"
    assert job("llama3-8b", 8, precision="fp8", framework="torchtitan").recipe == "current"
    assert job("llama3-8b", 8, precision="mxfp8", framework="torchtitan", **B200).recipe == "mx"
    assert {recipe for _, recipe in LOW_PRECISIONS.values()} - {""} == set(RECIPES)


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError) as caught:
        job("llama3-8b", 8, precision="fp6")
    assert caught.value.field == "precision"


@pytest.mark.parametrize(
    ("text", "recipe"),
    [("fp8-cs", "current"), ("fp8-ds", "delayed"), ("fp8-sc", "blockwise"), ("mxfp8", "mx"), ("nvfp4", "nvfp4")],
)
def test_rows_name_their_recipe(text, recipe):
    row = {"framework": "nemo", "gpu": "gb200", "gpus": "8", "model": "llama3-8b", "gbs": "64", "seq": "8192"}
    assert read_run(Row({**row, "precision": text}, "row")).job.recipe == recipe


def test_weights_that_fsdp_gathers_are_quantised_in_every_pass():
    titan = job("llama3-8b", 8, precision="fp8-current", framework="torchtitan", gbs=8, **B200)
    once = replace(titan, runtime=replace(titan.runtime, casts_weights=False))
    more = seconds(titan, zero=3)["elementwise"] - seconds(once, zero=3)["elementwise"]
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    gpu = titan.cluster.gpu
    assert more == pytest.approx(
        2 * layers * 6 / (gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction), rel=0.1
    )


def narrow(spec):
    """The same job of a model that keeps no layer in 16 bits."""
    model = spec.model
    kinds = tuple(replace(kind, wide_under=()) for kind in model.kinds)
    mtp = replace(model.mtp, layers=tuple(replace(kind, wide_under=()) for kind in model.mtp.layers))
    return replace(spec, model=replace(model, kinds=kinds, mtp=mtp))


def test_layers_that_stay_in_16_bits_are_the_recipe_s():
    """NVIDIA's recipes of Nemotron 3 Super: prediction, under 4 bits attention and 14 layers too."""
    model = load_model("nemotron-3-super")
    under_fp4 = ["fp4" in model.kinds[kind].wide_under for kind in model.pattern]
    attends = [model.kinds[kind].attention is not None for kind in model.pattern]
    assert under_fp4 == [attention or index >= 88 - 14 for index, attention in enumerate(attends)]
    assert not any("fp8" in kind.wide_under for kind in model.kinds)
    assert all(kind.wide_under == ("fp8", "fp4") for kind in model.mtp.layers)


@pytest.mark.parametrize(("precision", "layers"), [("mxfp8", 2 * 2), ("nvfp4", 8 + 14 - 1 + 2 * 2)])
def test_layers_in_16_bits_take_and_keep_what_they_do_there(precision, layers):
    """Each layer counts as one of a job in 16 bits: with all of them so, the products take as long as there."""
    made = {"cluster": "gb200-nvl72", "framework": "megatron-bridge-perf", "cuda_graphs": "full", "gbs": 64}
    low, half = (job("nemotron-3-super,mtp_layers=2", 64, precision=name, **made) for name in (precision, "bf16"))
    shape = {"tp": 2, "ep": 64, "etp": 1}
    mixed, all_low, all_wide = (seconds(one, **shape)["gemm"] for one in (low, narrow(low), half))
    assert 0.3 * layers / 92 < (mixed - all_low) / (all_wide - all_low) < 2 * layers / 92
    kept = [evaluate(layout(one, **shape), one).memory.activations.max() for one in (narrow(low), low, half)]
    assert kept[0] < kept[1] < kept[2]
