"""Seconds per optimizer step: layers on stages, stages in a pipeline, the pipeline beside data parallelism."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscale.architecture.parameters import dense_linears, expert_linears
from gpuscale.arrays import FloatArray, IndexArray, IntArray, exp
from gpuscale.layouts import arrays
from gpuscale.layouts.arrays import Candidates, Cases, summed, unique_rows
from gpuscale.layouts.ranks import stride_fields, strides
from gpuscale.layouts.stages import FIRST, LAST, StageTable, at_place, largest_place, model_chunks, places, share_of_end
from gpuscale.memory.activations import LAYER_KEY, routed_tokens, tokens
from gpuscale.memory.model import layer_sizes, microbatch_bytes
from gpuscale.memory.states import StageParameters
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import JobSpec
from gpuscale.specs.site import AXES, MOST, SCALE, SiteSpec, layouts_apart
from gpuscale.steptime.components import (
    COMPONENTS,
    INDEX,
    Breakdown,
    GroupCall,
    added,
    collective,
    exposed_beside,
    scaled,
    taken,
    total_s,
)
from gpuscale.steptime.data_parallel import Cover, data_parallel_time, gradient_sums_s, optimizer_issue_s
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.layer import SHARED_KEY, LayerTime, embedding, layer_times, lm_head, teacher_forward
from gpuscale.steptime.offload import host_link_bytes_per_s
from gpuscale.steptime.tensor_parallel import linear_times, tensor_parallel_time, wgrad_output_bytes


def site_factor(c: Candidates, site: SiteSpec) -> FloatArray:
    """Factor on the step time of each candidate, shape (N,)."""
    rows, index = unique_rows(c, tuple(AXES))
    near = [
        _nearness(axis, getattr(rows, axis), column)
        for axis, column in zip(AXES, zip(*site.layouts, strict=True), strict=True)
    ]
    remainder = np.zeros(len(rows))
    for run, weight in enumerate(site.weights):
        share = np.full(len(rows), weight)
        for table, place in near:
            share *= table[run, place]
        remainder += share
    return exp(np.clip(remainder, -MOST, MOST))[index]


def _nearness(axis: str, value: IntArray, runs: tuple[int, ...]) -> tuple[FloatArray, IntArray]:
    """exp(-distance / SCALE) along an axis between each run and each value that there is, and where each row's is."""
    known, place = np.unique(value, return_inverse=True)
    return exp(-AXES[axis] / SCALE * layouts_apart(axis, np.array(runs)[:, None], known)), place


THROTTLED_SPREAD = 0.05
"""Standard deviation of the time that GPUs of one kind take for the same work, as a share of what the power limit takes
of their clocks: 1 % of the time on H100 (docs/model.md). Guesstimate from Sinha et al. 2022 (arXiv 2208.11035): 8 %
between the GPUs of a large machine, a range of five to six deviations; less, as jobs are not given the worst."""


class Passes(NamedTuple):
    """One microbatch through the layers and both ends of the model, evaluated once for each way to cut them."""

    cut: Cases  #: the way in which each candidate cuts its layers.
    layers: tuple[LayerTime, ...]  #: by kind, one layer and one microbatch, for each way.
    #: by kind, forward and backward pass of all its layers, and their recomputation.
    whole_s: tuple[tuple[FloatArray, FloatArray], ...]
    #: place -> forward and backward pass of embedding (first stage), and LM head with loss and teacher (last stage).
    ends: dict[int, tuple[Breakdown, Breakdown]]
    ends_s: dict[int, tuple[FloatArray, FloatArray]]  #: place -> their sums.


def cut_key(c: Candidates, job: JobSpec) -> tuple[str, ...]:
    """Fields on which time and memory of one layer and one microbatch depend."""
    beside = job.runtime.overlap_ep or bool(c.schedule.any())  # what runs beside one another depends on the pipeline
    more = ("pp", "vpp", "num_microbatches") if beside else ()
    return (*LAYER_KEY, "schedule", *dict.fromkeys((*stride_fields(job), *more)))


