"""Memory: parameters by a second route, and how each component must move."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from jobs import MODELS, job, layout, legal, sample

from gpuscale.architecture.parameters import dense_linears, expert_linears, model_parameters, vector_parameters
from gpuscale.layouts.arrays import RECOMPUTE_MODULES
from gpuscale.layouts.stages import FIRST, LAST, StageTable, chunk_counts
from gpuscale.memory.activations import microbatches_in_flight, tokens
from gpuscale.memory.model import COMPONENTS
from gpuscale.memory.states import dense_held, expert_held, stage_parameters
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate, placed

NAMES = COMPONENTS
STATES = ("weights", "gradients", "master_weights", "optimizer_state")
SPLIT = ("llama3-70b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b", "gemma2-27b", "gpt3-175b", "glm-4.5")
ONE = np.ones(1, dtype=np.int64)


def ranks(number):
    return np.array([number], dtype=np.int64)


# -- parameters by two routes --


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_what_all_ranks_hold_is_the_layer_once_plus_what_is_replicated(name, tp):
    """Itemised matrices of `operators` against the closed forms of `architecture.parameters`."""
    model = load_model(name)
    counted = model_parameters(model)
    for kind, itemised in zip(model.kinds, counted.kinds, strict=True):
        assert kind.attention.latent is not None or kind.attention.kv_heads % tp == 0
        held = tp * dense_held(kind, job(name, 8), ranks(tp)).trained[0]
        assert held - (tp - 1) * itemised.tp_replicated == itemised.dense_params


@pytest.mark.parametrize("name", [name for name in SPLIT if load_model(name).is_moe])
@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (8, 1), (2, 4), (16, 2)])
def test_what_all_expert_ranks_hold_is_every_expert_once(name, ep, etp):
    model = load_model(name)
    for kind, itemised in zip(model.kinds, model_parameters(model).kinds, strict=True):
        held = ep * etp * expert_held(kind, job(name, 8), ranks(ep), ranks(etp)).trained[0]
        output_biases = kind.moe.experts * model.hidden * kind.moe.expert_bias if kind.moe else 0
        assert held - (etp - 1) * output_biases == itemised.routed_experts


def test_key_and_value_heads_are_replicated_beyond_their_number():
    kind = load_model("llama3-8b").kinds[0]  # 8 key/value heads of 128 + 128
    qkv = dense_linears(4096, kind)[0]
    assert [qkv.local_outputs(ranks(tp))[0] for tp in (1, 8, 16, 32)] == [6144, 768, 256 + 256, 128 + 256]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_one_gpu_alone_holds_the_whole_model(model):
    """For every model of the registry, without padding of the vocabulary: exact."""
    model = replace(model, mtp=None)  # tests/test_hybrids.py
    spec = replace(job("llama3-8b", 1), model=model, vocab_multiple=1, global_batch_size=1, sequence=1)
    rows = layout(spec)
    stages = StageTable(
        chunk_counts(model.pattern, len(model.kinds), 1, 1).sum(axis=0)[[0, 0, 0]][None], np.zeros((1, 3), int)
    )
    held = stage_parameters(rows, spec, stages, np.zeros(1, dtype=np.intp))
    assert (held.dense + held.expert)[:, 0].tolist() == [model_parameters(model).total] * 3


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (4, 3), (7, 1), (16, 1)])
@pytest.mark.parametrize("tp", [1, 4])
def test_all_stages_together_hold_the_model(name, pp, vpp, tp):
    model = replace(load_model(name), mtp=None)
    spec = replace(job("llama3-8b", 1), model=model, vocab_multiple=1, gpus=pp * tp)
    rows = replace(layout(job("llama3-8b", 1)), pp=ranks(pp), vpp=ranks(vpp), tp=ranks(tp))
    order = [0, pp - 1, *range(1, pp - 1), 0][: max(3, pp)]
    counts = chunk_counts(model.pattern, len(model.kinds), pp, vpp).sum(axis=0)[order]
    held = stage_parameters(rows, spec, StageTable(counts[None], np.array([order])), np.zeros(1, dtype=np.intp))
    dense, expert, counts = held.dense[:pp].sum(), held.expert[:pp].sum(), counts[:pp]
    counted = model_parameters(model)
    padding = -(-model.vocab // tp) * tp - model.vocab
    again = (tp - 1) * sum(
        int(number) * kind.tp_replicated for row in counts for number, kind in zip(row, counted.kinds, strict=True)
    )
    again += (tp - 1) * (counted.final_norm + counted.positions) + 2 * padding * model.hidden
    again += model.vocab * model.hidden if model.tied_embeddings else 0  # the last stage holds a copy
    assert expert == counted.experts  # EP and ETP 1: each rank holds all of them
    assert dense * tp + expert == counted.total + again


def test_vectors_are_replicated_but_sinks_follow_their_heads():
    kind = load_model("gpt-oss-120b").kinds[0]
    one, eight = (int(vector_parameters(2880, kind, ranks(tp))[0]) for tp in (1, 8))
    assert one - eight == 64 - 8


def test_expert_biases_follow_the_expert_width():
    moe = load_model("gpt-oss-120b").kinds[0].moe
    first, second = expert_linears(2880, moe)
    assert first.local_parameters(ranks(2))[0] == 2880 * 2880 + 2880
    assert second.local_parameters(ranks(2))[0] == 1440 * 2880 + 2880


# -- components --


def gib(spec, **values):
    """Component -> GiB at the fullest stage, and their sum."""
    found = evaluate(layout(spec, **values), spec).memory
    parts = {name: size / 2**30 for name, size in found.at_peak(0).items()}
    return {**parts, "total": float(found.peak_bytes[0]) / 2**30}


def test_components_sum_to_the_peak_at_every_stage():
    rows = sample(legal("mixtral-8x7b", 32, {"micro_batch_size": "1,2"}), 2000)
    found = evaluate(rows, job("mixtral-8x7b", 32)).memory
    by_name = np.stack([np.broadcast_to(getattr(found, name), found.by_stage.shape) for name in NAMES])
    assert by_name.min() >= 0
    assert np.isfinite(by_name).all()
    assert np.allclose(by_name.sum(axis=0), found.by_stage, rtol=1e-12)
    assert (found.peak_bytes == found.by_stage.max(axis=0)).all()
    for row in range(0, 2000, 100):
        assert sum(found.at_peak(row).values()) == pytest.approx(found.peak_bytes[row], rel=1e-12)


def test_states_of_llama_70b_by_hand():
    """18 bytes per parameter; a layer has 855,638,016 in matrices, and 16,384 in norms, which TP does not split."""
    spec = job("llama3-70b", 640)
    layers = 20 * (855_638_016 / 8 + 16_384)
    embedding = 129_024 * 8192 / 8  # padded to a multiple of 128 x 8
    found = gib(spec, tp=8, pp=4)
    assert found["weights"] == pytest.approx(2 * (layers + embedding) / 2**30, rel=1e-9)
    assert found["gradients"] == pytest.approx(4 * (layers + embedding) / 2**30, rel=1e-9)
    assert found["master_weights"] == pytest.approx(4 * (layers + embedding) / 20 / 2**30, rel=1e-9)
    assert found["optimizer_state"] == pytest.approx(8 * (layers + embedding) / 20 / 2**30, rel=1e-9)


def test_zero_shards_one_state_after_the_other():
    spec = job("llama3-8b", 64)
    stages = [gib(spec, tp=2, zero=zero) for zero in range(4)]
    for name, first_sharded in (("master_weights", 1), ("optimizer_state", 1), ("gradients", 2), ("weights", 3)):
        whole = stages[0][name]
        for zero, found in enumerate(stages):
            assert found[name] == pytest.approx(whole / 32 if zero >= first_sharded else whole, rel=1e-12)
    totals = [found["total"] for found in stages]
    assert totals == sorted(totals, reverse=True)
    assert stages[3]["gathered_parameters"] > 0 == stages[2]["gathered_parameters"]


def test_gradients_reduced_in_the_last_microbatch_are_whole_until_then():
    """FSDP2 under pipelines of PyTorch: 4 bytes for each parameter of the stage, as without sharding."""
    spec = job("llama3-8b", 64)
    spec = replace(spec, runtime=replace(spec.runtime, rule_set="generic"))
    last = replace(spec, runtime=replace(spec.runtime, grad_reduce="default"))
    values = {"tp": 2, "pp": 2, "zero": 2}
    found, sharded, whole = gib(last, **values), gib(spec, **values), gib(spec, tp=2, pp=2, zero=1)
    assert found["gradients"] == pytest.approx(whole["gradients"], rel=1e-12)
    assert sharded["gradients"] == pytest.approx(whole["gradients"] / 16, rel=1e-12)
    assert gib(last, tp=2, zero=2) == gib(spec, tp=2, zero=2)  # without a pipeline each microbatch is reduced


def test_experts_shard_over_their_own_ranks():
    """EP 8 on 64 GPUs: 8 copies of each expert, 64 of everything else; sharded states weigh the same as without EP."""
    spec = job("mixtral-8x7b", 64)
    with_ep, without = gib(spec, ep=8, zero=1), gib(spec, zero=1)
    assert with_ep["optimizer_state"] == pytest.approx(without["optimizer_state"], rel=1e-12)
    assert with_ep["weights"] < without["weights"] / 5


def test_a_larger_shard_never_needs_more():
    spec = job("llama3-70b", 512)
    totals = [gib(spec, tp=4, zero=3, shard=shard)["total"] for shard in (2, 4, 8, 16, 32, 64, 128)]
    assert totals == sorted(totals, reverse=True)
    states = [gib(spec, tp=4, zero=3, shard=shard)["optimizer_state"] for shard in (2, 128)]
    assert states[0] == pytest.approx(64 * states[1], rel=1e-12)


@pytest.mark.parametrize(
    ("zero", "shard", "alone", "held"),
    [(0, 1, False, 0), (0, 1, True, 0), (2, 1, False, 0), (2, 1, True, 1), (1, 2, False, 1), (2, 2, True, 1)],
)
def test_a_shard_of_one_needs_no_buffers_unless_the_framework_goes_about_as_if_it_had_more(zero, shard, alone, held):
    """The bucket of 2 x 4e8 bytes of Qwen's ds_config_zero2.json, and 4 bytes per parameter whole and 2 of a shard."""
    spec = job("llama3-8b", 2, framework="qwen")
    spec = replace(spec, runtime=replace(spec.runtime, rule_set="generic", zero_alone=alone))
    found = evaluate(layout(spec, zero=zero, shard=shard), spec).memory
    parameters = float(found.weights.max()) / 2
    assert float(found.communication_buffers.max()) == held * 8e8
    come = float((found.at_optimizer_step - sum(getattr(found, name) for name in STATES)).max()) - held * 8e8
    assert come - 64 * 2**20 == pytest.approx(held * parameters * (4 + 2 / shard), rel=1e-9, abs=1)


