"""Fine-tuning written for tools around the Hugging Face Trainer: LLaMA-Factory, axolotl, ms-swift and TRL with PEFT.

What each calls its settings stands in `[written]` of `presets/tools/`; what shards the job is accelerate's
configuration or DeepSpeed's JSON. Their readers are those of every job of the Trainer. Each export is read again before
it is given (`gpuscale.launch.export`), so that what a tool runs otherwise than the plan is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuscale.architecture.parameters import count_adapters
from gpuscale.launch import accelerate, deepspeed, trainer
from gpuscale.launch.adapters import MODULES, PARTS
from gpuscale.launch.huggingface_models import hub_id
from gpuscale.launch.quoting import Expansion, json_text, yaml_text
from gpuscale.launch.settings import TORCH_DTYPES
from gpuscale.launch.writing import LaunchFile, Program, Writing
from gpuscale.presets.tools import Tool, WrittenTable
from gpuscale.specs.gpu import WIDE
from gpuscale.specs.tuning import MLP, PLAIN, TARGETS, TuningSpec

MIXTRAL = {"gate": "w1", "down": "w2", "up": "w3"}
FUSED = re.compile(r"phi-?[34]|falcon|gpt|dbrx|mpt|bloom|internlm2|glm|baichuan|starcoder|nemotron|opt-", re.IGNORECASE)
"""Models whose modules are called, or fused, otherwise than Llama's."""


def write(writing: Writing, tool: Tool) -> Program:
    """Write a plan for a tool: its own settings, and what shards the job."""
    table = tool.written
    assert table is not None
    trainer.refuse_beyond(writing)
    for axis in ("tp", "cp", "ep") if writing.spec.tuning is not None else ():
        if (size := getattr(writing.plan, axis)) > 1:
            writing.refuse(axis, f"adapters of PEFT are trained by data parallelism alone ({axis} = {size})")
    settings = _settings(writing, table)
    files: list[LaunchFile] = []
    checkpointed = trainer.full(writing)
    if writing.spec.runtime.rule_set == "deepspeed":
        config, optim = deepspeed.config(writing)
        settings["deepspeed"] = deepspeed.FILE
        files.append(LaunchFile(deepspeed.FILE, json_text(config)))
        launcher, environment = "torchrun", deepspeed.environment(writing)
    else:
        optim, environment = trainer.optimizer(writing), {}
        config, beside = accelerate.config(writing)
        settings |= beside
        checkpointed &= "fsdp_config" not in config
        launcher = "torchrun" if table.document else "accelerate"
        if table.document:
            settings |= _inside(config)
        else:
            files.append(LaunchFile(accelerate.FILE, yaml_text(config)))
    settings |= said(table, "recompute", "full" if checkpointed else "none")
    settings |= {table.names["optimizer"]: optim} if optim else {}
    if table.document:
        files.append(LaunchFile(table.document, yaml_text(settings)))
    writing.warn(f"{table.script} is that of {tool.basis.partition(',')[0]}: data and learning rate are yours to say")
    trainer.leave_training(writing)
    told = () if table.document else tuple(_argument(table, name, value) for name, value in settings.items())
    return Program(table.script, told, tuple(files), environment, launcher)


def _settings(writing: Writing, table: WrittenTable) -> dict[str, Any]:
    """Return what a tool is told of the job itself, by its own names."""
    spec, plan, names = writing.spec, writing.plan, table.names
    model = hub_id(writing.model)
    if model is None:
        writing.refuse("model", f"fine-tuning begins with weights of the hub, which has none of {writing.model.name}")
    found = {
        **table.always, names["model"]: model or "", names["seq"]: plan.sequence, names["micro"]: plan.micro_batch_size,
        names["steps"]: plan.num_microbatches,
        **{kind: spec.precision == kind for kind in ("bf16", "fp16", "tf32")},
    }  # fmt: skip
    loss = writing.asked("loss") or ("linear" if spec.runtime.rule_set == "deepspeed" else "")
    found |= said(table, "loss", loss) | said(table, "attention", writing.asked("attention"))
    found |= said(table, "offload", "activations" if spec.offload.activations else "")
    master = writing.asked("master_dtype")
    loaded = "bf16" if master == "none" else "fp32"
    if spec.tuning is None:
        found |= {**table.whole} | said(table, "master_dtype", master)
    else:
        found |= {**table.tuned} | adapter_settings(writing, table, spec.tuning, model or "")
        loaded = spec.tuning.base if spec.tuning.base in PLAIN else "bf16" if spec.precision in WIDE else spec.precision
    if "dtype" in names:
        found[names["dtype"]] = TORCH_DTYPES.get(loaded, "bfloat16")
    return found


