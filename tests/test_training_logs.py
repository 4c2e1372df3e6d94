"""Logs of training runs in the manner of each framework, written here; and the real ones, where they are."""

import json
import time
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

from gpuscale.calibration import training_logs
from gpuscale.calibration.training_logs import FORMATS, read_training_log
from gpuscale.errors import InputError

REAL = Path(__file__).parents[2] / "shared" / "formats" / "training_logs"
TIMES_S = (9.0, 2.15, 2.0, 2.1, 1.9, 2.0)
"""Seconds of six iterations: the first is warm-up, the median of the others 2.0."""


def stamp(seconds):
    return f"2026-03-02 10:{int(seconds) // 60:02d}:{seconds % 60:06.3f}".replace(".", ",")


def megatron(step, time_s, at_s):
    return [
        f"3:  iteration {step:8d}/    1000 | consumed samples: {64 * step:12d} | elapsed time per iteration (ms): "
        f"{1e3 * time_s:.1f} | learning rate: 3.0E-05 | global batch size:    64 | lm loss: 1.08E+01 | loss scale: 1.0 "
        "| grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 40960.0 | reserved: 2.0 "
        "| max reserved: 51200.0",
        "time (ms) | forward-compute: 612.50 | backward-compute: 1220.00 | optimizer: 88.00 | batch-generator: 2.75",
    ]


def deepspeed_megatron(step, time_s, at_s):
    return [
        f"node-07:  iteration {step}/ 1000 | consumed samples: {64 * step} | consumed tokens: {64 * 2048 * step} | "
        f"elapsed time per iteration (ms): {1e3 * time_s:.1f} | global batch size:    64 | lm loss: 9 | "
        f"actual seqlen:  2048 | samples per second: {64 / time_s:.3f} | "
        f"tokens per gpu per second (tgs): {64 * 2048 / time_s / 8:.3f} |"
    ]


def primus(step, time_s, at_s):
    return [
        f"[2026][rank-7/8][INFO ] : iteration {step}/ 50 | consumed samples: 9 | hip mem usage/free/total/usage_ratio: "
        f"50.00GB/141.98GB/191.98GB/26.04% | elapsed time per iteration (ms): {1e3 * time_s:.1f}/2345.6 | throughput "
        f"per GPU (TFLOP/s/GPU): 500.0/480.0 | tokens per GPU (tokens/s/GPU): {64 * 2048 / time_s / 8:.1f}/9999.9 | "
        "global batch size: 64 |"
    ]


def bridge(step, time_s, at_s):
    return [f"Step Time : {time_s:.2f}s GPU utilization: 512.1TFLOP/s/GPU"]


def nemo(step, time_s, at_s):
    return [
        f"[default0]:Training epoch 0, iteration {step}/99 | lr: 2e-06 | global_batch_size: 64 | global_step: {step} "
        f"| reduced_train_loss: 11.03 | train_step_timing in s: {time_s} | consumed_samples: {64 * step}"
    ]


def nemo_bar(step, time_s, at_s):
    bar = f"Epoch 0: :  1%|1 | {step}/603000 [00:17<17:00:58, v_num=, reduced_train_loss=2.6, global_step={step}.000, "
    return [f"{bar}consumed_samples=9e+3, train_step_timing in s={time_s}]"]


def dllogger(step, time_s, at_s):
    data = {"global_step": float(step), "train_step_timing in s": time_s}
    return ["DLLL " + json.dumps({"type": "LOG", "step": step, "data": data})]


def torchtitan(step, time_s, at_s):
    return [
        f"[rank0]:[titan] {stamp(at_s)} - root - INFO - \x1b[31mstep: {step:2d}  \x1b[32mloss:  8.01  \x1b[38;5;208m"
        f"grad_norm: 1.2  \x1b[38;2;54;234;195mmemory: 50.00GiB(62.50%)  \x1b[34mtps: {64 * 2048 / time_s / 8:,.0f}  "
        "\x1b[36mtflops: 400.1  \x1b[35mmfu: 41.10%\x1b[39m"
    ]


