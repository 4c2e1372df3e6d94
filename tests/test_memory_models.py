"""Memory by a second route: closed forms of papers, hand-worked published runs, and how each figure must move."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from jobs import job, layout, legal, sample

from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL
from gpuscale.layouts.stages import FIRST, LAST, MIDDLE
from gpuscale.memory.activations import layer_activation_bytes, widest_gradient_bytes
from gpuscale.memory.model import (
    COMPONENTS,
    DEVICE,
    LEAST,
    LIBRARY_BYTES,
    OWN_LOOP,
    SPREADS,
    STATES_ALONE,
    UNSAID,
    half_width,
)
from gpuscale.memory.states import placeholder_bytes
from gpuscale.presets.frameworks import load_framework
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import OffloadSpec
from gpuscale.specs.model import BesideSpec
from gpuscale.validation.runs import MEMORY_COLUMN

GIB = 2**30

PROFILES = ("megatron-lm", "megatron-deepspeed", "nanotron", "torchtitan", "deepspeed", "llm-foundry", "generic")


def under(name, spec, **memory):
    """The same job under another framework's profile, with some facts of its memory changed; any layout is legal."""
    runtime = load_framework(name).runtime
    return replace(spec, runtime=replace(runtime, memory=replace(runtime.memory, **memory), rule_set="generic"))


def memory_of(spec, **values):
    return evaluate(layout(spec, **values), spec).memory


def one_layer(spec, **values):
    """Bytes that one layer of one microbatch saves."""
    return float(layer_activation_bytes(spec.model.kinds[0], layout(spec, **values), spec)[0])


def test_what_a_product_beside_the_blocks_gives_is_saved_and_vectors_and_tables_save_nothing():
    """Gemma 3n's per-layer embedding: of a product 64 wide 2 bytes each for half of 4 x 4,096 tokens."""
    spec = job("llama3-8b", 8)
    rows, kind = layout(spec, tp=2, micro_batch_size=4), spec.model.kinds[0]
    given = (BesideSpec("gate", 64, 4096), BesideSpec("norm", 4096), BesideSpec("table", 32, 1000, lookup=True))
    bare, more = (float(layer_activation_bytes(replace(kind, beside=one), rows, spec)[0]) for one in ((), given))
    assert more - bare == 4 * 4096 / 2 * 2 * 64


# -- Korthikanti et al. 2022, table 2: bytes of one GPT layer --


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize(("model", "micro_batch_size"), [("megatron-22b", 4), ("gpt3-175b", 1), ("gpt3-6.7b", 2)])
def test_a_gpt_layer_saves_what_korthikanti_et_al_count(model, micro_batch_size, t):
    spec = under("megatron-lm@2023-12", job(model, 64, seq=2048), gather_buffers=0.0)
    shape = spec.model
    s, b, h, a = 2048, micro_batch_size, shape.hidden, shape.kinds[0].attention.heads
    sbh, scores = s * b * h, 5 * a * s / h
    values = {"tp": t, "pp": 8, "micro_batch_size": b}
    sp = {"sp": 1} if t > 1 else {}
    assert one_layer(spec, **values, sp=0) == pytest.approx(sbh * (10 + 24 / t + scores / t), rel=1e-12)
    assert one_layer(spec, **values, **sp) == pytest.approx(sbh * (34 + scores) / t, rel=1e-12)
    selective = {"recompute": "selective:core_attn"}
    assert one_layer(spec, **values, **sp, **selective) == pytest.approx(sbh * 34 / t, rel=1e-12)
    full = memory_of(spec, **values, **sp, recompute="full").activations[FIRST, 0]
    layers = shape.layers // 8
    assert full == pytest.approx(2 * sbh / t * layers * 8, rel=1e-12)  # table 2: 2 s b h, split with SP


