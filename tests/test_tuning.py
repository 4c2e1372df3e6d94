"""Fine-tuning by adapters: their weights against what PEFT prints, memory and time against sums by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpuscale
from gpuscale.architecture.flops import forward_flops, training_flops_per_token
from gpuscale.architecture.parameters import (
    Linear,
    adapter_parameters,
    adapters,
    count_adapters,
    dense_linears,
    expert_linears,
    model_parameters,
    trained_parameters,
)
from gpuscale.choices import BASE_DTYPES, METHODS
from gpuscale.errors import InputError
from gpuscale.layouts.stages import FIRST, LAST
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.plans import job_of
from gpuscale.presets.models import load_model
from gpuscale.render.plan_texts import fine_tuning_lines
from gpuscale.request import OPTIMIZERS
from gpuscale.search.evaluation import evaluate, memory_of
from gpuscale.specs.tuning import METHOD_SPECS, TuningSpec, read_targets
from gpuscale.steptime.data_parallel import tied_embedding_s
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.offload import host_link_bytes_per_s
from gpuscale.steptime.step import gpu_spread, slowest_of, weight_gradients_by_layer
from gpuscale.steptime.tensor_parallel import linear_times, stream
from gpuscale.training.checkpoints import checkpoint_of
from gpuscale.units import format_duration
from gpuscale.validation.scores import validate

RUNS = Path(__file__).parents[2] / "shared" / "validation" / "finetune.csv"


def tuning(rank=16, targets="all", **more):
    return TuningSpec(rank, read_targets(targets), **more)


def job(layout=None, model="llama3-8b", gpus=1, framework="accelerate", **options):
    return job_of(
        {"model": model, "gpus": gpus, "framework": framework, "gbs": 8, "seq": 2048, **options}, layout or {}
    ).spec


def done(layout, **options):
    spec = job(layout, **options)
    return evaluate(fixed_layout(spec, layout), spec)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "printed"),
    [  # "trainable params" of peft's print_trainable_parameters, as model cards and tutorials quote it
        ("llama3-8b", 16, "all", 41_943_040),
        ("llama2-7b", 8, "q_proj,v_proj", 4_194_304),
        ("llama2-7b", 64, "all-linear", 159_907_840),
        ("mistral-7b", 16, "q_proj k_proj v_proj o_proj", 13_631_488),
        ("llama2-70b", 16, "all", 207_093_760),
        # peft 0.21 over classes of transformers 5.24 on the meta device
        ("qwen2.5-7b", 16, "all-linear", 40_370_176),
        ("gemma2-9b", 16, "all-linear", 54_018_048),
        ("mistral-7b", 16, "q,v", 6_815_744),
        ("qwen3-30b-a3b", 16, "q,v", 6_684_672),
    ],
)
def test_weights_of_adapters_are_what_peft_prints(model, rank, targets, printed):
    assert count_adapters(load_model(model), tuning(rank, targets)).total == printed


def test_adapters_of_experts_are_counted_for_each_expert():
    model = load_model("mixtral-8x7b")
    without, beside = (count_adapters(model, tuning(8, "all", experts=experts)) for experts in (False, True))
    each = 8 * 3 * (4096 + 14336)  # rank x three matrices of an expert
    assert beside.total - without.total == 32 * 8 * each
    assert beside.active - without.active == 32 * 2 * each
    assert without.total == without.active


def test_tensor_parallelism_leaves_one_side_of_an_adapter_whole():
    fc1, fc2 = (one for one in dense_linears(4096, load_model("llama3-8b").kinds[0]) if one.module == "mlp")
    tp = np.array([1, 8])
    columns, rows = (adapter_parameters(one, tuning(16, "mlp"), tp) for one in (fc1, fc2))
    assert columns.tolist() == [2 * 16 * (4096 + 14336), 2 * 16 * (4096 + 14336 / 8)]
    assert rows.tolist() == [16 * (14336 + 4096), 16 * (14336 / 8 + 4096)]


@pytest.mark.parametrize("base", BASE_DTYPES)
def test_weights_are_frozen_bytes_and_adapters(base):
    """A sum by hand: matrices of layers in the base's bytes, the rest in 16 bits or the base's plain type."""
    spec = job(tune="lora", base_dtype=base, framework="megatron-lm", lora_targets="attention")
    model, counted = spec.model, model_parameters(spec.model)
    matrices = sum(one.weights for one in dense_linears(model.hidden, model.kinds[0])) * model.layers
    plain = 4 if base == "fp32" else 2
    adapters = count_adapters(model, spec.tuning).total
    padded = 2 * (spec.vocabulary_rows(np.array([1]))[0] - model.vocab) * model.hidden
    expected = matrices * BASE_DTYPES[base] + (counted.total - matrices + padded) * plain + 2 * adapters
    held = memory_of(fixed_layout(spec, {}), spec)
    assert held.weights[0, 0] == pytest.approx(expected, rel=1e-12)
    assert held.optimizer_state[0, 0] == 8 * adapters
    assert held.gradients[0, 0] == 4 * adapters


def test_what_is_trained_whole_has_states_of_16_bits_and_peft_keeps_its_original():
    """peft, ModulesToSaveWrapper: a deep copy of the module, of which autocast_adapter_dtype makes nothing wider."""
    plain, whole = (done({}, tune="lora", **more).memory for more in ({}, {"train": "embeddings,head"}))
    ends = 2 * 128_256 * 4096
    assert whole.optimizer_state[0, 0] - plain.optimizer_state[0, 0] == 4 * ends
    assert whole.weights[0, 0] == plain.weights[0, 0]  # the original; the copy is counted where adapters' masters are
    assert whole.master_weights[0, 0] - plain.master_weights[0, 0] == 2 * ends
    assert whole.gathered_parameters[0, 0] == plain.gathered_parameters[0, 0]  # autocast copies adapters alone
    norms = done({}, tune="lora", train="norms").memory
    assert norms.optimizer_state[0, 0] - plain.optimizer_state[0, 0] == 4 * 65 * 4096
    widened, wide = (done({}, tune="qlora", **more).memory for more in ({}, {"train": "head"}))
    assert wide.optimizer_state[0, 0] - widened.optimizer_state[0, 0] == 8 * ends / 2  # fp32 before it is copied


def test_zero_3_shards_frozen_weights_and_zero_2_does_not():
    held = {zero: done({"zero": zero}, gpus=8, tune="lora").memory.weights[0, 0] for zero in (0, 2, 3)}
    assert held[0] == held[2]
    assert held[3] == pytest.approx(held[0] / 8, rel=1e-3)


def test_data_parallel_ranks_reduce_adapters_alone_and_zero_3_gathers_all():
    sent = {
        (tune, zero): done({"zero": zero}, gpus=8, tune=tune, overlap="none").step.dp_total_s[0]
        for tune in ("full", "lora")
        for zero in (2, 3)
    }
    assert sent["lora", 2] < sent["full", 2] / 20
    assert sent["full", 3] / 2 < sent["lora", 3] < sent["full", 3]
    quantised = done({"zero": 3}, gpus=8, tune="qlora", overlap="none").step.dp_total_s[0]
    assert quantised < 0.45 * sent["lora", 3]


def test_no_weight_gradient_of_frozen_matrices():
    """GEMMs of LoRA take two thirds of full training's, and what narrow products take; more with a higher rank."""
    gemm = [done({}, framework="megatron-lm", tune="full", gbs=1).step.seconds()["gemm"]]
    gemm += [
        done({}, framework="megatron-lm", tune="lora", lora_rank=rank, gbs=1).step.seconds()["gemm"]
        for rank in (4, 64, 512)
    ]
    assert gemm[1] < gemm[2] < gemm[3]
    assert 0.6 < gemm[1] / gemm[0] < 0.8


