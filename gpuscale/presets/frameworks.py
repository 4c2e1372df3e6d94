"""Framework profiles: how a training framework runs a step, as documented facts with sources."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuscale.errors import unknown_name
from gpuscale.presets.fields import Bounds
from gpuscale.presets.files import find_preset, preset_aliases, preset_names, read_toml, validate
from gpuscale.specs.job import RULE_SETS, MemoryProfile, RuntimeSpec, StateBytes
from gpuscale.units import GIB

_Share = Annotated[float, Bounds(ge=0.0, le=10.0)]
_Micros = Annotated[float, Bounds(ge=0.0, le=1e6)]
_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Precision = Literal["bf16", "fp16", "fp8", "fp4"]


def _known_rules(name: str) -> str:
    if name not in RULE_SETS:
        raise ValueError(f"is none of {', '.join(RULE_SETS)}")
    return name


RuleSetName = Annotated[str, AfterValidator(_known_rules)]
"""A name of `gpuscale.specs.job.RULE_SETS`; a profile without one is held to arithmetic alone."""


class MemoryFile(BaseModel):
    """The `[memory]` table of a profile: fields of `gpuscale.specs.job.MemoryProfile`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss_bytes: Annotated[float, Bounds(ge=0, le=64)]
    saves_gathered_inputs: bool
    saved_kv_copies: Annotated[float, Bounds(ge=0, le=8)]
    gather_buffers: Annotated[float, Bounds(ge=0, le=8)]
    fp8_activations: bool
    fp8_weight_bytes: Annotated[float, Bounds(ge=0, le=8)]
    weight_placeholders: bool
    transient_gradients: bool
    replica_bucket_bytes: Annotated[float, Bounds(ge=0, le=8)]
    reduce_bucket_bytes: Annotated[float, Bounds(ge=0, le=1e11)]
    stored_gradient_bytes: dict[_Precision, Annotated[float, Bounds(ge=1, le=16)]] = {}
    step_whole_bytes: Annotated[float, Bounds(ge=0, le=32)]
    step_shard_bytes: Annotated[float, Bounds(ge=0, le=32)]
    master_is_weight: bool
    root_gathered: bool
    gathered_parameters: Annotated[float, Bounds(ge=0, le=1e12)]
    fragmentation: Annotated[float, Bounds(ge=0, le=1)]
    context_gib: Annotated[float, Bounds(ge=0, le=16)]
    communicator_gib: Annotated[float, Bounds(ge=0, le=16)]
    extra_communicators: Annotated[float, Bounds(ge=0, le=64)]
    reported: Literal["allocated", "reserved", "device"]
    counter_reset: bool


