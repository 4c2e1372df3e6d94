"""From what a user asks to a `JobSpec`: names resolved, defaults chosen by stated rules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, get_type_hints

from gpuscale.errors import InputError, nearest
from gpuscale.layouts.ranks import CP_COMMS
from gpuscale.layouts.stages import SPLITS
from gpuscale.placement.groups import parse_order
from gpuscale.planning.overlaps import overlap_name, parse_overlap, with_overlap
from gpuscale.presets.frameworks import Framework, load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import AXES, JobSpec, OffloadSpec, RuntimeSpec, StateBytes
from gpuscale.specs.model import ModelSpec
from gpuscale.steptime.kernels import LOW_PRECISIONS, available_recipes
from gpuscale.steptime.offload import host_of
from gpuscale.units import GIB

DEFAULT_CLUSTER = "dgx-h100-superpod"
DEFAULT_FRAMEWORK = "megatron-core"
DEFAULT_SEQUENCE = 4096
DEFAULT_BATCH_TOKENS = 4_000_000
DEFAULT_MOE_IMBALANCE = 1.0
MEMORY_HEADROOM = 0.05
"""Share of the driver's capacity left free: what PyTorch's caching allocator loses to fragmentation (guesstimate)."""

MAX_SEQUENCE = 2**24
MAX_BATCH = 2**24
JOB_PRECISIONS = ("bf16", "fp16", *LOW_PRECISIONS)
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "none": 0.0}
OPTIMIZER_MOMENTS = {"adam": 2, "adamw": 2, "lion": 1, "muon": 1, "sgd-momentum": 1, "sgd": 0}


class JobOptions(TypedDict, total=False):
    """Options of a job beside model and GPU count; each has a default that the output states.

    `cluster`: name or path; `seq`: tokens per sequence; `gbs`: sequences per step; `framework`: a profile of how a
    step runs; `precision`: one of `JOB_PRECISIONS`; `optimizer`: one of `OPTIMIZER_MOMENTS`; `grad_dtype`,
    `master_dtype`, `moment_dtype`: one of `DTYPE_BYTES`; `vocab_multiple`: padding of the vocabulary;
    `memory_limit_gib`: usable memory per GPU; `moe_imbalance`: tokens of the busiest expert rank over the mean;
    `gpus_per_node`: GPUs that the job takes of each node; `offload`: what is kept in host memory, as `parse_offload`
    reads it; `cp_comm`: how context-parallel ranks exchange keys and values, one of `CP_COMMS`; `axis_order`: the
    parallel axes, neighbours first, as `parse_order` reads it; `pipeline_split`: how layers are dealt out to stages,
    one of `SPLITS`; `overlap`: which communication runs beside computation, as `parse_overlap` reads it.
    """

    cluster: str
    seq: int
    gbs: int
    framework: str
    precision: str
    optimizer: str
    grad_dtype: str
    master_dtype: str
    moment_dtype: str
    vocab_multiple: int
    memory_limit_gib: float
    moe_imbalance: float
    gpus_per_node: int
    offload: str
    cp_comm: str
    axis_order: str
    pipeline_split: str
    overlap: str


@dataclass(frozen=True)
class Job:
    """A job with the account of how it was made.

    Attributes:
        assumptions: name -> what was chosen and by which rule.
        notes: what a user should know: an extended fabric, a model read in part.
        request: the options in full, as a plan file stores them.
    """

    spec: JobSpec
    assumptions: dict[str, str]
    notes: tuple[str, ...]
    request: dict[str, str | int | float]


@dataclass(frozen=True)
class Presets:
    """Models and clusters that were read, by what a user calls them: several jobs share them."""

    models: dict[str, ModelSpec] = field(default_factory=dict)
    clusters: dict[str, ClusterSpec] = field(default_factory=dict)

    def model(self, name: str) -> ModelSpec:
        """Return a model, read once."""
        if name not in self.models:
            self.models[name] = load_model(name)
        return self.models[name]

    def cluster(self, name: str) -> ClusterSpec:
        """Return a cluster, read once."""
        if name not in self.clusters:
            self.clusters[name] = load_cluster(name)
        return self.clusters[name]


def build_job(model: str, gpus: int, options: JobOptions, presets: Presets | None = None) -> Job:
    """Resolve names and defaults.

    Args:
        presets: what was read for other jobs.

    Raises:
        InputError: an unknown name, or a number out of range.
    """
    check_options(options, JobOptions)
    check_range("--gpus", gpus, 1, MAX_GPUS)
    presets = presets or Presets()
    model_spec = presets.model(model)
    cluster_name = options.get("cluster", DEFAULT_CLUSTER)
    whole = presets.cluster(cluster_name)
    said: dict[str, str] = {}
    if "gpus_per_node" in options:
        whole = whole.with_gpus_per_node(options["gpus_per_node"])
        said["gpus_per_node"] = f"{options['gpus_per_node']} of the GPUs of each node"
    cluster, extension = whole.sized_for(gpus)
    notes = [extension] if extension else []
    sequence = _sequence(options, model_spec.max_sequence, said, notes)
    batch = _batch(options, sequence, gpus, said)
    framework = load_framework(options.get("framework", DEFAULT_FRAMEWORK))
    said["framework"] = f"{framework.name}{'' if 'framework' in options else ' (default)'}"
    precision, recipe = _precision(options, cluster.gpu, framework, said)
    options = {"grad_dtype": _gradient_dtype(framework), **options}
    states = _states(options, said)
    limit = _memory_limit(options, cluster.gpu, said)
    multiple = options.get("vocab_multiple", framework.vocab_multiple)
    check_range("--vocab-multiple", multiple, 1, 65536)
    imbalance = float(options.get("moe_imbalance", DEFAULT_MOE_IMBALANCE))
    if not 1.0 <= imbalance <= 100.0:
        raise InputError(f"{imbalance} is out of range", place="--moe-imbalance", hint="give 1 (balanced) to 100")
    said["vocabulary"] = f"padded to a multiple of {multiple} x TP"
    if model_spec.is_moe:
        said["moe_imbalance"] = f"busiest expert rank has {imbalance:g} x the mean tokens"
    runtime, axis_order = _runtime(options, framework.runtime, said)
    offload = parse_offload(options.get("offload", "none"))
    if runtime.memory.master_is_weight and offload.optimizer != offload.parameters:
        raise InputError(
            f"{framework.name} offloads optimizer and parameters together",
            place="--offload",
            hint="its fp32 shard is both parameter and master weight: give optimizer+parameters",
        )
    if offload.any:
        said["offload"] = _offload_text(offload, cluster)
    said["cluster"] = f"{cluster.name}{'' if 'cluster' in options else ' (default)'}: {_fabric(cluster)}"
    spec = JobSpec(
        model=model_spec,
        cluster=cluster,
        gpus=gpus,
        sequence=sequence,
        global_batch_size=batch,
        precision=precision,
        states=states,
        runtime=runtime,
        vocab_multiple=multiple,
        memory_limit_bytes=limit,
        moe_imbalance=imbalance,
        offload=offload,
        recipe=recipe,
        axis_order=axis_order,
    )
    request = _request(model, cluster_name, spec, options)
    return Job(spec, said, tuple(notes), request)


def _runtime(options: JobOptions, runtime: RuntimeSpec, said: dict[str, str]) -> tuple[RuntimeSpec, tuple[str, ...]]:
    """Return how the framework runs a step, with what the options change of it, and the order of the axes."""
    if "cp_comm" in options:
        runtime = replace(runtime, cp_comm=choice("--cp-comm", options["cp_comm"], CP_COMMS))
        said["context_parallel"] = runtime.cp_comm
    if "pipeline_split" in options:
        runtime = replace(runtime, pipeline_split=choice("--pipeline-split", options["pipeline_split"], SPLITS))
        said["pipeline_split"] = runtime.pipeline_split
    if "overlap" in options:
        parts = parse_overlap(options["overlap"])
        runtime = with_overlap(runtime, parts)
        said["overlap"] = overlap_name(parts)
    order: tuple[str, ...] = AXES
    if "axis_order" in options:
        order = parse_order(options["axis_order"])
        said["axis_order"] = f"{'-'.join(order)}, neighbouring ranks first"
    return runtime, order


def parse_offload(text: str) -> OffloadSpec:
    """Parse `none`, or any of `optimizer`, `parameters`, `activations` and `activations:0.5`, joined by `+` or `,`.

    Raises:
        InputError: an unknown part, or a share that is not above 0 and at most 1.
    """
    place, parts = "--offload", [part.strip() for part in text.lower().replace("+", ",").split(",")]
    if parts == ["none"]:
        return OffloadSpec()
    found: dict[str, float] = {}
    for part in parts[:MAX_PARTS]:
        name, colon, share = part.partition(":")
        if name not in OFFLOADS or name == "none":
            close = nearest(name[:40], OFFLOADS)
            hint = f"did you mean {', '.join(close)}? " if close else ""
            message = "none stands alone" if name == "none" else f"unknown part {name[:40]!r}"
            raise InputError(message, place=place, hint=f"{hint}choose {', '.join(OFFLOADS)}")
        if name in found:
            raise InputError(f"{name} is given twice", place=place, hint="give each part once")
        if colon and name != "activations":
            raise InputError(f"{part[:40]!r} takes no share", place=place, hint="only activations:0.5 does")
        found[name] = _share(share, place) if colon else 1.0
    if len(parts) > MAX_PARTS:
        raise InputError(f"{len(parts)} parts, at most {MAX_PARTS}", place=place, hint=f"choose {', '.join(OFFLOADS)}")
    return OffloadSpec("optimizer" in found, "parameters" in found, found.get("activations", 0.0))


MAX_PARTS = 3
"""Parts that `--offload` joins."""

OFFLOADS = ("none", "optimizer", "parameters", "activations")
"""What `--offload` knows."""


def _share(text: str, place: str) -> float:
    try:
        value = float(text[:20])
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise InputError(
            f"{text[:20]!r} is not a share", place=place, hint="give above 0 and at most 1, such as activations:0.5"
        )
    return value


def offload_name(offload: OffloadSpec) -> str:
    """Name what is offloaded, as `parse_offload` reads it."""
    parts = ["optimizer"] * offload.optimizer + ["parameters"] * offload.parameters
    if offload.activations:
        parts.append("activations" if offload.activations == 1 else f"activations:{offload.activations!r}")
    return "+".join(parts) or "none"


def _offload_text(offload: OffloadSpec, cluster: ClusterSpec) -> str:
    host, link = host_of(cluster), cluster.gpu.host_link_bytes_per_s / 1e9
    return (
        f"{offload_name(offload)} in host memory: {host.gpus} GPU{'s' * (host.gpus > 1)} of a host have "
        f"{host.memory_bytes / GIB:,.0f} GiB at {host.memory_bytes_per_s / 1e9:g} GB/s, {link:g} GB/s to it"
    )


def check_options(options: Mapping[str, Any], known: type) -> None:
    """Refuse an option that is unknown, and text where a number belongs or the other way round.

    Raises:
        InputError: with the nearest names, or the type that is wanted.
    """
    wanted = get_type_hints(known)
    for name, value in options.items():
        if name not in wanted:
            close = nearest(str(name)[:40], wanted)
            hint = f"did you mean {', '.join(close)}? " if close else ""
            raise InputError(f"unknown option {str(name)[:40]!r}", hint=f"{hint}options are {', '.join(wanted)}")
        if wanted[name] is str and not isinstance(value, str):
            raise InputError(f"{name} = {str(value)[:40]!r} is not text")
        if wanted[name] in {int, float} and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"{name} = {str(value)[:40]!r} is not a number")


def check_range(place: str, value: int, low: int, high: int) -> None:
    """Refuse a whole number outside low..high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a whole number", place=place, hint=f"give {low:,} to {high:,}")
    if not low <= value <= high:
        raise InputError(f"{value} is out of range", place=place, hint=f"give {low:,} to {high:,}")


