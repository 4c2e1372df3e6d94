"""What lies near a plan: changes of its job and its layout, those of one job evaluated together.

Whoever asks what another plan would take says it as a `Change`: `explain`, `advise`, `check`, `memory`, remedies of
what does not fit, and ways out of what breaks a rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates, concatenate
from gpuscale.layouts.pins import Pins, recompute_text
from gpuscale.layouts.space import ways_to_recompute
from gpuscale.planning.jobs import Job, changed_job
from gpuscale.planning.layouts import fixed_layout, usual_etp
from gpuscale.planning.planfile import replaced
from gpuscale.rules.check import broken_rules
from gpuscale.rules.rule import Rule
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.specs.job import JobSpec
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
    """Yield every way to recompute that the framework has, none first, with the whole layers of a stage it repeats."""
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
    row: Mapping[str, int]  #: the layout.
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
    """Evaluate changes of a layout as a user gave it, by the names of `gpuscale.request.Layout`: each by itself, those
    of one job together. What cannot be asked for is left out; `forgiven` rules may be broken."""
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
