"""Which collectives a plan calls, how often and with how many bytes: one pure function for each parallel axis.

Counted from the numbers of model and layout, beside the step-time model and not from it, whose sums they must meet
(tests/test_traffic.py). Sizes are those of nccl-tests: the whole tensor of the group (gathered, or before it is
scattered), of an AllToAll the send buffer of one GPU, of a transfer between two GPUs what is sent.

| axis | what is called | source |
|---|---|---|
| tp | AllReduce of b s h after each block, both passes; with sequence parallelism AllGather and ReduceScatter, and the block's input gathered once more | Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 |
| cp | keys and values around a ring, gathered, or exchanged with the queries over the heads | Liu et al. 2023, arXiv 2310.01889; Jacobs et al. 2023, arXiv 2309.14509 |
| ep | tokens to their experts and back, both passes | Lepikhin et al. 2020, arXiv 2006.16668; DeepSeek-V3, arXiv 2412.19437, section 3.2.2 |
| pp | b s h to the next stage, its gradient back | Narayanan et al. 2021, arXiv 2104.04473, section 3.2 |
| dp, edp | psi parameters: gradients reduced, parameters gathered, 2 psi on the wire up to stage 2 and 3 psi at stage 3 | Rajbhandari et al. 2020, arXiv 1910.02054, section 7 |
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuscale.architecture.parameters import dense_linears
from gpuscale.collectives.alltoall import Routing, deduplicated_s, distinct_targets, units, writes_remotely
from gpuscale.layouts.arrays import CORE_ATTN, MLP, MOE, SHARED_EXPERTS, Candidates
from gpuscale.layouts.ranks import context_split, strides
from gpuscale.layouts.stages import FIRST, LAST, share_of_end
from gpuscale.memory.states import StageParameters, whole_gradients
from gpuscale.search.evaluation import Evaluation, placed
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec, LayerSpec, MoeSpec, StateSpaceSpec
from gpuscale.steptime.blocks import DEEPEP_SMS, PROBABILITY_BYTES, ROUTING_BYTES
from gpuscale.steptime.data_parallel import DDP_BUCKET_BYTES
from gpuscale.steptime.kernels import OPERAND_BYTES
from gpuscale.steptime.layer import LOSS_SUMS
from gpuscale.steptime.step import filling_hops

PHASES = ("forward", "backward", "synchronisation", "update")
"""Phases of a step: both passes of all microbatches (recomputation counts as backward), the reduction of gradients
behind them, the optimizer with what follows it."""

ENDS = frozenset({"embedding", "LM head", "loss"})
"""What is called once for each microbatch at both ends of the model, and not in every layer."""

REPLICAS = "gradients of replicas"
"""What the copies of a shard reduce, of hybrid sharding."""

FILLING = "filling and draining the pipeline"
"""Transfers between other stages, for which the stage waits; it sends nothing."""


@dataclass(frozen=True)
class Call:
    """One collective of a plan, called several times in a step by each group of an axis."""

    #: `tp`, `cp`, `ep`, `etp`, `pp`, `dp`, `edp` (data parallelism of the routed experts), `embedding` (tied, on two
    #: stages) or `norm` (of the gradients).
    axis: str
    purpose: str  #: what is sent.
    collective: str  #: one of `gpuscale.collectives.ideal.OPERATIONS`.
    phase: str  #: one of `PHASES`: when it is due.
    bytes_per_call: float  #: as nccl-tests counts [bytes].
    calls: float  #: in a step, of each group.
    group_size: int  #: GPUs of the group; of a ring or a pipeline all that send to a neighbour.
    stride: int  #: GPUs from one member to the next.
    component: str  #: under which the step-time model counts what shows of it.
    ends: bool = False  #: it belongs to the embedding or the LM head.
    pair: int = 0  #: GPUs between the two of a transfer, of which the group is a chain; 0 for collectives.
    least_s: float = 0.0  #: least time of a call [s].
    time_s: float | None = None  #: of a call, where it is no collective of NCCL's [s].
    hidden: bool = False  #: it runs beside a longer part of the same exchange.


@dataclass(frozen=True)
class StagePlan:
    """One plan as seen from one GPU of its slowest stage."""

    job: JobSpec
    rows: Candidates  #: the plan as the only candidate.
    place: int  #: column of the stage among the evaluated ones.
    stage: int  #: its index in the pipeline.
    layers: tuple[tuple[LayerSpec, float], ...]  #: (kind of layer, how many of them the stage runs).

    def __getattr__(self, name: str) -> int:
        """Return one degree of the layout."""
        if name.startswith("_") or name not in Candidates.__dataclass_fields__:
            raise AttributeError(name)
        return int(getattr(self.rows, name)[0])

    @cached_property
    def apart(self) -> dict[str, int]:
        """Ranks from one member of a group to the next, by axis."""
        return {name: int(np.atleast_1d(one)[0]) for name, one in strides(self.rows, self.job)._asdict().items()}

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on one context-parallel rank."""
        return self.micro_batch_size * self.job.sequence / self.cp

    @property
    def own_tokens(self) -> float:
        """Those that a rank holds outside of what TP cuts."""
        return self.tokens / (self.tp if self.sp else 1)

    @property
    def hidden_bytes(self) -> float:
        """The hidden state of these tokens: b s h of the papers."""
        return self.tokens * self.job.model.hidden * self.job.activation_bytes

    @cached_property
    def recomputed(self) -> float:
        """Share of the stage's layers that are recomputed whole."""
        return min(self.recompute_layers / max(math.fsum(count for _, count in self.layers), 1), 1.0)

    def again(self, modules: int) -> float:
        """Return how often the backward pass repeats the forward pass of a module."""
        return self.recomputed + bool(self.recompute_modules & modules)

    def end(self, place: int) -> float:
        """Return the share of the embedding (`FIRST`) or LM head (`LAST`) that the stage runs."""
        return float(np.atleast_1d(share_of_end(self.rows, place, np.array([self.place])))[0])