def evaluate_passes(cuts: Candidates, cut: Cases, job: JobSpec) -> Passes:
    """Time one microbatch of candidates that cut the model in one of the ways `cuts`, of `cut_key`."""
    rows, row = unique_rows(cuts, (*SHARED_KEY, *stride_fields(job)))
    tp = tensor_parallel_time(rows, job)
    layers = layer_times(cuts, job, rows, row, tp)
    head, head_back = lm_head(rows, job, tp)
    passes = {FIRST: embedding(rows, job, tp), LAST: (added(head, teacher_forward(rows, job)), head_back)}
    more = 1 + job.method.forwards
    ends = {
        place: (taken(scaled(forward, more) if more > 1 else forward, row), taken(backward, row))
        for place, (forward, backward) in passes.items()
    }
    return Passes(
        cut=cut,
        layers=layers,
        whole_s=tuple(
            (number * (layer.forward_s + layer.backward_s), number * layer.recompute_s)
            for layer, number in zip(layers, job.model.trained_counts, strict=True)
        ),
        ends=ends,
        ends_s={place: (total_s(forward), total_s(backward)) for place, (forward, backward) in ends.items()},
    )


@dataclass(frozen=True)
class StepTime:
    """Step time of N candidates, with what its breakdown is made from; each (N,) unless said otherwise."""

    step_time_s: FloatArray  #: seconds per optimizer step.
    bottleneck: IndexArray  #: which of the evaluated stages is the slowest.
    dp_total_s: FloatArray  #: communication of data parallelism before overlap.
    #: what comes to the microbatches on that stage, by component: `launch` is waiting for the allocator where memory is
    #: short, and for the CPU in the optimizer step, `elementwise` summing gradients of microbatches, `offload` the
    #: optimizer on the CPU with all copies to and from host memory.
    beside: Breakdown
    candidates: Candidates
    counts: tuple[FloatArray, ...]  #: layers by kind of each evaluated stage.
    passes: Passes  #: one microbatch through the model.
    cover: Cover  #: behind what the transfers of a microbatch can hide.
    factor: FloatArray | None = None  #: what measured runs of a site make of all this.

    def seconds(self, row: int = 0) -> dict[str, float]:
        """One candidate's step time by component [s]."""
        return dict(zip(COMPONENTS, self.components[:, row].tolist(), strict=True))

    @cached_property
    def components(self) -> FloatArray:
        """`step_time_s` by component, shape (components, N); the second route to the total."""
        c, passes = self.candidates, self.passes
        counts = [at_place(count, self.bottleneck) for count in self.counts]
        share = recomputed_share(c, counts)
        cost: Breakdown = {}
        for layer, number in zip(passes.layers, counts, strict=True):
            both = taken(added(layer.forward, layer.backward), passes.cut.row)
            again = scaled(taken(layer.recompute, passes.cut.row), share)
            cost = added(cost, scaled(added(both, again), number))
        for place, (forward, backward) in passes.ends.items():
            mine = share_of_end(c, place, self.bottleneck)
            cost = added(cost, scaled(taken(added(forward, backward), passes.cut.row), mine))
        out = np.zeros((len(COMPONENTS), len(c)))
        for name, value in scaled(cost, c.num_microbatches).items():
            out[INDEX[name]] = value
        for name, value in self.beside.items():
            out[INDEX[name]] += value
        return out if self.factor is None else out * self.factor


