"""Each rule: a layout that breaks it and no other, and one that does not."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job

from gpuscale.layouts.arrays import RECOMPUTE_MODULES, SCHEDULES, single
from gpuscale.layouts.pins import Pins
from gpuscale.layouts.stages import chunk_sizes
from gpuscale.presets.hardware import load_cluster
from gpuscale.rules.check import ALL_RULES, SHAPE_RULES, broken_rules, restrict
from gpuscale.rules.rule import EVERY
from gpuscale.search.loop import search
from gpuscale.specs.job import OffloadSpec
from gpuscale.specs.tuning import METHOD_SPECS, ProjectionSpec

BASE = {
    "tp": 1, "sp": 0, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 64, "zero": 1, "shard": 64,
    "micro_batch_size": 1, "num_microbatches": 16, "recompute_modules": 0, "recompute_layers": 0, "schedule": 0,
}  # fmt: skip


def dense(**changes):
    """A dense job on 64 GPUs, batch 1024, with fields of its model or of itself changed."""
    spec = job("llama3-8b", 64, gbs=1024)
    own = {name: value for name, value in changes.items() if hasattr(spec, name)}
    shape = {name: value for name, value in changes.items() if name not in own}
    return replace(spec, model=changed_model(spec.model, **shape), **own)


def changed_model(model, hidden=None, heads=None, kv_heads=None, ffn=None):
    kind = model.kinds[0]
    attention = replace(
        kind.attention, heads=heads or kind.attention.heads, kv_heads=kv_heads or kind.attention.kv_heads
    )
    mlp = replace(kind.mlp, ffn=ffn or kind.mlp.ffn)
    return replace(model, hidden=hidden or model.hidden, kinds=(replace(kind, attention=attention, mlp=mlp),))


def experts(**changes):
    return replace(job("mixtral-8x7b", 64, gbs=1024), **changes)


TP8 = {"tp": 8, "dp": 8, "shard": 8, "num_microbatches": 128}
PP4 = {"pp": 4, "dp": 16, "shard": 16, "num_microbatches": 64}

TP2 = {"tp": 2, "sp": 1, "dp": 8, "shard": 8, "num_microbatches": 128}
DUALPIPE = SCHEDULES["dualpipe"]


def ordered(spec, order):
    """The job with its axes in another order."""
    return replace(spec, axis_order=tuple(order.split("-")))


def free(spec):
    """The job under a framework that can do all that arithmetic allows."""
    return replace(spec, runtime=replace(spec.runtime, rule_set="generic"))


def overlapped(spec):
    """The job with the expert exchange of one microbatch beside another."""
    return replace(spec, runtime=replace(spec.runtime, overlap_ep=True))


BROKEN = [
    ("heads_not_divisible", dense(heads=36, kv_heads=4), TP8),
    ("pair_over_microbatches", replace(dense(), method=METHOD_SPECS["dpo"]), {}),
    (
        "projection_needs_whole_matrices",
        dense(projection=ProjectionSpec(8, svd=True), runtime=replace(dense().runtime, rule_set="generic")),
        {},
    ),
    ("teacher_split_over_layers", replace(dense(), teacher=dense().model), PP4),
    ("teacher_heads_not_divisible", replace(dense(), teacher=dense(heads=36, kv_heads=4).model), TP8),
    ("kv_heads_not_divisible", dense(heads=48, kv_heads=12), TP8),
    ("hidden_not_divisible", dense(hidden=4100), TP8),
    ("ffn_not_divisible", dense(ffn=14340), TP8),
    ("sequence_not_divisible_by_cp", dense(sequence=4098), {"cp": 4, "dp": 16, "num_microbatches": 64}),
    (
        "cp_without_fused_attention",
        dense(runtime=replace(job("llama3-8b", 64).runtime, attention="unfused")),
        {"cp": 4, "dp": 16, "num_microbatches": 64},
    ),
    (
        "heads_not_divisible_by_cp",
        dense(runtime=replace(job("llama3-8b", 64).runtime, cp_comm="a2a", rule_set="generic")),
        {"cp": 64, "dp": 1, "num_microbatches": 1024},
    ),
    ("tp_straddles_level", dense(hidden=4608, heads=36, kv_heads=12, ffn=14400), {"tp": 12}),
    ("sp_without_tp", dense(), {"sp": 1}),
    ("sequence_slice_not_divisible", dense(sequence=4100), {**TP8, "sp": 1}),
    ("experts_not_divisible", experts(), {"ep": 16}),
    ("ep_straddles_level", experts(cluster=load_cluster("gb200-nvl72").with_gpus_per_node(12)), {"ep": 8}),
    ("experts_not_divisible", dense(), {"ep": 2}),
    ("expert_grid", experts(), {"ep": 8, "pp": 16, "dp": 4, "shard": 4, "num_microbatches": 256}),
    ("ep_overlap_without_ep", overlapped(experts()), {}),
    ("ep_overlap_without_vpp", overlapped(experts()), {**PP4, "ep": 2}),
    ("ep_overlap_without_vpp", free(overlapped(experts())), {**PP4, "ep": 2, "schedule": SCHEDULES["zb-h1"]}),
    ("ep_overlap_without_microbatches", overlapped(experts(global_batch_size=64)), {"ep": 8, "num_microbatches": 1}),
    ("vpp_without_pp", dense(), {"vpp": 2}),
    ("shard_not_divisible", dense(), {"zero": 3, "shard": 48}),
    ("shard_not_divisible", dense(), {"zero": 0, "shard": 2}),
    ("shard_not_divisible", dense(), {"shard": 0}),
    (
        "offloaded_parameters_not_sharded",
        dense(offload=OffloadSpec(parameters=True), runtime=replace(job("llama3-8b", 64).runtime, rule_set="generic")),
        {"zero": 2},
    ),
    ("batch_not_divisible", dense(), {"micro_batch_size": 3, "num_microbatches": 5}),
    ("batch_not_divisible", dense(), {"num_microbatches": 0}),
    ("interleaving_needs_microbatches", dense(global_batch_size=96), {**PP4, "vpp": 2, "num_microbatches": 6}),
    ("recompute_module_absent", dense(), {"recompute_modules": RECOMPUTE_MODULES["moe_act"]}),
    ("recompute_module_absent", dense(), {"recompute_modules": RECOMPUTE_MODULES["mla_up_proj"]}),
    ("recompute_module_absent", experts(), {"recompute_modules": RECOMPUTE_MODULES["shared_experts"]}),
    ("recompute_module_absent", experts(), {"recompute_modules": RECOMPUTE_MODULES["mlp"]}),
    ("recompute_layers_too_many", dense(), {**PP4, "recompute_layers": 9}),
    ("schedule_chunks", dense(), {**PP4, "schedule": SCHEDULES["zb-v"]}),
    ("schedule_chunks", dense(), {**PP4, "vpp": 2, "schedule": SCHEDULES["zb-h1"]}),
    ("dualpipe_microbatches", free(dense(global_batch_size=96)), {**PP4, "num_microbatches": 6, "schedule": DUALPIPE}),
    ("dualpipe_microbatches", free(dense(global_batch_size=144)), {**PP4, "num_microbatches": 9, "schedule": DUALPIPE}),
    ("stages_torn", ordered(dense(), "tp-cp-ep-pp-dp"), {**PP4, "cp": 2, "dp": 8, "num_microbatches": 128}),
    ("stages_torn", ordered(experts(), "tp-cp-ep-pp-dp"), {**PP4, "ep": 2}),
    ("stages_torn", free(ordered(experts(), "tp-cp-pp-ep-dp")), {**PP4, **TP2, "ep": 2}),
]


@pytest.mark.parametrize(
    ("code", "spec", "changes"), BROKEN, ids=[f"{n}-{code}" for n, (code, *_) in enumerate(BROKEN)]
)
def test_a_layout_that_breaks_exactly_one_rule(code, spec, changes):
    row = {**BASE, **{name: value for name, value in changes.items() if name in BASE}}
    assert [rule.code for rule in broken_rules(single(**row), spec)] == [code]


def test_rules_that_cannot_be_broken_alone():
    def codes(spec, **changes):
        return {rule.code for rule in broken_rules(single(**{**BASE, **changes}), spec)}

    deep = codes(dense(), pp=64, dp=1, shard=1, zero=0, num_microbatches=1024)
    assert deep == {"too_few_layers", "too_few_layers_for_chunks"}
    odd = codes(dense(global_batch_size=1000), num_microbatches=15)
    assert odd == {"batch_not_divisible_by_dp", "batch_not_divisible"}


@pytest.mark.parametrize(("pp", "vpp", "enough"), [(34, 1, True), (35, 1, False), (17, 2, True), (18, 2, False)])
def test_32_layers_fill_34_chunks_as_the_first_and_last_may_hold_none(pp, vpp, enough):
    codes = {rule.code for rule in broken_rules(single(**{**BASE, "pp": pp, "vpp": vpp}), dense())}
    assert ("too_few_layers" not in codes) is ("too_few_layers_for_chunks" not in codes) is enough
    assert (chunk_sizes(32, pp * vpp)[1:-1].min() > 0) is np.bool_(enough)


def test_every_rule_of_all_frameworks_is_broken_above():
    tested = {code for code, *_ in BROKEN} | {
        "too_few_layers",
        "too_few_layers_for_chunks",
        "batch_not_divisible_by_dp",
    }
    assert tested >= {rule.code for rule in ALL_RULES if rule.frameworks == EVERY}


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (dense(), {}),
        (dense(), {**TP8, "sp": 1}),
        (dense(heads=32, kv_heads=4), TP8),  # key/value heads are replicated
        (dense(), {"tp": 16, "dp": 4, "shard": 4, "num_microbatches": 256}),  # two whole nodes
        (dense(), {**PP4, "vpp": 8, "recompute_layers": 8}),
        (dense(), {"pp": 32, "dp": 2, "shard": 2, "num_microbatches": 512}),
        (dense(), {"zero": 3, "shard": 8}),
        (dense(), {"zero": 0, "shard": 1}),
        (dense(sequence=4096), {"cp": 8, "dp": 8, "num_microbatches": 128}),
        (experts(), {"ep": 8, "recompute_modules": RECOMPUTE_MODULES["moe"]}),
        (experts(), {"tp": 2, "sp": 1, "ep": 8, "etp": 2, "dp": 32, "shard": 32, "num_microbatches": 32}),
        (dense(), {**PP4, "vpp": 2, "schedule": SCHEDULES["zb-v"]}),
        (dense(global_batch_size=96), {**PP4, "vpp": 2, "schedule": SCHEDULES["zb-v"], "num_microbatches": 6}),
        (free(dense(global_batch_size=128)), {**PP4, "num_microbatches": 8, "schedule": DUALPIPE}),
        (ordered(dense(), "tp-cp-ep-pp-dp"), PP4),
        (ordered(experts(), "tp-cp-ep-pp-dp"), {**PP4, **TP2, "ep": 2}),  # 2 ranks before a stage in both grids
        (free(ordered(dense(), "tp-cp-ep-pp-dp")), {**PP4, "cp": 2, "dp": 8, "num_microbatches": 128}),
    ],
)
def test_a_usual_layout_breaks_none(spec, changes):
    assert broken_rules(single(**{**BASE, **changes}), spec) == []


def test_each_rule_has_a_code_of_its_own_a_sentence_and_a_source():
    codes = [rule.code for rule in ALL_RULES]
    assert len(set(codes)) == len(codes)
    for rule in ALL_RULES:
        assert rule.code.replace("_", "").isalnum()
        assert rule.text
        assert not rule.text.endswith(".")
        assert rule.source


def test_a_row_is_counted_once_under_the_first_rule_it_breaks():
    spec = dense(heads=36, hidden=4100)
    both = single(**{**BASE, **TP8})
    rejected = {}
    assert len(restrict(SHAPE_RULES, both, spec, rejected)) == 0
    assert rejected == {"heads_not_divisible": 1}
    assert len(broken_rules(both, spec)) > 1


def test_rules_mark_rows_independently():
    """A rule on many rows says what it says on each row alone."""
    spec = experts()
    rng = np.random.default_rng(0)
    columns = {name: rng.choice([0, 1, 2, 3, 4, 8, 16], 200) for name in BASE}
    for name in ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch_size"):
        columns[name] = np.maximum(columns[name], 1)
    rows = [{name: int(column[index]) for name, column in columns.items()} for index in range(200)]
    table = single(**rows[0])
    table = replace(table, **{name: column.astype(np.int64) for name, column in columns.items()})
    for rule in ALL_RULES:
        together = rule.breaks(table, spec)
        assert together.dtype == bool
        assert together.tolist() == [bool(rule.breaks(single(**row), spec)[0]) for row in rows]


@pytest.mark.parametrize(("model", "gpus"), [("llama3-8b", 48), ("deepseek-v2-lite", 24)])
def test_what_the_search_keeps_breaks_no_rule(model, gpus):
    spec = job(model, gpus)
    kept = search(spec, Pins(), every=True).leaders.rows
    assert len(kept) > 100
    assert not any(rule.breaks(kept, spec).any() for rule in ALL_RULES)
