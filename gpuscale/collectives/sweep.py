"""One collective over a range of sizes, as nccl-tests runs it."""

from __future__ import annotations

from collections.abc import Callable

from gpuscale.collectives.estimate import CollectiveEstimate
from gpuscale.errors import InputError
from gpuscale.units import parse_bytes


def sweep_sizes(text: str, factor: int) -> list[int]:
    """Return the sizes of `8B..8GB`: from the first, each `factor` times the one before, up to the last.

    Raises:
        InputError: no such range, a size or factor out of range, or the last size below the first.
    """
    first, dots, last = text.partition("..")
    if not dots:
        raise InputError(f"{text[:40]!r} is not a range of sizes", place="--sweep", hint="write 8B..8GB")
    if not 2 <= factor <= 2**20:
        raise InputError(f"{factor} is out of range", place="--factor", hint="give 2 to 1048576")
    low, high = parse_bytes(first, "--sweep"), parse_bytes(last, "--sweep")
    if low > high:
        raise InputError(f"{text[:40]!r} runs backwards", place="--sweep", hint="give the smaller size first")
    sizes = [low]
    while sizes[-1] * factor <= high:  # at most 61: sizes go to 2^60
        sizes.append(sizes[-1] * factor)
    return sizes


def sweep_collective(price: Callable[[int], CollectiveEstimate], sizes: list[int]) -> list[CollectiveEstimate]:
    """Price every size; `price` is `price_collective` with all but the bytes given."""
    return [price(size) for size in sizes]