def stage_plan(rows: Candidates, job: JobSpec, evaluation: Evaluation) -> StagePlan:
    """Return a plan as seen from its slowest stage."""
    place = int(evaluation.step.bottleneck[0])
    counts = (float(count[place, 0]) for count in evaluation.stages.layers(evaluation.stage_row))
    stage = int(evaluation.stages.position[evaluation.stage_row[0], place])
    return StagePlan(job, rows, place, stage, tuple(zip(job.model.trained_kinds, counts, strict=True)))


def inventory(plan: StagePlan) -> tuple[Call, ...]:
    """Return all collectives that a GPU takes part in during one step; groups of one GPU call none."""
    found = (
        *tensor_parallel_calls(plan),
        *context_calls(plan),
        *expert_calls(plan),
        *pipeline_calls(plan),
        *state_calls(plan),
        *embedding_calls(plan),
        *norm_calls(plan),
    )
    return tuple(one for one in found if one.group_size > 1 and one.calls > 0 and one.bytes_per_call > 0)


# -- tensor and sequence parallelism --


def tensor_parallel_calls(plan: StagePlan) -> Iterator[Call]:
    """Blocks of layers, the projection of multi-token prediction, and both ends of the model."""
    if plan.tp == 1:
        return
    for kind, count in plan.layers:
        for modules in tp_blocks(kind):
            yield from _block_calls(plan, kind, count, modules)
        if kind.joins_embedding:
            for phase, times in (("forward", 1.0), ("backward", 1 + plan.recomputed)):
                yield _tp(plan, "token prediction", "allgather", phase, plan.hidden_bytes, count * times)
    yield from _end_calls(plan)


def tp_blocks(kind: LayerSpec) -> list[int]:
    """Return, for each block of a layer that TP cuts, the modules of recomputation that repeat it."""
    blocks = [0] * (kind.attention is not None) + [0] * (kind.state_space is not None)
    blocks += [MLP] * (kind.mlp is not None and not kind.parallel_blocks)
    return blocks + [MOE | SHARED_EXPERTS] * (kind.moe is not None and kind.moe.shared_ffn > 0)


