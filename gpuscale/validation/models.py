"""The architecture of a run: a named preset, changed by the row's own columns."""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.errors import InputError
from gpuscale.specs.model import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from gpuscale.validation.machines import Library
from gpuscale.validation.measurements import Row

COLUMNS = (
    "framework", "model", "params_b", "layers", "dense_layers", "hidden", "heads", "kv_heads", "ffn", "vocab",
    "experts", "topk", "moe_ffn", "mtp", "tp",
)  # fmt: skip
"""Columns that the architecture depends on (TP only where the number of heads is not stated)."""

MTP_FRAMEWORKS = ("megatron", "nemo", "primus", "other")
"""Beginnings of the frameworks that train multi-token-prediction modules where the row does not say."""

UNGATED_FRAMEWORKS = ("deepspeed", "llm-foundry")
"""Frameworks whose rows, where no model is named, are GPT models with a plain MLP."""

UNGATED_NAMES = ("gpt", "bloom", "mpt", "opt", "mt-nlg", "megatron")
"""Beginnings of the names of models with a plain MLP, biases and tied embeddings."""

BIAS_FREE = ("mpt", "palm")
"""Of those, models without biases (MPT: `no_bias` of llm-foundry; PaLM: Chowdhery et al. 2022, section 2)."""

NO_POSITIONS = ("bloom", "mpt", "palm")
"""Models with ALiBi or rotary positions rather than a learned table."""

NANOTRON_TIED = ("nanotron-llama-1.34b", "nanotron-llama-3.57b")
"""Sizes of the nanotron sweep whose embeddings are tied (the sweep's own configuration files)."""

GPT2_VOCABULARY = 50257
HEAD_DIM = 128
"""Width of a head where the row does not state the heads, as nearly as it divides."""

LEARNED_POSITIONS = 2048

_VARIANT = re.compile(r"[-_](?:\d+layers?|proxy|sft|lora|llm)$")
"""Endings of a model's name that do not change the architecture but for its depth."""


def row_model(row: Row, library: Library) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the architecture of a row, the same object for all that are equal, and what had to be assumed.

    Raises:
        InputError: neither a known name nor enough columns.
    """

    def build() -> tuple[ModelSpec, tuple[str, ...]]:
        assumed: list[str] = []
        name = row.text("model")
        named: ModelSpec | None = library.find("models", name) or library.find("models", _VARIANT.sub("", name))
        if named is not None and _same_shape(named, row):
            model = _resized(named, row, assumed)
        else:
            model = _from_columns(row, assumed)
        return library.once(model, lambda: model), tuple(assumed)

    return library.once(("model", *(row.text(name) for name in COLUMNS)), build)


def _same_shape(model: ModelSpec, row: Row) -> bool:
    """Whether the row's own columns agree with the preset in all but depth and vocabulary."""
    expected = {"hidden": model.hidden}
    for kind in model.kinds:  # what a later one has counts
        if kind.attention is not None:
            expected["heads"] = kind.attention.heads
        if kind.attention is not None and kind.attention.latent is None:
            expected["kv_heads"] = kind.attention.kv_heads
        if kind.moe is not None:
            expected |= {"experts": kind.moe.experts, "topk": kind.moe.top_k, "moe_ffn": kind.moe.ffn}
    return all(row.whole(name) in {None, value} for name, value in expected.items())


