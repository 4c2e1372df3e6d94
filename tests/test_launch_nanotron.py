"""nanotron's YAML, read and written."""

from pathlib import Path

import pytest
import yaml
from round_trips import HELD_BESIDE, VALUES, predicted, values_of

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported
from gpuscale.launch.read import read_launch
from gpuscale.planning.jobs import build_job
from gpuscale.planning.plans import estimate_layout
from gpuscale.request import JobOptions, declared
from gpuscale.request import read as read_options

SHARED = Path(__file__).parents[2] / "shared" / "formats" / "launch"

BASE = {"model": "llama3-8b", "gpus": 32, "framework": "nanotron", "seq": 4096, "gbs": 64}
LAYOUT = {"tp": 2, "pp": 2, "micro_batch_size": 2, "recompute": "full"}

FILES = {
    "nanotron--huggingface--nanotron--config_qwen_with_moe.yaml": {
        "gpus": 2, "tp": 1, "dp": 2, "zero": 0, "micro_batch_size": 3, "gbs": 6, "seq": 4096, "precision": "bf16",
        "recompute": "none",
    },
    "nanotron--huggingface--nanotron--config_tiny_llama.yaml": {
        "gpus": 8, "tp": 2, "dp": 4, "zero": 0, "micro_batch_size": 3, "gbs": 12, "sp": True,
    },
    "nanotron--huggingface--nanotron--moe-config_llamoe.yaml": {
        "gpus": 4, "tp": 2, "ep": 2, "micro_batch_size": 256, "gbs": 512, "seq": 256, "sp": False, "grad_dtype": "bf16",
    },
    "nanotron--huggingface--smollm--text-pretraining-smollm2-config_smollm2_1B.yaml": {
        "model": "smollm2-1.7b", "gpus": 256, "dp": 256, "micro_batch_size": 4, "gbs": 1024, "seq": 2048,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_are_read(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip("not here")
    job = read_launch([path])
    stated = {**job.options, **job.layout}
    assert {key: stated.get(key) for key in FILES[name]} == FILES[name]
    if "llamoe" in name:
        assert any("longer than the 128 positions" in one.meaning for one in job.assumed)


def written(options=BASE, layout=LAYOUT):
    """The YAML of a plan."""
    files = {one.path: one.text for one in exported(predicted(options, layout), "nanotron").files}
    return yaml.safe_load(files["config.yaml"])


def read(tmp_path, config, **given):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(config))
    return read_launch([path], {}, given)


NAMES = {
    "parallelism": {
        "dp": int, "pp": int, "tp": int, "pp_engine": ("1f1b", "afab"), "tp_mode": ("ALL_REDUCE", "REDUCE_SCATTER"),
        "tp_linear_async_communication": bool, "recompute_layer": bool, "tp_recompute_allgather": bool,
        "expert_parallel_size": int, "context_parallel_size": int,
    },
    "tokens": {
        "sequence_length": int, "train_steps": int, "micro_batch_size": int, "batch_accumulation_per_replica": int,
    },
    "optimizer": {
        "zero_stage": (0, 1), "accumulate_grad_in_fp32": bool, "weight_decay": float, "clip_grad": float,
        "optimizer_factory": dict, "learning_rate_scheduler": dict,
    },
    "optimizer.optimizer_factory": {
        "name": ("adamW",), "adam_beta1": float, "adam_beta2": float, "adam_eps": float, "torch_adam_is_fused": bool,
    },
    "optimizer.learning_rate_scheduler": {
        "learning_rate": float, "lr_warmup_steps": int, "lr_warmup_style": ("linear", "constant"),
        "lr_decay_style": ("linear", "cosine", "1-sqrt"), "min_decay_lr": float,
    },
    "model": {
        "ddp_bucket_cap_mb": int, "dtype": ("bfloat16", "float16", "float32"), "init_method": dict,
        "make_vocab_size_divisible_by": int, "model_config": dict,
    },
    "general": {"project": str, "run": str, "seed": int, "ignore_sanity_checks": bool},
}  # fmt: skip
"""Sections of the YAML -> keys, with their types or choices (shared/design/export.md; dacite takes no others)."""
OPTIONAL = {"tp_recompute_allgather"}
MODEL = {
    "is_llama_config", "is_qwen2_config", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "tie_word_embeddings", "vocab_size",
    "attention_bias", "sliding_window_size", "_attn_implementation", "ring_attn_heads_k_stride", "moe_config",
    "rope_theta", "rms_norm_eps",
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, LAYOUT),
        ({"model": "mixtral-8x7b"}, {"tp": 4, "etp": 1}),
        ({"model": "qwen2.5-7b", "seq": 8192}, {"cp": 4, "zero": 0, "tp": 2}),
        ({"precision": "fp32"}, {"tp": 8}),
        ({"grad_dtype": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}, {"zero": 1}),
    ],
)
def test_the_yaml_has_the_names_and_types_of_nanotron(options, layout):
    config = written({**BASE, **options}, layout)
    for section, keys in NAMES.items():
        own = config
        for part in section.split("."):
            own = own[part]
        assert set(own) >= set(keys) - OPTIONAL
        for key, value in own.items():
            kind = keys[key]
            assert value in kind if isinstance(kind, tuple) else type(value) is kind, key
    assert set(config["model"]["model_config"]) <= MODEL
    split = config["parallelism"]
    assert split["dp"] * split["tp"] * split["pp"] * split["context_parallel_size"] == 32
    tokens = config["tokens"]
    assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * split["dp"] == 64


