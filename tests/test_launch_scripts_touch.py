"""What a Python script does to its model before it trains it: read, asked for, or known to be nothing."""

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from helpers import freeze, Wrapped
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype=torch.bfloat16{loader})
{between}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=2, gradient_accumulation_steps=4{given})
trainer = Trainer(model=model, args=args)
{after}
trainer.train()
"""


def _read(tmp_path, between="", after="", given="", loader="", **options):
    file = tmp_path / "a.py"
    file.write_text(SCRIPT.format(between=between, after=after, given=given, loader=loader))
    return read_launch([file], {}, {"gpus": 1, "seq": 512, **options})


@pytest.mark.parametrize(
    ("between", "settles"),
    [
        ("freeze(model)", "tune"),
        ("model = freeze(model, 4)", "tune"),
        ("model.freeze_base()", "tune"),
        ("for p in model.model.layers[:10]:\n    p.requires_grad_(False)", "tune"),
        ("for n, p in model.named_parameters():\n    p.requires_grad = 'head' in n", "tune"),
        ("model.model.layers = model.model.layers[:8]", "model"),
        ("model.config.num_hidden_layers = 4", "model"),
        ("setattr(model.config, 'num_hidden_layers', 4)", "model"),
        ("model = torch.nn.DataParallel(model)", "zero"),
        ("torch.ao.quantize_(model)", "precision"),
    ],
)
def test_what_may_change_the_job_is_asked_for(tmp_path, between, settles):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, between)
    assert f"{settles}=" in str(caught.value) and "a.py:" in str(caught.value)


@pytest.mark.parametrize("made", ["", "model = "])
@pytest.mark.parametrize("arguments", ["dtype=torch.float32", "'cuda', torch.float32"])
def test_the_type_of_a_cast_counts_wherever_it_stands(tmp_path, made, arguments):
    call = f"{made}model.to({arguments})"
    assert _read(tmp_path, call).options["precision"] == "fp32"
    assert _read(tmp_path, call.replace("32", "16")).options["precision"] == "fp16"
    mixed = _read(tmp_path, call, given=", bf16=True").options
    assert (mixed["precision"], mixed.get("master_dtype")) == ("bf16", None)


def test_embeddings_of_another_size_are_of_another_model(tmp_path):
    assert _read(tmp_path, "model.resize_token_embeddings(160000)").options["model"].endswith(",vocab=160000")
    assert _read(tmp_path, "model.resize_token_embeddings(len(tokenizer))").options["model"] == "Qwen/Qwen2.5-1.5B"


def test_what_is_trained_beside_adapters_is_asked_for(tmp_path):
    adapters = "import peft\nmodel = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=['q_proj']))"
    loop = "\nfor n, p in model.named_parameters():\n    if 'embed' in n: p.requires_grad = {}"
    with pytest.raises(InputError, match="beside adapters"):
        _read(tmp_path, adapters + loop.format(True))
    assert _read(tmp_path, adapters + loop.format(True), train="embeddings").options["lora_rank"] == 8
    assert _read(tmp_path, adapters + loop.format(False)).options["lora_rank"] == 8


def test_layers_that_are_spread_over_gpus_are_said_to_be(tmp_path):
    job = _read(tmp_path, loader=', device_map="auto"', gpus=4)
    assert any("replicas are predicted" in one.meaning for one in job.assumed)
    assert not any("replicas are" in one.meaning for one in _read(tmp_path, loader=', device_map="auto"').assumed)


def test_a_table_of_fsdp_is_read_and_the_usual_precision_changes_nothing(tmp_path):
    table = ', bf16=True, fsdp="full_shard", fsdp_config={"activation_checkpointing": True}'
    assert _read(tmp_path, given=table, gpus=8).layout["recompute"] == "full"
    assert _read(tmp_path, "torch.set_float32_matmul_precision('highest')").options["precision"] == "bf16"


def test_what_is_done_to_the_model_of_a_trainer_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="freeze_all"):
        _read(tmp_path, after="trainer.model.freeze_all()")


def test_an_answer_settles_it(tmp_path):
    assert _read(tmp_path, "freeze(model)", tune="full").options["gbs"] == 8


def test_harmless_calls_change_nothing(tmp_path):
    calls = "model.cuda()\nmodel.config.use_cache = False\nmodel.print_trainable_parameters()\nmodel.train()"
    assert _read(tmp_path, calls).options == _read(tmp_path).options


PURE_FP16 = ["fp16", "none", "fp16", "fp16"]


def test_casts_and_compilation_are_read(tmp_path):
    half = _read(tmp_path).options
    whole = [_read(tmp_path, text).options for text in ("model.float()", "model = model.to(torch.float32)")]
    assert half["precision"] == "bf16" and [one["precision"] for one in whole] == ["fp32", "fp32"]
    assert _read(tmp_path, "model = model.to('cuda')").options == half
    assert _read(tmp_path, "model = torch.compile(model)").options["compile"] == "on"
    pure = _read(tmp_path, "model.half()").options
    assert [pure.get(name) for name in ("precision", "master_dtype", "grad_dtype", "moment_dtype")] == PURE_FP16


def test_arguments_that_are_not_known_are_asked_for(tmp_path):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, given=", fancy_offload=True", loader=", quant_thing=True")
    assert "offload=" in str(caught.value) and "precision=" in str(caught.value)


def test_configurations_of_trl_have_its_defaults_whatever_the_trainer(tmp_path):
    given = "from trl import DPOConfig, DPOTrainer\nTrainingArguments, Trainer = DPOConfig, DPOTrainer"
    job = _read(tmp_path, between=given, seq=512)
    assert job.layout["recompute"] == "full" and job.options["method"] == "dpo"


def test_names_that_other_modules_have_can_be_given(tmp_path):
    file = tmp_path / "a.py"
    script = SCRIPT.replace("per_device_train_batch_size=2", "per_device_train_batch_size=N")
    file.write_text(script.format(between="from here import N", after="", given="", loader=""))
    assert read_launch([file], {"N": "3"}, {"gpus": 1, "seq": 512}).options["gbs"] == 12


def test_models_with_encoders_are_said_by_their_class(tmp_path):
    with pytest.raises(InputError, match="has an encoder"):
        _read(tmp_path, between="from transformers import RobertaForMaskedLM\nmodel = RobertaForMaskedLM()")


def test_a_torchtune_recipe_without_its_configuration_is_never_answered(tmp_path):
    file = tmp_path / "a.sh"
    file.write_text("tune run --nproc_per_node 3 lora_finetune_distributed --config configs/mine.yaml\n")
    for options in ({}, {"zero": 2, "model": "llama3-8b", "seq": 4096, "gbs": 6}):
        with pytest.raises(InputError, match="not here"):
            read_launch([file], {}, options)


def test_a_file_that_a_script_writes_and_copies_is_the_job_s_configuration(tmp_path):
    file = tmp_path / "a.sh"
    config = 'base_config: "base.yml"\nmodel_name: "llama3.1-8b"\nper_device_batch_size: 4\nmax_target_length: 2048'
    file.write_text(
        f"echo '{config}' > $HOME/out/mine.yml\ncp $HOME/out/mine.yml MaxText/configs/.\n"
        "python MaxText/train.py MaxText/configs/mine.yml ici_fsdp_parallelism=8\n"
    )
    job = read_launch([file], {}, {"gpus": 8})
    assert (job.options["seq"], job.layout["micro_batch_size"]) == (2048, 4)


def test_what_helpers_decide_is_asked_for_at_once(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "from trl import SFTConfig, SFTTrainer\nfrom common import load, adapters\n"
        "args = SFTConfig(per_device_train_batch_size=1)\n"
        "trainer = SFTTrainer(model=load('x'), args=args, peft_config=adapters(4))\n"
        "trainer.train()\n"
    )
    with pytest.raises(InputError) as caught:
        read_launch([file], {}, {})
    assert all(f"{name}=" in str(caught.value) for name in ("model", "gpus", "lora_rank", "lora_targets", "base_dtype"))


def test_adapters_of_a_tower_are_no_training_of_it(tmp_path):
    file = tmp_path / "a.sh"
    line = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-VL-4B-Instruct --train_type {} --freeze_vit false "
        "--per_device_train_batch_size 8 --max_length 8192 --deepspeed zero2\n"
    )
    towers = []
    for kind in ("lora", "full"):
        file.write_text(line.format(kind))
        towers.append(read_launch([file], {}, {}).options["tower"])
    assert towers == ["frozen", "trained"]


def test_what_a_script_reads_first_and_is_not_here_is_said(tmp_path):
    file = tmp_path / "a.sh"
    file.write_text(
        "source configs/70m.sh\n"
        "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 "
        "--global-batch-size 8 --seq-length 2048 --bf16\n"
    )
    said = [one.meaning for one in read_launch([file], {}, {"model": "llama3.2-1b"}).assumed]
    assert any("configs/70m.sh is not here" in one for one in said)


def test_a_configuration_that_another_package_returns_is_named(tmp_path):
    file = tmp_path / "config_registry.py"
    file.write_text(
        "def mine():\n    from torchtitan.models.kimi_k3.config_registry import kimi_debug\n"
        "    config = kimi_debug()\n    config.parallelism.data_parallel_shard_degree = 2\n    return config\n"
    )
    with pytest.raises(InputError, match="kimi_debug returns is in no file that is here"):
        read_launch([file], {}, {})
