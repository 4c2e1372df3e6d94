"""GPU and cluster files: `load_gpu` and `load_cluster` turn them into specs. Every number has its unit in its key and
an entry in a `sources` table (docs/hardware.md). `path` of `[[levels]]` names a way of the data as NCCL's log does, and
stands for usual numbers where the file gives none."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from gpuscale.arguments import public
from gpuscale.choices import MAX_GPUS
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import is_there, reads
from gpuscale.presets.files import (
    Document,
    KeyPath,
    card_named,
    known_table,
    means_preset,
    parse_toml,
    preset_files,
    preset_names,
    read_toml,
    remembered,
    resolve_preset,
)
from gpuscale.presets.guards import Slip, gpu_slips, host_slips, level_slips, refuse
from gpuscale.presets.tables import Table, made, sources_of
from gpuscale.specs import cluster as specs
from gpuscale.specs.cluster import INSIDE, NETWORKS, SCALE_UP, WAN, LevelSpec
from gpuscale.specs.fields import Sources, Text
from gpuscale.specs.gpu import PRECISIONS, GpuSpec, KernelSpec, PeakFlops
from gpuscale.units import GB, GBIT, US

_KNOWN = known_table("hardware")

# -- A box of cards: the cluster that the name of a GPU means, where nothing else is said of the machine. --

_BOX = _KNOWN["box"]


def is_card(gpu: GpuSpec) -> bool:
    """Whether a GPU sits in a PCIe slot, beside others or joined to one of them by an NVLink bridge."""
    return gpu.host_link_name in _BOX["host_memory"] and (not gpu.links or gpu.bridged_gpus > 0)


def box_text(gpu: GpuSpec, reference: str, *, pairs: bool = False) -> str:
    """Return the cluster file of a box of eight cards (`is_card`) in PCIe slots, in `pairs` joined by NVLink bridges;
    `reference` is how it names them.

    Raises:
        InputError: no bridge joins such cards.
    """
    if pairs and not gpu.bridged_gpus:
        raise InputError(f"no NVLink bridge joins cards of {gpu.title}", field="cluster", hint="leave out `-pairs`")
    bridges = ", joined by NVLink bridges" if pairs else ", no NVLink bridges" if gpu.links else ""
    generation, cards, level = f"PCIe {gpu.host_link_name[-1]}.0", _BOX["gpus"], _BOX["level"].format
    text = f'title = "One box of {cards} x {gpu.title} on {generation}{bridges}"\ngpu = "{reference}"\n'
    text += "extendable = false\n"
    if pairs:
        why, how = f"each bridge joins {gpu.bridged_gpus} cards", "the bridge"
        text += level(name="pair", fabric="nvlink", gpus=gpu.bridged_gpus, path="nvlink-p2p", why=why, how=how)
    path, how = "pcie-p2p-host", "cards reach each other through the CPUs"
    if not gpu.pcie_peers:
        path, how = "shm", gpu.sources["pcie_peers"]
    why = f"guesstimate: {cards} double-width cards fit a 4U server"
    text += level(name="node", fabric="pcie", gpus=cards, path=path, why=why, how=how)
    rate, why = _BOX["host_memory"][gpu.host_link_name]
    return text + str(_BOX["host"].format(gpus=cards, rate=rate, why=why))


BY_PATH = ("link_bytes_per_s", "hop_latency_s", "link_efficiency")
"""Numbers of a level that `path` stands for where the file leaves them out."""

LEVEL = Table(
    LevelSpec,
    optional=(*BY_PATH, "switches", "switch_bytes_per_s"),
    unless=dict.fromkeys(BY_PATH, ("path",)),
    sources=(Sources, ...),
)


class Way(NamedTuple):
    """A way that data takes from GPU to GPU, by the name of NCCL's transport."""

    title: str  #: what NCCL's log calls it (`NCCL_DEBUG=INFO`).
    fabrics: tuple[str, ...]  #: fabrics of the levels that it can stand for.
    hop_us: float  #: latency of a hop [us].
    efficiency: float  #: share of the wire rate that large transfers reach.
    source: str  #: where the two numbers come from.


WAYS = {name: Way(**way) for name, way in _KNOWN["ways"].items()}
"""`path` of a level -> the way it names, with the numbers that it stands for."""

FABRIC_DEFAULTS, WAN_EFFICIENCY = _KNOWN["fabrics"], _KNOWN["wan_efficiency"]

