"""Rooflines: from which batch size, and up to which degree, training is bound by compute and not by communication
(docs/rooflines.md).

All forms are latency-free, of an MLP block in bf16, after Austin et al., "How to Scale Your Model", chapter "How to
Think About GPUs" (2025), "Takeaways for LLM scaling on GPUs". C is the peak of one GPU [FLOP/s], W the AllReduce
bandwidth [bytes/s] of the level that binds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError, did_you_mean
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import PRECISIONS
from gpuscale.specs.model import ModelSpec

DEFAULT_CLUSTERS = ("dgx-h100-superpod", "b200-hgx", "gb200-nvl72")
"""H100, B200 and NVL72, side by side."""

DEFAULT_EP = 64
"""Expert-parallel group of the MoE rows: DeepSeek-V3's (arXiv 2412.19437, section 3.1), or all experts if fewer."""


@dataclass(frozen=True)
class LevelRoofline:
    """Thresholds when data parallelism spans one level and all below it; tokens per GPU and step."""

    level: str  #: name of the level.
    gpus: int  #: GPUs under it.
    allreduce_bytes_per_s: float  #: AllReduce bandwidth with in-network reduction, unsharded gradients [bytes/s].
    adds: bool  #: every level up to this one adds in the network, so that `dp_tokens` is what the hardware does.
    dp_tokens: float  #: data parallelism, AllReduce with in-network reduction: C / 2W.
    dp_tokens_without_sharp: float  #: the same with ReduceScatter and AllGather: C / W.
    fsdp_tokens: float  #: ZeRO-3 / FSDP, which gains nothing from in-network reduction: C / W.
    #: data parallelism of a mixture of experts: E C / (2 k W), W that of an array split EP ways; None for dense models
    #: and where the expert-parallel group fills the level.
    moe_dp_tokens: float | None
    moe_fsdp_tokens: float | None  #: the same with FSDP, twice that.
    #: data parallelism across this level alone, the level below filled by model parallelism.
    outer_dp_tokens: float | None
    #: tokens of a step over all GPUs under the level that these come to, in whole tokens per GPU: of data parallelism,
    #: with reduction in switches ...
    dp_batch_tokens: int
    fsdp_batch_tokens: int  #: ... without it, and of FSDP ...
    moe_dp_batch_tokens: int | None  #: ... and of a mixture of experts, likewise.
    moe_fsdp_batch_tokens: int | None  #: the same with FSDP.
    outer_unit_tokens: int | None  #: `outer_dp_tokens` of all GPUs of one unit of the level below.


@dataclass(frozen=True)
class ClusterRoofline:
    """All thresholds of one model on one cluster."""

    cluster: str  #: name of the cluster.
    gpu: str  #: name of its GPU.
    precision: str  #: precision of the peak.
    peak_flops_per_s: float  #: dense peak of one GPU [FLOP/s].
    node_gpus: int  #: GPUs of the innermost level.
    node_egress_bytes_per_s: float  #: its bandwidth per GPU and direction [bytes/s].
    tp_divisor: float  #: F / Y above which tensor parallelism in the innermost level is bound by compute.
    max_tp: float  #: F / tp_divisor, the degree up to which that holds for the model's F.
    ep: int | None  #: expert-parallel degree that is assumed; None for dense models.
    ep_units: int | None  #: innermost-level units (nodes) that the expert-parallel group spans.
    levels: tuple[LevelRoofline, ...]  #: thresholds per level, innermost first; a level of one GPU has none.


@displayed
@dataclass(frozen=True)
class Roofline:
    """The thresholds of one model on several clusters, side by side."""

    model: str  #: name of the model.
    ffn: int  #: F, width of the MLP that tensor parallelism splits (routed and shared experts that a token visits).
    experts: int | None  #: routed experts; None for dense models.
    top_k: int | None  #: routed experts per token; None for dense models.
    clusters: tuple[ClusterRoofline, ...]  #: thresholds per cluster, as asked.
    notes: tuple[str, ...] = ()  #: what a reader should know of the model.


def allreduce_bytes_per_s(cluster: ClusterSpec, level: int, model_parallel: int = 1) -> float:
    """AllReduce bandwidth up to `level` with in-network reduction, seen by an array split `model_parallel` ways [B/s].

    min over the levels i that the reduction crosses of max(Y, S_{i-1}) W_i: the scaling book's strided form; inf where
    no level is crossed.
    """
    below, slowest = 1, float("inf")
    for one in cluster.levels[: level + 1]:
        if one.gpus > model_parallel:
            slowest = min(slowest, max(model_parallel, below) * one.egress_bytes_per_s)
        below = one.gpus
    return slowest


def dp_tokens_per_gpu(peak_flops_per_s: float, bytes_per_s: float, *, in_network_reduction: bool = True) -> float:
    """Tokens per GPU from which data parallelism is bound by compute: C / 2W, or C / W without in-network reduction."""
    return peak_flops_per_s / bytes_per_s / (2 if in_network_reduction else 1)


def fsdp_tokens_per_gpu(peak_flops_per_s: float, bytes_per_s: float) -> float:
    """Tokens per GPU from which FSDP / ZeRO-3 is bound by compute: C / W; switches cannot merge its RS and AG."""
    return peak_flops_per_s / bytes_per_s


def moe_dp_tokens_per_gpu(
    peak_flops_per_s: float, bytes_per_s: float, experts: int, top_k: int, ep_units: int = 1
) -> float:
    """Tokens per GPU from which a mixture of experts with data parallelism is bound by compute: E C / (2 k W z).

    z is the number of nodes that the expert-parallel group spans. With FSDP twice as many. W z is what
    `allreduce_bytes_per_s` returns for an array split EP ways, where whole nodes bind.
    """
    return experts * peak_flops_per_s / (2 * top_k * bytes_per_s * ep_units)


