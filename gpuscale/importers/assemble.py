"""Files of other tools into a cluster file: told apart, put together, filled in where none states it, written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import tomli_w

from gpuscale.arguments import public
from gpuscale.choices import MAX_GPUS
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import printable, reads, write_text
from gpuscale.importers import infiniband, nccl_xml, slurm, smi
from gpuscale.importers.facts import (
    GPU_LIST,
    IBNETDISCOVER,
    IBSTAT,
    NVLINK_STATUS,
    ROCM_TOPOLOGY,
    SLURM_CONF,
    SLURM_YAML,
    TOPO_MATRIX,
    Facts,
    SourceFile,
    Stated,
    Tier,
    merge,
    read_source,
    shown,
)
from gpuscale.presets.files import preset_name
from gpuscale.presets.guards import NIC_GBIT_PER_S
from gpuscale.presets.hardware import cluster_file, load_cluster, load_gpu, parse_cluster
from gpuscale.specs.cluster import IBVERBS, NETWORKS, ClusterSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec

MAX_SOURCE = 560
"""Characters of a source text; the cluster file takes 600."""

FABRIC_NODES = 128
"""Nodes of a network of which no file says the size."""

ASSUMED = ("assumed:", "guesstimate:")
"""How the source of a number begins that no file states."""

SISTERS = (
    "dgx-h100-superpod", "azure-ndv5", "aws-p5", "dgx-a100-superpod", "azure-ndv4", "azure-ndmv4", "aws-p4d",
    "h200-hgx", "aws-p5en", "b200-hgx", "b300-hgx", "gb200-nvl72", "gb300-nvl72", "h800-deepseek", "dgx1-v100",
    "mi250x", "mi300x", "mi325x", "mi355x", "gh200", "gh200-quad", "polaris", "box-a100-pcie-80gb",
    "box-h100-pcie-80gb", "box-l40s", "aws-g6e", "box-rtx-pro-6000",
)  # fmt: skip
"""Presets to borrow from when no base is given; of equally like ones the first."""

_USUAL = {
    "nvlink": (1.0, 0.8), "xgmi": (1.0, 0.72), "pcie": (2.0, 0.42), "infiniband": (5.0, 0.96), "roce": (5.5, 0.93),
    "efa": (12.5, 0.88), "eni": (40.0, 0.38), "slingshot": (6.0, 0.85), "ethernet": (40.0, 0.38),
}  # fmt: skip
"""Latency of a hop [us] and efficiency by fabric, as the presets have them: sources there."""

LINK = "link_gb_per_s_per_gpu_per_direction"
_SWITCH = "switch_gb_per_s_per_direction"
_BEHIND, _CARDS_BEHIND = "gpus_per_pcie_switch", "nics_per_pcie_switch"
_REDUCING = ("hopper", "blackwell", "blackwell-ultra", "rubin")
_ANOTHER_GPU = "name the GPU that it is: `gpu=NAME`"

Values = dict[str, Stated[Any]]


@dataclass
class Level:
    """One level under construction: key -> value with its source."""

    name: str
    fabric: str
    values: Values

    @property
    def gpus(self) -> int:
        """GPUs under one instance."""
        return int(self.values["gpus"].value)

    @property
    def egress_gb_per_s(self) -> float:
        """What one GPU sends across when all do [GB/s]."""
        link = float(self.values[LINK].value)
        if self.fabric == "pcie" and _BEHIND in self.values:
            return link / float(self.values[_BEHIND].value)
        if "switches" not in self.values:
            return link
        return min(link, float(self.values["switches"].value * self.values[_SWITCH].value) / self.gpus)


@dataclass
class Draft:
    """A cluster file under construction, and the clusters to borrow from."""

    gpu: GpuSpec
    nics: int | None  #: network cards of a node that serve its GPUs, where the user says so.
    nic_gbit_per_s: float | None  #: their rate, where the user says so.
    nodes: int | None  #: nodes of the network, where the user says so.
    like: ClusterSpec  #: says what the files leave open: the user's base, else the preset that is most alike.
    chosen: bool  #: `like` is the user's base.
    lender: ClusterSpec | None  #: preset to borrow the network's numbers from, where `like` has none of its kind.
    levels: list[Level] = field(default_factory=list)
    host: Values | None = None
    extendable: bool = False  #: whether the cluster may be widened, as its network goes on.
    notes: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)  #: numbers that the guards of a cluster file are to let pass.

    def borrow(self, value: Any, key: str, lender: ClusterSpec | None = None) -> Stated[Any]:
        """Return a value of `like` (or `lender`); its source repeats that of the preset."""
        cluster = lender or self.like
        how = "assumed: as the base" if self.chosen and lender is None else "guesstimate: as the sister preset"
        return Stated(value, f"{how} {cluster.name}: {cluster.sources.get(key, 'its file')}"[:MAX_SOURCE])

    def complete(self, level: Level) -> Level:
        """Add latency and efficiency, which no file states."""
        index = sum(other.fabric == level.fabric for other in self.levels) if level.fabric in NETWORKS else 0
        same, lender = _like_level(self.like, level.fabric, index), None
        if same is None and self.lender is not None:
            same, lender = _like_level(self.lender, level.fabric, index), self.lender
        usual = f"guesstimate: what gpuscale's presets have for {level.fabric}"
        numbers = _USUAL[level.fabric] if same is None else (same.hop_latency_s * 1e6, same.link_efficiency)
        for key, value in zip(("hop_latency_us", "link_efficiency"), numbers, strict=True):
            borrowed = same and self.borrow(value, f"{same.name}.{key}", lender)
            level.values[key] = borrowed or Stated(value, usual)
        return level

    @property
    def assumed(self) -> dict[str, str]:
        """Every number that no file states, as `level.key` -> source."""
        tables = [(level.name, level.values) for level in self.levels] + [("host", self.host or {})]
        return {
            f"{name}.{key}": stated.source
            for name, values in tables
            for key, stated in values.items()
            if stated.source.startswith(ASSUMED)
        }


def _like_level(cluster: ClusterSpec, fabric: str, index: int) -> LevelSpec | None:
    """Return the level of the same fabric to borrow from, the `index`-th (or last) of the network."""
    same = [level for level in cluster.levels if level.fabric == fabric]
    return same[min(index, len(same) - 1)] if same else None


def _networks(cluster: ClusterSpec) -> list[LevelSpec]:
    return [level for level in cluster.levels if level.fabric in NETWORKS]


def assemble(
    facts: Facts,
    gpu: GpuSpec,
    base: ClusterSpec | None,
    *,
    nics: int | None = None,
    nic_gbit_per_s: float | None = None,
    nodes: int | None = None,
) -> Draft:
    """Return the levels and the host of the cluster that the facts describe.

    Args:
        base: says what the files leave open.
        nics: network cards of a node that serve its GPUs; 0 for a box without a network.
        nic_gbit_per_s: rate of one of them.
        nodes: nodes of the network, where no file describes it.

    Raises:
        InputError: the files say too little (no GPUs), or what they say cannot be.
    """
    if base is None and facts.gpus is None and facts.device is None:
        what = facts.tiers.source if facts.tiers else facts.nics.source if facts.nics else facts.file
        base_hint = "`base=PRESET` (`gpuscale show clusters`) for everything that the files leave open"
        hint = f"add a file of a node (NCCL topology XML, nvidia-smi topo -m), or {base_hint}"
        message = f"describes a network, but no GPUs: nothing says what a node holds ({what})"
        raise InputError(message, place=facts.file, hint=hint)
    nic = facts.nic_fabric.value if facts.nic_fabric else None
    link = facts.link_fabric.value if facts.link_fabric else None
    sisters, likeness = list[ClusterSpec](), list[tuple[bool, bool, bool, bool]]()
    links = link or (gpu.link_name if gpu.links else "pcie")
    for name in SISTERS:
        with suppress(InputError):  # one that a user replaced by an unusable file is left out
            sister = load_cluster(name)
            net = nic is not None and nic in (level.fabric for level in _networks(sister)[:1])
            kind = sister.gpu.architecture == gpu.architecture
            likeness.append((sister.gpu.name == gpu.name, kind, sister.levels[0].fabric == links, net))
            sisters.append(sister)
    # numbers of a network of its kind around GPUs of its architecture, where the sister has another
    lender = next((sister for sister, (_, kind, _, net) in zip(sisters, likeness, strict=True) if kind and net), None)
    like = sisters[likeness.index(max(likeness))] if base is None else base
    draft = Draft(gpu, nics, nic_gbit_per_s, nodes, like, base is not None, lender, notes=list(facts.notes))
    facts = _in_domain(draft, facts)
    _add_node(draft, facts)
    _add_network(draft, facts)
    _add_host(draft, facts)
    return draft


def _in_domain(draft: Draft, facts: Facts) -> Facts:
    """Widen one host's facts to the base's NVLink domain, where that is made of such hosts (trays of a rack); without a
    base, only say so."""
    inner, host, gpus = draft.like.levels[0], draft.like.host, facts.gpus
    linked = facts.link_fabric is None or facts.link_fabric.value == inner.fabric
    if gpus is None or facts.host_gpus or host is None or not linked or not host.gpus == gpus.value < inner.gpus:
        return facts
    name = draft.like.name
    if not draft.chosen:
        draft.notes.append(f"{gpus.source}: a tray of {name}? name that as the base")
        return facts
    trays = inner.gpus // gpus.value
    draft.notes.append(f"{gpus.source}: taken as one of {trays} trays of {name}, whose links join {inner.gpus} GPUs")
    return replace(
        facts,
        gpus=draft.borrow(inner.gpus, f"{inner.name}.gpus"),
        host_gpus=gpus,
        nics=facts.nics and Stated(facts.nics.value * trays, f"{facts.nics.source}; {trays} trays"),
        island=None,
        switches=None,
    )


def _add_node(draft: Draft, facts: Facts) -> None:
    inner, gpu = draft.like.levels[0], draft.gpu
    gpus = facts.gpus or draft.borrow(inner.gpus, f"{inner.name}.gpus")
    if facts.link_fabric is not None:
        fabric = facts.link_fabric.value
        if fabric not in {"pcie", gpu.link_name}:
            message = f"links of {fabric}, but {gpu.name} has {gpu.link_name}"
            raise InputError(message, place=facts.link_fabric.place, hint=_ANOTHER_GPU)
        if fabric == "pcie" and gpu.links and inner.fabric == gpu.link_name:
            without = f"without the {gpu.links} {gpu.link_name} links of {gpu.name}"
            draft.notes.append(f"{facts.link_fabric.source}: taken as it is, {without}")
    elif facts.links is None and inner.fabric != gpu.link_name:
        fabric = "pcie"
    else:
        fabric = gpu.link_name
        draft.notes.append(f"no file lists {fabric} links; all {gpu.links} of {gpu.name} assumed")
    if fabric == "pcie":
        draft.levels.append(_pcie_level(draft, facts, gpus))
        return
    island = facts.island if facts.island and facts.island.value < gpus.value else None
    draft.levels.append(_linked_level(draft, facts, fabric, island or gpus))
    if island:
        draft.levels[0].name = "island"
        draft.levels.append(_pcie_level(draft, facts, gpus))
        joined = f"links join groups of {island.value}; PCIe joins these to {gpus.value} GPUs"
        draft.notes.append(f"{facts.file}: {joined}")


def _linked_level(draft: Draft, facts: Facts, fabric: str, gpus: Stated[int]) -> Level:
    gpu = draft.gpu
    links = facts.links or Stated(gpu.links, f"assumed: all links of {gpu.name}; no file lists them")
    if links.value > gpu.links:
        message = f"{links.value} links per GPU, but {gpu.name} has {gpu.links}"
        raise InputError(message, place=links.place, hint=_ANOTHER_GPU)
    if links.value < gpu.links:
        draft.notes.append(f"{links.source}: of the {gpu.links} that {gpu.name} has; taken as it is")
    rate = _link_rate(draft, facts)
    per_gpu = links.value * rate.value
    text = f"{links.source}; {links.value} x {rate.value:g} GB/s, {rate.source}"
    values: Values = {"gpus": gpus, LINK: Stated(per_gpu, text)}
    if facts.links is not None:
        values["path"] = Stated("nvlink-p2p", facts.links.source)
    values |= _switches(draft, facts, fabric, gpus.value, per_gpu)
    reduces = fabric == "nvlink" and "switches" in values and gpu.architecture in _REDUCING
    how = f"NVSwitch of {gpu.architecture} adds up AllReduce payloads (NVLS)"
    why = how if reduces else "no NVSwitch of Hopper or later, so no in-switch reduction"
    values["in_network_reduction"] = Stated(reduces, f"assumed: {why}")
    return draft.complete(Level("node", fabric, values))


def _link_rate(draft: Draft, facts: Facts) -> Stated[float]:
    name, known, stated = draft.gpu.name, draft.gpu.link_bytes_per_s / 1e9, facts.link_gb_per_s
    if stated is None:
        return Stated(known, f"the rate of {name}")
    ratio = stated.value / known
    if ratio > 1.1:
        message = f"{stated.value:g} GB/s per link, but {name} has {known:g} per direction"
        raise InputError(message, place=stated.place, hint="both directions for one? name the GPU: `gpu=NAME`")
    if ratio < 0.95:
        draft.notes.append(f"{stated.source}: below the {known:g} GB/s of {name}: taken as it is")
        return stated
    if stated.value != known:
        draft.notes.append(f"{stated.source}: the raw rate; {known:g} GB/s carry data ({name})")
    return Stated(known, f"{stated.source}, {known:g} of data")


def _switches(draft: Draft, facts: Facts, fabric: str, gpus: int, gb_per_s: float) -> Values:
    """Return the switches of a level of `gpus`, links of `gb_per_s` each; none of direct links."""
    like, count = draft.like.levels[0], facts.switches
    key = f"{like.name}.switches"
    if count is not None:
        if not count.value:
            return {}
        each = f"{count.source}; the GPUs' links spread over {count.value} switches"
    elif like.switches and (like.fabric, like.gpus) == (fabric, gpus):
        share = min(gb_per_s * 1e9 / like.link_bytes_per_s, 1.0)  # no more than the links that there are
        rate = like.switch_bytes_per_s / 1e9 * share
        return {"switches": draft.borrow(like.switches, key), _SWITCH: draft.borrow(rate, key)}
    elif facts.switched is not None and facts.switched.value:
        count = draft.borrow(like.switches or 1, key)
        each = f"assumed: the links of {gpus} GPUs, {facts.switched.source}"
    else:
        return {}
    return {"switches": count, _SWITCH: Stated(gpus * gb_per_s / count.value, each)}


def _pcie_level(draft: Draft, facts: Facts, gpus: Stated[int]) -> Level:
    gpu, most = draft.gpu, draft.gpu.host_link_bytes_per_s / 1e9
    link = facts.pcie_gb_per_s or Stated(most, f"assumed: the host link of {gpu.name}; no file has its speed and width")
    if link.value > most:
        link = Stated(most, f"{link.source}, of which {gpu.name} takes {most:g} GB/s")
    none = Stated(False, "assumed: PCIe switches do not reduce")
    values: Values = {"gpus": gpus, LINK: link, "in_network_reduction": none}
    if facts.way is not None:
        values["path"] = facts.way
    behind = facts.pcie_switch.value[0] if facts.pcie_switch is not None else 1
    inside = draft.levels[0].gpus if draft.levels else 1
    if facts.pcie_switch is not None and 1 < behind < gpus.value and gpus.value % behind == 0 and behind % inside == 0:
        values[_BEHIND] = Stated(behind, facts.pcie_switch.source)
    return draft.complete(Level("node", "pcie", values))


class _Cards(NamedTuple):
    nics: Stated[float]
    gbit_per_s: Stated[float]
    fabric: str


def _add_network(draft: Draft, facts: Facts) -> None:
    node, tiers = draft.levels[-1].gpus, facts.tiers
    cards = _cards(draft, facts, node)
    if cards is None:  # a single box, unless that is another cluster than was asked for
        if tiers is not None:
            message = f"describes a network ({tiers.source}), but nothing says which cards a node has"
            if draft.nics == 0:
                message = f"describes a network ({tiers.source}), but `nics=0` leaves the nodes without cards"
            hint = "give the cards that serve the GPUs of a node, `nics=N` and `nic_gbit_per_s=RATE`, or a file of it"
            raise InputError(message, place=tiers.place, hint=hint)
        if draft.nodes is not None and draft.nodes > 1:
            message = f"{draft.nodes} nodes without a network: no file has network cards"
            hint = "say how many cards serve the GPUs of a node: `nics=N`"
            raise InputError(message, field="nodes", hint=hint)
        draft.notes.append(f"{facts.file}: no network cards for GPUs, so it is a single box")
        return
    within = len(draft.levels)
    for tier, gpus in _network_tiers(draft, facts, node):
        _add_tier(draft, cards, tier, gpus, node)
    draft.extendable = len(draft.levels) > within
    if draft.extendable:
        _add_way(draft.levels[within], facts, cards, node)
    elif tiers is not None:
        message = f"its {tiers.value[-1].nodes} nodes hold fewer than two units of {node} GPUs: nothing to join"
        hint = "name a `base` with smaller nodes, or add a file of the cluster's own node"
        raise InputError(message, place=tiers.place, hint=hint)


def _cards(draft: Draft, facts: Facts, node: int) -> _Cards | None:
    first = next(iter(_networks(draft.like)), None)
    expected = facts.tiers is not None or draft.chosen
    count: Stated[float] | None = None
    if draft.nics is not None:
        count = Stated(draft.nics, "option nics")
    elif facts.nics is not None and (facts.nics.value or not expected):
        count = Stated(facts.nics.value, facts.nics.source)
    elif expected and first is not None:
        count = draft.borrow(first.nics_per_gpu * node, f"{first.name}.nics_per_gpu")
    if count is None or not count.value:
        return None
    rate: Stated[float] | None = facts.nic_gbit_per_s
    if draft.nic_gbit_per_s is not None:
        rate = Stated(draft.nic_gbit_per_s, "option nic_gbit_per_s")
    if (rate is None or (draft.chosen and rate.source.startswith("assumed:"))) and first is not None:
        value = first.link_bytes_per_s * 8e-9 / first.nics_per_gpu
        rate = draft.borrow(value, f"{first.name}.nic_gbit_per_s")
    if rate is None:
        hint = "add ibstat's output, `nic_gbit_per_s=RATE`, or `base=PRESET`; `nics=0` for a box without a network"
        raise InputError("no file has the rate of the network cards", place=count.place, hint=hint)
    rate = _real_rate(draft, rate)
    if facts.nic_fabric is not None:
        return _Cards(count, rate, facts.nic_fabric.value)
    fabric, like = (first.fabric, f", as {draft.like.name}") if first is not None else ("infiniband", "")
    draft.notes.append(f"no file names the kind of network; {fabric} assumed{like}")
    return _Cards(count, rate, fabric)


def _real_rate(draft: Draft, rate: Stated[float]) -> Stated[float]:
    """Return the rate as a card has it: some files give a little less (180 of 200 Gbit/s)."""
    for known in NIC_GBIT_PER_S:
        if 0.8 <= rate.value / known <= 1.01:
            if abs(rate.value / known - 1) <= 0.01:
                return Stated(float(known), rate.source)
            draft.notes.append(f"{rate.source}: taken as a card of {known} Gbit/s")
            return Stated(float(known), f"{rate.source}, taken as a card of {known} Gbit/s")
    rates = ", ".join(str(known) for known in NIC_GBIT_PER_S)
    raise InputError(f"there is no network card of {rate.value:g} Gbit/s", place=rate.place, hint=f"rates are {rates}")


def _network_tiers(draft: Draft, facts: Facts, node: int) -> list[tuple[Tier, int]]:
    like = draft.like
    if facts.tiers is not None:
        if draft.nodes is not None:
            message = f"{draft.nodes} nodes, but a file states the network"
            raise InputError(message, field="nodes", hint=f"leave it out: {facts.tiers.source}")
        host = node  # GPUs of one node of Slurm (a host), which may be a part of the NVLink domain
        if facts.host_gpus:
            host = facts.host_gpus.value
        elif like.host is not None and facts.gpus is None and like.node_gpus == node:
            host = like.host.gpus
        stated = (tier._replace(source=f"{tier.source}; {host} GPUs each") for tier in facts.tiers.value)
        return [(tier, tier.nodes * host) for tier in stated]
    found = []
    if draft.nodes is None and draft.chosen:
        for level in _networks(draft.like):  # for as many nodes of this size, their switches in proportion
            nodes, rate = level.gpus // like.node_gpus, level.switch_bytes_per_s / 1e9 * node / like.node_gpus
            source = draft.borrow(0, f"{level.name}.gpus").source
            found.append((Tier(level.name, nodes, level.switches, rate, source), nodes * node))
    if found:
        return found
    nodes = draft.nodes or FABRIC_NODES
    text = "option nodes" if draft.nodes else f"guesstimate: {FABRIC_NODES} nodes; no file states how many there are"
    return [(Tier("fabric", nodes, 0, 0.0, text), nodes * node)]


def _add_tier(draft: Draft, cards: _Cards, tier: Tier, gpus: int, node: int) -> None:
    """Add one level of the network, unless it joins no two units of the level below."""
    below = draft.levels[-1]
    whole = gpus // below.gpus * below.gpus
    if whole < 2 * below.gpus:
        draft.notes.append(f"{tier.source}: {gpus} GPUs, fewer than two of {below.name} ({below.gpus}); left out")
        return
    if whole > MAX_GPUS:
        message = f"{tier.nodes:,} nodes are {whole:,} GPUs, at most {MAX_GPUS:,}"
        raise InputError(message, place=tier.source.split(": ")[0], hint="give the network of one cluster")
    if whole < gpus:
        draft.notes.append(f"{tier.source}: {gpus} GPUs, of which {whole} fill whole units of {below.name}")
    per_gpu = cards.nics.value / node
    wire = "; ".join(dict.fromkeys((cards.nics.source, cards.gbit_per_s.source)))  # each once; assumed where one is
    prefix = next((mark + " " for mark in ASSUMED if mark + " " in wire), "")
    wire = wire if wire.startswith(prefix) else prefix + wire
    values: Values = {
        "gpus": Stated(whole, tier.source),
        "nics_per_gpu": Stated(per_gpu, f"{cards.nics.source}; {node} GPUs"),
        "nic_gbit_per_s": cards.gbit_per_s,
        LINK: Stated(per_gpu * cards.gbit_per_s.value / 8, wire),
    }
    taken = {level.name for level in draft.levels}
    level = Level(f"{tier.name}-network" if tier.name in taken else tier.name, cards.fabric, values)
    carried, most = whole * per_gpu * cards.gbit_per_s.value / 8, below.egress_gb_per_s
    if tier.switches * tier.switch_gb_per_s > 1.5 * carried:
        more = f"more than the GPUs' cards ({carried:g} GB/s), so switches do not bind; left out"
        draft.notes.append(f"{tier.source}: {more}")
    elif tier.switches and tier.switch_gb_per_s:
        values["switches"] = Stated(tier.switches, tier.source)
        values[_SWITCH] = Stated(tier.switch_gb_per_s, tier.source)
    if level.egress_gb_per_s > most:
        values[LINK] = Stated(most, f"assumed: what a GPU gets out of {below.name} below; {wire}")
        draft.accepted.append(f"{level.name}.{LINK}")
        if "switches" in values and level.egress_gb_per_s >= most:  # then they do not bind
            del values["switches"], values[_SWITCH]
    elif "nics_per_gpu" in below.values and "switches" not in values and not wire.startswith(ASSUMED):
        text = f"assumed: non-blocking, as no file counts the ports between switches; {wire}"
        values[LINK] = Stated(values[LINK].value, text)
    index = sum(other.fabric == cards.fabric for other in draft.levels)
    like = _like_level(draft.like, cards.fabric, index)
    values["in_network_reduction"] = Stated(False, "assumed: no file states in-network reduction (SHARP)")
    if draft.chosen and like is not None and like.in_network_reduction and "switches" in values:
        values["in_network_reduction"] = draft.borrow(True, f"{like.name}.in_network_reduction")
    draft.levels.append(draft.complete(level))


def _add_way(level: Level, facts: Facts, cards: _Cards, node: int) -> None:
    if facts.nic_way is not None and level.fabric in IBVERBS:
        level.values["path"] = facts.nic_way
    elif level.fabric in {"eni", "ethernet"}:
        level.values["path"] = Stated("sockets", f"assumed: NCCL goes over {level.fabric} by TCP")
    if facts.pcie_switch is None:
        return
    gpus, nics = facts.pcie_switch.value
    if nics and node % gpus == 0 and abs(nics / gpus - cards.nics.value / node) < 1e-9:
        level.values[_BEHIND] = Stated(gpus, facts.pcie_switch.source)
        level.values[_CARDS_BEHIND] = Stated(nics, facts.pcie_switch.source)


def _add_host(draft: Draft, facts: Facts) -> None:
    """Add what a host's GPUs share; memory is borrowed, in proportion to the GPUs."""
    like = draft.like.host
    if like is None:
        return
    inner = draft.levels[0]
    whole = max(level.gpus for level in draft.levels if level.fabric in {"pcie", inner.fabric})
    gpus = facts.host_gpus or (facts.gpus and Stated(whole, facts.gpus.source)) or draft.borrow(like.gpus, "host.gpus")
    if inner.gpus % gpus.value and gpus.value % inner.gpus:
        return
    uplink = facts.gpus_per_uplink
    if uplink is None or gpus.value % uplink.value:
        fits = like.gpus_per_uplink if gpus.value % like.gpus_per_uplink == 0 else 1
        uplink = draft.borrow(fits, "host.gpus_per_uplink")
    share = gpus.value / like.gpus
    draft.host = {
        "gpus": gpus,
        "gpus_per_uplink": uplink,
        "memory_gib": draft.borrow(like.memory_bytes / 2**30 * share, "host.memory_gib"),
        "memory_gb_per_s": draft.borrow(like.memory_bytes_per_s / 1e9 * share, "host.memory_gb_per_s"),
    }