def test_model_flops_are_those_that_gradients_need():
    model = load_model("llama3-8b")
    spec, forward = tuning(16, "all"), forward_flops(model, 4096, "causal")
    adapters = count_adapters(model, spec).total
    expected = 2 * forward.total + forward.attention_core + 6 * adapters
    assert training_flops_per_token(model, 4096, "causal", spec) == pytest.approx(expected, rel=1e-12)
    head = tuning(16, "all", trained=frozenset({"head"}))
    assert training_flops_per_token(model, 4096, "causal", head) == pytest.approx(expected + forward.lm_head, rel=1e-12)


def test_quantised_weights_are_unpacked_in_every_pass():
    steps = {
        base: done({"recompute": "full"}, tune="lora", base_dtype=base, gbs=1).step.step_time_s[0]
        for base in ("bf16", "nf4")
    }
    spec = job(gbs=1)
    weights = 32 * sum(one.weights for one in dense_linears(4096, spec.model.kinds[0]))
    once = weights * (BASE_DTYPES["nf4"] + 2) / spec.cluster.gpu.memory_bandwidth_bytes_per_s
    assert (
        3 * once < steps["nf4"] - steps["bf16"] < 5 * once
    )  # forward, again, backward; copies miss the full bandwidth


def test_fsdp1_keeps_input_gradients_of_recomputed_layers():
    layout = {"zero": 3, "recompute": "full", "micro_batch_size": 1}
    old, new = (
        done(layout, gpus=8, tune="lora", framework=f"accelerate@{month}", loss="linear").memory.by_stage[0, 0]
        for month in ("2025-02", "2025-04")
    )
    assert (old - new) / (30 * 2048 * 4096 * 2) == pytest.approx(1, rel=0.25)  # and what it fragments


def test_frozen_matrices_without_adapters_do_not_keep_their_inputs():
    kept = {
        targets: done({}, framework="megatron-lm", tune="lora", lora_targets=targets).memory.activations[0, 0]
        for targets in ("q,v", "attention", "all")
    }
    token = kept["all"] - kept["attention"]
    per_layer = 2 * (4096 + 14336) + 2 * 16 * 3  # norm's output and product's input; what A gives of three adapters
    assert token == pytest.approx(32 * 2048 * per_layer, rel=1e-12)
    assert kept["attention"] - kept["q,v"] == pytest.approx(32 * 2048 * 2 * 16 * 2, rel=1e-12)


