"""`plan`: search the space and describe the best, with the measured layout of the nearest job beside it, or how far one
number of a job goes; `estimate`: evaluate one layout."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import public, taking
from gpuscale.choices import MAX_SEQUENCE
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pin, Pins, recompute_text, short_recompute
from gpuscale.layouts.space import divisors
from gpuscale.planning.comparing import answer, chosen_goal, compare, frontier, one_compared, summary
from gpuscale.planning.describe import Chosen, choose, describe, seldom_run
from gpuscale.planning.jobs import PLAIN_OBJECTIVES, Job, Presets, build_job, changed_job, constraints
from gpuscale.planning.layouts import domain_groups, fixed_layout, layout_text, no_experts
from gpuscale.planning.neighbours import remedies
from gpuscale.planning.planfile import layout_of, write_plan_file
from gpuscale.planning.recipes import LISTING, Recipe, find_recipe, recipe_near, recipe_text, with_recipe
from gpuscale.planning.variants import Variant, gpu_counts, make_variants
from gpuscale.planning.why import PlanRank, answer_why, illegal, left_out, no_answer, place_of
from gpuscale.presets.frameworks import generations, load_framework
from gpuscale.ratios import TIME, in_words
from gpuscale.request import (
    COMPARED,
    PINS,
    JobOptions,
    Layout,
    Question,
    Range,
    in_sequences,
    part,
    read,
    read_several,
    taken,
    with_layout,
    without,
)
from gpuscale.results import Estimate, Farthest, MeasuredLayout, PlanResult, PlanRow, RecipeAnswer, SoftwareThen
from gpuscale.rules.check import FATAL, broken_rules
from gpuscale.rules.rule import Rule
from gpuscale.search import ties
from gpuscale.search.evaluation import SEARCH_STAGES, STAGES, evaluate, watched
from gpuscale.search.loop import TIMES, Task, anything_fits, search, search_best
from gpuscale.search.ordering import scored
from gpuscale.specs.job import JobSpec
from gpuscale.uncertainty import Features, Residual, features, nearest_to_job
from gpuscale.units import GIB, MIB, format_seconds

TAKEN = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "micro_batch_size")
"""What is taken of a layout; DP follows from this job's GPUs, and states are sharded over all of it."""

NOT_OVERLAPPED = "its exchange not overlapped"
"""What is said of a layout that runs without the overlapped exchange of experts, which takes virtual stages."""


def exchange_shown(job: Job) -> Job:
    """Return a job without the overlapped exchange of experts."""
    return job._replace(spec=replace(job.spec, runtime=replace(job.spec.runtime, overlap_ep=False)))


def nearest_layout(job: Job, first: Estimate) -> tuple[Residual, dict[str, int | str]]:
    """Return the run nearest to a job, and what is taken of its layout for this job."""
    of_plan = {name: int(getattr(first.plan, name)) for name in TAKEN} | {"recompute_modules": 0, "recompute_layers": 0}
    run = nearest_to_job(features(job.spec, of_plan, first.breakdown), job.spec.model.name)
    known = run.features.layout
    return run, {name: known[name] for name in TAKEN} | {"recompute": _recompute(run.features, job.spec.model.layers)}


def measured_layout(job: Job, first: Estimate) -> MeasuredLayout:
    """Evaluate the layout of the run nearest to a job, and compare it with its `first` plan."""
    run, layout = nearest_layout(job, first)
    rate = run.tokens_per_s_per_gpu or 0.0
    here = [_here(one.spec, layout) for one in (job, exchange_shown(job))]
    said, step_time_s, memory_gib, fits, reasons = next((one for one in here if not one[-1]), here[0])
    if here[0][-1] and not reasons:
        said += f", {NOT_OVERLAPPED}"
    return MeasuredLayout(
        run=run.id,
        name=run.name,
        tokens_per_s_per_gpu=rate,
        predicted_tokens_per_s_per_gpu=rate * math.exp(run.log_ratio or 0.0),
        layout=said,
        step_time_s=step_time_s,
        slower=None if step_time_s is None else step_time_s / first.plan.step_time_s - 1,
        memory_gib=memory_gib,
        fits=fits,
        reasons=reasons,
        then=_then(job, run, layout, first),
    )


