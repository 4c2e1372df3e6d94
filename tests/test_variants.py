"""Several jobs in one question: against one question after the other, and each total by a second route."""

import math
import re
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import built, job, legal, legal_candidates, sample, variants_of

import gpuscale
from gpuscale.choices import AXES
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.subject import estimate_file
from gpuscale.layouts.arrays import SCHEDULES, concatenate, single
from gpuscale.layouts.ranks import stages_torn
from gpuscale.placement import Degrees, axis_groups, megatron_accepts
from gpuscale.planning import jobs
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.plans import plan, save_plan
from gpuscale.planning.variants import MAX_VARIANTS, settings_to_try
from gpuscale.presets.files import find_preset, preset_names
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.rules.check import ALL_RULES
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import search
from gpuscale.search.objectives import MEMORY, OBJECTIVES

DAY_S = 86400


def singles(model, gpus, *, top=1, **options):
    """Answers to one question after the other, for each combination of the options that are lists."""
    names = [name for name, value in options.items() if isinstance(value, list)]
    for chosen in product(gpus, *(options[name] for name in names)):
        own = dict(zip(("gpus", *names), chosen, strict=True))
        kept = {name: value for name, value in options.items() if name not in names}
        found = plan(model, own.pop("gpus"), top=top, **kept, **own)
        yield chosen, found


# -- the same plans as in single questions --


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        ([8, 16, 24], {"gbs": 96}),
        ([16], {"seq": [2048, 8192], "precision": ["bf16", "fp8-current"]}),
        ([16], {"cluster": ["dgx-h100-superpod", "b200-hgx"], "offload": ["none", "optimizer"]}),
        ([16], {"framework": ["megatron-lm", "torchtitan"], "gbs": [64, 128]}),
    ],
)
def test_the_best_plan_of_each_job_is_that_of_a_question_of_its_own(gpus, options):
    together = plan("llama3-8b", gpus, top=50, pins={"tp": "1,2,4"}, **options)
    alone = {chosen: found.plans[0] for chosen, found in singles("llama3-8b", gpus, pins={"tp": "1,2,4"}, **options)}
    assert len(together.plans) == len(alone) == len(together.compared.variants)
    for row, owner in zip(together.plans, together.compared.of_plan, strict=True):
        choice = together.compared.variants[owner].choice
        key = tuple(choice[name] if name in choice else value[0] for name, value in {"gpus": gpus, **options}.items()
                    if name == "gpus" or isinstance(value, list))  # fmt: skip
        assert row == replace(alone[key], rank=row.rank, variants=row.variants)
    rates = [together.compared.variants[owner].best["tokens_per_s"] for owner in together.compared.of_plan]
    assert rates == [row.tokens_per_s for row in together.plans]


def test_all_ranks_the_plans_of_all_jobs_one_by_one():
    together = plan("llama3-8b", [8, 16], gbs=64, unfold=True, top=40, objective="tokens_per_s", pins={"zero": "1,2"})
    alone = [
        row
        for _, found in singles("llama3-8b", [8, 16], gbs=64, unfold=True, top=40, pins={"zero": "1,2"})
        for row in found.plans
    ]
    best = sorted(alone, key=lambda row: -row.tokens_per_s)[:40]
    assert [row.tokens_per_s for row in together.plans] == [row.tokens_per_s for row in best]
    assert {row.variants for row in together.plans} == {1}
    assert [row.rank for row in together.plans] == list(range(1, 41))


def test_the_tally_adds_up_all_jobs():
    found = plan("llama3-8b", [8, 16], gbs=64).search
    parts = [plan("llama3-8b", gpus, gbs=64).search for gpus in (8, 16)]
    for name in ("generated", "candidates", "feasible", "families"):
        assert getattr(found, name) == sum(getattr(part, name) for part in parts)
    assert found.generated == found.feasible + sum(found.rejected.values())


