"""What would make a layout fit: single changes of job or layout, else pairs of them, each evaluated anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates, concatenate
from gpuscale.layouts.pins import Pins, recompute_text
from gpuscale.layouts.space import divisors, ways_to_recompute
from gpuscale.planning.jobs import Job, changed_job
from gpuscale.planning.layouts import fixed_layout, usual_etp
from gpuscale.planning.planfile import replaced
from gpuscale.presets.frameworks import load_framework
from gpuscale.request import offload_name, parse_offload
from gpuscale.results import Remedy
from gpuscale.rules.check import broken_rules
from gpuscale.rules.rule import Rule
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import OWN_LOOPS, JobSpec
from gpuscale.units import GIB

Values = Mapping[str, str | int]


LOW_MOMENTS = {"generic": ("bf16", "fp8"), "megatron-lm": ("bf16", "fp8"), "deepspeed": ("bf16",)}
"""Rules of a framework -> dtypes below fp32 in which its optimizer keeps moments that ZeRO shards: Megatron-LM
`--use-precision-aware-optimizer` with `--exp-avg-dtype`, DeepSpeed `bf16_optimizer_states` (both 2025)."""

DEAR = 0.2
"""Cost of the cheapest single change, as a share of the step, from which pairs are tried (a choice)."""


class Change(NamedTuple):
    """Options to change; of several changes of one kind a remedy takes the one that costs least and is enough."""

    kind: tuple[str, ...]
    job: Values = MappingProxyType({})
    layout: Values = MappingProxyType({})


def of_job(**values: Any) -> Change:
    """Return the change of options of the job."""
    return Change((), values)


def of_layout(**values: Any) -> Change:
    """Return the change of values of the layout."""
    return Change((), {}, values)


def remedies(job: Job, layout: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return what makes a layout fit that does not or only just does, the fastest first.

    Pairs are tried only where no single change is enough or all cost much; if none of these is enough either, the one
    that comes nearest is returned, whose `fit` is `no`. Each is legal and evaluated as `estimate` does it.

    Args:
        layout: values of `gpuscale.request.Layout` by name, as a user gave them.
    """
    was = evaluated(job, layout, [Change(())])[0][1]
    row = fixed_layout(job.spec, layout).row(0)
    unsharded = row["zero"] == 0 and row["dp"] * row["cp"] > 1
    single = [one for one in _of_job(job) if not (unsharded and one.kind == ("moments",))]
    found = _smaller(job, layout, [*single, *_of_layout(job, row)], was)
    chosen = _enough(found, was.fit)
    if all(remedy.fit != "fits" or remedy.slower > DEAR for remedy in chosen):
        changes = [change for change, alone in found if alone.fit != "fits"]
        pairs = _smaller(job, layout, (_both(*pair) for pair in combinations(changes, 2) if _apart(*pair)), was)
        found += pairs
        both = _enough(pairs, was.fit)
        limit = min((one.step_time_s for one in chosen if one.fit == "fits"), default=math.inf)
        chosen += [pair for pair in both if (pair.fit == "fits" or not chosen) and pair.step_time_s < limit]
    nearest = [min((remedy for _, remedy in found), key=lambda one: one.memory_gib)] if found else []

    def order(one: Remedy) -> tuple[bool, float, int]:
        """Fast ones first, but TP that leaves its domain of NVLink last."""
        return int(one.change.get("tp", 1)) > job.spec.cluster.node_gpus, one.step_time_s, len(one.change)

    return tuple(sorted(chosen or nearest, key=order))


def other_jobs(job: Job) -> Iterator[tuple[Values, JobSpec]]:
    """Yield the jobs that need less memory beside their layout, with what is changed: one option, then two."""
    single = list(_of_job(job))
    for change in (*single, *(_both(*pair) for pair in combinations(single, 2) if _apart(*pair))):
        with suppress(InputError):
            spec = changed_job(job, change.job)
            if spec != job.spec:
                yield change.job, spec


def _of_job(job: Job) -> Iterator[Change]:
    """Yield changes of states and of what is offloaded, also such as change nothing."""
    spec, sixteen = job.spec, "fp16" if job.spec.precision == "fp16" else "bf16"
    if not spec.runtime.memory.master_is_weight:
        yield Change(("gradients",), {"grad_dtype": sixteen})
    yield from (Change(("moments",), {"moment_dtype": dtype}) for dtype in LOW_MOMENTS.get(spec.runtime.rule_set, ()))
    if spec.runtime.rule_set in OWN_LOOPS:
        yield Change(("loss",), {"loss": "linear"})
    now = spec.offload
    for part in map(parse_offload, load_framework(str(job.request["framework"])).space.offload):
        more = replace(now, optimizer=now.optimizer or part.optimizer, parameters=now.parameters or part.parameters)
        yield Change(("offload",), {"offload": offload_name(more)})


