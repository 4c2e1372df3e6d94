"""A cluster file under construction: levels, each number with its source, and what the user says beside the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuscale.importers.assume import Like, hop_latency_us, link_efficiency
from gpuscale.importers.facts import Stated
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec

ASSUMED = ("assumed:", "guesstimate:")
"""How the source of a number begins that no file states."""

LINK = "link_gb_per_s_per_gpu_per_direction"


@dataclass(frozen=True)
class Choice:
    """What the user says beside the files; `gpu_source` says where the GPU comes from."""

    gpu: GpuSpec
    gpu_source: str
    base: ClusterSpec | None = None
    nics: int | None = None
    nic_gbit_per_s: float | None = None
    nodes: int | None = None


@dataclass
class Level:
    """One level under construction: key -> value with its source."""

    name: str
    fabric: str
    values: dict[str, Stated[Any]]

    @property
    def gpus(self) -> int:
        """GPUs under one instance."""
        return int(self.values["gpus"].value)

    @property
    def egress_gb_per_s(self) -> float:
        """What one GPU sends across when all do [GB/s]."""
        link = float(self.values[LINK].value)
        if "switches" not in self.values:
            return link
        switches = self.values["switches"].value * self.values["switch_gb_per_s_per_direction"].value
        return min(link, float(switches) / self.gpus)


@dataclass
class Draft:
    """A cluster file under construction."""

    levels: list[Level]
    host: dict[str, Stated[Any]] | None
    extendable: bool
    like: Like
    notes: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)


def complete(draft: Draft, level: Level, index: int) -> Level:
    """Add latency and efficiency, which no file states; the level is the `index`-th of its fabric."""
    level.values["hop_latency_us"] = hop_latency_us(draft.like, level.fabric, index)
    level.values["link_efficiency"] = link_efficiency(draft.like, level.fabric, index)
    return level