def test_twice_the_same_answer():
    one, other = (plan("llama3-8b", "8..32", precision="bf16,fp8", pins={"tp": "1,2"}) for _ in range(2))
    assert replace(one, search=other.search) == other
    assert one.to_dict() | {"search": None} == other.to_dict() | {"search": None}


def test_presets_are_read_once(monkeypatch):
    read = []
    for name in ("load_model", "load_cluster"):
        real = getattr(jobs, name)
        monkeypatch.setattr(jobs, name, lambda what, real=real: read.append(what) or real(what))
    plan("llama3-8b", "8..64", precision="bf16,fp8", pins={"tp": 8, "zero": 1})
    assert sorted(read) == ["dgx-h100-superpod", "llama3-8b"]


def test_a_cluster_by_two_names_is_one_job(tmp_path):
    own = shutil.copy(find_preset("clusters", "aws-p5"), tmp_path / "aws-p5.toml")
    names = ["p5", "aws-p5", "AWS-P5", "p5.48xlarge", str(own)]
    once, again = plan("llama3-8b", 16, cluster="p5"), plan("llama3-8b", 16, cluster=names)
    assert again.compared is None
    assert replace(once, search=again.search) == again
    two = plan("llama3-8b", 16, cluster=["aws-p5", "b200-hgx", "p5"], pins={"tp": 8}).compared
    assert [row.choice["cluster"] for row in two.variants] == ["aws-p5", "b200-hgx"]
    own.write_text(own.read_text(encoding="utf-8").replace("link_efficiency = 0.", "link_efficiency = 0.1"), "utf-8")
    assert len(variants("llama3-8b", 16, cluster=["aws-p5", str(own)]).tried) == 2  # another one of the same name


def test_one_value_is_one_job_as_before():
    assert plan("llama3-8b", "16", gbs="64", seq=["4096"], cluster=["dgx-h100-superpod"]).compared is None
    usual, listed = plan("llama3-8b", 16, gbs=64), plan("llama3-8b", [16], gbs=[64, 64], space="default")
    assert replace(usual, search=listed.search) == listed
    facts = {"job", "assumptions", "notes", "choice", "measured", "recipe"}
    assert set(usual.to_dict()) == {"model", "cluster", "gpus", "plans", "search", *facts}
    assert not {"variant", "values"} & set(usual.to_dict()["plans"][0])


# -- objectives --


def test_money_and_time_by_a_second_route():
    price = {"dgx-h100-superpod": 2.5, "b200-hgx": 4.0}
    result = plan(
        "llama3-8b", [16, 32], cluster=list(price), train_tokens="2T", pins={"tp": 1},
        gpu_hour_price=[f"{name}={usd}" for name, usd in price.items()],
    )  # fmt: skip
    assert result.compared.objectives == ("cost",)
    for row, owner, values in zip(result.plans, result.compared.of_plan, result.compared.values, strict=True):
        choice = result.compared.variants[owner].choice
        seconds = 2e12 / row.tokens_per_s
        hours = seconds / 3600 * choice["gpus"]
        assert values["time_to_train_s"] == pytest.approx(seconds, rel=1e-12)
        assert values["gpu_hours_per_1e12_tokens"] == pytest.approx(hours / 2, rel=1e-12)
        assert values["usd_to_train"] == pytest.approx(hours * price[choice["cluster"]], rel=1e-12)
        assert values["usd_per_1e9_tokens"] == pytest.approx(values["usd_to_train"] / 2000, rel=1e-12)
        assert values["memory_headroom_gib"] == pytest.approx(row.memory_limit_gib - row.memory_gib, rel=1e-9)
    costs = [values["usd_per_1e9_tokens"] for values in result.compared.values]
    assert costs == sorted(costs)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_ranks_jobs_by_its_value(name):
    options = {"gbs": 64, "gpu_hour_price": 2, "train_tokens": 1e12, "pins": {"zero": "1,3"}}
    result = plan("llama3-8b", [8, 32], precision="bf16,fp8", objective=name, **options)
    key, rising = OBJECTIVES[name].key, OBJECTIVES[name].rising
    values = [{**row.to_dict(), **own}[key] for row, own in zip(result.plans, result.compared.values, strict=True)]
    assert values == sorted(values, reverse=rising)
    assert len(values) == 4
    assert [result.compared.variants[owner].best[key] for owner in result.compared.of_plan] == pytest.approx(values)
    alone = plan("llama3-8b", 16, precision="fp8", objective=name, top=5, **options)
    own = [{**row.to_dict(), **worth} for row, worth in zip(alone.plans, alone.compared.values, strict=True)]
    given, best = [one[key] for one in own], alone.compared.variants[0].best[key]
    near = len(
        [value for value in given if OBJECTIVES[name].basis != MEMORY and math.isclose(value, best, rel_tol=0.02)]
    )
    assert given[0] == pytest.approx(best)
    assert given[near:] == sorted(given[near:], reverse=rising)  # the first few are as good as equal: simplest first


