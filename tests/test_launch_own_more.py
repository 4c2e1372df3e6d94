"""Settings of programs of one's own that contradict or complete each other."""

import json

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError

GIVEN = {"gpus": 1, "seq": 1024, "precision": "bf16"}
ADAPTED = """
model: {model_id: Qwen/Qwen3-4B, lora_rank: 8, target_modules: [q_proj, v_proj], %s}
train: {per_device_train_batch_size: 2}
"""


@pytest.mark.parametrize(
    ("switch", "trained"),
    [
        ("finetune_lm_head: true", "head"),
        ("train_embeddings: true", "embeddings"),
        ("tune_embed_and_lm_head: yes", "embeddings,head"),
        ("lm_head_trainable: true", "head"),
        ("finetune_lm_head: false", None),
        ("train_output: true", None),
    ],
)
def test_switches_train_parts_of_the_model_whole_beside_adapters(switch, trained, tmp_path):
    (tmp_path / "run.yaml").write_text(ADAPTED % switch)
    assert read_launch([tmp_path / "run.yaml"], {}, GIVEN).options.get("train") == trained


QUANTISED = """
model_name_or_path: Qwen/Qwen3-4B
load_in_4bit: true
%s
per_device_train_batch_size: 2
max_length: 1024
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "likely"), [("use_peft: false\nlora_r: 0", "full"), ("use_peft: false", "full"), ("", "qlora")]
)
def test_weights_in_4_bits_without_adapters_are_asked_about_with_all_else_and_either_answer_is_taken(
    more, likely, tmp_path
):
    (tmp_path / "sft.yaml").write_text(QUANTISED % more)
    with pytest.raises(LackingError, match="frozen weights") as caught:
        read_launch([tmp_path / "sft.yaml"], {}, {})
    assert f"`tune={likely}`" in caught.value.hint
    assert "`gpus=" in caught.value.hint
    assert ("and there are none by use_peft False" in caught.value.message) is bool(more)
    full = read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 1, "tune": "full"})
    assert "tune" not in full.options
    if "lora_r" in more:
        with pytest.raises(LackingError, match="the rank of adapters"):
            read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 1, "tune": "qlora"})
    answers = {"gpus": 1, "tune": "qlora", "lora_rank": 8, "lora_targets": "all"}
    assert read_launch([tmp_path / "sft.yaml"], {}, answers).options["tune"] == "qlora"


RUNGS = """
shared: {context_len: 256, vocab_size: 9000, tied_embeddings: true, rope: true, activation: swiglu}
rungs:
  low: {sizes: {hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 384}}
  mid: {sizes: {hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4, intermediate_size: 640}}
