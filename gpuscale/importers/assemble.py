"""Facts and assumptions, put into the levels of a cluster file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuscale.errors import InputError
from gpuscale.importers.assume import Like, choose_network_sister, choose_sister
from gpuscale.importers.draft import Choice, Draft
from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.network_levels import add_network
from gpuscale.importers.node_levels import add_node
from gpuscale.specs.cluster import ClusterSpec


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
    add_node(draft, facts, choice)
    add_network(draft, facts, choice)
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
