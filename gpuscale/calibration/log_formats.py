"""How each framework prints an iteration: what a line looks like, and in which units its numbers are.

Read in the frameworks' own sources at the places that the entries name, as they stood in August to November 2026.
Patterns find a line's beginning anywhere, so that launchers' prefixes, colours and notebooks do not matter; they are
anchored at words that are rare, and what may repeat is bounded, so that no line makes them slow.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuscale.units import GIB, MIB

_NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_SUFFIXED = _NUMBER + r"([KMBGTP]?)"
"""A number as nanotron (logging `human_format`) and picotron print it: 4.71K, with powers of 1,000."""

_DIGITS = r"([1-9][0-9,]*\.[0-9]{2,20}|[1-9][0-9,]{2,20}|0\.0{0,9}[1-9][0-9]{2,20})"
"""A number that keeps three digits after rounding: OLMo-core's `format_float` prints four decimals."""

_CLOCK = r"(?:(?P<d>\d{1,4}) ?(?:days?,|d) ?)?(?:(?P<h>\d{1,4})(?:h ?|:))?(?:(?P<m>\d{1,2})(?:m ?|:))?(?P<s>\d{1,2})s?"
"""Time as `str(timedelta)` (`1 day, 2:03:04`) and ms-swift's `format_time` (`1d 2h 3m 4s`) print it."""

SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
MS = 1e-3

SAME_LINE = frozenset({"step", "batch", "step_s", "mean_s", "elapsed_s"})
"""Quantities that count in the line that opens an iteration alone, but for formats of several lines: below it the same
words may speak of an evaluation."""


class Quantity(NamedTuple):
    """How a format prints one quantity."""

    #: field of `Iteration`, or one of those that are turned into them: `batches_per_s`, `samples_per_s`,
    #: `batches_per_s_since_start`, `microbatch_s` (of the gradient accumulation), `microbatches` (number of this one).
    name: str
    #: with the number in its first group, and a suffix such as K in its second, if there is one; or a clock.
    pattern: re.Pattern[str]
    unit: float = 1.0  #: what the number is multiplied by.


class Format(NamedTuple):
    """How a framework prints an iteration."""

    framework: str  #: its name in messages.
    words: tuple[str, ...]  #: of which one is in every line that says something, in lower case.
    opening: re.Pattern[str]  #: a line that opens an iteration; group `step` has its number, if it is there.
    quantities: tuple[Quantity, ...]  #: in that line, or in one that follows before the next iteration.
    hint: str  #: how to have the log say what it lacks.
    means: bool = False  #: whether a line is the mean over the iterations since the last line.
    below: bool = False  #: whether the lines below the opening say all of it.
    note: str = ""  #: what a reader must know of its numbers.
    beside: str = ""  #: what else than training a step holds, which no prediction has.


def _said(text: str, name: str, unit: float = 1.0, number: str = _NUMBER) -> Quantity:
    return Quantity(name, re.compile(text.replace("NUM", number)), unit)


def _item(key: str, name: str, unit: float = 1.0, number: str = _NUMBER) -> Quantity:
    """An item of a dictionary as Python or JSON prints it, its value a number or, in transformers 5, a text."""
    return _said(rf"['\"]{key}['\"]: ?['\"]?(?:np\.float64\()?NUM", name, unit, number)


def _opens(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("STEP", r"(?P<step>\d{1,12})"))


_BAR = r"\| *STEP/\d{1,12} \[[0-9:]{1,20}<[^,\]]{1,20}, *[0-9.]{1,12}(?:s/it|it/s)\b"
"""A progress bar of tqdm: its rate is a moving mean."""
_BAR_TIMES = (_said(r", *NUM ?s/it", "step_s"), _said(r", *NUM ?it/s", "batches_per_s"))

_AXOLOTL = (
    _item(r"tokens/train_per_sec_per_gpu", "tokens_per_s_per_gpu"),
    _item(r"memory/max_allocated \(GiB\)", "allocated_bytes", GIB),
    _item(r"memory/device_reserved \(GiB\)", "reserved_bytes", GIB),
)
"""axolotl core/trainers/base.py, utils/callbacks/tokens_per_second.py."""

