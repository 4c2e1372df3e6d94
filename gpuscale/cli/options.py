"""Options that `plan` and `estimate` share: the job itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gpuscale.api import JobOptions

JOB, LAYOUT, OUTPUT = "Job", "Layout", "Output"

Model = Annotated[
    str, typer.Option("--model", "-m", help="Preset name, model TOML, or Hugging Face config.json or its folder.")
]
Gpus = Annotated[int, typer.Option("--gpus", "-n", help="GPUs of the job.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="Preset name or TOML. [default: dgx-h100-superpod]", rich_help_panel=JOB),
]
Seq = Annotated[int | None, typer.Option("--seq", help="Tokens per sequence. [default: 4096]", rich_help_panel=JOB)]
Gbs = Annotated[
    int | None,
    typer.Option(
        "--gbs",
        help="Sequences per step. [default: smallest multiple of the GPUs reaching 4 M tokens]",
        rich_help_panel=JOB,
    ),
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="bf16, fp16, fp8 or fp4. [default: bf16]", rich_help_panel=JOB)
]
Optimizer = Annotated[
    str | None, typer.Option("--optimizer", help="adam, lion, muon, sgd, ... [default: adam]", rich_help_panel=JOB)
]
GradDtype = Annotated[
    str | None, typer.Option("--grad-dtype", help="Gradients: fp32 or bf16. [default: fp32]", rich_help_panel=JOB)
]
MasterDtype = Annotated[
    str | None,
    typer.Option("--master-dtype", help="Master weights: fp32, bf16, none. [default: fp32]", rich_help_panel=JOB),
]
MomentDtype = Annotated[
    str | None,
    typer.Option("--moment-dtype", help="Optimizer moments: fp32, bf16, fp8. [default: fp32]", rich_help_panel=JOB),
]
VocabMultiple = Annotated[
    int | None,
    typer.Option("--vocab-multiple", help="Pad the vocabulary to this x TP. [default: 128]", rich_help_panel=JOB),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        "--memory-limit", help="Usable GiB per GPU. [default: driver's capacity less 5 %]", rich_help_panel=JOB
    ),
]
MoeImbalance = Annotated[
    float | None,
    typer.Option(
        "--moe-imbalance", help="Busiest expert rank's tokens over the mean. [default: 1]", rich_help_panel=JOB
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=OUTPUT)]


def job_options(**given: Any) -> JobOptions:
    """Keep the options that were given."""
    options: JobOptions = {}
    options.update({name: value for name, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    return options
