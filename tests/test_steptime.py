"""Step time: FLOPs by a second route, identities, and how each component must move."""

import random
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from clusters import instant
from jobs import built, job, layout, legal, legal_candidates, sample, seconds, with_gpu, with_level

from gpuscale.architecture.flops import forward_flops
from gpuscale.architecture.parameters import model_parameters
from gpuscale.collectives.alltoall import Routing, distinct_targets
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import MOE, concatenate
from gpuscale.planning.layouts import make_pins
from gpuscale.presets.files import preset_names
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import OffloadSpec, RuntimeSpec
from gpuscale.steptime import blocks
from gpuscale.steptime.blocks import UNGRAPHED_SHARE
from gpuscale.steptime.components import (
    BOUNDS,
    COMMUNICATION,
    COMPONENTS,
    INDEX,
    GroupCall,
    Segment,
    exposed_beside,
    exposed_buckets,
    exposed_pipelined,
    total_s,
)
from gpuscale.steptime.data_parallel import Cover, Transfers, tied_embedding, tied_embedding_s, unhidden_s
from gpuscale.steptime.kernels import BACKWARD_FLOPS_RATIO, stream_time_s
from gpuscale.steptime.layer import _with_hidden_exchange, lm_head, waiting_for_cpu_s
from gpuscale.steptime.step import gpu_spread, slowest_share
from gpuscale.steptime.tensor_parallel import TensorParallelTime

SPACES = [
    ("llama3-8b", 64, {}),
    ("mixtral-8x7b", 64, {"micro_batch_size": "1,2"}),
    ("deepseek-v2-lite", 32, {"micro_batch_size": "1,2"}),
    ("gpt-oss-20b", 48, {"micro_batch_size": "1,4"}),
    ("gemma2-2b", 24, {}),
]
SLOW_FLOP_PER_S = 1e6
NOTHING_SENT = TensorParallelTime(*(GroupCall("allgather", *(np.zeros(1),) * 4),) * 4)


def ideal(spec):
    """The job on a GPU of 1 MFLOP/s without losses: beside its arithmetic everything else takes no time."""
    kernels = {
        "gemm_fraction": {"bf16": 1.0},
        "sustained_clock_fraction": 1.0,
        "tile_m": 1,
        "tile_n": 1,
        "tile_overhead_s": 0.0,
        "wave_loss_fraction": 0.0,
        "attention_forward_fraction": 1.0,
        "attention_backward_fraction": 1.0,
        "attention_ramp_keys": 0.0,
        "attention_tail_tiles": 0.0,
        "exp_per_cycle_per_sm": 1e30,
    }
    return with_gpu(spec, kernels, peak_flops_per_s={"bf16": SLOW_FLOP_PER_S}, memory_bandwidth_bytes_per_s=1e30)


def expected_s(spec, passes, backward_cores):
    """Arithmetic of a step on one GPU by `architecture.flops` [s]: one pass of core attention and so many padded to
    the larger of two unequal heads."""
    flops = forward_flops(spec.model, spec.sequence, "causal")
    core = 0.0
    for kind, count in zip(spec.model.kinds, spec.model.layer_counts, strict=True):
        alone = replace(spec.model, kinds=(kind,), pattern=(0,) * count)
        widths = (kind.attention.head_dim, kind.attention.value_head_dim)
        padded = 2 * max(widths) / sum(widths)
        core += forward_flops(alone, spec.sequence, "causal").attention_core * (1 + backward_cores * padded)
    per_token = passes * (flops.total - flops.attention_core) + core
    return per_token * spec.tokens_per_step / spec.gpus / SLOW_FLOP_PER_S


# -- FLOPs by two routes --


@pytest.mark.parametrize(
    ("model", "options", "values"),
    [
        ("llama3-8b", {}, {}),
        ("llama3-8b", {}, {"tp": 8, "sp": 1}),
        ("llama3-8b", {}, {"tp": 2, "sp": 0, "micro_batch_size": 2}),
        ("llama3-8b", {"seq": 16384}, {"cp": 4}),
        ("gemma2-27b", {"seq": 8192}, {}),
        ("gpt-oss-20b", {}, {}),
        ("gpt-oss-20b", {}, {"ep": 8}),
        ("qwen3-30b-a3b", {}, {"tp": 2, "ep": 4, "etp": 2}),
        ("deepseek-v2-lite", {}, {"ep": 4}),
        ("llama4-scout", {"seq": 32768}, {"ep": 8}),
    ],
)
def test_on_a_gpu_without_losses_a_step_takes_its_flops(model, options, values):
    """GEMMs and attention of all GPUs together are the model's FLOPs (backward attention: 2.5 x forward)."""
    spec = ideal(replace(job(model, 8, **options), vocab_multiple=1))
    found = seconds(spec, **values)
    tp = values.get("tp", 1)
    assert spec.model.vocab % tp == 0
    # the router is not cut without SP, and is done TP-fold there; with SP each rank routes its own tokens
    assert found["gemm"] + found["attention"] == pytest.approx(expected_s(spec, 3, BACKWARD_FLOPS_RATIO), rel=1e-5)


@pytest.mark.parametrize("model", ["llama3-8b", "gpt-oss-20b", "deepseek-v2-lite"])
def test_full_recomputation_adds_one_forward_pass_of_the_layers(model):
    spec = ideal(replace(job(model, 8), vocab_multiple=1))
    head = forward_flops(spec.model, spec.sequence, "causal").lm_head * spec.tokens_per_step / 8 / SLOW_FLOP_PER_S
    found, without = seconds(spec, recompute="full"), seconds(spec)
    assert found["recompute"] == pytest.approx(expected_s(spec, 1, 0) - head, rel=1e-5)
    assert without["recompute"] == 0
    assert found["gemm"] == without["gemm"]
    half = seconds(spec, recompute=f"full:{spec.model.layers // 2}")["recompute"]
    if len(spec.model.kinds) == 1:
        assert half == pytest.approx(found["recompute"] / 2, rel=1e-9)


@pytest.mark.parametrize(("stops", "compiled", "saved"), [("no", True, 0), ("yes", False, 1), ("compiled", True, 1)])
def test_recomputation_that_stops_early_leaves_out_the_last_product(stops, compiled, saved):
    """Of Llama 3 8B 14336 x 4096 of each layer, whose result no gradient needs."""
    spec = with_runtime(ideal(job("llama3-8b", 8)), compile=compiled)
    early = with_runtime(spec, recompute_stops_early=stops)
    less = seconds(spec, recompute="full")["recompute"] - seconds(early, recompute="full")["recompute"]
    assert less == pytest.approx(saved * 32 * 2 * 14336 * 4096 * spec.tokens_per_step / 8 / SLOW_FLOP_PER_S, rel=1e-5)


def test_experts_whose_recomputation_stops_early_send_no_tokens_back_again():
    spec = job("qwen3-30b-a3b", 8, gbs=8)
    early = with_runtime(spec, recompute_stops_early="yes")
    once, thrice, less = (
        seconds(one, ep=8, recompute=what)["ep_comm"] for one, what in ((spec, "none"), (spec, "full"), (early, "full"))
    )
    assert (thrice / once, less / once) == (pytest.approx(6 / 4, rel=1e-6), pytest.approx(5 / 4, rel=1e-6))


def test_time_grows_by_the_same_with_every_layer():
    spec = replace(job("llama3-8b", 1), global_batch_size=4)
    times = [
        seconds(replace(spec, model=replace(spec.model, pattern=(0,) * layers)))["total"] for layers in (1, 2, 3, 33)
    ]
    assert times[1] - times[0] == pytest.approx(times[2] - times[1], rel=1e-6)
    assert times[3] - times[2] == pytest.approx(30 * (times[2] - times[1]), rel=1e-3)


# -- identities --


@pytest.mark.parametrize(("model", "gpus", "pins"), SPACES)
def test_components_sum_to_the_step_and_are_never_negative(model, gpus, pins):
    rows, spec = sample(legal(model, gpus, pins), 5000), job(model, gpus)
    step = evaluate(rows, spec).step
    parts = step.components
    assert parts.shape == (len(COMPONENTS), len(rows))
    assert np.isfinite(parts).all()
    assert parts.min() >= 0
    assert np.abs(parts.sum(axis=0) / step.step_time_s - 1).max() < 1e-9
    assert (step.beside["dp_comm"] <= step.dp_total_s * (1 + 1e-9)).all()