def test_dropout_saves_what_each_adapter_reads():
    off, on = (
        done({}, framework="megatron-lm", tune="lora", lora_targets="q,o", lora_dropout=dropout).memory.activations[
            0, 0
        ]
        for dropout in (False, True)
    )
    assert on - off == pytest.approx(32 * 2048 * 2 * 3 * 4096, rel=1e-12)


# -- preferences --


def test_every_method_that_may_be_asked_for_is_described():
    assert tuple(METHOD_SPECS) == METHODS


@pytest.mark.parametrize(
    ("method", "sequences", "forwards"), [("dpo", 2, 1), ("kto", 1, 3), ("orpo", 2, 0), ("grpo", 1, 1)]
)
def test_methods_run_more_sequences_and_forward_passes(method, sequences, forwards):
    """Against the step of next tokens on as many sequences: microbatches and their forward passes by hand."""
    plain = done({"micro_batch_size": 2}, gbs=8 * sequences, overlap="none").step
    asked = done({"micro_batch_size": 2}, gbs=8, method=method, overlap="none").step
    (layer,), ends = plain.passes.layers, plain.passes.ends_s
    once = 32 * layer.forward_s + ends[FIRST][0] + ends[LAST][0]
    expected = plain.step_time_s + 4 * sequences * forwards * once * (
        1 + slowest_of(plain.candidates, gpu_spread(job().cluster.gpu))
    )
    assert asked.step_time_s[0] == pytest.approx(expected[0], rel=1e-9)


def test_a_reference_model_is_held_in_16_bits_unless_adapters_can_be_switched_off():
    total = model_parameters(load_model("llama3-8b")).total

    def weights(zero=0, **options):
        return done({"micro_batch_size": 2, "zero": zero}, gpus=8, **options).memory.weights[0, 0]

    assert weights(method="dpo") - weights(method="orpo") == 2 * total
    assert weights(3, method="dpo") - weights(3, method="orpo") == pytest.approx(2 * total / 8)
    assert weights(method="dpo", tune="lora") == weights(tune="lora")


def test_zero_3_gathers_the_reference_once_more():
    sent = {
        name: done({"zero": 3, "micro_batch_size": 2}, gpus=8, method=name).step.dp_total_s[0]
        for name in ("orpo", "dpo")
    }
    reduced = done({"zero": 2, "micro_batch_size": 2}, gpus=8, method="orpo", framework="accelerate").step
    assert 1.2 < sent["dpo"] / sent["orpo"] < 1.5  # three gathers and a reduction, not two and one
    assert reduced.dp_total_s[0] < sent["orpo"]


def test_a_pair_stays_in_one_microbatch():
    with pytest.raises(InputError, match="whole pairs"):
        gpuscale.estimate(model="llama3-8b", gpus=1, method="dpo", micro_batch_size=3, gbs=3)
    found = gpuscale.plan(model="llama3-8b", gpus=8, method="dpo", gbs=32, framework="accelerate", seq=2048)
    assert {plan.micro_batch_size % 2 for plan in found.plans} == {0}
    assert found.plans[0].global_batch_size == 64


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_explanations_of_methods_add_up(method):
    options = {"model": "llama3-8b", "gpus": 8, "method": method, "gbs": 32, "framework": "accelerate", "zero": 3}
    found = gpuscale.explain_plan(**options, tp=2, seq=2048)
    assert found.step.value == found.plan.step_time_s
    assert gpuscale.traffic_of(gpuscale.read_subject(**options, tp=2, seq=2048))


def test_what_can_be_given_up_saves_memory():
    subject = gpuscale.read_subject(model="llama3-8b", gpus=1, framework="accelerate", gbs=16, seq=2048)
    found = gpuscale.memory_budget(subject)
    changes = [dict(one.change) for one in found.ladder]
    assert {"tune": "qlora"} in changes
    assert {"optimizer": "adamw-8bit"} in changes
    assert all(one.memory_gib < found.asked.memory_gib for one in found.ladder)
    assert [one.step_time_s for one in found.ladder] == sorted(one.step_time_s for one in found.ladder)


@pytest.mark.parametrize("name", [name for name, one in OPTIMIZERS.items() if not one.projected])
def test_states_of_optimizers(name):
    number, own, _ = OPTIMIZERS[name]
    memory = done({}, tune="full", optimizer=name, gbs=1, cluster="b300-hgx").memory  # paged ones have room
    total = model_parameters(load_model("llama3-8b")).total
    assert memory.optimizer_state[0, 0] == pytest.approx(total * number * (4 if own is None else own), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"lora_rank": 8}, "lora_rank", "adapters"),
        ({"base_dtype": "nf4"}, "base_dtype", "adapters"),
        ({"tune": "qlora", "base_dtype": "bf16"}, "base_dtype", "fewer bits than bf16"),
        ({"tune": "lora", "lora_experts": True}, "lora_experts", "has no experts"),
        ({"tune": "lora", "lora_targets": "q,nose"}, "lora_targets", "unknown matrix 'nose'"),
        ({"tune": "lora", "lora_targets": "kv_up"}, "lora_targets", "has no matrix of these"),
        ({"tune": "lora", "train": "nose"}, "train", "unknown part 'nose'"),
        ({"tune": "lora", "lora_rank": 0}, "lora_rank", "out of range"),
    ],
)
def test_what_cannot_be_is_refused(options, field, says):
    with pytest.raises(InputError) as caught:
        gpuscale.estimate(model="llama3-8b", gpus=1, **options)
    assert caught.value.field == field
    assert says in str(caught.value)


