"""Configurations of programs of one's own whose model is stated by its sizes."""

import re

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError

SIZES = """
net: {n_layers: 6, d_model: 256, n_heads: 8%s}
data: {seq_len: 512, vocab_size: 8000}
train: {batch_size: 4, grad_accum: 2%s}
eval: {batch_size: 99}
%s
"""
GIVEN = {"gpus": 2, "zero": 0, "gbs": 16, "precision": "bf16"}


def job(folder, model: str = "", training: str = "", more: str = "", **given):
    """What is read of such a configuration, with all else given."""
    (folder / "tiny.yaml").write_text(SIZES % (model, training, more))
    return read_launch([folder / "tiny.yaml"], {}, {**GIVEN, **given})


def asked(folder, *parts: str, **given) -> str:
    """What the one message asks for."""
    with pytest.raises(LackingError) as caught:
        job(folder, *parts, **given)
    return str(caught.value)


def test_what_sizes_leave_open_is_asked_for_with_what_is_likely(tmp_path):
    said = asked(tmp_path)
    assert "nothing of gated, tied_embeddings, ffn" in said
    line = said.partition("`model=")[2].partition("`")[0]
    for part in ("layers=6", "hidden=256", "heads=8", "vocab=8000", "gated=false", "ffn=1024", "learned_positions=512"):
        assert part in line.split(",")
    made = read_launch([tmp_path / "tiny.yaml"], {}, {**GIVEN, "model": line})
    assert (made.options["seq"], made.layout["micro_batch_size"]) == (512, 4)


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (", d_ff: 704, rope_theta: 10000", "gated=true"),
        (", ffn_dim: 1024, activation: swiglu", "gated=true"),
        (", ffn_dim: 1024, norm: rmsnorm", "tied_embeddings=false"),
        (", intermediate_size: 1024, n_kv_heads: 2", "kv_heads=2"),
        (", max_seq_len: 4096", "sequence=4096"),
    ],
)
def test_what_words_say_of_the_rest(model, part, tmp_path):
    assert part in asked(tmp_path, model).partition("`model=")[2].partition("`")[0].split(",")


def test_a_model_of_which_all_is_stated_is_read(tmp_path):
    more = ", d_ff: 704, activation: swiglu, rope_theta: 10000, norm: rmsnorm, tie_embeddings: true"
    made = job(tmp_path, more)
    stated = "layers=6,hidden=256,heads=8,ffn=704,vocab=8000,sequence=512,gated=true,tied_embeddings=true"
    assert made.options["model"] == stated
    assert made.setting("seq").value == 512


def test_several_values_of_one_thing_are_asked_about(tmp_path):
    full = ", d_ff: 704, activation: swiglu, rope_theta: 1, tie_embeddings: true"
    said = asked(tmp_path, full, more="second: {batch_size: 8}", gbs=None)
    assert "4 is stated, and so is second.batch_size 8" in said
    assert "`gbs=" in said
    said = asked(tmp_path, full, more="second: {max_length: 1024}")
    assert "512 is stated, and so is second.max_length 1024" in said
    assert "several models are stated" in asked(tmp_path, full, more="other: {n_layers: 12}")


def test_an_unknown_vocabulary_is_asked_for_and_a_known_tokenizer_says_it(tmp_path):
    plain = (SIZES % ("", "", "")).replace(", vocab_size: 8000", "")
    (tmp_path / "tiny.yaml").write_text(plain)
    with pytest.raises(LackingError, match="how many tokens the vocabulary"):
        read_launch([tmp_path / "tiny.yaml"], {}, GIVEN)
    (tmp_path / "tiny.yaml").write_text(f"{plain}tokenizer: gpt2\n")
    with pytest.raises(LackingError, match="vocab=50257"):
        read_launch([tmp_path / "tiny.yaml"], {}, GIVEN)


