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

SISTERS = {
    "dgx-h100-superpod": ("h100-sxm-80gb", "hopper", "nvlink", "infiniband"),
    "azure-ndv5": ("h100-sxm-80gb", "hopper", "nvlink", "infiniband"),
    "aws-p5": ("h100-sxm-80gb", "hopper", "nvlink", "efa"),
    "dgx-a100-superpod": ("a100-sxm-80gb", "ampere", "nvlink", "infiniband"),
    "azure-ndv4": ("a100-sxm-40gb", "ampere", "nvlink", "infiniband"),
    "azure-ndmv4": ("a100-sxm-80gb", "ampere", "nvlink", "infiniband"),
    "aws-p4d": ("a100-sxm-40gb", "ampere", "nvlink", "efa"),
    "h200-hgx": ("h200-sxm-141gb", "hopper", "nvlink", "infiniband"),
    "aws-p5en": ("h200-sxm-141gb", "hopper", "nvlink", "efa"),
    "b200-hgx": ("b200", "blackwell", "nvlink", "infiniband"),
    "b300-hgx": ("b300", "blackwell-ultra", "nvlink", "infiniband"),
    "gb200-nvl72": ("gb200", "blackwell", "nvlink", "infiniband"),
    "gb300-nvl72": ("gb300", "blackwell-ultra", "nvlink", "infiniband"),
    "h800-deepseek": ("h800-sxm-80gb", "hopper", "nvlink", "infiniband"),
    "dgx1-v100": ("v100-sxm-32gb", "volta", "nvlink", "infiniband"),
    "mi250x": ("mi250x", "cdna2", "xgmi", "slingshot"),
    "mi300x": ("mi300x", "cdna3", "xgmi", "roce"),
    "mi325x": ("mi325x", "cdna3", "xgmi", "roce"),
    "mi355x": ("mi355x", "cdna4", "xgmi", "roce"),
    "gh200": ("gh200-96gb", "hopper", "nvlink", "infiniband"),
    "gh200-quad": ("gh200-96gb", "hopper", "nvlink", "slingshot"),
    "polaris": ("a100-sxm-40gb", "ampere", "nvlink", "slingshot"),
    "box-a100-pcie": ("a100-pcie-80gb", "ampere", "pcie", ""),
    "box-h100-pcie": ("h100-pcie-80gb", "hopper", "pcie", ""),
    "box-l40s-pcie": ("l40s", "ada", "pcie", ""),
    "aws-g6e": ("l40s", "ada", "pcie", "efa"),
    "box-rtx-pro-6000": ("rtx-pro-6000", "blackwell-rtx", "pcie", ""),
}
"""Presets to borrow from when no --base is given -> their GPU, its architecture, the fabric of a node and the network.

Of equally like ones the first. The table spares loading them all; a test holds it against the presets."""

FABRIC_NODES = 128
"""Nodes of a network of which no file says the size."""

_HOP_US = {"nvlink": 1.0, "xgmi": 1.0, "pcie": 2.0, "infiniband": 5.0, "roce": 5.5, "efa": 12.5, "eni": 40.0,
           "slingshot": 6.0, "ethernet": 40.0}  # fmt: skip
_EFFICIENCY = {"nvlink": 0.8, "xgmi": 0.72, "pcie": 0.42, "infiniband": 0.96, "roce": 0.93, "efa": 0.88, "eni": 0.38,
               "slingshot": 0.85, "ethernet": 0.38}  # fmt: skip
"""As the presets have them: sources there."""


@dataclass(frozen=True)
class Like:
    """The cluster to borrow from, and how sources call it.

    Attributes:
        chosen: it is the user's --base.
        network: the preset to borrow the network's numbers from, where `cluster` has none of its kind.
    """

    cluster: ClusterSpec
    chosen: bool
    network: ClusterSpec | None = None

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

    def borrowed(self, fabric: str, index: int, key: str, value: Callable[[LevelSpec], float]) -> Stated[float] | None:
        """Return a number of such a level of `cluster`, else of `network`; None where neither has one.

        Args:
            key: what a cluster file calls the number.
            value: reads it off a level, in the unit of the file.
        """
        for lender in (self, *([Like(self.network, chosen=False)] if self.network else [])):
            level = lender.level(fabric, index)
            if level is not None:
                return lender.stated(value(level), f"{level.name}.{key}")
        return None


def choose_sister(gpu: GpuSpec, link_fabric: str | None, nic_fabric: str | None) -> str:
    """Return the name of the preset most like the cluster: the same GPU, then architecture, fabrics."""

    def likeness(name: str) -> tuple[bool, ...]:
        other, architecture, link, network = SISTERS[name]
        return (
            other == gpu.name,
            architecture == gpu.architecture,
            link == (link_fabric or (gpu.link_name if gpu.links else "pcie")),
            nic_fabric is not None and nic_fabric == network,
        )

    return max(SISTERS, key=likeness)


def choose_network_sister(gpu: GpuSpec, nic_fabric: str | None) -> str | None:
    """Return the first preset with this kind of network around GPUs of the same architecture; None where none has."""
    return next((name for name, (_, architecture, _, network) in SISTERS.items()
                 if (architecture, network) == (gpu.architecture, nic_fabric)), None)  # fmt: skip


def hop_latency_us(like: Like, fabric: str, index: int) -> Stated[float]:
    """Return the hop latency of a level."""
    found = like.borrowed(fabric, index, "hop_latency_us", lambda level: level.hop_latency_s * 1e6)
    return found or _usual(_HOP_US[fabric], fabric)


def link_efficiency(like: Like, fabric: str, index: int) -> Stated[float]:
    """Return the share of the wire rate that large transfers reach."""
    found = like.borrowed(fabric, index, "link_efficiency", lambda level: level.link_efficiency)
    return found or _usual(_EFFICIENCY[fabric], fabric)


def _usual(value: float, fabric: str) -> Stated[float]:
    return Stated(value, f"guesstimate: what gpuscale's presets have for {fabric}")
