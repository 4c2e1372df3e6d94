"""The architecture of a run as the option `model` takes it: a named preset, changed by the row's own columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpuscale.errors import InputError
from gpuscale.specs.model import ModelSpec
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


def row_model(row: Row, library: Library) -> tuple[str, tuple[str, ...]]:
    """Return the architecture of a row as the option `model` takes it, and what had to be assumed.

    Raises:
        InputError: neither a known name nor enough columns.
    """

    def describe() -> tuple[str, tuple[str, ...]]:
        assumed: list[str] = []
        name = row.text("model")
        named: ModelSpec | None = library.find("models", name) or library.find("models", _VARIANT.sub("", name))
        if named is not None and _same_shape(named, row):
            stem, stated = named.name, _resized(named, row, assumed)
        else:
            stem, stated = "", _from_columns(row, assumed)
        text = ",".join(f"{key}={str(value).lower()}" for key, value in stated.items())
        return ",".join(filter(None, (stem, text))), tuple(assumed)

    return library.once(("model", *(row.text(name) for name in COLUMNS)), describe)


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


def _resized(model: ModelSpec, row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return what the row changes of a preset: its depth, vocabulary and multi-token prediction, where it has that.

    A shorter model keeps its first layers, dense ones as many as stated.
    """
    layers, dense, vocab = row.whole("layers") or model.layers, row.whole("dense_layers"), row.whole("vocab")
    out: dict[str, Any] = {} if layers == model.layers else {"layers": layers}
    if dense is not None and not (dense == 0 and model.kinds[model.pattern[0]].moe is not None):
        if model.kinds[model.pattern[0]].moe is not None or not model.is_moe or dense > layers:
            raise row.error("dense_layers", f"are not what {model.name} starts with")
        out["dense_layers"] = dense
    if vocab and vocab != model.vocab:
        out["vocab"] = vocab
    mtp, trained = model.mtp, row.whole("mtp")
    if mtp and trained is None and layers == model.layers and row.text("framework").startswith(MTP_FRAMEWORKS):
        depth = mtp.depth if mtp.trained else 0
        assumed.append(f"{depth or 'no'} multi-token-prediction module{'s' * (depth != 1)}")
    elif mtp or trained:
        out["mtp_layers"] = trained or 0
    return out


def _from_columns(row: Row, assumed: list[str]) -> dict[str, Any]:
    name, hidden = row.text("model"), row.whole("hidden")
    if not hidden:
        raise InputError(f"the model {name[:60]!r} is not known and the row has no layers, hidden and heads")

    def stated(column: str, otherwise: Callable[[], int], text: str) -> int:
        value = row.whole(column)
        if not value:
            value = otherwise()
            assumed.append(text.format(value, hidden // value, row.raw("params_b")))
        return value

    vocab = stated("vocab", lambda: GPT2_VOCABULARY, "vocabulary {0}")
    ffn = stated("ffn", lambda: 4 * hidden, "ffn = 4 x hidden")
    heads = stated("heads", lambda: _heads(row, hidden), "{0} heads of {1}")
    layers = stated("layers", lambda: _layers(row, hidden, vocab), "{0} layers, from {2} B parameters")
    if hidden < heads:
        raise InputError(f"hidden {hidden} is less than its {heads} heads", place=row.place)
    out: dict[str, Any] = {"layers": layers, "hidden": hidden, "vocab": vocab, "heads": heads}
    out |= {"kv_heads": row.whole("kv_heads") or heads, "ffn": ffn}
    if hidden % heads:
        out["head_dim"] = hidden // heads
    if (row.whole("experts") or 0) > 1:
        del out["ffn"]
        out |= {
            "experts": row.whole("experts"),
            "top_k": row.whole("topk") or 1,
            "moe_ffn": row.whole("moe_ffn") or ffn,
        }
        dense = row.whole("dense_layers") or 0
        if dense > layers:
            raise row.error("dense_layers", f"are more than its {layers} layers")
        out |= {"dense_layers": dense, "ffn": ffn} if dense else {}
    if row.whole("mtp"):
        out["mtp_layers"] = row.whole("mtp")
    return out | _plain_gpt(row, name, dense="ffn" in out)


def _plain_gpt(row: Row, name: str, *, dense: bool) -> dict[str, Any]:
    """Return what sets a GPT model apart from a Llama: a plain MLP, biases, tied embeddings, learned positions."""
    if not (row.text("framework") in UNGATED_FRAMEWORKS or name.startswith(UNGATED_NAMES)):
        return {"tied_embeddings": True} if name in NANOTRON_TIED else {}
    biases = () if name.startswith(BIAS_FREE) else ("qkv_bias", "output_bias", "norm_bias", *["mlp_bias"] * dense)
    positions = {} if name.startswith(NO_POSITIONS) else {"learned_positions": LEARNED_POSITIONS}
    return {"gated": False, **dict.fromkeys((*biases, "tied_embeddings"), True), **positions}


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
