"""How a level of a cluster file is wired: rails, tori, dragonflies, PCIe switches and the ways that NCCL takes.

`path` names a way as NCCL's log does. It stands for usual numbers where the file gives none; numbers of the file go
before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from gpuscale.presets.guards import NETWORKS, SCALE_UP, Slip
from gpuscale.specs.cluster import LevelSpec
from gpuscale.specs.gpu import GpuSpec

if TYPE_CHECKING:
    from gpuscale.presets.tables import LevelTable

LINK = "link_gb_per_s_per_gpu_per_direction"
DEFAULTED = (LINK, "hop_latency_us", "link_efficiency")
"""Numbers of a level that `path` stands for where the file leaves them out."""


@dataclass(frozen=True)
class Way:
    """A way that data takes from GPU to GPU, by the name of NCCL's transport.

    Attributes:
        title: what NCCL's log calls it (`NCCL_DEBUG=INFO`).
        fabrics: fabrics of the levels that it can stand for.
        hop_us: latency of a hop [us].
        efficiency: share of the wire rate that large transfers reach.
        source: where the two numbers come from.
    """

    title: str
    fabrics: tuple[str, ...]
    hop_us: float
    efficiency: float
    source: str


WAYS = {
    "nvlink-p2p": Way(
        "P2P/CUMEM or P2P/IPC over NVLink, xGMI or ICI", SCALE_UP, 1.0, 0.8,
        "guesstimate: 1 us from GPU to GPU; NCCL 2.30 src/graph/topo.h plans with 20 of 25 GB/s per NVLink",
    ),
    "pcie-p2p": Way(
        "P2P over PCIe switches alone (PIX, PXB)", ("pcie",), 2.0, 0.64,
        "guesstimate: 2 us; nccl-tests in AIConfigurator's kernel database (1.3.0rc20): two L40S reach 0.64 of x16",
    ),
    "pcie-p2p-host": Way(
        "P2P through host bridges and CPUs (PHB, NODE, SYS)", ("pcie",), 2.0, 0.42,
        "guesstimate: 2 us; SimuMax 1.2's system file of 8 x A100 PCIe: AllReduce 0.42 of 30 GB/s",
    ),
    "shm": Way(
        "SHM: copies through memory of the host", ("pcie",), 2.0, 0.4,
        "guesstimate: written and read once each; as SimuMax 1.2's 8 x A100 PCIe (0.37 to 0.45 of 30 GB/s)",
    ),
    "gdr": Way(
        "NET with GPUDirect RDMA: card and GPU talk past the host",
        ("infiniband", "roce", "efa", "slingshot"), 5.0, 0.96,
        "guesstimate: 5 us; NCCL 2.30 src/graph/topo.h plans a 400 Gbit/s card with 48 of 50 GB/s",
    ),
    "net": Way(
        "NET without GPUDirect: staged in memory of the host",
        ("infiniband", "roce", "efa", "slingshot"), 9.0, 0.8,
        "guesstimate: 5 us and two copies over PCIe of 2 us; a copy at each end",
    ),
    "sockets": Way(
        "NET/Socket: TCP through the kernel", ("eni", "ethernet", "infiniband", "roce"), 40.0, 0.38,
        "guesstimate: 40 us; 4.7 of 12.5 GB/s over TCP on one 100 Gbit/s card (GitHub, NVIDIA/nccl issue 398, 2020)",
    ),
}  # fmt: skip
"""`path` of a level -> the way it names, with the numbers that it stands for."""

NVLINK_EFFICIENCY = {"hopper": 0.824, "blackwell": 0.802, "blackwell-ultra": 0.802}
"""NCCL 2.30 src/graph/topo.h: 20.6 of 25 GB/s per NVLink on SM90, 40.1 of 50 on SM100; 20 of 25 (0.8) before."""

FABRIC_DEFAULTS = {"xgmi": (1.0, 0.72), "ici": (1.0, 0.9), "roce": (5.5, 0.93), "efa": (12.5, 0.88),
                   "slingshot": (4.5, 0.93)}  # fmt: skip
"""Hop [us] and efficiency where a fabric differs from what its way has: as the shipped presets, sources there."""

STAGED = ("net", "sockets")
"""Ways on which every byte crosses the PCIe uplink of the host twice in each direction: out and back to the card."""


def cards_per_gpu(table: LevelTable) -> float | None:
    """Return the network cards of one GPU: stated, or those behind a PCIe switch over its GPUs."""
    if table.nics_per_gpu is not None or not table.nics_per_pcie_switch or not table.gpus_per_pcie_switch:
        return table.nics_per_gpu
    return table.nics_per_pcie_switch / table.gpus_per_pcie_switch


def default_numbers(table: LevelTable, gpu: GpuSpec) -> dict[str, tuple[float, str]]:
    """Return key -> value and source of the numbers that the level's `path` stands for and the file leaves out."""
    if table.path is None:
        return {}
    way = WAYS[table.path]
    hop_us, efficiency = way.hop_us, way.efficiency
    source = way.source
    if table.path == "nvlink-p2p" and table.fabric == "nvlink":
        efficiency = NVLINK_EFFICIENCY.get(gpu.architecture, efficiency)
    elif table.path in {"nvlink-p2p", "gdr"} and table.fabric in FABRIC_DEFAULTS:
        hop_us, efficiency = FABRIC_DEFAULTS[table.fabric]
        source = f"guesstimate: as the shipped presets on {table.fabric}"
    found = {"hop_latency_us": (hop_us, source), "link_efficiency": (efficiency, source)}
    rate = _link_rate(table, gpu)
    if rate is not None:
        found[LINK] = rate
    stated = {key for key in DEFAULTED if getattr(table, key) is not None}
    text = f"path {table.path}: "
    return {key: (value, text + why) for key, (value, why) in found.items() if key not in stated}


