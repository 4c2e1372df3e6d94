"""The kinds of groups of a call: many collectives run over few distinct pairs of group size and stride."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.arrays import IntArray
from gpuscale.collectives.groups import Groups

DENSE = 4
"""Numbers up to this many times as large as there are of them are told apart with a table, not by sorting."""


FEW = 64
"""Fewer collectives than this are priced faster than told apart."""


@dataclass(frozen=True)
class Kinds:
    """G distinct groups among N.

    Attributes:
        size: (G,) GPUs per group.
        stride: (G,) GPUs from one member to the next.
        of: (N,) index of each collective's kind; a slice where each has one of its own.
    """

    size: NDArray[np.generic]
    stride: NDArray[np.generic]
    of: IntArray | slice


def kinds(size: NDArray[np.generic], stride: NDArray[np.generic]) -> Kinds:
    """Tell apart the groups of N collectives, by size and stride, in rising order.

    Args:
        size: (N,) GPUs per group.
        stride: (N,) GPUs from one member to the next.
    """
    alone = Kinds(size, stride, slice(None))
    if size.size < FEW or not (_countable(size) and _countable(stride)):
        return alone
    if (size == size[0]).all() and (stride == stride[0]).all():
        return Kinds(size[:1], stride[:1], np.zeros(size.size, dtype=np.int64))
    sizes, of_size = _distinct(size.astype(np.int64))
    strides, of_stride = _distinct(stride.astype(np.int64))
    if sizes.size * strides.size > DENSE * size.size:
        return alone
    of_size *= strides.size
    of_size += of_stride
    pairs, of = _distinct(of_size)
    return Kinds(sizes[pairs // strides.size], strides[pairs % strides.size], of)


def _countable(values: NDArray[np.generic]) -> bool:
    """Return whether all are whole numbers that a table may have a place for."""
    if values.dtype.kind not in "iub":
        return bool((values == np.floor(values)).all()) and bool((np.abs(values) < 2**31).all())
    return True


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, rising, and the index of each value among them."""
    low, high = int(values.min()), int(values.max())
    if high - low > DENSE * values.size + 2**16:
        found, of = np.unique(values, return_inverse=True)
        return found, of.reshape(-1)
    offset = values - low
    present = np.zeros(high - low + 1, dtype=np.bool_)
    present[offset] = True
    place = np.cumsum(present) - 1
    return np.flatnonzero(present) + low, place[offset]


def spread(groups: Groups, of: IntArray | slice) -> Groups:
    """Return the placement of every collective from that of its kind."""
    if isinstance(of, slice):
        return groups
    exchange = groups.exchange_s_per_byte
    return Groups(
        groups.size[of],
        groups.members[:, of],
        groups.inner[:, of],
        groups.crossed[:, of],
        groups.wire_bytes_per_s[:, of],
        groups.instances[:, of],
        groups.steps[:, of],
        groups.rises[:, of],
        None if exchange is None else exchange[:, of],
    )
