"""The architecture of a run as the option `model` takes it: a named preset, changed by the row's own columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.files import preset_aliases, preset_names
from gpuscale.specs.model import ModelSpec
from gpuscale.validation.machines import Library
from gpuscale.validation.measurements import Row

COLUMNS = (
    "framework", "model", "params_b", "layers", "dense_layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab",
    "experts", "topk", "moe_ffn", "mtp", "tp",
)  # fmt: skip
"""Columns that the architecture depends on (TP only where the number of heads is not stated)."""

MTP_FRAMEWORKS = ("megatron", "nemo", "primus", "other")
"""Beginnings of the frameworks that train multi-token-prediction modules where the row does not say."""

PLAIN_GPT = ("gpt", "bloom", "mpt", "opt", "mt-nlg", "megatron")
"""Beginnings of the names of models with a plain MLP, biases and tied embeddings, where no preset is nearer."""

NEAR, APART = 0.03, 0.1
"""Shares of the stated parameters that what is counted may be off by where they decide how a model is built, and that
it is off by at least where it is built otherwise (a choice: an MLP of three matrices rather than two is a quarter more
parameters, and names round them to two digits)."""

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
        changed = None if named is None else _changed(named, row)
        if named is not None and changed is not None:
            stem, stated = named.name, changed | _resized(named, row, assumed)
        else:
            stem, stated = "", _from_columns(row, named, library, assumed)
        return ",".join(filter(None, (stem, _line(stated)))), tuple(assumed)

    return library.once(("model", *(row.text(name) for name in COLUMNS)), describe)


def _changed(model: ModelSpec, row: Row) -> dict[str, Any] | None:
    """Return what the row's own columns change of a preset; None where it is another model but for its name.

    Depth, vocabulary and multi-token prediction are left to `_resized`.
    """
    expected = {"hidden": model.hidden}
    free: dict[str, int] = {}
    for kind in model.kinds:  # what a later one has counts
        if kind.attention is not None:
            expected["heads"] = kind.attention.heads
        if kind.attention is not None and kind.attention.latent is None:
            free["kv_heads"] = kind.attention.kv_heads
        if kind.mlp is not None:
            free["ffn"] = kind.mlp.ffn
        if kind.moe is not None:
            expected |= {"experts": kind.moe.experts, "topk": kind.moe.top_k, "moe_ffn": kind.moe.ffn}
    if any(row.whole(name) not in {None, value} for name, value in expected.items()):
        return None
    changed = {name: row.whole(name) for name, value in free.items() if row.whole(name) not in {None, value}}
    block = next((block for kind in model.kinds for block in (kind.mlp, kind.moe) if block), None)
    gated = row.switch("gated")
    return changed if block is None or gated in {None, block.gated} else {**changed, "gated": gated}


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


def _from_columns(row: Row, named: ModelSpec | None, library: Library, assumed: list[str]) -> dict[str, Any]:
    """Return a model of the row's own sizes; what they leave open is that of its family, or what its parameters say.

    Args:
        named: the preset that has its name, and other sizes.
    """
    name, hidden = row.text("model"), row.whole("hidden")
    if not hidden:
        raise InputError(f"the model {name[:60]!r} is not known and the row has no layers, hidden and heads")
    family = _family(name, [named] if named else _kin(name, library))
    sizes = _sizes(row, hidden, family, assumed)
    family = _settled(row, sizes, family, library, assumed)
    if not row.whole("layers"):
        assumed.append(f"{sizes['layers']} layers, from {row.raw('params_b')} B parameters")
    return sizes | _written(family, sizes)


def _sizes(row: Row, hidden: int, family: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    def stated(column: str, otherwise: Callable[[], int], text: str) -> int:
        value = row.whole(column)
        if not value:
            value = otherwise()
            assumed.append(text.format(value, hidden // value))
        return value

    vocab = stated("vocab", lambda: int(family.get("vocab", GPT2_VOCABULARY)), "vocabulary {0}")
    ffn = stated("ffn", lambda: 4 * hidden, "ffn = 4 x hidden")
    heads = stated("heads", lambda: _heads(row, hidden), "{0} heads of {1}")
    if hidden < heads:
        raise InputError(f"hidden {hidden} is less than its {heads} heads", place=row.place)
    kv_heads = row.whole("kv_heads")
    if not kv_heads and not family.get("multi_head"):
        assumed.append(f"{heads} KV heads, as many as heads")
    out = {"hidden": hidden, "vocab": vocab, "heads": heads, "kv_heads": kv_heads or heads}
    if hidden % heads:
        out["head_dim"] = hidden // heads
        assumed.append(f"heads of {hidden // heads}")
    experts, dense = row.whole("experts") or 0, row.whole("dense_layers") or 0
    if experts > 1:
        out |= {"experts": experts, "top_k": row.whole("topk") or 1, "moe_ffn": row.whole("moe_ffn") or ffn}
        out |= {"dense_layers": dense, "ffn": ffn} if dense else {}
    else:
        out["ffn"] = ffn
    layers = row.whole("layers") or _layers(row, out, family)
    if experts > 1 and dense > layers:
        raise row.error("dense_layers", f"are more than its {layers} layers")
    return {"layers": layers, **out} | ({"mtp_layers": row.whole("mtp")} if row.whole("mtp") else {})


def _settled(
    row: Row, sizes: Mapping[str, Any], family: Mapping[str, Any], library: Library, assumed: list[str]
) -> dict[str, Any]:
    """Return a family with what it does not say: whether the MLP is gated, and embeddings are tied.

    The row's own column goes first, then its parameters where they decide clearly, the family, and the width.

    Raises:
        InputError: nothing says whether the MLP is gated.
    """
    own = row.switch("gated")
    found = {**family, **({} if own is None else {"gated": own})}
    counted = _counted(row, sizes, found, library) if row.whole("layers") else {}
    said = {key: (value, f"from {row.raw('params_b')} B parameters") for key, value in counted.items()}
    if "gated" not in {**found, **counted}:
        column = "moe_ffn" if "moe_ffn" in sizes else "ffn"
        if sizes[column] == 4 * sizes["hidden"]:
            name = row.text("model")[:60]
            raise InputError(f"is the MLP of {name!r} gated? Say so in the column 'gated', or give its 'params_b'")
        said["gated"] = True, "as it is not 4 x as wide as the model"
    if "tied_embeddings" not in {**found, **counted}:
        said["tied_embeddings"] = False, "as most have it"
    words = {"gated": ("plain MLP", "gated MLP"), "tied_embeddings": ("embeddings apart", "tied embeddings")}
    assumed += [f"{words[key][value]}, {why}" for key, (value, why) in said.items()]
    return {**found, **{key: value for key, (value, _) in said.items()}}


def _counted(row: Row, sizes: Mapping[str, Any], family: Mapping[str, Any], library: Library) -> dict[str, bool]:
    """Return what the row's parameters say of the MLP's gate, but against its own column, and of tied embeddings, but
    against its family, where they decide it clearly."""
    billions = row.number("params_b")
    if billions is None:
        return {}
    gates = (False, True) if row.switch("gated") is None else (bool(family["gated"]),)
    ties = (False, True) if "tied_embeddings" not in family else (bool(family["tied_embeddings"]),)
    off: dict[tuple[bool, bool], float] = {}
    for gated, tied in itertools.product(gates, ties):
        keys = {**sizes, **_written({**family, "gated": gated, "tied_embeddings": tied}, sizes)}
        total = model_parameters(library.presets.model(_line(keys))).total
        off[gated, tied] = abs(total / (billions * 1e9) - 1)
    found = {}
    for at, key in enumerate(("gated", "tied_embeddings")):
        best = {value: min(off[one] for one in off if one[at] == value) for value in {one[at] for one in off}}
        chosen = min(best, key=lambda value: best[value])
        if len(best) > 1 and best[chosen] <= NEAR and max(best.values()) >= APART and family.get(key) != chosen:
            found[key] = chosen
    return found


def _line(keys: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={str(value).lower()}" for key, value in keys.items())


def _written(family: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a family a model in a line states: gate, tied embeddings and positions always."""
    left = {"vocab", "multi_head", *(() if "ffn" in sizes else ("mlp_bias",))}
    always = {key: family.get(key, 0) for key in ("gated", "tied_embeddings", "learned_positions")}
    usual = {"norms_per_layer": 2, "qk_norm": "none"}
    said = {key: value for key, value in family.items() if value and value != usual.get(key)}
    return {key: value for key, value in (said | always).items() if key not in left}


