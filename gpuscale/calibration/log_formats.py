"""How each framework prints an iteration, of `presets/known/logs.toml`: what a line looks like, in which units."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpuscale.presets.files import known_table
from gpuscale.units import GIB, MIB

_NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_SUFFIXED = _NUMBER + r"([KMBGTP]?)"
"""A number as nanotron (logging `human_format`) and picotron print it: 4.71K, with powers of 1,000."""

_DIGITS = r"([1-9][0-9,]*\.[0-9]{2,20}|[1-9][0-9,]{2,20}|0\.0{0,9}[1-9][0-9]{2,20})"
"""A number that keeps three digits after rounding: OLMo-core's `format_float` prints four decimals."""

_CLOCK = r"(?:(?P<d>\d{1,4}) ?(?:days?,|d) ?)?(?:(?P<h>\d{1,4})(?:h ?|:))?(?:(?P<m>\d{1,2})(?:m ?|:))?(?P<s>\d{1,2})s?"
"""Time as `str(timedelta)` (`1 day, 2:03:04`) and ms-swift's `format_time` (`1d 2h 3m 4s`) print it."""

SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
MS = 1e-3

SAME_LINE = frozenset({"step", "batch", "step_s", "mean_s", "elapsed_s"})
"""Quantities that count in the line that opens an iteration alone, but for formats of several lines: below it the same
words may speak of an evaluation."""


class Quantity(NamedTuple):
    """How a format prints one quantity."""

    #: field of `Iteration`, or one of those that are turned into them: `batches_per_s`, `samples_per_s`,
    #: `batches_per_s_since_start`, `microbatch_s` (of the gradient accumulation), `microbatches` (number of this one).
    name: str
    #: with the number in its first group, and a suffix such as K in its second, if there is one; or a clock.
    pattern: re.Pattern[str]
    unit: float = 1.0  #: what the number is multiplied by.


class Format(NamedTuple):
    """How a framework prints an iteration."""

    framework: str  #: its name in messages.
    words: tuple[str, ...]  #: of which one is in every line that says something, in lower case.
    opening: re.Pattern[str]  #: a line that opens an iteration; group `step` has its number, if it is there.
    quantities: tuple[Quantity, ...]  #: in that line, or in one that follows before the next iteration.
    hint: str  #: how to have the log say what it lacks.
    means: bool = False  #: whether a line is the mean over the iterations since the last line.
    below: bool = False  #: whether the lines below the opening say all of it.
    note: str = ""  #: what a reader must know of its numbers.
    untrained: str = ""  #: what a reader must know of a run without losses.
    beside: str = ""  #: what else than training a step holds, which no prediction has.
    beside_words: tuple[str, ...] = ()  #: of which one is in a log whose steps hold it, in lower case; of all if empty.
    other: re.Pattern[str] | None = None  #: lines that look alike and are of evaluations or loading.


_WORDS = {
    "BAR": r"\| *STEP/(?P<total>\d{1,12}) \[[0-9:]{1,20}<[^,\]]{1,20}, *[0-9.]{1,12}(?:s/UNIT|UNIT/s)\b",
    "ASIDE": r"(?i:\b(?:eval|valid|sanity|testing|predict|load|map\b|filter|token|download|generat|sav|convert|pack|"
             r"process|fetch|experience|rollout|sampl))[^|%]{0,80}%?\|[^|]{0,300}\| *\d",
    "UNIT": r"(?:it|ba|batch|step|iter)(?:e?s)?",
    "MINUTES": r"(?:(?P<d>\d{1,3}) days?, )?(?:(?P<h>\d{1,4}):)?(?P<m>\d{1,2}):(?P<s>\d\d)",
    "STEP": r"(?P<step>\d{1,12})", "SUFFIXED": _SUFFIXED, "NUM": _NUMBER, "DIGITS": _DIGITS, "CLOCK": _CLOCK,
}  # fmt: skip
"""Words in the table -> patterns that they stand for, those that hold others first; BAR is a progress bar of tqdm,
whose rate is a moving mean, ASIDE one that is named for something else than training."""

_UNITS = {"ms": MS, "MB": 1e6, "MiB": MIB, "GB": 1e9, "GiB": GIB}


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of the table; {{key}} is that of an item as Python or JSON prints it, its value a number or, in
    transformers 5, a text."""
    text = re.sub(r"\{\{(.*?)\}\}", lambda key: rf"['\"]{key[1]}['\"]: ?['\"]?(?:np\.float64\()?", text)
    for word, meant in _WORDS.items():
        text = text.replace(word, meant)
    return re.compile(text)


def _format(row: dict[str, Any]) -> Format:
    quantities = tuple(
        Quantity(name, _pattern(text), *(_UNITS[unit] for unit in units))
        for name, text, *units in row.get("quantities", ())
    )
    read = {"words": tuple(row["words"]), "opening": _pattern(row["opening"]), "quantities": quantities,
            "beside_words": tuple(row.get("beside_words", ()))}  # fmt: skip
    if "other" in row:
        read["other"] = _pattern(row["other"])
    return Format(**{**row, **read})


FORMATS = tuple(map(_format, known_table("logs")["formats"]))
"""In the order in which one is preferred where a log has as many iterations of several."""

KNOWN = ", ".join(dict.fromkeys(one.framework for one in FORMATS))