@pytest.mark.parametrize(
    ("training", "option", "value"),
    [
        (", dtype: bfloat16", "master_dtype", None), (", compile: true", "compile", "on"),
        (", devices: 4, num_nodes: 2", "gpus", 8), (", gpus: [0, 1, 2]", "gpus", 3), (", device: cuda", "gpus", None),
    ],
)  # fmt: skip
def test_settings_of_own_names(training, option, value, tmp_path):
    given = {"gpus": None} if option == "gpus" and value else {}
    made = job(tmp_path, training=training, model=", d_ff: 704, glu: true, rope: 1, tie_weights: true", gbs=48, **given)
    assert made.options.get(option) == value


@pytest.mark.parametrize("model", [", image_size: 224", ", num_classes: 10"])
def test_models_of_images_are_of_no_known_program(model, tmp_path):
    with pytest.raises(InputError, match="nothing here is of a known framework"):
        job(tmp_path, model)


def test_a_shape_beside_arguments_of_the_trainer_is_asked_for_too(tmp_path):
    text = """
model: {num_hidden_layers: 4, hidden_size: 256, num_attention_heads: 8, vocab_size: 4000, tie_word_embeddings: true}
train: {per_device_train_batch_size: 2, bf16: true, max_length: 256}
"""
    (tmp_path / "tiny.yaml").write_text(text)
    with pytest.raises(LackingError, match="nothing of gated, ffn"):
        read_launch([tmp_path / "tiny.yaml"], {}, {"gpus": 1})


def test_a_size_that_is_not_of_the_named_model_is_asked_about(tmp_path):
    text = "model: {name: gpt2, n_layers: %d}\ntrain: {batch_size: 4, max_length: 512}\n"
    (tmp_path / "a.yaml").write_text(text % 12)
    assert read_launch([tmp_path / "a.yaml"], {}, GIVEN).options["model"] == "gpt2"
    (tmp_path / "a.yaml").write_text(text % 6)
    with pytest.raises(LackingError, match="n_layers: not known here"):
        read_launch([tmp_path / "a.yaml"], {}, GIVEN)


SFT = "model: {name: gpt2}\ntrain: {batch_size: 4, max_length: 512}\n"


@pytest.mark.parametrize(
    ("more", "option", "value"),
    [
        ("qlora: {use_qlora: false, bits: 4}", "tune", None),
        ("lora: {r: 8, target_modules: [q_proj]}\nqlora: {use_qlora: false, bits: 4}", "tune", "lora"),
        ("deepspeed: {enabled: true, stage: 2}", "framework", "deepspeed"),
        ("deepspeed: {enabled: false, stage: 2}", "framework", "accelerate"),
    ],
)
def test_a_table_that_is_switched_off_counts_for_nothing(more, option, value, tmp_path):
    (tmp_path / "a.yaml").write_text(SFT + more)
    given = {**GIVEN} if "true" not in more else {key: one for key, one in GIVEN.items() if key != "zero"}
    made = read_launch([tmp_path / "a.yaml"], {}, given)
    assert made.options.get(option) == value
    if "true" in more:
        assert made.layout["zero"] == 2


@pytest.mark.parametrize(("name", "method"), [("my_dpo.yaml", "dpo"), ("grpo-small.yaml", "grpo")])
def test_a_method_that_only_the_name_of_a_file_speaks_of_is_asked_for(name, method, tmp_path):
    (tmp_path / name).write_text(SFT)
    with pytest.raises(LackingError, match=f"its name speaks of {method}") as caught:
        read_launch([tmp_path / name], {}, GIVEN)
    assert f"method={method}" in str(caught.value.hint)
    assert read_launch([tmp_path / name], {}, {**GIVEN, "method": "sft"}).options.get("method") in {None, "sft"}