def _tp(plan: StagePlan, purpose: str, collective: str, phase: str, size: float, calls: float) -> Call:
    calls *= plan.num_microbatches
    return Call("tp", purpose, collective, phase, size, calls, plan.tp, plan.apart["tp"], "tp_comm")


def _block_calls(plan: StagePlan, kind: LayerSpec, count: float, modules: int) -> Iterator[Call]:
    """One block: 2 AllReduces of b s h in all, or 3 AllGathers and 2 ReduceScatters with sequence parallelism.

    Both gathers of the backward pass, of the output's gradient and once more of the block's input, and that of the
    forward pass travel as the products read them, in 8 or 4 bits below 16.
    """
    again, whole = plan.again(modules), plan.hidden_bytes
    if not plan.sp:
        yield _tp(plan, "block output", "allreduce", "forward", whole, count)
        yield _tp(plan, "block output", "allreduce", "backward", whole, count * (1 + again))
        return
    precision = plan.job.of_layer(kind).precision
    narrow = OPERAND_BYTES[precision] / plan.job.activation_bytes if precision in {"fp8", "fp4"} else 1.0
    yield _tp(plan, "block input", "allgather", "forward", whole * narrow, count)
    yield _tp(plan, "block output", "reducescatter", "forward", whole, count)
    yield _tp(plan, "block input and gradient", "allgather", "backward", whole * narrow, count * (2 + again))
    yield _tp(plan, "input gradient", "reducescatter", "backward", whole, count * (1 + again))


def _end_calls(plan: StagePlan) -> Iterator[Call]:
    """Embedding: its rows summed, their gradient gathered. LM head: its input gathered, and again for the weights'
    gradient, the input's gradient summed, and three sums of the loss."""
    whole, first, heads = plan.hidden_bytes, plan.end(FIRST), plan.end(LAST) * (1 + plan.job.model.mtp_depth)
    summed = "reducescatter" if plan.sp else "allreduce"
    ends = [
        _tp(plan, "embedding", summed, "forward", whole, first),
        _tp(plan, "LM head", summed, "backward", whole, heads),
        _tp(plan, "loss", "allreduce", "forward", plan.tokens * 4, LOSS_SUMS * heads),
    ]
    if plan.sp:
        ends += [_tp(plan, "LM head", "allgather", phase, whole, heads) for phase in ("forward", "backward")]
        ends.append(_tp(plan, "embedding", "allgather", "backward", whole, first))
    yield from (replace(one, ends=True) for one in ends)


# -- context parallelism --


def context_calls(plan: StagePlan) -> Iterator[Call]:
    """What ranks that share a sequence exchange in attention (fused alone) and in state spaces."""
    if plan.cp == 1:
        return
    for kind, count in plan.layers:
        if kind.attention is not None and plan.job.attention != "unfused":
            yield from _attention_calls(plan, kind.attention, count)
        if kind.state_space is not None:
            yield from _state_space_calls(plan, kind.state_space, count)


def _cp(plan: StagePlan, purpose: str, collective: str, size: float, calls: tuple[float, float]) -> Iterator[Call]:
    for phase, count in zip(PHASES, calls, strict=False):
        times = count * plan.num_microbatches
        yield Call("cp", purpose, collective, phase, size, times, plan.cp, plan.apart["cp"], "cp_comm")


