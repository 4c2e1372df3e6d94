"""What stands behind a prediction: similar published runs, what none of them has, and an 80 % interval by both.

Half the width of the interval is `QUANTILE` times a standard error by the parts' shares of the step (`PARTS`), the kind
of run (`KINDS`) and the distance of the nearest run of `residuals.csv` (`SLOPE`), added in squares; chosen by hand
(docs/validation.md, "The interval"). The runs' own errors do not enter.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.presets.files import preset_folders
from gpuscale.specs.cluster import NETWORKS
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import OWN_LOOPS, JobSpec
from gpuscale.steptime.components import COMMUNICATION

PARTS = {
    "gemm": 0.04, "attention": 0.1, "recompute": 0.2, "elementwise": 0.3, "optimizer": 0.1, "launch": 0.15,
    "tp_comm": 0.35, "cp_comm": 0.2, "ep_comm": 0.5, "pp_comm": 0.1, "dp_comm": 0.2, "offload": 0.2, "bubble": 0.15,
}  # fmt: skip
"""Component of a step -> standard error of its time, as a share of it."""

KINDS = {"any": 0.03, "moe": 0.05, "own_loop": 0.08, "blackwell": 0.05, "guessed": 0.1, "not_nvidia": 0.15}
"""What a run is -> standard error of its whole step; `any`: repeated measurements and what has no part."""

QUANTILE = 1.5
"""Half-width that holds 80 % / standard error: 1.28 of normal errors, more as their tails are heavier."""

SLOPE = 0.02
"""Standard error of log(measured / predicted step time) per unit of distance from the nearest run."""

SIMILAR = 1.5
"""Distance up to which a run is called similar."""

DISTANCES = {
    "profile": 0.75, "software": 0.75, "architecture": 0.5, "moe": 1.0, "tuning": 1.0, "low_precision": 0.7,
    "tp_across_nodes": 1.0,
    "log_size": 0.5, "launch": 4.0, "communication": 3.0, "bubble": 2.0, "vendor": 4.0, "offload": 2.0,
    "network": 0.2, "log_gpus": 0.3, "log_vpp": 0.3, "log_sequence": 0.3, "sharding": 0.75, "pipeline": 0.3,
    "recomputes": 0.3, "log_ep": 0.3, "log_cp": 0.5,
}  # fmt: skip
"""Distance of two runs: the sum over these features of the number here times the difference (of texts and switches: 1
when they differ). `profile` is the rule set, by generation, which `software` leaves out."""

BEYOND = {"log_gpus": 5.0, "log_vpp": 5.0, "log_sequence": 3.0, "log_size": 3.0}
"""What is added to the distance from every run per unit of what lies above the largest value of any of them."""

NEARLY = 1e-3
"""What sizes, in log10, may be above the largest of the known runs, which are rounded in the table."""

NEW_KIND = 0.1
"""Standard error of the step time of a layout whose kind was measured on fewer GPUs than it takes, or never."""

UNSEEN = 1.5
"""What is added to the distance from every run for each text or switch that none of them has."""

FIRST_CHOICES = (
    {"over": "groups", "n": 253, "first": 1.014, "all": 1.008},
    {"over": "large groups", "n": 35, "first": 1.042, "all": 1.001},
)
"""Measured over predicted time, median over groups of measured runs that differ in their layout alone: of the layout
predicted to be the fastest, and of all; the same where layouts are many (benchmarks/score_runs.py)."""

MANY_LAYOUTS = 16
"""Layouts of a group from which on its first choice is judged apart: of many, the fastest is rather one whose time is
underestimated."""

Columns = dict[str, npt.NDArray[np.generic]]

UNLIKE_NODES = "nodes of different GPUs"
"""No measured run has them."""


class Evidence(NamedTuple):
    """What published runs say of a prediction."""

    low: float  #: lower end of the interval of measured / predicted step time.
    high: float  #: its upper end.
    similar: int  #: runs within `SIMILAR`.
    nearest: str  #: id of the nearest run.
    nearest_name: str  #: what it was, in words.
    unmeasured: tuple[str, ...]  #: what this prediction has and no run has.


def evidence(
    wanted: Sequence[Features],
    *,
    cross_validate: bool = False,
    known: tuple[Residual, ...] | None = None,
    unseen: Sequence[str] = (),
) -> list[Evidence]:
    """Find the evidence for each prediction.

    Args:
        cross_validate: a run that is in the table itself is judged without its whole family.
        known: the table; that of `residuals.csv` if not given.
        unseen: what all predictions have, no run has, and `Features` do not tell.
    """
    if not wanted:
        return []
    runs = _known_runs(known)
    distances = _distances(_columns(wanted), runs.columns) + UNSEEN * len(unseen)
    found = []
    for one, row in zip(wanted, distances, strict=True):
        own = runs.family_by_key.get(one.key) if cross_validate else None
        kept = np.ones(len(row), dtype=np.bool_) if own is None else runs.families != own
        new_kind = _new_kind(one, runs, kept)
        half = float(_half_width(np.array(one.spread), row[kept].min(), np.array(bool(new_kind))))
        nearest = int(np.where(kept, row, np.inf).argmin())
        similar = int((row[kept] <= SIMILAR).sum())
        beyond = _unmeasured(one, runs.columns)
        unmeasured = (*(text for text in new_kind if not text.endswith(beyond)), *beyond, *unseen)
        name = runs.names[nearest]
        found.append(Evidence(math.exp(-half), math.exp(half), similar, runs.ids[nearest], name, unmeasured))
    return found


OF_JOB = ("profile", "software", "architecture", "moe", "tuning", "low_precision", "vendor", "network", "log_sequence")
"""Features in which jobs differ, whatever their layouts, beside their sizes."""

JOB_FACTORS = {name: DISTANCES[name] for name in OF_JOB} | {"log_size": 3.0, "log_gpus": 1.0, "architecture": 1.2}
"""Distance of two jobs per unit of these features: what was run for a model of this size counts most, and on such GPUs
more than with this precision and software together."""

OTHER_MODEL = 1.0
"""Distance of two jobs for another model than this one."""


def nearest_to_job(wanted: Features, model: str) -> Residual:
    """Find the measured run whose job is most like that of a model, whatever its layout; of equal ones the fastest."""
    runs = [one for one in read_residuals() if one.log_ratio is not None and one.tokens_per_s_per_gpu is not None]
    distances = _distances(_columns([wanted]), _columns([one.features for one in runs]), JOB_FACTORS)[0]
    distances += [OTHER_MODEL * (one.name.partition(",")[0] != model) for one in runs]
    pairs = zip(distances.tolist(), runs, strict=True)
    return min(pairs, key=lambda pair: (pair[0], -(pair[1].tokens_per_s_per_gpu or 0)))[1]


def narrowed(found: Evidence, half: float) -> Evidence:
    """Return evidence whose interval is no wider than half a width in the log, by what a site measured."""
    return found._replace(low=max(found.low, math.exp(-half)), high=min(found.high, math.exp(half)))


class _Known(NamedTuple):
    """The runs whose step time was measured, K of them."""

    families: npt.NDArray[np.str_]  #: of each run, shape (K,).
    ids: list[str]
    names: list[str]  #: what they were, in words.
    family_by_key: dict[str, str]  #: family of the run with a key.
    columns: Columns
    stages: npt.NDArray[np.int64]  #: pipeline stages of each run, shape (K,).


@cache
def _known_runs(table: tuple[Residual, ...] | None = None) -> _Known:
    known = [one for one in (read_residuals() if table is None else table) if one.log_ratio is not None]
    families = [family_of(one.id) for one in known]
    keys = [one.features.key for one in known]
    return _Known(
        np.array(families),
        [one.id for one in known],
        [one.name for one in known],
        dict(zip(keys, families, strict=True)),
        _columns([one.features for one in known]),
        np.array([one.features.layout["pp"] for one in known], dtype=np.int64),
    )


def _columns(runs: Sequence[Features]) -> Columns:
    return {name: np.array([getattr(one, name) for one in runs]) for name in DISTANCES}


def _distances(wanted: Columns, known: Columns, factors: Mapping[str, float] = DISTANCES) -> FloatArray:
    """Shape (wanted, known)."""
    total = np.zeros((len(wanted["profile"]), len(known["profile"])))
    for name, factor in factors.items():
        one, other = wanted[name][:, None], known[name]
        differ = one != other if one.dtype.kind != "f" else np.abs(one.astype(np.float64) - other.astype(np.float64))
        total += factor * differ
        if one.dtype.kind != "f":
            total += UNSEEN * ~np.isin(one, other)
        if name in BEYOND:
            total += BEYOND[name] * np.maximum(one.astype(np.float64) - other.astype(np.float64).max(), 0.0)
    return total


DEEPEST = {"megatron-lm": 64, "nanotron": 32, "torchtitan": 16}
"""Stages of the deepest pipeline that was run with a framework, where no run of the table has as many (Narayanan et al.
2021, table 1; "The Ultra-Scale Playbook", 2025; Liang et al. 2024, arXiv 2410.06511)."""

SHARDINGS = ("none", "distopt", "zero2", "zero3")
"""What is sharded over the data-parallel ranks, by ZeRO stage."""


def _new_kind(one: Features, runs: _Known, kept: BoolArray) -> tuple[str, ...]:
    """Where a layout of this kind was measured on fewer GPUs, or on none; nothing where it was on as many."""
    deepest = _deepest(runs, kept, one.software)
    deeper = (f"a pipeline of more than {deepest} stages under {one.software}",) * (one.layout["pp"] > deepest)
    most = _most_of_kind(runs, kept, moe=one.moe, sharding=one.sharding)
    if one.log_gpus <= most + NEARLY:
        return deeper
    stage = SHARDINGS.index(one.sharding)
    what = f"a {'mixture of experts' if one.moe else 'dense model'} with {f'ZeRO-{stage}' if stage else 'no ZeRO'}"
    return (what if most < 0 else f"{what} on more than {round(10**most):,} GPUs", *deeper)


def new_kinds(job: JobSpec, zero: IntArray, pp: IntArray) -> BoolArray:
    """Mark the layouts whose kind (model and sharding) was measured on fewer GPUs than here, or never, or whose
    pipeline is deeper than any that was run with the framework, shape (N,)."""
    runs = _known_runs()
    every = np.ones(len(runs.families), dtype=np.bool_)
    most = np.array([_most_of_kind(runs, every, moe=job.model.is_moe, sharding=name) for name in SHARDINGS])
    deeper = pp > _deepest(runs, every, software_of(job.runtime.rule_set))
    return np.asarray(deeper | (math.log10(job.gpus) > most[zero] + NEARLY), dtype=np.bool_)


def _deepest(runs: _Known, kept: BoolArray, software: str) -> int:
    """Stages of the deepest pipeline that was run with a framework; where none was, with any."""
    same = kept & (runs.columns["software"] == software)
    own = max(int(runs.stages[same].max(initial=1)), DEEPEST.get(software, 1))
    return own if own > 1 else int(runs.stages.max(initial=1))


def _most_of_kind(runs: _Known, kept: BoolArray, *, moe: bool, sharding: str) -> float:
    """log10 of the GPUs of the largest run of such a model and sharding (one of ZeRO-3 stands for ZeRO-2 too); -1 where
    there is none."""
    shardings = ["zero2", "zero3"] if sharding == "zero2" else [sharding]
    same = kept & (runs.columns["moe"] == moe) & np.isin(runs.columns["sharding"], shardings)
    return float(runs.columns["log_gpus"].astype(np.float64)[same].max(initial=-1.0))


def _unmeasured(one: Features, known: Columns) -> tuple[str, ...]:
    new = {name for name, column in known.items() if column.dtype.kind != "f" and getattr(one, name) not in column}
    if "vendor" in new:
        new.discard("architecture")  # of course
    above = {name for name in BEYOND if getattr(one, name) > known[name].astype(np.float64).max() + NEARLY}
    most = {name: f"{round(10 ** known[name].astype(np.float64).max()):,}" for name in BEYOND}
    said = {
        "vendor": f"GPUs of {one.vendor}",
        "architecture": f"GPUs of the generation {one.architecture}",
        "software": f"{one.software} as the framework",
        "network": f"{one.network} as the network",
        "tuning": f"tune={one.tuning}",
        "tp_across_nodes": "TP across nodes",
        "offload": "states or activations in host memory",
        "log_gpus": f"more than {most['log_gpus']} GPUs",
        "log_vpp": f"VPP above {most['log_vpp']}",
        "log_sequence": f"sequences above {most['log_sequence']} tokens",
        "log_size": "a model of this size",
    }
    found = [text for name, text in said.items() if name in new | above]
    return (*found, *_older_alone(one, known)) if not new & {"software", "architecture"} else tuple(found)


MANY_GENERATIONS = 2
"""Measured generations of a framework that are newer than any measured on an architecture, from which on it is said."""


def _older_alone(one: Features, known: Columns) -> Iterator[str]:
    """Where a framework was measured on an architecture in much older generations alone."""
    same = known["software"] == one.software
    here = same & (known["architecture"] == one.architecture)
    every, these = ({_generation(one) for one in known["profile"][rows].tolist()} for rows in (same, here))
    last = max(these, default=NEWEST)
    if sum(last < year <= _generation(one.profile) for year in every) >= MANY_GENERATIONS:
        yield f"{one.software} newer than of {last} on GPUs of the generation {one.architecture}"


NEWEST = 9999
"""Year of a profile that names none."""


def software_of(profile: str) -> str:
    """Return the software of a profile, whatever its generation: `megatron-lm` of `megatron-lm-2022`."""
    return profile.rpartition("-")[0] if _generation(profile) < NEWEST else profile


def _generation(profile: str) -> int:
    year = profile.rpartition("-")[2]
    return int(year) if year.isdecimal() else NEWEST


def _layout(key: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r" ([a-z_]+)(\d+)(?= |$)", key)}


class Features(NamedTuple):
    """What a run is like, from its inputs and its predicted breakdown."""

    key: str  #: job and layout in a line; equal keys are the same run.
    profile: str  #: rule set of the framework.
    architecture: str  #: of the GPU; one whose GEMMs are a guesstimate is not like those of its generation.
    moe: bool
    tuning: str  #: what is trained: `full`, adapters (`lora`) or adapters beside quantised weights (`qlora`).
    low_precision: bool
    tp_across_nodes: bool  #: tensor parallelism reaches beyond the node.
    offload: bool  #: states or activations are kept in host memory.
    vendor: str
    network: str  #: fabric of the outermost level in use; `none` inside one box or rack.
    log_size: float  #: log10 of 12 x hidden^2 x layers, the parameters of a plain dense model of this width and depth.
    log_gpus: float
    log_vpp: float
    log_sequence: float
    sharding: str  #: one of `SHARDINGS`.
    pipeline: bool
    recomputes: str  #: `none`, `modules` or whole `layers`.
    log_ep: float
    log_cp: float
    launch: float  #: shares of the predicted step, as the next two.
    communication: float
    bubble: float
    spread: float  #: standard error of the step time by `PARTS` and `KINDS`, as a share of it.

    @property
    def layout(self) -> dict[str, int]:
        """The layout of the run, by the names of `Candidates`."""
        return _layout(self.key)

    @property
    def layers(self) -> int:
        """Layers of the run's model."""
        return int(self.key.split()[2].partition("x")[0])

    @property
    def software(self) -> str:
        """The software of the profile, whatever its generation."""
        return software_of(self.profile)


