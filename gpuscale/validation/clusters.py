"""The cluster of a row: a preset by GPU and fabric, with the row's own measured bandwidth where it gives one."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from gpuscale.collectives import collective_time_s
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.validation.cells import Row
from gpuscale.validation.presets import Presets, shared_presets

COLUMNS = ("cluster", "gpu", "fabric", "gpus", "gpus_per_node")
"""Columns that the cluster depends on, beside a measured bandwidth."""

BANDWIDTH_STEP = 1.04
"""Measured bandwidths are rounded to powers of this, so that runs on nearly the same fabric are priced together; the
same fabric measured twice differs by more."""

RANKS_BIND = 1.35
"""Probes of `PROBE_BYTES` that take this many times the preset's AllGather are not bound by their bytes. Those of the
nanotron sweep are either below 1.3 or above 1.5 times it."""

PROBE_BYTES = 2**30
"""Size of the collective whose bandwidth the `net_*_busbw_gb_per_s` columns state."""

BY_GPU = {
    "v100": "dgx2-v100",
    "v100-sxm-32gb": "dgx2-v100",
    "a100-sxm-40gb": "dgx-a100-superpod",
    "a100-sxm-80gb": "dgx-a100-superpod",
    "a100-pcie-80gb": "box-a100-pcie",
    "h100-sxm-80gb": "dgx-h100-superpod",
    "h100-pcie-80gb": "box-h100-pcie",
    "h100-hbm2e-96gb-500w": "dgx-h100-superpod",
    "h200-sxm-141gb": "h200-hgx",
    "h800-sxm-80gb": "h800-deepseek",
    "gh200": "gh200",
    "gh200-96gb": "gh200",
    "b200": "b200-hgx",
    "b200-sxm-180gb": "b200-hgx",
    "b200-power-limited": "b200-hgx",
    "b300": "b300-hgx",
    "b300-sxm-270gb": "b300-hgx",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "mi250x": "mi250x",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
    "tpu-v5p": "tpu-v5p-pod",
    "l40s": "box-l40s-pcie",
    "rtx-pro-6000-server": "box-rtx-pro-6000",
    "rtx-pro-6000": "box-rtx-pro-6000",
    "v100-sxm-16gb": "dgx1-v100",
    "a100-pcie-40gb": "box-a100-pcie",
    "h100-nvl-94gb": "box-h100-pcie",
    "gh200-144gb": "gh200",
    "b100": "b200-hgx",
}
"""GPU slug, or name of its preset -> the cluster assumed when the row's fabric says nothing more; where that has a
sister model, the row's own GPU goes into it."""

BY_NODE = {
    ("gh200", 4): "gh200-quad",
    ("gh200-96gb", 4): "gh200-quad",
    ("gh200-144gb", 4): "gh200-quad",
    ("v100", 8): "dgx1-v100",
}
"""GPU slug and GPUs per node -> cluster, where another node of the same GPU is usual too."""

EFA = {"h100-sxm-80gb": "aws-p5", "a100-sxm-40gb": "aws-p4d", "h200-sxm-141gb": "aws-p5en", "l40s": "aws-g6e"}
"""GPU slug -> the AWS cluster with it."""


def row_cluster(row: Row, gpus: int, assumed: list[str], presets: Presets | None = None) -> ClusterSpec:
    """Return the cluster of a row, sized for its GPUs.

    Raises:
        InputError: no preset has such GPUs.
    """
    presets = presets or shared_presets()
    key = ("cluster", *(row.text(name) for name in COLUMNS), _pcie_box(row))
    cluster = presets.build(key, lambda own: _build(row, gpus, own, presets), assumed)
    reduced, gathered = (_rounded(row.positive(f"net_{name}_busbw_gb_per_s")) for name in ("allreduce", "allgather"))
    if gpus <= cluster.node_gpus or (reduced is None and gathered is None):
        return cluster
    probes = ("calibrated", id(cluster), reduced, gathered)
    return presets.build(probes, lambda _: calibrated(cluster, gpus, reduced, gathered), assumed)


def _rounded(busbw_gb_per_s: float | None) -> float | None:
    if busbw_gb_per_s is None:
        return None
    return BANDWIDTH_STEP ** round(math.log(busbw_gb_per_s * 1e9, BANDWIDTH_STEP))


def _build(row: Row, gpus: int, assumed: list[str], presets: Presets) -> ClusterSpec:
    cluster = named_cluster(row, presets)
    if not row.text("fabric") and not row.text("cluster") and gpus > cluster.node_gpus:
        assumed.append(f"cluster {cluster.name}")
    rate = stated_rate_bytes_per_s(row.text("fabric"), cluster.node_gpus)
    cluster = cluster if rate is None else with_network_rate(cluster, rate)
    per_node = row.whole("gpus_per_node")
    hosts = cluster.host.gpus if cluster.host else cluster.node_gpus
    if per_node and per_node < hosts:
        if cluster.node_gpus % per_node or hosts < cluster.node_gpus:  # in a rack the others stay in the NVLink domain
            assumed.append(f"{cluster.node_gpus} GPUs per node, the row says {per_node}")
        else:
            cluster = cluster.with_gpus_per_node(per_node)
    return cluster.sized_for(gpus)[0]


