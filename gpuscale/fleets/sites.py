"""Ways to train on sites that long lines join (pools whose joining level has the fabric `wan`): at once over the lines,
by stages, by DiLoCo. Each way has its plan within a site; what crosses the lines comes to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.architecture.parameters import trained_parameters
from gpuscale.arrays import FloatArray
from gpuscale.choices import AXES
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.fleets.ways import EveryRow, Fleet, FleetPlan, LineRow, Pool, SitesAnswer
from gpuscale.launch.subject import Subject
from gpuscale.layouts.ranks import strides
from gpuscale.planning.describe import choose
from gpuscale.planning.layouts import make_pins
from gpuscale.request import Question, Sites, in_sequences
from gpuscale.results import PlanRow
from gpuscale.search.evaluation import placed
from gpuscale.search.loop import search
from gpuscale.specs.cluster import WAN, ClusterSpec
from gpuscale.steptime.components import exposed_buckets, total_s
from gpuscale.steptime.kernels import stream_time_s
from gpuscale.steptime.step import chunk_passes
from gpuscale.training.totals import best_plan
from gpuscale.units import GBIT, GIB, plural

# -- What DiLoCo costs in time (Douillard et al. 2023, arXiv 2311.08105; in fragments: Douillard et al. 2025, arXiv
# 2501.18512). Nothing here says how well the model learns; `loss_notes` says what was published of that.

OUTER_STATE_BYTES = 8.0
"""Bytes per parameter that a site keeps for the outer optimizer: the weights of the last exchange and the momentum, in
fp32; 66 % of the 12 bytes of weights and Adam's moments, as in Streaming DiLoCo (arXiv 2501.18512)."""

OUTER_TRAFFIC_BYTES = 26.0
"""Bytes per parameter that an outer step reads and writes: weights in fp32 to send how far they moved (8); then the
mean, momentum and old weights (12) for new momentum, old weights and weights, the latter in bf16 too."""

MOST_EVERY = 100_000
"""Steps between exchanges beyond which none are looked for: a tenth of a training, 200 times what was tried."""


class Outer(NamedTuple):
    """When sites exchange."""

    every: int  #: steps from one exchange of a parameter to its next (H).
    #: parts of the model that are sent one after the other, `every` / `fragments` steps apart; 1: all at once.
    fragments: int = 1
    delay: int = 0  #: steps that go on while a fragment is under way; 0: the sites wait for it.


def interval_s(
    step_s: ArrayLike, steps: ArrayLike, delay: ArrayLike, busy_s: ArrayLike, latency_s: ArrayLike
) -> FloatArray:
    """Return the time from the sending of one fragment to that of the next, once it no longer changes [s]: the longest
    of three loops (docs/fleet.md), where a fragment occupies the lines for `busy_s` and is there `latency_s` later, is
    sent `steps` steps of `step_s` after the one before, and must be back `delay` steps later."""
    values = (step_s, steps, delay, busy_s, latency_s)
    step_s, steps, delay, busy_s, latency_s = (np.asarray(value, dtype=np.float64) for value in values)
    sent = np.floor(delay / steps) + 1.0
    loop_s = (busy_s + latency_s + (sent * steps - delay) * step_s) / sent
    return np.maximum(np.maximum(steps * step_s, busy_s), loop_s)


def mean_step_s(step_s: ArrayLike, outer: Outer, busy_s: ArrayLike, latency_s: ArrayLike) -> FloatArray:
    """Return the mean time of a step with its share of the exchanges [s], where a step of a site by itself takes
    `step_s`, the whole model occupies the lines for `busy_s`, and a fragment is there `latency_s` later."""
    steps = outer.every / outer.fragments
    return interval_s(step_s, steps, outer.delay, np.asarray(busy_s) / outer.fragments, latency_s) / steps


def exposed_share(step_s: ArrayLike, outer: Outer, busy_s: ArrayLike, latency_s: ArrayLike) -> FloatArray:
    """Return the share of the time in which sites wait for each other; arguments as those of `mean_step_s`."""
    share = 1.0 - np.asarray(step_s) / mean_step_s(step_s, outer, busy_s, latency_s)
    return np.maximum(share, 0.0)  # a last digit below


