"""Options that `plan` and `estimate` share: the job itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gpuscale.planning import JobOptions

JOB, LAYOUT, OUTPUT = "Job", "Layout", "Output"


def option(panel: str, flags: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    """Build an option of a help panel; `flags` are separated by spaces."""
    built: typer.models.OptionInfo = typer.Option(
        *flags.split(), help=help_text, rich_help_panel=panel, metavar=metavar
    )
    return built


MODEL_HELP = "Preset name, model TOML, or Hugging Face config.json or its folder."
Model = Annotated[str, option(JOB, "--model -m", "NAME|PATH", MODEL_HELP)]
Cluster = Annotated[
    str | None,
    option(JOB, "--cluster -c", "NAME|PATH", "Preset name or cluster TOML.  [default: dgx-h100-superpod]"),
]
Seq = Annotated[int | None, option(JOB, "--seq", "N", "Tokens per sequence.  [default: 4096]")]
Gbs = Annotated[
    int | None,
    option(
        JOB, "--gbs", "N", "Sequences per step.  [default: the smallest multiple of the GPUs that reaches 4 M tokens]"
    ),
]
FrameworkName = Annotated[
    str | None,
    option(
        JOB,
        "--framework",
        "NAME",
        "What can run, and how a step runs (`gpuscale frameworks`).  [default: megatron-core]",
    ),
]
Precision = Annotated[
    str | None,
    option(
        JOB,
        "--precision",
        "NAME",
        "bf16, fp16, fp8 (fp8-delayed, fp8-current, fp8-blockwise), mxfp8, nvfp4 or fp4.  [default: bf16]",
    ),
]
Optimizer = Annotated[
    str | None,
    option(JOB, "--optimizer", "NAME", "adam, adamw, lion, muon, sgd or sgd-momentum.  [default: adam]"),
]
GradDtype = Annotated[
    str | None, option(JOB, "--grad-dtype", "DTYPE", "Gradients: fp32, bf16 or fp16.  [default: as the framework]")
]
MasterDtype = Annotated[
    str | None, option(JOB, "--master-dtype", "DTYPE", "Master weights: fp32, bf16, fp16 or none.  [default: fp32]")
]
MomentDtype = Annotated[
    str | None, option(JOB, "--moment-dtype", "DTYPE", "Optimizer moments: fp32, bf16, fp16, fp8.  [default: fp32]")
]
VocabMultiple = Annotated[
    int | None,
    option(JOB, "--vocab-multiple", "N", "Pad the vocabulary to a multiple of N x TP.  [default: as the framework]"),
]
MemoryLimit = Annotated[
    float | None,
    option(JOB, "--memory-limit", "GIB", "Usable GiB per GPU.  [default: what the driver reports, less 5 %]"),
]
MoeImbalance = Annotated[
    float | None,
    option(JOB, "--moe-imbalance", "X", "Tokens of the busiest expert rank over the mean.  [default: 1]"),
]
GpusPerNode = Annotated[
    int | None, option(JOB, "--gpus-per-node", "N", "GPUs taken of each node.  [default: all that it has]")
]
CP_COMM_HELP = (
    "Exchange of context parallelism: p2p (ring), all_gather, a2a (Ulysses) or a2a+p2p.  [default: as the framework]"
)
OFFLOAD_HELP = "Kept in host memory: optimizer, parameters (ZeRO-3), activations[:SHARE], joined by +.  [default: none]"
ORDER_HELP = "The parallel axes, neighbouring ranks first.  [default: tp-cp-ep-dp-pp]"
SPLIT_HELP = "Layers dealt out to stages: even, tapered or by cost.  [default: as the framework]"
OVERLAP_HELP = "Communication beside computation: tp, dp, ep joined by +, or none.  [default: as the framework]"
CpComm = Annotated[str | None, option(JOB, "--cp-comm", "NAME", CP_COMM_HELP)]
Offload = Annotated[str | None, option(JOB, "--offload", "WHAT", OFFLOAD_HELP)]
Order = Annotated[str | None, option(JOB, "--order", "AXES", ORDER_HELP)]
PipelineSplit = Annotated[str | None, option(JOB, "--pipeline-split", "NAME", SPLIT_HELP)]
Overlap = Annotated[str | None, option(JOB, "--overlap", "WHAT", OVERLAP_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (docs/json.md).", rich_help_panel=OUTPUT)]


def given_options(**given: Any) -> dict[str, Any]:
    """Keep the options that were given."""
    return {name: value for name, value in given.items() if value is not None and value != []}


def job_options(**given: Any) -> JobOptions:
    """Keep the options of a job that were given."""
    options: JobOptions = {}
    options.update(given_options(**given))  # type: ignore[typeddict-item]
    return options