def _of_layout(job: Job, row: Mapping[str, int]) -> Iterator[Change]:
    """Yield changes of a layout, also such as break a rule."""
    spec = job.spec
    per_stage = -(-spec.model.layers // row["pp"])
    for way in ways_to_recompute(spec, Pins())[1:]:
        layers = way.layers_of(per_stage)
        text = "full" if layers >= per_stage else recompute_text(way.modules, layers)
        yield Change(("recompute",), {}, {"recompute": text})
    for size in divisors(row["micro_batch_size"])[:-1].tolist():
        yield Change(("microbatch",), {}, {"micro_batch_size": size})
    yield from (Change(("zero",), {}, {"zero": stage}) for stage in range(row["zero"] + 1, 4))
    if row["zero"]:
        yield Change(("shard",), {}, {"shard": row["dp"] * row["cp"]})
    yield Change(("sp",), {}, {"sp": "on"})
    twice = {name: {name: 2 * row[name]} for name in ("tp", "pp", "cp", "ep")}
    yield from (Change((name,), {}, degrees) for name, degrees in twice.items())
    yield Change(("tp",), {}, twice["tp"] | {"etp": 2 * row["etp"]})  # where experts are split as the rest is
    yield Change(("pp",), {}, twice["pp"] | {"vpp": row["vpp"] // 2})


def _both(one: Change, other: Change) -> Change:
    return Change(one.kind + other.kind, {**one.job, **other.job}, {**one.layout, **other.layout})


def _apart(one: Change, other: Change) -> bool:
    """Whether two changes can be made at once: of different kinds, and of different options."""
    same = {*one.job, *one.layout} & {*other.job, *other.layout}
    return one.kind != other.kind and not same


def _enough(found: Sequence[tuple[Change, Remedy]], fit: str) -> list[Remedy]:
    """Of each kind of change the fastest that is enough: it fits, or else is tight where nothing was."""
    kinds: dict[tuple[str, ...], list[Remedy]] = {}
    for change, remedy in found:
        kinds.setdefault(change.kind, []).append(remedy)
    wanted = ("fits",) if fit == "tight" else ("fits", "tight")
    enough = ([one for one in same if one.fit in wanted] for same in kinds.values())
    return [min(same, key=lambda one: (one.fit != "fits", one.step_time_s)) for same in enough if same]


def _smaller(
    job: Job, layout: Mapping[str, Any], changes: Iterable[Change], was: Remedy
) -> list[tuple[Change, Remedy]]:
    """Evaluate changes; return those that are legal and need less memory, with the time they cost."""
    smaller = [pair for pair in evaluated(job, layout, changes) if pair[1].memory_gib < was.memory_gib]
    return [(change, replace(one, slower=one.step_time_s / was.step_time_s - 1)) for change, one in smaller]


class Tried(NamedTuple):
    """A change, and what becomes of the job with it."""

    change: Change
    options: dict[str, str | int]  #: all options that have to change.
    spec: JobSpec
    row: Mapping[str, int]  #: the layout.
    broken: tuple[Rule, ...] = ()  #: rules that it breaks; if any, nothing is evaluated.
    fit: str = "no"  #: as in `PlanRow`.
    memory_gib: float = math.nan
    step_time_s: float = math.nan
    seconds: FloatArray = np.zeros(0)  #: by component, in the order of `COMPONENTS`, shape (components,).


def evaluated(job: Job, layout: Mapping[str, Any], changes: Iterable[Change]) -> list[tuple[Change, Remedy]]:
    """Evaluate changes, each by itself; those that are not legal are left out, and `slower` is 0."""
    legal = [one for one in tried(job, layout, changes) if not one.broken]
    return [(one.change, Remedy(one.options, one.memory_gib, one.fit, one.step_time_s, 0.0)) for one in legal]


def tried(job: Job, layout: Mapping[str, Any], changes: Iterable[Change]) -> list[Tried]:
    """Evaluate changes, each by itself, those of one job together; what cannot be asked for is left out."""
    by_options: dict[tuple[tuple[str, Any], ...], list[Change]] = {}
    for change in changes:
        by_options.setdefault(tuple(sorted(change.job.items())), []).append(change)
    by_job: list[tuple[JobSpec, list[Change]]] = []
    for group in by_options.values():
        with suppress(InputError):  # such as offloading where nothing is known of the host
            spec = changed_job(job, group[0].job)
            same = next((others for other, others in by_job if other == spec), None)
            if same is None:
                by_job.append((spec, group))
            else:
                same += group
    return [one for spec, group in by_job for one in _of_one_job(spec, layout, group)]


def _of_one_job(spec: JobSpec, layout: Mapping[str, Any], changes: Sequence[Change]) -> list[Tried]:
    """Evaluate changes that make the same job."""
    made: list[Tried] = []
    legal: list[Candidates] = []
    if spec.model.is_moe and layout.get("etp") is None:  # a change of TP leaves the experts as they are
        layout = {**layout, "etp": usual_etp(spec, int(layout.get("tp") or 1), int(layout.get("ep") or 1))}
        given = {name: value for name, value in layout.items() if name != "etp"}
    else:
        given = dict(layout)
    for change in changes:
        with suppress(InputError):  # the degrees do not multiply to the GPUs
            rows = fixed_layout(spec, replaced(layout, change.layout))
            row, broken = rows.row(0), tuple(broken_rules(rows, spec))
            options = _named(change, row, given)
            if "etp" not in {*given, *options} and row["etp"] != usual_etp(spec, row["tp"], row["ep"]):
                options["etp"] = row["etp"]
            made.append(Tried(change, options, spec, row, broken))
            legal += [] if broken else [rows]
    if not legal:
        return made
    done = evaluate(concatenate(legal), spec)
    sizes, hosts, steps = (
        np.broadcast_to(each, len(legal)).tolist()
        for each in (done.memory_bytes, done.memory.host_bytes, done.step.step_time_s)
    )
    found = zip(sizes, hosts, steps, done.step.components.T, strict=True)
    return [one if one.broken else _filled(one, *next(found)) for one in made]


def _filled(one: Tried, size: float, host: float, step_s: float, seconds: FloatArray) -> Tried:
    fit = one.spec.fit(size, host)
    return one._replace(fit=fit, memory_gib=size / GIB, step_time_s=step_s, seconds=seconds)


def _named(change: Change, row: Mapping[str, int], layout: Mapping[str, Any]) -> dict[str, str | int]:
    """Name all options that have to change: with TP, PP, CP and ZeRO also the DP and shard size that were given."""
    given = [name for name in ("dp", "shard") if name in layout and name not in replaced(layout, change.layout)]
    return {**change.job, **change.layout, **{name: row[name] for name in given}}
