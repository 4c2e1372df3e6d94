"""One measured training run as a job and a layout, with every default that had to be assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, RECOMPUTE_MODULES, SCHEDULES, Candidates
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.frameworks import NVIDIA_RECIPES, framework_for
from gpuscale.rules.check import ALL_RULES, broken_rules
from gpuscale.search import evaluate
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec, OffloadSpec, RuntimeSpec
from gpuscale.validation.cells import Row
from gpuscale.validation.clusters import row_cluster
from gpuscale.validation.models import row_model
from gpuscale.validation.presets import Presets
from gpuscale.validation.settings import framework_name, with_stated_settings

ZERO_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3, "none": 0, "distopt": 1, "fsdp": 3, "hsdp": 3}


@dataclass(frozen=True)
class Run:
    """A run ready to be predicted.

    Attributes:
        assumed: what the row does not state and was taken by default.
    """

    job: JobSpec
    layout: Candidates
    assumed: tuple[str, ...]


def read_run(row: Row, presets: Presets | None = None) -> Run:
    """Turn a row into a job and a layout.

    Args:
        presets: what was loaded for earlier rows of the same file.

    Raises:
        InputError: the row lacks something that has no default, or describes a layout that cannot be.
    """
    assumed: list[str] = []
    gpus = row.whole("gpus")
    missing = [name for name in ("gpus", "seq", "gbs") if not row.whole(name)]
    if missing or not gpus:
        raise InputError(f"the row does not state {', '.join(missing)}")
    cluster = row_cluster(row, gpus, assumed, presets)
    model = row_model(row, assumed, presets)
    known = framework_for(framework_name(row), row.text("source_date"), row.text("zero"))
    framework = with_stated_settings(known, row)
    precision = _precision(row, cluster, framework.name, assumed)
    job = JobSpec(
        model=model,
        cluster=cluster,
        gpus=gpus,
        sequence=row.whole("seq") or 0,
        global_batch_size=row.whole("gbs") or 0,
        precision=precision,
        recipe=_recipe(row, precision, framework.runtime),
        states=framework.states,
        runtime=framework.runtime,
        vocab_multiple=framework.vocab_multiple,
        memory_limit_bytes=cluster.gpu.memory_bytes,
        moe_imbalance=1.0,
        offload=_offload(row, cluster, assumed),
    )
    layout = fixed_layout(job, _layout(row, job, assumed))
    broken = broken_rules(layout, job, FATAL)
    if broken:
        raise InputError("; ".join(rule.text for rule in broken))
    if job.offload.activations and not ACTIVATION_SHARE.search(row.text("offload")):
        job = _with_needed_offload(replace(job, offload=replace(job.offload, activations=0.0)), layout, assumed)
    if job.runtime.selective_share and row.text("recompute") == "selective":
        layout = replace(layout, recompute_modules=layout.recompute_modules | EVERY_OTHER_MATMUL)
    return Run(job, layout, tuple(assumed))


_FATAL = ("batch_not_divisible_by_dp", "batch_not_divisible", "expert_grid", "too_few_layers")
FATAL = tuple(rule for rule in ALL_RULES if rule.code in _FATAL)
"""Rules without which a prediction has no meaning; a measured run may well break the others."""


USABLE_MEMORY = 0.95
"""Share of the GPU's memory up to which a run that offloads activations is assumed to fill it."""


def _with_needed_offload(job: JobSpec, layout: Candidates, assumed: list[str]) -> JobSpec:
    """Offload as many activations as the memory asks for: recipes keep on the GPU what fits."""
    held = evaluate(layout, job).memory
    stage = int(held.by_stage[:, 0].argmax())
    missing = held.by_stage[stage, 0] - USABLE_MEMORY * job.cluster.gpu.memory_bytes
    share = float(min(max(missing / max(held.activations[stage, 0], 1.0), 0.0), 1.0))
    assumed.append(f"{share:.0%} of the activations offloaded, as memory asks for")
    return replace(job, offload=replace(job.offload, activations=share))


ACTIVATION_SHARE = re.compile(r"activations:(\d?\.?\d{1,6})")


