"""`place_ranks`: where the groups of a layout sit, and whether another order of the axes would be better."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import taking
from gpuscale.choices import AXES
from gpuscale.collectives.topology import joining_level
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import read_text, write_texts
from gpuscale.placement import (
    NODE,
    ONE,
    OWN,
    PXN,
    AxisGroups,
    AxisSpan,
    Degrees,
    Holding,
    LevelSpan,
    axis_groups,
    coordinates,
    holdings,
    megatron_accepts,
    parse_order,
    rail,
    span,
)
from gpuscale.planning.jobs import Job, Presets, build_job, gpus_per_node_text, settle
from gpuscale.planning.layouts import degree_of_data, domain_groups, fixed_layout
from gpuscale.planning.planfile import with_plan_file
from gpuscale.planning.why import illegal
from gpuscale.request import PLACING, JobOptions, Layout, read, taken, with_layout
from gpuscale.results import PlanRow
from gpuscale.rules.check import broken_rules
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.cluster import FABRIC_NAMES, SCALE_UP, ClusterSpec
from gpuscale.steptime.components import COMMUNICATION
from gpuscale.units import MIB, format_seconds

TALKATIVE = ("tp", "etp", "ep", "cp", "dp_cp", "dp", "edp", "pp")
"""Axes by how much they send in a step, most first: TP, ETP, EP and CP in every layer of every microbatch, DP once or
twice all parameters, PP one activation per microbatch."""

RULE = "the highest rate for TP; among equals for ETP, EP, CP, DP with CP, DP, the experts' DP, then PP"

NOTABLE = 0.001
"""Share of the step time that a better order must save."""

TIMED_RULE = "the shortest step of the model on the real strides; none that makes more groups straddle a node"

SHOWN_PARTS = 4
MAX_HOSTS_BYTES = 64 * MIB
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", re.ASCII)


@dataclass(frozen=True)
class PlacedOrder:
    """One order of the axes with where it puts the groups."""

    order: tuple[str, ...]  #: the axes, neighbours first.
    spans: dict[str, AxisSpan]  #: axis -> where its groups lie.
    megatron: bool = True  #: Megatron-LM takes the order.
    step_time_s: float | None = None  #: of a model in this order; None without one [s].
    #: communication component -> its exposed time in a step [s].
    comm_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def straddling(self) -> int:
        """Groups that lie on several nodes unevenly, or on more nodes than they need."""
        return sum(one.levels[0].straddling for one in self.spans.values())

    @property
    def rates(self) -> dict[str, float]:
        """Axis -> rate of its worst placed group at its busiest level [bytes/s]."""
        return {axis: one.worst.rate_bytes_per_s for axis, one in self.spans.items()}

    @property
    def slowness(self) -> tuple[float, ...]:
        """Sorts orders by `RULE`, best first."""
        rates = self.rates
        return tuple(-rates[axis] for axis in TALKATIVE if axis in rates)


class BestOrder(NamedTuple):
    """Whether there is a better order than the given one."""

    rule: str  #: what orders are ranked by.
    given: PlacedOrder  #: the order asked about.
    best: PlacedOrder  #: the best, the given one where none is better.
    reason: str  #: what the best does better, or why none is.
    orders: tuple[PlacedOrder, ...]  #: all orders that form different groups, best first.

    @property
    def better(self) -> bool:
        """There is a better order."""
        return self.best is not self.given


@displayed
class Placement(NamedTuple):
    """Where the ranks of a layout run and how their groups lie on the cluster."""

    cluster: ClusterSpec  #: the cluster, extended where the job needs more of it.
    degrees: Degrees  #: degree of each axis.
    placed: PlacedOrder  #: the order of the axes, and the groups of each axis in use.
    hosts: tuple[str, ...]  #: of each machine, in the order in which ranks are dealt out.
    best: BestOrder | None = None  #: whether there is a better order, when it was asked.
    #: which preset a short name is; how many GPUs of each node are taken; how the cluster was extended.
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_host(self) -> int:
        """Ranks on one machine."""
        return self.cluster.host_gpus

    @property
    def verdict(self) -> str:
        """Where every axis lies, and whether groups straddle a node, in a sentence."""
        spans = self.placed.spans
        if not spans:
            return "one GPU: there are no groups"
        axes = ", ".join(_lies(self.cluster, one) for axis, one in spans.items() if axis != "dp_cp")
        uneven = [straddling_text(one, 0) for one in spans.values() if one.levels[0].straddling]
        name = self.cluster.levels[0].name
        unit = _one(name) if name.isalpha() else level_plural(name)
        leaving = [one for axis, one in spans.items() if axis in {"tp", "etp"} and one.beyond]
        said = [*(leaving_text(self.cluster, one) for one in leaving), *uneven]
        return f"{axes}; {'; '.join(said)}" if said else f"{axes}: nothing straddles {unit}"

    @property
    def groups(self) -> dict[str, AxisGroups]:
        """The groups of every axis in use."""
        return {axis: one.groups for axis, one in self.placed.spans.items()}

    @property
    def holdings(self) -> list[Holding]:
        """Which groups each leaf (instance of the first network level) holds members of; empty in a single box."""
        return holdings(self.cluster, self.groups, self.degrees.ranks)

    def export(self, kind: str) -> str:
        """Return one of the files `EXPORTS` as text."""
        return "".join(f"{line}\n" for line in EXPORTS[kind](self))


@taking(taken(JobOptions, Layout, beside_files=True))
def place_ranks(
    gpus: int | None = None,
    layout: Mapping[str, Any] | None = None,
    *,
    plan_file: str | Path | None = None,
    best: bool = False,
    model: str | None = None,
    hosts: str | Path | None = None,
    **options: Any,
) -> Placement:
    """Place the ranks of a layout on a cluster: where the groups of each axis lie, and what they share.

    Args:
        gpus: GPUs of the job; may be left out with a plan file.
        layout: degrees by name (`tp`, `pp`, `cp`, `ep`, `etp`, `dp`, and for `best` any that `estimate` knows).
        plan_file: a plan file, as `gpuscale plan -o` writes it; what else is given replaces its entries.
        best: look for a better order; with a model, or a plan file, by its step time.
        model: name or path of a model; used for `best` alone.
        hosts: file with one name of a machine per line.
        options: those of `gpuscale.request.PLACING` (orders left out are those of the plan file, or else the usual
            one), and for `best` all of `JobOptions` that the step time depends on.

    Raises:
        InputError: unusable input: degrees that do not multiply to the GPUs, an unknown axis, too few hosts, or what
            only the step-time model reads without one.
    """
    if model is not None and not best:
        raise InputError("only the search for a better order uses a model", field="model", hint="ask for `best` too")
    given, degrees = with_layout({"model": model, "gpus": gpus, **options}, layout)
    unused = [name for name in given if name not in {"model", "gpus", *PLACING}]
    if plan_file is not None:
        given, degrees = with_plan_file(Path(plan_file), given, degrees)
    elif gpus is None:
        raise InputError("`gpus` is missing", hint="give `gpus`, or a plan file")
    if unused and not (best and "model" in given):
        hint = "ask for `best` and give a `model`, or leave it out"
        raise InputError("only the search for a better order by step time uses it", field=unused[0], hint=hint)
    asked, taken = settle(read(JobOptions, {"model": "", **given}), Presets())
    sizes, groups = _degrees(asked.gpus, read(Layout, degrees)), domain_groups(degrees)
    cluster, notes = _cluster(asked, groups)
    placed = place_order(cluster, sizes, parse_order(asked.axis_order or "-".join(AXES)))
    names = host_names(-(-sizes.ranks // cluster.host_gpus), hosts)
    job = build_job(asked, groups=groups) if best and asked.model else None
    found = best_order(cluster, sizes, placed, job, degrees) if best else None
    said = job.notes if job else cluster.caveats
    return Placement(cluster, sizes, placed, names, found, tuple(dict.fromkeys((*taken, *notes, *said))))


def _degrees(gpus: int, layout: Layout) -> Degrees:
    tp, pp, cp, ep, etp = layout.tp, layout.pp, layout.cp, layout.ep, layout.etp or 1
    dp = degree_of_data(gpus, tp, pp, cp, layout.dp)
    if (tp * cp * dp) % (ep * etp):
        message = f"EP {ep} x ETP {etp} = {ep * etp} does not divide TP x CP x DP = {tp * cp * dp:,}"
        hint = "experts are spread over the ranks of one pipeline stage; choose EP x ETP among its divisors"
        raise InputError(message, field="ep", hint=hint)
    return Degrees(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, pp=pp)


def degrees_of(plan: PlanRow) -> Degrees:
    """Return the degrees of a plan."""
    return Degrees(**{name: getattr(plan, name) for name in Degrees._fields})


def _cluster(asked: JobOptions, groups: Sequence[int]) -> tuple[ClusterSpec, tuple[str, ...]]:
    presets = Presets()
    cluster = presets.cluster_of(asked, groups)
    sizes = {pool.name: pool.cluster.host_gpus for pool in cluster.pools}
    if len(set(sizes.values())) > 1:
        nodes = ", ".join(f"{size} GPUs in {name}" for name, size in sizes.items())
        message = f"the nodes of {cluster.name} differ ({nodes}), and ranks are placed on nodes of one size"
        pools = ", ".join(f"`cluster={pool.cluster.name}`" for pool in cluster.pools)
        raise InputError(message, field="cluster", hint=f"place one pool: {pools}")
    sized, extension = cluster.sized_for(asked.gpus)
    part = gpus_per_node_text(asked, presets.whole(asked), cluster)
    return sized, tuple(note for note in (part, extension) if note)


def place_order(cluster: ClusterSpec, degrees: Degrees, order: Sequence[str]) -> PlacedOrder:
    """Place the groups of one order; an InputError where the experts' pipelines would not be those of the other
    layers."""
    spans = {axis: span(cluster, found) for axis, found in axis_groups(degrees, order).items()}
    return PlacedOrder(tuple(order), spans, megatron_accepts(degrees, order))


def other_orders(cluster: ClusterSpec, degrees: Degrees, given: PlacedOrder) -> list[PlacedOrder]:
    """Return the given order and all that form other groups, each set of groups once."""
    span_of = cache(partial(span, cluster))
    found = {tuple(one.groups for one in given.spans.values()): given}
    sizes, routed = degrees.sizes(), degrees.ep * degrees.etp > 1
    twins = {"tp": "etp", "dp": "edp"}
    used = [name for name in AXES if sizes[name] > 1 or (routed and sizes[twins.get(name, name)] > 1)]
    for chosen in permutations(used):
        order = list(chosen)
        for index, name in enumerate(AXES):  # axes that are not used stand behind the one before them, as usually
            if name not in order:
                order.insert(order.index(AXES[index - 1]) + 1 if index else 0, name)
        try:
            groups = axis_groups(degrees, order)
        except InputError:
            continue  # the experts' pipelines would not be those of the other layers
        if tuple(groups.values()) not in found:
            spans = {axis: span_of(one) for axis, one in groups.items()}
            found[tuple(groups.values())] = PlacedOrder(tuple(order), spans, megatron_accepts(degrees, order))
    return list(found.values())


def best_order(
    cluster: ClusterSpec, degrees: Degrees, given: PlacedOrder, job: Job | None, layout: Mapping[str, Any]
) -> BestOrder:
    """Rank all orders of the axes in use, and say whether one is better than the given one."""
    found = other_orders(cluster, degrees, given)
    if job is None:
        ranked = sorted(found, key=lambda one: one.slowness)
        best = ranked[0] if ranked[0].slowness < given.slowness else given
        return BestOrder(RULE, given, best, _reason(given, best, len(found)), tuple(ranked))
    rows = fixed_layout(job.spec, layout)
    broken = broken_rules(rows, job.spec)
    if broken:
        hint = "leave `model` out to compare orders by the rates of their groups alone"
        raise illegal(layout, job, broken, f"layout of {job.spec.model.name}", hint)
    timed = []
    for one in found:
        step = evaluate(rows, replace(job.spec, axis_order=one.order)).step
        comm_s = {name: value for name, value in step.seconds().items() if name in COMMUNICATION}
        timed.append(replace(one, step_time_s=float(step.step_time_s[0]), comm_s=comm_s))
    given = timed[0]
    allowed = [one for one in timed if one.straddling <= given.straddling]
    enough_s = min(map(_step_s, allowed)) * (1 + NOTABLE)
    fast = [one for one in allowed if _step_s(one) <= enough_s]  # the nearest to the usual order first
    best = given if given in fast else next((one for one in fast if one.megatron), fast[0])
    ranked = sorted(timed, key=_step_s)
    return BestOrder(TIMED_RULE, given, best, _reason(given, best, len(timed)), tuple(ranked))


def _step_s(one: PlacedOrder) -> float:
    return one.step_time_s or 0.0


def _reason(given: PlacedOrder, best: PlacedOrder, count: int) -> str:
    if best is given:
        timed = f"makes the step more than {NOTABLE:.1%} shorter"
        what = "gives a higher rate" if given.step_time_s is None else timed
        return f"of {count} orders none {what}" if count > 1 else "no other order forms other groups"
    if best.step_time_s is not None:
        saved = {name: given.comm_s[name] - seconds for name, seconds in best.comm_s.items()}
        said = [
            f"{format_seconds(abs(seconds))} {'less' if seconds > 0 else 'more'} "
            f"{name.removesuffix('_comm').upper()} communication"
            for name, seconds in sorted(saved.items(), key=lambda item: -abs(item[1]))
            if abs(seconds) >= 1e-6
        ]
        return f"{format_seconds(_step_s(given) - best.step_time_s)} less per step: {', '.join(said)}"
    rates = [(axis_name(axis), given.rates[axis], rate) for axis, rate in best.rates.items()]
    return ", ".join(
        f"{axis} {new / 1e9:.4g} GB/s instead of {old / 1e9:.4g}" for axis, old, new in rates if new != old
    )


def axis_name(axis: str) -> str:
    """Name an axis for people."""
    return {"dp_cp": "DP with CP", "edp": "expert DP"}.get(axis, axis.upper())


def order_text(order: Sequence[str]) -> str:
    """Write an order as `axis_order` reads it."""
    return "-".join(order)


def _lies(cluster: ClusterSpec, one: AxisSpan) -> str:
    name, node = axis_name(one.groups.axis), one.levels[0]
    if node.units_max == 1:
        return f"{name} inside {_one(node.name)}"
    if one.groups.axis == "pp":
        stride, gpus = one.groups.stride or 1, cluster.node_gpus
        if stride < gpus:
            return f"{name} within {level_plural(node.name)} and between neighbouring ones"
        if stride == gpus:
            return f"{name} between neighbouring {level_plural(node.name)}"
        nodes = f"{stride / gpus:,.1f}" if stride % gpus else f"{stride // gpus:,}"
        return f"{name} between {level_plural(node.name)} {nodes} apart"
    over = f"{name} over {units_text(node)}"
    if node.members_max > 1:
        return f"{over} of {_range(node.members_min, node.members_max)} GPUs each"
    return f"{over} on one rail each" if one.one_rail and len(cluster.levels) > 1 else over


def leaving_text(cluster: ClusterSpec, one: AxisSpan) -> str:
    """Say that the groups of an axis leave their NVLink domain, and what that means."""
    inner = [level for level, spec in zip(one.levels, cluster.levels, strict=True) if spec.fabric in SCALE_UP]
    spans = f" spans {units_text(inner[-1])}" if inner else ""
    over = FABRIC_NAMES.get(one.beyond or "", "")
    return f"{axis_name(one.groups.axis)} {one.groups.size}{spans}: its collectives run over {over}, and cannot overlap"


def straddling_text(one: AxisSpan, index: int) -> str:
    """Say how many groups of an axis straddle a level, and how the first of them lies."""
    level = one.levels[index]
    parts = " + ".join(str(part) for part in level.parts[:SHOWN_PARTS])
    more = " + ..." if len(level.parts) > SHOWN_PARTS else ""
    groups = f"{level.straddling:,} of {one.groups.count:,} {axis_name(one.groups.axis)} groups"
    return f"{groups} straddle {level_plural(level.name)} ({parts}{more} GPUs)"


def rails_text(cluster: ClusterSpec, one: AxisSpan) -> str:
    """Say how the groups of an axis use the rails."""
    name, how = axis_name(one.groups.axis), {ONE: "one rail each, one hop", OWN: "a ring on each rail, one hop"}
    if one.rails in how:
        return f"{name} {how[one.rails]}"
    if one.rails == PXN:
        return f"{name} to other rails over NVLink first (PXN)"
    some = "all" if one.strays == one.groups.count else f"{one.strays:,} of {one.groups.count:,}"
    above = joining_level(cluster, next(index for index, level in enumerate(cluster.levels) if level.rails != "none"))
    over = "a level not described" if above is None else f"the {cluster.levels[above].name}"
    where = "passed on by other GPUs of the node" if one.rails == NODE else f"over {over}"
    return f"{some} {name} groups leave their rails, {where}"


def units_text(level: LevelSpan) -> str:
    """How many instances of a level a group has members in."""
    name = level_plural(level.name) if level.units_max > 1 else level.name
    return f"{_range(level.units_min, level.units_max)} {name}"


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _one(name: str) -> str:
    return f"a {name}" if name in {"node", "box", "leaf", "spine", "pod", "rack"} else f"one {name}"


def level_plural(name: str) -> str:
    """Return the plural of a level's name: `leaves`, `nodes`, `nvl72 domains`."""
    return {"leaf": "leaves", "box": "boxes"}.get(name, f"{name}s" if name.isalpha() else f"{name} domains")


