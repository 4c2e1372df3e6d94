"""What each framework can run: its rules one by one, against measured runs, and in what a search returns."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from command import gpuscale
from jobs import job, legal_candidates

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import GPIPE, RECOMPUTE_MODULES, ZB_H1, ZB_V, concatenate, single
from gpuscale.planning.layouts import fixed_layout, make_pins
from gpuscale.presets.frameworks import all_framework_files, framework_file, generations, load_framework
from gpuscale.rules.check import ALL_RULES, broken_rules, cited, rules_of
from gpuscale.rules.rule import EVERY, FRAMEWORKS
from gpuscale.search.loop import search
from gpuscale.specs.job import RULE_SETS, OffloadSpec, StateBytes
from gpuscale.specs.tuning import ProjectionSpec, TuningSpec, read_targets
from gpuscale.validation.measurements import Library, read_measurements
from gpuscale.validation.runs import read_run

RUNS = Path(__file__).parents[2] / "shared" / "validation" / "runs.csv"
PROFILES = sorted(all_framework_files())

BASE = {
    "tp": 1, "sp": 0, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 64, "zero": 1, "shard": 64,
    "micro_batch_size": 1, "num_microbatches": 16, "recompute_modules": 0, "recompute_layers": 0, "schedule": 0,
}  # fmt: skip
TP2 = {"tp": 2, "dp": 32, "shard": 32, "num_microbatches": 32}
TP8 = {"tp": 8, "dp": 8, "shard": 8, "num_microbatches": 128}
PP4 = {"pp": 4, "dp": 16, "shard": 16, "num_microbatches": 64}
CP2 = {"cp": 2, "dp": 32, "num_microbatches": 32}
CP4 = {"cp": 4, "dp": 16, "num_microbatches": 64}
CP8 = {"cp": 8, "dp": 8, "num_microbatches": 128}
CP16 = {"cp": 16, "dp": 4, "num_microbatches": 256}
LAYERNORM, MLP = RECOMPUTE_MODULES["layernorm"], RECOMPUTE_MODULES["mlp"]


def under(framework, model="llama3-8b", attention=None, runtime=None, moe=None, **changes):
    """A job on 64 GPUs, batch 1024, as a framework runs it; with parts of its model, profile or job changed."""
    spec = job(model, 64, gbs=1024)
    kinds = spec.model.kinds
    if attention:
        kinds = tuple(replace(kind, attention=replace(kind.attention, **attention)) for kind in kinds)
    if moe:
        kinds = tuple(replace(kind, moe=replace(kind.moe, **moe)) for kind in kinds)
    own = {"tied_embeddings": changes.pop("tied")} if "tied" in changes else {}
    profile = replace(load_framework(framework).runtime, **(runtime or {}))
    return replace(spec, model=replace(spec.model, kinds=kinds, **own), runtime=profile, **changes)


MIXTRAL = "mixtral-8x7b"
MULTI_HEAD = {"kv_heads": 32}
OPTIMIZER = {"offload": OffloadSpec(optimizer=True)}

PROJECTED = ProjectionSpec(128, svd=True)
WHOLE = {"zero": 0, "shard": 1}

LORA = TuningSpec(16, read_targets("all"))

CASES = {
    # code: (job, the layout that breaks it alone, job or None for the same, the layout that keeps it)
    "adapters_unavailable": (under("nanotron", tuning=LORA), {}, under("nanotron"), {}),
    "quantised_base_unavailable": (
        under("megatron-lm", tuning=replace(LORA, base="nf4")), {}, under("megatron-lm", tuning=LORA), {},
    ),
    "projection_unavailable": (under("nanotron", projection=PROJECTED), WHOLE, under("nanotron"), WHOLE),
    "moe_unavailable": (
        under("megatron-lm@2023-12", MIXTRAL, MULTI_HEAD), {}, under("megatron-lm@2023-12", attention=MULTI_HEAD), {},
    ),
    "gqa_unavailable": (under("megatron-lm@2023-12"), {}, under("megatron-lm@2023-12", attention=MULTI_HEAD), {}),
    "latent_attention_unavailable": (
        under("megatron-lm@2024-09", "deepseek-v2-lite"), {}, under("megatron-lm@2024-09"), {},
    ),
    "state_space_unavailable": (under("nanotron", "nemotron-h-8b"), {}, under("nanotron"), {}),
    "precision_unavailable": (under("nanotron", precision="fp8"), {}, under("nanotron", precision="fp16"), {}),
    "fp8_recipe_unavailable": (
        under("megatron-lm@2024-09", precision="fp8", recipe="current"), {},
        under("megatron-lm@2024-09", precision="fp8"), {},
    ),
    "offload_unavailable": (
        under("megatron-lm", offload=OffloadSpec(parameters=True)), {"zero": 3},
        under("megatron-lm", **OPTIMIZER), {},
    ),
    "tp_unavailable": (under("llm-foundry"), {**TP8, "zero": 3}, None, {"zero": 3}),
    "pp_unavailable": (under("llm-foundry"), {**PP4, "zero": 3}, None, {"zero": 3}),
    "cp_unavailable": (under("llm-foundry"), {**CP4, "zero": 3}, None, {"zero": 3}),
    "uneven_chunks": (under("megatron-lm@2024-09"), {**PP4, "vpp": 3}, None, {**PP4, "vpp": 4}),
    "kv_heads_not_replicated": (
        under("torchtitan", attention={"kv_heads": 4}), {**TP8, "zero": 3}, under("torchtitan"), {**TP8, "zero": 3},
    ),
    "sequence_not_divisible_by_cp": (under("nanotron", sequence=4100), {**CP4, "zero": 0, "shard": 1}, None, {}),
    "sequence_slices_uneven": (under("generic", sequence=4098), CP4, None, CP2),
    "window_in_ring": (
        under("megatron-lm", attention={"window": 1024}), CP4,
        under("megatron-lm", attention={"window": 1024}, runtime={"cp_comm": "all_gather"}), CP4,
    ),
    "kv_heads_not_divisible_by_cp": (under("megatron-lm", runtime={"cp_comm": "a2a"}), CP16, None, CP8),
    "state_space_groups_not_divisible": (
        under("megatron-lm", "nemotron-h-8b"),
        {"tp": 16, "dp": 4, "shard": 4, "num_microbatches": 256}, None, TP8,
    ),
    "tied_embeddings_with_pp": (
        under("torchtitan", tied=True), {**PP4, "zero": 3}, under("torchtitan"), {**PP4, "zero": 3},
    ),
    "ulysses_with_model_parallel": (
        under("deepspeed"), {"tp": 2, "cp": 2, "dp": 16, "shard": 32, "num_microbatches": 64}, None, CP2,
    ),
    "kv_heads_against_cp": (under("deepspeed", attention={"heads": 48, "kv_heads": 12}), CP8, None, CP4),
    "sp_unavailable": (under("deepspeed"), {**TP8, "sp": 1}, None, TP8),
    "tp_without_sp": (under("torchtitan@2025-05"), {**TP8, "zero": 3}, None, {**TP8, "zero": 3, "sp": 1}),
    "vpp_unavailable": (under("nanotron"), {**PP4, "vpp": 2}, None, PP4),
    "ep_unavailable": (under("nanotron", MIXTRAL), {"ep": 2}, None, {}),
    "etp_unavailable": (under("nanotron", MIXTRAL), {**TP2, "sp": 1, "etp": 2}, None, {**TP2, "sp": 1}),
    "schedule_unavailable": (under("megatron-lm"), {**PP4, "schedule": GPIPE}, None, {**PP4, "schedule": ZB_H1}),
    "ep_without_sp": (under("megatron-lm", MIXTRAL), TP2, None, {**TP2, "sp": 1}),
    "experts_not_folded": (under("megatron-lm@2024-09", MIXTRAL), {**TP2, "sp": 1}, None, {**TP2, "sp": 1, "etp": 2}),
    "etp_with_expert_bias": (
        under("megatron-lm", MIXTRAL, moe={"expert_bias": True}), {**TP2, "sp": 1, "etp": 2}, None, {**TP2, "sp": 1},
    ),
    "ep_overlap_unavailable": (
        under("torchtitan", MIXTRAL, runtime={"overlap_ep": True}), {"ep": 8, "zero": 3},
        under("megatron-lm", MIXTRAL, runtime={"overlap_ep": True}), {"ep": 8},
    ),
    "experts_split_otherwise": (
        under("torchtitan", MIXTRAL), {**TP2, "zero": 3}, None, {**TP2, "zero": 3, "etp": 2},
    ),
    "etp_with_autoep": (under("deepspeed", MIXTRAL), {**TP2, "ep": 2, "etp": 2}, None, {**TP2, "ep": 2}),
    "offload_with_autoep_and_tp": (under("deepspeed", MIXTRAL, **OPTIMIZER), {**TP2, "ep": 2}, None, TP2),
    "zero_stage_unavailable": (under("nanotron"), {"zero": 2}, None, {}),
    "zero_with_pp": (under("megatron-lm"), {**PP4, "zero": 2}, under("torchtitan"), {**PP4, "zero": 2}),
    "hybrid_sharding_unavailable": (under("deepspeed"), {"zero": 2, "shard": 8}, None, {"zero": 3, "shard": 8}),
    "expert_replicas_not_divisible": (
        under("megatron-lm", MIXTRAL), {"zero": 3, "shard": 4, "ep": 8}, None, {"zero": 3, "shard": 8, "ep": 8},
    ),
    "offloaded_optimizer_not_sharded": (under("megatron-lm", **OPTIMIZER), {"zero": 0, "shard": 1}, None, {}),
    "low_moments_not_sharded": (
        under("megatron-lm", states=StateBytes(moments=4.0, second_moment=2.0)), {"zero": 0, "shard": 1}, None, {},
    ),
    "ddp_with_model_parallel": (
        under("torchtitan"), {**TP8, "zero": 0, "shard": 1}, None, {"zero": 0, "shard": 1},
    ),
    "shard_splits_cp": (under("torchtitan"), {**CP4, "zero": 3, "shard": 2}, None, {**CP4, "zero": 3, "shard": 8}),
    "experts_beyond_shard": (
        under("torchtitan", MIXTRAL), {"zero": 3, "shard": 4, "ep": 8}, None, {"zero": 3, "shard": 8, "ep": 8},
    ),
    "tp_with_zero_3": (under("deepspeed"), {**TP8, "zero": 3}, None, {**TP8, "zero": 2}),
    "ep_with_zero_3": (under("megatron-deepspeed", MIXTRAL), {"ep": 8, "zero": 3}, None, {"ep": 8, "zero": 2}),
    "ep_with_zero_3_and_cp": (
        under("deepspeed", MIXTRAL), {**CP2, "ep": 8, "zero": 3}, None, {**CP2, "ep": 8, "zero": 2},
    ),
    "cp_with_zero": (under("nanotron"), CP4, None, {**CP4, "zero": 0, "shard": 1}),
    "tokens_not_divisible": (
        under("torchtitan", sequence=4104),
        {"tp": 4, "sp": 1, "cp": 2, "dp": 8, "zero": 3, "shard": 16, "num_microbatches": 128}, None,
        {"tp": 4, "sp": 1, "cp": 2, "dp": 8, "zero": 3, "shard": 16, "num_microbatches": 64, "micro_batch_size": 2},
    ),
    "too_few_microbatches": (
        under("torchtitan", global_batch_size=32), {**PP4, "zero": 3, "num_microbatches": 2},
        under("torchtitan", global_batch_size=64), {**PP4, "zero": 3, "num_microbatches": 4},
    ),
    "interleaving_needs_microbatches": (
        under("megatron-lm", global_batch_size=96), {**PP4, "vpp": 2, "num_microbatches": 6},
        under("torchtitan", global_batch_size=96), {**PP4, "vpp": 2, "zero": 3, "num_microbatches": 6},
    ),
    "interleaving_rounds": (
        under("torchtitan", global_batch_size=144), {**PP4, "vpp": 2, "zero": 3, "num_microbatches": 9},
        under("torchtitan", global_batch_size=144),
        {**PP4, "vpp": 2, "zero": 3, "num_microbatches": 9, "schedule": ZB_V},
    ),
    "too_few_microbatches_for_1f1b": (
        under("nanotron", global_batch_size=32), {**PP4, "num_microbatches": 2}, None,
        {**PP4, "num_microbatches": 2, "schedule": GPIPE},
    ),
    "recompute_modules_unavailable": (under("nanotron"), {"recompute_modules": MLP}, None, {"recompute_layers": 32}),
    "recompute_layers_partial": (under("nanotron"), {"recompute_layers": 31}, None, {"recompute_layers": 32}),
    "recompute_layers_every_nth": (
        under("torchtitan@2025-05"), {"zero": 3, "recompute_layers": 24}, None, {"zero": 3, "recompute_layers": 16},
    ),
    "recompute_uneven_over_chunks": (
        under("megatron-lm"), {**PP4, "vpp": 2, "recompute_layers": 3}, None,
        {**PP4, "vpp": 2, "recompute_layers": 4},
    ),
    "exchange_queue_too_short": (
        under("megatron-lm", MIXTRAL, moe={"experts": 16}, runtime={"dispatcher": "hybridep"}),
        {"ep": 16, "micro_batch_size": 8, "num_microbatches": 2},
        under("megatron-lm", MIXTRAL, moe={"experts": 16}, runtime={"dispatcher": "hybridep"}, sequence=21_840 // 4),
        {"ep": 16, "micro_batch_size": 4, "num_microbatches": 4},
    ),
    "recompute_with_delayed_scaling": (
        under("megatron-lm", precision="fp8"), {"recompute_modules": LAYERNORM}, None, {"recompute_modules": MLP},
    ),
    "recompute_with_ep_overlap": (
        under("megatron-lm", MIXTRAL, runtime={"overlap_ep": True}), {"ep": 8, "recompute_layers": 32}, None,
        {"ep": 8, "recompute_modules": LAYERNORM},
    ),
    "recompute_with_partial_graphs": (
        under("megatron-lm", runtime={"cuda_graphs": "partial"}), {"recompute_layers": 32}, None,
        {"recompute_modules": LAYERNORM},
    ),
    "graphs_of_dropless_experts": (
        under("megatron-lm", MIXTRAL, runtime={"cuda_graphs": "full"}), {"ep": 8},
        under("megatron-lm", MIXTRAL, runtime={"cuda_graphs": "full", "routing": "dropping"}), {"ep": 8},
    ),
    "offloaded_activations_with_pp": (
        under("megatron-lm@2025-07", offload=OffloadSpec(activations=0.25)), PP4,
        under("megatron-lm@2025-07", offload=OffloadSpec(activations=0.352)), PP4,
    ),
}  # fmt: skip


def codes(spec, changes):
    return [rule.code for rule in broken_rules(single(**{**BASE, **changes}), spec)]


@pytest.mark.parametrize("code", CASES)
def test_a_layout_that_breaks_one_rule_alone_and_one_that_keeps_it(code):
    spec, broken, other, kept = CASES[code]
    assert codes(spec, broken) == [code]
    assert codes(other or spec, kept) == []


def test_stages_that_are_uneven_make_uneven_chunks():
    spec = under("megatron-lm@2024-09", global_batch_size=960)
    changes = {"pp": 3, "dp": 20, "shard": 20, "num_microbatches": 48}
    assert codes(spec, changes) == ["uneven_stages", "uneven_chunks"]
    assert codes(under("megatron-lm", global_batch_size=960), changes) == []


def test_every_rule_of_some_frameworks_is_broken_above():
    assert {rule.code for rule in ALL_RULES if rule.frameworks != EVERY} == {*CASES, "uneven_stages"}


def test_schedules_by_framework():
    """Megatron-LM's forks have zero bubble, torchtitan GPipe and ZB-V, DeepSpeed neither, and none the DualPipe with
    two copies of the weights: PyTorch's DualPipeV has one."""

    def runs(framework):
        spec = under(framework)
        layout = {**PP4, "zero": 3 if framework == "torchtitan" else 1}
        return [name for name in ("gpipe", "zb-h1", "zb-v", "dualpipe") if not _schedule_broken(spec, layout, name)]

    assert runs("megatron-lm") == ["zb-h1", "zb-v"]
    assert runs("torchtitan") == ["gpipe", "zb-v"]
    assert runs("nanotron") == ["gpipe"]
    assert runs("megatron-deepspeed") == []


