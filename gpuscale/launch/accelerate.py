"""The configuration of Hugging Face accelerate: FSDP2 written from a plan; FSDP, DeepSpeed and DDP read as a job.

Names and rules are those of accelerate 1.15.0 (commands/launch.py, commands/config/config_args.py,
parallelism_config.py, utils/dataclasses.py), whose classes the tests parse with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from gpuscale.launch import deepspeed, trainer
from gpuscale.launch.cluster_files import machines
from gpuscale.launch.quoting import yaml_text
from gpuscale.launch.settings import OFF, Reading
from gpuscale.launch.writing import LaunchFile, Program, Writing
from gpuscale.specs.gpu import WIDE

FILE = "accelerate.yaml"
BASIS = f"accelerate 1.15.0, under {trainer.BASIS}"

FP8 = {
    "delayed": {"backend": "TE", "fp8_format": "HYBRID"},
    "mx": {"backend": "TE", "fp8_format": "HYBRID", "use_mxfp8_block_scaling": True},
    "current": {"backend": "AO", "enable_fsdp_float8_all_gather": False},
}
"""Recipe -> `fp8_config`: Transformer Engine's delayed or MX scaling, torchao's dynamic scaling by tensor."""

CP_STRATEGIES = {"all_gather": "allgather", "p2p": "alltoall"}
"""`cp_comm` -> how `torch.distributed.tensor.experimental` rotates keys and values: all at once, or rank by rank."""


def write(writing: Writing) -> Program:
    """Write a plan as accelerate's YAML and the command of run_clm.py that runs under it."""
    trainer.refuse_beyond(writing)
    told, files = trainer.arguments(writing)
    told.append(("--optim", trainer.optimizer(writing)))
    if writing.asked("master_dtype") != "fp32" and writing.spec.precision not in WIDE:
        writing.refuse("master_dtype", "accelerate makes the parameters fp32 that it shards (utils/fsdp_utils.py)")
    if (moments := writing.asked("moment_dtype")) != "fp32":
        why = "the Trainer's optimizers keep moments in fp32, or in 8 bits as adamw-8bit has them"
        writing.refuse("moment_dtype", f"{why} (moment_dtype = {moments})")
    if loss := writing.asked("loss"):
        if loss in {"standard", "chunked"}:
            why = "transformers copies whole logits in fp32 (loss/loss_utils.py), or has Liger's kernel"
            writing.refuse("loss", why)
        if loss == "fused":
            writing.warn("the loss: Liger's kernel is fused with the LM head, and takes less than is predicted")
        told.append(("--use_liger_kernel", "True"))
    made, beside = config(writing)
    told += ((f"--{name}", str(value)) for name, value in beside.items())
    if trainer.full(writing) and "fsdp_config" not in made:
        told.append(("--gradient_checkpointing", "True"))
    files.append(LaunchFile(FILE, yaml_text(made)))
    return Program(trainer.SCRIPT, tuple(told), tuple(files), launcher="accelerate")


