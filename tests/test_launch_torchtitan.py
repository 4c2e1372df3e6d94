"""torchtitan's commands, config functions and files of older releases, read; and what its exports hold."""

import re
from pathlib import Path

import pytest
from round_trips import HELD_BESIDE, VALUES, predicted, values_of

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported
from gpuscale.launch.python import python_sources
from gpuscale.launch.read import read_launch
from gpuscale.render.plan_texts import layout_text
from gpuscale.request import JobOptions, Layout, declared

SHARED = Path(__file__).parents[2] / "shared" / "formats" / "launch"


def read(tmp_path, text, name="run.sh", **given):
    path = tmp_path / name
    path.write_text(text)
    return read_launch([path], {}, given)


COMMAND = "torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --module {} --config {} {}\n"


def stated(job, *names):
    return {name: {**job.options, **job.layout}.get(name) for name in names}


def test_a_command_states_the_job(tmp_path):
    options = (
        "--training.seq_len 16384 --training.local_batch_size 2 --training.global_batch_size 64"
        " --parallelism.tensor_parallel_degree 4 --parallelism.context_parallel_degree 2"
        " --parallelism.no-enable_sequence_parallel --parallelism.fsdp_reshard_after_forward never"
        " --training.disable_cuda_graphs --compile.enable --compile.enable_async_tensor_parallel"
        " --optimizer.implementation fused_opt_states_bf16 activation-checkpoint:full"
    )
    job = read(tmp_path, COMMAND.format("llama3", "llama3_8b", options))
    assert stated(job, "model", "gpus", "seq", "gbs", "micro_batch_size", "tp", "cp", "sp", "zero") == {
        "model": "llama3.1-8b", "gpus": 32, "seq": 16384, "gbs": 64, "micro_batch_size": 2, "tp": 4, "cp": 2,
        "sp": False, "zero": 2,
    }  # fmt: skip
    assert stated(job, "recompute", "compile", "overlap", "cuda_graphs", "moment_dtype", "precision") == {
        "recompute": "full", "compile": "on", "overlap": "tp+dp", "cuda_graphs": "none", "moment_dtype": "bf16",
        "precision": "bf16",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        "activation-checkpoint:full",
        "--training.seq_len=4096 activation-checkpoint:full",
        "--compile.enable activation_checkpoint:full",
        "--training.seq_len 4096 activation-checkpoint:full --activation-checkpoint.preserve-rng-state",
    ],
)
def test_a_subcommand_is_found_wherever_it_stands(tmp_path, options):
    assert read(tmp_path, COMMAND.format("llama3", "llama3_8b", options)).layout["recompute"] == "full"


def test_a_way_of_the_frameworks_own_to_recompute_has_a_name():
    plan = predicted({"model": "llama3-8b", "gpus": 8, "framework": "torchtitan"}, {"recompute": "selective"}).plan
    assert plan.recompute == "selective"
    assert layout_text(plan).endswith("recompute selective")


def test_what_the_config_function_sets_counts_where_no_option_does(tmp_path):
    job = read(tmp_path, COMMAND.format("llama3", "llama3_70b", "--compile.enable"))
    assert stated(job, "model", "tp", "seq", "micro_batch_size", "gbs", "recompute", "cuda_graphs") == {
        "model": "llama3.1-70b", "tp": 8, "seq": 8192, "micro_batch_size": 8, "gbs": 32, "recompute": "full",
        "cuda_graphs": "full",
    }  # fmt: skip
    meanings = " ".join(one.meaning for one in job.assumed)
    assert "none accumulated" in meanings
    assert "CUDA graphs" in meanings


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--parallelism.pipeline_parallel_degree 4", {"pp": 4, "schedule": "1f1b", "vpp": None, "micro_batch_size": 1}),
        (
            "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B",
            {"pp": 4, "vpp": 2},
        ),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule Interleaved1F1B"
            " --parallelism.pipeline_parallel_layers_per_stage 4"
            " --parallelism.pipeline_parallel_first_stage_less_layers 0"
            " --parallelism.pipeline_parallel_last_stage_less_layers 0",
            {"pp": 2, "vpp": 4},
        ),
        (
            "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 8"
            " --parallelism.pipeline_parallel_microbatch_size 2 --training.global_batch_size 128",
            {"micro_batch_size": 2, "gbs": 128},
        ),
    ],
)
def test_pipelines(tmp_path, options, expected):
    job = read(tmp_path, COMMAND.format("llama3", "llama3_8b", f"--training.disable_cuda_graphs {options}"))
    assert stated(job, *expected) == expected