@pytest.mark.parametrize(("model", "gpus", "pins"), SPACES)
def test_one_candidate_alone_is_its_row_in_the_batch_bit_for_bit(model, gpus, pins):
    rows, spec = sample(legal(model, gpus, pins), 3000, seed=1), job(model, gpus)
    batch = evaluate(rows, spec)
    components = batch.step.components
    for index in range(0, len(rows), len(rows) // 15):
        alone = evaluate(rows.take(np.array([index])), spec)
        assert alone.step.step_time_s[0] == batch.step.step_time_s[index]
        assert alone.memory.peak_bytes[0] == batch.memory.peak_bytes[index]
        assert (alone.step.components[:, 0] == components[:, index]).all()
        assert alone.memory.at_peak(0) == batch.memory.at_peak(index)


@pytest.mark.parametrize("framework", sorted(preset_names("frameworks")))
@pytest.mark.parametrize(
    "offload",
    [OffloadSpec(), OffloadSpec(optimizer=True), OffloadSpec(parameters=True, activations=0.5)],
    ids=["none", "optimizer", "rest"],
)
def test_the_same_holds_for_every_framework_and_for_states_on_the_host(framework, offload):
    spec = replace(job("llama3-8b", 16, framework=framework), offload=offload)
    rows = sample(legal("llama3-8b", 16), 200, seed=4)
    batch = evaluate(rows, spec)
    assert np.abs(batch.step.components.sum(axis=0) / batch.step.step_time_s - 1).max() < 1e-9
    for index in range(0, 200, 100):
        alone = evaluate(rows.take(np.array([index])), spec)
        assert alone.step.step_time_s[0] == batch.step.step_time_s[index]
        assert alone.memory.at_peak(0) == batch.memory.at_peak(index)


def test_a_sum_over_components_does_not_depend_on_the_number_of_candidates():
    table = np.random.default_rng(0).random((len(COMPONENTS), 1000)) * 10.0 ** np.arange(len(COMPONENTS))[:, None]
    cost = dict(zip(COMPONENTS, table, strict=True))
    together = total_s(cost)
    for index in range(1000):
        assert total_s({name: value[[index]] for name, value in cost.items()})[0] == together[index]
    assert (total_s(dict(reversed(cost.items()))) == together).all()


@pytest.mark.parametrize(("model", "gpus", "pins"), SPACES)
def test_what_is_not_split_does_not_communicate_and_what_is_does(model, gpus, pins):
    rows, spec = sample(legal(model, gpus, pins), 5000, seed=2), job(model, gpus)
    parts = dict(zip(COMPONENTS, evaluate(rows, spec).step.components, strict=True))
    experts = (rows.ep > 1) | (rows.etp > 1)
    group = rows.dp * rows.cp
    staged = rows.pp > 1
    for name, split in (("tp_comm", rows.tp > 1), ("ep_comm", experts), ("pp_comm", staged), ("bubble", staged)):
        assert (parts[name][~split] == 0).all(), name
        assert (parts[name][split] > 0).all(), name
    assert (parts["cp_comm"][rows.cp == 1] == 0).all()
    alone = (group == 1) & ((rows.expert_dp == 1) | (not spec.model.is_moe))  # experts have replicas over TP ranks too
    joined = staged & spec.model.tied_embeddings  # first and last stage add up the gradients of the embedding
    assert (parts["dp_comm"][alone & ~joined] == 0).all()
    assert (parts["dp_comm"][group > 1] > 0).all()
    recomputed = (rows.recompute_modules > 0) | (rows.recompute_layers > 0)
    assert ((parts["recompute"] > 0) == recomputed).all()
    for name in ("gemm", "attention", "elementwise", "optimizer", "launch"):
        assert (parts[name] > 0).all(), name


def test_every_component_has_a_bound_and_communication_is_what_ends_in_comm():
    assert {one.limit for one in COMPONENTS.values()} == set(BOUNDS)
    assert COMMUNICATION == ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
    assert list(INDEX) == list(COMPONENTS)


# -- monotony --


def with_levels(spec, **factors):
    for index in range(len(spec.cluster.levels)):
        spec = with_level(spec, index, **factors)
    return spec


HOST = [one.name for one in fields(RuntimeSpec) if one.name.startswith("host_") and one.name.endswith("_s")]

FASTER = {
    "peaks": lambda spec, x: with_gpu(
        spec, peak_flops_per_s={name: x * peak for name, peak in spec.cluster.gpu.peak_flops_per_s.items()}
    ),
    "memory": lambda spec, x: with_gpu(
        spec, memory_bandwidth_bytes_per_s=x * spec.cluster.gpu.memory_bandwidth_bytes_per_s
    ),
    "network": lambda spec, x: with_levels(
        spec, link_bytes_per_s=x, switch_bytes_per_s=x, nic_bytes_per_s=x, global_bytes_per_s=x
    ),
    "latency": lambda spec, x: with_levels(spec, hop_latency_s=1 / x),
    "gaps": lambda spec, x: with_gpu(spec, {"launch_s": spec.cluster.gpu.kernels.launch_s / x}),
    "host": lambda spec, x: with_runtime(spec, **{name: getattr(spec.runtime, name) / x for name in HOST}),
}
"""What a GPU, a network and a host can be better at, by a factor of a rate or of a time."""


def slower(rows, spec, what, factor):
    """By how much steps take longer on better hardware."""
    return evaluate(rows, FASTER[what](spec, factor)).step.step_time_s / evaluate(rows, spec).step.step_time_s - 1


@pytest.mark.parametrize(("model", "gpus", "pins"), SPACES)
@pytest.mark.parametrize("what", ["memory", "peaks", "network", "latency"])
def test_hardware_twice_as_good_never_slows_a_step(model, gpus, pins, what):
    more = slower(sample(legal(model, gpus, pins), 2000, seed=3), job(model, gpus), what, 2.0)
    assert more.max() < 1e-9
    assert more.min() < -0.02


def drawn_jobs(count, seed):
    """Random jobs with some of their legal layouts."""
    draw = random.Random(seed)
    names = {kind: sorted(preset_names(f"{kind}s")) for kind in ("model", "framework", "cluster")}
    more = {
        "seq": (512, 2048, 16384), "gbs": (32, 256, 1024), "precision": ("fp16", "fp8", "fp32", "mxfp8"),
        "offload": ("optimizer", "activations:0.3", "parameters+optimizer"),
        "overlap": ("tp", "ep", "tp+dp+ep", "none"), "dispatcher": ("alltoall", "deepep", "hybridep"),
        "cuda_graphs": ("none", "partial", "full"),
    }  # fmt: skip
    fixed = {
        "schedule": ("gpipe", "zb-h1", "zb-v", "zb-2p", "dualpipe"), "recompute": ("none", "full", "selective"),
        "micro_batch_size": ("1", "1,2", "4"), "cp": ("2", "4"),
    }  # fmt: skip
    while count:
        options = {kind: draw.choice(values) for kind, values in names.items()}
        options |= {name: draw.choice(values) for name, values in more.items() if draw.random() < 0.3}
        pins = {name: draw.choice(values) for name, values in fixed.items() if draw.random() < 0.4}
        gpus = draw.choice((4, 8, 16, 24, 32))
        try:
            spec = built(options.pop("model"), gpus, **options).spec
            rows = list(legal_candidates(spec, make_pins(pins), {}))
        except InputError:
            continue
        if rows and len(concatenate(rows)):
            count -= 1
            yield spec, sample(concatenate(rows), 150, seed=count)


@pytest.mark.parametrize("seed", range(8))
def test_hardware_a_little_better_never_slows_a_step(seed):
    """What the GPU no longer computes it waits for its CPU, or no longer hides a transfer behind; never both."""
    found = {
        (what, spec.model.name): more.max()
        for spec, rows in drawn_jobs(16, seed)
        for what in FASTER
        if (more := slower(rows, spec, what, 1.01)).max() > 1e-9
    }
    assert not found


def test_a_pass_that_launches_bind_hides_no_less_behind_a_faster_gpu():
    rows = legal("gpt3-1.3b", 16, framework="nemo")
    for what in FASTER:
        assert slower(rows, job("gpt3-1.3b", 16, framework="nemo"), what, 1.01).max() < 1e-9


def test_less_hidden_work_hides_less():
    transfer, work = np.array([4.0, 4.0, 4.0]), np.array([0.0, 3.0, 9.0])
    assert exposed_beside(transfer, work).tolist() == [4, 1, 0]
    assert exposed_pipelined(transfer, work, 4).tolist() == [4, 1 + 0.75, 1]
    assert exposed_pipelined(transfer, work, 1).tolist() == [4, 4, 4]
    assert exposed_buckets(transfer, work, np.full(3, 0.25)).tolist() == [4, 1, 1]


# -- pipeline --


def equal_stages(layers=32, gpus=8, **options):
    """A job whose embedding and LM head weigh nothing beside its layers."""
    spec = ideal(job("llama3-8b", gpus, **options))
    return replace(spec, vocab_multiple=1, model=replace(spec.model, vocab=1, pattern=(0,) * layers))


@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (8, 1), (4, 2), (4, 8), (8, 2), (8, 4)])
@pytest.mark.parametrize("batch", [32, 128])
def test_the_bubble_of_equal_stages(pp, vpp, batch):
    """Idle / ideal = (p - 1) / m, and 1/v of it interleaved (Narayanan et al. 2021, section 2.2)."""
    spec = equal_stages(gbs=batch)
    found = seconds(spec, pp=pp, vpp=vpp)
    count = batch // (8 // pp)
    work = sum(found[name] for name in ("gemm", "attention", "recompute", "elementwise", "launch"))
    assert found["bubble"] / work == pytest.approx((pp - 1) / count / vpp, rel=1e-3)
    assert work == pytest.approx(seconds(spec)["gemm"] + seconds(spec)["attention"], rel=1e-3)


def test_the_slowest_stage_sets_the_pace():
    """Nine layers on four stages: one of them has three, and every microbatch takes as long as it."""
    even, odd = equal_stages(layers=8, gbs=512), equal_stages(layers=9, gbs=512)
    ratio = seconds(odd, pp=4)["gemm"] / seconds(even, pp=4)["gemm"]
    assert ratio == pytest.approx(3 / 2, rel=1e-3)