@pytest.mark.parametrize(
    ("gpus", "options", "objective"),
    [
        ([8, 16], {}, "gpu_hours"),
        ([8, 16], {"gpu_hour_price": 2}, "cost"),
        ([16], {"gbs": "64,128"}, "tokens_per_s"),
        ([16], {"gbs": "64,128", "gpu_hour_price": 2}, "tokens_per_s"),
        ([16], {"cluster": ["h200-hgx", "b200-hgx"]}, "tokens_per_s"),
        ([16], {"cluster": ["h200-hgx", "b200-hgx"], "gpu_hour_price": ["h200-hgx=2", "b200-hgx=3"]}, "cost"),
        ([16], {"cluster": ["h200-hgx", "b200-hgx"], "gpu_hour_price": "h200-hgx=2"}, "tokens_per_s"),
        ([16], {"min_mfu": 1}, "step_time"),
    ],
)
def test_what_jobs_are_ranked_by_when_nothing_is_said(gpus, options, objective):
    result = plan("llama3-8b", gpus, pins={"tp": 1, "zero": 1}, **options)
    assert result.compared.objectives == (objective,)


def test_steps_of_different_length_do_not_compare_by_step_time():
    for asked in ({"objective": "step_time"}, {"pareto": "memory,step_time"}):
        with pytest.raises(InputError, match="do not compare by step_time"):
            plan("llama3-8b", 16, gbs="64,128", **asked)
    assert plan("llama3-8b", [8, 16], gbs=64, objective="step_time", pins={"tp": 1}).gpus == 16


def test_a_default_batch_that_follows_the_gpus_is_said():
    notes = plan("llama3-8b", [16, 24], pins={"tp": 1}).notes
    assert any("`gbs` sets one batch for all" in note for note in notes)
    assert plan("llama3-8b", [16, 24], gbs=96, pins={"tp": 1}).notes == ()


# -- constraints --

BOUNDS = {
    "max_memory": (40, lambda step_s, gib: gib <= 40),
    "min_mfu": (50, lambda step_s, gib: MODEL_FLOPS / step_s / 16 / 989.4e12 >= 0.5),
    "max_step_time": (26, lambda step_s, gib: step_s <= 26),
    "max_days": (70, lambda step_s, gib: step_s * 1e12 / TOKENS / DAY_S <= 70),
    "max_cost": (50_000, lambda step_s, gib: step_s * 1e12 / TOKENS / 3600 * 16 * 2 <= 50_000),
}
TOKENS = 1024 * 4096
MODEL_FLOPS = TOKENS * (6 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096) + 6 * 32 * 4096 * 4097)


