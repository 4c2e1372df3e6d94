"""What training loops do beside their framework, by sums by hand: prime-rl's trainer, Halo's, Hugging Face's."""

from dataclasses import replace

import pytest
from jobs import job, layout, seconds

from gpuscale.search.evaluation import memory_of
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.layer import LOSS_BYTES
from gpuscale.steptime.tensor_parallel import stream

HOPPER = {"gpus": 1, "cluster": "dgx-h100-superpod", "gbs": 2, "seq": 16384, "framework": "prime-rl"}
ROWS, VOCABULARY, HIDDEN = 16384, 151_936, 2560


def changed(spec, **runtime):
    return replace(spec, runtime=replace(spec.runtime, **runtime))


def more_seconds(spec, **runtime):
    """What the runtime as it stands adds to the one that is changed, by component."""
    now, then = seconds(spec, recompute="full"), seconds(changed(spec, **runtime), recompute="full")
    return {name: now[name] - then[name] for name in now if abs(now[name] - then[name]) > 1e-9}


def test_a_loop_over_tokens_is_waited_for_by_the_gpu():
    spec = job("qwen3-4b", **HOPPER)
    more = more_seconds(spec, host_token_s=0.0)
    assert more["launch"] == pytest.approx(2 * ROWS * 20e-6, rel=1e-3)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_logits_are_worked_out_again_in_the_backward_pass(tune):
    """A product more, that of the weights' gradient also beside frozen ones, and eager passes over all logits."""
    spec = job("qwen3-4b", **HOPPER, tune=tune)
    gpu = spec.cluster.gpu
    more = more_seconds(spec, logits_again=False)
    products = float(gemm_time_s(gpu, "bf16", ROWS, VOCABULARY, HIDDEN))
    if tune == "lora":
        products += float(gemm_time_s(gpu, "bf16", HIDDEN, VOCABULARY, ROWS, 1, 2.0))
    assert more["gemm"] == pytest.approx(2 * products, rel=0.01)
    passes = sum(LOSS_BYTES["again"]) - sum(LOSS_BYTES["fused"])
    assert more["elementwise"] == pytest.approx(2 * float(stream(spec, ROWS * VOCABULARY * passes, 0)), rel=0.01)


def test_kernels_of_its_own_run_whether_compiled_or_not():
    eager, own = (job("qwen3-4b", **HOPPER | {"framework": name}).runtime for name in ("pytorch", "halo"))
    assert set(eager.unfused) - set(own.unfused) == {"norm", "rotary", "activation"}
    assert "loss" in own.unfused


@pytest.mark.parametrize(("ep", "copied"), [(1, 20.9e9), (2, 20.9e9 - 9.6e9), (8, 1.8e9)])
def test_what_stays_gathered_is_a_copy_of_what_ranks_share(ep, copied):
    """Halo keeps parameters gathered (ZeRO-2) in 16 bits without a master; experts of one rank alone are no copies."""
    options = {"gpus": 8, "gbs": 8, "seq": 4096, "framework": "halo", "grad_dtype": "bf16", "master_dtype": "none"}
    spec = job("gpt-oss-20b", **options, cluster="b300-hgx", moment_dtype="bf16")
    rows = layout(spec, ep=ep, zero=2, recompute="full")
    gathered = float(memory_of(rows, spec).at_peak(0)["gathered_parameters"])
    assert gathered == pytest.approx(2 * copied, rel=0.02)


def trainer(framework="accelerate", **options):
    """LLaMA-7B in full on four A100 of 40 GB, each with four microbatches of two sequences."""
    own = {"gpus": 4, "cluster": "aws-p4d", "gbs": 32, "seq": 2048, "framework": framework, "tune": "full", **options}
    return job("llama-7b", **own)


def held(spec, **values):
    return memory_of(layout(spec, **{"zero": 3, "micro_batch_size": 2, "recompute": "full"} | values), spec).at_peak(0)


def test_gradients_that_were_whole_are_shards_in_the_optimizer_step():
    """Two copies of the second moment beside fp32 shards of parameters, gradients and moments."""
    spec = changed(trainer(), memory=replace(trainer().runtime.memory, foreach_copies=8.0))
    found = held(spec)
    shards = 6.74e9 / 4
    above = found["optimizer_step"] + sum(found[name] for name in ("activations", "logits", "gathered_parameters"))
    whole = found["gradients"]
    assert whole == pytest.approx(2 * 6.74e9, rel=0.01)
    assert above + found["workspace"] + whole == pytest.approx((8 + 1) * 4 * shards, rel=0.02)


@pytest.mark.parametrize(("zero", "copies"), [(3, 0), (2, 0), (0, 2)])
def test_flat_parameters_take_no_foreach_kernels(zero, copies):
    """FSDP1 of 2023 flattened what it sharded; what is not sharded had two copies of the second moment."""
    spec = trainer("accelerate@2023-06", gbs=8, cluster="b200-hgx")
    found = held(spec, zero=zero)
    assert (found["optimizer_step"] > 0) == bool(copies)


def test_paged_states_leave_a_full_gpu_and_no_other():
    """QLoRA of 33B with adapters of rank 64: 3.6 GiB of moments, which do not all fit beside the rest in 24 GiB."""
    options = {"gpus": 1, "gbs": 1, "seq": 512, "tune": "qlora", "lora_rank": 64, "framework": "accelerate@2023-06"}
    small, large, stays = (
        job("llama-33b", **options, cluster=card, optimizer=name)
        for card, name in (("rtx-4090", "paged-adamw"), ("rtx-a6000", "paged-adamw"), ("rtx-4090", "adamw-8bit"))
    )
    moments = 8 * 488e6
    found = [held(spec, zero=0, micro_batch_size=1)["optimizer_state"] for spec in (small, large)]
    assert found[1] == pytest.approx(moments, rel=0.01)
    assert found[0] < 0.95 * moments
    assert memory_of(layout(small, zero=0, recompute="full"), small).peak_bytes[0] <= small.memory_limit_bytes
    assert held(stays, zero=0, micro_batch_size=1)["optimizer_state"] == pytest.approx(2.03 * 488e6, rel=0.01)


def test_the_softmax_of_unfused_attention_is_saved_in_fp32_too():
    """As transformers write it: 2 bytes per score that the product reads and 4 of the softmax itself."""
    wide = trainer(attention="eager", gbs=8)
    narrow = changed(wide, memory=replace(wide.runtime.memory, wide_chains=False))
    norms = {"recompute": "none", "micro_batch_size": 1}
    more = held(wide, **norms)["activations"] - held(narrow, **norms)["activations"]
    fused = trainer(gbs=8)
    plain = changed(fused, memory=replace(fused.runtime.memory, wide_chains=False))
    of_norms = held(fused, **norms)["activations"] - held(plain, **norms)["activations"]
    assert more - of_norms == pytest.approx(4 * 32 * 32 * 2048**2, rel=1e-3)
