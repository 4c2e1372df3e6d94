"""Models as torchtitan builds them, both ways: flavors of its registry, and shapes of one's own by its builders.

Names: torchtitan 0.3.0 (PyPI), torchtitan/models/*/__init__.py and config_registry.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpuscale.launch.settings import Reading
from gpuscale.launch.shapes import ROTARY, agree, model_line, named_shape, same_shape
from gpuscale.launch.writing import Writing
from gpuscale.presets.files import known_table
from gpuscale.presets.models import load_model
from gpuscale.specs.model import LayerSpec, ModelSpec, NumericsSpec


def known(kind: str) -> dict[str, Any]:
    """Return a table of its models: `flavors`, `read` and `read-before`, `numerics`, by module and flavor."""
    table: dict[str, Any] = known_table("torchtitan")[kind]
    return table


REGISTRIES = {
    "llama3": "llama3_configs", "qwen3": "qwen3_configs", "deepseek_v3": "deepseekv3_configs",
}  # fmt: skip
"""Module -> its dictionary of flavors."""

BASES = {
    "llama3": "llama3_8b", "qwen3": "qwen3_0_6b", "deepseek_v3": "deepseek_v3_16b", "gpt_oss": "gpt_oss_20b",
}  # fmt: skip
"""Module -> config function that a configuration of one's own begins with."""


def _computed(module: str, flavor: str = "") -> NumericsSpec:
    """Return what a module computes, or one of its flavors where that differs."""
    found = known("numerics")
    return NumericsSpec(**found.get(f"{module} {flavor}", found[module]))


class Built(NamedTuple):
    """How torchtitan builds a model."""

    module: str  #: `--module`, under torchtitan.models.
    flavor: str = ""  #: in its registry; empty where the shape is one's own.
    function: str = ""  #: config function that trains it as it is; empty where there is none.
    lines: tuple[str, ...] = ()  #: of the function that returns the shape, where it is one's own.
    mtp: int = 0  #: modules of multi-token prediction.


def built(writing: Writing) -> Built | None:
    """Return how torchtitan builds a plan's model; what it has no builder for is refused."""
    model, sequence = writing.model, writing.spec.sequence
    plain = replace(model, mtp=None)
    for named, flavor in known("flavors").items():
        module, name = named.split()
        usual = replace(_computed(module, name), scaling_mscale=None, scaling_mscale_all=None)
        turns_alike = agree(replace(model.numerics, scaling_mscale=None, scaling_mscale_all=None), usual, ROTARY)
        fits = sequence <= flavor["longest"] and turns_alike
        if same_shape(plain, load_model(flavor["model"])) and (fits or module == "gpt_oss"):
            if sequence > flavor["longest"]:
                writing.refuse("seq", f"{module} is built for sequences up to {flavor['longest']:,} (decoder.py)")
            return Built(module, name, flavor.get("function", ""), mtp=_mtp(writing, module))
    lacking = _lacking(model)
    if lacking:
        writing.refuse("model", f"no builder makes {lacking} (torchtitan/models: {', '.join(BASES)})")
        return None
    longest = max(model.max_sequence, sequence)
    if any(attention.latent for attention in model.attentions):
        return Built("deepseek_v3", lines=tuple(_latent_lines(model, longest)), mtp=_mtp(writing, "deepseek_v3"))
    _mtp(writing, "")
    attention, kind = model.attentions[0], model.kinds[0]
    whole = attention.heads * attention.head_dim == model.hidden
    if attention.qk_norm == "none" and whole and kind.mlp is not None and len(model.kinds) == 1:
        return Built("llama3", lines=tuple(_llama_lines(model, longest)))
    return Built("qwen3", lines=tuple(_qwen_lines(model, longest)))


def here(made: Built, model: ModelSpec) -> NumericsSpec:
    """Return what a model computes where nothing is said of it."""
    if not made.lines:
        return _computed(made.module, made.flavor)
    unscaled = {"scaling_factor": None, "scaling_sequence": None, "scaling_low": None, "scaling_high": None}
    return replace(_computed(made.module), rotary_scaling="none", router_score=_score(model), **unscaled)


SCALINGS = {"llama3": ("none", "llama3"), "qwen3": ("none",), "deepseek_v3": ("none", "yarn")}
"""Module -> rotary scalings that a shape of one's own states."""


