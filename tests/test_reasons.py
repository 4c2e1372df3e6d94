"""What `explain` says in words is true: changes equal their reruns, the choice is `plan`'s, flips flip."""

import json
import math
import re
from dataclasses import replace

import pytest
from command import gpuscale as command

import gpuscale
from gpuscale.cli.options import arguments
from gpuscale.explain.changes import changes_of, rejected, suggestions
from gpuscale.explain.choice import field_of, flips, standing
from gpuscale.explain.explanation import NEIGHBOURS, reasons, thresholds
from gpuscale.launch.subject import read_subject
from gpuscale.layouts.pins import Pins
from gpuscale.planning.describe import bound_parts
from gpuscale.planning.layouts import layout_text
from gpuscale.search.loop import search, search_near
from gpuscale.specs.job import JobSpec
from gpuscale.units import format_seconds

LLAMA = {"model": "llama3-70b", "gpus": 640}, {"tp": 8, "pp": 4}
DEEPSEEK = {"model": "deepseek-v3", "gpus": 2048, "cluster": "h800-deepseek"}, {"pp": 16, "ep": 64, "recompute": "full"}
ZERO3 = {"model": "llama3-8b", "gpus": 64, "framework": "torchtitan", "seq": 8192}, {"zero": 3, "recompute": "full"}
UNFIT = {"model": "llama3.1-405b", "gpus": 512, "seq": 16384}, {"tp": 8, "pp": 8}
PINNED = (
    {"model": "mixtral-8x22b", "gpus": 128, "set": "leaf.link_gb_per_s=25", "grad_dtype": "bf16"},
    {"tp": 4, "dp": 8, "pp": 4, "ep": 8},
)
REDUCED = {"model": "llama3.1-405b", "gpus": 2048, "framework": "generic", "seq": 8192, "grad_reduce": "last"}, {
    "tp": 8, "pp": 16, "vpp": 8, "zero": 2,
}  # fmt: skip
BOX = {"model": "llama3-8b", "gpus": 8}
JOBS = pytest.mark.parametrize(
    "asked",
    [LLAMA, DEEPSEEK, ZERO3, UNFIT, PINNED, REDUCED],
    ids=["llama", "deepseek", "zero3", "unfit", "pinned", "reduced"],
)


def subject(asked):
    return read_subject(None, *asked)


@JOBS
def test_each_suggestion_equals_its_rerun(asked):
    one = subject(asked)
    found = suggestions(changes_of(one), lambda options: arguments("estimate", options))
    assert found
    for each in found:
        rerun = json.loads(command(*each.command, "--json").out)["plan"]
        assert rerun["step_time_s"] == each.step_time_s, each.change
        assert rerun["fit"] == each.fit
        gain = rerun["tokens_per_s"] / one.estimate.plan.tokens_per_s - 1
        assert each.gain == pytest.approx(gain, abs=1e-12)
        assert f"{100 * gain:+.1f}% tokens/s" in each.change
        assert rerun["fit"] != "no"


@JOBS
def test_no_single_change_that_is_left_out_is_better(asked):
    changes = changes_of(subject(asked))
    shown = suggestions(changes, lambda _: ())
    kinds = {each.change.partition(" ")[0] for each in shown}
    assert len(kinds) == len(shown) or any("," in each.change for each in shown)
    worst = min(each.gain for each in shown)
    for one in changes.every:
        if changes.may_run(one) and changes.gain(one) > worst:
            same = [each for each in shown if each.gain >= changes.gain(one)]
            assert same, one.change


def test_shares_of_a_change_are_those_of_the_two_estimates():
    one = subject(LLAMA)
    found = {each.change.partition(":")[0]: each for each in suggestions(changes_of(one), lambda _: ())}
    each = found["tp 8 -> 4"]
    before = one.estimate
    after = gpuscale.estimate("llama3-70b", 640, {"tp": 4, "pp": 4})
    name, first, then = re.search(r": (\w+ comm) (\d+) -> (\d+)%", each.change).groups()
    assert name == "TP comm"
    for share, estimate in ((first, before), (then, after)):
        assert int(share) == round(100 * estimate.breakdown["tp_comm"] / estimate.plan.step_time_s)


def test_what_is_not_worth_it_says_what_estimate_says():
    one = subject(UNFIT)
    found = {each.change: each for each in rejected(changes_of(one), NEIGHBOURS)}
    for each in found.values():
        assert each.gain is None or not math.isnan(each.gain)
    assert any(each.why.startswith("cannot run: ") for each in found.values())
    change, each = next(pair for pair in found.items() if pair[1].why.startswith("does not fit"))
    needed = float(re.search(r"([\d.]+) of", each.why)[1])
    name, value = re.fullmatch(r"(\w+) \S+ -> (\S+)", change).groups()
    layout = {"tp": 8, "pp": 8} | {{"microbatch": "micro_batch_size", "ZeRO": "zero"}.get(name, name): value}
    layout = {key: int(text) if str(text).isdigit() else text for key, text in layout.items()}
    assert gpuscale.estimate("llama3.1-405b", 512, layout, seq=16384).plan.memory_gib == pytest.approx(needed, abs=0.06)


