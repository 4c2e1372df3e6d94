"""What files of other tools state of a cluster, each value with the place where it stands, and all of it put together.
Nothing in them is trusted: sizes are bounded before anything is read, and what messages show is printable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gpuscale.errors import InputError
from gpuscale.files import read_text, refuse_irregular
from gpuscale.presets.files import known_table
from gpuscale.units import MIB

MAX_FILE_BYTES = 8 * MIB
"""Largest file read: an ibnetdiscover listing of some 10,000 nodes."""

MAX_LINES = 200_000
MAX_NAME = 64
"""Longest name of a node, switch or device; as Slurm's."""

NCCL_XML = "an NCCL topology XML"
TOPO_MATRIX = "the matrix of `nvidia-smi topo -m`"
NVLINK_STATUS = "the listing of `nvidia-smi nvlink -s`"
GPU_LIST = "the list of GPUs of `nvidia-smi`"
ROCM_TOPOLOGY = "the tables of `rocm-smi --showtopo`"
IBNETDISCOVER = "the subnet of `ibnetdiscover`"
IBSTAT = "the ports of `ibstat`"
SLURM_CONF = "Slurm's topology.conf"
SLURM_YAML = "Slurm's topology.yaml"

T = TypeVar("T")


@dataclass(frozen=True)
class Stated(Generic[T]):
    """A value and where it was read: `node.xml:12: sm=90`."""

    value: T
    source: str

    @property
    def place(self) -> str:
        """The file and line of the source."""
        return self.source.removeprefix("assumed: ").split(": ", 1)[0]


@dataclass(frozen=True)
class SourceFile:
    """A file's name as messages show it, and its text without colours and carriage returns."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return self.text.split("\n")

    def at(self, line: int | None) -> str:
        """Return `file:line`, or `file` where no line is meant."""
        return f"{self.name}:{line}" if line else self.name

    def stated(self, line: int | None, value: T, text: str) -> Stated[T]:
        """Return a value that stands on a line; `text` says how it is put there."""
        return Stated(value, f"{self.at(line)}: {text}")

    def error(self, line: int | None, message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong on a line."""
        return InputError(message, place=self.at(line), hint=hint)


def read_source(path: Path, name: str) -> SourceFile:
    """Read a text file of at most 8 MiB and 200,000 lines.

    Args:
        name: what sources and messages call it.

    Raises:
        InputError: missing, not a regular file, too large, or not UTF-8.
    """
    place = repr(str(path)[:300])
    hint = "save the tool's output in a file and name that, such as `nvidia-smi topo -m > topo.txt`"
    refuse_irregular(path, "a file to import", hint)
    text = read_text(path, MAX_FILE_BYTES, "a file to import", hint="save the file as UTF-8, not as UTF-16")
    if not text.strip():
        raise InputError("is empty", place=place, hint="save the tool's output in it again")
    lines = text.count("\n")
    if lines > MAX_LINES:
        raise InputError(f"{lines:,} lines, at most {MAX_LINES:,}", place=place, hint="give the listing of one fabric")
    plain = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).replace("\r\n", "\n")
    return SourceFile(name, "\n".join(_without_prefix(plain.split("\n"))))


_PREFIX = re.compile(r"(\[[\w.,:-]{1,64}\](?:<std(?:out|err)>)?:?) ?|([A-Za-z0-9][\w.-]{0,63}:)(?: |$)")
"""What launchers write before each line: `[host]` and `[1,0]<stdout>:` (mpirun), `0:` (srun -l), `host:` (pdsh)."""


def _without_prefix(lines: Sequence[str]) -> list[str]:
    """Return lines without what a launcher wrote before each; those of other hosts than the first are empty."""
    found = [_PREFIX.match(line) for line in lines]
    heads = Counter(one[0].rstrip() for one in found if one)
    written = sum(bool(line.strip()) for line in lines)
    if sum(heads.values()) < written or written < 2 or min(heads.values(), default=0) < 2:
        return list(lines)
    first = next(iter(heads))
    own = [one if one and one[0].rstrip() == first else None for one in found]
    return [line[one.end() :] if one else "" for one, line in zip(own, lines, strict=True)]


def shown(text: str, length: int = 60) -> str:
    """Return text of a file for a message: one line, printable, at most `length` characters."""
    plain = re.sub(r"[^\x20-\x7e]", "?", text)
    return plain if len(plain) <= length else plain[: length - 3] + "..."


