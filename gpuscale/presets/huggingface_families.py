"""What a Hugging Face `model_type` leaves out of its config.json: what its layers are made of, and how it names keys.

`presets/families/huggingface.json` has a table of `Family` per model type, `like` another one but for what it states:
facts of the config and model classes of the transformers library (5.24). tests/test_transformers.py builds every type's
class and counts its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscale.presets.files import family_table

Setting = bool | str
"""A fact that holds for the whole family, or the config key (default false) that says so per model; after `!` the
opposite of what the key says."""


@dataclass(frozen=True)
class Pattern:
    """Words of layers that the config does not list: the first of the cycle for most, the last for some."""

    cycle: tuple[str, ...]  #: repeated over the layers, where no other field says which have the last word.
    every: int = 0  #: the last word in one layer of so many;
    every_key: str = ""  #: key of that number;
    at: int = -1  #: place of that layer among them,
    offset: str = ""  #: and its key.
    listed: str = ""  #: key of a list of the layers that have the last word,
    counted_from: int = 0  #: counted from 0 or 1.
    flags: str = ""  #: key of a list of 0 (last word) and 1;
    otherwise: str = ""  #: word of all layers where that list is missing.
    begin: str = ""  #: key of the first layer that has the last word, as all after it.
    first: tuple[str, ...] = ()  #: words of the first layers, whatever the others have.
    counted_behind: bool = False  #: others are counted from behind these.
    last: str = ""  #: word of the last layer,
    always_last: bool = False  #: also where the words are listed;
    at_least_one: bool = False  #: which has the last word where no other layer has it.
    switch: str = ""  #: key that, when false, gives all layers the first word.
    off_is_last: bool = False  #: it gives them the last word.
    repeats: bool = False  #: a shorter list of the config is repeated.


@dataclass(frozen=True)
class Experts:
    """Which layers have routed experts, and how wide these are; a list `mlp_layer_types` goes before."""

    width: str = "moe_intermediate_size"  #: key of the width of one.
    first: int = 0  #: dense layers before the first with experts,
    first_key: str = ""  #: and their key.
    every: str = ""  #: key: experts in the last layer of so many;
    frequency: str = ""  #: in the first of so many, or a list of flags;
    offset: str = ""  #: key of its place among them.
    listed: str = ""  #: key of a list of the layers that have experts.
    dense: str = ""  #: key of a list of those that have none.
    until: str = ""  #: key of the last layer that has them; -1 is the last of all.
    optional: str = ""  #: all layers are dense without a number of experts (`null`) or also with none (`zero`),
    switch: str = ""  #: or where this key is false.
    shared_count: str | int = ""  #: shared experts, as wide as a routed one: their number, or its key;
    shared_least: int = 0  #: fewer than so many are no such model;
    shared_each: str = ""  #: key of the width of one, where it is another.
    shared_width: str = ""  #: key of the width of all shared experts.


@dataclass(frozen=True)
class Family:
    """How one model type is built."""

    title: str  #: family name shown to the user.
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: class defaults beyond those of the transformers class.
    #: usual name of a key -> this type's, with dots inside tables.
    keys: Mapping[str, str] = field(default_factory=dict)
    class_of: str = ""  #: model type whose class defaults hold, where it is another.
    gated: bool = True  #: the MLP has two input projections.
    qkv_bias: Setting = False  #: biases of queries, keys and values.
    output_bias: Setting = False  #: of the output projection.
    mlp_bias: Setting = False  #: of the MLP.
    head_bias: Setting = False  #: of the LM head.
    qk_norm: str = "none"  #: `none`, `head` or `full`; with `qk_norm_key`, only where that key is true.
    qk_norm_key: str | None = None
    #: norms of width hidden per layer, or the key of their number; of two the second counts where blocks are parallel.
    norms: int | tuple[int | str, int | str] = 2
    first_norms: int | None = None  #: those of the first layer, where it has another number.
    norm_bias: Setting = False  #: whether they have a bias.
    norm_switch: str = ""  #: key that, when false, leaves their weights out.
    more_norms: str = ""  #: key that, when true, adds a norm behind each block.
    final_norm: Setting = True  #: a norm with weights stands behind the last layer.
    parallel: Setting = False  #: attention and MLP read the same hidden state.
    #: what mixes tokens in each layer, where `layer_types` does not say.
    layers: Pattern = Pattern(("full_attention",))
    #: word of such a list -> what it means, where it is not usual.
    words: Mapping[str, str] = field(default_factory=dict)
    window: str = "sliding_window"  #: key of the length of a window,
    chunks: bool = False  #: which is a chunk that sees no other.
    whole_keys: Mapping[str, str] = field(default_factory=dict)  #: of layers that see all keys: usual name -> own name.
    window_prefix: str = ""  #: of keys of layers with a window, whose heads are their own.
    twice_kv_in_windows: bool = False  #: they have twice the key and value heads.
    multi_head: bool = False  #: as many key and value heads as query heads, whatever a key says.
    one_kv_head: Setting = False  #: a single key and value head.
    value_dim: bool = False  #: values have a width of their own outside latent attention.
    #: widths that are so many times hidden_size / heads, where nothing else is stated.
    per_head: Mapping[str, int] = field(default_factory=dict)
    uneven_heads: bool = False  #: heads need not divide the hidden width (which is rounded down).
    shares_keys: bool = False  #: the last `num_kv_shared_layers` layers take keys and values from earlier ones.
    keys_as_values: str = ""  #: key that, when true, makes keys the values where attention is full.
    experts: Experts | None = None
    dense_beside_experts: bool = False  #: layers with experts have a dense block beside them.
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    ffn: str = "intermediate_size"  #: key of the width of the MLP, or `four`, `ratio`, `half`, `lfm2`, `xlstm`, `none`.
    ffn_beside: str = ""  #: the same of a dense block beside experts.
    sinks: str = ""  #: `all`; `window`, where keys say.
    latent: bool = False  #: multi-head latent attention.
    compressed: bool = False  #: attention of DeepSeek-V4.
    square: bool = False  #: the output projection is as wide as the model, so that all heads together must be.
    output_gate: Setting = False  #: a query-wide gate on the attention output.
    state: str = ""  #: reader of the state space, of layers that have one.
    blocks: str = ""  #: `pattern`: every layer is a single block, by a pattern; a letter: all are such blocks.
    mtp_key: str | None = None  #: key of the number of multi-token-prediction modules, where it is not DeepSeek's.
    repeats: str = ""  #: how layers are used more than once: ``, `longcat` or `zamba`.
    beside: tuple[str, ...] = ()  #: what layers have beside their blocks (`huggingface_layers.beside`),
    at_embedding: tuple[str, ...] = ()  #: the embedding,
    at_head: tuple[str, ...] = ()  #: and the LM head.
    untied: bool = False  #: the class keeps embedding and LM head apart, whatever the config says.
    positions: int | None = None  #: learned positions beyond max_position_embeddings; None without learned ones.
    refused: tuple[str, ...] = ()  #: keys that, when true, change the shape in a way that is not modelled,
    fixed: Mapping[str, int] = field(default_factory=dict)  #: keys that the class takes to have one value,
    equal: Mapping[str, str] = field(default_factory=dict)  #: and keys that must equal another one, or be missing.


def _family(name: str, tables: Mapping[str, Mapping[str, Any]]) -> Family:
    """Return what a table says, on top of the one that it is `like`; what is no model type has no title."""
    stated = dict(tables[name])
    base = _family(stated.pop("like"), tables) if "like" in stated else Family("")
    title = stated.pop("title", "" if name.startswith("_") else base.title or name)
    defaults = {**base.defaults, **stated.pop("defaults", {})}
    for key, made in (("layers", Pattern), ("experts", Experts)):
        if stated.get(key) is not None:
            stated[key] = made(**_of_tuples(stated[key]))
    return replace(base, title=title, defaults=defaults, **_of_tuples(stated))


def _of_tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


_TABLES = family_table("huggingface.json")
FAMILIES = {name: _family(name, _TABLES["families"]) for name in _TABLES["families"] if not name.startswith("_")}
TEXT_TYPES: dict[str, str] = _TABLES["text_types"]
"""Multimodal model type -> model type of its text backbone, where the nested text config does not say."""
UNSUPPORTED: dict[str, list[str]] = _TABLES["unsupported"]
"""Why a known model type is not read -> those model types."""