@pytest.mark.parametrize(("tune", "gpus"), [("lora", 8), ("qlora", 2)])
def test_a_plan_is_what_an_estimate_of_it_says(tune, gpus):
    options = {"model": "llama3-70b", "gpus": gpus, "tune": tune, "framework": "accelerate", "gbs": 32, "seq": 2048}
    found = gpuscale.plan(**options, top=3)
    for one in found.plans:
        names = ("tp", "pp", "cp", "zero", "micro_batch_size", "recompute")
        alone = gpuscale.estimate(**options, **{name: getattr(one, name) for name in names}).plan
        assert (alone.step_time_s, alone.memory_gib) == (one.step_time_s, one.memory_gib)
        assert one.memory_gib < 79.6


@pytest.mark.skipif(not RUNS.is_file(), reason="the shared measured runs are not here")
def test_measured_runs_of_fine_tuning():
    """Families of many runs: medians, which a wrong byte per weight or a forgotten pass would move by 10 % or more."""
    summary = validate(RUNS).summary
    time, memory = (found["groups"]["family"] for found in (summary, summary["memory"]))
    assert time["fmsacc"]["median_abs"] < 0.06
    assert memory["fmsacc"]["median_abs"] < 0.04
    assert memory["primerlrl"]["median_abs"] < 0.12


# -- what is taken where nothing is said --


@pytest.mark.parametrize(("options", "framework", "batch"), [
    ({"tune": "lora"}, "accelerate", 64),
    ({"method": "dpo", "gpus": 8}, "accelerate", 128),
    ({"tune": "lora", "gpus": 128}, "accelerate", 128),
    ({"tune": "qlora", "framework": "generic"}, "generic", 64),
    ({"tune": "full"}, "megatron-lm", None),
])  # fmt: skip
def test_fine_tuning_is_of_the_framework_and_the_batch_that_it_usually_has(options, framework, batch):
    spec = job_of({"model": "llama3-8b", "gpus": 1, **options}, {}).spec
    assert spec.runtime.name == framework
    assert batch is None or spec.global_batch_size == batch


# -- what must hold whatever is tuned --

MODELS = ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "nemotron-h-8b", "gemma2-2b")


@pytest.mark.parametrize("model", MODELS)
def test_memory_and_time_grow_with_the_rank_and_stay_below_full_training(model):
    ranks = [done({"micro_batch_size": 2}, model=model, tune="lora", lora_rank=rank) for rank in (4, 64, 512)]
    whole = done({"micro_batch_size": 2}, model=model, tune="full", framework="accelerate")
    memory, time = [one.memory.peak_bytes[0] for one in ranks], [one.step.step_time_s[0] for one in ranks]
    assert memory == sorted(memory)
    assert time == sorted(time)
    assert memory[0] < 0.7 * whole.memory.peak_bytes[0]
    assert ranks[0].step.seconds()["gemm"] < whole.step.seconds()["gemm"]


@pytest.mark.parametrize("model", MODELS)
def test_fewer_bits_of_frozen_weights_are_less_memory_of_weights(model):
    bases = ("fp32", "bf16", "int8", "nf4-single", "nf4")
    held = [done({}, model=model, tune="lora", base_dtype=base).memory.weights[0, 0] for base in bases]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(bases)


@pytest.mark.parametrize(("model", "experts"), [("llama3-8b", None), ("mixtral-8x7b", True), ("qwen3-30b-a3b", True)])
def test_adapters_of_all_ranks_add_up(model, experts):
    """Over stages and expert-parallel ranks; TP repeats one side of each adapter, so that it holds more."""
    more = {"framework": "generic", "tune": "lora", "lora_experts": experts, "model": model, "gpus": 8}
    counted = count_adapters(load_model(model), job(**more).tuning).total

    def moments(layout):
        return done({"zero": 0, **layout}, **more).memory.optimizer_state

    assert moments({})[0, 0] == 8 * counted
    assert moments({"pp": 2})[[FIRST, LAST], 0].sum() == 8 * counted
    assert counted * 8 / 8 < moments({"tp": 8})[0, 0] < counted * 8
    if experts:
        alone = count_adapters(load_model(model), tuning(16, "all")).total
        assert moments({"ep": 8})[0, 0] == 8 * (alone + (counted - alone) / 8)


# -- what is offloaded, tied or beside dense layers --


