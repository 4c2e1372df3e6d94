"""The architecture of a row: a named preset, overridden by the row's own columns."""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.errors import InputError
from gpuscale.presets.models import load_model
from gpuscale.specs.model import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from gpuscale.validation.cells import Row

UNGATED_FRAMEWORKS = ("deepspeed", "llm-foundry")
"""Frameworks whose rows, where no model is named, are GPT models with a plain MLP."""

_VARIANT = re.compile(r"[-_](?:\d+layers?|proxy|sft|lora|llm)\b")


def row_model(row: Row, assumed: list[str]) -> ModelSpec:
    """Return the architecture of a row; what had to be assumed is added to `assumed`.

    Raises:
        InputError: neither a known name nor enough columns.
    """
    named = _named(row.text("model"))
    if named is None:
        return _from_columns(row, assumed)
    if _same_shape(named, row):
        return _resized(named, row)
    return _from_columns(row, assumed)


def _named(name: str) -> ModelSpec | None:
    for candidate in (name, _VARIANT.sub("", name)):
        try:
            return load_model(candidate)
        except InputError:
            continue
    return None


def _same_shape(model: ModelSpec, row: Row) -> bool:
    """Whether the row's own columns agree with the preset in all but depth and vocabulary."""
    attention = model.kinds[-1].attention
    moe = model.kinds[-1].moe
    pairs = [("hidden", model.hidden), ("heads", attention.heads)]
    if attention.latent is None:
        pairs.append(("kv_heads", attention.kv_heads))
    if moe is not None:
        pairs += [("experts", moe.experts), ("topk", moe.top_k), ("moe_ffn", moe.ffn)]
    return all(row.whole(name) in {None, value} for name, value in pairs)


def _resized(model: ModelSpec, row: Row) -> ModelSpec:
    """Apply the row's depth and vocabulary; a shorter model keeps its first (dense) layers."""
    layers = row.whole("layers") or model.layers
    pattern = (model.pattern * -(-layers // model.layers))[:layers] if layers > model.layers else model.pattern[:layers]
    used = sorted(set(pattern))
    return replace(
        model,
        vocab=row.whole("vocab") or model.vocab,
        kinds=tuple(model.kinds[index] for index in used),
        pattern=tuple(used.index(index) for index in pattern),
    )


def _from_columns(row: Row, assumed: list[str]) -> ModelSpec:
    layers, hidden, heads = (row.whole(name) for name in ("layers", "hidden", "heads"))
    if not layers or not hidden or not heads:
        raise InputError(f"the model {row.text('model')!r} is not known and the row has no layers, hidden and heads")
    name = row.text("model")
    vocab = row.whole("vocab")
    if not vocab:
        vocab = 50257
        assumed.append("vocabulary 50257")
    plain = row.text("framework") in UNGATED_FRAMEWORKS or name.startswith(("gpt", "bloom", "mpt", "opt"))
    ffn = row.whole("ffn")
    if not ffn:
        ffn = 4 * hidden
        assumed.append("ffn = 4 x hidden")
    gated = not plain
    attention = AttentionSpec(heads, row.whole("kv_heads") or heads, hidden // heads, hidden // heads, qkv_bias=plain)
    mlp = MlpSpec(ffn, gated=gated, bias=plain)
    layer = LayerSpec(attention, mlp, None, norm_bias=plain)
    experts = row.whole("experts") or 0
    if experts > 1:
        moe = MoeSpec(experts, row.whole("topk") or 1, row.whole("moe_ffn") or ffn, gated=gated)
        layer = LayerSpec(attention, None, moe, norm_bias=plain)
    tied = plain or name in NANOTRON_TIED
    positions = 2048 if plain and not name.startswith("bloom") else 0
    return ModelSpec(
        name=name, title=name, family="", hidden=hidden, vocab=vocab, kinds=(layer,), pattern=(0,) * layers,
        tied_embeddings=tied, learned_positions=positions, max_sequence=1 << 24,
    )  # fmt: skip


NANOTRON_TIED = ("nanotron-llama-1.34b", "nanotron-llama-3.57b")
"""Sizes of the nanotron sweep whose embeddings are tied (the sweep's own configuration files)."""