def _schedule_broken(spec, layout, name):
    rows = fixed_layout(spec, {"pp": 4, "zero": layout["zero"], "schedule": name})
    return "schedule_unavailable" in [rule.code for rule in broken_rules(rows, spec)]


# -- the data --


def test_every_framework_has_a_rule_set_and_every_rule_a_source_in_it():
    every = [load_framework(one) for name in PROFILES for one in generations(name)]
    assert set(FRAMEWORKS) == set(RULE_SETS) == {one.runtime.rule_set for one in every}
    for name, own in FRAMEWORKS.items():
        for rule in rules_of(name):
            assert cited(rule, name).where
            if rule.frameworks != EVERY and name != "generic":
                assert rule.code in own.cited, (name, rule.code)


def test_no_source_is_given_for_a_rule_that_no_generation_has():
    for name, own in FRAMEWORKS.items():
        sharing = [other for other, one in FRAMEWORKS.items() if one.cited is own.cited]
        known = {rule.code for other in sharing for rule in rules_of(other)}
        assert set(own.cited) <= known, name


def test_only_arithmetic_binds_without_a_framework():
    beyond = {rule.code for rule in rules_of("generic") if rule.frameworks != EVERY}
    assert beyond == {"sequence_slices_uneven", "interleaving_needs_microbatches"}