_SIZE = re.compile(r"[-_]?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[bm](?![a-z])")
"""The size in a model's name, before which its family stands."""

_LAST = re.compile(r"[-_.][^-_.]*$|\d+$")
"""The last part of a family's name: what follows a hyphen, or a digit."""


def _kin(name: str, library: Library) -> list[ModelSpec]:
    """Return the presets of a name's family: of `qwen-7b` all generations of Qwen, as none is called so."""

    def families() -> dict[str, list[str]]:
        """Return the names of presets by the words before their size."""
        found: dict[str, list[str]] = {}
        named = {alias.lower(): path.stem for alias, path in preset_aliases("models").items()}
        for own, stem in sorted((named | {stem: stem for stem in preset_names("models")}).items()):
            found.setdefault(_SIZE.split(own)[0], []).append(stem)
        return found

    words = library.once("families", families)
    word, shorter = "", _SIZE.split(name)[0]
    while word != shorter:
        word, shorter = shorter, _LAST.sub("", shorter)
        found = words.get(word, [])
        if not found and not word.startswith(PLAIN_GPT):
            series = re.compile(rf"{re.escape(word)}[-_]?[\d.]+")
            found = [stem for one in words if series.fullmatch(one) for stem in words[one]]
        if found:
            return [library.presets.model(stem) for stem in dict.fromkeys(found)]
    return []


