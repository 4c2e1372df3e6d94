"""Sizes and times between people and SI: parsing of what a user types, formatting of what a user reads.

Inside gpuscale every quantity is SI (bytes, seconds, bytes per second, FLOP/s). `MB` is 10^6 bytes, `MiB` 2^20.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscale.errors import InputError, shown

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MB, GB, TB = 1e6, 1e9, 1e12
MS, US, MHZ, GBIT, TFLOPS = 1e-3, 1e-6, 1e6, 1e9 / 8, 1e12

UNITS = {
    "ms": ("s", MS), "us": ("s", US), "mhz": ("hz", MHZ), "tflops": ("flops_per_s", TFLOPS),
    "kib": ("bytes", KIB), "mib": ("bytes", MIB), "gib": ("bytes", GIB), "gb": ("bytes", GB),
    "gb_per_s": ("bytes_per_s", GB), "tb_per_s": ("bytes_per_s", TB), "gbit_per_s": ("bytes_per_s", GBIT),
}  # fmt: skip
"""Unit at the end of a key of files and JSON -> that of the field in SI, and what the former is in the latter."""

_UNIT = re.compile(rf"_({'|'.join(UNITS)})(?:_per_(?:gpu|group|direction))*$")


def unit_of(key: str) -> tuple[str, float]:
    """Return the field that a key of files and JSON is about, and its unit in SI: `hop_us` is `hop_s`, in 1e-6. What
    follows a unit, such as `_per_direction`, is not part of the field's name."""
    found = _UNIT.search(key)
    if found is None:
        return key, 1
    si, factor = UNITS[found[1]]
    return f"{key[: found.start()]}_{si}", factor


HOUR_S, DAY_S = 3600.0, 86400.0

MAX_BYTES = 2**60

_SUFFIXES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": KIB, "kib": KIB, "mi": MIB, "mib": MIB, "gi": GIB, "gib": GIB, "ti": TIB, "tib": TIB,
}  # fmt: skip
_NUMBER = r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?)\s*"
_SIZE = rf"{_NUMBER}([A-Za-z]{{0,3}})\s*"  # compiled when a size is first read


def parse_bytes(text: str, field: str = "bytes") -> int:
    """Parse a size such as `8`, `32MB` (32e6 bytes), `32MiB` (2^25) or `1.5GiB` into bytes.

    Raises:
        InputError: not a size, not positive, not a whole number of bytes, or above `MAX_BYTES`.
    """
    match = re.fullmatch(_SIZE, text[:64], re.ASCII)
    if match is None or match[2].lower() not in _SUFFIXES:
        hint = "write a number and a unit, such as 4096, 32MB (32e6 bytes), 32MiB (2^25 bytes) or 1.5GiB"
        raise InputError(f"{text[:40]!r} is not a size", field=field, hint=hint)
    value = float(match[1]) * _SUFFIXES[match[2].lower()]
    if not 1 <= value <= MAX_BYTES:
        raise InputError(f"{text[:40]!r} is out of range", field=field, hint="sizes go from 1 byte to 2^60 bytes")
    if match[1].isdigit():
        return int(match[1]) * _SUFFIXES[match[2].lower()]
    return round(value)


MAX_COUNT = 1e18
"""Largest count accepted from a user: ten thousand times the tokens of the longest training run announced."""


