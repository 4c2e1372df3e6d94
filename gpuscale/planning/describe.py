"""From arrays to typed results: rows of an evaluation as estimates, which are shown, and why in this order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray
from gpuscale.layouts.arrays import ZB_V, Candidates, schedule_name
from gpuscale.layouts.pins import Pins, recompute_text
from gpuscale.layouts.stages import FIRST, LAST, MIDDLE, pipeline_layout
from gpuscale.memory.model import BASES, fit_probability, half_width
from gpuscale.planning.jobs import Job, half_widths
from gpuscale.ratios import TIME, in_words
from gpuscale.request import DEFAULT_TOP, Question
from gpuscale.results import Choice, Condition, Estimate, PlanRow, RiskAnswer, RiskPlan, Standing, Turn
from gpuscale.rules.rule import MEGATRON
from gpuscale.search import ties
from gpuscale.search.evaluation import Evaluation
from gpuscale.search.loop import COMPARED_FAMILIES, TIMES, SearchResult, Shortlist, near_leaders, shortlist
from gpuscale.search.objectives import model_flops_per_token
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS, by_kind
from gpuscale.uncertainty import UNLIKE_NODES, Evidence, evidence, features, narrowed
from gpuscale.units import GIB, format_seconds


def describe(
    job: Job,
    rows: Candidates,
    evaluation: Evaluation,
    row: int = 0,
    *,
    rank: int = 1,
    variants: int = 1,
    unseen: Sequence[str] = (),
) -> Estimate:
    """Return candidate `row` with its breakdown of step time and memory; `unseen` as in `describe_all`."""
    return describe_all(job, rows, evaluation, [row], [rank], [variants], unseen)[0]


def describe_all(
    job: Job,
    rows: Candidates,
    evaluation: Evaluation,
    chosen: Sequence[int],
    ranks: Sequence[int],
    variants: Sequence[int],
    unseen: Sequence[str] = (),
) -> tuple[Estimate, ...]:
    """Return the candidates of some rows with their breakdowns: their `ranks`, the feasible plans that each stands for
    (`variants`), and what all have and no measured run has (`unseen`), beyond what is seen of them."""
    spec, found = job.spec, []
    layouts = [rows.row(row) for row in chosen]
    seconds = [evaluation.step.seconds(row) for row in chosen]
    unseen = (*unseen, UNLIKE_NODES) if spec.cluster.pools else unseen
    ranges = evidence([features(spec, *pair) for pair in zip(layouts, seconds, strict=True)], unseen=unseen)
    if job.site:
        halves = half_widths(spec, job.site, rows.take(np.array(chosen, dtype=np.intp))).tolist()
        ranges = [narrowed(*pair) for pair in zip(ranges, halves, strict=True)]
    parts = evaluation.memory.at_peaks()
    memory = half_width(parts, spec), fit_probability(evaluation.memory, spec)
    for index, row in enumerate(chosen):
        plan = _plan_row(spec, evaluation, row, layouts[index], seconds[index], ranges[index], memory)
        host_bytes = float(evaluation.memory.host_bytes[row])
        offloaded = f"offloaded: {host_bytes / GIB:,.0f} of {spec.host_limit_bytes / GIB:,.0f} GiB of each host"
        stages = evaluation.memory.by_stage[:, row].tolist()  # first, last, and those in between that may be fullest
        found.append(
            Estimate(
                model=spec.model.name,
                cluster=spec.cluster.name,
                gpus=spec.gpus,
                plan=PlanRow(rank=ranks[index], variants=variants[index], **plan),
                breakdown=seconds[index],
                memory={name: float(size[row]) / GIB for name, size in parts.items()},
                total_dp_comm_s=float(evaluation.step.dp_total_s[row]),
                stage_memory_gib=(stages[FIRST] / GIB, max(stages[MIDDLE:]) / GIB, stages[LAST] / GIB),
                logged_memory_gib={basis: float(evaluation.memory.logged(basis, spec)[row]) / GIB for basis in BASES},
                assumptions=job.assumptions,
                notes=(*job.notes, *([offloaded] if host_bytes else [])),
                job=job.request,
            )
        )
    return tuple(found)


def _plan_row(
    spec: JobSpec,
    evaluation: Evaluation,
    row: int,
    layout: dict[str, int],
    seconds: dict[str, float],
    known: Evidence,
    memory: tuple[FloatArray, FloatArray],
) -> dict[str, Any]:
    """Return the fields of a `PlanRow` but its rank and what it stands for; `memory` has half-widths of the intervals
    of memory, and the probabilities that it is within the limit, each (N,)."""
    step_time_s = float(evaluation.step.step_time_s[row])
    tokens_per_s = spec.tokens_per_step / step_time_s
    flops_per_s_per_gpu = model_flops_per_token(spec) * tokens_per_s / spec.gpus
    memory_bytes = float(evaluation.memory.peak_bytes[row])
    half, sure = float(memory[0][row]), float(memory[1][row])
    fit = spec.fit(memory_bytes, float(evaluation.memory.host_bytes[row]))
    stage = int(evaluation.memory.by_stage[:, row].argmax())
    sharding = "hsdp" if layout["shard"] < layout["dp"] * layout["cp"] else "fsdp"
    degrees = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "micro_batch_size", "num_microbatches")
    by_itself = spec.runtime.rule_set not in MEGATRON or layout["schedule"] == ZB_V
    split = (spec.model, layout["pp"], layout["vpp"], spec.runtime.pipeline_split)
    bound, bound_s = next(iter(by_kind(seconds).items()))
    return {name: layout[name] for name in degrees} | {
        "sp": bool(layout["sp"]),
        "sharding": sharding if layout["zero"] > 1 else ("none", "distopt")[layout["zero"]],
        "shard_size": layout["shard"],
        "global_batch_size": spec.global_batch_size,
        "sequence": spec.sequence,
        "recompute": recompute_text(layout["recompute_modules"], layout["recompute_layers"]),
        "schedule": schedule_name(layout),
        "pipeline_layout": None if by_itself else pipeline_layout(*split),
        "step_time_s": step_time_s,
        "step_time_low_s": step_time_s * known.low,
        "step_time_high_s": step_time_s * known.high,
        "similar_runs": known.similar,
        "nearest_run": known.nearest,
        "nearest_run_name": known.nearest_name,
        "unmeasured": known.unmeasured,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / spec.gpus,
        "tflops_per_gpu": flops_per_s_per_gpu / 1e12,
        "mfu": flops_per_s_per_gpu / spec.cluster.gpu.peak(spec.precision),
        "memory_gib": memory_bytes / GIB,
        "memory_low_gib": memory_bytes / GIB * math.exp(-half),
        "memory_high_gib": memory_bytes / GIB * math.exp(half),
        "fit_probability": sure,
        "memory_limit_gib": spec.memory_limit_bytes / GIB,
        "fits": fit != "no",
        "fit": fit,
        "peak_stage": int(evaluation.stages.position[evaluation.stage_row[row], stage]),
        "bound_by": bound,
        "bound_fraction": bound_s / step_time_s,
        "exposed_comm_fraction": math.fsum(seconds[name] for name in COMMUNICATION) / step_time_s,
        "bubble_fraction": seconds["bubble"] / step_time_s,
        "flop_convention": spec.flop_convention,
    }


LEAST_SAID = 0.005
"""Share of a step that rounds to 0 %: less is not said."""


def bound_parts(seconds: Mapping[str, float]) -> Iterator[str]:
    """Say what takes a step by kind of work, with the largest component of compute and communication, what binds it
    first: `compute 76% (GEMMs 71%)`, `bubble 4%`."""
    whole = math.fsum(seconds.values())
    for kind, total in by_kind(seconds).items():
        if total < LEAST_SAID * whole:
            return
        name = max((one for one in seconds if COMPONENTS[one].limit == kind), key=lambda one: seconds[one])
        said, own = f"{total / whole:.0%}", f"{seconds[name] / whole:.0%}"
        inside = " ".join([short_name(name), *([] if own == said else [own])])
        named = f" ({inside})" if kind in {"compute", "communication"} and own != "0%" else ""
        yield f"{BOUNDS[kind]} {said}{named}"


def bound_text(plan: PlanRow) -> str:
    """Say what binds a plan: `compute 76%`."""
    return f"{BOUNDS[plan.bound_by]} {plan.bound_fraction:.0%}"


def short_name(component: str) -> str:
    """Name a component without `comm`: `TP`, `GEMMs`."""
    return COMPONENTS[component].text.removesuffix(" comm")


if TYPE_CHECKING:
    from gpuscale.search.conditions import Spread

RISK_RULE = "by the step time that {:.0%} of cases stay within; "


class Chosen(NamedTuple):
    """The plans to show, and what they were chosen from."""

    estimates: tuple[Estimate, ...]
    choice: Choice | None
    risk: RiskAnswer | None
    plans: Shortlist
    every: IndexArray  #: all of those in order, variants of one family too.
    listed: IndexArray  #: those of them that a table of any length has.


def choose(job: Job, found: SearchResult, objective: str, question: Question) -> Chosen:
    """Choose and order the plans to show; say why the first is first and, if asked, what may become of them."""
    top, unfold, timed = question.top or DEFAULT_TOP, question.unfold, objective in TIMES
    near, families, spread = 0, top, None
    if timed:
        near, families = near_leaders(found), max(top, COMPARED_FAMILIES)
    plans = shortlist(job.spec, found, max(near, top * unfold), families * (timed or not unfold))
    if question.risk:
        from gpuscale.search import conditions  # noqa: PLC0415 - most plans are made without it

        spread = conditions.spread(plans.rows, job.spec, conditions.applicable(job.spec), question.risk)
    every = plans.every(objective, None if spread is None else spread.at_risk_s)
    listed = plans.listed(every, unfold=unfold)
    order = listed[:top]
    variants, ranks = np.ones_like(order) if unfold else plans.variants[order], range(1, len(order) + 1)
    estimates = describe_all(job, plans.rows, plans.evaluation, order.tolist(), ranks, variants.tolist())
    choice = _choice(job, plans, order, estimates, spread) if timed else None
    answer = None
    if spread is not None:
        predicted = int(plans.order(objective, 1, unfold=unfold)[0])
        answer = _risk_answer(job, plans, order, estimates, spread, predicted)
    return Chosen(estimates, choice, answer, plans, every, listed)


def seldom_run(job: Job, pins: Pins, chosen: Chosen, found: SearchResult) -> Iterator[str]:
    """Say what the first plan does that hardly anybody does, and what the best plan without it takes."""
    spec, families = job.spec, found.families
    first = chosen.plans.rows.take(chosen.listed[:1])
    domain, tokens = f"{spec.cluster.peer_gpus:,} GPUs of an NVLink domain", f"{spec.sequence:,} tokens"
    ways: dict[str, tuple[str, Callable[[Candidates, JobSpec], BoolArray]]] = {
        "tp": (f"TP {first.tp[0]} reaches beyond the {domain}, as few do", ties.tp_outside),
        "cp": (f"CP {first.cp[0]} splits sequences of {tokens}, as few do", ties.cp_short),
    }
    for name, (said, does) in ways.items():
        if name not in pins.degrees and does(first, spec)[0]:
            others = families.step_time_s[~does(families.rows, spec)]
            least_s = float(others.min(initial=math.inf))
            took = in_words(least_s / chosen.estimates[0].plan.step_time_s, TIME, "#1")
            yield f"{said}: " + ("no plan that does not fits" if least_s == math.inf else f"without it, {took}")


def _risk_answer(
    job: Job, plans: Shortlist, order: IndexArray, estimates: tuple[Estimate, ...], spread: Spread, predicted: int
) -> RiskAnswer:
    """Say what may become of the plans shown, and when the first if all is as `predicted` no longer is."""
    from gpuscale.search import conditions  # noqa: PLC0415 - most plans are made without it

    names = [knob.name for knob in spread.knobs]
    losses = spread.losses[:, order]
    beyond = losses - losses.min(axis=1, keepdims=True)
    turns = conditions.turning_points(plans.rows, job.spec, plans.family, predicted, ties.AS_GOOD)
    worst = conditions.WORST
    return RiskAnswer(
        risk=spread.risk,
        samples=conditions.SAMPLES,
        scored=len(plans.rows),
        conditions=tuple(Condition(one.name, one.meaning, one.factor(worst), one.source) for one in spread.knobs),
        plans=tuple(
            RiskPlan(
                rank=rank,
                p10_s=float(spread.p10_s[row]),
                median_s=float(spread.median_s[row]),
                p90_s=float(spread.p90_s[row]),
                at_risk_s=float(spread.at_risk_s[row]),
                fits=float(spread.fits[row]),
                losses=dict(zip(names, losses[:, rank - 1].tolist(), strict=True)),
                most_hurt_by=names[int(np.argmax(beyond[:, rank - 1]))],
            )
            for rank, row in enumerate(order.tolist(), 1)
        ),
        predicted=_row(job, plans, order, predicted, estimates),
        turns=tuple(
            Turn(knob.name, factor, None if row is None else _row(job, plans, order, row, estimates))
            for knob, factor, row in turns
        ),
    )


def _row(job: Job, plans: Shortlist, order: IndexArray, row: int, estimates: tuple[Estimate, ...]) -> PlanRow:
    shown = order.tolist()
    if row in shown:
        return estimates[shown.index(row)].plan
    return describe(job, plans.rows, plans.evaluation, row, rank=0).plan


def _choice(
    job: Job, plans: Shortlist, order: IndexArray, estimates: tuple[Estimate, ...], spread: Spread | None = None
) -> Choice:
    fastest, first, reason = _row(job, plans, order, plans.fastest, estimates), int(order[0]), ""
    if first != plans.fastest:
        by = plans.score if spread is None else spread.at_risk_s
        reason = _reason(ties.deciding(by, plans.traits, first, plans.fastest), estimates[0].plan, fastest)
        own_s, other_s = float(by[first]), float(by[plans.fastest])
        if spread is not None and own_s < other_s:
            own, other = format_seconds(own_s), format_seconds(other_s)
            less = in_words(own_s / other_s, TIME)
            shorter = "under 0.1%" if less == TIME.same else less.split()[0]
            reason = f"what {spread.risk:.0%} of cases stay within is shorter, by {shorter}"
            if own != other:
                reason = f"{spread.risk:.0%} of cases stay within {own}, not {other}"
    standings = zip(*(column.tolist() for column in plans.behind_fastest(order)), strict=True)
    return Choice(
        rule=("" if spread is None else RISK_RULE.format(spread.risk)) + ties.ORDER_RULE,
        reason=reason,
        fastest=fastest,
        standings=tuple(
            Standing(rank, math.expm1(behind), math.expm1(window), abs(behind) <= window)
            for rank, (behind, window) in enumerate(standings, 1)
        ),
    )


def _instead(own: str, other: str, what: str = "") -> str:
    return f" ({own}{what}, not {other})" if own != other else ""


def _reason(because: str, first: PlanRow, fastest: PlanRow) -> str:
    if because == "tp_outside":
        return "it keeps TP inside the NVLink domain"
    if because == "cp_short":
        return f"it does not split sequences of {first.sequence:,} tokens"
    new = [one for one in fastest.unmeasured if one not in first.unmeasured]
    if because == "unproven" and new:
        return f"no measured run has {new[0]}"
    if because in {"unproven", "unlike_measured"}:
        return "measured runs are similar"
    if because == "wager":
        if first.step_time_high_s < fastest.step_time_high_s:
            own, other = format_seconds(first.step_time_high_s), format_seconds(fastest.step_time_high_s)
            return f"the upper end of its interval is less{_instead(own, other)}"
        own, other = f"{first.fit_probability:.0%}", f"{fastest.fit_probability:.0%}"
        return f"it is surer to fit{_instead(own, other, ' likely')}"
    if because == "chunks":
        few, many = first.pp * first.vpp, fastest.pp * fastest.vpp
        return f"it has fewer model chunks ({few}, not {many})" if few < many else "its model chunks can be balanced"
    if because == "exposed":
        own, other = (f"{one.exposed_comm_fraction:.0%}" for one in (first, fastest))
        return f"it exposes less communication{_instead(own, other, ' of the step')}"
    fewer = [name for name in _features(fastest) if name not in _features(first)]
    return "it uses fewer features" + (f" (no {', no '.join(fewer)})" if fewer else "")


def _features(plan: PlanRow) -> list[str]:
    used = {"interleaving": plan.vpp > 1, "context parallelism": plan.cp > 1, "HSDP": plan.sharding == "hsdp"}
    used |= {"ZeRO-3": plan.zero == 3, "recomputation": plan.recompute != "none"}
    return [name for name, is_used in used.items() if is_used]