def test_a_short_name_is_of_no_model_that_sees_images():
    assert known_model("Qwen/Qwen3-4B-Thinking-2601")[0] == "qwen3-4b"


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (", n_experts: 8, experts_per_token: 2, d_ff: 512", ("moe.experts=8", "moe.top_k=2", "moe.ffn=512")),
        (", num_experts: 4", ("moe.experts=4", "moe.top_k=2", "moe.ffn=1024")),
        (", use_qk_norm: true", ("qk_norm=head",)),
    ],
)
def test_experts_and_norms_are_in_the_line(model, parts, tmp_path):
    line = asked(tmp_path, model).partition("`model=")[2].partition("`")[0].split(",")
    assert set(parts) <= set(line)
    assert not {one for one in line if one.startswith("ffn=")} or "qk_norm=head" in line


@pytest.mark.parametrize("model", [", moe_every: 2, num_experts: 4", ", byte_patch_size: 4", ", n_shared_experts: 1"])
def test_what_makes_another_model_is_asked_about_without_a_suggestion(model, tmp_path):
    said = asked(tmp_path, model)
    assert "does to the model is not known beside its sizes" in said
    assert "`model=NAME`" in said or "add `model=" in said
    assert "does to the model" not in asked(tmp_path, ", n_shared_experts: 1, use_moe: false")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (", precision: fp16, use_fp16: false", "precision fp16 is stated, and use_fp16 False"),
        (", precision: bf16, amp: false", "precision bf16 is stated, and amp False"),
        (", muon_lr: 0.02", "of another optimizer than AdamW"),
    ],
)
def test_what_contradicts_or_hints_is_asked_about(more, message, tmp_path):
    text = f"model: {{name: gpt2}}\ntrain: {{batch_size: 4, max_length: 512{more}}}\n"
    (tmp_path / "a.yaml").write_text(text)
    given = {key: one for key, one in GIVEN.items() if key != "precision" or "muon" in more}
    with pytest.raises(LackingError, match=message):
        read_launch([tmp_path / "a.yaml"], {}, given)


def test_two_profiles_of_arguments_are_no_one_job(tmp_path):
    profile = "per_device_train_batch_size: {}, max_length: 512, bf16: true"
    text = f"model: {{name: gpt2}}\nhere: {{{profile.format(1)}}}\nthere: {{{profile.format(8)}}}\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match="several tables have arguments of the Trainer: here, there"):
        read_launch([tmp_path / "a.yaml"], {}, GIVEN)
    (tmp_path / "a.yaml").write_text(text.replace(": 8", ": 1"))
    assert read_launch([tmp_path / "a.yaml"], {}, GIVEN).options["seq"] == 512


FLAT = "model_name: gpt2\nmax_seq_length: 512\nper_device_train_batch_size: 2\nbf16: true\n"


@pytest.mark.parametrize(
    ("more", "tune", "base"),
    [
        ("lora: {r: 8, target_modules: [c_attn]}\n", "lora", None),
        ("use_4bit: true\nlora: {r: 8, target_modules: [c_attn]}\n", "qlora", "nf4-single"),
        ("method: qlora\nlora: {r: 8, target_modules: [c_attn]}\n", "qlora", "nf4-single"),
        ("quantization: {enabled: false, load_in_4bit: true}\n", None, None),
    ],
)
def test_tables_of_adapters_beside_flat_arguments_of_the_trainer(more, tune, base, tmp_path):
    (tmp_path / "a.yaml").write_text(FLAT + more)
    made = read_launch([tmp_path / "a.yaml"], {}, {"gpus": 2})
    assert (made.options.get("tune"), made.options.get("base_dtype")) == (tune, base)
    assert made.layout["micro_batch_size"] == 2


def test_lengths_of_later_stages_are_no_length_of_this_one(tmp_path):
    full = ", d_ff: 704, glu: true, rope: 1, tie_weights: true, max_seq_len: 1024"
    text = (SIZES % (full, "", "sft: {max_seq_len: 256}")).replace("data: {seq_len: 512, ", "data: {")
    text = text.replace("net:", "model:")
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(LackingError, match="1024 is stated, and so is"):
        read_launch([tmp_path / "a.yaml"], {}, GIVEN)


