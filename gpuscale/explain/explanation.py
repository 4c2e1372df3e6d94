"""`explain`: where each second and each byte of a plan goes, why it is this plan, what bounds it, what would change it.

The rooflines among its thresholds are the textbook's, latency-free (`gpuscale.rooflines`): they say where communication
could hide behind arithmetic at all. Bubble, memory and launches are what the model itself says of this plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuscale.arguments import taking
from gpuscale.display import displayed
from gpuscale.explain.changes import Rejected, Spelling, Suggestion, changes_of, rejected, suggestions, unspelled
from gpuscale.explain.choice import Flip, Position, field_of, flips, standing
from gpuscale.explain.steps import Node, memory_trees, step_tree
from gpuscale.explain.traffic import TrafficReport, traffic_of
from gpuscale.launch.subject import Subject, read_subject
from gpuscale.layouts.ranks import strides
from gpuscale.planning.describe import bound_parts
from gpuscale.planning.layouts import layout_text
from gpuscale.ratios import TIME, in_words, share_text
from gpuscale.request import JobOptions, Layout, taken, with_layout
from gpuscale.results import PlanRow
from gpuscale.rooflines import allreduce_bytes_per_s, dp_tokens_per_gpu, moe_dp_tokens_per_gpu, tp_divisor
from gpuscale.search.conditions import perturbed
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.cluster import LevelSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS, INDEX
from gpuscale.units import GIB, format_number, format_seconds

NEIGHBOURS = ("tp", "pp", "cp", "ep", "zero", "vpp", "microbatch", "recompute", "sp", "precision", "overlap", "gbs")


@dataclass(frozen=True)
class Reasons:
    """What is said of a plan."""

    sentences: tuple[str, ...]  #: what binds, how the plan stands to others, what its neighbours lack
    thresholds: tuple[Threshold, ...]  #: the distance to each point at which something else would bind
    suggestions: tuple[Suggestion, ...]  #: the most profitable changes, each as it runs
    rejected: tuple[Rejected, ...]  #: changes that are not worth making
    flips: tuple[Flip, ...]  #: single numbers that would make another plan the choice


def reasons(subject: Subject, spelled: Spelling = unspelled) -> Reasons:
    """Say of a plan what binds it, what would change it, and how it stands to others."""
    changes, field, limits = changes_of(subject), field_of(subject), thresholds(subject)
    against = rejected(changes, NEIGHBOURS)
    turns = () if field is None else flips(field)
    place = ["No plan of this job fits: `gpuscale plan` shows the nearest miss."]
    if field is not None:  # how it stands to the best of its job, and that to the next family
        own = layout_text(subject.rows.row(0))
        place = _standing_text(standing(subject, field), subject.estimate.plan.fit, own)
    said = (_what_binds(subject), *_communication(subject), *missed(limits), *place)
    return Reasons(said, limits, suggestions(changes, spelled), against, turns)


def _what_binds(subject: Subject) -> str:
    plan = subject.estimate.plan
    parts = ", ".join(bound_parts(subject.estimate.breakdown))
    return f"The step of {format_seconds(plan.step_time_s)} is bound by {parts}."


def missed(limits: Sequence[Threshold]) -> list[str]:
    """Say which thresholds are missed, of each kind the first."""
    found: dict[str, str] = {}
    for one in limits:
        if not one.holds:
            needed = f"{format_number(one.needed)} {'at most' if one.at_most else 'needed'}"
            name = f"{one.name[0].upper()}{one.name[1:]}"
            found.setdefault(name.partition("]")[0], f"{name}: {format_number(one.now)} ({needed}): {one.meaning}.")
    return list(found.values())


def _communication(subject: Subject) -> tuple[str, ...]:
    plan, seconds = subject.estimate.plan, subject.estimate.breakdown
    shown = [name for name in COMMUNICATION if seconds[name] > 0]
    if not shown:
        return ("Nothing is communicated.",) if subject.spec.gpus == 1 else ("All communication is hidden.",)
    shown.sort(key=lambda name: -seconds[name])
    parts = ", ".join(f"{COMPONENTS[name].text} {share_text(seconds[name] / plan.step_time_s)}" for name in shown)
    said = f"Exposed communication takes {share_text(plan.exposed_comm_fraction)} of the step"
    said += f": {parts}" if len(shown) > 1 else f", all of it {COMPONENTS[shown[0]].text}"
    whole_s, exposed_s = subject.estimate.total_dp_comm_s, seconds["dp_comm"]
    if whole_s > exposed_s > 0:
        said += f"; of data parallelism's {format_seconds(whole_s)} {100 * (1 - exposed_s / whole_s):.0f}% is hidden"
    return (f"{said}.",)


def _standing_text(one: Position, fit: str, own: str) -> list[str]:
    best = f"{one.best} ({format_seconds(one.best_step_time_s)})"
    why = f": {', '.join(one.why)}" if one.why else ""
    said = []
    if one.best == own:
        said.append("It is the first choice for its job.")
    elif one.is_best:
        said.append(f"No plan that fits is more than 1% faster; the first choice is {best}.")
    else:
        tie = ", a tie within the model's resolution" if one.tied else ""
        said.append(f"It takes {in_words(1 + one.behind, TIME, f'the first choice, {best}')}{tie}{why}.")
    if fit == "no":
        said.append("It does not fit.")
    if one.next_plan:
        much = f"takes {in_words(1 + one.next_behind, TIME)}"
        lacks = f": {', '.join(one.next_lacks)}" if one.next_lacks else ""
        tie = ", a tie within the model's resolution" if one.next_tied else ""
        said.append(f"The next best family, {one.next_plan}, {much}{tie}{lacks}.")
    return said


LEAST_BUBBLE = 0.05

MOST_MICROBATCHES = 4096

INFINITELY_FAST = 1e9
"""Factor on kernels and network that leaves of a step what the CPU takes."""

ELEMENT_BYTES = {"fp4": 0.5, "fp8": 1.0, "fp32": 4.0, "tf32": 4.0}
"""Precision of products -> bytes of an operand; 2 of the others."""


@dataclass(frozen=True)
class Threshold:
    """One quantity of a plan, and the value at which something changes."""

    name: str  #: what it is, with its unit.
    now: float  #: its value.
    needed: float  #: the threshold.
    at_most: bool = field(default=False, kw_only=True)  #: it should not be above the threshold; else not below it.
    meaning: str  #: what happens beyond it.
    holds: bool = field(init=False)  #: whether the plan is on the good side.

    def __post_init__(self) -> None:
        holds = self.now <= self.needed if self.at_most else self.now >= self.needed
        object.__setattr__(self, "holds", holds)


def thresholds(subject: Subject) -> tuple[Threshold, ...]:
    """Return the distance of a plan to each threshold that applies to it."""
    return tuple(
        one
        for kind in (_intensity, _data_parallel, _tensor_parallel, _bubble, _launches, _memory)
        for one in kind(subject)
    )


def _usual_layer(subject: Subject) -> LayerSpec:
    model = subject.spec.model
    return model.kinds[int(np.bincount(np.array(model.pattern)).argmax())]


def _intensity(subject: Subject) -> Iterator[Threshold]:
    """FLOPs per byte of the feed-forward block's products on one GPU, against the GPU's."""
    spec, row, layer = subject.spec, subject.rows.row(0), _usual_layer(subject)
    gpu, tokens = spec.cluster.gpu, row["micro_batch_size"] * spec.sequence / row["cp"]
    if layer.moe is not None:
        share = row["ep"] * row["etp"] / row["tp"]  # of what the ranks of an EP group bring, each 1/TP of its tokens
        width, tokens = layer.moe.ffn / row["etp"], tokens * share * layer.moe.top_k / layer.moe.experts
    elif layer.mlp is not None:
        width = layer.mlp.ffn / row["tp"]
    else:
        return
    hidden, size = spec.model.hidden, ELEMENT_BYTES.get(spec.precision, 2.0)
    moved = size * (tokens * hidden + hidden * width + tokens * width)
    what = "an expert's" if layer.moe else "the feed-forward block's"
    intensity, ridge = 2 * tokens * hidden * width / moved, gpu.peak(spec.precision) / gpu.memory_bandwidth_bytes_per_s
    meaning = f"below it HBM bounds {what} matrix products, not arithmetic"
    yield Threshold("arithmetic intensity [FLOPs per byte]", intensity, ridge, meaning)


def _data_parallel(subject: Subject) -> Iterator[Threshold]:
    """Tokens per GPU of a stage from which gradients could hide behind the backward pass."""
    spec, row = subject.spec, subject.rows.row(0)
    ranks, own = row["dp"] * row["cp"], strides(subject.rows, subject.spec)
    peak, tokens = spec.cluster.gpu.peak(spec.precision), spec.tokens_per_step * row["pp"] / spec.gpus
    what, per = ("FSDP" if row["zero"] > 1 else "data parallelism"), " of a stage" if row["pp"] > 1 else ""
    if ranks > 1:
        level, adds = _crossed(subject, ranks, int(own.dp_cp[0]))
        reach = allreduce_bytes_per_s(spec.cluster, level, int(own.dp_cp[0]))
        needed = dp_tokens_per_gpu(peak, reach, in_network_reduction=adds and row["zero"] == 0)
        meaning = f"below it gradients across {spec.cluster.levels[level].name} take longer than the backward pass"
        yield Threshold(f"tokens per GPU{per} for {what} [tokens]", tokens, needed, meaning)
    moe, expert_ranks = _usual_layer(subject).moe, int(subject.rows.expert_dp[0])
    if moe is not None and expert_ranks > 1:
        level, adds = _crossed(subject, expert_ranks, int(own.edp[0]))
        reach = allreduce_bytes_per_s(spec.cluster, level, row["ep"] * row["etp"])
        needed = moe_dp_tokens_per_gpu(peak, reach, moe.experts, moe.top_k) * (1 if adds and row["zero"] == 0 else 2)
        of = f"gradients of {moe.experts} experts, {moe.top_k} of which a token visits"
        meaning = f"below it {of}, take longer than the backward pass"
        yield Threshold(f"tokens per GPU{per} for {what} of the experts [tokens]", tokens, needed, meaning)


def _crossed(subject: Subject, ranks: int, stride: int) -> tuple[int, bool]:
    """Index of the outermost level that a group crosses, and whether all switches up to it add up."""
    cluster = subject.spec.cluster
    level: LevelSpec = cluster.level_of_group(ranks, stride)
    index = cluster.levels.index(level)
    return index, bool(cluster.adding(ideal=False)[: index + 1].all())


def _tensor_parallel(subject: Subject) -> Iterator[Threshold]:
    """The degree up to which TP's transfers could hide behind the products that it splits."""
    spec, row, layer = subject.spec, subject.rows.row(0), _usual_layer(subject)
    split = layer.mlp if layer.moe is None else layer.moe
    if row["tp"] == 1 or split is None or (layer.moe is not None and row["etp"] == 1):
        return
    level = spec.cluster.level_of_group(row["tp"], 1)
    divisor = tp_divisor(spec.cluster.gpu.peak(spec.precision), level.egress_bytes_per_s, level.gpus)
    width = split.ffn * (layer.moe.top_k if layer.moe else 1)
    meaning = f"above it transfers across {level.name} take longer than the products of a block of width {width:,}"
    yield Threshold("TP degree", row["tp"], width / divisor, meaning, at_most=True)