def step_time(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: IndexArray,
    parameters: StageParameters,
    passes: Passes | None = None,
    allocator_retries: FloatArray | float = 0.0,
) -> StepTime:
    """Seconds per optimizer step of each candidate: the slowest stage works through all microbatches; before and after
    it the others fill and drain the pipeline (`idle_s`).

    Args:
        stages, stage_row: layers per stage of each (pp, vpp) pair, and the row of each candidate's.
        passes: one microbatch through the model, where it is at hand.
        allocator_retries: `Memory.allocator_retries`.
    """
    if passes is None:
        cuts, index = unique_rows(c, cut_key(c, job))
        passes = evaluate_passes(cuts, Cases(index), job)
    counts = stages.layers(stage_row)
    forward, backward = stage_seconds(c, counts, passes)
    bottleneck = largest_place(forward + backward)
    forward_s, backward_s = at_place(forward, bottleneck), at_place(backward, bottleneck)
    slowest_s = forward_s + backward_s
    cover = covered(c, [at_place(count, bottleneck) for count in counts], passes, forward_s, backward_s)
    bubble_s = pp_comm_s = copies_s = retry_s = np.zeros(())
    if (c.pp > 1).any():
        others_s = np.maximum(_whole_model_s(c, job, passes) - slowest_s, 0.0)
        slots_s = (_whole_backward_s(c, job, passes) - backward_s, weight_gradients_s(c, job, passes))
        bubble_s = idle_s(c, others_s, *slots_s)
        hops = hop_times(c, job)
        pp_comm_s = exposed_hops_s(c, *hops, slowest_s)
        cover = cover._replace(waiting_s=cover.waiting_s + late_hops_s(c, *hops, slowest_s))
    if job.offload.activations:  # they leave during the forward pass and return during the backward pass
        size = at_place(microbatch_bytes(c, job, stages, stage_row, layer_sizes(c, job)), bottleneck)
        copy_s = size * job.offload.activations / host_link_bytes_per_s(job)
        late_s = exposed_beside(copy_s, cover.forward_s) + exposed_beside(copy_s, cover.backward_s)
        each_s = exposed_beside(late_s, cover.waiting_s)
        copies_s, cover = each_s * c.num_microbatches, cover._replace(waiting_s=cover.waiting_s + each_s)
    dp_total_s, dp_exposed_s, optimizer_s, offload_s = data_parallel_time(c, job, parameters, cover)
    if job.runtime.allocator_retry_s:
        retry_s = np.asarray(allocator_retries * job.runtime.allocator_retry_s * c.num_microbatches)
    busy_s = slowest_s * c.num_microbatches.astype(np.float64)  # NumPy takes longer for mixed types
    waiting_s = busy_s * slowest_of(c, gpu_spread(job.cluster.gpu))
    sums_s, issue_s = gradient_sums_s(c, job, parameters), retry_s + optimizer_issue_s(c, job)
    parts_s = (busy_s, waiting_s, bubble_s, pp_comm_s, copies_s, issue_s, sums_s, dp_exposed_s, optimizer_s, offload_s)
    factor = site_factor(c, job.site) if job.site else None
    whole_s = summed(*parts_s)
    return StepTime(
        step_time_s=whole_s if factor is None else whole_s * factor,
        bottleneck=bottleneck,
        dp_total_s=dp_total_s,
        beside={
            "waiting": waiting_s,
            "bubble": bubble_s,
            "pp_comm": pp_comm_s,
            "launch": issue_s,
            "elementwise": sums_s,
            "dp_comm": dp_exposed_s,
            "optimizer": optimizer_s,
            "offload": copies_s + offload_s,
        },
        candidates=c,
        counts=counts,
        passes=passes,
        cover=cover,
        factor=factor,
    )


def covered(
    c: Candidates, counts: Sequence[FloatArray], passes: Passes, forward_s: FloatArray, backward_s: FloatArray
) -> Cover:
    """Tell the GPU's work on a stage, with layers of each kind (`counts`), from its waiting for the CPU, which is in
    both passes there; each (N,) [s]."""
    share = recomputed_share(c, counts) if c.recompute_layers.any() else np.zeros(())
    ahead_s, back_s = np.zeros(()), np.zeros(())
    for layer, number in zip(passes.layers, counts, strict=True):
        in_forward_s, in_backward_s, again_s = layer.waiting_s
        if in_forward_s.any() or in_backward_s.any() or (share.any() and again_s.any()):
            ahead_s = ahead_s + passes.cut.of(in_forward_s) * number
            back_s = back_s + (passes.cut.of(in_backward_s) + passes.cut.of(again_s) * share) * number
    return Cover(forward_s - ahead_s, backward_s - back_s, ahead_s + back_s)


def gpu_spread(gpu: GpuSpec) -> float:
    """Return the standard deviation of the time that GPUs of this kind take for the same work, as a share of it."""
    return THROTTLED_SPREAD * (1.0 - gpu.kernels.sustained_clock_fraction)


def slowest_of(c: Candidates, spread: float) -> FloatArray:
    """By how much the slowest GPU of a job, for which all wait in every step, takes longer than the usual one, as a
    share of its time, shape (N,); `spread`: as of `gpu_spread`."""
    gpus = np.atleast_1d(c.tp * c.pp * c.cp * c.dp)
    alike = gpus.size > 0 and bool((gpus == gpus.flat[0]).all())  # as in a search
    counts, row = (gpus.flat[:1], np.zeros(1, dtype=np.intp)) if alike else np.unique(gpus, return_inverse=True)
    return np.array([slowest_share(one, spread) for one in counts.tolist()])[row]