@pytest.mark.parametrize(("model", "gpus", "more"), [
    ("llama3-70b", 640, {}), ("mixtral-8x7b", 64, {}), ("llama3-8b", 16, {"framework": "torchtitan"}),
    ("deepseek-v3", 2048, {"cluster": "h800-deepseek"}), ("llama3.1-405b", 1024, {"seq": 8192}),
])  # fmt: skip
def test_the_choice_is_the_first_plan_of_plan(model, gpus, more):
    answer = gpuscale.plan(model, gpus, top=1, **more)
    first = answer.plans[0]
    settings = {name: answer.job[name] for name in ("cuda_graphs", "overlap", "dispatcher") if name in answer.job}
    other = {"ep": 8, "etp": 1} if settings else {"tp": min(8, gpus)}
    one = read_subject(None, {"model": model, "gpus": gpus, **more, **settings}, other)
    field = field_of(one)
    row = field.rows.row(field.first)
    assert {name: row[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "micro_batch_size")} == {
        name: getattr(first, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "micro_batch_size")
    }
    assert standing(one, field).best_step_time_s == first.step_time_s


@JOBS
def test_a_pruned_search_finds_the_families_that_a_full_one_finds(asked):
    job: JobSpec = subject(asked).spec
    full, (near, _) = search(job, Pins()), search_near(job, Pins(), 0.2)
    if not full.feasible:
        assert not near.feasible
        return
    limit = full.families.score[0] * 1.2
    assert (
        near.families.score[near.families.score <= limit].tolist()
        == full.families.score[full.families.score <= limit].tolist()
    )


