"""What the columns of a run set in its job and layout, and that it changes what it should."""

from dataclasses import replace

import numpy as np
import pytest

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import CORE_ATTN, LAYERNORM, MOE_ACT
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import EAGER
from gpuscale.steptime.components import COMPONENTS, INDEX
from gpuscale.validation.measurements import Row
from gpuscale.validation.runs import predict_runs, read_run

MOE = {
    "id": "mine-1", "framework": "megatron-bridge-perf", "source_date": "2026-06", "gpu": "h100-sxm-80gb", "gpus": "64",
    "fabric": "8x400G IB", "model": "qwen3-30b-a3b", "precision": "bf16", "tp": "1", "pp": "1", "cp": "1", "ep": "16",
    "etp": "1", "zero": "distopt", "mbs": "1", "gbs": "512", "seq": "4096", "recompute": "selective",
}  # fmt: skip
DENSE = {
    "id": "mine-2", "framework": "torchtitan", "source_date": "2025-09", "gpu": "h100-sxm-80gb", "gpus": "8",
    "model": "llama3-8b", "precision": "bf16", "tp": "1", "pp": "1", "cp": "1", "zero": "fsdp", "mbs": "1",
    "gbs": "8", "seq": "8192", "recompute": "none",
}  # fmt: skip


def run(base, **cells):
    return read_run(Row({**base, **cells}, "runs.csv:2"))


def predicted(base, **cells):
    return predict_runs([Row({**base, **cells}, "runs.csv:2")])[0]


def test_modules_are_named_in_the_column_of_recomputation():
    assert run(MOE, recompute="selective: layernorm, moe_act").layout.recompute_modules[0] == LAYERNORM | MOE_ACT
    assert run(MOE, recompute="selective:norm,act").layout.recompute_modules[0] == LAYERNORM | MOE_ACT
    assert run(MOE).layout.recompute_modules[0] == CORE_ATTN
    assert predicted(MOE, recompute="selective:layernorm,moe_act").memory_gib < predicted(MOE).memory_gib


def test_an_overlapped_exchange_pays_where_graphs_relieve_the_cpu():
    graphs = {"cuda_graphs": "full"}
    assert run(MOE, overlap_ep="on").job.runtime.overlap_ep
    assert predicted(MOE, overlap_ep="on", **graphs).step_s < 0.95 * predicted(MOE, **graphs).step_s


def test_experts_that_drop_tokens_wait_for_no_counts():
    assert run(MOE, routing="dropping").job.runtime.routing == "dropping"
    assert run(MOE, routing="balanced").job.runtime.routing == run(MOE).job.runtime.routing == "dropless"
    assert predicted(MOE, routing="dropping").step_s < 0.95 * predicted(MOE).step_s


def test_overlaps_that_are_off_hide_nothing():
    def overlaps(**cells):
        runtime = run(MOE, **cells).job.runtime
        return runtime.overlap_tp, runtime.overlap_grad_reduce, runtime.overlap_param_gather

    assert overlaps() == (True, True, True)
    assert overlaps(overlap_tp="off", overlap_dp="off") == (False, False, False)
    assert overlaps(overlap_tp="off") == (False, True, True)
    assert run(DENSE, overlap_tp="on").job.runtime.overlap_tp
    assert not run(DENSE).job.runtime.overlap_tp


def test_graphs_of_a_column_are_those_of_the_job():
    assert run(MOE, cuda_graphs="full").job.runtime.cuda_graphs == "full"
    assert run(MOE).job.runtime.cuda_graphs == "none"


def test_a_dispatcher_that_sends_every_copy_sends_more():
    assert predicted(MOE, dispatcher="alltoall").step_s > 1.02 * predicted(MOE).step_s
    assert predicted(MOE, dispatcher="deepep").step_s == predicted(MOE).step_s


def test_16_bit_moments_take_half_the_memory():
    usual = run(MOE).job.states
    assert run(MOE, moment_dtype="bf16").job.states.moments == usual.moments / 2
    bf16 = run(DENSE, state_dtype="bf16").job.states
    assert (bf16.gradient, bf16.master, bf16.moments) == (2.0, 0.0, 4.0)  # the 16-bit weight is all there is
    assert predicted(DENSE, state_dtype="bf16").memory_gib < predicted(DENSE).memory_gib - 7