def config(writing: Writing) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return accelerate's YAML for a plan, and the Trainer's settings that go with it."""
    runtime, beside = writing.spec.runtime, dict[str, Any]()
    if writing.asked("grad_dtype") == "fp32" and writing.spec.precision not in WIDE:
        writing.refuse(
            "grad_dtype", "gradients are reduced as mixed_precision has it (utils/dataclasses.py, reduce_dtype)"
        )
    if writing.asked("overlap") not in {None, "dp"}:
        writing.refuse(
            "overlap", f"FSDP2 and DDP overlap the data-parallel exchange (overlap = {writing.asked('overlap')})"
        )
    if runtime.compile:
        beside["torch_compile"] = True
    if runtime.grad_reduce != "last" and writing.plan.num_microbatches > 1:
        beside["accelerator_config"] = json.dumps({"gradient_accumulation_kwargs": {"sync_each_batch": True}})
    return _config(writing), beside


def _config(writing: Writing) -> dict[str, Any]:
    plan, spec = writing.plan, writing.spec
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "NO" if spec.gpus == 1 else "MULTI_GPU",
        "mixed_precision": "no" if spec.precision in WIDE else spec.precision,
        "num_machines": machines(writing)[0], "num_processes": spec.gpus, "machine_rank": 0,
        "rdzv_backend": "static", "same_network": True, "main_training_function": "main",
    }  # fmt: skip
    if spec.precision == "fp8":
        config["fp8_config"] = FP8[spec.recipe]
    if plan.zero:
        if spec.offload.optimizer != spec.offload.parameters:
            writing.refuse("offload", "fsdp_offload_params keeps parameters and optimizer in host memory together")
        config["distributed_type"] = "FSDP"
        config["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_offload_params": spec.offload.parameters,
            "fsdp_activation_checkpointing": trainer.full(writing),
            "fsdp_activation_checkpointing_offload": spec.offload.activations > 0,
            "fsdp_cpu_ram_efficient_loading": False, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    elif spec.offload.any:
        writing.refuse("offload", "fsdp_offload_params is FSDP's: it takes ZeRO 2 or 3")
    degrees = _degrees(writing)
    if plan.zero or plan.tp > 1:
        config["parallelism_config"] = {f"parallelism_config_{name}": size for name, size in degrees.items()}
    return config


def _degrees(writing: Writing) -> dict[str, int | str]:
    plan, comm = writing.plan, writing.spec.runtime.cp_comm
    shard = plan.shard_size // plan.cp if plan.zero else 1
    if plan.zero and plan.shard_size == 1:
        writing.refuse("shard", "FSDP shards over two ranks at least (parallelism_config.py, _validate_accelerator)")
    elif shard == 1 < plan.dp and max(plan.cp, plan.tp) > 1:
        writing.refuse("shard", "with TP or CP replicas take dp_shard_size above 1 (parallelism_config.py:336)")
    degrees = {"dp_replicate_size": plan.dp // max(shard, 1), "dp_shard_size": shard, "tp_size": plan.tp}
    if plan.tp > 1:
        writing.warn("TP: have the script load the model by its `tp_plan`; run_clm.py does not by itself")
    if plan.cp > 1 and comm not in CP_STRATEGIES:
        why = "cp_comm_strategy is allgather or alltoall, a ring; Ulysses takes DeepSpeed (parallelism_config.py:318)"
        writing.refuse("cp_comm", f"{why} (cp_comm = {comm})")
    strategy = {"cp_comm_strategy": CP_STRATEGIES.get(comm, "")} if plan.cp > 1 else {}
    return {**degrees, "cp_size": plan.cp, **strategy}


# --- read

FSDP1 = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
    "1": 3, "2": 2, "3": 0, "4": 3, "5": 2,
}  # fmt: skip
"""`fsdp_sharding_strategy` of FSDP1, by name or number -> the ZeRO stage that it is."""


def names(*keys: str) -> tuple[str, ...]:
    """Return keys of the FSDP table as accelerate, the Trainer's `fsdp_config` and axolotl have them."""
    return tuple(f"{table}{key}" for key in keys for table in ("fsdp_config.fsdp_", "fsdp_config.", "fsdp_"))


def degree_names(*keys: str) -> tuple[str, ...]:
    """Return keys of parallel degrees as accelerate, its command line and axolotl have them."""
    tables = ("parallelism_config.parallelism_config_", "parallelism_config.", "parallelism_config_", "")
    return tuple(f"{table}{key}" for key in keys for table in tables)


def take_processes(reading: Reading) -> None:
    """Take the GPUs that accelerate's configuration counts, where what starts the program does not, and a file that
    the Trainer's `fsdp_config` names for the table of that name."""
    processes = reading.integer("num_processes")
    if "gpus" not in reading.options and processes:
        reading.option("gpus", processes, "num_processes")
    named = PurePosixPath(str(getattr(reading.settings.get("fsdp_config"), "value", ""))).name
    for name, one in list(reading.settings.items()):
        if named and PurePosixPath(one.file).name == named:
            ours = f"fsdp_config.{name.removeprefix('fsdp_config.')}"
            reading.settings[ours] = replace(reading.settings.pop(name), name=ours)


def take_environment(reading: Reading) -> None:
    """Take what variables tell accelerate, also those of a table `environment` of a document (utils/launch.py)."""
    seen = dict(reading.environment)
    seen |= {name.rpartition(".")[2]: one for name, one in reading.settings.items() if _ENVIRONMENT.search(name)}
    for switch, kind, begins, table in _VARIABLES:
        if switch not in seen or str(seen[switch].value).lower() in OFF or "distributed_type" in reading.settings:
            continue
        reading.settings["distributed_type"] = replace(seen[switch], name="distributed_type", value=kind)
        reading.settings.pop(seen[switch].name, None)
        for name, one in seen.items():
            if name.startswith(begins) and name != switch:
                ours = f"{table}{name.removeprefix(begins).lower()}"
                reading.settings.pop(one.name, None)
                reading.settings.setdefault(ours, replace(one, name=ours))


_ENVIRONMENT = re.compile(r"(^|\.)env(ironment|_vars|_variables|s)?\.[A-Z][A-Z0-9_]+$")
_VARIABLES = (
    ("ACCELERATE_USE_FSDP", "FSDP", "FSDP_", "fsdp_config.fsdp_"),
    ("ACCELERATE_USE_DEEPSPEED", "DEEPSPEED", "ACCELERATE_DEEPSPEED_", "deepspeed_config."),
)
"""Switch -> what it means, beginning of the variables beside it, and of the settings that they are."""


def sharded(reading: Reading) -> bool:
    """Whether the model runs under FSDP."""
    kind = (reading.text("distributed_type") or "").upper()
    if kind:
        return kind == "FSDP"
    marks = names("version", "offload_params", "sharding_strategy", "reshard_after_forward")
    return bool(reading.first(*marks, "fsdp")) or reading.flag("use_fsdp")


