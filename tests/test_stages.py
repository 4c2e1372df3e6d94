"""Layers on pipeline stages, and that the priced stages bound all of them."""

import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job, legal, sample

from gpuscale import estimate, plan
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, ZB_V
from gpuscale.layouts.stages import (
    FIRST,
    LAST,
    MIDDLE,
    StageTable,
    chunk_counts,
    chunk_sizes,
    pipeline_layout,
    share_of_end,
    splits_evenly_enough,
    stage_table,
    starts_dense,
    tapered_sizes,
)
from gpuscale.memory.model import evaluate_memory
from gpuscale.memory.states import stage_parameters
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.step import step_time

MODELS = ("llama3-70b", "deepseek-v3", "gpt-oss-120b", "gemma3-27b", "llama4-maverick", "glm-4.5")
PAIRS = [(1, 1), (2, 1), (2, 4), (4, 1), (4, 5), (7, 1), (8, 3), (16, 1), (16, 2), (20, 2), (32, 1)]


@given(st.integers(1, 200), st.integers(1, 60))
def test_chunks_hold_all_layers_and_differ_by_one_at_most(layers, chunks):
    sizes = chunk_sizes(layers, chunks)
    assert sizes.sum() == layers
    assert len(sizes) == chunks
    assert sizes.max() - sizes.min() <= 1
    assert sizes[-1] <= sizes[0] <= sizes[1:-1].max(initial=sizes[0])  # head and embedding lighten their chunks
    if splits_evenly_enough(layers, chunks):
        assert (sizes[1:-1] >= 1).all()


