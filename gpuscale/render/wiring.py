"""What a cluster's levels are wired like, and the pools of a cluster of unlike nodes, in words and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from gpuscale.presets.wiring import WAYS
from gpuscale.render.console import table
from gpuscale.specs.cluster import ClusterSpec, LevelSpec, PoolSpec

GB = 1e9


def wiring_lines(cluster: ClusterSpec) -> Iterator[str]:
    """Yield a line for each level of which more is known than sizes and rates."""
    for index, level in enumerate(cluster.levels):
        parts = [*_shape(cluster, index, level), *_rails(level), *_way(level)]
        if parts:
            yield f"{level.name}: {'; '.join(parts)}"


def _shape(cluster: ClusterSpec, index: int, level: LevelSpec) -> Iterator[str]:
    if level.torus_shape:
        shape = " x ".join(str(length) for length in level.torus_shape)
        axis = level.egress_bytes_per_s / len(level.torus_shape) / GB
        yield f"torus of {shape}, the first axis first; around one axis {axis:.4g} GB/s, along a part of it half"
    elif level.global_bytes_per_s:
        groups = cluster.children(index)
        links = level.global_bytes_per_s * cluster.levels[index - 1].gpus / GB
        share = level.minimal_share
        route = "adaptive routing" if share is None else f"{share:.0%} of the traffic goes straight"
        yield f"dragonfly of {groups} groups, each with {links:,.5g} GB/s of global links; {route}"
    elif level.topology == "mesh":
        yield "a link from each GPU to every other"


def _rails(level: LevelSpec) -> Iterator[str]:
    if level.rails == "none":
        return
    kind = "rail-optimised" if level.rails == "optimised" else "rails only, no spine joins them"
    to_others = "over NVLink first (PXN)" if level.pxn else "over the level above"
    if level.rails == "only" and not level.pxn:
        to_others = "passed on inside a node"
    yield f"{kind}: one hop on a rail, to other rails {to_others}"


def _way(level: LevelSpec) -> Iterator[str]:
    if level.path:
        yield f"path {level.path}, {WAYS[level.path].title}"
    if level.gpus_per_pcie_switch:
        cards = level.nics_per_pcie_switch
        behind = f"{level.gpus_per_pcie_switch} GPU{'s' * (level.gpus_per_pcie_switch > 1)}"
        behind += f" and {cards} card{'s' * (cards > 1)}" if cards else ""
        yield f"{behind} behind each PCIe switch"


def pools_table(pools: Sequence[PoolSpec]) -> Table:
    """Draw one row per pool."""
    rows = [
        (
            pool.name,
            pool.cluster.gpu.name,
            f"{pool.cluster.gpus:,}",
            " ".join(f"{level.name}({level.gpus})" for level in pool.cluster.levels),
            " / ".join(f"{level.egress_bytes_per_s / GB:.4g}" for level in pool.cluster.levels),
        )
        for pool in pools
    ]
    return table(("pool", "GPU", "GPUs", "levels", "GB/s"), rows, left=2)


def wiring_body(level: LevelSpec) -> dict[str, Any]:
    """Return the wiring of a level for JSON; units stand in the keys."""
    return {
        "topology": level.topology or None,
        "torus_shape": list(level.torus_shape) or None,
        "global_gb_per_s_per_gpu": level.global_bytes_per_s / GB if level.global_bytes_per_s else None,
        "minimal_share": level.minimal_share,
        "rails": level.rails,
        "pxn": level.pxn,
        "path": level.path or None,
        "gpus_per_pcie_switch": level.gpus_per_pcie_switch or None,
        "nics_per_pcie_switch": level.nics_per_pcie_switch or None,
    }


def pools_body(pools: Sequence[PoolSpec]) -> list[dict[str, Any]]:
    """Return the pools of a cluster for JSON."""
    return [
        {
            "name": pool.name,
            "cluster": pool.cluster.name,
            "gpu": pool.cluster.gpu.name,
            "gpus": pool.cluster.gpus,
            "levels": [
                {
                    "name": level.name,
                    "fabric": level.fabric,
                    "gpus": level.gpus,
                    "gpu_to_gpu_gb_per_s": level.egress_bytes_per_s / GB,
                }
                for level in pool.cluster.levels
            ],
        }
        for pool in pools
    ]
