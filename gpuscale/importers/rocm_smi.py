"""`rocm-smi --showtopo` and `amd-smi topology`: tables of GPUs by GPUs, of which the kind of link and the hops count.

Both print one table after another, each under a line with its title: weights, hops, kinds of links (XGMI, PCIE). A GPU
is `GPU0`, or its bus id in `amd-smi`. GPUs one hop apart have a link of their own; neither names the model or network
cards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from gpuscale.importers.facts import ROCM_TOPOLOGY, Facts, SourceFile, dark, dark_notes, shown

MAX_DEVICES = 256

TITLE = re.compile(r"[= ]*(Link Type between two GPUs|LINK TYPE TABLE)", re.IGNORECASE)
TABLES = re.compile(r"=+ ROCm System Management Interface|[= ]*(?:ACCESS|WEIGHT|HOPS|LINK TYPE) TABLE", re.IGNORECASE)
"""How tables of these tools begin, whatever they say."""

_HOPS = re.compile(r"[= ]*(Hops between two GPUs|HOPS TABLE)", re.IGNORECASE)
_NAME = re.compile(r"GPU\d{1,3}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_WHOLE = "save the whole output: rocm-smi --showtopo > topo.txt"
_ITSELF = ("0", "X", "SELF", "N/A")

_Cells = dict[tuple[str, str], str]


def parse(source: SourceFile) -> Facts:
    """Return the GPUs of a node and the links between them.

    Raises:
        InputError: the table of links is cut off, or has a kind of link that is not known.
    """
    names, kinds, line = _table(source, TITLE)
    hops = _table(source, _HOPS)[1]
    wrong = next((cell for (one, two), cell in kinds.items() if one != two and cell not in {"XGMI", "PCIE"}), None)
    if wrong is not None:
        raise source.error(line, f"{shown(wrong, 20)!r} between GPUs is neither XGMI nor PCIE", _WHOLE)
    linked = {pair: cell == "XGMI" for pair, cell in kinds.items() if pair[0] != pair[1]}
    peers = {name: sum(is_linked for (one, _), is_linked in linked.items() if one == name) for name in names}
    count = source.stated(line, len(names), f"rows {names[0]} to {names[-1]}")
    lost = dark(peers)
    notes = dark_notes(source.name, peers, "XGMI links")
    if not any(peers.values()) or (min(peers.values()) < len(names) - 1 and not lost):
        if any(peers.values()):
            notes.append(f"{source.name}: XGMI does not join all GPUs alike, so PCIe counts, which joins all")
        fabric = source.stated(line, "pcie", "PCIE between GPUs")
        return Facts(source.name, ROCM_TOPOLOGY, gpus=count, link_fabric=fabric, notes=tuple(notes))
    return Facts(
        source.name, ROCM_TOPOLOGY, gpus=count,
        link_fabric=source.stated(line, "xgmi", "XGMI between GPUs"),
        island=source.stated(line, len(names), "XGMI joins all GPUs"),
        notes=tuple(notes), **_direct(source, names, hops, line),
    )  # fmt: skip


def _direct(source: SourceFile, names: list[str], hops: Mapping[tuple[str, str], str], line: int) -> dict[str, Any]:
    """Return the links of one GPU where each goes to a GPU of its own; of a ring the tables do not count them."""
    if any(value != "1" for (one, two), value in hops.items() if one != two):
        return {}
    return {
        "links": source.stated(line, len(names) - 1, f"XGMI to each of {len(names) - 1} GPUs"),
        "switched": source.stated(line, False, "GPUs one hop apart"),
        "switches": source.stated(line, 0, "GPUs one hop apart"),
    }


def _table(source: SourceFile, title: re.Pattern[str]) -> tuple[list[str], _Cells, int]:
    """Return the names, the cells by row and column, and the line of the header; nothing where there is no such table.

    Raises:
        InputError: rows or cells are missing.
    """
    start = next((number for number, line in enumerate(source.lines, 1) if title.match(line)), None)
    if start is None:
        return [], {}, 0
    rows = [(number, words) for number, line in enumerate(source.lines[start:], start + 1) if (words := line.split())]
    header, names = rows[0] if rows else (start, [])
    if not all(_NAME.fullmatch(word) for word in names) or len(set(names)) != len(names):
        raise source.error(header, f"{shown(names[0], 30)!r} is not the name of a GPU", _WHOLE)
    if len(names) > MAX_DEVICES:
        raise source.error(header, f"{len(names)} devices, at most {MAX_DEVICES}")
    cells: _Cells = {}
    for number, (own, *values) in takewhile(lambda row: row[1][0] in names, rows[1:]):
        if len(values) != len(names):
            raise source.error(number, f"the row of {own} has {len(values)} of {len(names)} cells", _WHOLE)
        cells |= {(own, name): cell.upper() for name, cell in zip(names, values, strict=True)}
        if cells[own, own] not in _ITSELF:
            raise source.error(number, f"{own} is linked to itself: cells are shifted", _WHOLE)
    missing = next((name for name in names if (name, name) not in cells), None)
    if missing or not names:
        raise source.error(header, f"the row of {missing or 'GPU0'} is missing: the table is cut off", _WHOLE)
    return names, cells, header
