"""Facts and assumptions, put into the levels of a cluster file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.assume import (
    FABRIC_NODES,
    Like,
    choose_sister,
    hop_latency_us,
    link_efficiency,
)
from gpuscale.importers.facts import Facts, Stated, Tier
from gpuscale.presets.guards import NIC_GBIT_PER_S
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec

ASSUMED = ("assumed:", "guesstimate:")
"""How the source of a number begins that no file states."""

LINK = "link_gb_per_s_per_gpu_per_direction"
_BEHIND, _CARDS_BEHIND = "gpus_per_pcie_switch", "nics_per_pcie_switch"
_REDUCING = ("hopper", "blackwell", "blackwell-ultra")


@dataclass(frozen=True)
class Choice:
    """What the user says beside the files; `gpu_source` says where the GPU comes from."""

    gpu: GpuSpec
    gpu_source: str
    base: ClusterSpec | None = None
    nics: int | None = None
    nic_gbit_per_s: float | None = None
    nodes: int | None = None


@dataclass
class Level:
    """One level under construction: key -> value with its source."""

    name: str
    fabric: str
    values: dict[str, Stated[Any]]

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
        switches = self.values["switches"].value * self.values["switch_gb_per_s_per_direction"].value
        return min(link, float(switches) / self.gpus)


@dataclass
class Draft:
    """A cluster file under construction."""

    levels: list[Level]
    host: dict[str, Stated[Any]] | None
    extendable: bool
    like: Like
    notes: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)


def assemble(facts: Facts, choice: Choice, load: Callable[[str], ClusterSpec]) -> Draft:
    """Return the levels and the host of the cluster that the facts describe.

    Args:
        load: returns a cluster preset by name.

    Raises:
        InputError: the files say too little (no GPUs), or what they say cannot be.
    """
    like = _like(facts, choice, load)
    draft = Draft([], None, extendable=False, like=like, notes=list(facts.notes))
    _add_node(draft, facts, choice)
    _add_network(draft, facts, choice)
    _add_host(draft, facts)
    return draft


def _like(facts: Facts, choice: Choice, load: Callable[[str], ClusterSpec]) -> Like:
    if choice.base is not None:
        return Like(choice.base, chosen=True)
    if facts.gpus is None and facts.device is None:
        what = facts.tiers.source if facts.tiers else facts.nics.source if facts.nics else facts.file
        raise InputError(
            f"describes a network, but no GPUs: nothing says what a node holds ({what})",
            place=facts.file,
            hint="add a file of a node (NCCL topology XML, nvidia-smi topo -m), or --base PRESET "
            "(`gpuscale clusters list`) for everything that the files leave open",
        )
    link = facts.link_fabric.value if facts.link_fabric else None
    nic = facts.nic_fabric.value if facts.nic_fabric else None
    return Like(load(choose_sister(choice.gpu, link, nic)), chosen=False)


def _add_node(draft: Draft, facts: Facts, choice: Choice) -> None:
    like, gpu = draft.like, choice.gpu
    inner = like.cluster.levels[0]
    gpus = facts.gpus or like.stated(inner.gpus, f"{inner.name}.gpus")
    fabric = _node_fabric(draft, facts, choice)
    island = facts.island.value if facts.island else gpus.value
    if fabric == "pcie":
        draft.levels.append(_pcie_level(draft, facts, gpu, gpus))
        return
    joined = facts.island if facts.island is not None and island < gpus.value else gpus
    draft.levels.append(_linked_level(draft, facts, gpu, fabric, joined))
    if island < gpus.value:
        draft.levels[0].name = "island"
        draft.levels.append(_pcie_level(draft, facts, gpu, gpus))
        draft.notes.append(f"{facts.file}: links join groups of {island}; PCIe joins these to {gpus.value} GPUs")


def _node_fabric(draft: Draft, facts: Facts, choice: Choice) -> str:
    if facts.link_fabric is not None:
        fabric = facts.link_fabric.value
        if fabric not in {"pcie", choice.gpu.link_name}:
            message = f"links of {fabric}, but {choice.gpu.name} has {choice.gpu.link_name}"
            raise InputError(message, place=facts.link_fabric.place, hint="give the GPU that it is with --gpu NAME")
        return str(fabric)
    if facts.links is None and draft.like.cluster.levels[0].fabric != choice.gpu.link_name:
        return "pcie"
    draft.notes.append(
        f"no file lists {choice.gpu.link_name} links; all {choice.gpu.links} of {choice.gpu.name} assumed"
    )
    return choice.gpu.link_name


def _linked_level(draft: Draft, facts: Facts, gpu: GpuSpec, fabric: str, gpus: Stated[int]) -> Level:
    links = facts.links or Stated(gpu.links, f"assumed: all links of {gpu.name}; no file lists them")
    if links.value > gpu.links:
        message = f"{links.value} links per GPU, but {gpu.name} has {gpu.links}"
        raise InputError(message, place=links.place, hint="give the GPU that it is with --gpu NAME")
    rate = _link_rate(draft, facts, gpu)
    text = f"{links.source}; {links.value} x {rate.value:g} GB/s, {rate.source}"
    values: dict[str, Stated[Any]] = {"gpus": gpus, LINK: Stated(links.value * rate.value, text)}
    if facts.links is not None:
        values["path"] = Stated("nvlink-p2p", facts.links.source)
    per_node = gpus.value * links.value * rate.value
    like_level = draft.like.cluster.levels[0]
    if facts.switches is not None and facts.switches.value:
        count = facts.switches
        each = f"{count.source}; the GPUs' links spread over {count.value} switches"
        values |= {"switches": count, "switch_gb_per_s_per_direction": Stated(per_node / count.value, each)}
    elif (
        facts.switches is None and like_level.switches and (like_level.fabric, like_level.gpus) == (fabric, gpus.value)
    ):
        key = f"{like_level.name}.switches"
        share = links.value * rate.value * 1e9 / like_level.link_bytes_per_s
        rate_gb = like_level.switch_bytes_per_s / 1e9 * min(share, 1.0)  # no more than the links that there are
        values |= {
            "switches": draft.like.stated(like_level.switches, key),
            "switch_gb_per_s_per_direction": draft.like.stated(rate_gb, key),
        }
    reduces = fabric == "nvlink" and "switches" in values and gpu.architecture in _REDUCING
    how = f"assumed: NVSwitch of {gpu.architecture} adds up AllReduce payloads (NVLS)"
    none = "assumed: no NVSwitch of Hopper or later, so nothing adds up payloads"
    values["in_network_reduction"] = Stated(reduces, how if reduces else none)
    return _complete(draft, Level("node", fabric, values), 0)


def _link_rate(draft: Draft, facts: Facts, gpu: GpuSpec) -> Stated[float]:
    known = gpu.link_bytes_per_s / 1e9
    stated = facts.link_gb_per_s
    if stated is None:
        return Stated(known, f"the rate of {gpu.name}")
    ratio = stated.value / known
    if ratio > 1.1:
        message = f"{stated.value:g} GB/s per link, but {gpu.name} has {known:g} per direction"
        raise InputError(message, place=stated.place, hint="both directions for one? give the GPU with --gpu NAME")
    if ratio >= 0.95:
        if stated.value != known:
            draft.notes.append(f"{stated.source}: the raw rate; {known:g} GB/s carry data ({gpu.name})")
        return Stated(known, f"{stated.source}, {known:g} of data")
    draft.notes.append(f"{stated.source}: below the {known:g} GB/s of {gpu.name}: taken as it is")
    return stated


def _pcie_level(draft: Draft, facts: Facts, gpu: GpuSpec, gpus: Stated[int]) -> Level:
    most = gpu.host_link_bytes_per_s / 1e9
    link = facts.pcie_gb_per_s or Stated(most, f"assumed: the host link of {gpu.name}; no file has its speed and width")
    if link.value > most:
        link = Stated(most, f"{link.source}, of which {gpu.name} takes {most:g} GB/s")
    none = Stated(False, "assumed: PCIe switches do not add up payloads")
    values: dict[str, Stated[Any]] = {"gpus": gpus, LINK: link, "in_network_reduction": none}
    if facts.way is not None:
        values["path"] = facts.way
    behind = facts.pcie_switch.value[0] if facts.pcie_switch is not None else 1
    inside = draft.levels[0].gpus if draft.levels else 1
    if facts.pcie_switch is not None and 1 < behind < gpus.value and gpus.value % behind == 0 and behind % inside == 0:
        values[_BEHIND] = Stated(behind, facts.pcie_switch.source)
    return _complete(draft, Level("node", "pcie", values), 0)


def _complete(draft: Draft, level: Level, index: int) -> Level:
    level.values["hop_latency_us"] = hop_latency_us(draft.like, level.fabric, index)
    level.values["link_efficiency"] = link_efficiency(draft.like, level.fabric, index)
    return level


def _add_network(draft: Draft, facts: Facts, choice: Choice) -> None:
    node = draft.levels[-1].gpus
    cards = _cards(draft, facts, choice, node)
    if cards is None:
        if choice.nodes is not None and choice.nodes > 1:
            raise InputError(f"{choice.nodes} nodes without a network: no file has network cards", place="--nodes",
                             hint="say how many cards serve the GPUs of a node with --nics N")  # fmt: skip
        draft.notes.append(f"{facts.file}: no network cards for GPUs, so it is a single box")
        return
    draft.extendable = True
    within = len(draft.levels)
    for tier, gpus in _network_tiers(draft, facts, choice, node):
        _add_tier(draft, cards, tier, gpus, node)
    if len(draft.levels) > within:
        _add_way(draft.levels[within], facts, cards, node)
    if len(draft.levels) == within and facts.tiers is not None:
        message = (
            f"its {facts.tiers.value[-1].nodes} nodes hold less than two units of {node} GPUs, so no network joins any"
        )
        raise InputError(message, place=facts.tiers.place, hint="a larger --base unit? give the cluster's own node")


@dataclass(frozen=True)
class _Cards:
    """Network cards of one node."""

    count: Stated[float]
    gbit_per_s: Stated[float]
    fabric: str


def _cards(draft: Draft, facts: Facts, choice: Choice, node: int) -> _Cards | None:
    """Return the cards that serve the GPUs of a node; None for a node without."""
    networks = draft.like.networks()
    first = networks[0] if networks else None
    expected = facts.tiers is not None or choice.base is not None
    count: Stated[float] | None = None
    if choice.nics is not None:
        count = Stated(choice.nics, "option --nics") if choice.nics else None
    elif facts.nics is not None and (facts.nics.value or not expected):
        count = Stated(facts.nics.value, facts.nics.source) if facts.nics.value else None
    elif expected and first is not None:
        count = draft.like.stated(first.nics_per_gpu * node, f"{first.name}.nics_per_gpu")
    if count is None:
        return None
    rate: Stated[float] | None = facts.nic_gbit_per_s
    if choice.nic_gbit_per_s is not None:
        rate = Stated(choice.nic_gbit_per_s, "option --nic-gbit")
    borrowed = rate is None or (rate.source.startswith("assumed:") and draft.like.chosen)
    if borrowed and first is not None:
        value = first.link_bytes_per_s * 8e-9 / first.nics_per_gpu
        rate = draft.like.stated(value, f"{first.name}.nic_gbit_per_s")
    if rate is None:
        hint = "add ibstat's output, --nic-gbit RATE, or --base PRESET"
        raise InputError("no file has the rate of the network cards", place=count.place, hint=hint)
    fabric = facts.nic_fabric.value if facts.nic_fabric else first.fabric if first is not None else "infiniband"
    if facts.nic_fabric is None:
        draft.notes.append(f"no file names the kind of network; {fabric} assumed, as {draft.like.cluster.name}")
    return _Cards(count, _real_rate(draft, rate), fabric)


def _real_rate(draft: Draft, rate: Stated[float]) -> Stated[float]:
    """Return the rate as a network card has it: some files give a little less (180 of 200 Gbit/s)."""
    for known in NIC_GBIT_PER_S:
        if 0.8 <= rate.value / known <= 1.01:
            if abs(rate.value / known - 1) > 0.01:
                draft.notes.append(f"{rate.source}: taken as a card of {known} Gbit/s")
                return Stated(float(known), f"{rate.source}, taken as a card of {known} Gbit/s")
            return Stated(float(known), rate.source)
    rates = ", ".join(str(known) for known in NIC_GBIT_PER_S)
    raise InputError(f"there is no network card of {rate.value:g} Gbit/s", place=rate.place, hint=f"rates are {rates}")


def _network_tiers(draft: Draft, facts: Facts, choice: Choice, node: int) -> list[tuple[Tier, int]]:
    """Return the network's levels, each with its GPUs."""
    if facts.tiers is not None:
        if choice.nodes is not None:
            raise InputError(f"{choice.nodes} nodes, but a file states the network", place="--nodes",
                             hint=f"leave it out: {facts.tiers.source}")  # fmt: skip
        host = facts.host_gpus.value if facts.host_gpus else _host_gpus(draft, facts, node)
        return [
            (replace(tier, source=f"{tier.source}; {host} GPUs each"), tier.nodes * host) for tier in facts.tiers.value
        ]
    if choice.nodes is None and choice.base is not None and draft.like.networks():
        return [_borrowed(draft, level, node) for level in draft.like.networks()]
    nodes = choice.nodes or FABRIC_NODES
    text = "option --nodes" if choice.nodes else f"guesstimate: {FABRIC_NODES} nodes; no file says how many there are"
    return [(Tier("fabric", nodes, 0, 0.0, text), nodes * node)]