def _sequence(options: JobOptions, longest: int, said: dict[str, str], notes: list[str]) -> int:
    if "seq" not in options:
        sequence = min(DEFAULT_SEQUENCE, longest)
        said["sequence"] = f"{sequence} tokens (default: {DEFAULT_SEQUENCE}, or the model's maximum if that is less)"
        return sequence
    sequence = options["seq"]
    check_range("--seq", sequence, 1, MAX_SEQUENCE)
    said["sequence"] = f"{sequence} tokens"
    if sequence > longest:
        notes.append(f"the sequence of {sequence} tokens is longer than the {longest} that the model is made for")
    return sequence


def _batch(options: JobOptions, sequence: int, gpus: int, said: dict[str, str]) -> int:
    if "gbs" not in options:
        batch = math.ceil(DEFAULT_BATCH_TOKENS / sequence / gpus) * gpus
        said["global_batch"] = f"{batch} sequences (default: smallest multiple of the GPUs that reaches 4 M tokens)"
        return batch
    batch = options["gbs"]
    check_range("--gbs", batch, 1, MAX_BATCH)
    said["global_batch"] = f"{batch} sequences"
    return batch


def _precision(options: JobOptions, gpu: GpuSpec, framework: Framework, said: dict[str, str]) -> tuple[str, str]:
    """Return the precision of matrix products and the recipe by which their operands are quantised."""
    recipe = framework.runtime.fp8_recipe
    if "precision" not in options:
        precision = "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16"
        said["precision"] = f"{precision} (default)"
    else:
        name = choice("--precision", options["precision"], JOB_PRECISIONS)
        precision, own = LOW_PRECISIONS.get(name, (name, ""))
        recipe = own or recipe
        low = name in LOW_PRECISIONS
        said["precision"] = f"{precision}, {recipe} scaling{'' if own else ' (framework)'}" if low else precision
    gpu.peak(precision)
    if precision in {"fp8", "fp4"} and recipe not in available_recipes(gpu):
        known = [
            name for name, pair in LOW_PRECISIONS.items() if pair[1] in available_recipes(gpu) and pair[0] == "fp8"
        ]
        raise InputError(
            f"{gpu.title} does not run the {recipe} recipe", place="--precision", hint=f"choose {', '.join(known)}"
        )
    return precision, recipe


