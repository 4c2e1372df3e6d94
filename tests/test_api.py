"""`plan`, `estimate`, `--why` and plan files, through the Python functions behind the commands."""

import math
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import built

import gpuscale
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.files import write_text
from gpuscale.launch.subject import estimate_file, stated_plan
from gpuscale.planning.jobs import default_batch, own_dispatcher
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.planfile import read_plan_file
from gpuscale.planning.plans import estimate, plan, save_plan
from gpuscale.presets.models import load_model
from gpuscale.request import parse_layout
from gpuscale.rules.check import ALL_RULES
from gpuscale.steptime.components import BOUNDS, COMPONENTS

# -- defaults --


@pytest.mark.parametrize(
    ("gpus", "sequence", "batch"),
    [
        (640, 4096, 1280), (6144, 4096, 3072), (1025, 16_384, 205), (8, 4096, 1024), (7, 4096, 896),
        (1009, 4096, 1009), (2048, 4096, 2048), (16_384, 8192, 2048), (16_384, 131_072, 128),
        (1_048_576, 4096, 32_768), (1, 2**24, 1),
    ],
)  # fmt: skip
def test_the_default_batch_grows_with_the_root_of_the_gpus(gpus, sequence, batch):
    assert default_batch(load_model("llama3-70b"), gpus, sequence) == batch


@pytest.mark.parametrize(
    ("model", "gpus", "mi_tokens"),
    [("gpt3-125m", 64, 0.5), ("gpt3-1.3b", 64, 1.5), ("llama2-7b", 64, 4), ("llama3.1-405b", 64, 4),
     ("mixtral-8x7b", 64, 8), ("deepseek-v3", 64, 16), ("deepseek-v3", 4, 16)],
)  # fmt: skip
def test_the_default_batch_follows_the_model(model, gpus, mi_tokens):
    batch = default_batch(load_model(model), gpus, 4096)
    assert batch % gpus == 0
    assert batch * 4096 / 2**20 == pytest.approx(mi_tokens, abs=0.3)


def test_a_batch_that_starves_gpus_is_noted_where_a_model_needs_no_splitting():
    def noted(model, **given):
        return any("fewer sequences than" in note for note in built(model, 2048, **given).notes)

    assert noted("llama3-8b", gbs=512)
    assert not noted("llama3-8b", gbs=2048)
    assert not noted("llama3-8b")
    assert not noted("llama3.1-405b", gbs=512)
    assert not noted("llama3.1-8b", gbs=64, seq=131_072)  # 4,096 tokens per GPU, split by CP
    assert noted("llama3.1-8b", gbs=63, seq=131_072)


def test_a_batch_that_nobody_trains_with_is_noted():
    assert built("llama3-8b", 640).notes == ()
    (note,) = (one for one in built("llama3-8b", 1_048_576).notes if "batch" in one)
    assert note == "a global batch of 128 Mi tokens is more than most models are trained with"


@pytest.mark.parametrize(("model", "mi_tokens", "is_noted"), [
    ("gpt3-125m", 4, False), ("gpt3-125m", 8, True), ("llama3-8b", 32, False), ("llama3-8b", 64, True),
    ("deepseek-v3", 128, False), ("deepseek-v3", 256, True),
])  # fmt: skip
def test_how_large_a_batch_is_noted_follows_the_model(model, mi_tokens, is_noted):
    notes = built(model, 64, seq=2048, gbs=mi_tokens * 512).notes
    assert any("is more than most models are trained with" in note for note in notes) == is_noted


@pytest.mark.parametrize(("peers", "own"), [(8, "deepep"), (16, "deepep"), (72, "hybridep")])
def test_only_racks_take_hybridep_for_deepep(peers, own):
    assert own_dispatcher(SimpleNamespace(dispatcher="deepep"), SimpleNamespace(peer_gpus=peers)) == own
    assert own_dispatcher(SimpleNamespace(dispatcher="alltoall"), SimpleNamespace(peer_gpus=peers)) == "alltoall"


def test_a_short_model_gets_its_own_sequence():
    assert built("gpt3-175b", 64).spec.sequence == 2048


