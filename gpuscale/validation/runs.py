"""Measured training runs: each row becomes a job and a layout, with every default named, and these are evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, SCHEDULES, Candidates, concatenate
from gpuscale.planning.jobs import Presets, build_job
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.files import preset_names
from gpuscale.request import JobOptions, read
from gpuscale.rules.check import ALL_RULES, broken_rules
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec, RuntimeSpec
from gpuscale.specs.model import ModelSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.uncertainty import Features, features
from gpuscale.units import GIB
from gpuscale.validation.machines import Library, row_cluster
from gpuscale.validation.measurements import RUNS, ZERO_STAGES, Row, batched, reason_text
from gpuscale.validation.models import row_model

MEGATRON = frozenset({"megatron-lm", "nemo", "megatron-bridge", "primus"})
"""Frameworks that run Megatron-LM."""

MEGATRON_GENERATIONS = (
    ("2022-01", "megatron-2021"),
    ("2023-08", "megatron-2022"),
    ("2024-10", "megatron-2023"),
    ("2025-08", "megatron-2024"),
)
"""Megatron-LM by date: before SP and fused attention; before fused attention; before attention kernels that use all of
Hopper; before DeepEP; else `megatron-core`."""

MEGATRON_FUSED_ATTENTION = "2024-01"
"""Until this month plain Megatron-LM ran unfused attention, with dropout, unless told otherwise: --transformer-impl was
local and --use-flash-attn off (its arguments.py; neither is set in examples/pretrain_zbh1.sh of
sail-sg/zero-bubble-pipeline-parallelism, 2023). NeMo set fused attention in its recipes."""

HUGGING_FACE_ON_DEEPSPEED = "2023-08"
"""From this month on runs of DeepSpeed ZeRO-3 are taken for Hugging Face models rather than Megatron's."""

TORCHTITAN_EAGER_LOSS = "2025-06"
"""Until this month torchtitan's loss ran uncompiled, on fp32 logits."""

COMPILED_SINCE = "2024-09"
"""From this month on torchtitan's published runs are compiled unless they say otherwise; those of docs/performance.md
(2024-05 and 06) were not, `compile` being off by default."""

NVIDIA_RECIPES = frozenset({"nemo", "megatron-bridge"})
"""Frameworks whose published figures come from performance recipes, since Megatron-LM of 2023."""

EAGER = ("norm", "rotary", "activation", "loss")
"""What runs as chains of eager operations without torch.compile or kernels of a framework."""

PLAIN_PYTORCH: dict[str, Any] = {
    "eager": EAGER,
    "attention": "flash2",
    "wgrad_fusion": False,
    "async_tp_reduce": False,
    "ddp_without_zero": True,
    "sequence_parallel": False,
    "zero_stage": 0,
}
"""A training loop of its own in plain PyTorch, beside the generic profile: scaled_dot_product_attention runs
FlashAttention-2; adding weight gradients inside the GEMM and reducing beside it are Megatron-LM's own kernels and
streams; DistributedDataParallel shards nothing; ColwiseParallel and RowwiseParallel of torch.distributed.tensor leave
the sequence whole unless SequenceParallel is asked for."""


def profile_name(name: str, date: str, zero: str = "") -> str:
    """Name the profile of a framework as it was at `date` (`YYYY-MM`, empty for today); `generic` if it has none.

    Args:
        zero: with parameters sharded (`3`) DeepSpeed drives Hugging Face models, else Megatron's.
    """
    if name == "deepspeed" and (zero != "3" or "" < date < HUGGING_FACE_ON_DEEPSPEED):
        return "megatron-deepspeed"
    if name == "torchtitan" and "" < date < TORCHTITAN_EAGER_LOSS:
        return "torchtitan-2024"
    if name in MEGATRON:
        if name == "megatron-lm" and "2022-01" <= date < MEGATRON_FUSED_ATTENTION:
            return "megatron-2022"
        return next((profile for before, profile in MEGATRON_GENERATIONS if "" < date < before), "megatron-core")
    return name if name in preset_names("frameworks") else "generic"