def test_later_generations_of_megatron_can_do_more():
    """Rules of what is missing only ever disappear."""
    order = ("megatron-lm-2021", "megatron-lm-2022", "megatron-lm-2023", "megatron-lm-2024", "megatron-lm")
    missing = [{rule.code for rule in rules_of(name) if rule.code.endswith("unavailable")} for name in order]
    for earlier, later in pairwise(missing):
        assert later <= earlier


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kv_heads": 16}, {"gqa_unavailable"}),
        ({"heads": 36, "kv_heads": 36}, {"heads_not_divisible", "kv_heads_not_divisible", "kv_heads_not_replicated"}),
        ({"kv_heads": 12}, {"gqa_unavailable", "kv_heads_not_divisible", "kv_heads_not_replicated"}),
        ({"kv_heads": 4}, {"gqa_unavailable", "kv_heads_not_replicated"}),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_one_kind_of_layers_is_enough_to_break_a_rule_of_heads(changes, expected, at):
    spec = under("megatron-lm@2023-12", "gemma2-27b", attention=MULTI_HEAD)
    usual = set(codes(spec, TP8))
    kinds = list(spec.model.kinds)
    kinds[at] = replace(kinds[at], attention=replace(kinds[at].attention, **changes))
    assert set(codes(replace(spec, model=replace(spec.model, kinds=tuple(kinds))), TP8)) - usual == expected
    assert not usual & expected