def test_frozen_weights_are_offloaded_too():
    options = {"gpus": 8, "tune": "lora", "framework": "deepspeed", "model": "llama3-70b", "seq": 128}
    on_gpu, on_host = (done({"zero": 3}, **options, offload=offload) for offload in (None, "parameters"))
    held = on_gpu.memory.weights[0, 0]
    assert on_host.memory.weights[0, 0] == 0
    assert on_host.memory.host_bytes[0] == pytest.approx(8 * held, rel=1e-12)
    link = host_link_bytes_per_s(job(**options, offload="parameters"))
    gap = on_host.step.seconds()["offload"] + on_host.step.dp_total_s[0] - on_gpu.step.dp_total_s[0]
    assert 0.8 < gap / (2 * held / link) < 1.3  # there in the forward and the backward pass


@pytest.mark.parametrize(("train", "sent"), [(None, False), ("head", False), ("embeddings,head", True)])
def test_a_frozen_tied_embedding_has_no_gradients_to_add_up(train, sent):
    options = {"model": "llama3.2-1b", "gpus": 2, "tune": "lora", "train": train, "framework": "megatron-lm"}
    spec = job(**options)
    rows = fixed_layout(spec, {"pp": 2})
    assert (tied_embedding_s(rows, spec) > 0).all() == sent
    subject = gpuscale.read_subject(**options, pp=2, seq=2048, gbs=8)
    assert any(one.axis == "embedding" for one in gpuscale.traffic_of(subject).traffic) == sent


@pytest.mark.parametrize(("train", "matrices"), [("head", 1), ("embeddings", 1), ("embeddings,head", 2)])
def test_what_peft_trains_of_a_tied_matrix_is_a_copy(train, matrices):
    plain, whole = (done({}, model="llama3.2-1b", tune="lora", **more).memory for more in ({}, {"train": train}))
    assert whole.optimizer_state[0, 0] - plain.optimizer_state[0, 0] == 4 * matrices * 128_256 * 2048
    assert whole.weights[0, 0] == plain.weights[0, 0]


def test_zero_bubbles_are_not_filled_with_gradients_of_a_frozen_head():
    rows = {
        train: weight_gradients_by_layer(fixed_layout(spec, {"pp": 2}), spec)
        for train in (None, "head")
        for spec in [job(gpus=2, tune="lora", train=train, framework="megatron-lm")]
    }
    assert rows[None][1][0] == 0 < rows["head"][1][0]


def test_adapters_of_state_spaces_are_as_wide_as_their_fused_input():
    """Mamba-2's in_proj: gate, values, B and C of eight groups, and a step size per head."""
    outputs = 2 * 8192 + 2 * 8 * 128 + 128
    assert count_adapters(load_model("nemotron-h-8b"), tuning(16, "in_proj")).total == 24 * 16 * (4096 + outputs)


@pytest.mark.parametrize(
    ("model", "targets", "inputs"),
    [("nemotron-h-8b", "in", 24 * 4096), ("deepseek-v2-lite", "mlp", 27 * 2 * 2048 + 26 * 2816 + 10_944)],
)
def test_dropout_saves_what_adapters_beside_state_spaces_and_shared_experts_read(model, targets, inputs):
    off, on = (
        done({}, model=model, tune="lora", lora_targets=targets, framework="megatron-lm", lora_dropout=dropout)
        for dropout in (False, True)
    )
    assert on.memory.activations[0, 0] - off.memory.activations[0, 0] == 2048 * 3 * inputs


def test_a_batch_in_tokens_counts_those_of_both_answers_of_a_pair():
    for method in ("sft", "dpo"):
        spec = job(method=method, gbs="1Mtok", seq=2048)
        assert spec.global_batch_size * spec.sequence == 2**20


def test_plans_try_the_settings_of_the_framework_that_fine_tunes():
    found = gpuscale.plan(model="qwen3-30b-a3b", gpus=8, tune="lora", seq=2048)
    assert not {"cuda_graphs", "overlap"} & found.assumptions.keys()


def test_training_nothing_whole_can_be_said_again():
    options = {"model": "llama3.2-1b", "gpus": 1, "tune": "lora"}
    asked = gpuscale.train_time(**options, train="none", train_tokens="1G")
    assert asked.plan == gpuscale.train_time(**options, train_tokens="1G").plan


def test_one_gpu_is_not_told_to_shard():
    options = {"tune": "qlora", "cluster": "rtx-4090"}
    budget = gpuscale.memory_budget(gpuscale.read_subject(options={"model": "llama3-8b", "gpus": 1, **options}))
    remedies = gpuscale.estimate("llama3-8b", 1, **options).remedies
    assert budget.asked.fit == "no"
    assert remedies
    assert {row.zero for row in budget.rows} == {0}
    assert not [one for one in (*budget.ladder, *remedies) if "zero" in one.change]