"""
CHOSEN = "run: {rung: %s}\ntrain: {per_device_train_batch_size: 2}\ndata: {context_len: 256}\n"


@pytest.mark.parametrize(("rung", "layers"), [("low", 2), ("mid", 4)])
def test_of_tables_side_by_side_the_one_that_is_named_counts(rung, layers, tmp_path):
    (tmp_path / "ladder.yaml").write_text(RUNGS)
    (tmp_path / "run.yaml").write_text(CHOSEN % rung)
    files = [tmp_path / "run.yaml", tmp_path / "ladder.yaml"]
    job = read_launch(files, {}, {"gpus": 1, "precision": "bf16"})
    assert f"layers={layers},hidden={layers * 64}," in str(job.options["model"])
    assert job.options["seq"] == 256


def test_a_name_that_no_table_has_leaves_them_all(tmp_path):
    (tmp_path / "ladder.yaml").write_text(RUNGS)
    (tmp_path / "run.yaml").write_text(CHOSEN % "high")
    with pytest.raises(LackingError, match="several models are stated"):
        read_launch([tmp_path / "run.yaml", tmp_path / "ladder.yaml"], {}, {"gpus": 1, "precision": "bf16"})


TYPED = """
net: {hidden_size: 256, num_layers: 4, tie_word_embeddings: true, vocab_size: 9000, hidden_act: silu, heads: 4}
feedforward: {type: %s, intermediate_size: 640, num_experts: 4, num_experts_per_tok: 1, moe_intermediate_size: 640}
data: {max_seq_len: 256}
train: {batch_size: 2}
"""


@pytest.mark.parametrize(("kind", "experts"), [("swiglu", False), ("dense", False), ("mlp", False), ("moe", True)])
def test_experts_beside_a_type_without_any_are_left_out(kind, experts, tmp_path):
    (tmp_path / "run.yaml").write_text(TYPED % kind)
    given = {"gpus": 1, "precision": "bf16", "gbs": 2, "zero": 0}
    try:
        model = str(read_launch([tmp_path / "run.yaml"], {"*": "suggested"}, given).options["model"])
    except LackingError as error:
        model = str(error)
    assert ("moe.experts=4" in model) is experts
    assert ("ffn=640" in model.replace("moe.ffn", "")) is not experts


LIGHTNING = """
trainer: {accelerator: gpu, devices: %s, num_nodes: 2, precision: %s, accumulate_grad_batches: 4%s}
model: {init_args: {model_name: Qwen/Qwen3-4B}}
data: {init_args: {batch_size: 4, max_length: 1024}}
"""
FSDP = ", strategy: {class_path: lightning.pytorch.strategies.FSDPStrategy, init_args: {%s}}"
HYDRA = ", strategy: {_target_: pytorch_lightning.strategies.DeepSpeedStrategy, %s}"


@pytest.mark.parametrize(
    ("devices", "strategy", "gpus", "zero", "recompute", "offload"),
    [
        ('"0,1"', FSDP % "activation_checkpointing_policy: [a.b.Block]", 4, 3, "full", None),
        ("[0, 1, 2]", FSDP % "sharding_strategy: SHARD_GRAD_OP, cpu_offload: true", 6, 2, "none",
         "optimizer+parameters"),
        ("4", HYDRA % "stage: 3, offload_optimizer: true", 8, 3, "none", "optimizer"),
        ("4", HYDRA % "offload_parameters: false", 8, 2, "none", None),
        ("4", ", strategy: deepspeed_stage_2_offload", 8, 2, "none", "optimizer"),
        ("4", ", strategy: ddp_find_unused_parameters_true", 8, 0, "none", None),
        ("4", "", 8, 0, "none", None),
    ],
)  # fmt: skip
def test_a_trainer_of_lightning_shards_as_its_strategy_has_it(
    devices, strategy, gpus, zero, recompute, offload, tmp_path
):
    (tmp_path / "run.yaml").write_text(LIGHTNING % (devices, "bf16-mixed", strategy))
    made = read_launch([tmp_path / "run.yaml"], {}, {"gbs": gpus * 16})
    assert (made.options["gpus"], made.layout["zero"], made.layout["micro_batch_size"]) == (gpus, zero, 4)
    assert (made.layout["recompute"], made.options.get("offload")) == (recompute, offload)
    assert (made.options["precision"], made.options.get("master_dtype")) == ("bf16", None)


def test_all_devices_are_asked_for_and_an_unknown_strategy_too(tmp_path):
    (tmp_path / "run.yaml").write_text(LIGHTNING % ("-1", "bf16-mixed", ", strategy: colossalai"))
    with pytest.raises(LackingError, match="how the job is sharded") as caught:
        read_launch([tmp_path / "run.yaml"], {}, {})
    assert "`gpus=" in caught.value.hint


def test_weights_that_lightning_keeps_in_16_bits_have_no_copy_in_fp32(tmp_path):
    (tmp_path / "run.yaml").write_text(LIGHTNING % ("4", "bf16-true", ", strategy: ddp"))
    made = read_launch([tmp_path / "run.yaml"], {}, {"gbs": 128})
    assert (made.options["precision"], made.options["master_dtype"]) == ("bf16", "none")


BOARD = """
top.booster: %s
top.finetuning_type: %s
top.model_name: Qwen2.5-7B-Instruct
top.quantization_bit: %s
train.batch_size: 2
train.compute_type: pure_bf16
train.cutoff_len: 1024
train.ds_offload: true
train.ds_stage: '3'
train.extra_args: '{"optim": "adafactor"}'
train.galore_rank: 4
train.gradient_accumulation_steps: 8
train.lora_rank: 4
train.lora_target: ''
train.pref_loss: orpo
train.reward_model: []
train.training_stage: Supervised Fine-Tuning
train.use_galore: false
"""


@pytest.mark.parametrize(
    ("words", "tune", "rank"),
    [(("flashattn2", "full", "none"), None, None), (("liger_kernel", "lora", "none"), "lora", 4),
     (("auto", "lora", "4"), "qlora", 4)],
)  # fmt: skip
def test_what_llama_board_saved_is_read_as_the_arguments_that_it_trains_with(words, tune, rank, tmp_path):
    (tmp_path / "board.yaml").write_text(BOARD % words)
    made = read_launch([tmp_path / "board.yaml"], {}, {"gpus": 4, **({"zero": 2} if tune == "qlora" else {})})
    assert (made.options.get("tune"), made.options.get("lora_rank")) == (tune, rank)
    assert (made.layout["zero"], made.options["offload"], made.layout["micro_batch_size"]) == (
        3, "optimizer+parameters", 2,
    )  # fmt: skip
    assert (made.options["gbs"], made.options["seq"], made.options["optimizer"]) == (64, 1024, "adafactor")
    assert made.options.get("attention") == ("fa2" if words[0] == "flashattn2" else made.options.get("attention"))


def test_a_table_called_training_is_not_torchtitans(tmp_path):
    text = "model: {name: Qwen/Qwen3-4B}\ntraining: {batch_size: 4, seq_len: 1024, bf16: true}\nsystem: {num_gpus: 8}\n"
    (tmp_path / "run.yaml").write_text(text)
    made = read_launch([tmp_path / "run.yaml"], {}, {"gbs": 32, "zero": 0})
    assert (made.target, made.options["gpus"], made.layout["micro_batch_size"]) == ("accelerate", 8, 4)


@pytest.mark.parametrize(("more", "asked"), [("", True), (", patch_size: 16", False)])
def test_sizes_of_a_transformer_without_a_word_of_tokens_are_asked_about(more, asked, tmp_path):
    text = f"model: {{num_layers: 4, hidden_size: 256, num_heads: 4{more}}}\ntrain: {{batch_size: 64, lr: 3e-4}}\n"
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(
        InputError, match="how many tokens the vocabulary" if asked else "no known framework|of a known"
    ):
        read_launch([tmp_path / "run.yaml"], {}, {})


def test_a_setting_of_a_document_counts_the_gpus_beside_arguments_of_the_trainer(tmp_path):
    text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\nmax_length: 1024\nbf16: true\n"
    (tmp_path / "run.yaml").write_text(f"{text}num_gpus: 4\nnum_nodes: 2\n")
    made = read_launch([tmp_path / "run.yaml"], {}, {})
    assert (made.options["gpus"], made.options["gbs"]) == (8, 16)


SIZED = """
model: {n_layers: 4, d_model: 256, attn_heads: 4, vocab_size: 9000, tie_embeddings: true, max_seq_len: 256%s}
training: {batch_size: 8, bf16: true}
"""
ONE = {"gpus": 1, "gbs": 8}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (", ffn_mult: 3, swiglu: true", "ffn=768"),
        (", gqa_num_kv_heads: 2, d_ff: 512, use_gqa: true, swiglu: true", "kv_heads=2"),
        (", num_kv_heads: 2, d_ff: 512, use_gqa: false, swiglu: true", "heads=4,ffn"),
    ],
)
def test_words_beside_the_sizes_of_a_model_count(more, expected, tmp_path):
    (tmp_path / "run.yaml").write_text(SIZED % more)
    assert expected in str(read_launch([tmp_path / "run.yaml"], {"*": "suggested"}, ONE).options["model"])


def test_a_size_that_is_not_read_is_asked_about_without_a_suggestion(tmp_path):
    (tmp_path / "run.yaml").write_text(SIZED % ", d_ff: 512, swiglu: true, global_head_dim: 128")
    with pytest.raises(LackingError, match="what global_head_dim does to the model is not known beside its sizes"):
        read_launch([tmp_path / "run.yaml"], {}, ONE)


LAUNCHED = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}
mixed_precision: %s
num_processes: 4
"""


