"""The reference's checklist before a launch ("Networks", pre-launch checklist) with the numbers of one job; each
collective as a line of nccl-tests; and signs of trouble, with what to suspect first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.explain.traffic import AxisTraffic, NetworkFault, TrafficReport
from gpuscale.launch.subject import Subject
from gpuscale.planning.neighbours import legal_neighbours, of_job, of_layout
from gpuscale.planning.placement import PlacedOrder, axis_name, level_plural, rails_text, straddling_text
from gpuscale.ratios import TIME, in_words, signed
from gpuscale.request import overlap_name, overlap_of
from gpuscale.results import PlanRow
from gpuscale.rooflines import allreduce_bytes_per_s, fsdp_tokens_per_gpu, moe_dp_tokens_per_gpu
from gpuscale.search.conditions import KNOBS, WORST, perturbed_s
from gpuscale.specs.cluster import FABRIC_NAMES, INSIDE
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.step import gpu_spread, slowest_of
from gpuscale.training.goodput import goodput
from gpuscale.training.stragglers import Slowed
from gpuscale.units import GBIT, format_bytes, format_count, format_duration, format_seconds, plural

PROGRAMS = {
    "allreduce": "all_reduce_perf",
    "allgather": "all_gather_perf",
    "reducescatter": "reduce_scatter_perf",
    "alltoall": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "sendrecv": "sendrecv_perf",
}
"""Collective -> the program of nccl-tests and rccl-tests that measures it."""

LIBRARIES = {"NVIDIA": "NCCL", "AMD": "RCCL"}
"""Vendor -> its library of collectives; others have none of this kind."""

LEAST_SHARE = 0.001
"""Exposed share of the step below which a collective is not worth a benchmark, unless none has more."""


@dataclass(frozen=True)
class Benchmark:
    """One collective to measure."""

    axis: str  #: the parallel axis that needs it
    collective: str  #: as in `gpuscale.collective/1`
    level: str  #: outermost level that a group crosses
    group_size: int  #: GPUs of a group
    stride: int  #: GPUs from one member to the next
    groups: int  #: groups that the command runs at once
    ranks: int  #: GPUs that the command takes
    bytes: int  #: size, as nccl-tests counts it
    command: str  #: what to run
    time_s: float  #: what a call is predicted to take [s]
    busbw_gb_per_s: float  #: bus bandwidth to expect
    busbw_low_gb_per_s: float  #: what nine of ten healthy systems exceed: the lower end of the 80 % interval
    algorithm: str  #: what NCCL is predicted to choose
    channels: int  #: CTAs that it takes; 0 where the model does not know
    latency_share: float  #: part of the time that does not depend on the bytes, 0 to 1
    exposed_share: float  #: of the step: what of this collective shows in it, 0 to 1


class RankGrid(NamedTuple):
    """How ranks are dealt out into groups: GPUs, groups, and nccl-tests' split."""

    ranks: int
    groups: int
    split: str


