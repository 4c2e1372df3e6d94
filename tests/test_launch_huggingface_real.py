"""What is exported for DeepSpeed, accelerate and the Trainer, parsed by their own classes (extra `frameworks`).

Read so far with DeepSpeed 0.19.8, accelerate 1.15.0 and transformers 5.23.0 on PyTorch 2.15.0, without a GPU.
"""

import json
import shlex
from dataclasses import dataclass

import pytest
import round_trips

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import NoAnswerError
from gpuscale.launch.export import exported
from gpuscale.launch.huggingface_models import config_json
from gpuscale.presets.models import load_model

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]
COUNT = 150


def exports(target):
    """Files of random legal plans by name, each with its plan."""
    for job, layout in round_trips.plans(target, COUNT, seed="real"):
        estimate = round_trips.predicted(job, layout)
        try:
            made = exported(estimate, target)
        except NoAnswerError:
            continue
        yield {one.path: one.text for one in made.files}, estimate.plan


def program(files):
    """The words of the training program's own arguments, and the environment that run.sh gives it."""
    lines = files["run.sh"].replace("\\\n", " ").splitlines()
    exported_variables = dict(line[7:].split("=", 1) for line in lines if line.startswith("export "))
    words = shlex.split(lines[-1])
    return words[words.index("run_clm.py") + 1 :], exported_variables


def test_deepspeed_parses_every_export(monkeypatch):
    runtime = pytest.importorskip("deepspeed.runtime.config")
    experts_of = pytest.importorskip("deepspeed.module_inject.auto_ep_config")
    world = [1]
    monkeypatch.setattr(runtime.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(runtime.dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(runtime.dist, "get_world_size", lambda *_: world[0])
    seen = 0
    for files, plan in exports("deepspeed"):
        config = json.loads(files["ds_config.json"])
        world[0] = plan.dp * plan.cp  # AutoTP divides it later, without a look at the batch
        made = runtime.DeepSpeedConfig(config)
        assert made.zero_optimization_stage == plan.zero
        assert made.train_micro_batch_size_per_gpu == plan.micro_batch_size
        assert made.train_batch_size == plan.global_batch_size
        assert made.tensor_parallel_config.autotp_size == (plan.tp if plan.tp > 1 else 0)
        experts = experts_of.parse_autoep_config(config.get("expert_parallel"))
        assert experts.autoep_size == plan.ep
        experts_of.validate_autoep_config(
            experts, plan.dp * plan.cp * plan.tp, 1, plan.tp, plan.cp, zero_stage=plan.zero,
            zero_offload_optimizer=made.zero_config.offload_optimizer is not None,
        )  # fmt: skip
        unknown = set(config) - KNOWN
        assert not unknown, "DeepSpeed ignores unknown keys at the top without a word"
        seen += 1
    assert seen > COUNT / 2


KNOWN = {
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16", "fp16", "data_types",
    "communication_data_type", "optimizer", "zero_allow_untested_optimizer", "zero_optimization", "tensor_parallel",
    "sequence_parallel_size", "expert_parallel",
}  # fmt: skip
"""Keys at the top that DeepSpeed 0.19.8 reads (runtime/config.py, runtime/constants.py, module_inject)."""


def test_deepspeed_refuses_a_misspelt_key_below_zero():
    """The test above can fail."""
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    with pytest.raises(ValueError, match="staeg"):
        zero.DeepSpeedZeroConfig(staeg=3)


def test_accelerate_parses_every_export(tmp_path, monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    command = pytest.importorskip("accelerate.commands.launch")
    launch = pytest.importorskip("accelerate.utils.launch")
    monkeypatch.setattr(launch, "is_fp8_available", lambda: True)  # libraries of a GPU, whose settings are parsed here
    path, seen = tmp_path / "accelerate.yaml", 0
    for files, plan in exports("accelerate"):
        path.write_text(files["accelerate.yaml"])
        config = config_args.load_config_from_file(str(path))
        assert config.num_processes == plan.dp * plan.cp * plan.tp
        args = command.launch_command_parser().parse_args(["--config_file", str(path), "run_clm.py"])
        args.nondefault = set()
        args, _, _ = command._validate_launch_command(args)
        environment = {} if args.num_processes == 1 else launch.prepare_multi_gpu_env(args)
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG"):
                degrees = accelerate.ParallelismConfig()
                sizes = (degrees.dp_replicate_size * degrees.dp_shard_size, degrees.tp_size, degrees.cp_size)
                assert sizes == (plan.dp, plan.tp, plan.cp)
            if plan.zero:
                plugin = accelerate.FullyShardedDataParallelPlugin()
                assert plugin.fsdp_version == 2
                assert plugin.reshard_after_forward is (plan.zero == 3)
                assert plugin.activation_checkpointing is plan.recompute.startswith("full")
        seen += 1
    assert seen > COUNT / 2


@dataclass
class Script:
    """Arguments of run_clm.py beside those of the Trainer."""

    config_name: str = ""
    tokenizer_name: str = ""
    train_file: str = ""
    block_size: int = 0


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_the_trainer_parses_every_argument(target, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.TrainingArguments, "__post_init__", lambda _: None)
    parser = transformers.HfArgumentParser((Script, transformers.TrainingArguments))
    seen = 0
    for files, plan in exports(target):
        words, _ = program(files)
        script, training = parser.parse_args_into_dataclasses(args=words)
        assert script.block_size == plan.sequence
        assert training.per_device_train_batch_size == plan.micro_batch_size
        assert training.gradient_accumulation_steps == plan.num_microbatches
        seen += 1
    assert seen > COUNT / 2


def test_transformers_builds_the_shape_of_every_config(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    for name in ("gpt3-13b", "megatron-177b", "nanotron-llama-8.86b", "mixtral-8x3b", "llama3-8b", "qwen3-30b-a3b"):
        model = load_model(name)
        data = config_json(model, 4096)
        (tmp_path / "config.json").write_text(json.dumps(data))
        with torch.device("meta"):
            made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
        count = sum(one.numel() for one in made.parameters())
        assert count == model_parameters(model).total, name
