"""A job and its layout as torchtitan's options have them, both ways; also as its older releases and Primus had them.

Written are the options of torchtitan 0.3.0 (PyPI): torchtitan/config/configs.py, trainer.py and
distributed/activation_checkpoint.py. What has no option (the model's shape, converters to fp8, the dispatcher of
experts, stages of uneven length) goes into a config function of its own, a Python file beside the script.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.python import refuse_keywords
from gpuscale.launch.quoting import comment
from gpuscale.launch.settings import PRIMUS, Reading, Setting, Source
from gpuscale.launch.shapes import name_left, nearest_split
from gpuscale.launch.torchtitan_models import (
    BASES,
    REGISTRIES,
    Built,
    built,
    here,
    known,
    model_function,
    read_flavor,
    read_llama,
    read_shape,
    with_mtp,
    written,
)
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing
from gpuscale.layouts.stages import stage_sizes
from gpuscale.presets.files import settled
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import load_tool
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.specs.model import ModelSpec

RELEASE = "0.3.0"
OWN_MODULE, OWN_FUNCTION = "plan_config", "plan"

OPTIONS = FRAMEWORKS["torchtitan"].options
DEGREES = {row.ours: row.name for row in OPTIONS if row.name}

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble"}
READ_SCHEDULES = {
    "1f1b": "1f1b", "interleaved1f1b": "1f1b", "gpipe": "gpipe", "zbvzerobubble": "zb-v", "dualpipev": "dualpipe",
    "interleavedzerobubble": "zb-h1",
}  # fmt: skip
"""Schedule of a layout -> `parallelism.pipeline_parallel_schedule`, and back."""

DISPATCHERS = {"alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep"}
"""Dispatcher -> `moe_comm_backend` of a model's registry."""

CONVERTERS = {
    "current": ("Float8LinearConverter", 'filter_fqns=["lm_head", "router.gate"]', "Float8GroupedExpertsConverter"),
    "mx": (
        "MXFP8LinearConverter", 'fqns=["attention", "feed_forward", "shared_experts"]', "MXFP8GroupedExpertsConverter"
    ),
    "nvfp4": ("NVFP4LinearConverter", 'fqns=["layers"]', ""),
}  # fmt: skip
"""Recipe -> the converter of linear layers, what it leaves alone, and the converter of experts."""

RECIPES = {"float8": "fp8-current", "mxfp8": "mxfp8", "mx": "mxfp8", "nvfp4": "nvfp4"}


ENVIRONMENT = {
    "PYTORCH_ALLOC_CONF": (
        "expandable_segments:True",
        "as torchtitan's run_train.sh has it: expandable segments reduce fragmentation",
    )
}

# --- writing


def write(writing: Writing) -> Program:
    """Return what torchtitan runs for a plan; what it cannot express is refused."""
    made = built(writing)
    spec, runtime = writing.spec, writing.spec.runtime
    if runtime.overlap_tp and not runtime.compile:
        writing.refuse("overlap", "async TP requires the model to be compiled (config/configs.py, CompileConfig)")
    arguments = (
        _parallelism(writing)
        | _training(writing)
        | {
            "compile.enable": bool(runtime.compile),
            "compile.components": "model,loss",
            "compile.enable_async_tensor_parallel": runtime.overlap_tp and bool(runtime.compile),
        }
    )
    own = _own_lines(writing, made) if made else []
    module, function = (OWN_MODULE, OWN_FUNCTION) if own or not made else (made.module, made.function)
    listed: list[tuple[str, ...]] = [("--module", module), ("--config", function)]
    for name, value in arguments.items():
        key = name.rpartition(".")[2]
        off = f"--{name.removesuffix(key)}no-{key}"
        listed.append((f"--{name}", str(value)) if not isinstance(value, bool) else (f"--{name}" if value else off,))
    kind = writing.layout.recompute.partition(":")[0]
    listed.append((f"activation-checkpoint:{kind}",))
    writing.told(OPTIONS, {})
    if "@" in runtime.name:
        writing.refuse("framework", f"torchtitan {RELEASE} is written, which runs otherwise: plan for torchtitan")
    if runtime.transport == "uccl" and spec.model.is_moe:
        writing.refuse("transport", "which library DeepEP sends by is chosen when it is installed")
    if writing.asked("grad_reduce") not in {None, "default", "last" if writing.layout.pp > 1 else "each"}:
        why = "gradients are reduced in each microbatch, under pipelines in the last (torch.distributed.pipelining)"
        writing.refuse("grad_reduce", why)
    if made:
        name_left(writing, written(made, writing.model), here(made, writing.model), f"in torchtitan's {made.module}")
    training = "learning rate, its schedule, weight decay, Adam's betas, clipping, steps, tokenizer, data: the recipe's"
    writing.leave(training)
    writing.leave("weight decay: decoupled from the gradient, since the recipes' optimizer is AdamW")
    writing.warn("set --hf_assets_path and --dataloader.dataset: tokenizer and data are those of torchtitan's recipe")
    files = (LaunchFile(f"{OWN_MODULE}.py", "\n".join(own)),) if own else ()
    return Program("-m torchtitan.train", tuple(listed), files, ENVIRONMENT)