def named_cluster(row: Row, presets: Presets) -> ClusterSpec:
    """Return the cluster that the row's `cluster` column names, or the one that its GPU and fabric mean.

    Raises:
        InputError: no preset has the name, or such GPUs.
    """
    asked, slug = row.text("cluster"), row.text("gpu")
    if asked:
        found = presets.cluster(asked)
        if found is None:
            raise InputError(f"no cluster preset is called {asked[:60]!r}", place=row.place)
        return found
    if not slug:
        raise InputError("the GPU is not stated", place=row.place)
    gpu = presets.gpu(slug)
    box = _pcie_box(row)
    name = (
        box
        or BY_NODE.get((slug, row.whole("gpus_per_node") or 0))
        or _by_fabric(slug, row.text("fabric"))
        or BY_GPU.get(slug)
        or (BY_GPU.get(gpu.name) if gpu else None)
    )
    cluster = presets.cluster(name) if name else None
    if cluster is None:
        raise InputError(f"no cluster preset has GPUs {slug[:60]!r}", place=row.place)
    return replace(cluster, gpu=gpu) if gpu is not None and gpu.name != cluster.gpu.name and not box else cluster


SOCKETS = re.compile(r"\b(eni|tcp(?!-?x)|sockets)\b(?! per node)")
"""How a fabric's description says that the network is plain TCP."""


PCIE_CARDS = re.compile(r"\bpcie\b(?P<bridges>[^;]*nvlink.?bridge)?")
"""Cards rather than modules, in pairs where NVLink bridges are named; `A100-80GB` is printed for both."""


MODULES = re.compile(r"\bsxm|\bnvswitch|pcie (?:\S+ )?switch")
"""What names the machine as one of modules all the same."""


def _pcie_box(row: Row) -> str:
    """Return the box of A100 PCIe cards that the row's fabric or notes describe, empty for other machines."""
    if not row.text("gpu").startswith(("a100-80", "a100-sxm-80", "a100-pcie-80")):
        return ""
    found = PCIE_CARDS.search(f"{row.text('fabric')}; {row.wording}")
    if not found or MODULES.search(row.wording):
        return ""
    return "box-a100-pcie-pairs" if found["bridges"] else "box-a100-pcie"


def _by_fabric(slug: str, fabric: str) -> str | None:
    on_aws = EFA.get(slug)
    if on_aws and SOCKETS.search(fabric):
        return f"{on_aws}-eni"
    return on_aws if "efa" in fabric else None


RATES = (
    (re.compile(r"(\d+)\s*x\s*omni-path"), lambda found, _: int(found[1]) * 12.5e9 / 8),
    (
        re.compile(r"(\d+)\s*x\s*(\d+)\s*g(?:b|\b)(?!b?/s)"),
        lambda found, node: int(found[1]) * int(found[2]) / 8 * 1e9 / node,
    ),
    (re.compile(r"(\d+)\s*gb(?:it)?/s per gpu"), lambda found, _: int(found[1]) / 8 * 1e9),
    (re.compile(r"(\d+)\s*gbps"), lambda found, node: int(found[1]) / 8 * 1e9 / node),
)
"""What a fabric's description says of the network rate of one GPU [bytes/s]: links per node times Gbit/s each
(Omni-Path: 100), Gbit/s per GPU, or Gbit/s per node."""


def stated_rate_bytes_per_s(fabric: str, node_gpus: int) -> float | None:
    """Return one GPU's network rate as the text states it, None where it states none."""
    for pattern, rate in RATES:
        found = pattern.search(fabric)
        if found:
            return float(rate(found, node_gpus))
    return None


def with_network_rate(cluster: ClusterSpec, bytes_per_s: float) -> ClusterSpec:
    """Replace the network's rate per GPU; oversubscription stays as it is."""
    factor = bytes_per_s / cluster.levels[1].link_bytes_per_s if len(cluster.levels) > 1 else 1.0
    return scaled_network(cluster, factor)


def scaled_network(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    """Scale links and switches of every level above the node."""
    levels = [
        replace(
            level,
            link_bytes_per_s=level.link_bytes_per_s * factor,
            switch_bytes_per_s=level.switch_bytes_per_s * factor,
        )
        for level in cluster.levels[1:]
    ]
    return replace(cluster, levels=(cluster.levels[0], *levels))


def calibrated(cluster: ClusterSpec, gpus: int, reduced: float | None, gathered: float | None) -> ClusterSpec:
    """Fit the network above the node to what a 1 GiB AllReduce and AllGather over all GPUs measured there.

    Where both take much longer than the network needs for an AllGather, `RANKS_BIND` times, they are bound by their
    ranks, not by their bytes: then each collective waits for every rank of its group (`ClusterSpec.rank_overhead_s`)
    and the network's bandwidth is not known. Otherwise the AllReduce's bus bandwidth scales the network; the factor is
    bounded to 1/100..2: a faster network than the preset's by more than 2 contradicts the preset. Inside one node
    nothing changes.

    Args:
        reduced, gathered: bus bandwidth of the AllReduce and the AllGather [bytes/s], None where not measured.
    """
    if gpus <= cluster.node_gpus:
        return cluster
    if gathered is not None:
        measured_s = PROBE_BYTES * (gpus - 1) / gpus / gathered
        if reduced is not None:  # which does more: an AllGather that takes longer is a probe gone wrong
            measured_s = min(measured_s, PROBE_BYTES * 2 * (gpus - 1) / gpus / reduced)
        if measured_s > RANKS_BIND * float(collective_time_s(cluster, "allgather", PROBE_BYTES, gpus)):
            return replace(cluster, rank_overhead_s=measured_s / gpus)
    if reduced is None:
        return cluster
    time_s = float(collective_time_s(cluster, "allreduce", PROBE_BYTES, gpus))
    predicted = PROBE_BYTES / time_s * 2 * (gpus - 1) / gpus
    return scaled_network(cluster, min(max(reduced / predicted, 0.01), 2.0))
