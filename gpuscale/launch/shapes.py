"""Models as launch files state them: their shape, attention kernels, and what they compute beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from gpuscale.choices import PIPELINE_SPLITS
from gpuscale.errors import GpuscaleError, InputError
from gpuscale.launch.settings import OFF, ON, Reading, Setting, says
from gpuscale.launch.writing import Writing
from gpuscale.layouts.stages import stage_sizes
from gpuscale.presets.files import known_table
from gpuscale.presets.models import all_models, load_model
from gpuscale.specs.model import ModelSpec, NumericsSpec


def model_line(keys: Mapping[str, Any]) -> str:
    """Return a model in a line, as `model` takes it, from keys of a model file; those of tables as `moe.top_k`."""
    return ",".join(f"{key}={_text(value)}" for key, value in keys.items() if value is not None)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def named_shape(keys: Mapping[str, Any]) -> str:
    """Return the preset that has this very shape, or the model in a line where there is none.

    Of several presets (a model and its instruction-tuned twin) the first by name counts whose longest sequence is the
    same, else the first by name; one that sees images comes after those that do not.

    Raises:
        InputError: the keys make no model.
    """
    line = model_line(keys)
    made = load_model(line)
    found = [one for one in all_models_once() if same_shape(one, made)]
    found.sort(key=lambda one: (bool(one.towers), one.max_sequence != made.max_sequence, one.name))
    return found[0].name if found else line


def named_spec(spec: ModelSpec) -> str:
    """Return a model as `model` takes it: the preset that has its shape, else the model in a line.

    Raises:
        InputError: no line says all of it.
    """
    attention, kind = spec.attentions[0], spec.kinds[spec.pattern[-1]]
    experts, mlp = kind.moe, next((one.mlp for one in spec.kinds if one.mlp), None)
    block = mlp or experts
    keys: dict[str, Any] = {
        "layers": spec.layers, "hidden": spec.hidden, "heads": attention.heads, "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim, "ffn": mlp.ffn if mlp else None, "vocab": spec.vocab,
        "sequence": spec.max_sequence, "tied_embeddings": spec.tied_embeddings,
        "gated": None if block is None or block.gated else False, "learned_positions": spec.learned_positions or None,
        "qkv_bias": attention.qkv_bias or None, "output_bias": attention.output_bias or None,
        "mlp_bias": bool(mlp and mlp.bias) or None, "norm_bias": kind.norm_bias or None,
        "head_bias": spec.head_bias or None, "parallel_blocks": kind.parallel_blocks or None,
        "qk_norm": None if attention.qk_norm == "none" else attention.qk_norm, "window.length": attention.window,
    }  # fmt: skip
    if experts is not None:
        dense = [spec.kinds[index].moe is None for index in spec.pattern].count(True)
        keys |= {
            "moe.experts": experts.experts, "moe.top_k": experts.top_k, "moe.ffn": experts.ffn,
            "moe.shared_ffn": experts.shared_ffn or None, "moe.dense_layers": dense or None,
        }  # fmt: skip
    found = named_shape(keys)
    if not same_shape(load_model(found), spec):
        raise InputError("this shape is more than a line says", hint="give `model=NAME`, or a config.json of it")
    return found


def shape_but_vocabulary(keys: Mapping[str, Any]) -> list[ModelSpec]:
    """Return the presets that have a shape whose vocabulary is not known, one of each vocabulary, likeliest first.

    Raises:
        InputError: the keys make no model.
    """
    made = load_model(model_line({**keys, "vocab": 1}))
    found = [one for one in all_models_once() if same_shape(replace(one, vocab=1), made)]
    found.sort(key=lambda one: (bool(one.towers), one.max_sequence != made.max_sequence, one.name))
    return list({one.vocab: one for one in reversed(found)}.values())[::-1]


def nearest_split(model: ModelSpec, sizes: Sequence[int], pp: int, vpp: int) -> tuple[str, tuple[int, ...], int]:
    """Return the way to deal out layers that comes nearest to stages, what it deals out, and how far that is off."""
    dealt = {split: tuple(stage_sizes(model, pp, vpp, split)) for split in PIPELINE_SPLITS}
    far = {
        split: max(abs(one - other) for one, other in zip(sizes, own, strict=True))
        for split, own in dealt.items()
        if len(own) == len(sizes)
    }
    best = min(far, key=far.__getitem__, default="even")
    return best, dealt[best], far.get(best, 1)


def same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models train alike, whatever they are called and however long a sequence they are made for."""
    return _physics(one) == _physics(other)


def _physics(model: ModelSpec) -> tuple[Any, ...]:
    layers = tuple(model.kinds[index] for index in model.pattern)
    modules = model.mtp if model.mtp_depth else None
    return (
        model.hidden, model.vocab, layers, model.tied_embeddings, model.learned_positions, modules, model.head_bias,
        model.final_norm, model.at_embedding, model.at_head,
    )  # fmt: skip


@cache
def all_models_once() -> tuple[ModelSpec, ...]:
    """Every preset model; those that cannot be read are left to the command that asks for them."""
    try:
        return tuple(all_models())
    except GpuscaleError:
        return ()