def _parallelism(writing: Writing) -> dict[str, Any]:
    layout = writing.layout
    dp, zero, shard = layout.dp or 1, layout.zero or 0, layout.shard or 1
    found: dict[str, Any] = {name: getattr(layout, key) for key, name in DEGREES.items()}
    if layout.ep == 1:
        found.pop(DEGREES["ep"])
        found["parallelism.expert_parallel_degree"] = 1
    sharded = shard // layout.cp if zero else 1
    if zero and sharded == 1 and dp > 1:
        why = "a data_parallel_shard_degree of 1 beside replicas is DDP (distributed/parallel_dims.py)"
        writing.refuse("shard", why)
    found |= {
        "parallelism.data_parallel_replicate_degree": dp // max(sharded, 1),
        "parallelism.data_parallel_shard_degree": sharded,
        "parallelism.fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(zero, "default"),
    }
    found["parallelism.enable_sequence_parallel"] = bool(layout.sp) or layout.tp == 1
    if layout.pp > 1:
        interleaved = (layout.vpp or 1) > 1 and layout.schedule == "1f1b"
        found["parallelism.pipeline_parallel_schedule"] = (
            "Interleaved1F1B" if interleaved else SCHEDULES[layout.schedule]
        )
        found["parallelism.pipeline_parallel_microbatch_size"] = layout.micro_batch_size
        if _dealt_by_itself(writing):
            found |= {"parallelism.pipeline_parallel_first_stage_less_layers": 0}
            found |= {"parallelism.pipeline_parallel_last_stage_less_layers": 0}
    return found


def _sizes(writing: Writing) -> tuple[int, ...]:
    layout, spec = writing.layout, writing.spec
    vpp = layout.vpp or 1
    return stage_sizes(spec.model, layout.pp, vpp, spec.runtime.pipeline_split)


def _dealt_by_itself(writing: Writing) -> bool:
    """Whether torchtitan deals out layers as planned when nothing but weights of 0 is said of the ends."""
    layout = writing.layout
    chunks = layout.pp * (2 if layout.schedule == "zb-v" or (layout.vpp or 1) > 1 else 1)
    each, extra = divmod(writing.model.layers, chunks)
    return tuple(each + (index < extra) for index in range(chunks)) == _sizes(writing)


def _training(writing: Writing) -> dict[str, Any]:
    spec, layout, plan = writing.spec, writing.layout, writing.plan
    local = layout.micro_batch_size * (plan.num_microbatches if layout.pp > 1 else 1)
    found: dict[str, Any] = {
        "training.seq_len": spec.sequence,
        "training.local_batch_size": local,
        "training.global_batch_size": spec.global_batch_size,
        "training.enable_cpu_offload": spec.offload.any,
    }
    if spec.offload.optimizer != spec.offload.parameters:
        why = "training.enable_cpu_offload keeps parameters, gradients and optimizer states in host memory, or none"
        writing.refuse("offload", why)
    graphs = spec.runtime.cuda_graphs
    if graphs == "full" and layout.pp > 1:
        writing.refuse("cuda_graphs", "they do not support pipeline parallelism yet (trainer.py)")
    elif graphs == "full" and layout.ep > 1:
        why = "with EP they need HybridEP with non_blocking_capacity_factor, or MinimalAsyncEP (trainer.py)"
        writing.refuse("cuda_graphs", why)
    found["training.disable_cuda_graphs"] = graphs == "none"
    return found | _dtypes(writing)


def _dtypes(writing: Writing) -> dict[str, Any]:
    spec, asked = writing.spec, writing.asked
    states = asked("grad_dtype"), asked("master_dtype"), asked("moment_dtype")
    wide = spec.precision in {"fp32", "tf32"}
    found: dict[str, Any] = {"training.dtype": "float32"}
    found["training.mixed_precision_param"] = "float32" if wide else "bfloat16"
    found["optimizer.implementation"] = "fused"
    if not wide and states == ("bf16", "none", "bf16"):
        return found | {"training.dtype": "bfloat16"}
    if states[0] not in {None, "fp32"}:
        writing.refuse("grad_dtype", 'training.mixed_precision_reduce: Literal["float32"] (config/configs.py)')
    if states[1] != "fp32":
        why = "parameters are kept in fp32, or with training.dtype bfloat16 in bf16, gradients and moments too"
        writing.refuse("master_dtype", why)
    if states[2] == "bf16":
        found["optimizer.implementation"] = "fused_opt_states_bf16"
    elif states[2] != "fp32":
        writing.refuse("moment_dtype", "fp32, or bf16 by optimizer.implementation fused_opt_states_bf16")
    return found