def _borrowed(draft: Draft, level: LevelSpec, node: int) -> tuple[Tier, int]:
    """Return a network level of --base for as many nodes of this size, its switches in proportion."""
    own = draft.like.cluster.node_gpus
    nodes = level.gpus // own
    source = draft.like.stated(0, f"{level.name}.gpus").source
    return Tier(level.name, nodes, level.switches, level.switch_bytes_per_s / 1e9 * node / own, source), nodes * node


def _host_gpus(draft: Draft, facts: Facts, node: int) -> int:
    """Return the GPUs of one node of Slurm (a host), which may be a part of the NVLink domain."""
    host = draft.like.cluster.host
    domain = facts.gpus is None and draft.like.cluster.node_gpus == node
    return host.gpus if host is not None and domain else node


def _add_tier(draft: Draft, cards: _Cards, tier: Tier, gpus: int, node: int) -> None:
    below = draft.levels[-1]
    gpus = gpus // below.gpus * below.gpus
    if gpus < 2 * below.gpus:
        return
    if gpus > MAX_GPUS:
        message = f"{tier.nodes:,} nodes are {gpus:,} GPUs, at most {MAX_GPUS:,}"
        raise InputError(message, place=tier.source.split(": ")[0])
    per_gpu = cards.count.value / node
    wire = per_gpu * cards.gbit_per_s.value / 8
    text = f"{cards.count.source}; {cards.gbit_per_s.source}"
    prefix = next((p for p in ("assumed: ", "guesstimate: ") if p in text), "")
    text = text if text.startswith(prefix) else prefix + text
    name = tier.name if tier.name not in {level.name for level in draft.levels} else f"{tier.name}-network"
    index = sum(level.fabric == cards.fabric for level in draft.levels)
    values: dict[str, Stated[Any]] = {
        "gpus": Stated(gpus, tier.source),
        "nics_per_gpu": Stated(per_gpu, f"{cards.count.source}; {node} GPUs"),
        "nic_gbit_per_s": cards.gbit_per_s,
        LINK: Stated(wire, text),
    }
    level = Level(name, cards.fabric, values)
    _add_switches(draft, level, tier)
    if level.egress_gb_per_s > below.egress_gb_per_s:
        values[LINK] = Stated(below.egress_gb_per_s, f"assumed: what a GPU gets out of {below.name} below; {text}")
        draft.accepted.append(f"{name}.{LINK}")
    elif "nics_per_gpu" in below.values and "switches" not in values and not text.startswith(ASSUMED):
        values[LINK] = Stated(wire, f"assumed: non-blocking, as no file counts the ports between switches; {text}")
    values["in_network_reduction"] = _reduction(draft, level, index)
    draft.levels.append(_complete(draft, level, index))