def test_first_stage_of_175b_by_equation_5():
    """Korthikanti et al. 2022, equation 5 and section 4.2.3: L layers' worth on the first stage, whatever p is."""
    spec = under("megatron-lm@2023-12", job("gpt3-175b", 64, seq=2048))
    for pp in (2, 4, 8):
        held = memory_of(spec, tp=8, sp=1, pp=pp, dp=8 // pp).activations[FIRST, 0]
        layer = 2048 * 12288 / 8 * (34 + 5 * 96 * 2048 / 12288)
        assert held == pytest.approx(96 * layer, rel=1e-12)


def test_fused_attention_saves_statistics_instead_of_scores():
    spec = job("gpt3-175b", 64, seq=2048)
    fused, unfused = (one_layer(under(name, spec), tp=8, pp=8) for name in ("megatron-lm", "megatron-lm@2023-12"))
    dropout = 2 * 2048 * 12288 / 8  # masks of the two blocks, which today's recipes do without
    assert unfused - fused == pytest.approx((5 * 2048 - 4) * 96 / 8 * 2048 + dropout, rel=1e-12)


# -- published runs by hand --


def test_states_at_nanotrons_optimizer_step():
    """Llama 1.34B of the Ultra-Scale Playbook: 20 bytes per parameter without ZeRO, 6 + 12/8 + 4 + 2/8 with ZeRO-1."""
    spec = under("nanotron", job("llama3.2-1b", 8))
    parameters = evaluate(layout(spec, zero=0), spec).memory.weights[0, 0] / 2
    fixed = 64 * 2**20
    for zero, each in ((0, 20.0), (1, 6 + 12 / 8 + 4 + 2 / 8)):
        logged = memory_of(spec, zero=zero).logged("allocated rank 0", spec)[0]
        assert logged == pytest.approx(each * parameters + fixed, rel=1e-9)


def test_one_replica_has_no_gradient_buckets():
    spec = under("nanotron", job("llama3.2-1b", 8))
    assert memory_of(spec, tp=8, zero=0).communication_buffers[FIRST, 0] == pytest.approx(2 * 4096 * 2048 * 2)


def test_megatron_keeps_one_placeholder_per_shape_of_weight():
    """Transformer Engine: one layer's matrices in 16 bits."""
    spec = job("llama3-70b", 64)
    without = under("megatron-lm", spec, weight_placeholders=False)
    both = [memory_of(one, tp=8, pp=8).workspace[FIRST, 0] for one in (spec, without)]
    assert both[0] - both[1] == pytest.approx(2 * (855_638_016 / 8 + 16_384), rel=1e-9)


def test_fsdp_shards_sixteen_bytes_per_parameter():
    spec = under("torchtitan", job("llama3-8b", 8))
    found = memory_of(spec, zero=3)
    held = sum(getattr(found, name)[0, 0] for name in ("weights", "gradients", "master_weights", "optimizer_state"))
    assert held == pytest.approx(16 * 8_030_261_248 / 8, rel=1e-9)
    assert found.gathered_parameters[0] == 2 * (2 * 218_112_000 + 128_256 * 4096)  # two layers, head


def test_logits_take_what_the_loss_makes_of_them():
    """Llama 3 8B, 8192 tokens: eager fp32 loss, the compiled one (10 bytes per logit less), and by eighths."""
    spec = job("llama3-8b", 8, seq=8192)
    names = ("torchtitan@2025-05", "torchtitan@2026-04", "torchtitan")
    eager, compiled, chunked = (memory_of(under(name, spec), zero=3).logits[LAST, 0] for name in names)
    assert chunked < 2 * 8192 * 128_256
    assert eager == 14 * 8192 * 128_256
    assert compiled == pytest.approx(4 * 8192 * 128_256, rel=0.25)


def test_every_other_product_of_torchtitan():
    """Layer input, queries, values, half of the MLP; attention's output but for cuDNN, while it was for Blackwell."""
    for cluster, attention in (("dgx-h100-superpod", 4096), ("b200-hgx", 0)):
        spec = under("torchtitan@2025-08", job("llama3-8b", 8, cluster=cluster))
        rows = layout(spec, zero=3)
        rows = replace(rows, recompute_modules=rows.recompute_modules | EVERY_OTHER_MATMUL)
        saved = layer_activation_bytes(spec.model.kinds[0], rows, spec)[0]
        assert saved == 4096 * 2 * (4096 + 4096 + 1024 + 14336 + attention)
        eager = replace(spec, runtime=replace(spec.runtime, compile=False))  # keeps the output of the MLP too
        assert layer_activation_bytes(spec.model.kinds[0], rows, eager)[0] - saved == 4096 * 2 * 4096


def test_selective_checkpointing_of_experts_saves_attention_alone():
    """gpt-oss 20b: layer input, all projections as they have biases, and the attention output."""
    spec = under("torchtitan", job("gpt-oss-20b", 8, cluster="b200-hgx"))
    rows = layout(spec, zero=3)
    rows = replace(rows, recompute_modules=rows.recompute_modules | EVERY_OTHER_MATMUL)
    saved = layer_activation_bytes(spec.model.kinds[0], rows, spec)[0]
    assert saved == 4096 * 2 * (2880 + 4096 + 512 + 512 + 4096 + 2880)


def test_experts_of_eager_pytorch_save_every_step_of_their_activation():
    """gpt-oss 20b under torchtitan, widths of 2880 in 16 bits: input, both halves, product, output; eager the clamped
    gate, its sigmoid, the activated gate and the clamped other half as well, and the output in fp32."""
    spec = under("torchtitan", job("gpt-oss-20b", 8))
    eager = replace(spec, runtime=replace(spec.runtime, compile=False))
    inside = replace(spec, runtime=replace(spec.runtime, memory=replace(spec.runtime.memory, expert_outputs=False)))
    width = 4096 * 4 * 2880 * 2  # of the copies that four experts see
    assert one_layer(spec, zero=3) - one_layer(inside, zero=3) == pytest.approx(width, rel=1e-12)
    assert one_layer(eager, zero=3) - one_layer(spec, zero=3) == pytest.approx((4 + 1) * width, rel=1e-12)


def test_fsdp2_reduces_out_of_a_buffer_in_fp32():
    values = {"zero": 3, "recompute": "full", "micro_batch_size": 8}  # the peak is the backward pass of a layer
    found, without = (
        memory_of(under("torchtitan", job("llama3-8b", 8), **memory), **values).workspace[FIRST, 0]
        for memory in ({}, {"reduce_input_bytes": 0.0})
    )
    assert found - without == pytest.approx(4 * 218_112_000, rel=1e-12)


def test_the_gradient_of_the_head_waits_for_that_of_the_embedding_in_one_group():
    """FSDP reduces a group when its last gradient is there: with the embedding, behind all layers."""
    values = {"zero": 3, "recompute": "full", "micro_batch_size": 8}  # the peak is the backward pass of a layer
    own, shared = (
        memory_of(under("torchtitan", job("llama3-8b", 8), root_gathered=name), **values).workspace[FIRST, 0]
        for name in ("head", "ends")
    )
    assert shared - own == 2 * 128_256 * 4096
    assert load_framework("pytorch").runtime.memory.root_gathered == "ends"  # fully_shard(model) behind its layers


@pytest.mark.parametrize("name", ["megatron-lm", "torchtitan", "deepspeed", "llm-foundry", "automodel", "prime-rl"])
def test_the_loss_decides_on_its_bytes_whatever_the_framework_runs_by_itself(name):
    """A standard loss is the framework's own; the others are the same kernels everywhere."""
    runtime = load_framework(name).runtime
    for loss, expected in (("fused", 4.0), ("chunked", 0.75), ("linear", 0.0)):
        assert replace(runtime, loss=loss).loss_peak_bytes == expected
    eager = replace(runtime, loss="standard", compile=False, eager=("loss",))
    assert eager.loss_peak_bytes == runtime.memory.loss_bytes >= 6.0


def test_what_belongs_to_no_layer_stays_gathered_or_not():
    held = [
        memory_of(under("torchtitan", job("llama3-8b", 8), root_gathered=name), zero=3).gathered_parameters[0]
        for name in ("none", "head", "ends")
    ]
    assert held[1] - held[0] == held[2] - held[1] == 2 * 128_256 * 4096


def test_fragmentation_gives_way_where_memory_is_short():
    """What the allocator holds beyond the tensors shrinks to what the card leaves, but not below a quarter."""
    spec = under("megatron-deepspeed@2022-06", job("gpt3-6.7b", 8, cluster="dgx-a100-superpod", seq=2048))
    found = {batch: memory_of(spec, tp=4, pp=2, micro_batch_size=batch) for batch in (1, 2, 4, 8, 16)}
    shares = {batch: float((one.fragmentation / (one.activations + one.logits + one.workspace))[FIRST, 0])
              for batch, one in found.items()}  # fmt: skip
    capacity = spec.cluster.gpu.memory_bytes
    assert shares[1] == pytest.approx(0.4, rel=0.01) and min(shares.values()) == pytest.approx(0.25, rel=0.01)
    for one in found.values():
        for basis in ("reserved", "nvidia-smi"):
            assert one.logged(basis, spec)[0] <= max(capacity, one.allocated_by_stage.max() * 1.2)


@pytest.mark.parametrize(
    ("seq", "share", "fits"), [(4096, 0.05, True), (7424, 0.0355, True), (7552, 0.02, False), (8192, 0.02, False)]
)
def test_expandable_segments_give_back_what_the_card_asks_for(seq, share, fits):
    """Of what comes and goes a twentieth is lost, close to the limit what is left, but not below a fiftieth."""
    spec = job("llama3-8b", 8, cluster="gb200-nvl72", framework="megatron-bridge-perf", seq=seq, gbs=128)
    found = memory_of(spec, micro_batch_size=4)
    passing = found.activations + found.logits + found.workspace
    assert (found.fragmentation / passing)[FIRST, 0] == pytest.approx(share, rel=0.01)
    assert bool(found.peak_bytes[0] <= spec.memory_limit_bytes) is fits
    fixed = under("megatron-bridge-perf", spec, expandable_segments=False)
    assert memory_of(fixed, micro_batch_size=4).fragmentation[FIRST, 0] >= found.fragmentation[FIRST, 0]


@pytest.mark.parametrize(("month", "gib"), [("2022-06", 4.8), ("2024-06", 1.75)])
def test_kernels_are_loaded_lazily_since_pytorch_2(month, gib):
    """Context and five to six communicators of Megatron-DeepSpeed, outside the allocator."""
    spec = under(f"megatron-deepspeed@{month}", job("gpt3-6.7b", 8, cluster="dgx-a100-superpod"))
    found = memory_of(spec)
    outside = float(found.framework_reserve) + float(found.nccl_buffers[0])
    assert outside / GIB == pytest.approx(gib + (0.7 if gib > 2 else 0.25), rel=1e-6)


def test_bf16_of_deepspeed_accumulates_in_fp32():
    spec = under("megatron-deepspeed", job("gpt3-6.7b", 8))
    half = replace(spec, precision="fp16")
    sizes = [memory_of(one, tp=8, zero=0).gradients[0, 0] for one in (spec, half)]
    assert sizes[0] == 3 * sizes[1]


def test_offloaded_optimizers_leave_weights_only():
    spec = under("deepspeed", job("llama3-8b", 8))
    found = memory_of(replace(spec, offload=OffloadSpec(optimizer=True)), zero=3)
    assert found.master_weights[0, 0] == found.optimizer_state[0, 0] == found.gradients[0, 0] == 0
    assert found.weights[0, 0] > 0


def test_automodel_shards_fourteen_bytes_per_parameter():
    """bf16 parameter, the rest of its fp32 master, bf16 gradient, moments; reduced in fp32, whole under a pipeline."""
    spec = under("automodel", job("llama3-8b", 8, framework="automodel"))
    found = memory_of(spec, zero=3)
    held = sum(getattr(found, name)[0, 0] for name in ("weights", "gradients", "master_weights", "optimizer_state"))
    assert held == pytest.approx(14 * 8_030_261_248 / 8, rel=1e-9)
    piped = memory_of(spec, zero=2, pp=2)
    assert piped.gradients[FIRST, 0] == 2 * piped.gathered_parameters[FIRST, 0]


# -- PyTorch's own loops: what the optimizer step makes anew, what is cast, and what comes when --

MISTRAL, QWEN = 7_241_732_096, 1_836_828_672
"""Parameters of Mistral-7B and of the first Qwen-1.8B."""


def allocated(model, gpus, options, **values):
    """What PyTorch's allocator has given out at the peak [bytes]."""
    spec = job(model, gpus, cluster="dgx-a100-superpod", **options)
    found = memory_of(spec, **{"recompute": "full", **values})
    return float(found.allocated_by_stage.max()), found


@pytest.mark.parametrize(("gpus", "zero", "micro_batch_size"), [(1, 0, 4), (1, 0, 8), (2, 3, 4)])
def test_foreach_adamw_in_16_bits_takes_five_copies(gpus, zero, micro_batch_size):
    """Weights, gradients, two moments and the denominators of the update, each in 16 bits, whatever the batch: what
    fine-tuning of Mistral-7B on A100 showed (fms-acceleration, 67.46 and 33.74 GiB on one GPU and two)."""
    states = {"grad_dtype": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}
    options = {"framework": "accelerate@2024-11", "gbs": gpus * micro_batch_size, **states}
    found, _ = allocated("mistral-7b", gpus, options, zero=zero, micro_batch_size=micro_batch_size)
    assert found / GIB == pytest.approx({1: 67.46, 2: 33.74}[gpus], rel=0.002)
    assert found == pytest.approx(5 * 2 * MISTRAL / gpus, rel=0.002)


@pytest.mark.parametrize(("month", "copies"), [("2023-06", 2), ("2024-11", 1), ("2026-06", 0)])
def test_step_of_adamw_by_generation(month, copies):
    """fp32 weights, gradients and moments, and as many copies of a moment as its kernels make."""
    found, memory = allocated("qwen-1.8b", 1, {"framework": f"accelerate@{month}", "gbs": 8, "seq": 256}, zero=0)
    step = (16 + 4 * copies) * QWEN
    assert float(memory.at_optimizer_step.max()) == pytest.approx(step, rel=0.003)
    assert found >= float(memory.at_optimizer_step.max())
    assert memory.weights.max() == 0  # the fp32 master is the parameter
    assert float(memory.gathered_parameters.max()) == pytest.approx(2 * QWEN, rel=1e-3)  # cast under autocast


def test_gradients_come_as_activations_go_in_a_step_of_one_microbatch():
    """With one microbatch no gradient exists at the loss; with more those of the microbatches before do."""
    options = {"framework": "accelerate@2026-06", "master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}
    one, memory = allocated("mistral-7b", 1, {**options, "gbs": 16}, zero=0, micro_batch_size=16)
    two, _ = allocated("mistral-7b", 1, {**options, "gbs": 32}, zero=0, micro_batch_size=16)
    gradients, saved = float(memory.gradients.max()), float((memory.activations + memory.logits).max())
    assert saved > gradients
    assert two - one == gradients == pytest.approx(2 * MISTRAL, rel=1e-3)
    assert memory.peak_bytes[0] > two  # the allocator keeps their blocks, so that plans still count them
    short, memory = allocated("mistral-7b", 1, {**options, "gbs": 1, "seq": 128}, zero=0)
    assert short == float(memory.at_optimizer_step.max())  # gradients without activations: the step is the peak


def test_loss_in_one_kernel_with_the_head_does_not_grow_with_the_vocabulary():
    spec = job("llama3-8b", 8, framework="accelerate", loss="linear")
    wide = replace(spec, model=replace(spec.model, vocab=2 * spec.model.vocab))
    head = spec.model.vocab * spec.model.hidden * spec.activation_bytes
    values = {"zero": 3, "micro_batch_size": 4}
    logits = [float(memory_of(one, **values).logits.max()) for one in (spec, wide)]
    assert logits[1] - logits[0] == head  # the head's weight gradient alone
    tokens = 4 * spec.sequence
    assert logits[0] == head + tokens * spec.model.hidden * (2 + 4 + 2 * 2)  # a chunk in 16 and 32 bits, two gradients
    for compiled, per_logit in ((None, 10), ("on", 4)):  # a compiler keeps no copies between the operations of the loss
        whole = memory_of(job("llama3-8b", 8, framework="accelerate", compile=compiled), **values).logits.max()
        assert whole == per_logit * tokens * spec.model.vocab


def test_eight_bit_weights_once_stood_beside_16_bit_ones():
    names = ("megatron-lm@2024-05", "megatron-lm")
    old, new = (memory_of(job("llama3-8b", 8, precision="fp8", framework=name)) for name in names)
    assert (old.weights == 2 * new.weights).all()


def test_recipes_of_nvidia_keep_gradients_in_16_bits():
    jobs = [job("llama3-70b", 64, framework=name) for name in ("megatron-lm", "nemo")]
    sizes = [memory_of(spec, tp=8, pp=8).gradients[FIRST, 0] for spec in jobs]
    assert sizes[0] == 2 * sizes[1]


# -- what logs say --


@pytest.mark.parametrize("profile", PROFILES)
def test_each_log_counts_more_than_the_one_before(profile):
    spec = under(profile, job("llama3-8b", 64))
    found = memory_of(spec, tp=4, pp=4, zero=1)
    figures = [found.logged(what, spec)[0] for what in ("reserved", "nvidia-smi")]
    assert found.allocated_by_stage.max() < figures[0] < figures[1] == found.peak_bytes[0]


def test_a_log_without_a_basis_is_read_as_its_framework_prints_it():
    base = job("llama3-8b", 64)
    for profile, what in (
        ("torchtitan", "reserved"),
        ("megatron-lm", "nvidia-smi"),
        ("megatron-bridge", "nvidia-smi"),
        ("megatron-bridge-perf", "allocated"),
        ("megatron-deepspeed", "nvidia-smi"),
    ):
        assert MEMORY_COLUMN[under(profile, base).runtime.memory.reported] == what


def test_rank_0_is_the_first_stage():
    spec = job("llama3-8b", 64)
    found = memory_of(spec, pp=8)
    assert found.logged("reserved rank 0", spec)[0] == found.reserved_by_stage[FIRST, 0]
    assert found.logged("reserved", spec)[0] == found.reserved_by_stage.max()


def test_nanotrons_allocated_peak_forgets_the_passes():
    spec = under("nanotron", job("llama3-8b", 64))
    short, long = (memory_of(spec, pp=2, micro_batch_size=size) for size in (1, 4))
    assert short.logged("allocated", spec)[0] == long.logged("allocated", spec)[0]
    assert short.peak_bytes[0] < long.peak_bytes[0]


# -- how figures move --


@pytest.mark.parametrize("profile", PROFILES)
def test_components_are_finite_and_not_negative_under_every_profile(profile):
    rows = sample(legal("mixtral-8x7b", 32), 500)
    found = evaluate(rows, under(profile, job("mixtral-8x7b", 32))).memory
    for name in (*COMPONENTS, "at_optimizer_step"):
        size = getattr(found, name)
        assert np.isfinite(size).all()
        assert (size >= 0).all()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "chain",
    [
        [{"micro_batch_size": size} for size in (1, 2, 4, 8)],
        [{"zero": zero} for zero in (3, 2, 1)],
        [{"recompute": choice, "micro_batch_size": 4} for choice in ("selective:mlp", "selective:layernorm", "none")],
    ],
    ids=["microbatch", "zero", "recompute"],
)
def test_peaks_rise_along(profile, chain):
    spec = under(profile, job("llama3-8b", 64))
    peaks = [memory_of(spec, **values).peak_bytes[0] for values in chain]
    assert all(later > earlier for earlier, later in pairwise(peaks)), peaks


def norms_recomputed(spec, kind, **values):
    """How many hidden states of one layer recomputing norms drops."""
    kept, dropped = (
        layer_activation_bytes(kind, layout(spec, recompute=each, **values), spec)[0]
        for each in (values.pop("recompute", "none"), "selective:" + "+".join(["layernorm", *values.pop("also", ())]))
    )
    return (kept - dropped) / (values["micro_batch_size"] * spec.sequence * 2 * spec.model.hidden)


@pytest.mark.parametrize(
    ("graphs", "dispatcher", "dropped"),
    [("none", "hybridep", 2), ("partial", "alltoall", 2), ("partial", "hybridep", 1), ("partial", "deepep", 1)],
)
def test_what_leaves_a_cuda_graph_at_the_router_stays(graphs, dispatcher, dropped):
    spec = job("mixtral-8x7b", 32)
    spec = replace(spec, runtime=replace(spec.runtime, cuda_graphs=graphs, dispatcher=dispatcher))
    kind = next(one for one in spec.model.kinds if one.moe is not None)
    assert norms_recomputed(spec, kind, ep=8, micro_batch_size=2) == pytest.approx(dropped)


def test_experts_recomputed_whole_have_their_router_outside_of_graphs():
    spec = job("mixtral-8x7b", 32)
    spec = replace(spec, runtime=replace(spec.runtime, cuda_graphs="partial", dispatcher="hybridep"))
    kind, values = spec.model.kinds[0], {"ep": 8, "micro_batch_size": 2, "recompute": "selective:moe", "also": ["moe"]}
    assert norms_recomputed(spec, kind, **values) == pytest.approx(2)


def test_layers_of_a_state_space_alone_recompute_no_norm():
    """MambaLayer has no recomputation: of Nemotron 3 Nano's 52 layers 29 drop their norms, 1.2 GiB in 16 bits, where a
    published pair of runs (Megatron-Bridge, selective:moe and selective:moe,layernorm) saves 1.0 GiB."""
    spec = job("nemotron-3-nano", 8)
    dropped = {one.state_space is None: norms_recomputed(spec, one, micro_batch_size=1) for one in spec.model.kinds}
    assert dropped == {True: pytest.approx(1), False: 0}


def test_a_row_alone_equals_its_row_in_a_batch():
    rows = sample(legal("mixtral-8x7b", 32), 60)
    spec = job("mixtral-8x7b", 32)
    together = evaluate(rows, spec).memory
    for row in range(0, 60, 7):
        alone = evaluate(rows.take(np.array([row])), spec).memory
        assert alone.peak_bytes[0] == together.peak_bytes[row]
        assert alone.at_peak(0) == together.at_peak(row)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 8), (2, 4)])
