"""Slurm's `topology.conf` and `topology.yaml`: a tree of switches, or blocks of nodes; and `scontrol show topology`.

`SwitchName=s Nodes=...`, `SwitchName=s Switches=...` or `BlockName=b Nodes=...`, with host lists such as
`node[01-04,7]`; in YAML a list of topologies, each with a `tree`, a `block`, or flat. YAML is read with PyYAML's safe
loader, down to nodes of the document and no further: no value is built, no alias is followed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.importers.facts import MAX_NAME, SLURM_CONF, SLURM_YAML, Facts, SourceFile, Stated, Tier, shown
from gpuscale.units import KIB

MAX_TIERS = 6
"""Levels of switches; a cluster file has up to 8 levels, of which two may lie inside the node."""
MAX_SWITCHES = 20_000
MAX_NAMES = 131_072
"""Most nodes of one file: a node of 8 GPUs for each of the largest cluster accepted."""
MAX_YAML_BYTES = 512 * KIB
MAX_DEPTH = 16

TIER_NAMES = ("leaf", "spine", "core", "tier-4", "tier-5", "tier-6", "tier-7")
CONF_LINE = re.compile(r"\s*(SwitchName|BlockName|BlockSizes|AggregatedBlock)\s*=", re.IGNORECASE)
YAML_LINE = re.compile(r"\s*-\s+topology\s*:")

_KEYS = {"switchname", "blockname", "blocksizes", "nodes", "switches", "linkspeed"}
_PRINTED = {"level", "blockindex", "blocksize", "aggregatedblock"}
"""What `scontrol show topology` prints beside (Slurm 24.05, src/plugins/topology)."""
_MAX_BRACKETS = 4
_SHAPE = "see Slurm's topology.yaml(5): a list of `- topology: NAME` with `tree:` or `block:`"


_LIMITS = {"names": MAX_NAMES, "switches": MAX_SWITCHES, "switches below others": MAX_SWITCHES}
"""What host lists of a file may mean together."""


def expand(source: SourceFile, line: int, text: str, used: Counter[str], what: str = "names") -> list[str]:
    """Return the names that a host list means, in order: `node[01-04,7]`, `rack[0-1]n[1-2]-ib`, `a,b`.

    Args:
        used: how many of each of `_LIMITS` the file has meant so far; these names are counted before they are made.

    Raises:
        InputError: brackets that do not pair, a range that is none, too long a name, or too many names.
    """
    if used[what] + text.count(",") >= _LIMITS[what]:  # every comma divides names, or numbers that make one each
        raise _too_many(source, line, what)
    loose = re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text))
    if loose:
        wrong = "a bracket is not closed" if loose[0] == "[" else "brackets do not pair"
        raise source.error(line, f"{wrong} in {shown(text, 50)!r}", "the line may be cut off")
    names: list[str] = []
    for part in re.findall(r"((?:[^,\[]++|\[[^\]]*\])*+),", text + ","):  # commas inside brackets divide ranges
        pieces = re.split(r"\[([^\[\]]*)\]", part.strip())
        if pieces == [""] or not all(re.fullmatch(r"[A-Za-z0-9._:/+-]*", piece) for piece in pieces[::2]):
            raise source.error(line, f"{shown(part.strip(), 50)!r} is not a name of a node or a switch")
        if len(pieces) > 2 * _MAX_BRACKETS + 1:
            raise source.error(line, f"more than {_MAX_BRACKETS} brackets in {shown(part, 50)!r}")
        brackets = [_ranges(source, line, inner) for inner in pieces[1::2]]
        used[what] += math.prod(sum(len(numbers) for numbers, _ in ranges) for ranges in brackets)
        if used[what] > _LIMITS[what]:
            raise _too_many(source, line, what)
        found = [pieces[0]]
        for ranges, literal in zip(brackets, pieces[2::2], strict=True):
            numbers = [f"{number:0{width}d}" for one, width in ranges for number in one]
            found = [name + number + literal for name in found for number in numbers]
        names += found
    long = next((name for name in names if len(name) > MAX_NAME), None)
    if long:
        raise source.error(line, f"the name {shown(long, 30)!r} has {len(long)} characters, at most {MAX_NAME}")
    return names


def _too_many(source: SourceFile, line: int, what: str) -> InputError:
    hint = "give the network of one cluster; is a range too wide?"
    return source.error(line, f"more than {_LIMITS[what]:,} {what} in this file, the limit", hint)


def _ranges(source: SourceFile, line: int, text: str) -> list[tuple[range, int]]:
    """Return a bracket's ranges, each with the width that zeros fill its numbers up to."""
    found: list[tuple[range, int]] = []
    for piece in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", piece.strip())
        if match is None:
            raise source.error(line, f"{shown(piece, 30)!r} is not a number or a range such as 01-16")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise source.error(line, f"the range {shown(piece, 30)} runs backwards")
        found.append((range(low, high + 1), len(match[1]) if match[1].startswith("0") else 0))
    return found