@pytest.mark.parametrize(("framework", "runs"), [
    ("megatron-lm@2024-03", False), ("megatron-lm@2025-10", False), ("megatron-lm@2026-02", True),
])  # fmt: skip
def test_key_value_heads_are_replicated_since_core_0_16(framework, runs):
    assert ("kv_heads_not_replicated" not in codes(under(framework, attention={"kv_heads": 2}), TP8)) is runs


# -- measured runs --

FORK = ("zerobubble-", "a fork of Megatron-LM, zero-bubble, deals out 22 layers to 8 stages")
SHAPE = ("alps-1p5b-n4-tp2", "Megatron core refuses its 25 heads under TP 2 in every release (TransformerConfig, "
         "__post_init__): they are those of the run without TP beside it, and its own are not on its page")  # fmt: skip
KNOWN = {"uneven_stages": FORK, "uneven_chunks": FORK, "heads_not_divisible": SHAPE, "kv_heads_not_divisible": SHAPE,
         "vpp_without_pp": ("", "the row states virtual stages without a pipeline")}  # fmt: skip
"""Rule -> what ids of runs that break it begin with, and why that is no fault of the rule."""


@pytest.mark.full
@pytest.mark.skipif(not RUNS.is_file(), reason="the shared measured runs are not here")
def test_no_rule_refuses_a_run_that_ran():
    library = Library()
    checked, broken = Counter(), {}
    for row in read_measurements(RUNS)[1]:
        try:
            run = read_run(row, library)
        except InputError:
            continue
        checked[run.job.runtime.rule_set] += 1
        found = {rule.code for rule in broken_rules(run.layout, run.job)}
        if not row.whole("etp"):  # assumed: 1 under EP, which Megatron-LM could not before it folded expert grids
            found -= {"experts_not_folded"}
        if not row.raw("recompute"):  # assumed: as few layers as fit
            found -= {"recompute_uneven_over_chunks"}
        for code in found:
            broken.setdefault(code, []).append(row.raw("id"))
    assert set(broken) <= set(KNOWN), {code: ids[:5] for code, ids in broken.items() if code not in KNOWN}
    assert all(one.startswith(KNOWN[code][0]) for code, ids in broken.items() for one in ids)
    assert set(broken) == set(KNOWN)
    assert len(broken["vpp_without_pp"]) == 2
    assert set(checked) == set(RULE_SETS) - {"torchtune"}  # none of which is among them
    assert sum(checked.values()) > 2500