@pytest.mark.parametrize(("batch", "runs"), [(64, 1), (128, 2)])
def test_a_batch_of_several_runs_of_the_pipeline_is_said(tmp_path, batch, runs):
    """8 data-parallel ranks, each with a local batch of 8."""
    options = f"--parallelism.pipeline_parallel_degree 4 --training.global_batch_size {batch}"
    job = read(tmp_path, COMMAND.format("llama3", "llama3_8b", f"{options} --training.local_batch_size 8"))
    assert any("in one run of the pipeline" in one.meaning for one in job.assumed) is (runs > 1)


def test_stages_that_do_not_divide_over_ranks_are_refused(tmp_path):
    options = (
        "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B"
        " --parallelism.pipeline_parallel_layers_per_stage 4"
    )
    with pytest.raises(InputError, match="9 stages on 4 ranks"):
        read(tmp_path, COMMAND.format("llama3", "llama3_8b", options))


@pytest.mark.parametrize("layers", [-4, 0, 10**15])
def test_layers_per_stage_that_make_no_sense_are_refused(tmp_path, layers):
    options = (
        "--training.disable_cuda_graphs --parallelism.pipeline_parallel_degree 2"
        f" --parallelism.pipeline_parallel_first_stage_less_layers {layers}"
        f" --parallelism.pipeline_parallel_layers_per_stage {min(layers, 1)}"
    )
    with pytest.raises(InputError, match="stages on 2 ranks"):
        read(tmp_path, COMMAND.format("llama3", "llama3_8b", options))


def test_degrees_that_contradict_the_launcher_are_refused(tmp_path):
    options = "--parallelism.data_parallel_shard_degree 8 --parallelism.tensor_parallel_degree 2"
    with pytest.raises(InputError, match="16 GPUs by the degrees, 32 by what launches them"):
        read(tmp_path, COMMAND.format("llama3", "llama3_8b", options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--parallelism.data_parallel_replicate_degree 4", {"shard": 8, "zero": None}),
        (
            "--parallelism.data_parallel_replicate_degree 32 --parallelism.data_parallel_shard_degree 1",
            {"zero": 0, "shard": None},
        ),
        ("--parallelism.data_parallel_shard_degree 32", {"gpus": 32, "zero": None}),
        (  # states are sharded over dp_shard x cp
            "--parallelism.data_parallel_replicate_degree 16 --parallelism.data_parallel_shard_degree 1"
            " --parallelism.context_parallel_degree 2",
            {"zero": None, "shard": 2},
        ),
        ("--parallelism.tensor_parallel_degree 8 --parallelism.pipeline_parallel_degree 4", {"zero": 0}),
        ("--parallelism.tensor_parallel_degree 8 --parallelism.context_parallel_degree 4", {"zero": None}),
        (
            "--parallelism.data_parallel_replicate_degree 2 --parallelism.context_parallel_degree 4"
            " --parallelism.fsdp_reshard_after_forward always",
            {"zero": 3, "shard": 16},
        ),
    ],
)
def test_sharding(tmp_path, options, expected):
    assert stated(read(tmp_path, COMMAND.format("llama3", "llama3_8b", options)), *expected) == expected


OWN = """
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.models.qwen3 import model_registry, qwen3_configs

HEADS = 4 * 8

def mine(attn_backend):
    dim = HEADS * 128
    return Qwen3Model.Config(
        dim=dim, vocab_size=50304, enable_weight_tying=True,
        layers=_build_qwen3_layers(n_layers=20, dim=dim, n_heads=HEADS, n_kv_heads=8, head_dim=128,
                                   hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=1024, ffn_dim_multiplier=1.3),
                                   rope=CosSinRoPE.Config(dim=128, max_seq_len=32768)),
    )

qwen3_configs["mine"] = mine

def base():
    return Trainer.Config(
        model_spec=model_registry("mine", converters=[Float8LinearConverter.Config(recipe_name="rowwise")]),
        training=TrainingConfig(local_batch_size=2, seq_len=4096 * 2, disable_cuda_graphs=True),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True),
    )

def long():
    config = base()
    config.training.seq_len = 32768
    config.parallelism.context_parallel_degree = 4
    return config
"""


