"""`place_ranks`: where the groups of a layout sit, and whether another order of the axes would be better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.placement.exports import (
    default_hosts,
    groups_csv,
    hostfile,
    rankfile,
    ranks_csv,
    read_hosts,
    slurm_hostfile,
)
from gpuscale.placement.groups import AxisGroups, Degrees, parse_order
from gpuscale.placement.holdings import Held, Holding, holdings, network_level
from gpuscale.placement.levels import AxisSpan, LevelSpan, rail
from gpuscale.placement.orders import RULE, PlacedOrder, other_orders, place_order
from gpuscale.placement.wording import axis_name, order_text, verdict
from gpuscale.planning.failures import illegal
from gpuscale.planning.jobs import Job, build_job
from gpuscale.planning.layouts import degree_of_data, fixed_layout
from gpuscale.planning.planfile import with_plan_file
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.text import write_text
from gpuscale.request import JobOptions, Layout, read
from gpuscale.rules.check import broken_rules
from gpuscale.search import evaluate
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import AXES, JobSpec
from gpuscale.steptime.components import COMMUNICATION, INDEX
from gpuscale.units import format_seconds

NOTABLE = 0.001
"""Share of the step time that another order must save to be called better."""

EXAMPLE_RANKS = 16

PRICED_RULE = "the shortest step of the model on the real strides; none that makes more groups straddle a node"

PLACING_OPTIONS = frozenset({"cluster", "gpus_per_node"})
"""Job options that say where ranks run; the others are for the step-time model."""


@dataclass(frozen=True)
class OrderPrice:
    """One order of the axes; `step_time_s` and `comm_s` (exposed seconds by component) only with a model."""

    placed: PlacedOrder
    step_time_s: float | None
    comm_s: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "order": order_text(self.placed.order),
            "step_time_s": self.step_time_s,
            "comm_s": dict(self.comm_s),
            "gb_per_s": {axis: rate / 1e9 for axis, rate in self.placed.rates.items()},
            "straddling": self.placed.straddling,
            "megatron": self.placed.megatron,
        }


@dataclass(frozen=True)
class BestOrder:
    """Whether there is a better order than the given one.

    Attributes:
        rule: what orders are ranked by.
        given: the order asked about.
        best: the best, the given one where none is better.
        reason: what the best does better, or why none is.
        orders: all orders that form different groups, best first.
    """

    rule: str
    given: OrderPrice
    best: OrderPrice
    reason: str
    orders: tuple[OrderPrice, ...]

    @property
    def better(self) -> bool:
        """There is a better order."""
        return self.best is not self.given

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "rule": self.rule,
            "given": order_text(self.given.placed.order),
            "order": order_text(self.best.placed.order),
            "better": self.better,
            "reason": self.reason,
            "orders": [one.to_dict() for one in self.orders],
        }


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a layout run and how their groups lie on the cluster.

    Attributes:
        placed: the order of the axes, and the groups of each axis in use.
        hosts: name of each machine, in the order in which ranks are dealt out.
        best: the answer to whether there is a better order, when it was asked.
        notes: how the cluster was extended, if it was.
    """

    cluster: ClusterSpec
    degrees: Degrees
    placed: PlacedOrder
    hosts: tuple[str, ...]
    best: BestOrder | None = None
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_host(self) -> int:
        """Ranks on one machine."""
        return self.cluster.host_gpus

    @property
    def verdict(self) -> str:
        """Where every axis lies, in a sentence."""
        return verdict(self.cluster, self.placed)

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
        if kind in {"ranks", "groups"}:
            rails = rail(self.cluster, np.arange(self.degrees.ranks, dtype=np.int64))
            if kind == "groups":
                return groups_csv(self.groups, self.hosts, self.gpus_per_host, rails)
            return ranks_csv(self.degrees, self.placed.order, self.hosts, self.gpus_per_host, rails)
        return _WRITERS[kind](self.hosts, self.gpus_per_host, self.degrees.ranks)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale placement --json`."""
        body: dict[str, Any] = {
            "cluster": self.cluster.name,
            "gpus": self.degrees.ranks,
            "nodes": len(self.hosts),
            "gpus_per_node": self.gpus_per_host,
            "order": order_text(self.placed.order),
            "degrees": {name: self.degrees.sizes()[name] for name in ("tp", "cp", "ep", "etp", "dp", "pp")},
            "verdict": self.verdict,
            "axes": [_axis_dict(one) for one in self.placed.spans.values()],
            "fabric": _fabric_dict(self),
            "notes": list(self.notes),
        }
        return body if self.best is None else {**body, "best": self.best.to_dict()}


_WRITERS = {"hostfile": hostfile, "rankfile": rankfile, "slurm": slurm_hostfile}
EXPORTS = ("ranks", "groups", *_WRITERS)
"""Files that a placement is exported to."""


def place_ranks(
    gpus: int | None = None,
    layout: Mapping[str, Any] | None = None,
    *,
    plan_file: str | Path | None = None,
    order: str | None = None,
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
        order: the axes, neighbours first; left out, that of the plan file or else the usual one.
        best: look for a better order; with a model, or a plan file, by its step time.
        model: name or path of a model; used for `best` alone.
        hosts: file with one name of a machine per line.
        options: those of `gpuscale.request.JobOptions`.

    Raises:
        InputError: unusable input: degrees that do not multiply to the GPUs, an unknown axis, too few hosts, or what
            only the step-time model reads without one.
    """
    if model is not None and not best:
        raise InputError("only the search for a better order uses a model", field="model", hint="ask for `best` too")
    unused = [name for name in options if name not in PLACING_OPTIONS]
    given: dict[str, Any] = {"model": model, "gpus": gpus, "axis_order": order, **options}
    given = {name: value for name, value in given.items() if value is not None}
    degrees: Mapping[str, Any] = dict(layout or {})
    if plan_file is not None:
        given, degrees = with_plan_file(Path(plan_file), given, degrees)
    elif gpus is None:
        raise InputError("`gpus` is missing", hint="give `gpus`, or a plan file")
    if unused and not (best and "model" in given):
        hint = "ask for `best` and give a `model`, or leave it out"
        raise InputError("only the search for a better order by step time uses it", field=unused[0], hint=hint)
    asked = read(JobOptions, {"model": "", **given})
    sizes = _degrees(asked.gpus, read(Layout, degrees))
    cluster, note = _cluster(asked)
    placed = place_order(cluster, sizes, parse_order(asked.axis_order or "-".join(AXES)))
    count = -(-sizes.ranks // cluster.host_gpus)
    names = default_hosts(count) if hosts is None else read_hosts(Path(hosts), count)
    found = best_order(cluster, sizes, placed, build_job(asked) if asked.model else None, degrees) if best else None
    return Placement(cluster, sizes, placed, tuple(names), found, (note,) if note else ())


def _degrees(gpus: int, layout: Layout) -> Degrees:
    """Complete the degrees: DP from the GPUs, 1 elsewhere."""
    tp, pp, cp, ep, etp = layout.tp, layout.pp, layout.cp, layout.ep, layout.etp
    dp = degree_of_data(gpus, tp, pp, cp, layout.dp)
    if (tp * cp * dp) % (ep * etp):
        raise InputError(
            f"EP {ep} x ETP {etp} = {ep * etp} does not divide TP x CP x DP = {tp * cp * dp:,}",
            place="layout",
            hint="experts are spread over the ranks of one pipeline stage; choose EP x ETP among its divisors",
        )
    return Degrees(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, pp=pp)


def _cluster(asked: JobOptions) -> tuple[ClusterSpec, str | None]:
    cluster = load_cluster(asked.cluster)
    if asked.gpus_per_node is not None:
        cluster = cluster.with_gpus_per_node(asked.gpus_per_node)
    sizes = {pool.name: pool.cluster.host_gpus for pool in cluster.pools}
    if len(set(sizes.values())) > 1:
        raise InputError(
            f"the nodes of {cluster.name} are not alike ("
            + ", ".join(f"{size} GPUs in {name}" for name, size in sizes.items())
            + "), and ranks are dealt out in nodes of one size",
            field="cluster",
            hint=f"place one pool: {', '.join(f'`cluster={pool.cluster.name}`' for pool in cluster.pools)}",
        )
    return cluster.sized_for(asked.gpus)


def best_order(
    cluster: ClusterSpec, degrees: Degrees, given: PlacedOrder, job: Job | None, layout: Mapping[str, Any]
) -> BestOrder:
    """Rank all orders of the axes in use, and say whether one is better than the given one.

    Raises:
        InputError: the layout breaks a rule of the model.
    """
    found = other_orders(cluster, degrees, given)
    if job is None:
        unpriced = [OrderPrice(one, None, {}) for one in found]
        ranked = sorted(unpriced, key=lambda one: one.placed.slowness)
        return _judge(RULE, unpriced[0], ranked)
    rows = fixed_layout(job.spec, layout)
    broken = broken_rules(rows, job.spec)
    if broken:
        hint = "leave --model out to compare orders by the rates of their groups alone"
        raise illegal(rows, job.spec, broken, f"layout of {job.spec.model.name}", hint)
    priced = [_price(one, rows, job.spec) for one in found]
    return _judge_priced(priced[0], priced)


def _price(placed: PlacedOrder, rows: Candidates, job: JobSpec) -> OrderPrice:
    step = evaluate(rows, replace(job, axis_order=placed.order)).step
    parts = step.components
    return OrderPrice(
        placed, float(step.step_time_s[0]), {name: float(parts[INDEX[name], 0]) for name in COMMUNICATION}
    )


def _judge(rule: str, given: OrderPrice, ranked: list[OrderPrice]) -> BestOrder:
    """Take the order that ranks first without a model."""
    better = ranked[0].placed.slowness < given.placed.slowness
    best = ranked[0] if better else given
    return BestOrder(rule, given, best, _reason(given, best, len(ranked)), tuple(ranked))


def _judge_priced(given: OrderPrice, priced: list[OrderPrice]) -> BestOrder:
    """Take the given order if none is notably faster, and else of the fastest the one nearest to the usual order."""
    allowed = [one for one in priced if one.placed.straddling <= given.placed.straddling]
    enough_s = min(_step_s(one) for one in allowed) * (1 + NOTABLE)
    fast = [one for one in allowed if _step_s(one) <= enough_s]
    best = given if given in fast else next((one for one in fast if one.placed.megatron), fast[0])
    return BestOrder(PRICED_RULE, given, best, _reason(given, best, len(priced)), tuple(sorted(priced, key=_step_s)))


def _step_s(one: OrderPrice) -> float:
    return one.step_time_s or 0.0


def _reason(given: OrderPrice, best: OrderPrice, count: int) -> str:
    if best is given and count == 1:
        return "no other order forms other groups"
    if best is given and given.step_time_s is not None:
        return f"of {count} orders none makes the step more than {NOTABLE:.1%} shorter"
    if best is given:
        return f"of {count} orders none gives a higher rate"
    if best.step_time_s is not None and given.step_time_s is not None:
        saved = {name: given.comm_s[name] - seconds for name, seconds in best.comm_s.items()}
        parts = sorted((name for name in saved if abs(saved[name]) >= 1e-6), key=lambda name: -abs(saved[name]))
        said = [f"{format_seconds(abs(saved[n]))} {'less' if saved[n] > 0 else 'more'} {_short(n)}" for n in parts]
        return f"{format_seconds(given.step_time_s - best.step_time_s)} less per step: {', '.join(said)}"
    rates = [(axis, given.placed.rates[axis], rate) for axis, rate in best.placed.rates.items()]
    changed = [
        f"{axis_name(axis)} {new / 1e9:.4g} GB/s instead of {old / 1e9:.4g}" for axis, old, new in rates if new != old
    ]
    return ", ".join(changed)


def _short(component: str) -> str:
    return f"{component.removesuffix('_comm').upper()} communication"


def _axis_dict(one: AxisSpan) -> dict[str, Any]:
    groups = one.groups
    return {
        "axis": groups.axis,
        "size": groups.size,
        "stride": groups.stride,
        "factors": [list(factor) for factor in groups.factors],
        "groups": groups.count,
        "example": groups.offsets()[:EXAMPLE_RANKS].tolist(),
        "busiest": one.worst.name,
        "groups_per_unit": one.worst.sharing_unit,
        "groups_per_link": one.worst.sharing_link,
        "egress_gb_per_s": one.worst.egress_bytes_per_s / 1e9,
        "rate_gb_per_s": one.worst.rate_bytes_per_s / 1e9,
        "one_rail": one.one_rail,
        "rails": one.rails,
        "strays": one.strays,
        "levels": [_level_dict(level) for level in one.levels],
    }


def _fabric_dict(placement: Placement) -> list[dict[str, Any]]:
    index = network_level(placement.cluster)
    level = "" if index is None else placement.cluster.levels[index].name
    return [
        {
            "level": level,
            "number": one.number,
            "first_node": placement.hosts[one.first_host],
            "last_node": placement.hosts[one.last_host],
            "axes": {axis: _held_dict(held) for axis, held in one.axes.items()},
        }
        for one in placement.holdings
    ]


def _held_dict(held: Held) -> dict[str, Any]:
    return {
        "groups": [list(pair) for pair in held.ranges[:EXAMPLE_RANKS]],
        "members_min": held.members_min,
        "members_max": held.members_max,
    }


def _level_dict(level: LevelSpan) -> dict[str, Any]:
    return {
        "name": level.name,
        "units_min": level.units_min,
        "units_max": level.units_max,
        "members_min": level.members_min,
        "members_max": level.members_max,
        "crossing": level.crossing,
        "straddling": level.straddling,
        "parts": list(level.parts[:EXAMPLE_RANKS]),
        "groups_per_unit": level.sharing_unit,
        "groups_per_link": level.sharing_link,
        "egress_gb_per_s": level.egress_bytes_per_s / 1e9,
        "rate_gb_per_s": level.rate_bytes_per_s / 1e9,
    }


def export_placement(placement: Placement, files: Mapping[str, Path]) -> None:
    """Write files, each whole or not at all.

    Args:
        files: one of `EXPORTS` -> file.

    Raises:
        InputError: two of them are the same file, or one cannot be written.
    """
    names = {kind: path.resolve() for kind, path in files.items()}
    for kind, path in names.items():
        if list(names.values()).count(path) > 1:
            raise InputError("given for two exports", place=str(files[kind])[:300], hint="give each a file of its own")
    texts = {kind: placement.export(kind) for kind in files}
    for kind, path in files.items():
        write_text(path, texts[kind])


__all__ = ["EXPORTS", "BestOrder", "OrderPrice", "Placement", "best_order", "export_placement", "place_ranks"]