@pytest.mark.parametrize("objective", ["step_time", "memory"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_constraint_keeps_what_meets_it_and_nothing_else(name, objective):
    limit, meets = BOUNDS[name]
    options = {"gpu_hour_price": 2, "train_tokens": 1e12, name: limit}
    (variant,) = variants("llama3-8b", 16, **options).tried
    spec = variant.job.spec
    found, free = (
        search(spec, variant.pins, objective, constraints=one, every=True) for one in (variant.constraints, None)
    )
    rows = legal("llama3-8b", 16)
    evaluation = evaluate(rows, spec)
    step_s, size = evaluation.step.step_time_s, evaluation.memory.peak_bytes
    good = (size <= spec.plans_limit_bytes) & meets(step_s, size / 2**30)
    wanted = np.sort((size if objective == "memory" else step_s)[good])
    assert (found.scores == wanted).all()
    assert (found.leaders.score == wanted[: len(found.leaders.score)]).all()
    assert 0 < found.feasible == len(wanted) < free.feasible
    assert found.rejected.pop(name) == free.feasible - found.feasible
    assert (found.rejected, found.generated) == (free.rejected, free.generated)


def test_constraints_hold_in_every_job_and_say_which_has_no_plan():
    result = plan("llama3-70b", [32, 64], max_memory="30GiB", pins={"tp": 8})
    assert [row.feasible > 0 for row in result.compared.variants] == [False, True]
    assert result.compared.variants[0].reason == "no plan within `max_memory`"
    assert all(row.memory_gib <= 30 for row in result.plans)


@pytest.mark.parametrize(
    ("gpus", "bounds"),
    [
        (16, {"min_mfu": 80}),
        (16, {"max_memory": "5GiB"}),
        ("8,16", {"max_memory": 30.0, "min_mfu": 54}),
        (16, {"max_step_time": 2}),
    ],
)
def test_when_none_meets_them_what_came_closest_would_do(bounds, gpus):
    with pytest.raises(NoAnswerError, match="the closest, TP") as caught:
        plan("llama3-8b", gpus, gbs=128, **bounds)
    assert caught.value.exit_code == 1
    loosened = dict(re.findall(r"`(\w+)=([^`]+)`", caught.value.hint.partition(", or")[0]))
    assert plan("llama3-8b", gpus, gbs=128, **{**bounds, **loosened}).plans


@pytest.mark.parametrize(
    ("space", "more"), [("default", "(`gpus`, `cluster`, `precision`, `space=full`)"), ("full", "(`gpus`, `cluster`)")]
)
def test_what_was_asked_for_is_no_hint(space, more):
    with pytest.raises(NoAnswerError) as caught:
        plan("llama3-8b", 16, space=space, max_memory="1GiB", pins={"tp": 8, "pp": 2})
    assert caught.value.hint.endswith(f"or ask for more at once {more}")


def test_why_says_that_a_constraint_cuts_a_layout():
    why = plan("llama3-8b", 16, min_mfu=50, why="tp=8,pp=2").why
    assert why.status == "ranked"
    assert why.reasons == {"min_mfu": "`min_mfu` excludes it from the plans"}
    assert why.rank > 1


# -- what may have several values --


def variants(model, gpus, pins=None, **options):
    return variants_of(model, gpus, options, pins)[0]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cp_comm": ["p2p", "all_gather", "a2a"]}, "cp"),
        ({"overlap": ["tp+dp", "dp"]}, "tp"),
        ({"axis_order": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]}, "pp"),
        ({"overlap": ["tp+dp", "none"]}, None),
    ],
)
def test_where_a_value_makes_no_difference_only_the_first_is_searched(options, field):
    ((name, values),) = options.items()
    first, *others = variants("llama3-8b", 16, **options).tried
    for other in others:
        whole = concatenate(list(legal_candidates(other.job.spec, make_pins({}), {})))
        own = concatenate(list(legal_candidates(other.job.spec, other.pins, {})))
        left_out = whole if field is None else whole.take(getattr(whole, field) == 1)
        assert len(own) == len(whole) - (len(left_out) if field else 0)
        if field is not None:
            here, there = (evaluate(left_out, one.job.spec) for one in (first, other))
            assert (here.step.step_time_s == there.step.step_time_s).all()
            assert (here.memory.peak_bytes == there.memory.peak_bytes).all()
    together = plan("llama3-8b", 16, top=1, **options).plans[0].tokens_per_s
    assert together == max(plan("llama3-8b", 16, top=1, **{name: value}).plans[0].tokens_per_s for value in values)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe"])