def _add_way(level: Level, facts: Facts, cards: _Cards, node: int) -> None:
    """Say at the first network level how data reaches the cards, where a file does."""
    if facts.nic_way is not None and level.fabric in {"infiniband", "roce"}:
        level.values["path"] = facts.nic_way
    elif level.fabric in {"eni", "ethernet"}:
        level.values["path"] = Stated("sockets", f"assumed: NCCL goes over {level.fabric} by TCP")
    if facts.pcie_switch is None:
        return
    gpus, nics = facts.pcie_switch.value
    if nics and node % gpus == 0 and abs(nics / gpus - cards.count.value / node) < 1e-9:
        level.values[_BEHIND] = Stated(gpus, facts.pcie_switch.source)
        level.values[_CARDS_BEHIND] = Stated(nics, facts.pcie_switch.source)


def _add_switches(draft: Draft, level: Level, tier: Tier) -> None:
    """Add a tier's switches, unless they carry far more than the cards: then they do not bind."""
    if not tier.switches or not tier.switch_gb_per_s:
        return
    wire = level.gpus * float(level.values[LINK].value)
    rate = tier.switch_gb_per_s
    if tier.switches * rate > 1.5 * wire:
        draft.notes.append(
            f"{tier.source}: more than the GPUs' cards ({wire:g} GB/s), so switches do not bind; left out"
        )
        return
    level.values["switches"] = Stated(tier.switches, tier.source)
    level.values["switch_gb_per_s_per_direction"] = Stated(rate, tier.source)


