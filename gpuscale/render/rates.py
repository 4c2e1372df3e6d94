"""Drawing of what an answer takes from elsewhere: each rate with its source and date."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuscale.presets.rates import OLD, Rate
from gpuscale.render.document import Facts, Part, Table, page, table, terminal
from gpuscale.version import RELEASED

OLD_MARK = "*"
"""After the date of what is over a year old."""

SHORT = 52
"""Most characters of a source in the table."""


def rate_parts(rates: Mapping[str, Rate], *, verbose: bool = False) -> tuple[Part, ...]:
    """The rates with their sources; in a terminal with the head of each, unless all of it is asked for."""
    if verbose:
        return (_in_full(rates),)
    old = f"{OLD_MARK} {OLD} ({RELEASED}); " if any(rate.old for rate in rates.values()) else ""
    return terminal(_table(rates), f"{old}sources in full: verbose, or JSON"), page(_in_full(rates))


def _in_full(rates: Mapping[str, Rate]) -> Facts:
    """Say each rate with its source and date."""
    return [
        (name, f"{rate.value:.4g}: {', '.join(filter(None, (rate.source, rate.dated)))}")
        for name, rate in rates.items()
    ]


def short_source(source: str) -> str:
    """The beginning of a source, without what it says in detail."""
    text = re.split(r"[:;(]", source)[0].strip()
    return text if len(text) <= SHORT else text[: SHORT - 3].rstrip() + "..."


def _table(rates: Mapping[str, Rate]) -> Table:
    rows = [
        {
            "based on": name,
            "value": f"{rate.value:.4g}",
            "as of": f"{rate.date}{OLD_MARK if rate.old else ''}",
            "source": short_source(rate.source),
        }
        for name, rate in rates.items()
    ]
    return table(rows, left=4)
