"""What Python scripts do to a model, a trainer or other packages in ways easily overlooked: asked for, or read."""

import pytest

from gpuscale import load_model, read_launch
from gpuscale.errors import InputError

SCRIPT = """
import torch, transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from helpers import KW, Wrapped, freeze, helper
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype=torch.bfloat16{loader})
{between}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=2, gradient_accumulation_steps=4{given})
{beside}
trainer = Trainer(model=model, args=args{more})
{after}
"""


def _read(tmp_path, between="", variables=None, *, after="trainer.train()", **parts):
    options = {name: parts.pop(name) for name in list(parts) if name not in {"loader", "given", "beside", "more"}}
    file = tmp_path / "a.py"
    usual = {"loader": "", "given": "", "beside": "", "more": "", "after": after, "between": between}
    file.write_text(SCRIPT.format(**{**usual, **parts}))
    return read_launch([file], variables or {}, {"gpus": 1, "seq": 512, **options})


@pytest.mark.parametrize(
    ("between", "settles"),
    [
        ("model.model.layers[0] = Wrapped(model.model.layers[0])", "model"),
        ("for i, one in enumerate(model.model.layers):\n    model.model.layers[i] = Wrapped(one)", "model"),
        ("del model.model.layers[20:]", "model"),
        ("del model.lm_head", "model"),
        ("model._modules['lm_head'] = nn.Linear(4, 4)", "model"),
        ("transformers.models.qwen2.modeling_qwen2.Qwen2Attention.forward = helper", "attention"),
        ("from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP\nQwen2MLP.forward = helper", "model"),
        ("torch.nn.Linear = Wrapped", "model"),
        ("import patches\npatches.monkey_patch()", "model"),
        ("from llama_patch import replace_llama\nreplace_llama()", "model"),
        ("done = freeze(model)", "tune"),
        ("_ = [freeze(one) for one in model.model.layers]", "tune"),
        ("list(map(freeze, model.model.layers))", "tune"),
        ("with helper(model):\n    pass", "tune"),
        ("for name, one in model.named_modules():\n    one.to(torch.float32)", "precision"),
        ("for one in model.parameters():\n    one.data = one.data.float()", "precision"),
        ("from helpers import TABLE\nmodel = TABLE['lora'](model, r=8)", "tune"),
    ],
)
def test_what_may_change_the_model_is_asked_for(tmp_path, between, settles):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, between)
    assert f"{settles}=" in str(caught.value) and "a.py:" in str(caught.value)
    answers = {"model": "qwen2.5-1.5b", "tune": "full", "attention": "fa2", "precision": "bf16"}
    assert _read(tmp_path, between, **{settles: answers[settles]}).options["gbs"] == 8


@pytest.mark.parametrize(
    "between",
    [
        "print(sum(one.numel() for one in model.parameters() if one.requires_grad))",
        "print(tokenizer.decode(model.generate(**tokenizer('a').to(model.device))[0]))",
        "weights = model.get_input_embeddings().weight.data\nweights[-1:] = weights[:-1].mean(dim=0)",
        "with torch.no_grad():\n    model.lm_head.weight.copy_(model.lm_head.weight * 2)",
        "nn.init.zeros_(model.lm_head.weight)",
        "transformers.logging.set_verbosity_error()\ntorch.backends.cudnn.benchmark = True",
        "from accelerate import Accelerator\nmodel = Accelerator().prepare(model)",
        "from transformers import DataCollatorForSeq2Seq\ncollator = DataCollatorForSeq2Seq(tokenizer, model=model)",
        "for one in model.parameters():\n    if one.ndim == 1:\n        one.data = one.data.to(torch.float32)",
        "class Cast(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x).to(torch.float32)\n"
        "model.lm_head = Cast(model.lm_head)",
        "text = tokenizer.pad_in_its_own_way('a')",
    ],
)
def test_what_looks_at_the_model_fills_it_or_casts_vectors_and_logits_changes_nothing(tmp_path, between):
    assert _read(tmp_path, between).options == _read(tmp_path).options


def test_what_follows_the_training_changes_nothing(tmp_path):
    after = "trainer.train()\nmodel = model.merge_and_unload()\nfreeze(model)\ndel model"
    assert _read(tmp_path, after=after).options == _read(tmp_path).options
    with pytest.raises(InputError, match="freeze"):
        _read(tmp_path, after="freeze(model)\ntrainer.train()")