def _cluster_data(draft: Draft, title: str, gpu: str) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        rounded = value if isinstance(value, bool | int | str) else float(f"{value:.6g}")
        return int(rounded) if isinstance(rounded, float) and rounded.is_integer() else rounded

    def table(values: Values) -> dict[str, Any]:
        sources = {key: stated.source[:MAX_SOURCE] for key, stated in values.items()}
        return {**{key: plain(stated.value) for key, stated in values.items()}, "sources": sources}

    levels = [{"name": level.name, "fabric": level.fabric, **table(level.values)} for level in draft.levels]
    data: dict[str, Any] = {"title": title, "gpu": gpu, "extendable": draft.extendable, "levels": levels}
    if draft.host is not None:
        data["host"] = table(draft.host)
    if draft.accepted:
        data["guards"] = {"accept": draft.accepted, "reason": "the level below carries less than the network cards"}
    return data


def _cluster_text(data: Mapping[str, Any], parts: Sequence[Facts], draft: Draft, gpu_source: str) -> str:
    comments = ["Written by `gpuscale calibrate topology`; every number names its source.", "", "Read:"]
    comments += [f"  {facts.file}: {facts.kind}" for facts in parts]
    comments += [f"  GPU: {gpu_source}"]
    if draft.notes:
        comments += ["Noted:", *(f"  {note}" for note in draft.notes)]
    if draft.assumed:
        comments += ["Assumed, as no file says it (see the sources below): ", f"  {', '.join(draft.assumed)}"]
    lines = []
    for comment in comments:
        indent = "  " if comment.startswith("  ") else ""
        pieces = wrap(printable(comment.strip()), 110, initial_indent=indent, subsequent_indent=indent + "  ")
        lines += [f"# {piece}".rstrip() for piece in pieces or [""]]
    return "\n".join(lines) + "\n\n" + tomli_w.dumps(data)