def runtime_changes(row: Row, runtime: RuntimeSpec) -> dict[str, Any]:
    """What the row's framework, date and columns change of its profile, beside the options of a job."""
    name, compiled = row.text("framework"), row.switch("compile")
    changes: dict[str, Any] = {}
    if name == "pytorch":
        changes |= PLAIN_PYTORCH
    if name == "torchtitan" and compiled is None and "" < row.text("source_date") < COMPILED_SINCE:
        changes["eager"] = EAGER
    if compiled is not None and runtime.rule_set in {"generic", "torchtitan", "torchtitan-2024"}:
        changes["eager"] = runtime.eager if compiled else EAGER
    if name in NVIDIA_RECIPES and runtime.name not in {"megatron-2021", "megatron-2022"}:
        # gradients stay in 16 bits (grad_reduce_in_fp32=False), 8-bit weights have no transposed copy
        # (disable_parameter_transpose_cache=True) (NVIDIA-NeMo/Megatron-Bridge, scripts/performance)
        stored = dict.fromkeys(("bf16", "fp16", "fp4", "fp8"), 2.0)
        changes["memory"] = replace(runtime.memory, stored_gradient_bytes=stored, fp8_weight_bytes=1.0)
    if row.text("dispatcher"):
        changes["expert_dispatch"] = "alltoall" if row.text("dispatcher") == "alltoall" else "deduplicated"
    overlaps = {"overlap_tp": "tp", "overlap_grad_reduce": "dp", "overlap_param_gather": "dp", "overlap_ep": "ep"}
    stated = {field: row.switch(f"overlap_{part}") for field, part in overlaps.items()}
    return changes | {field: on for field, on in stated.items() if on is not None}


class Run(NamedTuple):
    """A run ready to be evaluated.

    Attributes:
        assumed: what the row does not state and was taken by default.
    """

    job: JobSpec
    layout: Candidates
    assumed: tuple[str, ...]


FATAL = ("batch_not_divisible_by_dp", "batch_not_divisible", "expert_grid", "too_few_layers")
"""Rules without which a prediction has no meaning; a measured run may well break the others."""

USABLE_MEMORY = 0.95
"""Share of the GPU's memory up to which a run that offloads activations is assumed to fill it."""


def read_run(row: Row, library: Library | None = None) -> Run:
    """Turn a row into a job and a layout.

    Args:
        library: presets that were read for earlier rows of the same file.

    Raises:
        InputError: a cell is wrong, the row lacks something that has no default, or its layout cannot be.
    """
    library = library or Library()
    row.check(RUNS)
    missing = [name for name in ("gpus", "seq", "gbs") if not row.whole(name)]
    if missing:
        raise InputError(f"the row does not state {', '.join(missing)}")
    cluster, of_cluster = row_cluster(row, row.whole("gpus") or 0, library)
    model, of_model = row_model(row, library)
    assumed = [*of_cluster, *of_model]
    job = _job(row, model, cluster, assumed)
    layout = fixed_layout(job, _layout(row, job, assumed))
    broken = broken_rules(layout, job, [rule for rule in ALL_RULES if rule.code in FATAL])
    if broken:
        raise InputError("; ".join(rule.text for rule in broken))
    if job.offload.activations and ":" not in row.text("offload"):  # recipes keep on the GPU what fits
        held = evaluate(layout, replace(job, offload=replace(job.offload, activations=0.0))).memory
        stage = int(held.by_stage[:, 0].argmax())
        beyond = held.by_stage[stage, 0] - USABLE_MEMORY * cluster.gpu.memory_bytes
        share = float(min(max(beyond / max(held.activations[stage, 0], 1.0), 0.0), 1.0))
        assumed.append(f"{share:.0%} of the activations offloaded, as memory asks for")
        job = replace(job, offload=replace(job.offload, activations=share))
    if job.runtime.selective_share and row.text("recompute") == "selective":
        layout = replace(layout, recompute_modules=layout.recompute_modules | EVERY_OTHER_MATMUL)
    return Run(job, layout, tuple(assumed))


def _job(row: Row, model: ModelSpec, cluster: ClusterSpec, assumed: list[str]) -> JobSpec:
    """Build the job as `plan` does, from the options that the row states; all of the GPU's memory may be used."""
    profile = profile_name(row.text("framework"), row.text("source_date"), row.text("zero"))
    offload = row.text("offload") or None
    if offload not in {None, "none"} and cluster.host is None:
        assumed.append(f"offload of {row.raw('offload')[:40]} left out: {cluster.name} has no [host]")
        offload = None
    states = row.text("state_dtype") or None
    asked = {
        "model": "", "cluster": "", "gpus": row.whole("gpus"), "seq": row.whole("seq"), "gbs": row.whole("gbs"),
        "framework": profile, "precision": _precision(row, cluster, profile, assumed), "offload": offload,
        "grad_dtype": states, "master_dtype": states, "moment_dtype": states or row.text("moment_dtype") or None,
        "cuda_graphs": row.text("cuda_graphs") or None,
    }  # fmt: skip
    job = build_job(read(JobOptions, asked), Presets(lambda _: model, lambda _: cluster)).spec
    return replace(job, runtime=replace(job.runtime, **runtime_changes(row, job.runtime)))


