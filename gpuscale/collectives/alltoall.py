"""Other ways than NCCL's to exchange between all GPUs of a group: in two phases, and token by token
(docs/collectives.md).

Hierarchical: Tutel's 2DH (Hwang et al. 2022, arXiv 2206.03382, section 4.3), DeepSpeed-MoE (Rajbhandari et al. 2022,
arXiv 2201.05596). DeepEP: a token crosses the network once for each node that has one of its experts, and goes on over
NVLink once for each GPU that has one; both at the same time (DeepSeek-V3, arXiv 2412.19437, section 3.2.2).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscale.arrays import FloatArray
from gpuscale.collectives.nccl import blended_s
from gpuscale.collectives.nccl_constants import Tuning
from gpuscale.collectives.times import collective_time_s
from gpuscale.specs.cluster import IBVERBS, ClusterSpec, LevelSpec

SORT_PASSES = 4
"""Passes over the send buffer in memory between the two phases: each of two sorts reads and writes it."""

SM_BYTES_PER_S = 15.5e9
"""fit: what one SM copies over NVLink; DeepEP's normal kernels with 20 SMs on 4 and 8 H100, H200, B200, B300, GB200 and
GB300 all move 280-300 GB/s (AIConfigurator's kernel database)."""

KERNEL_SHARE = 0.87
"""fit: what kernels that write each token where it belongs carry over NVLink, as a share of what NCCL plans with:
HybridEP with 16 and 32 SMs on 8 to 36 GPUs of a GB200 rack 622 of 722 GB/s on average (deepseek-ai/DeepEP, branch
hybrid-ep, docs/README_Hybrid-EP.md, kernel time only, own GPU left out, probabilities counted)."""

NO_REMOTE_WRITES = frozenset({"eni", "ethernet"})
"""Networks whose cards cannot write into the memory of another node's GPU (TCP of the kernel, TCPX, TCPXO), so that
NCCL exchanges tokens."""

PROXIED = {"uccl": (1.0, 2.0e-3), "nvshmem": (0.4, 1.9e-3)}
"""Where CPU threads post every token's message: share of the wire that they reach, and the least that an exchange
across nodes takes [s].

fit: Kimi K2 and DeepSeek-V3 over EFA with microbatches of 1 and 4 sequences (512 and 2,048 tokens a GPU). UCCL's own
kernels reach the wire (p5en, p6-b200: 38 - 42 of 50 GB/s with 4,096 tokens); over Slingshot guesstimate.
"""

EXPERTS_PER_TOKEN = 8
"""DeepSeek-V3's (arXiv 2412.19437), and most others' since."""

MOST_EXPERTS = 1024
"""More experts per token than any model has."""


class Routing(NamedTuple):
    """How tokens choose their experts, which are spread evenly over the GPUs."""

    choices: int  #: experts per token, all of them different.
    groups: int = 1  #: the experts form so many equal groups, in order (node-limited routing: the groups are nodes).
    top_groups: int = 1  #: groups out of which a token takes its experts.
    experts: int = 0  #: of a layer; 0 where it is not known: so many that choices fall independently of one another.


class Phases(NamedTuple):
    """Times of an exchange inside nodes and across them, (N,) each [s]."""

    inside_s: FloatArray
    across_s: FloatArray


def units(cluster: ClusterSpec, size: ArrayLike, stride: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the members of a group in one node, and the nodes that it spans, (N,) each."""
    inside = np.clip(cluster.node_gpus // np.asarray(stride), 1, size)
    return inside, -(-np.asarray(size) // inside)


def hierarchical_s(
    cluster: ClusterSpec, bytes_: FloatArray, size: ArrayLike, stride: ArrayLike, *, tuning: Tuning | None = None
) -> Phases:
    """Return the two phases of a hierarchical exchange of (N,) send buffers, inside nodes so that each GPU holds what
    its node sends to the same rail, then across; an uneven last node takes as long as a full one."""
    inside, nodes = units(cluster, size, stride)
    across_stride = inside * np.asarray(stride)
    within = collective_time_s(cluster, "alltoall", bytes_, inside, stride, tuning=tuning)
    across = collective_time_s(cluster, "alltoall", bytes_, nodes, across_stride, tuning=tuning)
    sort_s = SORT_PASSES * bytes_ / cluster.gpu.memory_bandwidth_bytes_per_s
    return Phases(within + np.where(nodes > 1, sort_s, 0.0), across)


def deduplicated_s(
    cluster: ClusterSpec,
    copy_bytes: FloatArray,
    size: ArrayLike,
    stride: ArrayLike,
    routing: Routing,
    *,
    ideal: bool = False,
    sms: int | None = None,
    transport: str = "nvshmem",
) -> Phases:
    """Return the phases of an exchange that sends a token once to every node and every GPU with one of its experts;
    both run at the same time.

    Args:
        copy_bytes: (N,) one copy of each token of a GPU.
        ideal: bytes over bandwidth only.
        sms: SMs that copy over NVLink; None for as many as it takes.
        transport: who posts messages on other networks than InfiniBand and RoCE, one of `PROXIED`.
    """
    inside, nodes = units(cluster, size, stride)
    local = copy_bytes * distinct_targets(np.asarray(size), routing)
    remote = copy_bytes * distinct_targets(nodes, routing)
    across_stride = inside * np.asarray(stride)
    nvlink_s = collective_time_s(cluster, "alltoall", local, inside, stride, ideal=True)
    if not ideal:
        start_s = collective_time_s(cluster, "alltoall", np.minimum(local, 1.0), inside, stride)
        nvlink_s = start_s + nvlink_s / (KERNEL_SHARE * cluster.levels[cluster.domain_index].link_efficiency)
    network_s = collective_time_s(cluster, "alltoall", remote, nodes, across_stride, ideal=ideal)
    network = _network(cluster)
    if not ideal and network.fabric not in IBVERBS:
        share, least_s = PROXIED[transport]
        wire_s = collective_time_s(cluster, "alltoall", remote, nodes, across_stride, ideal=True)
        network_s = np.maximum(wire_s / (share * network.link_efficiency), np.where(nodes > 1, least_s, 0.0))
    if sms is not None:
        copying_s = local * (1 - 1 / inside) / (sms * SM_BYTES_PER_S)
        nvlink_s = blended_s(nvlink_s, copying_s)
    return Phases(nvlink_s, network_s)


def writes_remotely(cluster: ClusterSpec) -> bool:
    """Whether GPUs of one node can write into the memory of another's, as exchanges token by token do."""
    return _network(cluster).fabric not in NO_REMOTE_WRITES


def _network(cluster: ClusterSpec) -> LevelSpec:
    return cluster.levels[min(cluster.domain_index + 1, len(cluster.levels) - 1)]


def distinct_targets(targets: NDArray[np.int64], routing: Routing) -> FloatArray:
    """Expected number of distinct ones among `targets` over which the experts are spread in order, (N,).

    N (1 - C(E - E/N, k) / C(E, k)): k different ones of E experts, all as likely, miss the E/N of a target with the
    hypergeometric chance; N (1 - (1 - 1/N)^k) where E is large.
    """
    values, back = np.unique(np.atleast_1d(targets), return_inverse=True)
    missed = np.array([_missed(int(value), routing) for value in values])
    return (values * (1.0 - missed))[back]


@lru_cache(maxsize=4096)
def _missed(targets: int, routing: Routing) -> float:
    """Chance that none of a token's choices falls on a given target, which is chosen with the group that it is part of
    or not at all; one of several groups has `j` of them among the chosen ones with the hypergeometric chance."""
    choices, groups, top_groups, experts = routing
    eligible = experts * top_groups / groups

    def none_of(share: float) -> float:
        if not experts:
            return (1.0 - share) ** choices
        drawn = range(min(choices, int(eligible)))
        return math.prod(max(eligible * (1.0 - share) - one, 0.0) / (eligible - one) for one in drawn)

    if targets >= groups:
        chosen = top_groups / groups
        return 1.0 - chosen + chosen * none_of(groups / targets / top_groups)
    own = groups // targets
    ways = math.comb(groups, top_groups)
    chances = ((j, math.comb(own, j) * math.comb(groups - own, top_groups - j) / ways) for j in range(top_groups + 1))
    return math.fsum(chance * none_of(j / top_groups) for j, chance in chances)
