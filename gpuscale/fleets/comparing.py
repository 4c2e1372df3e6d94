"""`fleet`: the ways to train a model on a cluster of unlike nodes, each evaluated, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from gpuscale.arguments import taking
from gpuscale.energy import power_of
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.fleets.batches import batches
from gpuscale.fleets.sites import has_sites, site_ways
from gpuscale.fleets.stages import MOST_POOLS, stages
from gpuscale.fleets.ways import Fleet, FleetPlan, FleetResult, Pool
from gpuscale.planning.jobs import Job
from gpuscale.planning.plans import plan
from gpuscale.planning.variants import Variant, make_variants, untried_settings
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.rates import USUAL_TERM, Rate, given, load_rates, months, one_term
from gpuscale.request import (
    ALL_CLUSTERS,
    OF_FLEETS,
    JobOptions,
    Layout,
    Question,
    Sites,
    declared,
    in_sequences,
    part,
    read,
    taken,
    with_layout,
    without,
)
from gpuscale.results import PlanRow
from gpuscale.specs.cluster import joined
from gpuscale.training.totals import STATED, gpu_hour_prices

IDLE = "idle GPUs cost nothing in `USD/1e9`, as if returned, and their full price in `USD kept`; they draw no power"


@taking(
    taken(JobOptions, Layout, Question, Sites, pins=True,
          without={"gpus", *(name for name in declared(Question) if name not in OF_FLEETS)})
)  # fmt: skip
def fleet(model: str, cluster: str, *, pins: Mapping[str, Any] | None = None, **options: Any) -> FleetResult:
    """Compare the ways to train `model` on a cluster of unlike nodes.

    Args:
        model: as in `plan`.
        cluster: a cluster file with `[[pools]]`; all of its GPUs are there to be used.
        pins: `tp`, `pp` and the like in one piece, as in `plan`; they hold for every pool.
        options: a price may name a pool: `gpu_hour_price="h100=2.5"`; `inner_steps`, `outer_bits`, `fragments` and
            `outer_delay` are of pools that long lines join.

    Raises:
        InputError: unusable input, or a cluster without pools.
        NoAnswerError: nothing fits, in no way.
    """
    given, pins = with_layout(options, pins)
    asked = without(given, Sites)
    sites = part(given, Sites)
    question = read(Question, {name: value for name, value in asked.items() if name in OF_FLEETS})
    made = made_fleet({"model": model, **asked}, cluster, pins, question)
    over_lines, answer = site_ways(made, read(Sites, sites)) if has_sites(made.spec.cluster) else ({}, None)
    if sites and answer is None:
        hint = 'long lines are a joining level with fabric = "wan"; docs/fleet.md shows one'
        raise InputError(f"no long lines join the pools of {cluster}", field=next(iter(sites)), hint=hint)
    ways, left_out = [], {}
    for name, make in (_ways(made) | over_lines).items():
        try:
            ways.append(replace(make(), name=name))
        except GpuscaleError as error:
            left_out[name] = error.message
    if not ways:
        message = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise NoAnswerError(f"no way to use {cluster} fits: {message}")
    result = _result(made, ways, left_out)
    return result if answer is None else replace(result, sites=answer())


def _ways(made: Fleet) -> dict[str, Callable[[], FleetPlan]]:
    """Return the ways to try, by name; of those over all pools none that take long lines for any other level."""
    shared: dict[str, Callable[[], FleetPlan]] = {
        "alike": partial(alike, made), "batches": partial(batches, made), "stages": partial(stages, made),
    }  # fmt: skip
    for count in range(2, len(made.pools)) if len(made.pools) <= MOST_POOLS else ():
        for kept in combinations(made.pools, count):
            names = " and ".join(pool.name for pool in kept)
            some = only(made, kept)
            shared |= {f"batches on {names}": partial(batches, some), f"stages on {names}": partial(stages, some)}
    together = {} if has_sites(made.spec.cluster) else shared
    return together | {f"{pool.name} alone": partial(alone, made, pool) for pool in made.pools}


ANY = "any framework"


def alike(fleet: Fleet) -> FleetPlan:
    """Return the best plan that treats all GPUs as if they were the slowest, as `plan` finds it."""
    row = _best(fleet, fleet.whole.job)
    whole, parts = fleet.spec.gpus, []
    for pool in fleet.pools:
        own = pool.spec.gpus
        sequences = round(row.global_batch_size * own / whole)
        parts.append(fleet.part(pool, row, fleet.spec, sequences, row.tokens_per_s * own / whole))
    text = "every pool does the same work, paced by the slowest"
    return fleet.way("alike", text, parts, row.step_time_s, [row], ANY)


def alone(fleet: Fleet, pool: Pool) -> FleetPlan:
    """Return the best plan of one pool, the others idle."""
    row = _best(fleet, pool.variant.job)
    part = fleet.part(pool, row, pool.spec, row.global_batch_size, row.tokens_per_s)
    idle = ", ".join(one.name for one in fleet.pools if one is not pool)
    name = f"{pool.name} alone"
    return fleet.way("alone", f"{name}, {idle} idle", [part], row.step_time_s, [row], ANY, name=name)


def _best(fleet: Fleet, job: Job) -> PlanRow:
    own = {"cluster": job.request["cluster"], "gbs": in_sequences(fleet.spec.global_batch_size)}
    priced = {"gpu_hour_price", "price_term", "rate"}  # by pool, in the fleet
    rest = {name: value for name, value in fleet.asked.items() if name not in {"model", *priced}}
    return plan(fleet.asked["model"], job.spec.gpus, pins=fleet.pins, top=1, **rest | own).plans[0]


def only(made: Fleet, kept: Sequence[Pool]) -> Fleet:
    """Return a fleet of which only some pools are used."""
    cluster, names = made.spec.cluster, [pool.name for pool in kept]
    part = joined(cluster, [pool for pool in cluster.pools if pool.name in names])
    spec = replace(made.spec, gpus=sum(pool.spec.gpus for pool in kept), cluster=replace(part, pools=cluster.pools))
    whole = made.whole._replace(job=made.whole.job._replace(spec=spec))
    apart = tuple(pool for pool in made.pools if pool.name not in names)
    return made._replace(whole=whole, pools=tuple(kept), apart=apart)


def made_fleet(asked: dict[str, Any], cluster: str, pins: Mapping[str, Any], question: Question) -> Fleet:
    """Build the job on all GPUs, and on each pool."""
    spec = load_cluster(cluster)
    if not spec.pools:
        hint = "`gpuscale plan` plans for homogeneous nodes; docs/hardware.md says how pools are written"
        raise InputError(f"{cluster} has no [[pools]]", field="cluster", hint=hint)
    options = {name: value for name, value in asked.items() if name not in OF_FLEETS}
    plain = Question(tight=question.tight)
    whole = _variant(options, cluster, spec.gpus, pins, plain)
    batch = {"gbs": in_sequences(whole.job.spec.global_batch_size)}
    pools = []
    rates = load_rates(question.rate)
    for pool in spec.pools:
        variant = _variant(options | batch, f"{cluster}:{pool.name}", pool.cluster.gpus, pins, plain)
        pools.append(Pool(pool.name, variant, power_of(variant.job.spec, rates), None))
    known = {name for pool in pools for name in (pool.name, pool.spec.cluster.name, ALL_CLUSTERS)}
    stray = next((name for name in question.gpu_hour_price if name not in known), None)
    if stray:
        hint = f"its pools are {', '.join(pool.name for pool in pools)}"
        raise InputError(f"{stray[:60]!r} is not one of the pools", field="gpu_hour_price", hint=hint)
    pools = _priced(pools, question)
    return Fleet(whole, tuple(pools), asked | {"cluster": cluster}, pins, question)


def _variant(
    options: Mapping[str, Any], cluster: str, gpus: int, pins: Mapping[str, Any], question: Question
) -> Variant:
    tried = make_variants({**options, "cluster": cluster, "gpus": gpus}, pins, question).tried
    if len(tried) > 1:
        raise InputError("a fleet is asked about one job", hint="give one value of each option")
    return tried[0]


def _priced(pools: list[Pool], question: Question) -> list[Pool]:
    """Return pools with the prices of their GPU-hours: those given, else the published ones, all of one term."""
    prices = question.gpu_hour_price
    found: dict[str, tuple[Rate | None, Mapping[str, Rate], list[str]]] = {}
    for pool in pools:
        own = {pool.spec.cluster.name: prices[pool.name]} if pool.name in prices else {}
        asked = replace(question, gpu_hour_price=prices | own)
        found[pool.name] = gpu_hour_prices(pool.variant.job, asked)
    stated = [name for name, (price, _, _) in found.items() if price is not None and price == given(price.value)]
    published = {name: terms for name, (_, terms, _) in found.items() if name not in stated}
    term = one_term(published, stated, question.price_term)
    notes = []
    if term is not None and question.price_term is None and term != USUAL_TERM:
        lack = ", ".join(name for name, terms in published.items() if terms and USUAL_TERM not in terms)
        notes = [f"all prices are {term.replace('_', '-')}: of {lack} none here is {USUAL_TERM}"]
    made = []
    for pool in pools:
        price, terms, said = found[pool.name]
        if terms and pool.name not in stated:
            price, said = (terms[term], notes) if term else (None, [NO_TERM])
        made.append(pool._replace(price=price, price_notes=said))
    dates = sorted({pool.price.date for pool in made if pool.price is not None and pool.price.date}, key=months)
    if len(dates) > 1 and months(dates[-1]) - months(dates[0]) > OLD_MONTHS:
        made[0] = made[0]._replace(price_notes=[*made[0].price_notes, f"prices are of {dates[0]} to {dates[-1]}"])
    return made


NO_TERM = "no term has a published price of all pools: `gpu_hour_price=POOL=USD` gives one of each"

OLD_MONTHS = 6
"""Between the dates of two prices, from which on it is said (a choice)."""


def _result(made: Fleet, ways: list[FleetPlan], left_out: dict[str, str]) -> FleetResult:
    ordered = sorted(ways, key=lambda way: (-way.tokens_per_s, way.gpus, way.name))
    best = max((way.tokens_per_s for way in ways if way.kind == "alone"), default=ordered[0].tokens_per_s)
    ranked = tuple(replace(way, rank=rank, speedup=way.tokens_per_s / best) for rank, way in enumerate(ordered, 1))
    spec = made.spec
    rates = load_rates(made.question.rate)
    used = {f"gpu_hour_price.{pool.name}": pool.price for pool in made.pools if pool.price is not None}
    for name, stated in (*STATED.items(), ("pue", "")):
        own = stated if stated in rates else name
        used[own] = rates[own]
    of_prices = (note for pool in made.pools for note in pool.price_notes)
    return FleetResult(
        model=spec.model.name,
        cluster=spec.cluster.name,
        gpus=spec.gpus,
        pools={pool.name: pool.spec.gpus for pool in made.pools},
        sequence=spec.sequence,
        global_batch_size=spec.global_batch_size,
        ways=ranked,
        left_out=left_out,
        sites=None,
        assumptions=used,
        notes=(*spec.caveats, IDLE, *untried_settings([made.whole.job]), *dict.fromkeys(of_prices)),
        job=made.whole.job.request,
    )
