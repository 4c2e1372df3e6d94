"""What no file states: values of a like cluster preset, or of the rules below, each with a source that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuscale.importers.facts import Stated
from gpuscale.presets.guards import NETWORKS
from gpuscale.specs.cluster import ClusterSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec

MAX_SOURCE = 560
"""Characters of a source text; the cluster file takes 600."""

SISTERS = (
    "dgx-h100-superpod", "azure-ndv5", "aws-p5", "dgx-a100-superpod", "azure-ndv4", "azure-ndmv4", "aws-p4d",
    "h200-hgx", "aws-p5en", "b200-hgx", "b300-hgx", "gb200-nvl72", "gb300-nvl72", "h800-deepseek", "dgx1-v100",
    "mi250x", "mi300x", "mi325x", "mi355x", "gh200", "box-a100-pcie", "box-h100-pcie", "box-l40s-pcie", "aws-g6e",
)  # fmt: skip
"""Presets to borrow from when no --base is given; of equally like ones the first."""

FABRIC_NODES = 128
"""Nodes of a network of which no file says the size."""

_HOP_US = {"nvlink": 1.0, "xgmi": 1.0, "pcie": 2.0, "infiniband": 5.0, "roce": 5.5, "efa": 12.5, "eni": 40.0,
           "slingshot": 6.0, "ethernet": 40.0}  # fmt: skip
_EFFICIENCY = {"nvlink": 0.8, "xgmi": 0.72, "pcie": 0.42, "infiniband": 0.96, "roce": 0.93, "efa": 0.88, "eni": 0.38,
               "slingshot": 0.85, "ethernet": 0.38}  # fmt: skip
"""As the presets have them: sources there."""


@dataclass(frozen=True)
class Like:
    """The cluster to borrow from, and how sources call it."""

    cluster: ClusterSpec
    chosen: bool

    def stated(self, value: Any, key: str) -> Stated[Any]:
        """Return a borrowed value; its source repeats that of the preset."""
        how = "assumed: as --base" if self.chosen else "guesstimate: as the sister preset"
        source = self.cluster.sources.get(key, "its file")
        return Stated(value, f"{how} {self.cluster.name}: {source}"[:MAX_SOURCE])

    def networks(self) -> list[LevelSpec]:
        """Return its network levels, innermost first."""
        return [level for level in self.cluster.levels if level.fabric in NETWORKS]

    def level(self, fabric: str, index: int) -> LevelSpec | None:
        """Return the level to borrow from: of the same fabric, the `index`-th of the network (or the last)."""
        same = [level for level in self.cluster.levels if level.fabric == fabric]
        if not same:
            return None
        return same[min(index, len(same) - 1)] if fabric in NETWORKS else same[0]


def choose_sister(
    load: Callable[[str], ClusterSpec], gpu: GpuSpec, link_fabric: str | None, nic_fabric: str | None
) -> Like:
    """Return the preset most like the cluster: the same GPU, then architecture, fabrics, vendor."""

    def likeness(cluster: ClusterSpec) -> tuple[bool, ...]:
        fabrics = [level.fabric for level in cluster.levels]
        return (
            cluster.gpu.name == gpu.name,
            cluster.gpu.architecture == gpu.architecture,
            link_fabric is None or fabrics[0] == link_fabric,
            nic_fabric is None or nic_fabric in fabrics,
            cluster.gpu.link_name == gpu.link_name,
        )

    return Like(max((load(name) for name in SISTERS), key=likeness), chosen=False)


def hop_latency_us(like: Like, fabric: str, index: int) -> Stated[float]:
    """Return the hop latency of a level."""
    level = like.level(fabric, index)
    if level is not None:
        return like.stated(level.hop_latency_s * 1e6, f"{level.name}.hop_latency_us")
    return Stated(_HOP_US[fabric], f"guesstimate: what gpuscale's presets have for {fabric}")


def link_efficiency(like: Like, fabric: str, index: int) -> Stated[float]:
    """Return the share of the wire rate that large transfers reach."""
    level = like.level(fabric, index)
    if level is not None:
        return like.stated(level.link_efficiency, f"{level.name}.link_efficiency")
    return Stated(_EFFICIENCY[fabric], f"guesstimate: what gpuscale's presets have for {fabric}")