@pytest.mark.parametrize(("model", "extra"), [("llama3-70b", {}), ("mixtral-8x7b", {"ep": 8}), ("gpt3-175b", {})])
def test_more_tensor_parallelism_never_needs_more(model, extra):
    spec = job(model, 512)
    found = [gib(spec, tp=tp, dp=64 // tp, pp=8, **extra) for tp in (1, 2, 4, 8)]
    for name in NAMES:
        if name not in {"communication_buffers", "nccl_buffers"}:
            sizes = [parts[name] for parts in found]
            assert all(later <= earlier * 1.02 for earlier, later in pairwise(sizes)), name


def test_sequence_parallelism_splits_what_lies_outside_the_matrices():
    spec = job("llama3-70b", 64)
    off, on = gib(spec, tp=8, pp=8, sp=0), gib(spec, tp=8, pp=8, sp=1)
    # Korthikanti et al. 2022, table 2: 10 s b h of a layer are not split by TP alone; without dropout and with the
    # inputs of norms and linear layers in 16 bits, 8 s b h
    layers, in_flight = 10, 8
    assert off["activations"] - on["activations"] == pytest.approx(
        8 * 4096 * 8192 * (1 - 1 / 8) * layers * in_flight / 2**30, rel=1e-9
    )


@pytest.mark.parametrize(
    ("model", "chain"),
    [
        ("llama3-8b", ["none", "selective:layernorm", "selective:layernorm+mlp", "full"]),
        ("llama3-8b", ["none", "full:1", "full:4", "full:8", "full:15", "full"]),
        ("deepseek-v2-lite", ["none", "selective:moe_act", "selective:moe", "selective:moe+layernorm", "full"]),
        ("deepseek-v2-lite", ["none", "selective:mla_up_proj", "selective:mla_up_proj+moe_act", "full"]),
    ],
)
def test_more_recomputation_keeps_fewer_activations(model, chain):
    spec = job(model, 8)
    kept = [first_stage_activations(spec, pp=2, recompute=choice) for choice in chain]
    assert all(later < earlier for earlier, later in pairwise(kept))
    assert kept[-1] < kept[0] / 5


def first_stage_activations(spec, **values):
    return float(evaluate(layout(spec, **values), spec).memory.activations[FIRST, 0])


def test_full_recomputation_keeps_the_inputs_of_layers():
    found = first_stage_activations(job("llama3-8b", 8), pp=8, recompute="full")
    assert found == pytest.approx(2 * 4096 * 4096 * 4 * 8, rel=1e-12)  # 4 layers, 8 microbatches in flight


def test_microbatches_in_flight():
    spec = job("llama3-8b", 16)
    position = np.array([[0.0], [3.0], [1.0]])
    plain = layout(spec, pp=4)
    assert microbatches_in_flight(plain, position)[:, 0].tolist() == [4, 1, 3]
    few = replace(plain, num_microbatches=ranks(2))
    assert microbatches_in_flight(few, position)[:, 0].tolist() == [2, 1, 2]
    # Megatron-LM: 2 (p - 1 - s) + (v - 1) p chunks before the first backward pass, and the one it works on
    chunks = microbatches_in_flight(layout(spec, pp=4, vpp=2), position) * 2
    assert chunks[:, 0].tolist() == [11, 5, 9]
    few = replace(layout(spec, pp=4, vpp=2), num_microbatches=ranks(4))
    assert microbatches_in_flight(few, position)[:, 0].tolist() == [4, 2.5, 4]


def test_activations_are_proportional_to_what_is_in_flight():
    spec = job("llama3-8b", 64, gbs=64)
    held = [gib(spec, tp=1, pp=4, dp=dp, zero=0, cp=16 // dp)["activations"] for dp in (8, 4, 2)]
    per_token = [size * cp / min(4, 64 // dp) for size, dp, cp in zip(held, (8, 4, 2), (2, 4, 8), strict=True)]
    assert per_token == pytest.approx([per_token[0]] * 3, rel=1e-9)


def test_activations_scale_with_tokens_and_split_over_context_ranks():
    spec = job("llama3-8b", 64)
    one = gib(spec, pp=2)["activations"]
    assert gib(spec, pp=2, micro_batch_size=4)["activations"] == pytest.approx(4 * one, rel=1e-12)
    assert one / 4 < gib(spec, pp=2, cp=4)["activations"] < 1.1 * one / 4  # rings keep the attention output twice
    assert gib(spec, pp=2, cp=8)["activations"] == pytest.approx(gib(spec, pp=2, cp=4)["activations"] / 2, rel=1e-12)
    assert tokens(layout(spec, cp=4, micro_batch_size=2), spec).tolist() == [2048]


def test_logits_are_at_the_last_stage_only():
    spec = job("gemma2-27b", 64)
    found = evaluate(layout(spec, pp=2, tp=2), spec).memory
    assert found.logits[FIRST, 0] == 0 < found.logits[LAST, 0]
    alone = evaluate(layout(spec, tp=2), spec).memory
    assert (alone.logits[:, 0] == found.logits[LAST, 0]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "optimizer_step"])
def test_every_component_is_there_in_some_layout(name):
    spec = job("llama3-8b", 16)
    assert gib(spec, tp=2, zero=3)[name] > 0


def test_imbalance_fills_the_busiest_expert_rank():
    even, uneven = (job("mixtral-8x7b", 64, moe_imbalance=factor) for factor in (1.0, 2.0))
    assert gib(uneven, ep=8)["activations"] > 1.3 * gib(even, ep=8)["activations"]
    assert gib(uneven)["activations"] == gib(even)["activations"]  # without EP there is no busiest rank


def test_selective_modules_have_bits_of_their_own():
    bits = list(RECOMPUTE_MODULES.values())
    assert sum(bits) == (1 << len(bits)) - 1


@pytest.mark.parametrize(("model", "copies"), [("llama3-8b", 0), ("llama3.2-1b", 1), ("deepseek-v3", 1)])
def test_two_stages_hold_the_model_and_the_embedding_again_where_the_last_needs_it(model, copies):
    """A tied head, and a module of multi-token prediction, which embeds the next token."""
    spec = job(model, 64, framework="generic")
    held = placed(layout(spec, tp=1, pp=2), spec)[2]
    count, rows = model_parameters(spec.model), float(spec.vocabulary_rows(np.array([1]))[0])
    embedding = rows * spec.model.hidden
    padding = (rows - spec.model.vocab) * spec.model.hidden * (1 if spec.model.tied_embeddings else 2)
    whole = count.total + count.mtp + padding + copies * embedding
    assert float(held.whole[[FIRST, LAST]].sum()) == pytest.approx(whole, abs=1e-3 * embedding)


def test_in_a_single_microbatch_nothing_is_added_up():
    """Gradients reduced in the last microbatch are those of the first."""
    each, last = (job("llama3-8b", 8, gbs=8, framework="generic", grad_reduce=when) for when in (None, "last"))
    assert gib(last, zero=2)["gradients"] == gib(each, zero=2)["gradients"]
