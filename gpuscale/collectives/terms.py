"""What a route through a group takes, written per kind of group and evaluated per collective.

A call prices N collectives, but their groups are of few kinds (size and stride). Everything that depends on the group
alone is worked out once per kind, shape (G,); what depends on the bytes is a sum of terms, evaluated in blocks that
stay in the processor's cache. A term that several routes share is evaluated once per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.collectives import constants as c

BLOCK = 8192
"""Collectives that are evaluated at once: some twenty arrays of 64 KiB, which a second-level cache holds."""


class Block:
    """Some of the collectives of a call.

    Attributes:
        data: (B,) bytes of each.
    """

    __slots__ = ("_of", "_seen", "data")

    def __init__(self, data: FloatArray, of: IntArray | slice) -> None:
        """Keep `data` and which kind of group each collective has (a slice where every one has its own)."""
        self.data = data
        self._of = of
        self._seen: dict[int, Any] = {}

    def take(self, values: FloatArray | float) -> Any:
        """Return the value of each collective's group, (B,) or, where all have the same group, (1,) or a number."""
        if isinstance(values, float) or values.size == 1:
            return values
        found = self._seen.get(id(values))
        if found is None:
            of = self._of
            found = values[of] if isinstance(of, slice) else values.take(of, mode="clip")  # checks no bounds: faster
            self._seen[id(values)] = found
        return found

    def once(self, term: Term) -> FloatArray:
        """Return the seconds of a term, evaluated on its first use; not to be written to."""
        found = self._seen.get(id(term))
        if found is None:
            found = self._seen[id(term)] = term.seconds(self)
        return found