@pytest.mark.parametrize("part", ["loader", "given", "more"])
def test_keywords_from_elsewhere_are_asked_for_and_can_be_given(tmp_path, part):
    with pytest.raises(InputError, match="what KW gives as keywords") as caught:
        _read(tmp_path, **{part: ", **KW"})
    assert "var=KW={}" in str(caught.value)
    assert _read(tmp_path, variables={"KW": "{}"}, **{part: ", **KW"}).options == _read(tmp_path).options


def test_keywords_that_are_given_are_read(tmp_path):
    job = _read(tmp_path, variables={"KW": '{"gradient_checkpointing": true, "optim": "adafactor"}'}, given=", **KW")
    assert job.layout["recompute"] == "full" and job.options["optimizer"] == "adafactor"


@pytest.mark.parametrize(
    ("made", "optimizer"),
    [
        ("torch.optim.SGD(model.parameters())", "sgd"),
        ("bnb.optim.PagedAdamW8bit(model.parameters())", "paged-adamw-8bit"),
    ],
)
def test_an_optimizer_that_the_trainer_is_given_is_read(tmp_path, made, optimizer):
    job = _read(tmp_path, beside=f"import bitsandbytes as bnb\nown = {made}", more=", optimizers=(own, None)")
    assert job.options["optimizer"] == optimizer


def test_an_optimizer_that_a_helper_makes_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="optimizer="):
        _read(tmp_path, beside="own = helper(model.parameters())", more=", optimizers=(own, None)")


def test_a_trainer_of_ones_own_is_the_one_that_it_is_made_from(tmp_path):
    own = "class Own(Trainer):\n    def {}(self, *args, **more):\n        super().{}(*args, **more)\nTrainer = Own"
    assert _read(tmp_path, beside=own.format("log", "log")).options == _read(tmp_path).options
    assert _read(tmp_path, beside=own.format("__init__", "__init__")).options == _read(tmp_path).options
    with pytest.raises(InputError, match="compute_loss of its own is not read"):
        _read(tmp_path, beside=own.format("compute_loss", "compute_loss"))
    settled = _read(tmp_path, beside=own.format("compute_loss", "compute_loss"), method="sft")
    assert settled.options["gbs"] == 8


@pytest.mark.parametrize(
    ("between", "layers", "vocab", "precision"),
    [
        ("config = AutoConfig.from_pretrained('Qwen/Qwen2.5-1.5B')\nconfig.num_hidden_layers = 4\n"
         "model = AutoModelForCausalLM.from_config(config)", 4, 151936, "fp32"),
        ("config = AutoConfig.from_pretrained('gpt2', vocab_size=50000, n_ctx=128)\n"
         "model = transformers.GPT2LMHeadModel(config)", 12, 50000, "fp32"),
        ("model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=512, num_hidden_layers=8,\n"
         "    num_attention_heads=8, intermediate_size=1376, vocab_size=9000))", 8, 9000, "fp32"),
        ("model = AutoModelForCausalLM.from_config(transformers.MixtralConfig(num_hidden_layers=3),\n"
         "    torch_dtype=torch.bfloat16)", 3, 32000, "bf16"),
    ],
)  # fmt: skip
def test_models_that_are_made_of_a_configuration_are_read(tmp_path, between, layers, vocab, precision):
    job = _read(tmp_path, between)
    model = load_model(job.options["model"])
    assert (model.layers, model.vocab, job.options["precision"]) == (layers, vocab, precision)


def test_a_configuration_that_hangs_on_a_tokenizer_is_asked_for(tmp_path):
    text = "model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained('gpt2', vocab_size=len(tokenizer)))"
    with pytest.raises(InputError, match="vocab_size") as caught:
        _read(tmp_path, text)
    assert "model=" in str(caught.value)
    assert _read(tmp_path, text, model="gpt2").options["precision"] == "fp32"


def test_shapes_that_no_line_says_are_asked_for(tmp_path):
    with pytest.raises(InputError, match="model="):
        _read(tmp_path, "model = AutoModelForCausalLM.from_config(transformers.JambaConfig())")


@pytest.mark.parametrize(
    ("between", "match"),
    [
        ("from peft import PeftModel\nmodel = PeftModel.from_pretrained(model, 'a', is_trainable=True)", "lora_rank="),
        ("from peft import IA3Config, get_peft_model\nmodel = get_peft_model(model, IA3Config())", "IA3Config"),
        ("from peft import get_peft_model\nfrom helpers import TABLE\n"
         "model = get_peft_model(model, TABLE['lora'](r=8))", "lora_rank="),
    ],
)  # fmt: skip
def test_adapters_that_are_not_said_here_are_asked_for(tmp_path, between, match):
    with pytest.raises(InputError, match=match):
        _read(tmp_path, between)


