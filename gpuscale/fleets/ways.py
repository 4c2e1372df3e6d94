"""What a way to use a fleet (a cluster with `[[pools]]`) is: every way trains the same model with the same global
batch; they differ in which GPUs take part, and in what each pool does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuscale.display import WithFields, displayed
from gpuscale.energy import Power
from gpuscale.planning.layouts import fixed_layout, layout_text
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.variants import Variant
from gpuscale.presets.rates import Rate
from gpuscale.request import Question
from gpuscale.results import PlanRow
from gpuscale.search.objectives import model_flops_per_token
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB, HOUR_S

TOKENS = 1e9
"""Tokens that money and energy are stated for."""


# --- what is said of the long lines between sites


@dataclass(frozen=True)
class LineRow:
    """Waiting for lines of some rate, with exchanges so many steps apart."""

    wan_gbit_per_s: float  #: what the lines of one site carry, one direction [Gbit/s]
    inner_steps: int  #: steps between exchanges
    synchronous_waits: float  #: share of the time that a synchronous step waits for the lines, whatever `inner_steps`
    diloco_waits: float  #: share of the time that DiLoCo waits which sends everything at once
    streaming_waits: float  #: the same of Streaming DiLoCo


@dataclass(frozen=True)
class EveryRow:
    """What lines must carry for sites to wait for 1 % of the time."""

    inner_steps: int  #: steps between exchanges
    #: of one site, where everything is sent at once [Gbit/s]; null where none are fast enough
    diloco_gbit_per_s: float | None
    streaming_gbit_per_s: float | None  #: the same with fragments, while steps go on


@dataclass(frozen=True)
class SitesAnswer:
    """What a fleet of sites makes of the lines between them."""

    sites: int  #: how many there are
    wan_gbit_per_s: float  #: what the lines of one site carry, one direction [Gbit/s]
    efficiency: float  #: share of it that transfers reach
    round_trip_ms: float  #: from one site to another and back [ms]
    inner_steps: int  #: steps between exchanges of DiLoCo
    outer_bits: int  #: bits of each parameter that are sent in an exchange
    fragments: int  #: parts of the model that Streaming DiLoCo sends one after the other
    outer_delay: int  #: steps that go on while a fragment is under way
    step_s: float  #: step of a site by itself, with its share of the batch [s]
    gradients_gb: float  #: what a site sends in a synchronous step [GB]
    exchange_gb: float  #: what a site sends in an exchange [GB]
    gradients_s: float  #: time for which gradients occupy the lines [s]
    exchange_s: float  #: time for which an exchange does [s]
    #: lines with which a synchronous step is within 5 % of DiLoCo's; null where none are fast enough
    synchronous_gbit_per_s: float | None
    #: steps between exchanges with which DiLoCo waits for less than 1 % of the time; null where none are enough
    least_inner_steps: int | None
    least_inner_steps_streaming: int | None  #: the same of Streaming DiLoCo
    outer_gib_per_gpu: float  #: memory of the outer optimizer, shared by the GPUs of a site [GiB]
    lines: tuple[LineRow, ...]  #: waiting, by rate of the lines and steps between exchanges
    needed: tuple[EveryRow, ...]  #: what lines must carry, by steps between exchanges
    loss: tuple[str, ...]  #: what was published of the loss of DiLoCo


# --- the ways


@dataclass(frozen=True)
class PoolPlan:
    """What one pool does in a way."""

    pool: str  #: name of the pool
    gpus: int  #: GPUs of it that take part; 0 where it is idle
    layout: str  #: how the pool splits its work, in words; empty where it is idle
    num_microbatches: int  #: microbatches per step of each of its data-parallel ranks
    sequences: int  #: sequences of the global batch that it trains on; all of them where a pipeline crosses pools
    layers: tuple[int, ...]  #: layers of each of its pipeline stages, where stages are dealt out by pool; else empty
    busy_s: float  #: seconds of a step in which the pool does its own part
    memory_gib: float  #: GiB per GPU at its fullest stage
    memory_limit_gib: float  #: GiB per GPU that may be in use at most
    gpu_power_w: float  #: mean power of one of its GPUs [W]
    usd_per_gpu_hour: float | None  #: price of one of its GPUs; null where none is known


@dataclass(frozen=True)
class FleetPlan:
    """One way to use a fleet."""

    rank: int  #: place by tokens per second, from 1
    #: `alike`, `alone`, `batches` or `stages`; over long lines `synchronous`, `stages`, `diloco` or `streaming diloco`
    kind: str
    name: str  #: what it is called: its kind, or the pool that is used alone
    text: str  #: what it does, in a line
    gpus: int  #: GPUs that take part
    parts: tuple[PoolPlan, ...]  #: what each pool does, in the order of the fleet's file
    global_batch_size: int  #: sequences per optimizer step
    step_time_s: float  #: seconds per optimizer step
    step_time_low_s: float  #: lower end of the 80 % interval (validation)
    step_time_high_s: float  #: its upper end
    tokens_per_s: float  #: tokens per second
    speedup: float  #: tokens per second over those of the fastest pool alone
    sync_s: float  #: seconds per step in which pools exchange gradients or activations and compute nothing
    usd_per_1e9_tokens: float | None  #: money for 1e9 tokens, where idle GPUs are given back; null without prices
    usd_per_1e9_tokens_kept: float | None  #: the same where idle GPUs are paid for too
    kwh_per_1e9_tokens: float  #: energy of the site for 1e9 tokens, idle GPUs switched off
    similar_runs: int  #: published runs that are much like it
    unmeasured: tuple[str, ...]  #: what it has and no published run has
    runs_with: str  #: which frameworks can run it, and what they lack
    notes: tuple[str, ...] = ()  #: what a reader should know


@displayed
@dataclass(frozen=True)
class FleetResult(WithFields):
    """Ways to train one model on a fleet, the fastest first."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of all pools
    pools: Mapping[str, int]  #: pool -> its GPUs
    sequence: int  #: tokens per sequence
    global_batch_size: int  #: sequences per optimizer step
    ways: tuple[FleetPlan, ...]  #: the ways that run, by rank
    left_out: Mapping[str, str]  #: way -> why it is not among them
    #: what the lines between sites carry and how long they keep them waiting; null where no long lines join the pools
    sites: SitesAnswer | None
    assumptions: Mapping[str, Rate]  #: rate -> value, source and date of what money and energy stand on
    notes: tuple[str, ...] = ()  #: what a reader should know
    #: options that make the same job again, as in `gpuscale.plan/1`
    job: Mapping[str, str | int | float] = field(default_factory=dict)


