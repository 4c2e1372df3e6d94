"""Slurm's `topology.conf`: `SwitchName=s Nodes=...`, `SwitchName=s Switches=...`, or `BlockName=b Nodes=...`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.source import MAX_NAME, SourceFile, shown
from gpuscale.importers.switch_tree import SwitchTable, block_facts, tree_facts

KIND = "Slurm's topology.conf"
LINE = re.compile(r"\s*(SwitchName|BlockName|BlockSizes)\s*=", re.IGNORECASE)
_ENTRY = re.compile(r"([A-Za-z]{1,30})\s*=\s*(\S*)\s*")
_KEYS = {"switchname", "blockname", "blocksizes", "nodes", "switches", "linkspeed"}


def parse(source: SourceFile) -> Facts:
    """Return the levels of the network.

    Raises:
        InputError: an entry that topology.conf does not have, a broken host list, or switches that form no tree.
    """
    table = SwitchTable(source)
    sizes: Stated[list[int]] | None = None
    kinds: dict[str, int] = {}
    for line, text in _logical_lines(source):
        entries = _entries(source, line, text)
        if "blocksizes" in entries:
            sizes = Stated(_sizes(source, line, entries["blocksizes"]), f"{source.at(line)}: BlockSizes")
            continue
        key = "blockname" if "blockname" in entries else "switchname"
        kinds.setdefault(key, line)
        table.define(line, entries[key], entries.get("nodes"), entries.get("switches"))
    if len(kinds) > 1:
        raise source.error(max(kinds.values()), "SwitchName and BlockName in one file: Slurm reads one or the other")
    if not table.switches:
        raise source.error(None, "no SwitchName or BlockName: it describes no network")
    if "blockname" in kinds:
        return block_facts(source, KIND, table.switches, sizes)
    return tree_facts(source, KIND, table.switches)


def _logical_lines(source: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line without comments; a backslash at the end joins the next."""
    start, pending = 0, ""
    for number, raw in enumerate(source.lines, 1):
        text = raw.split("#", 1)[0].rstrip()
        start = start or number
        if text.endswith("\\"):
            pending += text[:-1] + " "
            continue
        if (pending + text).strip():
            yield start, (pending + text).strip()
        start, pending = 0, ""
    if pending.strip():
        yield start, pending.strip()


def _entries(source: SourceFile, line: int, text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _ENTRY.match(text, position)
        key = found[1].lower() if found else ""
        if found is None or key not in _KEYS:
            what = shown(text[position : position + 40], 40)
            hint = "topology.conf has SwitchName, Switches, Nodes, LinkSpeed, BlockName, BlockSizes"
            raise source.error(line, f"{what!r} is not an entry of topology.conf", hint)
        if key in entries:
            raise source.error(line, f"{found[1]} stands twice on one line")
        entries[key] = found[2]
        position = found.end()
    if not entries.keys() & {"switchname", "blockname", "blocksizes"}:
        raise source.error(line, f"{shown(text, 40)!r} belongs to no SwitchName", "a line may be broken in two")
    if "blocksizes" not in entries and not (entries.get("nodes") or entries.get("switches")):
        raise source.error(
            line, f"{shown(text, MAX_NAME)!r} names neither Nodes nor Switches", "the line may be cut off"
        )
    return entries


def _sizes(source: SourceFile, line: int, text: str) -> list[int]:
    pieces = text.split(",")
    if len(pieces) > 32 or not all(re.fullmatch(r"[0-9]{1,7}", piece) for piece in pieces):
        raise source.error(line, f"BlockSizes={shown(text, 40)} is not a list of up to 32 whole numbers")
    return [int(piece) for piece in pieces]
