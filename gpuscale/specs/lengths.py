"""How long samples are, of which sequences of fine-tuning are made: packed one behind the other, or padded."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from gpuscale.choices import MAX_SEQUENCE
from gpuscale.errors import InputError
from gpuscale.files import read_text

QUANTILES = 33
"""Lengths that stand for a distribution: those at the middles of as many equal shares of it."""

MAX_FILE_BYTES = 64 * 2**20
FIELD = "lengths"


class LengthsSpec(NamedTuple):
    """Lengths of samples, of equal shares of the data."""

    tokens: tuple[int, ...]  #: ascending, none longer than the sequence of the job.
    packed: bool  #: samples fill sequences, and attend to themselves alone; else they are padded.

    @property
    def mean(self) -> float:
        """Tokens of a sample on average."""
        return sum(self.tokens) / len(self.tokens)

    @property
    def attended(self) -> float:
        """Length of a sequence whose tokens attend to as many keys on average as those of packed samples: a token in a
        sample of L tokens meets L / 2, and long samples have more of the tokens."""
        return sum(one * one for one in self.tokens) / sum(self.tokens)

    def longest_of(self, samples: int) -> float:
        """Expected length of the longest of some samples, to which they are padded together."""
        shares = [((at + 1) / len(self.tokens)) ** samples for at in range(len(self.tokens))]
        before = [0.0, *shares[:-1]]
        return sum(one * (upto - below) for one, upto, below in zip(self.tokens, shares, before, strict=True))

    def taken(self, samples: int) -> float:
        """Tokens of a sequence that a sample takes, of which so many are in a microbatch."""
        return self.mean if self.packed else self.longest_of(samples)


def lengths_of(text: str, sequence: int, *, packed: bool) -> LengthsSpec:
    """Return the lengths that `read_lengths` made a text of, cut at a sequence [tokens]."""
    return LengthsSpec(tuple(min(int(one), sequence) for one in text.split(",")), packed)


def read_lengths(text: str) -> str:
    """Return the quantiles of a distribution of lengths, joined by commas; it is `lognormal:MEDIAN:SIGMA`, numbers
    joined by commas, or a file of numbers, one per sample."""
    text = text.strip()
    found = _lognormal(text) if text.startswith("lognormal:") else _numbers(text)
    ordered = sorted(found)
    at = ((2 * share + 1) / (2 * QUANTILES) for share in range(QUANTILES))
    return ",".join(str(ordered[min(int(one * len(ordered)), len(ordered) - 1)]) for one in at)


def _lognormal(text: str) -> list[int]:
    """Quantiles of a logarithm that is normal: MEDIAN in tokens, SIGMA of the natural logarithm."""
    match = re.fullmatch(r"lognormal:(\d{1,9}):(\d{1,2}(?:\.\d{1,6})?)", text)
    if match is None or int(match[1]) < 1:
        hint = "write lognormal:MEDIAN:SIGMA, as lognormal:300:0.8"
        raise InputError(f"{text[:40]!r} is no distribution", field=FIELD, hint=hint)
    middle, spread = math.log(int(match[1])), float(match[2])
    normal = NormalDist()
    shares = ((2 * share + 1) / (2 * QUANTILES) for share in range(QUANTILES))
    sizes = (math.exp(min(middle + spread * normal.inv_cdf(one), math.log(MAX_SEQUENCE))) for one in shares)
    return [max(1, round(one)) for one in sizes]


def _numbers(text: str) -> list[int]:
    listed = bool(re.fullmatch(r"[\d,\s]+", text))
    words = (text if listed else read_text(Path(text), MAX_FILE_BYTES, "list of lengths")).replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdecimal() and 1 <= len(word) <= 9)), None)
    if wrong is not None or not words:
        what = f"{wrong[:40]!r} is not a number of tokens" if wrong is not None else "holds no length"
        place = None if listed else text[:80]
        raise InputError(what, field=FIELD, place=place, hint="give one whole number per sample")
    found = [int(word) for word in words]
    if min(found) < 1 or max(found) > MAX_SEQUENCE:
        message = f"a sample of {min(found) or max(found):,} tokens is out of range"
        raise InputError(message, field=FIELD, hint=f"give 1 to {MAX_SEQUENCE:,}")
    return found
