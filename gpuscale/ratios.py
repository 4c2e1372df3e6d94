"""Two quantities beside each other, in words: the one home of "faster", "longer", "more expensive" and "3.97x".

A ratio is this quantity over the other: 1.5 of a rate is "50.0% faster", of a time "50.0% longer" (in tables and beside
a change "+50.0%"), of an amount "50.0% more"; 0.667 "33.3% slower", "33.3% less time", "33.3% less". Half or less and
twice or more are "0.250x as fast", "3.97x as fast"; what rounds to 0.0% is "as fast". Who knows times and speaks of
speed gives the inverse.
"""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """What is said of a ratio above 1, below 1, and of equals and of multiples: `as fast`, `3.97x as fast`."""

    more: str
    less: str
    same: str

    def of(self, what: str) -> Words:
        """The same words with what they are about: `faster per token`."""
        return Words(*(f"{word}{what}" for word in self))


SPEED = Words("faster", "slower", "as fast")
TIME = Words("longer", "less time", "as long")
PRICE = Words("more expensive", "cheaper", "as expensive")
AMOUNT = Words("more", "less", "as much")
NUMBER = Words("more", "fewer", "as many")


def in_words(ratio: float, words: Words, other: str = "") -> str:
    """Say how a quantity compares with another one, which may be named: `50.0% faster than #2`, `3.97x as fast as #2`,
    `as fast as #2`. The `ratio` is this quantity over the other, above 0."""
    percent, times = f"{abs(ratio - 1):.1%}", f"{ratio:,.0f}x " if ratio >= 99.95 else f"{ratio:#.3g}x "
    if 0.5 < ratio < 2 and percent != "0.0%":
        return f"{percent} {words.more if ratio > 1 else words.less}{f' than {other}' if other else ''}"
    return f"{'' if percent == '0.0%' else times}{words.same}{f' as {other}' if other else ''}"


def signed(change: float, digits: int = 1, same: str = "same") -> str:
    """Write a ratio less 1 with its sign: `+50.0%`, `-33.3%`; what rounds to nothing is the `same`."""
    text = f"{change:+,.{digits}%}"
    return text if text.strip("+-0.%") else same


def share_text(part: float) -> str:
    """Write a part of a whole: `12.3%`; what is too small to round to 0.1% is `<0.1%`."""
    return "<0.1%" if 0 < part < 0.0005 else f"{part:.1%}"
