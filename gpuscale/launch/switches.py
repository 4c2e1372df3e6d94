"""Rules that only the settings of a launch file show: which exclude or need one another, and the environment.

Rules and places: NVIDIA/Megatron-LM at d98e8a64ddf3 (2026-08; A is training/arguments.py, TC
core/transformer/transformer_config.py), DeepSpeed at edaa72212672, accelerate at 16cb6eb80dd9, torchtitan at
b5bcd76c66d0.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gpuscale.launch.megatron import LAYOUTS
from gpuscale.launch.remarks import Remark
from gpuscale.launch.settings import NOTHING, ON, LaunchJob
from gpuscale.layouts.stages import pipeline_layout
from gpuscale.planning.jobs import Job
from gpuscale.presets.files import known_table
from gpuscale.specs.cluster import IBVERBS, INSIDE
from gpuscale.specs.gpu import BEFORE_HOPPER, BLACKWELL
from gpuscale.steptime.offload import least_cpu_optimizer_time_s
from gpuscale.units import format_seconds

MEGATRON_FAMILY = ("megatron-lm", "primus", "nemo", "megatron-bridge")
ARGUMENTS = ("megatron-lm", "primus")
"""Targets whose settings go through Megatron-LM's own check of its arguments."""

STAGES = (*LAYOUTS, "hybrid_layer_pattern")
"""What says which layers a stage has, that of hybrid models among it."""

CHUNKS = (
    "num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout",
)  # fmt: skip
"""The ways to ask for model chunks, of which Megatron-LM takes one."""


class Stated:
    """What launch files state, by the framework's own names, beside the job that was made of it.

    Attributes:
        target: the framework, by its name in `gpuscale.launch.targets`.
        job: the job that was made of it.
        row: its layout in full.
        fit: as in `PlanRow`.
    """

    def __init__(self, launch: LaunchJob, job: Job, row: Mapping[str, int], fit: str) -> None:
        self.launch, self.target, self.job, self.row, self.fit = launch, launch.target, job, row, fit

    def __contains__(self, name: str) -> bool:
        """Whether a setting says something."""
        return self.text(name) != ""

    def text(self, name: str) -> str:
        """Return a setting as text in lower case; empty where nothing is said."""
        found = self.launch.settings.get(name)
        text = "" if found is None or found.value is None else str(found.value).strip().lower()
        return "" if text in NOTHING else text

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.text(name) in ON

    def number(self, name: str) -> float | None:
        """Return a number; None where it is none."""
        with suppress(ValueError):
            return float(self.text(name).replace("_", "")[:40])
        return None

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment."""
        found = self.launch.environment.get(name)
        return None if found is None or found.value is None else str(found.value).strip().strip("'\"")

    @property
    def scripted(self) -> bool:
        """Whether a command of a script was read, with the environment that it sets."""
        return any(one.text.startswith("-") and one.line for one in self.launch.settings.values())

    @property
    def expandable(self) -> bool:
        """Whether PyTorch's allocator extends its segments, which keeps memory in one piece."""
        stated = self.variable("PYTORCH_CUDA_ALLOC_CONF") or self.variable("PYTORCH_ALLOC_CONF") or ""
        return "expandable_segments:true" in stated.lower()

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.job.spec.model.layers

    @property
    def sharded(self) -> bool:
        """Whether the optimizer is distributed."""
        fsdp = self.on("use_megatron_fsdp") or self.on("use_torch_fsdp2")
        return fsdp or self.on("use_distributed_optimizer") or "dist" in self.text("optimizer")

    @property
    def several_nodes(self) -> bool:
        """Whether the job leaves a box or rack."""
        cluster = self.job.spec.cluster
        return self.job.spec.gpus > cluster.levels[cluster.domain_index].gpus

    @property
    def networks(self) -> set[str]:
        """Fabrics between nodes."""
        return {one.fabric for one in self.job.spec.cluster.levels if one.fabric not in INSIDE}


class SwitchRule(NamedTuple):
    """A rule of settings."""

    code: str  #: its name in answers.
    test: Callable[[Stated], str]  #: says what is wrong, or nothing.
    settings: tuple[str, ...]  #: what it speaks of; the first that is stated is its place.
    where: str = ""  #: where the framework says it; empty where it is a matter of speed.
    targets: tuple[str, ...] = ARGUMENTS  #: frameworks that it holds for.
    severity: str = "error"  #: of the finding.


