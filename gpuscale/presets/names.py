"""Names of presets as people write them: spelled in other ways, or shorter than they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

_IDLE = ("base", "chat", "hf", "instruct", "it", "meta", "nvidia", "pt")
"""Parts of names that tell checkpoints of one shape apart, or say who made it."""

_WORD = r"[a-z]{3,}|[a-z]{0,2}[0-9][0-9.]*(?:x[0-9.]+)?[a-z]*|[a-z]+"
_SIZE = r"[0-9][0-9.]*(?:x[0-9.]+)?[mbt]"
_GENERATION = r"v?([0-9]{1,2})(?:\.([0-9]{1,2}))?"


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[-_ ]+", name.lower()) if part not in _IDLE]


def words(name: str) -> list[str]:
    """Return what may be left out of a name: of `Llama-3.1-70B-Instruct` llama, 3.1 and 70b."""
    return [word for part in _parts(name) for word in re.findall(_WORD, part)]


def spelled(name: str) -> str:
    """Spell a name without what people write in different ways; what parts two numbers stays: `gpt3-13b`."""
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", "-".join(_parts(name)))


def has_size(name: str) -> bool:
    """Whether a name says how large the model is: `70b`, `8x7b`."""
    return any(re.fullmatch(_SIZE, word) for word in words(name))


def is_short_for(name: str, known: str) -> bool:
    """Whether a name, as `spelled` has it, is the first word of another and some of those after it, in their order."""
    first, *rest = words(known) or ["-"]
    more = (f"(?:{'(?:-|(?<![0-9.]))' * word[0].isdigit()}{re.escape(word)})?" for word in rest)
    return name.startswith(first) and re.fullmatch(first + "".join(more), name) is not None


def newest_first(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return presets that are generations of one name, newest first; none where they differ in more than that.

    Args:
        names: what the presets are called, and which preset that is; one may have several names.
    """
    generations: dict[str, tuple[int, int]] = {}
    others: dict[str, set[str]] = {}
    for known, preset in names:
        first, *rest = words(known)
        found = re.fullmatch(_GENERATION, rest[0]) if rest else None
        number = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        generations[preset] = max(generations.get(preset, number), number)
        others.setdefault(preset, set()).add(" ".join([first, *rest[bool(found) :]]))
    if not set.intersection(*others.values()):
        return []
    return sorted(generations, key=lambda preset: generations[preset], reverse=True)
