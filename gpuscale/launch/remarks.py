"""What stands against a job: broken rules and what would be legal, and what runs and costs more than it has to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import CORE_ATTN
from gpuscale.layouts.pins import recompute_text
from gpuscale.layouts.space import divisors
from gpuscale.planning.jobs import Job, changed_job
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.neighbours import Change, Neighbour, legal_neighbours, of_job, of_layout, recomputed
from gpuscale.planning.planfile import replaced
from gpuscale.presets.frameworks import load_framework
from gpuscale.ratios import TIME, in_words
from gpuscale.request import Layout, declared, overlap_name, overlap_of
from gpuscale.results import Estimate, PlanRow
from gpuscale.rules.check import broken_rules, source_in
from gpuscale.rules.rule import FRAMEWORKS, Rule
from gpuscale.specs.cluster import INSIDE
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB, format_seconds, plural

SEVERITIES = ("error", "warning", "note")


class Remark(NamedTuple):
    """One of it, before it is known where its settings stand."""

    rule: str  #: its name, which stays the same.
    severity: str  #: one of `SEVERITIES`.
    message: str  #: what is there, against what limit, and what would be right.
    #: options or settings that it speaks of, the first that is stated is its place; None where it is of no file.
    settings: tuple[str, ...] | None = ()
    cost_s: float | None = None  #: seconds per step that it costs; None where it is not a matter of time.
    #: option -> its nearest legal values, the nearest first; None leaves it out.
    legal: Mapping[str, tuple[Any, ...]] = MappingProxyType({})


CLOSE = 32
"""Values of a degree that are tried on either side of it, beside its divisors and its double."""

NEAREST = 2
"""Values of an option that are said to be legal."""


def illegal_settings(job: Job, layout: Mapping[str, Any], broken: Sequence[Rule]) -> Iterator[Remark]:
    """Yield each broken rule, with the values that break it and what would be legal next to them."""
    row = fixed_layout(job.spec, layout).row(0)
    known = _values(job, row)
    for rule in broken:
        values = ", ".join(f"{name} {known[name]}" for name in rule.options if known.get(name, "") != "")
        if rule.code in {"uneven_stages", "uneven_chunks"}:
            stages = row["pp"] * (row["vpp"] if rule.code == "uneven_chunks" else 1)
            what = "pp x vpp" if rule.code == "uneven_chunks" else "pp"
            said = f"num_layers {job.spec.model.layers} is not divisible by {what} = {stages}"
        else:
            said = f"{rule.text}: {values}" if values else rule.text
        legal = _legal_next(job, layout, row, broken, rule)
        for name, near in legal.items():
            said += f"; legal next to it: {name} {' or '.join(map(_word, sorted(near, key=_order)))}"
        source = source_in(rule, job.spec.runtime.rule_set)
        yield Remark(rule.code, "error", f"{said} [{source}]", rule.options, legal=legal)


def _values(job: Job, row: Mapping[str, int]) -> dict[str, Any]:
    """Return the options of a job and its layout, and facts of the model, as findings name them."""
    model = job.spec.model
    heads = sorted({one.heads for one in model.attentions})
    kv_heads = sorted({one.kv_heads for one in model.attentions if one.latent is None})
    widths = sorted({one.ffn for kind in model.kinds for one in (kind.mlp, kind.moe) if one})
    experts = sorted({kind.moe.experts for kind in model.kinds if kind.moe})
    several = {"heads": heads, "kv_heads": kv_heads, "ffn": widths, "experts": experts}
    texts = {name: " and ".join(map(str, values)) for name, values in several.items()}
    facts = {"layers": model.layers, "hidden": model.hidden, "vocab": model.vocab, **texts}
    return {**job.request, **row, **facts, "recompute": "", "sp": "on" if row["sp"] else "off"}


def _legal_next(
    job: Job, layout: Mapping[str, Any], row: Mapping[str, int], broken: Sequence[Rule], rule: Rule
) -> dict[str, tuple[Any, ...]]:
    """Return the first option with values that break this rule no more, nor any that the layout did not break before.

    Those after which no rule is broken go before the others, then the nearest first.
    """
    before = {one.code for one in broken}
    for name in rule.options:
        found: list[tuple[bool, Any]] = []
        for value in _near(job.spec, row, name):
            after = _broken_with(job, layout, name, value)
            if after is not None and rule.code not in after and after <= before:
                found.append((bool(after), value))
        clean = [value for left, value in found if not left] or [value for _, value in found]
        if clean:
            return {name: tuple(clean[:NEAREST])}
    return {}


def _word(value: Any) -> str:
    return "left out" if value is None else str(value)


def _order(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _broken_with(job: Job, layout: Mapping[str, Any], name: str, value: Any) -> set[str] | None:
    """Return the rules that are broken with one option changed; None where that makes no job."""
    with suppress(InputError):
        if name in declared(Layout):
            spec, changed = job.spec, replaced(layout, {name: value})
        else:
            spec, changed = changed_job(job, {name: value}), dict(layout)
        return {one.code for one in broken_rules(fixed_layout(spec, changed), spec)}
    return None


def _near(spec: JobSpec, row: Mapping[str, int], name: str) -> Iterable[Any]:
    """Return other values of an option, the nearest first."""
    if name in {"gbs", "seq"}:
        unit = row["dp"] * row["micro_batch_size"] * row["pp"] if name == "gbs" else 2 * row["cp"] * row["tp"]
        now = spec.global_batch_size if name == "gbs" else spec.sequence
        below = now // unit * unit
        steps = [below, below + unit, below - unit, below + 2 * unit]
        finer = row["dp"] * row["micro_batch_size"]
        steps += [now // finer * finer, now // finer * finer + finer] if name == "gbs" else []
        return [value for value in sorted(dict.fromkeys(steps), key=lambda one: abs(one - now)) if 0 < value != now]
    texts = {
        "sp": ("on", "off"), "recompute": ("selective", "full", "none"), "schedule": ("1f1b",),
        "cp_comm": ("all_gather", "a2a", "p2p"), **dict.fromkeys(("offload", "overlap", "precision"), (None,)),
    }  # fmt: skip
    if name in texts:
        return texts[name]
    if name == "zero":
        return sorted((stage for stage in range(4) if stage != row["zero"]), key=lambda one: abs(one - row["zero"]))
    if name in row and name != "dp":
        now = row[name]
        others = {*range(max(1, now - CLOSE), now + CLOSE + 1), *divisors(now).tolist(), 2 * now} - {now}
        return sorted(others, key=lambda one: (abs(math.log(one / now)), one))
    return ()


WARNING_FROM, NOTE_FROM = 0.02, 0.005
"""Share of the step from which a price is a warning, and from which it is said at all: below, it is lost in what runs
differ by from day to day (a choice)."""

LONG_BUBBLE = 0.2
"""Share of the step that a pipeline may idle (a choice: published runs stay below it)."""

VOCABULARY_UNIT = 128
"""Rows of the vocabulary per TP rank that products want: Megatron-LM `--make-vocab-size-divisible-by`."""


class Plan:
    """A job with its layout, as foot-guns ask for it."""

    def __init__(self, job: Job, layout: Mapping[str, Any], estimate: Estimate) -> None:
        self.job, self.layout, self.estimate = job, layout, estimate
        self.row = fixed_layout(job.spec, layout).row(0)
        cluster = job.spec.cluster
        self.domain = min(cluster.levels[cluster.domain_index].gpus, job.spec.gpus)
        """GPUs of one box or rack."""

    def __getattr__(self, name: str) -> int:
        try:
            return int(self.__dict__["row"][name])
        except KeyError:
            raise AttributeError(name) from None

    @property
    def microbatches(self) -> int:
        """Microbatches per step and data-parallel rank."""
        return self.estimate.plan.num_microbatches

    @cached_property
    def overlaps(self) -> tuple[str, ...]:
        """What the job overlaps."""
        return overlap_of(self.job.spec.runtime)

    def can_overlap(self, part: str) -> bool:
        """Whether the framework overlaps this by itself, or can."""
        own = load_framework(str(self.job.request["framework"]))
        return part in {*overlap_of(own.runtime), *own.space.overlap}


class Footgun(NamedTuple):
    """Something legal that costs more than it has to."""

    code: str  #: its name in answers.
    text: str  #: what it is, for the list of rules.
    options: tuple[str, ...]  #: options of the job or of the layout that it speaks of.
    found: Callable[[Plan], str]  #: says what is there, or nothing.
    instead: Callable[[Plan], Iterable[Change]]  #: other ways; the fastest that is legal and fits counts.
    least: str = ""  #: what it is called even where it costs next to nothing; empty: then it is not said.
    most: str = "warning"  #: the gravest that it is ever called.

    def severity(self, share: float) -> str:
        """Say how grave it is at a price, as a share of the step; empty where it is not worth saying."""
        if share >= WARNING_FROM:
            return self.most
        return "note" if share >= NOTE_FROM and self.most != "note" else self.least


def _inside(size: int, domain: int) -> int:
    """The largest divisor of a group's size that one box holds evenly."""
    return max(part for part in divisors(size).tolist() if domain % part == 0)


