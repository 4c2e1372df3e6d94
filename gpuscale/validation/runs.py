"""One measured training run as a job and a layout, with every default that had to be assumed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscale.api.layouts import fixed_layout
from gpuscale.candidates.arrays import Candidates
from gpuscale.errors import InputError
from gpuscale.presets.frameworks import framework_for
from gpuscale.rules import broken_rules
from gpuscale.specs.job import JobSpec, StateBytes
from gpuscale.validation.cells import Row
from gpuscale.validation.clusters import row_cluster
from gpuscale.validation.models import row_model

ZERO_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3, "none": 0, "distopt": 1, "fsdp": 3, "hsdp": 3}


@dataclass(frozen=True, slots=True)
class Run:
    """A run ready to be predicted.

    Attributes:
        assumed: what the row does not state and was taken by default.
    """

    job: JobSpec
    layout: Candidates
    assumed: tuple[str, ...]


def read_run(row: Row) -> Run:
    """Turn a row into a job and a layout.

    Raises:
        InputError: the row lacks something that has no default, or describes a layout that cannot be.
    """
    assumed: list[str] = []
    gpus = row.whole("gpus")
    sequence, batch = row.whole("seq"), row.whole("gbs")
    if not gpus or not sequence or not batch:
        raise InputError("the row does not state GPUs, sequence length and batch")
    cluster = row_cluster(row, gpus, assumed)
    model = row_model(row, assumed)
    framework = framework_for(row.text("framework"), row.text("source_date"))
    precision = _precision(row, assumed)
    job = JobSpec(
        model=model,
        cluster=cluster,
        gpus=gpus,
        sequence=sequence,
        global_batch_size=batch,
        precision=precision,
        states=framework.states or StateBytes(),
        runtime=framework.runtime,
        vocab_multiple=framework.vocab_multiple,
        memory_limit_bytes=cluster.gpu.memory_bytes,
        moe_imbalance=1.0,
    )
    layout = fixed_layout(job, _layout(row, job, assumed))
    broken = [rule for rule in broken_rules(layout, job) if rule.code in FATAL]
    if broken:
        raise InputError("; ".join(rule.text for rule in broken))
    return Run(job, layout, tuple(assumed))


FATAL = frozenset({"batch_not_divisible_by_dp", "batch_not_divisible", "expert_grid", "too_few_layers"})
"""Rules without which a prediction has no meaning; a measured run may well break the others."""


def _precision(row: Row, assumed: list[str]) -> str:
    text = row.text("precision")
    if not text:
        assumed.append("16-bit mixed precision")
        return "fp16" if row.text("gpu").startswith("v100") else "bf16"
    if "fp4" in text:
        return "fp4"
    return "fp8" if "fp8" in text else "fp16" if "fp16" in text else "bf16"


def _layout(row: Row, job: JobSpec, assumed: list[str]) -> dict[str, int | str]:
    degrees = {name: row.whole(name) or 1 for name in ("tp", "pp", "cp", "ep")}
    dp = job.gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    out: dict[str, int | str] = {**degrees, "vpp": row.whole("vp") or 1, "micro_batch_size": row.whole("mbs") or 1}
    out["sp"] = _sequence_parallel(row, job, assumed)
    out["etp"] = _expert_tp(row, job, degrees)
    out["zero"] = _zero_stage(row, job, assumed) if dp * degrees["cp"] > 1 else 0
    out["recompute"] = _recompute(row, assumed)
    return out


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


def _recompute(row: Row, assumed: list[str]) -> str:
    text = row.text("recompute").replace(" ", "")
    if not text:
        assumed.append("no recomputation")
        return "none"
    if text.startswith("selective:"):
        names = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts"}
        modules = [names.get(name, name) for name in text.partition(":")[2].split(",")]
        return "selective:" + "+".join(modules)
    return text
