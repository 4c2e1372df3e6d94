"""What is said of one plan in words: its layout, its verdict, what binds it, what its numbers rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuscale.choices import MEMORY_HEADROOM
from gpuscale.layouts.pins import short_recompute
from gpuscale.planning.describe import bound_parts, bound_text
from gpuscale.ratios import TIME, in_words, signed
from gpuscale.render.console import as_many_as_fit
from gpuscale.render.document import Part, Section, Spell, later
from gpuscale.results import Estimate, MeasuredLayout, PlanRow, Remedy
from gpuscale.specs.lengths import lengths_of
from gpuscale.specs.tuning import METHOD_SPECS, SFT
from gpuscale.steptime.components import COMPONENTS
from gpuscale.uncertainty import MANY_LAYOUTS
from gpuscale.units import format_count, format_duration, format_seconds, plural

if TYPE_CHECKING:
    from gpuscale.launch.subject import Subject

FIT = {"fits": "fits", "tight": "TIGHT", "no": "DOES NOT FIT"}

REMEDIES = 4


def remedy_rows(remedies: Sequence[Remedy], spell: Spell) -> list[tuple[str, str]]:
    """What makes a layout fit, or comes nearest, and what it costs."""
    rows: list[tuple[str, str]] = []
    for remedy in remedies[:REMEDIES]:
        change = f"{change_text(remedy.change, spell)}: {remedy.memory_gib:.1f} GiB"
        if remedy.fit == "no":
            return [("to fit", f"no single change or pair of changes is enough; nearest: {change}")]
        cost = f"{format_seconds(remedy.step_time_s)}/step ({signed(remedy.slower)})"
        rows.append(("or" if rows else "to fit", f"{change}, {remedy.fit}, {cost}"))
    return rows


def change_text(change: Mapping[str, Any], spell: Spell) -> str:
    """Say which options are changed to what."""
    return spell(" ".join(f"`{name}={value}`" for name, value in change.items()))


def on_gpus(found: Any) -> str:
    """Say of what an answer is: `llama3-8b on 64 GPUs`."""
    return f"{found.model} on {plural(found.gpus, 'GPU')}"


def on_cluster(found: Any) -> str:
    """The same, with the cluster."""
    return f"{on_gpus(found)} of {found.cluster}"


def size_text(plan: Any) -> str:
    """Say what a plan takes of a GPU's memory."""
    return f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"


def step_range(plan: Any) -> str:
    """Say the 80 % interval of a step time."""
    return f"{format_seconds(plan.step_time_low_s)} to {format_seconds(plan.step_time_high_s)}"