def read_degrees(reading: Reading) -> dict[str, int]:
    """Read the parallel degrees of `parallelism_config`; those that nothing says are not in the answer."""
    found: dict[str, int] = {}
    every = {
        "tp": degree_names("tp_size", "tensor_parallel_size"), "cp": degree_names("cp_size", "context_parallel_size"),
        "dp_shard": degree_names("dp_shard_size"), "dp_replicate": degree_names("dp_replicate_size"),
        "ep": ("expert_parallel_size",),
    }  # fmt: skip
    for axis, where in every.items():
        size = reading.integer(*where)
        if size is not None and size > 0:
            found[axis] = size
            if axis in {"tp", "cp", "ep"}:
                reading.option(axis, size, *where)
            else:
                reading.means(f"{axis.replace('_', ' ')} {size}", *where)
    strategies = {one: name for name, one in CP_STRATEGIES.items()}
    where = degree_names("cp_comm_strategy")
    if found.get("cp", 1) > 1:
        chosen = reading.text(*where, known=strategies) or "allgather"
        reading.option("cp_comm", strategies[chosen], *where)
    return found


def read_fsdp(reading: Reading, degrees: Mapping[str, int]) -> None:
    """Read FSDP's settings: stage, shards, offloading."""
    named = reading.text("fsdp_config") or ""
    read = {PurePosixPath(one.file).name for one in reading.sources}
    if re.search(r"\.(json|ya?ml)$", named) and PurePosixPath(named).name not in read:
        reading.assume(f"{named} is not here: FSDP as without it, nothing in host memory", "fsdp_config")
    reading.means("settings of FSDP", "fsdp_config")
    version = reading.integer(*names("version")) or (2 if "dp_shard" in degrees else 1)
    reading.means(f"FSDP{version}", *names("version"), "distributed_type")
    told = [*reading.words("fsdp"), *reading.words(*names("sharding_strategy"))]  # the Trainer's comes first
    word = next((one for text in told for one in text.upper().split() if one in FSDP1), "FULL_SHARD")
    reshard = reading.text(*names("reshard_after_forward"))
    if reshard and reshard.upper() in FSDP1:
        word = reshard.upper()
    if version == 1 or (reshard is None and reading.get(*names("sharding_strategy"))):
        stage = FSDP1[word]
        reading.option("zero", stage, *names("sharding_strategy"), "fsdp")
        if word.startswith(("HYBRID", "4", "5")):
            reading.assume(
                f"each node of {_per_node(reading)} holds a copy of the shards: HYBRID_SHARD",
                *names("sharding_strategy"),
                "fsdp",
            )
            reading.option("shard", _per_node(reading))
    else:
        off = (reshard or "true").lower() in OFF
        reading.option("zero", 2 if off else 3, *names("reshard_after_forward"))
    replicas = degrees.get("dp_replicate", 1)
    if replicas > 1 and degrees.get("dp_shard", 1) > 1:
        reading.option("shard", degrees["dp_shard"] * degrees.get("cp", 1), *degree_names("dp_shard_size"))
    words = " ".join(reading.words("fsdp")).lower().split() if reading.get("fsdp") else []  # of the Trainer's `fsdp`
    parts = ["optimizer", "parameters"] if reading.flag(*names("offload_params")) or "offload" in words else []
    where = [*names("offload_params"), *names("activation_checkpointing_offload"), "fsdp"]
    if reading.flag(*names("activation_checkpointing_offload")) or reading.options.get("offload") == "activations":
        parts.append("activations")
    if parts:
        reading.option("offload", "+".join(parts), *where)


def _per_node(reading: Reading) -> int:
    """Return the GPUs of a node, 8 where nobody says, and all that there are where these are fewer."""
    nodes, each = reading.integer("num_machines") or 0, reading.integer("nproc_per_node", "gpus_per_node") or 0
    gpus = int(reading.given.get("gpus") or reading.options.get("gpus") or 0)
    return each or (gpus // nodes if nodes and gpus and gpus % nodes == 0 else min(8, gpus or 8))


def read_precision(reading: Reading, default: str) -> str:
    """Read the precision, with the recipe of fp8."""
    backend = (
        reading.text("fp8_config.backend", "fp8_config.fp8_backend", "fp8_backend", "ACCELERATE_FP8_BACKEND") or ""
    )
    flags = deepspeed.names("bf16.enabled", "fp16.enabled")
    beside = ("mixed_precision", "ACCELERATE_MIXED_PRECISION", "fp8", *flags)
    chosen = trainer.read_precision(reading, *beside, default=default)
    if chosen == "fp8":
        mx = reading.flag("fp8_config.use_mxfp8_block_scaling", "fp8_config.fp8_use_mxfp8_block_scaling")
        name = "mxfp8" if mx else "fp8-current" if backend.upper() == "AO" else "fp8-delayed"
        reading.option("precision", name, "fp8_config.backend", "fp8_config.use_mxfp8_block_scaling")
        reading.means(f"recipe of {name}", "ACCELERATE_FP8_BACKEND", "fp8_config.fp8_format")
    return chosen