def test_the_convention_of_mfu_says_what_is_counted_of_frozen_weights_and_more_passes():
    found = gpuscale.estimate(model="llama3-8b", gpus=1, tune="lora", method="dpo", micro_batch_size=2)
    assert "of frozen weights 2 x" in found.plan.flop_convention
    assert "passes without gradients not counted" in found.plan.flop_convention


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("train", ["none", "embeddings", "head", "norms", "embeddings,head,norms"])
def test_what_is_trained_is_counted_as_its_states_are(model, train):
    """Two routes: by layers of a stage, and over the whole model; a checkpoint holds that, not what is frozen."""
    options = {"model": model, "tune": "lora", "train": train, "lora_experts": None}
    spec = job(**options)
    trained = trained_parameters(spec.model, spec.tuning, spec.whole_share)
    assert done({}, **options).memory.optimizer_state[0, 0] == pytest.approx(8 * trained, rel=1e-12)
    written = checkpoint_of("sync", fixed_layout(spec, {}), spec, 1e9)
    assert written.bytes == pytest.approx(written.bytes_per_gpu, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "matrices"),
    [
        ("qwen2.5-1.5b", 28 * (1536 * (1536 + 512) + 1536 * 1536 + 3 * 1536 * 8960)),
        ("mixtral-8x7b", 32 * (4096 * (4096 + 2048) + 4096 * 4096 + 8 * 3 * 4096 * 14336)),
    ],
)
def test_routers_and_biases_are_not_quantised(model, matrices):
    spec = job(model=model, tune="qlora", framework="generic", vocab_multiple=1, lora_targets="attention")
    others = model_parameters(spec.model).total - matrices
    trained = count_adapters(spec.model, spec.tuning).total
    weights = memory_of(fixed_layout(spec, {}), spec).weights[0, 0]
    assert weights == pytest.approx(matrices * BASE_DTYPES["nf4"] + 2 * (others + trained), rel=1e-9)


def test_a_fused_module_has_one_adapter():
    """Qwen 1 and PEFT: c_attn of 4096 x 12288 in one; where single matrices are named too, which of both is open."""
    count = 32 * 64 * (4096 + 3 * 4096)
    fused, apart, both = (
        job(model="qwen-7b", tune="lora", lora_rank=64, lora_targets=names)
        for names in ("c_attn", "q_proj,k_proj,v_proj", "q_proj,k_proj,v_proj,c_attn")
    )
    assert count_adapters(fused.model, fused.tuning).total == count
    assert count_adapters(both.model, both.tuning).total == count_adapters(apart.model, apart.tuning).total
    assert count_adapters(apart.model, apart.tuning).total == 32 * 64 * 3 * (4096 + 4096)
    gated = job(tune="lora", lora_rank=8, lora_targets="gate_up_proj,down_proj")
    assert count_adapters(gated.model, gated.tuning).total == 32 * 8 * (4096 + 2 * 14336 + 14336 + 4096)
    assert job(model="qwen-7b", tune="lora", lora_targets="c_proj,w1,w2").tuning.targets == {"o", "gate", "up", "down"}


def test_adapters_of_plain_and_of_separate_matrices():
    assert count_adapters(load_model("pythia-1b"), tuning(16, "mlp")).total == 16 * 16 * 2 * (2048 + 8192)
    both = Linear("kv", "attention", 1024, 2 * 256, "replicated")
    assert [one.outputs.tolist() for one in adapters(both, tuning(8, "k,v"), np.array([1]))] == [[256], [256]]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "nemotron-h-8b", "deepseek-v3.2"])
def test_scores_have_both_gradients_and_adapters_count_where_they_are_used(model):
    spec, found = load_model(model), forward_flops(load_model(model), 4096, "causal")
    of_experts = tuning(16, "all", experts=spec.is_moe)
    scores = found.attention_core + found.indexer + found.state_space
    expected = 2 * found.total + scores + 6 * count_adapters(spec, of_experts).active
    assert training_flops_per_token(spec, 4096, "causal", of_experts) == pytest.approx(expected, rel=1e-12)
    assert count_adapters(spec, of_experts).active < count_adapters(spec, of_experts).total or not spec.is_moe


# -- beside quantised and frozen weights --


def test_what_is_not_quantised_is_widened_unless_it_is_sharded():
    layout, ends = {"micro_batch_size": 1, "recompute": "full"}, 2 * 128_256 * 4096
    lora, qlora = (done(layout, tune=tune).memory for tune in ("lora", "qlora"))
    assert qlora.gathered_parameters[0] - lora.gathered_parameters[0] == 2 * ends
    inputs = 32 * 2048 * 4096 * 2
    assert qlora.activations[0, 0] - lora.activations[0, 0] == inputs
    gptq = done(layout, tune="qlora", base_dtype="int4").memory
    assert gptq.gathered_parameters[0] == lora.gathered_parameters[0]  # peft, is_gptq_quantized
    sharded = [done({**layout, "zero": 3}, gpus=8, tune=tune).memory.activations[0, 0] for tune in ("lora", "qlora")]
    assert sharded == [inputs, inputs]


def test_zero_3_gathers_frozen_layers_as_they_are_stored():
    held = {
        base: done({"zero": 3}, gpus=8, tune="lora", base_dtype=base).memory.gathered_parameters
        for base in ("bf16", "fp32")
    }
    layer = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert (held["fp32"] - held["bf16"]).max() == 2 * 2 * layer


