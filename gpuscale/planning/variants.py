"""Job variants: one job for each combination of what an option may have several values of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any, NamedTuple

from gpuscale import request
from gpuscale.choices import AXES, MAX_GPUS
from gpuscale.energy import power_text
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.layouts.space import odd_factor
from gpuscale.layouts.stages import starts_dense
from gpuscale.planning.jobs import (
    Job,
    Presets,
    build_job,
    check_prices,
    constraints,
    economics,
    own_dispatcher,
    precision_runs,
    usual_framework,
)
from gpuscale.planning.layouts import domain_groups, make_pins
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.rates import load_rates, price_text
from gpuscale.search.objectives import Constraints, Economics
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import OF_EXPERTS_ALONE, FrameworkSpec, RuntimeSpec
from gpuscale.specs.model import ModelSpec
from gpuscale.units import enumerated

MAX_VARIANTS = 5000
"""Jobs that one question may compare: at half a second each."""

MAX_COUNTS = 24

Value = int | str
Combination = dict[str, Value]


class Variant(NamedTuple):
    """One job to be searched."""

    job: Job
    pins: Pins
    choice: Mapping[str, Value]  #: what sets it apart from the others: option -> value.
    economics: Economics  #: what is known of money and length of the training on its cluster.
    constraints: Constraints | None  #: the constraints of this job, if there are any.


class Variants(NamedTuple):
    """All jobs of a question."""

    tried: tuple[Variant, ...]  #: the jobs, in the order of their options.
    skipped: tuple[str, ...]  #: combinations that cannot be, and why.
    full: bool = False  #: all that the framework can run was asked for.


def make_variants(
    options: Mapping[str, Any],
    layout: Mapping[str, Any],
    question: request.Question,
    presets: Presets | None = None,
    *,
    usual: bool = False,
) -> Variants:
    """Build the job of every combination of options and of what a layout may have. One that cannot be (fp4 on a GPU
    without it) is left out where each of its values is used by another one. `usual`: also with the settings that the
    framework's users change for mixtures of experts (`SpaceSpec.usual`).

    Raises:
        InputError: unusable values, more than `MAX_VARIANTS` combinations, or a value of which no combination can be.
    """
    fixed = {name: value for name, value in options.items() if name not in request.COMPARED}
    pins = make_pins({name: value for name, value in layout.items() if name not in request.COMPARED})
    given = {**options, **layout}
    values = {name: request.read_several(name, given[name]) for name in request.COMPARED if name in given}
    default = request.declared(request.JobOptions)["cluster"].default
    base = request.read(request.JobOptions, {**fixed, "gpus": 1, "cluster": values.get("cluster", [default])[0]})  # type: ignore[index]
    presets = presets or Presets()
    tried = _combinations(base, values, presets, usual=usual, full=question.space == "full")
    combinations = list(islice(tried, MAX_VARIANTS + 1))
    several = [name for name, found in values.items() if isinstance(found, request.Range) or len(found) > 1]
    if len(combinations) > MAX_VARIANTS:
        what = ", ".join(f"`{name}`" for name in several) or "`space=full`"
        hint = "give fewer values, or ask one question after the other"
        raise InputError(f"more than {MAX_VARIANTS} combinations of {what}", hint=hint)
    pinned = {name: pins.degrees[name].single() for name in ("tp", "ep", "etp") if name in pins.degrees}
    groups = domain_groups({name: size for name, size in pinned.items() if size is not None})
    jobs: list[tuple[Combination, Job]] = []
    failed: list[tuple[Combination, InputError]] = []
    for combination in combinations:
        own = {name: value for name, value in combination.items() if name not in request.PINS}
        if "cluster" not in options:
            del own["cluster"]
        try:
            job = build_job(request.read(request.JobOptions, fixed | own), presets, groups)
        except InputError as error:
            failed.append((combination, error))
            continue
        job = job._replace(spec=replace(job.spec, tight=question.tight))
        jobs.append((combination, job._replace(assumptions={**job.assumptions, **_of_layout(combination)})))
    for combination, refusal in failed:  # a value of which no combination can be
        if any(all(other[name] != combination[name] for other, _ in jobs) for name in {*values, "cluster"}):
            raise refusal
    check_prices(question, [name for pair in jobs for name in (str(pair[0]["cluster"]), pair[1].spec.cluster.name)])
    shown = [", ".join(f"{failure[name]}" for name in several if name in failure) for failure, _ in failed]
    skipped = tuple(f"{text}: {refusal.message}" for text, (_, refusal) in zip(shown, failed, strict=True))
    return Variants(tuple(_tried(_distinct(jobs), pins, question)), skipped, question.space == "full")


def _distinct(jobs: list[tuple[Combination, Job]]) -> list[tuple[Combination, Job]]:
    """Drop what is another spelling of a job before it: a batch in tokens, an alias, a month of the same generation."""
    alike: dict[object, list[tuple[Combination, Job]]] = {}  # whole jobs compare slowly, thousands with each other
    found: list[tuple[Combination, Job]] = []
    for own, job in jobs:
        spec, layout = job.spec, _of_layout(own)
        few = (spec.gpus, spec.sequence, spec.global_batch_size, spec.precision, spec.states, spec.offload)
        known = alike.setdefault((*few, spec.axis_order, spec.runtime), [])
        if all(spec != one.spec or layout != _of_layout(other) for other, one in known):
            known.append((own, job))
            found.append((own, job))
    return found


def _of_layout(combination: Combination) -> dict[str, str]:
    return {name: str(value) for name, value in combination.items() if name in request.PINS}


def _tried(jobs: list[tuple[Combination, Job]], pins: Pins, question: request.Question) -> Iterator[Variant]:
    """Make a variant of every job that can be, saying of each what sets it apart."""
    apart = [name for name in request.COMPARED if len({_value(job, own, name) for own, job in jobs}) > 1]
    asked = [name for name in apart if any(name in combination for combination, _ in jobs)]
    base: dict[tuple[Value, Value | None], Combination] = {}
    asked_constraints, runtimes = constraints(question), [job.spec.runtime for _, job in jobs]
    for combination, job in jobs:
        own = replace(pins, cp_elsewhere=job.spec.runtime.split_as(runtimes))
        first = base.setdefault((combination["cluster"], combination.get("framework")), combination)
        known = economics(question, job.spec, str(combination["cluster"]), job.spec.cluster.name)
        said = {"power": power_text(job.spec, load_rates(question.rate))} if known.power else {}
        if question.price_term and known.usd_per_gpu_hour is not None and not question.gpu_hour_price:
            said["price"] = price_text(job.spec.cluster.name, job.spec.cluster.gpu.name, question.price_term)
        yield Variant(
            job=job._replace(assumptions=job.assumptions | said),
            pins=_own_pins(own, combination, first, str(job.request.get("reshard"))),
            choice={name: _value(job, combination, name) for name in asked},
            economics=known,
            constraints=Constraints(asked_constraints, job.spec, known) if asked_constraints else None,
        )


def _combinations(
    base: request.JobOptions, values: Mapping[str, Any], presets: Presets, *, usual: bool, full: bool
) -> Iterator[Combination]:
    given = values.get("cluster", (base.cluster,))
    specs = [presets.cluster(name) for name in given]  # an alias and the name that it stands for are one
    clusters = [name for at, name in enumerate(given) if specs.index(specs[at]) == at]
    names = {name: found for name, found in values.items() if name not in {"cluster", "gpus", "seq", "gbs"}}
    for cluster in clusters:
        whole = presets.cluster_of(replace(base, cluster=cluster))
        counts = values["gpus"]
        for gpus in gpu_counts(counts, whole) if isinstance(counts, request.Range) else counts:
            lists: dict[str, tuple[Value, ...]] = {"cluster": (cluster,), "gpus": (gpus,)}
            for name in ("seq", "gbs"):
                found = values.get(name, ())
                if isinstance(found, request.Range):
                    found = batch_sizes(found, gpus) if name == "gbs" else sequence_lengths(found)
                lists |= {name: found} if found else {}
            for framework in names.get("framework", (usual_framework(base),)):
                own: dict[str, tuple[Value, ...]] = {"framework": (framework,)} if "framework" in names else {}
                if full or usual:
                    own |= settings_to_try(load_framework(framework), presets.model(base.model), whole, full=full)
                own |= {name: found for name, found in names.items() if name != "framework"}
                tried = lists | own
                for chosen in product(*tried.values()):
                    yield dict(zip(tried, chosen, strict=True))


def settings_to_try(
    framework: FrameworkSpec, model: ModelSpec, cluster: ClusterSpec, *, full: bool = True
) -> dict[str, tuple[str, ...]]:
    """Return option -> values to try, what the framework does by itself first; options with one value are left out.
    They are all that the framework can run (`full`), else what its users set for mixtures of experts. Left out are
    values that cannot be on this cluster or for this model, and such as never pay in the cost model: overlaps switched
    off, and recipes of a precision beside the framework's own."""
    space, runtime = framework.space, framework.runtime
    own = "bf16" if "bf16" in cluster.gpu.peak_flops_per_s else "fp16"
    on = request.overlap_of(runtime)
    can_hide = [name for name in space.overlap if name != "ep" or model.is_moe]
    more = request.overlap_name([name for name in request.OVERLAPS if name in {*on, *can_hide}])
    can = {
        "precision": [name for name in space.precision if precision_runs(name, cluster.gpu, runtime.fp8_recipe)],
        "offload": space.offload if cluster.host else (),
        "pipeline_split": space.pipeline_split if starts_dense(model) else (),
        "overlap": (more,),
        "dispatcher": space.dispatcher if model.is_moe else (),
    }
    usual = _usual(runtime) | {"precision": own, "dispatcher": own_dispatcher(runtime, cluster)}
    usually = [name for name in space.usual if model.is_moe or name not in OF_EXPERTS_ALONE]
    tried = [one.name for one in fields(space) if one.name != "usual"] if full else usually
    found = {
        name: dict.fromkeys((usual.get(name) or getattr(runtime, name), *can.get(name, getattr(space, name))))
        for name in tried
    }
    return {name: tuple(values) for name, values in found.items() if len(values) > 1}


