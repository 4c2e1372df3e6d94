"""Clusters of unlike nodes: pools of alike ones, and what they are together.

A synchronous job waits for its slowest part. So the whole counts as a cluster of alike nodes with the least of what the
pools have: FLOP/s and memory of a GPU, bandwidth and latency of each level that all pools have. Levels are paired by
what they are (inside a box or rack from the outermost inwards, networks from the innermost outwards) and have the
largest size that divides all of them, so that they tile every pool; a level that one pool lacks is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, gcd

from gpuscale.errors import InputError
from gpuscale.specs.cluster import INSIDE, ClusterSpec, HostSpec, LevelSpec, PoolSpec
from gpuscale.specs.gpu import PRECISIONS, GpuSpec

_COMPARED = ("bf16", "fp16", "fp32")
"""Precisions by which GPUs are compared: the first that all have."""


def cut(cluster: ClusterSpec, gpus: int, name: str) -> ClusterSpec:
    """Return the first `gpus` GPUs of a cluster as one of their own, which cannot be extended.

    Raises:
        InputError: no whole nodes, a part of a torus, or more than a single box has.
    """
    whole, _ = cluster.sized_for(gpus)
    if gpus % cluster.node_gpus:
        raise InputError(
            f"{gpus:,} GPUs do not fill whole nodes of {cluster.node_gpus}",
            hint=f"give a multiple of {cluster.node_gpus}",
        )
    below = [level for level in whole.levels if level.gpus < gpus]
    top = whole.levels[len(below)]
    if top.torus_shape and top.gpus != gpus:
        raise InputError(
            f"{gpus:,} GPUs are only a part of the torus {top.name}", hint=f"give all {top.gpus:,} GPUs of it"
        )
    switches = ceil(top.switches * gpus / top.gpus)
    each = top.switches * top.switch_bytes_per_s * gpus / top.gpus / switches if switches else 0.0
    levels = (*below, replace(top, gpus=gpus, switches=switches, switch_bytes_per_s=each))
    names = {level.name for level in levels}
    curves = tuple(one for one in cluster.calibration if one.level in names and (one.gpus - 1) * one.stride < gpus)
    return replace(cluster, name=name, levels=levels, extendable=False, aliases=(), calibration=curves)


def joined(whole: ClusterSpec, pools: Sequence[PoolSpec]) -> ClusterSpec:
    """Return the cluster that the pools make up, bound by the slowest of them.

    Args:
        whole: name, title, sources and the level that joins the pools and has all their GPUs; its GPU does not count.
        pools: at least two; their order does not matter.
    """
    top = whole.levels[-1]
    common = common_levels([pool.cluster for pool in pools])
    link = min(top.link_bytes_per_s, common[-1].egress_bytes_per_s) if common else top.link_bytes_per_s
    clusters = [pool.cluster for pool in pools]
    return replace(
        whole,
        gpu=slowest_gpu([one.gpu for one in clusters]),
        levels=(*common, replace(top, link_bytes_per_s=link)),
        extendable=False,
        host=_host([one.host for one in clusters]),
        pools=tuple(pools),
        mixture=_mixture(pools),
    )


def common_levels(clusters: Sequence[ClusterSpec]) -> tuple[LevelSpec, ...]:
    """Return the levels that all clusters have, innermost first, each as slow as the slowest."""
    inside = [[level for level in one.levels if level.fabric in INSIDE] for one in clusters]
    outside = [[level for level in one.levels if level.fabric not in INSIDE] for one in clusters]
    boxes = list(zip(*(reversed(levels) for levels in inside), strict=False))[::-1]
    totals = [one.gpus for one in clusters]
    found: list[LevelSpec] = []
    for alike in (*boxes, *zip(*outside, strict=False)):
        size = gcd(*(level.gpus for level in alike), *totals)
        if not found or size > found[-1].gpus:
            found.append(_slowest(alike, size, innermost=not found))
    return tuple(found)


def _slowest(levels: Sequence[LevelSpec], size: int, *, innermost: bool) -> LevelSpec:
    def egress(level: LevelSpec) -> float:
        """Of a mesh that loses members, the links to those that stay."""
        meshed = innermost and not level.switches and level.fabric in {"nvlink", "xgmi"} and level.gpus > size > 1
        return level.egress_bytes_per_s * ((size - 1) / (level.gpus - 1) if meshed else 1.0)

    def slowness(level: LevelSpec) -> tuple[float | str, ...]:
        return egress(level), level.link_efficiency, -level.hop_latency_s, level.name, level.fabric, level.switches

    slow = min(levels, key=slowness)
    return LevelSpec(
        name=slow.name,
        fabric=slow.fabric,
        gpus=size,
        link_bytes_per_s=egress(slow),
        switches=0,
        switch_bytes_per_s=0.0,
        hop_latency_s=max(level.hop_latency_s for level in levels),
        in_network_reduction=all(level.in_network_reduction for level in levels),
        link_efficiency=min(level.link_efficiency for level in levels),
        nics_per_gpu=min(level.nics_per_gpu for level in levels),
        rails=_same([level.rails for level in levels], "none"),
        pxn=all(level.pxn for level in levels),
        topology="switched" if slow.switches else "",
        path=_same([level.path for level in levels], ""),
    )


def _same(values: Sequence[str], otherwise: str) -> str:
    return values[0] if len(set(values)) == 1 else otherwise


def slowest_gpu(gpus: Sequence[GpuSpec]) -> GpuSpec:
    """Return the GPU with the fewest FLOP/s, with no more memory, bandwidth or precisions than the others have."""
    compared = compared_precision(gpus)
    slow = min(gpus, key=lambda gpu: (gpu.peak_flops_per_s[compared] * gpu.kernels.gemm_fraction[compared], gpu.name))
    if len({gpu.name for gpu in gpus}) == 1:
        return slow
    peaks = {
        name: min(gpu.peak_flops_per_s[name] for gpu in gpus)
        for name in PRECISIONS
        if all(name in gpu.peak_flops_per_s for gpu in gpus)
    }

    def least(value: Callable[[GpuSpec], float]) -> float:
        return min(value(gpu) for gpu in gpus)

    return replace(
        slow,
        title=f"{slow.title} (the slowest of {len({gpu.name for gpu in gpus})} GPUs)",
        peak_flops_per_s=peaks,
        memory_bytes=least(lambda gpu: gpu.memory_bytes),
        memory_datasheet_bytes=least(lambda gpu: gpu.memory_datasheet_bytes),
        memory_bandwidth_bytes_per_s=least(lambda gpu: gpu.memory_bandwidth_bytes_per_s),
        host_link_bytes_per_s=least(lambda gpu: gpu.host_link_bytes_per_s),
    )


def compared_precision(gpus: Sequence[GpuSpec]) -> str:
    """Return the precision by which GPUs are compared.

    Raises:
        InputError: they have none in common.
    """
    for name in _COMPARED:
        if all(name in gpu.peak_flops_per_s for gpu in gpus):
            return name
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    raise InputError(f"{names} have no precision in common", hint=f"pools need one of {', '.join(_COMPARED)}")


def _host(hosts: Sequence[HostSpec | None]) -> HostSpec | None:
    """Return the least host, where all have as many GPUs; else nothing is known of one."""
    known = [host for host in hosts if host is not None]
    if len(known) < len(hosts) or len({host.gpus for host in known}) > 1:
        return None
    return HostSpec(
        gpus=known[0].gpus,
        gpus_per_uplink=max(host.gpus_per_uplink for host in known),
        memory_bytes=min(host.memory_bytes for host in known),
        memory_bytes_per_s=min(host.memory_bytes_per_s for host in known),
    )


def _mixture(pools: Sequence[PoolSpec]) -> str:
    """Say which pool binds and what the others have to spare."""
    precision = compared_precision([pool.cluster.gpu for pool in pools])
    ordered = sorted(pools, key=lambda pool: (pool.cluster.gpu.peak_flops_per_s[precision], pool.name))
    slow = ordered[0]
    least = slow.cluster.gpu.peak_flops_per_s[precision]
    text = f"every part runs as the slowest: {precision} FLOP/s of {slow.name}, {_least_memory(pools)}"
    for pool in ordered[1:]:
        idle = 1 - least / pool.cluster.gpu.peak_flops_per_s[precision]
        if idle > 0:
            text += (
                f"; the {pool.cluster.gpus:,} {pool.name} wait for the {slow.cluster.gpus:,} {slow.name}: "
                f"{idle:.0%} of their FLOP/s idle"
            )
    return text


def _least_memory(pools: Sequence[PoolSpec]) -> str:
    pool = min(pools, key=lambda pool: (pool.cluster.gpu.memory_bytes, pool.name))
    return f"{pool.cluster.gpu.memory_bytes / 2**30:.1f} GiB of {pool.name}"


__all__ = ["common_levels", "compared_precision", "cut", "joined", "slowest_gpu"]
