"""Slurm's two kinds of topology, however they are written: a tree of switches, or blocks of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscale.importers.facts import Facts, Stated, Tier
from gpuscale.importers.hostlist import Budget, expand
from gpuscale.importers.source import SourceFile

MAX_TIERS = 6
"""Levels of switches; a cluster file has up to 8 levels, of which two may lie inside the node."""

MAX_SWITCHES = 20_000

NAMES = ("leaf", "spine", "core", "tier-4", "tier-5", "tier-6", "tier-7")


@dataclass
class Switch:
    """One switch (or block): the nodes on it, or the switches below it."""

    name: str
    line: int
    nodes: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class SwitchTable:
    """The switches (or blocks) of one file, by name; what their host lists mean together is bounded."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.switches: dict[str, Switch] = {}
        self._names = Budget(MAX_SWITCHES, "switches")
        self._children = Budget(MAX_SWITCHES, "switches below others")
        self._nodes = Budget()

    def define(self, line: int, names: str, nodes: str | None, children: str | None) -> None:
        """Take one entry; an entry of several switches says the same of each.

        Args:
            names, nodes, children: host lists of the switches, and of the nodes and switches on them.

        Raises:
            InputError: a broken host list, a switch defined twice, or beyond a limit.
        """
        on = expand(self.source, line, nodes, self._nodes) if nodes is not None else []
        below = expand(self.source, line, children, self._children) if children is not None else []
        for name in expand(self.source, line, names, self._names):
            if name in self.switches:
                first = self.switches[name].line
                raise self.source.error(line, f"{name} is defined again (first on line {first})")
            self.switches[name] = Switch(name, line, on, below)


def tree_facts(source: SourceFile, kind: str, switches: Mapping[str, Switch]) -> Facts:
    """Return the levels of a tree of switches.

    Trees without a common switch are separate networks: jobs cannot span them, so the largest counts.

    Raises:
        InputError: a switch or node stands below two switches, a switch is not defined, or switches form a cycle.
    """
    parents = _parents(source, switches)
    order, ranks = _ranked(source, switches, parents)
    nodes = _node_counts(switches, order)
    roots = [switch for name, switch in switches.items() if name not in parents]
    root = max(roots, key=lambda switch: nodes[switch.name])
    notes: list[str] = []
    if len(roots) > 1:
        notes.append(
            f"{source.name}: {len(roots)} trees without a common switch; the largest is taken, {root.name} with "
            f"{nodes[root.name]} of {sum(nodes[switch.name] for switch in roots)} nodes (jobs cannot span trees)"
        )
    inside = _below(switches, root)
    sizes: list[list[int]] = [[] for _ in range(ranks[root.name] + 1)]
    for name in inside:
        if nodes[name]:
            sizes[ranks[name]].append(nodes[name])
    lines = [min(switches[name].line for name in inside if ranks[name] == rank) for rank in range(len(sizes))]
    tiers = _tiers(source, [size for size in sizes if size], lines, notes)
    if not tiers:
        message = f"{nodes[root.name]} node{'s' * (nodes[root.name] != 1)} on one switch: a network joins two or more"
        raise source.error(root.line, message)
    text = f"{source.at(root.line)}: {len(inside)} switches, {nodes[root.name]} nodes"
    return Facts(source.name, kind, tiers=Stated(tuple(tiers), text), notes=tuple(notes))


def _parents(source: SourceFile, switches: Mapping[str, Switch]) -> dict[str, str]:
    parents: dict[str, str] = {}
    homes: dict[str, Switch] = {}
    for switch in switches.values():
        for child in switch.children:
            if child not in switches:
                raise source.error(switch.line, f"{switch.name} joins the switch {child!r}, which no line defines")
            if child in parents:
                message = f"switch {child} stands below {parents[child]} and {switch.name}: not a tree"
                raise source.error(switch.line, message, "Slurm's tree has one switch above each")
            parents[child] = switch.name
        for node in switch.nodes:
            if node in homes:
                message = f"node {node} stands on {homes[node].name} (line {homes[node].line}) and {switch.name}"
                raise source.error(switch.line, message, "a node has one leaf switch (or block)")
            homes[node] = switch
    return parents