def _bubble(subject: Subject) -> Iterator[Threshold]:
    """Microbatches from which the bubble is small, evaluated."""
    row = subject.rows.row(0)
    if row["pp"] == 1:
        return
    unit = row["pp"] if row["vpp"] > 1 else 1
    counts = np.arange(unit, min(MOST_MICROBATCHES, 64 * unit * row["pp"]) + 1, unit)
    rows = replace(subject.rows.take(np.zeros(len(counts), dtype=np.intp)), num_microbatches=counts)
    step = evaluate(rows, subject.spec).step
    share = step.components[INDEX["bubble"]] / step.step_time_s
    small = np.flatnonzero(share <= LEAST_BUBBLE)
    if len(small):
        meaning = f"below it the bubble takes more than {100 * LEAST_BUBBLE:.0f}% of the step"
        yield Threshold("microbatches per step", row["num_microbatches"], int(counts[small[0]]), meaning)


def _launches(subject: Subject) -> Iterator[Threshold]:
    """Tokens of a microbatch from which the GPU takes longer than the CPU takes to launch its kernels.

    With kernels and a network that take no time a microbatch takes what the CPU takes, however long it is: the GPU's
    own work, in proportion to the tokens, has to take as long.
    """
    spec, row = subject.spec, subject.rows.row(0)
    no_time = perturbed(spec, dict.fromkeys(("kernels", "node_links", "network", "latency"), 1 / INFINITELY_FAST))
    beside = {"bubble", "dp_comm", "optimizer", "offload", "waiting"}
    names = [name for name in COMPONENTS if name not in beside]
    fast, own = (done.step.seconds() for done in (evaluate(subject.rows, no_time), subject.evaluation))
    busy_s = math.fsum(own[name] for name in names if name != "launch")
    tokens = row["micro_batch_size"] * spec.sequence / row["cp"]
    needed = tokens * math.fsum(fast[name] for name in names) / busy_s
    meaning = "below it a microbatch takes as long as the CPU takes to launch its kernels"
    yield Threshold("tokens per microbatch", tokens, needed, meaning)