class SpaceFile(BaseModel):
    """The `[space]` table of a profile: what the framework can run beside what it does when nothing is said.

    Values are those of the options of a plan, which a search of the full space tries together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    precision: tuple[Literal["bf16", "fp16", "fp8", "nvfp4"], ...] = ()
    offload: tuple[_Name, ...] = ()
    cp_comm: tuple[Literal["p2p", "all_gather", "a2a", "a2a+p2p"], ...] = ()
    schedule: tuple[Literal["gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe"], ...] = ()
    axis_order: tuple[_Name, ...] = ()
    pipeline_split: tuple[Literal["even", "tapered", "cost"], ...] = ()
    overlap: tuple[Literal["tp", "dp", "ep"], ...] = ()


class FrameworkFile(BaseModel):
    """A framework profile (`presets/frameworks/*.toml`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    rule_set: RuleSetName = "generic"
    aliases: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    attention: Literal["native", "cudnn8", "flash2", "flash1", "unfused"]
    eager: tuple[Literal["norm", "rotary", "activation", "loss"], ...]
    dropout: bool
    wgrad_fusion: bool
    loss: Literal["standard", "fused"]
    overlap_tp: bool
    async_tp_reduce: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    cp_comm: Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
    ddp_without_zero: bool = False
    scatter_pipeline: bool
    sequence_parallel: bool
    zero_stage: Annotated[int, Bounds(ge=0, le=3)]
    selective_share: Annotated[float, Bounds(ge=0, le=1)]
    expert_dispatch: Literal["alltoall", "deduplicated"]
    overlap_ep: bool
    cuda_graphs: Literal["none", "partial", "full"]
    pipeline_split: Literal["even", "tapered", "cost"]
    fp8_recipe: Literal["delayed", "current", "blockwise", "mx"]
    casts_weights: bool = False
    vocab_multiple: Annotated[int, Bounds(ge=1, le=65536)]
    gradient_bytes: Annotated[float, Bounds(ge=1, le=8)]
    reduced_gradient_bytes: dict[_Precision, Annotated[float, Bounds(ge=1, le=8)]] = {}
    shard_copy_bytes: Annotated[float, Bounds(ge=0, le=64)] = 0.0
    reduced_whole: tuple[_Precision, ...] = ()
    host_layer_us: _Micros
    host_collective_us: _Micros
    host_shard_us: _Micros = 0.0
    host_checkpoint_us: _Micros
    host_moe_sync_us: _Micros
    host_moe_sync_c2c_us: _Micros
    host_expert_us: _Micros
    host_microbatch_us: _Micros
    allocator_retry_s: Annotated[float, Bounds(ge=0.0, le=60.0)] = 0.0
    space: SpaceFile = SpaceFile()
    memory: MemoryFile
    sources: dict[str, str]


@dataclass(frozen=True)
class Framework:
    """A framework profile ready for a job."""

    name: str
    runtime: RuntimeSpec
    states: StateBytes | None
    vocab_multiple: int
    space: SpaceFile


def framework_path(name: str) -> Path:
    """Return the file of a profile, by its name or an alias; its stem is the profile's name.

    Raises:
        InputError: unknown name.
    """
    path = find_preset("frameworks", name)
    if path is None:
        aliases = preset_aliases("frameworks")
        path = aliases.get(name.lower())
        if path is None:
            known = [*preset_names("frameworks"), *aliases]
            raise unknown_name("framework", name, known, "gpuscale frameworks list")
    return path


def framework_file(name: str) -> FrameworkFile:
    """Read a profile by name or alias.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    return validate(read_toml(framework_path(name)), FrameworkFile)


def all_framework_files() -> dict[str, FrameworkFile]:
    """Return every profile by name, in alphabetical order."""
    return {name: framework_file(name) for name in preset_names("frameworks")}


@cache
def load_framework(name: str) -> Framework:
    """Return a profile by name or alias, ready for a job.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    path = framework_path(name)
    file = validate(read_toml(path), FrameworkFile)
    runtime = RuntimeSpec(
        name=path.stem,
        rule_set=file.rule_set,
        memory=_memory_profile(file.memory),
        attention=file.attention,
        eager=file.eager,
        dropout=file.dropout,
        wgrad_fusion=file.wgrad_fusion,
        loss=file.loss,
        overlap_tp=file.overlap_tp,
        async_tp_reduce=file.async_tp_reduce,
        overlap_grad_reduce=file.overlap_grad_reduce,
        overlap_param_gather=file.overlap_param_gather,
        cp_comm=file.cp_comm,
        ddp_without_zero=file.ddp_without_zero,
        scatter_pipeline=file.scatter_pipeline,
        sequence_parallel=file.sequence_parallel,
        zero_stage=file.zero_stage,
        selective_share=file.selective_share,
        expert_dispatch=file.expert_dispatch,
        overlap_ep=file.overlap_ep,
        cuda_graphs=file.cuda_graphs,
        pipeline_split=file.pipeline_split,
        fp8_recipe=file.fp8_recipe,
        casts_weights=file.casts_weights,
        reduced_gradient_bytes=tuple(sorted(file.reduced_gradient_bytes.items())),
        shard_copy_bytes=file.shard_copy_bytes,
        reduced_whole=file.reduced_whole,
        host_layer_s=file.host_layer_us * 1e-6,
        host_collective_s=file.host_collective_us * 1e-6,
        host_shard_s=file.host_shard_us * 1e-6,
        host_checkpoint_s=file.host_checkpoint_us * 1e-6,
        host_moe_sync_s=file.host_moe_sync_us * 1e-6,
        host_moe_sync_c2c_s=file.host_moe_sync_c2c_us * 1e-6,
        host_expert_s=file.host_expert_us * 1e-6,
        allocator_retry_s=file.allocator_retry_s,
        host_microbatch_s=file.host_microbatch_us * 1e-6,
    )
    states = StateBytes(gradient=file.gradient_bytes)
    return Framework(path.stem, runtime, states, file.vocab_multiple, file.space)


def _memory_profile(file: MemoryFile) -> MemoryProfile:
    values = file.model_dump()
    values["stored_gradient_bytes"] = tuple(sorted(values["stored_gradient_bytes"].items()))
    for name in ("context", "communicator"):
        values[f"{name}_bytes"] = values.pop(f"{name}_gib") * GIB
    return MemoryProfile(**values)


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

MEGATRON = frozenset({"megatron-lm", "nemo", "megatron-bridge", "primus"})
"""Frameworks that run Megatron-LM."""


HUGGING_FACE_ON_DEEPSPEED = "2023-08"
"""From this month on runs of DeepSpeed ZeRO-3 are taken for Hugging Face models rather than Megatron's."""

TORCHTITAN_EAGER_LOSS = "2025-06"
"""Until this month torchtitan's loss ran uncompiled, on fp32 logits."""


def framework_for(name: str, date: str, zero: str = "") -> Framework:
    """Return the profile of a framework as it was at `date` (`YYYY-MM`); one not known runs like `generic`.

    DeepSpeed with parameters sharded (`zero` 3) drives Hugging Face models, else Megatron's.
    """
    if name == "deepspeed":
        old = "" < date < HUGGING_FACE_ON_DEEPSPEED
        return load_framework("deepspeed" if zero == "3" and not old else "megatron-deepspeed")
    if name == "torchtitan" and date and date < TORCHTITAN_EAGER_LOSS:
        return load_framework("torchtitan-2024")
    if name in {"nanotron", "torchtitan", "llm-foundry"}:
        return load_framework(name)
    if name in MEGATRON:
        profile = next((old for before, old in MEGATRON_GENERATIONS if date and date < before), "megatron-core")
        if name == "megatron-lm" and "2022-01" <= date < MEGATRON_FUSED_ATTENTION:
            profile = "megatron-2022"
        found = load_framework(profile)
        return nvidia_recipe(found) if name in NVIDIA_RECIPES and profile not in NO_RECIPES else found
    return load_framework("generic")


NVIDIA_RECIPES = frozenset({"nemo", "megatron-bridge"})
"""Frameworks whose published figures come from performance recipes."""

NO_RECIPES = frozenset({"megatron-2021", "megatron-2022"})
"""Generations of Megatron-LM older than those recipes."""


def nvidia_recipe(framework: Framework) -> Framework:
    """Return a profile as the performance recipes of NeMo and Megatron-Bridge set it.

    Gradients stay in 16 bits (`grad_reduce_in_fp32=False`), 8-bit weights have no transposed copy
    (`disable_parameter_transpose_cache=True`) (NVIDIA-NeMo/Megatron-Bridge, scripts/performance).
    """
    stored = tuple((precision, 2.0) for precision in ("bf16", "fp16", "fp4", "fp8"))
    memory = replace(framework.runtime.memory, stored_gradient_bytes=stored, fp8_weight_bytes=1.0)
    return replace(framework, runtime=replace(framework.runtime, memory=memory))
