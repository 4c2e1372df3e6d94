"""A model file of MaxText (src/maxtext/configs/models/*.yml): flat keys and values, as the keys of a model file.

What a file leaves to base.yml is as it stands there (AI-Hypercomputer/maxtext, configs/base.yml, 2025).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import read_text
from gpuscale.presets.files import MAX_FILE_BYTES

SIZES = {
    "layers": "base_num_decoder_layers", "hidden": "base_emb_dim", "heads": "base_num_query_heads",
    "kv_heads": "base_num_kv_heads", "head_dim": "head_dim", "ffn": "base_mlp_dim", "vocab": "vocab_size",
}  # fmt: skip
"""Key of a model file -> MaxText's."""

EXPERTS = {"experts": "num_experts", "top_k": "num_experts_per_tok", "ffn": "base_moe_mlp_dim"}

BLOCKS = ("default", "llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "simple")
"""`decoder_block` whose layers are all alike, with the attention of Llama."""

_LINE = re.compile(r"([A-Za-z_]\w{0,63}):[ \t]+([^#\n]{0,200}?)[ \t]*(?:#.*)?")


def maxtext_keys(path: Path) -> dict[str, Any]:
    """Return the keys of a model file that a YAML of MaxText stands for.

    Raises:
        InputError: it is none, or of a kind of layers that is not read.
    """
    text = read_text(path, MAX_FILE_BYTES, "a model file of MaxText")
    found = (_LINE.fullmatch(line.rstrip("\r")) for line in text.split("\n")[:5000])
    data = {one[1]: one[2].strip("'\"") for one in found if one}
    if not {"base_emb_dim", "base_num_decoder_layers"} <= data.keys():
        hint = "give a TOML model file, a config.json, or a YAML of MaxText with its base_emb_dim"
        raise InputError("not a model that is known", place=str(path), hint=hint)
    block, kind = data.get("decoder_block", "llama2").lower(), data.get("attention_type", "global").lower()
    if block not in BLOCKS or kind != "global":
        message = f"layers of {block[:40]} with attention {kind[:40]} are not read from MaxText's files"
        raise InputError(message, place=str(path), hint="give the model by name, or its config.json")
    keys: dict[str, Any] = {key: int(data[name]) for key, name in SIZES.items() if data.get(name, "").isdecimal()}
    activations = data.get("mlp_activations", "silu, linear")
    keys |= {
        "gated": "linear" in activations and "," in activations, "tied_embeddings": _on(data, "logits_via_embedding"),
        "qk_norm": "head" if _on(data, "use_qk_norm") else "none", "qkv_bias": _on(data, "attention_bias"),
        "norm_bias": False,
    }  # fmt: skip
    experts = {key: int(data[name]) for key, name in EXPERTS.items() if data.get(name, "").isdecimal()}
    if experts.get("experts", 1) > 1:
        experts.setdefault("ffn", keys.get("ffn", 0))
        keys |= {f"moe.{key}": value for key, value in experts.items()}
    return keys


def _on(data: dict[str, str], name: str) -> bool:
    return data.get(name, "false").lower() == "true"