def tp_divisor(peak_flops_per_s: float, egress_bytes_per_s: float, gpus: int) -> float:
    """Least F / Y for which Y-way tensor parallelism in one domain is bound by compute: C (N-1)/N / W; 0 of one GPU."""
    return peak_flops_per_s * (gpus - 1) / gpus / egress_bytes_per_s


@public
def roofline(
    model: ModelSpec | str | Path,
    clusters: Sequence[ClusterSpec | str | Path],
    precision: str = "bf16",
    gpus: int | None = None,
) -> Roofline:
    """Compute every threshold for `model` on each cluster.

    Args:
        gpus: how many GPUs the job has, to which a cluster is extended; all of each without.

    Raises:
        InputError: unknown precision, or one that a GPU lacks; a cluster of one GPU, or one that cannot be extended.
    """
    model, loaded = load_model(model), [load_cluster(one) for one in clusters]
    notes = [*model.caveats, *dict.fromkeys(note for one in loaded for note in one.caveats)]
    if gpus is not None:
        sized = [one.sized_for(gpus) for one in loaded]
        notes += [note for _, note in sized if note]
        loaded = [_first(one, gpus) for one, _ in sized]
    alone = next((one.name for one in loaded if one.gpus < 2), None)
    if alone is not None:
        raise InputError("one GPU exchanges nothing", field="cluster", place=alone, hint="give a cluster of several")
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS, "there are")
        raise InputError(f"unknown precision {precision[:20]!r}", field="precision", hint=hint)
    kind = model.kinds[int(np.bincount(np.array(model.pattern)).argmax())]  # that the model has most of
    ffn, experts, top_k = kind.mlp.ffn if kind.mlp else 0, None, None
    if kind.moe is not None:
        ffn, experts, top_k = kind.moe.top_k * kind.moe.ffn + kind.moe.shared_ffn, kind.moe.experts, kind.moe.top_k
    return Roofline(
        model=model.name,
        ffn=ffn,
        experts=experts,
        top_k=top_k,
        clusters=tuple(_cluster(cluster, precision, ffn, experts, top_k) for cluster in loaded),
        notes=tuple(notes),
    )


def _first(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """The levels that the first GPUs use, of which the outermost has just these."""
    inner = [level for level in cluster.levels if level.gpus < gpus]
    return replace(cluster, levels=(*inner, cluster.levels[len(inner)].resized(gpus)))


def _cluster(cluster: ClusterSpec, precision: str, ffn: int, experts: int | None, top_k: int | None) -> ClusterRoofline:
    peak, node = cluster.gpu.peak(precision), cluster.levels[0]
    divisor = tp_divisor(peak, node.egress_bytes_per_s, node.gpus)
    ep = None if experts is None else min(experts, DEFAULT_EP)
    moe = None if experts is None or top_k is None or ep is None else (experts, top_k, ep)
    return ClusterRoofline(
        cluster=cluster.name,
        gpu=cluster.gpu.name,
        precision=precision,
        peak_flops_per_s=peak,
        node_gpus=node.gpus,
        node_egress_bytes_per_s=node.egress_bytes_per_s,
        tp_divisor=divisor,
        max_tp=ffn / divisor if divisor else float(node.gpus),
        ep=ep,
        ep_units=None if ep is None else -(-ep // node.gpus),
        levels=tuple(_level(cluster, index, peak, moe) for index, one in enumerate(cluster.levels) if one.gpus > 1),
    )


def _level(cluster: ClusterSpec, index: int, peak: float, moe: tuple[int, int, int] | None) -> LevelRoofline:
    level, reach = cluster.levels[index], allreduce_bytes_per_s(cluster, index)
    moe_tokens = outer = None
    if moe is not None and moe[2] < level.gpus:
        experts, top_k, ep = moe
        moe_tokens = moe_dp_tokens_per_gpu(peak, allreduce_bytes_per_s(cluster, index, ep), experts, top_k)
    below = cluster.levels[index - 1].gpus if index else 1
    if below > 1:
        outer = dp_tokens_per_gpu(peak, allreduce_bytes_per_s(cluster, index, below))
    dp_tokens, fsdp_tokens = dp_tokens_per_gpu(peak, reach), fsdp_tokens_per_gpu(peak, reach)

    def of_all(tokens: float, gpus: int = level.gpus) -> int:
        return round(tokens) * gpus

    return LevelRoofline(
        level=level.name,
        gpus=level.gpus,
        allreduce_bytes_per_s=reach,
        adds=bool(cluster.adding(ideal=True)[: index + 1].all()),
        dp_tokens=dp_tokens,
        dp_tokens_without_sharp=dp_tokens_per_gpu(peak, reach, in_network_reduction=False),
        fsdp_tokens=fsdp_tokens,
        moe_dp_tokens=moe_tokens,
        moe_fsdp_tokens=None if moe_tokens is None else 2 * moe_tokens,
        outer_dp_tokens=outer,
        dp_batch_tokens=of_all(dp_tokens),
        fsdp_batch_tokens=of_all(fsdp_tokens),
        moe_dp_batch_tokens=None if moe_tokens is None else of_all(moe_tokens),
        moe_fsdp_batch_tokens=None if moe_tokens is None else of_all(2 * moe_tokens),
        outer_unit_tokens=None if outer is None else of_all(outer, below),
    )
