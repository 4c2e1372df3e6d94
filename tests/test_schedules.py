"""Pipeline schedules: idle time and memory by the papers' formulas, and a published comparison."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job, layout

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import DUALPIPE, GPIPE, ONE_F_ONE_B, SCHEDULES, ZB_2P, ZB_H1, ZB_V, schedule_name
from gpuscale.layouts.stages import chunk_counts
from gpuscale.memory.activations import microbatches_in_flight
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.model import AttentionSpec, LayerSpec, MlpSpec
from gpuscale.steptime.components import INDEX
from gpuscale.steptime.step import idle_s, weight_gradients_s
from gpuscale.validation.measurements import Row
from gpuscale.validation.runs import read_run

P = 8


def spec(**options):
    return job("llama3-8b", P, gbs=64, **options)


def rows(name, **values):
    return fixed_layout(spec(), {"pp": P, "schedule": name, **values})


def weights(c, job_spec=None):
    """Weight gradients of one microbatch of the whole model."""
    job_spec = job_spec or spec()
    return weight_gradients_s(c, job_spec, evaluate(c, job_spec).step.passes)


def idle(name, others_s, backward_share=2 / 3, **values):
    c = rows(name, **values)
    return idle_s(c, np.array([others_s]), np.array([backward_share * others_s]), weights(c))[0]


def test_formulas_of_the_papers():
    """With F, B, W of one of 8 equal stages: 7 (F + B + W) = others, 7 W from the model's own weight gradients."""
    weights_s = weights(rows("zb-h1"))[0] * (P - 1) / P
    others_s = 4 * weights_s  # F + B + W = 4 W, say F = 2 W, B = W
    one_stage = others_s / (P - 1)
    w = weights_s / (P - 1)
    assert idle("1f1b", others_s) == pytest.approx(7 * one_stage)
    assert idle("gpipe", others_s) == pytest.approx(7 * one_stage)
    assert idle("interleaved", others_s, vpp=2) == pytest.approx(7 * one_stage / 2)
    assert idle("zb-h1", others_s) == pytest.approx(7 * (2 * w + w - w))  # F + B - W
    assert idle("zb-2p", others_s) == pytest.approx(7 * (2 * w + w - 2 * w))  # F + B - 2W
    assert idle("zb-v", others_s, 0.75) == pytest.approx(7 * (2 * w - w))  # B - W where F = W, B = 2W
    backward = 2 * w  # B + W
    assert idle("dualpipe", others_s, 0.5) == pytest.approx((P / 2 - 1) * (4 * w + backward - 3 * w))


def test_with_equal_passes_zero_bubble_has_none():
    """F = B = W: ZB-H1 a third of 1F1B, ZB-H2 and ZB-V nothing (Qi et al. 2024, section 2)."""
    weights_s = weights(rows("zb-h1"))[0] * (P - 1) / P
    others_s = 3 * weights_s
    assert idle("zb-h1", others_s) == pytest.approx(idle("1f1b", others_s) / 3)
    assert idle("zb-2p", others_s) == pytest.approx(0, abs=1e-12)
    assert idle("zb-v", 2.9 * weights_s) == 0


def test_weight_gradients_are_about_a_third_of_the_matrix_products():
    evaluation = evaluate(rows("1f1b"), spec())
    layers = replace(spec(), model=replace(spec().model, vocab=8))  # a negligible head
    step = evaluate(rows("1f1b"), layers).step
    gemm_s = step.components[INDEX["gemm"], 0] / rows("1f1b").num_microbatches[0]  # of one stage
    assert weights(rows("zb-h1"), layers)[0] / P == pytest.approx(gemm_s / 3, rel=0.1)
    assert evaluation.step.beside["bubble"][0] > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1f1b", [8, 5, 1]),
        ("gpipe", [64, 64, 64]),
        ("zb-h1", [8, 8, 8]),
        ("zb-2p", [15, 15, 15]),
        ("zb-v", [8, 8, 8]),
        ("dualpipe", [9, 9, 9]),
    ],
)
def test_microbatches_in_flight(name, expected):
    assert microbatches_in_flight(rows(name), np.array([[0.0], [3.0], [7.0]]))[:, 0].tolist() == expected


def test_few_microbatches_are_all_in_flight():
    short = job("llama3-8b", P, gbs=4)
    c = fixed_layout(short, {"pp": P, "schedule": "zb-2p"})
    assert microbatches_in_flight(c, np.array([[0.0], [3.0], [7.0]]))[:, 0].tolist() == [4, 4, 4]


def test_a_layout_without_a_schedule_is_1f1b():
    plain, named = layout(spec(), pp=P), rows("1f1b")
    assert plain.schedule.tolist() == [ONE_F_ONE_B]
    assert evaluate(plain, spec()).step.step_time_s == evaluate(named, spec()).step.step_time_s


def test_names():
    codes = (ONE_F_ONE_B, GPIPE, ZB_H1, ZB_2P, ZB_V, DUALPIPE)
    assert sorted(set(SCHEDULES.values())) == sorted(codes)
    shown = [schedule_name({"pp": 8, "vpp": 1, "schedule": code}) for code in codes]
    assert shown == ["1f1b", "gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe"]
    assert schedule_name({"pp": 8, "vpp": 2, "schedule": 0}) == "interleaved"
    assert schedule_name({"pp": 1, "vpp": 1, "schedule": 0}) == "none"