def test_a_schedule_is_searched_in_all_its_layouts(name):
    options = {"gbs": 64, "framework": "generic"}
    spec, code = job("llama3-8b", 16, **options), SCHEDULES[name]
    rows = concatenate(list(legal_candidates(spec, make_pins({"schedule": name}), {})))
    assert set(rows.schedule.tolist()) == {code}
    assert rows.pp.min() > 1
    assert set(rows.vpp.tolist()) == {2 if name == "zb-v" else 1}
    every = legal("llama3-8b", 16, **options)
    every = every.take((every.pp > 1) & (every.vpp == 1))
    usual = replace(every, schedule=np.full_like(every.tp, code), vpp=np.full_like(every.tp, rows.vpp[0]))
    lawful = ~np.any([rule.breaks(usual, spec) for rule in ALL_RULES], axis=0)
    odd = (usual.pp % 2 != 0) & (name == "dualpipe")
    assert len(rows) == np.count_nonzero(lawful & ~odd)


def test_one_f_one_b_is_the_default_and_interleaving_belongs_to_it():
    usual = plan("llama3-8b", 16, top=3)
    for text in ("1f1b", "interleaved", "1F1B,interleaved"):
        said = plan("llama3-8b", 16, top=3, schedule=text)
        assert said.plans == usual.plans
        assert said.assumptions["schedule"] == "1f1b"


UNUSUAL = [
    ({"axis_order": "tp-cp-ep-pp-dp"}, "1f1b"),
    ({"axis_order": "tp-cp-ep-pp-dp", "framework": "generic"}, "zb-h1"),
    ({"axis_order": "dp-cp-ep-tp-pp", "framework": "generic"}, "1f1b"),
    ({"axis_order": "pp-dp-tp-cp-ep", "framework": "generic"}, "1f1b"),
    ({"axis_order": "pp-dp-tp-cp-ep", "framework": "generic"}, "dualpipe"),
    ({"overlap": "tp+dp+ep", "framework": "megatron-lm"}, "1f1b"),
    ({"overlap": "none", "pipeline_split": "cost"}, "1f1b"),
    ({"framework": "generic"}, "zb-v"),
]


@pytest.mark.parametrize(
    ("options", "schedule"), UNUSUAL, ids=lambda one: "-".join(one.values()) if isinstance(one, dict) else one
)
def test_one_candidate_alone_is_its_row_in_the_batch(options, schedule):
    for model in ("llama3-8b", "deepseek-v2-lite"):
        spec = job(model, 16, gbs=64, **options)
        rows = concatenate(list(legal_candidates(spec, make_pins({"schedule": schedule}), {})))
        rows = sample(rows, 4)
        whole = evaluate(rows, spec)
        for index in range(len(rows)):
            one = evaluate(rows.take(np.array([index])), spec)
            assert one.step.step_time_s[0] == whole.step.step_time_s[index]
            assert one.memory.peak_bytes[0] == whole.memory.peak_bytes[index]
            assert np.array_equal(one.step.components[:, 0], whole.step.components[:, index])


POWERS = st.sampled_from([1, 2, 4])


RULE_SETS = st.sampled_from(["megatron-lm", "generic"])


@given(POWERS, POWERS, POWERS, POWERS, POWERS, POWERS, st.permutations(AXES), RULE_SETS)
def test_torn_stages_are_those_that_placement_refuses(tp, cp, dp, pp, ep, etp, order, rule_set):
    if (tp * cp * dp) % (ep * etp):
        return
    spec = job("mixtral-8x7b" if ep * etp > 1 else "llama3-8b", 64)
    spec = replace(spec, axis_order=tuple(order), runtime=replace(spec.runtime, rule_set=rule_set))
    row = single(
        tp=tp, sp=0, pp=pp, vpp=1, cp=cp, ep=ep, etp=etp, dp=dp, zero=0, shard=1, micro_batch_size=1,
        num_microbatches=1, recompute_modules=0, recompute_layers=0,
    )  # fmt: skip
    degrees = Degrees(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, pp=pp)
    try:
        axis_groups(degrees, order)
        torn = rule_set != "generic" and not megatron_accepts(degrees, order)
    except InputError:
        torn = True
    assert bool(stages_torn(row, spec)[0]) == torn