def _ranked(
    source: SourceFile, switches: Mapping[str, Switch], parents: Mapping[str, str]
) -> tuple[list[str], dict[str, int]]:
    """Return the switches from the leaves up, and the rank of each (0: no switch below it)."""
    waiting = {name: len(switch.children) for name, switch in switches.items()}
    ready = [name for name, count in waiting.items() if not count]
    ranks = dict.fromkeys(ready, 0)
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        parent = parents.get(name)
        if parent is None:
            continue
        ranks[parent] = max(ranks.get(parent, 0), ranks[name] + 1)
        waiting[parent] -= 1
        if not waiting[parent]:
            ready.append(parent)
    if len(order) < len(switches):
        stuck = next(switch for name, switch in switches.items() if name not in set(order))
        raise source.error(stuck.line, f"switch {stuck.name} is above itself: the switches form a cycle")
    deepest = max(ranks, key=lambda name: ranks[name])
    if ranks[deepest] >= MAX_TIERS:
        line = switches[deepest].line
        raise source.error(line, f"{ranks[deepest] + 1} levels of switches below {deepest}, at most {MAX_TIERS}")
    return order, ranks


def _node_counts(switches: Mapping[str, Switch], order: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in order:
        switch = switches[name]
        counts[name] = len(switch.nodes) + sum(counts[child] for child in switch.children)
    return counts


def _below(switches: Mapping[str, Switch], root: Switch) -> list[str]:
    found, todo = [], [root.name]
    while todo:
        name = todo.pop()
        found.append(name)
        todo += switches[name].children
    return found


def _tiers(source: SourceFile, sizes: list[list[int]], lines: list[int], notes: list[str]) -> list[Tier]:
    """Turn the sizes of all switches of each rank into levels of which each joins whole units of the one before."""
    tiers: list[Tier] = []
    unit = 1
    for rank, counts in enumerate(sizes):
        usual = usual_size(counts)
        fitting = usual // unit * unit
        if fitting < 2 * unit:
            continue  # one unit alone: nothing to join at this level
        where = source.at(lines[rank])
        plural = "es" * (len(counts) > 1)
        text = f"{where}: {len(counts)} switch{plural} of {usual} nodes"
        if len(set(counts)) > 1:
            text = f"{where}: {len(counts)} switches of {min(counts)} to {max(counts)} nodes, mostly {usual}"
            notes.append(f"{text}; a level has one size, so {fitting} is taken")
        elif fitting != usual:
            notes.append(f"{text}; whole units of {unit} nodes make {fitting} of them")
        tiers.append(Tier(NAMES[len(tiers)], fitting, 0, 0.0, text))
        unit = fitting
    return tiers


def usual_size(counts: list[int]) -> int:
    """Return the most common size; of two equally common ones the larger."""
    return max(Counter(counts).items(), key=lambda pair: (pair[1], pair[0]))[0]


def block_facts(source: SourceFile, kind: str, blocks: Mapping[str, Switch], sizes: Stated[list[int]] | None) -> Facts:
    """Return the levels of a block topology: a block, and all blocks.

    Block sizes above the first are for the scheduler: they group blocks that follow each other, not switches.

    Raises:
        InputError: a node in two blocks, or fewer than two nodes.
    """
    _parents(source, blocks)
    counts = [len(block.nodes) for block in blocks.values()]
    usual, total = usual_size(counts), sum(counts)
    first = next(iter(blocks.values()))
    notes = [f"{source.name}: Slurm's blocks give no switches; a block is taken as one level, all blocks as the next"]
    if sizes is not None and len(sizes.value) > 1:
        notes.append(f"{sizes.source}: sizes {sizes.value[1:]} group blocks for the scheduler and are left out")
    if len(set(counts)) > 1:
        notes.append(f"{source.name}: blocks have {min(counts)} to {max(counts)} nodes; mostly {usual}, which is taken")
    tiers = []
    if usual > 1:
        tiers.append(Tier("block", usual, 0, 0.0, f"{source.at(first.line)}: {len(blocks)} blocks of {usual} nodes"))
    whole = total // usual * usual
    if len(blocks) > 1 and whole > usual:
        tiers.append(Tier("fabric", whole, 0, 0.0, f"{source.at(first.line)}: {len(blocks)} blocks, {total} nodes"))
    if not tiers:
        raise source.error(first.line, f"{total} node in all: a network joins two or more")
    text = f"{source.at(first.line)}: {len(blocks)} blocks, {total} nodes"
    return Facts(source.name, kind, tiers=Stated(tuple(tiers), text), notes=tuple(notes))