def test_a_configuration_of_accelerate_starts_a_program_of_ones_own(tmp_path):
    text = (
        "model: {name: Qwen/Qwen3-4B}\ntraining: {per_device_batch_size: 2, grad_accum: 4, max_len: 512, dtype: bf16}\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    (tmp_path / "launch.yaml").write_text(LAUNCHED % "bf16")
    made = read_launch([tmp_path / "run.yaml", tmp_path / "launch.yaml"], {}, {})
    assert (made.options["gpus"], made.options["gbs"], made.layout["zero"]) == (4, 32, 3)
    (tmp_path / "launch.yaml").write_text(LAUNCHED % '"no"')
    with pytest.raises(LackingError, match="dtype bf16 is stated, and mixed_precision no"):
        read_launch([tmp_path / "run.yaml", tmp_path / "launch.yaml"], {}, {})


@pytest.mark.parametrize(
    ("variables", "zero"),
    [("ACCELERATE_USE_FSDP: '1', FSDP_SHARDING_STRATEGY: SHARD_GRAD_OP", 2), ("ACCELERATE_USE_FSDP: 'false'", 0),
     ("ACCELERATE_USE_DEEPSPEED: 'true', ACCELERATE_DEEPSPEED_ZERO_STAGE: '3'", 3)],
)  # fmt: skip
def test_a_table_of_variables_tells_accelerate_how_to_shard(variables, zero, tmp_path):
    text = (
        "model: {name_or_path: Qwen/Qwen3-4B}\ntraining: {per_device_train_batch_size: 2, max_length: 9, bf16: true}\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"{text}cloud: {{instance_type: ml.p5.48xlarge, environment: {{{variables}}}}}\n"
    )
    made = read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8})
    assert (made.layout["zero"], made.options["cluster"]) == (zero, "aws-p5")


