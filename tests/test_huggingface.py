"""Hugging Face configs: counts of the transformers library, real files, and hostile input.

`data/transformers_counts.json` holds small random shapes of every model type that transformers has a class for, with
the parameters that its model class has when built (transformers 5.23 and 5.24) and the window of each of its layers.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.huggingface import Config, load_config, read_config
from gpuscale.presets.huggingface_families import FAMILIES
from gpuscale.presets.models import load_model
from gpuscale.specs.model import ModelSpec

SHARED = Path(__file__).parents[2] / "shared" / "formats"
DATA = Path(__file__).parent / "data"
BUILT = json.loads((DATA / "transformers_counts.json").read_text(encoding="utf-8"))
BUILT_WITH_TOWERS = json.loads((DATA / "tower_counts.json").read_text(encoding="utf-8"))

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
GPT_OSS = {**LLAMA, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}


def read(config) -> ModelSpec:
    return read_config(Config("config.json", config, {}), "test")


def windows(model):
    return [model.kinds[index].attention.window for index in model.pattern]


def numerics(config):
    """What a config states beside the shape."""
    return {name: value for name, value in asdict(read(config).numerics).items() if value is not None}


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "mscale": 0.7}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, {"rotary_base": 10000.0, "rotary_scaling": "none"}),
        ({**LLAMA, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "initializer_range": 0.02, "hidden_act": "silu"},
         {"rotary_base": 5e5, "rotary_scaling": "none", "norm_epsilon": 1e-5, "init_std": 0.02, "activation": "silu"}),
        ({**LLAMA, "rope_parameters": {"rope_theta": 7, "rope_type": "llama3", "factor": 8, "low_freq_factor": 1}},
         {"rotary_base": 7, "rotary_scaling": "llama3", "scaling_factor": 8, "scaling_low": 1}),
        ({**DEEPSEEK, "rope_scaling": YARN, "rope_theta": 1e4, "routed_scaling_factor": 2.5, "norm_topk_prob": False},
         {"rotary_base": 1e4, "rotary_scaling": "yarn", "scaling_factor": 40, "scaling_sequence": 4096,
          "scaling_high": 32, "scaling_mscale": 0.7, "router_score": "sigmoid", "router_scale": 2.5,
          "router_normalised": False}),
        ({**GPT_OSS, "swiglu_limit": 7.0, "hidden_act": "silu"},
         {"activation": "swigluoai", "router_score": "softmax", "router_normalised": True}),
        ({**LLAMA, "rope_theta": float("nan"), "rms_norm_eps": "1e-5\n", "hidden_act": ["x"], "rope_scaling": 3,
          "initializer_range": -1, "norm_topk_prob": 2}, {"rotary_scaling": "none"}),
    ],
)  # fmt: skip
def test_what_changes_no_time_is_read_for_exports(config, expected):
    assert numerics(config) == expected


@pytest.mark.parametrize("case", BUILT, ids=[f"{case['config']['model_type']}-{i}" for i, case in enumerate(BUILT)])
def test_small_shapes_count_what_transformers_builds(case):
    model = read(case["config"])
    assert model_parameters(model).total == case["params"]
    if case["windows"] is not None:
        assert windows(model) == case["windows"]


def test_every_model_type_of_transformers_is_covered_by_a_small_shape():
    elsewhere = {  # code outside transformers, older names, or counted from published configs
        "bailing_moe", "chatglm", "dbrx", "deepseek", "emu3_text_model", "gpt-sw3", "internlm2", "kimi_k2",
        "minimax_m3", "phi-msft", "phi4_multimodal",
    }  # fmt: skip
    beside_towers = {case["config"]["text_config"]["model_type"] for case in BUILT_WITH_TOWERS}
    assert {case["config"]["model_type"] for case in BUILT} | beside_towers | elsewhere == set(FAMILIES)


def _real():
    table = SHARED / "hf_configs_params.csv"
    if not table.is_file():
        return []
    with table.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if (SHARED / "hf_configs" / f"{row['config']}.json").is_file()]


REFUSED = {
    "baichuan": "code of its own", "mimo": "code of its own", "minicpm": "code of its own", "qwen": "code of its own",
    "deepseek_ref": "compressed", "phi3small": "block-sparse", "mllama": "cross-attention", "step3p7": "heads differ",
    "nemotron-nas": "a shape of their own", "kimi_k3": "mla_use_output_gate is true",
}  # fmt: skip
"""Model types of the real configs that are refused, and what their message says of them."""


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real configs are not here")
@pytest.mark.parametrize("row", _real(), ids=[row["config"] for row in _real()])
def test_real_config_counts_exactly_or_is_refused(row):
    path = SHARED / "hf_configs" / f"{row['config']}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    inner = data.get("text_config") if isinstance(data.get("text_config"), dict) else {}
    reason = REFUSED.get(data["model_type"])
    if reason is not None:
        with pytest.raises(InputError, match=f"{reason}.*not supported"):
            load_model(str(path))
        return
    model = load_model(str(path))
    if inner and "ConditionalGeneration" in row["loader"]:
        assert any("text backbone" in note for note in model.notes)
        assert model_parameters(model).total + model.counted_tower == int(row["total_params"])
    elif row["total_params"]:
        assert model_parameters(model).total == int(row["total_params"])
        if data["model_type"] != "nemotron_h":  # whose embedding the library's count does not leave out
            assert model_parameters(model).non_embedding == int(row["nonembedding"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real configs are not here")
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("meta-llama--Meta-Llama-3-70B", "llama3-70b"),
        ("deepseek-ai--DeepSeek-V3", "deepseek-v3"),
        ("openai--gpt-oss-120b", "gpt-oss-120b"),
        ("google--gemma-3-27b-it", "gemma3-27b"),
        ("meta-llama--Llama-4-Maverick-17B-128E-Instruct", "llama4-maverick"),
        ("zai-org--GLM-4.5", "glm-4.5"),
        ("moonshotai--Kimi-K2-Instruct", "kimi-k2"),
        ("Qwen--Qwen3-VL-32B-Instruct", "qwen3-32b"),
        ("mistralai--Mistral-7B-v0.1.ome", "mistral-7b"),
        ("microsoft--Phi-3-medium-4k-instruct", "phi3-medium"),
        ("Qwen--Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b"),
        ("Qwen--Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("nvidia--Nemotron-H-56B-Base-8K", "nemotron-h-56b"),
        ("zai-org--GLM-5", "glm-5"),
    ],
)
def test_real_config_gives_the_shape_of_the_preset(config, name):
    model, preset = load_model(str(SHARED / "hf_configs" / f"{config}.json")), load_model(name)
    assert model.kinds == preset.kinds
    assert model.pattern == preset.pattern
    assert (model.hidden, model.vocab, model.mtp_layers) == (preset.hidden, preset.vocab, preset.mtp_layers)
    assert model.tied_embeddings == preset.tied_embeddings


def test_counts_published_for_models_without_a_small_shape():
    chatglm3 = {
        "model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128, "num_layers": 28,
        "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32, "seq_length": 8192,
        "padded_vocab_size": 65024, "add_qkv_bias": True, "add_bias_linear": False,
    }  # fmt: skip
    assert model_parameters(read(chatglm3)).total == 6_243_584_000
    phi2 = {
        "model_type": "phi-msft",
        "n_embd": 2560,
        "n_head": 32,
        "n_layer": 32,
        "n_positions": 2048,
        "vocab_size": 51200,
    }
    assert model_parameters(read(phi2)).total == 2_779_683_840
    internlm2 = {
        "model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 92544, "bias": False,
    }  # fmt: skip
    assert model_parameters(read(internlm2)).total == 7_737_708_544
    gpt_j = {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28, "vocab_size": 50400,
        "n_positions": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    assert model_parameters(read(gpt_j)).total == 6_050_882_784


def test_file_and_folder_are_read(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert load_model(str(folder)) == load_model(str(folder / "config.json"))
    assert load_model(str(folder)).name == "my-model"


def test_nested_text_config_takes_class_defaults_and_says_so():
    model = read({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
                  "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}})  # fmt: skip
    assert model_parameters(model).total == 3_880_263_168  # Gemma 3 4B without its vision tower
    assert windows(model)[:6] == [1024] * 5 + [None]
    assert "text backbone" in model.notes[0]


@pytest.mark.parametrize(
    ("model_type", "layers", "hidden", "heads", "vocab", "params"),
    [
        ("minicpm3", 62, 2560, 40, 73448, 4_073_875_968),  # widths of values
        ("zamba", 76, 3712, 16, 32000, 7_232_490_496),  # heads of twice the width; a shared block in the third layer
        ("bailing_hybrid", 6, 2560, 32, 157184, 13_354_833_696),  # heads of linear attention
        ("dots3_note_text", 6, 5120, 128, 152064, 32_797_700_736),  # heads of layers with a window
    ],
)
def test_what_a_class_derives_is_derived(model_type, layers, hidden, heads, vocab, params):
    config = {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "vocab_size": vocab,
    }  # fmt: skip
    assert model_parameters(read(config)).total == params


def test_tied_embeddings_default_depends_on_the_family():
    assert not read(LLAMA).tied_embeddings
    assert read({**LLAMA, "model_type": "gemma", "head_dim": 8}).tied_embeddings
    assert not read({**LLAMA, "model_type": "gemma", "head_dim": 8, "tie_word_embeddings": False}).tied_embeddings
    outer = {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": {**LLAMA, "model_type": "qwen3_vl_text"},
    }
    assert read(outer).tied_embeddings


def test_quantised_weights_are_noted():
    assert "quantization_config" in read({**LLAMA, "quantization_config": {"bits": 4}}).notes[0]


BAD = [
    (LLAMA, "hidden_size", True), (LLAMA, "hidden_size", -1), (LLAMA, "hidden_size", 10**30),
    (LLAMA, "hidden_size", 64.5), (LLAMA, "hidden_size", float("nan")), (LLAMA, "hidden_size", None),
    (LLAMA, "num_hidden_layers", 10**7), (LLAMA, "num_hidden_layers", "3"), (LLAMA, "num_attention_heads", 0),
    (LLAMA, "num_key_value_heads", {}), (LLAMA, "num_key_value_heads", 3), (LLAMA, "vocab_size", [1]),
    (LLAMA, "tie_word_embeddings", "yes"), (LLAMA, "attention_bias", 1), (LLAMA, "model_type", ["llama"]),
    (LLAMA, "max_position_embeddings", 0), (LLAMA, "layer_types", ["linear_attention"] * 3),
    (GPT_OSS, "layer_types", "full"), (GPT_OSS, "layer_types", ["full_attention"]),
    (GPT_OSS, "layer_types", ["mamba"] * 3), (GPT_OSS, "sliding_window", -4), (GPT_OSS, "mlp_layer_types", ["x"] * 3),
    (DEEPSEEK, "num_experts_per_tok", 9), (DEEPSEEK, "moe_layer_freq", 0), (DEEPSEEK, "moe_layer_freq", [1]),
    (DEEPSEEK, "q_lora_rank", "a"), (DEEPSEEK, "n_routed_experts", 0), (DEEPSEEK, "num_nextn_predict_layers", 99),
    (DEEPSEEK, "n_group", 3), (DEEPSEEK, "topk_group", 9),
]  # fmt: skip


@pytest.mark.parametrize(("base", "key", "value"), BAD, ids=[f"{key}={str(value)[:20]}" for _, key, value in BAD])
def test_bad_value_is_refused_by_its_key(base, key, value):
    assert read(base)
    with pytest.raises(InputError) as caught:
        read({**base, key: value})
    assert key in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("key", ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_missing_key_is_named(key):
    with pytest.raises(InputError, match=f"{key} is missing"):
        read({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize(
    ("kind", "near"),
    [("bert", ""), ("t5", ""), ("zaya", ""), ("mllama", ""), ("lama", "llama"), ("x" * 9999, ""), ("a\x1b[31m", "")],
)
def test_unsupported_model_type_is_refused_in_few_words(kind, near):
    with pytest.raises(InputError, match="not supported") as caught:
        read({**LLAMA, "model_type": kind})
    assert near in (caught.value.hint or "")
    assert len(str(caught.value)) < 300
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"hello", b"[1]", b"3", b"{", b'{"model_type": "llama"', b"\0\0", bytes(range(256)), b"[" * 200_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"a": "' + b"x" * 5_000_000 + b'"}',
        b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
        b'{"model_type": "llama", "hidden_size": 1e999}',
    ],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
def test_hostile_file_gives_one_message(tmp_path, raw):
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert "config.json" in str(caught.value.place)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.floats(), st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=4), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip
keys = sorted({key for case in BUILT for key in case["config"]} | {"text_config", "layer_types", "moe_layer_freq"})


@given(st.sampled_from(BUILT), st.dictionaries(st.sampled_from(keys), values, max_size=3))
def test_any_change_gives_a_model_or_an_input_error(case, changes):
    try:
        model = read({**case["config"], **changes})
    except InputError:
        return
    assert model_parameters(model).total > 0


def test_groups_of_experts_are_read_as_the_router_uses_them():
    model = read({**DEEPSEEK, "n_routed_experts": 8, "n_group": 4, "topk_group": 2})
    moe = next(kind.moe for kind in model.kinds if kind.moe)
    assert (moe.groups, moe.top_groups) == (4, 2)
    free = next(kind.moe for kind in read({**DEEPSEEK, "n_group": 1, "topk_group": 1}).kinds if kind.moe)
    assert (free.groups, free.top_groups) == (1, 1)


@pytest.mark.parametrize("key", ["routed_expert_hidden_size", "mystery_dim", "num_shadow_experts", "kv_lora_size"])
def test_a_size_that_is_not_read_stops_the_import_with_its_name(key):
    with pytest.raises(InputError, match=f"{key} = 32 names a size that is not read"):
        read({**LLAMA, key: 32})
    assert read({**LLAMA, key: 1}) == read({**LLAMA, key: None}) == read({**LLAMA, "pad_token_id": 32}) == read(LLAMA)


def test_no_config_has_more_experts_than_shapes_may_have(tmp_path):
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 2**16 + 1, **shape}), encoding="utf-8")
    with pytest.raises(InputError, match="num_local_experts is 65537, out of range"):
        load_model(path)