def host_names(needed: int, path: str | Path | None) -> tuple[str, ...]:
    """Return the names of so many nodes: node0001, node0002, ..., or those of a file, one per line; empty lines and
    what follows a `#` do not count.

    Raises:
        InputError: not readable, a line that is no host name, a name given twice, or too few.
    """
    if path is None:
        width = max(4, len(str(needed)))
        return tuple(f"node{number:0{width}d}" for number in range(1, needed + 1))
    found: dict[str, int] = {}
    text = read_text(Path(path), MAX_HOSTS_BYTES, "a list of hosts", hint="give one host name per line")
    for number, line in enumerate(text.split("\n"), start=1):
        name, where = line.partition("#")[0].strip(), f"{str(path)[:300]}:{number}"
        if name and _HOST.fullmatch(name) is None:
            hint = "give one name per line: letters, digits, . _ -"
            raise InputError(f"{name[:60]!r} is not a host name", place=where, hint=hint)
        if name in found:
            raise InputError(f"{name[:60]} is given twice", place=where, hint=f"it is in line {found[name]}")
        if name:
            found[name] = number
    if len(found) < needed:
        message, hint = f"{len(found):,} hosts, but the job needs {needed:,}", "add hosts, or give fewer `gpus`"
        raise InputError(message, place=str(path)[:300], hint=hint)
    return tuple(found)[:needed]


