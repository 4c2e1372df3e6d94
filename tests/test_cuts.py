"""What the full space leaves unpriced: that its bounds hold, and that no plan is lost."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job

from gpuscale import InputError, NoAnswerError, plan
from gpuscale.layouts import concatenate
from gpuscale.layouts.space import recomputed
from gpuscale.memory.model import evaluate_memory, states_bytes
from gpuscale.memory.states import stage_parameters
from gpuscale.planning import comparing
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.question import make_question
from gpuscale.planning.variants import make_variants
from gpuscale.results import BEATEN
from gpuscale.rules.check import ALL_RULES, RECOMPUTE_RULES, mark
from gpuscale.search import evaluate, search
from gpuscale.search.enumeration import legal_candidates
from gpuscale.search.fastest import Entry, fastest
from gpuscale.search.job_groups import kinds
from gpuscale.search.layer_cache import tabulated
from gpuscale.search.lower_bound import CANNOT_WIN, bounded_blocks, least_beside_s
from gpuscale.search.timing import Stopwatch

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


def entries(variants):
    return [Entry(one.job.spec, one.pins, None) for one in variants]


def bounded(spec, pins):
    """Legal candidates of all bounded rows, and the bound of each."""
    for block in bounded_blocks(spec, pins, {}, Stopwatch()):
        for grid in recomputed(spec, pins, block.grid):
            legal = mark(RECOMPUTE_RULES, grid, spec, {})
            yield legal.listed(), np.broadcast_to(block.least_s, legal.rows.shape)[legal.marked()]


# -- the bound --


@pytest.mark.parametrize(("model", "gpus", "options"), JOBS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-2p", "zb-v", "dualpipe"])
def test_no_step_is_shorter_than_its_bound(model, gpus, options, schedule):
    if schedule != "1f1b" and options.get("framework") != "generic":
        pytest.skip("only the generic framework runs every schedule")
    spec, closest = job(model, gpus, **options), np.inf
    for rows, least_s in bounded(spec, make_pins({"schedule": schedule})):
        ratio = evaluate(rows, spec).step.step_time_s / (least_s + least_beside_s(spec))
        assert (ratio >= 1).all()
        closest = min(closest, ratio.min(initial=np.inf))
    assert closest < (3 if spec.offload.any else 1.2)  # near enough to be of use


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-core-graphs", "deepspeed", "torchtitan"])
def test_bounds_hold_in_all_jobs_of_a_kind(framework):
    variants = tried("deepseek-v2-lite", 8, space="full", gbs=32, framework=framework)
    seen = 0
    for kind in kinds([(one.job.spec, one.pins) for one in variants])[::3]:
        parts = list(bounded(kind.job, kind.pins))
        for member in (member for group in kind.groups for member in group.members):
            for rows, least_s in parts:
                own = np.flatnonzero(member.allows(rows))
                taken_s = evaluate(rows.take(own), variants[member.index].job.spec).step.step_time_s
                assert (taken_s >= least_s[own]).all()
                seen += len(own)
    assert seen > 1000


def test_a_kind_has_every_legal_row_of_its_jobs():
    def rows_of(rows):
        names = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "micro_batch_size")
        return set(zip(*(getattr(rows, name).tolist() for name in names), strict=True))

    options = {"space": "full", "gbs": 32, "framework": "generic", "precision": "bf16", "cp_comm": "p2p,a2a"}
    options |= {"schedule": "1f1b", "overlap": "tp+dp", "axis_order": ORDERS[1:3]}
    variants = tried("deepseek-v2-lite", 8, **options)
    for kind in kinds([(one.job.spec, one.pins) for one in variants]):
        known = set().union(*(rows_of(rows) for rows, _ in bounded(kind.job, kind.pins)))
        for one in [variants[member.index] for group in kind.groups for member in group.members]:
            own = set().union(*(rows_of(rows) for rows in legal_candidates(one.job.spec, one.pins, {})))
            assert own <= known


# -- which jobs are searched together --


def test_jobs_of_the_same_layers_are_of_one_kind_and_those_of_the_same_memory_in_one_group():
    options = {"gbs": 64, "framework": "generic", "schedule": "1f1b,dualpipe", "precision": "bf16,fp8-current",
               "offload": "none,optimizer", "pipeline_split": "even,tapered", "axis_order": ORDERS[:3]}  # fmt: skip
    variants = tried("deepseek-v2-lite", 16, **options)
    found = kinds([(one.job.spec, one.pins) for one in variants])
    members = [member.index for kind in found for group in kind.groups for member in group.members]
    assert sorted(members) == list(range(len(variants)))
    assert len(found) == 8  # two schedules, two precisions, two orders of the axes inside a stage
    fast = [kind.job.precision for kind in found]
    assert fast == sorted(fast, reverse=True)  # fp8 before bf16
    for kind in found:
        assert not kind.job.offload.any
        for group in kind.groups:
            for member in group.members:
                spec = variants[member.index].job.spec
                assert (spec.precision, spec.offload) == (kind.job.precision, group.job.offload)
                assert variants[member.index].pins.schedule == kind.pins.schedule
                assert group.job.axis_orders[member.order] == spec.axis_order
                assert group.job.pipeline_splits[member.split] == spec.runtime.pipeline_split


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "deepspeed", "nanotron", "generic"])
def test_rules_that_depend_on_what_jobs_of_a_kind_differ_in_say_so(framework):
    options = {"gbs": 32, "framework": framework, "axis_order": ORDERS[:2]}
    variants = tried("deepseek-v2-lite", 16, space="full", **options)
    rows = concatenate(
        list(legal_candidates(job("deepseek-v2-lite", 16, gbs=32, framework="generic"), make_pins({}), {}))
    )
    rng = np.random.default_rng(7)
    mixed = {name: rng.permutation(getattr(rows, name)) for name in ("tp", "pp", "cp", "dp", "ep", "zero", "vpp")}
    rows = replace(rows, **mixed)
    for kind in kinds([(one.job.spec, one.pins) for one in variants]):
        for spec in (variants[member.index].job.spec for group in kind.groups for member in group.members):
            for rule in ALL_RULES:
                if rule.applies(spec) == rule.applies(kind.job) and not rule.of_order:
                    assert (rule.breaks(rows, spec) == rule.breaks(rows, kind.job)).all(), rule.code


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


def test_each_job_gets_its_best_plan_where_all_are_wanted():
    variants = tried("deepseek-v2-lite", 32, gbs=64, space="full")[::5]
    for one, quick in zip(variants, fastest(entries(variants), len(variants)), strict=True):
        whole = search(one.job.spec, one.pins)
        assert not quick.beaten
        assert (whole.feasible > 0) == (quick.found.feasible > 0)
        assert quick.found.evaluated < whole.evaluated
        if whole.feasible:
            assert whole.families.rows.row(0) == quick.found.families.rows.row(0)
            assert whole.families.score[0] == quick.found.families.score[0]
            assert whole.families.memory_bytes[0] == quick.found.families.memory_bytes[0]
        else:
            assert whole.nearest_miss.rows.row(0) == quick.found.nearest_miss.rows.row(0)


def test_jobs_of_one_kind_keep_to_their_own_pins():
    pins = ({"pp": 1}, {"pp": 2, "vpp": 1}, {"pp": "2..", "tp": "1,2"}, {"tp": 32})
    variants = tried("deepseek-v2-lite", 16, gbs=64, offload="none,optimizer", pipeline_split="even,tapered")
    mixed = [replace(one, pins=make_pins(pins[index % 4])) for index, one in enumerate(variants * 4)]
    mixed += [replace(variants[0], pins=make_pins(one)) for one in pins]
    for one, quick in zip(mixed, fastest(entries(mixed), len(mixed)), strict=True):
        whole = search(one.job.spec, one.pins)
        assert (whole.feasible > 0) == (quick.found.feasible > 0)
        if whole.feasible:
            assert whole.families.rows.row(0) == quick.found.families.rows.row(0)


def test_states_are_the_least_of_what_is_in_memory():
    for model, gpus, options in JOBS[3:7]:
        spec = job(model, gpus, **options)
        rows = concatenate(list(legal_candidates(spec, make_pins({}), {})))
        stages, row = tabulated(rows, spec)
        parameters = stage_parameters(rows, spec, stages, row)
        least = states_bytes(rows, spec, parameters)
        assert (least <= evaluate_memory(rows, spec, stages, row, parameters).peak_bytes).all()
        assert (least > 0).all()


def test_a_job_that_others_beat_is_given_up():
    (one,) = tried("llama3-8b", 16, gbs=64)
    slow = replace(one, pins=make_pins({"tp": 16, "micro_batch_size": 1}))
    quick, given_up = fastest(entries([one, slow]), 1)
    assert not quick.beaten
    assert given_up.beaten
    assert given_up.found.rejected[CANNOT_WIN] > 0
    assert given_up.found.evaluated < search(one.job.spec, slow.pins).evaluated / 4
    assert not any(each.beaten for each in fastest(entries([one, slow]), 2))


@pytest.mark.parametrize(("model", "gpus", "options"), [
    ("llama3-405b", 8, {"gbs": 8}),
    ("deepseek-v2-lite", 8, {"gbs": 8, "memory_limit_gib": 3}),
    ("llama3-8b", 8, {"gbs": 8, "max_memory": 1, "pins": {"tp": 8}}),
])  # fmt: skip
def test_what_comes_closest_is_the_same(model, gpus, options, monkeypatch):
    said = []
    for _ in range(2):
        with pytest.raises(NoAnswerError) as error:
            plan(model, gpus, space="full", **options)
        said.append((error.value.message, error.value.hint))
        monkeypatch.setattr(comparing, "_cuts", lambda *_: False)
    assert said[0] == said[1]


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
        said.append((error.value.message, error.value.hint, error.value.place))
        monkeypatch.setattr(comparing, "_cuts", lambda *_: False)
    assert said[0] == said[1]


def test_clusters_of_one_name_are_not_taken_for_one_another():
    variants = make_variants("llama3-8b", 16, {"gbs": 64, "space": "full"}, make_pins({}), make_question({}))
    first, second, *_ = variants.tried
    cluster = replace(first.job.spec.cluster, gpu=replace(first.job.spec.cluster.gpu, memory_bytes=1e9))
    other = replace(second, job=replace(second.job, spec=replace(second.job.spec, cluster=cluster)))
    priced = replace(second, terms=replace(second.terms, usd_per_gpu_hour=3.0))
    show, goal = comparing.Show(10), comparing.chosen_goal(make_question({}), variants.tried)
    assert comparing._cuts(replace(variants, tried=(first, second)), goal, show)
    assert not comparing._cuts(replace(variants, tried=(first, other)), goal, show)
    assert not comparing._cuts(replace(variants, tried=(first, priced)), goal, show)


def test_jobs_of_which_no_layout_is_legal_are_told_apart():
    found = plan("llama3-8b", 8, gbs=16, space="full", pins={"cp": 1, "zero": 1})
    reasons = {row.choice["cp_comm"]: row.reason for row in found.compared.variants if row.choice["offload"] == "none"}
    assert reasons["p2p"] is None
    assert reasons["a2a"] == "no legal layout"


def test_too_high_a_bound_would_lose_plans(monkeypatch):
    variants = tried("deepseek-v2-lite", 16, gbs=64, space="full")[::7]
    right = [one.found.families.score for one in fastest(entries(variants), len(variants))]
    monkeypatch.setattr("gpuscale.search.lower_bound.BELOW", 4.0)
    monkeypatch.setattr("gpuscale.search.fastest.FIRST_RUN", 1)
    wrong = [one.found.families.score for one in fastest(entries(variants), len(variants))]
    assert any(len(one) and other[0] > one[0] for one, other in zip(right, wrong, strict=True))
