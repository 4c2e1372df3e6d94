"""`gpuscale models list|show`: exit codes, stdout, stderr, JSON."""

from __future__ import annotations

import json
import sys

import pytest

from gpuscale.architecture.flops import forward_flops
from gpuscale.architecture.parameters import model_parameters
from gpuscale.cli import main
from gpuscale.presets.models import all_models, load_model


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `gpuscale` with arguments; return exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscale", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
            sys.exit(0)
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return call


def test_list_is_one_line_per_model_within_100_columns(run):
    code, out, err = run("models", "list")
    lines = out.splitlines()
    models = all_models()
    assert (code, err) == (0, "")
    assert lines[0].startswith(f"{len(models)} models")
    assert max(map(len, lines)) <= 100
    for model in models:
        assert sum(line.split()[:1] == [model.name] for line in lines) == 1
    assert run("models", "list")[1] == out


def test_list_of_one_family(run):
    code, out, _ = run("models", "list", "--family", "gpt-oss")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[4:6]] == ["gpt-oss-20b", "gpt-oss-120b"]


def test_list_as_json(run):
    code, out, err = run("models", "list", "--json")
    body = json.loads(out)
    assert (code, err, body["schema"]) == (0, "", "gpuscale.models/1")
    found = {entry["name"]: entry for entry in body["models"]}
    assert found["llama3-70b"]["params"] == 70_553_706_496
    assert found["deepseek-v3"]["moe_layers"] == 58
    assert found["llama4-maverick"]["ffn"] == 16384
    assert len(found) == len(all_models())


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_show_fits_100_columns(run, model):
    code, out, err = run("models", "show", model.name)
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_show_itemises_parameters_and_flops(run):
    code, out, err = run("models", "show", "llama3-70b", "--seq", "8192")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "Llama 3 70B: 70.6B parameters, 80 layers"
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
        assert text in out
    assert "causal attention" in out
    assert "full attention" in out


def test_show_as_json_sums_up(run):
    code, out, _ = run("models", "show", "deepseek-v3", "--json", "--seq", "4096")
    body = json.loads(out)
    model = load_model("deepseek-v3")
    assert (code, body["schema"], body["model"]["name"]) == (0, "gpuscale.models/1", "deepseek-v3")
    items = dict(body["parameters"])
    mtp, total = items.pop("mtp_apart"), items.pop("total")
    assert sum(items.values()) == total == 671_026_404_352
    assert mtp == model_parameters(model).mtp
    for convention in ("causal", "full"):
        flops = body["flops_per_token"][convention]
        assert sum(flops["forward"].values()) == pytest.approx(flops["forward_total"], rel=1e-12)
        assert flops["training_total"] == 3 * float(forward_flops(model, 4096, convention).total)
    assert sum(kind["layers"] for kind in body["layer_kinds"]) == 61


def test_show_reads_a_config_json(run, tmp_path):
    config = {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, out, _ = run("models", "show", str(tmp_path))
    assert code == 0
    assert "124,439,808" in out


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
def test_bad_input_is_one_message_and_exit_2(run, arguments, text):
    code, out, err = run("models", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert text in err
    assert "Traceback" not in err
