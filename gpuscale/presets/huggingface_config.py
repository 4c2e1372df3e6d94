"""A Hugging Face `config.json`, read key by key with checks. A key that is `null` has no value; one that is missing has
the default of its class in the transformers library (`presets/families/transformers.json`, by
tests/update_transformers.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.presets.files import family_table, short
from gpuscale.specs import model as specs

_TABLES = family_table("huggingface.json")
LIMITS: dict[str, int] = {
    key: int(largest) if largest.isdecimal() else getattr(specs, largest)
    for largest, keys in _TABLES["largest"].items()
    for key in keys
}
"""Largest value of each key; widths of MLPs and experts, and everything else, at most MAX_FFN."""

SYNONYMS: dict[str, list[str]] = _TABLES["synonyms"]
"""Other spellings of a key, as older or sibling model types have them."""

STATED: list[str] = _TABLES["stated"]
"""Keys that a top-level config must state itself."""

NO_SHAPE = frozenset(_TABLES["no_shape"])
"""Keys that name a size and change none, or that follow from others that are read."""

_MISSING: Any = object()

SIZE = re.compile(r"(_size|_dim|_rank|_heads|_layers|_experts|_groups|_width|^dim|^d_\w+|^n_\w+)$")


class Config(NamedTuple):
    """A config.json, or its nested text config, read key by key with checks."""

    place: str  #: the file, for messages.
    data: Mapping[str, Any]  #: the JSON object.
    defaults: Mapping[str, Any]  #: values of keys that are missing.
    prefix: str = ""  #: `text_config.` inside a multimodal config.
    names: Mapping[str, str] = {}  #: what the model type calls a key that is called otherwise here.
    layer: int | None = None  #: the layer that is read: of a list of all layers' values its own counts.

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong at `key`."""
        own = self.names.get(key)
        names = (own,) if own else (key, *SYNONYMS.get(key, ()))
        name = next((one for one in names if one in self.data), names[0])
        return InputError(f"{self.prefix}{name} {message}", place=self.place, hint=hint)

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Return the value of `key`, or of its name in this model type, or of a synonym; one that is null has none, nor
        has what a model type has no key for (an empty one). Without one or a default an InputError."""
        own = self.names.get(key)
        names = (own,) if own else (key, *SYNONYMS.get(key, ()))
        for name in names:
            if (found := _at(self.data, name)) is not None:
                return found
        written = any(name in self.data for name in names)
        if not written and (self.prefix or key not in STATED):
            known = [_at(self.defaults, name) for name in names if _at(self.defaults, name) is not None]
            if known or any(name in self.defaults for name in names):
                return known[0] if known else None
        if default is not _MISSING:
            return default
        raise self.needed(key)

    def at(self, layer: int) -> Config:
        """Return the config of one layer, with what `per_layer_config` says of it."""
        own = self.value("per_layer_config", None)
        own = own if isinstance(own, dict) else {}
        found: Any = next((one for key, one in own.items() if str(key).isdigit() and int(key) == layer), {})
        return self._replace(data={**self.data, **found} if isinstance(found, dict) else self.data, layer=layer)

    def optional(self, key: str, low: int = 1) -> int | None:
        """Return an integer from `low` to the key's limit, or None without one."""
        return None if self.value(key, None) is None else self.integer(key, low=low)

    def integer(self, key: str, default: Any = _MISSING, low: int = 1) -> int:
        """Return an integer from `low` to the key's limit."""
        found = self.value(key, default)
        if found is None:
            raise self.needed(key)
        if isinstance(found, list) and self.layer is not None and self.layer < len(found):
            found = found[self.layer]
        high = LIMITS.get(key, specs.MAX_FFN)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not a whole number")
        if not low <= found <= high:
            raise self.error(key, f"is {short(found)}, out of range", f"{key} goes from {low} to {high:,}")
        return found

    def number(self, key: str, default: float) -> float:
        """Return a positive number below 1000."""
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1000:
            raise self.error(key, f"is {short(found)}, not a number above 0 and below 1000")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean; missing and without a class default it is `default`."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not true or false")
        return found

    def setting(self, setting: bool | str) -> bool:
        """Return a family's constant, or the flag that it names, turned round after an exclamation mark."""
        if not isinstance(setting, str):
            return setting
        return self.flag(setting.removeprefix("!")) is not setting.startswith("!")

    def items(self, key: str, layers: int | None, of: type) -> list[Any] | None:
        """Return a list of `of` (one entry per layer, if `layers` is given), or None without one."""
        found = self.value(key, None)
        if found is None:
            return None
        good = isinstance(found, list) and all(isinstance(item, of) and not isinstance(item, bool) for item in found)
        if not good:
            raise self.error(key, f"is {short(found)}, not a list of {'words' if of is str else 'whole numbers'}")
        if layers is not None and len(found) != layers:
            raise self.error(key, f"has {len(found)} entries for {layers} layers")
        return list(found)

    def words(self, key: str, layers: int | None, known: Sequence[str]) -> list[str] | None:
        """Return a list of `known` words, as `items`."""
        found = self.items(key, layers, str)
        strange = next((word for word in found or () if word not in known), None)
        if strange is not None:
            raise self.error(key, f"holds {short(strange)}, not {' or '.join(known)}: not supported")
        return found

    def needed(self, key: str) -> InputError:
        """Build the error for a key that is missing and has no default."""
        return self.error(key, "is missing", f"a config of this model type needs {key}")

    def table(self, key: str) -> Config:
        """Return a nested object as a config of its own, empty without one."""
        found = self.value(key, {})
        if not isinstance(found, dict):
            raise self.error(key, f"is {short(found)}, not an object")
        return Config(self.place, found, {}, f"{self.prefix}{key}.")

    def having(self, **values: Any) -> Config:
        """Return the config with the given keys set."""
        return self._replace(data={**self.data, **values})


def _at(data: Mapping[str, Any], name: str) -> Any:
    """Return the value at a key, or at a path of keys with dots."""
    found: Any = data
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


@cache
def class_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return model type -> what its class in the transformers library has for keys."""
    return family_table("transformers.json")
