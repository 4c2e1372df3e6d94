"""torchtune: a YAML of one of its recipes, both ways.

Names are those of torchtune 0.6.1 (recipes/full_finetune_distributed.py, recipes/lora_finetune_distributed.py,
torchtune/models), whose configuration the tests validate with. What its recipes have where nothing is said stands in
`presets/tools/torchtune.toml`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from gpuscale.launch import adapters, preferences, trainer
from gpuscale.launch.cluster_files import machines
from gpuscale.launch.finetuning import own_targets
from gpuscale.launch.huggingface import take_configs
from gpuscale.launch.huggingface_models import hub_id, known_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.quoting import Expansion, yaml_text
from gpuscale.launch.settings import Reading, Setting, Source
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing
from gpuscale.presets.tools import load_tool
from gpuscale.specs.tuning import MLP, TuningSpec

FILE = "torchtune.yaml"
OPTIMIZERS = {
    "adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW", "sgd": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor", "adamw-8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW", "paged-adamw-8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "lion": "bitsandbytes.optim.Lion",
}  # fmt: skip
"""`optimizer` -> class that its recipes make."""

LOSSES = {"chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss", "standard": "torch.nn.CrossEntropyLoss"}
MODULES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}
"""Matrix of attention -> its name in `lora_attn_modules`."""


def write(writing: Writing) -> Program:
    """Write a plan as the configuration of a recipe, and the command that runs it."""
    plan, spec, tuning = writing.plan, writing.spec, writing.spec.tuning
    for axis, size in (("tp", plan.tp), ("cp", plan.cp), ("ep", plan.ep)):
        if size > 1:
            writing.refuse(axis, f"its recipes take a plan of their own for it, or have none ({axis} = {size})")
    component = _components().get(writing.model.name, "")
    if not component or hub_id(writing.model) is None:
        writing.refuse("model", f"its builders of models have none of {writing.model.name}")
    table, _, builder = component.rpartition(".")
    loss, name = spec.runtime.loss, str(writing.asked("optimizer"))
    for option, value, known in (("loss", loss, LOSSES), ("optimizer", name, OPTIMIZERS)):
        if value not in known:
            writing.refuse(option, f"its recipes take {', '.join(known)} ({option} = {value})")
    model: dict[str, Any] = {"_component_": component}
    if tuning is not None:
        model = {"_component_": f"{table}.lora_{builder}", **_lora(writing, tuning)}
    folder = "/tmp/model"  # where `tune download` is told to put it
    config = {
        "#": "tokenizer, checkpointer and dataset are yours to say",
        "output_dir": "output", "model": model,
        "tokenizer": {"_component_": "TOKENIZER", "path": f"{folder}/tokenizer.model", "max_seq_len": plan.sequence},
        "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": folder,
                         "checkpoint_files": ["model.safetensors"], "model_type": "MODEL_TYPE",
                         "output_dir": "output", "recipe_checkpoint": None},
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": True},
        "resume_from_checkpoint": False, "seed": None, "shuffle": True, "epochs": 1, "max_steps_per_epoch": None,
        "batch_size": plan.micro_batch_size, "gradient_accumulation_steps": plan.num_microbatches,
        "optimizer": {"_component_": OPTIMIZERS.get(name, ""), "lr": 2e-5},
        "loss": {"_component_": LOSSES.get(loss, "")}, "clip_grad_norm": None, "compile": bool(spec.runtime.compile),
        "device": "cuda", "dtype": spec.precision, "enable_activation_checkpointing": trainer.full(writing),
        "enable_activation_offloading": spec.offload.activations > 0, "log_every_n_steps": 1,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "output/logs"},
    }  # fmt: skip
    single = spec.gpus == 1
    if not single:
        config |= {"fsdp_reshard_after_forward": plan.zero == 3, "fsdp_cpu_offload": spec.offload.parameters}
    if tuning is not None:
        config |= {"lr_scheduler": {"_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
                                    "num_warmup_steps": 100}, "save_adapter_weights_only": True}  # fmt: skip
    recipe = f"{'full' if tuning is None else 'lora'}_finetune_{'single_device' if single else 'distributed'}"
    nodes, per_node = machines(writing)
    each = [("--nproc_per_node", str(per_node))] if nodes == 1 else [
        ("--nnodes", str(nodes)), ("--nproc_per_node", str(per_node)), ("--rdzv_backend", "c10d"),
        ("--rdzv_endpoint", Expansion("${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}")),
    ]  # fmt: skip
    words = [*([] if single else each), (recipe,), ("--config", FILE)]
    writing.warn(f"{FILE}: the component of the tokenizer, the kind of the checkpoint and the data are yours to say")
    trainer.leave_training(writing)
    files = (LaunchFile(FILE, yaml_text(config)),)
    return Program("tune run", tuple(words), files, launcher=None, installed=True)


def _lora(writing: Writing, tuning: TuningSpec) -> dict[str, Any]:
    """Return what a builder of adapters is given."""
    targets = own_targets(writing, tuning)
    mlp = targets & MLP
    if mlp not in {frozenset(), MLP}:
        writing.refuse("lora_targets", "apply_lora_to_mlp is for all matrices of the MLP")
    if tuning.trained:
        writing.refuse("train", "its recipes train adapters alone")
    if tuning.base not in {"nf4", writing.spec.precision}:
        writing.refuse("base_dtype", f"weights are NF4, or of `dtype` (base_dtype = {tuning.base})")
    return {
        "lora_attn_modules": [module for name, module in MODULES.items() if name in targets],
        "quantize_base": tuning.quantised, "apply_lora_to_mlp": bool(mlp), "lora_rank": tuning.rank,
        "lora_alpha": 2 * tuning.rank,
        "lora_dropout": 0.05 if tuning.dropout else 0.0,
    }  # fmt: skip


@cache
def _components() -> dict[str, str]:
    """Return the builders of whole models that its own configurations have, by the model that each builds."""
    found: dict[str, str] = {}
    for settings in load_tool("torchtune").configs.values():
        component = str(settings["model._component_"])
        builder = component.rpartition(".")[2]
        model = _model_of(builder)
        if model is not None and "lora_" not in builder and "dora_" not in builder:
            found.setdefault(model, component)
    return found


# --- read


def claims(source: Source) -> bool:
    """Whether a source is a command of `tune`, or a configuration of a recipe."""
    component = source.settings.get("model._component_")
    tuned = source.program[:1] == ("tune",) and "config" in source.settings
    return tuned or (component is not None and str(component.value).startswith("torchtune."))


def read(reading: Reading) -> None:
    """Read a YAML of torchtune, whose weights, gradients and moments have one type, `dtype`."""
    tool = load_tool("torchtune")
    reading.run_by(tool)
    recipe = _take_command(reading)
    take_configs(reading, tool, "config")
    component = reading.get("model._component_")
    named = str(component.value).rpartition(".")[2] if component is not None else ""
    words = f"{recipe} {reading.text('config') or ''}"
    if re.search(r"qat|ppo|knowledge|distill", f"{named} {words}"):
        reading.refuse(
            component or reading.get("config"),
            "only training of a whole model by itself, or of its adapters, is modelled",
            "use a full_finetune or LoRA recipe",
        )
    if component is None:
        hint = "give it too; what the recipe trains, its adapters and types stand there"
        reading.refuse(
            reading.get("config"), "the recipe's configuration is not here, or names no model", hint, elsewhere=True
        )
    _read_model(reading, component, re.sub(r"^(lora|qlora|dora|qdora)_", "", named))
    preferences.read(reading)
    _read_adapters(reading, named)
    take_gpus(reading)
    if "single_device" in words and "gpus" not in reading.options and not reading.given.get("gpus"):
        reading.option("gpus", 1)
    reading.option("framework", "torchtune")
    single = "single_device" in words or (reading.given.get("gpus") or reading.options.get("gpus")) == 1
    tp = reading.integer("tensor_parallel_dim") or 1
    reading.option("tp", tp, "tensor_parallel_dim")
    names = ("fsdp_reshard_after_forward",)
    reading.option("zero", 0 if single else 3 if reading.flag(*names) else 2, *names)
    replicas = reading.integer("data_parallel_replicate_dim") or 1
    reading.means("the rest of the GPUs", "data_parallel_shard_dim")
    if (cp := reading.integer("context_parallel_dim")) and cp > 1:
        reading.option("cp", cp, "context_parallel_dim")
        reading.option("cp_comm", "all_gather", "context_parallel_dim")
    if replicas > 1 and not single:
        ranks = trainer.data_parallel(reading, "the shards") * int(reading.layout.get("cp") or 1)
        reading.option("shard", ranks // replicas, "data_parallel_replicate_dim", "data_parallel_shard_dim")
    kind = trainer.read_precision(reading, "dtype")
    if kind == "bf16":
        for name, value in (("master_dtype", "none"), ("grad_dtype", "bf16"), ("moment_dtype", "bf16")):
            reading.option(name, value, "dtype")
    trainer.read_checkpointing(reading, "enable_activation_checkpointing")
    parts = ["optimizer", "parameters"] if reading.flag("fsdp_cpu_offload") else []
    parts += ["activations"] if reading.flag("enable_activation_offloading") else []
    if parts:
        reading.option("offload", "+".join(parts), "fsdp_cpu_offload", "enable_activation_offloading")
    if reading.flag("optimizer_in_bwd"):
        reading.assume(
            "gradients are held until the step: updates within the backward pass are not modelled", "optimizer_in_bwd"
        )
    reading.switch("compile", "on", "off", "compile", "compile.model")
    _read_optimizer(reading)
    loss = (reading.text("loss._component_") or "").lower()
    reading.option("loss", "chunked" if "chunk" in loss or "linear" in loss else "standard", "loss._component_")
    trainer.read_sequence(reading, "tokenizer.max_seq_len", "max_seq_len", "dataset.max_seq_len")
    trainer.read_batch(
        reading, trainer.count(reading, "batch_size"), trainer.count(reading, "gradient_accumulation_steps"), None,
        "batch_size", "gradient_accumulation_steps",
    )  # fmt: skip


def _read_adapters(reading: Reading, named: str) -> None:
    """Read adapters: builders `lora_...`, and `qlora_...` with weights in torchao's NF4, whose scales are quantised."""
    kind = re.match(r"(q?)(lora|dora)_", named)
    if kind is None or reading.given.get("tune") == "full":
        return
    mlp, base = "model.apply_lora_to_mlp", "model.quantize_base"
    found = reading.get("model.lora_attn_modules")
    if found is not None and reading.flag(mlp):
        reading.settings[found.name] = replace(found, value=[*reading.words(found.name), "mlp"])
        reading.means("the MLP has adapters", mlp)
    if reading.flag("model.apply_lora_to_output"):
        reading.assume("without adapters of the LM head, which take little", "model.apply_lora_to_output")
    if kind[2] == "dora" or reading.flag("model.use_dora"):
        reading.assume(adapters.WITHOUT_MAGNITUDES)
    names = adapters.Names(("model.lora_rank",), ("model.lora_attn_modules",), ("model.lora_dropout",))
    held = "nf4" if kind[1] or reading.flag(base) else None
    adapters.take(reading, names, "model._component_", base=held, by=(base, "model._component_"))


