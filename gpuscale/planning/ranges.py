"""Lists and ranges of what a job has one of: `256,512`, `256..1024`, `bf16,fp8`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuscale.errors import InputError
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec

MAX_VALUES = 64
"""Values that one option may list."""

_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True)
class Range:
    """All sensible values from `low` to `high`; which these are depends on what they are for."""

    low: int
    high: int


Numbers = tuple[int, ...] | Range


def parse_numbers(value: Any, place: str) -> Numbers:
    """Parse `640`, `256,512`, `256..1024`, a whole number or a sequence of them.

    Raises:
        InputError: not of this form, too many values, or a range that runs backwards.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | Sequence):
        raise InputError(f"{str(value)[:40]!r} is not a whole number", place=place, hint=_forms(place))
    if isinstance(value, int):
        return (value,)
    if isinstance(value, str) and ".." in value:
        low, _, high = (part.strip() for part in value[:60].partition(".."))
        if not (_NUMBER.fullmatch(low) and _NUMBER.fullmatch(high)):
            raise InputError(f"{value[:40]!r} is not a range", place=place, hint=_forms(place))
        if int(low) > int(high):
            raise InputError(f"{value[:40]!r} holds nothing", place=place, hint="give the smaller number first")
        if not int(high):
            raise InputError(f"{value[:40]!r} holds nothing above 0", place=place, hint=_forms(place))
        return Range(max(int(low), 1), int(high))
    parts = value.split(",", MAX_VALUES) if isinstance(value, str) else list(value)
    return _distinct([_whole(part, place) for part in parts], place)


def _whole(part: Any, place: str) -> int:
    if isinstance(part, int) and not isinstance(part, bool):
        return part
    text = part.strip() if isinstance(part, str) else ""
    if not _NUMBER.fullmatch(text.removeprefix("-")):
        raise InputError(f"{str(part)[:40]!r} is not a whole number", place=place, hint=_forms(place))
    return int(text)


def _forms(place: str) -> str:
    example = {"--gpus": (256, 1024), "--gbs": (1024, 4096)}.get(place, (4096, 16384))
    return f"write {example[0]}, {example[0]},{example[1]} or {example[0]}..{example[1]}"


def parse_names(value: Any, place: str, *, split: bool = True) -> tuple[str, ...]:
    """Parse `bf16,fp8`, or a sequence of names.

    Args:
        split: commas separate; not in paths.

    Raises:
        InputError: not text, an empty name, or too many.
    """
    parts: list[Any]
    if isinstance(value, str):
        parts = value.split(",", MAX_VALUES) if split else [value]
    elif isinstance(value, Sequence):
        parts = list(value)
    else:
        raise InputError(f"{str(value)[:40]!r} is not text", place=place)
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise InputError(f"{str(part)[:40]!r} is no name", place=place, hint="give one, or several after commas")
    return _distinct([part.strip() for part in parts], place)


def _distinct(values: list[Any], place: str) -> tuple[Any, ...]:
    """Drop repetitions, the first one stays."""
    if not 1 <= len(values) <= MAX_VALUES:
        raise InputError(f"{len(values)} values, at most {MAX_VALUES}", place=place, hint="give fewer, or a range")
    return tuple(dict.fromkeys(values))


def gpu_counts(numbers: Numbers, cluster: ClusterSpec) -> tuple[int, ...]:
    """GPU counts to try on a cluster.

    Of a range these are, of a node's GPUs n, the divisors of n, n x 2^k and 3 x n x 2^k, which have many divisors, and
    the ends themselves where they are whole nodes; as far as the cluster has them or can be extended to them.

    Raises:
        InputError: the range holds none.
    """
    if not isinstance(numbers, Range):
        return numbers
    node = cluster.host.gpus if cluster.host else cluster.node_gpus
    most = MAX_GPUS if cluster.extendable else cluster.gpus
    found = {size for size in range(1, node) if node % size == 0}
    found |= set(_rich(node, min(numbers.high, most)))
    found |= {end for end in (numbers.low, numbers.high) if end and end % node == 0}
    kept = tuple(sorted(size for size in found if numbers.low <= size <= min(numbers.high, most)))
    if not kept:
        raise InputError(
            f"{numbers.low}..{numbers.high} holds no GPU count to try on {cluster.name}",
            place="--gpus",
            hint=f"counts are {node} x 2^k and {3 * node} x 2^k, up to {most:,}; or list them: --gpus 256,640",
        )
    return kept


def batch_sizes(numbers: Numbers, gpus: int) -> tuple[int, ...]:
    """Global batches to try on so many GPUs.

    Of a range these are GPUs x 2^k and 3 x GPUs x 2^k, k also below 0 where that is whole, and both ends.
    """
    if not isinstance(numbers, Range):
        return numbers
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    found = {numbers.low, numbers.high, *_rich(odd, numbers.high)}
    return tuple(sorted(size for size in found if size >= numbers.low))


def sequence_lengths(numbers: Numbers) -> tuple[int, ...]:
    """Sequence lengths to try: of a range the low end doubled again and again, and the high end."""
    if not isinstance(numbers, Range):
        return numbers
    found, length = [], numbers.low
    while length < numbers.high:
        found.append(length)
        length *= 2
    return (*found, numbers.high)


def _rich(unit: int, high: int) -> list[int]:
    """Return unit x 2^k and 3 x unit x 2^k up to `high`."""
    found = []
    for start in (unit, 3 * unit):
        size = start
        while size <= high:
            found.append(size)
            size *= 2
    return found


__all__ = ["Numbers", "Range", "batch_sizes", "gpu_counts", "parse_names", "parse_numbers", "sequence_lengths"]
