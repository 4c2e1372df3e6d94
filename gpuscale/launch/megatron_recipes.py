"""What a recipe of Megatron-Bridge or NeMo sets by itself, where a script or a command only names it and changes some.

Recipes for a model on a number of GPUs of a kind (`llama3_70b_pretrain_64gpu_h100_bf16_config`) are those of
`presets/recipes`; those of the frameworks' libraries, for a model alone, those of `presets/library`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.megatron import FP8_RECIPES, FULL_SHARDING, PRECISION_OF
from gpuscale.launch.megatron_models import Arguments
from gpuscale.launch.settings import PRIMUS, Reading, Setting
from gpuscale.planning.recipes import all_recipes, find_recipe
from gpuscale.presets.files import known_table, preset_files, read_unchanged
from gpuscale.presets.models import load_model
from gpuscale.rules.rule import FRAMEWORKS


class Base(NamedTuple):
    """What a recipe sets, as options of a job and its layout."""

    options: Mapping[str, Any]
    performance: bool = False  #: whether it is one for a number of GPUs of a kind.


OF_GPUS = re.compile(r"_(\d+)gpus?_")
"""What the name of a recipe for a number of GPUs contains."""


def named_recipe(name: str) -> Base | None:
    """Return what a recipe sets by the name of its function; None of one that is not known."""
    plain = name.rpartition(".")[2].replace("-", "_")
    if re.search(r"\d+gpus?_", plain):
        with suppress(InputError):
            found = find_recipe(plain)
            return Base({**found.job, **found.layout}, performance=True)
    own = library().get(name)
    return Base(own) if own is not None else None


@cache
def library() -> Mapping[str, Mapping[str, Any]]:
    """Return the recipes of the frameworks' libraries by the names of their functions."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in preset_files("library").values():
        for name, own in read_unchanged(path).data.get("recipes", {}).items():
            found.setdefault(name, own)
    return found


def packed_batch(name: str) -> dict[str, int]:
    """Return the batch that a recipe of NeMo has of packed data, as arguments; empty where it packs none."""
    data = read_unchanged(preset_files("library")["nemo"]).data
    own, packed = data["recipes"].get(name), data["packed"]
    if own is None or "finetune" not in name:
        return {}
    length = packed.get(name.partition(":")[0], own["seq"])
    return {"seq_length": length, "global_batch_size": min(packed["gbs"], own["gbs"])}


def recipe_arguments(base: Base) -> Arguments:
    """Return what a recipe sets as Megatron-LM's arguments."""
    own = base.options
    found: Arguments = {
        row.name: own[row.ours] for row in FRAMEWORKS["megatron-lm"].options if row.name and row.ours in own
    }
    found |= {name: own[ours] for ours, name in _BESIDE.items() if ours in own}
    zero = own.get("zero", 1)
    found |= {"use_distributed_optimizer": zero > 0, "sequence_parallel": own.get("sp", own.get("tp", 1) > 1)}
    if zero > 1:
        found |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": FULL_SHARDING[zero]}
    parts = str(own.get("overlap", "tp+dp")).split("+")
    found |= {"overlap_grad_reduce": "dp" in parts, "overlap_param_gather": "dp" in parts}
    found |= {"tp_comm_overlap": "tp" in parts, "overlap_moe_expert_parallel_comm": "ep" in parts}
    found |= {"grad_reduce_in_bf16": True} if base.performance else {"accumulate_allreduce_grads_in_fp32": True}
    found |= {"use_precision_aware_optimizer": "moment_dtype" in own, "fp8_param_gather": True}
    if "tune" in own:
        found["peft"] = own["tune"]
        found |= {name: own[ours] for ours, name in _OF_ADAPTERS.items() if ours in own}
    found["cross_entropy_loss_fusion"] = own.get("loss") != "standard"
    found["cuda_graph_impl"] = _GRAPHS[own.get("cuda_graphs", "none")]
    experts = "model" in own and load_model(str(own["model"])).is_moe
    dispatcher = own.get("dispatcher", "alltoall" if experts else None)
    if dispatcher == "alltoall":
        found["moe_token_dispatcher_type"] = dispatcher
    elif dispatcher:
        found |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": dispatcher}
    return found | _precision(str(own.get("precision", "bf16"))) | _recompute(own) | _offload(own)


_BESIDE = {"vpp": "virtual_pipeline_model_parallel_size", "etp": "expert_tensor_parallel_size",
           "moment_dtype": "exp_avg_dtype"}  # fmt: skip
_OF_ADAPTERS = {"lora_rank": "peft.dim", "lora_targets": "peft.target_modules"}
_GRAPHS = {"none": "none", "partial": "transformer_engine", "full": "full_iteration"}


def _precision(precision: str) -> Arguments:
    if precision in {"bf16", "fp16"}:
        return {precision: True}
    if precision == "nvfp4":
        return {"bf16": True, "fp4_format": "e2m1"}
    of = next((own for own, ours in zip(FP8_RECIPES.values(), PRECISION_OF.values(), strict=True) if ours == precision),
              "delayed")  # fmt: skip
    return {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": of}


def _recompute(own: Mapping[str, Any]) -> Arguments:
    kind, _, detail = str(own.get("recompute", "none")).partition(":")
    if kind == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": (detail or "core_attn").split("+")}
    if kind != "full":
        return {}
    if not detail:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    layers = int(detail) // own.get("vpp", 1)
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}