MAX_FILES = 16

_FOREIGN = (
    (r"\s*VM_hostname\s", "SuperBench's list of hosts and port GUIDs: it has neither rates nor switches"),
    (r"\| NVIDIA-SMI ", "the overview of `nvidia-smi` without its GPUs"),
    (r"\s*Machine \(.*total\)|\s*NUMANode L#", "hwloc's lstopo, which lists no GPU links"),
    (r"\s*NodeName=\S", "Slurm's nodes (slurm.conf, scontrol): give its topology.conf"),
)
_HINT = (
    "it reads NCCL's topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, `nvidia-smi -L`, `rocm-smi "
    "--showtopo`, Slurm's topology.conf, topology.yaml and `scontrol show topology`, `ibstat`, `ibnetdiscover`"
)


@displayed
@dataclass(frozen=True)
class ImportedCluster:
    """A cluster file that was checked and not yet written."""

    text: str  #: the TOML file.
    data: Mapping[str, Any] = field(repr=False)  #: its content.
    cluster: ClusterSpec  #: what it means, through the same checks as any cluster file.
    read: Mapping[str, str]  #: file -> what kind it is.
    notes: tuple[str, ...]  #: what was left out or read in a way worth knowing.
    assumed: Mapping[str, str]  #: number (`node.hop_latency_us`) -> source, of each that no file states.

    def write(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            InputError: it cannot be written.
        """
        write_text(path, self.text)


@public
@reads("topology")
def import_cluster(
    paths: Sequence[Path],
    *,
    gpu: str | Path | GpuSpec | None = None,
    base: str | Path | ClusterSpec | None = None,
    nics: int | None = None,
    nic_gbit_per_s: float | None = None,
    nodes: int | None = None,
    name: str | None = None,
    output: Path | None = None,
) -> ImportedCluster:
    """Read files of one cluster and return the cluster file that they make.

    Args:
        paths: NCCL topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s` or `-L`, `rocm-smi --showtopo`, Slurm's
            topology.conf or topology.yaml, `scontrol show topology`, `ibstat`, `ibnetdiscover`; told apart by content,
            at most one of each kind.
        gpu: a GPU's name, alias or file, where the files do not name it (or name it wrongly).
        base: a cluster's name or file, for everything that the files leave open.
        nics: network cards of a node that serve its GPUs.
        nic_gbit_per_s: rate of one of them [Gbit/s].
        nodes: nodes of the network, where no file describes it.
        name: title of the cluster.
        output: where the file is going to be; a GPU file is named from its folder.

    Raises:
        InputError: a file is unreadable or of no known kind, files contradict each other, or they do not say enough.
    """
    if not 1 <= len(paths) <= MAX_FILES:
        raise InputError(f"{len(paths)} files", place="FILE", hint=f"give 1 to {MAX_FILES}")
    stems = [path.name for path in paths]
    names = [shown(path.name if stems.count(path.name) == 1 else str(path), 80) for path in paths]
    parts = [_read_facts(read_source(path, called)) for path, called in zip(paths, names, strict=True)]
    facts = merge(parts)
    gpu, base = preset_name(gpu, load_gpu), preset_name(base, load_cluster)
    loaded = load_cluster(base) if base is not None else None
    spec, reference, source = _gpu(facts, gpu, base, loaded)
    draft = assemble(facts, spec, loaded, nics=nics, nic_gbit_per_s=nic_gbit_per_s, nodes=nodes)
    _note_gpu(draft.notes, facts, gpu, spec, source)
    if name is not None and (not name.strip() or len(name) > 200 or not name.isprintable()):
        raise InputError(f"{shown(name)!r} is not a title", field="name", hint="give 1 to 200 letters")
    title = name or f"{draft.levels[-1].gpus:,} x {spec.title}, imported from {facts.file}"[:200]
    target = output or Path("cluster.toml")
    if _is_path(reference) and not Path(reference).is_absolute():
        reference = Path(os.path.relpath(reference, target.parent)).as_posix()
    data = _cluster_data(draft, title, reference)
    text = _cluster_text(data, parts, draft, source)
    try:
        cluster = parse_cluster(text, target)  # through the guards that every cluster file passes
    except InputError as error:
        message = f"the files make a cluster that is not possible: {error.message}"
        hints = [(error.hint or "").split("; if it is right")[0], "`gpu`, `nics` or `base` may say it better"]
        raise InputError(message, place=facts.file, hint="; ".join(filter(None, hints))) from None
    read = {part.file: part.kind for part in parts}
    return ImportedCluster(text, data, cluster, read, tuple(draft.notes), draft.assumed)


_TELLING = {
    TOPO_MATRIX: (smi.MATRIX_HEADER, smi.parse_matrix),
    NVLINK_STATUS: (smi.LISTED_GPU, smi.parse_listing),
    GPU_LIST: (smi.OVERVIEW_GPU, smi.parse_overview),
    ROCM_TOPOLOGY: (smi.TITLE, smi.parse_topology),
    SLURM_CONF: (slurm.CONF_LINE, slurm.parse_conf),
    SLURM_YAML: (slurm.YAML_LINE, slurm.parse_yaml),
    IBSTAT: (infiniband.IBSTAT_CARD, infiniband.parse_ibstat),
    IBNETDISCOVER: (infiniband.SUBNET_DEVICE, infiniband.parse_subnet),
}
"""Kind of file -> a line that tells it, and what reads it."""


def _read_facts(source: SourceFile) -> Facts:
    """Return what a file states; its kind shows in a telling line."""
    start = source.text.lstrip()
    if start.startswith("<"):
        return nccl_xml.parse(source)
    if start.startswith(".TH "):
        raise source.error(1, "a manual page, not a file of the kind that it describes", _HINT)
    found: dict[str, int] = {}
    for number, line in enumerate(source.lines, 1):
        for kind, (pattern, _) in _TELLING.items():
            if kind not in found and pattern.match(line):
                found[kind] = number
    if any(smi.TABLES.match(line) for line in source.lines):
        found.pop(TOPO_MATRIX, None)  # its tables have a header like that of the matrix
    if len(found) > 1:
        (first, line_of_first), (second, line_of_second) = list(found.items())[:2]
        message = f"holds {first} (line {line_of_first}) and {second} (line {line_of_second})"
        raise source.error(line_of_second, message, "save each in a file of its own, and give both")
    if found:
        return _TELLING[next(iter(found))][1](source)
    lines = list(enumerate(source.lines[:200], 1))
    tables = (smi.TABLES, "tables of an AMD tool without the kinds of links: give `rocm-smi --showtopo`")
    foreign = (
        (number, what) for pattern, what in (*_FOREIGN, tables) for number, line in lines if re.match(pattern, line)
    )
    begin = next((number for number, line in enumerate(source.lines, 1) if line.strip()), 1)
    what = f"not a known kind of file; it begins {shown(start.split(chr(10))[0], 40)!r}"
    raise source.error(*next(foreign, (begin, what)), _HINT)


def _gpu(facts: Facts, given: str | None, base: str | None, cluster: ClusterSpec | None) -> tuple[GpuSpec, str, str]:
    if given is not None:
        gpu = load_gpu(given)
        return gpu, given if _is_path(given) else gpu.name, f"{gpu.name}, by the option gpu"
    stated = facts.device
    if stated is not None and stated.value.preset is None:
        hint = "name the nearest GPU (`gpuscale show hardware`) or your own GPU file: `gpu=NAME`"
        raise InputError(f"gpuscale has no preset of {stated.value.label[:80]}", place=stated.place, hint=hint)
    if stated is not None:
        name = stated.value.preset or ""
        if not stated.value.exact and facts.links is not None and (name, facts.links.value) == ("h100-sxm-80gb", 8):
            name = "h800-sxm-80gb"  # the one Hopper module with 8 links
        gpu = load_gpu(name)
        if stated.value.exact:
            return gpu, name, f"{name}, by {stated.source}"
        if cluster is None or cluster.gpu.architecture != gpu.architecture:
            assumed = f"assumed for {stated.value.label} ({stated.source}); the option gpu names another"
            return gpu, name, f"{name}, {assumed}"
    if cluster is not None and base is not None:
        file = cluster_file(base)
        path, reference = file.path, str(file.data.get("gpu", cluster.gpu.name))
        called = str(path.parent / reference) if _is_path(reference) else cluster.gpu.name
        return cluster.gpu, called, f"{cluster.gpu.name}, as the base {cluster.name}"
    if facts.gpus is None and facts.links is None:  # a network alone: `assemble` says what is missing
        return load_gpu("h100-sxm-80gb"), "h100-sxm-80gb", "none"
    count = f"{facts.gpus.value} GPUs" if facts.gpus else "GPUs"
    links = f" with {facts.links.value} links each" if facts.links else ""
    hint = "add `gpu=NAME` (`gpuscale show hardware`), `base=PRESET`, or a file that names it (nvidia-smi -L)"
    place = facts.gpus.place if facts.gpus else facts.file
    raise InputError(f"{count}{links}, but no file names their model", place=place, hint=hint)


def _is_path(name: str) -> bool:
    return name.lower().endswith(".toml")


def _note_gpu(notes: list[str], facts: Facts, given: str | None, gpu: GpuSpec, source: str) -> None:
    if facts.device is None:
        return
    stated, place = facts.device.value, facts.device.source
    if given is None and not stated.exact:
        notes.append(f"GPU: {source}")
    if given is not None and stated.exact and stated.preset != gpu.name:
        notes.append(f"{place}; the option gpu names {gpu.name} instead")
    if stated.sm_count and stated.sm_count != gpu.sm_count:
        notes.append(f"{place}: {stated.sm_count} compute units, {gpu.name} has {gpu.sm_count}")