@dataclass(frozen=True)
class Quantity:
    """A kind of number as people write it; flags, Python functions and files all read it here."""

    what: str  #: what it is, for messages: `a percentage`.
    example: str  #: ways to write it, for hints.
    #: how its units are written -> their size; those in lower case may be written in any.
    units: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    bare: str = ""  #: the unit of a number without one, in which all are returned.
    #: from and up to which a number without a unit is believed; what is beyond is asked back.
    sure: tuple[float, float] = (-math.inf, math.inf)
    other: Callable[[float], str] | None = None  #: from such a number to what may have been meant.
    explicit: str = ""  #: the unit that leaves no doubt, where that is not `bare`.

    def read(self, given: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a number, or what a text says, in the unit `bare`, between the limits `low` and `high`.

        Raises:
            InputError: no such quantity, out of range, or not to be believed without a unit; its field is `name`.
        """
        text = isinstance(given, str)
        match = re.fullmatch(_QUANTITY, given, re.ASCII) if text and len(given) <= 64 else None
        number, unit = (match[1], match[2]) if match else (None if text else given, "")
        size = self.units.get(unit or self.bare, self.units.get(unit.lower()))
        if size is None or isinstance(number, bool) or not isinstance(number, int | float | str):
            raise InputError(f"{shown(given)} is not {self.what}", field=name, hint=f"write {self.example}")
        value = as_float(number) * (size / self.units[self.bare])
        if not (math.isfinite(value) and low <= value <= high):
            said = given.strip() if text else shown(given)
            raise InputError(f"{said} is out of range", field=name, hint=self._within(low, high))
        if not unit and value and not self.sure[0] <= value <= self.sure[1]:
            said = self.written(value)
            hint = f"write {self.other(value)}, or {said} if that is meant" if self.other else f"write {said} if so"
            spaced = re.sub(r"(?<=[0-9])(?=[A-Za-z])", " ", said)
            raise InputError(f"{value:.12g} without a unit is {spaced}", field=name, hint=hint)
        return value

    def written(self, value: float) -> str:
        """Write a value with the unit that leaves no doubt, as `read` reads it."""
        unit = self.explicit or self.bare
        return f"{value * (self.units[self.bare] / self.units[unit]):.15g}{unit}"

    def _within(self, low: float, high: float) -> str:
        if math.isinf(high):
            return f"write {self.example}"
        said = f"give {low:g} to {high:g} {self.bare}".rstrip()
        return f"{said} ({self.written(low)} to {self.written(high)})" if self.explicit else said


def as_float(number: Any) -> float:
    """Return a number as a float, one of too many digits as infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


_QUANTITY = r"\s*([+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf)\s*([A-Za-z%/]*)\s*"
"""Digits, perhaps in groups as Python and TOML join them (`1_000`), and a unit; a comma would make a list."""
_TIMES = {"ms": MS, "s": 1.0, "min": 60.0, "h": HOUR_S, "d": DAY_S}
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_RATES = {"MB/s": MB, "GB/s": GB, "TB/s": TB, "Gbit/s": GBIT, "Tbit/s": 1000 * GBIT}

NUMBER = Quantity("a number", "2.5")
PERCENT = Quantity("a percentage", "38%", {"%": 1.0}, "%", (1.0, math.inf), lambda value: f"{100 * value:.12g}%")
"""A number below 1 may be meant as a share."""
SHARE = Quantity("a share", "0.9 or 90%", {"": 1.0, "%": 0.01}, "", (0.0, 1.0), lambda value: f"{value:.12g}%", "%")
"""A number above 1 may be meant as a percentage."""
TOKENS = Quantity(
    "a count of tokens", "300B, 15T or 1.5e12",
    {size + word: factor for size, factor in _THOUSANDS.items() for word in ("", "tok", "tokens")}, "tok",
    (1e6, math.inf), lambda value: f"{value:.12g}{'T' if value < 100 else 'B'}",
)  # fmt: skip
"""Of a training; fewer than a million do not make a step."""
BATCH_TOKENS = replace(
    TOKENS, example="512k or 4M", sure=(1e3, math.inf), other=lambda value: f"{value:.12g}{'M' if value < 100 else 'k'}"
)
USD = Quantity(
    "an amount of money", "2.5, 250k or 1.5M",
    {size + word: factor for size, factor in _THOUSANDS.items() for word in ("", "usd", "USD")}, "USD",
)  # fmt: skip
GIBIBYTES = Quantity("a size", "70GiB, 75GB or 70", _SUFFIXES | {"GiB": GIB}, "GiB")
SECONDS = Quantity("a time", "12s, 800ms or 12", _TIMES, "s", (0.0, 1e5), lambda value: f"{value:.12g}ms")
HOURS = Quantity("a time", "24h or 24", _TIMES, "h", (0.0, 1000.0), lambda value: f"{value:.12g}s")
DAYS = Quantity("a time", "30d or 30", _TIMES, "d", (0.0, 10_000.0), lambda value: f"{value:.12g}h")
RATE = Quantity("a bandwidth", "200GB/s, 1600Gbit/s or 200", _RATES, "GB/s")
GIGABITS = replace(RATE, example="400Gbit/s, 50GB/s or 400", bare="Gbit/s")
WATTS = Quantity("a power", "600W, 0.6kW or 600", {"W": 1.0, "w": 1.0, "kw": 1e3}, "W")

_WHOLE = r"(-?[0-9]{1,30}(?:_[0-9]{1,30})*(?:\.[0-9]{1,6})?(?:e\+?[0-9]{1,2})?)\s*(?:([km])i?)?"


def parse_whole(text: str, field: str) -> int:
    """Parse a whole number such as `8192`, `128k` or `1Mi`; k is 1,024 and M 2^20, as lengths of sequences are
    counted."""
    match = re.fullmatch(_WHOLE, text[:64].strip().lower(), re.ASCII)
    value = float(match[1]) * {"k": KIB, "m": MIB, None: 1}[match[2]] if match else 0.5
    if not value.is_integer():
        hint = "write 8192, 128k (131,072) or 1M (2^20)"
        raise InputError(f"{text[:40]!r} is not a whole number", field=field, hint=hint)
    return int(value)


def refuse_grouped(text: str, field: str) -> None:
    """Ask back what is written like a list and is most likely one number: `16,384`, `1,000`. Of lists that look like
    groups of thousands (`256,512` too) these have a group that begins with 0, or make a power of two, or three or five
    times one."""
    if re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3}){1,3}", text, re.ASCII):
        number = int(text.replace(",", ""))
        if ",0" in text or number // (number & -number) in {1, 3, 5}:
            hint = f"write {number} for one number, or {text.replace(',', ', ')!r} for {text.count(',') + 1}"
            raise InputError(f"{text!r} may be one number or a list", field=field, hint=hint)


