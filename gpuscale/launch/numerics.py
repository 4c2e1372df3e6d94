"""What a model computes beside its shape, in exports: written where a target can say it, else named in the script."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from gpuscale.launch.writing import Writing
from gpuscale.specs.model import NumericsSpec

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
