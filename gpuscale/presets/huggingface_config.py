"""A Hugging Face `config.json` as it is read: key by key, with its type and range checked.

Nothing in the file is trusted: its size is bounded, and what is not understood is refused with the key's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.presets.files import read_text, short
from gpuscale.specs.model import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_MTP,
    MAX_SEQUENCE,
    MAX_VOCAB,
)
from gpuscale.units import MIB

MAX_CONFIG_BYTES = 4 * MIB
"""Largest config.json read: quantisation sections that list every layer reach about 1 MB."""

LIMITS = {
    "hidden_size": MAX_HIDDEN, "num_hidden_layers": MAX_LAYERS, "num_attention_heads": MAX_HEADS,
    "num_key_value_heads": MAX_HEADS, "swa_num_key_value_heads": MAX_HEADS, "swa_num_attention_heads": MAX_HEADS,
    "head_dim": MAX_HEAD_DIM, "v_head_dim": MAX_HEAD_DIM, "swa_head_dim": MAX_HEAD_DIM, "swa_v_head_dim": MAX_HEAD_DIM,
    "qk_nope_head_dim": MAX_HEAD_DIM, "qk_rope_head_dim": MAX_HEAD_DIM, "q_lora_rank": MAX_HIDDEN,
    "kv_lora_rank": MAX_HIDDEN, "vocab_size": MAX_VOCAB, "max_position_embeddings": MAX_SEQUENCE,
    "n_routed_experts": MAX_EXPERTS, "num_experts": MAX_EXPERTS, "num_local_experts": MAX_EXPERTS,
    "n_group": MAX_EXPERTS, "topk_group": MAX_EXPERTS,
    "num_experts_per_tok": MAX_EXPERTS, "n_shared_experts": MAX_EXPERTS, "num_nextn_predict_layers": MAX_MTP,
    "mtp_num_hidden_layers": MAX_MTP, "mamba_num_heads": MAX_HEADS, "mamba_head_dim": MAX_HEAD_DIM,
    "n_groups": MAX_HEADS,
    "ssm_state_size": MAX_HEAD_DIM, "conv_kernel": 64, "linear_conv_kernel_dim": 64, "short_conv_kernel_size": 64,
    "linear_num_key_heads": MAX_HEADS, "linear_num_value_heads": MAX_HEADS, "linear_key_head_dim": MAX_HEAD_DIM,
    "linear_value_head_dim": MAX_HEAD_DIM, "num_heads": MAX_HEADS, "linear_num_heads": MAX_HEADS,
    "linear_head_dim": MAX_HEAD_DIM, "index_n_heads": MAX_HEADS,
    "index_head_dim": MAX_HEAD_DIM, "index_topk": MAX_SEQUENCE, "moe_latent_size": MAX_HIDDEN,
    "sliding_window": MAX_SEQUENCE, "attention_chunk_size": MAX_SEQUENCE,
}  # fmt: skip
"""Largest value of each key; widths of MLPs and experts, and everything else, at most MAX_FFN."""

SYNONYMS = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "model_max_length"),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "num_local_experts": ("num_experts",),
    "num_experts": ("num_local_experts",),
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "n_shared_experts": ("num_shared_experts",),
    "num_experts_per_tok": ("num_experts_per_token",),
}
"""Other spellings of a key, as older or sibling model types have them."""

STATED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that a top-level config must state itself."""

_MISSING: Any = object()


class Config(NamedTuple):
    """A config.json, or its nested text config, read key by key with checks.

    Attributes:
        place: the file, for messages.
        data: the JSON object.
        defaults: values of keys that are missing or null.
        prefix: `text_config.` inside a multimodal config.
    """

    place: str
    data: Mapping[str, Any]
    defaults: Mapping[str, Any]
    prefix: str = ""

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong at `key`."""
        return InputError(f"{self.prefix}{key} {message}", place=self.place, hint=hint)

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Return the value of `key` or of a synonym; null counts as missing.

        Raises:
            InputError: missing, and there is no default.
        """
        for name in (key, *SYNONYMS.get(key, ())):
            if self.data.get(name) is not None:
                return self.data[name]
        if key in self.defaults and (self.prefix or key not in STATED):
            return self.defaults[key]
        if default is not _MISSING:
            return default
        raise self.needed(key)

    def optional(self, key: str, low: int = 1) -> int | None:
        """Return an integer from `low` to the key's limit, or None where it is missing and has no default."""
        found = self.value(key, None)
        return None if found is None else self._checked(key, found, low)

    def integer(self, key: str, default: Any = _MISSING, low: int = 1) -> int:
        """Return an integer from `low` to the key's limit.

        Raises:
            InputError: missing, not an integer, or out of range.
        """
        found = self.value(key, default)
        if found is None:
            raise self.needed(key)
        return self._checked(key, found, low)

    def _checked(self, key: str, found: Any, low: int) -> int:
        high = LIMITS.get(key, MAX_FFN)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not a whole number")
        if not low <= found <= high:
            raise self.error(key, f"is {short(found)}, out of range", f"{key} goes from {low} to {high:,}")
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean; missing and without a class default it is `default`."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not true or false")
        return found

    def setting(self, setting: bool | str) -> bool:
        """Return a family's constant, or the flag that it names."""
        return self.flag(setting) if isinstance(setting, str) else setting

    def items(self, key: str, layers: int | None, of: type) -> list[Any] | None:
        """Return a list of `of` (with one entry per layer where `layers` is given), or None where it is missing."""
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
        """Return a list of `known` words, one per layer where `layers` is given, or None where it is missing."""
        found = self.items(key, layers, str)
        strange = next((word for word in found or () if word not in known), None)
        if strange is not None:
            raise self.error(key, f"holds {short(strange)}, not {' or '.join(known)}: not supported")
        return found

    def needed(self, key: str) -> InputError:
        """Build the error for a key that is missing and has no default."""
        return self.error(key, "is missing", f"a config of this model type needs {key}")

    def table(self, key: str) -> Config:
        """Return a nested object as a config of its own (empty where it is missing)."""
        found = self.value(key, {})
        if not isinstance(found, dict):
            raise self.error(key, f"is {short(found)}, not an object")
        return Config(self.place, found, {}, f"{self.prefix}{key}.")

    def having(self, **values: Any) -> Config:
        """Return the config with the given keys set."""
        return self._replace(data={**self.data, **values})


def find_config(path: Path) -> Path:
    """Return the config.json at a path, or in the folder there.

    Raises:
        InputError: there is none.
    """
    try:
        if path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError):  # too long a name, a NUL byte
        exists = False
    what = "is not a regular file" if exists else "no such file"
    raise InputError(what, place=repr(str(path)[:300]), hint="give a config.json, or a folder that holds one")


def read_config_file(file: Path) -> Config:
    """Read a config.json of at most 4 MiB.

    Raises:
        InputError: not readable, not JSON, or not an object of keys.
    """
    place = str(file)[:300]
    hint = "give a model's config.json, or a model file that ends in .toml"
    text = read_text(file, MAX_CONFIG_BYTES, "a config.json", hint=hint)
    try:
        data = json.loads(text)
    except RecursionError:
        raise InputError("nested too deep for a config.json", place=place) from None
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", place=f"{place}:{error.lineno}", hint=hint) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("not valid JSON: a number is too long", place=place, hint=hint) from None
    if not isinstance(data, dict):
        raise InputError(f"is {short(data)}, not an object of keys", place=place, hint=hint)
    return Config(place, data, {})