def most_first(found: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return names with what they have most of first."""
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def degrees_text(plan: PlanRow) -> str:
    """The degrees of a layout that differ from 1: `TP8+SP PP4 DP20 ZeRO-1`."""
    parts = [f"TP{plan.tp}{'+SP' if plan.sp else ''}", f"PP{plan.pp}"]
    parts += [f"{name.upper()}{getattr(plan, name)}" for name in ("vpp", "cp", "ep", "etp") if getattr(plan, name) > 1]
    sharding = f"HSDP-{plan.shard_size}" if plan.sharding == "hsdp" else f"ZeRO-{plan.zero}"
    return " ".join([*parts, f"DP{plan.dp}", sharding])


def layout_text(plan: PlanRow) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`, and what is recomputed."""
    recompute = [] if plan.recompute == "none" else [f"recompute {short_recompute(plan.recompute)}"]
    return " ".join([degrees_text(plan), f"mb{plan.micro_batch_size}", *recompute])


FEW_GPUS = 8
"""GPUs up to which the first line names the cluster: the usual one is hardly meant there."""


def verdict(found: Any, plan: PlanRow, width: int) -> str:
    """The result in one line, with as many numbers as fit."""
    parts = [
        f"MFU {plan.mfu:.1%}",
        f"{format_count(plan.tokens_per_s)} tokens/s",
        f"{plan.tflops_per_gpu:.0f} TFLOP/s/GPU",
    ]
    of = on_cluster(found) if found.gpus <= FEW_GPUS else on_gpus(found)
    head = f"{of}: {degrees_text(plan)}: {format_seconds(plan.step_time_s)}/step"
    tokens = f" of {format_count(plan.global_batch_size * plan.sequence)} tokens"
    head += tokens if len(head) + len(tokens) <= width else ""
    return as_many_as_fit(f"{head}, ", parts, width).removesuffix(", ")


SAMPLES = 10_000
"""Samples of a usual data set of instructions, whose time the first line says."""


def fine_tuning_lines(plan: PlanRow, job: Mapping[str, Any]) -> list[str]:
    """What a fine-tuner asks first: `fits: 16.6 of 24.0 GiB (99%), 3.1 h for 10k samples of 2,048`."""
    method, lengths = METHOD_SPECS[str(job.get("method", "sft"))], job.get("lengths")
    if job.get("tune", "full") == "full" and method == SFT and lengths is None:
        return []
    memory = f"{FIT[plan.fit]}: {size_text(plan)}"
    if not plan.fits:
        return [memory]
    likely = f" ({plan.fit_probability:.0%})"
    share, size = 1.0, f"{plan.sequence:,} tokens"
    if lengths is not None:  # of a sequence that a sample takes
        known = lengths_of(str(lengths), plan.sequence, packed=bool(job.get("packing")))
        tokens = known.taken(plan.micro_batch_size)
        share = tokens / plan.sequence
        size = f"{known.mean:,.0f} tokens, {'packed' if known.packed else f'padded to {tokens:,.0f}'}"
    took = format_duration(SAMPLES * method.sequences * share / plan.global_batch_size * plan.step_time_s)
    pairs = f"{method.sequences} x " if method.sequences > 1 else ""
    return [f"{memory}{likely}, {took} for {SAMPLES:,} samples of {pairs}{size}"]


def fit_text(plan: PlanRow | None) -> str:
    """Say on a line of its own that a plan does not fit."""
    if plan is None or plan.fits:
        return ""
    return f"\nDOES NOT FIT: {size_text(plan)}"


def component_text(name: str) -> str:
    """Name a component of the step time for people."""
    return COMPONENTS[name].text if name in COMPONENTS else name.replace("_", " ")


def where_it_goes(estimate: Estimate, width: int) -> Iterator[str]:
    """What binds the step and what else takes it; then the largest components of its memory."""
    plan = estimate.plan
    yield as_many_as_fit("bound by ", bound_parts(estimate.breakdown), width)
    largest = most_first(estimate.memory)
    parts = [f"{name.replace('_', ' ')} {gib:.1f}" for name, gib in largest if gib >= LEAST_GIB]
    head = f"memory {size_text(plan)} at stage {plan.peak_stage}: "
    yield as_many_as_fit(head, parts, width)


LEAST_GIB = 0.05
"""Component of memory from which on a line of the largest names it."""


def differences_text(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """The four largest differences between two breakdowns, largest first."""
    gaps = {name: one[name] - other[name] for name in one if one[name] != other[name]}
    largest = sorted(gaps.items(), key=lambda item: (-abs(item[1]), item[0]))[:4]
    shown = [
        f"{format_seconds(abs(gap))} {'more' if gap > 0 else 'less'} {component_text(name)}" for name, gap in largest
    ]
    return shown or ["the same breakdown"]


USUAL = (
    "sequence", "global_batch", "framework", "precision", "optimizer", "memory_limit", "vocabulary", "cluster",
    "dispatcher", "moe_imbalance",
)  # fmt: skip
"""What every answer rests on; a line sums it up where not all is asked for."""


def assumption_rows(found: Estimate, spell: Spell, *, verbose: bool, nearest: bool = True) -> list[tuple[str, str]]:
    """What the numbers rest on, evidence first; the `nearest` run unless it stands elsewhere."""
    plan, said = found.plan, found.assumptions
    rows = [("evidence", evidence_text(plan, nearest=nearest)), *(("note", spell(note)) for note in found.notes)]
    if verbose:
        rows += [(name.replace("_", " "), text) for name, text in said.items()]
        return [*rows, ("TFLOP/s, MFU", plan.flop_convention)]
    named = [said[name] for name in ("precision", "framework", "dispatcher", "cluster") if name in said]
    first = [text.partition(" (default")[0].partition(":")[0] for text in named]
    usual = plan.memory_limit_gib * (1 - MEMORY_HEADROOM)  # above it: tight
    limit = f"limits {usual:.1f} and {plan.memory_limit_gib:.1f} GiB"
    rows.append(("job", ", ".join([f"{plan.global_batch_size:,} x {plan.sequence:,} tokens", *first, limit])))
    return rows + [(name.replace("_", " "), text) for name, text in said.items() if name not in USUAL]


def pipeline_row(plan: PlanRow, number: str = "") -> list[tuple[str, str]]:
    """The stages, where Megatron-LM has to be told them."""
    told = f"{plan.pipeline_layout} (--pipeline-model-parallel-layout of Megatron-LM)"
    return [(f"pipeline{number}", told)] if plan.pipeline_layout else []


def evidence_text(plan: PlanRow, *, nearest: bool = True) -> str:
    """How far measurements may be off, by which runs, and what none of them has."""
    new = f"; NO measured run has {' or '.join(plan.unmeasured)}" if plan.unmeasured else ""
    runs = similar_text(plan.similar_runs) + (f", nearest {plan.nearest_run_name}" if nearest else "")
    return f"80 % within {step_range(plan)}, {runs}; memory {memory_range(plan)}{new}"


def measured_text(found: MeasuredLayout) -> str:
    """The layout that was run for the nearest job: measured, predicted, and here."""
    rates = (found.tokens_per_s_per_gpu, found.predicted_tokens_per_s_per_gpu)
    ran, predicted = (f"{one:,.0f}" for one in rates)
    if found.step_time_s is None or found.slower is None:
        here = f"cannot run here: {found.reasons[0]}"
    else:
        size = "" if found.fits else f", does not fit ({found.memory_gib:.1f} GiB)"
        here = (
            f"here {found.layout} takes {format_seconds(found.step_time_s)}, {in_words(1 + found.slower, TIME)}{size}"
        )
    return f"{found.name}: {ran} tokens/s/GPU, predicted {predicted}; {here}{_then(found)}"


SOFTWARE_GAINED = 0.05
"""Share of the step that newer software than a measured run's has to save to be named."""


def _then(found: MeasuredLayout) -> str:
    """What the software of a measured run makes of its layout and of the first plan's."""
    then = found.then
    if then is None or found.step_time_s is None or found.slower is None:
        return ""
    first_s = found.step_time_s / (1 + found.slower)
    if then.first_step_time_s < first_s * (1 + SOFTWARE_GAINED):
        return ""
    own = "" if then.step_time_s is None else f"that takes {format_seconds(then.step_time_s)}, and "
    size = "" if then.first_fits else f" and does not fit ({then.first_memory_gib:.1f} GiB)"
    longer = in_words(then.first_step_time_s / first_s, TIME)
    return f"; with its software ({then.framework}) {own}#1 {format_seconds(then.first_step_time_s)}, {longer}{size}"


def memory_range(plan: PlanRow) -> str:
    """How far a measurement may be from the predicted memory."""
    return f"80 % within {plan.memory_low_gib:.1f} to {plan.memory_high_gib:.1f} GiB"


def similar_text(runs: int) -> str:
    """Say how many measured runs an interval is by."""
    return f"by {plural(runs, 'similar measured run')}" if runs else "no similar measured run"


def first_choices_text(found: Iterable[Mapping[str, Any]]) -> str:
    """How much longer than predicted first choices of measured sweeps took, beside all of their layouts."""
    words = {
        "groups": "measured over predicted time (median): first choices of {:,} sweeps {}, all of their layouts {}",
        "large groups": f"of the {{:,}} with {MANY_LAYOUTS} layouts or more {{}}, all {{}}",
    }
    return "; ".join(
        words[one["over"]].format(one["n"], signed(one["first"] - 1), signed(one["all"] - 1))
        for one in found
        if one["over"] in words
    )


def assumption_parts(found: Estimate, spell: Spell) -> list[tuple[str, str]]:
    """Every assumption; evidence and notes stand elsewhere."""
    return assumption_rows(found, spell, verbose=True)[1 + len(found.notes) :]


def plan_tiles(found: Estimate) -> list[tuple[str, str, str]]:
    """The numbers of a plan that matter most."""
    plan = found.plan
    return [
        ("Step time", format_seconds(plan.step_time_s), f"80 % within {step_range(plan)}"),
        ("MFU", f"{plan.mfu:.1%}", f"{plan.tflops_per_gpu:.0f} TFLOP/s per GPU"),
        ("Throughput", f"{format_count(plan.tokens_per_s)} tokens/s", f"{plan.tokens_per_s_per_gpu:,.0f} per GPU"),
        (
            "Memory",
            f"{plan.memory_gib:.1f} GiB",
            f"of {plan.memory_limit_gib:.1f} GiB: {FIT[plan.fit]}; {memory_range(plan)}",
        ),
        ("Exposed communication", f"{plan.exposed_comm_fraction:.1%}", "of the step"),
        ("Bubble", f"{plan.bubble_fraction:.1%}", f"of the step; bound by {bound_text(plan)}"),
    ]


def plan_sections(of: Callable[[], Subject], *of_memory: Part) -> list[Section]:
    """The sections of a page on memory (`of_memory` first), pipeline, traffic and placement of a plan, made when
    wanted."""
    return [
        Section("Memory", [*of_memory, later("plan_page.stage_parts", of)]),
        Section("Pipeline", [later("plan_page.pipeline_parts", of)]),
        Section("Traffic", [later("plan_page.sent_parts", of)]),
        Section("Placement", [later("plan_page.placement_parts", of)]),
    ]