def slowest_share(count: int, spread: float) -> float:
    """Return by how much the largest of N values that are spread normally is above their mean, on average, as a share
    of it, as `spread` is: about the quantile (N - 3/8) / (N + 1/4) (Blom 1958, Statistical Estimates and Transformed
    Beta-Variables)."""
    return spread * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def recomputed_share(c: Candidates, counts: Sequence[FloatArray]) -> FloatArray:
    """Share of a stage's layers under full recomputation, given its layers of each kind."""
    whole = c.recompute_layers.astype(np.float64)
    return np.minimum(whole / np.maximum(functools.reduce(np.add, counts), 1), 1.0)


def stage_seconds(c: Candidates, counts: Sequence[FloatArray], passes: Passes) -> tuple[FloatArray, FloatArray]:
    """Forward and backward pass of one microbatch on each of the P evaluated stages, shape (P, N) [s]."""
    again = c.recompute_layers.any()
    share = recomputed_share(c, counts) if again else np.zeros(())
    forward: list[FloatArray] = []
    backward: list[FloatArray] = []
    for layer, number in zip(passes.layers, counts, strict=True):
        back_s = passes.cut.of(layer.backward_s)
        if again:
            recompute_s = passes.cut.of(layer.recompute_s) * share
            back_s = np.add(back_s, recompute_s, out=recompute_s)
        forward.append(passes.cut.of(layer.forward_s) * number)
        backward.append(back_s * number)
    place = places(counts[0])
    for end, (end_forward_s, end_backward_s) in passes.ends_s.items():
        mine = share_of_end(c, end, place)
        forward.append(passes.cut.of(end_forward_s) * mine)
        backward.append(passes.cut.of(end_backward_s) * mine)
    return summed(*forward), summed(*backward)


class ChunkPasses(NamedTuple):
    """One microbatch on each chunk of each rank of one candidate, as `gpuscale.steptime.pipeline.Pipeline` has them."""

    forward: Breakdown  #: by component, each of shape (chunks, ranks); recomputation is part of the backward pass.
    backward: Breakdown  #: its backward pass, with recomputation.
    weight_s: FloatArray  #: weight gradients in the backward pass, shape (chunks, ranks) [s].


def chunk_passes(c: Candidates, job: JobSpec) -> ChunkPasses:
    """Time one microbatch of one candidate on every chunk of every rank."""
    passes = evaluate_passes(c, Cases(np.zeros(1, dtype=np.intp)), job)
    pp, vpp, schedule = int(c.pp[0]), int(c.vpp[0]), int(c.schedule[0])
    counts = model_chunks(job.model, pp, vpp, job.runtime.pipeline_split, schedule).astype(np.float64)
    counts = counts.transpose(2, 0, 1)  # by kind
    on_rank = list(counts.mean(axis=1) if schedule == arrays.DUALPIPE else counts.sum(axis=1))
    share = recomputed_share(c, on_rank)
    forward: Breakdown = {}
    backward: Breakdown = {}
    of_layers, head_s = weight_gradients_by_layer(c, job)
    weight_s = np.zeros(counts.shape[1:])
    for layer, number, layer_weight_s in zip(passes.layers, counts, of_layers, strict=True):
        again = scaled(layer.recompute, share)
        forward = added(forward, scaled(layer.forward, number))
        backward = added(backward, scaled(added(layer.backward, again), number))
        weight_s = weight_s + number * (layer_weight_s + layer.weight_waiting_s)
    for place, (end_forward, end_backward) in passes.ends.items():
        here = _end_chunks(weight_s.shape, place, schedule)
        forward = added(forward, scaled(end_forward, here))
        backward = added(backward, scaled(end_backward, here))
        if place == LAST:
            weight_s = weight_s + here * (1 + job.model.mtp_depth) * head_s
    return ChunkPasses(forward, backward, np.minimum(weight_s, total_s(backward)))


def _end_chunks(shape: tuple[int, ...], place: int, schedule: int) -> FloatArray:
    here = np.zeros(shape)
    if schedule == arrays.DUALPIPE:
        here[0, 0 if place == FIRST else -1] = here[1, -1 if place == FIRST else 0] = 1.0
    else:
        here[0 if place == FIRST else -1, 0 if place == FIRST or schedule == arrays.ZB_V else -1] = 1.0
    return here


def _whole_model_s(c: Candidates, job: JobSpec, passes: Passes) -> FloatArray:
    terms: list[FloatArray] = []
    share = _recomputed_of_all(c, job)
    for passes_s, again_s in passes.whole_s:
        terms.append(passes.cut.of(passes_s))
        if share.any():
            terms.append(passes.cut.of(again_s) * share)
    both_s = (forward_s + backward_s for forward_s, backward_s in passes.ends_s.values())
    return summed(*terms, passes.cut.of(summed(*both_s)))