def written(made: Built, model: ModelSpec) -> set[str]:
    """Return the fields of numerics that a shape of one's own states; a flavor states none."""
    if not made.lines:
        return set()
    found = {"rotary_base"}
    found |= {"rotary_scaling"} if model.numerics.rotary_scaling in SCALINGS[made.module] else set()
    if made.module == "deepseek_v3":
        found |= {"router_normalised", "router_scale"}
    return found


def _score(model: ModelSpec) -> str:
    return "sigmoid" if any(kind.moe and kind.moe.correction_bias for kind in model.kinds) else "softmax"


def _rope(model: ModelSpec, kind: str, width: int, longest: int) -> str:
    """Return the rotary embedding of a shape of one's own; `kind` is its class, behind the module."""
    numerics, module = model.numerics, kind.partition(".")[0]
    named = numerics.rotary_scaling if numerics.rotary_scaling in SCALINGS[module] else None
    scaling: dict[str, Any] = {}
    if named == "llama3":
        scaling = {
            "scaling_factor": numerics.scaling_factor, "low_freq_factor": numerics.scaling_low,
            "high_freq_factor": numerics.scaling_high, "original_max_position_embeddings": numerics.scaling_sequence,
        }  # fmt: skip
    elif named == "yarn":
        scaling = {
            "rope_factor": numerics.scaling_factor, "beta_slow": numerics.scaling_low,
            "beta_fast": numerics.scaling_high, "original_seq_len": numerics.scaling_sequence,
        }  # fmt: skip
    stated = [f"{name}={value!r}" for name, value in scaling.items() if value is not None]
    name = {"llama3": ['scaling="llama"'], "yarn": ['scaling="yarn"']}.get(named or "", [])
    base = f"theta={numerics.rotary_base or _computed(module).rotary_base!r}"
    return f"rope={kind}.Config({', '.join([f'dim={width}', f'max_seq_len={longest}', base, *name, *stated])}),"


def _mtp(writing: Writing, module: str) -> int:
    """Return the modules of multi-token prediction that are trained, refusing those that do not go."""
    depth, layout = writing.model.mtp_depth, writing.layout
    if not depth:
        return 0
    if module != "deepseek_v3":
        writing.refuse("model", "only deepseek_v3 has multi-token prediction (models/deepseek_v3/mtp.py)")
    elif layout.pp > 1 or layout.cp > 1:
        why = "multi-token prediction does not support pipeline or context parallelism yet (models/deepseek_v3/mtp.py)"
        writing.refuse("pp" if layout.pp > 1 else "cp", f"{why}: plan for `{writing.model.name},mtp_layers=0`")
    elif writing.model.mtp is not None and writing.model.mtp.shared:
        writing.refuse("model", "modules of multi-token prediction with weights of their own alone (mtp.py)")
    return depth


def _lacking(model: ModelSpec) -> str:
    """Name what the builders do not make; empty where they make all of it."""
    found = model.uncommon or next(filter(None, map(_lacking_in, model.kinds)), "")
    if found:
        return found
    experts = [kind.moe for kind in model.kinds if kind.moe]
    dense = [model.kinds[index].moe is None for index in model.pattern]
    latent = model.attentions[0].latent is not None
    shared = [bool(moe.shared_ffn) and moe.shared_ffn % moe.ffn == 0 for moe in experts]
    checks = {
        "layers of different attention": len(set(model.attentions)) > 1,
        "learned positions": bool(model.learned_positions),
        "a bias of the LM head": model.head_bias,
        "experts with tied embeddings": model.tied_embeddings and bool(experts),
        "experts beside dense layers or shared experts, without latent attention": not latent
        and any(len(model.kinds) > 1 or moe.shared_ffn or moe.groups > 1 or moe.correction_bias for moe in experts),
        "latent attention without experts that are shared": latent and (not experts or not all(shared)),
        "dense layers behind others": dense != sorted(dense, reverse=True),
    }
    return next((what for what, there in checks.items() if there), "")