def test_pipeline_transfers_grow_with_what_is_sent():
    spec = job("llama3-8b", 64, seq=32768, gbs=64)
    one = seconds(spec, pp=4)["pp_comm"]
    assert seconds(spec, pp=4, tp=4, sp=1)["pp_comm"] < one * 4  # 4 times the microbatches of a quarter each
    assert seconds(spec, pp=8)["pp_comm"] > 1.5 * one  # twice the microbatches per GPU


@pytest.mark.parametrize("batch", [16, 64])
def test_every_microbatch_waits_for_a_hop_each_way_and_so_does_each_stage_that_fills(batch):
    """The timetable of 1F1B: microbatches + stages - 1 slots on the way there, and as many on the way back."""
    spec = job("llama3-8b", 8, gbs=batch)
    hop_s = float(collective_time_s(spec.cluster, "sendrecv", 4096 * 4096 * 2, 2, 2))
    slots = batch // 2 + 4 - 1
    assert seconds(spec, pp=4)["pp_comm"] == pytest.approx(2 * slots * hop_s, rel=1e-9)


def test_interleaved_stages_show_the_latency_of_their_hops_and_fill_through_every_chunk():
    spec = ideal(job("llama3-8b", 8, gbs=16))  # a chunk takes longer than a hop
    hop_s, latency_s = (float(collective_time_s(spec.cluster, "sendrecv", size, 2, 2)) for size in (4096 * 4096 * 2, 1))
    found = seconds(spec, pp=4, vpp=2)["pp_comm"]
    assert found == pytest.approx(2 * 8 * 2 * latency_s + 2 * (4 * 2 - 1) * hop_s, rel=1e-9)


# -- data parallelism --


def with_runtime(spec, **changes):
    return replace(spec, runtime=replace(spec.runtime, **changes))


def half_precision_gradients(model, gpus, batch):
    spec = job(model, gpus, gbs=batch)
    return replace(spec, states=replace(spec.states, gradient=spec.states.weight))


def test_zero_3_moves_half_as_much_again_per_microbatch():
    """Rajbhandari et al. 2020, section 7.2: 3 psi instead of 2 psi, here for every microbatch."""
    spec = half_precision_gradients("llama3-8b", 64, 64)
    once = [seconds(spec, zero=zero)["dp_total"] for zero in (1, 2, 3)]
    assert once[1] == pytest.approx(once[0], rel=1e-12)
    assert once[2] == pytest.approx(1.5 * once[0], rel=1e-9)
    spec = half_precision_gradients("llama3-8b", 64, 8 * 64)
    often = [seconds(spec, zero=zero)["dp_total"] for zero in (1, 2, 3)]
    assert often[0] == pytest.approx(once[0], rel=1e-12)
    assert often[1] == pytest.approx(4.5 * once[0], rel=1e-9)  # 8 reductions, 1 gathering
    assert often[2] == pytest.approx(8 * once[2], rel=1e-9)


def test_gradients_reduced_in_the_last_microbatch_travel_once():
    spec = job("llama3-8b", 64, gbs=8 * 64)
    last = replace(spec, runtime=replace(spec.runtime, grad_reduce="last"))
    often, once, optimizer_only = (seconds(one, zero=zero) for one, zero in ((spec, 2), (last, 2), (spec, 1)))
    assert once["dp_total"] == pytest.approx(optimizer_only["dp_total"], rel=1e-12)
    assert once["dp_comm"] == pytest.approx(optimizer_only["dp_comm"], rel=1e-12)
    assert often["dp_total"] > 3 * once["dp_total"]
    gathers = seconds(spec, zero=3)["dp_total"] - seconds(last, zero=3)["dp_total"]
    assert gathers == pytest.approx(often["dp_total"] - once["dp_total"], rel=1e-9)  # of 8 reductions 7


def test_gradients_are_added_up_after_the_first_microbatch():
    spec = with_runtime(half_precision_gradients("llama3-8b", 64, 64), wgrad_fusion=False)
    assert seconds(spec)["elementwise"] == seconds(with_runtime(spec, wgrad_fusion=True))["elementwise"]
    apart = replace(spec, global_batch_size=8 * 64)
    fused = with_runtime(apart, wgrad_fusion=True)
    whole, shards = (seconds(apart, zero=z)["elementwise"] - seconds(fused, zero=z)["elementwise"] for z in (1, 3))
    gpu = spec.cluster.gpu
    bytes_per_s = gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction
    traffic_s = 7 * 6 * model_parameters(spec.model).total / bytes_per_s
    assert whole == pytest.approx(traffic_s, rel=0.05)
    assert 0 < shards < whole / 8


def test_weight_gradients_are_added_onto_sums_of_their_own_width():
    """Few tokens: the products are bound by memory, and read and write a sum of 4 or of 2 bytes per parameter."""
    wide, narrow = (job("llama3-8b", 64, gbs=64, seq=128, grad_dtype=name) for name in ("fp32", "bf16"))
    assert (wide.states.gradient, narrow.states.gradient) == (4, 2)
    fewer_s = seconds(wide)["gemm"] - seconds(narrow)["gemm"]
    gpu = wide.cluster.gpu
    embedding = 128256 * 4096  # looked up rather than multiplied
    bytes_ = 4 * (model_parameters(wide.model).total - embedding)
    assert fewer_s == pytest.approx(bytes_ / (gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction), rel=0.3)


def test_without_fusion_the_head_leaves_its_gradient_to_the_kernel_that_adds_up_all():
    spec = job("llama3-8b", 64, gbs=64, seq=128)  # few tokens: the product is bound by memory
    fused, apart = (
        lm_head(layout(one), one, NOTHING_SENT)[1]["gemm"].item()
        for one in (with_runtime(spec, wgrad_fusion=fusion) for fusion in (True, False))
    )
    assert apart < 0.9 * fused


def test_under_zero_3_the_first_gathering_and_the_last_reduction_always_show():
    """Of 32 layers one is gathered before anything is computed, and one is reduced when everything has been."""
    spec = ideal(job("llama3-8b", 8, gbs=16))  # a layer takes much longer than its transfers
    size = model_parameters(spec.model).total
    gather_s = float(collective_time_s(spec.cluster, "allgather", size * 2, 8, 1))
    reduce_s = float(collective_time_s(spec.cluster, "reducescatter", size * 4, 8, 1))
    found = seconds(spec, zero=3)
    hidden_s = found["dp_total"] - (gather_s + reduce_s) / 32
    assert found["dp_total"] == pytest.approx(2 * (2 * gather_s + reduce_s), rel=1e-3)  # two microbatches
    contention_s = hidden_s * 16 / spec.cluster.gpu.sm_count
    assert found["dp_comm"] - contention_s == pytest.approx((gather_s + reduce_s) / 32, rel=1e-2)


def test_gradients_of_half_the_size_are_reduced_in_about_half_the_time():
    spec = job("llama3-8b", 64, gbs=64)
    full, half = (seconds(one, zero=0)["dp_total"] for one in (spec, half_precision_gradients("llama3-8b", 64, 64)))
    assert half == pytest.approx(full / 2, rel=0.1)


@pytest.mark.parametrize(("model", "extra"), [("llama3-8b", {}), ("mixtral-8x7b", {}), ("mixtral-8x7b", {"ep": 2})])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_smaller_than_the_group_are_reduced_over_their_replicas_too(model, extra, zero):
    """Inside a node the shards are cheap, but gradients still cross the network: at least gradients / shard / rate."""
    spec = job(model, 64, gbs=64)
    rows = layout(spec, zero=zero, shard=8, **extra)
    step = evaluate(rows, spec).step
    counted = model_parameters(spec.model)
    own = (counted.layers - counted.experts * (1 - 1 / extra.get("ep", 1))) * spec.states.gradient / 8
    ring = 2 * own * (1 - 1 / 8) / spec.cluster.levels[1].link_bytes_per_s
    assert step.dp_total_s[0] > ring * 0.5  # SHARP sends half of what a ring does
    assert step.beside["dp_comm"][0] > 0


@pytest.mark.parametrize(("shard", "shown"), [(8, 1 / 32), (16, 0.9)])
def test_replicas_are_reduced_beside_the_shards_inside_the_node(shard, shown):
    """HSDP, 1 s each under a backward pass of 1.1 s: one layer's shards cross the network while the next layer is
    reduced over NVLink; where both need the network, one comes after the other."""
    spec = job("llama3-8b", 64, gbs=64)
    nothing, second = np.zeros(1), np.ones(1)
    transfers = Transfers(second, nothing, nothing, second, nothing, nothing, nothing, nothing, nothing)
    rows = layout(spec, zero=1, shard=shard)
    exposed, waited = unhidden_s(rows, spec, transfers, Cover(second, 1.1 * second, nothing))
    assert exposed[0] == pytest.approx(1 / 32 + shown, rel=1e-9)
    assert waited == 0