def said(table: WrittenTable, option: str, value: Any) -> dict[str, Any]:
    """Return the settings that say an option; none where the tool has no word for it."""
    return dict(table.words.get(option, {}).get(str(value), {}))


def adapter_settings(writing: Writing, table: WrittenTable, tuning: TuningSpec, model: str) -> dict[str, Any]:
    """Return what says which adapters a plan trains, and how what is frozen is stored."""
    names = table.names
    if "norms" in tuning.trained:
        writing.refuse("train", "modules of norms are called otherwise in each model (train = norms)")
    base = said(table, "base_dtype", tuning.base)
    if tuning.quantised and not base:
        has = ", ".join(table.words["base_dtype"])
        writing.refuse("base_dtype", f"it quantises weights to {has} (base_dtype = {tuning.base})")
    writing.leave("scaling of adapters (lora_alpha), 0.05 for any dropout: yours to say")
    saved = [PARTS[part][0] for part in PARTS if part in tuning.trained]
    if saved and "saved" not in names:
        writing.refuse("train", f"its adapters stand alone (train = {writing.asked('train')})")
    found = {names["rank"]: tuning.rank, names["dropout"]: 0.05 if tuning.dropout else 0.0, **base}
    found |= _targets(writing, table, tuning, model)
    return found | ({names["saved"]: saved} if saved and "saved" in names else {})


def _targets(writing: Writing, table: WrittenTable, tuning: TuningSpec, model: str) -> Mapping[str, Any]:
    """Return what names the matrices with adapters; where modules are named, those of experts are among them."""
    experts = writing.model.is_moe and tuning.experts
    if tuning.targets == TARGETS["all"] and not experts:
        return table.all
    modules = {**MODULES, **(MIXTRAL if "mixtral" in model.lower() else {})}
    if FUSED.search(model) or not all(kind.mlp is None or kind.mlp.gated for kind in writing.model.kinds):
        option = "lora_experts" if experts else "lora_targets"
        writing.refuse(option, f"modules of {writing.model.name} are called otherwise than Llama's: all can be said")
    if writing.model.is_moe and not experts and tuning.targets & MLP:
        writing.refuse("lora_experts", "where modules are named, those of experts are among them")
    return {table.names["targets"]: sorted(modules[one] for one in own_targets(writing, tuning) if one in modules)}


def own_targets(writing: Writing, tuning: TuningSpec) -> frozenset[str]:
    """Return the matrices with adapters that the model has."""
    alone = ((name, replace(tuning, targets=frozenset({name}))) for name in tuning.targets)
    return frozenset(name for name, one in alone if count_adapters(writing.model, one).total)


def _inside(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return accelerate's configuration as settings of a tool that sets it up itself: axolotl's `fsdp_config`."""
    found = {
        name.removeprefix("parallelism_config_"): size for name, size in config.get("parallelism_config", {}).items()
    }
    names = {"tp_size": "tensor_parallel_size", "cp_size": "context_parallel_size"}
    found = {names.get(name, name): size for name, size in found.items()}
    if "fsdp_config" in config:
        own = {name.removeprefix("fsdp_"): value for name, value in config["fsdp_config"].items()}
        found |= {"fsdp_version": own.pop("version"), "fsdp_config": own}
    return found


def _argument(table: WrittenTable, name: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    words = [Expansion(one) if isinstance(one, str) and one.startswith("${") else str(one) for one in values]
    return (f"--{name}", *([",".join(words)] if table.joined and len(words) > 1 else words))