# -- searches --


@pytest.mark.parametrize("framework", PROFILES)
@pytest.mark.parametrize(("model", "gpus"), [("llama3.2-1b", 16), ("mixtral-8x7b", 32), ("gpt3-1.3b", 8)])
def test_a_search_keeps_what_breaks_no_rule_and_nothing_else(framework, model, gpus):
    """What the coarse tables cut is what the rules cut on whole layouts; rejected rows are counted."""
    spec = job(model, gpus, framework=framework, gbs=gpus * 2, memory_limit_gib=400)
    pins = make_pins({"micro_batch_size": "1,2", "vpp": "1,2,4"})
    rejected = {}
    parts = list(legal_candidates(spec, pins, rejected))
    every = list(legal_candidates(replace(spec, runtime=replace(spec.runtime, rule_set="generic")), pins, {}))
    unbound = concatenate(every)
    wrong = np.zeros(len(unbound), dtype=bool)
    for rule in ALL_RULES:
        wrong |= rule.breaks(unbound, spec)
    kept = concatenate(parts) if parts else unbound.take(np.zeros(0, dtype=np.intp))
    assert not any(rule.breaks(kept, spec).any() for rule in ALL_RULES)
    if framework not in {"torchtitan", "torchtitan@2025-05"}:  # whose rounds allow more than Megatron-LM's
        assert rows(kept) == rows(unbound.take(~wrong))
    assert set(rejected) <= {rule.code for rule in rules_of(spec.runtime.rule_set)}