def test_a_layer_of_experts_saves_these_bytes_per_token(tp, ep):
    """Qwen3 30B-A3B, item by item: what each operator of the layer reads again in its backward pass, in 16 bits."""
    spec = job("qwen3-30b-a3b", 8)
    hidden, heads, kv_heads, dim, experts, top_k, ffn = 2048, 32, 4, 128, 128, 8, 768
    own = (heads + 2 * kv_heads) * dim + (heads + kv_heads) * dim  # queries, keys, values; what their norms read
    outside = 2 * (2 * hidden + 2 * hidden)  # of each block, what the norm reads and what it writes
    attention = 2 * own / tp + heads * dim * 2 / tp + heads * 4 / tp  # and its output, and the log-sum-exp
    routed = top_k * (2 * hidden + 2 * 3 * ffn)  # as tokens enter; gate, other half and their product
    router = 4 * experts  # probabilities in fp32
    per_token = outside / tp + attention + (routed + router) / tp
    assert one_layer(spec, tp=tp, ep=ep, etp=1, sp=int(tp > 1)) == pytest.approx(4096 * per_token, rel=1e-12)


def test_eight_bit_inputs_halve_what_products_save():
    wide, narrow = (one_layer(job("llama3-8b", 8, precision=name)) for name in ("bf16", "fp8"))
    assert wide - narrow == 4096 * (2 * 4096 + 14336)  # both norms' outputs and the activation's