def test_a_backend_of_deepspeed_suggests_no_replicas_and_a_type_of_adapters_is_read(tmp_path):
    text = (
        "training: {model: {base_model: Qwen/Qwen3-4B, use_peft: true, peft_type: lora}, batch_size: 4, bf16: true}\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"{text}peft: {{lora: {{r: 8, target_modules: [q_proj]}}}}\nrun: {{num_gpus: 2, dist_backend: deepspeed}}\n"
    )
    with pytest.raises(LackingError, match="how the job is sharded") as caught:
        read_launch([tmp_path / "run.yaml"], {}, {"seq": 512})
    assert "`zero=2`" in caught.value.hint
    assert "ignored" not in caught.value.hint


@pytest.mark.parametrize(
    ("mark", "method"), [("dpo_beta: 0.1", "dpo"), ("simpo_gamma: 0.5", "orpo"), ("desirable_weight: 1.0", "kto")]
)
def test_a_setting_that_one_method_alone_has_suggests_it(mark, method, tmp_path):
    text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\nmax_length: 512\nbf16: true\n"
    (tmp_path / "run.yaml").write_text(text + mark)
    assert read_launch([tmp_path / "run.yaml"], {"*": "suggested"}, {"gpus": 1}).options["method"] == method


def test_a_table_called_system_is_not_flagscales(tmp_path):
    text = (
        "model: {model_name: Qwen/Qwen3-4B}\ntraining: {per_device_train_batch_size: 2, max_length: 512, bf16: true}\n"
    )
    (tmp_path / "run.yaml").write_text(f"{text}system: {{use_auth_token: false, mixed_precision: bf16}}\n")
    assert read_launch([tmp_path / "run.yaml"], {}, {"gpus": 1}).target == "accelerate"


NAMED = """
model: {%s, quantize: %s, bitsandbytes: {load_4bit: true, bnb_4bit_quant_type: nf4}}
lora: {r: 8, target_modules: [q_proj]}
training: {training_args: {per_device_train_batch_size: 2, bf16: true}, sft_args: {max_seq_length: 512}}
tokenizer: {source: meta-llama/Llama-3.1-8B}
"""