def _tp_outside(plan: Plan) -> str:
    if plan.tp <= plan.domain:
        return ""
    return f"TP {plan.tp} spans {plural(-(-plan.tp // plan.domain), 'node')} of {plural(plan.domain, 'GPU')}"


def _tp_inside(plan: Plan) -> Iterable[Change]:
    tp = _inside(plan.tp, plan.domain)
    etp = {"etp": math.gcd(plan.etp, tp)} if plan.etp > 1 else {}
    for axis in ("dp", "pp", "cp"):
        more = {} if axis == "dp" else {axis: getattr(plan, axis) * plan.tp // tp}
        yield of_layout(tp=tp, **etp, **more)


def _sharded_pipeline(plan: Plan) -> str:
    return f"ZeRO-{plan.zero} under PP {plan.pp}" if plan.zero == 3 and plan.pp > 1 else ""


OTHER_SHARDING = (of_layout(zero=1), of_layout(zero=2), of_layout(pp=1, vpp=1, schedule="1f1b"))


def _few_microbatches(plan: Plan) -> str:
    if plan.pp == 1 or plan.microbatches >= plan.pp:
        return ""
    return f"{plural(plan.microbatches, 'microbatch')} for {plan.pp} pipeline stages"


def _long_bubble(plan: Plan) -> str:
    share = plan.estimate.plan.bubble_fraction
    return f"the pipeline idles {share:.0%} of the step" if share > LONG_BUBBLE and not _few_microbatches(plan) else ""


def _shorter_bubble(plan: Plan) -> Iterable[Change]:
    for size in divisors(plan.micro_batch_size).tolist()[:-1]:
        yield of_layout(micro_batch_size=size)
    for chunks in (2, 3, 4, 6, 8):
        if plan.vpp < chunks and plan.pp > 1:
            yield of_layout(vpp=chunks)
    for stages in divisors(plan.pp).tolist()[:-1]:
        shorter = {"pp": stages} if stages > 1 else {"pp": 1, "vpp": 1, "schedule": "1f1b"}
        yield of_layout(**shorter)
        if plan.tp * plan.pp // stages <= plan.domain:
            yield of_layout(**shorter, tp=plan.tp * plan.pp // stages)
    yield of_job(gbs=plan.dp * plan.micro_batch_size * 8 * plan.pp)


def _experts_outside(plan: Plan) -> str:
    block = plan.ep * plan.etp
    if plan.ep == 1 or block <= plan.domain:
        return ""
    return f"EP {plan.ep} exchanges tokens between {plural(-(-block // plan.domain), 'node')}"


def _experts_inside(plan: Plan) -> Iterable[Change]:
    for ep in divisors(plan.ep).tolist()[:-1]:
        if ep * plan.etp <= plan.domain:
            yield of_layout(ep=ep)
            yield of_layout(ep=ep, pp=plan.pp * (plan.ep // ep))


def _recomputed(plan: Plan) -> str:
    return f"whole layers are recomputed ({plan.estimate.plan.recompute})" if plan.recompute_layers else ""


def _less_recomputed(plan: Plan) -> Iterable[Change]:
    yield from (change for change, layers in recomputed(plan.job.spec, plan.row) if layers < plan.recompute_layers)
    yield of_layout(recompute=recompute_text(CORE_ATTN, 0))


def _unpadded(plan: Plan) -> str:
    spec, own = plan.job.spec, load_framework(str(plan.job.request["framework"]))
    rows = int(spec.vocabulary_rows(plan.tp))  # type: ignore[arg-type]
    if own.vocab_multiple < VOCABULARY_UNIT or rows % VOCABULARY_UNIT == 0:
        return ""
    return f"{rows:,} rows of the vocabulary on a TP rank are not a multiple of {VOCABULARY_UNIT}"


def _without_sp(plan: Plan) -> str:
    own = load_framework(str(plan.job.request["framework"])).runtime.sequence_parallel
    return f"TP {plan.tp} without sequence parallelism" if plan.tp > 1 and not plan.sp and own else ""


def _replicated(plan: Plan) -> str:
    ranks, own = plan.dp * plan.cp, FRAMEWORKS[plan.job.spec.runtime.rule_set]
    if plan.zero or ranks == 1 or 1 not in own.zero_stages:
        return ""
    return f"{ranks} data-parallel ranks each keep the whole optimizer state"


def _nvls_off(plan: Plan) -> str:
    adds = any(one.in_network_reduction for one in plan.job.spec.cluster.levels if one.fabric in INSIDE)
    return "NVLS is switched off" if plan.job.request.get("nvls") == "off" and adds else ""


def _wide_gradients(plan: Plan) -> str:
    wide = plan.job.request.get("grad_dtype") == "fp32" and plan.job.spec.precision in {"bf16", "fp8", "fp4"}
    return "gradients are reduced in fp32" if wide and plan.dp * plan.cp > 1 else ""


def _overlap_off(part: str, text: str, what: str, matters: Callable[[Plan], bool], most: str = "warning") -> Footgun:
    """Return the foot-gun of what a framework can overlap, and a job that it matters to does not."""
    return Footgun(
        f"{part}_overlap_off", text, ("overlap",),
        lambda plan: what if part not in plan.overlaps and matters(plan) and plan.can_overlap(part) else "",
        lambda plan: (of_job(overlap=overlap_name([*plan.overlaps, part])),), most=most,
    )  # fmt: skip


_BATCH = ("gbs", "micro_batch_size", "pp")
FOOTGUNS = (
    Footgun("tp_across_nodes", "TP spans several NVLink domains", ("tp",), _tp_outside, _tp_inside),
    Footgun("zero3_with_pp", "ZeRO-3 under a pipeline", ("zero", "pp"), _sharded_pipeline, lambda _: OTHER_SHARDING),
    Footgun("few_microbatches", "fewer microbatches than pipeline stages", _BATCH, _few_microbatches, _shorter_bubble),
    Footgun("long_bubble", f"a pipeline idles more than {LONG_BUBBLE:.0%} of the step", (*_BATCH, "vpp"), _long_bubble,
            _shorter_bubble),
    Footgun("ep_over_slow_links", "EP spans several NVLink domains", ("ep",), _experts_outside, _experts_inside),
    Footgun("needless_recompute", "whole layers are recomputed with memory to spare", ("recompute",), _recomputed,
            _less_recomputed),
    Footgun("unpadded_vocabulary", f"the vocabulary of a TP rank is not a multiple of {VOCABULARY_UNIT}",
            ("vocab_multiple", "vocab"), _unpadded, lambda _: (of_job(vocab_multiple=VOCABULARY_UNIT),), "note"),
    Footgun("tp_without_sp", "TP without sequence parallelism", ("sp", "tp"), _without_sp,
            lambda _: (of_layout(sp="on"),), "note"),
    _overlap_off("dp", "gradient and parameter communication is fully exposed",
                 "data-parallel communication is not overlapped", lambda plan: plan.dp * plan.cp > 1),
    _overlap_off("tp", "TP collectives are not overlapped with their GEMMs", "TP communication is not overlapped",
                 lambda plan: plan.tp > 1 and bool(plan.sp),
                 "note"),  # it takes buffers of Transformer Engine or a compiler, which not every system has
    Footgun("replicated_optimizer", "DP without ZeRO or a distributed optimizer", ("zero",), _replicated,
            lambda _: (of_layout(zero=1),), "note"),
    Footgun("nvls_off", "NVLS is switched off", ("nvls",), _nvls_off, lambda _: (of_job(nvls="on"),), "note"),
    Footgun("fp32_gradients", "gradients are reduced in fp32", ("grad_dtype",), _wide_gradients,
            lambda _: (of_job(grad_dtype="bf16"),), most="note"),
)  # fmt: skip


def footgun_findings(plan: Plan) -> Iterator[Remark]:
    """Yield the foot-guns of a job that has another way, with what they cost against the best one."""
    own = plan.estimate.plan
    for footgun in FOOTGUNS:
        said = footgun.found(plan)
        others = legal_neighbours(plan.job, plan.layout, footgun.instead(plan)) if said else []
        fitting = [(_cost_s(own, one), one) for one in others if _spare(plan, one)]
        worth_s = NOTE_FROM * own.step_time_s
        same = [pair for pair in fitting if "gbs" not in pair[1].change.job and pair[0] >= worth_s]
        if fitting:
            cost_s, other = max(same or fitting, key=lambda pair: pair[0])
            made_to_fit = own.fit != "fits" and other.fit == "fits"
            severity = footgun.most if made_to_fit else footgun.severity(cost_s / own.step_time_s)
            if severity:
                text = f"{said}; {_instead(plan, other, cost_s)}"
                yield Remark(footgun.code, severity, text, footgun.options, max(cost_s, 0.0))


def _instead(plan: Plan, other: Neighbour, cost_s: float) -> str:
    """Say the other way with what it takes."""
    row, now, options = plan.estimate.plan, {**plan.row, "schedule": "1f1b"}, other.change.options
    change = " ".join(f"{name} {value}" for name, value in options.items() if now.get(name) != value)
    share, memory = cost_s / row.step_time_s, f"{other.memory_gib:.1f} GiB ({row.memory_gib:.1f} now)"
    if "gbs" in options:
        return f"with {change} as many tokens take {in_words(1 - share, TIME)}"
    saved = in_words(1 - share, TIME, f"the {format_seconds(row.step_time_s)} of now")
    return f"with {change} a step takes {format_seconds(other.step_time_s)}, {saved}, and {memory}"


def _cost_s(own: PlanRow, other: Neighbour) -> float:
    """Return what a step takes longer than so many sequences take the other way [s]."""
    return own.step_time_s - other.step_time_s * own.global_batch_size / other.spec.global_batch_size


SAME_MEMORY = 0.01
"""Share of its memory that a change may add and still count as taking no more (a choice)."""

MEMORY_MARGIN = 0.07
"""Share by which memory may be underestimated and a change that takes more still be worth naming (a choice)."""


def _spare(plan: Plan, other: Neighbour) -> bool:
    """Whether the other way fits as well as this; if it takes more memory, with room for what predictions are off."""
    own, limit = plan.estimate.plan, plan.job.spec.comfortable_bytes / GIB
    roomy = other.memory_gib <= own.memory_gib * (1 + SAME_MEMORY) or other.memory_gib * (1 + MEMORY_MARGIN) <= limit
    return roomy and other.fits_as(own.fit)