STAGED = ("net", "sockets")
"""Ways on which every byte crosses the PCIe uplink of the host twice in each direction: out and back to the card."""


def add_level(
    document: Document, place: KeyPath, levels: list[LevelSpec], gpu: GpuSpec, *, joins: int = 0
) -> dict[str, str]:
    """Append what the `[[levels]]` at `place` means to the levels below it, and return the sources of its numbers.
    Where it joins pools, so many of them (`joins`), it may carry more than the slowest of them sends.

    Raises:
        InputError: a number missing or without a source, or one that looks like a slip.
    """
    stated = LEVEL.read(document, place)
    name, sources = stated["name"], stated.pop("sources")
    if stated["fabric"] == WAN:
        refuse(document, place, _wan_slips(stated, joins), prefix=f"{name}.")
    level, defaults = _level(document, place, stated, levels, gpu, joins)
    switches = ("switches", "switch_bytes_per_s")  # without any, neither needs a source
    numbers = [field for field in stated if field not in {"name", "fabric", *switches}]
    of_switches = switches if level.switches and level.fabric != WAN else ()
    found = sources_of(document, place, sources, LEVEL.keys([*numbers, *of_switches]))
    below = levels[-1] if levels else None
    if joins and below is not None:
        below = replace(below, link_bytes_per_s=max(below.link_bytes_per_s, level.egress_bytes_per_s))
    wiring = (*_topology_slips(level, levels, gpu), *_rail_slips(level, stated, levels))
    slips = (*wiring, *_way_slips(level, stated, levels), *level_slips(level, stated, below, gpu))
    refuse(document, place, slips, prefix=f"{name}.")
    for one in _behind_switches(level, stated, levels[-1] if levels else None):
        if one.name in (known.name for known in levels):
            raise document.error((*place, "name"), f"a second level called {one.name!r}", "give each its own name")
        levels.append(one)
    found.update(zip(LEVEL.keys(defaults), (source for _, source in defaults.values()), strict=True))
    return {f"{name}.{key}": source for key, source in found.items()}


def _level(
    document: Document, place: KeyPath, stated: Mapping[str, Any], levels: Sequence[LevelSpec], gpu: GpuSpec, joins: int
) -> tuple[LevelSpec, dict[str, tuple[float, str]]]:
    """Return a level, and field -> value and source of the numbers that its `path` stands for."""
    path = stated.get("path")
    if path is not None and path not in WAYS:
        raise document.error((*place, "path"), f"path = {path[:40]!r}: should be one of {', '.join(WAYS)}")
    given = {"nics_per_gpu": _cards_per_gpu(stated) or 1.0}
    if stated["fabric"] == WAN:  # a GPU may have the lines of its site to itself as far as its own network carries
        given |= {"link_bytes_per_s": levels[-1].egress_bytes_per_s, "switches": joins}
        given["switch_bytes_per_s"] = stated["wan_bytes_per_s"]
    if "global_bytes_per_s" in stated and levels:
        given["global_bytes_per_s"] = stated["global_bytes_per_s"] / levels[-1].gpus  # of a group, over its GPUs
    if stated.get("rails", "none") == "none":
        given["pxn"] = False
    elif "pxn" not in stated:
        given["pxn"] = bool(levels) and _domain(levels).fabric in SCALE_UP
    defaults = _default_numbers(stated, gpu) if path else {}
    numbers = {name: value for name, (value, _) in defaults.items()}
    if "link_bytes_per_s" not in {*stated, *numbers, *given}:  # `path` stands for it where it knows the cards
        hint = "nics_per_gpu and nic_gbit_per_s say it too; see docs/hardware.md"
        message = f"key {LEVEL.keys(BY_PATH[:1])[0]!r} of the level {stated['name']} is missing"
        raise document.error(place, message, hint)
    return LevelSpec(**{"switches": 0, "switch_bytes_per_s": 0.0, **numbers, **stated, **given}), defaults


def _cards_per_gpu(stated: Mapping[str, Any]) -> float | None:
    """Return the network cards of one GPU: stated, or those behind a PCIe switch over its GPUs."""
    behind = stated.get("nics_per_pcie_switch"), stated.get("gpus_per_pcie_switch")
    if "nics_per_gpu" in stated or None in behind:
        return stated.get("nics_per_gpu")
    return behind[0] / behind[1]  # type: ignore[operator]


