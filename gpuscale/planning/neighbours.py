"""What lies near a plan: changes (`Change`) of its job and its layout, those of one job evaluated together; what makes
it fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.choices import TUNES
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
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.specs.job import OWN_LOOPS, JobSpec
from gpuscale.units import GIB

Values = Mapping[str, Any]

FITS = ("fits", "tight", "no")
"""What `PlanRow.fit` may be, the best first."""


class Change(NamedTuple):
    """Options of a job and of its layout to change."""

    kind: tuple[str, ...]  #: what is changed: `tp`, `zero`, `microbatch`, ...; several of a pair of changes.
    job: Values = MappingProxyType({})  #: option -> its new value; None leaves it out.
    layout: Values = MappingProxyType({})

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {**self.job, **self.layout}


def of_job(**values: Any) -> Change:
    """Return the change of options of the job."""
    return Change(tuple(values), values)


def of_layout(**values: Any) -> Change:
    """Return the change of values of the layout."""
    return Change(tuple(values), {}, values)


def both(one: Change, other: Change) -> Change:
    """Return two changes at once."""
    return Change(one.kind + other.kind, {**one.job, **other.job}, {**one.layout, **other.layout})


def apart(one: Change, other: Change) -> bool:
    """Whether two changes can be made at once: of different kinds, and of different options."""
    return one.kind != other.kind and not one.options.keys() & other.options.keys()


def recomputed(spec: JobSpec, row: Mapping[str, int]) -> Iterator[tuple[Change, int]]:
    """Yield every way to recompute, none first, with the whole layers of a stage that it repeats."""
    per_stage = -(-spec.model.layers // row["pp"])
    for way in ways_to_recompute(spec, Pins()):
        layers = way.layers_of(per_stage)
        text = "full" if layers >= per_stage else recompute_text(way.modules, layers)
        yield Change(("recompute",), {}, {"recompute": text}), layers


class Neighbour(NamedTuple):
    """A change, and what becomes of the job with it."""

    change: Change
    options: dict[str, Any]  #: all options that have to change.
    spec: JobSpec
    row: Mapping[str, int]
    broken: tuple[Rule, ...] = ()  #: rules that it breaks; if any, nothing is evaluated.
    evaluation: Evaluation | None = None  #: of all that were evaluated with it.
    at: int = 0  #: its place in the evaluation.
    fit: str = "no"  #: as in `PlanRow`.
    memory_gib: float = math.nan
    step_time_s: float = math.nan
    seconds: FloatArray = np.zeros(0)  #: by component, in the order of `COMPONENTS`, shape (components,).

    def fits_as(self, fit: str) -> bool:
        """Whether it fits at least so well."""
        return FITS.index(self.fit) <= FITS.index(fit)


def jobs_near(job: Job, changes: Iterable[Change]) -> Iterator[tuple[Change, JobSpec]]:
    """Yield changes of a job that can be made, with the job that each makes."""
    for change in changes:
        with suppress(InputError):  # such as offloading where nothing is known of the host
            yield change, changed_job(job, change.job) if change.job else job.spec


def legal_neighbours(job: Job, layout: Values, changes: Iterable[Change]) -> list[Neighbour]:
    """Evaluate changes, each by itself; those that break a rule are left out."""
    return [one for one in neighbours(job, layout, changes) if not one.broken]


def neighbours(job: Job, layout: Values, changes: Iterable[Change], forgiven: Collection[Rule] = ()) -> list[Neighbour]:
    """Evaluate changes of a layout as a user gave it, each by itself, those of one job together. What cannot be asked
    for is left out; `forgiven` rules may be broken."""
    by_options: dict[tuple[tuple[str, Any], ...], list[Change]] = {}
    for change in changes:
        by_options.setdefault(tuple(sorted(change.job.items())), []).append(change)
    by_job: list[tuple[JobSpec, list[Change]]] = []
    for first, spec in jobs_near(job, [group[0] for group in by_options.values()]):
        group = by_options[tuple(sorted(first.job.items()))]
        same = next((others for other, others in by_job if other == spec), None)
        if same is None:
            by_job.append((spec, group))
        else:
            same += group
    return [one for spec, group in by_job for one in _of_one_job(spec, layout, group, forgiven)]


def _of_one_job(
    spec: JobSpec, layout: Values, changes: Sequence[Change], forgiven: Collection[Rule]
) -> list[Neighbour]:
    given = {name: value for name, value in layout.items() if name != "etp" or value is not None}
    if spec.model.is_moe and "etp" not in given:  # a change of TP leaves the experts as they are
        layout = {**layout, "etp": usual_etp(spec, int(layout.get("tp") or 1), int(layout.get("ep") or 1))}
    made: list[Neighbour] = []
    legal: dict[int, Candidates] = {}
    for change in changes:
        with suppress(InputError):  # the degrees do not multiply to the GPUs
            rows = fixed_layout(spec, replaced(layout, change.layout))
            row, options, kept = rows.row(0), change.options, replaced(given, change.layout)
            options |= {name: row[name] for name in ("dp", "shard") if name in given and name not in kept}
            if "etp" not in {*given, *options} and row["etp"] != usual_etp(spec, row["tp"], row["ep"]):
                options["etp"] = row["etp"]
            broken = tuple(rule for rule in broken_rules(rows, spec) if rule not in forgiven)
            if not broken:
                legal[len(made)] = rows
            made.append(Neighbour(change, options, spec, row, broken))
    if not legal:
        return made
    done = evaluate(concatenate(list(legal.values())), spec)
    sizes, hosts, steps = (
        np.broadcast_to(each, len(legal)).tolist()
        for each in (done.memory_bytes, done.memory.host_bytes, done.step.step_time_s)
    )
    for at, place in enumerate(legal):
        one = made[place]._replace(evaluation=done, at=at, step_time_s=steps[at], seconds=done.step.components[:, at])
        made[place] = one._replace(fit=spec.fit(sizes[at], hosts[at]), memory_gib=sizes[at] / GIB)
    return made


FEW_TO_TUNE_ON = 16
"""GPUs up to which training fewer weights is proposed: two nodes, as fine-tuners have them (a choice)."""

LEAST_SAVED = 0.005
"""Share of the memory that a rung of a ladder saves at least."""

DEAR = 0.2
"""Cost of the cheapest single change, as a share of the step, from which pairs are tried (a choice)."""


def remedies(job: Job, layout: Values) -> tuple[Remedy, ...]:
    """Return what makes a layout (as a user gave it) fit that does not or only just does, the fastest first: pairs only
    where no single change is enough or all cost much; if none is enough, what comes nearest, whose `fit` is `no`."""
    (was,) = legal_neighbours(job, layout, [Change(())])

    def smaller(changes: Iterable[Change]) -> list[Neighbour]:
        return [one for one in legal_neighbours(job, layout, changes) if one.memory_gib < was.memory_gib]

    def enough(found: Sequence[Neighbour]) -> list[Neighbour]:
        """Of each kind of change the fastest that is enough: it fits, or else is tight where nothing was."""
        kinds: dict[tuple[str, ...], list[Neighbour]] = {}
        for one in found:
            if one.fit == "fits" or (one.fit == "tight" and was.fit != "tight"):
                kinds.setdefault(one.change.kind, []).append(one)
        return [min(same, key=lambda one: (one.fit != "fits", one.step_time_s)) for same in kinds.values()]

    def order(one: Neighbour) -> tuple[bool, float, int]:
        """Fast ones first, but TP that leaves its domain of NVLink last."""
        return int(one.options.get("tp", 1)) > job.spec.cluster.node_gpus, one.step_time_s, len(one.options)

    row = was.row
    single = list(_of_job(job))
    if job.spec.runtime.rule_set in OWN_LOOPS:  # which fine-tune: elsewhere it is not what is asked for
        single += _of_tuning(job)
    found = smaller([*single, *_of_layout(job, row)])
    chosen = enough(found)
    limit = min((one.step_time_s for one in chosen if one.fit == "fits"), default=math.inf)
    if all(one.fit != "fits" or one.step_time_s / was.step_time_s - 1 > DEAR for one in chosen):
        pairs = smaller(_pairs([one.change for one in found if one.fit != "fits"]))
        found += pairs
        chosen += [one for one in enough(pairs) if (one.fit == "fits" or not chosen) and one.step_time_s < limit]
    nearest = [min(found, key=lambda one: one.memory_gib)] if found else []
    return tuple(_remedy(one, was) for one in sorted(chosen or nearest, key=order))


def _remedy(one: Neighbour, was: Neighbour) -> Remedy:
    slower = one.step_time_s / was.step_time_s - 1
    return Remedy(one.options, one.memory_gib, one.fit, one.step_time_s, slower)


def ladder(job: Job, layout: Values) -> tuple[Remedy, ...]:
    """Return what a job of few GPUs can give up, each by itself, that saves memory, the cheapest in time first: beside
    what `remedies` tries half the sequence, whose step is compared for as many tokens."""
    if job.spec.gpus > FEW_TO_TUNE_ON:
        return ()
    samples = job.spec.global_batch_size // job.spec.method.sequences
    half = Change(("seq",), {"seq": job.spec.sequence // 2, "gbs": 2 * samples})
    changes = [Change(()), *_of_job(job), *_of_tuning(job), half, *_given_up(job, layout)]
    was, *found = legal_neighbours(job, layout, changes)
    less = {tuple(one.options.items()): one for one in found if one.memory_gib < was.memory_gib * (1 - LEAST_SAVED)}
    return tuple(_remedy(one, was) for one in sorted(less.values(), key=lambda one: one.step_time_s))


def _given_up(job: Job, layout: Values) -> Iterator[Change]:
    if layout.get("recompute") != "full":
        yield Change(("recompute",), {}, {"recompute": "full"})
    least = job.spec.method.sequences
    if int(layout.get("micro_batch_size") or least) > least:
        yield Change(("microbatch",), {}, {"micro_batch_size": least})
    if job.spec.gpus > 1 and int(layout.get("zero") or 0) < 3:
        yield Change(("zero",), {}, {"zero": 3})


def other_jobs(job: Job) -> tuple[Iterator[tuple[Values, JobSpec]], ...]:
    """Return the jobs that need less memory beside their layout, with what is changed: one option, then two; those that
    offload alone; and those that train fewer weights."""
    single = list(_of_job(job))
    offloaded = [change for change in single if "offload" in change.job]
    near = (jobs_near(job, changes) for changes in ((*single, *_pairs(single)), offloaded, _of_tuning(job)))
    return tuple(((change.job, spec) for change, spec in found if spec != job.spec) for found in near)


def _pairs(changes: Sequence[Change]) -> Iterator[Change]:
    return (both(*pair) for pair in combinations(changes, 2) if apart(*pair))


def _of_job(job: Job) -> Iterator[Change]:
    """Yield changes of states and of what is offloaded, also such as change nothing."""
    spec, sixteen = job.spec, "fp16" if job.spec.precision == "fp16" else "bf16"
    space = load_framework(str(job.request["framework"])).space
    if not spec.runtime.memory.master_is_weight:
        yield Change(("gradients",), {"grad_dtype": sixteen})
    yield from (Change(("moments",), {"moment_dtype": dtype}) for dtype in space.moment_dtype)
    if spec.runtime.rule_set in OWN_LOOPS:
        yield Change(("loss",), {"loss": "linear"})
        if job.request["optimizer"] in {"adam", "adamw"}:
            yield Change(("optimizer",), {"optimizer": "adamw-8bit"})
        states = {"grad_dtype": sixteen, "master_dtype": "none", "moment_dtype": sixteen}
        if spec.gpus <= FEW_TO_TUNE_ON and spec.states.master:
            yield Change(("states",), states)
    now = spec.offload
    for part in map(parse_offload, space.offload):
        more = replace(now, optimizer=now.optimizer or part.optimizer, parameters=now.parameters or part.parameters)
        yield Change(("offload",), {"offload": offload_name(more)})


def _of_tuning(job: Job) -> Iterator[Change]:
    if job.spec.gpus <= FEW_TO_TUNE_ON and job.request.get("base_dtype") is None:
        less = TUNES[TUNES.index(str(job.request["tune"])) + 1 :]
        yield from (Change(("tune", tune), {"tune": tune}) for tune in less)


def _of_layout(job: Job, row: Mapping[str, int]) -> Iterator[Change]:
    """Yield changes of a layout, also such as break a rule."""
    yield from (change for change, _ in islice(recomputed(job.spec, row), 1, None))
    for size in divisors(row["micro_batch_size"])[:-1].tolist():
        yield Change(("microbatch",), {}, {"micro_batch_size": size})
    if row["dp"] * row["cp"] > 1:
        yield from (Change(("zero",), {}, {"zero": stage}) for stage in range(row["zero"] + 1, 4))
    if row["zero"]:
        yield Change(("shard",), {}, {"shard": row["dp"] * row["cp"]})
    if row["zero"] >= 2:
        yield Change(("grad_reduce",), {"grad_reduce": "each"})
    yield Change(("sp",), {}, {"sp": "on"})
    twice = {name: {name: 2 * row[name]} for name in ("tp", "pp", "cp", "ep")}
    yield from (Change((name,), {}, degrees) for name, degrees in twice.items())
    yield Change(("tp",), {}, twice["tp"] | {"etp": 2 * row["etp"]})  # where experts are split as the rest is
    yield Change(("pp",), {}, twice["pp"] | {"vpp": row["vpp"] // 2})