def test_mxfp8_weights_are_kept_along_rows_and_columns():
    """A byte each way with a scale for 32 of them, where tensor-wise scaling needs one copy on Blackwell."""
    tensor, block = (
        memory_of(job("llama3-8b", 8, cluster="b200-hgx", framework="megatron-bridge-perf", precision=name))
        for name in ("fp8-current", "mxfp8")
    )
    assert block.weights[FIRST, 0] / tensor.weights[FIRST, 0] == 2 * (1 + 1 / 32)


def test_deepseek_v3_fits_its_gpus_as_published():
    """arXiv 2412.19437, sections 3.2 and 3.3: EP 64, PP 16, ZeRO-1, DualPipe; RMSNorm, latent up-projections and
    SwiGLU recomputed, SwiGLU's inputs kept in 8 bits, moments in bf16."""
    options = {"cluster": "h800-deepseek", "framework": "generic", "gbs": 15360, "precision": "fp8-blockwise"}
    spec = job("deepseek-v3", 2048, **options)
    published = job("deepseek-v3", 2048, **options, moment_dtype="bf16", swiglu_input_dtype="fp8")
    values = {"pp": 16, "ep": 64, "schedule": "dualpipe", "recompute": "selective:layernorm+mla_up_proj+moe_act"}
    limit = spec.memory_limit_bytes
    assert memory_of(published, **values).peak_bytes[0] < limit < memory_of(spec, **values).peak_bytes[0]
    saved = memory_of(spec, **values).activations - memory_of(published, **values).activations
    per_layer = 17 * 4096 * (8 + 1) * 2 * 2048  # 17 microbatches; eight chosen experts and the shared one
    assert saved.max() == pytest.approx(4 * per_layer, rel=1e-12)