@pytest.mark.parametrize("framework", preset_names("frameworks"))
@pytest.mark.parametrize("cluster", ["dgx-h100-superpod", "gb200-nvl72", "dgx1-v100"])
def test_the_full_space_of_a_framework_can_be_built(framework, cluster):
    for model in ("llama3-8b", "deepseek-v2-lite"):
        values = settings_to_try(load_framework(framework), load_model(model), load_cluster(cluster))
        found = variants(model, 8, framework=framework, cluster=[cluster], space="full")
        assert len(found.tried) == np.prod([len(own) for own in values.values()])
        assert found.skipped == ()
        own = built(model, 8, framework=framework, cluster=cluster).spec
        assert replace(found.tried[0].job.spec, recipe=own.recipe) == own  # what the framework does comes first
        assert all(len(set(several)) == len(several) > 1 for several in values.values())


def test_the_full_space_holds_the_default_and_what_was_said_stays():
    usual = plan("llama3-8b", 16, top=1, pins={"tp": "1,2", "zero": 1})
    full = plan("llama3-8b", 16, top=1000, pins={"tp": "1,2", "zero": 1}, space="full")
    assert full.plans[0].tokens_per_s >= usual.plans[0].tokens_per_s
    first = full.compared.variants[0]
    assert first.best["step_time_s"] == usual.choice.fastest.step_time_s
    assert {row.choice["precision"] for row in full.compared.variants} == {"bf16", "fp8"}
    said = plan("llama3-8b", 16, pins={"tp": 1, "zero": 1}, space="full", precision="bf16", offload="none")
    assert not {"precision", "offload"} & set(said.compared.variants[0].choice)


GRAPHED = {"cluster": "b200-hgx", "cuda_graphs": "full", "dispatcher": "hybridep"}


@pytest.mark.parametrize(
    ("model", "gpus", "options", "on", "off"),
    [
        ("llama3-8b", 16, {}, "tp+dp", "none"),
        ("llama3-70b", 64, {}, "tp+dp", "tp"),
        ("llama3-70b", 64, {}, "tp+dp", "dp"),
        ("mixtral-8x7b", 32, GRAPHED, "tp+dp+ep", "tp+dp"),
    ],
)
def test_an_overlap_switched_off_is_never_faster(model, gpus, options, on, off):
    """Which is why the full space does not try it."""
    rows = sample(legal(model, gpus, **options), 3000)
    with_s, without_s = (
        evaluate(rows, job(model, gpus, **options, overlap=text)).step.step_time_s for text in (on, off)
    )
    assert (with_s <= without_s * (1 + 1e-12)).all()
    assert (with_s < without_s * (1 - 1e-6)).any()


# -- plan files --


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "zb-h1,zb-v", "framework": "generic"},
        {"schedule": "dualpipe", "pins": {"pp": 2}, "framework": "generic"},
        {"axis_order": "tp-cp-ep-pp-dp,tp-cp-ep-dp-pp"},
        {"overlap": "none,dp", "pipeline_split": "cost"},
        {"precision": "fp8-delayed,bf16", "offload": "optimizer,none", "gbs": "64,128"},
        {"cluster": ["b200-hgx", "h200-hgx"], "framework": "torchtitan,megatron-lm"},
        {"pareto": "tokens_per_s,memory", "precision": "bf16,fp8"},
    ],
)
def test_a_saved_plan_of_any_job_is_estimated_to_the_last_digit(tmp_path, options):
    result = plan("llama3-8b", 16, top=3, **options)
    for rank in range(1, len(result.plans) + 1):
        path = tmp_path / f"{rank}.toml"
        save_plan(path, result, rank)
        again, row = estimate_file(path), result.plans[rank - 1]
        assert replace(again.plan, rank=rank, variants=row.variants) == row
        assert again.breakdown == result.estimates[rank - 1].breakdown
        assert again.job == result.estimates[rank - 1].job