def test_a_file_that_is_gone_on_from_and_not_here_is_said(tmp_path):
    made = job(tmp_path, ", d_ff: 704, glu: true, rope: 1, tie_weights: true", more="extends: base.yaml")
    assert any("base.yaml is not here" in said.meaning for said in made.assumed)


def test_degrees_and_a_stage_in_the_table_of_a_model(tmp_path):
    text = """
data: {train_batch_size: 32, train_micro_batch_size: 4, valid_batch_size: 99}
model: {partial_pretrain: gpt2, tensor_parallel_size: 2, pipeline_parallel_size: 2, zero_stage: 1}
parallel: {data_parallel_size: 2}
"""
    (tmp_path / "a.yaml").write_text(text)
    made = read_launch([tmp_path / "a.yaml"], {}, {"precision": "bf16", "seq": 512, "gbs": 32})
    assert [made.layout[name] for name in ("zero", "micro_batch_size", "tp", "pp")] == [1, 4, 2, 2]
    assert made.options["gpus"] == 8


def test_a_gpt_whose_words_say_all_is_read(tmp_path):
    more = (
        ", d_ff: 1024, activation: gelu, pos_encoding: learned, norm_type: layernorm, bias: true, tie_embeddings: true"
    )
    line = str(job(tmp_path, f"{more}, n_kv_heads: 8").options["model"]).split(",")
    assert {"gated=false", "learned_positions=512", "qkv_bias=true", "mlp_bias=true", "norm_bias=true"} <= set(line)


def test_tables_with_longer_names_and_of_precision(tmp_path):
    text = """
model_params: {model_name: gpt2}
QLoRA_params: {lora_r: 8, target_modules: [c_attn]}
bit_bytes_params: {use_4bit: true, bnb_4bit_quant_type: nf4}
training_params: {per_device_train_batch_size: 2, max_seq_length: 512}
precision: {bf16: true, gradient_checkpointing: true}
"""
    (tmp_path / "a.yaml").write_text(text)
    made = read_launch([tmp_path / "a.yaml"], {}, {"gpus": 2})
    assert (made.options["tune"], made.options["precision"], made.layout["recompute"]) == ("qlora", "bf16", "full")


@pytest.mark.parametrize("value", ["²", "9" * 5000])
def test_digits_that_are_no_number_of_python_are_no_sizes(tmp_path, value):
    said = asked(tmp_path, f', n_kv_heads: "{value}", tp: "{value}"', f', micro_batch_size: "{value}"')
    assert "kv_heads=" not in said
    assert "`tp=...`" in said
    assert "layers=6" in said
    assert "num_gpus" not in asked(tmp_path, more=f'hardware: {{num_gpus: "{value}"}}')


def test_degrees_beyond_all_gpus_are_refused_at_their_place(tmp_path):
    with pytest.raises(InputError, match="out of range\nhint: give 1 to 1,048,576") as caught:
        job(tmp_path, f", tp: {10**17}")
    assert str(caught.value.place).endswith("tiny.yaml:2: net.tp")


@pytest.mark.parametrize(("ffn", "gated"), [(512, "false"), (1024, "false"), (688, "true")])
def test_mlps_twice_or_four_times_as_wide_are_likely_plain(tmp_path, ffn, gated):
    assert f"gated={gated}" in asked(tmp_path, f", d_ff: {ffn}")


@pytest.mark.parametrize(("sharding", "zero"), [("full", 3), ("FULL_SHARD", 3), ("shard_grad_op", 2)])
def test_a_program_that_is_not_here_says_its_model_and_how_it_shards(tmp_path, sharding, zero):
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node=8 own/train.py --max_context_width=1024 --hidden_width=512 --num_layers=6 "
        "--num_heads=8 --intermediate_size=1408 --model_type=llama_v2 --vocab_size=8000 --batch_size=2 "
        f"--sharding_strategy={sharding}\n"
    )
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "run.sh"])
    line = "layers=6,hidden=512,heads=8,ffn=1408,vocab=8000,sequence=1024,gated=true,tied_embeddings=false"
    assert f"`model={line}`" in caught.value.hint
    made = read_launch([tmp_path / "run.sh"], {}, {"model": line, "precision": "bf16", "gbs": 16})
    assert (made.layout["zero"], made.options["seq"], made.layout["micro_batch_size"]) == (zero, 1024, 2)


