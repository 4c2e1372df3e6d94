"""What a search leaves out: that its lower bounds hold, and that nothing is lost beside a search of everything."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job, legal_candidates, sample, variants_of

from gpuscale import InputError, NoAnswerError, plan
from gpuscale.layouts.arrays import FIELDS, concatenate
from gpuscale.layouts.pins import Pins
from gpuscale.layouts.space import modules_tried, recomputed, without_zero
from gpuscale.memory.model import evaluate_memory, states_bytes
from gpuscale.planning import comparing
from gpuscale.planning.layouts import make_pins
from gpuscale.results import BEATEN
from gpuscale.rules.check import ALL_RULES, RECOMPUTE_RULES, mark
from gpuscale.search import loop
from gpuscale.search.evaluation import LayerCache, evaluate, least_beside_s, measure_distinct_layers, placed
from gpuscale.search.loop import CANNOT_WIN, Task, job_groups, legal_rows, search, search_best

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-cp-ep-tp-pp", "pp-tp-cp-ep-dp")
JOBS = [
    ("llama3-8b", 16, {"gbs": 64}),
    ("llama3-8b", 24, {"gbs": 48, "cp_comm": "a2a", "precision": "fp8"}),
    ("gemma3-1b", 8, {"gbs": 16, "framework": "torchtitan"}),
    ("deepseek-v2-lite", 16, {"gbs": 64, "pipeline_split": "cost"}),
    ("deepseek-v2-lite", 16, {"gbs": 64, "pipeline_split": "tapered"}),
    ("qwen3-next-80b-a3b", 16, {"gbs": 32, "overlap": "tp+dp+ep", "framework": "megatron-lm"}),
    ("mixtral-8x7b", 16, {"gbs": 32, "offload": "optimizer"}),
    ("llama3-8b", 8, {"gbs": 16, "framework": "deepspeed", "offload": "optimizer+activations:0.5"}),
    *(("deepseek-v2-lite", 8, {"gbs": 32, "axis_order": order, "framework": "generic"}) for order in ORDERS),
]


def tried(model, gpus, **options):
    return variants_of(model, gpus, options)[0].tried


def tasks(variants):
    return [Task(one.job.spec, one.pins) for one in variants]


def bounded(spec, pins):
    """All legal candidates, and the lower bounds of their step times: by row, and by row and way to recompute."""
    for rows in legal_rows(spec, pins, {}):
        layers = measure_distinct_layers(without_zero(rows), modules_tried(spec, pins), spec)
        stages, row, _ = placed(without_zero(rows), spec)
        longest = stages.counts.sum(axis=2).max(axis=1)[row]
        grid = mark(RECOMPUTE_RULES, recomputed(spec, pins, rows), spec, {})
        bounds = layers.least_row_s(rows), layers.least_step_s(np.arange(len(rows)), grid, longest)
        yield grid.listed(), *(np.broadcast_to(bound, grid.shape)[grid.marked()] for bound in bounds)


# -- the lower bounds --


@pytest.mark.parametrize(("model", "gpus", "options"), JOBS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-2p", "zb-v", "dualpipe"])
def test_no_step_is_shorter_than_its_lower_bounds(model, gpus, options, schedule):
    if schedule != "1f1b" and options.get("framework") != "generic":
        pytest.skip("only the generic framework runs every schedule")
    spec, closest = job(model, gpus, **options), np.inf
    for rows, of_row_s, own_s in bounded(spec, make_pins({"schedule": schedule})):
        step_s = evaluate(rows, spec).step.step_time_s
        assert (of_row_s <= own_s).all()
        assert (step_s >= of_row_s + least_beside_s(spec)).all()
        assert (step_s >= own_s).all()
        closest = min(closest, (step_s / own_s).min(initial=np.inf))
    assert closest < (3 if spec.offload.any else 1.2)  # near enough to be of use


@pytest.mark.parametrize("framework", ["megatron-lm", "deepspeed"])
def test_lower_bounds_of_rows_hold_in_all_jobs_of_a_group(framework):
    each = tasks(tried("deepseek-v2-lite", 8, space="full", gbs=32, framework=framework))
    seen = 0
    for group in job_groups(each)[::3]:
        parts = list(bounded(group.job, group.pins))
        for task in (each[index] for index in group.members):
            for rows, of_row_s, _ in parts:
                own = np.flatnonzero(task.allows(rows))
                assert (evaluate(rows.take(own), task.job).step.step_time_s >= of_row_s[own]).all()
                seen += len(own)
    assert seen > 1000


def test_states_are_the_least_of_what_is_in_memory():
    for model, gpus, options in JOBS[3:8]:
        spec = job(model, gpus, **options)
        rows = concatenate(list(legal_candidates(spec, Pins(), {})))
        stages, row, parameters = placed(rows, spec)
        least = states_bytes(rows, spec, parameters)
        assert (least <= evaluate_memory(rows, spec, stages, row, parameters).peak_bytes).all()
        assert (least > 0).all()


# -- which jobs share rows --


def test_a_group_has_every_legal_row_of_its_jobs():
    def rows_of(rows):
        names = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "micro_batch_size")
        return set(zip(*(getattr(rows, name).tolist() for name in names), strict=True))

    options = {"space": "full", "gbs": 32, "framework": "generic", "precision": "bf16", "cp_comm": "p2p,a2a"}
    options |= {"schedule": "1f1b", "overlap": "tp+dp", "axis_order": ORDERS[1:3]}
    each = tasks(tried("deepseek-v2-lite", 8, **options))
    for group in job_groups(each):
        known = set().union(*(rows_of(rows) for rows in legal_candidates(group.job, group.pins, {})))
        for job_spec, pins, _ in (each[index] for index in group.members):
            assert set().union(*(rows_of(rows) for rows in legal_candidates(job_spec, pins, {}))) <= known


def test_jobs_of_the_same_layers_are_of_one_group():
    options = {"gbs": 64, "framework": "generic", "schedule": "1f1b,dualpipe", "precision": "bf16,fp8-current",
               "offload": "none,optimizer", "pipeline_split": "even,tapered", "axis_order": ORDERS[:3]}  # fmt: skip
    each = tasks(tried("deepseek-v2-lite", 16, **options))
    found = job_groups(each)
    assert sorted(index for group in found for index in group.members) == list(range(len(each)))
    assert len(found) == 8  # two schedules, two precisions, two orders of the axes inside a stage
    fast = [group.job.precision for group in found]
    assert fast == sorted(fast, reverse=True)  # fp8 before bf16
    for group in found:
        assert not group.job.offload.any
        for task in (each[index] for index in group.members):
            assert (task.job.precision, task.pins.schedule) == (group.job.precision, group.pins.schedule)


MANY = [pytest.param(name, marks=pytest.mark.full) for name in ("megatron-lm", "torchtitan", "generic")]


@pytest.mark.parametrize("framework", ["nanotron", "deepspeed", *MANY])
def test_rules_that_cut_rows_of_a_group_cut_them_in_all_its_jobs(framework):
    options = {"gbs": 32, "framework": framework, "axis_order": ORDERS[:2], "space": "full"}
    each = tasks(tried("deepseek-v2-lite", 16, **options))
    rows = concatenate(list(legal_candidates(job("deepseek-v2-lite", 16, gbs=32, framework="generic"), Pins(), {})))
    rng = np.random.default_rng(7)
    mixed = {name: rng.permutation(getattr(rows, name)) for name in ("tp", "pp", "cp", "dp", "ep", "zero", "vpp")}
    rows = sample(replace(rows, **mixed), 1000)
    for group in job_groups(each):
        for task in (each[index] for index in group.members):
            for rule in ALL_RULES:
                assert not (rule.breaks(rows, group.job) & ~rule.breaks(rows, task.job)).any(), rule.code


# -- one job: what is not timed --


@pytest.mark.parametrize("basis", ["step_time", "memory"])
@pytest.mark.parametrize(
    ("model", "gpus", "options"), [*JOBS[:5], *JOBS[6:8], ("llama3-8b", 16, {"memory_limit_gib": 24})]
)
def test_a_search_finds_what_one_that_times_everything_finds(model, gpus, options, basis, monkeypatch):
    monkeypatch.setattr(loop, "CHUNK_CANDIDATES", 20_000)
    spec, near = job(model, gpus, **options), 0.02
    quick, whole = (search(spec, Pins(), basis, near=near, every=every) for every in (False, True))
    assert quick.families.rows.row(0) == whole.families.rows.row(0)
    for name in ("step_time_s", "memory_bytes", "score"):
        assert (getattr(quick.families, name) == getattr(whole.families, name)).all()
    for one, other in zip(vars_of(quick.families.rows), vars_of(whole.families.rows), strict=True):
        assert (one == other).all()
    assert quick.family_variants.tolist() == whole.family_variants.tolist()
    for name in ("generated", "evaluated", "feasible", "rejected"):
        assert getattr(quick, name) == getattr(whole, name)
    leading = whole.leaders.take(whole.leaders.score <= whole.leaders.score[0] * (1 + near))
    assert (quick.leaders.step_time_s == leading.step_time_s).all()
    for one, other in zip(vars_of(quick.leaders.rows), vars_of(leading.rows), strict=True):
        assert (one == other).all()
    assert len(whole.scores) == whole.feasible > 0 == len(quick.scores)


def vars_of(rows):
    return [getattr(rows, name) for name in FIELDS]


def test_most_of_what_fits_is_not_timed(monkeypatch):
    timed, step_time = [], loop.step_time
    monkeypatch.setattr(loop, "step_time", lambda c, *rest: timed.append(len(c)) or step_time(c, *rest))
    assert sum(timed) < search(job("llama3-70b", 640), Pins()).feasible / 5


# -- many jobs: what is not looked at --


SAME = [
    ("llama3-8b", 8, {"gbs": 32}),
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
    *(pytest.param(*question, marks=pytest.mark.full) for question in (
        ("llama3-8b", 16, {"gbs": 64}),
        ("llama3-8b", 16, {"gbs": 64, "framework": "megatron-lm", "top": 3, "pins": {"tp": "1,2,4"}}),
        ("deepseek-v2-lite", 16, {"gbs": 64, "top": 5}),
        ("deepseek-v2-lite", 8, {"top": 1, "max_memory": 60, "seq": 8192}),
        ("deepseek-v2-lite", 16, {"top": 2, "gbs": 64, "offload": "optimizer,none", "axis_order": ORDERS[1::-1]}),
        ("mixtral-8x7b", 32, {"top": 4, "gpu_hour_price": 2, "cluster": "b200-hgx"}),
        ("llama3-70b", 64, {"top": 2, "min_mfu": 40, "precision": "bf16"}),
        ("llama3-70b", 32, {"top": 50, "gbs": 64}),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "options"), SAME)
def test_the_plans_are_those_of_a_search_of_everything(model, gpus, options, monkeypatch):
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
def test_nothing_is_left_out_where_more_than_the_fastest_is_asked_for(options):
    found = plan("llama3-8b", 8, gbs=16, space="full", precision="bf16", pins={"tp": 1}, **options)
    assert CANNOT_WIN not in found.search.rejected


def test_each_job_gets_its_best_plan_where_all_are_wanted():
    each = tasks(tried("deepseek-v2-lite", 32, gbs=64, space="full"))[::9]
    fewer = 0
    for task, quick in zip(each, search_best(each, len(each)), strict=True):
        whole = search(task.job, task.pins)
        assert not quick.beaten
        assert (whole.feasible > 0) == (quick.feasible > 0)
        assert quick.evaluated <= whole.evaluated
        fewer += quick.evaluated < whole.evaluated
        if whole.feasible:
            assert whole.families.rows.row(0) == quick.families.rows.row(0)
            assert whole.families.score[0] == quick.families.score[0]
            assert whole.families.memory_bytes[0] == quick.families.memory_bytes[0]
        else:
            assert whole.nearest_miss.rows.row(0) == quick.nearest_miss.rows.row(0)
    assert fewer > 0.8 * len(each)


def test_jobs_of_one_group_keep_to_their_own_pins():
    pins = ({"pp": 1}, {"pp": 2, "vpp": 1}, {"pp": "2..", "tp": "1,2"}, {"tp": 32})
    each = tasks(tried("deepseek-v2-lite", 16, gbs=64, offload="none,optimizer", pipeline_split="even,tapered"))
    mixed = [task._replace(pins=make_pins(pins[index % 4])) for index, task in enumerate(each * 4)]
    mixed += [each[0]._replace(pins=make_pins(one)) for one in pins]
    for task, quick in zip(mixed, search_best(mixed, len(mixed)), strict=True):
        whole = search(task.job, task.pins)
        assert (whole.feasible > 0) == (quick.feasible > 0)
        if whole.feasible:
            assert whole.families.rows.row(0) == quick.families.rows.row(0)


def test_a_job_that_others_beat_is_given_up():
    (one,) = tasks(tried("llama3-8b", 16, gbs=64))
    slow = one._replace(pins=make_pins({"tp": 16, "micro_batch_size": 1}))
    quick, given_up = search_best([one, slow], 1)
    assert not quick.beaten
    assert given_up.beaten
    assert given_up.rejected[CANNOT_WIN] > 0
    assert given_up.evaluated < search(*slow[:2]).evaluated / 4
    assert not any(each.beaten for each in search_best([one, slow], 2))


@pytest.mark.parametrize(("model", "gpus", "options"), [
    ("llama3-405b", 8, {"gbs": 8, "pins": {"tp": 8}}),
    ("llama3-8b", 8, {"gbs": 8, "max_memory": 1, "pins": {"tp": 8}}),
    pytest.param("llama3-405b", 8, {"gbs": 8}, marks=pytest.mark.full),
    pytest.param("deepseek-v2-lite", 8, {"gbs": 8, "memory_limit_gib": 3}, marks=pytest.mark.full),
])  # fmt: skip
def test_what_comes_closest_is_the_same(model, gpus, options, monkeypatch):
    said = []
    for _ in range(2):
        with pytest.raises(NoAnswerError) as error:
            plan(model, gpus, space="full", **options)
        said.append((error.value.message, error.value.hint))
        monkeypatch.setattr(comparing, "_cuts", lambda *_: False)
    assert said[0] == said[1]


def test_the_nearest_miss_takes_the_least_memory_of_all():
    for options in ({"memory_limit_gib": 3}, {"offload": "optimizer", "memory_limit_gib": 1}):
        spec = job("deepseek-v2-lite", 8, gbs=8, **options)
        rows = concatenate(list(legal_candidates(spec, Pins(), {})))
        found = search(spec, Pins())
        assert found.feasible == 0
        assert found.nearest_miss.memory_bytes[0] == evaluate(rows, spec).memory_bytes.min()


@pytest.mark.parametrize(("model", "gpus", "options"), [
    ("llama3.2-1b", 8, {"framework": "torchtitan", "cluster": ["mi300x"], "offload": "activations:0.5", "gbs": 8,
                        "schedule": "dualpipe,1f1b", "precision": "bf16,fp8",
                        "pins": {"cp": "!1", "zero": "0", "tp": "2..4", "dp": "!1"}}),
    ("llama3-8b", 8, {"gbs": 16, "pins": {"tp": 8, "zero": 3, "dp": 1}}),
])  # fmt: skip
def test_what_is_wrong_where_nothing_is_legal_is_the_same(model, gpus, options, monkeypatch):
    said = []
    for _ in range(2):
        with pytest.raises(InputError) as error:
            plan(model, gpus, space="full", **options)
        said.append((error.value.message, error.value.hint, error.value.place, error.value.field))
        monkeypatch.setattr(comparing, "_cuts", lambda *_: False)
    assert said[0] == said[1]


def test_clusters_of_one_name_are_not_taken_for_one_another():
    variants, question = variants_of("llama3-8b", 16, {"gbs": 64, "space": "full"})
    first, second, *_ = variants.tried
    cluster = replace(first.job.spec.cluster, gpu=replace(first.job.spec.cluster.gpu, memory_bytes=1e9))
    other = second._replace(job=second.job._replace(spec=replace(second.job.spec, cluster=cluster)))
    dear = second._replace(economics=second.economics._replace(usd_per_gpu_hour=3.0))
    objective = comparing.chosen_goal(question, variants.tried)
    assert comparing._cuts(variants._replace(tried=(first, second)), objective, question)
    assert not comparing._cuts(variants._replace(tried=(first, other)), objective, question)
    assert not comparing._cuts(variants._replace(tried=(first, dear)), objective, question)


def test_jobs_of_which_no_layout_is_legal_are_told_apart():
    found = plan("llama3-8b", 8, gbs=16, space="full", pins={"cp": 1, "zero": 1})
    reasons = {row.choice["cp_comm"]: row.reason for row in found.compared.variants if row.choice["offload"] == "none"}
    assert reasons["p2p"] is None
    assert reasons["a2a"] == "no legal layout"


def test_too_high_a_lower_bound_would_lose_plans(monkeypatch):
    each = tasks(tried("deepseek-v2-lite", 16, gbs=64, space="full"))[::7]
    right = [one.families.score for one in search_best(each, len(each))]
    least_row_s = LayerCache.least_row_s
    monkeypatch.setattr(LayerCache, "least_row_s", lambda *of: 4 * least_row_s(*of))
    monkeypatch.setattr(loop, "FIRST_RUN", 1)
    wrong = [one.families.score for one in search_best(each, len(each))]
    assert any(len(one) and other[0] > one[0] for one, other in zip(right, wrong, strict=True))