def rows(table):
    names = list(BASE)
    return sorted(zip(*(getattr(table, name).tolist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("framework", "constant"),
    [
        ("llm-foundry", {"tp": {1}, "pp": {1}, "cp": {1}, "vpp": {1}, "sp": {0}, "zero": {0, 2, 3}}),
        ("deepspeed", {"pp": {1}, "vpp": {1}, "sp": {0}}),
        ("megatron-deepspeed", {"vpp": {1}, "cp": {1}}),
        ("nanotron", {"vpp": {1}, "zero": {0, 1}, "recompute_modules": {0}}),
        ("torchtitan", {"zero": {0, 2, 3}, "recompute_modules": {0}}),
        ("accelerate", {"pp": {1}, "vpp": {1}, "sp": {0}, "zero": {0, 2, 3}, "recompute_modules": {0}}),
        ("torchtune", {"tp": {1}, "pp": {1}, "cp": {1}, "sp": {0}, "zero": {0, 2, 3}, "recompute_modules": {0}}),
        ("megatron-lm@2021-12", {"sp": {0}, "zero": {0}, "cp": {1}, "recompute_modules": {0}}),
    ],
)
def test_axes_that_a_framework_lacks_do_not_appear(framework, constant):
    spec = job("gpt3-1.3b", 16, framework=framework, gbs=64)
    kept = search(spec, make_pins({}), every=True).leaders.rows
    assert len(kept) > 10
    for name, values in constant.items():
        assert set(getattr(kept, name).tolist()) <= values


def test_what_is_missing_is_counted_once_per_branch():
    found = search(job("llama3-8b", 16, framework="llm-foundry"), make_pins({}))
    shapes = found.rejected["tp_unavailable"] + found.rejected["pp_unavailable"] + found.rejected["cp_unavailable"]
    assert shapes == 34  # of the 35 ways to write 16 as TP x PP x CP x DP one has DP alone
    assert found.generated == found.feasible + sum(found.rejected.values())


# -- commands --


def refused(done, *parts):
    """A command that could not be used: one message, without a traceback, that says all of this."""
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert [part for part in parts if part not in done.err] == []


def test_aliases_name_the_same_profile():
    for name, file in all_framework_files().items():
        for alias in file["aliases"]:
            assert load_framework(alias).name == name
            assert load_framework(alias.upper()).runtime == load_framework(name).runtime
    assert framework_file("Megatron-LM") == framework_file("megatron-lm")
    names = ("nemo", "NeMo")
    plans = [gpuscale("plan", "-m", "llama3-8b", "-n", "8", "--framework", name, "--csv") for name in names]
    assert plans[0].out == plans[1].out
    done = gpuscale("plan", "-m", "llama3-8b", "-n", "8", "--framework", "megatron-ml")
    refused(done, "unknown framework 'megatron-ml'", "megatron-lm")


def test_a_refused_layout_names_rule_source_and_frameworks_that_run_it():
    done = gpuscale("estimate", "-m", "mixtral-8x7b", "-n", "16", "--tp", "2", "--etp", "1", "--sp", "off")
    refused(done, "ep_without_sp", "moe_layer.py:636", "--framework", "generic")
    assert "torchtitan" not in done.err  # which splits experts otherwise
    done = gpuscale("estimate", "-m", "llama3-8b", "-n", "16", "--pp", "2", "--framework", "llm-foundry")
    refused(done, "pp_unavailable", "torchtitan")
    done = gpuscale("estimate", "-m", "llama3-8b", "-n", "16", "--cp", "16", "--seq", "4104")
    refused(done, "sequence_not_divisible_by_cp")
    done = gpuscale("estimate", "-m", "llama3-8b", "-n", "8", "--tp", "1", "--sp", "on")
    refused(done, "sp_without_tp")
    assert "--framework" not in done.err  # no framework can


def test_defaults_of_a_layout_are_those_of_the_framework():
    for framework, expected in (
        ("megatron-lm", (1, 1)), ("torchtitan", (1, 3)), ("deepspeed", (0, 3)), ("megatron-lm@2021-12", (0, 0)),
    ):  # fmt: skip
        one = fixed_layout(job("gpt3-1.3b", 16, framework=framework), {"tp": 2})
        assert (one.sp[0], one.zero[0]) == expected
    for framework in PROFILES:  # data parallelism alone runs everywhere
        done = gpuscale("estimate", "-m", "gpt3-1.3b", "-n", "8", "--framework", framework)
        assert done.code == 0, done.err


def test_a_model_that_a_framework_lacks_points_to_others():
    done = gpuscale("plan", "-m", "mixtral-8x7b", "-n", "64", "--framework", "megatron-lm@2023-12")
    refused(done, "moe_unavailable", "gqa_unavailable", "nanotron")
    assert "loosen" not in done.err


def test_why_names_the_framework():
    done = gpuscale("plan", "-m", "llama3-8b", "-n", "16", "--framework", "nanotron", "--why", "pp=4,vpp=2", "--json")
    assert json.loads(done.out)["why"]["reasons"] == {
        "vpp_unavailable": "the framework has no virtual stages [nanotron: config/parallelism_config.py:16 pp_engine: "
        "1f1b or afab]"
    }


def test_show_lists_rules_with_sources_and_what_own_checks_miss():
    done = gpuscale("frameworks", "show", "megatron-lm")
    assert "rules of megatron-lm (Megatron-LM; NVIDIA/Megatron-LM at d98e8a64ddf3, 2026-08)" in done.out
    assert "ep_without_sp: experts with TP need sequence parallelism" in done.out
    assert "dies in MoELayer.forward" in " ".join(done.out.split())
    assert max(map(len, done.out.partition("rules of megatron-lm")[2].splitlines())) <= 100
    shown = json.loads(gpuscale("frameworks", "show", "megatron-lm", "--json").out)["frameworks"][0]
    assert (shown["name"], shown["rule_set"]) == ("megatron-lm", "megatron-lm")
    assert [rule["code"] for rule in shown["rules"]] == [rule.code for rule in rules_of("megatron-lm")]
    assert {"tied_embeddings_with_pp", "vpp_unavailable"}.isdisjoint(rule["code"] for rule in shown["rules"])
