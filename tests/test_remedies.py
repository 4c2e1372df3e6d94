"""What makes a layout fit: each remedy, made, gives the fit, memory and time that it promises."""

import json

import pytest
from command import gpuscale

from gpuscale import estimate, plan
from gpuscale.request import JobOptions, declared

LLAMA = {"model": "llama3.1-405b", "gpus": 1024, "seq": 8192}
CASES = {
    "405B of NVIDIA's recipe": (LLAMA, {"tp": 8, "pp": 8, "vpp": 8, "cp": 2}),
    "GPT-3 without a pipeline": ({"model": "gpt3-175b", "gpus": 64, "cluster": "dgx-a100-superpod"}, {"tp": 8}),
    "70B on a node": ({"model": "llama3-70b", "gpus": 8}, {"tp": 8}),
    "Mixtral on a node": ({"model": "mixtral-8x7b", "gpus": 8}, {"ep": 8}),
    "DP and shard size given": (
        {"model": "llama3-70b", "gpus": 64},
        {"tp": 4, "pp": 2, "dp": 8, "shard": 4, "micro_batch_size": 2},
    ),
    "DeepSpeed": ({"model": "llama3-70b", "gpus": 16, "framework": "deepspeed"}, {}),
    "parameters in fp32": ({"model": "llama3-8b", "gpus": 8, "framework": "llm-foundry"}, {"micro_batch_size": 8}),
}


def made(job, layout, change):
    """The estimate with a remedy made, as a user would paste it."""
    options = {name: value for name, value in change.items() if name in declared(JobOptions)}
    rest = {name: value for name, value in change.items() if name not in options}
    return estimate(**job | options, layout=layout | rest).plan


@pytest.mark.parametrize("case", CASES)
def test_each_remedy_made_gives_what_it_promises(case):
    job, layout = CASES[case]
    was = estimate(**job, layout=layout)
    assert was.plan.fit == "no"
    assert was.remedies
    for remedy in was.remedies:
        plan = made(job, layout, remedy.change)
        assert (plan.fit, plan.memory_gib, plan.step_time_s) == (remedy.fit, remedy.memory_gib, remedy.step_time_s)
        assert remedy.memory_gib < was.plan.memory_gib
        assert remedy.slower == pytest.approx(remedy.step_time_s / was.plan.step_time_s - 1)
    order = [(int(remedy.change.get("tp", 1)) > 8, remedy.step_time_s) for remedy in was.remedies]  # nodes of 8
    assert order == sorted(order)


def test_what_fits_needs_no_remedy():
    assert estimate("llama3-8b", 16).remedies == ()


def test_gradients_in_16_bits_are_enough_for_nvidias_layout_of_405b():
    assert dict(estimate(**LLAMA, layout=CASES["405B of NVIDIA's recipe"][1]).remedies[0].change) == {
        "grad_dtype": "bf16"
    }


def test_pairs_are_tried_where_no_change_is_enough():
    job, layout = CASES["GPT-3 without a pipeline"]
    assert len(estimate(**job, layout=layout).remedies[0].change) == 2


def test_the_nearest_is_named_where_nothing_is_enough():
    (nearest,) = estimate("llama3.1-405b", 8, {"tp": 8}).remedies
    assert nearest.fit == "no"
    done = gpuscale("estimate", "--model", "llama3.1-405b", "--gpus", "8", "--tp", "8")
    assert "no single change or pair of changes is enough; nearest: --" in done.out


def test_of_a_tight_layout_only_what_fits_is_a_remedy():
    tight = estimate("llama3-8b", 8, {"tp": 2, "micro_batch_size": 4})
    assert tight.plan.fit == "tight"
    assert {remedy.fit for remedy in tight.remedies} == {"fits"}


def test_optimizers_without_low_moments_are_not_offered_them():
    job, layout = CASES["parameters in fp32"]
    changed = {name for remedy in estimate(**job, layout=layout).remedies for name in remedy.change}
    assert not {"grad_dtype", "moment_dtype"} & changed


def test_why_has_the_remedies_of_the_layout_as_it_stands():
    why = plan(**LLAMA, why="tp=8,pp=8,vpp=8,cp=2", top=1).why
    assert why.status == "ranked"
    assert (why.plain.fit, why.plain.recompute) == ("no", "none")
    assert dict(why.remedies[0].change) == {"grad_dtype": "bf16"}
    assert plan("llama3-8b", 16, why="tp=2", top=1).why.plain is None


def test_why_stays_within_24_lines():
    arguments = ("plan", "--model", "llama3.1-405b", "--gpus", "1024", "--seq", "8192")
    done = gpuscale(*arguments, "--why", "tp=8,pp=8,vpp=8,cp=2")
    assert "--grad-dtype bf16: 71." in done.out
    assert len(done.out.splitlines()) <= 24
    assert len(json.loads(gpuscale(*arguments, "--why", "tp=8,pp=8,vpp=8,cp=2", "--json").out)["why"]["remedies"]) > 4


def test_where_nothing_fits_another_job_is_named_that_does():
    done = gpuscale("plan", "--model", "llama3-70b", "--gpus", "8")
    assert done.code == 1
    assert "it would fit with --offload optimizer, or --tune lora, or " in done.err


def test_long_sequences_in_a_users_own_loop_fit_with_head_and_loss_in_one_kernel():
    """Logits of 65,536 tokens and 151,936 words take 10 bytes each in eager PyTorch; nobody keeps them."""
    options = {"gpus": 8, "seq": 65536, "framework": "accelerate"}
    first = estimate("qwen3-4b", layout={"zero": 3, "recompute": "full"}, **options).remedies[0]
    assert first.change == {"loss": "linear"}
    assert first.fit == "fits"
    assert -0.02 < first.slower < 0  # its kernel moves less than eager code does
    megatron = estimate("qwen3-4b", layout={"tp": 1}, **{**options, "framework": "megatron-lm"}).remedies
    assert not any("loss" in one.change for one in megatron)
