"""Facts and assumptions, put into the levels of a cluster file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.assume import (
    FABRIC_NODES,
    Like,
    choose_network_sister,
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
_ANOTHER_GPU = "give the GPU that it is with --gpu NAME"


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
    facts = _in_domain(draft, facts)
    _add_node(draft, facts, choice)
    _add_network(draft, facts, choice)
    _add_host(draft, facts)
    return draft


def _like(facts: Facts, choice: Choice, load: Callable[[str], ClusterSpec]) -> Like:
    nic = facts.nic_fabric.value if facts.nic_fabric else None
    network_sister = choose_network_sister(choice.gpu, nic)
    network = load(network_sister) if network_sister else None
    if choice.base is not None:
        return Like(choice.base, chosen=True, network=network)
    if facts.gpus is None and facts.device is None:
        what = facts.tiers.source if facts.tiers else facts.nics.source if facts.nics else facts.file
        raise InputError(
            f"describes a network, but no GPUs: nothing says what a node holds ({what})",
            place=facts.file,
            hint="add a file of a node (NCCL topology XML, nvidia-smi topo -m), or --base PRESET "
            "(`gpuscale clusters list`) for everything that the files leave open",
        )
    link = facts.link_fabric.value if facts.link_fabric else None
    return Like(load(choose_sister(choice.gpu, link, nic)), chosen=False, network=network)


def _in_domain(draft: Draft, facts: Facts) -> Facts:
    """Widen the facts of one host to the NVLink domain of --base, where that is made of such hosts: trays of a rack.

    Without --base, only say that there are such racks.
    """
    like, inner = draft.like.cluster, draft.like.cluster.levels[0]
    gpus, host = facts.gpus, like.host
    linked = facts.link_fabric is None or facts.link_fabric.value == inner.fabric
    if gpus is None or facts.host_gpus or host is None or not linked or not host.gpus == gpus.value < inner.gpus:
        return facts
    if not draft.like.chosen:
        draft.notes.append(f"{gpus.source}: a tray of {like.name}? --base {like.name} makes it one")
        return facts
    trays = inner.gpus // gpus.value
    draft.notes.append(
        f"{gpus.source}: taken as one of {trays} trays of {like.name}, whose links join {inner.gpus} GPUs"
    )
    return replace(
        facts,
        gpus=draft.like.stated(inner.gpus, f"{inner.name}.gpus"),
        host_gpus=gpus,
        nics=facts.nics and Stated(facts.nics.value * trays, f"{facts.nics.source}; {trays} trays"),
        island=None,
        switches=None,
    )


def _add_node(draft: Draft, facts: Facts, choice: Choice) -> None:
    """Add the level that links join, that which PCIe joins, or both.

    Raises:
        InputError: links that the GPU does not have.
    """
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
    gpu, usual = choice.gpu, draft.like.cluster.levels[0].fabric
    if facts.link_fabric is not None:
        fabric = facts.link_fabric.value
        if fabric not in {"pcie", gpu.link_name}:
            message = f"links of {fabric}, but {gpu.name} has {gpu.link_name}"
            raise InputError(message, place=facts.link_fabric.place, hint=_ANOTHER_GPU)
        if fabric == "pcie" and gpu.links and usual == gpu.link_name:
            without = f"without the {gpu.links} {gpu.link_name} links of {gpu.name}"
            draft.notes.append(f"{facts.link_fabric.source}: taken as it is, {without}")
        return fabric
    if facts.links is None and usual != gpu.link_name:
        return "pcie"
    draft.notes.append(f"no file lists {gpu.link_name} links; all {gpu.links} of {gpu.name} assumed")
    return gpu.link_name


def _linked_level(draft: Draft, facts: Facts, gpu: GpuSpec, fabric: str, gpus: Stated[int]) -> Level:
    links = facts.links or Stated(gpu.links, f"assumed: all links of {gpu.name}; no file lists them")
    if links.value > gpu.links:
        message = f"{links.value} links per GPU, but {gpu.name} has {gpu.links}"
        raise InputError(message, place=links.place, hint=_ANOTHER_GPU)
    if links.value < gpu.links:
        draft.notes.append(f"{links.source}: of the {gpu.links} that {gpu.name} has; taken as it is")
    rate = _link_rate(draft, facts, gpu)
    per_gpu = links.value * rate.value
    text = f"{links.source}; {links.value} x {rate.value:g} GB/s, {rate.source}"
    values: dict[str, Stated[Any]] = {"gpus": gpus, LINK: Stated(per_gpu, text)}
    if facts.links is not None:
        values["path"] = Stated("nvlink-p2p", facts.links.source)
    values |= _switches(draft, facts, fabric, gpus.value, per_gpu)
    reduces = fabric == "nvlink" and "switches" in values and gpu.architecture in _REDUCING
    how = f"assumed: NVSwitch of {gpu.architecture} adds up AllReduce payloads (NVLS)"
    none = "assumed: no NVSwitch of Hopper or later, so nothing adds up payloads"
    values["in_network_reduction"] = Stated(reduces, how if reduces else none)
    return _complete(draft, Level("node", fabric, values), 0)


def _switches(draft: Draft, facts: Facts, fabric: str, gpus: int, gb_per_s: float) -> dict[str, Stated[Any]]:
    """Return the switches of a level of `gpus` with links of `gb_per_s` each; none where GPUs are linked directly."""
    if facts.switches is not None and not facts.switches.value:
        return {}
    like = draft.like.cluster.levels[0]
    key = f"{like.name}.switches"
    if facts.switches is not None:
        count = facts.switches
        each = f"{count.source}; the GPUs' links spread over {count.value} switches"
        return _spread(count, each, gpus * gb_per_s)
    if like.switches and (like.fabric, like.gpus) == (fabric, gpus):
        share = gb_per_s * 1e9 / like.link_bytes_per_s
        rate = like.switch_bytes_per_s / 1e9 * min(share, 1.0)  # no more than the links that there are
        stated = draft.like.stated
        return {"switches": stated(like.switches, key), "switch_gb_per_s_per_direction": stated(rate, key)}
    if facts.switched is not None and facts.switched.value:
        count = draft.like.stated(like.switches or 1, key)
        return _spread(count, f"assumed: the links of {gpus} GPUs, {facts.switched.source}", gpus * gb_per_s)
    return {}


def _spread(count: Stated[int], source: str, gb_per_s: float) -> dict[str, Stated[Any]]:
    return {"switches": count, "switch_gb_per_s_per_direction": Stated(gb_per_s / count.value, source)}


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
    """Add latency and efficiency, which no file states; the level is the `index`-th of its fabric."""
    level.values["hop_latency_us"] = hop_latency_us(draft.like, level.fabric, index)
    level.values["link_efficiency"] = link_efficiency(draft.like, level.fabric, index)
    return level


def _add_network(draft: Draft, facts: Facts, choice: Choice) -> None:
    """Add the levels above the node; none where nothing says that there is a network.

    Raises:
        InputError: a network without cards or without their rate, or one that joins no two nodes.
    """
    node = draft.levels[-1].gpus
    cards = _cards(draft, facts, choice, node)
    if cards is None:
        _refuse_half_a_network(facts, choice)
        draft.notes.append(f"{facts.file}: no network cards for GPUs, so it is a single box")
        return
    within = len(draft.levels)
    for tier, gpus in _network_tiers(draft, facts, choice, node):
        _add_tier(draft, cards, tier, gpus, node)
    draft.extendable = len(draft.levels) > within
    if draft.extendable:
        _add_way(draft.levels[within], facts, cards, node)
    elif facts.tiers is not None:
        tier = facts.tiers.value[-1]
        message = f"its {tier.nodes} nodes hold less than two units of {node} GPUs, so no network joins any"
        hint = "name a cluster with smaller nodes with --base, or add a file of the cluster's own node"
        raise InputError(message, place=facts.tiers.place, hint=hint)


def _refuse_half_a_network(facts: Facts, choice: Choice) -> None:
    """Refuse nodes or switches without network cards: a single box would be another cluster than was asked for."""
    if facts.tiers is not None:
        message = f"describes a network ({facts.tiers.source}), but nothing says which cards a node has"
        if choice.nics == 0:
            message = f"describes a network ({facts.tiers.source}), but --nics 0 leaves the nodes without cards"
        hint = "give the cards that serve the GPUs of a node with --nics N --nic-gbit RATE, or a file of the node"
        raise InputError(message, place=facts.tiers.place, hint=hint)
    if choice.nodes is not None and choice.nodes > 1:
        raise InputError(
            f"{choice.nodes} nodes without a network: no file has network cards",
            place="--nodes",
            hint="say how many cards serve the GPUs of a node with --nics N",
        )


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
        hint = "add ibstat's output, --nic-gbit RATE, or --base PRESET; --nics 0 for a single box without a network"
        raise InputError("no file has the rate of the network cards", place=count.place, hint=hint)
    return _Cards(count, _real_rate(draft, rate), _card_fabric(draft, facts, first))


def _card_fabric(draft: Draft, facts: Facts, first: LevelSpec | None) -> str:
    if facts.nic_fabric is not None:
        return facts.nic_fabric.value
    fabric, like = (first.fabric, f", as {draft.like.cluster.name}") if first is not None else ("infiniband", "")
    draft.notes.append(f"no file names the kind of network; {fabric} assumed{like}")
    return fabric


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
    """Add one level of the network, unless it joins no two units of the level below."""
    below = draft.levels[-1]
    whole = gpus // below.gpus * below.gpus
    if whole < 2 * below.gpus:
        draft.notes.append(f"{tier.source}: {gpus} GPUs, less than two of {below.name} ({below.gpus}); left out")
        return
    if whole > MAX_GPUS:
        message = f"{tier.nodes:,} nodes are {whole:,} GPUs, at most {MAX_GPUS:,}"
        raise InputError(message, place=tier.source.split(": ")[0], hint="give the network of one cluster")
    if whole < gpus:
        draft.notes.append(f"{tier.source}: {gpus} GPUs, of which {whole} fill whole units of {below.name}")
    per_gpu = cards.count.value / node
    name = tier.name if tier.name not in {level.name for level in draft.levels} else f"{tier.name}-network"
    values: dict[str, Stated[Any]] = {
        "gpus": Stated(whole, tier.source),
        "nics_per_gpu": Stated(per_gpu, f"{cards.count.source}; {node} GPUs"),
        "nic_gbit_per_s": cards.gbit_per_s,
        LINK: Stated(per_gpu * cards.gbit_per_s.value / 8, _wire_source(cards)),
    }
    level = Level(name, cards.fabric, values)
    _add_switches(draft, level, tier)
    if level.egress_gb_per_s > below.egress_gb_per_s:
        _bound_by(draft, level, below)
    elif "nics_per_gpu" in below.values and "switches" not in values and not values[LINK].source.startswith(ASSUMED):
        text = f"assumed: non-blocking, as no file counts the ports between switches; {values[LINK].source}"
        values[LINK] = Stated(values[LINK].value, text)
    index = sum(other.fabric == cards.fabric for other in draft.levels)
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


def _wire_source(cards: _Cards) -> str:
    """Return the sources of a wire rate, each once; assumed where one of them is."""
    text = "; ".join(dict.fromkeys((cards.count.source, cards.gbit_per_s.source)))
    prefix = next((p for p in ("assumed: ", "guesstimate: ") if p in text), "")
    return text if text.startswith(prefix) else prefix + text


def _bound_by(draft: Draft, level: Level, below: Level) -> None:
    """Let a level carry no more than its GPUs get out of the level below; switches that then do not bind go."""
    most = below.egress_gb_per_s
    text = f"assumed: what a GPU gets out of {below.name} below; {level.values[LINK].source}"
    level.values[LINK] = Stated(most, text)
    draft.accepted.append(f"{level.name}.{LINK}")
    if "switches" in level.values and level.egress_gb_per_s >= most:
        del level.values["switches"], level.values["switch_gb_per_s_per_direction"]


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
