"""Every worked threshold of the scaling book's GPU chapter, with its errata; tolerance 0.2 %."""

import pytest
from clusters import superpod_2to1

from gpuscale import rooflines as r
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model

H100, B200 = 989e12, 2250e12
BOOK = superpod_2to1()


def near(value):
    return pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize(
    ("computed", "printed"),
    [
        (r.dp_tokens_per_gpu(H100, r.allreduce_bytes_per_s(BOOK, 0)), 1098),
        (r.dp_tokens_per_gpu(H100, r.allreduce_bytes_per_s(BOOK, 1)), 1236),
        (r.dp_tokens_per_gpu(H100, r.allreduce_bytes_per_s(BOOK, 2)), 1236),
        (r.fsdp_tokens_per_gpu(H100, r.allreduce_bytes_per_s(BOOK, 2)), 2472),
        (r.dp_tokens_per_gpu(B200, 900e9), 1250),
        (r.dp_tokens_per_gpu(H100, 900e9), 549),  # the book's "B200" keeps H100 FLOP/s
        (r.tp_divisor(H100, 450e9, 8), 1923),
        (r.tp_divisor(B200, 900e9, 8), 2188),
        (r.tp_divisor(898e12, 450e9, 8), 1746),  # the book's misprinted peak
        (16384 / r.tp_divisor(B200, 900e9, 8), 7.49),
        (r.moe_dp_tokens_per_gpu(H100, 400e9, experts=256, top_k=8, ep_units=8), 4944),
        (r.dp_tokens_per_gpu(H100, r.allreduce_bytes_per_s(BOOK, 2, model_parallel=256)), 77.27),
    ],
)
def test_worked_thresholds(computed, printed):
    assert computed == near(printed)


def test_worked_numbers_that_the_book_rounds():
    assert round(16384 / r.tp_divisor(H100, 450e9, 8), 1) == 8.5
    assert int(16000 / r.tp_divisor(898e12, 900e9, 8)) == 18  # the book's "18 (B200)" keeps H100 FLOP/s
    assert int(r.dp_tokens_per_gpu(H100, 6.4e12)) * 256 == 19_712
    assert r.fsdp_tokens_per_gpu(H100, 400e9) * 2048 == pytest.approx(5e6, rel=0.02)
    batch = r.moe_dp_tokens_per_gpu(H100, 400e9, 256, 8, 8) * 2048
    assert batch == pytest.approx(10e6, rel=0.02)
    assert 2 * batch == pytest.approx(20e6, rel=0.02)


def test_tokens_of_a_step_are_the_whole_tokens_per_gpu_times_the_gpus():
    dense = r.roofline("llama3-70b", ["dgx-h100-superpod-2to1"], gpus=2048)
    *_, leaf, spine = dense.clusters[0].levels
    assert (spine.gpus, spine.outer_unit_tokens) == (2048, 19_712)  # 77 x 256 of one SU
    assert spine.fsdp_batch_tokens == 2 * spine.dp_batch_tokens == round(spine.fsdp_tokens) * 2048 == near(5.067e6)
    assert (leaf.gpus, leaf.outer_unit_tokens, leaf.moe_dp_batch_tokens) == (256, 1237 * 8, None)
    assert "widened to 2,048" in dense.notes[0]
    moe = r.roofline("deepseek-v3", ["dgx-h100-superpod-2to1"], gpus=2048).clusters[0].levels[-1]
    assert (moe.moe_dp_batch_tokens, moe.moe_fsdp_batch_tokens) == (near(10.13e6), near(20.26e6))


def test_fewer_gpus_use_the_levels_that_they_need():
    (found,) = r.roofline("llama3-70b", ["dgx-h100-superpod"], gpus=12).clusters
    assert [(one.level, one.gpus) for one in found.levels] == [("node", 8), ("leaf", 12)]
    whole = r.roofline("llama3-70b", ["dgx-h100-superpod"]).clusters[0].levels[1]
    assert found.levels[1].fsdp_tokens == whole.fsdp_tokens


def test_allreduce_column_of_the_reference_table():
    assert [r.allreduce_bytes_per_s(BOOK, level) for level in range(3)] == [450e9, 400e9, 400e9]
    for name in ("dgx-h100-superpod", "dgx-h100-superpod-2to1"):
        cluster = load_cluster(name)
        assert [r.allreduce_bytes_per_s(cluster, level) for level in range(3)] == [450e9, 400e9, 400e9]


def test_model_parallelism_relieves_only_the_levels_it_fills():
    assert r.allreduce_bytes_per_s(BOOK, 2, 8) == 400e9
    assert r.allreduce_bytes_per_s(BOOK, 2, 64) == 3.2e12
    assert r.allreduce_bytes_per_s(BOOK, 2, 256) == 6.4e12
    assert r.allreduce_bytes_per_s(BOOK, 2, 1024) == float("inf")


def test_without_sharp_data_parallelism_costs_as_much_as_fsdp():
    plain = r.dp_tokens_per_gpu(H100, 400e9, in_network_reduction=False)
    assert plain == 2 * r.dp_tokens_per_gpu(H100, 400e9) == r.fsdp_tokens_per_gpu(H100, 400e9)


def test_expert_parallelism_inside_a_node_brings_no_relief():
    assert r.moe_dp_tokens_per_gpu(H100, 400e9, 256, 8) == near(256 / 8 * 1236)


def test_roofline_of_presets_side_by_side():
    result = r.roofline(load_model("llama3-70b"), tuple(load_cluster(name) for name in r.DEFAULT_CLUSTERS))
    h100, b200, nvl72 = result.clusters
    assert result.ffn == 28672
    assert result.experts is None
    assert [level.dp_tokens for level in h100.levels] == [near(1098.9), near(1236), near(1236)]
    assert (h100.tp_divisor, b200.tp_divisor) == (near(1923), near(2188))
    assert b200.levels[0].dp_tokens == near(1250)
    assert nvl72.node_gpus == 72
    assert nvl72.levels[1].dp_tokens < b200.levels[1].dp_tokens
    assert h100.levels[0].moe_dp_tokens is None


def test_roofline_of_a_mixture_of_experts():
    result = r.roofline(
        load_model("deepseek-v3"), (load_cluster("dgx-h100-superpod-2to1"), load_cluster("gb200-nvl72"))
    )
    h100, nvl72 = result.clusters
    assert (result.experts, result.top_k, h100.ep, h100.ep_units, nvl72.ep_units) == (256, 8, 64, 8, 1)
    assert h100.levels[0].moe_dp_tokens is None  # the expert-parallel group fills the node
    assert h100.levels[1].moe_dp_tokens == near(4944)
    assert h100.levels[2].moe_fsdp_tokens == near(2 * 4944)
    assert h100.levels[2].outer_dp_tokens == near(77.27)


def test_bad_precision_is_refused():
    model = load_model("llama3-8b")
    with pytest.raises(InputError, match="unknown precision"):
        r.roofline(model, (BOOK,), "int7")
    with pytest.raises(InputError, match="no fp4"):
        r.roofline(model, (BOOK,), "fp4")
