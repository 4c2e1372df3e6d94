"""`gpuscale calibrate gpu`: kernels of a GPU measured, and its constants fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuscale.cli.answering import Answer, answers, wrote
from gpuscale.cli.options import fills_stdout, known, option, whole
from gpuscale.files import write_text


@answers("calibrate-gpu")
def calibrate_gpu(
    recorded: Annotated[Path, option(
        "Measurement log, one per line; an interrupted run resumes from it, and without torch it is only fitted.",
        "FILE", "gpu-protocol.jsonl", flags="--protocol",
    )] = Path("gpu-protocol.jsonl"),
    gpu: Annotated[str | None, option("GPU preset to start from.", "NAME|PATH", "by its product name")] = None,
    device: Annotated[int, whole("Index of the GPU to measure.", default="0")] = 0,
    fit_only: Annotated[bool, option("Measure nothing; fit to the existing protocol.", "", flags="--fit-only")] = False,
    output: Annotated[
        Path | None, option("Write a GPU file with the fitted constants.", "FILE", flags="--output -o")
    ] = None,
    verbose: bool = False,
    json: bool = False,
) -> Answer:  # fmt: skip
    """Measure a GPU's kernels in minutes, and fit the constants that predictions use.

    Example: gpuscale calibrate gpu -o gpu.toml, then gpuscale plan --model llama3-8b --gpus 8 --set gpu=gpu.toml

    GEMMs by shape and precision, attention, memory, launches, the optimizer; collectives of several GPUs. Measuring
    needs torch (pip install 'gpuscale[gpu]'), fitting to a recorded protocol does not (docs/kernels.md).
    """
    from gpuscale.gpubench.calibrate import calibrate_gpu as measure_and_fit
    from gpuscale.gpubench.calibrate import gpu_file_text
    from gpuscale.render import machine as render

    streamed = fills_stdout(output, other=json)
    own = None if gpu is None else known("gpus", gpu)
    with render.progress_bar() as progress:
        found = measure_and_fit(recorded, gpu=own, device=device, fit_only=fit_only, progress=progress)
    if found.missing:
        said = f"{found.missing} measurements are missing: the same command on that machine resumes them"
        typer.echo(f"note: {said}", err=True)
    if output is not None:
        write_text(output, gpu_file_text(found.fit, found.protocol, found.base, output))
    return Answer(
        found, body=lambda: render.fit_json(found, output), view={"verbose": verbose}, streamed=streamed,
        then=wrote(output, "set gpu"),
    )  # fmt: skip
