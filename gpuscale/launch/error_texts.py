"""Errors that frameworks stop with, as people paste them: how a text is known, and the rule of gpuscale that it breaks.

They are the tables of `presets/known/errors.toml`. Of each message as few words are kept as tell it from the others;
its numbers are read by the name of the option that they are. What a message means stands with the rule that it
corresponds to, where there is one. Messages were read in the frameworks' sources as they stood in August to November
2026 (Megatron-LM core 0.16 and 0.17, DeepSpeed 0.18, PyTorch 2.9, NCCL 2.28, Transformer Engine 2.9, transformers 5),
older wordings in their earlier releases.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpuscale.presets.files import known_table

KINDS = ("job", "memory", "software", "machine", "network", "consequence")
"""What an error is a matter of, that which is likelier the cause of the others first."""


class Divides(NamedTuple):
    """A product of numbers that must divide another one."""

    whole: str  #: the number that is divided.
    parts: tuple[str, ...]  #: factors of its divisor.
    change: str  #: which of them is changed: `whole`, or the first of the parts.
    factor: int = 1  #: of the divisor beside these.
    either: bool = False  #: whether the whole may divide the part instead.
    equal: bool = False  #: whether the product must be the whole, not only divide it.


class KnownError(NamedTuple):
    """One error of a framework."""

    code: str  #: its name, which stays the same.
    framework: str  #: who prints it.
    where: str  #: file that prints it.
    keys: tuple[str, ...]  #: words of the message, of which one is there, in lower case.
    #: codes of `gpuscale.rules`, of rules of settings or of `check` that it corresponds to; empty where it is no matter
    #: of the job's options.
    rules: tuple[str, ...] = ()
    says: str = ""  #: what is wrong; the text of the first rule where empty.
    numbers: str = ""  #: pattern of the message with its numbers.
    needed: bool = True  #: whether it is not this message where that pattern does not match.
    divides: Divides | None = None
    advice: tuple[str, ...] = ()  #: what to do; options in backticks.
    kind: str = "job"  #: one of `KINDS`.
    general: bool = False  #: whether it counts only where no other error says what the cause is, the first of these.

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """What the message with its numbers looks like."""
        return re.compile(self.numbers, re.IGNORECASE) if self.numbers else None


_WITHIN = r"(?:[^.;]|\.(?=\w)){0,80}"
_DIVIDES = rf"{_WITHIN}(?:divisible by|multiple of|evenly divided by){_WITHIN}?"
_NUMBERED = r"(?:[^.;()\\d]{0,40}[ (=:]{1,2}(?P<\1>\\d{1,9}))?"
"""Patterns within one sentence: what DIVIDES stands for in the table, and {{tp}}: words and the number `tp`, if any."""


def _known(code: str, row: dict[str, Any]) -> KnownError:
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    divides = row.get("divides", {})
    found["divides"] = Divides(**{**divides, "parts": tuple(divides["parts"])}) if divides else None
    numbers = "".join(row.get("numbers", "")).replace(" DIVIDES ", _DIVIDES)
    return KnownError(code, **{**found, "numbers": re.sub(r"\{\{(\w+)\}\}", _NUMBERED, numbers)})


ERRORS = tuple(_known(code, row) for code, row in known_table("errors").items())
"""In the order in which answers name them."""

_SIZE = r"[0-9]{1,15}(?:\.[0-9]{1,6})? ?(?:[KMGT]iB|bytes?)"
AMOUNTS = {
    name: re.compile(pattern.replace("SIZE", f"({_SIZE})"), re.IGNORECASE)
    for name, pattern in {
        "asked_gib": "(?:tried to allocate|trying to allocate|out of memory allocating) SIZE",
        "free_gib": "of which SIZE is free|; SIZE free",
        "total_gib": "total capacity of SIZE|SIZE total capacity",
        "in_use_gib": "this process has SIZE memory in use|SIZE reserved in total by PyTorch",
        "allocated_gib": "SIZE is allocated by PyTorch|SIZE already allocated",
        "idle_gib": "SIZE is reserved by PyTorch but unallocated|SIZE cached",
    }.items()
}
"""What a message about memory says, now and until PyTorch 2.0 and 1.3: field of `MemoryOfError` -> its size."""
