"""From a request to a `JobSpec`: names resolved, what was left out chosen by rules that the answer states, what a
calibrated site adds; and what a question says of constraints and money."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuscale.architecture.parameters import count_adapters, matrices_of, model_parameters
from gpuscale.arrays import FloatArray, log
from gpuscale.calibration.factors import LEVEL, factor_of, names_for, with_factors
from gpuscale.calibration.site import (
    HELD_80,
    Known,
    layout_key,
    likeness,
    sensitivities,
    site_spec,
    variance,
    variances,
)
from gpuscale.calibration.site_file import Site, read_site
from gpuscale.choices import LOW_PRECISIONS, MEMORY_HEADROOM, TRAINED
from gpuscale.collectives.alltoall import writes_remotely
from gpuscale.energy import power_of
from gpuscale.errors import InputError, did_you_mean
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.space import divisors, odd_factor
from gpuscale.placement import parse_order
from gpuscale.presets.files import settled
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.presets.rates import load_rates, prices_of
from gpuscale.presets.settings import with_settings
from gpuscale.request import (
    ALL_CLUSTERS,
    DEFAULT_BATCH_TOKENS,
    DEFAULT_SEQUENCE,
    DTYPE_BYTES,
    MAX_BATCH,
    MOST_BATCH_TOKENS,
    OF_EXPERTS,
    OPTIMIZERS,
    OPTIONS,
    PRECISIONS,
    JobOptions,
    Question,
    in_sequences,
    overlap_name,
    parse_offload,
    parse_overlap,
    read,
    sequences_of,
)
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.search.evaluation import evaluate
from gpuscale.search.objectives import OBJECTIVES, TOTAL_COST, Constraint, Economics, Objective
from gpuscale.specs.cluster import LARGEST_BOX, NETWORKS, ClusterSpec
from gpuscale.specs.gpu import PRE_AMPERE, WIDE, GpuSpec
from gpuscale.specs.job import (
    ATTENTION_NEEDS,
    LIBRARY_KERNELS,
    FrameworkSpec,
    JobSpec,
    OffloadSpec,
    RuntimeSpec,
    StateBytes,
)
from gpuscale.specs.lengths import LengthsSpec, lengths_of
from gpuscale.specs.model import ModelSpec
from gpuscale.specs.tuning import (
    METHOD_SPECS,
    PLAIN,
    PROJECTION_RANK,
    MethodSpec,
    ProjectionSpec,
    TuningSpec,
    read_joined,
    read_targets,
)
from gpuscale.steptime.kernels import available_recipes
from gpuscale.steptime.offload import host_of
from gpuscale.units import DAY_S, GB, GIB, format_count, plural

HOLDS_FOR = {"gpu": "gpu", "cluster": "cluster", "framework": "software"}
"""What a factor holds for -> the text of `likeness` that must be that of a measured run."""

SHOWN_FILES = 3


def factors_for(job: JobSpec, site: Site) -> dict[str, float]:
    """Return the factors of a site that hold for a job."""
    like = likeness(job)
    known = {text: site.seen(text) for text in HOLDS_FOR.values()}
    found = {}
    for name, factor in site.factors.items():
        declared = factor_of(name)
        text = HOLDS_FOR[declared.holds_for] if declared else ""
        level = name.removeprefix(LEVEL)
        there = not name.startswith(LEVEL) or any(one.name == level for one in job.cluster.levels)
        if text and there and like[text] in known[text]:
            found[name] = factor.value
    return found


def calibrated(job: JobSpec, site: Site) -> tuple[JobSpec, str, list[str]]:
    """Return a job on a calibrated site, what the answer says of it, and notes."""
    factors, runs = factors_for(job, site), site.runs
    known, like = [run.known for run in runs], likeness(job)
    spec = replace(with_factors(job, factors), site=site_spec(known, [run.weight for run in runs], like))
    files = list(dict.fromkeys(run.file for run in runs))
    named = ", ".join(files[:SHOWN_FILES]) + (", ..." if len(files) > SHOWN_FILES else "")
    said = ", ".join(f"{name} x {value:.3g}" for name, value in factors.items())
    text = f"{site.path}: {plural(len(runs), 'run')} ({named}); {said or 'no factor holds here'}"
    left = [name for name in site.factors if name not in factors]
    notes = []
    if left:
        kinds = dict.fromkeys(one.holds_for for name in left if (one := factor_of(name)))
        where = "; ".join(f"{kind} {', '.join(sorted(site.seen(HOLDS_FOR[kind])))}" for kind in kinds)
        notes.append(f"calibration: {', '.join(left)} not taken: measured on {where}")
    return spec, text, notes


def half_widths(job: JobSpec, site: Site, rows: Candidates) -> FloatArray:
    """Half the width of the 80 % interval of log(measured / predicted step time) of layouts on the calibrated site,
    (N,)."""
    plain, like = replace(job, site=None), likeness(job)
    names = tuple(dict.fromkeys([*names_for(job), *(name for run in site.runs for name in run.sensitivity)]))

    def predict(factors: Mapping[str, float]) -> FloatArray:
        return log(evaluate(rows, with_factors(plain, factors)).step.step_time_s)

    own = set(names_for(job))
    mine = [name for name in names if name in own]
    theirs = np.zeros((len(rows), len(names)))
    theirs[:, [names.index(name) for name in mine]] = sensitivities(predict, mine, {}, predict({}))
    runs = site.runs
    sensitivity = np.array([[run.sensitivity.get(name, 0.0) for name in names] for run in runs])
    wanted = [Known(like, layout_key(rows.row(row))) for row in range(len(rows))]
    noise = np.array([run.noise for run in runs])
    spread = variance([run.known for run in runs], noise, sensitivity, variances(names), wanted, theirs)
    return np.asarray(HELD_80 * np.sqrt(spread), dtype=np.float64)


class Job(NamedTuple):
    """A job with the account of how it was made."""

    spec: JobSpec
    assumptions: dict[str, str]  #: name -> what was chosen and by which rule.
    notes: tuple[str, ...]  #: what a user should know: an extended fabric, a model read in part.
    request: dict[str, str | int | float]  #: the options in full, as a plan file stores them.
    site: Site | None = None  #: the calibration that holds, if one was given.
    plain: ClusterSpec | None = None  #: the cluster before it was calibrated.


class Presets:
    """Models and clusters by what a user calls them, each made once: several jobs share them."""

    def __init__(
        self, model: Callable[[str], ModelSpec] | None = None, cluster: Callable[[str], ClusterSpec] | None = None
    ) -> None:
        self.named = cache(settled)
        self.model = cache(model or (lambda name: load_model(self.named("models", name)[0])))
        self.cluster = cache(cluster or (lambda name: load_cluster(self.named("clusters", name)[0])))
        self.site = cache(lambda path: read_site(Path(path)))
        self._set = cache(lambda name, made: with_settings(self.cluster(name), made) if made else self.cluster(name))
        self._taken = cache(lambda per_node, *named: self._set(*named).with_gpus_per_node(per_node))
        self._sized = cache(lambda gpus, *part: self._taken(*part).sized_for(gpus))

    def whole(self, asked: JobOptions) -> ClusterSpec:
        """Return the cluster of a job with what is set of it."""
        return self._set(asked.cluster, asked.set or "")

    def cluster_of(self, asked: JobOptions, groups: Sequence[int] = ()) -> ClusterSpec:
        """Return the cluster of a job with what is set of it and the GPUs that it takes of each node
        (`ClusterSpec.usual_gpus_per_node`)."""
        return self._taken(*self._part(asked, groups))

    def sized_for(self, asked: JobOptions, groups: Sequence[int] = ()) -> tuple[ClusterSpec, str | None]:
        """Return the same, extended for the GPUs of the job where it has fewer, and what to say of that."""
        return self._sized(asked.gpus, *self._part(asked, groups))

    def _part(self, asked: JobOptions, groups: Sequence[int]) -> tuple[int, str, str]:
        per_node = asked.gpus_per_node or self.whole(asked).usual_gpus_per_node(asked.gpus, groups)
        return per_node, asked.cluster, asked.set or ""


FINE_TUNES_WITH = "accelerate"
"""Framework of adapters and preferences where none is given: that of PEFT and TRL."""


def fine_tunes(asked: JobOptions) -> bool:
    """Whether a job trains adapters, learns from preferences, rewards or a teacher, or projects gradients."""
    return asked.tune != "full" or asked.method != "sft" or bool(OPTIMIZERS[asked.optimizer].projected)


def usual_framework(asked: JobOptions) -> str:
    """The framework of a job: where none is given and it fine-tunes, that which does."""
    return FINE_TUNES_WITH if fine_tunes(asked) and "framework" not in asked.given else asked.framework


def settle(asked: JobOptions, presets: Presets) -> tuple[JobOptions, list[str]]:
    """Return the options with the presets' own names for those that are short, and notes that say so; and with the
    framework that fine-tunes, where none is given."""
    asked = replace(asked, framework=usual_framework(asked))
    if asked.teacher is not None:
        asked = replace(asked, teacher=presets.named("models", asked.teacher)[0])
    fields = ("model", "cluster", "framework")
    named = {field: presets.named(f"{field}s", getattr(asked, field)) for field in fields}
    own: dict[str, Any] = {field: name for field, (name, note) in named.items() if note}
    return replace(asked, **own), [note for _, note in named.values() if note]


def build_job(asked: JobOptions, presets: Presets | None = None, groups: Sequence[int] = ()) -> Job:
    """Resolve names and defaults; `groups` are sizes of groups that belong into one NVLink domain, TP and EP x ETP.

    Raises:
        InputError: an unknown name, or options that contradict each other.
    """
    presets = presets or Presets()
    asked, notes = settle(asked, presets)
    model = presets.model(asked.model)
    cluster, extension = presets.sized_for(asked, groups)
    tower = tower_of(asked, model)
    notes += [*model.caveats_with(tower), *cluster.caveats]
    part = gpus_per_node_text(asked, presets.whole(asked), cluster)
    said = {"gpus_per_node": part} if part else {}
    if model.counted_tower:
        said["tower"] = f"{tower}{_by_default(asked, 'tower')}"
    if asked.sharp == "on" or asked.nvls == "off":
        cluster = cluster.adding_up(sharp=asked.sharp == "on", nvls=asked.nvls == "on")
        said |= {"sharp": asked.sharp, "nvls": asked.nvls}
    if asked.set:
        said["set"] = asked.set
        notes += [*_behind_switches(cluster, asked.set), *_past_host_link(cluster, presets.cluster(asked.cluster))]
    notes += [extension] if extension else []
    method = METHOD_SPECS[asked.method]
    teacher = _teacher(asked, model, presets, said)
    sequence, batch = _sequence_and_batch(asked, model, method, said, notes)
    framework = load_framework(asked.framework)
    said["framework"] = f"{framework.name}{_by_default(asked, 'framework')}"
    precision, recipe = _precision(asked, cluster.gpu, framework, said)
    wide = precision in WIDE
    own = "fp32" if wide or framework.states.gradient == DTYPE_BYTES["fp32"] else "bf16"
    gradients = asked.grad_dtype or own
    if asked.tune != "full" and framework.runtime.trains_in_16_bits and not wide:
        own_types: dict[str, Any] = {"master_dtype": "none", "moment_dtype": "bf16"}
        asked = replace(asked, **{name: one for name, one in own_types.items() if name not in asked.given})
        gradients = asked.grad_dtype or "bf16"
    projection = _projection(asked, model)
    trained = model_parameters(model).total + model.counted_tower * (tower == "trained")
    states = _states(asked, gradients, wide, said, _kept_share(asked, model, projection, gradients, trained))
    limit_bytes = cluster.gpu.memory_bytes if asked.memory_limit_gib is None else asked.memory_limit_gib * GIB
    by_default = " (default: what the driver reports)" if asked.memory_limit_gib is None else ""
    usual = f"fragmentation usually leaves {limit_bytes * (1 - MEMORY_HEADROOM) / GIB:.1f}"
    said["memory_limit"] = f"{limit_bytes / GIB:.1f} GiB per GPU{by_default}; {usual}"
    tuning = _tuning(asked, model, framework.runtime, precision, said)
    multiple = framework.vocab_multiple if asked.vocab_multiple is None else asked.vocab_multiple
    said["vocabulary"] = f"padded to a multiple of {multiple} x TP"
    if model.is_moe:
        said["moe_imbalance"] = f"busiest expert rank has {asked.moe_imbalance:g} x the mean tokens"
    runtime = _runtime(asked, framework.runtime, cluster, precision, said, experts=model.is_moe)
    gated = any(block.gated for kind in model.kinds for block in (kind.mlp, kind.moe) if block)
    if asked.swiglu_input_dtype and not gated:
        raise InputError(f"{model.name} has no gated activation", field="swiglu_input_dtype", hint="leave it out")
    _check_experts(asked, model, runtime, cluster, notes)
    offload = _offload(asked.offload or "none", cluster, runtime, said)
    levels = ", ".join(f"{level.name} {level.egress_bytes_per_s / 1e9:.3g} GB/s" for level in cluster.levels)
    said["cluster"] = f"{cluster.name}{_by_default(asked, 'cluster')}: {cluster.gpu.title}; per GPU {levels}"
    spec = JobSpec(
        model=model,
        cluster=cluster,
        gpus=asked.gpus,
        sequence=sequence,
        global_batch_size=batch,
        precision=precision,
        states=states,
        runtime=runtime,
        vocab_multiple=multiple,
        memory_limit_bytes=limit_bytes,
        moe_imbalance=asked.moe_imbalance,
        offload=offload,
        recipe=recipe,
        tuning=tuning,
        tower=tower,
        method=method,
        teacher=teacher,
        projection=projection,
        lengths=_lengths(asked, sequence, said),
        axis_order=JobSpec.axis_order if asked.axis_order is None else parse_order(asked.axis_order),
    )
    samples = batch // method.sequences
    chosen = {
        "seq": sequence, "gbs": samples if batch * sequence <= MOST_BATCH_TOKENS else in_sequences(samples),
        "framework": runtime.name, "vocab_multiple": multiple, "grad_dtype": gradients,
        "precision": next((name for name, pair in LOW_PRECISIONS.items() if pair == (precision, recipe)), precision),
        "offload": asked.offload if offload.any else None,
    }  # fmt: skip
    site = None
    if asked.calibration is not None:
        site = presets.site(asked.calibration)
        spec, said["calibration"], more = calibrated(spec, site)
        notes += more
    request = {name: value for name, value in {**asked.values(), **chosen}.items() if value is not None}
    return Job(spec, said, tuple(notes), request, site, cluster)


def tower_of(asked: JobOptions, model: ModelSpec) -> str:
    """Return what is counted of towers: by default they are trained where all weights are, as by the Trainer of
    transformers and recipes of Megatron-Bridge (`freeze_vision_model`); LLaMA-Factory and ms-swift freeze them."""
    if asked.tower not in {None, "none"} and not model.counted_tower:
        unknown = " whose parameters are counted" if model.towers else ""
        hint = "leave it out" if not model.towers else "state them in a model file, [towers] (docs/models.md)"
        raise InputError(f"{model.name} has no tower{unknown}", field="tower", hint=hint)
    usual = "trained" if asked.tune == "full" else "frozen"
    return (asked.tower or usual) if model.counted_tower else "none"


def gpus_per_node_text(asked: JobOptions, whole: ClusterSpec, taken: ClusterSpec) -> str:
    """Say how many GPUs of each node a job takes; nothing of all, untold."""
    node, part = whole.levels[whole.domain_index].gpus, taken.levels[taken.domain_index].gpus
    if asked.gpus_per_node is None and part == node:
        return ""
    rack, spare = "rack" if node > LARGEST_BOX else "node", f", {node - part} spare" if part < node else ""
    return f"{part} of the {node} GPUs of each {rack}{spare}{_by_default(asked, 'gpus_per_node')}"


def changed_job(job: Job, options: Mapping[str, Any]) -> JobSpec:
    """Build a job anew with some of its options changed, or left out where they are None; an InputError where they
    contradict others."""
    # what is set of it, and the GPUs taken of each node, are in it; which switches add up is asked anew
    cluster = replace(job.plain or job.spec.cluster, sharp=None, nvls=True)
    asked = {name: value for name, value in job.request.items() if name != "set"}
    options = {**options, "gbs": in_sequences(options["gbs"])} if isinstance(options.get("gbs"), int) else options
    asked["gpus_per_node"] = cluster.levels[cluster.domain_index].gpus
    presets = Presets(models_of(job.spec, asked), lambda _: cluster)
    return replace(build_job(read(JobOptions, {**asked, **options}), presets).spec, tight=job.spec.tight)


def models_of(job: JobSpec, asked: Mapping[str, Any]) -> Callable[[str], ModelSpec]:
    """Return what knows the models of a job by what its options call them: its own, and its teacher."""
    taught = {str(asked["teacher"]): job.teacher} if job.teacher is not None and "teacher" in asked else {}
    return lambda name: taught.get(name, job.model)


def _teacher(asked: JobOptions, model: ModelSpec, presets: Presets, said: dict[str, str]) -> ModelSpec | None:
    if asked.method != "distill":
        if asked.teacher is not None:
            raise InputError("only distillation has a teacher", field="teacher", hint="add `method=distill`")
        return None
    if asked.teacher is None:
        raise InputError("distillation learns from a teacher", field="teacher", hint="name its model: `teacher=NAME`")
    teacher = presets.model(asked.teacher)
    if teacher.vocab != model.vocab:
        message = f"{teacher.name} has a vocabulary of {teacher.vocab:,}, {model.name} one of {model.vocab:,}"
        raise InputError(message, field="teacher", hint="logits are compared one by one: choose one of its family")
    if teacher.is_moe:
        message = f"{teacher.name} has experts, and only dense teachers are modelled"
        raise InputError(message, field="teacher", hint="choose a dense model")
    if parse_offload(asked.offload or "none").parameters:
        message = "where a teacher's weights are kept is not modelled beside parameters in host memory"
        raise InputError(message, field="offload", hint="leave out parameters")
    said["teacher"] = f"{teacher.name}: {format_count(model_parameters(teacher).total)} frozen parameters in 16 bits"
    return teacher


def _by_default(asked: JobOptions, name: str) -> str:
    return "" if name in asked.given else " (default)"


def _runtime(
    asked: JobOptions,
    runtime: RuntimeSpec,
    cluster: ClusterSpec,
    precision: str,
    said: dict[str, str],
    *,
    experts: bool,
) -> RuntimeSpec:
    """Return how the framework runs a step, with what the options of the same names change of it."""
    given = {name: value for name, value in asked.values().items() if value is not None and hasattr(runtime, name)}
    if asked.compile is not None and runtime.compile is None:
        raise InputError(f"{runtime.name} has fused kernels of its own", field="compile", hint="leave it out")
    for name, value in given.items():
        said[OPTIONS[name].assumption or name] = str(value)
    given = {"dispatcher": own_dispatcher(runtime, cluster), **given}
    if runtime.routing == "dropping" and given.get("dispatcher", "alltoall") != "alltoall":
        # only alltoall drops tokens, and only then do whole iterations have fixed sizes (Megatron-LM's arguments)
        given = {"routing": "dropless", "cuda_graphs": "none", **given}
    if experts:
        said.setdefault("dispatcher", f"{given.get('dispatcher', runtime.dispatcher)} (default)")
    given |= {"compile": asked.compile == "on"} if asked.compile else {}
    if asked.attention:
        _check_attention(asked.attention, cluster.gpu, precision)
    if asked.loss and not (asked.loss == runtime.loss == "standard"):  # one choice for time and memory
        given["eager"] = tuple(name for name in runtime.eager if name != "loss")
    if asked.axis_order is not None:
        said["axis_order"] = f"{asked.axis_order}, innermost first"
    if asked.overlap is not None:
        parts = parse_overlap(asked.overlap)
        said["overlap"] = asked.overlap
        given |= {"overlap_tp": "tp" in parts, "overlap_ep": "ep" in parts}
        given |= {"overlap_grad_reduce": "dp" in parts, "overlap_param_gather": "dp" in parts}
    return replace(runtime, **given)


def own_dispatcher(runtime: RuntimeSpec, cluster: ClusterSpec) -> str:
    """How experts exchange tokens on a cluster where nothing is said: HybridEP rather than DeepEP, which does not know
    racks of NVLink (Megatron-Bridge, training/flex_dispatcher_backend.py)."""
    in_racks = runtime.dispatcher == "deepep" and cluster.peer_gpus > LARGEST_BOX
    return "hybridep" if in_racks else runtime.dispatcher


def _check_attention(name: str, gpu: GpuSpec, precision: str) -> None:
    made_for, early = ATTENTION_NEEDS.get(name, (gpu.architecture,)), gpu.architecture in PRE_AMPERE
    foreign = gpu.vendor != "NVIDIA" and name in {*ATTENTION_NEEDS, "cudnn"}
    hint = f"choose {'' if early or precision in WIDE else 'fa2, '}sdpa or eager"
    if foreign or not gpu.architecture.startswith(made_for) or (early and name in LIBRARY_KERNELS):
        raise InputError(f"{name} does not run on {gpu.title}", field="attention", hint=hint)
    if precision in WIDE and name in LIBRARY_KERNELS:
        raise InputError(f"{name} takes no operands of 32 bits, as {precision} has them", field="attention", hint=hint)


def _behind_switches(cluster: ClusterSpec, settings: str) -> list[str]:
    """Say where links that were set send more than the switches of their level carry."""
    return [
        f"the switches of {level.name} carry {level.egress_bytes_per_s / GB:.4g} of {level.link_bytes_per_s / GB:.4g} "
        f"GB/s per GPU: set {level.name}.switch_gb_per_s too"
        for level in cluster.levels
        if f"{level.name}.link_gb" in settings and level.egress_bytes_per_s < 0.999 * level.link_bytes_per_s
    ]


def _past_host_link(cluster: ClusterSpec, before: ClusterSpec) -> list[str]:
    """Say where a network that was set is faster than the link of a GPU to its host, unless it was before."""
    link = cluster.gpu.host_link_bytes_per_s
    now, was = (
        max((level.link_bytes_per_s for level in one.levels if level.fabric in NETWORKS), default=0.0)
        for one in (cluster, before)
    )
    if not was <= link < now:
        return []
    return [
        f"the network carries {now / GB:.4g} GB/s per GPU, {cluster.gpu.host_link_name} of {cluster.gpu.title} "
        f"{link / GB:.4g}: its cards need a faster way to the GPU than the host has"
    ]


def _check_experts(
    asked: JobOptions, model: ModelSpec, runtime: RuntimeSpec, cluster: ClusterSpec, notes: list[str]
) -> None:
    """Refuse what is said of experts that there are not; note what changes nothing, or costs much of what it hides."""
    parts = [] if asked.overlap is None else parse_overlap(asked.overlap)
    if not model.is_moe:
        stray = next((name for name in OF_EXPERTS if getattr(asked, name)), None)
        if stray:
            raise InputError(f"{model.name} has no experts", field=stray, hint="leave it out")
        if "ep" in parts:
            rest = overlap_name([part for part in parts if part != "ep"])
            message, hint = f"{model.name} has no experts, whose AllToAll ep overlaps", f"give `overlap={rest}`"
            raise InputError(message, field="overlap", hint=hint)
    if model.is_moe and runtime.dispatcher != "alltoall" and not writes_remotely(cluster):
        notes.append(
            f"`dispatcher={runtime.dispatcher}` writes into the memory of other nodes, which no network of "
            f"{cluster.name} can: between nodes tokens travel by NCCL's AllToAll"
        )
    if asked.transport and runtime.dispatcher != "deepep":
        said = f"tokens travel by `dispatcher={runtime.dispatcher}`"
        notes.append(f"`transport` is DeepEP's and changes nothing here: {said}")
    if "ep" in parts and runtime.cuda_graphs == "none":
        notes.append(
            "without CUDA graphs `overlap` ep makes the GPU wait while the CPU issues two microbatches, not one: "
            "`cuda_graphs=partial` takes most of that away"
        )


def _offload(name: str, cluster: ClusterSpec, runtime: RuntimeSpec, said: dict[str, str]) -> OffloadSpec:
    offload = parse_offload(name)
    both = {"optimizer", "parameters"} <= FRAMEWORKS[runtime.rule_set].offload  # else a rule refuses it
    if both and runtime.memory.master_is_weight and offload.optimizer != offload.parameters:
        hint = "its fp32 shard is both parameter and master weight: give optimizer+parameters"
        raise InputError(f"{runtime.name} offloads optimizer and parameters together", field="offload", hint=hint)
    if offload.any:
        host, link = host_of(cluster), cluster.gpu.host_link_bytes_per_s / 1e9
        link = min(link, host.uplink_bytes_per_s / 1e9 or link)
        said["offload"] = (
            f"{name} in host memory: {host.gpus} GPU{'s' * (host.gpus > 1)} of a host have "
            f"{host.memory_bytes / GIB:,.0f} GiB at {host.memory_bytes_per_s / 1e9:g} GB/s, {link:g} GB/s to it"
            + (f", {plural(host.threads_per_gpu, 'CPU thread')} each" if host.threads_per_gpu else "")
        )
    return offload


def _sequence_and_batch(
    asked: JobOptions, model: ModelSpec, method: MethodSpec, said: dict[str, str], notes: list[str]
) -> tuple[int, int]:
    """Return tokens per sequence and sequences per step; of pairs a batch counts the pairs."""
    longest = model.max_sequence
    sequence = asked.seq or min(DEFAULT_SEQUENCE, longest)
    by_default = f" (default: {DEFAULT_SEQUENCE}, or the model's maximum if that is less)"
    said["sequence"] = f"{sequence} tokens{'' if asked.seq else by_default}"
    if sequence > longest:
        notes.append(f"the sequence of {sequence} tokens is longer than the {longest} that the model supports")
    each = sequence if asked.gbs is None or str(asked.gbs).endswith("seq") else sequence * method.sequences
    given = sequences_of(asked.gbs, each) if isinstance(asked.gbs, str) else asked.gbs
    usual = -(-FINE_TUNING_BATCH // asked.gpus) * asked.gpus
    by_itself = usual if fine_tunes(asked) else default_batch(model, asked.gpus, sequence)
    batch = (given or by_itself) * method.sequences
    if asked.method != "sft":
        passes = f", {plural(method.forwards, 'forward pass')} without gradients" if method.forwards else ""
        said["method"] = f"{method.title}: {plural(method.sequences, 'sequence')} per sample{passes}"
    mi_tokens = batch * sequence / 2**20
    by_rule = f"{FINE_TUNING_BATCH} samples, or one per GPU" if fine_tunes(asked) else "by model and GPUs"
    by_default = "" if asked.gbs else f" (default: {by_rule})"
    said["global_batch"] = f"{batch} sequences, {mi_tokens:,.3g} Mi tokens{by_default}"
    if batch * sequence > LARGE_BATCH_TOKENS * batch_growth(model):
        notes.append(f"a global batch of {mi_tokens:,.0f} Mi tokens is more than most models are trained with")
    elif batch < _one_for_each(model, asked.gpus, sequence):
        notes.append(
            f"a batch of {batch:,} is fewer sequences than {asked.gpus:,} GPUs, which a model of this size hardly "
            "needs to split: with a larger batch each GPU does more"
        )
    return sequence, batch


FINE_TUNING_BATCH = 64
"""Samples of a step of fine-tuning where nobody says: between the 16 of QLoRA (Dettmers et al. 2023, table 9) and the
128 of Alpaca and Tulu 3."""

LARGE_BATCH_TOKENS = 32 * 2**20
"""Above this a note says so, of a dense model: the largest published batches are of 16 Mi tokens (Llama 3.1 405B,
section 3.4.1)."""

SELDOM_SPLIT = 30e9
"""Parameters below which a node holds a whole copy of Adam's states, so that data parallelism alone will do."""

