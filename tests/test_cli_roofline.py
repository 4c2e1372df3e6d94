"""`gpuscale roofline` at the terminal."""

import json

import pytest
from command import gpuscale


def run(*arguments):
    return gpuscale("roofline", *arguments)


def test_default_compares_h100_b200_and_nvl72():
    done = run()
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("llama3-70b on dgx-h100-superpod in bf16: compute-bound from 2,47")
    for name in ("dgx-h100-superpod", "b200-hgx", "gb200-nvl72", "Y < F / 1,92", "Y < F / 2,18"):
        assert name in done.out
    assert all(len(line) <= 100 for line in lines[2:] if "─" in line)


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
    "arguments",
    [["--precision", "bf61"], ["--precision", "fp4"], ["--model", "lama3-70b"], ["--cluster", "dgx-h10"]],
)
def test_bad_input_is_one_message(arguments):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "\n\nhint: " in done.err
    assert "Traceback" not in done.err
