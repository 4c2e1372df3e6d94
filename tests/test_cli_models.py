"""`gpuscale show models|show`: exit codes, stdout, stderr, JSON."""

import json

import pytest
from command import assert_one_message, gpuscale
from jobs import MODELS

from gpuscale.architecture.flops import forward_flops
from gpuscale.architecture.parameters import model_parameters
from gpuscale.presets.models import load_model


def test_list_is_one_line_per_model_within_100_columns():
    done = gpuscale("models", "list")
    lines, models = done.lines, MODELS
    assert (done.code, done.err) == (0, "")
    assert lines[0].startswith(f"{len(models)} models")
    assert max(map(len, lines)) <= 100
    for model in models:
        assert sum(line.split()[:1] == [model.name] for line in lines) == 1
    assert gpuscale("models", "list").out == done.out


def test_list_of_one_family():
    done = gpuscale("models", "list", "--family", "gpt-oss")
    assert done.code == 0
    assert [line.split()[0] for line in done.lines[4:6]] == ["gpt-oss-20b", "gpt-oss-120b"]


def test_list_as_json():
    done = gpuscale("models", "list", "--json")
    body = json.loads(done.out)
    assert (done.code, done.err, body["schema"]) == (0, "", "gpuscale.models/1")
    found = {entry["name"]: entry for entry in body["models"]}
    assert found["llama3-70b"]["params"] == 70_553_706_496
    assert found["deepseek-v3"]["moe_layers"] == 58
    assert found["llama4-maverick"]["ffn"] == 16384
    assert len(found) == len(MODELS)


@pytest.mark.parametrize("model", MODELS[::6], ids=lambda model: model.name)
def test_show_fits_100_columns(model):
    done = gpuscale("models", "show", model.name)
    assert (done.code, done.err) == (0, "")
    assert max(len(line.rstrip()) for line in done.lines) <= 100


def test_show_itemises_parameters_and_flops():
    done = gpuscale("models", "show", "llama3-70b", "--seq", "8192")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "Llama 3 70B: 70.6B parameters, 80 layers"
    for text in (
        "70,553,706,496",
        "56,371,445,760",
        "the same",
        "449.2265",
        "481.4348",
        "423.3222",
        "6N rule",
        "arXiv 2407.21783",
    ):
        assert text in done.out
    assert "causal attention" in done.out
    assert "full attention" in done.out


def test_show_as_json_sums_up():
    done = gpuscale("models", "show", "deepseek-v3", "--json", "--seq", "4096")
    body = json.loads(done.out)
    model = load_model("deepseek-v3")
    assert (done.code, body["schema"], body["model"]["name"]) == (0, "gpuscale.models/1", "deepseek-v3")
    items = dict(body["parameters"])
    mtp, total = items.pop("mtp_apart"), items.pop("total")
    assert sum(items.values()) == total == 671_026_404_352
    assert mtp == model_parameters(model).mtp
    for convention in ("causal", "full"):
        flops = body["flops_per_token"][convention]
        assert sum(flops["forward"].values()) == pytest.approx(flops["forward_total"], rel=1e-12)
        assert flops["training_total"] == 3 * float(forward_flops(model, 4096, convention).total)
    assert sum(kind["layers"] for kind in body["layer_kinds"]) == 61


def test_show_reads_a_config_json(tmp_path):
    config = {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "124,439,808" in gpuscale("models", "show", tmp_path).out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("show", "llama3-71b"), "llama3-70b"),
        (("show", "llama3-70b", "--seq", "0"), "out of range"),
        (("show", "llama3-70b", "--seq", "-5"), "out of range"),
        (("show", "llama3-70b", "--seq", "99999999999999999999"), "out of range"),
        (("show", "gpt3-175b", "--seq", "4096"), "learned positions"),
        (("show", "nowhere/config.json"), "no such file"),
        (("list", "--family", "lama3"), "llama3"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(arguments, text):
    done = gpuscale("models", *arguments)
    assert_one_message(done, "", "")
    assert text in done.err