def test_torchtitan_is_eager_where_it_says_so_or_was_never_compiled():
    assert run(DENSE, compile="off").job.runtime.unfused == EAGER
    assert run(DENSE).job.runtime.unfused == ()
    assert run(DENSE, source_date="2024-06").job.runtime.unfused == EAGER
    assert run(DENSE, compile="on", source_date="2024-06").job.runtime.unfused == ("loss",)
    assert predicted(DENSE, compile="off").step_s > 1.03 * predicted(DENSE).step_s


def test_megatron_has_fused_kernels_without_a_compiler():
    assert run(MOE, compile="off").job.runtime.unfused == ()


def test_fewer_ranks_that_share_states_hold_more_each():
    assert run(DENSE).layout.shard[0] == 8
    assert run(DENSE, shard="2").layout.shard[0] == 2
    assert predicted(DENSE, shard="2").memory_gib > predicted(DENSE).memory_gib
    two_nodes = {"gpus": "16", "gbs": "16"}
    assert run(DENSE, zero="hsdp", **two_nodes).layout.shard[0] == 8
    assert run(DENSE, zero="fsdp", **two_nodes).layout.shard[0] == 16


def test_leading_dense_layers_of_a_shortened_model():
    def dense(**cells):
        model = run(MOE, **{"model": "deepseek-v3", "ep": "8", **cells}).job.model
        return [model.kinds[kind].moe is None for kind in model.pattern]

    assert dense(layers="4") == [True, True, True, False]
    assert dense(layers="4", dense_layers="1") == [True, False, False, False]
    assert sum(dense()) == 3
    columns = {"hidden": "1024", "heads": "8", "experts": "8", "layers": "4", "ffn": "4096", "moe_ffn": "512"}
    assert dense(model="x", **columns) == [False] * 4
    assert dense(model="x", dense_layers="2", **columns) == [True, True, False, False]
    assert not any(run(MOE, dense_layers="0").job.model.pattern)
    with pytest.raises(InputError, match="are not what qwen3-30b-a3b starts with"):
        run(MOE, dense_layers="2")


def test_multi_token_prediction_is_what_the_column_says():
    def depth(**cells):
        return run(MOE, model="deepseek-v3", ep="8", **cells).job.model.mtp_depth

    assert (depth(mtp="0"), depth(mtp="2"), depth(framework="torchtitan")) == (0, 2, 0)
    assert (depth(layers="4"), depth(layers="4", mtp="1"), depth(framework="automodel", mtp="1")) == (0, 1, 1)


def test_a_power_cap_that_the_preset_does_not_have_slows_its_gpus():
    capped = run(DENSE, gpu_power_w="500").job.cluster.gpu
    assert capped == run(DENSE).job.cluster.gpu.capped(500)
    assert run(DENSE, gpu_power_w="700").job.cluster.gpu.power_w == 700


def test_biases_of_experts_cost_memory_traffic():
    gpt_oss = {**MOE, "model": "gpt-oss-120b", "recompute": "none"}
    traffic = predicted(gpt_oss).seconds
    share = traffic[list(COMPONENTS).index("elementwise")] / sum(traffic)
    assert 0.1 < share < 0.3  # 68 bytes per element of every routed copy; without them 8 %


LOOP = {
    "id": "mine-3", "framework": "pytorch", "source_date": "2025-12", "gpu": "a100-sxm-80gb", "gpus": "4",
    "model": "llama2-7b", "tp": "4", "pp": "1", "cp": "1", "mbs": "1", "gbs": "128", "seq": "4096",
}  # fmt: skip


def test_cards_are_not_modules():
    cards = {"gpu": "a100-pcie-80gb"}
    assert run(LOOP, **cards).job.cluster.name == "box-a100-pcie-80gb"
    bridged = run(LOOP, fabric="PCIe, NVLink bridges", **cards).job.cluster
    assert (bridged.name, bridged.gpu.name) == ("box-a100-pcie-pairs", "a100-pcie-80gb")
    assert predicted(LOOP, fabric="NVLink bridges", **cards).step_s > 1.5 * predicted(LOOP).step_s  # TP 4 leaves a pair
    assert predicted(LOOP, tp="2", fabric="NVLink bridges", **cards).step_s < 1.2 * predicted(LOOP, tp="2").step_s


