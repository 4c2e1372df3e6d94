"""Memory of fine-tuning by sums by hand: what frameworks do on one GPU, GPTQ by operations of PyTorch, Qwen's loop."""

from dataclasses import replace

import pytest
from jobs import job, layout

import gpuscale
from gpuscale.search.evaluation import memory_of

ALONE = {"gpus": 1, "gbs": 2, "seq": 4096, "cluster": "dgx-h100-superpod", "tune": "lora"}
LAYER = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336  # matrices of a layer of Llama-3-8B


def held(spec, **values):
    return memory_of(layout(spec, **{"micro_batch_size": 1, "recompute": "full"} | values), spec)


def test_fsdp2_gathers_on_one_gpu_where_the_trainer_always_wraps():
    """prime-rl: two fp32 layers and both ends in 16 bits; a loop without fully_shard has none of it."""
    spec = job("llama3-8b", **ALONE, framework="prime-rl")
    plan = gpuscale.plan("llama3-8b", **ALONE, framework="prime-rl").plans[0]
    assert plan.zero == 3
    ends = 2 * 2 * 128_256 * 4096
    gathered = float(held(spec, zero=3).gathered_parameters[0])
    assert gathered == pytest.approx(2 * 4 * LAYER + ends, rel=0.01)
    assert float(held(job("llama3-8b", **ALONE, framework="pytorch")).gathered_parameters[0, 0]) < 1e8


def test_a_loss_that_makes_logits_again_makes_gradients_of_frozen_heads():
    spec = job("llama3-8b", **ALONE | {"seq": 128}, framework="prime-rl")
    other = replace(spec, runtime=replace(spec.runtime, logits_again=False))
    more = [float(held(one, zero=3).logits[0, 0]) for one in (spec, other)]
    assert more[0] - more[1] == 2 * 128_256 * 4096


def test_weights_that_operations_of_pytorch_unpack_wait_for_the_backward_pass():
    """AutoGPTQ before its kernels: x @ (scales * (q - zeros)) keeps its second factor, a layer's if recomputed."""
    options = {**ALONE, "tune": "qlora", "base_dtype": "int4", "seq": 128, "loss": "linear"}
    then, now = (job("llama3-8b", **options, framework=f"accelerate@{month}") for month in ("2024-02", "2024-03"))
    layers = [float((held(one).workspace + held(one).logits)[0, 0]) for one in (then, now)]
    assert layers[0] - layers[1] == 2 * LAYER
    every = [float(held(one, recompute="none").activations[0, 0]) for one in (then, now)]
    assert every[0] - every[1] == 32 * 2 * LAYER


def test_what_the_optimizer_step_leaves_of_adapters_is_of_no_use_to_passes():
    """foreach kernels of adapters: two fp32 copies of the second moment stay reserved beside the loss."""
    spec = job("llama3-8b", **ALONE, framework="accelerate@2023-12")
    none = replace(spec, runtime=replace(spec.runtime, memory=replace(spec.runtime.memory, foreach_copies=0.0)))
    both, without = (held(one) for one in (spec, none))
    adapters = float(both.optimizer_state[0, 0]) / 8
    assert float(both.fragmentation[0, 0] - without.fragmentation[0, 0]) == pytest.approx(2 * 4 * adapters)
    assert both.logged("allocated", spec) == without.logged("allocated", none)


def test_what_the_optimizer_step_leaves_of_a_trained_head_is_of_use_to_passes():
    """Its tensor is large, and has a segment of its own."""
    options = {**ALONE, "seq": 16384, "framework": "accelerate@2023-12"}
    alone = float(held(job("llama3-8b", **options)).optimizer_state[0, 0]) / 8
    spec = job("llama3-8b", **options, train="head")
    none = replace(spec, runtime=replace(spec.runtime, memory=replace(spec.runtime.memory, foreach_copies=0.0)))
    left = [float(held(one).fragmentation[0, 0]) for one in (spec, none)]
    assert left[0] - left[1] == pytest.approx(2 * 4 * alone, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "train", "matrices"),
    [("accelerate", "head", 1), ("accelerate", "embeddings", 1), ("accelerate", "embeddings,head", 2),
     ("pytorch", "head", 1), ("pytorch", "embeddings,head", 1)],
)  # fmt: skip
def test_a_tied_matrix_is_trained_once_but_by_peft_as_a_copy_of_each_module(framework, train, matrices):
    """128,256 x 2,048 weights; PEFT's copies have the 16 bits of the model, and so have Adam's two moments."""
    options = {**ALONE, "framework": framework}
    some, none = (
        held(job("llama3.2-1b", **options, train=one), zero=0).optimizer_state[0, 0] for one in (train, "none")
    )
    assert float(some - none) == (4 if framework == "accelerate" else 8) * matrices * 128_256 * 2048


def test_unpacked_weights_of_experts_wait_too_but_for_their_router():
    options = {**ALONE, "tune": "qlora", "base_dtype": "int4", "seq": 128, "loss": "linear"}
    kept = []
    for month in ("2024-02", "2024-03"):
        spec = job("mixtral-8x7b", **options, framework=f"accelerate@{month}")
        kept.append(float(held(spec, recompute="none").activations[0, 0]))
    attention, expert = 2 * 4096 * 4096 + 2 * 4096 * 1024, 3 * 4096 * 14336
    assert kept[0] - kept[1] == 32 * 2 * (attention + 8 * expert)


