"""What `nvidia-smi`, `amd-smi` and `rocm-smi` print: the GPUs of a machine, and the links between them.

In the matrix of `nvidia-smi topo -m` `NV#` is a number of NVLinks, `PIX` and `PXB` are PCIe bridges alone, `PHB` a host
bridge, `NODE` and `SYS` the way through a CPU and between CPUs (the legend below the matrix). It names neither the GPU
model nor the rate of a card. The listing of `nvidia-smi nvlink -s` has the model and the rate of each link, one
direction [GB/s]. `nvidia-smi` and `nvidia-smi -L` have the models alone.

`rocm-smi --showtopo` and `amd-smi topology` print one table after another, each under a line with its title: weights,
hops, kinds of links (XGMI, PCIE). A GPU is `GPU0`, or its bus id in `amd-smi`. GPUs one hop apart have a link of their
own; neither names the model or network cards.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.importers.facts import (
    GPU_LIST,
    NVLINK_STATUS,
    PCI_GPUS,
    PRODUCTS,
    ROCM_TOPOLOGY,
    TOPO_MATRIX,
    Device,
    Facts,
    SourceFile,
    Stated,
    dark,
    dark_notes,
    root,
    shown,
)
from gpuscale.units import MIB

MAX_GPUS = 256


@dataclass(frozen=True)
class Gpu:
    """One GPU of a machine as its driver's tool names it."""

    index: int  #: number by which the tool counts it.
    name: str  #: product name.
    memory_bytes: float | None  #: all of its memory; None where the tool does not say [bytes].
    driver: str | None  #: version of the driver; None where the tool does not say.
    power_limit_w: float | None  #: power limit that is set; None where the tool does not say [W].
    preset: str | None  #: GPU preset that the name means; None where gpuscale has none of it.
    mig: bool = False  #: whether it is split into instances (MIG).


def product_preset(name: str) -> str | None:
    """Return the GPU preset that a product name means, if there is one."""
    return next((own for part, own in PRODUCTS.items() if re.search(part, name, re.IGNORECASE)), "") or None


NVIDIA_QUERY = ("--query-gpu=index,name,memory.total,driver_version,power.limit,mig.mode.current",
                "--format=csv,noheader,nounits")  # fmt: skip
AMD_QUERY = ("static", "--asic", "--vram", "--limit", "--driver", "--json")
ROCM_QUERY = ("--showproductname", "--showmeminfo", "vram", "--showmaxpower", "--showdriverversion", "--json")


