"""Settings that only a row's notes name: what is read, and that it changes what it should."""

from dataclasses import replace

import numpy as np
import pytest

from gpuscale.layouts.arrays import LAYERNORM, MOE_ACT
from gpuscale.search import evaluate
from gpuscale.steptime.components import COMPONENTS
from gpuscale.validation.cells import Row
from gpuscale.validation.predict import predict_runs
from gpuscale.validation.runs import read_run
from gpuscale.validation.settings import EAGER

MOE = {
    "id": "mine-1", "framework": "megatron-bridge", "source_date": "2026-06", "gpu": "h100-sxm-80gb", "gpus": "64",
    "fabric": "8x400G IB", "model": "qwen3-30b-a3b", "precision": "bf16", "tp": "1", "pp": "1", "cp": "1", "ep": "16",
    "etp": "1", "zero": "distopt", "mbs": "1", "gbs": "512", "seq": "4096", "recompute": "selective",
}  # fmt: skip
DENSE = {
    "id": "mine-2", "framework": "torchtitan", "source_date": "2025-09", "gpu": "h100-sxm-80gb", "gpus": "8",
    "model": "llama3-8b", "precision": "bf16", "tp": "1", "pp": "1", "cp": "1", "zero": "fsdp", "mbs": "1",
    "gbs": "8", "seq": "8192", "recompute": "none",
}  # fmt: skip


def run(base, notes="", **cells):
    return read_run(Row({**base, **cells, "notes": notes}, "runs.csv:2"))


def predicted(base, notes="", **cells):
    return predict_runs([Row({**base, **cells, "notes": notes}, "runs.csv:2")])[0]


@pytest.mark.parametrize(
    "notes", ["recompute modules=layernorm+moe_act; x", "recompute modules layernorm+moe_act, eager"]
)
def test_modules_in_the_notes_replace_the_default_module(notes):
    assert run(MOE, notes).layout.recompute_modules[0] == LAYERNORM | MOE_ACT
    assert predicted(MOE, notes).memory_gib < predicted(MOE).memory_gib


def test_a_column_that_names_modules_wins_over_the_notes():
    found = run(MOE, "recompute modules=layernorm", recompute="selective: moe_act")
    assert found.layout.recompute_modules[0] == MOE_ACT


@pytest.mark.parametrize("notes", ["EP-A2A overlap on +delayed wgrad", "HybridEP, A2A overlap", "EP-A2A 1F1B overlap"])
def test_an_overlapped_exchange_is_hidden_where_graphs_relieve_the_cpu(notes):
    assert run(MOE, notes).job.runtime.overlap_ep
    assert predicted(MOE, f"{notes}; CUDA graphs").step_s < 0.95 * predicted(MOE, "CUDA graphs").step_s
    assert predicted(MOE, notes).step_s == predicted(MOE).step_s


def test_overlaps_that_are_off_hide_nothing():
    def overlaps(notes):
        runtime = run(MOE, notes).job.runtime
        return runtime.overlap_tp, runtime.overlap_grad_reduce, runtime.overlap_param_gather

    assert overlaps("") == (True, True, True)
    assert overlaps("distributed optimizer, TP/DP/P2P overlap OFF, fused") == (False, False, False)
    assert overlaps("TP overlap off") == (False, True, True)
    assert overlaps("TP/PP/DP overlap") == (True, True, True)


def test_settings_have_a_column_of_their_own():
    assert run(MOE, settings="CUDA graph full-iteration").job.runtime.cuda_graphs == "full"
    assert run(MOE, settings="no A2A overlap", cuda_graphs="partial").job.runtime.cuda_graphs == "partial"


def test_bf16_moments_take_half_the_memory():
    usual = run(MOE).job.states
    assert run(MOE, "precision-aware optimizer").job.states.moments == usual.moments / 2
    bf16 = run(DENSE, '"compile with bf16 training dtype"').job.states
    assert (bf16.gradient, bf16.master, bf16.moments) == (2.0, 2.0, 4.0)
    assert predicted(DENSE, "compile with bf16 training dtype").memory_gib < predicted(DENSE).memory_gib - 7


def test_torchtitan_is_eager_where_it_says_so_or_was_never_compiled():
    assert run(DENSE, "default config, eager").job.runtime.eager == EAGER
    assert run(DENSE).job.runtime.eager == ()
    assert run(DENSE, source_date="2024-06").job.runtime.eager == EAGER
    assert run(DENSE, "torch.compile", source_date="2024-06").job.runtime.eager == ("loss",)
    assert predicted(DENSE, "eager").step_s > 1.03 * predicted(DENSE).step_s


def test_settings_of_one_framework_do_not_leak_into_another():
    assert run(MOE, "bf16 training dtype, eager").job.runtime.eager == ()


def test_biases_of_experts_cost_memory_traffic():
    gpt_oss = {**MOE, "model": "gpt-oss-120b", "recompute": "none"}
    traffic = predicted(gpt_oss).seconds
    share = traffic[list(COMPONENTS).index("elementwise")] / sum(traffic)
    assert 0.1 < share < 0.3  # 68 bytes per element of every routed copy; without them 8 %


UCI = {
    "id": "mine-3", "framework": "other", "source_date": "2025-12", "gpu": "a100-sxm-80gb", "gpus": "4",
    "model": "llama2-7b", "tp": "4", "pp": "1", "cp": "1", "zero": "0", "mbs": "1", "gbs": "128", "seq": "4096",
}  # fmt: skip


def test_pcie_cards_are_not_modules():
    bridged = run(UCI, "PCIe + NVLink-bridge ring topology").job.cluster
    assert (bridged.name, bridged.gpu.name) == ("box-a100-pcie-pairs", "a100-pcie-80gb")
    assert run(UCI, "", fabric="PCIe 4.0").job.cluster.name == "box-a100-pcie"
    assert run(UCI).job.cluster.gpu.name == "a100-sxm-80gb"
    assert run(MOE, "PCIe switches").job.cluster.gpu.name == "h100-sxm-80gb"
    assert predicted(UCI, "PCIe + NVLink-bridge ring").step_s > 1.5 * predicted(UCI).step_s  # TP 4 leaves the pair
    pair = {**UCI, "tp": "2"}
    assert predicted(pair, "PCIe + NVLink-bridge ring").step_s < 1.2 * predicted(pair).step_s


@pytest.mark.parametrize(
    ("notes", "profile"),
    [
        ("framework=NeMo AutoModel (FSDP2, not Megatron)", "generic"),
        ("Primus (Megatron-LM backend)", "megatron-core"),
        ("a loop", "generic"),
    ],
)
def test_notes_name_the_framework_of_other(notes, profile):
    assert run(UCI, notes).job.runtime.name == profile


def test_a_loop_of_no_framework_is_eager():
    loop = run(UCI, "framework/precision/recompute not stated").job.runtime
    assert (loop.eager, loop.attention) == (EAGER, "flash2")
    assert run(UCI, "a loop").job.runtime.eager == ()


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
    assert predicted(early, **ampere).step_s == pytest.approx(predicted(late, **ampere).step_s)
