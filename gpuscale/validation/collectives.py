"""Measured collectives (nccl-tests and the like), predicted on the preset that stands for the machine of the row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscale.collectives.channels import knows_channels
from gpuscale.collectives.groups import place as groups_on
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.intervals import LARGE_BYTES, SMALL_BYTES
from gpuscale.collectives.nccl import taken_s, timings
from gpuscale.collectives.nccl_constants import NEWEST, Tuning, parse_version
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.validation.machines import Library, named_cluster
from gpuscale.validation.measurements import COLLECTIVES, Row, batched, reason_text

NOT_MODELLED = {"gb200": "partitions"}
"""GPU slug -> what fabrics say that no preset stands for: racks cut into parts."""

ASKED = (
    (("collnet",), ("SHARP",)),
    (("nccl_algo=ring", "ring+ll128 forced", "nccl_nvls_enable=0"), ("ring",)),
    (("nccl_algo=tree",), ("tree",)),
    (("nccl_algo=nvlstree", "nccl_algo=nvls/nvlstree"), ("NVLS tree", "NVLS")),
    (("nccl_algo=nvls",), ("NVLS",)),
    (("nvls off", "nvls/sharp off"), ("ring", "tree")),
)
"""Words in the column `sharp_or_nvls`, algorithms that NCCL was left with; the first that fits."""

SHARP_ON = re.compile(r"collnet|^(?!.*\boff\b)(nvls *\+ *)?sharp\b")
"""What the same column says where switches between nodes added up."""

SIZE_CLASSES = (("< 64 KiB", SMALL_BYTES), ("64 KiB - 64 MiB", LARGE_BYTES), (">= 64 MiB", float("inf")))
"""Name and upper end of each class of sizes."""

Run = tuple[str, int, int, tuple[str, ...], Tuning]
"""One run of a benchmark at several sizes: operation, GPUs, GPUs from one member of the group to the next, the
algorithms that NCCL was left with (none for all), and how NCCL was run."""


def predict_collectives(rows: Sequence[Row]) -> list[tuple[float, float] | str]:
    """(measured, predicted) seconds of every row, or why there is no prediction."""
    library = Library()  # where one object stands for equal clusters, and is the key

    def read(row: Row) -> tuple[tuple[int, Run], tuple[ClusterSpec, float, float]]:
        cluster, run, size, measured_s = _record(row, library)
        return (id(cluster), run), (cluster, size, measured_s)

    batches, refused = batched(rows, read)
    found: dict[int, tuple[float, float] | str] = {**refused}
    for (_, run), members in batches.items():
        operation, gpus, distance, algorithms, tuning = run
        data = np.array([size for _, (_, size, _) in members], dtype=np.float64)
        try:
            wide = members[0][1][0].sized_for(gpus * distance)[0]
            times = collective_time_s(wide, operation, data, gpus, distance, tuning=tuning)
            if algorithms:
                groups = groups_on(wide, np.full(data.size, gpus), distance)
                every = timings(network_of(wide, groups, tuning=tuning), operation, data)
                left = [one for one in every if one.algorithm in algorithms]
                forced = taken_s(left) if left else times
                times = np.where(np.isfinite(forced), np.maximum(forced, times), times)
        except InputError as error:
            found |= dict.fromkeys((index for index, _ in members), reason_text(error))
        else:
            found |= {index: (one[2], value) for (index, one), value in zip(members, times.tolist(), strict=True)}
    return [found[index] for index in range(len(rows))]


def located(row: Row) -> tuple[ClusterSpec, str, int, float, float]:
    """Cluster, operation, GPUs, bytes and measured seconds of one row.

    Raises:
        InputError: no prediction is possible, and why.
    """
    cluster, (operation, gpus, *_), size, measured_s = _record(row, Library())
    return cluster, operation, gpus, size, measured_s


def _record(row: Row, library: Library) -> tuple[ClusterSpec, Run, float, float]:
    """Cluster, run, bytes and measured seconds of one row; refuse one that cannot be predicted."""
    row.check(COLLECTIVES)
    operation, algorithms = operation_named(row.text("collective")), row.text("sharp_or_nvls")
    if "not nccl" in algorithms or "custom" in algorithms:
        raise InputError("a custom kernel, not NCCL")
    size, time_us, gpus = row.number("bytes"), row.number("time_us"), row.whole("gpus")
    missing = [name for name, value in (("bytes", size), ("time_us", time_us), ("gpus", gpus)) if not value]
    if missing or size is None or time_us is None or gpus is None:
        raise InputError(f"the row does not state {', '.join(missing)}")
    if gpus < 2:
        raise InputError("one GPU exchanges nothing")
    slug, fabric, per_node = row.text("gpu"), row.text("fabric"), row.whole("gpus_per_node")
    sharp = SHARP_ON.search(algorithms) is not None
    if slug in NOT_MODELLED and NOT_MODELLED[slug] in fabric:
        raise InputError(f"no cluster preset stands for {slug} with {fabric[:60]}")
    key = row.text("cluster"), slug, fabric, per_node, sharp
    cluster = library.once(key, lambda: replace(named_cluster(row, library), sharp=sharp))
    host = cluster.host_gpus  # of a rack: a tray, whose neighbours are the next
    lent = min(per_node or host, host)
    distance = host // lent if gpus > lent else 1  # more than 1 where a node lends fewer GPUs than it has
    left = next((left for words, left in ASKED if any(word in algorithms for word in words)), ())
    version, channels = row.text("nccl"), row.whole("channels") if knows_channels(cluster) else None
    tuning = Tuning(channels, parse_version(version) if version else NEWEST, row.text("launch") or "processes")
    return cluster, (operation, gpus, distance, left, tuning), size, time_us * 1e-6


def size_class(row: Row) -> str:
    """Name of the class that the row's size falls in."""
    try:
        size = row.number("bytes")
    except InputError:
        size = None
    return "not stated" if size is None else next(name for name, end in SIZE_CLASSES if size < end)