def _then(job: Job, run: Residual, layout: Mapping[str, Any], first: Estimate) -> SoftwareThen | None:
    """Evaluate the run's layout and the first plan's with the generation of the job's framework that the run had; None
    where that is the job's own or a later one, or another framework, or cannot run the first plan's layout."""
    with suppress(InputError):
        every = generations(str(job.request["framework"]))
        rule_sets = [load_framework(one).runtime.rule_set for one in every]
        if run.features.profile not in rule_sets[rule_sets.index(job.spec.runtime.rule_set) + 1 :]:
            return None
        framework = every[rule_sets.index(run.features.profile)]
        spec = changed_job(job, {"framework": framework})
        _, first_step_time_s, first_memory_gib, fits, _ = _here(spec, layout_of(first.plan))
        if first_step_time_s is not None and first_memory_gib is not None:
            then_s = _here(spec, layout)[1]
            return SoftwareThen(framework, then_s, first_step_time_s, first_memory_gib, fits)
    return None


def _recompute(run: Features, layers: int) -> str:
    """Return what a run recomputes, for a model of so many layers: the same share of a stage's, alike in its chunks."""
    known = run.layout
    if not known["recompute_layers"]:
        return recompute_text(known["recompute_modules"], 0)
    of_chunk = -(-known["recompute_layers"] * layers // (run.layers * known["vpp"]))
    own = of_chunk * known["vpp"]
    every = known["recompute_layers"] * known["pp"] >= run.layers or own * known["pp"] >= layers
    return "full" if every else recompute_text(0, own)


def _here(spec: JobSpec, layout: Mapping[str, Any]) -> tuple[str, float | None, float | None, bool, tuple[str, ...]]:
    """Return a layout in words, its step time [s], its memory [GiB], whether it fits, and why it cannot run."""
    try:
        rows = fixed_layout(spec, layout)
    except InputError as error:
        return "", None, None, False, (error.message,)
    said, broken = layout_text(rows.row(0)), broken_rules(rows, spec)
    if broken:
        return said, None, None, False, tuple(rule.text for rule in broken)
    done = evaluate(rows, spec)
    memory_bytes = float(done.memory_bytes[0])
    fits = spec.fit(memory_bytes, float(done.memory.host_bytes[0])) != "no"
    return said, float(done.step.step_time_s[0]), memory_bytes / GIB, fits, ()


SHORTEST, STEPS = 128, 16
"""Sequences that are tried: this many tokens, doubled again and again, and 16 equal steps within the doubling in which
nothing fits any longer; of a batch in tokens those that divide it."""

OPTION = {"seq": "seq", "mbs": "micro_batch_size", "gpus": "gpus"}


def farthest(
    job: Mapping[str, Any], pins: Mapping[str, Any], question: Question, presets: Presets | None
) -> tuple[dict[str, Any], dict[str, Any], Farthest]:
    """Find how far `question.find` goes before no layout fits, `gpus` being the most that may be taken; return job and
    pins with that number, or, where nothing fits at all, the easiest one, and what was found.

    Raises:
        InputError: several jobs, or a number that is given although it is looked for.
    """
    name, job = str(question.find), {**job, **_one_batch(job)}
    option, own = OPTION[name], replace(question, find=None)
    if name != "gpus" and option in {**job, **pins}:
        raise InputError(f"`{name}` is looked for and given", field="find", hint=f"leave out `{name}`")

    def variant(value: int | None = None) -> Variant:
        said = {} if value is None else {option: value}
        of_job, of_layout = ({}, said) if name == "mbs" else (said, {})
        tried = make_variants({**job, **of_job}, {**pins, **of_layout}, own, presets).tried
        if len(tried) > 1:
            raise InputError(f"it is found for one job, not for {len(tried)}", field="find", hint="ask for one job")
        return tried[0]

    def fits(value: int) -> bool:
        try:
            one = variant(value)
        except InputError:  # a number that the job cannot have: no batch of that many, another cluster
            return False
        return anything_fits(one.job.spec, one.pins)

    if name == "seq" and isinstance(job.get("gbs"), int):  # no number of them is one of tokens, however long they are
        job = {**job, "gbs": in_sequences(job["gbs"])}
    spec = variant().job.spec
    if name == "seq" and str(job.get("gbs", "")).endswith("tok"):
        lengths = [one for one in divisors(spec.tokens_per_step).tolist() if SHORTEST <= one <= MAX_SEQUENCE]
        value, beyond = _last(lengths or [spec.sequence], fits)
    elif name == "seq":
        value, beyond = _longest(fits)
    elif name == "mbs":
        value, beyond = _last([*divisors(spec.global_batch_size).tolist()], fits)
    else:
        value, beyond = _last(gpu_counts(Range(1, spec.gpus), spec.cluster)[::-1], fits)
    found = Farthest(name, value, beyond)
    return ({**job, option: value}, dict(pins), found) if name != "mbs" else (dict(job), {**pins, option: value}, found)


def _one_batch(job: Mapping[str, Any]) -> dict[str, int | str]:
    given = read_several("gbs", job["gbs"]) if "gbs" in job else ()
    return {"gbs": given[0]} if isinstance(given, tuple) and len(given) == 1 else {}


def _longest(fits: Callable[[int], bool]) -> tuple[int, int | None]:
    """The longest sequence that fits and the next that does not, None where all do."""
    doubled = [SHORTEST << k for k in range((MAX_SEQUENCE // SHORTEST).bit_length())]
    value, beyond = _last(doubled, fits)
    if beyond is None:
        return value, beyond
    step = (beyond - value) // STEPS
    return _last(list(range(value, beyond + 1, step)), fits)


def _last(values: Sequence[int], fits: Callable[[int], bool]) -> tuple[int, int | None]:
    """Of values that are the harder to fit the later they come, the last that does, by halving, and the one after it;
    the first where none does."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(values[middle]) else (low, middle)
    return values[low], values[high] if high < len(values) else None


@taking(taken(JobOptions, Layout, Question, several=COMPARED, pins=True))
def plan(
    model: str | None = None,
    gpus: Any = None,
    *,
    pins: Mapping[str, Any] | None = None,
    presets: Presets | None = None,
    **options: Any,
) -> PlanResult:
    """Find the best ways to train `model` on `gpus` GPUs.

    Args:
        model: name of a preset, path of a model file, or path of a Hugging Face `config.json` or its folder; a `recipe`
            has one, and `gpus`.
        gpus: GPUs of the job; a list (`"256,512"`, `[256, 512]`) or a range (`"256..1024"`) compares several.
        pins: `tp`, `pp` and the like in one piece: name -> values that it may take.
        presets: what was read for other questions.
        options: of the layout the values that it may have: `tp=8`, `pp="4..8"`, `ep=[1, 8]`, `cp="!16"`. Of options
            that take several values all combinations are searched. None is not given.

    Raises:
        InputError: unusable input, or pins that contradict each other or every rule.
        NoAnswerError: legal layouts, none of which fits in memory or meets the constraints; the message names the
            nearest miss.
    """
    given, pins = with_layout(options, pins, PINS)
    question = read(Question, part(given, Question))
    if question.pareto and (question.objective or question.why):
        hint = "ask `why` of a ranking by one `objective`"
        other, hint = ("objective", "a frontier is in the order of its first") if question.objective else ("why", hint)
        raise InputError(f"`pareto` and `{other}` are mutually exclusive", hint=hint)
    job = {name: one for name, one in {"model": model, "gpus": gpus}.items() if one is not None}
    job, recipe = job | without(given, Question), None
    if question.recipe:
        recipe = find_recipe(question.recipe)
        looked_for = OPTION.get(question.find or "", "gpus")  # `gpus` stay: they are the most that may be taken
        stated = {name: value for name, value in recipe.job.items() if name == "gpus" or name != looked_for}
        job, published = with_recipe(replace(recipe, job=stated), job, {})
        recipe = replace(recipe, layout=published)
        pins = {name: one for name, one in published.items() if name == "schedule"} | dict(pins)
    missing = next((name for name in ("model", "gpus") if name not in job), None)
    if missing:
        raise InputError("is missing", field=missing, hint="give `model` and `gpus`, or a `recipe`")
    if question.find:
        job, pins, found = farthest(job, pins, question, presets)
        answered = plan(**job, pins=pins, presets=presets, **replace(question, find=None).stated())
        return replace(answered, farthest=found)
    variants = make_variants(job, pins, question, presets)
    _check_one_job(question, variants.tried, recipe)
    if question.pareto:
        return frontier(variants, question)
    if len(variants.tried) > 1:
        return compare(variants, question)
    own, usual = variants.tried[0], make_variants(job, pins, question, presets, usual=True)
    settled = _settled(own, usual.tried, question)
    overlaps = settled.job.spec.runtime.overlap_ep and not own.job.spec.runtime.overlap_ep
    return _plan_one(settled, question, recipe, overlaps=overlaps)


def _check_one_job(question: Question, tried: Sequence[Variant], recipe: Recipe | None) -> None:
    """Refuse several jobs, or a frontier, where the plans of one are ranked in a way of their own."""
    several = "a frontier" if question.pareto else f"{len(tried)} jobs" if len(tried) > 1 else ""
    if recipe and several:
        hint = "ask of one job, or leave out the recipe"
        raise InputError(f"it is ranked among the plans of one job, not {several}", field="recipe", hint=hint)
    if len(tried) > 1 and "line" in (question.why or {}):
        hint = "ask of one job, or give the layout: tp=8,pp=4"
        raise InputError(f"it is of the answer for one job, not {len(tried)} jobs", field="why", hint=hint)
    if question.risk:  # it ranks by an upper quantile of step times
        if several:
            hint = "choose the job first, then ask for the `risk` of its plans"
            raise InputError(f"it ranks the plans of one job, not {several}", field="risk", hint=hint)
        goal = chosen_goal(question, tried)
        if goal.basis not in TIMES:
            message = f"it ranks by step time, not by {goal.name}"
            raise InputError(message, field="risk", hint="leave out `objective`")


def _settled(own: Variant, usual: Sequence[Variant], question: Question) -> Variant:
    """Choose the settings of a job: of those that the framework's users change, the ones with the fastest plan, as few
    of them changed as a simpler plan may cost (`ties.SIMPLICITY_MAY_COST`)."""
    if len(usual) == 1 or chosen_goal(question, (own,)).basis not in TIMES:
        return own
    plain, *others = [dict(one.choice) for one in usual]
    tried: dict[frozenset[tuple[str, Any]], Variant] = {frozenset(): own} | {
        frozenset(other.items() - plain.items()): one for other, one in zip(others, usual[1:], strict=True)
    }
    times_s = dict(zip(tried, _best_times_s(list(tried.values())), strict=True))
    changed = min(tried, key=times_s.__getitem__)
    limit_s = times_s[changed] * (1 + ties.SIMPLICITY_MAY_COST)
    for one in sorted(changed, reverse=True):
        if times_s.get(changed - {one}, math.inf) <= limit_s:
            changed -= {one}
    if not changed or times_s[changed] == math.inf:
        return own
    said = ", ".join(f"`{name}={value}`" for name, value in sorted(changed))
    without_s = f"take {format_seconds(times_s[frozenset()])}" if times_s[frozenset()] < math.inf else "do not fit"
    note = f"{said}: of {len(tried)} settings those with the fastest plans, which {without_s} without"
    return tried[changed]._replace(job=tried[changed].job._replace(notes=(*tried[changed].job.notes, note)), choice={})


DISTRIBUTED = Pins({"zero": Pin(((0, 1),))})
"""Nothing is sharded but the states of the optimizer."""


def _best_times_s(tried: Sequence[Variant]) -> list[float]:
    """The step time of the best plan of each job; infinity without one. Experts are compared with the distributed
    optimizer, with which all but a handful of `presets/recipes` run, if there is such a plan. Beyond the first job
    plans have the CP of its best: that follows from the lengths of sequences, whatever is set."""
    every = [Task(one.job.spec, one.pins, one.constraints) for one in tried]
    usual = every
    if every[0].job.model.is_moe and "zero" not in every[0].pins.degrees:
        usual = [one._replace(pins=one.pins.narrowed(DISTRIBUTED)) for one in every]
    found = search_best(usual[:1], 1)
    if not found[0].feasible and usual is not every:
        usual, found = every, search_best(every[:1], 1)
    others = usual[1:]
    if found[0].feasible:
        cp = int(found[0].leaders.rows.cp[0])
        others = [one._replace(pins=one.pins.narrowed(Pins(degrees={"cp": Pin(((cp, cp),))}))) for one in others]
    found += search_best(others, len(others))
    return [float(one.leaders.step_time_s[0]) if len(one.leaders.score) else math.inf for one in found]


def _plan_one(variant: Variant, question: Question, recipe: Recipe | None, *, overlaps: bool) -> PlanResult:
    """Rank the plans of one job; `overlaps`: its exchange of experts is overlapped because that pays, not because it
    was asked for."""
    job = variant.job
    goal = chosen_goal(question, (variant,))
    every = question.unfold or bool(question.why or recipe)
    found = search(job.spec, variant.pins, goal.basis, constraints=variant.constraints, every=every)
    if not found.feasible:
        raise no_answer([(variant, found)], question)
    chosen = choose(job, found, goal.basis, question)
    result = answer(job, chosen.estimates, summary([found], len(found.families.score)))
    notes = (*seldom_run(job, variant.pins, chosen, found), *_better_wide(job, chosen))
    result = replace(result, notes=(*result.notes, *notes))
    published = recipe or _published(job)
    why = None
    if question.why:
        asked = _asked(question.why, variant, chosen.estimates[0], published)
        place = partial(place_of, chosen, found, variant, asked.layout, unfold=question.unfold)
        why = answer_why(asked.variant, asked.layout, goal.basis, chosen.estimates[0], place, asked.called)
        if asked.variant is not variant:
            why = replace(why, reasons={**why.reasons, "not_overlapped": NOT_OVERLAPPED})
    compared = None
    more = constraints(question) or variant.economics.usd_per_gpu_hour or question.train_tokens
    if more or question.objective not in {None, *PLAIN_OBJECTIVES}:
        compared = one_compared(variant, question, goal, found, result.plans)
    ranked = None
    if published is not None:
        rank_of = partial(place_of, chosen, found, variant, unfold=question.unfold) if recipe else None
        how = {"despite_rules": bool(recipe), "overlaps": overlaps}
        ranked = ranked_recipe(published, variant, chosen.estimates, goal.basis, rank_of, **how)
        ranked = replace(ranked, asked=recipe is not None)
    result = replace(result, why=why, compared=compared, choice=chosen.choice, risk=chosen.risk)
    return replace(result, measured=measured_layout(job, chosen.estimates[0]), recipe=ranked)


class _Asked(NamedTuple):
    layout: Mapping[str, str]  #: names of `Layout` -> values.
    variant: Variant  #: its job, in which it can run.
    called: str = ""  #: where it is from; empty where it was given.


def _asked(why: Mapping[str, str], variant: Variant, first: Estimate, published: Recipe | None) -> _Asked:
    """Return the layout that `why` means: of the nearest measured run, of the recipe, in full, or as it is given."""
    if "line" not in why:
        return _Asked(why, variant)
    job = variant.job
    if why["line"] == "measured":
        run, layout = nearest_layout(job, first)
        called = f"measured, {run.name}"
    elif published:
        layout, called = dict(published.layout), f"recipe {published.name}"
    else:
        near = f"of {job.spec.model.name} on about {job.spec.gpus:,} {job.spec.cluster.gpu.title}"
        raise InputError(f"no recipe {near} is known", field="why", hint=f"`{LISTING}` lists all; or give a layout")
    for one in (job, exchange_shown(job)):
        with suppress(InputError):
            named, rows, _ = legal_layout(one, layout)
            plan = describe(named, rows, evaluate(rows, one.spec)).plan
            full = {name: str(value) for name, value in layout_of(plan).items()}
            own = variant if one is job else variant._replace(job=one)
            return _Asked(full, own, f"{called}: {layout_text(rows.row(0))}")
    stated = {name: str(value) for name, value in layout.items()}
    return _Asked(stated, variant, f"{called}: {recipe_text(layout)}")


def _better_wide(job: Job, chosen: Chosen) -> Iterator[str]:
    """Say where operands of few bits slow the first plan down, as quantising them does where products are small."""
    if job.spec.precision not in {"fp8", "fp4"}:
        return
    rows, wide = chosen.plans.rows.take(chosen.listed[:1]), changed_job(job, {"precision": "bf16"})
    done = evaluate(rows, wide)
    fits = wide.fit(float(done.memory_bytes[0]), float(done.memory.host_bytes[0])) == "fits"
    ratio = float(done.step.step_time_s[0]) / chosen.estimates[0].plan.step_time_s
    if fits and ratio < 1 and not broken_rules(rows, wide):
        yield f"`precision={job.request['precision']}` does not pay: in bf16 #1 takes {in_words(ratio, TIME)}"


def _published(job: Job) -> Recipe | None:
    """Return the recipe published for a job near this one, without what of its layout follows from the GPUs."""
    spec = job.spec
    asked = spec.gpus, spec.sequence, str(job.request["precision"])
    found = recipe_near(spec.model.name, spec.cluster.gpu.name, *asked)
    free = {} if found is None else {name: one for name, one in found.layout.items() if name not in {"dp", "shard"}}
    return None if found is None else replace(found, layout=free)


def ranked_recipe(
    recipe: Recipe,
    variant: Variant,
    plans: Sequence[Estimate],
    basis: str,
    place: Callable[[Mapping[str, str], float], PlanRank] | None = None,
    *,
    despite_rules: bool = True,
    overlaps: bool = False,
) -> RecipeAnswer:
    """Return how a recipe's layout stands among the plans of its job, by `step_time` or `memory` (`basis`).

    Args:
        place: from a layout and its score to its place among all plans, where that is asked for.
        despite_rules: say how long it takes although it breaks rules of the framework.
        overlaps: an overlapped exchange of experts was not asked for, and is given up where the recipe cannot have it.
    """
    job = variant.job
    said = RecipeAnswer(recipe.name, recipe.by, recipe.source, recipe.text, None, None, False, None, None, "", "")
    try:
        named, rows, broken = legal_layout(job, recipe.layout, despite_rules=True)
        reasons = []
        if broken and overlaps and not broken_rules(rows, exchange_shown(job).spec):
            job, reasons = exchange_shown(job), [NOT_OVERLAPPED]
            named, rows, broken = legal_layout(job, recipe.layout)
    except InputError as error:
        return replace(said, reason=error.message)
    rules = [f"{rule.text} ({rule.code})" for rule in broken]
    if rules and not despite_rules:
        return replace(said, reason="; ".join(rules))
    reasons += [f"breaks a rule: {rule}" for rule in rules]
    own, listed = describe(named, rows, evaluate(rows, job.spec)).plan, scored(rows, job.spec, basis)
    if not listed.fits(job.spec)[0]:
        limit = job.spec.plans_limit_bytes / GIB if own.fits else own.memory_limit_gib
        over = listed.memory_bytes[0] > job.spec.plans_limit_bytes
        needs = f"{'tight: ' * own.fits}{own.memory_gib:.1f} of {limit:.1f} GiB"
        reasons.insert(0, needs if over else "host memory does not suffice")
    first = plans[0].plan if plans else None
    rank = None
    if not reasons and place is not None:
        reasons += left_out(variant, listed, fits=True).values()
        asked = {name: str(value) for name, value in layout_of(own).items()}
        rank = None if reasons else place(asked, float(listed.score[0])).rank
    return replace(
        said,
        step_time_s=own.step_time_s,
        memory_gib=own.memory_gib,
        fits=own.fits,
        rank=rank,
        behind=None if first is None else own.step_time_s / first.step_time_s - 1,
        differs="" if first is None else layout_differences(own, first),
        reason="; ".join(reasons),
    )


COMPARED_LAYOUT = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "zero", "shard_size", "micro_batch_size", "recompute")
"""What two layouts of one job differ in, beside what follows from it."""


def layout_differences(own: PlanRow, other: PlanRow) -> str:
    """Say in what a layout differs from another: `PP 8 -> 4, microbatch 1 -> 2`."""
    apart = [name for name in COMPARED_LAYOUT if getattr(own, name) != getattr(other, name)]
    if "zero" in apart or own.zero < MAX_ZERO:  # then all ranks share the states
        apart = [name for name in apart if name != "shard_size"]
    if 1 in {own.tp, other.tp}:
        apart = [name for name in apart if name != "sp"]
    words = {"micro_batch_size": "microbatch", "shard_size": "shard", "zero": "ZeRO", "recompute": "recompute"}
    said: dict[str, Callable[[Any], Any]] = {"sp": {True: "on", False: "off"}.get, "recompute": short_recompute}
    found = []
    for name in apart:
        before, after = (said.get(name, str)(getattr(one, name)) for one in (own, other))
        found.append(f"{words.get(name, name.upper())} {before} -> {after}")
    return ", ".join(found)


MAX_ZERO = 3


@taking(taken(JobOptions, Layout))
def estimate(
    model: str, gpus: int, layout: Mapping[str, Any] | None = None, *, despite_rules: bool = False, **options: Any
) -> Estimate:
    """Evaluate one layout.

    Args:
        layout: `tp`, `pp`, `micro_batch_size`, `recompute` and the like in one piece, by name.
        despite_rules: also one that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: unusable input, or a layout that breaks a rule; the message names every rule it breaks.
    """
    options, layout = with_layout(options, layout)
    job = job_of({"model": model, "gpus": gpus, **options}, layout)
    return estimate_layout(job, layout, despite_rules=despite_rules)


def job_of(options: Mapping[str, Any], layout: Mapping[str, Any], presets: Presets | None = None) -> Job:
    """Build the job of options and a layout, whose groups of GPUs belong into one NVLink domain."""
    return build_job(read(JobOptions, options), presets, domain_groups(layout))


def estimate_layout(job: Job, layout: Mapping[str, Any], *, despite_rules: bool = False) -> Estimate:
    """Evaluate one layout of a job that is already built."""
    said, rows, broken = legal_layout(job, layout, despite_rules=despite_rules)
    found = describe(said, rows, evaluate(rows, job.spec))
    return found if broken or found.plan.fit == "fits" else replace(found, remedies=remedies(said, layout))


def legal_layout(
    job: Job, layout: Mapping[str, Any], *, despite_rules: bool = False
) -> tuple[Job, Candidates, list[Rule]]:
    """Complete a layout that may run: the job with notes of rules that it breaks, the layout, and these rules; an
    InputError where it may not."""
    rows = fixed_layout(job.spec, layout)
    contradiction = zero_contradicts(job, int(rows.zero[0]))
    if contradiction is not None:
        raise contradiction
    broken = broken_rules(rows, job.spec)
    if despite_rules and not any(rule.code in FATAL for rule in broken):
        job = job._replace(notes=(*job.notes, *(f"breaks a rule: {rule.text} ({rule.code})" for rule in broken)))
    elif broken:
        stray = next((name for name in ("ep", "etp") if getattr(rows, name)[0] > 1 and not job.spec.model.is_moe), None)
        if stray:
            raise no_experts(job.spec, stray)
        place = " ".join(f"{name}={value}" for name, value in layout.items()) or "layout"
        always = broken_rules(fixed_layout(job.spec, {}), job.spec, broken)
        hint = "`gpuscale plan` for the same job lists layouts that can run"
        if always:
            hint = "" if layout else f"give one (`tp`, `pp`, ...), or the plan file of one: {hint}"
        raise illegal(layout, job, broken, place, hint)
    return job, rows, broken


def zero_contradicts(job: Job, zero: int) -> InputError | None:
    """Return what is wrong where options of a job say otherwise than a ZeRO stage."""
    if zero == {"always": 2, "never": 3}.get(str(job.request.get("reshard"))):
        hint = "ZeRO-3 frees gathered parameters, ZeRO-2 keeps them: leave out one of the two"
        return InputError(f"`reshard={job.request['reshard']}` and ZeRO-{zero} are mutually exclusive", hint=hint)
    if zero < 2 and job.request.get("grad_reduce"):
        hint = "ZeRO-0 and 1 reduce gradients once per step: leave it out, or take ZeRO-2 or 3"
        return InputError(f"`grad_reduce` has no effect with ZeRO-{zero}", field="grad_reduce", hint=hint)
    return None


def save_plan(path: Path, result: PlanResult, rank: int) -> None:
    """Write the plan of a rank as a plan file."""
    chosen = chosen_plan(result, rank)
    write_plan_file(path, chosen.job, chosen.plan)


def chosen_plan(result: PlanResult, rank: int) -> Estimate:
    """Return the plan of a rank; an InputError where there is none."""
    if not 1 <= rank <= len(result.plans):
        raise InputError(f"there is no rank {rank}", field="rank", hint=f"the search kept {len(result.plans)} plans")
    return replace(result.estimates[rank - 1], plan=result.plans[rank - 1])


MAX_RUNS = 100


@dataclass(frozen=True)
class StageTime:
    """CPU time of one stage of the flow."""

    stage: str  #: one of `gpuscale.search.evaluation.STAGES`.
    first_s: float  #: in the first run, which also loads what is loaded on first use.
    best_s: float  #: in the fastest run.


@displayed
@dataclass(frozen=True)
class BenchResult:
    """What was measured, all of it CPU time of one thread."""

    model: str
    cluster: str
    gpus: int
    runs: int
    generated: int  #: as in `gpuscale.results.SearchSummary`.
    candidates: int  #: as in `gpuscale.results.SearchSummary`.
    feasible: int  #: as in `gpuscale.results.SearchSummary`.
    candidates_per_s: float  #: candidates over the time of the search stages.
    startup_s: float | None  #: from the start of the process until everything was imported; None where not known.
    first_s: float  #: one plan, without start-up, in the first run.
    best_s: float  #: in the fastest run.
    stages: tuple[StageTime, ...]  #: where it goes.
    peak_mib: float | None  #: most memory of the process; None where the system does not say.
    python: str  #: its version.
    numpy: str  #: its version.
    machine: str  #: architecture and system.


@public
def bench(
    model: str = "llama3-70b",
    gpus: int = 640,
    *,
    runs: int = 5,
    startup_s: float | None = None,
    draw: Callable[[PlanResult], object] | None = None,
) -> BenchResult:
    """Find the plans of a job several times and say where the time goes.

    Args:
        model, gpus: as for `plan`; everything else at its default.
        runs: 1 to `MAX_RUNS`; the fastest counts, as the others measure what else the machine does.
        startup_s: CPU time that the process had taken when it was ready to plan.
        draw: draws the plans, as part of the last stage.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs <= MAX_RUNS:
        raise InputError(f"{runs} is out of range", field="runs", hint=f"give 1 to {MAX_RUNS}")
    measured = []
    for _ in range(runs):
        with watched() as watch:
            result = plan(model, gpus)
            if draw is not None:
                draw(result)
            watch.lap("output")
        measured.append(watch.seconds)
    first, best = measured[0], min(measured, key=lambda seconds: sum(seconds.values()))
    found = result.search
    return BenchResult(
        model=result.model,
        cluster=result.cluster,
        gpus=gpus,
        runs=runs,
        generated=found.generated,
        candidates=found.candidates,
        feasible=found.feasible,
        candidates_per_s=found.candidates / sum(best.get(stage, 0.0) for stage in SEARCH_STAGES),
        startup_s=startup_s,
        first_s=sum(first.values()),
        best_s=sum(best.values()),
        stages=tuple(StageTime(stage, first.get(stage, 0.0), best.get(stage, 0.0)) for stage in STAGES),
        peak_mib=peak_mib(),
        python=platform.python_version(),
        numpy=np.__version__,
        machine=f"{platform.machine()} {platform.system()}",
    )


def peak_mib() -> float | None:
    """Return the most memory that this process has had [MiB], or None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
