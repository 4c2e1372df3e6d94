"""Types that fields of several specs share.

A field that a preset file may state is declared as `Annotated[type, Field(...)]`: its limits in SI units, and as alias
the file's key where that is not the field's name (`hop_latency_us` for `hop_latency_s`).
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, StringConstraints


def among(*words: str | None) -> AfterValidator:
    """Return the check that a string is one of `words`."""

    def check(word: str | None) -> str | None:
        if word not in words:
            raise ValueError(f"should be one of {', '.join(filter(None, words))}")
        return word

    return AfterValidator(check)


def nothing_or(least: float) -> AfterValidator:
    """Return the check that a number, in the unit of its file, is 0 or at least `least`."""

    def check(value: float) -> float:
        if 0 < value < least:
            raise ValueError(f"should be 0, or {least:g} at least")
        return value

    return AfterValidator(check)


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=600)]
Sources = Mapping[str, Source]
"""Key of a number in its file -> document, page and year, or `guesstimate: why`."""
