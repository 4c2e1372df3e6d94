"""Loops of training of a script's own: what wrappers, engines and loaders say is read, and the rest is asked for."""

import json

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

LOOP = """
import os, torch, deepspeed
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy, CPUOffload
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float32)
{wrap}
optimizer = torch.optim.{optimizer}
{prepare}
for step, batch in enumerate(DataLoader([], batch_size=2, shuffle=True)):
    loss = model(**batch).loss
    {body}
    optimizer.step()
"""
BF16 = "MixedPrecision(param_dtype=torch.bfloat16)"


def read(tmp_path, wrap="", optimizer="AdamW(model.parameters())", prepare="", body="loss.backward()", **given):
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(wrap=wrap, optimizer=optimizer, prepare=prepare, body=body))
    return read_launch([path], {}, {"gpus": 4, "seq": 512, **given})


@pytest.mark.parametrize(
    ("text", "zero", "precision", "offload"),
    [
        (f"model = FSDP(model, mixed_precision={BF16})", 3, "bf16", None),
        (f"model = FSDP(model, {BF16}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)", 2, "bf16", None),
        ("model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))", 3, "fp32", "optimizer+parameters"),
        ("fully_shard(model, reshard_after_forward=False)", 2, "fp32", None),
        ("model = DDP(model)", 0, "fp32", None),
    ],
)
def test_wrappers_of_pytorch(tmp_path, text, zero, precision, offload):
    job = read(tmp_path, text)
    assert (job.layout["zero"], job.options["precision"], job.options.get("offload")) == (zero, precision, offload)
    assert (job.layout["micro_batch_size"], job.options["gbs"], job.options["optimizer"]) == (2, 8, "adamw")


def test_fsdp_of_pytorch_leaves_weights_in_the_type_that_they_have(tmp_path):
    text = f"model = FSDP(model.to(torch.bfloat16), mixed_precision={BF16})"
    assert read(tmp_path, text).options["master_dtype"] == "none"


@pytest.mark.parametrize(
    ("text", "zero"),
    [
        ("acc = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=8,"
         " deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", 3),
        ("acc = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=8,"
         " fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy='SHARD_GRAD_OP'))", 2),
    ],
)  # fmt: skip
def test_accelerators(tmp_path, text, zero):
    job = read(tmp_path, text, prepare="model, optimizer = acc.prepare(model, optimizer)")
    assert (job.layout["zero"], job.options["gbs"], job.options["precision"]) == (zero, 64, "bf16")


def test_an_accelerator_alone_does_not_say_how_it_shards(tmp_path):
    with pytest.raises(InputError, match="how the job is sharded"):
        read(tmp_path, "acc = Accelerator()", prepare="model, optimizer = acc.prepare(model, optimizer)")


def test_an_engine_of_deepspeed_counts_by_its_own_configuration(tmp_path):
    config = "dict(train_micro_batch_size_per_gpu=3, gradient_accumulation_steps=2, bf16=dict(enabled=True),"
    config += " zero_optimization=dict(stage=2, offload_optimizer=dict(device='cpu')))"
    wrap = f"model, _, _, _ = deepspeed.initialize(model=model, config={config})"
    job = read(tmp_path, wrap)
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.options["gbs"]) == (2, 3, 24)
    assert (job.options["framework"], job.options["offload"]) == ("deepspeed", "optimizer")


@pytest.mark.parametrize(
    ("added", "line", "engine"),
    [
        ("parser = deepspeed.add_config_arguments(parser)", "--deepspeed --deepspeed_config=ds.json", "args=args, "),
        ("parser.add_argument('--deepspeed_config')", "--deepspeed_config ds.json", "args, "),
        ("parser.add_argument('--deepspeed_config', default='./ds.json')", "", "args=args, "),
        ("parser.add_argument('--deepspeed_config')", "--deepspeed_config $WRITTEN", "args=args, "),
    ],
)
def test_an_engine_of_deepspeed_reads_the_file_that_its_arguments_name(tmp_path, added, line, engine):
    config = {"train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    if "$WRITTEN" not in line:
        (tmp_path / "ds.json").write_text(json.dumps(config))
    wrap = f"parser = argparse.ArgumentParser()\n{added}\nargs = parser.parse_args()\n"
    wrap += f"model, _, _, _ = deepspeed.initialize({engine}model=model)"
    loop = {"optimizer": "AdamW(model.parameters())", "prepare": "", "body": "model.backward(loss)"}
    (tmp_path / "train.py").write_text("import argparse\n" + LOOP.format(wrap=wrap, **loop))
    written = f'WRITTEN="own.json"\ncat > "$WRITTEN" <<END\n{json.dumps(config)}\nEND\n'
    (tmp_path / "run.sh").write_text(f"{written}deepspeed --num_gpus 8 train.py {line}\n")
    job = read_launch([tmp_path / "run.sh"], {}, {"seq": 1024})
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.options["gbs"]) == (2, 3, 24)


