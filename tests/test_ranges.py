"""Lists and ranges of numbers and names, and the values that a range stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import built, variants_of

from gpuscale.errors import InputError
from gpuscale.planning.plans import plan
from gpuscale.planning.variants import MAX_COUNTS, batch_sizes, gpu_counts, sequence_lengths
from gpuscale.presets.hardware import load_cluster
from gpuscale.request import MAX_VALUES, OVERLAPS, Range, overlap_name, overlap_of, parse_overlap, read_several
from gpuscale.units import format_whole, parse_whole

DGX = load_cluster("dgx-h100-superpod")


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (640, (640,)), ("640", (640,)), ("256,512", (256, 512)), (" 8 , 8,16", (8, 16)), ([8, "16"], (8, 16)),
        ("256..1024", Range(256, 1024)), ("8 .. 8", Range(8, 8)), ("-8", (-8,)), ((4,), (4,)),
        ("1e3,2_048", (1000, 2048)),
    ],
)  # fmt: skip
def test_numbers(value, numbers):
    assert read_several("gpus", value) == numbers


@pytest.mark.parametrize(
    "value",
    [
        "", ",", "8,", "x", "8x", "8..", "..8", "8..x", "16..8", "1.5", "1e-3", "٣", "8,x", None, True, 8.0, [], [True],
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
        for bad in ("", "a,,b", " ", 7, None, [], [7], ",".join("a" * 100), ["megatron-lm"] * 65):
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
    assert gpu_counts(Range(1, 64), load_cluster("box-l40s")) == (1, 2, 4, 8)  # one box, which cannot grow
    for low, high in ((601, 607), (2**20 + 1, 2**21), (0, 0)):
        with pytest.raises(InputError, match="no GPU count"):
            gpu_counts(Range(low, high), DGX)


@given(st.integers(1, 2**20), st.integers(1, 2**20))
def test_gpu_counts_are_sorted_inside_the_range_and_few(one, other):
    low, high = sorted((one, other))
    try:
        counts = gpu_counts(Range(low, high), DGX)
    except InputError as error:  # from twice the low end on there is always one
        assert high < 2 * low + 16 or f"searches on {DGX.name}, at most {MAX_COUNTS}" in error.message
        return
    assert list(counts) == sorted(set(counts))
    assert low <= counts[0] <= counts[-1] <= high
    assert len(counts) <= MAX_COUNTS
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
    with pytest.raises(InputError, match=r"'0\.\.0' has no value above 0"):
        read_several("gbs", "0..0")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192),
        ("1e3", 1000),
        ("1_024", 1024),
        ("128k", 131_072),
        ("128Ki", 131_072),
        (" 1 Mi", 2**20),
        ("1.5m", 3 * 2**19),
        ("0", 0),
    ],
)
def test_numbers_with_a_unit_are_binary(text, number):
    assert parse_whole(text, "seq") == number
    assert parse_whole(format_whole(number), "seq") == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "0.1m", "1e-3", "128kb", "2G", "٣", "9" * 40, "1k k"])
def test_what_are_no_whole_numbers(text):
    with pytest.raises(InputError, match="not a whole number"):
        parse_whole(text, "seq")


def test_sequences_and_batches_in_words():
    assert read_several("seq", "8k, 32768,1Mi") == (8192, 32768, 2**20)
    assert read_several("seq", "8k..128k") == Range(8192, 131_072)
    assert read_several("gbs", "4Mtok,16mitok,16384ktokens,2k") == ("4Mtok", "16Mtok", 2048)
    assert read_several("gbs", "4Mtok..16Mtok") == Range(2**22, 2**24, tokens=True)
    assert batch_sizes(Range(2**22, 10 * 2**20, tokens=True), 96) == ("4Mtok", "8Mtok", "10Mtok")
    for name, bad in (("gbs", "4Mtok..1024"), ("gbs", "tok"), ("gbs", "0tok"), ("gbs", "4Gtok"), ("seq", "4Mtok")):
        with pytest.raises(InputError) as caught:
            read_several(name, bad)
        assert caught.value.field == name


@pytest.mark.parametrize("seq", [8192, "8192", "8k", "8Ki"])
@pytest.mark.parametrize("gbs", [2048, "2k", "16Mtok", "16777216 tokens"])
def test_words_and_numbers_make_the_same_job(seq, gbs):
    job = built("llama3-8b", 8, seq=seq, gbs=gbs)
    assert (job.request["seq"], job.request["gbs"]) == (job.spec.sequence, job.spec.global_batch_size) == (8192, 2048)


def test_tokens_that_are_no_whole_number_of_sequences_name_the_nearest_batches():
    for seq, gbs, hint in ((6000, "16Mtok", "`gbs=2796` or `gbs=2797`"), ("2M", "1Mtok", "the nearest is `gbs=1`")):
        with pytest.raises(InputError, match="not a whole number of sequences") as caught:
            built("llama3-8b", 8, seq=seq, gbs=gbs)
        assert caught.value.field == "gbs"
        assert hint in (caught.value.hint or "")
    with pytest.raises(InputError, match="at most 16,777,216"):
        built("llama3-8b", 8, seq=1, gbs="32Mtok")


def test_one_batch_in_tokens_is_another_number_of_sequences_at_each_length():
    variants, _ = variants_of("llama3-8b", 8, {"seq": "8k,6144", "gbs": "4Mtok,3Mtok"})
    sizes = [(one.choice["seq"], one.choice["gbs"]) for one in variants.tried]
    assert sizes == [(8192, 512), (8192, 384), (6144, 512)]
    assert variants.skipped[0].startswith("6144, 4Mtok: 4Mtok is 4,194,304 tokens, not a whole number")


@pytest.mark.parametrize("parts", [(), ("tp",), ("tp", "dp"), OVERLAPS])
def test_overlaps_round_trip(parts):
    assert parse_overlap(overlap_name(parts)) == parts
    for framework in ("megatron-lm", "torchtitan"):
        made = built("mixtral-8x7b", 8, framework=framework, overlap=overlap_name(parts))
        assert overlap_of(made.spec.runtime) == parts


@pytest.mark.parametrize("text", ["", "tp+", "pp", "none+tp", "tp+tp", "tp,dp"])
def test_what_are_no_overlaps(text):
    with pytest.raises(InputError) as caught:
        parse_overlap(text)
    assert caught.value.field == "overlap"


def test_two_spellings_of_a_job_are_one():
    twice = plan("llama3-8b", 64, gbs="1024,4Mtok", top=1)
    assert (twice.compared, twice.plans[0].global_batch_size) == (None, 1024)
    found = plan("llama3-8b", 64, gbs="1024,4Mtok,2Mtok", framework="nemo@2024-03,nemo@2024-06", top=1)
    assert len(found.compared.variants) == 2