def _recomputed_of_all(c: Candidates, job: JobSpec) -> FloatArray:
    return np.minimum(c.recompute_layers * c.pp / len(job.model.trained_pattern), 1.0)


def _whole_backward_s(c: Candidates, job: JobSpec, passes: Passes) -> FloatArray:
    if not c.schedule.any():
        return np.zeros(())
    terms, share = [passes.cut.of(backward_s) for _, backward_s in passes.ends_s.values()], _recomputed_of_all(c, job)
    for layer, number in zip(passes.layers, job.model.trained_counts, strict=True):
        terms.append(number * (passes.cut.of(layer.backward_s) + passes.cut.of(layer.recompute_s) * share))
    return summed(*terms)


def idle_s(c: Candidates, others_s: FloatArray, others_back_s: FloatArray, weights_s: FloatArray) -> FloatArray:
    """Idle time of the slowest stage per step, shape (N,) [s].

    While a pipeline fills and drains, 1F1B and GPipe wait for the whole forward and backward pass of one microbatch on
    each other stage; zero-bubble schedules fill part of that with weight gradients (Qi et al. 2024, Zero Bubble
    Pipeline Parallelism, arXiv 2401.10241; F, B, W: forward pass, input gradient, weight gradient of one microbatch on
    one stage, p stages):

    | schedule | idle | source |
    |---|---|---|
    | 1F1B, GPipe | (p-1) (F + B + W) | Narayanan et al. 2021, section 2.2.1 |
    | interleaved, v chunks | (p-1) (F + B + W) / v | section 2.2.2 |
    | ZB-H1 | (p-1) (F + B - W) | Qi et al. 2024, table 1 |
    | ZB-2P (ZB-H2) | (p-1) (F + B - 2W) | table 1 |
    | ZB-V | (p-1) (B - W), at the memory of 1F1B | simulated (`pipeline.py`); 0 for F = B = W, as in section 6 |
    | DualPipe | (p/2 - 1) (F&B + (B + W) - 3W) | DeepSeek-V3, arXiv 2412.19437, table 2; F&B <= F + B + W |

    Stages may be uneven: (p-1) x is the sum over the stages other than the slowest. What fills the wait is W of the
    microbatches after the first, in ZB-V F of the first p-1 of them: with fewer than p (ZB-H1) or 2p-1 microbatches
    less.

    Args:
        others_s: forward and backward pass of one microbatch on all other stages together.
        others_back_s: the backward pass of it, with both gradients.
        weights_s: weight gradients of one microbatch of the whole model; of no matter where they have no slots.
    """
    plain = np.where(c.pp > 1, others_s / c.vpp.astype(np.float64), 0.0)
    if not c.schedule.any():
        return plain
    weights_s = weights_s * (c.pp - 1) / c.pp
    ranks = np.maximum(c.pp - 1, 1)

    waits_s, forward_s = others_s - weights_s, others_s - others_back_s
    later = (c.num_microbatches - 1) / ranks
    one, two = np.minimum(later, 1), np.clip(later - 1, 0, 1)  # rounds of the microbatches after the first

    pairs = np.maximum(c.pp / 2 - 1, 0.0) / ranks
    by_code = {
        arrays.ONE_F_ONE_B: plain,
        arrays.GPIPE: others_s,
        arrays.ZB_H1: waits_s - np.minimum(weights_s, waits_s) * one,
        arrays.ZB_2P: waits_s - np.minimum(weights_s, waits_s / 2) * (one + two),
        arrays.ZB_V: waits_s - forward_s * one - weights_s * two,
        arrays.DUALPIPE: pairs * (others_s + others_back_s - 3 * weights_s),
    }
    idle = np.choose(c.schedule, [by_code[code] for code in range(len(by_code))])
    return np.where(c.pp > 1, np.maximum(idle, 0.0), 0.0)


def weight_gradients_s(c: Candidates, job: JobSpec, passes: Passes) -> FloatArray:
    """Weight gradients of one microbatch of the whole model, LM head included, shape (N,) [s]; 0 where no schedule asks
    for them."""
    if not c.schedule.any():
        return np.zeros(())
    rows, back = unique_rows(c, LAYER_KEY)
    of_layers, head_s = weight_gradients_by_layer(rows, job)
    total = ((1 + job.model.mtp_depth) * head_s)[back]
    for layer_s, layer, count in zip(of_layers, passes.layers, job.model.trained_counts, strict=True):
        total = total + count * (layer_s[back] + passes.cut.of(layer.weight_waiting_s))
    return total


