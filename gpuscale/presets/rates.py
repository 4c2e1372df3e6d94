"""Rates: prices, power, PUE, carbon and the like, each with its source and its date.

`presets/rates/*.toml` hold tables of `value`, `source` and `date`, whose names end in their units; a file of the same
name in the user's folder replaces entries. `prices.toml` alone has two levels: a cluster or GPU, and the terms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscale.choices import TERMS
from gpuscale.errors import InputError, did_you_mean
from gpuscale.presets.files import Document, files_in, preset_folders, read_unchanged
from gpuscale.version import RELEASED

USUAL_TERM = "reserved"
"""Of weeks on many GPUs."""

OWN = ("gpu_w", "host_w", "network_w", "effective_ratio")
"""Rates that no file holds: the power of one GPU, of its share of the host and of its share of the network [W]; and the
share of the time that trains."""

OLD = "over a year old at the release of this version"

PRICES = "prices"
MOST_RATE = 1e15
LIMITS = {"effective_ratio": (0.01, 1.0), "pue": (1.0, 10.0), "gpu_low_load": (0.0, 1.0)}
"""Of rates that are not just 0 to `MOST_RATE`."""

RATE_KEYS = ("value", "source", "date")
_DATE = re.compile(r"20[0-9]{2}(-(0[1-9]|1[0-2]))?", re.ASCII)


@dataclass(frozen=True)
class Rate:
    """One number that an answer takes from elsewhere."""

    value: float  #: in the unit that ends its name.
    source: str  #: document, page, or `guesstimate: why`; `given` where the user says it.
    date: str  #: year, or year and month, of the source; empty of what is given.

    @property
    def old(self) -> bool:
        """Whether it was more than a year old when this version was released."""
        return bool(self.date) and months(RELEASED) - months(self.date) > 12

    @property
    def dated(self) -> str:
        """Its date, and whether it is old; nothing of what is given."""
        return f"{self.date}{', over a year old' * self.old}"


def months(date: str) -> int:
    """Return a date as a number of months; a year alone is its end."""
    year, _, month = date.partition("-")
    return 12 * int(year) + int(month or 12)


def given(value: float) -> Rate:
    """Return a rate that the user states."""
    return Rate(value, "given", "")


def _documents() -> tuple[Document, ...]:
    """Return the files of rates, the user's after those that they replace."""
    folders: list[Path] = list(reversed(preset_folders("rates")))
    return tuple(read_unchanged(path) for folder in folders for path in files_in(folder).values())


def load_rates(values: Mapping[str, float] | None = None) -> dict[str, Rate]:
    """Return every rate but prices by name, with those that are given in their place."""
    found = {name: rate for document in _documents() if document.path.stem != PRICES for name, rate in _read(document)}
    for name, value in (values or {}).items():
        if name not in (*found, *OWN):
            hint = did_you_mean(name, (*found, *OWN), "rates are")
            raise InputError(f"unknown rate {name[:60]!r}", field="rate", hint=hint)
        low, high = LIMITS.get(name, (0.0, MOST_RATE))
        if not low <= value <= high:
            raise InputError(f"{name}={value:g} is out of range", field="rate", hint=f"give {low:g} to {high:g}")
        found[name] = given(value)
    return found


def prices_of(*names: str) -> dict[str, Rate]:
    """Return the prices of a GPU-hour [USD] by term, of the first of these clusters or GPUs that has any."""
    known: dict[str, dict[str, Rate]] = {}
    for document in _documents():
        if document.path.stem == PRICES:
            for name in document.data:
                terms = dict(_read(document, name))
                known[name] = known.get(name, {}) | terms
    return next((known[name] for name in names if name in known), {})


def one_term(published: Mapping[str, Collection[str]], given: Collection[str], asked: str | None) -> str | None:
    """Return the one term of the published prices of all that is compared; None where there is none of all of them.

    Args:
        published: what has no price given -> the terms of which one is published.
        given: what has one given.
        asked: the term that is asked for, as its option takes it.

    Raises:
        InputError: given prices beside published ones of a term that nobody stated, or something has none of the term.
    """
    known = {name: terms for name, terms in published.items() if terms}
    common = [term for term in (USUAL_TERM, *TERMS) if all(term in terms for terms in known.values())]
    if known and given and asked is None:
        message = f"one is given of {', '.join(given)}, and of {', '.join(known)} one is published, of whatever term"
        way = f", or `price_term={common[0].replace('_', '-')}` for those published" if common else ""
        raise InputError(message, field="gpu_hour_price", hint=f"give one of each{way}")
    if asked is None:
        return common[0] if common else None
    lacks = [name for name, terms in known.items() if asked.replace("-", "_") not in terms]
    if lacks and len(known) + len(given) > 1:
        way = f"all have {common[0].replace('_', '-')}; or " if common else ""
        hint = f"{way}give `gpu_hour_price={lacks[0]}=USD`"
        raise InputError(f"{', '.join(lacks)} has no {asked} price here", field="price_term", hint=hint)
    return asked.replace("-", "_")


def price_text(cluster: str, gpu: str, term: str) -> str:
    """Say a published price with its source and date."""
    rate = prices_of(cluster, gpu)[term.replace("-", "_")]
    return f"{rate.value:g} USD per GPU-hour, {term}: {rate.source}, {rate.dated}"


def _read(document: Document, *place: str) -> Iterator[tuple[str, Rate]]:
    tables: Any = document.data
    for part in place:
        tables = tables[part]
    if not isinstance(tables, dict):
        raise document.error(place, f"{place[-1][:60]!r} is not a table", "write [NAME] above value, source and date")
    for name, table in tables.items():
        where = (*place, name)
        if place and name not in TERMS:
            raise document.error(where, f"unknown term {name[:60]!r}", f"terms are {', '.join(TERMS)}")
        if not isinstance(table, dict) or set(table) != {*RATE_KEYS}:
            raise document.error(where, f"{'.'.join(where)[:80]!r} needs value, source and date, and nothing else")
        value, source, date = (table[key] for key in RATE_KEYS)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= MOST_RATE:
            raise document.error((*where, "value"), f"value is not a number from 0 to {MOST_RATE:g}")
        if not isinstance(source, str) or not 5 <= len(source) <= 1000:
            raise document.error((*where, "source"), "source is not a text of 5 to 1,000 characters")
        if not isinstance(date, str) or not _DATE.fullmatch(date):
            raise document.error((*where, "date"), "date is not a text such as 2025-06")
        yield name, Rate(float(value), source, date)