def test_unknown_schedules_are_refused():
    with pytest.raises(InputError, match="unknown value 'zb-h3'") as caught:
        rows("zb-h3")
    assert "zb-h1" in (caught.value.hint or "")
    with pytest.raises(InputError, match="even number of stages"):
        fixed_layout(job("llama3-8b", 6, gbs=60), {"pp": 3, "schedule": "dualpipe"})


# -- stages --


def test_zb_v_folds_the_chunks_so_that_the_first_rank_has_both_ends():
    pattern = tuple([0] * 2 + [1] * 6)  # two chunks of one layer on each of 4 ranks
    assert chunk_counts(pattern, 2, 4, 2).sum(axis=0).tolist() == [[1, 1], [1, 1], [0, 2], [0, 2]]
    assert chunk_counts(pattern, 2, 4, 2, folded=True).sum(axis=0).tolist() == [[1, 1], [1, 1], [0, 2], [0, 2]]
    ends = (1, *[0] * 6, 1)
    assert chunk_counts(ends, 2, 4, 2, folded=True).sum(axis=0)[0].tolist() == [0, 2]
    step, memory = (getattr(evaluate(rows("zb-v"), spec()), name) for name in ("step", "memory"))
    plain = evaluate(rows("interleaved", vpp=2), spec())
    assert step.bottleneck[0] == 0  # embedding, LM head and as many layers as the others
    assert memory.weights[0, 0] > plain.memory.weights[0, 0]
    assert memory.weights[1, 0] < plain.memory.weights[1, 0]


def test_dualpipe_holds_the_stage_of_the_other_end_too():
    twice, once = (evaluate(rows(name), spec()).memory.weights[:, 0] for name in ("dualpipe", "1f1b"))
    layers = 32 // P * 2 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336 + 2 * 4096)
    assert (twice - once)[2] == pytest.approx(layers)


def test_dualpipe_hides_the_exchange_of_experts():
    options = {"gbs": 256, "cluster": "h200-hgx"}
    moe = job("deepseek-v2-lite", 64, **options)
    shown, hidden = (
        evaluate(fixed_layout(moe, {"pp": 4, "ep": 16, "schedule": name}), moe).step.components[INDEX["ep_comm"], 0]
        for name in ("1f1b", "dualpipe")
    )
    assert 0 < hidden < 0.6 * shown


def test_schedules_differ_in_idle_time_only():
    busy = {}
    for name in ("1f1b", "gpipe", "zb-h1", "zb-2p"):
        step = evaluate(rows(name), spec()).step
        busy[name] = step.step_time_s[0] - step.beside["bubble"][0]
    assert len(set(np.round(list(busy.values()), 12))) == 1


def test_rows_say_their_schedule():
    cells = {
        "framework": "megatron-lm", "source_date": "2023-11", "gpu": "a100-sxm-80gb", "gpus": "8", "model": "gpt-1.5b",
        "layers": "22", "hidden": "2304", "heads": "24", "tp": "1", "pp": "8", "mbs": "6", "gbs": "144", "seq": "1024",
    }  # fmt: skip
    for text, code in {"zb-1p": ZB_H1, "zb-2p": ZB_2P, "1f1b": ONE_F_ONE_B, "zb (zbv)": ZB_V, "": ONE_F_ONE_B}.items():
        run = read_run(Row({**cells, "schedule": text}, "a test"))
        assert run.layout.schedule.tolist() == [code]
    unknown = read_run(Row({**cells, "schedule": "chimera"}, "a test"))
    assert any("1F1B in place of schedule chimera" in text for text in unknown.assumed)


# -- published --

PUBLISHED = {"1f1b": (3.50, 3.70, 4.03), "zb-1p": (3.88, 4.00, 4.20), "zb-2p": (4.32, 4.35, 4.39)}
"""Samples/s per GPU of a 6.2B GPT on 8 A100, 24, 32, 64 microbatches of 3 x 1024 tokens (Qi et al. 2024, table 4)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_throughput_of_zero_bubble_schedules(name):
    """30 layers, 8 stages (the first and the last one layer short); the relative gain is closer than the level."""
    attention = AttentionSpec(32, 32, 128, 128, qkv_bias=True, output_bias=True)
    kind = LayerSpec(attention, MlpSpec(16384, gated=False, bias=True), None, norm_bias=True)
    model = replace(load_model("gpt3-6.7b"), hidden=4096, kinds=(kind,), pattern=(0,) * 30)
    runtime = load_framework("megatron-lm@2023-12").runtime
    for count, samples in zip((24, 32, 64), PUBLISHED[name], strict=True):
        base = job("gpt3-6.7b", 8, gbs=3 * count, seq=1024, cluster="dgx-a100-superpod")
        one = replace(base, model=model, runtime=runtime)
        c = fixed_layout(one, {"pp": 8, "micro_batch_size": 3, "schedule": name})
        predicted = 3 * count / 8 / evaluate(c, one).step.step_time_s[0]
        assert predicted == pytest.approx(samples, rel=0.08)
        plain = fixed_layout(one, {"pp": 8, "micro_batch_size": 3})
        gain = evaluate(plain, one).step.step_time_s[0] / evaluate(c, one).step.step_time_s[0]
        assert gain == pytest.approx(samples / PUBLISHED["1f1b"][(24, 32, 64).index(count)], rel=0.04)