def test_degrees_are_the_gpus(tmp_path):
    config = written()
    assert read(tmp_path, config).options["gpus"] == 32
    with pytest.raises(InputError, match="32 GPUs by the degrees, 64 by what launches them"):
        read(tmp_path, config, gpus=64)


def test_what_is_left_out_is_as_nanotron_has_it(tmp_path):
    config = written()
    for key in ("tp_mode", "pp_engine", "recompute_layer"):
        config["parallelism"].pop(key)
    job = read(tmp_path, config)
    assert (job.layout["sp"], job.layout["schedule"], job.layout["recompute"]) == (False, "gpipe", "none")
    assert len([one for one in job.assumed if "default" in one.meaning]) == 2


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [("tokens", "sequence_length", "sequence_length"), ("model.model_config", "hidden_size", "hidden_size")],
)
def test_what_is_missing_is_asked_for(tmp_path, section, key, message):
    config = written()
    inner = config
    for part in section.split("."):
        inner = inner[part]
    inner.pop(key)
    with pytest.raises(InputError, match=f"{message}` is missing"):
        read(tmp_path, config)


def test_what_a_rule_of_nanotron_forbids_is_not_written():
    options = read_options(JobOptions, {**BASE, "model": "mixtral-8x7b"})
    broken = estimate_layout(build_job(options), {"tp": 2, "ep": 2, "etp": 1}, despite_rules=True)
    with pytest.raises(NoAnswerError, match=r"`ep`: .* no expert parallelism \[nanotron: parallel/context"):
        exported(broken, "nanotron")


def test_starcoder2(tmp_path):
    config = written()
    config["model"]["model_config"] = {
        "is_starcoder2_config": True, "hidden_size": 4608, "num_attention_heads": 36, "num_hidden_layers": 32,
        "num_kv_heads": 4, "grouped_query": True, "intermediate_size": 18432, "vocab_size": 49152,
        "max_position_embeddings": 16384,
    }  # fmt: skip
    assert (
        "gated=false" in read(tmp_path, config).options["model"]
        or "starcoder2" in read(tmp_path, config).options["model"]
    )


SAME = {
    "optimizer": ("adamw",), "nvls": ("on",), "sharp": ("off",), "routing": ("dropless",), "precision": ("bf16",),
    "grad_dtype": ("fp32",), "master_dtype": ("fp32",), "moment_dtype": ("fp32",), "pipeline_split": ("cost",),
    "cuda_graphs": ("none",), "cp_comm": ("p2p",), "dispatcher": ("alltoall",), "overlap": ("none",),
    "swiglu_input_dtype": ("bf16",), "vocab_multiple": (128,), "tune": ("full",), "method": ("sft",), "axis_order": (),
}  # fmt: skip
"""Values that are what nanotron does anyway."""


def _text(options, layout):
    try:
        result = exported(predicted(options, layout), "nanotron")
    except NoAnswerError as error:
        return f"refused {error}"
    except InputError:
        return "illegal"
    return "\n".join(one.text for one in result.files)


@pytest.mark.parametrize("name", [name for name in declared(JobOptions) if name not in HELD_BESIDE])
def test_no_option_of_a_job_is_dropped(name):
    moe = name in {"dispatcher", "routing", "transport"}
    options = {**BASE, "model": "mixtral-8x7b"} if moe else BASE
    before = _text(options, {"tp": 2})
    assert not before.startswith(("refused", "illegal"))
    changes = {"model": ("llama3.1-70b", "llama2-7b"), "gpus": (64,), "framework": ()}
    for value in changes.get(name, VALUES.get(name) or values_of(name)):
        if value not in SAME.get(name, ()):
            assert _text({**options, name: value}, {"tp": 2}) != before, f"{name}={value} is dropped"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp", 4), ("sp", False), ("pp", 4), ("cp", 2), ("zero", 0), ("micro_batch_size", 1), ("recompute", "none"),
        ("schedule", "gpipe"),
    ],
)  # fmt: skip
def test_no_value_of_a_layout_is_dropped(name, value):
    layout = {**LAYOUT, "zero": 0} if name == "cp" else LAYOUT
    assert _text(BASE, layout) != _text(BASE, {**layout, name: value})