def root(owner: dict[str, str], name: str) -> str:
    """Return what stands for the group of `name`; `owner[root(owner, a)] = root(owner, b)` joins two."""
    while owner.setdefault(name, name) != name:
        owner[name] = owner[owner[name]]
        name = owner[name]
    return name


def dark(links: Mapping[str, int]) -> list[str]:
    """Return the GPUs without any link, at most a quarter of a node whose others mostly have as many."""
    usual, count = Counter(links.values()).most_common(1)[0]
    lost = [name for name, own in links.items() if own == 0]
    return lost if usual and 2 * count > len(links) >= 4 * len(lost) else []


def dark_notes(file: str, links: Mapping[str, int], what: str) -> list[str]:
    """Say which GPUs lack links, and how the node is read."""
    lost = dark(links)
    if not lost:
        return []
    names = f"{', '.join(lost)} {'has' if len(lost) == 1 else 'have'} no {what}"
    others = f"where {len(links) - len(lost)} GPUs have {max(links.values())} each"
    return [f"{file}: {names} {others}: broken, drain the node; read as if all had them"]


class Device(NamedTuple):
    """What a file says of the GPU model."""

    label: str  #: the model as the file names it: `NVIDIA A100-SXM4-80GB`, `PCI device 10de:2330`.
    preset: str | None  #: the GPU preset that it means; None when gpuscale has none of it.
    #: whether the file names the model; False where it gives the architecture alone and `preset` is assumed.
    exact: bool
    sm_count: int = 0  #: compute units of the GPU, where the file says (0: it does not).


class Tier(NamedTuple):
    """One level of a switched network."""

    name: str  #: `leaf`, `spine`, ...
    nodes: int  #: nodes under one instance.
    switches: int  #: switches of one instance at this level; 0 where the file does not count them.
    switch_gb_per_s: float  #: what the ports of one of them that face down carry, one direction [GB/s].
    source: str


@dataclass(frozen=True)
class Facts:
    """What one file states; None where it says nothing."""

    file: str
    kind: str  #: what it is, with its article: `an NCCL topology XML`.
    gpus: Stated[int] | None = None  #: GPUs of one node (of one NVLink domain, when it spans hosts).
    host_gpus: Stated[int] | None = None  #: GPUs of one host, where several hosts make up the node.
    device: Stated[Device] | None = None
    links: Stated[int] | None = None  #: links of one GPU to others.
    island: Stated[int] | None = None  #: GPUs that the links join; as `gpus` when all of them.
    link_fabric: Stated[str] | None = None  #: `nvlink` or `xgmi`; `pcie` where the file says that there are no links.
    link_gb_per_s: Stated[float] | None = None  #: rate of one link, one direction [GB/s].
    #: whether the links go through switches, of which the file may not say how many.
    switched: Stated[bool] | None = None
    #: switches of the links (NVSwitch) in one node; 0 when GPUs are linked directly.
    switches: Stated[int] | None = None
    gpus_per_uplink: Stated[int] | None = None  #: GPUs that share one PCIe link to the host.
    pcie_gb_per_s: Stated[float] | None = None  #: what one GPU's PCIe link carries, one direction [GB/s].
    nics: Stated[int] | None = None  #: network cards (ports) of one node that serve its GPUs.
    nic_gbit_per_s: Stated[float] | None = None  #: rate of one of them, one direction.
    nic_fabric: Stated[str] | None = None
    way: Stated[str] | None = None  #: how NCCL goes from GPU to GPU without links, as `path` of a level names it.
    nic_way: Stated[str] | None = None  #: how it goes from GPU to network card.
    #: GPUs and network cards behind one PCIe switch, where all are alike.
    pcie_switch: Stated[tuple[int, int]] | None = None
    tiers: Stated[tuple[Tier, ...]] | None = None  #: levels of the network, innermost first.
    notes: tuple[str, ...] = field(default=())  #: what was left out, or read in a way worth knowing.


_OF_NODES = (NCCL_XML, TOPO_MATRIX, NVLINK_STATUS, GPU_LIST, ROCM_TOPOLOGY)
_NODE_FIRST = (*_OF_NODES, IBNETDISCOVER, IBSTAT, SLURM_CONF, SLURM_YAML)
_PORTS_FIRST = (IBSTAT, IBNETDISCOVER, *_OF_NODES, SLURM_CONF, SLURM_YAML)
_FIRST = {"nic_gbit_per_s": _PORTS_FIRST, "nic_fabric": _PORTS_FIRST}
"""Whose word goes first. A node's files know which cards are near GPUs; the cards themselves know their rates."""