def nanotron(step, time_s, at_s):
    return [
        f"03/02/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {step} / 15 | consumed_tokens: 4.2M | "
        f"time_per_iteration_ms: {time_s:.3g}K | tokens_per_sec: {64 * 2048 / time_s / 1e3:.3g}K | "
        f"tokens_per_sec_per_gpu: {64 * 2048 / time_s / 8e3:.3g}K | global_batch_size: 64 | lm_loss: 5.3 | "
        "cuda_memory_allocated: 9.1G | cuda_max_memory_reserved: 53.7G | hd_total_memory_tb: 2.13T"
    ]


def deepspeed(step, time_s, at_s):
    return [
        f"[{stamp(at_s)}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-05]",
        f"[{stamp(at_s)}] [INFO] [timer.py:199:stop] epoch=0/micro_step={4 * step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=30.1, CurrSamplesPerSec={64 / time_s}, MemAllocated=4.3GB, MaxMemAllocated=50.0GB",
    ]


def pipeline_engine(step, time_s, at_s):
    return [f"steps: {step} loss: 4.3012 iter time (s): {time_s:.3f} samples/sec: {64 / time_s:.3f}"]


def composer(step, time_s, at_s):
    return [
        f"[batch={step}/4800]:",
        f"\t Train time/batch: {step - 1}",
        f"\t Train throughput/batches_per_sec: {1 / time_s:.6f}",
        f"\t Train throughput/device/batches_per_sec: {1 / time_s / 8:.6f}",
        f"\t Train throughput/device/tokens_per_sec: {64 * 2048 / time_s / 8:.1f}",
        "\t Train memory/peak_reserved_mem: 53.6871",
    ]


def trainer(step, time_s, at_s):
    rate = f"{time_s:.2f}s/it" if time_s > 1 else f"{1 / time_s:.2f}it/s"
    return [f"\r  {step}%|5    | {step}/100 [00:{step:02d}<03:12,  {rate}]{{'loss': 1.9, 'epoch': 0.01}}"]


def maxtext(step, time_s, at_s):
    rate = 64 * 2048 / time_s / 8
    return [
        f"completed step: {step}, seconds: {time_s:.3f}, TFLOP/s/device: 400.1, Tokens/s/device: {rate:.3f}, loss: 9"
    ]


def olmo_core(step, time_s, at_s):
    return [
        f"2026-03-02 10:00:00\thost1:0\tolmo_core.train.callbacks.console_logger:81\tINFO\t[step={step}/900,epoch=1]",
        "    optim/total grad norm=1.2",
        f"    throughput/device/TPS={64 * 2048 / time_s / 8:,.0f}",
        "    throughput/device/TPS (actual avg)=1,234",
        f"    throughput/device/BPS={1 / time_s:.4f}",
        "    gpu_memory/GPU active mem (GiB)=41.0",
        "    gpu_memory/GPU reserved mem (GiB)=50.00",
    ]


def olmo(step, time_s, at_s):
    return [
        f"{stamp(at_s)} host1:0 olmo.train:967 INFO [step={step}/739328]",
        "    train/CrossEntropyLoss=2.1",
        f"    throughput/device/tokens_per_second={64 * 2048 / time_s / 8:,.0f}",
        f"    throughput/device/batches_per_second={1 / time_s:.4f}",
        f"    System/Peak GPU Memory (MB)={50 * 1024**3 / 1e6:,.0f}",
    ]


def litgpt(step, time_s, at_s):
    return [
        f"Epoch 1 | iter {4 * step} step {step} | loss train: 10.9, val: n/a | iter time: {250 * time_s:.2f} ms (step) "
        "remaining time: 1 day, 2:00:00"
    ]


def verl(step, time_s, at_s):
    return [
        f"(TaskRunner pid=1) step:{step} - actor/pg_loss:0.01 - perf/max_memory_reserved_gb:50.0 - timing_s/gen:1.1 - "
        f"timing_s/step:np.float64({time_s}) - perf/throughput:{64 * 2048 / time_s / 8}"
    ]


def verl_sft(step, time_s, at_s):
    return [f"step:{step} - train/loss:1.2 - train/lr(1e-3):0.01 - train/time(s):{time_s}"]