def test_a_name_that_leaves_the_form_open_is_resolved_by_the_node_and_named():
    printed = {"gpu_as_published": "A100-80GB", "gpus_per_node": "4"}
    found = run(LOOP, **printed)
    assert found.job.cluster.name == "box-a100-pcie-pairs"
    assert "cluster box-a100-pcie-pairs" in found.assumed
    for cells in ({"gpus_per_node": "8"}, {"gpu_as_published": "A100-80GB-SXM"}, {"fabric": "8x200G IB"}):
        assert run(LOOP, **{**printed, **cells}).job.cluster.gpu.name == "a100-sxm-80gb"


@pytest.mark.parametrize(
    ("framework", "date", "profile"),
    [
        ("automodel", "2026-01", "automodel"),
        ("other", "2026-01", "generic"),
        ("other", "2023-03", "generic@2023-12"),
        ("", "", "generic"),
        ("primus", "2026-01", "primus@2026-01"),
        ("primus", "2026-02", "primus"),
        ("megatron-lm", "2024-12", "megatron-lm@2025-07"),
        ("megatron-lm", "2023-11", "megatron-lm@2023-12"),
        ("nemo", "2023-11", "nemo@2023-12"),
        ("deepspeed", "2024-01", "megatron-deepspeed"),
        ("torchtitan", "2025-01", "torchtitan@2025-05"),
    ],
)
def test_a_framework_is_its_profile_of_the_time(framework, date, profile):
    assert run(DENSE, framework=framework, source_date=date, zero="1").job.runtime.name == profile


def test_nvidia_publishes_performance_recipes_of_megatron_bridge_and_others_run_its_own():
    """fp32 gradients, AllToAll and no graphs are what its recipes have when nobody changes them."""
    row = {**MOE, "framework": "megatron-bridge", "source": "a blog"}
    jobs = [run(row, source=one).job for one in ("a blog", "NVIDIA, performance summary")]
    assert [one.runtime.name.partition("@")[0] for one in jobs] == ["megatron-bridge", "megatron-bridge-perf"]
    assert [one.states.gradient for one in jobs] == [4.0, 2.0]
    assert [one.runtime.dispatcher for one in jobs] == ["alltoall", "deepep"]


def test_a_loop_is_known_by_the_repository_of_its_source():
    """prime-rl's LM head is one kernel with its loss: the logits of 16k tokens never exist."""
    own = {"source": "PrimeIntellect-ai/prime-rl@559b44772 benchmarks/baselines/x.json"}
    row = {**LOOP, "model": "qwen3-4b", "tp": "1", "zero": "fsdp", "seq": "16384", "recompute": "full", "compile": "on"}
    some, prime = predicted(row), predicted(row, **own)
    assert [one.run.job.runtime.name.partition("@")[0] for one in (some, prime)] == ["pytorch", "prime-rl"]
    assert prime.memory_gib < some.memory_gib - 4 * 16384 * 151_936 / 2**30 / 2


def test_hooks_of_pytorch_offload_all_activations_and_recipes_what_does_not_fit():
    jobs = [run(LOOP, recompute="full", offload="activations").job, run(MOE, offload="activations").job]
    assert [one.offload.activations for one in jobs] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("date", "dispatcher", "settings"),
    [
        ("2025-10", "", ("alltoall", "dropping", "full")), ("2025-10", "deepep", ("deepep", "dropless", "none")),
        ("2025-12", "", ("deepep", "dropless", "none")),
    ],
)  # fmt: skip
def test_early_megatron_bridge_drops_tokens_under_alltoall(date, dispatcher, settings):
    runtime = run(MOE, framework="megatron-bridge-perf", source_date=date, dispatcher=dispatcher).job.runtime
    assert (runtime.dispatcher, runtime.routing, runtime.cuda_graphs) == settings