@pytest.mark.parametrize(("quantised", "tune"), [("true", "qlora"), ("false", "lora")])
def test_the_one_model_that_a_document_names_under_whatever_key_counts(quantised, tune, tmp_path):
    (tmp_path / "run.yaml").write_text(NAMED % ("ckpt_of_base: Qwen/Qwen3-4B", quantised))
    made = read_launch([tmp_path / "run.yaml"], {}, {"gpus": 1})
    assert (made.options["model"], made.options["tune"]) == ("qwen3-4b", tune)
    (tmp_path / "run.yaml").write_text(NAMED % ("one: Qwen/Qwen3-4B, two: Qwen/Qwen3-8B", quantised))
    with pytest.raises(LackingError, match="which model is trained"):
        read_launch([tmp_path / "run.yaml"], {}, {"gpus": 1})


SCRATCH = """
%smodel_config: {model_type: llama, vocab_size: 9000, hidden_size: 256, intermediate_size: 640, num_hidden_layers: 4,
  num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 512, tie_word_embeddings: true}
per_device_train_batch_size: 4
block_size: 512
bf16: true
"""


@pytest.mark.parametrize("name", ["", "model_name: own-llama-30m\n"])
def test_a_table_with_a_configuration_of_transformers_is_the_model(name, tmp_path):
    (tmp_path / "run.yaml").write_text(SCRATCH % name)
    model = str(read_launch([tmp_path / "run.yaml"], {}, {"gpus": 1}).options["model"])
    assert model.startswith("layers=4,hidden=256,heads=4,kv_heads=2,head_dim=64,ffn=640,vocab=9000")
    assert "tied_embeddings=true" in model


TRACKED = {
    "_wandb": {"e": {"x": {"gpu_count": 3}}}, "model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 2,
    "n_positions": 256, "vocab_size": 9000, "num_beams": 1, "max_length": 20, "bf16": True, "optim": "adamw_torch",
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "fsdp_config": {"min_num_params": 0},
    "fsdp": [],
}  # fmt: skip


def test_what_a_tracker_saved_of_a_run_is_read_by_the_names_that_it_was_told(tmp_path):
    lines = (f"{key}: {json.dumps({'value': value})}" for key, value in TRACKED.items())
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(LackingError, match="how long sequences are") as caught:
        read_launch([tmp_path / "config.yaml"], {}, {"gpus": 2})
    assert "`seq=256`" in caught.value.hint
    made = read_launch([tmp_path / "config.yaml"], {}, {"gpus": 2, "seq": 256})
    assert (made.options["gbs"], made.options["precision"]) == (16, "bf16")
    assert "layers=2,hidden=128,heads=2" in str(made.options["model"])
    assert made.layout["zero"] == 0


def test_a_batch_that_may_be_of_tokens_is_asked_about_and_what_is_off_is_not(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "base_model: null\nmodel_name_or_path: Qwen/Qwen3-4B\ntotal_batch_size: 524288\nmicro_batch_size: 4\n"
        "seq_len: 1024\nbf16: true\nfp8: false\nfp8_recipe: tensorwise\nfull_shard: true\n"
    )
    with pytest.raises(LackingError, match="524,288 are more than sequences of a batch") as caught:
        read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8})
    assert "`gbs=512`" in caught.value.hint
    assert "`zero=3`" in caught.value.hint
    made = read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8, "gbs": 512, "zero": 3})
    assert made.layout["micro_batch_size"] == 4


def test_a_batch_of_all_beside_the_trainers_microbatch_makes_its_accumulation_steps(tmp_path):
    text = "run: {effective_bsz: %s}\nmodel: {name_or_path: Qwen/Qwen3-4B, max_length: 512}\n"
    arguments = "training_arguments: {per_device_train_batch_size: 4, gradient_accumulation_steps: null, bf16: true}\n"
    (tmp_path / "run.yaml").write_text(text % 128 + arguments)
    assert read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8}).options["gbs"] == 128
    (tmp_path / "run.yaml").write_text(text % 100 + arguments)
    with pytest.raises(LackingError, match="a batch of 100 is stated, which microbatches of 32"):
        read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8})
    (tmp_path / "run.yaml").write_text(text % 128 + arguments.replace("null", "2"))
    assert read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8}).options["gbs"] == 64