TRAINS_IN_FP16 = frozenset({"megatron-deepspeed"})
"""Profiles whose 16-bit training is in fp16 when nothing is said: Megatron-DeepSpeed's GPT scripts pass --fp16, and
DeepSpeed knows bf16 only since release 0.6.0 of 2022-03."""

RECIPES = {
    "mxfp8": "mxfp8", "mx": "mxfp8", "cs": "fp8-current", "current": "fp8-current", "tensorwise": "fp8-current",
    "rowwise": "fp8-current", "dynamic": "fp8-current", "ds": "fp8-delayed", "delayed": "fp8-delayed",
    "hybrid": "fp8-delayed", "sc": "fp8-blockwise", "subchannel": "fp8-blockwise", "block": "fp8-blockwise",
    "blockwise": "fp8-blockwise",
}  # fmt: skip
"""Word in a precision's name -> precision of a job; `cs`, `ds` and `sc` (sub-channel) are NeMo's and Megatron-Bridge's.
Without one of them the recipe is the framework's own."""


def _precision(row: Row, cluster: ClusterSpec, profile: str, assumed: list[str]) -> str:
    text = row.text("precision")
    sixteen = "bf16" if "bf16" in cluster.gpu.peak_flops_per_s else "fp16"
    if not text:
        sixteen = "fp16" if profile in TRAINS_IN_FP16 else sixteen
        assumed.append(f"{sixteen} mixed precision")
        return sixteen
    if "fp4" in text:
        return "nvfp4"
    if "fp8" in text:
        return next((RECIPES[word] for word in re.split(r"[^a-z0-9]+", text) if word in RECIPES), "fp8")
    return "fp16" if "fp16" in text else sixteen


OTHER_SCHEDULES = {"zb (zbv)": "zb-v", "zbv": "zb-v", "afab": "gpipe", "dualpipev": "dualpipe"}
"""How forks and other frameworks call a schedule; `zb (zbv)` is a zero-bubble fork of Megatron-LM."""