def most_busy_s(step_s: float, outer: Outer, latency_s: float, share: float) -> float:
    """Return for how long the whole model may occupy the lines where sites wait for `share` of the time at most [s]:
    the inverse of `exposed_share`; negative where the latency alone takes longer."""
    steps = outer.every / outer.fragments
    allowed_s = steps * step_s / (1.0 - share)
    sent = math.floor(outer.delay / steps) + 1
    loop_s = sent * allowed_s - latency_s - (sent * steps - outer.delay) * step_s
    return min(allowed_s, loop_s) * outer.fragments


def least_every(step_s: float, outer: Outer, busy_s: float, latency_s: float, share: float) -> int | None:
    """Return the fewest steps between exchanges for which sites wait for less than `share` of the time; None if none.
    `outer.every` does not count; there are no more fragments than steps."""
    every = np.arange(1, MOST_EVERY + 1)
    fragments = np.minimum(outer.fragments, every)
    steps = every / fragments
    low = steps * step_s > (1.0 - share) * interval_s(step_s, steps, outer.delay, busy_s / fragments, latency_s)
    first = MOST_EVERY - int(np.argmin(low[::-1])) if not low.all() else 0  # after the last that is not
    return int(every[first]) if first < MOST_EVERY else None


LOSSES = {
    35e6: {2: 0.7, 4: 2.0, 8: 3.9}, 90e6: {2: 0.5, 4: 1.5, 8: 3.1}, 180e6: {2: 0.3, 4: 1.1, 8: 2.3},
    335e6: {2: 0.1, 4: 0.9, 8: 2.0}, 550e6: {2: 0.2, 4: 0.7, 8: 1.7}, 1.3e9: {2: 0.2, 4: 0.5, 8: 1.3},
    2.4e9: {2: -0.1, 4: 0.3, 8: 1.1}, 4e9: {2: -0.18, 4: 0.18}, 10e9: {2: -0.19, 4: 0.29},
}  # fmt: skip
"""Parameters -> replicas -> evaluation loss of DiLoCo with H = 30 over that of data-parallel training on as many
tokens, in percent (Charles et al. 2025, Scaling Laws for DiLoCo, arXiv 2503.09799, tables 4 and 5); learning rates and
batches are tuned for each up to 2.4e9, and extrapolated beyond."""

LARGEST_EVERY = 300
"""Most steps between exchanges that Charles et al. 2025 tried (figure 9)."""


def loss_notes(parameters: float, replicas: int, every: int) -> tuple[str, ...]:
    """Return what was published of the loss of DiLoCo with about so many replicas, and how far this job is from
    that."""
    tried = sorted({count for row in LOSSES.values() for count in row})
    near = next((count for count in tried if count >= replicas), tried[-1])
    known = [(size, row[near]) for size, row in sorted(LOSSES.items()) if near in row]
    (least, first), (most, last) = known[0], known[-1]
    table = "Charles et al. 2025, arXiv 2503.09799, tables 4 and 5"
    said = [
        f"the loss differs with DiLoCo: with {near} replicas and H = 30 by {first:+.2g} % ({_billions(least)}) to "
        f"{last:+.2g} % ({_billions(most)}) from that of data-parallel training on as many tokens ({table})"
    ]
    beyond = []
    if parameters > most:
        beyond.append(f"models above {_billions(most)} (this one has {_billions(parameters)})")
    if replicas > near:
        beyond.append(f"more than {near} replicas (here {replicas})")
    if every > LARGEST_EVERY:
        beyond.append(f"H above {LARGEST_EVERY} (here {every})")
    if every > 30:
        tried_h = "H of 1 to 300 tried there, 550M parameters at most"
        said.append(f"the loss rises with H, less for larger models ({tried_h})")
    if beyond:
        said.append(f"those runs do not cover {' or '.join(beyond)}: compare the losses in a small run first")
    return tuple(said)


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


LAYERS_PER_FRAGMENT = 3
"""Layers of a fragment of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, which takes three)."""

NEAR, RARE = 0.05, 0.01
"""What counts as nearly as fast, and as waiting next to nothing."""

EVERY = (10, 30, 100, 300, 1000)

FASTER = (0.01, 0.1, 1.0, 10.0, 100.0)


UNMEASURED = ("lines between sites",)
"""What all ways over long lines have and no published run has."""


class Site(NamedTuple):
    """A pool that trains by itself on its share of the batch."""

    pool: Pool  #: the pool.
    subject: Subject  #: its best plan.
    #: backward pass of one microbatch on the slowest stage, which hides reductions; 0 where the framework reduces after
    #: it [s].
    backward_s: float
    last_share: float  #: share of the gradients that are there only when that pass has ended.
    #: an outer step on its GPUs: memory traffic, and weights gathered from those that updated them [s].
    update_s: float

    @property
    def row(self) -> PlanRow:
        """The plan and its numbers."""
        return self.subject.estimate.plan