def test_every_default_is_stated():
    said = built("mixtral-8x7b", 64).assumptions
    assert set(said) >= {
        "cluster", "sequence", "global_batch", "precision", "optimizer", "memory_limit", "vocabulary", "moe_imbalance",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 18), ({"grad_dtype": "bf16"}, 16), ({"optimizer": "sgd"}, 10), ({"master_dtype": "none"}, 14),
        ({"optimizer": "lion", "moment_dtype": "bf16"}, 12), ({"moment_dtype": "FP8"}, 12),
    ],
)  # fmt: skip
def test_bytes_per_parameter(options, total):
    assert built("llama3-8b", 8, **options).spec.states.total == total


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        (0, {}), (-8, {}), (2**40, {}), (True, {}), (8, {"seq": 0}), (8, {"seq": 2**40}), (8, {"gbs": -1}),
        (8, {"gbs": 1.5}), (8, {"precision": "int8"}), (8, {"optimizer": "magic"}), (8, {"grad_dtype": "fp8"}),
        (8, {"vocab_multiple": 0}), (8, {"memory_limit_gib": 0.0}), (8, {"memory_limit_gib": math.nan}),
        (8, {"moe_imbalance": 0.5}), (8, {"moe_imbalance": math.inf}), (8, {"cluster": "nowhere"}), (8, {"cluster": 7}),
        (8, {"moe_imbalance": "much"}), (8, {"memory_limit_gib": True}), (8, {"sequence": 4096}), (None, {}),
    ],
)  # fmt: skip
def test_unusable_jobs_are_refused_with_one_message(gpus, options):
    for ask in (lambda: plan("llama3-8b", gpus, **options), lambda: estimate("llama3-8b", gpus, None, **options)):
        with pytest.raises(InputError) as caught:
            ask()
        assert caught.value.exit_code == 2
        assert "\n" not in caught.value.message


def test_none_is_an_option_that_is_not_given():
    nothing = {"seq": None, "cluster": None, "grad_dtype": None, "moe_imbalance": None}
    usual, said = plan("llama3-8b", 8, top=2), plan("llama3-8b", 8, top=2, **nothing, objective=None, max_memory=None)
    assert replace(usual, search=said.search) == said
    assert estimate("llama3-8b", 8, {"tp": None, "zero": None}, **nothing) == estimate("llama3-8b", 8)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(InputError, match="unknown option 'memory_limit'") as caught:
        plan("llama3-8b", 8, memory_limit=40)
    assert "did you mean memory_limit_gib" in caught.value.hint


# -- plan --


@pytest.fixture(scope="module")
def llama():
    return plan("llama3-8b", 64, top=20)


def test_a_plan_row_is_consistent(llama):
    assert [row.rank for row in llama.plans] == list(range(1, len(llama.plans) + 1))
    for row, full in zip(llama.plans, llama.estimates, strict=True):
        assert full.plan == row
        assert row.tp * row.pp * row.cp * row.dp == 64
        assert row.dp * row.micro_batch_size * row.num_microbatches == row.global_batch_size
        assert row.tokens_per_s == pytest.approx(row.global_batch_size * row.sequence / row.step_time_s)
        assert row.tokens_per_s_per_gpu * 64 == pytest.approx(row.tokens_per_s)
        assert row.mfu == pytest.approx(row.tflops_per_gpu * 1e12 / gpuscale.load_gpu("h100").peak("bf16"))
        assert 0 < row.mfu < 1
        assert row.fits
        assert row.memory_gib <= row.memory_limit_gib
        assert row.bound_by in BOUNDS
        assert 0 <= row.peak_stage < row.pp
        assert (row.schedule == "none") == (row.pp == 1)
        assert {0: "none", 1: "distopt"}.get(row.zero, row.sharding) == row.sharding
        assert set(full.breakdown) == set(COMPONENTS)
        assert sum(full.breakdown.values()) == pytest.approx(row.step_time_s, rel=1e-9)
        assert sum(full.memory.values()) == pytest.approx(row.memory_gib, rel=1e-9)
        assert max(full.stage_memory_gib) == pytest.approx(row.memory_gib, rel=1e-12)
        comm = sum(value for name, value in full.breakdown.items() if name.endswith("_comm"))
        assert row.exposed_comm_fraction == pytest.approx(comm / row.step_time_s)
        assert row.bubble_fraction == pytest.approx(full.breakdown["bubble"] / row.step_time_s)
    times = [row.step_time_s for row in llama.plans]
    assert times == sorted(times)
    assert sum(row.variants for row in llama.plans) <= llama.search.feasible