def grid_of(size: int, stride: int, host_gpus: int) -> RankGrid:
    """Return the fewest whole hosts, or part of one, that hold groups of `size` ranks, `stride` apart, and no others.

    nccl-tests puts ranks of one color into one communicator: `NCCL_TESTS_SPLIT="MOD 8"` those 8 apart, `"DIV 8"` eight
    in a row (its README, "Running multiple operations in parallel").
    """
    ranks = size * stride
    if stride > 1:
        return RankGrid(ranks, stride, f"MOD {stride}")
    if size < host_gpus and host_gpus % size == 0:
        return RankGrid(host_gpus, host_gpus // size, f"DIV {size}")
    return RankGrid(ranks, 1, "")


def benchmarks(job: JobSpec, traffic: Sequence[AxisTraffic], step_time_s: float) -> tuple[Benchmark, ...]:
    """Return what to measure, each once, what shows most in the step first."""
    if job.cluster.gpu.vendor not in LIBRARIES:
        return ()
    exposed: dict[tuple[str, str, int, int, int], float] = {}
    for row in traffic:
        size, stride = (2, row.stride) if row.collective == "sendrecv" else (row.group_size, row.stride)
        key = (row.axis, row.collective, size, stride, round(row.bytes_per_call))
        exposed[key] = exposed.get(key, 0.0) + row.exposed_s
    found = [
        one
        for (axis, collective, size, stride, data), shown_s in exposed.items()
        if data > 0 and (one := _benchmark(job, axis, collective, (size, stride, data), shown_s / step_time_s))
    ]
    ordered = sorted(found, key=lambda one: -one.exposed_share)
    worth = [one for one in ordered if one.exposed_share >= LEAST_SHARE]
    return tuple(worth or ordered[:1])


def _benchmark(job: JobSpec, axis: str, collective: str, group: tuple[int, int, int], share: float) -> Benchmark | None:
    """Return one benchmark; None where nccl-tests or the model has no such groups."""
    (size, stride, data), cluster = group, job.cluster
    grid = grid_of(size, stride, cluster.host_gpus)
    if grid.ranks > job.gpus:
        grid = RankGrid(size * stride, stride, f"MOD {stride}" if stride > 1 else "")
    try:
        siblings = Siblings(stride, grid.groups)
        expected = price_collective(cluster, collective, data, gpus=size, siblings=siblings)
    except InputError:
        return None
    busbw = expected.busbw_bytes_per_s / 1e9
    return Benchmark(
        axis=axis,
        collective=collective,
        level=expected.level,
        group_size=size,
        stride=stride,
        groups=grid.groups,
        ranks=grid.ranks,
        bytes=data,
        command=_command_of(collective, data, grid, cluster.host_gpus),
        time_s=expected.time_s,
        busbw_gb_per_s=busbw,
        busbw_low_gb_per_s=busbw * expected.time_s / (expected.time_high_s or expected.time_s),
        algorithm=expected.algorithm,
        channels=expected.channels,
        latency_share=expected.latency_s / expected.time_s,
        exposed_share=share,
    )


def _command_of(collective: str, data: int, grid: RankGrid, host_gpus: int) -> str:
    """Return the line of nccl-tests (built with MPI=1), one process for each GPU."""
    split = f' -x NCCL_TESTS_SPLIT="{grid.split}"' if grid.split else ""
    mpi = f"mpirun -np {grid.ranks} --map-by ppr:{min(grid.ranks, host_gpus)}:node{split}"
    return f"{mpi} ./build/{PROGRAMS[collective]} -b {data} -e {data} -g 1"


@dataclass(frozen=True)
class Item:
    """One line of the checklist."""

    name: str  #: what is checked
    now: str  #: what this job has or needs
    check: str  #: what to run or to look at
    expect: str  #: what it must say


@dataclass(frozen=True)
class Prelaunch:
    """What the lines are made from."""

    subject: Subject
    traffic: TrafficReport
    placed: PlacedOrder
    benchmarks: Sequence[Benchmark]

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self.subject.spec

    @property
    def plan(self) -> PlanRow:
        """The plan."""
        return self.subject.estimate.plan

    @property
    def hosts(self) -> int:
        """Machines of the job."""
        return -(-self.spec.gpus // self.spec.cluster.host_gpus)


def checklist(
    subject: Subject, traffic: TrafficReport, placed: PlacedOrder, benchmarks: Sequence[Benchmark]
) -> Iterator[Item]:
    """Yield the lines that concern a job, in the order of checking."""
    case = Prelaunch(subject, traffic, placed, benchmarks)
    for line in LINES:
        yield from line(case)


TOOLS = {
    "NVIDIA": {"topology": "nvidia-smi topo -m", "links": "nvidia-smi nvlink --status",
               "throttle": "nvidia-smi -q -d PERFORMANCE,CLOCK"},
    "AMD": {"topology": "rocm-smi --showtopo", "links": "amd-smi xgmi -l", "throttle": "rocm-smi --showclocks"},
}  # fmt: skip
"""Vendor -> what shows how its GPUs are joined, whether links are up, and clocks."""

PATHS = {"nvlink": "NV", "xgmi": "XGMI", "pcie": "PIX or PXB (PHB, NODE and SYS are slower)"}
"""Fabric -> what a topology matrix shows of it."""


def _tool(case: Prelaunch, name: str) -> str:
    return TOOLS.get(case.spec.cluster.gpu.vendor, {}).get(name, "")


def _topology(case: Prelaunch) -> Iterator[Item]:
    spec = case.spec
    levels = []
    for level in spec.cluster.levels:
        count = -(-spec.gpus // level.gpus)
        name = level_plural(level.name) if count > 1 else level.name
        levels.append(f"{count:,} {name}" + (f" of {level.gpus:,}" if level.gpus <= spec.gpus else ""))
    gpu, tool = spec.cluster.gpu, _tool(case, "topology")
    if not tool or spec.gpus == 1:
        return
    inner = spec.cluster.levels[0]
    path = f"{PATHS.get(inner.fabric, inner.fabric)} between all GPUs of one {inner.name}"
    if inner.fabric == "nvlink":
        path = path.replace("NV", f"NV{gpu.links}", 1)
    near = "; each GPU's card at PIX or PXB" if spec.network and spec.network.nics_per_gpu >= 1 else ""
    now = f"{spec.gpus:,} {gpu.title} in {', '.join(levels)}"
    yield Item("topology", now, f"`{tool}` on every node", f"{path}{near}, the same everywhere")


def _links(case: Prelaunch) -> Iterator[Item]:
    cluster, gpu = case.spec.cluster, case.spec.cluster.gpu
    tool = _tool(case, "links")
    linked = cluster.levels[0].fabric == gpu.link_name and cluster.node_gpus > 1
    if not tool or not linked or case.spec.gpus == 1:
        return
    name = FABRIC_NAMES.get(gpu.link_name, gpu.link_name)
    each = gpu.link_bytes_per_s / 1e9
    now = f"{gpu.links} links of {each:g} GB/s each way per GPU: {cluster.levels[0].egress_bytes_per_s / 1e9:g} GB/s"
    inside = (one for one in case.benchmarks if one.level == cluster.levels[0].name)
    most = max(inside, default=None, key=lambda one: one.busbw_gb_per_s)
    reach = f"; busbw {most.busbw_gb_per_s:.0f} GB/s in the {most.axis.upper()} benchmark" if most else ""
    yield Item(name, now, f"`{tool}`", f"{gpu.links} links up on every GPU{reach}")


def _nccl(case: Prelaunch) -> Iterator[Item]:
    spec = case.spec
    if not case.benchmarks:
        return
    chosen = {f"{axis_name(one.axis)} {one.algorithm}": one.channels for one in case.benchmarks}
    library = LIBRARIES[spec.cluster.gpu.vendor]
    now = "predicted: " + ", ".join(f"{name} ({count} channels)" if count else name for name, count in chosen.items())
    fabric = case.spec.network
    through = {"infiniband": "NET/IB with GDRDMA", "roce": "NET/IB with GDRDMA", "efa": "NET/AWS Libfabric (efa)",
               "slingshot": "NET/AWS Libfabric (cxi)"}  # fmt: skip
    plugin = f"; `{through[fabric.fabric]}`, not NET/Socket" if fabric and fabric.fabric in through else ""
    check = f"NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING in the first run: version of {library}, channels"
    yield Item(library, now, check, f"one version on {'all ' * (case.hosts > 1)}{plural(case.hosts, 'host')}{plugin}")


def _memory(case: Prelaunch) -> Iterator[Item]:
    found = case.subject.estimate
    plan, logged = found.plan, found.logged_memory_gib
    free = plan.memory_limit_gib - plan.memory_gib
    room = f"{free:.1f} GiB free" if free >= 0 else f"{-free:.1f} GiB too much"
    now = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}: {room}"
    told = f"reserved {logged['reserved']:.1f} GiB, all of the device {logged['nvidia-smi']:.1f} GiB, no growth"
    expect = told if plan.fits else "it does not fit: change the plan first"
    yield Item("memory headroom", now, "`torch.cuda.max_memory_reserved()` after the second step", expect)


def _groups(case: Prelaunch) -> Iterator[Item]:
    shown = []
    for axis, one in case.placed.spans.items():
        if axis != "dp_cp":
            first = ",".join(str(rank) for rank in one.groups.offsets()[:3].tolist())
            more = ",.." if one.groups.size > 3 else ""
            shown.append(f"{axis_name(axis)} {one.groups.count:,} x {one.groups.size} (ranks {first}{more})")
    if shown:
        check = "`gpuscale placement` with these options, against the ranks that the framework logs for its groups"
        yield Item("groups", "; ".join(shown), check, "the same ranks in the first group of each axis")


def _sharding(case: Prelaunch) -> Iterator[Item]:
    plan, held = case.plan, case.subject.estimate.memory
    if plan.dp * plan.cp == 1:
        return
    states = {"weights": "weights", "gradients": "gradients", "optimizer_state": "moments"}
    sizes = ", ".join(f"{name} {held[key]:.1f}" for key, name in states.items() if held[key])
    over = f"shared by {plan.shard_size} GPUs" if plan.zero else "on every replica"
    now = f"ZeRO-{plan.zero} ({plan.sharding}) {over}: {sizes} GiB per GPU"
    yield Item("sharding policy", now, "memory allocated after the first optimizer step, at rest", "the sum of these")


def _batch(case: Prelaunch) -> Iterator[Item]:
    spec, plan = case.spec, case.plan
    tokens = spec.tokens_per_step / spec.gpus
    now = (
        f"{spec.global_batch_size:,} x {spec.sequence:,} = {format_count(spec.tokens_per_step)} tokens: DP {plan.dp} x "
        f"microbatch {plan.micro_batch_size} x {plan.num_microbatches:,} accumulated; {tokens:,.0f} tokens per GPU"
    )
    least = _least_tokens(case)
    if plan.dp > 1 and least:
        each, unit = (tokens / plan.num_microbatches, "microbatch") if plan.zero == 3 else (tokens, "step")
        name = "FSDP" if plan.zero >= 2 else "DP"
        hides = "can hide under compute" if each >= least else "can NOT hide under compute"
        now += f"; {name} {hides}: {each:,.0f} per {unit}, {least:,.0f} needed"
    yield Item("batch", now, "the log of the first step", "these sizes, and the batch that the learning rate is for")


def _least_tokens(case: Prelaunch) -> float:
    """Tokens per GPU from which data parallelism is bound by compute, by the textbook; inf where nothing is crossed.

    C / W, of experts E / k times that (`gpuscale.rooflines`), without reduction in switches.
    """
    spec, plan = case.spec, case.plan
    cluster = spec.cluster
    index = next((i for i, level in enumerate(cluster.levels) if level.gpus >= spec.gpus), len(cluster.levels) - 1)
    peak = cluster.gpu.peak(spec.precision)
    found = fsdp_tokens_per_gpu(peak, allreduce_bytes_per_s(cluster, index, plan.tp * plan.pp))
    for kind in spec.model.trained_kinds:
        if kind.moe is not None:
            wide = allreduce_bytes_per_s(cluster, index, plan.ep * plan.etp * plan.pp)
            found = max(found, 2 * moe_dp_tokens_per_gpu(peak, wide, kind.moe.experts, kind.moe.top_k))
    return found


NETWORK_CHECKS = {
    "infiniband": ("ibstat | grep -E 'Rate|State'", "ib_write_bw -d mlx5_0 -s 8388608 --report_gbits",
                   "ibv_devinfo | grep active_mtu", "active_mtu 4096; InfiniBand needs neither PFC nor ECN",
                   "perfquery -x: no symbol errors, XmitWait steady"),
    "roce": ("ibdev2netdev; ethtool IFACE | grep Speed", "ib_write_bw -d mlx5_0 -x 3 -s 8388608 --report_gbits",
             "ibv_devinfo | grep active_mtu; mlnx_qos -i IFACE",
             "active_mtu 4096 (interface 9000), PFC on the priority of RDMA alone, ECN (DCQCN) on NICs and switches",
             "ethtool -S IFACE | grep -E 'prio._pause|discard|ecn|out_of_sequence': no discards"),
    "efa": ("fi_info -p efa -t FI_EP_RDM | grep -c domain", "fi_pingpong -p efa", "ip link show | grep mtu",
            "mtu 9001; SRD retransmits by itself, there is no PFC or ECN to set",
            "rdma -p statistic show: retrans_pkts steady"),
    "slingshot": ("fi_info -p cxi | grep -c domain", "fi_pingpong -p cxi", "ip link show hsn0 | grep mtu",
                  "mtu 9000; switches manage congestion", "ethtool -S hsn0 | grep -E 'pause|discard'"),
    "eni": ("ethtool IFACE | grep Speed", "iperf3 -P 16", "ip link show | grep mtu", "mtu 9001",
            "ss -ti | grep -c retrans"),
    "ethernet": ("ethtool IFACE | grep Speed", "iperf3 -P 16", "ip link show | grep mtu", "mtu 9000 on every hop",
                 "ethtool -S IFACE | grep -E 'discard|pause'"),
}  # fmt: skip
"""Fabric -> what shows the rate, measures a card, shows MTU and flow control, what these must say, and counters."""

FLOW = ("loss", "congestion")


def _network(case: Prelaunch) -> Iterator[Item]:
    level = case.spec.network
    if level is None or level.fabric not in NETWORK_CHECKS:
        return
    rate, measure, shows, must, counters = NETWORK_CHECKS[level.fabric]
    card = level.nic_bytes_per_s or level.link_bytes_per_s / level.nics_per_gpu
    per_host = level.nics_per_gpu * case.spec.cluster.host_gpus
    now = f"{per_host:g} x {card / GBIT:g} Gbit/s per host, {level.egress_bytes_per_s / 1e9:g} GB/s per GPU"
    reach = card / GBIT * level.link_efficiency
    expect = f"{card / GBIT:g} Gbit/s each; {reach:.0f} Gbit/s of a large transfer"
    yield Item("NICs", now, f"`{rate}`; `{measure}`", expect)
    faults = {one.name: one for one in case.traffic.network_faults}
    costs = [f"{signed(one.factor - 1)} time with {one.meaning}" for name, one in faults.items() if name in FLOW]
    counter, _, says = counters.partition(":")
    now = "; ".join([level.fabric, *costs])
    yield Item("MTU, PFC, ECN", now, f"`{shows}`; `{counter}`", f"{must}; {says.strip() or counters}")


def _rails(case: Prelaunch) -> Iterator[Item]:
    spec = case.spec
    if case.spec.network is None or all(level.rails == "none" for level in spec.cluster.levels):
        return
    spans = [one for axis, one in case.placed.spans.items() if one.rails and axis != "dp_cp"]
    said = "; ".join(rails_text(spec.cluster, one) for one in spans)
    uneven = [straddling_text(one, 0) for one in spans if one.levels[0].straddling]
    if spans:
        check = "cabling: card i of every node on rail switch i (`ibnetdiscover`, LLDP); NCCL_DEBUG=INFO names cards"
        yield Item("rail alignment", "; ".join([said, *uneven]), check, "GPU i sends by card i on every node")


def _measured(case: Prelaunch) -> Iterator[Item]:
    if case.benchmarks:
        names = ", ".join(dict.fromkeys(f"{one.collective} ({axis_name(one.axis)})" for one in case.benchmarks))
        reduced = any(one.collective == "allreduce" for one in case.benchmarks)
        now = f"{names}: the lines below{'' if reduced else '; all_reduce_perf alone would not show them'}"
        expect = "busbw within the interval of each line, on every set of nodes of the job"
        yield Item("benchmarks", now, "each command, on all nodes in turn", expect)


def _variance(case: Prelaunch) -> Iterator[Item]:
    plan = case.plan
    waits = float(slowest_of(case.subject.rows, gpu_spread(case.subject.spec.cluster.gpu))[0])
    now = (
        f"{format_seconds(plan.step_time_s)} predicted, 80 % within {format_seconds(plan.step_time_low_s)} to "
        f"{format_seconds(plan.step_time_high_s)}"
    )
    expect = "no drift"
    if case.spec.gpus > 1:
        now += f"; the slowest of {case.spec.gpus:,} GPUs takes {in_words(1 + waits, TIME, 'the usual one')}"
        expect = f"no rank takes {in_words(1 + 2 * waits, TIME, 'the median')}, no drift"
    tool = _tool(case, "throttle")
    check = "100 steps after the tenth: `gpuscale calibrate run` with the log" + (f"; `{tool}`" if tool else "")
    yield Item("step-time variance", now, check, expect)


def _exchange_seconds(traffic: TrafficReport) -> float:
    """Return the exchange between experts in a step [s]: its parts in nodes and between them overlap."""
    rows = [one for one in traffic.traffic if one.axis == "ep"]
    levels = {one.level for one in rows}
    parts = [math.fsum(one.time_s for one in rows if one.level == level) for level in sorted(levels)]
    return max([*parts, math.fsum(one.exposed_s for one in rows)])


def _overlap(case: Prelaunch) -> Iterator[Item]:
    totals = case.traffic.traffic_totals
    if not totals.time_s:
        return
    twice_s = math.fsum(one.time_s for one in case.traffic.traffic if one.axis == "ep") - _exchange_seconds(
        case.traffic
    )
    took_s = totals.time_s - twice_s
    hidden = 1 - totals.exposed_s / took_s
    now = f"{format_seconds(took_s)} of communication per step, of which {format_seconds(totals.exposed_s)} is exposed"
    check = "a profile of one step (torch.profiler, nsys): collectives under GEMMs"
    yield Item("overlap", now, check, f"{hidden:.0%} hidden")


def _bubble(case: Prelaunch) -> Iterator[Item]:
    plan, seconds = case.plan, case.subject.estimate.breakdown
    if plan.pp == 1:
        return
    now = (
        f"{plan.bubble_fraction:.1%} of the step ({format_seconds(seconds['bubble'])}): {plan.schedule}, PP {plan.pp} "
        f"x {plan.vpp}, {plan.num_microbatches:,} microbatches"
    )
    check = "a profile of the first stage: from its last forward pass to its first backward pass, and at the end"
    yield Item("bubble share", now, check, f"{format_seconds(seconds['bubble'])} idle per step")


def _experts(case: Prelaunch) -> Iterator[Item]:
    spec, plan = case.spec, case.plan
    if not spec.model.is_moe or plan.ep == 1:
        return
    took_s = _exchange_seconds(case.traffic)
    uneven = spec.moe_imbalance > 1
    experts = max(kind.moe.experts for kind in spec.model.kinds if kind.moe is not None)
    now = (
        f"{experts // plan.ep} of {experts} experts per GPU, EP {plan.ep}: AllToAll {format_seconds(took_s)} per step, "
        + (f"busiest rank {spec.moe_imbalance:g} x the mean" if uneven else "tokens assumed to be balanced")
    )
    most = f"no rank above {spec.moe_imbalance:g} x the mean" if uneven else "no rank far above the mean"
    check = "tokens per expert and EP rank in the log; AllToAll in a profile of one step"
    yield Item("expert placement", now, check, f"{most}; {format_seconds(took_s)}")


def _checkpoint(case: Prelaunch) -> Iterator[Item]:
    with suppress(NoAnswerError):  # it fails before it gets anywhere, which `goodput` says
        try:
            found = goodput(case.subject)
        except InputError:  # copies do not fit into host memory
            found = goodput(case.subject, checkpoint="sync")
        now = (
            f"{format_bytes(found.checkpoint_bytes)}, {found.checkpoint}: the job waits "
            f"{format_seconds(found.checkpoint_blocking_s)}; one failure in {format_duration(found.mtbf_s)}"
        )
        every = f"{format_duration(found.checkpoint_interval_s)} ({plural(found.checkpoint_interval_steps, 'step')})"
        expect = f"that time; one every {every} costs least, {found.effective_ratio:.1%} goodput then"
        check = "write one and read it back before the run; `gpuscale reliability` with your storage and failure rate"
        yield Item("checkpoint interval", now, check, expect)


LINES: tuple[Callable[[Prelaunch], Iterator[Item]], ...] = (
    _topology, _links, _nccl, _memory, _groups, _sharding, _batch, _network, _rails, _measured, _overlap,
    _variance, _bubble, _experts, _checkpoint,
)  # fmt: skip

MORE_CONNECTIONS = (("NCCL_MIN_CTAS", "24"), ("NCCL_IB_QPS_PER_CONNECTION", "2"))
"""With which 64 H100 on 8 x 400 Gbit/s took 43.2 rather than 52.7 ms for an AllReduce of 8 GiB (NVIDIA/nccl-tests,
issue 309)."""


def tuning(subject: Subject, traffic: TrafficReport) -> Iterator[tuple[str, str, str]]:
    """Yield variables of NCCL for the first run, and those that may gain: name, value, reason."""
    spec, plan = subject.spec, subject.estimate.plan
    if spec.gpus == 1 or spec.cluster.gpu.vendor not in LIBRARIES:
        return
    axes = ", ".join(name.upper() for name in ("tp", "cp", "ep", "pp", "dp") if getattr(plan, name) > 1)
    yield "NCCL_DEBUG", "INFO", f"first run alone: cards, channels and algorithms of the groups of {axes}"
    flat = math.fsum(
        row.exposed_s
        for row in traffic.traffic
        if row.nodes > 1 and row.ranks_per_node == spec.cluster.node_gpus and row.collective != "alltoall"
    )
    networks = {level.fabric for level in spec.cluster.levels}
    if "infiniband" in networks and spec.cluster.gpu.architecture == "hopper" and flat >= 0.01 * plan.step_time_s:
        why = f"to try: rings over whole nodes expose {flat / plan.step_time_s:.1%} of the step (nccl-tests issue 309)"
        yield from ((name, value, why) for name, value in MORE_CONNECTIONS)
    able = any(level.in_network_reduction for level in spec.cluster.levels if level.fabric not in INSIDE)
    if able and not spec.cluster.sharp:
        for one in legal_neighbours(subject.job, subject.layout, [of_job(sharp="on")]):
            gain = one.step_time_s / plan.step_time_s - 1
            if gain <= -0.001:
                why = f"SHARP: {signed(gain)} time; needs nccl-rdma-sharp-plugins and an aggregation manager"
                yield "NCCL_COLLNET_ENABLE", "1", why


NOTICEABLE = 0.005
"""Share of the step that is lost in what steps differ by (a choice)."""

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


def _sign(subject: Subject, step_s: float, suspect: str, check: str, source: str, gib: float | None = None) -> Sign:
    plan = subject.estimate.plan
    return Sign(step_s, step_s / plan.step_time_s - 1, plan.memory_gib if gib is None else gib, suspect, check, source)


def _missed(subject: Subject) -> Iterator[Sign]:
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
