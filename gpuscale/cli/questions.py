"""Options of `plan` that take several values, and those that say what is asked of the search."""

from __future__ import annotations

from typing import Annotated

from gpuscale.cli.options import CP_COMM_HELP, JOB, OFFLOAD_HELP, ORDER_HELP, OVERLAP_HELP, SPLIT_HELP, option

QUESTION = "Question"

Gpus = Annotated[str, option(JOB, "--gpus -n", "N|LIST|A..B", "GPUs of the job; several are compared.")]
Clusters = Annotated[
    list[str] | None,
    option(
        JOB,
        "--cluster -c",
        "NAME|PATH",
        "Preset name or cluster TOML; repeat it to compare several.  [default: dgx-h100-superpod]",
    ),
]
Seq = Annotated[str | None, option(JOB, "--seq", "N|LIST|A..B", "Tokens per sequence.  [default: 4096]")]
Gbs = Annotated[
    str | None,
    option(
        JOB,
        "--gbs",
        "N|LIST|A..B",
        "Sequences per step.  [default: the smallest multiple of the GPUs that reaches 4 M tokens]",
    ),
]
Framework = Annotated[
    str | None,
    option(
        JOB,
        "--framework",
        "NAME|LIST",
        "Profile of how a step runs (`gpuscale frameworks`).  [default: megatron-core]",
    ),
]
Precision = Annotated[
    str | None,
    option(
        JOB,
        "--precision",
        "NAME|LIST",
        "bf16, fp16, fp8 (fp8-delayed, fp8-current, fp8-blockwise), mxfp8, nvfp4 or fp4.  [default: bf16]",
    ),
]
Offload = Annotated[str | None, option(JOB, "--offload", "WHAT|LIST", OFFLOAD_HELP)]
CpComm = Annotated[str | None, option(JOB, "--cp-comm", "NAME|LIST", CP_COMM_HELP)]
Schedule = Annotated[
    str | None,
    option(
        JOB,
        "--schedule",
        "NAME|LIST",
        "Pipeline schedule: 1f1b (interleaved too), gpipe, zb-h1, zb-2p, zb-v, dualpipe.  [default: 1f1b]",
    ),
]
Order = Annotated[str | None, option(JOB, "--order", "AXES|LIST", ORDER_HELP)]
PipelineSplit = Annotated[str | None, option(JOB, "--pipeline-split", "NAME|LIST", SPLIT_HELP)]
Overlap = Annotated[str | None, option(JOB, "--overlap", "WHAT|LIST", OVERLAP_HELP)]
Space = Annotated[
    str | None,
    option(
        JOB,
        "--space",
        "NAME",
        "default, or full: also all that the framework can run of precision, offload, CP, schedule, order, split, "
        "overlap.",
    ),
]

Objective = Annotated[
    str | None,
    option(
        QUESTION,
        "--objective",
        "NAME",
        "What to rank by: step_time, tokens_per_s, mfu, memory, memory_headroom, gpu_hours, cost or time_to_train.  "
        "[default: step_time; of several jobs what compares]",
    ),
]
Pareto = Annotated[
    str | None, option(QUESTION, "--pareto", "A,B[,C]", "The frontier of two or three objectives, with a plot of two.")
]
GpuHourPrice = Annotated[
    list[str] | None, option(QUESTION, "--gpu-hour-price", "USD|CLUSTER=USD", "Price of a GPU-hour; repeatable.")
]
TrainTokens = Annotated[
    str | None, option(QUESTION, "--train-tokens", "COUNT", "Tokens of the whole training, such as 15T.")
]
MaxMemory = Annotated[str | None, option(QUESTION, "--max-memory", "SIZE", "Most memory of a GPU, such as 70GiB.")]
MinMfu = Annotated[float | None, option(QUESTION, "--min-mfu", "PERCENT", "Least MFU.")]
MaxStepTime = Annotated[float | None, option(QUESTION, "--max-step-time", "SECONDS", "Longest step.")]
MaxDays = Annotated[float | None, option(QUESTION, "--max-days", "DAYS", "Longest training, with --train-tokens.")]
MaxCost = Annotated[
    float | None, option(QUESTION, "--max-cost", "USD", "Dearest training, with --train-tokens and a price.")
]
