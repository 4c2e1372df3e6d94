"""A study as its file has it: the options of a question, each with one value or several, and what-if clusters.

    [study]
    model = ["llama3-8b", "llama3-70b"]
    gpus = [64, 128]
    precision = ["bf16", "fp8"]

    [[clusters]]
    name = "second-port"
    base = "dgx-h100-superpod"
    network = 2.0

All combinations of the values are asked. What belongs together stands in `[[questions]]`: each of them is such a
product of its own, beside what `[study]` says for all.

    [[questions]]
    model = "llama3-8b"
    cluster = "dgx-h100-superpod"

    [[questions]]
    model = "llama3-70b"
    cluster = ["gb200-nvl72", "second-port"]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.arguments import plain
from gpuscale.collectives.estimate import sweep_sizes
from gpuscale.errors import GpuscaleError, InputError, did_you_mean, shown
from gpuscale.files import is_there, reads
from gpuscale.planning.jobs import CONSTRAINTS, Presets
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.planfile import from_folder
from gpuscale.planning.variants import batch_sizes, gpu_counts, sequence_lengths
from gpuscale.presets.files import Document, KeyPath, read_toml
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.rates import USUAL_TERM, one_term, prices_of
from gpuscale.presets.settings import with_settings
from gpuscale.presets.tables import stated_value
from gpuscale.request import ALL_CLUSTERS, Question, Range, declared, read, read_several, sequences_of, size_of
from gpuscale.search.objectives import OBJECTIVES, PRICE, TOKENS
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.studies.cases import TASKS, Case, is_pin, options_of
from gpuscale.studies.digests import Digests
from gpuscale.studies.whatif import Machine, read_machines
from gpuscale.training.failures import failure_rate
from gpuscale.units import NUMBER, refuse_grouped

MAX_QUESTIONS = 1_000_000
TOP = ("study", "clusters", "questions")
PATHS = ("model", "cluster", "calibration", "failure_rate")
"""Options that may be the path of a file."""

WHOLE_TEXT = ("set", "rate", "pareto")
"""Options one value of which is written with commas."""


@dataclass(frozen=True)
class Grid:
    """A product of values."""

    #: option -> its values, in the order of the file; of `cluster` they are `Machine`, of `gpu_hour_price` prices of
    #: clusters by what they are called.
    options: Mapping[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(map(len, self.options.values()))


@dataclass(frozen=True)
class Study:
    """What a study asks."""

    task: str  #: one of `gpuscale.studies.cases.TASKS`.
    grids: tuple[Grid, ...]  #: products of values, one after the other.
    digests: Digests  #: finds what the answers rest on.

    @property
    def size(self) -> int:
        """How many questions it has; of several grids that overlap, those that come twice count twice."""
        return sum(grid.size for grid in self.grids)

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Option -> all its values as rows have them, in the order of the file; what-if clusters by their names."""
        found: dict[str, dict[Any, None]] = {}
        for grid in self.grids:
            for name, values in grid.options.items():
                shown = (one.label if isinstance(one, Machine) else _price_text(one) for one in values)
                found.setdefault(name, {}).update(dict.fromkeys(shown))
        return {name: tuple(values) for name, values in found.items()}

    @property
    def fixed(self) -> dict[str, Any]:
        """Options with one value."""
        return {name: values[0] for name, values in self.values.items() if len(values) == 1}

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Options with several, in the order of the file; the last one varies first."""
        return {name: values for name, values in self.values.items() if len(values) > 1}

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The clusters that it asks about."""
        return tuple(dict.fromkeys(one for grid in self.grids for one in grid.options.get("cluster", ())))

    def cases(self) -> Iterator[Case]:
        """Yield its questions in order, one at a time, each once."""
        seen: set[int] = set()
        for grid in self.grids:
            for values in product(*grid.options.values()):
                case = self._case(dict(zip(grid.options, values, strict=True)))
                if len(self.grids) > 1:  # one grid has none twice
                    key = int(case.key, 16)
                    if key in seen:
                        continue
                    seen.add(key)
                yield case

    def _case(self, chosen: dict[str, Any]) -> Case:
        machine: Machine = chosen["cluster"]
        chosen["cluster"] = machine.cluster
        settings = ",".join(filter(None, (machine.set, chosen.get("set"))))
        if settings:
            chosen["set"] = settings
        prices, own = chosen.pop("gpu_hour_price", {}), machine.usd_per_gpu_hour
        price = prices.get(machine.label, prices.get(machine.cluster, prices.get(ALL_CLUSTERS)) if own is None else own)
        if price is not None and "gpu_hour_price" in options_of(self.task):
            chosen["gpu_hour_price"] = price
        labels = {"what_if": machine.name} if machine.name else {}
        return Case(self.task, chosen, labels, self.digests.of(self.task, chosen))