class _Switch(NamedTuple):
    name: str
    line: int
    nodes: list[str]
    children: list[str]


Switches = dict[str, _Switch]


def _define(
    source: SourceFile, switches: Switches, used: Counter[str], line: int, names: str, on: str | None, below: str | None
) -> None:
    """Take one entry, which says the same of several switches (`names`); all are host lists."""
    nodes = [] if on is None else expand(source, line, on, used)
    children = [] if below is None else expand(source, line, below, used, "switches below others")
    for name in expand(source, line, names, used, "switches"):
        if name in switches:
            raise source.error(line, f"{name} is defined again (first on line {switches[name].line})")
        switches[name] = _Switch(name, line, nodes, children)


def parse_conf(source: SourceFile) -> Facts:
    """Return the levels of the network in a `topology.conf`.

    Raises:
        InputError: an entry that topology.conf does not have, a broken host list, or switches that form no tree.
    """
    switches: Switches = {}
    used: Counter[str] = Counter()
    sizes: Stated[list[int]] | None = None
    kinds: dict[str, int] = {}
    for line, text in _logical_lines(source):
        entries = _entries(source, line, text)
        if "blocksizes" in entries:
            pieces = entries["blocksizes"].split(",")
            if len(pieces) > 32 or not all(re.fullmatch(r"[0-9]{1,7}", piece) for piece in pieces):
                message = f"BlockSizes={shown(entries['blocksizes'], 40)} is not a list of up to 32 whole numbers"
                raise source.error(line, message)
            sizes = source.stated(line, [int(piece) for piece in pieces], "BlockSizes")
            continue
        if "aggregatedblock" in entries:  # blocks that follow each other, grouped for the scheduler
            continue
        if "level" in entries and entries.get("switches"):
            entries.pop("nodes", None)  # printed of every switch: all nodes below it
        key = "blockname" if "blockname" in entries else "switchname"
        kinds.setdefault(key, line)
        _define(source, switches, used, line, entries[key], entries.get("nodes"), entries.get("switches"))
    if len(kinds) > 1:
        raise source.error(max(kinds.values()), "SwitchName and BlockName in one file: Slurm reads one or the other")
    if not switches:
        raise source.error(None, "no SwitchName or BlockName: there is no network")
    return _blocks(source, SLURM_CONF, switches, sizes) if "blockname" in kinds else _tree(source, SLURM_CONF, switches)