def _ranks_csv(placement: Placement) -> Iterator[str]:
    """One line per rank: where it runs, its coordinates, and the number of its group along each axis in use."""
    degrees, per_host = placement.degrees, placement.gpus_per_host
    ranks = np.arange(degrees.ranks, dtype=np.int64)
    where = coordinates(degrees, placement.placed.order)
    names = ("tp", "cp", "ep", "dp", "pp", *(("etp", "edp") if degrees.ep * degrees.etp > 1 else ()))
    columns: dict[str, Sequence[object]] = {
        "rank": ranks.tolist(),
        "node": [placement.hosts[index] for index in (ranks // per_host).tolist()],
        "local_gpu": (ranks % per_host).tolist(),
        "rail": rail(placement.cluster, ranks).tolist(),
        **{name: where[name].tolist() for name in names},
        **{f"{axis}_group": one.group_ids().tolist() for axis, one in placement.groups.items()},
    }
    yield ",".join(columns)
    yield from (",".join(map(str, row)) for row in zip(*columns.values(), strict=True))


def _groups_csv(placement: Placement) -> Iterator[str]:
    """One line per group of every axis: its ranks, and the nodes and rails that they are on."""
    rails = rail(placement.cluster, np.arange(placement.degrees.ranks, dtype=np.int64)).tolist()
    yield "axis,group,size,nodes,rails,ranks"
    for axis, groups in placement.groups.items():
        for number, ranks in enumerate(groups.members().tolist()):
            nodes = dict.fromkeys(placement.hosts[rank // placement.gpus_per_host] for rank in ranks)
            used = sorted({rails[rank] for rank in ranks})
            parts = (" ".join(map(str, part)) for part in (nodes, used, ranks))
            yield f"{axis},{number},{groups.size},{','.join(parts)}"


def _by_rank(placement: Placement) -> Iterator[tuple[int, str, int]]:
    for rank in range(placement.degrees.ranks):
        host, slot = divmod(rank, placement.gpus_per_host)
        yield rank, placement.hosts[host], slot


EXPORTS: Mapping[str, Callable[[Placement], Iterable[str]]] = {
    "ranks": _ranks_csv,
    "groups": _groups_csv,
    "hostfile": lambda placement: (  # of Open MPI and DeepSpeed
        f"{host} slots={count}" for host, count in Counter(host for _, host, _ in _by_rank(placement)).items()
    ),
    "rankfile": lambda placement: (f"rank {rank}={host} slot={slot}" for rank, host, slot in _by_rank(placement)),
    "slurm": lambda placement: (host for _, host, _ in _by_rank(placement)),  # what SLURM_HOSTFILE names for srun
}
"""Files that a placement is exported to (the rankfile is of Open MPI) -> their lines."""


def export_placement(placement: Placement, files: Mapping[str, Path]) -> None:
    """Write files (one of `EXPORTS` -> file), all of them or none."""
    write_texts([(path, placement.export(kind)) for kind, path in files.items()])