def _of_inputs(
    gpus: int, layers: int, hidden: int, precision: str, sequence: int, layout: Mapping[str, int]
) -> dict[str, Any]:
    """The features that the key of a run says too."""
    sizes = {"size": 12 * hidden**2 * layers, "gpus": gpus, "sequence": sequence}
    sizes |= {degree: layout[degree] for degree in ("vpp", "ep", "cp")}
    return {
        **{f"log_{name}": math.log10(size) for name, size in sizes.items()},
        "low_precision": precision in {"fp8", "fp4"},
        "sharding": SHARDINGS[layout["zero"]],
        "pipeline": layout["pp"] > 1,
        "recomputes": "layers" if layout["recompute_layers"] else "modules" if layout["recompute_modules"] else "none",
    }


DIGITS = 4
"""Digits behind the point of the numbers in `residuals.csv`."""

_OF_INPUTS = {"log_size", "log_gpus", "log_sequence", "log_vpp", "log_ep", "log_cp", "low_precision", "sharding",
              "pipeline", "recomputes"}  # fmt: skip
TYPES = {name: kind for name, kind in get_type_hints(Features).items() if name not in _OF_INPUTS}
"""Column of `residuals.csv` -> type of its values; the other features follow from the key."""


class Residual(NamedTuple):
    """A published run and how far the model was off."""

    id: str
    name: str  #: what it was, in words: model, GPUs, layout, framework and month.
    tokens_per_s_per_gpu: float | None  #: measured rate, None where the step was not measured.
    features: Features
    log_ratio: float | None  #: log(measured / predicted step time), None where the step was not measured.
    mem_ratio: float | None  #: measured over predicted memory, None where memory was not measured.