@pytest.mark.parametrize(
    ("layers", "chunks", "first", "last"),
    [(61, 4, 16, 13), (61, 8, 8, 5), (61, 16, 4, 1), (61, 32, 1, 0), (27, 2, 14, 13), (27, 4, 7, 6)],
)
def test_tapered_chunks_are_those_of_the_published_layouts(layers, chunks, first, last):
    sizes = tapered_sizes(layers, chunks)  # Megatron-Bridge, map_pp_vp_to_layout of DeepSeek-V3, Kimi K2, Moonlight
    assert (sizes[0], sizes[-1], sizes.sum(), len(sizes)) == (first, last, layers, chunks)
    assert set(sizes[1:-1].tolist()) <= {-(-layers // chunks)}


@given(st.integers(1, 200), st.integers(1, 60))
def test_tapered_chunks_hold_all_layers_and_are_even_where_tapering_does_not_reach(layers, chunks):
    sizes = tapered_sizes(layers, chunks)
    assert sizes.sum() == layers
    assert (sizes >= 0).all()
    assert sizes.max() == -(-layers // chunks)


def test_only_models_that_start_dense_are_tapered_and_prediction_modules_come_on_top():
    assert [starts_dense(load_model(name)) for name in MODELS] == [False, True, False, False, False, True]
    model = load_model("deepseek-v3")
    even, tapered = (stage_table(model, [(16, 1)], split).counts[0].sum(axis=1) for split in ("even", "tapered"))
    assert even[[FIRST, LAST, MIDDLE]].tolist() == [3, 3, 4]
    assert tapered[[FIRST, LAST, MIDDLE]].tolist() == [4, 2, 4]  # one layer and the module on the last stage
    dense = load_model("llama3-70b")
    assert (stage_table(dense, PAIRS, "tapered").counts == stage_table(dense, PAIRS).counts).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("pp", "vpp"), PAIRS)
def test_every_layer_is_on_one_stage_and_chunks_go_round(name, pp, vpp):
    model = load_model(name)
    counts = chunk_counts(model.trained_pattern, len(model.trained_kinds), pp, vpp).sum(axis=0)
    assert counts.sum(axis=0).tolist() == list(model.trained_counts)
    by_hand = np.zeros_like(counts)  # layer after layer into chunk after chunk, chunk c on rank c mod pp
    layer = 0
    for chunk, size in enumerate(chunk_sizes(len(model.trained_pattern), pp * vpp)):
        for kind in model.trained_pattern[layer : layer + size]:
            by_hand[chunk % pp, kind] += 1
        layer += size
    assert (counts == by_hand).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_that_is_left_out_is_no_match_for_an_earlier_one_that_is_priced(name):
    model = load_model(name)
    pairs = [pair for pair in PAIRS if splits_evenly_enough(model.layers, pair[0] * pair[1])]
    table = stage_table(model, pairs)
    for row, (pp, vpp) in enumerate(pairs):
        counts, position = table.counts[row], table.position[row]
        every = chunk_counts(model.trained_pattern, len(model.trained_kinds), pp, vpp).sum(axis=0)
        assert (counts == every[position]).all()
        assert (position[FIRST], position[LAST]) == (0, pp - 1)
        for stage in range(1, pp - 1):
            earlier = position[MIDDLE:] <= stage
            assert (earlier & (counts[MIDDLE:] >= every[stage]).all(axis=1)).any()


def expanded(layout):
    """What Megatron-LM reads: commas mean nothing, brackets are unrolled before letters, bars end chunks."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


@given(
    st.sampled_from(("llama3-70b", "llama3.1-405b", "deepseek-v3", "kimi-k2", "gemma3-27b", "glm-4.5")),
    st.integers(1, 24),
    st.integers(1, 9),
    st.sampled_from(("even", "tapered", "cost")),
)
def test_a_pipeline_layout_has_the_layers_of_every_chunk_that_are_evaluated(name, pp, vpp, split):
    model, vpp = load_model(name), 1 if pp == 1 else vpp
    layout, chunks = pipeline_layout(model, pp, vpp, split), pp * vpp
    by_itself = ["t" * (model.layers // chunks)] * chunks  # as Megatron-LM deals out what divides
    by_itself[-1] += "m" * model.mtp_depth
    if layout is None:
        found = by_itself
        assert pp == 1 or model.layers % chunks == 0
    else:
        found = expanded(layout)
        assert len(found) == chunks
        assert (found[0][0], found[-1][-1]) == ("E", "L")
        found = [chunk.strip("EL") for chunk in found]
        assert found != by_itself
    letters = "".join(found)
    assert letters == "t" * model.layers + "m" * model.mtp_depth
    layer, by_stage = 0, np.zeros((pp, len(model.trained_kinds)), dtype=int)
    for chunk, held in enumerate(found):
        for kind in model.trained_pattern[layer : layer + len(held)]:
            by_stage[chunk % pp, kind] += 1
        layer += len(held)
    table = stage_table(model, [(pp, vpp)], split)
    assert (table.counts[0] == by_stage[table.position[0]]).all()


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "layout"),
    [
        ("deepseek-v3", 16, 1, "Et*4|(t*4|)*14,tmL"), ("deepseek-v3", 4, 1, "Et*16|(t*16|)*2,t*13mL"),
        ("kimi-k2", 16, 2, "Et|(tt|)*30,L"), ("llama3.1-405b", 8, 8, "Et|(tt|)*62,tL"), ("llama3-70b", 16, 5, None),
        ("llama3-70b", 3, 1, "Et*27|t*27|t*26L"), ("nemotron-3-super", 3, 1, None),
    ],
)  # fmt: skip
def test_pipeline_layouts_as_they_are_written(name, pp, vpp, layout):
    assert pipeline_layout(load_model(name), pp, vpp, "tapered") == layout


def test_a_plan_says_its_pipeline_layout_where_megatron_needs_one():
    layout = {"tp": 8, "pp": 8, "vpp": 8, "cp": 2}
    assert estimate("llama3.1-405b", 1024, layout).plan.pipeline_layout == "Et|(tt|)*62,tL"
    assert estimate("llama3.1-405b", 1024, {**layout, "vpp": 1}, framework="generic").plan.pipeline_layout is None
    assert estimate("llama3-70b", 64, {"tp": 8, "pp": 4}).plan.pipeline_layout is None
    asked = ",".join(f"{name}={degree}" for name, degree in layout.items())
    assert plan("llama3.1-405b", 1024, pins=layout, top=1, why=asked).why.plan.pipeline_layout == "Et|(tt|)*62,tL"


def test_a_model_of_equal_layers_needs_one_middle_stage():
    table = stage_table(load_model("llama3-70b"), PAIRS)
    assert table.counts.shape == (len(PAIRS), 3, 1)


@cache
def whole_pipeline(name, pp, vpp):
    """All stages of a pipeline as if each were priced."""
    model = load_model(name)
    order = [0, pp - 1, *range(1, pp - 1)]
    tail = len(model.trained_pattern) - model.layers if starts_dense(model) else None
    counts = chunk_counts(model.trained_pattern, len(model.trained_kinds), pp, vpp, tail=tail).sum(axis=0)
    return StageTable(counts[None, order], np.array([order]))


@pytest.mark.parametrize(
    ("name", "gpus", "options", "pins"),
    [
        ("llama3-70b", 80, {}, {"micro_batch_size": "1,4", "pp": "4..20"}),
        ("deepseek-v3", 640, {}, {"micro_batch_size": 1, "ep": "32,64", "pp": "8..32", "recompute": "none,full:2"}),
        ("deepseek-v3", 640, {"seq": 32768, "gbs": 640}, {"micro_batch_size": 1, "ep": 64, "pp": "8..32", "tp": 2}),
        ("gemma3-27b", 96, {"seq": 65536, "gbs": 96}, {"micro_batch_size": 1, "pp": "4..32"}),
        ("gpt-oss-120b", 36, {"seq": 32768, "gbs": 36}, {"micro_batch_size": 1, "pp": "3..36"}),
        ("llama4-scout", 80, {"seq": 65536, "gbs": 80}, {"micro_batch_size": 1, "pp": "4..20", "ep": "1,4"}),
    ],
)
def test_the_priced_stages_bound_memory_and_time_of_all_stages(name, gpus, options, pins):
    spec = job(name, gpus, **options)
    candidates = legal(name, gpus, pins, **options)
    candidates = sample(candidates.take(candidates.pp > 2), 10)
    evaluation = evaluate(candidates, spec)
    peak, slowest = evaluation.memory.peak_bytes, slowest_stage_s(evaluation.step, candidates)
    checked = 0
    for index in range(len(candidates)):
        one, row = candidates.take(np.array([index])), np.zeros(1, dtype=np.intp)
        stages = whole_pipeline(name, int(one.pp[0]), int(one.vpp[0]))
        parameters = stage_parameters(one, spec, stages, row)
        assert evaluate_memory(one, spec, stages, row, parameters).peak_bytes[0] == pytest.approx(
            peak[index], rel=1e-12
        )
        step = step_time(one, spec, stages, row, parameters)
        assert slowest_stage_s(step, one)[0] == pytest.approx(slowest[index], rel=1e-9)
        checked += 1
    assert checked >= 8


def slowest_stage_s(step, candidates):
    """All microbatches on the slowest stage."""
    return step.step_time_s - sum(step.beside.values())


@pytest.mark.parametrize(
    "options", [{}, {"unfold": True}, pytest.param({"risk": 0.9}, marks=pytest.mark.full), {"why": "tp=4"}]
)
@pytest.mark.parametrize("zero", ["0", "0,1"])
def test_few_candidates_in_several_parts_are_a_plan(options, zero):
    pins = {"tp": 4, "micro_batch_size": "1,2", "recompute": "selective,full:1", "zero": zero}
    found = plan("llama3-8b", 4, gbs=16, pins=pins, **options)
    assert found.plans
    one = plan("llama3-8b", 4, gbs=16, pins={**pins, "micro_batch_size": 1, "recompute": "none,full"}, **options)
    assert one.plans


def test_ranks_of_dualpipe_run_half_of_two_stages_and_of_what_is_at_both_ends():
    model = load_model("deepseek-v3")
    plain, folded = (stage_table(model, [(16, 1)], "tapered", [code]) for code in (ONE_F_ONE_B, DUALPIPE))
    ends = (plain.counts[0, FIRST] + plain.counts[0, LAST]) / 2
    assert (folded.counts[0, [FIRST, LAST]] == ends).all()
    assert (folded.weights == 2 * folded.counts).all()
    spec = job("llama3-8b", 16, gbs=64)
    names = ("1f1b", "dualpipe", "zb-v")
    rows = [fixed_layout(spec, {"pp": 16, "schedule": name, "vpp": 1 + (name == "zb-v")}) for name in names]
    shares = [
        [[share_of_end(c, end, at).item() for c in rows] for at in (FIRST, LAST, MIDDLE)] for end in (FIRST, LAST)
    ]
    assert shares[0] == [[1, 0.5, 1], [0, 0.5, 0], [0, 0, 0]]
    assert shares[1] == [[0, 0.5, 1], [1, 0.5, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("code", "pair", "holding", "copies"),
    [
        (ONE_F_ONE_B, (4, 1), [LAST], 1),
        (ZB_V, (4, 2), [FIRST], 1),
        (DUALPIPE, (4, 1), [FIRST, LAST], 2),
        (DUALPIPE, (2, 1), [FIRST, LAST, MIDDLE], 2),
    ],
)
def test_prediction_modules_that_share_weights_hold_them_once_wherever_the_last_layers_run(code, pair, holding, copies):
    model = load_model("nemotron-3-super")  # two modules of two layers
    table = stage_table(model, [pair], "even", [code])
    less = (copies * table.counts - table.weights)[0].sum(axis=-1)
    assert [place for place, layers in enumerate(less) if layers] == holding
    assert set(less[holding]) == {2}


def test_a_tapered_split_deals_out_all_layers_and_leaves_the_first_chunk_some():
    for layers in range(1, 70):
        for chunks in range(1, layers + 1):
            sizes = tapered_sizes(layers, chunks)
            assert sizes.sum() == layers
            assert sizes[0] >= 1, (layers, chunks)