def test_config_functions_of_ones_own_are_read_and_not_executed(tmp_path):
    (tmp_path / "own.py").write_text(f"{OWN}\nraise SystemExit(open('/nowhere'))\n")
    job = read(tmp_path, COMMAND.format("own", "long", "--training.global_batch_size 64"))
    assert stated(job, "seq", "cp", "micro_batch_size", "precision", "recompute", "compile") == {
        "seq": 32768, "cp": 4, "micro_batch_size": 2, "precision": "fp8-current", "recompute": "full", "compile": "on",
    }  # fmt: skip
    shape = dict(part.split("=") for part in job.options["model"].split(","))
    assert {name: shape[name] for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "qk_norm")} == {
        "layers": "20", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "50304",
        "qk_norm": "head",
    }  # fmt: skip


def test_a_function_of_the_name_of_torchtitans_own_is_what_it_says(tmp_path):
    own = OWN.replace("def base()", "def llama3_405b()").replace("config = base()", "config = llama3_405b()")
    own = own.replace(', converters=[Float8LinearConverter.Config(recipe_name="rowwise")]', "")
    (tmp_path / "own.py").write_text(own)
    job = read(tmp_path, COMMAND.format("own", "llama3_405b", ""))
    assert stated(job, "precision", "tp", "compile") == {"precision": "bf16", "tp": None, "compile": "on"}


def test_a_model_of_ones_own_has_not_the_converters_of_the_function_that_it_begins_with(tmp_path):
    lines = ["def f():", "    c = llama3_405b()", '    c.model_spec = llama3.model_registry("405B")', "    return c"]
    (tmp_path / "own.py").write_text("\n".join(lines))
    job = read(tmp_path, COMMAND.format("own", "f", ""))
    assert stated(job, "model", "precision", "tp") == {"model": "llama3.1-405b", "precision": "bf16", "tp": 8}