def _lacking_in(kind: LayerSpec) -> str:
    """Name what the builders do not make of a layer."""
    attention, moe = kind.attention, kind.moe
    block = kind.mlp or moe
    if attention is None or kind.state_space is not None:
        return "state spaces"
    checks = {
        "layers of a single block": block is None or kind.norms != 2 or kind.parallel_blocks,
        "LayerNorm": kind.norm_bias,
        "values of another width than keys": not attention.latent and attention.value_head_dim != attention.head_dim,
        "attention windows": attention.window is not None,
        "sparse attention": attention.indexer is not None,
        "attention sinks or gates": attention.sinks or attention.output_gate,
        "biases": attention.qkv_bias or attention.output_bias or bool(kind.mlp and kind.mlp.bias),
        "norms of whole queries and keys": attention.qk_norm == "full",
        "ungated MLPs": block is not None and not block.gated,
        "such experts": moe is not None and any((moe.shared_gate, moe.router_bias, moe.expert_bias, moe.latent)),
    }
    return next((what for what, there in checks.items() if there), "")


def _ends(model: ModelSpec, module: str, norm: str, head: str) -> list[str]:
    hidden, vocab = model.hidden, model.vocab
    start = "_EMBEDDING_SKIP_INIT" if model.tied_embeddings else "_EMBEDDING_INIT"
    tied = ["enable_weight_tying=True,"] if model.tied_embeddings else []
    return [
        f"dim={hidden},",
        f"vocab_size={vocab},",
        *tied,
        f"tok_embeddings={module}.Embedding.Config(",
        f"    num_embeddings={vocab}, embedding_dim={hidden}, param_init={module}.{start}",
        "),",
        f"norm={norm},",
        f"lm_head={module}.Linear.Config(in_features={hidden}, out_features={vocab}, param_init={head}),",
    ]


def _whole(module: str, kind: str, ends: list[str], layers: list[str], after: tuple[str, ...] = ()) -> list[str]:
    return [f"return {module}.{kind}.Config(", *(f"    {line}" for line in (*ends, *layers, *after)), ")"]


def _llama_lines(model: ModelSpec, longest: int) -> list[str]:
    attention, mlp = model.attentions[0], model.kinds[0].mlp
    assert mlp is not None
    norm = f"llama3.RMSNorm.Config(normalized_shape={model.hidden}, param_init=llama3._NORM_INIT)"
    layers = [
        "layers=llama3._build_llama3_layers(",
        f"    n_layers={model.layers}, dim={model.hidden}, hidden_dim={mlp.ffn},",
        f"    n_heads={attention.heads}, n_kv_heads={attention.kv_heads}, attn_backend=attn_backend,",
        f"    {_rope(model, 'llama3.ComplexRoPE', attention.head_dim, longest)}",
        "),",
    ]
    return _whole(
        "llama3", "Llama3Model", _ends(model, "llama3", norm, f"llama3._output_linear_init({model.hidden})"), layers
    )


def _qwen_lines(model: ModelSpec, longest: int) -> list[str]:
    attention, mlp, moe = model.attentions[0], model.kinds[0].mlp, model.kinds[0].moe
    if moe is not None:
        call = "qwen3._build_qwen3_moe_layers("
        block = f"moe_hidden_dim={moe.ffn}, num_experts={moe.experts}, top_k={moe.top_k}, "
        block += "moe_comm_backend=moe_comm_backend,"
    else:
        assert mlp is not None
        call, block = "qwen3._build_qwen3_layers(", f"hidden_dim={mlp.ffn},"
    bare = attention.qk_norm == "none"
    layers = [
        f"layers={'without_qk_norm(' if bare else ''}{call}",
        f"    n_layers={model.layers}, dim={model.hidden}, {block}",
        f"    n_heads={attention.heads}, n_kv_heads={attention.kv_heads}, head_dim={attention.head_dim},",
        "    attn_backend=attn_backend,",
        f"    {_rope(model, 'qwen3.CosSinRoPE', attention.head_dim, longest)}",
        ")),"[not bare :],
    ]
    return _whole(
        "qwen3", "Qwen3Model", _ends(model, "qwen3", f"qwen3._qwen3_norm({model.hidden})", "qwen3._LINEAR_INIT"), layers
    )