def _price_text(value: Any) -> Any:
    """Return prices of clusters as a value of an axis: one of all clusters as its number."""
    if not isinstance(value, dict):
        return value
    if set(value) == {ALL_CLUSTERS}:
        return value[ALL_CLUSTERS]
    return ",".join(f"{name}={price:g}" for name, price in value.items())


@reads("study")
def read_study(source: str | Path | Mapping[str, Any] | None = None, **overrides: Any) -> Study:
    """Read a study from its file, or from what a file would hold; check every value.

    Args:
        source: path of the file, its tables, or the table `study` alone; None where `overrides` say all.
        overrides: `task`, and options in place of those of the file, also of each of `questions`; several values in a
            list or after commas.

    Raises:
        InputError: unusable input; the message names file and line.
    """
    if isinstance(source, str | Path):
        hint = "write a study: `[study]` with options of `gpuscale plan`, each a value or a list"
        document = read_toml(Path(source), hint)
    else:
        tables = plain(dict(source or {}))
        document = Document(Path("study"), tables if any(name in tables for name in TOP) else {"study": tables})
    data, given = document.data, {name: plain(value) for name, value in overrides.items() if value is not None}
    for name in data:
        if name not in TOP:
            raise document.error((name,), f"unknown table {shown(name)}", did_you_mean(str(name), TOP, "tables are"))
    common, listed = data.get("study", {}), data.get("questions", [{}])
    if not isinstance(common, Mapping):
        raise document.error(("study",), "study is not a table", "write [study] above its options")
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(one, Mapping) for one in listed):
        raise document.error(("questions",), "questions is not a list of tables", "write [[questions]] above each")
    task = given.pop("task", common.get("task", "plan"))
    if not isinstance(task, str) or task not in TASKS:
        hint = did_you_mean(str(task), TASKS, "tasks are")
        raise document.error(("study", "task"), f"unknown task {shown(task)}", hint)
    presets = Presets()
    reader = _Reader(document, task, presets, read_machines(document, presets))
    grids = []
    for index, own in enumerate(listed):
        stated = {name: _Stated(name, value, ("study", name)) for name, value in common.items() if name != "task"}
        stated |= {name: _Stated(name, value, ("questions", index, name)) for name, value in own.items()}
        stated |= {name: _Stated(name, value, ()) for name, value in given.items()}
        stated = {name: one for name, one in stated.items() if one.value is not None}  # as everywhere: not given
        grids.append(reader.grid(stated, ("questions", index) if "questions" in data else ("study",)))
    study = Study(task, tuple(grids), Digests(presets))
    if study.size > MAX_QUESTIONS:
        sizes = " x ".join(f"{len(values):,} of {name}" for name, values in study.axes.items())
        message = f"{study.size:,} questions, at most {MAX_QUESTIONS:,}: {sizes}"
        raise document.error(("study",), message, "give fewer values, or several studies")
    return study


class _Stated(NamedTuple):
    """An option as it is given; its place in the file is empty where it is not from one."""

    name: str
    value: Any
    place: KeyPath