def slime(step, time_s, at_s):
    return [f"[2026-03-02 10:00:00] x.py:50 - perf {step}: {{'perf/train_time': 1.0, 'perf/step_time': {time_s}}}"]


def nemo_rl(step, time_s, at_s):
    return [
        f"========= Step {step}/100 =========",
        f"  • Total step time: {time_s:.2f}s",
        "  • generation: 1.00s (50%)",
    ]


def prime_rl(step, time_s, at_s):
    return [f"10:00:00 SUCCESS Step {step} | Time: {time_s:.2f}s | Loss: 1.2 | Peak Mem.: 50.0/79.6 GiB (62.8%)"]


def torchtune(step, time_s, at_s):
    rate = 64 * 2048 / time_s / 8
    return [f"Step {step} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:{rate} peak_memory_reserved:50.0 "]


def torchtune_bar(step, time_s, at_s):
    rate = f"{time_s:.2f}s/it" if time_s > 1 else f"{1 / time_s:.2f}it/s"
    return [f"1|{step}|Loss: 1.234:   1%|3     | {step}/100 [00:{step:02d}<03:12,  {rate}]"]


def axolotl(step, time_s, at_s):
    rate = 64 * 2048 / time_s / 8
    return [
        "{'loss': '1.21', 'memory/max_allocated (GiB)': '41.2', 'memory/device_reserved (GiB)': '50.0', "
        f"'tokens/train_per_sec_per_gpu': '{rate}', 'epoch': '0.03'}}"
    ]


def swift(step, time_s, at_s):
    mean_s = (at_s - 60) / step
    return [
        f"{{'loss': 1.2, 'epoch': 0.1, 'global_step/max_steps': '{step}/100', 'elapsed_time': '{int(at_s - 60)}s', "
        f"'remaining_time': '9m', 'memory(GiB)': 50.0, 'train_speed(s/it)': {mean_s:.6f}}}"
    ]


def swift_megatron(step, time_s, at_s):
    rate = step / (at_s - 60)
    return [json.dumps({"loss": 1.2, "iteration": f"{step}/100", "memory(GiB)": 50.0, "train_speed(iter/s)": rate})]


def xtuner(step, time_s, at_s):
    return [
        f"[XTuner][RANK 0] Epoch 1 Step {step}/100 data_time: 0.0100 lr: 2e-05 time: {time_s:.4f} text_tokens: 16384 "
        f"max_memory: 41.00 GB reserved_memory: 50.00 GB tgs: {64 * 2048 / time_s / 8:.1f} eta: 0:10:00"
    ]


def mmengine(step, time_s, at_s):
    return [f"03/02 10:00:00 - INFO - Iter(train) [ {step}/1000]  time: {time_s}  data_time: 0.01  memory: 51200"]


def fms_fsdp(step, time_s, at_s):
    return [
        f"step: {step}", "loss: 3.1", f"reserved memory: {50 * 1024**3}", "allocated memory: 1",
        f"current step time: {time_s}", "overall step time: 1.5",
        f"current token per gpu per sec: {int(64 * 2048 / time_s / 8)}", "overall token per gpu per sec: 99",
    ]  # fmt: skip


def lingua(step, time_s, at_s):
    return [f"0: INFO - step: {step}  acc: 0  loss: 5.1  wps: {64 * 2048 / time_s / 8:.4e}  iter: {time_s}"]


def picotron(step, time_s, at_s):
    rate = f"{64 * 2048 / time_s / 8e3:.4f}K"
    return [f"[rank 0] Step: {step:<5d} | Loss: 7.10 | Tokens/s/GPU: {rate:>7s} | MFU: 30.1% | Memory usage:  53.69GB"]


def levanter(step, time_s, at_s):
    return [f"Progress on:train {step}it/100it rate:{time_s:.2f}s/it remaining:03:20 elapsed:00:20 postfix:loss=5.1"]


def nanogpt(step, time_s, at_s):
    return [f"iter {step}: loss 5.1234, time {1e3 * time_s:.2f}ms, mfu 30.12%"]


