"""A model as Megatron-LM's arguments have it, both ways."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from typing import Any

from gpuscale.launch.settings import LackingError, Reading
from gpuscale.launch.shapes import all_models_once, model_line, named_shape, shape_but_vocabulary
from gpuscale.launch.tokenizers import vocabulary_of
from gpuscale.launch.writing import Writing
from gpuscale.presets.files import known_table
from gpuscale.specs.model import MAX_LAYERS, AttentionSpec, LayerSpec, ModelSpec, MoeSpec, NumericsSpec

EXTRA_TOKEN = 1
"""What Megatron-LM's NullTokenizer adds to `--vocab-size`, the end of a document
(core/tokenizers/text/libraries/null_tokenizer.py)."""

USUAL_VOCABULARY = 32000
"""Of Llama's tokenizer, and of most that were made after its model."""

ALIKE = 1.05
"""Ratio of vocabularies up to which it does not matter which of them a model has: of one tokenizer, padded or not."""

_KNOWN = known_table("megatron")

GENERAL = tuple(_KNOWN["general_tokenizers"])

VOCABULARIES = {"GPT2BPETokenizer": 50257, "megatron": 50257}
"""Tokenizers that have one vocabulary."""

Arguments = dict[str, Any]
"""Arguments by the name of their destination (`num_layers`); True for a flag alone."""


def model_arguments(writing: Writing) -> Arguments:
    """Return the arguments that make a plan's model; what they cannot make is refused."""
    model = writing.model
    layer, attention = model.kinds[0], model.kinds[0].attention
    for what in _unavailable(model):
        writing.refuse("model", f"no argument for {what} ({model.name})")
    if attention is None or writing.refused:
        return {}
    experts = next((kind.moe for kind in model.kinds if kind.moe), None)
    dense = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    gated = (dense or experts).gated if dense or experts else False  # type: ignore[union-attr]
    ffn = dense.ffn if dense else experts.ffn if experts else 0
    longest = model.learned_positions or max(model.max_sequence, writing.spec.sequence)
    if writing.spec.sequence > longest:
        writing.refuse("seq", f"positions are learned and end at {longest:,} (arguments.py:1354)")
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": ffn,
        "max_position_embeddings": longest,
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "normalization": "LayerNorm" if layer.norm_bias else "RMSNorm",
        "swiglu": gated,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": model.vocab - EXTRA_TOKEN,
        **_attention_arguments(attention, layer),
        **_window_arguments(model),
        **(_expert_arguments(model, experts) if experts else {}),
        **({"mtp_num_layers": model.mtp_depth} if model.mtp_depth else {}),
        **({"mtp_use_repeated_layer": True} if model.mtp_depth and model.mtp and model.mtp.shared else {}),
        **_numeric_arguments(model),
    }


OF_NUMERICS = _KNOWN["numerics"]

LLAMA_SCALING = (1.0, 4.0, 8192)
"""Frequencies and positions of `--use-rope-scaling` (core/models/common/embeddings/rotary_pos_embedding.py)."""

LATENT_SCALING = (1.0, 32.0, 4096)
"""Those of the yarn of latent attention (core/transformer/transformer_config.py, MLATransformerConfig)."""


def here(model: ModelSpec) -> NumericsSpec:
    """Return what Megatron-LM computes where nothing is said (arguments.py, core/transformer/transformer_config.py)."""
    gated = any(block.gated for kind in model.kinds for block in (kind.mlp, kind.moe) if block)
    latent = any(attention.latent for attention in model.attentions)
    return NumericsSpec(
        rotary_base=10000.0, rotary_share=1.0, rotary_scaling=None if latent else "none", norm_epsilon=1e-5,
        init_std=0.02, activation="silu" if gated else "gelu", router_score="softmax", router_normalised=True,
        router_scale=1.0, router_aux_loss=0.0,
    )  # fmt: skip