def family_of(run: str) -> str:
    """The source of a run by its id: what stands before the first `-`, in `nvidia-...` before the second."""
    parts = run.split("-", 2)
    return "-".join(parts[:2]) if parts[0] == "nvidia" else parts[0]


OF_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "zero", "recompute_modules", "recompute_layers")
"""What `features` look at of a layout."""


def known_of_times(
    job: JobSpec, rows: Candidates, seconds: Mapping[str, FloatArray]
) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Half-widths of the 80 % intervals of evaluated layouts, in log(step time), whether there is a similar run, and
    `new_kinds`; each of shape (N,), as are the seconds by component."""
    columns = {name: getattr(rows, name).tolist() for name in OF_LAYOUT}
    layouts = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    steps = [dict(zip(seconds, column, strict=True)) for column in np.array(list(seconds.values())).T.tolist()]
    wanted = [features(job, *pair) for pair in zip(layouts, steps, strict=True)]
    apart = _distances(_columns(wanted), _known_runs().columns).min(axis=1)
    new = new_kinds(job, rows.zero, rows.pp)
    return _half_width(np.array([one.spread for one in wanted]), apart, new), np.asarray(apart <= SIMILAR), new


def _half_width(spread: FloatArray, distance: FloatArray, new_kind: BoolArray) -> FloatArray:
    return QUANTILE * np.hypot(np.hypot(spread, SLOPE * distance), NEW_KIND * new_kind)


def _guessed(gpu: GpuSpec) -> bool:
    """Whether how fast matrix products run is a guesstimate."""
    return bool(gpu.announced) or gpu.sources["kernels.gemm_fraction"].startswith("guesstimate")


def spread(job: JobSpec, seconds: Mapping[str, float]) -> float:
    """Return the standard error of a step time by what it is made of (component -> `seconds` of the predicted step), as
    a share of it."""
    gpu, step_s = job.cluster.gpu, math.fsum(seconds.values())
    is_so = {
        "any": True,
        "moe": job.model.is_moe,
        "own_loop": job.runtime.rule_set in {*OWN_LOOPS, "deepspeed"},
        "blackwell": gpu.architecture.startswith("blackwell"),
        "guessed": _guessed(gpu),
        "not_nvidia": gpu.vendor != "NVIDIA",
    }
    parts = (share * seconds[name] / step_s for name, share in PARTS.items())
    return math.hypot(*parts, *(share for kind, share in KINDS.items() if is_so[kind]))


def features(job: JobSpec, layout: Mapping[str, int], seconds: Mapping[str, float]) -> Features:
    """Describe an evaluated layout: one row of `gpuscale.layouts.arrays.Candidates`, by name, and component ->
    `seconds` of its predicted step."""
    model, gpu, outermost = job.model, job.cluster.gpu, job.cluster.level_of_group(job.gpus, 1)
    step_s = math.fsum(seconds.values())
    guessed = " with guessed kernels" if _guessed(gpu) else ""
    degrees = " ".join(f"{name}{value}" for name, value in layout.items())
    return Features(
        key=f"{gpu.name} {job.gpus} {model.layers}x{model.hidden} {job.precision} {job.sequence} {degrees}",
        profile=job.runtime.rule_set,
        architecture=f"{gpu.architecture}{guessed}",
        moe=model.is_moe,
        tuning="full" if job.tuning is None else "qlora" if job.tuning.quantised else "lora",
        tp_across_nodes=layout["tp"] > job.cluster.node_gpus,
        offload=job.offload.any,
        vendor=gpu.vendor,
        network=outermost.fabric if outermost.fabric in NETWORKS else "none",
        launch=seconds["launch"] / step_s,
        communication=math.fsum(seconds[name] for name in COMMUNICATION) / step_s,
        bubble=seconds["bubble"] / step_s,
        spread=spread(job, seconds),
        **_of_inputs(job.gpus, model.layers, model.hidden, job.precision, job.sequence, layout),
    )


def residuals_file() -> Path:
    """Return the file of the shipped residuals."""
    return preset_folders("known")[-1] / "residuals.csv"


@cache
def read_residuals() -> tuple[Residual, ...]:
    """Read the shipped residuals."""
    return tuple(map(_residual, csv.DictReader(residuals_file().read_text(encoding="utf-8").splitlines())))


def _residual(row: Mapping[str, str]) -> Residual:
    _, gpus, shape, precision, sequence, *_ = row["key"].split()
    layers, hidden = map(int, shape.split("x"))
    inputs = _of_inputs(int(gpus), layers, hidden, precision, int(sequence), _layout(row["key"]))
    values: dict[str, Any] = {
        **{name: row[name] == "yes" if kind is bool else kind(row[name]) for name, kind in TYPES.items()},
        **{name: round(one, DIGITS) if isinstance(one, float) else one for name, one in inputs.items()},
    }
    numbers = (float(row[name]) if row[name] else None for name in ("tokens_per_s_per_gpu", "log_ratio", "mem_ratio"))
    rate, log_ratio, mem_ratio = numbers
    return Residual(row["id"], row["name"], rate, Features(**values), log_ratio, mem_ratio)