def test_a_placement_takes_the_order_of_its_plan_file(tmp_path):
    path = tmp_path / "p.toml"
    save_plan(path, plan("llama3-8b", 16, axis_order="tp-pp", framework="generic", pins={"pp": 2, "tp": 2}), 1)
    assert gpuscale.place_ranks(plan_file=path).placed.order == ("tp", "pp", "cp", "ep", "dp")
    assert gpuscale.place_ranks(plan_file=path, axis_order="-".join(AXES)).placed.order == AXES


# -- why --


def test_why_ranks_a_layout_among_the_plans_of_all_jobs():
    options = {"gbs": 64, "pins": {"zero": 1, "tp": "1,2", "cp": 1}}
    together = plan(
        "llama3-8b", [8, 16], unfold=True, top=600, why="tp=2,pp=2,dp=2,cp=1,mbs=2,recompute=none", **options
    )
    why, best = together.why, together.plans[0]
    assert why.status == "ranked"
    hours = [own["gpu_hours_per_1e12_tokens"] for own in together.compared.values]
    mine = why.plan.step_time_s * 8 / 3600 / (64 * 4096) * 1e12
    assert why.rank_of_all == 1 + sum(value < mine * (1 - 1e-12) for value in hours)
    assert why.plan.rank == why.rank <= why.rank_of_all
    assert why.slower_than_best == pytest.approx(best.tokens_per_s / why.plan.tokens_per_s - 1)
    assert why.best_breakdown == together.estimates[0].breakdown


def test_why_takes_the_job_in_which_the_layout_is_best():
    slow, fast = (plan("llama3-8b", 16, precision=name, why="tp=2").why for name in ("bf16", "fp8"))
    both = plan("llama3-8b", 16, precision="bf16,fp8", why="tp=2").why
    assert both.plan.step_time_s == fast.plan.step_time_s < slow.plan.step_time_s
    illegal = plan("llama3-8b", [8, 16], why="tp=3").why
    assert (illegal.status, illegal.plan) == ("illegal", None)
    large = plan("llama3-70b", [32, 64], why="tp=1,pp=1,zero=0").why
    assert (large.status, large.rank) == ("out_of_memory", None)


def test_why_may_name_a_schedule():
    options = {"framework": "generic", "top": 1}
    why = plan("llama3-8b", 16, why="tp=2,pp=2,schedule=zb-h1", **options).why
    assert (why.status, why.plan.schedule) == ("ranked", "zb-h1")
    assert plan("llama3-8b", 16, schedule="zb-2p", why="tp=2,pp=2", **options).why.plan.schedule == "zb-2p"