def test_flops_per_gpu_are_the_models_own(llama):
    """MFU by hand: 6 x (parameters without the embedding) + causal attention, per token."""
    row = llama.plans[0]
    per_token = 6 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096) + 6 * 32 * 4096 * 4097
    assert row.tflops_per_gpu * 1e12 == pytest.approx(per_token * row.tokens_per_s / 64, rel=1e-9)


def test_two_runs_differ_in_the_time_they_took_alone(llama):
    again = plan("llama3-8b", 64, top=20)
    assert replace(again, search=llama.search) == llama
    assert replace(again.search, elapsed_s=0.0) == replace(llama.search, elapsed_s=0.0)


def test_top_and_unfold():
    folded, unfolded = plan("llama3-8b", 16, top=3), plan("llama3-8b", 16, top=300, unfold=True)
    assert len(folded.plans) == 3
    assert len(unfolded.plans) == 300
    assert {row.variants for row in unfolded.plans} == {1}
    assert folded.plans[0].step_time_s == unfolded.plans[0].step_time_s
    for top in (0, -1, 10**6):
        with pytest.raises(InputError):
            plan("llama3-8b", 16, top=top)


@pytest.mark.parametrize(
    "pins", [{"tp": 8, "pp": 8, "cp": 8, "dp": 8}, {"tp": 3}, {"dp": 128}, {"zero": 3, "shard": 7}]
)
def test_pins_that_contradict_the_gpus_are_unusable_input(pins):
    with pytest.raises(InputError) as caught:
        plan("llama3-8b", 64, pins=pins)
    assert caught.value.field in pins


def test_pins_that_break_every_rule_name_the_rule():
    with pytest.raises(InputError, match="ZeRO-2 and 3 do not combine with PP"):
        plan("llama3-8b", 64, pins={"pp": 2, "zero": 3})
    with pytest.raises(InputError, match="must divide the global batch"):
        plan("llama3-8b", 64, pins={"micro_batch_size": 3})


def test_nothing_fits_is_no_answer_and_says_what_came_closest_and_what_would_do():
    with pytest.raises(NoAnswerError) as caught:
        plan("llama3-70b", 8)
    assert caught.value.exit_code == 1
    assert "nearest miss" in caught.value.message
    assert "TP" in caught.value.message
    change = re.search("`offload=(\\w+)`", caught.value.hint)[1]
    assert plan("llama3-70b", 8, top=1, offload=change).plans[0].fits
    gpus = int(re.search(r"(\d+) GPUs", caught.value.hint)[1])
    assert plan("llama3-70b", gpus, top=1).plans[0].fits
    with pytest.raises(NoAnswerError):
        plan("llama3-70b", gpus // 2)


def test_objectives_rank_by_what_they_say():
    by_memory = plan("llama3-8b", 16, objective="memory", top=5).plans
    by_time = plan("llama3-8b", 16, top=5).plans
    assert by_memory[0].memory_gib < by_time[0].memory_gib
    assert by_time[0].step_time_s < by_memory[0].step_time_s
    assert [row.memory_gib for row in by_memory] == sorted(row.memory_gib for row in by_memory)
    with pytest.raises(InputError):
        plan("llama3-8b", 16, objective="joy")


# -- why --


def test_why_ranks_a_layout_as_the_table_does(llama):
    asked = llama.plans[4]
    why = plan("llama3-8b", 64, why=f"tp={asked.tp},pp={asked.pp},cp={asked.cp}").why
    assert (why.status, why.rank) == ("ranked", 5)
    assert why.plan == replace(asked, variants=why.plan.variants)
    assert why.rank_of_all >= why.rank
    assert why.slower_than_best == pytest.approx(asked.step_time_s / llama.plans[0].step_time_s - 1)
    assert why.breakdown == llama.estimates[4].breakdown
    assert why.best_breakdown == llama.estimates[0].breakdown
    best = llama.plans[0]
    assert plan("llama3-8b", 64, why=f"tp={best.tp},pp={best.pp},cp={best.cp}").why.rank == 1


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ("tp=2", {"pins": {"zero": "3"}}),
        ("tp=2", {"max_memory": 20}),
        ("tp=2", {"max_memory": 20, "precision": "bf16,fp8"}),
        ("tp=2", {"pins": {"recompute": "full"}}),
        ("tp=1..2", {"pins": {"tp": "2..8"}}),
        ("zero=3", {"pins": {"tp": "2"}, "objective": "memory"}),
    ],
)
def test_why_accounts_for_the_best_variant_among_the_plans(asked, options):
    """Not for a better one that pins or constraints exclude."""
    found = plan("llama3-8b", 16, why=asked, unfold=True, top=400, **options)
    why, wanted = found.why, make_pins(parse_layout(asked, "why"))
    first = next(
        one
        for one in found.plans
        if all(pin.allows(np.array(getattr(one, name))) for name, pin in wanted.degrees.items())
    )
    assert (why.status, why.reasons) == ("ranked", {})
    key = (lambda one: one.memory_gib) if "objective" in options else (lambda one: one.step_time_s)
    assert key(why.plan) == key(first)
    assert found.plans[0].step_time_s * (1 + why.slower_than_best) == pytest.approx(why.plan.step_time_s)


