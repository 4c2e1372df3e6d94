"""Scripts of OLMo-core, read into a job and its layout: an `ExperimentConfig`, or the builders that `main` is given;
and YAML of olmo-cookbook, which makes such a configuration of few settings.

Names and defaults: ai2-olmo-core 3.0.0 (PyPI, 2026), olmo_core/train/train_module/transformer/config.py,
distributed/parallel, internal/experiment.py; allenai/olmo-cookbook, 2025 (cookbook/aliases.py,
model/builder.py). It trains by FSDP2 in plain PyTorch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.launch.launchers import gpus_of, take_gpus
from gpuscale.launch.settings import Reading, Source
from gpuscale.launch.shapes import named_shape
from gpuscale.launch.writing import Target
from gpuscale.presets.files import known_table
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import load_tool

WINDOW = {"window.length": 4096, "window.full_every": 4}
"""What OLMo 3 has beside: three windowed layers, then one of full attention."""

TOKENIZERS = {
    "dolma2": 100278, "dolma2_sigdig": 100278, "gpt_neox_olmo_dolma_v1_5": 50280, "gpt2": 50257,
    "dolma2-tokenizer": 100278, "gpt_neox": 50280, "superbpe_experimental": 180021,
}  # fmt: skip
"""Constructor of `TokenizerConfig`, or its name in the cookbook -> its vocabulary (data/tokenizer.py)."""

PADDED = 128
"""What `padded_vocab_size` is a multiple of."""

MODULES = {"feed_forward": "mlp", "attention": "core_attn", "sequence_mixer": "core_attn"}
"""Part of a block in `modules` of activation checkpointing -> what is recomputed."""

RINGS = {"zig_zag": "p2p", "llama3": "all_gather", "ulysses": "a2a"}
"""Constructor of `TransformerContextParallelConfig` -> how CP exchanges."""

SCHEDULES = {"single_1F1B": "1f1b", "interleaved_1F1B": "1f1b", "gpipe": "gpipe", "zbv_zero_bubble": "zb-v"}
OPTIMIZERS = {"SkipStepAdamWConfig": "adamw", "AdamWConfig": "adamw", "AdamConfig": "adam", "LionConfig": "lion",
              "SkipStepLionConfig": "lion", "MuonConfig": "muon"}  # fmt: skip


def claims(source: Source) -> bool:
    """Whether a source is a script of OLMo-core."""
    names = source.settings.keys()
    if source.called != "module" and {"trainer_config.batch_size", "model_config.model_size"} <= names:
        return True
    if source.kind != "python":
        return source.kind != "command" and names >= COOKBOOK_MARKS
    return "train_module.rank_microbatch_size" in names or "train_module_config_builder.rank_microbatch_size" in names


def read(reading: Reading) -> None:
    """Read an experiment of OLMo-core.

    Raises:
        InputError: a value that makes no sense, or a model that is not known.
    """
    reading.option("framework", "pytorch")
    reading.run_by(load_tool("olmo-core"))
    _take_cookbook(reading)
    for name, one in [*reading.settings.items()]:
        section, _, rest = name.partition("_config_builder")
        if rest or name.endswith("_config_builder"):
            reading.settings.setdefault(f"{section}{rest}", one)
    reading.options["vocab_multiple"] = 1
    longest = ("train_module.max_sequence_length", "dataset.sequence_length", "max_sequence_length", "sequence_length")
    sequence = reading.integer(*longest)
    if sequence is None:
        sequence = 4096
        reading.assume("sequences of 4,096 tokens, OLMo-core's default")
    reading.option("seq", sequence, *longest)
    take_gpus(reading)
    nodes, each = reading.integer("num_nodes"), reading.integer("num_gpus")
    if nodes and each:
        reading.option("gpus", nodes * each, "num_nodes", "num_gpus")
    elif nodes and "gpus" not in reading.options and "gpus" not in reading.given:
        reading.option("gpus", nodes * 8, "num_nodes")
        reading.assume("nodes of 8 GPUs", "num_nodes")
    _read_model(reading, sequence)
    _read_batch(reading, sequence)
    _read_layout(reading)
    _read_step(reading)


COOKBOOK_MARKS = {"budget", "nodes", "gpus", "model", "tokenizer", "sequence_length", "max_tokens"}
COOKBOOK = {
    "nodes": "num_nodes", "gpus": "num_gpus", "beaker_config.num_nodes": "num_nodes",
    "beaker_config.num_gpus": "num_gpus", "rank_microbatch_size": "train_module.rank_microbatch_size",
    "trainer_config.batch_size": "global_batch_size", "trainer_config.sequence_length": "sequence_length",
    "dp_shard_degree": "train_module.dp_config.shard_degree", "cp_degree": "train_module.cp_config.degree",
    "model_config.tokenizer": "tokenizer",
}  # fmt: skip
"""Setting of olmo-cookbook -> what a script of OLMo-core calls it."""

MICROBATCHES = {2048: 16, 4096: 8}
"""Length of sequences -> how many the cookbook takes at a time; 4 of others."""


def _take_cookbook(reading: Reading) -> None:
    """Take settings of olmo-cookbook for the configuration that it makes of them."""
    settings = reading.settings
    if not (settings.keys() >= COOKBOOK_MARKS or "trainer_config.batch_size" in settings):
        return
    reading.run_by(load_tool("olmo-cookbook"))
    for name, ours in COOKBOOK.items():
        if name in settings:
            settings.setdefault(ours, settings[name])
    kind, size = reading.text("model_config.model_type"), reading.text("model_config.model_size")
    if kind and size:
        found = settings["model_config.model_type"]
        settings["model"] = replace(found, value=f"{kind}_{re.sub('[bm]$', lambda one: one[0].upper(), size)}")
    sequence, micro = reading.integer("sequence_length"), "train_module.rank_microbatch_size"
    if sequence and reading.get(micro) is None:
        reading.option("micro_batch_size", MICROBATCHES.get(sequence, 4))
        reading.assume(f"microbatches of {MICROBATCHES.get(sequence, 4)}, olmo-cookbook's default at this length")
    for switch, config in (("activation_checkpointing", "ac_config"), ("float8", "float8_config")):
        if reading.flag(switch):
            settings[f"train_module.{config}"] = settings[switch]
    if reading.flag("activation_checkpointing"):
        settings |= {
            f"train_module.ac_config.{key}": replace(settings["activation_checkpointing"], value=value)
            for key, value in (("mode", "selected_modules"), ("modules", ["blocks.*.feed_forward"]))
        }


def _read_model(reading: Reading, sequence: int) -> None:
    found = reading.get("model")
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "model")
        return
    name = str(found.value).rpartition(".")[2] if found else ""
    shape = _shape(name)
    if shape is None:
        reading.refuse(found, f"the model {name[:60]} is not known here", settles="model")
    keys: dict[str, Any] = {
        key: reading.integer(f"model.{setting}") or shape.get(key) for key, setting in _SIZES.items()
    }
    keys |= {"qk_norm": shape.get("qk_norm"), "vocab": _vocabulary(reading), "sequence": sequence}
    keys["tied_embeddings"] = reading.flag("model.tie_word_embeddings")
    keys |= {key: value for key, value in shape.items() if key not in keys}
    keys |= _windows(reading, WINDOW if name.startswith("olmo3_") else {})
    changed = [f"model.{setting}" for setting in _SIZES.values()]
    if reading.get("model.d_model"):
        reading.refuse(reading.get("model.d_model"), "the width of its MLP does not follow", settles="model")
    _refuse_blocks(reading, {*changed, "model.vocab_size"})
    reading.option("model", named_shape(keys), "model", "model.vocab_size", *changed)
    if (reading.text("model.lm_head.loss_implementation") or "").endswith("fused_linear"):
        reading.option("loss", "linear", "model.lm_head.loss_implementation")


_SIZES = {
    "layers": "n_layers", "hidden": "d_model", "heads": "n_heads", "kv_heads": "n_kv_heads", "head_dim": "head_dim",
}  # fmt: skip
"""Key of a model file -> field of `TransformerConfig`."""


def _shape(name: str) -> dict[str, Any] | None:
    """Return the model of a constructor; of OLMo 3 that of OLMo 2 where it has none of its own; None if unknown."""
    known: dict[str, dict[str, Any]] = known_table("shapes")["olmo-core"]
    return known.get(name) or known.get(name.replace("olmo3_", "olmo2_"))


INERT = re.compile(
    r"model\.(origin|init_\w+|dtype|freeze_params.*|tie_word_embeddings|lm_head.*|vocab_size.*|"
    r"block\.(attention|sequence_mixer)\.(use_flash|backend|name|rope.*|sliding_window.*))"
)
"""What a script sets of a model without changing what it costs, or what is read elsewhere."""


def _refuse_blocks(reading: Reading, known: set[str]) -> None:
    """Refuse what a script changes of a model's blocks and that is not read: other mixers, patterns, norms.

    Raises:
        InputError: a setting of the model that is not known here.
    """
    for name, found in reading.settings.items():
        whole = name.startswith("model.") and name not in known and not INERT.fullmatch(name)
        if whole and found.value != "":  # `config.block` alone, on the way to what is set of it
            what = name.removeprefix("model.")
            reading.refuse(found, f"{what} changes the blocks of the model, which is not read", settles="model")


def _windows(reading: Reading, usual: dict[str, int]) -> dict[str, int]:
    """Return keys of a model file for windows of attention: a pattern of lengths, -1 for all that came before.

    Raises:
        InputError: a pattern other than windows of one length with full attention last.
    """
    names = [f"model.block.{part}.sliding_window.pattern" for part in ("attention", "sequence_mixer")]
    found = reading.get(*names)
    if found is None:
        return usual
    pattern = found.value if isinstance(found.value, list) else []
    windows, full = {one for one in pattern if one != -1}, [at for at, one in enumerate(pattern) if one == -1]
    if not all(isinstance(one, int) for one in pattern) or len(windows) > 1 or full not in ([], [len(pattern) - 1]):
        reading.refuse(found, f"windows of {pattern} are not modelled", settles="model")
    reading.means("windows of attention", *names)
    return {"window.length": min(windows), **({"window.full_every": len(pattern)} if full else {})} if windows else {}


def _vocabulary(reading: Reading) -> int:
    """Return the vocabulary: a number, or what `padded_vocab_size` of a tokenizer comes to."""
    stated = reading.settings.get("model.vocab_size")
    if stated is not None and isinstance(stated.value, int):
        return reading.integer("model.vocab_size") or 0
    tokenizer = (
        next((str(one.value) for name in ("model.vocab_size.of", "tokenizer") if (one := reading.get(name))), "dolma2")
        .rpartition(".")[2]
        .rpartition("/")[2]
    )
    size = TOKENIZERS.get(tokenizer)
    if size is None:
        reading.refuse(stated, f"the vocabulary of {tokenizer[:60]} is not known here", settles="model")
    if stated is None or str(stated.value).endswith("padded_vocab_size"):
        size = -(-size // PADDED) * PADDED
    reading.assume(f"{size:,} tokens, those of the tokenizer {tokenizer}", "model.vocab_size")
    return size


def _read_batch(reading: Reading, sequence: int) -> None:
    """Set the microbatch and the batch, both stated in tokens."""
    micro, total = "train_module.rank_microbatch_size", ("data_loader.global_batch_size", "global_batch_size")
    for option, names in (("micro_batch_size", (micro,)), ("gbs", total)):
        tokens = reading.integer(*names)
        if tokens is None:
            continue
        if tokens % sequence or tokens <= 0:
            found = reading.get(*names)
            reading.refuse(found, f"{tokens:,} tokens do not make whole sequences of {sequence:,}", "give tokens")
        reading.option(option, tokens // sequence, *names)


def _read_layout(reading: Reading) -> None:
    for axis in ("tp", "pp", "cp", "ep"):
        name = f"train_module.{axis}_config"
        degree = reading.integer(f"{name}.degree", f"{name}.0")
        if degree is not None:
            reading.option(axis, degree, f"{name}.degree", name)
    layout = reading.layout
    if layout.get("cp", 1) > 1:
        style = (reading.text("train_module.cp_config") or "").rpartition(".")[2]
        ways = "a2a" if reading.get("train_module.cp_config.uly") else RINGS.get(style, "p2p")
        reading.option("cp_comm", ways, "train_module.cp_config", "train_module.cp_config.ring")
    if layout.get("pp", 1) > 1:
        _read_schedule(reading)
    kind = (reading.text("train_module.dp_config.name", "train_module.dp_config.0") or "none").rpartition(".")[2]
    of = ("train_module.dp_config.name", "train_module.dp_config")
    if kind not in {"fsdp", "hsdp", "ddp", "none"}:
        reading.refuse(
            reading.get(*of), f"unknown kind {kind[:40]} of data parallelism", "known are fsdp, hsdp and ddp"
        )
    reading.option("zero", 3 if kind in {"fsdp", "hsdp"} else 0, *of)
    if kind == "hsdp":
        _read_shard(reading)


def _read_schedule(reading: Reading) -> None:
    name = "train_module.pp_config.schedule"
    schedule = (reading.text(name) or "interleaved_1F1B").rpartition(".")[2]
    if schedule not in SCHEDULES:
        reading.refuse(
            reading.get(name), f"the schedule {schedule[:40]} is not modelled", f"known: {', '.join(SCHEDULES)}"
        )
    reading.option("schedule", SCHEDULES[schedule], name)
    if schedule.startswith("interleaved"):
        reading.option("vpp", 2, name)
        reading.assume("two stages on each pipeline rank, as interleaved schedules have them", name)


def _read_shard(reading: Reading) -> None:
    """Set how many ranks share one copy: stated, or those of a node (distributed/parallel/data_parallel.py)."""
    prefix = "train_module.dp_config"
    shard, replicas = reading.integer(f"{prefix}.shard_degree"), reading.integer(f"{prefix}.num_replicas")
    if shard is None and replicas is not None:
        ranks = gpus_of(reading, "the size of a shard") or 1
        ranks //= reading.layout.get("tp", 1) * reading.layout.get("pp", 1) * reading.layout.get("cp", 1)
        shard = max(ranks // max(replicas, 1), 1)
    if shard is None:
        shard = 8
        reading.assume("parameters are sharded over the 8 GPUs of a node and copied to each, hsdp's default", prefix)
    reading.option("shard", shard * reading.layout.get("cp", 1), f"{prefix}.shard_degree", f"{prefix}.num_replicas")


def _read_step(reading: Reading) -> None:
    wide = (reading.text("train_module.dp_config.param_dtype") or "").rpartition(".")[2]
    auto = (reading.text("train_module.autocast_precision") or "").rpartition(".")[2]
    of = ("train_module.dp_config.param_dtype", "train_module.autocast_precision", "train_module.float8_config")
    half = "bfloat16" in {wide, auto}
    eight = reading.get("train_module.float8_config") and reading.flag(
        "train_module.float8_config.enabled", default=True
    )
    blocks = reading.get("train_module.float8_config.ao_mx") if eight else None
    if blocks is not None:
        reading.refuse(blocks, "products in MX formats of torchao are not read", settles="precision")
    reading.option("precision", "fp8-current" if eight else "bf16" if half else "fp32", *of)
    if half and (reading.text("model.dtype") or "").rpartition(".")[2] == "bfloat16":  # TransformerConfig.dtype
        for option in ("master_dtype", "grad_dtype", "moment_dtype"):
            reading.option(option, "none" if option == "master_dtype" else "bf16", "model.dtype")
        reading.assume("weights, gradients and moments are bf16, without a copy in fp32", "model.dtype")
    reading.switch("compile", "on", "off", "train_module.compile_model")
    name = (reading.text("train_module.optim") or "AdamWConfig").rpartition(".")[2]
    if name not in OPTIMIZERS:
        reading.refuse(
            reading.get("train_module.optim"), f"the optimizer {name[:40]} is not modelled", settles="optimizer"
        )
    reading.option("optimizer", OPTIMIZERS[name], "train_module.optim")
    _read_checkpointing(reading)


def _read_checkpointing(reading: Reading) -> None:
    config = "train_module.ac_config"
    if reading.get(config) is None:
        reading.option("recompute", "none")
        return
    mode = (reading.text(f"{config}.mode", f"{config}.0") or "full").rpartition(".")[2]
    of = (config, f"{config}.mode", f"{config}.0", f"{config}.modules", f"{config}.block_interval")
    layers = load_model(str(reading.given.get("model") or reading.options["model"])).layers
    every = reading.integer(f"{config}.block_interval")
    if mode == "full":
        recompute = "full"
    elif mode == "selected_blocks" and every:
        recompute = f"full:{max(layers // reading.layout.get('pp', 1) // every, 1)}"
    elif mode == "selected_modules":
        words = reading.words(f"{config}.modules")
        parts = [MODULES.get(re.split(r"\W", one)[-1], "") for one in words]
        if "" in parts:
            reading.refuse(
                reading.get(f"{config}.modules"), "recomputing these modules is not modelled", "give `recompute`"
            )
        recompute = f"selective:{'+'.join(dict.fromkeys(parts))}"
    elif mode in {"selected_ops", "budget"}:
        recompute = "selective"
        reading.assume(f"{mode} is predicted as selective recomputation", config)
    else:
        reading.refuse(reading.get(*of), f"unknown mode {mode[:40]}", "known: full, selected_blocks, selected_modules")
    reading.option("recompute", recompute, *of)


TARGET = Target("olmo-core", "OLMo-core", "ai2-olmo-core 3.0.0 (PyPI)", ("pytorch",), None, claims, read)
