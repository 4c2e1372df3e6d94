"""Attention kernels as launch files name them: one table of words for all readers, and what exports write."""

from __future__ import annotations

from gpuscale.launch.settings import OFF, ON, Reading, says

TRANSFORMERS = {
    "fa2": "flash_attention_2", "fa3": "flash_attention_3", "fa4": "flash_attention_4", "flex": "flex_attention",
    "sdpa": "sdpa", "eager": "eager",
}  # fmt: skip
"""`attention` -> `attn_implementation` (transformers modeling_utils.py, AttentionInterface)."""

MEGATRON = {"fa2": "flash", "cudnn": "fused", "eager": "unfused"}
"""`attention` -> `--attention-backend` (Megatron core transformer/enums.py, AttnBackend): `flash` is the flash-attn
that is installed, 2 where nobody installs another."""

WORDS = {
    **{word: ours for table in (TRANSFORMERS, MEGATRON) for ours, word in table.items()},
    **dict.fromkeys((
        "flash_attn", "flash_attention", "flash_attn_2", "fa2", "flash_2", "flash2", "kernels_community/flash_attn",
        "kernels_community/flash_attn2",
    ), "fa2"),
    **dict.fromkeys((
        "flash_attn_3", "fa3", "flash_3", "flash3", "kernels_community/flash_attn3",
        "kernels_community/vllm_flash_attn3",
    ), "fa3"),
    **dict.fromkeys(("flash_attn_4", "fa4", "flash_4"), "fa4"),
    **dict.fromkeys(("sdp", "flash_attention_torch"), "sdpa"),
    **dict.fromkeys(("torch", "disabled", "local", "dot_product"), "eager"), "flex": "flex",
    **dict.fromkeys(("cudnn", "cudnn_flash_te", "cudnn_flash_jax"), "cudnn"),
}  # fmt: skip
"""What kernels are called, in lower case with underscores -> `attention`."""

SWITCHES = {
    **dict.fromkeys((
        "use_flash_attention_2", "use_flash_attention", "flash_attention", "use_flash_attn", "flash_attn",
        "flash_attn_2",
    ), "fa2"),
    "use_flash_attention_3": "fa3", "sdp_attention": "sdpa", "flex_attention": "flex", "eager_attention": "eager",
}  # fmt: skip
"""Switch -> `attention` where it is on."""

NAMES = (
    "attn_implementation",
    "attn_impl",
    "model.attn_implementation",
    "model.attn_impl",
    "flash_attn",
    "attention_type",
)


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
    for name in [one for one in known if reading.stated(one)] or known:
        found = reading.get(name)
        word = "" if found is None else str(found.value).strip().lower().replace("-", "_")
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