WORKED_OUT = """
trainer: {accelerator: gpu, devices: 8, num_nodes: 1, strategy: null, precision: bf16-mixed,
  accumulate_grad_batches: "${div_up:${train.whole}, ${eval:${trainer.devices} * ${data.batch_size} * 1}}"}
model: {name: Qwen/Qwen3-4B, pipeline: PromptPipeline, mixer: {zero_stage: 0}}
train: {whole: %s}
data: {batch_size: 4, max_length: 512}
"""


@pytest.mark.parametrize(("whole", "steps"), [(64, 2), (65, 3), (32, 1)])
def test_resolvers_work_numbers_out_and_a_class_is_no_degree(whole, steps, tmp_path):
    (tmp_path / "run.yaml").write_text(WORKED_OUT % whole)
    with pytest.raises(LackingError, match="whether 4 is the batch of each GPU or of all") as caught:
        read_launch([tmp_path / "run.yaml"], {}, {})
    assert f"`gbs={32 * steps}`" in caught.value.hint
    assert "ignored" not in caught.value.hint


def test_a_stage_of_zero_counts_in_any_table_and_a_list_of_switches_suggests_one(tmp_path):
    text = "model: {base: {n_layers: 4, d_model: 256, n_heads: 4, head_groups: 2, d_ff: 640, gated: true,"
    text += (
        " vocab_size: 9000, tie_word_embeddings: false}, multi_stage: {zero_stage: 2}, own: {training_dtype: bf16}}\n"
    )
    (tmp_path / "run.yaml").write_text(f"{text}batch: {{sequence_length: 256, micro_batch_size: 2, global_bs: 32}}\n")
    made = read_launch([tmp_path / "run.yaml"], {}, {"gpus": 8})
    assert (made.layout["zero"], made.options["precision"], made.options["gbs"]) == (2, "bf16", 32)
    assert "kv_heads=2" in str(made.options["model"])
    (tmp_path / "run.json").write_text(
        '{"model": "own_7b.json", "tokens": 9000, "global_bs": 64, "fsdp_flags": ["--fsdp"]}'
    )
    with pytest.raises(LackingError, match=r"the model 'own_7b\.json' is not known here") as caught:
        read_launch([tmp_path / "run.json"], {}, {"gpus": 8})
    assert "`zero=3`" in caught.value.hint


@pytest.mark.parametrize("more", ['"[1]"', '"null"', '"{"', "{a: 1}"])
def test_arguments_beside_a_saved_page_that_are_no_table_are_left_out(more, tmp_path):
    text = BOARD % ("auto", "lora", "none")
    (tmp_path / "board.yaml").write_text(text.replace("""'{"optim": "adafactor"}'""", more))
    assert read_launch([tmp_path / "board.yaml"], {}, {"gpus": 4}).options["optimizer"] == "adamw"


def test_devices_that_are_seen_are_no_trainer_of_lightning(tmp_path):
    text = "model: {name: Qwen/Qwen3-4B}\ntraining: {batch_size: 4, max_len: 512, bf16: true}\n"
    (tmp_path / "run.yaml").write_text(f"{text}system: {{cuda_visible_devices: '0,1', accelerator: gpu}}\n")
    with pytest.raises(LackingError, match="how the job is sharded"):
        read_launch([tmp_path / "run.yaml"], {}, {"gpus": 2, "gbs": 8})


def test_a_table_of_a_class_that_is_not_modelled_asks_for_the_model(tmp_path):
    (tmp_path / "run.yaml").write_text((SCRATCH % "").replace("hidden_size: 256", "hidden_size: 255"))
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "run.yaml"], {}, {"gpus": 1})
    assert "`model=" in caught.value.hint