def test_a_loop_in_plain_pytorch_is_eager_and_shards_nothing():
    loop, generic = run(LOOP), run(LOOP, framework="other")
    assert (loop.job.runtime.unfused, loop.job.runtime.attention) == (EAGER, "sdpa")
    assert (loop.layout.zero[0], loop.layout.sp[0]) == (0, 0)
    assert generic.job.runtime.unfused == ()
    assert run(LOOP, compile="on").job.runtime.unfused == ()
    assert predicted(LOOP).step_s > predicted(LOOP, compile="on").step_s


RECIPE = {
    "id": "mine-4", "framework": "nemo", "source_date": "2025-04", "gpu": "h100-sxm-80gb", "gpus": "256",
    "fabric": "8x400G IB", "model": "nemotron4-340b", "precision": "bf16", "tp": "8", "pp": "8", "cp": "1",
    "mbs": "1", "gbs": "64", "seq": "4096",
}  # fmt: skip


def test_recipes_interleave_dense_models_where_nothing_is_said():
    assert run(RECIPE).layout.vpp[0] == 12
    assert "VP 12" in run(RECIPE).assumed
    assert run(RECIPE, vp="1").layout.vpp[0] == 1
    assert run(RECIPE, framework="megatron-lm").layout.vpp[0] == 1
    assert run(RECIPE, gbs="36").layout.vpp[0] == 1  # 9 microbatches do not go round 8 stages
    assert predicted(RECIPE).step_s < 0.85 * predicted(RECIPE, vp="1").step_s


FSDP = RECIPE | {"framework": "torchtitan", "source_date": "2025-08", "zero": "fsdp"}


def test_fsdp_keeps_its_parameters_under_a_pipeline_where_the_framework_does():
    assert run(FSDP).layout.zero[0] == run(FSDP, framework="other").layout.zero[0] == 2
    assert run(FSDP, pp="1").layout.zero[0] == run(FSDP, framework="nemo").layout.zero[0] == 3


def test_torchtitan_once_cut_the_batch_of_a_rank_by_its_stages():
    old = {**FSDP, "source_date": "2024-12", "gbs": "512", "mbs": ""}
    dp = run(old).layout.dp[0]
    assert run(old).layout.num_microbatches[0] == 8
    assert run(old, schedule="interleaved").layout.vpp[0] == 2
    assert run(old, schedule="interleaved").layout.num_microbatches[0] == 16
    assert run(old, source_date="2025-08").layout.num_microbatches[0] == 512 // dp


def test_deepspeed_since_2023_runs_hugging_face_models_under_zero_2_and_3():
    row = RECIPE | {"framework": "deepspeed", "tp": "1", "pp": "1", "gpus": "64", "source_date": "2026-01"}
    names = [run(row, zero=zero).job.runtime.name.partition("@")[0] for zero in ("1", "2", "3")]
    assert names == ["megatron-deepspeed", "deepspeed", "deepspeed"]


def test_fsdp2_copies_around_its_collectives():
    found = run(DENSE)
    gpu = found.job.cluster.gpu
    without = replace(found.job, runtime=replace(found.job.runtime, shard_copy_bytes=0.0))
    steps = [float(evaluate(found.layout, job).step.step_time_s[0]) for job in (found.job, without)]
    traffic_s = 14 * 8.03e9 / (gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction)
    assert steps[0] - steps[1] == pytest.approx(traffic_s, rel=0.02)
    replicated = replace(found.layout, zero=found.layout.zero * 0)
    assert np.array_equal(*(evaluate(replicated, job).step.step_time_s for job in (found.job, without)))


def test_attention_of_early_nemo_is_slower_on_hopper_only():
    one_box = {**RECIPE, "model": "llama3-8b", "gpus": "8", "tp": "1", "pp": "1", "seq": "16384"}
    early, late = ({**one_box, "source_date": date} for date in ("2024-06", "2024-11"))
    assert predicted(early).step_s > 1.05 * predicted(late).step_s
    ampere = {"gpu": "a100-sxm-80gb", "fabric": ""}
    on_ampere = [predicted(row, **ampere).seconds[INDEX["attention"]] for row in (early, late)]  # the loss differs too
    assert on_ampere[0] == pytest.approx(on_ampere[1])