def test_a_python_file_alone_asks_for_the_function(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(InputError, match=r"2 jobs are here: .*\(base\).*\(long\)"):
        read_launch([tmp_path / "own.py"], {}, {"gpus": 8})
    assert read_launch([f"{tmp_path / 'own.py'}:long"], {}, {"gpus": 8}).layout["cp"] == 4


@pytest.mark.parametrize("text", ["def f(:", "\x00", "(" * 3000, "x = " + "-" * 5000 + "1"])
def test_what_is_not_python_is_refused(text):
    with pytest.raises(InputError):
        python_sources(text, "own.py", lambda *_: None, {})


def test_python_that_calls_itself_ends():
    text = "def f():\n    return f()\ndef g():\n    return A(g(), x=h(f()))\n"
    assert python_sources(text, "own.py", lambda *_: None, {})[-1].source.program == ("module",)


def test_a_config_function_that_is_not_here_is_refused(tmp_path):
    with pytest.raises(InputError, match="in no file"):
        read(tmp_path, COMMAND.format("elsewhere", "big", ""))


FILES = {
    "torchtitan--pytorch--torchtitan--2024-04-debug_model.toml": {
        "tp": 1, "pp": 1, "micro_batch_size": 8, "seq": 2048, "precision": "bf16", "framework": "torchtitan@2024-08",
        "compile": "off", "recompute": "full:4",
    },
    "torchtitan--pytorch--torchtitan--2024-10-llama3_405b.toml": {
        "model": "llama3.1-405b", "tp": 8, "pp": 1, "micro_batch_size": 2, "seq": 8192, "precision": "fp8-current",
        "recompute": "full", "overlap": "tp+dp", "compile": "on", "gbs": 32,
    },
    "torchtitan--pytorch--torchtitan--2025-03-llama3_70b.toml": {
        "model": "llama3.1-70b", "tp": 8, "cp": 1, "micro_batch_size": 8, "precision": "bf16", "recompute": "full",
        "framework": "torchtitan@2025-03",
    },
    "torchtitan--pytorch--torchtitan--2025-12-qwen3_32b.toml": {
        "model": "qwen3-32b", "tp": 1, "micro_batch_size": 2, "seq": 4096, "precision": "bf16", "recompute": "full",
        "compile": "off", "gbs": 256,
    },
    "primus--AMD-AGI--Primus--torchtitan-MI300X-deepseek_v3_671b-pretrain.yaml": {
        "model": "deepseek-v3,mtp_layers=0", "ep": 8, "micro_batch_size": 16, "seq": 4096, "recompute": "full",
        "precision": "bf16",
    },
    "primus--AMD-AGI--Primus--torchtitan-MI300X-llama3.1_405B-BF16-pretrain.yaml": {
        "model": "llama3.1-405b", "micro_batch_size": 2, "recompute": "full", "precision": "bf16",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_ask_for_the_gpus_and_are_read_with_them(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip("not here")
    with pytest.raises(InputError, match="follows from the number of GPUs"):
        read_launch([path])
    job = read_launch([path], {}, {"gpus": 128})
    assert job.target == "torchtitan"
    assert stated(job, *FILES[name]) == FILES[name]


OLD = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 4
seq_len = 8192
data_parallel_degree = 8
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
compile = true
fp8_linear = "dynamic"
[experimental]
pipeline_parallel_split_points = ["layers.16"]
pipeline_parallel_microbatches = 4
[activation_checkpoint]
mode = "selective"
selective_ac_option = "4"
"""


def test_names_of_2024(tmp_path):
    job = read(tmp_path, OLD, "train.toml")
    assert stated(job, "gpus", "tp", "pp", "micro_batch_size", "gbs", "precision", "recompute") == {
        "gpus": 32, "tp": 2, "pp": 2, "micro_batch_size": 1, "gbs": 32, "precision": "fp8-current",
        "recompute": "full:4",
    }  # fmt: skip
    assert job.options["framework"] == "torchtitan@2024-08"


# --- exports

BASE = {"model": "llama3-8b", "gpus": 32, "framework": "torchtitan", "seq": 4096, "gbs": 64, "cluster": "b200-hgx"}
EXPERTS = {**BASE, "model": "qwen3-30b-a3b"}
LAYOUT = {"tp": 2, "pp": 2, "cp": 2, "micro_batch_size": 2, "recompute": "full"}

SAME = {
    "optimizer": ("adamw",), "nvls": ("on",), "sharp": ("off",), "transport": ("nvshmem",), "routing": ("dropless",),
    "precision": ("bf16",), "grad_dtype": ("fp32",), "master_dtype": ("fp32",), "moment_dtype": ("fp32",),
    "pipeline_split": ("even",), "cuda_graphs": ("none",), "reshard": ("default", "always", "never"),
    "grad_reduce": ("default", "each", "last"), "compile": ("on",), "cp_comm": ("all_gather",),
    "dispatcher": ("deepep",), "loss": ("chunked",),
    "tune": ("full",), "method": ("sft",), "overlap": ("dp",), "swiglu_input_dtype": ("bf16",), "axis_order": (),
}  # fmt: skip
"""Values that are what torchtitan does anyway, or that other options say too."""


def _text(options, layout):
    try:
        result = exported(predicted(options, layout), "torchtitan")
    except NoAnswerError as error:
        return f"refused {error}"
    except InputError:
        return "illegal"
    return "\n".join(one.text for one in result.files)


@pytest.mark.parametrize("name", [name for name in declared(JobOptions) if name not in HELD_BESIDE])
def test_no_option_of_a_job_is_dropped(name):
    options = EXPERTS if name in {"dispatcher", "routing", "transport"} else BASE
    layout = {"tp": 2, "micro_batch_size": 2, **({"ep": 4} if options is EXPERTS else {})}
    if name == "pipeline_split":
        options, layout = {**BASE, "model": "deepseek-v3,mtp_layers=0"}, {"pp": 8, "ep": 4, "recompute": "full"}
    before = _text(options, layout)
    assert not before.startswith(("refused", "illegal"))
    changes = {"model": ("llama3.1-70b", "llama2-7b"), "gpus": (64,), "framework": ("torchtitan@2025-03",)}
    for value in changes.get(name) or VALUES.get(name) or values_of(name):
        if value not in SAME.get(name, ()):
            after = _text({**options, name: value}, layout)
            assert after != before, f"{name}={value} is dropped"
            if after.startswith("refused") and value != "parameters":
                assert f"`{name}`" in after or "`precision`" in after, after


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp", 4), ("sp", False), ("pp", 4), ("vpp", 2), ("cp", 4), ("ep", 4), ("zero", 3), ("shard", 4),
        ("micro_batch_size", 1), ("recompute", "none"), ("recompute", "selective"), ("schedule", "gpipe"),
        ("schedule", "zb-v"), ("dp", 4), ("etp", 2),
    ],
)  # fmt: skip
def test_no_value_of_a_layout_is_dropped(name, value):
    options = EXPERTS if name in {"ep", "etp"} else BASE
    layout = {**LAYOUT, **({"ep": 2} if options is EXPERTS else {})}
    if name == "etp":
        layout = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1}
    other = {**layout, name: value}
    before, after = _text(options, layout), _text(options, other)
    if name == "dp":
        assert before == after, "the DP of these GPUs"
    else:
        assert before != after
    assert name in declared(Layout)


def test_stages_that_torchtitan_would_deal_out_otherwise_are_named():
    options = {**BASE, "model": "llama3.1-405b", "gpus": 32, "gbs": 64}
    text = _text(options, {"pp": 8, "vpp": 2, "tp": 4, "micro_batch_size": 1, "recompute": "full"})
    parts = re.search(r"module_fqns_per_model_part = \[\n(.*?)\n    \]", text, re.DOTALL)[1].splitlines()
    assert len(parts) == 16
    assert sum(part.count('"layers.') for part in parts) == 126


def test_a_model_of_the_registry_needs_no_file_of_its_own():
    result = exported(predicted({**BASE, "model": "llama3.1-8b"}, {"tp": 2}), "torchtitan")
    assert not [one for one in result.files if one.path.endswith(".py")]


@pytest.mark.parametrize(
    ("model", "rope"),
    [
        ("llama3-8b", "rope=llama3.ComplexRoPE.Config(dim=128, max_seq_len=8192, theta=500000.0)"),
        ("llama3.2-1b", 'theta=500000.0, scaling="llama", scaling_factor=32.0, low_freq_factor=1.0'),
        ("qwen3-235b-a22b", "theta=1000000.0)"),
        ("kimi-k2", 'theta=50000.0, scaling="yarn", rope_factor=32.0, beta_slow=1.0, beta_fast=1.0'),
    ],
)
def test_a_model_whose_positions_turn_otherwise_is_no_model_of_the_registry(model, rope):
    options = {**BASE, "model": model, "gpus": 1024, "gbs": 1024, "seq": 4096}
    text = _text(options, {"tp": 1, "ep": 32 if model in {"qwen3-235b-a22b", "kimi-k2"} else 1, "recompute": "full"})
    assert rope in text


def test_converters_count_where_the_registry_lies_beside_the_function(tmp_path):
    """The registry would take the converters into what it returns: it is known by name, and not followed."""
    registry = "def model_registry(flavor, converters=()):\n    return ModelSpec(flavor=flavor)\n"
    (tmp_path / "llama3").mkdir()
    (tmp_path / "llama3" / "__init__.py").write_text(registry)
    own = """
from . import model_registry
def mine():
    spec = model_registry("70B", converters=[Float8LinearConverter.Config()])
    return Trainer.Config(model_spec=spec, training=TrainingConfig(seq_len=4096))
"""
    (tmp_path / "llama3" / "config_registry.py").write_text(own)
    job = read(tmp_path, COMMAND.format("llama3", "mine", ""))
    assert stated(job, "model", "precision", "seq") == {
        "model": "llama3.1-70b", "precision": "fp8-current", "seq": 4096,
    }  # fmt: skip