def _reduction(draft: Draft, level: Level, index: int) -> Stated[bool]:
    like = draft.like.level(level.fabric, index)
    if draft.like.chosen and like is not None and like.in_network_reduction and "switches" in level.values:
        return draft.like.stated(True, f"{like.name}.in_network_reduction")
    return Stated(False, "assumed: no file says that the switches add up payloads (SHARP)")


def _add_host(draft: Draft, facts: Facts) -> None:
    """Add what a host's GPUs share; memory is borrowed, in proportion to the GPUs."""
    like = draft.like.cluster.host
    if like is None:
        return
    inner = draft.levels[0].gpus
    whole = max(level.gpus for level in draft.levels if level.fabric in {"pcie", draft.levels[0].fabric})
    gpus = facts.host_gpus or (facts.gpus and Stated(whole, facts.gpus.source))
    if gpus is None:
        gpus = draft.like.stated(like.gpus, "host.gpus")
    if inner % gpus.value and gpus.value % inner:
        return
    share = gpus.value / like.gpus
    uplink = facts.gpus_per_uplink
    if uplink is None or gpus.value % uplink.value:
        fits = like.gpus_per_uplink if gpus.value % like.gpus_per_uplink == 0 else 1
        uplink = draft.like.stated(fits, "host.gpus_per_uplink")
    draft.host = {
        "gpus": gpus,
        "gpus_per_uplink": uplink,
        "memory_gib": draft.like.stated(like.memory_bytes / 2**30 * share, "host.memory_gib"),
        "memory_gb_per_s": draft.like.stated(like.memory_bytes_per_s / 1e9 * share, "host.memory_gb_per_s"),
    }