def weight_gradients_by_layer(rows: Candidates, job: JobSpec) -> tuple[list[FloatArray], FloatArray]:
    """Weight gradients of one microbatch: of one layer of each kind, and of the LM head once, each (N,) [s]."""
    model = job.model
    of_layers = []
    for kind in model.trained_kinds:
        layer_s = np.zeros(len(rows))
        for linear in dense_linears(model.hidden, kind):
            layer_s = layer_s + linear_times(linear, rows, job).wgrad
        if kind.moe is not None:
            experts = kind.moe.experts // rows.ep
            per_expert = routed_tokens(kind.moe, rows, job) / experts
            for linear in expert_linears(model.hidden, kind.moe):
                layer_s = layer_s + linear_times(linear, rows, job, per_expert, experts).wgrad
        of_layers.append(layer_s)
    vocabulary = job.vocabulary_rows(rows.tp)
    sizes = (model.hidden, vocabulary, tokens(rows, job))
    head_s = gemm_time_s(job.cluster.gpu, job.attention_precision, *sizes, 1, wgrad_output_bytes(job))
    return of_layers, head_s * job.trains("head")


HOP_KEY = ("tp", "sp", "cp", "dp", "pp", "micro_batch_size")
"""Fields of a candidate on which a transfer between two stages depends."""


def hop_times(candidates: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """Time the transfer of one microbatch's hidden state to the next stage, and the part of it that does not depend on
    its size, each (N,) [s]."""
    c, row = unique_rows(candidates, HOP_KEY)
    sent, gathered = hop(c, job)
    latency = collective(job, "sendrecv", np.ones(len(c)), sent.size, sent.stride)
    return (sent.time_s + gathered.time_s)[row], latency.time_s[row]


def hop(c: Candidates, job: JobSpec) -> tuple[GroupCall, GroupCall]:
    """Return what sends one microbatch's hidden state to the next stage; where TP ranks hold copies, each may send its
    share, which is gathered on the other side (Narayanan et al. 2021, section 4.1, scatter/gather)."""
    whole = tokens(c, job) * job.model.hidden * job.activation_bytes
    scattered = np.where((c.sp == 0) & job.runtime.scatter_pipeline, c.tp, 1)
    apart = strides(c, job)
    sent = collective(job, "sendrecv", whole / c.sequence_split / scattered, np.minimum(c.pp, 2), apart.pp)
    return sent, collective(job, "allgather", whole, np.where(c.pp > 1, scattered, 1), apart.tp)


def filling_hops(c: Candidates) -> IntArray:
    """Transfers that show one after the other while a pipeline fills and drains, shape (N,)."""
    return np.where(c.pp > 1, 2 * (c.pp * c.vpp - 1), 0)


def exposed_hops_s(c: Candidates, hop_s: FloatArray, latency_s: FloatArray, microbatch_s: FloatArray) -> FloatArray:
    """Exposed activation and gradient transfers between stages per step, shape (N,) [s].

    Without interleaving every microbatch waits for one transfer in each direction; with it for their latency and
    whatever outlasts a chunk. Filling and draining pass all chunks of all stages.

    Args:
        hop_s, latency_s: `hop_times`.
        microbatch_s: forward and backward of one microbatch on the slowest stage.
    """
    filling = filling_hops(c) * hop_s
    trips = np.where(c.pp > 1, 2.0 * c.num_microbatches, 0.0)
    if (c.vpp == 1).all():
        return trips * hop_s + filling
    vpp = c.vpp.astype(np.float64)
    late_s = c.num_microbatches * late_hops_s(c, hop_s, latency_s, microbatch_s)
    return trips * np.where(vpp == 1, hop_s, latency_s * vpp) + late_s + filling


def late_hops_s(c: Candidates, hop_s: FloatArray, latency_s: FloatArray, microbatch_s: FloatArray) -> FloatArray:
    """What the transfers of one microbatch, both ways, outlast the chunks of interleaved stages that they run under,
    shape (N,) [s]; arguments as those of `exposed_hops_s`."""
    if (c.vpp == 1).all():
        return np.zeros(())
    vpp = c.vpp.astype(np.float64)
    return np.where(vpp == 1, 0.0, 2 * vpp * np.maximum(hop_s - latency_s - microbatch_s / vpp / 2, 0.0))