def _offload(row: Row, cluster: ClusterSpec, assumed: list[str]) -> OffloadSpec:
    """What the row's `offload` column names: `optimizer`, `parameters`, `activations`, joined by anything."""
    text = row.text("offload")
    spec = OffloadSpec(
        optimizer="optim" in text,
        parameters="param" in text,
        activations=1.0 if "activation" in text else 0.0,
    )
    stated = ACTIVATION_SHARE.search(text)
    if stated:
        spec = replace(spec, activations=min(float(stated[1]), 1.0))
    if spec.any and cluster.host is None:
        assumed.append(f"offload of {row.raw('offload')[:40]} not priced: {cluster.name} has no [host]")
        return OffloadSpec()
    if text not in {"", "none"} and not spec.any:
        assumed.append(f"offload of {row.raw('offload')[:40]} not priced")
    return spec


TRAINS_IN_FP16 = frozenset({"megatron-deepspeed"})
"""Profiles whose 16-bit training is in fp16 when nothing is said: Megatron-DeepSpeed's GPT scripts pass --fp16, and
DeepSpeed knows bf16 only since release 0.6.0 of 2022-03."""


def _precision(row: Row, cluster: ClusterSpec, framework: str, assumed: list[str]) -> str:
    text = row.text("precision")
    sixteen = "bf16" if "bf16" in cluster.gpu.peak_flops_per_s else "fp16"
    if not text:
        sixteen = "fp16" if framework in TRAINS_IN_FP16 else sixteen
        assumed.append(f"{sixteen} mixed precision")
        return sixteen
    if "fp4" in text:
        return "fp4"
    return "fp8" if "fp8" in text else "fp16" if "fp16" in text else sixteen


RECIPES = {
    "mxfp8": "mx", "mx": "mx", "nvfp4": "nvfp4", "fp4": "nvfp4", "cs": "current", "current": "current",
    "tensorwise": "current", "rowwise": "current", "dynamic": "current", "ds": "delayed", "delayed": "delayed",
    "hybrid": "delayed", "sc": "blockwise", "subchannel": "blockwise", "block": "blockwise", "blockwise": "blockwise",
}  # fmt: skip
"""Word in a precision's name -> recipe; `cs`, `ds` and `sc` (sub-channel) are NeMo's and Megatron-Bridge's."""


def _recipe(row: Row, precision: str, runtime: RuntimeSpec) -> str:
    """How operands below 16 bits are quantised, by the words of the row's precision; the framework's own, if none."""
    if precision == "fp4":
        return "nvfp4"
    words = re.split(r"[^a-z0-9]+", row.text("precision"))
    known = [RECIPES[word] for word in words if word in RECIPES and RECIPES[word] != "nvfp4"]
    return known[0] if known and precision == "fp8" else runtime.fp8_recipe


LAYOUT_NAMES = {"vp": "vpp"}
"""Column of a degree -> its name in a layout, where they differ."""