@pytest.mark.parametrize(
    ("asked", "options", "excluding"),
    [
        ("tp=2", {"pins": {"tp": "1"}}, "`tp` excludes"),
        ("tp=2,zero=1,pp=1", {"pins": {"tp": "1", "zero": "2,3"}}, "`tp`, `zero` exclude "),
        ("recompute=none", {"pins": {"recompute": "full"}}, "`recompute` excludes"),
        ("pp=2,schedule=zb-v", {}, "`schedule` excludes"),
        ("tp=2,zero=0,pp=1,cp=1", {"max_memory": 20}, "`max_memory` excludes"),
    ],
)
def test_why_says_what_excludes_a_layout(asked, options, excluding):
    why = plan("llama3-8b", 16, why=asked, **options).why
    assert why.status == "ranked"
    assert [text for text in why.reasons.values() if text.startswith(excluding)]


def test_a_comparison_counts_families_as_each_job_does():
    """Those that are folded under another left out."""
    both = plan("llama3-8b", 16, precision="bf16,fp8")
    alone = [plan("llama3-8b", 16, top=2000, precision=precision) for precision in ("bf16", "fp8")]
    assert both.search.families == sum(one.search.families for one in alone) == sum(len(one.plans) for one in alone)


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        ("tp=8,pp=2,zero=3", {"zero_with_pp"}),
        ("tp=3", {"degrees_do_not_multiply"}),
        ("tp=4,pp=4,dp=8", {"degrees_do_not_multiply"}),
        ("mbs=3", {"batch_not_divisible"}),
        ("tp=64", {"heads_not_divisible", "kv_heads_not_divisible"}),
        ("pp=64", {"too_few_layers"}),
        ("ep=2", {"experts_not_divisible"}),
        ("sp=1,tp=1", {"sp_without_tp"}),
        ("pp=2,recompute=full:30", {"recompute_layers_too_many"}),
        ("pp=4,vpp=2,mbs=32,dp=16", {"interleaving_needs_microbatches"}),
    ],
)
def test_why_names_the_rule_that_forbids_a_layout(asked, codes):
    why = plan("llama3-8b", 64, why=asked, gbs=1024).why
    assert (why.status, why.rank, why.plan) == ("illegal", None, None)
    assert set(why.reasons) & codes
    if codes != {"degrees_do_not_multiply"}:
        assert set(why.reasons) <= {rule.code for rule in ALL_RULES}
        assert len(why.reasons) <= 2


