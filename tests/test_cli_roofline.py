"""`gpuscale roofline` at the terminal."""

import json
import shutil
from pathlib import Path

import pytest
from command import gpuscale

PRESETS = Path(__file__).parents[1] / "presets" / "clusters"


def run(*arguments):
    return gpuscale("roofline", *arguments)


def test_default_compares_h100_b200_and_nvl72():
    done = run()
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("llama3-70b on dgx-h100-superpod in bf16: compute-bound from 2,47")
    for name in ("dgx-h100-superpod", "b200-hgx", "gb200-nvl72", "Y < F / 1,92", "Y < F / 2,18"):
        assert name in done.out


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_all_lines_fit_the_width(tmp_path, model, columns):
    name = "superpod-of-the-second-hall-with-two-to-one-oversubscription-of-its-spine-switches"
    own = shutil.copy(PRESETS / "dgx-h100-superpod-2to1.toml", tmp_path / f"{name}.toml")
    clusters = [part for one in (own, "leonardo", "gb200-nvl576", "tpu-v5p-pod") for part in ("--cluster", one)]
    done = gpuscale("roofline", "--model", model, *clusters, columns=columns)
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.lines)) <= columns
    assert "compute-bound from" in " ".join(done.lines[:4])


def test_mixture_of_experts_fills_in_its_experts():
    done = run("--model", "deepseek-v3", "--cluster", "dgx-h100-superpod-2to1", "--json")
    body = json.loads(done.out)
    assert body["schema"] == "gpuscale.roofline/1"
    assert (body["experts"], body["top_k"]) == (256, 8)
    leaf = body["clusters"][0]["levels"][1]
    assert leaf["moe_dp_tokens"] == pytest.approx(4944, rel=2e-3)
    assert leaf["fsdp_tokens"] == pytest.approx(2472, rel=2e-3)
    assert leaf["dp_tokens_without_sharp"] == pytest.approx(2 * leaf["dp_tokens"])


@pytest.mark.parametrize(
    "arguments", [["--precision", "bf61"], ["--precision", "fp4"], ["--model", "lama3-70b"], ["--cluster", "dgx-h10"]]
)
def test_bad_input_is_one_message(arguments):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "\n\nhint: " in done.err
    assert "Traceback" not in done.err


def test_a_level_of_one_gpu_has_no_thresholds():
    done = gpuscale("roofline", "--cluster", "gh200")
    assert (done.code, "inf" in done.out, "node" in done.out.split("Tensor")[0]) == (0, False, False)
    (found,) = json.loads(gpuscale("roofline", "--cluster", "gh200", "--json").out)["clusters"]
    assert [level["level"] for level in found["levels"]] == ["leaf", "spine"]
    assert found["levels"][0]["outer_dp_tokens"] is None