def _layout(row: Row, job: JobSpec, assumed: list[str]) -> dict[str, int | str]:
    degrees = {name: row.whole(name) or 1 for name in ("tp", "pp", "cp", "ep")}
    dp = max(1, job.gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    if row.whole("dp") not in {None, 0, dp}:
        assumed.append(f"DP {dp} from the GPUs, the row says {row.whole('dp')}")
    if not row.whole("mbs"):
        assumed.append("microbatch 1")
    out: dict[str, int | str] = {**degrees, "vpp": row.whole("vp") or 1, "micro_batch_size": row.whole("mbs") or 1}
    if not row.whole("vp"):
        out["vpp"] = _recipe_chunks(row, job, out)
    assumed += [f"{name.upper()} {out[LAYOUT_NAMES.get(name, name)]}" for name in _unstated(row, job)]
    out["sp"] = _sequence_parallel(row, job, assumed)
    out["etp"] = _expert_tp(row, job, degrees)
    out["zero"] = _zero_stage(row, job, assumed) if dp * degrees["cp"] > 1 else 0
    out["recompute"] = _recompute(row, job, assumed)
    out["schedule"] = _schedule(row, int(out["pp"]), assumed)
    return out


def _recipe_chunks(row: Row, job: JobSpec, layout: dict[str, int | str]) -> int:
    """Model chunks per pipeline rank where the row states none: one layer each in NVIDIA's recipes of dense models, all
    of which interleave (NVIDIA-NeMo/Megatron-Bridge, scripts/performance; NeMo-Framework-Launcher), else 1."""
    pp, layers = int(layout["pp"]), job.model.layers
    microbatches = job.global_batch_size * int(layout["tp"]) * pp * int(layout["cp"]) // job.gpus
    microbatches //= int(layout["micro_batch_size"])
    recipe = row.text("framework") in NVIDIA_RECIPES and not job.model.is_moe
    return layers // pp if recipe and pp > 1 and layers % pp == 0 and microbatches % pp == 0 else 1


def _schedule(row: Row, pp: int, assumed: list[str]) -> str:
    """Name of the pipeline schedule; Megatron-LM zero-bubble forks write `zb (zbv)`."""
    text = row.text("schedule")
    name = {"zb (zbv)": "zb-v", "afab": "gpipe", "zbv": "zb-v", "dualpipev": "dualpipe"}.get(text, text)
    if pp > 1 and name and name not in SCHEDULES:
        assumed.append(f"schedule {row.raw('schedule')[:20]} priced as 1F1B")
    return name if name in SCHEDULES and not (name == "dualpipe" and pp % 2) else "1f1b"


def _unstated(row: Row, job: JobSpec) -> list[str]:
    """Degrees that matter for the job and are not stated."""
    names = ["tp", "pp", "cp"] + (["ep"] if job.model.is_moe else [])
    if job.gpus == 1 or row.text("framework") == "llm-foundry":  # which has data parallelism only
        return []
    interleaved = ["vp"] if (row.whole("pp") or 1) > 1 else []
    return [name for name in names + interleaved if not row.whole(name)]


def _sequence_parallel(row: Row, job: JobSpec, assumed: list[str]) -> int:
    if row.whole("tp", 1) == 1:
        return 0
    text = row.text("sp")
    if text in {"on", "off"}:
        return int(text == "on")
    default = job.runtime.sequence_parallel
    assumed.append(f"sequence parallelism {'on' if default else 'off'}")
    return int(default)


def _expert_tp(row: Row, job: JobSpec, degrees: dict[str, int]) -> int:
    stated = row.whole("etp")
    if stated:
        return stated
    if not job.model.is_moe:
        return 1
    return degrees["tp"] if degrees["ep"] == 1 else 1  # Megatron-LM's default is ETP = TP; recipes with EP set 1


def _zero_stage(row: Row, job: JobSpec, assumed: list[str]) -> int:
    text = row.text("zero")
    if text in ZERO_STAGES:
        return ZERO_STAGES[text]
    assumed.append(f"ZeRO stage {job.runtime.zero_stage}")
    return job.runtime.zero_stage


def _recompute(row: Row, job: JobSpec, assumed: list[str]) -> str:
    text = row.text("recompute").replace(" ", "")
    if not text:
        assumed.append("no recomputation")
        return "none"
    text = _with_stated_modules(row, text)
    if text.startswith("selective:"):
        modules = [MODULE_NAMES.get(name, name) for name in text.partition(":")[2].split(",")]
        return "selective:" + "+".join(modules)
    if text == "selective" and job.runtime.selective_share:
        per_stage = -(-job.model.layers // (row.whole("pp") or 1))
        return f"full:{max(1, round(per_stage * job.runtime.selective_share))}"
    return text


def _with_stated_modules(row: Row, recompute: str) -> str:
    """Add to a plain `selective` the modules that the notes name (`recompute modules=layernorm+moe_act`), if known."""
    found = _MODULES.search(row.wording) if recompute == "selective" else None
    modules = found[1].split("+") if found else []
    known = modules and all(MODULE_NAMES.get(name, name) in RECOMPUTE_MODULES for name in modules)
    return f"selective:{','.join(modules)}" if known else recompute


_MODULES = re.compile(r"\brecompute modules[= ]([a-z_+]{1,100})")

MODULE_NAMES = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts", "up_proj": "mla_up_proj"}
"""How recipes of other frameworks call the modules of Megatron-LM's `--recompute-modules`."""
