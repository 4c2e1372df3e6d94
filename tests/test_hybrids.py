"""State spaces, single-block layers, latent experts, sparse attention, multi-token prediction: counts, time, memory."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job, layout, seconds, with_gpu

from gpuscale.architecture.flops import forward_flops, layer_forward_flops, mtp_forward_flops
from gpuscale.architecture.parameters import layer_parameters, model_parameters
from gpuscale.errors import InputError
from gpuscale.layouts.stages import stage_table
from gpuscale.memory.states import stage_parameters
from gpuscale.presets.hardware import load_gpu
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.model import LayerSpec, StateSpaceSpec
from gpuscale.steptime.blocks import ARITHMETIC_FRACTION, indexer_segments, state_space_segments
from gpuscale.steptime.components import total_s
from gpuscale.steptime.kernels import gemm_flops_per_s, stream_time_s
from gpuscale.steptime.tensor_parallel import tensor_parallel_time

HYBRIDS = ("nemotron-3-nano", "nemotron-3-super", "nemotron-h-8b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b")


def letters(model):
    """The pattern of a model, in the letters of its file."""
    out = ""
    for index in model.pattern:
        kind = model.kinds[index]
        feed_forward = kind.mlp or kind.moe
        if kind.state_space:
            out += "m" if feed_forward else "M"
        elif kind.attention:
            out += "a" if feed_forward else "*"
        else:
            out += "E" if kind.moe else "-"
    return out


# -- counts --


def test_a_mamba_layer_of_nemotron_3_nano_by_hand():
    """64 heads of 64, 8 groups of state 128, hidden 2688: projections, convolution of 4 taps with bias, vectors."""
    kind = next(kind for kind in load_model("nemotron-3-nano").kinds if kind.state_space)
    inner, maps, heads = 64 * 64, 2 * 8 * 128, 64
    projections = 2688 * (2 * inner + maps + heads) + inner * 2688
    small = (inner + maps) * (4 + 1) + 3 * heads + inner
    counted = layer_parameters(kind, 2688)
    assert counted.state_space == projections + small
    assert counted.total == projections + small + 2688


def test_a_gated_delta_net_layer_of_qwen3_next_by_hand():
    kind = next(kind for kind in load_model("qwen3-next-80b-a3b").kinds if kind.state_space)
    keys, values, heads = 16 * 128, 32 * 128, 32
    projections = 2048 * (2 * keys + 2 * values + 2 * heads) + values * 2048
    assert layer_parameters(kind, 2048).state_space == projections + (2 * keys + values) * 4 + 2 * heads + 128


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("nemotron-3-nano", {"M": 23, "E": 23, "*": 6}),  # Nemotron 3 Nano report
        ("nemotron-h-56b", {"M": 54, "-": 54, "*": 10}),  # Nemotron-H, arXiv 2504.03624, table 1
        ("nemotron-h-8b", {"M": 24, "-": 24, "*": 4}),
        ("qwen3-next-80b-a3b", {"m": 36, "a": 12}),
        ("kimi-linear-48b-a3b", {"m": 20, "a": 7}),
    ],
)
def test_blocks_of_each_kind(name, blocks):
    found = letters(load_model(name))
    assert {letter: found.count(letter) for letter in sorted(set(found))} == dict(sorted(blocks.items()))


def test_parameters_published_for_a_hybrid_that_is_not_in_a_config_here():
    assert (
        model_parameters(load_model("nemotron-nano-9b-v2")).total == 8_888_227_328
    )  # safetensors metadata on Hugging Face


@pytest.mark.parametrize(("name", "depth", "published"), [("nemotron-3-super", 2, 84.7), ("deepseek-v3", 1, 260.0)])
def test_flops_with_multi_token_prediction_agree_with_megatron_bridge(name, depth, published):
    """GFLOPs per token at 8192 and 4096 tokens; router and 2h x h projections are not in them."""
    model = load_model(name)
    assert model.mtp_depth == depth
    forward = forward_flops(model, 8192 if name == "nemotron-3-super" else 4096, "causal")
    moe = next(kind.moe for kind in model.kinds if kind.moe)
    apart = forward.router + depth * (4 * model.hidden**2 + 2 * model.hidden * moe.experts)
    assert 3 * (forward.total - apart) / 1e9 == pytest.approx(published, rel=3e-3)


@pytest.mark.parametrize(("name", "published"), [("nemotron-3-nano", 22.3), ("nemotron-3.5-lightning", 28.15)])
def test_flops_of_nano_are_below_megatron_bridge_by_the_width_it_assumes(name, published):
    """It counts Mamba blocks as 2 x hidden = 5376 wide where they have 64 heads of 64: three projections more."""
    model = load_model(name)
    forward = forward_flops(model, 8192, "causal")
    wider = 2 * model.hidden - 64 * 64
    extra = letters(model).count("M") * (2 * model.hidden * 3 + 7 * 128) * wider
    apart = forward.router + model.mtp_depth * (4 * model.hidden**2 + 2 * model.hidden * 128)
    assert 3 * (forward.total - apart + extra) / 1e9 == pytest.approx(published, rel=4e-3)


def test_recurrences_do_not_grow_with_the_sequence_and_sparse_attention_hardly_does():
    hybrid, sparse, dense = (load_model(name) for name in ("qwen3-next-80b-a3b", "deepseek-v3.2", "deepseek-v3"))
    short, long = (forward_flops(hybrid, sequence, "causal") for sequence in (4096, 65536))
    assert long.state_space == short.state_space
    assert (
        forward_flops(sparse, 65536, "causal").attention_core < 2 * forward_flops(sparse, 4096, "causal").attention_core
    )
    whole = forward_flops(dense, 65536, "causal").attention_core
    choice = forward_flops(sparse, 65536, "causal")
    assert choice.attention_core + choice.indexer < 0.35 * whole


def test_layers_that_share_a_choice_have_no_indexer():
    model = load_model("glm-5.2")
    own = [model.kinds[index].attention.indexer.shared is False for index in model.pattern]
    assert own[:12] == [True] * 3 + [False, False, False, True] * 2 + [False]
    assert sum(own) == 21
    counted = model_parameters(model)
    each = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert sum(kind.indexer * count for kind, count in zip(counted.kinds, counted.counts, strict=True)) == 21 * each


# -- files --

FILE = """\
title = "Mine"
family = "mine"
source = "a test"
layers = 6
hidden = 64
vocab = 100
sequence = 128
tied_embeddings = false
pattern = "M*-mEa"
heads = 4
ffn = 96
[state_space]
kind = "mamba2"
heads = 8
head_dim = 16
groups = 2
state = 32
[moe]
experts = 4
top_k = 2
ffn = 32
every = 4
[mtp]
depth = 2
pattern = "*E"
shared = true
"""


def load_text(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_model(str(path))


def test_letters_of_a_file(tmp_path):
    model = load_text(tmp_path, FILE)
    assert letters(model) == "M*-mEa"
    kinds = [model.kinds[index] for index in model.pattern]
    assert [kind.norms for kind in kinds] == [1, 1, 1, 2, 1, 2]
    assert (kinds[3].moe is not None, kinds[5].mlp is not None) == (True, True)  # every fourth layer has experts
    assert [kind.joins_embedding for kind in model.mtp.layers] == [True, False]
    assert (model.mtp_layers, model.mtp_depth, len(model.trained_pattern)) == (2, 2, 10)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"M*-mEa"', '"M*-mE"', "5 letters for layers = 6"),
        ('"M*-mEa"', '"M*-mEx"', "pattern"),
        ('"M*-mEa"', '"a*-aEa"', "needs a pattern"),
        ("groups = 2", "groups = 3", "not a multiple of groups"),
        ("ffn = 96\n", "", "ffn"),
        ("depth = 2", "depth = 99", "depth"),
        ("vocab = 100", "vocab = 100\nmtp_layers = 1", "one of them"),
        ('kind = "mamba2"', 'kind = "mamba3"', "kind"),
        ("vocab = 100", "vocab = 100\nsixteen_bit = { fp4_last_layers = 7 }", "fp4_last_layers = 7 of layers = 6"),
        ('"M*-mEa"', '"MM-mEa"\nsixteen_bit = { fp4_attention = true }', "attention alone"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        load_text(tmp_path, FILE.replace(old, new))


# -- time --


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),  # bytes per channel, value, key, state and score; kernels
    [
        ("mamba2", (4, 12, 8, 12, 8, 8), (10, 34, 30, 30, 24, 18)),
        ("gdn", (4, 18, 22, 4, 12, 11), (6, 50, 40, 10, 20, 22)),
        ("kda", (4, 18, 34, 4, 12, 13), (6, 50, 64, 10, 20, 26)),
    ],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_a_recurrence_takes_the_traffic_of_its_kernels_and_its_arithmetic(kind, forward, backward, tp):
    spec = job("llama3-8b", 8)
    rows = layout(spec, tp=tp)
    block = StateSpaceSpec(kind, heads=32, head_dim=64, groups=8, state=128, chunk=128)
    segment = state_space_segments(block, rows, spec, tensor_parallel_time(rows, spec))[1]
    width, sets = 32 * 64, 8 if kind == "mamba2" else 32
    flops = 2 * 128 * 128 * 8 + (128 * 64 + 4 * 128 * 64) * 32
    if kind != "mamba2":
        flops = (6 * 128 * 128 + 4 * 128 * 64 + 6 * 128 * 64) * 32
    rate = ARITHMETIC_FRACTION * gemm_flops_per_s(spec.cluster.gpu, "bf16")
    # backward: two products for each one, and what is recomputed
    for found, traffic, repeats in ((segment.forward, forward, 1), (segment.backward, backward, 3.5)):
        conv, value, key, state, score, kernels = traffic
        per_token = conv * (width + 2 * 8 * 128) + value * width + key * sets * 128
        per_token += state * width * 128 / 128 + score * sets * 128
        traffic_s = stream_time_s(spec.cluster.gpu, spec.sequence * per_token / tp, kernels)
        arithmetic_s = repeats * spec.sequence * flops / tp / rate
        assert total_s(found)[0] == pytest.approx(traffic_s + arithmetic_s, rel=1e-12)


@pytest.mark.parametrize(("tokens", "heads", "measured_ms"), [(16384, 80, 0.64), (32768, 64, 0.94)])
def test_the_scan_over_a_chunk_takes_as_long_as_measured_on_h200(tokens, heads, measured_ms):
    """Mamba-2's chunk scan, heads 64 wide, states 128, chunks of 256 (github.com/tile-ai/TileOPs, pull request 1608).

    Per token and head: states read out, 2 N P, and scores times inputs, half of them masked, Q P. Inputs, outputs and
    one fp32 state per chunk go through memory.
    """
    gpu = load_gpu("h200-sxm-141gb")
    flops = tokens * heads * (2 * 128 * 64 + 256 * 64)
    moved = tokens * heads * 64 * (2 + 2 + 4 * 128 / 256)
    scan_s = stream_time_s(gpu, moved) + flops / (ARITHMETIC_FRACTION * gemm_flops_per_s(gpu, "bf16"))
    assert scan_s * 1e3 == pytest.approx(measured_ms, rel=0.15)


@pytest.mark.parametrize("tp", [1, 8])
def test_the_indexer_of_sparse_attention_takes_its_flops_and_the_traffic_of_its_choice(tp):
    spec = job("deepseek-v3.2", 256, seq=16384, gbs=256, cluster="h200-hgx")
    rows = layout(spec, tp=tp, ep=32, etp=1, pp=4, sp=int(tp > 1))
    (segment,) = indexer_segments(spec.model.kinds[0].attention, rows, spec)
    tokens, gpu = 16384 / tp, spec.cluster.gpu
    layer = layer_forward_flops(spec.model.kinds[0], spec.model.hidden, spec.sequence, "causal")
    scores = 2 * 64 * 128 * (16384 + 1) / 2  # 64 heads of 128 against the keys of all earlier tokens
    busy = {"attention": scores, "gemm": layer.indexer - scores}
    for name, flops in busy.items():
        rate = tokens * flops / segment.forward[name][0]
        assert 0.4 * gemm_flops_per_s(gpu, "bf16") < rate < gemm_flops_per_s(gpu, "bf16"), name
        assert segment.backward[name][0] == pytest.approx(2 * segment.forward[name][0], rel=0.15)
    choice_s = stream_time_s(gpu, tokens * (16384 + 1) / 2 * (4 + 4), 2)  # fp32 scores, written and read
    assert segment.forward["elementwise"][0] == pytest.approx(choice_s)


@pytest.mark.parametrize("name", HYBRIDS)
def test_projections_take_their_flops_on_an_ideal_gpu(name):
    kernels = {
        "gemm_fraction": {"bf16": 1.0}, "sustained_clock_fraction": 1.0, "tile_m": 1, "tile_n": 1,
        "tile_overhead_s": 0.0, "wave_loss_fraction": 0.0,
    }  # fmt: skip
    spec = replace(job("llama3-8b", 1, gbs=2), model=replace(load_model(name), mtp=None), vocab_multiple=1)
    spec = with_gpu(spec, kernels, peak_flops_per_s={"bf16": 1e6}, memory_bandwidth_bytes_per_s=1e30)
    rows = layout(spec)
    flops = forward_flops(spec.model, spec.sequence, "causal")
    recurrences = sum(
        count * (8 * s.conv_width + {"mamba2": 7, "gdn": 8, "kda": 8}[s.kind] * s.width * s.state)
        for s, count in zip((k.state_space for k in spec.model.kinds), spec.model.layer_counts, strict=True)
        if s is not None
    )
    per_token = 3 * (flops.total - flops.attention_core - recurrences)
    gemm_s = evaluate(rows, spec).step.components[0, 0]
    assert gemm_s == pytest.approx(per_token * spec.tokens_per_step / 1e6, rel=1e-4)  # gates of shared experts


def test_experts_in_a_latent_width_exchange_and_compute_less():
    spec = job("nemotron-3-super", 64, cluster="h200-hgx")
    wide = tuple(replace(kind, moe=replace(kind.moe, latent=0)) if kind.moe else kind for kind in spec.model.kinds)
    whole = replace(spec, model=replace(spec.model, kinds=wide, mtp=None))
    narrow = replace(spec, model=replace(spec.model, mtp=None))
    less, more = (seconds(one, ep=32) for one in (narrow, whole))
    assert 3 < more["ep_comm"] / less["ep_comm"] < 4.5  # 4096 / 1024 wide, but for latency
    assert more["gemm"] > 2 * less["gemm"]


def test_context_parallelism_exchanges_heads_of_a_recurrence():
    spec = job("nemotron-h-8b", 16, seq=65536, gbs=16)
    ring, alone = seconds(spec, cp=4), seconds(spec)
    assert ring["cp_comm"] > 0
    assert alone["cp_comm"] == 0


def test_long_sequences_are_cheaper_with_chosen_keys():
    options = {"seq": 65536, "gbs": 256, "cluster": "h200-hgx"}
    dense, sparse = (seconds(job(name, 256, **options), ep=32, pp=4) for name in ("deepseek-v3", "deepseek-v3.2"))
    assert sparse["attention"] < 0.5 * dense["attention"]
    assert sparse["gemm"] > dense["gemm"]  # projections of the indexer


# -- multi-token prediction --


def without_mtp(spec):
    return replace(spec, model=replace(spec.model, mtp=None))


def test_a_trained_module_takes_its_flops_more():
    spec = job("deepseek-v3", 256, cluster="h200-hgx")
    more, less = seconds(spec, ep=32, pp=1), seconds(without_mtp(spec), ep=32, pp=1)
    share = (
        mtp_forward_flops(spec.model, spec.sequence, "causal")
        / forward_flops(without_mtp(spec).model, spec.sequence, "causal").total
    )
    assert more["gemm"] / less["gemm"] - 1 == pytest.approx(share, rel=0.25)
    untrained = replace(spec, model=replace(spec.model, mtp=replace(spec.model.mtp, trained=False)))
    assert seconds(untrained, ep=32, pp=1) == less


@pytest.mark.parametrize(("name", "copies"), [("deepseek-v3", 1), ("nemotron-3-super", 1), ("glm-4.5", 1)])
def test_one_gpu_holds_the_weights_of_each_module_once(name, copies):
    spec = replace(job("llama3-8b", 1), model=load_model(name), vocab_multiple=1)
    rows = layout(replace(spec, gpus=1))
    stages = stage_table(spec.model, [(1, 1)])
    held = stage_parameters(rows, spec, stages, np.zeros(1, dtype=np.intp))
    counted = model_parameters(spec.model)
    assert (held.dense + held.expert)[:, 0].tolist() == [counted.total + copies * counted.mtp] * len(held.dense)


def test_modules_are_on_the_last_stage_with_an_embedding_of_their_own():
    spec = replace(job("llama3-8b", 1), model=load_model("deepseek-v3"), vocab_multiple=1, gpus=2)
    rows = replace(layout(job("llama3-8b", 1)), pp=np.array([2]))
    held = stage_parameters(rows, spec, stage_table(spec.model, [(2, 1)]), np.zeros(1, dtype=np.intp))
    counted = model_parameters(spec.model)
    both = (held.dense + held.expert)[:2, 0].sum()
    assert both == counted.total + counted.mtp + counted.embedding


def test_megatron_bridge_layout_of_deepseek_v3_is_the_split_of_61_layers_and_a_module():
    """`Et|(tt|)*30mL` on 8 stages of 4 chunks: one layer first, two in between, the module with the loss."""
    model = load_model("deepseek-v3")
    per_stage = stage_table(model, [(8, 4)]).counts[0].sum(axis=1)
    assert per_stage[:3].tolist() == [1 + 3 * 2, 3 * 2 + 1, 4 * 2]


def test_a_layer_needs_no_attention_to_have_a_size():
    assert layer_parameters(LayerSpec(None, None, load_model("mixtral-8x7b").kinds[0].moe, 1), 4096).attention == 0
