"""A study as its file has it (docs/studies.md): `[study]`, the options of a question, each with one value or several,
of which all combinations are asked; `[[questions]]`, products of their own beside what `[study]` says for all; and
`[[clusters]]`, presets with changed numbers, each combination a cluster of its own. These become the option `set`, so
that `gpuscale plan` with this cluster and this `set` answers the same question.

What its answers rest on is kept as digests: a change of version, preset or file is noticed where it matters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from gpuscale.arguments import plain
from gpuscale.choices import MAX_GPUS
from gpuscale.collectives.estimate import ALGORITHMS, sweep_sizes
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.nccl_constants import LAUNCHES, PROTOCOLS, parse_version, version_text
from gpuscale.errors import GpuscaleError, InputError, did_you_mean, shown
from gpuscale.files import is_there, reads
from gpuscale.planning.jobs import CONSTRAINTS, Presets
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.planfile import from_folder
from gpuscale.planning.variants import batch_sizes, gpu_counts, sequence_lengths
from gpuscale.presets.files import Document, KeyPath, find_preset, preset_aliases, read_toml
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_gpu
from gpuscale.presets.rates import USUAL_TERM, load_rates, one_term, prices_of
from gpuscale.presets.settings import with_settings
from gpuscale.presets.tables import stated_value
from gpuscale.request import (
    ALL_CLUSTERS,
    COMPARED,
    LEAST,
    MAX_PRICE,
    PINS,
    SEVERAL_PLANS,
    SWITCH,
    JobOptions,
    Layout,
    Length,
    Option,
    Options,
    Question,
    Range,
    Recovery,
    Within,
    declared,
    read,
    read_several,
    sequences_of,
    size_of,
)
from gpuscale.search.objectives import OBJECTIVES, PRICE, TOKENS
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.training.failures import USUAL, failure_rate
from gpuscale.units import MAX_BYTES, NUMBER, parse_bytes, refuse_grouped
from gpuscale.version import __version__

CHANGES = {
    "gpu": "gpu={}", "nvlink_domain": "domain={}", "network": "network=x{}", "nics": "nics={}",
    "oversubscription": "oversubscription={}", "memory": "gpu.memory_gib=x{}",
    "memory_bandwidth": "gpu.memory_gb_per_s=x{}", "flops": "gpu.flops=x{}", "power_w": "gpu.power_w={}", "set": "{}",
}  # fmt: skip
"""Key of `[[clusters]]` -> the setting that it stands for, in the order in which they are made."""

TEXTS = ("gpu", "set")
KEYS = ("name", "base", *CHANGES, "usd_per_gpu_hour")
MAX_CLUSTERS = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Machine(NamedTuple):
    """A cluster that a study asks about."""

    cluster: str
    set: str = ""  #: the option `set`; empty for a cluster as it is.
    name: str = ""  #: of a what-if cluster; empty for one that is none.
    usd_per_gpu_hour: float | None = None

    @property
    def label(self) -> str:
        """By what a study calls it."""
        return self.name or self.cluster


def _read_machines(document: Document, presets: Presets) -> dict[str, tuple[Machine, ...]]:
    """Read `[[clusters]]`: name -> the clusters that it stands for, and each of several by its own name.

    Raises:
        InputError: unknown or unusable entries, or a machine that cannot be; the message names file and line.
    """
    tables = document.data.get("clusters", [])
    if not isinstance(tables, list | tuple) or not all(isinstance(one, Mapping) for one in tables):
        raise document.error(("clusters",), "clusters is not a list of tables", "write [[clusters]] above each")
    found: dict[str, tuple[Machine, ...]] = {}
    for index, table in enumerate(tables):
        place = ("clusters", index)
        for key in table:
            if key not in KEYS:
                hint = did_you_mean(str(key), KEYS, "keys are", 3)
                raise document.error((*place, key), f"unknown key {shown(key)}", hint)
        for key in ("name", "base"):
            if not isinstance(table.get(key), str) or not table[key]:
                what = "is missing" if table.get(key) is None else "is not a name"
                raise document.error((*place, key), f"{key} {what}")
        machines = _machines(document, place, table, presets)
        several = {one.name: (one,) for one in machines} if len(machines) > 1 else {}
        for name, own in {str(table["name"]): machines, **several}.items():
            if name in found:
                raise document.error((*place, "name"), f"a second cluster called {name!r}", "give each its own name")
            if find_preset("clusters", name) or name.lower() in preset_aliases("clusters"):
                raise document.error((*place, "name"), f"{name!r} is the name of a preset", "give it another")
            found[name] = own
    return found


def _machines(document: Document, place: KeyPath, table: Mapping[str, Any], presets: Presets) -> tuple[Machine, ...]:
    name, base = table["name"], table["base"]
    if not _NAME.fullmatch(name):
        raise document.error((*place, "name"), f"{shown(name)} is not a name", "letters, digits, dots and dashes")
    base = presets.named("clusters", from_folder({"cluster": base}, document.path.parent)["cluster"])[0]
    price = table.get("usd_per_gpu_hour")
    if price is not None:
        price = _positive(document, (*place, "usd_per_gpu_hour"), price)
        if not LEAST <= price <= MAX_PRICE:
            hint = f"give {LEAST:g} to {MAX_PRICE:g}"
            raise document.error((*place, "usd_per_gpu_hour"), f"{price:g} is out of range", hint)
    values = {key: _values(document, (*place, key), table[key]) for key in CHANGES if key in table}
    if not values:
        raise document.error(place, f"{name} changes nothing of {base}", f"change any of {', '.join(CHANGES)}")
    if math.prod(map(len, values.values())) > MAX_CLUSTERS:
        raise document.error(place, f"{name} is more than {MAX_CLUSTERS:,} clusters", "give fewer values")
    several = [key for key in values if len(values[key]) > 1]
    machines = []
    for chosen in product(*values.values()):
        own = dict(zip(values, chosen, strict=True))
        spelled = (re.sub(r"[^A-Za-z0-9._-]+", "-", str(own[key])).strip("-") for key in several)
        full = "-".join([name, *spelled])
        cluster, changes = presets.cluster(base), []
        for key, value in own.items():
            changes.append(CHANGES[key].format(value))
            try:
                cluster = with_settings(cluster, changes[-1])
            except InputError as error:
                raise document.error((*place, key), f"{full}: {error.message}", error.hint) from None
        machines.append(Machine(base, ",".join(changes), full, price))
    return tuple(machines)


def _positive(document: Document, place: KeyPath, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise document.error(place, f"{place[-1]} = {shown(value)} is not a number above 0 and below 1e15")
    return value


def _values(document: Document, place: KeyPath, given: Any) -> tuple[str | float, ...]:
    key = str(place[-1])
    values = given if isinstance(given, list | tuple) else [given]
    if not values:
        raise document.error(place, f"{key} has no values", "give one at least, or leave it out")
    if key not in TEXTS:
        return tuple(dict.fromkeys(_positive(document, place, value) for value in values))
    for value in values:
        if not isinstance(value, str) or not value or (key == "gpu" and "," in value):
            raise document.error(place, f"{key} = {shown(value)} is not text", "write it as the option `set` takes it")
    folder = document.path.parent
    moved = [from_folder({"cluster": value}, folder)["cluster"] if key == "gpu" else value for value in values]
    return tuple(dict.fromkeys(moved))


class Digests:
    """Digests by what users call presets and files; each is read once."""

    def __init__(self, presets: Presets) -> None:
        self._presets = presets
        self._part = cache(self._digest)
        self._whole = cache(lambda parts: _short([__version__, *(self._part(*part) for part in parts)]))

    def of(self, task: str, options: Mapping[str, Any]) -> str:
        """Return the digest of all that a question with these options rests on."""
        return self._whole(tuple(_rests_on(task, options)))

    def _digest(self, kind: str, name: str) -> str:
        """Return the digest of a preset or file, by what it means."""
        if kind == "model":
            stated = asdict(self._presets.model(name))
            del stated["numerics"]  # which change no answer
            return _short(stated)
        if kind in {"cluster", "prices"}:
            cluster = self._presets.cluster(name)
            return _short(asdict(cluster) if kind == "cluster" else _plain(prices_of(cluster.name, cluster.gpu.name)))
        if kind == "calibration":
            return sha256(Path(name).read_bytes()).hexdigest()
        if kind == "rates":
            return _short(_plain(load_rates()))
        read: dict[str, Callable[[str], Any]] = {"gpu": load_gpu, "framework": load_framework, "failures": failure_rate}
        return _short(asdict(read[kind](name)))


def _rests_on(task: str, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in ("model", "cluster", "calibration"):
        if kind in options:
            yield kind, options[kind]
    for item in str(options.get("set", "")).split(","):
        name, _, value = item.partition("=")
        if name.strip() == "gpu":
            yield "gpu", value.strip()
    if task == "collective":
        return
    yield "framework", options.get("framework", declared(JobOptions)["framework"].default)
    if task == "train-time":
        yield "failures", options.get("failure_rate", USUAL)
    if task == "train-time" or "price_term" in options:
        yield "prices", options["cluster"]
    if task == "train-time" or {options.get("objective"), *str(options.get("pareto", "")).split(",")} & _OF_RATES:
        yield "rates", ""


_OF_RATES = {"energy", "carbon"}


def _plain(rates: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(rate) for name, rate in rates.items()}


def _short(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:24]


Row = dict[str, Any]
"""One row of the results: column -> text, number, switch or None."""

GPUS = Within(1, MAX_GPUS)


@dataclass(frozen=True, kw_only=True)
class Rules(Options):
    """What `estimate` takes beside job and layout."""

    despite_rules: Annotated[bool, Option("Evaluate the layout even if the framework refuses it.")] = False


@dataclass(frozen=True, kw_only=True)
class Collective(Options):
    """What `collective` takes, by the names of its command."""

    strict = True

    operation: Annotated[str, Option("The collective.", "OP", normal=operation_named)]
    bytes: Annotated[int, Within(1, MAX_BYTES), Option("The whole tensor.", "SIZE", normal=parse_bytes)]
    cluster: Annotated[str, Option("Preset name or cluster TOML.", "NAME|PATH")] = "dgx-h100-superpod"
    set: Annotated[str | None, Option("Overrides of the cluster.", "LEVEL.KEY=VALUE", repeatable=True)] = None
    level: Annotated[str | None, Option("Level of the cluster.", "NAME")] = None
    gpus: Annotated[int | None, GPUS, Option("GPUs of a group.")] = None
    stride: Annotated[int | None, GPUS, Option("Rank stride between members.")] = None
    concurrent: Annotated[int | None, GPUS, Option("Groups that run at the same time.")] = None
    sharp: Annotated[str | None, Option("In-network reduction across nodes (SHARP).", choices=SWITCH)] = None
    nvls: Annotated[str, Option("In-switch reduction within the NVLink domain (NVLS).", choices=SWITCH)] = "on"
    ideal: Annotated[bool, Option("Bandwidth bound only.")] = False
    algorithm: Annotated[str | None, Option("Algorithm of NCCL.", choices=tuple(ALGORITHMS))] = None
    protocol: Annotated[str | None, Option("Its protocol.", choices=tuple(map(str.lower, PROTOCOLS)))] = None
    channels: Annotated[int | None, Option("Channels of NCCL.")] = None
    nccl: Annotated[str | None, Option("Version.", normal=lambda text: version_text(parse_version(text)))] = None
    launch: Annotated[str, Option("How ranks are launched.", choices=LAUNCHES)] = "processes"
    imbalance: Annotated[float, Within(1, 1e6), Option("Bytes of the busiest GPU over the mean.")] = 1.0
    experts_per_token: Annotated[int | None, Option("For deepep: experts of a token.")] = None
    nodes_per_token: Annotated[int | None, Option("For deepep: nodes of a token's experts.")] = None


TASKS: dict[str, tuple[type[Options], ...]] = {
    "plan": (JobOptions, Layout, Question),
    "estimate": (JobOptions, Layout, Rules),
    "train-time": (JobOptions, Layout, Question, Recovery, Length),
    "collective": (Collective,),
}
"""What a study may ask, by the command that answers one of its questions -> the options that it takes."""

SEARCHING = ("plan", "train-time")
"""Tasks that search: options of the layout are sets of values that it may have."""

NOT_ASKED = {"plan": ("why", "recipe"), "train-time": SEVERAL_PLANS}
"""Task -> options of the classes above that it does not take."""


@cache
def options_of(task: str) -> dict[str, type[Options]]:
    """Return the options of a task, each with the class that declares it."""
    left = NOT_ASKED.get(task, ())
    return {name: kind for kind in TASKS[task] for name in declared(kind) if name not in left}


def is_pin(task: str, name: str) -> bool:
    """Whether an option is a set of values that a layout may have in one search."""
    return task in SEARCHING and name in PINS and name not in COMPARED


@dataclass(frozen=True)
class Case:
    """One question of a study."""

    task: str
    #: what the question's command takes, by the names of `gpuscale.request`, each with one value.
    options: Mapping[str, Any]
    labels: Mapping[str, str]  #: columns that say what sets it apart beside its options: the name of a what-if cluster.
    digest: str = ""  #: of the version and of the presets and files that the answer rests on.

    @cached_property
    def key(self) -> str:
        """Name of the question: the same for the same task, options and digest, in whatever order."""
        options = {name: str(value) for name, value in self.options.items()}
        said = json.dumps([self.task, options, self.labels, self.digest], sort_keys=True)
        return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:24]


MAX_QUESTIONS = 1_000_000
TOP = ("study", "clusters", "questions")
PATHS = ("model", "cluster", "calibration", "failure_rate")

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

    task: str
    grids: tuple[Grid, ...]  #: products of values, one after the other.
    digests: Digests

    @property
    def size(self) -> int:
        """How many questions it has; of several grids that overlap, those that come twice count twice."""
        return sum(grid.size for grid in self.grids)

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Option -> its values as rows have them, in the order of the file."""
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
    reader = _Reader(document, task, presets, _read_machines(document, presets))
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
    """An option as given; its place is empty where it is not of the file."""

    name: str
    value: Any
    place: KeyPath