@pytest.mark.parametrize(
    ("optimizer", "expected", "offload"),
    [
        ("DeepSpeedCPULion", "lion", "optimizer"),
        ("DeepSpeedCPUAdam", "adamw", "optimizer"),
        ("FusedLion", "lion", None),
    ],
)
def test_optimizers_of_deepspeed_in_a_loop_of_ones_own(tmp_path, optimizer, expected, offload):
    config = {
        "train_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    wrap = (
        f"from deepspeed.ops import {optimizer}\nparser = deepspeed.add_config_arguments(argparse.ArgumentParser())\n"
    )
    loop = LOOP.replace("torch.optim.{optimizer}", "{optimizer}").replace("batch_size=2", "batch_size={micro}").format(
        wrap=wrap, optimizer=f"{optimizer}(model.parameters())", micro="engine.train_micro_batch_size_per_gpu()",
        prepare="engine, *_ = deepspeed.initialize(args=parser.parse_args(), model=model, optimizer=optimizer)",
        body="engine.backward(loss)",
    )  # fmt: skip
    (tmp_path / "train.py").write_text("import argparse\n" + loop)
    (tmp_path / "run.sh").write_text("deepspeed --num_gpus 4 train.py --deepspeed_config=ds.json\n")
    job = read_launch([tmp_path / "run.sh"], {}, {"seq": 1024})
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.options["gbs"]) == (3, 8, 32)
    assert (job.options["optimizer"], job.options.get("offload")) == (expected, offload)


STEPS = [
    "loss.backward()\n    if (step + 1) % 8 != 0:\n        continue",
    "last = (step + 1) % 8 == 0\n    loss.backward()\n    if last:\n        optimizer.step()",
    "waits = (step + 1) % 8 != 0\n    loss.backward()\n    if not waits:\n        optimizer.step()",
    "for _ in range(8):\n        loss.backward()",
    "count += 1\n    loss.backward()\n    if count == 8:\n        optimizer.step()",
]


@pytest.mark.parametrize("body", STEPS)
def test_steps_that_come_after_several_backward_passes(tmp_path, body):
    job = read(tmp_path, "model = DDP(model)", prepare="count = 0", body=body)
    assert (job.layout["micro_batch_size"], job.options["gbs"]) == (2, 64)


def test_rounds_that_are_passed_over_before_a_backward_pass_add_up_nothing(tmp_path):
    job = read(tmp_path, "model = DDP(model)", body="if step % 8 == 3:\n        continue\n    loss.backward()")
    assert job.options["gbs"] == 8


@pytest.mark.parametrize(
    "said", ["split_batches=True", "dataloader_config=DataLoaderConfiguration(split_batches=True)"]
)
def test_batches_that_accelerate_splits_are_asked_about(tmp_path, said):
    wrap = f"from accelerate.utils import DataLoaderConfiguration\nacc = Accelerator({said})"
    with pytest.raises(InputError, match="the batch of a device is then that of all"):
        read(tmp_path, wrap, prepare="model, optimizer = acc.prepare(model, optimizer)", zero=0, precision="bf16")


def test_steps_between_those_of_the_optimizer_are_counted(tmp_path):
    job = read(tmp_path, "model = DDP(model)", body="if (step + 1) % 16 == 0:\n        optimizer.step()")
    assert job.options["gbs"] == 128


def test_autocast_and_momentum(tmp_path):
    body = "with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss = model(**batch).loss"
    job = read(tmp_path, "model = DDP(model)", "SGD(model.parameters(), lr=1, momentum=0.9)", body=body)
    assert (job.options["precision"], job.options["optimizer"]) == ("bf16", "sgd-momentum")


LIGHTNING = """
import lightning as L, torch
from lightning.pytorch.strategies import FSDPStrategy, DeepSpeedStrategy
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
class Module(L.LightningModule):
    def __init__(self, name):
        super().__init__()
        self.net = AutoModelForCausalLM.from_pretrained(name)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = L.Trainer(devices=4, num_nodes=2, precision="bf16-mixed", accumulate_grad_batches=2, strategy={})
trainer.fit(Module("Qwen/Qwen2.5-0.5B"), DataLoader([], batch_size=3))
"""