def _default_numbers(stated: Mapping[str, Any], gpu: GpuSpec) -> dict[str, tuple[float, str]]:
    path, fabric = stated["path"], stated["fabric"]
    way = WAYS[path]
    hop_us, efficiency, source = way.hop_us, way.efficiency, way.source
    if path == "nvlink-p2p" and fabric == "nvlink":
        efficiency = _KNOWN["nvlink_efficiency"].get(gpu.architecture, efficiency)
    elif fabric == WAN:
        far_us = stated["round_trip_s"] / 2 / US
        hop_us, efficiency = hop_us + far_us, WAN_EFFICIENCY[path]
        source = f"guesstimate: half of the round trip and {way.hop_us:g} us; {efficiency:g} of long lines"
    elif path in {"nvlink-p2p", "gdr"} and fabric in FABRIC_DEFAULTS:
        hop_us, efficiency = FABRIC_DEFAULTS[fabric]
        source = f"guesstimate: as the shipped presets on {fabric}"
    found = {"hop_latency_s": (hop_us * US, source), "link_efficiency": (efficiency, source)}
    rate = _link_rate(stated, gpu)
    if rate is not None:
        found["link_bytes_per_s"] = rate
    return {name: (value, f"path {path}: {why}") for name, (value, why) in found.items() if name not in stated}


def _link_rate(stated: Mapping[str, Any], gpu: GpuSpec) -> tuple[float, str] | None:
    """Return what one GPU's way carries [bytes/s] and why; None where the file does not say enough."""
    uplink, fabric = gpu.host_link_bytes_per_s, stated["fabric"]
    if fabric in SCALE_UP:
        return (gpu.link_egress_bytes_per_s, f"all links of {gpu.name}") if gpu.links else None
    if fabric == "pcie":
        return uplink, f"the host link of {gpu.name}"
    cards = _cards_per_gpu(stated)
    if cards is None or "nic_bytes_per_s" not in stated:
        return None
    card = stated["nic_bytes_per_s"]
    rate, why = cards * card, f"{cards:g} x {card / GBIT:g} Gbit/s per GPU"
    behind = stated.get("gpus_per_pcie_switch", 1)
    shared = uplink / 2 / behind
    if stated["path"] in STAGED and shared < rate:
        return shared, f"{behind} GPUs behind a PCIe uplink of {uplink / GB:g} GB/s, which each byte crosses twice"
    return rate, why