class _Reader(NamedTuple):
    document: Document
    task: str
    presets: Presets
    machines: Mapping[str, tuple[Machine, ...]]

    def grid(self, stated: dict[str, _Stated], place: KeyPath) -> Grid:
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
        return self.document.path.parent if stated.place else Path()

    def _checked(self, stated: _Stated, value: Any) -> Any:
        """Return a value in its usual spelling: text, number or switch; or a range."""
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
        moved = from_folder({"cluster": name}, self._folder(stated))["cluster"]
        return self.presets.named("clusters", moved)[0]

    def _spread(self, stated: Mapping[str, _Stated], found: dict[str, tuple[Any, ...]]) -> None:
        """Replace ranges by their values: GPU counts of any cluster, batches of any count."""
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
        """Return the prices to try, each of all clusters or of some."""
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
        """Return the term of published prices where the usual one is not that of all clusters."""
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
    """Yield the GPU counts of a range to try on each cluster that has any."""
    refused: list[InputError] = []
    for cluster in clusters:
        try:
            yield gpu_counts(counts, cluster)
        except InputError as error:
            refused.append(error)
    if len(refused) == len(clusters):
        raise refused[0]


def _several(task: str, name: str, given: Any) -> Iterator[Any]:
    """Yield an option's values: of a list, or between commas but where one value has them: sets of the layout,
    settings, rates, objectives, files."""
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
    """Return a number or switch given as text, where its option takes those alone."""
    field = declared(options_of(task)[name])[name] if name in options_of(task) else None
    if field is None or field.option.normal or field.option.quantity is not NUMBER:
        return text
    return stated_value(text) if bool in field.kinds or field.number else text