def _numeric_arguments(model: ModelSpec) -> Arguments:
    """Return the arguments of what is computed beside the shape, as far as the model states it and they can say it."""
    stated, latent = model.numerics, any(attention.latent for attention in model.attentions)
    found: Arguments = {"norm_epsilon": stated.norm_epsilon, "init_method_std": stated.init_std}
    if not model.learned_positions:
        base = stated.rotary_base  # a whole number (arguments.py)
        found["rotary_base"] = int(base) if base is not None and base.is_integer() else None
        found["rotary_percent"] = stated.rotary_share
        ends = (stated.scaling_low, stated.scaling_high, stated.scaling_sequence)
        if stated.rotary_scaling == "none" and latent:
            found["rope_type"] = "rope"
        elif stated.rotary_scaling == "llama3" and ends == LLAMA_SCALING and not latent:
            found |= {"use_rope_scaling": True, "rope_scaling_factor": stated.scaling_factor}
        elif stated.rotary_scaling == "yarn" and ends == LATENT_SCALING and latent:
            found |= {"rotary_scaling_factor": stated.scaling_factor, "mscale": stated.scaling_mscale}
            found |= {"mscale_all_dim": stated.scaling_mscale_all}
    experts = next((kind.moe for kind in model.kinds if kind.moe), None)
    if stated.activation == "relu2" and here(model).activation == "gelu":
        found["squared_relu"] = True
    if experts:
        softmax = not experts.correction_bias and stated.router_score != "sigmoid"
        if stated.router_score:
            found["moe_router_score_function"] = "softmax" if softmax else "sigmoid"
        # of one expert softmax over the chosen would be 1 (transformer_config.py)
        if softmax and (experts.top_k == 1 or stated.router_normalised is False):
            found["moe_router_pre_softmax"] = True
        found |= {"moe_router_topk_scaling_factor": stated.router_scale, "moe_aux_loss_coeff": stated.router_aux_loss}
    return {name: value for name, value in found.items() if value is not None}


def _attention_arguments(attention: AttentionSpec, layer: LayerSpec) -> Arguments:
    found: Arguments = {"num_attention_heads": attention.heads}
    biased = attention.output_bias or (attention.qkv_bias and bool(layer.mlp and layer.mlp.bias))
    found["disable_bias_linear"] = not biased
    found |= {"add_qkv_bias": True} if attention.qkv_bias and not biased else {}
    found |= {"softmax_type": "learnable"} if attention.sinks else {}
    found |= {"attention_output_gate": True} if attention.output_gate else {}
    if attention.latent:
        latent = attention.latent
        found |= {
            "multi_latent_attention": True, "q_lora_rank": latent.query_rank, "kv_lora_rank": latent.kv_rank,
            "qk_head_dim": latent.nope_dim, "qk_pos_emb_head_dim": latent.rope_dim,
            "v_head_dim": attention.value_head_dim, "qk_layernorm": True,
        }  # fmt: skip
    else:
        found["kv_channels"] = attention.head_dim
        if attention.kv_heads < attention.heads:
            found |= {"group_query_attention": True, "num_query_groups": attention.kv_heads}
        found |= {"qk_layernorm": True} if attention.qk_norm == "head" else {}
    if attention.indexer:
        found |= {
            "experimental_attention_variant": "dsa",
            "dsa_indexer_n_heads": attention.indexer.heads,
            "dsa_indexer_head_dim": attention.indexer.head_dim,
            "dsa_indexer_topk": attention.indexer.top_k,
        }
    return found


def _window_arguments(model: ModelSpec) -> Arguments:
    windows = [kind.window for index in model.pattern if (kind := model.kinds[index].attention)]
    length = next((one for one in windows if one), None)
    if length is None:
        return {}
    every = windows.index(None) + 1 if None in windows else 0
    return {"window_size": f"{length - 1},0", **({"window_attn_skip_freq": every} if every else {})}


