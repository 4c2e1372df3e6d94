"""What training loops of their own do beside their framework: prime-rl's trainer and Halo's, by sums by hand."""

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
