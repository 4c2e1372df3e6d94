"""Job variants: one job for each combination of what an option may have several values of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, cast

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import ONE_F_ONE_B, SCHEDULES
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.layouts.ranks import CP_COMMS
from gpuscale.layouts.stages import SPLITS
from gpuscale.placement.groups import parse_order
from gpuscale.planning.fullspace import full_values
from gpuscale.planning.jobs import (
    DEFAULT_CLUSTER,
    DEFAULT_FRAMEWORK,
    JOB_PRECISIONS,
    Job,
    JobOptions,
    Presets,
    build_job,
    choice,
    offload_name,
    parse_offload,
)
from gpuscale.planning.layouts import parse_schedule
from gpuscale.planning.overlaps import overlap_name, overlap_of, parse_overlap
from gpuscale.planning.question import SPACES, Numbers, PlanOptions, Question, check_prices
from gpuscale.planning.ranges import batch_sizes, gpu_counts, parse_names, parse_numbers, sequence_lengths
from gpuscale.presets.frameworks import load_framework
from gpuscale.search.objectives import Constraints, Economics
from gpuscale.specs.cluster import ClusterSpec

MAX_VARIANTS = 500
"""Jobs that one question may compare: at a second each, minutes."""

Value = int | str

FLAGS = {
    "cluster": "--cluster",
    "gpus": "--gpus",
    "seq": "--seq",
    "gbs": "--gbs",
    "framework": "--framework",
    "precision": "--precision",
    "offload": "--offload",
    "cp_comm": "--cp-comm",
    "schedule": "--schedule",
    "axis_order": "--order",
    "pipeline_split": "--pipeline-split",
    "overlap": "--overlap",
}
"""What may have several values -> its option; combinations are formed in this order, the last one varies first."""

NORMAL: dict[str, Callable[[str], str]] = {
    "framework": str,
    "precision": lambda text: choice("--precision", text, JOB_PRECISIONS),
    "offload": lambda text: offload_name(parse_offload(text)),
    "cp_comm": lambda text: choice("--cp-comm", text, CP_COMMS),
    "schedule": lambda text: schedule_text(parse_schedule(text, 0)),
    "axis_order": lambda text: "-".join(parse_order(text)),
    "pipeline_split": lambda text: choice("--pipeline-split", text, SPLITS),
    "overlap": lambda text: overlap_name(parse_overlap(text)),
}
"""Those of `FLAGS` that are names -> their usual spelling; an unknown one is refused."""

Combination = dict[str, Value]


def schedule_text(code: int) -> str:
    """Name a schedule by its code."""
    return next(name for name, known in SCHEDULES.items() if known == code)


@dataclass(frozen=True)
class Variant:
    """One job to be searched.

    Attributes:
        choice: what sets it apart from the others: entry of `FLAGS` -> value.
        terms: what is known of money and length of the training on its cluster.
    """

    job: Job
    pins: Pins
    choice: Mapping[str, Value]
    terms: Economics

    def limits(self, question: Question) -> Constraints | None:
        """Return the constraints of this job, if there are any."""
        return Constraints(question.bounds, self.job.spec, self.terms) if question.bounds else None


@dataclass(frozen=True)
class Variants:
    """All jobs of a question.

    Attributes:
        tried: the jobs, in the order of their options.
        skipped: combinations that cannot be, and why.
        full: all that the framework can run was asked for.
    """

    tried: tuple[Variant, ...]
    skipped: tuple[str, ...]
    full: bool = False


def make_variants(model: str, gpus: Numbers, options: PlanOptions, pins: Pins, question: Question) -> Variants:
    """Build the job of every combination.

    A combination that cannot be (fp4 on a GPU without it) is left out where each of its values is used by another one.

    Raises:
        InputError: unusable values, more than `MAX_VARIANTS` combinations, or a value of which no combination can be.
    """
    maker = _Maker(model, gpus, options)
    combinations = list(islice(maker.combinations(), MAX_VARIANTS + 1))
    if len(combinations) > MAX_VARIANTS:
        what = ", ".join(FLAGS[name] for name in maker.several()) or "--space full"
        raise InputError(
            f"more than {MAX_VARIANTS} combinations of {what}",
            hint="give fewer values, or ask one question after the other",
        )
    jobs: list[tuple[Combination, Job]] = []
    failed: list[tuple[Combination, InputError]] = []
    for combination in combinations:
        try:
            jobs.append((combination, maker.job(combination)))
        except InputError as error:
            failed.append((combination, error))
    _refuse_useless(maker, [combination for combination, _ in jobs], failed)
    check_prices(question, [name for pair in jobs for name in (str(pair[0]["cluster"]), pair[1].spec.cluster.name)])
    skipped = tuple(_skipped_text(*pair, maker) for pair in failed)
    return Variants(tuple(_tried(jobs, pins, question)), skipped, maker.space == "full")


def _tried(jobs: list[tuple[Combination, Job]], pins: Pins, question: Question) -> Iterator[Variant]:
    """Make a variant of every job that can be, saying of each what sets it apart."""
    apart = [name for name in FLAGS if len({_value(job, combination, name) for combination, job in jobs}) > 1]
    asked = [name for name in apart if any(name in combination for combination, _ in jobs)]
    base: dict[tuple[Value, Value | None], Combination] = {}
    kinds = {str(combination["cp_comm"]) for combination, _ in jobs if "cp_comm" in combination}
    for combination, job in jobs:
        first = base.setdefault((combination["cluster"], combination.get("framework")), combination)
        terms = question.terms(str(combination["cluster"]), job.spec.cluster.name)
        chosen = {name: _value(job, combination, name) for name in asked}
        yield Variant(job, _own_pins(pins, combination, first, kinds), chosen, terms)


class _Maker:
    """Forms combinations and builds their jobs, reading each preset once."""

    def __init__(self, model: str, gpus: Numbers, options: PlanOptions) -> None:
        given = cast("Mapping[str, Any]", options)
        self.model = model
        self.presets = Presets()
        self.space = choice("--space", given.get("space", "default"), SPACES)
        self.clusters = parse_names(given.get("cluster", DEFAULT_CLUSTER), FLAGS["cluster"], split=False)
        self.numbers = {"gpus": parse_numbers(gpus, FLAGS["gpus"])}
        self.numbers |= {name: parse_numbers(given[name], FLAGS[name]) for name in ("seq", "gbs") if name in given}
        self.names = {name: _read_names(name, given[name]) for name in NORMAL if name in given}
        self.asked = ("cluster", *self.numbers, *self.names)
        self.given_cluster = "cluster" in given
        self.fixed = {name: given[name] for name in JobOptions.__annotations__ if name in given and name not in FLAGS}
        specs = [self.presets.cluster(name) for name in self.clusters]  # an alias and the name it stands for are one
        self.clusters = tuple(name for at, name in enumerate(self.clusters) if specs.index(specs[at]) == at)

    def several(self) -> list[str]:
        """Names of what has several values."""
        many = {"cluster": len(self.clusters)} | {name: len(values) for name, values in self.names.items()}
        many |= {name: 1 if isinstance(one, tuple) and len(one) == 1 else 2 for name, one in self.numbers.items()}
        return [name for name in FLAGS if many.get(name, 1) > 1]

    def combinations(self) -> Iterator[Combination]:
        """Yield every combination, as option -> value; options that were not given are left out."""
        for cluster in self.clusters:
            whole = self._cluster(cluster)
            for gpus in gpu_counts(self.numbers["gpus"], whole):
                for lengths in self._lengths(gpus):
                    for names in self._names(whole):
                        yield {"cluster": cluster, "gpus": gpus, **lengths, **names}

    def _cluster(self, name: str) -> ClusterSpec:
        whole = self.presets.cluster(name)
        nodes = self.fixed.get("gpus_per_node")
        return whole.with_gpus_per_node(nodes) if isinstance(nodes, int) else whole

    def _lengths(self, gpus: int) -> Iterator[Combination]:
        lists: dict[str, tuple[int, ...]] = {}
        if "seq" in self.numbers:
            lists["seq"] = sequence_lengths(self.numbers["seq"])
        if "gbs" in self.numbers:
            lists["gbs"] = batch_sizes(self.numbers["gbs"], gpus)
        for values in product(*lists.values()):
            yield dict(zip(lists, values, strict=True))

    def _names(self, cluster: ClusterSpec) -> Iterator[Combination]:
        for framework in self.names.get("framework", (DEFAULT_FRAMEWORK,)):
            lists: dict[str, tuple[str, ...]] = {"framework": (framework,)} if "framework" in self.names else {}
            if self.space == "full":
                lists |= full_values(load_framework(framework), self.presets.model(self.model), cluster)
            lists |= {name: values for name, values in self.names.items() if name != "framework"}
            for chosen in product(*lists.values()):
                yield dict(zip(lists, chosen, strict=True))

    def job(self, combination: Combination) -> Job:
        """Build the job of one combination."""
        own = {name: value for name, value in combination.items() if name not in {"gpus", "schedule"}}
        if not self.given_cluster:
            del own["cluster"]
        options = cast("JobOptions", {**self.fixed, **own})
        job = build_job(self.model, int(combination["gpus"]), options, self.presets)
        if "schedule" not in combination:
            return job
        return replace(job, assumptions={**job.assumptions, "schedule": str(combination["schedule"])})


def _read_names(name: str, given: Any) -> tuple[str, ...]:
    """Read the values of a name, each in its usual spelling; repetitions are dropped."""
    return tuple(dict.fromkeys(NORMAL[name](value) for value in parse_names(given, FLAGS[name])))


def _refuse_useless(maker: _Maker, built: list[Combination], failed: list[tuple[Combination, InputError]]) -> None:
    """Refuse a value of which no combination can be, with what is wrong with its first."""
    for combination, error in failed:
        if any(all(other[name] != combination[name] for other in built) for name in maker.asked):
            raise error


def _skipped_text(combination: Combination, error: InputError, maker: _Maker) -> str:
    shown = ", ".join(f"{combination[name]}" for name in maker.several() if name in combination)
    return f"{shown}: {error.message}"


def _value(job: Job, combination: Combination, name: str) -> Value:
    """What a job has of an option, whether it was given or not."""
    if name in combination:
        return combination[name]
    runtime = job.spec.runtime
    own = {
        "offload": "none",
        "cp_comm": runtime.cp_comm,
        "schedule": schedule_text(ONE_F_ONE_B),
        "axis_order": "-".join(job.spec.axis_order),
        "pipeline_split": runtime.pipeline_split,
        "overlap": overlap_name(overlap_of(runtime)),
    }
    return own[name] if name in own else cast("Value", job.request[name])


def _own_pins(pins: Pins, combination: Combination, base: Combination, kinds: Set[str]) -> Pins:
    """Return the pins of a combination: its schedule, and without what another one holds already.

    Where a value makes no difference (the exchange of context parallelism at CP 1), only the job of the first value is
    searched for those layouts.

    Args:
        base: the first combination of the same cluster and framework.
        kinds: all kinds of context parallelism that are searched.
    """
    if combination.get("cp_comm") == "a2a+p2p":
        pins = replace(pins, cp_elsewhere=tuple(kind for kind in ("a2a", "p2p") if kind in kinds))
    if "schedule" in combination:
        pins = replace(pins, schedule=parse_schedule(str(combination["schedule"]), 0))
    for name, needed in NEEDED.items():
        if name in combination and combination[name] != base[name]:
            degree = needed(str(base[name]), str(combination[name]))
            if degree:
                pins = _without_one(pins, degree)
    return pins


def _without_one(pins: Pins, degree: str) -> Pins:
    pin = pins.degrees.get(degree, Pin())
    return replace(pins, degrees={**pins.degrees, degree: Pin(pin.ranges, (*pin.excluded, (0, 1)))})


def _order_needs(one: str, other: str) -> str:
    """The degree without which two orders form the same groups: PP, where only its place differs."""
    first, second = ([name for name in order.split("-") if name != "pp"] for order in (one, other))
    return "pp" if first == second else ""


def _overlap_needs(one: str, other: str) -> str:
    """The degree without which two sets of overlaps are the same: TP or EP, where only that differs."""
    differ = set(parse_overlap(one)) ^ set(parse_overlap(other))
    return differ.pop() if len(differ) == 1 and "dp" not in differ else ""


NEEDED: dict[str, Callable[[str, str], str]] = {
    "cp_comm": lambda _one, _other: "cp",
    "pipeline_split": lambda _one, _other: "pp",
    "axis_order": _order_needs,
    "overlap": _overlap_needs,
}
"""Option -> which degree must be above 1 for two of its values to differ; empty where that is not a single one."""

__all__ = ["FLAGS", "MAX_VARIANTS", "Variant", "Variants", "make_variants"]
