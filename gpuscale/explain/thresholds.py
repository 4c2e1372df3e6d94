"""How far a plan is from each point at which something else would bind: rooflines, bubble, memory, CPU.

The rooflines are the textbook's, latency-free (`gpuscale.rooflines`): they say where communication could hide behind
arithmetic at all. Bubble, memory and launches are what the model itself says of this plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gpuscale.launch.subject import Subject
from gpuscale.layouts.ranks import strides
from gpuscale.rooflines import allreduce_bytes_per_s, dp_tokens_per_gpu, moe_dp_tokens_per_gpu, tp_divisor
from gpuscale.search.conditions import perturbed
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.cluster import LevelSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.components import COMPONENTS, INDEX
from gpuscale.units import GIB

LEAST_BUBBLE = 0.05
"""Bubble as a share of the step that is counted as small."""

MOST_MICROBATCHES = 4096
"""Microbatches up to which a small bubble is looked for."""

INFINITELY_FAST = 1e9
"""Factor on kernels and network that leaves of a step what the CPU takes."""

ELEMENT_BYTES = {"fp4": 0.5, "fp8": 1.0, "fp32": 4.0, "tf32": 4.0}
"""Precision of products -> bytes of an operand; 2 of the others."""


@dataclass(frozen=True)
class Threshold:
    """One quantity of a plan, and the value at which something changes."""

    name: str  #: what it is, with its unit.
    now: float  #: its value.
    needed: float  #: the threshold.
    at_most: bool = field(default=False, kw_only=True)  #: it should not be above the threshold; else not below it.
    meaning: str  #: what happens beyond it.
    holds: bool = field(init=False)  #: whether the plan is on the good side.

    def __post_init__(self) -> None:
        holds = self.now <= self.needed if self.at_most else self.now >= self.needed
        object.__setattr__(self, "holds", holds)


def thresholds(subject: Subject) -> tuple[Threshold, ...]:
    """Return the distance of a plan to each threshold that applies to it."""
    return tuple(
        one
        for kind in (_intensity, _data_parallel, _tensor_parallel, _bubble, _launches, _memory)
        for one in kind(subject)
    )


def usual_layer(subject: Subject) -> LayerSpec:
    """The kind of layer that the model has most of."""
    model = subject.spec.model
    return model.kinds[int(np.bincount(np.array(model.pattern)).argmax())]


def _intensity(subject: Subject) -> Iterator[Threshold]:
    """FLOPs per byte of the products of the feed-forward block on one GPU, against what the GPU does."""
    spec, row, layer = subject.spec, subject.rows.row(0), usual_layer(subject)
    gpu, tokens = spec.cluster.gpu, row["micro_batch_size"] * spec.sequence / row["cp"]
    if layer.moe is not None:
        share = row["ep"] * row["etp"] / row["tp"]  # of what the ranks of an EP group bring, each 1/TP of its tokens
        width, tokens = layer.moe.ffn / row["etp"], tokens * share * layer.moe.top_k / layer.moe.experts
    elif layer.mlp is not None:
        width = layer.mlp.ffn / row["tp"]
    else:
        return
    hidden, size = spec.model.hidden, ELEMENT_BYTES.get(spec.precision, 2.0)
    moved = size * (tokens * hidden + hidden * width + tokens * width)
    what = "an expert's" if layer.moe else "the feed-forward block's"
    intensity, ridge = 2 * tokens * hidden * width / moved, gpu.peak(spec.precision) / gpu.memory_bandwidth_bytes_per_s
    meaning = f"below it HBM bounds {what} matrix products, not arithmetic"
    yield Threshold("arithmetic intensity [FLOPs per byte]", intensity, ridge, meaning)


def _data_parallel(subject: Subject) -> Iterator[Threshold]:
    """Tokens per GPU of a pipeline stage from which gradients could hide behind the backward pass."""
    spec, row = subject.spec, subject.rows.row(0)
    ranks, own = row["dp"] * row["cp"], strides(subject.rows, subject.spec)
    peak, tokens = spec.cluster.gpu.peak(spec.precision), spec.tokens_per_step * row["pp"] / spec.gpus
    what, per = ("FSDP" if row["zero"] > 1 else "data parallelism"), " of a stage" if row["pp"] > 1 else ""
    if ranks > 1:
        level, adds = _crossed(subject, ranks, int(own.dp_cp[0]))
        reach = allreduce_bytes_per_s(spec.cluster, level, int(own.dp_cp[0]))
        needed = dp_tokens_per_gpu(peak, reach, in_network_reduction=adds and row["zero"] == 0)
        meaning = f"below it gradients across {spec.cluster.levels[level].name} take longer than the backward pass"
        yield Threshold(f"tokens per GPU{per} for {what} [tokens]", tokens, needed, meaning)
    moe, expert_ranks = usual_layer(subject).moe, int(subject.rows.expert_dp[0])
    if moe is not None and expert_ranks > 1:
        level, adds = _crossed(subject, expert_ranks, int(own.edp[0]))
        reach = allreduce_bytes_per_s(spec.cluster, level, row["ep"] * row["etp"])
        needed = moe_dp_tokens_per_gpu(peak, reach, moe.experts, moe.top_k) * (1 if adds and row["zero"] == 0 else 2)
        of = f"gradients of {moe.experts} experts, {moe.top_k} of which a token visits"
        meaning = f"below it {of}, take longer than the backward pass"
        yield Threshold(f"tokens per GPU{per} for {what} of the experts [tokens]", tokens, needed, meaning)


def _crossed(subject: Subject, ranks: int, stride: int) -> tuple[int, bool]:
    """Index of the outermost level that a group crosses, and whether all switches up to it add up."""
    cluster = subject.spec.cluster
    level: LevelSpec = cluster.level_of_group(ranks, stride)
    index = cluster.levels.index(level)
    return index, bool(cluster.adding(ideal=False)[: index + 1].all())


def _tensor_parallel(subject: Subject) -> Iterator[Threshold]:
    """The degree up to which transfers of tensor parallelism could hide behind the products that it splits."""
    spec, row, layer = subject.spec, subject.rows.row(0), usual_layer(subject)
    split = layer.mlp if layer.moe is None else layer.moe
    if row["tp"] == 1 or split is None or (layer.moe is not None and row["etp"] == 1):
        return
    level = spec.cluster.level_of_group(row["tp"], 1)
    divisor = tp_divisor(spec.cluster.gpu.peak(spec.precision), level.egress_bytes_per_s, level.gpus)
    width = split.ffn * (layer.moe.top_k if layer.moe else 1)
    meaning = f"above it transfers across {level.name} take longer than the products of a block of width {width:,}"
    yield Threshold("TP degree", row["tp"], width / divisor, meaning, at_most=True)


def _bubble(subject: Subject) -> Iterator[Threshold]:
    """Microbatches from which the bubble is small, by evaluating the plan with more of them, or with fewer."""
    row = subject.rows.row(0)
    if row["pp"] == 1:
        return
    unit = row["pp"] if row["vpp"] > 1 else 1
    counts = np.arange(unit, min(MOST_MICROBATCHES, 64 * unit * row["pp"]) + 1, unit)
    rows = replace(subject.rows.take(np.zeros(len(counts), dtype=np.intp)), num_microbatches=counts)
    step = evaluate(rows, subject.spec).step
    share = step.components[INDEX["bubble"]] / step.step_time_s
    small = np.flatnonzero(share <= LEAST_BUBBLE)
    if len(small):
        meaning = f"below it the bubble takes more than {100 * LEAST_BUBBLE:.0f}% of the step"
        yield Threshold("microbatches per step", row["num_microbatches"], int(counts[small[0]]), meaning)


def _launches(subject: Subject) -> Iterator[Threshold]:
    """Tokens of a microbatch from which the GPU takes longer than the CPU takes to launch its kernels.

    With kernels and a network that take no time a microbatch takes what the CPU takes, however long it is: the GPU's
    own work, in proportion to the tokens, has to take as long.
    """
    spec, row = subject.spec, subject.rows.row(0)
    no_time = perturbed(spec, dict.fromkeys(("kernels", "node_links", "network", "latency"), 1 / INFINITELY_FAST))
    beside = {"bubble", "dp_comm", "optimizer", "offload", "waiting"}
    names = [name for name in COMPONENTS if name not in beside]
    fast, own = (done.step.seconds() for done in (evaluate(subject.rows, no_time), subject.evaluation))
    busy_s = math.fsum(own[name] for name in names if name != "launch")
    tokens = row["micro_batch_size"] * spec.sequence / row["cp"]
    needed = tokens * math.fsum(fast[name] for name in names) / busy_s
    meaning = "below it a microbatch takes as long as the CPU takes to launch its kernels"
    yield Threshold("tokens per microbatch", tokens, needed, meaning)


def _memory(subject: Subject) -> Iterator[Threshold]:
    """Memory of the fullest GPU against what there is, and what fragmentation usually leaves of it."""
    spec, now = subject.spec, subject.estimate.plan.memory_gib
    name = f"memory [GiB] of the fullest GPU, stage {subject.estimate.plan.peak_stage}"
    yield Threshold(name, now, spec.memory_limit_bytes / GIB, "above it the job does not run", at_most=True)
    meaning = "above it the allocator may run out in the middle of a run"
    yield Threshold("memory [GiB] that fragmentation leaves", now, spec.comfortable_bytes / GIB, meaning, at_most=True)