@pytest.mark.parametrize(
    ("strategy", "zero", "offload"),
    [
        ("'ddp'", 0, None),
        ("'fsdp'", 3, None),
        ("FSDPStrategy(sharding_strategy='SHARD_GRAD_OP')", 2, None),
        ("'deepspeed_stage_3_offload'", 3, "optimizer"),
        ("DeepSpeedStrategy(stage=2, offload_optimizer=True)", 2, "optimizer"),
    ],
)
def test_strategies_of_lightning(tmp_path, strategy, zero, offload):
    path = tmp_path / "train.py"
    path.write_text(LIGHTNING.format(strategy))
    job = read_launch([path], {}, {"seq": 512})
    assert (job.options["gpus"], job.layout["zero"], job.options.get("offload")) == (8, zero, offload)
    assert (job.options["gbs"], job.options["precision"], job.options["model"]) == (48, "bf16", "Qwen/Qwen2.5-0.5B")


def test_a_plain_loop_is_of_one_gpu(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom torch.utils.data import DataLoader\nfrom transformers import GPT2LMHeadModel\n"
                    "model = GPT2LMHeadModel.from_pretrained('gpt2').to('cuda')\n"
                    "optimizer = torch.optim.AdamW(model.parameters())\n"
                    "for batch in DataLoader([], batch_size=5):\n    model(batch).loss.backward()\n"
                    "    optimizer.step()\n")  # fmt: skip
    job = read_launch([path], {}, {"seq": 512})
    assert (job.options["gpus"], job.options["gbs"], job.options["precision"]) == (1, 5, "fp32")


def test_loops_of_other_models_are_none_of_these(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch, torchvision\nmodel = torchvision.models.resnet50()\n"
                    "optimizer = torch.optim.SGD(model.parameters(), lr=1)\noptimizer.step()\n")  # fmt: skip
    with pytest.raises(InputError, match="no configuration"):
        read_launch([path])


def test_a_program_that_a_script_writes_is_read(tmp_path):
    path = tmp_path / "run.sh"
    loop = LOOP.format(wrap="", optimizer="AdamW(model.parameters())", prepare="model = DDP(model)", body="pass")
    path.write_text(
        f"#!/bin/bash\nOUT=/tmp/job.py\ncat > $OUT << 'EOF'\n{loop}\nEOF\ntorchrun --nproc_per_node 2 $OUT\n"
    )
    assert read_launch([path], {}, {"seq": 512}).options["gbs"] == 4


def test_the_configuration_of_an_engine_that_is_not_here_is_asked_for(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, "model, _, _, _ = deepspeed.initialize(model=model, config='ds.json')")
    assert all(f"{one}=" in str(caught.value) for one in ("precision", "gbs", "zero"))
    with pytest.raises(InputError) as caught:
        read(tmp_path, "model, _, _, _ = deepspeed.initialize(args=args, model=model)")
    assert "`zero=STAGE`" in str(caught.value)


def test_world_size_of_the_launcher_is_the_number_of_gpus(tmp_path):
    config = "dict(train_batch_size=32, zero_optimization=dict(stage=1))"
    wrap = f"size = int(os.environ['WORLD_SIZE'])\nmodel, *_ = deepspeed.initialize(model=model, config={config})"
    assert read(tmp_path, wrap).options["gbs"] == 32


def test_a_language_model_of_the_scripts_own_is_asked_for(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom torch.utils.data import DataLoader\nclass Net(torch.nn.Module):\n"
                    "    def __init__(self, vocab_size=9):\n        super().__init__()\nmodel = Net()\n"
                    "optimizer = torch.optim.AdamW(model.parameters())\n"
                    "for batch in DataLoader([], batch_size=5):\n    optimizer.step()\n")  # fmt: skip
    with pytest.raises(InputError, match="model=NAME"):
        read_launch([path])


def test_loops_that_learn_from_another_model_are_asked_by_which_method(tmp_path):
    body = "teacher_model(**batch)"
    with pytest.raises(InputError, match="method="):
        read(tmp_path, "model = DDP(model)", body=body)
    assert read(tmp_path, "model = DDP(model)", body=body, method="sft").options["gbs"] == 8


@pytest.mark.parametrize("devices", ["²", "9" * 5000])
def test_devices_that_are_no_number_are_asked_for(tmp_path, devices):
    text = LIGHTNING_OWN.format(devices=devices)
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(InputError, match="the number of GPUs, which no file states"):
        read_launch([tmp_path / "train.py"], {}, {"seq": 512})