class Shared(NamedTuple):
    """What all ways over long lines share; times of one site with its share of the batch."""

    fleet: Fleet  #: the fleet.
    sites: tuple[Site, ...]  #: the pools with their plans.
    outer: Outer  #: when sites exchange, fragment by fragment.
    gradients: tuple[float, float]  #: time for which gradients occupy the lines, and their latency [s].
    exchange: tuple[float, float]  #: the same of an exchange of the whole model.
    exchange_bytes: float  #: what a site sends of each.
    gradient_bytes: float  #: what a site sends of each.
    parameters: float  #: of the model.

    @property
    def step_s(self) -> float:
        """Step of the slowest site by itself [s]."""
        return max(site.row.step_time_s for site in self.sites)

    def inner_s(self, every: int) -> float:
        """Return the same with its share of the outer step [s]."""
        return self.step_s + max(site.update_s for site in self.sites) / every

    def synchronous_wait_s(self, slower: float = 1.0) -> float:
        """Return what a synchronous step waits for lines that carry 1 / `slower` of these [s]: the gradients of a
        bucket cross as soon as they are there, under the rest of the last backward pass."""
        busy_s, latency_s = self.gradients
        return max(
            float(exposed_buckets(np.asarray(busy_s * slower), np.asarray(one.backward_s), np.asarray(one.last_share)))
            for one in self.sites
        ) + latency_s  # fmt: skip

    def outer_s(self, outer: Outer, slower: float = 1.0) -> float:
        """Return the mean step by DiLoCo over lines that carry 1 / `slower` of these [s]."""
        busy_s, latency_s = self.exchange
        return float(mean_step_s(self.inner_s(outer.every), outer, busy_s * slower, latency_s))

    def waits(self, outer: Outer, slower: float = 1.0) -> float:
        """Return the share of the time that DiLoCo then waits for them."""
        busy_s, latency_s = self.exchange
        return float(exposed_share(self.inner_s(outer.every), outer, busy_s * slower, latency_s))


def has_sites(cluster: ClusterSpec) -> bool:
    """Whether long lines join the pools of a cluster."""
    return bool(cluster.pools) and cluster.levels[-1].fabric == WAN


def site_ways(
    fleet: Fleet, asked: Sites
) -> tuple[dict[str, Callable[[], FleetPlan]], Callable[[], SitesAnswer | None]]:
    """Return the ways over long lines by name, each of which may refuse, and what else there is to say of the lines
    when they have been tried: nothing where no site has a plan for its share of the batch.

    Raises:
        InputError: a fragment would be sent again before it is back.
    """
    if asked.outer_delay > asked.inner_steps:
        message = f"a fragment would be sent again, after {plural(asked.inner_steps, 'step')}, before it is back"
        raise InputError(message, field="outer_delay", hint="give at most `inner_steps`")
    made: list[Shared] = []

    def shared() -> Shared:
        if not made:
            cluster, spec = fleet.spec.cluster, fleet.spec
            parameters = trained_parameters(spec.model, spec.tuning, spec.whole_share) + spec.trained_tower
            fragments = asked.fragments or max(math.ceil(fleet.spec.model.layers / LAYERS_PER_FRAGMENT), 1)
            gradients, sent = parameters * fleet.spec.reduced_gradient_bytes, parameters * asked.outer_bits / 8
            one = Shared(
                fleet=fleet,
                sites=_sites(fleet),
                outer=Outer(asked.inner_steps, min(fragments, asked.inner_steps), asked.outer_delay),
                gradients=exchange_s(cluster, gradients),
                exchange=exchange_s(cluster, sent),
                exchange_bytes=_crossing(sent, len(cluster.pools)),
                gradient_bytes=_crossing(gradients, len(cluster.pools)),
                parameters=parameters,
            )
            made.append(one)
        return made[0]

    def synchronous() -> FleetPlan:
        one = shared()
        crossing = (
            f"{_gigabytes(one.gradient_bytes)} of gradients cross in every step, reduced within each site before: the "
            f"links are busy for {one.gradients[0]:.3g} s of it"
        )
        text = "sites reduce gradients over the lines in every step"
        runs_with = "Megatron-LM (num-distributed-optimizer-instances), FSDP that shards within a site (HSDP)"
        return _way(one, "synchronous", text, one.step_s, one.synchronous_wait_s(), [crossing], runs_with)

    ways: dict[str, Callable[[], FleetPlan]] = {
        "synchronous": synchronous,
        "stages": partial(_staged, fleet),
        "diloco": lambda: _diloco(shared(), Outer(asked.inner_steps), "diloco"),
        "streaming diloco": lambda: _diloco(shared(), shared().outer, "streaming diloco"),
    }
    return ways, lambda: _answer(made[0]) if made else None