@pytest.mark.parametrize("train", ["embeddings", "head"])
def test_frozen_ends_have_no_gradients(train):
    plain, whole = (
        done({"zero": 3}, gpus=8, seq=16, loss="linear", tune="lora", train=part).memory for part in ("none", train)
    )
    used = [(one.logits + one.workspace).max() for one in (plain, whole)]
    assert used[0] < 0.5 * 2 * 128_256 * 4096 < used[1]


def test_a_frozen_norm_keeps_one_copy_of_its_input_less():
    kept = [done({}, tune="lora", train=part).memory.activations[0, 0] for part in ("none", "norms")]
    assert kept[1] - kept[0] == 32 * 2 * 2 * 2048 * 4096


def test_experts_keep_what_gradients_of_their_adapters_need():
    """Of two tokens each: inputs of both products, what three adapters make of them; and once the norm's output."""
    off, on = (
        done({}, model="mixtral-8x7b", framework="megatron-lm", tune="lora", lora_experts=experts).memory.activations
        for experts in (False, True)
    )
    each = 2 * (2 * (4096 + 14336) + 3 * 2 * 16) + 2 * 4096
    assert on[0, 0] - off[0, 0] == 32 * 2048 * each


def test_shared_experts_keep_what_gradients_of_their_adapters_need():
    options = {"model": "deepseek-v2-lite", "framework": "megatron-lm", "tune": "lora"}
    first, both = (done({}, **options, lora_targets=targets).memory.activations for targets in ("gate,up", "mlp"))
    assert both[0, 0] - first[0, 0] == 2048 * 2 * (26 * 2816 + 10_944 + 27 * 16)


def times_of(name, options=None, groups=1, **more):
    """Times of one operator of a model on 2,048 tokens, and the rows and the job of it."""
    spec = job(**{"tune": "lora", **(options or {}), **more})
    kind = spec.model.kinds[-1]
    linears = (
        *dense_linears(spec.model.hidden, kind),
        *(expert_linears(spec.model.hidden, kind.moe) if kind.moe else ()),
    )
    linear = next(one for one in linears if one.name == name)
    rows = np.array([2048.0])
    return linear_times(linear, fixed_layout(spec, {}), spec, rows, np.array([groups])), spec


@pytest.mark.parametrize(
    ("options", "forward", "backward", "kernels"),  # products left out, and dropout
    [
        ({"framework": "accelerate"}, 12 + 10, 18 + 4, 6),
        ({"framework": "accelerate", "lora_dropout": True}, 12 + 9 + 10, 18 + 9 + 4, 6),
        ({"framework": "accelerate", "compile": "on"}, 6, 6, 1),
        ({"framework": "accelerate@2024-04"}, 10, 6 + 4, 2),
        ({"framework": "accelerate@2024-04", "lora_dropout": True}, 5 + 10, 5 + 6 + 4, 2),
    ],
)
def test_element_wise_work_of_an_adapter(options, forward, backward, kernels):
    """Bytes per element of input and output, which are equally wide, by `ADAPTER_TRAFFIC`'s sources."""
    found, spec = times_of("out_proj", options)
    frozen, _ = times_of("out_proj", options, lora_targets="q")
    element = 2048.0 * 4096
    for way, moved in (("stream_forward", forward), ("stream_backward", backward)):
        extra = (getattr(found, way) - getattr(frozen, way)).item()
        assert extra == pytest.approx(stream(spec, element * moved, kernels))
    assert found.kernels - frozen.kernels == kernels + 2 + options.get("lora_dropout", False)


def test_an_adapter_adds_two_narrow_products_each_way_and_two_weight_gradients():
    found, spec = times_of("out_proj", lora_rank=64)
    frozen, _ = times_of("out_proj", lora_targets="q")
    gpu = spec.cluster.gpu
    once = gemm_time_s(gpu, "bf16", 2048.0, 64, 4096) + gemm_time_s(gpu, "bf16", 2048.0, 4096, 64)
    assert found.forward - frozen.forward == pytest.approx(once)
    assert found.dgrad - frozen.dgrad == pytest.approx(once)
    assert frozen.wgrad == 0
    assert found.wgrad == pytest.approx(2 * gemm_time_s(gpu, "bf16", 4096, 64, 2048.0))


def test_unpacking_takes_each_experts_weights_and_no_router():
    options = {"model": "mixtral-8x7b", "lora_targets": "q"}

    def unpacked(name, groups=1, **more):
        stored, plain = (times_of(name, options, groups, base_dtype=base, **more)[0] for base in ("int4", "bf16"))
        return (stored.stream_forward - plain.stream_forward).item()

    assert unpacked("router") == 0
    assert unpacked("expert_fc2", 8) == pytest.approx(8 * unpacked("expert_fc2"), rel=0.1)
    early = unpacked("expert_fc2", framework="accelerate@2024-02") / unpacked("expert_fc2")
    assert early == pytest.approx(16.5 / (BASE_DTYPES["int4"] + 2), rel=0.1)