def _behind_switches(level: LevelSpec, stated: Collection[str], below: LevelSpec | None) -> list[LevelSpec]:
    """Return a level, and before it the PCIe switches that the file says are inside it: GPUs behind one have their
    links to each other, and share its uplink towards others."""
    behind, inside = level.gpus_per_pcie_switch, below.gpus if below else 1
    if level.fabric != "pcie" or behind <= 1 or behind == level.gpus:
        return [level]
    uplinks = replace(level, switches=level.gpus // behind, switch_bytes_per_s=level.link_bytes_per_s)
    if behind == inside:
        return [uplinks]
    efficiency = level.link_efficiency if "link_efficiency" in stated else WAYS["pcie-p2p"].efficiency
    switch = replace(level, name=f"{level.name}-switch"[:64], gpus=behind, path="pcie-p2p", link_efficiency=efficiency)
    return [switch, uplinks]


def _topology_slips(level: LevelSpec, levels: Sequence[LevelSpec], gpu: GpuSpec) -> Iterator[Slip]:
    units = level.gpus // levels[-1].gpus if levels else level.gpus
    topology, shape, groups = level.topology, level.torus_shape, "global_gb_per_s_per_group_per_direction"
    if topology in {"mesh", "torus", "dragonfly"} and level.switches:
        hint = "leave switches out: torus_shape or the global links say what it carries"
        yield "switches", f"a {topology} has links between its units, not {level.switches} switches", hint
    if (topology == "torus") != bool(shape):
        hint = 'topology = "torus" with torus_shape = [16, 20, 28], neighbours first'
        yield "torus_shape", "a torus needs torus_shape, and nothing else has one", hint
    elif shape and prod(shape) != units:
        axes = " x ".join(str(length) for length in shape)
        text = f"{axes} = {prod(shape):,}, but {level.name} joins {units:,} units"
        yield "torus_shape", text, "the lengths of all axes multiply to the units of the level"
    if (topology == "dragonfly") != bool(level.global_bytes_per_s):
        hint = "GB/s that all global links of one group carry, one direction"
        yield groups, f"a dragonfly needs {groups}, and nothing else has it", hint
    elif topology == "dragonfly" and not levels:
        hint = "write the group (its nodes under leaf and spine switches) as the level before"
        yield "topology", "a dragonfly joins groups, and no level below describes one", hint
    if level.minimal_share is not None and topology != "dragonfly":
        yield "minimal_share", "only a dragonfly takes detours", "leave it out"
    if topology == "mesh" and (levels or gpu.links < level.gpus - 1):
        text = "the level joins units" if levels else f"{gpu.name} has {gpu.links} links for {level.gpus - 1} others"
        yield "topology", f"no mesh of GPUs: {text}", "a mesh has a link from each GPU to every other"


def _wan_slips(stated: Mapping[str, Any], joins: int) -> Iterator[Slip]:
    if not joins:
        yield "fabric", "long lines join sites, and each site is one of the [[pools]]", "add pools, or another fabric"
    for key, name in (("wan_gbit_per_s", "wan_bytes_per_s"), ("round_trip_ms", "round_trip_s")):
        if name not in stated:
            hint = "wan_gbit_per_s = 400 (one site, one direction, all its GPUs) and round_trip_ms = 30"
            yield key, f"long lines need {key}", hint
    if stated.get("path") not in WAN_EFFICIENCY:
        yield "path", "how do the data travel?", f"its ways are {', '.join(WAN_EFFICIENCY)}"
    own = ("name", "fabric", "gpus", "path", "wan_bytes_per_s", "round_trip_s", "link_efficiency")
    for other in stated:
        if other not in own and stated[other]:  # no reduction and no rails may be stated too
            yield other, "long lines have none", "wan_gbit_per_s and round_trip_ms say what they carry; leave it out"


def _rail_slips(level: LevelSpec, stated: Mapping[str, Any], levels: Sequence[LevelSpec]) -> Iterator[Slip]:
    rails = level.rails
    if rails != "none" and level.fabric not in NETWORKS:
        yield ("rails", f"{level.fabric} has no network cards", "rails are of network levels")
        return
    if "pxn" in stated and rails == "none":
        yield ("pxn", "without rails there is none to change", 'add rails = "optimised" or "only", or leave it out')
    networks = [one for one in levels if one.fabric in NETWORKS]
    if rails != "none" and any(one.rails == "none" for one in networks):
        yield ("rails", f"{networks[-1].name} below joins the rails already", "rails begin at the first network level")
    if networks and networks[-1].rails == "only" and rails != "only":
        text = f"{networks[-1].name} below has rails that nothing joins, but {level.name} does"
        yield "rails", text, 'rails = "optimised" below says that a spine joins them'
    if stated.get("pxn") and (not levels or _domain(levels).fabric not in SCALE_UP):
        inside = _domain(levels).fabric if levels else "nothing"
        yield "pxn", f"PXN goes over NVLink, but {inside} joins the GPUs of a node", "pxn = false"


def _domain(levels: Sequence[LevelSpec]) -> LevelSpec:
    inside = [level for level in levels if level.fabric in INSIDE]
    return inside[-1] if inside else levels[0]


def _way_slips(level: LevelSpec, stated: Mapping[str, Any], levels: Sequence[LevelSpec]) -> Iterator[Slip]:
    if level.path and level.fabric not in WAYS[level.path].fabrics:
        fitting = [name for name, way in WAYS.items() if level.fabric in way.fabrics]
        yield "path", f"{level.path} does not go over {level.fabric}", f"its ways are {', '.join(fitting)}"
    behind, cards, pcie = level.gpus_per_pcie_switch, level.nics_per_pcie_switch, level.fabric == "pcie"
    if behind and level.fabric in SCALE_UP:
        hint = "it belongs to a pcie level or the first network level"
        yield "gpus_per_pcie_switch", f"{level.fabric} does not pass PCIe switches", hint
        return
    if cards and (not behind or level.fabric not in NETWORKS):
        text = "cards behind a PCIe switch need a network level with gpus_per_pcie_switch"
        yield "nics_per_pcie_switch", text, "write both at the first network level"
    node = levels[-1].gpus if levels and not pcie else level.gpus
    if behind and node % behind:
        text = f"{behind} GPUs per switch do not divide the {node} of a node"
        yield "gpus_per_pcie_switch", text, "count the GPUs behind one PCIe switch"
    inside = levels[-1].gpus if levels else 1
    if behind and pcie and (behind % inside or level.switches):
        lie = f"units of {inside} lie across switches of {behind}"
        text = f"{level.switches} switches too" if level.switches else lie
        yield "gpus_per_pcie_switch", f"{behind} GPUs per switch, but {text}", "say the PCIe switches in one way"
    own = stated.get("nics_per_gpu")
    if cards and behind and own is not None and abs(own - cards / behind) > 1e-9:
        text = f"{own:g} cards per GPU, but {cards} for {behind} GPUs behind a switch are {cards / behind:g}"
        yield "nics_per_gpu", text, "leave one of them out"


_Tables = tuple[dict[str, Any], ...]

KERNELS = Table(KernelSpec, sources=(Sources, ...))
GPU = Table(
    GpuSpec,
    without=("name", "peak_flops_per_s"),
    unless={"kernels_like": ("kernels",)},
    inner={"kernels": KERNELS},
    guards=(dict[str, Any], None),
    kernels=(dict[str, Any], None),
    kernels_like=(Text, None),
    **{f"peak_{precision}_tflops": (PeakFlops, None) for precision in PRECISIONS},  # type: ignore[arg-type]
)
HOST = Table(specs.HostSpec, optional=("gpus_per_uplink",), sources=(Sources, ...))
CURVE = Table(specs.CalibrationSpec, optional=("stride",))
POOL = Table(
    specs.PoolSpec,
    inner={"levels": LEVEL, "host": HOST},
    gpus=(specs.Gpus, ...),
    cluster=(Text, None),
    gpu=(Text, None),
    levels=(Annotated[_Tables, Field(max_length=8)], None),
    host=(dict[str, Any], None),
    sources=(Sources, ...),
)
CLUSTER = Table(
    specs.ClusterSpec,
    without=("name", "sources", "rank_overhead_s", "mixture", "sharp", "nvls"),
    unless={"gpu": ("pools",)},
    inner={"pools": POOL, "levels": LEVEL, "host": HOST, "calibration": CURVE},
    gpu=(Text, None),
    pools=(Annotated[_Tables, Field(max_length=16)], None),
    levels=(Annotated[_Tables, Field(min_length=1, max_length=8)], ...),
    host=(dict[str, Any], None),
    guards=(dict[str, Any], None),
    calibration=(Annotated[_Tables, Field(max_length=specs.MAX_CURVES)], None),
)

_POOL = re.compile(r"(..+):([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
"""A cluster and one of its pools; a single letter before the colon is a drive."""


@public
@reads("gpu")
def load_gpu(name_or_path: str | Path | GpuSpec) -> GpuSpec:
    """Return the GPU that a preset's name, an alias or the path of a TOML file means; a GPU as it is.

    Raises:
        InputError: unknown name, unreadable file, unknown key, missing source, or a number that looks like a slip.
    """
    if isinstance(name_or_path, GpuSpec):
        return name_or_path
    name = str(name_or_path)
    return remembered(name, _gpu(read_toml(resolve_preset("gpus", name))))


def parse_gpu(text: str, path: Path) -> GpuSpec:
    """Return the GPU that a file at `path` means when it holds `text`."""
    return _gpu(parse_toml(path, text))


def _gpu(document: Document) -> GpuSpec:
    whole, kernel_sources = _with_borrowed(document)
    stated = GPU.read(whole)
    peaks = {name: stated[key] for name in PRECISIONS if (key := f"peak_{name}_tflops") in stated}
    numbers = GPU.keys(name for name, value in stated.items() if isinstance(value, int | float))
    sources = sources_of(document, (), stated.pop("sources"), numbers) | kernel_sources
    constants = KERNELS.read(whole, ("kernels",))
    del constants["sources"]
    kernels = KernelSpec(**constants)
    sources |= _kernel_sources(document, document.data.get("kernels", {}))
    gpu = made(GpuSpec, stated, name=document.path.stem, peak_flops_per_s=peaks, kernels=kernels, sources=sources)
    refuse(document, (), gpu_slips(gpu))
    missing = [name for name in peaks if name not in kernels.gemm_fraction]
    if missing:
        place = ("kernels", "gemm_fraction") if "kernels" in document.data else ("kernels_like",)
        raise document.error(place, f"gemm_fraction lacks {', '.join(missing)}", "each precision with a peak needs one")
    return gpu


@public
@reads("cluster")
def load_cluster(name_or_path: str | Path | specs.ClusterSpec) -> specs.ClusterSpec:
    """Return the cluster that a preset's name, an alias or the path of a TOML file means; a cluster as it is.

    `fleet.toml:h100` is the pool `h100` of a cluster of unlike nodes; a GPU that is a card (`rtx-4090`, or a GPU file)
    is a box of eight of it, `rtx-3090-pairs` one with NVLink bridges.

    Raises:
        InputError: as `load_gpu`, for the cluster's file or for that of its GPU; no such pool.
    """
    if isinstance(name_or_path, specs.ClusterSpec):
        return name_or_path
    name, pool = split_pool(str(name_or_path))
    cluster = _cluster(_cluster_document(name))
    pools = {one.name: one.cluster for one in cluster.pools}
    if pool is None or pool in pools:
        return remembered(str(name_or_path), cluster if pool is None else pools[pool])
    hint = did_you_mean(pool, pools, "its pools are") if pools else f"name the whole: `cluster={cluster.name}`"
    raise InputError(f"{cluster.name} has no {'pool' if pools else 'pools, so none called'} {pool[:40]!r}", hint=hint)


def split_pool(text: str) -> tuple[str, str | None]:
    """Split `fleet.toml:h100` into the cluster and its pool, None without; a file of that very name goes before."""
    found = _POOL.fullmatch(text)
    if found is None or is_there(Path(text)):
        return text, None
    return found[1], found[2].lower()


def cluster_file(name_or_path: str) -> Document:
    """Return the file of the cluster that a preset's name, an alias, a path or a card means, to be read or copied.

    Raises:
        InputError: unknown name, or one pool of a file, which has no file of its own.
    """
    name, pool = split_pool(name_or_path)
    if pool is not None:
        message = f"{name_or_path[:200]} is one pool of a cluster file"
        raise InputError(message, field="cluster", hint="name the cluster file that the pool is made of")
    return _cluster_document(name)


def _cluster_document(name: str) -> Document:
    """Return the file of a cluster, or, where only a GPU has that name, the file of a box of it."""
    try:
        path = resolve_preset("clusters", name)
    except InputError:
        card = card_named(name)
        if card is None:
            raise
        path = card
    document = read_toml(path)
    if "sm_count" not in document.data:
        return document
    gpu = _gpu(document)
    if not is_card(gpu):
        others = ", ".join(clusters_with(gpu.name))
        hint = f"name the machine: {others}" if others else "write a cluster file (docs/hardware.md)"
        raise InputError(f"{gpu.name} is no card for a PCIe slot, so that its name means no box", hint=hint)
    reference = gpu.name if means_preset("gpus", path) else path.name
    pairs = name.lower().endswith("-pairs")
    text = box_text(gpu, reference, pairs=pairs)
    return parse_toml(path.parent / f"box-{gpu.name}{'-pairs' if pairs else ''}.toml", text)


def parse_cluster(text: str, path: Path) -> specs.ClusterSpec:
    """Return the cluster that a file at `path` means when it holds `text`."""
    return _cluster(parse_toml(path, text))


def clusters_with(gpu: str) -> list[str]:
    """Return the cluster presets that have a GPU; files that cannot be read have none."""
    found = []
    for name, path in preset_files("clusters").items():
        with suppress(InputError):
            if str(read_toml(path).data.get("gpu")) == gpu:
                found.append(name)
    return found


@public
def all_gpus() -> list[GpuSpec]:
    """Return every GPU of the presets, by name."""
    return [load_gpu(name) for name in preset_names("gpus")]


@public
def all_clusters() -> list[specs.ClusterSpec]:
    """Return every cluster of the presets, by name."""
    return [load_cluster(name) for name in preset_names("clusters")]


def _with_borrowed(document: Document) -> tuple[Document, dict[str, str]]:
    """Return a GPU file with the kernel constants of `kernels_like`, before which its own go, and their sources."""
    like, own = document.data.get("kernels_like"), document.data.get("kernels", {})
    if not isinstance(like, str) or not isinstance(own, dict):
        return document, {}
    other = read_toml(resolve_preset("gpus", like))
    if "kernels" not in other.data or "kernels_like" in other.data:
        hint = "name a GPU whose file has its own [kernels]"
        raise document.error(("kernels_like",), f"{like} borrows its kernels itself", hint)
    KERNELS.read(other, ("kernels",))
    constants = other.data["kernels"]
    sources = _kernel_sources(other, constants, f"as {other.path.stem}: ")
    return Document(document.path, {**document.data, "kernels": {**constants, **own}}, document.text), sources


def _kernel_sources(document: Document, table: Mapping[str, Any], note: str = "") -> dict[str, str]:
    keys = [key for key in KERNELS.columns if key in table and key != "sources"]
    sources = sources_of(document, ("kernels",), table.get("sources", {}), keys)
    return {f"kernels.{key}": note + source for key, source in sources.items()}


def _cluster(document: Document) -> specs.ClusterSpec:
    stated = CLUSTER.read(document)
    if stated.get("pools"):
        return _mixed_cluster(document, stated)
    gpu = load_gpu(_beside(document.path, stated["gpu"]))
    levels, host, sources = _body(document, (), stated, gpu)
    if stated["extendable"] and levels[-1].torus_shape:
        raise document.error(("extendable",), f"the torus {levels[-1].name} cannot be widened", "extendable = false")
    curves = [
        specs.CalibrationSpec(**{"stride": 1, **CURVE.read(document, ("calibration", index))})
        for index in range(len(stated.get("calibration", ())))
    ]
    sources.update({f"calibration.{one.operation}-{one.gpus}-{one.stride}": one.source for one in curves})
    given = {"name": document.path.stem, "gpu": gpu, "levels": levels, "host": host, "sources": sources}
    loaded = made(specs.ClusterSpec, {**stated, "pools": ()}, **given, calibration=tuple(curves))
    _check_calibration(document, loaded)
    return loaded


def _body(
    document: Document, place: KeyPath, table: dict[str, Any], gpu: GpuSpec
) -> tuple[tuple[specs.LevelSpec, ...], specs.HostSpec | None, dict[str, str]]:
    """Return the levels and the host of a file or of a pool, and the sources of their numbers."""
    levels: list[specs.LevelSpec] = []
    sources: dict[str, str] = {}
    stated = HOST.read(document, (*place, "host")) if "host" in table else {}
    uplink = stated.get("uplink_bytes_per_s") or gpu.host_link_bytes_per_s
    behind = replace(gpu, host_link_bytes_per_s=min(gpu.host_link_bytes_per_s, uplink))
    for index in range(len(table["levels"])):
        sources |= add_level(document, (*place, "levels", index), levels, behind)
    if not stated:
        return tuple(levels), None, sources
    place = (*place, "host")
    given = stated.pop("sources")
    switched = next((level.gpus_per_pcie_switch for level in levels if level.gpus_per_pcie_switch), 1)
    shared = switched if stated["gpus"] % switched == 0 else 1  # GPUs behind one PCIe switch share its uplink
    host = specs.HostSpec(**{"gpus_per_uplink": shared, **stated})
    refuse(document, place, host_slips(host, levels), prefix="host.")
    found = sources_of(document, place, given, HOST.keys(stated))
    return tuple(levels), host, sources | {f"host.{key}": source for key, source in found.items()}


def _mixed_cluster(document: Document, stated: dict[str, Any]) -> specs.ClusterSpec:
    _check_mixture(document, stated)
    pools: list[specs.PoolSpec] = []
    sources: dict[str, str] = {}
    for index in range(len(stated["pools"])):
        place = ("pools", index)
        table = POOL.read(document, place)
        if table["name"] in (pool.name for pool in pools):
            message = f"a second pool called {table['name']!r}"
            raise document.error((*place, "name"), message, "give each its own name")
        pools.append(_pool(document, place, table))
        sources[f"{table['name']}.gpus"] = sources_of(document, place, table["sources"], ["gpus"])["gpus"]
    total, top = sum(pool.cluster.gpus for pool in pools), LEVEL.read(document, ("levels", 0))
    if top["gpus"] != total:
        message = f"{top['name']} has {top['gpus']:,} GPUs, but its pools have {total:,}"
        raise document.error(("levels", 0, "gpus"), message, f"gpus = {total}")
    levels = list(specs.common_levels([pool.cluster for pool in pools]))
    slow = specs.slowest_gpu([pool.cluster.gpu for pool in pools])
    # the slowest pool bounds what a GPU sends into the joining level, whatever that carries
    sources |= add_level(document, ("levels", 0), levels, slow, joins=len(pools))
    given = {"name": document.path.stem, "gpu": slow, "levels": tuple(levels[-1:]), "sources": sources}
    return specs.joined(made(specs.ClusterSpec, {**stated, "pools": ()}, **given), pools)


def _check_mixture(document: Document, stated: dict[str, Any]) -> None:
    if len(stated["pools"]) < 2:
        raise document.error(("pools",), "one pool is a cluster of alike nodes", "leave [[pools]] out, or add another")
    if len(stated["levels"]) != 1:
        message = f"{len(stated['levels'])} levels join the pools, but exactly one can"
        raise document.error(("levels", 1), message, "levels inside a pool stand in it: [[pools.levels]]")
    if stated["extendable"]:
        raise document.error(("extendable",), "pools say how many GPUs there are", "extendable = false")
    for key, where in (("gpu", "[[pools]]"), ("host", "[pools.host]"), ("calibration", "the pools' own cluster files")):
        if key in stated:
            raise document.error((key,), f"{key} belongs to the pools", f"write it in {where}")


def _pool(document: Document, place: KeyPath, table: dict[str, Any]) -> specs.PoolSpec:
    path, title = document.path, table["name"]
    name = f"{path.stem if means_preset('clusters', path) else path.name}:{title}"  # by which it is loaded again
    if ("cluster" in table) == ("gpu" in table) or ("gpu" in table) != bool(table.get("levels")):
        hint = 'cluster = "dgx-h100-superpod", or gpu = "..." with [[pools.levels]]'
        raise document.error(place, f"pool {title} needs a cluster, or a gpu and levels of its own", hint)
    if "cluster" in table:
        if "host" in table:
            raise document.error((*place, "host"), "the host of a pool is that of its cluster", "leave it out")
        other = _cluster_document(_beside(document.path, table["cluster"]))
        if "pools" in other.data:
            raise document.error((*place, "cluster"), f"{other.path.name} has pools itself", "pools do not nest")
        inner = _cluster(other)
    else:
        gpu = load_gpu(_beside(document.path, table["gpu"]))
        levels, host, sources = _body(document, place, table, gpu)
        inner = specs.ClusterSpec(name, f"{title} of {document.path.stem}", gpu, levels, False, sources, host=host)
    try:
        return specs.PoolSpec(title, specs.cut(inner, table["gpus"], name))
    except InputError as error:
        raise document.error((*place, "gpus"), f"pool {title}: {error.message}", error.hint) from None


def _beside(path: Path, name: str) -> str:
    """Return what a cluster file names, a GPU or a cluster: a preset's name, or a path relative to the file."""
    return str(path.parent / name) if name.lower().endswith(".toml") else name


def _check_calibration(document: Document, cluster: specs.ClusterSpec) -> None:
    """Refuse measured curves that cannot be, or that the cluster has no group for."""
    seen: set[tuple[str, int, int]] = set()
    for index, one in enumerate(cluster.calibration):
        place = ("calibration", index)
        key = (one.operation, one.gpus, one.stride)
        if key in seen:
            raise document.error(place, f"a second curve of {one.operation} over {one.gpus} GPUs", "keep one of them")
        seen.add(key)
        if len(one.bytes) != len(one.time_s):
            message = f"{len(one.time_s)} times for {len(one.bytes)} sizes"
            raise document.error((*place, "time_us"), message, "give one time for each size")
        if any(low >= high for low, high in pairwise(one.bytes)):
            raise document.error((*place, "bytes"), "sizes must rise", "sort them, and give each once")
        if any(low > high for low, high in pairwise(one.time_s)):
            raise document.error((*place, "time_us"), "a larger size takes less time", "times must never fall")
        _check_group(document, cluster, place, one)


def _check_group(document: Document, cluster: specs.ClusterSpec, place: KeyPath, one: specs.CalibrationSpec) -> None:
    names = [level.name for level in cluster.levels]
    if one.level not in names:
        hint = f"the levels are {', '.join(names)}"
        raise document.error((*place, "level"), f"no level is called {one.level!r}", hint)
    reach = (one.gpus - 1) * one.stride + 1
    if reach > (MAX_GPUS if cluster.extendable else cluster.gpus):
        message = f"the group reaches over {reach:,} GPUs, the cluster has {cluster.gpus:,}"
        raise document.error((*place, "gpus"), message, "check stride")
    spanned = cluster.level_of_group(one.gpus, one.stride).name
    if spanned != one.level:
        message = f"{one.gpus} GPUs {one.stride} apart span {spanned}, not {one.level}"
        raise document.error((*place, "level"), message, "check level and stride")