def _latent_lines(model: ModelSpec, longest: int) -> list[str]:
    attention = model.attentions[0]
    latent, moe = attention.latent, next(kind.moe for kind in model.kinds if kind.moe)
    mlp = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    assert latent is not None
    dense = [model.kinds[index].moe is None for index in model.pattern].count(True)
    groups = f"router_num_expert_groups={moe.groups}, router_num_limited_groups={moe.top_groups}, "
    score = _score(model)
    layers = [
        "layers = deepseek_v3._build_dsv3_layers(",
        f"    n_layers={model.layers}, n_dense_layers={dense}, dim={model.hidden}, n_heads={attention.heads},",
        f"    q_lora_rank={latent.query_rank or 0}, kv_lora_rank={latent.kv_rank},",
        f"    qk_nope_head_dim={latent.nope_dim}, qk_rope_head_dim={latent.rope_dim},",
        f"    v_head_dim={attention.value_head_dim}, mscale={model.numerics.scaling_mscale_all or 1.0!r},",
        f"    dense_hidden_dim={mlp.ffn if mlp else moe.ffn}, moe_hidden_dim={moe.ffn},",
        f"    num_experts={moe.experts}, num_shared_experts={moe.shared_ffn // moe.ffn}, router_top_k={moe.top_k},",
        f'    {groups if moe.groups > 1 else ""}router_score_func="{score}", attn_backend=attn_backend,',
        f"    router_route_norm={model.numerics.router_normalised or False},"
        f" router_route_scale={model.numerics.router_scale or 1.0!r},",
        "    moe_comm_backend=moe_comm_backend, non_blocking_capacity_factor=non_blocking_capacity_factor,",
        f"    {_rope(model, 'deepseek_v3.ComplexRoPE', latent.rope_dim, longest)}",
        ")",
    ]
    norm = f"deepseek_v3.RMSNorm.Config(normalized_shape={model.hidden}, param_init=deepseek_v3._NORM_INIT)"
    ends = _ends(model, "deepseek_v3", norm, f"deepseek_v3._output_linear_init({model.hidden})")
    mtp = "mtp_layers=deepseek_v3._build_mtp_layers("
    mtp += f"layers[-1], dim={model.hidden}, num_mtp_layers=num_mtp_layers),"
    return layers + _whole("deepseek_v3", "DeepSeekV3Model", ends, ["layers=layers,"], (mtp,))


def model_function(made: Built) -> list[str]:
    """Return the lines of the function that returns a shape of one's own."""
    takes = {
        "deepseek_v3": "attn_backend, moe_comm_backend, non_blocking_capacity_factor=None, num_mtp_layers=0",
        "qwen3": "attn_backend, moe_comm_backend=None",
    }.get(made.module, "attn_backend, **_")
    lines = [f"def shape({takes}):", *(f"    {line}" for line in made.lines), "", ""]
    if any("without_qk_norm(" in line for line in made.lines):
        helper = ["def without_qk_norm(layers):", "    for layer in layers:", "        layer.attention.qk_norm = None"]
        lines = [*helper, "    return layers", "", "", *lines]
    return lines


# --- reading

KEYS = {
    "n_layers": "layers", "dim": "hidden", "n_heads": "heads", "n_kv_heads": "kv_heads", "head_dim": "head_dim",
    "hidden_dim": "ffn", "num_experts": "moe.experts", "top_k": "moe.top_k", "moe_hidden_dim": "moe.ffn",
    "kv_lora_rank": "latent.kv_rank", "qk_nope_head_dim": "latent.nope_dim", "qk_rope_head_dim": "latent.rope_dim",
    "v_head_dim": "latent.value_dim", "dense_hidden_dim": "ffn", "n_dense_layers": "moe.dense_layers",
    "router_top_k": "moe.top_k", "router_num_expert_groups": "moe.groups",
    "router_num_limited_groups": "moe.top_groups",
}  # fmt: skip
"""Keyword of a builder of layers -> key of a model file."""


def read_flavor(reading: Reading, module: str, flavor: str, *of: str) -> bool:
    """Take a model of the registry; returns whether there is one of that name."""
    names = {name.lower(): made["model"] for name, made in known("flavors").items()}
    names |= {name.lower(): made for name, made in known("read").items()}
    for suffix in ("", "_instruct", "_moe"):
        found = names.get(f"{module.lower().removesuffix('_ft')} {flavor.lower().removesuffix(suffix)}")
        if found:
            reading.option("model", found, *of)
            return True
    return False