def test_a_word_of_sharding_that_no_one_knows_is_no_fsdp(tmp_path):
    run = "torchrun --nproc_per_node=8 own/train.py --model_name llama3-8b --seq_len 512 --batch_size 2 --bf16 "
    (tmp_path / "run.sh").write_text(f"{run}--sharding_strategy=spread\n")
    with pytest.raises(LackingError, match="how the job is sharded"):
        read_launch([tmp_path / "run.sh"], {}, {"gbs": 16})
    assert read_launch([tmp_path / "run.sh"], {}, {"gbs": 16, "zero": 2}).layout["zero"] == 2


@pytest.mark.parametrize(
    ("activation", "hidden", "ffn"), [("swiglu", 4096, 11008), ("swiglu", 1024, 2816), ("gelu", 4096, 16384)]
)
def test_mlps_of_no_stated_width_are_likely_as_wide_as_llamas_or_four_times(tmp_path, activation, hidden, ffn):
    """256 x ceil(8 x hidden / 3 / 256) where gated."""
    (tmp_path / "a.yaml").write_text((SIZES % (f", activation: {activation}", "", "")).replace("256", str(hidden)))
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "a.yaml"], {}, GIVEN)
    assert f"ffn={ffn}" in re.split("[,`]", str(caught.value))


LORA = "model_name: meta-llama/Llama-2-7b-hf\nbatch_size: 8\nseq_len: 2048\nprecision: bf16\nlora_r: 8\n"


@pytest.mark.parametrize(
    ("more", "tune"),
    [("quant: 4bit", "qlora"), ("model: {quant: 4bit}", "qlora"), ("eval: {quant: 4bit}", "lora"),
     ("inference: {quant: 4bit}", "lora")],
)  # fmt: skip
def test_words_for_quantised_weights_count_outside_of_what_does_not_train(tmp_path, more, tune):
    (tmp_path / "a.yaml").write_text(f"{LORA}{more}\n")
    assert read_launch([tmp_path / "a.yaml"], {}, GIVEN | {"lora_targets": "q,v"}).options["tune"] == tune


@pytest.mark.parametrize(("table", "tp", "gpus"), [("parallel", 2, 8), ("parallelism", 2, 8), ("shapes", None, None)])
def test_short_words_are_degrees_in_a_table_of_parallelism_alone(tmp_path, table, tp, gpus):
    degrees = "{tensor: 2, pipeline: 1, data: 4}"
    (tmp_path / "a.yaml").write_text(f"{LORA}{table}: {degrees}\n")
    given = {"zero": 0, "gbs": 64, "lora_targets": "q,v"} | ({} if gpus else {"gpus": 4})
    made = read_launch([tmp_path / "a.yaml"], {}, given)
    assert (made.layout.get("tp"), made.options.get("gpus")) == (tp, gpus)


@pytest.mark.parametrize(
    ("more", "gpus"),
    [("cluster: {total_gpus: 16, num_nodes: 2}", 16), ("world_size: 16\nnum_nodes: 2", 16),
     ("num_gpus: 8\nnum_nodes: 2", 16), ("num_gpus: 16\nnum_nodes: 2", None)],
)  # fmt: skip
def test_gpus_beside_nodes_are_those_of_each_unless_they_are_said_to_be_all(tmp_path, more, gpus):
    (tmp_path / "a.yaml").write_text(f"{LORA}{more}\n")
    given = {"zero": 0, "gbs": 64, "lora_targets": "q,v"}
    if gpus:
        assert read_launch([tmp_path / "a.yaml"], {}, given).options["gpus"] == gpus
    else:
        with pytest.raises(LackingError, match="16 GPUs are those of each of 2 nodes or of all"):
            read_launch([tmp_path / "a.yaml"], {}, given)
