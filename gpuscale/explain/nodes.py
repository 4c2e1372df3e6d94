"""Trees of what adds up: seconds of a step, bytes of a GPU, or the difference between two of them.

Every node is the sum of its children, exactly: `math.fsum` of their values gives its value to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

ROUNDING = 1e-9
"""By how much sums of the same numbers in another order may differ, relative to the sum."""


@dataclass(frozen=True)
class Node:
    """One part of a total."""

    name: str  #: what it is
    value: float  #: seconds or bytes, as its tree says; the sum of its children's
    share: float = 0.0  #: of the root's value; 0 where that is 0
    children: tuple[Node, ...] = ()  #: its parts; none of a leaf
    #: how often it happens in a step; of memory how many layers, or microbatches in flight, take it; absent where that
    #: says nothing
    count: float | None = None
    flops: float | None = None  #: arithmetic in a step and on one GPU [FLOPs]
    bytes: float | None = None  #: memory traffic in a step; of a collective what one GPU sends [bytes]
    rate: float | None = None  #: what it achieves [FLOP/s or bytes/s, by `bound`]
    limit: float | None = None  #: what the hardware would allow, by its datasheet [in the same unit]
    #: what of the hardware binds it: `compute`, `memory`, `network`, `host`, `launch` or `waiting`; of a branch what
    #: binds most of its time
    bound: str | None = None
    component: str | None = None  #: component of the step time or of memory that it counts as
    level: str | None = None  #: level of the cluster that its transfers cross
    hidden_s: float | None = None  #: what of it runs beside something else and is not in `value` [s]
    #: where its number comes from: `datasheet`, `kernel fit`, `collective model`, `guesstimate`, ...
    source: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without those that say nothing."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        said["children"] = [child.to_dict() for child in self.children]
        return {name: value for name, value in said.items() if value is not None}

    def each(self, change: Callable[[Node], Node]) -> Node:
        """Return the tree with every node changed, a parent after its children."""
        return change(replace(self, children=tuple(child.each(change) for child in self.children)))

    def times(self, factor: float, names: Sequence[str] = ("value", "hidden_s")) -> Node:
        """Return the tree with some numbers of every node multiplied."""

        def multiplied(one: Node) -> Node:
            known = {name: getattr(one, name) for name in names if getattr(one, name) is not None}
            return replace(one, **{name: value * factor for name, value in known.items()})

        return self.each(multiplied)

    def leaves(self) -> Iterator[Node]:
        """Yield the nodes at the ends of this tree."""
        return (node for node in self.walk() if not node.children)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, a parent before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def branch(name: str, children: Sequence[Node], **said: Any) -> Node:
    """Return a node of parts that take something; those that take nothing are left out."""
    kept = tuple(child for child in children if child.value)
    return Node(name, math.fsum(child.value for child in kept), children=kept, **said)


def settled(root: Node, total: float | None = None) -> Node:
    """Return a tree of parts that are not negative, with shares, whose values add up exactly to `total`, by default the
    root's.

    Sums of floats that are formed in another order differ in their last digits: the largest children take that up.

    Raises:
        ValueError: the parts add up to something else.
    """
    value = root.value if total is None else total
    if abs(value - root.value) > ROUNDING * value:
        raise ValueError(f"the parts of {root.name} add up to {root.value}, not {value}")
    return _settled(root, value, value)


def _settled(node: Node, value: float, whole: float) -> Node:
    values = [child.value for child in node.children]
    if values:
        largest, *others = sorted(range(len(values)), key=lambda index: -values[index])
        values[largest] += value - math.fsum(values)
        finer = others[0] if others and values[others[0]] else largest  # steps of the largest may be too wide to hit it
        while (off := value - math.fsum(values)) != 0:
            values[finer] = math.nextafter(values[finer], math.copysign(math.inf, off))
    pairs = zip(node.children, values, strict=True)
    children = tuple(_settled(child, own, whole) for child, own in pairs)
    return replace(node, value=value, share=value / whole if whole else 0.0, children=children)


def difference(a: Node, b: Node) -> Node:
    """Return the tree of `b` less `a`, with shares of what `a` is.

    Parts are paired by their names, which differ among the children of a node, in the order of `a`, then of `b`; what
    only one of them divides is a leaf.
    """
    return _difference(a, b, a.value)


def _difference(a: Node, b: Node, whole: float) -> Node:
    mine, others = ({child.name: child for child in one.children} for one in (a, b))
    parts: list[Node] = []
    if all(one.children or not one.value for one in (a, b)):
        for name in dict.fromkeys((*mine, *others)):
            one, other = (found.get(name, Node(name, 0.0)) for found in (mine, others))
            parts.append(_difference(one, other, whole))
    value = math.fsum(part.value for part in parts) if parts else b.value - a.value
    return Node(b.name, value, value / whole if whole else 0.0, tuple(parts))
