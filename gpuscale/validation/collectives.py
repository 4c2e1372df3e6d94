"""Measured collectives (nccl-tests and the like), predicted on the preset that stands for the machine of the row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscale.collectives import collective_time_s, operation_named
from gpuscale.collectives.channels import knows_channels
from gpuscale.collectives.groups import place as groups_on
from gpuscale.collectives.nccl import timings
from gpuscale.collectives.nccl_constants import TRANSPORTS
from gpuscale.collectives.network import network_of
from gpuscale.collectives.tuning import NEWEST, Tuning, parse_version
from gpuscale.errors import InputError
from gpuscale.specs.cluster import INSIDE, ClusterSpec
from gpuscale.units import KIB, MIB
from gpuscale.validation.cells import Row
from gpuscale.validation.clusters import BY_GPU, stated_rate_bytes_per_s, with_network_rate
from gpuscale.validation.predict import reason_text
from gpuscale.validation.presets import Presets

SIZE_CLASSES = (("< 64 KiB", 64 * KIB), ("64 KiB - 64 MiB", 64 * MIB), (">= 64 MiB", float("inf")))
"""Name and upper end of each class of sizes."""

BY_FABRIC = (
    ("gh200", "slingshot", "gh200-quad"),
    ("gh200", "all-to-all (4/node)", "gh200-quad"),
    ("h100-sxm-80gb", "efa", "aws-p5"),
    ("h200-sxm-141gb", "efa", "aws-p5en"),
    ("a100-sxm-40gb", "efa", "aws-p4d"),
    ("a100-sxm-80gb", "efa", "aws-p4d"),
    ("h100-sxm-80gb", "8x400g", "azure-ndv5"),
    ("h100-sxm-80gb", "nic per gpu", "azure-ndv5"),
    ("a100-sxm-40gb", "roce", "azure-ndv4"),
    ("v100-sxm2", "hybrid mesh", "dgx1-v100"),
    ("a100-sxm-40gb", "slingshot", "polaris"),
    ("h100-sxm-80gb", "tcpxo", "gcp-a3-mega"),
    ("h100-sxm-80gb", "tcpx", "gcp-a3-high"),
    ("l40s", "pcie4", "box-l40s-sockets"),
)
"""(GPU, part of the fabric's description, cluster preset); the first that fits, else the cluster of the GPU alone."""

NOT_MODELLED = {"gb200": ("partitions",)}
"""GPU -> fabrics that no preset stands for: racks cut into parts."""


ASKED = (
    (("nccl_algo=ring", "ring+ll128 forced", "nccl_nvls_enable=0"), ("ring",)),
    (("nccl_algo=tree",), ("tree",)),
    (("nccl_algo=nvlstree", "nccl_algo=nvls/nvlstree"), ("NVLS tree", "NVLS")),
    (("nccl_algo=nvls",), ("NVLS",)),
    (("nvls off", "nvls/sharp off"), ("ring", "tree")),
)
"""(Words in the column `sharp_or_nvls`, algorithms that NCCL was left with); the first that fits."""


VERSION = re.compile(r"\bnccl[ /_]v?(2[._]\d{1,2})|test-output-v(2\.\d{1,2})", re.IGNORECASE)
"""The version of NCCL in the notes or the source of a row: `NCCL 2.26.2`, `nccl/2.29.2/`, `nccl_2_18`."""

CHANNELS = re.compile(r"nccl_(?:min_ctas|min_nchannels|max_nchannels)=(\d+)")
"""How many channels a run was told to take."""


def tuning_of(row: Row, cluster: ClusterSpec) -> Tuning:
    """Read how NCCL was run: version, channels and launch, as far as the row says and the model knows of them."""
    notes = row.text("notes")
    version = VERSION.search(f"{notes} {row.text('source')}")
    channels = CHANNELS.search(notes) if knows_channels(cluster) else None
    launch = "one-process" if "single process" in notes else "graph" if "hipgraph" in notes else "processes"
    return Tuning(
        channels=int(channels[1]) if channels else None,
        nccl=parse_version((version[1] or version[2]).replace("_", ".")) if version else NEWEST,
        launch=launch,
    )


@dataclass(frozen=True)
class Run:
    """What one run of a benchmark measured at several sizes.

    Attributes:
        distance: GPUs from one member of the group to the next.
        algorithms: those that NCCL was left with; empty for all.
        tuning: how NCCL was run.
    """

    operation: str
    gpus: int
    distance: int
    algorithms: tuple[str, ...]
    tuning: Tuning


def predict_collectives(rows: Sequence[Row]) -> list[tuple[float, float] | str]:
    """(measured, predicted) seconds of every row, or why there is no prediction."""
    presets = Presets()
    found: list[tuple[float, float] | str] = []
    series: dict[tuple[int, Run], list[int]] = defaultdict(list)
    clusters: dict[int, ClusterSpec] = {}
    sizes: dict[int, tuple[float, float]] = {}
    for index, row in enumerate(rows):
        try:
            cluster, run, sizes[index] = _record(row, presets)
        except InputError as error:
            found.append(reason_text(error))
            continue
        found.append("")
        clusters[id(cluster)] = cluster
        series[id(cluster), run].append(index)
    for (cluster_id, run), members in series.items():
        try:
            predicted_s = _predict_s(clusters[cluster_id], run, [sizes[one][0] for one in members])
        except InputError as error:
            found = [reason_text(error) if index in members else value for index, value in enumerate(found)]
            continue
        for index, value in zip(members, predicted_s, strict=True):
            found[index] = (sizes[index][1], value)
    return found


def _predict_s(cluster: ClusterSpec, run: Run, bytes_: Sequence[float]) -> list[float]:
    wide = cluster.sized_for(run.gpus * run.distance)[0]
    data = np.array(bytes_, dtype=np.float64)
    times = collective_time_s(wide, run.operation, data, run.gpus, run.distance, tuning=run.tuning)
    if run.algorithms:
        groups = groups_on(wide, np.full(data.size, run.gpus), run.distance)
        every = timings(network_of(wide, groups, tuning=run.tuning), run.operation, data)
        forced = np.min([one.time_s for one in every if one.algorithm in run.algorithms] or [times], axis=0)
        times = np.where(np.isfinite(forced), np.maximum(forced, times), times)
    found: list[float] = times.tolist()
    return found


def without_sharp(cluster: ClusterSpec) -> ClusterSpec:
    """Leave reduction to the NVLink switches: SHARP needs a plugin and NCCL_COLLNET_ENABLE, in no timed row."""
    levels = [
        replace(one, in_network_reduction=one.in_network_reduction and one.fabric in INSIDE) for one in cluster.levels
    ]
    return replace(cluster, levels=tuple(levels))


def located(row: Row) -> tuple[ClusterSpec, str, int, float, float]:
    """Cluster, operation, GPUs, bytes and measured seconds of one row.

    Raises:
        InputError: no prediction is possible, and why.
    """
    cluster, run, (size, measured_s) = _record(row, Presets())
    return cluster, run.operation, run.gpus, size, measured_s


def _record(row: Row, presets: Presets) -> tuple[ClusterSpec, Run, tuple[float, float]]:
    """Cluster, run, and (bytes, measured seconds) of one row.

    Raises:
        InputError: no prediction is possible, and why.
    """
    operation = operation_named(row.text("collective"))
    how = f"{row.text('sharp_or_nvls')} {row.text('notes')}"
    if "not nccl" in how or "custom" in how:
        raise InputError("a custom kernel, not NCCL")
    size, time_us, gpus = row.positive("bytes"), row.positive("time_us"), row.whole("gpus")
    missing = [name for name, value in (("bytes", size), ("time_us", time_us), ("gpus", gpus)) if not value]
    if missing or size is None or time_us is None or gpus is None:
        raise InputError(f"the row does not state {', '.join(missing)}")
    if gpus < 2:
        raise InputError("one GPU exchanges nothing")
    cluster = _cluster(row, presets)
    distance = _distance(row, cluster, gpus)
    return cluster, Run(operation, gpus, distance, _asked(row), tuning_of(row, cluster)), (size, time_us * 1e-6)


def _asked(row: Row) -> tuple[str, ...]:
    said = row.text("sharp_or_nvls")
    return next((left for words, left in ASKED if any(word in said for word in words)), ())


def _distance(row: Row, cluster: ClusterSpec, gpus: int) -> int:
    """GPUs from one member of the group to the next: more than 1 where a node lends fewer GPUs than it has."""
    host = cluster.host.gpus if cluster.host else cluster.node_gpus  # of a rack: a tray, whose neighbours are the next
    lent = min(row.whole("gpus_per_node") or host, host)
    return host // lent if gpus > lent else 1


def _cluster(row: Row, presets: Presets) -> ClusterSpec:
    slug, fabric = row.text("gpu"), row.text("fabric")
    if any(part in fabric for part in NOT_MODELLED.get(slug, ())):
        raise InputError(f"no cluster preset stands for {slug} with {fabric[:60]}")
    asked = row.text("cluster")
    chosen = next((name for gpu, part, name in BY_FABRIC if gpu == slug and part in fabric), None)
    name = asked or chosen or BY_GPU.get(slug)
    cluster = presets.cluster(name) if name else None
    if cluster is None:
        raise InputError(f"no cluster preset has GPUs {slug[:60]!r}" if slug else "the GPU is not stated")
    return presets.build(("collective", name, fabric), lambda _: _on_fabric(cluster, fabric), [])


def _on_fabric(cluster: ClusterSpec, fabric: str) -> ClusterSpec:
    """Put the kind of network and the rate per GPU that the row's fabric states into its cluster, without SHARP."""
    inside = sum(level.fabric in INSIDE for level in cluster.levels)
    for kind in TRANSPORTS:
        if kind in fabric:
            network = [replace(level, fabric=kind) for level in cluster.levels[inside:]]
            cluster = replace(cluster, levels=(*cluster.levels[:inside], *network))
    rate = stated_rate_bytes_per_s(fabric, cluster.host.gpus if cluster.host else cluster.node_gpus)
    if rate is not None and inside == 1:
        cluster = with_network_rate(cluster, rate)
    return without_sharp(cluster)


def size_class(bytes_: float) -> str:
    """Name of the class of sizes."""
    return next(name for name, end in SIZE_CLASSES if bytes_ < end)