@pytest.mark.parametrize("zero", range(4))
def test_late_transfers_take_no_more_than_what_the_gpu_waits_in_any_case(zero):
    """In each microbatch; what shows of them does not depend on the waiting."""
    spec = job("llama3-8b", 64, gbs=256)
    rows, each = layout(spec, zero=zero), np.ones(1)
    transfers = Transfers(3 * each, 2 * each, 5 * each, each, 0 * each, 0 * each, each, 0 * each, 0 * each)
    shown = set()
    for wait_s in (0.0, 0.01, 0.5, 100.0):
        exposed, waited = unhidden_s(rows, spec, transfers, Cover(0.5 * each, 1.1 * each, wait_s * each))
        assert 0 <= waited[0] <= min(exposed[0], wait_s * rows.num_microbatches[0])
        assert waited[0] > 0 or not wait_s
        shown.add(float(exposed[0]))
    assert len(shown) == 1


def test_sharding_inside_the_node_is_faster_than_over_a_slow_network_for_many_microbatches():
    spec = with_level(job("llama3-8b", 64, gbs=64 * 16), 1, link_bytes_per_s=0.1, switch_bytes_per_s=0.1)
    assert seconds(spec, zero=3, shard=8)["dp_total"] < seconds(spec, zero=3)["dp_total"] / 3


def test_parameters_gathered_after_the_step_are_hidden_by_nothing():
    spec = job("llama3-8b", 64, gbs=8 * 64)
    after = replace(spec, runtime=replace(spec.runtime, gathers_after_step=True))
    size = 2.0 * model_parameters(spec.model).total
    gather_s = float(collective_time_s(spec.cluster, "allgather", size, 64, 1))
    hidden, shown = (seconds(one, zero=1)["dp_comm"] for one in (spec, after))
    assert hidden + 0.8 * gather_s < shown < hidden + gather_s  # but for the first layer's, which shows in any case
    assert seconds(after, zero=3) == seconds(spec, zero=3)
    piped = [replace(one, runtime=replace(one.runtime, rule_set="generic")) for one in (spec, after)]
    assert seconds(piped[0], zero=2, pp=2) == seconds(piped[1], zero=2, pp=2)  # FSDP that keeps its parameters


@pytest.mark.parametrize(("model", "sums"), [("llama3-8b", 1), ("mixtral-8x7b", 2)])
def test_the_gradient_norm_waits_for_all_gpus(model, sums):
    """One AllReduce of a number, two with experts; beside it gradients move 4 times, Adam's states twice, the master
    weight once more into the 16-bit one, and all gradients are cleared."""
    spec = job(model, 1024)
    moved = model_parameters(spec.model).total * (4 + (4 * 4 + 2 * 12 + 4 + 2) / 1024)
    traffic_s = float(stream_time_s(spec.cluster.gpu, np.array([moved]), 6)[0])
    latency_s = float(collective_time_s(spec.cluster, "allreduce", 4.0, 1024, 1))
    assert latency_s > 1e-5
    assert seconds(spec, zero=1)["optimizer"] == pytest.approx(traffic_s + sums * latency_s, rel=1e-6)


def test_the_optimizer_works_on_its_shard():
    spec = with_runtime(job("llama3-70b", 64, gbs=64), wgrad_fusion=False)
    whole, shared = (seconds(spec, tp=8, zero=zero)["optimizer"] for zero in (0, 1))
    assert whole / shared == pytest.approx(8, rel=0.05)


def test_the_cpu_loops_over_the_parameter_tensors_of_a_gpu_once_a_step():
    """Mixtral has 2 matrices of attention, the router and 2 norms per layer, and 2 matrices of each of 8 experts, which
    are tensors of their own only where grouped products loop over them."""
    spec, each_s = job("mixtral-8x7b", 64, gbs=64), 1e-3
    for expert_s, tensors in ((9e-6, 5 + 2 * 8), (0.0, 5 + 2)):
        slow = with_runtime(spec, host_expert_s=expert_s, host_tensor_s=each_s)
        fast = with_runtime(spec, host_expert_s=expert_s, host_tensor_s=0.0)
        for values, share in (({}, 1), ({"pp": 4}, 4), ({"micro_batch_size": 1}, 1)):
            more_s = seconds(slow, **values)["launch"] - seconds(fast, **values)["launch"]
            assert more_s == pytest.approx(32 / share * tensors * each_s)
    apart = with_runtime(spec, host_expert_s=9e-6, host_tensor_s=each_s)
    none = with_runtime(spec, host_expert_s=9e-6, host_tensor_s=0.0)
    more_s = seconds(apart, ep=8)["launch"] - seconds(none, ep=8)["launch"]
    assert more_s == pytest.approx(32 * (5 + 2) * each_s)


def test_gpus_differ_by_what_the_power_limit_takes_of_their_clocks():
    at_its_clock, limited = (
        with_gpu(job("llama3-8b", 64, gbs=64), {"sustained_clock_fraction": clock}) for clock in (1.0, 0.8)
    )
    found = seconds(limited)
    assert seconds(at_its_clock)["waiting"] == 0
    assert gpu_spread(limited.cluster.gpu) == pytest.approx(0.01)
    busy_s = sum(found[name] for name in ("gemm", "attention", "elementwise", "recompute"))
    assert found["waiting"] / busy_s == pytest.approx(slowest_share(64, 0.01), rel=0.05)


def test_megatron_until_2023_reduces_fp16_gradients_in_16_bits():
    options = {"cluster": "dgx-a100-superpod", "gbs": 512, "framework": "megatron-lm@2021-06"}
    jobs = (job("megatron-8.67b", 512, precision=name, **options) for name in ("fp16", "bf16"))
    half, whole = (seconds(one, tp=8)["dp_total"] for one in jobs)
    assert whole / half == pytest.approx(2, rel=0.05)


def bytes_moved(spec, component, **values):
    """Memory traffic of a component in a step, where launches cost nothing."""
    spec = with_gpu(spec, {"kernel_overhead_s": 0.0})
    gpu = spec.cluster.gpu
    return seconds(spec, **values)[component] * gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction


def test_sums_are_cleared_and_the_scale_of_fp16_is_taken_out():
    """4 bytes per parameter of the GPU to clear fp32 sums, 8 of what it updates for the loss scale."""
    spec = job("gpt3-1.3b", 8, gbs=64)
    parameters = model_parameters(spec.model).total
    apart = with_runtime(spec, wgrad_fusion=False)
    whole, shared, scaled = (
        bytes_moved(one, "optimizer", zero=stage) - bytes_moved(other, "optimizer", zero=stage)
        for one, other, stage in ((spec, apart, 0), (spec, apart, 1), (replace(spec, precision="fp16"), spec, 1))
    )
    assert [whole, shared, scaled] == pytest.approx([4 * parameters, 4 * parameters, parameters], rel=0.01)
    assert bytes_moved(spec, "optimizer", zero=2) == bytes_moved(apart, "optimizer", zero=2)  # only shards are kept


@pytest.mark.parametrize(
    ("changes", "per_token"),
    [
        ({"dropout": True}, 2 * (1 + 5)),  # behind both blocks; fused attention has none
        ({"compile": True}, -2 * 2 * 2),  # both norms add onto the gradient of the residual
        ({"eager": ("bias",)}, 3 * 2 * 2 + 2 * (3 + 1 + 4 + 1)),  # of queries, keys and values; gradients of all
    ],
)
def test_dropout_biases_and_gradients_of_the_residual_are_traffic(changes, per_token):
    spec = job("gpt3-1.3b", 8, gbs=64)
    layers = 24 * spec.sequence * 64 / 8 * 2048  # tokens of a GPU
    more = bytes_moved(with_runtime(spec, **changes), "elementwise") - bytes_moved(spec, "elementwise")
    assert more / layers == pytest.approx(per_token, rel=0.05)


def test_unfused_attention_orders_its_output_and_joins_gradients():
    """Read and written in 16 bits: the output, its gradient, the gradients of queries, keys and values."""
    spec = with_runtime(job("gpt3-1.3b", 8, gbs=64), attention="unfused")
    kind = spec.model.kinds[0]
    twice = replace(kind.attention, head_dim=256, value_head_dim=256)
    wider = replace(spec, model=replace(spec.model, kinds=(replace(kind, attention=twice),)))
    layers = 24 * spec.sequence * 64 / 8 * 2048
    more = bytes_moved(wider, "elementwise") - bytes_moved(spec, "elementwise")
    assert more / layers == pytest.approx((1 + 1 + 3) * 4, rel=0.01)


# -- experts --


def test_imbalance_slows_experts_and_their_exchange():
    even, uneven = (job("mixtral-8x7b", 64, moe_imbalance=factor) for factor in (1.0, 2.0))
    found, slower = seconds(even, ep=8), seconds(uneven, ep=8)
    assert slower["gemm"] > 1.4 * found["gemm"]
    assert slower["ep_comm"] > 1.5 * found["ep_comm"]
    assert seconds(uneven)["gemm"] == seconds(even)["gemm"]


def test_an_overlapped_exchange_is_hidden_and_the_cpu_issues_both_passes_without_lead():
    spec = job("qwen3-235b-a22b", 64, cluster="gb200-nvl72")
    counts, experts = 94 * spec.global_batch_size / 64, 2 * 128 / 32 * spec.runtime.host_expert_s  # a GPU's products
    for graphs, share in (("none", 1.0), ("partial", UNGRAPHED_SHARE), ("full", 0.0)):
        shown = seconds(with_runtime(spec, cuda_graphs=graphs), ep=32)
        hidden = seconds(with_runtime(spec, overlap_ep=True, cuda_graphs=graphs), ep=32)
        assert 0 < hidden["ep_comm"] < 0.2 * shown["ep_comm"]  # what is left is what its SMs cost the computation
        more = hidden["launch"] - shown["launch"]
        issued = spec.runtime.host_moe_s * share + experts * (share > 0)
        assert more == pytest.approx(counts * issued, abs=1e-9)