def test_a_chunk_holds_its_gradients_whole_at_a_time():
    """Llama 3 405B on 16,384 H100: 16 microbatches over 16 stages; on half of the GPUs 32, by turns on all chunks."""
    turns, mixed = (
        job("llama3.1-405b", gpus, framework="generic", seq=8192, gbs=2048, grad_reduce="last")
        for gpus in (16384, 8192)
    )
    values = {"tp": 8, "pp": 16, "vpp": 8, "zero": 2}
    found, whole = memory_of(turns, **values), memory_of(mixed, **values)
    layers = found.weights[MIDDLE:].max() / 2  # parameters of eight layers
    assert whole.gradients[MIDDLE:].max() == 4 * layers
    assert found.gradients[MIDDLE:].max() == pytest.approx(4 * layers / 128)
    chunk = (4 * layers - found.activations[MIDDLE:].max() / 16) / 8  # of one layer, less its activations
    assert found.workspace[MIDDLE:].max() == pytest.approx(chunk + LIBRARY_BYTES)
    assert found.peak_bytes[0] < turns.memory_limit_bytes < whole.peak_bytes[0]


def test_rings_keep_the_attention_output_twice():
    spec = job("llama3-8b", 8)
    alone, ring = one_layer(spec), one_layer(spec, cp=2)
    assert 2 * ring - alone == 2 * 4096 * 4096


