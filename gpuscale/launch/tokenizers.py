"""The vocabulary that the name of a tokenizer means: that of a model of this name, else by `presets/known`."""

from __future__ import annotations

import re
from contextlib import suppress

from gpuscale.errors import InputError
from gpuscale.presets.files import known_table, named_preset
from gpuscale.presets.models import load_model


def vocabulary_of(name: str) -> int | None:
    """Return the vocabulary that the name or path of a tokenizer means; None where it means none that is known."""
    text = name.strip().rstrip("/")[:300]
    for own in (text, text.rpartition("/")[2]):
        with suppress(InputError):
            return load_model(named_preset("models", own).stem).vocab
    lowered = re.sub(r"[_ ]", "-", text.lower())
    known = known_table("tokenizers").items()
    return next((size for pattern, size in known if re.search(rf"(?<![a-z0-9])(?:{pattern})", lowered)), None)