SMALL_MODEL = 7e9
"""Parameters below which models are trained with smaller batches: 0.5 M tokens for 125 M parameters, 1 M for 1.3 B, 2 M
for 6.7 B (Brown et al. 2020, table 2.1), 4 M for all of Llama 2 from 7 B on (Touvron et al. 2023)."""


def batch_growth(model: ModelSpec) -> float:
    """How many times as many tokens a step has as one of a dense model of 7 B parameters or more. Smaller models take
    less, with the root of their parameters; mixtures more, as an expert sees only the tokens routed to it: the root of
    all parameters over those that a token uses, 4 for DeepSeek-V3, trained with up to 60 Mi tokens (arXiv 2412.19437,
    section 4.2)."""
    counted = model_parameters(model)
    return math.sqrt(min(1.0, counted.total / SMALL_MODEL)) * math.sqrt(counted.total / counted.active)


def _one_for_each(model: ModelSpec, gpus: int, sequence: int) -> int:
    """Return the sequences of a step without which GPUs starve that need one each: of a model of which a node holds a
    whole copy, and of long sequences as many tokens, since context parallelism splits these."""
    if model_parameters(model).total >= SELDOM_SPLIT:
        return 0
    return -(-gpus * min(sequence, DEFAULT_SEQUENCE) // sequence)


def default_batch(model: ModelSpec, gpus: int, sequence: int) -> int:
    """Return the sequences of a step where nobody says: `DEFAULT_BATCH_TOKENS` times `batch_growth`, times sqrt(GPUs /
    1,024) above 1,024 GPUs, but no GPU without a sequence that needs one (`_one_for_each`), short of what most models
    are trained with. Of the multiples by 2^k and 3 x 2^k of g, the largest divisor of the GPUs below twice that, if
    possible with their odd factor, which TP and PP hardly ever take, it is the nearest, the larger of two."""
    growth = batch_growth(model)
    usual = DEFAULT_BATCH_TOKENS * growth * math.sqrt(max(1.0, gpus / 1024)) / sequence
    target = max(usual, min(_one_for_each(model, gpus, sequence), LARGE_BATCH_TOKENS * growth / sequence))
    odd, sizes = odd_factor(gpus), divisors(gpus).tolist()
    unit = max((size for size in sizes if size < 2 * target), key=lambda g: (g % odd == 0, g), default=1)
    multiples = sorted(factor << k for factor in (1, 3) for k in range(MAX_BATCH.bit_length()))
    return unit * min(multiples, key=lambda times: (abs(times - target / unit), -times))


def _precision(asked: JobOptions, gpu: GpuSpec, framework: FrameworkSpec, said: dict[str, str]) -> tuple[str, str]:
    """Return the precision of matrix products and the recipe by which their operands are quantised."""
    recipe = framework.runtime.fp8_recipe
    if asked.precision is None:
        precision = "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16"
        said["precision"] = f"{precision} (default)"
    else:
        precision, own = LOW_PRECISIONS.get(asked.precision, (asked.precision, ""))
        recipe = own or recipe
        low = asked.precision in LOW_PRECISIONS
        said["precision"] = f"{precision}, {recipe} scaling{'' if own else ' (framework)'}" if low else precision
    lacks = "" if precision in gpu.peak_flops_per_s else f"has no {precision} arithmetic"
    if not lacks and precision in {"fp8", "fp4"} and recipe not in available_recipes(gpu):
        lacks = f"does not run the {recipe} recipe"
    if lacks:
        can, usual = FRAMEWORKS[framework.runtime.rule_set], framework.runtime.fp8_recipe
        pairs = {name: LOW_PRECISIONS.get(name, (name, "")) for name in PRECISIONS if precision_runs(name, gpu, usual)}
        runs = [
            name
            for name, (products, own) in pairs.items()
            if products in can.precisions and (name not in LOW_PRECISIONS or (own or usual) in can.recipes)
        ]
        raise InputError(f"{gpu.title} {lacks}", field="precision", hint=f"choose {', '.join(runs)}")
    return precision, recipe


def precision_runs(name: str, gpu: GpuSpec, usual_recipe: str) -> bool:
    """Whether the GPU has units for a precision and its recipe, or else the usual one."""
    products, recipe = LOW_PRECISIONS.get(name, (name, ""))
    has = products in gpu.peak_flops_per_s
    return has and (name not in LOW_PRECISIONS or (recipe or usual_recipe) in available_recipes(gpu))


def _projection(asked: JobOptions, model: ModelSpec) -> ProjectionSpec | None:
    by = OPTIMIZERS[asked.optimizer].projected
    if not by:
        if asked.optimizer_rank is not None:
            raise InputError(f"{asked.optimizer} projects no gradients", field="optimizer_rank",
                             hint="leave it out, or choose `optimizer=galore` or apollo")  # fmt: skip
        return None
    for field, other in (("tune", asked.tune != "full"), ("model", model.is_moe), ("offload", asked.offload)):
        if other:
            what = {"tune": "beside adapters", "model": "of experts", "offload": "in host memory"}[field]
            message = f"{asked.optimizer} is not modelled {what}"
            raise InputError(message, field=field, hint="choose `optimizer=adamw-8bit`")
    return ProjectionSpec(asked.optimizer_rank or PROJECTION_RANK, by == "svd")


def _kept_share(
    asked: JobOptions, model: ModelSpec, projection: ProjectionSpec | None, gradients: str, trained: float
) -> float | None:
    """Return what a projecting optimizer keeps of moments and projections, per trained parameter [bytes]."""
    if projection is None:
        return None
    number, own, _ = OPTIMIZERS[asked.optimizer]
    each = number * (DTYPE_BYTES[asked.moment_dtype] if own is None else own)
    matrices = matrices_of(model)
    projected = sum(count * larger * smaller for count, larger, smaller in matrices)
    kept = sum(one[0] * projection.state_bytes(one[1], one[2], each, DTYPE_BYTES[gradients]) for one in matrices)
    return (kept + (trained - projected) * each) / trained


def _states(
    asked: JobOptions, gradients: str, wide: bool, said: dict[str, str], kept_share: float | None
) -> StateBytes:
    master = "none" if wide else asked.master_dtype  # weights of 32 bits are their own
    number, own, _ = OPTIMIZERS[asked.optimizer]
    each = DTYPE_BYTES[asked.moment_dtype] if own is None else own
    states = StateBytes(
        weight=4.0 if wide else 2.0,
        gradient=DTYPE_BYTES[gradients],
        master=DTYPE_BYTES[master],
        moments=number * each if kept_share is None else kept_share,
        second_moment=(number == 2 and own is None and kept_share is None) * each,
        paged=asked.optimizer.startswith("paged"),
    )
    what = "parameter" if asked.tune == "full" else "trained parameter"
    kept = f"{asked.moment_dtype} moments" if own is None else f"moments of {own:.3g} bytes"
    if kept_share is not None:
        kept += f" of gradients of rank {asked.optimizer_rank or PROJECTION_RANK}"
    said["optimizer"] = (
        f"{asked.optimizer}: {32 if wide else 16}-bit weights, {gradients} gradients, {master} master weights, "
        f"{kept}: {states.total:.4g} bytes per {what} before sharding"
    )
    return states


def _lengths(asked: JobOptions, sequence: int, said: dict[str, str]) -> LengthsSpec | None:
    if asked.lengths is None:
        if asked.packing is not None:
            raise InputError("says how samples of other lengths fill sequences", field="packing", hint="add `lengths`")
        return None
    found = lengths_of(asked.lengths, sequence, packed=bool(asked.packing))
    how = f"packed {sequence / found.mean:.3g} to a sequence" if found.packed else "padded, in time to their microbatch"
    said["lengths"] = f"{found.tokens[0]:,} to {found.tokens[-1]:,} tokens, {found.mean:,.0f} on average, {how}"
    return found


OF_TUNING = ("lora_rank", "lora_targets", "lora_experts", "lora_dropout", "train", "base_dtype")
"""Options that say something of adapters and of what is frozen beside them."""

USUAL_RANK = 16
"""Of adapters, where none is given: between PEFT's 8 and the 64 of Dettmers et al. 2023."""


def _tuning(
    asked: JobOptions, model: ModelSpec, runtime: RuntimeSpec, precision: str, said: dict[str, str]
) -> TuningSpec | None:
    if asked.tune == "full":
        stray = next((name for name in OF_TUNING if getattr(asked, name) is not None), None)
        if stray:
            raise InputError("says something of adapters", field=stray, hint="add `tune=lora` or `tune=qlora`")
        return None
    wide = "fp16" if precision == "fp16" else "bf16"
    wide = "fp32" if runtime.frozen_dtype == "fp32" or precision in WIDE else wide
    base = asked.base_dtype or ("nf4" if asked.tune == "qlora" else wide)
    if asked.tune == "qlora" and base in PLAIN:
        raise InputError(f"qlora stores frozen weights in fewer bits than {base}", field="base_dtype",
                         hint="leave it out, or ask for `tune=lora`")  # fmt: skip
    if asked.lora_experts and not model.is_moe:
        raise InputError(f"{model.name} has no experts", field="lora_experts", hint="leave it out")
    targets = asked.lora_targets or "all"
    tuning = TuningSpec(
        rank=asked.lora_rank or USUAL_RANK,
        targets=read_targets(targets),
        joined=read_joined(targets),
        base=base,
        experts=bool(asked.lora_experts),
        trained=frozenset((asked.train or "").split(",")) & frozenset(TRAINED),
        dropout=runtime.lora_dropout if asked.lora_dropout is None else asked.lora_dropout,
    )
    adapters = count_adapters(model, tuning).total
    if not adapters:
        raise InputError(f"{model.name} has no matrix of these outside its experts", field="lora_targets",
                         hint="give all, attention or mlp, or add `lora_experts`")  # fmt: skip
    beside = f" and {asked.train.replace(',', ', ')}" if tuning.trained and asked.train else ""
    share = adapters / model_parameters(model).total
    said["tuning"] = (
        f"adapters of rank {tuning.rank}{'' if asked.lora_rank else ' (default)'}, {format_count(adapters)} parameters "
        f"({share:.2%} of the model's){beside} are trained; the rest is frozen, its matrices in {base}"
    )
    return tuning


PLAIN_OBJECTIVES = ("step_time", "tokens_per_s", "mfu", "memory")
"""Objectives that need no more than what every plan says."""

CONSTRAINTS = {
    "max_memory": (OBJECTIVES["memory"], 1.0, "GiB", "GiB"),
    "min_mfu": (OBJECTIVES["mfu"], 0.01, "% MFU", "%"),
    "max_step_time": (OBJECTIVES["step_time"], 1.0, "s per step", "s"),
    "max_days": (OBJECTIVES["time_to_train"], DAY_S, "days", "d"),
    "max_cost": (TOTAL_COST, 1.0, "USD", ""),
}
"""Constraint -> what it limits, its unit in that of the objective, that unit in words, and as the option takes it."""


def constraints(question: Question) -> tuple[Constraint, ...]:
    """Return the constraints in the order in which they are checked, in the units of their objectives."""
    limits = [(code, *stated[:2], getattr(question, code)) for code, stated in CONSTRAINTS.items()]
    return tuple(Constraint(code, goal, limit * unit) for code, goal, unit, limit in limits if limit is not None)


def economics(question: Question, job: JobSpec, *clusters: str) -> Economics:
    """Return price, number of tokens, power and carbon of a job on a cluster, which goes by any of these names.

    Raises:
        InputError: something asked needs a price or the number of tokens, and there is none.
    """
    prices = question.gpu_hour_price
    price = next((prices[name] for name in (*clusters, ALL_CLUSTERS) if name in prices), None)
    if price is None and question.price_term is not None:
        published = prices_of(job.cluster.name, job.cluster.gpu.name).get(question.price_term.replace("-", "_"))
        price = published.value if published else None
    found = Economics(price, question.train_tokens)
    if {"energy", "carbon"} & {question.objective, *question.pareto}:
        rates = load_rates(question.rate)
        found = found._replace(power=power_of(job, rates), kg_per_kwh=rates["carbon_kg_per_kwh"].value)
    asked: list[tuple[str, Objective]] = [("objective", OBJECTIVES[question.objective])] if question.objective else []
    asked += [("pareto", OBJECTIVES[name]) for name in question.pareto]
    asked += [(one.code, one.objective) for one in constraints(question)]
    for option, goal in asked:
        for name in goal.missing(found):
            needed, example = _NEEDED[name]
            what = f"{goal.name} of {clusters[0]}" if name == "usd_per_gpu_hour" and prices else goal.name
            raise InputError(f"{what} needs `{needed}`", field=option, hint=f"add `{needed}={example}`")
    return found


_NEEDED = {"usd_per_gpu_hour": ("gpu_hour_price", "2.5"), "train_tokens": ("train_tokens", "15T")}


def check_prices(question: Question, clusters: Sequence[str]) -> None:
    """Refuse a price of a cluster that goes by none of these names."""
    for name in question.gpu_hour_price:
        if name != ALL_CLUSTERS and name not in clusters:
            hint = did_you_mean(name, dict.fromkeys(clusters), "clusters are")
            raise InputError(f"{name[:60]!r} is not one of the clusters", field="gpu_hour_price", hint=hint)