def read_shape(reading: Reading, prefix: str) -> None:
    """Take the shape that a function of a Python file returns.

    Raises:
        InputError: it is not made by a builder that is known, or not of plain numbers.
    """
    inner = f"{prefix}.layers"
    builder = reading.get(inner)
    bare = f"{inner}.attention.qk_norm" in reading.settings  # set to None
    if builder is None or reading.get(f"{inner}.n_layers") is None:
        found = reading.get(prefix)
        reading.refuse(found, "the model is not built by a function of torchtitan's own", settles="model")
    for word, key in KEYS.items():
        number = _width(reading, inner) if word == "hidden_dim" else reading.integer(f"{inner}.{word}")
        if number is not None:
            reading.model(key, number, f"{inner}.{word}")
    shape = reading.shape
    if reading.get(f"{inner}.q_lora_rank") and reading.integer(f"{inner}.q_lora_rank"):
        reading.model("latent.query_rank", reading.integer(f"{inner}.q_lora_rank"), f"{inner}.q_lora_rank")
    shared = reading.integer(f"{inner}.num_shared_experts")
    if shared:
        reading.model("moe.shared_ffn", shared * shape["moe.ffn"], f"{inner}.num_shared_experts")
    if reading.text(f"{inner}.router_score_func") == "sigmoid":
        reading.model("moe.correction_bias", True, f"{inner}.router_score_func")
    if "latent.kv_rank" not in shape and "qwen3" in str(builder.value) and not bare:
        reading.model("qk_norm", "head", inner)
    if not shape.get("moe.dense_layers") and "moe.experts" in shape:
        shape.pop("ffn", None)
    vocab = reading.integer(f"{prefix}.vocab_size", f"{prefix}.tok_embeddings.num_embeddings")
    reading.model("vocab", vocab, f"{prefix}.vocab_size")
    reading.model("tied_embeddings", reading.flag(f"{prefix}.enable_weight_tying"), f"{prefix}.enable_weight_tying")
    longest = reading.integer(f"{inner}.rope.max_seq_len") or 4096
    reading.model("sequence", longest, f"{inner}.rope.max_seq_len")
    reading.option("model", named_shape(shape), prefix)


def read_llama(reading: Reading, prefix: str, *of: str) -> None:
    """Take the shape that `Llama3Model.Config` states: `n_layers` times one `layer` (torchtitan of early 2026).

    Raises:
        InputError: the MLP's width is no plain number.
    """
    attention, mlp = f"{prefix}.layer.attention", f"{prefix}.layer.feed_forward"
    keys = {
        "layers": f"{prefix}.n_layers", "hidden": f"{prefix}.dim", "vocab": f"{prefix}.vocab_size",
        "heads": f"{attention}.n_heads", "kv_heads": f"{attention}.n_kv_heads", "head_dim": f"{attention}.head_dim",
        "sequence": f"{prefix}.rope.max_seq_len",
    }  # fmt: skip
    for key, name in keys.items():
        number = reading.integer(name)
        if number is not None:
            reading.model(key, number, name)
    width = _width(reading, mlp)
    if width is None:
        reading.refuse(reading.get(prefix), "the width of its MLP is not stated", settles="model")
    reading.model("ffn", width, f"{mlp}.hidden_dim")
    reading.model("tied_embeddings", False, prefix)
    reading.option("model", named_shape(reading.shape), prefix, *of)


def _width(reading: Reading, prefix: str) -> int | None:
    """Return the width of the MLP, also where `compute_ffn_hidden_dim` says it (models/common/feed_forward.py)."""
    name = f"{prefix}.hidden_dim"
    found = reading.get(name)
    if found is None or found.value != "compute_ffn_hidden_dim":
        return reading.integer(name)
    hidden = int(2 * 4 * (reading.integer(f"{name}.0") or 0) / 3)
    hidden = int((reading.number(f"{name}.ffn_dim_multiplier") or 1) * hidden)
    multiple = reading.integer(f"{name}.multiple_of") or 1
    return -(-hidden // multiple) * multiple


def with_mtp(model: str, depth: int) -> str:
    """Return a model with so many modules of multi-token prediction, as `model` takes it."""
    name, _, rest = model.partition(",")
    keys: Mapping[str, Any] = {"mtp_layers": depth}
    plain = [part for part in rest.split(",") if part and not part.startswith("mtp_layers=")]
    line = ",".join([name, *plain, model_line(keys)])
    own = load_model(",".join([name, *plain])) if "=" not in name else None
    return ",".join([name, *plain]) if own is not None and own.mtp_depth == depth else line
