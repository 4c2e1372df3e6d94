"""What a Hugging Face config.json says of a model beside its shape -> `NumericsSpec`. No time hangs on it: a value that
is missing, or that no model could have, is one that nobody stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpuscale.presets.files import family_table
from gpuscale.presets.tables import Table
from gpuscale.specs.model import NumericsSpec

TABLE = Table(NumericsSpec)

_TABLES = family_table("huggingface.json")
KEYS: dict[str, list[str]] = _TABLES["numerics"]
"""Field -> keys that state it, in the order in which they count; those of a table with a dot."""

SCALING: dict[str, list[str]] = _TABLES["scaling"]
"""The same for keys of `rope_scaling` or `rope_parameters`."""

ACTIVATIONS: dict[str, str] = _TABLES["activations"]
"""Names of transformers' activations that are called otherwise here."""

OF_CLASSES: dict[str, dict[str, Any]] = _TABLES["of_classes"]
"""Model type -> what its class does where its config does not say (transformers 5.x, models/*/modeling_*.py)."""


def numerics_of(data: Mapping[str, Any], model_type: str) -> NumericsSpec:
    """Return what a config states; the rotary scaling is none where it has no word of it."""
    usual = OF_CLASSES.get(model_type, {})
    found = {field: _first(data, keys, usual.get(field)) for field, keys in KEYS.items()}
    found["activation"] = ACTIVATIONS.get(str(found["activation"]), found["activation"])
    if data.get("swiglu_limit") is not None:
        found["activation"] = "swigluoai"
    tables = [one for key in ("rope_parameters", "rope_scaling") if isinstance(one := data.get(key), Mapping)]
    scaling: Mapping[str, Any] = tables[-1] if tables else {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    found["rotary_scaling"] = "none" if kind == "default" and found["rotary_base"] else kind
    if found["rotary_scaling"] != "none":
        found |= {field: _first(scaling, keys) for field, keys in SCALING.items()}
    stated = {field: value for field, value in found.items() if value is not None}
    try:
        TABLE.model.model_validate(stated)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            stated.pop(str(one["loc"][0]), None)
    return NumericsSpec(**stated)


def _first(data: Mapping[str, Any], keys: Sequence[str], usual: Any = None) -> Any:
    for key in keys:
        table, _, inner = key.rpartition(".")
        inside = data.get(table) if table else data
        if isinstance(inside, Mapping) and inside.get(inner) is not None:
            return inside[inner]
    return usual
