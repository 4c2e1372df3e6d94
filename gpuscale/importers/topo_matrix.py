"""`nvidia-smi topo -m`: the matrix of GPUs and network cards, with what lies between each two.

`NV#` is a number of NVLinks, `PIX` and `PXB` are PCIe bridges alone, `PHB` a host bridge, `NODE` and `SYS` the way
through a CPU and between CPUs (the legend below the matrix). It names neither the GPU model nor the rate of a card.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile

from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.source import SourceFile, shown

KIND = "the matrix of `nvidia-smi topo -m`"
MAX_DEVICES = 256
MAX_NVLINKS = 18
"""Most NVLinks that a GPU has (NVLink 4 and 5)."""

_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")
_AFTER_DEVICES = frozenset({"CPU", "NUMA", "GPU"})
"""First words of the columns behind the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|NV[0-9]{1,2}|C2C")
_P2P = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U|NS-.*")
_HINT = "save the whole output: nvidia-smi topo -m > topo.txt"
_NEAR = ("PIX", "PXB", "PSB")


@dataclass(frozen=True)
class _Matrix:
    """A matrix as it stands in the file.

    Attributes:
        columns: names of the devices.
        cells: (row, column) -> cell.
        lines: row -> its line.
        header: line of the column names.
        pcie_alone: the legend explains PCIe and no NVLinks, as that of `topo -mp` does, which leaves them out.
    """

    columns: list[str]
    cells: dict[tuple[str, str], str]
    lines: dict[str, int]
    header: int
    pcie_alone: bool

    def named(self, prefix: str) -> list[str]:
        """Return GPUs (`GPU`) or all others (``)."""
        return [name for name in self.columns if name.startswith("GPU") == (prefix == "GPU")]


def is_header(line: str) -> bool:
    """Whether a line heads a matrix: it starts with two GPUs, or is `GPU0` with the affinities alone."""
    return bool(re.match(r"\s*GPU0\s+(?:GPU1\s|CPU Affinity|NIC0\s|mlx5_)", line + " "))


def _explains_pcie_alone(source: SourceFile) -> bool:
    keys = {line.split()[0] for line in source.lines if re.match(r"\s*(?:PIX|NV#)\s+=", line)}
    return keys == {"PIX"}


def parse(source: SourceFile) -> Facts:
    """Return what a topology matrix states of its node.

    Raises:
        InputError: another matrix of nvidia-smi, rows or cells missing, or a cell that has no meaning.
    """
    matrix = _read(source)
    gpus, nics = matrix.named("GPU"), matrix.named("")
    facts = Facts(source.name, KIND, gpus=Stated(len(gpus), f"{source.at(matrix.header)}: columns GPU0 to {gpus[-1]}"))
    return _with_nics(source, matrix, _with_links(source, matrix, facts), nics)


def _read(source: SourceFile) -> _Matrix:
    header = next(number for number, line in enumerate(source.lines, 1) if is_header(line))
    columns = _columns(source, header)
    matrix = _Matrix(columns, {}, {}, header, _explains_pcie_alone(source))
    for number in range(header + 1, len(source.lines) + 1):
        words = source.lines[number - 1].split()
        if words and words[0] in columns and words[0] not in matrix.lines:
            _take_row(source, matrix, number, words)
        elif words and words[0].startswith("Legend"):
            break
        elif len(words) > 1 and words[0] not in columns and all(_CELL.fullmatch(word) for word in words[1:]):
            raise source.error(number, f"{shown(words[0], 30)} has a row, but no column: the matrix is damaged", _HINT)
    for name in matrix.named("GPU"):
        if name not in matrix.lines:
            raise source.error(header, f"the row of {name} is missing: the matrix is cut off", _HINT)
    return matrix


def _columns(source: SourceFile, header: int) -> list[str]:
    columns = list(takewhile(lambda word: word not in _AFTER_DEVICES, source.lines[header - 1].split()))
    if len(columns) > MAX_DEVICES:
        raise source.error(header, f"{len(columns)} devices, at most {MAX_DEVICES}")
    odd = next((word for word in columns if not _DEVICE.fullmatch(word)), None)
    if odd is not None:
        raise source.error(header, f"{shown(odd, 30)!r} is not the name of a GPU or a network card", _HINT)
    if len(set(columns)) != len(columns):
        raise source.error(header, "a device stands twice in the header", _HINT)
    return columns


