"""The form of a framework's table: how it is told each option of a job and of a layout, or what it does without a word.

Both ways go by it: a plan into a framework's files, and back (`gpuscale.launch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Option(NamedTuple):
    """A row of the table."""

    ours: str  #: option of a job or layout; after `model.` a key of a model file; empty: what a writer works out.
    name: str = ""  #: the setting as the framework spells it; empty where it has none.
    #: our values -> its own; None: the same whole number. Without a setting, the values that it runs anyway.
    words: Mapping[Any, Any] | None = None
    #: our value where its files say nothing; None: nothing is known then.
    usual: Any = None
    assumed: str = ""  #: what is said where that is taken.
    beside: str = ""  #: the degree that must be above 1 for it to say anything.
    missing: str = ""  #: hint where its files must say it and do not; empty where they need not.
    why: str = ""  #: why no other value than those of `words` can be told.


def same(*values: Any) -> dict[Any, Any]:
    """Return `words` of values that are called the same."""
    return {value: value for value in values}
