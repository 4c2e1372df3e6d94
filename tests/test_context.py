"""Context parallelism: how each kind splits attention, what travels, and what of it shows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command import gpuscale
from jobs import job, layout, legal_candidates, seconds

from gpuscale.choices import CP_COMMS
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import concatenate
from gpuscale.layouts.ranks import context_split, split_alike
from gpuscale.planning.layouts import make_pins
from gpuscale.planning.plans import plan
from gpuscale.rules.check import ALL_RULES
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.blocks import context_comm_s

SEQ = 32768


def spec(kind, **options):
    """A job whose attention is exchanged in one way, whether or not Megatron-LM would."""
    found = job("llama3-8b", 64, seq=SEQ, gbs=64, cp_comm=kind, **options)
    return replace(found, runtime=replace(found.runtime, rule_set="generic"))


def comm(kind, cp=8, attention_s=0.0, **values):
    one = spec(kind)
    rows = layout(one, cp=cp, **values)
    block = np.array([attention_s])
    found = context_comm_s(one.model.attentions[0], rows, one, block, block)[:2]
    return [float(part[0]) for part in found], one


def time_s(one, operation, size, ranks, stride=1):
    return float(collective_time_s(one.cluster, operation, size, ranks, stride))


@pytest.mark.parametrize(
    ("kind", "cp", "heads", "queries", "blocks"),
    [
        ("p2p", 16, 1, 16, 16),
        ("all_gather", 16, 1, 16, 1),
        ("a2a", 16, 16, 1, 1),
        ("a2a+p2p", 16, 8, 2, 2),
        ("a2a+p2p", 4, 4, 1, 1),
    ],
)
def test_what_a_rank_works_on(kind, cp, heads, queries, blocks):
    one = spec(kind)
    split = context_split(layout(one, cp=cp), one)
    assert (split.heads[0], split.queries[0], split.blocks[0]) == (heads, queries, blocks)


def test_the_same_arithmetic_in_all_kinds():
    """FLOPs of attention do not depend on who works on them: the times differ by tiles and tails only."""
    alone = seconds(spec("p2p"))["attention"]  # a rank's tokens per step are the same with and without CP
    for kind in CP_COMMS:
        assert seconds(spec(kind), cp=8)["attention"] == pytest.approx(alone, rel=0.2), kind


def test_gathered_keys_and_values_show_in_full():
    """Llama-3-8B: 8 heads x 2 x 128 x 2 bytes per token; gathered in both passes, gradients scattered once."""
    size = SEQ * 8 * 256 * 2
    (forward, backward), one = comm("all_gather", attention_s=1e3)
    gather, scatter = (time_s(one, name, size, 8) for name in ("allgather", "reducescatter"))
    assert forward == pytest.approx(gather)
    assert backward == pytest.approx(gather + scatter)


def test_exchanged_heads_show_in_full():
    rows = SEQ / 8 * 2
    (forward, backward), one = comm("a2a", attention_s=1e3)
    queries, keys_and_values = 32 * 128, 8 * 256
    expected = time_s(one, "alltoall", rows * (queries + keys_and_values), 8)
    expected += time_s(one, "alltoall", rows * queries, 8)
    assert forward == backward == pytest.approx(expected)


def test_few_key_value_heads_are_copied():
    one = spec("a2a")
    (forward, _), _ = comm("a2a", cp=32)
    rows = SEQ / 32 * 2
    expected = time_s(one, "alltoall", rows * (32 * 128 + 32 * 256), 32) + time_s(one, "alltoall", rows * 32 * 128, 32)
    assert forward == pytest.approx(expected)


def test_a_ring_hides_behind_attention_and_shows_without_it():
    (hidden, _), one = comm("p2p", attention_s=1.0)
    (shown, shown_back), _ = comm("p2p", attention_s=0.0)
    hop = time_s(one, "sendrecv", SEQ / 8 * 8 * 256 * 2, 8)
    assert shown == pytest.approx(7 * hop)
    assert shown_back > 1.5 * shown
    assert 0 < hidden < 0.2 * shown  # what the hidden transfers take from the SMs


@pytest.mark.parametrize(("tp", "cp", "gpus"), [(1, 8, 8), (2, 4, 8), (4, 2, 16), (1, 4, 16)])
def test_a_ring_that_fills_a_node_leaves_the_network_alone(tp, cp, gpus):
    """Its last member closes it over NVLink as every other hop."""
    asked = ("estimate", "--model", "llama3-8b", "--gpus", gpus, "--tp", tp, "--cp", cp, "--seq", "64k", "--gbs", 16)
    slow = ("--set", "network=x0.1")
    found, slowed = (json.loads(gpuscale(*asked, *more, "--json").out)["breakdown"] for more in ((), slow))
    assert found["cp_comm"] == slowed["cp_comm"] > 0


def test_both_across_nodes():
    (forward, _), one = comm("a2a+p2p", cp=16)
    rows = SEQ / 16 * 2
    exchange = time_s(one, "alltoall", rows * (32 * 128 + 8 * 256), 8) + time_s(one, "alltoall", rows * 32 * 128, 8)
    assert forward == pytest.approx(exchange + time_s(one, "sendrecv", rows * 8 * 256, 2, 8))


def test_rings_save_their_own_layout_of_the_output():
    sizes = {kind: evaluate(layout(spec(kind), cp=8), spec(kind)).memory.activations[0, 0] for kind in CP_COMMS}
    assert sizes["p2p"] > sizes["all_gather"] == sizes["a2a"] == sizes["a2a+p2p"]


def test_profiles_say_which_kind_a_framework_runs():
    kinds = {name: job("llama3-8b", 64, framework=name).runtime.cp_comm for name in ("megatron-lm", "torchtitan")}
    assert kinds == {"megatron-lm": "p2p", "torchtitan": "all_gather"}
    assert job("llama3-8b", 64, framework="torchtitan", cp_comm="P2P").runtime.cp_comm == "p2p"


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError) as caught:
        job("llama3-8b", 64, cp_comm="tree")
    assert caught.value.field == "cp_comm"


def test_without_context_parallelism_the_kind_changes_nothing():
    plain = spec("p2p")
    for kind in CP_COMMS:
        other = replace(plain, runtime=replace(plain.runtime, cp_comm=kind))
        assert seconds(other) == seconds(plain)


# -- kinds side by side --


@pytest.mark.parametrize(("model", "pins"), [("llama3-8b", {"tp": "1,4", "pp": 1}), ("mixtral-8x7b", {"tp": "2,8"})])
def test_what_a_mixed_exchange_leaves_to_another_kind_is_legal_there_and_takes_as_long(model, pins):
    """Layouts in which `a2a+p2p` is `a2a` or `p2p` are searched once when both are; all others stay."""
    mixed, *others = (
        replace(spec, runtime=replace(spec.runtime, cp_comm=kind))
        for spec in [job(model, 32)]
        for kind in ("a2a+p2p", "a2a", "p2p")
    )
    chosen = make_pins({**pins, "recompute": "none", "micro_batch_size": 1})
    every = concatenate([*legal_candidates(mixed, chosen, {})])
    less = concatenate([*legal_candidates(mixed, replace(chosen, cp_elsewhere=("a2a", "p2p")), {})])
    kept = {tuple(less.row(index).values()) for index in range(len(less))}
    left = every.take(np.array([tuple(every.row(index).values()) not in kept for index in range(len(every))]))
    assert len(left)
    assert len(less) + len(left) == len(every)
    found = np.zeros(len(left), dtype=bool)
    for other in others:
        same = split_alike(left, mixed, other.runtime.cp_comm)
        found |= same
        if not same.any():
            continue
        rows = left.take(same)
        assert not broken_any(rows, other)
        one, two = evaluate(rows, mixed), evaluate(rows, other)
        assert (one.step.step_time_s == two.step.step_time_s).all()
        assert (one.memory_bytes == two.memory_bytes).all()
    assert found.all()
    assert (less.cp > 1).any()
    assert (less.cp == 1).any()


def broken_any(rows, spec):
    return any(rule.breaks(rows, spec).any() for rule in ALL_RULES)


def test_a_comparison_shows_a_mixed_exchange_where_it_is_one():
    result = plan("llama3-8b", 32, cp_comm="p2p,a2a,a2a+p2p", pins={"tp": 1, "pp": 1, "cp": "2.."})
    owners = (result.compared.variants[owner].choice["cp_comm"] for owner in result.compared.of_plan)
    shown = dict(zip(owners, result.plans, strict=True))
    assert set(shown) == {"p2p", "a2a", "a2a+p2p"}
    assert shown["a2a+p2p"].cp > 8  # more ranks than a node has
    alone = plan("llama3-8b", 32, cp_comm="a2a+p2p", pins={"tp": 1, "pp": 1, "cp": "2.."})
    assert alone.plans[0].cp == 2
