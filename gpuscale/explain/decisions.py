"""The tables by which one decides before there is a plan: what answers which pressure, which strategy which situation,
and what each strategy asks of the network. `advise` fills the same tables with the numbers of a job.

Sources: Shoeybi et al. 2019 (arXiv 1909.08053), Rajbhandari et al. 2020 (arXiv 1910.02054), Narayanan et al. 2021
(arXiv 2104.04473), Korthikanti et al. 2022 (arXiv 2205.05198); what it costs a job is in `plan` and `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuscale.architecture.parameters import model_parameters
from gpuscale.arguments import taking
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.planning.jobs import Presets, settle
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.plans import job_of
from gpuscale.presets.hardware import load_cluster
from gpuscale.request import JobOptions, read, taken
from gpuscale.search.evaluation import memory_of
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec, OffloadSpec
from gpuscale.units import GIB, plural


@dataclass(frozen=True)
class UsualAnswer:
    """What usually answers a pressure."""

    pressure: str  #: `memory`, `network`, `batch`, `sequence` or `experts`
    shows: str  #: how one sees it
    answers: str  #: what is tried, what costs least first


@dataclass(frozen=True)
class Demand:
    """What a strategy asks of the network."""

    strategy: str  #: an axis, or `zero`
    splits: str  #: what it splits
    pattern: str  #: its collectives, and how often
    stresses: str  #: the property of the network that it depends on


@dataclass(frozen=True)
class Situation:
    """A situation, and the strategy that is for it."""

    situation: str  #: what is the case
    strategy: str  #: what is for it
    network: str  #: what it asks of the network
    holds: bool | None  #: whether it is so of the job; null where too little of it is known
    now: str  #: the numbers that say so; empty where nothing is known


@displayed
@dataclass(frozen=True)
class Decisions:
    """The tables by which one decides before there is a plan."""

    model: str | None  #: name of the model; null without one
    cluster: str | None  #: name of the cluster; null where neither it nor a model is given
    gpus: int | None  #: GPUs of the job; null where they are open
    pressures: tuple[UsualAnswer, ...]  #: which answers are usual to which pressure
    situations: tuple[Situation, ...]  #: which strategy is for which situation, and which of them hold of the job
    strategies: tuple[Demand, ...]  #: what each strategy asks of the network
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`


PRESSURES = {
    one.pressure: one
    for one in (
        UsualAnswer("memory", "a step does not fit, or leaves no room for fragmentation",
            "shard optimizer states (`zero=1`); sequence parallelism with TP; `recompute=selective`; more TP, then PP; "
            "`zero=3`; `recompute=full`, a third more FLOPs; `offload=optimizer`"),
        UsualAnswer("network", "communication is exposed in the step",
            "the busiest groups into the fastest domain: TP in a node, PP on a rail; overlap; more tokens per GPU and "
            "step; a lower ZeRO stage; gradients of 16 bits (`grad_dtype=bf16`)"),
        UsualAnswer("batch", "the pipeline idles, or each GPU has few tokens per step",
            "more microbatches; fewer stages or interleaved ones (`vpp`); a larger batch, as far as the loss allows "
            "(`gpuscale size batch`)"),
        UsualAnswer("sequence", "attention and what is kept of it grow with the sequence",
                    "sequence parallelism with TP; context parallelism (`cp`) in a node first; `recompute=selective`"),
        UsualAnswer("experts", "AllToAll shows, or ranks wait for that with the most tokens",
                    "experts inside one node, then over as few as memory needs (`ep`); AllToAll under compute "
                    "(`overlap=dp+tp+ep`); balanced routing; DP of the experts outside"),
    )
}  # fmt: skip
"""Pressure -> how it shows and what answers it."""

STRATEGIES = {
    one.strategy: one
    for one in (
        Demand("dp", "the batch", "AllReduce of gradients, once per step", "bandwidth in bursts, and stragglers"),
        Demand("zero", "states", "AllGather of parameters and ReduceScatter of gradients, under ZeRO-3 in each layer",
               "bandwidth all the time; what overlap hides"),
        Demand("tp", "matrices", "AllReduce, or AllGather and ReduceScatter, in each layer, forward and backward",
               "latency and bandwidth: NVLink or the like"),
        Demand("cp", "sequences", "keys and values around a ring, or AllToAll of heads, in each layer", "bandwidth"),
        Demand("pp", "layers", "activations and their gradients from stage to stage, each microbatch",
               "little of it; latency where microbatches are small"),
        Demand("ep", "experts", "AllToAll of tokens, twice in each layer of experts, forward and backward",
               "congestion and expert balance: all-to-all"),
    )
}  # fmt: skip
"""Axis, or `zero` -> what it splits and asks of the network."""


class Footing(NamedTuple):
    """A job on a single GPU: what situations are judged by."""

    job: JobSpec  #: with one GPU and one sequence.
    held: Mapping[str, float]  #: memory of it by component [GiB].

    @property
    def total(self) -> float:
        """All of it [GiB]."""
        return sum(self.held.values())

    @property
    def states(self) -> float:
        """Weights, gradients, master weights and moments [GiB]."""
        return self.part("weights", "gradients", "master_weights", "optimizer_state")

    @property
    def limit(self) -> float:
        """Memory of the GPU [GiB]."""
        return self.job.memory_limit_bytes / GIB

    def part(self, *names: str) -> float:
        """Some components [GiB]."""
        return sum(self.held[name] for name in names)

    def of(self, size: float, what: str) -> str:
        """Say how large something is beside one GPU."""
        return f"{what}: {size:,.1f} of {self.limit:,.1f} GiB of one GPU"


def footing(job: JobSpec) -> Footing:
    """Put a job on a single GPU, nothing sharded, recomputed or offloaded."""
    alone = replace(job, gpus=1, global_batch_size=1, offload=OffloadSpec())
    held = memory_of(fixed_layout(alone, {}), alone).at_peak(0)
    return Footing(alone, {name: size / GIB for name, size in held.items()})


Judged = tuple[bool, str]
LONG = 16384
"""Sequences from which attention is looked at (a choice)."""

MUCH = 0.5
"""Share of the memory from which something fills it (a choice)."""


def _fits(one: Footing) -> Judged:
    return one.total <= one.limit, one.of(one.total, "a step of one sequence")


def _optimizer(one: Footing) -> Judged:
    size = one.part("master_weights", "optimizer_state")
    return size >= MUCH * one.total, f"master weights and moments: {size:,.1f} of {one.total:,.1f} GiB"


def _parameters(one: Footing) -> Judged:
    size = one.part("weights")
    return size > one.limit, one.of(size, "weights")


def _layer(one: Footing) -> Judged:
    counted = model_parameters(one.job.model)
    size = one.states * max(kind.dense_params for kind in counted.kinds) / counted.total
    return size > MUCH * one.limit, one.of(size, "states of the largest layer, without routed experts")


def _layers(one: Footing) -> Judged:
    cluster = one.job.cluster
    room = one.limit * cluster.node_gpus
    node = f"one {cluster.levels[cluster.domain_index].name} of {cluster.node_gpus}"
    states = f"states of {one.job.model.layers} layers"
    return one.states > room, f"{states}: {one.states:,.0f} of {room:,.0f} GiB of {node}"


def _activations(one: Footing) -> Judged:
    size = one.part("activations", "logits")
    return size > MUCH * one.limit, one.of(size, "activations of one sequence")


def _sequence(one: Footing) -> Judged:
    return one.job.sequence >= LONG, f"{one.job.sequence:,} tokens"


def _experts(one: Footing) -> Judged:
    experts = max((kind.moe.experts for kind in one.job.model.kinds if kind.moe), default=0)
    return experts > 0, f"{plural(experts, 'expert')} in a layer" if experts else "no experts"


def _nodes(cluster: ClusterSpec, gpus: int) -> Judged:
    nodes = -(-gpus // cluster.node_gpus)
    return nodes > 1, f"{plural(nodes, cluster.levels[cluster.domain_index].name)} of {cluster.node_gpus} GPUs"


SITUATIONS: tuple[tuple[str, str, str, Callable[[Footing], Judged] | None], ...] = (
    ("much data, and a step fits on one GPU", "data parallelism (`dp`)", "bandwidth for AllReduce of gradients", _fits),
    ("optimizer states fill the memory", "ZeRO-1, or 2 without a pipeline (`zero=1`)",
     "ReduceScatter and AllGather in place of AllReduce, as many bytes", _optimizer),
    ("not even the weights fit", "ZeRO-3 / FSDP (`zero=3`), or TP with PP",
     "AllGather of parameters in each layer and pass, one and a half times the bytes", _parameters),
    ("a single layer is too large", "tensor parallelism (`tp`)", "NVLink, or a network of very low latency", _layer),
    ("the layers are too many for one node", "pipeline parallelism (`pp`)",
     "activations and gradients from stage to stage", _layers),
    ("activations fill the memory", "sequence parallelism with TP, `recompute=selective`",
     "the bytes of TP: ReduceScatter and AllGather in place of AllReduce", _activations),
    ("sequences are long", "context parallelism (`cp`)", "keys and values in each layer", _sequence),
    ("a mixture of many experts", "expert parallelism (`ep`)", "AllToAll, and balance of the experts", _experts),
    ("training over several nodes", "a hybrid: TP in the node, PP and DP over the network",
     "placement on nodes and rails, and settings of NCCL", None),
)  # fmt: skip
"""Situation, strategy, what it asks of the network, and how a job is judged by it; the last by its nodes."""


def situations(job: JobSpec | None, cluster: ClusterSpec | None = None, gpus: int | None = None) -> Iterator[Situation]:
    """Yield every situation, judged where enough is known: of the job's model, precision and sequence count, and of
    what it runs on."""
    alone = None if job is None else footing(job)
    for situation, strategy, network, judge in SITUATIONS:
        holds, now = None, ""
        if judge is None and cluster is not None and gpus is not None:
            holds, now = _nodes(cluster, gpus)
        elif judge is not None and alone is not None:
            holds, now = judge(alone)
        yield Situation(situation, strategy, network, holds, now)


@taking(taken(JobOptions, beside_files=True))
def decide(**options: Any) -> Decisions:
    """Return the tables by which one decides before there is a plan, judged as far as the job is known.

    Args:
        options: of the job; without a model only its GPUs and cluster.

    Raises:
        InputError: options of a job without a model, or unusable input.
    """
    job = cluster = None
    notes: tuple[str, ...] = ()
    gpus = options.get("gpus")
    stray = next((name for name in options if name not in {"gpus", "cluster"}), None)
    if "model" in options:
        made = job_of({**options, "gpus": gpus or 1}, {})
        job, cluster, notes = made.spec, made.spec.cluster, made.notes
    elif stray is not None:
        raise InputError("has no effect without `model`", field=stray, hint="add `model`")
    elif options:
        named, short = settle(read(JobOptions, {"model": "", "gpus": 1, **options}), Presets())
        cluster, notes = load_cluster(named.cluster), tuple(short)
    return Decisions(
        model=None if job is None else job.model.name,
        cluster=None if cluster is None else cluster.name,
        gpus=gpus,
        pressures=tuple(PRESSURES.values()),
        situations=tuple(situations(job, cluster, gpus)),
        strategies=tuple(STRATEGIES.values()),
        notes=notes,
    )