def _layout(row: Row, job: JobSpec, assumed: list[str]) -> dict[str, Any]:
    """The layout as `fixed_layout` reads it."""
    runtime, moe, node = job.runtime, job.model.is_moe, job.cluster.node_gpus
    out: dict[str, Any] = {name: row.whole(name) or 1 for name in ("tp", "pp", "cp", "ep")}
    out["micro_batch_size"] = row.whole("mbs") or 1
    ranks = max(1, job.gpus // (out["tp"] * out["pp"]))  # DP x CP
    dp, zero, sp = max(1, ranks // out["cp"]), row.text("zero"), row.switch("sp")
    out["vpp"] = row.whole("vp") or _recipe_chunks(row, job, out, dp)
    # Megatron-LM's default is ETP = TP; recipes with EP set 1
    out["etp"] = row.whole("etp") or (out["tp"] if moe and out["ep"] == 1 else 1)
    out["sp"] = out["tp"] > 1 and (runtime.sequence_parallel if sp is None else sp)
    out["zero"] = ZERO_STAGES.get(zero, runtime.zero_stage) if ranks > 1 else 0
    if out["zero"]:
        out["shard"] = row.whole("shard")
    if zero == "hsdp" and not row.whole("shard"):  # the ranks of a node, as far as these divide all
        out["shard"] = max(size for size in range(1, max(1, node // out["tp"]) + 1) if ranks % size == 0)
    out["recompute"] = _recompute(row, job)
    asked = OTHER_SCHEDULES.get(row.text("schedule"), row.text("schedule"))
    known = asked in SCHEDULES and not (asked == "dualpipe" and out["pp"] % 2)
    out["schedule"] = asked if known else "1f1b"
    if out["pp"] > 1 and asked and asked not in SCHEDULES:
        assumed.append(f"1F1B in place of schedule {row.raw('schedule')[:20]}")
    if row.whole("dp") not in {None, 0, dp}:
        assumed.append(f"DP {dp} from the GPUs, the row says {row.whole('dp')}")
    if not row.whole("mbs"):
        assumed.append("microbatch 1")
    if job.gpus > 1 and row.text("framework") != "llm-foundry":  # which has data parallelism only
        names = ["tp", "pp", "cp", *(["ep"] if moe else []), *(["vp"] if out["pp"] > 1 else [])]
        assumed += [f"{name.upper()} {out['vpp' if name == 'vp' else name]}" for name in names if not row.whole(name)]
    if out["tp"] > 1 and sp is None:
        assumed.append(f"sequence parallelism {'on' if out['sp'] else 'off'}")
    if ranks > 1 and not zero:
        assumed.append(f"ZeRO stage {out['zero']}")
    if not row.text("recompute"):
        assumed.append("no recomputation")
    return out


def _recipe_chunks(row: Row, job: JobSpec, layout: dict[str, Any], dp: int) -> int:
    """Model chunks per pipeline rank where the row states none: one layer each in NVIDIA's recipes of dense models, all
    of which interleave (NVIDIA-NeMo/Megatron-Bridge, scripts/performance; NeMo-Framework-Launcher), else 1."""
    pp, layers = layout["pp"], job.model.layers
    microbatches = job.global_batch_size // dp // layout["micro_batch_size"]
    recipe = row.text("framework") in NVIDIA_RECIPES and not job.model.is_moe
    return layers // pp if recipe and pp > 1 and layers % pp == 0 and microbatches % pp == 0 else 1


MODULE_NAMES = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts", "up_proj": "mla_up_proj"}
"""How recipes of other frameworks call the modules of Megatron-LM's --recompute-modules."""


def _recompute(row: Row, job: JobSpec) -> str:
    kind, _, modules = row.text("recompute").replace(" ", "").partition(":")
    if kind == "selective" and modules:
        return "selective:" + "+".join(MODULE_NAMES.get(name, name) for name in modules.split(","))
    if kind == "selective" and job.runtime.selective_share:
        per_stage = -(-job.model.layers // (row.whole("pp") or 1))
        return f"full:{max(1, round(per_stage * job.runtime.selective_share))}"
    return (f"{kind}:{modules}" if modules else kind) or "none"


class Prediction(NamedTuple):
    """What the model says of one run.

    Attributes:
        run: job, layout and what had to be assumed.
        memory_gib: what the row's `mem_basis` counts; where it is not stated, what the framework's log calls memory.
        device_gib: all of the device's use at the fullest stage.
        fits: whether a step finds the memory it needs.
        seconds: component -> seconds, in the order of `COMPONENTS`.
    """

    run: Run
    step_s: float
    memory_gib: float
    device_gib: float
    fits: bool
    seconds: tuple[float, ...]

    @property
    def features(self) -> Features:
        """What the run is like, for its interval."""
        return features(self.run.job, self.run.layout.row(0), dict(zip(COMPONENTS, self.seconds, strict=True)))


NOT_EVALUATED = frozenset({"gpus", "global_batch_size", "memory_limit_bytes"})
"""Fields of a job that a layout's memory and step time do not depend on: the layout has its own degrees and number of
microbatches. With offloading the GPUs matter: a host may have fewer of the job's than it could."""


def predict_runs(rows: Sequence[Row]) -> list[Prediction | str]:
    """Predict every row, rows of the same job together; where that cannot be done, say why in one line."""
    library = Library()

    def read(row: Row) -> tuple[tuple[object, ...], tuple[Row, Run]]:
        run = read_run(row, library)
        ignored = NOT_EVALUATED - {"gpus"} if run.job.offload.any else NOT_EVALUATED
        values = {item.name: getattr(run.job, item.name) for item in fields(run.job) if item.name not in ignored}
        shared = {name: id(values[name]) for name in ("model", "cluster")}  # by identity, as `Library` shares them
        return tuple((values | shared).items()), (row, run)

    batches, refused = batched(rows, read)
    found: dict[int, Prediction | str] = {**refused}
    for members in batches.values():
        found |= zip((index for index, _ in members), _predict([pair for _, pair in members]), strict=True)
    return [found[index] for index in range(len(rows))]


def _predict(pairs: Sequence[tuple[Row, Run]]) -> list[Prediction | str]:
    """Evaluate rows of one job; when the batch is refused, each on its own."""
    job = pairs[0][1].job
    try:
        with np.errstate(all="ignore"):  # what is not finite is reported below
            result = evaluate(concatenate([run.layout for _, run in pairs]), job)
            components = result.step.components
    except InputError as error:
        if len(pairs) == 1:
            return [reason_text(error)]
        return [value for pair in pairs for value in _predict([pair])]
    found: list[Prediction | str] = []
    for index, (row, run) in enumerate(pairs):
        step_s, device_gib = float(result.step.step_time_s[index]), float(result.memory.peak_bytes[index]) / GIB
        memory_gib = float(result.memory.logged(row.text("mem_basis"), job)[index]) / GIB
        if math.isfinite(step_s) and step_s > 0 and math.isfinite(device_gib):
            fits, seconds = device_gib <= job.cluster.gpu.memory_bytes / GIB, tuple(components[:, index].tolist())
            found.append(Prediction(run, step_s, memory_gib, device_gib, fits, seconds))
        else:
            found.append("the prediction is not finite")
    return found