def _take_row(source: SourceFile, matrix: _Matrix, number: int, words: list[str]) -> None:
    row, cells = words[0], words[1 : 1 + len(matrix.columns)]
    for column, cell in zip(matrix.columns, cells, strict=False):
        if _P2P.fullmatch(cell):
            message = (
                f"{cell!r} at {row}, {column}: a matrix of `nvidia-smi topo -p2p`, which says what is allowed, not"
            )
            raise source.error(number, f"{message} how GPUs are connected", "give the output of nvidia-smi topo -m")
        if not _CELL.fullmatch(cell):
            message = f"{shown(cell, 20)!r} at {row}, {column} is no connection of nvidia-smi's legend"
            raise source.error(number, message, _HINT)
        if (cell == "X") != (row == column):
            message = f"{cell} at {row}, {column}: X stands on the diagonal alone"
            raise source.error(number, message, "cells are missing or shifted: " + _HINT)
        matrix.cells[row, column] = cell
    if len(cells) < len(matrix.columns):
        raise source.error(number, f"the row of {row} has {len(cells)} of {len(matrix.columns)} cells", _HINT)
    matrix.lines[row] = number


def _with_links(source: SourceFile, matrix: _Matrix, facts: Facts) -> Facts:
    """Add NVLinks of one GPU: the row's sum in a mesh, one entry where every pair goes through NVSwitches."""
    gpus = matrix.named("GPU")
    rows = {name: [_nvlinks(matrix.cells[name, peer]) for peer in gpus if peer != name] for name in gpus}
    where = source.at(matrix.lines[gpus[0]])
    if not any(any(row) for row in rows.values()):
        return _without_links(source, matrix, facts)
    sums = [sum(row) for row in rows.values()]
    switched = max(sums) > MAX_NVLINKS
    links = min(min(value for value in row) for row in rows.values()) if switched else min(sums)
    notes = list(facts.notes)
    if len(set(sums)) > 1:
        notes.append(f"{source.name}: GPUs have {min(sums)} to {max(sums)} NVLinks; the least is taken")
    joined = _joined(gpus, rows)
    if not links or len(set(joined)) > 1:
        notes.append(f"{source.name}: NVLinks do not join all GPUs alike; PCIe joins all, so it counts")
        partly = Stated("pcie", f"{where}: NV# between some GPUs only")
        return replace(facts, link_fabric=partly, notes=tuple(notes))
    entry = next(cell for cell in (matrix.cells[gpus[0], peer] for peer in gpus) if cell.startswith("NV"))
    text = f"{entry} to every GPU" if switched else f"NV# of its row add up to {links}"
    direct = f"{where}: {links} NVLinks to {len(gpus) - 1} GPUs, without switches"
    return replace(
        facts,
        link_fabric=Stated("nvlink", f"{where}: {entry}"),
        links=Stated(links, f"{where}: {text}"),
        island=Stated(joined[0], f"{source.name}: NVLinks join {joined[0]} GPUs"),
        switched=Stated(switched, f"{where}: {text}, more than {MAX_NVLINKS} in all" if switched else direct),
        switches=None if switched else Stated(0, direct),
        notes=tuple(notes),
    )


def _without_links(source: SourceFile, matrix: _Matrix, facts: Facts) -> Facts:
    """Say that PCIe joins the GPUs, unless the matrix is of the kind that leaves NVLinks out."""
    gpus = matrix.named("GPU")
    if matrix.pcie_alone:
        note = f"{source.name}: a matrix of PCIe alone (`topo -mp`), which leaves NVLinks out; `topo -m` has them"
        return replace(facts, notes=(*facts.notes, note))
    ways = sorted({matrix.cells[name, peer] for name in gpus for peer in gpus if peer != name})
    where = source.at(matrix.lines[gpus[0]])
    text = f"no NV# between GPUs, {', '.join(ways)} instead" if ways else "a single GPU"
    path = "pcie-p2p" if set(ways) <= set(_NEAR) else "pcie-p2p-host"
    return replace(
        facts,
        link_fabric=Stated("pcie", f"{where}: {text}"),
        way=Stated(path, f"{where}: {text}") if ways else None,
        pcie_switch=_behind_switches(source, matrix, []),
    )