def _expert_arguments(model: ModelSpec, moe: MoeSpec) -> Arguments:
    has = [int(model.kinds[index].moe is not None) for index in model.pattern]
    runs = "+".join(f"[{value}]*{len(list(same))}" for value, same in groupby(has))
    found: Arguments = {"num_experts": moe.experts, "moe_router_topk": moe.top_k, "moe_ffn_hidden_size": moe.ffn}
    found |= {} if all(has) else {"moe_layer_freq": f"({runs})"}
    found |= {"moe_shared_expert_intermediate_size": moe.shared_ffn} if moe.shared_ffn else {}
    found |= {"moe_shared_expert_gate": True} if moe.shared_gate else {}
    found |= {"moe_latent_size": moe.latent} if moe.latent else {}
    if moe.correction_bias:
        found |= {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
    if moe.groups > 1:
        found |= {"moe_router_num_groups": moe.groups, "moe_router_group_topk": moe.top_groups}
    return {**found, "moe_grouped_gemm": True, "moe_permute_fusion": True}


def _unavailable(model: ModelSpec) -> list[str]:
    """Name what a model has and no argument makes."""
    kinds, attentions = model.trained_kinds, [kind.attention for kind in model.kinds]
    some = [one for one in attentions if one is not None]
    shapes = {replace(one, window=None) for one in some}
    windows = [one.window if one else None for index in model.pattern for one in [model.kinds[index].attention]]
    period = windows.index(None) + 1 if None in windows else 0
    regular = [window if period == 0 or (at + 1) % period else None for at, window in enumerate(windows)]
    biases = {
        (bool(kind.attention and kind.attention.qkv_bias), bool(kind.attention and kind.attention.output_bias),
         kind.mlp.bias if kind.mlp else bool(kind.moe and kind.moe.expert_bias),
         kind.moe.router_bias if kind.moe else None)
        for kind in model.kinds
    }  # fmt: skip
    whole = {(True, True, True), (False, False, False), (True, False, False)}
    odd_bias = any(one[:3] not in whole or one[3] not in {None, one[1]} for one in biases)
    wrong = {
        model.uncommon: bool(model.uncommon),
        "layers without attention": None in attentions or any(kind.state_space for kind in kinds),
        "norms, MLPs or experts that differ between layers": len({kind.norm_bias for kind in kinds}) > 1
        or any(len({getattr(kind, block) for kind in model.kinds} - {None}) > 1 for block in ("mlp", "moe"))
        or len({block.gated for kind in model.kinds for block in (kind.mlp, kind.moe) if block}) > 1,
        "layers of a single block": any(kind.mlp is None and kind.moe is None for kind in kinds),
        "attention that differs between layers": len(shapes) > 1,
        "values of another width than keys": any(not one.latent and one.value_head_dim != one.head_dim for one in some),
        "chunked attention": any(one.chunked for one in some),
        "windows in other layers than all but every n-th": any(windows) and regular != windows,
        "norms of whole query and key projections": any(one.qk_norm == "full" for one in some),
        "biases of only some projections": odd_bias,
        "parallel attention and MLP": any(kind.parallel_blocks for kind in kinds),
        "norms behind each block": any(kind.norms not in {2, 5} for kind in kinds),
        "layers that share their choice of keys": any(one.indexer and one.indexer.shared for one in some),
        "a bias of the LM head": model.head_bias,
        "a correction bias of softmax scores": model.numerics.router_score == "softmax"
        and any(kind.moe and kind.moe.correction_bias for kind in kinds),
        "layers that stay in 16 bits": any(kind.wide_under for kind in kinds),
        "prediction modules of several layers": bool(model.mtp_depth and model.mtp and len(model.mtp.layers) > 1),
    }
    return [what for what, is_so in wrong.items() if is_so]


# --- reading


def read_model(reading: Reading) -> None:
    """Set the model from the arguments of its shape.

    Raises:
        InputError: the shape is stated in part, or is of a kind that is not modelled.
    """
    layers, hidden = reading.integer("num_layers", "decoder_num_layers"), reading.integer("hidden_size")
    layers = layers - len(reading.words(IDLE)) if layers else layers
    heads = reading.integer("num_attention_heads")
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "num_layers", "hidden_size", "num_attention_heads")
        reading.shape |= {"layers": layers} if layers else {}
        return
    if "model" in reading.options or layers is None or hidden is None or heads is None:  # a recipe's, and what changes
        return
    _refuse_other_models(reading)
    reading.model("layers", layers, "num_layers", "decoder_num_layers", IDLE)
    reading.model("hidden", hidden, "hidden_size")
    reading.model("heads", heads, "num_attention_heads")
    gated = reading.flag("swiglu", "gated_linear_unit") or (reading.text("activation") or "").endswith("glu")
    gated |= bool(re.fullmatch(r"(fast-)?(swiglu|geglu|reglu)", reading.text("activation") or ""))
    usual = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden  # arguments.py
    multiple = reading.integer("multiple_of")
    if gated and multiple:  # FlagScale: as Llama's own, rounded up
        usual = multiple * -(-int(8 * hidden / 3 * (reading.number("hidden_dim_multiplier") or 1)) // multiple)
        reading.means("rounds the MLP's width", "multiple_of", "hidden_dim_multiplier")
    gated |= reading.flag("quick_geglu")
    ffn = reading.integer("ffn_hidden_size") or usual
    reading.model("ffn", ffn, "ffn_hidden_size")
    reading.model(
        "gated", gated, "swiglu", "gated_linear_unit", "quick_geglu", "activation", "bias_gelu_fusion", "squared_relu"
    )
    _read_attention(reading, hidden, heads)
    _read_experts(reading, layers)
    biased = reading.flag("add_bias_linear", "bias", default=True) and not reading.flag("disable_bias_linear")
    qkv = biased or reading.flag("add_qkv_bias", "qkv_bias")
    of = ("disable_bias_linear", "add_bias_linear", "bias")
    for key, value in (("qkv_bias", qkv), ("output_bias", biased), ("mlp_bias", biased)):
        reading.model(key, value, *of, *(["add_qkv_bias", "qkv_bias"] if key == "qkv_bias" else []))
    if "moe.experts" in reading.shape and biased:
        reading.model("moe.expert_bias", True, *of)
        reading.model("moe.router_bias", True, *of)
    forked = reading.flag("rmsnorm", "RMSNorm", "use_rmsnorm")
    norm = (reading.text("normalization") or ("rmsnorm" if forked else "layernorm")).lower()
    reading.model("norm_bias", norm in {"layernorm", "layernorm1p", "low_precision_layernorm"}, "normalization")
    untied = reading.flag("untie_embeddings_and_output_weights")
    shared = reading.flag("share_embeddings_and_output_weights", default=not untied)
    tying = ("untie_embeddings_and_output_weights", "share_embeddings_and_output_weights")
    reading.model("tied_embeddings", shared and not untied, *tying)
    _read_positions(reading)
    mtp = reading.integer("mtp_num_layers") or 0
    if mtp:
        reading.model("mtp_layers", mtp, "mtp_num_layers")
    _read_vocabulary(reading)


IDLE = "noop_layers"
"""Numbers of layers that do nothing, among all (MindSpeed)."""


def _refuse_other_models(reading: Reading) -> None:
    """Refuse what is no decoder-only language model, or has layers that are not read."""
    experts = reading.get("num_experts")
    if experts is not None and isinstance(experts.value, list) and len(set(map(str, experts.value))) > 1:
        message = "pyramid experts, another number of them in other layers, are not modelled"
        reading.refuse(experts, message, "models of as many experts in every layer that has some are predicted")
    for name, what in (
        ("encoder_num_layers", "an encoder"), ("hybrid_layer_pattern", "Mamba layers"),
        ("hybrid_override_pattern", "Mamba layers"), ("spec", "layers of a module of one's own"),
        ("linear_attention_freq", "linear attention"),
    ):  # fmt: skip
        found = reading.get(name)
        decoder = reading.get("num_layers") if name == "encoder_num_layers" else None
        if found and decoder and str(found.value) == str(decoder.value):
            continue  # Megatron-LM prints its number of layers under both names
        if found:
            are = "Mamba layers" if "mamba" in str(found.value) else what
            reading.refuse(found, f"{are}: not read from arguments", BY_NAME, settles="model")
    words = [word for source in reading.sources for word in source.program if word.endswith(".py")]
    for part, what in _KNOWN["programs"].items():
        if any(re.search(rf"(pretrain|train|finetune)_({part})\.py$|(^|/)({part})/[^/]+$", word) for word in words):
            where = reading.get("num_layers", "decoder_num_layers")
            reading.refuse(where, f"{words[-1][:60]} builds {what}: not read from arguments", BY_NAME, settles="model")
    beside = reading.get("mlp_type")
    if beside is not None and str(beside.value) == "residual":  # of DeepSpeed
        reading.refuse(beside, "experts beside a dense MLP: not read from arguments", BY_NAME, settles="model")
    kind = reading.text("name", "model_type") or ""
    mamba = re.compile(r"(model\.)?mamba_|is_hybrid_model$|hybrid_\w+_ratio$")
    state_space = [name for name in reading.settings if mamba.match(name)]
    found = reading.get(*state_space) or (reading.get("name", "model_type") if "mamba" in kind.lower() else None)
    if found:
        reading.refuse(found, "Mamba layers: not read from arguments", BY_NAME, settles="model")


BY_NAME = "give the model by name: `model=NAME`"


def _read_attention(reading: Reading, hidden: int, heads: int) -> None:
    if reading.flag("multi_latent_attention"):
        if reading.get(LATENT["kv_rank"][0]) is None:
            reading.assume("keys and values of rank 512; some releases of Megatron-LM have 32 where none is stated")
        for key, (name, width) in LATENT.items():
            reading.model(f"latent.{key}", reading.integer(name) or width, name)
        reading.means("latent attention", "multi_latent_attention", "qk_layernorm", "kv_channels")
    else:
        _read_heads(reading, hidden, heads)
    if (reading.text("softmax_type") or "vanilla") == "learnable":
        reading.model("sinks", True, "softmax_type")
    if reading.flag("attention_output_gate"):
        reading.model("output_gate", True, "attention_output_gate")
    _read_window(reading)
    variant = reading.get("experimental_attention_variant")
    if variant is not None and str(variant.value) != "dsa":
        reading.refuse(variant, "attention of a variant that is not read from arguments", BY_NAME, settles="model")
    elif variant is not None:
        for key in ("heads", "head_dim", "top_k"):
            name = {"heads": "dsa_indexer_n_heads", "top_k": "dsa_indexer_topk"}.get(key, f"dsa_indexer_{key}")
            reading.model(f"indexer.{key}", reading.integer(name), name, "experimental_attention_variant")


def _read_heads(reading: Reading, hidden: int, heads: int) -> None:
    groups = reading.integer("num_query_groups")
    if (reading.text("attention_head_type") or "") == "multiquery":  # BigCode's fork (megatron/arguments.py)
        reading.model("kv_heads", 1, "attention_head_type")
    found = reading.get("num_query_groups")  # forks call it otherwise, and have no switch
    plain = reading.tool.name == "megatron-lm" and found is not None and found.last == "num_query_groups"
    asked = reading.flag("group_query_attention", default=groups is not None and not plain)
    if plain and not asked and "group_query_attention" not in reading.settings:
        reading.assume("counts beside --group-query-attention alone, as Megatron-LM has it", "num_query_groups")
    elif asked and not groups:
        groups = 1
        reading.assume(
            "one head of keys and values, Megatron-LM's default of --num-query-groups", "group_query_attention"
        )
    if groups and asked and groups != heads:
        reading.model("kv_heads", groups, "num_query_groups", "group_query_attention")
    width = reading.integer("kv_channels")
    if width and width * heads != hidden:
        reading.model("head_dim", width, "kv_channels")
    if reading.flag("qk_layernorm"):
        reading.model("qk_norm", "head", "qk_layernorm")


LATENT = {
    "query_rank": ("q_lora_rank", None), "kv_rank": ("kv_lora_rank", 512), "nope_dim": ("qk_head_dim", 128),
    "rope_dim": ("qk_pos_emb_head_dim", 64), "value_dim": ("v_head_dim", 128),
}  # fmt: skip
"""Key of the model -> argument and its default (core/transformer/transformer_config.py, MLATransformerConfig)."""


def _read_window(reading: Reading) -> None:
    own = reading.integer("sliding_window")  # MindSpeed-LLM's, of so many tokens
    if own:
        reading.model("window.length", own, "sliding_window")
        return
    found = reading.needed("window_size")
    if found is None:
        return
    numbers = re.findall(r"-?\d+", str(found.value))[:2]
    if numbers and int(numbers[0][:12]) >= 0:
        reading.model("window.length", int(numbers[0][:12]) + 1, "window_size")
        every = reading.get("window_attn_skip_freq")
        if every and re.fullmatch(r"\d{1,4}", str(every.value)):
            reading.model("window.full_every", int(str(every.value)), "window_attn_skip_freq")
        elif every:
            reading.refuse(every, "a list of windowed layers is not modelled", "give the model by name: `model=NAME`")


def _read_experts(reading: Reading, layers: int) -> None:
    experts = reading.integer("num_experts", "num_moe_experts")
    if not experts:
        return
    reading.model("moe.experts", experts, "num_experts", "num_moe_experts")
    reading.model("moe.top_k", reading.integer("moe_router_topk") or 2, "moe_router_topk")
    width = reading.integer("moe_ffn_hidden_size") or reading.shape["ffn"]
    reading.model("moe.ffn", width, "moe_ffn_hidden_size", "ffn_hidden_size")
    shared = reading.integer("n_shared_experts", "num_shared_experts")  # of MindSpeed and Pai-Megatron-Patch
    if shared:
        reading.model("moe.shared_ffn", shared * width, "n_shared_experts", "num_shared_experts")
    plain = {
        "moe.shared_ffn": "moe_shared_expert_intermediate_size", "moe.latent": "moe_latent_size",
        "moe.groups": "moe_router_num_groups", "moe.top_groups": "moe_router_group_topk",
    }  # fmt: skip
    for key, name in plain.items():
        value = reading.integer(name)
        if value:
            reading.model(key, value, name)
    for key, name in (("shared_gate", "moe_shared_expert_gate"), ("correction_bias", "moe_router_enable_expert_bias")):
        if reading.flag(name):
            reading.model(f"moe.{key}", True, name)
    reading.means("how experts are chosen", "moe_router_score_function")
    _read_expert_layers(reading, layers)


def _read_expert_layers(reading: Reading, layers: int) -> None:
    found, layers = reading.needed("moe_layer_freq"), min(layers, MAX_LAYERS)  # a model of more is refused
    has = [1] * layers if found is None else layer_frequency(str(found.value), layers)
    dense = reading.integer("first_k_dense_replace") or 0
    has = [0] * dense + has[dense:] if has else has
    if has is None or not any(has):
        reading.refuse(found, f"not a list of {layers} zeros and ones", "write 1, or ([0]*3+[1]*58)")
    dense = has.index(1)
    steps = range(1, layers + 1)
    every = next((n for n in steps if has == [int(at >= dense and (at + 1) % n == 0) for at in range(layers)]), 0)
    if every == 0:
        hint = "give the model by name: `model=NAME`"
        reading.refuse(found, "modelled are dense layers before all others, and experts in every n-th layer", hint)
    first = 0 if dense == every - 1 else dense
    for key, value in (("dense_layers", first), ("every", every if every > 1 else 0)):
        if value:
            reading.model(f"moe.{key}", value, "moe_layer_freq", "first_k_dense_replace")
    if all(has):
        reading.means("experts in every layer", "moe_layer_freq")


def layer_frequency(text: str, layers: int) -> list[int] | None:
    """Return which layers have experts, from Megatron-LM's `--moe-layer-freq`: a number or a sum of repeated lists.

    `2` means the layers 0, 2, 4, ...; `([0]*3+[1]*58)` the first three dense. None where it is neither.
    """
    text = re.sub(r"[\s'\"]", "", text[:10_000])
    if re.fullmatch(r"\d{1,4}", text):
        step = int(text)
        return [int(at % step == 0) for at in range(layers)] if step else None
    found: list[int] = []
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    for part in re.split(r"\+(?![^\[]*\])", text):
        match = re.fullmatch(r"\(?(\[[01](?:,[01])*,?\])\)?(?:\*(\d{1,4}))?", part)
        if match is None or len(found) > layers:
            return None
        found += [int(one) for one in re.findall(r"[01]", match[1])] * int(match[2] or 1)
    return found if len(found) == layers else None


def _read_positions(reading: Reading) -> None:
    longest = reading.integer("max_position_embeddings") or reading.integer("seq_length", "encoder_seq_length")
    stated = reading.settings.get("position_embedding_type")
    if stated is not None:
        reading.need(stated)
    kind = "learned_absolute" if stated is None or stated.value is None else str(stated.value).lower()
    if reading.flag("use_rotary_position_embeddings"):
        kind = "rope"
    of = ("position_embedding_type", "max_position_embeddings", "use_rotary_position_embeddings")
    if longest:
        reading.shape["sequence"] = longest
        reading.means(f"made for sequences of {longest:,}", "max_position_embeddings")
    if kind in {"learned_absolute", "learned_parameters"} and longest:
        reading.model("learned_positions", longest, *of)
    else:
        reading.means("no learned positions", "position_embedding_type", "use_rotary_position_embeddings")


_OF_FAMILY = re.compile(r"pretrain_(llama|baichuan|internlm|qwen|mistral|aquila)\w*\.py")
"""Programs of AscendSpeed that build blocks of a family whatever the arguments say of them."""


def _refuse_family(reading: Reading) -> None:
    """Ask for the model where the program's name speaks of a family with gated MLPs, and no argument does.

    Raises:
        LackingError: it is so; presets of these sizes are likely.
    """
    said = _OF_FAMILY.search(" ".join(word for source in reading.sources for word in source.program))
    sizes = tuple(reading.shape.get(key) for key in ("layers", "hidden", "ffn"))
    if said is None or reading.shape.get("gated") or sizes[2] in {None, 4 * (sizes[1] or 0)}:
        return
    likely = [one.name for one in all_models_once() if one.name.startswith(said[1])
              and (one.layers, one.hidden, getattr(one.kinds[0].mlp, "ffn", None)) == sizes]  # fmt: skip
    message = f"{said[0]} builds blocks of its own, and no argument says that their MLPs are gated"
    reading.refuse(reading.get("num_layers"), message, settles="model", likely=likely)


def _read_vocabulary(reading: Reading) -> None:
    """Set the vocabulary and then the model: a preset of this shape where there is one."""
    _refuse_family(reading)
    kind = reading.text("tokenizer_type", "tokenizer.type", "tokenizer.tokenizer_type") or ""
    padded = reading.integer("padded_vocab_size")
    size = reading.integer("vocab_size")
    if size is not None:
        extra = EXTRA_TOKEN if "null" in kind.lower() else 0
        reading.model("vocab", size + extra, "vocab_size")
        reading.means("one more token ends documents" if extra else "the tokenizer", "tokenizer_type")
    elif kind in VOCABULARIES:
        reading.model("vocab", VOCABULARIES[kind], "tokenizer_type", "tokenizer.type")
    elif padded is not None:
        reading.model("vocab", padded, "padded_vocab_size")
    else:
        _read_tokenizer(reading)
    reading.options["model"] = named_shape(reading.shape)


_TOKENIZERS = tuple(_KNOWN["tokenizers"])


def _read_tokenizer(reading: Reading) -> None:
    """Set the vocabulary by the name of the tokenizer, else of the model that has this shape.

    Raises:
        LackingError: neither is known.
    """
    for argument in _TOKENIZERS:
        found = reading.get(argument)
        size = vocabulary_of(str(found.value)) if found is not None and isinstance(found.value, str) else None
        if found is not None and size is not None:
            reading.model("vocab", size, argument)
            reading.assume(f"vocabulary of {size:,}, by the tokenizer's name", argument)
            return
    where, line = reading.get(*_TOKENIZERS, "num_layers"), model_line(reading.shape)
    likely = shape_but_vocabulary(reading.shape)
    sizes = [one.vocab for one in likely]
    kind = reading.get("tokenizer_type", "tokenizer.type", "tokenizer.tokenizer_type")
    # one of a fork's own, of which no other model has the vocabulary
    own = kind is not None and str(kind.value).endswith("Tokenizer") and str(kind.value) not in GENERAL
    if sizes and not own and max(sizes) <= ALIKE * min(sizes):
        first = likely[0]
        reading.assume(f"vocabulary of {first.vocab:,}, as {first.name} has it", "tokenizer_model")
        reading.shape["vocab"] = first.vocab
        return
    names = () if own else tuple(one.name for one in likely)
    said = f": {kind.value} is not known here" if kind and own else ""
    said = f": {', '.join(names)} have this shape" if names else said
    usual = () if own else (f"{line},vocab={USUAL_VOCABULARY}",)
    raise LackingError(
        f"the size of the vocabulary is not stated{said}", "model", place=where.place if where else None,
        hint=f"give the model: `model={line},vocab=N`", likely=names or usual,
    )  # fmt: skip