@pytest.mark.parametrize("waits_s", [0.0, 0.4, 3.0])
def test_each_part_of_an_exchange_hides_beside_its_own_computation(waits_s):
    """The combination of the backward pass runs beside the attention of the forward pass, here half as long: 1 s of 8
    shows, as far as the GPU does not wait for the CPU, and 16 of 132 SMs slow down what hides the others. What TP sends
    hides nothing."""
    spec = with_runtime(job("mixtral-8x7b", 64), overlap_ep=True)
    rows, none = layout(spec, ep=8), np.zeros(1)
    attention = Segment({"gemm": np.full(1, 1.0), "tp_comm": np.full(1, 9.0)}, {"gemm": np.full(1, 2.0)}, 1)
    experts = Segment(
        {"gemm": np.full(1, 2.0), "launch": np.full(1, waits_s), "ep_comm": np.full(1, 4.0)},
        {"gemm": np.full(1, 6.0), "launch": none, "ep_comm": np.full(1, 4.0)}, 1, modules=MOE,
    )  # fmt: skip
    passes = [[getattr(one, name) for one in (attention, experts)] for name in ("forward", "backward")]
    forward, backward = _with_hidden_exchange((attention, experts), *passes, rows, spec)
    rest = rows.num_microbatches[0] - 1
    shown_s = (max(1 - waits_s, 0) + 7 * 16 / 132) * rest / (rest + 1) + 8 / (rest + 1)
    assert forward["ep_comm"][0] + backward["ep_comm"][0] == pytest.approx(shown_s)


@pytest.mark.parametrize("sp", [0, 1])
def test_products_beside_a_collective_of_tensor_parallelism_lose_its_sms(sp, monkeypatch):
    spec = with_runtime(job("llama3-70b", 64), overlap_tp=False, async_tp_reduce=True)
    found = seconds(spec, tp=8, sp=sp)["tp_comm"]
    monkeypatch.setattr("gpuscale.steptime.components.COMMUNICATION_SMS", 0)
    free = seconds(spec, tp=8, sp=sp)["tp_comm"]
    assert 1.01 * free < found < 1.2 * free


@pytest.mark.parametrize("cluster", ["dgx-h100-superpod", "gb200-nvl72"])
def test_what_the_cpu_issues_after_waiting_for_counts_adds_to_the_gpu_s_time(cluster):
    spec = with_runtime(job("qwen3-30b-a3b", 64, cluster=cluster), host_expert_s=0.0)
    microbatches, layers = spec.global_batch_size / 64 / 4, 48

    def waits(ep=8, **runtime):
        here, layout = with_runtime(spec, **runtime), {"ep": ep, "micro_batch_size": 4}
        return seconds(here, **layout)["launch"] - seconds(with_runtime(here, host_moe_s=0.0), **layout)["launch"]

    once = microbatches * layers * spec.runtime.host_moe_s  # the backward pass knows the counts
    assert waits() == waits(ep=16) == pytest.approx(once)
    assert waits(cuda_graphs="partial") == pytest.approx(once * UNGRAPHED_SHARE)
    assert waits(cuda_graphs="full", routing="dropping") == waits(routing="dropping") == 0
    if cluster == "gb200-nvl72":
        assert waits(cuda_graphs="full", dispatcher="hybridep") == 0
    assert waits(ep=1) == pytest.approx(waits(sizes_on_gpu=True))
    assert waits(ep=1, sizes_on_gpu=True) == 0


def test_only_an_alltoall_sorts_the_copies_of_tokens_that_leave():
    spec = job("qwen3-30b-a3b", 64)
    rows, shape = {}, {"micro_batch_size": 4}
    for ep in (1, 8):
        for dispatcher in ("alltoall", "deepep", "hybridep"):
            rows[ep, dispatcher] = seconds(with_runtime(spec, dispatcher=dispatcher), ep=ep, **shape)["elementwise"]
    copies = 4 * 4096 * 8 * 2048  # of a microbatch, in elements
    gpu, counts = spec.cluster.gpu, 48 * spec.global_batch_size / 64 / 4
    sorting_s = counts * copies * (8 + 8) / (gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction)
    assert rows[8, "alltoall"] - rows[8, "deepep"] == pytest.approx(sorting_s)
    assert rows[8, "hybridep"] == rows[8, "deepep"]
    assert rows[1, "alltoall"] == rows[1, "deepep"]


def test_copies_for_a_rank_s_only_expert_arrive_in_order():
    """They are sorted where they leave, by 8 bytes each way, and not once more behind the AllToAll."""
    spec = with_runtime(job("mixtral-8x7b", 64), dispatcher="alltoall")
    one, two = (seconds(spec, ep=ep)["elementwise"] for ep in (8, 4))
    copies = 32 * spec.global_batch_size / 64 * spec.sequence * 2 * 4096  # layers, sequences of a GPU, top 2, hidden
    gpu = spec.cluster.gpu
    sorting_s = copies * (8 + 8) / (gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction)
    assert two - one == pytest.approx(sorting_s, rel=0.01)


@pytest.mark.parametrize(("precision", "kernels"), [("bf16", 1), ("mxfp8", 3), ("nvfp4", 4)])
def test_partial_graphs_leave_the_products_and_casts_of_each_expert_to_the_cpu(precision, kernels):
    """One product, below 16 bits with its casts, for each of two inputs of an expert; many experts cost more."""
    spec = with_runtime(
        job("qwen3-30b-a3b", 64, cluster="gb200-nvl72", precision=precision), cuda_graphs="partial", host_tensor_s=0.0
    )
    counts = 48 * spec.global_batch_size / 64 / 4
    at_once = with_runtime(spec, host_expert_s=0.0)
    for ep, experts in ((8, 16), (64, 2)):
        one_by_one, free = (seconds(here, ep=ep, micro_batch_size=4)["launch"] for here in (spec, at_once))
        assert one_by_one - free == pytest.approx(counts * 2 * kernels * experts * 9e-6)


def test_a_small_mixture_with_few_tokens_takes_as_long_as_its_launches():
    spec = replace(job("qwen3-30b-a3b", 64, gbs=64), sequence=64)
    spec = with_runtime(spec, host_tensor_s=0.0)
    passes = 2 * 48 * spec.runtime.host_moe_s
    assert seconds(spec, ep=8)["launch"] > 0.7 * passes
    assert seconds(with_runtime(spec, cuda_graphs="partial"), ep=8)["launch"] < 0.5 * passes
    assert seconds(with_runtime(spec, cuda_graphs="full", routing="dropping"), ep=8)["launch"] < 0.1 * passes


def test_recomputed_modules_are_launched_and_wait_for_their_counts_again():
    spec = with_runtime(job("qwen3-30b-a3b", 64), host_tensor_s=0.0)
    free = with_runtime(spec, host_moe_s=0.0, host_expert_s=0.0)
    again = {"recompute": "selective:moe"}
    waits, more = (
        seconds(spec, ep=8, **what)["launch"] - seconds(free, ep=8, **what)["launch"] for what in ({}, again)
    )
    assert more == pytest.approx(2 * waits)
    kernels = with_runtime(free, host_layer_s=0.0, host_collective_s=0.0)
    assert seconds(kernels, ep=8, **again)["launch"] > seconds(kernels, ep=8)["launch"]


def test_biases_of_experts_move_a_hundred_bytes_per_element():
    spec = job("gpt-oss-20b", 8, gbs=64)
    kinds = tuple(replace(kind, moe=replace(kind.moe, expert_bias=False)) for kind in spec.model.kinds)
    plain = replace(spec, model=replace(spec.model, kinds=kinds))
    more = seconds(spec, ep=8)["elementwise"] - seconds(plain, ep=8)["elementwise"]
    elements = 24 * 64 / 8 * spec.sequence * 4 * 2880  # layers, sequences of a GPU, tokens, top 4, hidden = ffn
    gpu = spec.cluster.gpu
    bytes_per_s = gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction
    assert more * bytes_per_s / elements == pytest.approx(28 + 40 + 16 + 20, rel=0.05)


def test_what_router_exchange_and_shared_experts_send_back_to_their_input_is_summed(monkeypatch):
    """Two sums of three passes backward and one of outputs forward; without shared experts one; none compiled."""

    def sums_s(spec):
        with_sums = seconds(spec, ep=8, micro_batch_size=8)["elementwise"]
        with monkeypatch.context() as none:
            none.setattr(blocks, "SUM_PASSES", 0)
            return with_sums - seconds(spec, ep=8, micro_batch_size=8)["elementwise"]

    for model, layers, hidden, passes in (("deepseek-v2-lite", 26, 2048, 9), ("qwen3-30b-a3b", 48, 2048, 3)):
        spec = job(model, 8, gbs=64)
        elements = layers * 64 / 8 * spec.sequence * hidden
        gpu = spec.cluster.gpu
        bytes_per_s = gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction
        assert sums_s(spec) * bytes_per_s / elements == pytest.approx(2 * passes, rel=0.05)
        assert sums_s(with_runtime(spec, compile=True)) == 0


