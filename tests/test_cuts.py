"""What the full space leaves unpriced cannot win: bounds against priced steps, and answers with and without cuts."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job

from gpuscale.api import comparing, plan
from gpuscale.api.layouts import make_pins
from gpuscale.api.question import make_question
from gpuscale.api.variants import make_variants
from gpuscale.candidates.arrays import FIELDS, Candidates
from gpuscale.candidates.numbers import Numbers
from gpuscale.comparison import BEATEN
from gpuscale.ranking import evaluate, search
from gpuscale.ranking.blocks import LAYOUT, ROW, SHAPE, legal_blocks
from gpuscale.ranking.cuts import CANNOT_WIN, Cut, Cuts, in_order, kinds, least_step_s
from gpuscale.ranking.sharing import share_branches

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-cp-ep-tp-pp", "pp-tp-cp-ep-dp")
JOBS = [
    ("llama3-8b", 16, {"gbs": 64}),
    ("llama3-8b", 24, {"gbs": 48, "cp_comm": "a2a", "precision": "fp8"}),
    ("gemma3-1b", 8, {"gbs": 16, "framework": "torchtitan"}),
    ("deepseek-v2-lite", 16, {"gbs": 64, "pipeline_split": "cost"}),
    ("qwen3-next-80b-a3b", 16, {"gbs": 32, "overlap": "tp+dp+ep", "framework": "megatron-core-graphs"}),
    ("mixtral-8x7b", 16, {"gbs": 32, "offload": "optimizer"}),
    ("llama3-8b", 8, {"gbs": 16, "framework": "deepspeed", "offload": "optimizer+activations:0.5"}),
    *(("deepseek-v2-lite", 8, {"gbs": 32, "axis_order": order, "framework": "generic"}) for order in ORDERS),
]


def tried(model, gpus, **options):
    return make_variants(model, gpus, options, make_pins({}), make_question(options)).tried


# -- the bound --


@pytest.mark.parametrize(("model", "gpus", "options"), JOBS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-2p", "zb-v", "dualpipe"])
def test_no_step_is_shorter_than_its_bound(model, gpus, options, schedule):
    if schedule != "1f1b" and options.get("framework") != "generic":
        pytest.skip("only the generic framework runs every schedule")
    spec, closest = job(model, gpus, **options), np.inf
    for block in legal_blocks(spec, make_pins({"schedule": schedule}), {}):
        shared = share_branches(block, spec)
        for number, (branch, least_s) in enumerate(zip(block, least_step_s(shared, block), strict=True)):
            for grid in branch.tried:
                rows = slice(0, len(grid.rows))
                taken = evaluate(grid.rows, spec, shared.of(number, rows, grid.rows)).step.step_time_s
                ratio = np.broadcast_to(taken / least_s, grid.rows.shape)[grid.marked()]
                assert (ratio >= 1).all()
                closest = min(closest, ratio.min(initial=np.inf))
    assert closest < (3 if spec.offload.any else 1.2)  # near enough to be of use


def known_of_first(one, **options):
    """What the job tells that has all the rest as a framework does it, but the same layers."""
    layers = {name: one.choice[name] for name in ("precision", "cp_comm", "overlap") if name in one.choice}
    first = tried("deepseek-v2-lite", 8, **options, **layers)[0]
    cut = Cut()
    search(first.job.spec, first.pins, cut=cut)
    return cut.learned(first.job.spec)


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-core-graphs", "deepspeed"])
def test_bounds_hold_in_other_jobs_of_the_same_layers(framework):
    shared_rows, options = 0, {"gbs": 32, "framework": framework}
    for one in tried("deepseek-v2-lite", 8, space="full", **options)[1::5]:
        known = known_of_first(one, **options)
        for branch in (branch for block in legal_blocks(one.job.spec, one.pins, {}) for branch in block):
            for names, level in known.levels.items():
                place, found = level.numbers.find(branch.rows)
                assert found.all()  # where these are cut, nothing else is
                for grid in branch.tried:
                    above = evaluate(grid.rows, one.job.spec).step.step_time_s >= level.least_s[place]
                    assert np.broadcast_to(above, grid.rows.shape)[grid.marked()].all(), names
            shared_rows += len(branch.rows)
    assert shared_rows > 100


# -- the answers --


SAME = [
    ("llama3-8b", 16, {"gbs": 64}),
    ("llama3-8b", 16, {"gbs": 64, "framework": "megatron-core-graphs", "top": 3, "pins": {"tp": "1,2,4"}}),
    ("deepseek-v2-lite", 16, {"gbs": 64, "top": 5}),
    ("deepseek-v2-lite", 8, {"top": 1, "max_memory": 60, "seq": 8192}),
    ("mixtral-8x7b", 32, {"top": 4, "gpu_hour_price": 2, "cluster": "b200-hgx"}),
    ("llama3-70b", 64, {"top": 2, "min_mfu": 40, "precision": "bf16"}),
    ("llama3-70b", 32, {"top": 50, "gbs": 64}),
    ("llama3-8b", 16, {"top": 3, "gbs": 64, "framework": "torchtitan"}),
    (
        "deepseek-v2-lite",
        8,
        {
            "top": 3,
            "gbs": 64,
            "framework": "generic",
            "schedule": "1f1b,zb-h1,dualpipe",
            "overlap": "tp+dp+ep,tp",
            "pins": {"pp": "2..", "tp": 1},
        },
    ),
    (
        "deepseek-v2-lite",
        16,
        {"top": 2, "gbs": 64, "offload": "optimizer,none", "axis_order": "tp-cp-ep-pp-dp,tp-cp-ep-dp-pp"},
    ),
]


@pytest.mark.parametrize(("model", "gpus", "options"), SAME)
def test_the_plans_are_those_of_a_search_that_prices_all(model, gpus, options, monkeypatch):
    quick = plan(model, gpus, space="full", **options)
    monkeypatch.setattr(comparing, "_cuts", lambda *_: False)
    whole = plan(model, gpus, space="full", **options)
    assert [replace(row, variants=1) for row in quick.plans] == [replace(row, variants=1) for row in whole.plans]
    assert (quick.compared.of_plan, quick.compared.values) == (whole.compared.of_plan, whole.compared.values)
    assert 0 < quick.search.candidates < whole.search.candidates
    assert quick.search.rejected[CANNOT_WIN] > 0
    assert quick.search.generated == quick.search.feasible + sum(quick.search.rejected.values())
    last = whole.plans[-1].step_time_s
    for one, other in zip(quick.compared.variants, whole.compared.variants, strict=True):
        if one.reason == BEATEN:
            assert len(whole.plans) == options.get("top", 10)
            assert not one.best
            assert not other.best or other.best["step_time_s"] >= last
        else:
            assert (one.best, one.reason) == (other.best, other.reason)


@pytest.mark.parametrize("options", [{"unfold": True}, {"why": "tp=8"}, {"objective": "mfu"}, {"objective": "memory"},
                                     {"pareto": "step_time,memory"}])  # fmt: skip
def test_nothing_is_cut_where_more_than_the_fastest_is_asked_for(options):
    found = plan("llama3-8b", 8, gbs=16, space="full", pins={"tp": 1}, **options)
    assert CANNOT_WIN not in found.search.rejected


def test_each_search_finds_the_best_of_its_job_without_a_ceiling():
    for one in tried("deepseek-v2-lite", 32, gbs=64, space="full")[::5]:
        whole, quick = (search(one.job.spec, one.pins, cut=cut) for cut in (None, Cut()))
        assert (whole.feasible > 0) == (quick.feasible > 0)
        if not whole.feasible:
            continue
        assert whole.families.rows.row(0) == quick.families.rows.row(0)
        assert whole.families.score[0] == quick.families.score[0]
        assert quick.evaluated < whole.evaluated


def test_a_plan_beyond_the_ceiling_is_not_looked_for():
    (one,) = tried("llama3-8b", 16, gbs=64)
    best = search(one.job.spec, one.pins).scores[0]
    assert search(one.job.spec, one.pins, cut=Cut(best)).scores[0] == best
    assert search(one.job.spec, one.pins, cut=Cut(best / 3)).evaluated == 0


def test_jobs_that_tell_most_come_first():
    variants = tried("deepseek-v2-lite", 16, gbs=64, space="full")
    jobs, order = [one.job.spec for one in variants], in_order(kinds([(one.job.spec, one.pins) for one in variants]))
    assert sorted(order) == list(range(len(jobs)))
    layers = {(spec.precision, spec.runtime.cp_comm) for spec in jobs}
    first = [jobs[index] for index in order[: len(layers)]]
    assert {(spec.precision, spec.runtime.cp_comm) for spec in first} == layers
    assert all(not spec.offload.any for spec in first)


def test_the_ceiling_is_the_last_of_the_best_jobs():
    cuts = Cuts(2)
    (one,) = tried("llama3-8b", 16, gbs=64)
    found = search(one.job.spec, one.pins).leaders
    for factor, ceiling in ((3, np.inf), (1, 3), (2, 2), (5, 2)):
        times = replace(found, step_time_s=found.step_time_s * 0 + factor)
        cuts.finish(0, one.job.spec, Cut(), times)
        assert cuts.ceiling_s == ceiling


def test_only_jobs_of_the_same_layers_tell_of_one_another():
    options = {"gbs": 64, "framework": "generic", "schedule": "1f1b,dualpipe", "precision": "bf16,fp8-current",
               "offload": "none,optimizer", "pipeline_split": "even,tapered", "axis_order": ORDERS[:3]}  # fmt: skip
    first, *others = tried("deepseek-v2-lite", 16, **options)
    cuts, (own, *numbers) = Cuts(1), kinds([(one.job.spec, one.pins) for one in (first, *others)])
    cut = cuts.start(own)
    cuts.finish(own, first.job.spec, cut, search(first.job.spec, first.pins, cut=cut).leaders)
    for one, number in zip(others, numbers, strict=True):
        same = all(one.choice[name] == first.choice[name] for name in ("schedule", "precision"))
        same &= one.choice["axis_order"] in ORDERS[:2]
        assert (cuts.start(number).known is not None) == same


# -- numbers of rows --


def table(rng, count):
    rest = dict.fromkeys(set(FIELDS) - set(ROW), np.zeros(count, dtype=np.int64))
    return Candidates(**{name: rng.integers(1, 5, count) for name in ROW}, **rest)


@pytest.mark.parametrize("names", [SHAPE, LAYOUT, ROW])
def test_numbers_find_what_is_there_and_nothing_else(names):
    rng = np.random.default_rng(3)
    known, asked = table(rng, 60), table(rng, 200)
    place, found = Numbers.of(known, names).find(asked)
    rows = [tuple(known.row(index)[name] for name in names) for index in range(len(known))]
    for index in range(len(asked)):
        wanted = tuple(asked.row(index)[name] for name in names)
        assert found[index] == (wanted in rows)
        assert not found[index] or rows[place[index]] == wanted


def test_numbers_give_up_where_there_are_too_many():
    count = 3000
    columns = {name: np.arange(1, count + 1) for name in ("tp", "pp", "cp", "ep", "etp", "dp")}
    rows = Candidates(**dict.fromkeys(set(FIELDS) - set(columns), np.zeros(count, dtype=np.int64)), **columns)
    assert not Numbers.of(rows, tuple(columns)).find(rows)[1].any()