def test_why_says_how_much_memory_a_layout_lacks():
    why = plan("llama3-70b", 64, why="tp=1,pp=1,zero=0").why
    assert why.status == "out_of_memory"
    assert why.rank is None
    over = why.plan.memory_gib - why.plan.memory_limit_gib
    assert over > 0
    assert f"{over:.1f} GiB" in why.reasons["out_of_memory"]


def test_why_prices_a_legal_layout_that_the_search_leaves_out():
    why = plan("llama3-8b", 64, why="tp=1,pp=4,vpp=3").why  # 12 chunks of 32 layers: 2 or 3 each
    assert why.status == "ranked"
    assert why.plan.vpp == 3
    assert why.rank > 1
    assert why.slower_than_best > 0


@pytest.mark.parametrize("asked", ["", "tp", "warp=9", "tp=4,tp=2", "tp=x"])
def test_why_refuses_what_is_no_layout(asked):
    with pytest.raises(InputError):
        plan("llama3-8b", 64, why=asked)


# -- estimate --


def test_an_estimate_completes_a_layout():
    row = estimate("llama3-70b", 640, {"tp": 8, "pp": 4}).plan
    assert (row.dp, row.sp, row.zero, row.shard_size, row.micro_batch_size, row.recompute) == (
        20,
        True,
        1,
        20,
        1,
        "none",
    )
    alone = estimate("llama3-8b", 1).plan
    assert (alone.tp, alone.sp, alone.zero, alone.sharding, alone.fits) == (1, False, 0, "none", False)
    assert estimate("llama3-70b", 640, {"tp": "8", "sp": "off", "pp": "4"}).plan.sp is False
    assert estimate("llama3-70b", 640, {"tp": 8, "pp": 4, "recompute": "full"}).plan.recompute == "full:20"


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 0}, {"tp": -1}, {"tp": "x"}, {"tp": 3}, {"tp": 2**30}, {"warp": 1}, {"zero": 4}, {"sp": 2, "tp": 8},
        {"tp": 8, "pp": 4, "dp": 7}, {"micro_batch_size": 0}, {"recompute": "some"}, {"recompute": 3}, {"tp": 1.5},
    ],
)  # fmt: skip
def test_unusable_layouts_are_refused(layout):
    with pytest.raises(InputError):
        estimate("llama3-70b", 640, layout)


def test_an_illegal_layout_names_every_rule_it_breaks():
    with pytest.raises(InputError, match=r"zero_with_pp.*batch_not_divisible"):
        estimate("llama3-8b", 64, {"pp": 2, "zero": 2, "micro_batch_size": 3})


# -- plan files --


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("llama3-70b", 640, {}),
        (
            "llama3-8b",
            24,
            {"optimizer": "Lion", "grad_dtype": "BF16", "memory_limit_gib": 999.9, "seq": 2**21, "gbs": 24},
        ),
        ("mixtral-8x7b", 32, {"moe_imbalance": 1.3, "precision": "fp8", "vocab_multiple": 64}),
        ("gemma2-27b", 48, {"cluster": "dgx-a100-superpod", "master_dtype": "none"}),
    ],
)
def test_a_saved_plan_is_estimated_to_the_last_digit(tmp_path, model, gpus, options):
    result = plan(model, gpus, top=12, **options)
    for rank in range(1, len(result.plans) + 1, 3):
        path = tmp_path / f"{rank}.toml"
        save_plan(path, result, rank)
        again, row = estimate_file(path), result.plans[rank - 1]
        assert replace(again.plan, rank=rank, variants=row.variants) == row
        assert again.breakdown == result.estimates[rank - 1].breakdown
        assert again.memory == result.estimates[rank - 1].memory
        save_plan(tmp_path / "again.toml", result, rank)
        assert (tmp_path / "again.toml").read_bytes() == path.read_bytes()


def test_entries_of_a_plan_file_can_be_replaced(tmp_path):
    result = plan("llama3-8b", 64, pins={"tp": 4, "pp": 2, "zero": 1}, top=1)
    path = tmp_path / "plan.toml"
    save_plan(path, result, 1)

    def changed(layout, **options):
        return stated_plan(path, options, layout).estimate().plan

    assert changed({"tp": "8"}).dp == 4
    assert changed({"tp": "1"}).sp is False
    assert (changed({"zero": "0"}).zero, changed({"zero": "0"}).shard_size) == (0, 1)
    assert changed({}, gpus=128).dp == 16
    assert changed({}, seq=2048).sequence == 2048
    assert changed({"recompute": "full"}).recompute == "full:16"


