"""Candidates as arrays, what a user may pin, and the enumeration of the space."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job, legal

from gpuscale.choices import MAX_DEGREE
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import (
    FIELDS,
    RECOMPUTE_MODULES,
    Candidates,
    combined_key,
    concatenate,
    single,
    unique_rows,
)
from gpuscale.layouts.pins import Pin, Pins, Recompute, parse_pin, parse_recompute, recompute_text
from gpuscale.layouts.space import divisors, micro_batch_sizes, recomputed, shapes, sharded, ways_to_recompute
from gpuscale.planning.layouts import make_pins
from gpuscale.request import parse_layout

NAMES = list(FIELDS)
ONE = dict.fromkeys(NAMES, 1)


def table(**columns):
    count = len(next(iter(columns.values())))
    return Candidates(**{name: np.array(columns.get(name, [1] * count), dtype=np.int64) for name in NAMES})


def test_rows_stack_and_come_back():
    both = concatenate([single(**ONE), single(**{**ONE, "tp": 8, "sp": 0})])
    assert len(both) == 2
    assert both.row(0) == ONE
    assert both.take(np.array([False, True])).row(0) == {**ONE, "tp": 8, "sp": 0}
    assert both.sequence_split.tolist() == [1, 1]
    assert table(tp=[8], sp=[1]).sequence_split.tolist() == [8]


@given(
    st.lists(
        st.tuples(*(st.sampled_from([1, 2, 3, 64, MAX_DEGREE - 1, MAX_DEGREE]) for _ in range(5))),
        min_size=1,
        max_size=12,
    )
)
def test_keys_are_equal_exactly_where_fields_are_and_order_as_they_do(rows):
    """Five degrees up to 2^20 make 2^100 combinations: more than an integer holds."""
    names = ("tp", "pp", "cp", "dp", "shard")
    candidates = table(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    keys = combined_key(candidates, names).tolist()
    for row, key in zip(rows, keys, strict=True):
        for other, other_key in zip(rows, keys, strict=True):
            assert (key < other_key) == (row < other)
            assert (key == other_key) == (row == other)
    distinct, back = unique_rows(candidates, names)
    assert len(distinct) == len(set(rows))
    for name in names:
        assert (getattr(distinct, name)[back] == getattr(candidates, name)).all()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("8", {8}), ("4..8", {4, 5, 6, 7, 8}), ("..2", {0, 1, 2}), ("14..", {14, 15, 16}), ("1,2,4", {1, 2, 4}),
        ("!16", set(range(16))), ("!2..15", {0, 1, 16}), ("4..8,!6", {4, 5, 7, 8}), (" 1 , 3 ", {1, 3}),
    ],
)  # fmt: skip
def test_pins_allow_what_they_say(text, allowed):
    values = np.arange(17)
    assert set(values[parse_pin(text, "tp").allows(values)].tolist()) == allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "8..4",
        "1..2..3",
        "-1",
        "1.5",
        "!",
        "..",
        "1,,2",
        "9999999999",
        "1048577",
        "²",
        "8 16",
        "1e3",
        "1," * 80 + "2",
    ],
)
def test_what_is_no_set_of_values_is_refused(text):
    with pytest.raises(InputError) as caught:
        parse_pin(text, "tp")
    assert caught.value.field == "tp"
    assert caught.value.hint


def test_a_pin_of_one_value_says_which():
    assert parse_pin("8", "tp").single() == 8
    assert parse_pin("4..8", "tp").single() is None
    assert Pin().single() is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("none", Recompute()), ("full", Recompute(quarters=4)), ("full:10", Recompute(layers=10)),
        ("selective", Recompute(modules=RECOMPUTE_MODULES["core_attn"])), ("full 10", Recompute(layers=10)),
        ("norm+mlp", Recompute(modules=RECOMPUTE_MODULES["mlp"] | RECOMPUTE_MODULES["layernorm"])),
        ("SELECTIVE:mlp+layernorm", Recompute(modules=RECOMPUTE_MODULES["mlp"] | RECOMPUTE_MODULES["layernorm"])),
    ],
)  # fmt: skip
def test_recomputation_is_parsed(text, meant):
    assert parse_recompute(text) == meant


@pytest.mark.parametrize(
    "text", ["", "nothing", "none:1", "full:0", "full:x", "full:10001", "selective:nrm", "nrm+act", "full:²"]
)
def test_what_is_no_recomputation_is_refused(text):
    with pytest.raises(InputError):
        parse_recompute(text)


@given(st.integers(0, 2 ** len(RECOMPUTE_MODULES) - 1), st.integers(0, 10_000))
def test_recomputation_reads_back_what_it_writes(modules, layers):
    choice = parse_recompute(recompute_text(0 if layers else modules, layers))
    assert (choice.modules, choice.layers, choice.quarters) == (0 if layers else modules, layers, 0)


@pytest.mark.parametrize(
    ("pins", "hint"),
    [({"zero": 4}, "ZeRO stages are 0, 1"), ({"zero": "4,!3"}, "ZeRO"), ({"sp": "maybe"}, "on or off"),
     ({"sp": 2}, "off"), ({"tp": 0}, "from 1 to"), ({"vpp": "0..0"}, "from 1 to"),
     ({"micro_batch_size": "0"}, "from 1 to")],
)  # fmt: skip
def test_pins_of_values_that_no_layout_has_are_refused(pins, hint):
    with pytest.raises(InputError) as caught:
        make_pins(pins)
    assert hint in caught.value.hint
    assert caught.value.field == next(iter(pins))


PINS = st.lists(st.tuples(st.sampled_from(["", "!"]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4)


@given(PINS, PINS)
def test_narrowed_pins_allow_what_both_do(one, other):
    first, second = (
        parse_pin(",".join(f"{no}{min(low, high)}..{max(low, high)}" for no, low, high in items), "tp")
        for items in (one, other)
    )
    values = np.arange(12)
    assert (first.narrowed(second).allows(values) == (first.allows(values) & second.allows(values))).all()
    both = Pins({"tp": first}).narrowed(Pins({"tp": second, "pp": second}))
    assert (both.allows("tp", values) == (first.allows(values) & second.allows(values))).all()
    assert (both.allows("pp", values) == second.allows(values)).all()


def test_narrowed_pins_try_the_ways_to_recompute_that_both_do():
    none, full = Recompute(), Recompute(quarters=4)
    assert Pins(recompute=(none, full)).narrowed(Pins(recompute=(full,))).recompute == (full,)
    assert Pins().narrowed(Pins(recompute=(full,))).recompute == (full,)
    assert Pins(recompute=(none,)).narrowed(Pins()).recompute == (none,)
    assert Pins(recompute=(none,)).narrowed(Pins(recompute=(full,))).recompute == ()


def test_a_microbatch_that_is_left_out_is_not_tried():
    assert micro_batch_sizes(job("llama3-8b", 64), make_pins({"micro_batch_size": "2,!2"})).tolist() == []


@pytest.mark.parametrize(
    "pins", [{"warp": 8}, {"tp": "x"}, {"sp": "maybe"}, {"recompute": ""}, {"tp": None}, {"dp": 2**21}, {"pp": -1}]
)
def test_unusable_pins_are_refused(pins):
    with pytest.raises(InputError):
        make_pins(pins)


@pytest.mark.parametrize(("given_as", "bit"), [("on", 1), ("off", 0), (True, 1), (False, 0), ("1", 1), (0, 0)])
def test_sequence_parallelism_is_pinned_on_or_off(given_as, bit):
    assert make_pins({"sp": given_as}).degrees["sp"].single() == bit


@pytest.mark.parametrize("text", ["", "tp", "tp=", "tp=4,tp=8", "warp=1", ",", "=4"])
def test_unusable_layouts_are_refused(text):
    with pytest.raises(InputError) as caught:
        parse_layout(text, "why")
    assert caught.value.field == "why"


def test_layouts_take_short_names():
    assert parse_layout("TP=4, pp=8,mbs=2 vp=3", "why") == {"tp": "4", "pp": "8", "micro_batch_size": "2", "vpp": "3"}


@given(st.integers(1, 2**20))
def test_divisors_divide_and_none_is_missing(number):
    found = divisors(number).tolist()
    assert found == sorted(set(found))
    assert all(number % value == 0 for value in found)
    assert {number // value for value in found} == set(found)
    if number < 3000:
        assert found == [value for value in range(1, number + 1) if number % value == 0]


def test_shapes_are_all_factorisations_once():
    rows = shapes(job("llama3-8b", 24), make_pins({}))
    found = list(zip(rows.tp.tolist(), rows.pp.tolist(), rows.cp.tolist(), rows.dp.tolist(), strict=True))
    every = [
        (tp, pp, cp, 24 // tp // pp // cp)
        for tp in range(1, 25)
        for pp in range(1, 25)
        for cp in range(1, 25)
        if 24 % (tp * pp * cp) == 0
    ]
    assert sorted(found) == every


@pytest.mark.parametrize(
    ("model", "gpus", "pins"),
    [("llama3-8b", 64, {}), ("mixtral-8x7b", 32, {"micro_batch_size": "1,2"}), ("deepseek-v2-lite", 16, {"pp": "1,2"})],
)
def test_the_space_holds_every_candidate_once_and_multiplies_to_the_gpus(model, gpus, pins):
    rows, spec = legal(model, gpus, pins), job(model, gpus)
    keys = np.stack([getattr(rows, name) for name in NAMES])
    assert np.unique(keys, axis=1).shape[1] == len(rows)
    assert (rows.tp * rows.pp * rows.cp * rows.dp == gpus).all()
    assert (rows.dp * rows.micro_batch_size * rows.num_microbatches == spec.global_batch_size).all()
    assert ((rows.expert_dp * rows.ep * rows.etp) == rows.tp * rows.cp * rows.dp).all()
    assert (rows.sp[rows.tp == 1] == 0).all()
    assert (rows.shard[rows.zero == 0] == 1).all()
    assert ((rows.recompute_modules == 0) | (rows.recompute_layers == 0)).all()
    assert set(rows.zero.tolist()) == {0, 1, 2, 3}
    if spec.model.is_moe:
        assert set(rows.etp.tolist()) > {1}
        assert set(rows.ep.tolist()) >= {1, 2, 4, 8}


def test_pins_keep_exactly_what_they_allow():
    everything = legal("llama3-8b", 64)
    keep = (everything.tp == 2) & (everything.pp >= 2) & (everything.zero != 0) & (everything.micro_batch_size <= 2)
    pinned = legal("llama3-8b", 64, {"tp": 2, "pp": "2..", "zero": "!0", "micro_batch_size": "1,2"})
    assert len(pinned) == np.count_nonzero(keep)
    for name in NAMES:
        assert np.sort(getattr(pinned, name)).tolist() == np.sort(getattr(everything, name)[keep]).tolist()


def test_hybrid_shards_fill_a_network_level_and_stay_below_full_sharding():
    spec = job("llama3-8b", 512)
    rows = sharded(spec, make_pins({}), shapes(spec, make_pins({"pp": 1, "tp": "1,4", "cp": 1}))).listed()
    hybrid = rows.take((rows.zero == 3) & (rows.shard < rows.dp * rows.cp))
    assert set(zip(hybrid.tp.tolist(), hybrid.shard.tolist(), strict=True)) == {(1, 8), (1, 256), (4, 2), (4, 64)}
    assert (
        rows.shard[(rows.zero == 1) | (rows.zero == 2)] == (rows.dp * rows.cp)[rows.zero.clip(1, 2) == rows.zero]
    ).all()


def test_microbatches_divide_the_batch_unless_one_is_named():
    spec = replace(job("llama3-8b", 8), global_batch_size=96)
    assert micro_batch_sizes(spec, make_pins({})).tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert micro_batch_sizes(spec, make_pins({"micro_batch_size": "2..6"})).tolist() == [2, 3, 4, 6]
    assert micro_batch_sizes(spec, make_pins({"micro_batch_size": "5,96"})).tolist() == [5, 96]


@pytest.mark.parametrize("pp", [1, 8, 16, 32])
@pytest.mark.parametrize("text", [None, "none,full", "full", "full:2,full"])
def test_full_recomputation_of_all_layers_is_always_among_the_choices(pp, text):
    """Stages of 32, 4, 2 and 1 layers: quarters that round to the same number of layers are tried once."""
    spec, choices = job("llama3-8b", 32), {} if text is None else {"recompute": text}
    base = single(**{**ONE, "pp": pp, "recompute_modules": 0, "recompute_layers": 0})
    rows = recomputed(spec, make_pins(choices), base).listed()
    pairs = list(zip(rows.recompute_modules.tolist(), rows.recompute_layers.tolist(), strict=True))
    assert (0, 32 // pp) in pairs
    assert len(set(pairs)) == len(pairs)
    if not choices:
        assert len(pairs) == len(ways_to_recompute(spec, make_pins({}))) - 4 + min(4, 32 // pp)


def test_no_candidate_is_offered_twice():
    rows = legal("llama3-8b", 16, {"tp": "1,2", "pp": "1,2", "vpp": "1", "micro_batch_size": "1"}, framework="generic")
    listed = [tuple(rows.row(index).items()) for index in range(len(rows))]
    assert len(set(listed)) == len(listed)