def untried_settings(jobs: Iterable[Job]) -> Iterator[str]:
    """Say which settings a plan of one job alone would try others of."""
    names: dict[str, None] = {}
    for job in jobs:
        framework, spec = load_framework(str(job.request["framework"])), job.spec
        found = settings_to_try(framework, spec.model, spec.cluster, full=False)
        names |= dict.fromkeys(f"`{name}`" for name in found if name not in job.request)
    if names:
        own = f"{enumerated(list(names), 'and')} {'is' if len(names) == 1 else 'are'} the framework's own"
        yield f"{own}: others are tried where one job is ranked by time"


def _usual(runtime: RuntimeSpec) -> dict[str, str]:
    """Return what a job has of options that are not fields of its runtime, where nothing is said."""
    return {
        "offload": "none",
        "moment_dtype": request.declared(request.JobOptions)["moment_dtype"].default,
        "schedule": request.schedule_text(ONE_F_ONE_B),
        "axis_order": "-".join(AXES),
        "overlap": request.overlap_name(request.overlap_of(runtime)),
    }


def gpu_counts(counts: request.Range, cluster: ClusterSpec) -> tuple[int, ...]:
    """GPU counts of a range to try on a cluster: of a node's GPUs n, the divisors of n, n x 2^k and 3 x n x 2^k, which
    have many divisors, and the ends themselves where they are whole nodes, as far as the cluster has them or can be
    extended.

    Raises:
        InputError: the range holds none, or more than `MAX_COUNTS`.
    """
    node = cluster.host.gpus if cluster.host else cluster.node_gpus
    most = MAX_GPUS if cluster.extendable else cluster.gpus
    found = {size for size in range(1, node) if node % size == 0}
    found |= set(_doublings(node, min(counts.high, most)))
    found |= {end for end in (counts.low, counts.high) if end and end % node == 0}
    kept = tuple(sorted(size for size in found if counts.low <= size <= min(counts.high, most)))
    if not kept:
        message = f"{counts.low}..{counts.high} holds no GPU count to try on {cluster.name}"
        hint = f"counts are {node} x 2^k and {3 * node} x 2^k, up to {most:,}; or list them: `gpus=256,640`"
        raise InputError(message, field="gpus", hint=hint)
    if len(kept) > MAX_COUNTS:
        message = f"{counts.low}..{counts.high} is {len(kept)} searches on {cluster.name}, at most {MAX_COUNTS}"
        hint = f"narrow it: {kept[-MAX_COUNTS]}..{kept[-1]} is {MAX_COUNTS}; or list counts: `gpus=256,640`"
        raise InputError(message, field="gpus", hint=hint)
    return kept


