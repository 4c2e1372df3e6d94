"""Settings that no reader asked for: whether they change memory or time, and which option would settle it."""

from __future__ import annotations

import re
from typing import Any

from gpuscale.presets.tools import Asked, Tool

CONCERNS = {
    "optimizer": r"galore|apollo|badam|adam_?mini|muon|lomo|\blisa|grokadam|optim(izer)?(_(type|name|class|cls))?$",
    "offload": r"offload",
    "precision": r"quant|fp8|fp4|int8|8_?bit|4_?bit|\bbits\b|dtype|(bf|fp)(16|32)\b|precision",
    "": r"(?<!q_)(?<!kv_)lora|adapter|freeze|frozen|trainable|peft",
    "recompute": r"checkpointing|grad(ient)?_checkpoint|recompute|remat",
    "zero": r"\bzero|_zero|shard|fsdp|deepspeed|\bddp\b|dataparallel|distributed_type",
    "cp": r"context_parallel|sequence_parallel|ulysses|ring_attn|\b[cs]p(_size)?$",
    "tp": r"tensor_(model_)?parallel|tensor_parallel|autotp|\btp(_size|_degree)?$",
    "pp": r"pipeline|\bpp(_size|_degree)?$",
    "ep": r"expert_(model_)?parallel|\bep(_size|_degree)?$",
    "attention": r"attn|attention|flash",
    "compile": r"compile",
    "loss": r"liger|cross_entropy|unsloth",
    "cuda_graphs": r"cuda_?graph",
    "model": r"moe|expert|mamba|\bssm|hybrid|mixture|num_layers|hidden_size|vocab_size|head_dim|_heads$",
    "gbs": r"batch_size|accumulat|batch_per",
    "seq": r"seq(uence)?_?len|max_length|block_size|cutoff",
}
"""Option that settles it (none: nothing does) -> what names of settings say that change memory or time."""


def speaks_of(name: str) -> str | None:
    """Return the option that the words of a name speak of, `` where none settles it; None where of nothing."""
    return next((option for option, words in CONCERNS.items() if re.search(words, name.lower())), None)


_OFF = ("false", "off", "no", "none", "null", "0", "0.0", "", "auto", "default", "disabled", "disable", "~")
_DEGREES = ("tp", "pp", "cp", "ep", "zero")


def concern(tool: Tool, setting: str, value: Any, *, dumped: bool = False) -> Asked | None:
    """Return what a setting that nobody asked for does to memory or time; None where it does nothing.

    What a tool is not known to have and whose name speaks of what changes them counts as doing so.

    Args:
        setting: its name.
        dumped: it is one of all that a program has, printed whether anybody set it or not.
    """
    name = setting.lower().replace("-", "_")
    asked = tool.asks(name)
    if not is_on(value) or (asked is None and (tool.ignores(name) or tool.notes(name))):
        return None
    last = name.rpartition(".")[2]
    guessed = () if dumped else CONCERNS if tool.guessed is None else tool.guessed
    option = next((option for option, words in CONCERNS.items() if option in guessed and re.search(words, last)), None)
    asked = asked or (None if option is None else Asked(option, "not known here, and may change memory or time"))
    one_is_none = asked is not None and (asked.option in _DEGREES or "expert" in last)
    return None if one_is_none and str(value) == "1" else asked


def is_on(value: Any) -> bool:
    """Whether a value switches something on, or is more than nothing."""
    if isinstance(value, str):
        return value.strip().lower() not in _OFF
    return bool(value)


def unasked(tool: Tool | None, setting: str) -> str:
    """Say why a setting of this name, that nobody asked for, has no meaning."""
    if tool is None:
        return "changes no prediction, or is unknown"
    known = tool.ignores(setting) or tool.asks(setting)
    return "changes no prediction" if known else "not known here: taken to change no prediction"