def _logical_lines(source: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line without comments; a backslash at the end joins the next."""
    start, pending = 0, ""
    for number, raw in enumerate((*source.lines, ""), 1):
        text = raw.split("#", 1)[0].rstrip()
        start = start or number
        if text.endswith("\\"):
            pending += text[:-1] + " "
            continue
        if (pending + text).strip():
            yield start, (pending + text).strip()
        start, pending = 0, ""


def _entries(source: SourceFile, line: int, text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for found in re.finditer(r"([A-Za-z]{1,30})\s*=\s*(\S*)\s*|.+", text):
        key = (found[1] or "").lower()
        if key not in _KEYS | _PRINTED:
            hint = "topology.conf has SwitchName, Switches, Nodes, LinkSpeed, BlockName, BlockSizes"
            raise source.error(line, f"{shown(found[0], 40)!r} is not an entry of topology.conf", hint)
        if key in entries:
            raise source.error(line, f"{found[1]} is given twice on one line")
        entries[key] = found[2]
    if not entries.keys() & {"switchname", "blockname", "blocksizes", "aggregatedblock"}:
        raise source.error(line, f"{shown(text, 40)!r} belongs to no SwitchName", "a line may be broken in two")
    if "blocksizes" not in entries and not (entries.get("nodes") or entries.get("switches")):
        message = f"{shown(text, MAX_NAME)!r} names neither Nodes nor Switches"
        raise source.error(line, message, "the line may be cut off")
    return entries


def parse_yaml(source: SourceFile) -> Facts:
    """Return the levels of the default topology's network in a `topology.yaml`.

    Raises:
        InputError: not YAML, an alias, a document of another shape, or only flat topologies; or PyYAML is missing.
    """
    topologies = [_mapping(source, item) for item in _sequence(source, _compose(source))]
    usable = [entry for entry in topologies if "tree" in entry or "block" in entry]
    if not usable:
        raise source.error(1, f"{len(topologies)} topologies, none with `tree` or `block`: flat ones have no levels")
    default = [entry for entry in usable if "cluster_default" in entry]
    true = [entry for entry in default if str(entry["cluster_default"].value).lower() in {"true", "yes", "on"}]
    chosen = (true or usable)[0]
    notes: tuple[str, ...] = ()
    if len(topologies) > 1:
        name = shown(str(chosen["topology"].value), MAX_NAME) if "topology" in chosen else "the first"
        taken = f"{name} is taken (the default, else the first with switches)"
        notes = (f"{source.name}: {len(topologies)} topologies; {taken}",)
    if "tree" in chosen:
        entry = _mapping(source, chosen["tree"])
        listed = _sequence(source, entry.get("switches", chosen["tree"]))
        return _tree(source, SLURM_YAML, _yaml_switches(source, listed, "switch"), notes)
    entry = _mapping(source, chosen["block"])
    blocks = _yaml_switches(source, _sequence(source, entry.get("blocks", chosen["block"])), "block")
    numbers = _sequence(source, entry["block_sizes"]) if "block_sizes" in entry else []
    texts = [str(item.value) for item in numbers]
    if not all(re.fullmatch(r"[0-9]{1,7}", text) for text in texts):
        raise source.error(_line(entry["block_sizes"]), "block_sizes is not a list of whole numbers")
    sizes = source.stated(_line(numbers[0]), [int(text) for text in texts], "block_sizes") if numbers else None
    return _blocks(source, SLURM_YAML, blocks, sizes, notes)


def _compose(source: SourceFile) -> Any:
    """Return the document's nodes; aliases, tags and deep nesting are refused."""
    try:
        import yaml  # noqa: PLC0415 - an optional library, only where a YAML file is read
    except ImportError:
        hint = "pip install 'gpuscale[yaml]', or give the same tree as topology.conf"
        raise source.error(None, "reading YAML needs PyYAML, which is not installed", hint) from None
    size = len(source.text.encode())
    if size > MAX_YAML_BYTES:
        raise source.error(None, f"{size // KIB} KiB of YAML, at most {MAX_YAML_BYTES // KIB} KiB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0  # refused before a document is built: libyaml's recursion is not bounded
        for token in yaml.scan(source.text, Loader=loader):
            kind, line = type(token).__name__, token.start_mark.line + 1
            if kind in {"AliasToken", "AnchorToken", "TagToken"}:
                raise source.error(line, "an anchor, alias or tag, which topology.yaml does not need", "write it out")
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken")) - kind.endswith("EndToken")
            if depth > MAX_DEPTH:
                raise source.error(line, f"nested deeper than {MAX_DEPTH} levels")
        return yaml.compose(source.text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = shown(str(getattr(error, "problem", None) or error), 100)
        raise source.error(mark.line + 1 if mark else None, f"not valid YAML: {problem}", _SHAPE) from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _sequence(source: SourceFile, node: Any) -> list[Any]:
    if getattr(node, "id", None) != "sequence":
        raise source.error(_line(node) if node is not None else 1, "a list is expected here", _SHAPE)
    if len(node.value) > MAX_SWITCHES:
        raise source.error(_line(node), f"a list of {len(node.value):,} entries, at most {MAX_SWITCHES:,}")
    return list(node.value)


def _mapping(source: SourceFile, node: Any) -> dict[str, Any]:
    if getattr(node, "id", None) != "mapping":
        raise source.error(_line(node), "`key: value` pairs are expected here", _SHAPE)
    return {str(key.value).lower(): value for key, value in node.value if key.id == "scalar"}


def _yaml_switches(source: SourceFile, entries: list[Any], name_key: str) -> Switches:
    switches: Switches = {}
    used: Counter[str] = Counter()
    for node in entries:
        entry, texts = _mapping(source, node), {}
        for key in (name_key, *(key for key in ("nodes", "children") if key in entry)):
            value = entry.get(key)
            if value is None or value.id != "scalar" or not value.value:
                place = _line(value if value is not None else node)
                raise source.error(place, f"`{key}` with a name is expected here", _SHAPE)
            texts[key] = str(value.value)
        if len(texts) < 2:
            message = f"{shown(texts[name_key], MAX_NAME)} names neither nodes nor children"
            raise source.error(_line(node), message, _SHAPE)
        on, below = texts.get("nodes"), texts.get("children")
        _define(source, switches, used, _line(node), texts[name_key], on, below)
    if not switches:
        raise source.error(None, f"no `{name_key}`: there is no network", _SHAPE)
    return switches


def _tree(source: SourceFile, kind: str, switches: Switches, notes: tuple[str, ...] = ()) -> Facts:
    """Return the levels of a tree of switches; of separate ones, which jobs cannot span, the largest."""
    parents = _parents(source, switches)
    ranks, nodes = _ranked(source, switches, parents)
    roots = [switch for name, switch in switches.items() if name not in parents]
    root = max(roots, key=lambda switch: nodes[switch.name])
    said = list(notes)
    if len(roots) > 1:
        largest = f"{root.name} with {nodes[root.name]} of {sum(nodes[switch.name] for switch in roots)} nodes"
        trees = f"{len(roots)} trees without a common switch; the largest is taken"
        said.append(f"{source.name}: {trees}, {largest} (jobs cannot span trees)")
    inside = [root.name]
    for name in inside:  # grows while it is read
        inside += switches[name].children
    tiers: list[Tier] = []
    unit = 1
    for rank in range(ranks[root.name] + 1):
        counts = [nodes[name] for name in inside if ranks[name] == rank and nodes[name]]
        usual = usual_size(counts or [0])
        fitting = usual // unit * unit
        if fitting < 2 * unit:
            continue  # one unit alone: nothing to join at this level
        where = source.at(min(switches[name].line for name in inside if ranks[name] == rank))
        text = f"{where}: {len(counts)} switch{'es' * (len(counts) > 1)} of {usual} nodes"
        if len(set(counts)) > 1:
            text = f"{where}: {len(counts)} switches of {min(counts)} to {max(counts)} nodes, mostly {usual}"
            said.append(f"{text}; a level has one size, so {fitting} is taken")
        elif fitting != usual:
            said.append(f"{text}; whole units of {unit} nodes make {fitting} of them")
        tiers.append(Tier(TIER_NAMES[len(tiers)], fitting, 0, 0.0, text))
        unit = fitting
    total = nodes[root.name]
    if not tiers:
        raise source.error(root.line, f"{total} node{'s' * (total != 1)} on one switch: a network joins two or more")
    stated = source.stated(root.line, tuple(tiers), f"{len(inside)} switches, {total} nodes")
    return Facts(source.name, kind, tiers=stated, notes=tuple(said))


def _parents(source: SourceFile, switches: Switches) -> dict[str, str]:
    parents: dict[str, str] = {}
    homes: dict[str, _Switch] = {}
    for switch in switches.values():
        for child in switch.children:
            if child not in switches:
                raise source.error(switch.line, f"{switch.name} joins the switch {child!r}, which is not defined")
            if child in parents:
                message = f"switch {child} is below both {parents[child]} and {switch.name}: not a tree"
                raise source.error(switch.line, message, "Slurm's tree has one switch above each")
            parents[child] = switch.name
        for node in switch.nodes:
            if node in homes:
                message = f"node {node} is on {homes[node].name} (line {homes[node].line}) and {switch.name}"
                raise source.error(switch.line, message, "a node has one leaf switch (or block)")
            homes[node] = switch
    return parents


def _ranked(source: SourceFile, switches: Switches, parents: dict[str, str]) -> tuple[Counter[str], Counter[str]]:
    """Return the rank of each switch (0: no switch below it) and the nodes below each."""
    ranks, nodes = Counter[str](), Counter[str]()
    for switch in switches.values():
        above, name = {switch.name: 0}, switch.name  # the switch and those above it -> levels up
        while name in parents:
            name = parents[name]
            if name in above:
                raise source.error(switch.line, f"switch {name} is above itself: the switches form a cycle")
            above[name] = len(above)
        if len(above) > MAX_TIERS:
            raise source.error(switch.line, f"more than {MAX_TIERS} levels of switches from {switch.name} up")
        for name, up in above.items():
            ranks[name] = max(ranks[name], up)
            nodes[name] += len(switch.nodes)
    return ranks, nodes


def usual_size(counts: list[int]) -> int:
    """Return the most common size; of two equally common ones the larger."""
    return max(Counter(counts).items(), key=lambda pair: (pair[1], pair[0]))[0]


def _blocks(
    source: SourceFile, kind: str, blocks: Switches, sizes: Stated[list[int]] | None, notes: tuple[str, ...] = ()
) -> Facts:
    """Return a block, and all blocks, as levels; larger block sizes are for the scheduler."""
    _parents(source, blocks)
    counts = [len(block.nodes) for block in blocks.values()]
    usual, total = usual_size(counts), sum(counts)
    line = next(iter(blocks.values())).line
    levels = "Slurm's blocks give no switches; a block is taken as one level, all blocks as the next"
    said = [*notes, f"{source.name}: {levels}"]
    if sizes is not None and len(sizes.value) > 1:
        said.append(f"{sizes.source}: sizes {sizes.value[1:]} group blocks for the scheduler and are left out")
    if len(set(counts)) > 1:
        said.append(f"{source.name}: blocks have {min(counts)} to {max(counts)} nodes; mostly {usual}, which is taken")
    tiers = []
    if usual > 1:
        tiers.append(Tier("block", usual, 0, 0.0, f"{source.at(line)}: {len(blocks)} blocks of {usual} nodes"))
    whole = total // usual * usual if usual else 0
    if len(blocks) > 1 and whole > usual:
        tiers.append(Tier("fabric", whole, 0, 0.0, f"{source.at(line)}: {len(blocks)} blocks, {total} nodes"))
    if not tiers:
        raise source.error(line, f"{total} node in all: a network joins two or more")
    stated = source.stated(line, tuple(tiers), f"{len(blocks)} blocks, {total} nodes")
    return Facts(source.name, kind, tiers=stated, notes=tuple(said))