LABELS = {
    "rotary_base": "rotary base",
    "rotary_share": "share of a head that rotary positions turn",
    "rotary_scaling": "rotary scaling",
    "norm_epsilon": "epsilon of norms",
    "init_std": "standard deviation of initial weights",
    "activation": "activation of MLPs",
    "attention_softcap": "bound of attention logits",
    "logit_softcap": "bound of the LM head's logits",
    "router_score": "scores of experts",
    "router_normalised": "scores of chosen experts made to sum to 1",
    "router_scale": "factor of the scores of experts",
    "router_aux_loss": "weight of the loss that balances experts",
}
"""Field of `NumericsSpec` -> what a script calls it; `scaling_...` belong to the rotary scaling."""

RARE = ("rotary_share", "attention_softcap", "logit_softcap", "router_scale")
"""Fields that models have no word of where they do as most do."""

ROTARY = ("rotary_base", "rotary_scaling")


def stated(numerics: NumericsSpec, field: str) -> Any:
    """Return a field; the rotary scaling with its parameters, as one text."""
    value = getattr(numerics, field)
    if field != "rotary_scaling" or value in {None, "none"}:
        return value
    parameters = {one.name: getattr(numerics, one.name) for one in fields(numerics) if one.name.startswith("scaling_")}
    said = (f"{name.removeprefix('scaling_')} {number:g}" for name, number in parameters.items() if number is not None)
    return ", ".join([value, *said])


def agree(one: NumericsSpec, other: NumericsSpec, names: Collection[str] = tuple(LABELS)) -> bool:
    """Whether two models have no numbers that differ, of those that both state."""
    pairs = [(stated(one, name), stated(other, name)) for name in names]
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def name_left(writing: Writing, written: Collection[str], here: NumericsSpec, what: str = "here") -> None:
    """Name in the script what a target computes otherwise than the model, or than anybody said.

    Args:
        written: fields that the target's files set, where the model states them.
        here: what the target has where nothing is set.
        what: the target, or what it begins with, for the text.
    """
    model = writing.model
    rotates = not model.learned_positions and bool(model.attentions)
    for field, label in LABELS.items():
        concerned = rotates if field.startswith("rotary_") else model.is_moe or not field.startswith("router_")
        value, usual = stated(model.numerics, field), stated(here, field)
        if not concerned or (value is None and field in RARE):
            continue
        if value is None:
            said = _shown(usual) if usual is not None else "the usual one"
            writing.leave(f"{label}: the model does not say; {said} {what}")
        elif field not in written and value != usual:
            said = f"{_shown(usual)} {what}" if usual is not None else f"and nothing sets it {what}"
            writing.leave(f"{label}: {_shown(value)} in the model, {said}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


TRANSFORMERS = {
    "fa2": "flash_attention_2", "fa3": "flash_attention_3", "fa4": "flash_attention_4", "flex": "flex_attention",
    "sdpa": "sdpa", "eager": "eager",
}  # fmt: skip
"""`attention` -> `attn_implementation` (transformers modeling_utils.py, AttentionInterface)."""

MEGATRON = {"fa2": "flash", "cudnn": "fused", "eager": "unfused"}
"""`attention` -> `--attention-backend` (Megatron core transformer/enums.py, AttnBackend): `flash` is the flash-attn
that is installed, 2 where nobody installs another."""

WORDS, SWITCHES = (
    {word: ours for ours, words in known_table("words")[kind].items() for word in words}
    for kind in ("attention", "attention_switches")
)
"""What kernels are called, in lower case with underscores, and what switches them on -> `attention`."""

NAMES = (
    "attn_implementation", "attn_impl", "model.attn_implementation", "model.attn_impl", "flash_attn", "attention_type",
)  # fmt: skip


def _word(setting: Setting | None) -> str:
    return "" if setting is None else str(setting.value).strip().lower().replace("-", "_")


def read_attention(reading: Reading, *names: str) -> None:
    """Read the attention kernels that a setting names or switches on.

    Args:
        names: settings that name them, if not those of transformers and its tools.

    Raises:
        InputError: kernels that are not modelled.
    """
    if reading.given.get("attention"):
        reading.means("replaced by the attention that is given", *(names or (*NAMES, *SWITCHES)))
        return
    known = names or NAMES
    named = [
        one for one in SWITCHES if not names and _word(reading.settings.get(one)) in WORDS
    ]  # `flash_attention: fa2`
    for name in named or [one for one in known if reading.stated(one)] or known:
        found = reading.get(name)
        word = _word(found)
        if found is None or word in {*ON, *OFF}:
            continue
        if word not in WORDS:
            reading.need(found)
            reading.refuse(found, f"attention of {word[:60]} is not modelled", settles="attention")
        reading.option("attention", WORDS[word], name)
        return
    for name, ours in SWITCHES.items() if not names else ():
        found = reading.settings.get(name)
        if found is not None and says(found.value) and reading.flag(name):
            reading.option("attention", ours, name)
            return
