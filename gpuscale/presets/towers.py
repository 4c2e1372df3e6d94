"""What a multimodal config.json has beside its language model: towers for images and sounds, with their parameters and
those of what joins them to it. `presets/families/towers.toml` has the sums for each type of tower and model; a type
that it does not have, or a config that states too little, is not counted."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from gpuscale.presets.files import family_table
from gpuscale.presets.huggingface_config import SIZE, class_defaults
from gpuscale.specs.model import MAX_FFN, MAX_PARAMS, TowerSpec

KINDS = {"vision": r"vis(ion|ual)|image|img", "audio": r"audio|speech|sound", "speech": r"talker|wav|vocoder"}
"""Kind of tower -> what the key of its config contains."""

LANGUAGE = ("freeze_llm", "freeze_lm", "freeze_language_model", "freeze_language", "freeze_text_model")
"""Switches that freeze the language model, by the last part of their names."""

BACKBONE = "freeze_backbone"
"""Freezes the language model in LLaVA; in InternVL, which has `freeze_llm` beside it, the tower for images."""

FROZEN = {
    **dict.fromkeys((*LANGUAGE, BACKBONE, "llm.freeze", "language_model.freeze"), True),
    **dict.fromkeys(("train_mm_proj_only", "train_mm_projector_only", "train_projector_only"), True),
    **dict.fromkeys(("tune_mm_mlp_adapter", "only_tune_projector"), True),
    **dict.fromkeys(("tune_mm_llm", "tune_llm", "tune_language_model", "train_llm"), False),
}
"""Switch, by the last part of its name or the last two, in lower case -> the value with which the language model is not
trained, but a tower or its projector (ms-swift, Megatron-LM, LLaMA-Factory, NeMo; LLaVA; Qwen2.5-VL)."""

FROZEN_TOWERS = (
    "freeze_vision_tower", "freeze_vit", "freeze_vision_model", "freeze_vision_encoder", "freeze_visual_encoder",
    "freeze_vision", "freeze_audio_tower", "freeze_mm_modules",
)  # fmt: skip
"""Switches that hold the weights of towers as they are (LLaMA-Factory; ms-swift and Megatron-LM; Megatron-Bridge; NeMo;
XTuner; axolotl)."""

NOT_TRAINED = "the language model is not trained, but towers beside it, which are not modelled"
TRAINED = "gpuscale predicts training of the language model"


def towers_of(data: Mapping[str, Any], model_type: str, text: int) -> tuple[TowerSpec, ...]:
    """Return the towers that a config has beside its language model of width `text`, one of each kind; `model_type` is
    that of the whole."""
    found: dict[str, TowerSpec] = {}
    for key, value in data.items():
        kind = next((kind for kind, words in KINDS.items() if re.search(words, key.lower())), None)
        named = isinstance(value, str) and "tower" in key.lower()
        if kind and value and kind not in found and (named or isinstance(value, dict)):
            own = value if isinstance(value, dict) else {}
            found[kind] = TowerSpec(kind, _count(model_type, kind, own, data, text), model_type)
    return tuple(found.values())


@cache
def sums() -> Mapping[str, Mapping[str, Any]]:
    """Return `presets/families/towers.toml`: parts, types of towers, and model types."""
    return family_table("towers.toml")


def _count(model_type: str, kind: str, own: Mapping[str, Any], whole: Mapping[str, Any], text: int) -> int | None:
    known = sums()
    defaults = {**class_defaults(), **known["defaults"]}
    model_type = model_type.removesuffix("_thinker")
    usual, total, *only = known["models"].get(model_type, {}).get(kind, ("", ""))
    stated = str(own.get("model_type") or "")
    tower = usual if only or usual.startswith(stated) else stated
    if not total or tower not in known["towers"]:
        return None
    parts = known["towers"][tower]
    parts = known["towers"][parts] if isinstance(parts, str) else parts
    keys = {**defaults.get(model_type, {}), **whole, **defaults.get(tower, {}), **own}
    sizes = Sizes({**known["parts"], **parts, "tower": parts["count"]}, keys, text)
    with suppress(KeyError, TypeError, ArithmeticError):
        return min(sizes.total(total), MAX_PARAMS)
    return None


class Sizes:
    """What the sums of a tower are made of."""

    def __init__(self, parts: Mapping[str, str | list[str]], keys: Mapping[str, Any], text: int) -> None:
        self.parts, self.keys = parts, keys
        self.made: dict[str, Callable[[], int]] = {
            "text": lambda: text,
            "area": lambda: math.prod(self._pair("patch_size")),
            "grid": lambda: math.prod(map(operator.floordiv, self._pair("image_size"), self._pair("patch_size"))),
            "shuffle": lambda: round(self.keys["downsample_ratio"] ** -2),
        }

    def total(self, text: str) -> int:
        """Return a sum of products of whole numbers; a KeyError where the config does not state one of them as a
        number."""
        found = 0
        for term in text.split("+"):
            number = 1
            for sign, factor in re.findall(r"([*/]?)\s*([^\s*/]+)", term):
                number = number // self._factor(factor) if sign == "/" else number * self._factor(factor)
            found += number
        return found

    def _factor(self, word: str) -> int:
        if word.isdecimal():
            return int(word)
        if word in self.made:
            return self.made[word]()
        if word in self.parts:
            part = self.parts[word]
            names = [part] if isinstance(part, str) else part
            return self.total(next((name for name in names if name.lstrip("#") in self.keys), names[-1]))
        key, _, wanted = word.removeprefix("#").partition(":")
        value = self.keys[key]
        if wanted:
            return int(value == wanted)
        if word.startswith("#"):
            return len(value) if isinstance(value, list) else 1
        flag = isinstance(value, bool) and not SIZE.search(key)
        return int(value) if flag else math.prod(self._pair(key, 1))

    def _pair(self, key: str, count: int = 2) -> list[int]:
        """Return the two numbers of a key, also where it states one for both."""
        value = self.keys.get(key)
        sides: list[Any] = value if isinstance(value, list) and len(value) == 2 else [value] * count
        if not all(isinstance(side, int) and not isinstance(side, bool) and 0 <= side <= MAX_FFN for side in sides):
            raise KeyError(key)
        return sides
