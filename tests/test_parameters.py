"""Parameter counts: the itemised sum against closed forms, and against published exact counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.architecture.parameters import layer_parameters, model_parameters
from gpuscale.presets.models import load_model
from gpuscale.specs.model import AttentionSpec, LatentSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec

# Published exact counts: safetensors metadata of the Hugging Face repositories (dense), the model classes of the
# transformers library (MoE; repositories also hold load-balancing buffers and MTP modules).
EXACT = {
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gemma2-2b": 2_614_341_888,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "olmo2-13b": 13_716_198_400,
    "glm-4.5": 352_797_814_784,
    "llama4-scout": 107_769_861_120,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_total_is_the_published_exact_count(name, count):
    assert model_parameters(load_model(name)).total == count


@pytest.mark.parametrize(
    ("name", "published", "with_embedding"),
    [
        ("gpt-oss-120b", 5.13e9, False),  # model card, table 1: without the embedding
        ("gpt-oss-20b", 3.61e9, False),
        ("mixtral-8x7b", 12.88e9, True),  # paper: 12.9B
        ("qwen3-30b-a3b", 3.35e9, True),  # report: 3.3B
        ("deepseek-v3", 36.63e9, False),  # report: 37B
    ],
)
def test_active_agrees_with_what_is_published(name, published, with_embedding):
    params = model_parameters(load_model(name))
    active = params.active if with_embedding else params.active - params.embedding
    assert active == pytest.approx(published, rel=1.5e-3)


def test_active_is_total_less_the_experts_not_visited():
    params = model_parameters(load_model("deepseek-v3"))
    assert params.active == params.total - 58 * (256 - 8) * 3 * 7168 * 2048


def test_mtp_module_of_deepseek_v3_is_counted_apart():
    # The repository's README: 671B main model and 14B MTP, of which 0.9B embedding and 0.9B head are shared.
    params = model_parameters(load_model("deepseek-v3"))
    assert params.mtp + params.embedding + params.lm_head == pytest.approx(14e9, rel=0.05)
    assert params.mtp == params.kinds[1].total + 2 * 7168 * 7168 + 3 * 7168
    assert params.total == 671_026_404_352


def test_parts_of_gpt_oss_sum_up():
    params = model_parameters(load_model("gpt-oss-20b"))
    kind = params.kinds[0]
    assert kind.total == kind.dense_params + kind.routed_experts
    assert params.experts == 24 * 32 * (3 * 2880 * 2880 + 2 * 2880 + 2880)
    assert params.total == params.embedding + params.layers + params.final_norm + params.lm_head
    assert params.non_embedding == 19_756_490_304


def model(kind, *, layers, hidden, vocab, tied=False, positions=0, **more):
    return ModelSpec(
        name="m", title="m", family="m", hidden=hidden, vocab=vocab, kinds=(kind,), pattern=(0,) * layers,
        tied_embeddings=tied, learned_positions=positions, max_sequence=4096, **more,
    )  # fmt: skip


layers_ = st.integers(1, 6)
groups = st.sampled_from([1, 2, 4])
dims = st.sampled_from([8, 16, 24])
widths = st.integers(1, 200)


@given(layers_, st.integers(1, 8), dims, st.integers(1, 500), st.integers(1, 300))
def test_gpt_equals_narayanan_eq_2(layers, heads, dim, vocab, positions):
    """P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)), Narayanan et al. 2021, eq. 2; plus the final norm."""
    hidden = heads * dim
    kind = LayerSpec(
        AttentionSpec(heads, heads, dim, dim, qkv_bias=True, output_bias=True),
        MlpSpec(4 * hidden, gated=False, bias=True),
        None,
        norm_bias=True,
    )
    spec = model(kind, layers=layers, hidden=hidden, vocab=vocab, tied=True, positions=positions)
    closed = 12 * layers * hidden**2 + 13 * layers * hidden + (vocab + positions) * hidden
    assert model_parameters(spec).total == closed + 2 * hidden


@given(layers_, groups, groups, dims, widths, widths, st.integers(1, 500))
def test_llama_equals_its_closed_form(layers, kv, group, dim, hidden, ffn, vocab):
    kind = LayerSpec(AttentionSpec(kv * group, kv, dim, dim), MlpSpec(ffn, gated=True), None)
    spec = model(kind, layers=layers, hidden=hidden, vocab=vocab)
    per_layer = 2 * hidden * dim * kv * (group + 1) + 3 * hidden * ffn + 2 * hidden
    assert model_parameters(spec).total == 2 * vocab * hidden + layers * per_layer + hidden


@given(layers_, groups, dims, widths, widths, st.integers(1, 9), st.integers(1, 9), st.integers(0, 50))
def test_mixture_of_experts_equals_its_closed_form(layers, heads, dim, hidden, ffn, experts, top_k, shared):
    top_k = min(top_k, experts)
    kind = LayerSpec(AttentionSpec(heads, heads, dim, dim), None, MoeSpec(experts, top_k, ffn, shared_ffn=shared))
    spec = model(kind, layers=layers, hidden=hidden, vocab=7, tied=True)
    rest = 4 * hidden * heads * dim + 2 * hidden + hidden * experts + 3 * hidden * shared
    params = model_parameters(spec)
    assert params.total == 8 * hidden + layers * (rest + 3 * experts * hidden * ffn)
    assert params.active == 8 * hidden + layers * (rest + 3 * top_k * hidden * ffn)
    assert params.kinds[0].dense_params == rest


@given(st.integers(1, 8), widths, st.one_of(st.none(), widths), widths, dims, dims, dims)
def test_latent_attention_equals_its_closed_form(heads, hidden, q_rank, kv_rank, nope, rope, value):
    """Matrices of DeepSeek-V2, arXiv 2405.04434, eqs. 9-17, written out one by one."""
    attention = AttentionSpec(heads, heads, nope + rope, value, LatentSpec(q_rank, kv_rank, nope, rope))
    counted = layer_parameters(LayerSpec(attention, MlpSpec(1, gated=False), None), hidden)
    query = hidden * heads * (nope + rope) if q_rank is None else hidden * q_rank + q_rank * heads * (nope + rope)
    key_value = hidden * (kv_rank + rope) + kv_rank * heads * (nope + value)
    assert counted.attention == query + key_value + heads * value * hidden
    assert counted.qk_norm == kv_rank + (q_rank or 0)
    assert counted.tp_replicated == 2 * hidden + counted.qk_norm + hidden * (kv_rank + rope + (q_rank or 0))


def test_norms_and_biases_of_small_layers():
    attention = AttentionSpec(4, 2, 8, 8, qkv_bias=True, output_bias=True, qk_norm="head", sinks=True)
    counted = layer_parameters(LayerSpec(attention, MlpSpec(10, gated=True, bias=True), None, 4, True), 16)
    assert counted.qk_norm == 2 * 8
    assert counted.norms == 4 * 2 * 16
    assert counted.biases == (32 + 16 + 16) + 16 + 4 + (2 * 10 + 16)
    assert counted.tp_replicated == counted.norms + 2 * 8 + 16 + 16


def test_full_width_query_and_key_norms():
    attention = AttentionSpec(4, 2, 8, 8, qk_norm="full")
    assert layer_parameters(LayerSpec(attention, MlpSpec(1, gated=False), None), 16).qk_norm == 32 + 16


def test_head_bias_counts_even_when_the_matrix_is_tied():
    kind = LayerSpec(AttentionSpec(1, 1, 4, 4), MlpSpec(4, gated=False), None)
    plain = model_parameters(model(kind, layers=1, hidden=4, vocab=9, tied=True))
    biased = model_parameters(model(kind, layers=1, hidden=4, vocab=9, tied=True, head_bias=True))
    assert biased.total - plain.total == 9


def test_the_indexer_of_deepseek_v32_by_hand():
    """Queries from the compressed one, one key, a weight per head, and a LayerNorm with weight and bias."""
    kind = model_parameters(load_model("deepseek-v3.2")).kinds[-1]
    assert kind.indexer == 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128


def test_kimi_delta_attention_by_hand():
    """Kimi Linear: 32 heads of 128; gates of low rank, convolutions over 4 tokens (fla, layers/kda.py)."""
    kind = max(model_parameters(load_model("kimi-linear-48b-a3b")).kinds, key=lambda one: one.state_space)
    hidden, width, rank = 2304, 32 * 128, 128
    products = 4 * hidden * width + hidden * 32 + 2 * (hidden * rank + rank * width)
    assert kind.state_space == products + 3 * width * 4 + width + 32 + 128