def test_gathered_inputs_are_saved_whole():
    spec = job("llama3-8b", 8)
    shards, whole = (one_layer(under("megatron-lm", spec, saves_gathered_inputs=x), tp=8) for x in (False, True))
    assert whole - shards == 2 * (2 * 4096 * 4096) * 7 / 8


def test_memory_is_as_uncertain_as_what_varies_of_it():
    """Each part by its share of the total, the rest as a whole; added in squares."""
    spec = under("megatron-lm", job("llama3-8b", 8))
    ours = replace(spec, runtime=replace(spec.runtime, rule_set="megatron-lm"))
    sizes = dict.fromkeys(COMPONENTS, 0.0) | {"weights": 50.0, "activations": 30.0, "logits": 20.0}
    parts = {name: np.full(1, size) for name, size in sizes.items()}
    states = parts | {"weights": np.full(1, 100.0), "activations": np.zeros(1), "logits": np.zeros(1)}
    assert half_width(states, ours, "allocated") == LEAST
    shares = np.hypot(SPREADS["activations"] * 0.3, SPREADS["logits"] * 0.2)
    assert half_width(parts, ours, "reserved") == pytest.approx(np.hypot(LEAST, shares))
    assert half_width(states, ours) == pytest.approx(np.hypot(LEAST, DEVICE))
    assert half_width(states, ours, "nvidia-smi rank 0") == half_width(states, ours)
    assert half_width(states, spec, "allocated") == pytest.approx(np.hypot(LEAST, OWN_LOOP))
    nanotron = replace(ours, runtime=load_framework("nanotron").runtime)  # its log forgets the passes
    assert half_width(parts, nanotron, "allocated rank 0") == STATES_ALONE < LEAST
    assert half_width(parts, nanotron, "allocated", said=False) == pytest.approx(np.hypot(STATES_ALONE, UNSAID))
    assert half_width(parts, nanotron, "reserved") == half_width(parts, ours, "reserved")
    assert half_width(states, ours, "allocated", said=False) == pytest.approx(np.hypot(LEAST, UNSAID))