def batch_sizes(sizes: request.Range, gpus: int) -> tuple[Value, ...]:
    """Global batches of a range to try: GPUs x 2^k and 3 x GPUs x 2^k, k also below 0 where whole, and both ends; of
    tokens the low end doubled again and again, and the high end."""
    if sizes.tokens:
        return tuple(request.parse_batch(f"{tokens}tok") for tokens in sequence_lengths(sizes))
    found = {sizes.low, sizes.high, *_doublings(odd_factor(gpus), sizes.high)}
    return tuple(sorted(size for size in found if size >= sizes.low))


def sequence_lengths(lengths: request.Range) -> tuple[int, ...]:
    """Sequence lengths of a range to try: the low end doubled again and again, and the high end."""
    doubled = (lengths.low << k for k in range(lengths.high.bit_length()))
    return (*(length for length in doubled if length < lengths.high), lengths.high)


def _doublings(unit: int, high: int) -> list[int]:
    """Return unit x 2^k and 3 x unit x 2^k up to `high`."""
    return [start << k for start in (unit, 3 * unit) for k in range(high.bit_length()) if start << k <= high]


def _value(job: Job, combination: Combination, name: str) -> Value:
    if name in combination and name != "gbs":  # a batch in tokens is another number of sequences in each job
        return combination[name]
    runtime = job.spec.runtime
    own: dict[str, Any] = _usual(runtime) | {
        "axis_order": "-".join(job.spec.axis_order),
        "gbs": job.spec.global_batch_size,
    }
    found: Value = own.get(name) or getattr(runtime, name, None) or job.request[name]  # type: ignore[assignment]
    return found