def _nvlinks(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") else 0


def _joined(gpus: list[str], rows: dict[str, list[int]]) -> list[int]:
    """Return for each GPU how many GPUs its NVLinks lead to, directly or through others, itself included."""
    peers = {
        name: {peer for peer, links in zip([g for g in gpus if g != name], rows[name], strict=True) if links}
        for name in gpus
    }
    sizes = []
    for name in gpus:
        seen, todo = {name}, [name]
        while todo:
            new = peers[todo.pop()] - seen
            seen |= new
            todo += sorted(new)
        sizes.append(len(seen))
    return sizes


def _with_nics(source: SourceFile, matrix: _Matrix, facts: Facts, nics: list[str]) -> Facts:
    """Add the cards that serve GPUs: behind the same bridges as each GPU, equally many for each."""
    if not nics:
        return replace(facts, nics=Stated(0, f"{source.at(matrix.header)}: no network cards among the columns"))
    gpus = matrix.named("GPU")
    where = source.at(matrix.header)
    near = {gpu: [nic for nic in nics if matrix.cells[gpu, nic] in _NEAR] for gpu in gpus}
    close = [nic for nic in nics if any(nic in cards for cards in near.values())]
    uplink = max(sum(1 for peer in gpus if matrix.cells[gpu, peer] in {*_NEAR, "X"}) for gpu in gpus)
    if all(near.values()):
        shares = [sum(1 / sum(nic in cards for cards in near.values()) for nic in near[gpu]) for gpu in gpus]
        count = max(1, round(min(shares) * len(gpus)))
        sharing = [sum(nic in cards for cards in near.values()) for nic in close]
        uplink = max(uplink, *sharing)
        text = f"{count} of {len(nics)} cards, equally many behind the PCIe bridges (PIX, PXB) of every GPU"
    else:
        count = len(close) or len(nics)
        text = f"{count} of {len(nics)} cards behind the PCIe bridge of a GPU" if close else f"all {count} cards"
    served = [nic for nic in close if all(near.values())]
    near_text = f"{where}: cards behind the bridges (PIX, PXB) of GPUs"
    left = len(nics) - count
    note = (f"{source.name}: {left} of {len(nics)} network cards left out: they are not equally near to all GPUs",)
    return replace(
        facts,
        nics=Stated(count, f"{where}: {text}"),
        gpus_per_uplink=Stated(uplink, f"{where}: cards and GPUs that share bridges (PIX, PXB)"),
        nic_way=Stated("gdr", f"{near_text}: near enough for GPUDirect RDMA") if served else None,
        pcie_switch=_behind_switches(source, matrix, served) or facts.pcie_switch,
        notes=(*facts.notes, *(note if left else ())),
    )


def _behind_switches(source: SourceFile, matrix: _Matrix, nics: list[str]) -> Stated[tuple[int, int]] | None:
    """Return how many GPUs and cards share PCIe bridges; None where groups are not alike, or every GPU is alone."""
    gpus = matrix.named("GPU")
    groups = {
        gpu: (
            frozenset(peer for peer in gpus if peer == gpu or matrix.cells[gpu, peer] in _NEAR),
            frozenset(nic for nic in nics if matrix.cells[gpu, nic] in _NEAR),
        )
        for gpu in gpus
    }
    by_cards: dict[frozenset[str], set[str]] = {}
    for gpu, (_, cards) in groups.items():
        by_cards.setdefault(cards, set()).add(gpu)
    sizes = {len(peers) for peers, _ in groups.values()}
    if nics and sizes == {1}:  # links hide the bridges between GPUs, cards show them
        sizes = {len(sharing) for sharing in by_cards.values()}
    counts = {len(cards) for _, cards in groups.values()}
    behind = min(sizes)
    if len(sizes) > 1 or len(counts) > 1 or behind == len(gpus) or (behind == 1 and not nics):
        return None
    text = f"{source.at(matrix.header)}: {behind} GPUs and {min(counts)} cards share bridges (PIX, PXB)"
    return Stated((behind, min(counts)), text)