def _offloaded_layers(one: Stated) -> float:
    return 0.0 if one.text("cpu_offloading") == "false" else one.number("cpu_offloading_num_layers") or 0.0


def _when(condition: Callable[[Stated], Any], text: str) -> Callable[[Stated], str]:
    return lambda one: text if condition(one) else ""


def _uneven(one: Stated) -> str:
    """Layers that do not divide over stages and chunks, where nothing says otherwise."""
    pp, vpp, per_chunk = one.row["pp"], one.row["vpp"], one.number("num_layers_per_virtual_pipeline_stage")
    if pp == 1 or any(name in one for name in STAGES):
        return ""
    if per_chunk and one.layers % pp == 0 and (one.layers // pp) % per_chunk:
        said = f"num_layers_per_virtual_pipeline_stage {per_chunk:.0f} does not divide the {one.layers // pp} layers"
        return f"{said} of a stage"
    if one.layers % (pp * vpp) == 0:
        return ""
    what = "pp x vpp" if vpp > 1 else "pp"
    return f"num_layers {one.layers} is not divisible by {what} = {pp * vpp}; {_even_next(one)}"


def _even_next(one: Stated) -> str:
    """Say what divides: an uneven first or last stage, or a layout of all stages."""
    pp, vpp, layers = one.row["pp"], one.row["vpp"], one.layers
    sizes = sorted(range(vpp, layers, vpp), key=lambda size: (abs(size - layers / pp), size))
    first = next((size for size in sizes if (layers - size) % ((pp - 1) * vpp) == 0 and layers > size), None)
    if first is not None:
        return f"with an uneven first stage of {first} it is (decoder_first_pipeline_num_layers)"
    stages = pipeline_layout(one.job.spec.model, pp, vpp, "even")
    return f"with pipeline_model_parallel_layout {stages} it runs"


def _too_long(one: Stated) -> str:
    sequence, longest = one.number("seq_length"), one.number("max_position_embeddings")
    if sequence is None or longest is None or sequence <= longest:
        return ""
    return f"seq_length {sequence:.0f} is above max_position_embeddings {longest:.0f}"


def _ways_to_chunk(one: Stated) -> str:
    stated = [name for name in CHUNKS if name in one]
    return f"{' and '.join(stated)} are mutually exclusive" if len(stated) > 1 else ""


def _chunks(one: Stated) -> bool:
    """Whether model chunks are asked for, of any number that Megatron-LM takes for more than none."""
    return CHUNKS[1] in one or (one.number(CHUNKS[0]) or 1) > 1


def _full_recompute(one: Stated) -> str:
    kind = one.text("recompute_granularity")
    parts = [name for name in ("recompute_method", "recompute_num_layers") if name in one]
    one_layer = "deepspeed_config" in one  # the fork of 2022 has 1 where --recompute-num-layers is not given
    if kind == "full" and len(parts) + one_layer < 2:
        return "full recomputation needs recompute_method and recompute_num_layers"
    return f"selective recomputation takes no {' or '.join(parts)}" if kind == "selective" and parts else ""


def _needs_all(what: str, broken: Mapping[str, object]) -> str:
    """Say which of its needs are not met: need -> whether it is broken."""
    unmet = ", ".join(name for name, is_broken in broken.items() if is_broken)
    return f"{what} needs {unmet}" if unmet else ""


def _torch_fsdp2(one: Stated) -> str:
    if not one.on("use_torch_fsdp2"):
        return ""
    return _needs_all("torch FSDP2", {
        "PP 1": one.row["pp"] > 1,
        "EP 1": one.row["ep"] > 1,
        "no distributed optimizer": one.on("use_distributed_optimizer"),
        "no gradient accumulation fusion": "no_gradient_accumulation_fusion" not in one,
        "untied embeddings": "untie_embeddings_and_output_weights" not in one,
        "no fp16": one.on("fp16"),
    })  # fmt: skip


def _exchange_overlapped(one: Stated) -> str:
    if not one.on("overlap_moe_expert_parallel_comm"):
        return ""
    return _needs_all("overlap_moe_expert_parallel_comm", {
        "EP above 1": one.row["ep"] == 1,
        "the dispatcher alltoall or flex": one.text("moe_token_dispatcher_type") not in {"alltoall", "flex"},
        "no overlap of shared experts": one.on("moe_shared_expert_overlap"),
        "bf16 or fp16": not (one.on("bf16") or one.on("fp16")),
        "one layer of multi-token prediction at most": (one.number("mtp_num_layers") or 0) > 1,
    })  # fmt: skip


def _moe(one: Stated) -> str:
    experts, top_k = one.number("num_experts") or one.number("num_moe_experts"), one.number("moe_router_topk")
    groups, chosen = one.number("moe_router_num_groups"), one.number("moe_router_group_topk")
    if experts is None:
        return ""
    if top_k and top_k > experts:
        return f"moe_router_topk {top_k:.0f} is above the {experts:.0f} experts"
    if groups and experts % groups:
        return f"moe_router_num_groups {groups:.0f} does not divide the {experts:.0f} experts"
    if groups and chosen and chosen > groups:
        return f"moe_router_group_topk {chosen:.0f} is above the {groups:.0f} groups"
    return "moe_router_group_topk needs moe_router_num_groups" if chosen and not groups else ""


def _capacity(one: Stated) -> str:
    factor, kind = one.number("moe_expert_capacity_factor"), one.text("moe_token_dispatcher_type") or "allgather"
    if one.on("moe_pad_expert_input_to_capacity") and factor is None:
        return "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor"
    if factor and kind not in {"alltoall", "alltoall_seq", "flex"}:
        return f"moe_expert_capacity_factor does not go with the dispatcher {kind}"
    return ""


def _balance(one: Stated) -> str:
    kind, weight = one.text("moe_router_load_balancing_type"), one.number("moe_aux_loss_coeff")
    kinds = set(re.findall(r"[a-z_]+", kind))
    known = {"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", "quantile", "quantile_global"}
    if kinds - known:
        return f"unknown moe_router_load_balancing_type {kind[:40]}"
    if weight is not None and weight < 0:
        return f"moe_aux_loss_coeff {weight:g} is below 0"
    return ""


def _connections(one: Stated) -> str:
    """CUDA_DEVICE_MAX_CONNECTIONS where it is stated: 1 before Blackwell with TP or CP; not 1 under FSDP."""
    stated = one.variable("CUDA_DEVICE_MAX_CONNECTIONS")
    if stated is None:
        return ""
    if _under_fsdp(one):
        return "CUDA_DEVICE_MAX_CONNECTIONS must not be 1 under FSDP: gathers would wait for computation" * (
            stated == "1"
        )
    if _needs_one_connection(one) and stated != "1":
        return f"CUDA_DEVICE_MAX_CONNECTIONS is {stated[:20]}; before Blackwell TP and CP need 1"
    return ""


def _no_connections(one: Stated) -> str:
    missing = one.variable("CUDA_DEVICE_MAX_CONNECTIONS") is None and one.scripted
    if not missing or _under_fsdp(one) or not _needs_one_connection(one):
        return ""
    return "CUDA_DEVICE_MAX_CONNECTIONS is not set here; before Blackwell TP and CP need 1, or Megatron-LM stops"


def _no_multicast(one: Stated) -> str:
    early = one.job.spec.cluster.gpu.architecture in BEFORE_HOPPER
    if not (early and one.scripted and one.on("tp_comm_overlap") and one.row["tp"] > 1) or one.variable("UB_SKIPMC"):
        return ""
    return "UB_SKIPMC=1 is not set here; before Hopper tp_comm_overlap needs it, or Transformer Engine stops"


def _under_fsdp(one: Stated) -> bool:
    return one.on("use_megatron_fsdp") or one.on("use_torch_fsdp2")


def _needs_one_connection(one: Stated) -> bool:
    return one.job.spec.cluster.gpu.architecture not in BLACKWELL and one.row["tp"] * one.row["cp"] > 1


def _expandable(one: Stated) -> str:
    nvidia = one.job.spec.cluster.gpu.vendor == "NVIDIA"
    if one.fit != "tight" or not one.scripted or not nvidia or one.expandable:
        return ""
    return "memory is tight and expandable segments are off: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


SIZES = {
    axis: f"parallelism_config.parallelism_config_{axis}_size"
    for axis in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
}
"""Axis of accelerate's `parallelism_config` -> the setting of its size."""


def _mesh(one: Stated) -> str:
    sizes = {axis: one.number(name) for axis, name in SIZES.items()}
    whole = math.prod(size for size in sizes.values() if size)
    gpus = one.job.spec.gpus
    if not any(sizes.values()) or whole == gpus or "deepspeed" in one.text("distributed_type"):
        return ""
    said = " x ".join(f"{axis} {size:.0f}" for axis, size in sizes.items() if size and size > 1) or "1"
    return f"{said} = {whole:.0f} is not the {gpus} processes"


DEEPSPEED_KEYS = known_table("megatron")["deepspeed_keys"]


def _misspelt(one: Stated) -> str:
    for name, setting in one.launch.settings.items():
        top = name.partition(".")[0]
        if setting.file.endswith(".json") and top not in DEEPSPEED_KEYS and not top.startswith("_"):
            near = difflib.get_close_matches(top[:60], DEEPSPEED_KEYS, n=1, cutoff=0.85)
            if near:
                return f"unknown key {top[:60]} is ignored in silence; {near[0]} may be meant"
    return ""


def _slow(name: str, value: str, why: str) -> Callable[[Stated], str]:
    return lambda one: f"{name}={value}: {why}" if one.variable(name) == value else ""


def _few_threads(*, unset: bool) -> Callable[[Stated], str]:
    """Say what an optimizer on the CPU loses where each process of a machine has one thread (torch/distributed/run.py;
    accelerate commands/launch.py)."""

    def said(one: Stated) -> str:
        job, stated = one.job.spec, one.variable(THREADS)
        missing = stated is None and one.scripted and min(job.gpus, job.cluster.node_gpus) > 1
        if not job.offload.optimizer or not (missing if unset else stated == "1"):
            return ""
        text = "is not set, and torchrun and accelerate then take 1" if unset else "is 1"
        all_s, one_s = (least_cpu_optimizer_time_s(job, threads) for threads in (0, 1))
        if one_s <= all_s:
            return ""
        took = f"{format_seconds(one_s)} rather than {format_seconds(all_s)} a step"
        return f"{THREADS} {text}: the optimizer on the CPU takes {took}; set cores over GPUs"

    return said


def _no_ib(one: Stated) -> str:
    if one.variable("NCCL_IB_DISABLE") != "1" or not one.several_nodes or not one.networks & set(IBVERBS):
        return ""
    return "NCCL_IB_DISABLE=1: NCCL sends over TCP between nodes, not over InfiniBand or RoCE, which is predicted"


ASYNC_TP = ("parallelism.enable_async_tensor_parallel", "compile.enable_async_tensor_parallel")
NAMED: Mapping[str, Callable[[Stated], Any]] = {
    "use_distributed_optimizer or use_megatron_fsdp": lambda one: one.sharded,
    "use_distributed_optimizer or FSDP": lambda one: one.sharded,
    "sequence_parallel, which needs TP above 1": lambda one: one.on("sequence_parallel") and one.row["tp"] > 1,
    "virtual stages": lambda one: one.row["vpp"] > 1,
    "PP above 1": lambda one: one.row["pp"] > 1,
    "model chunks": _chunks,
    "cpu_offloading_num_layers": lambda one: _offloaded_layers(one) > 0,
    "recomputing moe_act": lambda one: "moe_act" in one.text("recompute_modules"),
    "uneven first and last stages": lambda one: any(name in one for name in STAGES[1:3]),
    "fp8_format": lambda one: "fp8_format" in one,
    "fp4_format": lambda one: "fp4_format" in one,
    "num_layers_per_virtual_pipeline_stage": lambda one: "num_layers_per_virtual_pipeline_stage" in one,
    "bf16": lambda one: (one.on("bf16") and not one.launch.settings["bf16"].usual) or one.on("bf16.enabled"),
    "fp16": lambda one: one.on("fp16") or one.on("fp16.enabled"),
    "asynchronous tensor parallelism": lambda one: any(map(one.on, ASYNC_TP)),
    "torch.compile": lambda one: one.on("compile.enable") or one.on("training.compile"),
    "context": lambda one: (one.number(SIZES["cp"]) or 1) > 1,
    "Ulysses sequence parallelism": lambda one: (one.number(SIZES["sp"]) or 1) > 1,
    "FSDP2": lambda one: one.number("fsdp_config.fsdp_version") == 2,
}
"""What `needs` and `excludes` speak of that is not one switch being on."""


def _holds(one: Stated, name: str) -> bool:
    return bool(NAMED[name](one)) if name in NAMED else one.on(name)


def needs(
    code: str, what: str, other: str, where: str, targets: tuple[str, ...] = ARGUMENTS, settings: tuple[str, ...] = ()
) -> SwitchRule:
    """Return the rule that one thing needs another."""
    test = _when(lambda one: _holds(one, what) and not _holds(one, other), f"{what} needs {other}")
    return SwitchRule(code, test, settings or (what,), where, targets)


def excludes(
    code: str, what: str, other: str, where: str, targets: tuple[str, ...] = ARGUMENTS, settings: tuple[str, ...] = ()
) -> SwitchRule:
    """Return the rule that one thing excludes another."""
    test = _when(lambda one: _holds(one, what) and _holds(one, other), f"{what} and {other} are mutually exclusive")
    return SwitchRule(code, test, settings or (what, other), where, targets)


_EVERY = ("",)
OF_ZERO = ("deepspeed", "accelerate")
OFFLOAD_RATIO = "zero_optimization.offload_optimizer.ratio"
THREADS = "OMP_NUM_THREADS"
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS",)
SWITCH_RULES = (
    SwitchRule("uneven_layers", _uneven, ("num_layers", "pipeline_model_parallel_size"), "A:968, 972, 997"),
    SwitchRule("several_chunk_options", _ways_to_chunk, CHUNKS, "A:928"),
    needs("chunks_without_pipeline", "model chunks", "PP above 1", "A:1000", settings=CHUNKS),
    excludes("chunks_with_uneven_ends", CHUNKS[1], "uneven first and last stages", "A:956", settings=CHUNKS[1:2]),
    SwitchRule("sequence_beyond_positions", _too_long, ("seq_length", "max_position_embeddings"), "A:1354"),
    needs("tp_overlap_without_sp", "tp_comm_overlap", "sequence_parallel, which needs TP above 1", "A:1441"),
    needs(
        "param_gather_without_distopt", "overlap_param_gather", "use_distributed_optimizer or use_megatron_fsdp",
        "A:1024", MEGATRON_FAMILY,
    ),
    needs(
        "param_gather_without_grad_reduce", "overlap_param_gather", "overlap_grad_reduce", "A:1028", MEGATRON_FAMILY
    ),
    needs(
        "param_gather_with_step_without_vpp", "overlap_param_gather_with_optimizer_step", "virtual stages", "A:1066"
    ),
    SwitchRule("torch_fsdp2", _torch_fsdp2, ("use_torch_fsdp2",), "A:1031-1049"),
    needs("fp8_param_gather_without_distopt", "fp8_param_gather", "use_distributed_optimizer or FSDP", "A:1095"),
    excludes("fp8_and_fp4", "fp4_format", "fp8_format", "A:1100", MEGATRON_FAMILY),
    excludes("bf16_and_fp16", "fp16", "bf16", "A, validate_args"),
    SwitchRule(
        "recompute_settings", _full_recompute,
        ("recompute_granularity", "recompute_method", "recompute_num_layers"), "TC:1899-1936", MEGATRON_FAMILY,
    ),
    excludes("saved_activations_with_sp", "distribute_saved_activations", "sequence_parallel", "A:1425"),
    needs(
        "moe_act_without_grouped_gemm", "recomputing moe_act", "moe_grouped_gemm", "TC:1964",
        settings=("recompute_modules",),
    ),
    SwitchRule(
        "layer_offload",
        _when(
            lambda one: (
                _offloaded_layers(one) > 0
                and (one.row["pp"] > 1 or "recompute_granularity" in one or _offloaded_layers(one) >= one.layers)
            ),
            "cpu_offloading_num_layers needs PP 1, no recomputation, and less than all layers",
        ),
        ("cpu_offloading_num_layers",), "TC:1884", MEGATRON_FAMILY,
    ),
    needs(
        "optimizer_offload_without_precision", "optimizer_cpu_offload", "use_precision_aware_optimizer", "A:1884"
    ),
    excludes(
        "two_offloads", "fine_grained_activation_offloading", "cpu_offloading_num_layers", "TC:2129", MEGATRON_FAMILY
    ),
    SwitchRule("expert_overlap_settings", _exchange_overlapped, ("overlap_moe_expert_parallel_comm",), "TC:3002-3046"),
    needs("delayed_wgrad_without_overlap", "delay_wgrad_compute", "overlap_moe_expert_parallel_comm", "TC:3074"),
    excludes(
        "latent_and_grouped_attention", "multi_latent_attention", "group_query_attention", "A:1974",
        settings=("group_query_attention",),
    ),
    SwitchRule(
        "router_settings", _moe, ("moe_router_topk", "moe_router_num_groups", "moe_router_group_topk"), "TC",
        MEGATRON_FAMILY,
    ),
    SwitchRule(
        "capacity_settings", _capacity, ("moe_pad_expert_input_to_capacity", "moe_expert_capacity_factor"), "TC"
    ),
    SwitchRule("balance_settings", _balance, ("moe_router_load_balancing_type", "moe_aux_loss_coeff"), "TC"),
    SwitchRule("cuda_connections", _connections, CONNECTIONS, "A:1453-1481, 1048"),
    SwitchRule("cuda_connections", _no_connections, CONNECTIONS, "A:1453-1481", ("megatron-lm",), "warning"),
    SwitchRule(
        "tp_overlap_without_multicast", _no_multicast, ("UB_SKIPMC", "tp_comm_overlap"),
        "Transformer Engine, module/base.py, initialize_ub", ("megatron-lm",), "warning",
    ),
    excludes(
        "deepspeed_precisions", "bf16", "fp16", "DeepSpeed runtime/config.py:827", OF_ZERO, ("fp16.enabled",)
    ),
    SwitchRule(
        "partial_offload",
        _when(
            lambda one: (
                one.number(OFFLOAD_RATIO) not in {None, 1.0} and one.number("zero_optimization.stage") != 3
            ),
            "an offload ratio below 1 is for stage 3",
        ),
        (OFFLOAD_RATIO,), "DeepSpeed runtime/zero/offload_config.py:99", OF_ZERO,
    ),
    SwitchRule("misspelt_key", _misspelt, (), "DeepSpeed runtime/config.py", ("deepspeed",), "warning"),
    needs(
        "async_tp_without_compile", "asynchronous tensor parallelism", "torch.compile",
        "torchtitan config/configs.py:307", ("torchtitan",), ASYNC_TP,
    ),
    excludes(
        "cp_and_sp", "context", "Ulysses sequence parallelism", "accelerate parallelism_config.py:330",
        ("accelerate",), (SIZES["sp"],),
    ),
    SwitchRule(
        "mesh_and_processes", _mesh, (SIZES["dp_shard"],), "accelerate parallelism_config.py:372", ("accelerate",)
    ),
    excludes(
        "fsdp2_prefetch", "FSDP2", "fsdp_config.fsdp_forward_prefetch", "accelerate utils/dataclasses.py:1947",
        ("accelerate",), ("fsdp_config.fsdp_forward_prefetch",),
    ),
    SwitchRule("expandable_segments_off", _expandable, ("PYTORCH_CUDA_ALLOC_CONF",), "", _EVERY, "warning"),
    *(
        SwitchRule(code, _slow(name, "1", why), (name,), "", _EVERY, "warning")
        for code, name, why in (
            ("blocking_launches", "CUDA_LAUNCH_BLOCKING", "the CPU waits for every kernel; for debugging"),
            ("p2p_disabled", "NCCL_P2P_DISABLE", "GPUs of a node exchange through host memory, not NVLink"),
        )
    ),
    SwitchRule("one_optimizer_thread", _few_threads(unset=False), (THREADS,), "", _EVERY, "warning"),
    SwitchRule("one_optimizer_thread", _few_threads(unset=True), (THREADS,), "", _EVERY, "note"),
    SwitchRule("ib_disabled", _no_ib, ("NCCL_IB_DISABLE",), "", _EVERY, "warning"),
)  # fmt: skip


def switch_findings(one: Stated) -> Iterator[Remark]:
    """Yield each rule of settings that is broken."""
    for rule in SWITCH_RULES:
        said = rule.test(one) if rule.targets == _EVERY or one.target in rule.targets else ""
        if said:
            where = re.sub(r"\b(A|TC)\b", lambda short: FILES[short[1]], rule.where)
            yield Remark(rule.code, rule.severity, f"{said} [{where}]" if where else said, rule.settings)


FILES = {"A": "Megatron-LM training/arguments.py", "TC": "Megatron-LM core/transformer/transformer_config.py"}
