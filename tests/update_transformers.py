"""Write what transformers' classes say of families of models: `python tests/update_transformers.py` where it is
installed (extra `frameworks`).

`presets/families/transformers.json` gets the defaults that the config classes declare, of every model type that is
read and every tower that is counted; those that a class derives from others are derived in the reader. With `--shapes`
also small shapes of model types that have none go to `tests/data/transformers_counts.json`, and of every multimodal one
whose towers are counted to `tests/data/tower_counts.json`, with the parameters of their classes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gpuscale.errors import InputError
from gpuscale.presets.huggingface import Config, read_config
from gpuscale.presets.huggingface_families import FAMILIES
from gpuscale.presets.towers import sums

TABLE = Path(__file__).parents[1] / "presets" / "families" / "transformers.json"
SUMS = TABLE.with_name("towers.toml")

NO_SHAPE = re.compile(
    r"_ids?$|dropout|pdrop|drop_?p|_eps(ilon)?$|^eps$|loss|jitter|cache$|^output_|_std$|scal(e|ing)|multiplier|softcap"
    r"|soft_cap|hidden_act|activation|rope|rotary|time_step_(min|max|floor|limit|init)|^is_|^chunk_size_feed|^summary"
    r"|dtype|^return_|label|problem|^name|kernels|mambapy|_token_|alpha|beta|^dt_|pretraining_tp|norm_topk|scoring|_fn$"
    r"|topk_method|init_range|_init|mode$|kernel$|residual_in|use_associative|num_logits|_sparsity|coef|^architectures"
    r"|transformers_version|prefix_lm|position_bias|^ngpt|norm_before_gate"
)
"""Names of fields that no shape hangs on."""

KEPT = {
    "conv_kernel", "conv_L_cache", "is_moe", "no_rope_layer_interval", "no_rope_layers", "output_vocab_size",
    "qk_rope_head_dim",
}  # fmt: skip
"""Names that have a shape all the same."""


def config_class(model_type: str) -> type | None:
    """The class of a model type in transformers, or None."""
    other = model_type in FAMILIES and FAMILIES[model_type].class_of not in {"", model_type}
    if other or model_type not in CONFIG_MAPPING:
        return None
    return CONFIG_MAPPING[model_type]


def class_values(model_type: str) -> dict[str, Any]:
    """Defaults of the fields that a class declares, before it derives others from them."""
    values: dict[str, Any] = {}
    of_towers = {*re.findall(r"\w+", SUMS.read_text(encoding="utf-8"))} if model_type not in FAMILIES else set()
    for one in dataclasses.fields(config_class(model_type)):
        made = one.default_factory is not dataclasses.MISSING
        value = one.default_factory() if made else one.default
        if of_towers:
            value = list(value) if isinstance(value, tuple) else value
            shape = one.name in of_towers and value is not None
        else:
            shape = one.name in KEPT or not NO_SHAPE.search(one.name)
        if shape and isinstance(value, bool | int | float | str | list | type(None)):
            values[one.name] = value
    return dict(sorted(values.items()))


def table() -> dict[str, dict[str, Any]]:
    """What the file holds: defaults by model type."""
    names = {*FAMILIES, *sums()["towers"], *sums()["models"]}
    found = {name: class_values(name) for name in sorted(names) if config_class(name) is not None}
    return {name: values for name, values in found.items() if values}


def written() -> str:
    """The file's text, one model type a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in table().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


COUNTS = Path(__file__).parent / "data" / "transformers_counts.json"
TOWER_COUNTS = COUNTS.with_name("tower_counts.json")

SMALL = {
    "hidden_size": 128, "n_embd": 128, "d_model": 128, "intermediate_size": 96, "n_inner": 96, "ffn_dim": 96, "dff": 96,
    "moe_intermediate_size": 32, "vocab_size": 1000, "num_attention_heads": 8, "n_head": 8, "num_heads": 8,
    "attention_heads": 8, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8,
    "moe_num_experts": 8, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 24, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "num_experts_per_token": 2, "n_group": 1,
    "num_expert_group": 1, "topk_group": 1, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100,
    "index_n_heads": 4, "index_head_dim": 16, "lru_width": 128, "dense_intermediate_size": 64, "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32, "embedding_dim": 128, "head_dim": 16, "swa_head_dim": 16, "word_embed_proj_dim": 128,
}  # fmt: skip
"""Sizes of small shapes, by all the names that classes have for them."""


def readable(config: dict[str, Any]) -> bool:
    """Whether a config is read, rather than refused for what it has, and is that of a language model alone."""
    try:
        return not read_config(Config("config.json", config, {}), "small").towers
    except InputError:
        return False


def small_shapes() -> list[dict[str, Any]]:
    """Two small shapes of every model type that the file has none of: as the class has it, and without what it ties."""
    from transformers_judge import MODEL_TYPES, base, built  # noqa: PLC0415 - it takes NO_SHAPE from here

    known = json.loads(COUNTS.read_text(encoding="utf-8"))
    there = {case["config"]["model_type"] for case in known}
    for model_type in MODEL_TYPES:
        if model_type not in FAMILIES or model_type in there:
            continue
        start = base(model_type)
        fields = CONFIG_MAPPING[model_type]().to_dict()
        small = {key: value for key, value in SMALL.items() if isinstance(fields.get(key), int)}
        for own in ({}, {"tie_word_embeddings": not fields.get("tie_word_embeddings", False), "attention_bias": True}):
            wanted = {key: value for key, value in own.items() if key in fields}
            shape = built(model_type, {**start, **small, **wanted}) or built(model_type, {**start, **wanted})
            if shape is not None and readable(shape.config):
                config = {key: value for key, value in shape.config.items() if key in KEPT or not NO_SHAPE.search(key)}
                known.append({"params": shape.params, "windows": None, "config": {"model_type": model_type, **config}})
    return known


def small_multimodal() -> list[dict[str, Any]]:
    """A small shape of every multimodal model type whose towers are counted."""
    from transformers_judge import MULTIMODAL, small_whole, whole  # noqa: PLC0415 - it takes NO_SHAPE from here

    return [{"params": whole(shape := small_whole(name)).params, "config": shape} for name in MULTIMODAL]


if __name__ == "__main__":
    if sys.argv[1:] == ["--shapes"]:
        for path, cases in ((COUNTS, small_shapes()), (TOWER_COUNTS, small_multimodal())):
            path.write_text("[\n" + ",\n".join(json.dumps(one) for one in cases) + "\n]\n", encoding="utf-8")
    TABLE.write_text(written(), encoding="utf-8")
    print(f"{TABLE.name}: {len(table())} model types of transformers {transformers.__version__}")  # noqa: T201