def _parse_nvidia_smi(text: str) -> list[Gpu]:
    found = []
    for line in text.strip().splitlines()[:MAX_GPUS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not re.fullmatch("[0-9]{1,4}", cells[0]):
            raise InputError(f"line {shown(line)!r} is not the six values asked for")
        memory, power, name = _number(cells[2]), _number(cells[4]), shown(cells[1])
        driver = shown(cells[3], 30) if re.match("[0-9]", cells[3]) else None
        preset, mig = product_preset(name), cells[5] == "Enabled"
        found.append(Gpu(int(cells[0]), name, memory and memory * MIB, driver, power, preset, mig))
    return found


def _parse_amd_smi(text: str) -> list[Gpu]:
    data = _json(text)
    data = data.get("gpu_data") if isinstance(data, dict) else data
    if not isinstance(data, list):
        raise InputError("not a list of GPUs")
    found = []
    for index, one in enumerate(data[:MAX_GPUS]):
        asic, vram, limit, driver = (_table(_table(one), key) for key in ("asic", "vram", "limit", "driver"))
        memory, power = _measure(vram.get("size")), _measure(limit.get("max_power"))
        name = shown(str(asic.get("market_name", "AMD GPU")))
        version = driver.get("version") or driver.get("driver_version")
        said = shown(version, 30) if isinstance(version, str) else None
        found.append(Gpu(index, name, memory and memory * MIB, said, power, product_preset(name)))
    return found


def _parse_rocm_smi(text: str) -> list[Gpu]:
    data = _table(_json(text))
    version = _table(data, "system").get("Driver version")
    found = []
    for key in list(data)[: MAX_GPUS + 1]:
        number = re.fullmatch("card([0-9]{1,4})", key)
        if number is None:
            continue
        card = {name.lower(): str(value) for name, value in _table(data, key).items()}
        name = shown(card.get("card series", "AMD GPU"))
        memory = _number(card.get("vram total memory (b)", ""))
        _, preset = PCI_GPUS.get(f"1002:{card.get('card model', '').lower().removeprefix('0x')}", ("", None))
        power = _number(card.get("max graphics package power (w)", ""))
        driver = shown(version, 30) if isinstance(version, str) else None
        found.append(Gpu(int(number[1]), name, memory, driver, power, product_preset(name) or preset))
    return found


TOOLS: Mapping[str, tuple[tuple[str, ...], Callable[[str], list[Gpu]]]] = {
    "nvidia-smi": (NVIDIA_QUERY, _parse_nvidia_smi),
    "amd-smi": (AMD_QUERY, _parse_amd_smi),
    "rocm-smi": (ROCM_QUERY, _parse_rocm_smi),
}
"""Tool -> what it is asked with, and what reads its answer; the first that lists GPUs counts."""


def _json(text: str) -> Any:
    begin = re.search(r"^\s*[\[{]", text, re.MULTILINE)  # behind warnings that the tools print first
    try:
        return json.loads(text[begin.start() if begin else 0 :])
    except (ValueError, RecursionError):
        raise InputError(f"not JSON; it begins {shown(text[:200].strip(), 40)!r}") from None


def _table(data: Any, key: str | None = None) -> Mapping[str, Any]:
    found = data.get(key) if key is not None and isinstance(data, dict) else data
    return found if isinstance(found, dict) else {}


def _measure(found: Any) -> float | None:
    """Return a number, also of `{"value": 750, "unit": "W"}`; megabytes of amd-smi are 2^20 bytes."""
    return _number(str(_table(found).get("value", found) if isinstance(found, dict) else found))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        value = float(text[:40].split(" ", maxsplit=1)[0])
        return value if 0 < value < 1e15 else None
    return None


MAX_DEVICES = 256
MAX_LINKS = 64
MAX_NVLINKS = 18
"""Most NVLinks that a GPU has (NVLink 4 and 5)."""

MATRIX_HEADER = re.compile(r"\s*GPU0\s+(?:GPU1(?:\s|$)|CPU Affinity|NIC0(?:\s|$)|mlx5_)")
LISTED_GPU = re.compile(r"\s*GPU ([0-9]{1,4}): (.{1,200}?) \(UUID: [^)]{1,80}\)\s*$")
OVERVIEW_GPU = re.compile(r"\|\s+([0-9]{1,4})\s+(\S.{1,60}?)\s+(?:On|Off|N/A)\s+\|")
_INSTANCE = re.compile(r"\s*MIG \S+\s+Device\s")

_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")
_AFTER_DEVICES = frozenset({"CPU", "NUMA", "GPU"})
"""First words of the columns behind the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|NV[0-9]{1,2}|C2C")
_P2P = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U|NS-.*")
_NEAR = ("PIX", "PXB", "PSB")
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.{1,200})$")
_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s\s*$")
_WHOLE_MATRIX = "save the whole output: nvidia-smi topo -m > topo.txt"
_WHOLE_LISTING = "save the whole output: nvidia-smi nvlink -s > nvlink.txt"


class _Matrix(NamedTuple):
    """A matrix: its devices, (row, column) -> cell, row -> line, and line of the header."""

    gpus: list[str]
    nics: list[str]
    cells: dict[tuple[str, str], str]
    lines: dict[str, int]
    header: int


def parse_matrix(source: SourceFile) -> Facts:
    """Return what a topology matrix states of its node.

    Raises:
        InputError: another matrix of nvidia-smi, rows or cells missing, or a cell that has no meaning.
    """
    matrix = _read_matrix(source)
    count = source.stated(matrix.header, len(matrix.gpus), f"columns GPU0 to {matrix.gpus[-1]}")
    notes: list[str] = []
    facts = _links(source, matrix, notes) | _cards(source, matrix, notes)
    return Facts(source.name, TOPO_MATRIX, gpus=count, notes=tuple(notes), **facts)


def _read_matrix(source: SourceFile) -> _Matrix:
    header = next(number for number, line in enumerate(source.lines, 1) if MATRIX_HEADER.match(line))
    columns = list(takewhile(lambda word: word not in _AFTER_DEVICES, source.lines[header - 1].split()))
    if len(columns) > MAX_DEVICES:
        raise source.error(header, f"{len(columns)} devices, at most {MAX_DEVICES}")
    odd = next((word for word in columns if not _DEVICE.fullmatch(word)), None)
    if odd is not None:
        raise source.error(header, f"{shown(odd, 30)!r} is not the name of a GPU or a network card", _WHOLE_MATRIX)
    if len(set(columns)) != len(columns):
        raise source.error(header, "a device is listed twice in the header", _WHOLE_MATRIX)
    gpus = [name for name in columns if name.startswith("GPU")]
    matrix = _Matrix(gpus, [name for name in columns if name not in gpus], {}, {}, header)
    for number in range(header + 1, len(source.lines) + 1):
        words = source.lines[number - 1].split()
        if not words or words[0] in matrix.lines:
            continue
        if words[0].startswith("Legend"):
            break
        if words[0] in columns:
            _take_row(source, matrix, columns, number, words)
        elif len(words) > 1 and all(_CELL.fullmatch(word) for word in words[1:]):
            message = f"{shown(words[0], 30)} has a row, but no column: the matrix is damaged"
            raise source.error(number, message, _WHOLE_MATRIX)
    missing = next((name for name in gpus if name not in matrix.lines), None)
    if missing:
        raise source.error(header, f"the row of {missing} is missing: the matrix is cut off", _WHOLE_MATRIX)
    return matrix


def _take_row(source: SourceFile, matrix: _Matrix, columns: list[str], number: int, words: list[str]) -> None:
    row, cells = words[0], words[1 : 1 + len(columns)]
    for column, cell in zip(columns, cells, strict=False):
        if _P2P.fullmatch(cell):
            message = f"{cell!r} at {row}, {column}: a matrix of `nvidia-smi topo -p2p`"
            allowed = "which says what is allowed, not how GPUs are connected"
            raise source.error(number, f"{message}, {allowed}", "give the output of nvidia-smi topo -m")
        if not _CELL.fullmatch(cell):
            message = f"{shown(cell, 20)!r} at {row}, {column} is not a connection in nvidia-smi's legend"
            raise source.error(number, message, _WHOLE_MATRIX)
        if (cell == "X") != (row == column):
            message = f"{cell} at {row}, {column}: X belongs on the diagonal only"
            raise source.error(number, message, "cells are missing or shifted: " + _WHOLE_MATRIX)
        matrix.cells[row, column] = cell
    if len(cells) < len(columns):
        raise source.error(number, f"the row of {row} has {len(cells)} of {len(columns)} cells", _WHOLE_MATRIX)
    matrix.lines[row] = number


def _links(source: SourceFile, matrix: _Matrix, notes: list[str]) -> dict[str, Any]:
    """Return one GPU's NVLinks: its row's sum in a mesh, one entry where NVSwitches join every pair."""
    gpus, line = matrix.gpus, matrix.lines[matrix.gpus[0]]
    counts = {pair: int(cell[2:]) for pair, cell in matrix.cells.items() if cell.startswith("NV")}
    rows = {name: [counts.get((name, peer), 0) for peer in gpus if peer != name] for name in gpus}
    if not any(any(row) for row in rows.values()):
        return _without_links(source, matrix, notes)
    sums = [sum(row) for row in rows.values()]
    switched = max(sums) > MAX_NVLINKS
    own = {name: max(row) if switched else sum(row) for name, row in rows.items()}
    lost = dark(own)
    if lost:
        notes += dark_notes(source.name, own, "NVLink")
        gpus = [name for name in gpus if name not in lost]
        line = matrix.lines[gpus[0]]
        rows = {name: [counts.get((name, peer), 0) for peer in gpus if peer != name] for name in gpus}
        sums = [sum(row) for row in rows.values()]
    links = min(min(row) for row in rows.values()) if switched else min(sums)
    if len(set(sums)) > 1:
        notes.append(f"{source.name}: GPUs have {min(sums)} to {max(sums)} NVLinks; the least is taken")
    owner: dict[str, str] = {}
    for name, peer in (pair for pair, count in counts.items() if count):
        owner[root(owner, name)] = root(owner, peer)
    sizes = Counter(root(owner, name) for name in gpus)
    island = sizes[root(owner, gpus[0])]
    island = len(matrix.gpus) if lost and island == len(gpus) else island
    if not links or len(set(sizes.values())) > 1:
        notes.append(f"{source.name}: NVLinks do not join all GPUs alike, so PCIe counts, which joins all")
        return {"link_fabric": source.stated(line, "pcie", "NV# between some GPUs only")}
    entry = next(cell for cell in (matrix.cells[gpus[0], peer] for peer in gpus) if cell.startswith("NV"))
    text = f"{entry} to every GPU" if switched else f"NV# of its row add up to {links}"
    direct = f"{links} NVLinks to {len(gpus) - 1} GPUs, without switches"
    return {
        "link_fabric": source.stated(line, "nvlink", entry),
        "links": source.stated(line, links, text),
        "island": source.stated(None, island, f"NVLinks join {island} GPUs"),
        "switched": source.stated(line, switched, f"{text}, more than {MAX_NVLINKS} in all" if switched else direct),
        "switches": None if switched else source.stated(line, 0, direct),
    }


def _without_links(source: SourceFile, matrix: _Matrix, notes: list[str]) -> dict[str, Any]:
    """Say that PCIe joins the GPUs, unless the matrix leaves NVLinks out (`topo -mp`)."""
    explained = {line.split()[0] for line in source.lines if re.match(r"\s*(?:PIX|NV#)\s+=", line)}
    if explained == {"PIX"}:  # the legend of that kind explains PCIe and no NVLinks
        alone = "a matrix of PCIe alone (`topo -mp`), which leaves NVLinks out; `topo -m` has them"
        notes.append(f"{source.name}: {alone}")
        return {}
    gpus, line = matrix.gpus, matrix.lines[matrix.gpus[0]]
    ways = sorted({matrix.cells[name, peer] for name in gpus for peer in gpus if peer != name})
    text = f"no NV# between GPUs, {', '.join(ways)} instead" if ways else "a single GPU"
    path = "pcie-p2p" if set(ways) <= set(_NEAR) else "pcie-p2p-host"
    way = source.stated(line, path, text) if ways else None
    return {"link_fabric": source.stated(line, "pcie", text), "way": way, **_behind_switches(source, matrix, [])}


def _cards(source: SourceFile, matrix: _Matrix, notes: list[str]) -> dict[str, Any]:
    """Return the cards behind the same bridges as GPUs, equally many for each."""
    gpus, nics, line = matrix.gpus, matrix.nics, matrix.header
    if not nics:
        return {"nics": source.stated(line, 0, "no network cards among the columns")}
    near = {gpu: [nic for nic in nics if matrix.cells[gpu, nic] in _NEAR] for gpu in gpus}
    sharing = Counter(nic for cards in near.values() for nic in cards)
    uplink = max(sum(matrix.cells[gpu, peer] in {*_NEAR, "X"} for peer in gpus) for gpu in gpus)
    close = all(near.values())
    facts: dict[str, Any] = _behind_switches(source, matrix, list(sharing) if close else [])
    if close:
        shares = [math.fsum(1 / sharing[nic] for nic in near[gpu]) for gpu in gpus]
        count = max(1, round(min(shares) * len(gpus)))
        uplink = max(uplink, *sharing.values())
        text = f"{count} of {len(nics)} cards, equally many behind the PCIe bridges (PIX, PXB) of every GPU"
        why = "cards behind the bridges (PIX, PXB) of GPUs: near enough for GPUDirect RDMA"
        facts["nic_way"] = source.stated(line, "gdr", why)
    else:
        count = len(sharing) or len(nics)
        text = f"{count} of {len(nics)} cards behind the PCIe bridge of a GPU" if sharing else f"all {count} cards"
    facts["nics"] = source.stated(line, count, text)
    facts["gpus_per_uplink"] = source.stated(line, uplink, "cards and GPUs that share bridges (PIX, PXB)")
    if count < len(nics):
        left = f"{len(nics) - count} of {len(nics)} network cards left out"
        notes.append(f"{source.name}: {left}: they are not equally near to all GPUs")
    return facts


def _behind_switches(source: SourceFile, matrix: _Matrix, nics: list[str]) -> dict[str, Any]:
    """Return how many GPUs and cards share PCIe bridges; empty where groups differ or each GPU is alone."""
    gpus = matrix.gpus
    cards = {gpu: frozenset(nic for nic in nics if matrix.cells[gpu, nic] in _NEAR) for gpu in gpus}
    sizes = {sum(peer == gpu or matrix.cells[gpu, peer] in _NEAR for peer in gpus) for gpu in gpus}
    if nics and sizes == {1}:  # links hide the bridges between GPUs, cards show them
        sizes = set(Counter(cards.values()).values())
    counts = {len(near) for near in cards.values()}
    behind = min(sizes)
    if len(sizes) > 1 or len(counts) > 1 or behind == len(gpus) or (behind == 1 and not nics):
        return {}
    text = f"{behind} GPUs and {min(counts)} cards share bridges (PIX, PXB)"
    return {"pcie_switch": source.stated(matrix.header, (behind, min(counts)), text)}


@dataclass
class _Gpu:
    """One GPU of a listing; `links`: index -> rate [GB/s], 0 for an inactive one."""

    index: int
    name: str
    line: int
    links: dict[int, float] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        return [rate for rate in self.links.values() if rate]


def parse_listing(source: SourceFile) -> Facts:
    """Return links, their rate and the GPU model; of a list of GPUs alone (`nvidia-smi -L`) the model.

    Raises:
        InputError: no link is active, the listing is shortened, or it is another listing of `nvidia-smi nvlink`.
    """
    gpus = _read_listing(source)
    if not any(gpu.links for gpu in gpus):
        return _models(source, gpus)
    first, device = gpus[0], _model(source, gpus)
    notes: list[str] = []
    worst = min(gpus, key=lambda gpu: len(gpu.rates))
    active = len(worst.rates)
    if any(len(gpu.rates) != active or len(gpu.links) != active for gpu in gpus):
        has = f"has {len(worst.links) - active} inactive links and {active} active ones"
        notes.append(f"{source.at(worst.line)}: GPU {worst.index} {has}, the fewest; these are taken")
    rate = min(value for gpu in gpus for value in gpu.rates)
    whole = [gpu.index for gpu in gpus] == list(range(len(gpus))) and len(gpus) > 1
    if not whole:
        listed = ", ".join(str(gpu.index) for gpu in gpus[:8])
        notes.append(f"{source.name}: lists GPU {listed} alone, not a whole node")
    return Facts(
        file=source.name,
        kind=NVLINK_STATUS,
        gpus=source.stated(first.line, len(gpus), f"GPU 0 to {gpus[-1].index}") if whole else None,
        device=device,
        link_fabric=source.stated(first.line, "nvlink", "active links"),
        links=source.stated(worst.line, active, f"{active} active links"),
        link_gb_per_s=source.stated(worst.line, rate, f"links of {rate:g} GB/s"),
        notes=tuple(notes),
    )


def parse_overview(source: SourceFile) -> Facts:
    """Return the GPUs of the table that `nvidia-smi` prints.

    Raises:
        InputError: GPUs are of two kinds.
    """
    rows = [(number, row) for number, line in enumerate(source.lines, 1) if (row := OVERVIEW_GPU.match(line))]
    return _models(source, [_Gpu(int(row[1]), row[2], number) for number, row in rows[:MAX_DEVICES]])


def _models(source: SourceFile, gpus: list[_Gpu]) -> Facts:
    """Return what a list of a machine's GPUs states."""
    split = next((number for number, line in enumerate(source.lines, 1) if _INSTANCE.match(line)), None)
    if split:
        raise source.error(split, "a GPU that is split into instances (MIG)", "give the list of GPUs that train whole")
    count = source.stated(gpus[0].line, len(gpus), f"GPU {gpus[0].index} to {gpus[-1].index}")
    return Facts(source.name, GPU_LIST, gpus=count, device=_model(source, gpus))


def _model(source: SourceFile, gpus: list[_Gpu]) -> Stated[Device]:
    first = gpus[0]
    other = next((gpu for gpu in gpus if gpu.name != first.name), None)
    if other is not None:
        message = f"GPUs of two kinds: {shown(first.name)} and {shown(other.name)}"
        raise source.error(other.line, message, "a cluster has one")
    return source.stated(first.line, Device(first.name, product_preset(first.name), exact=True), shown(first.name))


def _read_listing(source: SourceFile) -> list[_Gpu]:
    gpus: list[_Gpu] = []
    for number, line in enumerate(source.lines, 1):
        if found := LISTED_GPU.match(line):
            if len(gpus) >= MAX_DEVICES:
                raise source.error(number, f"more than {MAX_DEVICES} GPUs, the limit for one node")
            if any(gpu.index == int(found[1]) for gpu in gpus):
                raise source.error(number, f"GPU {found[1]} is listed twice", "give the listing of one node")
            gpus.append(_Gpu(int(found[1]), found[2], number))
        elif "links are inactive" in line:
            index = gpus[-1].index if gpus else "?"
            message = f"GPU {index}: all NVLinks are inactive: none to plan with"
            raise source.error(number, message, "give the listing of a healthy node")
        elif gpus and (link := _LINK.match(line)):
            _take_link(source, gpus[-1], number, int(link[1]), link[2])
    for gpu in gpus if any(gpu.links for gpu in gpus) else ():
        if not gpu.rates:
            raise source.error(gpu.line, f"GPU {gpu.index} has no active link in this listing", _WHOLE_LISTING)
        if list(gpu.links) != list(range(len(gpu.links))):
            missing = next(index for index in range(MAX_LINKS) if index not in gpu.links)
            message = f"GPU {gpu.index}: link {missing} is missing before link {max(gpu.links)}"
            raise source.error(gpu.line, f"{message}: the listing is shortened", _WHOLE_LISTING)
    return gpus


def _take_link(source: SourceFile, gpu: _Gpu, number: int, index: int, text: str) -> None:
    if index >= MAX_LINKS or index in gpu.links:
        raise source.error(number, f"link {index} is listed twice or above {MAX_LINKS - 1}, the limit", _WHOLE_LISTING)
    rate = _RATE.match(text)
    if rate is None and "inactive" not in text.lower():
        message = f"link {index} has {shown(text, 40)!r} where `nvlink -s` prints a rate in GB/s"
        hint = "other listings (-e errors, -c capabilities, -p peers) have no rates: use -s"
        raise source.error(number, message, hint)
    if rate is not None and not 1 <= float(rate[1]) <= 400:
        raise source.error(number, f"link {index} of {rate[1]} GB/s: 1 to 400 are possible")
    gpu.links[index] = float(rate[1]) if rate else 0.0


TITLE = re.compile(r"[= ]*(Link Type between two GPUs|LINK TYPE TABLE)", re.IGNORECASE)
TABLES = re.compile(r"=+ ROCm System Management Interface|[= ]*(?:ACCESS|WEIGHT|HOPS|LINK TYPE) TABLE", re.IGNORECASE)
"""How tables of these tools begin, whatever they say."""

_HOPS = re.compile(r"[= ]*(Hops between two GPUs|HOPS TABLE)", re.IGNORECASE)
_NAME = re.compile(r"GPU\d{1,3}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_WHOLE = "save the whole output: rocm-smi --showtopo > topo.txt"
_ITSELF = ("0", "X", "SELF", "N/A")

_Cells = dict[tuple[str, str], str]


def parse_topology(source: SourceFile) -> Facts:
    """Return the GPUs of a node and the links between them.

    Raises:
        InputError: the table of links is cut off, or has a kind of link that is not known.
    """
    names, kinds, line = _matrix(source, TITLE)
    hops = _matrix(source, _HOPS)[1]
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
    """Return one GPU's links where each goes to another GPU; of a ring the tables do not count them."""
    if any(value != "1" for (one, two), value in hops.items() if one != two):
        return {}
    return {
        "links": source.stated(line, len(names) - 1, f"XGMI to each of {len(names) - 1} GPUs"),
        "switched": source.stated(line, False, "GPUs one hop apart"),
        "switches": source.stated(line, 0, "GPUs one hop apart"),
    }


def _matrix(source: SourceFile, title: re.Pattern[str]) -> tuple[list[str], _Cells, int]:
    """Return the names, the cells by row and column, and the header's line; nothing without such a table."""
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
