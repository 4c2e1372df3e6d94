"""The presets that rows name, and the machine of a row as options of a job: a cluster by GPU, node and fabric, with
measured bandwidth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from gpuscale.collectives.nccl_constants import TRANSPORTS
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.planning.jobs import Presets
from gpuscale.presets.files import known_table, preset_aliases, preset_names
from gpuscale.presets.hardware import FABRIC_DEFAULTS, WAYS, load_gpu
from gpuscale.presets.settings import GPU_POWER, RANK_OVERHEAD, with_settings
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.validation.measurements import Row

T = TypeVar("T")


class Library:
    """Presets by name or alias, never by path: a row must not make gpuscale read files of its choice.

    What is made once is one object for all rows of a file, by which rows that can be evaluated together are found.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self.presets = Presets()
        self._loaders: dict[str, Callable[[str], Any]] = {
            "models": self.presets.model,
            "clusters": self.presets.cluster,
            "gpus": load_gpu,
        }

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time for this key."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def find(self, kind: str, name: str) -> Any:
        """Return a preset, or None when there is none of this name, however it is spelled."""
        stem = self.once(kind, lambda: _spellings(kind)).get(_bare(name))
        return None if stem is None else self.once((kind, stem), lambda: self._loaders[kind](stem))


def _spellings(kind: str) -> dict[str, str]:
    found = {_bare(alias): path.stem for alias, path in preset_aliases(kind).items()}
    boxes = {f"box{name}": f"box-{stem}" for name, stem in _spellings("gpus").items()} if kind == "clusters" else {}
    return boxes | found | {_bare(stem): stem for stem in preset_names(kind)}


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


MACHINES = known_table("machines")
"""What of a row means which cluster."""

BY_PRINT = {("a100-80gb", 4): "box-a100-pcie-pairs"}
"""GPU as the source prints it and GPUs per node -> cluster, where the name leaves the form open and no fabric is
stated. `A100-80GB` is printed for modules and for cards; boxes of four, of which nothing else is said, are taken to
hold cards, joined in pairs (guesstimate: systems of four modules are parts of machines whose fabric is stated)."""

STAGED = WAYS["net"]
"""guesstimate: NCCL over Omni-Path 100, whose cards have the host send and receive (PIO, PSM2): copies at both ends."""

_COUNT = r"(?<!\d)(\d{1,9})"
RATES = (
    (re.compile(rf"{_COUNT}\s*x\s*omni-path"), lambda found, _: int(found[1]) * 12.5e9 / 8),
    (
        re.compile(rf"{_COUNT}\s*x\s*(\d{{1,9}})\s*g(?:b|\b)(?!b?/s)"),
        lambda found, node: int(found[1]) * int(found[2]) / 8 * 1e9 / node,
    ),
    (re.compile(rf"{_COUNT}\s*gb(?:it)?/s per gpu"), lambda found, _: int(found[1]) / 8 * 1e9),
    (re.compile(rf"{_COUNT}\s*gbps"), lambda found, node: int(found[1]) / 8 * 1e9 / node),
)
"""What a fabric says of the network rate of one GPU [bytes/s]: links per node times Gbit/s each (Omni-Path: 100),
Gbit/s per GPU, or Gbit/s per node."""


def described_cluster(row: Row, library: Library) -> tuple[str, dict[str, str]]:
    """Return the name of the cluster preset that a row names, or that its GPU, node and fabric mean, and what these
    change of it: key of the option `set` -> value.

    Raises:
        InputError: no preset has the name, or such GPUs.
    """
    asked, slug, fabric = row.text("cluster"), row.text("gpu"), row.text("fabric")
    if not asked and not slug:
        raise InputError("the GPU is not stated", place=row.place)
    gpu: GpuSpec | None = library.find("gpus", slug)
    per_node = row.whole("gpus_per_node") or 0
    printed = None if asked or fabric else BY_PRINT.get((row.text("gpu_as_published"), per_node))
    name = (
        asked
        or printed
        or MACHINES["node"].get(f"{slug} x {per_node}")
        or next((name for own, words, name in MACHINES["fabric"] if own == slug and re.search(words, fabric)), None)
        or MACHINES["gpu"].get(slug)
        or (MACHINES["gpu"].get(gpu.name, f"box-{gpu.name}") if gpu else None)
    )
    cluster: ClusterSpec | None = library.find("clusters", name) if name else None
    if cluster is None:
        unknown = f"is called {asked[:60]!r}" if asked else f"has GPUs {slug[:60]!r}"
        raise InputError(f"no cluster preset {unknown}", place=row.place)
    settings = {}
    if not asked and not printed and gpu is not None and gpu.name != cluster.gpu.name:
        settings["gpu"] = gpu.name
    inside = sum(level.fabric in INSIDE for level in cluster.levels)
    settings |= _network_settings(cluster.levels[inside:], fabric)
    for pattern, rate in RATES:
        found = pattern.search(fabric)
        if found and inside == 1 and len(cluster.levels) > 1:
            factor = float(rate(found, cluster.host_gpus)) / cluster.levels[1].link_bytes_per_s
            return cluster.name, settings | _scaled_network(cluster, factor)
    return cluster.name, settings


