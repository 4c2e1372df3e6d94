"""Buffers of HybridEP: the arithmetic of its source by hand, how they grow, and that plans count them."""

import numpy as np
import pytest
from jobs import job, layout

from gpuscale.memory.model import exchange_buffer_bytes
from gpuscale.search.evaluation import memory_of


def buffers(model, gpus, cluster, **degrees):
    spec = job(model, gpus, cluster=cluster, framework="megatron-bridge-perf", dispatcher="hybridep", gbs=1024)
    return float(np.max(exchange_buffer_bytes(layout(spec, **degrees), spec)))


def test_inside_one_domain_dispatch_and_combination_share_them():
    """DeepSeek-V3, EP 64 in a rack of 72: 64 x 4,096 tokens of 7,168 elements in 16 bits, 256 probabilities of 4 bytes,
    56 scales of 4."""
    found = buffers("deepseek-v3", 256, "gb200-nvl72", pp=4, ep=64)
    assert found == 64 * 4096 * (2 * 7168 + 4 * 256 + 4 * 56)


def test_across_domains_each_has_its_own_and_the_network_three_more():
    """The same, EP 32 over four boxes of 8 GPUs, each with 64 of the experts."""
    row, scales = 2 * 7168 + 4 * 64, 4 * 56
    found = buffers("deepseek-v3", 256, "b200-hgx", pp=8, ep=32)
    assert found == 32 * 4096 * (2 * row + scales) + 3 * 4096 * (3 * row + scales)


def test_experts_of_a_latent_width_take_narrower_rows():
    spec = job("nemotron-3-super", 64, cluster="gb200-nvl72", framework="megatron-bridge-perf", dispatcher="hybridep")
    latent = max(kind.moe.latent for kind in spec.model.kinds if kind.moe is not None)
    assert 0 < latent < spec.model.hidden
    found = float(np.max(exchange_buffer_bytes(layout(spec, ep=64), spec)))
    assert found == 64 * spec.sequence * (2 * latent + 4 * 512 + 4 * (latent // 128))


@pytest.mark.parametrize(("one", "other"), [({"micro_batch_size": 1}, {"micro_batch_size": 4}), ({"tp": 4}, {"tp": 1})])
def test_they_grow_with_the_tokens_of_a_rank(one, other):
    sizes = [buffers("deepseek-v3", 256, "gb200-nvl72", pp=4, ep=16, **degrees) for degrees in (one, other)]
    assert sizes[1] == 4 * sizes[0]


@pytest.mark.parametrize(("dispatcher", "ep"), [("alltoall", 8), ("deepep", 8), ("hybridep", 1)])
def test_none_by_another_dispatcher_or_without_an_exchange(dispatcher, ep):
    spec = job("mixtral-8x7b", 64, framework="megatron-lm", dispatcher=dispatcher)
    assert not np.any(exchange_buffer_bytes(layout(spec, ep=ep), spec))


def test_they_lie_outside_the_allocator():
    specs = [
        job("mixtral-8x7b", 64, framework="megatron-lm", dispatcher=dispatcher) for dispatcher in ("deepep", "hybridep")
    ]
    without, found = (memory_of(layout(spec, ep=8), spec) for spec in specs)
    more = float(np.max(exchange_buffer_bytes(layout(specs[1], ep=8), specs[1])))
    assert float((found.nccl_buffers - without.nccl_buffers).max()) == pytest.approx(more)
    assert found.reserved_by_stage.max() == pytest.approx(without.reserved_by_stage.max())
    assert found.peak_bytes[0] - without.peak_bytes[0] == pytest.approx(more)