def _link_rate(table: LevelTable, gpu: GpuSpec) -> tuple[float, str] | None:
    """Return what one GPU's way carries [GB/s] and why; None where the file does not say enough."""
    uplink = gpu.host_link_bytes_per_s / 1e9
    if table.fabric in SCALE_UP:
        return (gpu.link_egress_bytes_per_s / 1e9, f"all links of {gpu.name}") if gpu.links else None
    if table.fabric == "pcie":
        return uplink, f"the host link of {gpu.name}"
    cards = cards_per_gpu(table)
    if cards is None or table.nic_gbit_per_s is None:
        return None
    rate, why = cards * table.nic_gbit_per_s / 8, f"{cards:g} x {table.nic_gbit_per_s:g} Gbit/s per GPU"
    shared = uplink / 2 / max(table.gpus_per_pcie_switch or 1, 1)
    if table.path in STAGED and shared < rate:
        behind = f"{table.gpus_per_pcie_switch or 1} GPUs behind a PCIe uplink of {uplink:g} GB/s"
        return shared, f"{behind}, which each byte crosses twice"
    return rate, why


def behind_switches(table: LevelTable, level: LevelSpec, below: LevelSpec | None) -> list[LevelSpec]:
    """Return a level, and before it the PCIe switches that the file says are inside it.

    GPUs behind one switch have their links to each other; towards others they share the uplink of the switch.
    """
    behind, inside = table.gpus_per_pcie_switch or 0, below.gpus if below else 1
    if level.fabric != "pcie" or behind <= 1 or behind == level.gpus:
        return [level]
    uplinks = replace(level, switches=level.gpus // behind, switch_bytes_per_s=level.link_bytes_per_s)
    if behind == inside:
        return [uplinks]
    way, stated = WAYS["pcie-p2p"], table.link_efficiency
    efficiency = level.link_efficiency if stated is not None else way.efficiency
    switch = replace(level, name=f"{table.name}-switch"[:64], gpus=behind, path="pcie-p2p", link_efficiency=efficiency)
    return [switch, uplinks]


def wiring_slips(table: LevelTable, level: LevelSpec, levels: Sequence[LevelSpec], gpu: GpuSpec) -> Iterator[Slip]:
    """Yield what cannot be in how a level is wired; `levels` are those below it, innermost first."""
    yield from _topology_slips(table, levels, gpu)
    yield from _rail_slips(table, levels)
    yield from _path_slips(table)
    yield from _switch_slips(table, level, levels)


def _topology_slips(table: LevelTable, levels: Sequence[LevelSpec], gpu: GpuSpec) -> Iterator[Slip]:
    units = table.gpus // levels[-1].gpus if levels else table.gpus
    if table.topology in {"mesh", "torus", "dragonfly"} and table.switches:
        hint = "leave switches out: torus_shape or the global links say what it carries"
        yield Slip("switches", f"a {table.topology} has links between its units, not {table.switches} switches", hint)
    if (table.topology == "torus") != (table.torus_shape is not None):
        yield Slip("torus_shape", "a torus needs torus_shape, and nothing else has one",
                   'topology = "torus" with torus_shape = [16, 20, 28], neighbours first')  # fmt: skip
    elif table.torus_shape is not None and prod(table.torus_shape) != units:
        shape = " x ".join(str(length) for length in table.torus_shape)
        yield Slip("torus_shape", f"{shape} = {prod(table.torus_shape):,}, but {table.name} joins {units:,} units",
                   "the lengths of all axes multiply to the units of the level")  # fmt: skip
    key = "global_gb_per_s_per_group_per_direction"
    if (table.topology == "dragonfly") != (table.global_gb_per_s_per_group_per_direction is not None):
        yield Slip(key, f"a dragonfly needs {key}, and nothing else has it",
                   "GB/s that all global links of one group carry, one direction")  # fmt: skip
    elif table.topology == "dragonfly" and not levels:
        yield Slip("topology", "a dragonfly joins groups, and no level below describes one",
                   "write the group (its nodes under leaf and spine switches) as the level before")  # fmt: skip
    if table.minimal_share is not None and table.topology != "dragonfly":
        yield Slip("minimal_share", "only a dragonfly takes detours", "leave it out")
    if table.topology == "mesh" and (levels or gpu.links < table.gpus - 1):
        text = "the level joins units" if levels else f"{gpu.name} has {gpu.links} links for {table.gpus - 1} others"
        yield Slip("topology", f"no mesh of GPUs: {text}", "a mesh has a link from each GPU to every other")


def _rail_slips(table: LevelTable, levels: Sequence[LevelSpec]) -> Iterator[Slip]:
    rails = table.rails or "none"
    if rails != "none" and table.fabric not in NETWORKS:
        yield Slip("rails", f"{table.fabric} has no network cards", "rails are of network levels")
        return
    if table.pxn is not None and rails == "none":
        yield Slip("pxn", "without rails there is none to change", 'add rails = "optimised" or "only", or leave it out')
    networks = [level for level in levels if level.fabric in NETWORKS]
    if rails != "none" and any(level.rails == "none" for level in networks):
        yield Slip(
            "rails", f"{networks[-1].name} below joins the rails already", "rails begin at the first network level"
        )
    if networks and networks[-1].rails == "only" and rails != "only":
        yield Slip("rails", f"{networks[-1].name} below has rails that nothing joins, but {table.name} does",
                   'rails = "optimised" below says that a spine joins them')  # fmt: skip
    if table.pxn and (not levels or _domain(levels).fabric not in SCALE_UP):
        inside = _domain(levels).fabric if levels else "nothing"
        yield Slip("pxn", f"PXN goes over NVLink, but {inside} joins the GPUs of a node", "pxn = false")


def _domain(levels: Sequence[LevelSpec]) -> LevelSpec:
    inside = [level for level in levels if level.fabric not in NETWORKS]
    return inside[-1] if inside else levels[0]


def _path_slips(table: LevelTable) -> Iterator[Slip]:
    if table.path is not None and table.fabric not in WAYS[table.path].fabrics:
        fitting = [name for name, way in WAYS.items() if table.fabric in way.fabrics]
        yield Slip("path", f"{table.path} does not go over {table.fabric}", f"its ways are {', '.join(fitting)}")


def _switch_slips(table: LevelTable, level: LevelSpec, levels: Sequence[LevelSpec]) -> Iterator[Slip]:
    behind, cards = table.gpus_per_pcie_switch, table.nics_per_pcie_switch
    if behind is not None and table.fabric in SCALE_UP:
        yield Slip("gpus_per_pcie_switch", f"{table.fabric} does not pass PCIe switches",
                   "it belongs to a pcie level or the first network level")  # fmt: skip
        return
    if cards is not None and (behind is None or table.fabric not in NETWORKS):
        yield Slip("nics_per_pcie_switch", "cards behind a PCIe switch need a network level with gpus_per_pcie_switch",
                   "write both at the first network level")  # fmt: skip
    node = level.gpus if table.fabric == "pcie" else levels[-1].gpus if levels else level.gpus
    if behind is not None and node % behind:
        yield Slip("gpus_per_pcie_switch", f"{behind} GPUs per switch do not divide the {node} of a node",
                   "count the GPUs behind one PCIe switch")  # fmt: skip
    inside = levels[-1].gpus if levels else 1
    if behind is not None and table.fabric == "pcie" and (behind % inside or table.switches):
        text = (
            f"{table.switches} switches too" if table.switches else f"units of {inside} lie across switches of {behind}"
        )
        yield Slip("gpus_per_pcie_switch", f"{behind} GPUs per switch, but {text}", "say the PCIe switches in one way")
    stated = table.nics_per_gpu
    if cards is not None and behind and stated is not None and abs(stated - cards / behind) > 1e-9:
        yield Slip("nics_per_gpu", f"{stated:g} cards per GPU, but {cards} for {behind} GPUs behind a switch are "
                   f"{cards / behind:g}", "leave one of them out")  # fmt: skip


__all__ = [
    "DEFAULTED",
    "LINK",
    "WAYS",
    "behind_switches",
    "cards_per_gpu",
    "default_numbers",
    "wiring_slips",
]