def _network_settings(levels: Sequence[LevelSpec], fabric: str) -> dict[str, str]:
    """Say what the fabric of a row changes of the levels above the node: the kind of network, and how NCCL uses it."""
    kind = next((name for name in TRANSPORTS if name in fabric), None)
    settings: dict[str, str] = {}
    for level in levels:
        if kind and level.fabric != kind:
            hop_us = FABRIC_DEFAULTS[kind][0] if kind in FABRIC_DEFAULTS else level.hop_latency_s * 1e6
            settings |= {f"{level.name}.fabric": kind, f"{level.name}.hop_latency_us": f"{hop_us:g}"}
        if "omni-path" in fabric:
            settings |= {f"{level.name}.hop_latency_us": f"{STAGED.hop_us:g}"}
            settings |= {f"{level.name}.link_efficiency": f"{STAGED.efficiency:g}"}
    return settings


def settings_text(settings: Mapping[str, str]) -> str:
    """Write settings as the option `set` takes them."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def named_cluster(row: Row, library: Library) -> ClusterSpec:
    """Return the cluster of a row, in the size of its preset.

    Raises:
        InputError: no preset has such a name or such GPUs.
    """
    name, settings = described_cluster(row, library)
    return with_settings(library.find("clusters", name), settings_text(settings))


def _scaled_network(cluster: ClusterSpec, factor: float) -> dict[str, str]:
    """Scale links and switches of every level above the node; oversubscription stays as it is."""
    if factor == 1.0:
        return {}
    found = {}
    for level in cluster.levels[1:]:
        found[f"{level.name}.link_gb_per_s"] = f"{level.link_bytes_per_s * factor / 1e9:.8g}"
        if level.switches:
            found[f"{level.name}.switch_gb_per_s"] = f"{level.switch_bytes_per_s * factor / 1e9:.8g}"
    return found


BANDWIDTH_STEP = 1.04
"""Measured bandwidths are rounded to powers of this, so that runs on nearly the same fabric are evaluated together; the
same fabric measured twice differs by more."""

RANKS_BIND = 1.35
"""Probes of `PROBE_BYTES` that take this many times the preset's AllGather are not bound by their bytes. Those of the
nanotron sweep are either below 1.3 or above 1.5 times it."""

PROBE_BYTES = 2**30
"""Size of the collective whose bandwidth the `net_*_busbw_gb_per_s` columns state."""


def row_cluster(row: Row, gpus: int, library: Library) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options of a job that say where a run took place, and what had to be assumed.

    Raises:
        InputError: no preset has such GPUs.
    """
    names = ("cluster", "gpu", "gpu_as_published", "fabric", "gpus", "gpu_power_w", "gpus_per_node")
    measured = [row.number(f"net_{name}_busbw_gb_per_s") for name in ("allreduce", "allgather")]
    probes = [None if one is None else BANDWIDTH_STEP ** round(math.log(one * 1e9, BANDWIDTH_STEP)) for one in measured]
    key = ("machine", *(row.text(name) for name in names), *probes)
    return library.once(key, lambda: _machine(row, gpus, probes, library))


def _machine(
    row: Row, gpus: int, probes: Sequence[float | None], library: Library
) -> tuple[dict[str, Any], tuple[str, ...]]:
    name, settings = described_cluster(row, library)
    cluster, assumed = with_settings(library.find("clusters", name), settings_text(settings)), []
    unstated = not row.text("fabric") and not row.text("cluster")
    if unstated and (gpus > cluster.node_gpus or name in BY_PRINT.values()):
        assumed.append(f"cluster {name}")
    per_node, cap_w = row.whole("gpus_per_node"), row.number("gpu_power_w")
    taken = None
    if per_node and per_node < cluster.host_gpus:
        # in a rack the others stay in the NVLink domain
        if cluster.node_gpus % per_node or cluster.host_gpus < cluster.node_gpus:
            assumed.append(f"{cluster.node_gpus} GPUs per node, the row says {per_node}")
        else:
            taken = per_node
            cluster = cluster.with_gpus_per_node(per_node)
    if cap_w and cap_w < cluster.gpu.power_w:
        settings |= {GPU_POWER: f"{cap_w:g}"}
    if gpus > cluster.node_gpus:
        settings |= _calibrated(cluster, gpus, *probes)
    found = {"cluster": name, "set": settings_text(settings) or None, "gpus_per_node": taken}
    return {key: value for key, value in found.items() if value is not None}, tuple(assumed)


def _calibrated(cluster: ClusterSpec, gpus: int, reduced: float | None, gathered: float | None) -> dict[str, str]:
    """Fit the network above the node to what a 1 GiB AllReduce and AllGather over all GPUs measured there [bytes/s].

    Where both take much longer than the network needs for an AllGather, `RANKS_BIND` times, they are bound by their
    ranks, not by their bytes: then each collective waits for every rank of its group (`ClusterSpec.rank_overhead_s`)
    and the network's bandwidth is not known. Otherwise the AllReduce's bus bandwidth scales the network; the factor is
    limited to 1/100..2: a faster network than the preset's by more than 2 contradicts the preset.
    """
    sized = cluster.sized_for(gpus)[0]
    if gathered is not None:
        measured_s = PROBE_BYTES * (gpus - 1) / gpus / gathered
        if reduced is not None:  # which does more: an AllGather that takes longer is a probe gone wrong
            measured_s = min(measured_s, PROBE_BYTES * 2 * (gpus - 1) / gpus / reduced)
        if measured_s > RANKS_BIND * float(collective_time_s(sized, "allgather", PROBE_BYTES, gpus)):
            return {RANK_OVERHEAD: f"{measured_s / gpus * 1e6:.8g}"}
    if reduced is None:
        return {}
    time_s = float(collective_time_s(sized, "allreduce", PROBE_BYTES, gpus))
    predicted = PROBE_BYTES / time_s * 2 * (gpus - 1) / gpus
    return _scaled_network(cluster, min(max(reduced / predicted, 0.01), 2.0))
