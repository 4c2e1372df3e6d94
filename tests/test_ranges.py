"""Lists and ranges of numbers and names, and the values that a range stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import built, variants_of

from gpuscale.errors import InputError
from gpuscale.planning.variants import batch_sizes, gpu_counts, sequence_lengths
from gpuscale.presets.hardware import load_cluster
from gpuscale.request import MAX_VALUES, OVERLAPS, Range, overlap_name, overlap_of, parse_overlap, read_several
from gpuscale.units import parse_count

DGX = load_cluster("dgx-h100-superpod")


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (640, (640,)), ("640", (640,)), ("256,512", (256, 512)), (" 8 , 8,16", (8, 16)), ([8, "16"], (8, 16)),
        ("256..1024", Range(256, 1024)), ("8 .. 8", Range(8, 8)), ("-8", (-8,)), ((4,), (4,)),
    ],
)  # fmt: skip
def test_numbers(value, numbers):
    assert read_several("gpus", value) == numbers


@pytest.mark.parametrize(
    "value",
    [
        "", ",", "8,", "x", "8x", "8..", "..8", "8..x", "16..8", "1.5", "1e3", "٣", "8,x", None, True, 8.0, [], [True],
        [8.5], {8: 1}, "9" * 40, ",".join("8" * (MAX_VALUES + 1)), list(range(1, MAX_VALUES + 2)), "8" * 10**6,
    ],
)  # fmt: skip
def test_what_are_no_numbers(value):
    with pytest.raises(InputError) as caught:
        read_several("gpus", value)
    assert caught.value.field == "gpus"
    assert len(str(caught.value)) < 300


def test_names():
    assert read_several("precision", "bf16, FP8,bf16") == ("bf16", "fp8")
    assert read_several("cluster", ["a,b", "c"]) == ("a,b", "c")
    assert read_several("cluster", "my, cluster.toml") == ("my, cluster.toml",)  # a path may hold commas
    for name in ("framework", "precision"):
        for bad in ("", "a,,b", " ", 7, None, [], [7], ",".join("a" * 100), ["megatron-core"] * 65):
            with pytest.raises(InputError) as caught:
                read_several(name, bad)
            assert caught.value.field == name


def test_gpu_counts_of_a_range():
    assert gpu_counts(Range(256, 1024), DGX) == (256, 384, 512, 768, 1024)
    assert gpu_counts(Range(1, 32), DGX) == (1, 2, 4, 8, 16, 24, 32)
    assert gpu_counts(Range(600, 640), DGX) == (600, 640)  # the ends: 75 and 80 nodes
    assert gpu_counts(Range(250, 260), DGX) == (256,)
    trays = load_cluster("gb200-nvl72")
    assert gpu_counts(Range(64, 288), trays) == (64, 96, 128, 192, 256, 288)  # trays of 4
    assert gpu_counts(Range(1, 64), load_cluster("box-l40s-pcie")) == (1, 2, 4, 8)  # one box, which cannot grow
    for low, high in ((601, 607), (2**20 + 1, 2**21), (0, 0)):
        with pytest.raises(InputError, match="no GPU count"):
            gpu_counts(Range(low, high), DGX)


@given(st.integers(1, 2**20), st.integers(1, 2**20))
def test_gpu_counts_are_sorted_inside_the_range_and_few(one, other):
    low, high = sorted((one, other))
    try:
        counts = gpu_counts(Range(low, high), DGX)
    except InputError:
        assert high < 2 * low + 16  # from twice the low end on there is always one
        return
    assert list(counts) == sorted(set(counts))
    assert low <= counts[0] <= counts[-1] <= high
    assert len(counts) <= 42
    assert all(count in {1, 2, 4} or count % 8 == 0 for count in counts)


@given(st.integers(1, 4096), st.integers(1, 2**16), st.integers(1, 2**16))
def test_batches_of_a_range_split_over_most_of_the_gpus(gpus, one, other):
    low, high = sorted((one, other))
    sizes = batch_sizes(Range(low, high), gpus)
    assert list(sizes) == sorted(set(sizes))
    assert {low, high} <= set(sizes) <= set(range(low, high + 1))
    for size in set(sizes) - {low, high}:
        ratio = size / gpus
        assert any((ratio * 2**k / odd).is_integer() or (ratio / 2**k / odd) == 1 for k in range(20) for odd in (1, 3))
    inside = {gpus * odd * 2**k for odd in (1, 3) for k in range(20)} & set(range(low, high + 1))
    assert inside <= set(sizes)


def test_sequence_lengths_of_a_range():
    assert sequence_lengths(Range(4096, 16384)) == (4096, 8192, 16384)
    assert sequence_lengths(Range(4096, 10000)) == (4096, 8192, 10000)
    assert sequence_lengths(Range(4096, 4096)) == (4096,)


def test_listed_values_are_tried_as_they_are():
    variants, _ = variants_of("llama3-8b", "7,640", {"seq": "5,1"})
    assert [(one.choice["gpus"], one.choice["seq"]) for one in variants.tried] == [(7, 5), (7, 1), (640, 5), (640, 1)]


def test_no_range_holds_0():
    assert read_several("gbs", "0..8") == Range(1, 8)
    with pytest.raises(InputError, match=r"'0\.\.0' holds nothing above 0"):
        read_several("gbs", "0..0")


@pytest.mark.parametrize(
    ("text", "count"), [("15T", 15e12), ("1.5e12", 1.5e12), ("300B", 3e11), ("300g", 3e11), ("7", 7), (" 2 k ", 2000)]
)
def test_counts(text, count):
    assert parse_count(text, "train_tokens") == count


@pytest.mark.parametrize("text", ["", "T", "-1", "0", "nan", "1e99", "15TB", "1e18T", "9" * 100])
def test_what_are_no_counts(text):
    with pytest.raises(InputError):
        parse_count(text, "train_tokens")


@pytest.mark.parametrize("parts", [(), ("tp",), ("tp", "dp"), OVERLAPS])
def test_overlaps_round_trip(parts):
    assert parse_overlap(overlap_name(parts)) == parts
    for framework in ("megatron-core", "torchtitan"):
        assert overlap_of(built("llama3-8b", 8, framework=framework, overlap=overlap_name(parts)).spec.runtime) == parts


@pytest.mark.parametrize("text", ["", "tp+", "pp", "none+tp", "tp+tp", "tp,dp"])
def test_what_are_no_overlaps(text):
    with pytest.raises(InputError) as caught:
        parse_overlap(text)
    assert caught.value.field == "overlap"