def test_a_rank_that_is_not_there_is_refused(tmp_path):
    result = plan("llama3-8b", 8, top=2)
    for rank in (0, 3, -1):
        with pytest.raises(InputError, match="there is no rank"):
            save_plan(tmp_path / "x.toml", result, rank)
    assert list(tmp_path.iterdir()) == []


GOOD = """format = "gpuscale.planfile/1"

[job]
model = "llama3-8b"
cluster = "dgx-h100-superpod"
gpus = 8
seq = 4096
gbs = 1024
precision = "bf16"

[layout]
tp = 2
sp = true
dp = 4
zero = 1
shard = 4
"""


def refused(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        estimate_file(path)
    return caught.value


def test_the_sample_itself_is_read(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(GOOD)
    options, layout = read_plan_file(path)
    assert (options["model"], options["gpus"], options["gbs"]) == ("llama3-8b", 8, 1024)
    assert (layout["tp"], layout["sp"]) == (2, True)
    assert estimate_file(path).plan.tp == 2
    path.write_text(GOOD.replace("seq = 4096", 'seq = "4k"').replace("gbs = 1024", 'gbs = "4Mtok"'))
    options, _ = read_plan_file(path)
    assert (options["seq"], options["gbs"]) == (4096, "4Mtok")
    assert estimate_file(path).job == stated_plan(path, {"gbs": 1024}, {}).estimate().job


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("tp = 2", "tp = 0", 12), ("tp = 2", "tp = -2", 12), ("tp = 2", 'tp = "2"', 12), ("tp = 2", "tp = 2.0", 12),
        ("tp = 2", "tp = true", 12), ("tp = 2", "tp = nan", 12), ("tp = 2", f"tp = {2**21}", 12),
        ("tp = 2", "tp = [2]", 12), ("tp = 2", "tp = {a = 1}", 12), ("tp = 2", "warp = 2", 12),
        ("sp = true", "sp = 1", 13), ("sp = true", 'sp = "yes"', 13), ("zero = 1", "zero = 4", 15),
        ("gpus = 8", "gpus = 1e3", 6),
        ("gbs = 1024", "gbs = nan", 8), ("gbs = 1024", "gbs = 99999999999999999999", 8), ("seq = 4096", "seq = 0", 7),
        ('"bf16"', '"int4"', 9), ('"bf16"', '"bf16"\nmoe_imbalance = nan', 10),
        ('"bf16"', '"bf16"\nmemory_limit_gib = inf', 10), ('"bf16"', '"bf16"\noptimizer = "magic"', 10),
        ("shard = 4", 'shard = 4\nrecompute = "some"', 17), ("planfile/1", "planfile/2", 1),
        ("tp = 2", "tp = 2\ntp = 4", 13), ('model = "llama3-8b"', "model = 3", 4), ("zero = 1", "zero 1", 15),
    ],
)  # fmt: skip
def test_hostile_entries_are_refused_with_file_and_line(tmp_path, old, new, line):
    assert GOOD.count(old) == 1
    error = refused(tmp_path, GOOD.replace(old, new))
    assert error.place == f"{tmp_path / 'plan.toml'}:{line}"
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "text",
    [
        "", "[job]", b"\xff\xfe\x00", "x" * 2_000_000, "[" * 5000, "a = " + "[" * 5000, GOOD + "\x00", 'a = """',
        GOOD.replace("[layout]", "[[layout]]"), GOOD + "[extra]\n", GOOD.replace("tp = 2", "tp = 4"),
        GOOD.replace('"llama3-8b"', '"../../etc/passwd"'), GOOD.replace('"dgx-h100-superpod"', '"nowhere"'),
        GOOD.replace("dp = 4", ""),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(tmp_path, text):
    assert str(refused(tmp_path, text))


@given(st.integers(0, len(GOOD) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused_or_reads_as_a_shorter_one(tmp_path, length):
    path = tmp_path / "plan.toml"
    path.write_text(GOOD[:length])
    try:
        assert estimate_file(path).gpus == 8
    except GpuscaleError as error:
        assert str(path) in str(error) or error.place


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_refused(tmp_path, noise):
    path = tmp_path / "plan.toml"
    path.write_bytes(noise)
    with pytest.raises(InputError):
        estimate_file(path)


def test_what_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(InputError):
            estimate_file(path)
    with pytest.raises(InputError, match="`model` is missing"):
        stated_plan(None, {"gpus": 8}, {})
    with pytest.raises(InputError, match="`gpus` is missing"):
        stated_plan(None, {"model": "llama3-8b"}, {})


@pytest.mark.parametrize("ask", [gpuscale.read_subject, gpuscale.explain_plan, gpuscale.check, gpuscale.train_time])
def test_two_sources_of_a_plan_and_variables_without_a_script_are_refused_alike(ask, tmp_path):
    (path := tmp_path / "plan.toml").write_text(GOOD)
    with pytest.raises(InputError, match=r"a plan file and launch files are two jobs") as caught:
        ask(plan_file=path, launch_files=["run.sh"], **({"tokens": "1T"} if ask is gpuscale.train_time else {}))
    assert caught.value.hint == "give one of them"
    with pytest.raises(InputError, match="has no effect without launch files") as caught:
        ask(plan_file=path, variables={"TP": "8"}, **({"tokens": "1T"} if ask is gpuscale.train_time else {}))
    assert caught.value.field == "variables"


def test_a_file_without_sequence_parallelism_takes_another_tp(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(GOOD.replace("sp = true\n", ""))
    assert stated_plan(path, {}, {"tp": 4}).estimate().plan.sp is True


# -- writing --


def test_a_failed_write_leaves_nothing_behind_and_the_old_file_alone(tmp_path, monkeypatch):
    (tmp_path / "folder.toml").mkdir()
    old = tmp_path / "old.toml"
    old.write_text("old")
    for path in (tmp_path / "folder.toml", tmp_path / "missing" / "x.toml", tmp_path / "a\0b", old / "x.toml"):
        with pytest.raises(InputError, match="cannot write"):
            write_text(path, "new")
    with pytest.raises(InputError):
        write_text(old, "\ud800")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_text(old, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.toml", "old.toml"]
    assert old.read_text() == "old"


def test_a_written_file_has_the_usual_rights(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "x.toml", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "x.toml").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "x.toml").read_text() == "text"


def test_links_and_pipes_are_written_to_and_stay(tmp_path):
    link, pipe = tmp_path / "link.toml", tmp_path / "pipe"
    link.symlink_to("target.toml")
    write_text(link, "one")
    write_text(link, "two")
    assert link.is_symlink()
    assert (tmp_path / "target.toml").read_text() == "two"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "text")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "pipe", "target.toml"]


def test_plans_take_what_fragmentation_usually_leaves_unless_tight_ones_are_asked_for():
    pins = {"tp": 2, "pp": 1, "micro_batch_size": 1, "recompute": "none"}
    size = estimate("llama3-8b", 8, {"tp": 2, "micro_batch_size": 1}, gbs=64).plan.memory_gib
    for limit, fit in ((size * 1.06, "fits"), (size * 1.01, "tight"), (size * 0.99, "no")):
        options = {"gbs": 64, "memory_limit_gib": limit}
        found = estimate("llama3-8b", 8, {"tp": 2, "micro_batch_size": 1}, **options).plan
        assert (found.fit, found.fits) == (fit, fit != "no")
        if found.fits:
            shown = plan("llama3-8b", 8, pins=pins, tight=True, top=100, unfold=True, **options).plans
            assert size in [row.memory_gib for row in shown]
        why = plan(
            "llama3-8b", 8, top=1, why="tp=2,sp=on,pp=1,cp=1,zero=1,micro_batch_size=1,recompute=none", **options
        ).why
        assert why.status == {"fits": "ranked", "tight": "tight", "no": "out_of_memory"}[fit]