@pytest.mark.parametrize(
    ("compiled", "moved"),
    [(None, 2 * 16 + 28 + 40 + 16 + 20), (True, 2 * 16 + 4 + 2), (False, 30 + 46 + 8 + 4 + 36 + 76)],
)
def test_what_fuses_kernels_says_what_experts_move(compiled, moved):
    spec = with_runtime(job("gpt-oss-20b", 8, gbs=64), compile=compiled, eager=())
    kinds = tuple(replace(kind, moe=replace(kind.moe, top_k=3)) for kind in spec.model.kinds)
    fewer = replace(spec, model=replace(spec.model, kinds=kinds))
    plain = 3 * 2 + 5 * 2 + (8 if compiled is False else 0)  # the activation itself
    elements = 24 * 64 / 8 * spec.sequence * 2880  # layers, sequences of a GPU, tokens, hidden = ffn
    gpu = spec.cluster.gpu
    bytes_per_s = gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction
    one_choice = seconds(spec)["elementwise"] - seconds(fewer)["elementwise"]
    assert one_choice * bytes_per_s / elements == pytest.approx(moved + plain, rel=0.02)


@pytest.mark.parametrize(("model", "ratio"), [("nemotron-3-super", 1.93), ("qwen3-30b-a3b", 1.28)])
def test_hybridep_sends_probabilities_and_choices_beside_tokens(model, ratio, monkeypatch):
    """512 fp32 probabilities for a rack's experts are as long as 1024 elements of a token: two exchanges of four take
    twice as long, and all ranks' choices (134 MB) are gathered. 128 are an eighth of 2048 elements, choices 34 MB."""
    spec = job(model, 64, cluster="gb200-nvl72", gbs=64, dispatcher="hybridep")
    beside = seconds(spec, ep=64)
    monkeypatch.setattr(blocks, "PROBABILITY_BYTES", 0)
    monkeypatch.setattr(blocks, "ROUTING_BYTES", 0)
    tokens_only = seconds(spec, ep=64)
    assert beside["ep_comm"] / tokens_only["ep_comm"] == pytest.approx(ratio, rel=0.06)


def test_expert_parallelism_over_the_network_costs_more_than_inside_a_node():
    spec = job("qwen3-30b-a3b", 128)
    assert seconds(spec, ep=64)["ep_comm"] > 2 * seconds(spec, ep=8)["ep_comm"]