def exchange_s(cluster: ClusterSpec, bytes_: float) -> tuple[float, float]:
    """Return for how long the lines are busy when sites average `bytes_`, and the latency that comes to it [s]. Inside
    a site GPUs have a part each (ReduceScatter before, AllGather after); across the lines each averages its part with
    its counterparts on the other sites, all at once: the lines carry 2 (S - 1) / S x `bytes_` for S sites."""
    sites = len(cluster.pools)
    apart = cluster.gpus // sites
    both = collective_time_s(cluster, "allreduce", np.array([bytes_ / apart, 1.0]), sites, apart)
    return max(float(both[0] - both[1]), 0.0), float(both[1])


def staged_wait_s(stages: int, sites: int, microbatches: int, hop_s: float) -> float:
    """Return what a pipeline (1F1B) with as many stages on each site takes longer than on one [s]. The two stages at a
    line have one microbatch more and less in flight, so each microbatch waits for one crossing, `hop_s`; its way forth
    and back comes to it while the pipeline fills and drains. Simulated in tests/test_sites.py."""
    steady = max(microbatches - stages // sites, 0) // 2 * 2
    return hop_s * (2 * (sites - 1) + steady)


def _crossing(bytes_: float, sites: int) -> float:
    """Return what a site sends when so many sites average something."""
    return 2 * (sites - 1) / sites * bytes_


def shares(batch: int, weights: Sequence[float]) -> list[int]:
    """Deal the sequences of a batch out by weight, in portions that layouts can divide; a NoAnswerError of too few."""
    portion = 1 << max((batch // (16 * len(weights))).bit_length() - 1, 0)
    while batch % portion:
        portion //= 2
    count, whole = batch // portion, math.fsum(weights)
    exact = [count * weight / whole for weight in weights]
    dealt = [int(share) for share in exact]
    rest = sorted(range(len(exact)), key=lambda index: (dealt[index] - exact[index], index))
    for index in rest[: count - sum(dealt)]:
        dealt[index] += 1
    if 0 in dealt:
        raise NoAnswerError(f"a batch of {batch:,} sequences is too small for {len(weights)} sites")
    return [share * portion for share in dealt]


def _sites(fleet: Fleet) -> tuple[Site, ...]:
    def weight(pool: Pool) -> float:
        peaks = pool.spec.cluster.gpu.peak_flops_per_s
        return pool.spec.gpus * peaks.get(fleet.spec.precision, max(peaks.values()))

    weights = [weight(pool) for pool in fleet.pools]
    dealt = shares(fleet.spec.global_batch_size, [one / max(weights) for one in weights])
    known: dict[Any, Site] = {}
    found = []
    for pool, sequences in zip(fleet.pools, dealt, strict=True):
        cluster = pool.spec.cluster
        key = (cluster.gpu.name, cluster.levels, cluster.host, sequences)
        if key not in known:
            known[key] = _site(fleet, pool, sequences)
        found.append(known[key]._replace(pool=pool))
    return tuple(found)


def _site(fleet: Fleet, pool: Pool, sequences: int) -> Site:
    own = {"gpus": pool.spec.gpus, "cluster": pool.variant.job.request["cluster"], "gbs": in_sequences(sequences)}
    question = {"gpu_hour_price", "price_term", "rate"}
    subject = best_plan({name: value for name, value in fleet.asked.items() if name not in question} | own, fleet.pins)
    c, spec = subject.rows, subject.spec
    overlaps = spec.runtime.overlap_grad_reduce or spec.runtime.ddp_without_zero
    backward_s = float(total_s(chunk_passes(c, spec).backward).sum(axis=0).max()) * overlaps
    held = placed(c, spec)[2].whole.max(axis=0)
    apart = strides(c, spec)
    gathered_s = collective_time_s(spec.cluster, "allgather", held * spec.states.weight, c.dp * c.cp, apart.dp_cp)
    traffic = held / (c.dp * c.cp) * OUTER_TRAFFIC_BYTES
    update_s = float((gathered_s + stream_time_s(spec.cluster.gpu, traffic, 2))[0])
    return Site(pool, subject, backward_s, min(1.0, int(c.pp[0]) / spec.model.layers), update_s)


def _diloco(shared: Shared, outer: Outer, kind: str) -> FleetPlan:
    every = outer.every
    alone_s, step_s = shared.inner_s(every), shared.outer_s(outer)
    how = "all at once" if kind == "diloco" else f"in {outer.fragments} fragments {plural(outer.delay, 'step')} late"
    crossing = f"{_gigabytes(shared.exchange_bytes)} cross every {every:,} steps, {how}"
    notes, short = [crossing], []
    for site in shared.sites:
        needed = _outer_gib(shared, site.pool)
        if site.row.memory_gib + needed > site.row.memory_limit_gib:
            short.append(f"{needed * site.pool.spec.cluster.host_gpus:,.3g} GiB on each host of {site.pool.name}")
    if short:
        notes.append(f"no room on the GPUs for the outer optimizer: {', '.join(short)} instead")
    notes += loss_notes(shared.parameters, len(shared.sites), every)
    text = f"sites train alone and average every {every:,} steps (the loss differs, see notes)"
    runs_with = "torchft (DiLoCo with fragments, delay and quantisation), prime (INTELLECT-1)"
    return _way(shared, kind, text, alone_s, step_s - alone_s, notes, runs_with, outer_states=True)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.3g} GB" if count < 1e12 else f"{count / 1e12:,.3g} TB"


def _outer_gib(shared: Shared, pool: Pool) -> float:
    """Memory of the outer optimizer on one GPU, where all of a site share it [GiB]."""
    return shared.parameters * OUTER_STATE_BYTES / pool.spec.gpus / GIB


def _way(
    shared: Shared,
    kind: str,
    text: str,
    alone_s: float,
    wait_s: float,
    notes: Sequence[str],
    runs_with: str,
    *,
    outer_states: bool = False,
) -> FleetPlan:
    """Return a way in which every site has a replica of the model: a step takes `alone_s` and waits `wait_s` for the
    lines."""
    fleet, step_s = shared.fleet, alone_s + wait_s
    parts = []
    for site in shared.sites:
        row, sequences = site.row, site.row.global_batch_size
        part = fleet.part(site.pool, row, site.subject.spec, sequences, sequences * row.sequence / step_s)
        held_gib = row.memory_gib + (_outer_gib(shared, site.pool) if outer_states else 0.0)
        parts.append(replace(part, memory_gib=held_gib) if held_gib <= row.memory_limit_gib else part)
    slowest = max(shared.sites, key=lambda site: site.row.step_time_s).row
    return fleet.way(kind, text, parts, step_s, [slowest], runs_with, sync_s=wait_s, unmeasured=UNMEASURED, notes=notes)


def _staged(fleet: Fleet) -> FleetPlan:
    """Return the best plan with a pipeline over all sites, each with as many stages."""
    spec, cluster, sites = fleet.spec, fleet.spec.cluster, len(fleet.pools)
    kinds = {(pool.spec.gpus, pool.spec.cluster.gpu.name, pool.spec.cluster.levels) for pool in fleet.pools}
    if len(kinds) > 1:
        raise NoAnswerError("stages can only be assigned to equal sites, and these differ")
    if spec.axis_order != AXES:
        raise NoAnswerError(f"stages are on one site each only in the usual order of ranks, {'-'.join(AXES)}")
    # as if the sites were one: lines as fast as the network within a site
    below, line = cluster.levels[-2:]
    joint = replace(below, name=line.name, gpus=line.gpus, link_bytes_per_s=below.egress_bytes_per_s, switches=0,
                    switch_bytes_per_s=0.0)  # fmt: skip
    flat = replace(spec, cluster=replace(cluster, levels=(*cluster.levels[:-1], joint), pools=()))
    even = (count for count in range(sites, min(spec.model.layers, 256) + 1, sites) if spec.gpus % count == 0)
    every = make_pins({"vpp": 1, **fleet.pins, "pp": fleet.pins.get("pp", ",".join(map(str, even)))})
    found = search(flat, every)
    if not found.feasible:
        raise NoAnswerError(f"no layout with stages on all {sites} sites fits")
    row = choose(fleet.whole.job._replace(spec=flat), found, "step_time", Question(top=1))[0][0].plan
    if row.pp % sites or row.vpp > 1:
        raise NoAnswerError(f"pp = {row.pp} and vpp = {row.vpp}: sites have as many stages each, without interleaving")
    sent = row.dp * row.micro_batch_size * spec.sequence * spec.model.hidden * spec.activation_bytes
    busy_s = sent / (line.wan_bytes_per_s * line.link_efficiency)
    wait_s = staged_wait_s(row.pp, sites, row.num_microbatches, busy_s + line.hop_latency_s)
    step_s = row.step_time_s + wait_s
    tokens_per_s = spec.tokens_per_step / step_s / sites
    parts = [fleet.part(pool, row, flat, row.global_batch_size, tokens_per_s) for pool in fleet.pools]
    notes = [
        f"{_gigabytes(sent)} of activations cross for each of {row.num_microbatches:,} microbatches, and as many bytes "
        "of gradients back; with more microbatches in flight, and the memory for them, steps could wait less"
    ]
    text = f"one pipeline, {row.pp // sites} of its {row.pp} stages on each site"
    runs_with = "frameworks that place ranks site by site, stages outermost"
    return fleet.way("stages", text, parts, step_s, [row], runs_with, sync_s=wait_s, unmeasured=UNMEASURED, notes=notes)


def _answer(shared: Shared) -> SitesAnswer:
    line, outer = shared.fleet.spec.cluster.levels[-1], shared.outer
    rate, (busy_s, latency_s) = line.wan_bytes_per_s / GBIT, shared.exchange
    every = outer.every
    at_once, inner_s = Outer(every), shared.inner_s(every)
    streamed = (outer._replace(every=steps, fragments=min(outer.fragments, steps)) for steps in EVERY)
    exchanges = {one.every: (Outer(one.every), one) for one in streamed}
    lines, needed = [], []
    for factor in FASTER:
        wait_s = shared.synchronous_wait_s(1 / factor)
        for steps, both in exchanges.items():
            waits = [shared.waits(one, 1 / factor) for one in both]
            lines.append(LineRow(rate * factor, steps, wait_s / (shared.step_s + wait_s), *waits))
    for steps, both in exchanges.items():
        most_s = [most_busy_s(shared.inner_s(steps), one, latency_s, RARE) for one in both]
        needed.append(EveryRow(steps, *(rate * busy_s / one if one > 0 else None for one in most_s)))
    return SitesAnswer(
        sites=len(shared.sites),
        wan_gbit_per_s=rate,
        efficiency=line.link_efficiency,
        round_trip_ms=line.round_trip_s * 1e3,
        inner_steps=every,
        outer_bits=round(shared.exchange_bytes / _crossing(shared.parameters, len(shared.sites)) * 8),
        fragments=outer.fragments,
        outer_delay=outer.delay,
        step_s=shared.step_s,
        gradients_gb=shared.gradient_bytes / 1e9,
        exchange_gb=shared.exchange_bytes / 1e9,
        gradients_s=shared.gradients[0],
        exchange_s=busy_s,
        synchronous_gbit_per_s=_fast_enough(shared, rate),
        least_inner_steps=least_every(inner_s, at_once, busy_s, latency_s, RARE),
        least_inner_steps_streaming=least_every(inner_s, outer, busy_s, latency_s, RARE),
        outer_gib_per_gpu=max(_outer_gib(shared, site.pool) for site in shared.sites),
        lines=tuple(lines),
        needed=tuple(needed),
        loss=loss_notes(shared.parameters, len(shared.sites), every),
    )


def _fast_enough(shared: Shared, rate: float) -> float | None:
    """Return the least rate of lines with which a synchronous step is within 5 % of the faster DiLoCo [Gbit/s]."""
    at_once = Outer(shared.outer.every)

    def slow(factor: float) -> bool:
        best_s = min(shared.outer_s(outer, 1 / factor) for outer in (at_once, shared.outer))
        return shared.step_s + shared.synchronous_wait_s(1 / factor) > (1 + NEAR) * best_s

    low, high = -20, 20  # powers of two, between which the answer is looked for
    if slow(2.0**high):
        return None
    if not slow(2.0**low):
        return rate * 2.0**low
    least, most = float(low), float(high)
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if slow(2.0**middle) else (least, middle)
    return rate * 2.0**most