def _own_lines(writing: Writing, made: Built) -> list[str]:
    """Return a config function that says what options cannot; nothing where one of torchtitan's does."""
    spec, layout = writing.spec, writing.layout
    backend = DISPATCHERS[spec.runtime.dispatcher if layout.ep > 1 else "alltoall"] if writing.model.is_moe else ""
    converters = _converters(writing)
    named = layout.pp > 1 and not _dealt_by_itself(writing)
    plain = writing.asked("loss") == "fused"
    if made.function and not (converters or named or plain or made.mtp or backend not in {"", "standard"}):
        return []
    module, base = made.module, made.function or BASES[made.module]
    registry = [f'"{made.flavor or OWN_FUNCTION}",']
    registry += [f'moe_comm_backend="{backend}",'] if backend else []
    registry += [f"num_mtp_layers={made.mtp},"] if made.mtp else []
    registry += ["converters=[", *(f"    {one}," for one in converters), "],"] if converters else []
    body = [f"config = {base}()"]
    body += [f"config.model_spec = {module}.model_registry(", *(f"    {line}" for line in registry), ")"]
    loss = f"CrossEntropyLoss.Config(global_vocab_size={spec.model.vocab})"
    if made.mtp:
        body.append(f"config.loss = MTPLoss.Config(global_vocab_size={spec.model.vocab})")
        writing.warn("multi-token prediction has MTPLoss, which holds all logits at once: memory is predicted in parts")
    else:
        body.append(f"config.loss = {loss}" if plain else f"config.loss = ChunkedLossWrapper.Config(loss_fn={loss})")
    if named:
        body.append("config.parallelism.module_fqns_per_model_part = [")
        at, sizes = 0, _sizes(writing)
        for index, size in enumerate(sizes):
            names = ['"tok_embeddings"'] if index == 0 else []
            names += [f'"layers.{layer}"' for layer in range(at, at + size)]
            names += ['"norm"', '"lm_head"'] if index == len(sizes) - 1 else []
            body.append(f"    [{', '.join(names)}],")
            at += size
        body.append("]")
    imports = ["from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss"]
    imports += ["from torchtitan.components import quantization"] if converters else []
    imports += [f"from torchtitan.models import {module}"]
    imports += [f"from torchtitan.models.{module} import {REGISTRIES[module]}"] if made.lines else []
    imports += [f"from torchtitan.models.{module}.config_registry import {base}"]
    imports += ["from torchtitan.models.deepseek_v3.mtp import MTPLoss"] if made.mtp else []
    # behind a docstring, since a comment in the first two lines may name the encoding of the file
    head = [f'"""A plan for torchtitan {RELEASE}: --module {OWN_MODULE} --config {OWN_FUNCTION}."""', ""]
    head.append(comment(writing.model.title))
    shape = [*model_function(made), f'{REGISTRIES[module]}["{OWN_FUNCTION}"] = shape', "", ""] if made.lines else []
    indented = [f"    {line}" for line in (*body, "return config")]
    return [*head, "", *imports, "", "", *shape, f"def {OWN_FUNCTION}():", *indented, ""]


def _converters(writing: Writing) -> list[str]:
    spec = writing.spec
    if spec.precision not in {"fp8", "fp4"}:
        return []
    linear, part, experts = CONVERTERS[spec.recipe]
    compiled = f"model_compile_enabled={bool(spec.runtime.compile)}"
    found = [f"quantization.{linear}.Config({part}, {compiled})"]
    if writing.model.is_moe:
        if not experts:
            writing.refuse("precision", "NVFP4LinearConverter converts no experts (components/quantization/nvfp4.py)")
        if spec.runtime.dispatcher == "deepep" and writing.layout.ep > 1:
            why = "experts in fp8 need a dispatcher that pads: `dispatcher=alltoall` or hybridep"
            writing.refuse("dispatcher", f"{why} (components/quantization/utils.py)")
        pad = ", pad_multiple=128" if spec.recipe == "mx" else ""
        found.append(f"quantization.{experts}.Config({compiled}{pad})")
    if spec.recipe == "current":
        writing.warn("Float8LinearConverter scales by rows; the prediction is of scaling by whole tensors")
    return found


# --- reading

NAMES = frozenset({
    "training.batch_size", "training.local_batch_size", "training.seq_len", "training.data_parallel_degree",
    "training.tensor_parallel_degree", "training.data_parallel_shard_degree", "training.max_context_length",
    "parallelism.data_parallel_shard_degree", "parallelism.tensor_parallel_degree", "activation_checkpoint.mode",
    "parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree", "job.config_file",
    "training.num_tokens_per_microbatch_per_dp_rank",
})  # fmt: skip
"""Options by which torchtitan's files are known."""

_OWN = re.compile(
    r"(training|parallelism|experimental)\.\w+_parallel|job\.|activation_checkpoint\.|model\.flavor|float8\.|training\.(max_con|num_tok|local_b)|profiling\.enable_p"
)
"""Those that programs of one's own with a table `training` have not."""


def claims(source: Source) -> bool:
    """Whether a source is a command, a file or a config function of torchtitan."""
    if source.kind == "command":
        said = " ".join(source.program)
        return "torchtitan" in said or ("train.py" in said and bool(NAMES & set(source.settings)))
    if source.kind == "python":
        called, origin = (str(source.settings[name].value) for name in ("", "origin"))
        configured = called == "Trainer.Config" or origin.endswith(".Trainer.Config")
        return configured or called in load_tool("torchtitan").configs
    primus = source.settings.get(f"{PRIMUS}.framework")
    if primus is not None:
        return str(primus.value) == "torchtitan"
    two = source.kind in {"toml", "json", "yaml"} and len(NAMES & source.settings.keys()) >= 2
    return two and any(map(_OWN.match, source.settings))


