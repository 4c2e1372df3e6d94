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
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "ministral-8b": 8_019_808_256,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,  # the vocabulary of 8x22B-Instruct has 768 tokens more: 140_630_071_296
    "codeqwen1.5-7b": 7_250_284_544,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-coder-33b": 33_342_991_360,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gemma2-2b": 2_614_341_888,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo3-32b": 32_233_522_176,
    "glm-4.5": 352_797_814_784,
    "llama4-scout": 107_769_861_120,
    "aya-8b": 8_028_033_024,
    "granite-2b": 2_533_531_648,
    "granite-8b": 8_170_848_256,
    "internlm2-1.8b": 1_889_110_016,
    "internlm2-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "phi3-mini": 3_821_079_552,
    "phi4": 14_659_507_200,
    "phi4-mini": 3_836_021_760,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "solar-10.7b": 10_731_524_096,
    "starcoder-1b": 1_137_207_296,
    "yi-9b": 8_829_407_232,
}

# What the safetensors of a repository hold, and which of it is no parameter of the language model.
REPOSITORIES = {
    "gemma3-4b": (4_300_079_472, {"towers"}),
    "llama4-scout": (108_641_793_536, {"towers"}),
    "minimax-m2": (228_689_764_864, {"biases of routers"}),  # MiniMax-M2.7, of the same shape
    "qwen2-vl-2b": (2_208_985_600, {"towers"}),
    "qwen2-vl-7b": (8_291_375_616, {"towers"}),
    "qwen2-vl-72b": (73_405_560_320, {"towers"}),
    "qwen2.5-vl-3b": (3_754_622_976, {"towers"}),
    "qwen2.5-vl-7b": (8_292_166_656, {"towers"}),
    "qwen2.5-vl-32b": (33_452_718_336, {"towers"}),
    "qwen3-0.6b": (751_632_384, {"tied head"}),
    "qwen3-1.7b": (2_031_739_904, {"tied head"}),
    "qwen3-vl-2b": (2_127_532_032, {"towers"}),
    "qwen3-vl-4b": (4_437_815_808, {"towers"}),
    "qwen3-vl-8b": (8_767_123_696, {"towers"}),
    "qwen3-vl-32b": (33_357_390_064, {"towers"}),
    "qwen3-vl-30b-a3b": (31_070_754_032, {"towers"}),
    "qwen3-vl-235b-a22b": (235_670_022_896, {"towers"}),
    "qwen3.5-0.8b": (873_438_784, {"towers", "mtp"}),
    "qwen3.5-2b": (2_274_069_824, {"towers", "mtp"}),
    "qwen3.5-4b": (4_659_865_088, {"towers", "mtp"}),
    "qwen3.5-9b": (9_653_104_368, {"towers", "mtp"}),
    "qwen3.5-27b": (27_781_427_952, {"towers", "mtp"}),  # Qwen3.6-27B, of the same shape
    "qwen3.5-35b-a3b": (35_951_822_704, {"towers", "mtp"}),  # Qwen3.6-35B-A3B, of the same shape
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_total_is_the_published_exact_count(name, count):
    assert model_parameters(load_model(name)).total == count


@pytest.mark.parametrize(("name", "count", "beside"), [(name, *held) for name, held in REPOSITORIES.items()])
def test_a_repository_holds_the_model_and_what_is_beside_it(name, count, beside):
    model = load_model(name)
    params = model_parameters(model)
    routers = sum(kind.moe.experts for kind in (model.kinds[index] for index in model.pattern) if kind.moe)
    parts = {
        "towers": model.counted_tower,
        "mtp": params.mtp,
        "tied head": params.embedding,
        "biases of routers": routers,
    }
    assert params.total + sum(parts[one] for one in beside) == count


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