@pytest.mark.parametrize(
    ("options", "base"),
    [
        ({}, "bf16"),
        ({"cluster": "t4"}, "fp16"),
        ({"precision": "fp32"}, "fp32"),
        ({"framework": "prime-rl"}, "fp32"),
        ({"tune": "qlora"}, "nf4"),
    ],
)
def test_frozen_weights_are_stored_as_frameworks_and_precisions_have_them(options, base):
    assert job(**{"tune": "lora", **options}).tuning.base == base


def test_adapters_had_16_bits_before_peft_made_them_fp32():
    for tune, master in (("lora", 0), ("full", 4)):
        assert job(tune=tune, framework="accelerate@2024-04").states.master == master
    assert job(tune="lora", framework="accelerate@2023-12").states.master == 4  # PEFT 0.6: new modules of 32 bits
    assert job(tune="lora").states.master == 4


@pytest.mark.parametrize(("tune", "tower"), [("full", "trained"), ("lora", "frozen")])
def test_towers_are_frozen_beside_adapters(tune, tower):
    assert job(model="gemma3-4b", tune=tune).tower == tower


def test_a_ladder_halves_sequences_keeps_tokens_and_pairs_and_is_for_few_gpus():
    options = {"model": "llama3-8b", "framework": "accelerate", "gbs": 32, "seq": 2048, "method": "dpo"}
    ladder = gpuscale.memory_budget(gpuscale.read_subject(**options, gpus=2, micro_batch_size=4)).ladder
    changes = [dict(one.change) for one in ladder]
    assert {"seq": 1024, "gbs": 64} in changes
    assert {"micro_batch_size": 2} in changes
    assert gpuscale.memory_budget(gpuscale.read_subject(**options, gpus=32, micro_batch_size=2)).ladder == ()


def test_the_first_line_counts_pairs_and_says_how_likely_only_what_fits():
    options = {"tune": "qlora", "method": "orpo", "gbs": 10_000, "seq": 512}
    plan = gpuscale.estimate("llama3-8b", 1, **options, micro_batch_size=2).plan
    assert fine_tuning_lines(plan, options) == [
        f"fits: {plan.memory_gib:.1f} of 79.6 GiB ({plan.fit_probability:.0%}), {format_duration(plan.step_time_s)} "
        "for 10,000 samples of 2 x 512 tokens"
    ]
    (too_large,) = fine_tuning_lines(gpuscale.estimate("llama3-70b", 1, tune="lora").plan, {"tune": "lora"})
    assert too_large.startswith("DOES NOT FIT")
    assert "%" not in too_large


def test_frozen_ends_take_no_time_for_gradients():
    ends = {train: done({}, tune="lora", train=train, gbs=1).step.passes.ends for train in ("none", "embeddings,head")}
    (_, frozen), (_, trained) = (one[FIRST] for one in ends.values())
    assert frozen["elementwise"][0] == 0 < trained["elementwise"][0]
    weight_s = ends["embeddings,head"][LAST][1]["gemm"] - ends["none"][LAST][1]["gemm"]
    assert weight_s.item() == pytest.approx(gemm_time_s(job().cluster.gpu, "bf16", 4096, 128_256, 2048.0).item())


def test_zero_3_copies_frozen_weights_and_gathers_a_reference_in_sight():
    layout, options = {"zero": 3, "micro_batch_size": 2}, {"gpus": 8, "overlap": "none"}
    lora = done({"zero": 3}, tune="lora", **options).step
    frozen = done({"zero": 0}, tune="lora", gpus=8).memory.weights[0, 0]
    copied_s = 4 * frozen / job().cluster.gpu.memory_bandwidth_bytes_per_s
    assert lora.seconds()["dp_comm"] - lora.dp_total_s[0] > 0.9 * copied_s
    orpo, dpo = (done(layout, method=method, **options).step for method in ("orpo", "dpo"))
    more_s = dpo.dp_total_s[0] - orpo.dp_total_s[0]
    assert dpo.seconds()["dp_comm"] - orpo.seconds()["dp_comm"] == pytest.approx(more_s, rel=1e-6)


def test_experts_keep_no_inputs_for_adapters_that_they_do_not_have():
    options = {"model": "mixtral-8x7b", "tune": "lora", "lora_targets": "q,v", "gpus": 8, "framework": "accelerate"}
    kept = [done({}, **options, lora_experts=on).memory.activations[0, 0] for on in (False, True)]
    assert kept[0] == kept[1]


def test_fused_adapters_stay_fused_under_a_compiler():
    spec = job(tune="lora", framework="torchtitan", compile="on")
    spec = replace(spec, runtime=replace(spec.runtime, rule_set="generic"))
    times = {}
    for how in ("plain", "fused"):
        one = replace(spec, runtime=replace(spec.runtime, adapters=how))
        times[how] = evaluate(fixed_layout(one, {}), one).step.seconds()["elementwise"]
    assert times["fused"] < times["plain"]