def _family(name: str, kin: Sequence[ModelSpec]) -> dict[str, Any]:
    """Return what all models of a family have in common, as keys of a model file; and `multi_head`, whether each head
    has keys of its own.

    Raises:
        InputError: sizes do not describe such models.
    """
    usual: dict[str, Any] = {}
    if name.startswith(PLAIN_GPT):  # apart from a Llama: a plain MLP, biases, tied embeddings, learned positions
        usual = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "norm_bias"), True)
        usual |= {"gated": False, "tied_embeddings": True, "multi_head": True, "learned_positions": LEARNED_POSITIONS}
    every = [_traits(model) for model in kin if not any(kind.state_space for kind in model.kinds)]
    every = [one for one in every if one]
    if kin and not every:
        message = f"{kin[0].name} has attention that heads and widths alone do not describe"
        raise InputError(message, hint="name a model whose preset has these sizes")
    shared = every[0].items() if every else ()
    return usual | {key: value for key, value in shared if all(one[key] == value for one in every)}


def _traits(model: ModelSpec) -> dict[str, Any]:
    """Return how the first layer of a model is built, as keys of a model file; nothing of latent attention."""
    kind = model.kinds[model.pattern[0]]
    attention, block = kind.attention, kind.mlp or kind.moe
    if attention is None or attention.latent or block is None:
        return {}
    return {
        "gated": block.gated, "vocab": model.vocab, "tied_embeddings": model.tied_embeddings,
        "multi_head": attention.kv_heads == attention.heads, "qkv_bias": attention.qkv_bias,
        "output_bias": attention.output_bias, "mlp_bias": bool(kind.mlp and kind.mlp.bias),
        "norm_bias": kind.norm_bias, "norms_per_layer": kind.norms, "parallel_blocks": kind.parallel_blocks,
        "qk_norm": attention.qk_norm, "learned_positions": model.learned_positions,
    }  # fmt: skip


def _heads(row: Row, hidden: int) -> int:
    """Heads of about `HEAD_DIM` elements that divide the hidden size and are divided by TP."""
    tp = row.whole("tp") or 1
    fitting = [heads for heads in range(tp, hidden // 16 + 1, tp) if hidden % heads == 0]
    if not fitting:
        raise InputError("the row states no heads, and none divide its hidden size", place=row.place)
    return min(fitting, key=lambda heads: abs(hidden / heads - HEAD_DIM))


def _layers(row: Row, sizes: Mapping[str, int], family: Mapping[str, Any]) -> int:
    """Layers that make up the stated parameters: attention and an MLP each, and the embedding."""
    billions = row.number("params_b")
    if billions is None or "ffn" not in sizes:
        raise InputError(f"the model {row.text('model')[:60]!r} is not known and the row has no layers")
    hidden, grouped, own = sizes["hidden"], sizes["kv_heads"] / sizes["heads"], row.switch("gated")
    gated = family.get("gated", sizes["ffn"] != 4 * hidden) if own is None else own
    embeddings = (1 if family.get("tied_embeddings") else 2) * sizes["vocab"] * hidden
    per_layer = hidden * (2 * hidden * (1 + grouped) + (2 + gated) * sizes["ffn"])
    return max(1, round((min(billions, 1e5) * 1e9 - embeddings) / per_layer))