def _resized(model: ModelSpec, row: Row, assumed: list[str]) -> ModelSpec:
    """Apply the row's depth, vocabulary and multi-token prediction, where the model has that.

    A shorter model keeps its first layers, dense ones as many as stated.
    """
    layers, dense = row.whole("layers") or model.layers, row.whole("dense_layers")
    pattern = (model.pattern * -(-layers // model.layers))[:layers]
    if dense is not None:
        without = [model.kinds[kind].moe is None for kind in model.pattern]
        first = without.index(False) if False in without else 0
        if not first > 0 or dense > layers:
            raise row.error("dense_layers", f"are not what {model.name} starts with")
        pattern = (model.pattern[0],) * dense + (model.pattern[first:] * layers)[: layers - dense]
    used, mtp = sorted(set(pattern)), model.mtp if layers == model.layers else None
    trained = row.whole("mtp")
    if mtp and trained is None and row.text("framework").startswith(MTP_FRAMEWORKS):
        depth = mtp.depth if mtp.trained else 0
        assumed.append(f"{depth or 'no'} multi-token-prediction module{'s' * (depth != 1)}")
    elif mtp:
        mtp = replace(mtp, depth=trained, trained=True) if trained else None
    return replace(
        model,
        mtp=mtp,
        vocab=row.whole("vocab") or model.vocab,
        kinds=tuple(model.kinds[index] for index in used),
        pattern=tuple(used.index(index) for index in pattern),
    )


def _from_columns(row: Row, assumed: list[str]) -> ModelSpec:
    name, hidden = row.text("model"), row.whole("hidden")
    if not hidden:
        raise InputError(f"the model {name[:60]!r} is not known and the row has no layers, hidden and heads")
    vocab, ffn, heads, layers = (row.whole(column) for column in ("vocab", "ffn", "heads", "layers"))
    if not vocab:
        vocab = GPT2_VOCABULARY
        assumed.append(f"vocabulary {vocab}")
    if not ffn:
        ffn = 4 * hidden
        assumed.append("ffn = 4 x hidden")
    if not heads:
        heads = _heads(row, hidden)
        assumed.append(f"{heads} heads of {hidden // heads}")
    if not layers:
        layers = _layers(row, hidden, vocab)
        assumed.append(f"{layers} layers, from {row.number('params_b'):g} B parameters")
    plain = row.text("framework") in UNGATED_FRAMEWORKS or name.startswith(UNGATED_NAMES)
    bias, dim = plain and not name.startswith(BIAS_FREE), hidden // heads
    if dim < 1:
        raise InputError(f"hidden {hidden} is less than its {heads} heads", place=row.place)
    attention = AttentionSpec(heads, row.whole("kv_heads") or heads, dim, dim, qkv_bias=bias, output_bias=bias)
    experts, mlp, moe = row.whole("experts") or 0, None, None
    if experts > 1:
        moe = MoeSpec(experts, row.whole("topk") or 1, row.whole("moe_ffn") or ffn, gated=not plain)
    else:
        mlp = MlpSpec(ffn, gated=not plain, bias=bias)
    return ModelSpec(
        name=name,
        title=name,
        family="",
        hidden=hidden,
        vocab=vocab,
        kinds=(LayerSpec(attention, mlp, moe, norm_bias=bias),),
        pattern=(0,) * layers,
        tied_embeddings=plain or name in NANOTRON_TIED,
        learned_positions=LEARNED_POSITIONS if plain and not name.startswith(NO_POSITIONS) else 0,
        max_sequence=1 << 24,
    )


def _heads(row: Row, hidden: int) -> int:
    """Heads of about `HEAD_DIM` elements that divide the hidden size and are divided by TP."""
    tp = row.whole("tp") or 1
    fitting = [heads for heads in range(tp, hidden // 16 + 1, tp) if hidden % heads == 0]
    if not fitting:
        raise InputError("the row states no heads, and none divide its hidden size", place=row.place)
    return min(fitting, key=lambda heads: abs(hidden / heads - HEAD_DIM))


def _layers(row: Row, hidden: int, vocab: int) -> int:
    """Layers that make up the stated parameters: 12 hidden^2 each and the embedding (a plain GPT)."""
    billions = row.number("params_b")
    plain = row.whole("ffn") in {None, 4 * hidden} and not row.whole("experts")
    if billions is None or not plain:
        raise InputError(f"the model {row.text('model')[:60]!r} is not known and the row has no layers")
    return max(1, round((min(billions, 1e5) * 1e9 - vocab * hidden) / (12 * hidden**2)))