def _attention_calls(plan: StagePlan, attention: AttentionSpec, count: float) -> Iterator[Call]:
    """A ring sends (blocks - 1) times; backward keys and values travel with their gradients."""
    heads, _, blocks = (int(one[0]) for one in context_split(plan.rows, plan.job))
    again = count * plan.again(CORE_ATTN)
    kv_heads = max(attention.kv_heads / plan.tp, heads)  # fewer are copied
    width = attention.head_dim + attention.value_head_dim
    kv_bytes = plan.tokens * kv_heads * width * plan.job.activation_bytes
    if plan.job.runtime.cp_comm == "all_gather":
        yield from _cp(plan, "keys and values", "allgather", kv_bytes * plan.cp, (count, count + again))
        yield from _cp(plan, "their gradients", "reducescatter", kv_bytes * plan.cp, (0, count))
        return
    stride = plan.apart["cp"] * heads
    for one in (
        *_cp(plan, "keys and values", "sendrecv", kv_bytes, (count * (blocks - 1), again * (blocks - 1))),
        *_cp(plan, "keys, values, gradients", "sendrecv", 2 * kv_bytes, (0, count * (blocks - 1))),
    ):
        yield replace(one, group_size=blocks, stride=stride)
    row = plan.tokens / plan.tp * plan.job.activation_bytes
    there, back = row * attention.query_width + kv_bytes, row * attention.output_width
    for purpose, size in (("queries, keys, values", there), ("outputs", back)):
        for one in _cp(plan, purpose, "alltoall", size, (count, count + again)):
            yield replace(one, group_size=heads)


def _state_space_calls(plan: StagePlan, spec: StateSpaceSpec, count: float) -> Iterator[Call]:
    """All tokens of its heads to each rank, and back."""
    heads, groups = spec.heads / plan.tp, max(spec.groups / plan.tp, 1.0)
    calls, row = (count, count * (1 + plan.recomputed)), plan.tokens * plan.job.activation_bytes
    into = 2 * heads * spec.head_dim + 2 * groups * spec.state
    yield from _cp(plan, "state-space inputs", "alltoall", row * into, calls)
    yield from _cp(plan, "state-space outputs", "alltoall", row * heads * spec.head_dim, calls)


# -- experts --


def expert_calls(plan: StagePlan) -> Iterator[Call]:
    """Tokens to their experts and back in both passes; gathered over the ranks that cut an expert."""
    for kind, count in plan.layers:
        if kind.moe is not None:
            yield from _exchange_calls(plan, kind.moe, count)


def _passes(plan: StagePlan, moe_calls: float, *, last: bool = False) -> tuple[tuple[str, float], ...]:
    """Return the calls of both passes; `last`: it follows the last product, which recomputation may leave out."""
    stops = {"yes": True, "compiled": bool(plan.job.runtime.compile), "no": False}
    whole = 0.0 if last and stops[plan.job.runtime.recompute_stops_early] else plan.recomputed
    again = whole + bool(plan.recompute_modules & MOE)
    return ("forward", moe_calls * plan.num_microbatches), ("backward", moe_calls * plan.num_microbatches * (1 + again))


