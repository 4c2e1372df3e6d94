"""What would make a layout fit: single changes of job or layout, else pairs of them, each evaluated anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice

from gpuscale.choices import TUNES
from gpuscale.layouts.space import divisors
from gpuscale.planning.jobs import Job
from gpuscale.planning.neighbours import Change, Neighbour, Values, apart, both, jobs_near, legal_neighbours, recomputed
from gpuscale.presets.frameworks import load_framework
from gpuscale.request import offload_name, parse_offload
from gpuscale.results import Remedy
from gpuscale.specs.job import OWN_LOOPS, JobSpec

FEW_TO_TUNE_ON = 16
"""GPUs up to which training fewer weights is proposed: two nodes, as fine-tuners have them (a choice)."""

LEAST_SAVED = 0.005
"""Share of the memory that a rung of a ladder saves at least."""

DEAR = 0.2
"""Cost of the cheapest single change, as a share of the step, from which pairs are tried (a choice)."""


def remedies(job: Job, layout: Values) -> tuple[Remedy, ...]:
    """Return what makes a layout (as a user gave it) fit that does not or only just does, the fastest first.

    Pairs are tried only where no single change is enough or all cost much; if none of these is enough either, the one
    that comes nearest is returned, whose `fit` is `no`. Each is legal and evaluated as `estimate` does it.
    """
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
    """Return what a job of few GPUs can give up, each by itself, that saves memory, the cheapest in time first.

    Beside what `remedies` tries: half the sequence, whose step is compared for as many tokens.
    """
    if job.spec.gpus > FEW_TO_TUNE_ON:
        return ()
    samples = job.spec.global_batch_size // job.spec.method.sequences
    half = Change(("seq",), {"seq": job.spec.sequence // 2, "gbs": 2 * samples})
    changes = [Change(()), *_of_job(job), *_of_tuning(job), half, *_given_up(job, layout)]
    was, *found = legal_neighbours(job, layout, changes)
    less = {tuple(one.options.items()): one for one in found if one.memory_gib < was.memory_gib * (1 - LEAST_SAVED)}
    return tuple(_remedy(one, was) for one in sorted(less.values(), key=lambda one: one.step_time_s))


def _given_up(job: Job, layout: Values) -> Iterator[Change]:
    """Yield changes of a layout that a ladder has: all layers recomputed, a microbatch of one sequence."""
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
    """Yield ways to train fewer weights of a job of few GPUs."""
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