def _gradient_dtype(framework: Framework) -> str:
    """How the framework keeps gradients when nothing is said."""
    states = framework.states or StateBytes()
    return "fp32" if states.gradient == DTYPE_BYTES["fp32"] else "bf16"


def _states(options: JobOptions, said: dict[str, str]) -> StateBytes:
    optimizer = choice("--optimizer", options.get("optimizer", "adam"), tuple(OPTIMIZER_MOMENTS))
    floats = ("fp32", "bf16", "fp16")
    gradient = choice("--grad-dtype", options["grad_dtype"], floats)
    master = choice("--master-dtype", options.get("master_dtype", "fp32"), (*floats, "none"))
    moment = choice("--moment-dtype", options.get("moment_dtype", "fp32"), (*floats, "fp8"))
    states = StateBytes(
        weight=2.0,
        gradient=DTYPE_BYTES[gradient],
        master=DTYPE_BYTES[master],
        moments=OPTIMIZER_MOMENTS[optimizer] * DTYPE_BYTES[moment],
    )
    said["optimizer"] = (
        f"{optimizer}: 16-bit weights, {gradient} gradients, {master} master weights, {moment} moments: "
        f"{states.total:g} bytes per parameter before sharding"
    )
    return states


def _memory_limit(options: JobOptions, gpu: GpuSpec, said: dict[str, str]) -> float:
    if "memory_limit_gib" in options:
        limit = float(options["memory_limit_gib"])
        if not 0.0 < limit <= 10_000.0:
            raise InputError(f"{limit:g} GiB is out of range", place="--memory-limit", hint="give GiB per GPU")
        said["memory_limit"] = f"{limit:g} GiB per GPU"
        return limit * GIB
    usable = gpu.memory_bytes * (1 - MEMORY_HEADROOM)
    said["memory_limit"] = (
        f"{usable / GIB:.1f} GiB per GPU ({gpu.memory_bytes / GIB:.1f} GiB as the driver reports, "
        f"less {MEMORY_HEADROOM:.0%} for fragmentation)"
    )
    return usable