class Term(Protocol):
    """A part of the time of a collective."""

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s], shape (B,)."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """Time that does not depend on the bytes, (G,) [s]."""

    time_s: FloatArray

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        return np.asarray(block.take(self.time_s))


@dataclass(frozen=True, eq=False)
class UpTo:
    """One of two fixed times, (G,) [s]: `low` up to (G,) bytes, `high` beyond."""

    bytes: FloatArray
    low: FloatArray
    high: FloatArray

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        return np.where(block.data <= block.take(self.bytes), block.take(self.low), block.take(self.high))


@dataclass(frozen=True, eq=False)
class Moved:
    """Not a time but bytes: those of the collective times `top` over `bottom`, both (G,) or a number."""

    top: FloatArray | float
    bottom: FloatArray | float = 1.0

    def seconds(self, block: Block) -> FloatArray:
        """Return the bytes of each collective [bytes]."""
        moved = block.data * block.take(self.top)
        if not isinstance(self.bottom, float):
            moved /= block.take(self.bottom)
        return moved


@dataclass(frozen=True, eq=False)
class Over:
    """Bytes over a bandwidth, (G,) or a number [bytes/s]."""

    moved: Moved
    bandwidth: FloatArray | float

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        return np.asarray(block.once(self.moved) / block.take(self.bandwidth))


@dataclass(frozen=True, eq=False)
class Slowest:
    """The slowest of several terms, as of the levels that a message crosses at the same time."""

    terms: tuple[Term, ...]

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        slowest = block.once(self.terms[0])
        for term in self.terms[1:]:
            slowest = np.maximum(slowest, block.once(term))
        return slowest


@dataclass(frozen=True, eq=False)
class Blend:
    """Two limits that hold at the same time and slow each other down where they are close."""

    one: Term
    other: Term

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        one, other = block.once(self.one), block.once(self.other)
        larger = np.maximum(one, other)
        share = np.minimum(one, other) / np.maximum(larger, TINY)
        return larger * np.sqrt(np.sqrt(1.0 + share**4))


@dataclass(frozen=True, eq=False)
class Hidden:
    """Two times that add up where a ring stays in (G,) one node, and hide behind each other where it does not.

    Across nodes the cards set the pace: hops between them are under way while the next chunks are sent. What is left of
    both is the root of their squares.
    """

    bytes_s: tuple[Term, ...]
    hops_s: tuple[Term, ...]
    nodes: FloatArray

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        bytes_s, hops_s = _sum_s(block, self.bytes_s), _sum_s(block, self.hops_s)
        return np.where(block.take(self.nodes) > 1, np.hypot(bytes_s, hops_s), bytes_s + hops_s)


TINY = 1e-30
"""Less than any time, to divide by."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A message over (G,) channels of (G,) bytes/s each: at least `least`, more where their parts become too large.

    NCCL doubles the channels until a part is no larger than `part_bytes`; between its steps the time would fall with
    the bytes, here it stays.
    """

    message: Moved
    least: FloatArray
    most: FloatArray
    part_bytes: FloatArray
    bytes_per_s: FloatArray

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        message = block.once(self.message)
        spread = np.maximum(message / block.take(self.most), block.take(self.part_bytes))
        part = np.minimum(message / block.take(self.least), spread)
        return np.asarray(part / block.take(self.bytes_per_s))


@dataclass(frozen=True, eq=False)
class Steps:
    """Measured excess of a Simple pipeline of (G,) steps; nothing for small messages, constant for large."""

    steps: FloatArray

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        return step_overhead_s(block.data, block.take(self.steps))


def step_overhead_s(data: FloatArray, steps: FloatArray) -> FloatArray:
    """Measured excess of a Simple pipeline of `steps` steps [s]; nothing for small messages, constant for large."""
    knee_bytes = data + c.STEP_KNEE_BYTES * steps
    np.maximum(knee_bytes, 1.0, out=knee_bytes)  # 0 only where nothing is sent
    total: FloatArray = c.STEP_OVERHEAD_S * steps * data
    total /= knee_bytes
    return total


@dataclass(frozen=True, eq=False)
class Messages:
    """What the size of their messages adds to (G,) network hops: handshakes of libfabric."""

    message: Moved
    hops: FloatArray
    rendezvous_s: float

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        message = block.once(self.message)
        doublings = np.log2(1 + np.minimum(message, c.RENDEZVOUS_BYTES) / c.EAGER_BYTES)
        return np.asarray(block.take(self.hops) * self.rendezvous_s * doublings)


@dataclass(frozen=True, eq=False)
class Stored:
    """What the nodes of a tree wait for data to pass on, up and down.

    Attributes:
        rounds: (G,) levels of the tree.
        longest: (G,) bytes that a node takes in during the longest wait, twice.
    """

    rounds: FloatArray
    longest: FloatArray
    stored_s: float

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        waiting = np.maximum(block.data - c.STREAMED_BYTES, 0.0)
        held = np.maximum(waiting + block.take(self.longest), 1.0)
        total: FloatArray = 2 * block.take(self.rounds) * self.stored_s * waiting
        total /= held
        return total


@dataclass(frozen=True, eq=False)
class Total:
    """Terms one after the other."""

    terms: tuple[Term, ...]

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s]."""
        return _sum_s(block, self.terms)


@dataclass(frozen=True, eq=False)
class Route:
    """One algorithm with one protocol.

    Attributes:
        algorithm: as NCCL calls it, `point-to-point` for grouped sends and receives.
        protocol: LL, LL128 or Simple.
        latency: the part of the time that does not depend on the bytes; inf where the algorithm cannot run.
        terms: all parts, the latency among them, in the order in which they are added up.
        channels: what its channels alone need for the bytes, where they may be a limit.
    """

    algorithm: str
    protocol: str
    latency: Term
    terms: tuple[Term, ...]
    channels: Term | None = None

    def seconds(self, block: Block) -> FloatArray:
        """Return the time of each collective [s], shape (B,), the caller's own; inf where the algorithm cannot run."""
        return _sum_s(block, self.terms)


def _sum_s(block: Block, terms: Sequence[Term]) -> FloatArray:
    total = np.zeros_like(block.data)
    for term in terms:
        total += block.once(term)
    return total


def fastest_s(routes: Sequence[Route], block: Block) -> FloatArray:
    """Return the time of the fastest route of each collective [s], shape (B,)."""
    best = routes[0].seconds(block)
    for route in routes[1:]:
        np.minimum(best, route.seconds(block), out=best)
    return best