def format_whole(number: int) -> str:
    """Format a number as `parse_whole` reads it, in the largest unit: `128k`, `1M`, `1000`."""
    unit, name = next(((unit, name) for unit, name in ((MIB, "M"), (KIB, "k")) if number % unit == 0), (1, ""))
    return f"{number // unit}{name}"


def format_bytes(size: float) -> str:
    """Format a size in the binary unit that suits it: `83.9 GiB`, `512 KiB`, `17 B`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def format_seconds(time_s: float) -> str:
    """Format a time in the unit that suits it: `83.9 us`, `1.32 s`, `0 s`."""
    if not time_s:
        return "0 s"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(time_s) >= unit:
            return f"{_three_digits(time_s / unit)} {name}"
    return f"{_three_digits(time_s / 1e-9)} ns"


def format_duration(time_s: float) -> str:
    """Format a time that people wait for: `2.0 s`, `3.5 min`, `3.1 h`, `54 days`, `12.3 years`."""
    for unit, name in ((365 * DAY_S, "years"), (DAY_S, "days"), (HOUR_S, "h"), (60.0, "min")):
        if time_s >= 2 * unit:
            return f"{_three_digits(time_s / unit)} {name}"
    return format_seconds(time_s)


def format_count(count: float) -> str:
    """Format a count of parameters or tokens: `70.6B`, `5.24M`, `960`."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{_three_digits(count / unit)}{name}"
    return f"{count:.0f}"


def format_rate(bytes_per_s: float) -> str:
    """Format a bandwidth in GB/s with four digits, without the unit: `450`, `12.5`, `8000`."""
    gb_per_s = bytes_per_s / GB
    return f"{gb_per_s:.4g}" if gb_per_s < 1000 else f"{gb_per_s:.0f}"


def format_number(value: float) -> str:
    """Format a number with three digits, or as a whole one: `14.9`, `1,550`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 GPU`, `1,024 GPUs`, `2 families`, `64 microbatches`."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def enumerated(names: Sequence[str], last: str) -> str:
    """List names, the last behind a word: `A`, `A and B`, `A, B and C`."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _three_digits(value: float) -> str:
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}"