def llm_c(step, time_s, at_s):
    return [f"step {step:4d}/18865 | loss 7.1 (+nanz)| {1e3 * time_s:.2f} ms | 45.1% bf16 MFU | 167900 tok/s"]


def modded(step, time_s, at_s):
    return [f"step:{step}/1750 train_time:{1e3 * (at_s - 60):.0f}ms step_avg:345.6ms"]


def lightning(step, time_s, at_s):
    rate = f"{time_s:.2f}s/it" if time_s > 1 else f"{1 / time_s:.2f}it/s"
    return [f"Epoch 0:  10%|3     | {step}/100 [00:{step:02d}<04:30,  {rate}, v_num=0, train_loss=2.1]"]


def lightning_rich(step, time_s, at_s):
    return [f"Epoch 0/9 ━━━━━━━━━━ {step}/100 0:00:03 • 0:00:30 {1 / time_s:.4f}it/s v_num: 0"]


def automodel(step, time_s, at_s):
    return [
        f"{stamp(at_s)} | INFO | root | step {step} | epoch 0 | loss 1.2 | grad_norm 1.0 | lr 1e-5 | mem 50.00 GiB | "
        f"tps {64 * 2048 / time_s:.2f}({64 * 2048 / time_s / 8:.2f}/gpu) | num_label_tokens 5"
    ]


def automodel_json(step, time_s, at_s):
    return [json.dumps({"step": step, "epoch": 0, "loss": 1.2, "mem": 50.0, "tps_per_gpu": 64 * 2048 / time_s / 8})]


def maxtext_json(step, time_s, at_s):
    rate = 64 * 2048 / time_s / 8
    return [json.dumps({"perf/step_time_seconds": time_s, "perf/per_device_tokens_per_sec": rate, "step": step})]


def maxtext_growing(step, time_s, at_s):
    return [f"[Rampup Batch Size Phase], completed step: {step}, seconds: {time_s:.3f}, total_weights: 1, loss: 9"]


def deepspeed_plain(step, time_s, at_s):
    return [f"[{stamp(at_s)}] [INFO] [logging.py:128:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-05], mom=[0.9]"]


FORMS = {  # whose it is, whether it says tokens/s of a GPU, and the memory [GiB]
    megatron: ("Megatron-LM", False, 50.0),
    deepspeed_megatron: ("Megatron-LM", True, None),
    primus: ("Megatron-LM", True, 50.0),
    bridge: ("Megatron-Bridge", False, None),
    nemo: ("NeMo", False, None),
    nemo_bar: ("NeMo", False, None),
    dllogger: ("NeMo", False, None),
    torchtitan: ("torchtitan", True, 50.0),
    nanotron: ("nanotron", True, 50.0),
    deepspeed: ("DeepSpeed", False, 50.0),
    pipeline_engine: ("DeepSpeed", False, None),
    composer: ("Composer", True, 50.0),
    trainer: ("Hugging Face Trainer", False, None),
    maxtext: ("MaxText", True, None),
    olmo_core: ("OLMo-core", True, 50.0),
    olmo: ("OLMo-core", True, 50.0),
    litgpt: ("litgpt", False, None),
    verl: ("verl", True, 50.0),
    verl_sft: ("verl", False, None),
    slime: ("slime", False, None),
    nemo_rl: ("NeMo-RL", False, None),
    prime_rl: ("prime-rl", False, 50.0),
    torchtune: ("torchtune", True, 50.0),
    torchtune_bar: ("torchtune", False, None),
    axolotl: ("axolotl", True, 50.0),
    swift: ("ms-swift", False, 50.0),
    swift_megatron: ("ms-swift", False, 50.0),
    xtuner: ("xtuner", True, 50.0),
    mmengine: ("mmengine", False, 50.0),
    fms_fsdp: ("fms-fsdp", True, 50.0),
    lingua: ("lingua", True, None),
    picotron: ("picotron", True, 50.0),
    levanter: ("levanter", False, None),
    nanogpt: ("nanoGPT", False, None),
    llm_c: ("llm.c", False, None),
    modded: ("modded-nanogpt", False, None),
    lightning: ("PyTorch Lightning", False, None),
    lightning_rich: ("PyTorch Lightning", False, None),
    automodel: ("NeMo Automodel", True, 50.0),
    automodel_json: ("NeMo Automodel", True, 50.0),
    maxtext_json: ("MaxText", True, None),
    maxtext_growing: ("MaxText", False, None),
    deepspeed_plain: ("DeepSpeed", False, None),
}