_SWIFT = (
    _item(r"elapsed_time", "elapsed_s", number=_CLOCK),
    _item(r"train_speed\(s/it\)", "mean_s"),
    _item(r"train_speed\(iter/s\)", "batches_per_s_since_start"),
    _item(r"memory\(GiB\)", "reserved_bytes", GIB),
)

_ROLLOUT = "generation, rewards and log-probabilities"

FORMATS = (
    # Megatron-LM training_log() prints means since its last line, times in ms; memory by report_memory() in units of
    # 2^20 bytes. Megatron-DeepSpeed adds `samples per second` of the whole job and `tokens per gpu per second (tgs)`;
    # GPT-NeoX `samples/sec` in front; Primus `current/mean` and HIP's memory, 191.98 "GB" of an MI300X: 2^30 bytes.
    Format("Megatron-LM", ("iteration", "memory (mb)", "tokens/s/gpu", "mem usage"),
           _opens(r"\biteration\s{1,20}STEP\s{0,20}/\s{0,20}\d{1,12} ?\|(?=.*per iteration \(ms\):)"), (
        _said(r"(?:elapsed )?time per iteration \(ms\): *NUM", "step_s", MS),
        _said(r"global batch size: *NUM", "batch"),
        _said(r"samples(?: per second|/sec): *NUM", "samples_per_s"),
        _said(r"(?:tokens per gpu per second \(tgs\)|tokens per GPU \(tokens/s/GPU\)): *NUM", "tokens_per_s_per_gpu"),
        _said(r"actual seqlen: *NUM", "sequence"),
        _said(r"number of skipped iterations: *NUM", "skipped"),
        _said(r"max allocated: *NUM", "allocated_bytes", MIB),
        _said(r"max reserved: *NUM", "reserved_bytes", MIB),
        _said(r"(?:hip|rocm) mem usage/free/total/usage_ratio: *NUM ?G", "device_bytes", GIB),
    ), "add `--log-interval 1`", means=True),
    # Megatron-Bridge training/utils/train_utils.py
    Format("Megatron-Bridge", ("step time",), _opens(r"\bStep Time ?: *(?=[0-9])"), (
        _said(r"\bStep Time ?: *NUM ?s", "step_s"),
    ), "its lines say `Step Time : 8.57s`", means=True),
    # NeMo: Lightning's progress line, its progress bar (which rounds steps: 2e+3) and DLLogger's JSON. The time is a
    # mean over the last steps as far as `NamedTimer(buffer_size)` holds them.
    Format("NeMo", ("train_step_timing", "dlll"), _opens(r"train_step_timing in s\"? ?[:=] ?(?=[0-9])"), (
        _said(r"train_step_timing in s\"? ?[:=] ?NUM", "step_s"),
        _said(r"\bglobal_step\"? ?[:=] ?NUM", "step"),
        _said(r"\bglobal_batch_size\"? ?[:=] ?NUM", "batch"),
    ), "its lines say `train_step_timing in s`", means=True),
    # torchtitan components/metrics.py: tokens/s per GPU, torch's max reserved memory in 2^30 bytes, means since the
    # last line; time per step follows from the time stamps.
    Format("torchtitan", ("step:",), _opens(r"\bstep: *STEP +loss: "), (
        _said(r"\b(?:tps|wps): *NUM", "tokens_per_s_per_gpu"),
        _said(r"\bmemory: *NUM ?GiB", "reserved_bytes", GIB),
    ), "set `metrics.log_freq=1`, and keep the time stamps", means=True),
    # nanotron trainer.py train_step_logs(): numbers by human_format, memory in bytes
    Format("nanotron", ("iteration:",), _opens(r"\biteration: STEP / \d{1,12} \|"), (
        _said(r"\b(?:elapsed_)?time_per_iteration_ms: NUM", "step_s", MS, _SUFFIXED),
        _said(r"\btokens_per_sec_per_gpu: NUM", "tokens_per_s_per_gpu", 1.0, _SUFFIXED),
        _said(r"\bglobal_batch_size: NUM", "batch", 1.0, _SUFFIXED),
        _said(r"\bcuda_max_memory_reserved: NUM", "reserved_bytes", 1.0, _SUFFIXED),
    ), "set `iteration_step_info_interval: 1`"),
    # DeepSpeed utils/timer.py: samples/s of the whole job; "GB" are 2^30 bytes. Its pipeline engine: `iter time (s)`.
    Format("DeepSpeed", ("global_step=", "runningavgsamplespersec", "iter time (s)", "steps: "),
           re.compile(r"\bglobal_step=(?P<step>\d{1,12})|\b\d{1,9}/(?P<old>\d{1,12}), RunningAvgSamplesPerSec="
                      r"|\bsteps: (?P<steps>\d{1,12}) loss: "), (
        _said(r"\biter time \(s\): NUM", "step_s"),
        _said(r"\bCurrSamplesPerSec=NUM", "samples_per_s"),
        _said(r"\bMaxMemAllocated=NUM ?GB", "allocated_bytes", GIB),
    ), "set `steps_per_print: 1`"),
    # DeepSpeed runtime/engine.py _report_progress(), where its timer is off; time follows from the time stamps.
    Format("DeepSpeed", ("] step=",), _opens(r"\] step=STEP, skipped=\d{1,12}, lr="), (),
           "set `steps_per_print: 1`, and keep the time stamps", means=True),
    # Composer (llm-foundry): SpeedMonitor's means over a window, MemoryMonitor in 1e9 bytes
    Format("Composer", ("[batch=", "][batch=", "throughput/", "memory/"), _opens(r"\[batch=STEP/\d{1,12}\]"), (
        _said(r"\bthroughput/batches_per_sec: NUM", "batches_per_s"),
        _said(r"\bthroughput/device/tokens_per_sec: NUM", "tokens_per_s_per_gpu"),
        _said(r"\bthroughput/samples_per_sec: NUM", "samples_per_s"),
        _said(r"\bmemory/(?:peak|max)_reserved_mem: NUM", "reserved_bytes", 1e9),
        _said(r"\bmemory/(?:peak|max)_allocated_mem: NUM", "allocated_bytes", 1e9),
    ), "add the callbacks speed_monitor and memory_monitor, and log every batch", means=True, below=True),
    # MaxText common/metric_logger.py: the line, and the JSON of `metrics_file`
    Format("MaxText", ("completed step",), _opens(r"\bcompleted step: STEP, seconds: "), (
        _said(r"\bseconds: NUM", "step_s"),
        _said(r"\bTokens/s/device: NUM", "tokens_per_s_per_gpu"),
    ), "its lines say `completed step: 3, seconds: 5.1`"),
    Format("MaxText", ("perf/step_time_seconds",), _opens(r"\"perf/step_time_seconds\": (?=[0-9])"), (
        _item(r"perf/step_time_seconds", "step_s"),
        _item(r"perf/per_device_tokens_per_sec", "tokens_per_s_per_gpu"),
        _item(r"step", "step"),
    ), "its lines say `perf/step_time_seconds`"),
    # NeMo Automodel recipes/llm/train_ft.py: memory in 2^30 bytes; time per step follows from the time stamps. Its
    # training.jsonl has the same.
    Format("NeMo Automodel", ("| tps ",), _opens(r"\bstep STEP \| epoch .{1,300} \| tps "), (
        _said(r"\bmem NUM GiB", "allocated_bytes", GIB),
        _said(r"\btps [0-9.,]{1,20} ?\(NUM/gpu\)", "tokens_per_s_per_gpu"),
    ), "keep the time stamps"),
    Format("NeMo Automodel", ("tps_per_gpu",), _opens(r"\"tps_per_gpu\": (?=[0-9])"), (
        _item(r"tps_per_gpu", "tokens_per_s_per_gpu"),
        _item(r"mem", "allocated_bytes", GIB),
        _item(r"step", "step"),
    ), "its lines say `tps_per_gpu`"),
    # OLMo-core train/callbacks/console_logger.py, speed_monitor.py, gpu_memory_monitor.py; OLMo before it
    # (scripts/train.py) has its memory in 1e6 bytes.
    Format("OLMo-core", ("[step=", "throughput/", "gpu reserved mem", "gpu active mem", "peak gpu memory"),
           _opens(r"\[step=STEP/"), (
        _said(r"\bthroughput/device/(?:BPS|batches_per_second)=NUM", "batches_per_s", 1.0, _DIGITS),
        _said(r"\bthroughput/device/(?:TPS|tokens_per_second)=NUM", "tokens_per_s_per_gpu"),
        _said(r"/GPU reserved mem \(GiB\)=NUM", "reserved_bytes", GIB),
        _said(r"/GPU active mem \(GiB\)=NUM", "allocated_bytes", GIB),
        _said(r"/Peak GPU Memory \(MB\)=NUM", "allocated_bytes", 1e6),
    ), "let the console logger log `throughput/*` of every step", below=True),
    # litgpt pretrain.py, finetune/*.py: time of one microbatch; `(step)` marks the last of a step's
    Format("litgpt", ("iter time:",), _opens(r"\biter \d{1,12} step STEP\b.{0,300}\biter time: "), (
        _said(r"\biter NUM step", "microbatches"),
        _said(r"\biter time: *NUM ?ms", "microbatch_s", MS),
    ), "set `--train.log_interval 1`"),
    # verl utils/logger (console), trainer/ppo/metric_utils.py: tokens of prompts and answers/s of a GPU; "gb" are 2^30
    # bytes. Its SFT trainer beside it.
    Format("verl", ("timing_s/step",), _opens(r"\bstep:STEP - "), (
        _said(r"\btiming_s/step:(?:np\.float64\()?NUM", "step_s"),
        _said(r"\bperf/throughput:(?:np\.float64\()?NUM", "tokens_per_s_per_gpu"),
        _said(r"\bperf/max_memory_allocated_gb:(?:np\.float64\()?NUM", "allocated_bytes", GIB),
        _said(r"\bperf/max_memory_reserved_gb:(?:np\.float64\()?NUM", "reserved_bytes", GIB),
    ), "log to the console: trainer.logger=['console']", beside=_ROLLOUT),
    Format("verl", ("train/time(s)",), _opens(r"\bstep:STEP - "), (
        _said(r"\btrain/time\(s\):(?:np\.float64\()?NUM", "step_s"),
    ), "log to the console: trainer.logger=['console']"),
    # slime backends/training_utils/train_metric_utils.py: a rollout with its training
    Format("slime", ("perf/step_time",), _opens(r"\bperf STEP: \{"), (
        _item(r"perf/step_time", "step_s"),
    ), "its lines say `perf/step_time`", beside=_ROLLOUT),
    # NeMo-RL algorithms/grpo.py, sft.py
    Format("NeMo-RL", ("= step ", "total step time"), _opens(r"={3,60} Step STEP/\d{1,12} ={3,60}"), (
        _said(r"\bTotal step time: NUM ?s", "step_s"),
    ), "its lines say `Total step time`", below=True, note=f"unless it was SFT, a step holds {_ROLLOUT}"),
    # prime-rl trainer/sft/train.py, trainer/rl/train.py: tokens/s of the whole job
    Format("prime-rl", ("| time: ",), _opens(r"\bStep STEP \| Time: [0-9.]{1,12}s \|"), (
        _said(r"\| Time: NUM ?s", "step_s"),
        _said(r"\bPeak Mem\.: NUM", "reserved_bytes", GIB),
    ), "its lines say `Step 3 | Time: 2.5s`"),
    # torchtune training/metric_logging.py (DiskLogger, StdoutLogger), recipes/*.py: tokens that are trained on; memory
    # in 2^30 bytes. Its progress bar: epoch, step, loss.
    Format("torchtune", ("tokens_per_second_per_gpu:",), _opens(r"\bStep STEP \| "), (
        _said(r"\btokens_per_second_per_gpu:NUM", "tokens_per_s_per_gpu"),
        _said(r"\bpeak_memory_reserved:NUM", "reserved_bytes", GIB),
        _said(r"\bpeak_memory_alloc:NUM", "allocated_bytes", GIB),
    ), "set `log_every_n_steps=1`", note="tokens/s counts the tokens that are trained on, not padding nor prompts"),
    Format("torchtune", ("|loss: ",), _opens(r"\b\d{1,6}\|\d{1,12}\|Loss: [^|]{1,40}\|[^|]{0,300}" + _BAR), _BAR_TIMES,
           "set `log_every_n_steps=1`"),
    # axolotl without its progress bar
    Format("axolotl", ("train_per_sec_per_gpu",), _opens(r"['\"]tokens/train_per_sec_per_gpu['\"]: "), (
        *_AXOLOTL, _item(r"step", "step"),
    ), "set `include_tkps: true` and `logging_steps: 1`",
       note="tokens/s counts the tokens that are trained on, not padding nor prompts"),
    # ms-swift trainers/patcher.py, megatron/callbacks: seconds per step since the start
    Format("ms-swift", ("train_speed(",), _opens(r"['\"](?:global_step/max_steps|iteration)['\"]: ['\"]STEP/"), _SWIFT,
           "set `--logging_steps 1`"),
    # LLaMA-Factory train/callbacks.py: trainer_log.jsonl; time since the start in whole seconds
    Format("LLaMA-Factory", ("current_steps",), _opens(r"\"current_steps\": STEP"), (
        _item(r"elapsed_time", "elapsed_s", number=_CLOCK),
        _item(r"vram_allocated", "allocated_bytes", GIB),
        _item(r"vram_reserved", "reserved_bytes", GIB),
    ), "set `logging_steps: 1`"),
    # xtuner v1 train/trainer.py: "GB" are 2^30 bytes; mmengine's LoggerHook, memory in 2^20 bytes, means of a window
    Format("xtuner", ("data_time: ",), _opens(r"\bStep STEP/\d{1,12} data_time: "), (
        _said(r" time: NUM", "step_s"),
        _said(r"\btgs: NUM", "tokens_per_s_per_gpu"),
        _said(r"\bmax_memory: NUM ?GB", "allocated_bytes", GIB),
        _said(r"\breserved_memory: NUM ?GB", "reserved_bytes", GIB),
    ), "its lines say `Step 3/100 data_time:`"),
    Format("mmengine", ("iter(train)", "epoch(train)"),
           re.compile(r"\bIter\(train\) *\[ *(?P<step>\d{1,12})/"
                      r"|\bEpoch\(train\) *\[\d{1,9}\] *\[ *(?P<steps>\d{1,12})/"),
           (_said(r" time: NUM", "step_s"), _said(r" memory: NUM", "allocated_bytes", MIB)),
           "set the interval of its LoggerHook to 1", means=True),
    # fms-fsdp fms_fsdp/utils/train_utils.py: a line per number; memory in bytes, means since the last report
    Format("fms-fsdp", ("step: ", "step time:", "memory:", "per gpu per sec:"),
           _opens(r"(?:^|[\]:>|] ?)step: STEP\s*$"), (
        _said(r"\bcurrent step time: NUM", "step_s"),
        _said(r"\bcurrent token per gpu per sec: NUM", "tokens_per_s_per_gpu"),
        _said(r"\breserved memory: NUM", "reserved_bytes"),
        _said(r"\ballocated memory: NUM", "allocated_bytes"),
    ), "set `report_interval=1`", means=True, below=True),
    # Meta lingua apps/main/train.py: words/s of a GPU
    Format("lingua", (" wps: ",), _opens(r"\bstep: *STEP +acc: *\d"), (
        _said(r"\biter: *NUM", "step_s"),
        _said(r"\bwps: *NUM", "tokens_per_s_per_gpu"),
    ), "set `logging.freq=1`", means=True),
    # picotron train.py: memory in 1e9 bytes
    Format("picotron", ("tokens/s/gpu:",), _opens(r"\bStep: *STEP *\| *Loss: "), (
        _said(r"\bTokens/s/GPU: *NUM", "tokens_per_s_per_gpu", 1.0, _SUFFIXED),
        _said(r"\bMemory usage: *NUM ?GB", "reserved_bytes", 1e9),
    ), "its lines say `Step: 3 | Loss:`"),
    # levanter callbacks/progress: tqdm_loggable
    Format("levanter", ("progress on:train",), _opens(r"\bProgress on:train STEP"), (
        _said(r"\brate:NUM ?s/it", "step_s"),
        _said(r"\brate:NUM ?it/s", "batches_per_s"),
    ), "its lines say `Progress on:train`", means=True),
    # nanoGPT train.py; llm.c train_gpt2.cu; modded-nanogpt: time since the start
    Format("nanoGPT", (": loss ",), _opens(r"\biter STEP: loss [^,]{1,40}, time [0-9]"), (
        _said(r", time NUM ?ms", "step_s", MS),
    ), "set `log_interval = 1`"),
    Format("llm.c", ("tok/s",), _opens(r"\bstep +STEP/\d{1,12} \| (?:train )?loss "), (
        _said(r"\| *NUM ms \|", "step_s", MS),
    ), "its lines say `step 3/100 | loss`"),
    Format("modded-nanogpt", ("train_time:",), _opens(r"\bstep:STEP/\d{1,12} "), (
        _said(r"\btrain_time:NUM ?ms", "elapsed_s", MS),
    ), "its lines say `train_time:`"),
    # PyTorch Lightning: its progress bar, by tqdm or by rich
    Format("PyTorch Lightning", ("epoch",),
           re.compile(r"\bEpoch +\d{1,9}: [^|]{0,20}\|[^|]{0,300}" + _BAR.replace("STEP", r"(?P<step>\d{1,12})")
                      + r"|\bEpoch \d{1,9}/\d{1,9} [^0-9]{0,99}(?P<steps>\d{1,12})/\d{1,12} [0-9:]{4,12} . [0-9:-]{3}"),
           (*_BAR_TIMES, _said(r"[0-9:-]{4,12} NUM ?it/s", "batches_per_s")),
           "keep the progress bar in the log: enable_progress_bar=True", means=True),
    # Hugging Face Trainer: the progress bar of tqdm, and what axolotl and ms-swift print beside it
    Format("Hugging Face Trainer", ("it/s", "s/it", "mem_", "memory", "tokens"), _opens(_BAR), (
        *_BAR_TIMES,
        _said(r"'?tokens_per_second_per_gpu'?: NUM", "tokens_per_s_per_gpu"),
        _said(r"memory/max_reserved ?\(gib\)'?: NUM", "reserved_bytes", GIB),
        *_AXOLOTL,
        *_SWIFT[-1:],
    ), "keep the progress bar in the log: disable_tqdm=False"),
    # its summary, which is printed and the last entry of trainer_state.json: the mean over the run, whatever it did
    Format("Hugging Face Trainer", ("train_runtime",),
           _opens(r"['\"]?train_runtime['\"]?\s*[:=]\s*['\"]?[0-9]"), (
        _said(r"train_runtime['\"]?\s*[:=]\s*['\"]?NUM", "elapsed_s"),
        _said(r"train_steps_per_second['\"]?\s*[:=]\s*['\"]?NUM", "batches_per_s_since_start"),
        _item(r"step", "step"),
    ), "keep the progress bar in the log: disable_tqdm=False",
       note="the mean over the whole run, with start-up, evaluations and checkpoints"),
)  # fmt: skip
"""In the order in which one is preferred where a log has as many iterations of several."""

KNOWN = ", ".join(dict.fromkeys(one.framework for one in FORMATS))