LIGHTNING_OWN = """
import lightning as L, torch
from transformers import AutoModelForCausalLM
class Tuned(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
L.Trainer(devices="{devices}", precision="bf16-mixed", strategy="ddp").fit(
    Tuned(), torch.utils.data.DataLoader([], batch_size=2))
"""


def test_devices_that_a_text_lists_are_counted(tmp_path):
    (tmp_path / "train.py").write_text(LIGHTNING_OWN.format(devices="0,1,3"))
    assert read_launch([tmp_path / "train.py"], {}, {"seq": 512}).options["gbs"] == 6


OF_OWN = """
import lightning as L, torch
from torch.utils.data import DataLoader
class LanguageModel(L.LightningModule):
    def configure_model(self):
        self.model = Transformer(vocab_size=9)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
L.Trainer(devices=2, strategy="fsdp").fit(LanguageModel(), DataLoader(data))
"""


def test_loaders_and_trainers_of_lightning_have_their_defaults(tmp_path):
    (tmp_path / "train.py").write_text(OF_OWN)
    job = read_launch([tmp_path / "train.py"], {}, {"seq": 512, "model": "llama3-8b"})
    assert (job.options["gbs"], job.options["precision"], job.layout["zero"]) == (2, "fp32", 3)


def test_a_model_without_a_head_trains_as_a_language_model_where_adapters_say_so(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nfrom peft import LoraConfig, TaskType, get_peft_model\nfrom transformers import AutoModel\n"
        "from transformers import AutoTokenizer\nfrom torch.utils.data import DataLoader\n"
        "tokenizer = AutoTokenizer.from_pretrained('glm')\n"
        "model = AutoModel.from_pretrained('glm', torch_dtype=torch.float32)\n"
        "model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, target_modules=['q_proj']))\n"
        "optimizer = torch.optim.Adam(params=model.parameters())\n"
        "for batch in DataLoader([], batch_size=2):\n    optimizer.step()\n"
    )
    job = read_launch([tmp_path / "train.py"], {}, {"seq": 512, "model": "llama3-8b"})
    assert (job.options["lora_rank"], job.options["gbs"], job.options["optimizer"]) == (8, 2, "adam")


def test_plugins_and_strategies_of_deepspeed_have_stage_two(tmp_path):
    assert (
        read(tmp_path, "acc = Accelerator(mixed_precision='bf16', deepspeed_plugin=DeepSpeedPlugin())").layout["zero"]
        == 2
    )
    strategy = LIGHTNING_OWN.format(devices=4).replace('"ddp"', "L.pytorch.strategies.DeepSpeedStrategy()")
    (tmp_path / "train.py").write_text(strategy)
    assert read_launch([tmp_path / "train.py"], {}, {"seq": 512, "gpus": 4}).layout["zero"] == 2


OF_FABRIC = """
import lightning as L
import torch
from lightning.fabric.strategies import FSDPStrategy
from lit_gpt.model import GPT, Block, Config
from lit_gpt.utils import get_default_supported_precision
model_name = "tiny_LLaMA_1b"
global_batch_size = 256
micro_batch_size = 8
gradient_accumulation_steps = global_batch_size // 8 // micro_batch_size

def setup(devices: int = 8, precision=None):
    strategy = FSDPStrategy(auto_wrap_policy={Block}) if devices > 1 else "auto"
    precision = precision or get_default_supported_precision(training=True)
    main(L.Fabric(devices=devices, strategy=strategy, precision=precision))

def main(fabric):
    model = fabric.setup(GPT(Config.from_name(model_name)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), foreach=False))
    for data in fabric.loader:
        fabric.backward(model(data))
        optimizer.step()

if __name__ == "__main__":
    from jsonargparse import CLI
    CLI(setup)
"""


def test_constants_of_a_module_are_read_with_what_its_own_loop_says(tmp_path):
    (tmp_path / "train.py").write_text(OF_FABRIC)
    job = read_launch([tmp_path / "train.py"], {}, {"seq": 2048, "gpus": 8})
    assert (job.options["gbs"], job.options["precision"], job.layout["zero"]) == (256, "bf16", 3)
    (tmp_path / "run.sh").write_text("lightning run model --devices=8 --num-nodes=2 train.py --devices 8\n")
    with pytest.raises(InputError, match="a batch of 256 is not 8 x 4 microbatches x 16") as caught:
        read_launch([tmp_path / "run.sh"], {}, {"seq": 2048})
    assert "512" in str(caught.value.hint)
    job = read_launch([tmp_path / "run.sh"], {}, {"seq": 2048, "gbs": 512})
    assert (job.options["gpus"], job.layout["micro_batch_size"], job.layout["zero"]) == (16, 8, 3)