@pytest.mark.parametrize("asked", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
def test_where_a_batch_sequence_or_memory_flips_the_choice_a_search_agrees(asked):
    field = field_of(subject(asked))
    for flip in flips(field):
        job = {"batch": "global_batch_size", "sequence": "sequence"}.get(flip.quantity)
        if job is None and flip.quantity != "memory of a GPU":
            continue
        name = job or "memory_limit_bytes"
        value = getattr(field.job, name) * flip.factor
        changed = replace(field.job, **{name: int(value) if job else value})
        own = {key: getattr(field.rows, key)[field.first] for key in ("tp", "pp", "cp", "ep", "etp")}
        found = search(changed, Pins())
        best = found.families.score[0]
        same = [
            index for index in range(len(found.families.score))
            if all(getattr(found.families.rows, key)[index] == size for key, size in own.items())
            and (found.families.rows.recompute_layers[index] > 0) == (field.rows.recompute_layers[field.first] > 0)
        ]  # fmt: skip
        assert all(found.families.score[index] > 1.009 * best for index in same), flip


def test_flips_are_in_the_order_of_the_change_and_name_other_families():
    field = field_of(subject(LLAMA))
    found = flips(field)
    assert [abs(math.log(one.factor)) for one in found] == sorted(abs(math.log(one.factor)) for one in found)
    assert {one.quantity for one in found} >= {"memory of a GPU", "bandwidth within nodes"}
    assert layout_text(field.rows.row(field.first)) not in {one.plan for one in found}


def test_thresholds_are_those_of_the_reference():
    """Data parallelism 2,472 tokens without in-network reduction, TP F/1923, 295 FLOPs per byte, all of one H100."""
    found = {one.name.partition(" [")[0]: one for one in thresholds(subject(LLAMA))}
    assert found["tokens per GPU of a stage for data parallelism"].needed == pytest.approx(2472, rel=2e-3)
    assert found["TP degree"].needed == pytest.approx(28672 / 1923, rel=2e-3)
    assert found["arithmetic intensity"].needed == pytest.approx(295, rel=2e-3)
    assert found["tokens per GPU of a stage for data parallelism"].now == 1280 * 4096 * 4 / 640


def test_the_experts_threshold_is_that_of_the_reference():
    """E C / (2 k W z) of DeepSeek-V3 is 4,944 tokens per GPU with in-network reduction: 9,888 without."""
    found = {one.name.partition(" [")[0]: one for one in thresholds(subject(DEEPSEEK))}
    assert found["tokens per GPU of a stage for data parallelism of the experts"].needed == pytest.approx(
        9888, rel=2e-3
    )


def limits(model, gpus, layout, **options):
    every = thresholds(subject(({"model": model, "gpus": gpus, "framework": "generic", **options}, layout)))
    return {one.name.partition(" [")[0]: one for one in every}


def test_switches_add_up_gradients_only_where_no_states_are_sharded():
    """ReduceScatter and AllGather of ZeRO send as much over NVLink switches as without them: AllReduce half of it."""
    plain, sharded = (limits("mixtral-8x7b", 8, {"ep": 2, "zero": stage}) for stage in (0, 1))
    ways = [name for name in plain if name.startswith("tokens per GPU")]
    assert len(ways) == 2
    for name in ways:
        assert sharded[name].needed == 2 * plain[name].needed


def test_experts_of_the_same_width_stand_as_much_more_tp_as_a_token_visits():
    """Llama 3 8B and Mixtral 8x7B have blocks of 14,336; a token visits two of the latter."""
    dense, experts = (
        limits(model, 8, {"tp": 2, **more})["TP degree"].needed
        for model, more in (("llama3-8b", {}), ("mixtral-8x7b", {"etp": 2}))
    )
    assert experts == pytest.approx(2 * dense)


@pytest.mark.parametrize(
    ("model", "layout", "tokens", "width"),
    [  # tokens of a product: of the rank, or what the ranks of its experts bring of the 2 in 8 that one gets
        ("llama3-8b", {"tp": 2, "cp": 2}, 4096 / 2, 14336 / 2),
        ("mixtral-8x7b", {"ep": 4, "etp": 1}, 4 * 4096 * 2 / 8, 14336),
        ("mixtral-8x7b", {"tp": 2, "ep": 2, "etp": 2}, 4 * 4096 / 2 * 2 / 8, 14336 / 2),
    ],
)
def test_the_intensity_of_a_product_is_half_the_harmonic_mean_of_its_sides(model, layout, tokens, width):
    found = limits(model, 8, {**layout, "micro_batch_size": 1}, seq=4096)["arithmetic intensity"].now
    assert found == pytest.approx(1 / (1 / tokens + 1 / width + 1 / 4096))


@pytest.mark.parametrize("room", [0.98, 1.02, 1.5])
def test_the_two_limits_of_memory_tell_what_fits_from_what_is_tight(room):
    options = {"model": "llama3-8b", "gpus": 8, "memory_limit_gib": subject((BOX, {})).estimate.plan.memory_gib * room}
    one = subject((options, {}))
    able, comfortable = (each.holds for each in thresholds(one) if each.name.startswith("memory"))
    assert one.estimate.plan.fit == ("fits" if comfortable else "tight" if able else "no")
    assert (able, comfortable) == (room > 1, room > 1.1)


def test_with_the_microbatches_that_the_bubble_needs_it_is_small_and_with_fewer_not():
    one = subject(({**DEEPSEEK[0], "gbs": 2048}, DEEPSEEK[1]))
    limit = next(each for each in thresholds(one) if each.name == "microbatches per step")
    assert not limit.holds
    for count, small in ((int(limit.needed), True), (int(limit.needed) - 1, False)):
        more = gpuscale.estimate("deepseek-v3", 2048, DEEPSEEK[1], cluster="h800-deepseek", gbs=count * 128).plan
        assert (more.bubble_fraction <= 0.05) is small


@pytest.mark.parametrize(("model", "gpus", "layout"), [
    ("llama3-70b", 640, {"tp": 8, "pp": 4}), ("mixtral-8x7b", 64, {"ep": 8}), ("llama3-8b", 8, {}),
])  # fmt: skip
def test_below_the_threshold_of_launches_fewer_tokens_save_little_time_and_above_it_much(model, gpus, layout):
    """Half the tokens take half the time where the GPU is busy, and nearly all of it where the CPU is."""
    one = subject(({"model": model, "gpus": gpus}, layout))
    limit = next(each for each in thresholds(one) if each.name == "tokens per microbatch")
    near = 2 ** round(math.log2(limit.needed))
    step_s = {
        seq: gpuscale.estimate(model, gpus, layout, seq=seq, gbs=1280).plan.step_time_s
        for seq in (near // 4, near // 2, 4 * near, 8 * near)
    }
    assert step_s[near // 4] > 0.8 * step_s[near // 2]
    assert step_s[4 * near] < 0.6 * step_s[8 * near]


@JOBS
def test_the_first_sentence_says_what_binds_with_the_shares_of_the_breakdown(asked):
    one = subject(asked)
    said = reasons(one).sentences
    parts = ", ".join(bound_parts(one.estimate.breakdown))
    assert said[0] == f"The step of {format_seconds(one.estimate.plan.step_time_s)} is bound by {parts}."
    assert all(text.endswith(".") for text in said)


def test_of_a_plan_that_does_not_fit_the_changes_make_it_fit():
    found = suggestions(changes_of(subject(UNFIT)), lambda _: ())
    assert {each.fit for each in found} <= {"fits", "tight"}
    assert not subject(UNFIT).estimate.plan.fits
