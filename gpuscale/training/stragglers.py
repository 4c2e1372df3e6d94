"""Stragglers: what one slow part costs a job in which all wait for the slowest, and whether to leave it out.

A slow GPU, on the stage that is slowest anyway, costs what it takes beyond what every step waits for GPUs of the usual
spread (`gpuscale.steptime.step.slowest_share`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpuscale.arguments import taking
from gpuscale.arrays import added_up
from gpuscale.calibration.factors import with_network
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.launch.subject import Subject
from gpuscale.planning.layouts import layout_text
from gpuscale.presets.rates import Rate, given, load_rates
from gpuscale.request import Recovery, Slow, read, taken
from gpuscale.search.conditions import KERNELS, perturbed
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION, INDEX
from gpuscale.steptime.step import gpu_spread, slowest_share
from gpuscale.training.goodput import node_gpus

SLOWED = tuple(name for name in KERNELS if name != "waiting")
"""Components of the step time that take longer on a slow GPU; `waiting` is saved instead."""

PACKET_BYTES = 4096
"""Largest payload of a packet of InfiniBand and RoCE."""

SELECTIVE = ("efa", "slingshot")
"""Networks that send again only what is lost (AWS SRD, Shalev et al. 2020, IEEE Micro; Slingshot's link-level retry);
elsewhere all that followed goes again (go-back-N; Mittal et al. 2018, Revisiting Network Support for RDMA, SIGCOMM)."""

CAPPED = 0.7
"""Share of its power limit that the GPU of the usual answer keeps."""

SPREADS = {"gpu": 0.02, "host": 0.05, "link": 0.05}
"""Spreads that are shown beside that of the prediction."""


@dataclass(frozen=True)
class Straggler:
    """One slow part, and what it costs."""

    part: str  #: `node`, `gpu`, `host`, `rail`, `link` (that loses packets) or `power` (a GPU with a power limit)
    #: its share of the others' speed; of a link, the share of packets that it loses; of `power` the limit [W]
    severity: float
    text: str  #: the same in words
    step_time_s: float  #: seconds per optimizer step with it
    slower: float  #: step time over that without it, less 1
    gpu_hours_per_day: float  #: GPU-hours that are lost to it in a day
    #: `keep`, `leave out` (the job is faster without the replicas that go with it) or `replace` (it would be left out,
    #: but no replica can go)
    advice: str
    #: seconds after which replacing it by a spare has paid for the restart; null where it costs nothing
    pays_after_s: float | None


@dataclass(frozen=True)
class Variation:
    """How much longer a step takes if like parts differ more."""

    part: str  #: `gpu`, `host` or `link`
    count: int  #: how many of them the job waits for
    spread: float  #: standard deviation of the time that they take, as a share of it
    share: float  #: by how much the slowest is above the mean
    step_time_s: float  #: seconds per optimizer step if they differ by this
    slower: float  #: step time over that predicted, less 1
    predicted: bool  #: whether the prediction is made with this spread


@displayed
@dataclass(frozen=True)
class Stragglers:
    """What slow parts cost a job."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    layout: str  #: of the plan, in words
    step_time_s: float  #: seconds per optimizer step without them
    waiting_s: float  #: seconds of it that go into waiting for the slowest of GPUs that are all well
    replicas_left_out: int  #: data-parallel replicas that go with a node that is left out; 0 where the job has no more
    without: float | None  #: how much longer the training takes without these, as a share; null where it has no more
    #: speed of a node, as a share of the others', below which it costs more than they do
    worth_leaving_out_below: float | None
    parts: tuple[Straggler, ...]  #: the slow parts
    variation: tuple[Variation, ...]  #: like parts that differ
    assumptions: dict[str, Rate]  #: rate -> value, source and date
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`


class Slowed:
    """What the parts of a plan's step take."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.job = subject, subject.spec
        step = subject.evaluation.step
        self.step_s = float(step.step_time_s[0])
        self.by_component = {name: float(step.components[index, 0]) for name, index in INDEX.items()}
        self.kernels_s = added_up(self.by_component[name] for name in SLOWED)
        self.waiting_s = self.by_component["waiting"]
        self.spread = gpu_spread(self.job.cluster.gpu)

    def with_slow_gpus(self, speed: float, count: int) -> float:
        """Step time with some GPUs at a share of the speed [s]; the slowest of them counts."""
        longer = (1 + slowest_share(count, self.spread)) / speed - 1
        return self.step_s + max(self.kernels_s * longer - self.waiting_s, 0.0)

    def with_cap(self, power_w: float) -> float:
        """Step time with one GPU of another power limit [s]."""
        gpu = self.job.cluster.gpu
        if power_w > gpu.power_w:
            raise InputError(f"{power_w:g} W is above the {gpu.power_w:g} W of {gpu.title}", field="power_cap")
        capped = replace(self.job, cluster=replace(self.job.cluster, gpu=gpu.capped(power_w)))
        found = evaluate(self.subject.rows, capped).step.components
        slower_s = added_up(float(found[INDEX[name], 0]) for name in SLOWED) - self.kernels_s
        return self.step_s + max(slower_s - self.waiting_s, 0.0)

    def with_slow_host(self, speed: float) -> float:
        """Step time with one host whose CPU takes longer to launch kernels [s]."""
        slow = evaluate(self.subject.rows, perturbed(self.job, {"host": 1 / speed})).step
        return max(float(slow.step_time_s[0]), self.step_s)

    def with_slow_link(self, speed: float) -> float:
        """Step time with one link of the network at a share of its bandwidth [s]: every ring and tree through it goes
        at its pace, and all others wait for these."""
        self._check_network("slow_rail")
        cluster = self.job.cluster
        slower = [1.0 if index <= cluster.domain_index else 1 / speed for index in range(len(cluster.levels))]
        changed = replace(self.job, cluster=with_network(cluster, slower))
        return max(float(evaluate(self.subject.rows, changed).step.step_time_s[0]), self.step_s)

    def with_loss(self, loss: float) -> float:
        """Step time with one link that loses packets [s]."""
        self._check_network("packet_loss")
        return self.with_slow_link(go_back_n_share(loss, loss_window(self.job)))

    def _check_network(self, field: str) -> None:
        if self.job.network is None:
            raise InputError("the job has one node, and no network", field=field, hint="leave it out")


def loss_window(job: JobSpec) -> float:
    """Return how many packets of a link of the network are sent again for each lost one: all until it is noticed at the
    far end of the job, or that one."""
    link, levels = job.network, job.cluster.levels
    if link is None or link.fabric in SELECTIVE:
        return 1.0
    farthest = next((level for level in levels if level.gpus >= job.gpus), levels[-1])
    return max(link.link_bytes_per_s * 2 * farthest.hop_latency_s / PACKET_BYTES, 1.0)


def go_back_n_share(loss: float, window: float) -> float:
    """Return which share of its bandwidth a link keeps that loses packets, with W (`loss_window`) sent again for each:
    (1 - p) / (1 + p (W - 1)) (go-back-N: Bertsekas and Gallager 1992, Data Networks, section 2.4)."""
    return (1 - loss) / (1 + loss * (window - 1))


def replicas_of_node(subject: Subject) -> int:
    """Return the data-parallel replicas that go when a node goes: those with a GPU in it, and in its expert group."""
    rows, job = subject.rows, subject.spec
    per_replica = job.gpus // int(rows.dp[0])
    in_node = -(-node_gpus(job) // per_replica)
    in_experts = -(-int(rows.ep[0] * rows.etp[0]) // int(rows.tp[0] * rows.cp[0]))
    return max(in_node, in_experts)


@taking(taken(Slow))
def stragglers(subject: Subject, *, restart_time: float | None = None, **options: Any) -> Stragglers:
    """Say what slow parts cost a plan, and whether it is cheaper to leave them out.

    Args:
        subject: a plan, as `gpuscale.read_subject` reads it.
        restart_time: seconds of a restart, after which a spare has taken the place of a slow node.
        options: what is slow; a usual selection where none is given.

    Raises:
        InputError: unusable options.
    """
    asked, restart = read(Slow, options), read(Recovery, {"restart_time": restart_time}).restart_time
    job, times = subject.spec, Slowed(subject)
    rate = load_rates()["restart_time_s"] if restart is None else given(restart)
    gone, dp = replicas_of_node(subject), int(subject.rows.dp[0])
    without = gone / (dp - gone) if gone < dp else None
    even = None  # the speed at which a node costs as much as leaving it out
    if without is not None:
        longer = (times.step_s * without + times.waiting_s) / times.kernels_s
        even = min((1 + slowest_share(node_gpus(job), times.spread)) / (1 + longer), 1.0)
    return Stragglers(
        model=job.model.name,
        cluster=job.cluster.name,
        gpus=job.gpus,
        layout=layout_text(subject.rows.row(0)),
        step_time_s=times.step_s,
        waiting_s=times.waiting_s,
        replicas_left_out=gone if without is not None else 0,
        without=without,
        worth_leaving_out_below=even,
        parts=tuple(_parts(times, asked, without, rate.value)),
        variation=tuple(_variation(times)),
        assumptions={"restart_time_s": rate},
        notes=subject.estimate.notes,
    )


def _parts(times: Slowed, asked: Slow, without: float | None, restart_s: float) -> Iterator[Straggler]:
    job = times.job
    ways: dict[str, Callable[[float], float]] = {
        "slow_node": partial(times.with_slow_gpus, count=node_gpus(job)),
        "slow_gpu": partial(times.with_slow_gpus, count=1),
        "slow_host": times.with_slow_host, "slow_rail": times.with_slow_link, "packet_loss": times.with_loss,
        "power_cap": times.with_cap,
    }  # fmt: skip
    found: dict[str, tuple[float, ...]] = {name: (value,) for name, value in asked.stated().items()}
    if not found:
        network = ("slow_rail", "packet_loss") if job.network is None else ()
        found = {name: usual for name, (_, _, usual) in PARTS.items() if name not in network}
        found["power_cap"] = (float(round(job.cluster.gpu.power_w * CAPPED)),)
    for name, values in found.items():
        for value in values:
            step_s = ways[name](value)
            slower = step_s / times.step_s - 1
            advice = "replace"  # where there is no spare, and the job cannot do without a node
            if slower < LEAST_SLOWDOWN:
                advice = "keep"
            elif without is not None:
                advice = "leave out" if slower > without else "keep"
            yield Straggler(
                part=PARTS[name][0],
                severity=value,
                text=PARTS[name][1].format(value),
                step_time_s=step_s,
                slower=slower,
                gpu_hours_per_day=24 * job.gpus * slower / (1 + slower),
                advice=advice,
                pays_after_s=restart_s * (1 + slower) / slower if slower > NO_SLOWDOWN else None,
            )


NO_SLOWDOWN = 1e-9

PARTS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "slow_node": ("node", "one node at {:g} x its speed", (0.9, 0.95, 0.8, 0.5)),
    "slow_gpu": ("gpu", "one GPU at {:g} x its speed", (0.9,)),
    "slow_host": ("host", "one host with its CPU at {:g} x its speed", (0.5,)),
    "slow_rail": ("rail", "one link or rail at {:g} x its bandwidth", (0.5,)),
    "packet_loss": ("link", "one link that loses {:g} of its packets", (1e-4, 1e-3)),
    "power_cap": ("power", "one GPU at {:g} W", ()),
}
"""Option -> part, how it is said, and what is shown where nothing is asked for (of a power cap `CAPPED`)."""

LEAST_SLOWDOWN = 1e-3
"""Slowdown below which nobody need do anything."""


def _variation(times: Slowed) -> Iterator[Variation]:
    """What the spread of GPUs costs, as predicted, and what other spreads would."""
    job, share = times.job, slowest_share(times.job.gpus, times.spread)
    busy_s = times.waiting_s / share if share > 0 else 0.0
    network_s = added_up(times.by_component[name] for name in COMMUNICATION)
    hosts = math.ceil(job.gpus / node_gpus(job))
    cases = [
        ("gpu", job.gpus, times.spread, busy_s),
        ("gpu", job.gpus, SPREADS["gpu"], busy_s),
        ("host", hosts, SPREADS["host"], times.by_component["launch"]),
        ("link", job.gpus, SPREADS["link"], network_s),
    ]
    for part, count, spread, part_s in cases:
        if part_s <= 0 or count < 2:
            continue
        predicted = part == "gpu" and spread == times.spread
        own = slowest_share(count, spread)
        step_s = times.step_s + part_s * own - (times.waiting_s if part == "gpu" else 0.0)
        if predicted:
            step_s = times.step_s
        yield Variation(part, count, spread, own, step_s, step_s / times.step_s - 1, predicted)
