"""Models of rows that state sizes: what these leave open follows from name or parameters, is said, or asked back."""

import pytest
from command import gpuscale

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.models import load_model
from gpuscale.validation.measurements import Library, Row
from gpuscale.validation.runs import row_model

SIZES = {"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "11008", "vocab": "32000"}
PLAIN = {**SIZES, "ffn": "16384", "vocab": "50257"}


def read(name, **cells):
    row = {"framework": "deepspeed", "model": name, **cells}
    line, assumed = row_model(Row({key: value for key, value in row.items() if value}, "runs.csv:2"), Library())
    return load_model(line), "; ".join(assumed)


def gates(model):
    return {block.gated for kind in model.kinds for block in (kind.mlp, kind.moe) if block}


@pytest.mark.parametrize(
    ("name", "cells", "gated", "said"),
    [
        ("qwen-9b", SIZES, True, ""),  # as every generation of Qwen
        ("qwen1.5-9b", PLAIN, True, ""),
        ("llama2-34b", SIZES, True, ""),
        ("llama3-style-9b", PLAIN, True, ""),
        ("nemotron3-9b", SIZES, False, ""),  # squared ReLU
        ("gpt-9b", SIZES, False, ""),
        ("gpt-h4096-l32", PLAIN, False, ""),
        ("gpt-oss-9b", SIZES, True, ""),
        ("bloom-proto-9b", PLAIN, False, ""),
        ("ours-7b", {**SIZES, "params_b": "6.7"}, True, "gated MLP, from 6.7 B parameters"),
        ("ours-7b", {**PLAIN, "params_b": "6.7"}, False, "plain MLP, from 6.7 B parameters"),
        ("ours-9b", {**PLAIN, "params_b": "9.0"}, True, "gated MLP, from 9.0 B parameters"),
        ("gpt-7b", {**SIZES, "params_b": "6.7"}, True, "gated MLP, from 6.7 B parameters"),
        ("gpt-7b", {**PLAIN, "params_b": "7"}, False, ""),  # neither count is near: the name says it
        ("ours-7b", SIZES, True, "gated MLP, as it is not 4 x as wide as the model"),
        ("ours-7b", {**PLAIN, "gated": "off"}, False, ""),
        ("ours-7b", {**PLAIN, "gated": "on"}, True, ""),
        ("gpt-7b", {**SIZES, "gated": "on", "params_b": "5.3"}, True, ""),
        ("llama2-7b", {**SIZES, "gated": "off"}, False, ""),
        ("ours-moe", {**SIZES, "experts": "8", "topk": "2", "moe_ffn": "1408"}, True, "gated MLP, as it is not 4 x"),
        ("gpt-moe", {**SIZES, "experts": "8", "topk": "2", "moe_ffn": "1408"}, False, ""),
    ],
)
def test_whether_an_mlp_is_gated_follows_from_column_parameters_name_or_width(name, cells, gated, said):
    model, assumed = read(name, **cells)
    assert gates(model) == {gated}
    assert said in assumed
    assert ("MLP" in assumed) == bool(said)


@pytest.mark.parametrize("name", ["ours-7b", "x", "qwenny-7b"])
@pytest.mark.parametrize("framework", ["deepspeed", "llm-foundry", "megatron-lm", "pytorch"])
def test_a_row_that_leaves_the_gate_open_is_asked_back(name, framework):
    for cells in (PLAIN, {**PLAIN, "ffn": ""}, {**PLAIN, "experts": "8", "moe_ffn": "16384"}):
        with pytest.raises(InputError, match=f"is the MLP of '{name}' gated") as caught:
            read(name, framework=framework, **cells)
        assert "the column 'gated'" in caught.value.message


def test_parameters_that_both_kinds_of_mlp_have_decide_nothing():
    """Gated with tied embeddings and plain with two are 1.342 B parameters each; nanotron's sweep has the first."""
    sizes = {"layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "32", "ffn": "8192", "vocab": "131072"}
    with pytest.raises(InputError, match="gated"):
        read("ours-1b", **sizes, params_b="1.34")
    assert gates(read("nanotron-llama-1.34b", **sizes, params_b="1.34")[0]) == {True}


def test_parameters_that_are_near_no_count_or_near_both_decide_nothing():
    with pytest.raises(InputError, match="is the MLP of 'ours-7b' gated"):
        read("ours-7b", **PLAIN, params_b="7.15")  # 4 % from a plain MLP, 29 % from a gated one
    model, assumed = read("ours-7b", **SIZES, params_b="6.61")  # with tied embeddings; 1.9 % from two of them
    assert not model.tied_embeddings
    assert "embeddings apart, as most have it" in assumed


def test_positions_and_biases_are_those_of_the_family():
    for name, table, biased in (("gpt-9b", 1, 1), ("mpt-9b", 1, 0), ("bloom-9b", 0, 1), ("opt-9b", 1, 1)):
        model, _ = read(name, **PLAIN)
        assert (model.learned_positions > 0, model.kinds[0].norm_bias) == (table, biased), name


@pytest.mark.parametrize(
    ("name", "cells", "billions"),
    [
        ("qwen-7b", {**SIZES, "vocab": "151936"}, 7.721),
        ("ours-7b", {**SIZES, "params_b": "6.74"}, 6.738),
        ("gpt3-9b", PLAIN, 6.658),
        ("mpt-9b", PLAIN, 6.648),
        ("llama3-8b", {**SIZES, "kv_heads": "8", "ffn": "12288", "vocab": "128256"}, 7.225),
        ("ours-8b", {**SIZES, "layers": "", "params_b": "6.74", "gated": "on"}, 6.7),
        ("gpt-8b", {**PLAIN, "layers": "", "params_b": "6.66"}, 6.66),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_model(name, cells, billions):
    assert model_parameters(read(name, **cells)[0]).total / 1e9 == pytest.approx(billions, rel=0.012)


def test_what_else_sizes_leave_open_follows_from_the_family_or_is_said():
    model, assumed = read("ours-7b", **{**SIZES, "kv_heads": ""})
    assert "32 KV heads, as many as heads" in assumed
    assert "embeddings apart, as most have it" in assumed
    assert (model.tied_embeddings, model.learned_positions) == (False, 0)
    assert "KV heads" in read("llama3-9b", **{**SIZES, "kv_heads": ""})[1]  # which has groups
    assert "KV heads" not in read("gpt-9b", **{**PLAIN, "kv_heads": ""})[1]
    tied = {**SIZES, "layers": "8", "hidden": "1024", "heads": "16", "kv_heads": "16", "ffn": "2816", "vocab": "128256"}
    model, assumed = read("ours", **tied, params_b="0.234")
    assert model.tied_embeddings
    assert "tied embeddings, from 0.234 B parameters" in assumed
    assert read("llama2-34b", **{**SIZES, "vocab": ""})[0].vocab == 32000
    assert "vocabulary 32000" in read("llama2-34b", **{**SIZES, "vocab": ""})[1]
    assert "heads of 42" in read("ours-7b", **{**SIZES, "hidden": "2000", "heads": "47", "kv_heads": "47"})[1]


def test_a_preset_of_the_name_keeps_what_the_row_does_not_change():
    assert row_of("llama3.1-405b", kv_heads="16") == "llama3.1-405b,kv_heads=16"
    assert row_of("llama3-8b", ffn="12288", layers="4") == "llama3-8b,ffn=12288,layers=4"
    assert row_of("llama3-8b", ffn="14336", gated="on") == "llama3-8b"
    assert row_of("qwen3-30b-a3b", ffn="6144") == "qwen3-30b-a3b"  # of its experts the row says nothing else


def row_of(name, **cells):
    return row_model(Row({"framework": "megatron-lm", "model": name, **cells}, "runs.csv:2"), Library())[0]


def test_attention_that_sizes_do_not_describe_is_no_plain_one():
    with pytest.raises(InputError, match="attention that heads and widths alone do not describe"):
        read("deepseek-v3", **SIZES)


def test_validate_says_how_to_answer(tmp_path):
    file = tmp_path / "runs.csv"
    names = ("framework", "gpu", "gpus", "model", "precision", "gbs", "seq", "tp", "step_s", *PLAIN)
    cells = ("deepspeed", "h100-sxm-80gb", "8", "ours-7b", "bf16", "64", "2048", "2", "3", *PLAIN.values())
    file.write_text(
        f"id,{','.join(names)},gated\na-1,{','.join(cells)},\na-2,{','.join(cells)},off\n", encoding="utf-8"
    )
    done = gpuscale("validate", file, "--json")
    assert done.code == 0
    assert "is the MLP of 'ours-7b' gated? Say so in the column 'gated', or give its 'params_b'" in done.out
    assert '"status": "ok-defaults"' in done.out
    file.write_text(file.read_text(encoding="utf-8").replace(",off", ",maybe"), encoding="utf-8")
    assert "gated 'maybe' is none of on, off" in " ".join(gpuscale("validate", file).out.split())
