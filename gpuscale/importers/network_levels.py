"""The levels of the network that joins the nodes: cards, and the switches that a file or a preset knows of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.assume import FABRIC_NODES
from gpuscale.importers.draft import ASSUMED, LINK, Choice, Draft, Level, complete
from gpuscale.importers.facts import Facts, Stated, Tier
from gpuscale.presets.guards import NIC_GBIT_PER_S
from gpuscale.specs.cluster import MAX_GPUS, LevelSpec


def add_network(draft: Draft, facts: Facts, choice: Choice) -> None:
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
    if not draft.extendable and facts.tiers is not None:
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
        raise InputError(message, place=tier.source.split(": ")[0])
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
    draft.levels.append(complete(draft, level, index))


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