def _own_pins(pins: Pins, combination: Combination, base: Combination, reshard: str) -> Pins:
    """Return the pins of a combination: its schedule, and without what another one holds already. Where a value makes
    no difference (the exchange of context parallelism at CP 1), only the job of the first value is searched for those
    layouts; `base` is the first combination of the same cluster and framework."""
    if reshard in {"always", "never"}:  # ZeRO-3 does, ZeRO-2 does not
        pins = excluding(pins, "zero", (2, 2) if reshard == "always" else (3, 3))
    pins = replace(pins, schedule=make_pins(_of_layout(combination)).schedule)
    for name, value in combination.items():
        degree = _needed(name, str(base[name]), str(value)) if value != base[name] else ""
        if degree:
            pins = excluding(pins, degree, (0, 1))
    return pins


def excluding(pins: Pins, degree: str, values: tuple[int, int]) -> Pins:
    """Return pins that also exclude a range of values of a degree."""
    pin = pins.degrees.get(degree, Pin())
    return replace(pins, degrees={**pins.degrees, degree: Pin(pin.ranges, (*pin.excluded, values))})


def _needed(name: str, one: str, other: str) -> str:
    """Return the degree that must be above 1 for two values of an option to differ; nothing where it is not one."""
    if name == "axis_order":
        first, second = ([axis for axis in order.split("-") if axis != "pp"] for order in (one, other))
        return "pp" if first == second else ""  # only the place of PP differs
    if name == "overlap":
        differ = set(request.parse_overlap(one)) ^ set(request.parse_overlap(other))
        return differ.pop() if len(differ) == 1 and "dp" not in differ else ""
    return request.OPTIONS[name].needs
