"""Lengths of samples: distributions kept as quantiles, what padding and packing make of them."""

import numpy as np
import pytest
from jobs import job, seconds

import gpuscale
from gpuscale.errors import InputError
from gpuscale.render.plan_texts import fine_tuning_lines
from gpuscale.specs.lengths import lengths_of, read_lengths
from gpuscale.units import format_duration


def test_a_distribution_is_kept_as_quantiles_that_read_back_as_themselves(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, range(1000, 0, -1))), encoding="utf-8")
    text = read_lengths(str(path))
    assert read_lengths(text) == text
    found = lengths_of(text, 4096, packed=False)
    assert found.mean == pytest.approx(500.5, rel=0.01)
    assert lengths_of(text, 300, packed=False).tokens[-1] == 300
    usual = lengths_of(read_lengths("lognormal:300:0.5"), 4096, packed=False)
    assert usual.mean == pytest.approx(300 * np.exp(0.125), rel=0.03)


def test_padding_grows_from_the_mean_to_the_longest():
    found = lengths_of(read_lengths(",".join(map(str, range(1, 1001)))), 4096, packed=False)
    longest = [found.longest_of(count) for count in (1, 2, 4, 10_000)]
    assert longest[0] == pytest.approx(found.mean)
    assert longest[1] == pytest.approx(2 / 3 * 1000, rel=0.03)  # of uniform ones: n / (n + 1)
    assert longest[2] == pytest.approx(4 / 5 * 1000, rel=0.03)
    assert longest[3] == found.tokens[-1]


def test_packed_samples_attend_to_themselves_alone():
    packed, whole = (
        seconds(job("llama3-8b", 1, tune="lora", framework="megatron-lm", seq=2048, **more))
        for more in ({"lengths": "256", "packing": True}, {})
    )
    assert packed["attention"] < whole["attention"] / 2
    assert packed["gemm"] == whole["gemm"]
    assert job("llama3-8b", 1, seq=2048, lengths="256", packing=True).attended_sequence == 256
    assert (
        job("llama3-8b", 1, seq=2048, lengths="256").attended_sequence == 2048
    )  # padded: counted whole, less in the first line


@pytest.mark.parametrize(("options", "took"), [({"packing": True}, "packed"), ({}, "padded to 512")])
def test_the_first_line_says_what_samples_take(options, took):
    found = gpuscale.estimate(
        model="llama3-8b", gpus=1, tune="lora", seq=2048, gbs=8, lengths="512", layout={"recompute": "full"}, **options
    )
    (line,) = fine_tuning_lines(found.plan, found.job)
    assert line.endswith(f"10,000 samples of 512 tokens, {took}")
    assert format_duration(10_000 / 8 / 4 * found.plan.step_time_s) in line


@pytest.mark.parametrize("text", ["lognormal:300", "lognormal:0:1", "0", "12,99999999999", "nowhere.txt"])
def test_lengths_that_cannot_be_are_refused(text):
    with pytest.raises(InputError):
        read_lengths(text)
