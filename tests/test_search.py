"""The search against plain loops over every layout, and that its bookkeeping adds up."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job, legal
from spaces import NAMES, plain_loops, stacked, tuples

from gpuscale.layouts.arrays import single
from gpuscale.planning.layouts import make_pins
from gpuscale.rules.check import ALL_RULES, broken_rules
from gpuscale.search import loop
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import OUT_OF_MEMORY, search
from gpuscale.search.ordering import FAMILY, TIE_ORDER, Scored, ordered

FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("llama3.2-1b", 8, {"gbs": 24, "memory_limit_gib": 8}),
        ("llama3.2-1b", 12, {"gbs": 24, "memory_limit_gib": 14}),
        ("mixtral-8x7b", 6, {"gbs": 12, "memory_limit_gib": 300, "seq": 512}),
        ("deepseek-v2-lite", 4, {"gbs": 4}),
    ],
)
def test_the_search_finds_what_plain_loops_find(model, gpus, options):
    spec = job(model, gpus, **options)
    every = stacked(list(plain_loops(spec)))
    bad = np.zeros(len(every), dtype=bool)
    for rule in ALL_RULES:
        bad |= rule.breaks(every, spec)
    lawful = every.take(~bad)
    assert sorted(tuples(lawful)) == sorted(tuples(legal(model, gpus, **options)))

    evaluation = evaluate(lawful, spec)
    time_s, size = evaluation.step.step_time_s, evaluation.memory.peak_bytes
    fits = size <= spec.plans_limit_bytes
    found = search(spec, make_pins({}), every=True)
    assert 0 < found.feasible == np.count_nonzero(fits) < found.evaluated == len(lawful)
    assert found.rejected[OUT_OF_MEMORY] == np.count_nonzero(~fits)
    assert found.leaders.step_time_s[0] == time_s[fits].min()
    assert (found.scores == np.sort(time_s[fits])).all()
    assert found.nearest_miss is None


@pytest.mark.parametrize(("model", "gpus"), [("llama3-8b", 48), ("deepseek-v2-lite", 16)])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("objective", ["step_time", "memory"])
def test_the_bookkeeping_adds_up_and_order_is_kept(model, gpus, objective, every):
    spec = job(model, gpus)
    found = search(spec, make_pins({}), objective, every=every)
    assert found.generated == found.feasible + sum(found.rejected.values())
    assert found.evaluated == found.feasible + found.rejected.get(OUT_OF_MEMORY, 0)
    assert found.feasible == found.family_variants.sum()
    assert len(found.scores) == (found.feasible if every else 0)
    for group in (found.leaders, found.families):
        assert (np.diff(group.score) >= 0).all()
        assert (group.memory_bytes <= spec.plans_limit_bytes).all()
        assert (group.score == (group.memory_bytes if objective == "memory" else group.step_time_s)).all()
    assert found.families.score[0] == found.leaders.score[0] == found.scores[:1].min(initial=found.leaders.score[0])
    assert list(found.rejected) == sorted(found.rejected)
    keys = list(zip(*(getattr(found.families.rows, name).tolist() for name in FAMILY), strict=True))
    assert len(set(keys)) == len(keys)


def same(one, other):
    for name in ("leaders", "families"):
        first, second = getattr(one, name), getattr(other, name)
        assert tuples(first.rows) == tuples(second.rows)
        for column in ("step_time_s", "memory_bytes", "score"):
            assert (getattr(first, column) == getattr(second, column)).all()
    assert (one.scores == other.scores).all()
    assert one.family_variants.tolist() == other.family_variants.tolist()
    for name in ("generated", "evaluated", "feasible", "rejected"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize(
    ("model", "gpus", "pins"),
    [
        ("llama3-8b", 8, {"zero": "0,1", "micro_batch_size": 1, "pp": "1,2", "recompute": "none,full:4"}),
        pytest.param("mixtral-8x7b", 32, {"pp": 2, "tp": "1,2", "cp": 1, "micro_batch_size": "1,2"}, marks=FULL),
    ],
)
def test_chunks_of_any_size_and_a_second_run_give_the_same(monkeypatch, model, gpus, pins):
    spec, pins = job(model, gpus), make_pins(pins)
    for every in (False, True):
        whole = search(spec, pins, every=every)
        same(whole, search(spec, pins, every=every))
        for rows, candidates in ((1 << 17, 999), (50, 20), (13, 3)):
            monkeypatch.setattr(loop, "BLOCK_ROWS", rows)
            monkeypatch.setattr(loop, "CHUNK_CANDIDATES", candidates)
            same(whole, search(spec, pins, every=every))
        monkeypatch.undo()


def test_pins_choose_among_what_the_whole_search_ranks():
    spec = job("llama3-8b", 64)
    whole = search(spec, make_pins({}), every=True)
    pinned = search(spec, make_pins({"tp": 4, "pp": 2}))
    assert set(pinned.leaders.rows.tp.tolist()) == {4}
    assert set(pinned.leaders.rows.pp.tolist()) == {2}
    assert pinned.leaders.step_time_s[0] in whole.scores
    key = (4, 2, 1, 1, 1, 0, 0)  # saves no memory in any way: never folded
    families = [tuple(row) for row in zip(*(getattr(whole.families.rows, n).tolist() for n in FAMILY), strict=True)]
    assert (
        whole.families.step_time_s[families.index(key)]
        == search(spec, make_pins({"tp": 4, "pp": 2, "cp": 1})).leaders.step_time_s[0]
    )


def test_equal_scores_go_to_the_simpler_layout():
    base = dict.fromkeys(NAMES, 1)
    rows = [{**base, name: 2} for name in TIE_ORDER] + [base]
    candidates = stacked(rows)
    equal = np.ones(len(rows))
    first = ordered(Scored(candidates, equal, equal, equal, equal)).rows
    assert tuples(first)[0] == tuple(base.values())
    changed = [next(name for name in TIE_ORDER if row[name] == 2) for row in map(first.row, range(1, len(first)))]
    assert changed == list(reversed(TIE_ORDER))  # what comes first in the order weighs most
    less = np.ones(len(rows))
    less[0] = 0.5
    light = ordered(Scored(candidates, equal, less, equal, equal)).rows
    assert tuples(light)[0] == tuple(rows[0].values())  # memory before simplicity


def test_nothing_fits_leaves_the_nearest_miss_and_no_plan():
    spec = replace(job("llama3-8b", 8), memory_limit_bytes=1e9)
    found = search(spec, make_pins({}))
    assert found.feasible == 0 == len(found.leaders.score) == len(found.families.score)
    assert found.evaluated == found.rejected[OUT_OF_MEMORY]
    assert broken_rules(single(**found.nearest_miss.rows.row(0)), spec) == []
    rows = legal("llama3-8b", 8)
    assert found.nearest_miss.memory_bytes[0] == evaluate(rows, spec).memory.peak_bytes.min()


def test_one_way_to_cut_and_one_to_recompute_are_timed_like_several():
    spec = job("llama3-8b", 16)
    pins = {"tp": 4, "cp": 1, "micro_batch_size": 1, "sp": False, "recompute": "selective:core_attn"}
    leaders = search(spec, make_pins(pins)).leaders
    assert leaders.step_time_s.tolist() == evaluate(leaders.rows, spec).step.step_time_s.tolist()


def test_nothing_legal_leaves_reasons_only():
    found = search(job("llama3-8b", 8), make_pins({"micro_batch_size": 7}))
    assert found.evaluated == found.feasible == 0
    assert found.nearest_miss is None
    assert found.rejected["batch_not_divisible"] > 0
    assert found.generated == sum(found.rejected.values())
    assert search(job("llama3-8b", 8), make_pins({"tp": 3})).generated == 0


def test_more_memory_never_loses_a_plan():
    spec = job("llama3-8b", 16)
    counts = [search(replace(spec, memory_limit_bytes=limit * 2**30), make_pins({})) for limit in (20, 40, 80)]
    assert counts[0].feasible < counts[1].feasible < counts[2].feasible
    assert counts[0].leaders.step_time_s[0] >= counts[1].leaders.step_time_s[0] >= counts[2].leaders.step_time_s[0]