def _offload(own: Mapping[str, Any]) -> Arguments:
    found: Arguments = {}
    for part in filter(None, str(own.get("offload", "")).split("+")):
        name, _, share = part.partition(":")
        if name == "activations":
            layers = round(float(share or 1) * load_model(own["model"]).layers)
            found |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
        elif name == "optimizer":
            found["optimizer_cpu_offload"] = True
    return found


def take_recipe(reading: Reading, found: Setting) -> bool:
    """Set what a recipe that a setting names sets itself, where nothing else does; whether it is for a kind of GPU."""
    base = named_recipe(str(found.value))
    if base is None:
        return False
    for name, value in recipe_arguments(base).items():
        reading.settings.setdefault(name, replace(found, name=name, value=value, span=None, why=""))
    reading.means("a recipe, whose settings count where nothing else is said", found.name)
    take_model(reading, str(base.options["model"]), found.name)
    for option in ("gpus", "cluster"):
        if option in base.options and option not in reading.given | reading.options:
            reading.option(option, base.options[option], found.name)
    return base.performance


def take_usual(reading: Reading, found: Setting) -> None:
    """Set what every recipe of a library sets, where one is named that is not known here."""
    for name, value in recipe_arguments(Base({})).items():
        reading.settings.setdefault(name, replace(found, name=name, value=value, span=None, why=""))
    reading.assume("bf16, the distributed optimizer and overlap, as all recipes of the library have them", found.name)


_KNOWN = known_table("megatron")

SHAPE, KINDS = _KNOWN["shape"], frozenset(_KNOWN["kinds"])


def take_model(reading: Reading, model: str, *of: str) -> None:
    """Set the model by name, with what settings change of its shape."""
    if reading.given.get("model") or _whole_model(reading):
        return
    sections = ("model.", "model.config.", f"{PRIMUS}.overrides.")
    stated = [name for name in SHAPE if any(f"{one}{name}" in reading.settings for one in sections)]
    changed = {SHAPE[name]: reading.integer(name, *(f"{one}{name}" for one in sections)) for name in stated}
    own = load_model(model)
    if changed.get("vocab") == own.vocab:
        changed.pop("vocab")
    parts = [f"{key}={value}" for key, value in changed.items() if value is not None]
    reading.option("model", ",".join([model, *parts]), *of, *stated)
    reading.shape["layers"] = changed.get("layers") or own.layers


def _whole_model(reading: Reading) -> bool:
    """Whether a script states a whole model, of a class or by its arguments, and not what it changes of another."""
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= reading.settings.keys():
        return False
    classes = [str(one.value) for name in ("model.config", "model") if (one := reading.settings.get(name)) is not None]
    own = [one for one in classes if re.search(r"Config|Provider", one)]
    return bool(KINDS & reading.settings.keys()) or (bool(own) and not any(map(model_of_class, own)))


FAMILIES, MACHINES = _KNOWN["families"], _KNOWN["machines"]


def model_of_class(name: str) -> str | None:
    """Return the model that a class of the frameworks builds: of `Llama31Config405B` llama3.1-405b."""
    parts = re.fullmatch(r"(\w+?)(?:ModelProvider|Provider|Config)(\w*)", name.rpartition(".")[2])
    if parts is None or parts[1] not in FAMILIES:
        return None
    size = re.sub(r"(\d)p(\d)", r"\1.\2", parts[2].lower().replace("_", "-"))
    size = re.sub(r"^(\d)00m$", r"0.\1b", size)
    with suppress(InputError):
        return load_model("-".join(filter(None, (FAMILIES[parts[1]], size)))).name
    return None


def take_hub_model(reading: Reading) -> None:
    """Set the model that Megatron-Bridge takes from the hub, or that a class of the frameworks builds."""
    for name in ("model.of.0", "model.of.0.0", "model.of.pretrained_model_name_or_path", "model.of.hf_model_id"):
        found = reading.get(name)
        if found is None or "/" not in str(found.value):
            continue
        known, guessed = known_model(str(found.value))
        if known is None:
            reading.refuse(found, f"the model {str(found.value)[:120]!r} is not known here", settles="model")
        if guessed:
            reading.assume(f"the model is {known}, by its name", name)
        take_model(reading, str(known), name)
        return
    for name in ("model.config", "model", "model.0"):
        found = reading.settings.get(name)
        own = model_of_class(str(found.value)) if found is not None and isinstance(found.value, str) else None
        if own is not None:
            take_model(reading, own, name)
            return


def machine_of(name: str) -> str | None:
    """Return the cluster that the name of a recipe's function means."""
    found = re.search(r"gpus?_([a-z]+\d+)", name)
    return MACHINES.get(found[1]) if found else None


def nearest_recipe(model: str, task: str, gpus: int, gpu: str, precision: str) -> tuple[str, int] | None:
    """Return the name and GPUs of the recipe of a model on a kind of GPU whose number of GPUs is nearest.

    Args:
        model: as recipes are named, `llama3_70b`.
        task: `pretrain`, `sft`, ...
        gpu: as recipes are named, `gb200`.
        precision: as recipes are named, `fp8_cs`.
    """
    start = re.sub(r"[^a-z0-9]", "", model.lower())
    end = f"{gpu}-{precision.replace('_', '')}".lower()
    found = []
    for one in all_recipes():
        match = re.fullmatch(r"(.+)-(\d+)gpu-(.+)", one.name)
        if match and re.sub(r"[^a-z0-9]", "", match[1]) == start and match[3] == end and task in {"pretrain", ""}:
            found.append((abs(int(match[2]) - gpus), int(match[2]), one.name))
    best = min(found, default=None)
    return (best[2], best[1]) if best else None