def read(reading: Reading) -> None:
    """Read torchtitan's options, of today or of older releases, into a job and its layout.

    Raises:
        InputError: a value that makes no sense, a model that is not known, or what the GPUs must be known for.
    """
    reading.run_by(load_tool("torchtitan"))
    _take_primus(reading)
    _take_subcommands(reading)
    current = reading.get("module", "config") is not None or any(one.kind == "python" for one in reading.sources)
    if current:
        _take_function(reading)
        refuse_keywords(reading, _BESIDE)
        _refuse_sections(reading)
    _read_generation(reading, current)
    _read_model(reading)
    _read_degrees(reading)
    _read_batch(reading)
    _read_pipeline(reading)
    _read_recompute(reading, current)
    _read_precision(reading)
    _read_kernels(reading, current)
    _read_experts(reading)
    _say_replicas(reading)


def _say_replicas(reading: Reading) -> None:
    """Say that a launch is one of several replicas of torchft, which average their gradients."""
    names = ("fault_tolerance.enable", "fault_tolerance.group_size")
    replicas = reading.integer(names[1]) or 1
    if reading.get(names[0]) and reading.flag(names[0]) and replicas > 1:
        what = f"one of {replicas} replicas of fault tolerance is predicted, without their averaging"
        reading.assume(f"{what}: the job has {replicas} times these GPUs and this batch", *names)


_BESIDE = re.compile(r"dataloader|metrics|profil|checkpoint$|validator|lr_scheduler|debug|comm$")
"""Sections that change no prediction."""

SECTIONS = {
    "training": "gbs", "parallelism": "tp", "activation_checkpoint": "recompute", "compile": "compile",
    "optimizer": "optimizer", "model_converters": "precision", "model_spec": "model",
}  # fmt: skip
"""Section of a configuration -> an option that says what matters of it."""


def _refuse_sections(reading: Reading) -> None:
    """Ask for sections that functions return which are not here, and say what is predicted otherwise.

    Raises:
        InputError: there is one.
    """
    for name, option in SECTIONS.items():
        found = reading.settings.get(name)
        last = "" if found is None else str(found.value).rpartition(".")[2]
        if last.islower() and last not in {"none", "model_registry", "true", "false"} and not reading.given.get(option):
            reading.refuse(found, f"what {last[:80]} returns is in no file that is here", settles=option)
    found = reading.settings.get("optimizer")
    if found is not None and str(found.value).startswith("OptimizersInBackward"):  # as older releases have a switch for
        name = "optimizer.early_step_in_backward"
        reading.settings.setdefault(name, replace(found, name=name, value=True))


def _take_primus(reading: Reading) -> None:
    """Take Primus' overrides for options, and the name of its model file for a model."""
    model = reading.get(f"{PRIMUS}.model")
    if model is None:
        return
    reading.means("torchtitan under Primus", f"{PRIMUS}.framework")
    reading.lift(f"{PRIMUS}.overrides.")
    stem = re.sub(r"(-pretrain|-fp8|-bf16)*\.ya?ml$", "", str(model.value).lower())
    own, _ = settled("models", stem.replace("_", "-"))
    reading.option("model", f"{own},mtp_layers=0" if own == "deepseek-v3" else own, f"{PRIMUS}.model")
    reading.run_by(load_tool("primus-torchtitan"))


MODE = "activation_checkpoint.mode"


def _take_subcommands(reading: Reading) -> None:
    """Set `activation_checkpoint` from the subcommand that stands behind some option."""
    for name, one in list(reading.settings.items()):
        if _is_subcommand(name):
            reading.settings[MODE] = replace(reading.settings.pop(name), name=MODE, value=name.partition(":")[2])
            continue
        values = one.value if isinstance(one.value, list | tuple) else [one.value]
        texts = [str(value) for value in values]
        kinds = [text.partition(":")[2] for text in texts if _is_subcommand(text)]
        if not kinds:
            continue
        rest: list[Any] = [value for value in values if not _is_subcommand(str(value))]
        reading.settings[name] = replace(one, value=True if not rest else rest[0] if len(rest) == 1 else rest)
        reading.settings[MODE] = replace(one, name=MODE, value=kinds[-1])
    for source in reading.sources:
        found = [word.partition(":")[2] for word in source.program if _is_subcommand(word)]
        if found:
            reading.settings[MODE] = Setting(MODE, found[-1], source.file, 0, f"activation-checkpoint:{found[-1]}")


def _is_subcommand(text: str) -> bool:
    return text.replace("_", "-").startswith("activation-checkpoint:")