def test_adapters_that_are_merged_are_trained_no_more(tmp_path):
    merged = "from peft import PeftModel\nmodel = PeftModel.from_pretrained(model, 'a/b').merge_and_unload()"
    assert "tune" not in _read(tmp_path, merged).options


def test_a_function_that_makes_the_model_is_followed(tmp_path):
    file = tmp_path / "a.py"
    text = SCRIPT.format(loader="", between="", given="", beside="", more=", model_init=make", after="trainer.train()")
    make = "def make():\n    return transformers.AutoModelForCausalLM.from_pretrained('gpt2-xl')\n"
    file.write_text(text.replace("model=model, ", "").replace("trainer =", f"{make}trainer ="))
    assert read_launch([file], {}, {"gpus": 1, "seq": 512}).options["model"] == "gpt2-xl"


def test_a_dictionary_says_how_deepspeed_shards(tmp_path):
    job = _read(tmp_path, "ds = {'zero_optimization': {'stage': 2}, 'bf16': {'enabled': True}}", given=", deepspeed=ds")
    assert job.layout["zero"] == 2 and job.options["framework"] == "deepspeed"


def test_products_in_tf32_are_read(tmp_path):
    wide = "model.float()\ntorch.backends.cuda.matmul.allow_tf32 = True"
    assert _read(tmp_path, wide).options["precision"] == "tf32"
    assert _read(tmp_path, "model.float()\ntorch.set_float32_matmul_precision('high')").options["precision"] == "tf32"


def test_a_trainer_that_another_function_returns_is_found(tmp_path):
    with pytest.raises(InputError, match="helper does to the trainer"):
        _read(tmp_path, after="trainer = helper(trainer)\ntrainer.train()")


def test_a_tokenizer_that_comes_with_the_model_is_not_the_model(tmp_path):
    loads = "from unsloth import FastLanguageModel\n"
    loads += "model, tokenizer = FastLanguageModel.from_pretrained('gpt2', load_in_4bit=False)\n"
    assert _read(tmp_path, f"{loads}tokenizer.adorn()").options["model"] == "gpt2"
    with pytest.raises(InputError, match="adorn"):
        _read(tmp_path, f"{loads}model.adorn()")


def test_arguments_that_a_helper_returns_are_asked_for_and_can_be_given(tmp_path):
    with pytest.raises(InputError, match="the variable helper is what a function returns"):
        _read(tmp_path, given=", fp16=helper()")
    assert _read(tmp_path, variables={"helper": "True"}, given=", fp16=helper()").options["precision"] == "fp16"
    asked = ", bf16=torch.cuda.has_it()"
    with pytest.raises(InputError, match=r"torch\.cuda\.has_it"):
        _read(tmp_path, "model.float()", given=asked)
    job = _read(tmp_path, "model.float()", {"torch.cuda.has_it": "True"}, given=asked)
    assert job.options["precision"] == "bf16"


def test_a_call_that_saves_what_a_trainer_trains_is_no_job(tmp_path):
    assert _read(tmp_path, after="trainer.train()\nfrom helpers import save_all\nsave_all(trainer)").options["gbs"] == 8


def test_adapters_of_a_table_of_nemo_are_asked_for(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "from nemo.collections import llm\nfrom nemo import lightning as nl\nfrom elsewhere import name\n"
        "trainer = nl.Trainer(devices=8, num_nodes=1, strategy=nl.MegatronStrategy(tensor_model_parallel_size=2))\n"
        "data = llm.SquadDataModule(seq_length=512, global_batch_size=8, micro_batch_size=1)\n"
        "llm.finetune(model=llm.LlamaModel(llm.Llama3Config8B()), data=data, trainer=trainer, peft=llm.TABLE[name]())\n"
    )
    with pytest.raises(InputError, match="which adapters it chooses is not known"):
        read_launch([file], {}, {})
    assert "tune" not in read_launch([file], {}, {"tune": "full"}).options
    file.write_text(file.read_text().replace("llm.LlamaModel(llm.Llama3Config8B())", "make()"))
    with pytest.raises(InputError, match="model="):
        read_launch([file], {}, {"tune": "lora"})