class Pool(NamedTuple):
    """One pool of a fleet, with the job as it is on this pool alone."""

    name: str  #: as the fleet's file has it.
    variant: Variant  #: the job on all GPUs of the pool, and what its layout may be.
    power: Power  #: what one of its GPUs and its share of everything else draw.
    price: Rate | None  #: of one of its GPUs for an hour; None where none is known.
    price_notes: Sequence[str] = ()  #: what to say of it.

    @property
    def spec(self) -> JobSpec:
        """The job in SI units."""
        return self.variant.job.spec

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of one of its GPUs; None where none is known."""
        return None if self.price is None else self.price.value


class Fleet(NamedTuple):
    """A fleet and what is asked about it."""

    whole: Variant  #: the job on all GPUs, as if all were the slowest.
    pools: tuple[Pool, ...]  #: in the order of the fleet's file.
    asked: Mapping[str, Any]  #: options of `plan`, as they were given; without `gpus` and `cluster`.
    pins: Mapping[str, Any]  #: values that the layout may have.
    question: Question  #: prices and rates.
    apart: tuple[Pool, ...] = ()  #: pools of the file that are idle in all that is asked.

    @property
    def spec(self) -> JobSpec:
        """The job on all GPUs in SI units."""
        return self.whole.job.spec

    @property
    def every(self) -> tuple[Pool, ...]:
        """All pools of the file, in its order."""
        names = [pool.name for pool in self.spec.cluster.pools]
        return tuple(sorted((*self.pools, *self.apart), key=lambda pool: names.index(pool.name)))

    def way(  # noqa: PLR0913 - the facts of a way, each once
        self,
        kind: str,
        text: str,
        parts: Sequence[PoolPlan],
        step_time_s: float,
        plans: Sequence[PlanRow],
        runs_with: str,
        *,
        name: str = "",
        sync_s: float = 0.0,
        unmeasured: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> FleetPlan:
        """Return a way with money and energy per token; rank and speed-up are found when all ways are known. Pools
        without a part are idle; the 80 % interval is as wide as the widest of the plans that the step is made of;
        `unmeasured` is what no published run has, beside what these lack."""
        tokens_per_s = self.spec.tokens_per_step / step_time_s
        own = {part.pool: part for part in parts}
        used = [(own[pool.name], pool) for pool in self.every if pool.name in own]
        watts = math.fsum(
            part.gpus * (part.gpu_power_w + pool.power.host_w + pool.power.network_w) * pool.power.pue
            for part, pool in used
        )
        return FleetPlan(
            rank=0,
            kind=kind,
            name=name or kind,
            text=text,
            gpus=sum(part.gpus for part in parts),
            parts=tuple(own[pool.name] if pool.name in own else self.idle(pool) for pool in self.every),
            global_batch_size=self.spec.global_batch_size,
            step_time_s=step_time_s,
            step_time_low_s=step_time_s * min(plan.step_time_low_s / plan.step_time_s for plan in plans),
            step_time_high_s=step_time_s * max(plan.step_time_high_s / plan.step_time_s for plan in plans),
            tokens_per_s=tokens_per_s,
            speedup=0.0,
            sync_s=sync_s,
            usd_per_1e9_tokens=_usd([(pool.price, part.gpus) for part, pool in used], tokens_per_s),
            usd_per_1e9_tokens_kept=_usd([(pool.price, pool.spec.gpus) for pool in self.every], tokens_per_s),
            kwh_per_1e9_tokens=watts / tokens_per_s * TOKENS / HOUR_S / 1000,
            similar_runs=min(plan.similar_runs for plan in plans),
            unmeasured=tuple(dict.fromkeys((*(text for plan in plans for text in plan.unmeasured), *unmeasured))),
            runs_with=runs_with,
            notes=tuple(notes),
        )

    def part(self, pool: Pool, plan: PlanRow, job: JobSpec, sequences: int, tokens_per_s: float) -> PoolPlan:
        """Return what a pool does in a plan of a job: its sequences of the global batch, and tokens that it trains, of
        a pipeline over several pools its share by layers."""
        return PoolPlan(
            pool=pool.name,
            gpus=pool.spec.gpus,
            layout=layout_text(fixed_layout(job, layout_of(plan)).row(0)),
            num_microbatches=plan.num_microbatches,
            sequences=sequences,
            layers=(),
            busy_s=plan.step_time_s,
            memory_gib=plan.memory_gib,
            memory_limit_gib=plan.memory_limit_gib,
            gpu_power_w=self.gpu_power_w(pool, self.flops_per_token, tokens_per_s),
            usd_per_gpu_hour=pool.usd_per_gpu_hour,
        )

    def idle(self, pool: Pool) -> PoolPlan:
        """Return the part of a pool that does nothing."""
        limit_gib = pool.spec.memory_limit_bytes / GIB
        return PoolPlan(pool.name, 0, "", 0, 0, (), 0.0, 0.0, limit_gib, 0.0, pool.usd_per_gpu_hour)

    def gpu_power_w(self, pool: Pool, flops_per_token: float, tokens_per_s: float) -> float:
        """Return the mean power of a GPU of a pool that trains so many tokens per second, with so many model FLOPs for
        each."""
        return float(pool.power.of_gpu_w(flops_per_token * tokens_per_s / pool.spec.gpus))

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs per token."""
        return model_flops_per_token(self.spec)


def _usd(priced: Sequence[tuple[Rate | None, int]], tokens_per_s: float) -> float | None:
    """Return the money for `TOKENS` tokens on GPUs at these prices; None where one is not known."""
    rates = [(price.value, gpus) for price, gpus in priced if price is not None]
    if len(rates) < len(priced):
        return None
    return math.fsum(price * gpus for price, gpus in rates) / HOUR_S / tokens_per_s * TOKENS