class _Reader(NamedTuple):
    """Reads and checks the values of a study."""

    document: Document
    task: str
    presets: Presets
    machines: Mapping[str, tuple[Machine, ...]]

    def grid(self, stated: dict[str, _Stated], place: KeyPath) -> Grid:
        """Return one product of values, all of them checked."""
        known = options_of(self.task)
        for one in stated.values():
            if one.name not in known:
                hint = did_you_mean(one.name, known, f"options of {self.task} are", 3)
                raise self._error(one, InputError(f"unknown option {shown(one.name)}", hint=hint))
        missing = next((name for name in _REQUIRED[self.task == "collective"] if name not in stated), None)
        if missing:
            raise self.document.error(place, f"{missing} is missing", f"give {missing} a value or a list")
        if self.task == "train-time" and ("train_tokens" in stated) == ("days" in stated):
            what = "train_tokens and days are mutually exclusive" if "days" in stated else "how long is the training?"
            raise self.document.error(place, what, 'give train_tokens = "15T", or days = 60')
        if "cluster" not in stated:
            names = [one for one in self.machines if any(one == each.name for each in self.machines[one])]
            default = declared(known["cluster"])["cluster"].default
            stated = {"cluster": _Stated("cluster", names or default, place), **stated}
        found = {name: self._clusters(one) if name == "cluster" else self._values(one) for name, one in stated.items()}
        for machine, settings in product(found["cluster"], found.get("set", ())):
            with self._about(stated["set"]):
                with_settings(self.presets.cluster(machine.cluster), f"{machine.set},{settings}")
        self._spread(stated, found)
        if "gpu_hour_price" in stated:
            found["gpu_hour_price"] = self._prices(stated["gpu_hour_price"], found["cluster"])
        self._check_needs(stated, found)
        if self.task == "train-time":
            found |= self._one_term(stated, found)
        return Grid({name: tuple(dict.fromkeys(values)) if name != "gpu_hour_price" else values
                     for name, values in found.items()})  # fmt: skip

    def _error(self, stated: _Stated, error: GpuscaleError) -> InputError:
        if not stated.place:
            return InputError(error.message, field=stated.name, place=error.place, hint=error.hint)
        where = f"{error.place}: " if error.place else ""
        return self.document.error(stated.place, f"{stated.name}: {where}{error.message}", error.hint)

    @contextmanager
    def _about(self, stated: _Stated) -> Iterator[None]:
        """Say of what is refused inside which option it is of, and where that stands."""
        try:
            yield
        except GpuscaleError as error:
            raise self._error(stated, error) from None

    def _values(self, stated: _Stated) -> tuple[Any, ...]:
        if stated.name == "gpu_hour_price":  # whose names are those of clusters
            return ()
        with self._about(stated):
            values = list(_several(self.task, stated.name, stated.value))
            if not values or None in values:
                raise InputError("has no value", hint="give one at least, or leave it out")
            return tuple(self._checked(stated, one) for one in values)

    def _folder(self, stated: _Stated) -> Path:
        """Return the folder that paths are given from: the file's, or the working directory."""
        return self.document.path.parent if stated.place else Path()

    def _checked(self, stated: _Stated, value: Any) -> Any:
        """Return one value of an option in its usual spelling: text, number or switch; or a range."""
        name = stated.name
        kind = options_of(self.task)[name]
        if is_pin(self.task, name):
            make_pins({name: value if isinstance(value, str | int) else str(value)})  # no list in a list
            return ("on" if value else "off") if isinstance(value, bool) else str(value).strip()
        if isinstance(value, str) and ".." in value and name in {"gpus", "seq", "gbs"}:
            return read_several(name, value)
        if name in PATHS and isinstance(value, str):
            rule = "calibration" if name == "calibration" else "model"
            value = from_folder({rule: value}, self._folder(stated))[rule]
        given = {**_REQUIRED_BY.get(kind.__name__, {}), name: value}
        found = getattr(read(kind, given), name)
        if name in {"model", "framework"}:
            found = self.presets.named(f"{name}s", found)[0]
        checks: dict[str, Callable[[Any], Any]] = {
            "model": self.presets.model, "framework": load_framework, "calibration": self.presets.site,
            "failure_rate": failure_rate,
        }  # fmt: skip
        if name in checks:
            checks[name](found)
        if isinstance(found, Mapping):  # as a row has it
            return ",".join(f"{key}={one!r}" for key, one in found.items())
        return ",".join(found) if isinstance(found, tuple) else found

    def _clusters(self, stated: _Stated) -> tuple[Machine, ...]:
        """Return the clusters that are named: presets, files, what-if clusters."""
        found: list[Machine] = []
        for name in _several(self.task, stated.name, stated.value):
            if isinstance(name, str) and name in self.machines:
                found += self.machines[name]
                continue
            with self._about(stated):
                if not isinstance(name, str):
                    raise InputError(f"{shown(name)} is not text")
                found.append(Machine(self._preset(stated, name)))
                self.presets.cluster(found[-1].cluster)
        if not found:
            raise self._error(stated, InputError("there are no clusters", hint="give one at least, or leave it out"))
        return tuple(found)

    def _preset(self, stated: _Stated, name: str) -> str:
        """Return the own name of a cluster, or its path from the working directory."""
        moved = from_folder({"cluster": name}, self._folder(stated))["cluster"]
        return self.presets.named("clusters", moved)[0]

    def _spread(self, stated: Mapping[str, _Stated], found: dict[str, tuple[Any, ...]]) -> None:
        """Replace ranges by their values: GPU counts to try on any of the clusters, batches for any of the counts."""
        ranges = any(isinstance(one, Range) for one in found.get("gpus", ()))
        machines = found["cluster"] if ranges else ()
        clusters = [with_settings(self.presets.cluster(one.cluster), one.set) for one in machines]
        ways: dict[str, Callable[[Range], list[Any]]] = {
            "gpus": lambda one: sorted(set(chain.from_iterable(_counts(one, clusters)))),
            "seq": lambda one: list(sequence_lengths(one)),
            "gbs": lambda one: sorted(
                {size for gpus in found["gpus"] for size in batch_sizes(one, gpus)},
                key=lambda batch: batch if isinstance(batch, int) else size_of(batch),
            ),
        }
        for name in (one for one in ways if one in found):
            with self._about(stated[name]):
                spread = (ways[name](one) if isinstance(one, Range) else [one] for one in found[name])
                found[name] = tuple(chain.from_iterable(spread))
        for batch, sequence in product(found.get("gbs", ()), found.get("seq", ())):
            with self._about(stated["gbs"]):  # a batch in tokens is a whole number of sequences
                if isinstance(batch, str):
                    sequences_of(batch, sequence)

    def _prices(self, stated: _Stated, clusters: tuple[Machine, ...]) -> tuple[dict[str, float], ...]:
        """Return the prices to try, each of all clusters or of some by what they are called."""
        given = stated.value if isinstance(stated.value, list | tuple) else [stated.value]
        if all(isinstance(one, str) and "=" in one for one in given):
            given = [given]
        elif len(given) == 1 and isinstance(given[0], str):
            given = given[0].split(",")
        found = []
        for one in given:
            with self._about(stated):
                text = [f"{name}={price}" for name, price in one.items()] if isinstance(one, Mapping) else one
                prices = read(Question, {"gpu_hour_price": text}).gpu_hour_price
                found.append(
                    {own: price for name, price in prices.items() for own in self._called(stated, name, clusters)}
                )
        for machine, prices in product(clusters, found if len(found) > 1 else ()):
            own = machine.usd_per_gpu_hour is not None and machine.name not in prices
            if own or not {machine.name, machine.cluster, ALL_CLUSTERS} & set(prices):
                message = f"{machine.label} {'states its own price' if own else 'is not in each of the lists'}"
                hint = "each of several lists of prices names every cluster"
                raise self._error(stated, InputError(message, hint=hint))
        return tuple({tuple(sorted(prices.items())): prices for prices in found}.values())

    def _called(self, stated: _Stated, name: str, clusters: tuple[Machine, ...]) -> list[str]:
        """Return the clusters that a price is of, by the names that questions look for."""
        if name == ALL_CLUSTERS:
            return [name]
        if name in self.machines:
            return [one.name for one in self.machines[name]]
        own = self._preset(stated, name)
        if own not in {one.cluster for one in clusters}:
            hint = did_you_mean(name, [one.label for one in clusters], "clusters are")
            raise InputError(f"{shown(name)} is not one of the clusters", hint=hint)
        return [own]

    def _one_term(self, stated: Mapping[str, _Stated], found: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Return the term of published prices where the usual one is not that of all clusters that are compared."""
        clusters: Sequence[Machine] = found["cluster"]
        lists = found.get("gpu_hour_price", ())
        own = [
            one for one in clusters
            if one.usd_per_gpu_hour is not None
            or (lists and all({one.name, one.cluster, ALL_CLUSTERS} & set(prices) for prices in lists))
        ]  # fmt: skip
        published = {}
        for one in (one for one in clusters if one not in own):
            spec = self.presets.cluster(one.cluster)
            spec = with_settings(spec, one.set) if one.set else spec
            published[one.label] = prices_of(spec.name, spec.gpu.name)
        try:
            for asked in found.get("price_term", (None,)):
                term = one_term(published, [one.label for one in own], asked)
        except InputError as error:
            raise self._error(stated.get(str(error.field), stated["cluster"]), error) from None
        if term is None and sum(map(bool, published.values())) > 1:
            message, hint = f"no term has a published price of {', '.join(published)}", "give `gpu_hour_price` of each"
            raise self._error(stated["cluster"], InputError(message, hint=hint))
        taken = "price_term" not in stated and len(published) > 1 and term not in {None, USUAL_TERM}
        return {"price_term": (str(term).replace("_", "-"),)} if taken else {}

    def _check_needs(self, stated: Mapping[str, _Stated], found: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse objectives and constraints that need a price or the number of tokens where there is none."""
        priced = {"gpu_hour_price", "price_term"} & set(stated) or self.task == "train-time"
        priced = priced or all(one.usd_per_gpu_hour is not None for one in found["cluster"])
        known = {"train_tokens"} & set(stated) | ({PRICE} if priced else set())
        for name in ("objective", "pareto", *CONSTRAINTS):
            for value in found.get(name, ()):
                asked = () if name in CONSTRAINTS else value.split(",")
                goals = [OBJECTIVES[one] for one in asked if one] if asked else [CONSTRAINTS[name][0]]
                for lacks in (one for goal in goals for one in goal.needs if one in _NEEDED and one not in known):
                    needed, example = _NEEDED[lacks]
                    what = "it" if name in CONSTRAINTS else value
                    hint = f"add {needed} = {example}"
                    raise self._error(stated[name], InputError(f"{what} needs `{needed}`", hint=hint))


_REQUIRED = (("model", "gpus"), ("operation", "bytes"))
_REQUIRED_BY: dict[str, dict[str, Any]] = {
    "JobOptions": {"model": "any", "gpus": 1}, "Collective": {"operation": "allreduce", "bytes": 1}
}  # fmt: skip
_NEEDED = {PRICE: ("gpu_hour_price", "2.5"), TOKENS: ("train_tokens", '"15T"')}


def _counts(counts: Range, clusters: Sequence[ClusterSpec]) -> Iterator[tuple[int, ...]]:
    """Yield the GPU counts of a range to try on each cluster; none for some of them, if others have any."""
    refused: list[InputError] = []
    for cluster in clusters:
        try:
            yield gpu_counts(counts, cluster)
        except InputError as error:
            refused.append(error)
    if len(refused) == len(clusters):
        raise refused[0]


def _several(task: str, name: str, given: Any) -> Iterator[Any]:
    """Yield the values of an option as they are given: in a list, or after commas.

    One value may be a set of values of the layout, or have commas or an equals sign in it: settings, rates, objectives,
    a shape in a line, a file.
    """
    for one in given if isinstance(given, list | tuple) else [given]:
        if isinstance(one, dict) and name == "rate":
            yield ",".join(f"{key}={value}" for key, value in one.items())
        elif (
            not isinstance(one, str)
            or is_pin(task, name)
            or name in WHOLE_TEXT
            or "=" in one
            or (name in PATHS and is_there(Path(one)))
        ):
            yield one
        elif name == "bytes" and ".." in one:
            yield from sweep_sizes(one, 2)
        else:
            if isinstance(_number(task, name, "1"), int) or name in {"seq", "gbs"}:
                refuse_grouped(one, name)
            yield from (_number(task, name, part.strip()) for part in one.split(","))


def _number(task: str, name: str, text: str) -> Any:
    """Return a number or switch that is given as text where its option takes those alone, without a unit."""
    field = declared(options_of(task)[name])[name] if name in options_of(task) else None
    if field is None or field.option.normal or field.option.quantity is not NUMBER:
        return text
    return stated_value(text) if bool in field.kinds or field.number else text