_AGREED = {
    "gpus": "GPUs per node",
    "host_gpus": "GPUs per host",
    "links": "links per GPU",
    "island": "linked GPUs",
    "link_fabric": "as the way between GPUs",
}
"""Facts on which all files have to agree, and what they are called."""

_TOGETHER = "give files of one cluster and of whole, healthy nodes"


def merge(parts: Sequence[Facts]) -> Facts:
    """Return the facts of all files as one.

    Raises:
        InputError: two files of one kind, or two that contradict each other.
    """
    for index, facts in enumerate(parts):
        twin = next((other for other in parts[:index] if other.kind == facts.kind), None)
        if twin is not None:
            message = f"a second file of the same kind, {facts.kind}, as {twin.file}"
            raise InputError(message, place=facts.file, hint="give one file of each kind")
    notes = [note for facts in parts for note in facts.notes]
    merged: dict[str, Any] = {}
    for name in (one.name for one in fields(Facts) if one.name not in {"file", "kind", "notes"}):
        order = _FIRST.get(name, _NODE_FIRST)
        ranked = parts if name in _AGREED else sorted(parts, key=lambda facts: order.index(facts.kind))
        found = [value for value in (getattr(facts, name) for facts in ranked) if value is not None]
        if name == "nics":  # a file that counts none may not list the network at all
            found = [one for one in found if one.value] or found
        first: Any = found[0] if found else None
        merged[name] = first
        others = [one for one in found[1:] if one.value != first.value]
        if others and name in _AGREED:
            message = f"{first.value} {_AGREED[name]} ({first.source}), but {others[0].value} ({others[0].source})"
            raise InputError(message, hint=_TOGETHER)
        if name == "nics":
            notes += [f"{one.source}: but {first.value} are counted for GPUs ({first.source})" for one in others]
        if name == "tiers":
            notes += [f"{other.source}: left out, another file counts the switches" for other in found[1:]]
    merged["device"] = _device(parts)
    return Facts(", ".join(facts.file for facts in parts), "all files", notes=tuple(notes), **merged)


def _device(parts: Sequence[Facts]) -> Stated[Device] | None:
    found = sorted((facts.device for facts in parts if facts.device), key=lambda stated: not stated.value.exact)
    for other in found[1:]:
        if other.value.exact and other.value.preset != found[0].value.preset:
            message = f"{found[0].value.label} ({found[0].source}), but {other.value.label} ({other.source})"
            raise InputError(message, hint=_TOGETHER)
    return found[0] if found else None


AMAZON, CRAY = "1d0f", "17db"

_DEVICES = known_table("devices")
PCI_GPUS: dict[str, tuple[str, str | None]] = {key: (name, own or None) for key, (name, own) in _DEVICES["pci"].items()}
"""PCI vendor:device -> model, and its preset where gpuscale has one."""

SM_GPUS: dict[int, str] = {int(key): own for key, own in _DEVICES["compute_capability"].items()}
GFX_GPUS: dict[str, str] = _DEVICES["gfx"]
"""Compute capability, or architecture of AMD -> the preset assumed where a file says no more."""

PRODUCTS: dict[str, str] = _DEVICES["products"]
"""Product name as the driver prints it (a part of it) -> preset, empty where gpuscale has none."""

NIC_GBIT_PER_S: dict[str, int] = _DEVICES["nic_gbit_per_s"]
"""Rates of cards that come in one rate only."""


def gfx_gpu(gcn: str, sm_count: int) -> Device:
    """Return the GPU assumed for RCCL's `gcn`: `gfx942`, or its number (`910` is gfx90a)."""
    name = "gfx90a" if gcn == "910" else f"gfx{gcn}" if gcn.isdigit() else gcn.split(":", maxsplit=1)[0]
    return Device(f"an AMD {name} with {sm_count} compute units", GFX_GPUS.get(name), exact=False, sm_count=sm_count)


def nic_fabric(vendor: str, pci_class: str, name: str) -> str | None:
    """Return a card's network by PCI vendor and class and interface name, if they tell."""
    if re.match(r"(eth|ens|eno|enp|enP|bond)[0-9]", name):  # of sockets, whatever the card
        return "eni" if vendor == AMAZON else "ethernet"
    if vendor == AMAZON or name.startswith(("rdmap", "efa")):
        return "efa"
    if vendor == CRAY or name.startswith(("cxi", "hsn")):
        return "slingshot"
    if pci_class.startswith("0x0207"):
        return "infiniband"
    if pci_class.startswith("0x0200"):
        return "roce"
    return None