def test_bitsandbytes_kept_inputs_of_frozen_products_until_july_2024():
    """Of the MLP behind adapters of queries and values alone: what its first two products read, and its last."""
    options = {**ALONE, "lora_targets": "q,v", "framework": "pytorch"}
    none = {"recompute": "none"}
    saved = {
        (tune, month): float(
            held(job("llama3-8b", **options | {"tune": tune, "framework": f"pytorch@{month}"}), **none).activations[
                0, 0
            ]
        )
        for tune in ("lora", "qlora")
        for month in ("2024-07", "2024-08")
    }
    assert saved["qlora", "2024-07"] - saved["qlora", "2024-08"] == 32 * 4096 * 2 * (4096 + 14336)
    assert saved["lora", "2024-07"] == saved["lora", "2024-08"]


def test_adapters_scale_their_gradient_at_the_widest_point():
    """A gradient of the gate's width and one of the hidden state more, unless kernels do it beside the products."""
    options = {**ALONE, "framework": "pytorch", "loss": "linear", "seq": 65536}
    wide, narrow = (
        held(job("llama3-8b", **options, lora_targets=names)).workspace[0, 0] for names in ("gate,down", "q,down")
    )
    assert float(wide - narrow) == pytest.approx(2 * 65536 * (14336 + 4096), rel=0.03)


def test_litgpt_loads_all_on_each_gpu_and_has_gradients_of_frozen_weights():
    options = {**ALONE, "gpus": 4, "gbs": 4, "lora_rank": 8, "lora_targets": "q,v", "framework": "litgpt"}
    spec, added = job("llama3-8b", **options), job("llama3-8b", **options | {"gbs": 16})
    assert spec.tuning.dropout
    weights = 2 * 8.03e9
    found, more = held(spec, zero=3), held(added, zero=3)
    assert float(found.gradients[0, 0]) == pytest.approx(weights / 4, rel=0.01)
    assert float(more.gradients[0, 0]) == pytest.approx(weights, rel=0.01)  # until the last microbatch
    tiny = held(job("llama3-8b", **options | {"seq": 64}), zero=3)
    assert float(tiny.allocated_by_stage[0, 0]) == pytest.approx(weights * 5 / 4, rel=0.02)  # a copy beside shards
    wide, narrow = (replace(spec.runtime.memory, expands_kv=value) for value in (True, False))
    kept = [
        float(
            held(replace(spec, runtime=replace(spec.runtime, memory=one)), zero=3, recompute="none").activations[0, 0]
        )
        for one in (wide, narrow)
    ]
    assert kept[0] - kept[1] == 32 * 4096 * 2 * 2 * (32 - 8) * 128


def test_litgpt_loads_weights_in_the_precision_that_it_keeps_them_in():
    """All of the fp32 weights beside a GPU's shards of them where training is in mixed precision; else 16 bits."""
    options = {"gpus": 16, "gbs": 16, "seq": 64, "cluster": "dgx-h100-superpod", "framework": "litgpt"}
    for more, size in (({}, 4), ({"master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}, 2)):
        found = held(job("llama3-8b", **options, **more), zero=3)
        shard = float(found.weights[0, 0])
        assert float(found.allocated_by_stage[0, 0]) - shard == pytest.approx(size * 8.03e9, rel=0.02)


def test_q_lora_of_qwen_runs_under_deepspeed_on_one_gpu():
    """Two buckets of 2e8 fp16 gradients, logits three times in 16 bits, 4 + 4 + 8 bytes beside each fp16 adapter."""
    options = ALONE | {"tune": "qlora", "base_dtype": "int4", "precision": "fp16", "framework": "qwen"}
    spec = job("llama3-8b", **options)
    found = held(spec, zero=2)
    adapters = float(found.optimizer_state[0, 0]) / 8
    assert found.communication_buffers[0, 0] == 2 * 2e8 * 2
    assert found.logits[0, 0] == 6 * 4096 * 128_256
    assert [float(part[0, 0]) / adapters for part in (found.gradients, found.master_weights)] == [4, 4]
    assert gpuscale.plan("llama3-8b", **options).plans[0].zero == 2


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("litgpt", {}), ("accelerate@2023-12", {"train": "embeddings,head"}), ("accelerate", {"train": "head"}),
        ("accelerate@2024-02", {"tune": "qlora", "base_dtype": "int4"}), ("prime-rl", {}), ("qwen", {"tune": "qlora"}),
    ],
)  # fmt: skip
def test_plans_search_what_an_estimate_says(framework, more):
    """Choices of ZeRO, microbatch and recomputation are axes of one array in the search, and one row here."""
    options = {"model": "llama3-8b", "tune": "lora", "seq": 1024, "gbs": 16, "gpus": 2, "framework": framework, **more}
    found = gpuscale.plan(**options, top=4, tp=1, pp=1)
    for one in found.plans:
        names = ("tp", "pp", "cp", "zero", "micro_batch_size", "recompute")
        alone = gpuscale.estimate(**options, **{name: getattr(one, name) for name in names}).plan
        assert (alone.step_time_s, alone.memory_gib) == (one.step_time_s, one.memory_gib)


def test_torchtune_shards_on_more_than_one_gpu_alone():
    """lora_finetune_distributed.py calls shard_model; lora_finetune_single_device.py has nothing to shard."""
    options = {"model": "llama3-8b", "tune": "lora", "framework": "torchtune", "gbs": 16, "seq": 2048}
    assert {one.zero for one in gpuscale.plan(**options, gpus=8, top=5).plans} <= {2, 3}
    assert gpuscale.estimate(**options, gpus=8, micro_batch_size=1).plan.zero == 3
    assert gpuscale.estimate(**options, gpus=1, micro_batch_size=1).plan.zero == 0
    with pytest.raises(gpuscale.InputError, match="no such ZeRO stage"):
        gpuscale.estimate(**options, gpus=8, micro_batch_size=1, zero=0)
