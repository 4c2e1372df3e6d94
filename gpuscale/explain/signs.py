"""Signs of trouble: what a step takes where something is not as the plan has it, and what to suspect first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscale.explain.benchmarks import LIBRARIES
from gpuscale.explain.traffic import NetworkFault
from gpuscale.launch.subject import Subject
from gpuscale.planning.neighbours import legal_neighbours, of_job, of_layout
from gpuscale.request import overlap_name, overlap_of
from gpuscale.search.conditions import KNOBS, WORST, perturbed_s
from gpuscale.training.stragglers import Slowed

NOTICEABLE = 0.005
"""Share of the step below which a difference is lost in what steps differ by from one to the next (a choice)."""

TCP_SLOWDOWN = 8.0
"""How much longer a byte takes over TCP through host memory than by RDMA (guesstimate)."""

THROTTLED = 1.25
"""How much longer kernels take on a GPU that throttles by power or heat (guesstimate)."""


@dataclass(frozen=True)
class Sign:
    """One way in which a run may differ from the plan."""

    step_time_s: float  #: seconds per step with it
    slower: float  #: step time over the predicted one, less 1
    memory_gib: float  #: GiB per GPU at the fullest stage with it
    suspect: str  #: what to suspect
    check: str  #: what shows whether that is it
    #: where the numbers come from: `rerun` with the option changed, or how much slower something is taken to be, and
    #: from where
    source: str


def signs(subject: Subject, faults: Sequence[NetworkFault]) -> tuple[Sign, ...]:
    """Return what would be noticed, the least of it first."""
    was_gib = subject.estimate.plan.memory_gib
    of_network = (
        _sign(subject, fault.step_time_s, fault.meaning, CHECKS[fault.name], fault.source)
        for fault in faults
        if fault.name in CHECKS
    )
    found = (*_missed(subject), *_slow(subject), *of_network)
    noticed = [
        one for one in found if one.slower >= NOTICEABLE or abs(one.memory_gib - was_gib) >= NOTICEABLE * was_gib
    ]
    return tuple(sorted(noticed, key=lambda one: (one.step_time_s, one.suspect)))


CHECKS = {
    "slow_rail": "each card alone, then all at once; NCCL_DEBUG=INFO names the card of every channel",
    "loss": "retransmissions and drops in the counters of cards and switches, before and after a step",
    "congestion": "the benchmarks across nodes while neighbours run, and alone",
    "node_links": "links up on every GPU, and the benchmarks inside every node",
}
"""Fault of `gpuscale.explain.traffic` -> what shows it."""


def _sign(subject: Subject, step_s: float, suspect: str, check: str, source: str, gib: float | None = None) -> Sign:
    plan = subject.estimate.plan
    return Sign(step_s, step_s / plan.step_time_s - 1, plan.memory_gib if gib is None else gib, suspect, check, source)


def _missed(subject: Subject) -> Iterator[Sign]:
    """Settings of the plan that a launch may miss, each evaluated anew."""
    plan, spec = subject.estimate.plan, subject.spec
    on, cluster = overlap_of(spec.runtime), spec.cluster
    switches = cluster.nvls and cluster.levels[0].in_network_reduction and cluster.gpu.vendor == "NVIDIA"
    slips = [  # where it is planned, what is missed, what to suspect, what shows it
        (True, of_job(overlap=overlap_name([one for one in on if one != part])),
         f"{part.upper()} communication does not overlap",
         f"a profile of one step: whether {part.upper()} collectives overlap GEMMs")
        for part in on
    ]  # fmt: skip
    log, graphs = "the option in the log", spec.runtime.cuda_graphs != "none"
    slips += [
        (plan.sp, of_layout(sp=False), "sequence parallelism is off", log),
        (plan.recompute == "none", of_layout(recompute="full"), "all layers are recomputed", log),
        (plan.schedule == "interleaved", of_layout(vpp=1), "the pipeline is not interleaved",
         "chunks per rank in the log"),
        (switches, of_job(nvls="off"), "NVLS is not used", "NCCL_DEBUG=INFO: `NVLS multicast support`"),
        (spec.precision in {"fp8", "fp4"}, of_job(precision="bf16"), "GEMMs run in bf16", "kernel names in a profile"),
        (graphs, of_job(cuda_graphs="none"), "CUDA graphs are off", "launches in a profile"),
        (bool(spec.runtime.compile), of_job(compile="off"), "torch.compile is off",
         "TORCH_LOGS=graph_breaks,recompiles"),
    ]  # fmt: skip
    missed = [(change, suspect, check) for planned, change, suspect, check in slips if planned]
    said = {id(change): (suspect, check) for change, suspect, check in missed}
    for one in legal_neighbours(subject.job, subject.layout, [change for change, *_ in missed]):
        yield _sign(subject, one.step_time_s, *said[id(one.change)], "rerun", one.memory_gib)


def _slow(subject: Subject) -> Iterator[Sign]:
    """Hardware and hosts that are slower than planned with."""
    spec, plan = subject.spec, subject.estimate.plan
    library = LIBRARIES.get(spec.cluster.gpu.vendor)
    rdma = spec.network is not None and spec.network.fabric not in {"ethernet", "eni"}
    late = "time per iteration by rank without synchronisation: one rank is late in all its groups"
    sockets = "NCCL_DEBUG=INFO has `NET/Socket` in place of the fabric's plugin, or no GDRDMA"
    cases = (
        (True, "kernels", THROTTLED, "all GPUs throttle", "clocks, power and temperature under load"),
        (True, "host", None, "CPUs launch kernels late", "CPU governor, NUMA binding of ranks"),
        (spec.gpus > 1, "slow_gpu", THROTTLED, "one GPU throttles, and all wait for it", late),
        (plan.ep > 1, "imbalance", None, "experts are unbalanced", "tokens per expert in the log"),
        (rdma and library, "network", TCP_SLOWDOWN, f"{library} sends over TCP", sockets),
    )
    knobs = {knob.name: knob for knob in KNOBS}
    for name, guess, suspect, check in (case[1:] for case in cases if case[0]):
        factor = guess or knobs[name].factor(WORST)
        if name == "slow_gpu":
            step_s = Slowed(subject).with_slow_gpus(1 / factor, 1)
        else:
            step_s = float(perturbed_s(subject.rows, spec, {name: factor})[0])
        source = f"{factor:.3g} x the {knobs[name].meaning}; {'guesstimate' if guess else knobs[name].source}"
        yield _sign(subject, step_s, suspect, check, source)