# -- refusals --


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        ("8,x", {}, "'x' is not a whole number"),
        (None, {}, "is missing"),
        ([], {}, "0 values"),
        (16, {"cluster": 7}, "not a name"),
        (16, {"cluster": []}, "0 values"),
        (16, {"cluster": ["dgx-h100-superpod", "nowhere"]}, "unknown cluster"),
        (16, {"precision": "bf16,int8"}, "unknown value 'int8'"),
        (16, {"precision": "bf16,mxfp8"}, "does not run the mx recipe"),
        (16, {"schedule": "1f1b,chimera"}, "unknown value 'chimera'"),
        (16, {"axis_order": "tp-qp"}, "unknown axis"),
        (16, {"pipeline_split": "uneven"}, "unknown value 'uneven'"),
        (16, {"overlap": "tp+pp"}, "unknown part 'pp'"),
        (16, {"offload": "none,disk"}, "unknown part 'disk'"),
        (16, {"space": "huge"}, "unknown value 'huge'"),
        (16, {"objective": "joy"}, "unknown value 'joy'"),
        (16, {"objective": "cost"}, "cost needs `gpu_hour_price`"),
        (16, {"objective": "time_to_train"}, "needs `train_tokens`"),
        (16, {"max_days": 3}, "needs `train_tokens`"),
        (16, {"max_cost": 3, "train_tokens": "1T"}, "needs `gpu_hour_price`"),
        (16, {"pareto": "cost,memory"}, "cost needs `gpu_hour_price`"),
        (16, {"pareto": "memory"}, "do not make a frontier"),
        (16, {"pareto": "memory,memory"}, "do not make a frontier"),
        (16, {"pareto": "memory,mfu,cost,gpu_hours"}, "do not make a frontier"),
        (16, {"pareto": "memory,joy"}, "unknown value 'joy'"),
        (16, {"pareto": "memory,mfu", "objective": "mfu"}, "are mutually exclusive"),
        (16, {"pareto": "memory,mfu", "why": "tp=2"}, "are mutually exclusive"),
        (16, {"gpu_hour_price": "cheap"}, "is not a price"),
        (16, {"gpu_hour_price": -1}, "out of range"),
        (16, {"gpu_hour_price": float("nan")}, "out of range"),
        (16, {"gpu_hour_price": "mars=2"}, "not one of the clusters"),
        (16, {"gpu_hour_price": ["2", "3"]}, "given twice"),
        (16, {"train_tokens": "many"}, "not a count"),
        (16, {"min_mfu": 101}, "out of range"),
        (16, {"max_memory": "70GB/s"}, "not a size"),
        (16, {"max_memory": -3}, "out of range"),
        (16, {"max_step_time": float("inf")}, "out of range"),
        ("1..1000000", {}, "1..1000000 is 37 searches on dgx-h100-superpod, at most 24"),
        (
            "8..2048",
            {"seq": "1..65536", "gbs": "1..1000000"},
            f"more than {MAX_VARIANTS} combinations of `gpus`, `seq`, `gbs`",
        ),
        (
            16,
            {"cluster": ["h200-hgx", "b200-hgx"], "gpu_hour_price": "h200-hgx=2", "objective": "cost"},
            "cost of b200-hgx needs",
        ),
    ],
)
def test_unusable_questions_are_refused_with_one_message(gpus, options, message):
    with pytest.raises(InputError) as caught:
        plan("llama3-8b", gpus, **options)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert len(str(caught.value)) < 500


def test_a_combination_that_cannot_be_is_left_out_with_a_note():
    result = plan("llama3-8b", 16, cluster=["h200-hgx", "b200-hgx"], precision="bf16,mxfp8", pins={"tp": 1, "zero": 1})
    assert len(result.compared.variants) == 3
    assert any(note.startswith("not tried: h200-hgx, mxfp8: ") for note in result.notes)


def test_nothing_fits_in_any_job():
    with pytest.raises(NoAnswerError, match=r"fits on 8 x .* the nearest miss, TP8") as caught:
        plan("llama3-70b", [2, 4, 8])
    assert "it would fit with" in caught.value.hint
    with pytest.raises(InputError, match="16 GPUs cannot be split by TP 5"):
        plan("llama3-8b", [16, 32], pins={"tp": 5})
    assert (
        plan("llama3-70b", [8, 64], pins={"tp": 8}).compared.variants[0].reason.startswith("the smallest layout needs")
    )


def test_a_schedule_is_a_pin_like_the_others():
    job = {"framework": "generic", "gbs": 64, "top": 2}
    by_option = plan("llama3-8b", 16, schedule="1f1b,zb-h1", pp=2, **job)
    by_pin = plan("llama3-8b", 16, pins={"schedule": ["1f1b", "zb-h1"], "pp": 2}, **job)
    assert by_pin.plans == by_option.plans
    assert {row.choice["schedule"] for row in by_pin.compared.variants} == {"1f1b", "zb-h1"}
    with pytest.raises(InputError, match="given twice"):
        plan("llama3-8b", 16, schedule="gpipe", pins={"schedule": "zb-h1"}, **job)