def test_every_prediction_module_has_logits_of_its_own():
    spec = under("megatron-lm@2024-06", job("deepseek-v3", 64))
    plain = replace(spec, model=replace(spec.model, mtp=None))
    assert spec.model.mtp_depth == 1
    both, one = (memory_of(each, ep=64).logits[LAST, 0] for each in (spec, plain))
    assert both == 2 * one == 2 * spec.runtime.loss_peak_bytes * spec.sequence * spec.vocabulary_rows(1)


def test_a_stage_gathers_the_end_that_it_has():
    """Embedding and LM head are gathered together on a single stage alone."""
    spec = under("torchtitan", job("llama3-8b", 16), root_gathered="ends")
    held = [memory_of(spec, zero=3, pp=pp).gathered_parameters.max() for pp in (1, 2)]
    assert held[0] - held[1] == 2 * 128_256 * 4096


@pytest.mark.parametrize("stage", [2, 3])
def test_without_a_master_the_16_bit_weight_is_sharded_from_zero_2_on(stage):
    """FSDP2 shards the parameters that it gives back as those that it keeps gathered, which are counted apart."""
    spec = job("llama3-8b", 8, framework="accelerate", master_dtype="none")
    found, whole = memory_of(spec, zero=stage), memory_of(spec, zero=0)
    assert found.weights.max() == pytest.approx(whole.weights.max() / 8)


