"""What one file states of a cluster: every value with the place where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stated(Generic[T]):
    """A value and where it was read: `node.xml:12: sm=90`."""

    value: T
    source: str

    @property
    def place(self) -> str:
        """The file and line of the source."""
        return self.source.removeprefix("assumed: ").split(": ", 1)[0]


@dataclass(frozen=True)
class Device:
    """What a file says of the GPU model.

    Attributes:
        label: the model as the file names it: `NVIDIA A100-SXM4-80GB`, `PCI device 10de:2330`.
        preset: the GPU preset that it means; None when gpuscale has none of it.
        exact: whether the file names the model; False where it gives the architecture alone and `preset` is assumed.
        sm_count: compute units of the GPU, where the file says (0: it does not).
    """

    label: str
    preset: str | None
    exact: bool
    sm_count: int = 0


@dataclass(frozen=True)
class Tier:
    """One level of a switched network.

    Attributes:
        name: `leaf`, `spine`, ...
        nodes: nodes under one instance.
        switches: switches of one instance at this level; 0 where the file does not count them.
        switch_gb_per_s: what the ports of one of them that face down carry, one direction [GB/s].
        source: where it was read.
    """

    name: str
    nodes: int
    switches: int
    switch_gb_per_s: float
    source: str


@dataclass(frozen=True)
class Facts:
    """What one file states; None where it says nothing.

    Attributes:
        file: name of the file.
        kind: what it is, with its article: `an NCCL topology XML`.
        gpus: GPUs of one node (of one NVLink domain, when it spans hosts).
        host_gpus: GPUs of one host, where several hosts make up the node.
        device: the GPU model.
        links: links of one GPU to others.
        island: GPUs that the links join; as `gpus` when all of them.
        link_fabric: `nvlink` or `xgmi`; `pcie` where the file says that there are no links.
        link_gb_per_s: rate of one link, one direction [GB/s].
        switched: whether the links go through switches, of which the file may not say how many.
        switches: switches of the links (NVSwitch) in one node; 0 when GPUs are linked directly.
        gpus_per_uplink: GPUs that share one PCIe link to the host.
        pcie_gb_per_s: what one GPU's PCIe link carries, one direction [GB/s].
        nics: network cards (ports) of one node that serve its GPUs.
        nic_gbit_per_s: rate of one of them, one direction.
        nic_fabric: the network that they are on.
        way: how NCCL goes from GPU to GPU without links, as `path` of a level names it.
        nic_way: how it goes from GPU to network card.
        pcie_switch: GPUs and network cards behind one PCIe switch, where all are alike.
        tiers: levels of the network, innermost first.
        notes: what was left out, or read in a way worth knowing.
    """

    file: str
    kind: str
    gpus: Stated[int] | None = None
    host_gpus: Stated[int] | None = None
    device: Stated[Device] | None = None
    links: Stated[int] | None = None
    island: Stated[int] | None = None
    link_fabric: Stated[str] | None = None
    link_gb_per_s: Stated[float] | None = None
    switched: Stated[bool] | None = None
    switches: Stated[int] | None = None
    gpus_per_uplink: Stated[int] | None = None
    pcie_gb_per_s: Stated[float] | None = None
    nics: Stated[int] | None = None
    nic_gbit_per_s: Stated[float] | None = None
    nic_fabric: Stated[str] | None = None
    way: Stated[str] | None = None
    nic_way: Stated[str] | None = None
    pcie_switch: Stated[tuple[int, int]] | None = None
    tiers: Stated[tuple[Tier, ...]] | None = None
    notes: tuple[str, ...] = field(default=())