def _exchange_calls(plan: StagePlan, moe: MoeSpec, count: float) -> Iterator[Call]:
    job, imbalance = plan.job, float(plan.job.busiest_expert_rank(plan.rows.ep)[0])
    copy_bytes = plan.own_tokens * moe.expert_width(job.model.hidden) * job.activation_bytes * imbalance
    if plan.ep > 1:
        probabilities = 0.0
        if job.runtime.dispatcher == "hybridep":
            inside = int(units(job.cluster, plan.ep, plan.apart["ep"])[0])
            probabilities = plan.own_tokens * imbalance * inside * (moe.experts // plan.ep) * PROBABILITY_BYTES
            choices = plan.own_tokens * plan.ep * moe.experts * ROUTING_BYTES
            (_, once), (_, both) = _passes(plan, count)
            for phase, calls in (("forward", once), ("backward", both - once)):  # the backward pass knows them
                yield _ep(plan, "choices of experts", "allgather", phase, choices, calls)
        with_more, without = copy_bytes + probabilities, copy_bytes
        (_, once), (_, out_again) = _passes(plan, count)
        (_, _), (_, back_again) = _passes(plan, count, last=True)
        yield from _sent(plan, moe, "tokens to experts", with_more, (("forward", once), ("backward", out_again - once)))
        yield from _sent(plan, moe, "tokens back", without, (("forward", once), ("backward", back_again - once)))
        yield from _sent(plan, moe, "gradients to experts", without, (("backward", once),))
        yield from _sent(plan, moe, "gradients back", with_more, (("backward", once),))
    if plan.etp > 1:
        size = copy_bytes * moe.top_k
        for purpose, collective, last in (
            (("tokens of an expert", "allgather", False), ("outputs of an expert", "reducescatter", True))
            if plan.sp
            else (("outputs of an expert", "allreduce", True),)
        ):
            for phase, calls in _passes(plan, count, last=last):
                one = _ep(plan, purpose, collective, phase, size * (plan.etp if plan.sp else 1), calls)
                yield replace(one, axis="etp", group_size=plan.etp, stride=plan.apart["etp"])


def _ep(plan: StagePlan, purpose: str, collective: str, phase: str, size: float, calls: float) -> Call:
    return Call("ep", purpose, collective, phase, size, calls, plan.ep, plan.apart["ep"], "ep_comm")


def _sent(
    plan: StagePlan, moe: MoeSpec, purpose: str, copy_bytes: float, passes: tuple[tuple[str, float], ...]
) -> Iterator[Call]:
    """One exchange: every copy of a token by NCCL, or one for each node and, beside it, one for each GPU in it."""
    cluster, runtime, step = plan.job.cluster, plan.job.runtime, plan.apart["ep"]
    inside, nodes = (int(one) for one in units(cluster, plan.ep, step))
    if runtime.dispatcher == "alltoall" or (nodes > 1 and not writes_remotely(cluster)):
        for phase, calls in passes:
            yield _ep(plan, purpose, "alltoall", phase, copy_bytes * moe.top_k, calls)
        return
    deepep = runtime.dispatcher == "deepep"
    sms, transport = (DEEPEP_SMS, runtime.transport) if deepep else (None, "nvshmem")
    routing, size = Routing(moe.top_k, moe.groups, moe.top_groups, moe.experts), np.array([plan.ep])
    both = deduplicated_s(cluster, np.array([copy_bytes]), size, step, routing, sms=sms, transport=transport)
    times = [float(one[0]) for one in both]
    of_gpus, of_nodes = (
        copy_bytes * float(distinct_targets(np.array([targets]), routing)[0]) for targets in (plan.ep, nodes)
    )
    parts = (("in the node", of_gpus, inside, step), ("between nodes", of_nodes, nodes, step * inside))
    longest = times.index(max(times))
    for phase, calls in passes:
        for index, (where, sent, members, stride) in enumerate(parts):
            one = _ep(plan, f"{purpose}, {where}", "alltoall", phase, sent, calls)
            yield replace(one, group_size=members, stride=stride, time_s=times[index], hidden=index != longest)


# -- pipeline, embedding, norm --


def pipeline_calls(plan: StagePlan) -> Iterator[Call]:
    """The hidden state to the next chunk of the model and its gradient back: 2 m v transfers, and filling.

    Where TP ranks hold copies each may send its share, gathered on the other side (Narayanan et al. 2021, section 4.1).
    """
    if plan.pp == 1:
        return
    scattered = plan.tp if plan.job.runtime.scatter_pipeline and not plan.sp else 1
    size, trips = plan.hidden_bytes / (plan.tp if plan.sp else scattered), plan.num_microbatches * float(plan.vpp)
    ways = [("forward", "hidden state", trips), ("backward", "its gradient", trips)]
    distance = plan.apart["pp"]
    for phase, purpose, calls in (*ways, ("forward", FILLING, float(filling_hops(plan.rows)[0]))):
        yield Call("pp", purpose, "sendrecv", phase, size, calls, plan.pp, distance, "pp_comm", pair=distance)
        if scattered > 1:
            whole = plan.hidden_bytes
            yield Call("pp", purpose, "allgather", phase, whole, calls, plan.tp, plan.apart["tp"], "pp_comm")


def embedding_calls(plan: StagePlan) -> Iterator[Call]:
    """The gradients of a tied embedding, of which first and last stage hold a copy each."""
    model = plan.job.model
    if model.tied_embeddings and plan.pp > 1:
        size = float(plan.job.vocabulary_rows(plan.rows.tp)[0]) * model.hidden * plan.job.reduced_gradient_bytes
        distance = plan.apart["pp"] * (plan.pp - 1)
        yield Call("embedding", "tied embedding", "allreduce", "synchronisation", size, 1.0, 2, distance, "dp_comm")


def norm_calls(plan: StagePlan) -> Iterator[Call]:
    """The norm of all gradients, that of the experts' apart; on CPUs where the optimizer runs there."""
    if not plan.job.offload.optimizer:
        calls = 1.0 + plan.job.model.is_moe
        yield Call("norm", "gradient norm", "allreduce", "update", 4.0, calls, plan.job.gpus, 1, "optimizer")


# -- data parallelism --


def state_calls(plan: StagePlan) -> Iterator[Call]:
    """Gradients and parameters of the stage that has the most, of the experts apart.

    With psi parameters on a GPU: ZeRO 0 AllReduces psi gradients; 1 and 2 ReduceScatter psi gradients, stage 2 maybe in
    every microbatch, and AllGather psi parameters; stage 3 gathers them in both passes of every microbatch. Replicas of
    the shards AllReduce psi / shard gradients.
    """
    _, _, parameters = placed(plan.rows, plan.job)
    group, dense, expert = plan.dp * plan.cp, *_heaviest(parameters)
    shard = plan.shard if plan.zero else group
    yield from _states(plan, "dp", dense, (shard, group // shard), plan.apart["dp_cp"])
    edp = int(plan.rows.expert_dp[0])
    expert_shard = max(edp * shard // group, 1)
    yield from _states(plan, "edp", expert, (expert_shard, edp // expert_shard), plan.apart["edp"])


def _heaviest(parameters: StageParameters) -> tuple[float, float]:
    place = int(parameters.whole[:, 0].argmax())
    return float(parameters.dense[place, 0]), float(parameters.expert[place, 0])


def _states(plan: StagePlan, axis: str, held: float, ranks: tuple[int, int], stride: int) -> Iterator[Call]:
    job, (shard, replicas) = plan.job, ranks
    gradients, weights, phase = held * job.reduced_gradient_bytes, held * job.states.weight, "synchronisation"
    least_s = shard * job.cluster.rank_overhead_s

    def call(purpose: str, collective: str, due: str, size: float, calls: float) -> Call:
        return Call(axis, purpose, collective, due, size, calls, shard, stride, "dp_comm", least_s=least_s)

    def buckets(collective: str) -> float:
        """DistributedDataParallel reduces buckets; the tensor that fills one closes it."""
        if collective != "allreduce" or not job.runtime.ddp_without_zero:
            return 1.0
        kinds = zip(job.model.trained_kinds, job.model.trained_counts, strict=True)
        tensors = math.fsum(count * len(dense_linears(job.model.hidden, kind)) for kind, count in kinds) / plan.pp
        return max(weights / (DDP_BUCKET_BYTES + weights / max(tensors, 1.0)), 1.0)

    whole = plan.zero == 0 or job.precision in job.runtime.reduced_whole
    reduce = "allreduce" if whole else "reducescatter"
    each = plan.zero >= 2 and not bool(whole_gradients(plan.rows, job)[0])
    pieces = buckets(reduce)
    repeats = plan.num_microbatches if each else 1
    yield call("gradients", reduce, phase, gradients / pieces, pieces * repeats)
    if plan.zero == 3:
        for due in PHASES[:2]:
            yield call("parameters", "allgather", due, weights, plan.num_microbatches)
    elif plan.zero:
        yield call("parameters", "allgather", "update", weights, 1.0)
    of_replicas = call(REPLICAS, "allreduce", phase, gradients / shard, 1.0)
    yield replace(of_replicas, group_size=replicas, stride=stride * shard, least_s=0.0)