def _take_command(reading: Reading) -> str:
    """Take apart `tune run --nproc_per_node 8 RECIPE --config NAME`; return the recipe's name."""
    recipe = " ".join(word for source in reading.sources for word in source.program[2:])
    for name, found in list(reading.settings.items()):
        if not isinstance(found.value, list) or not found.text.startswith("-"):
            continue
        first, *more = map(str, found.value)
        reading.settings[name] = replace(found, value=first, span=None)
        recipe = " ".join([recipe, *more])
    return recipe


def _read_model(reading: Reading, component: Setting | None, named: str) -> None:
    """Set the model by the name of its builder: `torchtune.models.llama3_1.llama3_1_8b`."""
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "model._component_")
        return
    known = _model_of(named)
    if component is None or known is None:
        reading.refuse(component, f"the model {named[:60]!r} is not known here", settles="model")
    reading.option("model", known, "model._component_")


def _model_of(builder: str) -> str | None:
    """Return the model that a builder builds, by its name; None of one that is not known."""
    words = re.sub(r"_(instruct|base|reasoning)$", "", builder)
    of_release = re.sub(r"(?<=\d)_(?=\d(_|$))", ".", words).replace("_", "-")  # llama3_1_8b: 3.1; mini names stay
    of_size = re.sub(r"(?<=\d)_(?=\d-)", ".", re.sub(r"_(\d)_(\d+b)", r"-\1.\2", words))  # qwen2_0_5b: 0.5B
    return known_model(of_release)[0] or known_model(of_size)[0]


def _read_optimizer(reading: Reading) -> None:
    """Read the optimizer by the name of its class: `torch.optim.AdamW`, `bitsandbytes.optim.PagedAdamW8bit`."""
    found = reading.get("optimizer._component_")
    if found is not None:
        reading.settings["optimizer"] = replace(found, value=str(found.value).rpartition(".")[2])
    trainer.read_optimizer(reading, "optimizer")
    reading.means("the optimizer", "optimizer._component_")


TARGET = Target(
    "torchtune", "torchtune", load_tool("torchtune").basis, ("torchtune",), write, claims, read,
    adapters=True, reads_again=True,
)  # fmt: skip
