"""What the collectives of a step's tree send, from the inventory of all of a plan's collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gpuscale.explain.inventory import FILLING, inventory, stage_plan
from gpuscale.explain.nodes import Node
from gpuscale.explain.traffic import level_side, wire_bytes
from gpuscale.launch.subject import Subject
from gpuscale.steptime.components import COMMUNICATION

PHASE_OF_PASS = {"forward": "forward", "backward": "backward", "recomputation": "backward"}
"""Pass of the tree -> phase of the inventory, for what is sent in every layer."""

Key = tuple[str, str]
"""Component, and phase where it is part of a pass."""


def with_transfers(root: Node, subject: Subject) -> Node:
    """Return the tree of a step with the bytes that one GPU sends in its collectives, and what the wire would carry.

    Bytes are those that cross the side of the cluster, NVLink or network, on which the outermost level of the groups
    is. Of each component and pass they are known as a whole, and spread over its collectives by their time.
    """
    outermost = {key: leaf.level for key, leaf in _collectives(root) if leaf.level}
    levels = {level.name: level for level in subject.spec.cluster.levels}
    sent = _sent_bytes(subject, {name: level_side(level.fabric) for name, level in levels.items()}, outermost)
    seconds: dict[Key, list[float]] = {}
    for key, leaf in _collectives(root):
        seconds.setdefault(key, []).append(_whole_s(leaf))

    def filled(node: Node, way: str) -> Node:
        way = PHASE_OF_PASS.get(node.name, way)
        if node.children:
            return replace(node, children=tuple(filled(child, way) for child in node.children))
        key, whole_s = _key(node, way), _whole_s(node)
        if node.level is None or not sent.get(key) or not whole_s:
            return node
        share = whole_s / math.fsum(seconds[key])
        return replace(node, bytes=sent[key] * share, limit=levels[node.level].egress_bytes_per_s)

    return filled(root, "")


def _collectives(node: Node, way: str = "") -> Iterator[tuple[Key, Node]]:
    way = PHASE_OF_PASS.get(node.name, way)
    if not node.children and node.component in COMMUNICATION:
        yield _key(node, way), node
    for child in node.children:
        yield from _collectives(child, way)


def _key(node: Node, way: str) -> Key:
    return node.name if node.component == "dp_comm" else node.component or "", way


def _whole_s(node: Node) -> float:
    return node.value + (node.hidden_s or 0.0)


def _sent_bytes(subject: Subject, sides: dict[str, str], outermost: dict[Key, str]) -> dict[Key, float]:
    plan, found = stage_plan(subject.rows, subject.spec, subject.evaluation), dict[Key, float]()
    for call in inventory(plan):
        of_states = "tied embedding" if call.axis == "embedding" else "gradients and parameters"
        name = of_states if call.component == "dp_comm" else call.component
        key = (name, "" if call.component in {"dp_comm", "pp_comm"} else call.phase)
        if key not in outermost or call.purpose == FILLING:
            continue
        each = wire_bytes(subject.spec.cluster, call, plan.vpp if call.component == "pp_comm" else 1)
        wanted = sides[outermost[key]]
        crossing = (size for size, side in zip(each, sides.values(), strict=True) if side == wanted)
        found[key] = found.get(key, 0.0) + call.calls * math.fsum(crossing)
    return found