def test_foreach_kernels_copy_the_moments_of_the_shard():
    spec = job("llama3-8b", 8, framework="pytorch")
    one, all_ = (float(memory_of(spec, zero=stage).at_optimizer_step.max()) for stage in (1, 0))
    held = [memory_of(spec, zero=stage).at_peak(0) for stage in (1, 0)]
    states = [sum(part[name] for name in ("master_weights", "gradients", "optimizer_state")) for part in held]
    spared = 8_030_261_248 * (1 - 1 / 8)
    assert all_ - one - (states[1] - states[0]) == pytest.approx(4 * spared, rel=1e-3)  # beside the states, 4 bytes


def test_a_full_allocator_leaves_what_lies_outside_it():
    """What fragmentation would take beyond the card is given back: a log of reserved memory shows all but contexts and
    communicators, nvidia-smi all."""
    spec = under("megatron-deepspeed@2022-06", job("gpt3-6.7b", 8, cluster="dgx-a100-superpod", seq=2048))
    capacity = spec.cluster.gpu.memory_bytes
    found = memory_of(spec, tp=4, pp=2)
    outside = float((found.nccl_buffers + found.framework_reserve).max())
    full = replace(found, fragmentation=found.fragmentation + capacity - found.by_stage + 2**30)
    assert full.logged("nvidia-smi", spec)[0] == pytest.approx(capacity)
    assert full.logged("reserved", spec)[0] == pytest.approx(capacity - outside)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_experts_share_their_placeholders(ep):
    """Mixtral: queries, keys and values, their output, the router, two norms; the products of one expert of eight."""
    spec = job("mixtral-8x7b", 8)
    dense = 4096 * (4096 + 2 * 1024) + 4096**2 + 4096 * 8 + 2 * 4096
    found = placeholder_bytes(layout(spec, ep=ep), spec)[0]
    assert found == pytest.approx(2 * (dense + 3 * 4096 * 14336))


def test_outputs_of_experts_are_wide_only_where_they_are_weighted_behind_them():
    inside, behind = (
        under("pytorch", job("mixtral-8x7b", 8, cluster="b200-hgx"), expert_outputs=kept) for kept in (False, True)
    )
    more = [float(widest_gradient_bytes(layout(spec), spec)[0]) for spec in (inside, behind)]
    assert more[1] - more[0] == 2 * 4096 * 2 * 4096  # two copies of 4,096 tokens, in 4 bytes rather than 2
