"""Attention kernels as launch files name them: one table of words for all readers, and what exports write."""

from __future__ import annotations

from gpuscale.launch.settings import OFF, ON, Reading, Setting, says
from gpuscale.presets.files import known_table

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
