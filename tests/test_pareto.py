"""The frontier against brute force: no member dominated, no other candidate undominated."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job, legal, legal_candidates, sample, variants_of

from gpuscale.choices import RANKED_BY
from gpuscale.layouts.pins import Pins
from gpuscale.planning.jobs import constraints
from gpuscale.planning.plans import plan
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import search
from gpuscale.search.objectives import MEMORY, OBJECTIVES, Constraint, Constraints, Economics
from gpuscale.search.ordering import Scored, joined, nothing, staircase, undominated

POINTS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=60)


def dominated(values, row):
    """Some row of `values` is nowhere worse than `row` and somewhere better."""
    return bool(((values <= row).all(axis=1) & (values < row).any(axis=1)).any())


def frontier(values):
    """The rows that no other dominates, each once.

    What dominates a row stands before it when rows are sorted, and is on the frontier or dominated by a row that is.
    """
    best = values[:0]
    for row in np.unique(values, axis=0):
        if not dominated(best, row):
            best = np.vstack([best, row])
    return {tuple(row) for row in best}


def test_every_objective_that_an_option_names_is_there():
    assert tuple(OBJECTIVES) == RANKED_BY


@given(POINTS, st.integers(1, 3))
def test_undominated_rows_are_those_that_no_other_beats(points, width):
    values = np.array(points, dtype=float)[:, :width]
    kept = undominated(values)
    best = {tuple(row) for row in values if not dominated(values, row)}
    assert frontier(values) == best
    assert {tuple(row) for row in values[kept]} == best
    assert len(kept) == len(best)  # one of equal rows
    assert [tuple(row) for row in values[kept]] == sorted(best)
    for index in kept:
        assert not (values[:index] == values[index]).all(axis=1).any()  # the first of them


def scored(time_s, size):
    rows = sample(legal("llama3-8b", 16), len(time_s))
    time_s, size = np.array(time_s, dtype=float), np.array(size, dtype=float)
    return Scored(rows, time_s, size, time_s, np.zeros(len(rows)))


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=40), st.data())
def test_the_staircase_is_the_frontier_whatever_the_chunks(points, data):
    every = scored(*zip(*points, strict=True))
    values = np.stack([every.step_time_s, every.memory_bytes], axis=1)
    best = sorted({tuple(row) for row in values if not dominated(values, row)})
    whole = staircase(every)
    assert list(zip(whole.step_time_s, whole.memory_bytes, strict=True)) == best
    kept = nothing()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(points)), max_size=4)))
    for start, end in pairwise([0, *cuts, len(points)]):
        kept = staircase(joined([kept, every.take(np.arange(start, end))]))
    for name in ("tp", "pp", "micro_batch_size", "recompute_layers", "zero"):
        assert getattr(kept.rows, name).tolist() == getattr(whole.rows, name).tolist()


def test_an_empty_chunk_has_an_empty_staircase():
    assert len(staircase(scored([1.0], [1.0]).take(np.zeros(1, dtype=bool))).score) == 0


JOBS = [
    ("llama3.2-1b", 8, {"gbs": 24, "memory_limit_gib": 12}, {}),
    ("llama3-8b", "8,16", {"gbs": 128, "gpu_hour_price": 2, "train_tokens": "1T"}, {"tp": "2,4", "cp": 1}),
    ("llama3-8b", 16, {"precision": "bf16,fp8", "offload": "none,optimizer"}, {"zero": "1,3", "tp": "1,2"}),
    ("llama3-8b", 16, {"schedule": "1f1b,zb-h1", "framework": "generic", "min_mfu": 30, "max_memory": 60}, {"tp": 2}),
    ("deepseek-v2-lite", 8, {"gbs": 64, "cp_comm": "p2p,all_gather"}, {"cp": "1,2", "zero": 1}),
]
AXES = ["step_time,memory", "memory,step_time", "tokens_per_s,memory_headroom", "mfu,memory,gpu_hours"]


@pytest.mark.parametrize("number", range(len(JOBS)), ids=lambda number: f"{JOBS[number][0]}-{JOBS[number][1]}")
@pytest.mark.parametrize("axes", [AXES[0], AXES[3], *(pytest.param(one, marks=pytest.mark.full) for one in AXES[1:3])])
def test_the_frontier_of_a_search_is_that_of_brute_force(number, axes):
    model, gpus, options, pins = JOBS[number]
    names = axes.split(",")
    result = plan(model, gpus, pareto=axes, pins=pins, **options)
    found = np.array([[score(one, name) for name in names] for one in described(result)])
    every = np.stack([brute_force(number)[name] for name in names], axis=1)
    assert len(every) > 200
    best = frontier(every)
    assert {tuple(np.round(row, 12)) for row in found} == {tuple(np.round(row, 12)) for row in best}
    assert len(found) == len(best) == result.compared.frontier_size
    assert found[:, 0].tolist() == sorted(found[:, 0])
    assert [row.rank for row in result.plans] == list(range(1, len(result.plans) + 1))


def described(result):
    return [{**row.to_dict(), **values} for row, values in zip(result.plans, result.compared.values, strict=True)]


def score(values, name):
    goal = OBJECTIVES[name]
    return -values[goal.key] if goal.rising else values[goal.key]


@cache
def brute_force(number):
    """Scores by every axis of all candidates of a job that fit and meet the constraints, by plain division."""
    model, gpus, options, pins = JOBS[number]
    variants, question = variants_of(model, gpus, options, pins)
    names = sorted({name for axes in AXES for name in axes.split(",")})
    parts = {name: [] for name in names}
    for variant in variants.tried:
        spec = variant.job.spec
        for chunk in legal_candidates(spec, variant.pins, {}):
            evaluation = evaluate(chunk, spec)
            time_s, size = evaluation.step.step_time_s, evaluation.memory.peak_bytes
            fits = (size <= spec.plans_limit_bytes) & (evaluation.memory.host_bytes <= spec.host_limit_bytes)
            for one in constraints(question):
                basis = size if one.objective.basis == MEMORY else time_s
                value = one.objective.value(basis, spec, variant.economics)
                fits &= value >= one.limit if one.objective.rising else value <= one.limit
            for name in names:
                goal = OBJECTIVES[name]
                basis = size if goal.basis == MEMORY else time_s
                parts[name].append(goal.score(goal.value(basis, spec, variant.economics))[fits])
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def test_a_search_for_a_frontier_looks_at_every_legal_candidate():
    found = search(job("mixtral-8x7b", 16), Pins(), frontier=True)
    assert found.evaluated == len(legal("mixtral-8x7b", 16)) > found.feasible == len(found.scores)
    assert len(search(job("mixtral-8x7b", 16), Pins()).frontier.score) == 0


def test_a_frontier_of_what_does_not_conflict_is_one_plan():
    result = plan("llama3-8b", 16, pareto="step_time,gpu_hours", pins={"tp": 2})
    assert len(result.plans) == result.compared.frontier_size == 1
    assert result.plans[0].step_time_s == plan("llama3-8b", 16, pins={"tp": 2}).choice.fastest.step_time_s


def test_top_shows_the_first_of_a_frontier():
    whole = plan("llama3-8b", 16, pareto="step_time,memory", pins={"tp": "1,2"})
    few = plan("llama3-8b", 16, pareto="step_time,memory", pins={"tp": "1,2"}, top=3)
    assert few.plans == whole.plans[:3]
    assert few.compared.frontier_size == len(whole.plans) > 3


@pytest.mark.parametrize(("objective", "limit"), [("tokens_per_s", 100.0), ("step_time", 10.0)])
def test_a_limit_keeps_the_better_side(objective, limit):
    spec = job("llama3-8b", 8)
    fast_s = spec.tokens_per_step / 101 if objective == "tokens_per_s" else 9.9
    slow_s = spec.tokens_per_step / 99 if objective == "tokens_per_s" else 10.1
    asked = Constraints((Constraint("limit", OBJECTIVES[objective], limit),), spec, Economics())
    assert asked.keep(np.array([fast_s, slow_s]), np.ones(2), {}).tolist() == [True, False]
    assert asked.excess(np.array([fast_s, slow_s]), np.ones(2)) == pytest.approx([-0.01, 0.01], rel=0.05)