def choice(place: str, value: str, known: tuple[str, ...]) -> str:
    """Return `value` in lower case if it is one of `known`, or refuse it with the list."""
    lowered = str(value)[:40].lower()
    if lowered not in known:
        raise InputError(f"unknown value {lowered!r}", place=place, hint=f"choose {', '.join(known)}")
    return lowered


def _fabric(cluster: ClusterSpec) -> str:
    levels = ", ".join(f"{level.name} {level.egress_bytes_per_s / 1e9:.3g} GB/s" for level in cluster.levels)
    return f"{cluster.gpu.title}; per GPU {levels}"


def _precision_name(spec: JobSpec) -> str:
    """What `--precision` calls the job's precision and recipe."""
    pair = (spec.precision, spec.recipe)
    return next((name for name, known in LOW_PRECISIONS.items() if known == pair), spec.precision)


def _request(model: str, cluster: str, spec: JobSpec, options: JobOptions) -> dict[str, str | int | float]:
    """Everything that rebuilds the same job: the chosen values, not the rules that chose them."""
    out: dict[str, str | int | float] = {
        "model": model,
        "cluster": cluster,
        "gpus": spec.gpus,
        "seq": spec.sequence,
        "gbs": spec.global_batch_size,
        "framework": spec.runtime.name,
        "precision": _precision_name(spec),
        "vocab_multiple": spec.vocab_multiple,
        "moe_imbalance": spec.moe_imbalance,
        "optimizer": options.get("optimizer", "adam").lower(),
        "grad_dtype": options["grad_dtype"].lower(),
        "master_dtype": options.get("master_dtype", "fp32").lower(),
        "moment_dtype": options.get("moment_dtype", "fp32").lower(),
    }
    if "memory_limit_gib" in options:
        out["memory_limit_gib"] = float(options["memory_limit_gib"])
    if "gpus_per_node" in options:
        out["gpus_per_node"] = options["gpus_per_node"]
    if "cp_comm" in options:
        out["cp_comm"] = spec.runtime.cp_comm
    if "axis_order" in options:
        out["axis_order"] = "-".join(spec.axis_order)
    if "pipeline_split" in options:
        out["pipeline_split"] = spec.runtime.pipeline_split
    if "overlap" in options:
        out["overlap"] = overlap_name(parse_overlap(options["overlap"]))
    if spec.offload.any:
        out["offload"] = offload_name(spec.offload)
    return out
