"""The levels inside a node: what links or PCIe join."""

from __future__ import annotations

from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.draft import LINK, Choice, Draft, Level, complete
from gpuscale.importers.facts import Facts, Stated
from gpuscale.specs.gpu import GpuSpec

_REDUCING = ("hopper", "blackwell", "blackwell-ultra")
_ANOTHER_GPU = "give the GPU that it is with --gpu NAME"


def add_node(draft: Draft, facts: Facts, choice: Choice) -> None:
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
    values |= _switches(draft, facts, fabric, gpus.value, per_gpu)
    reduces = fabric == "nvlink" and "switches" in values and gpu.architecture in _REDUCING
    how = f"assumed: NVSwitch of {gpu.architecture} adds up AllReduce payloads (NVLS)"
    none = "assumed: no NVSwitch of Hopper or later, so nothing adds up payloads"
    values["in_network_reduction"] = Stated(reduces, how if reduces else none)
    return complete(draft, Level("node", fabric, values), 0)


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
    return complete(draft, Level("node", "pcie", {"gpus": gpus, LINK: link, "in_network_reduction": none}), 0)