def _take_function(reading: Reading) -> None:
    """Set what the config function of torchtitan's own sets that is named, or that a Python file begins with."""
    place = reading.settings.pop("", None) or reading.get("config")
    reading.means("the config function", "config", "module")
    name = str(place.value) if place is not None else ""
    if name in reading.tool.configs and place is not None:
        own = "model_spec" in reading.settings  # then the model is not that of the function
        for key, value in reading.tool.configs[name].items():
            if own and key.startswith("model."):
                continue
            reading.settings.setdefault(key, replace(place, name=key, value=value, text=f"{name}(): {key} = {value}"))
    elif "model_spec" not in reading.settings:
        hint = "give its config_registry.py too, or a function of torchtitan's own"
        reading.refuse(place, "this config function is in no file that was given", hint, elsewhere=True)


def _read_model(reading: Reading) -> None:
    if "model" in reading.options:
        return
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "model_spec", "model.flavor", "model.name")
        return
    spec = reading.get("model_spec")
    module = reading.text("model.name") or ""
    flavor = reading.get("model_spec.0", "model_spec.flavor") if spec else reading.get("model.flavor")
    if spec is not None:
        origin = f"{reading.text('model_spec.origin') or ''}.{spec.value}.{spec.file}.{reading.text('module') or ''}"
        module = next((one for one in BASES if one in origin), origin.strip("."))
    if flavor is None:
        reading.refuse(None, "no model is stated: neither `model.flavor` nor a config function", settles="model")
    names = ("model_spec.0", "model_spec.flavor", "model_spec", "model.flavor", "model.name")
    own = reading.first(*(f"{registry}.{flavor.value}" for registry in REGISTRIES.values()))
    if reading.text("model_spec.model") == "Llama3Model.Config":
        read_llama(reading, "model_spec.model", *names[:3])
    elif own:
        read_shape(reading, own)
        reading.option("model", reading.options["model"], own, *names[:3])
    elif "@" in reading.options["framework"] and f"{module} {flavor.value}" in known("read-before"):
        reading.option("model", known("read-before")[f"{module} {flavor.value}"], *names)
    elif not read_flavor(reading, module, str(flavor.value), *names):
        reading.refuse(flavor, f"the model {f'{module} {flavor.value}'[:100]!r} is not known here", settles="model")
    _refuse_changed(reading)
    depth = reading.integer("model_spec.num_mtp_layers")
    if depth:
        reading.option("model", with_mtp(reading.options["model"], depth), "model_spec.num_mtp_layers")


def _refuse_changed(reading: Reading) -> None:
    """Refuse changes of a model that a registry returns.

    Raises:
        InputError: there is one that is not of its attention's kernel.
    """
    changed = [one for name, one in reading.settings.items()
               if name.startswith("model_spec.model.") and not _KERNEL.search(name)]  # fmt: skip
    if changed and str(getattr(reading.settings.get("model_spec.model"), "value", "")) == "":
        reading.refuse(changed[-1], "the model of the registry is changed", settles="model")


_KERNEL = re.compile(r"attention|attn|mask")
"""Parts of a model that a configuration may choose without another shape."""


def _model_of(reading: Reading) -> ModelSpec:
    return load_model(str(reading.given.get("model") or reading.options["model"]))


def _read_generation(reading: Reading, current: bool) -> None:
    """Set the generation of the framework by the names that its options have."""
    month = ""
    if not current:
        if reading.get("training.data_parallel_degree") or "training.fp8_linear" in reading.settings:
            month = "2024-08"
        elif reading.get("training.batch_size"):
            month = "2025-03" if "training.compile" in reading.settings else "2025-05"
        else:
            month = "2025-07" if "training.compile" in reading.settings else "2025-12"
    reading.options["framework"] = f"torchtitan@{month}" if month else "torchtitan"
    if month:
        reading.assume(f"options are named as in torchtitan of {month}: predicted as it ran then")


def _first(reading: Reading, key: str) -> str:
    """Return the name of an option under the section that it has or had; the newest where it is nowhere."""
    names = [f"{section}.{key}" for section in ("parallelism", "training", "experimental")]
    return next((name for name in names if reading.get(name)), names[0])


def _read_degrees(reading: Reading) -> None:
    for key, name in DEGREES.items():
        own = _first(reading, name.partition(".")[2])
        value = reading.integer(own)
        if value is not None and (key != "ep" or value > 1):
            reading.option(key, max(value, 1), own)
        elif value is not None:
            reading.means("no expert parallelism", own)
    tp, (sp, no_sp) = reading.layout.get("tp", 1), _both("parallelism.enable_sequence_parallel")
    if tp > 1 and (reading.get(sp) or reading.get(no_sp)):
        reading.option("sp", _on(reading, sp), sp, no_sp)
    _read_sharding(reading)


def _both(name: str) -> tuple[str, str]:
    """Return the names that a switch has on the command line: `a.b` and `a.no_b`."""
    section, _, key = name.rpartition(".")
    return name, f"{section}.no_{key}"


def _on(reading: Reading, name: str) -> bool:
    """Whether a switch is on; off where nothing is said."""
    on, off = _both(name)
    return reading.flag(on) and not reading.flag(off)