@pytest.mark.parametrize("targets", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (8, 8), (8, 4), (8, 3)])
def test_distinct_targets_are_those_of_drawn_tokens(targets, groups, top_groups):
    experts, choices, draws = 64, 8, 8000
    target = np.sort(drawn_experts(experts, choices, draws, groups, top_groups) * targets // experts, axis=1)
    reached = draws + np.count_nonzero(np.diff(target, axis=1))
    found = distinct_targets(np.array([targets]), Routing(choices, groups, top_groups, experts))
    assert found[0] == pytest.approx(reached / draws, rel=0.01)


@cache
def drawn_experts(experts, choices, draws, groups, top_groups):
    """Experts of each drawn token, shape (draws, choices), within the groups that a router limited to some chose."""
    random = np.random.default_rng(1)
    drawn = []
    for _ in range(draws):
        chosen = random.permutation(groups)[:top_groups]
        eligible = (chosen[:, None] * (experts // groups) + np.arange(experts // groups)).reshape(-1)
        drawn.append(random.choice(eligible, choices, replace=False))
    return np.array(drawn)


def test_a_router_limited_to_half_of_the_groups_crosses_the_network_less():
    spec = job("deepseek-v3", 1024, gbs=1024)
    kinds = tuple(
        replace(kind, moe=kind.moe and replace(kind.moe, groups=1, top_groups=1)) for kind in spec.model.kinds
    )
    free = replace(spec, model=replace(spec.model, kinds=kinds, mtp=None))
    limited = replace(spec, model=replace(spec.model, mtp=None))
    share = seconds(limited, ep=64, pp=8)["ep_comm"] / seconds(free, ep=64, pp=8)["ep_comm"]
    assert share == pytest.approx(3.6 / 5.25, rel=0.03)  # nodes of eight that a token reaches


def under_ddp(spec, **changes):
    """The same job where plain data parallelism runs under PyTorch DDP and nothing else overlaps."""
    runtime = replace(spec.runtime, overlap_grad_reduce=False, overlap_param_gather=False, **changes)
    return replace(spec, runtime=runtime)


def test_ddp_hides_the_reduction_of_gradients_only_without_zero():
    spec = job("llama3-8b", 64, gbs=64)
    plain, ddp = under_ddp(spec), under_ddp(spec, ddp_without_zero=True)
    replicated, sharded = ({"tp": 8, "zero": stage, "micro_batch_size": 8} for stage in (0, 1))
    assert seconds(ddp, **replicated)["dp_comm"] < 0.5 * seconds(plain, **replicated)["dp_comm"]
    assert seconds(ddp, **sharded)["dp_comm"] == seconds(plain, **sharded)["dp_comm"]
    # many small buckets take longer than one whole before anything is hidden
    assert seconds(ddp, **replicated)["dp_total"] > seconds(plain, **replicated)["dp_total"]


def test_sharding_every_tensor_costs_one_copy_per_tensor_and_rank():
    spec = job("llama3-8b", 64, gbs=64)
    slicing = replace(spec, runtime=replace(spec.runtime, host_shard_s=1e-5))
    for values, copies in (({"tp": 8, "zero": 1}, 6 * 32 * 8), ({"tp": 4, "pp": 2, "zero": 1}, 6 * 16 * 8)):
        more = seconds(slicing, **values)["dp_comm"] - seconds(spec, **values)["dp_comm"]
        assert more == pytest.approx(copies * 1e-5)
    assert seconds(slicing, tp=8, zero=0) == seconds(spec, tp=8, zero=0)


def test_gradients_travel_in_the_precision_that_the_framework_reduces_in():
    spec = job("gpt3-6.7b", 16, gbs=16, framework="megatron-deepspeed")
    half = replace(spec, precision="fp16")
    assert (spec.reduced_gradient_bytes, half.reduced_gradient_bytes) == (4.0, 2.0)
    ratio = seconds(half, tp=8, zero=0)["dp_comm"] / seconds(spec, tp=8, zero=0)["dp_comm"]
    assert 0.48 < ratio < 0.6


def test_collectives_that_wait_for_their_ranks_slow_tensor_parallelism_by_their_number():
    spec = job("llama3-8b", 16, gbs=64, framework="nanotron")
    waiting = replace(spec, cluster=replace(spec.cluster, rank_overhead_s=1e-3))
    assert seconds(waiting, tp=1, pp=2, zero=0)["launch"] == seconds(spec, tp=1, pp=2, zero=0)["launch"]
    for tp in (2, 4, 8):
        values = {"tp": tp, "zero": 1, "micro_batch_size": 1}
        issue_s = 8 * tp * 1e-3 * 32 * (64 * tp // 16)  # eight collectives a layer and microbatch
        assert seconds(waiting, **values)["total"] > issue_s > seconds(spec, **values)["launch"]


def test_every_collective_of_a_layer_switches_streams_twice():
    spec = job("llama3-8b", 8, gbs=64)
    idle_cpu = replace(spec, runtime=replace(spec.runtime, host_layer_s=0.0, host_collective_s=0.0))
    alone, cut = (seconds(idle_cpu, tp=tp, zero=0, micro_batch_size=64 * tp // 64)["launch"] for tp in (1, 8))
    assert cut - alone == pytest.approx(8 * 8e-6 * 32 * 8)  # eight collectives in each of 32 layers and 8 microbatches


def test_a_step_that_fits_only_with_luck_waits_for_the_allocator():
    spec = job("llama3-8b", 64, gbs=64, framework="nanotron")
    fitting = layout(spec, tp=8, zero=1)
    used = evaluate(fitting, spec).memory
    tensors, fragments = (float(value.max()) for value in (used.by_stage - used.fragmentation, used.fragmentation))
    share = [float(used.allocator_retries(tensors + times * fragments)[0]) for times in (0.5, 1.25, 1.6)]
    assert share == pytest.approx([1.0, 0.5, 0.0], abs=0.01)
    assert used.allocator_retries(0.9 * tensors)[0] == 0.0
    tight = with_gpu(spec, memory_bytes=tensors + 0.5 * fragments)
    late = evaluate(fitting, tight).step.step_time_s - evaluate(fitting, spec).step.step_time_s
    assert late[0] == pytest.approx(1.2 * fitting.num_microbatches[0])


@pytest.mark.parametrize("sp", [0, 1])
def test_a_vocabulary_cut_over_tp_communicates_at_both_ends(sp):
    """What no layer sends: rows of the embedding, the hidden state before the LM head (gathered again for the weights'
    gradient), and three sums of the loss; nothing hides it where products take no time."""
    times = {}
    for layers in (8, 16):
        spec = job("llama3-8b", 8)
        spec = replace(spec, model=replace(spec.model, pattern=(0,) * layers))
        spec = replace(spec, cluster=replace(spec.cluster, gpu=instant(spec.cluster.gpu)))
        spec = replace(spec, runtime=replace(spec.runtime, overlap_tp=False, async_tp_reduce=False))
        times[layers] = seconds(spec, tp=8, sp=sp, zero=0)["tp_comm"]
    hidden_bytes, sum_bytes = spec.sequence * spec.model.hidden * 2, 4.0 * spec.sequence
    names = ["allgather", "reducescatter", "allgather", "reducescatter", "allgather"] if sp else ["allreduce"] * 2
    ends_s = sum(float(collective_time_s(spec.cluster, name, hidden_bytes, 8)) for name in names)
    ends_s += 3 * float(collective_time_s(spec.cluster, "allreduce", sum_bytes, 8))
    microbatches = spec.global_batch_size
    assert 2 * times[8] - times[16] == pytest.approx(ends_s * microbatches, rel=1e-6)


def runtime(spec, **changes):
    return replace(spec, runtime=replace(spec.runtime, **changes))


@pytest.mark.parametrize(
    ("changes", "forward_bytes", "backward_bytes"),
    [
        ({"loss": "standard"}, 6 + 4 + 8 + 8 + 4 + 8, 8 + 6),  # Megatron-LM's chain of operations in place
        ({"loss": "standard", "compile": True}, 6 + 8, 4 + 4 + 2),  # cast and maximum, exponential and sum
        ({"loss": "fused"}, 2 + 2, 2 + 2),  # reads and writes 16-bit logits once in each direction
        ({"eager": ("loss",)}, 6 + 4 + 8 + 8 + 4 + 8, 8 + 8 + 6),  # every step its own tensor
    ],
)
def test_the_cross_entropy_takes_its_traffic_per_logit(changes, forward_bytes, backward_bytes):
    spec = runtime(job("llama3-8b", 8), **changes)
    gpu, logits = spec.cluster.gpu, 4096 * 128_256
    passes = lm_head(layout(spec), spec, NOTHING_SENT)
    for each, moved, kernels in zip(passes, (forward_bytes, backward_bytes), (4, 2), strict=True):
        rate = gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction
        assert each["elementwise"][0] == pytest.approx(logits * moved / rate + kernels * gpu.kernels.kernel_overhead_s)


def test_every_prediction_module_has_a_head_and_a_loss_of_its_own():
    spec = job("deepseek-v3", 64)
    plain = replace(spec, model=replace(spec.model, mtp=None))
    (forward, backward), one = (lm_head(layout(each, ep=64), each, NOTHING_SENT) for each in (spec, plain))
    for both, alone in zip((forward, backward), one, strict=True):
        assert [both[name][0] for name in ("gemm", "elementwise")] == [
            2 * alone[name][0] for name in ("gemm", "elementwise")
        ]
    assert forward["launch"] == one[0]["launch"]  # the CPU waits once


def test_tp_ranks_send_their_part_of_a_pipeline_transfer_and_gather_it():
    spec = job("gpt3-6.7b", 64, gbs=64, framework="megatron-lm@2021-12")
    whole = runtime(spec, scatter_pipeline=False)
    values = {"tp": 8, "pp": 8, "sp": 0, "zero": 0}
    sent, all_sent = seconds(spec, **values)["pp_comm"], seconds(whole, **values)["pp_comm"]
    size = 2048 * 4096 * 2
    hop, part = (float(collective_time_s(spec.cluster, "sendrecv", size / cut, 2, 8)) for cut in (1, 8))
    gather = float(collective_time_s(spec.cluster, "allgather", size, 8, 1))
    assert sent / all_sent == pytest.approx((part + gather) / hop, rel=1e-6)
    assert seconds(spec, tp=1, pp=8, zero=0) == seconds(whole, tp=1, pp=8, zero=0)


def test_four_heads_fit_the_fused_softmax_kernel():
    """GPT-3 6.7B has 32 heads: over TP 16 two for each sequence, a chain of operations in place of one kernel."""
    spec = job("gpt3-6.7b", 64, gbs=64, framework="megatron-lm@2021-12")
    pair, four = (seconds(spec, tp=16, sp=0, zero=0, micro_batch_size=size) for size in (1, 2))
    assert pair["elementwise"] > 1.3 * four["elementwise"]
    scores, layers, microbatches = 2 * 2048**2, 32, 16
    chain = scores * layers * microbatches * (37 + 41 - 4 - 6) / (2039e9 * 0.85)
    assert pair["elementwise"] - four["elementwise"] == pytest.approx(chain, rel=0.5)


def test_tied_embeddings_add_up_their_gradients_over_the_pipeline():
    spec = job("gpt3-6.7b", 64, gbs=64)
    assert spec.model.tied_embeddings
    untied = replace(spec, model=replace(spec.model, tied_embeddings=False))
    values = {"tp": 8, "pp": 8, "zero": 0}
    size = 51200 / 8 * 4096 * 4
    expected = float(collective_time_s(spec.cluster, "allreduce", size, 2, 8 * 7))
    assert seconds(spec, **values)["dp_comm"] - seconds(untied, **values)["dp_comm"] == pytest.approx(expected)
    assert tied_embedding_s(layout(spec, tp=8), spec)[0] == 0


def test_gradients_that_are_reduced_whole_take_twice_as_long():
    spec = job("gpt3-6.7b", 64, gbs=64)
    whole = runtime(spec, reduced_whole=("bf16",))
    values = {"tp": 8, "zero": 1}
    assert 1.2 < seconds(whole, **values)["dp_total"] / seconds(spec, **values)["dp_total"] < 2
    assert seconds(replace(whole, precision="fp16"), **values)["dp_total"] == seconds(spec, **values)["dp_total"]


def test_tp_ranks_wait_for_one_another_where_cpu_and_gpu_are_equal():
    issue, gpu = np.array([1.0, 1.0, 1.0, 4.0]), np.array([1.0, 1.0, 4.0, 1.0])
    found = waiting_for_cpu_s(issue, gpu, np.array([1, 2, 2, 2]))
    assert found[:2] == pytest.approx([0.0, 2 ** (1 / 6) - 1])
    assert 0 < found[2] < 1e-3
    assert found[3] == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize(
    ("cluster", "tp", "hidden"),
    [
        ("dgx-h100-superpod", 8, True),
        ("dgx-h100-superpod", 16, False),
        ("gb200-nvl72", 8, True),
        ("box-a100-pcie-pairs", 4, False),
    ],
)
def test_tensor_parallel_collectives_are_pipelined_only_inside_an_nvlink_domain(cluster, tp, hidden):
    spec = job("llama3-8b", min(32, load_cluster(cluster).gpus), cluster=cluster)
    plain = replace(spec, runtime=replace(spec.runtime, overlap_tp=False))
    exposed = [seconds(one, tp=tp, sp=True)["tp_comm"] for one in (spec, plain)]
    assert (exposed[0] < 0.9 * exposed[1]) if hidden else (exposed[0] == exposed[1] > 0)


@pytest.mark.parametrize(
    ("framework", "gpu", "kernels"),
    [
        ("megatron-lm", "h100", "native"), ("megatron-lm", "v100", "unfused"),
        ("megatron-lm@2025-01", "v100", "unfused"), ("megatron-lm@2024-03", "v100", "unfused"),
        ("megatron-lm@2024-03", "b200", "native"),
        ("megatron-lm@2024-03", "h100", "cudnn8"), ("pytorch", "h100", "native"), ("pytorch", "a100", "flash2"),
        ("pytorch@2025-06", "h100", "flash2"), ("pytorch@2025-06", "v100", "flash1"),
        ("torchtitan", "b200", "flash2"), ("torchtitan@2025-12", "h100", "native"),
        ("torchtitan@2025-08", "h100", "flash2"), ("torchtitan@2025-08", "b200", "native"),
        ("torchtitan@2025-01", "b200", "flash2"), ("nanotron", "mi300x", "native"),
        ("prime-rl", "b200", "flash2"), ("prime-rl", "h100", "native"),
    ],
)  # fmt: skip
def test_attention_kernels_follow_from_framework_month_and_gpu(framework, gpu, kernels):
    spec = job("llama3-8b", 8, framework=framework)
    assert replace(spec, cluster=replace(spec.cluster, gpu=load_gpu(gpu))).attention == kernels


@pytest.mark.parametrize(
    ("framework", "model", "gpu", "kernels"),
    [
        ("megatron-lm@2025-07", "deepseek-v3", "gb200", "unfused"), ("megatron-lm", "deepseek-v3", "gb200", "native"),
        ("megatron-lm@2025-07", "deepseek-v3", "h100", "native"), ("nemo@2025-07", "llama3-8b", "gb200", "native"),
    ],
)  # fmt: skip
def test_latent_attention_on_blackwell_was_not_fused_before_cudnn_9_11(framework, model, gpu, kernels):
    spec = job(model, 512, framework=framework)
    assert replace(spec, cluster=replace(spec.cluster, gpu=load_gpu(gpu))).attention == kernels


@pytest.mark.parametrize(
    ("model", "cluster", "asked", "kernels"),
    [
        ("llama3-8b", "dgx-h100-superpod", "fa3", "native"),
        ("llama3-8b", "dgx-h100-superpod", "fa2", "flash2"),
        ("llama3-8b", "b200-hgx", "fa4", "native"),
        ("llama3-8b", "dgx-a100-superpod", "cudnn", "native"),
        ("llama3-8b", "dgx-a100-superpod", "eager", "unfused"),
        ("llama3-8b", "b200-hgx", "flex", "flash2"),
        ("deepseek-v3", "b200-hgx", "flex", "native"),
        ("deepseek-v3", "dgx-h100-superpod", "flex", "flash2"),
        ("llama3-8b", "mi300x", "fa2", "native"),
    ],
)
def test_attention_kernels_are_those_asked_for(model, cluster, asked, kernels):
    assert job(model, 64, cluster=cluster, attention=asked).attention == kernels


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        ("dgx-a100-superpod", "fa3"),
        ("b200-hgx", "fa3"),
        ("dgx-a100-superpod", "fa4"),
        ("mi300x", "cudnn"),
        ("mi300x", "fa3"),
        ("dgx1-v100", "fa2"),
        ("dgx1-v100", "cudnn"),
    ],
)
def test_attention_kernels_of_other_gpus_are_refused(cluster, asked):
    with pytest.raises(InputError, match=f"{asked} does not run on") as found:
        job("llama3-8b", 64, cluster=cluster, attention=asked)
    assert found.value.field == "attention"
    hinted = found.value.hint.removeprefix("choose ").replace(" or ", ", ").split(", ")
    assert asked not in hinted
    for other in hinted:
        job("llama3-8b", 64, cluster=cluster, attention=other)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_kernels_for_16_bits_are_refused_for_32(precision):
    for asked in ("fa2", "fa3", "fa4", "cudnn"):
        with pytest.raises(InputError, match=f"{asked} takes no operands of 32 bits, as {precision} has them") as found:
            job("llama3-8b", 64, attention=asked, precision=precision)
        assert found.value.hint == "choose sdpa or eager"
    kernels = [job("llama3-8b", 64, attention=asked, precision=precision).attention for asked in ("sdpa", "eager")]
    assert kernels == ["flash1", "unfused"]


def test_pytorch_leaves_windows_and_sinks_to_flex_attention():
    spec = job("gpt-oss-20b", 8, framework="torchtitan@2025-12")
    assert {spec.attention_of(kind.attention) for kind in spec.model.kinds} == {"flash2"}
    assert spec.attention == "native"
    other = replace(spec, cluster=load_cluster("mi300x"))
    assert {other.attention_of(kind.attention) for kind in spec.model.kinds} == {"native"}


def test_flash_attention_4_runs_windows_and_sinks_in_loops_of_pytorch_since_march_2026():
    kernels = {}
    for month in ("2026-02", "2026-03"):
        for cluster in ("b300-hgx", "dgx-h100-superpod", "dgx-a100-superpod"):
            spec = job("gpt-oss-20b", 8, framework=f"pytorch@{month}", cluster=cluster)
            kernels[month, cluster] = {spec.attention_of(kind.attention) for kind in spec.model.kinds}
    assert kernels == {
        ("2026-02", "b300-hgx"): {"flash2"},
        ("2026-02", "dgx-h100-superpod"): {"flash2"},
        ("2026-02", "dgx-a100-superpod"): {"flash2"},
        ("2026-03", "b300-hgx"): {"native"},
        ("2026-03", "dgx-h100-superpod"): {"native"},
        ("2026-03", "dgx-a100-superpod"): {"flash2"},
    }


def test_training_in_32_bits_doubles_traffic_and_runs_at_the_rates_of_its_precision():
    """Megatron-LM without --bf16: no fused attention takes 32-bit operands, weights are their own masters."""
    asked = {"cluster": "dgx-a100-superpod"}
    half, tf32, full = (job("gpt3-1.3b", 8, precision=name, **asked) for name in ("bf16", "tf32", "fp32"))
    assert (full.states.weight, full.states.master, full.states.gradient, full.activation_bytes) == (4, 0, 4, 4)
    assert (half.attention, full.attention) == ("native", "unfused")
    fastest, middle, slowest = (seconds(spec, tp=2) for spec in (half, tf32, full))
    assert middle["gemm"] == pytest.approx(2 * fastest["gemm"], rel=0.06)
    assert slowest["gemm"] == pytest.approx(middle["gemm"] * 0.836 * 156 / (0.85 * 19.5), rel=0.1)
    assert slowest["tp_comm"] > 1.5 * fastest["tp_comm"]
    sizes = [evaluate(layout(spec, tp=2), spec).memory.activations.max() for spec in (half, full)]
    assert sizes[1] > 2 * sizes[0]


@pytest.mark.parametrize(("name", "sp"), [("falcon-40b", 1), ("palm-540b", 0), ("gpt-neox-20b", 1)])
def test_parallel_blocks_share_what_tensor_parallelism_exchanges(name, sp):
    """GPT-NeoX reduces the sum of both outputs (`gpt_j_residual`); the CPU has half of the collectives to issue."""
    spec = job(name, 64)
    spec = replace(spec, runtime=replace(spec.runtime, overlap_tp=False))
    kinds = tuple(replace(kind, parallel_blocks=False) for kind in spec.model.kinds)
    serial = replace(spec, model=replace(spec.model, kinds=kinds))
    one, two = (seconds(job_spec, tp=8, pp=2, sp=sp) for job_spec in (spec, serial))
    ends = one["tp_comm"] - two["tp_comm"] / 2
    assert 0 <= ends < 0.1 * two["tp_comm"]
    assert one["gemm"] == two["gemm"]
    parallel, after = (evaluate(layout(job_spec, tp=8, pp=2, sp=sp), job_spec).memory for job_spec in (spec, serial))
    assert parallel.activations.max() < after.activations.max()


@pytest.mark.parametrize("framework", ["pytorch", "accelerate"])
def test_a_loss_of_one_kernel_needs_no_compiler(framework):
    """Of eager loops `fused` and `linear` are kernels (Liger Kernel), `chunked` and `standard` PyTorch's own code."""
    moved = {
        how: bytes_moved(built("llama3-8b", 8, framework=framework, loss=how, gbs=8).spec, "elementwise", zero=2)
        for how in ("standard", "fused", "chunked", "linear")
    }
    logits = 4096 * 128_256
    assert moved["standard"] == moved["chunked"]
    assert moved["fused"] == moved["linear"]
    assert moved["standard"] - moved["fused"] == pytest.approx((38 + 22 - 4 - 4) * logits, rel=1e-6)


def test_a_loss_that_is_compiled_is_eager_without_the_compiler():
    compiled, eager = (
        built("llama3-8b", 8, framework="torchtitan@2026-01", compile=switch).spec.runtime for switch in ("on", "off")
    )
    assert (compiled.loss, compiled.loss_kernels, compiled.loss_peak_bytes) == ("fused", "fused", 4.0)
    assert (eager.loss, eager.loss_kernels, eager.loss_peak_bytes) == ("fused", "eager", eager.memory.loss_bytes)


def test_the_loss_is_one_choice_for_time_and_memory():
    """Megatron-LM `--cross-entropy-loss-fusion`: its profile fuses from autumn 2024 on; before, logits are copied."""
    options = {"seq": 8192, "gbs": 8}
    fused, copied = (built("llama3-8b", 8, loss=how, **options).spec for how in ("fused", "standard"))
    own = built("llama3-8b", 8, **options).spec
    assert (own.runtime, own.runtime.memory) == (fused.runtime, fused.runtime.memory)
    assert seconds(copied)["elementwise"] > seconds(fused)["elementwise"]
    logits = 8192 * 128_256
    last = [evaluate(layout(spec), spec).memory.logits[-1, 0] for spec in (copied, fused)]
    assert last[0] - last[1] == pytest.approx(2 * logits, rel=0.5)
    for name in ("megatron-lm", "megatron-lm@2024-03", "megatron-lm@2023-03", "primus", "torchtitan@2026-01", "nemo"):
        runtime = load_framework(name).runtime
        assert (runtime.loss_peak_bytes < 6) == (runtime.loss == "fused"), name
    eager = built("llama3-8b", 8, framework="torchtitan@2025-05", loss="fused", **options).spec.runtime
    assert "loss" not in eager.unfused


def test_the_cpu_is_waited_for_in_layers_of_every_kind():
    """What transfers can hide behind is told from the waiting in dense layers and in those with experts alike."""
    spec = job("deepseek-v2-lite", 8, gbs=8, seq=512)
    step = evaluate(layout(spec, ep=8), spec).step
    by_kind = [
        float(np.max(count)) * sum(float(np.max(waits)) for waits in layer.waiting_s[:2])
        for layer, count in zip(step.passes.layers, step.counts, strict=True)
    ]
    assert len(by_kind) == 2
    assert min(by_kind) > 0
    assert float(step.cover.waiting_s[0]) == pytest.approx(sum(by_kind))


def test_a_tied_embedding_is_summed_between_the_first_stage_and_the_last():
    spec = job("gpt3-125m", 8)
    assert spec.model.tied_embeddings
    call = tied_embedding(layout(spec, pp=4), spec)
    assert (int(call.size[0]), int(call.stride[0])) == (2, 3 * 2)  # three stages of two ranks each lie between
    assert float(tied_embedding(layout(spec), spec).time_s[0]) == 0
