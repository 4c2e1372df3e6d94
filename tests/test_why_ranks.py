"""A layout that is asked about has the number of the table, and the first choice is said to be it."""

import json
import re
from dataclasses import replace

import pytest
from command import gpuscale as command

import gpuscale
from gpuscale.render.plan import rank_texts

JOBS = {
    "near": ("llama3-70b", 64, {"top": 6}),  # the first three are ordered by the rule, not by time
    "experts": ("mixtral-8x7b", 32, {"top": 4, "cluster": "h200-hgx"}),
    "variants": ("llama3-8b", 16, {"top": 8, "unfold": True}),
    "risk": ("llama3-8b", 64, {"top": 3, "risk": 0.9}),
    "memory": ("llama3-8b", 16, {"top": 6, "objective": "memory"}),
    "jobs": ("llama3-8b", [8, 16, 32], {}),
    "variants of jobs": ("llama3-8b", 16, {"precision": "bf16,fp8", "top": 8, "unfold": True}),
    "pinned": ("llama3-8b", 64, {"top": 6, "pins": {"tp": "2..8"}, "max_memory": 60}),
}


def layout_of(plan):
    """Every degree of a printed plan, as `--why` takes it."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "recompute")
    said = {name: getattr(plan, name) for name in names} | {"sp": int(plan.sp), "mbs": plan.micro_batch_size}
    said |= {"shard": plan.shard_size} if plan.zero > 1 else {}
    return ",".join(f"{name}={value}" for name, value in said.items())


@pytest.mark.parametrize("name", JOBS)
def test_every_printed_plan_has_its_own_number(name):
    model, gpus, options = JOBS[name]
    found = gpuscale.plan(model, gpus, **options)
    assert len(found.plans) > 2
    for number, plan in enumerate(found.plans, 1):
        why = gpuscale.plan(model, gpus, why=layout_of(plan), **options).why
        if name == "variants of jobs" and why.plan.tokens_per_s != plan.tokens_per_s:
            continue  # the same layout in the other job is better
        assert (plan.rank, why.rank, why.plan.rank) == (number, number, number), layout_of(plan)
        assert replace(why.plan, variants=plan.variants) == plan
        assert why.slower_than_best == pytest.approx(found.plans[0].tokens_per_s / plan.tokens_per_s - 1, abs=1e-12)


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize("name", ["near", "risk", "jobs"])
def test_a_number_is_said_as_the_table_has_it(name):
    model, gpus, options = JOBS[name]
    found = gpuscale.plan(model, gpus, **options)
    flags = ["--risk", "0.9"] * ("risk" in options) + ["--top", 10]
    many = ",".join(map(str, gpus)) if isinstance(gpus, list) else gpus
    for plan in found.plans[:2]:
        arguments = ("plan", "--model", model, "--gpus", many, *flags, "--why", layout_of(plan))
        done = command(*arguments, columns=300)
        head = next(line for line in done.lines if line.startswith("tp="))
        assert re.search(rf": #{plan.rank}(, the first choice)?; by ", head)
        assert ("the first choice" in head) == (plan.rank == 1)
        assert json.loads(command(*arguments, "--json").out)["why"]["rank"] == plan.rank
        if plan.rank == 1:
            assert "against #1" not in "\n".join(done.lines[done.lines.index(head) :])


def test_the_first_choice_says_by_which_rule_it_is_ahead_of_what_is_faster():
    done = command("plan", "--model", "llama3-70b", "--gpus", 640, "--why", "tp=4,pp=4,vpp=5")
    text = " ".join(done.out.split())
    assert re.search(r"tp=4,pp=4,vpp=5: #1, the first choice; by step time alone [0-9,]+ of", text)
    assert re.search(
        r"why first takes [\d.]+% longer than TP4.* on paper.*first because measured runs are similar", text
    )


def test_a_variant_that_is_not_listed_is_said_not_to_be():
    model, gpus, options = JOBS["near"]
    found = gpuscale.plan(model, gpus, why="tp=4,pp=4,vpp=8,mbs=1", **options)
    assert found.why.rank > 1
    assert found.why.plan.step_time_s < found.plans[0].step_time_s  # faster on paper, and still not the choice
    done = command("plan", "--model", model, "--gpus", gpus, "--why", "tp=4,pp=4,vpp=8,mbs=1")
    assert "not in the table, would be #2; by step time alone 1 of" in done.out


def test_a_first_plan_that_ties_with_no_other_has_no_mark():
    result = gpuscale.plan("llama3-8b", 64)
    standings = [replace(one, tied=index == 0) for index, one in enumerate(result.choice.standings)]
    for tied, first in ((standings, "1"), ([replace(one, tied=True) for one in standings], "1=")):
        assert rank_texts(replace(result, choice=replace(result.choice, standings=tuple(tied))))[0] == first