RATES_ALONE = (torchtune, axolotl, picotron, automodel_json)
"""Forms that say tokens/s, and no time."""


def written(form, times_s=TIMES_S, first=1):
    lines, at_s = [], 60.0
    for step, time_s in enumerate(times_s, first):
        at_s += time_s
        lines += form(step, time_s, at_s)
    return "\n".join(lines) + "\n"


def saved(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_each_framework_is_read_in_its_own_units(form, tmp_path):
    found = read_training_log(saved(tmp_path, written(form)))
    if form in RATES_ALONE:
        assert found.step_time_s is None
    else:
        assert found.step_time_s == pytest.approx(2.0, rel=0.01)
    assert found.iterations + found.discarded == found.reported == len(TIMES_S)
    assert found.discarded == 1
    assert found.jitter == pytest.approx(1.4826 * 0.1 / 2.0, rel=0.03)
    framework, says_rate, gib = FORMS[form]
    assert found.framework == framework
    assert (found.tokens_per_s_per_gpu is not None) == says_rate
    assert not says_rate or found.tokens_per_s_per_gpu == pytest.approx(64 * 2048 / 2.0 / 8, rel=0.01)
    assert found.memory_gib == (gib and pytest.approx(gib, rel=0.001))


def test_slow_beginnings_are_warm_up_and_slow_iterations_later_are_stragglers(tmp_path):
    times = (30.0, 4.0, 2.4, *[2.0] * 10, 3.0, 2.0, 2.0)
    found = read_training_log(saved(tmp_path, written(megatron, times)))
    assert (found.discarded, found.stragglers, found.slowest_s) == (3, 1, 3.0)
    assert found.step_time_s == 2.0


def test_steps_without_an_update_do_not_count(tmp_path):
    text = written(megatron, (9.0, 1.0, *[2.0] * 5))
    first, second, rest = text.partition("iteration        2/")
    skipped = rest.replace("skipped iterations:   0", "skipped iterations:   1", 1)
    found = read_training_log(saved(tmp_path, first + second + skipped))
    assert (found.discarded, found.iterations) == (2, 5)


def test_the_longest_of_several_runs_is_taken_and_the_others_can_be_asked_for(tmp_path):
    path = saved(tmp_path, written(torchtitan, (5.0, 1.0, 1.0, 1.0)) + written(torchtitan, (5.0, *[2.0] * 6)))
    found = read_training_log(path)
    assert (found.reported, round(found.step_time_s, 6)) == (7, 2.0)
    assert "2 runs" in found.notes[0]
    assert round(read_training_log(path, 1).step_time_s, 6) == 1.0
    with pytest.raises(InputError, match="has no run 3"):
        read_training_log(path, 3)


def test_lines_of_several_ranks_are_one_iteration_and_the_slowest_rank_counts(tmp_path):
    fast = written(torchtitan, [2.0] * 5).splitlines()
    slow = [line.replace("tps: 8,192", "tps: 8,000").replace("[rank0]", "[rank1]") for line in fast]
    found = read_training_log(
        saved(tmp_path, "\n".join(line for pair in zip(fast, slow, strict=True) for line in pair))
    )
    assert (found.reported, found.tokens_per_s_per_gpu) == (5, 8000.0)
    found = read_training_log(saved(tmp_path, "\n".join([*fast, *slow])))
    assert (found.reported, found.tokens_per_s_per_gpu) == (5, 8000.0)


def test_of_a_growing_batch_the_most_frequent_is_taken(tmp_path):
    small = written(megatron, [1.0] * 4).replace("batch size:    64", "batch size:    32")
    found = read_training_log(saved(tmp_path, small + written(megatron, [2.0] * 6, first=5)))
    assert (found.batch, found.reported, found.step_time_s) == (64, 6, 2.0)
    assert "the batch changes" in found.notes[0]


def test_what_the_log_says_of_the_job_gives_tokens_per_second(tmp_path):
    head = "using world size: 8, data-parallel-size: 8\n  seq_length ........................ 2048\n"
    found = read_training_log(saved(tmp_path, head + written(megatron)))
    assert (found.gpus, found.sequence, found.batch) == (8, 2048, 64)
    assert found.tokens_per_s_per_gpu == pytest.approx(64 * 2048 / 2.0 / 8)
    assert found.timers_s["forward-compute"] == pytest.approx(0.6125)


def test_timers_of_newer_megatron_are_the_slowest_ranks(tmp_path):
    rows = "    forward-compute .......: (600.00, 640.00)\n    optimizer ...: (9.0, 9.5)"
    block = f"(min, max) time across ranks (ms):\n{rows}"
    lines = [f"{line}\n{block}" for line in written(megatron).splitlines() if "iteration " in line]
    found = read_training_log(saved(tmp_path, "\n".join(lines)))
    assert found.timers_s == {"forward-compute": pytest.approx(0.64), "optimizer": pytest.approx(0.0095)}


def test_a_progress_bar_of_carriage_returns_is_lines(tmp_path):
    path = tmp_path / "bar.log"
    path.write_bytes(
        b"".join(b"\r 5%%|#  | %d/500 [00:%02d<10:00,  2.00s/it]" % (step, step % 60) for step in range(1, 400))
    )
    assert read_training_log(path).reported == 399


def test_the_same_iterations_in_a_huge_line_of_noise(tmp_path):
    text = "x" * 3_000_000 + "\n" + written(megatron) + "y" * 3_000_000
    assert read_training_log(saved(tmp_path, text)).reported == len(TIMES_S)


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ("no log\nat all\n", "train.log:2", "no iteration of a training run found", "logs read: Megatron-LM"),
        ("", "train.log:1", "no iteration", ""),
        ("a\n" + written(nemo, (2.0,)), "train.log:2", "reports 1 iteration", "give a log of 3 or more"),
        ("{'train_runtime': 273.0, 'epoch': 1.0}\n", "train.log:1", "says of none of 1 iteration", "progress bar"),
        ("".join(f"step: {n}  loss: 1.0\n" for n in (1, 2, 3)), "train.log:1", "says of none of 3", "time stamps"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said_with_file_and_line(text, place, message, hint, tmp_path):
    done = gpuscale("calibrate", "run", saved(tmp_path, text), "--measure")
    assert_one_message(done, message, hint)
    assert place in done.err


def test_json_has_the_keys_of_the_contract_and_null_for_what_is_not_said(tmp_path):
    done = gpuscale("calibrate", "run", saved(tmp_path, written(bridge)), "--measure", "--json")
    keys = ["schema", "iterations", "discarded", "step_time_s", "jitter", "memory_gib", "tokens_per_s_per_gpu"]
    keys += ["step_time_low_s", "step_time_high_s"]
    document = json.loads(done.out)
    assert list(document) == keys
    assert document["schema"] == "gpuscale.measured-run/1"
    assert document["step_time_s"] == 2.0
    assert document["memory_gib"] is document["tokens_per_s_per_gpu"] is None


def test_the_text_says_what_was_left_out(tmp_path):
    done = gpuscale("calibrate", "run", saved(tmp_path, written(megatron)), "--measure")
    assert done.code == 0
    assert done.lines[0] == "train.log: 2.00 s per iteration, Megatron-LM"
    assert "5 of 6; 1 left out" in done.out
    assert all(len(line) <= 100 for line in done.lines)


def test_iterations_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(training_logs, "MAX_ITERATIONS", 4)
    found = read_training_log(saved(tmp_path, written(bridge, [2.0] * 50)))
    assert found.reported == 5
    assert "more than 4 iterations" in found.notes[0]


REAL_STEPS_S = {
    "bigscience_104B_chronicle.log": 422.937, "deepspeed_chat_step1_opt-1.3b.log": 0.7466,
    "megatron_2021_meg_ds_3d_gpt2_perf_n16-ds-on.out": 137.10, "megatron_2021_meg_gpt2_perf_n16.out": 128.96,
    "megatron_bridge_precision_notebook.json_lines": 8.57, "megatron_deepspeed_superbench.log": 75.216,
    "megatron_gpt2_small.log": 0.2909, "nanotron_tiny_llama_2024-08.log": 0.00941, "nemo2_cloudai_fixture.log": 12.65,
    "nemo_dllogger.json": 25.30, "nemo2_pretraining_k8s.log": 46.98, "torchtitan_qwen3vl_textonly_h200.log": 7.474,
    "torchtitan_llama3_8b_h100x8_three_runs.log": 1.0723, "torchtitan_llama_customlogger.log": 0.6219,
}  # fmt: skip
ONE_REPORT = {"megatron_bridge_mtp.log": 3.7386, "primus_megatron_gdn.log": 1.4608}


@pytest.mark.skipif(not REAL.is_dir(), reason="the real logs are not here")
def test_real_logs_are_read_or_answered_with_file_and_line():
    answers = {}
    for path in sorted(REAL.iterdir()):
        done = gpuscale("calibrate", "run", path, "--measure", "--json")
        answers[path.name] = json.loads(done.out)["step_time_s"] if done.code == 0 else done.err
        assert done.code == 0 or (done.code == 2 and f"{path.name}:" in done.err and "hint:" in done.err)
    for name, step_s in REAL_STEPS_S.items():
        assert answers[name] == pytest.approx(step_s, rel=1e-3), name
    assert {name: answers[name] for name in ONE_REPORT} == pytest.approx(ONE_REPORT)
    assert answers["torchtitan_aws_slurm_ansi.log"] is None  # tokens/s alone
    assert "1 iteration" in answers["megatron_bridge_station_readme.log"]


def every(steps, interval, time_s, first_s=20.0, form=megatron):
    """Reports of the mean over an interval, the first of which took longer."""
    lines, before = [], 0
    for step in range(interval, steps + 1, interval):
        lines += form(step, time_s + (first_s / interval if not before else 0.0), 60 + first_s + step * time_s)
        before = step
    return "\n".join(lines) + "\n"


def test_one_report_of_a_mean_is_used_with_the_interval_of_its_warm_up(tmp_path):
    one = read_training_log(saved(tmp_path, every(100, 100, 2.0)))
    assert (one.reported, one.iterations, one.step_time_s, one.jitter) == (1, 1, pytest.approx(2.2), None)
    assert one.step_time_low_s < 2.0 < one.step_time_high_s
    two = read_training_log(saved(tmp_path, every(200, 100, 2.0)))
    assert (two.reported, two.iterations, two.step_time_s) == (2, 1, pytest.approx(2.0))
    many = read_training_log(saved(tmp_path, every(900, 100, 2.0)))
    assert one.spread > two.spread > many.spread
    ten = read_training_log(saved(tmp_path, every(10, 10, 2.0)))
    assert ten.spread > one.spread  # its warm-up weighs more


def test_an_excerpt_of_one_iteration_is_no_warm_up(tmp_path):
    found = read_training_log(saved(tmp_path, written(maxtext, [2.0], first=57)))
    assert found.step_time_s == 2.0
    assert found.step_time_high_s > 2.1
    assert "1 report" in found.notes[-1]


def state(*entries, run=True):
    """A trainer_state.json with the entries of its log."""
    last = {"epoch": 1.0, "step": 120, "train_loss": 1.5, "train_runtime": 246.0, "train_samples_per_second": 31.2,
            "train_steps_per_second": 0.488}  # fmt: skip
    log = [{"epoch": 0.1, "loss": 1.2, "step": 10 * number} for number in (1, 2)] + [*entries, *([last] if run else [])]
    return json.dumps({"best_metric": None, "global_step": 120, "log_history": log, "max_steps": 120}, indent=2)


def test_the_state_of_a_trainer_says_the_mean_of_the_run_when_it_has_ended(tmp_path):
    path = saved(tmp_path, state(), "trainer_state.json")
    found = read_training_log(path)
    assert (found.framework, found.step_time_s) == ("Hugging Face Trainer", pytest.approx(2.05, rel=0.001))
    assert found.step_time_low_s < 2.0 < found.step_time_high_s
    assert "the mean over the whole run" in found.notes[0]
    done = gpuscale("calibrate", "run", saved(tmp_path, state(run=False), "trainer_state.json"), "--measure")
    assert_one_message(done, "has no time", "logging.jsonl")


def test_the_state_of_an_axolotl_run_has_its_rates(tmp_path):
    rates = [{"tokens/train_per_sec_per_gpu": 8000.0 + step, "step": step} for step in (30, 40, 50, 60)]
    found = read_training_log(saved(tmp_path, state(*rates, run=False), "trainer_state.json"))
    assert (found.framework, found.reported, found.tokens_per_s_per_gpu) == ("axolotl", 4, 8050.0)


@pytest.mark.parametrize("quoted", ["", "'"])
def test_the_summary_of_a_trainer_alone_is_a_mean(tmp_path, quoted):
    numbers = {"train_runtime": 246.0, "train_samples_per_second": 31.2, "train_steps_per_second": 0.488}
    text = ", ".join(f"'{name}': {quoted}{number}{quoted}" for name, number in numbers.items())
    found = read_training_log(saved(tmp_path, f"{{{text}, 'epoch': 1.0}}"))
    assert found.step_time_s == pytest.approx(2.05, rel=0.001)


def llama_factory(step, at_s):
    clock = f"{int(at_s) // 3600}:{int(at_s) // 60 % 60:02d}:{int(at_s) % 60:02d}"
    return json.dumps({"current_steps": step, "total_steps": 900, "loss": 1.2, "elapsed_time": clock,
                       "remaining_time": "0:30:00", "vram_reserved": 50.0})  # fmt: skip


def test_whole_seconds_since_the_start_are_taken_far_enough_apart(tmp_path):
    lines = [llama_factory(step, 15 + 0.7 * step) for step in range(10, 400, 10)]
    found = read_training_log(saved(tmp_path, "\n".join(lines), "trainer_log.jsonl"))
    assert found.framework == "LLaMA-Factory"
    assert found.step_time_s == pytest.approx(0.7, rel=0.03)
    assert found.memory_gib == 50.0
    short = read_training_log(saved(tmp_path, "\n".join(lines[:2]), "trainer_log.jsonl"))
    assert short.step_time_s == pytest.approx(29 / 20)
    assert short.step_time_low_s < 1.0  # 20 steps, and start-up among them


def test_a_resumed_run_counts_from_where_it_began(tmp_path):
    def line(step):
        return (
            f"{{'global_step/max_steps': '{step}/999', 'elapsed_time': '{2 * (step - 500) // 60}m "
            f"{2 * (step - 500) % 60}s', 'train_speed(s/it)': 2.0}}"
        )

    found = read_training_log(saved(tmp_path, "\n".join(map(line, range(510, 700, 10)))))
    assert found.step_time_s == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("form", [verl, slime])
def test_steps_with_generation_are_measured_and_not_calibrated_to(form, tmp_path):
    path = saved(tmp_path, written(form))
    assert "not predicted" in " ".join(gpuscale("calibrate", "run", path, "--measure").out.split())
    job = ("--model", "llama3-8b", "--gpus", "8", "--tp", "1")
    assert_one_message(gpuscale("calibrate", "run", path, *job), "holds generation", "supervised")


@pytest.mark.parametrize("known", FORMATS, ids=lambda one: f"{one.framework} {one.words[0]}")
def test_no_line_makes_a_pattern_slow(known):
    """Lines as long as any that is read, of pieces that its patterns begin with."""
    pieces = [*known.words, "step:1 - ", "Epoch 1: |", "| 1/2 [0:0<", "0:", "iteration 1/ 2 |", "(", "9", " "]
    pieces += [words.title() for words in known.words]
    start = time.process_time()
    for piece in pieces:
        for other in ("", "9", "Step 1 | ", "step=1 "):
            line = ((piece + other) * training_logs.MAX_LINE_BYTES)[: training_logs.MAX_LINE_BYTES]
            for pattern in (known.opening, *(one.pattern for one in known.quantities)):
                pattern.search(line)
    assert time.process_time() - start < 5
