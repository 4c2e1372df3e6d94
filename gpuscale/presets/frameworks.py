"""Framework profiles: how a training framework runs a step, as documented facts with sources."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpuscale.presets.files import named_preset, preset_names, read_toml
from gpuscale.presets.tables import Table, made
from gpuscale.specs.job import FrameworkSpec, MemoryProfile, RuntimeSpec, SpaceSpec, StateBytes

PROFILE = Table(
    FrameworkSpec,
    RuntimeSpec,
    StateBytes,
    without=("name", "weight", "master", "moments"),
    memory=(dict[str, Any], ...),
    space=(dict[str, Any], {}),
    sources=(dict[str, str], ...),
)
MEMORY, SPACE = Table(MemoryProfile), Table(SpaceSpec)


def framework_path(name: str) -> Path:
    """Return the file of a profile, by its name or an alias; its stem is the profile's name.

    Raises:
        InputError: unknown name.
    """
    return named_preset("frameworks", "framework", name, "gpuscale frameworks list")


def framework_file(name: str) -> dict[str, Any]:
    """Return every setting of a profile, by name or alias, as its file has it; left-out ones with their defaults.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    document = read_toml(framework_path(name))
    tables = {"space": SPACE.shown(document, ("space",)), "memory": MEMORY.shown(document, ("memory",))}
    return {**PROFILE.shown(document), **tables}


def all_framework_files() -> dict[str, dict[str, Any]]:
    """Return every profile by name, in alphabetical order."""
    return {name: framework_file(name) for name in preset_names("frameworks")}


@cache
def load_framework(name: str) -> FrameworkSpec:
    """Return a profile by name or alias, ready for a job.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    path = framework_path(name)
    document = read_toml(path)
    stated = PROFILE.read(document)
    memory = MemoryProfile(**MEMORY.read(document, ("memory",)))
    return made(
        FrameworkSpec,
        stated,
        name=path.stem,
        runtime=made(RuntimeSpec, stated, name=path.stem, memory=memory),
        states=made(StateBytes, stated),
        space=SpaceSpec(**SPACE.read(document, ("space",))),
    )


MEGATRON_GENERATIONS = (
    ("2022-01", "megatron-2021"),
    ("2023-08", "megatron-2022"),
    ("2024-10", "megatron-2023"),
    ("2025-08", "megatron-2024"),
)
"""Megatron-LM by date: before SP and fused attention; before fused attention; before attention kernels that use all of
Hopper; before DeepEP; else `megatron-core`."""

MEGATRON_FUSED_ATTENTION = "2024-01"
"""Until this month plain Megatron-LM ran unfused attention, with dropout, unless told otherwise: transformer_impl was
local and use_flash_attn off (its arguments.py; neither is set in examples/pretrain_zbh1.sh of
sail-sg/zero-bubble-pipeline-parallelism, 2023). NeMo set fused attention in its recipes."""

MEGATRON = frozenset({"megatron-lm", "nemo", "megatron-bridge", "primus"})
"""Frameworks that run Megatron-LM."""


HUGGING_FACE_ON_DEEPSPEED = "2023-08"
"""From this month on runs of DeepSpeed ZeRO-3 are taken for Hugging Face models rather than Megatron's."""

TORCHTITAN_EAGER_LOSS = "2025-06"
"""Until this month torchtitan's loss ran uncompiled, on fp32 logits."""


def framework_for(name: str, date: str, zero: str = "") -> FrameworkSpec:
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


def nvidia_recipe(framework: FrameworkSpec) -> FrameworkSpec:
    """Return a profile as the performance recipes of NeMo and Megatron-Bridge set it.

    Gradients stay in 16 bits (`grad_reduce_in_fp32=False`), 8-bit weights have no transposed copy
    (`disable_parameter_transpose_cache=True`) (NVIDIA-NeMo/Megatron-Bridge, scripts/performance).
    """
    stored = dict.fromkeys(("bf16", "fp16", "fp4", "fp8"), 2.0)
    memory = replace(framework.runtime.memory, stored_gradient_bytes=stored, fp8_weight_bytes=1.0)
    return replace(framework, runtime=replace(framework.runtime, memory=memory))
