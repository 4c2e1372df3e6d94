"""The two ways a command can end without a result, each with its exit code.

An `InputError` means the input is unusable (exit code 2): an unknown name, a bad number, a broken file.
A `NoAnswerError` means the question is well formed and has no answer (exit code 1): no layout fits, for example.
Any other exception is a defect of gpuscale itself (exit code 3).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any


class GpuscaleError(Exception):
    """A message for the user: what is wrong, where, and a hint what to do about it.

    Attributes:
        message: what is wrong; options are written by name in backticks, with a value where one is meant: `seq`,
            `grad_dtype=bf16`. The command line shows those as the flags that they are there.
        field: the option whose value is wrong.
        place: the file, line or table where it stands, if it is not an option.
        hint: what to do about it, written like `message`; found when it is first read, where that takes searches.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        place: str | None = None,
        hint: str | Callable[[], str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.place = place
        self._hint = hint

    @cached_property
    def hint(self) -> str | None:  # noqa: D102 - among the attributes
        return self._hint() if callable(self._hint) else self._hint

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.place, self.field) if part)
        head = f"{where}: {self.message}" if where else self.message
        return f"{head}\nhint: {self.hint}" if self.hint else head


class InputError(GpuscaleError):
    """The input cannot be used."""

    exit_code = 2


class NoAnswerError(GpuscaleError):
    """The question is well formed and has no answer; the hint says what came closest.

    Attributes:
        nearest_miss: the layout that came closest, by the keys of a plan in JSON.
    """

    exit_code = 1

    def __init__(self, message: str, *, nearest_miss: Mapping[str, Any] | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.nearest_miss = nearest_miss


def shown(value: Any) -> str:
    """Return a value as messages show it: at most 40 characters of it, texts in quotes."""
    try:
        return repr(value[:40]) if isinstance(value, str) else str(value)[:40]
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        return "a number of thousands of digits"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that look most like `name`, nearest first (ties: alphabetical)."""
    lowered = {candidate.lower(): candidate for candidate in sorted(known, reverse=True)}
    return [lowered[match] for match in difflib.get_close_matches(name.lower(), sorted(lowered), n=count, cutoff=0.4)]


def did_you_mean(name: str, known: Iterable[str], listing: str = "", count: int = 1) -> str:
    """Write a hint for a name that is not known: the nearest that are, if any is near, and after `listing` all."""
    close = nearest(name[:100], known, count)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    return f"{hint}{listing} {', '.join(known)}" if listing else hint


def unknown_name(kind: str, name: str, known: Iterable[str], listing: str) -> InputError:
    """Build the error for an unknown preset name: nearest names, and the command that lists all."""
    shown = name if len(name) <= 60 else name[:57] + "..."
    return InputError(f"unknown {kind} {shown!r}", hint=f"{did_you_mean(name, known, count=3)}`{listing}` lists all")