def _read_sharding(reading: Reading) -> None:
    layout = reading.layout
    cp = layout.get("cp", 1)
    model_ranks = layout.get("tp", 1) * layout.get("pp", 1) * cp
    names = tuple(_first(reading, f"data_parallel_{key}_degree") for key in ("replicate", "shard"))
    names = (names[0], "training.data_parallel_degree") if reading.get("training.data_parallel_degree") else names
    replicas, sharded = max(reading.integer(names[0]) or 1, 1), reading.integer(names[1]) or -1
    gpus, others = gpus_of(reading), replicas * model_ranks
    if sharded >= 0 and gpus not in {None, others * sharded}:
        message = f"{others * sharded:,} GPUs by the degrees, {gpus:,} by what launches them"
        reading.refuse(reading.get(*names), message, "data_parallel_shard_degree -1 takes what is left")
    gpus = others * sharded if gpus is None and sharded >= 0 else gpus
    if replicas > 1 and sharded < 0:
        gpus = gpus or gpus_of(reading, "the size of a shard") or 1
        sharded = max(gpus // others, 1)
    if gpus is not None and "gpus" not in reading.given:
        reading.option("gpus", gpus, *(names if sharded > 0 else ()), *_LAUNCHER)
    reading.means("data-parallel ranks", *names)
    how = reading.text("parallelism.fsdp_reshard_after_forward", known=("always", "never", "default"))
    alone = gpus is not None and gpus <= model_ranks and cp == 1
    ddp = reading.text("training.data_parallel_type") == "ddp"
    if (replicas > 1 and sharded == 1 and cp == 1) or ddp or alone:
        reading.option("zero", 0, *names)
    elif how in {"always", "never"}:
        reading.option("zero", 3 if how == "always" else 2, "parallelism.fsdp_reshard_after_forward")
    else:
        what = "gathered parameters are freed after the forward pass, except under pipelines"
        reading.means(what, "parallelism.fsdp_reshard_after_forward")
    if replicas > 1 and reading.layout.get("zero") != 0:
        reading.option("shard", sharded * cp, *names)


_LAUNCHER = ("nnodes", "nproc_per_node", "gpus_per_node", "ntasks_per_node", "nodes", "ntasks", "n")


def _read_batch(reading: Reading) -> None:
    tokens, longest = "training.num_tokens_per_microbatch_per_dp_rank", "training.max_context_length"
    sequence = reading.integer("training.seq_len", longest)
    if sequence is None:
        sequence = 2048
        reading.assume("sequences of 2,048 tokens, torchtitan's default")
    reading.option("seq", sequence, "training.seq_len", longest)
    names = ("training.local_batch_size", "training.batch_size", tokens)
    local = reading.integer(*names[:2])
    counted = reading.integer(tokens)
    if counted is not None:
        if counted % sequence:
            reading.refuse(reading.get(tokens), f"{counted:,} tokens do not make whole sequences of {sequence:,}")
        local = counted // sequence
    if local is None:
        local = 8
        reading.assume("a local batch of 8 sequences, torchtitan's default")
    pp, micro = reading.layout.get("pp", 1), local
    if pp > 1:
        micro = _micro_batch(reading, local, pp, whole=counted is None)
        local = micro * (reading.integer("parallelism.num_pp_microbatches") or pp) if counted is not None else local
    reading.option("micro_batch_size", micro, *names)
    whole = "training.num_tokens_per_train_step"
    batch, step = reading.integer("training.global_batch_size"), reading.integer(whole)
    if step is not None and step > 0:
        batch = step // sequence
    if batch is None or batch < 0:
        gpus = reading.options.get("gpus") or gpus_of(reading, "the global batch")
        ranks = reading.layout.get("tp", 1) * pp * reading.layout.get("cp", 1)
        batch = local * max(int(gpus or 1) // ranks, 1)
        reading.assume(f"{batch:,} sequences per step: {local} of each data-parallel rank, none accumulated", *names)
    elif pp > 1 and (reading.options.get("gpus") or gpus_of(reading)):
        dp = (reading.options.get("gpus") or gpus_of(reading) or 1) // (
            reading.layout.get("tp", 1) * pp * reading.layout.get("cp", 1)
        )
        if batch > local * max(dp, 1):
            reading.assume("microbatches are predicted in one run of the pipeline, not in several", *names)
    reading.option("gbs", batch, "training.global_batch_size", whole)


def _micro_batch(reading: Reading, local: int, pp: int, *, whole: bool) -> int:
    if not whole:
        return local
    name = _first(reading, "pipeline_parallel_microbatch_size")
    size = reading.integer(name)
    count = reading.integer("experimental.pipeline_parallel_microbatches")
    if count:
        size = max(local // count, 1)
        name = "experimental.pipeline_parallel_microbatches"
    elif size is None and reading.get("training.batch_size"):
        size = max(local // pp, 1)
        reading.assume(f"{pp} microbatches, one per stage: the default of torchtitan then")
    reading.means(f"microbatches of {size or 1}", name)
    return size or 1


MAX_STAGES = 10_000


def _read_pipeline(reading: Reading) -> None:
    pp = reading.layout.get("pp", 1)
    name = _first(reading, "pipeline_parallel_schedule")
    said = (reading.text(name) or "1F1B").lower()
    if pp == 1:
        reading.means("no pipeline", name)
        return
    if said not in READ_SCHEDULES:
        reading.refuse(reading.get(name), f"unknown schedule {said}", f"known are {', '.join(READ_SCHEDULES)}")
    reading.option("schedule", READ_SCHEDULES[said], name)
    single = said in {"1f1b", "gpipe"}
    layers = _model_of(reading).layers
    parts, each = "parallelism.module_fqns_per_model_part", _first(reading, "pipeline_parallel_layers_per_stage")
    points = "experimental.pipeline_parallel_split_points"
    less = [f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")]
    first, last = (1 if reading.integer(one) is None else reading.integer(one) or 0 for one in less)
    if reading.get(points):
        chunks = len(reading.words(points)) + 1
        sizes: list[int] = []
    elif reading.get(parts):
        found = reading.get(parts)
        listed = found.value if found and isinstance(found.value, list | tuple) else []
        sizes = [
            sum(str(one).startswith("layers.") for one in part) if isinstance(part, list) else 0 for part in listed
        ]
        chunks = len(sizes)
    else:
        per = reading.integer(each)
        usual = pp * (1 if single else 2)
        chunks = usual if per is None else -(-(layers + first + last) // per) if per else 0
        sizes = []
        if 0 < chunks <= MAX_STAGES:  # distributed/pipeline_parallel.py
            fewest, extra = divmod(layers + first + last, chunks)
            sizes = [fewest + (index < extra) for index in range(chunks)]
            sizes[0] -= first
            sizes[-1] -= last
    if not 0 < chunks <= MAX_STAGES or chunks % pp or (single and chunks != pp):
        found = reading.get(points, parts, each) or reading.get(name)
        reading.refuse(found, f"{chunks} stages on {pp} ranks of the pipeline", "see parallelism.pipeline_parallel_*")
    if said == "interleaved1f1b":
        reading.option("vpp", chunks // pp, name, each, parts, points)
    reading.means("layers of each stage", *less, parts, each, points)
    if sizes:
        _match_split(reading, sizes, pp, chunks // pp, *less, parts)


def _match_split(reading: Reading, sizes: list[int], pp: int, vpp: int, *of: str) -> None:
    """Set the way to deal out layers that gives these stages, or comes nearest."""
    split, dealt, off = nearest_split(_model_of(reading), sizes, pp, vpp)
    if split != "even":
        reading.option("pipeline_split", split, *of)
    if off:
        listed = ", ".join(map(str, dealt[:12])) + (", ..." if len(sizes) > 12 else "")
        reading.assume(f"stages of {listed} layers are predicted, torchtitan has up to {off} more or fewer", *of)


def _read_recompute(reading: Reading, current: bool) -> None:
    name, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    classes = {"SelectiveAC.Config": "selective", "FullAC.Config": "full", "MemoryBudgetAC.Config": "memory-budget"}
    whole = reading.get("activation_checkpoint")
    mode = reading.text(name) or (classes.get(str(whole.value), "none") if whole else None)
    stated = reading.settings.get(name)
    if stated is not None and str(stated.value) == "none":
        mode = "none"
    if mode is None:
        mode = "selective"
        reading.assume("selective activation checkpointing, torchtitan's default")
    if mode in {"memory-budget", "memory_budget"}:
        reading.assume("a memory budget is predicted as selective checkpointing by operator", name)
        mode = "selective"
    every = reading.text(option)
    if mode == "selective" and every is None and not current and whole is None:
        every = "2"
        reading.assume("every second layer is recomputed: selective_ac_option is 2 by torchtitan's default", name)
    if mode == "selective" and every is not None and every.isdecimal() and int(every) > 0:
        layers = -(-_model_of(reading).layers // reading.layout.get("pp", 1))
        if "" < str(reading.options["framework"]).partition("@")[2] < "2025-06":
            reading.option("recompute", f"full:{-(-layers // int(every))}", option, name)
            return
        reading.assume("every n-th layer is predicted as selective checkpointing by operator", option)
    if mode not in {"selective", "full", "none"}:
        reading.refuse(reading.get(name), f"unknown mode {mode!r}", "known are none, selective, full and memory-budget")
    if mode == "none" and stated is not None:
        reading.get(name)
        reading.layout["recompute"] = "none"
        return
    reading.option("recompute", mode, name, "activation_checkpoint", *([option] if mode == "selective" else []))


def _low_precision(reading: Reading) -> tuple[str, tuple[str, ...]]:
    """Return what converts matrix products to 8 or 4 bits, by a word of `RECIPES`, and the settings that may say so."""
    lists = ("model.converters", "model_spec.converters", "model_converters.converters")
    old = ("float8.enable_float8_linear", "training.fp8_linear")
    turbo = "primus_turbo.use_turbo_float8_linear"
    every = [word.lower().removesuffix(".config").rpartition(".")[2] for name in lists for word in reading.words(name)]
    strange = next((word for word in every if not re.search("|".join(RECIPES), word)), "")
    settles = "tune" if "lora" in strange else "precision"
    if strange and not reading.given.get(settles):
        found = reading.get(*lists)
        reading.refuse(found, f"what {strange[:60]} converts is not modelled", settles=settles)
    words = " ".join(every)
    kind = next((word for word in ("mxfp8", "nvfp4", "float8", "mx") if word in words), "")
    if any(reading.get(name) and str(reading.text(name)).lower() not in {"false", ""} for name in old):
        kind = kind or "float8"
    if reading.flag(turbo) and not kind:
        wide = _model_of(reading).is_moe and not reading.flag("primus_turbo.use_moe_fp8")
        kind = "" if wide else "float8"
        if wide:
            reading.assume("linear layers in fp8 beside experts in 16 bits are predicted in 16 bits", turbo)
    return kind, (*lists, *old, turbo)


def _read_precision(reading: Reading) -> None:
    kind, names = _low_precision(reading)
    parameters = reading.text("training.mixed_precision_param") or "bfloat16"
    of = ("training.mixed_precision_param", "training.dtype")
    if kind:
        reading.option("precision", RECIPES[kind], *names, *of)
    elif parameters == "float32":
        reading.option("precision", "fp32", *of)
    else:
        reading.option("precision", "bf16", *of)
    if reading.text("training.dtype") == "bfloat16":
        for name, dtype in (("grad_dtype", "bf16"), ("master_dtype", "none"), ("moment_dtype", "bf16")):
            reading.option(name, dtype, "training.dtype")
    reduced = "training.mixed_precision_reduce"  # config_manager.py: Literal["float32"] until 0.3
    if reading.text(reduced) == "bfloat16":
        reading.option("grad_dtype", "bf16", reduced)
    else:
        reading.means("gradients are reduced in fp32", reduced)
    implementation = "optimizer.implementation"
    if reading.text(implementation) == "fused_opt_states_bf16":
        reading.option("moment_dtype", "bf16", implementation)
    reading.means("one kernel for all parameters", implementation)
    name = (reading.text("optimizer.name") or "AdamW").lower()
    if name not in {"adam", "adamw", "muon", "distmuon"}:
        reading.refuse(reading.get("optimizer.name"), f"unknown optimizer {name}", "known are Adam and AdamW")
    reading.option("optimizer", "muon" if "muon" in name else name, "optimizer.name")
    if _on(reading, "training.enable_cpu_offload"):
        reading.option("offload", "optimizer+parameters", "training.enable_cpu_offload")


def _read_kernels(reading: Reading, current: bool) -> None:
    of = ("compile.enable", "training.compile", "compile.no_enable")
    compiled = reading.flag(*of[:2]) and not reading.flag(of[2])
    if reading.get(*of) is None:
        reading.assume("nothing is compiled, torchtitan's default")
    parts = reading.words("compile.components")
    if compiled and parts and "model" not in parts:
        compiled = False
        reading.assume("without the model among compile.components it is predicted uncompiled", "compile.components")
    reading.option("compile", "on" if compiled else "off", *of[:2], "compile.components", of[2])
    name = next(
        (one for section in ("compile", "parallelism", "experimental", "training")
         if reading.get(one := f"{section}.enable_async_tensor_parallel")), "",
    )  # fmt: skip
    if name and _on(reading, name):
        if compiled:
            reading.option("overlap", "tp+dp", name)
        else:
            reading.assume("async TP needs the model compiled: predicted without", name)
    loss = reading.get("loss")
    if loss is not None and loss.value == "CrossEntropyLoss.Config":
        reading.option("loss", "fused", "loss")
    graphs = "training.disable_cuda_graphs"
    if current and not _on(reading, graphs):
        layout = reading.layout
        what = "pipelines" if layout.get("pp", 1) > 1 else "expert parallelism" if layout.get("ep", 1) > 1 else ""
        reading.option("cuda_graphs", "none" if what else "full", graphs)
        if what:
            reading.assume(f"torchtitan does not start with CUDA graphs and {what}: predicted without", graphs)
        elif not reading.get(graphs):
            reading.assume("whole iterations as CUDA graphs, torchtitan's default")
    elif current:
        reading.option("cuda_graphs", "none", graphs)


def _read_experts(reading: Reading) -> None:
    layout = reading.layout
    if not _model_of(reading).is_moe:
        if layout.pop("ep", 1) > 1:
            reading.assume("expert_parallel_degree has no effect: the model has no experts", DEGREES["ep"])
        return
    name = _first(reading, "expert_tensor_parallel_degree")
    etp = reading.integer(name)
    tp, ep = layout.get("tp", 1), layout.get("ep", 1)
    reading.option("etp", etp if etp and etp > 1 and ep > 1 else 1 if ep > 1 else tp, name)
    backend = "model_spec.moe_comm_backend"
    names = (backend, "parallelism.expert_parallel_comm_backend")
    said = reading.text(*names) or "standard"
    back = {word: option for option, word in DISPATCHERS.items()}
    if ep > 1 and not reading.get(*names):
        reading.assume("tokens are exchanged between experts by AllToAll, torchtitan's default")
    if said not in back:
        reading.assume(f"the dispatcher {said} is predicted as hybridep", *names)
    reading.option("dispatcher", back.get(said, "hybridep"), *names)


TARGET = Target("torchtitan", "torchtitan", f"torchtitan {RELEASE} (PyPI)", ("torchtitan",), write, claims, read)
