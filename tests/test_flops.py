"""FLOPs per token: the itemised sum against closed forms, brute force, and figures that others publish."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import MODELS

from gpuscale.architecture.flops import (
    average_keys,
    checked_sequence,
    forward_flops,
    layer_forward_flops,
    mtp_forward_flops,
    training_flops_per_token,
)
from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.models import load_model
from gpuscale.specs.model import AttentionSpec, LatentSpec, LayerSpec, MlpSpec, MoeSpec

SEQUENCES = (1, 100, 2048, 4096, 131072)


def matmul_params(model):
    """Parameters that one token multiplies with: all active ones but embeddings, norms and biases."""
    params = model_parameters(model)
    each = (
        k.attention + k.mlp + k.router + k.shared_experts + k.expert_latent + k.routed_experts_per_token
        for k in params.kinds
    )
    layers = sum(count * one for count, one in zip(params.counts, each, strict=True))
    moe = [(count, kind.moe) for count, kind in zip(params.counts, model.kinds, strict=True) if kind.moe]
    biases = sum(
        count * (m.router_bias * m.experts + m.top_k * m.expert_bias * (2 * m.ffn + model.hidden)) for count, m in moe
    )
    return layers - biases + model.vocab * model.hidden


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_full_convention_is_6n_plus_12lhs(model):
    """PaLM, arXiv 2204.02311, appendix B: 6N + 12 L H Q T per token (two head dims where values differ)."""
    for sequence in SEQUENCES:
        core = sum(
            6 * k.attention.heads * (k.attention.head_dim + k.attention.value_head_dim)
            * min(sequence, k.attention.reach or sequence) * count
            for k, count in zip(model.kinds, model.layer_counts, strict=True) if k.attention
        )  # fmt: skip
        closed = 6 * matmul_params(model) + core
        forward = forward_flops(model, sequence, "full")
        others = forward.state_space + forward.indexer + forward.mtp  # tests/test_hybrids.py
        assert 3 * (forward.total - others) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize("name", ["megatron-1.7b", "megatron-175b", "megatron-1t"])
def test_megatron_series_equals_korthikanti_appendix_a(name):
    """72 B s l h^2 (1 + s/(6h) + v/(12hl)) model FLOPs, Korthikanti et al. 2022, eq. 7 (full attention)."""
    model, sequence = load_model(name), 2048
    hidden, layers = model.hidden, model.layers
    closed = 72 * layers * hidden**2 * (1 + sequence / (6 * hidden) + model.vocab / (12 * hidden * layers))
    assert training_flops_per_token(model, sequence, "full") == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "sequence", "convention", "published_gflops"),
    [
        # NeMo 24.01-25.07 and NeMo-Launcher (full attention)
        ("llama3-8b", 8192, "full", 57.91),
        ("llama3-70b", 8192, "full", 481.4),
        ("llama3.1-405b", 8192, "full", 2625),
        ("megatron-175b", 2048, "full", 1076.4),
        ("nemotron-4-340b", 4096, "full", 2105),
        ("mixtral-8x7b", 4096, "full", 82.9),
        # Megatron-Bridge and Megatron-LM core 0.12+ (causal half)
        ("llama3-8b", 8192, "causal", 51.47),
        ("llama3-70b", 8192, "causal", 449.2),
        ("llama3.1-405b", 8192, "causal", 2524),
        ("qwen3-30b-a3b", 4096, "causal", 23.01),
        ("qwen3-235b-a22b", 4096, "causal", 148.0),
        ("deepseek-v3", 4096, "causal", 260.0),  # with its multi-token-prediction module
        ("kimi-k2", 4096, "causal", 204.4),
        ("gpt-oss-120b", 4096, "causal", 32.6),
    ],
)
def test_training_flops_agree_with_what_frameworks_report(name, sequence, convention, published_gflops):
    """GFLOPs per token behind published TFLOP/s: within rounding, once the router, which they leave out, is off."""
    forward = forward_flops(load_model(name), sequence, convention)
    assert 3 * (forward.total - forward.router) / 1e9 == pytest.approx(published_gflops, rel=2e-3)


def test_multi_token_prediction_of_deepseek_v3():
    """Megatron-Bridge counts 260.0 GFLOPs per token with the MTP module and 249.7 without, at 4096 tokens."""
    added = 3 * mtp_forward_flops(load_model("deepseek-v3"), 4096, "causal") / 1e9
    assert added == pytest.approx(260.0 - 249.7, rel=0.02)


@given(st.integers(1, 70), st.one_of(st.none(), st.integers(1, 80)), st.booleans())
def test_average_keys_equals_counting_the_mask(sequence, window, chunked):
    query, key = np.indices((sequence, sequence))
    mask = key <= query
    if window is not None:
        mask &= (query // window == key // window) if chunked else (query - key < window)
    counted = mask.sum() / sequence
    assert average_keys(sequence, window, "causal", chunked=chunked) == pytest.approx(counted, rel=1e-12)
    assert average_keys(sequence, window, "full", chunked=chunked) == min(sequence, window or sequence)


@given(
    st.integers(1, 4), st.sampled_from([4, 8]), st.integers(1, 64), st.integers(1, 99), st.booleans(), st.integers(1, 5)
)
def test_dense_layer_equals_its_closed_form(heads, dim, hidden, ffn, gated, sequence):
    flops = layer_forward_flops(
        LayerSpec(AttentionSpec(heads, 1, dim, dim), MlpSpec(ffn, gated), None), hidden, sequence, "causal"
    )
    weights = hidden * dim * (2 * heads + 2) + (3 if gated else 2) * hidden * ffn
    assert flops.total == 2 * weights + 4 * heads * dim * (sequence + 1) / 2


def test_latent_attention_and_experts_of_one_layer():
    layer = LayerSpec(
        AttentionSpec(2, 2, 12, 6, LatentSpec(5, 7, 8, 4)), None, MoeSpec(9, 3, 11, shared_ffn=13, shared_gate=True)
    )
    flops = layer_forward_flops(layer, 10, 4, "full")
    assert flops.qkv == 2 * (10 * 5 + 5 * 2 * 12 + 10 * (7 + 4) + 7 * 2 * (8 + 6))
    assert flops.attention_core == 2 * 2 * (12 + 6) * 4
    assert flops.attention_output == 2 * 2 * 6 * 10
    assert flops.router == 2 * 10 * (9 + 1)
    assert flops.routed_experts == 2 * 3 * 10 * 11 * 3
    assert flops.shared_experts == 2 * 3 * 10 * 13
    assert flops.mlp == 0


@pytest.mark.parametrize("name", ["llama3-70b", "gpt-oss-20b", "llama4-scout", "deepseek-v3"])
@pytest.mark.parametrize("convention", ["causal", "full"])
def test_an_array_of_sequences_gives_each_one_alone(name, convention):
    model = load_model(name)
    together = training_flops_per_token(model, np.array(SEQUENCES, dtype=np.float64), convention)
    assert together.shape == (len(SEQUENCES),)
    assert together.tolist() == [training_flops_per_token(model, one, convention) for one in SEQUENCES]


def test_causal_never_counts_more_than_full():
    for model in MODELS:
        for sequence in SEQUENCES:
            assert forward_flops(model, sequence, "causal").total <= forward_flops(model, sequence, "full").total


def test_unknown_convention_is_refused():
    with pytest.raises(InputError, match="convention"):
        forward_flops(load_model("llama3-8b"), 10, "half")  # type: ignore[arg-type]


def test_checked_sequence():
    llama, gpt = load_model("llama3-8b"), load_model("gpt3-175b")
    assert checked_sequence(llama, None) == 4096
    assert checked_sequence(gpt, None) == 2048
    assert checked_sequence(llama, 1_000_000) == 1_000_000
    for model, bad in ((llama, 0), (llama, -1), (llama, 2**40), (gpt, 2049)):
        with pytest.raises(InputError):
            checked_sequence(model, bad)