def _memory(subject: Subject) -> Iterator[Threshold]:
    spec, now = subject.spec, subject.estimate.plan.memory_gib
    name = f"memory [GiB] of the fullest GPU, stage {subject.estimate.plan.peak_stage}"
    yield Threshold(name, now, spec.memory_limit_bytes / GIB, "above it the job does not run", at_most=True)
    meaning = "above it the allocator may run out in the middle of a run"
    yield Threshold("memory [GiB] that fragmentation leaves", now, spec.comfortable_bytes / GIB, meaning, at_most=True)


@displayed
@dataclass(frozen=True)
class Explanation:
    """What there is to say of one plan."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plan: PlanRow  #: the layout and its numbers; `rank` and `variants` are 1
    #: seconds of a step on the slowest stage, as a tree: phases, passes, layers, blocks, operators and collectives; the
    #: root is `step_time_s` of the plan, every node the exact sum of its children
    step: Node
    memory: tuple[Node, ...]  #: bytes of one GPU of the first, the heaviest middle and the last stage, as a tree each
    #: what travels where (its fields are keys of the JSON); None where it was not asked for
    network: TrafficReport | None
    #: what binds, how much communication shows, how the plan stands to the best of its job, and that to the next family
    #: of plans
    sentences: tuple[str, ...] = ()
    thresholds: tuple[Threshold, ...] = ()  #: distance of the plan from where something else would bind it
    #: the most profitable single changes, the best of each kind, each evaluated as `estimate` does it
    suggestions: tuple[Suggestion, ...] = ()
    rejected: tuple[Rejected, ...] = ()  #: changes that are not worth making, and why
    #: single quantities that would make another plan the choice, the smallest change first
    flips: tuple[Flip, ...] = ()
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.explain/1`."""
        return {
            **{name: getattr(self, name) for name in ("model", "cluster", "gpus")},
            "plan": self.plan.to_dict(),
            "step": self.step.to_dict(),
            "memory": [stage.to_dict() for stage in self.memory],
            **({} if self.network is None else self.network.to_dict()),
            **{one.name: list(getattr(self, one.name)) for one in fields(Reasons)},
            "notes": list(self.notes),
        }


@taking(taken(JobOptions, Layout, beside_files=True))
def explain_plan(
    plan_file: str | Path | None = None,
    *,
    layout: Mapping[str, Any] | None = None,
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    despite_rules: bool = False,
    **options: Any,
) -> Explanation:
    """Explain one plan: of a file, of launch files, or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        layout: `tp`, `pp` and the like in one piece, by name.
        launch_files, variables: as in `gpuscale.estimate_launch`.
        despite_rules: also a layout that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: two sources of a plan, none, unusable input, or a layout that breaks a rule.
    """
    path, (options, layout) = None if plan_file is None else Path(plan_file), with_layout(options, layout)
    return explain_subject(read_subject(path, options, layout, launch_files, variables, despite_rules=despite_rules))


def explain_subject(subject: Subject, spelled: Spelling = unspelled, *, traffic: bool = True) -> Explanation:
    """Explain an evaluated plan; `traffic`: what travels where too."""
    found = subject.estimate
    return Explanation(
        model=found.model,
        cluster=found.cluster,
        gpus=found.gpus,
        plan=found.plan,
        step=step_tree(subject),
        memory=memory_trees(subject),
        notes=found.notes,
        network=traffic_of(subject) if traffic else None,
        **vars(reasons(subject, spelled)),
    )
